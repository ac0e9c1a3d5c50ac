/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks go from the source into staging buffers and from there to the target. A remote end works
 * in the background while a file is read or written, so both overlap. The bytes of a source file
 * need no buffer of ours where the engine can send them from the page cache. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

#include "copy/copy.h"
#include "engine.h"
#include "memory.h"
#include "util/clock.h"

#define REDRAW 100000000 /* ns between two updates of the progress line */

enum { SOURCE, TARGET };

/* Get pinned memory where a GPU is on the other side: otherwise each transfer would have to pin it.
 * If there is none, the GPU is on another machine, and any memory will do. */
static int get_staging(struct pipeline *pipeline, uint64_t length, void **out)
{
	struct wh_memory_options pinned = { .size = sizeof(pinned), .kind = WH_MEMORY_PINNED };

	for (int side = SOURCE; side <= TARGET; side++) {
		const struct end *end = pipeline->end[side];

		if (end->peer && memory_on_gpu(end->remote.kind) &&
		    !wh_memory_alloc(pipeline->engine, length, &pinned, out))
			return 0;
	}
	return wh_memory_alloc(pipeline->engine, length, NULL, out);
}

/* Which transport would move bytes from the region to the target? "": none would. */
static void find_transport(const struct pipeline *pipeline, struct wh_region *region, char out[16])
{
	struct wh_batch *batch = pipeline->slots[0].batch[TARGET];
	uint64_t length = pipeline->end[SOURCE]->length;
	struct wh_transfer transfer = {
		.local = region,
		.remote = pipeline->end[TARGET]->remote.id,
		.remote_offset = pipeline->end[TARGET]->offset,
		.length = length < pipeline->chunk ? length : pipeline->chunk,
		.op = WH_WRITE,
	};
	struct wh_route routes[COPY_ROUTES];
	size_t count = COPY_ROUTES;

	out[0] = 0;
	if (wh_batch_add(batch, &transfer, 1) || wh_batch_routes(batch, routes, &count))
		count = 0;
	for (size_t i = 0; i < count; i++)
		if (routes[i].bytes)
			memcpy(out, routes[i].transport, sizeof(routes[i].transport));
	wh_batch_clear(batch);
}

/* Let the engine read the file, unless the bytes would go by another transport than those of
 * memory: a NIC sends memory only, and other processes' memory is not always mapped. */
static void open_source_file(struct pipeline *pipeline)
{
	const struct end *source = pipeline->end[SOURCE];
	struct wh_file_options options = {
		.size = sizeof(options),
		.offset = source->offset,
		.length = source->length,
	};
	char memory[16], file[16];

	if (source->kind != END_FILE || pipeline->end[TARGET]->kind != END_REMOTE ||
	    !source->length)
		return;
	if (wh_file_register_fd(pipeline->engine, source->fd, &options, &pipeline->file)) {
		pipeline->file = NULL; /* a block device; its bytes go through slots */
		return;
	}
	find_transport(pipeline, pipeline->region, memory);
	find_transport(pipeline, pipeline->file, file);
	if (*file && strcmp(memory, file) == 0)
		return;
	wh_region_unregister(pipeline->file);
	pipeline->file = NULL;
}

int pipeline_open(struct pipeline *pipeline, struct wh_engine *engine, struct end *source,
		  struct end *target, uint64_t chunk)
{
	void *staging;
	int error;

	*pipeline = (struct pipeline){
		.engine = engine,
		.end = { source, target },
		.chunk = chunk,
	};
	error = get_staging(pipeline, COPY_SLOTS * chunk, &staging);
	if (error)
		return engine_fail(error, "cannot allocate memory for the copy");
	pipeline->staging = staging;
	error = wh_region_register(engine, staging, COPY_SLOTS * chunk, NULL, &pipeline->region);
	if (error)
		return engine_fail(error, "cannot register memory for the copy");
	for (size_t i = 0; i < COPY_SLOTS; i++) {
		struct slot *slot = &pipeline->slots[i];

		slot->offset = i * chunk;
		for (int side = SOURCE; side <= TARGET; side++) {
			struct wh_peer *peer = pipeline->end[side]->peer;

			error = peer ? wh_batch_new(peer, NULL, &slot->batch[side]) : 0;
			if (error)
				return engine_fail(error, "cannot create a batch");
		}
	}
	open_source_file(pipeline);
	return 0;
}

