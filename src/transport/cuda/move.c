/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: move fragments by GPU streams.
 *
 * A fragment is cut into parts, each for one stream. A part is submitted to its stream in turns: as
 * much as the stream's ring has room for, and the rest when that has completed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/blocks.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/fragment.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"

#define PAIRS 512 /* made at a time */
#define SHARED 16u /* transfers of a fragment whose parts may share turns */

/* ---- the sides of a transfer ----------------------------------------------------------------- */

struct transfer_sides {
	struct wh_region *local;
	uint64_t remote;
};

static struct transfer_sides fragment_sides(const struct wh_fragment *fragment, uint64_t index)
{
	return (struct transfer_sides){ wh_fragment_local(fragment, index),
					wh_fragment_remote(fragment, index) };
}

static struct wh_region_table *op_remote_table(const struct wh_cuda_op *op)
{
	struct wh_peer *peer = op->cuda->peer;

	return wh_peer_is_self(peer) ? wh_engine_regions(wh_peer_engine(peer)) :
				       wh_peer_regions(peer);
}

static struct wh_device_mapping *op_remote_mapping(const struct wh_cuda_op *op,
						   const struct wh_region_entry *entry)
{
	if (wh_peer_is_self(op->cuda->peer))
		return atomic_load_explicit(
			&wh_container(entry, struct wh_region, entry)->transport[WH_TRANSPORT_CUDA],
			memory_order_acquire);
	return atomic_load_explicit(
		&wh_container(entry, struct wh_remote_region, entry)->transport[WH_TRANSPORT_CUDA],
		memory_order_acquire);
}

void wh_cuda_mappings(const struct wh_cuda_op *op, uint64_t index, struct wh_device_mapping **local,
		      struct wh_device_mapping **remote)
{
	struct transfer_sides sides = fragment_sides(op->fragment, index);

	*local = atomic_load_explicit(&sides.local->transport[WH_TRANSPORT_CUDA],
				      memory_order_acquire);
	*remote = op_remote_mapping(
		op, wh_region_table_at(op_remote_table(op), wh_region_table_index(sides.remote)));
}

/* ---- ending ---------------------------------------------------------------------------------- */

void wh_cuda_part_fail(struct wh_cuda_part *part, int error, const char *text)
{
	struct wh_fragment *fragment = part->op->fragment;
	int none = 0;

	if (!atomic_compare_exchange_strong(&part->error, &none, error))
		return;
	for (uint64_t i = part->first; i < part->end && !fragment->blocks; i++)
		wh_fragment_fail(fragment, i, error, "%s", text);
	if (fragment->blocks)
		wh_fragment_fail(fragment, UINT64_MAX, error, "%s", text);
}

static struct wh_cuda_op *op_new(struct wh_cuda_peer *cuda, struct wh_fragment *fragment)
{
	uint64_t pairs = fragment->blocks || fragment->count > SHARED ? 0 : fragment->count;
	struct wh_cuda_op *op = calloc(1, sizeof(*op) + pairs * sizeof(*op->pairs));

	if (!op)
		return NULL;
	op->cuda = cuda;
	op->fragment = fragment;
	op->changes = wh_cuda_changes(cuda);
	op->pair_room = pairs;
	op->entries = op->entry;
	op->entry_room = sizeof(op->entry) / sizeof(op->entry[0]);
	atomic_init(&op->left, 1);
	return op;
}

static void op_free(struct wh_cuda_op *op)
{
	struct wh_cuda_part *part, *next;

	for (size_t i = 0; i < op->entry_count; i++)
		wh_region_entry_leave(op->entries[i]);
	for (part = op->parts; part; part = next) {
		next = part->next;
		if (part->loses)
			wh_cached_lists_free(part->keeps);
		if (part != &op->part)
			free(part);
	}
	if (op->entries != op->entry)
		free(op->entries);
	free(op);
}

