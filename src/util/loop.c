/* SPDX-License-Identifier: Apache-2.0 */
#include "util/loop.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"

#define BATCH 64 /* events taken from epoll at once */

/* While its spinners find work, a spinning loop looks at descriptors and the clock in every so many
 * turns only. */
#define SPIN_TURNS 64
/* With no work for so long it lets other threads have the CPU if they want it. */
#define SPIN_QUIET WH_MS

/* How long a loop stays awake with nothing to do: half as long after each time in vain, twice as
 * long when something has come. What is sent over loopback pauses for less than the most, as a
 * rule; who has to wait longer for a sender without a CPU takes one from others. */
#define STAY_LEAST (4 * WH_MS / 1000)
#define STAY_MOST (WH_MS / 10)

/* Whose thread this is. Read in every wait: not by a call of the dynamic linker's. */
static _Thread_local const struct wh_loop *here __attribute__((tls_model("initial-exec")));

/* ---- tasks -------------------------------------------------------------------------------- */

static void wake(struct wh_loop *loop)
{
	uint64_t one = 1;
	/* It fails only if the counter is full, and then the thread wakes all the same. */
	ssize_t rc = write(loop->wake, &one, sizeof(one));

	(void)rc;
}

static void waker_ready(struct wh_source *source, uint32_t events)
{
	uint64_t count;
	ssize_t rc = read(source->fd, &count, sizeof(count));

	(void)events;
	(void)rc;
}

void wh_loop_post(struct wh_loop *loop, struct wh_task *task)
{
	pthread_mutex_lock(&loop->lock);
	if (!task->link.next)
		wh_list_append(&loop->tasks, &task->link);
	/* Set it before looking at `sleeping`; the thread sets that before looking at `posted`: one
	 * of the two sees the other. */
	atomic_store(&loop->posted, true);
	pthread_mutex_unlock(&loop->lock);
	/* Whoever turns it off also wakes, so that one write is enough for many tasks. */
	if (atomic_load(&loop->sleeping) && atomic_exchange(&loop->sleeping, false))
		wake(loop);
}

void wh_loop_cancel(struct wh_loop *loop, struct wh_task *task)
{
	assert(wh_loop_here(loop));
	/* It is in the list of those handed in, or of those that are due in this turn. */
	pthread_mutex_lock(&loop->lock);
	wh_list_remove(&task->link);
	pthread_mutex_unlock(&loop->lock);
}

/* Run what has been handed in so far; what the tasks themselves hand in has to wait, so that the
 * rest of the loop gets its turn. */
static void run_tasks(struct wh_loop *loop)
{
	struct wh_list due, *link;

	if (!atomic_load_explicit(&loop->posted, memory_order_relaxed))
		return;
	wh_list_init(&due);
	pthread_mutex_lock(&loop->lock);
	atomic_store(&loop->posted, false);
	while ((link = wh_list_take(&loop->tasks)))
		wh_list_append(&due, link);
	/* A task may be handed in again from the moment it leaves the list: hence the lock. */
	while ((link = wh_list_take(&due))) {
		struct wh_task *task = wh_container(link, struct wh_task, link);

		pthread_mutex_unlock(&loop->lock);
		task->run(task);
		pthread_mutex_lock(&loop->lock);
	}
	pthread_mutex_unlock(&loop->lock);
}

struct call {
	struct wh_task task;
	struct wh_loop *loop;
	void (*function)(void *);
	void *argument;
	bool returned; /* under loop.lock */
};

static void run_call(struct wh_task *task)
{
	struct call *call = wh_container(task, struct call, task);
	struct wh_loop *loop = call->loop;

	call->function(call->argument);
	pthread_mutex_lock(&loop->lock);
	/* From here on the caller's stack, with the call in it, may be gone. */
	call->returned = true;
	pthread_cond_broadcast(&loop->done);
	pthread_mutex_unlock(&loop->lock);
}

