/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: the transport's table, pieces that come in, and reaching regions. */
#include "transport/rdma.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "util/clock.h"
#include "wire/bytes.h"

/* How often somebody who waits looks whether what he waits for has gone. */
#define GLANCE (20 * WH_MS)

/* ---- reaching a region ---------------------------------------------------------------------------- */

static void glance(struct rdma_peer *rdma)
{
	int64_t at = wh_now() + GLANCE;
	struct timespec until = { at / WH_SECOND, at % WH_SECOND };

	pthread_cond_timedwait(&rdma->changed, &rdma->lock, &until);
}

/* Have a connection. Under the lock. */
static int await_connection(struct rdma_peer *rdma, int64_t deadline, char why[WH_REFUSAL])
{
	rdma_want(rdma);
	while (rdma->state != RDMA_READY) {
		if (rdma->state == RDMA_FAILED || rdma->state == RDMA_LOST) {
			snprintf(why, WH_REFUSAL, "%s", rdma->why);
			return -EIO;
		}
		if (wh_now() >= deadline) {
			snprintf(why, WH_REFUSAL, "%.63s is still being connected to",
				 rdma->peer->welcome.name);
			return -EAGAIN;
		}
		glance(rdma);
	}
	return 0;
}

/* What is known of the region's keys: 0, -EAGAIN: nothing yet, or a refusal. */
static int known(struct rdma_peer *rdma, const struct wh_remote_region *region, uint32_t nic,
		 char why[WH_REFUSAL])
{
	const struct rdma_keys *keys = rdma_keys_of(region, nic);

	(void)rdma;
	if (!keys || (keys->error && wh_now() > keys->until))
		return -EAGAIN;
	if (keys->error)
		memcpy(why, keys->why, WH_REFUSAL);
	return keys->error;
}

/* Have the keys of a region. Under the lock. */
static int await_keys(struct rdma_peer *rdma, struct wh_remote_region *region, int64_t deadline,
		      char why[WH_REFUSAL])
{
	uint64_t id = wh_place_id(&region->place);
	uint8_t bytes[WH_RDMA_KEYS_SIZE];
	uint32_t nic = rdma->nic;
	int error = known(rdma, region, nic, why);

	if (error != -EAGAIN)
		return error;
	wh_put64(wh_put32(bytes, nic), id);
	if (wh_control_send(&rdma->peer->control, WH_FRAME_RDMA_KEYS, 0, bytes, sizeof(bytes))) {
		snprintf(why, WH_REFUSAL, "the peer is lost");
		return -ECONNRESET;
	}
	while ((error = known(rdma, region, nic, why)) == -EAGAIN) {
		/* The peer takes it back, and waits for us to leave it. */
		if (atomic_load(&region->place.id) != id) {
			snprintf(why, WH_REFUSAL, "region %#llx is gone", (unsigned long long)id);
			return -ESTALE;
		}
		if (rdma->state != RDMA_READY) {
			snprintf(why, WH_REFUSAL, "%s", rdma->why);
			return -EIO;
		}
		if (wh_now() >= deadline) {
			snprintf(why, WH_REFUSAL, "%.63s is still registering region %#llx with %.63s",
				 rdma->peer->welcome.name, (unsigned long long)id, rdma->theirs.name);
			return -EAGAIN;
		}
		glance(rdma);
	}
	return error;
}

static int reach_slowly(struct rdma_peer *rdma, struct wh_region *local, struct wh_remote_region *remote,
			struct rdma_memory **memory, char why[WH_REFUSAL])
{
	int64_t deadline = wh_now() + RDMA_PATIENCE;
	struct rdma_nic *nic;
	int error;

