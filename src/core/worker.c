/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that runs one work after the other. */
#include "core/worker.h"

#include <string.h>

#include "util/error.h"
#include "util/thread.h"

static void *worker_main(void *argument)
{
	struct wh_worker *worker = argument;
	struct wh_list *link;

	pthread_mutex_lock(&worker->lock);
	while (!worker->stop) {
		link = wh_list_take(&worker->due);
		if (!link) {
			pthread_cond_wait(&worker->wake, &worker->lock);
			continue;
		}
		pthread_mutex_unlock(&worker->lock);
		wh_container(link, struct wh_work, link)
			->run(wh_container(link, struct wh_work, link));
		pthread_mutex_lock(&worker->lock);
	}
	pthread_mutex_unlock(&worker->lock);
	return NULL;
}

void wh_worker_init(struct wh_worker *worker)
{
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->wake, NULL);
	wh_list_init(&worker->due);
}

int wh_worker_start(struct wh_worker *worker)
{
	int error = 0;

	pthread_mutex_lock(&worker->lock);
	if (!worker->started) {
		error = wh_thread_start(&worker->thread, "wherry/plan", worker_main, worker);
		worker->started = !error;
	}
	pthread_mutex_unlock(&worker->lock);
	return error ? wh_fail(error, "cannot start the thread that plans batches: %s",
			       strerror(error)) :
		       0;
}

void wh_worker_put(struct wh_worker *worker, struct wh_work *work)
{
	pthread_mutex_lock(&worker->lock);
	wh_list_append(&worker->due, &work->link);
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
}

void wh_worker_close(struct wh_worker *worker)
{
	bool started;

	pthread_mutex_lock(&worker->lock);
	worker->stop = true;
	started = worker->started;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
	if (started)
		pthread_join(worker->thread, NULL);
	pthread_cond_destroy(&worker->wake);
	pthread_mutex_destroy(&worker->lock);
}
