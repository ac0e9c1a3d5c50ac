/* SPDX-License-Identifier: Apache-2.0 */
/* pinned.h: host memory that all GPUs of an engine reach, cut into semaphores and into slots for
 * staging. */
#ifndef WH_GPU_PINNED_H
#define WH_GPU_PINNED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "platform/cuda.h"
#include "util/list.h"

struct wh_gpus;

/* The device in whose primary context host memory is pinned: the first that is used, so that no
 * other one gets a context for that. `device`: it is used (NULL: only asked for). */
int wh_gpus_pinning_device(struct wh_gpus *gpus, struct wh_cuda_device *device,
			   struct wh_cuda_device **out);

/* ---- semaphores ------------------------------------------------------------------------------ */

/* A word in pinned memory that streams can wait for, until it is at least some number. It never
 * goes back, so that it can have another owner afterwards. */
struct wh_semaphore {
	struct wh_list link;
	_Atomic uint32_t *value;
	uint64_t address; /* for GPUs */
};

int wh_semaphore_acquire(struct wh_gpus *gpus, struct wh_semaphore **out);
void wh_semaphore_release(struct wh_gpus *gpus, struct wh_semaphore *semaphore);

/* ---- slots ----------------------------------------------------------------------------------- */

#define WH_SLOT ((uint64_t)1 << 20) /* bytes of one */
#define WH_SLOTS 32 /* of an engine, for each use */

/* Two uses, so that transfers that ask something of a peer, and may hold slots until it answers,
 * never keep those from being served that peers ask for: all of them together might wait for each
 * other. */
enum wh_slot_use {
	WH_SLOT_ASKS,
	WH_SLOT_SERVES,
	WH_SLOT_USES,
};

struct wh_slot {
	struct wh_list link;
	enum wh_slot_use use;
	char *host;
	uint64_t address; /* for GPUs */
};

/* Who waits for one. */
struct wh_slot_wait {
	struct wh_list link;
	void (*ready)(struct wh_slot_wait *wait, struct wh_slot *slot);
};

/* Have some, if there are none yet. 0, or what the driver said. */
int wh_slots_prepare(struct wh_gpus *gpus, enum wh_slot_use use);
/* A slot; or NULL, and `wait->ready` is called with one when somebody gives one back. Without
 * `wait` nobody waits. */
struct wh_slot *wh_slot_take(struct wh_gpus *gpus, enum wh_slot_use use, struct wh_slot_wait *wait);
/* Wait no longer. False: it does not wait: `ready` has been called, or is about to be. */
bool wh_slot_unwait(struct wh_gpus *gpus, struct wh_slot_wait *wait);
/* So many slots one behind the other, apart from those, in out[]: never given back, their memory
 * stays until the engine is closed. 0, or what the driver said. */
int wh_slots_row(struct wh_gpus *gpus, unsigned count, struct wh_slot *out);
/* May call a waiter's `ready`. */
void wh_slot_give(struct wh_gpus *gpus, struct wh_slot *slot);

#endif
