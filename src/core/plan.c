/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning: which transport moves which part of a batch, and why not a better one. For each pair of
 * regions, the first transport in the engine's order that reaches both is chosen; neighbours with
 * the same choice make one fragment.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/counters.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/region.h"
#include "core/resolve.h"
#include "core/traffic.h"
#include "core/warning.h"
#include "memory/region-table.h"
#include "transport/blocks.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/error.h"

/* The choice for the regions looked at last: neighbours mostly share them. */
struct choice {
	const struct wh_region *local;
	uint64_t remote;
	uint32_t op, transport;
};

enum service {
	SERVES,
	SERVES_LAST, /* as WH_REACHED_LAST */
	SERVES_NOT,
};

static _Thread_local enum wh_planning plan_how; /* WH_PLAN_WAITS outside of plans */

enum wh_planning wh_plan_how(void)
{
	return plan_how;
}

/* Can transport `id` move bytes between these regions? Unless it SERVES, `why` gets the reason, or
 * "" where it is not worth telling. `gone` gets it, too, if a region or its memory no longer
 * exists. *inapplicable: the transport does not apply to such a peer. */
static enum service plan_ask(struct wh_batch *batch, enum wh_planning how, uint32_t id,
			     const struct wh_region *local, uint64_t remote, uint32_t op,
			     char why[WH_REFUSAL], bool *inapplicable, char gone[WH_REFUSAL])
{
	struct wh_peer *peer = batch->peer;
	struct wh_region_entry *entry;
	int error;

	if (!atomic_load(&peer->usable[id])) {
		pthread_mutex_lock(&peer->lock);
		memcpy(why, peer->refused[id], WH_REFUSAL);
		*inapplicable = peer->not_for[id];
		pthread_mutex_unlock(&peer->lock);
		return SERVES_NOT;
	}
	entry = wh_region_entry_enter(peer->self ? &peer->engine->regions : &peer->regions, remote);
	if (!entry) {
		snprintf(why, WH_REFUSAL, "region %#llx is gone", (unsigned long long)remote);
		return SERVES_NOT;
	}
	plan_how = how;
	error = wh_transport(id)->is_reachable(peer, peer->transport[id], local, entry, op, why);
	plan_how = WH_PLAN_WAITS;
	wh_region_entry_leave(entry);
	if (error == -EINPROGRESS && how != WH_PLAN_DECIDES)
		batch->unready++;
	/* Report "does not apply to such memory" only if this transport was required. */
	if (error == -ENXIO && batch->require != id)
		why[0] = 0;
	if (error == -ESTALE)
		memcpy(gone, why, WH_REFUSAL);
	return error == WH_REACHED_LAST ? SERVES_LAST : error ? SERVES_NOT : SERVES;
}

/* Keep the first reason why a transport was not taken. */
static void plan_refuse(struct wh_batch *batch, uint32_t id, const char *why, bool inapplicable)
{
	struct wh_share *share = &batch->share[id];

	pthread_mutex_lock(&batch->text_lock); /* after a reroute it runs */
	if (!share->refused[0]) {
		snprintf(share->refused, WH_REFUSAL, "%s", why);
		share->inapplicable = inapplicable;
	}
	pthread_mutex_unlock(&batch->text_lock);
}

bool wh_require_is_known(const char *require)
{
	return !*require || !strcmp(require, WH_REQUIRE_LOCAL) ||
	       wh_transport_by_name(require) != WH_TRANSPORT_COUNT;
}

/* Does what the batch requires forbid the transport? If so, the batch has the reason. */
static bool plan_is_forbidden(struct wh_batch *batch, uint32_t id)
{
	const char *why = NULL;

	if (batch->require != WH_TRANSPORT_COUNT && id != batch->require)
		why = "another transport is required";
	else if (batch->local && wh_transport(id)->capabilities & WH_IS_NETWORKED &&
		 wh_peer_is_near(batch->peer))
		why = "local is required, and it takes the network";
	if (why)
		plan_refuse(batch, id, why, true);
	return why;
}

