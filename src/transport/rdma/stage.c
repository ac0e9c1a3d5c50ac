/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: stage GPU memory that no endpoint's NIC reaches, and files. The bytes go through slots of
 * pinned memory, of files through plain memory, a few at a time, so that GPU, file system and NICs
 * work at the same time. For the local side these are slots of our own, registered with the NICs of
 * all endpoints; for the peer's memory they are slots of its bounce buffers, leased
 * (bounce-client.c). A slot holds bytes of one bounce buffer only: a fragment with memory of
 * several, or with some that the NICs reach as well, moves them slot by slot.
 *
 * A pass moves one slot's bytes by a fragment of its own, a part of the whole, between the slot and
 * the other side's memory or slot; the rest of the transport treats parts as any fragment. For a
 * write, local slots are filled before the part is submitted, and remote slots are emptied when it
 * has ended; for a read the other way round. State is under rdma_peer.lock. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/staging.h"
#include "memory/memory.h"
#include "transport/copier-file.h"
#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"

#define PASSES 4u /* of one fragment at a time */
#define EXTENTS WH_RDMA_COPY_EXTENTS /* of one slot */
#define EXTENT_BYTES 64u /* most bytes of an encoded extent */
#define DIRECT (-1) /* instead of the number of a bounce buffer: NICs reach the memory itself */

/* A fragment that is staged. */
struct stage {
	struct wh_list link; /* rdma_peer.stages */
	struct wh_list passes;
	struct rdma_peer *rdma;
	struct wh_fragment *fragment;
	bool local, remote; /* the sides that are staged */
	bool mixed; /* not all of the remote side goes the way `bounce` */
	int bounce; /* number of the bounce buffer of the remote side, or DIRECT */
	enum wh_slot_use slots; /* of the local side ... */
	struct wh_file_system *system; /* ... which this file system has to itself, if not NULL */
	unsigned works; /* passes, and one while they are started */
	bool stop; /* start no more passes */
	bool failed; /* all of the fragment has failed */
	int error; /* 0, or another transport has to move it */
	char why[WH_REFUSAL];
};

/* Moves one slot's bytes after another. */
struct pass {
	struct wh_list link; /* stage.passes */
	struct stage *stage;
	struct wh_staging staging; /* into, and out of, the local slot */
	struct wh_slot_wait wait;
	struct wh_slot *given; /* a slot that it waited for, until rdma.loop runs */
	struct rdma_lease lease; /* of the remote slot; without a buffer: DIRECT */
	struct wh_task task; /* on rdma.loop: calls `then` */
	void (*then)(struct pass *pass);
	struct wh_region *slot;
	uint64_t bytes; /* in its slots */
	bool by_gpu; /* a GPU ends it, on a thread that may go on; else it goes on on rdma.loop */
	struct wh_fragment part;
	struct wh_item items[EXTENTS]; /* of the part */
	size_t item_count;
	uint8_t copy[WH_RDMA_COPY_HEAD + EXTENTS * EXTENT_BYTES]; /* the COPY frame */
	size_t copy_length;
};

static struct wh_gpus *gpus_of(const struct stage *stage)
{
	return wh_engine_gpus(stage->rdma->rdma->engine);
}

static const struct wh_region *stage_local_of(const struct wh_fragment *fragment, uint64_t index)
{
	uint64_t remote;

	return rdma_fragment_regions(fragment, index, &remote);
}

