/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: transfers to one peer that are submitted and completed together.
 *
 * One thread at a time fills, submits and frees a batch. While it runs, the core, the transports
 * and any waiting threads share it: they use its atomics, what `text_lock` guards (text, share) and
 * what peer.notify_lock guards.
 */
#ifndef WH_CORE_BATCH_H
#define WH_CORE_BATCH_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/transfer.h>

#include "core/callbacks.h"
#include "core/counters.h"
#include "core/deferred.h"
#include "core/notification.h"
#include "core/queue.h"
#include "core/worker.h"
#include "memory/region-reader.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"

struct wh_blocks;
struct wh_event_wait;
struct wh_peer;
struct wh_queue;
struct wh_region;
struct wh_resolution;
struct wh_stream_dependency;

enum wh_batch_state {
	WH_BATCH_NEW = 0, /* never submitted */
	WH_BATCH_RUNNING = 1,
	WH_BATCH_WAITED = 2, /* running, and a thread sleeps on the futex */
	WH_BATCH_DONE = 3,
};

/* What one transport does for a batch, or why it does nothing; under text_lock while it runs. */
struct wh_share {
	uint64_t bytes, transfers;
	char refused[WH_REFUSAL];
	bool inapplicable; /* as in struct wh_route */
};

/* Each array of fragments has room for four times as many as the one before. */
#define WH_FRAGMENT_GROWTHS 16

struct wh_batch {
	struct wh_peer *peer;
	struct wh_queue *queue;
	void (*callback)(struct wh_batch *batch, int status, void *arg);
	void *callback_arg;
	uint32_t priority;
	/* stream.c: the stream it follows, or streams that follow it; NULL: neither */
	struct wh_stream_dependency *_Atomic dependency;
	uint32_t require; /* enum wh_transport_id; WH_TRANSPORT_COUNT: any */
	/* required is "local": no networked transport between engines of one machine */
	bool local;

	/* One item more is written before it is counted, and only growing moves them: both may be
	 * done while others look, see plan_lock. */
	struct wh_item *items;
	_Atomic size_t item_count;
	size_t item_room;
	struct wh_blocks **blocks;
	size_t blocks_count, blocks_room;
	/* The payload of NOTIFY, with room for its head: WH_NOTIFY_HEAD bytes. */
	unsigned char *note;
	size_t note_length, note_room; /* of the user's bytes behind the head */
	uint64_t note_tag;
	bool notifies; /* it has a notification, maybe of length 0 */

	/* A thread that polls may still look at what an earlier plan has left: arrays that have
	 * become too small stay until the batch is freed. */
	struct wh_fragment *_Atomic fragments;
	_Atomic size_t fragment_count;
	size_t fragment_room;
	struct wh_fragment *outgrown[WH_FRAGMENT_GROWTHS];
	unsigned outgrown_count;
	/* Guards `planning`, and keeps the plan as it is for those that look at it: see
	 * wh_plan_hold(). Held while items are moved and blocks are added. Taken before route_lock,
	 * text_lock and the transports' locks. */
	pthread_mutex_t plan_lock;
	uint32_t planning; /* calls that change the plan, or items, now */
	/* It names regions that were not known when they were added. In items by an address of the
	 * peer's, `remote` is 0 and `offset` the address until the region is known. */
	_Atomic bool unresolved;
	/* It runs, but has no plan yet: only its worker sees `fragments`. Set under plan_lock. */
	_Atomic bool resolving;
	struct wh_resolution *resolution; /* while the peer is asked; under peer.lock */
	/* While it waits for a plan: deferred.h. */
	struct wh_list deferred_link;
	struct wh_event_wait *deferred_wait;
	struct wh_patience patience;
	uint32_t unready; /* of wh_plan(): choices for which some transport is being set up */
	_Atomic uint32_t planned; /* peer.plan_version when it was planned; 0: not planned */
	struct wh_share share[WH_TRANSPORT_COUNT];
	/* Private to each transport: what its batch_closed frees. kept: one is not NULL. */
	_Atomic(void *) transport[WH_TRANSPORT_COUNT];
	_Atomic bool kept;

