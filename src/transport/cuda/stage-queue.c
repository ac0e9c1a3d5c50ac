/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: which bytes of a part go out of the page cache and which through slots, and
 * who takes them; or whether blocks go out of the page cache all at once, as one descriptor.
 *
 * One thread at a time page-locks chunks of a file: the driver takes one such call at a time, and
 * several that wait for each other are slower than one. Nobody reads into slots beside it, either:
 * the copies out of these seem to wait for the same lock of the driver's, and nothing is gained. No
 * two ranges are in one chunk if that can be helped: a chunk is locked for all of its bytes, or for
 * none.
 */
#include "transport/cuda/stage.h"

#include <unistd.h>

#include "transport/blocks.h"

/* What is read out of the page cache at a time: up to the end of a chunk, if extents follow one
 * another in the file, or so many bytes. */
#define PAGES_BYTES ((uint64_t)8 << 20)

void wh_stage_range_take(const struct wh_fragment *fragment, struct wh_cursor *from, uint64_t most,
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

uint64_t wh_stage_skew(const struct wh_stage *stage, const struct wh_cursor *from)
{
	const struct wh_stage_side *side =
		stage->source.mapping->file ? &stage->source : &stage->target;
	struct wh_cursor at = *from;
	struct wh_extent_pair extent;

	if (!side->mapping->file ||
	    !wh_fragment_next(stage->part->op->fragment, &at, at.left, &extent))
		return 0;
	return (side->mapping->file->start + wh_stage_extent_at(stage, side, &extent)) %
	       (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- blocks, all at once -----------------------------------------------------------------------
 */

/* Where the source's blocks lie, from each base: in [*first, *end). A descriptor's offsets are
 * looked through once. */
static void blocks_find(struct wh_blocks *blocks, uint64_t *first, uint64_t *end)
{
	bool write = blocks->op == WH_WRITE;
	const uint64_t *offsets = write ? blocks->local_offsets : blocks->remote_offsets;
	uint64_t stride = write ? blocks->local_stride : blocks->remote_stride;
	uint64_t low = offsets ? offsets[0] : 0;
	uint64_t high = offsets ? offsets[0] : (blocks->count - 1) * stride;

	if (!atomic_load(&blocks->source_end)) {
		for (uint64_t i = 1; offsets && i < blocks->count; i++) {
			low = offsets[i] < low ? offsets[i] : low;
			high = offsets[i] > high ? offsets[i] : high;
		}
		atomic_store(&blocks->source_first, low);
		atomic_store(&blocks->source_end, high + blocks->block_length);
	}
	*first = atomic_load(&blocks->source_first);
	*end = atomic_load(&blocks->source_end);
}

bool wh_stage_takes_blocks(struct wh_stage *stage, uint64_t *pages)
{
	const struct wh_cuda_part *part = stage->part;
	struct wh_blocks *blocks = part->op->fragment->blocks;
	uint64_t first, end, address = 0;

	blocks_find(blocks, &first, &end);
	for (uint64_t i = part->first; i < part->end; i++) {
		const struct wh_block_base *base = &blocks->bases[i];
		struct wh_extent_pair start = { .local = base->address, .offset = base->offset };
		uint64_t at = wh_stage_extent_at(stage, &stage->source, &start) + first, found;

		if (!wh_file_pages_whole(&stage->use, at, end - first, &found) ||
		    (address && found != address))
			return false;
		address = found;
	}
	if (!wh_gpu_stream_prefers_kernel(stage->target.stream,
					  blocks->count * (part->end - part->first),
					  blocks->block_length))
		return false;
	*pages = address;
	return true;
}

/* ---- under the stage's lock -------------------------------------------------------------------
 */

static bool stage_has_pages(const struct wh_stage *stage)
{
	return stage->pages == WH_PAGES_UNTRIED || stage->pages == WH_PAGES_USED;
}

/* Take the next bytes of the part that are worth page-locking: extents that follow one another up
 * to the end of a chunk, or PAGES_BYTES of those that do not. */
static void stage_take_chunk(struct wh_stage *stage, struct wh_cursor *out)
{
	const struct wh_fragment *fragment = stage->part->op->fragment;
	struct wh_cursor *from = &stage->part->at;
	uint64_t end = 0, bytes = 0, most = WH_FILE_CHUNK;
	struct wh_extent_pair extent;

	*out = *from;
	for (uint32_t i = 0; i < WH_PAGES_EXTENTS && bytes < most && from->left; i++) {
		struct wh_cursor peek = *from;
		uint64_t at, room;

		wh_fragment_next(fragment, &peek,
				 most - bytes < from->left ? most - bytes : from->left, &extent);
		at = wh_stage_extent_at(stage, &stage->source, &extent);
		if (!i)
			end = at + wh_file_pages_room(stage->source.mapping->pages, at);
		room = at < end && at + WH_FILE_CHUNK >= end ? end - at : 0;
		if (room < extent.length && most == WH_FILE_CHUNK)
			most = bytes + room >= PAGES_BYTES / 2 ? bytes + room : PAGES_BYTES;
		if (extent.length > most - bytes)
			extent.length = most - bytes;
		if (extent.length)
			wh_fragment_next(fragment, from, extent.length, &extent);
		bytes += extent.length;
	}
	out->left = bytes;
}

/* Take a slot's bytes. */
static void work_take_slot(struct wh_stage_work *work)
{
	struct wh_stage *stage = work->stage;
	struct wh_cursor *from = &stage->part->at;

	if (stage_has_pages(stage) && !stage->shared.left)
		stage_take_chunk(stage, &stage->shared);
	if (stage->shared.left)
		from = &stage->shared;
	wh_stage_range_take(stage->part->op->fragment, from, WH_SLOT - wh_stage_skew(stage, from),
			    WH_STAGE_EXTENTS, &work->rest);
}

enum wh_stage_taken wh_stage_take(struct wh_stage_work *work)
{
	struct wh_stage *stage = work->stage;
	struct wh_cursor *at = &stage->part->at;

	if (atomic_load(&stage->part->error))
		return WH_TAKEN_NOTHING;
	if (work->rest.left)
		return WH_TAKEN_SLOT;
	if (!at->left && !stage->shared.left)
		return WH_TAKEN_NOTHING;
	if (stage_has_pages(stage) && !(stage->missed && stage->shared.left)) {
		if (at->left && (!stage->locking || stage->kept)) {
			stage->locking++;
			stage_take_chunk(stage, &work->rest);
			return WH_TAKEN_CHUNK;
		}
		if (stage->locking) {
			wh_list_append(&stage->idle, &work->link);
			return WH_TAKEN_LATER;
		}
	}
	work_take_slot(work);
	return WH_TAKEN_SLOT;
}

struct wh_stage_work *wh_stage_take_idle(struct wh_stage *stage)
{
	struct wh_list *link = NULL;

	pthread_mutex_lock(&stage->lock);
	if (!stage->locking || (stage->kept && stage->part->at.left))
		link = wh_list_take(&stage->idle);
	pthread_mutex_unlock(&stage->lock);
	return link ? wh_container(link, struct wh_stage_work, link) : NULL;
}