unsigned rdma_stage_sides(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	struct rdma_region_pairs pairs = { .fragment = fragment };
	struct rdma_sides sides = { 0 };
	bool reachable = true;
	uint32_t endpoints;
	unsigned wanted;
	int bounce;

	/* A part of a staged fragment is not staged again; nor is what a ready endpoint reaches. */
	if (fragment->whole || rdma_striping_rails(rdma, fragment))
		return 0;
	endpoints = rdma_endpoints_ready(rdma);
	for (unsigned i = 0; !rdma_endpoints_ready(rdma) && i < rdma->endpoint_count; i++)
		endpoints |= (uint32_t)rdma_endpoint_usable(rdma->endpoints[i]) << i;
	sides.local = sides.remote = endpoints;
	while (rdma_region_pairs_next(rdma, &pairs)) {
		rdma_sides_add(rdma, endpoints, pairs.local, pairs.remote, fragment->op, &sides);
		bounce = rdma_bounce_of(pairs.remote);
		reachable &= bounce < 0 || rdma_bounce_is_reachable(rdma, (unsigned)bounce);
	}
	wanted = rdma_sides_to_stage(&sides);
	return wanted & RDMA_STAGE_REMOTE && !reachable ? 0 : wanted;
}

/* ---- which bounce buffer --------------------------------------------------------------------- */

/* Under rdma_peer.lock, as all here. The caller has entered the region. */
static int remote_bounce(const struct rdma_peer *rdma, const struct wh_remote_region *remote)
{
	int bounce = rdma_bounce_of(remote);

	/* Where GPU memory is staged at all, the rest of the fragment goes with it. */
	if (bounce == DIRECT && rdma_bounce_is_reachable(rdma, 0))
		bounce = 0;
	return bounce;
}

/* Set stage->bounce and stage->mixed. */
static void stage_choose_bounce(struct stage *stage)
{
	struct rdma_region_pairs pairs = { .fragment = stage->fragment };
	bool first = true;
	int bounce;

	stage->bounce = DIRECT;
	while (stage->remote && rdma_region_pairs_next(stage->rdma, &pairs)) {
		bounce = remote_bounce(stage->rdma, pairs.remote);
		if (first)
			stage->bounce = bounce;
		stage->mixed |= bounce != stage->bounce;
		first = false;
	}
}

/* Of the bytes at a cursor of a mixed fragment; where there are none, or their region is gone:
 * DIRECT. */
static int stage_bounce_at(const struct stage *stage, struct wh_cursor at)
{
	struct wh_remote_region *remote = NULL;
	struct wh_extent_pair extent;
	int bounce = DIRECT;

	if (wh_fragment_next(stage->fragment, &at, 1, &extent))
		remote = rdma_remote_enter(stage->rdma, extent.remote);
	if (remote) {
		bounce = remote_bounce(stage->rdma, remote);
		wh_region_entry_leave(&remote->entry);
	}
	return bounce;
}

/* What the next bytes of the fragment need; NULL: DIRECT. */
static struct rdma_remote_bounce *stage_next_bounce(const struct stage *stage)
{
	int bounce = stage->mixed ? stage_bounce_at(stage, stage->fragment->cursor) : stage->bounce;

	return bounce == DIRECT ? NULL : &stage->rdma->bounces[bounce];
}

/* ---- local slots as regions ------------------------------------------------------------------ */

/* NULL: no memory. */
static struct wh_region *stage_slot_region(struct rdma *rdma, const struct wh_slot *slot)
{
	struct wh_region *found = NULL;
	struct wh_region **grown;

	pthread_mutex_lock(&rdma->register_lock);
	for (unsigned i = 0; i < rdma->slot_count && !found; i++)
		if (rdma->slots[i]->entry.address == (uintptr_t)slot->host)
			found = rdma->slots[i];
	grown = found ? NULL : realloc(rdma->slots, (rdma->slot_count + 1) * sizeof(*grown));
	if (grown) {
		rdma->slots = grown;
		found = calloc(1, sizeof(*found));
	}
	if (found && !found->engine) {
		found->engine = rdma->engine;
		found->entry.address = (uintptr_t)slot->host;
		found->entry.length = WH_SLOT;
		found->entry.kind = WH_MEMORY_PINNED;
		rdma->slots[rdma->slot_count++] = found;
	}
	pthread_mutex_unlock(&rdma->register_lock);
	return found;
}