/* ---- one chunk, one side --------------------------------------------------------------------- */

static int batch_fail(struct end *end, int error, const char *text)
{
	return fail(error, "%s: %s", end->name, *text ? text : strerror(-error));
}

static size_t number_of(const struct pipeline *pipeline, const struct slot *slot)
{
	return (size_t)(slot - pipeline->slots);
}

/* Start to move a slot's bytes between the slot and the remote end. */
static int slot_submit(struct pipeline *pipeline, struct slot *slot, int side, uint32_t op,
		       uint64_t position)
{
	struct end *end = pipeline->end[side];
	struct wh_batch *batch = slot->batch[side];
	bool file = pipeline->file && op == WH_WRITE;
	struct wh_transfer transfer = {
		.local = file ? pipeline->file : pipeline->region,
		.local_offset = file ? position : slot->offset,
		.remote = end->remote.id,
		.remote_offset = end->offset + position,
		.length = slot->length,
		.op = op,
	};
	int error;

	if (end->kind == END_MOONCAKE) {
		mooncake_submit(end, number_of(pipeline, slot), op == WH_WRITE,
				pipeline->staging + slot->offset, position, slot->length);
		return 0;
	}
	error = wh_batch_clear(batch);
	if (!error)
		error = wh_batch_add(batch, &transfer, 1);
	if (!error)
		error = wh_batch_submit(batch);
	slot->started[side] = !error;
	return error ? batch_fail(end, error, wh_error_text()) : 0;
}

/* When something last moved on one side. */
struct motion {
	uint64_t moved;
	int64_t since;
};

/* No slot of this side moves. */
static bool is_stalled(const struct pipeline *pipeline, int side, struct motion *motion)
{
	uint64_t sum = 0, moved;
	int64_t now = wh_now();

	for (size_t i = 0; i < COPY_SLOTS; i++)
		if (pipeline->slots[i].started[side] &&
		    !wh_batch_progress(pipeline->slots[i].batch[side], &moved))
			sum += moved;
	if (sum != motion->moved)
		*motion = (struct motion){ sum, now };
	return now - motion->since >= engine_stall();
}

static int slot_finish(struct pipeline *pipeline, struct slot *slot, int side,
		       struct progress *progress, uint64_t done)
{
	struct end *end = pipeline->end[side];
	struct wh_batch *batch = slot->batch[side];
	struct motion motion = { .since = wh_now() };
	bool ended = false;
	int error = 0;

	while (end->kind == END_MOONCAKE && !ended && !error) {
		error = mooncake_wait(end, number_of(pipeline, slot), REDRAW, !pipeline->verifying,
				      &ended);
		if (!ended)
			progress_move(progress, done);
	}
	if (error)
		return error;
	if (!batch)
		return 0;
	while ((error = wh_batch_wait_for(batch, REDRAW)) == -EAGAIN) {
		progress_move(progress, done);
		if (is_stalled(pipeline, side, &motion))
			return fail(ETIMEDOUT, "%s: " STALL_TEXT, end->name,
				    (double)engine_stall() / 1e9);
	}
	if (!error)
		error = wh_batch_status(batch);
	if (error)
		return batch_fail(end, error, wh_error_text());
	if (!pipeline->verifying)
		remote_count(end, batch);
	return 0;
}

