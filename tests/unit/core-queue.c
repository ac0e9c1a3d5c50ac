/* SPDX-License-Identifier: Apache-2.0 */
/* core-queue.c: completion queues: order, descriptor, waiting, threads */
#include "../integration/lib/note.h"
#include "../integration/lib/outcome.h"
#include "unit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/queue.h"
#include "util/clock.h"
#include "util/loop.h"

static struct wh_engine *engine;
static struct wh_queue *queue;
static struct wh_queue_entry entries[64];
static struct wh_batch batches[64]; /* the queue only returns their addresses */

static int open_engine(const char *spin)
{
	const char *const config[] = { spin, NULL };
	const struct wh_engine_options options = {
		.size = sizeof(options),
		.listen = "none",
		.config = config,
	};

	memset(entries, 0, sizeof(entries));
	memset(batches, 0, sizeof(batches));
	for (unsigned i = 0; i < 64; i++) {
		entries[i].batch = &batches[i];
		entries[i].user = i;
		entries[i].status = -(int)i;
	}
	if (wh_engine_open(&options, &engine))
		return -1;
	return wh_queue_new(engine, &queue);
}

static int setup(void **state)
{
	(void)state;
	return open_engine("spin=no");
}

static int setup_spinning(void **state)
{
	(void)state;
	return open_engine("spin=yes");
}

static int teardown(void **state)
{
	(void)state;
	if (wh_queue_free(queue))
		return -1;
	return wh_engine_close(engine);
}

static bool readable(void)
{
	struct pollfd poll_fd = { .fd = wh_queue_fd(queue), .events = POLLIN };

	return poll(&poll_fd, 1, 0) == 1;
}

/* ---- put and take ------------------------------------------------------ */

static void take__in_order_and_the_descriptor_in_step(void **state)
{
	struct wh_completion out[4];

	(void)state;
	assert_int_equal(wh_queue_take(queue, out, 4, 0), 0);
	assert_false(readable());
	for (int i = 0; i < 6; i++)
		wh_queue_put(queue, &entries[i]);
	assert_true(readable());
	assert_int_equal(wh_queue_take(queue, out, 4, WH_FOREVER), 4);
	for (int i = 0; i < 4; i++) {
		assert_ptr_equal(out[i].batch, &batches[i]);
		assert_int_equal(out[i].user, i);
		assert_int_equal(out[i].status, -i);
		assert_int_equal(out[i].reserved[0] | out[i].reserved[2], 0);
	}
	assert_true(readable());
	assert_int_equal(wh_queue_take(queue, out, 4, 0), 2);
	assert_int_equal(out[1].user, 5);
	assert_false(readable());
	assert_int_equal(wh_queue_take(queue, out, 4, 0), 0);
}

static void put__never_twice(void **state)
{
	struct wh_completion out[4];

	(void)state;
	wh_queue_put(queue, &entries[1]);
	wh_queue_put(queue, &entries[1]);
	wh_queue_put(queue, &entries[2]);
	wh_queue_put(queue, &entries[1]);
	assert_int_equal(wh_queue_take(queue, out, 4, 0), 2);
	/* Once taken, a batch may be put again. */
	wh_queue_put(queue, &entries[1]);
	assert_int_equal(wh_queue_take(queue, out, 4, 0), 1);
	assert_int_equal(out[0].user, 1);
}

static void forget__takes_it_out(void **state)
{
	struct wh_completion out[4];

	(void)state;
	wh_queue_forget(queue, &entries[1]);
	wh_queue_put(queue, &entries[1]);
	wh_queue_put(queue, &entries[2]);
	wh_queue_forget(queue, &entries[1]);
	wh_queue_forget(queue, &entries[1]);
	assert_true(readable());
	assert_int_equal(wh_queue_take(queue, out, 4, 0), 1);
	assert_int_equal(out[0].user, 2);
	wh_queue_put(queue, &entries[3]);
	wh_queue_forget(queue, &entries[3]);
	assert_false(readable());
	assert_int_equal(wh_queue_take(queue, out, 4, WH_MS), 0);
}

/* ---- waiting ----------------------------------------------------------- */

static void take__times_out(void **state)
{
	struct wh_completion out;
	int64_t start = wh_now();

	(void)state;
	assert_int_equal(wh_queue_take(queue, &out, 1, 20 * WH_MS), 0);
	assert_in_range(wh_now() - start, 20 * WH_MS, 5 * WH_SECOND);
}

static void *put_later(void *arg)
{
	usleep(20000);
	wh_queue_put(queue, arg);
	return NULL;
}

static void take__wakes_up(void **state)
{
	struct wh_completion out;
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, put_later, &entries[7]), 0);
	assert_int_equal(wh_queue_take(queue, &out, 1, 10 * WH_SECOND), 1);
	assert_int_equal(out.user, 7);
	pthread_join(thread, NULL);
}

#define ROUNDS 300

static _Atomic unsigned taken;

static void *put_many(void *arg)
{
	struct wh_queue_entry *mine = arg;

	/* As for a batch that is submitted again after its completion has been taken. */
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (unsigned i = 0; i < 16; i++)
			wh_queue_put(queue, &mine[i]);
		while (atomic_load(&mine[15].batch->delivering) <= round)
			usleep(10);
		for (unsigned i = 0; i < 16; i++)
			while (atomic_load(&mine[i].batch->delivering) <= round)
				usleep(10);
	}
	return NULL;
}

