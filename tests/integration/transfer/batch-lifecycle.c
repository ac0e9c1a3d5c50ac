/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads no-threads-sanitized */
/* batch-lifecycle.c: a batch from new to free: poll, wait, queue, callback, results, priorities */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "lib/driven.h"
#include "lib/fixture.h"

#define LENGTH (64 * KIB)

/* ---- poll and wait ----------------------------------------------------- */

static void new__not_submitted(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	batch = batch_of(&f, NULL, 0);
	want(-EINVAL, batch_now(batch));
	want(-EINVAL, batch_end(batch, 0));
	want(0, batch_run(batch)); /* it is empty */
	assert_string_equal(wh_batch_error_text(batch), "");
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(NULL));
	fixture_close(&f);
}

/* An invalid timeout is refused in every state. */
static void wait__negative(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, MIB);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 8);
	batch = batch_of(&f, &transfer, 1);
	want_text(-EINVAL, "negative", batch_end(batch, -1));
	want(0, batch_run(batch));
	want_text(-EINVAL, "negative", batch_end(batch, -1));
	want_text(-EINVAL, "negative", batch_end(batch, INT64_MIN));
	want(0, batch_end(batch, 0));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* A stopped target delays the batch for as long as the test needs. */
static void wait__times_out_and_goes_on(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;
	int64_t before, quiet;

	fixture_open(&f, *state, LENGTH);
	want(0, move(&f, WH_READ, 0, 0, 1));
	target_fill(&f, 0, LENGTH, 0, 5);
	transfer = transfer_of(&f, WH_READ, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	child_stop(f.child);
	want(0, wh_batch_submit(batch));
	want(-EAGAIN, batch_now(batch));
	want(-EAGAIN, batch_item(batch, 0));
	want(-EAGAIN, batch_end(batch, 0));
	quiet = quiet_now();
	before = now();
	want(-EAGAIN, batch_end(batch, 50 * MS));
	want_true(now() - before >= 49 * MS && quiet_now() - quiet < SCALE(500, 5000) * MS,
		  "it waited %lld us", (long long)(now() - before) / 1000);
	want(-EBUSY, wh_batch_submit(batch));
	want(-EBUSY, wh_batch_clear(batch));
	want(-EBUSY, wh_batch_add(batch, &transfer, 1));
	want(-EBUSY, wh_batch_notify(batch, 0, "x", 1));
	want(-EBUSY, wh_batch_free(batch));
	want(-EBUSY, wh_region_unregister(f.region));
	want(-EBUSY, wh_peer_close(f.peer));
	child_continue(f.child);
	want(0, batch_end(batch, PATIENCE));
	want(0, batch_now(batch));
	want(0, batch_end(batch, 0));
	want(0, batch_item(batch, 0));
	want_true(pattern_check(f.local, LENGTH, 0, 5) == PATTERN_GOOD, "wrong bytes");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* The calls say whether the batch has ended; how it ended is its status alone. */
static void status__no_error_of_a_call(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;
	int status = 1;

	fixture_open(&f, *state, LENGTH);
	want(0, move(&f, WH_READ, 0, 0, 1));
	transfer = transfer_of(&f, WH_READ, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	want(-EINPROGRESS, wh_batch_status(batch));
	want(-EINVAL, wh_batch_wait_for(batch, 0));
	want(-EINVAL, wh_batch_test(batch));
	child_stop(f.child);
	want(0, wh_batch_submit(batch));
	want(-EAGAIN, wh_batch_wait_for(batch, MS));
	want(-EAGAIN, wh_batch_test(batch));
	want(-EINPROGRESS, wh_batch_status(batch));
	want(-EAGAIN, wh_batch_transfer_status(batch, 0, &status));
	want(1, status);
	child_kill(f.child);
	want(0, wh_batch_wait_for(batch, PATIENCE));
	want(0, wh_batch_test(batch));
	want(-ECONNRESET, wh_batch_status(batch));
	assert_string_equal(wh_error_text(), wh_batch_error_text(batch));
	want(0, wh_batch_transfer_status(batch, 0, &status));
	want(-ECONNRESET, status);
	want(-ETIMEDOUT, wh_batch_cancel(batch));
	want(-ECONNRESET, wh_batch_status(batch));
	want(0, wh_batch_free(batch));
	fixture_close_initiator(&f);
}

static void wait__forever(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	for (int i = 0; i < SCALE(200, 20); i++) {
		want(0, wh_batch_submit(batch));
		want(0, batch_end(batch, WH_FOREVER));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Poll without waiting: progress does not depend on the application. */
static void poll__alone(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;
	int64_t end = now() + PATIENCE;

	fixture_open(&f, *state, 4 * MIB);
	pattern_fill(f.local, f.length, 0, 3);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, f.length);
	batch = batch_of(&f, &transfer, 1);
	want(0, wh_batch_submit(batch));
	while (batch_now(batch) == -EAGAIN && now() < end)
		sleep_ms(1);
	want(0, batch_now(batch));
	want_true(target_check(&f, 0, f.length, 0, 3) == PATTERN_GOOD, "wrong bytes");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Neither poll nor wait: a small batch completes without any call. */
static void submit__nobody_looks(void **state)
{
	struct wh_counters counters = { .size = sizeof(counters) };
	int64_t end = now() + PATIENCE;
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, 4 * MIB);
	want(0, move(&f, WH_WRITE, 0, 0, 8));
	pattern_fill(f.local, f.length, 0, 3);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 4096);
	batch = batch_of(&f, &transfer, 1);
	want(0, wh_batch_submit(batch));
	do {
		sleep_ms(1);
		want(0, wh_peer_counters(f.peer, &counters));
	} while (counters.batches < 2 && now() < end);
	want(2, counters.batches);
	want_true(target_check(&f, 0, 4096, 0, 3) == PATTERN_GOOD, "wrong bytes");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Several threads may wait for the same batch. */
static void wait__several_threads(void **state)
{
	enum { THREADS = 4 };
	struct waiting waiting[THREADS];
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	transfer = transfer_of(&f, WH_READ, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	for (int round = 0; round < SCALE(20, 5); round++) {
		want(0, wh_batch_submit(batch));
		for (int i = 0; i < THREADS; i++)
			wait_begin(&waiting[i], batch);
		for (int i = 0; i < THREADS; i++)
			want(0, wait_end(&waiting[i]));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- queue ------------------------------------------------------------- */

static bool fd_readable(int fd, int ms)
{
	struct pollfd polled = { .fd = fd, .events = POLLIN };

	driven_wait(fd, ms * MS);
	return poll(&polled, 1, 0) == 1;
}

static void queue__completions_of_many(void **state)
{
	enum { BATCHES = 64 };
	struct wh_batch *batches[BATCHES];
	struct wh_completion done[BATCHES];
	bool seen[BATCHES] = { false };
	struct wh_queue *queue;
	struct fixture f;
	int taken = 0;

	fixture_open(&f, *state, LENGTH);
	want(0, wh_queue_new(f.engine, &queue));
	want_true(!fd_readable(wh_queue_fd(queue), 0), "nothing has completed yet");
	want(0, wh_queue_take(queue, done, BATCHES, 0));
	want(0, wh_queue_take(queue, done, BATCHES, 5 * MS));
	for (int i = 0; i < BATCHES; i++) {
		struct wh_batch_options options = { .size = sizeof(options),
						    .queue = queue,
						    .user = 1000 + (uint64_t)i };
		struct wh_transfer transfer =
			transfer_of(&f, WH_WRITE, (uint64_t)i * 1000, (uint64_t)i * 1000, 1000);

		want(0, wh_batch_new(f.peer, &options, &batches[i]));
		want(0, wh_batch_add(batches[i], &transfer, 1));
	}
	want(-EBUSY, wh_queue_free(queue));
	for (int i = 0; i < BATCHES; i++)
		want(0, wh_batch_submit(batches[i]));
	while (taken < BATCHES) {
		int n;

		want_true(fd_readable(wh_queue_fd(queue), 5000), "%d of %d taken", taken, BATCHES);
		n = wh_queue_take(queue, done, 7, 0);
		want_true(n > 0 && n <= 7, "the descriptor was readable, took %d", n);
		for (int i = 0; i < n; i++) {
			uint64_t number = done[i].user - 1000;

			want_true(number < BATCHES && !seen[number], "it came twice");
			want_true(done[i].batch == batches[number], "another batch");
			want(0, done[i].status);
			seen[number] = true;
		}
		taken += n;
	}
	want_true(!fd_readable(wh_queue_fd(queue), 0), "all has been taken");
	for (int i = 0; i < BATCHES; i++)
		want(0, wh_batch_free(batches[i]));
	want(0, wh_queue_free(queue));
	fixture_close(&f);
}

/* Taking a completion from the queue counts as waiting: the batch may be submitted again or
 * freed. */
static void queue__submit_again(void **state)
{
	struct wh_completion done;
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct wh_queue *queue;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want(0, wh_queue_new(f.engine, &queue));
	want(0, wh_batch_new(f.peer,
			     &(struct wh_batch_options){ .size = sizeof(struct wh_batch_options),
							 .queue = queue },
			     &batch));
	transfer = transfer_of(&f, WH_READ, 0, 0, 100);
	want(0, wh_batch_add(batch, &transfer, 1));
	for (int i = 0; i < SCALE(1000, 100); i++) {
		want(0, wh_batch_submit(batch));
		want(1, wh_queue_take(queue, &done, 1, PATIENCE));
		want_true(done.batch == batch, "another batch");
		want(0, wh_queue_take(queue, &done, 1, 0));
	}
	want(0, wh_batch_free(batch));
	want(0, wh_queue_free(queue));
	fixture_close(&f);
}

/* ---- callback ---------------------------------------------------------- */

struct chain {
	atomic_int left, bad, done;
	pthread_t submitter;
	struct fixture *f;
	struct wh_queue *queue;
	struct wh_batch *large;
};

static void submit_again(struct wh_batch *batch, int status, void *arg)
{
	struct chain *chain = arg;

	if (status != 0)
		chain->bad = status;
	if (--chain->left > 0 && status == 0) {
		status = wh_batch_submit(batch);
		if (status == 0)
			return;
		chain->bad = status;
	}
	chain->done = 1;
}

static void wait_for(atomic_int *flag)
{
	int64_t end = now() + PATIENCE;

	while (!*flag && now() < end)
		sleep_ms(1);
	want_true(*flag, "the callback was not called");
}

static struct wh_batch *
batch_with_callback(struct fixture *f, void (*callback)(struct wh_batch *, int, void *), void *arg)
{
	struct wh_batch_options options = { .size = sizeof(options),
					    .callback = callback,
					    .callback_arg = arg };
	struct wh_transfer transfer = transfer_of(f, WH_WRITE, 0, 0, 5000);
	struct wh_batch *batch;

	want(0, wh_batch_new(f->peer, &options, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	return batch;
}

static void callback__submits_again(void **state)
{
	struct chain chain = { .left = SCALE(300, 50) };
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	batch = batch_with_callback(&f, submit_again, &chain);
	want(0, wh_batch_submit(batch));
	wait_for(&chain.done);
	want(0, chain.bad);
	want(0, chain.left);
	want(0, batch_end(batch, PATIENCE));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void not_from_submit(struct wh_batch *batch, int status, void *arg)
{
	struct chain *chain = arg;

	(void)batch;
	if (status != 0 || pthread_equal(pthread_self(), chain->submitter))
		chain->bad = 1;
	chain->done = 1;
}

/* The callback never runs inside wh_batch_submit(), on any route: it runs in another thread. */
static void callback__other_thread(void **state)
{
	struct chain chain = { .submitter = pthread_self() };
	struct wh_batch *batch;
	struct fixture f;

	if (driven_flags("initiator"))
		skip(); /* it has no other thread */
	fixture_open(&f, *state, LENGTH);
	batch = batch_with_callback(&f, not_from_submit, &chain);
	for (int i = 0; i < 20; i++) {
		chain.done = 0;
		want(0, wh_batch_submit(batch));
		wait_for(&chain.done);
		want(0, chain.bad);
		want(0, batch_end(batch, PATIENCE));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Calls that a callback must not make, on a running batch. */
static void misuse_in_callback(struct wh_batch *batch, int status, void *arg)
{
	struct chain *chain = arg;
	struct note *notification = malloc(sizeof(*notification));
	struct wh_completion completion;
	struct wh_remote remote;
	struct wh_peer *peer;
	const int got[] = {
		status,
		-EDEADLK == wh_batch_cancel(batch) ? 0 : 2,
		-EDEADLK == wh_queue_take(chain->queue, &completion, 1, SECOND) ? 0 : 3,
		0 == wh_queue_take(chain->queue, &completion, 1, 0) ? 0 : 4,
		-EDEADLK == note_take(chain->f->engine, notification, SECOND) ? 0 : 5,
		-EAGAIN == note_take(chain->f->engine, notification, 0) ? 0 : 6,
		-EDEADLK == wh_peer_open(chain->f->engine, "self", NULL, &peer) ? 0 : 7,
		-EDEADLK == wh_peer_close(chain->f->peer) ? 0 : 8,
		-EDEADLK == wh_region_unregister(chain->f->region) ? 0 : 9,
		-EDEADLK == wh_peer_find(chain->f->peer, "nobody", SECOND, &remote) ? 0 : 10,
		0 == wh_peer_find(chain->f->peer, "target", 0, &remote) ? 0 : 11,
		0 == batch_item(batch, 0) ? 0 : 12,
		0 == batch_now(batch) ? 0 : 13,
	};
	bool waited = true;

	free(notification);
	for (size_t i = 0; i < sizeof(got) / sizeof(*got); i++)
		if (got[i])
			chain->bad = got[i];
	/* The batch must still run when the callback waits for it; otherwise the check proves
	 * nothing. */
	for (int i = 0; i < 10 && waited; i++)
		waited = wh_batch_submit(chain->large) != 0 ||
			 batch_end(chain->large, SECOND) != -EDEADLK;
	if (waited)
		chain->bad = 1;
	chain->done = 1;
}

static void callback__misuse(void **state)
{
	const uint64_t large = 32 * MIB;
	struct fixture f;
	struct chain chain = { .f = &f };
	struct wh_transfer transfer;
	struct wh_batch *batch;

	fixture_open(&f, *state, large);
	want(0, wh_queue_new(f.engine, &chain.queue));
	transfer = transfer_of(&f, WH_WRITE, 0, 0, large);
	chain.large = batch_of(&f, &transfer, 1);
	batch = batch_with_callback(&f, misuse_in_callback, &chain);
	want(0, wh_batch_submit(batch));
	wait_for(&chain.done);
	want(0, chain.bad);
	want(0, batch_end(batch, PATIENCE));
	want(0, batch_end(chain.large, PATIENCE));
	want(0, wh_batch_free(chain.large));
	want(0, wh_batch_free(batch));
	want(0, wh_queue_free(chain.queue));
	fixture_close(&f);
}

/* ---- results ----------------------------------------------------------- */

static void result__each_transfer(void **state)
{
	struct wh_transfer transfers[3];
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	for (uint64_t i = 0; i < 3; i++)
		transfers[i] = transfer_of(&f, WH_WRITE, i * 100, i * 100, 100);
	batch = batch_of(&f, transfers, 2);
	want(0, wh_batch_add(batch, &transfers[2], 1));
	want(-EAGAIN, batch_item(batch, 0));
	want(-EINVAL, batch_item(batch, 3));
	want(0, batch_run(batch));
	for (size_t i = 0; i < 3; i++)
		want(0, batch_item(batch, i));
	want(-EINVAL, batch_item(batch, 3));
	want(-EINVAL, batch_item(batch, SIZE_MAX));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* One of three regions is unregistered after the transfers were added. The third transfer must
 * fail, and with it the batch; the other two may arrive. */
static void result__region_gone(void **state)
{
	struct wh_transfer transfers[3];
	struct wh_remote gone;
	struct wh_batch *batch;
	struct fixture f;
	int region, status;

	fixture_open(&f, *state, LENGTH);
	region = child_region(f.child, f.memory, f.guard, 1000, "gone", ACCESS_BOTH, NULL);
	want(0, wh_peer_find(f.peer, "gone", PATIENCE, &gone));
	target_fill(&f, 0, LENGTH, 0, 1);
	pattern_fill(f.local, LENGTH, 0, 2);
	transfers[0] = transfer_of(&f, WH_WRITE, 2000, 2000, 100);
	transfers[1] = transfer_of(&f, WH_WRITE, 0, 0, 1000);
	transfers[1].remote = gone.id;
	transfers[2] = transfer_of(&f, WH_WRITE, 3000, 3000, 100);
	batch = batch_of(&f, transfers, 3);
	want(0, child_unregister(f.child, region));
	status = batch_run(batch);
	want_true(status == -ESTALE || status == -ENOENT, "it ended with %s", strerror(-status));
	want_true(target_check(&f, 0, 1000, 0, 1) == PATTERN_GOOD, "an unpublished region changed");
	if (batch_now(batch) == status) {
		want(status, batch_item(batch, 1));
		want_true(wh_batch_error_text(batch)[0], "the batch has no text");
		want_true(batch_item(batch, 0) != 0 ||
				  target_check(&f, 2000, 100, 2000, 2) == PATTERN_GOOD,
			  "a transfer said to be done is not");
	}
	want(0, wh_batch_clear(batch));
	want(0, wh_batch_add(batch, &transfers[2], 1));
	want(0, batch_run(batch));
	assert_string_equal(wh_batch_error_text(batch), "");
	want_true(target_check(&f, 3000, 100, 3000, 2) == PATTERN_GOOD, "wrong bytes");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void clear__and_fill_again(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	pattern_fill(f.local, LENGTH, 0, 1);
	target_fill(&f, 0, LENGTH, 0, 2);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 1000);
	batch = batch_of(&f, &transfer, 1);
	want(0, wh_batch_notify(batch, 0, "never", 5));
	want(0, wh_batch_clear(batch));
	want(0, batch_run(batch)); /* it is empty */
	transfer = transfer_of(&f, WH_WRITE, 5000, 5000, 1000);
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, batch_run(batch));
	want_true(target_check(&f, 0, 5000, 0, 2) == PATTERN_GOOD, "a cleared transfer ran");
	want_true(target_check(&f, 5000, 1000, 5000, 1) == PATTERN_GOOD, "wrong bytes");
	want(0, wh_batch_clear(batch));
	want(0, batch_run(batch)); /* it is empty */
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void mixed__reads_and_writes(void **state)
{
	enum { COUNT = 200, EACH = 151 };
	struct wh_transfer transfers[COUNT];
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	pattern_fill(f.local, LENGTH, 0, 1);
	pattern_fill(f.local + LENGTH, LENGTH, 0, 3);
	target_fill(&f, 0, LENGTH, 0, 2);
	for (uint64_t i = 0; i < COUNT; i++)
		transfers[i] = i % 2 ? transfer_of(&f, WH_READ, LENGTH + i * EACH, i * EACH, EACH) :
				       transfer_of(&f, WH_WRITE, i * EACH, i * EACH, EACH);
	batch = batch_of(&f, transfers, COUNT);
	want(0, batch_run(batch));
	want_route(&f, batch, COUNT * EACH);
	for (uint64_t i = 0; i < COUNT; i++) {
		int64_t at = (int64_t)(i * EACH);
		bool read = i % 2;

		want_true(target_check(&f, at, EACH, i * EACH, read ? 2 : 1) == PATTERN_GOOD,
			  "the target of transfer %d", (int)i);
		want_true(pattern_check(f.local + LENGTH + at, EACH, i * EACH, read ? 2 : 3) ==
				  PATTERN_GOOD,
			  "our side of transfer %d", (int)i);
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- explanation ------------------------------------------------------- */

static void routes__before_and_after(void **state)
{
	struct wh_route routes[8];
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;
	size_t count = 8, none = 0;
	char text[2048], cut[8];
	int length;

	fixture_open(&f, *state, LENGTH);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 1000);
	batch = batch_of(&f, &transfer, 1);
	want(0, wh_batch_routes(batch, routes, &count));
	for (size_t i = 0; i < count; i++)
		want_true(routes[i].bytes == 0 || !routes[i].refused[0], "refused, but planned");
	want(0, batch_run(batch));
	count = 8;
	want(0, wh_batch_routes(batch, routes, &count));
	want_true(count >= 1, "there is no route");
	want(-ENOSPC, wh_batch_routes(batch, routes, &none));
	want(count, none);
	for (size_t i = 0; i < count; i++)
		want_true(routes[i].bytes || routes[i].refused[0] || routes[i].detail[0],
			  "nothing is said about %s", routes[i].transport);
	length = wh_batch_explain(batch, text, sizeof(text));
	want_true(length > 0 && (size_t)length == strlen(text), "it is %d long", length);
	want_true(strstr(text, f.route->name), "it says: %s", text);
	want(length, wh_batch_explain(batch, cut, sizeof(cut)));
	want_true(strlen(cut) < sizeof(cut) && strncmp(text, cut, strlen(cut)) == 0,
		  "it was not cut");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(new__not_submitted),
	TEST_OVER(wait__negative, self),
	TEST_OVER(wait__times_out_and_goes_on, tcp4),
	TEST_OVER(status__no_error_of_a_call, tcp4),
	TEST_EVERY_ROUTE(wait__forever),
	TEST_EVERY_ROUTE(poll__alone),
	TEST_EVERY_ROUTE(submit__nobody_looks),
	TEST_EVERY_ROUTE(wait__several_threads),
	TEST_EVERY_ROUTE(queue__completions_of_many),
	TEST_EVERY_ROUTE(queue__submit_again),
	TEST_EVERY_ROUTE(callback__submits_again),
	TEST_EVERY_ROUTE(callback__other_thread),
	TEST_EVERY_ROUTE(callback__misuse),
	TEST_EVERY_ROUTE(result__each_transfer),
	TEST_REMOTE_ROUTES(result__region_gone),
	TEST_EVERY_ROUTE(clear__and_fill_again),
	TEST_EVERY_ROUTE(mixed__reads_and_writes),
	TEST_EVERY_ROUTE(routes__before_and_after),
};

HARNESS_MAIN("batch-lifecycle", tests)
