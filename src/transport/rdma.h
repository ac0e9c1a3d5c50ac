/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport rdma: one-sided writes and reads by the NICs, over InfiniBand and RoCE.
 *
 * rdma.c         the table, pieces coming in, reaching regions
 * rdma-rail.c    devices, their ports (the rails) and addresses, what happens to them; queue pairs
 * rdma-memory.c  registering regions with NICs, and the keys of a peer's
 * rdma-client.c  the initiator's queue pair: connecting, breaking, trying again
 * rdma-flow.c    work requests out, completions in
 * rdma-server.c  the owner's side: it connects a queue pair and hands out keys; the NIC does the rest
 *
 * A peer has one reliable connection, made when it is first needed. Its two ends, and the keys of
 * regions, travel over the control connection. A work request moves one run of bytes; they complete in
 * their order, so that only some ask for a completion, which stands for all before it.
 *
 * Before bytes that were on their way go by another transport, the owner has destroyed its queue pair and
 * said so: a packet that was held up somewhere cannot arrive after them.
 */
#ifndef WH_TRANSPORT_RDMA_H
#define WH_TRANSPORT_RDMA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "platform/verbs.h"
#include "transport/transport.h"

#define RDMA_NICS 16
#define RDMA_RAILS 32
#define RDMA_DEPTH 256u              /* work requests of a queue pair that are not done */
#define RDMA_CHAIN 64u               /* of them, how many go with one doorbell */
#define RDMA_SIGNAL 16u              /* after so many one asks for a completion, */
#define RDMA_SIGNAL_BYTES (1u << 20) /* or after so many bytes */
#define RDMA_AHEAD (8u << 20)        /* bytes on their way, so that cancelling does not take long */
#define RDMA_INLINE 128u             /* bytes that are put into the work request itself */
#define RDMA_READS 16                /* reads that a NIC has under way */
#define RDMA_CHUNK (UINT64_C(4) << 30) /* the most that one memory region of a NIC holds */
#define RDMA_SPIN (50 * 1000)        /* ns that a waiter polls before it sleeps */
#define RDMA_PATIENCE (2 * INT64_C(1000000000)) /* ns that a submission waits to reach a peer or region */
/* The numbers of queue pairs, which ABORT names, have this bit; those of tcp's connections do not. */
#define RDMA_NUMBER 0x80000000u

struct rdma;

/* ---- NICs and rails ----------------------------------------------------------------------------- */

struct rdma_nic {
	struct wh_source events; /* its asynchronous ones; on loop 0 */
	struct rdma *rdma;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *idle; /* of queue pairs that only answer: nothing ever completes */
	struct ibv_device_attr attributes;
	uint32_t index;
	uint64_t chunk; /* bytes of one memory region */
	char name[WH_VERBS_NAME];
};

/* One port. */
struct rdma_rail {
	struct rdma_nic *nic;
	uint8_t port;
	int wanted_gid; /* by the knob; -1: chosen */
	char name[WH_NAME_MAX]; /* "mlx5_0:1" */
	/* These change with the port; under rdma.lock. */
	bool usable;
	char why[WH_REFUSAL]; /* it is not */
	struct wh_rdma_end end; /* without the numbers of a queue pair */
	uint8_t gid_index;
	uint16_t pkey_index;
	bool routed; /* InfiniBand: packets need a global route header in any case */
	uint32_t message; /* the most bytes in one */
};

/* Engine-wide. */
struct rdma {
	struct wh_engine *engine;
	struct wh_verbs *verbs;
	struct rdma_nic *nics[RDMA_NICS];
	unsigned nic_count;
	struct rdma_rail rails[RDMA_RAILS];
	unsigned rail_count;
	struct wh_loop loop; /* completions that nobody waits for, and taking down */
	bool looping;
	uint8_t ack_timeout; /* exponent of the NICs' wait for an acknowledgement */
	pthread_mutex_t lock; /* what changes of rails; `peers` */
	struct wh_list peers; /* struct rdma_peer */
	pthread_mutex_t register_lock; /* held while memory is pinned */

