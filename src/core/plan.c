/* SPDX-License-Identifier: Apache-2.0 */
/* Planning: which transport moves which part of a batch, and why not a better one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/blocks.h"
#include "core/counters.h"
#include "core/engine.h"
#include "core/fragment.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/region.h"
#include "memory/region-table.h"
#include "transport/transport.h"
#include "util/error.h"

/* What is known of the regions looked at last; neighbours mostly share them. */
struct choice {
	const struct wh_region *local;
	uint64_t remote;
	uint32_t op, transport;
};

/* Can this transport serve these regions? The reason why not goes to `why`, and to `gone` as well
 * if a region, or the memory that it was made of, is there no more; *inapplicable: it is for no
 * such peer. */
static bool serves(struct wh_batch *batch, uint32_t id, const struct wh_region *local,
		   uint64_t remote, uint32_t op, char why[WH_REFUSAL], bool *inapplicable,
		   char gone[WH_REFUSAL])
{
	struct wh_peer *peer = batch->peer;
	struct wh_region_entry *entry;
	int error;

	if (!atomic_load(&peer->usable[id])) {
		pthread_mutex_lock(&peer->lock);
		memcpy(why, peer->refused[id], WH_REFUSAL);
		*inapplicable = peer->not_for[id];
		pthread_mutex_unlock(&peer->lock);
		return false;
	}
	entry = wh_region_entry_enter(peer->self ? &peer->engine->regions : &peer->regions, remote);
	if (!entry) {
		snprintf(why, WH_REFUSAL, "region %#llx is gone", (unsigned long long)remote);
		return false;
	}
	error = wh_transport(id)->is_reachable(peer, peer->transport[id], local, entry, op, why);
	wh_region_entry_leave(entry);
	/* Report "does not apply to such memory" only if this transport was required. */
	if (error == -ENXIO && batch->require != id)
		why[0] = 0;
	if (error == -ESTALE)
		memcpy(gone, why, WH_REFUSAL);
	return !error;
}

/* Keep the first reason why a transport was not taken. */
static void refuse(struct wh_batch *batch, uint32_t id, const char *why, bool inapplicable)
{
	struct wh_share *share = &batch->share[id];

	if (share->refused[0])
		return;
	snprintf(share->refused, WH_REFUSAL, "%s", why);
	share->inapplicable = inapplicable;
}

/* The best transport for two regions, after those up to and including `after`. */
static uint32_t choose(struct wh_batch *batch, const struct wh_region *local, uint64_t remote,
		       uint32_t op, uint32_t after, char gone[WH_REFUSAL])
{
	struct wh_engine *engine = batch->peer->engine;
	bool past = after == WH_TRANSPORT_COUNT, inapplicable;
	char why[WH_REFUSAL];

	for (unsigned i = 0; i < engine->order_count; i++) {
		uint32_t id = engine->order[i];

		if (!past) {
			past = id == after;
			continue;
		}
		why[0] = 0;
		inapplicable = false;
		if (batch->require != WH_TRANSPORT_COUNT && id != batch->require)
			refuse(batch, id, "another transport is required", true);
		else if (serves(batch, id, local, remote, op, why, &inapplicable, gone))
			return id;
		else if (*why)
			refuse(batch, id, why, inapplicable);
	}
	return WH_TRANSPORT_COUNT;
}

