/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a batch: submitting, completing, rerouting, waiting and cancelling. batch.c fills it.
 *
 * `left` counts the fragments that have not ended, plus one for the submission itself. Whoever
 * ends the last of these sends the notification, if there is one, and then calls wh_batch_finish().
 * The state goes NEW or DONE, RUNNING (WAITED while a thread sleeps on it), DONE.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/batch.h"
#include "core/counters.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/progress.h"
#include "core/queue.h"
#include "core/region.h"
#include "core/resolve.h"
#include "core/stream.h"
#include "core/wait.h"
#include "core/warning.h"
#include "gpu/stream.h"
#include "transport/blocks.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/futex.h"
#include "util/list.h"
#include "util/loop.h"
#include "util/turns.h"

/* How long the work in flight of a cancelled batch may take to end before it is aborted. */
#define CANCEL_PATIENCE (100 * WH_MS)

/* ---- holding local regions -------------------------------------------------------------- */

static void batch_release_items(const struct wh_batch *batch, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (batch->items[i].local &&
		    (!i || batch->items[i].local != batch->items[i - 1].local))
			atomic_fetch_sub(&batch->items[i].local->batches, 1);
}

static void batch_release_bases(const struct wh_blocks *blocks, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		atomic_fetch_sub(&blocks->bases[i].local->batches, 1);
}

static void batch_release_regions(const struct wh_batch *batch)
{
	batch_release_items(batch, batch->item_count);
	for (size_t i = 0; i < batch->blocks_count; i++)
		batch_release_bases(batch->blocks[i], batch->blocks[i]->base_count);
}

/* Keep a region registered. False: `id` has been unregistered. wh_region_unregister() clears the id
 * first and reads `batches` then; this goes the other way round, so that one of the two notices. */
static bool batch_hold_region(struct wh_region *region, uint64_t id)
{
	atomic_fetch_add(&region->batches, 1);
	if (atomic_load(&region->entry.id) == id)
		return true;
	atomic_fetch_sub(&region->batches, 1);
	return false;
}

static int batch_hold_regions(const struct wh_batch *batch)
{
	size_t b = 0;

	for (size_t i = 0; i < batch->item_count; i++) {
		const struct wh_item *item = &batch->items[i];

		if (!item->local) /* length 0 */
			continue;
		if (i && item->local == batch->items[i - 1].local &&
		    item->local_id == batch->items[i - 1].local_id)
			continue;
		if ((i && item->local == batch->items[i - 1].local) ||
		    !batch_hold_region(item->local, item->local_id)) {
			batch_release_items(batch, i);
			return wh_fail(ESTALE,
				       "transfer %zu: its local region has been unregistered", i);
		}
	}
	for (; b < batch->blocks_count; b++) {
		const struct wh_blocks *blocks = batch->blocks[b];

		for (uint64_t i = 0; i < blocks->base_count; i++) {
			if (batch_hold_region(blocks->bases[i].local, blocks->bases[i].local_id))
				continue;
			batch_release_bases(blocks, i);
			goto err_blocks;
		}
	}
	return 0;

err_blocks:
	while (b--)
		batch_release_bases(batch->blocks[b], batch->blocks[b]->base_count);
	batch_release_items(batch, batch->item_count);
	return wh_fail(ESTALE, "blocks: the local region of a base has been unregistered");
}

/* ---- submitting ----------------------------------------------------------------------------- */

/* All fragments have ended: send the notification, or finish. The batch may be gone on return. */
static void batch_fragments_ended(struct wh_batch *batch)
{
	if (batch->notifies && !atomic_load(&batch->status)) {
		if (!atomic_load(&batch->cancelled)) {
			wh_notify_send(batch);
			return;
		}
		wh_batch_fail(batch, -ECANCELED, "cancelled before its notification was sent");
	}
	if (batch->notifies)
		wh_notify_drop(batch);
	wh_batch_finish(batch);
}

static void batch_part_ended(struct wh_batch *batch)
{
	/* Only those that hold a part take one away: nobody else changes the last. */
	if (atomic_load_explicit(&batch->left, memory_order_acquire) == 1 ||
	    atomic_fetch_sub_explicit(&batch->left, 1, memory_order_acq_rel) == 1)
		batch_fragments_ended(batch);
}

