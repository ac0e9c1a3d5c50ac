/* SPDX-License-Identifier: Apache-2.0 */
/* Asking for the regions that a batch names, while it runs. */
#include "core/resolve.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/progress.h"
#include "core/question.h"
#include "core/worker.h"
#include "transport/blocks.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"
#include "util/turns.h"

struct wh_resolution {
	struct wh_batch *batch;
	struct wh_event_wait *wait;
	struct wh_asked ids, ranges; /* each has ended, or was never asked */
	size_t ids_room, ranges_room;
	uint64_t *id;
	struct wh_range *range;
	_Atomic uint32_t left; /* questions that have not ended, plus one while they are asked */
	_Atomic int error; /* the first one: the peer was lost */
	struct wh_work work;
};

/* ---- what is not known ---------------------------------------------------------------------- */

static void *reserve(void *array, size_t *room, size_t count, size_t element)
{
	size_t wanted = *room ? 2 * *room : 16;
	void *grown;

	if (count < *room)
		return array;
	grown = realloc(array, wanted * element);
	if (grown)
		*room = wanted;
	return grown;
}

static int resolution_want_id(struct wh_resolution *r, uint64_t id)
{
	uint64_t *grown;

	if (r->ids.count && r->id[r->ids.count - 1] == id)
		return 0;
	grown = reserve(r->id, &r->ids_room, r->ids.count, sizeof(*r->id));
	if (!grown)
		return wh_fail(ENOMEM, "wh_batch_submit: no memory");
	r->id = grown;
	r->id[r->ids.count++] = id;
	return 0;
}

static int resolution_want_range(struct wh_resolution *r, const struct wh_item *item)
{
	struct wh_range *grown =
		reserve(r->range, &r->ranges_room, r->ranges.count, sizeof(*r->range));

	if (!grown)
		return wh_fail(ENOMEM, "wh_batch_submit: no memory");
	r->range = grown;
	r->range[r->ranges.count++] = (struct wh_range){
		.address = item->offset,
		.length = item->length,
		.access = item->op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE,
	};
	return 0;
}

/* Find the region of an item, if it has an address of the peer's, and check it. */
static int item_resolve(struct wh_batch_addresses *addresses, struct wh_item *item, size_t index,
			bool last)
{
	uint64_t id = item->remote, offset = item->offset;
	int error = id ? 0 :
			 wh_batch_find_remote(addresses, "transfer", index, item->op, item->offset,
					      item->length, last, &id, &offset);

	if (!error)
		error = wh_batch_check_remote(addresses->peer, "transfer", index, item->op, id,
					      offset, item->length);
	if (error)
		return error;
	/* Only now: one that fails keeps its address, which the next submission asks for. */
	item->remote = id;
	item->offset = offset;
	return 0;
}

/* Items whose regions are known are checked; `r` receives what is not known. NULL: that is an
 * error. */
static int resolve_items(struct wh_batch *batch, struct wh_resolution *r)
{
	struct wh_batch_addresses addresses;
	int error = 0;

	wh_batch_addresses_begin(&addresses, batch->peer);
	for (size_t i = 0; i < batch->item_count && !error; i++) {
		struct wh_item *item = &batch->items[i];

		if (!item->length)
			continue;
		error = item_resolve(&addresses, item, i, !r);
		if (error == -ENOENT && r)
			error = item->remote ? resolution_want_id(r, item->remote) :
					       resolution_want_range(r, item);
	}
	wh_batch_addresses_end(&addresses);
	return error;
}

/* The same for prepared blocks. */
static int resolve_blocks(const struct wh_batch *batch, struct wh_resolution *r)
{
	int error = 0;

	for (size_t i = 0; i < batch->blocks_count && !error; i++) {
		struct wh_blocks *blocks = batch->blocks[i];

		if (!atomic_load(&blocks->unresolved))
			continue;
		error = wh_blocks_resolve(blocks);
		if (error != -ENOENT || !r)
			continue;
		error = 0;
		for (uint64_t b = 0; b < blocks->base_count && !error; b++)
			error = resolution_want_id(r, blocks->bases[b].remote);
	}
	return error;
}

void wh_resolution_free(struct wh_resolution *r)
{
	if (!r)
		return;
	free(r->id);
	free(r->range);
	free(r);
}

