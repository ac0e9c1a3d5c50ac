/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches. Each call of submitTransfer() makes a submission, with one part for each segment: a
 * Wherry batch, or requests that the link's threads move over Mooncake's TCP. A batch id contains a
 * generation, so that the id of a freed batch does not name a newer one.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/mooncake/api.h"

#define BATCHES_MAX (1 << 24)

/* ---- the table ----------------------------------------------------------------------------- */

/* Find a batch and take a reference. Under the lock. NULL: no such batch. */
static struct te_batch *batch_get(struct te_engine *engine, batch_id_t id)
{
	struct te_slot *slot =
		(uint32_t)id < engine->slot_count ? &engine->slots[(uint32_t)id] : NULL;

	if (!slot || !slot->batch || slot->generation != id >> 32)
		return NULL;
	slot->batch->references++;
	return slot->batch;
}

static int batch_unknown(const char *call, batch_id_t id)
{
	return -te_fail(TE_ARGUMENT, "%s: batch 0x%" PRIx64 " does not exist or has been freed",
			call, id);
}

/* Enter a batch in the table. Returns its id, or INVALID_BATCH. Under the lock. */
static batch_id_t batch_enter(struct te_engine *engine, struct te_batch *batch)
{
	struct te_slot *more;
	size_t i;

	for (i = 0; i < engine->slot_count && engine->slots[i].batch; i++)
		;
	if (i == engine->slot_count) {
		size_t count = i ? 2 * i : 16;

		more = count <= BATCHES_MAX ? realloc(engine->slots, count * sizeof(*more)) : NULL;
		if (!more)
			return INVALID_BATCH;
		memset(more + i, 0, (count - i) * sizeof(*more));
		engine->slots = more;
		engine->slot_count = count;
	}
	/* No generation is 0 or UINT32_MAX, so no id is 0 or INVALID_BATCH. */
	if (++engine->slots[i].generation == UINT32_MAX || !engine->slots[i].generation)
		engine->slots[i].generation = 1;
	engine->slots[i].batch = batch;
	return (uint64_t)engine->slots[i].generation << 32 | i;
}

batch_id_t allocateBatchID(transfer_engine_t handle, size_t batch_size)
{
	struct te_engine *engine = handle;
	struct te_batch *batch;
	batch_id_t id;

	if (!engine) {
		te_fail(TE_ARGUMENT, "allocateBatchID: engine is NULL");
		return INVALID_BATCH;
	}
	if (te_forked(engine, "allocateBatchID"))
		return INVALID_BATCH;
	batch = calloc(1, sizeof(*batch));
	if (!batch) {
		te_fail(TE_MEMORY, "allocateBatchID: no memory");
		return INVALID_BATCH;
	}
	batch->capacity = batch_size;
	batch->references = 1;
	pthread_mutex_lock(&engine->lock);
	id = batch_enter(engine, batch);
	pthread_mutex_unlock(&engine->lock);
	if (id == INVALID_BATCH) {
		free(batch);
		te_fail(TE_MEMORY, "allocateBatchID: no memory, or %d batches have not been freed",
			BATCHES_MAX);
	}
	return id;
}

/* ---- submissions --------------------------------------------------------------------------- */

void te_submission_part_ended(struct te_submission *submission, int error, const char *text)
{
	if (error && !submission->error) {
		submission->error = error;
		snprintf(submission->text, sizeof(submission->text), "%s", text);
	}
	if (--submission->left)
		return;
	pthread_cond_broadcast(&submission->engine->ended);
	if (!submission->message)
		return;
	if (submission->error)
		submission->notify_result = -ECANCELED;
	else
		te_job_post(submission->parts[0].link, &submission->job);
}

/* Callback: the Wherry batch of a submission with a notification has completed. */
static void part_done(struct wh_batch *batch, int status, void *argument)
{
	struct te_part *part = argument;
	pthread_mutex_t *lock = &part->link->engine->lock;

	pthread_mutex_lock(lock);
	te_submission_part_ended(part->submission, status,
				 status ? wh_batch_error_text(batch) : "");
	pthread_mutex_unlock(lock);
}

static void submission_free(struct te_submission *submission)
{
	for (size_t i = 0; i < submission->part_count; i++) {
		wh_batch_free(submission->parts[i].batch);
		te_link_put(submission->parts[i].link);
	}
	free(submission->parts);
	free(submission->requests);
	free(submission->name);
	free(submission->message);
	free(submission);
}

