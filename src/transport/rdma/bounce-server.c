/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, owner: stage GPU memory that no NIC of ours reaches, and files. A session has bounce
 * buffers, slots of memory that its peer's NICs read and write. By COPY the peer asks us to copy
 * between a slot and regions; a copy is done when the bytes are in GPU memory, or written to the
 * file.
 *
 * A bounce buffer belongs to one session. The one for GPU memory is pinned, and other sessions get
 * it afterwards: before, its keys are invalidated and its memory is cleared. There are at most
 * BOUNCES. Those for files are plain memory, each for the files of one file system, and are freed
 * when the session has ended and the file system has answered; there are at most FILE_BOUNCES.
 * Loop 0 owns the fields, except while the worker, a GPU or a thread for files uses them, which
 * `busy` and `copying` count.
 *
 * A file system may hold a copy for ever. So the end of a session, and of the engine, takes the
 * buffer's memory from the NICs, and leaves the rest to the end of the copy. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/staging.h"
#include "net/quota.h"
#include "transport/rdma/rdma.h"
#include "transport/rdma/server.h"
#include "util/clock.h"
#include "util/turns.h"

#define BOUNCES 16u
#define FILE_BOUNCES 16u
#define BOUNCE ((uint64_t)WH_RDMA_BOUNCE_SLOTS * WH_SLOT) /* bytes */

_Static_assert(WH_RDMA_BOUNCE_SLOT == WH_SLOT, "a slot is what a staging moves at once");

/* The copy of one slot. */
struct copy {
	struct rdma_bounce *bounce;
	struct rdma_job job; /* starts that of GPU memory: may create GPU streams */
	struct wh_task ended; /* on loop 0 */
	struct wh_slot slot;
	struct wh_staging staging;
	bool busy, into;
	struct wh_region_entry *entries[WH_RDMA_COPY_EXTENTS]; /* entered while the copy is busy */
	uint32_t entry_count;
};

struct rdma_bounce {
	struct wh_list link; /* rdma.bounces_free, or rdma.file_bounces */
	struct wh_engine *engine;
	struct rdma *rdma; /* NULL: it is closed, and `cleared` is set */
	unsigned number; /* of the session's */
	struct wh_file_system *system; /* the files of which it is for; NULL: for GPU memory */
	uint64_t session; /* 0: the session has ended */
	unsigned busy; /* jobs of the worker, and copies of GPU memory */
	unsigned copying; /* copies of files */
	bool cleared; /* for files: no NIC knows it any more */
	bool open; /* the peer may use it */
	int error; /* why it has no memory; 0 if it has */
	char why[WH_REFUSAL];
	struct rdma_job job; /* gets its memory, or clears it */
	struct wh_task ended; /* the job has ended; on loop 0 */
	struct wh_region region;
	struct copy copies[WH_RDMA_BOUNCE_SLOTS];
};

static struct wh_loop *bounce_loop(const struct rdma_bounce *bounce)
{
	return wh_engine_first_loop(bounce->engine);
}

static struct wh_session *bounce_session(const struct rdma_bounce *bounce)
{
	return bounce->session ? wh_session_find(bounce->engine, bounce->session) : NULL;
}

/* On the worker or, if its queue is full, here. */
static void bounce_run_job(struct rdma_bounce *bounce, struct rdma_job *job)
{
	bounce->busy++;
	if (!rdma_worker_add(bounce->rdma, job))
		job->run(job, false);
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Of files: nobody uses it any more, or a copy will come back. */
static void bounce_free_unused(struct rdma_bounce *bounce)
{
	if (!bounce->cleared || bounce->copying)
		return;
	if (bounce->rdma) {
		wh_list_remove(&bounce->link);
		bounce->rdma->file_bounce_count--;
	}
	for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++)
		wh_staging_destroy(&bounce->copies[i].staging);
	munmap((void *)(uintptr_t)bounce->region.entry.address, BOUNCE);
	free(bounce);
}

