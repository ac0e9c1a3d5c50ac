/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport rdma: one-sided writes and reads by the NICs, over InfiniBand and RoCE.
 *
 * rdma.c         the table, pieces coming in
 * reach.c   can it move bytes between two regions? waiting for connections and keys
 * rail.c    devices, their ports (the rails) and addresses, what happens to them; queue pairs
 * affinity.c    which NIC is near to which memory
 * memory.c  registering regions with NICs, and the keys of a peer's
 * client.c  the initiator's queue pairs: connecting, breaking, trying again, giving back
 * gpu.c     ways for NICs to a GPU's memory: dma-buf, peermem, and why not
 * worker.c  the owner's thread that registers, and flushes, what peers ask for
 * flush.c what NICs have written to a GPU's memory becomes visible to it
 * stage.c   a GPU's memory that no NIC reaches, by way of pinned memory
 * bounce-client.c    the initiator's half of that memory where it is the peer's
 * bounce-server.c    the owner's half: pinned memory for a peer, and copies between it and regions
 * striping.c   which connection takes how much of what
 * flow.c    work requests out, completions in
 * server.c  the owner's side: it connects queue pairs and hands out keys; NICs do the rest
 * notify.c    notifications that the initiator's NIC writes into the owner's mailbox: letters
 * receive-ring.c the owner's half: the mailbox, and what comes there
 *
 * A peer has one reliable connection, a line, for each of our rails; the owner chooses which of its
 * own is at the other end. They are made when they are first needed. Their ends, and the keys of
 * regions, travel over the control connection. A work request moves bytes that lie in one run on
 * the owner's side; they complete in their order, so that only some ask for a completion, which
 * stands for all before it.
 *
 * Before bytes that were on their way by a line go by another one, or by another transport, the
 * owner has destroyed its queue pair and said so: a packet that was held up somewhere cannot arrive
 * after them.
 */
#ifndef WH_TRANSPORT_RDMA_RDMA_H
#define WH_TRANSPORT_RDMA_RDMA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/fragment.h"
#include "core/peer.h"
#include "core/region.h"
#include "core/remote.h"
#include "core/session.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "platform/verbs.h"
#include "transport/rdma/wire.h"
#include "transport/transport.h"
#include "util/list.h"
#include "util/loop.h"

#define RDMA_NICS 16
#define RDMA_RAILS 32
#define RDMA_DEPTH 256u /* work requests of a queue pair that are not done */
#define RDMA_CHAIN 64u /* of them, how many go with one doorbell */
#define RDMA_SIGNAL 16u /* after so many one asks for a completion, */
#define RDMA_SIGNAL_BYTES (1u << 20) /* or after so many bytes */
/* bytes on their way, so that cancelling does not take long */
#define RDMA_AHEAD (8u << 20)
#define RDMA_ENDPOINTS WH_RAILS /* connections to a peer */
/* runs of ours in one work request: it then takes 128 bytes of a queue */
#define RDMA_GATHER 6u
#define RDMA_SPLIT (64u << 10) /* bytes that are not worth dividing among lines */
#define RDMA_INLINE 128u /* bytes that are put into the work request itself */
#define RDMA_READS 16 /* reads that a NIC has under way */
#define RDMA_CHUNK (UINT64_C(4) << 30) /* the most that one memory region of a NIC holds */
/* ns before what failed is tried again, at first */
#define RDMA_BACKOFF_FIRST (INT64_C(100000000))
#define RDMA_SLOTS 32 /* WH_SLOTS of gpu/stream.h, whose names are not for all who include this */
#define RDMA_SPIN (50 * 1000) /* ns that a waiter polls before it sleeps */
/* ns that a submission waits to reach a peer or region */
#define RDMA_PATIENCE (2 * INT64_C(1000000000))
/* The numbers of queue pairs, which ABORT names, have this bit; those of tcp's connections do
 * not. */
#define RDMA_NUMBER 0x80000000u

struct rdma;
struct rdma_peer;

/* ---- NICs and rails -------------------------------------------------------------------------- */