static void batch_free(struct te_batch *batch)
{
	for (size_t i = 0; i < batch->submission_count; i++)
		submission_free(batch->submissions[i]);
	free(batch->submissions);
	free(batch->requests);
	free(batch);
}

/* ---- submitting ---------------------------------------------------------------------------- */

/* End a request that has not started. */
static void request_fail(struct te_engine *engine, struct te_request *request, int error,
			 const char *text)
{
	pthread_mutex_lock(&engine->lock);
	request->result = error;
	if (request->length)
		request->memory->uses--;
	request->part->submission->left++;
	te_submission_part_ended(request->part->submission, error, text);
	pthread_mutex_unlock(&engine->lock);
}

/* Fail all requests of the part that have not ended. Those without bytes have, but not their
 * notification. */
static void part_fail(struct te_engine *engine, struct te_part *part, int error, const char *text)
{
	for (size_t i = 0; i < part->submission->count; i++) {
		struct te_request *request = &part->submission->requests[i];

		if (request->part == part && (request->result == TE_RUNNING ||
					      (!request->length && part->submission->message)))
			request_fail(engine, request, error, text);
	}
}

/* Find the peer's region that contains the remote range: the peer is asked about memory that is not
 * known here. */
static int request_find_remote(struct te_link *link, const struct te_request *request,
			       struct wh_remote *remote, uint64_t *offset)
{
	if (!wh_peer_lookup(link->peer, request->remote, request->length, WH_ANSWER, remote,
			    offset))
		return 0;
	return wh_fail(ERANGE,
		       "%.60s: %" PRIu64 " bytes at 0x%" PRIx64
		       " are not in memory that is registered there",
		       link->name, request->length, request->remote);
}

static int request_add(struct te_part *part, struct wh_batch *batch, struct te_request *request)
{
	struct wh_transfer transfer = {
		.local = request->memory->region,
		.local_offset = request->local - request->memory->address,
		.length = request->length,
		.op = request->write ? WH_WRITE : WH_READ,
	};
	struct wh_remote remote;
	int error = request_find_remote(part->link, request, &remote, &transfer.remote_offset);

	if (error)
		return error;
	transfer.remote = remote.id;
	error = wh_batch_add(batch, &transfer, 1);
	return error ? wh_fail(-error, "%s", wh_error_text()) : 0;
}

static void part_submit_wherry(struct te_engine *engine, struct te_part *part)
{
	struct te_submission *submission = part->submission;
	struct wh_batch_options options = {
		.size = sizeof(options),
		.callback = submission->message ? part_done : NULL,
		.callback_arg = part,
	};
	struct wh_batch *batch;
	size_t added = 0;
	int error = wh_batch_new(part->link->peer, &options, &batch);

	if (error) {
		part_fail(engine, part, error, wh_error_text());
		return;
	}
	for (size_t i = 0; i < submission->count; i++) {
		struct te_request *request = &submission->requests[i];

		if (request->part != part || !request->length)
			continue;
		error = request_add(part, batch, request);
		if (error)
			request_fail(engine, request, error, wh_fail_text());
		else
			request->index = added++;
	}
	pthread_mutex_lock(&engine->lock);
	submission->left += submission->message != NULL;
	pthread_mutex_unlock(&engine->lock);
	error = added ? wh_batch_submit(batch) : -ENOENT;
	if (error)
		wh_fail(-error, "%s", added ? wh_error_text() : wh_fail_text());
	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; !error && i < submission->count; i++)
		if (submission->requests[i].part == part &&
		    submission->requests[i].result == TE_RUNNING)
			submission->requests[i].memory->uses--;
	if (!error)
		part->batch = batch;
	else if (submission->message)
		te_submission_part_ended(submission, error, wh_fail_text());
	pthread_mutex_unlock(&engine->lock);
	if (error) {
		wh_batch_free(batch);
		part_fail(engine, part, error, wh_fail_text());
	}
}

static void part_submit_tcp(struct te_engine *engine, struct te_part *part)
{
	struct te_submission *submission = part->submission;

	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < submission->count; i++) {
		struct te_request *request = &submission->requests[i];

		if (request->part != part || !request->length)
			continue;
		request->job = (struct te_job){ .request = request, .submission = submission };
		submission->left++;
		te_job_post(part->link, &request->job);
	}
	pthread_mutex_unlock(&engine->lock);
}