static void batch_start_fragments(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	for (size_t i = 0; i < batch->fragment_count; i++) {
		struct wh_fragment *fragment = &batch->fragments[i];

		wh_transport(fragment->transport)
			->submit(peer, peer->transport[fragment->transport], fragment);
	}
	batch_part_ended(batch);
}

void wh_batch_start(struct wh_batch *batch, int error, const char *text)
{
	atomic_store_explicit(&batch->waiting_for_stream, false, memory_order_release);
	if (!error) {
		batch_start_fragments(batch);
		return;
	}
	for (size_t i = 0; i < batch->fragment_count; i++) {
		wh_fragment_fail(&batch->fragments[i], UINT64_MAX, error, "%s", text);
		wh_fragment_done(&batch->fragments[i]);
	}
	if (!batch->fragment_count)
		wh_batch_fail(batch, error, text);
	batch_part_ended(batch);
}

/* Transports that keep something for the batch begin anew. */
static void batch_transports_again(struct wh_batch *batch)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (batch->transport[id])
			wh_transport(id)->batch_again(batch, batch->transport[id]);
}

/* May the batch be submitted? Take it back from where its last end was reported. */
static int batch_check_submit(struct wh_batch *batch)
{
	int error = wh_batch_guard_idle(batch, "wh_batch_submit");
	struct wh_peer *peer;

	if (error)
		return error;
	peer = batch->peer;
	error = wh_peer_check(peer);
	if (error)
		return error;
	wh_batch_settle(batch);
	if (batch->queue)
		wh_queue_forget(batch->queue, &batch->queued);
	return batch->callback ? wh_callbacks_reserve(batch) : 0;
}

/* Forget the outcome of the last submission. */
static void batch_reset_status(struct wh_batch *batch)
{
	if (!atomic_load_explicit(&batch->status, memory_order_relaxed))
		return;
	pthread_mutex_lock(&batch->text_lock);
	atomic_store(&batch->status, 0);
	batch->text[0] = 0;
	pthread_mutex_unlock(&batch->text_lock);
	for (size_t i = 0; i < batch->item_count; i++)
		atomic_store_explicit(&batch->items[i].status, 0, memory_order_relaxed);
}

/* Make the fragments ready to be started. */
static void batch_reset_fragments(struct wh_batch *batch)
{
	for (size_t i = 0; i < batch->fragment_count; i++) {
		struct wh_fragment *fragment = &batch->fragments[i];

		wh_fragment_start(fragment, &fragment->cursor);
		atomic_store_explicit(&fragment->left, fragment->bytes, memory_order_relaxed);
		atomic_store_explicit(&fragment->cancelled, false, memory_order_relaxed);
		atomic_store_explicit(&fragment->owner, NULL, memory_order_relaxed);
		/* Whoever still polls the last submission sees no owner of that one then. */
		atomic_store_explicit(&fragment->done, false, memory_order_release);
		fragment->rerouted = false;
	}
	if (atomic_load_explicit(&batch->kept, memory_order_relaxed))
		batch_transports_again(batch);
}

/* All of a submission but starting the fragments. On error the batch is as it was. -EINPROGRESS: it
 * has to wait for its plan. */
static int batch_prepare(struct wh_batch *batch)
{
	int error = 0;

	if (batch->planned != atomic_load(&batch->peer->plan_version)) {
		wh_fail_begin();
		error = wh_plan(batch, WH_PLAN_ASKS);
		wh_fail_end(error == -EINPROGRESS ? 0 : error);
	}
	if (!error)
		error = batch_hold_regions(batch);
	if (error)
		return error;
	batch_reset_status(batch);
	batch_reset_fragments(batch);
	atomic_store_explicit(&batch->cancelled, false, memory_order_relaxed);
	atomic_store_explicit(&batch->notify_path, WH_NOTIFY_UNSENT, memory_order_relaxed);
	atomic_store_explicit(&batch->left, (uint32_t)batch->fragment_count + 1,
			      memory_order_relaxed);
	if (!--batch->timed_in)
		wh_count_begin(batch);
	return 0;
}

