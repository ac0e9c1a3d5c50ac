/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads */
/* notification-delivery.c: notifications arrive after the bytes of their batch, in order, exactly
 * once */
#include <poll.h>

#include "lib/fixture.h"

#define LENGTH MIB

static struct note *notification_new(void)
{
	struct note *notification = calloc(1, sizeof(*notification));

	assert_non_null(notification);
	return notification;
}

/* Receive the target's next notification; a failure is printed. */
static int target_receive(struct fixture *f, int64_t timeout, struct note *out)
{
	return f->child ? child_notification(f->child, timeout, out) :
			  note_take(f->engine, out, timeout);
}

static void send_notification(struct fixture *f, struct wh_batch *batch, const void *data,
			      size_t length)
{
	(void)f;
	want(0, wh_batch_notify(batch, 0, data, length));
	want(0, batch_run(batch));
}

/* Transfers and blocks without bytes, by themselves and with a notification. No region is looked
 * at.
 */
static void data__nothing(void **state)
{
	struct wh_transfer none[2] = { { .op = WH_READ }, { .op = WH_WRITE, .remote = 77 } };
	struct wh_base base = { 0 };
	struct wh_blocks_desc d = { .size = sizeof(d),
				    .op = WH_WRITE,
				    .block_length = 10,
				    .bases = &base,
				    .base_count = 1 };
	struct note *got = notification_new();
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	batch = batch_of(&f, NULL, 0);
	for (int step = 0; step < 4; step++) {
		want(0, wh_batch_submit(batch));
		want(0, wh_batch_status(batch));
		if (step == 0)
			want(0, wh_batch_add(batch, none, 2));
		d.count = step == 1;
		d.block_length = step == 1 ? 0 : 10;
		want(0, wh_blocks_new(f.peer, &d, &blocks));
		want(0, wh_batch_add_blocks(batch, blocks));
		want(0, wh_blocks_free(blocks));
	}
	send_notification(&f, batch, "empty", 5);
	want(0, target_receive(&f, PATIENCE, got));
	want(5, got->length);
	assert_memory_equal(got->data, "empty", 5);
	want(0, wh_batch_free(batch));
	free(got);
	fixture_close(&f);
}

