/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h: copies between a slot of pinned memory and this engine's regions, for transports that
 * can only send from and receive into host memory.
 *
 * A staging is a list of extents, which follow one another in the slot. The caller adds them, then
 * starts the copy in one direction: into the slot before it sends, out of it after it has received.
 * Copy engines and kernels gather and scatter extents of GPU memory; the CPU copies those of host
 * memory; threads that may wait for a disk read and write those of files, and make what they have
 * written durable before `done`.
 */
#ifndef WH_GPU_STAGING_H
#define WH_GPU_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/stream.h"
#include "memory/file.h"

struct wh_log;
struct wh_region;
struct wh_region_table;
struct wh_registration;

struct wh_staged_extent {
	/* the caller holds or has entered it until `done`; host memory until wh_staging_start() */
	const struct wh_region *region;
	uint64_t address; /* in the region; of this process */
	uint64_t length;
	uint64_t offset; /* in the slot */
};

struct wh_staging {
	struct wh_gpu_stream_job job;
	struct wh_file_job file_job;
	struct wh_gpus *gpus;
	struct wh_slot *slot; /* the caller takes it and gives it back */
	struct wh_staged_extent *extents;
	uint32_t count, room, next; /* extents: used, allocated; the next to be copied */
	uint64_t bytes; /* used in the slot */
	bool into; /* direction: into the slot */
	bool urgent; /* copy on streams of high priority */
	int error;
	char text[WH_TEXT_MAX];
	/* Everything has been copied or, with an error, nothing moves any more. Called once for
	 * each start, on any thread, with no lock held; within wh_staging_start() if no GPU is
	 * involved or submitting to one fails. */
	void (*done)(struct wh_staging *staging, int error, const char *text);
};

/* `staging` is zeroed. The caller sets `done` and `slot` before it starts. */
void wh_staging_init(struct wh_staging *staging, struct wh_gpus *gpus, bool urgent);
/* Free the list of extents. No copy may be in flight. */
void wh_staging_destroy(struct wh_staging *staging);
/* Empty the list of extents, for another use. */
void wh_staging_clear(struct wh_staging *staging);
/* Append an extent, or as much of it as fits into the slot. Returns how many bytes; 0: the slot is
 * full, or no memory. */
uint64_t wh_staging_add(struct wh_staging *staging, const struct wh_region *region,
			uint64_t address, uint64_t length);
/* Leave `length` bytes of the slot unused, or what is left of it. Returns how many. */
uint64_t wh_staging_skip(struct wh_staging *staging, uint64_t length);
/* Copy all extents into the slot, or out of it, and call `done`. Does not wait. Those of host
 * memory are copied on return, so a disk that does not answer holds none. */
void wh_staging_start(struct wh_staging *staging, bool into);
/* Instead of wh_staging_start(staging, true): the calling thread copies all extents into the slot,
 * if that does not wait and is worth it: a few bytes of GPU memory, through region windows; bytes
 * of files that are in the page cache. `done` is not called. False: nothing has been done, but the
 * slot may have been written to. `open`: open missing windows; then no lock may be held. */
bool wh_staging_gather_at_once(struct wh_staging *staging, bool open);

/* ---- preparing and warm-up ------------------------------------------------------------------- */

/* The context that owns the memory; NULL: its device's primary context, or none. */
CUcontext wh_staging_context(const struct wh_registration *registration);

/* Make what staging this memory needs, and measure its cost: slots, kernels, the streams into slots
 * (`into`) and out of them (`out_of`); `urgent`: those of urgent batches as well. The first call
 * may take seconds; each stream uses WH_GPU_STREAM_RING bytes of pinned memory and of GPU memory.
 * Later calls are cheap. 0, or the driver's error. */
int wh_staging_prepare(struct wh_gpus *gpus, const struct wh_registration *registration,
		       enum wh_slot_use use, bool into, bool out_of, bool urgent);

/* The same for a batch that is being planned and moves bytes of this engine's region in direction
 * `op` (WH_READ or WH_WRITE). Slots are prepared as well if the region is being unregistered. */
int wh_staging_prepare_region(struct wh_region_table *regions, struct wh_gpus *gpus,
			      const struct wh_region *region, uint32_t op);

struct wh_warm_up;
/* The entries of `regions` are struct wh_region. `regions`, `gpus` and `log` must outlive the
 * warm-up. 0 or -ENOMEM. */
int wh_warm_up_open(struct wh_region_table *regions, struct wh_gpus *gpus, const struct wh_log *log,
		    struct wh_warm_up **out);
/* Prepare staging for this engine's region of GPU memory, on the warm-up thread, because a peer may
 * soon transfer it. `region` is its id. Does not wait; any lock may be held. NULL: does nothing. */
void wh_warm_up_region(struct wh_warm_up *warm_up, uint64_t region);
/* Stop the warm-up thread and wait for it: for the region in progress, at most seconds. NULL is
 * allowed. */
void wh_warm_up_stop(struct wh_warm_up *warm_up);
/* NULL is allowed. */
void wh_warm_up_close(struct wh_warm_up *warm_up);

#endif
