/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of this engine: registering, publishing, and taking back. */
#ifndef WH_CORE_REGION_H
#define WH_CORE_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/memory.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "util/list.h"

struct rdma_keys;
struct rdma_memory;
struct wh_allocation;
struct wh_device_mapping;
struct wh_engine;
struct wh_region_record;
struct wh_region_window;
struct wh_registration;
struct wh_rights;
struct wh_shm_memory;

/* A region of ours. */
struct wh_region {
	struct wh_region_entry entry;
	struct wh_engine *engine;
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

void wh_region_record(const struct wh_region *region, struct wh_region_record *record);
/* What an engine of this name may do with it, enum wh_access; place.access is what any of them
 * may. */
uint8_t wh_region_access(const struct wh_region *region, const char *name);

#endif
