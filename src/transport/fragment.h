/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fragment is the part of a batch that one transport moves. The core (src/core/plan.c) plans a
 * batch into fragments; the transport reports the end of each exactly once.
 */
#ifndef WH_TRANSPORT_FRAGMENT_H
#define WH_TRANSPORT_FRAGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/transfer.h>

#include "transport/blocks.h"
#include "util/list.h"

struct wh_batch;
struct wh_copier;
struct wh_peer;
struct wh_region;

/* One transfer of a batch, checked. */
struct wh_item {
	char *address; /* local */
	struct wh_region *local; /* NULL: length 0; such an item is in no fragment */
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

#define WH_FRAGMENT_STATE 40 /* bytes */

/* Either items [first, first + count) of the batch, all of one op, or bases [first, first + count)
 * of a blocks descriptor. Constant from submit to the end, up to `bytes` and `transfers`. */
struct wh_fragment {
	/* These two first: a thread that polls may read them while the planner makes a new one. */
	_Atomic uint32_t transport; /* enum wh_transport_id; a reroute changes it */
	_Atomic bool done; /* it has ended */
	struct wh_batch *batch; /* transport/core.h says what a transport may ask of it */
	struct wh_peer *peer;
	struct wh_item *items; /* the batch's */
	struct wh_blocks *blocks; /* NULL: items */
	uint32_t op;
	uint32_t priority; /* the batch's: enum wh_priority */
	uint64_t first, count;
	uint64_t bytes, transfers;
	_Atomic bool cancelled; /* set before the transport's cancel is called */
	bool rerouted; /* since it was submitted; for the core */
	_Atomic int32_t failed; /* the errno of its first failure; 0: none */
	/* For the transport's use, from submit to the end: */
	struct wh_list link;
	struct wh_cursor
		cursor; /* the bytes before it have been started; the core sets it to all */
	_Atomic uint64_t left; /* bytes not finished yet; the core sets it to `bytes` */
	_Atomic(void *) owner; /* NULL at submit, before `done` becomes false */
	/* The copier whose queue it is in, NULL: none. Written under that copier's lock. */
	_Atomic(struct wh_copier *) copier;
	/* A structure of the transport's. It is zero when the fragment comes to the transport
	 * first, and kept when the batch is submitted again. */
	_Alignas(uint64_t) unsigned char state[WH_FRAGMENT_STATE];
	/* Not NULL: a transport made this fragment, as a part of the fragment `whole`. Its end
	 * goes to `ended` (with an error instead of a reroute); its failures are recorded in
	 * `whole`, where item i of the part is item local_id. */
	struct wh_fragment *whole;
	void (*ended)(struct wh_fragment *part, int error, const char *why);
};

/* For transports: the fragment has ended, well or not. Once for each submit; no memory of it may be
 * touched any more. Any thread. The batch may be gone on return. */
void wh_fragment_done(struct wh_fragment *fragment);
/* The same, faster, for a transport's submit() that has moved the fragment itself: on the thread
 * that called it, before it returns. */
void wh_fragment_done_at_once(struct wh_fragment *fragment);
/* For transports: record that item `index` of the batch, or all of the fragment (UINT64_MAX), has
 * failed. `error` is negative. Before wh_fragment_done(). Any thread. */
void wh_fragment_fail(struct wh_fragment *fragment, uint64_t index, int error, const char *format,
		      ...) __attribute__((format(printf, 4, 5)));
/* For transports, instead of wh_fragment_done(): this transport cannot move the fragment, and
 * nothing of it is in flight any more. The next best transport gets it from the start; if there is
 * none, it fails with `error` (negative). Any thread. */
void wh_fragment_reroute(struct wh_fragment *fragment, int error, const char *why);

/* Set a cursor to the start of the fragment. */
static inline void wh_fragment_start(const struct wh_fragment *fragment, struct wh_cursor *cursor)
{
	*cursor = (struct wh_cursor){ .outer = fragment->first, .left = fragment->bytes };
}

/* The next extent pair, of at most `most` bytes; false at the end. */
static inline bool wh_fragment_next(const struct wh_fragment *fragment, struct wh_cursor *at,
				    uint64_t most, struct wh_extent_pair *pair)
{
	uint64_t length;

	if (!at->left)
		return false;
	pair->index = at->outer;
	if (fragment->blocks) {
		const struct wh_blocks *blocks = fragment->blocks;
		const struct wh_block_base *base = &blocks->bases[at->outer];
		uint64_t i = at->inner;

		pair->local = base->address + at->skip +
			      (blocks->local_offsets ? blocks->local_offsets[i] :
						       i * blocks->local_stride);
		pair->remote = base->remote;
		pair->offset = base->offset + at->skip +
			       (blocks->remote_offsets ? blocks->remote_offsets[i] :
							 i * blocks->remote_stride);
		length = blocks->block_length - at->skip;
	} else {
		const struct wh_item *item = &fragment->items[at->outer];

		pair->local = item->address + at->skip;
		pair->remote = item->remote;
		pair->offset = item->offset + at->skip;
		length = item->length - at->skip;
	}
	if (length > most) {
		pair->length = most;
		at->skip += most;
	} else {
		pair->length = length;
		at->skip = 0;
		if (!fragment->blocks) {
			at->outer++;
		} else if (++at->inner == fragment->blocks->count) {
			at->inner = 0;
			at->outer++;
		}
	}
	at->left -= pair->length;
	return true;
}

/* The regions of transfer (or base, for blocks) `index`, from fragment.first on. */
static inline struct wh_region *wh_fragment_local(const struct wh_fragment *fragment,
						  uint64_t index)
{
	return fragment->blocks ? fragment->blocks->bases[index].local :
				  fragment->items[index].local;
}

static inline uint64_t wh_fragment_local_id(const struct wh_fragment *fragment, uint64_t index)
{
	return fragment->blocks ? fragment->blocks->bases[index].local_id :
				  fragment->items[index].local_id;
}

static inline uint64_t wh_fragment_remote(const struct wh_fragment *fragment, uint64_t index)
{
	return fragment->blocks ? fragment->blocks->bases[index].remote :
				  fragment->items[index].remote;
}

#endif
