/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fragment is the part of a batch that one transport moves. The core plans a batch into
 * fragments; the transport reports the end of each exactly once.
 */
#ifndef WH_CORE_FRAGMENT_H
#define WH_CORE_FRAGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/blocks.h"
#include "util/list.h"

struct wh_batch;

/* One transfer as it is kept. */
struct wh_item {
	char *address; /* ours */
	struct wh_region *local;
	uint64_t local_id;
	uint64_t remote, offset; /* the peer's region, and where in it */
	uint64_t length;
	uint32_t op;
	_Atomic int32_t status;
};

/* How far into a piece. */
struct wh_cursor {
	uint64_t outer; /* transfer, or base */
	uint64_t inner; /* block */
	uint64_t skip; /* bytes into it */
	uint64_t left; /* bytes to the end of the piece */
};

/* A stretch of bytes that lies in one place on both sides. */
struct wh_extent_pair {
	char *local;
	uint64_t remote, offset, length;
	uint64_t index; /* of the transfer; blocks: of the base */
};

/* A part of a batch that goes by one transport: transfers [first, first + count) of the batch's
 * items, all of one op, or bases [first, first + count) of a blocks descriptor. */
struct wh_fragment {
	struct wh_batch *batch;
	struct wh_blocks *blocks; /* NULL: items */
	uint32_t op;
	_Atomic uint32_t transport;
	uint64_t first, count;
	uint64_t bytes, transfers;
	/* The transport's own. */
	struct wh_list link;
	struct wh_cursor cursor; /* what has been handed out */
	_Atomic uint64_t left; /* what has not been finished */
	_Atomic bool cancelled;
	void *owner;
	uint32_t rails; /* the transport rdma's lines that can carry it */
	/* the version of what lines can carry that this was found for; 0: none */
	uint32_t rails_of;
	uint32_t in_flight; /* its work requests that are not done */
	bool watched; /* whoever is at work with its batch looks for their completions */
	bool alone; /* meant for its owner alone */
	bool staged; /* some of our side is a GPU's memory, and goes through slots */
	bool windowed; /* ... and is written by the CPU, through windows */
	/* Not the core's: a part of another piece, which that one's transport has made for
	 * itself. What is said of it comes back by `ended` (with an error: it was to be
	 * rerouted), but for failures, which are the whole's: its items' local_id is the number
	 * of the whole's item. */
	struct wh_fragment *whole;
	void (*ended)(struct wh_fragment *part, int error, const char *why);
	_Atomic bool done;
	/* the errno of its first failure; for the counters, which clear it */
	_Atomic int32_t failed;
};

/* For transports: this piece is finished, whichever way. Once for each submit. The batch may be
 * gone when it returns. */
void wh_fragment_done(struct wh_fragment *fragment);
/* Record a failure: of transfer `index` of the batch's items, or of all of the piece
 * (UINT64_MAX). Before wh_fragment_done(). `error` is negative. */
void wh_fragment_fail(struct wh_fragment *fragment, uint64_t index, int error, const char *format,
		      ...) __attribute__((format(printf, 4, 5)));
/* The transport cannot move this piece after all, and nothing of it is in flight any more: the next
 * one gets it from the start, or it fails with `error`. Instead of wh_fragment_done(). */
void wh_fragment_reroute(struct wh_fragment *fragment, int error, const char *why);

#endif