/* The best transport for two regions, after those up to and including `after`. */
static uint32_t plan_choose(struct wh_batch *batch, enum wh_planning how,
			    const struct wh_region *local, uint64_t remote, uint32_t op,
			    uint32_t after, char gone[WH_REFUSAL])
{
	struct wh_engine *engine = batch->peer->engine;
	bool past = after == WH_TRANSPORT_COUNT, inapplicable;
	char why[WH_REFUSAL], why_last[WH_REFUSAL];
	uint32_t last = WH_TRANSPORT_COUNT;
	enum service service;

	for (unsigned i = 0; i < engine->order_count; i++) {
		uint32_t id = engine->order[i];

		if (!past) {
			past = id == after;
			continue;
		}
		why[0] = 0;
		inapplicable = false;
		if (plan_is_forbidden(batch, id))
			continue;
		service = plan_ask(batch, how, id, local, remote, op, why, &inapplicable, gone);
		if (service == SERVES) {
			if (last != WH_TRANSPORT_COUNT)
				plan_refuse(batch, last, why_last, false);
			return id;
		}
		if (service == SERVES_LAST && last == WH_TRANSPORT_COUNT) {
			last = id;
			memcpy(why_last, why, WH_REFUSAL);
		} else if (service == SERVES_NOT && *why) {
			plan_refuse(batch, id, why, inapplicable);
		}
	}
	return last;
}

static int plan_nothing_serves(struct wh_batch *batch, const char *what, uint64_t index)
{
	struct wh_engine *engine = batch->peer->engine;
	char all[WH_TEXT_MAX] = "";
	size_t at = 0;

	if (batch->require != WH_TRANSPORT_COUNT) {
		const char *why = engine->transport_off[batch->require];

		return wh_fail(EOPNOTSUPP, "%s %llu: %s is required and cannot be used: %.190s",
			       what, (unsigned long long)index, wh_transport(batch->require)->name,
			       *why ? why : batch->share[batch->require].refused);
	}
	/* Transports that do not apply to such a peer are named only if there is no other reason.
	 */
	for (unsigned i = 0; i < 2 * engine->order_count && at < sizeof(all); i++) {
		uint32_t id = engine->order[i % engine->order_count];
		const char *why = batch->share[id].refused;

		if (i == engine->order_count && at)
			break;
		if (*why && batch->share[id].inapplicable == (i >= engine->order_count))
			at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s: %.190s",
					       at ? "; " : "", wh_transport(id)->name, why);
	}
	return wh_fail(EOPNOTSUPP, "%s %llu: %sno transport reaches %s: %s", what,
		       (unsigned long long)index,
		       batch->local && wh_peer_is_near(batch->peer) ? "local is required, and " :
								      "",
		       batch->peer->welcome.name, all);
}

static int plan_gone_region(struct wh_batch *batch, const char *what, uint64_t index,
			    uint64_t remote)
{
	return wh_fail(ESTALE, "%s %llu: region %#llx of %s is no longer published", what,
		       (unsigned long long)index, (unsigned long long)remote,
		       batch->peer->welcome.name);
}

/* -ESTALE unless the region is still published; *kind is that of its memory. */
static int plan_check_region(struct wh_batch *batch, const char *what, uint64_t index,
			     uint64_t remote, uint8_t *kind)
{
	struct wh_peer *peer = batch->peer;
	struct wh_region_entry *entry =
		wh_region_entry_enter(peer->self ? &peer->engine->regions : &peer->regions, remote);

	if (!entry)
		return plan_gone_region(batch, what, index, remote);
	*kind = entry->kind;
	wh_region_entry_leave(entry);
	return 0;
}

/* Make room for four times as many fragments. */
static int plan_grow(struct wh_batch *batch)
{
	struct wh_fragment *before = batch->fragments, *grown;
	size_t room = before ? batch->fragment_room * 4 : 1;

	/* Zeroed: whoever still polls the last submission may look at any of them. */
	grown = batch->outgrown_count < WH_FRAGMENT_GROWTHS ? calloc(room, sizeof(*grown)) : NULL;
	if (!grown)
		return wh_fail(ENOMEM, "wh_batch_submit: no memory");
	if (before) {
		memcpy(grown, before, batch->fragment_room * sizeof(*grown));
		batch->outgrown[batch->outgrown_count++] = before;
		/* Several fragments: wh_batch_finish() counts the slow way. */
		atomic_fetch_or(&batch->watch, WH_STATISTICS_FRAGMENTS);
	}
	/* Before fragment_count, which is read first. */
	atomic_store_explicit(&batch->fragments, grown, memory_order_release);
	batch->fragment_room = room;
	return 0;
}

