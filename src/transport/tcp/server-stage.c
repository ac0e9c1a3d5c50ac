/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's GPU memory and files, through slots of pinned memory. Writes are received into slots
 * and scattered from there; reads are gathered into slots and sent from there. Several slots are in
 * use at a time, so that GPU, disk and socket work in parallel. Everything runs on the connection's
 * loop, except chunk_copied() and chunk_slot_ready(). Where the initiator has lent slots of memory
 * (transport/lent.h) and a request for files names one, that one takes the place of ours, and
 * nothing is received or sent.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "transport/lent.h"
#include "transport/tcp/server.h"
#include "util/clock.h"

/* One slot of bytes between the socket and a GPU or a file. Freed when they have arrived or are
 * discarded. */
struct tcp_chunk {
	struct wh_staging staging;
	struct wh_slot_wait wait;
	struct wh_list link; /* job.chunks */
	struct wh_task task; /* chunk_back(), on the loop */
	struct wh_slot *given; /* the slot that it waited for, until the loop takes it */
	struct wh_lent *lent; /* its slot is one of these, held; NULL: it is ours */
	struct wh_slot lent_slot;
	struct tcp_server *server;
	struct tcp_write *write; /* the write; NULL: the chunk belongs to a read */
	struct tcp_job *job; /* the read; NULL: dropped, or a write */
	uint32_t first, end; /* write: the extents [first, end) have bytes in it */
	bool started; /* the GPU, or the file, has begun: chunk_back() follows */
	bool moved; /* it has finished */
	bool at_once; /* this thread has gathered it: none is gathered ahead of it */
	bool counted; /* in server.in_flight */
	uint64_t sent; /* bytes sent (read) or received (write) */
	struct wh_region_entry **entries; /* entered while the GPU copies */
	uint32_t entry_count, entry_room;
};

/* ---- chunks ------------------------------------------------------------ */

static void chunk_leave_regions(struct tcp_chunk *chunk)
{
	while (chunk->entry_count)
		wh_region_entry_leave(chunk->entries[--chunk->entry_count]);
}

static void chunk_free(struct tcp_chunk *chunk)
{
	struct tcp_server *server = chunk->server;

	chunk_leave_regions(chunk);
	if (chunk->staging.slot && !chunk->lent)
		wh_slot_release(wh_engine_gpus(server->engine), chunk->staging.slot);
	wh_lent_release(chunk->lent);
	wh_staging_destroy(&chunk->staging);
	free(chunk->entries);
	free(chunk);
	if (!--server->chunk_count && server->dead)
		tcp_server_post_free(server);
}

/* The copy has finished, with or without an error. On any thread. */
static void chunk_copied(struct wh_staging *staging, int error, const char *text)
{
	struct tcp_chunk *chunk = wh_container(staging, struct tcp_chunk, staging);
	struct tcp_server *server = chunk->server;
	bool counted = chunk->counted; /* the chunk may be gone once it is posted */

	(void)error; /* chunk->staging.error has it, too */
	(void)text;
	wh_loop_post(server->loop, &chunk->task);
	if (counted)
		atomic_fetch_sub(&server->in_flight, 1);
}

static void chunk_back(struct wh_task *task);

/* The slot that a chunk waited for is free. On any thread. */
static void chunk_slot_ready(struct wh_slot_wait *wait, struct wh_slot *slot)
{
	struct tcp_chunk *chunk = wh_container(wait, struct tcp_chunk, wait);

	chunk->given = slot;
	wh_loop_post(chunk->server->loop, &chunk->task);
}

static struct tcp_chunk *chunk_make(struct tcp_server *server)
{
	struct tcp_chunk *chunk = calloc(1, sizeof(*chunk));

	if (!chunk)
		return NULL;
	chunk->server = server;
	chunk->task.run = chunk_back;
	chunk->wait.ready = chunk_slot_ready;
	wh_staging_init(&chunk->staging, wh_engine_gpus(server->engine), false);
	chunk->staging.done = chunk_copied;
	server->chunk_count++;
	return chunk;
}

/* Allocate a chunk. If no slot is free, it waits for one and continues in chunk_back(). NULL: no
 * memory. */
