/* SPDX-License-Identifier: Apache-2.0 */
/* Progress loops that are run by the threads that call in. */
#include "util/turns.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/loop.h"

#define LOOPS 4 /* that share turns: an engine's, and one of rdma */
#define YIELD WH_MS /* for how long at most a thread leaves turns to one that is late */

/* Whose turn this thread gives. */
static _Thread_local const struct wh_turns *current_turns;
/* This thread does what is due between turns: wh_turns_take(). */
static _Thread_local unsigned takes;

bool wh_turns_here(const struct wh_turns *turns)
{
	return current_turns == turns;
}

/* ---- one thread at a time ------------------------------------------------------------------- */

/* Wait on `ended`, under the lock. False: the deadline has passed. */
static bool turns_sleep(struct wh_turns *turns, int64_t deadline)
{
	struct timespec until = { deadline / WH_SECOND, deadline % WH_SECOND };

	if (deadline == INT64_MAX)
		return !pthread_cond_wait(&turns->ended, &turns->lock);
	return pthread_cond_timedwait(&turns->ended, &turns->lock, &until) != ETIMEDOUT;
}

/* Become the thread that gives turns. `seen`: give up if the number is not that any more; NULL:
 * wait for the other thread. */
static bool turns_enter(struct wh_turns *turns, const uint64_t *seen, int64_t deadline)
{
	bool in_time = true, entered;

	atomic_fetch_add(&turns->sleepers, 1);
	pthread_mutex_lock(&turns->lock);
	while (turns->running && in_time && (!seen || *seen == atomic_load(&turns->count))) {
		/* It may sleep until something comes. */
		if (!seen)
			wh_turns_ready(turns);
		in_time = turns_sleep(turns, deadline);
	}
	entered = !turns->running && (!seen || *seen == atomic_load(&turns->count));
	turns->running |= entered;
	pthread_mutex_unlock(&turns->lock);
	if (!entered)
		atomic_fetch_sub(&turns->sleepers, 1);
	return entered;
}

static void turns_leave(struct wh_turns *turns)
{
	pthread_mutex_lock(&turns->lock);
	turns->running = false;
	atomic_fetch_add(&turns->count, 1);
	if (atomic_fetch_sub(&turns->sleepers, 1) > 1)
		pthread_cond_broadcast(&turns->ended);
	pthread_mutex_unlock(&turns->lock);
}

/* Others are to do what is due between turns, and wait for one to end: they need a moment to run.
 */
static void turns_yield(struct wh_turns *turns, int64_t deadline)
{
	int64_t until = wh_now() + YIELD;

	atomic_fetch_add(&turns->sleepers, 1);
	pthread_mutex_lock(&turns->lock);
	if (atomic_load(&turns->takers))
		turns_sleep(turns, until < deadline ? until : deadline);
	pthread_mutex_unlock(&turns->lock);
	atomic_fetch_sub(&turns->sleepers, 1);
}

/* ---- a turn --------------------------------------------------------------------------------- */

static void turns_drain(int fd)
{
	uint64_t count;
	ssize_t rc = read(fd, &count, sizeof(count));

	(void)rc;
}

static bool turns_serve(struct wh_turns *turns)
{
	const struct wh_turns *before = current_turns;
	bool worked = false;

	current_turns = turns;
	atomic_store(&turns->resting, false);
	if (atomic_load(&turns->written) && atomic_exchange(&turns->written, false))
		turns_drain(turns->wake);
	for (struct wh_list *l = turns->loops.next; l != &turns->loops; l = l->next)
		worked |= wh_loop_turn(wh_container(l, struct wh_loop, turns_link));
	for (struct wh_list *l = turns->pollers.next; l != &turns->pollers; l = l->next) {
		struct wh_poller *poller = wh_container(l, struct wh_poller, link);

		worked |= poller->poll(poller);
	}
	current_turns = before;
	return worked;
}

/* From here on, who has work for the loops writes a descriptor. Returns when there is something to
 * do (monotonic ns; 0: now; INT64_MAX: when a descriptor says so), and in *until when this thread
 * must not sleep any more. *taken: at once, because others do what is due. */
