/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: filling, submitting, completing, waiting, cancelling. */
#ifndef WH_CORE_BATCH_H
#define WH_CORE_BATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/transfer.h>

#include "core/counters.h"
#include "core/fragment.h"
#include "core/notification.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"

struct wh_event_wait;
struct wh_peer;
struct wh_queue;
struct wh_region;
struct wh_stream_dependency;

enum wh_batch_state {
	WH_BATCH_NEW = 0, /* never submitted */
	WH_BATCH_RUNNING = 1,
	WH_BATCH_WAITED = 2, /* running, and somebody sleeps on the word */
	WH_BATCH_DONE = 3,
};

#define WH_RAILS 16 /* connections to one peer, of the transport rdma */
#define WH_RAILS_TRIED (1u << 31)

/* What one transport did for a batch. */
struct wh_share {
	uint64_t bytes, transfers;
	char refused[WH_REFUSAL];
	bool inapplicable; /* as in struct wh_route */
};

struct wh_batch {
	struct wh_peer *peer;
	struct wh_queue *queue;
	void (*callback)(struct wh_batch *batch, int status, void *arg);
	void *callback_arg;
	uint64_t user;
	uint32_t priority;
	/* stream.c: what it has to do with streams; NULL: nothing */
	struct wh_stream_dependency *_Atomic dependency;
	uint32_t require; /* enum wh_transport_id; WH_TRANSPORT_COUNT: any */

	struct wh_item *items;
	size_t item_count, item_room;
	struct wh_blocks **blocks;
	size_t blocks_count, blocks_room;
	unsigned char *note;
	size_t notification_length;

	struct wh_fragment *fragments;
	size_t fragment_count, fragment_room;
	uint32_t planned; /* peer.plan_version of the plan; 0: none */
	struct wh_share share[WH_TRANSPORT_COUNT];
	/* What rails have carried of it, in this submission, and which broke with some of it. */
	_Atomic uint64_t railed[WH_RAILS];
	/* a bit each; WH_RAILS_TRIED: some of it came to them */
	_Atomic uint32_t rails_used, rails_broken;

	_Atomic uint32_t state; /* enum wh_batch_state; a futex */
	_Atomic uint32_t left; /* pieces unfinished, and one for wh_batch_submit() itself */
	_Atomic int32_t status;
	_Atomic bool cancelled;
	_Atomic bool waiting_for_stream; /* it has not been started: it waits for a stream */
	/* A piece that is being cancelled does not change its transport meanwhile. Taken before
	 * those of the transports and text_lock. */
	pthread_mutex_t route_lock;
	pthread_mutex_t text_lock;
	char text[WH_TEXT_MAX];
	struct wh_list queue_link; /* queue.done */
	struct wh_list callback_link; /* engine.callbacks */
	struct wh_list notify_link; /* peer.notes_* */
	uint64_t notify_sequence;
	uint8_t notify_state; /* enum wh_notify_state; under peer.notify_lock */
	_Atomic uint8_t notify_path; /* enum wh_notify_path: how it was sent the last time */
	int notify_error; /* why it could not be sent */
	struct wh_batch *notify_next; /* the next of those */
	_Atomic bool finishing; /* done, but not yet let go of */
	_Atomic uint32_t delivering; /* its callback runs or is due, so many times */

	_Atomic uint32_t watch; /* WH_STATISTICS_... */
	uint32_t timed_in; /* so many submissions: the last of them is timed */
	/* as in `watch`, for whom nobody else is at work; under peer.count_lock */
	bool listed;
	wh_count submissions; /* completed well while listed */
	uint64_t told; /* of those, in the peer's tally; under peer.count_lock */
	int64_t begun; /* WH_STATISTICS_TIMED: when */
	uint64_t in_flight; /* WH_STATISTICS_IN_FLIGHT: its bytes */
	struct wh_list count_link; /* peer.counted */
};

/* Before its plan changes, or it goes. */
static inline void wh_batch_flush_counts(struct wh_batch *batch)
{
	if (batch->listed)
		wh_count_flush(batch);
}

static inline bool wh_batch_running(const struct wh_batch *batch)
{
	uint32_t state = atomic_load_explicit(&batch->state, memory_order_acquire);

	return state == WH_BATCH_RUNNING || state == WH_BATCH_WAITED;
}

/* The same for callers that know no more of it. `batch` is a struct wh_batch. */
bool wh_batch_is_running(const void *batch);
/* Run a finished batch's callback; on loop 0. */
void wh_batch_call_back(struct wh_batch *batch);
/* The batch's pieces have ended and its notification is confirmed, or failed: say so. */
void wh_batch_finish(struct wh_batch *batch);
void wh_batch_fail(struct wh_batch *batch, int error, const char *text);

/* Is this range of the peer's, or of our, region there, and granted? `what` and `index` begin the
 * text of the error. */
int wh_batch_check_remote(struct wh_peer *peer, const char *what, uint64_t index, uint32_t op,
			  uint64_t id, uint64_t offset, uint64_t length);
int wh_batch_check_local(struct wh_peer *peer, const char *what, uint64_t index,
			 const struct wh_region *region, uint64_t offset, uint64_t length);
/* Do the two sides share bytes of a GPU's, some of which would be overwritten before they are read?
 * Seen where both are of this engine; host memory is moved in the right direction there. */
int wh_batch_check_overlap(struct wh_peer *peer, const char *what, uint64_t index,
			   const struct wh_region *region, uint64_t local_offset, uint64_t remote,
			   uint64_t remote_offset, uint64_t length);

/* Submit a batch that starts once the event has happened; `wait` is in its gate. */
struct wh_event_wait;
int wh_batch_submit_when(struct wh_batch *batch, struct wh_event_wait *wait);
/* It has; or, with an error, it never will. */
void wh_batch_start(struct wh_batch *batch, int error, const char *text);

static inline void wh_fragment_start(const struct wh_fragment *fragment, struct wh_cursor *cursor)
{
	*cursor = (struct wh_cursor){ .outer = fragment->first, .left = fragment->bytes };
}

/* The next run of at most `most` bytes; false at the end. */
static inline bool wh_fragment_next(const struct wh_fragment *fragment, struct wh_cursor *at,
				    uint64_t most, struct wh_extent_pair *run)
{
	uint64_t length;

	if (!at->left)
		return false;
	run->index = at->outer;
	if (fragment->blocks) {
		const struct wh_blocks *blocks = fragment->blocks;
		const struct wh_block_base *base = &blocks->bases[at->outer];
		uint64_t i = at->inner;

		run->local = base->address + at->skip +
			     (blocks->local_offsets ? blocks->local_offsets[i] :
						      i * blocks->local_stride);
		run->remote = base->remote;
		run->offset = base->offset + at->skip +
			      (blocks->remote_offsets ? blocks->remote_offsets[i] :
							i * blocks->remote_stride);
		length = blocks->block_length - at->skip;
	} else {
		/* outer counts through the batch's items */
		const struct wh_item *item = &fragment->batch->items[at->outer];

		run->local = item->address + at->skip;
		run->remote = item->remote;
		run->offset = item->offset + at->skip;
		length = item->length - at->skip;
	}
	if (length > most) {
		run->length = most;
		at->skip += most;
	} else {
		run->length = length;
		at->skip = 0;
		if (!fragment->blocks) {
			at->outer++;
		} else if (++at->inner == fragment->blocks->count) {
			at->inner = 0;
			at->outer++;
		}
	}
	at->left -= run->length;
	return true;
}

#endif
