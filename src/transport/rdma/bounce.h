/* SPDX-License-Identifier: Apache-2.0 */
/* Bounce buffers: the owner's pinned memory, of one session, through which the owner's GPU memory
 * is staged. The initiator's half (bounce-client.c) leases slots to what it stages; the owner's
 * half (bounce-server.c) copies between slots and regions. */
#ifndef WH_TRANSPORT_RDMA_BOUNCE_H
#define WH_TRANSPORT_RDMA_BOUNCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/rdma/wire.h"
#include "transport/transport.h"
#include "util/list.h"

struct rdma;
struct rdma_peer;
struct wh_region;
struct wh_remote_region;
struct wh_session;

/* ---- the initiator's half; under rdma_peer.lock, unless it says otherwise -------------------- */

/* The use of one slot. */
struct rdma_lease {
	struct wh_list link; /* rdma_peer.bounce_waits */
	unsigned slot;
	bool held; /* it has `slot` */
	bool used; /* COPY has named the slot since the lease got it */
	bool asked; /* COPY has been sent, and COPIED has not arrived */
	bool lost; /* the peer was lost: the slot is void */
	/* The lease holds a slot, or is lost. Called under the lock, so it must only post a task.
	 */
	void (*have)(struct rdma_lease *lease);
	/* COPY has been answered, with 0 or an error. Called without the lock. */
	void (*copied)(struct rdma_lease *lease, int error, const char *why);
};

/* Send BOUNCE_OPEN, unless the owner has answered. 0: the bounce buffer is open; -EAGAIN: not
 * answered yet; or another negative errno, with the reason in `why`. */
int rdma_bounce_request(struct rdma_peer *rdma, char why[WH_REFUSAL]);
/* The bounce buffer is open, and a ready endpoint has its keys. */
bool rdma_bounce_is_reachable(const struct rdma_peer *rdma);
/* True: it holds a slot, or is lost. False: `have` will be called. */
bool rdma_lease_acquire(struct rdma_peer *rdma, struct rdma_lease *lease);
void rdma_lease_release(struct rdma_peer *rdma, struct rdma_lease *lease);
/* If the slot has been used and others wait: yield it to the next waiter and queue again; `have` is
 * called when the lease holds a slot again. False: it keeps its slot. */
bool rdma_lease_yield(struct rdma_peer *rdma, struct rdma_lease *lease);
/* Send COPY; `copied` follows. Without the lock. */
void rdma_lease_copy(struct rdma_peer *rdma, struct rdma_lease *lease, const uint8_t *bytes,
		     size_t length);
/* BOUNCE_OPENED, or COPIED, has arrived; on loop 0, without the lock. */
void rdma_bounce_opened(struct rdma_peer *rdma, const struct wh_rdma_bounce_opened *opened);
int rdma_lease_copied(struct rdma_peer *rdma, const struct wh_rdma_flushed *copied);
/* The peer is lost, and nothing is in flight. On loop 0, without the lock. */
void rdma_bounce_peer_lost(struct rdma_peer *rdma);
/* Enter the peer's region `id`; id 0 is its bounce buffer. NULL: the region is gone. Leave it by
 * its entry. From any thread. */
struct wh_remote_region *rdma_remote_enter(struct rdma_peer *rdma, uint64_t id);

/* ---- the owner's half; on loop 0 ------------------------------------------------------------- */

struct rdma_bounce;

/* BOUNCE_OPEN, or COPY, has arrived. 0, or a negative errno that ends the session. */
int rdma_bounce_open_frame(struct wh_session *session, struct rdma_bounce **bounce);
int rdma_bounce_copy_frame(struct wh_session *session, struct rdma_bounce *bounce,
			   const uint8_t *payload, size_t length);
/* BOUNCE_OPENED has been sent: the peer may use it. NULL is not open. */
bool rdma_bounce_is_open(const struct rdma_bounce *bounce);
/* Its memory, as a region for NICs; valid between get and put. */
struct wh_region *rdma_bounce_region(struct rdma_bounce *bounce);
void rdma_bounce_get(struct rdma_bounce *bounce);
void rdma_bounce_put(struct rdma_bounce *bounce);
/* The session ends; its queue pairs are destroyed already. */
void rdma_bounce_close(struct rdma_bounce *bounce);
/* Wait until those of ended sessions are cleared, and free all. Not on loop 0. */
void rdma_bounces_close(struct rdma *rdma);

#endif
