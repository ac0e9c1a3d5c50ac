/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint: the initiator's queue pair to a peer, on one of our rails. client.c connects it,
 * takes it down, reconnects it, and gives it back (destroys it while it is not used).
 *
 * rdma_peer.lock guards the state and the work ring. Loop 0 owns the timer, the attempts and the
 * backoff; rdma.loop destroys queue pairs. */
#ifndef WH_TRANSPORT_RDMA_ENDPOINT_H
#define WH_TRANSPORT_RDMA_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/fragment.h"
#include "transport/rdma/rail.h"
#include "util/list.h"
#include "util/loop.h"

#define RDMA_ENDPOINTS 16 /* to one peer */
#define RDMA_DEPTH 256u /* outstanding work requests of a queue pair */
#define RDMA_MAX_IN_FLIGHT (8u << 20) /* bytes, per endpoint: bounds how long a cancel waits */
#define RDMA_BACKOFF_FIRST (INT64_C(100000000)) /* ns before the first attempt to reconnect */
/* ABORT names an endpoint or a TCP connection by its number. Only numbers of endpoints have this
 * bit. */
#define RDMA_NUMBER 0x80000000u

struct rdma_peer;
struct wh_region_entry;

/* clang-format off */
/* The states of an endpoint:
 *
 *   IDLE -> WANTED -> CONNECTING -> PROBING -> READY     success
 *                         |            |         |
 *                         +------------+---------+---> BREAKING -> IDLE, or FAILED
 *
 *   IDLE        WANTED      rdma_endpoint_connect(): bytes need the endpoint
 *   WANTED      CONNECTING  loop 0 makes our queue pair and sends CONNECT
 *   WANTED      IDLE        the limit of connections is reached, and another endpoint is ready
 *   CONNECTING  PROBING     CONNECTED has arrived; the probe, an empty write, is posted
 *   PROBING     READY       the probe has completed: packets get through
 *   these three BREAKING    rdma_endpoint_break(): an error, a timeout, a port that went down, or
 *                           the endpoint is given back because it is not used
 *   BREAKING    IDLE        both ends are down, and the endpoint may reconnect at once
 *   BREAKING    FAILED      both ends are down, after a failure
 *   FAILED      WANTED      the timer has fired: `backoff` is over, or the port is up again
 *   any         LOST        rdma_client_lost(): the peer is lost; rdma_client_close()
 *   LOST        IDLE        rdma_client_again(): the peer is back
 *
 * "These three" are CONNECTING, PROBING and READY. "Down" means that the queue pair is destroyed:
 * rdma.loop destroys ours, then the owner confirms by ABORT that it has destroyed its own. */
/* clang-format on */
enum rdma_state {
	RDMA_IDLE = 0,
	RDMA_WANTED,
	RDMA_CONNECTING,
	RDMA_PROBING,
	RDMA_READY,
	RDMA_BREAKING,
	RDMA_FAILED,
	RDMA_LOST,
};

/* An outstanding work request. */
struct rdma_work {
	struct wh_fragment *fragment; /* NULL: probe, notification, or nothing left to resend */
	struct wh_region_entry *entry; /* the peer's region, entered until the request is done */
	struct wh_cursor start; /* in the fragment */
	uint64_t length; /* bytes */
	uint8_t notification; /* 1 + slot of the notification; 0: none */
};

/* The outstanding work requests of an endpoint, in order; after it broke, those to be sent again.
 * `head`, `tail` and `arrived` count on and never wrap. */
struct rdma_work_ring {
	struct wh_list link; /* rdma_peer.resend */
	uint64_t head, tail;
	uint64_t arrived; /* writes before this one have arrived for certain: not sent again */
	struct rdma_work works[RDMA_DEPTH];
};

struct rdma_endpoint {
	struct rdma_peer *peer;
	struct rdma_rail *rail;
	uint32_t index; /* in rdma_peer.endpoints; bit 1 << index in rdma_fragment.rails */
	struct wh_task connect_task; /* on loop 0 */
	struct wh_task break_task; /* take it down; on rdma.loop */
	struct wh_task ended_task; /* both ends are down; on loop 0 */
	struct wh_timer timer; /* loop 0: timeouts, reconnecting, giving back */
	struct wh_abort abort;
	uint32_t attempts; /* that failed; the owner tries another rail each time. On loop 0 */
	int64_t backoff; /* ns; on loop 0 */

