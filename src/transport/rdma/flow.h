/* SPDX-License-Identifier: Apache-2.0 */
/* How fragments become work requests and completions: which endpoint takes how much (striping.c),
 * posting and polling (flow.c), and who polls (polling.c).
 *
 * Everything here is under rdma_peer.lock, unless it says otherwise. Functions that end fragments
 * append them to a list instead of calling the core: `done` (all bytes have ended) or `reroute`
 * (another transport has to move them). The caller drops the lock and passes the lists to
 * rdma_fragments_done() and rdma_fragments_reroute(). */
#ifndef WH_TRANSPORT_RDMA_FLOW_H
#define WH_TRANSPORT_RDMA_FLOW_H

#include <stdatomic.h>

#include "transport/core.h"
#include "transport/rdma/endpoint.h"

#define RDMA_CHAIN 64u /* most work requests with one doorbell */
/* Ask for a completion after so many work requests, or after so many bytes. */
#define RDMA_SIGNAL 16u
#define RDMA_SIGNAL_BYTES (1u << 20)
#define RDMA_SPLIT (64u << 10) /* bytes; up to this, one endpoint carries a fragment */

/* ---- fragments ------------------------------------------------------------------------------- */

/* What rdma keeps in a fragment. */
struct rdma_fragment {
	uint32_t rails; /* endpoints that can carry it, a bit each */
	uint32_t rails_of; /* rdma_peer.version that `rails` is for; 0: none */
	uint32_t in_flight; /* work requests not completed */
	bool polled; /* a thread that waits for its batch polls their completions */
};

static inline struct rdma_fragment *rdma_of(const struct wh_fragment *fragment)
{
	_Static_assert(sizeof(struct rdma_fragment) <= WH_FRAGMENT_STATE, "it fits");
	return (struct rdma_fragment *)(uintptr_t)fragment->state;
}

/* What rdma keeps for a batch: what each endpoint did for this submission. */
struct rdma_batch {
	_Atomic uint64_t bytes[RDMA_ENDPOINTS]; /* carried */
	_Atomic uint32_t broken; /* endpoints that failed with some of it, a bit each */
	_Atomic bool tried; /* rdma got some of it in this submission */
};

/* NULL: rdma never got any of the batch. Without a lock. */
static inline struct rdma_batch *rdma_batch_of(const struct wh_batch *batch)
{
	return wh_batch_transport(batch, WH_TRANSPORT_RDMA);
}

/* Make sure that there is one, before the fragment is queued. Under rdma_peer.lock. 0 or -ENOMEM.
 */
int rdma_batch_prepare(const struct wh_fragment *fragment);
/* The transport's batch_again and batch_closed. */
void rdma_batch_again(struct wh_batch *batch, void *state);
void rdma_batch_closed(struct wh_batch *batch, void *state);
/* What an endpoint has carried of the batch's present submission. */
uint64_t rdma_batch_bytes(const struct wh_batch *batch, unsigned endpoint);

/* The local region and the id of the remote one, of transfer (or base, for blocks) `index`. */
const struct wh_region *rdma_fragment_regions(const struct wh_fragment *fragment, uint64_t index,
					      uint64_t *remote);

/* Iterates over the pairs of regions of a fragment; consecutive equal pairs count once. Start with
 * { .fragment = fragment }. */
struct rdma_region_pairs {
	const struct wh_fragment *fragment;
	uint64_t next; /* from fragment->first */
	const struct wh_region *local;
	struct wh_remote_region *remote; /* entered until the next call */
	uint64_t remote_id;
};
/* False: there are no more, and nothing is entered. Remote regions that are gone are left out: that
 * is reported when their bytes are due. */
bool rdma_region_pairs_next(struct rdma_peer *rdma, struct rdma_region_pairs *pairs);

/* Count bytes that an endpoint has carried, for the explanation. Load and store suffice, without an
 * atomic addition: only holders of rdma_peer.lock write the counter. */