void wh_loop_call(struct wh_loop *loop, void (*function)(void *), void *argument)
{
	struct call call = {
		.task.run = run_call,
		.loop = loop,
		.function = function,
		.argument = argument,
	};

	if (wh_loop_here(loop)) {
		function(argument);
		return;
	}
	wh_loop_post(loop, &call.task);
	pthread_mutex_lock(&loop->lock);
	while (!call.returned)
		pthread_cond_wait(&loop->done, &loop->lock);
	pthread_mutex_unlock(&loop->lock);
}

/* ---- timers ------------------------------------------------------------------------------- */

/* Which list: those in one are set for about as long, so that a new one goes near the end, be there
 * thousands of others that are set for longer. */
static struct wh_list *timers_like(struct wh_loop *loop, int64_t at)
{
	int64_t away = at > 0 ? at - wh_now() : 0; /* in units of about 1 ms from here */
	unsigned list = 0;

	for (away >>= 20; away > 0 && list < WH_TIMER_LISTS - 1; away >>= 1)
		list++;
	return &loop->timers[list];
}

void wh_timer_set(struct wh_loop *loop, struct wh_timer *timer, int64_t at)
{
	struct wh_list *head = timers_like(loop, at), *after = head;

	assert(wh_loop_here(loop));
	wh_list_remove(&timer->link);
	timer->at = at;
	while (after->prev != head && wh_container(after->prev, struct wh_timer, link)->at > at)
		after = after->prev;
	wh_list_append(after, &timer->link);
}

void wh_timer_clear(struct wh_timer *timer)
{
	wh_list_remove(&timer->link);
}

static struct wh_timer *first_timer(struct wh_loop *loop)
{
	struct wh_timer *first = NULL;

	for (unsigned i = 0; i < WH_TIMER_LISTS; i++) {
		struct wh_timer *timer = wh_container(loop->timers[i].next, struct wh_timer, link);

		/* Of two for the same moment the one that was set earlier was farther away. */
		if (!wh_list_empty(&loop->timers[i]) && (!first || timer->at <= first->at))
			first = timer;
	}
	return first;
}

/* Fire what is due now. A timer set meanwhile waits for the next turn, even if it is due at once;
 * one that is cleared meanwhile does not fire. */
static void fire_timers(struct wh_loop *loop)
{
	struct wh_timer *timer = first_timer(loop);
	struct wh_list due, *link;
	int64_t now;

	if (!timer)
		return;
	now = wh_now();
	wh_list_init(&due);
	for (; timer && timer->at <= now; timer = first_timer(loop)) {
		wh_list_remove(&timer->link);
		wh_list_append(&due, &timer->link);
	}
	while ((link = wh_list_take(&due))) {
		timer = wh_container(link, struct wh_timer, link);
		timer->fire(timer);
	}
}

/* ---- sources ------------------------------------------------------------------------------ */

static int control(struct wh_loop *loop, int op, struct wh_source *source, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };

	/* epoll reports EPOLLERR and EPOLLHUP even to those who wait for nothing. Let that come to
	 * nobody, and once, not in every turn; arming the source again brings it back. */
	if (!events)
		event = (struct epoll_event){ .events = EPOLLONESHOT };
	return epoll_ctl(loop->epoll, op, source->fd, &event);
}

int wh_loop_add(struct wh_loop *loop, struct wh_source *source, uint32_t events)
{
	if (control(loop, EPOLL_CTL_ADD, source, events))
		return wh_fail(errno, "epoll_ctl: cannot watch descriptor %d: %s", source->fd,
			       strerror(errno));
	return 0;
}

void wh_loop_modify(struct wh_loop *loop, struct wh_source *source, uint32_t events)
{
	control(loop, EPOLL_CTL_MOD, source, events);
}

void wh_loop_remove(struct wh_loop *loop, struct wh_source *source)
{
	assert(wh_loop_here(loop));
	epoll_ctl(loop->epoll, EPOLL_CTL_DEL, source->fd, NULL);
	/* Its events that were taken out together with the one being delivered. */
	for (int i = 0; i < loop->batch_left; i++) {
		if (loop->batch[i].data.ptr == source)
			loop->batch[i].data.ptr = NULL;
	}
}

