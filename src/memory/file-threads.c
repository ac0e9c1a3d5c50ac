/* SPDX-License-Identifier: Apache-2.0 */
/* memory/file-threads.c: the threads that may wait for a file system, so that nobody else has to */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "memory/file.h"
#include "util/error.h"
#include "util/thread.h"

/* ---- one file system ------------------------------------------------------------------------- */

/* Take the next job. Under the lock. */
static struct wh_file_job *system_take(struct wh_file_system *system)
{
	struct wh_list *link = wh_list_take(&system->urgent);

	if (!link)
		link = wh_list_take(&system->jobs);
	if (!link)
		return NULL;
	system->queued--;
	return wh_container(link, struct wh_file_job, link);
}

/* Run a job in a turn. False: there is none. */
static bool system_turn(struct wh_file_system *system)
{
	struct wh_file_job *job;

	pthread_mutex_lock(&system->lock);
	job = system_take(system);
	pthread_mutex_unlock(&system->lock);
	if (job)
		job->run(job);
	return job;
}

static void *system_main(void *argument)
{
	struct wh_file_system *system = argument;
	struct wh_file_job *job;

	pthread_mutex_lock(&system->lock);
	for (;;) {
		job = system_take(system);
		if (!job && system->stop)
			break;
		if (!job) {
			system->idle++;
			pthread_cond_wait(&system->work, &system->lock);
			system->idle--;
			continue;
		}
		pthread_mutex_unlock(&system->lock);
		job->run(job);
		pthread_mutex_lock(&system->lock);
	}
	system->ended++;
	pthread_cond_broadcast(&system->work);
	pthread_mutex_unlock(&system->lock);
	return NULL;
}

static struct wh_file_system *system_new(struct wh_file_threads *threads, uint64_t device)
{
	struct wh_file_system *system = calloc(1, sizeof(*system));
	pthread_condattr_t clock;

	if (system)
		system->thread = calloc(threads->most, sizeof(system->thread[0]));
	if (!system || !system->thread) {
		free(system);
		return NULL;
	}
	system->threads = threads;
	system->device = device;
	pthread_mutex_init(&system->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&system->work, &clock);
	pthread_condattr_destroy(&clock);
	wh_list_init(&system->urgent);
	wh_list_init(&system->jobs);
	return system;
}

/* Have the threads end. False: some have not at the deadline. */
static bool system_end(struct wh_file_system *system, int64_t deadline)
{
	bool ended;

	while (system->threads->turns && system_turn(system))
		;
	pthread_mutex_lock(&system->lock);
	system->stop = true;
	pthread_cond_broadcast(&system->work);
	while (system->ended < system->count &&
	       !wh_turns_cond_wait(NULL, &system->work, &system->lock, deadline))
		;
	ended = system->ended == system->count;
	pthread_mutex_unlock(&system->lock);
	return ended;
}

static void system_free(struct wh_file_system *system)
{
	for (unsigned i = 0; i < system->count; i++)
		pthread_join(system->thread[i], NULL);
	pthread_cond_destroy(&system->work);
	pthread_mutex_destroy(&system->lock);
	free(system->thread);
	free(system);
}

bool wh_file_job_queue(struct wh_file_job *job, bool first)
{
	struct wh_file_system *system = job->system;
	/* Once it is queued the job may run, and the engine may be closed. */
	struct wh_turns *turns = system->threads->turns;
	struct wh_list *list = job->urgent ? &system->urgent : &system->jobs;
	bool taken;

	pthread_mutex_lock(&system->lock);
	/* Idle threads may have been woken for what is queued already. */
	if (!turns && !system->stop && system->queued >= system->idle &&
	    system->count < system->threads->most &&
	    !wh_thread_start(&system->thread[system->count], "wherry/file", system_main, system))
		system->count++;
	/* A job of several file systems may come here after the threads of this one have ended. */
	taken = turns || system->count > system->ended;
	if (taken) {
		if (first)
			wh_list_push(list, &job->link);
		else
			wh_list_append(list, &job->link);
		system->queued++;
	}
	if (system->idle)
		pthread_cond_signal(&system->work);
	pthread_mutex_unlock(&system->lock);
	if (taken)
		wh_turns_ready(turns);
	return taken;
}

