/* SPDX-License-Identifier: Apache-2.0 */
/* core-notification.c: notifications between two engines: delivery, a full inbox, cancellation,
 * invalid frames */
#include "core-notification.h"

#include <netinet/in.h>

#include "util/address.h"

/* ---- delivery ---------------------------------------------------------- */

static void notify__itself(void **state)
{
	(void)state;
	assert_false(readable());
	finish(submit(self, 5));
	assert_true(readable());
	assert_int_equal(receive("receiver", 0), 5);
	assert_false(readable());
}

static void notify__a_peer(void **state)
{
	struct wh_batch *batch = submit(peer, 7);

	(void)state;
	assert_int_equal(receive("sender", PATIENCE), 7);
	finish(batch);
	/* Submit the same batch again. */
	batch = submit(peer, 8);
	assert_int_equal(receive("sender", PATIENCE), 8);
	assert_int_equal(batch_end(batch, PATIENCE), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(receive("sender", PATIENCE), 8);
	finish(batch);
}

/* A notification says by its connection where it came from, not by what its sender says. */
static void notify__source(void **state)
{
	struct wh_notification out = { .size = sizeof(out) };
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct sockaddr_storage any = { .ss_family = AF_UNSPEC };
	unsigned char bytes[64];
	struct wh_batch *batch;

	(void)state;
	memcpy(&any, &address, sizeof(address));
	out.buffer = bytes;
	out.capacity = sizeof(bytes);
	batch = submit(peer, 1);
	assert_int_equal(wh_engine_notification(here, NULL, &out, PATIENCE), 0);
	assert_int_equal(out.source, wh_address_prefix(&any));
	finish(batch);
	/* The same structure is good for the next call. */
	finish(submit(self, 2));
	assert_int_equal(wh_engine_notification(here, NULL, &out, 0), 0);
	assert_int_equal(out.source, 0);
}

static void notify__the_most_bytes(void **state)
{
	static unsigned char bytes[WH_NOTIFICATION_MAX];
	static struct note note;
	struct wh_peer *const both[] = { peer, self };
	struct wh_batch *batch;

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 31);
	for (int i = 0; i < 2; i++) {
		memset(&note, 0, sizeof(note));
		assert_int_equal(wh_batch_new(both[i], NULL, &batch), 0);
		assert_int_equal(wh_batch_notify(batch, 0, bytes, sizeof(bytes)), 0);
		assert_int_equal(wh_batch_submit(batch), 0);
		assert_int_equal(note_take(here, &note, PATIENCE), 0);
		assert_int_equal(note.length, sizeof(bytes));
		assert_memory_equal(note.data, bytes, sizeof(bytes));
		finish(batch);
	}
}

static void take__none(void **state)
{
	struct note note;
	int64_t start = wh_now();

	(void)state;
	assert_int_equal(note_take(here, &note, 0), -EAGAIN);
	assert_int_equal(note_take(here, &note, 20 * WH_MS), -EAGAIN);
	assert_in_range(wh_now() - start, 20 * WH_MS, PATIENCE);
}

static void *submit_later(void *arg)
{
	usleep(20000);
	finish(submit(arg, 3));
	return NULL;
}

static void take__wakes_up(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, submit_later, peer), 0);
	assert_int_equal(receive("sender", WH_FOREVER), 3);
	pthread_join(thread, NULL);
}

/* ---- a full inbox ------------------------------------------------------ */

#define BATCHES 40 /* more than the window of 16 and the two in the inbox */

static void full__all_arrive_in_turn(void **state)
{
	struct wh_batch *batches[BATCHES];

	(void)state;
	for (unsigned i = 0; i < BATCHES; i++)
		batches[i] = submit(peer, i);
	finish(batches[0]);
	finish(batches[1]);
	usleep(20000);
	assert_int_equal(batch_now(batches[2]), -EAGAIN);
	for (unsigned i = 0; i < BATCHES; i++)
		assert_int_equal(receive("sender", PATIENCE), i);
	for (unsigned i = 2; i < BATCHES; i++)
		finish(batches[i]);
	assert_false(readable());
}

