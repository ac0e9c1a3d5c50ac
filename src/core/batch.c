/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: filling, submitting, completing, waiting, cancelling. */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/blocks.h"
#include "core/counters.h"
#include "core/engine.h"
#include "core/fragment.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/queue.h"
#include "core/region.h"
#include "core/stream.h"
#include "gpu/stream.h"
#include "memory/region-table.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/futex.h"
#include "util/list.h"
#include "util/loop.h"
#include "util/options.h"

/* How long a cancelled batch's work in flight may take to end by itself before it is cut off. */
#define CANCEL_PATIENCE (100 * WH_MS)

static int guard(const struct wh_batch *batch, const char *call)
{
	if (!batch)
		return wh_fail(EINVAL, "%s: batch is NULL", call);
	return wh_engine_guard(batch->peer->engine, call);
}

static int guard_idle(struct wh_batch *batch, const char *call)
{
	int error = guard(batch, call);

	if (!error && wh_batch_running(batch))
		error = wh_fail(EBUSY, "%s: the batch is running; wait for it or cancel it first",
				call);
	return error;
}

/* The thread that finishes a batch lets go of it a moment after others see it done. */
static void settle(struct wh_batch *batch)
{
	while (atomic_load_explicit(&batch->finishing, memory_order_acquire))
		sched_yield();
}

bool wh_batch_is_running(const void *batch)
{
	return wh_batch_running(batch);
}

/* ---- making one ---------------------------------------------------------------------------- */

int wh_batch_new(struct wh_peer *peer, const struct wh_batch_options *given, struct wh_batch **out)
{
	struct wh_batch_options options;
	struct wh_batch *batch;
	const char *require;
	uint64_t made;
	int error;

	if (!peer || !out)
		return wh_fail(EINVAL, "wh_batch_new: %s is NULL", peer ? "out" : "peer");
	error = wh_engine_guard(peer->engine, "wh_batch_new");
	if (error)
		return error;
	error = wh_options_copy(&options, sizeof(options), given, sizeof(size_t), "wh_batch_new");
	if (error)
		return error;
	if (options.priority > WH_PRIORITY_LATENCY || options.reserved)
		return wh_fail(EINVAL, "wh_batch_new: options.%s is %u",
			       options.reserved ? "reserved" : "priority",
			       options.reserved ? options.reserved : options.priority);
	require = options.require ? options.require : peer->engine->config.text[WH_SETTING_REQUIRE];
	if (*require && wh_transport_by_name(require) == WH_TRANSPORT_COUNT)
		return wh_fail(
			EINVAL,
			"wh_batch_new: options.require is \"%s\"; known are " WH_TRANSPORT_NAMES,
			require);
	if (options.queue && wh_queue_engine(options.queue) != peer->engine)
		return wh_fail(EINVAL, "wh_batch_new: options.queue belongs to another engine");
	batch = calloc(1, sizeof(*batch));
	if (!batch)
		return wh_fail(ENOMEM, "wh_batch_new: no memory");
	batch->peer = peer;
	batch->queue = options.queue;
	batch->callback = options.callback;
	batch->callback_arg = options.callback_arg;
	batch->user = options.user;
	batch->priority = options.priority;
	batch->require = *require ? wh_transport_by_name(require) : WH_TRANSPORT_COUNT;
	pthread_mutex_init(&batch->text_lock, NULL);
	pthread_mutex_init(&batch->route_lock, NULL);
	if (batch->queue)
		wh_queue_hold(batch->queue, 1);
	made = atomic_fetch_add(&peer->batches, WH_BATCH_MADE);
	if (!(made >> 57)) /* one in WH_TIMED_EVERY */
		batch->timed_in = 1;
	*out = batch;
	return 0;
}

static void empty(struct wh_batch *batch)
{
	wh_batch_flush_counts(batch);
	for (size_t i = 0; i < batch->blocks_count; i++)
		wh_blocks_free(batch->blocks[i]);
	batch->blocks_count = batch->item_count = batch->fragment_count = 0;
	batch->notification_length = 0;
	batch->planned = 0;
}

