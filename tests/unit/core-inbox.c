/* SPDX-License-Identifier: Apache-2.0 */
/* inbox.c: the room for notifications of sessions: what is confirmed, waits, is refused or dropped
 */
#include "allocation.h"
#include "core-link.h"
#include "core/notification.h"
#include "net/quota.h"

static uint8_t long_bytes[WH_NOTIFICATION_MAX];

static int send_of(struct link *link, uint64_t sequence, size_t length)
{
	static uint8_t bytes[WH_NOTIFY_HEAD + WH_NOTIFICATION_MAX + 1];
	uint8_t *exact;
	int error;

	wh_put64(wh_put64(bytes, sequence), sequence + 1000);
	exact = exact_copy(bytes, WH_NOTIFY_HEAD + length);
	error = wh_session_notified(link->session, exact, WH_NOTIFY_HEAD + length);
	free(exact);
	return error;
}

static void confirmed(struct link *link, uint64_t sequence)
{
	link_number(link, WH_FRAME_NOTIFIED, sequence);
}

/* Take one of this tag; the number that was sent. */
static uint64_t take(void)
{
	struct wh_notification got = { .size = sizeof(got),
				       .buffer = long_bytes,
				       .capacity = sizeof(long_bytes) };

	assert_int_equal(wh_engine_notification(engine, NULL, &got, 0), 0);
	assert_int_equal(got.epoch, 77);
	return got.tag - 1000;
}

static void nothing(void)
{
	struct wh_notification got = { .size = sizeof(got) };

	assert_int_equal(wh_engine_notification(engine, NULL, &got, 0), -EAGAIN);
}

static void room(uint32_t messages, uint64_t bytes)
{
	engine->inbox->room = messages;
	engine->inbox->room_bytes = bytes;
}

/* ---- one sender ---------------------------------------------------------------------------- */

static void notified__lengths(void **state)
{
	struct link link = session_link();
	uint8_t head[WH_NOTIFY_HEAD] = { 0 };

	(void)state;
	room(10, 1 << 20);
	assert_int_equal(wh_session_notified(link.session, head, WH_NOTIFY_HEAD - 1), -EPROTO);
	assert_int_equal(send_of(&link, 1, WH_NOTIFICATION_MAX + 1), -EPROTO);
	link_quiet(&link);
	assert_int_equal(send_of(&link, 2, 0), 0);
	confirmed(&link, 2);
	assert_int_equal(send_of(&link, 3, WH_NOTIFICATION_MAX), 0);
	confirmed(&link, 3);
	allocation_fails = 2; /* the first is of this test */
	assert_int_equal(send_of(&link, 4, 1), -ENOMEM);
	link_quiet(&link);
	assert_int_equal(take(), 2);
	assert_int_equal(take(), 3);
	nothing();
	link_close(&link);
}

/* What does not fit waits, unconfirmed and in order, until one is taken. */
static void room__messages(void **state)
{
	struct link link = session_link();

	(void)state;
	room(2, 1 << 20);
	for (uint64_t i = 1; i <= 5; i++)
		assert_int_equal(send_of(&link, i, 1), 0);
	confirmed(&link, 1);
	confirmed(&link, 2);
	link_quiet(&link);
	assert_int_equal(link.session->notify_count, 3);
	for (uint64_t i = 1; i <= 5; i++) {
		assert_int_equal(take(), i);
		settle();
		if (i + 2 <= 5)
			confirmed(&link, i + 2);
		link_quiet(&link);
	}
	assert_int_equal(link.session->notify_count, 0);
	assert_int_equal(link.session->notify_bytes, 0);
	assert_int_equal(atomic_load(&link.session->quota->queued), 0);
	nothing();
	link_close(&link);
}

static void room__bytes(void **state)
{
	struct link link = session_link();

	(void)state;
	room(100, 100);
	assert_int_equal(send_of(&link, 1, 60), 0);
	assert_int_equal(send_of(&link, 2, 40), 0);
	assert_int_equal(send_of(&link, 3, 1), 0);
	confirmed(&link, 1);
	confirmed(&link, 2);
	link_quiet(&link);
	/* A small one does not overtake a large one that waits. */
	assert_int_equal(send_of(&link, 4, 0), 0);
	link_quiet(&link);
	assert_int_equal(take(), 1);
	settle();
	confirmed(&link, 3);
	confirmed(&link, 4);
	for (uint64_t i = 2; i <= 4; i++)
		assert_int_equal(take(), i);
	/* The first one of a sender fits in any case. */
	room(1, 1);
	assert_int_equal(send_of(&link, 5, 500), 0);
	confirmed(&link, 5);
	assert_int_equal(take(), 5);
	link_close(&link);
}

/* No more wait than a peer may send unconfirmed. */
static void waiting__limits(void **state)
{
	struct link link = session_link(), other = session_link();
	uint64_t whole = WH_NOTIFY_UNCONFIRMED_BYTES / WH_NOTIFICATION_MAX;

	(void)state;
	room(1, 1 << 20);
	assert_int_equal(send_of(&link, 0, 0), 0);
	for (uint64_t i = 1; i <= WH_NOTIFY_UNCONFIRMED; i++)
		assert_int_equal(send_of(&link, i, 1), 0);
	assert_int_equal(send_of(&link, 99, 0), -EPROTO);
	assert_int_equal(link.session->notify_count, WH_NOTIFY_UNCONFIRMED);
	assert_int_equal(send_of(&other, 0, 0), 0);
	if (whole < WH_NOTIFY_UNCONFIRMED) {
		uint64_t rest = WH_NOTIFY_UNCONFIRMED_BYTES - whole * WH_NOTIFICATION_MAX;

		for (uint64_t i = 1; i <= whole; i++)
			assert_int_equal(send_of(&other, i, WH_NOTIFICATION_MAX), 0);
		assert_int_equal(send_of(&other, 98, rest + 1), -EPROTO);
		assert_int_equal(send_of(&other, 99, rest), 0);
	}
	link_close(&other);
	link_close(&link);
}

