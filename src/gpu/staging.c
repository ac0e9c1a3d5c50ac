/* SPDX-License-Identifier: Apache-2.0 */
/* staging.c: gathers extents of regions into a slot and scatters a slot to extents: GPU memory by
 * streams, host memory by the CPU, files by their threads, a few bytes of GPU memory through region
 * windows. */
#include "gpu/staging.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/gpus.h"
#include "gpu/region-window.h"
#include "memory/file.h"
#include "memory/memory.h"
#include "memory/region.h"
#include "util/list.h"

#define PAIRS 256 /* submitted at a time */
#define FILE_EXTENTS 256 /* moved by one call */
/* Of a file, read at once in any case: up to this, waking a thread takes longer. */
#define CACHED_BYTES ((uint64_t)64 << 10)

void wh_staging_clear(struct wh_staging *staging)
{
	staging->count = staging->next = 0;
	staging->bytes = 0;
	staging->error = 0;
	staging->text[0] = 0;
}

void wh_staging_destroy(struct wh_staging *staging)
{
	free(staging->extents);
	staging->extents = NULL;
	staging->room = 0;
}

uint64_t wh_staging_skip(struct wh_staging *staging, uint64_t length)
{
	if (length > WH_SLOT - staging->bytes)
		length = WH_SLOT - staging->bytes;
	staging->bytes += length;
	return length;
}

uint64_t wh_staging_add(struct wh_staging *staging, const struct wh_region *region,
			uint64_t address, uint64_t length)
{
	struct wh_staged_extent *last = staging->count ? &staging->extents[staging->count - 1] :
							 NULL,
				*grown;
	uint32_t room = staging->room ? 2 * staging->room : 16;

	if (length > WH_SLOT - staging->bytes)
		length = WH_SLOT - staging->bytes;
	if (!length)
		return 0;
	if (last && last->region == region && last->address + last->length == address &&
	    last->offset + last->length == staging->bytes) {
		last->length += length;
		staging->bytes += length;
		return length;
	}
	if (staging->count == staging->room) {
		grown = realloc(staging->extents, room * sizeof(*grown));
		if (!grown)
			return 0;
		staging->extents = grown;
		staging->room = room;
	}
	staging->extents[staging->count++] =
		(struct wh_staged_extent){ region, address, length, staging->bytes };
	staging->bytes += length;
	return length;
}

/* ---- copying --------------------------------------------------------------------------------- */

/* Copy an extent of host memory. 0 or -EFAULT. */
static int staging_copy_by_cpu(const struct wh_staging *staging,
			       const struct wh_staged_extent *extent)
{
	struct iovec there = { (void *)(uintptr_t)extent->address, extent->length };
	char *slot = staging->slot->host + extent->offset;
	uint64_t length = extent->length, moved = length;

	if (wh_region_may_vanish(extent->region))
		moved = staging->into ? wh_memory_take(getpid(), slot, &there, 1, length) :
					wh_memory_put(getpid(), &there, 1, slot, length);
	else if (staging->into)
		memcpy(slot, there.iov_base, length);
	else
		memcpy(there.iov_base, slot, length);
	return moved < length ? -EFAULT : 0;
}

CUcontext wh_staging_context(const struct wh_registration *registration)
{
	CUcontext context = registration->segments[0].context;

	return context == registration->device->context ? NULL : context;
}

static int staging_stream(const struct wh_staging *staging,
			  const struct wh_registration *registration, struct wh_gpu_stream **out)
{
	int error = wh_registration_check(registration);

	if (error)
		return error;
	return wh_gpus_stream(staging->gpus, registration->device, wh_staging_context(registration),
			      staging->into ? WH_BLOCKS_TO_HOST : WH_BLOCKS_FROM_HOST,
			      staging->urgent, out);
}

/* Fill pairs[] with the next extents that the stream of this registration can copy. Returns how
 * many, at most PAIRS. */