void rdma_stage_close(struct rdma *rdma)
{
	while (rdma->slot_count) {
		struct wh_region *slot = rdma->slots[--rdma->slot_count];

		rdma_region_closed(rdma->engine, rdma, slot);
		free(slot);
	}
	free(rdma->slots);
	rdma->slots = NULL;
}

/* ---- the fragment ---------------------------------------------------------------------------- */

static void stage_finish(struct stage *stage)
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
	/* Bytes that were not begun have failed. */
	if (fragment->cursor.left && atomic_load(&fragment->cancelled))
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
	else if (fragment->cursor.left && !failed)
		wh_fragment_fail(fragment, UINT64_MAX, -ECONNRESET, "the peer was lost");
	rdma_fragment_moved(fragment);
}

static void stage_put(struct stage *stage, struct pass *pass)
{
	struct rdma_peer *rdma = stage->rdma;
	bool last;

	if (pass && pass->staging.slot)
		wh_slot_release(gpus_of(stage), pass->staging.slot);
	pthread_mutex_lock(&rdma->lock);
	if (pass) {
		rdma_lease_release(&pass->lease);
		wh_list_remove(&pass->link);
	}
	last = !--stage->works;
	if (last)
		wh_list_remove(&stage->link);
	pthread_mutex_unlock(&rdma->lock);
	if (pass) {
		wh_staging_destroy(&pass->staging);
		free(pass);
	}
	if (last)
		stage_finish(stage);
}

/* Another transport has to move it; the first reason counts. */
static void stage_give_up(struct stage *stage, int error, const char *why)
{
	pthread_mutex_lock(&stage->rdma->lock);
	stage->stop = true;
	if (!stage->error) {
		stage->error = error;
		snprintf(stage->why, sizeof(stage->why), "%s", why);
	}
	pthread_mutex_unlock(&stage->rdma->lock);
}

