/* SPDX-License-Identifier: Apache-2.0 */
/* memory/file-threads.c: the threads that may wait for a disk, so that nobody else has to */
#include <errno.h>
#include <stdlib.h>

#include "memory/file.h"
#include "util/error.h"
#include "util/thread.h"

/* Take the next job. Under the lock. */
static struct wh_file_job *threads_take(struct wh_file_threads *threads)
{
	struct wh_list *link = wh_list_take(&threads->jobs);

	if (!link)
		return NULL;
	threads->queued--;
	return wh_container(link, struct wh_file_job, link);
}

static bool threads_poll(struct wh_poller *poller)
{
	struct wh_file_threads *threads = wh_container(poller, struct wh_file_threads, poller);
	struct wh_file_job *job;

	pthread_mutex_lock(&threads->lock);
	job = threads_take(threads);
	pthread_mutex_unlock(&threads->lock);
	if (job)
		job->run(job);
	return job;
}

bool wh_file_threads_poll(struct wh_file_threads *threads)
{
	return threads && threads->turns && threads_poll(&threads->poller);
}

static int64_t threads_next(struct wh_poller *poller)
{
	struct wh_file_threads *threads = wh_container(poller, struct wh_file_threads, poller);
	bool busy;

	pthread_mutex_lock(&threads->lock);
	busy = !wh_list_empty(&threads->jobs);
	pthread_mutex_unlock(&threads->lock);
	return busy ? 0 : INT64_MAX;
}

static void *threads_main(void *argument)
{
	struct wh_file_threads *threads = argument;
	struct wh_file_job *job;

	pthread_mutex_lock(&threads->lock);
	for (;;) {
		job = threads_take(threads);
		if (!job && threads->stop)
			break;
		if (!job) {
			threads->idle++;
			pthread_cond_wait(&threads->work, &threads->lock);
			threads->idle--;
			continue;
		}
		pthread_mutex_unlock(&threads->lock);
		job->run(job);
		pthread_mutex_lock(&threads->lock);
	}
	pthread_mutex_unlock(&threads->lock);
	return NULL;
}

int wh_file_threads_open(unsigned most, struct wh_turns *turns, struct wh_file_threads **out)
{
	struct wh_file_threads *threads = calloc(1, sizeof(*threads));

	if (threads)
		threads->thread = calloc(most, sizeof(threads->thread[0]));
	if (!threads || !threads->thread) {
		free(threads);
		return wh_fail(ENOMEM, "no memory for the threads that read files");
	}
	threads->most = most;
	threads->turns = turns;
	threads->poller = (struct wh_poller){ .poll = threads_poll, .next = threads_next };
	pthread_mutex_init(&threads->lock, NULL);
	pthread_cond_init(&threads->work, NULL);
	wh_list_init(&threads->jobs);
	if (turns)
		wh_turns_add_poller(turns, &threads->poller);
	*out = threads;
	return 0;
}

void wh_file_threads_close(struct wh_file_threads *threads)
{
	if (!threads)
		return;
	if (threads->turns)
		wh_turns_remove_poller(threads->turns, &threads->poller);
	while (threads->turns && threads_poll(&threads->poller))
		;
	pthread_mutex_lock(&threads->lock);
	threads->stop = true;
	pthread_cond_broadcast(&threads->work);
	pthread_mutex_unlock(&threads->lock);
	for (unsigned i = 0; i < threads->count; i++)
		pthread_join(threads->thread[i], NULL);
	pthread_cond_destroy(&threads->work);
	pthread_mutex_destroy(&threads->lock);
	free(threads->thread);
	free(threads);
}

void wh_file_threads_run(struct wh_file_threads *threads, struct wh_file_job *job)
{
	/* Once it is queued the job may run, and the engine may be closed. */
	struct wh_turns *turns = threads->turns;
	bool alone;

	pthread_mutex_lock(&threads->lock);
	/* Idle threads may have been woken for what is queued already. */
	if (!threads->turns && threads->queued >= threads->idle && threads->count < threads->most &&
	    !wh_thread_start(&threads->thread[threads->count], "wherry/file", threads_main,
			     threads))
		threads->count++;
	alone = !threads->turns && !threads->count;
	if (!alone) {
		wh_list_append(&threads->jobs, &job->link);
		threads->queued++;
	}
	if (threads->idle)
		pthread_cond_signal(&threads->work);
	pthread_mutex_unlock(&threads->lock);
	if (alone)
		job->run(job);
	else
		wh_turns_ready(turns);
}
