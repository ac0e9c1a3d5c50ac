/* SPDX-License-Identifier: Apache-2.0 */
/* A progress thread: an epoll set, tasks handed to it, timers. */
#ifndef WH_UTIL_LOOP_H
#define WH_UTIL_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "util/list.h"

/* Something with a file descriptor. `ready` runs on the loop's thread. */
struct wh_source {
	int fd;
	void (*ready)(struct wh_source *source, uint32_t events);
};

/* Something to do later, once; on the loop's thread. */
struct wh_timer {
	struct wh_list link;
	int64_t at;
	void (*fire)(struct wh_timer *timer);
};

/* Something polled in every turn of a spinning loop. `poll` says whether it found work. */
struct wh_spinner {
	struct wh_list link;
	bool (*poll)(struct wh_spinner *spinner);
};

/* Timers are kept by how far away they are when they are set: up to 1 ms, 2 ms, 4 ms and so on to
 * hours. */
#define WH_TIMER_LISTS 24

struct wh_loop {
	int epoll, wake;
	pthread_t thread;
	_Atomic pid_t tid; /* 0 until the thread runs */
	bool spin;
	atomic_bool stop;
	pthread_mutex_t lock; /* tasks */
	pthread_cond_t done;
	struct wh_list tasks;
	struct wh_list timers[WH_TIMER_LISTS]; /* each is sorted; the loop's thread only */
	struct wh_list spinners; /* the loop's thread only */
	struct wh_source waker;
	atomic_bool posted; /* there are tasks */
	atomic_bool sleeping; /* in epoll_wait, or about to be: it must be woken by `wake` */
	/* ns: awake with nothing to do, and the most at a time; the loop's thread only */
	int64_t earned, patience;
	/* being delivered, `batch_left` of them; the loop's thread only */
	struct epoll_event *batch;
	int batch_left;
};

int wh_loop_start(struct wh_loop *loop, const char *name, bool spin);

/* Ends the thread. Every source must be gone. */
void wh_loop_stop(struct wh_loop *loop);

/* Is this the loop's own thread? */
bool wh_loop_here(const struct wh_loop *loop);
/* The loop whose thread this is; NULL: none's. */
const struct wh_loop *wh_loop_current(void);

/* Add a source, or change what it waits for (EPOLLIN, EPOLLOUT, EPOLLONESHOT; 0: nothing). From
 * any thread. */
int wh_loop_add(struct wh_loop *loop, struct wh_source *source, uint32_t events);
void wh_loop_modify(struct wh_loop *loop, struct wh_source *source, uint32_t events);

/* Take a source out. On the loop's own thread only, after which `ready` is not called again. */
void wh_loop_remove(struct wh_loop *loop, struct wh_source *source);

/* Run a function on the loop's thread and wait until it has returned; at once if this is it. */
void wh_loop_call(struct wh_loop *loop, void (*function)(void *), void *argument);

/* Wake the loop's thread: it runs `function` soon. The task belongs to the caller and must stay
 * until it has run. From any thread; a task already handed in is not handed in twice. */
struct wh_task {
	struct wh_list link; /* zero when not handed in */
	void (*run)(struct wh_task *task);
};
void wh_loop_post(struct wh_loop *loop, struct wh_task *task);
/* Take a task back that has not run yet, so that it can be freed. On the loop's own thread only. */
void wh_loop_cancel(struct wh_loop *loop, struct wh_task *task);

/* So many bytes have been moved by what the loop runs; ignored on other threads. For each of them
 * the loop does not sleep for a nanosecond, but looks again and again, and lets others have its CPU
 * in between: the next bytes of a stream come sooner than a thread is woken, and one that is woken
 * is often put on the CPU of who sends them. Where they come later it soon has no patience. */
void wh_loop_moved(struct wh_loop *loop, uint64_t bytes);

/* On the loop's thread only. */
void wh_timer_set(struct wh_loop *loop, struct wh_timer *timer, int64_t at);
void wh_timer_clear(struct wh_timer *timer);

#endif
