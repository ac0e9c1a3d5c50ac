/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications that the initiator's NIC writes into a receive ring of the owner, by an RDMA write
 * with an immediate. notify.c is the initiator's half, receive-ring.c the owner's.
 *
 * Lock order: wh_notify_lock(), then rdma_peer.lock. */
#ifndef WH_TRANSPORT_RDMA_NOTIFY_H
#define WH_TRANSPORT_RDMA_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/rdma/endpoint.h"

struct rdma_receive_ring;
struct wh_batch;
struct wh_session;

/* ---- the initiator's half -------------------------------------------------------------------- */

enum rdma_notify_state {
	RDMA_NOTIFY_NONE = 0, /* RING_OPEN has not been sent */
	RDMA_NOTIFY_ASKED,
	RDMA_NOTIFY_OPEN,
	RDMA_NOTIFY_REFUSED,
};

/* A slot of the owner's receive ring, and ours with the same number that it is sent from. */
struct rdma_notification {
	struct rdma_endpoint *endpoint; /* sent by it and unconfirmed; NULL: the slot is free */
	uint64_t sequence;
	uint64_t at; /* in the endpoint's work ring */
	bool in_flight; /* our NIC has not completed it */
};

/* Under rdma_peer.lock; `slots` and `mrs` change only in the state ASKED. */
struct rdma_notify {
	enum rdma_notify_state state;
	struct wh_rdma_ring_opened remote; /* the owner's ring */
	unsigned char *slots; /* ours */
	struct ibv_mr *mrs[RDMA_NICS]; /* of our slots; NULL: the NIC refused, inline only */
	unsigned unconfirmed; /* also under wh_notify_lock() */
	struct rdma_notification notifications[WH_RDMA_RING_SLOTS];
	/* While a fragment is being posted: the fragment whose notification may follow its last
	 * byte, and the endpoints that its bytes went by. */
	struct wh_fragment *early;
	uint32_t early_endpoints;
};

/* May the fragment's notification follow its bytes at once? Without a lock. */
bool rdma_notify_can_follow(const struct rdma_peer *rdma, const struct wh_fragment *fragment);
/* The fragment is about to be posted: set rdma_notify.early if its notification may follow. Under
 * both locks, as the next one. */
void rdma_notify_prepare(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Bytes of rdma_notify.early have been put on the endpoint. True: they were the last, and *request
 * is its notification, to be posted next. `request` NULL: there is no room for it. */
bool rdma_notify_send_early(struct rdma_endpoint *endpoint, const struct wh_fragment *fragment,
			    struct ibv_send_wr *request, struct ibv_sge *segment);
/* The transport's `notify` and `notified`. */
int rdma_notify_send(struct wh_peer *peer, void *state, struct wh_batch *batch, uint64_t sequence);
void rdma_notify_confirmed(struct wh_peer *peer, void *state, uint64_t sequence);
/* Our NIC has completed a notification, or never will. Under rdma_peer.lock. */
void rdma_notify_done(struct rdma_endpoint *endpoint, struct rdma_work *work);
/* The endpoint is down at both ends: what is unconfirmed has not arrived. wh_notify_resume()
 * follows. Without a lock. */
void rdma_notify_undelivered(struct rdma_endpoint *endpoint);
/* The peer is lost, and its endpoints are down. Under rdma_peer.lock. */
void rdma_notify_lost(struct rdma_peer *rdma);
/* RING_OPENED has arrived; on loop 0. 0 or -EPROTO. */
int rdma_ring_opened(struct rdma_peer *rdma, const struct wh_rdma_ring_opened *opened);
void rdma_notify_close(struct rdma_peer *rdma);

/* ---- the owner's half; on loop 0 ------------------------------------------------------------- */

/* RING_OPEN has arrived. 0, or a negative errno that ends the session. */
int rdma_receive_ring_open(struct wh_session *session, struct rdma_receive_ring **ring);
/* A receive of connection `by` has completed. *last: the greatest sequence so far by that
 * connection. 0, or a negative errno that ends the session. */
int rdma_receive_ring_take(struct wh_session *session, const struct rdma_receive_ring *ring,
			   uint32_t by, const struct ibv_wc *wc, uint64_t *last);
/* The session's queue pairs are destroyed already. */
void rdma_receive_ring_close(struct rdma_receive_ring *ring);

#endif