static struct tcp_chunk *chunk_new(struct tcp_server *server, enum wh_slot_use slots,
				   const struct wh_file_system *system)
{
	struct tcp_chunk *chunk;

	if (wh_slots_prepare_file(wh_engine_gpus(server->engine), slots, system))
		return NULL;
	chunk = chunk_make(server);
	if (chunk)
		chunk->staging.slot = wh_slot_acquire_file(wh_engine_gpus(server->engine), slots,
							   system, &chunk->wait);
	return chunk;
}

/* The same with a slot that the initiator has lent; tcp_lent_check() has found it. */
static struct tcp_chunk *chunk_new_lent(struct tcp_server *server, uint32_t slot)
{
	struct tcp_chunk *chunk = chunk_make(server);

	if (!chunk)
		return NULL;
	chunk->lent = wh_session_lent(server->session);
	wh_lent_hold(chunk->lent);
	chunk->lent_slot.use = WH_SLOT_FILE_OWNER;
	chunk->lent_slot.host = wh_lent_slot(chunk->lent, slot);
	chunk->staging.slot = &chunk->lent_slot;
	return chunk;
}

/* Enter a region until the GPU has finished with the chunk. NULL: *error is ESTALE (it was
 * unregistered) or ENOMEM. */
static const struct wh_region *chunk_enter_region(struct tcp_chunk *chunk, uint64_t id, int *error)
{
	struct wh_region_entry *entry, **grown;
	uint32_t room = chunk->entry_room ? 2 * chunk->entry_room : 4;

	if (chunk->entry_count && wh_region_entry_id(chunk->entries[chunk->entry_count - 1]) == id)
		return wh_container(chunk->entries[chunk->entry_count - 1], struct wh_region,
				    entry);
	if (chunk->entry_count == chunk->entry_room) {
		grown = realloc(chunk->entries, room * sizeof(*grown));
		*error = ENOMEM;
		if (!grown)
			return NULL;
		chunk->entries = grown;
		chunk->entry_room = room;
	}
	entry = wh_region_entry_enter(wh_engine_regions(chunk->server->engine), id);
	*error = ESTALE;
	if (!entry)
		return NULL;
	chunk->entries[chunk->entry_count++] = entry;
	return wh_container(entry, struct wh_region, entry);
}

/* Leave those of host memory, which wh_staging_start() has copied: a file system that does not
 * answer must not keep them from being unregistered. */
static void chunk_leave_host_regions(struct tcp_chunk *chunk)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < chunk->entry_count; i++) {
		if (wh_kind_on_host(chunk->entries[i]->kind))
			wh_region_entry_leave(chunk->entries[i]);
		else
			chunk->entries[left++] = chunk->entries[i];
	}
	chunk->entry_count = left;
}

/* Reading a file touches nothing that somebody else has to wait for. */
static void chunk_start_copy(struct tcp_chunk *chunk, bool into)
{
	chunk->counted = !into || chunk->staging.slot->use == WH_SLOT_OWNER;
	if (chunk->counted)
		atomic_fetch_add(&chunk->server->in_flight, 1);
	chunk->started = true;
	wh_engine_count_staged(chunk->server->engine, chunk->staging.bytes);
	wh_staging_start(&chunk->staging, into);
	chunk_leave_host_regions(chunk);
}

/* ---- writes ------------------------------------------------------------ */

int tcp_stage_write(struct tcp_server *server, enum wh_slot_use slots,
		    struct wh_file_system *system)
{
	size_t list = server->request.count * sizeof(struct tcp_extent);
	struct tcp_write *write = malloc(sizeof(*write) + list);

	if (!write)
		return -ENOMEM;
	memset(write, 0, sizeof(*write));
	memcpy(write->extents, server->extents, list);
	write->request = server->request;
	write->slots = slots;
	write->system = system;
	write->chunks = 1;
	server->write = write;
	server->extents = write->extents;
	server->write_count++;
	tcp_server_charge(server, tcp_write_size(&write->request));
	return 0;
}

static void write_chunk_done(struct tcp_server *server, struct tcp_write *write)
{
	if (!--write->chunks)
		wh_list_append(&server->arrived, &write->link);
}

