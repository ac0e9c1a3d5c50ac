/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator's GPU memory and files, through slots of pinned memory. A write's bytes are
 * gathered into slots before they are sent, a few requests ahead. A read's bytes are received into
 * slots and scattered from there. When a GPU has finished a copy, or a slot is free, a task on the
 * connection's loop takes client.lock and continues the request.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/staging.h"
#include "transport/tcp/tcp.h"

/* States of a stage. */
enum {
	STAGE_WAITS, /* for a slot */
	STAGE_COPIES, /* a GPU copies its bytes, or a file is read or written */
	STAGE_READY, /* write: its bytes are in the slot; read: the slot can receive them */
};

/* The slot of one request. Under client.lock; but any thread may set `given` and post `task`. */
struct tcp_stage {
	struct wh_staging staging;
	struct wh_slot_wait wait;
	struct wh_slot *given; /* the slot that it waited for, until the loop takes it */
	struct wh_task task;
	struct tcp_client *client;
	struct tcp_request *request;
	int state;
	bool failed; /* the request has failed: end it when the GPU has finished */
};

static struct wh_gpus *client_gpus(const struct tcp_client *client)
{
	return wh_engine_gpus(wh_peer_engine(client->tcp->peer));
}

char *tcp_stage_bytes(const struct tcp_request *request)
{
	return request->stage ? request->stage->staging.slot->host : NULL;
}

bool tcp_stage_busy(struct tcp_request *request, bool fail)
{
	if (!request->stage || request->stage->state == STAGE_READY)
		return false;
	request->stage->failed |= fail;
	return true;
}

void tcp_stage_free(struct tcp_client *client, struct tcp_request *request)
{
	struct tcp_stage *stage = request->stage;

	if (!stage)
		return;
	request->stage = NULL;
	if (stage->staging.slot)
		wh_slot_release(client_gpus(client), stage->staging.slot);
	wh_staging_destroy(&stage->staging);
	free(stage);
}

/* ---- choosing ---------------------------------------------------------- */

/* How many of the connection's writes wait for the file system. */
static uint32_t client_count_alike(struct tcp_client *client, const struct wh_file_system *system)
{
	uint32_t count = 0;

	for (unsigned i = 0; i < TCP_WINDOW; i++) {
		struct tcp_request *request = &client->requests[i];

		count += request->fragment && request->fragment->op == WH_WRITE &&
			 tcp_of(request->fragment)->system == system &&
			 tcp_stage_busy(request, false);
	}
	return count;
}

/* May the connection pull from the fragment, although as many writes are being gathered as should
 * be, some of them from files? What does not wait for the same file system may. */
static bool client_may_overtake(struct tcp_client *client, const struct wh_fragment *fragment)
{
	if (!tcp_of(fragment)->staged || fragment->op == WH_READ)
		return true;
	return tcp_of(fragment)->system && client->gathering < 2 * client->gather_most &&
	       client_count_alike(client, tcp_of(fragment)->system) < client->gather_most;
}

struct wh_fragment *tcp_stage_choose(struct tcp_client *client, const struct wh_list *list)
{
	bool full = client->gathering >= client->gather_most;
	const struct wh_list *link = list->next;
	struct wh_fragment *fragment;

	for (unsigned i = 0; link != list && i < TCP_WINDOW; link = link->next, i++) {
		fragment =
			wh_container((struct wh_list *)(uintptr_t)link, struct wh_fragment, link);
		if (!full || client_may_overtake(client, fragment))
			return fragment;
	}
	return NULL;
}

/* ---- moving ------------------------------------------------------------ */

/* A GPU has finished. On any thread; client.users holds a reference until the task has run. */
static void stage_gpu_done(struct wh_staging *staging, int error, const char *text)
{
	struct tcp_stage *stage = wh_container(staging, struct tcp_stage, staging);

	(void)error; /* stage->staging.error has it, too */
	(void)text;
	wh_loop_post(stage->client->loop, &stage->task);
}

static void stage_slot_ready(struct wh_slot_wait *wait, struct wh_slot *slot)
{
	struct tcp_stage *stage = wh_container(wait, struct tcp_stage, wait);

	stage->given = slot;
	wh_loop_post(stage->client->loop, &stage->task);
}

/* Map the bytes of the slot to local memory; skip those of refused extents. */
static int stage_map(struct tcp_client *client, struct tcp_stage *stage, bool skip_bad)
{
	const struct wh_fragment *fragment = stage->request->fragment;
	struct wh_cursor at = stage->request->start;
	struct wh_extent_pair pair;
	uint64_t taken;

	wh_staging_clear(&stage->staging);
	for (uint32_t extent = 0; wh_fragment_next(fragment, &at, at.left, &pair); extent++) {
		const struct wh_region *region = wh_fragment_local(fragment, pair.index);

		if (skip_bad && client->bad[extent / 64] >> (extent % 64) & 1)
			taken = wh_staging_skip(&stage->staging, pair.length);
		else
			taken = wh_staging_add(&stage->staging, region,
					       (uint64_t)(uintptr_t)pair.local, pair.length);
		if (taken < pair.length)
			return -ENOMEM;
	}
	return 0;
}

