/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of rdma, a GPU's memory that no NIC of ours reaches: a session has a desk, some
 * slots of pinned memory that its peer reads and writes with NICs, and asks us, by COPY, to move
 * what is in a slot to where it belongs, or to fetch it from there. A copy is done when the bytes
 * are in the GPU's memory.
 *
 * A desk is one session's alone: before another one has it, its keys are taken back and its memory
 * is cleared. There are at most DESKS of them. The fields of a desk are loop 0's, but while
 * something of it is with the worker or a GPU, which `busy` counts.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/staging.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define DESKS 16u

_Static_assert(WH_RDMA_BOUNCE_SLOT == WH_SLOT, "a slot is what a staging moves at once");

/* What one slot is used for. */
struct copy {
	struct rdma_bounce *desk;
	struct rdma_job job; /* to start it: lanes may have to be made */
	struct wh_task ended; /* on loop 0 */
	struct wh_slot slot;
	struct wh_staging staging;
	bool busy, into;
	struct wh_region_entry *places[WH_RDMA_COPY_RUNS]; /* entered while it is */
	uint32_t place_count;
};

struct rdma_bounce {
	struct wh_list link; /* rdma.desks_free */
	struct rdma *rdma;
	uint64_t session; /* 0: it has gone */
	unsigned busy;
	bool open; /* the peer may use it */
	int error; /* there is no memory, */
	char why[WH_REFUSAL];
	struct rdma_job job; /* to get its memory, or clear it */
	struct wh_task ended; /* that, on loop 0 */
	struct wh_region region;
	struct copy copies[WH_RDMA_BOUNCE_SLOTS];
};

static struct wh_loop *home(const struct rdma_bounce *desk)
{
	return &desk->rdma->engine->loops[0];
}

static struct wh_session *session_of(const struct rdma_bounce *desk)
{
	return desk->session ? wh_session_find(desk->rdma->engine, desk->session) : NULL;
}

/* The worker's affair, or, if it has too much to do, ours. */
static void work(struct rdma_bounce *desk, struct rdma_job *job)
{
	desk->busy++;
	if (!rdma_work(desk->rdma, job))
		job->run(job, false);
}

/* ---- giving back
 * --------------------------------------------------------------------------------- */

/* On the worker: the queue pairs of the session are gone already. */
static void clear(struct rdma_job *job, bool stop)
{
	struct rdma_bounce *desk = wh_container(job, struct rdma_bounce, job);

	(void)stop;
	rdma_region_closed(desk->rdma->engine, desk->rdma, &desk->region);
	if (desk->region.place.length)
		memset((void *)(uintptr_t)desk->region.place.address, 0, desk->region.place.length);
	wh_loop_post(home(desk), &desk->ended);
}

static void cleared(struct wh_task *task)
{
	struct rdma_bounce *desk = wh_container(task, struct rdma_bounce, ended);

	desk->busy = 0;
	wh_list_append(&desk->rdma->desks_free, &desk->link);
	atomic_fetch_sub(&desk->rdma->desks_used, 1);
}

void rdma_bounce_put(struct rdma_bounce *desk)
{
	if (--desk->busy || desk->session)
		return;
	desk->job.run = clear;
	desk->ended.run = cleared;
	work(desk, &desk->job);
}

void rdma_bounce_close(struct rdma_bounce *desk)
{
	desk->busy++;
	desk->session = 0;
	desk->open = false;
	rdma_bounce_put(desk);
}

void rdma_bounces_close(struct rdma *rdma)
{
	struct timespec pause = { 0, WH_MS / 4 };

	/* The sessions are gone; GPUs and the worker wait for nobody: soon. */
	while (atomic_load(&rdma->desks_used))
		nanosleep(&pause, NULL);
	while (!wh_list_empty(&rdma->desks_free)) {
		struct rdma_bounce *desk =
			wh_container(wh_list_take(&rdma->desks_free), struct rdma_bounce, link);

		for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++)
			wh_staging_destroy(&desk->copies[i].staging);
		free(desk);
	}
}

/* ---- opening
 * --------------------------------------------------------------------------------------- */

