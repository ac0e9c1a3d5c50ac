/* SPDX-License-Identifier: Apache-2.0 */
/* Remote regions: what a peer has published to this engine. */
#ifndef WH_CORE_REMOTE_H
#define WH_CORE_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include "memory/region.h"

struct wh_engine;
struct wh_peer;
struct wh_region_record;
struct wh_remote;

/* The peer tells of a region; on loop 0. It may tell of the same region again; an older region (of
 * an earlier peer.list_round) with its index or name is removed first. 0, -EPROTO (id out of
 * bounds; id or name of another region), -EBUSY (an older region is still being copied), -ENOMEM.
 */
int wh_remote_add(struct wh_peer *peer, const struct wh_region_record *record);

/* The peer removes a region, which lies at these of its addresses; its id may be unknown. On loop
 * 0. Waits for copies until `deadline`. 0: nothing touches the region any more, and no mapping
 * shows it. -EBUSY: a copy still uses it; it is closed to new ones, and this can be called again.
 */
int wh_remote_remove(struct wh_peer *peer, uint64_t id, uint64_t address, uint64_t length,
		     int64_t deadline);
/* A deadline for wh_remote_remove(): half of the setting `timeout`; in an engine without threads,
 * now.
 */
int64_t wh_remote_patience(const struct wh_peer *peer);
void wh_remote_from_record(struct wh_remote *out, const struct wh_region_record *record);

/* Remove all regions of a peer that is being closed and has no batches any more. On loop 0, before
 * its transports are closed. */
void wh_remote_clear(struct wh_peer *peer);

/* Ask for the regions with these ids that are not known, and wait for the answer. Not on loop 0. 0,
 * also if the peer has no such regions; -ETIMEDOUT; or wh_peer_check()'s error. */
int wh_remote_learn(struct wh_peer *peer, const uint64_t *ids, size_t count, int64_t deadline,
		    const char *call);

/* A local region was registered: wake threads that wait for it in a peer that is this engine
 * itself. Under engine.lock. */
void wh_remote_wake(struct wh_engine *engine);

#endif