static void full__own_ones_wait_too(void **state)
{
	struct wh_batch *batches[BATCHES];

	(void)state;
	for (unsigned i = 0; i < BATCHES; i++)
		batches[i] = submit(self, i);
	assert_int_equal(batch_now(batches[1]), 0);
	assert_int_equal(batch_now(batches[2]), -EAGAIN);
	for (unsigned i = 0; i < BATCHES; i++)
		assert_int_equal(receive("receiver", PATIENCE), i);
	for (unsigned i = 0; i < BATCHES; i++)
		finish(batches[i]);
}

static void count_waiting(void *arg)
{
	unsigned *count = arg;

	*count = 0;
	for (struct wh_list *link = here->sessions.next; link != &here->sessions; link = link->next)
		*count += wh_container(link, struct wh_session, link)->notify_count;
}

static void await_waiting(unsigned want)
{
	int64_t end = wh_now() + PATIENCE;
	unsigned count;

	do {
		assert_true(wh_now() < end);
		wh_loop_call(&here->loops[0], count_waiting, &count);
	} while (count != want);
}

static void full__own_and_others_take_turns(void **state)
{
	struct wh_batch *mine[6], *theirs[6];
	struct note note;
	int own = 0, early = 0;

	(void)state;
	finish(submit(self, 100));
	finish(submit(self, 101));
	for (unsigned i = 0; i < 6; i++) {
		mine[i] = submit(self, i);
		theirs[i] = submit(peer, i);
	}
	await_waiting(5); /* the first one always fits */
	for (int i = 0; i < 14; i++) {
		assert_int_equal(note_take(here, &note, PATIENCE), 0);
		if (i >= 2 && i < 10)
			early += !strcmp(note.sender, "receiver");
		own += !strcmp(note.sender, "receiver");
		usleep(1000);
	}
	assert_int_equal(own, 8);
	assert_in_range(early, 2, 6);
	for (unsigned i = 0; i < 6; i++) {
		finish(mine[i]);
		finish(theirs[i]);
	}
}

/* One sender's notifications that nobody takes do not keep another's from the calls that ask for
 * them. */
static void full__others_get_through(void **state)
{
	struct wh_batch *theirs[4];

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		theirs[i] = submit(peer, i);
	await_waiting(2);
	for (uint64_t tag = 5; tag < 10; tag++) {
		notify(self, tag, NULL, 0);
		assert_int_equal(take("receiver", tag, UINT64_MAX, 0), tag);
	}
	assert_int_equal(batch_now(theirs[2]), -EAGAIN);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(receive("sender", PATIENCE), i);
	for (unsigned i = 0; i < 4; i++)
		finish(theirs[i]);
}

static int setup_few_bytes(void **state)
{
	(void)state;
	setenv("WHERRY_NOTIFICATION_BYTES", "128KiB", 1);
	return open_all("spin=no", "notifications=1000");
}

static int teardown_few_bytes(void **state)
{
	unsetenv("WHERRY_NOTIFICATION_BYTES");
	return teardown(state);
}

/* Three of 40,000 bytes fit; then a short one does, but it comes after those that wait. */
static void full__of_bytes(void **state)
{
	static unsigned char bytes[40000];
	struct wh_peer *const both[] = { peer, self };
	struct wh_batch *batches[6];
	struct note note;

	(void)state;
	for (int way = 0; way < 2; way++) {
		for (unsigned i = 0; i < 6; i++) {
			assert_int_equal(wh_batch_new(both[way], NULL, &batches[i]), 0);
			assert_int_equal(
				wh_batch_notify(batches[i], i, bytes, i == 5 ? 1 : sizeof(bytes)),
				0);
			assert_int_equal(wh_batch_submit(batches[i]), 0);
		}
		for (unsigned i = 0; i < 3; i++)
			finish(batches[i]);
		if (!way)
			await_waiting(3);
		for (unsigned i = 3; i < 6; i++)
			assert_int_equal(batch_now(batches[i]), -EAGAIN);
		for (unsigned i = 0; i < 6; i++) {
			assert_int_equal(note_take(here, &note, PATIENCE), 0);
			assert_int_equal(note.tag, i);
			assert_int_equal(note.length, i == 5 ? 1 : sizeof(bytes));
		}
		for (unsigned i = 3; i < 6; i++)
			finish(batches[i]);
	}
	assert_false(readable());
}

