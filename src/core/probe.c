/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimating how long a batch takes, from a probe of the path to its peer or from what traffic
 * took (traffic.c), for transports that have no figures of their own. The more recent one of the
 * two counts.
 *
 * wh_peer_measure() reads from the peer: a few bytes, then its region in long chunks, then
 * the same in blocks. Bytes that are read repeatedly come from the cache, several times as fast as
 * from memory: so each chunk is read once to touch its pages, and again only after all others.
 * `wherry bench` walks through as many bytes. Only reads are measured, since writes would destroy
 * the peer's data; writes are taken to cost the same.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/region.h"
#include "core/remote.h"
#include "core/traffic.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "transport/blocks.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"

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
#define PATIENCE (2 * WH_SECOND) /* for one batch, and for each answer before */

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
		error = wh_batch_wait_for(batch, PATIENCE);
	if (error == -EAGAIN) {
		wh_batch_cancel(batch);
		return wh_fail(ETIMEDOUT, "no answer within %lld s",
			       (long long)(PATIENCE / WH_SECOND));
	}
	if (!error)
		error = wh_batch_status(batch);
	return error ? error : wh_now() - start;
}

/* A read that its cancel could not end waits for a file system of this machine. The memory that it
 * reads into, and its peer, have to stay as long. */
static void walk_free(const struct walk *walk)
{
	for (uint64_t i = 0; i < walk->count; i++) {
		if (wh_batch_running(walk->batches[i]))
			wh_batch_wait_for(walk->batches[i], WH_FOREVER);
		wh_batch_free(walk->batches[i]);
	}
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
		(*batch)->probing = true;
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
	walk_free(&walk);
	if (took < 0)
		return (double)took;
	qsort(samples, done, sizeof(*samples), compare_samples);
	done /= 2;
	return (double)samples[done];
}

static const char *probe_peer_name(const struct wh_peer *peer)
{
	return peer->self ? "this engine" : peer->welcome.name;
}

static int trial_measure(const struct trial *trial, struct wh_probed *out)
{
	uint64_t chunk = trial->length < LONG ? trial->length : LONG;
	double first = trial_time(trial, SHORT, SHORT), whole, blocks;
	uint64_t count = (chunk + BLOCK - 1) / BLOCK;

	whole = first < 0 ? first : trial_time(trial, chunk, chunk);
	blocks = whole < 0 ? whole : trial_time(trial, chunk, BLOCK);
	if (blocks < 0)
		return wh_fail(-(int)blocks, "wh_peer_measure: reading from %s by %s: %s",
			       probe_peer_name(trial->peer), trial->transport, wh_error_text());
	/* Noise can make small costs negative: take 0. */
	out->batch = first;
	out->byte = whole > first ? (whole - first) / (double)(chunk - SHORT) : 0;
	out->transfer = blocks > whole ? (blocks - whole) / (double)(count - 1) : 0;
	out->set = trial->length;
	return 0;
}

/* ---- what is read, and into what ------------------------------------------------------------- */