bool wh_cuda_lost(struct wh_cuda_peer *cuda)
{
	int lost;

	pthread_mutex_lock(&cuda->lock);
	lost = cuda->lost;
	pthread_mutex_unlock(&cuda->lock);
	return lost;
}

unsigned wh_cuda_changes(struct wh_cuda_peer *cuda)
{
	unsigned changes;

	pthread_mutex_lock(&cuda->lock);
	changes = cuda->changes;
	pthread_mutex_unlock(&cuda->lock);
	return changes;
}

/* A copy into mapped memory succeeds also after the owner's process has ended, or has unregistered
 * the region after the end of the session. */
void wh_cuda_verify(struct wh_cuda_peer *cuda, struct wh_fragment *fragment, unsigned changes)
{
	const struct wh_shm_peer *shm = wh_peer_transport(cuda->peer, WH_TRANSPORT_SHM);
	char text[WH_TEXT_MAX];
	int lost;

	pthread_mutex_lock(&cuda->lock);
	lost = cuda->lost;
	if (!lost && (changes % 2 || changes != cuda->changes))
		lost = -ECONNRESET; /* reached again since */
	memcpy(text, cuda->lost_text, sizeof(text));
	pthread_mutex_unlock(&cuda->lock);
	/* Of an owner on another host the control connection alone tells. */
	if (!lost && shm && !wh_shm_owner_lives(shm)) {
		lost = -ECONNRESET;
		snprintf(text, sizeof(text), "%s %s", wh_peer_name(cuda->peer),
			 wh_shm_owner_fate(shm));
	}
	if (lost)
		wh_fragment_fail(fragment, UINT64_MAX, lost, "%s", text);
}

static void op_release(struct wh_cuda_op *op)
{
	struct wh_fragment *fragment = op->fragment;

	if (atomic_fetch_sub_explicit(&op->left, 1, memory_order_acq_rel) != 1)
		return;
	wh_cuda_verify(op->cuda, fragment, op->changes);
	op_free(op);
	wh_fragment_done(fragment);
}

void wh_cuda_part_done(struct wh_cuda_part *part)
{
	op_release(part->op);
}

/* ---- putting a part on its stream ------------------------------------------------------------ */

static void pair_make(const struct wh_fragment *fragment, uint64_t from_local, uint64_t from_remote,
		      uint64_t length, struct wh_pair *pair)
{
	bool write = fragment->op == WH_WRITE;

	pair->from = write ? from_local : from_remote;
	pair->to = write ? from_remote : from_local;
	pair->length = length;
}

/* Make the next pairs, `most` or what is left. Returns how many. */
static uint64_t part_gather_pairs(const struct wh_cuda_part *part, struct wh_cursor *at,
				  struct wh_pair *pairs, uint64_t most)
{
	struct wh_device_mapping *local = NULL, *remote = NULL;
	const struct wh_fragment *fragment = part->op->fragment;
	uint64_t mapped_index = UINT64_MAX, n;
	struct wh_extent_pair run;

	for (n = 0; n < most && wh_fragment_next(fragment, at, UINT64_MAX, &run); n++) {
		struct transfer_sides sides = fragment_sides(fragment, run.index);

		if (run.index != mapped_index)
			wh_cuda_mappings(part->op, run.index, &local, &remote);
		mapped_index = run.index;
		pair_make(fragment, wh_device_mapping_at(local, sides.local, run.local),
			  wh_device_mapping_address(remote, part->stream->gpu->device) + run.offset,
			  run.length, &pairs[n]);
	}
	return n;
}

/* Submit transfers; or blocks one by one, where copy engines are faster than the kernel. False: the
 * ring is full. */
static bool part_put_pairs(struct wh_cuda_part *part, struct wh_gpu_stream_turn *turn)
{
	const struct wh_fragment *fragment = part->op->fragment;
	struct wh_pair pairs[PAIRS];
	struct wh_extent_pair run;
	struct wh_cursor at;
	uint64_t n, put;

	while (part->at.left) {
		at = part->at;
		n = part_gather_pairs(part, &at, pairs, PAIRS);
		put = wh_gpu_stream_pairs(turn, pairs, n);
		if (put == n) {
			part->at = at;
			continue;
		}
		while (put--)
			wh_fragment_next(fragment, &part->at, UINT64_MAX, &run);
		return false;
	}
	return true;
}