/* Of 64 KiB each, four are sent and unconfirmed, besides the two in the inbox. */
static void full__long_ones(void **state)
{
	static unsigned char bytes[WH_NOTIFICATION_MAX];
	struct wh_batch *batches[12];
	struct note note;

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		assert_int_equal(wh_batch_new(peer, NULL, &batches[i]), 0);
		assert_int_equal(wh_batch_notify(batches[i], i, bytes, sizeof(bytes)), 0);
		assert_int_equal(wh_batch_submit(batches[i]), 0);
	}
	await_waiting(4);
	usleep(20000);
	await_waiting(4);
	/* One that has been sent, which arrives all the same, and one that has not. */
	assert_int_equal(wh_batch_cancel(batches[3]), 0);
	assert_int_equal(wh_batch_cancel(batches[11]), 0);
	for (unsigned i = 0; i < 11; i++) {
		assert_int_equal(note_take(here, &note, PATIENCE), 0);
		assert_int_equal(note.tag, i);
		assert_int_equal(note.length, sizeof(bytes));
	}
	assert_false(readable());
	for (unsigned i = 0; i < 12; i++) {
		assert_int_equal(batch_end(batches[i], PATIENCE),
				 i == 3 || i == 11 ? -ECANCELED : 0);
		assert_int_equal(wh_batch_free(batches[i]), 0);
	}
	finish(submit(peer, 0)); /* confirmed after all of them */
	pthread_mutex_lock(&peer->notify_lock);
	assert_int_equal(peer->notify_count, 0);
	assert_int_equal(peer->notify_bytes, 0);
	pthread_mutex_unlock(&peer->notify_lock);
}

static void count_sessions(void *arg)
{
	unsigned *count = arg;

	*count = here->session_count;
}

static void await_no_session(void)
{
	int64_t end = wh_now() + PATIENCE;
	unsigned count;

	do {
		assert_true(wh_now() < end);
		wh_loop_call(&here->loops[0], count_sessions, &count);
	} while (count);
}

static void full__the_sender_leaves(void **state)
{
	struct wh_batch *batches[8];

	(void)state;
	for (unsigned i = 0; i < 8; i++)
		batches[i] = submit(peer, i);
	finish(batches[0]);
	finish(batches[1]);
	for (unsigned i = 2; i < 8; i++) {
		assert_int_equal(wh_batch_cancel(batches[i]), 0);
		assert_int_equal(batch_now(batches[i]), -ECANCELED);
		assert_int_equal(wh_batch_free(batches[i]), 0);
	}
	assert_int_equal(wh_peer_close(peer), 0);
	await_no_session(); /* drops what the session held */
	assert_int_equal(receive("sender", 0), 0);
	assert_int_equal(receive("sender", 0), 1);
	assert_int_equal(wh_peer_open(there, wh_engine_url(here), NULL, &peer), 0);
	finish(submit(peer, 9));
	assert_int_equal(receive("sender", PATIENCE), 9);
}

static void full__the_receiver_leaves(void **state)
{
	struct wh_batch *batches[BATCHES];
	int status;

	(void)state;
	for (unsigned i = 0; i < BATCHES; i++)
		batches[i] = submit(peer, i);
	finish(batches[0]);
	finish(batches[1]);
	assert_int_equal(wh_peer_close(self), 0);
	assert_int_equal(wh_engine_close(here), 0);
	for (unsigned i = 2; i < BATCHES; i++) {
		status = batch_end(batches[i], PATIENCE);
		assert_int_equal(status, -ECONNRESET);
		assert_true(*wh_batch_error_text(batches[i]));
		assert_int_equal(wh_batch_free(batches[i]), 0);
	}
	assert_int_equal(wh_peer_close(peer), 0);
	assert_int_equal(wh_engine_close(there), 0);
	assert_int_equal(open_all("spin=no", "notifications=2"), 0); /* for the teardown */
}

/* ---- cancellation ------------------------------------------------------ */

