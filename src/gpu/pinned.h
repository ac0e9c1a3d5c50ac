/* SPDX-License-Identifier: Apache-2.0 */
/* pinned.h: pinned host memory that all GPUs of an engine can address, divided into semaphores and
 * into slots (bounce buffers) for staging; slots for files are not pinned. It stays allocated until
 * the engine is closed. */
#ifndef WH_GPU_PINNED_H
#define WH_GPU_PINNED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "platform/cuda.h"
#include "util/list.h"

struct wh_file_buffers;
struct wh_file_system;
struct wh_gpus;
struct wh_slot_pool;

/* The device in whose primary context host memory is pinned: the first one that the engine uses, so
 * that pinning creates no context elsewhere. `device` becomes it if none is chosen yet; NULL: then
 * device 0. `out` may be NULL. 0, or the driver's error. */
int wh_gpus_pinning_device(struct wh_gpus *gpus, struct wh_cuda_device *device,
			   struct wh_cuda_device **out);

/* ---- semaphores ------------------------------------------------------------------------------ */

/* A 32-bit counter in pinned memory: GPUs store to it, and streams can wait until it has reached a
 * value. It never decreases, not even when another owner acquires it. */
struct wh_semaphore {
	struct wh_list link;
	_Atomic uint32_t *value;
	uint64_t address; /* by which GPUs know it */
};

/* 0, -ENOMEM or the driver's error. Thread-safe; may allocate pinned memory. */
int wh_semaphore_acquire(struct wh_gpus *gpus, struct wh_semaphore **out);
void wh_semaphore_release(struct wh_gpus *gpus, struct wh_semaphore *semaphore);

/* ---- slots ----------------------------------------------------------------------------------- */

#define WH_SLOT ((uint64_t)1 << 20) /* bytes of a slot */
#define WH_SLOTS 32 /* most slots of an engine, for each use; and of each file system, again */

/* Initiators keep a slot until their peer answers. Owners, which answer, have slots of their own:
 * otherwise two engines could wait for each other for ever. */
enum wh_slot_use {
	WH_SLOT_INITIATOR, /* as initiator */
	WH_SLOT_OWNER, /* as owner */
	/* The same for files and host memory alone. These are plain memory, so that they need no
	 * GPU. */
	WH_SLOT_FILE_INITIATOR,
	WH_SLOT_FILE_OWNER,
	WH_SLOT_USES,
};

struct wh_slot {
	struct wh_list link;
	enum wh_slot_use use;
	struct wh_slot_pool *pool; /* that it goes back to */
	char *host;
	uint64_t address; /* by which GPUs know it; WH_SLOT_FILE_*: 0 */
};

/* A wait for a slot. The caller zeroes it and keeps it until `ready` is called, on the thread that
 * gives a slot back, with no lock held. */
struct wh_slot_wait {
	struct wh_list link;
	void (*ready)(struct wh_slot_wait *wait, struct wh_slot *slot);
};

/* Allocate the first slots of a use, if there are none yet. 0, or the driver's error. */
int wh_slots_prepare(struct wh_gpus *gpus, enum wh_slot_use use);
/* Take a free slot, or allocate more up to WH_SLOTS. NULL: none is free; `wait->ready` is called
 * with one later. `wait` may be NULL. */
struct wh_slot *wh_slot_acquire(struct wh_gpus *gpus, enum wh_slot_use use,
				struct wh_slot_wait *wait);
/* The same of the slots that a file system has to itself, so that one that does not answer keeps
 * none that others need. `system` NULL: as above. */
int wh_slots_prepare_file(struct wh_gpus *gpus, enum wh_slot_use use,
			  const struct wh_file_system *system);
struct wh_slot *wh_slot_acquire_file(struct wh_gpus *gpus, enum wh_slot_use use,
				     const struct wh_file_system *system,
				     struct wh_slot_wait *wait);
/* Cancel a wait; `ready` will not be called. False: `ready` has been called or is about to be. */
bool wh_slot_cancel_wait(struct wh_gpus *gpus, struct wh_slot_wait *wait);
/* Fill out[] with `count` contiguous slots that belong to no use. They are never given back; their
 * memory stays until the engine is closed. 0, or the driver's error. */
int wh_slots_contiguous(struct wh_gpus *gpus, unsigned count, struct wh_slot *out);
/* The slots through which files are read and written, for wh_file_rings_init(). */
struct wh_file_buffers *wh_gpus_file_buffers(struct wh_gpus *gpus);
/* Give a slot back. May call the `ready` of waiters; no lock may be held. */
void wh_slot_release(struct wh_gpus *gpus, struct wh_slot *slot);

#endif