struct rdma_nic {
	struct wh_source events; /* its asynchronous ones; on loop 0 */
	struct rdma *rdma;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *idle; /* of queue pairs that only answer: they send nothing */
	struct ibv_comp_channel *notifications; /* of what these receive */
	struct wh_source notifications_source; /* on loop 0 */
	struct ibv_device_attr attributes;
	uint32_t index;
	uint64_t chunk; /* bytes of one memory region */
	uint32_t gather; /* runs in one work request */
	int dma_buf; /* under register_lock: 1: it takes dma-bufs; 0: not asked yet; -errno */
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
	_Atomic unsigned connections; /* that we have opened, to all peers */
	/* Those that we answer with, the ones to be asked back first at the front; on loop 0. */
	struct wh_list answering;
	unsigned answering_count;
	unsigned receive_rings; /* that sessions have; on loop 0 */
	struct wh_topology *topology; /* NULL: all NICs are as good */
	pthread_mutex_t lock; /* what changes of rails; `peers` */
	struct wh_list peers; /* struct rdma_peer */
	pthread_mutex_t register_lock; /* held while memory is pinned */
	uint8_t methods[4]; /* enum wh_rdma_method to a GPU's memory, best first */
	unsigned method_count;
	/* Under register_lock until one is counted: slots that staging has used, as regions. */
	struct wh_region *slots[RDMA_SLOTS];
	_Atomic unsigned slot_count;
	/* there is memory of ours that NICs write and that has to be flushed */
	_Atomic bool flushes;

	/* The owner's desks, through which GPUs' memory is staged for peers. */
	struct wh_list bounces_free; /* on loop 0 */
	_Atomic unsigned bounces_used;

	/* The owner's thread that registers and flushes what peers ask for; started with the
	 * first. */
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
/* The rail that is to answer, and how it is; NULL: none can, with the reason. */
struct rdma_rail *rdma_rail_for(struct rdma *rdma, const struct wh_rdma_connect *wanted,
				struct rdma_rail *copy, char why[WH_REFUSAL]);

/* A reliable queue pair on the rail, ready to be connected. Of an initiator: `depth` work requests;
 * *inlined is what it takes inline. Of an owner: as many receives as there may be letters. 0, or a
 * negative errno with the reason. */
int rdma_qp_new(const struct rdma_rail *rail, struct ibv_cq *cq, uint32_t depth,
		struct ibv_qp **out, uint32_t *inlined, char why[WH_REFUSAL]);
int rdma_qp_new_answering(const struct rdma_rail *rail, struct ibv_cq *receives,
			  struct ibv_qp **out, char why[WH_REFUSAL]);
/* Connect it: `mine` and `other` are complete. 0, or a negative errno with the reason. */
int rdma_qp_connect(const struct rdma_rail *rail, struct ibv_qp *qp, const struct wh_rdma_end *mine,
		    const struct wh_rdma_end *other, char why[WH_REFUSAL]);

/* ---- distances ------------------------------------------------------------------------------- */

/* Read where the NICs are, if there is a choice and nobody has made it. */
void rdma_affinity_open(struct rdma *rdma);
void rdma_affinity_close(struct rdma *rdma);
/* How far the NIC is from the region's memory: enum wh_distance, or 0 where that is nothing to
 * go by. */
uint8_t rdma_distance(const struct rdma_nic *nic, const struct wh_region *region);

/* ---- memory ---------------------------------------------------------------------------------- */

/* A stretch of a region that has one key. */
struct rdma_chunk {
	uint64_t end; /* where in the region the next one begins */
	uint32_t key;
	struct ibv_mr *mr; /* of ours; NULL: a peer's */
};

/* The one that this byte of the region is in. */
static inline const struct rdma_chunk *rdma_chunk_at(const struct rdma_chunk *all, uint32_t count,
						     uint64_t offset)
{
	uint32_t first = 0, last = count - 1;

	while (first < last) {
		uint32_t middle = first + (last - first) / 2;

		if (all[middle].end > offset)
			last = middle;
		else
			first = middle + 1;
	}
	return &all[first];
}

/* Memory as one NIC knows it: its own memory regions, one behind the other. */
struct rdma_mrs {
	struct rdma_mrs *next; /* of the same registration: a GPU's */
	struct rdma_nic *nic;
	unsigned users; /* regions; under register_lock */
	int rights;
	enum wh_rdma_method method;
	uint32_t count, room;
	struct rdma_chunk *chunks;
};

/* A region of ours, and one NIC. */
struct rdma_memory {
	struct rdma_memory *next;
	struct rdma_nic *nic;
	struct rdma_mrs *mrs; /* NULL: the NIC does not reach it, and its bytes are staged */
	bool writable; /* for our own reads */
	uint8_t distance; /* from the NIC */
	char why[WH_REFUSAL]; /* the way is not a better one */
};

/* The keys of a region of a peer, for one of its NICs. */
struct rdma_keys {
	struct rdma_keys *next;
	uint32_t nic;
	int error; /* negative: refused, */
	char why[WH_REFUSAL]; /* or why the way is not a better one */
	int64_t until; /* refused: not asked again before */
	enum wh_rdma_method method;
	bool flush; /* its GPU sees what NICs have written only after RDMA_FLUSH */
	uint8_t distance; /* of the owner's NIC from its memory */
	uint32_t count;
	struct rdma_chunk chunks[];
};

/* Register a region with a NIC, once. `region` is entered, or held by a batch. 0, -ESTALE: its
 * memory is gone, or another negative errno, with the reason. May take long: its pages are
 * pinned. */
int rdma_register(struct rdma_nic *nic, struct wh_region *region, struct rdma_memory **out,
		  char why[WH_REFUSAL]);
/* As the NIC knows it, or as it is staged; NULL: nobody has asked for that yet. */
struct rdma_memory *rdma_memory_of(const struct wh_region *region, const struct rdma_nic *nic);
/* The same; NULL also if it is staged. */
struct rdma_memory *rdma_registered(const struct wh_region *region, const struct rdma_nic *nic);
void rdma_region_closed(struct wh_engine *engine, void *state, struct wh_region *region);
struct rdma_keys *rdma_keys_of(const struct wh_remote_region *region, uint32_t nic);
void rdma_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region);
/* KEYED has come; on loop 0. */
int rdma_keyed(struct wh_peer *peer, const struct wh_rdma_keyed *keyed);

