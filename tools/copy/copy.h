/* SPDX-License-Identifier: Apache-2.0 */
/* wherry copy, in parts: its ends (file.c, remote.c, mooncake.c) and what runs between them
 * (pipeline.c). */
#ifndef TOOLS_COPY_COPY_H
#define TOOLS_COPY_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/wherry.h>

#include "progress.h"
#include "url.h"

/* A length that shows only when the source ends. */
#define COPY_UNKNOWN UINT64_MAX

#define COPY_ROUTES 8
#define COPY_SLOTS 4

enum end_kind {
	END_FILE, /* has a length; can be read and written at any offset */
	END_STREAM, /* a pipe, a terminal, a character device */
	END_REMOTE, /* a region of a peer */
	END_MOONCAKE, /* memory of an engine of Mooncake's */
};

/* Where bytes come from or go to. */
struct end {
	const char *text; /* as on the command line */
	const char *name; /* as messages call it */
	enum end_kind kind;
	uint64_t offset; /* where to start in it */
	uint64_t length; /* bytes from there on; a source: to read; a target: room */

	int fd; /* -1: none */
	/* A target file: its own path, and the file that is renamed to it when it is complete;
	 * NULL: it has no name until then. */
	char *path, *temporary;

	struct url url;
	struct wh_peer *peer;
	struct wh_remote remote;

	struct mooncake_url mooncake_url;
	struct mooncake_end *mooncake;

	struct wh_route routes[COPY_ROUTES]; /* the sum over all chunks */
	size_t route_count;
};

static inline bool end_is_remote(const struct end *end)
{
	return end->kind == END_REMOTE || end->kind == END_MOONCAKE;
}

/* Each returns 0, or an exit code after a line on stderr. */

/* Open a file to read from `offset`; "-" is standard input. */
int file_open_source(struct end *end, uint64_t offset);

/* Make the file that becomes the target; "-" is standard output. With an offset the bytes around
 * the copied ones are kept; without one the file is made anew. */
int file_open_target(struct end *end, uint64_t offset, bool keep);

/* Take the space for so many bytes, so that a full disk, or more than a file can have, shows before
 * anything is copied. */
int file_reserve(struct end *end, uint64_t length);

/* Everything is written: give the target file its name. */
int file_commit(struct end *end);

/* Read or write all of `length` bytes at `position` from where the end starts (a stream: the next
 * ones). A read sets *got: less than `length` at the end only. */
int file_read(struct end *end, void *buffer, uint64_t length, uint64_t position, uint64_t *got);
int file_write(struct end *end, const void *buffer, uint64_t length, uint64_t position);

/* Let go of it; an unfinished target is removed. */
void file_close(struct end *end);

/* Connect and find the region. `access` is what is needed of it. */
int remote_open(struct end *end, struct wh_engine *engine, uint32_t access, bool quiet);
/* Takes the exit code so far and returns it, or its own if that is 0. */
int remote_close(struct end *end, int code);

/* Add the routes of a batch that has completed. */
void remote_count(struct end *end, struct wh_batch *batch);

/* Ask the engine, or the store at `metadata`, and find the memory. mooncake_close() in any case. */
int mooncake_open(struct end *end, const char *metadata, bool quiet);
/* Cuts what is still moving. */
void mooncake_close(struct end *end);

/* Start to move the bytes of a slot's buffer. */
void mooncake_submit(struct end *end, size_t slot, bool write, void *buffer, uint64_t position,
		     uint64_t length);
/* Wait up to `timeout` ns for it; `count`: it adds to the routes. With *ended false it moves on. */
int mooncake_wait(struct end *end, size_t slot, int64_t timeout, bool count, bool *ended);

/* A staging buffer and the batches that fill it and empty it. */
struct slot {
	uint64_t offset; /* in the staging region */
	uint64_t length; /* bytes in it */
	struct wh_batch *batch[2]; /* for the source's peer and the target's; NULL: not remote */
	bool started[2]; /* the batch has been submitted */
};

struct pipeline {
	struct wh_engine *engine;
	struct end *end[2]; /* source, target */
	uint64_t chunk;
	unsigned char *staging;
	struct wh_region *region;
	struct slot slots[COPY_SLOTS];
	/* chunks go from the end to the start: the target covers what is to be read */
	bool backwards;
	bool verifying; /* the routes are those of the copy, not of its verification */
};

int pipeline_open(struct pipeline *pipeline, struct wh_engine *engine, struct end *source,
		  struct end *target, uint64_t chunk);

/* Copy `length` bytes, or, if COPY_UNKNOWN, all there are; *copied is how many. With `digest` (an
 * EVP_MD_CTX) the source's bytes are hashed on their way. */
int pipeline_copy(struct pipeline *pipeline, uint64_t length, void *digest,
		  struct progress *progress, uint64_t *copied);

/* Read the target back and hash it. With `both` the source is read once more, too, and compared. */
int pipeline_verify(struct pipeline *pipeline, uint64_t length, bool both, void *digest,
		    struct progress *progress);

/* The same; cancels what is still running. */
int pipeline_close(struct pipeline *pipeline, int code);

#endif
