/* SPDX-License-Identifier: Apache-2.0 */
/* Loops without threads: turns, sleeping and waking, the descriptor, pollers, several threads. */
#include "unit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/loop.h"
#include "util/turns.h"

#define PATIENCE (5 * WH_SECOND)

static struct wh_turns *turns;
static struct wh_loop loop, other;

static int open_turns(void **state)
{
	(void)state;
	return wh_turns_open(&turns) || wh_loop_start(&loop, "test", false, turns) ||
	       wh_loop_start(&other, "other", false, turns);
}

static int close_turns(void **state)
{
	(void)state;
	wh_loop_stop(&other);
	wh_loop_stop(&loop);
	wh_turns_close(turns);
	return 0;
}

static bool turn(int64_t timeout)
{
	return wh_turns_run(turns, wh_turns_seen(turns), timeout ? wh_deadline(timeout) : 0);
}

static bool readable(int timeout)
{
	struct pollfd look = { .fd = wh_turns_fd(turns), .events = POLLIN };

	return poll(&look, 1, timeout) == 1;
}

/* ---- what a turn serves ---------------------------------------------------------------------- */

struct job {
	struct wh_task task;
	struct wh_timer timer;
	struct wh_source source;
	atomic_int runs;
	bool here;
};

static void job_ran(struct job *job)
{
	job->here = wh_loop_here(&loop) && wh_turns_here(turns);
	atomic_fetch_add(&job->runs, 1);
}

static void job_task(struct wh_task *task)
{
	job_ran(wh_container(task, struct job, task));
}

static void job_timer(struct wh_timer *timer)
{
	job_ran(wh_container(timer, struct job, timer));
}

static void job_source(struct wh_source *source, uint32_t events)
{
	uint64_t count;

	(void)events;
	assert_int_equal(read(source->fd, &count, sizeof(count)), sizeof(count));
	job_ran(wh_container(source, struct job, source));
}

static void task__waits_for_a_turn(void **state)
{
	struct job job = { .task.run = job_task };

	(void)state;
	assert_false(turn(0));
	wh_loop_post(&loop, &job.task);
	assert_int_equal(job.runs, 0);
	assert_true(turn(0));
	assert_int_equal(job.runs, 1);
	assert_true(job.here);
	assert_false(wh_loop_here(&loop));
	assert_false(wh_turns_here(turns));
	assert_false(turn(0));
}

static void set_timer(void *argument)
{
	struct job *job = argument;

	job->timer.fire = job_timer;
	wh_timer_set(&loop, &job->timer, wh_now() + 5 * WH_MS);
}

static void timer__ends_a_sleep(void **state)
{
	struct job job = { 0 };
	int64_t begun = wh_now();

	(void)state;
	wh_loop_call(&loop, set_timer, &job);
	while (!job.runs && wh_now() < begun + PATIENCE)
		turn(PATIENCE);
	assert_int_equal(job.runs, 1);
	assert_true(wh_now() - begun >= 5 * WH_MS);
}

static void remove_source(void *argument)
{
	struct job *job = argument;

	wh_loop_remove(&loop, &job->source);
}

static void descriptor__says_when(void **state)
{
	struct job job = { .source = { eventfd(0, EFD_CLOEXEC), job_source },
			   .task.run = job_task };
	uint64_t one = 1;

	(void)state;
	assert_false(readable(0));
	wh_loop_post(&loop, &job.task);
	assert_true(readable(0));
	assert_true(turn(0));
	assert_false(readable(0));
	assert_int_equal(wh_loop_add(&loop, &job.source, EPOLLIN), 0);
	assert_int_equal(write(job.source.fd, &one, sizeof(one)), sizeof(one));
	assert_true(readable(0));
	assert_true(turn(0));
	assert_int_equal(job.runs, 2);
	assert_false(readable(0));
	/* A timer too, which raises no event by itself. */
	wh_loop_call(&loop, set_timer, &job);
	turn(0);
	assert_true(readable((int)(PATIENCE / WH_MS)));
	while (job.runs < 3)
		turn(0);
	assert_false(readable(0));
	/* A call outside of any turn. */
	wh_loop_call(&loop, set_timer, &job);
	assert_true(readable((int)(PATIENCE / WH_MS)));
	turn(0);
	assert_int_equal(job.runs, 4);
	wh_loop_call(&loop, remove_source, &job);
	close(job.source.fd);
}

/* ---- pollers --------------------------------------------------------------------------------- */

struct counter {
	struct wh_poller poller;
	atomic_int left, polls;
	int64_t pause;
};

static bool counter_poll(struct wh_poller *poller)
{
	struct counter *counter = wh_container(poller, struct counter, poller);

	if (!atomic_load(&counter->left))
		return false;
	atomic_fetch_sub(&counter->left, 1);
	return true;
}

static int64_t counter_next(struct wh_poller *poller)
{
	struct counter *counter = wh_container(poller, struct counter, poller);

	return atomic_load(&counter->left) ? counter->pause : INT64_MAX;
}

static void poller__is_asked_again(void **state)
{
	struct counter counter = { .poller = { .poll = counter_poll, .next = counter_next } };

	(void)state;
	wh_turns_add_poller(turns, &counter.poller);
	assert_false(readable(0));
	counter.left = 3;
	wh_turns_ready(turns);
	for (int i = 0; i < 3; i++) {
		assert_true(readable(0));
		assert_true(turn(0));
	}
	assert_int_equal(counter.left, 0);
	assert_false(readable(0));
	/* One that wants a pause. */
	counter.pause = 2 * WH_MS;
	counter.left = 2;
	wh_turns_ready(turns);
	assert_true(turn(0));
	assert_true(readable((int)(PATIENCE / WH_MS)));
	assert_true(turn(PATIENCE));
	assert_int_equal(counter.left, 0);
	wh_turns_remove_poller(turns, &counter.poller);
}