int wh_batch_resolve(struct wh_batch *batch, struct wh_resolution **asked)
{
	struct wh_resolution *r = asked ? calloc(1, sizeof(*r)) : NULL;
	int error;

	if (asked) {
		*asked = NULL;
		if (!r)
			return wh_fail(ENOMEM, "wh_batch_submit: no memory");
	}
	error = resolve_items(batch, r);
	if (!error)
		error = resolve_blocks(batch, r);
	if (!error && r && (r->ids.count || r->ranges.count)) {
		r->batch = batch;
		*asked = r;
		return 0;
	}
	wh_resolution_free(r);
	batch->unresolved = error;
	return error;
}

/* ---- asking --------------------------------------------------------------------------------- */

/* The connection broke before all answers had come. */
static int resolution_lost(struct wh_peer *peer)
{
	int error = wh_peer_check(peer);

	return error ? error :
		       wh_fail(ECONNRESET,
			       "the connection to %s broke while it was asked for regions, and is "
			       "back; submit again",
			       peer->welcome.name);
}

/* The questions have ended. On the worker's thread. */
static void resolution_run(struct wh_work *work)
{
	struct wh_resolution *r = wh_container(work, struct wh_resolution, work);
	struct wh_batch *batch = r->batch;
	struct wh_event_wait *wait = r->wait;
	int error = atomic_load(&r->error);

	pthread_mutex_lock(&batch->peer->lock);
	batch->resolution = NULL;
	pthread_mutex_unlock(&batch->peer->lock);
	wh_resolution_free(r);
	wh_fail_begin();
	if (error)
		error = resolution_lost(batch->peer);
	else if (!atomic_load(&batch->cancelled))
		error = wh_batch_resolve(batch, NULL);
	wh_fail_end(error);
	wh_batch_run_resolved(batch, wait, error, error ? wh_error_text() : "");
}

static void resolution_part_ended(struct wh_resolution *r, int error)
{
	int none = 0;

	if (error)
		atomic_compare_exchange_strong(&r->error, &none, error);
	if (atomic_fetch_sub(&r->left, 1) == 1)
		wh_worker_put(&r->batch->peer->engine->planner, &r->work);
}

static void resolution_ids_answered(struct wh_asked *asked, int error)
{
	resolution_part_ended(wh_container(asked, struct wh_resolution, ids), error);
}

static void resolution_ranges_answered(struct wh_asked *asked, int error)
{
	resolution_part_ended(wh_container(asked, struct wh_resolution, ranges), error);
}

static void resolution_ask(struct wh_resolution *r, struct wh_asked *asked)
{
	int error;

	if (!asked->count)
		return;
	atomic_fetch_add(&r->left, 1);
	error = wh_question_ask(r->batch->peer, asked);
	if (error)
		resolution_part_ended(r, error);
}

void wh_resolution_start(struct wh_resolution *r, struct wh_event_wait *wait)
{
	struct wh_peer *peer = r->batch->peer;

	r->wait = wait;
	r->work.run = resolution_run;
	atomic_store(&r->left, 1);
	r->ids.kind = WH_ASK_IDS;
	r->ids.ids = r->id;
	r->ids.done = resolution_ids_answered;
	r->ids.ended = true;
	r->ranges.kind = WH_ASK_ADDRESSES;
	r->ranges.ranges = r->range;
	r->ranges.done = resolution_ranges_answered;
	r->ranges.ended = true;
	pthread_mutex_lock(&peer->lock);
	r->batch->resolution = r;
	pthread_mutex_unlock(&peer->lock);
	resolution_ask(r, &r->ids);
	resolution_ask(r, &r->ranges);
	resolution_part_ended(r, 0);
}

void wh_resolution_cancel(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;
	struct wh_turns *turns = peer->engine->turns;
	struct wh_resolution *r;
	unsigned withdrawn = 0, round = 0;

	pthread_mutex_lock(&peer->lock);
	r = batch->resolution;
	if (r && !r->ids.ended) {
		wh_question_withdraw(&r->ids);
		withdrawn++;
	}
	if (r && !r->ranges.ended) {
		wh_question_withdraw(&r->ranges);
		withdrawn++;
	}
	pthread_mutex_unlock(&peer->lock);
	while (withdrawn--)
		resolution_part_ended(r, -ECANCELED);
	wh_deferred_look(peer->engine);
	while (atomic_load_explicit(&batch->resolving, memory_order_acquire) &&
	       wh_batch_running(batch)) {
		if (turns)
			wh_engine_turn(peer->engine, wh_turns_seen(turns), wh_deadline(WH_MS));
		else
			wh_pause(&round);
	}
}
