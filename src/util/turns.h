/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress loops without threads of their own. Threads that call in run them, one thread at a time:
 * a turn serves every loop and every poller once. A thread that has to wait for something gives
 * turns until it has come, so whoever waits also works.
 *
 * Nobody waits inside a turn. Locks that a turn takes must not be held by a thread that gives one.
 */
#ifndef WH_UTIL_TURNS_H
#define WH_UTIL_TURNS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

struct wh_loop;

/* Work that raises no event: copies by the CPU, jobs of a GPU. */
struct wh_poller {
	struct wh_list link; /* zero when not added */
	/* Do some of what is due, without waiting. True: there was something. */
	bool (*poll)(struct wh_poller *poller);
	/* In how many ns to poll again: 0, at once; INT64_MAX, when wh_turns_ready() is called. */
	int64_t (*next)(struct wh_poller *poller);
	/* poll() does nothing: what is due is done between turns, by threads that can do it. Others
	 * sleep meanwhile, unless one of these waits for their turn to end: wh_turns_take(). */
	bool between;
};

struct wh_turns {
	pthread_mutex_t lock;
	pthread_cond_t ended; /* a turn has ended, or wh_turns_wake() was called */
	bool running; /* a thread gives a turn; under lock */
	_Atomic uint64_t count; /* of turns that have ended, and of wakes */
	_Atomic unsigned sleepers; /* threads inside wh_turns_run() */
	_Atomic unsigned takers; /* of them, those that do what is due between turns */
	/* No thread looks at the loops and pollers now: whoever has work for them writes `wake`. */
	atomic_bool resting;
	atomic_bool written; /* `wake` is readable */
	int epoll; /* the loops' descriptors, `wake` and `timer` */
	int wake, timer;
	_Atomic bool watched; /* wh_turns_fd() was called, so `timer` is kept set */
	int64_t armed; /* what `timer` is set to; INT64_MAX: nothing; inside a turn, as the next */
	struct wh_list loops; /* struct wh_loop.turns_link */
	struct wh_list pollers;
};

/* 0, -EMFILE or -ENOMEM. */
int wh_turns_open(struct wh_turns **out);
/* No loop and no poller is left. NULL is ignored. */
void wh_turns_close(struct wh_turns *turns);

/* For wh_loop_start() and wh_loop_stop(). Not inside a turn. */
int wh_turns_add(struct wh_turns *turns, struct wh_loop *loop);
void wh_turns_remove(struct wh_turns *turns, struct wh_loop *loop);
/* The poller stays with the caller until it is removed. Not inside a turn. */
void wh_turns_add_poller(struct wh_turns *turns, struct wh_poller *poller);
void wh_turns_remove_poller(struct wh_turns *turns, struct wh_poller *poller);

/* Does the calling thread give a turn? */
bool wh_turns_here(const struct wh_turns *turns);

/* A number that changes when a turn ends and when wh_turns_wake() is called. Take it before looking
 * whether what one waits for has come. */
static inline uint64_t wh_turns_seen(const struct wh_turns *turns)
{
	return atomic_load(&turns->count);
}

/* Give a turn. If there was nothing to do, sleep until there is, or until `deadline` (monotonic ns;
 * 0: do not sleep), and give another one. While another thread gives turns, sleep until one of
 * these has ended. Returns at once if the number is not `seen` any more. Not inside a turn. True:
 * this thread found something to do. */
bool wh_turns_run(struct wh_turns *turns, uint64_t seen, int64_t deadline);

/* This thread (1), or no longer (-1), does what is due between turns. Afterwards it looks whether
 * something is due, and if so gives a turn without sleeping. */
void wh_turns_take(struct wh_turns *turns, int more);

/* Give turns until `done` is true. False: `deadline` came first. Without turns (NULL) see the next
 * function. */
bool wh_turns_wait(struct wh_turns *turns, bool (*done)(void *argument), void *argument,
		   int64_t deadline);

/* Wait for a condition variable, whose clock is the monotonic one, until `deadline` (INT64_MAX:
 * none). With turns, give one instead, without the lock. Returns early now and then. 0 or
 * ETIMEDOUT. `turns` may be NULL. */
int wh_turns_cond_wait(struct wh_turns *turns, pthread_cond_t *cond, pthread_mutex_t *lock,
		       int64_t deadline);

/* Sleep for `pause` ns; with turns, give one that lasts no longer. `turns` may be NULL. */
void wh_turns_pause(struct wh_turns *turns, int64_t pause);

/* Something has changed outside a turn: threads in wh_turns_run() look again. NULL is ignored. */
void wh_turns_wake(struct wh_turns *turns);
/* A poller has work. NULL is ignored. */
void wh_turns_ready(struct wh_turns *turns);

/* A descriptor that is readable when a turn would have something to do. */
int wh_turns_fd(struct wh_turns *turns);

#endif