/* ---- what is due between turns --------------------------------------------------------------- */

static bool count_polls(struct wh_poller *poller)
{
	atomic_fetch_add(&wh_container(poller, struct counter, poller)->polls, 1);
	return false;
}

static bool never(void *argument)
{
	(void)argument;
	return false;
}

/* Who cannot do it sleeps, with the descriptor watched or not; it stays readable for who can. */
static void between__does_not_spin(void **state)
{
	struct counter counter = {
		.poller = { .poll = count_polls, .next = counter_next, .between = true }
	};

	(void)state;
	wh_turns_add_poller(turns, &counter.poller);
	for (int watched = 0; watched < 2; watched++) {
		counter.left = 1;
		wh_turns_ready(turns);
		turn(0); /* finds that it was told, and sets the timer */
		counter.polls = 0;
		assert_false(wh_turns_wait(turns, never, NULL, wh_deadline(50 * WH_MS)));
		assert_true(counter.polls <= 4); /* two in a turn */
		assert_true(readable(0));
		wh_turns_take(turns, 1);
		turn(INT64_MAX); /* does not sleep */
		wh_turns_take(turns, -1);
		counter.left = 0;
		turn(0);
		assert_false(readable(0));
	}
	wh_turns_remove_poller(turns, &counter.poller);
}

/* ---- several threads ------------------------------------------------------------------------- */

static bool job_has_run(void *argument)
{
	struct job *job = argument;

	return atomic_load(&job->runs) > 0;
}

static void *wait_for_job(void *argument)
{
	return wh_turns_wait(turns, job_has_run, argument, wh_deadline(PATIENCE)) ? argument : NULL;
}

/* Each waits for a task of its own; one of them gives the turns. */
static void threads__share_the_turns(void **state)
{
	struct job jobs[8] = { 0 };
	pthread_t threads[8];
	void *result;

	(void)state;
	for (int i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wait_for_job, &jobs[i]), 0);
	for (int i = 7; i >= 0; i--) {
		jobs[i].task.run = job_task;
		wh_loop_post(i % 2 ? &loop : &other, &jobs[i].task);
		pthread_join(threads[i], &result);
		assert_ptr_equal(result, &jobs[i]);
	}
}

static void *sleep_in_turns(void *argument)
{
	struct job *job = argument;

	/* A poller says "at once" when the test is over. */
	wh_turns_wait(turns, job_has_run, job, INT64_MAX);
	return NULL;
}

static void call_it(void *argument)
{
	job_ran(argument);
}

/* A call is served by the thread that sleeps in a turn, or by the caller if there is none. */
static void call__wakes_the_sleeper(void **state)
{
	struct job called = { 0 }, end = { .task.run = job_task };
	pthread_t thread;

	(void)state;
	wh_loop_call(&loop, call_it, &called);
	assert_int_equal(called.runs, 1);
	assert_true(called.here);
	assert_int_equal(pthread_create(&thread, NULL, sleep_in_turns, &end), 0);
	for (int i = 0; i < 1000; i++)
		wh_loop_call(&loop, call_it, &called);
	assert_int_equal(called.runs, 1001);
	wh_loop_post(&loop, &end.task);
	pthread_join(thread, NULL);
}

struct changed {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool yes;
};

static void *change_it(void *argument)
{
	struct changed *changed = argument;

	pthread_mutex_lock(&changed->lock);
	changed->yes = true;
	pthread_cond_broadcast(&changed->cond);
	pthread_mutex_unlock(&changed->lock);
	wh_turns_wake(turns);
	return NULL;
}

/* What changes outside a turn wakes who gives one, at any moment. */
static void wake__is_never_lost(void **state)
{
	(void)state;
	for (int i = 0; i < 500; i++) {
		struct changed changed = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER,
					   false };
		int64_t end = wh_deadline(PATIENCE);
		pthread_t thread;
		int late = 0;

		assert_int_equal(pthread_create(&thread, NULL, change_it, &changed), 0);
		pthread_mutex_lock(&changed.lock);
		while (!changed.yes && !late)
			late = wh_turns_cond_wait(turns, &changed.cond, &changed.lock, end);
		assert_true(changed.yes);
		pthread_mutex_unlock(&changed.lock);
		pthread_join(thread, NULL);
	}
}

static void call_other(void *argument)
{
	wh_loop_call(&other, call_it, argument);
}

/* The thread that gives a turn of one loop calls another: it must not wait for itself. */
static void call__inside_a_turn(void **state)
{
	struct job job = { 0 };

	(void)state;
	wh_loop_call(&loop, call_other, &job);
	assert_int_equal(job.runs, 1);
}

static void deadline__ends_a_wait(void **state)
{
	struct job never = { 0 };
	int64_t begun = wh_now();

	(void)state;
	assert_false(wh_turns_wait(turns, job_has_run, &never, wh_deadline(10 * WH_MS)));
	assert_true(wh_now() - begun >= 10 * WH_MS);
	/* Somebody looked at an older state: do not sleep. */
	assert_false(wh_turns_run(turns, wh_turns_seen(turns) - 1, INT64_MAX));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, open_turns, close_turns)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(task__waits_for_a_turn),   TEST(timer__ends_a_sleep),
		TEST(descriptor__says_when),    TEST(poller__is_asked_again),
		TEST(threads__share_the_turns), TEST(call__wakes_the_sleeper),
		TEST(wake__is_never_lost),      TEST(call__inside_a_turn),
		TEST(deadline__ends_a_wait),    TEST(between__does_not_spin),
	};

	return cmocka_run_group_tests_name("util-turns", tests, NULL, NULL);
}
