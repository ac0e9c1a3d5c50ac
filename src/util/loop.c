/* SPDX-License-Identifier: Apache-2.0 */
/* The progress loop: tasks, timers, descriptors, and how long to stay awake between them. */
#include "util/loop.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/thread.h"
#include "util/turns.h"

#define BATCH 64 /* events taken from epoll at once */

/* While its spinners find work, a spinning loop checks descriptors and timers only once in this
 * many turns. */
#define SPIN_TURNS 64
/* A spinning loop that has found no work for this long yields its CPU in every turn. */
#define SPIN_QUIET WH_MS

/* Bounds of the time, in ns, that a loop stays awake with nothing to do. It halves after each time
 * in vain and doubles when something comes. A stream over loopback rarely pauses for longer than
 * STAY_MOST; a loop that waited longer would take the CPU that the sender needs. */
#define STAY_LEAST (4 * WH_MS / 1000)
#define STAY_MOST (WH_MS / 10)

/* The loop whose thread this is. Every wait reads it, so the TLS model avoids a call into the
 * dynamic linker. */
static _Thread_local const struct wh_loop *current_loop __attribute__((tls_model("initial-exec")));

/* ---- tasks -------------------------------------------------------------------------------- */

static void loop_wake(struct wh_loop *loop)
{
	uint64_t one = 1;
	/* Fails only if the counter is full, and then the thread wakes anyway. */
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
	/* Store `posted`, then read `sleeping`; the thread stores `sleeping`, then reads `posted`.
	 * So at least one of the two sees the other's store. */
	atomic_store(&loop->posted, true);
	pthread_mutex_unlock(&loop->lock);
	/* Only the caller that clears `sleeping` writes, so one write serves many tasks. */
	if (atomic_load(&loop->sleeping) && atomic_exchange(&loop->sleeping, false))
		loop_wake(loop);
}

void wh_loop_cancel(struct wh_loop *loop, struct wh_task *task)
{
	assert(wh_loop_here(loop));
	/* The task is in loop->tasks, or in the list that tasks_run() works through. */
	pthread_mutex_lock(&loop->lock);
	wh_list_remove(&task->link);
	pthread_mutex_unlock(&loop->lock);
}

/* Run the tasks posted so far. Tasks that these post wait for the next turn, so that timers and
 * descriptors are served in between. */
