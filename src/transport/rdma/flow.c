/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: work requests out, completions in. All of it under rdma_peer.lock, unless it says
 * otherwise. */
#include <errno.h>
#include <string.h>

#include "gpu/staging.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define POLL_AT_ONCE 16

void rdma_ended(struct rdma_peer *rdma, struct wh_fragment *fragment, uint64_t length,
		struct wh_list *done)
{
	if (atomic_fetch_sub(&fragment->left, length) != length)
		return;
	rdma_take_out(rdma, fragment);
	wh_list_append(done, &fragment->link);
}

/* ---- composing ------------------------------------------------------------------------------- */

/* Requests that go with one doorbell. */
struct chain {
	unsigned count;
	struct ibv_send_wr requests[RDMA_CHAIN];
	struct ibv_sge segments[RDMA_CHAIN][RDMA_GATHER];
};

const struct wh_region *rdma_local_of(const struct wh_fragment *fragment, uint64_t index,
				      uint64_t *remote)
{
	if (fragment->blocks) {
		*remote = fragment->blocks->bases[index].remote;
		return fragment->blocks->bases[index].local;
	}
	*remote = fragment->batch->items[index].remote;
	return fragment->batch->items[index].local;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Put a run of ours behind what the request has. False: it does not fit. */
static bool gather(struct ibv_send_wr *request, uint32_t most, uint32_t key,
		   const struct wh_extent_pair *run)
{
	uint64_t address = (uint64_t)(uintptr_t)run->local;
	struct ibv_sge *last = request->sg_list + request->num_sge - 1;

	if (request->num_sge && last->lkey == key && last->addr + last->length == address) {
		last->length += (uint32_t)run->length;
		return true;
	}
	if ((uint32_t)request->num_sge == most)
		return false;
	request->sg_list[request->num_sge++] =
		(struct ibv_sge){ .addr = address, .length = (uint32_t)run->length, .lkey = key };
	return true;
}

/* Put *run, up to `most` bytes of it, into a request. False: there is no room, or no key. */
static bool put(const struct rdma_endpoint *endpoint, const struct wh_fragment *fragment,
		uint64_t most, struct wh_extent_pair *run, struct ibv_send_wr *request,
		bool *by_cpu)
{
	const struct rdma_memory *memory;
	const struct rdma_chunk *chunk;
	const struct wh_region *local;
	uint64_t into, remote;

	local = rdma_local_of(fragment, run->index, &remote);
	memory = rdma_registered(local, endpoint->here.nic);
	if (!memory)
		return false;
	into = (uint64_t)(run->local - (char *)(uintptr_t)local->entry.address);
	chunk = rdma_chunk_at(memory->mrs->chunks, memory->mrs->count, into);
	run->length = least(run->length, least(most, chunk->end - into));
	*by_cpu &= memory->mrs->method == WH_RDMA_HOST;
	return gather(request, endpoint->here.nic->gather, chunk->key, run);
}

/* Fill a request with up to `most` bytes that lie in one run in the peer's region: *run, which goes
 * from `start` to *at, and what touches on it. How many there are; *at is behind them. *by_cpu: the
 * CPU can read all of them. */
static uint64_t fill(const struct rdma_endpoint *endpoint, const struct wh_fragment *fragment,
		     struct wh_cursor start, struct wh_cursor *at, uint64_t most,
		     struct wh_extent_pair *run, struct ibv_send_wr *request, bool *by_cpu)
{
	uint64_t length = 0, offset = run->offset, remote = run->remote;

	while (run->remote == remote && run->offset == offset + length) {
		uint64_t whole = run->length;

		if (!put(endpoint, fragment, most - length, run, request, by_cpu))
			break;
		length += run->length;
		if (run->length < whole) {
			*at = start;
			wh_fragment_next(fragment, at, run->length, run);
		}
		if (length == most || !at->left)
			return length;
		start = *at;
		wh_fragment_next(fragment, at, most - length, run);
	}
	*at = start;
	return length;
}

/* The next work request of a piece, of up to `most` bytes from *at on. How many have been taken; if
 * their region has gone they have ended instead. */
static uint64_t compose(struct rdma_endpoint *endpoint, struct wh_fragment *fragment,
			struct wh_cursor *at, uint64_t most, struct chain *chain)
{
	struct ibv_send_wr *request = &chain->requests[chain->count];
	struct rdma_work *work = &endpoint->ring->works[endpoint->ring->head % RDMA_DEPTH];
	struct rdma_peer *rdma = endpoint->peer;
	const struct rdma_chunk *theirs;
	const struct rdma_keys *keys;
	struct wh_cursor start = *at;
	struct wh_remote_region *region;
	struct wh_extent_pair run = { 0 };
	bool by_cpu = true;
	uint64_t length;

	wh_fragment_next(fragment, at, most, &run);
	region = rdma_enter(rdma, run.remote);
	if (!region) {
		wh_fragment_fail(fragment, run.index, -ESTALE,
				 "region %#llx of %s is no longer published",
				 (unsigned long long)run.remote, rdma->peer->welcome.name);
		return run.length;
	}
	keys = rdma_keys_of(region, endpoint->nic);
	theirs = rdma_chunk_at(keys->chunks, keys->count, run.offset);
	most = least(most, theirs->end - run.offset);
	/* What else is in one is for other operations. */
	request->wr_id = endpoint->ring->head;
	request->next = NULL;
	request->sg_list = chain->segments[chain->count];
	request->num_sge = 0;
	request->opcode = fragment->op == WH_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	request->send_flags = 0;
	request->wr.rdma.remote_addr = region->entry.address + run.offset;
	request->wr.rdma.rkey = theirs->key;
	length = fill(endpoint, fragment, start, at, most, &run, request, &by_cpu);
	/* What is put into the request itself is read by the CPU. */
	if (fragment->op == WH_WRITE && length <= endpoint->inlined && by_cpu)
		request->send_flags |= IBV_SEND_INLINE;
	*work = (struct rdma_work){
		.fragment = fragment, .entry = &region->entry, .start = start, .length = length
	};
	fragment->in_flight++;
	endpoint->ahead += length;
	endpoint->ring->head++;
	chain->count++;
	return length;
}

/* Which requests of a chain ask for a completion: some, and the last. */
static void signal_some(struct rdma_endpoint *endpoint, struct chain *chain)
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

static void post(struct rdma_endpoint *endpoint, struct chain *chain)
{
	struct ibv_send_wr *bad;
	int error;

	if (endpoint->ring->head - endpoint->ring->tail == chain->count) { /* it was idle */
		endpoint->since = endpoint->mark = wh_now();
		endpoint->marked = 0;
	}
	signal_some(endpoint, chain);
	for (unsigned i = 0; i + 1 < chain->count; i++)
		chain->requests[i].next = &chain->requests[i + 1];
	error = wh_verbs_post(endpoint->qp, chain->requests, &bad);
	if (error)
		rdma_break(endpoint, false, "%s: ibv_post_send: %s", endpoint->mine.name,
			   strerror(error));
}

void rdma_post_notification(struct rdma_endpoint *endpoint, struct ibv_send_wr *request, bool idle)
{
	struct ibv_send_wr *bad;
	int error;

	if (idle) {
		endpoint->since = endpoint->mark = wh_now();
		endpoint->marked = 0;
	}
	/* Before it can complete, for nobody looks afterwards. */
	if (!endpoint->armed && wh_verbs_arm(endpoint->cq)) {
		rdma_break(endpoint, false, "%s: ibv_req_notify_cq failed", endpoint->mine.name);
		return;
	}
	endpoint->armed = true;
	request->send_flags |= IBV_SEND_SIGNALED;
	endpoint->unsignalled = 0;
	endpoint->unsignalled_bytes = 0;
	error = wh_verbs_post(endpoint->qp, request, &bad);
	if (error)
		rdma_break(endpoint, false, "%s: ibv_post_send: %s", endpoint->mine.name,
			   strerror(error));
}

void rdma_probe(struct rdma_endpoint *endpoint)
{
	/* Of no bytes, which needs no key. */
	struct chain chain = { .count = 1 };

	chain.requests[0] =
		(struct ibv_send_wr){ .wr_id = endpoint->ring->head, .opcode = IBV_WR_RDMA_WRITE };
	endpoint->ring->works[endpoint->ring->head % RDMA_DEPTH] = (struct rdma_work){ 0 };
	endpoint->ring->head++;
	if (wh_verbs_arm(endpoint->cq))
		rdma_break(endpoint, false, "%s: ibv_req_notify_cq failed", endpoint->mine.name);
	endpoint->armed = true;
	post(endpoint, &chain);
}

/* Its notification, if that was the last of it. */
static void follow(struct rdma_endpoint *endpoint, const struct wh_fragment *fragment,
		   struct chain *chain)
{
	bool room = chain->count < RDMA_CHAIN;

	if (rdma_notify_send_early(endpoint, fragment, room ? &chain->requests[chain->count] : NULL,
				   chain->segments[room ? chain->count : 0]))
		chain->count++;
}

/* The most that one request has. */
static uint64_t most_of(const struct rdma_endpoint *endpoint)
{
	return least((uint64_t)endpoint->peer->peer->engine->config.number[WH_SETTING_SLICE],
		     endpoint->here.message);
}

/* Compose requests for a line from what waits: about `grain` bytes, and all of what is small. */
static void load(struct rdma_peer *rdma, struct rdma_endpoint *endpoint, uint64_t grain,
		 struct chain *chain, struct wh_list *done)
{
	uint64_t most = most_of(endpoint);
	struct wh_fragment *fragment, *small = NULL;
	struct rdma_work *work;
	uint64_t taken = 0;

	while (rdma->queued && chain->count < RDMA_CHAIN &&
	       endpoint->ring->head - endpoint->ring->tail < RDMA_DEPTH &&
	       endpoint->ahead < RDMA_AHEAD) {
		unsigned before = chain->count;
		uint64_t length, slice;

		fragment = rdma_next(rdma, endpoint, &work);
		if (!fragment || (taken >= grain && fragment != small))
			return;
		small = fragment->bytes <= RDMA_SPLIT ? fragment : NULL;
		slice = small ? most : least(most, grain);
		length = compose(endpoint, fragment, work ? &work->start : &fragment->cursor,
				 work ? least(slice, work->length) : slice, chain);
		taken += length;
		rdma_taken(rdma, fragment, work, length);
		if (chain->count == before)
			rdma_ended(rdma, fragment, length, done);
		if (fragment == rdma->notify.ahead)
			follow(endpoint, fragment, chain);
	}
}

static void pump(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *away)
{
	struct rdma_endpoint *endpoint;
	struct chain chain;
	uint64_t grain;

	if (rdma->sorted != rdma->version)
		rdma_sort(rdma, away);
	while ((endpoint = rdma_choose(rdma, &grain))) {
		chain.count = 0;
		load(rdma, endpoint, grain, &chain, done);
		if (chain.count)
			post(endpoint, &chain);
	}
}

/* ---- completions ----------------------------------------------------------------------------- */

static void retire(struct rdma_endpoint *endpoint, struct wh_list *done)
{
	struct rdma_work *work = &endpoint->ring->works[endpoint->ring->tail++ % RDMA_DEPTH];
	struct rdma_peer *rdma = endpoint->peer;
	struct wh_fragment *fragment = work->fragment;

	if (work->notification) {
		rdma_notify_done(endpoint, work);
		return;
	}
	if (!fragment) { /* the probe: packets come through */
		endpoint->state = RDMA_READY;
		endpoint->proved = true;
		endpoint->backoff = RDMA_BACKOFF_FIRST;
		rdma->version++;
		pthread_cond_broadcast(&rdma->changed);
		atomic_fetch_add(&rdma->peer->plan_version, 1);
		return;
	}
	wh_region_entry_leave(work->entry);
	endpoint->ahead -= work->length;
	endpoint->marked += work->length;
	rdma_carried(endpoint, fragment, work->length);
	if (!--fragment->in_flight && !fragment->rails)
		rdma->version++; /* it has waited for this, to go elsewhere */
	rdma_ended(rdma, fragment, work->length, done);
}

static void failed(struct rdma_endpoint *endpoint, const struct ibv_wc *wc)
{
	struct rdma_work *work = &endpoint->ring->works[wc->wr_id % RDMA_DEPTH];

	/* A region whose keys were taken back: that is its own piece's affair. The others are sent
	 * again over another connection. */
	if (wc->status == IBV_WC_REM_ACCESS_ERR && work->fragment) {
		work->fragment->owner = endpoint;
		rdma_break(endpoint, true,
			   "the peer's NIC refuses the key of region %#llx: it is being taken back",
			   (unsigned long long)wh_region_entry_id(work->entry));
		return;
	}
	rdma_break(endpoint, false, "from %s to %s: %s (status %d, vendor %#x)",
		   endpoint->mine.name, endpoint->theirs.name, wh_verbs_status(wc->status),
		   wc->status, wc->vendor_err);
}

static bool carries(const struct rdma_endpoint *endpoint)
{
	return endpoint->state == RDMA_PROBING || endpoint->state == RDMA_READY;
}

/* True: there may be more. */
static bool poll_endpoint(struct rdma_endpoint *endpoint, struct wh_list *done)
{
	struct ibv_wc wcs[POLL_AT_ONCE];
	int got = wh_verbs_poll(endpoint->cq, POLL_AT_ONCE, wcs);

	if (got < 0)
		rdma_break(endpoint, false, "%s: ibv_poll_cq failed", endpoint->mine.name);
	for (int i = 0; i < got; i++) {
		if (wcs[i].status != IBV_WC_SUCCESS) {
			failed(endpoint, &wcs[i]);
			return false; /* all that follows is flushed */
		}
		while (rdma_endpoint_busy(endpoint) && endpoint->ring->tail <= wcs[i].wr_id)
			retire(endpoint, done);
	}
	/* One that is idle now has been at work for a moment only, and nobody asks how fast it was.
	 */
	if (got > 0 && (rdma_endpoint_busy(endpoint) || endpoint->marked >= RDMA_SPLIT)) {
		endpoint->since = wh_now();
		rdma_measure(endpoint, endpoint->since);
	}
	return got == POLL_AT_ONCE;
}

/* Somebody has to look at what nobody waits for. What completed before it was armed makes no event,
 * hence true: look again. */
static bool arm(struct rdma_endpoint *endpoint)
{
	if (endpoint->state != RDMA_READY || !endpoint->peer->unwatched || endpoint->armed ||
	    !rdma_endpoint_busy(endpoint))
		return false;
	endpoint->armed = !wh_verbs_arm(endpoint->cq);
	if (!endpoint->armed)
		rdma_break(endpoint, false, "%s: ibv_req_notify_cq failed", endpoint->mine.name);
	return endpoint->armed;
}

void rdma_progress(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *away)
{
	bool more;

	do {
		more = false;
		for (unsigned i = 0; i < rdma->endpoint_count; i++)
			if (carries(rdma->endpoints[i]) && rdma_endpoint_busy(rdma->endpoints[i]))
				more |= poll_endpoint(rdma->endpoints[i], done);
		if (rdma->queued || rdma->sorted != rdma->version)
			pump(rdma, done, away);
		for (unsigned i = 0; rdma->unwatched && i < rdma->endpoint_count; i++)
			more |= arm(rdma->endpoints[i]);
	} while (more);
}

bool rdma_alone(struct rdma_peer *rdma, struct wh_fragment *fragment, struct wh_list *done,
		struct wh_list *away)
{
	struct rdma_endpoint *endpoint = rdma_only(rdma, fragment);
	struct chain chain;
	uint64_t length;

	if (!endpoint)
		return false;
	chain.count = 0;
	fragment->in_flight = 0;
	length = compose(endpoint, fragment, &fragment->cursor, most_of(endpoint), &chain);
	rdma_take_in(rdma, fragment);
	if (chain.count)
		post(endpoint, &chain);
	else
		rdma_ended(rdma, fragment, length, done);
	if (rdma->queued || arm(endpoint))
		rdma_progress(rdma, done, away);
	return true;
}

/* ---- without the lock ------------------------------------------------------------------------ */

void rdma_fragments_done(struct wh_list *done)
{
	struct wh_list *link;

	while ((link = wh_list_take(done)))
		rdma_fragment_moved(wh_container(link, struct wh_fragment, link));
}

/* The lines that are left may be good for staging it. From its start: nothing of it is on its way.
 */
static bool stage_instead(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	unsigned sides = 0;
	bool again;

	if (fragment->whole || fragment->owner || atomic_load(&fragment->cancelled))
		return false;
	pthread_mutex_lock(&rdma->lock);
	sides = rdma_stage_wanted(rdma, fragment);
	pthread_mutex_unlock(&rdma->lock);
	if (!sides ||
	    (sides & RDMA_STAGE_OURS && wh_slots_prepare(rdma->rdma->engine->gpus, WH_SLOT_ASKS)))
		return false;
	pthread_mutex_lock(&rdma->lock); /* for whoever cancels */
	again = !atomic_load(&fragment->cancelled);
	if (again) {
		wh_fragment_start(fragment, &fragment->cursor);
		atomic_store(&fragment->left, fragment->bytes);
	}
	pthread_mutex_unlock(&rdma->lock);
	if (again)
		rdma_stage(rdma, fragment, sides);
	return again;
}

void rdma_fragments_in_flight(struct rdma_peer *rdma, struct wh_list *away)
{
	char why[WH_REFUSAL];
	struct wh_list *link;
	bool broken;

	if (wh_list_empty(away))
		return;
	pthread_mutex_lock(&rdma->lock);
	broken = !rdma_ready(rdma);
	memcpy(why, rdma->why, sizeof(why));
	pthread_mutex_unlock(&rdma->lock);
	while ((link = wh_list_take(away))) {
		struct wh_fragment *fragment = wh_container(link, struct wh_fragment, link);

		if (!stage_instead(rdma, fragment))
			wh_fragment_reroute(fragment, -EIO,
					    broken || fragment->owner ?
						    why :
						    "no NIC in use now reaches a region of it");
	}
}