static void deliver(struct wh_loop *loop, struct epoll_event *events, int count)
{
	loop->batch = events;
	loop->batch_left = count;
	while (loop->batch_left > 0) {
		struct epoll_event *event = loop->batch++;
		struct wh_source *source = event->data.ptr;

		loop->batch_left--;
		if (source)
			source->ready(source, event->events);
	}
}

/* Wait for events, until `deadline` at the latest, and deliver them. */
static void wait_for_events(struct wh_loop *loop, int64_t deadline)
{
	struct epoll_event events[BATCH];
	int64_t left = 0;
	int count;

	if (deadline) {
		atomic_store(&loop->sleeping, true);
		if (!atomic_load(&loop->posted) && !atomic_load(&loop->stop))
			left = deadline - wh_now();
	}
	if (left <= 0)
		left = 0;
	else if (deadline == INT64_MAX)
		left = -1;
	else if (left > INT32_MAX * WH_MS)
		left = INT32_MAX;
	else
		left = (left + WH_MS - 1) / WH_MS; /* not before it is due */
	count = epoll_wait(loop->epoll, events, BATCH, (int)left);
	if (deadline)
		atomic_store(&loop->sleeping, false);
	deliver(loop, events, count);
}

/* ---- staying awake ------------------------------------------------------------------------ */

void wh_loop_moved(struct wh_loop *loop, uint64_t bytes)
{
	if (!wh_loop_here(loop))
		return;
	loop->earned = bytes < (uint64_t)(STAY_MOST - loop->earned) ?
			       loop->earned + (int64_t)bytes :
			       STAY_MOST;
}

/* Look for work for as long as has been earned. False: there is none. */
static bool stay(struct wh_loop *loop)
{
	int64_t start = wh_now(), now = start;
	int64_t end = now + (loop->earned < loop->patience ? loop->earned : loop->patience);
	struct epoll_event events[BATCH];
	int count;

	for (;;) {
		count = epoll_wait(loop->epoll, events, BATCH, 0);
		if (count || atomic_load(&loop->posted) || atomic_load(&loop->stop) || now >= end)
			break;
		sched_yield();
		now = wh_now();
	}
	if (count || atomic_load(&loop->posted)) {
		loop->patience = 2 * loop->patience < STAY_MOST ? 2 * loop->patience : STAY_MOST;
		loop->earned -= now - start < loop->earned ? now - start : loop->earned;
	} else {
		loop->patience = loop->patience / 2 > STAY_LEAST ? loop->patience / 2 : STAY_LEAST;
		loop->earned = 0;
	}
	deliver(loop, events, count);
	return count || atomic_load(&loop->posted);
}

/* ---- turns -------------------------------------------------------------------------------- */

/* Poll every spinner once. Whatever is added or removed meanwhile: the place is kept by a link of
 * our own in the list. */
static bool poll_spinners(struct wh_loop *loop)
{
	struct wh_list place = { 0 }, *next;
	bool worked = false;

	for (next = loop->spinners.next; next != &loop->spinners; next = place.next) {
		struct wh_spinner *spinner = wh_container(next, struct wh_spinner, link);

		wh_list_remove(&place);
		/* Behind `next`, that is, in front of what follows it. */
		wh_list_append(next->next, &place);
		worked |= spinner->poll(spinner);
	}
	wh_list_remove(&place);
	return worked;
}

static void sleep_turn(struct wh_loop *loop)
{
	struct wh_timer *timer = first_timer(loop);
	int64_t deadline = timer ? timer->at : INT64_MAX;

	/* 0 stands for not sleeping at all. What a few bytes have earned adds up: a look costs
	 * more. */
	if (loop->earned < STAY_LEAST || !stay(loop))
		wait_for_events(loop, deadline > 0 ? deadline : 1);
	run_tasks(loop);
	fire_timers(loop);
}