	if (wh_engine_inside(rdma->peer->engine) || wh_loop_here(&rdma->rdma->loop)) {
		/* The answers come on the engine's own threads. */
		rdma_want(rdma);
		snprintf(why, WH_REFUSAL, "it is being set up, for which a callback does not wait");
		return -EAGAIN;
	}
	error = await_connection(rdma, deadline, why);
	if (error)
		return error;
	nic = rdma->here.nic;
	pthread_mutex_unlock(&rdma->lock);
	error = rdma_register(nic, local, memory, why);
	pthread_mutex_lock(&rdma->lock);
	if (!error && rdma->state == RDMA_READY && rdma->here.nic != nic)
		error = -EAGAIN;
	return error ? error : await_keys(rdma, remote, deadline, why);
}

static int reach(struct wh_peer *peer, void *state, const struct wh_region *local, struct wh_place *place,
		 uint32_t op, char why[WH_REFUSAL])
{
	struct wh_remote_region *remote = wh_container(place, struct wh_remote_region, place);
	struct rdma_memory *memory = NULL;
	struct rdma_peer *rdma = state;
	int error = -EAGAIN;

	(void)peer;
	if (!wh_kind_on_host(local->place.kind) || !wh_kind_on_host(place->kind)) {
		snprintf(why, WH_REFUSAL, "the memory of a GPU is not registered with NICs: neither "
					  "dma-buf nor staging is there yet");
		return -EOPNOTSUPP;
	}
	pthread_mutex_lock(&rdma->lock);
	if (rdma->state == RDMA_READY) {
		memory = rdma_registered(local, rdma->here.nic);
		if (memory)
			error = known(rdma, remote, rdma->nic, why);
	}
	if (error == -EAGAIN)
		error = reach_slowly(rdma, (struct wh_region *)local, remote, &memory, why);
	pthread_mutex_unlock(&rdma->lock);
	if (!error && op == WH_READ && !memory->writable) {
		snprintf(why, WH_REFUSAL, "region %#llx of ours cannot be written to",
			 (unsigned long long)wh_place_id(&local->place));
		error = -EACCES;
	}
	return error;
}

/* ---- pieces ----------------------------------------------------------------------------------------- */

static void submit(struct wh_peer *peer, void *state, struct wh_piece *piece)
{
	bool urgent = piece->batch->priority == WH_PRIORITY_LATENCY, takes = true;
	struct rdma_peer *rdma = state;
	struct wh_list done, away;
	char why[WH_REFUSAL] = "";

	wh_list_init(&done);
	wh_list_init(&away);
	pthread_mutex_lock(&rdma->lock);
	if (atomic_load(&piece->cancelled) || rdma->state == RDMA_FAILED || rdma->state == RDMA_LOST) {
		snprintf(why, sizeof(why), "%s", rdma->why);
		takes = false;
	} else {
		wh_list_append(urgent ? &rdma->urgent : &rdma->bulk, &piece->link);
		rdma->unwatched += !rdma_watched(piece);
		rdma_want(rdma);
		rdma_progress(rdma, &done, &away);
	}
	pthread_mutex_unlock(&rdma->lock);
	rdma_pieces_done(&done);
	rdma_pieces_away(&away, -EIO, "a region of it is not registered with the NIC now in use");
	if (takes)
		return;
	if (wh_peer_check(peer)) {
		wh_piece_fail(piece, UINT64_MAX, -ECONNRESET, "%s", wh_error_text());
		wh_piece_done(piece);
	} else {
		wh_piece_reroute(piece, -EIO, why);
	}
}

static void help(struct wh_peer *peer, void *state, struct wh_batch *batch, int64_t deadline)
{
	struct rdma_peer *rdma = state;
	int64_t start = wh_now(), now;

	(void)peer;
	do {
		struct wh_list done, away;

		wh_list_init(&done);
		wh_list_init(&away);
		if (!pthread_mutex_trylock(&rdma->lock)) {
			rdma_progress(rdma, &done, &away);
			pthread_mutex_unlock(&rdma->lock);
			rdma_pieces_done(&done);
			rdma_pieces_away(&away, -EIO,
					 "a region of it is not registered with the NIC now in use");
		}
		now = wh_now();
	} while (wh_batch_running(batch) && now < deadline && now - start < RDMA_SPIN);
}

