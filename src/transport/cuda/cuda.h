/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: a GPU's memory on one side or on both, on one host or in one NVLink domain.
 *
 * cuda.c: the transport's functions. mapping.c: how GPUs see our regions; import.c: how they see a
 * peer's; pin.c: page-locking; path.c: which GPU moves. export.c: the side whose memory is mapped
 * by others. move.c: fragments to streams. stage.c: fragments that no GPU reaches both sides of,
 * through pinned memory; pages.c: or out of the page cache. window.c: those of a few bytes, by the
 * CPU. sharing.c: who else computes on a GPU. fabric.h: GPU memory of another host.
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
#include "transport/cuda/fabric.h"
#include "transport/cuda/page-rates.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/error.h"

struct wh_exported;
struct wh_remote_region;
struct wh_segment;

/* An estimate of how long a fragment takes. */
struct wh_cuda_time {
	double ns;
	bool measured; /* on this machine; else from usual figures */
};

/* ---- device mappings ------------------------------------------------------------------------- */

/* How GPUs reach a region. Made when a batch first needs it; freed when the region is
 * unregistered. */
struct wh_device_mapping {
	/* the GPU that it lies on; of managed memory, that it belongs to; NULL: host memory */
	struct wh_cuda_device *device;
	CUcontext context; /* that owns it; NULL: the primary one, or none */
	/* of the region's first byte, for kernels and copy engines; 0: staged only, or legacy: see
	 * wh_device_mapping_address() */
	uint64_t address;
	char *host; /* the same for the CPU; NULL: the CPU does not reach it */
	struct wh_file *file; /* a file of ours, which is staged; NULL: memory */
	struct wh_file_gds *gds; /* GPUDirect Storage for it; NULL: not asked for */
	struct wh_file_pages *pages; /* its page cache, for GPUs; NULL: never page-locked */
	/* bit n: work in device n's primary context reaches `address` */
	_Atomic uint64_t reached;
	/* `reached` was decided when the memory was mapped; else peer access can be switched on */
	bool fixed;
	bool every; /* every context of every device reaches it: pinned host memory */
	bool managed; /* only the driver's copies may access it */
	/* It lies on a GPU of another host, in our NVLink domain: `device` is a GPU of ours that
	 * copies where no other one does. CPUs do not reach it. */
	bool fabric;
	char why[WH_REFUSAL]; /* why it is staged; "": it is not */

	/* For undoing the mapping: */
	void *pinned; /* host memory that was page-locked for the mapping */
	uint64_t pinned_length;
	uint64_t reserved, reserved_length; /* address space for memory of a peer */
	uint64_t size; /* bytes of it that are mapped */
	struct wh_list link; /* fabric: wh_fabric_peer.imports */
	struct wh_remote_region *region; /* fabric: the one that is mapped */
	/* fabric: the control connection over which the owner last confirmed the region */
	_Atomic uint32_t generation;
	struct wh_legacy *legacy; /* memory of a peer, by cuIpcOpenMemHandle */
	void *mapped; /* host memory of a peer, mapped for this mapping alone */
	size_t mapped_length;
};

/* Memory of a legacy handle, which each device that uses it opens for itself. */
struct wh_legacy {
	struct wh_cuda_ipc_handle handle;
	uint64_t skip; /* offset of the region in its allocation */
	uint64_t size; /* of the allocation, as the owner says */
	/* address of the allocation for each device; 0: not opened */
	uint64_t base[WH_CUDA_DEVICES];
};

/* The address of the mapping's first byte for work in a context of this device. */
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
/* The address that a peer's region has in this process for the GPU that it lies on. Addresses that
 * other GPUs have for it do not tell where the memory is. 0: that GPU has not mapped it. */
uint64_t wh_device_mapping_own(struct wh_device_mappings *mappings,
			       struct wh_device_mapping *mapping);

/* Which GPU copies between two mappings, and in which direction it does. */
struct wh_gpu_path {
	struct wh_cuda_device *device; /* NULL: staged */
	CUcontext context;
	enum wh_blocks_way way;
};

/* The processes besides this one that compute on a GPU. */
struct wh_gpu_others {
	uint32_t count;
	uint32_t pid; /* of the first; 0: not known */
};

