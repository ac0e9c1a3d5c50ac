/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: engines that have connected to this one, seen from the side that owns the memory. */
#ifndef WH_CORE_SESSION_H
#define WH_CORE_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/counters.h"
#include "net/control.h"
#include "transport/core.h"
#include "transport/transport.h"
#include "util/hash.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/wire.h"

struct wh_engine;
struct wh_quota;
struct wh_region;
struct wh_region_entry;

/* Used on loop 0, but for the atomics and for sending over `control`, which any thread may do. */
struct wh_session {
	struct wh_list link; /* engine.sessions; also under engine.lock */
	struct wh_hash_node node; /* engine.sessions_by_id, likewise */
	struct wh_engine *engine;
	struct wh_control control;
	struct wh_quota *quota;
	struct wh_hello hello; /* the initiator's */
	uint64_t id;
	uint8_t key[WH_KEY_SIZE]; /* its data and shm connections prove that they know it */
	/* it can access our memory directly, as by a mapping: wait for its REMOVED */
	_Atomic bool touches;
	/* it has RDMA keys, which we can invalidate: waiting for its REMOVED spares it errors */
	_Atomic bool keyed;
	/* it will read or write GPU memory through staging buffers; under engine.lock */
	bool stages;
	/* REMOVE frames that the engine had sent before the session began, and REMOVED answers
	 * since */
	uint64_t removes_before;
	_Atomic uint64_t removed;
	struct wh_timer watchdog; /* ends a session whose initiator has fallen silent */
	int64_t heard; /* when the last frame came */
	void *transport[WH_TRANSPORT_COUNT]; /* private to each transport */
	struct wh_list notifications; /* for which the inbox has no room yet, the oldest first */
	unsigned notify_count; /* of them */
	uint64_t notify_bytes; /* of them */
	struct wh_list notify_link; /* inbox.waiting, if there are some */
	uint32_t notify_arrived; /* others, in the inbox; under its lock */
	struct wh_served served;
};

/* Make a session of a control connection whose initiator is authenticated. Takes over `fd` and
 * `tls`, also on error. On loop 0. 0, or a negative errno; the initiator is told or the connection
 * closed. */
int wh_session_new(struct wh_engine *engine, int fd, struct wh_tls *tls, uint64_t source,
		   const struct wh_hello *hello, uint64_t id, const uint8_t key[WH_KEY_SIZE]);
/* Publish a region to the sessions that may use it; tell all sessions that one is removed. Under
 * engine.lock. */
void wh_sessions_publish(struct wh_engine *engine, const struct wh_region *region);
void wh_sessions_remove(struct wh_engine *engine, uint64_t id);
/* Block until no session can access a region that was removed before this call: until `deadline`
 * for sessions that access memory directly, and half as long for those with keys only, which the
 * caller invalidates. Not on loop 0. 0, or -EBUSY with its text. */
int wh_sessions_released(struct wh_engine *engine, uint64_t id, int64_t deadline);

#endif