/* Start to fill a slot from one side with `length` bytes; fewer only where a stream ends. */
static int slot_fetch(struct pipeline *pipeline, struct slot *slot, int side, uint64_t position,
		      uint64_t length)
{
	struct end *end = pipeline->end[side];
	int code;

	slot->length = length;
	if (end_is_remote(end))
		return slot_submit(pipeline, slot, side, WH_READ, position);
	if (side == SOURCE && pipeline->file && !pipeline->verifying)
		return 0; /* slot_store() names the file's bytes */
	code = file_read(end, pipeline->staging + slot->offset, length, position, &slot->length);
	if (!code && end->kind == END_FILE && slot->length < length)
		code = fail(EIO, "%s has become shorter while it was read", end->name);
	return code;
}

/* Start to store a slot's bytes in the target. */
static int slot_store(struct pipeline *pipeline, struct slot *slot, uint64_t position)
{
	struct end *end = pipeline->end[TARGET];

	if (slot->length > end->length - position)
		return fail(ENOSPC, "%s is full: there is room for %llu bytes", end->name,
			    (unsigned long long)end->length);
	if (end_is_remote(end))
		return slot_submit(pipeline, slot, TARGET, WH_WRITE, position);
	return file_write(end, pipeline->staging + slot->offset, slot->length, position);
}

/* ---- the copy -------------------------------------------------------------------------------- */

/* Progress of the copy. Chunks are fetched, stored and finished in order, each in the slot of its
 * number. */
struct course {
	uint64_t fetched, stored, finished; /* chunks */
	uint64_t read, written; /* bytes; written: submitted */
	uint64_t done; /* bytes that the target has */
	bool ended; /* nothing left to fetch */
};

static struct slot *slot_of(struct pipeline *pipeline, uint64_t chunk)
{
	return &pipeline->slots[chunk % COPY_SLOTS];
}

static int fetch_next(struct pipeline *pipeline, struct course *course, uint64_t length)
{
	struct slot *slot = slot_of(pipeline, course->fetched);
	uint64_t left = length - course->read;
	uint64_t want = left < pipeline->chunk ? left : pipeline->chunk;
	uint64_t position = pipeline->backwards ? left - want : course->read;
	int code = want ? slot_fetch(pipeline, slot, SOURCE, position, want) : 0;

	if (code)
		return code;
	if (want && slot->length) {
		course->read += slot->length;
		course->fetched++;
	}
	course->ended = course->read == length || !want || slot->length < want;
	return 0;
}

static int store_next(struct pipeline *pipeline, struct course *course, uint64_t length,
		      void *digest, struct progress *progress)
{
	struct slot *slot = slot_of(pipeline, course->stored);
	int code = slot_finish(pipeline, slot, SOURCE, progress, course->done);

	if (!code)
		code = slot_store(pipeline, slot,
				  pipeline->backwards ? length - course->written - slot->length :
							course->written);
	if (code)
		return code;
	if (digest && !EVP_DigestUpdate(digest, pipeline->staging + slot->offset, slot->length))
		return fail(EIO, "SHA-256 failed");
	course->written += slot->length;
	course->stored++;
	return 0;
}

static int finish_next(struct pipeline *pipeline, struct course *course, struct progress *progress)
{
	struct slot *slot = slot_of(pipeline, course->finished);
	int code = slot_finish(pipeline, slot, TARGET, progress, course->done);

	if (code)
		return code;
	course->done += slot->length;
	course->finished++;
	progress_move(progress, course->done);
	return 0;
}

int pipeline_copy(struct pipeline *pipeline, uint64_t length, void *digest,
		  struct progress *progress, uint64_t *copied)
{
	/* A remote source has several chunks in flight. A file is read one chunk ahead; the other
	 * slots hold chunks in flight to the target. */
	uint64_t ahead = !end_is_remote(pipeline->end[SOURCE]) ? 1 :
			 !end_is_remote(pipeline->end[TARGET]) ? COPY_SLOTS - 1 :
								 COPY_SLOTS / 2;
	struct course course = { .ended = !length };
	int code = 0;

