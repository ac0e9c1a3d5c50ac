/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: work requests out, completions in. All of it under rdma_peer.lock, unless it says otherwise. */
#include <errno.h>
#include <string.h>

#include "transport/rdma.h"
#include "util/clock.h"

#define POLL_AT_ONCE 16

bool rdma_watched(const struct wh_piece *piece)
{
	const struct wh_batch *batch = piece->batch;

	return batch->peer->engine->config.number[WH_KNOB_SPIN] && !batch->callback && !batch->queue;
}

void rdma_take_out(struct rdma_peer *rdma, struct wh_piece *piece)
{
	wh_list_remove(&piece->link);
	rdma->unwatched -= !rdma_watched(piece);
}

/* Bytes of the piece have ended. */
static void ended(struct rdma_peer *rdma, struct wh_piece *piece, uint64_t length, struct wh_list *done)
{
	if (atomic_fetch_sub(&piece->left, length) != length)
		return;
	rdma_take_out(rdma, piece);
	wh_list_append(done, &piece->link);
}

/* ---- composing --------------------------------------------------------------------------------- */

static const struct wh_region *local_of(const struct wh_piece *piece, uint64_t index, uint64_t *remote)
{
	if (piece->blocks) {
		*remote = piece->blocks->bases[index].remote;
		return piece->blocks->bases[index].local;
	}
	*remote = piece->batch->items[index].remote;
	return piece->batch->items[index].local;
}

/* Can all of a piece be moved over this connection? It was so when it was planned, but the connection may
 * be another since. A region that has gone is told when its bytes are due. */
static bool ready_for(struct rdma_peer *rdma, const struct wh_piece *piece)
{
	const struct wh_region *local, *local_before = NULL;
	uint64_t remote, remote_before = 0;

	for (uint64_t i = piece->first; i < piece->first + piece->count; i++) {
		const struct rdma_memory *memory;
		const struct rdma_keys *keys;
		struct wh_place *place;
		bool good;

		local = local_of(piece, i, &remote);
		if (local == local_before && remote == remote_before)
			continue;
		local_before = local;
		remote_before = remote;
		memory = rdma_registered(local, rdma->here.nic);
		if (!memory || (piece->op == WH_READ && !memory->writable))
			return false;
		place = wh_place_enter(&rdma->peer->regions, remote);
		if (!place)
			continue;
		keys = rdma_keys_of(wh_container(place, struct wh_remote_region, place), rdma->nic);
		good = keys && !keys->error;
		wh_place_leave(place);
		if (!good)
			return false;
	}
	return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Add the runs that lie behind the first on both sides, up to `most` bytes. */
static void join(const struct wh_piece *piece, struct wh_cursor *at, struct wh_run *run, uint64_t most)
{
	uint64_t remote;
	const struct wh_region *local = local_of(piece, run->index, &remote);

	while (run->length < most) {
		struct wh_cursor next = *at;
		struct wh_run more;

		if (!wh_piece_next(piece, &next, most - run->length, &more) ||
		    more.local != run->local + run->length || more.remote != run->remote ||
		    more.offset != run->offset + run->length ||
		    local_of(piece, more.index, &remote) != local)
			return;
		run->length += more.length;
		*at = next;
	}
}

/* The next work request of a piece. False: what was to be moved has ended instead. */
static bool compose(struct rdma_peer *rdma, struct wh_piece *piece, struct ibv_send_wr *request,
		    struct ibv_sge *segment, struct wh_list *done)
{
	uint64_t most = least((uint64_t)rdma->peer->engine->config.number[WH_KNOB_SLICE],
			      rdma->here.message);
	struct rdma_work *work = &rdma->ring[rdma->head % RDMA_DEPTH];
	const struct rdma_memory *memory;
	const struct wh_region *local;
	const struct rdma_keys *keys;
	struct wh_cursor at = piece->cursor;
	struct wh_place *place;
	struct wh_run run = { 0 };
	uint64_t remote, into;

	wh_piece_next(piece, &at, most, &run);
	local = local_of(piece, run.index, &remote);
	memory = rdma_registered(local, rdma->here.nic);
	place = wh_place_enter(&rdma->peer->regions, run.remote);
	if (!place) {
		piece->cursor = at;
		wh_piece_fail(piece, run.index, -ESTALE, "region %#llx of %s is no longer published",
			      (unsigned long long)run.remote, rdma->peer->welcome.name);
		ended(rdma, piece, run.length, done);
		return false;
	}
	keys = rdma_keys_of(wh_container(place, struct wh_remote_region, place), rdma->nic);
	into = (uint64_t)(run.local - (char *)(uintptr_t)local->place.address);
	most = least(most, memory->chunk - into % memory->chunk);
	most = least(most, keys->chunk - run.offset % keys->chunk);
	if (run.length > most) {
		at = piece->cursor;
		wh_piece_next(piece, &at, most, &run);
	}
	join(piece, &at, &run, most);
	piece->cursor = at;

	*segment = (struct ibv_sge){
		.addr = (uint64_t)(uintptr_t)run.local,
		.length = (uint32_t)run.length,
		.lkey = memory->mrs[into / memory->chunk]->lkey,
	};
	*request = (struct ibv_send_wr){
		.wr_id = rdma->head,
		.sg_list = segment,
		.num_sge = 1,
		.opcode = piece->op == WH_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
	};
	request->wr.rdma.remote_addr = place->address + run.offset;
	request->wr.rdma.rkey = keys->keys[run.offset / keys->chunk];
	if (piece->op == WH_WRITE && run.length <= rdma->inlined)
		request->send_flags |= IBV_SEND_INLINE;
	*work = (struct rdma_work){ piece, place, run.index, run.length };
	rdma->ahead += run.length;
	rdma->head++;
	return true;
}

/* Which requests of a chain ask for a completion: some, and the last. */
static void signal_some(struct rdma_peer *rdma, struct ibv_send_wr *requests, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		rdma->unsignalled_bytes += requests[i].num_sge ? requests[i].sg_list->length : 0;
		if (++rdma->unsignalled < RDMA_SIGNAL && rdma->unsignalled_bytes < RDMA_SIGNAL_BYTES &&
		    i + 1 < count)
			continue;
		requests[i].send_flags |= IBV_SEND_SIGNALED;
		rdma->unsignalled = 0;
		rdma->unsignalled_bytes = 0;
	}
}

