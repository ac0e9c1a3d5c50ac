/* SPDX-License-Identifier: Apache-2.0 */
#include "core/deferred.h"

#include <errno.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/progress.h"
#include "core/resolve.h"
#include "transport/core.h"

static struct wh_engine *engine_of(struct wh_deferred *deferred)
{
	return wh_container(deferred, struct wh_engine, deferred);
}

static void deferred_arm(struct wh_task *task)
{
	struct wh_deferred *deferred = wh_container(task, struct wh_deferred, arm);

	wh_timer_set(&engine_of(deferred)->loops[0], &deferred->timer, wh_now() + WH_PLAN_LOOK);
}

static void deferred_fire(struct wh_timer *timer)
{
	wh_deferred_look(engine_of(wh_container(timer, struct wh_deferred, timer)));
}

/* Under the lock. */
static void deferred_put_work(struct wh_deferred *deferred)
{
	if (deferred->due || wh_list_empty(&deferred->batches))
		return;
	deferred->due = true;
	wh_worker_put(&engine_of(deferred)->planner, &deferred->work);
}

/* On the planner. */
static void deferred_run(struct wh_work *work)
{
	struct wh_deferred *deferred = wh_container(work, struct wh_deferred, work);
	struct wh_list batches, *link;

	wh_list_init(&batches);
	pthread_mutex_lock(&deferred->lock);
	deferred->due = false;
	while ((link = wh_list_take(&deferred->batches)))
		wh_list_append(&batches, link);
	pthread_mutex_unlock(&deferred->lock);
	while ((link = wh_list_take(&batches))) {
		struct wh_batch *batch = wh_container(link, struct wh_batch, deferred_link);

		wh_batch_run_resolved(batch, batch->deferred_wait, 0, "");
		atomic_fetch_sub(&deferred->count, 1);
	}
}

void wh_deferred_init(struct wh_engine *engine)
{
	struct wh_deferred *deferred = &engine->deferred;
	pthread_condattr_t clock;

	pthread_mutex_init(&deferred->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&deferred->changed, &clock);
	pthread_condattr_destroy(&clock);
	wh_list_init(&deferred->batches);
	deferred->work.run = deferred_run;
	deferred->arm.run = deferred_arm;
	deferred->timer.fire = deferred_fire;
}

void wh_deferred_end(struct wh_engine *engine)
{
	wh_loop_cancel(&engine->loops[0], &engine->deferred.arm);
	wh_timer_clear(&engine->deferred.timer);
}

void wh_deferred_destroy(struct wh_engine *engine)
{
	pthread_cond_destroy(&engine->deferred.changed);
	pthread_mutex_destroy(&engine->deferred.lock);
}

void wh_deferred_put(struct wh_batch *batch, struct wh_event_wait *wait, uint64_t changes)
{
	struct wh_engine *engine = batch->peer->engine;
	struct wh_deferred *deferred = &engine->deferred;
	bool changed;

	batch->deferred_wait = wait;
	pthread_mutex_lock(&deferred->lock);
	atomic_fetch_add(&deferred->count, 1);
	wh_list_append(&deferred->batches, &batch->deferred_link);
	/* What has changed in between has found nothing to plan. */
	changed = atomic_load(&deferred->changes) != changes;
	if (changed)
		deferred_put_work(deferred);
	pthread_mutex_unlock(&deferred->lock);
	if (!changed) /* on the planner, for which the engine waits */
		wh_loop_post(&engine->loops[0], &deferred->arm);
}

void wh_deferred_look(struct wh_engine *engine)
{
	struct wh_deferred *deferred = &engine->deferred;

	/* Before `count`, which is counted before `changes` is read: one of the two is seen. */
	atomic_fetch_add(&deferred->changes, 1);
	if (!atomic_load(&deferred->count))
		return;
	pthread_mutex_lock(&deferred->lock);
	pthread_cond_broadcast(&deferred->changed);
	deferred_put_work(deferred);
	pthread_mutex_unlock(&deferred->lock);
}

int wh_plan_patiently(struct wh_batch *batch, struct wh_patience *patience)
{
	int64_t now = wh_now();
	int error;

	if (!patience->until)
		patience->until = now + WH_PLAN_PATIENCE;
	error = wh_plan(batch, now < patience->until ? WH_PLAN_LINGERS : WH_PLAN_DECIDES);
	/* A batch may name thousands of regions: as long as they become fewer, the peer answers. */
	if (error == -EINPROGRESS && batch->unready < patience->unready)
		patience->until = wh_now() + WH_PLAN_PATIENCE;
	patience->unready = batch->unready;
	return error;
}

int wh_plan_within(struct wh_batch *batch, int64_t deadline)
{
	struct wh_engine *engine = batch->peer->engine;
	struct wh_deferred *deferred = &engine->deferred;
	struct wh_patience patience = { 0 };
	uint64_t changes;
	int64_t look;
	int error;

	if (wh_engine_inside(engine))
		return wh_plan(batch, WH_PLAN_DECIDES);
	atomic_fetch_add(&deferred->count, 1);
	for (;;) {
		changes = atomic_load(&deferred->changes);
		error = wh_now() < deadline ? wh_plan_patiently(batch, &patience) :
					      wh_plan(batch, WH_PLAN_DECIDES);
		if (error != -EINPROGRESS)
			break;
		look = wh_now() + WH_PLAN_LOOK;
		pthread_mutex_lock(&deferred->lock);
		if (atomic_load(&deferred->changes) == changes)
			wh_engine_cond_wait(engine, &deferred->changed, &deferred->lock,
					    look < deadline ? look : deadline);
		pthread_mutex_unlock(&deferred->lock);
	}
	atomic_fetch_sub(&deferred->count, 1);
	return error;
}