	while (!code && !(course.ended && course.finished == course.fetched)) {
		if (!course.ended && course.fetched - course.stored < ahead &&
		    course.fetched - course.finished < COPY_SLOTS)
			code = fetch_next(pipeline, &course, length);
		else if (course.stored < course.fetched &&
			 (course.ended || course.fetched - course.stored == ahead))
			code = store_next(pipeline, &course, length, digest, progress);
		else
			code = finish_next(pipeline, &course, progress);
	}
	*copied = course.done;
	return code;
}

/* ---- verification ---------------------------------------------------------------------------- */

/* The first of the two slots that a chunk takes. */
static struct slot *pair_of(struct pipeline *pipeline, uint64_t number)
{
	return &pipeline->slots[number % 2 ? COPY_SLOTS / 2 : 0];
}

/* Fetch chunk `number`: the target's bytes into one slot, the source's into the next. */
static int fetch_pair(struct pipeline *pipeline, uint64_t number, uint64_t length, bool both)
{
	struct slot *slot = pair_of(pipeline, number);
	uint64_t position = number * pipeline->chunk, left;
	int code;

	if (position >= length)
		return 0;
	left = length - position;
	if (left > pipeline->chunk)
		left = pipeline->chunk;
	code = slot_fetch(pipeline, slot, TARGET, position, left);
	if (!code && both)
		code = slot_fetch(pipeline, slot + 1, SOURCE, position, left);
	return code;
}

static int compare_pair(struct pipeline *pipeline, uint64_t number, bool both, void *digest)
{
	struct slot *slot = pair_of(pipeline, number);
	const unsigned char *copy = pipeline->staging + slot[0].offset;
	const unsigned char *original = pipeline->staging + slot[1].offset;
	uint64_t wrong = 0;

	if (both && memcmp(copy, original, slot->length) != 0) {
		while (copy[wrong] == original[wrong])
			wrong++;
		return fail(EIO,
			    "the copy is wrong: byte %" PRIu64 " is 0x%02x in %s and 0x%02x in %s",
			    number * pipeline->chunk + wrong, original[wrong],
			    pipeline->end[SOURCE]->name, copy[wrong], pipeline->end[TARGET]->name);
	}
	if (!EVP_DigestUpdate(digest, copy, slot->length))
		return fail(EIO, "SHA-256 failed");
	return 0;
}

int pipeline_verify(struct pipeline *pipeline, uint64_t length, bool both, void *digest,
		    struct progress *progress)
{
	uint64_t chunks = length / pipeline->chunk + (length % pipeline->chunk != 0);
	int code;

	pipeline->verifying = true;
	code = fetch_pair(pipeline, 0, length, both);

	for (uint64_t number = 0; number < chunks && !code; number++) {
		struct slot *slot = pair_of(pipeline, number);
		uint64_t done = number * pipeline->chunk;

		code = slot_finish(pipeline, slot, TARGET, progress, done);
		if (!code && both)
			code = slot_finish(pipeline, slot + 1, SOURCE, progress, done);
		if (!code)
			code = fetch_pair(pipeline, number + 1, length, both);
		if (!code)
			code = compare_pair(pipeline, number, both, digest);
		progress_move(progress, done);
	}
	return code;
}

int pipeline_close(struct pipeline *pipeline, int code)
{
	int error;

	/* Nothing may be in flight in memory that is about to be freed. */
	mooncake_close(pipeline->end[SOURCE]);
	mooncake_close(pipeline->end[TARGET]);
	for (size_t i = 0; i < (size_t)2 * COPY_SLOTS; i++) {
		struct wh_batch *batch = pipeline->slots[i / 2].batch[i % 2];

		if (batch && wh_batch_test(batch) == -EAGAIN)
			wh_batch_cancel(batch);
		code = engine_undo(code, wh_batch_free(batch), "cannot free a batch");
	}
	error = pipeline->file ? wh_region_unregister(pipeline->file) : 0;
	code = engine_undo(code, error, "cannot let go of the file");
	error = pipeline->region ? wh_region_unregister(pipeline->region) : 0;
	if (!error && pipeline->staging)
		error = wh_memory_free(pipeline->engine, pipeline->staging);
	return engine_undo(code, error, "cannot free the copy's memory");
}
