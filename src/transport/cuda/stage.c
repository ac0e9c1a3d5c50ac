/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: stage the parts whose two sides no GPU reaches. Their bytes go through slots
 * of pinned memory, a few slots at a time. A GPU copies between a slot and GPU memory, the CPU
 * between a slot and host memory; threads that may wait for a disk read files into slots, and write
 * slots into files.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/file.h"
#include "memory/region.h"
#include "transport/blocks.h"
#include "transport/copier.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/fragment.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"

#define SLOTS 4 /* of one part at a time */
#define FILE_SLOTS 8 /* the same if one side is a file: each keeps a thread busy */
#define EXTENTS 256u /* of one slot */

struct side {
	const struct wh_device_mapping *mapping;
	struct wh_gpu_stream *stream; /* NULL: the CPU, or a file's threads */
	uint64_t base; /* see extent_at() */
};

struct stage {
	struct wh_cuda_part *part;
	struct side source, target;
	bool write;
	pthread_mutex_t lock; /* part->at */
	_Atomic uint32_t works;
};

enum step { IDLE, INTO, OUT_OF };

/* A slot, and the extent pairs that go through it. */
struct work {
	struct wh_gpu_stream_job job;
	struct wh_file_job file_job;
	struct wh_slot_wait wait;
	struct stage *stage;
	struct wh_slot *slot;
	enum step step;
	/* the extent pairs in the slot; those of them that this step has not submitted yet */
	struct wh_cursor start, at;
	uint64_t filled; /* bytes that this step has submitted */
};

/* ---- addresses ------------------------------------------------------------------------------- */

/* The address of an extent on one side, as the GPU or CPU that copies it uses it. */
static uint64_t extent_at(const struct stage *stage, const struct side *side,
			  const struct wh_extent_pair *extent)
{
	bool local = (side == &stage->source) == stage->write;

	return side->base + (local ? (uint64_t)(uintptr_t)extent->local : extent->offset);
}

/* What extent_at() adds to an extent's local address, or to its offset in the remote region. Of a
 * file the result is the offset in the region. */