static bool trial_can_read(const struct trial *trial, const struct wh_region_entry *entry)
{
	return wh_remote_access(trial->peer, entry) & WH_ACCESS_READ && entry->length >= LEAST;
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
	trial->length = trial_can_read(trial, entry) ? entry->length : 0;
	trial->remote = wanted;
	wh_region_entry_leave(entry);
	while (!trial->length && wh_region_table_next(table, &cursor, &found, name))
		if (found.kind == kind && trial_can_read(trial, &found)) {
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
	struct wh_memory_options options = { .size = sizeof(options), .kind = like->entry.kind };
	struct wh_memory_info info = { .size = sizeof(info) };
	bool file = like->entry.kind == WH_MEMORY_FILE; /* what it takes to reach the peer */
	int error =
		file ? 0 : wh_memory_query(engine, (void *)(uintptr_t)like->entry.address, &info);

	if (file)
		options.kind = WH_MEMORY_PAGEABLE;
	if (!error && !file && !wh_kind_on_host(like->entry.kind))
		options.location = info.uuid;
	if (!error)
		error = wh_memory_alloc(engine, length, &options, address);
	if (error)
		return error;
	error = wh_region_register(engine, *address, length, NULL, out);
	if (error)
		wh_memory_free(engine, *address);
	return error;
}

/* The engine's incarnation that a measurement is of. */
static uint64_t probe_epoch(const struct wh_peer *peer)
{
	return peer->self ? peer->engine->identity.epoch : peer->welcome.epoch;
}

static int probe_run(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		     uint64_t remote, struct wh_probed *out)
{
	struct wh_region_table *table = peer->self ? &peer->engine->regions : &peer->regions;
	struct trial trial = { .peer = peer, .transport = wh_transport(id)->name };
	void *address;
	int error;

	if (!trial_find_region(table, remote, &trial))
		return wh_fail(ENODATA,
			       "wh_peer_measure: %s publishes no readable region of this kind with "
			       "at least 64 KiB",
			       probe_peer_name(peer));
	error = probe_make_scratch(peer->engine, local, trial.length, &address, &trial.scratch);
	if (error)
		return error;
	/* Fault the pages in: that is not what is measured. */
	if (!wh_kind_on_gpu(local->entry.kind))
		memset(address, 0, trial.length);
	error = trial_measure(&trial, out);
	if (!wh_region_unregister(trial.scratch))
		wh_memory_free(peer->engine, address);
	return error;
}

/* Measure the costs between two regions by one transport, and keep them. */
static int probe_renew(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		       uint64_t remote)
{
	struct wh_probed found = { .epoch = probe_epoch(peer),
				   .remote = remote,
				   .kind = local->entry.kind };
	int error;

	/* Two probes at once would disturb each other. */
	pthread_mutex_lock(&peer->probe_lock);
	error = probe_run(peer, id, local, remote, &found);
	if (!error) {
		found.at = wh_now();
		pthread_mutex_lock(&peer->probed_lock);
		peer->probed[id] = found;
		pthread_mutex_unlock(&peer->probed_lock);
	}
	pthread_mutex_unlock(&peer->probe_lock);
	return error;
}

static int probe_measure(struct wh_peer *peer, struct wh_region *local, uint64_t remote)
{
	struct wh_transfer transfer = {
		.local = local, .remote = remote, .length = 1, .op = WH_READ
	};
	struct wh_batch *batch;
	int error;

	if (!peer || !local)
		return wh_fail(EINVAL, "wh_peer_measure: %s is NULL", peer ? "local" : "peer");
	error = wh_engine_guard(peer->engine, "wh_peer_measure");
	if (error)
		return error;
	/* This thread would have to receive the answers. */
	if (wh_engine_inside(peer->engine))
		return wh_fail(EDEADLK, "wh_peer_measure: a callback must not wait");
	error = wh_peer_check(peer);
	if (!error)
		error = wh_remote_learn(peer, &remote, 1, wh_deadline(PATIENCE), "wh_peer_measure");
	if (!error)
		error = wh_batch_new(peer, NULL, &batch);
	if (error)
		return error;
	error = wh_batch_add(batch, &transfer, 1);
	if (error == -EACCES) {
		/* Another region is read then. */
		transfer.op = WH_WRITE;
		error = wh_batch_add(batch, &transfer, 1);
	}
	if (!error)
		error = wh_plan_within(batch, wh_deadline(PATIENCE));
	if (!error) {
		enum wh_transport_id id = batch->fragments[0].transport;

		/* Others know their costs without a probe. */
		if (wh_transport(id)->estimate == wh_probe_estimate)
			error = probe_renew(peer, id, local, remote);
	}
	wh_batch_free(batch);
	return error;
}

int wh_peer_measure(struct wh_peer *peer, struct wh_region *local, uint64_t remote)
{
	wh_fail_begin();
	return wh_fail_end(probe_measure(peer, local, remote));
}

/* ---- estimating ----------------------------------------------------------------------------- */

/* Get the costs between two regions as measured last. False: not measured. */
static bool probe_get(struct wh_peer *peer, enum wh_transport_id id, const struct wh_region *local,
		      uint64_t remote, struct wh_probed *out)
{
	const struct wh_probed *cached = &peer->probed[id];
	bool good;

	pthread_mutex_lock(&peer->probed_lock);
	good = cached->epoch == probe_epoch(peer) && cached->remote == remote &&
	       cached->kind == local->entry.kind;
	*out = *cached;
	pthread_mutex_unlock(&peer->probed_lock);
	return good;
}

/* What the batch's fragments of a transport should take by these costs. */
static struct wh_expected probe_expect(struct wh_peer *peer, enum wh_transport_id id,
				       const struct wh_batch *batch)
{
	struct wh_expected out = { 0 }, unknown = { 0 };
	struct wh_probed cost;

	for (size_t i = 0; i < batch->fragment_count; i++) {
		const struct wh_fragment *fragment = &batch->fragments[i];
		const struct wh_block_base *base =
			fragment->blocks ? &fragment->blocks->bases[fragment->first] : NULL;
		const struct wh_item *item = base ? NULL : &batch->items[fragment->first];

		if (fragment->transport != id)
			continue;
		if (!probe_get(peer, id, base ? base->local : item->local,
			       base ? base->remote : item->remote, &cost))
			return unknown;
		/* Fragments run at the same time: count the cost of a batch once. */
		out.ns = out.ns > 0 ? out.ns : cost.batch;
		out.set = cost.set;
		out.at = cost.at;
		out.ns += cost.byte * (double)fragment->bytes +
			  cost.transfer * (double)(fragment->transfers - 1);
	}
	return out;
}

bool wh_probe_estimate(struct wh_peer *peer, enum wh_transport_id id, const struct wh_batch *batch,
		       struct wh_estimate *out)
{
	struct wh_expected probed = probe_expect(peer, id, batch),
			   traffic = wh_traffic_expect(batch, id);
	bool by_traffic = traffic.at > probed.at;
	const struct wh_expected *last = by_traffic ? &traffic : &probed;
	uint64_t age;

	if (!last->at)
		return false;
	age = (uint64_t)(wh_now() - last->at);
	out->duration += (uint64_t)last->ns;
	out->measured = by_traffic ? WH_ESTIMATE_TRAFFIC : WH_ESTIMATE_MEASURED;
	out->age = age > out->age ? age : out->age;
	if (last->set && (!out->working_set || last->set < out->working_set))
		out->working_set = last->set;
	return true;
}