	/* Under rdma_peer.lock. */
	enum rdma_state state;
	char why[WH_REFUSAL]; /* why it broke or failed last */
	char why_broken[WH_REFUSAL]; /* why it broke last with bytes in flight */
	char path[40]; /* "mlx5_0:1 to mlx5_1:1" */
	bool reconnect; /* it may be connected again at once after it broke */
	bool counted; /* in rdma.connections */
	bool verified; /* packets have got through since it was connected */
	bool announced; /* the owner knows of the queue pair: it must confirm its end */
	/* ns: the latest of these: CONNECT was sent or answered, an idle endpoint got work, work
	 * completed */
	int64_t since;
	struct rdma_rail snapshot; /* copy of *rail from when it was connected */
	struct wh_rdma_end local_end, remote_end;
	uint32_t number, remote_nic;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct wh_source source; /* the channel */
	uint32_t max_inline; /* bytes */
	bool armed; /* the next completion makes an event on `channel` */
	struct rdma_work_ring *ring; /* from connecting until it is down */
	uint32_t unsignalled; /* work requests since the last one that asks for a completion */
	uint64_t unsignalled_bytes;
	uint64_t in_flight; /* bytes */
	double speed; /* bytes/ns as last measured; 0: unknown */
	int64_t measured_at; /* ns */
	int64_t interval_start; /* ns: start of the present measurement of `speed` */
	uint64_t interval_bytes; /* completed since interval_start */
};

static inline bool rdma_endpoint_pending(const struct rdma_endpoint *endpoint)
{
	return (endpoint->state >= RDMA_WANTED && endpoint->state <= RDMA_PROBING) ||
	       endpoint->state == RDMA_BREAKING;
}

static inline bool rdma_endpoint_busy(const struct rdma_endpoint *endpoint)
{
	return endpoint->ring && endpoint->ring->head != endpoint->ring->tail;
}

static inline bool rdma_endpoint_has_room(const struct rdma_endpoint *endpoint)
{
	return endpoint->ring->head - endpoint->ring->tail < RDMA_DEPTH &&
	       endpoint->in_flight < RDMA_MAX_IN_FLIGHT;
}

/* It has not failed: it is connected, or may be soon. */
static inline bool rdma_endpoint_usable(const struct rdma_endpoint *endpoint)
{
	return endpoint->state != RDMA_FAILED && endpoint->state != RDMA_LOST;
}

/* All of a peer's endpoints; under rdma_peer.lock. */
uint32_t rdma_endpoints_ready(const struct rdma_peer *rdma); /* a bit each */
bool rdma_endpoints_pending(const struct rdma_peer *rdma); /* one is changing its state */
bool rdma_endpoints_failed(const struct rdma_peer *rdma); /* all have failed, or are lost */
bool rdma_endpoints_lost(const struct rdma_peer *rdma); /* the peer is lost */

/* Connect the endpoint, or all of the peer's, unless they are already. From any thread, under
 * rdma_peer.lock. */
void rdma_endpoint_connect(struct rdma_endpoint *endpoint);
void rdma_endpoints_connect(struct rdma_peer *rdma);
/* Take the endpoint down, for the reason given. What was in flight goes by another endpoint or
 * another transport once both ends are down. `reconnect`: it may be connected again at once. Under
 * rdma_peer.lock. */
void rdma_endpoint_break(struct rdma_endpoint *endpoint, bool reconnect, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* CONNECTED has arrived; on loop 0. */
int rdma_endpoint_connected(struct rdma_peer *rdma, const struct wh_rdma_connected *answer);
/* SPARE has arrived: give the queue pair back to the owner if nothing is in flight. On loop 0. */
void rdma_endpoint_spare(struct rdma_peer *rdma, uint32_t number);
/* Post the probe, an empty write. Under rdma_peer.lock. */
void rdma_endpoint_probe(struct rdma_endpoint *endpoint);
/* Arm the completion queue and post a notification that is in the work ring already. `idle`:
 * nothing else is in flight. Under rdma_peer.lock. */
void rdma_endpoint_post_notification(struct rdma_endpoint *endpoint, struct ibv_send_wr *request,
				     bool idle);
/* Bytes have completed: update the endpoint's speed. Under rdma_peer.lock. */
void rdma_endpoint_measure(struct rdma_endpoint *endpoint, int64_t now);

/* A port went down (port 0: the whole device): break what uses it. Or it came back: reconnect. On
 * loop 0. */
void rdma_rail_down(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port, const char *why);
void rdma_rail_up(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port);

/* Make the endpoints. 0 or -ENOMEM; call rdma_client_close() in both cases. */
int rdma_client_open(struct rdma_peer *rdma);
/* On loop 0: afterwards no NIC touches the peer's state or its batches' memory. */
void rdma_client_close(struct rdma_peer *rdma);
/* The peer is lost: fail all fragments. On loop 0. */
void rdma_client_lost(struct rdma_peer *rdma, int error, const char *text);
/* The peer is back: all endpoints become IDLE. */
void rdma_client_again(struct rdma_peer *rdma);

#endif
