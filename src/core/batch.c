/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The batch as an object: making, filling, checking, clearing and freeing it, and its results.
 * batch-run.c runs it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/counters.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/progress.h"
#include "core/queue.h"
#include "core/region.h"
#include "core/stream.h"
#include "memory/region-reader.h"
#include "memory/region-table.h"
#include "transport/blocks.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/options.h"
#include "util/turns.h"

int wh_batch_guard(const struct wh_batch *batch, const char *call)
{
	if (!batch)
		return wh_fail(EINVAL, "%s: batch is NULL", call);
	return wh_engine_guard(batch->peer->engine, call);
}

int wh_batch_guard_idle(struct wh_batch *batch, const char *call)
{
	int error = wh_batch_guard(batch, call);

	if (!error && wh_batch_running(batch))
		error = wh_fail(EBUSY, "%s: the batch is running; wait for it or cancel it first",
				call);
	return error;
}

/* ---- making it ----------------------------------------------------------------------------- */

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
	if (!wh_require_is_known(require))
		return wh_fail(EINVAL,
			       "wh_batch_new: options.require is \"%s\"; known are %s, and local",
			       require, wh_transport_names());
	if (options.queue && wh_queue_engine(options.queue) != peer->engine)
		return wh_fail(EINVAL, "wh_batch_new: options.queue belongs to another engine");
	error = options.callback ? wh_callbacks_start(&peer->engine->callbacks) : 0;
	if (error)
		return error;
	batch = calloc(1, sizeof(*batch));
	if (!batch)
		return wh_fail(ENOMEM, "wh_batch_new: no memory");
	batch->peer = peer;
	batch->queue = options.queue;
	batch->callback = options.callback;
	batch->callback_arg = options.callback_arg;
	batch->queued = (struct wh_queue_entry){ .batch = batch, .user = options.user };
	batch->priority = options.priority;
	batch->require = wh_transport_by_name(require); /* "", "local": WH_TRANSPORT_COUNT */
	batch->local = !strcmp(require, WH_REQUIRE_LOCAL);
	pthread_mutex_init(&batch->plan_lock, NULL);
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

static void batch_empty(struct wh_batch *batch)
{
	wh_batch_flush_counts(batch);
	pthread_mutex_lock(&batch->plan_lock);
	for (size_t i = 0; i < batch->blocks_count; i++)
		wh_blocks_release(batch->blocks[i]);
	batch->blocks_count = 0;
	batch->item_count = 0;
	batch->fragment_count = 0;
	batch->notifies = false;
	batch->unresolved = false;
	batch->planned = 0;
	pthread_mutex_unlock(&batch->plan_lock);
}

int wh_batch_clear(struct wh_batch *batch)
{
	int error = wh_batch_guard_idle(batch, "wh_batch_clear");

	if (error)
		return error;
	wh_batch_settle(batch);
	batch_empty(batch);
	return 0;
}

/* How long to give turns before looking again whether another thread has run the callback. */
#define CALLBACK_PAUSE WH_MS

static void batch_await_callback(struct wh_engine *engine, unsigned *round)
{
	if (engine->turns)
		wh_engine_turn(engine, wh_turns_seen(engine->turns), wh_deadline(CALLBACK_PAUSE));
	else
		wh_pause(round);
}

int wh_batch_free(struct wh_batch *batch)
{
	unsigned round = 0;
	int error;

	if (!batch)
		return 0;
	error = wh_batch_guard_idle(batch, "wh_batch_free");
	if (error)
		return error;
	if (batch->callback && wh_engine_inside(batch->peer->engine))
		return wh_fail(EDEADLK, "wh_batch_free: a callback must not free batches");
	wh_batch_settle(batch);
	/* Its callback is due or running. */
	while (atomic_load_explicit(&batch->delivering, memory_order_acquire))
		batch_await_callback(batch->peer->engine, &round);
	wh_callbacks_drop(batch);
	if (batch->queue) {
		wh_queue_forget(batch->queue, &batch->queued);
		wh_queue_hold(batch->queue, -1);
	}
	wh_batch_is_seen(batch);
	batch_empty(batch);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (batch->transport[id])
			wh_transport(id)->batch_closed(batch, batch->transport[id]);
	atomic_fetch_sub(&batch->peer->batches, 1);
	wh_stream_dependency_free(batch);
	pthread_mutex_destroy(&batch->route_lock);
	pthread_mutex_destroy(&batch->text_lock);
	pthread_mutex_destroy(&batch->plan_lock);
	free(batch->items);
	free(batch->blocks);
	for (unsigned i = 0; i < batch->outgrown_count; i++)
		free(batch->outgrown[i]);
	free(batch->fragments);
	free(batch->note);
	free(batch);
	return 0;
}

