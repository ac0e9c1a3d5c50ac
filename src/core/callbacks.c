/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running the callbacks of batches, in the order in which the batches complete.
 *
 * A batch has room for one callback that is due. If it is submitted again before that has begun,
 * the submission allocates another one: completing must not fail.
 */
#include "core/callbacks.h"

#include <errno.h>
#include <stdlib.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "util/error.h"

static void callbacks_run(struct wh_work *work)
{
	struct wh_callback *callback = wh_container(work, struct wh_callback, work);
	struct wh_batch *batch = callback->batch;
	int status = callback->status;

	if (callback == &batch->callback_own)
		atomic_store_explicit(&callback->due, false, memory_order_release);
	else
		free(callback);
	wh_batch_settle(batch);
	wh_batch_is_seen(batch);
	batch->callback(batch, status, batch->callback_arg);
	atomic_fetch_sub(&batch->delivering, 1); /* the batch may be gone from here on */
}

int wh_callbacks_start(struct wh_worker *callbacks)
{
	return wh_worker_start(callbacks, "wherry/call");
}

int wh_callbacks_reserve(struct wh_batch *batch)
{
	if (batch->callback_next) /* of a submission that failed */
		return 0;
	if (atomic_load_explicit(&batch->callback_own.due, memory_order_acquire))
		batch->callback_next = malloc(sizeof(*batch->callback_next));
	else
		batch->callback_next = &batch->callback_own;
	return batch->callback_next ? 0 : wh_fail(ENOMEM, "wh_batch_submit: no memory");
}

void wh_callbacks_put(struct wh_worker *callbacks, struct wh_batch *batch, int status)
{
	struct wh_callback *callback = batch->callback_next;

	batch->callback_next = NULL;
	callback->work.run = callbacks_run;
	callback->batch = batch;
	callback->status = status;
	atomic_store_explicit(&callback->due, true, memory_order_relaxed);
	wh_worker_put(callbacks, &callback->work);
}

void wh_callbacks_drop(struct wh_batch *batch)
{
	if (batch->callback_next != &batch->callback_own)
		free(batch->callback_next);
}