/* On the worker: the session's queue pairs are destroyed already. */
static void bounce_clear(struct rdma_job *job, bool stop)
{
	struct rdma_bounce *bounce = wh_container(job, struct rdma_bounce, job);

	(void)stop;
	rdma_region_closed(bounce->engine, bounce->rdma, &bounce->region);
	if (bounce->region.entry.length && !bounce->system)
		memset((void *)(uintptr_t)bounce->region.entry.address, 0,
		       bounce->region.entry.length);
	wh_loop_post(bounce_loop(bounce), &bounce->ended);
}

static void bounce_cleared(struct wh_task *task)
{
	struct rdma_bounce *bounce = wh_container(task, struct rdma_bounce, ended);

	bounce->busy = 0;
	if (!bounce->system)
		wh_list_append(&bounce->rdma->bounces_free, &bounce->link);
	atomic_fetch_sub(&bounce->rdma->bounces_used, 1);
	bounce->cleared = bounce->system;
	bounce_free_unused(bounce);
}

void rdma_bounce_put(struct rdma_bounce *bounce)
{
	if (--bounce->busy || bounce->session)
		return;
	bounce->job.run = bounce_clear;
	bounce->ended.run = bounce_cleared;
	bounce_run_job(bounce, &bounce->job);
}

void rdma_bounce_close(struct rdma_bounce *bounce)
{
	bounce->busy++;
	bounce->session = 0;
	bounce->open = false;
	rdma_bounce_put(bounce);
}

/* On loop 0: what is left is held by file systems. */
static void bounces_orphan(void *argument)
{
	struct rdma *rdma = argument;

	while (!wh_list_empty(&rdma->file_bounces))
		wh_container(wh_list_take(&rdma->file_bounces), struct rdma_bounce, link)->rdma =
			NULL;
}

void rdma_bounces_close(struct rdma *rdma)
{
	/* Sessions have ended, and neither GPUs nor the worker wait for anything: this takes little
	 * time. */
	while (atomic_load(&rdma->bounces_used))
		wh_turns_pause(wh_engine_turns(rdma->engine), WH_MS / 4);
	wh_loop_call(wh_engine_first_loop(rdma->engine), bounces_orphan, rdma);
	while (!wh_list_empty(&rdma->bounces_free)) {
		struct rdma_bounce *bounce =
			wh_container(wh_list_take(&rdma->bounces_free), struct rdma_bounce, link);

		for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++)
			wh_staging_destroy(&bounce->copies[i].staging);
		free(bounce);
	}
}

/* ---- opening --------------------------------------------------------------------------------- */

static int bounce_answer(struct wh_session *session, const struct rdma_bounce *bounce, int error,
			 const char *why)
{
	struct wh_rdma_bounce_opened opened = { .error = error, .slots = WH_RDMA_BOUNCE_SLOTS };
	uint8_t bytes[WH_RDMA_BOUNCE_OPENED_MAX];

	if (error)
		snprintf(opened.text, sizeof(opened.text), "%s", why);
	else
		opened.address = bounce->region.entry.address;
	return wh_control_send(wh_session_control(session), WH_FRAME_RDMA_BOUNCE_OPENED, 0, bytes,
			       wh_rdma_bounce_opened_encode(bytes, &opened));
}

/* On the worker: pinning takes long. */
static void bounce_get_memory(struct rdma_job *job, bool stop)
{
	struct rdma_bounce *bounce = wh_container(job, struct rdma_bounce, job);
	struct wh_slot slots[WH_RDMA_BOUNCE_SLOTS];
	int error = 0;

	if (stop)
		error = -ESHUTDOWN;
	else if (!bounce->region.entry.length)
		error = wh_slots_contiguous(wh_engine_gpus(bounce->engine), WH_RDMA_BOUNCE_SLOTS,
					    slots);
	bounce->error = error;
	if (error)
		snprintf(bounce->why, sizeof(bounce->why), "pinned memory: %.160s",
			 wh_error_text());
	if (!error && !bounce->region.entry.length) {
		for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++)
			bounce->copies[i].slot = slots[i];
		bounce->region.entry.address = (uintptr_t)slots[0].host;
		bounce->region.entry.length = BOUNCE;
		memset(slots[0].host, 0, bounce->region.entry.length);
	}
	wh_loop_post(bounce_loop(bounce), &bounce->ended);
}