/* Add what has been registered (NULL: errno says why not) behind the rest, or take all of it
 * back. 0 or a positive errno. */
int rdma_mrs_add(struct rdma_mrs *mrs, struct ibv_mr *mr, uint64_t length);
void rdma_mrs_clear(struct rdma_mrs *mrs);

/* A GPU's memory, by the best way there is. 0, *mrs counted (NULL: it has to be staged) and the
 * reasons why not by a better way; or a negative errno with the reasons. Under register_lock. */
int rdma_gpu_get(struct rdma_nic *nic, struct wh_region *region, int rights, struct rdma_mrs **mrs,
		 char why[WH_REFUSAL]);
void rdma_gpu_put(struct wh_registration *registration, struct rdma_mrs *mrs);
/* Parse the knob `rdma_gpu`. 0 or -EINVAL. */
int rdma_methods_parse(struct rdma *rdma);
const char *rdma_method_name(enum wh_rdma_method method);

/* ---- visibility ------------------------------------------------------------------------------
 * A NIC that has written to a GPU's memory may be done before the GPU would see it. Where CUDA
 * says that it orders such writes nothing is needed; else they are flushed, by the side whose
 * memory it is. */

/* Can, and does, the GPU's memory have to be flushed? 0: not; 1: it has to; -EOPNOTSUPP: it
 * would have to be and cannot. */
int rdma_flush_policy(const struct wh_cuda *cuda, const struct wh_cuda_device *device);
/* Flush what NICs have written to a region of ours. 0, or what the driver said, with a text. */
int rdma_flush(const struct wh_region *region);
/* All bytes of a piece have been moved: done, once they are visible. Without a lock. */
void rdma_fragment_moved(struct wh_fragment *fragment);
/* FLUSHED has come; on loop 0. */
int rdma_flushed(struct rdma_peer *rdma, const struct wh_rdma_flushed *flushed);
/* Wait for no more answers: of any batch (NULL), for the peer is lost, or of one, which is
 * cancelled. */
void rdma_flushes_end(struct rdma_peer *rdma, const struct wh_batch *batch, int error,
		      const char *text);

/* For explain: how NICs reach the batch's GPU memory. */
bool rdma_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch, char *line,
		   size_t size);
/* The same in a word: ", dmabuf", ", staged+dmabuf" (ours and theirs), or "". */
void rdma_describe_methods(struct rdma_peer *rdma, const struct wh_batch *batch, char *out,
			   size_t size);