static void waiting__charged_to_the_address(void **state)
{
	struct link link = session_link();
	struct wh_quota *quota = link.session->quota;
	int64_t limit = quota->limit;

	(void)state;
	room(1, 1 << 20);
	assert_int_equal(send_of(&link, 1, 0), 0);
	quota->limit = 0;
	assert_int_equal(send_of(&link, 2, 0), -ENOBUFS);
	assert_non_null(strstr(link.session->control.queue_refused, "max_buffered"));
	link.session->control.queue_refused = NULL;
	assert_int_equal(link.session->notify_count, 0);
	assert_int_equal(atomic_load(&quota->queued), 0);
	quota->limit = limit;
	assert_int_equal(send_of(&link, 2, 0), 0);
	assert_true(atomic_load(&quota->queued) > 0);
	link_close(&link);
}

/* ---- several senders ------------------------------------------------------------------------ */

static void senders__one_of_each_and_turns(void **state)
{
	struct link one = session_link(), other = session_link();

	(void)state;
	room(2, 1 << 20);
	for (uint64_t i = 1; i <= 4; i++)
		assert_int_equal(send_of(&one, i, 0), 0);
	confirmed(&one, 1);
	confirmed(&one, 2);
	/* It is full, but this sender has none in it. */
	assert_int_equal(send_of(&other, 101, 0), 0);
	confirmed(&other, 101);
	assert_int_equal(send_of(&other, 102, 0), 0);
	assert_int_equal(send_of(&other, 103, 0), 0);
	link_quiet(&other);
	/* They take turns for the room that there is. */
	room(100, 1 << 20);
	assert_int_equal(take(), 1);
	settle();
	assert_int_equal(take(), 2);
	assert_int_equal(take(), 101);
	assert_int_equal(take(), 3);
	assert_int_equal(take(), 102);
	assert_int_equal(take(), 4);
	assert_int_equal(take(), 103);
	nothing();
	link_close(&one);
	link_close(&other);
}

/* A session that ends takes what waits with it, and leaves what has arrived. */
static void senders__one_leaves(void **state)
{
	struct link one = session_link(), other = session_link();
	struct wh_quota *quota = other.session->quota;
	int64_t before;

	(void)state;
	room(1, 1 << 20);
	assert_int_equal(send_of(&other, 101, 0), 0);
	assert_int_equal(send_of(&other, 102, 7), 0);
	before = atomic_load(&quota->queued);
	assert_int_equal(send_of(&one, 1, 0), 0);
	assert_int_equal(send_of(&one, 2, 0), 0);
	assert_true(atomic_load(&quota->queued) > before);
	link_close(&one);
	assert_int_equal(atomic_load(&quota->queued), before);
	assert_int_equal(take(), 101);
	assert_int_equal(take(), 1); /* its session is gone: the count that it was in, too */
	settle();
	assert_int_equal(take(), 102);
	nothing();
	link_close(&other);
}

static int by_transport(struct link *link, uint32_t by, uint64_t sequence)
{
	return wh_session_notified_by_transport(link->session, by, sequence, sequence + 1000, "",
						0);
}

/* What a lost connection of a transport has brought, and waits, comes again by another way. */
static void forget__of_one_connection(void **state)
{
	struct link link = session_link();

	(void)state;
	room(1, 1 << 20);
	assert_int_equal(by_transport(&link, 1, 1), 0);
	assert_int_equal(by_transport(&link, 1, 2), 0);
	assert_int_equal(by_transport(&link, 2, 3), 0);
	assert_int_equal(by_transport(&link, 1, 4), 0);
	wh_session_notifications_forget(link.session, 1);
	assert_int_equal(link.session->notify_count, 1);
	assert_int_equal(take(), 1); /* it has arrived, and stays */
	settle();
	assert_int_equal(take(), 3);
	nothing();
	link_close(&link);
}

/* ---- taking -------------------------------------------------------------------------------- */

/* One that is longer than the buffer stays, and tells its length. */
static void take__capacity(void **state)
{
	struct link link = session_link();
	struct wh_notification got = { .size = sizeof(got), .buffer = long_bytes, .capacity = 9 };

	(void)state;
	room(10, 1 << 20);
	assert_int_equal(send_of(&link, 1, 10), 0);
	assert_int_equal(wh_engine_notification(engine, NULL, &got, 0), -EMSGSIZE);
	said("has 10 bytes, the buffer 9");
	assert_int_equal(got.length, 10);
	assert_int_equal(got.tag, 1001);
	got.capacity = 10;
	assert_int_equal(wh_engine_notification(engine, NULL, &got, 0), 0);
	assert_int_equal(got.length, 10);
	assert_int_equal(engine->inbox->bytes, 0);
	got.buffer = NULL;
	assert_int_equal(wh_engine_notification(engine, NULL, &got, 0), -EINVAL);
	said("out.buffer is NULL");
	got = (struct wh_notification){ .size = sizeof(got) };
	assert_int_equal(wh_engine_notification(engine, NULL, &got, -1), -EINVAL);
	assert_int_equal(wh_engine_notification(engine, NULL, NULL, 0), -EINVAL);
	link_close(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(notified__lengths),
		TEST(room__messages),
		TEST(room__bytes),
		TEST(waiting__limits),
		TEST(waiting__charged_to_the_address),
		TEST(senders__one_of_each_and_turns),
		TEST(senders__one_leaves),
		TEST(forget__of_one_connection),
		TEST(take__capacity),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