/* When a notification arrives, its bytes have arrived. The batch is not waited for before. */
static void order__bytes_come_first(void **state)
{
	struct note *got = notification_new();
	struct wh_transfer transfers[4];
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	for (uint64_t i = 0; i < 4; i++)
		transfers[i] =
			transfer_of(&f, WH_WRITE, i * LENGTH / 4, i * LENGTH / 4, LENGTH / 4);
	batch = batch_of(&f, transfers, 4);
	for (uint64_t round = 1; round <= SCALE(60, 10); round++) {
		size_t bad;

		pattern_fill(f.local, LENGTH, 0, round);
		want(0, wh_batch_notify(batch, 0, &round, sizeof(round)));
		want(0, wh_batch_submit(batch));
		want(0, target_receive(&f, PATIENCE, got));
		bad = target_check(&f, 0, LENGTH, 0, round);
		want_true(bad == PATTERN_GOOD, "round %d: byte %zu came later", (int)round, bad);
		want(sizeof(round), got->length);
		assert_memory_equal(got->data, &round, sizeof(round));
		want(0, batch_end(batch, PATIENCE));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	free(got);
}

/* With a read, the notification tells the owner that the reader has the bytes. */
static void order__after_a_read(void **state)
{
	struct note *got = notification_new();
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	transfer = transfer_of(&f, WH_READ, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	for (uint64_t round = 1; round <= 10; round++) {
		target_fill(&f, 0, LENGTH, 0, round);
		want(0, wh_batch_notify(batch, 0, "taken", 5));
		want(0, wh_batch_submit(batch));
		want(0, target_receive(&f, PATIENCE, got));
		/* The owner reuses its memory at once. */
		target_fill(&f, 0, LENGTH, 0, 0);
		want(0, batch_end(batch, PATIENCE));
		want_true(pattern_check(f.local, LENGTH, 0, round) == PATTERN_GOOD, "round %d",
			  (int)round);
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	free(got);
}

/* Each length and its tag arrives, alone and behind bytes. 4,096 is the most that a NIC writes. */
static void data__sizes(void **state)
{
	static const size_t sizes[] = { 0,    1,    2,    7,    8,     63,    64,
					1000, 4095, 4096, 4097, 65535, 65536, 0 };
	static unsigned char bytes[WH_NOTIFICATION_MAX + 1];
	struct note *got = notification_new();
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 65536);
	for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(*sizes); i++) {
		size_t length = sizes[i / 2];
		uint64_t tag = UINT64_MAX - i;

		batch = batch_of(&f, &transfer, i % 2);
		pattern_fill(f.local, 65536, 0, i);
		pattern_fill(bytes, sizeof(bytes), 0, i);
		want(0, wh_batch_notify(batch, tag, length ? bytes : NULL, length));
		want(0, batch_run(batch));
		want(0, target_receive(&f, PATIENCE, got));
		want(length, got->length);
		want(tag, got->tag);
		assert_memory_equal(got->data, bytes, length);
		want(wh_engine_epoch(f.engine), got->epoch);
		assert_string_equal(got->sender, wh_engine_name(f.engine));
		want_true(!(i % 2) || target_check(&f, 0, 65536, 0, i) == PATTERN_GOOD,
			  "the bytes have not arrived");
		want(0, wh_batch_free(batch));
	}
	want(-EAGAIN, target_receive(&f, 0, got));
	want(-EAGAIN, target_receive(&f, 10 * MS, got));
	batch = batch_of(&f, NULL, 0);
	want(-EINVAL, wh_batch_notify(batch, 0, bytes, WH_NOTIFICATION_MAX + 1));
	want(-EINVAL, wh_batch_notify(batch, 0, NULL, 1));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	free(got);
}

/* Short and long ones in turn, many in flight: what goes by different ways stays in order. */
static void order__short_and_long(void **state)
{
	enum { MANY = 24 };
	static unsigned char bytes[WH_NOTIFICATION_MAX];
	struct wh_batch *batches[MANY];
	struct note *got = notification_new();
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want(0, move(&f, WH_WRITE, 0, 0, 64));
	for (uint64_t i = 0; i < MANY; i++) {
		batches[i] = batch_of(&f, NULL, 0);
		want(0, wh_batch_notify(batches[i], i, bytes, i % 3 == 1 ? sizeof(bytes) : i));
		want(0, wh_batch_submit(batches[i]));
	}
	for (uint64_t i = 0; i < MANY; i++) {
		want(0, target_receive(&f, PATIENCE, got));
		want(i, got->tag);
		want(i % 3 == 1 ? sizeof(bytes) : i, got->length);
	}
	for (int i = 0; i < MANY; i++) {
		want(0, batch_end(batches[i], PATIENCE));
		want(0, wh_batch_free(batches[i]));
	}
	fixture_close(&f);
	free(got);
}

static void data__copied_and_replaced(void **state)
{
	struct note *got = notification_new();
	char text[] = "second";
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	batch = batch_of(&f, NULL, 0);
	want(0, wh_batch_notify(batch, 0, "first, and longer", 17));
	want(0, wh_batch_notify(batch, 0, text, 6));
	memset(text, 'x', 6);
	want(0, batch_run(batch));
	want(0, target_receive(&f, PATIENCE, got));
	want(6, got->length);
	assert_memory_equal(got->data, "second", 6);
	/* A second submission sends it again. */
	want(0, batch_run(batch));
	want(0, target_receive(&f, PATIENCE, got));
	assert_memory_equal(got->data, "second", 6);
	want(-EAGAIN, target_receive(&f, 10 * MS, got));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	free(got);
}

/* Notifications arrive in the order of their batches. */
static void order__of_batches(void **state)
{
	struct note *got = notification_new();
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	batch = batch_of(&f, NULL, 0);
	for (uint32_t i = 0; i < SCALE(100, 30); i++)
		send_notification(&f, batch, &i, sizeof(i));
	for (uint32_t i = 0; i < SCALE(100, 30); i++) {
		want(0, target_receive(&f, PATIENCE, got));
		assert_memory_equal(got->data, &i, sizeof(i));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	free(got);
}

static bool fd_readable(int fd, int ms)
{
	struct pollfd polled = { .fd = fd, .events = POLLIN };

	return poll(&polled, 1, ms) == 1;
}

/* Four processes notify this one. Each message arrives once, in its sender's order. */
static void senders__many(void **state)
{
	enum { SENDERS = 4, EACH = 50 };
	const struct route *route = *state;
	struct wh_engine *engine = engine_open(NULL, route->listen, NULL);
	struct note *got = notification_new();
	struct child *senders[SENDERS];
	int next[SENDERS] = { 0 }, fd = wh_engine_notification_fd(engine);
	char text[16];

	want_true(!fd_readable(fd, 0), "nobody has sent anything yet");
	for (int s = 0; s < SENDERS; s++) {
		senders[s] = child_start(NULL);
		want(0, child_peer(senders[s], wh_engine_url(engine), NULL));
	}
	for (int i = 0; i < EACH; i++) {
		struct child_transfer transfer = { .notify = text, .require = route->require };

		snprintf(text, sizeof(text), "%d", i);
		for (int s = 0; s < SENDERS; s++)
			child_transfer_send(senders[s], &transfer);
		for (int s = 0; s < SENDERS; s++)
			want(0, child_transfer_receive(senders[s], NULL));
	}
	for (int i = 0; i < SENDERS * EACH; i++) {
		int s = 0;

		want_true(fd_readable(fd, 5000), "%d came", i);
		want(0, note_take(engine, got, 0));
		while (s < SENDERS && senders[s]->epoch != got->epoch)
			s++;
		want_true(s < SENDERS, "it comes from nobody we know");
		assert_string_equal(got->sender, senders[s]->name);
		snprintf(text, sizeof(text), "%d", next[s]++);
		want(strlen(text), got->length);
		assert_memory_equal(got->data, text, got->length);
	}
	want_true(!fd_readable(fd, 20), "more than were sent");
	for (int s = 0; s < SENDERS; s++)
		child_exit(senders[s]);
	want(0, wh_engine_close(engine));
	free(got);
}

/* A full queue delays the sender and loses nothing. */
static void full__sender_waits(void **state)
{
	enum { ROOM = 4, SENT = 10 };
	struct child_options options = { .config = { "notifications=4" } };
	static const char *const config[] = { "notifications=4", NULL };
	struct note *got = notification_new();
	struct wh_batch *batches[SENT];
	struct fixture f;
	int done = 0;

	fixture_open_with(&f, *state, LENGTH, config, &options);
	for (uint32_t i = 0; i < SENT; i++) {
		batches[i] = batch_of(&f, NULL, 0);
		want(0, wh_batch_notify(batches[i], 0, &i, sizeof(i)));
		want(0, wh_batch_submit(batches[i]));
		batch_end(batches[i], i < ROOM ? PATIENCE : 20 * MS);
	}
	for (int i = 0; i < SENT; i++)
		done += batch_now(batches[i]) == 0;
	want_true(done >= 1 && done <= ROOM, "%d of %d were kept, there is room for %d", done, SENT,
		  ROOM);
	for (uint32_t i = 0; i < SENT; i++) {
		want(0, target_receive(&f, PATIENCE, got));
		assert_memory_equal(got->data, &i, sizeof(i));
	}
	for (int i = 0; i < SENT; i++) {
		want(0, batch_end(batches[i], PATIENCE));
		want(0, wh_batch_free(batches[i]));
	}
	want(-EAGAIN, target_receive(&f, 20 * MS, got));
	fixture_close(&f);
	free(got);
}

/* A sender delayed by a full queue can cancel; transfers go on meanwhile. */
static void full__cancel(void **state)
{
	struct child_options options = { .config = { "notifications=1" } };
	static const char *const config[] = { "notifications=1", NULL };
	struct note *got = notification_new();
	struct wh_batch *first, *second;
	struct fixture f;
	int status;

	fixture_open_with(&f, *state, LENGTH, config, &options);
	first = batch_of(&f, NULL, 0);
	second = batch_of(&f, NULL, 0);
	send_notification(&f, first, "first", 5);
	want(0, wh_batch_notify(second, 0, "second", 6));
	want(0, wh_batch_submit(second));
	want(-EAGAIN, batch_end(second, 50 * MS));
	want(0, move(&f, WH_WRITE, 0, 0, 1000));
	want(0, wh_batch_cancel(second));
	status = batch_now(second);
	want_true(status == 0 || status == -ECANCELED, "it is %d", status);
	want(0, target_receive(&f, PATIENCE, got));
	assert_memory_equal(got->data, "first", 5);
	want(0, wh_batch_free(second));
	want(0, wh_batch_free(first));
	fixture_close(&f);
	free(got);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(order__bytes_come_first), TEST_EVERY_ROUTE(order__after_a_read),
	TEST_EVERY_ROUTE(data__nothing),           TEST_EVERY_ROUTE(data__sizes),
	TEST_EVERY_ROUTE(order__short_and_long),   TEST_EVERY_ROUTE(data__copied_and_replaced),
	TEST_EVERY_ROUTE(order__of_batches),       TEST_REMOTE_ROUTES(senders__many),
	TEST_EVERY_ROUTE(full__sender_waits),      TEST_EVERY_ROUTE(full__cancel),
};

HARNESS_MAIN("notification-delivery", tests)
