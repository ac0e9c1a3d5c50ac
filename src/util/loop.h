/* SPDX-License-Identifier: Apache-2.0 */
/* A progress loop: one thread that serves descriptors (epoll), tasks from other threads, timers
 * and, if it spins, functions to poll. A loop without a thread does the same in the turns that
 * other threads give it: util/turns.h. Then "the loop's thread" is whichever thread runs its turn.
 */
#ifndef WH_UTIL_LOOP_H
#define WH_UTIL_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "util/list.h"

struct wh_turns;

/* A file descriptor to watch. `ready` runs on the loop's thread. */
struct wh_source {
	int fd;
	void (*ready)(struct wh_source *source, uint32_t events);
};

/* Fires once, on the loop's thread. */
struct wh_timer {
	struct wh_list link; /* zero when not set */
	int64_t at; /* monotonic ns */
	void (*fire)(struct wh_timer *timer);
};

/* Polled in every turn of a spinning loop. `poll` returns whether it found work. */
struct wh_spinner {
	struct wh_list link;
	bool (*poll)(struct wh_spinner *spinner);
};

/* A timer goes into a list by its delay when it is set: up to 1 ms, 2 ms, 4 ms and so on, up to
 * hours. */
#define WH_TIMER_LISTS 24

struct wh_loop {
	int epoll, wake;
	struct wh_turns *turns; /* that runs it; NULL: it has a thread */
	struct wh_list turns_link; /* turns.loops */
	pthread_t thread;
	_Atomic pid_t tid; /* 0 until the thread runs, and without one */
	bool spin;
	atomic_bool stop;
	pthread_mutex_t lock; /* tasks */
	pthread_cond_t done; /* a wh_loop_call() has returned */
	struct wh_list tasks;
	struct wh_list timers[WH_TIMER_LISTS]; /* each is sorted; the loop's thread only */
	struct wh_list spinners; /* the loop's thread only */
	struct wh_source waker; /* on `wake` */
	atomic_bool posted; /* there are tasks */
	/* In epoll_wait, or about to be: only `wake` wakes it. Without a thread: between two turns.
	 */
	atomic_bool sleeping;
	/* ns that the loop may stay awake idle: in all, and at most at a time; the loop's thread
	 * only */
	int64_t earned, patience;
	/* the next event to deliver, and how many are left; the loop's thread only */
	struct epoll_event *batch;
	int batch_left;
};

/* Start the thread, named `name` (15 bytes are shown); or, with `turns`, have these run the loop.
 * 0, or a negative errno. */
int wh_loop_start(struct wh_loop *loop, const char *name, bool spin, struct wh_turns *turns);

/* End the thread and wait for it, or take the loop from its turns. Every source must have been
 * removed. */
void wh_loop_stop(struct wh_loop *loop);

/* For util/turns.c. Serve what is due, without waiting. True: there was something. */
bool wh_loop_turn(struct wh_loop *loop);
/* The loop has no turn now, so a task that is posted must wake those who wait for one. True: there
 * is something to do already. */
bool wh_loop_rest(struct wh_loop *loop);
/* When its first timer fires (monotonic ns); INT64_MAX: none is set. */
int64_t wh_loop_next_timer(const struct wh_loop *loop);

/* Does the caller run on the loop's thread? */
bool wh_loop_here(const struct wh_loop *loop);
/* The loop on whose thread the caller runs; NULL: none. */
const struct wh_loop *wh_loop_current(void);

/* Add a source, or change the events it waits for (EPOLLIN, EPOLLOUT, EPOLLONESHOT; 0: none). From
 * any thread. The source stays with the caller until wh_loop_remove(). */
int wh_loop_add(struct wh_loop *loop, struct wh_source *source, uint32_t events);
void wh_loop_modify(struct wh_loop *loop, struct wh_source *source, uint32_t events);

/* Remove a source: `ready` is not called again. On the loop's thread only. */
void wh_loop_remove(struct wh_loop *loop, struct wh_source *source);

/* Run a function on the loop's thread and wait until it returns. On the loop's own thread, call it
 * directly; so does a turn of another loop of the same turns. */
void wh_loop_call(struct wh_loop *loop, void (*function)(void *), void *argument);

/* Have the loop's thread run the task soon, once. The task belongs to the caller and must stay
 * until it has run. Posting a task that is already posted does nothing. From any thread. */
struct wh_task {
	struct wh_list link; /* zero when not posted */
	void (*run)(struct wh_task *task);
};
void wh_loop_post(struct wh_loop *loop, struct wh_task *task);
/* Take back a task that has not run, so that it can be freed. On the loop's thread only. */
void wh_loop_cancel(struct wh_loop *loop, struct wh_task *task);

/* A source or task has moved `bytes` bytes. For each byte the loop polls for a nanosecond before it
 * sleeps, and yields its CPU in between. The next bytes of a stream arrive sooner than a thread
 * wakes, and the scheduler often puts a woken thread on the CPU of the sender. If nothing arrives,
 * the loop soon polls for less. Ignored on other threads. */
void wh_loop_moved(struct wh_loop *loop, uint64_t bytes);

/* Set a timer, or set it again, to fire at `at` (monotonic ns), or stop it. On the loop's thread
 * only. The timer belongs to the caller and must stay until it has fired or is cleared. */
void wh_timer_set(struct wh_loop *loop, struct wh_timer *timer, int64_t at);
void wh_timer_clear(struct wh_timer *timer);

#endif