static void *take_many(void *arg)
{
	struct wh_completion out[5];
	int count;

	(void)arg;
	while (atomic_load(&taken) < 2 * 16 * ROUNDS) {
		count = wh_queue_take(queue, out, 5, WH_MS);
		if (count < 0)
			abort();
		for (int i = 0; i < count; i++) {
			atomic_fetch_add(&taken, 1);
			atomic_fetch_add(&out[i].batch->delivering, 1);
		}
	}
	return NULL;
}

/* Each completion is taken exactly once, by any waiter. */
static void take__from_several_threads(void **state)
{
	pthread_t threads[4];

	(void)state;
	atomic_store(&taken, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_create(&threads[i], NULL, put_many, &entries[i * 16]), 0);
		assert_int_equal(pthread_create(&threads[2 + i], NULL, take_many, NULL), 0);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&taken), 2 * 16 * ROUNDS);
	assert_false(readable());
}

/* ---- misuse ------------------------------------------------------------ */

static void misuse(void **state)
{
	struct wh_completion out;
	struct wh_queue *other;

	(void)state;
	assert_int_equal(wh_queue_new(NULL, &other), -EINVAL);
	assert_int_equal(wh_queue_new(engine, NULL), -EINVAL);
	assert_int_equal(wh_queue_free(NULL), 0);
	assert_int_equal(wh_queue_fd(NULL), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "queue is NULL"));
	assert_int_equal(wh_queue_take(NULL, &out, 1, 0), -EINVAL);
	assert_int_equal(wh_queue_take(queue, NULL, 1, 0), -EINVAL);
	assert_int_equal(wh_queue_take(queue, &out, 0, 0), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "max"));
	assert_int_equal(wh_queue_take(queue, &out, 1, -1), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "timeout"));
}

static void free__while_batches_report_here(void **state)
{
	(void)state;
	wh_queue_hold(queue, 1);
	wh_queue_hold(queue, 1);
	wh_queue_hold(queue, -1);
	assert_int_equal(wh_queue_free(queue), -EBUSY);
	assert_non_null(strstr(wh_error_text(), "1 batches"));
	wh_queue_hold(queue, -1);
	assert_ptr_equal(wh_queue_engine(queue), engine);
	assert_int_equal(engine->queue_count, 1);
	assert_int_equal(wh_engine_close(engine), -EBUSY);
}

struct inside {
	int wait, look;
};

static void take_inside(void *arg)
{
	struct inside *result = arg;
	struct wh_completion out;

	result->wait = wh_queue_take(queue, &out, 1, WH_MS);
	result->look = wh_queue_take(queue, &out, 1, 0);
}

static void take__in_a_callback(void **state)
{
	struct inside result;

	(void)state;
	wh_loop_call(&engine->loops[0], take_inside, &result);
	assert_int_equal(result.wait, -EDEADLK);
	assert_int_equal(result.look, 0);
}

/* ---- with batches ------------------------------------------------------ */

static void batch__reports_and_is_forgotten(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options), .queue = queue, .user = 77 };
	struct wh_completion out[2];
	struct note note;
	struct wh_batch *batch;
	struct wh_peer *self;

	(void)state;
	assert_int_equal(wh_peer_open(engine, "self", NULL, &self), 0);
	assert_int_equal(wh_batch_new(self, &options, &batch), 0);
	assert_int_equal(wh_queue_free(queue), -EBUSY);
	assert_int_equal(wh_batch_notify(batch, 0, "x", 1), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_queue_take(queue, out, 2, 5 * WH_SECOND), 1);
	assert_int_equal(out[0].user, 77);
	assert_int_equal(out[0].status, 0);
	/* Submitted twice without a take: one completion. */
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(batch_end(batch, 5 * WH_SECOND), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(batch_end(batch, 5 * WH_SECOND), 0);
	assert_int_equal(wh_queue_take(queue, out, 2, 5 * WH_SECOND), 1);
	/* Freed without a take: no completion. */
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(batch_end(batch, 5 * WH_SECOND), 0);
	assert_int_equal(wh_batch_free(batch), 0);
	assert_int_equal(wh_queue_take(queue, out, 2, 0), 0);
	assert_false(readable());
	for (int i = 0; i < 4; i++)
		assert_int_equal(note_take(engine, &note, 0), 0);
	assert_int_equal(wh_peer_close(self), 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
#define TEST_SPINNING(function)                                                                    \
	{                                                                                          \
#function "__spinning", function, setup_spinning, teardown, NULL                   \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(take__in_order_and_the_descriptor_in_step),
		TEST(put__never_twice),
		TEST(forget__takes_it_out),
		TEST(take__times_out),
		TEST_SPINNING(take__times_out),
		TEST(take__wakes_up),
		TEST_SPINNING(take__wakes_up),
		TEST(take__from_several_threads),
		TEST_SPINNING(take__from_several_threads),
		TEST(misuse),
		TEST(free__while_batches_report_here),
		TEST(take__in_a_callback),
		TEST(batch__reports_and_is_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
