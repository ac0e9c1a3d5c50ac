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
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "util/list.h"

#define WH_FILE_RING_DEPTH 64u /* requests in flight in one ring */
#define WH_FILE_BUFFERS 32u

struct wh_file_ring;

/* Memory through which the bytes of many files go: an engine's slots. Rings register it with the
 * kernel, which looks its pages up once, and not for every request. Blocks are only added, so that
 * their number says whether a ring has them all. The owner zeroes this, and keeps it and the memory
 * until the rings are destroyed. */
struct wh_file_buffers {
	struct iovec block[WH_FILE_BUFFERS]; /* those before `count` do not change */
	_Atomic uint32_t count;
};

/* The rings of an engine. */
struct wh_file_rings {
	struct wh_file_buffers *buffers;
	_Atomic int buffers_error; /* negative errno: the kernel registers no more of them */
	pthread_mutex_t lock; /* of all below */
	struct wh_list free; /* struct wh_file_ring */
	int error; /* of the last try to make or to use one: 0, or a negative errno */
	bool never; /* nobody tries again */
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

/* Add a block; one thread at a time. What does not fit into the list is never registered. */
void wh_file_buffers_add(struct wh_file_buffers *buffers, void *memory, size_t length);

void wh_file_rings_init(struct wh_file_rings *rings, struct wh_file_buffers *buffers);
/* No ring is in use. */
void wh_file_rings_destroy(struct wh_file_rings *rings);
/* Why the kernel gives none, for good or when it was asked last: a negative errno; 0: it does, or
 * nobody has asked yet. */
int wh_file_rings_error(struct wh_file_rings *rings);
/* Why buffers are not registered, or not all of them: a negative errno; 0: they are, or nobody has
 * needed them yet. */
int wh_file_rings_buffers_error(struct wh_file_rings *rings);
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
