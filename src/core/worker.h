/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for work that may wait for loop 0, and so cannot run on it: planning batches whose
 * regions the peer has just told. */
#ifndef WH_CORE_WORKER_H
#define WH_CORE_WORKER_H

#include <pthread.h>
#include <stdbool.h>

#include "util/list.h"

struct wh_work {
	struct wh_list link;
	void (*run)(struct wh_work *work); /* may free it */
};

struct wh_worker {
	pthread_mutex_t lock; /* all below; a leaf */
	pthread_cond_t wake;
	struct wh_list due; /* struct wh_work, the oldest first */
	pthread_t thread;
	bool started, stop;
};

void wh_worker_init(struct wh_worker *worker);
/* Start the thread, once. Any thread. 0, or a negative errno with its text. */
int wh_worker_start(struct wh_worker *worker);
/* Have the work run, on a worker that was started. Any thread; does not wait. */
void wh_worker_put(struct wh_worker *worker, struct wh_work *work);
/* End the thread. No work is left. */
void wh_worker_close(struct wh_worker *worker);

#endif
