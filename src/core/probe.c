/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimating how long a batch takes, from a probe of the path to its peer, for transports that have
 * no figures of their own.
 *
 * The first estimate for a peer reads from it: a few bytes, then its region in long chunks, then
 * the same in blocks. Bytes that are read repeatedly come from the cache, several times as fast as
 * from memory: so each chunk is read once to touch its pages, and again only after all others.
 * `wherry bench` walks through as many bytes. Only reads are measured, since writes would destroy
 * the peer's data; writes are taken to cost the same.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/region.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "transport/blocks.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"

#define SHORT ((uint64_t)8)
#define LONG ((uint64_t)1 << 20)
#define SET ((uint64_t)64 << 20) /* working set, as in `wherry bench` */
#define LEAST ((uint64_t)64 << 10) /* shorter regions show no bandwidth */
#define BLOCK ((uint64_t)4 << 10)
#define CHUNKS (SET / LONG)
#define ROUNDS 9 /* samples at least, within the time below */
/* The most time for the first walk and for a timed one; each reads one chunk at least. */
#define TOUCHING (100 * WH_MS)
#define TIMING (50 * WH_MS)
#define PATIENCE (2 * WH_SECOND) /* for one batch */

struct trial {
	struct wh_peer *peer;
	const char *transport;
	struct wh_region *scratch;
	uint64_t remote, length; /* the peer's region, and how many bytes of it are read */
};

/* A walk through the region: a batch for each chunk. */
struct walk {
	const struct trial *trial;
	uint64_t chunk, block; /* bytes */
	struct wh_batch *batches[CHUNKS];
	uint64_t count, most;
};

/* ---- one walk ------------------------------------------------------------------------------- */

static int walk_fill(struct wh_batch *batch, const struct walk *walk, uint64_t start)
{
	struct wh_transfer transfer = { .local = walk->trial->scratch,
					.remote = walk->trial->remote,
					.op = WH_READ };
	int error = 0;

	for (uint64_t at = 0; at < walk->chunk && !error; at += walk->block) {
		transfer.local_offset = transfer.remote_offset = start + at;
		transfer.length = walk->chunk - at < walk->block ? walk->chunk - at : walk->block;
		error = wh_batch_add(batch, &transfer, 1);
	}
	return error;
}

/* ns of one submission, or a negative errno. */
static int64_t walk_submit(struct wh_batch *batch)
{
	int64_t start = wh_now();
	int error = wh_batch_submit(batch);

	if (!error)
		error = wh_batch_wait(batch, PATIENCE);
	if (error == -ETIMEDOUT)
		wh_batch_cancel(batch);
	return error ? error : wh_now() - start;
}

/* Make the batches and submit each once, so that they are planned, connections are open and pages
 * are mapped. */
static int walk_touch(struct walk *walk)
{
	struct wh_batch_options options = { .size = sizeof(options),
					    .require = walk->trial->transport };
	int64_t until = wh_now() + TOUCHING, took = 0;

	while (walk->count < walk->most && (!walk->count || wh_now() < until) && took >= 0) {
		struct wh_batch **batch = &walk->batches[walk->count];
		int error = wh_batch_new(walk->trial->peer, &options, batch);

		if (error)
			return error;
		error = walk_fill(*batch, walk, walk->count++ * walk->chunk);
		took = error ? error : walk_submit(*batch);
	}
	return took < 0 ? (int)took : 0;
}

static int compare_samples(const void *a, const void *b)
{
	const int64_t *one = a, *other = b;

	return (*one > *other) - (*one < *other);
}

/* Time to read `chunk` bytes in parts of `block`, in ns, the median over the walk; or a negative
 * errno. */
static double trial_time(const struct trial *trial, uint64_t chunk, uint64_t block)
{
	struct walk walk = { .trial = trial, .chunk = chunk, .block = block };
	int64_t samples[CHUNKS + ROUNDS], until;
	uint64_t wanted, done = 0;
	int64_t took;

	/* The short one measures the round trip: it reads the same bytes each time. */
	walk.most = chunk == SHORT ? 1 : trial->length / chunk;
	took = walk_touch(&walk);
	wanted = walk.count > ROUNDS ? walk.count : ROUNDS;
	until = wh_now() + TIMING;
	while (took >= 0 && done < wanted && (!done || wh_now() < until)) {
		took = walk_submit(walk.batches[done % walk.count]);
		samples[done++] = took;
	}
	for (uint64_t i = 0; i < walk.count; i++)
		wh_batch_free(walk.batches[i]);
	if (took < 0)
		return (double)took;
	qsort(samples, done, sizeof(*samples), compare_samples);
	done /= 2;
	return (double)samples[done];
}

static bool trial_measure(const struct trial *trial, struct wh_probed *out)
{
	uint64_t chunk = trial->length < LONG ? trial->length : LONG;
	double first = trial_time(trial, SHORT, SHORT), whole, blocks;
	uint64_t count = (chunk + BLOCK - 1) / BLOCK;

	whole = first < 0 ? first : trial_time(trial, chunk, chunk);
	blocks = whole < 0 ? whole : trial_time(trial, chunk, BLOCK);
	if (blocks < 0)
		return false;
	/* Noise can make small costs negative: take 0. */
	out->batch = first;
	out->byte = whole > first ? (whole - first) / (double)(chunk - SHORT) : 0;
	out->transfer = blocks > whole ? (blocks - whole) / (double)(count - 1) : 0;
	out->set = trial->length;
	return true;
}