/* Describe the bases from `base` on, at most as many as one launch takes. Returns how many. */
static unsigned part_gather_bases(struct wh_cuda_part *part, uint64_t base,
				  struct wh_gpu_stream_blocks *out)
{
	const struct wh_fragment *fragment = part->op->fragment;
	const struct wh_blocks *blocks = fragment->blocks;
	bool write = fragment->op == WH_WRITE;
	unsigned n = 0;

	memset(out, 0, sizeof(*out));
	out->bits = blocks->block_length | blocks->local_bits | blocks->remote_bits;
	for (; base < part->end && n < WH_BLOCKS_INLINE; base++, n++) {
		struct wh_device_mapping *local, *remote;
		struct wh_pair pair;

		wh_cuda_mappings(part->op, base, &local, &remote);
		pair_make(fragment,
			  wh_device_mapping_at(local, blocks->bases[base].local,
					       blocks->bases[base].address),
			  wh_device_mapping_address(remote, part->stream->gpu->device) +
				  blocks->bases[base].offset,
			  0, &pair);
		pair.from += part->pages; /* a file's mapping has no address of its own */
		out->job.source_base[n] = pair.from;
		out->job.target_base[n] = pair.to;
		out->bits |= pair.from | pair.to;
	}
	out->job.base_count = n;
	out->job.block_length = blocks->block_length;
	out->job.source_stride = write ? blocks->local_stride : blocks->remote_stride;
	out->job.target_stride = write ? blocks->remote_stride : blocks->local_stride;
	out->source_list = write ? blocks->local_offsets : blocks->remote_offsets;
	out->target_list = write ? blocks->remote_offsets : blocks->local_offsets;
	return n;
}

/* A descriptor that is submitted a second time, by any batch, will probably be submitted again:
 * keep its lists of offsets on the GPU. */
static void part_keep_lists(struct wh_cuda_part *part, struct wh_gpu_stream_turn *turn,
			    struct wh_gpu_stream_blocks *work)
{
	struct wh_blocks *blocks = part->op->fragment->blocks;
	struct wh_cached_lists *cached = atomic_load(&blocks->gpu_lists), *none = NULL;

	if (cached) {
		wh_cached_lists_use(cached, part->stream, work);
		return;
	}
	if (!atomic_exchange(&blocks->gpu_moved, true))
		return;
	cached = wh_cached_lists_make(turn, work->source_list, work->target_list, blocks->count);
	if (!cached)
		return;
	part->keeps = cached;
	wh_cached_lists_use(cached, part->stream, work);
	if (!atomic_compare_exchange_strong(&blocks->gpu_lists, &none, cached))
		part->loses = true; /* another thread was faster: free it when the part is done */
}

static bool part_put_blocks(struct wh_cuda_part *part, struct wh_gpu_stream_turn *turn)
{
	struct wh_blocks *blocks = part->op->fragment->blocks;
	struct wh_gpu_stream_blocks work;
	uint64_t put, wanted;
	unsigned bases;

	while (part->at.outer < part->end) {
		bases = part_gather_bases(part, part->at.outer, &work);
		if (part->keeps)
			wh_cached_lists_use(part->keeps, part->stream, &work);
		else
			part_keep_lists(part, turn, &work);
		wanted = blocks->count - part->at.inner;
		put = wh_gpu_stream_blocks(turn, &work, part->at.inner, wanted);
		if (put < wanted) {
			part->at.inner += put;
			return false;
		}
		part->at.inner = 0;
		part->at.outer += bases;
	}
	return true;
}

