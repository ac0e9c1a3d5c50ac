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

/* One transfer of a batch, checked. */
struct wh_item {
	char *address; /* local */
	struct wh_region *local;
	uint64_t local_id;
	uint64_t remote, offset; /* the peer's region, and where in it */
	uint64_t length;
	uint32_t op;
	_Atomic int32_t status;
};

/* A position in a fragment. */
struct wh_cursor {
	uint64_t outer; /* transfer, or base */
	uint64_t inner; /* block */
	uint64_t skip; /* bytes into it */
	uint64_t left; /* bytes to the end of the fragment */
};

/* Bytes that are contiguous on both sides: an extent of local memory and one of a remote region. */
struct wh_extent_pair {
	char *local;
	uint64_t remote, offset, length;
	uint64_t index; /* of the transfer; blocks: of the base */
};

/* Either items [first, first + count) of the batch, all of one op, or bases [first, first + count)
 * of a blocks descriptor. */
struct wh_fragment {
	struct wh_batch *batch;
	struct wh_blocks *blocks; /* NULL: items */
	uint32_t op;
	_Atomic uint32_t transport;
	uint64_t first, count;
	uint64_t bytes, transfers;
	/* For the transport's use, from submit to the end: */
	struct wh_list link;
	struct wh_cursor cursor; /* the bytes before it have been started */
	_Atomic uint64_t left; /* bytes not finished yet */
	_Atomic bool cancelled;
	void *owner;
	uint32_t rails; /* rdma: endpoints that can carry it, a bit each */
	uint32_t rails_of; /* rdma: the version of the endpoints that `rails` is for; 0: none */
	uint32_t in_flight; /* rdma: work requests not completed */
	bool watched; /* rdma: a thread that waits for its batch polls their completions */
	bool alone; /* tcp: pinned to one connection (`owner`); not shared */
	bool staged; /* some local memory is a GPU's, and goes through staging slots */
	bool windowed; /* ... and is written by the CPU, through windows */
	/* Not NULL: a transport made this fragment, as a part of the fragment `whole`. Its end
	 * goes to `ended` (with an error instead of a reroute); its failures are recorded in
	 * `whole`, where item i of the part is item local_id. */
	struct wh_fragment *whole;
	void (*ended)(struct wh_fragment *part, int error, const char *why);
	_Atomic bool done;
	/* the errno of its first failure; for the counters, which clear it */
	_Atomic int32_t failed;
};

/* For transports: the fragment has ended, well or not. Once for each submit; no memory of it may be
 * touched any more. Any thread. The batch may be gone on return. */
void wh_fragment_done(struct wh_fragment *fragment);
/* For transports: record that item `index` of the batch, or all of the fragment (UINT64_MAX), has
 * failed. `error` is negative. Before wh_fragment_done(). Any thread. */
void wh_fragment_fail(struct wh_fragment *fragment, uint64_t index, int error, const char *format,
		      ...) __attribute__((format(printf, 4, 5)));
/* For transports, instead of wh_fragment_done(): this transport cannot move the fragment, and
 * nothing of it is in flight any more. The next best transport gets it from the start; if there is
 * none, it fails with `error` (negative). Any thread. */
void wh_fragment_reroute(struct wh_fragment *fragment, int error, const char *why);

#endif