/* ---- filling it ----------------------------------------------------------------------------- */

int wh_batch_check_remote(struct wh_peer *peer, const char *what, uint64_t index, uint32_t op,
			  uint64_t id, uint64_t offset, uint64_t length)
{
	struct wh_region_table *table = peer->self ? &peer->engine->regions : &peer->regions;
	struct wh_region_entry *entry = wh_region_entry_enter(table, id);
	uint8_t access = entry ? wh_remote_access(peer, entry) : 0;
	int error = 0;

	if (!access) {
		/* A peer that leaves removes its regions first: report the lost peer. */
		error = wh_peer_check(peer);
		if (!error)
			error = wh_fail(ENOENT, "%s %llu: %s publishes no region %#llx", what,
					(unsigned long long)index, peer->welcome.name,
					(unsigned long long)id);
	} else if (!(access & (op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE))) {
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
	/* Copying bytes onto themselves is harmless. */
	if (!distance || (distance >= length && -distance >= length))
		return 0;
	return wh_fail(EINVAL,
		       "%s %llu: source and target overlap in %s: %llu bytes move by only "
		       "%llu bytes",
		       what, (unsigned long long)index,
		       region->entry.kind == WH_MEMORY_FILE ? "a file" : "GPU memory",
		       (unsigned long long)length,
		       (unsigned long long)(distance < length ? distance : -distance));
}

static int transfer_check_fields(size_t index, uint32_t op, uint32_t reserved)
{
	if (op != WH_READ && op != WH_WRITE)
		return wh_fail(EINVAL, "transfer %zu: op is %u; WH_READ or WH_WRITE", index, op);
	if (reserved)
		return wh_fail(EINVAL, "transfer %zu: reserved is not 0", index);
	return 0;
}

/* A region of the peer is not known: submitting asks for it. Other errors stay. */
static int batch_defer(struct wh_batch *batch, int error)
{
	if (error != -ENOENT || batch->peer->self)
		return error;
	batch->unresolved = true;
	return 0;
}

static int batch_check_transfer(struct wh_batch *batch, const struct wh_transfer *transfer,
				size_t index)
{
	struct wh_peer *peer = batch->peer;
	int error = transfer_check_fields(index, transfer->op, transfer->reserved);

	if (error || !transfer->length)
		return error;
	error = wh_batch_check_local(peer, "transfer", index, transfer->local,
				     transfer->local_offset, transfer->length);
	if (error)
		return error;
	error = wh_batch_check_remote(peer, "transfer", index, transfer->op, transfer->remote,
				      transfer->remote_offset, transfer->length);
	if (error) /* 0 is no id */
		return transfer->remote ? batch_defer(batch, error) : error;
	return wh_batch_check_overlap(peer, "transfer", index, transfer->local,
				      transfer->local_offset, transfer->remote,
				      transfer->remote_offset, transfer->length);
}

/* Grow an array to hold `count` + `more` elements of `element` bytes. */
static int batch_reserve(void **array, size_t *room, size_t count, size_t more, size_t element)
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

/* Make room for items. The fragments of the last submission, which may be looked at, follow them.
 */
static int batch_reserve_items(struct wh_batch *batch, size_t count)
{
	const struct wh_item *before = batch->items;
	int error = batch_reserve((void **)&batch->items, &batch->item_room, batch->item_count,
				  count, sizeof(*batch->items));

	for (size_t i = 0; batch->items != before && i < batch->fragment_count; i++)
		batch->fragments[i].items = batch->items;
	return error;
}

/* Begin to add `count` transfers: check the call's arguments, and make room for the items. Without
 * plan_lock where there is room: it takes half the time of adding one. */
static int batch_begin_add(struct wh_batch *batch, const void *transfers, size_t count,
			   const char *call)
{
	int error = wh_batch_guard_idle(batch, call);

	if (error)
		return error;
	if (!transfers && count)
		return wh_fail(EINVAL, "%s: transfers is NULL", call);
	wh_batch_settle(batch);
	if (count <= batch->item_room - batch->item_count)
		return 0;
	pthread_mutex_lock(&batch->plan_lock);
	error = batch_reserve_items(batch, count);
	pthread_mutex_unlock(&batch->plan_lock);
	return error;
}

/* The next item that can be written. */
static struct wh_item *batch_next_item(struct wh_batch *batch)
{
	return batch->items + atomic_load_explicit(&batch->item_count, memory_order_relaxed);
}

/* Count the `count` items that were made. */
static int batch_end_add(struct wh_batch *batch, size_t count, int error)
{
	size_t before = atomic_load_explicit(&batch->item_count, memory_order_relaxed);

	if (error)
		return error;
	atomic_store_explicit(&batch->planned, 0, memory_order_relaxed);
	atomic_store_explicit(&batch->item_count, before + count, memory_order_release);
	return 0;
}

/* One of length 0 is in no region. It stays in the list because it has an index. */
static void batch_set_item(struct wh_item *item, const struct wh_transfer *transfer,
			   uint64_t local_id, uint64_t address)
{
	item->local = transfer->length ? transfer->local : NULL;
	item->local_id = local_id;
	item->address = (char *)(uintptr_t)address;
	item->remote = transfer->remote;
	item->offset = transfer->remote_offset;
	item->length = transfer->length;
	item->op = transfer->op;
	atomic_init(&item->status, 0);
}

int wh_batch_add(struct wh_batch *batch, const struct wh_transfer *transfers, size_t count)
{
	int error = batch_begin_add(batch, transfers, count, "wh_batch_add");
	struct wh_item *item;

	if (error || !count)
		return error;
	item = batch_next_item(batch);
	for (size_t i = 0; i < count && !error; i++, item++) {
		const struct wh_transfer *transfer = &transfers[i];

		error = batch_check_transfer(batch, transfer, i);
		if (error)
			break;
		if (!transfer->length) {
			batch_set_item(item, transfer, 0, 0);
			continue;
		}
		batch_set_item(
			item, transfer,
			atomic_load_explicit(&transfer->local->entry.id, memory_order_relaxed),
			transfer->local->entry.address + transfer->local_offset);
	}
	return batch_end_add(batch, count, error);
}

/* ---- filling it by addresses ---------------------------------------------------------------- */

void wh_batch_addresses_begin(struct wh_batch_addresses *addresses, struct wh_peer *peer)
{
	addresses->peer = peer;
	wh_region_reader_begin(&addresses->local, &peer->engine->regions);
	wh_region_reader_begin(&addresses->remote,
			       peer->self ? &peer->engine->regions : &peer->regions);
}

void wh_batch_addresses_end(struct wh_batch_addresses *addresses)
{
	wh_region_reader_end(&addresses->local);
	wh_region_reader_end(&addresses->remote);
}

int wh_batch_find_local(struct wh_batch_addresses *addresses, const char *what, uint64_t index,
			uint64_t address, uint64_t length, struct wh_region **region, uint64_t *id,
			uint64_t *offset)
{
	struct wh_region_reader *reader = &addresses->local;

	if (!wh_region_reader_find(reader, address, length, 0, id, offset))
		return wh_fail(ENOENT,
			       "%s %llu: local: no region holds %#llx and %llu bytes; register "
			       "the memory first",
			       what, (unsigned long long)index, (unsigned long long)address,
			       (unsigned long long)length);
	*region = (struct wh_region *)wh_region_table_at(reader->table, wh_region_table_index(*id));
	return 0;
}

int wh_batch_find_remote(struct wh_batch_addresses *addresses, const char *what, uint64_t index,
			 uint32_t op, uint64_t address, uint64_t length, bool any, uint64_t *id,
			 uint64_t *offset)
{
	struct wh_region_reader *reader = &addresses->remote;
	struct wh_peer *peer = addresses->peer;
	uint8_t access = op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE;
	int error;

	if (wh_region_reader_find(reader, address, length, peer->self ? 0 : access, id, offset) ||
	    (any && wh_region_reader_find(reader, address, length, 0, id, offset)))
		return 0;
	error = wh_peer_check(peer);
	if (error)
		return error;
	return wh_fail(ENOENT,
		       "%s %llu: remote: %s publishes no region that holds %#llx and %llu bytes",
		       what, (unsigned long long)index, peer->welcome.name,
		       (unsigned long long)address, (unsigned long long)length);
}

/* Check the overlap of a local region that another thread may unregister meanwhile. */
static int batch_check_found_overlap(struct wh_peer *peer, size_t index,
				     const struct wh_transfer *found, uint64_t local_id)
{
	struct wh_region_entry *entry;
	int error;

	if (!peer->self)
		return 0;
	entry = wh_region_entry_enter(&peer->engine->regions, local_id);
	if (!entry)
		return wh_fail(ENOENT, "transfer %zu: local: the region has just been unregistered",
			       index);
	error = wh_batch_check_overlap(peer, "transfer", index, found->local, found->local_offset,
				       found->remote, found->remote_offset, found->length);
	wh_region_entry_leave(entry);
	return error;
}

/* Find the regions of a transfer, and check it as wh_batch_add() does. */
static int batch_find_regions(struct wh_batch *batch, struct wh_batch_addresses *addresses,
			      const struct wh_address_transfer *given, size_t index,
			      struct wh_transfer *out, uint64_t *local_id)
{
	struct wh_peer *peer = addresses->peer;
	int error;

	*local_id = 0;
	out->length = given->length;
	out->op = given->op;
	error = transfer_check_fields(index, given->op, given->reserved);
	if (error || !given->length)
		return error;
	error = wh_batch_find_local(addresses, "transfer", index, (uintptr_t)given->local,
				    given->length, &out->local, local_id, &out->local_offset);
	if (error)
		return error;
	out->remote = given->remote_region;
	out->remote_offset = given->remote;
	if (!given->remote_region) {
		if (given->remote > UINT64_MAX - given->length)
			return wh_fail(ENOENT,
				       "transfer %zu: remote: %#llx and %llu bytes reach past the "
				       "end of the address space",
				       index, (unsigned long long)given->remote,
				       (unsigned long long)given->length);
		error = wh_batch_find_remote(addresses, "transfer", index, given->op, given->remote,
					     given->length, peer->self, &out->remote,
					     &out->remote_offset);
		if (error)
			return batch_defer(batch, error);
	}
	error = wh_batch_check_remote(peer, "transfer", index, out->op, out->remote,
				      out->remote_offset, out->length);
	if (error)
		return batch_defer(batch, error);
	return batch_check_found_overlap(peer, index, out, *local_id);
}

int wh_batch_add_address(struct wh_batch *batch, const struct wh_address_transfer *transfers,
			 size_t count)
{
	int error = batch_begin_add(batch, transfers, count, "wh_batch_add_address");
	struct wh_batch_addresses addresses;
	struct wh_transfer found = { 0 };
	struct wh_item *item;
	uint64_t local_id;

	if (error || !count)
		return error;
	item = batch_next_item(batch);
	wh_batch_addresses_begin(&addresses, batch->peer);
	for (size_t i = 0; i < count && !error; i++) {
		error = batch_find_regions(batch, &addresses, &transfers[i], i, &found, &local_id);
		if (!error)
			batch_set_item(item++, &found, local_id, (uintptr_t)transfers[i].local);
	}
	wh_batch_addresses_end(&addresses);
	return batch_end_add(batch, count, error);
}

/* Add prepared blocks. Under plan_lock. */
static int batch_put_blocks(struct wh_batch *batch, struct wh_blocks *blocks)
{
	int error = batch_reserve((void **)&batch->blocks, &batch->blocks_room, batch->blocks_count,
				  1, sizeof(*batch->blocks));

	if (error)
		return error;
	atomic_fetch_add(&blocks->references, 1);
	batch->blocks[batch->blocks_count++] = blocks;
	if (atomic_load_explicit(&blocks->unresolved, memory_order_relaxed))
		batch->unresolved = true;
	batch->planned = 0;
	return 0;
}

int wh_batch_add_blocks(struct wh_batch *batch, struct wh_blocks *blocks)
{
	int error = wh_batch_guard_idle(batch, "wh_batch_add_blocks");

	if (error)
		return error;
	if (!blocks || blocks->peer != batch->peer)
		return wh_fail(EINVAL, "wh_batch_add_blocks: blocks is %s",
			       blocks ? "prepared for another peer" : "NULL");
	if (!blocks->base_count) /* nothing to move */
		return 0;
	wh_batch_settle(batch);
	pthread_mutex_lock(&batch->plan_lock);
	error = batch_put_blocks(batch, blocks);
	pthread_mutex_unlock(&batch->plan_lock);
	return error;
}

/* Copy what a batch moves. Under its plan_lock, which keeps the items where they are; their number
 * may grow meanwhile. */
static int batch_copy_contents(const struct wh_batch *batch, struct wh_batch *to)
{
	size_t count = atomic_load_explicit(&batch->item_count, memory_order_acquire);
	int error =
		batch_reserve((void **)&to->items, &to->item_room, 0, count, sizeof(*to->items));

	if (!error && count)
		memcpy(to->items, batch->items, count * sizeof(*to->items));
	to->item_count = error ? 0 : count;
	for (size_t i = 0; i < batch->blocks_count && !error; i++)
		error = batch_put_blocks(to, batch->blocks[i]);
	to->unresolved = batch->unresolved;
	return error;
}

int wh_batch_copy(struct wh_batch *batch, struct wh_batch **out)
{
	struct wh_batch *copy;
	int error = wh_batch_new(batch->peer, NULL, &copy);

	if (error)
		return error;
	copy->priority = batch->priority;
	copy->require = batch->require;
	copy->local = batch->local;
	pthread_mutex_lock(&batch->plan_lock);
	if (!batch->planning)
		error = batch_copy_contents(batch, copy);
	pthread_mutex_unlock(&batch->plan_lock);
	if (error)
		wh_batch_free(copy);
	else
		*out = copy;
	return error;
}

int wh_batch_notify(struct wh_batch *batch, uint64_t tag, const void *data, size_t length)
{
	int error = wh_batch_guard_idle(batch, "wh_batch_notify");
	unsigned char *note;

	if (error)
		return error;
	if (length > WH_NOTIFICATION_MAX || (length && !data))
		return wh_fail(EINVAL, "wh_batch_notify: %s (%zu bytes; 0 to %d are allowed)",
			       data ? "wrong length" : "data is NULL", length, WH_NOTIFICATION_MAX);
	wh_batch_settle(batch);
	if (!batch->note || length > batch->note_room) {
		note = realloc(batch->note, WH_NOTIFY_HEAD + length);
		if (!note)
			return wh_fail(ENOMEM, "wh_batch_notify: no memory");
		batch->note = note;
		batch->note_room = length;
		atomic_fetch_or(&batch->watch, WH_STATISTICS_FRAGMENTS);
	}
	if (length)
		memcpy(batch->note + WH_NOTIFY_HEAD, data, length);
	batch->note_length = length;
	batch->note_tag = tag;
	batch->notifies = true;
	return 0;
}

/* ---- results -------------------------------------------------------------------------------- */

int wh_batch_transfer_status(struct wh_batch *batch, size_t index, int *status)
{
	int error = wh_batch_guard(batch, "wh_batch_transfer_status");

	if (error)
		return error;
	pthread_mutex_lock(&batch->plan_lock); /* another thread may add transfers */
	if (!status || index >= batch->item_count)
		error = wh_fail(
			EINVAL,
			"wh_batch_transfer_status: %s, index %zu, the batch has %zu transfers",
			status ? "no such transfer" : "status is NULL", index, batch->item_count);
	else if (atomic_load_explicit(&batch->state, memory_order_acquire) != WH_BATCH_DONE)
		error = -EAGAIN;
	else
		*status = atomic_load(&batch->items[index].status);
	pthread_mutex_unlock(&batch->plan_lock);
	if (!error)
		wh_batch_is_seen(batch);
	return error;
}

const char *wh_batch_error_text(const struct wh_batch *batch)
{
	return batch ? batch->text : "";
}
