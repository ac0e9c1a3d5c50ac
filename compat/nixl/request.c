/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: prepared once, posted any number of times. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/nixl/internal.h"
#include "compat/nixl/lists.h"

/* Larger host memory is not mapped before its first use, because filling its page table takes long.
 */
#define PREPARED_MAX (UINT64_C(1) << 30)
/* How long to wait for a peer's data connections, ns. */
#define PREPARE_TIMEOUT INT64_C(5000000000)

struct wh_nixl_request {
	struct wh_list link; /* agent->requests */
	struct wh_nixl_peer *peer; /* with a reference */
	struct wh_blocks **blocks;
	size_t block_count;
	struct wh_transfer *singles;
	size_t single_count;
	/* [1] has a notification; made when it is first needed. */
	struct wh_batch *batch[2];
	struct wh_batch *posted; /* the one that was submitted last; NULL: none */
};

/* ---- preparing
 * ----------------------------------------------------------------------------------- */

/* NIXL's code of an error of a transfer. Where it reads that a peer is gone, NIXL forgets all about
 * it; memory that was unregistered is no reason for that. */
static int request_status(const struct wh_nixl_request *request, int error)
{
	if (error == -ESTALE && !wh_peer_status(request->peer->peer))
		return WH_NIXL_NOT_FOUND;
	return wh_nixl_status(error);
}

static bool on_gpu(const struct wh_nixl_memory *memory)
{
	return memory->kind == WH_MEMORY_DEVICE || memory->kind == WH_MEMORY_VMM ||
	       memory->kind == WH_MEMORY_POOL;
}

/* Ask the peer, at once, for all memory that is used here for the first time. Its keys are held
 * against what the peer says. */
static int pairs_ask(struct wh_nixl_peer *peer, const struct wh_nixl_lists *lists)
{
	uint64_t *unknown = calloc(lists->pair_count + 1, sizeof(*unknown));
	struct wh_remote found;
	size_t count = 0;
	int error = 0;

	if (!unknown)
		return -ENOMEM;
	for (size_t i = 0; i < lists->pair_count; i++)
		if (!lists->pairs[i].remote->prepared)
			unknown[count++] = lists->pairs[i].remote->id;
	if (count)
		error = wh_peer_prepare(peer->peer, NULL, 0, unknown, count, PREPARE_TIMEOUT);
	free(unknown);
	for (size_t i = 0; i < lists->pair_count && count && !error; i++) {
		const struct wh_nixl_memory *remote = lists->pairs[i].remote;

		if (!remote->prepared)
			error = wh_peer_unpack_key(peer->peer, remote->key, remote->key_length, 0,
						   &found);
	}
	return error;
}

/* Ask for what is used here for the first time, and open the way to it, so that posting is quick.
 */
static int pairs_prepare(struct wh_nixl_peer *peer, const struct wh_nixl_lists *lists)
{
	int error = pairs_ask(peer, lists);

	for (size_t i = 0; i < lists->pair_count && !error; i++) {
		const struct wh_nixl_pair *pair = &lists->pairs[i];
		struct wh_nixl_memory *remote = pair->remote;

		if (remote->prepared == pair->local)
			continue;
		if (on_gpu(remote) || on_gpu(pair->local) || remote->length <= PREPARED_MAX)
			error = wh_peer_prepare(peer->peer, &pair->local->region, 1, &remote->id, 1,
						PREPARE_TIMEOUT);
		/* Slow connections are no reason to refuse: posting opens what is missing. */
		if (error == -ETIMEDOUT || error == -EHOSTUNREACH)
			error = 0;
		if (!error)
			remote->prepared = pair->local;
	}
	return error;
}

/* Make the descriptors of blocks, which copy what the lists point to. */
static int request_take(struct wh_nixl_request *request, struct wh_nixl_lists *lists, bool write)
{
	request->blocks = calloc(lists->block_count + 1, sizeof(struct wh_blocks *));
	request->singles = calloc(lists->single_count + 1, sizeof(*request->singles));
	if (!request->blocks || !request->singles)
		return -ENOMEM;
	if (lists->single_count)
		memcpy(request->singles, lists->singles,
		       lists->single_count * sizeof(*request->singles));
	request->single_count = lists->single_count;
	for (size_t i = 0; i < lists->block_count; i++) {
		const struct wh_nixl_blocks *blocks = &lists->blocks[i];
		struct wh_blocks_desc desc = { .size = sizeof(desc),
					       .op = write ? WH_WRITE : WH_READ,
					       .block_length = blocks->length,
					       .count = blocks->count,
					       .bases = blocks->bases,
					       .base_count = blocks->base_count,
					       .local_offsets = blocks->local_offsets,
					       .remote_offsets = blocks->remote_offsets };
		int error = wh_blocks_new(request->peer->peer, &desc, &request->blocks[i]);

		if (error)
			return error;
		request->block_count = i + 1;
	}
	return 0;
}

static int batch_make(const struct wh_nixl_request *request, struct wh_batch **out)
{
	struct wh_batch *batch;
	int error = wh_batch_new(request->peer->peer, NULL, &batch);

	if (error)
		return error;
	for (size_t i = 0; i < request->block_count && !error; i++)
		error = wh_batch_add_blocks(batch, request->blocks[i]);
	if (request->single_count && !error)
		error = wh_batch_add(batch, request->singles, request->single_count);
	if (error)
		wh_batch_free(batch);
	else
		*out = batch;
	return error;
}

/* The batch with a notification or the one without. NULL: *error. */
static struct wh_batch *request_batch(struct wh_nixl_request *request, bool notifies, int *error)
{
	struct wh_batch **batch = &request->batch[notifies];

	*error = *batch ? 0 : batch_make(request, batch);
	return *batch;
}