static void cancel__waiting_and_sent(void **state)
{
	struct wh_batch *batches[BATCHES];

	(void)state;
	for (unsigned i = 0; i < BATCHES; i++)
		batches[i] = submit(peer, i);
	/* The last one has not been sent. */
	assert_int_equal(wh_batch_cancel(batches[BATCHES - 1]), 0);
	assert_int_equal(batch_end(batches[BATCHES - 1], 0), -ECANCELED);
	/* The fifth has been sent but not confirmed: it arrives all the same. */
	assert_int_equal(wh_batch_cancel(batches[4]), 0);
	assert_int_equal(batch_end(batches[4], 0), -ECANCELED);
	for (unsigned i = 0; i < BATCHES - 1; i++)
		assert_int_equal(receive("sender", PATIENCE), i);
	for (unsigned i = 0; i < BATCHES; i++) {
		if (i == 4 || i == BATCHES - 1)
			assert_int_equal(wh_batch_free(batches[i]), 0);
		else
			finish(batches[i]);
	}
	assert_false(readable());
	/* The window has not shrunk. */
	pthread_mutex_lock(&peer->notify_lock);
	assert_int_equal(peer->notify_count, 0);
	pthread_mutex_unlock(&peer->notify_lock);
}

static void cancel__own(void **state)
{
	struct wh_batch *batches[4];

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		batches[i] = submit(self, i);
	assert_int_equal(wh_batch_cancel(batches[2]), 0);
	assert_int_equal(batch_now(batches[2]), -ECANCELED);
	assert_int_equal(wh_batch_cancel(batches[0]), 0);
	assert_int_equal(batch_now(batches[0]), 0); /* had completed */
	assert_int_equal(receive("receiver", PATIENCE), 0);
	assert_int_equal(receive("receiver", PATIENCE), 1);
	assert_int_equal(receive("receiver", PATIENCE), 3);
	finish(batches[1]);
	finish(batches[3]);
	assert_int_equal(wh_batch_free(batches[0]), 0);
	assert_int_equal(wh_batch_free(batches[2]), 0);
}

/* ---- concurrency ------------------------------------------------------- */

#define EACH 50

static atomic_int sending;

static void *send_many(void *to)
{
	struct wh_batch *batch;

	for (unsigned i = 0; i < EACH; i++) {
		batch = submit(to, i);
		if (i % 8 == 7) {
			wh_batch_cancel(batch);
			wh_batch_free(batch);
		} else {
			finish(batch);
		}
	}
	atomic_fetch_sub(&sending, 1);
	return NULL;
}

static void threads__lose_nothing(void **state)
{
	pthread_t threads[6];
	struct note note;
	int got = 0;

	(void)state;
	atomic_store(&sending, 6);
	for (int i = 0; i < 6; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, send_many, i % 2 ? peer : self),
				 0);
	while (atomic_load(&sending))
		got += !note_take(here, &note, 5 * WH_MS);
	for (int i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
	/* Some cancelled ones had been sent before. */
	while (!note_take(here, &note, 50 * WH_MS))
		got++;
	assert_in_range(got, 6 * (EACH - EACH / 8), 6 * EACH);
}

/* ---- misuse and hostile peers ------------------------------------------ */

static void misuse(void **state)
{
	struct wh_notification raw = { .size = sizeof(raw) };
	struct wh_notification_filter filter = { .size = sizeof(filter) };
	struct note note;

	(void)state;
	assert_int_equal(wh_engine_notification(NULL, NULL, &raw, 0), -EINVAL);
	assert_int_equal(wh_engine_notification(here, NULL, NULL, 0), -EINVAL);
	assert_int_equal(note_take(here, &note, -1), -EINVAL);
	assert_int_equal(wh_engine_notification_fd(NULL), -EINVAL);
	raw.capacity = 1;
	assert_int_equal(wh_engine_notification(here, NULL, &raw, 0), -EINVAL);
	raw = (struct wh_notification){ .size = sizeof(raw), .reserved = { 0, 1 } };
	assert_int_equal(wh_engine_notification(here, NULL, &raw, 0), -EINVAL);
	raw = (struct wh_notification){ 0 };
	assert_int_equal(wh_engine_notification(here, NULL, &raw, 0), -EINVAL);
	raw.size = sizeof(raw);
	assert_int_equal(wh_engine_notification(here, &filter, &raw, 0), -EAGAIN);
	filter.reserved[1] = 1;
	assert_int_equal(wh_engine_notification(here, &filter, &raw, 0), -EINVAL);
	filter = (struct wh_notification_filter){ 0 };
	assert_int_equal(wh_engine_notification(here, &filter, &raw, 0), -EINVAL);
}