static void bounce_have_memory(struct wh_task *task)
{
	struct rdma_bounce *bounce = wh_container(task, struct rdma_bounce, ended);
	struct wh_session *session = bounce_session(bounce);

	bounce->open = session && !bounce->error;
	if (session)
		bounce_answer(session, bounce, bounce->error, bounce->why);
	rdma_bounce_put(bounce);
}

static void copy_start(struct rdma_job *job, bool stop);
static void copy_moved(struct wh_staging *staging, int error, const char *text);
static void copy_ended(struct wh_task *task);

static void bounce_init(struct rdma_bounce *bounce, struct rdma *rdma)
{
	atomic_fetch_add(&rdma->bounces_used, 1);
	bounce->engine = rdma->engine;
	bounce->rdma = rdma;
	bounce->region.engine = rdma->engine;
	bounce->region.entry.kind = WH_MEMORY_PINNED;
	bounce->region.entry.access = WH_ACCESS_READ | WH_ACCESS_WRITE;
	for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++) {
		struct copy *copy = &bounce->copies[i];

		copy->bounce = bounce;
		copy->job.run = copy_start;
		copy->ended.run = copy_ended;
		wh_staging_init(&copy->staging, wh_engine_gpus(rdma->engine), false);
		copy->staging.slot = &copy->slot;
		copy->staging.done = copy_moved;
	}
}

/* For GPU memory. NULL: there are too many, or no memory. */
static struct rdma_bounce *bounce_new(struct rdma *rdma)
{
	struct wh_list *link = wh_list_take(&rdma->bounces_free);
	struct rdma_bounce *bounce = link ? wh_container(link, struct rdma_bounce, link) : NULL;

	if (!bounce && rdma->gpu_bounce_count < BOUNCES) {
		bounce = calloc(1, sizeof(*bounce));
		rdma->gpu_bounce_count += bounce != NULL;
	}
	if (bounce)
		bounce_init(bounce, rdma);
	return bounce;
}

int rdma_bounce_open_frame(struct wh_session *session, struct rdma_bounce **out)
{
	struct rdma *rdma = wh_engine_transport(wh_session_engine(session), WH_TRANSPORT_RDMA);
	struct rdma_bounce *bounce = *out;

	if (!wh_engine_gpus(wh_session_engine(session)))
		return bounce_answer(session, NULL, -ENODEV, "the owner has no GPU");
	if (bounce && (bounce->open || bounce->busy))
		return -EPROTO; /* requested again before it was refused */
	if (!bounce)
		bounce = bounce_new(rdma);
	if (!bounce)
		return bounce_answer(session, NULL, -EBUSY,
				     "all bounce buffers are in use by other peers");
	wh_session_stages(session);
	bounce->session = wh_session_id(session);
	bounce->job.run = bounce_get_memory;
	bounce->ended.run = bounce_have_memory;
	*out = bounce;
	bounce_run_job(bounce, &bounce->job);
	return 0;
}

/* For files. NULL: no memory. */
static struct rdma_bounce *bounce_new_for_files(struct rdma *rdma, struct wh_file_system *system)
{
	struct rdma_bounce *bounce = calloc(1, sizeof(*bounce));
	char *memory =
		mmap(NULL, BOUNCE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!bounce || memory == MAP_FAILED) {
		if (memory != MAP_FAILED)
			munmap(memory, BOUNCE);
		free(bounce);
		return NULL;
	}
	madvise(memory, BOUNCE, MADV_HUGEPAGE); /* faster for disks: docs/files.md */
	bounce_init(bounce, rdma);
	bounce->system = system;
	bounce->region.entry.address = (uintptr_t)memory;
	bounce->region.entry.length = BOUNCE;
	for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++)
		bounce->copies[i].slot.host = memory + i * WH_SLOT;
	wh_list_append(&rdma->file_bounces, &bounce->link);
	rdma->file_bounce_count++;
	return bounce;
}

