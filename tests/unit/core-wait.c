/* SPDX-License-Identifier: Apache-2.0 */
/* core-wait.c: how long a wait polls before it sleeps, and that it ends */
#include "core/wait.h"
#include "unit.h"

#include <pthread.h>

#include <wherry/wherry.h>

#include "core/batch.h"
#include "core/peer.h"
#include "util/clock.h"
#include "util/futex.h"

#define IN_FLIGHT 8
#define MS WH_MS

static void patience__learned(void **state)
{
	int64_t patience = 0;

	(void)state;
	/* Slow traffic: hardly any. */
	for (int i = 0; i < 20; i++)
		patience = wh_wait_patience(patience, 10 * MS);
	assert_int_equal(patience, WH_PATIENCE_LEAST);
	/* One short wait, though this thread has slept through it: polling would have paid. */
	assert_int_equal(wh_wait_patience(patience, WH_PATIENCE_MOST), WH_PATIENCE_MOST);
	/* One long one does not end that. */
	assert_int_equal(wh_wait_patience(WH_PATIENCE_MOST, WH_PATIENCE_MOST + 1),
			 WH_PATIENCE_MOST / 2);
}

/* A batch whose end comes from another thread. */
struct ending {
	struct wh_peer peer;
	struct wh_batch batch;
	int64_t after;
};

static void *ending_run(void *argument)
{
	struct ending *ending = argument;
	struct timespec pause = { 0, ending->after };

	nanosleep(&pause, NULL);
	if (atomic_exchange(&ending->batch.state, WH_BATCH_DONE) == WH_BATCH_WAITED)
		wh_futex_wake(&ending->batch.state);
	return NULL;
}

/* It returns once the batch has ended, with few in flight and with many, whether it polls or
 * sleeps at that moment. */
static void wait__ends(void **state)
{
	static struct ending ending;
	pthread_t thread;

	(void)state;
	ending.batch.peer = &ending.peer;
	for (unsigned i = 0; i < 200; i++) {
		atomic_store(&ending.peer.unseen, i % 2 ? IN_FLIGHT : 1);
		atomic_store(&ending.peer.patience, i % 3 ? WH_PATIENCE_MOST : 0);
		atomic_store(&ending.batch.state, WH_BATCH_RUNNING);
		ending.after = i * 1000;
		assert_int_equal(pthread_create(&thread, NULL, ending_run, &ending), 0);
		while (wh_batch_running(&ending.batch))
			wh_wait_for_batch(&ending.batch, INT64_MAX);
		assert_int_equal(pthread_join(thread, NULL), 0);
		/* With few in flight nothing is learned. */
		if (!(i % 2))
			assert_int_equal(atomic_load(&ending.peer.patience),
					 i % 3 ? WH_PATIENCE_MOST : 0);
	}
}

/* Nothing ends the batch: the deadline does. */
static void wait__deadline(void **state)
{
	static struct ending ending;

	(void)state;
	ending.batch.peer = &ending.peer;
	atomic_store(&ending.batch.state, WH_BATCH_RUNNING);
	for (unsigned i = 0; i < 2; i++) {
		int64_t deadline = wh_now() + 5 * MS;

		atomic_store(&ending.peer.unseen, i ? IN_FLIGHT : 1);
		do {
			wh_wait_for_batch(&ending.batch, deadline);
		} while (wh_now() < deadline);
		assert_true(wh_batch_running(&ending.batch));
	}
	/* In vain: the next one polls for the shortest time. */
	assert_int_equal(atomic_load(&ending.peer.patience), WH_PATIENCE_LEAST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(patience__learned),
		cmocka_unit_test(wait__ends),
		cmocka_unit_test(wait__deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
