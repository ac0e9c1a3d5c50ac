/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: which endpoint takes how much of which fragment. All of it is under rdma_peer.lock.
 *
 * An endpoint takes a grain, some work requests with one doorbell, whenever it has room, so a fast
 * one takes more. Near the end of what is queued, an endpoint takes nothing that it would finish
 * after all others: each endpoint's speed is measured as it works. Small fragments go by one
 * endpoint. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define KNOWN_FOR WH_SECOND /* how long a measured speed is valid */
#define GRAINS 4 /* per endpoint, of what is queued, so that all endpoints end together */
/* An endpoint has about so much in flight as it moves in this time: a wrongly measured speed then
 * costs little. */
#define IN_FLIGHT_NS (5 * WH_MS)
/* bytes; a grain is never less than what the endpoint moves in 1 ms, bounded by GRAIN_LEAST and
 * RDMA_SPLIT */
#define GRAIN_LEAST 16384u

/* ---- fragments ------------------------------------------------------------------------------- */

uint32_t rdma_striping_able(const struct rdma_peer *rdma, const struct wh_region *local,
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
		memory = rdma_memory_find_reachable(local, endpoint->snapshot.nic);
		keys = rdma_keys_find(remote, endpoint->remote_nic);
		if (!memory || (op == WH_READ && !memory->writable) || !keys || keys->error)
			continue;
		able |= 1u << i;
		/* The sum: the bytes pass the buses at both ends. */
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

bool rdma_region_pairs_next(struct rdma_peer *rdma, struct rdma_region_pairs *pairs)
{
	const struct wh_fragment *fragment = pairs->fragment;

	if (pairs->remote)
		wh_region_entry_leave(&pairs->remote->entry);
	pairs->remote = NULL;
	while (pairs->next < fragment->count && !pairs->remote) {
		const struct wh_region *before = pairs->local;
		uint64_t id_before = pairs->remote_id;

		pairs->local = rdma_fragment_regions(fragment, fragment->first + pairs->next++,
						     &pairs->remote_id);
		if (pairs->local != before || pairs->remote_id != id_before)
			pairs->remote = rdma_remote_enter(rdma, pairs->remote_id);
	}
	return pairs->remote != NULL;
}

int rdma_batch_prepare(const struct wh_fragment *fragment)
{
	struct rdma_batch *kept = rdma_batch_of(fragment->batch);

	if (kept)
		return 0;
	kept = calloc(1, sizeof(*kept));
	if (!kept)
		return wh_fail(ENOMEM, "rdma: no memory for a batch");
	wh_batch_set_transport(fragment->batch, WH_TRANSPORT_RDMA, kept);
	return 0;
}

void rdma_batch_again(struct wh_batch *batch, void *state)
{
	struct rdma_batch *kept = state;

	(void)batch;
	if (!atomic_load_explicit(&kept->tried, memory_order_relaxed))
		return;
	for (unsigned i = 0; i < RDMA_ENDPOINTS; i++)
		atomic_store_explicit(&kept->bytes[i], 0, memory_order_relaxed);
	atomic_store_explicit(&kept->broken, 0, memory_order_relaxed);
	atomic_store_explicit(&kept->tried, false, memory_order_relaxed);
}

void rdma_batch_closed(struct wh_batch *batch, void *state)
{
	(void)batch;
	free(state);
}

uint64_t rdma_batch_bytes(const struct wh_batch *batch, unsigned endpoint)
{
	const struct rdma_batch *kept = rdma_batch_of(batch);

	return kept ? atomic_load(&kept->bytes[endpoint]) : 0;
}

static uint32_t striping_find_rails(struct rdma_peer *rdma, const struct wh_fragment *fragment)
{
	struct rdma_region_pairs pairs = { .fragment = fragment };
	uint32_t able = rdma_endpoints_ready(rdma), near = able, near_this;

	while (rdma_region_pairs_next(rdma, &pairs)) {
		able &= rdma_striping_able(rdma, pairs.local, pairs.remote, fragment->op,
					   &near_this);
		near &= near_this;
		if (!able) {
			wh_region_entry_leave(&pairs.remote->entry);
			break;
		}
	}
	return near ? near : able;
}

uint32_t rdma_striping_rails(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	/* A fragment that is submitted again has the same regions. */
	if (!rdma_of(fragment)->rails_of || rdma_of(fragment)->rails_of != rdma->version) {
		rdma_of(fragment)->rails = striping_find_rails(rdma, fragment);
		rdma_of(fragment)->rails_of = rdma->version;
	}
	return rdma_of(fragment)->rails;
}

void rdma_striping_add(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	bool urgent = fragment->priority == WH_PRIORITY_LATENCY;

	wh_list_append(!fragment->cursor.left ? &rdma->sent :
		       urgent                 ? &rdma->urgent :
						&rdma->bulk,
		       &fragment->link);
	rdma_polling_add(rdma, fragment);
	rdma->queued += fragment->cursor.left;
	/* Let rdma_striping_sort() decide whether it waits or is rerouted. */
	if (!rdma_striping_rails(rdma, fragment))
		rdma->version++;
	atomic_store_explicit(&rdma_batch_of(fragment->batch)->tried, true, memory_order_relaxed);
}

void rdma_striping_remove(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	rdma->queued -= fragment->cursor.left + rdma_resend_forget(rdma, fragment);
	wh_list_remove(&fragment->link);
	rdma_polling_remove(rdma, fragment);
}

void rdma_striping_sort(struct rdma_peer *rdma, struct wh_list *reroute)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk, &rdma->sent };
	bool pending = rdma_endpoints_pending(rdma);

	rdma->sorted_version = rdma->version;
	for (unsigned i = 0; i < 3; i++) {
		struct wh_list *link, *next;

		for (link = lists[i]->next; link != lists[i]; link = next) {
			struct wh_fragment *fragment = wh_container(link, struct wh_fragment, link);

			next = link->next;
			/* The owner's NIC refused one of its keys (flow_failed()): no endpoint
			 * tries again. */
			if (fragment->owner)
				rdma_of(fragment)->rails = rdma_of(fragment)->rails_of = 0;
			else
				rdma_striping_rails(rdma, fragment);
			if (rdma_of(fragment)->rails || rdma_of(fragment)->in_flight ||
			    (pending && !fragment->owner))
				continue;
			rdma_striping_remove(rdma, fragment);
			fragment->cursor.left = 0; /* rdma_cancel() must find nothing of it */
			wh_list_append(reroute, &fragment->link);
		}
	}
}