	/* The owner's thread that registers what peers ask for; started with the first. */
	pthread_mutex_t jobs_lock; /* all below */
	pthread_cond_t jobs_come;
	struct wh_list jobs; /* struct rdma_job */
	unsigned job_count;
	bool working, stop;
	pthread_t worker;
};

/* Open the devices that the knob `rdma` names. 0, or -ENODEV, -EINVAL and others with a text. */
int rdma_rails_open(struct rdma *rdma);
void rdma_rails_close(struct rdma *rdma);
/* How a rail is now. False: it cannot be used, for the reason in `why`. */
bool rdma_rail_look(struct rdma_rail *rail, struct rdma_rail *copy, char why[WH_REFUSAL]);
/* The first rail that can be connected to the other end, and how it is; NULL: none, with the reason. */
struct rdma_rail *rdma_rail_for(struct rdma *rdma, const struct wh_rdma_end *other,
				struct rdma_rail *copy, char why[WH_REFUSAL]);

/* A reliable queue pair on the rail, ready to be connected. `depth` work requests; *inlined is what it
 * takes inline. 0, or a negative errno with the reason. */
int rdma_qp_new(const struct rdma_rail *rail, struct ibv_cq *cq, uint32_t depth, struct ibv_qp **out,
		uint32_t *inlined, char why[WH_REFUSAL]);
/* Connect it: `mine` and `other` are complete. 0, or a negative errno with the reason. */
int rdma_qp_connect(const struct rdma_rail *rail, struct ibv_qp *qp, const struct wh_rdma_end *mine,
		    const struct wh_rdma_end *other, char why[WH_REFUSAL]);

/* ---- memory -------------------------------------------------------------------------------------- */

/* A region of ours, registered with one NIC. */
struct rdma_memory {
	struct rdma_memory *next;
	struct rdma_nic *nic;
	bool writable; /* for our own reads */
	uint64_t chunk;
	uint32_t count;
	struct ibv_mr *mrs[];
};

/* The keys of a region of a peer, for one of its NICs. */
struct rdma_keys {
	struct rdma_keys *next;
	uint32_t nic;
	int error; /* negative: refused, */
	char why[WH_REFUSAL];
	int64_t until; /* and not asked again before */
	uint64_t chunk;
	uint32_t count;
	uint32_t keys[];
};

/* Register a region with a NIC, once. `region` is entered, or held by a batch. 0, or a negative errno with
 * the reason. May take long: its pages are pinned. */
int rdma_register(struct rdma_nic *nic, struct wh_region *region, struct rdma_memory **out,
		  char why[WH_REFUSAL]);
struct rdma_memory *rdma_registered(const struct wh_region *region, const struct rdma_nic *nic);
void rdma_region_closed(struct wh_engine *engine, void *state, struct wh_region *region);
struct rdma_keys *rdma_keys_of(const struct wh_remote_region *region, uint32_t nic);
void rdma_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region);
/* KEYED has come; on loop 0. */
int rdma_keyed(struct wh_peer *peer, const struct wh_rdma_keyed *keyed);

/* KEYS has come: register in the worker's time, and answer. On loop 0. */
int rdma_serve_keys(struct wh_session *session, uint32_t nic, uint64_t id);
void rdma_worker_stop(struct rdma *rdma);

/* ---- the initiator ------------------------------------------------------------------------------- */

enum rdma_state {
	RDMA_IDLE = 0,   /* not needed yet, or to be connected again at once */
	RDMA_CONNECTING, /* CONNECT has been sent */
	RDMA_PROBING,    /* connected; an empty write shows whether packets come through */
	RDMA_READY,
	RDMA_BREAKING,   /* the owner has to confirm that its side is gone */
	RDMA_FAILED,     /* until `retry_at` */
	RDMA_LOST,       /* the peer is */
};