/* Few bytes, which may share a turn with other fragments. False: they need turns of their own. */
static bool part_share(struct wh_cuda_part *part)
{
	struct wh_cuda_op *op = part->op;
	uint64_t first = part->first - op->fragment->first, count = part->end - part->first;

	if (!op->pair_room || !wh_gpu_stream_shares(part->stream, count, part->at.left))
		return false;
	part_gather_pairs(part, &part->at, op->pairs + first, count);
	part->job.pairs = op->pairs + first;
	part->job.count = count;
	part->job.owner = op->fragment;
	wh_gpu_stream_put(part->stream, &part->job);
	return true;
}

static void part_put(struct wh_cuda_part *part)
{
	struct wh_gpu_stream_turn turn;

	if (part_share(part))
		return;
	wh_gpu_stream_begin(part->stream, &turn);
	turn.by_copies = part->op->fragment->blocks && !part->kernel;
	if (part->kernel ? part_put_blocks(part, &turn) : part_put_pairs(part, &turn))
		part->at.left = 0;
	wh_gpu_stream_end(&turn, &part->job);
}

void wh_cuda_part_read(struct wh_cuda_part *part, struct wh_gpu_stream *stream, uint64_t pages,
		       struct wh_stage *stage)
{
	part->stage = stage;
	part->pages = pages;
	part->stream = stream;
	part->kernel = true;
	part_put(part);
}

static void part_ended(struct wh_gpu_stream_job *job, int error, const char *text)
{
	struct wh_cuda_part *part = wh_container(job, struct wh_cuda_part, job);

	if (error)
		wh_cuda_part_fail(part, error, text);
	else if (part->keeps && !part->loses)
		wh_cached_lists_ready(part->keeps);
	if (!error && part->at.left && atomic_load(&part->op->fragment->cancelled))
		wh_cuda_part_fail(part, -ECANCELED, "cancelled");
	if (part->at.left && !atomic_load(&part->error))
		part_put(part);
	else if (part->stage)
		wh_cuda_stage_end(part->stage);
	else
		wh_cuda_part_done(part);
}

/* ---- cutting a fragment into parts ----------------------------------------------------------- */

/* Enter a remote region until the fragment is done. 0, -ENOMEM, or -ESTALE with its text. */
static int op_enter(struct wh_cuda_op *op, uint64_t id, struct wh_region_entry **out)
{
	struct wh_region_entry *entry;

	if (op->entry_count == op->entry_room) {
		size_t room = 2 * op->entry_room;
		struct wh_region_entry **old = op->entries == op->entry ? NULL : op->entries;
		struct wh_region_entry **grown = realloc(old, room * sizeof(*grown));

		if (!grown)
			return wh_fail(ENOMEM, "no memory");
		if (!old)
			memcpy(grown, op->entry, sizeof(op->entry));
		op->entries = grown;
		op->entry_room = room;
	}
	entry = wh_region_entry_enter(op_remote_table(op), id);
	if (!entry)
		return wh_fail(ESTALE, "region %#llx of the peer is gone", (unsigned long long)id);
	op->entries[op->entry_count++] = entry;
	*out = entry;
	return 0;
}

/* By which stream goes this transfer, or base? NULL: it is staged. The text of an error is
 * wh_error_text(). */
static int op_find_stream(struct wh_cuda_op *op, uint64_t index, struct wh_gpu_stream **out)
{
	struct transfer_sides sides = fragment_sides(op->fragment, index);
	struct wh_device_mappings *mappings = op->cuda->mappings;
	struct wh_device_mapping *local, *remote;
	struct wh_gpu_path path;
	char why[WH_REFUSAL];
	bool urgent = op->fragment->priority == WH_PRIORITY_LATENCY;
	struct wh_region_entry *entry = NULL;
	int error = op_enter(op, sides.remote, &entry);

	if (error)
		return error;
	error = wh_device_mapping_local(mappings, sides.local, &local, why);
	if (!error)
		error = wh_cuda_remote(op->cuda, entry, &remote, why);
	if (error)
		return wh_fail(-error, "%s", why);
	wh_path_choose(local, remote, op->fragment->op, &path);
	*out = NULL;
	if (!path.device)
		return 0;
	error = wh_gpus_stream(mappings->gpus, path.device, path.context, path.way, urgent, out);
	if (!error && !urgent && wh_gpu_stream_is_opposed(*out) &&
	    wh_path_choose_pull(op->cuda->peer, op->fragment, local, remote, &path))
		error = wh_gpus_stream(mappings->gpus, path.device, path.context, path.way, urgent,
				       out);
	return error;
}

