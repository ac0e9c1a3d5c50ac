/* SPDX-License-Identifier: Apache-2.0 */
/* worker.c: works run in order, once, by the thread or by turns, and may put more */
#include "core/worker.h"
#include "unit.h"

#include <semaphore.h>

#include "util/list.h"
#include "util/turns.h"

static struct numbered {
	struct wh_work work;
	unsigned number;
	struct numbered *puts; /* another one, when it runs */
} works[8];

static struct wh_worker worker;
static unsigned ran[16], ran_count;
static bool was_here, ran_within;
static sem_t ended;

static void run(struct wh_work *work)
{
	struct numbered *numbered = wh_container(work, struct numbered, work);

	was_here = wh_worker_here(&worker);
	/* Nobody else runs works meanwhile, neither this thread. */
	ran_within |= wh_worker_run(&worker);
	ran[ran_count++] = numbered->number;
	if (numbered->puts)
		wh_worker_put(&worker, &numbered->puts->work);
	sem_post(&ended);
}

static void prepare(void)
{
	memset(&worker, 0, sizeof(worker));
	memset(works, 0, sizeof(works));
	ran_count = 0;
	ran_within = false;
	sem_init(&ended, 0, 0);
	for (unsigned i = 0; i < 8; i++) {
		works[i].work.run = run;
		works[i].number = i;
	}
}

static void run__in_turns(void **state)
{
	struct wh_turns *turns;

	(void)state;
	prepare();
	assert_int_equal(wh_turns_open(&turns), 0);
	wh_worker_init(&worker, turns);
	wh_worker_put(&worker, &works[3].work);
	assert_false(wh_worker_run(&worker)); /* not started */
	assert_false(wh_worker_here(&worker));
	assert_int_equal(wh_worker_start(&worker, "unit"), 0);
	assert_int_equal(wh_worker_start(&worker, "unit"), 0);
	works[3].puts = &works[0];
	wh_worker_put(&worker, &works[2].work);
	assert_int_equal(worker.poller.next(&worker.poller), 0);
	assert_true(wh_worker_run(&worker));
	/* What a work puts waits for the next time. */
	assert_int_equal(ran_count, 2);
	assert_int_equal(ran[0], 3);
	assert_int_equal(ran[1], 2);
	assert_true(was_here);
	assert_false(ran_within);
	assert_false(wh_worker_here(&worker));
	assert_int_equal(worker.poller.next(&worker.poller), 0);
	assert_true(wh_worker_run(&worker));
	assert_int_equal(ran[2], 0);
	assert_int_equal(worker.poller.next(&worker.poller), INT64_MAX);
	assert_false(wh_worker_run(&worker));
	wh_worker_close(&worker);
	wh_turns_close(turns);
}

static void run__by_the_thread(void **state)
{
	(void)state;
	prepare();
	wh_worker_init(&worker, NULL);
	works[0].puts = &works[4];
	for (unsigned i = 0; i < 4; i++)
		wh_worker_put(&worker, &works[i].work);
	assert_int_equal(wh_worker_start(&worker, "unit"), 0);
	for (unsigned i = 0; i < 5; i++)
		sem_wait(&ended);
	assert_int_equal(ran_count, 5);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(ran[i], i);
	assert_true(was_here);
	assert_false(wh_worker_here(&worker));
	assert_false(wh_worker_run(&worker));
	wh_worker_close(&worker);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(run__in_turns),
		cmocka_unit_test(run__by_the_thread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