/* A work request that is not done. */
struct rdma_work {
	struct wh_piece *piece; /* NULL: the probe */
	struct wh_place *place; /* the peer's region, entered */
	uint64_t index; /* of the transfer, or base */
	uint64_t length;
};

struct rdma_peer {
	struct wh_list link; /* rdma.peers */
	struct rdma *rdma;
	struct wh_peer *peer;
	struct wh_task wanted; /* connect; on loop 0 */
	struct wh_task broken; /* take down; on rdma.loop */
	struct wh_task ended;  /* it is down at both ends; on loop 0 */
	struct wh_timer timer; /* loop 0: silence, and trying again */
	struct wh_abort abort;
	/* A lock of its own: explain holds the batch's, which comes after `lock`. */
	pthread_mutex_t way_lock;
	char way[48];             /* "mlx5_0:1 to mlx5_1:1, RoCE v2" */
	unsigned tries; /* loop 0: which rail is next */
	uint32_t numbers;
	int64_t backoff;

	pthread_mutex_t lock; /* all below */
	pthread_cond_t changed; /* state, keys */
	enum rdma_state state;
	char why[WH_REFUSAL]; /* it broke, or failed the last time */
	bool again;  /* what breaks is to be connected again at once, and its pieces with it */
	bool told;   /* the owner knows of the queue pair */
	int64_t retry_at, since; /* since: this state, or the last completion */
	struct wh_list urgent, bulk; /* pieces of which something has not been posted */
	struct wh_list sent;         /* those that have been */
	struct rdma_rail *rail;
	struct rdma_rail here; /* as it was when it was connected */
	struct wh_rdma_end mine, theirs;
	uint32_t number, nic; /* nic: the owner's */
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct wh_source source; /* the channel */
	uint32_t inlined;
	bool armed;
	uint32_t unwatched; /* pieces that nobody is bound to wait for */
	uint64_t head, tail; /* of the ring; counted on and on */
	uint32_t unsignalled;
	uint64_t unsignalled_bytes, ahead; /* bytes: since a signal; on their way */
	struct rdma_work ring[RDMA_DEPTH];
};

/* Have it connected. From any thread, under rdma_peer.lock. */
void rdma_want(struct rdma_peer *rdma);
/* Something is wrong with the connection: take it down. What was on its way goes by another transport,
 * or, with `again`, by a new connection. Under rdma_peer.lock. */
void rdma_break(struct rdma_peer *rdma, bool again, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int rdma_connected(struct rdma_peer *rdma, const struct wh_rdma_connected *answer);
/* A port has gone, or a device (port 0): break what uses it. On loop 0. */
void rdma_rail_lost(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port, const char *why);
void rdma_client_open(struct rdma_peer *rdma);
/* On loop 0: nothing is left that could touch the peer or its memory. */
void rdma_client_close(struct rdma_peer *rdma);
void rdma_client_lost(struct rdma_peer *rdma, int error, const char *text);

/* Under rdma_peer.lock: post what can be posted. Pieces that are to go elsewhere are put on `away`, those
 * that are done on `done`. */
void rdma_pump(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *away);
/* The same after looking at what has completed. */
void rdma_progress(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *away);
void rdma_probe(struct rdma_peer *rdma);
/* Without the lock: say what has become of them. */
void rdma_pieces_done(struct wh_list *done);
void rdma_pieces_away(struct wh_list *away, int error, const char *why);
/* Is somebody bound to poll, or wait for, the piece's batch, so that nobody else need look? */
bool rdma_watched(const struct wh_piece *piece);
/* Out of the list that it is in, as it ends. Under rdma_peer.lock. */
void rdma_take_out(struct rdma_peer *rdma, struct wh_piece *piece);

/* ---- the owner ----------------------------------------------------------------------------------- */

int rdma_session_frame(struct wh_session *session, const struct wh_frame *frame, const uint8_t *payload);
void rdma_session_close(struct wh_session *session);
void rdma_session_abort(struct wh_session *session, uint32_t number);

#endif
