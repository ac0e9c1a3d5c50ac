/* SPDX-License-Identifier: Apache-2.0 */
/* The callbacks of an engine's batches, on a thread of their own: one that takes long delays other
 * callbacks, but no heartbeat, no peer and no other batch. */
#ifndef WH_CORE_CALLBACKS_H
#define WH_CORE_CALLBACKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "util/list.h"

struct wh_batch;

struct wh_callbacks {
	pthread_mutex_t lock; /* all below; a leaf */
	pthread_cond_t wake;
	struct wh_list due; /* batches, the one that completed first in front */
	pthread_t thread;
	atomic_bool started;
	bool stop;
};

void wh_callbacks_init(struct wh_callbacks *callbacks);
/* Start the thread, once: when the first batch with a callback is made. Any thread. 0, or a
 * negative errno with its text. */
int wh_callbacks_start(struct wh_callbacks *callbacks);
/* A submission of the batch has ended: have its callback called with `status`. Any thread. */
void wh_callbacks_put(struct wh_callbacks *callbacks, struct wh_batch *batch, int status);
/* As wh_callbacks_here(), where the thread runs. */
bool wh_callbacks_thread(const struct wh_callbacks *callbacks);

/* Is the calling thread the one that runs these callbacks? Every submission and wait asks. */
static inline bool wh_callbacks_here(const struct wh_callbacks *callbacks)
{
	return atomic_load_explicit(&callbacks->started, memory_order_relaxed) &&
	       wh_callbacks_thread(callbacks);
}

/* End the thread. No batch with a callback is left. */
void wh_callbacks_close(struct wh_callbacks *callbacks);

#endif