static struct wh_cuda_part *part_new(struct wh_cuda_op *op, struct wh_gpu_stream *stream,
				     uint64_t first)
{
	struct wh_cuda_part *part = op->parts ? calloc(1, sizeof(*part)) : &op->part;

	if (!part)
		return NULL;
	part->op = op;
	part->stream = stream;
	part->first = first;
	part->job.done = part_ended;
	part->next = op->parts;
	op->parts = part;
	return part;
}

/* The part's end is known: count its bytes, and choose how blocks go. */
static void part_close(struct wh_cuda_part *part, uint64_t end)
{
	const struct wh_fragment *fragment = part->op->fragment;
	const struct wh_blocks *blocks = fragment->blocks;

	part->end = end;
	part->at = (struct wh_cursor){ .outer = part->first };
	if (blocks) {
		uint64_t count = blocks->count * (end - part->first);

		part->at.left = count * blocks->block_length;
		part->kernel = part->stream &&
			       wh_gpu_stream_choose(part->stream, count, blocks->block_length) ==
				       WH_MOVER_KERNEL;
		return;
	}
	for (uint64_t i = part->first; i < end; i++)
		part->at.left += fragment->items[i].length;
}

/* 0, or the error of transfer, or base, *index. */
static int op_cut(struct wh_cuda_op *op, uint64_t *index)
{
	const struct wh_fragment *fragment = op->fragment;
	struct wh_cuda_part *part = NULL;
	struct wh_gpu_stream *stream = NULL;
	struct transfer_sides last = { 0 };
	int error;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		struct transfer_sides sides = fragment_sides(fragment, i);

		*index = i;
		if (part && sides.local == last.local && sides.remote == last.remote)
			continue;
		last = sides;
		error = op_find_stream(op, i, &stream);
		if (error)
			return error;
		/* What is staged is so between two regions. */
		if (part && stream && stream == part->stream)
			continue;
		if (part)
			part_close(part, i);
		part = part_new(op, stream, i);
		if (!part)
			return wh_fail(ENOMEM, "no memory");
	}
	if (part) /* there is always one transfer, or base, at least */
		part_close(part, fragment->first + fragment->count);
	return 0;
}

void wh_cuda_move(struct wh_cuda_peer *cuda, struct wh_fragment *fragment)
{
	struct wh_cuda_op *op = op_new(cuda, fragment);
	struct wh_cuda_part *part, *next;
	uint64_t index = 0;
	int error;

	if (!op) {
		wh_fragment_fail(fragment, UINT64_MAX, -ENOMEM, "no memory");
		wh_fragment_done(fragment);
		return;
	}
	error = wh_cuda_lost(cuda) ? 0 : op_cut(op, &index);
	if (error) {
		/* Nothing has been started, so all of the fragment fails. */
		wh_fragment_fail(fragment, UINT64_MAX, error, "%s %llu: %s",
				 fragment->blocks ? "base" : "transfer", (unsigned long long)index,
				 wh_error_text());
	} else if (atomic_load(&fragment->cancelled)) {
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
	} else if (!wh_cuda_lost(cuda)) { /* which op_release() says */
		for (part = op->parts; part; part = next) {
			next = part->next;
			atomic_fetch_add(&op->left, 1);
			if (part->stream)
				part_put(part);
			else
				wh_cuda_stage(part);
		}
	}
	op_release(op);
}