struct wh_gpu_sharing {
	pthread_mutex_t lock; /* guards what follows; held while NVML is asked */
	int64_t looked_at; /* ns; 0: never */
	struct wh_gpu_others of[WH_CUDA_DEVICES];
};

struct wh_device_mappings {
	struct wh_engine *engine;
	struct wh_gpus *gpus;
	pthread_mutex_t lock; /* making and undoing mappings; taken before engine.regions.lock */
	/* page-locked memory that has outlived its region; written under the lock */
	struct wh_pin *_Atomic pins;
	struct wh_fabric_domains domains;
	struct wh_gds *gds; /* NULL: no GPUDirect Storage */
	struct wh_gpu_sharing sharing;
	_Atomic uint64_t file_pages; /* bytes of page caches that are page-locked */
	unsigned file_threads; /* threads for files that have a CPU each */
	struct wh_page_rates page_rates;
};

/* NULL: no memory; `why` says so. */
struct wh_device_mapping *wh_device_mapping_new(char why[WH_REFUSAL]);
/* The mapping of a region of ours, made if need be. 0, or a negative errno with the reason in
 * `why`. */
int wh_device_mapping_local(struct wh_device_mappings *mappings, struct wh_region *region,
			    struct wh_device_mapping **out, char why[WH_REFUSAL]);
struct wh_cuda_peer;
struct wh_region_entry;
/* The mapping of the remote region, which the caller has entered. Asks the peer the first time, and
 * blocks for the answer. 0; -ESTALE: the region is not published any more; another negative errno.
 * The reason is in `why`. */
int wh_cuda_remote(struct wh_cuda_peer *cuda, struct wh_region_entry *entry,
		   struct wh_device_mapping **out, char why[WH_REFUSAL]);
/* Page-lock [start, start + length), so that GPUs reach it by the mapping. If that fails, the
 * mapping says why, and the bytes are staged. Under mappings.lock. */
void wh_pin_map(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping, void *start,
		uint64_t length, bool writable);
void wh_pin_undo(struct wh_device_mappings *mappings, void *start);
/* Regions may overlap: a region that is registered later uses memory that was page-locked for an
 * earlier one. So memory stays page-locked as long as any region overlaps it. wh_pin_leave() takes
 * it from the mapping of a region that is unregistered, wh_pins_release() unlocks what no region
 * overlaps any more. Under mappings.lock. */
void wh_pin_leave(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping);
void wh_pins_release(struct wh_device_mappings *mappings);
/* Undo the mapping and free it. Under mappings.lock. */
void wh_device_mapping_free(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping);

/* Choose a GPU that reaches both sides, and switch on peer access where that is needed, which is
 * slow: call it while planning. False: the bytes must be staged; the reason is in `why`. */
bool wh_path_make(struct wh_device_mappings *mappings, struct wh_device_mapping *local,
		  struct wh_device_mapping *remote, uint32_t op, struct wh_gpu_path *path,
		  char why[WH_REFUSAL]);
/* The same without switching anything on. */
void wh_path_choose(const struct wh_device_mapping *local, const struct wh_device_mapping *remote,
		    uint32_t op, struct wh_gpu_path *path);

/* Both ways at once, two GPUs that both push by copy engines reach half of what they reach when
 * both pull. Let a path that pushes be pulled by the other GPU, which has to be in use by this
 * process anyway. False: it stays. */
bool wh_path_choose_pull(const struct wh_peer *peer, const struct wh_fragment *fragment,
			 const struct wh_device_mapping *local,
			 const struct wh_device_mapping *remote, struct wh_gpu_path *path);
/* Switch on what that takes, as wh_path_make(). */
void wh_path_make_pull(struct wh_device_mappings *mappings, struct wh_device_mapping *local,
		       struct wh_device_mapping *remote, const struct wh_gpu_path *path);

/* ---- the owner: handles of our memory -------------------------------------------------------- */