static void tasks_run(struct wh_loop *loop)
{
	struct wh_list due, *link;

	if (!atomic_load_explicit(&loop->posted, memory_order_relaxed))
		return;
	wh_list_init(&due);
	pthread_mutex_lock(&loop->lock);
	atomic_store(&loop->posted, false);
	while ((link = wh_list_take(&loop->tasks)))
		wh_list_append(&due, link);
	/* A task may be posted again as soon as it has left the list: hence the lock. */
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

static void call_run(struct wh_task *task)
{
	struct call *call = wh_container(task, struct call, task);
	struct wh_loop *loop = call->loop;

	call->function(call->argument);
	pthread_mutex_lock(&loop->lock);
	/* Once this is set and the lock is free, the caller's stack and the call in it are gone. */
	call->returned = true;
	pthread_cond_broadcast(&loop->done);
	pthread_mutex_unlock(&loop->lock);
}

static bool call_has_returned(void *argument)
{
	struct call *call = argument;
	bool returned;

	pthread_mutex_lock(&call->loop->lock);
	returned = call->returned;
	pthread_mutex_unlock(&call->loop->lock);
	return returned;
}

/* This thread runs a turn, of another loop: the loop has no turn of its own meanwhile. */
static void loop_borrow(struct wh_loop *loop, void (*function)(void *), void *argument)
{
	const struct wh_loop *before = current_loop;

	current_loop = loop;
	function(argument);
	current_loop = before;
}

void wh_loop_call(struct wh_loop *loop, void (*function)(void *), void *argument)
{
	struct call call = {
		.task.run = call_run,
		.loop = loop,
		.function = function,
		.argument = argument,
	};

	if (wh_loop_here(loop)) {
		function(argument);
		return;
	}
	if (loop->turns && wh_turns_here(loop->turns)) {
		loop_borrow(loop, function, argument);
		return;
	}
	wh_loop_post(loop, &call.task);
	if (loop->turns) {
		wh_turns_wait(loop->turns, call_has_returned, &call, INT64_MAX);
		return;
	}
	pthread_mutex_lock(&loop->lock);
	while (!call.returned)
		pthread_cond_wait(&loop->done, &loop->lock);
	pthread_mutex_unlock(&loop->lock);
}

/* ---- timers ------------------------------------------------------------------------------- */

/* The list for a timer that fires at `at`. The timers of a list have similar delays, so a new one
 * goes near its end, however many timers with longer delays exist. */
static struct wh_list *timer_list(struct wh_loop *loop, int64_t at)
{
	int64_t away = at > 0 ? at - wh_now() : 0;
	unsigned list = 0;

	/* ns to about ms, then its logarithm */
	for (away >>= 20; away > 0 && list < WH_TIMER_LISTS - 1; away >>= 1)
		list++;
	return &loop->timers[list];
}

void wh_timer_set(struct wh_loop *loop, struct wh_timer *timer, int64_t at)
{
	struct wh_list *head = timer_list(loop, at), *after = head;

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

static struct wh_timer *timer_first(const struct wh_loop *loop)
{
	struct wh_timer *first = NULL;

	for (unsigned i = 0; i < WH_TIMER_LISTS; i++) {
		struct wh_timer *timer = wh_container(loop->timers[i].next, struct wh_timer, link);

		/* Of two timers for the same time, the one set earlier is in the later list. */
		if (!wh_list_empty(&loop->timers[i]) && (!first || timer->at <= first->at))
			first = timer;
	}
	return first;
}

/* Fire the timers that are due now. A timer set meanwhile waits for the next turn, even if it is
 * due; a timer cleared meanwhile does not fire. True: there was one. */
static bool timers_fire(struct wh_loop *loop)
{
	struct wh_timer *timer = timer_first(loop);
	struct wh_list due, *link;
	bool fired = false;
	int64_t now;

	if (!timer)
		return false;
	now = wh_now();
	wh_list_init(&due);
	for (; timer && timer->at <= now; timer = timer_first(loop)) {
		wh_list_remove(&timer->link);
		wh_list_append(&due, &timer->link);
	}
	while ((link = wh_list_take(&due))) {
		timer = wh_container(link, struct wh_timer, link);
		timer->fire(timer);
		fired = true;
	}
	return fired;
}

/* ---- sources ------------------------------------------------------------------------------ */

static int source_control(struct wh_loop *loop, int op, struct wh_source *source, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };

	/* epoll reports EPOLLERR and EPOLLHUP even if no event is asked for. Without a source and
	 * with ONESHOT the loop ignores that report, and gets it once instead of in every turn.
	 * Asking for events again restores the source. */
	if (!events)
		event = (struct epoll_event){ .events = EPOLLONESHOT };
	return epoll_ctl(loop->epoll, op, source->fd, &event);
}

int wh_loop_add(struct wh_loop *loop, struct wh_source *source, uint32_t events)
{
	if (source_control(loop, EPOLL_CTL_ADD, source, events))
		return wh_fail(errno, "epoll_ctl: cannot watch descriptor %d: %s", source->fd,
			       strerror(errno));
	return 0;
}

void wh_loop_modify(struct wh_loop *loop, struct wh_source *source, uint32_t events)
{
	source_control(loop, EPOLL_CTL_MOD, source, events);
}

void wh_loop_remove(struct wh_loop *loop, struct wh_source *source)
{
	assert(wh_loop_here(loop));
	epoll_ctl(loop->epoll, EPOLL_CTL_DEL, source->fd, NULL);
	/* Drop its events that the same epoll_wait() returned and that are not delivered yet. */
	for (int i = 0; i < loop->batch_left; i++) {
		if (loop->batch[i].data.ptr == source)
			loop->batch[i].data.ptr = NULL;
	}
}

static void loop_deliver(struct wh_loop *loop, struct epoll_event *events, int count)
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

/* Wait for events until `deadline` (0: do not wait) and deliver them. */
static void loop_wait(struct wh_loop *loop, int64_t deadline)
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
		left = (left + WH_MS - 1) / WH_MS; /* rounded up: not before the deadline */
	count = epoll_wait(loop->epoll, events, BATCH, (int)left);
	if (deadline)
		atomic_store(&loop->sleeping, false);
	loop_deliver(loop, events, count);
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

/* Poll for work for as long as `earned` and `patience` allow. False: none came. */
static bool loop_stay_awake(struct wh_loop *loop)
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
	loop_deliver(loop, events, count);
	return count || atomic_load(&loop->posted);
}