/* Start the fragments of a batch that runs and is `waiting_for_stream` when the event has happened.
 * The batch may be gone on return. */
static void batch_start_when(struct wh_batch *batch, struct wh_event_wait *wait)
{
	int error;

	/* Do not time it: the stream's own work would be in the figure. */
	atomic_fetch_and(&batch->watch, ~(uint32_t)WH_STATISTICS_TIMED);
	error = wh_gpus_wait_event(batch->peer->engine->gpus, wait);
	if (error)
		wh_batch_start(batch, error, wh_error_text());
}

/* Let the batch run before it has a plan. */
static int batch_run_unplanned(struct wh_batch *batch)
{
	int error = wh_worker_start(&batch->peer->engine->planner, "wherry/plan");

	if (!error)
		error = batch_hold_regions(batch);
	if (error)
		return error;
	batch_reset_status(batch);
	wh_batch_flush_counts(batch);
	pthread_mutex_lock(&batch->plan_lock);
	atomic_store_explicit(&batch->resolving, true, memory_order_relaxed);
	batch->fragment_count = 0;
	batch->planned = 0;
	pthread_mutex_unlock(&batch->plan_lock);
	batch->patience = (struct wh_patience){ 0 };
	/* Submissions without a plan are counted the slow way. */
	atomic_fetch_or(&batch->watch, WH_STATISTICS_FRAGMENTS);
	atomic_store_explicit(&batch->cancelled, false, memory_order_relaxed);
	atomic_store_explicit(&batch->notify_path, WH_NOTIFY_UNSENT, memory_order_relaxed);
	atomic_store_explicit(&batch->left, 1, memory_order_relaxed);
	atomic_store_explicit(&batch->state, WH_BATCH_RUNNING, memory_order_release);
	return 0;
}

/* Submit a batch for which a transport has to ask the peer. Apart from wh_batch_submit(), as the
 * next one. */
static __attribute__((noinline)) int batch_submit_deferred(struct wh_batch *batch,
							   struct wh_event_wait *wait)
{
	int error = batch_run_unplanned(batch);

	/* At once: the planner may wait for what this thread may not. */
	if (!error)
		wh_deferred_put(batch, wait, UINT64_MAX);
	return error;
}

/* Submit a batch of which some regions are not known: ask for them. Apart from wh_batch_submit(),
 * which is short. 0; 1: they are known, submit it; or a negative errno. */
static __attribute__((noinline)) int batch_submit_unresolved(struct wh_batch *batch,
							     struct wh_event_wait *wait)
{
	struct wh_resolution *asked;
	int error;

	wh_plan_begin(batch);
	wh_fail_begin();
	error = wh_fail_end(wh_batch_resolve(batch, &asked));
	wh_plan_end(batch);
	if (error || !asked)
		return error ? error : 1;
	error = batch_run_unplanned(batch);
	if (error)
		wh_resolution_free(asked);
	else
		wh_resolution_start(asked, wait);
	return error;
}

/* Wake a thread that sleeps on the batch: its fragments may need it. */
static void batch_wake_waiter(struct wh_batch *batch)
{
	uint32_t waited = WH_BATCH_WAITED;

	if (atomic_compare_exchange_strong(&batch->state, &waited, WH_BATCH_RUNNING))
		wh_futex_wake(&batch->state);
}

static void batch_fail_all(struct wh_batch *batch, int error, const char *text)
{
	for (size_t i = 0; i < batch->item_count; i++)
		atomic_store(&batch->items[i].status, error);
	wh_batch_fail(batch, error, text);
	atomic_store_explicit(&batch->resolving, false, memory_order_release);
	batch_part_ended(batch);
}

/* On the planner's thread. */
static int batch_plan_running(struct wh_batch *batch)
{
	int error = wh_peer_check(batch->peer);

	return error ? error : wh_plan_patiently(batch, &batch->patience);
}

