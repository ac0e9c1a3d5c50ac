/* SPDX-License-Identifier: Apache-2.0 */
/* NICs, their ports (the rails), and queue pairs on them.
 *
 * NICs and rails are opened with the engine and stay until it closes. A rail's state changes with
 * its port; rdma.lock guards it, so work on a copy from rdma_rail_query(). */
#ifndef WH_TRANSPORT_RDMA_RAIL_H
#define WH_TRANSPORT_RDMA_RAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "platform/verbs.h"
#include "transport/rdma/wire.h"
#include "transport/transport.h"
#include "util/loop.h"

#define RDMA_NICS 16
#define RDMA_RAILS 32
#define RDMA_RETRIES 6 /* of a packet; 7 means for ever on some NICs */
#define RDMA_READS 16 /* most RDMA reads outstanding on one queue pair */
/* Most local extents in one work request, which then fills 128 bytes of the send queue. */
#define RDMA_GATHER 6u
#define RDMA_INLINE 128u /* bytes that are copied into the work request itself */
#define RDMA_CHUNK (UINT64_C(4) << 30) /* most bytes of one MR */

struct rdma;
struct wh_region;

struct rdma_nic {
	struct wh_source events; /* asynchronous events; on loop 0 */
	struct rdma *rdma;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *idle; /* send queue of responders, which send nothing */
	struct ibv_comp_channel *notifications; /* receives of responders */
	struct wh_source notifications_source; /* on loop 0 */
	struct ibv_device_attr attributes;
	uint32_t index;
	uint64_t chunk; /* bytes of one MR */
	uint32_t gather; /* local extents in one work request */
	int dma_buf; /* 1: takes dma-bufs; 0: not asked yet; -errno. As rdma_gpu_get() */
	char name[WH_VERBS_NAME];
};

/* One port of a NIC. */
struct rdma_rail {
	struct rdma_nic *nic;
	uint8_t port;
	int wanted_gid; /* from the setting `rdma`; -1: chosen automatically */
	char name[WH_NAME_MAX]; /* "mlx5_0:1" */
	/* The rest changes with the port; under rdma.lock. */
	bool usable;
	char why[WH_REFUSAL]; /* the reason, if it is not usable */
	struct wh_rdma_end end; /* without `qp` and `psn` */
	uint8_t gid_index;
	uint16_t pkey_index;
	bool routed; /* InfiniBand: packets always need a global route header */
	uint32_t message; /* most bytes of one message */
};

/* Open the devices that the setting `rdma` names, and listen for their events on loop 0. 0, or
 * -ENODEV, -EINVAL and others, with wh_error_text(). */
int rdma_rails_open(struct rdma *rdma);
void rdma_rails_close(struct rdma *rdma);
/* Copy the rail's present state; takes rdma.lock. False: it is not usable, for the reason in `why`.
 */
bool rdma_rail_query(struct rdma_rail *rail, struct rdma_rail *copy, char why[WH_REFUSAL]);
/* Choose the rail that answers a CONNECT, and copy its state. NULL: none fits, with the reason. */
struct rdma_rail *rdma_rail_choose(struct rdma *rdma, const struct wh_rdma_connect *wanted,
				   struct rdma_rail *copy, char why[WH_REFUSAL]);
/* May packets of one end reach the other: same fabric, GID type, address family and partition?
 * False: they cannot, for the reason in `why`. */
bool rdma_ends_are_compatible(const struct wh_rdma_end *local, const struct wh_rdma_end *remote,
			      char why[WH_REFUSAL]);

/* ---- queue-pair.c ---------------------------------------------------------------------------- */

/* Make a reliable queue pair in state INIT: for an initiator, with `depth` work requests (*inlined:
 * the most inline bytes it takes), or for an owner (a responder), with one receive for each
 * notification that may be in flight. 0, or a negative errno with the reason. */
int rdma_qp_new(const struct rdma_rail *rail, struct ibv_cq *cq, uint32_t depth,
		struct ibv_qp **out, uint32_t *inlined, char why[WH_REFUSAL]);
int rdma_qp_new_responder(const struct rdma_rail *rail, struct ibv_cq *receives,
			  struct ibv_qp **out, char why[WH_REFUSAL]);
/* Move the queue pair to RTR and RTS. Both ends are complete. 0, or a negative errno with the
 * reason. */
int rdma_qp_connect(const struct rdma_rail *rail, struct ibv_qp *qp,
		    const struct wh_rdma_end *local, const struct wh_rdma_end *remote,
		    char why[WH_REFUSAL]);

/* ---- affinity.c ------------------------------------------------------------------------------ */

/* Read the topology, if there are several NICs and the setting `rdma` names none. */
void rdma_affinity_open(struct rdma *rdma);
void rdma_affinity_close(struct rdma *rdma);
/* Distance from the NIC to the region's memory: enum wh_distance, or 0 if all NICs count as equally
 * near. */
uint8_t rdma_distance(const struct rdma_nic *nic, const struct wh_region *region);

#endif