size_t tcp_stage_into(struct tcp_server *server, struct iovec *vector)
{
	struct tcp_chunk *chunk = server->chunk;
	uint64_t room;

	if (!chunk) {
		chunk = server->chunk =
			chunk_new(server, server->write->slots, server->write->system);
		server->wants_slot = chunk && !chunk->staging.slot;
		if (!chunk) {
			/* Nothing more can be received: close the connection. */
			server->failed = true;
			return 0;
		}
		chunk->write = server->write;
	}
	if (!chunk->staging.slot)
		return 0;
	room = WH_SLOT - chunk->sent;
	*vector = (struct iovec){ chunk->staging.slot->host + chunk->sent,
				  room < server->left ? room : server->left };
	return vector->iov_len;
}

/* Map the bytes of a full slot to the extents, and advance along these. */
static void chunk_map_to_extents(struct tcp_server *server, struct tcp_chunk *chunk)
{
	uint64_t left = chunk->sent;
	int error;

	chunk->first = server->at;
	while (left) {
		struct tcp_extent *extent = &server->extents[server->at];
		uint64_t length = extent->length - server->skip, taken = 0;
		const struct wh_region *region =
			extent->error ? NULL : chunk_enter_region(chunk, extent->region, &error);

		length = length < left ? length : left;
		if (!extent->error && !region)
			extent->error = error;
		if (region)
			taken = wh_staging_add(
				&chunk->staging, region,
				region->entry.address + extent->offset + server->skip, length);
		if (region && taken < length)
			extent->error = ENOMEM;
		wh_staging_skip(&chunk->staging, length - taken);
		chunk->end = server->at + 1;
		left -= length;
		tcp_extents_advance(server->extents, &server->at, &server->skip, length);
	}
}

void tcp_stage_received(struct tcp_server *server, size_t bytes)
{
	struct tcp_chunk *chunk = server->chunk;

	chunk->sent += bytes;
	server->left -= bytes;
	if (server->left && chunk->sent < WH_SLOT)
		return;
	server->chunk = NULL;
	chunk_map_to_extents(server, chunk);
	server->write->chunks++;
	chunk_start_copy(chunk, false);
}

int tcp_stage_lent_write(struct tcp_server *server)
{
	struct tcp_chunk *chunk = chunk_new_lent(server, server->request.slot);

	if (!chunk)
		return -ENOMEM;
	chunk->write = server->write;
	chunk->sent = server->left;
	server->left = 0;
	chunk_map_to_extents(server, chunk);
	server->write->chunks++;
	chunk_start_copy(chunk, false);
	return 0;
}

void tcp_stage_end_write(struct tcp_server *server)
{
	struct tcp_write *write = server->write;

	server->write = NULL;
	server->extents = server->own;
	write_chunk_done(server, write);
}

/* A chunk of a write has arrived, or has failed. */
static void chunk_end_write(struct tcp_chunk *chunk)
{
	struct tcp_server *server = chunk->server;
	struct tcp_write *write = chunk->write;

	for (uint32_t i = chunk->first; i < chunk->end && chunk->staging.error; i++) {
		if (!write->extents[i].error)
			write->extents[i].error = -chunk->staging.error;
	}
	if (chunk->staging.error)
		wh_log_about(wh_engine_log(server->engine),
			     wh_session_quota(server->session)->node.key, WH_LOG_INFO, "tcp",
			     "cannot store bytes received from a peer: %s", chunk->staging.text);
	write_chunk_done(server, write);
	chunk_free(chunk);
}

/* ---- reads ------------------------------------------------------------- */

/* Start gathering the next bytes of the read into the chunk. 0, -ESTALE or -ENOMEM. */
static int chunk_gather(struct tcp_job *job, struct tcp_chunk *chunk)
{
	int error;

	while (job->ungathered && chunk->staging.bytes < WH_SLOT) {
		const struct tcp_extent *extent = &job->extents[job->at];
		const struct wh_region *region = chunk_enter_region(chunk, extent->region, &error);
		uint64_t taken;

		/* The response has announced these bytes, but their region was unregistered since:
		 * only closing the connection tells the peer. */
		if (!region)
			return -error;
		taken = wh_staging_add(&chunk->staging, region,
				       region->entry.address + extent->offset + job->skip,
				       extent->length - job->skip);
		if (!taken)
			return -ENOMEM;
		job->ungathered -= taken;
		tcp_extents_advance(job->extents, &job->at, &job->skip, taken);
	}
	if (wh_staging_gather_at_once(&chunk->staging, true)) {
		chunk_leave_regions(chunk);
		chunk->moved = chunk->at_once = true;
	} else {
		chunk_start_copy(chunk, true);
	}
	return 0;
}