/* ---- what is read, and into what ------------------------------------------------------------- */

static bool probe_is_long_enough(const struct wh_region_entry *entry)
{
	return (entry->access & WH_ACCESS_READ) && entry->length >= LEAST;
}

/* Choose the peer's region to read: the wanted one, or the first of its kind that may be read and
 * is long enough. */
static bool trial_find_region(struct wh_region_table *table, uint64_t wanted, struct trial *trial)
{
	struct wh_region_entry *entry = wh_region_entry_enter(table, wanted), found;
	uint64_t cursor = 0;
	char name[64];
	uint8_t kind;

	if (!entry)
		return false;
	kind = entry->kind;
	trial->length = probe_is_long_enough(entry) ? entry->length : 0;
	trial->remote = wanted;
	wh_region_entry_leave(entry);
	while (!trial->length && wh_region_table_next(table, &cursor, &found, name))
		if (found.kind == kind && probe_is_long_enough(&found)) {
			trial->remote = found.id;
			trial->length = found.length;
		}
	if (trial->length > LONG)
		trial->length = trial->length < SET ? trial->length / LONG * LONG : SET;
	return trial->length;
}

/* Allocate and register memory to read into, of the same kind and on the same GPU as `like`. */
static int probe_make_scratch(struct wh_engine *engine, const struct wh_region *like,
			      uint64_t length, void **address, struct wh_region **out)
{
	struct wh_region_options published = { .size = sizeof(published),
					       .access = WH_ACCESS_NONE };
	struct wh_memory_options options = { .size = sizeof(options), .kind = like->entry.kind };
	struct wh_memory_info info = { .size = sizeof(info) };
	int error = wh_memory_query(engine, (void *)(uintptr_t)like->entry.address, &info);

	if (!error && !wh_kind_on_host(like->entry.kind))
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

static bool probe_run(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		      uint64_t remote, struct wh_probed *out)
{
	struct wh_region_table *table = peer->self ? &peer->engine->regions : &peer->regions;
	struct trial trial = { .peer = peer, .transport = wh_transport(id)->name };
	void *address;
	bool good;

	if (!trial_find_region(table, remote, &trial) ||
	    probe_make_scratch(peer->engine, local, trial.length, &address, &trial.scratch))
		return false;
	/* Fault the pages in: that is not what is measured. */
	if (wh_kind_on_host(local->entry.kind))
		memset(address, 0, trial.length);
	good = trial_measure(&trial, out);
	if (!wh_region_unregister(trial.scratch))
		wh_memory_free(peer->engine, address);
	return good;
}

/* ---- estimating ----------------------------------------------------------------------------- */

/* Get the costs between two regions, measuring them if they are not known. False: not known. */
static bool probe_get(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		      uint64_t remote, struct wh_probed *out)
{
	struct wh_probed *cached = &peer->probed[id];
	uint64_t epoch = peer->self ? peer->engine->identity.epoch : peer->welcome.epoch;
	bool good;

	/* Held while probing: two probes at once would disturb each other. */
	pthread_mutex_lock(&peer->probe_lock);
	good = cached->epoch == epoch && cached->remote == remote &&
	       cached->kind == local->entry.kind;
	/* The engine's own threads cannot wait for an answer that they have to process. */
	if (!good && !wh_engine_inside(peer->engine)) {
		good = probe_run(peer, id, local, remote, cached);
		cached->epoch = good ? epoch : 0;
		cached->remote = remote;
		cached->kind = local->entry.kind;
	}
	*out = *cached;
	pthread_mutex_unlock(&peer->probe_lock);
	return good;
}

bool wh_probe_estimate(struct wh_peer *peer, enum wh_transport_id id, const struct wh_batch *batch,
		       struct wh_estimate *out)
{
	struct wh_probed cost;
	double sum = 0;

	for (size_t i = 0; i < batch->fragment_count; i++) {
		const struct wh_fragment *fragment = &batch->fragments[i];
		const struct wh_block_base *base =
			fragment->blocks ? &fragment->blocks->bases[fragment->first] : NULL;
		const struct wh_item *item = base ? NULL : &batch->items[fragment->first];

		if (fragment->transport != id)
			continue;
		if (!probe_get(peer, id, base ? base->local : item->local,
			       base ? base->remote : item->remote, &cost))
			return false;
		/* Fragments run at the same time: count the cost of a batch once. */
		sum = sum > 0 ? sum : cost.batch;
		if (!out->working_set || cost.set < out->working_set)
			out->working_set = cost.set;
		sum += cost.byte * (double)fragment->bytes +
		       cost.transfer * (double)(fragment->transfers - 1);
	}
	out->duration += (uint64_t)sum;
	return true;
}
