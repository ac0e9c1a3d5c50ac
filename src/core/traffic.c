/* SPDX-License-Identifier: Apache-2.0 */
/* What batches took, and what a batch should take: traffic.h explains it. */
#include "core/traffic.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include "core/batch.h"
#include "core/counters.h"
#include "core/peer.h"
#include "memory/region.h"
#include "transport/blocks.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"

/* peer.large: large batches that run in the lower half, those that ever began in the upper one.
 * So one value tells whether another one ran since it was read. */
#define LARGE_BEGUN (UINT64_C(1) << 32)
#define LARGE_RUNNING(large) ((uint32_t)(large))
#define NOT_ALONE UINT64_MAX

/* What disturbs a batch makes it slower: its first use, load, batches that are not seen here. So
 * a faster one counts for more. */
#define WEIGHT_FASTER 0.5
#define WEIGHT_SLOWER 0.125

enum { SMALL, LARGE };

/* ---- the arithmetic -------------------------------------------------------------------------- */

/* Each transfer costs time, too, in proportion to the bytes for transfers of about one length. */
static unsigned traffic_length_class(uint64_t bytes, uint64_t transfers)
{
	uint64_t length = bytes / transfers;

	return length <= 256 ? 0 : length <= 4096 ? 1 : length <= WH_SMALL_BATCH ? 2 : 3;
}

void wh_traffic_route_learn(struct wh_traffic_route *route, uint64_t bytes, uint64_t transfers,
			    uint64_t ns, int64_t now)
{
	struct wh_traffic_point *point =
		&route->point[traffic_length_class(bytes, transfers)][bytes > WH_SMALL_BATCH];
	bool faster = (double)ns * point->bytes < point->ns * (double)bytes;
	double weight = !point->at ? 1 : faster ? WEIGHT_FASTER : WEIGHT_SLOWER;

	point->bytes += weight * ((double)bytes - point->bytes);
	point->ns += weight * ((double)ns - point->ns);
	point->at = now;
}

/* Small batches of transfers of this class, else of the next shorter one that is known: they
 * show the start-up cost. */
static const struct wh_traffic_point *traffic_find_small(const struct wh_traffic_route *route,
							 unsigned length_class)
{
	while (length_class && !route->point[length_class][SMALL].at)
		length_class--;
	return &route->point[length_class][SMALL];
}

struct wh_expected wh_traffic_route_expect(const struct wh_traffic_route *route, uint64_t bytes,
					   uint64_t transfers)
{
	unsigned length_class = traffic_length_class(bytes, transfers);
	const struct wh_traffic_point *own = &route->point[length_class][bytes > WH_SMALL_BATCH],
				      *large = &route->point[length_class][LARGE],
				      *small = traffic_find_small(route, length_class);
	struct wh_expected out = { .at = own->at };
	double least;

	if (!own->at)
		return out;
	if (small->at && large->at && large->ns > small->ns)
		/* On the line through both. */
		out.ns = small->ns + (large->ns - small->ns) / (large->bytes - small->bytes) *
					     ((double)bytes - small->bytes);
	else if (own == large)
		out.ns = large->ns / large->bytes * (double)bytes;
	else
		out.ns = small->ns;
	/* Fewer bytes take no less than in proportion. */
	least = (double)bytes < own->bytes ? own->ns / own->bytes * (double)bytes : 0;
	out.ns = out.ns < least ? least : out.ns;
	return out;
}

/* ---- a peer's table -------------------------------------------------------------------------- */

uint32_t wh_traffic_way(uint32_t transport, uint32_t op, uint8_t local_kind, uint8_t remote_kind)
{
	if (wh_transport(transport)->estimate != wh_probe_estimate)
		return WH_TRAFFIC_MIXED;
	return transport << 24 | op << 16 | (uint32_t)local_kind << 8 | remote_kind;
}

/* The route of that way; if there is none, a free one or the one to replace. NULL: there is no
 * table, as nothing was learned yet. Under probed_lock. */
static struct wh_traffic_route *traffic_find(struct wh_peer *peer, uint32_t way)
{
	struct wh_traffic_route *oldest = peer->traffic;

