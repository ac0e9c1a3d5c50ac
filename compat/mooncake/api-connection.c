/* SPDX-License-Identifier: Apache-2.0 */
/* A link's threads: each moves bytes by Mooncake's TCP over its own connection, and sends
 * notifications. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "compat/mooncake/api.h"

#define SMALL (128u << 10) /* bytes; requests up to this size are sent together */

/* ---- one request --------------------------------------------------------------------------- */

/* Is the range within the segment, as last fetched? */
static bool link_publishes(struct te_link *link, uint64_t address, uint64_t length)
{
	bool found;

	pthread_mutex_lock(&link->engine->lock);
	found = wh_mooncake_segment_find(&link->segment, address, length);
	pthread_mutex_unlock(&link->engine->lock);
	return found;
}

/* Prepare a connection to the current address of the segment. */
static int worker_connect(struct te_worker *worker)
{
	struct te_link *link = worker->link;
	int error;

	/* Under the lock, because te_link_stop() aborts the workers' connections. */
	pthread_mutex_lock(&link->engine->lock);
	wh_mooncake_connection_close(&worker->connection);
	error = link->stop ? wh_fail(ECANCELED, "%.100s: given up", link->name) :
			     wh_mooncake_connection_prepare(&worker->connection, &link->segment,
							    link->host, link->engine->timeout);
	pthread_mutex_unlock(&link->engine->lock);
	return error;
}

/* GPU memory moves through the staging memory, TE_STAGING bytes at a time. */
static int worker_move_staged(struct te_worker *worker, const struct te_request *request)
{
	struct wh_region *region = request->memory->region;
	struct wh_mooncake_staging *staging = &worker->staging;
	uint64_t offset = request->local - request->memory->address;
	int error = 0;

	if (!staging->memory)
		error = wh_mooncake_staging_open(worker->link->engine->wherry, TE_STAGING, staging);
	for (uint64_t done = 0; !error && done < request->length;) {
		uint64_t left = request->length - done;
		size_t length = left < TE_STAGING ? (size_t)left : TE_STAGING;

		if (request->write)
			error = wh_mooncake_staging_copy(staging, region, offset + done, length,
							 false);
		if (!error)
			error = wh_mooncake_connection_move(&worker->connection, request->write,
							    staging->memory, request->remote + done,
							    length);
		if (!error && !request->write)
			error = wh_mooncake_staging_copy(staging, region, offset + done, length,
							 true);
		done += length;
	}
	return error;
}

static int worker_move(struct te_worker *worker, const struct te_request *request)
{
	if (request->memory->staged)
		return worker_move_staged(worker, request);
	return wh_mooncake_connection_move(&worker->connection, request->write,
					   (void *)(uintptr_t)request->local, request->remote,
					   request->length);
}

static int worker_move_request(struct te_worker *worker, const struct te_request *request)
{
	struct te_link *link = worker->link;
	int error = 0;

	/* The peer may have registered the memory after the segment was fetched. */
	if (!link_publishes(link, request->remote, request->length) && !te_link_refresh(link))
		error = worker_connect(worker);
	if (!error && !link_publishes(link, request->remote, request->length))
		return wh_fail(ERANGE,
			       "%.60s: 0x%" PRIx64 " of %" PRIu64 " bytes is not in memory that is "
			       "registered there",
			       link->name, request->remote, request->length);
	if (!error && !worker->connection.ready)
		error = worker_connect(worker);
	if (!error)
		error = worker_move(worker, request);
	/* After a restart the engine listens on another port. */
	if (error == -ECONNREFUSED && !te_link_refresh(link)) {
		error = worker_connect(worker);
		if (!error)
			error = worker_move(worker, request);
	}
	return error;
}

static int link_send_notification(struct te_link *link, const struct te_submission *submission)
{
	char control[sizeof(link->control)];

	pthread_mutex_lock(&link->engine->lock);
	memcpy(control, link->control, sizeof(control));
	pthread_mutex_unlock(&link->engine->lock);
	return wh_mooncake_notify(control, submission->name, submission->message,
				  link->engine->timeout);
}

/* ---- threads ------------------------------------------------------------------------------- */

/* A job has ended. Under the lock; the submission may be freed when it returns. */
static void job_end(struct te_link *link, struct te_job *job, int error, const char *text)
{
	struct te_request *request = job->request;
	struct te_submission *submission = job->submission;

	if (!request) {
		if (error && !*submission->text)
			snprintf(submission->text, sizeof(submission->text), "%s", text);
		submission->notify_result = error;
		pthread_cond_broadcast(&link->engine->ended);
		return;
	}
	if (!error) {
		*(request->write ? &link->written : &link->read) += request->length;
		link->answered = wh_now();
	}
	request->result = error;
	request->memory->uses--;
	te_submission_part_ended(submission, error, text);
}

/* Can the job be sent together with others? Under the lock. */
static bool job_is_small(const struct te_link *link, const struct te_job *job)
{
	const struct te_request *request = job->request;

	return request && request->length <= SMALL && !request->memory->staged &&
	       (!request->write || link->segment.version >= 2) &&
	       wh_mooncake_segment_find(&link->segment, request->remote, request->length);
}

/* Take the first job off the queue, or several if they are small and all reads or all writes.
 * Returns how many. Under the lock. */
static unsigned link_take_jobs(struct te_link *link, struct te_job *jobs[WH_MOONCAKE_MOVES])
{
	unsigned count = 0;

	while (!wh_list_empty(&link->jobs) && count < WH_MOONCAKE_MOVES) {
		struct te_job *job = wh_container(link->jobs.next, struct te_job, at);
		bool small = job_is_small(link, job);

		if (count && (!small || job->request->write != jobs[0]->request->write))
			break;
		wh_list_remove(&job->at);
		link->waiting--;
		jobs[count++] = job;
		if (!small)
			break;
	}
	return count;
}

