/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving bytes between a slot of pinned memory and regions of ours, whatever memory they are: for
 * transports that can only send from, and receive into, host memory.
 *
 * A staging is filled with runs, which lie one behind the other in the slot, and started one way:
 * into the slot (before it is sent) or out of it (after it has been received). Runs of a GPU's
 * memory are gathered or scattered by its copy engine or kernel, those of host memory are copied at
 * once.
 */
#ifndef WH_GPU_STAGING_H
#define WH_GPU_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/stream.h"

struct wh_log;
struct wh_region;
struct wh_region_table;
struct wh_registration;

struct wh_staged_extent {
	const struct wh_region *region; /* held, or entered, by the caller until it is done */
	uint64_t address; /* in it, as this process calls it */
	uint64_t length;
	uint64_t offset; /* in the slot */
};

struct wh_staging {
	struct wh_gpu_stream_job job;
	struct wh_gpus *gpus;
	struct wh_slot *slot; /* the caller's to take and to give back */
	struct wh_staged_extent *extents;
	uint32_t count, room, next;
	uint64_t bytes; /* in the slot */
	bool into, urgent;
	int error;
	char text[WH_TEXT_MAX];
	/* All of it has been moved, or nothing of it moves any more. Called once for each start, on
	 * any thread, with no lock held; from inside wh_staging_start() if there was nothing for a
	 * GPU. */
	void (*done)(struct wh_staging *staging, int error, const char *text);
};

/* Zeroed before. `done` and `slot` are set by the caller. */
void wh_staging_init(struct wh_staging *staging, struct wh_gpus *gpus, bool urgent);
void wh_staging_destroy(struct wh_staging *staging);
/* Forget its runs, for another use. */
void wh_staging_clear(struct wh_staging *staging);
/* Add a run behind the last one: at most `length` bytes of it, as many as there is room for; how
 * many. 0: the slot is full, or there is no memory. */
uint64_t wh_staging_add(struct wh_staging *staging, const struct wh_region *region,
			uint64_t address, uint64_t length);
/* Leave out bytes of the slot: a run that is not wanted. */
uint64_t wh_staging_skip(struct wh_staging *staging, uint64_t length);
void wh_staging_start(struct wh_staging *staging, bool into);
/* Instead of starting it into the slot: read its few bytes here and now, through CPU windows.
 * False: it is too much for that, or there are none. `open`: open them, which wants no lock held.
 */
bool wh_staging_gather_few(struct wh_staging *staging, bool open);

/* ---- before it is asked for ------------------------------------------------------------------ */

/* The context that owns a region's memory; NULL: the primary one of its device, or none. */
CUcontext wh_staging_context(const struct wh_registration *registration);

/* Have what staging memory of a GPU takes, and measure it: slots, kernels, the streams into slots
 * and out of them; `urgent`: also those of batches that are. Costs nothing the second time; the
 * first may take seconds, and each stream takes WH_GPU_STREAM_RING of pinned memory and as much of
 * the GPU's. 0, or what the driver said. */
int wh_staging_prepare(struct wh_gpus *gpus, const struct wh_registration *registration,
		       enum wh_slot_use use, bool into, bool out_of, bool urgent);

/* The same while a batch is planned that moves bytes of a region of ours, which may be going. */
int wh_staging_prepare_region(struct wh_region_table *regions, struct wh_gpus *gpus,
			      const struct wh_region *region, uint32_t op);

struct wh_warm_up;
/* `regions`, whose entries are struct wh_region, `gpus` and `log` outlive it. 0 or -ENOMEM. */
int wh_warm_up_open(struct wh_region_table *regions, struct wh_gpus *gpus, const struct wh_log *log,
		    struct wh_warm_up **out);
/* A peer may soon ask for this region of ours, a GPU's memory, and it is going to be staged: make
 * ready what that takes, soon and on another thread. Does not wait; any lock may be held. */
void wh_warm_up_region(struct wh_warm_up *warm_up, uint64_t region);
/* Wait for what it is at, for seconds at most; nothing more is made ready. */
void wh_warm_up_stop(struct wh_warm_up *warm_up);
/* NULL is allowed. */
void wh_warm_up_close(struct wh_warm_up *warm_up);

#endif