	for (unsigned i = 0; oldest && i < WH_TRAFFIC_ROUTES; i++) {
		struct wh_traffic_route *route = &peer->traffic[i];

		if (route->way == way)
			return route;
		if (route->at < oldest->at)
			oldest = route;
	}
	return oldest;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Does another batch use the batch's first local region? A submission holds its regions once for
 * each base, and for each run of transfers that share one (batch-run.c). */
static bool traffic_shares_region(const struct wh_batch *batch)
{
	const struct wh_fragment *fragment = &batch->fragments[0];
	const struct wh_region *region = wh_fragment_local(fragment, fragment->first);
	uint32_t own = 0;

	for (size_t i = 0; i < batch->item_count; i++)
		own += batch->items[i].local == region &&
		       (!i || batch->items[i - 1].local != region);
	for (size_t i = 0; i < batch->blocks_count; i++)
		for (uint64_t b = 0; b < batch->blocks[i]->base_count; b++)
			own += batch->blocks[i]->bases[b].local == region;
	return atomic_load_explicit(&region->batches, memory_order_relaxed) != own;
}

/* Can its duration be used at all? A notification takes a round trip of its own, which is most of
 * a small batch's time. */
static bool traffic_may_learn(const struct wh_batch *batch, bool large)
{
	return batch->way != WH_TRAFFIC_NONE && batch->way != WH_TRAFFIC_MIXED && !batch->probing &&
	       (large || (!batch->notifies && !traffic_shares_region(batch)));
}

void wh_traffic_begin(struct wh_batch *batch, bool large)
{
	wh_count *count = &batch->peer->large;
	uint64_t seen = large ? atomic_fetch_add(count, LARGE_BEGUN + 1) + LARGE_BEGUN + 1 :
				wh_count_get(count);

	batch->large_seen =
		LARGE_RUNNING(seen) == large && traffic_may_learn(batch, large) ? seen : NOT_ALONE;
}

void wh_traffic_end_large(struct wh_batch *batch)
{
	atomic_fetch_sub(&batch->peer->large, 1);
}

void wh_traffic_learn(struct wh_batch *batch, uint64_t ns, bool large)
{
	struct wh_peer *peer = batch->peer;
	struct wh_traffic_route *route;
	uint64_t bytes = 0, transfers = 0;
	int64_t now = wh_now();

	/* Not planned: a fragment was rerouted. */
	if (wh_count_get(&peer->large) != batch->large_seen || !batch->planned ||
	    !traffic_may_learn(batch, large))
		return;
	for (size_t i = 0; i < batch->fragment_count; i++) {
		bytes += batch->fragments[i].bytes;
		transfers += batch->fragments[i].transfers;
	}
	pthread_mutex_lock(&peer->probed_lock);
	/* Peers that stay idle have no table. Without memory for one nothing is learned. */
	if (!peer->traffic)
		peer->traffic = calloc(WH_TRAFFIC_ROUTES, sizeof(*peer->traffic));
	route = traffic_find(peer, batch->way);
	/* The first one may have opened connections or mapped memory: it teaches nothing. */
	if (route && route->way == batch->way)
		wh_traffic_route_learn(route, bytes, transfers, ns, now);
	else if (route)
		*route = (struct wh_traffic_route){ .way = batch->way };
	if (route)
		route->at = now;
	pthread_mutex_unlock(&peer->probed_lock);
}

struct wh_expected wh_traffic_expect(const struct wh_batch *batch, uint32_t transport)
{
	struct wh_peer *peer = batch->peer;
	struct wh_expected out = { 0 };
	const struct wh_traffic_route *route;
	uint64_t bytes = 0, transfers = 0;

	if (batch->way == WH_TRAFFIC_MIXED || batch->way >> 24 != transport)
		return out;
	for (size_t i = 0; i < batch->fragment_count; i++) {
		const struct wh_fragment *fragment = &batch->fragments[i];

		if (fragment->transport != transport)
			continue;
		bytes += fragment->bytes;
		transfers += fragment->transfers;
	}
	if (!bytes)
		return out;
	pthread_mutex_lock(&peer->probed_lock);
	route = traffic_find(peer, batch->way);
	if (route && route->way == batch->way)
		out = wh_traffic_route_expect(route, bytes, transfers);
	pthread_mutex_unlock(&peer->probed_lock);
	return out;
}
