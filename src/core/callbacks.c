/* SPDX-License-Identifier: Apache-2.0 */
/* Running the callbacks of batches, in the order in which the batches complete. */
#include "core/callbacks.h"

#include <stdatomic.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"

/* Call one of the batch's callbacks that are due. A batch may complete again before that: then it
 * goes behind the others. */
static void callbacks_run(struct wh_work *work)
{
	struct wh_batch *batch = wh_container(work, struct wh_batch, callback_work);
	struct wh_worker *callbacks = &batch->peer->engine->callbacks;
	int status;

	pthread_mutex_lock(&callbacks->lock);
	status = batch->callback_status;
	if (--batch->callback_due)
		wh_list_append(&callbacks->due, &work->link);
	pthread_mutex_unlock(&callbacks->lock);
	wh_batch_settle(batch);
	wh_batch_is_seen(batch);
	batch->callback(batch, status, batch->callback_arg);
	atomic_fetch_sub(&batch->delivering, 1); /* the batch may be gone from here on */
}

int wh_callbacks_start(struct wh_worker *callbacks)
{
	return wh_worker_start(callbacks, "wherry/call");
}

void wh_callbacks_put(struct wh_worker *callbacks, struct wh_batch *batch, int status)
{
	pthread_mutex_lock(&callbacks->lock);
	batch->callback_status = status;
	batch->callback_work.run = callbacks_run;
	if (!batch->callback_due++)
		wh_list_append(&callbacks->due, &batch->callback_work.link);
	/* Under the lock: the engine may close once the callback has run. */
	wh_worker_signal(callbacks);
	pthread_mutex_unlock(&callbacks->lock);
}