/* Spin for as long as there are spinners. */
static void spin(struct wh_loop *loop)
{
	int64_t worked_at = wh_now();
	unsigned turns = 0;
	bool worked = true, quiet = false;

	while (!wh_list_empty(&loop->spinners) &&
	       !atomic_load_explicit(&loop->stop, memory_order_relaxed)) {
		worked |= poll_spinners(loop);
		run_tasks(loop);
		if ((worked || !quiet) && ++turns < SPIN_TURNS)
			continue;
		turns = 0;
		wait_for_events(loop, 0);
		fire_timers(loop);
		if (worked) {
			worked_at = wh_now();
			quiet = false;
		} else if (!quiet) {
			quiet = wh_now() - worked_at > SPIN_QUIET;
		} else {
			sched_yield();
		}
		worked = false;
	}
}

static void *main_of(void *argument)
{
	struct wh_loop *loop = argument;

	here = loop;
	atomic_store(&loop->tid, gettid());
	while (!atomic_load(&loop->stop)) {
		if (loop->spin)
			spin(loop);
		sleep_turn(loop);
	}
	/* Nobody shall wait for ever for a call that came just before the end. */
	while (atomic_load(&loop->posted))
		run_tasks(loop);
	return NULL;
}

/* ---- start and stop ----------------------------------------------------------------------- */

static int start_thread(struct wh_loop *loop, const char *name)
{
	/* What a thread does to itself is its own business even here; the other signals are for the
	 * program's threads. */
	static const int own[] = { SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP };
	char short_name[16];
	sigset_t mask, before;
	int error;

	sigfillset(&mask);
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		sigdelset(&mask, own[i]);
	pthread_sigmask(SIG_SETMASK, &mask, &before);
	error = pthread_create(&loop->thread, NULL, main_of, loop);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return wh_fail(error, "cannot start the thread %s: %s", name, strerror(error));
	strncpy(short_name, name, sizeof(short_name) - 1);
	short_name[sizeof(short_name) - 1] = '\0';
	pthread_setname_np(loop->thread, short_name);
	return 0;
}

int wh_loop_start(struct wh_loop *loop, const char *name, bool spin)
{
	int rc;

	memset(loop, 0, sizeof(*loop));
	loop->spin = spin;
	loop->patience = STAY_MOST;
	wh_list_init(&loop->tasks);
	for (unsigned i = 0; i < WH_TIMER_LISTS; i++)
		wh_list_init(&loop->timers[i]);
	wh_list_init(&loop->spinners);
	pthread_mutex_init(&loop->lock, NULL);
	pthread_cond_init(&loop->done, NULL);
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll < 0) {
		rc = wh_fail(errno, "epoll_create1 for %s: %s", name, strerror(errno));
		goto err_destroy;
	}
	loop->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop->wake < 0) {
		rc = wh_fail(errno, "eventfd for %s: %s", name, strerror(errno));
		goto err_close_epoll;
	}
	loop->waker = (struct wh_source){ .fd = loop->wake, .ready = waker_ready };
	rc = wh_loop_add(loop, &loop->waker, EPOLLIN);
	if (rc)
		goto err_close_wake;
	rc = start_thread(loop, name);
	if (rc)
		goto err_close_wake;
	return 0;

err_close_wake:
	close(loop->wake);
err_close_epoll:
	close(loop->epoll);
err_destroy:
	pthread_cond_destroy(&loop->done);
	pthread_mutex_destroy(&loop->lock);
	return rc;
}

void wh_loop_stop(struct wh_loop *loop)
{
	atomic_store(&loop->stop, true);
	wake(loop);
	pthread_join(loop->thread, NULL);
	close(loop->wake);
	close(loop->epoll);
	pthread_cond_destroy(&loop->done);
	pthread_mutex_destroy(&loop->lock);
}

bool wh_loop_here(const struct wh_loop *loop)
{
	return here == loop;
}

const struct wh_loop *wh_loop_current(void)
{
	return here;
}