/* ---- staging --------------------------------------------------------------------------------- */

/* How lines reach both sides of what is to be moved. */
struct rdma_sides {
	uint32_t ours, theirs; /* lines that do; all that count, at first */
	bool stage_ours, stage_theirs; /* there are some for which it can be staged */
};

/* Between these regions, too. Under rdma_peer.lock, as the next two. */
void rdma_sides_add(const struct rdma_peer *rdma, uint32_t endpoints, const struct wh_region *local,
		    const struct wh_remote_region *remote, uint32_t op, struct rdma_sides *sides);
enum rdma_stage_side { RDMA_STAGE_OURS = 1, RDMA_STAGE_THEIRS = 2 };
/* The sides to be staged, so that a line carries it; 0: none, or it would not help. */
unsigned rdma_sides_staged(const struct rdma_sides *sides);
unsigned rdma_stage_wanted(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Move it so. Without the lock. */
void rdma_stage(struct rdma_peer *rdma, struct wh_fragment *fragment, unsigned sides);
/* Start nothing more of the piece, if it is one of those. Under rdma_peer.lock; pieces that have
 * ended are put on `done`. False: it is none. */
bool rdma_stage_cancel(struct rdma_peer *rdma, const struct wh_fragment *fragment,
		       struct wh_list *done);
void rdma_slots_close(struct rdma *rdma);

/* A slot of the owner's desk, that a part of a piece goes through. Under rdma_peer.lock, save where
 * it says otherwise. */
struct rdma_lease {
	struct wh_list link; /* rdma_peer.bounce_waits */
	unsigned slot;
	bool held, used, asked; /* used: since it is held; asked: for a copy that is not done */
	bool lost; /* the peer was: the slot is nobody's */
	/* It has a slot, or is lost. Must do no more than pass that on. */
	void (*have)(struct rdma_lease *lease);
	/* The owner has moved what it was asked to; 0, or why not. Without the lock. */
	void (*copied)(struct rdma_lease *lease, int error, const char *why);
};

/* Is there a desk? Asks for it. 0, -EAGAIN: not yet, or a refusal. */
int rdma_bounce_known(struct rdma_peer *rdma, char why[WH_REFUSAL]);
/* Is there one, and does a line have its keys? */
bool rdma_bounce_reached(const struct rdma_peer *rdma);
/* True: it has a slot, or is lost; else `have` is called. */
bool rdma_lease_acquire(struct rdma_peer *rdma, struct rdma_lease *lease);
void rdma_lease_release(struct rdma_peer *rdma, struct rdma_lease *lease);
/* If it has been used and others wait: it is theirs now, and `have` is called when it is ours
 * again. */
bool rdma_lease_yield(struct rdma_peer *rdma, struct rdma_lease *lease);
/* Send a COPY; `copied` follows. Without the lock, as all below. */
void rdma_lease_copy(struct rdma_peer *rdma, struct rdma_lease *lease, const uint8_t *bytes,
		     size_t length);
/* DESKED has come, or COPIED; on loop 0. */
void rdma_bounce_opened(struct rdma_peer *rdma, const struct wh_rdma_bounce_opened *opened);
int rdma_copied(struct rdma_peer *rdma, const struct wh_rdma_flushed *copied);
/* The peer is lost, and nothing is on its way. */
void rdma_bounce_lost(struct rdma_peer *rdma);
/* Enter a region of the peer's; 0: its desk. NULL: it has gone. To be left by its place. */
struct wh_remote_region *rdma_enter(struct rdma_peer *rdma, uint64_t id);

/* ---- the owner's worker ---------------------------------------------------------------------- */

struct rdma_bounce;

/* Something for it to do. `stop`: the engine is being closed. */
struct rdma_job {
	struct wh_list link;
	void (*run)(struct rdma_job *job, bool stop);
};

/* False: it has too much to do. */
bool rdma_work(struct rdma *rdma, struct rdma_job *job);
/* KEYS has come: register in the worker's time, and answer. On loop 0. */
int rdma_serve_keys(struct wh_session *session, struct rdma_bounce *bounce, uint32_t nic,
		    uint64_t id);
/* FLUSH has come; the same. */
int rdma_serve_flush(struct wh_session *session, uint32_t number, uint64_t id);
void rdma_worker_stop(struct rdma *rdma);

/* ---- the owner's desks; on loop 0 ------------------------------------------------------------ */

/* DESK has come, or COPY. 0, or a negative errno: the session is to be ended. */
int rdma_bounce_frame(struct wh_session *session, struct rdma_bounce **mine);
int rdma_bounce_copy(struct wh_session *session, struct rdma_bounce *bounce, const uint8_t *payload,
		     size_t length);
/* May the peer use it? */
bool rdma_bounce_open(const struct rdma_bounce *bounce);
/* Its memory, as NICs know it; while it is held. */
struct wh_region *rdma_bounce_region(struct rdma_bounce *bounce);
void rdma_bounce_get(struct rdma_bounce *bounce);
void rdma_bounce_put(struct rdma_bounce *bounce);
/* The session goes, and its queue pairs have gone. */
void rdma_bounce_close(struct rdma_bounce *bounce);
/* Wait for those of sessions that have gone, and free them. Not on loop 0. */
void rdma_bounces_close(struct rdma *rdma);

/* ---- the initiator --------------------------------------------------------------------------- */

enum rdma_state {
	RDMA_IDLE = 0, /* not needed yet, or given back */
	RDMA_WANTED, /* to be connected as soon as loop 0 comes to it */
	RDMA_CONNECTING, /* CONNECT has been sent */
	RDMA_PROBING, /* connected; an empty write shows whether packets come through */
	RDMA_READY,
	RDMA_BREAKING, /* the owner has to confirm that its side is gone */
	RDMA_FAILED, /* until its timer fires */
	RDMA_LOST, /* the peer is */
};

/* A work request that is not done. */
struct rdma_work {
	struct wh_fragment *fragment; /* NULL: the probe, or nothing any more */
	struct wh_region_entry *entry; /* the peer's region, entered while the line stands */
	struct wh_cursor start; /* in the piece */
	uint64_t length;
	uint8_t notification; /* 1 + its slot: it is that; 0: it is none */
};

/* Those of a line in their order; once it has broken, what is to be sent again. Counted on and
 * on. */
struct rdma_ring {
	struct wh_list link; /* rdma_peer.again */
	uint64_t head, tail;
	/* those before this are known to have arrived: they are not sent again */
	uint64_t arrived;
	struct rdma_work works[RDMA_DEPTH];
};

/* A connection to a peer, by one of our rails. */
struct rdma_endpoint {
	struct rdma_peer *peer;
	struct rdma_rail *rail;
	uint32_t index; /* among the peer's; bit 1 << index in wh_fragment.rails */
	struct wh_task wanted; /* connect; on loop 0 */
	struct wh_task broken; /* take down; on rdma.loop */
	struct wh_task ended; /* it is down at both ends; on loop 0 */
	struct wh_timer timer; /* loop 0: silence, trying again, giving back */
	struct wh_abort abort;
	/* that failed: the owner answers with another rail of its own; on loop 0 */
	uint32_t tries;
	int64_t backoff;

	/* Under the peer's lock. */
	enum rdma_state state;
	char why[WH_REFUSAL]; /* it broke, or failed the last time */
	char broke[WH_REFUSAL]; /* why it did the last time that something was on its way */
	char path[40]; /* "mlx5_0:1 to mlx5_1:1" */
	bool again; /* what breaks may be connected again at once */
	bool open; /* it counts in rdma.connections */
	bool proved; /* packets have come through */
	bool told; /* the owner knows of the queue pair */
	int64_t since; /* this state, or the last completion */
	struct rdma_rail here; /* as it was when it was connected */
	struct wh_rdma_end mine, theirs;
	uint32_t number, nic; /* nic: the owner's */
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct wh_source source; /* the channel */
	uint32_t inlined;
	bool armed;
	struct rdma_ring *ring; /* while it is connected, or being so */
	uint32_t unsignalled;
	uint64_t unsignalled_bytes, ahead; /* bytes: since a signal; on their way */
	/* How fast it is: bytes a ns as last measured, and the bytes since `mark`. 0: not known. */
	double speed;
	int64_t measured, mark;
	uint64_t marked;
};

enum rdma_notify_state {
	RDMA_NOTIFY_NONE = 0, /* not asked for */
	RDMA_NOTIFY_ASKED,
	RDMA_NOTIFY_OPEN,
	RDMA_NOTIFY_REFUSED,
};

/* A slot of the owner's mailbox, and ours that its bytes are sent from. */
struct rdma_notification {
	struct rdma_endpoint
		*endpoint; /* it was sent by, and has not been confirmed; NULL: it is free */
	uint64_t sequence, at; /* at: in the line's ring */
	uint32_t length; /* of the user's bytes */
	bool in_flight; /* our NIC is not done with it */
};

/* All under rdma_peer.lock; `slots` and `mrs` are only set while it is ASKED. */
struct rdma_notify {
	enum rdma_notify_state state;
	struct wh_rdma_ring_opened theirs;
	unsigned char *slots;
	struct ibv_mr *mrs[RDMA_NICS]; /* of our NICs; NULL: it has refused */
	unsigned out; /* letters that have not been confirmed; also under peer.notify_lock */
	struct rdma_notification notifications[WH_RDMA_RING_SLOTS];
	/* While it is being posted: whose letter may follow; by which lines its bytes went. */
	struct wh_fragment *ahead;
	uint32_t early_endpoints;
};

struct rdma_peer {
	struct wh_list link; /* rdma.peers */
	struct rdma *rdma;
	struct wh_peer *peer;
	uint32_t numbers; /* loop 0 */
	_Atomic bool flushing; /* some region of the peer has to be flushed */
	uint32_t endpoint_count;
	struct rdma_endpoint *endpoints[RDMA_ENDPOINTS];

	pthread_mutex_t lock; /* all below */
	pthread_cond_t changed; /* states of lines, keys */
	char why[WH_REFUSAL]; /* a line broke, or failed the last time */
	struct wh_list urgent, bulk; /* pieces of which something has not been posted */
	struct wh_list sent; /* those that have been */
	struct wh_list again; /* rings of lines that broke; goes before both */
	/* pieces that are staged; they are in no other list, their parts are */
	struct wh_list stages;
	struct wh_list flushes; /* pieces that the owner has been asked to flush */
	uint32_t flush_number;
	/* The owner's pinned memory, through which it stages; without a length there is none. */
	struct wh_remote_region bounce;
	bool bounce_asked;
	int bounce_error;
	char bounce_why[WH_REFUSAL];
	int64_t bounce_until; /* refused: not asked for again before */
	uint32_t bounce_free; /* its slots, bits */
	struct wh_list bounce_waits; /* struct rdma_lease */
	struct rdma_lease *leases[WH_RDMA_BOUNCE_SLOTS];
	struct rdma_notify notify;
	uint64_t queued; /* bytes that have not been posted, or are to be sent again */
	uint32_t watched, unwatched; /* pieces: see polling.c */
	/* so often for completions; as the patrol has seen it last */
	uint64_t looked, looked_before;
	bool timer_polled;
	struct wh_task timer_due; /* on rdma.loop */
	struct wh_timer timer;
	/* what lines can carry has changed; for which of these it was sorted */
	uint32_t version, sorted;
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
	       endpoint->ahead < RDMA_AHEAD;
}

/* How many lines are ready / come or go, or are ready. Under rdma_peer.lock. */
uint32_t rdma_ready(const struct rdma_peer *rdma);
bool rdma_pending(const struct rdma_peer *rdma);
bool rdma_hopeless(const struct rdma_peer *rdma);
/* The peer itself is lost. */
bool rdma_lost(const struct rdma_peer *rdma);

/* Have the line, or all of them, connected. From any thread, under rdma_peer.lock. */
void rdma_endpoint_want(struct rdma_endpoint *endpoint);
void rdma_want(struct rdma_peer *rdma);
/* Something is wrong with the connection: take it down. What was on its way goes by another
 * line, or by another transport; with `again` the line may be connected again at once. Under
 * rdma_peer.lock. */
void rdma_break(struct rdma_endpoint *endpoint, bool again, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int rdma_connected(struct rdma_peer *rdma, const struct wh_rdma_connected *answer);
/* The owner asks for a queue pair back: it has it, if nothing goes by it. */
void rdma_spare(struct rdma_peer *rdma, uint32_t number);
/* A port has gone, or a device (port 0): break what uses it. Or it is back. On loop 0. */
void rdma_rail_lost(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port, const char *why);
void rdma_rail_back(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port);
/* 0 or -ENOMEM; rdma_client_close() is then to be called as well. */
int rdma_client_open(struct rdma_peer *rdma);
/* On loop 0: nothing is left that could touch the peer or its memory. */
void rdma_client_close(struct rdma_peer *rdma);
void rdma_client_lost(struct rdma_peer *rdma, int error, const char *text);
void rdma_client_again(struct rdma_peer *rdma);

/* Can it move bytes between the regions? The transport's `reach`. */
int rdma_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
		      struct wh_region_entry *entry, uint32_t op, char why[WH_REFUSAL]);

/* ---- sharing; all under rdma_peer.lock ------------------------------------------------------- */

/* The lines that can carry bytes between these regions; `near`: those of them that are to, which
 * are as near to both as any. */
uint32_t rdma_carriers(const struct rdma_peer *rdma, const struct wh_region *local,
		       const struct wh_remote_region *remote, uint32_t op, uint32_t *near);
/* The lines that can move all of a piece, the near ones if there are such. */
uint32_t rdma_rails_of(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* The application's batch that a piece, or a part of one that is staged, is of. */
static inline struct wh_batch *rdma_batch_of(const struct wh_fragment *fragment)
{
	return fragment->whole ? fragment->whole->batch : fragment->batch;
}

/* A line has carried bytes of it. Nobody else adds at the same time: that takes rdma_peer.lock. */
static inline void rdma_carried(const struct rdma_endpoint *endpoint,
				const struct wh_fragment *fragment, uint64_t bytes)
{
	struct wh_batch *batch = rdma_batch_of(fragment);
	_Atomic uint64_t *railed = &batch->railed[endpoint->index];

	atomic_store_explicit(railed, atomic_load_explicit(railed, memory_order_relaxed) + bytes,
			      memory_order_relaxed);
	atomic_store_explicit(&batch->rails_used,
			      atomic_load_explicit(&batch->rails_used, memory_order_relaxed) |
				      1u << endpoint->index,
			      memory_order_relaxed);
}

/* Take a piece in. */
void rdma_take_in(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Out of the list that it is in, as it ends. What has not been posted of it is forgotten. */
void rdma_take_out(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* The regions of transfer, or base, number `index`. */
const struct wh_region *rdma_local_of(const struct wh_fragment *fragment, uint64_t index,
				      uint64_t *remote);
/* A piece for the transport, or a part of one that it has made itself. */
void rdma_submit(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Post nothing more of it. One that has ended is put on `done`. Under rdma_peer.lock. */
void rdma_cancel(struct rdma_peer *rdma, struct wh_fragment *fragment, struct wh_list *done);
/* Forget what is to be sent again of a piece: so many bytes. */
uint64_t rdma_forget(struct rdma_peer *rdma, const struct wh_fragment *fragment);
/* The line is down at both ends: what was on its way is to be sent again. */
void rdma_recover(struct rdma_endpoint *endpoint, struct wh_list *done);
/* After a change of what lines can carry: pieces that no line can carry go to `away`. */
void rdma_sort(struct rdma_peer *rdma, struct wh_list *away);
/* The one line that a small piece may go by if nothing waits in front of it; NULL: that is not so.
 */
struct rdma_endpoint *rdma_only(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* The line that is to take some of what waits, and how many bytes about; NULL: none, for now. */
struct rdma_endpoint *rdma_choose(struct rdma_peer *rdma, uint64_t *grain);
/* What the line is to take next: a piece, where in it, and at most how many bytes. NULL:
 * nothing. *work: what it was, if it is sent again; else NULL. */
struct wh_fragment *rdma_next(struct rdma_peer *rdma, const struct rdma_endpoint *endpoint,
			      struct rdma_work **work);
/* So many bytes of what rdma_next() told have been taken. */
void rdma_taken(struct rdma_peer *rdma, struct wh_fragment *fragment, struct rdma_work *work,
		uint64_t length);
/* So many bytes have come through. */
void rdma_measure(struct rdma_endpoint *endpoint, int64_t now);

/* ---- watching -------------------------------------------------------------------------------- */

void rdma_polling_open(struct rdma_peer *rdma);
void rdma_polling_close(struct rdma_peer *rdma);
/* A piece comes, or ends. Under rdma_peer.lock. */
void rdma_watch(struct rdma_peer *rdma, struct wh_fragment *fragment);
void rdma_unwatch(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Whoever waits for the batch is about to sleep: it is to be woken. Without the lock. */
void rdma_sleep(struct rdma_peer *rdma, struct wh_batch *batch);

/* ---- flow ------------------------------------------------------------------------------------ */

/* Under rdma_peer.lock: look at what has completed, and post what can be posted. Pieces that are
 * to go elsewhere are put on `away`, those that are done on `done`. */
void rdma_progress(struct rdma_peer *rdma, struct wh_list *done, struct wh_list *away);
/* The same of a piece that comes, if it is small, one line alone reaches it and nothing waits in
 * front of it: without looking at what else there is. False: nothing has been done. */
bool rdma_alone(struct rdma_peer *rdma, struct wh_fragment *fragment, struct wh_list *done,
		struct wh_list *away);
void rdma_probe(struct rdma_endpoint *endpoint);
/* Bytes of the piece have ended. */
void rdma_ended(struct rdma_peer *rdma, struct wh_fragment *fragment, uint64_t length,
		struct wh_list *done);
/* Without the lock: say what has become of them. */
void rdma_fragments_done(struct wh_list *done);
void rdma_fragments_in_flight(struct rdma_peer *rdma, struct wh_list *away);

/* Arm the line, post a letter, which is in its ring already. */
void rdma_post_notification(struct rdma_endpoint *endpoint, struct ibv_send_wr *request, bool idle);

/* ---- letters --------------------------------------------------------------------------------- */

/* May a letter follow the piece's bytes at once? Without a lock. */
bool rdma_notify_follows(const struct rdma_peer *rdma, const struct wh_fragment *fragment);
/* It is about to be posted; under peer.notify_lock and rdma_peer.lock. mail.ahead: it is to be
 * followed. */
void rdma_notify_prepare(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Some of mail.ahead has been put on the line; under the same locks. True: that was the last of it,
 * and its letter is to follow in *request (NULL: there is no room). */
bool rdma_notify_send_early(struct rdma_endpoint *endpoint, const struct wh_fragment *fragment,
			    struct ibv_send_wr *request, struct ibv_sge *segment);
/* The transport's notify and notified. */
int rdma_notify_send(struct wh_peer *peer, void *state, struct wh_batch *batch, uint64_t sequence);
void rdma_notify_confirmed(struct wh_peer *peer, void *state, uint64_t sequence);
/* Our NIC is done with a letter, or will never touch it. Under rdma_peer.lock. */
void rdma_notify_done(struct rdma_endpoint *endpoint, struct rdma_work *work);
/* The line is down at both ends: what of it has not been confirmed has not arrived.
 * wh_notify_resume() follows. Without a lock. */
void rdma_notify_undelivered(struct rdma_endpoint *endpoint);
/* The peer is lost, and its lines are gone. Under rdma_peer.lock. */
void rdma_notify_lost(struct rdma_peer *rdma);
/* MAILED has come; on loop 0. 0 or -EPROTO. */
int rdma_ring_opened(struct rdma_peer *rdma, const struct wh_rdma_ring_opened *opened);
void rdma_notify_close(struct rdma_peer *rdma);

/* The owner's half; on loop 0. MAIL has come. 0, or a negative errno: the session is to be ended.
 */
struct rdma_receive_ring;
int rdma_receive_ring_frame(struct wh_session *session, struct rdma_receive_ring **mine);
/* A receive of connection `by` has completed well. *last: the greatest sequence that has come by
 * it. As above. */
int rdma_receive_ring_take(struct wh_session *session, const struct rdma_receive_ring *ring,
			   uint32_t by, const struct ibv_wc *wc, uint64_t *last);
/* The session's queue pairs have gone. */
void rdma_receive_ring_close(struct rdma_receive_ring *ring);

/* ---- the owner ------------------------------------------------------------------------------- */

/* A NIC's channel has an event. */
void rdma_notifications_ready(struct wh_source *source, uint32_t events);

int rdma_session_frame(struct wh_session *session, const struct wh_frame *frame,
		       const uint8_t *payload);
void rdma_session_close(struct wh_session *session);
void rdma_session_abort(struct wh_session *session, uint32_t number);

#endif