int wh_batch_clear(struct wh_batch *batch)
{
	int error = guard_idle(batch, "wh_batch_clear");

	if (error)
		return error;
	settle(batch);
	empty(batch);
	return 0;
}

int wh_batch_free(struct wh_batch *batch)
{
	int error;

	if (!batch)
		return 0;
	error = guard_idle(batch, "wh_batch_free");
	if (error)
		return error;
	if (batch->callback && wh_engine_inside(batch->peer->engine))
		return wh_fail(EDEADLK, "wh_batch_free: a callback must not free batches");
	settle(batch);
	/* Its callback is due or runs. */
	while (atomic_load_explicit(&batch->delivering, memory_order_acquire))
		sched_yield();
	if (batch->queue) {
		wh_queue_forget(batch->queue, batch);
		wh_queue_hold(batch->queue, -1);
	}
	empty(batch);
	atomic_fetch_sub(&batch->peer->batches, 1);
	wh_stream_dependency_free(batch);
	pthread_mutex_destroy(&batch->route_lock);
	pthread_mutex_destroy(&batch->text_lock);
	free(batch->items);
	free(batch->blocks);
	free(batch->fragments);
	free(batch->note);
	free(batch);
	return 0;
}

/* ---- filling it ---------------------------------------------------------------------------- */

/* Is [offset, offset+length) of the peer's region there and granted? Names the trouble. */
int wh_batch_check_remote(struct wh_peer *peer, const char *what, uint64_t index, uint32_t op,
			  uint64_t id, uint64_t offset, uint64_t length)
{
	struct wh_region_table *table = peer->self ? &peer->engine->regions : &peer->regions;
	struct wh_region_entry *entry = wh_region_entry_enter(table, id);
	int error = 0;

	if (!entry || (entry->access & WH_ACCESS_NONE)) {
		/* A peer that leaves takes its regions back first: say that it has left. */
		error = wh_peer_check(peer);
		if (!error)
			error = wh_fail(ENOENT, "%s %llu: %s publishes no region %#llx", what,
					(unsigned long long)index, peer->welcome.name,
					(unsigned long long)id);
	} else if (!(entry->access & (op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE))) {
		error = wh_fail(EACCES, "%s %llu: region %#llx of %s may not be %s", what,
				(unsigned long long)index, (unsigned long long)id,
				peer->welcome.name, op == WH_READ ? "read" : "written");
	} else if (!wh_region_entry_holds(entry, offset, length)) {
		error = wh_fail(
			ERANGE,
			"%s %llu: remote offset %llu + length %llu is outside region %#llx of %llu "
			"bytes",
			what, (unsigned long long)index, (unsigned long long)offset,
			(unsigned long long)length, (unsigned long long)id,
			(unsigned long long)entry->length);
	}
	if (entry)
		wh_region_entry_leave(entry);
	return error;
}

int wh_batch_check_local(struct wh_peer *peer, const char *what, uint64_t index,
			 const struct wh_region *region, uint64_t offset, uint64_t length)
{
	if (!region || region->engine != peer->engine)
		return wh_fail(EINVAL, "%s %llu: local is %s", what, (unsigned long long)index,
			       region ? "a region of another engine" : "NULL");
	if (!atomic_load(&region->entry.id))
		return wh_fail(EINVAL, "%s %llu: local has been unregistered", what,
			       (unsigned long long)index);
	if (!wh_region_entry_holds(&region->entry, offset, length))
		return wh_fail(ERANGE,
			       "%s %llu: local offset %llu + length %llu is outside the region of "
			       "%llu bytes",
			       what, (unsigned long long)index, (unsigned long long)offset,
			       (unsigned long long)length,
			       (unsigned long long)region->entry.length);
	return 0;
}

