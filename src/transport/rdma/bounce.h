/* SPDX-License-Identifier: Apache-2.0 */
/* Bounce buffers: the owner's memory, of one session, through which the owner's GPU memory and
 * files are staged: one buffer, pinned, for all GPUs, and one for each file system, so that one
 * that does not answer holds up nothing else. The initiator's half (bounce-client.c) leases slots
 * to what it stages; the owner's half (bounce-server.c) copies between slots and regions. */
#ifndef WH_TRANSPORT_RDMA_BOUNCE_H
#define WH_TRANSPORT_RDMA_BOUNCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory/region.h"
#include "transport/rdma/wire.h"
#include "transport/transport.h"
#include "util/list.h"

struct rdma;
struct rdma_peer;
struct wh_file_system;
struct wh_region;
struct wh_session;

/* ---- the initiator's half; under rdma_peer.lock, unless it says otherwise -------------------- */

/* The use of one slot. */
struct rdma_lease {
	struct wh_list link; /* rdma_remote_bounce.waits */
	struct rdma_remote_bounce *bounce; /* set by the caller; NULL: it needs none */
	unsigned slot; /* of that buffer */
	bool held; /* it has `slot` */
	bool used; /* COPY has named the slot since the lease got it */
	bool asked; /* COPY has been sent, and COPIED has not arrived */
	bool lost; /* the peer was lost: the slot is void */
	bool cancelled; /* nothing is asked any more */
	/* The lease holds a slot, or is lost. Called under the lock, so it must only post a task.
	 */
	void (*have)(struct rdma_lease *lease);
	/* COPY has been answered, with 0 or an error. Called without the lock. */
	void (*copied)(struct rdma_lease *lease, int error, const char *why);
};

/* A bounce buffer of the owner. */
struct rdma_remote_bounce {
	struct wh_remote_region region; /* its index is its number; length 0: it is not open */
	uint32_t free; /* slots, a bit each */
	uint32_t abandoned; /* slots whose COPIED nobody waits for, but which it frees */
	struct wh_list waits; /* struct rdma_lease */
	struct rdma_lease *leases[WH_RDMA_BOUNCE_SLOTS];
};

void rdma_bounces_init(struct rdma_peer *rdma);
/* Send BOUNCE_OPEN, unless the owner has answered. 0: bounce buffer 0 is open; -EAGAIN: not
 * answered yet; or another negative errno, with the reason in `why`. */
int rdma_bounce_request(struct rdma_peer *rdma, char why[WH_REFUSAL]);
/* The number of the bounce buffer that the owner stages this region through; -1: none, or not known
 * yet. The caller has entered it. */
int rdma_bounce_of(const struct wh_remote_region *remote);
/* The bounce buffer is open, and a ready endpoint has its keys. */
bool rdma_bounce_is_reachable(const struct rdma_peer *rdma, unsigned number);
/* True: it holds a slot, is cancelled or lost. False: `have` will be called. */
bool rdma_lease_acquire(struct rdma_lease *lease);
void rdma_lease_release(struct rdma_lease *lease);
/* If the slot has been used and others wait: yield it to the next waiter and queue again; `have` is
 * called when the lease holds a slot again. False: it keeps its slot. */
bool rdma_lease_yield(struct rdma_lease *lease);
/* Cancelled: ask for nothing more. True: the lease has ended, and no callback will be called: it
 * waited for a slot; or, if `asked`, for COPIED from a file, which may take for ever, so that the
 * slot stays in use without it until then. */
bool rdma_lease_abandon(struct rdma_lease *lease, bool asked);
/* Send COPY; `copied` follows. Without the lock. */
void rdma_lease_copy(struct rdma_peer *rdma, struct rdma_lease *lease, const uint8_t *bytes,
		     size_t length);
/* BOUNCE_OPENED, KEYED for a file, or COPIED has arrived; on loop 0, without the lock. 0 or
 * -EPROTO. */
void rdma_bounce_opened(struct rdma_peer *rdma, const struct wh_rdma_bounce_opened *opened);
int rdma_bounce_opened_for_files(struct rdma_peer *rdma, unsigned number, uint64_t address,
				 uint64_t length);
int rdma_lease_copied(struct rdma_peer *rdma, const struct wh_rdma_flushed *copied);
/* The peer is lost, and nothing is in flight. On loop 0, without the lock. */
void rdma_bounce_peer_lost(struct rdma_peer *rdma);
/* Enter the peer's region `id`; ids below WH_RDMA_BOUNCES are its bounce buffers. NULL: the region
 * is gone. Leave it by its entry. From any thread. */
struct wh_remote_region *rdma_remote_enter(struct rdma_peer *rdma, uint64_t id);

/* ---- the owner's half; on loop 0 ------------------------------------------------------------- */

struct rdma_bounce;

/* A session has WH_RDMA_BOUNCES pointers to them, NULL: not opened. */

/* BOUNCE_OPEN, or COPY, has arrived. 0, or a negative errno that ends the session. */
int rdma_bounce_open_frame(struct wh_session *session, struct rdma_bounce **bounce);
int rdma_bounce_copy_frame(struct wh_session *session, struct rdma_bounce *const *bounces,
			   const uint8_t *payload, size_t length);
/* The buffer for the files of this file system, which is opened if need be. 0, or -EBUSY or -ENOMEM
 * with the reason. */
int rdma_bounce_for_files(struct wh_session *session, struct rdma_bounce **bounces,
			  struct wh_file_system *system, struct rdma_bounce **out,
			  char why[WH_REFUSAL]);
/* BOUNCE_OPENED has been sent: the peer may use it. NULL is not open. */
bool rdma_bounce_is_open(const struct rdma_bounce *bounce);
/* Its memory, as a region for NICs, and its number; valid between get and put. */
struct wh_region *rdma_bounce_region(struct rdma_bounce *bounce);
unsigned rdma_bounce_number(const struct rdma_bounce *bounce);
void rdma_bounce_get(struct rdma_bounce *bounce);
void rdma_bounce_put(struct rdma_bounce *bounce);
/* The session ends; its queue pairs are destroyed already. */
void rdma_bounce_close(struct rdma_bounce *bounce);
/* Wait until those of ended sessions are cleared, and free all but those that a file system holds:
 * these are freed, on loop 0, when it answers. Not on loop 0. */
void rdma_bounces_close(struct rdma *rdma);

#endif
