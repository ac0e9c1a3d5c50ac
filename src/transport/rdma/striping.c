/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma: which line takes how much of what. All of it under rdma_peer.lock.
 *
 * Lines take grains, some requests with one doorbell, whenever they have room, so that a fast one
 * takes more. Towards the end of what waits a slow one takes none that it would finish after all
 * others: each line's speed is measured as it works. What is small goes by one line.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define KNOWN_FOR WH_SECOND /* then a speed that was measured is none any more */
#define GRAINS 4 /* of what waits, for each line: so that the last ones end together */
#define AHEAD (5 * WH_MS) /* of a line's time, taken at most: a speed may be wrong, or change */
/* bytes, of a line that takes a ms for as many; of a fast one RDMA_SPLIT */
#define GRAIN_LEAST 16384u

/* ---- pieces ---------------------------------------------------------------------------------- */

uint32_t rdma_carriers(const struct rdma_peer *rdma, const struct wh_region *local,
		       const struct wh_remote_region *remote, uint32_t op, uint32_t *near)
{
	uint32_t able = 0, nearest = UINT32_MAX, distance;

	*near = 0;
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		const struct rdma_memory *memory;
		const struct rdma_keys *keys;

		if (endpoint->state != RDMA_READY)
			continue;
		memory = rdma_registered(local, endpoint->here.nic);
		keys = rdma_keys_of(remote, endpoint->nic);
		if (!memory || (op == WH_READ && !memory->writable) || !keys || keys->error)
			continue;
		able |= 1u << i;
		/* The sum: the bytes pass both ends' buses. */
		distance = (uint32_t)memory->distance + keys->distance;
		if (distance < nearest)
			*near = 0;
		if (distance <= nearest) {
			nearest = distance;
			*near |= 1u << i;
		}
	}
	return able;
}

/* A region that has gone is told when its bytes are due. */
static uint32_t find_rails(struct rdma_peer *rdma, const struct wh_fragment *fragment)
{
	uint32_t able = rdma_ready(rdma), near = able, near_this;
	const struct wh_region *local, *local_before = NULL;
	uint64_t remote, remote_before = 0;

	for (uint64_t i = fragment->first; able && i < fragment->first + fragment->count; i++) {
		struct wh_remote_region *region;

		local = rdma_local_of(fragment, i, &remote);
		if (local == local_before && remote == remote_before)
			continue;
		local_before = local;
		remote_before = remote;
		region = rdma_enter(rdma, remote);
		if (!region)
			continue;
		able &= rdma_carriers(rdma, local, region, fragment->op, &near_this);
		near &= near_this;
		wh_region_entry_leave(&region->entry);
	}
	return near ? near : able;
}

uint32_t rdma_rails_of(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	/* One that is submitted again has the same regions. */
	if (!fragment->rails_of || fragment->rails_of != rdma->version) {
		fragment->rails = find_rails(rdma, fragment);
		fragment->rails_of = rdma->version;
	}
	return fragment->rails;
}

void rdma_take_in(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	bool urgent = fragment->batch->priority == WH_PRIORITY_LATENCY;
	_Atomic uint32_t *used;

	wh_list_append(!fragment->cursor.left ? &rdma->sent :
		       urgent                 ? &rdma->urgent :
						&rdma->bulk,
		       &fragment->link);
	rdma_watch(rdma, fragment);
	rdma->queued += fragment->cursor.left;
	if (!rdma_rails_of(rdma, fragment)) /* is it to wait, or to go? */
		rdma->version++;
	used = &rdma_batch_of(fragment)->rails_used;
	atomic_store_explicit(used,
			      atomic_load_explicit(used, memory_order_relaxed) | WH_RAILS_TRIED,
			      memory_order_relaxed);
}

void rdma_take_out(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	rdma->queued -= fragment->cursor.left + rdma_forget(rdma, fragment);
	wh_list_remove(&fragment->link);
	rdma_unwatch(rdma, fragment);
}

void rdma_sort(struct rdma_peer *rdma, struct wh_list *away)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk, &rdma->sent };
	bool pending = rdma_pending(rdma);

	rdma->sorted = rdma->version;
	for (unsigned i = 0; i < 3; i++) {
		struct wh_list *link, *next;

		for (link = lists[i]->next; link != lists[i]; link = next) {
			struct wh_fragment *fragment = wh_container(link, struct wh_fragment, link);

			next = link->next;
			/* One that the owner's NIC refused is marked; it does not try again. */
			if (fragment->owner)
				fragment->rails = fragment->rails_of = 0;
			else
				rdma_rails_of(rdma, fragment);
			if (fragment->rails || fragment->in_flight || (pending && !fragment->owner))
				continue;
			rdma_take_out(rdma, fragment);
			fragment->cursor.left = 0; /* nothing of it is to be cancelled here */
			wh_list_append(away, &fragment->link);
		}
	}
}