int wh_batch_check_overlap(struct wh_peer *peer, const char *what, uint64_t index,
			   const struct wh_region *region, uint64_t local_offset, uint64_t remote,
			   uint64_t remote_offset, uint64_t length)
{
	struct wh_region_entry *entry;
	uint64_t distance = 0;

	if (!peer->self || wh_kind_on_host(region->entry.kind))
		return 0;
	entry = wh_region_entry_enter(&peer->engine->regions, remote);
	if (entry) {
		distance = entry->address + remote_offset - (region->entry.address + local_offset);
		wh_region_entry_leave(entry);
	}
	/* The same bytes on both sides stay what they are. */
	if (!distance || (distance >= length && -distance >= length))
		return 0;
	return wh_fail(EINVAL,
		       "%s %llu: source and target overlap: %llu bytes of a GPU's memory, of which "
		       "each is "
		       "%llu bytes from its target",
		       what, (unsigned long long)index, (unsigned long long)length,
		       (unsigned long long)(distance < length ? distance : -distance));
}

static int check_transfer(struct wh_peer *peer, const struct wh_transfer *transfer, size_t index)
{
	int error;

	if (transfer->op != WH_READ && transfer->op != WH_WRITE)
		return wh_fail(EINVAL, "transfer %zu: op is %u, neither WH_READ nor WH_WRITE",
			       index, transfer->op);
	if (transfer->reserved)
		return wh_fail(EINVAL, "transfer %zu: reserved is not 0", index);
	if (!transfer->length)
		return wh_fail(EINVAL, "transfer %zu: length is 0", index);
	error = wh_batch_check_local(peer, "transfer", index, transfer->local,
				     transfer->local_offset, transfer->length);
	if (error)
		return error;
	error = wh_batch_check_remote(peer, "transfer", index, transfer->op, transfer->remote,
				      transfer->remote_offset, transfer->length);
	if (error)
		return error;
	return wh_batch_check_overlap(peer, "transfer", index, transfer->local,
				      transfer->local_offset, transfer->remote,
				      transfer->remote_offset, transfer->length);
}

/* Room for `more` elements behind `count` of them. */
static int reserve(void **array, size_t *room, size_t count, size_t more, size_t element)
{
	size_t wanted = *room ? *room : 8;
	void *grown;

	if (more > SIZE_MAX / element / 4 - count)
		return wh_fail(ENOMEM, "no memory for %zu elements", more);
	if (count + more <= *room)
		return 0;
	while (wanted < count + more)
		wanted *= 2;
	grown = realloc(*array, wanted * element);
	if (!grown)
		return wh_fail(ENOMEM, "no memory for %zu elements", wanted);
	*array = grown;
	*room = wanted;
	return 0;
}

int wh_batch_add(struct wh_batch *batch, const struct wh_transfer *transfers, size_t count)
{
	int error = guard_idle(batch, "wh_batch_add");
	struct wh_item *item;

	if (error)
		return error;
	if (!transfers || !count)
		return wh_fail(EINVAL, "wh_batch_add: %s",
			       transfers ? "count is 0" : "transfers is NULL");
	settle(batch);
	error = reserve((void **)&batch->items, &batch->item_room, batch->item_count, count,
			sizeof(*batch->items));
	if (error)
		return error;
	item = batch->items + batch->item_count;
	for (size_t i = 0; i < count; i++, item++) {
		const struct wh_transfer *transfer = &transfers[i];

		error = check_transfer(batch->peer, transfer, i);
		if (error)
			return error;
		item->local = transfer->local;
		item->local_id =
			atomic_load_explicit(&transfer->local->entry.id, memory_order_relaxed);
		item->address =
			(char *)(uintptr_t)transfer->local->entry.address + transfer->local_offset;
		item->remote = transfer->remote;
		item->offset = transfer->remote_offset;
		item->length = transfer->length;
		item->op = transfer->op;
		atomic_init(&item->status, 0);
	}
	batch->item_count += count;
	batch->planned = 0;
	return 0;
}

