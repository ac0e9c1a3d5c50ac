/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that runs one work after the other, for what may block and so cannot run on a loop. In
 * an engine without threads, the threads that give turns run it between these. */
#ifndef WH_CORE_WORKER_H
#define WH_CORE_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "util/list.h"
#include "util/turns.h"

struct wh_work {
	struct wh_list link;
	void (*run)(struct wh_work *work); /* may free it */
};

struct wh_worker {
	pthread_mutex_t lock; /* all below; a leaf */
	pthread_cond_t wake;
	struct wh_list due; /* struct wh_work, the oldest first */
	struct wh_turns *turns; /* NULL: it has a thread */
	struct wh_poller poller; /* says when work is due; with `turns` */
	bool busy; /* a thread runs works; with `turns` */
	pthread_t thread;
	atomic_bool started;
	bool stop;
};

void wh_worker_init(struct wh_worker *worker, struct wh_turns *turns);
/* Start the thread, once; `name` is what tools show. Any thread, but not inside a turn. 0, or a
 * negative errno with its text. */
int wh_worker_start(struct wh_worker *worker, const char *name);
/* Have the work run, on a worker that was started. Any thread; does not wait. */
void wh_worker_put(struct wh_worker *worker, struct wh_work *work);
/* Without a thread: run the works that are due now, unless another thread does. The caller holds no
 * lock and gives no turn. True: there were some. */
bool wh_worker_run(struct wh_worker *worker);
/* Would wh_worker_run() find works? */
bool wh_worker_is_due(struct wh_worker *worker);
/* As wh_worker_here(), where the thread runs. */
bool wh_worker_is_current(const struct wh_worker *worker);

/* Is the calling thread the worker's? Every submission and wait asks. */
static inline bool wh_worker_here(const struct wh_worker *worker)
{
	return atomic_load_explicit(&worker->started, memory_order_relaxed) &&
	       wh_worker_is_current(worker);
}

/* End the thread. No work is left. */
void wh_worker_close(struct wh_worker *worker);

#endif