/* Check a request as far as this side can, and fill it in. Its local memory counts as used from now
 * on. Under the lock. */
static int request_prepare(struct te_engine *engine, const struct transfer_request *entry,
			   size_t index, struct te_request *request)
{
	uint64_t address = (uintptr_t)entry->source;

	if (entry->opcode != OPCODE_READ && entry->opcode != OPCODE_WRITE)
		return te_fail(TE_ARGUMENT,
			       "request %zu: opcode is %d; expected 0 (read) or 1 (write)", index,
			       entry->opcode);
	if (entry->length > UINT64_MAX - entry->target_offset)
		return te_fail(TE_ARGUMENT,
			       "request %zu: length is %" PRIu64 ", target_offset 0x%" PRIx64,
			       index, entry->length, entry->target_offset);
	if (!te_segment_known(engine, entry->target_id))
		return te_fail(TE_ARGUMENT,
			       "request %zu: no segment with target_id %d has been opened", index,
			       entry->target_id);
	if (!entry->length) { /* it has succeeded, wherever it is */
		request->result = 0;
		return 0;
	}
	request->memory = te_memory_find(engine, address, entry->length);
	if (!request->memory)
		return te_fail(TE_NOT_REGISTERED,
			       "request %zu: %" PRIu64 " bytes at source 0x%" PRIx64 " are not in "
			       "registered memory",
			       index, entry->length, address);
	request->memory->uses++;
	request->local = address;
	request->remote = entry->target_offset;
	request->length = entry->length;
	request->write = entry->opcode == OPCODE_WRITE;
	request->result = TE_RUNNING;
	return 0;
}

/* Find or add the part of a request for segment `target`. */
static struct te_part *submission_part(struct te_submission *submission, segment_id_t *targets,
				       segment_id_t target, const struct te_request *request)
{
	size_t i;

	for (i = 0; i < submission->part_count && targets[i] != target; i++)
		;
	if (i == submission->part_count) {
		targets[i] = target;
		submission->parts[i].submission = submission;
		submission->part_count++;
	}
	submission->parts[i].moving += request->length != 0;
	return &submission->parts[i];
}

/* Make room for one more submission of `count` requests. Under the lock. */
static int batch_make_room(struct te_batch *batch, size_t count)
{
	struct te_submission **submissions = realloc(
		batch->submissions, (batch->submission_count + 1) * sizeof(struct te_submission *));
	size_t room = batch->room;
	struct te_request **requests;

	if (submissions)
		batch->submissions = submissions;
	while (room < batch->count + count)
		room = room ? 2 * room : 16;
	requests =
		submissions ? realloc(batch->requests, room * sizeof(struct te_request *)) : NULL;
	if (!requests)
		return te_fail(TE_MEMORY, "no memory");
	batch->requests = requests;
	batch->room = room;
	return 0;
}

/* Check all requests and add them to the batch, or none of them. Under the lock. */
static int submission_prepare(struct te_engine *engine, struct te_submission *submission,
			      segment_id_t *targets, const struct transfer_request *entries)
{
	struct te_batch *batch = submission->batch;
	size_t prepared = 0;
	int error = 0;

	if (submission->count > batch->capacity - batch->count)
		return te_fail(
			TE_TOO_MANY,
			"%zu requests are too many: the batch has room for %zu and contains %zu",
			submission->count, batch->capacity, batch->count);
	error = batch_make_room(batch, submission->count);
	for (; !error && prepared < submission->count; prepared += !error)
		error = request_prepare(engine, &entries[prepared], prepared,
					&submission->requests[prepared]);
	while (error && prepared--)
		if (submission->requests[prepared].length)
			submission->requests[prepared].memory->uses--;
	if (error)
		return error;
	for (size_t i = 0; i < submission->count; i++) {
		submission->requests[i].part = submission_part(
			submission, targets, entries[i].target_id, &submission->requests[i]);
		batch->requests[batch->count++] = &submission->requests[i];
	}
	batch->submissions[batch->submission_count++] = submission;
	return 0;
}

static struct te_submission *submission_new(size_t count, const notify_msg_t *notify)
{
	struct te_submission *submission = calloc(1, sizeof(*submission));

