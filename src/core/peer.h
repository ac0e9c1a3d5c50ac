/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers: the connecting side. A peer is another engine, or this one; loop 0 connects to it, stays
 * connected, and notices when another engine has taken its place.
 *
 * Locks are named at what they guard; engine.h has their order.
 */
#ifndef WH_CORE_PEER_H
#define WH_CORE_PEER_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/counters.h"
#include "core/queue.h"
#include "core/traffic.h"
#include "memory/region-table.h"
#include "net/control.h"
#include "net/handshake.h"
#include "rendezvous/registry.h"
#include "transport/core.h"
#include "transport/transport.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/wire.h"

struct wh_engine;

#define WH_PEER_ADDRESSES 8

/* What moving bytes costs between a region of the peer's and a kind of local memory, as measured by
 * probe.c for transports that have no figures of their own. */
struct wh_probed {
	uint64_t epoch, remote; /* the peer's, and the region that was read; 0: not measured */
	uint8_t kind; /* of local memory */
	double batch, transfer, byte; /* ns for a batch, each transfer but the first, each byte */
	uint64_t set; /* bytes: the working set that was read */
	int64_t at; /* when, wh_now() */
};

struct wh_peer {
	struct wh_list link; /* engine.peers */
	struct wh_engine *engine;
	bool self; /* it is this engine */
	char *url; /* what was opened */
	struct wh_control control;

	pthread_mutex_t lock; /* below, to `batches` */
	pthread_cond_t changed; /* state, regions */
	int connect_error; /* of the last try to connect, with its text */
	char text[WH_TEXT_MAX];
	struct wh_hello welcome; /* the peer's, authenticated */
	uint8_t key[WH_KEY_SIZE]; /* session key, for the session's data connections */
	bool listed; /* the regions known before are known again */

	_Atomic uint32_t state; /* enum wh_peer_state */
	_Atomic uint32_t plan_version; /* incremented when plans may have become wrong */
	/* Twice the times that the connection broke; odd while the transports learn of it, when
	 * what is submitted may still be sent by the broken one. */
	_Atomic uint32_t losses;
	_Atomic uint32_t unseen; /* batches whose end the program has not seen: wh_batch_unseen() */
	_Atomic int64_t patience; /* ns that who waits for one of them polls: wait.h */
	wh_count batches; /* WH_BATCHES() gives how many exist */
	struct wh_region_table regions; /* of struct wh_remote_region */
	_Atomic bool usable[WH_TRANSPORT_COUNT];
	_Atomic bool opened[WH_TRANSPORT_COUNT]; /* set on loop 0, after `transport` */
	void *transport[WH_TRANSPORT_COUNT];
	char refused[WH_TRANSPORT_COUNT][WH_REFUSAL]; /* why not usable; under lock */
	bool not_for[WH_TRANSPORT_COUNT]; /* does not apply to such a peer; under lock */

	/* Opening, in peer-open.c. Addresses are written before loop 0 connects. */
	int64_t connect_deadline;
	struct wh_queue *queue; /* receives the end of opening; NULL: the caller waits */
	struct wh_queue_entry queued;
	bool reported; /* to `queue`; on loop 0 */
	struct wh_timer opening; /* fires at connect_deadline */
	pthread_t resolver; /* the thread that looks up the addresses, if `resolving` */
	bool resolving;
	struct wh_task resolved; /* posted when that has ended, with an error or 0 */
	int resolve_error; /* with peer.text */

	/* Connecting, on loop 0. */
	struct sockaddr_storage address[WH_PEER_ADDRESSES];
	unsigned address_count, address_next;
	int64_t backoff;
	struct wh_timer retry;
	struct wh_timer heartbeat;
	struct wh_source connecting;
	char address_text[64]; /* the address tried last; under lock */
	/* For a peer opened by its name in the registry ("": by its address): while it is lost, the
	 * registry is asked whether another engine has the name now. */
	struct wh_registry_ask watch;
	struct wh_task moved; /* posted by the registry's thread when that is so */
	uint64_t wanted; /* the epoch that the registry has; 0: any */

	/* Notifications of batches, by batch.notify_link. */
	pthread_mutex_t notify_lock; /* below, to notify_sequence */
	struct wh_list notify_waiting; /* to be sent */
	struct wh_list notify_sent; /* not confirmed yet */
	struct wh_list notify_early; /* the same, of batches whose fragments have not ended */
	/* Sent and not confirmed, cancelled batches' included. */
	struct wh_notify_slot {
		uint64_t sequence; /* 0: free */
		uint64_t bytes;
	} notify_window[WH_NOTIFY_UNCONFIRMED];
	unsigned notify_count; /* of them */
	uint64_t notify_bytes; /* of them */
	uint64_t notify_sequence; /* of the last one sent */