int rdma_bounce_for_files(struct wh_session *session, struct rdma_bounce **bounces,
			  struct wh_file_system *system, struct rdma_bounce **out,
			  char why[WH_REFUSAL])
{
	struct rdma *rdma = wh_engine_transport(wh_session_engine(session), WH_TRANSPORT_RDMA);
	unsigned number = 1;

	while (number < WH_RDMA_BOUNCES && bounces[number] && bounces[number]->system != system)
		number++;
	if (number == WH_RDMA_BOUNCES ||
	    (!bounces[number] && rdma->file_bounce_count == FILE_BOUNCES)) {
		snprintf(why, WH_REFUSAL, "all bounce buffers for files are in use by %s",
			 number == WH_RDMA_BOUNCES ? "files of other file systems" : "other peers");
		return -EBUSY;
	}
	if (!bounces[number]) {
		bounces[number] = bounce_new_for_files(rdma, system);
		if (!bounces[number]) {
			snprintf(why, WH_REFUSAL, "no memory");
			return -ENOMEM;
		}
		bounces[number]->number = number;
		bounces[number]->session = wh_session_id(session);
		bounces[number]->open = true;
	}
	*out = bounces[number];
	return 0;
}

unsigned rdma_bounce_number(const struct rdma_bounce *bounce)
{
	return bounce->number;
}

bool rdma_bounce_is_open(const struct rdma_bounce *bounce)
{
	return bounce && bounce->open;
}

void rdma_bounce_get(struct rdma_bounce *bounce)
{
	bounce->busy++;
}

