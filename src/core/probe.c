/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a batch takes where the CPU or a network moves it, from a probe of the way to that peer: the
 * first time that somebody asks for it, a few bytes are read from the peer, then its region is
 * walked through, once in long pieces and once in blocks. What is read again and again comes from
 * the cache, several times as fast as memory: so each piece is read once to touch its pages, and
 * once more when all others have been read since. wherry bench walks through as much. Only reading
 * destroys nothing there; writing is taken to cost as much.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/blocks.h"
#include "core/engine.h"
#include "core/fragment.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/region.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "transport/transport.h"
#include "util/clock.h"

#define SHORT ((uint64_t)8)
#define LONG ((uint64_t)1 << 20)
#define SET ((uint64_t)64 << 20) /* walked through: the default working set of wherry bench */
#define LEAST ((uint64_t)64 << 10) /* what is shorter shows no rate */
#define BLOCK ((uint64_t)4 << 10)
#define PIECES (SET / LONG)
#define ROUNDS 9 /* at least so many times, unless that takes too long */
/* the most for the first walk, and for a timed one; each reads a */
#define TOUCHING (100 * WH_MS)
#define TIMING (50 * WH_MS) /* piece at least */
#define PATIENCE (2 * WH_SECOND) /* for one batch */

struct trial {
	struct wh_peer *peer;
	const char *transport;
	struct wh_region *scratch;
	uint64_t remote, length; /* of the peer's region, and of what is read of it */
};

/* A walk: a batch for each piece. */
struct walk {
	const struct trial *trial;
	uint64_t fragment, block; /* bytes */
	struct wh_batch *batches[PIECES];
	uint64_t count, most;
};

/* ---- one walk ----------------------------------------------------------------------------------
 */

static int fill(struct wh_batch *batch, const struct walk *walk, uint64_t start)
{
	struct wh_transfer transfer = { .local = walk->trial->scratch,
					.remote = walk->trial->remote,
					.op = WH_READ };
	int error = 0;

	for (uint64_t at = 0; at < walk->fragment && !error; at += walk->block) {
		transfer.local_offset = transfer.remote_offset = start + at;
		transfer.length =
			walk->fragment - at < walk->block ? walk->fragment - at : walk->block;
		error = wh_batch_add(batch, &transfer, 1);
	}
	return error;
}

/* ns of one submission, or a negative errno. */
static int64_t time_one(struct wh_batch *batch)
{
	int64_t start = wh_now();
	int error = wh_batch_submit(batch);

	if (!error)
		error = wh_batch_wait(batch, PATIENCE);
	if (error == -ETIMEDOUT)
		wh_batch_cancel(batch);
	return error ? error : wh_now() - start;
}

/* Make the batches and submit each once: it is planned, its connections are open, its pages are
 * there. */
static int touch(struct walk *walk)
{
	struct wh_batch_options options = { .size = sizeof(options),
					    .require = walk->trial->transport };
	int64_t until = wh_now() + TOUCHING, took = 0;

	while (walk->count < walk->most && (!walk->count || wh_now() < until) && took >= 0) {
		struct wh_batch **batch = &walk->batches[walk->count];
		int error = wh_batch_new(walk->trial->peer, &options, batch);

		if (error)
			return error;
		error = fill(*batch, walk, walk->count++ * walk->fragment);
		took = error ? error : time_one(*batch);
	}
	return took < 0 ? (int)took : 0;
}

static int compare(const void *a, const void *b)
{
	const int64_t *one = a, *other = b;

	return (*one > *other) - (*one < *other);
}

/* ns of reading `piece` bytes in parts of `block`, the median over the walk; negative: an error. */
static double time_of(const struct trial *trial, uint64_t fragment, uint64_t block)
{
	struct walk walk = { .trial = trial, .fragment = fragment, .block = block };
	int64_t samples[PIECES + ROUNDS], until;
	uint64_t wanted, done = 0;
	int64_t took;

	/* The bytes of the short one are the same each time: it is about the way there and back. */
	walk.most = fragment == SHORT ? 1 : trial->length / fragment;
	took = touch(&walk);
	wanted = walk.count > ROUNDS ? walk.count : ROUNDS;
	until = wh_now() + TIMING;
	while (took >= 0 && done < wanted && (!done || wh_now() < until)) {
		took = time_one(walk.batches[done % walk.count]);
		samples[done++] = took;
	}
	for (uint64_t i = 0; i < walk.count; i++)
		wh_batch_free(walk.batches[i]);
	if (took < 0)
		return (double)took;
	qsort(samples, done, sizeof(*samples), compare);
	done /= 2;
	return (double)samples[done];
}