static uint64_t side_base(const struct wh_device_mapping *mapping, const struct wh_region *local)
{
	uint64_t first = mapping->file ? 0 :
			 mapping->host && !mapping->device ?
					 (uint64_t)(uintptr_t)mapping->host :
					 wh_device_mapping_address(mapping, mapping->device);

	return local ? first - local->entry.address : first;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Take the next extent pairs of the part for a slot. False: there are no more. */
static bool work_take(struct work *work)
{
	struct wh_cuda_part *part = work->stage->part;
	const struct wh_fragment *fragment = part->op->fragment;
	uint64_t bytes = 0;
	struct wh_extent_pair extent;
	bool any;

	pthread_mutex_lock(&work->stage->lock);
	if (atomic_load(&fragment->cancelled) && part->at.left)
		wh_cuda_part_fail(part, -ECANCELED, "cancelled");
	any = part->at.left && !atomic_load(&part->error);
	work->start = part->at;
	for (unsigned i = 0; any && i < EXTENTS && bytes < WH_SLOT && part->at.left; i++) {
		wh_fragment_next(fragment, &part->at, WH_SLOT - bytes, &extent);
		bytes += extent.length;
	}
	pthread_mutex_unlock(&work->stage->lock);
	wh_engine_count_staged(part->op->cuda->mappings->engine, bytes);
	work->start.left = bytes;
	return any;
}

static void work_copy_by_cpu(struct work *work, const struct side *side)
{
	struct stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	char *slot = work->slot->host;
	struct wh_extent_pair extent;

	while (wh_fragment_next(fragment, &work->at, work->at.left, &extent)) {
		char *there = (char *)(uintptr_t)extent_at(stage, side, &extent);

		if (side == &stage->source)
			memcpy(slot, there, extent.length);
		else
			memcpy(there, slot, extent.length);
		slot += extent.length;
	}
}

/* Submit as much of the step as the side's stream has room for. */
static void work_copy_by_gpu(struct work *work, const struct side *side)
{
	struct stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	struct wh_pair pairs[EXTENTS];
	uint64_t slot = work->slot->address + work->filled, put, n = 0;
	struct wh_cursor at = work->at;
	struct wh_gpu_stream_turn turn;
	struct wh_extent_pair extent;

	while (wh_fragment_next(fragment, &at, at.left, &extent)) {
		uint64_t there = extent_at(stage, side, &extent);

		pairs[n].from = side == &stage->source ? there : slot;
		pairs[n].to = side == &stage->source ? slot : there;
		pairs[n++].length = extent.length;
		slot += extent.length;
	}
	wh_gpu_stream_begin(side->stream, &turn);
	if (side->mapping->managed) {
		for (put = 0; put < n; put++)
			wh_gpu_stream_copy(&turn, pairs[put].to, pairs[put].from,
					   pairs[put].length);
	} else {
		put = wh_gpu_stream_pairs(&turn, pairs, n);
	}
	while (put-- && wh_fragment_next(fragment, &work->at, work->at.left, &extent))
		work->filled += extent.length;
	wh_gpu_stream_end(&turn, &work->job);
}

/* Move the whole step. On a thread that may wait. 0, or an error with its text. */
static int work_copy_file(struct work *work)
{
	struct stage *stage = work->stage;
	const struct side *side = work->step == INTO ? &stage->source : &stage->target;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	struct wh_file_extent extents[EXTENTS];
	struct wh_extent_pair extent;
	char *slot = work->slot->host;
	uint32_t count = 0, moved;
	int error;

	for (; wh_fragment_next(fragment, &work->at, work->at.left, &extent); count++) {
		extents[count] = (struct wh_file_extent){ extent_at(stage, side, &extent), slot,
							  extent.length };
		slot += extent.length;
	}
	error = wh_file_move(side->mapping->file, work->step == INTO ? WH_READ : WH_WRITE, extents,
			     count, &moved);
	return error || work->step == INTO ? error : wh_file_sync(side->mapping->file);
}

static void work_continue(struct work *work);

static void work_run_file(struct wh_file_job *job)
{
	struct work *work = wh_container(job, struct work, file_job);
	int error;

	wh_fail_begin();
	error = work_copy_file(work);
	if (error) {
		wh_cuda_part_fail(work->stage->part, error, wh_error_text());
		work->step = IDLE; /* and the part has no more bytes */
	}
	wh_fail_end(0);
	work_continue(work);
}

static void work_end(struct work *work)
{
	struct stage *stage = work->stage;
	struct wh_cuda_part *part = stage->part;

	if (work->slot)
		wh_slot_release(part->op->cuda->mappings->gpus, work->slot);
	free(work);
	if (atomic_fetch_sub_explicit(&stage->works, 1, memory_order_acq_rel) != 1)
		return;
	pthread_mutex_destroy(&stage->lock);
	free(stage);
	wh_cuda_part_done(part);
}

static void work_begin(struct work *work, enum step step)
{
	work->step = step;
	work->at = work->start;
	work->filled = 0;
}

/* Continue until a GPU is working for this slot, or the part has no more bytes. */
static void work_continue(struct work *work)
{
	struct stage *stage = work->stage;

	for (;;) {
		const struct side *side = work->step == INTO ? &stage->source : &stage->target;

		if (work->step == IDLE) {
			if (!work_take(work)) {
				work_end(work);
				return;
			}
			work_begin(work, INTO);
			continue;
		}
		if (work->at.left && side->mapping->file) {
			wh_file_threads_run(
				wh_engine_file_threads(stage->part->op->cuda->mappings->engine),
				&work->file_job);
			return;
		}
		if (work->at.left && side->stream) {
			work_copy_by_gpu(work, side);
			return;
		}
		if (work->at.left)
			work_copy_by_cpu(work, side);
		if (work->step == INTO)
			work_begin(work, OUT_OF);
		else
			work->step = IDLE;
	}
}

static void work_done(struct wh_gpu_stream_job *job, int error, const char *text)
{
	struct work *work = wh_container(job, struct work, job);

	if (error) {
		wh_cuda_part_fail(work->stage->part, error, text);
		work->step = IDLE; /* and the part has no more bytes */
	}
	work_continue(work);
}

/* ---- starting -------------------------------------------------------------------------------- */

static void work_slot_ready(struct wh_slot_wait *wait, struct wh_slot *slot)
{
	struct work *work = wh_container(wait, struct work, wait);

	work->slot = slot;
	work_continue(work);
}

static void work_start(struct stage *stage)
{
	struct work *work = calloc(1, sizeof(*work));

	if (!work)
		return;
	work->stage = stage;
	work->job.done = work_done;
	work->file_job.run = work_run_file;
	work->wait.ready = work_slot_ready;
	atomic_fetch_add(&stage->works, 1);
	work->slot = wh_slot_acquire(stage->part->op->cuda->mappings->gpus, WH_SLOT_INITIATOR,
				     &work->wait);
	if (work->slot)
		work_continue(work);
}

static int side_open(struct wh_gpus *gpus, struct side *side, enum wh_blocks_way way, bool urgent)
{
	if (side->mapping->file || (side->mapping->host && !side->mapping->device))
		return 0;
	return wh_gpus_stream(gpus, side->mapping->device, side->mapping->context, way, urgent,
			      &side->stream);
}

void wh_cuda_stage(struct wh_cuda_part *part)
{
	const struct wh_fragment *fragment = part->op->fragment;
	bool urgent = fragment->priority == WH_PRIORITY_LATENCY;
	struct wh_gpus *gpus = part->op->cuda->mappings->gpus;
	struct stage *stage = calloc(1, sizeof(*stage));
	struct wh_device_mapping *local, *remote;
	const struct wh_region *region;
	uint64_t slots, most;
	int error;

	if (!stage) {
		wh_cuda_part_fail(part, -ENOMEM, "no memory");
		wh_cuda_part_done(part);
		return;
	}
	wh_cuda_mappings(part->op, part->first, &local, &remote);
	region = wh_fragment_local(fragment, part->first);
	stage->part = part;
	stage->write = fragment->op == WH_WRITE;
	stage->source.mapping = stage->write ? local : remote;
	stage->target.mapping = stage->write ? remote : local;
	stage->source.base = side_base(stage->source.mapping, stage->write ? region : NULL);
	stage->target.base = side_base(stage->target.mapping, stage->write ? NULL : region);
	pthread_mutex_init(&stage->lock, NULL);
	error = side_open(gpus, &stage->source, WH_BLOCKS_TO_HOST, urgent);
	if (!error)
		error = side_open(gpus, &stage->target, WH_BLOCKS_FROM_HOST, urgent);
	if (!error)
		error = wh_slots_prepare(gpus, WH_SLOT_INITIATOR);
	if (error)
		wh_cuda_part_fail(part, error, wh_error_text());
	/* One more than there are works, so that the part does not end while they are started. */
	atomic_store(&stage->works, 1);
	slots = part->at.left / WH_SLOT + 1;
	most = local->file || remote->file ? FILE_SLOTS : SLOTS;
	for (uint64_t i = 0; !error && i < slots && i < most; i++)
		work_start(stage);
	if (!error && atomic_load(&stage->works) == 1 && part->at.left)
		wh_cuda_part_fail(part, -ENOMEM, "no memory");
	if (atomic_fetch_sub_explicit(&stage->works, 1, memory_order_acq_rel) != 1)
		return;
	pthread_mutex_destroy(&stage->lock);
	free(stage);
	wh_cuda_part_done(part);
}

/* ---- what it takes --------------------------------------------------------------------------- */

/* The side's stream, for GPUs. False: the driver gives none. */
static bool side_find(struct wh_gpus *gpus, const struct wh_device_mapping *mapping,
		      enum wh_blocks_way way, struct side *out)
{
	*out = (struct side){ .mapping = mapping };
	return !side_open(gpus, out, way, false);
}

void wh_cuda_stage_prepare(struct wh_gpus *gpus, struct wh_device_mapping *local,
			   struct wh_device_mapping *remote, uint32_t op)
{
	struct side source, target;

	if (side_find(gpus, op == WH_WRITE ? local : remote, WH_BLOCKS_TO_HOST, &source) &&
	    source.stream)
		wh_gpu_stream_probe(source.stream, 0, 0);
	if (side_find(gpus, op == WH_WRITE ? remote : local, WH_BLOCKS_FROM_HOST, &target) &&
	    target.stream)
		wh_gpu_stream_probe(target.stream, 0, 0);
}

/* ns a byte of the CPU's copies into slots and out of them. */
static double side_memcpy_time(void)
{
	size_t length = WH_SLOT / 4;
	unsigned char *from = malloc(length), *to = malloc(length);
	int64_t best = INT64_MAX;

	for (int i = 0; from && to && i < 3; i++) {
		int64_t start = wh_now();

		memset(from, i, length); /* its pages are there, and the copy is not left out */
		memcpy(to, from, length);
		start = wh_now() - start + to[length / 2] % 2;
		best = start < best ? start : best;
	}
	free(from);
	free(to);
	return best == INT64_MAX ? 0 : (double)best / 2 / (double)length;
}

/* One side's step with `count` copies of `length` bytes. */
static double side_time(const struct side *side, double count, uint64_t length, bool *measured)
{
	double kernel, copies;

	if (!side->stream)
		return side_memcpy_time() * count * (double)length;
	*measured = *measured && atomic_load(&side->stream->cost)->measured;
	wh_gpu_stream_times(side->stream, (uint64_t)(count + 0.5), length, &kernel, &copies);
	return side->mapping->managed || !(kernel > 0) || copies < kernel ? copies : kernel;
}

bool wh_cuda_stage_time(const struct wh_fragment *fragment, const struct wh_device_mapping *local,
			const struct wh_device_mapping *remote, struct wh_gpus *gpus,
			struct wh_cuda_time *out)
{
	uint64_t length = fragment->bytes / fragment->transfers;
	double slots = (double)fragment->bytes / (double)WH_SLOT, into, out_of, lesser;
	bool write = fragment->op == WH_WRITE;
	struct side source, target;

	if (local->file || remote->file)
		return false;
	if (!side_find(gpus, write ? local : remote, WH_BLOCKS_TO_HOST, &source) ||
	    !side_find(gpus, write ? remote : local, WH_BLOCKS_FROM_HOST, &target))
		return false;
	out->measured = true;
	into = side_time(&source, (double)fragment->transfers, length, &out->measured);
	out_of = side_time(&target, (double)fragment->transfers, length, &out->measured);
	/* Both sides work at the same time, on different slots: only the slower side counts, but
	 * for one slot. */
	lesser = into < out_of ? into : out_of;
	out->ns = into + out_of - (slots > 1 ? lesser * (1 - 1 / slots) : 0);
	return true;
}
