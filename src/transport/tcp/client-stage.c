/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator's side of tcp, memory of a GPU: a write's bytes are gathered into slots of pinned
 * memory before they are sent, a few slices ahead; a read's are received into slots and scattered
 * from there. What a GPU has finished comes back by way of the connection's loop, which takes the
 * lock.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/staging.h"
#include "transport/tcp/tcp.h"

enum {
	WAITS, /* for a slot */
	MOVES, /* a GPU moves its bytes */
	STANDS, /* its bytes, or the room for them, are in the slot */
};

struct tcp_stage {
	struct wh_staging staging;
	struct wh_slot_wait wait;
	struct wh_slot *given; /* a slot that it has waited for, on its way to the loop */
	struct wh_task task;
	struct tcp_client *client;
	struct tcp_request *request;
	int state;
	bool failed; /* the slice has: it ends when the GPU has let go of it */
};

static struct wh_gpus *gpus_of(const struct tcp_client *client)
{
	return client->tcp->peer->engine->gpus;
}

char *tcp_stage_bytes(const struct tcp_request *request)
{
	return request->stage ? request->stage->staging.slot->host : NULL;
}

bool tcp_stage_busy(struct tcp_request *request, bool fail)
{
	if (!request->stage || request->stage->state == STANDS)
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
		wh_slot_give(gpus_of(client), stage->staging.slot);
	wh_staging_destroy(&stage->staging);
	free(stage);
}

/* ---- moving ------------------------------------------------------------------------------------
 */

/* On any thread. A reference to the connection is held until the loop has taken it. */
static void moved(struct wh_staging *staging, int error, const char *text)
{
	struct tcp_stage *stage = wh_container(staging, struct tcp_stage, staging);

	(void)error; /* it is in the staging */
	(void)text;
	wh_loop_post(stage->client->loop, &stage->task);
}

static void slot_ready(struct wh_slot_wait *wait, struct wh_slot *slot)
{
	struct tcp_stage *stage = wh_container(wait, struct tcp_stage, wait);

	stage->given = slot;
	wh_loop_post(stage->client->loop, &stage->task);
}

/* Which bytes of the slot are whose; those of refused extents are nobody's. */
static int plan(struct tcp_client *client, struct tcp_stage *stage, bool skip_bad)
{
	const struct wh_fragment *fragment = stage->request->fragment;
	struct wh_cursor at = stage->request->start;
	struct wh_extent_pair run;
	uint64_t taken;

	wh_staging_clear(&stage->staging);
	for (uint32_t extent = 0; wh_fragment_next(fragment, &at, at.left, &run); extent++) {
		const struct wh_region *region = fragment->blocks ?
							 fragment->blocks->bases[run.index].local :
							 fragment->batch->items[run.index].local;

		if (skip_bad && client->bad[extent / 64] >> (extent % 64) & 1)
			taken = wh_staging_skip(&stage->staging, run.length);
		else
			taken = wh_staging_add(&stage->staging, region,
					       (uint64_t)(uintptr_t)run.local, run.length);
		if (taken < run.length)
			return -ENOMEM;
	}
	return 0;
}

static void move(struct tcp_client *client, struct tcp_stage *stage, int error, bool into)
{
	stage->state = MOVES;
	atomic_fetch_add(&client->users, 1);
	if (!error) {
		wh_count_add(&client->tcp->peer->engine->statistics.staged_bytes,
			     stage->staging.bytes);
		wh_staging_start(&stage->staging, into);
		return;
	}
	stage->staging.error = error;
	wh_loop_post(client->loop, &stage->task);
}

/* The slot is there. True: the slice can be sent; else it comes by the loop. */
static bool have_slot(struct tcp_client *client, struct tcp_stage *stage)
{
	bool read = stage->request->fragment->op == WH_READ;
	int error = read ? 0 : plan(client, stage, false);

	if (read || (!error && wh_staging_gather_few(&stage->staging, false))) {
		stage->state = STANDS;
		return true;
	}
	client->gathering++;
	move(client, stage, error, true);
	return false;
}

static void back(struct wh_task *task);

int tcp_stage_begin(struct tcp_client *client, struct tcp_request *request)
{
	struct tcp_stage *stage = calloc(1, sizeof(*stage));

	if (!stage) {
		request->attempts = TCP_ATTEMPTS; /* it ends with the connection */
		return -ENOMEM;
	}
	stage->client = client;
	stage->request = request;
	stage->task.run = back;
	stage->wait.ready = slot_ready;
	wh_staging_init(&stage->staging, gpus_of(client), client->latency);
	stage->staging.done = moved;
	stage->state = WAITS;
	request->stage = stage;
	/* Before it may be ready: it then comes by the loop. */
	atomic_fetch_add(&client->users, 1);
	stage->staging.slot = wh_slot_take(gpus_of(client), WH_SLOT_ASKS, &stage->wait);
	if (!stage->staging.slot)
		return 0;
	atomic_fetch_sub(&client->users, 1);
	return have_slot(client, stage);
}

void tcp_stage_scatter(struct tcp_client *client, struct tcp_request *request)
{
	struct tcp_stage *stage = request->stage;

	request->sent = false; /* no second answer is taken for it */
	move(client, stage, plan(client, stage, client->response.errors), false);
}

/* ---- back on the loop --------------------------------------------------------------------------
 */

/* Under the lock. */
static void settle(struct tcp_client *client, struct tcp_stage *stage, struct wh_list *done)
{
	struct tcp_request *request = stage->request;
	struct wh_fragment *fragment = request->fragment;
	bool waited = stage->state == WAITS, write = fragment->op == WH_WRITE;
	int error = stage->staging.error;

	if (waited) {
		stage->staging.slot = stage->given;
		if (!stage->failed && !have_slot(client, stage))
			return;
	} else if (write) {
		client->gathering--;
	}
	stage->state = STANDS;
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

static void back(struct wh_task *task)
{
	struct tcp_stage *stage = wh_container(task, struct tcp_stage, task);
	struct tcp_client *client = stage->client;
	struct wh_list done;

	wh_list_init(&done);
	pthread_mutex_lock(&client->lock);
	settle(client, stage, &done);
	pthread_mutex_unlock(&client->lock);
	tcp_fragments_done(&done);
	tcp_client_pump(client);
	atomic_fetch_sub(&client->users, 1);
}
