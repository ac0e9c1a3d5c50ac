/* SPDX-License-Identifier: Apache-2.0 */
/* The regions of a peer, as it publishes them and takes them back. */
#ifndef WH_CORE_REMOTE_H
#define WH_CORE_REMOTE_H

#include <stdint.h>

#include "memory/region.h"

struct wh_engine;
struct wh_peer;
struct wh_region_record;

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
