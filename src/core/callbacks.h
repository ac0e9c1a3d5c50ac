/* SPDX-License-Identifier: Apache-2.0 */
/* The callbacks of an engine's batches, on a thread of their own: one that takes long delays other
 * callbacks, but no heartbeat, no peer and no other batch. */
#ifndef WH_CORE_CALLBACKS_H
#define WH_CORE_CALLBACKS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "core/worker.h"

struct wh_batch;

/* A callback for one submission of a batch. */
struct wh_callback {
	struct wh_work work; /* for engine.callbacks */
	struct wh_batch *batch;
	int status;
	_Atomic bool due; /* put, and not yet begun */
};

/* Start the thread, once: when the first batch with a callback is made. Any thread. 0, or a
 * negative errno with its text. */
int wh_callbacks_start(struct wh_worker *callbacks);
/* Before a submission: make sure that wh_callbacks_put() needs no memory. 0, or -ENOMEM with its
 * text. */
int wh_callbacks_reserve(struct wh_batch *batch);
/* A submission of the batch has ended: have its callback called with `status`, in the order in
 * which batches complete. Any thread. */
void wh_callbacks_put(struct wh_worker *callbacks, struct wh_batch *batch, int status);
/* The batch is about to be freed, and none of its callbacks is due. */
void wh_callbacks_drop(struct wh_batch *batch);

#endif