static void post(struct rdma_peer *rdma, struct ibv_send_wr *requests, unsigned count)
{
	struct ibv_send_wr *bad;
	int error;

	signal_some(rdma, requests, count);
	for (unsigned i = 0; i + 1 < count; i++)
		requests[i].next = &requests[i + 1];
	error = wh_verbs_post(rdma->qp, requests, &bad);
	if (error)
		rdma_break(rdma, false, "%s: ibv_post_send: %s", rdma->mine.name, strerror(error));
}

void rdma_probe(struct rdma_peer *rdma)
{
	/* Of no bytes, which needs no key. */
	struct ibv_send_wr request = { .wr_id = rdma->head, .opcode = IBV_WR_RDMA_WRITE };

	rdma->ring[rdma->head % RDMA_DEPTH] = (struct rdma_work){ 0 };
	rdma->head++;
	if (wh_verbs_arm(rdma->cq))
		rdma_break(rdma, false, "%s: ibv_req_notify_cq failed", rdma->mine.name);
	rdma->armed = true;
	post(rdma, &request, 1);
}

static struct wh_piece *first_piece(const struct rdma_peer *rdma)
{
	const struct wh_list *list = wh_list_empty(&rdma->urgent) ? &rdma->bulk : &rdma->urgent;

	return wh_list_empty(list) ? NULL : wh_container(list->next, struct wh_piece, link);
}