/* The first bytes of a read could not be gathered: say so, unless a part of the response has been
 * sent. 0, or the error that ends the connection. */
static int job_fail(struct tcp_server *server, struct tcp_job *job, const struct tcp_chunk *chunk)
{
	int error = chunk->staging.error;

	wh_log_about(wh_engine_log(server->engine), wh_session_quota(server->session)->node.key,
		     WH_LOG_INFO, "tcp", "cannot read bytes that a peer asks for: %s",
		     chunk->staging.text);
	return tcp_answer_refuse_read(server, job, -error) ? 0 : error;
}

/* Nothing is gathered behind this chunk, the last one, for now: it waits for a slot, or this thread
 * has gathered it and is about to send it, while it is in the CPU's cache. */
static bool chunk_is_last(const struct tcp_chunk *last)
{
	return last && (!last->staging.slot || last->at_once);
}

/* Do both wait for the same? */
static bool job_is_alike(const struct tcp_job *one, const struct tcp_job *other)
{
	return one->system == other->system &&
	       (one->system || one->extents[0].region == other->extents[0].region);
}

/* The chunks of the reads that wait for the same. */
static uint32_t job_count_alike(const struct tcp_server *server, const struct tcp_job *job)
{
	const struct wh_list *link, *chunk;
	uint32_t count = 0;

	for (link = server->jobs.next; link != &server->jobs; link = link->next) {
		const struct tcp_job *other = wh_container(link, struct tcp_job, link);

		if (!other->staged || !job_is_alike(other, job))
			continue;
		for (chunk = other->chunks.next; chunk != &other->chunks; chunk = chunk->next)
			count++;
	}
	return count;
}

/* May the read use one more chunk? Those of a file that does not answer never use them all. */
static bool job_may_gather(const struct tcp_server *server, const struct tcp_job *job,
			   bool overtake)
{
	if (server->read_chunks < TCP_CHUNKS)
		return true;
	return overtake && server->read_chunks < TCP_CHUNKS_OVERTAKING &&
	       job_count_alike(server, job) < TCP_CHUNKS;
}

/* Gather the next bytes of one read. 0: all are assigned to chunks. 1: no more can be gathered for
 * it for now. Or a negative errno. */
static int job_gather(struct tcp_server *server, struct tcp_job *job, bool overtake)
{
	struct tcp_chunk *last = NULL;
	int error = 0;

	if (!wh_list_empty(&job->chunks)) {
		last = wh_container(job->chunks.next, struct tcp_chunk, link);
		if (last->moved && last->staging.error)
			return job_fail(server, job, last);
		last = wh_container(job->chunks.prev, struct tcp_chunk, link);
	}
	while (job->ungathered && job_may_gather(server, job, overtake) && !error &&
	       !chunk_is_last(last)) {
		last = job->request.slot ? chunk_new_lent(server, job->request.slot) :
					   chunk_new(server, job->slots, job->system);
		if (!last)
			return -ENOMEM;
		wh_list_append(&job->chunks, &last->link);
		last->job = job;
		server->read_chunks++;
		if (last->staging.slot)
			error = chunk_gather(job, last);
	}
	return error ? error : job->ungathered || chunk_is_last(last);
}

/* Reads are sent one after the other. Meanwhile the following reads are gathered, so that the GPU
 * is not idle. No read gets a slot while an earlier one waits for a slot: otherwise they could wait
 * for each other. For the same reason only reads of one slot overtake, and only such: what they
 * have they give back without needing another. */
int tcp_stage_read(struct tcp_server *server, bool overtake)
{
	bool passed = false; /* an earlier read has to wait until one of its region is sent */
	struct wh_list *link;
	int error;

	for (link = server->jobs.next; link != &server->jobs; link = link->next) {
		struct tcp_job *job = wh_container(link, struct tcp_job, link);
		bool single = job->request.bytes <= WH_SLOT;

		if (!job->staged)
			continue;
		if (passed && !single)
			break;
		error = job_gather(server, job, overtake);
		if (error < 0)
			return error;
		if (error && !(overtake && single && wh_list_empty(&job->chunks)))
			break;
		passed = passed || error;
	}
	return 0;
}