int wh_batch_add_blocks(struct wh_batch *batch, struct wh_blocks *blocks)
{
	int error = guard_idle(batch, "wh_batch_add_blocks");

	if (error)
		return error;
	if (!blocks || blocks->peer != batch->peer)
		return wh_fail(EINVAL, "wh_batch_add_blocks: blocks is %s",
			       blocks ? "prepared for another peer" : "NULL");
	settle(batch);
	error = reserve((void **)&batch->blocks, &batch->blocks_room, batch->blocks_count, 1,
			sizeof(*batch->blocks));
	if (error)
		return error;
	atomic_fetch_add(&blocks->references, 1);
	batch->blocks[batch->blocks_count++] = blocks;
	batch->planned = 0;
	return 0;
}

int wh_batch_notify(struct wh_batch *batch, const void *data, size_t length)
{
	int error = guard_idle(batch, "wh_batch_notify");

	if (error)
		return error;
	if (!data || !length || length > WH_NOTIFICATION_MAX)
		return wh_fail(EINVAL, "wh_batch_notify: %s (%zu bytes; 1 to %d are allowed)",
			       data ? "wrong length" : "data is NULL", length, WH_NOTIFICATION_MAX);
	settle(batch);
	if (!batch->note) {
		batch->note = malloc(WH_NOTIFICATION_MAX);
		if (!batch->note)
			return wh_fail(ENOMEM, "wh_batch_notify: no memory");
		atomic_fetch_or(&batch->watch, WH_STATISTICS_FRAGMENTS);
	}
	memcpy(batch->note, data, length);
	batch->notification_length = length;
	return 0;
}

/* ---- holding the local regions ----------------------------------------------------------------
 */

static void release_items(const struct wh_batch *batch, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!i || batch->items[i].local != batch->items[i - 1].local)
			atomic_fetch_sub(&batch->items[i].local->batches, 1);
}

static void release_bases(const struct wh_blocks *blocks, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		atomic_fetch_sub(&blocks->bases[i].local->batches, 1);
}

static void release_regions(const struct wh_batch *batch)
{
	release_items(batch, batch->item_count);
	for (size_t i = 0; i < batch->blocks_count; i++)
		release_bases(batch->blocks[i], batch->blocks[i]->base_count);
}

/* From now on it cannot be unregistered: the other side closes the id first and counts then. */
static bool hold(struct wh_region *region, uint64_t id)
{
	atomic_fetch_add(&region->batches, 1);
	if (atomic_load(&region->entry.id) == id)
		return true;
	atomic_fetch_sub(&region->batches, 1);
	return false;
}

static int hold_regions(const struct wh_batch *batch)
{
	size_t b = 0;

	for (size_t i = 0; i < batch->item_count; i++) {
		const struct wh_item *item = &batch->items[i];

		if (i && item->local == batch->items[i - 1].local &&
		    item->local_id == batch->items[i - 1].local_id)
			continue;
		if ((i && item->local == batch->items[i - 1].local) ||
		    !hold(item->local, item->local_id)) {
			release_items(batch, i);
			return wh_fail(ESTALE,
				       "transfer %zu: its local region has been unregistered", i);
		}
	}
	for (; b < batch->blocks_count; b++) {
		const struct wh_blocks *blocks = batch->blocks[b];

		for (uint64_t i = 0; i < blocks->base_count; i++) {
			if (hold(blocks->bases[i].local, blocks->bases[i].local_id))
				continue;
			release_bases(blocks, i);
			goto err_blocks;
		}
	}
	return 0;

err_blocks:
	while (b--)
		release_bases(batch->blocks[b], batch->blocks[b]->base_count);
	release_items(batch, batch->item_count);
	return wh_fail(ESTALE, "blocks: the local region of a base has been unregistered");
}

/* ---- submitting ------------------------------------------------------------------------------ */

/* The last piece has ended. */
static void fragments_ended(struct wh_batch *batch)
{
	if (batch->notification_length && !atomic_load(&batch->status)) {
		if (!atomic_load(&batch->cancelled)) {
			wh_notify_send(batch);
			return;
		}
		wh_batch_fail(batch, -ECANCELED, "cancelled before its notification was sent");
	}
	if (batch->notification_length)
		wh_notify_drop(batch);
	wh_batch_finish(batch);
}

