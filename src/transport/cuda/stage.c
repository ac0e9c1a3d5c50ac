/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: stage the parts whose two sides no GPU reaches. Their bytes go through slots
 * of pinned memory, a few slots at a time. A GPU copies between a slot and GPU memory, the CPU
 * between a slot and host memory; threads that may wait for a disk read files into slots, and write
 * slots into files.
 *
 * A GPU reads a file's bytes out of the page cache instead, where that can be page-locked
 * (pages.h): the threads for files lock pages ahead of the copies. Ranges of which that cannot be
 * said go through slots; so does the whole part once more if its pages turn out to be stale.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/file.h"
#include "memory/region.h"
#include "transport/blocks.h"
#include "transport/copier.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/gds.h"
#include "transport/cuda/pages.h"
#include "transport/fragment.h"
#include "util/error.h"
#include "util/list.h"

#define SLOTS 4 /* of one part at a time */
#define FILE_SLOTS 8 /* the same if one side is a file: each keeps a thread busy */
#define EXTENTS 256u /* of one slot */
/* What is read out of the page cache by one turn of a stream. An extent may lie in two chunks. */
#define PAGES_BYTES ((uint64_t)8 << 20)
#define PAGES_EXTENTS 1024u
#define PAGES_PAIRS (2 * PAGES_EXTENTS)

struct side {
	const struct wh_device_mapping *mapping;
	struct wh_gpu_stream *stream; /* NULL: the CPU, or a file's threads */
	uint64_t base; /* see extent_at() */
};

struct stage {
	struct wh_cuda_part *part;
	struct side source, target;
	bool write;
	pthread_mutex_t lock; /* part->at, and what follows */
	_Atomic uint32_t works;
	struct wh_file_gds *gds; /* for whole pages; NULL: not asked for, or not for this memory */
	/* A file's pages, if the GPU may read them; changed by threads for files only. */
	enum { PAGES_NEVER, PAGES_UNTRIED, PAGES_USED, PAGES_REFUSED } pages;
	struct wh_file_use use;
	struct wh_cursor start; /* of the part */
	struct wh_file_job file_job;
};

enum step { IDLE, INTO, OUT_OF, LOCK_PAGES, READ_PAGES, DIRECT };

/* A slot, and the extent pairs that go through it. */
struct work {
	struct wh_gpu_stream_job job;
	struct wh_file_job file_job;
	struct wh_slot_wait wait;
	struct stage *stage;
	struct wh_slot *slot;
	uint64_t skew; /* bytes of the slot in front of the first pair */
	enum step step;
	struct wh_cursor rest; /* taken from the part, and not started yet */
	/* the extent pairs in the slot; those of them that this step has not submitted yet */
	struct wh_cursor start, at;
	uint64_t filled; /* bytes that this step has submitted */
	/* From the page cache: `put` of `count` pairs have been submitted. */
	struct wh_pair *pairs;
	uint32_t count, put;
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

/* Take the next extent pairs of `from`, at most so many and so many bytes. */
static void range_take(const struct wh_fragment *fragment, struct wh_cursor *from, uint64_t most,
		       uint32_t extents, struct wh_cursor *out)
{
	struct wh_cursor taken = *from;
	struct wh_extent_pair extent;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < extents && bytes < most && from->left; i++) {
		wh_fragment_next(fragment, from,
				 most - bytes < from->left ? most - bytes : from->left, &extent);
		bytes += extent.length;
	}
	taken.left = bytes;
	*out = taken;
}

static void work_begin(struct work *work, enum step step)
{
	work->step = step;
	work->at = work->start;
	work->filled = 0;
}

/* What is read from a file past the page cache, or written to it, has to be aligned alike in
 * memory. So the first pair begins as far from a page's start in the slot as in the file. */