static uint64_t staging_pairs(const struct wh_staging *staging,
			      const struct wh_registration *registration, struct wh_pair *pairs)
{
	const struct wh_region *same = NULL;
	uint64_t n = 0;

	for (uint32_t i = staging->next; i < staging->count && n < PAIRS; i++, n++) {
		const struct wh_staged_extent *extent = &staging->extents[i];
		uint64_t slot = staging->slot->address + extent->offset;

		if (extent->region != same && extent->region->registration != registration &&
		    (wh_kind_on_host(extent->region->entry.kind) ||
		     extent->region->entry.kind == WH_MEMORY_MANAGED ||
		     extent->region->registration->device != registration->device ||
		     wh_staging_context(extent->region->registration) !=
			     wh_staging_context(registration)))
			break;
		same = extent->region;
		pairs[n] = (struct wh_pair){ .from = staging->into ? extent->address : slot,
					     .to = staging->into ? slot : extent->address,
					     .length = extent->length };
	}
	return n;
}

/* Submit the next extents, as many as one stream and its ring take, as one job. */
static int staging_submit_gpu(struct wh_staging *staging)
{
	const struct wh_region *region = staging->extents[staging->next].region;
	struct wh_pair pairs[PAIRS];
	struct wh_gpu_stream_turn turn;
	uint64_t count, put = 0;
	struct wh_gpu_stream *stream;
	int error = staging_stream(staging, region->registration, &stream);

	if (error)
		return error;
	wh_gpu_stream_begin(stream, &turn);
	do {
		count = staging_pairs(staging, region->registration, pairs);
		if (region->entry.kind == WH_MEMORY_MANAGED) { /* only the driver may copy it */
			for (put = 0; put < count; put++)
				wh_gpu_stream_copy(&turn, pairs[put].to, pairs[put].from,
						   pairs[put].length);
		} else {
			put = wh_gpu_stream_pairs(&turn, pairs, count);
		}
		staging->next += (uint32_t)put;
	} while (count == PAIRS && put == count);
	wh_gpu_stream_end(&turn, &staging->job);
	return 0;
}

static struct wh_file *extent_file(const struct wh_staged_extent *extent)
{
	return extent->region->entry.kind == WH_MEMORY_FILE ? extent->region->registration->file :
							      NULL;
}

/* Fill extents[] with those from `first` on that are all of the file. Returns how many. */
static uint32_t staging_file_extents(const struct wh_staging *staging, uint32_t first,
				     const struct wh_file *file,
				     struct wh_file_extent extents[FILE_EXTENTS])
{
	uint32_t count = 0;

	while (first + count < staging->count && count < FILE_EXTENTS) {
		const struct wh_staged_extent *extent = &staging->extents[first + count];

		if (extent_file(extent) != file)
			break;
		extents[count++] = (struct wh_file_extent){
			.offset = extent->address - extent->region->entry.address,
			.memory = staging->slot->host + extent->offset,
			.length = extent->length,
		};
	}
	return count;
}

/* Move the next extents that are all of the file. On a thread that may wait. */
static int staging_move_file(struct wh_staging *staging, struct wh_file *file)
{
	struct wh_file_extent extents[FILE_EXTENTS];
	uint32_t count = staging_file_extents(staging, staging->next, file, extents), moved;

	staging->next += count;
	return wh_file_move(file, staging->into ? WH_READ : WH_WRITE, extents, count, &moved);
}

static void staging_continue(struct wh_staging *staging);

static void staging_run_file(struct wh_file_job *job)
{
	struct wh_staging *staging = wh_container(job, struct wh_staging, file_job);
	struct wh_file *file = extent_file(&staging->extents[staging->next]);
	int error;

	wh_fail_begin();
	do
		error = staging_move_file(staging, file);
	while (!error && staging->next < staging->count &&
	       extent_file(&staging->extents[staging->next]) == file);
	if (!error && !staging->into)
		error = wh_file_sync(file);
	if (error) {
		staging->error = error;
		snprintf(staging->text, sizeof(staging->text), "%s", wh_error_text());
	}
	wh_fail_end(0);
	staging_continue(staging);
}

static void staging_submit_file(struct wh_staging *staging, const struct wh_region *region)
{
	staging->file_job.run = staging_run_file;
	wh_file_system_run(region->registration->file->system, &staging->file_job);
}

static void staging_continue(struct wh_staging *staging)
{
	int error;

	while (!staging->error && staging->next < staging->count) {
		if (extent_file(&staging->extents[staging->next])) {
			/* staging_run_file() continues; `staging` may be freed by now */
			staging_submit_file(staging, staging->extents[staging->next].region);
			return;
		}
		error = staging_submit_gpu(staging);
		if (!error)
			return; /* staging_job_done() continues; `staging` may be freed by now */
		staging->error = error;
		snprintf(staging->text, sizeof(staging->text), "%s", wh_error_text());
	}
	staging->done(staging, staging->error, staging->text);
}

