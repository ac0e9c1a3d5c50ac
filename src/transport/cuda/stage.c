/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: stage the parts whose two sides no GPU reaches. Their bytes go through slots
 * of pinned memory, a few slots at a time. A GPU copies between a slot and GPU memory, the CPU
 * between a slot and host memory; threads that may wait for a disk read files into slots, and write
 * slots into files.
 *
 * A GPU reads a file's bytes out of the page cache instead, where that can be page-locked
 * (pages.h): a thread for files locks pages ahead of the copies (stage-queue.c), unless all of them
 * are faster through slots. Ranges that cannot be locked go through slots; so does the whole part
 * once more if its pages turn out to be stale. Blocks whose pages have been locked before are not
 * cut into ranges: the kernel takes their descriptor, as that of blocks in host memory (move.c).
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
#include "transport/cuda/gds.h"
#include "transport/cuda/stage.h"
#include "transport/fragment.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"

#define SLOTS 4 /* of one part at a time */
/* The same for each thread for files, if one side is a file: while one slot's bytes wait for the
 * GPU, the thread has others. With one slot for each, eight threads read at 26 GB/s instead of 40.
 */
#define THREAD_SLOTS 3
#define FILE_SLOTS 24 /* of one part at most: others need some, too */

/* ---- addresses ------------------------------------------------------------------------------- */

/* What wh_stage_extent_at() adds to an extent's local address, or to its offset in the remote
 * region. Of a file the result is the offset in the region. */
static uint64_t side_base(const struct wh_device_mapping *mapping, const struct wh_region *local)
{
	uint64_t first = mapping->file ? 0 :
			 mapping->host && !mapping->device ?
					 (uint64_t)(uintptr_t)mapping->host :
					 wh_device_mapping_address(mapping, mapping->device);

	return local ? first - local->entry.address : first;
}

/* ---- ranges -----------------------------------------------------------------------------------
 */

static void work_begin(struct wh_stage_work *work, enum wh_stage_step step)
{
	work->step = step;
	work->at = work->start;
	work->filled = 0;
}

/* What comes next: *most bytes of *extents extents. True: whole pages that are aligned on both
 * sides, for GPUDirect Storage. False: what slots take, up to where such pages begin. */