void wh_batch_run_resolved(struct wh_batch *batch, struct wh_event_wait *wait, int error,
			   const char *text)
{
	uint64_t changes = atomic_load(&batch->peer->engine->deferred.changes);

	if (!error && !atomic_load(&batch->cancelled)) {
		wh_fail_begin();
		error = wh_fail_end(batch_plan_running(batch));
		text = wh_error_text();
	}
	if (error == -EINPROGRESS) {
		wh_deferred_put(batch, wait, changes);
		return;
	}
	/* wh_batch_cancel() looks at the fragments once `resolving` is false. */
	if (atomic_load(&batch->cancelled)) {
		error = -ECANCELED;
		text = "cancelled before it was started";
	}
	if (error) {
		if (wait)
			wh_stream_dependency_drop(batch);
		batch_fail_all(batch, error, text);
		return;
	}
	batch_reset_fragments(batch);
	/* One part for batch_start_fragments(), one for this function. */
	atomic_store_explicit(&batch->left, (uint32_t)batch->fragment_count + 2,
			      memory_order_relaxed);
	if (!--batch->timed_in)
		wh_count_begin(batch);
	/* `state` stays: a thread may wait already, and whoever ends the batch has to wake it. */
	atomic_store_explicit(&batch->waiting_for_stream, wait != NULL, memory_order_relaxed);
	if (wait)
		batch_start_when(batch, wait);
	else
		batch_start_fragments(batch);
	atomic_store_explicit(&batch->resolving, false, memory_order_release);
	batch_wake_waiter(batch);
	batch_part_ended(batch);
}

/* All of a submission but starting the fragments, or all of it for a batch that has to ask for
 * regions. 0: it was submitted; 1: start it; or a negative errno. */
static inline int batch_begin_submit(struct wh_batch *batch, struct wh_event_wait *wait)
{
	int error = batch_check_submit(batch);

	if (error)
		return error;
	batch->losses = atomic_load_explicit(&batch->peer->losses, memory_order_acquire);
	if (batch->unresolved) {
		error = batch_submit_unresolved(batch, wait);
		if (error <= 0)
			return error;
	}
	error = batch_prepare(batch);
	if (__builtin_expect(error == -EINPROGRESS, 0))
		return batch_submit_deferred(batch, wait);
	return error ? error : 1;
}

int wh_batch_submit(struct wh_batch *batch)
{
	int todo = batch_begin_submit(batch, NULL);

	if (todo <= 0)
		return todo;
	wh_batch_is_unseen(batch);
	atomic_store_explicit(&batch->state, WH_BATCH_RUNNING, memory_order_release);
	batch_start_fragments(batch);
	return 0;
}

int wh_batch_submit_when(struct wh_batch *batch, struct wh_event_wait *wait)
{
	int todo = batch_begin_submit(batch, wait);

	if (todo <= 0)
		return todo;
	atomic_store_explicit(&batch->waiting_for_stream, true, memory_order_relaxed);
	atomic_store_explicit(&batch->state, WH_BATCH_RUNNING, memory_order_release);
	batch_start_when(batch, wait);
	return 0;
}

/* ---- completing ----------------------------------------------------------------------------- */

void wh_batch_fail(struct wh_batch *batch, int error, const char *text)
{
	pthread_mutex_lock(&batch->text_lock);
	if (!atomic_load(&batch->status)) {
		snprintf(batch->text, sizeof(batch->text), "%s", text);
		atomic_store(&batch->status, error);
		atomic_fetch_or(&batch->watch, WH_STATISTICS_FAILED);
	}
	pthread_mutex_unlock(&batch->text_lock);
}

static void item_fail(struct wh_item *item, int error)
{
	int32_t none = 0;

	atomic_compare_exchange_strong(&item->status, &none, error);
}