static void staging_job_done(struct wh_gpu_stream_job *job, int error, const char *text)
{
	struct wh_staging *staging = wh_container(job, struct wh_staging, job);

	if (error) {
		staging->error = error;
		snprintf(staging->text, sizeof(staging->text), "%s", text);
	}
	staging_continue(staging);
}

/* ---- a few bytes ----------------------------------------------------------------------------- */

/* The extent's region window; NULL: host memory. */
static const struct wh_region_window *extent_window(const struct wh_staged_extent *extent)
{
	return wh_kind_on_host(extent->region->entry.kind) ? NULL :
							     wh_region_window_peek(extent->region);
}

/* Would the CPU have read all extents before a GPU started to copy them? False as well if a region
 * has no window or its memory has been freed. */
static bool staging_is_small(const struct wh_staging *staging, bool open)
{
	uint64_t sum = 0, most = WH_REGION_WINDOW_FEW;
	const struct wh_region_window *window;

	for (uint32_t i = 0; i < staging->count && sum <= most; i++) {
		const struct wh_staged_extent *extent = &staging->extents[i];

		if (wh_kind_on_host(extent->region->entry.kind))
			continue;
		if (extent_file(extent))
			return false;
		window =
			open ? wh_region_window_get((struct wh_region *)(uintptr_t)extent->region) :
			       extent_window(extent);
		if (!window || wh_registration_check(extent->region->registration))
			return false;
		sum += wh_region_window_weight(extent->length);
		most = window->get_most < most ? window->get_most : most;
	}
	return sum <= most;
}

static bool staging_gather_few(struct wh_staging *staging, bool open)
{
	if (staging->bytes > WH_REGION_WINDOW_FEW || !staging_is_small(staging, open))
		return false;
	staging->into = true;
	for (uint32_t i = 0; i < staging->count; i++) {
		const struct wh_staged_extent *extent = &staging->extents[i];
		const struct wh_region_window *window = extent_window(extent);

		if (window)
			wh_region_window_read(window, staging->slot->host + extent->offset,
					      wh_region_window_at(window, extent->address),
					      extent->length);
		else if (staging_copy_by_cpu(staging, extent))
			return false;
	}
	return true;
}

/* ---- files in the page cache ----------------------------------------------------------------- */

/* Read files by the calling thread, into a slot that its cache still holds when it is sent: where
 * CPUs are few, handing the bytes from thread to thread costs more than the reading. Where there
 * are many, other threads read ahead of this one, which only sends. */
static bool staging_gather_cached(struct wh_staging *staging)
{
	struct wh_file_extent extents[FILE_EXTENTS];
	uint32_t count;

	if (staging->bytes > CACHED_BYTES && staging->gpus->many_cpus)
		return false;
	for (uint32_t i = 0; i < staging->count; i += count) {
		struct wh_file *file = extent_file(&staging->extents[i]);

		if (!file)
			return false;
		count = staging_file_extents(staging, i, file, extents);
		if (!wh_file_read_cached(file, extents, count))
			return false;
	}
	return true;
}

bool wh_staging_gather_at_once(struct wh_staging *staging, bool open)
{
	return staging_gather_cached(staging) || staging_gather_few(staging, open);
}

void wh_staging_init(struct wh_staging *staging, struct wh_gpus *gpus, bool urgent)
{
	staging->gpus = gpus;
	staging->urgent = urgent;
	staging->job.done = staging_job_done;
}

/* Copy all extents of host memory, and take them from the list. */
static void staging_copy_host(struct wh_staging *staging)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < staging->count; i++) {
		const struct wh_staged_extent *extent = &staging->extents[i];

		if (!wh_kind_on_host(extent->region->entry.kind)) {
			staging->extents[left++] = *extent;
		} else if (staging_copy_by_cpu(staging, extent)) {
			staging->error = -EFAULT;
			snprintf(staging->text, sizeof(staging->text), "memory at %#llx: %s",
				 (unsigned long long)extent->address, strerror(EFAULT));
		}
	}
	staging->count = left;
}

void wh_staging_start(struct wh_staging *staging, bool into)
{
	staging->into = into;
	staging->next = 0;
	staging->error = 0;
	staging->text[0] = 0;
	staging_copy_host(staging);
	staging_continue(staging);
}
