/* SPDX-License-Identifier: Apache-2.0 */
/* wherry copy, in parts: its ends (file.c, remote.c, mooncake.c) and the pipeline between them
 * (pipeline.c). */
#ifndef TOOLS_COPY_COPY_H
#define TOOLS_COPY_COPY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <wherry/wherry.h>

#include "progress.h"
#include "url.h"

/* A length that is known only when the source ends. */
#define COPY_UNKNOWN UINT64_MAX

#define COPY_ROUTES 8
#define COPY_SLOTS 4

enum end_kind {
	END_FILE, /* has a length; any offset can be read and written */
	END_STREAM, /* a pipe, a terminal, a character device */
	END_REMOTE, /* a region of a peer */
	END_MOONCAKE, /* memory of a Mooncake engine */
};

/* Where bytes come from or go to. */
struct end {
	const char *text; /* as on the command line */
	const char *name; /* as in messages */
	enum end_kind kind;
	uint64_t offset; /* where in the file or region to start */
	uint64_t length; /* bytes from there on; a source: to read; a target: room for them */

	int fd; /* -1: none */
	/* A target file: its own path, and the temporary file that is renamed to it when complete;
	 * `temporary` NULL: the file has no name until then. */
	char *path, *temporary;

	struct url url;
	struct wh_peer *peer;
	struct wh_remote remote;

	struct mooncake_url mooncake_url;
	struct mooncake_end *mooncake;

	struct wh_route routes[COPY_ROUTES]; /* summed over all chunks */
	size_t route_count;
};

static inline bool end_is_remote(const struct end *end)
{
	return end->kind == END_REMOTE || end->kind == END_MOONCAKE;
}

/* Each of these returns 0, or an exit code after a line on stderr. */

/* Open a file to read from `offset`; "-" is standard input. */
int file_open_source(struct end *end, uint64_t offset);

/* Create the file that becomes the target; "-" is standard output. With `keep` the other bytes of
 * an existing file are copied into it first. */
int file_open_target(struct end *end, uint64_t offset, bool keep);

/* Reserve the space, so that a full disk or a file size limit shows before anything is copied. */
int file_reserve(struct end *end, uint64_t length);

/* All bytes are written: give the target file its name. */
int file_commit(struct end *end);

/* Read or write `length` bytes at `position` from the end's start (a stream: the next ones). A read
 * sets *got, which is less than `length` at the end of the source only. */
int file_read(struct end *end, void *buffer, uint64_t length, uint64_t position, uint64_t *got);
int file_write(struct end *end, const void *buffer, uint64_t length, uint64_t position);

/* Close the file; an unfinished target is removed. */
void file_close(struct end *end);

/* Connect and find the region. `access`: the rights that the copy needs. */
int remote_open(struct end *end, struct wh_engine *engine, uint32_t access, bool quiet);
/* Close. Takes the exit code so far and returns it, or its own if that is 0. */
int remote_close(struct end *end, int code);

/* Refusals that no user would wonder about are shown by `verbose` only. */
void end_print_routes(FILE *out, const struct end *end, const char *verb, bool verbose);
struct json_t;
void end_add_routes(struct json_t *list, const struct end *end, const char *op);

/* Add the routes of a completed batch. */
void remote_count(struct end *end, struct wh_batch *batch);

/* Ask the engine, or the store at `metadata`, and find the memory. Call mooncake_close() even on
 * failure. */
int mooncake_open(struct end *end, const char *metadata, bool quiet);
/* Aborts requests that are still in flight. */
void mooncake_close(struct end *end);

/* Start to move the bytes between a slot's buffer and the memory. */
void mooncake_submit(struct end *end, size_t slot, bool write, void *buffer, uint64_t position,
		     uint64_t length);
/* Wait up to `timeout` ns for the slot's request; `count`: add it to the routes. *ended false: it
 * is still in flight. */
int mooncake_wait(struct end *end, size_t slot, int64_t timeout, bool count, bool *ended);

/* A staging buffer, and the batches that fill and empty it. */
struct slot {
	uint64_t offset; /* in the staging region */
	uint64_t length; /* bytes in it */
	struct wh_batch *batch[2]; /* with the source's peer and with the target's; NULL: that end
				      is not remote */
	bool started[2]; /* the batch has been submitted */
};

struct pipeline {
	struct wh_engine *engine;
	struct end *end[2]; /* source, target */
	uint64_t chunk;
	unsigned char *staging;
	struct wh_region *region;
	/* the source file itself, whose bytes go to the target without a slot; NULL: they do not */
	struct wh_region *file;
	struct slot slots[COPY_SLOTS];
	/* copy from the last chunk to the first, because the target overlaps the end of the
	 * source */
	bool backwards;
	bool verifying; /* leave the routes as they are: they are those of the copy, not of its
			   verification */
};

int pipeline_open(struct pipeline *pipeline, struct wh_engine *engine, struct end *source,
		  struct end *target, uint64_t chunk);

/* Copy `length` bytes, or all if COPY_UNKNOWN; *copied is how many. With `digest` (an EVP_MD_CTX)
 * the source's bytes are hashed on the way. */
int pipeline_copy(struct pipeline *pipeline, uint64_t length, void *digest,
		  struct progress *progress, uint64_t *copied);

/* Read the target back and hash it. With `both` also read the source again and compare. */
int pipeline_verify(struct pipeline *pipeline, uint64_t length, bool both, void *digest,
		    struct progress *progress);

/* Cancel what is in flight, release everything. Takes the exit code so far and returns it, or its
 * own if that is 0. */
int pipeline_close(struct pipeline *pipeline, int code);

#endif