/* ---- what is to be sent again ---------------------------------------------------------------- */

uint64_t rdma_forget(struct rdma_peer *rdma, const struct wh_fragment *fragment)
{
	struct wh_list *link;
	uint64_t bytes = 0;

	for (link = rdma->again.next; link != &rdma->again; link = link->next) {
		struct rdma_ring *ring = wh_container(link, struct rdma_ring, link);

		for (uint64_t i = ring->tail; i != ring->head; i++) {
			struct rdma_work *work = &ring->works[i % RDMA_DEPTH];

			if (work->fragment != fragment)
				continue;
			bytes += work->length;
			work->fragment = NULL;
		}
	}
	return bytes;
}

void rdma_recover(struct rdma_endpoint *endpoint, struct wh_list *done)
{
	struct rdma_peer *rdma = endpoint->peer;
	struct rdma_ring *ring = endpoint->ring;

	endpoint->ring = NULL;
	if (!ring)
		return;
	for (uint64_t i = ring->tail; i != ring->head; i++) {
		struct rdma_work *work = &ring->works[i % RDMA_DEPTH];
		struct wh_fragment *fragment = work->fragment;

		if (!fragment)
			continue;
		atomic_fetch_or(&rdma_batch_of(fragment)->rails_broken, 1u << endpoint->index);
		fragment->in_flight--;
		if (i < ring->arrived) {
			work->fragment = NULL;
			rdma_carried(endpoint, fragment, work->length);
			rdma_ended(rdma, fragment, work->length, done);
			continue;
		}
		if (!atomic_load(&fragment->cancelled)) {
			rdma->queued += work->length;
			continue;
		}
		work->fragment = NULL;
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		rdma_ended(rdma, fragment, work->length, done);
	}
	wh_list_append(&rdma->again, &ring->link);
}

/* The first of it that this line can carry. What has been done with is dropped on the way. */
static struct rdma_work *next_again(struct rdma_peer *rdma, const struct rdma_endpoint *endpoint)
{
	struct wh_list *link, *after;

	for (link = rdma->again.next; link != &rdma->again; link = after) {
		struct rdma_ring *ring = wh_container(link, struct rdma_ring, link);

		after = link->next;
		while (ring->tail != ring->head && !ring->works[ring->tail % RDMA_DEPTH].fragment)
			ring->tail++;
		for (uint64_t i = ring->tail; i != ring->head; i++) {
			struct rdma_work *work = &ring->works[i % RDMA_DEPTH];

			if (work->fragment && work->fragment->rails & 1u << endpoint->index)
				return work;
		}
		if (ring->tail == ring->head) {
			wh_list_remove(&ring->link);
			free(ring);
		}
	}
	return NULL;
}

struct wh_fragment *rdma_next(struct rdma_peer *rdma, const struct rdma_endpoint *endpoint,
			      struct rdma_work **work)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk };

	*work = next_again(rdma, endpoint);
	if (*work)
		return (*work)->fragment;
	for (unsigned i = 0; i < 2; i++)
		for (struct wh_list *link = lists[i]->next; link != lists[i]; link = link->next) {
			struct wh_fragment *fragment = wh_container(link, struct wh_fragment, link);

			if (fragment->rails & 1u << endpoint->index)
				return fragment;
		}
	return NULL;
}

void rdma_taken(struct rdma_peer *rdma, struct wh_fragment *fragment, struct rdma_work *work,
		uint64_t length)
{
	rdma->queued -= length;
	if (work) {
		work->length -= length;
		if (!work->length)
			work->fragment = NULL;
	} else if (!fragment->cursor.left) {
		wh_list_remove(&fragment->link);
		wh_list_append(&rdma->sent, &fragment->link);
	}
}

/* ---- lines ----------------------------------------------------------------------------------- */

