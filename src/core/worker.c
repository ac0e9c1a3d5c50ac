/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that runs one work after the other, in the order in which it was put. */
#include "core/worker.h"

#include <string.h>

#include "util/error.h"
#include "util/thread.h"

static _Thread_local const struct wh_worker *worker_current;

static void *worker_main(void *argument)
{
	struct wh_worker *worker = argument;
	struct wh_list *link;
	struct wh_work *work;

	worker_current = worker;
	pthread_mutex_lock(&worker->lock);
	while (!worker->stop) {
		link = wh_list_take(&worker->due);
		if (!link) {
			pthread_cond_wait(&worker->wake, &worker->lock);
			continue;
		}
		pthread_mutex_unlock(&worker->lock);
		work = wh_container(link, struct wh_work, link);
		work->run(work);
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

int wh_worker_start(struct wh_worker *worker, const char *name)
{
	int error = 0;

	pthread_mutex_lock(&worker->lock);
	if (!atomic_load(&worker->started)) {
		error = wh_thread_start(&worker->thread, name, worker_main, worker);
		atomic_store(&worker->started, !error);
	}
	pthread_mutex_unlock(&worker->lock);
	return error ? wh_fail(error, "cannot start the thread %s: %s", name, strerror(error)) : 0;
}

void wh_worker_put(struct wh_worker *worker, struct wh_work *work)
{
	pthread_mutex_lock(&worker->lock);
	wh_list_append(&worker->due, &work->link);
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
}

bool wh_worker_is_current(const struct wh_worker *worker)
{
	return worker_current == worker;
}

void wh_worker_close(struct wh_worker *worker)
{
	pthread_mutex_lock(&worker->lock);
	worker->stop = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
	if (atomic_load(&worker->started))
		pthread_join(worker->thread, NULL);
	pthread_cond_destroy(&worker->wake);
	pthread_mutex_destroy(&worker->lock);
}
