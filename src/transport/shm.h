/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport shm, between processes of one host. shm.c: the initiator's connection and its
 * mappings. shm-vm.c: memory that cannot be mapped. shm-server.c: the side whose memory it is.
 *
 * Over the owner's unix socket: the handshake, which proves the key of the control connection's session;
 * ALIVE, with the descriptor of the alive page; then MAP for each region, answered by MAPPED with the
 * descriptor of its memory, or with the reason why there is none.
 */
#ifndef WH_TRANSPORT_SHM_H
#define WH_TRANSPORT_SHM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport/copy.h"
#include "transport/transport.h"

/* ---- both sides ---------------------------------------------------------------------------- */

/* Payload of MAPPED: u64 id, i32 errno (positive), u64 offset, u64 length, then the reason. */
struct wh_mapped {
	uint64_t id;
	int error; /* negative; 0: the descriptor has come along */
	uint64_t offset, length; /* of the region in the descriptor's file */
	char text[WH_REFUSAL];
};
#define WH_MAPPED_HEAD 28
#define WH_MAPPED_MAX (WH_MAPPED_HEAD + WH_REFUSAL)
/* Returns the bytes used, at most WH_MAPPED_MAX. */
size_t wh_mapped_encode(uint8_t *out, const struct wh_mapped *mapped);
/* 0 or -EPROTO. */
int wh_mapped_decode(const uint8_t *in, size_t length, struct wh_mapped *mapped);

/* Send all of it, with a descriptor unless fd is -1. 0 or a negative errno. */
int wh_shm_send(int socket, const void *bytes, size_t length, int fd, int flags);

/* Engine-wide. */
struct wh_shm {
	struct wh_engine *engine;
	struct wh_copier copier;
	struct wh_alive *alive; /* shm-server.c */
};

/* ---- the owner ----------------------------------------------------------------------------- */

int wh_shm_alive_open(struct wh_shm *shm);
void wh_shm_alive_close(struct wh_shm *shm);
int wh_shm_session_accept(struct wh_session *session, int fd, struct wh_tls *tls,
			  const struct wh_hello *hello);
void wh_shm_session_close(struct wh_session *session);

/* ---- the initiator -------------------------------------------------------------------------- */

enum wh_shm_vm {
	WH_VM_UNKNOWN = 0,
	WH_VM_WORKS,
	WH_VM_REFUSED,
};

struct wh_shm_peer {
	struct wh_copy copy; /* first: it is the transport's state for the peer */
	struct wh_shm *shm;
	struct wh_peer *peer;

	/* The connection. Held while waiting for the owner to answer. */
	pthread_mutex_t lock;
	int fd; /* -1: none */
	unsigned generation; /* of `fd` */
	int64_t retry_at; /* not before */
	char why[WH_REFUSAL]; /* what went wrong the last time */

	_Atomic unsigned current; /* the control connection's generation */

	/* The owner; set before the first region is reached, and good until the peer is closed. */
	const _Atomic uint32_t *alive;
	uint32_t owner; /* what `alive` holds while it lives */
	int pidfd;	/* -1: none, for the reason in vm_refused */
	pid_t pid;

	_Atomic uint32_t vm; /* enum wh_shm_vm */
	pthread_mutex_t vm_lock; /* vm_refused */
	char vm_refused[WH_REFUSAL];
};

/* Map a region of host memory, if that has not been done. 0 and region->map is set; or a negative
 * errno with the reason. */
int wh_shm_map(struct wh_shm_peer *shm, struct wh_remote_region *region, char why[WH_REFUSAL]);
/* Has the owner been asked for this region since the control connection was made? */
bool wh_shm_asked(const struct wh_shm_peer *shm, const struct wh_remote_region *region);
/* Ask the owner for a region of a GPU's memory, `objects`: as objects for a CPU window. Calls `each` with the segments in their order; it
 * may keep *fd by setting it to -1. 0, or what `each` said, or a negative errno; the reason is then in
 * `why`. */
struct wh_exported;
int wh_shm_exports(struct wh_shm_peer *shm, struct wh_remote_region *region, bool objects,
		   int (*each)(void *arg, const struct wh_exported *exported, int *fd,
			       char why[WH_REFUSAL]),
		   void *arg, char why[WH_REFUSAL]);
/* Is the owner still there? */
bool wh_shm_owner_lives(const struct wh_shm_peer *shm);

/* Look at what process_vm needs: a pidfd of the process at the other end. Under the lock. */
void wh_shm_vm_meet(struct wh_shm_peer *shm, uid_t uid);
/* May its memory be read and written by process_vm? 0, or a negative errno with the reason. */
int wh_shm_vm_probe(struct wh_shm_peer *shm, char why[WH_REFUSAL]);
/* wh_copy_ops.move_far and .refusal */
int wh_shm_vm_move(struct wh_copy *copy, struct wh_far *far);
void wh_shm_vm_refusal(struct wh_copy *copy, char why[WH_REFUSAL]);

#endif
