/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file-ring.h: many reads and writes of files at once, by io_uring
 *
 * One thread at a time uses a ring: it submits parts, and waits for all of them. Rings are kept for
 * the next one. The system calls are made directly, because a library is not worth its place for
 * three of them.
 */
#ifndef WH_MEMORY_FILE_RING_H
#define WH_MEMORY_FILE_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

#define WH_FILE_RING_DEPTH 64u /* requests in flight in one ring */

struct wh_file_ring;

/* The rings of an engine. */
struct wh_file_rings {
	pthread_mutex_t lock; /* of all below */
	struct wh_list free; /* struct wh_file_ring */
	int error; /* negative errno: the kernel gives none; then nobody tries again */
};

/* Bytes that follow one another in the file and in memory. */
struct wh_file_part {
	int fd;
	uint32_t extent; /* the caller's */
	uint64_t at; /* in the file */
	char *memory;
	uint32_t length;
	int32_t done; /* bytes moved, maybe fewer than `length`; or a negative errno */
};

void wh_file_rings_init(struct wh_file_rings *rings);
/* No ring is in use. */
void wh_file_rings_destroy(struct wh_file_rings *rings);
/* Why the kernel gives none: a negative errno; 0: it does, or nobody has asked yet. */
int wh_file_rings_error(struct wh_file_rings *rings);
/* Take a ring, or make one. NULL: the kernel allows none, or is out of memory. */
struct wh_file_ring *wh_file_ring_take(struct wh_file_rings *rings);
/* Keep it for the next one; if the kernel has refused to use it, free it, and make no more. */
void wh_file_ring_give(struct wh_file_rings *rings, struct wh_file_ring *ring);
/* Read (op WH_READ) or write all parts, WH_FILE_RING_DEPTH at a time, and wait for them. Each
 * part's `done` says how far it came: 0 for all that the kernel refuses to take (a sandbox may
 * allow rings and forbid their use). On return the kernel uses none of the memory. */
void wh_file_ring_move(struct wh_file_ring *ring, uint32_t op, struct wh_file_part *parts,
		       uint32_t count);

#endif