static int answer(struct wh_session *session, const struct rdma_bounce *desk, int error,
		  const char *why)
{
	struct wh_rdma_bounce_opened desked = { .error = error, .slots = WH_RDMA_BOUNCE_SLOTS };
	uint8_t bytes[WH_RDMA_BOUNCE_OPENED_MAX];

	if (error)
		snprintf(desked.text, sizeof(desked.text), "%s", why);
	else
		desked.address = desk->region.place.address;
	return wh_control_send(&session->control, WH_FRAME_RDMA_BOUNCE_OPENED, 0, bytes,
			       wh_rdma_bounce_opened_encode(bytes, &desked));
}

/* On the worker: pinning takes its time. */
static void get_memory(struct rdma_job *job, bool stop)
{
	struct rdma_bounce *desk = wh_container(job, struct rdma_bounce, job);
	struct wh_slot slots[WH_RDMA_BOUNCE_SLOTS];
	int error = 0;

	if (stop)
		error = -ESHUTDOWN;
	else if (!desk->region.place.length)
		error = wh_slots_row(desk->rdma->engine->gpus, WH_RDMA_BOUNCE_SLOTS, slots);
	desk->error = error;
	if (error)
		snprintf(desk->why, sizeof(desk->why), "pinned memory: %.160s", wh_error_text());
	if (!error && !desk->region.place.length) {
		for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++)
			desk->copies[i].slot = slots[i];
		desk->region.place.address = (uintptr_t)slots[0].host;
		desk->region.place.length = (uint64_t)WH_RDMA_BOUNCE_SLOTS * WH_SLOT;
		memset(slots[0].host, 0, desk->region.place.length);
	}
	wh_loop_post(home(desk), &desk->ended);
}

static void have_memory(struct wh_task *task)
{
	struct rdma_bounce *desk = wh_container(task, struct rdma_bounce, ended);
	struct wh_session *session = session_of(desk);

	desk->open = session && !desk->error;
	if (session)
		answer(session, desk, desk->error, desk->why);
	rdma_bounce_put(desk);
}

static void start(struct rdma_job *job, bool stop);
static void moved(struct wh_staging *staging, int error, const char *text);
static void ended(struct wh_task *task);

/* NULL: there are too many, or no memory. */
static struct rdma_bounce *desk_new(struct rdma *rdma)
{
	struct wh_list *link = wh_list_take(&rdma->desks_free);
	struct rdma_bounce *desk = link ? wh_container(link, struct rdma_bounce, link) : NULL;

	if (!desk && atomic_load(&rdma->desks_used) < DESKS)
		desk = calloc(1, sizeof(*desk));
	if (!desk)
		return NULL;
	atomic_fetch_add(&rdma->desks_used, 1);
	desk->rdma = rdma;
	desk->region.engine = rdma->engine;
	desk->region.place.kind = WH_MEMORY_PINNED;
	desk->region.place.access = WH_ACCESS_READ | WH_ACCESS_WRITE;
	for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++) {
		struct copy *copy = &desk->copies[i];

		copy->desk = desk;
		copy->job.run = start;
		copy->ended.run = ended;
		wh_staging_init(&copy->staging, rdma->engine->gpus, false);
		copy->staging.slot = &copy->slot;
		copy->staging.done = moved;
	}
	return desk;
}

int rdma_bounce_frame(struct wh_session *session, struct rdma_bounce **mine)
{
	struct rdma *rdma = session->engine->transport[WH_TRANSPORT_RDMA];
	struct rdma_bounce *desk = *mine;

	if (!session->engine->gpus)
		return answer(session, NULL, -ENODEV, "it has no GPU");
	if (desk && (desk->open || desk->busy))
		return -EPROTO; /* asked for again before it was refused */
	if (!desk)
		desk = desk_new(rdma);
	if (!desk)
		return answer(session, NULL, -EBUSY,
			      "other peers have all pinned memory that there is for staging");
	wh_session_stages(session);
	desk->session = session->id;
	desk->job.run = get_memory;
	desk->ended.run = have_memory;
	*mine = desk;
	work(desk, &desk->job);
	return 0;
}

bool rdma_bounce_open(const struct rdma_bounce *desk)
{
	return desk && desk->open;
}

void rdma_bounce_get(struct rdma_bounce *desk)
{
	desk->busy++;
}

struct wh_region *rdma_bounce_region(struct rdma_bounce *desk)
{
	return &desk->region;
}

/* ---- copies
 * ---------------------------------------------------------------------------------------- */

static void leave_places(struct copy *copy)
{
	while (copy->place_count)
		wh_region_entry_leave(copy->places[--copy->place_count]);
}

