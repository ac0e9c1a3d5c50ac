/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, owner: the worker, a thread for work that would block loop 0 too long: registering regions
 * whose keys peers request, flushing what peers have written to a GPU, and jobs of bounce-server.c.
 * Loop 0 sends the answers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/file.h"
#include "memory/memory.h"
#include "transport/rdma/rdma.h"
#include "transport/rdma/server.h"
#include "util/thread.h"
#include "wire/bytes.h"

#define JOBS_MOST 4096u

/* A KEYS or FLUSH frame of a peer. */
struct worker_request {
	struct rdma_job job;
	struct wh_task answer;
	struct rdma *rdma;
	uint64_t session, id;
	struct rdma_bounce *bounce; /* KEYS of a bounce buffer: one reference to it; else NULL */
	char peer[WH_NAME_MAX]; /* name of the session's peer */
	bool flush;
	uint32_t nic;
	struct wh_rdma_keyed keyed;
	uint8_t *keys; /* keyed.count of them, in wire format */
	struct wh_rdma_flushed flushed;
};

static struct worker_request *worker_request_of(struct rdma_job *job)
{
	return wh_container(job, struct worker_request, job);
}

static void worker_send_keyed(const struct worker_request *job, struct wh_session *session)
{
	size_t room =
		WH_RDMA_KEYED_HEAD + WH_REFUSAL_MAX + (size_t)job->keyed.count * WH_RDMA_KEY_SIZE;
	uint8_t *bytes = malloc(room);

	if (bytes)
		wh_control_send(wh_session_control(session), WH_FRAME_RDMA_KEYED, 0, bytes,
				wh_rdma_keyed_encode(bytes, &job->keyed));
	free(bytes);
}

static void worker_send_flushed(const struct worker_request *job, struct wh_session *session)
{
	uint8_t bytes[WH_RDMA_FLUSHED_MAX];

	wh_control_send(wh_session_control(session), WH_FRAME_RDMA_FLUSHED, 0, bytes,
			wh_rdma_flushed_encode(bytes, &job->flushed));
}

/* On loop 0. */
static void worker_answer(struct wh_task *task)
{
	struct worker_request *job = wh_container(task, struct worker_request, answer);
	struct wh_session *session = wh_session_find(job->rdma->engine, job->session);

	if (session && job->flush)
		worker_send_flushed(job, session);
	else if (session)
		worker_send_keyed(job, session);
	if (job->bounce)
		rdma_bounce_put(job->bounce);
	free(job->keys);
	free(job);
}

/* Put the keys into the answer. */
static int worker_fill_keyed(struct worker_request *job, const struct wh_region *region,
			     const struct rdma_memory *memory, char why[WH_REFUSAL])
{
	const struct rdma_mrs *mrs = memory->mrs;
	uint64_t before = 0;
	uint8_t *at;

	snprintf(why, WH_REFUSAL, "%s", memory->why);
	if (!mrs) {
		if (!*why)
			snprintf(why, WH_REFUSAL, "the setting rdma_gpu allows no other method");
		return -WH_RDMA_STAGED_BY_OWNER;
	}
	at = job->keys = malloc((size_t)mrs->count * WH_RDMA_KEY_SIZE);
	if (!at) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < mrs->count; before = mrs->chunks[i++].end)
		at = wh_put32(wh_put64(at, mrs->chunks[i].end - before), mrs->chunks[i].mr->rkey);
	job->keyed.keys = job->keys;
	job->keyed.count = mrs->count;
	job->keyed.method = (uint8_t)mrs->method;
	job->keyed.distance = memory->distance;
	job->keyed.flush =
		mrs->method != WH_RDMA_HOST &&
		rdma_flush_policy(wh_engine_cuda(region->engine), region->registration->device) > 0;
	return 0;
}