static void take_inside(void *arg)
{
	struct note note;
	int *result = arg;

	result[0] = note_take(here, &note, WH_MS);
	result[1] = note_take(here, &note, 0);
}

static void take__in_a_callback(void **state)
{
	int result[2];

	(void)state;
	wh_loop_call(&here->loops[0], take_inside, result);
	assert_int_equal(result[0], -EDEADLK);
	assert_int_equal(result[1], -EAGAIN);
}

static struct wh_session *session(void)
{
	assert_false(wh_list_empty(&here->sessions));
	return wh_container(here->sessions.next, struct wh_session, link);
}

static void notified_hostile(void *arg)
{
	static uint8_t payload[17 + WH_NOTIFICATION_MAX];
	int *result = arg;

	*result++ = wh_session_notified(session(), payload, 0);
	*result++ = wh_session_notified(session(), payload, 15);
	*result++ = wh_session_notified(session(), payload, 17 + WH_NOTIFICATION_MAX);
	/* Two in the inbox, 16 held, one too many. */
	for (int i = 0; i < 19; i++) {
		wh_put64(payload, 1000000 + (uint64_t)i); /* never sent by the other side */
		*result++ = wh_session_notified(session(), payload, 16 + (size_t)i % 2);
	}
}

static void notified__hostile(void **state)
{
	struct note note;
	int result[22];

	(void)state;
	wh_loop_call(&here->loops[0], notified_hostile, result);
	for (int i = 0; i < 3; i++)
		assert_int_equal(result[i], -EPROTO);
	for (int i = 3; i < 21; i++)
		assert_int_equal(result[i], 0);
	assert_int_equal(result[21], -EPROTO);
	for (int i = 0; i < 18; i++)
		assert_int_equal(note_take(here, &note, PATIENCE), 0);
	/* Confirmations of unsent notifications do no harm. */
	finish(submit(peer, 1));
	assert_int_equal(receive("sender", PATIENCE), 1);
}

static void notified_too_long(void *arg)
{
	static uint8_t payload[WH_NOTIFY_HEAD + WH_NOTIFICATION_MAX];
	int *result = arg;

	for (int i = 0; i < 7; i++) {
		wh_put64(payload, 1000000 + (uint64_t)i);
		*result++ = wh_session_notified(session(), payload, sizeof(payload));
	}
}

/* Two in the inbox, four held, one too many. */
static void notified__too_long(void **state)
{
	struct note note;
	int result[7];

	(void)state;
	wh_loop_call(&here->loops[0], notified_too_long, result);
	for (int i = 0; i < 6; i++)
		assert_int_equal(result[i], 0);
	assert_int_equal(result[6], -EPROTO);
	for (int i = 0; i < 6; i++)
		assert_int_equal(note_take(here, &note, PATIENCE), 0);
	assert_false(readable());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(notify__itself),
		TEST(notify__a_peer),
		TEST_SPINNING(notify__a_peer),
		TEST_SPINNING(notify__source),
		TEST(notify__the_most_bytes),
		TEST(take__none),
		TEST_SPINNING(take__none),
		TEST(take__wakes_up),
		TEST_SPINNING(take__wakes_up),
		TEST(full__others_get_through),
		cmocka_unit_test_setup_teardown(full__of_bytes, setup_few_bytes,
						teardown_few_bytes),
		TEST(full__all_arrive_in_turn),
		TEST(full__long_ones),
		TEST(full__own_ones_wait_too),
		TEST(full__own_and_others_take_turns),
		TEST(full__the_sender_leaves),
		TEST(full__the_receiver_leaves),
		TEST(cancel__waiting_and_sent),
		TEST(cancel__own),
		TEST(threads__lose_nothing),
		TEST(misuse),
		TEST(take__in_a_callback),
		TEST(notified__hostile),
		TEST(notified__too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