static int copied(struct wh_session *session, const struct copy *copy, int error, const char *why)
{
	struct wh_rdma_flushed answered = { .number = (uint32_t)(copy - copy->desk->copies),
					    .error = error };
	uint8_t bytes[WH_RDMA_FLUSHED_MAX];

	if (error)
		snprintf(answered.text, sizeof(answered.text), "%s", why);
	return wh_control_send(&session->control, WH_FRAME_RDMA_COPIED, 0, bytes,
			       wh_rdma_flushed_encode(bytes, &answered));
}

/* On the worker. */
static void start(struct rdma_job *job, bool stop)
{
	struct copy *copy = wh_container(job, struct copy, job);

	(void)stop; /* what has been begun is ended */
	wh_staging_start(&copy->staging, copy->into);
}

/* On any thread: the bytes are where they belong, or nothing moves any more. */
static void moved(struct wh_staging *staging, int error, const char *text)
{
	struct copy *copy = wh_container(staging, struct copy, staging);

	(void)error; /* it is in the staging */
	(void)text;
	leave_places(copy); /* loop 0 may be waiting for that */
	wh_loop_post(home(copy->desk), &copy->ended);
}

static void ended(struct wh_task *task)
{
	struct copy *copy = wh_container(task, struct copy, ended);
	struct wh_session *session = session_of(copy->desk);

	copy->busy = false;
	if (copy->staging.error)
		wh_engine_log(copy->desk->rdma->engine, "rdma: staging for a peer: %s",
			      copy->staging.text);
	if (session)
		copied(session, copy, copy->staging.error, copy->staging.text);
	rdma_bounce_put(copy->desk);
}

/* May it, and where is it? 0, -EPROTO: the peer knows that it may not be, or another negative errno
 * with the reason. */
static int add_extent(struct wh_session *session, struct copy *copy, const struct wh_extent *extent,
		      uint32_t op, char why[WH_REFUSAL])
{
	uint8_t right = op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE, access;
	struct wh_region_entry *place =
		wh_region_entry_enter(&session->engine->regions, extent->region);

	if (!place) {
		snprintf(why, WH_REFUSAL, "region %#llx is not published any more",
			 (unsigned long long)extent->region);
		return -ESTALE;
	}
	copy->places[copy->place_count++] = place;
	access = wh_session_access(session, place);
	if (access & WH_ACCESS_NONE || !(access & right)) {
		snprintf(why, WH_REFUSAL, "region %#llx must not be %s by %.60s",
			 (unsigned long long)extent->region, op == WH_READ ? "read" : "written",
			 session->hello.name);
		return -EACCES;
	}
	if (!wh_region_entry_holds(place, extent->offset, extent->length) ||
	    extent->length > WH_SLOT - copy->staging.bytes)
		return -EPROTO;
	if (wh_staging_add(&copy->staging, wh_container(place, struct wh_region, place),
			   place->address + extent->offset, extent->length) == extent->length)
		return 0;
	snprintf(why, WH_REFUSAL, "no memory");
	return -ENOMEM;
}

int rdma_bounce_copy(struct wh_session *session, struct rdma_bounce *desk, const uint8_t *payload,
		     size_t length)
{
	struct wh_extent_reader reader;
	struct wh_rdma_copy wanted;
	struct wh_extent extent;
	char why[WH_REFUSAL] = "";
	struct copy *copy;
	int error = 0, more;

	if (wh_rdma_copy_decode(payload, length, &wanted) || !rdma_bounce_open(desk) ||
	    desk->copies[wanted.slot].busy)
		return -EPROTO;
	copy = &desk->copies[wanted.slot];
	wh_staging_clear(&copy->staging);
	wh_extents_open(&reader, wanted.extents, wanted.length);
	while ((more = wh_extents_next(&reader, &extent)) > 0 && !error)
		error = copy->place_count == WH_RDMA_COPY_RUNS ?
				-EPROTO :
				add_extent(session, copy, &extent, wanted.op, why);
	if (more < 0)
		error = -EPROTO;
	if (error) {
		leave_places(copy);
		return error == -EPROTO ? error : copied(session, copy, error, why);
	}
	wh_count_add(&session->engine->tally.staged_bytes, copy->staging.bytes);
	copy->busy = true;
	copy->into = wanted.op == WH_READ;
	work(desk, &copy->job);
	return 0;
}
