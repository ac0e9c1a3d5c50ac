/* SPDX-License-Identifier: Apache-2.0 */
/* core-callbacks.c: a callback that takes long delays other callbacks and nothing else */
#include "../integration/lib/outcome.h"
#include "unit.h"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "core/engine.h"
#include "core/peer.h"
#include "util/clock.h"

#define PATIENCE (20 * WH_SECOND)
#define TIMEOUT 3000 /* ms: the setting `timeout`; longer than a busy machine stalls a thread */

/* Both are peers of each other; callbacks of `slow` block until `go_on` is posted. */
static struct wh_engine *slow, *other;
static struct wh_peer *to_other, *to_slow;
static sem_t entered, go_on;
static _Atomic unsigned called;

static int setup(void **state)
{
	const char *const config[] = { "timeout=3000", NULL };
	const struct wh_engine_options options = { .size = sizeof(options), .config = config };

	(void)state;
	sem_init(&entered, 0, 0);
	sem_init(&go_on, 0, 0);
	atomic_store(&called, 0);
	return wh_engine_open(&options, &slow) || wh_engine_open(&options, &other) ||
	       wh_peer_open(slow, wh_engine_url(other), NULL, &to_other) ||
	       wh_peer_open(other, wh_engine_url(slow), NULL, &to_slow);
}

static int teardown(void **state)
{
	(void)state;
	sem_destroy(&entered);
	sem_destroy(&go_on);
	return wh_peer_close(to_other) || wh_peer_close(to_slow) || wh_engine_close(slow) ||
	       wh_engine_close(other);
}

static void block(struct wh_batch *batch, int status, void *arg)
{
	(void)batch;
	(void)arg;
	assert_int_equal(status, 0);
	atomic_fetch_add(&called, 1);
	sem_post(&entered);
	sem_wait(&go_on);
}

static struct wh_batch *batch_to(struct wh_peer *peer, bool callback)
{
	const struct wh_batch_options options = { .size = sizeof(options),
						  .callback = callback ? block : NULL };
	struct wh_batch *batch;

	assert_int_equal(wh_batch_new(peer, &options, &batch), 0);
	assert_int_equal(wh_batch_notify(batch, 0, "x", 1), 0);
	return batch;
}

static void run(struct wh_batch *batch)
{
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(batch_end(batch, PATIENCE), 0);
}

static void slow__peers_stay_and_are_served(void **state)
{
	struct wh_batch *blocking = batch_to(to_other, true);
	struct wh_batch *out = batch_to(to_other, false), *in = batch_to(to_slow, false);
	struct wh_peer *late;
	int64_t end;

	(void)state;
	run(blocking);
	sem_wait(&entered);
	end = wh_now() + TIMEOUT * WH_MS * 3 / 2;
	do {
		run(out); /* the batches of `slow` complete */
		run(in); /* it serves its peer */
		assert_int_equal(atomic_load(&to_other->state), WH_PEER_CONNECTED);
		assert_int_equal(atomic_load(&to_slow->state), WH_PEER_CONNECTED);
		usleep(50000);
	} while (wh_now() < end);
	assert_int_equal(wh_peer_open(other, wh_engine_url(slow), NULL, &late), 0);
	assert_int_equal(wh_peer_close(late), 0);
	sem_post(&go_on);
	assert_int_equal(wh_batch_free(blocking), 0);
	assert_int_equal(wh_batch_free(out), 0);
	assert_int_equal(wh_batch_free(in), 0);
	assert_int_equal(atomic_load(&called), 1);
}

/* The second batch completes several times behind the callback of the first: none is lost. */
static void slow__each_submission_is_reported(void **state)
{
	struct wh_batch *blocking = batch_to(to_other, true), *again = batch_to(to_other, true);

	(void)state;
	run(blocking);
	sem_wait(&entered);
	for (int i = 0; i < 3; i++)
		run(again);
	assert_int_equal(atomic_load(&called), 1);
	for (int i = 0; i < 4; i++)
		sem_post(&go_on);
	assert_int_equal(wh_batch_free(again), 0); /* waits for its callbacks */
	assert_int_equal(wh_batch_free(blocking), 0);
	assert_int_equal(atomic_load(&called), 4);
}

static void thread__only_with_a_callback(void **state)
{
	struct wh_batch *batch = batch_to(to_other, false);

	(void)state;
	run(batch);
	assert_false(atomic_load(&slow->callbacks.started));
	assert_int_equal(wh_batch_free(batch), 0);
	batch = batch_to(to_other, true);
	assert_true(atomic_load(&slow->callbacks.started));
	assert_int_equal(wh_batch_free(batch), 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(slow__peers_stay_and_are_served),
		TEST(slow__each_submission_is_reported),
		TEST(thread__only_with_a_callback),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