	if (!submission)
		return NULL;
	submission->count = count;
	submission->left = 1;
	submission->requests = calloc(count, sizeof(*submission->requests));
	submission->parts = calloc(count, sizeof(*submission->parts));
	submission->job.submission = submission;
	if (notify) {
		submission->name = strdup(notify->name);
		submission->message = strdup(notify->msg);
		submission->notify_result = TE_RUNNING;
	}
	if (!submission->requests || !submission->parts ||
	    (notify && (!submission->name || !submission->message))) {
		submission_free(submission);
		return NULL;
	}
	return submission;
}

static void submission_start(struct te_engine *engine, struct te_submission *submission,
			     const segment_id_t *targets)
{
	for (size_t i = 0; i < submission->part_count; i++) {
		struct te_part *part = &submission->parts[i];
		struct te_link *link;

		if (!part->moving && !submission->message)
			continue;
		if (te_link_get(engine, targets[i], &link)) {
			part_fail(engine, part, -EHOSTUNREACH, wh_fail_text());
			continue;
		}
		part->link = link;
		if (!part->moving)
			continue;
		if (link->peer)
			part_submit_wherry(engine, part);
		else
			part_submit_tcp(engine, part);
	}
	pthread_mutex_lock(&engine->lock);
	te_submission_part_ended(submission, 0, "");
	pthread_mutex_unlock(&engine->lock);
}

/* Drop a reference; the table keeps its own. Under the lock. */
static void batch_put(struct te_batch *batch)
{
	batch->references--;
}

static int batch_submit(struct te_engine *engine, batch_id_t id,
			const struct transfer_request *entries, size_t count,
			const notify_msg_t *notify, const char *call)
{
	segment_id_t *targets = count ? calloc(count, sizeof(*targets)) : NULL;
	struct te_submission *submission = targets ? submission_new(count, notify) : NULL;
	struct te_batch *batch;
	int error = 0;

	if (!submission) {
		free(targets);
		return -te_fail(TE_MEMORY, "%s: no memory for %zu requests", call, count);
	}
	pthread_mutex_lock(&engine->lock);
	batch = batch_get(engine, id);
	if (batch) {
		submission->engine = engine;
		submission->batch = batch;
		error = submission_prepare(engine, submission, targets, entries);
		if (error)
			batch_put(batch);
	}
	pthread_mutex_unlock(&engine->lock);
	if (!batch || error) {
		submission->part_count = 0;
		submission_free(submission);
		free(targets);
		return batch ? -te_fail(error, "%s: %s", call, wh_fail_text()) :
			       batch_unknown(call, id);
	}
	submission_start(engine, submission, targets);
	pthread_mutex_lock(&engine->lock);
	batch_put(batch);
	pthread_mutex_unlock(&engine->lock);
	free(targets);
	return 0;
}

/* The failure of a request is its own, and not the call's. */
static int batch_submit_quietly(struct te_engine *engine, batch_id_t id,
				const struct transfer_request *entries, size_t count,
				const notify_msg_t *notify, const char *call)
{
	wh_fail_begin();
	return -wh_fail_end(-batch_submit(engine, id, entries, count, notify, call));
}

int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
		   size_t count)
{
	if (!engine || (!entries && count))
		return -te_fail(TE_ARGUMENT, "submitTransfer: %s is NULL",
				engine ? "entries" : "engine");
	if (te_forked(engine, "submitTransfer"))
		return -TE_ARGUMENT;
	return count ? batch_submit_quietly(engine, batch_id, entries, count, NULL,
					    "submitTransfer") :
		       0;
}

int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id,
			     struct transfer_request *entries, size_t count,
			     notify_msg_t notify_msg)
{
	if (!engine || (!entries && count) || !notify_msg.name || !notify_msg.msg)
		return -te_fail(TE_ARGUMENT, "submitTransferWithNotify: %s",
				!engine           ? "engine is NULL" :
				!entries && count ? "entries is NULL" :
						    "notify_msg has no name or no msg");
	if (te_forked(engine, "submitTransferWithNotify"))
		return -TE_ARGUMENT;
	/* The requests say whom to notify. */
	return count ? batch_submit_quietly(engine, batch_id, entries, count, &notify_msg,
					    "submitTransferWithNotify") :
		       0;
}

