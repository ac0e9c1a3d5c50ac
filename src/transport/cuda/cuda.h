/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: a GPU's memory on one side or on both, on one host.
 *
 * cuda.c: the transport's functions. mapping.c: how GPUs see our regions; import.c: how they see a
 * peer's; pin.c: page-locking; path.c: which GPU moves. export.c: the side whose memory is mapped
 * by others. move.c: fragments to streams. stage.c: fragments that no GPU reaches both sides of,
 * through pinned memory. window.c: those of a few bytes, by the CPU.
 */
#ifndef WH_TRANSPORT_CUDA_CUDA_H
#define WH_TRANSPORT_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <wherry/error.h>

#include "gpu/region-window.h"
#include "gpu/stream.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "platform/cuda.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/error.h"

struct wh_remote_region;
struct wh_segment;

/* What something takes, from figures that were measured here or that are usual. */
struct wh_cuda_time {
	double ns;
	bool measured;
};

/* ---- views ------------------------------------------------------------------------------------
 */

/* A region as GPUs see it. Made when a batch first needs it; good until the region goes. */
struct wh_device_mapping {
	/* where it lies, or, managed memory, belongs; NULL: the host */
	struct wh_cuda_device *device;
	CUcontext context; /* that owns it; NULL: the primary one, or none */
	uint64_t address; /* of the region's first byte, for kernels and copy engines; 0: staged
			     only, or legacy: see wh_device_mapping_address() */
	char *host; /* the same for the CPU; NULL: it does not reach it */
	/* bit n: work in device n's primary context reaches `address` */
	_Atomic uint64_t reached;
	/* that was decided when it was mapped; else peer access can be switched on */
	bool fixed;
	bool every; /* any context of any device does: pinned host memory */
	bool managed; /* only the driver's own copies may touch it */
	char why[WH_REFUSAL]; /* why it is staged; "": it is not */

	/* What has to be undone. */
	void *pinned; /* host memory that was page-locked for it */
	uint64_t pinned_length;
	uint64_t reserved, reserved_length; /* address space for memory of a peer */
	uint64_t size; /* of it that is mapped */
	struct wh_legacy *legacy; /* memory of a peer, by cuIpcOpenMemHandle */
	void *mapped; /* host memory of a peer, mapped for this view alone */
	size_t mapped_length;
};

/* Legacy handles are opened for one device at a time, by each that uses the memory. */
struct wh_legacy {
	struct wh_cuda_ipc_handle handle;
	uint64_t skip; /* of the region in its allocation */
	uint64_t size; /* of the allocation, as the owner says */
	/* of the allocation, as each device calls it; 0: not opened */
	uint64_t base[WH_CUDA_DEVICES];
};

/* The view's first byte as work in a context of this device calls it. */
static inline uint64_t wh_device_mapping_address(const struct wh_device_mapping *mapping,
						 const struct wh_cuda_device *device)
{
	return mapping->legacy ? mapping->legacy->base[device->ordinal] + mapping->legacy->skip :
				 mapping->address;
}

/* The device's bit in wh_device_mapping.reached. */
static inline uint64_t wh_device_bit(const struct wh_cuda_device *device)
{
	return UINT64_C(1) << device->ordinal;
}

/* Give the last error's text as the reason; returns `error`. */
static inline int wh_cuda_refuse(char why[WH_REFUSAL], int error)
{
	snprintf(why, WH_REFUSAL, "%.*s", WH_REFUSAL - 1, wh_error_text());
	return error;
}

struct wh_device_mappings;
/* A peer's region as the GPU that it lies on calls it here, which other GPUs' names for it are no
 * substitute for where the memory itself is looked for; 0: it does not. */
uint64_t wh_device_mapping_own(struct wh_device_mappings *mappings,
			       struct wh_device_mapping *mapping);

/* What goes between two views: by which GPU, and which way. */
struct wh_gpu_path {
	struct wh_cuda_device *device; /* NULL: staged */
	CUcontext context;
	enum wh_blocks_way way;
};

struct wh_device_mappings {
	struct wh_engine *engine;
	struct wh_gpus *gpus;
	pthread_mutex_t lock; /* making and undoing mappings; taken before engine.regions.lock */
	struct wh_pin *_Atomic pins; /* that have outlived their region; written under the lock */
};

/* NULL: no memory, which `why` says. */
struct wh_device_mapping *wh_device_mapping_new(char why[WH_REFUSAL]);
/* The view of a region of ours. 0, or a negative errno with the reason in `why`. */
int wh_device_mapping_local(struct wh_device_mappings *mappings, struct wh_region *region,
			    struct wh_device_mapping **out, char why[WH_REFUSAL]);
struct wh_cuda_peer;
struct wh_region_entry;
/* The view of the other side's region, which is entered; asks a peer the first time. -ESTALE: it is
 * not published any more. */
int wh_cuda_remote(struct wh_cuda_peer *cuda, struct wh_region_entry *entry,
		   struct wh_device_mapping **out, char why[WH_REFUSAL]);
/* Page-lock [start, start + length), so that GPUs reach it by the mapping. If that fails, the
 * mapping says why, and the bytes are staged. Under mappings.lock. */
void wh_pin_map(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping, void *start,
		uint64_t length, bool writable);
void wh_pin_undo(struct wh_device_mappings *mappings, void *start);
/* Regions may overlap, and one that was registered after another had been page-locked lives on
 * that. What was page-locked for a region stays so for as long as there is one that it overlaps.
 * Under mappings.lock: take it from the mapping of a region that goes; and give back what nobody
 * needs any more. */