/* Answer with a refusal (errno, positive), always -1. */
int wh_exported_refuse(struct wh_exported *e, int error, const char *why);
/* Say where a segment of a registered region lies. 0, or -1: it is refused. */
int wh_exported_begin(const struct wh_region *region, uint32_t index, struct wh_exported *e);
/* Add a fabric handle of the segment, or refuse. Always -1: there is no descriptor. */
int wh_exported_fabric(struct wh_cuda *cuda, const struct wh_segment *segment,
		       struct wh_exported *e);
/* The transport's region_export. */
int wh_cuda_export(struct wh_region *region, uint32_t index, int socket);

/* The NVIDIA kernel driver's object that a segment lies in: a descriptor that the caller closes,
 * and the offset of the segment in it. 0, or a negative errno with its text. */
int wh_cuda_object(struct wh_engine *engine, const struct wh_segment *segment, int *fd,
		   uint64_t *offset);

/* ---- moving ---------------------------------------------------------------------------------- */

/* The transport's state for a peer. */
struct wh_cuda_peer {
	struct wh_device_mappings *mappings;
	struct wh_peer *peer;
	pthread_mutex_t lock;
	int lost; /* 0, or the error with which everything in flight fails */
	char lost_text[WH_TEXT_MAX]; /* the last one */
	unsigned changes; /* of `lost`: odd while the peer is lost */
	struct wh_fabric_peer fabric;
};

/* Ask the owner for the objects of a region, for a CPU window. Blocks for the answers. 0, or a
 * negative errno with its text. */
int wh_cuda_objects(struct wh_cuda_peer *cuda, struct wh_region_entry *entry,
		    struct wh_window_objects *out);

struct wh_cuda_op;
struct wh_stage;

/* Consecutive transfers, or bases, of a fragment that one stream moves; or that are staged. */
struct wh_cuda_part {
	struct wh_gpu_stream_job job;
	struct wh_cuda_op *op;
	struct wh_cuda_part *next;
	struct wh_gpu_stream *stream; /* NULL: staged */
	uint64_t first, end; /* transfers, or bases */
	/* What is not on the stream yet. Blocks by the kernel: `outer` is the next base, `inner`
	 * the next block of the group of bases that begins there. */
	struct wh_cursor at;
	bool kernel; /* blocks: the kernel moves them, not copy engines */
	struct wh_cached_lists *keeps; /* lists of offsets that this part has uploaded to be kept */
	bool loses; /* another part has uploaded the same: free `keeps` with the part */
	/* blocks out of a file's page-locked pages (wh_cuda_part_read()): who is told of the end,
	 * and the GPU's address of the first byte of the file's region; NULL, 0: anything else */
	struct wh_stage *stage;
	uint64_t pages;
	_Atomic int error;
};

/* A fragment in flight. */
struct wh_cuda_op {
	struct wh_cuda_peer *cuda;
	struct wh_fragment *fragment;
	unsigned changes; /* wh_cuda_changes() when it began */
	_Atomic uint32_t left; /* parts that are not done, plus one while parts are started */
	struct wh_cuda_part *parts;
	struct wh_region_entry **entries; /* remote regions that it has entered */
	size_t entry_count, entry_room;
	/* The first of each, so that a small fragment is one allocation. */
	struct wh_cuda_part part;
	struct wh_region_entry *entry[4];
	/* one for each transfer, for parts that share turns; 0: there is no room for them */
	uint64_t pair_room;
	struct wh_pair pairs[];
};

/* Start a fragment. Any thread. */
void wh_cuda_move(struct wh_cuda_peer *cuda, struct wh_fragment *fragment);
/* Record an error (negative) for all transfers of the part; the first one stays. */
void wh_cuda_part_fail(struct wh_cuda_part *part, int error, const char *text);
/* Nothing of the part is in flight any more. The part may be gone on return. */
void wh_cuda_part_done(struct wh_cuda_part *part);

/* Let the stream's kernel move the blocks of a staged part out of a file. `pages`: the address at
 * which the GPU reads the first byte of the file's region. wh_cuda_stage_end() follows, and may
 * have been called on return. */
void wh_cuda_part_read(struct wh_cuda_part *part, struct wh_gpu_stream *stream, uint64_t pages,
		       struct wh_stage *stage);