static void cancel(struct wh_peer *peer, void *state, struct wh_piece *piece)
{
	struct rdma_peer *rdma = state;
	bool done = false;
	uint64_t rest;

	(void)peer;
	pthread_mutex_lock(&rdma->lock);
	rest = piece->cursor.left;
	/* One that is in no list is not yet submitted, or has ended. */
	if (rest && piece->link.next) {
		wh_piece_fail(piece, UINT64_MAX, -ECANCELED, "cancelled");
		piece->cursor.left = 0;
		done = atomic_fetch_sub(&piece->left, rest) == rest;
		if (done) {
			rdma_take_out(rdma, piece);
		} else {
			wh_list_remove(&piece->link);
			wh_list_append(&rdma->sent, &piece->link);
		}
	}
	pthread_mutex_unlock(&rdma->lock);
	if (done)
		wh_piece_done(piece);
}

static int cut(struct wh_peer *peer, void *state, struct wh_batch *batch, int64_t deadline)
{
	struct rdma_peer *rdma = state;
	bool carries = false;

	(void)peer;
	(void)deadline;
	pthread_mutex_lock(&rdma->lock);
	for (size_t i = 0; i < batch->piece_count; i++)
		carries |= batch->pieces[i].transport == WH_TRANSPORT_RDMA &&
			   !atomic_load(&batch->pieces[i].done);
	if (carries)
		rdma_break(rdma, true, "cut off to cancel a batch");
	pthread_mutex_unlock(&rdma->lock);
	return 0;
}

static void detail(struct wh_peer *peer, void *state, const struct wh_batch *batch, char *out,
		   size_t size)
{
	struct rdma_peer *rdma = state;

	(void)peer;
	(void)batch;
	pthread_mutex_lock(&rdma->way_lock);
	snprintf(out, size, "%s", rdma->way);
	pthread_mutex_unlock(&rdma->way_lock);
}

/* ---- peers ------------------------------------------------------------------------------------------ */

static int peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	struct wh_engine *engine = peer->engine;
	pthread_condattr_t clock;
	struct rdma_peer *rdma;

	if (peer->self) {
		snprintf(why, WH_REFUSAL, "%.63s is this engine itself", engine->name);
		return -EOPNOTSUPP;
	}
	if (!(peer->welcome.capabilities & WH_CAPABLE_RDMA)) {
		snprintf(why, WH_REFUSAL, "%.63s has no rdma: it is switched off there, or there is no NIC",
			 peer->welcome.name);
		return -EOPNOTSUPP;
	}
	rdma = calloc(1, sizeof(*rdma));
	if (!rdma) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	rdma->rdma = engine->transport[WH_TRANSPORT_RDMA];
	rdma->peer = peer;
	pthread_mutex_init(&rdma->lock, NULL);
	pthread_mutex_init(&rdma->way_lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&rdma->changed, &clock);
	pthread_condattr_destroy(&clock);
	wh_list_init(&rdma->urgent);
	wh_list_init(&rdma->bulk);
	wh_list_init(&rdma->sent);
	rdma_client_open(rdma);
	wh_list_append(&rdma->rdma->peers, &rdma->link);
	*state = rdma;
	return 0;
}

static void peer_close(struct wh_peer *peer, void *state)
{
	struct rdma_peer *rdma = state;

	(void)peer;
	wh_list_remove(&rdma->link);
	rdma_client_close(rdma);
	pthread_cond_destroy(&rdma->changed);
	pthread_mutex_destroy(&rdma->lock);
	pthread_mutex_destroy(&rdma->way_lock);
	free(rdma);
}

static void peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	(void)peer;
	rdma_client_lost(state, error, text);
}

