/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/* The transport rdma: one-sided writes and reads by NICs, over InfiniBand and RoCE. This header has
 * the state of an engine and of a peer; each of its parts has a header of its own.
 *
 * rdma.c         the transport's table, incoming fragments, frames of peers
 * reach.c        is_reachable: can two regions be joined? Begins to connect, and asks for keys
 * rail.h         NICs and their ports: rail.c, queue-pair.c, affinity.c (distances to memory)
 * memory.h       memory.c (MRs of local regions, keys of remote ones), gpu.c (GPU memory)
 * endpoint.h     the initiator's queue pairs: client.c connects, breaks and reconnects them
 * flow.h         striping.c (which endpoint carries what), flow.c (post, poll), polling.c
 * stage.h        stage.c (GPU memory and files through slots of memory), flush.c, describe.c
 * bounce.h       the owner's memory for staging: bounce-client.c, bounce-server.c
 * notify.h       notifications by NIC: notify.c (initiator), receive-ring.c (owner)
 * server.h       the owner's side: server.c (queue pairs), worker.c (registering, flushing)
 * wire.h         frames on the control connection; wire.c
 *
 * A peer has one reliable connection, an endpoint, for each of our rails; the owner chooses its
 * rail at the other end. Endpoints connect when they are first needed. A work request moves bytes
 * that are contiguous on the owner's side. Work requests complete in order, so only some ask for a
 * completion, which stands for all before it.
 *
 * Before bytes that were in flight on an endpoint go by another endpoint or transport, the owner
 * has destroyed its queue pair and confirmed that: a delayed packet cannot arrive after them.
 *
 * Locks, outermost first: wh_notify_lock(), rdma_peer.lock, rdma.lock. rdma.register_lock and
 * rdma.jobs_lock are taken without any of them.
 */
/* clang-format on */
#ifndef WH_TRANSPORT_RDMA_RDMA_H
#define WH_TRANSPORT_RDMA_RDMA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "net/control.h"
#include "platform/verbs.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/rdma/bounce.h"
#include "transport/rdma/endpoint.h"
#include "transport/rdma/memory.h"
#include "transport/rdma/notify.h"
#include "transport/rdma/rail.h"
#include "transport/rdma/stage.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/list.h"
#include "util/log.h"
#include "util/loop.h"

#define RDMA_SPIN (50 * 1000) /* ns that a waiter polls before it sleeps */
#define RDMA_ASKED 256 /* questions for keys at once */

/* Of an engine. */
struct rdma {
	struct wh_engine *engine;
	struct wh_verbs *verbs;
	struct rdma_nic *nics[RDMA_NICS]; /* this and the next three: constant once opened */
	unsigned nic_count;
	struct rdma_rail rails[RDMA_RAILS];
	unsigned rail_count;
	struct wh_loop loop; /* polls queues that nobody waits on; destroys queue pairs */
	bool looping; /* `loop` has been started */
	uint8_t ack_timeout; /* exponent of the NICs' wait for an acknowledgement */
	_Atomic unsigned connections; /* endpoints that are open, to all peers */
	struct wh_list responders; /* on loop 0; the next to be asked back is first */
	unsigned responder_count; /* on loop 0 */
	unsigned receive_rings; /* of sessions; on loop 0 */
	struct wh_topology *topology; /* NULL: all NICs count as equally near */
	pthread_mutex_t lock; /* guards the changing part of `rails`, and `peers` */
	struct wh_list peers; /* struct rdma_peer */
	pthread_mutex_t register_lock;
	pthread_cond_t registered;
	struct wh_list claims; /* of threads that pin memory: memory.c */
	uint8_t methods[4]; /* enum wh_rdma_method for GPU memory, best first */
	unsigned method_count;
	/* Slots of host memory that staging has used, as regions. Under register_lock. */
	struct wh_region **slots;
	unsigned slot_count;
	_Atomic bool flushes; /* some local memory that NICs write needs a flush */

	/* The owner's bounce buffers. */
	struct wh_list bounces_free; /* for GPU memory; on loop 0, as the next three */
	struct wh_list file_bounces;
	unsigned gpu_bounce_count, file_bounce_count;
	_Atomic unsigned bounces_used; /* that NICs may know */

	/* The worker. */
	pthread_mutex_t jobs_lock; /* all below */
	pthread_cond_t jobs_come;
	struct wh_list jobs; /* struct rdma_job */
	unsigned job_count;
	bool working, stop; /* the thread runs; it has to end */
	pthread_t worker;
};

/* Of a peer. */
struct rdma_peer {
	struct wh_list link; /* rdma.peers */
	struct rdma *rdma;
	struct wh_peer *peer;
	uint32_t numbers; /* of endpoints, given so far; on loop 0 */
	_Atomic bool flushing; /* some region of the peer needs a flush */
	uint32_t endpoint_count;
	struct rdma_endpoint *endpoints[RDMA_ENDPOINTS];

	pthread_mutex_t lock; /* all below */
	int64_t ready_at; /* when an endpoint became ready while no other was (ns) */
	/* Keys that the peer was asked for, and has not answered for. */
	struct rdma_asked {
		uint64_t id;
		uint32_t nic;
		int64_t until; /* then it is asked again (ns); 0: a free place */
	} asked[RDMA_ASKED];
	char why[WH_REFUSAL]; /* why an endpoint broke or failed last */
	struct wh_list urgent, bulk; /* fragments that are not all posted */
	struct wh_list sent; /* fragments that are */
	struct wh_list resend; /* work rings of broken endpoints; sent before `urgent` */
	/* Fragments that are staged; their parts are in the lists above. */
	struct wh_list stages;
	struct wh_list flushes; /* fragments that wait for FLUSHED */
	uint32_t flush_number; /* of the next FLUSH */
	struct rdma_remote_bounce bounces[WH_RDMA_BOUNCES]; /* the owner's */
	bool bounce_asked; /* for number 0 */
	int bounce_error;
	char bounce_why[WH_REFUSAL];
	int64_t bounce_until; /* refused: do not ask again before (ns) */
	struct rdma_notify notify;
	uint64_t queued; /* bytes that are not posted, or are to be sent again */
	uint32_t polled, unpolled; /* fragments (and notifications): see polling.c */
	uint64_t polls, polls_before; /* by waiters; as the polling timer saw it last */
	bool timer_active;
	struct wh_task timer_task; /* starts the timer; on rdma.loop */
	struct wh_timer timer; /* polling.c */
	uint32_t version; /* changes with what endpoints can move */
	uint32_t sorted_version; /* `version` at the last rdma_striping_sort() */
};

/* Submit a fragment, or a part that staging has made. Without the lock. */
void rdma_submit(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Post nothing more of the fragment; if it has ended by that, it goes to `done`. Under the lock. */
void rdma_cancel(struct rdma_peer *rdma, struct wh_fragment *fragment, struct wh_list *done);

/* The transport's is_reachable; waits for nobody. */
int rdma_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
		      struct wh_region_entry *entry, uint32_t op, char why[WH_REFUSAL]);
/* The peer has answered for these keys. Under the lock. */
void rdma_reach_answered(struct rdma_peer *rdma, uint64_t id, uint32_t nic);

#endif