static int64_t turns_rest(struct wh_turns *turns, int64_t *until, bool *taken)
{
	int64_t next = INT64_MAX, at;

	atomic_store(&turns->resting, true);
	*until = INT64_MAX;
	for (struct wh_list *l = turns->loops.next; l != &turns->loops; l = l->next) {
		struct wh_loop *loop = wh_container(l, struct wh_loop, turns_link);

		at = wh_loop_rest(loop) ? 0 : wh_loop_next_timer(loop);
		next = at < next ? at : next;
	}
	*until = next > 0 ? next : 0;
	*taken = false;
	for (struct wh_list *l = turns->pollers.next; l != &turns->pollers; l = l->next) {
		struct wh_poller *poller = wh_container(l, struct wh_poller, link);

		at = poller->next(poller);
		at = at <= 0 ? 0 : wh_deadline(at);
		next = at < next ? at : next;
		/* After next(): who takes what has just become due is counted by then. */
		if (at < *until && (!poller->between || atomic_load(&turns->takers))) {
			*until = at;
			*taken = poller->between && !takes;
		}
	}
	return next > 0 ? next : 0;
}

/* Sleep until a loop has something to do, `wake` is written, or `until` has come. `timer` is not
 * looked at: it stays readable while something is due that this thread does not do. */
static void turns_doze(const struct wh_turns *turns, int64_t until)
{
	struct pollfd look[1 + LOOPS] = { { .fd = turns->wake, .events = POLLIN } };
	int64_t left = until == INT64_MAX ? 0 : until - wh_now();
	struct timespec time = { left / WH_SECOND, left % WH_SECOND };
	nfds_t count = 1;

	for (struct wh_list *l = turns->loops.next; l != &turns->loops; l = l->next)
		look[count++] =
			(struct pollfd){ .fd = wh_container(l, struct wh_loop, turns_link)->epoll,
					 .events = POLLIN };
	if (until == INT64_MAX || left > 0)
		ppoll(look, count, until == INT64_MAX ? NULL : &time, NULL);
}

