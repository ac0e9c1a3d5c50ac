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
	/* What it knows of our regions: session-regions.c. Under engine.lock: */
	uint64_t *learned; /* a bit for each index in the region table: it was told of the region */
	uint32_t learned_words; /* of `learned` */
	uint64_t missed; /* hashes of the questions to which there was no region; 0: none */
	_Atomic uint64_t removes; /* the number of the last REMOVE sent to it */
	_Atomic uint64_t removed; /* the number that it has confirmed; written on loop 0 */
	uint64_t unconfirmed; /* the first number that it has not confirmed, if there is one */
	/* While it has not confirmed `removes`: the last number that was sent at `due_since`. */
	uint64_t due;
	int64_t due_since;
	struct wh_timer watchdog; /* ends a session whose initiator has fallen silent */
	struct wh_list aborts; /* ABORT frames without an answer, and when to look again */
	struct wh_timer aborting;
	int64_t heard; /* when the last frame came */
	void *transport[WH_TRANSPORT_COUNT]; /* private to each transport */
	_Atomic(struct wh_lent *) lent; /* the initiator's slots; NULL: none; set on loop 0 */
	struct wh_list notifications; /* for which the inbox has no room yet, the oldest first */
	unsigned notify_count; /* of them */
	uint64_t notify_bytes; /* of them */
	struct wh_list notify_link; /* inbox.waiting, if there are some */
	uint32_t notify_arrived; /* others, in the inbox; under its lock */
	struct wh_served served;
};

/* Make a session of a control connection whose initiator is authenticated. Takes over `fd` and
 * `channel`, also on error. On loop 0. 0, or a negative errno; the initiator is told or the
 * connection closed. */
int wh_session_new(struct wh_engine *engine, int fd, struct wh_channel *channel, uint64_t source,
		   const struct wh_hello *hello, uint64_t id, const uint8_t key[WH_KEY_SIZE]);

/* ---- its regions: session-regions.c ---- */

/* Answer a LOOKUP. On loop 0. 0, or a negative errno. */
int wh_session_lookup(struct wh_session *session, const uint8_t *payload, size_t length);
/* Accept a REMOVED. On loop 0. 0 or -EPROTO. */
int wh_session_removed(struct wh_session *session, const uint8_t *payload, size_t length);
/* Does it know the region? Under engine.lock, while the region is registered. */
bool wh_session_knows(const struct wh_session *session, const struct wh_region_entry *entry);
/* A region is registered: hint at it to sessions that asked in vain for something that it may
 * answer. One is withdrawn: tell the sessions that know it or may map its memory, and return the
 * number of the REMOVE. Under engine.lock. */
void wh_sessions_publish(struct wh_engine *engine, const struct wh_region *region);
uint64_t wh_sessions_remove(struct wh_engine *engine, const struct wh_region *region);
/* Block until no session can access the region `id` that was removed with number `removes`: until
 * `deadline` for sessions that access memory directly, and until `courtesy` for those with keys
 * only, which the caller invalidates. Not on loop 0. 0, or -EBUSY with its text. */
int wh_sessions_released(struct wh_engine *engine, uint64_t id, uint64_t removes, int64_t courtesy,
			 int64_t deadline);
/* Since when has it not confirmed a REMOVE that it could touch memory despite? 0: it owes none. At
 * most half as long as it takes for any single one: when it has confirmed those that were sent by
 * some time, the time begins anew for those sent since. On loop 0. */
int64_t wh_session_owes(struct wh_session *session);

#endif