	/* Written for each submission by the thread that submits and by the one that finishes: side
	 * by side, so that few cache lines go to and fro. */
	_Atomic uint32_t state; /* enum wh_batch_state; a futex */
	_Atomic uint32_t left; /* unfinished fragments, plus one for wh_batch_submit() itself */
	_Atomic int32_t status;
	_Atomic bool cancelled;
	_Atomic bool waiting_for_stream; /* submitted, but not started: an event is outstanding */
	_Atomic bool finishing; /* done, but the finishing thread still uses it */
	/* It failed, and the peer was lost while it ran: bytes in flight may still arrive there. */
	_Atomic bool may_arrive;
	uint32_t losses; /* peer.losses when it was submitted */
	bool listed; /* in peer.pending; written under peer.count_lock */
	/* Statistics, as `listed`; counters.h explains them. */
	_Atomic uint32_t watch; /* WH_STATISTICS_... */
	uint32_t timed_in; /* submissions until one is timed */
	wh_count submissions; /* completed without error while listed */

	/* Keeps fragment.transport while a fragment is cancelled. Taken before the transports'
	 * locks and text_lock. */
	pthread_mutex_t route_lock;
	pthread_mutex_t text_lock;
	char text[WH_TEXT_MAX];
	struct wh_queue_entry queued;
	struct wh_callback callback_own; /* callbacks.c says when there are others */
	struct wh_callback *callback_next; /* of the running submission */
	struct wh_list notify_link; /* peer.notify_waiting, notify_sent or notify_early */
	uint64_t notify_sequence;
	uint8_t notify_state; /* enum wh_notify_state; under peer.notify_lock */
	_Atomic uint8_t notify_path; /* enum wh_notify_path: how it was sent last */
	_Atomic uint8_t notify_by; /* enum wh_transport_id, if a transport sent it */
	int notify_error; /* why it could not be sent */
	struct wh_batch *notify_next; /* the next batch whose notification could not be sent */
	_Atomic uint32_t delivering; /* callbacks that are due or running */

	/* More statistics. */
	uint64_t flushed_submissions; /* in the peer's statistics; under peer.count_lock */
	int64_t begun; /* WH_STATISTICS_TIMED: when it was submitted */
	uint64_t in_flight; /* WH_STATISTICS_IN_FLIGHT: its bytes */
	/* What estimates learn from it; traffic.h explains that. */
	uint64_t large_seen; /* WH_STATISTICS_TIMED: peer.large when it began, if it was alone */
	uint32_t way; /* wh_traffic_way() of all that the plan moves */
	bool probing; /* of wh_peer_measure(), which keeps the result itself */
	struct wh_list count_link; /* peer.pending */
	/* It is counted in peer.unseen: the program has not seen its latest submission end. */
	_Atomic bool unseen;
};

/* Batches of at least so many bytes are counted in peer.unseen: shorter ones are moved in the time
 * that anything else would take to begin. */
#define WH_UNSEEN_LEAST ((uint64_t)4 << 10)
void wh_batch_count_unseen(const struct wh_batch *batch, int more);

/* The batch is about to start. */
static inline void wh_batch_is_unseen(struct wh_batch *batch)
{
	if (batch->fragment_count && batch->fragments[0].bytes >= WH_UNSEEN_LEAST &&
	    !atomic_exchange_explicit(&batch->unseen, true, memory_order_relaxed))
		wh_batch_count_unseen(batch, 1);
}

/* The program learns that the batch has ended, or frees it. */
static inline void wh_batch_is_seen(struct wh_batch *batch)
{
	if (atomic_load_explicit(&batch->unseen, memory_order_relaxed) &&
	    atomic_exchange_explicit(&batch->unseen, false, memory_order_relaxed))
		wh_batch_count_unseen(batch, -1);
}