/* Have `timer` make the descriptor readable at `next`. */
static void turns_arm(struct wh_turns *turns, int64_t next)
{
	struct itimerspec at = { 0 };

	if (!atomic_load(&turns->watched))
		return;
	if (turns->armed != INT64_MAX && turns->armed <= wh_now()) {
		turns_drain(turns->timer);
		turns->armed = INT64_MAX;
	}
	if (turns->armed == next)
		return;
	turns->armed = next;
	if (next != INT64_MAX) /* 0 would stop it */
		at.it_value = (struct timespec){ next / WH_SECOND, next % WH_SECOND + !next };
	timerfd_settime(turns->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

bool wh_turns_run(struct wh_turns *turns, uint64_t seen, int64_t deadline)
{
	int64_t next, until;
	bool worked, taken;

	if (!turns_enter(turns, &seen, deadline))
		return false;
	wh_fail_begin();
	worked = turns_serve(turns);
	next = turns_rest(turns, &until, &taken);
	/* A wake since the caller looked may concern it: return. */
	if (!worked && deadline && atomic_load(&turns->count) == seen) {
		turns_doze(turns, deadline < until ? deadline : until);
		worked = turns_serve(turns);
		next = turns_rest(turns, &until, &taken);
	}
	turns_arm(turns, next);
	wh_fail_end(0);
	turns_leave(turns);
	if (taken && !worked && deadline)
		turns_yield(turns, deadline);
	return worked;
}

void wh_turns_take(struct wh_turns *turns, int more)
{
	takes += (unsigned)more;
	atomic_fetch_add(&turns->takers, (unsigned)more);
	if (more > 0 || !atomic_load(&turns->sleepers))
		return;
	pthread_mutex_lock(&turns->lock);
	pthread_cond_broadcast(&turns->ended);
	pthread_mutex_unlock(&turns->lock);
}

bool wh_turns_wait(struct wh_turns *turns, bool (*done)(void *argument), void *argument,
		   int64_t deadline)
{
	for (;;) {
		uint64_t seen = wh_turns_seen(turns);

		if (done(argument))
			return true;
		if (deadline != INT64_MAX && wh_now() >= deadline)
			return false;
		wh_turns_run(turns, seen, deadline);
	}
}

int wh_turns_cond_wait(struct wh_turns *turns, pthread_cond_t *cond, pthread_mutex_t *lock,
		       int64_t deadline)
{
	struct timespec until = { deadline / WH_SECOND, deadline % WH_SECOND };
	uint64_t seen;

	if (!turns && deadline == INT64_MAX)
		return pthread_cond_wait(cond, lock);
	if (!turns)
		return pthread_cond_timedwait(cond, lock, &until);
	seen = wh_turns_seen(turns);
	pthread_mutex_unlock(lock);
	wh_turns_run(turns, seen, deadline);
	pthread_mutex_lock(lock);
	return deadline != INT64_MAX && wh_now() >= deadline ? ETIMEDOUT : 0;
}

void wh_turns_pause(struct wh_turns *turns, int64_t pause)
{
	const struct timespec time = { pause / WH_SECOND, pause % WH_SECOND };

	if (turns)
		wh_turns_run(turns, wh_turns_seen(turns), wh_deadline(pause));
	else
		nanosleep(&time, NULL);
}

/* ---- waking --------------------------------------------------------------------------------- */

void wh_turns_ready(struct wh_turns *turns)
{
	uint64_t one = 1;
	ssize_t rc;

	if (!turns || !atomic_load(&turns->resting) || !atomic_exchange(&turns->resting, false))
		return;
	rc = write(turns->wake, &one, sizeof(one));
	(void)rc;
	/* After the write, so that a turn between the two leaves it to the next one. */
	atomic_store(&turns->written, true);
}

void wh_turns_wake(struct wh_turns *turns)
{
	if (!turns)
		return;
	atomic_fetch_add(&turns->count, 1);
	if (!atomic_load(&turns->sleepers))
		return;
	wh_turns_ready(turns);
	pthread_mutex_lock(&turns->lock);
	pthread_cond_broadcast(&turns->ended);
	pthread_mutex_unlock(&turns->lock);
}

int wh_turns_fd(struct wh_turns *turns)
{
	/* The turn arms the timer. */
	if (!atomic_exchange(&turns->watched, true))
		wh_turns_run(turns, wh_turns_seen(turns), 0);
	return turns->epoll;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static int turns_watch(struct wh_turns *turns, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(turns->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void turns_destroy(struct wh_turns *turns)
{
	if (turns->wake >= 0)
		close(turns->wake);
	if (turns->timer >= 0)
		close(turns->timer);
	if (turns->epoll >= 0)
		close(turns->epoll);
	pthread_cond_destroy(&turns->ended);
	pthread_mutex_destroy(&turns->lock);
	free(turns);
}

int wh_turns_open(struct wh_turns **out)
{
	struct wh_turns *turns = calloc(1, sizeof(*turns));
	pthread_condattr_t clock;
	int error;

	if (!turns)
		return wh_fail(ENOMEM, "wh_engine_open: no memory");
	pthread_mutex_init(&turns->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&turns->ended, &clock);
	pthread_condattr_destroy(&clock);
	wh_list_init(&turns->loops);
	wh_list_init(&turns->pollers);
	turns->armed = INT64_MAX;
	atomic_store(&turns->resting, true);
	turns->epoll = epoll_create1(EPOLL_CLOEXEC);
	turns->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	turns->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (turns->epoll < 0 || turns->wake < 0 || turns->timer < 0 ||
	    turns_watch(turns, turns->wake) || turns_watch(turns, turns->timer)) {
		error = wh_fail(errno, "wh_engine_open: no descriptor for progress: %s",
				strerror(errno));
		turns_destroy(turns);
		return error;
	}
	*out = turns;
	return 0;
}

void wh_turns_close(struct wh_turns *turns)
{
	if (turns)
		turns_destroy(turns);
}

int wh_turns_add(struct wh_turns *turns, struct wh_loop *loop)
{
	unsigned count = 0;

	if (turns_watch(turns, loop->epoll))
		return wh_fail(errno, "epoll_ctl: cannot watch a loop: %s", strerror(errno));
	turns_enter(turns, NULL, INT64_MAX);
	for (struct wh_list *l = turns->loops.next; l != &turns->loops; l = l->next)
		count++;
	if (count == LOOPS) {
		turns_leave(turns);
		return wh_fail(ENOSPC, "an engine without threads has room for %d loops", LOOPS);
	}
	wh_list_append(&turns->loops, &loop->turns_link);
	wh_loop_rest(loop);
	turns_leave(turns);
	return 0;
}

void wh_turns_remove(struct wh_turns *turns, struct wh_loop *loop)
{
	turns_enter(turns, NULL, INT64_MAX);
	/* A task that was posted just before the end runs, too. */
	while (wh_loop_rest(loop))
		wh_loop_turn(loop);
	wh_list_remove(&loop->turns_link);
	turns_leave(turns);
}

void wh_turns_add_poller(struct wh_turns *turns, struct wh_poller *poller)
{
	turns_enter(turns, NULL, INT64_MAX);
	wh_list_append(&turns->pollers, &poller->link);
	turns_leave(turns);
}

void wh_turns_remove_poller(struct wh_turns *turns, struct wh_poller *poller)
{
	turns_enter(turns, NULL, INT64_MAX);
	wh_list_remove(&poller->link);
	turns_leave(turns);
}