static bool measure(const struct trial *trial, struct wh_probed *out)
{
	uint64_t fragment = trial->length < LONG ? trial->length : LONG;
	double first = time_of(trial, SHORT, SHORT), whole, blocks;
	uint64_t count = (fragment + BLOCK - 1) / BLOCK;

	whole = first < 0 ? first : time_of(trial, fragment, fragment);
	blocks = whole < 0 ? whole : time_of(trial, fragment, BLOCK);
	if (blocks < 0)
		return false;
	/* What noise makes negative is too little to matter. */
	out->batch = first;
	out->byte = whole > first ? (whole - first) / (double)(fragment - SHORT) : 0;
	out->transfer = blocks > whole ? (blocks - whole) / (double)(count - 1) : 0;
	out->set = trial->length;
	return true;
}

/* ---- what it is tried with ---------------------------------------------------------------------
 */

static bool long_enough(const struct wh_region_entry *entry)
{
	return (entry->access & WH_ACCESS_READ) && entry->length >= LEAST;
}

/* The peer's region that the probe reads: this one, or the longest of the same kind that may be
 * read. */
static bool find(struct wh_region_table *table, uint64_t wanted, struct trial *trial)
{
	struct wh_region_entry *entry = wh_region_entry_enter(table, wanted), found;
	uint64_t cursor = 0;
	char name[64];
	uint8_t kind;

	if (!entry)
		return false;
	kind = entry->kind;
	trial->length = long_enough(entry) ? entry->length : 0;
	trial->remote = wanted;
	wh_region_entry_leave(entry);
	while (!trial->length && wh_region_table_next(table, &cursor, &found, name))
		if (found.kind == kind && long_enough(&found)) {
			trial->remote = found.id;
			trial->length = found.length;
		}
	if (trial->length > LONG)
		trial->length = trial->length < SET ? trial->length / LONG * LONG : SET;
	return trial->length;
}

/* Memory like that of a region of ours, to read into: of the same kind, on the same GPU. */
static int make_scratch(struct wh_engine *engine, const struct wh_region *like, uint64_t length,
			void **address, struct wh_region **out)
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

static bool probe(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		  uint64_t remote, struct wh_probed *out)
{
	struct wh_region_table *table = peer->self ? &peer->engine->regions : &peer->regions;
	struct trial trial = { .peer = peer, .transport = wh_transport(id)->name };
	void *address;
	bool good;

	if (!find(table, remote, &trial) ||
	    make_scratch(peer->engine, local, trial.length, &address, &trial.scratch))
		return false;
	/* The first walk is to find its pages there: they are not what is measured. */
	if (wh_kind_on_host(local->entry.kind))
		memset(address, 0, trial.length);
	good = measure(&trial, out);
	if (!wh_region_unregister(trial.scratch))
		wh_memory_free(peer->engine, address);
	return good;
}

/* ---- estimating --------------------------------------------------------------------------------
 */

/* What is known of the way between two regions, measured now if it is not. */
static bool known(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		  uint64_t remote, struct wh_probed *out)
{
	struct wh_probed *cached = &peer->probed[id];
	uint64_t epoch = peer->self ? peer->engine->epoch : peer->welcome.epoch;
	bool good;

	/* It lets others wait: whoever asks for an estimate has time, and two probes at once would
	 * be in each other's way. */
	pthread_mutex_lock(&peer->probe_lock);
	good = cached->epoch == epoch && cached->remote == remote &&
	       cached->kind == local->entry.kind;
	/* The engine's own threads are needed for the answer. */
	if (!good && !wh_engine_inside(peer->engine)) {
		good = probe(peer, id, local, remote, cached);
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
		if (!known(peer, id, base ? base->local : item->local,
			   base ? base->remote : item->remote, &cost))
			return false;
		/* Pieces are under way side by side: the way there and back is taken once. */
		sum = sum > 0 ? sum : cost.batch;
		if (!out->working_set || cost.set < out->working_set)
			out->working_set = cost.set;
		sum += cost.byte * (double)fragment->bytes +
		       cost.transfer * (double)(fragment->transfers - 1);
	}
	out->duration += (uint64_t)sum;
	return true;
}