struct wh_region *rdma_bounce_region(struct rdma_bounce *bounce)
{
	return &bounce->region;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void copy_leave_entries(struct copy *copy)
{
	while (copy->entry_count)
		wh_region_entry_leave(copy->entries[--copy->entry_count]);
}

static int copy_answer(struct wh_session *session, const struct copy *copy, int error,
		       const char *why)
{
	const struct rdma_bounce *bounce = copy->bounce;
	struct wh_rdma_flushed answered = { .number = bounce->number * WH_RDMA_BOUNCE_SLOTS +
						      (uint32_t)(copy - bounce->copies),
					    .error = error };
	uint8_t bytes[WH_RDMA_FLUSHED_MAX];

	if (error)
		snprintf(answered.text, sizeof(answered.text), "%s", why);
	return wh_control_send(wh_session_control(session), WH_FRAME_RDMA_COPIED, 0, bytes,
			       wh_rdma_flushed_encode(bytes, &answered));
}

/* On the worker. */
static void copy_start(struct rdma_job *job, bool stop)
{
	struct copy *copy = wh_container(job, struct copy, job);

	(void)stop; /* finish what has begun */
	wh_staging_start(&copy->staging, copy->into);
}

/* On any thread: the bytes have arrived, or nothing moves any more. */
static void copy_moved(struct wh_staging *staging, int error, const char *text)
{
	struct copy *copy = wh_container(staging, struct copy, staging);

	(void)error; /* it is in `staging` */
	(void)text;
	copy_leave_entries(copy); /* loop 0 may be waiting for this */
	wh_loop_post(bounce_loop(copy->bounce), &copy->ended);
}

static void copy_ended(struct wh_task *task)
{
	struct copy *copy = wh_container(task, struct copy, ended);
	struct rdma_bounce *bounce = copy->bounce;
	struct wh_session *session = bounce_session(bounce);
	char *why = copy->staging.text;

	copy->busy = false;
	if (copy->staging.error)
		wh_log_about(wh_engine_log(bounce->engine),
			     session ? wh_session_quota(session)->node.key : 0, WH_LOG_INFO, "rdma",
			     "rdma: staging for a peer: %s", why);
	/* No peer is told the names of files. */
	if (bounce->system)
		snprintf(why, sizeof(copy->staging.text), "the owner's file cannot be %s: %s",
			 copy->into ? "read" : "written", strerror(-copy->staging.error));
	if (session)
		copy_answer(session, copy, copy->staging.error, why);
	if (bounce->system) {
		bounce->copying--;
		bounce_free_unused(bounce);
	} else {
		rdma_bounce_put(bounce);
	}
}

/* The file system of a file; NULL: memory. */
static struct wh_file_system *entry_system(struct wh_region_entry *entry)
{
	return entry->kind == WH_MEMORY_FILE ?
		       wh_container(entry, struct wh_region, entry)->registration->file->system :
		       NULL;
}

/* Check the peer's right, and add the extent to the copy. 0; -EPROTO (ends the session): outside of
 * the region, more than a slot holds, or through a buffer that is not for it, which the peer could
 * check itself; or another negative errno with the reason. */
static int copy_add_extent(struct wh_session *session, struct copy *copy,
			   const struct wh_extent *extent, uint32_t op, char why[WH_REFUSAL])
{
	uint8_t right = op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE, access;
	struct wh_region_entry *entry = wh_region_entry_enter(
		wh_engine_regions(wh_session_engine(session)), extent->region);

	if (!entry) {
		snprintf(why, WH_REFUSAL, "region %#llx is no longer published",
			 (unsigned long long)extent->region);
		return -ESTALE;
	}
	copy->entries[copy->entry_count++] = entry;
	access = wh_session_access(session, entry);
	if (!(access & right)) {
		snprintf(why, WH_REFUSAL, "region %#llx may not be %s by %.60s",
			 (unsigned long long)extent->region, op == WH_READ ? "read" : "written",
			 wh_session_hello(session)->name);
		return -EACCES;
	}
	if (entry_system(entry) != copy->bounce->system ||
	    !wh_region_entry_holds(entry, extent->offset, extent->length) ||
	    extent->length > WH_SLOT - copy->staging.bytes)
		return -EPROTO;
	if (wh_staging_add(&copy->staging, wh_container(entry, struct wh_region, entry),
			   entry->address + extent->offset, extent->length) == extent->length)
		return 0;
	snprintf(why, WH_REFUSAL, "no memory");
	return -ENOMEM;
}

static void copy_begin(struct copy *copy)
{
	struct rdma_bounce *bounce = copy->bounce;

	copy->busy = true;
	if (bounce->system) {
		bounce->copying++;
		wh_staging_start(&copy->staging, copy->into); /* its own threads wait */
	} else {
		bounce_run_job(bounce, &copy->job);
	}
}

int rdma_bounce_copy_frame(struct wh_session *session, struct rdma_bounce *const *bounces,
			   const uint8_t *payload, size_t length)
{
	struct rdma_bounce *bounce;
	struct wh_extent_reader reader;
	struct wh_rdma_copy wanted;
	struct wh_extent extent;
	char why[WH_REFUSAL] = "";
	struct copy *copy;
	int error = 0, more;

	if (wh_rdma_copy_decode(payload, length, &wanted))
		return -EPROTO;
	bounce = bounces[wanted.slot / WH_RDMA_BOUNCE_SLOTS];
	if (!rdma_bounce_is_open(bounce))
		return -EPROTO;
	copy = &bounce->copies[wanted.slot % WH_RDMA_BOUNCE_SLOTS];
	if (copy->busy)
		return -EPROTO;
	wh_staging_clear(&copy->staging);
	wh_extents_open(&reader, wanted.extents, wanted.length);
	while ((more = wh_extents_next(&reader, &extent)) > 0 && !error)
		error = copy->entry_count == WH_RDMA_COPY_EXTENTS ?
				-EPROTO :
				copy_add_extent(session, copy, &extent, wanted.op, why);
	if (more < 0)
		error = -EPROTO;
	if (error) {
		copy_leave_entries(copy);
		return error == -EPROTO ? error : copy_answer(session, copy, error, why);
	}
	wh_engine_count_staged(wh_session_engine(session), copy->staging.bytes);
	copy->into = wanted.op == WH_READ;
	copy_begin(copy);
	return 0;
}