static int nothing_serves(struct wh_batch *batch, const char *what, uint64_t index)
{
	struct wh_engine *engine = batch->peer->engine;
	char all[WH_TEXT_MAX] = "";
	size_t at = 0;

	if (batch->require != WH_TRANSPORT_COUNT) {
		const char *why = engine->transport_off[batch->require];

		return wh_fail(EOPNOTSUPP, "%s %llu: %s is required and cannot be taken: %.190s",
			       what, (unsigned long long)index, wh_transport(batch->require)->name,
			       *why ? why : batch->share[batch->require].refused);
	}
	/* Those that are for no such peer are named only if there is nothing else to say. */
	for (unsigned i = 0; i < 2 * engine->order_count && at < sizeof(all); i++) {
		uint32_t id = engine->order[i % engine->order_count];
		const char *why = batch->share[id].refused;

		if (i == engine->order_count && at)
			break;
		if (*why && batch->share[id].inapplicable == (i >= engine->order_count))
			at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s: %.190s",
					       at ? "; " : "", wh_transport(id)->name, why);
	}
	return wh_fail(EOPNOTSUPP, "%s %llu: no transport reaches %s: %s", what,
		       (unsigned long long)index, batch->peer->welcome.name, all);
}

/* Is the region still published? */
static int gone_region(struct wh_batch *batch, const char *what, uint64_t index, uint64_t remote)
{
	return wh_fail(ESTALE, "%s %llu: region %#llx of %s is no longer published", what,
		       (unsigned long long)index, (unsigned long long)remote,
		       batch->peer->welcome.name);
}

static int check_region(struct wh_batch *batch, const char *what, uint64_t index, uint64_t remote)
{
	struct wh_peer *peer = batch->peer;
	struct wh_region_entry *entry =
		wh_region_entry_enter(peer->self ? &peer->engine->regions : &peer->regions, remote);

	if (!entry)
		return gone_region(batch, what, index, remote);
	wh_region_entry_leave(entry);
	return 0;
}

static struct wh_fragment *new_fragment(struct wh_batch *batch)
{
	size_t room = batch->fragment_room ? batch->fragment_room * 4 : 1;
	struct wh_fragment *grown;

	if (batch->fragment_count == batch->fragment_room) {
		grown = realloc(batch->fragments, room * sizeof(*grown));
		if (!grown) {
			wh_fail(ENOMEM, "wh_batch_submit: no memory");
			return NULL;
		}
		if (room > 1) /* wh_batch_finish() has to look */
			atomic_fetch_or(&batch->watch, WH_STATISTICS_FRAGMENTS);
		batch->fragments = grown;
		batch->fragment_room = room;
	}
	grown = &batch->fragments[batch->fragment_count++];
	memset(grown, 0, sizeof(*grown));
	grown->batch = batch;
	return grown;
}

static int decide(struct wh_batch *batch, const char *what, uint64_t index,
		  const struct wh_region *local, uint64_t remote, uint32_t op,
		  struct choice *choice)
{
	char gone[WH_REFUSAL] = "";
	int error;

	if (choice->op == op && choice->remote == remote && choice->local == local)
		return 0;
	error = check_region(batch, what, index, remote);
	if (error)
		return error;
	choice->transport = choose(batch, local, remote, op, WH_TRANSPORT_COUNT, gone);
	if (choice->transport == WH_TRANSPORT_COUNT) {
		/* It may have gone in the meantime, which then is the reason. */
		error = *gone ? wh_fail(ESTALE, "%s %llu: %s", what, (unsigned long long)index,
					gone) :
				check_region(batch, what, index, remote);
		return error ? error : nothing_serves(batch, what, index);
	}
	choice->local = local;
	choice->remote = remote;
	choice->op = op;
	return 0;
}

static int plan_items(struct wh_batch *batch)
{
	struct choice choice = { 0 };
	struct wh_fragment *fragment = NULL;
	int error;

	for (size_t i = 0; i < batch->item_count; i++) {
		const struct wh_item *item = &batch->items[i];

		error = decide(batch, "transfer", i, item->local, item->remote, item->op, &choice);
		if (error)
			return error;
		if (!fragment || fragment->op != item->op ||
		    fragment->transport != choice.transport) {
			fragment = new_fragment(batch);
			if (!fragment)
				return -ENOMEM;
			fragment->op = item->op;
			fragment->transport = choice.transport;
			fragment->first = i;
		}
		fragment->count++;
		fragment->transfers++;
		fragment->bytes += item->length;
	}
	return 0;
}

