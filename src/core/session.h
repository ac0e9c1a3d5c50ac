/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: the engines that have connected to this one. */
#ifndef WH_CORE_SESSION_H
#define WH_CORE_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/counters.h"
#include "net/control.h"
#include "transport/transport.h"
#include "util/hash.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/wire.h"

struct wh_engine;
struct wh_quota;
struct wh_region;
struct wh_region_entry;

/* One engine connected to this one. On loop 0, save `control` for sending and the atomics. */
struct wh_session {
	struct wh_list link; /* engine.sessions; also under engine.lock */
	struct wh_hash_node node; /* engine.sessions_by_id, likewise */
	struct wh_engine *engine;
	struct wh_control control;
	struct wh_quota *quota;
	struct wh_hello hello; /* what it said */
	uint64_t id;
	uint8_t key[WH_KEY_SIZE]; /* that its data and shm connections prove */
	/* it may map or reach our memory without asking: wait for its REMOVED */
	_Atomic bool touches;
	/* It may reach our memory by keys that we can take back: waiting for its REMOVED is a
	 * courtesy. */
	_Atomic bool keyed;
	/* it is going to ask for GPUs' memory by way of pinned memory; under engine.lock */
	bool stages;
	/* REMOVE frames: how many the engine had sent when the session began, and how many REMOVED
	 * have come. */
	uint64_t removes_before;
	_Atomic uint64_t removed;
	struct wh_timer watchdog; /* a peer that has fallen silent */
	int64_t heard;
	void *transport[WH_TRANSPORT_COUNT]; /* each transport's own */
	struct wh_list notifications; /* for which the inbox has no room yet */
	unsigned notify_count; /* of them */
	struct wh_served served;
};

/* A control connection whose initiator has proved itself. It belongs to the session now (also on
 * error). */
int wh_session_new(struct wh_engine *engine, int fd, struct wh_tls *tls, uint64_t source,
		   const struct wh_hello *hello, uint64_t id, const uint8_t key[WH_KEY_SIZE]);
/* The session with this id, or NULL. On loop 0, or under engine.lock. */
struct wh_session *wh_session_find(struct wh_engine *engine, uint64_t id);
void wh_session_end(struct wh_session *session, int error, const char *text);
/* It is going to ask for GPUs' memory by way of pinned memory of ours: what that takes is made
 * ready, by another thread, for all regions that it may use, now and later. Not under engine.lock.
 */
void wh_session_stages(struct wh_session *session);
/* Tell the sessions that may use it of a region that came, and all of one that goes. Under
 * engine.lock. */
void wh_sessions_publish(struct wh_engine *engine, const struct wh_region *region);
void wh_sessions_remove(struct wh_engine *engine, uint64_t id);
/* Wait until no session that touches memory by itself holds a region removed before this call;
 * half as long for those that do so by keys alone, which the caller takes back. 0 or -EBUSY. */
int wh_sessions_released(struct wh_engine *engine, uint64_t id, int64_t deadline);

/* The same for a session: inside the region, or under engine.lock. On any thread. */
uint8_t wh_session_access(const struct wh_session *session, const struct wh_region_entry *entry);

#endif