void wh_fragment_fail(struct wh_fragment *fragment, uint64_t index, int error, const char *format,
		      ...)
{
	struct wh_batch *batch;
	char text[WH_TEXT_MAX];
	int32_t none = 0;
	va_list list;

	if (fragment->whole) {
		atomic_store(&fragment->failed, error);
		if (index != UINT64_MAX)
			index = fragment->items[index].local_id;
		fragment = fragment->whole;
	}
	batch = fragment->batch;
	atomic_compare_exchange_strong(&fragment->failed, &none, error);
	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	if (!fragment->blocks && index != UINT64_MAX)
		item_fail(&batch->items[index], error);
	for (uint64_t i = 0; !fragment->blocks && index == UINT64_MAX && i < fragment->count; i++)
		item_fail(&batch->items[fragment->first + i], error);
	wh_batch_fail(batch, error, text);
}

void wh_fragment_done(struct wh_fragment *fragment)
{
	if (fragment->whole) {
		fragment->ended(fragment, 0, "");
		return;
	}
	atomic_store_explicit(&fragment->done, true, memory_order_release);
	batch_part_ended(fragment->batch);
}

void wh_fragment_done_at_once(struct wh_fragment *fragment)
{
	struct wh_batch *batch = fragment->batch;

	/* Two parts are left, this one and that of whoever starts the fragments, which is this
	 * thread: no other counts down now. After a reroute it may be another thread. */
	if (fragment->whole || fragment->rerouted ||
	    atomic_load_explicit(&batch->left, memory_order_acquire) != 2) {
		wh_fragment_done(fragment);
		return;
	}
	atomic_store_explicit(&fragment->done, true, memory_order_release);
	atomic_store_explicit(&batch->left, 1, memory_order_relaxed);
}

static void fragment_end_cancelled(struct wh_fragment *fragment)
{
	wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
	wh_fragment_done(fragment);
}

/* Give the fragment to transport `to`, so that a cancel reaches it there from now on. False: it has
 * been cancelled already. */
static bool fragment_change_transport(struct wh_fragment *fragment, uint32_t to)
{
	struct wh_batch *batch = fragment->batch;
	bool cancelled;

	pthread_mutex_lock(&batch->route_lock);
	cancelled = atomic_load(&fragment->cancelled);
	if (!cancelled) {
		wh_fragment_start(fragment, &fragment->cursor);
		atomic_store(&fragment->left, fragment->bytes);
		fragment->owner = NULL;
		fragment->rerouted = true;
		memset(fragment->state, 0, sizeof(fragment->state));
		atomic_store(&fragment->transport, to);
	}
	pthread_mutex_unlock(&batch->route_lock);
	return !cancelled;
}

void wh_fragment_reroute(struct wh_fragment *fragment, int error, const char *why)
{
	uint32_t before = atomic_load(&fragment->transport), to;
	struct wh_batch *batch = fragment->batch;
	struct wh_peer *peer = batch->peer;
	char text[WH_REFUSAL];

	if (fragment->whole) {
		fragment->ended(fragment, error, why);
		return;
	}
	snprintf(text, sizeof(text), "%s", why);
	wh_count_flush(batch);
	/* Tested without route_lock: if this thread is cancelling, it holds the lock. */
	if (atomic_load(&fragment->cancelled)) {
		fragment_end_cancelled(fragment);
		return;
	}
	pthread_mutex_lock(&batch->text_lock);
	batch->share[before].bytes -= fragment->bytes;
	batch->share[before].transfers -= fragment->transfers;
	memcpy(batch->share[before].refused, text, WH_REFUSAL);
	batch->share[before].inapplicable = false;
	batch->planned = 0; /* under the lock: two fragments may be rerouted at once */
	pthread_mutex_unlock(&batch->text_lock);
	to = wh_plan_again(fragment);
	if (to == WH_TRANSPORT_COUNT) {
		wh_fragment_fail(fragment, UINT64_MAX, error, "%s: %s", wh_transport(before)->name,
				 why);
		wh_fragment_done(fragment);
		return;
	}
	wh_count_add(&wh_route_statistics(&peer->statistics, before, fragment->op)->attempts, 1);
	wh_count_add(&peer->statistics.reroutes[before], 1);
	pthread_mutex_lock(&batch->text_lock);
	batch->share[to].bytes += fragment->bytes;
	batch->share[to].transfers += fragment->transfers;
	pthread_mutex_unlock(&batch->text_lock);
	wh_warning_networked(batch);
	if (fragment_change_transport(fragment, to))
		wh_transport(to)->submit(peer, peer->transport[to], fragment);
	else
		fragment_end_cancelled(fragment);
}