static int plan_blocks(struct wh_batch *batch, struct wh_blocks *blocks)
{
	struct choice choice = { 0 };
	struct wh_fragment *fragment = NULL;
	int error;

	for (uint64_t b = 0; b < blocks->base_count; b++) {
		const struct wh_block_base *base = &blocks->bases[b];

		error = decide(batch, "base", b, base->local, base->remote, blocks->op, &choice);
		if (error)
			return error;
		if (!fragment || fragment->transport != choice.transport) {
			fragment = new_fragment(batch);
			if (!fragment)
				return -ENOMEM;
			fragment->blocks = blocks;
			fragment->op = blocks->op;
			fragment->transport = choice.transport;
			fragment->first = b;
		}
		fragment->count++;
		fragment->transfers += blocks->count;
		fragment->bytes += blocks->count * blocks->block_length;
	}
	return 0;
}

/* A transport that is not to be had here, but would not have been better, is not worth a word. */
static void forget_worse(struct wh_batch *batch)
{
	struct wh_engine *engine = batch->peer->engine;
	uint8_t worst = 0;

	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (batch->share[id].bytes && engine->rank[id] > worst)
			worst = engine->rank[id];
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (engine->transport_off[id][0] && engine->rank[id] > worst &&
		    engine->rank[id] < WH_TRANSPORT_COUNT)
			batch->share[id].refused[0] = 0;
}

int wh_plan(struct wh_batch *batch)
{
	struct wh_engine *engine = batch->peer->engine;
	uint32_t version = atomic_load(&batch->peer->plan_version);
	int error;

	wh_batch_flush_counts(batch);
	batch->planned = 0;
	batch->fragment_count = 0;
	memset(batch->share, 0, sizeof(batch->share));
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		memcpy(batch->share[id].refused, engine->transport_off[id], WH_REFUSAL);
		batch->share[id].inapplicable = engine->not_here[id];
	}
	error = plan_items(batch);
	for (size_t i = 0; !error && i < batch->blocks_count; i++)
		error = plan_blocks(batch, batch->blocks[i]);
	if (error)
		return error;
	for (size_t i = 0; i < batch->fragment_count; i++) {
		struct wh_share *share = &batch->share[batch->fragments[i].transport];

		share->bytes += batch->fragments[i].bytes;
		if (share->bytes > WH_SMALL_BATCH)
			batch->timed_in = 1;
		share->transfers += batch->fragments[i].transfers;
	}
	forget_worse(batch);
	batch->planned = version;
	return 0;
}

/* The two regions of transfer, or base, number `index`. */
static uint64_t regions_of(const struct wh_fragment *fragment, uint64_t index,
			   const struct wh_region **local)
{
	const struct wh_item *item;

	if (fragment->blocks) {
		*local = fragment->blocks->bases[index].local;
		return fragment->blocks->bases[index].remote;
	}
	item = &fragment->batch->items[index];
	*local = item->local;
	return item->remote;
}

uint32_t wh_plan_again(const struct wh_fragment *fragment)
{
	const struct wh_region *local, *local_before = NULL;
	struct wh_batch *batch = fragment->batch;
	uint64_t remote, remote_before = 0;
	uint32_t id, worst = 0;
	char gone[WH_REFUSAL] = "";
	unsigned entry;

	/* The one that serves every region of the piece is the worst of those that serve each. */
	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		remote = regions_of(fragment, i, &local);
		if (local == local_before && remote == remote_before)
			continue;
		local_before = local;
		remote_before = remote;
		id = choose(batch, local, remote, fragment->op, fragment->transport, gone);
		if (id == WH_TRANSPORT_COUNT)
			return id;
		for (entry = 0; batch->peer->engine->order[entry] != id;)
			entry++;
		worst = entry > worst ? entry : worst;
	}
	return batch->peer->engine->order[worst];
}