static void let_go(struct wh_batch *batch)
{
	if (atomic_fetch_sub_explicit(&batch->left, 1, memory_order_acq_rel) == 1)
		fragments_ended(batch);
}

static void start(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	for (size_t i = 0; i < batch->fragment_count; i++) {
		struct wh_fragment *fragment = &batch->fragments[i];

		wh_transport(fragment->transport)
			->submit(peer, peer->transport[fragment->transport], fragment);
	}
	let_go(batch);
}

void wh_batch_start(struct wh_batch *batch, int error, const char *text)
{
	atomic_store_explicit(&batch->waiting_for_stream, false, memory_order_release);
	if (!error) {
		start(batch);
		return;
	}
	for (size_t i = 0; i < batch->fragment_count; i++) {
		wh_fragment_fail(&batch->fragments[i], UINT64_MAX, error, "%s", text);
		wh_fragment_done(&batch->fragments[i]);
	}
	if (!batch->fragment_count)
		wh_batch_fail(batch, error, text);
	let_go(batch);
}

/* What its last round has told of the transport rdma. */
static void forget_rails(struct wh_batch *batch)
{
	uint32_t used = atomic_load_explicit(&batch->rails_used, memory_order_relaxed);

	if (!used)
		return;
	atomic_store_explicit(&batch->rails_used, 0, memory_order_relaxed);
	atomic_store_explicit(&batch->rails_broken, 0, memory_order_relaxed);
	for (used &= ~WH_RAILS_TRIED; used; used &= used - 1)
		atomic_store_explicit(&batch->railed[__builtin_ctz(used)], 0, memory_order_relaxed);
}

/* Everything but starting it. */
static int prepare(struct wh_batch *batch)
{
	int error = guard_idle(batch, "wh_batch_submit");
	struct wh_peer *peer;

	if (error)
		return error;
	peer = batch->peer;
	if (!batch->item_count && !batch->blocks_count && !batch->notification_length)
		return wh_fail(EINVAL, "wh_batch_submit: the batch is empty; add transfers first");
	error = wh_peer_check(peer);
	if (error)
		return error;
	settle(batch);
	if (batch->queue)
		wh_queue_forget(batch->queue, batch);
	if (batch->planned != atomic_load(&peer->plan_version)) {
		wh_fail_begin();
		error = wh_fail_end(wh_plan(batch));
		if (error)
			return error;
	}
	error = hold_regions(batch);
	if (error)
		return error;
	if (atomic_load_explicit(&batch->status, memory_order_relaxed)) {
		atomic_store(&batch->status, 0);
		batch->text[0] = 0;
		for (size_t i = 0; i < batch->item_count; i++)
			atomic_store_explicit(&batch->items[i].status, 0, memory_order_relaxed);
	}
	for (size_t i = 0; i < batch->fragment_count; i++) {
		struct wh_fragment *fragment = &batch->fragments[i];

		wh_fragment_start(fragment, &fragment->cursor);
		atomic_store_explicit(&fragment->left, fragment->bytes, memory_order_relaxed);
		atomic_store_explicit(&fragment->cancelled, false, memory_order_relaxed);
		atomic_store_explicit(&fragment->done, false, memory_order_relaxed);
		fragment->owner = NULL;
	}
	forget_rails(batch);
	atomic_store_explicit(&batch->cancelled, false, memory_order_relaxed);
	atomic_store_explicit(&batch->notify_path, WH_NOTIFY_UNSENT, memory_order_relaxed);
	atomic_store_explicit(&batch->left, (uint32_t)batch->fragment_count + 1,
			      memory_order_relaxed);
	if (!--batch->timed_in)
		wh_count_begin(batch);
	return 0;
}

int wh_batch_submit(struct wh_batch *batch)
{
	int error = prepare(batch);

	if (error)
		return error;
	atomic_store_explicit(&batch->state, WH_BATCH_RUNNING, memory_order_release);
	start(batch);
	return 0;
}