static uint64_t stage_skew(const struct stage *stage, const struct wh_cursor *from)
{
	const struct side *side = stage->source.mapping->file ? &stage->source : &stage->target;
	struct wh_cursor at = *from;
	struct wh_extent_pair extent;

	if (!side->mapping->file ||
	    !wh_fragment_next(stage->part->op->fragment, &at, at.left, &extent))
		return 0;
	return (side->mapping->file->start + extent_at(stage, side, &extent)) %
	       (uint64_t)sysconf(_SC_PAGESIZE);
}

/* What comes next: *most bytes of *extents extents. True: whole pages that are aligned on both
 * sides, for GPUDirect Storage. False: what slots take, up to where such pages begin. */
static bool stage_find_whole_pages(const struct stage *stage, const struct wh_cursor *from,
				   uint64_t *most, uint32_t *extents)
{
	bool reads = stage->source.mapping->file, direct = false;
	const struct side *file = reads ? &stage->source : &stage->target;
	const struct side *memory = reads ? &stage->target : &stage->source;
	const uint64_t inside = WH_GDS_PAGE - 1;
	struct wh_cursor at = *from;
	struct wh_extent_pair extent;
	uint64_t bytes = 0, part;
	uint32_t count = 0;

	while (count < EXTENTS && bytes < *most && at.left) {
		uint64_t room = *most - bytes, there, here, whole = 0;

		wh_fragment_next(stage->part->op->fragment, &at, room < at.left ? room : at.left,
				 &extent);
		there = file->mapping->file->start + extent_at(stage, file, &extent);
		here = extent_at(stage, memory, &extent);
		part = extent.length;
		if (!((there ^ here) & inside)) {
			uint64_t head = -there & inside;

			whole = head < part ? (part - head) & ~inside : 0;
			part = !whole ? part : head ? head : whole;
			/* Slots take the head, or what comes before, and then these pages begin. */
			if (whole && count && (head || !direct))
				break;
			direct |= whole && !head;
		}
		if (direct && !whole)
			break;
		bytes += part;
		count++;
		if (part < extent.length)
			break;
	}
	*most = bytes;
	*extents = count;
	return direct;
}

static char *work_slot(const struct work *work)
{
	return work->slot->host + work->skew;
}

static void work_begin_slot(struct work *work)
{
	wh_engine_count_staged(work->stage->part->op->cuda->mappings->engine, work->start.left);
	work_begin(work, INTO);
}

/* Begin the next range, or slot. False: there are no more. */
static bool work_next(struct work *work)
{
	struct stage *stage = work->stage;
	struct wh_cuda_part *part = stage->part;
	const struct wh_fragment *fragment = part->op->fragment;
	bool any, pages = false, direct;
	uint32_t extents = EXTENTS;
	uint64_t most;

	pthread_mutex_lock(&stage->lock);
	if (atomic_load(&fragment->cancelled) && (part->at.left || work->rest.left))
		wh_cuda_part_fail(part, -ECANCELED, "cancelled");
	if (!work->rest.left && part->at.left) {
		pages = stage->pages == PAGES_UNTRIED || stage->pages == PAGES_USED;
		range_take(fragment, &part->at,
			   pages ? PAGES_BYTES : WH_SLOT - stage_skew(stage, &part->at),
			   pages ? PAGES_EXTENTS : EXTENTS, &work->rest);
	}
	any = work->rest.left && !atomic_load(&part->error);
	pthread_mutex_unlock(&stage->lock);
	if (!any)
		return false;
	if (pages) {
		work->step = LOCK_PAGES;
		return true;
	}
	work->skew = stage_skew(stage, &work->rest);
	most = WH_SLOT - work->skew;
	direct = stage->gds && stage_find_whole_pages(stage, &work->rest, &most, &extents);
	range_take(fragment, &work->rest, most, extents, &work->start);
	if (direct)
		work_begin(work, DIRECT);
	else
		work_begin_slot(work);
	return true;
}