static void stage_fail(struct stage *stage, int error, const char *text)
{
	wh_fragment_fail(stage->fragment, UINT64_MAX, error, "%s", text);
	pthread_mutex_lock(&stage->rdma->lock);
	stage->stop = stage->failed = true;
	pthread_mutex_unlock(&stage->rdma->lock);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Continue later, on rdma.loop. */
static void pass_resume(struct pass *pass, void (*then)(struct pass *pass))
{
	pass->then = then;
	wh_loop_post(&pass->stage->rdma->rdma->loop, &pass->task);
}

static void pass_resumed(struct wh_task *task)
{
	struct pass *pass = wh_container(task, struct pass, task);

	pass->then(pass);
}

/* Choose the next bytes for the slots. False: there are no more, or the fragment has stopped. Under
 * rdma_peer.lock. */
static bool pass_plan(struct pass *pass)
{
	struct stage *stage = pass->stage;
	struct wh_fragment *fragment = stage->fragment;
	const struct rdma_remote_bounce *bounce = pass->lease.bounce;
	unsigned slot = bounce ? pass->lease.slot : 0;
	uint32_t number = bounce ? bounce->region.entry.index : 0;
	uint64_t start = (uint64_t)slot * WH_RDMA_BOUNCE_SLOT;
	struct wh_extent_writer writer;
	bool files = false;
	uint32_t n = 0;
	struct wh_extent_pair extent;

	wh_staging_clear(&pass->staging);
	pass->by_gpu = false;
	pass->bytes = 0;
	if (stage->stop || rdma_endpoints_lost(stage->rdma) || pass->lease.lost ||
	    atomic_load(&fragment->cancelled))
		return false;
	slot += number * WH_RDMA_BOUNCE_SLOTS;
	wh_extents_start(&writer, wh_rdma_copy_encode(pass->copy, slot, fragment->op),
			 sizeof(pass->copy) - WH_RDMA_COPY_HEAD);
	while (n < EXTENTS && pass->bytes < WH_SLOT &&
	       (!stage->mixed || stage_next_bounce(stage) == bounce) &&
	       wh_fragment_next(fragment, &fragment->cursor, WH_SLOT - pass->bytes, &extent)) {
		const struct wh_region *local = stage_local_of(fragment, extent.index);

		if (stage->local &&
		    wh_staging_add(&pass->staging, local, (uint64_t)(uintptr_t)extent.local,
				   extent.length) < extent.length) {
			stage->stop = stage->failed = true;
			wh_fragment_fail(fragment, UINT64_MAX, -ENOMEM, "no memory for staging");
			return false;
		}
		wh_extents_put(&writer,
			       &(struct wh_extent){ extent.remote, extent.offset, extent.length });
		pass->by_gpu |= stage->local && wh_kind_on_gpu(local->entry.kind);
		files |= local->entry.kind == WH_MEMORY_FILE;
		pass->items[n++] = (struct wh_item){
			.address = stage->local ? pass->staging.slot->host + pass->bytes :
						  extent.local,
			.local = stage->local ? pass->slot : (struct wh_region *)(uintptr_t)local,
			.local_id = extent.index,
			.remote = bounce ? number : extent.remote,
			.offset = bounce ? start + pass->bytes : extent.offset,
			.length = extent.length,
			.op = fragment->op,
		};
		pass->bytes += extent.length;
	}
	pass->by_gpu = pass->by_gpu && !files;
	pass->copy_length = WH_RDMA_COPY_HEAD + wh_extents_end(&writer);
	pass->item_count = n;
	return n != 0;
}

static void pass_next(struct pass *pass);

static void pass_ask_copy(struct pass *pass)
{
	rdma_lease_copy(pass->stage->rdma, &pass->lease, pass->copy, pass->copy_length);
}

/* A read, staged here: leave out transfers that failed, for the slot does not hold their bytes. */
static void pass_skip_failed(struct pass *pass)
{
	const struct wh_fragment *fragment = pass->stage->fragment;

	wh_staging_clear(&pass->staging);
	for (size_t i = 0; i < pass->item_count; i++) {
		const struct wh_item *item = &pass->items[i];
		const struct wh_item *whole = &fragment->items[item->local_id];
		uint64_t at = (uint64_t)(uintptr_t)whole->address + (item->offset - whole->offset);

		if (atomic_load(&whole->status))
			wh_staging_skip(&pass->staging, item->length);
		else
			wh_staging_add(&pass->staging, whole->local, at, item->length);
	}
}

/* The part has ended. On any thread, without a lock. */
static void pass_part_ended(struct wh_fragment *part, int error, const char *why)
{
	struct pass *pass = wh_container(part, struct pass, part);
	struct stage *stage = pass->stage;
	struct wh_fragment *fragment = stage->fragment;
	int failed = atomic_load(&part->failed);

	if (error) {
		stage_give_up(stage, error, why);
		stage_put(stage, pass);
	} else if (failed && pass->lease.bounce) {
		/* What arrived is in the bounce buffer only. */
		stage_fail(stage, failed, "not all bytes reached the owner's bounce buffer");
		stage_put(stage, pass);
	} else if (fragment->op == WH_WRITE && pass->lease.bounce) {
		pass_ask_copy(pass);
	} else if (fragment->op == WH_WRITE || !stage->local || (failed && fragment->blocks)) {
		pass_next(pass);
	} else {
		if (failed)
			pass_skip_failed(pass);
		wh_staging_start(&pass->staging, false);
	}
}

static void pass_submit_part(struct pass *pass)
{
	struct stage *stage = pass->stage;
	struct wh_fragment *fragment = stage->fragment, *part = &pass->part;

	pthread_mutex_lock(&stage->rdma->lock); /* rdma_stage_cancel() may run at the same time */
	memset(part, 0, sizeof(*part));
	part->batch = fragment->batch;
	part->peer = fragment->peer;
	part->priority = fragment->priority;
	part->items = pass->items;
	part->op = fragment->op;
	part->transport = WH_TRANSPORT_RDMA;
	part->count = part->transfers = pass->item_count;
	part->bytes = pass->bytes;
	part->whole = fragment;
	part->ended = pass_part_ended;
	wh_fragment_start(part, &part->cursor);
	atomic_store(&part->left, part->bytes);
	/* If the peer was lost and is back, the slot belongs to its former session. */
	atomic_store(&part->cancelled, atomic_load(&fragment->cancelled) || pass->lease.lost);
	pthread_mutex_unlock(&stage->rdma->lock);
	rdma_submit(stage->rdma, part);
}

/* The owner has answered COPY. */
static void pass_copied(struct rdma_lease *lease, int error, const char *why)
{
	struct pass *pass = wh_container(lease, struct pass, lease);
	struct stage *stage = pass->stage;

	/* What a file system says of a file is the end of the batch. */
	if (error == -ECONNRESET || error == -ECANCELED ||
	    (error && lease->bounce->region.entry.index)) {
		stage_fail(stage, error, why);
		stage_put(stage, pass);
	} else if (error) {
		/* The next transport finds out which transfer failed, and reports it. */
		stage_give_up(stage, error, why);
		stage_put(stage, pass);
	} else if (stage->fragment->op == WH_WRITE) {
		pass_next(pass);
	} else {
		pass_submit_part(pass);
	}
}

/* The GPU, or a thread for files, has copied a slot's bytes. */
static void pass_moved(struct pass *pass)
{
	struct stage *stage = pass->stage;

	if (pass->staging.error) {
		stage_fail(stage, pass->staging.error, pass->staging.text);
		stage_put(stage, pass);
	} else if (stage->fragment->op == WH_WRITE) {
		pass_submit_part(pass);
	} else {
		pass_next(pass);
	}
}

static void pass_staged(struct wh_staging *staging, int error, const char *text)
{
	struct pass *pass = wh_container(staging, struct pass, staging);

	(void)error; /* it is in `staging` */
	(void)text;
	/* Work done by the CPU completes inside the call: continue on the loop, or the stack grows
	 * with every slot. A thread for files is needed for files. */
	if (pass->by_gpu)
		pass_moved(pass);
	else
		pass_resume(pass, pass_moved);
}

/* With the NICs of all endpoints that the part may go by; one is enough. */
static int stage_register_slot(struct stage *stage, struct wh_region *slot, char why[WH_REFUSAL])
{
	struct rdma_nic *nics[RDMA_ENDPOINTS];
	struct rdma_peer *rdma = stage->rdma;
	struct rdma_memory *memory;
	int error = -EIO, failed;
	unsigned count = 0;

	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (rdma_endpoint_usable(rdma->endpoints[i]))
			nics[count++] = rdma->endpoints[i]->rail->nic;
	snprintf(why, WH_REFUSAL, "%s", rdma->why);
	pthread_mutex_unlock(&rdma->lock);
	for (unsigned i = 0; i < count; i++) {
		failed = rdma_memory_register(nics[i], slot, &memory, why);
		if (error)
			error = failed;
	}
	return error;
}

static void pass_begin(struct pass *pass);

/* The next bytes need another bounce buffer: give back what the pass has, and begin again. */
static void pass_switch(struct pass *pass)
{
	if (pass->staging.slot)
		wh_slot_release(gpus_of(pass->stage), pass->staging.slot);
	pass->staging.slot = NULL;
	pass_resume(pass, pass_begin);
}

/* Fill the slots again. */
static void pass_next(struct pass *pass)
{
	struct stage *stage = pass->stage;
	struct rdma_peer *rdma = stage->rdma;
	bool more = false, passed = false, switches;
	char why[WH_REFUSAL];
	int error;

	pthread_mutex_lock(&rdma->lock);
	switches = stage->mixed && !pass->lease.lost && stage->fragment->cursor.left &&
		   !atomic_load(&stage->fragment->cancelled) &&
		   stage_next_bounce(stage) != pass->lease.bounce;
	if (switches && pass->lease.bounce)
		rdma_lease_release(&pass->lease);
	/* Never yield with a local slot held: other passes may be waiting for it. */
	else if (pass->lease.bounce && !stage->local)
		passed = rdma_lease_yield(&pass->lease);
	if (!switches && !passed)
		more = pass_plan(pass);
	pthread_mutex_unlock(&rdma->lock);
	if (switches)
		pass_switch(pass);
	if (switches || passed)
		return;
	if (!more) {
		stage_put(stage, pass);
		return;
	}
	error = stage->local ? stage_register_slot(stage, pass->slot, why) : 0;
	if (error) {
		stage_give_up(stage, error, why);
		stage_put(stage, pass);
		return;
	}
	wh_engine_count_staged(rdma->rdma->engine, pass->bytes);
	if (stage->fragment->op == WH_WRITE && stage->local)
		wh_staging_start(&pass->staging, true);
	else if (stage->fragment->op == WH_READ && pass->lease.bounce)
		pass_ask_copy(pass);
	else
		pass_submit_part(pass);
}

static void pass_have_slot(struct pass *pass, struct wh_slot *slot)
{
	pass->staging.slot = slot;
	pass->slot = stage_slot_region(pass->stage->rdma->rdma, slot);
	if (pass->slot) {
		pass_next(pass);
		return;
	}
	stage_fail(pass->stage, -ENOMEM, "no memory for staging");
	stage_put(pass->stage, pass);
}

static void pass_given(struct pass *pass)
{
	struct wh_slot *slot = pass->given;

	pass->given = NULL;
	pass_have_slot(pass, slot);
}

/* On any thread, which may hold locks. */
static void pass_slot_ready(struct wh_slot_wait *wait, struct wh_slot *slot)
{
	struct pass *pass = wh_container(wait, struct pass, wait);

	pass->given = slot;
	pass_resume(pass, pass_given);
}

/* The pass has a remote slot, if it needs one; next a local one. */
static void pass_leased(struct pass *pass)
{
	struct wh_slot *slot;

	if (!pass->stage->local || pass->staging.slot) {
		pass_next(pass);
		return;
	}
	slot = wh_slot_acquire_file(gpus_of(pass->stage), pass->stage->slots, pass->stage->system,
				    &pass->wait);
	if (slot)
		pass_have_slot(pass, slot);
}

static void pass_lease_ready(struct rdma_lease *lease)
{
	pass_resume(wh_container(lease, struct pass, lease), pass_leased);
}

static void pass_begin(struct pass *pass)
{
	struct stage *stage = pass->stage;
	bool has;

	pthread_mutex_lock(&stage->rdma->lock);
	pass->lease.bounce = stage_next_bounce(stage);
	has = !pass->lease.bounce || rdma_lease_acquire(&pass->lease);
	pthread_mutex_unlock(&stage->rdma->lock);
	if (has)
		pass_leased(pass);
}

/* Its batch is cancelled, and the lease has ended. */
static void pass_abandoned(struct pass *pass)
{
	stage_fail(pass->stage, -ECANCELED, "cancelled");
	stage_put(pass->stage, pass);
}

static void pass_start(struct stage *stage)
{
	struct pass *pass = calloc(1, sizeof(*pass));

	if (!pass) {
		stage_fail(stage, -ENOMEM, "no memory for staging");
		return;
	}
	pass->stage = stage;
	pass->task.run = pass_resumed;
	pass->wait.ready = pass_slot_ready;
	pass->lease.have = pass_lease_ready;
	pass->lease.copied = pass_copied;
	wh_staging_init(&pass->staging, gpus_of(stage),
			stage->fragment->priority == WH_PRIORITY_LATENCY);
	pass->staging.done = pass_staged;
	pthread_mutex_lock(&stage->rdma->lock);
	wh_list_append(&stage->passes, &pass->link);
	stage->works++;
	pthread_mutex_unlock(&stage->rdma->lock);
	pass_begin(pass);
}

/* Through which slots the local side goes: a GPU needs pinned ones; files alone have their own, so
 * that a file system that hangs holds none that others need. */
static enum wh_slot_use stage_slots(const struct wh_fragment *fragment,
				    struct wh_file_system **system)
{
	*system = wh_fragment_file_system(fragment, NULL);
	for (uint64_t i = fragment->first; *system && i < fragment->first + fragment->count; i++)
		if (wh_kind_on_gpu(wh_fragment_local(fragment, i)->entry.kind))
			*system = NULL;
	return *system ? WH_SLOT_FILE_INITIATOR : WH_SLOT_INITIATOR;
}

int rdma_stage_prepare(struct rdma_peer *rdma, const struct wh_fragment *fragment, unsigned sides)
{
	struct wh_file_system *system;
	enum wh_slot_use slots = stage_slots(fragment, &system);

	return sides & RDMA_STAGE_LOCAL ?
		       wh_slots_prepare_file(wh_engine_gpus(rdma->rdma->engine), slots, system) :
		       0;
}

void rdma_stage_start(struct rdma_peer *rdma, struct wh_fragment *fragment, unsigned sides)
{
	struct stage *stage = calloc(1, sizeof(*stage));
	uint64_t passes = (fragment->bytes - 1) / WH_SLOT + 1;

	if (!stage) {
		wh_fragment_fail(fragment, UINT64_MAX, -ENOMEM, "no memory for staging");
		wh_fragment_done(fragment);
		return;
	}
	stage->rdma = rdma;
	stage->fragment = fragment;
	stage->local = sides & RDMA_STAGE_LOCAL;
	stage->remote = sides & RDMA_STAGE_REMOTE;
	stage->slots = stage_slots(fragment, &stage->system);
	if (stage->local && wh_slots_prepare_file(gpus_of(stage), stage->slots, stage->system)) {
		free(stage);
		wh_fragment_fail(fragment, UINT64_MAX, -ENOMEM, "staging: %s", wh_error_text());
		wh_fragment_done(fragment);
		return;
	}
	stage->works = 1;
	wh_list_init(&stage->passes);
	pthread_mutex_lock(&rdma->lock);
	stage_choose_bounce(stage);
	wh_list_append(&rdma->stages, &stage->link);
	pthread_mutex_unlock(&rdma->lock);
	for (uint64_t i = 0; i < passes && i < PASSES; i++)
		pass_start(stage);
	stage_put(stage, NULL);
}

/* Wait for no slot; if `asked`, neither for what a file system answers. True: it waited. */
static bool pass_abandon(struct pass *pass, bool asked)
{
	bool waited = pass->lease.bounce && rdma_lease_abandon(&pass->lease, asked);

	pass->lease.cancelled = true;
	if (waited)
		pass_resume(pass, pass_abandoned);
	return waited;
}

bool rdma_stage_cancel(struct rdma_peer *rdma, const struct wh_fragment *fragment,
		       struct wh_list *done)
{
	for (struct wh_list *l = rdma->stages.next; l != &rdma->stages; l = l->next) {
		struct stage *stage = wh_container(l, struct stage, link);

		if (stage->fragment != fragment)
			continue;
		for (struct wh_list *s = stage->passes.next; s != &stage->passes; s = s->next) {
			struct pass *pass = wh_container(s, struct pass, link);

			atomic_store(&pass->part.cancelled, true);
			rdma_cancel(rdma, &pass->part, done);
			/* The owner reads into its own memory: nobody has to wait for that. */
			pass_abandon(pass, fragment->op == WH_READ);
		}
		return true;
	}
	return false;
}

int rdma_stage_abort(struct rdma_peer *rdma, const struct wh_batch *batch)
{
	int error = 0;

	for (struct wh_list *l = rdma->stages.next; l != &rdma->stages; l = l->next) {
		struct stage *stage = wh_container(l, struct stage, link);

		if (stage->fragment->batch != batch)
			continue;
		for (struct wh_list *s = stage->passes.next; s != &stage->passes; s = s->next)
			if (pass_abandon(wh_container(s, struct pass, link), true))
				error = -ETIMEDOUT;
	}
	return error;
}