/* ---- status -------------------------------------------------------------------------------- */

/* The result of a request. Those of a submission with a notification end together, and a successful
 * one waits for the notification: when all have ended, the batch can be freed. Under the lock. */
static int request_outcome(const struct te_request *request)
{
	const struct te_submission *submission = request->part->submission;

	if (!submission->message)
		return request->result;
	if (submission->left)
		return TE_RUNNING;
	return request->result || submission->notify_result == -ECANCELED ?
		       request->result :
		       submission->notify_result;
}

/* The result that the part's Wherry batch has for a request. */
static int part_result(struct te_part *part, size_t index, char text[WH_TEXT_MAX])
{
	int status, error;

	if (wh_batch_test(part->batch) == -EAGAIN)
		return TE_RUNNING;
	error = wh_batch_transfer_status(part->batch, index, &status);
	if (error)
		snprintf(text, WH_TEXT_MAX, "%s", wh_error_text());
	else if (status)
		snprintf(text, WH_TEXT_MAX, "%s", wh_batch_error_text(part->batch));
	return error ? error : status;
}

static int request_status(int result)
{
	switch (result) {
	case TE_RUNNING:
		return STATUS_WAITING;
	case 0:
		return STATUS_COMPLETED;
	case -ECANCELED:
		return STATUS_CANCELED;
	case -ETIMEDOUT:
		return STATUS_TIMEOUT;
	default:
		return STATUS_FAILED;
	}
}

int getTransferStatus(transfer_engine_t handle, batch_id_t batch_id, size_t task_id,
		      struct transfer_status *status)
{
	struct te_engine *engine = handle;
	struct te_request *request;
	char text[WH_TEXT_MAX];
	struct te_batch *batch;
	struct te_part *part;
	int result = TE_RUNNING;
	size_t count;
	bool by_tcp;

