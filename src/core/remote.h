/* SPDX-License-Identifier: Apache-2.0 */
/* Remote regions: what a peer has published to this engine. */
#ifndef WH_CORE_REMOTE_H
#define WH_CORE_REMOTE_H

#include <stdint.h>

#include "memory/region.h"

struct wh_engine;
struct wh_peer;
struct wh_region_record;

/* The peer publishes a region; on loop 0. The same region may be published again, as in the list
 * after a reconnection; an older region (of an earlier peer.list_round) with its index or name is
 * removed first. The caller sets the new region's `round` and signals peer.changed. 0, -EPROTO (id
 * out of bounds; id or name of another region), -EBUSY (an older region is still being copied),
 * -ENOMEM. */
int wh_remote_add(struct wh_peer *peer, const struct wh_region_record *record);

/* The peer removes a region; on loop 0. May block, for half of the setting `timeout`. 0: nothing
 * touches the region any more and it is unmapped, or the id is unknown. -EBUSY: a copy still uses
 * it; it is closed to new ones, but REMOVED must not be sent. */
int wh_remote_remove(struct wh_peer *peer, uint64_t id);

/* Remove all regions of a peer that is being closed and has no batches any more. On loop 0, before
 * its transports are closed. */
void wh_remote_clear(struct wh_peer *peer);

/* A local region was registered: wake threads that wait for it in a peer that is this engine
 * itself. Under engine.lock. */
void wh_remote_wake(struct wh_engine *engine);

#endif