void wh_file_system_run(struct wh_file_system *system, struct wh_file_job *job)
{
	job->system = system;
	if (!wh_file_job_queue(job, false))
		job->run(job);
}

bool wh_file_job_take_back(struct wh_file_job *job)
{
	struct wh_file_system *system = job->system;
	bool queued;

	pthread_mutex_lock(&system->lock);
	queued = job->link.next;
	if (queued) {
		wh_list_remove(&job->link);
		system->queued--;
	}
	pthread_mutex_unlock(&system->lock);
	return queued;
}

void wh_file_system_add(struct wh_file_system **system, const struct wh_file *file)
{
	if (!file || *system == file->system)
		return;
	*system = *system ? file->system->threads->several : file->system;
}

/* ---- all of an engine ------------------------------------------------------------------------ */

static bool threads_poll(struct wh_poller *poller)
{
	struct wh_file_threads *threads = wh_container(poller, struct wh_file_threads, poller);
	struct wh_file_system *system = atomic_load(&threads->systems);
	bool found = false;

	for (; system; system = system->next)
		found |= system_turn(system);
	return found;
}

static int64_t threads_next(struct wh_poller *poller)
{
	struct wh_file_threads *threads = wh_container(poller, struct wh_file_threads, poller);
	struct wh_file_system *system = atomic_load(&threads->systems);
	bool busy = false;

	for (; system && !busy; system = system->next) {
		pthread_mutex_lock(&system->lock);
		busy = system->queued;
		pthread_mutex_unlock(&system->lock);
	}
	return busy ? 0 : INT64_MAX;
}

int wh_file_threads_open(unsigned most, struct wh_turns *turns, struct wh_file_threads **out)
{
	struct wh_file_threads *threads = calloc(1, sizeof(*threads));

	if (threads) {
		threads->most = most;
		threads->turns = turns;
		threads->several = system_new(threads, UINT64_MAX);
	}
	if (!threads || !threads->several) {
		free(threads);
		return wh_fail(ENOMEM, "no memory for the threads that read files");
	}
	threads->poller = (struct wh_poller){ .poll = threads_poll, .next = threads_next };
	pthread_mutex_init(&threads->lock, NULL);
	atomic_init(&threads->systems, threads->several);
	if (turns)
		wh_turns_add_poller(turns, &threads->poller);
	*out = threads;
	return 0;
}

bool wh_file_threads_end(struct wh_file_threads *threads, int64_t deadline)
{
	struct wh_file_system *system = threads ? atomic_load(&threads->systems) : NULL;
	bool ended = true;

	for (; system; system = system->next)
		ended &= system_end(system, deadline);
	return ended;
}

void wh_file_threads_close(struct wh_file_threads *threads)
{
	struct wh_file_system *system, *next;

	if (!threads)
		return;
	wh_file_threads_end(threads, INT64_MAX);
	if (threads->turns)
		wh_turns_remove_poller(threads->turns, &threads->poller);
	for (system = atomic_load(&threads->systems); system; system = next) {
		next = system->next;
		system_free(system);
	}
	pthread_mutex_destroy(&threads->lock);
	free(threads);
}

int wh_file_threads_system(struct wh_file_threads *threads, uint64_t device,
			   struct wh_file_system **out)
{
	struct wh_file_system *system;

	pthread_mutex_lock(&threads->lock);
	system = atomic_load(&threads->systems);
	while (system && (system->device != device || system == threads->several))
		system = system->next;
	if (!system) {
		system = system_new(threads, device);
		if (system) {
			system->next = atomic_load(&threads->systems);
			atomic_store(&threads->systems, system);
		}
	}
	pthread_mutex_unlock(&threads->lock);
	if (!system)
		return wh_fail(ENOMEM, "no memory for the threads that read files");
	*out = system;
	return 0;
}
