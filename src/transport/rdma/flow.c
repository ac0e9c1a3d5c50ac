/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: post work requests, poll for completions. All of it is under rdma_peer.lock, unless a
 * function says otherwise. */
#include <errno.h>
#include <string.h>

#include "gpu/staging.h"
#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define POLL_AT_ONCE 16

void rdma_fragment_ended(struct rdma_peer *rdma, struct wh_fragment *fragment, uint64_t length,
			 struct wh_list *done)
{
	if (atomic_fetch_sub(&fragment->left, length) != length)
		return;
	rdma_striping_remove(rdma, fragment);
	wh_list_append(done, &fragment->link);
}

/* ---- composing work requests ----------------------------------------------------------------- */

/* Work requests that go with one doorbell. */
struct chain {
	unsigned count;
	struct ibv_send_wr requests[RDMA_CHAIN];
	struct ibv_sge segments[RDMA_CHAIN][RDMA_GATHER];
};

const struct wh_region *rdma_fragment_regions(const struct wh_fragment *fragment, uint64_t index,
					      uint64_t *remote)
{
	*remote = wh_fragment_remote(fragment, index);
	return wh_fragment_local(fragment, index);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Append a local extent to the request. False: it has no room. */
static bool flow_gather(struct ibv_send_wr *request, uint32_t most, uint32_t key,
			const struct wh_extent_pair *extent)
{
	uint64_t address = (uint64_t)(uintptr_t)extent->local;
	struct ibv_sge *last = request->sg_list + request->num_sge - 1;

	if (request->num_sge && last->lkey == key && last->addr + last->length == address) {
		last->length += (uint32_t)extent->length;
		return true;
	}
	if ((uint32_t)request->num_sge == most)
		return false;
	request->sg_list[request->num_sge++] = (struct ibv_sge){ .addr = address,
								 .length = (uint32_t)extent->length,
								 .lkey = key };
	return true;
}

/* Append *extent, up to `most` bytes of it, to the request. False: no room, or no local key. */
static bool flow_put_extent(const struct rdma_endpoint *endpoint,
			    const struct wh_fragment *fragment, uint64_t most,
			    struct wh_extent_pair *extent, struct ibv_send_wr *request,
			    bool *by_cpu)
{
	const struct rdma_memory *memory;
	const struct rdma_chunk *chunk;
	const struct wh_region *local;
	uint64_t into, remote;

	local = rdma_fragment_regions(fragment, extent->index, &remote);
	memory = rdma_memory_find_reachable(local, endpoint->snapshot.nic);
	if (!memory)
		return false;
	into = (uint64_t)(extent->local - (char *)(uintptr_t)local->entry.address);
	chunk = rdma_chunk_at(memory->mrs->chunks, memory->mrs->count, into);
	extent->length = least(extent->length, least(most, chunk->end - into));
	*by_cpu &= memory->mrs->method == WH_RDMA_HOST;
	return flow_gather(request, endpoint->snapshot.nic->gather, chunk->key, extent);
}

/* Fill a request with up to `most` bytes that are contiguous in the remote region: *extent, which
 * reaches from `start` to *at, and its neighbours. Returns the bytes and moves *at behind them.
 * Clears *by_cpu if the CPU cannot read all of them. */
static uint64_t flow_fill(const struct rdma_endpoint *endpoint, const struct wh_fragment *fragment,
			  struct wh_cursor start, struct wh_cursor *at, uint64_t most,
			  struct wh_extent_pair *extent, struct ibv_send_wr *request, bool *by_cpu)
{
	uint64_t length = 0, offset = extent->offset, remote = extent->remote;

	while (extent->remote == remote && extent->offset == offset + length) {
		uint64_t whole = extent->length;

		if (!flow_put_extent(endpoint, fragment, most - length, extent, request, by_cpu))
			break;
		length += extent->length;
		if (extent->length < whole) {
			*at = start;
			wh_fragment_next(fragment, at, extent->length, extent);
		}
		if (length == most || !at->left)
			return length;
		start = *at;
		wh_fragment_next(fragment, at, most - length, extent);
	}
	*at = start;
	return length;
}

/* Compose a fragment's next work request, of up to `most` bytes from *at on. Returns the bytes
 * taken. If the remote region is gone, no request is added and the bytes have failed. */
static uint64_t flow_compose(struct rdma_endpoint *endpoint, struct wh_fragment *fragment,
			     struct wh_cursor *at, uint64_t most, struct chain *chain)
{
	struct ibv_send_wr *request = &chain->requests[chain->count];
	struct rdma_work *work = &endpoint->ring->works[endpoint->ring->head % RDMA_DEPTH];
	struct rdma_peer *rdma = endpoint->peer;
	const struct rdma_chunk *remote_chunk;
	const struct rdma_keys *keys;
	struct wh_cursor start = *at;
	struct wh_remote_region *region;
	struct wh_extent_pair extent = { 0 };
	bool by_cpu = true;
	uint64_t length;

	wh_fragment_next(fragment, at, most, &extent);
	region = rdma_remote_enter(rdma, extent.remote);
	if (!region) {
		wh_fragment_fail(fragment, extent.index, -ESTALE,
				 "region %#llx of %s is no longer published",
				 (unsigned long long)extent.remote, wh_peer_name(rdma->peer));
		return extent.length;
	}
	keys = rdma_keys_find(region, endpoint->remote_nic);
	remote_chunk = rdma_chunk_at(keys->chunks, keys->count, extent.offset);
	most = least(most, remote_chunk->end - extent.offset);
	/* Set single members: the rest of the structure is for other operations. */
	request->wr_id = endpoint->ring->head;
	request->next = NULL;
	request->sg_list = chain->segments[chain->count];
	request->num_sge = 0;
	request->opcode = fragment->op == WH_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	request->send_flags = 0;
	request->wr.rdma.remote_addr = region->entry.address + extent.offset;
	request->wr.rdma.rkey = remote_chunk->key;
	length = flow_fill(endpoint, fragment, start, at, most, &extent, request, &by_cpu);
	/* The CPU reads inline data. */
	if (fragment->op == WH_WRITE && length <= endpoint->max_inline && by_cpu)
		request->send_flags |= IBV_SEND_INLINE;
	*work = (struct rdma_work){
		.fragment = fragment, .entry = &region->entry, .start = start, .length = length
	};
	rdma_of(fragment)->in_flight++;
	endpoint->in_flight += length;
	endpoint->ring->head++;
	chain->count++;
	return length;
}

/* Decide which requests of a chain ask for a completion: some, and the last. */
static void chain_signal(struct rdma_endpoint *endpoint, struct chain *chain)
{
	for (unsigned i = 0; i < chain->count; i++) {
		struct ibv_send_wr *request = &chain->requests[i];

		for (int n = 0; n < request->num_sge; n++)
			endpoint->unsignalled_bytes += request->sg_list[n].length;
		if (++endpoint->unsignalled < RDMA_SIGNAL &&
		    endpoint->unsignalled_bytes < RDMA_SIGNAL_BYTES && i + 1 < chain->count)
			continue;
		request->send_flags |= IBV_SEND_SIGNALED;
		endpoint->unsignalled = 0;
		endpoint->unsignalled_bytes = 0;
	}
}

static void chain_post(struct rdma_endpoint *endpoint, struct chain *chain)
{
	struct ibv_send_wr *bad;
	int error;

	if (endpoint->ring->head - endpoint->ring->tail == chain->count) { /* it was idle */
		endpoint->since = endpoint->interval_start = wh_now();
		endpoint->interval_bytes = 0;
	}
	chain_signal(endpoint, chain);
	for (unsigned i = 0; i + 1 < chain->count; i++)
		chain->requests[i].next = &chain->requests[i + 1];
	error = wh_verbs_post(endpoint->qp, chain->requests, &bad);
	if (error)
		rdma_endpoint_break(endpoint, false, "%s: ibv_post_send: %s",
				    endpoint->local_end.name, strerror(error));
}

void rdma_endpoint_post_notification(struct rdma_endpoint *endpoint, struct ibv_send_wr *request,
				     bool idle)
{
	struct ibv_send_wr *bad;
	int error;

	if (idle) {
		endpoint->since = endpoint->interval_start = wh_now();
		endpoint->interval_bytes = 0;
	}
	/* Arm before it can complete: no thread polls afterwards. */
	if (!endpoint->armed && wh_verbs_arm(endpoint->cq)) {
		rdma_endpoint_break(endpoint, false, "%s: ibv_req_notify_cq failed",
				    endpoint->local_end.name);
		return;
	}
	endpoint->armed = true;
	request->send_flags |= IBV_SEND_SIGNALED;
	endpoint->unsignalled = 0;
	endpoint->unsignalled_bytes = 0;
	error = wh_verbs_post(endpoint->qp, request, &bad);
	if (error)
		rdma_endpoint_break(endpoint, false, "%s: ibv_post_send: %s",
				    endpoint->local_end.name, strerror(error));
}

void rdma_endpoint_probe(struct rdma_endpoint *endpoint)
{
	/* A write of no bytes needs no key. */
	struct chain chain = { .count = 1 };

	chain.requests[0] =
		(struct ibv_send_wr){ .wr_id = endpoint->ring->head, .opcode = IBV_WR_RDMA_WRITE };
	endpoint->ring->works[endpoint->ring->head % RDMA_DEPTH] = (struct rdma_work){ 0 };
	endpoint->ring->head++;
	if (wh_verbs_arm(endpoint->cq))
		rdma_endpoint_break(endpoint, false, "%s: ibv_req_notify_cq failed",
				    endpoint->local_end.name);
	endpoint->armed = true;
	chain_post(endpoint, &chain);
}

/* Append the fragment's notification, if that was its last byte. */
static void chain_follow(struct rdma_endpoint *endpoint, const struct wh_fragment *fragment,
			 struct chain *chain)
{
	bool room = chain->count < RDMA_CHAIN;

	if (rdma_notify_send_early(endpoint, fragment, room ? &chain->requests[chain->count] : NULL,
				   chain->segments[room ? chain->count : 0]))
		chain->count++;
}

/* Most bytes of one work request. */
static uint64_t endpoint_max_message(const struct rdma_endpoint *endpoint)
{
	return least(
		(uint64_t)wh_engine_config(endpoint->peer->rdma->engine)->number[WH_SETTING_SLICE],
		endpoint->snapshot.message);
}

/* Compose requests for an endpoint from what is queued: about `grain` bytes, and all of a small
 * fragment. */
static void chain_load(struct rdma_peer *rdma, struct rdma_endpoint *endpoint, uint64_t grain,
		       struct chain *chain, struct wh_list *done)
{
	uint64_t most = endpoint_max_message(endpoint);
	struct wh_fragment *fragment, *small = NULL;
	struct rdma_work *work;
	uint64_t taken = 0;

	while (rdma->queued && chain->count < RDMA_CHAIN &&
	       endpoint->ring->head - endpoint->ring->tail < RDMA_DEPTH &&
	       endpoint->in_flight < RDMA_MAX_IN_FLIGHT) {
		unsigned before = chain->count;
		uint64_t length, limit;

		fragment = rdma_striping_next(rdma, endpoint, &work);
		if (!fragment || (taken >= grain && fragment != small))
			return;
		small = fragment->bytes <= RDMA_SPLIT ? fragment : NULL;
		limit = small ? most : least(most, grain);
		length = flow_compose(endpoint, fragment, work ? &work->start : &fragment->cursor,
				      work ? least(limit, work->length) : limit, chain);
		taken += length;
		rdma_striping_taken(rdma, fragment, work, length);
		if (chain->count == before)
			rdma_fragment_ended(rdma, fragment, length, done);
		if (fragment == rdma->notify.early)
			chain_follow(endpoint, fragment, chain);
	}
}

static void flow_pump(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *reroute)
{
	struct rdma_endpoint *endpoint;
	struct chain chain;
	uint64_t grain;

	if (rdma->sorted_version != rdma->version)
		rdma_striping_sort(rdma, reroute);
	while ((endpoint = rdma_striping_choose(rdma, &grain))) {
		chain.count = 0;
		chain_load(rdma, endpoint, grain, &chain, done);
		if (chain.count)
			chain_post(endpoint, &chain);
	}
}

/* ---- completions ----------------------------------------------------------------------------- */

static void flow_retire(struct rdma_endpoint *endpoint, struct wh_list *done)
{
	struct rdma_work *work = &endpoint->ring->works[endpoint->ring->tail++ % RDMA_DEPTH];
	struct rdma_peer *rdma = endpoint->peer;
	struct wh_fragment *fragment = work->fragment;

	if (work->notification) {
		rdma_notify_done(endpoint, work);
		return;
	}
	if (!fragment) { /* the probe: packets get through */
		if (!rdma_endpoints_ready(rdma))
			rdma->ready_at = wh_now();
		endpoint->state = RDMA_READY;
		endpoint->verified = true;
		endpoint->backoff = RDMA_BACKOFF_FIRST;
		rdma->version++;
		wh_peer_replan(rdma->peer);
		wh_peer_reach_again(rdma->peer);
		return;
	}
	wh_region_entry_leave(work->entry);
	endpoint->in_flight -= work->length;
	endpoint->interval_bytes += work->length;
	rdma_endpoint_count_bytes(endpoint, fragment, work->length);
	if (!--rdma_of(fragment)->in_flight && !rdma_of(fragment)->rails)
		rdma->version++; /* it waits for this before it is rerouted */
	rdma_fragment_ended(rdma, fragment, work->length, done);
}

static void flow_failed(struct rdma_endpoint *endpoint, const struct ibv_wc *wc)
{
	struct rdma_work *work = &endpoint->ring->works[wc->wr_id % RDMA_DEPTH];

	/* The remote key is invalid: the owner removes the region. That fails its own fragment
	 * only; the others are sent again by a new connection. */
	if (wc->status == IBV_WC_REM_ACCESS_ERR && work->fragment) {
		work->fragment->owner = endpoint;
		rdma_endpoint_break(
			endpoint, true,
			"the peer's NIC refuses the key of region %#llx: it is being removed",
			(unsigned long long)wh_region_entry_id(work->entry));
		return;
	}
	rdma_endpoint_break(endpoint, false, "from %s to %s: %s (status %d, vendor %#x)",
			    endpoint->local_end.name, endpoint->remote_end.name,
			    wh_verbs_status(wc->status), wc->status, wc->vendor_err);
}

static bool endpoint_is_connected(const struct rdma_endpoint *endpoint)
{
	return endpoint->state == RDMA_PROBING || endpoint->state == RDMA_READY;
}

/* True: there may be more completions. */
static bool endpoint_poll(struct rdma_endpoint *endpoint, struct wh_list *done)
{
	struct ibv_wc wcs[POLL_AT_ONCE];
	int got = wh_verbs_poll(endpoint->cq, POLL_AT_ONCE, wcs);

	if (got < 0)
		rdma_endpoint_break(endpoint, false, "%s: ibv_poll_cq failed",
				    endpoint->local_end.name);
	for (int i = 0; i < got; i++) {
		if (wcs[i].status != IBV_WC_SUCCESS) {
			flow_failed(endpoint, &wcs[i]);
			return false; /* the rest is flushed */
		}
		while (rdma_endpoint_busy(endpoint) && endpoint->ring->tail <= wcs[i].wr_id)
			flow_retire(endpoint, done);
	}
	/* An endpoint that has become idle worked for a moment only: its speed does not matter. */
	if (got > 0 && (rdma_endpoint_busy(endpoint) || endpoint->interval_bytes >= RDMA_SPLIT)) {
		endpoint->since = wh_now();
		rdma_endpoint_measure(endpoint, endpoint->since);
	}
	return got == POLL_AT_ONCE;
}

/* Ask for an event if no thread polls. True: poll again, because what completed before arming makes
 * no event. */
static bool endpoint_arm(struct rdma_endpoint *endpoint)
{
	if (endpoint->state != RDMA_READY || !endpoint->peer->unpolled || endpoint->armed ||
	    !rdma_endpoint_busy(endpoint))
		return false;
	endpoint->armed = !wh_verbs_arm(endpoint->cq);
	if (!endpoint->armed)
		rdma_endpoint_break(endpoint, false, "%s: ibv_req_notify_cq failed",
				    endpoint->local_end.name);
	return endpoint->armed;
}

void rdma_progress(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *reroute)
{
	bool more;

	do {
		more = false;
		for (unsigned i = 0; i < rdma->endpoint_count; i++)
			if (endpoint_is_connected(rdma->endpoints[i]) &&
			    rdma_endpoint_busy(rdma->endpoints[i]))
				more |= endpoint_poll(rdma->endpoints[i], done);
		if (rdma->queued || rdma->sorted_version != rdma->version)
			flow_pump(rdma, done, reroute);
		for (unsigned i = 0; rdma->unpolled && i < rdma->endpoint_count; i++)
			more |= endpoint_arm(rdma->endpoints[i]);
	} while (more);
}

bool rdma_post_single(struct rdma_peer *rdma, struct wh_fragment *fragment, struct wh_list *done,
		      struct wh_list *reroute)
{
	struct rdma_endpoint *endpoint = rdma_striping_single(rdma, fragment);
	struct chain chain;
	uint64_t length;

	if (!endpoint)
		return false;
	chain.count = 0;
	rdma_of(fragment)->in_flight = 0;
	length = flow_compose(endpoint, fragment, &fragment->cursor, endpoint_max_message(endpoint),
			      &chain);
	rdma_striping_add(rdma, fragment);
	if (chain.count)
		chain_post(endpoint, &chain);
	else
		rdma_fragment_ended(rdma, fragment, length, done);
	if (rdma->queued || endpoint_arm(endpoint))
		rdma_progress(rdma, done, reroute);
	return true;
}

/* ---- without the lock ------------------------------------------------------------------------ */

void rdma_fragments_done(struct wh_list *done)
{
	struct wh_list *link;

	while ((link = wh_list_take(done)))
		rdma_fragment_moved(wh_container(link, struct wh_fragment, link));
}

/* The remaining endpoints may reach the fragment by staging. It starts anew: nothing of it is in
 * flight. */
static bool flow_stage_instead(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	unsigned sides = 0;
	bool again;

	if (fragment->whole || fragment->owner || atomic_load(&fragment->cancelled))
		return false;
	pthread_mutex_lock(&rdma->lock);
	sides = rdma_stage_sides(rdma, fragment);
	pthread_mutex_unlock(&rdma->lock);
	if (!sides || rdma_stage_prepare(rdma, fragment, sides))
		return false;
	pthread_mutex_lock(&rdma->lock); /* rdma_cancel() may run at the same time */
	again = !atomic_load(&fragment->cancelled);
	if (again) {
		wh_fragment_start(fragment, &fragment->cursor);
		atomic_store(&fragment->left, fragment->bytes);
	}
	pthread_mutex_unlock(&rdma->lock);
	if (again)
		rdma_stage_start(rdma, fragment, sides);
	return again;
}

void rdma_fragments_reroute(struct rdma_peer *rdma, struct wh_list *reroute)
{
	char why[WH_REFUSAL];
	struct wh_list *link;
	bool broken;

	if (wh_list_empty(reroute))
		return;
	pthread_mutex_lock(&rdma->lock);
	broken = !rdma_endpoints_ready(rdma);
	memcpy(why, rdma->why, sizeof(why));
	pthread_mutex_unlock(&rdma->lock);
	while ((link = wh_list_take(reroute))) {
		struct wh_fragment *fragment = wh_container(link, struct wh_fragment, link);

		if (!flow_stage_instead(rdma, fragment))
			wh_fragment_reroute(fragment, -EIO,
					    broken || fragment->owner ?
						    why :
						    "no NIC in use reaches one of its regions");
	}
}