	struct wh_list questions; /* struct wh_asked; under lock, as the next two */
	uint64_t question_token; /* of the last one sent */
	uint64_t registered; /* REGISTERED frames received */
	struct wh_list aborts; /* struct wh_abort; under lock */
	/* Regions that it has taken back and that are still copied: removal.c; on loop 0. */
	struct wh_list removals;
	unsigned removal_count;
	struct wh_timer removing;
	struct wh_list blocks; /* struct wh_blocks prepared for it; under lock */
	struct wh_greeting hello; /* as sent on the control connection; on loop 0 */
	bool proved; /* the peer is authenticated on the present connection; on loop 0 */
	/* Counts connections, to tell regions known before from those known again; on loop 0. */
	uint32_t list_round;
	/* Where asking for the regions known before goes on in `regions`, if it does; on loop 0. */
	uint64_t relearned;
	bool relearns;
	int64_t heard; /* when the last frame came; on loop 0 */
	/* The oldest PING without an answer, by its time, or 0; `question_token` then. On loop 0.
	 */
	int64_t ping;
	uint64_t ping_behind;

	pthread_mutex_t probe_lock; /* taken with no other lock held */
	pthread_mutex_t probed_lock; /* `probed`, `traffic`; taken last */
	struct wh_probed probed[WH_TRANSPORT_COUNT];
	struct wh_traffic_route *traffic; /* WH_TRAFFIC_ROUTES; NULL: nothing was learned yet */
	wh_count large; /* large batches: those that run, those that ever began; traffic.c */

	struct wh_statistics statistics;
	wh_count lost; /* how often the connection broke */
	pthread_mutex_t count_lock;
	/* Under count_lock: */
	struct wh_list pending; /* batches with submissions not yet in `statistics` */
	uint32_t listed_in_all; /* batches ever listed; spreads which submissions are timed */
};

/* Between peer.c and peer-open.c. */
int wh_peer_new(struct wh_engine *engine, const char *url, struct wh_peer **out);
/* End all of the peer that runs, and free it. Not on loop 0. */
void wh_peer_free(struct wh_peer *peer);
/* The struct wh_peer is this engine itself: nothing to connect. On loop 0. */
void wh_peer_be_self(void *peer);
/* Opening has ended: the peer is connected (0), or is unreachable. On loop 0. */
void wh_peer_opened(struct wh_peer *peer, int status);

/* Between peer.c, peer-connect.c and peer-frame.c; on loop 0. */
/* The peer is being closed: detach all blocks prepared for it. They can still be freed later. */
void wh_blocks_leave(struct wh_peer *peer);
/* Drop a reference: the creator's, or that of a batch. The last one frees the blocks. */
void wh_blocks_release(struct wh_blocks *blocks);
/* Set the state (0: keep it), the error of the last try and its text, and wake waiting threads. */
void wh_peer_set_state(struct wh_peer *peer, uint32_t state, int error, const char *text);
/* Is the peer another engine of this machine, whatever the transports say? */
bool wh_peer_is_near(const struct wh_peer *peer);
/* 0, or -ENOMEM: some transport needs more memory than there is. */
int wh_peer_open_transports(struct wh_peer *peer);
/* The peer is lost, or as good as lost: end all that is under way to it. */
void wh_peer_lose_transports(struct wh_peer *peer, int error, const char *text);
void wh_peer_connect_init(struct wh_peer *peer);
/* Start connecting to a struct wh_peer; the state and connect_error tell how that ends. */
void wh_peer_connect(void *peer);
/* The regions known before are known again: the peer is connected. */
void wh_peer_connected(struct wh_peer *peer);
/* Take a connected peer that does not answer a request for lost, without waiting for its silence:
 * all that is under way to it ends. Blocks until loop 0 has done it; not from a callback. */
void wh_peer_cut(struct wh_peer *peer);
/* Give up the handshake with an error, without trying other addresses. */
void wh_peer_give_up(struct wh_peer *peer, int error, const char *why);
/* Close the connection, and do not connect again. */
void wh_peer_disconnect(struct wh_peer *peer);
/* Handle a frame; as wh_control.frame. */
int wh_peer_frame(struct wh_control *control, const struct wh_frame *frame, const uint8_t *payload);
/* End all aborts with `error`. */
void wh_peer_aborts_fail(struct wh_peer *peer, int error);

#endif