void rdma_pump(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *away)
{
	struct ibv_send_wr requests[RDMA_CHAIN];
	struct ibv_sge segments[RDMA_CHAIN];
	unsigned count = 1;
	struct wh_piece *piece;

	while (rdma->state == RDMA_READY && count) {
		if (rdma->head == rdma->tail)
			rdma->since = wh_now();
		for (count = 0; count < RDMA_CHAIN && rdma->head - rdma->tail < RDMA_DEPTH &&
				rdma->ahead < RDMA_AHEAD && (piece = first_piece(rdma));) {
			if (piece->cursor.left == piece->bytes && !ready_for(rdma, piece)) {
				rdma_take_out(rdma, piece);
				wh_list_append(away, &piece->link);
				continue;
			}
			if (compose(rdma, piece, &requests[count], &segments[count], done))
				count++;
			/* One that has ended as a whole is in `done` already. */
			if (!piece->cursor.left && atomic_load(&piece->left)) {
				wh_list_remove(&piece->link);
				wh_list_append(&rdma->sent, &piece->link);
			}
		}
		if (count)
			post(rdma, requests, count);
	}
}

/* ---- completions --------------------------------------------------------------------------------- */

static void retire(struct rdma_peer *rdma, struct wh_list *done)
{
	struct rdma_work *work = &rdma->ring[rdma->tail++ % RDMA_DEPTH];

	if (!work->piece) { /* the probe: packets come through */
		rdma->state = RDMA_READY;
		rdma->backoff = 100 * WH_MS;
		pthread_cond_broadcast(&rdma->changed);
		atomic_fetch_add(&rdma->peer->plan_version, 1);
		return;
	}
	wh_place_leave(work->place);
	rdma->ahead -= work->length;
	ended(rdma, work->piece, work->length, done);
}

static void failed(struct rdma_peer *rdma, const struct ibv_wc *wc)
{
	struct rdma_work *work = &rdma->ring[wc->wr_id % RDMA_DEPTH];

	/* A region whose keys were taken back: that is its own piece's affair. The others are sent again
	 * over a new connection. */
	if (wc->status == IBV_WC_REM_ACCESS_ERR && work->piece) {
		work->piece->owner = rdma;
		rdma_break(rdma, true,
			   "the peer's NIC refuses the key of region %#llx: it is being taken back",
			   (unsigned long long)wh_place_id(work->place));
		return;
	}
	rdma_break(rdma, false, "from %s to %s: %s (status %d, vendor %#x)", rdma->mine.name,
		   rdma->theirs.name, wh_verbs_status(wc->status), wc->status, wc->vendor_err);
}

void rdma_progress(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *away)
{
	struct ibv_wc wcs[POLL_AT_ONCE];
	bool armed_now;
	int got;

	do {
		armed_now = false;
		if (rdma->state != RDMA_PROBING && rdma->state != RDMA_READY)
			return;
		got = wh_verbs_poll(rdma->cq, POLL_AT_ONCE, wcs);
		if (got < 0)
			rdma_break(rdma, false, "%s: ibv_poll_cq failed", rdma->mine.name);
		for (int i = 0; i < got; i++) {
			if (wcs[i].status != IBV_WC_SUCCESS) {
				failed(rdma, &wcs[i]);
				return; /* all that follows is flushed */
			}
			rdma->since = wh_now();
			while (rdma->tail != rdma->head && rdma->tail <= wcs[i].wr_id)
				retire(rdma, done);
		}
		rdma_pump(rdma, done, away);
		/* What completed before it was armed makes no event: hence the next turn. */
		if (rdma->state == RDMA_READY && rdma->unwatched && !rdma->armed &&
		    rdma->tail != rdma->head) {
			rdma->armed = armed_now = !wh_verbs_arm(rdma->cq);
			if (!rdma->armed)
				rdma_break(rdma, false, "%s: ibv_req_notify_cq failed", rdma->mine.name);
		}
	} while (got > 0 || armed_now);
}

/* ---- without the lock ------------------------------------------------------------------------------ */

void rdma_pieces_done(struct wh_list *done)
{
	struct wh_list *link;

	while ((link = wh_list_take(done)))
		wh_piece_done(wh_container(link, struct wh_piece, link));
}

void rdma_pieces_away(struct wh_list *away, int error, const char *why)
{
	struct wh_list *link;

	while ((link = wh_list_take(away)))
		wh_piece_reroute(wh_container(link, struct wh_piece, link), error, why);
}