/* Send the jobs together. Returns what wh_mooncake_connection_several() does. */
static unsigned worker_move_together(struct te_worker *worker, struct te_job *const jobs[],
				     unsigned count, unsigned *lost, int *error)
{
	struct wh_mooncake_move moves[WH_MOONCAKE_MOVES];

	for (unsigned i = 0; i < count; i++)
		moves[i] = (struct wh_mooncake_move){ (void *)(uintptr_t)jobs[i]->request->local,
						      jobs[i]->request->remote,
						      jobs[i]->request->length };
	if (!worker->connection.ready && worker_connect(worker))
		return 0;
	return wh_mooncake_connection_several(&worker->connection, jobs[0]->request->write, moves,
					      count, lost, error);
}

/* The peer has not answered a job in time. Fail those behind it that have waited as long: they
 * would wait for it one after the other. Not if it answers others, or moves bytes of one for longer
 * than a silent peer would be waited for. Under the lock. */
static void link_expire(struct te_link *link)
{
	int64_t before = wh_now() - link->engine->timeout;

	for (unsigned i = 0; i < link->workers; i++)
		if (link->worker[i].begun && link->worker[i].begun < before)
			return;
	while (link->answered < before && !wh_list_empty(&link->jobs)) {
		struct te_job *job = wh_container(link->jobs.next, struct te_job, at);

		if (job->posted > before)
			return;
		wh_list_remove(&job->at);
		link->waiting--;
		job_end(link, job, -ETIMEDOUT, "the peer does not answer");
	}
}

static void *worker_run(void *argument)
{
	struct te_worker *worker = argument;
	struct te_link *link = worker->link;
	pthread_mutex_t *lock = &link->engine->lock;

	pthread_mutex_lock(lock);
	link->started--;
	while (!link->stop) {
		struct te_job *jobs[WH_MOONCAKE_MOVES];
		unsigned count = link_take_jobs(link, jobs), done = 0, lost = 0;
		int together = 0; /* the error of the lost ones */
		bool timed_out = false;

		worker->begun = count ? wh_now() : 0;
		if (!count) {
			link->idle++;
			pthread_cond_wait(&link->more, lock);
			link->idle--;
			link->signalled -= link->signalled > 0;
			continue;
		}
		if (count > 1) {
			link->moving++;
			pthread_mutex_unlock(lock);
			done = worker_move_together(worker, jobs, count, &lost, &together);
			pthread_mutex_lock(lock);
			link->moving--;
			/* The others have waited as long as those that were sent. */
			if (together == -ETIMEDOUT)
				lost = count - done;
		}
		for (unsigned i = 0; i < count; i++) {
			int error = i >= done && i < done + lost ? together : 0;

			if (i >= done + lost) {
				pthread_mutex_unlock(lock);
				error = jobs[i]->request ?
						worker_move_request(worker, jobs[i]->request) :
						link_send_notification(link, jobs[i]->submission);
				pthread_mutex_lock(lock);
			}
			job_end(link, jobs[i], error, error ? wh_fail_text() : "");
			timed_out |= error == -ETIMEDOUT;
		}
		worker->begun = 0;
		if (timed_out)
			link_expire(link);
	}
	pthread_mutex_unlock(lock);
	return NULL;
}

/* Does the job need one more thread? Small jobs use half of the CPUs at most: the peer and the
 * application need the others. */
static bool link_wants_thread(const struct te_link *link, const struct te_job *job)
{
	unsigned soon = link->signalled + link->started + link->moving;

	return !soon || !job_is_small(link, job) ||
	       (link->waiting > soon * WH_MOONCAKE_MOVES && soon < link->engine->cpus / 2);
}

void te_job_post(struct te_link *link, struct te_job *job)
{
	struct te_worker *worker = &link->worker[link->workers];
	int error = 0;

	if (link->stop) {
		job_end(link, job, -ECANCELED, "the engine is being destroyed");
		return;
	}
	job->posted = wh_now();
	wh_list_append(&link->jobs, &job->at);
	link->waiting++;
	if (!link_wants_thread(link, job))
		return;
	if (!link->idle && link->workers < TE_CONNECTIONS) {
		worker->link = link;
		worker->connection.fd = -1;
		error = pthread_create(&worker->thread, NULL, worker_run, worker);
		link->workers += !error;
		link->started += !error;
	}
	if (!link->workers) {
		wh_list_remove(&job->at);
		link->waiting--;
		job_end(link, job, -error, "a thread cannot be started");
		return;
	}
	link->signalled += link->signalled < link->idle;
	pthread_cond_signal(&link->more);
}

void te_link_stop(struct te_link *link)
{
	pthread_mutex_t *lock = &link->engine->lock;
	unsigned count;

	pthread_mutex_lock(lock);
	link->stop = true;
	count = link->workers;
	for (unsigned i = 0; i < count; i++)
		wh_mooncake_connection_abort(&link->worker[i].connection);
	pthread_cond_broadcast(&link->more);
	pthread_mutex_unlock(lock);
	for (unsigned i = 0; i < count; i++) {
		pthread_join(link->worker[i].thread, NULL);
		wh_mooncake_connection_close(&link->worker[i].connection);
		wh_mooncake_staging_close(&link->worker[i].staging);
	}
	pthread_mutex_lock(lock);
	link->workers = 0;
	link->waiting = 0;
	while (!wh_list_empty(&link->jobs))
		job_end(link, wh_container(wh_list_take(&link->jobs), struct te_job, at),
			-ECANCELED, "the engine is being destroyed");
	pthread_mutex_unlock(lock);
}
