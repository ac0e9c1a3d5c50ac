/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine: its threads, its identity, its transports and the tables of all other objects.
 *
 * Threads: an engine has `loop_count` progress threads (util/loop.h). Loop 0 also serves the
 * listeners, the handshakes and all control connections; sessions and the connecting side of peers
 * are used on loop 0 only, but for what has a lock of its own.
 *
 * An engine without threads (WH_ENGINE_NO_THREADS) has one loop, which the threads that call in
 * run: util/turns.h, core/progress.h.
 *
 * Locks, outermost first: engine.lock, peer.lock, wh_region_table.lock, control.lock. None is held
 * while bytes move. memory/memory.h has those of the memory domain. peer.count_lock is innermost:
 * no lock is taken while it is held.
 */
#ifndef WH_CORE_ENGINE_H
#define WH_CORE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/engine.h>

#include "core/callbacks.h"
#include "core/counters.h"
#include "core/deferred.h"
#include "core/warning.h"
#include "core/worker.h"
#include "gpu/region-window.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "net/acceptor.h"
#include "net/handshake.h"
#include "net/quota.h"
#include "net/trust.h"
#include "transport/core.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/list.h"
#include "util/log.h"
#include "util/loop.h"
#include "util/placement.h"
#include "wire/wire.h"

struct wh_cuda;
struct wh_gpus;
struct wh_inbox;
struct wh_observer;
struct wh_registry;
struct wh_turns;
struct wh_warm_up;

struct wh_engine {
	struct wh_config config;
	struct wh_trust trust;
	struct wh_identity identity; /* constant once the engine listens */
	char url[WH_URL_MAX]; /* "": it does not listen */
	/* 1 in the process that opened the engine; the page is wiped in a forked child. */
	volatile unsigned char *ours;
	pid_t process; /* that one */
	struct wh_log log;
	struct wh_log_limit log_limit;
	/* warning.c: hashes of the reasons that were said why a peer of this machine is reached by
	 * the network; TLS has switched a transport off that this machine could use. */
	_Atomic uint64_t warned[WH_WARNINGS];
	bool plaintext[WH_TRANSPORT_COUNT];

	struct wh_turns *turns; /* WH_ENGINE_NO_THREADS: what runs the loops; NULL: threads do */
	struct wh_loop *loops;
	struct wh_place *places; /* where each of the loops runs */
	unsigned loop_count;
	_Atomic unsigned next_loop;

	pthread_mutex_t lock; /* peers, sessions, counts; publishing */
	pthread_mutex_t files_lock; /* making memory.file_threads; not to be taken by loops */
	struct wh_list peers;
	struct wh_list sessions;
	struct wh_hash sessions_by_id; /* changed on loop 0 and under lock */
	struct wh_quota_table quotas; /* on loop 0 */
	uint64_t removes; /* regions withdrawn: the number of the last REMOVE; under lock */
	uint64_t next_session; /* on loop 0 */
	unsigned session_count; /* on loop 0 */
	unsigned queue_count; /* under lock */
	struct wh_region_table regions; /* of struct wh_region */
	struct wh_memory_domain memory;
	struct wh_cuda *cuda; /* never NULL; wh_cuda_ready() says why if GPUs cannot be used */
	struct wh_gpus *gpus; /* what moves GPU memory, for all transports */
	/* prepares staging buffers before peers need them; NULL: the engine has no threads */
	struct wh_warm_up *early;
	void *transport[WH_TRANSPORT_COUNT];
	uint8_t order[WH_TRANSPORT_COUNT]; /* transports that are on, best first */
	unsigned order_count;
	/* position in the setting `transports`, on or off; WH_TRANSPORT_COUNT: not in it */
	uint8_t rank[WH_TRANSPORT_COUNT];
	char transport_off[WH_TRANSPORT_COUNT][WH_REFUSAL]; /* why it is off; "": it is on */
	bool not_here[WH_TRANSPORT_COUNT]; /* off by its setting, or for lack of a device */

	struct wh_acceptor *acceptor;
	struct wh_registry *registry; /* NULL: none */
	struct wh_inbox *inbox;
	unsigned window_count; /* under lock */
	struct wh_region_windows region_windows;

	struct wh_engine_statistics statistics;
	struct wh_statistics past; /* of closed peers; under lock */
	struct wh_observer *observer; /* NULL: off */

	struct wh_worker callbacks; /* runs callbacks: callbacks.h */
	struct wh_worker planner; /* plans batches that had to ask: resolve.h, deferred.h */
	struct wh_deferred deferred;
};

/* -EPERM in a forked child, -EINVAL for NULL; else 0. At the top of every public function. */
int wh_engine_guard(const struct wh_engine *engine, const char *call);

#endif