static struct wh_fragment *plan_new_fragment(struct wh_batch *batch)
{
	size_t count = atomic_load_explicit(&batch->fragment_count, memory_order_relaxed);
	struct wh_fragment *fragment;

	if (count == batch->fragment_room && plan_grow(batch))
		return NULL;
	fragment = &batch->fragments[count];
	atomic_store_explicit(&fragment->transport, 0, memory_order_relaxed);
	atomic_store_explicit(&fragment->done, false, memory_order_relaxed);
	memset(&fragment->batch, 0, sizeof(*fragment) - offsetof(struct wh_fragment, batch));
	fragment->batch = batch;
	fragment->peer = batch->peer;
	fragment->items = batch->items;
	fragment->priority = batch->priority;
	atomic_store_explicit(&batch->fragment_count, count + 1, memory_order_release);
	return fragment;
}

/* Choose a transport for two regions, unless it is the same choice as the last one. */
static int plan_decide(struct wh_batch *batch, enum wh_planning how, const char *what,
		       uint64_t index, const struct wh_region *local, uint64_t remote, uint32_t op,
		       struct choice *choice)
{
	char gone[WH_REFUSAL] = "";
	uint8_t kind = 0;
	uint32_t way;
	int error;

	if (choice->op == op && choice->remote == remote && choice->local == local)
		return 0;
	error = plan_check_region(batch, what, index, remote, &kind);
	if (error)
		return error;
	choice->transport = plan_choose(batch, how, local, remote, op, WH_TRANSPORT_COUNT, gone);
	/* Go on, so that the peer is asked for the others, too; wh_plan() drops the fragments. */
	if (choice->transport == WH_TRANSPORT_COUNT && !batch->unready) {
		/* If the region has gone in the meantime, that is the reason. */
		error = *gone ? wh_fail(ESTALE, "%s %llu: %s", what, (unsigned long long)index,
					gone) :
				plan_check_region(batch, what, index, remote, &kind);
		return error ? error : plan_nothing_serves(batch, what, index);
	}
	choice->local = local;
	choice->remote = remote;
	choice->op = op;
	if (batch->unready)
		return 0;
	way = wh_traffic_way(choice->transport, op, local->entry.kind, kind);
	batch->way = batch->way == WH_TRAFFIC_NONE || batch->way == way ? way : WH_TRAFFIC_MIXED;
	return 0;
}