static void stage_start_copy(struct tcp_client *client, struct tcp_stage *stage, int error,
			     bool into)
{
	stage->state = STAGE_COPIES;
	atomic_fetch_add(&client->users, 1);
	if (!error) {
		wh_engine_count_staged(wh_peer_engine(client->tcp->peer), stage->staging.bytes);
		wh_staging_start(&stage->staging, into);
		return;
	}
	stage->staging.error = error;
	wh_loop_post(client->loop, &stage->task);
}

/* The stage has its slot. True: the request can be sent now. False: the loop queues it later. */
static bool stage_have_slot(struct tcp_client *client, struct tcp_stage *stage)
{
	bool read = stage->request->fragment->op == WH_READ;
	int error = read ? 0 : stage_map(client, stage, false);

	if (read || (!error && wh_staging_gather_at_once(&stage->staging, false))) {
		stage->state = STAGE_READY;
		return true;
	}
	client->gathering++;
	client->gathering_files += tcp_of(stage->request->fragment)->system != NULL;
	stage_start_copy(client, stage, error, true);
	return false;
}

static void stage_continue(struct wh_task *task);

int tcp_stage_begin(struct tcp_client *client, struct tcp_request *request)
{
	struct tcp_stage *stage = calloc(1, sizeof(*stage));

	if (!stage) {
		request->attempts = TCP_ATTEMPTS; /* fail it when the connection breaks */
		return -ENOMEM;
	}
	stage->client = client;
	stage->request = request;
	stage->task.run = stage_continue;
	stage->wait.ready = stage_slot_ready;
	wh_staging_init(&stage->staging, client_gpus(client), client->latency);
	stage->staging.done = stage_gpu_done;
	stage->state = STAGE_WAITS;
	request->stage = stage;
	/* Take the reference before stage_slot_ready() may run, whose task drops it. */
	atomic_fetch_add(&client->users, 1);
	stage->staging.slot =
		wh_slot_acquire_file(client_gpus(client), tcp_of(request->fragment)->slots,
				     tcp_of(request->fragment)->system, &stage->wait);
	if (!stage->staging.slot)
		return 0;
	atomic_fetch_sub(&client->users, 1);
	return stage_have_slot(client, stage);
}

void tcp_stage_scatter(struct tcp_client *client, struct tcp_request *request)
{
	struct tcp_stage *stage = request->stage;

	request->sent = false; /* reject a second response */
	/* What a file system does not take yet keeps no other read from being sent. */
	if (tcp_of(request->fragment)->system) {
		client->read_bytes -= request->start.left;
		request->landed = true;
	}
	stage_start_copy(client, stage, stage_map(client, stage, client->response.errors), false);
}

/* ---- back on the loop -------------------------------------------------- */

/* Continue or end a request whose slot or GPU is ready. Under client.lock. */
static void stage_settle(struct tcp_client *client, struct tcp_stage *stage, struct wh_list *done)
{
	struct tcp_request *request = stage->request;
	struct wh_fragment *fragment = request->fragment;
	bool waited = stage->state == STAGE_WAITS, write = fragment->op == WH_WRITE;
	int error = stage->staging.error;

	if (waited) {
		stage->staging.slot = stage->given;
		if (!stage->failed && !stage_have_slot(client, stage))
			return;
	} else if (write) {
		client->gathering--;
		client->gathering_files -= tcp_of(fragment)->system != NULL;
	}
	stage->state = STAGE_READY;
	if (error)
		wh_fragment_fail(fragment, UINT64_MAX, error, "%s",
				 *stage->staging.text ? stage->staging.text :
							"no memory for staging");
	if (error || stage->failed || (!write && !waited))
		tcp_request_end(client, request, done);
	else
		client->queue[(client->queue_start + client->queue_count++) % TCP_WINDOW] =
			(uint8_t)(request - client->requests);
}

static void stage_continue(struct wh_task *task)
{
	struct tcp_stage *stage = wh_container(task, struct tcp_stage, task);
	struct tcp_client *client = stage->client;
	struct wh_list done;

	wh_list_init(&done);
	pthread_mutex_lock(&client->lock);
	stage_settle(client, stage, &done);
	pthread_mutex_unlock(&client->lock);
	tcp_fragments_done(&done);
	tcp_client_pump(client);
	atomic_fetch_sub(&client->users, 1);
}