/* Count a submission that has ended. The two frequent cases are inline. */
static inline void batch_count_submission(struct wh_batch *batch)
{
	uint32_t watch = atomic_load_explicit(&batch->watch, memory_order_relaxed);

	if (__builtin_expect(watch == WH_STATISTICS_LISTED, 1)) {
		/* Submissions of a batch follow each other: this is the only writer. */
		atomic_store_explicit(&batch->submissions, wh_count_get(&batch->submissions) + 1,
				      memory_order_relaxed);
	} else if (!watch) {
		const struct wh_fragment *fragment = batch->fragments;
		struct wh_route_statistics *route = wh_route_statistics(
			&batch->peer->statistics, fragment->transport, fragment->op);

		wh_count_add(&route->bytes, fragment->bytes);
		wh_count_add(&route->transfers, fragment->transfers);
		wh_count_add(&route->alone, 1);
		atomic_store_explicit(&batch->watch, WH_STATISTICS_AGAIN, memory_order_relaxed);
	} else {
		wh_count_finish(batch);
	}
}

/* Was the peer lost since the batch was submitted, or just before? */
static bool batch_lost_peer(const struct wh_batch *batch)
{
	uint32_t losses = atomic_load(&batch->peer->losses);

	return losses % 2 || losses != batch->losses;
}

void wh_batch_finish(struct wh_batch *batch)
{
	struct wh_engine *engine = batch->peer->engine;
	int status = atomic_load(&batch->status);
	bool waited;

	atomic_store_explicit(&batch->finishing, true, memory_order_relaxed);
	batch_count_submission(batch);
	if (__builtin_expect(status, 0))
		atomic_store(&batch->may_arrive, batch_lost_peer(batch));
	if (batch->callback)
		atomic_fetch_add(&batch->delivering, 1);
	batch_release_regions(batch);
	waited = atomic_exchange(&batch->state, WH_BATCH_DONE) == WH_BATCH_WAITED;
	wh_stream_dependency_end(batch);
	if (batch->queue) {
		batch->queued.status = status;
		wh_queue_put(batch->queue, &batch->queued);
	}
	if (batch->callback)
		wh_callbacks_put(&engine->callbacks, batch, status);
	/* From here the batch may be freed. Wake the waiter last, since it may take this thread's
	 * CPU at once. FUTEX_WAKE uses the address only, and a spurious wake is harmless. */
	atomic_store_explicit(&batch->finishing, false, memory_order_release);
	if (waited && engine->turns)
		wh_turns_wake(engine->turns);
	else if (waited)
		wh_futex_wake(&batch->state);
}

/* ---- polling and waiting -------------------------------------------------------------------- */

static void batch_progress_fragments(struct wh_batch *batch, int64_t deadline)
{
	struct wh_peer *peer = batch->peer;
	unsigned progressed = 0;

	for (size_t i = 0; i < batch->fragment_count && wh_batch_running(batch); i++) {
		/* By name: gcc takes `fragments[i]` of an atomic pointer as a plain one. */
		struct wh_fragment *fragment =
			atomic_load_explicit(&batch->fragments, memory_order_acquire) + i;
		uint32_t id = atomic_load_explicit(&fragment->transport, memory_order_relaxed);

		if (progressed & (1u << id) ||
		    atomic_load_explicit(&fragment->done, memory_order_acquire) ||
		    !(wh_transport(id)->capabilities & WH_CAN_PROGRESS))
			continue;
		progressed |= 1u << id;
		wh_transport(id)->progress(peer, peer->transport[id], batch, deadline);
	}
}

/* Let the transports work on the caller's thread. Their errors go to the batch, not to the caller's
 * error text. */