static int plan_items(struct wh_batch *batch, enum wh_planning how)
{
	struct choice choice = { 0 };
	struct wh_fragment *fragment = NULL;
	int error;

	for (size_t i = 0; i < batch->item_count; i++) {
		const struct wh_item *item = &batch->items[i];

		if (!item->length) { /* nothing to move: no fragment has it */
			fragment = NULL;
			continue;
		}
		error = plan_decide(batch, how, "transfer", i, item->local, item->remote, item->op,
				    &choice);
		if (error)
			return error;
		if (!fragment || fragment->op != item->op ||
		    fragment->transport != choice.transport) {
			fragment = plan_new_fragment(batch);
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

static int plan_blocks(struct wh_batch *batch, enum wh_planning how, struct wh_blocks *blocks)
{
	struct choice choice = { 0 };
	struct wh_fragment *fragment = NULL;
	int error;

	for (uint64_t b = 0; b < blocks->base_count; b++) {
		const struct wh_block_base *base = &blocks->bases[b];

		error = plan_decide(batch, how, "base", b, base->local, base->remote, blocks->op,
				    &choice);
		if (error)
			return error;
		if (!fragment || fragment->transport != choice.transport) {
			fragment = plan_new_fragment(batch);
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

/* Do not explain a transport that is off if it ranks below all those used: nobody misses it. */
static void plan_forget_worse(struct wh_batch *batch)
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

static int plan_make(struct wh_batch *batch, enum wh_planning how)
{
	struct wh_engine *engine = batch->peer->engine;
	uint32_t version = atomic_load(&batch->peer->plan_version);
	int error;

	if (batch->unresolved) {
		error = wh_batch_resolve(batch, NULL);
		if (error)
			return error;
	}
	wh_batch_flush_counts(batch);
	batch->planned = 0;
	batch->unready = 0;
	batch->way = WH_TRAFFIC_NONE;
	batch->fragment_count = 0;
	memset(batch->share, 0, sizeof(batch->share));
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		memcpy(batch->share[id].refused, engine->transport_off[id], WH_REFUSAL);
		batch->share[id].inapplicable = engine->not_here[id];
	}
	error = plan_items(batch, how);
	for (size_t i = 0; !error && i < batch->blocks_count; i++)
		error = plan_blocks(batch, how, batch->blocks[i]);
	if (!error && batch->unready)
		error = -EINPROGRESS;
	if (error) {
		/* The last one may have no transport; nobody counts or cancels any of them. */
		batch->fragment_count = 0;
		return error;
	}
	for (size_t i = 0; i < batch->fragment_count; i++) {
		struct wh_share *share = &batch->share[batch->fragments[i].transport];

		share->bytes += batch->fragments[i].bytes;
		if (share->bytes > WH_SMALL_BATCH)
			batch->timed_in = 1;
		share->transfers += batch->fragments[i].transfers;
	}
	if (!batch->fragment_count) /* no fragment counts it */
		atomic_fetch_or(&batch->watch, WH_STATISTICS_FRAGMENTS);
	plan_forget_worse(batch);
	wh_warning_networked(batch);
	batch->planned = version;
	return 0;
}

int wh_plan(struct wh_batch *batch, enum wh_planning how)
{
	int error;

	wh_plan_begin(batch);
	error = plan_make(batch, how);
	wh_plan_end(batch);
	return error;
}

void wh_plan_begin(struct wh_batch *batch)
{
	pthread_mutex_lock(&batch->plan_lock);
	batch->planning++;
	pthread_mutex_unlock(&batch->plan_lock);
}

void wh_plan_end(struct wh_batch *batch)
{
	pthread_mutex_lock(&batch->plan_lock);
	batch->planning--;
	pthread_mutex_unlock(&batch->plan_lock);
}

bool wh_plan_hold(struct wh_batch *batch)
{
	pthread_mutex_lock(&batch->plan_lock);
	if (!batch->planning && !atomic_load(&batch->resolving))
		return true;
	pthread_mutex_unlock(&batch->plan_lock);
	return false;
}

void wh_plan_release(struct wh_batch *batch)
{
	pthread_mutex_unlock(&batch->plan_lock);
}

/* The regions of item or base number `index`: returns the remote one. */
static uint64_t plan_regions(const struct wh_fragment *fragment, uint64_t index,
			     const struct wh_region **local)
{
	*local = wh_fragment_local(fragment, index);
	return wh_fragment_remote(fragment, index);
}

uint32_t wh_plan_again(const struct wh_fragment *fragment)
{
	const struct wh_region *local, *local_before = NULL;
	struct wh_batch *batch = fragment->batch;
	uint64_t remote, remote_before = 0;
	uint32_t id, worst = 0;
	char gone[WH_REFUSAL] = "";
	unsigned entry;

	/* Of the transports chosen for each pair of regions, the lowest in order serves all. */
	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		remote = plan_regions(fragment, i, &local);
		if (local == local_before && remote == remote_before)
			continue;
		local_before = local;
		remote_before = remote;
		id = plan_choose(batch, WH_PLAN_DECIDES, local, remote, fragment->op,
				 fragment->transport, gone);
		if (id == WH_TRANSPORT_COUNT)
			return id;
		for (entry = 0; batch->peer->engine->order[entry] != id;)
			entry++;
		worst = entry > worst ? entry : worst;
	}
	return batch->peer->engine->order[worst];
}
