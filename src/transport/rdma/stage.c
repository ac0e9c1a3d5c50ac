/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's memory that the NIC of no line reaches: its bytes go through slots of pinned memory, a
 * few at a time, so that GPU and NICs work at once. For memory of ours these are slots of our own,
 * which are registered with the NICs of all lines; for the peer's they are slots of its desk, lent
 * to us (bounce-client.c).
 *
 * What is in a slot is moved by a piece of its own, a part of the whole, between the slot and the
 * other side's memory or slot: connections and completions know no difference. A write's slots here
 * are filled before their parts are submitted, and those there are emptied when these have ended; a
 * read's the other way round. What is kept here is under rdma_peer.lock.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/staging.h"
#include "memory/memory.h"
#include "transport/rdma/rdma.h"

#define SLICES 4u /* of one piece at a time */
#define RUNS WH_RDMA_COPY_EXTENTS /* of one slot */
#define RUN_BYTES 64u /* an extent takes no more */

_Static_assert(RDMA_SLOTS == WH_SLOTS, "one region for each slot");

/* A piece. */
struct stage {
	struct wh_list link; /* rdma_peer.stages */
	struct wh_list slices;
	struct rdma_peer *rdma;
	struct wh_fragment *fragment;
	bool ours, theirs; /* which is staged */
	unsigned works; /* slices, and one while they are started */
	bool stop; /* no more of it, */
	bool failed; /* for all of it has, */
	int error; /* or it has to go by another transport: */
	char why[WH_REFUSAL];
};

/* A slot on its way. */
struct slice {
	struct wh_list link; /* stage.slices */
	struct stage *stage;
	struct wh_staging staging; /* into, and out of, a slot of ours */
	struct wh_slot_wait wait;
	struct wh_slot *given; /* a slot that it has waited for, on its way to the loop */
	struct rdma_lease lease; /* of theirs */
	struct wh_task task; /* on rdma.loop: */
	void (*then)(struct slice *slice);
	struct wh_region *slot;
	uint64_t bytes; /* in its slots */
	bool by_gpu; /* some of it is */
	struct wh_fragment part;
	struct wh_batch batch; /* of it: its items, and what the whole's says otherwise */
	struct wh_item items[RUNS];
	uint8_t copy[WH_RDMA_COPY_HEAD + RUNS * RUN_BYTES]; /* what theirs is asked for */
	size_t copy_length;
};

static struct wh_gpus *gpus_of(const struct stage *stage)
{
	return stage->rdma->rdma->engine->gpus;
}

static const struct wh_region *local_of(const struct wh_fragment *fragment, uint64_t index)
{
	uint64_t remote;

	return rdma_local_of(fragment, index, &remote);
}

/* A line that bytes may go by, now or as soon as it is connected. */
static bool live(const struct rdma_endpoint *endpoint)
{
	return endpoint->state != RDMA_FAILED && endpoint->state != RDMA_LOST;
}

unsigned rdma_stage_wanted(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	const struct wh_region *local, *local_before = NULL;
	uint64_t remote, remote_before = 0;
	struct rdma_sides sides = { 0 };
	uint32_t endpoints;
	unsigned wanted;

	if (fragment->whole || rdma_rails_of(rdma, fragment)) /* lines that are ready reach it */
		return 0;
	endpoints = rdma_ready(rdma);
	for (unsigned i = 0; !rdma_ready(rdma) && i < rdma->endpoint_count; i++)
		endpoints |= (uint32_t)live(rdma->endpoints[i]) << i;
	sides.ours = sides.theirs = endpoints;
	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		struct wh_remote_region *region;

		local = rdma_local_of(fragment, i, &remote);
		if (local == local_before && remote == remote_before)
			continue;
		local_before = local;
		remote_before = remote;
		region = rdma_enter(rdma, remote);
		if (!region)
			continue;
		rdma_sides_add(rdma, endpoints, local, region, fragment->op, &sides);
		wh_region_entry_leave(&region->entry);
	}
	wanted = rdma_sides_staged(&sides);
	return wanted & RDMA_STAGE_THEIRS && !rdma_bounce_reached(rdma) ? 0 : wanted;
}