/* The keys are those of the bounce buffer through which a file goes. */
static void worker_say_staged(struct worker_request *job, const struct wh_region *bounce,
			      char why[WH_REFUSAL])
{
	job->keyed.method = WH_RDMA_STAGED;
	job->keyed.bounce = (uint8_t)rdma_bounce_number(job->bounce);
	job->keyed.address = bounce->entry.address;
	snprintf(why, WH_REFUSAL, "no NIC reads or writes a file");
}

/* 0, or a negative errno with the reason; on success `why` says why no better method is used. */
static int worker_serve(struct worker_request *job, char why[WH_REFUSAL])
{
	struct wh_region_entry *entry =
		job->bounce ? NULL :
			      wh_region_entry_enter(wh_engine_regions(job->rdma->engine), job->id);
	struct wh_region *region = wh_container(entry, struct wh_region, entry);
	struct rdma_memory *memory = NULL;
	uint8_t access = entry ? wh_region_access(region, job->peer) : 0;
	int error;

	if (job->bounce) {
		region = rdma_bounce_region(job->bounce);
		error = rdma_memory_register(job->rdma->nics[job->nic], region, &memory, why);
		if (!error)
			error = worker_fill_keyed(job, region, memory, why);
		if (!error && job->id)
			worker_say_staged(job, region, why);
	} else if (!entry || !access || entry->kind == WH_MEMORY_FILE) {
		snprintf(why, WH_REFUSAL, "region %#llx is no longer published",
			 (unsigned long long)job->id);
		error = -ESTALE;
	} else if (access != entry->access && !job->flush) {
		/* A region has one key for all peers. */
		snprintf(why, WH_REFUSAL,
			 "other peers have more rights to it, so it has no RDMA key");
		error = -EOPNOTSUPP;
	} else if (!job->flush) {
		error = rdma_memory_register(job->rdma->nics[job->nic], region, &memory, why);
		if (!error)
			error = worker_fill_keyed(job, region, memory, why);
	} else if (wh_kind_on_host(entry->kind) || !region->registration->device ||
		   rdma_flush_policy(wh_engine_cuda(region->engine),
				     region->registration->device) <= 0) {
		error = 0; /* nothing to flush */
	} else {
		error = rdma_flush_region(region);
		if (error)
			snprintf(why, WH_REFUSAL, "%s", wh_error_text());
	}
	if (entry)
		wh_region_entry_leave(entry);
	return error;
}

static void worker_served(struct worker_request *job, int error, const char *why)
{
	job->keyed.error = job->flushed.error = error;
	snprintf(job->keyed.text, sizeof(job->keyed.text), "%s", why);
	snprintf(job->flushed.text, sizeof(job->flushed.text), "%s", why);
	wh_loop_post(wh_engine_first_loop(job->rdma->engine), &job->answer);
}

