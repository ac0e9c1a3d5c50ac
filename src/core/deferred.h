/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches that have no plan yet, because a transport has to ask the peer first.
 *
 * No submission waits for a peer. If a better transport than the one that could be taken now is
 * still being set up (RDMA's connections and keys, the meeting with an owner of shared memory), the
 * batch runs without a plan. The planner plans it when something has changed, and every
 * WH_PLAN_LOOK; when nothing has become ready for WH_PLAN_PATIENCE it takes what there is.
 */
#ifndef WH_CORE_DEFERRED_H
#define WH_CORE_DEFERRED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/worker.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/loop.h"

struct wh_batch;
struct wh_engine;
struct wh_event_wait;

#define WH_PLAN_LOOK (20 * WH_MS)
#define WH_PLAN_PATIENCE (2 * WH_SECOND)

/* Of one that plans again and again; 0 at first. */
struct wh_patience {
	int64_t until; /* when it takes what there is */
	uint32_t unready; /* of the last plan */
};

struct wh_deferred {
	_Atomic uint32_t count; /* batches, and calls that wait */
	_Atomic uint64_t changes; /* written under the lock */
	pthread_mutex_t lock; /* all below; taken before planner.lock, and otherwise a leaf */
	pthread_cond_t changed;
	struct wh_list batches; /* wh_batch.deferred_link */
	bool due; /* `work` is put */
	struct wh_work work;
	struct wh_task arm; /* sets the timer; on loop 0, as it */
	struct wh_timer timer;
};

void wh_deferred_init(struct wh_engine *engine);
/* No batch is left. On loop 0. */
void wh_deferred_end(struct wh_engine *engine);
void wh_deferred_destroy(struct wh_engine *engine);

/* The batch runs, with one part left: have the planner plan and start it, on a planner that was
 * started. `changes`: as they were before it was planned in vain. The batch may be gone on return.
 */
void wh_deferred_put(struct wh_batch *batch, struct wh_event_wait *wait, uint64_t changes);
/* Something has changed: plan all again. Any thread; under a transport's locks. */
void wh_deferred_look(struct wh_engine *engine);

/* wh_plan(), once, on a thread that may wait. */
int wh_plan_patiently(struct wh_batch *batch, struct wh_patience *patience);
/* The same, until there is a plan: -EINPROGRESS never comes, and what is not ready by `deadline` is
 * not taken. */
int wh_plan_within(struct wh_batch *batch, int64_t deadline);

#endif