/* ---- slots as regions ------------------------------------------------------------------------ */

/* NULL: no memory. */
static struct wh_region *slot_region(struct rdma *rdma, const struct wh_slot *slot)
{
	struct wh_region *found = NULL;
	unsigned count;

	pthread_mutex_lock(&rdma->register_lock);
	count = atomic_load(&rdma->slot_count);
	for (unsigned i = 0; i < count && !found; i++)
		if (rdma->slots[i]->entry.address == (uintptr_t)slot->host)
			found = rdma->slots[i];
	if (!found && count < WH_SLOTS)
		found = calloc(1, sizeof(*found));
	if (found && !found->engine) {
		found->engine = rdma->engine;
		found->entry.address = (uintptr_t)slot->host;
		found->entry.length = WH_SLOT;
		found->entry.kind = WH_MEMORY_PINNED;
		found->entry.access = WH_ACCESS_NONE;
		rdma->slots[count] = found;
		atomic_store(&rdma->slot_count, count + 1);
	}
	pthread_mutex_unlock(&rdma->register_lock);
	return found;
}

void rdma_slots_close(struct rdma *rdma)
{
	unsigned count = atomic_exchange(&rdma->slot_count, 0);

	while (count--) {
		rdma_region_closed(rdma->engine, rdma, rdma->slots[count]);
		free(rdma->slots[count]);
	}
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void finish(struct stage *stage)
{
	struct wh_fragment *fragment = stage->fragment;
	bool failed = stage->failed;
	char why[WH_REFUSAL];
	int error = stage->error;

	memcpy(why, stage->why, sizeof(why));
	free(stage);
	if (error && !failed) {
		wh_fragment_reroute(fragment, error, why);
		return;
	}
	/* What has not been begun has failed, whatever else has. */
	if (fragment->cursor.left && atomic_load(&fragment->cancelled))
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
	else if (fragment->cursor.left && !failed)
		wh_fragment_fail(fragment, UINT64_MAX, -ECONNRESET, "the peer was lost");
	rdma_fragment_moved(fragment);
}

static void put(struct stage *stage, struct slice *slice)
{
	struct rdma_peer *rdma = stage->rdma;
	bool last;

	if (slice && slice->staging.slot)
		wh_slot_give(gpus_of(stage), slice->staging.slot);
	pthread_mutex_lock(&rdma->lock);
	if (slice) {
		rdma_lease_release(rdma, &slice->lease);
		wh_list_remove(&slice->link);
	}
	last = !--stage->works;
	if (last)
		wh_list_remove(&stage->link);
	pthread_mutex_unlock(&rdma->lock);
	if (slice) {
		wh_staging_destroy(&slice->staging);
		free(slice);
	}
	if (last)
		finish(stage);
}

/* It goes by another transport; the first reason counts. */
static void give_up(struct stage *stage, int error, const char *why)
{
	pthread_mutex_lock(&stage->rdma->lock);
	stage->stop = true;
	if (!stage->error) {
		stage->error = error;
		snprintf(stage->why, sizeof(stage->why), "%s", why);
	}
	pthread_mutex_unlock(&stage->rdma->lock);
}

static void fail(struct stage *stage, int error, const char *text)
{
	wh_fragment_fail(stage->fragment, UINT64_MAX, error, "%s", text);
	pthread_mutex_lock(&stage->rdma->lock);
	stage->stop = stage->failed = true;
	pthread_mutex_unlock(&stage->rdma->lock);
}

/* ---- a slice --------------------------------------------------------------------------------- */

/* Later, on rdma.loop. */
static void resume(struct slice *slice, void (*then)(struct slice *slice))
{
	slice->then = then;
	wh_loop_post(&slice->stage->rdma->rdma->loop, &slice->task);
}

static void back(struct wh_task *task)
{
	struct slice *slice = wh_container(task, struct slice, task);

	slice->then(slice);
}

/* The next bytes for the slots. False: there are no more, or none are to be moved. Under the lock.
 */
static bool plan(struct slice *slice)
{
	struct stage *stage = slice->stage;
	struct wh_fragment *fragment = stage->fragment;
	uint64_t bounce = (uint64_t)slice->lease.slot * WH_RDMA_BOUNCE_SLOT;
	struct wh_extent_writer writer;
	uint32_t n = 0;
	struct wh_extent_pair run;

	wh_staging_clear(&slice->staging);
	slice->by_gpu = false;
	slice->bytes = 0;
	if (stage->stop || rdma_lost(stage->rdma) || slice->lease.lost ||
	    atomic_load(&fragment->cancelled))
		return false;
	wh_extents_start(&writer, wh_rdma_copy_encode(slice->copy, slice->lease.slot, fragment->op),
			 sizeof(slice->copy) - WH_RDMA_COPY_HEAD);
	while (n < RUNS && slice->bytes < WH_SLOT &&
	       wh_fragment_next(fragment, &fragment->cursor, WH_SLOT - slice->bytes, &run)) {
		const struct wh_region *local = local_of(fragment, run.index);

		if (stage->ours &&
		    wh_staging_add(&slice->staging, local, (uint64_t)(uintptr_t)run.local,
				   run.length) < run.length) {
			stage->stop = stage->failed = true;
			wh_fragment_fail(fragment, UINT64_MAX, -ENOMEM, "no memory for staging");
			return false;
		}
		wh_extents_put(&writer, &(struct wh_extent){ run.remote, run.offset, run.length });
		slice->by_gpu |= stage->ours && !wh_kind_on_host(local->entry.kind);
		slice->items[n++] = (struct wh_item){
			.address =
				stage->ours ? slice->staging.slot->host + slice->bytes : run.local,
			.local = stage->ours ? slice->slot : (struct wh_region *)(uintptr_t)local,
			.local_id = run.index,
			.remote = stage->theirs ? 0 : run.remote,
			.offset = stage->theirs ? bounce + slice->bytes : run.offset,
			.length = run.length,
			.op = fragment->op,
		};
		slice->bytes += run.length;
	}
	slice->copy_length = WH_RDMA_COPY_HEAD + wh_extents_end(&writer);
	slice->batch.item_count = n;
	return n != 0;
}

static void next(struct slice *slice);

static void ask_copy(struct slice *slice)
{
	rdma_lease_copy(slice->stage->rdma, &slice->lease, slice->copy, slice->copy_length);
}

/* Of a read that is staged here: what has not been received is not what its slot has in it. */
static void leave_out_failed(struct slice *slice)
{
	const struct wh_fragment *fragment = slice->stage->fragment;

	wh_staging_clear(&slice->staging);
	for (size_t i = 0; i < slice->batch.item_count; i++) {
		const struct wh_item *item = &slice->items[i];
		const struct wh_item *whole = &fragment->batch->items[item->local_id];
		uint64_t at = (uint64_t)(uintptr_t)whole->address + (item->offset - whole->offset);

		if (atomic_load(&whole->status))
			wh_staging_skip(&slice->staging, item->length);
		else
			wh_staging_add(&slice->staging, whole->local, at, item->length);
	}
}

/* The part has ended; on any thread, with no lock held. */
static void part_ended(struct wh_fragment *part, int error, const char *why)
{
	struct slice *slice = wh_container(part, struct slice, part);
	struct stage *stage = slice->stage;
	struct wh_fragment *fragment = stage->fragment;
	int failed = atomic_load(&part->failed);

	if (error) {
		give_up(stage, error, why);
		put(stage, slice);
	} else if (failed && stage->theirs) {
		/* What did arrive is on the desk alone. */
		fail(stage, failed, "what is staged at the owner's end has not all been moved");
		put(stage, slice);
	} else if (fragment->op == WH_WRITE && stage->theirs) {
		ask_copy(slice);
	} else if (fragment->op == WH_WRITE || !stage->ours || (failed && fragment->blocks)) {
		next(slice);
	} else {
		if (failed)
			leave_out_failed(slice);
		wh_staging_start(&slice->staging, false);
	}
}

static void submit_part(struct slice *slice)
{
	struct stage *stage = slice->stage;
	struct wh_fragment *fragment = stage->fragment, *part = &slice->part;

	pthread_mutex_lock(&stage->rdma->lock); /* for whoever cancels */
	memset(part, 0, sizeof(*part));
	part->batch = &slice->batch;
	part->op = fragment->op;
	part->transport = WH_TRANSPORT_RDMA;
	part->count = part->transfers = slice->batch.item_count;
	part->bytes = slice->bytes;
	part->whole = fragment;
	part->ended = part_ended;
	wh_fragment_start(part, &part->cursor);
	atomic_store(&part->left, part->bytes);
	/* The slot of a peer that was lost is not one of the same peer that has come back. */
	atomic_store(&part->cancelled, atomic_load(&fragment->cancelled) || slice->lease.lost);
	pthread_mutex_unlock(&stage->rdma->lock);
	rdma_submit(stage->rdma, part);
}

/* The owner has filled the slot, or emptied it, or has not. */
static void copied(struct rdma_lease *lease, int error, const char *why)
{
	struct slice *slice = wh_container(lease, struct slice, lease);
	struct stage *stage = slice->stage;

	if (error == -ECONNRESET) {
		fail(stage, error, why);
		put(stage, slice);
	} else if (error) {
		/* The next transport finds out, and tells, of which transfer that is true. */
		give_up(stage, error, why);
		put(stage, slice);
	} else if (stage->fragment->op == WH_WRITE) {
		next(slice);
	} else {
		submit_part(slice);
	}
}

/* The GPU has moved a slot's bytes. */
static void moved(struct slice *slice)
{
	struct stage *stage = slice->stage;

	if (slice->staging.error) {
		fail(stage, slice->staging.error, slice->staging.text);
		put(stage, slice);
	} else if (stage->fragment->op == WH_WRITE) {
		submit_part(slice);
	} else {
		next(slice);
	}
}

static void staged(struct wh_staging *staging, int error, const char *text)
{
	struct slice *slice = wh_container(staging, struct slice, staging);

	(void)error; /* it is in the staging */
	(void)text;
	/* What was done at once does not go on from here: slot after slot would be stacked up. */
	if (slice->by_gpu)
		moved(slice);
	else
		resume(slice, moved);
}

/* With the NICs of all lines that its part may go by; one is enough. */
static int register_slot(struct stage *stage, struct wh_region *slot, char why[WH_REFUSAL])
{
	struct rdma_nic *nics[RDMA_ENDPOINTS];
	struct rdma_peer *rdma = stage->rdma;
	struct rdma_memory *memory;
	int error = -EIO, failed;
	unsigned count = 0;

	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (live(rdma->endpoints[i]))
			nics[count++] = rdma->endpoints[i]->rail->nic;
	snprintf(why, WH_REFUSAL, "%s", rdma->why);
	pthread_mutex_unlock(&rdma->lock);
	for (unsigned i = 0; i < count; i++) {
		failed = rdma_register(nics[i], slot, &memory, why);
		if (error)
			error = failed;
	}
	return error;
}

/* Fill the slots anew. */
static void next(struct slice *slice)
{
	struct stage *stage = slice->stage;
	struct rdma_peer *rdma = stage->rdma;
	char why[WH_REFUSAL];
	bool more, passed;
	int error;

	pthread_mutex_lock(&rdma->lock);
	/* Not with a slot of ours in hand, which the others may be waiting for. */
	passed = stage->theirs && !stage->ours && rdma_lease_yield(rdma, &slice->lease);
	more = !passed && plan(slice);
	pthread_mutex_unlock(&rdma->lock);
	if (passed)
		return;
	if (!more) {
		put(stage, slice);
		return;
	}
	error = stage->ours ? register_slot(stage, slice->slot, why) : 0;
	if (error) {
		give_up(stage, error, why);
		put(stage, slice);
		return;
	}
	wh_count_add(&rdma->rdma->engine->statistics.staged_bytes, slice->bytes);
	if (stage->fragment->op == WH_WRITE && stage->ours)
		wh_staging_start(&slice->staging, true);
	else if (stage->fragment->op == WH_READ && stage->theirs)
		ask_copy(slice);
	else
		submit_part(slice);
}

static void have_slot(struct slice *slice, struct wh_slot *slot)
{
	slice->staging.slot = slot;
	slice->slot = slot_region(slice->stage->rdma->rdma, slot);
	if (slice->slot) {
		next(slice);
		return;
	}
	fail(slice->stage, -ENOMEM, "no memory for staging");
	put(slice->stage, slice);
}

static void given(struct slice *slice)
{
	struct wh_slot *slot = slice->given;

	slice->given = NULL;
	have_slot(slice, slot);
}

/* On any thread, which may hold locks of its own. */
static void slot_ready(struct wh_slot_wait *wait, struct wh_slot *slot)
{
	struct slice *slice = wh_container(wait, struct slice, wait);

	slice->given = slot;
	resume(slice, given);
}

/* It has a slot of theirs, if it needs one: one of ours, then. */
static void leased(struct slice *slice)
{
	struct wh_slot *slot;

	if (!slice->stage->ours || slice->staging.slot) {
		next(slice);
		return;
	}
	slot = wh_slot_take(gpus_of(slice->stage), WH_SLOT_ASKS, &slice->wait);
	if (slot)
		have_slot(slice, slot);
}

static void lease_ready(struct rdma_lease *lease)
{
	resume(wh_container(lease, struct slice, lease), leased);
}

static void start(struct stage *stage)
{
	struct slice *slice = calloc(1, sizeof(*slice));
	const struct wh_batch *batch = stage->fragment->batch;
	bool has;

	if (!slice) {
		fail(stage, -ENOMEM, "no memory for staging");
		return;
	}
	slice->stage = stage;
	slice->task.run = back;
	slice->wait.ready = slot_ready;
	slice->lease.have = lease_ready;
	slice->lease.copied = copied;
	slice->batch.peer = batch->peer;
	slice->batch.priority = batch->priority;
	slice->batch.callback = batch->callback;
	slice->batch.queue = batch->queue;
	slice->batch.items = slice->items;
	wh_staging_init(&slice->staging, gpus_of(stage), batch->priority == WH_PRIORITY_LATENCY);
	slice->staging.done = staged;
	pthread_mutex_lock(&stage->rdma->lock);
	wh_list_append(&stage->slices, &slice->link);
	stage->works++;
	has = !stage->theirs || rdma_lease_acquire(stage->rdma, &slice->lease);
	pthread_mutex_unlock(&stage->rdma->lock);
	if (has)
		leased(slice);
}

void rdma_stage(struct rdma_peer *rdma, struct wh_fragment *fragment, unsigned sides)
{
	struct stage *stage = calloc(1, sizeof(*stage));
	uint64_t slices = (fragment->bytes - 1) / WH_SLOT + 1;

	if (!stage) {
		wh_fragment_fail(fragment, UINT64_MAX, -ENOMEM, "no memory for staging");
		wh_fragment_done(fragment);
		return;
	}
	stage->rdma = rdma;
	stage->fragment = fragment;
	stage->ours = sides & RDMA_STAGE_OURS;
	stage->theirs = sides & RDMA_STAGE_THEIRS;
	stage->works = 1;
	wh_list_init(&stage->slices);
	pthread_mutex_lock(&rdma->lock);
	wh_list_append(&rdma->stages, &stage->link);
	pthread_mutex_unlock(&rdma->lock);
	for (uint64_t i = 0; i < slices && i < SLICES; i++)
		start(stage);
	put(stage, NULL);
}

bool rdma_stage_cancel(struct rdma_peer *rdma, const struct wh_fragment *fragment,
		       struct wh_list *done)
{
	for (struct wh_list *l = rdma->stages.next; l != &rdma->stages; l = l->next) {
		struct stage *stage = wh_container(l, struct stage, link);

		if (stage->fragment != fragment)
			continue;
		for (struct wh_list *s = stage->slices.next; s != &stage->slices; s = s->next) {
			struct slice *slice = wh_container(s, struct slice, link);

			atomic_store(&slice->part.cancelled, true);
			rdma_cancel(rdma, &slice->part, done);
		}
		return true;
	}
	return false;
}
