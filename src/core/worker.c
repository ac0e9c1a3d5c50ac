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

bool wh_worker_run(struct wh_worker *worker)
{
	const struct wh_worker *before = worker_current;
	struct wh_list due, *link;
	bool any = false;

	if (!worker->turns || !atomic_load_explicit(&worker->started, memory_order_relaxed))
		return false;
	wh_list_init(&due);
	pthread_mutex_lock(&worker->lock);
	/* Works that these put wait for the next time, so that the caller gives turns in between.
	 */
	while (!worker->busy && (link = wh_list_take(&worker->due)))
		wh_list_append(&due, link);
	any = !wh_list_empty(&due);
	worker->busy |= any;
	worker_current = any ? worker : before;
	wh_fail_begin(); /* the caller's own call may succeed */
	while ((link = wh_list_take(&due))) {
		struct wh_work *work = wh_container(link, struct wh_work, link);

		pthread_mutex_unlock(&worker->lock);
		work->run(work);
		pthread_mutex_lock(&worker->lock);
	}
	wh_fail_end(0);
	worker_current = before;
	if (any)
		worker->busy = false;
	pthread_mutex_unlock(&worker->lock);
	return any;
}

/* A turn does not run works: they may wait. */
static bool worker_poll(struct wh_poller *poller)
{
	(void)poller;
	return false;
}

bool wh_worker_is_due(struct wh_worker *worker)
{
	bool due;

	if (!atomic_load_explicit(&worker->started, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&worker->lock);
	due = !worker->busy && !wh_list_empty(&worker->due);
	pthread_mutex_unlock(&worker->lock);
	return due;
}

static int64_t worker_next(struct wh_poller *poller)
{
	return wh_worker_is_due(wh_container(poller, struct wh_worker, poller)) ? 0 : INT64_MAX;
}

void wh_worker_init(struct wh_worker *worker, struct wh_turns *turns)
{
	worker->turns = turns;
	worker->poller =
		(struct wh_poller){ .poll = worker_poll, .next = worker_next, .between = true };
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->wake, NULL);
	wh_list_init(&worker->due);
}

int wh_worker_start(struct wh_worker *worker, const char *name)
{
	int error = 0;

	bool first;

	pthread_mutex_lock(&worker->lock);
	first = !atomic_load(&worker->started);
	if (first && !worker->turns)
		error = wh_thread_start(&worker->thread, name, worker_main, worker);
	if (first)
		atomic_store(&worker->started, !error);
	pthread_mutex_unlock(&worker->lock);
	if (first && worker->turns)
		wh_turns_add_poller(worker->turns, &worker->poller);
	return error ? wh_fail(error, "cannot start the thread %s: %s", name, strerror(error)) : 0;
}

void wh_worker_put(struct wh_worker *worker, struct wh_work *work)
{
	pthread_mutex_lock(&worker->lock);
	wh_list_append(&worker->due, &work->link);
	/* Under the lock: the engine may close once the work has run. */
	pthread_cond_signal(&worker->wake);
	wh_turns_ready(worker->turns);
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
	if (atomic_load(&worker->started) && worker->turns)
		wh_turns_remove_poller(worker->turns, &worker->poller);
	else if (atomic_load(&worker->started))
		pthread_join(worker->thread, NULL);
	pthread_cond_destroy(&worker->wake);
	pthread_mutex_destroy(&worker->lock);
}