static void batch_progress(struct wh_batch *batch, int64_t deadline)
{
	if (atomic_load_explicit(&batch->resolving, memory_order_acquire))
		return;
	wh_fail_begin();
	if (atomic_load_explicit(&batch->waiting_for_stream, memory_order_acquire))
		wh_gpus_progress(batch->peer->engine->gpus, wh_batch_is_running, batch, deadline);
	else
		batch_progress_fragments(batch, deadline);
	wh_fail_end(0);
}

void wh_batch_count_unseen(const struct wh_batch *batch, int more)
{
	atomic_fetch_add_explicit(&batch->peer->unseen, (uint32_t)more, memory_order_relaxed);
}

bool wh_batch_is_waited(const struct wh_batch *batch)
{
	return atomic_load_explicit(&batch->state, memory_order_relaxed) == WH_BATCH_WAITED;
}

uint32_t wh_batch_unseen(const struct wh_batch *batch)
{
	return atomic_load_explicit(&batch->peer->unseen, memory_order_relaxed);
}

/* In an engine without threads: give a turn, unless the batch has ended since `seen`. */
static void batch_turn(struct wh_batch *batch, int64_t deadline)
{
	struct wh_engine *engine = batch->peer->engine;
	uint64_t seen = wh_turns_seen(engine->turns);
	uint32_t running = WH_BATCH_RUNNING;

	/* The thread that finishes it wakes those that wait. */
	if (atomic_compare_exchange_strong(&batch->state, &running, WH_BATCH_WAITED) ||
	    running == WH_BATCH_WAITED)
		wh_engine_turn(engine, seen, deadline);
}

int wh_batch_status(struct wh_batch *batch)
{
	int status = wh_batch_guard(batch, "wh_batch_status");

	if (status)
		return status;
	if (atomic_load_explicit(&batch->state, memory_order_acquire) != WH_BATCH_DONE)
		return -EINPROGRESS;
	wh_batch_is_seen(batch);
	status = atomic_load(&batch->status);
	if (!status)
		return 0;
	/* Another thread may submit it again, which empties the text. */
	pthread_mutex_lock(&batch->text_lock);
	wh_fail(-status, "%s", batch->text);
	pthread_mutex_unlock(&batch->text_lock);
	return status;
}

int wh_batch_test(struct wh_batch *batch)
{
	int error = wh_batch_guard(batch, "wh_batch_test");

	if (error)
		return error;
	if (wh_batch_running(batch) && !wh_engine_inside(batch->peer->engine)) {
		batch_progress(batch, 0);
		if (batch->peer->engine->turns)
			batch_turn(batch, 0);
	}
	if (wh_batch_running(batch))
		return -EAGAIN;
	if (atomic_load(&batch->state) == WH_BATCH_NEW)
		return wh_fail(EINVAL, "wh_batch_test: the batch was never submitted");
	wh_batch_is_seen(batch);
	return 0;
}

/* Make progress, sleep or spin until the batch is done. False: the deadline has passed. */
static bool batch_wait_done(struct wh_batch *batch, int64_t deadline)
{
	bool spin = batch->peer->engine->config.number[WH_SETTING_SPIN];
	bool threads = !batch->peer->engine->turns;

	while (wh_batch_running(batch)) {
		/* Without threads nobody serves the rest of the engine while a transport sleeps. */
		batch_progress(batch, threads ? deadline : 0);
		if (!wh_batch_running(batch))
			break;
		/* Before looking at the time: nobody else gives the turn that may end it, and this
		 * thread may not have run for longer than the deadline. */
		if (!threads)
			batch_turn(batch, spin ? 0 : deadline);
		if (deadline != INT64_MAX && wh_batch_running(batch) && wh_now() >= deadline)
			return false;
		if (!spin && threads)
			wh_wait_for_batch(batch, deadline);
	}
	return true;
}

int wh_batch_wait_for(struct wh_batch *batch, int64_t timeout)
{
	int error = wh_batch_guard(batch, "wh_batch_wait_for");

	if (error)
		return error;
	if (timeout < 0)
		return wh_fail(
			EINVAL,
			"wh_batch_wait_for: timeout is negative; WH_FOREVER waits without limit");
	if (wh_engine_inside(batch->peer->engine))
		return wh_fail(EDEADLK, "wh_batch_wait_for: a callback must not wait");
	if (atomic_load(&batch->state) == WH_BATCH_NEW)
		return wh_fail(EINVAL, "wh_batch_wait_for: the batch was never submitted");
	if (atomic_load_explicit(&batch->state, memory_order_acquire) != WH_BATCH_DONE &&
	    !batch_wait_done(batch, wh_deadline(timeout)))
		return -EAGAIN;
	wh_batch_is_seen(batch);
	return 0;
}