bool tcp_stage_is_whole(const struct tcp_job *job)
{
	const struct wh_list *link;

	if (job->ungathered)
		return false;
	for (link = job->chunks.next; link != &job->chunks; link = link->next) {
		if (!wh_container(link, struct tcp_chunk, link)->moved)
			return false;
	}
	return true;
}

size_t tcp_stage_out_of(struct tcp_job *job, struct iovec *vector)
{
	struct tcp_chunk *chunk = wh_container(job->chunks.next, struct tcp_chunk, link);

	if (wh_list_empty(&job->chunks) || !chunk->moved)
		return 0;
	*vector = (struct iovec){ chunk->staging.slot->host + chunk->sent,
				  chunk->staging.bytes - chunk->sent };
	return vector->iov_len;
}

bool tcp_stage_landed(struct tcp_server *server, struct tcp_job *job)
{
	struct tcp_chunk *chunk = wh_container(job->chunks.next, struct tcp_chunk, link);

	if (wh_list_empty(&job->chunks) || !chunk->moved)
		return false;
	tcp_stage_sent(server, job, chunk->staging.bytes);
	job->left = 0;
	return true;
}

static void job_remove_chunk(struct tcp_server *server, struct tcp_chunk *chunk)
{
	wh_list_remove(&chunk->link);
	server->read_chunks--;
}

void tcp_stage_sent(struct tcp_server *server, struct tcp_job *job, size_t bytes)
{
	struct tcp_chunk *chunk = wh_container(job->chunks.next, struct tcp_chunk, link);

	chunk->sent += bytes;
	if (chunk->sent < chunk->staging.bytes)
		return;
	job_remove_chunk(server, chunk);
	chunk_free(chunk);
}

void tcp_stage_drop_read(struct tcp_server *server, struct tcp_job *job)
{
	while (!wh_list_empty(&job->chunks)) {
		struct tcp_chunk *chunk = wh_container(job->chunks.next, struct tcp_chunk, link);

		job_remove_chunk(server, chunk);
		chunk->job = NULL;
		/* Its bytes are there, or could not be gathered; or it waits for a slot. Otherwise
		 * its task is pending, and chunk_back() frees it. */
		if (chunk->moved || (chunk->staging.slot && !chunk->started) ||
		    wh_slot_cancel_wait(wh_engine_gpus(chunk->server->engine), &chunk->wait))
			chunk_free(chunk);
	}
}

/* ---- back on the loop -------------------------------------------------- */

/* Continue a chunk that has received its slot. */
static void chunk_take_slot(struct tcp_chunk *chunk)
{
	struct tcp_server *server = chunk->server;

	chunk->staging.slot = chunk->given;
	chunk->given = NULL;
	if (chunk == server->chunk)
		server->wants_slot = false;
	else if (chunk->job && chunk_gather(chunk->job, chunk))
		server->failed = true;
	else if (!chunk->job)
		chunk_free(chunk);
}

static void write_drop(struct tcp_write *write)
{
	if (!--write->chunks)
		free(write);
}

static void chunk_back(struct wh_task *task)
{
	struct tcp_chunk *chunk = wh_container(task, struct tcp_chunk, task);
	struct tcp_server *server = chunk->server;
	bool dead = server->dead;

	if (chunk->given) {
		chunk_take_slot(chunk);
	} else {
		chunk_leave_regions(chunk);
		chunk->moved = true;
		if (chunk->write && !dead) {
			chunk_end_write(chunk);
		} else if (dead || !chunk->job) {
			if (chunk->write)
				write_drop(chunk->write);
			chunk_free(chunk);
		}
	}
	if (!dead)
		tcp_server_turn(server, true);
}

void tcp_stage_stop(struct tcp_server *server)
{
	struct tcp_chunk *chunk = server->chunk;

	if (server->write)
		write_drop(server->write);
	server->write = NULL;
	server->chunk = NULL;
	if (!chunk)
		return;
	chunk->write = NULL;
	if (chunk->staging.slot ||
	    wh_slot_cancel_wait(wh_engine_gpus(server->engine), &chunk->wait))
		chunk_free(chunk);
}