/* Add its submissions to the peer's statistics, before its plan changes or it is freed. */
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

/* The thread that finishes a batch uses it for a moment after others see it done: wait for that. */
static inline void wh_batch_settle(struct wh_batch *batch)
{
	while (atomic_load_explicit(&batch->finishing, memory_order_acquire))
		sched_yield();
}

/* The checks at the top of the public function `call`: -EINVAL for NULL, -EPERM in a forked child;
 * the second one also -EBUSY while the batch runs. */
int wh_batch_guard(const struct wh_batch *batch, const char *call);
int wh_batch_guard_idle(struct wh_batch *batch, const char *call);

/* Make a batch that moves the same, as another thread may change this one or submit it: to plan it
 * and show what it would do. The caller frees it by wh_batch_free(). It is empty while this one is
 * being planned. 0, or -ENOMEM. */
int wh_batch_copy(struct wh_batch *batch, struct wh_batch **out);

/* Complete the batch: its fragments have ended, and its notification is confirmed or has failed.
 * Any thread; no lock of the core may be held. The batch may be gone on return. */
void wh_batch_finish(struct wh_batch *batch);
/* Record an error (negative) with its text; the first one stays. Any thread. */
void wh_batch_fail(struct wh_batch *batch, int error, const char *text);

/* Check that a range lies in a published region of the peer that grants `op`, or in a region of
 * ours. `what` and `index` begin the error text, as in "transfer 3: ...".
 * 0, -ENOENT, -EACCES, -ERANGE, -EINVAL, or wh_peer_check()'s error. */
int wh_batch_check_remote(struct wh_peer *peer, const char *what, uint64_t index, uint32_t op,
			  uint64_t id, uint64_t offset, uint64_t length);
int wh_batch_check_local(struct wh_peer *peer, const char *what, uint64_t index,
			 const struct wh_region *region, uint64_t offset, uint64_t length);
/* -EINVAL if both sides are the same GPU memory of this engine and overlap: some bytes would be
 * overwritten before they are read. Overlapping host memory is fine: it is copied in the direction
 * that preserves it. */
int wh_batch_check_overlap(struct wh_peer *peer, const char *what, uint64_t index,
			   const struct wh_region *region, uint64_t local_offset, uint64_t remote,
			   uint64_t remote_offset, uint64_t length);

/* Check the remote sides of blocks whose regions were not known when they were prepared. As
 * wh_batch_check_remote(). */
int wh_blocks_resolve(struct wh_blocks *blocks);

/* Finding the regions of addresses, on both sides, during one call. */
struct wh_batch_addresses {
	struct wh_peer *peer;
	struct wh_region_reader local, remote;
};

void wh_batch_addresses_begin(struct wh_batch_addresses *addresses, struct wh_peer *peer);
void wh_batch_addresses_end(struct wh_batch_addresses *addresses);
/* Find the smallest region that holds the range, its id, and the offset in it. It may be
 * unregistered at any time: use it only as long as its id is this one. 0 or -ENOENT. */
int wh_batch_find_local(struct wh_batch_addresses *addresses, const char *what, uint64_t index,
			uint64_t address, uint64_t length, struct wh_region **region, uint64_t *id,
			uint64_t *offset);
/* The same for the peer's regions that are known and grant `op`. `any`: if there is none, one that
 * does not, which wh_batch_check_remote() refuses. 0, -ENOENT, or wh_peer_check()'s error. */
int wh_batch_find_remote(struct wh_batch_addresses *addresses, const char *what, uint64_t index,
			 uint32_t op, uint64_t address, uint64_t length, bool any, uint64_t *id,
			 uint64_t *offset);

/* Submit a batch that starts once the event of `wait`, part of its stream dependency, has happened.
 */
int wh_batch_submit_when(struct wh_batch *batch, struct wh_event_wait *wait);
/* The event has happened: start the batch. With an error (negative): it never will, fail the batch.
 */
void wh_batch_start(struct wh_batch *batch, int error, const char *text);

#endif