static void fragment_cancel(struct wh_fragment *fragment)
{
	struct wh_batch *batch = fragment->batch;
	struct wh_peer *peer = batch->peer;
	uint32_t id;

	/* Before route_lock, so that a reroute that holds it sees the flag. */
	atomic_store(&fragment->cancelled, true);
	pthread_mutex_lock(&batch->route_lock);
	id = atomic_load(&fragment->transport);
	if (!atomic_load(&fragment->done))
		wh_transport(id)->cancel(peer, peer->transport[id], fragment);
	pthread_mutex_unlock(&batch->route_lock);
}

/* The batch has ended, or (`error`) the peer does not answer. May bytes of it still arrive? Success
 * means that all have, and a failure that both ends have given it up, unless the peer was lost:
 * then nobody could ask it. */
static int batch_end_cancel(struct wh_batch *batch, int error)
{
	const char *name = batch->peer->welcome.name;

	wh_batch_settle(batch);
	if (error)
		return wh_fail(ETIMEDOUT,
			       "wh_batch_cancel: %s does not answer; bytes in flight may still "
			       "reach it",
			       name);
	if (atomic_load(&batch->status) && atomic_load(&batch->may_arrive))
		return wh_fail(ETIMEDOUT,
			       "wh_batch_cancel: %s was lost while the batch ran; bytes in flight "
			       "may still reach it",
			       name);
	return 0;
}

static void batch_cancel_fragments(struct wh_batch *batch)
{
	/* Where a callback submits it again meanwhile, there is nothing of the old run to cancel.
	 */
	if (!wh_plan_hold(batch))
		return;
	for (size_t i = 0; i < batch->fragment_count && wh_batch_running(batch); i++)
		fragment_cancel(&batch->fragments[i]);
	wh_plan_release(batch);
}

int wh_batch_cancel(struct wh_batch *batch)
{
	int error = wh_batch_guard(batch, "wh_batch_cancel");
	struct wh_peer *peer;
	int64_t timeout;

	if (error)
		return error;
	peer = batch->peer;
	if (wh_engine_inside(peer->engine))
		return wh_fail(EDEADLK, "wh_batch_cancel: a callback must not cancel");
	if (atomic_load(&batch->state) == WH_BATCH_NEW)
		return wh_fail(EINVAL, "wh_batch_cancel: the batch was never submitted");
	atomic_store(&batch->cancelled, true);
	if (atomic_load_explicit(&batch->resolving, memory_order_acquire))
		wh_resolution_cancel(batch);
	if (wh_stream_dependency_cancel(batch))
		wh_batch_start(batch, -ECANCELED, "cancelled before it was started");
	batch_cancel_fragments(batch);
	if (wh_notify_cancel(batch)) {
		wh_batch_fail(batch, -ECANCELED, "cancelled before its notification was sent");
		wh_batch_finish(batch);
	}
	if (batch_wait_done(batch, wh_deadline(CANCEL_PATIENCE)))
		return batch_end_cancel(batch, 0);
	timeout = peer->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (peer->opened[id])
			error = wh_transport(id)->abort(peer, peer->transport[id], batch,
							wh_deadline(timeout)) ?
					-ETIMEDOUT :
					error;
	if (!batch_wait_done(batch, wh_deadline(timeout))) {
		error = -ETIMEDOUT;
		/* Silence is noticed later than this, by up to the time between two pings, and
		 * never if the peer still answers those. */
		wh_peer_cut(peer);
		/* It ends at once, unless a file system of this machine does not answer. */
		batch_wait_done(batch, wh_deadline(timeout));
	}
	return batch_end_cancel(batch, error);
}