/* ---- resending ------------------------------------------------------------------------------- */

uint64_t rdma_resend_forget(struct rdma_peer *rdma, const struct wh_fragment *fragment)
{
	struct wh_list *link;
	uint64_t bytes = 0;

	for (link = rdma->resend.next; link != &rdma->resend; link = link->next) {
		struct rdma_work_ring *ring = wh_container(link, struct rdma_work_ring, link);

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

void rdma_resend_collect(struct rdma_endpoint *endpoint, struct wh_list *done)
{
	struct rdma_peer *rdma = endpoint->peer;
	struct rdma_work_ring *ring = endpoint->ring;

	endpoint->ring = NULL;
	if (!ring)
		return;
	for (uint64_t i = ring->tail; i != ring->head; i++) {
		struct rdma_work *work = &ring->works[i % RDMA_DEPTH];
		struct wh_fragment *fragment = work->fragment;

		if (!fragment)
			continue;
		atomic_fetch_or(&rdma_batch_of(fragment->batch)->broken, 1u << endpoint->index);
		rdma_of(fragment)->in_flight--;
		/* The owner's NIC has answered a read that is before a confirmed notification; the
		 * answer may have been lost. */
		if (i < ring->arrived && fragment->op == WH_WRITE) {
			work->fragment = NULL;
			rdma_endpoint_count_bytes(endpoint, fragment, work->length);
			rdma_fragment_ended(rdma, fragment, work->length, done);
			continue;
		}
		if (!atomic_load(&fragment->cancelled)) {
			rdma->queued += work->length;
			continue;
		}
		work->fragment = NULL;
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		rdma_fragment_ended(rdma, fragment, work->length, done);
	}
	wh_list_append(&rdma->resend, &ring->link);
}

/* The first request to resend that this endpoint can carry. Drops finished ones on the way. */
static struct rdma_work *resend_next(struct rdma_peer *rdma, const struct rdma_endpoint *endpoint)
{
	struct wh_list *link, *after;

	for (link = rdma->resend.next; link != &rdma->resend; link = after) {
		struct rdma_work_ring *ring = wh_container(link, struct rdma_work_ring, link);

		after = link->next;
		while (ring->tail != ring->head && !ring->works[ring->tail % RDMA_DEPTH].fragment)
			ring->tail++;
		for (uint64_t i = ring->tail; i != ring->head; i++) {
			struct rdma_work *work = &ring->works[i % RDMA_DEPTH];

			if (work->fragment &&
			    rdma_of(work->fragment)->rails & 1u << endpoint->index)
				return work;
		}
		if (ring->tail == ring->head) {
			wh_list_remove(&ring->link);
			free(ring);
		}
	}
	return NULL;
}

struct wh_fragment *rdma_striping_next(struct rdma_peer *rdma, const struct rdma_endpoint *endpoint,
				       struct rdma_work **work)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk };

	*work = resend_next(rdma, endpoint);
	if (*work)
		return (*work)->fragment;
	for (unsigned i = 0; i < 2; i++)
		for (struct wh_list *link = lists[i]->next; link != lists[i]; link = link->next) {
			struct wh_fragment *fragment = wh_container(link, struct wh_fragment, link);

			if (rdma_of(fragment)->rails & 1u << endpoint->index)
				return fragment;
		}
	return NULL;
}

void rdma_striping_taken(struct rdma_peer *rdma, struct wh_fragment *fragment,
			 struct rdma_work *work, uint64_t length)
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