static void request_free(struct wh_nixl_request *request)
{
	for (int i = 0; i < 2; i++)
		if (request->batch[i])
			wh_batch_free(request->batch[i]);
	for (size_t i = 0; i < request->block_count; i++)
		wh_blocks_free(request->blocks[i]);
	free(request->blocks);
	free(request->singles);
	wh_nixl_peer_put(request->peer);
	free(request);
}

static int prepare_fail(const struct wh_nixl_agent *agent, int error, size_t wrong)
{
	if (error != -EINVAL)
		return wh_nixl_status(error);
	wh_nixl_say(agent,
		    "element %zu of the two lists: the lengths differ, or it is in no memory of "
		    "this agent and that peer",
		    wrong);
	return WH_NIXL_INVALID;
}

int wh_nixl_request_prepare(struct wh_nixl_agent *agent, bool write, bool notifies,
			    const struct wh_nixl_list *local, const struct wh_nixl_list *remote,
			    const char *name, size_t name_length, struct wh_nixl_request **out)
{
	struct wh_nixl_request *request;
	struct wh_nixl_lists lists;
	size_t wrong;
	int error = wh_nixl_lists_sort(local, remote, write, &lists, &wrong);

	if (error)
		return prepare_fail(agent, error, wrong);
	request = calloc(1, sizeof(*request));
	if (!request) {
		wh_nixl_lists_free(&lists);
		return WH_NIXL_BACKEND;
	}
	if (lists.pair_count) {
		/* The one through which the memory was loaded: a newer one may have its name. */
		request->peer = lists.pairs[0].remote->peer;
		wh_nixl_peer_hold(request->peer);
	} else {
		request->peer = wh_nixl_peer_get(agent, name, name_length);
	}
	if (!request->peer) {
		wh_nixl_lists_free(&lists);
		free(request);
		return WH_NIXL_NOT_FOUND;
	}
	error = pairs_prepare(request->peer, &lists);
	if (!error)
		error = request_take(request, &lists, write);
	wh_nixl_lists_free(&lists);
	if (!error)
		request_batch(request, notifies, &error);
	if (error) {
		wh_nixl_fail(agent, error, "cannot prepare a transfer");
		error = request_status(request, error);
		request_free(request);
		return error;
	}
	pthread_mutex_lock(&agent->lock);
	wh_list_append(&agent->requests, &request->link);
	pthread_mutex_unlock(&agent->lock);
	*out = request;
	return WH_NIXL_OK;
}

/* ---- posting
 * ------------------------------------------------------------------------------------- */

static int request_outcome(struct wh_nixl_request *request)
{
	int error = wh_batch_status(request->posted);

	if (error && error != -EINPROGRESS)
		wh_nixl_say(request->peer->agent, "a transfer failed: %s (%s)",
			    wh_batch_error_text(request->posted), wh_status_name(error));
	return request_status(request, error);
}

int wh_nixl_request_post(struct wh_nixl_request *request, const char *notification, size_t length)
{
	const struct wh_nixl_agent *agent = request->peer->agent;
	struct wh_batch *batch;
	int error;

	if (request->posted && wh_batch_status(request->posted) == -EINPROGRESS) {
		wh_nixl_say(agent, "a transfer that is under way was posted again");
		return WH_NIXL_REPOST_ACTIVE;
	}
	batch = request_batch(request, notification, &error);
	if (!error && notification)
		error = wh_nixl_notification_attach(agent, batch, notification, length);
	if (!error)
		error = wh_batch_submit(batch);
	if (error) {
		wh_nixl_fail(agent, error, "cannot post a transfer");
		return request_status(request, error);
	}
	request->posted = batch;
	return request_outcome(request);
}

int wh_nixl_request_check(struct wh_nixl_request *request)
{
	if (!request->posted)
		return WH_NIXL_NOT_POSTED;
	/* It helps: it copies along, or reads the socket. Who asks in a loop has a processor busy,
	 * and without that help host memory went at half the speed on two processors. */
	if (wh_batch_test(request->posted) == -EAGAIN)
		return WH_NIXL_IN_PROGRESS;
	return request_outcome(request);
}

static int request_end(struct wh_nixl_request *request)
{
	int error = 0;

	if (request->posted && wh_batch_status(request->posted) == -EINPROGRESS)
		error = wh_batch_cancel(request->posted);
	request_free(request);
	return error;
}

int wh_nixl_request_release(struct wh_nixl_request *request)
{
	struct wh_nixl_agent *agent = request->peer->agent;
	int error;

	if (wh_nixl_agent_is_inherited(agent))
		return WH_NIXL_OK;
	pthread_mutex_lock(&agent->lock);
	wh_list_remove(&request->link);
	pthread_mutex_unlock(&agent->lock);
	error = request_end(request);
	if (error) /* local memory is free in any case */
		wh_nixl_fail(agent, error,
			     "a transfer was cancelled, and its peer does not answer");
	return WH_NIXL_OK;
}

void wh_nixl_requests_free(struct wh_nixl_agent *agent)
{
	struct wh_list *link;

	while ((link = wh_list_take(&agent->requests)))
		request_end(wh_container(link, struct wh_nixl_request, link));
}

int wh_nixl_request_estimate(struct wh_nixl_request *request, uint64_t *duration)
{
	struct wh_estimate estimate = { .size = sizeof(estimate) };
	int error;
	struct wh_batch *batch =
		request_batch(request, request->batch[1] && !request->batch[0], &error);

	if (batch)
		error = wh_batch_estimate(batch, &estimate);
	if (error)
		return wh_nixl_fail(request->peer->agent, error, "cannot estimate a transfer");
	*duration = (estimate.duration + 999) / 1000;
	return estimate.duration ? WH_NIXL_OK : WH_NIXL_NOT_FOUND;
}
