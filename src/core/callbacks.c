/* SPDX-License-Identifier: Apache-2.0 */
/* Running the callbacks of batches, in the order in which the batches complete. */
#include "core/callbacks.h"

#include <stdatomic.h>
#include <string.h>

#include "core/batch.h"
#include "util/error.h"
#include "util/thread.h"

static _Thread_local const struct wh_callbacks *callbacks_current;

/* Call one of the batch's callbacks that are due. Under the lock, which it releases meanwhile. A
 * batch may complete again before that: then it goes behind the others. */
static void callbacks_run(struct wh_callbacks *callbacks, struct wh_batch *batch)
{
	int status = batch->callback_status;

	if (--batch->callback_due)
		wh_list_append(&callbacks->due, &batch->callback_link);
	pthread_mutex_unlock(&callbacks->lock);
	wh_batch_settle(batch);
	batch->callback(batch, status, batch->callback_arg);
	atomic_fetch_sub(&batch->delivering, 1); /* the batch may be gone from here on */
	pthread_mutex_lock(&callbacks->lock);
}

static void *callbacks_main(void *arg)
{
	struct wh_callbacks *callbacks = arg;
	struct wh_list *link;

	callbacks_current = callbacks;
	pthread_mutex_lock(&callbacks->lock);
	while (!callbacks->stop) {
		link = wh_list_take(&callbacks->due);
		if (link)
			callbacks_run(callbacks,
				      wh_container(link, struct wh_batch, callback_link));
		else
			pthread_cond_wait(&callbacks->wake, &callbacks->lock);
	}
	pthread_mutex_unlock(&callbacks->lock);
	return NULL;
}

void wh_callbacks_init(struct wh_callbacks *callbacks)
{
	pthread_mutex_init(&callbacks->lock, NULL);
	pthread_cond_init(&callbacks->wake, NULL);
	wh_list_init(&callbacks->due);
}

int wh_callbacks_start(struct wh_callbacks *callbacks)
{
	int error = 0;

	pthread_mutex_lock(&callbacks->lock);
	if (!atomic_load(&callbacks->started)) {
		error = wh_thread_start(&callbacks->thread, "wherry/call", callbacks_main,
					callbacks);
		atomic_store(&callbacks->started, !error);
	}
	pthread_mutex_unlock(&callbacks->lock);
	return error ? wh_fail(error, "cannot start the thread for callbacks: %s",
			       strerror(error)) :
		       0;
}

void wh_callbacks_put(struct wh_callbacks *callbacks, struct wh_batch *batch, int status)
{
	pthread_mutex_lock(&callbacks->lock);
	batch->callback_status = status;
	if (!batch->callback_due++)
		wh_list_append(&callbacks->due, &batch->callback_link);
	/* Under the lock: the engine may close once the callback has run. */
	pthread_cond_signal(&callbacks->wake);
	pthread_mutex_unlock(&callbacks->lock);
}

bool wh_callbacks_thread(const struct wh_callbacks *callbacks)
{
	return callbacks_current == callbacks;
}

void wh_callbacks_close(struct wh_callbacks *callbacks)
{
	pthread_mutex_lock(&callbacks->lock);
	callbacks->stop = true;
	pthread_cond_signal(&callbacks->wake);
	pthread_mutex_unlock(&callbacks->lock);
	if (atomic_load(&callbacks->started))
		pthread_join(callbacks->thread, NULL);
	pthread_cond_destroy(&callbacks->wake);
	pthread_mutex_destroy(&callbacks->lock);
}