void rdma_measure(struct rdma_endpoint *endpoint, int64_t now)
{
	double speed;

	if (endpoint->marked < RDMA_SPLIT || now <= endpoint->mark)
		return;
	speed = (double)endpoint->marked / (double)(now - endpoint->mark);
	endpoint->speed = endpoint->speed > 0 && now - endpoint->measured < KNOWN_FOR ?
				  (3 * endpoint->speed + speed) / 4 :
				  speed;
	endpoint->measured = endpoint->mark = now;
	endpoint->marked = 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t within(uint64_t value, uint64_t low, uint64_t high)
{
	return value < low ? low : least(value, high);
}

/* What is known of these lines. */
struct look {
	double speed[RDMA_ENDPOINTS]; /* bytes a ns */
	bool known[RDMA_ENDPOINTS];
	/* to be taken at once, and to be on its way */
	uint64_t grain[RDMA_ENDPOINTS], most[RDMA_ENDPOINTS];
	double end[RDMA_ENDPOINTS]; /* when it would have finished a grain more, from now */
	double all; /* when all would have finished all that waits */
	double first; /* the least of `end` */
};

static void look(const struct rdma_peer *rdma, uint32_t endpoints, struct look *out)
{
	double most = 0, sum = 0, waiting = (double)rdma->queued;
	uint64_t part = rdma->queued / ((uint64_t)__builtin_popcount(endpoints) * GRAINS);
	int64_t now = wh_now();

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];

		out->known[i] = endpoint->speed > 0 && now - endpoint->measured < KNOWN_FOR;
		if (endpoints & 1u << i && out->known[i] && endpoint->speed > most)
			most = endpoint->speed;
	}
	out->first = -1;
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		uint64_t ahead = out->known[i] ? (uint64_t)(endpoint->speed * (double)AHEAD) : 0;

		if (!(endpoints & 1u << i))
			continue;
		/* One that is not known is taken for as fast as any, but for little at a time. */
		out->speed[i] = out->known[i] ? endpoint->speed : most > 0 ? most : 1;
		out->most[i] = ahead + (out->known[i] ? 4 : 2) * RDMA_SPLIT;
		out->grain[i] = RDMA_SPLIT;
		if (out->known[i])
			out->grain[i] =
				within(least(part, ahead / 2),
				       within(ahead / 5, GRAIN_LEAST, RDMA_SPLIT), UINT64_MAX);
		sum += out->speed[i];
		waiting += (double)endpoint->ahead;
		out->end[i] = (double)(endpoint->ahead + least(out->grain[i], rdma->queued)) /
			      out->speed[i];
		if (out->first < 0 || out->end[i] < out->first)
			out->first = out->end[i];
	}
	out->all = waiting / sum;
}

/* The lines that can carry something of what waits. */
static uint32_t with_work(struct rdma_peer *rdma)
{
	uint32_t ready = rdma_ready(rdma), able = 0;
	struct rdma_work *work;

	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (ready & 1u << i && rdma_next(rdma, rdma->endpoints[i], &work))
			able |= 1u << i;
	return able;
}

struct rdma_endpoint *rdma_only(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	struct rdma_endpoint *endpoint;
	uint32_t rails;

	if (rdma->queued || rdma->sorted != rdma->version || fragment->whole ||
	    fragment->bytes > RDMA_SPLIT)
		return NULL;
	rails = rdma_rails_of(rdma, fragment);
	if (!rails || rails & (rails - 1))
		return NULL;
	endpoint = rdma->endpoints[__builtin_ctz(rails)];
	return rdma_endpoint_has_room(endpoint) ? endpoint : NULL;
}

struct rdma_endpoint *rdma_choose(struct rdma_peer *rdma, uint64_t *grain)
{
	/* The others do not count: nothing is left to a fast one that cannot carry it. */
	uint32_t able = rdma->queued ? with_work(rdma) : 0;
	struct rdma_endpoint *best = NULL;
	struct look seen;

	if (!able)
		return NULL;
	if (!(able & (able - 1))) {
		best = rdma->endpoints[__builtin_ctz(able)];
		*grain = UINT64_MAX;
		return rdma_endpoint_has_room(best) ? best : NULL;
	}
	look(rdma, able, &seen);
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		struct rdma_endpoint *endpoint = rdma->endpoints[i];

		if (!(able & 1u << i) || !rdma_endpoint_has_room(endpoint) ||
		    (best && seen.end[i] >= seen.end[best->index]))
			continue;
		if (endpoint->ahead >= seen.most[i])
			continue;
		if (seen.end[i] > seen.first && seen.end[i] > seen.all)
			continue;
		best = endpoint;
	}
	if (best)
		*grain = seen.grain[best->index];
	return best;
}