/* ---- turns -------------------------------------------------------------------------------- */

/* Poll every spinner once. Spinners may be added and removed meanwhile: `mark`, a link of our own
 * in the list, keeps the position. */
static bool spinners_poll(struct wh_loop *loop)
{
	struct wh_list mark = { 0 }, *next;
	bool worked = false;

	for (next = loop->spinners.next; next != &loop->spinners; next = mark.next) {
		struct wh_spinner *spinner = wh_container(next, struct wh_spinner, link);

		wh_list_remove(&mark);
		/* Insert it behind `next`, that is, in front of the link after `next`. */
		wh_list_append(next->next, &mark);
		worked |= spinner->poll(spinner);
	}
	wh_list_remove(&mark);
	return worked;
}

static void loop_sleep(struct wh_loop *loop)
{
	struct wh_timer *timer = timer_first(loop);
	int64_t deadline = timer ? timer->at : INT64_MAX;

	/* One poll takes longer than a few bytes earn: let them add up to STAY_LEAST first. */
	if (loop->earned < STAY_LEAST || !loop_stay_awake(loop))
		loop_wait(loop, deadline > 0 ? deadline : 1); /* 0: do not wait */
	tasks_run(loop);
	timers_fire(loop);
}

/* Spin for as long as there are spinners. */
static void loop_spin(struct wh_loop *loop)
{
	int64_t worked_at = wh_now();
	unsigned turns = 0;
	bool worked = true, quiet = false;

	while (!wh_list_empty(&loop->spinners) &&
	       !atomic_load_explicit(&loop->stop, memory_order_relaxed)) {
		worked |= spinners_poll(loop);
		tasks_run(loop);
		if ((worked || !quiet) && ++turns < SPIN_TURNS)
			continue;
		turns = 0;
		loop_wait(loop, 0);
		timers_fire(loop);
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

static void *loop_main(void *argument)
{
	struct wh_loop *loop = argument;

	current_loop = loop;
	atomic_store(&loop->tid, (pid_t)syscall(SYS_gettid)); /* glibc 2.28 has no gettid() */
	while (!atomic_load(&loop->stop)) {
		if (loop->spin)
			loop_spin(loop);
		loop_sleep(loop);
	}
	/* A call posted just before the end must return, too. */
	while (atomic_load(&loop->posted))
		tasks_run(loop);
	return NULL;
}

/* ---- without a thread --------------------------------------------------------------------- */

bool wh_loop_turn(struct wh_loop *loop)
{
	const struct wh_loop *before = current_loop;
	struct epoll_event events[BATCH];
	bool worked;
	int count;

	current_loop = loop;
	atomic_store(&loop->sleeping, false);
	worked = !wh_list_empty(&loop->spinners) && spinners_poll(loop);
	count = epoll_wait(loop->epoll, events, BATCH, 0);
	worked |= count > 0 || atomic_load(&loop->posted);
	loop_deliver(loop, events, count);
	tasks_run(loop);
	worked |= timers_fire(loop);
	current_loop = before;
	return worked;
}

bool wh_loop_rest(struct wh_loop *loop)
{
	atomic_store(&loop->sleeping, true);
	return atomic_load(&loop->posted);
}

int64_t wh_loop_next_timer(const struct wh_loop *loop)
{
	const struct wh_timer *timer = timer_first(loop);

	return timer ? timer->at : INT64_MAX;
}

/* ---- start and stop ----------------------------------------------------------------------- */

int wh_loop_start(struct wh_loop *loop, const char *name, bool spin, struct wh_turns *turns)
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
	if (turns) {
		rc = wh_turns_add(turns, loop);
	} else {
		rc = wh_thread_start(&loop->thread, name, loop_main, loop);
		if (rc)
			rc = wh_fail(rc, "cannot start the thread %s: %s", name, strerror(rc));
	}
	if (rc)
		goto err_close_wake;
	loop->turns = turns;
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
	if (loop->turns) {
		wh_turns_remove(loop->turns, loop);
	} else {
		loop_wake(loop);
		pthread_join(loop->thread, NULL);
	}
	close(loop->wake);
	close(loop->epoll);
	pthread_cond_destroy(&loop->done);
	pthread_mutex_destroy(&loop->lock);
}

bool wh_loop_here(const struct wh_loop *loop)
{
	return current_loop == loop;
}

const struct wh_loop *wh_loop_current(void)
{
	return current_loop;
}
