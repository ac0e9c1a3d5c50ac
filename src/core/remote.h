/* SPDX-License-Identifier: Apache-2.0 */
/* The regions of a peer, as it publishes them and takes them back. */
#ifndef WH_CORE_REMOTE_H
#define WH_CORE_REMOTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory/region-table.h"
#include "util/list.h"

struct rdma_keys;
struct wh_device_mapping;
struct wh_engine;
struct wh_peer;
struct wh_region_record;
struct wh_region_window;
struct wh_shm_memory;

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

/* The peer publishes a region; on loop 0. Hearing of it again, as in the list after a connection
 * broke, is fine; an older region (of an earlier peer.list_round) that stands in its way is taken
 * out first. The caller sets the new one's round and says peer.changed.
 * 0, -EPROTO (an id out of bounds, another region under an id or name that is taken), -EBUSY (an
 * older one is still being copied), -ENOMEM. */
int wh_remote_add(struct wh_peer *peer, const struct wh_region_record *record);

/* The peer takes a region back; on loop 0. An id that is not known is fine. When it returns 0
 * nothing touches the region any more and it is unmapped. -EBUSY: a copy has not let go of it
 * within half of the knob `timeout`; it is closed, but REMOVED must not be said. */
int wh_remote_remove(struct wh_peer *peer, uint64_t id);

/* Take out all of them: the peer goes, no batch is left, and nothing of it runs on loop 0. Its
 * transports may have been closed already: their region_gone does without their state. */
void wh_remote_clear(struct wh_peer *peer);

/* A region of our own has been published: whoever waits for it in a peer that is this engine itself
 * looks again. Under engine.lock. */
void wh_remote_wake(struct wh_engine *engine);

#endif