/* ---- endpoints ------------------------------------------------------------------------------- */

void rdma_endpoint_measure(struct rdma_endpoint *endpoint, int64_t now)
{
	double speed;

	if (endpoint->interval_bytes < RDMA_SPLIT || now <= endpoint->interval_start)
		return;
	speed = (double)endpoint->interval_bytes / (double)(now - endpoint->interval_start);
	endpoint->speed = endpoint->speed > 0 && now - endpoint->measured_at < KNOWN_FOR ?
				  (3 * endpoint->speed + speed) / 4 :
				  speed;
	endpoint->measured_at = endpoint->interval_start = now;
	endpoint->interval_bytes = 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
	return value < low ? low : smaller(value, high);
}

/* What rdma_striping_choose() knows of the endpoints. */
struct striping_view {
	double speed[RDMA_ENDPOINTS]; /* bytes/ns */
	bool known[RDMA_ENDPOINTS];
	/* bytes: to take at once; most in flight */
	uint64_t grain[RDMA_ENDPOINTS], most[RDMA_ENDPOINTS];
	double end[RDMA_ENDPOINTS]; /* ns from now until it has finished one more grain */
	double all; /* ns until all endpoints together have finished all that is queued */
	double first; /* the smallest `end` */
};

static void striping_view(const struct rdma_peer *rdma, uint32_t endpoints,
			  struct striping_view *out)
{
	double most = 0, sum = 0, waiting = (double)rdma->queued;
	uint64_t part = rdma->queued / ((uint64_t)__builtin_popcount(endpoints) * GRAINS);
	int64_t now = wh_now();

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];

		out->known[i] = endpoint->speed > 0 && now - endpoint->measured_at < KNOWN_FOR;
		if (endpoints & 1u << i && out->known[i] && endpoint->speed > most)
			most = endpoint->speed;
	}
	out->first = -1;
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		uint64_t in_flight =
			out->known[i] ? (uint64_t)(endpoint->speed * (double)IN_FLIGHT_NS) : 0;

		if (!(endpoints & 1u << i))
			continue;
		/* An endpoint of unknown speed counts as the fastest, but takes little at once. */
		out->speed[i] = out->known[i] ? endpoint->speed : most > 0 ? most : 1;
		out->most[i] = in_flight + (out->known[i] ? 4 : 2) * RDMA_SPLIT;
		out->grain[i] = RDMA_SPLIT;
		if (out->known[i])
			out->grain[i] =
				clamp(smaller(part, in_flight / 2),
				      clamp(in_flight / 5, GRAIN_LEAST, RDMA_SPLIT), UINT64_MAX);
		sum += out->speed[i];
		waiting += (double)endpoint->in_flight;
		out->end[i] = (double)(endpoint->in_flight + smaller(out->grain[i], rdma->queued)) /
			      out->speed[i];
		if (out->first < 0 || out->end[i] < out->first)
			out->first = out->end[i];
	}
	out->all = waiting / sum;
}

/* The endpoints that can carry some of what is queued. */
static uint32_t striping_with_work(struct rdma_peer *rdma)
{
	uint32_t ready = rdma_endpoints_ready(rdma), able = 0;
	struct rdma_work *work;

	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (ready & 1u << i && rdma_striping_next(rdma, rdma->endpoints[i], &work))
			able |= 1u << i;
	return able;
}

struct rdma_endpoint *rdma_striping_single(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	struct rdma_endpoint *endpoint;
	uint32_t rails;

	if (rdma->queued || rdma->sorted_version != rdma->version || fragment->whole ||
	    fragment->bytes > RDMA_SPLIT)
		return NULL;
	rails = rdma_striping_rails(rdma, fragment);
	if (!rails || rails & (rails - 1))
		return NULL;
	endpoint = rdma->endpoints[__builtin_ctz(rails)];
	return rdma_endpoint_has_room(endpoint) ? endpoint : NULL;
}

struct rdma_endpoint *rdma_striping_choose(struct rdma_peer *rdma, uint64_t *grain)
{
	/* Only these: bytes must not wait for a fast endpoint that cannot carry them. */
	uint32_t able = rdma->queued ? striping_with_work(rdma) : 0;
	struct rdma_endpoint *best = NULL;
	struct striping_view seen;

	if (!able)
		return NULL;
	if (!(able & (able - 1))) {
		best = rdma->endpoints[__builtin_ctz(able)];
		*grain = UINT64_MAX;
		return rdma_endpoint_has_room(best) ? best : NULL;
	}
	striping_view(rdma, able, &seen);
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		struct rdma_endpoint *endpoint = rdma->endpoints[i];

		if (!(able & 1u << i) || !rdma_endpoint_has_room(endpoint) ||
		    (best && seen.end[i] >= seen.end[best->index]))
			continue;
		if (endpoint->in_flight >= seen.most[i])
			continue;
		if (seen.end[i] > seen.first && seen.end[i] > seen.all)
			continue;
		best = endpoint;
	}
	if (best)
		*grain = seen.grain[best->index];
	return best;
}