/* The mappings of both sides of a transfer, or of a base, whose regions are entered. */
void wh_cuda_mappings(const struct wh_cuda_op *op, uint64_t index, struct wh_device_mapping **local,
		      struct wh_device_mapping **remote);
/* The GPU's address for `address`, the application's, in a local region. */
static inline uint64_t wh_device_mapping_at(const struct wh_device_mapping *mapping,
					    const struct wh_region *region, const char *address)
{
	return mapping->address + ((uint64_t)(uintptr_t)address - region->entry.address);
}

/* Move a fragment of a few bytes by the CPU, through region windows: it is done on return. False:
 * nothing was moved, as it has too many bytes, or no window opens. */
bool wh_cuda_few(struct wh_cuda_peer *cuda, struct wh_fragment *fragment);
/* Open the windows through which wh_cuda_few() would move bytes of these regions. May wait for the
 * owner; errors are left to wh_cuda_few(). */
void wh_cuda_few_prepare(struct wh_cuda_peer *cuda, const struct wh_fragment *fragment);
/* Does, or did, wh_cuda_few() move the fragment? Sets *backend to the kind of window, and *time
 * (may be NULL) to how long it takes. `open`: open the windows for that. */
bool wh_cuda_few_describe(struct wh_cuda_peer *cuda, const struct wh_fragment *fragment, bool open,
			  const char **backend, struct wh_cuda_time *time);
/* Find NVML's index of a device. NVML counts all GPUs, CUDA those that this process sees: they are
 * found by UUID. False: NVML does not know it, as an instance of MIG. */
struct wh_nvml;
bool wh_cuda_nvml_find(struct wh_nvml *nvml, const struct wh_cuda_device *device, unsigned *out);
void wh_gpu_sharing_init(struct wh_gpu_sharing *sharing);
void wh_gpu_sharing_destroy(struct wh_gpu_sharing *sharing);
/* Ask NVML once who else computes on the GPUs: the choice between kernel and copy engine depends on
 * it. May block; does nothing on the engine's own threads. */
void wh_gpu_sharing_first(struct wh_device_mappings *mappings);
/* Write to `line` who else computes on the device, which this process uses, and what kernels cost
 * there. False: nobody, or it is not known. Asks NVML, at most every 10 s, which may block; on the
 * engine's own threads it does not ask. */
bool wh_gpu_sharing_describe(struct wh_device_mappings *mappings,
			     const struct wh_cuda_device *device, char *line, size_t size);
/* Is the peer lost? */
bool wh_cuda_lost(struct wh_cuda_peer *cuda);
/* Changes when the peer is lost, and when it is reached again. */
unsigned wh_cuda_changes(struct wh_cuda_peer *cuda);
/* Let the fragment fail if the peer has been lost since `changes`, or before, or if the owner has
 * ended: its bytes may not have arrived, or not in the region. */
void wh_cuda_verify(struct wh_cuda_peer *cuda, struct wh_fragment *fragment, unsigned changes);

/* Move a part through staging slots. wh_cuda_part_done() follows. */
void wh_cuda_stage(struct wh_cuda_part *part);
/* Nothing of the stage's part is in flight any more, as far as wh_cuda_part_read() has put it on a
 * stream. Any thread. */
void wh_cuda_stage_end(struct wh_stage *stage);
/* The stream by which a GPU copies between this memory and slots. *out stays as it is for host
 * memory, which the CPU copies, and for files. 0, or the driver's error. */
int wh_cuda_stage_stream(struct wh_gpus *gpus, const struct wh_device_mapping *mapping,
			 enum wh_blocks_way way, bool urgent, struct wh_gpu_stream **out);
/* Make and measure the streams for staging between these two, unless that is done: call it while
 * planning. */
void wh_cuda_stage_prepare(struct wh_gpus *gpus, struct wh_device_mapping *local,
			   struct wh_device_mapping *remote, uint32_t op);
/* How long a staged fragment takes. False: not known. */
bool wh_cuda_stage_time(const struct wh_fragment *fragment, const struct wh_device_mapping *local,
			const struct wh_device_mapping *remote, struct wh_gpus *gpus,
			struct wh_cuda_time *out);

#endif