static int peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	struct rdma_peer *rdma = state;

	if (!(peer->welcome.capabilities & WH_CAPABLE_RDMA)) {
		snprintf(why, WH_REFUSAL, "%.63s has no rdma any more", peer->welcome.name);
		return -EOPNOTSUPP;
	}
	pthread_mutex_lock(&rdma->lock);
	rdma->state = RDMA_IDLE;
	pthread_mutex_unlock(&rdma->lock);
	return 0;
}

static int peer_frame(struct wh_peer *peer, void *state, const struct wh_frame *frame,
		      const uint8_t *payload)
{
	struct wh_rdma_connected connected;
	struct rdma_peer *rdma = state;
	struct wh_rdma_keyed keyed;
	bool current;
	int error;

	if (frame->type == WH_FRAME_RDMA_CONNECTED)
		return wh_rdma_connected_decode(payload, frame->length, &connected) ?
			       -EPROTO :
			       rdma_connected(rdma, &connected);
	if (wh_rdma_keyed_decode(payload, frame->length, &keyed))
		return -EPROTO;
	pthread_mutex_lock(&rdma->lock);
	current = keyed.nic == rdma->nic;
	pthread_mutex_unlock(&rdma->lock);
	error = current ? rdma_keyed(peer, &keyed) : 0;
	/* Whoever did not wait so long plans anew. */
	atomic_fetch_add(&peer->plan_version, 1);
	pthread_mutex_lock(&rdma->lock);
	pthread_cond_broadcast(&rdma->changed);
	pthread_mutex_unlock(&rdma->lock);
	return error;
}

/* ---- engine ----------------------------------------------------------------------------------------- */

static void state_free(struct rdma *rdma)
{
	if (rdma->looping)
		wh_loop_stop(&rdma->loop);
	rdma_rails_close(rdma);
	pthread_mutex_destroy(&rdma->lock);
	pthread_mutex_destroy(&rdma->register_lock);
	pthread_mutex_destroy(&rdma->jobs_lock);
	pthread_cond_destroy(&rdma->jobs_come);
	free(rdma);
}

static int engine_open(struct wh_engine *engine, void **state)
{
	struct rdma *rdma = calloc(1, sizeof(*rdma));
	char text[WH_TEXT_MAX];
	int error;

	if (!rdma)
		return wh_fail(ENOMEM, "rdma: no memory");
	rdma->engine = engine;
	pthread_mutex_init(&rdma->lock, NULL);
	pthread_mutex_init(&rdma->register_lock, NULL);
	pthread_mutex_init(&rdma->jobs_lock, NULL);
	pthread_cond_init(&rdma->jobs_come, NULL);
	wh_list_init(&rdma->peers);
	wh_list_init(&rdma->jobs);
	error = rdma_rails_open(rdma);
	if (!error) {
		error = wh_loop_start(&rdma->loop, "wherry/rdma",
				      engine->config.number[WH_KNOB_SPIN] != 0);
		rdma->looping = !error;
	}
	if (error) {
		snprintf(text, sizeof(text), "%s", wh_error_text());
		state_free(rdma);
		return wh_fail(-error, "%s", text);
	}
	*state = rdma;
	return 0;
}

static void engine_close(struct wh_engine *engine, void *state)
{
	(void)engine;
	rdma_worker_stop(state);
	state_free(state);
}

const struct wh_transport wh_transport_rdma = {
	.name = "rdma",
	.capabilities = WH_CAN_READ | WH_CAN_WRITE | WH_CAN_HELP | WH_CAN_CUT,
	.engine_open = engine_open,
	.engine_close = engine_close,
	.region_closed = rdma_region_closed,
	.peer_open = peer_open,
	.peer_close = peer_close,
	.peer_lost = peer_lost,
	.peer_again = peer_again,
	.region_gone = rdma_region_gone,
	.peer_frame = peer_frame,
	.reach = reach,
	.submit = submit,
	.help = help,
	.cancel = cancel,
	.cut = cut,
	.detail = detail,
	.session_frame = rdma_session_frame,
	.session_close = rdma_session_close,
	.session_abort = rdma_session_abort,
};
