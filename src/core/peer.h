/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: the side that opens. Connecting to another engine, staying connected, and noticing that
 * another engine has taken its place. */
#ifndef WH_CORE_PEER_H
#define WH_CORE_PEER_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/counters.h"
#include "memory/region-table.h"
#include "net/control.h"
#include "net/handshake.h"
#include "rendezvous/registry.h"
#include "transport/transport.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/wire.h"

struct wh_engine;

#define WH_PEER_ADDRESSES 8

/* What moving bytes takes between a region of the peer's and memory of a kind of ours, by a
 * transport whose own figures are nowhere else: probe.c. */
struct wh_probed {
	uint64_t epoch, remote; /* of whom, and from which region; 0: it has not been measured */
	uint8_t kind;
	/* ns: of a batch, of each transfer but the first, of a byte */
	double price, transfer, byte;
	uint64_t set; /* bytes that were walked through to learn that */
};

struct wh_peer {
	struct wh_list link; /* engine.peers */
	struct wh_engine *engine;
	bool self; /* this engine */
	struct wh_control control;

	pthread_mutex_t lock; /* below, to `batches` */
	pthread_cond_t changed; /* state, regions */
	int connect_error; /* of the last try, with its text */
	char text[WH_TEXT_MAX];
	struct wh_hello welcome; /* what the peer said, and has proved */
	uint8_t key[WH_KEY_SIZE]; /* of the session, for the connections that belong to it */
	bool listed; /* the first list of regions is complete */

	_Atomic uint32_t state; /* enum wh_peer_state; 0: never reached yet */
	_Atomic uint32_t plan_version; /* moves when a plan may have become wrong */
	wh_count batches; /* WH_BATCHES() of them exist */
	struct wh_region_table regions; /* of struct wh_remote_region */
	_Atomic bool usable[WH_TRANSPORT_COUNT];
	bool opened[WH_TRANSPORT_COUNT];
	void *transport[WH_TRANSPORT_COUNT];
	char refused[WH_TRANSPORT_COUNT][WH_REFUSAL]; /* why not usable; under lock */
	bool not_for[WH_TRANSPORT_COUNT]; /* that is what the peer is; under lock */

	/* Connecting; on loop 0. */
	struct sockaddr_storage address[WH_PEER_ADDRESSES];
	unsigned address_count, address_next;
	int64_t connect_deadline;
	int64_t backoff;
	struct wh_timer retry;
	struct wh_timer heartbeat;
	struct wh_source connecting;
	char address_text[64]; /* of the one that answered; under lock */
	/* Opened by a name of the registry: while it is lost, the registry is asked whether another
	 * engine has the name now. */
	struct wh_registry_ask watch; /* its name is "" for a peer opened by its address */
	struct wh_task moved;
	uint64_t wanted; /* the epoch that the registry told; 0: any */

	/* Notifications sent and not yet confirmed. */
	pthread_mutex_t notify_lock;
	/* Of batches; `ahead`: sent behind bytes that are not known to have arrived. */
	struct wh_list notify_waiting, notify_sent, notify_early;
	unsigned notify_count;
	uint64_t notify_sequence;

	struct wh_list aborts; /* struct wh_abort; under lock */
	struct wh_list blocks; /* prepared for it; under lock */
	struct wh_greeting hello; /* as it was said on the control connection; on loop 0 */
	bool proved; /* the owner has, on the control connection as it is now; on loop 0 */
	uint32_t list_round; /* of the list of regions being received; on loop 0 */
	int64_t heard; /* when something last came; on loop 0 */

	pthread_mutex_t probe_lock; /* no other is held when it is taken */
	struct wh_probed probed[WH_TRANSPORT_COUNT];

	struct wh_statistics statistics;
	wh_count lost; /* how often */
	pthread_mutex_t count_lock;
	/* Under count_lock: */
	struct wh_list pending; /* batches whose rounds are to be added to the tally */
	uint32_t listed_in_all; /* that have been in it: which round of the next one is timed */
};

/* -ECONNRESET or -ESTALE with its text unless the peer is connected. */
int wh_peer_check(struct wh_peer *peer);
/* Transport `id` does not work for this peer any more: plan around it, and say why. */
void wh_peer_refuse(struct wh_peer *peer, enum wh_transport_id id, const char *why);
/* Ask the peer to drop data connection `number`; `done` is called with 0 once it has (on loop
 * 0), or with an error if the peer is lost. */
struct wh_abort {
	struct wh_list link;
	uint32_t number;
	void (*done)(struct wh_abort *abort, int error);
};
void wh_peer_abort(struct wh_peer *peer, struct wh_abort *abort);

#endif