static bool stage_find_whole_pages(const struct wh_stage *stage, const struct wh_cursor *from,
				   uint64_t *most, uint32_t *extents)
{
	bool reads = stage->source.mapping->file, direct = false;
	const struct wh_stage_side *file = reads ? &stage->source : &stage->target;
	const struct wh_stage_side *memory = reads ? &stage->target : &stage->source;
	const uint64_t inside = WH_GDS_PAGE - 1;
	struct wh_cursor at = *from;
	struct wh_extent_pair extent;
	uint64_t bytes = 0, part;
	uint32_t count = 0;

	while (count < WH_STAGE_EXTENTS && bytes < *most && at.left) {
		uint64_t room = *most - bytes, there, here, whole = 0;

		wh_fragment_next(stage->part->op->fragment, &at, room < at.left ? room : at.left,
				 &extent);
		there = file->mapping->file->start + wh_stage_extent_at(stage, file, &extent);
		here = wh_stage_extent_at(stage, memory, &extent);
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

static char *work_slot(const struct wh_stage_work *work)
{
	return work->slot->host + work->skew;
}

static void work_begin_slot(struct wh_stage_work *work)
{
	wh_engine_count_staged(work->stage->part->op->cuda->mappings->engine, work->start.left);
	work_begin(work, WH_STAGE_INTO);
}

/* The file on one side; NULL: both are memory. */
static struct wh_file *stage_file(const struct wh_stage *stage)
{
	return stage->source.mapping->file ? stage->source.mapping->file :
					     stage->target.mapping->file;
}

static struct wh_file_system *stage_file_system(const struct wh_stage *stage)
{
	return stage_file(stage) ? stage_file(stage)->system : NULL;
}

static void work_continue(struct wh_stage_work *work);

/* Something has changed for those that wait. The caller's own work has not ended. */
static void stage_wake(struct wh_stage *stage)
{
	struct wh_stage_work *work;

	while ((work = wh_stage_take_idle(stage)))
		work_continue(work);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Begin the next range, or slot. Anything but WH_TAKEN_CHUNK and WH_TAKEN_SLOT: the work is not the
 * caller's any more, or there are no more. */
static enum wh_stage_taken work_next(struct wh_stage_work *work)
{
	struct wh_stage *stage = work->stage;
	struct wh_cuda_part *part = stage->part;
	const struct wh_fragment *fragment = part->op->fragment;
	uint32_t extents = WH_STAGE_EXTENTS;
	enum wh_stage_taken taken;
	uint64_t most;
	bool direct;

	pthread_mutex_lock(&stage->lock);
	if (atomic_load(&fragment->cancelled) &&
	    (part->at.left || stage->shared.left || work->rest.left))
		wh_cuda_part_fail(part, -ECANCELED, "cancelled");
	taken = wh_stage_take(work);
	pthread_mutex_unlock(&stage->lock);
	if (taken == WH_TAKEN_CHUNK)
		work->step = WH_STAGE_LOCK_PAGES;
	if (taken != WH_TAKEN_SLOT)
		return taken;
	work->skew = wh_stage_skew(stage, &work->rest);
	most = WH_SLOT - work->skew;
	direct = stage->gds && stage_find_whole_pages(stage, &work->rest, &most, &extents);
	wh_stage_range_take(fragment, &work->rest, most, extents, &work->start);
	if (direct)
		work_begin(work, WH_STAGE_DIRECT);
	else
		work_begin_slot(work);
	return taken;
}

static void work_copy_by_cpu(struct wh_stage_work *work, const struct wh_stage_side *side)
{
	struct wh_stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	char *slot = work_slot(work);
	struct wh_extent_pair extent;

	while (wh_fragment_next(fragment, &work->at, work->at.left, &extent)) {
		char *there = (char *)(uintptr_t)wh_stage_extent_at(stage, side, &extent);

		if (side == &stage->source)
			memcpy(slot, there, extent.length);
		else
			memcpy(there, slot, extent.length);
		slot += extent.length;
	}
}

/* Submit copies of the side's memory. Returns how many of the first ones: the stream's ring may be
 * full. */
static uint64_t side_submit(const struct wh_stage_side *side, struct wh_gpu_stream_turn *turn,
			    const struct wh_pair *pairs, uint64_t count)
{
	if (!side->mapping->managed)
		return wh_gpu_stream_pairs(turn, pairs, count);
	for (uint64_t i = 0; i < count; i++)
		wh_gpu_stream_copy(turn, pairs[i].to, pairs[i].from, pairs[i].length);
	return count;
}

/* Submit as much of the step as the side's stream has room for. */
static void work_copy_by_gpu(struct wh_stage_work *work, const struct wh_stage_side *side)
{
	struct wh_stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	struct wh_pair pairs[WH_STAGE_EXTENTS];
	uint64_t slot = work->slot->address + work->skew + work->filled, put, n = 0;
	struct wh_cursor at = work->at;
	struct wh_gpu_stream_turn turn;
	struct wh_extent_pair extent;

	while (wh_fragment_next(fragment, &at, at.left, &extent)) {
		uint64_t there = wh_stage_extent_at(stage, side, &extent);

		pairs[n].from = side == &stage->source ? there : slot;
		pairs[n].to = side == &stage->source ? slot : there;
		pairs[n++].length = extent.length;
		slot += extent.length;
	}
	if (!side->mapping->managed && wh_gpu_stream_shares(side->stream, n, work->at.left)) {
		memcpy(work->few, pairs, n * sizeof(pairs[0]));
		work->job.pairs = work->few;
		work->job.count = n;
		work->at = at;
		wh_gpu_stream_put(side->stream, &work->job);
		return;
	}
	wh_gpu_stream_begin(side->stream, &turn);
	put = side_submit(side, &turn, pairs, n);
	while (put-- && wh_fragment_next(fragment, &work->at, work->at.left, &extent))
		work->filled += extent.length;
	wh_gpu_stream_end(&turn, &work->job);
}

/* Move the whole step. On a thread that may wait. 0, or an error with its text. */
static int work_copy_file(struct wh_stage_work *work)
{
	struct wh_stage *stage = work->stage;
	const struct wh_stage_side *side =
		work->step == WH_STAGE_INTO ? &stage->source : &stage->target;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	struct wh_file_extent extents[WH_STAGE_EXTENTS];
	struct wh_extent_pair extent;
	char *slot = work_slot(work);
	uint32_t count = 0, moved;
	int error;

	for (; wh_fragment_next(fragment, &work->at, work->at.left, &extent); count++) {
		extents[count] = (struct wh_file_extent){ wh_stage_extent_at(stage, side, &extent),
							  slot, extent.length };
		slot += extent.length;
	}
	error = wh_file_move(side->mapping->file, work->step == WH_STAGE_INTO ? WH_READ : WH_WRITE,
			     extents, count, &moved);
	return error || work->step == WH_STAGE_INTO ? error : wh_file_sync(side->mapping->file);
}

/* ---- GPUDirect Storage ----------------------------------------------------------------------- */

/* Move the range between the file and the GPU's memory. False: slots have to, which are faster for
 * what is in the page cache, and find out what is wrong with a file. */
static bool work_move_directly(struct wh_stage_work *work, int *error)
{
	struct wh_stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	bool reads = stage->source.mapping->file;
	const struct wh_stage_side *side = reads ? &stage->source : &stage->target;
	const struct wh_stage_side *memory = reads ? &stage->target : &stage->source;
	struct wh_file *file = side->mapping->file;
	struct wh_cursor at = work->at;
	struct wh_extent_pair extent;

	if (!wh_file_gds_ready(stage->gds))
		return false;
	while (wh_fragment_next(fragment, &at, at.left, &extent)) {
		uint64_t offset = wh_stage_extent_at(stage, side, &extent);

		if (reads && wh_file_is_resident(file, file->start + offset, extent.length)) {
			wh_file_gds_skip(stage->gds, "the bytes are in the page cache");
			return false;
		}
		if (wh_file_gds_move(stage->gds, reads ? WH_READ : WH_WRITE, offset,
				     memory->mapping, wh_stage_extent_at(stage, memory, &extent),
				     extent.length))
			return false;
	}
	*error = reads ? 0 : wh_file_sync(file);
	return true;
}

/* ---- out of the page cache ------------------------------------------------------------------- */

/* Where in the file's region the range begins. */
static uint64_t stage_range_start(const struct wh_stage *stage, const struct wh_cursor *range)
{
	struct wh_extent_pair extent = { 0 };
	struct wh_cursor at = *range;

	wh_fragment_next(stage->part->op->fragment, &at, at.left, &extent);
	return wh_stage_extent_at(stage, &stage->source, &extent);
}

/* Begin the part's use of the file's pages with the range, unless that is done. */
static bool stage_use_pages(struct wh_stage *stage, const struct wh_cursor *range)
{
	bool used;

	pthread_mutex_lock(&stage->lock);
	if (stage->pages == WH_PAGES_UNTRIED)
		stage->pages = wh_file_pages_enter(stage->source.mapping->pages,
						   stage_range_start(stage, range),
						   stage->start.left, &stage->use) ?
				       WH_PAGES_USED :
				       WH_PAGES_REFUSED;
	used = stage->pages == WH_PAGES_USED;
	pthread_mutex_unlock(&stage->lock);
	return used;
}

/* Find out whether the range's pages are locked already, and so what others may do meanwhile. */
static void stage_look(struct wh_stage *stage, const struct wh_cursor *range)
{
	bool kept = wh_file_pages_locked(&stage->use, stage_range_start(stage, range));

	pthread_mutex_lock(&stage->lock);
	stage->kept = kept;
	pthread_mutex_unlock(&stage->lock);
	stage_wake(stage);
}

/* Page-lock the range's bytes, and list the copies. False: they must go through slots. */
static bool work_lock_pages(struct wh_stage_work *work)
{
	struct wh_stage *stage = work->stage;
	const struct wh_fragment *fragment = stage->part->op->fragment;
	struct wh_cursor at = work->rest;
	struct wh_extent_pair extent;

	if (!work->pairs)
		work->pairs = malloc(WH_PAGES_PAIRS * sizeof(work->pairs[0]));
	if (!work->pairs || !stage_use_pages(stage, &work->rest))
		return false;
	work->count = work->put = 0;
	stage_look(stage, &work->rest);
	while (wh_fragment_next(fragment, &at, at.left, &extent)) {
		uint64_t offset = wh_stage_extent_at(stage, &stage->source, &extent), length;
		uint64_t to = wh_stage_extent_at(stage, &stage->target, &extent);

		for (uint64_t done = 0; done < extent.length; done += length) {
			struct wh_pair *pair = &work->pairs[work->count];

			length = extent.length - done;
			if (work->count == WH_PAGES_PAIRS ||
			    !wh_file_pages_get(&stage->use, offset + done, &length, &pair->from))
				return false;
			pair->to = to + done;
			pair->length = length;
			work->count++;
		}
	}
	return true;
}

/* The step WH_STAGE_LOCK_PAGES. */
static void work_run_pages(struct wh_stage_work *work)
{
	struct wh_stage *stage = work->stage;
	bool locked = work_lock_pages(work);

	pthread_mutex_lock(&stage->lock);
	stage->locking--;
	stage->missed = !locked;
	if (!locked && !stage->shared.left) {
		stage->shared = work->rest;
		work->rest.left = 0;
	}
	pthread_mutex_unlock(&stage->lock);
	if (locked)
		wh_file_pages_count(&stage->use, work->rest.left, 0);
	work->step = locked ? WH_STAGE_READ_PAGES : WH_STAGE_IDLE;
	stage_wake(stage);
}

/* Submit as many of the copies as the stream has room for. */
static void work_read_pages(struct wh_stage_work *work)
{
	const struct wh_stage_side *target = &work->stage->target;
	const struct wh_pair *pairs = work->pairs + work->put;
	uint64_t count = work->count - work->put;
	struct wh_gpu_stream_turn turn;

	wh_gpu_stream_begin(target->stream, &turn);
	work->put += (uint32_t)side_submit(target, &turn, pairs, count);
	wh_gpu_stream_end(&turn, &work->job);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void work_run_file(struct wh_file_job *job)
{
	struct wh_stage_work *work = wh_container(job, struct wh_stage_work, file_job);
	int error = 0;

	wh_fail_begin();
	if (work->step == WH_STAGE_DIRECT && work_move_directly(work, &error))
		work->step = WH_STAGE_IDLE;
	else if (work->step == WH_STAGE_DIRECT)
		work_begin_slot(work);
	else if (work->step == WH_STAGE_LOCK_PAGES)
		work_run_pages(work);
	else
		error = work_copy_file(work);
	if (!error && work->step == WH_STAGE_INTO && work->stage->use.pages)
		wh_file_pages_count(&work->stage->use, 0, work->start.left);
	if (error) {
		wh_cuda_part_fail(work->stage->part, error, wh_error_text());
		work->step = WH_STAGE_IDLE; /* and the part has no more bytes */
	}
	wh_fail_end(0);
	work_continue(work);
}

static void stage_free(struct wh_stage *stage)
{
	pthread_mutex_destroy(&stage->lock);
	free(stage);
}

static void stage_start_works(struct wh_stage *stage);

/* No copy of the part is under way. */
static void stage_run_file(struct wh_file_job *job)
{
	struct wh_stage *stage = wh_container(job, struct wh_stage, file_job);
	struct wh_cuda_part *part = stage->part;
	bool once = wh_file_pages_once(stage->use.pages);

	wh_fail_begin();
	if (!atomic_load(&part->error) && !wh_file_pages_check(&stage->use)) {
		wh_file_pages_leave(&stage->use);
		stage->pages = WH_PAGES_REFUSED;
		stage->missed = false;
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

/* Before any work starts: whether blocks need works at all. */
static void stage_run_blocks(struct wh_file_job *job)
{
	struct wh_stage *stage = wh_container(job, struct wh_stage, file_job);
	struct wh_cuda_part *part = stage->part;
	uint64_t pages = 0;
	bool all;

	job->run = stage_run_file;
	wh_fail_begin();
	all = stage_use_pages(stage, &stage->start) && wh_stage_takes_blocks(stage, &pages) &&
	      !atomic_load(&part->op->fragment->cancelled);
	wh_fail_end(0);
	if (!all) {
		stage_start_works(stage);
		return;
	}
	wh_file_pages_count(&stage->use, stage->start.left, 0);
	wh_cuda_part_read(part, stage->target.stream, pages, stage);
}

void wh_cuda_stage_end(struct wh_stage *stage)
{
	wh_file_system_run(stage_file_system(stage), &stage->file_job);
}

static void stage_end_work(struct wh_stage *stage)
{
	struct wh_cuda_part *part = stage->part;

	if (atomic_fetch_sub_explicit(&stage->works, 1, memory_order_acq_rel) != 1)
		return;
	if (stage->use.pages) {
		wh_cuda_stage_end(stage);
		return;
	}
	if (stage->use.by_threads)
		wh_file_pages_read(stage->source.mapping->pages, stage->start.left,
				   atomic_load(&part->error));
	stage_free(stage);
	wh_cuda_part_done(part);
}

static void work_end(struct wh_stage_work *work)
{
	struct wh_stage *stage = work->stage;

	if (work->slot)
		wh_slot_release(stage->part->op->cuda->mappings->gpus, work->slot);
	free(work->pairs);
	free(work);
	stage_end_work(stage);
}

/* Begin the next range. The slot of a file goes to others that need one; else it is taken again. */
static enum wh_stage_taken work_begin_next(struct wh_stage_work *work)
{
	struct wh_slot *slot = work->slot;

	if (slot && stage_file(work->stage)) {
		work->slot = NULL;
		wh_slot_release(work->stage->part->op->cuda->mappings->gpus, slot);
	}
	return work_next(work);
}

/* Continue until a GPU or a file's thread is working, a slot is waited for, or the part has no more
 * bytes. */
static void work_continue(struct wh_stage_work *work)
{
	struct wh_stage *stage = work->stage;
	struct wh_device_mappings *mappings = stage->part->op->cuda->mappings;

	for (;;) {
		const struct wh_stage_side *side;

		if (work->step == WH_STAGE_READ_PAGES && work->put == work->count) {
			work->rest.left = 0;
			work->step = WH_STAGE_IDLE;
		}
		if (work->step == WH_STAGE_IDLE) {
			enum wh_stage_taken taken = work_begin_next(work);

			if (taken == WH_TAKEN_NOTHING)
				work_end(work);
			if (taken == WH_TAKEN_NOTHING || taken == WH_TAKEN_LATER)
				return;
		}
		if (work->step == WH_STAGE_READ_PAGES) {
			work_read_pages(work);
			return;
		}
		if (work->step == WH_STAGE_LOCK_PAGES || work->step == WH_STAGE_DIRECT) {
			wh_file_system_run(stage_file_system(stage), &work->file_job);
			return;
		}
		side = work->step == WH_STAGE_INTO ? &stage->source : &stage->target;
		if (!work->slot)
			work->slot = wh_slot_acquire_file(mappings->gpus, WH_SLOT_INITIATOR,
							  stage_file_system(stage), &work->wait);
		if (!work->slot)
			return; /* work_slot_ready() continues; `work` may be freed by now */
		if (work->at.left && side->mapping->file) {
			wh_file_system_run(stage_file_system(stage), &work->file_job);
			return;
		}
		if (work->at.left && side->stream) {
			work_copy_by_gpu(work, side);
			return;
		}
		if (work->at.left)
			work_copy_by_cpu(work, side);
		if (work->step == WH_STAGE_INTO)
			work_begin(work, WH_STAGE_OUT_OF);
		else
			work->step = WH_STAGE_IDLE;
	}
}

static void work_done(struct wh_gpu_stream_job *job, int error, const char *text)
{
	struct wh_stage_work *work = wh_container(job, struct wh_stage_work, job);

	if (error) {
		wh_cuda_part_fail(work->stage->part, error, text);
		if (work->step == WH_STAGE_READ_PAGES)
			work->rest.left = 0;
		work->step = WH_STAGE_IDLE; /* and the part has no more bytes */
	}
	work_continue(work);
}

/* ---- starting -------------------------------------------------------------------------------- */

static void work_slot_ready(struct wh_slot_wait *wait, struct wh_slot *slot)
{
	struct wh_stage_work *work = wh_container(wait, struct wh_stage_work, wait);

	work->slot = slot;
	work_continue(work);
}

/* Nothing runs yet that looks at stage.idle. */
static void work_new(struct wh_stage *stage)
{
	struct wh_stage_work *work = calloc(1, sizeof(*work));

	if (!work)
		return;
	work->stage = stage;
	work->job.done = work_done;
	work->file_job.run = work_run_file;
	work->wait.ready = work_slot_ready;
	atomic_fetch_add(&stage->works, 1);
	wh_list_append(&stage->idle, &work->link);
}

/* How many slots one part may have. */
static uint64_t stage_most_slots(const struct wh_stage *stage)
{
	struct wh_engine *engine = stage->part->op->cuda->mappings->engine;
	uint64_t threads = (uint64_t)wh_engine_config(engine)->number[WH_SETTING_FILE_THREADS];

	if (!stage_file(stage))
		return SLOTS;
	return THREAD_SLOTS * threads < FILE_SLOTS ? THREAD_SLOTS * threads : FILE_SLOTS;
}

/* As many as the part's bytes keep busy. */
static void stage_start_works(struct wh_stage *stage)
{
	uint64_t slots = stage->start.left / WH_SLOT + 1, most = stage_most_slots(stage);

	/* One more than there are works, so that the part does not end while they are started. */
	atomic_store(&stage->works, 1);
	for (uint64_t i = 0; i < slots && i < most; i++)
		work_new(stage);
	if (atomic_load(&stage->works) == 1 && stage->part->at.left)
		wh_cuda_part_fail(stage->part, -ENOMEM, "no memory");
	stage_wake(stage);
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
static struct wh_file_gds *stage_gds(const struct wh_stage *stage)
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
	struct wh_stage *stage = calloc(1, sizeof(*stage));
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
		error = wh_slots_prepare_file(gpus, WH_SLOT_INITIATOR, stage_file_system(stage));
	stage->gds = stage_gds(stage);
	wh_list_init(&stage->idle);
	if (stage->source.mapping->pages && stage->target.stream)
		stage->pages = WH_PAGES_UNTRIED;
	if (error) {
		wh_cuda_part_fail(part, error, wh_error_text());
		stage_free(stage);
		wh_cuda_part_done(part);
	} else if (stage->pages == WH_PAGES_UNTRIED && fragment->blocks &&
		   !stage->target.mapping->managed) {
		stage->file_job.run = stage_run_blocks;
		wh_file_system_run(stage_file_system(stage), &stage->file_job);
	} else {
		stage_start_works(stage);
	}
}
