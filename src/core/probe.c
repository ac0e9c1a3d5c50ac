/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a batch takes where the CPU or a network moves it, from a probe of the way to that peer: the first
 * time that somebody asks for it, a few bytes, a long piece and the same in blocks are read from the peer.
 * Only reading destroys nothing there; writing is taken to cost as much.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "memory/memory.h"
#include "util/clock.h"

#define SHORT ((uint64_t)8)
#define LONG ((uint64_t)1 << 20)
#define LEAST ((uint64_t)64 << 10) /* what is shorter shows no rate */
#define BLOCK ((uint64_t)4 << 10)
#define ROUNDS 5
#define PATIENCE (2 * WH_SECOND) /* for one batch */

struct trial {
	struct wh_peer *peer;
	const char *transport;
	struct wh_region *scratch;
	uint64_t remote, length; /* of the peer's region, and of what is read of it */
};

/* ---- one trial --------------------------------------------------------------------------------- */

static int fill(struct wh_batch *batch, const struct trial *trial, uint64_t length, uint64_t block)
{
	struct wh_transfer transfer = { .local = trial->scratch, .remote = trial->remote, .op = WH_READ };
	int error = 0;

	for (uint64_t at = 0; at < length && !error; at += block) {
		transfer.local_offset = transfer.remote_offset = at;
		transfer.length = length - at < block ? length - at : block;
		error = wh_batch_add(batch, &transfer, 1);
	}
	return error;
}

/* ns of reading `length` bytes in pieces of `block`, the quickest of some rounds; negative: an error. */
static double time_of(const struct trial *trial, uint64_t length, uint64_t block)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = trial->transport };
	struct wh_batch *batch;
	double best = 0;
	int error = wh_batch_new(trial->peer, &options, &batch);

	if (error)
		return error;
	error = fill(batch, trial, length, block);
	for (int i = 0; i < ROUNDS && !error; i++) {
		int64_t start = wh_now(), took;

		error = wh_batch_submit(batch);
		if (!error)
			error = wh_batch_wait(batch, PATIENCE);
		if (error == -ETIMEDOUT)
			wh_batch_cancel(batch);
		took = wh_now() - start;
		if (!i || (double)took < best)
			best = (double)took;
	}
	wh_batch_free(batch);
	return error ? error : best;
}

static bool measure(const struct trial *trial, struct wh_probed *out)
{
	double first = time_of(trial, SHORT, SHORT), whole, blocks;
	uint64_t count = (trial->length + BLOCK - 1) / BLOCK;

	whole = first < 0 ? first : time_of(trial, trial->length, trial->length);
	blocks = whole < 0 ? whole : time_of(trial, trial->length, BLOCK);
	if (blocks < 0)
		return false;
	/* What noise makes negative is too little to matter. */
	out->price = first;
	out->byte = whole > first ? (whole - first) / (double)(trial->length - SHORT) : 0;
	out->transfer = blocks > whole ? (blocks - whole) / (double)(count - 1) : 0;
	return true;
}

/* ---- what it is tried with --------------------------------------------------------------------- */

static bool long_enough(const struct wh_place *place)
{
	return (place->access & WH_ACCESS_READ) && place->length >= LEAST;
}

/* The peer's region that the probe reads: this one, or the longest of the same kind that may be read. */
static bool find(struct wh_places *places, uint64_t wanted, struct trial *trial)
{
	struct wh_place *place = wh_place_enter(places, wanted), found;
	uint64_t cursor = 0;
	char name[64];
	uint8_t kind;

	if (!place)
		return false;
	kind = place->kind;
	trial->length = long_enough(place) ? place->length : 0;
	trial->remote = wanted;
	wh_place_leave(place);
	while (!trial->length && wh_places_next(places, &cursor, &found, name))
		if (found.kind == kind && long_enough(&found)) {
			trial->remote = found.id;
			trial->length = found.length;
		}
	trial->length = trial->length < LONG ? trial->length : LONG;
	return trial->length;
}

/* Memory like that of a region of ours, to read into: of the same kind, on the same GPU. */
static int make_scratch(struct wh_engine *engine, const struct wh_region *like, uint64_t length,
			void **address, struct wh_region **out)
{
	struct wh_region_options published = { .size = sizeof(published), .access = WH_ACCESS_NONE };
	struct wh_memory_options options = { .size = sizeof(options), .kind = like->place.kind };
	struct wh_memory_info info = { .size = sizeof(info) };
	int error = wh_memory_query(engine, (void *)(uintptr_t)like->place.address, &info);

	if (!error && !wh_kind_on_host(like->place.kind))
		options.location = info.uuid;
	if (!error)
		error = wh_memory_alloc(engine, length, &options, address);
	if (error)
		return error;
	error = wh_region_register(engine, *address, length, &published, out);
	if (error)
		wh_memory_free(engine, *address);
	return error;
}

static bool probe(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		  uint64_t remote, struct wh_probed *out)
{
	struct wh_places *places = peer->self ? &peer->engine->regions : &peer->regions;
	struct trial trial = { .peer = peer, .transport = wh_transport(id)->name };
	void *address;
	bool good;

	if (!find(places, remote, &trial) ||
	    make_scratch(peer->engine, local, trial.length, &address, &trial.scratch))
		return false;
	good = measure(&trial, out);
	if (!wh_region_unregister(trial.scratch))
		wh_memory_free(peer->engine, address);
	return good;
}

/* ---- estimating -------------------------------------------------------------------------------- */

/* What is known of the way between two regions, measured now if it is not. */
static bool known(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		  uint64_t remote, struct wh_probed *out)
{
	struct wh_probed *kept = &peer->probed[id];
	uint64_t epoch = peer->self ? peer->engine->epoch : peer->welcome.epoch;
	bool good;

	/* It lets others wait: whoever asks for an estimate has time, and two probes at once would be in
	 * each other's way. */
	pthread_mutex_lock(&peer->probe_lock);
	good = kept->epoch == epoch && kept->remote == remote &&
	       kept->kind == local->place.kind;
	/* The engine's own threads are needed for the answer. */
	if (!good && !wh_engine_inside(peer->engine)) {
		good = probe(peer, id, local, remote, kept);
		kept->epoch = good ? epoch : 0;
		kept->remote = remote;
		kept->kind = local->place.kind;
	}
	*out = *kept;
	pthread_mutex_unlock(&peer->probe_lock);
	return good;
}

bool wh_probe_estimate(struct wh_peer *peer, enum wh_transport_id id, const struct wh_batch *batch,
		       struct wh_estimate *out)
{
	struct wh_probed cost;
	double sum = 0;

	for (size_t i = 0; i < batch->piece_count; i++) {
		const struct wh_piece *piece = &batch->pieces[i];
		const struct wh_block_base *base = piece->blocks ? &piece->blocks->bases[piece->first] :
								   NULL;
		const struct wh_item *item = base ? NULL : &batch->items[piece->first];

		if (piece->transport != id)
			continue;
		if (!known(peer, id, base ? base->local : item->local, base ? base->remote : item->remote,
			   &cost))
			return false;
		/* Pieces are under way side by side: the way there and back is taken once. */
		sum = sum > 0 ? sum : cost.price;
		sum += cost.byte * (double)piece->bytes +
		       cost.transfer * (double)(piece->transfers - 1);
	}
	out->duration += (uint64_t)sum;
	return true;
}