int wh_batch_submit_when(struct wh_batch *batch, struct wh_event_wait *wait)
{
	int error = prepare(batch);

	if (error)
		return error;
	/* How long the stream takes is not ours to tell. */
	atomic_fetch_and(&batch->watch, ~(uint32_t)WH_STATISTICS_TIMED);
	atomic_store_explicit(&batch->waiting_for_stream, true, memory_order_relaxed);
	atomic_store_explicit(&batch->state, WH_BATCH_RUNNING, memory_order_release);
	error = wh_gpus_wait_event(batch->peer->engine->gpus, wait);
	if (error)
		wh_batch_start(batch, error, wh_error_text());
	return 0;
}

/* ---- completing ------------------------------------------------------------------------------ */

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

static void fail_item(struct wh_item *item, int error)
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
			index = fragment->batch->items[index].local_id;
		fragment = fragment->whole;
	}
	batch = fragment->batch;
	atomic_compare_exchange_strong(&fragment->failed, &none, error);
	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	if (!fragment->blocks && index != UINT64_MAX)
		fail_item(&batch->items[index], error);
	for (uint64_t i = 0; !fragment->blocks && index == UINT64_MAX && i < fragment->count; i++)
		fail_item(&batch->items[fragment->first + i], error);
	wh_batch_fail(batch, error, text);
}

void wh_fragment_done(struct wh_fragment *fragment)
{
	if (fragment->whole) {
		fragment->ended(fragment, 0, "");
		return;
	}
	atomic_store_explicit(&fragment->done, true, memory_order_release);
	let_go(fragment->batch);
}

static void give_up(struct wh_fragment *fragment)
{
	wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
	wh_fragment_done(fragment);
}

/* Hand it to another transport, of which a cancel knows from here on. False: it was cancelled
 * before. */