	if (!engine || !status)
		return -te_fail(TE_ARGUMENT, "getTransferStatus: %s is NULL",
				engine ? "status" : "engine");
	if (te_forked(engine, "getTransferStatus"))
		return -TE_ARGUMENT;
	pthread_mutex_lock(&engine->lock);
	batch = batch_get(engine, batch_id);
	count = batch ? batch->count : 0;
	if (task_id >= count) {
		if (batch)
			batch_put(batch);
		pthread_mutex_unlock(&engine->lock);
		return batch ? -te_fail(TE_ARGUMENT,
					"getTransferStatus: task_id is %zu, but there are %zu "
					"requests",
					task_id, count) :
			       batch_unknown("getTransferStatus", batch_id);
	}
	request = batch->requests[task_id];
	part = request->part;
	if (request->result == TE_RUNNING && part->batch) {
		*text = '\0';
		pthread_mutex_unlock(&engine->lock);
		result = part_result(part, request->index, text);
		pthread_mutex_lock(&engine->lock);
		request->result = result;
		if (*text && !*part->submission->text)
			memcpy(part->submission->text, text, sizeof(text));
	}
	result = request_outcome(request);
	by_tcp = !part->batch;
	snprintf(text, sizeof(text), "%s", part->submission->text);
	status->transferred_bytes = result ? 0 : request->length;
	batch_put(batch);
	pthread_mutex_unlock(&engine->lock);
	status->status = request_status(result);
	/* Programs poll in a loop, because Mooncake's interface has no call that waits. Leave the
	 * CPU and the lock to the threads that move bytes. */
	if (result == TE_RUNNING && by_tcp)
		sched_yield();
	if (result && result != TE_RUNNING)
		te_fail(TE_PEER, "getTransferStatus: request %zu: %s", task_id, text);
	return 0;
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* Have all requests by TCP and all notifications ended? Under the lock. */
static bool batch_has_ended(const struct te_batch *batch)
{
	for (size_t i = 0; i < batch->submission_count; i++)
		if (batch->submissions[i]->left ||
		    batch->submissions[i]->notify_result == TE_RUNNING)
			return false;
	return true;
}

/* Wait for the Wherry batches of a submission until `deadline` on wh_now()'s clock. Under the lock,
 * which it releases meanwhile: waiting may call part_done(). Have they ended? */
static bool submission_await(struct te_engine *engine, const struct te_submission *submission,
			     int64_t deadline)
{
	bool ended = true;

	for (size_t i = 0; i < submission->part_count; i++) {
		struct wh_batch *each = submission->parts[i].batch;
		int64_t left = deadline - wh_now();

		if (!each)
			continue;
		pthread_mutex_unlock(&engine->lock);
		ended &= !wh_batch_wait_for(each, left > 0 ? left : 0);
		pthread_mutex_lock(&engine->lock);
	}
	return ended;
}

/* Is a Wherry batch of this batch still in progress? */
static bool batch_is_moving(const struct te_batch *batch)
{
	for (size_t i = 0; i < batch->submission_count; i++)
		for (size_t j = 0; j < batch->submissions[i]->part_count; j++) {
			struct wh_batch *each = batch->submissions[i]->parts[j].batch;

			if (each && wh_batch_test(each) == -EAGAIN)
				return true;
		}
	return false;
}

/* Wait for a batch of which the caller has a reference, as submission_await(). Has it ended? */
static bool batch_await(struct te_engine *engine, const struct te_batch *batch, int64_t deadline)
{
	struct timespec at = { deadline / WH_SECOND, deadline % WH_SECOND };
	bool ended = true;

	for (size_t i = 0; i < batch->submission_count; i++)
		ended &= submission_await(engine, batch->submissions[i], deadline);
	while (!batch_has_ended(batch))
		if (pthread_cond_timedwait(&engine->ended, &engine->lock, &at))
			return false;
	return ended;
}

int wherryWaitBatch(transfer_engine_t handle, batch_id_t batch_id, int64_t timeout)
{
	struct te_engine *engine = handle;
	struct te_batch *batch;
	bool ended;

	if (!engine || timeout < 0)
		return -te_fail(TE_ARGUMENT, "wherryWaitBatch: %s",
				engine ? "timeout is negative" : "engine is NULL");
	if (te_forked(engine, "wherryWaitBatch"))
		return -TE_ARGUMENT;
	pthread_mutex_lock(&engine->lock);
	batch = batch_get(engine, batch_id);
	if (!batch) {
		pthread_mutex_unlock(&engine->lock);
		return batch_unknown("wherryWaitBatch", batch_id);
	}
	ended = batch_await(engine, batch, wh_deadline(timeout));
	batch_put(batch);
	pthread_mutex_unlock(&engine->lock);
	return ended ? 0 :
		       -te_fail(TE_BUSY,
				"wherryWaitBatch: some requests of the batch have not ended");
}

/* ---- freeing ------------------------------------------------------------------------------- */

int freeBatchID(transfer_engine_t handle, batch_id_t batch_id)
{
	struct te_engine *engine = handle;
	struct te_batch *batch;
	bool ended;

	if (!engine)
		return -te_fail(TE_ARGUMENT, "freeBatchID: engine is NULL");
	if (te_forked(engine, "freeBatchID"))
		return -TE_ARGUMENT;
	pthread_mutex_lock(&engine->lock);
	batch = batch_get(engine, batch_id);
	/* 2: the table's reference and this call's. A concurrent call may still add requests. */
	ended = batch && batch->references == 2 && batch_has_ended(batch);
	pthread_mutex_unlock(&engine->lock);
	if (!batch)
		return batch_unknown("freeBatchID", batch_id);
	ended = ended && !batch_is_moving(batch);
	pthread_mutex_lock(&engine->lock);
	ended = ended && batch->references == 2 && batch_has_ended(batch);
	batch_put(batch);
	if (ended)
		engine->slots[(uint32_t)batch_id].batch = NULL;
	pthread_mutex_unlock(&engine->lock);
	if (!ended)
		return -te_fail(
			TE_BUSY,
			"freeBatchID: the batch is in use, or has requests that have not ended");
	batch_free(batch);
	return 0;
}

void te_batches_free(struct te_engine *engine)
{
	for (size_t i = 0; i < engine->slot_count; i++) {
		struct te_batch *batch = engine->slots[i].batch;

		if (!batch)
			continue;
		for (size_t j = 0; j < batch->submission_count; j++)
			for (size_t k = 0; k < batch->submissions[j]->part_count; k++) {
				const struct te_part *part = &batch->submissions[j]->parts[k];

				if (part->link)
					te_link_stop(part->link);
				if (part->batch)
					wh_batch_cancel(part->batch);
			}
		batch_free(batch);
	}
	free(engine->slots);
}