static void worker_run(struct rdma_job *job, bool stop)
{
	char why[WH_REFUSAL] = "";
	int error = stop ? -ESHUTDOWN : worker_serve(worker_request_of(job), why);

	worker_served(worker_request_of(job), error, why);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *worker_thread(void *argument)
{
	struct rdma *rdma = argument;

	pthread_mutex_lock(&rdma->jobs_lock);
	while (!rdma->stop || !wh_list_empty(&rdma->jobs)) {
		struct rdma_job *job;
		bool stop = rdma->stop;

		if (wh_list_empty(&rdma->jobs)) {
			pthread_cond_wait(&rdma->jobs_come, &rdma->jobs_lock);
			continue;
		}
		job = wh_container(wh_list_take(&rdma->jobs), struct rdma_job, link);
		rdma->job_count--;
		pthread_mutex_unlock(&rdma->jobs_lock);
		job->run(job, stop);
		pthread_mutex_lock(&rdma->jobs_lock);
	}
	pthread_mutex_unlock(&rdma->jobs_lock);
	return NULL;
}

bool rdma_worker_add(struct rdma *rdma, struct rdma_job *job)
{
	bool takes;

	/* An engine without threads works here, in its turn. */
	if (wh_engine_turns(rdma->engine)) {
		job->run(job, false);
		return true;
	}
	pthread_mutex_lock(&rdma->jobs_lock);
	if (!rdma->working)
		rdma->working =
			!wh_thread_start(&rdma->worker, "wherry/worker", worker_thread, rdma);
	takes = rdma->working && rdma->job_count < JOBS_MOST;
	if (takes) {
		rdma->job_count++;
		wh_list_append(&rdma->jobs, &job->link);
		pthread_cond_signal(&rdma->jobs_come);
	}
	pthread_mutex_unlock(&rdma->jobs_lock);
	return takes;
}

/* `error`: it is refused already, for the reason `why`. */
static int worker_add_request(struct wh_session *session, struct worker_request *job, int error,
			      const char *why)
{
	job->rdma = wh_engine_transport(wh_session_engine(session), WH_TRANSPORT_RDMA);
	job->session = wh_session_id(session);
	memcpy(job->peer, wh_session_hello(session)->name, sizeof(job->peer));
	job->answer.run = worker_answer;
	job->job.run = worker_run;
	if (error)
		worker_served(job, error, why);
	else if (!rdma_worker_add(job->rdma, &job->job))
		worker_served(job, -EBUSY, "too many requests are queued");
	return 0;
}

/* If the region is a file that the peer may use, find its bounce buffer. 0, or a negative errno
 * with the reason. */
static int worker_find_bounce(struct wh_session *session, struct rdma_bounce **bounces, uint64_t id,
			      struct rdma_bounce **out, char why[WH_REFUSAL])
{
	struct wh_region_entry *entry =
		wh_region_entry_enter(wh_engine_regions(wh_session_engine(session)), id);
	const struct wh_region *region = wh_container(entry, struct wh_region, entry);
	int error = 0;

	if (!entry)
		return 0;
	if (entry->kind == WH_MEMORY_FILE && wh_session_access(session, entry))
		error = rdma_bounce_for_files(session, bounces, region->registration->file->system,
					      out, why);
	wh_region_entry_leave(entry);
	return error;
}

int rdma_worker_keys(struct wh_session *session, struct rdma_bounce **bounces, uint32_t nic,
		     uint64_t id)
{
	struct rdma *rdma = wh_engine_transport(wh_session_engine(session), WH_TRANSPORT_RDMA);
	struct worker_request *job;
	char why[WH_REFUSAL] = "";
	int error = 0;

	if (nic >= rdma->nic_count || (!id && !rdma_bounce_is_open(bounces[0])))
		return -EPROTO;
	job = calloc(1, sizeof(*job));
	if (!job)
		return -ENOMEM;
	job->id = job->keyed.id = id;
	job->nic = job->keyed.nic = nic;
	if (id)
		error = worker_find_bounce(session, bounces, id, &job->bounce, why);
	else
		job->bounce = bounces[0];
	if (job->bounce)
		rdma_bounce_get(job->bounce);
	return worker_add_request(session, job, error, why);
}

int rdma_worker_flush(struct wh_session *session, uint32_t number, uint64_t id)
{
	struct worker_request *job = calloc(1, sizeof(*job));

	if (!job)
		return -ENOMEM;
	job->id = id;
	job->flush = true;
	job->flushed.number = number;
	return worker_add_request(session, job, 0, "");
}

static void worker_pass_loop(void *argument)
{
	(void)argument;
}

void rdma_worker_stop(struct rdma *rdma)
{
	pthread_mutex_lock(&rdma->jobs_lock);
	rdma->stop = true;
	pthread_cond_signal(&rdma->jobs_come);
	pthread_mutex_unlock(&rdma->jobs_lock);
	if (rdma->working)
		pthread_join(rdma->worker, NULL);
	/* Answers that were posted to loop 0 run before this. */
	wh_loop_call(wh_engine_first_loop(rdma->engine), worker_pass_loop, NULL);
}