void wh_pin_leave(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping);
void wh_pins_release(struct wh_device_mappings *mappings);
/* Undo and free it. */
void wh_view_free(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping);

/* Let a GPU reach both sides if one can, and choose which. Slow where peer access has to be
 * switched on: while planning. False: it has to be staged; the reason goes to `why`. */
bool wh_path_make(struct wh_device_mappings *mappings, struct wh_device_mapping *local,
		  struct wh_device_mapping *remote, uint32_t op, struct wh_gpu_path *path,
		  char why[WH_REFUSAL]);
/* The same from what is known. */
void wh_path_choose(const struct wh_device_mapping *local, const struct wh_device_mapping *remote,
		    uint32_t op, struct wh_gpu_path *path);

/* ---- exports: what a peer's memory comes as
 * ------------------------------------------------------ */

/* The owner: answer a request for the region's segments from `index` on. 0, or what sending said.
 */
int wh_cuda_export(struct wh_region *region, uint32_t index, int socket);

/* The owner: what the GPU's kernel driver knows a segment as. A descriptor for the caller to close,
 * and where in it the segment begins. 0, or a negative errno with its text. */
int wh_cuda_object(struct wh_engine *engine, const struct wh_segment *segment, int *fd,
		   uint64_t *offset);

/* ---- moving ------------------------------------------------------------------------------------
 */

/* One peer's part. */
struct wh_cuda_peer {
	struct wh_device_mappings *mappings;
	struct wh_peer *peer;
	pthread_mutex_t lock;
	int lost; /* 0, or why nothing can complete well now */
	char lost_text[WH_TEXT_MAX];
};

/* Ask the owner; waits for it. 0, or a negative errno with its text. */
int wh_cuda_objects(struct wh_cuda_peer *cuda, struct wh_region_entry *entry,
		    struct wh_window_objects *out);

struct wh_cuda_op;

/* Neighbouring transfers, or bases, of a fragment that go by one stream; or those that are staged.
 */
struct wh_cuda_part {
	struct wh_gpu_stream_job job;
	struct wh_cuda_op *op;
	struct wh_cuda_part *next;
	struct wh_gpu_stream *stream; /* NULL: staged */
	uint64_t first, end; /* transfers, or bases */
	struct wh_cursor at; /* what has not been put on the stream yet; blocks: outer the base,
				inner the block that a group of bases goes on with */
	bool kernel; /* blocks: by the kernel */
	struct wh_cached_lists *keeps; /* lists that this part has uploaded to stay */
	bool loses; /* ... and which nobody else is to use */
	_Atomic int error;
};

/* A fragment under way. */
struct wh_cuda_op {
	struct wh_cuda_peer *cuda;
	struct wh_fragment *fragment;
	_Atomic uint32_t left; /* parts that are not done, and one while they are started */
	struct wh_cuda_part *parts;
	struct wh_region_entry **entries; /* that are entered */
	size_t entry_count, entry_room;
};

/* Start a fragment. */
void wh_cuda_move(struct wh_cuda_peer *cuda, struct wh_fragment *fragment);
/* The part has failed: says so for its transfers. */
void wh_cuda_part_fail(struct wh_cuda_part *part, int error, const char *text);
/* Nothing of the part is under way any more. */
void wh_cuda_part_done(struct wh_cuda_part *part);

/* The views of both sides of a transfer, or of a base. Their places are entered. */
void wh_cuda_mappings(const struct wh_cuda_op *op, uint64_t index, struct wh_device_mapping **local,
		      struct wh_device_mapping **remote);
/* How the GPU calls the local side, whose CPU address, or name, that is. */
static inline uint64_t wh_device_mapping_at(const struct wh_device_mapping *mapping,
					    const struct wh_region *region, const char *address)
{
	return mapping->address + ((uint64_t)(uintptr_t)address - region->entry.address);
}

/* Move a fragment of a few bytes by the CPU, where a window lets it reach the memory: it is done
 * when this returns. False: it does not go that way. */
bool wh_cuda_few(struct wh_cuda_peer *cuda, struct wh_fragment *fragment);
/* Would it, or did it, by what kind of window, and how long does it take (or NULL)? `open`: open
 * windows for it. */
bool wh_cuda_few_describe(struct wh_cuda_peer *cuda, const struct wh_fragment *fragment, bool open,
			  const char **backend, struct wh_cuda_time *time);
/* Has the way to the peer broken? */
bool wh_cuda_lost(struct wh_cuda_peer *cuda);
/* What has been moved is worth nothing if it has, or if the peer has ended: the fragment fails. */
void wh_cuda_verify(struct wh_cuda_peer *cuda, struct wh_fragment *fragment);

/* Move a part through pinned memory. */
void wh_cuda_stage(struct wh_cuda_part *part);
/* Measure what a part that is staged between these goes by, if that has not been done; while
 * planning. */
void wh_cuda_stage_prepare(struct wh_gpus *gpus, struct wh_device_mapping *local,
			   struct wh_device_mapping *remote, uint32_t op);
/* What such a fragment takes. False: not known. */
bool wh_cuda_stage_time(const struct wh_fragment *fragment, const struct wh_device_mapping *local,
			const struct wh_device_mapping *remote, struct wh_gpus *gpus,
			struct wh_cuda_time *out);

#endif
