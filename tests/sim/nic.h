/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated NICs: what the calls of libibverbs (nic-verbs.c) and the packets (nic-wire.c) share.
 *
 * Reliable connections: requests of a queue pair arrive, and complete, in their order; those of
 * different ones do not. Bytes of a write land some time before its completion. What cannot get
 * through is sent again until the initiator gives up; what has left it by then may still land, as
 * long as the queue pair at the other end is there. */
#ifndef SIM_NIC_H
#define SIM_NIC_H

#include "platform/verbs-abi.h"
#include "world.h"

#define NIC_SGES 16
#define NIC_INLINE 256
#define NIC_RECEIVES 64u
#define NIC_EVENTS 64u
#define NIC_WINDOW 32u /* requests that a queue pair has sent and not completed, at most */

enum {
	NIC_LOCAL_PROTECTION = 4, /* IBV_WC_LOC_PROT_ERR */
	NIC_REMOTE_OPERATION = 11, /* IBV_WC_REM_OP_ERR */
};

/* A NIC of a host, with one port. It outlives the host's processes. */
struct nic {
	char name[16];
	int host, index;
	bool down;
	int64_t black_until; /* packets get lost, and nobody hears of it */
	int64_t busy_until;
	uint32_t max_inline;
};

/* What a process has opened. */
struct context {
	struct ibv_context ibv; /* first */
	struct context *next;
	struct nic *nic;
	int node, objects; /* objects: that are open in it */
	struct descriptor *async;
	struct ibv_async_event events[NIC_EVENTS];
	unsigned head, tail;
};

struct mr {
	struct ibv_mr ibv; /* first */
	int access;
};

struct channel {
	struct ibv_comp_channel ibv; /* first */
	struct descriptor *descriptor;
	struct cq **events;
	unsigned count, room;
};

struct cq {
	struct ibv_cq ibv; /* first */
	struct ibv_wc *wcs;
	unsigned head, tail, room, pairs;
	bool armed;
	unsigned unacked;
};

/* A request of a send queue. */
struct work {
	struct ibv_send_wr wr;
	struct ibv_sge sges[NIC_SGES];
	uint8_t inlined[NIC_INLINE];
	size_t length;
	bool tried, acked;
};

struct qp {
	struct ibv_qp ibv; /* first */
	struct pair *pair;
};

/* What the world keeps of a queue pair, also when it is destroyed. */
struct pair {
	struct qp *qp; /* NULL: destroyed */
	uint32_t number;
	struct nic *nic;
	int node, state, access;
	struct ibv_qp_cap cap;
	struct ibv_qp_attr to; /* from the transition to RTR, with the rest of that to RTS */
	/* the send queue: completed, sent, posted */
	struct work *works;
	uint64_t tail, sent, head;
	unsigned epoch; /* grows when everything from some request on is sent again */
	bool sending, doomed, timed;
	bool silent; /* completes nothing while its own port is down */
	int64_t last, last_back; /* arrival of the newest packet, there and back */
	int64_t progress_at, limit;
	int64_t pause_until;
	/* what has arrived: complete requests, and bytes of the next */
	uint64_t expected;
	size_t landed;
	/* the receive queue */
	uint64_t receives[NIC_RECEIVES]; /* their wr_id */
	unsigned posted, taken;
};

static inline struct context *context_of(struct ibv_context *ibv)
{
	return (struct context *)ibv;
}

/* NULL: there is no queue pair of that number. */
struct pair *pair_of(uint32_t number);
/* The memory under a key, if these bytes may be accessed so. */
struct mr *mr_find(uint32_t key, uint64_t address, uint64_t length, int access);
void context_event(struct context *context, int type);
void cq_push(struct cq *cq, const struct ibv_wc *wc);
const uint8_t *nic_gid(const struct nic *nic, uint8_t gid[16]);

/* The queue pair is in state RTS, or has new requests: send. */
void pair_kick(struct pair *pair);
/* The queue pair has failed: flush all that it has. */
void pair_flush(struct pair *pair);

#endif
