/* SPDX-License-Identifier: Apache-2.0 */
/* A link's threads: they move by Mooncake's TCP, each by a connection of its own, and send notifications. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "mooncake/api.h"

/* ---- one request --------------------------------------------------------------------------- */

/* Does the other side publish it, as far as is known? */
static bool is_published(struct te_link *link, uint64_t address, uint64_t length)
{
	bool found;

	pthread_mutex_lock(&link->engine->lock);
	found = wh_mooncake_segment_find(&link->segment, address, length);
	pthread_mutex_unlock(&link->engine->lock);
	return found;
}

/* A lane to where the segment says that it is now. */
static int prepare(struct te_worker *worker)
{
	struct te_link *link = worker->link;
	int error;

	/* Whoever stops the link cuts its lanes. */
	pthread_mutex_lock(&link->engine->lock);
	wh_mooncake_lane_close(&worker->lane);
	error = link->stop ? wh_fail(ECANCELED, "%.100s: given up", link->name) :
			     wh_mooncake_lane_prepare(&worker->lane, &link->segment, link->host,
						      link->engine->timeout);
	pthread_mutex_unlock(&link->engine->lock);
	return error;
}

/* A GPU's memory goes by way of the host's, as much at a time as that has room for. */
static int move_staged(struct te_worker *worker, const struct te_request *request)
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
			error = wh_mooncake_staging_copy(staging, region, offset + done, length, false);
		if (!error)
			error = wh_mooncake_lane_move(&worker->lane, request->write, staging->memory,
						      request->remote + done, length);
		if (!error && !request->write)
			error = wh_mooncake_staging_copy(staging, region, offset + done, length, true);
		done += length;
	}
	return error;
}

static int move(struct te_worker *worker, const struct te_request *request)
{
	if (request->memory->staged)
		return move_staged(worker, request);
	return wh_mooncake_lane_move(&worker->lane, request->write, (void *)(uintptr_t)request->local,
				     request->remote, request->length);
}

static int move_request(struct te_worker *worker, const struct te_request *request)
{
	struct te_link *link = worker->link;
	int error = 0;

	/* It may have been registered there after it was asked. */
	if (!is_published(link, request->remote, request->length) && !te_link_ask(link))
		error = prepare(worker);
	if (!error && !is_published(link, request->remote, request->length))
		return wh_fail(ERANGE, "%.60s: 0x%" PRIx64 " of %" PRIu64 " bytes is not in memory that is "
			       "registered there", link->name, request->remote, request->length);
	if (!error && !worker->lane.ready)
		error = prepare(worker);
	if (!error)
		error = move(worker, request);
	/* Restarted it listens at another port. */
	if (error == -ECONNREFUSED && !te_link_ask(link)) {
		error = prepare(worker);
		if (!error)
			error = move(worker, request);
	}
	return error;
}

static int send_notification(struct te_link *link, const struct te_round *round)
{
	char control[sizeof(link->control)];

	pthread_mutex_lock(&link->engine->lock);
	memcpy(control, link->control, sizeof(control));
	pthread_mutex_unlock(&link->engine->lock);
	return wh_mooncake_notify(control, round->name, round->message, link->engine->timeout);
}

/* ---- threads ------------------------------------------------------------------------------- */

/* Under the lock; nothing of the round is touched any more when it returns. */
static void end(struct te_link *link, struct te_job *job, int error, const char *text)
{
	struct te_request *request = job->request;
	struct te_round *round = job->round;

	if (!request) {
		if (error && !*round->text)
			snprintf(round->text, sizeof(round->text), "%s", text);
		round->told = error;
		return;
	}
	if (!error)
		*(request->write ? &link->written : &link->read) += request->length;
	request->result = error;
	request->memory->uses--;
	te_round_less(round, error, text);
}

static void *work(void *argument)
{
	struct te_worker *worker = argument;
	struct te_link *link = worker->link;
	pthread_mutex_t *lock = &link->engine->lock;

	pthread_mutex_lock(lock);
	while (!link->stop) {
		struct te_job *job;
		int error;

		if (wh_list_empty(&link->jobs)) {
			link->idle++;
			pthread_cond_wait(&link->more, lock);
			link->idle--;
			continue;
		}
		job = wh_container(wh_list_take(&link->jobs), struct te_job, at);
		pthread_mutex_unlock(lock);
		error = job->request ? move_request(worker, job->request) : send_notification(link, job->round);
		pthread_mutex_lock(lock);
		end(link, job, error, error ? wh_fail_text() : "");
	}
	pthread_mutex_unlock(lock);
	return NULL;
}

void te_job_post(struct te_link *link, struct te_job *job)
{
	struct te_worker *worker = &link->worker[link->workers];
	int error = 0;

	if (link->stop) {
		end(link, job, -ECANCELED, "the engine is being destroyed");
		return;
	}
	wh_list_append(&link->jobs, &job->at);
	if (!link->idle && link->workers < TE_LANES) {
		worker->link = link;
		worker->lane.fd = -1;
		error = pthread_create(&worker->thread, NULL, work, worker);
		link->workers += !error;
	}
	if (!link->workers) {
		wh_list_remove(&job->at);
		end(link, job, -error, "a thread cannot be started");
		return;
	}
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
		wh_mooncake_lane_cut(&link->worker[i].lane);
	pthread_cond_broadcast(&link->more);
	pthread_mutex_unlock(lock);
	for (unsigned i = 0; i < count; i++) {
		pthread_join(link->worker[i].thread, NULL);
		wh_mooncake_lane_close(&link->worker[i].lane);
		wh_mooncake_staging_close(&link->worker[i].staging);
	}
	pthread_mutex_lock(lock);
	link->workers = 0;
	while (!wh_list_empty(&link->jobs))
		end(link, wh_container(wh_list_take(&link->jobs), struct te_job, at), -ECANCELED,
		    "the engine is being destroyed");
	pthread_mutex_unlock(lock);
}
