/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: a region of this engine, and a region that a peer has published. */
#ifndef WH_MEMORY_REGION_H
#define WH_MEMORY_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "util/list.h"

struct rdma_keys;
struct rdma_memory;
struct wh_device_mapping;
struct wh_engine;
struct wh_region_window;
struct wh_region_windows;
struct wh_rights;
struct wh_shm_memory;

/* A region of ours. */
struct wh_region {
	struct wh_region_entry entry;
	struct wh_engine *engine;
	struct wh_region_windows *windows; /* of the engine */
	struct wh_allocation *memory; /* that it lies in; NULL: the user's own */
	/* memory->members, as long as it is published; under engine.lock */
	struct wh_list member;
	/* what its memory is; never NULL while it is used */
	struct wh_registration *registration;
	struct wh_rights *rights; /* of single peers; NULL: all have what the place says */
	_Atomic uint32_t batches; /* unfinished ones that use it */
	struct wh_device_mapping *_Atomic mapping; /* the transport cuda's; NULL: none yet */
	/* the CPU window that is kept for it; NULL: not tried yet */
	struct wh_region_window *_Atomic window;
	/* the transport rdma's, one for each NIC; NULL: none yet */
	struct rdma_memory *_Atomic rdma;
};

/* Can its memory be unmapped while it is registered, by whom it belongs to? What transports copy
 * themselves, without a system call that would tell, they look at before. */
static inline bool wh_region_may_vanish(const struct wh_region *region)
{
	return !region->memory && wh_kind_on_host(region->entry.kind);
}

/* A region of a peer. The `map` fields are the shm transport's. */
struct wh_remote_region {
	struct wh_region_entry entry;
	_Atomic uint32_t map_state; /* enum in transport/shm/map.c; 0: not asked for yet */
	_Atomic uint32_t map_arrivals; /* wh_shm_peer.arrivals when it was refused */
	_Atomic(char *) map; /* where the region's first byte is mapped here; NULL: not mapped */
	_Atomic bool map_writable;
	/* of the allocation that it lies in, as the owner has told; 0: not known */
	uint64_t map_number;
	struct wh_shm_memory *map_memory; /* the same, once it has been mapped */
	struct wh_list map_link; /* map_memory->regions */
	char *map_refused; /* why it is not mapped, or not for writing; owned; NULL: it is */
	struct wh_device_mapping *_Atomic mapping; /* the transport cuda's; NULL: none yet */
	struct wh_region_window
		*_Atomic window; /* the CPU window onto `view`; NULL: not tried yet */
	/* the transport rdma's, one for each NIC; NULL: none yet */
	struct rdma_keys *_Atomic rdma;
	uint32_t round; /* peer.list_round when it was last listed; on loop 0 */
};

#endif