static inline void rdma_endpoint_count_bytes(const struct rdma_endpoint *endpoint,
					     const struct wh_fragment *fragment, uint64_t bytes)
{
	_Atomic uint64_t *carried = &rdma_batch_of(fragment->batch)->bytes[endpoint->index];

	atomic_store_explicit(carried, atomic_load_explicit(carried, memory_order_relaxed) + bytes,
			      memory_order_relaxed);
}

/* ---- striping.c: which endpoint takes what --------------------------------------------------- */

/* The endpoints that can move bytes between these regions, a bit each. *near: those of them that
 * are nearest to both. */
uint32_t rdma_striping_able(const struct rdma_peer *rdma, const struct wh_region *local,
			    const struct wh_remote_region *remote, uint32_t op, uint32_t *near);
/* The endpoints that can move the whole fragment: the nearest, if there are any. */
uint32_t rdma_striping_rails(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Put the fragment into the list of its priority; or take it out, as it ends, and forget what has
 * not been posted. */
void rdma_striping_add(struct rdma_peer *rdma, struct wh_fragment *fragment);
void rdma_striping_remove(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Look at every fragment again after endpoints have changed: those that no endpoint can move go to
 * `reroute`. */
void rdma_striping_sort(struct rdma_peer *rdma, struct wh_list *reroute);
/* The only endpoint of a small fragment, if nothing is queued before it; else NULL. */
struct rdma_endpoint *rdma_striping_single(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* The endpoint that takes queued bytes next, and about how many. NULL: none at present. */
struct rdma_endpoint *rdma_striping_choose(struct rdma_peer *rdma, uint64_t *grain);
/* The fragment that the endpoint takes from next; NULL: none. *work: the request that is sent
 * again, or NULL for new bytes. */
struct wh_fragment *rdma_striping_next(struct rdma_peer *rdma, const struct rdma_endpoint *endpoint,
				       struct rdma_work **work);
/* `length` bytes of what rdma_striping_next() returned have been posted. */
void rdma_striping_taken(struct rdma_peer *rdma, struct wh_fragment *fragment,
			 struct rdma_work *work, uint64_t length);

/* The endpoint is down at both ends: keep what was in flight, to be sent again. */
void rdma_resend_collect(struct rdma_endpoint *endpoint, struct wh_list *done);
/* Forget what is to be sent again of a fragment. Returns how many bytes that was. */
uint64_t rdma_resend_forget(struct rdma_peer *rdma, const struct wh_fragment *fragment);

/* ---- flow.c: posting and polling ------------------------------------------------------------- */

/* Poll for completions, and post what can be posted. */
void rdma_progress(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *reroute);
/* Post a new fragment at once, if it is small, only one endpoint can move it and nothing is queued.
 * False: nothing has been done. */
bool rdma_post_single(struct rdma_peer *rdma, struct wh_fragment *fragment, struct wh_list *done,
		      struct wh_list *reroute);
/* `length` bytes of the fragment have arrived or failed. */
void rdma_fragment_ended(struct rdma_peer *rdma, struct wh_fragment *fragment, uint64_t length,
			 struct wh_list *done);
/* Without the lock. The lists are empty afterwards. */
void rdma_fragments_done(struct wh_list *done);
void rdma_fragments_reroute(struct rdma_peer *rdma, struct wh_list *reroute);

/* ---- polling.c: who polls -------------------------------------------------------------------- */

void rdma_polling_open(struct rdma_peer *rdma);
void rdma_polling_close(struct rdma_peer *rdma);
/* A fragment begins or ends. */
void rdma_polling_add(struct rdma_peer *rdma, struct wh_fragment *fragment);
void rdma_polling_remove(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* The thread that waits for the batch is about to sleep: completions have to make events. Without
 * the lock. */
void rdma_polling_sleep(struct rdma_peer *rdma, struct wh_batch *batch);

#endif