static void work_copy_by_cpu(struct work *work, const struct side *side)
{
	struct stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	char *slot = work_slot(work);
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

/* Submit copies of the side's memory. Returns how many of the first ones: the stream's ring may be
 * full. */
static uint64_t side_submit(const struct side *side, struct wh_gpu_stream_turn *turn,
			    const struct wh_pair *pairs, uint64_t count)
{
	if (!side->mapping->managed)
		return wh_gpu_stream_pairs(turn, pairs, count);
	for (uint64_t i = 0; i < count; i++)
		wh_gpu_stream_copy(turn, pairs[i].to, pairs[i].from, pairs[i].length);
	return count;
}

/* Submit as much of the step as the side's stream has room for. */
static void work_copy_by_gpu(struct work *work, const struct side *side)
{
	struct stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	struct wh_pair pairs[EXTENTS];
	uint64_t slot = work->slot->address + work->skew + work->filled, put, n = 0;
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
	put = side_submit(side, &turn, pairs, n);
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
	char *slot = work_slot(work);
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

/* ---- GPUDirect Storage ----------------------------------------------------------------------- */

/* Move the range between the file and the GPU's memory. False: slots have to, which are faster for
 * what is in the page cache, and find out what is wrong with a file. */
static bool work_move_directly(struct work *work, int *error)
{
	struct stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	bool reads = stage->source.mapping->file;
	const struct side *side = reads ? &stage->source : &stage->target;
	const struct side *memory = reads ? &stage->target : &stage->source;
	struct wh_file *file = side->mapping->file;
	struct wh_cursor at = work->at;
	struct wh_extent_pair extent;

	if (!wh_file_gds_ready(stage->gds))
		return false;
	while (wh_fragment_next(fragment, &at, at.left, &extent)) {
		uint64_t offset = extent_at(stage, side, &extent);

		if (reads && wh_file_is_resident(file, file->start + offset, extent.length)) {
			wh_file_gds_skip(stage->gds, "the bytes are in the page cache");
			return false;
		}
		if (wh_file_gds_move(stage->gds, reads ? WH_READ : WH_WRITE, offset,
				     memory->mapping, extent_at(stage, memory, &extent),
				     extent.length))
			return false;
	}
	*error = reads ? 0 : wh_file_sync(file);
	return true;
}

/* ---- out of the page cache ------------------------------------------------------------------- */

/* Begin the part's use of the file's pages, unless that is done. */
static bool stage_use_pages(struct stage *stage)
{
	bool used;

	pthread_mutex_lock(&stage->lock);
	if (stage->pages == PAGES_UNTRIED)
		stage->pages = wh_file_pages_enter(stage->source.mapping->pages, stage->start.left,
						   &stage->use) ?
				       PAGES_USED :
				       PAGES_REFUSED;
	used = stage->pages == PAGES_USED;
	pthread_mutex_unlock(&stage->lock);
	return used;
}

/* Page-lock the range's bytes, and list the copies. False: they must go through slots. */
static bool work_lock_pages(struct work *work)
{
	struct stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	struct wh_cursor at = work->rest;
	struct wh_extent_pair extent;

	if (!work->pairs)
		work->pairs = malloc(PAGES_PAIRS * sizeof(work->pairs[0]));
	if (!work->pairs || !stage_use_pages(stage))
		return false;
	work->count = work->put = 0;
	while (wh_fragment_next(fragment, &at, at.left, &extent)) {
		uint64_t offset = extent_at(stage, &stage->source, &extent), length;
		uint64_t to = extent_at(stage, &stage->target, &extent);

		for (uint64_t done = 0; done < extent.length; done += length) {
			struct wh_pair *pair = &work->pairs[work->count];

			length = extent.length - done;
			if (work->count == PAGES_PAIRS ||
			    !wh_file_pages_get(&stage->use, offset + done, &length, &pair->from))
				return false;
			pair->to = to + done;
			pair->length = length;
			work->count++;
		}
	}
	return true;
}

/* Submit as many of the copies as the stream has room for. */
static void work_read_pages(struct work *work)
{
	const struct side *target = &work->stage->target;
	const struct wh_pair *pairs = work->pairs + work->put;
	uint64_t count = work->count - work->put;
	struct wh_gpu_stream_turn turn;

	wh_gpu_stream_begin(target->stream, &turn);
	work->put += (uint32_t)side_submit(target, &turn, pairs, count);
	wh_gpu_stream_end(&turn, &work->job);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void work_continue(struct work *work);

static void work_run_file(struct wh_file_job *job)
{
	struct work *work = wh_container(job, struct work, file_job);
	int error = 0;

	wh_fail_begin();
	if (work->step == DIRECT && work_move_directly(work, &error))
		work->step = IDLE;
	else if (work->step == DIRECT)
		work_begin_slot(work);
	else if (work->step == LOCK_PAGES)
		/* What cannot be locked is what work_next() takes next. */
		work->step = work_lock_pages(work) ? READ_PAGES : IDLE;
	else
		error = work_copy_file(work);
	if (error) {
		wh_cuda_part_fail(work->stage->part, error, wh_error_text());
		work->step = IDLE; /* and the part has no more bytes */
	}
	wh_fail_end(0);
	work_continue(work);
}

static void stage_free(struct stage *stage)
{
	pthread_mutex_destroy(&stage->lock);
	free(stage);
}

static void stage_start_works(struct stage *stage);

/* No copy of the part is under way. */
static void stage_run_file(struct wh_file_job *job)
{
	struct stage *stage = wh_container(job, struct stage, file_job);
	struct wh_cuda_part *part = stage->part;
	bool once = wh_file_pages_once(stage->use.pages);

	wh_fail_begin();
	if (!atomic_load(&part->error) && !wh_file_pages_check(&stage->use)) {
		wh_file_pages_leave(&stage->use);
		stage->pages = PAGES_REFUSED;
		part->at = stage->start;
		wh_fail_end(0);
		stage_start_works(stage);
		return;
	}
	/* Letting pages go takes time that the batch does not wait for. Kept ones are free for the
	 * next batch as soon as this one has ended. */
	if (!once)
		wh_file_pages_leave(&stage->use);
	wh_cuda_part_done(part);
	if (once)
		wh_file_pages_leave(&stage->use);
	wh_fail_end(0);
	stage_free(stage);
}

static void stage_end_work(struct stage *stage)
{
	struct wh_cuda_part *part = stage->part;

	if (atomic_fetch_sub_explicit(&stage->works, 1, memory_order_acq_rel) != 1)
		return;
	if (stage->use.pages) {
		wh_file_threads_run(wh_engine_file_threads(part->op->cuda->mappings->engine),
				    &stage->file_job);
		return;
	}
	stage_free(stage);
	wh_cuda_part_done(part);
}

static void work_end(struct work *work)
{
	struct stage *stage = work->stage;

	if (work->slot)
		wh_slot_release(stage->part->op->cuda->mappings->gpus, work->slot);
	free(work->pairs);
	free(work);
	stage_end_work(stage);
}

/* Continue until a GPU or a file's thread is working, a slot is waited for, or the part has no more
 * bytes. */
static void work_continue(struct work *work)
{
	struct stage *stage = work->stage;
	struct wh_device_mappings *mappings = stage->part->op->cuda->mappings;

	for (;;) {
		const struct side *side;

		if (work->step == READ_PAGES && work->put == work->count) {
			work->rest.left = 0;
			work->step = IDLE;
		}
		if (work->step == IDLE && !work_next(work)) {
			work_end(work);
			return;
		}
		if (work->step == READ_PAGES) {
			work_read_pages(work);
			return;
		}
		if (work->step == LOCK_PAGES || work->step == DIRECT) {
			wh_file_threads_run(wh_engine_file_threads(mappings->engine),
					    &work->file_job);
			return;
		}
		side = work->step == INTO ? &stage->source : &stage->target;
		if (!work->slot)
			work->slot =
				wh_slot_acquire(mappings->gpus, WH_SLOT_INITIATOR, &work->wait);
		if (!work->slot)
			return; /* work_slot_ready() continues; `work` may be freed by now */
		if (work->at.left && side->mapping->file) {
			wh_file_threads_run(wh_engine_file_threads(mappings->engine),
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
	work_continue(work);
}

/* As many as the part's bytes keep busy. */
static void stage_start_works(struct stage *stage)
{
	bool file = stage->source.mapping->file || stage->target.mapping->file;
	uint64_t slots = stage->start.left / WH_SLOT + 1, most = file ? FILE_SLOTS : SLOTS;

	/* One more than there are works, so that the part does not end while they are started. */
	atomic_store(&stage->works, 1);
	for (uint64_t i = 0; i < slots && i < most; i++)
		work_start(stage);
	if (atomic_load(&stage->works) == 1 && stage->part->at.left)
		wh_cuda_part_fail(stage->part, -ENOMEM, "no memory");
	stage_end_work(stage);
}

int wh_cuda_stage_stream(struct wh_gpus *gpus, const struct wh_device_mapping *mapping,
			 enum wh_blocks_way way, bool urgent, struct wh_gpu_stream **out)
{
	if (mapping->file || (mapping->host && !mapping->device))
		return 0;
	return wh_gpus_stream(gpus, mapping->device, mapping->context, way, urgent, out);
}

/* For memory of this process on a GPU. Writes go past the page cache only where that is asked for.
 */
static struct wh_file_gds *stage_gds(const struct stage *stage)
{
	const struct wh_device_mapping *source = stage->source.mapping,
				       *target = stage->target.mapping;
	const struct wh_device_mapping *memory = source->file ? target : source;

	if (!memory->device || memory->managed || memory->legacy || memory->reserved)
		return NULL;
	if (source->file)
		return source->gds;
	return target->file && target->file->writes_direct ? target->gds : NULL;
}

void wh_cuda_stage(struct wh_cuda_part *part)
{
	const struct wh_fragment *fragment = part->op->fragment;
	bool urgent = fragment->priority == WH_PRIORITY_LATENCY;
	struct wh_gpus *gpus = part->op->cuda->mappings->gpus;
	struct stage *stage = calloc(1, sizeof(*stage));
	struct wh_device_mapping *local, *remote;
	const struct wh_region *region;
	int error;

	if (!stage) {
		wh_cuda_part_fail(part, -ENOMEM, "no memory");
		wh_cuda_part_done(part);
		return;
	}
	wh_cuda_mappings(part->op, part->first, &local, &remote);
	region = wh_fragment_local(fragment, part->first);
	stage->part = part;
	stage->start = part->at;
	stage->file_job.run = stage_run_file;
	stage->write = fragment->op == WH_WRITE;
	stage->source.mapping = stage->write ? local : remote;
	stage->target.mapping = stage->write ? remote : local;
	stage->source.base = side_base(stage->source.mapping, stage->write ? region : NULL);
	stage->target.base = side_base(stage->target.mapping, stage->write ? NULL : region);
	pthread_mutex_init(&stage->lock, NULL);
	error = wh_cuda_stage_stream(gpus, stage->source.mapping, WH_BLOCKS_TO_HOST, urgent,
				     &stage->source.stream);
	if (!error)
		error = wh_cuda_stage_stream(gpus, stage->target.mapping, WH_BLOCKS_FROM_HOST,
					     urgent, &stage->target.stream);
	if (!error)
		error = wh_slots_prepare(gpus, WH_SLOT_INITIATOR);
	stage->gds = stage_gds(stage);
	if (stage->source.mapping->pages && stage->target.stream)
		stage->pages = PAGES_UNTRIED;
	if (error) {
		wh_cuda_part_fail(part, error, wh_error_text());
		stage_free(stage);
		wh_cuda_part_done(part);
		return;
	}
	stage_start_works(stage);
}