static bool change_over(struct wh_fragment *fragment, uint32_t to)
{
	struct wh_batch *batch = fragment->batch;
	bool cancelled;

	pthread_mutex_lock(&batch->route_lock);
	cancelled = atomic_load(&fragment->cancelled);
	if (!cancelled) {
		wh_fragment_start(fragment, &fragment->cursor);
		atomic_store(&fragment->left, fragment->bytes);
		fragment->owner = NULL;
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
	/* maybe by this thread, which holds the lock then */
	if (atomic_load(&fragment->cancelled)) {
		give_up(fragment);
		return;
	}
	pthread_mutex_lock(&batch->text_lock);
	batch->share[before].bytes -= fragment->bytes;
	batch->share[before].transfers -= fragment->transfers;
	memcpy(batch->share[before].refused, text, WH_REFUSAL);
	batch->share[before].inapplicable = false;
	batch->planned = 0; /* two parts may be given up at once */
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
	if (change_over(fragment, to))
		wh_transport(to)->submit(peer, peer->transport[to], fragment);
	else
		give_up(fragment);
}

/* A round of it ends. The two ways that cost little are here, so that they cost little. */
static inline void count_submission(struct wh_batch *batch)
{
	uint32_t watch = atomic_load_explicit(&batch->watch, memory_order_relaxed);

	if (__builtin_expect(watch == WH_STATISTICS_LISTED, 1)) {
		/* Rounds follow each other: nobody else adds. */
		atomic_store_explicit(&batch->submissions, wh_count_get(&batch->submissions) + 1,
				      memory_order_relaxed);
	} else if (!watch) {
		const struct wh_fragment *fragment = batch->fragments;
		struct wh_route_statistics *way = wh_route_statistics(
			&batch->peer->statistics, fragment->transport, fragment->op);

		wh_count_add(&way->bytes, fragment->bytes);
		wh_count_add(&way->transfers, fragment->transfers);
		wh_count_add(&way->alone, 1);
		atomic_store_explicit(&batch->watch, WH_STATISTICS_AGAIN, memory_order_relaxed);
	} else {
		wh_count_finish(batch);
	}
}

void wh_batch_finish(struct wh_batch *batch)
{
	struct wh_engine *engine = batch->peer->engine;
	bool waited;

	atomic_store_explicit(&batch->finishing, true, memory_order_relaxed);
	count_submission(batch);
	if (batch->callback)
		atomic_fetch_add(&batch->delivering, 1);
	release_regions(batch);
	waited = atomic_exchange(&batch->state, WH_BATCH_DONE) == WH_BATCH_WAITED;
	wh_stream_dependency_end(batch);
	if (batch->queue)
		wh_queue_put(batch->queue, batch);
	if (batch->callback) {
		pthread_mutex_lock(&engine->callback_lock);
		wh_list_append(&engine->callbacks, &batch->callback_link);
		pthread_mutex_unlock(&engine->callback_lock);
		wh_loop_post(&engine->loops[0], &engine->callback_task);
	}
	/* From here the batch may be gone. The waiter is woken when nothing keeps it any more, for
	 * it may get this thread's CPU at once; only the address of what may be gone is used, and
	 * whoever waits there by then looks again. */
	atomic_store_explicit(&batch->finishing, false, memory_order_release);
	if (waited)
		wh_futex_wake(&batch->state);
}

void wh_batch_call_back(struct wh_batch *batch)
{
	settle(batch);
	batch->callback(batch, atomic_load(&batch->status), batch->callback_arg);
	atomic_fetch_sub(&batch->delivering, 1);
}

/* ---- polling and waiting ----------------------------------------------------------------------
 */

static void progress_fragments(struct wh_batch *batch, int64_t deadline)
{
	struct wh_peer *peer = batch->peer;
	unsigned helped = 0;

	for (size_t i = 0; i < batch->fragment_count && wh_batch_running(batch); i++) {
		struct wh_fragment *fragment = &batch->fragments[i];
		uint32_t id = fragment->transport;

		if (helped & (1u << id) ||
		    atomic_load_explicit(&fragment->done, memory_order_acquire) ||
		    !(wh_transport(id)->capabilities & WH_CAN_PROGRESS))
			continue;
		helped |= 1u << id;
		wh_transport(id)->progress(peer, peer->transport[id], batch, deadline);
	}
}

/* Let the transports use the caller's time. What fails there belongs to the batch. */
static void help(struct wh_batch *batch, int64_t deadline)
{
	wh_fail_begin();
	if (atomic_load_explicit(&batch->waiting_for_stream, memory_order_acquire))
		wh_gpus_progress(batch->peer->engine->gpus, wh_batch_is_running, batch, deadline);
	else
		progress_fragments(batch, deadline);
	wh_fail_end(0);
}

static int status_of(struct wh_batch *batch)
{
	int status = atomic_load(&batch->status);

	if (status)
		wh_fail(-status, "%s", batch->text);
	return status;
}

int wh_batch_poll(struct wh_batch *batch)
{
	int error = guard(batch, "wh_batch_poll");

	if (error)
		return error;
	if (wh_batch_running(batch) && !wh_engine_inside(batch->peer->engine))
		help(batch, 0);
	if (wh_batch_running(batch))
		return -EINPROGRESS;
	if (atomic_load(&batch->state) == WH_BATCH_NEW)
		return wh_fail(EINVAL, "wh_batch_poll: the batch was never submitted");
	return status_of(batch);
}

/* Sleep, or spin, until it is done or the deadline has passed. */
static bool wait_done(struct wh_batch *batch, int64_t deadline)
{
	bool spin = batch->peer->engine->config.number[WH_SETTING_SPIN];
	uint32_t running;

	while (wh_batch_running(batch)) {
		help(batch, deadline);
		if (!wh_batch_running(batch))
			break;
		if (deadline != INT64_MAX && wh_now() >= deadline)
			return false;
		if (spin)
			continue;
		running = WH_BATCH_RUNNING;
		if (atomic_compare_exchange_strong(&batch->state, &running, WH_BATCH_WAITED) ||
		    running == WH_BATCH_WAITED)
			wh_futex_wait(&batch->state, WH_BATCH_WAITED, deadline);
	}
	return true;
}

int wh_batch_wait(struct wh_batch *batch, int64_t timeout)
{
	int error = guard(batch, "wh_batch_wait");

	if (error)
		return error;
	if (timeout < 0)
		return wh_fail(EINVAL,
			       "wh_batch_wait: timeout is negative; WH_FOREVER waits for ever");
	if (wh_engine_inside(batch->peer->engine))
		return wh_fail(EDEADLK, "wh_batch_wait: a callback must not wait");
	if (atomic_load_explicit(&batch->state, memory_order_acquire) == WH_BATCH_DONE)
		return status_of(batch);
	if (atomic_load(&batch->state) == WH_BATCH_NEW)
		return wh_fail(EINVAL, "wh_batch_wait: the batch was never submitted");
	if (!wait_done(batch, wh_deadline(timeout)))
		return wh_fail(ETIMEDOUT, "wh_batch_wait: not done in %lld ns; it goes on",
			       (long long)timeout);
	return status_of(batch);
}

static void cancel_fragment(struct wh_fragment *fragment)
{
	struct wh_batch *batch = fragment->batch;
	struct wh_peer *peer = batch->peer;
	uint32_t id;

	/* Before the lock, which those take who would hand it to another transport. */
	atomic_store(&fragment->cancelled, true);
	pthread_mutex_lock(&batch->route_lock);
	id = atomic_load(&fragment->transport);
	if (!atomic_load(&fragment->done))
		wh_transport(id)->cancel(peer, peer->transport[id], fragment);
	pthread_mutex_unlock(&batch->route_lock);
}

int wh_batch_cancel(struct wh_batch *batch)
{
	int error = guard(batch, "wh_batch_cancel");
	struct wh_peer *peer;
	int64_t deadline;

	if (error)
		return error;
	peer = batch->peer;
	if (wh_engine_inside(peer->engine))
		return wh_fail(EDEADLK, "wh_batch_cancel: a callback must not cancel");
	if (atomic_load(&batch->state) == WH_BATCH_NEW)
		return wh_fail(EINVAL, "wh_batch_cancel: the batch was never submitted");
	atomic_store(&batch->cancelled, true);
	if (wh_stream_dependency_cancel(batch))
		wh_batch_start(batch, -ECANCELED, "cancelled before it was started");
	for (size_t i = 0; i < batch->fragment_count && wh_batch_running(batch); i++)
		cancel_fragment(&batch->fragments[i]);
	if (wh_notify_cancel(batch)) {
		wh_batch_fail(batch, -ECANCELED, "cancelled before its notification was sent");
		wh_batch_finish(batch);
	}
	if (wait_done(batch, wh_deadline(CANCEL_PATIENCE))) {
		settle(batch);
		return 0;
	}
	deadline = wh_deadline(peer->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (peer->opened[id] && !error)
			error = wh_transport(id)->abort(peer, peer->transport[id], batch, deadline);
	if (!wait_done(batch, wh_deadline(peer->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS)))
		error = -ETIMEDOUT;
	settle(batch);
	if (error)
		return wh_fail(ETIMEDOUT,
			       "wh_batch_cancel: %s does not answer; bytes on their way may still "
			       "reach it",
			       peer->welcome.name);
	return 0;
}

/* ---- results --------------------------------------------------------------------------------- */

int wh_batch_result(struct wh_batch *batch, size_t index)
{
	int error = guard(batch, "wh_batch_result");

	if (error)
		return error;
	if (index >= batch->item_count)
		return wh_fail(EINVAL, "wh_batch_result: index %zu, the batch has %zu transfers",
			       index, batch->item_count);
	if (atomic_load(&batch->state) != WH_BATCH_DONE)
		return -EINPROGRESS;
	return atomic_load(&batch->items[index].status);
}

const char *wh_batch_error_text(const struct wh_batch *batch)
{
	return batch ? batch->text : "";
}
