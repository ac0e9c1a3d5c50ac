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

struct wh_engine;
struct wh_region_window;
struct wh_region_windows;
struct wh_rights;

#define WH_REGION_TRANSPORTS 8 /* at least as many as there are transports */

/* A region of this engine. */
struct wh_region {
	struct wh_region_entry entry;
	struct wh_engine *engine;
	struct wh_region_windows *windows; /* the engine's */
	/* the engine's allocation that holds it; NULL: memory of the application */
	struct wh_allocation *memory;
	struct wh_list member; /* memory->members, while published; under engine.lock */
	struct wh_registration *registration; /* not NULL while the region is registered */
	struct wh_rights *rights; /* of single peers; NULL: all peers have entry.access */
	/* Once it is withdrawn: when, and the number of its REMOVE. Under engine.lock. */
	int64_t withdrawn;
	uint64_t removal;
	_Atomic bool faulted; /* some of its memory could not be read, although it is mapped */
	bool listed; /* where all peers have the same rights: WH_ACCESS_LIST */
	_Atomic uint32_t batches; /* uses by unfinished batches */
	struct wh_region_window *_Atomic window; /* NULL: not tried yet */
	/* Private to each transport, by enum wh_transport_id; NULL: nothing yet. Its region_closed
	 * frees it. */
	_Atomic(void *) transport[WH_REGION_TRANSPORTS];
};

/* Can the application unmap this memory although it is registered? Transports that copy it with
 * loads and stores must check it first: no system call reports the error. */
static inline bool wh_region_may_vanish(const struct wh_region *region)
{
	return !region->memory && wh_kind_on_host(region->entry.kind);
}

/* A region that a peer has published. */
struct wh_remote_region {
	struct wh_region_entry entry;
	struct wh_region_window *_Atomic window; /* onto what cuda maps; NULL: not tried yet */
	/* Private to each transport, by enum wh_transport_id; NULL: nothing yet. Its region_gone
	 * frees it. */
	_Atomic(void *) transport[WH_REGION_TRANSPORTS];
	uint32_t round; /* peer.list_round when it was last listed; on loop 0 */
};

#endif
