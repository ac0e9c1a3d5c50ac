/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport shm, between processes of one host. shm.c: the initiator's connection; map.c:
 * its mappings. vm.c: memory that cannot be mapped. server.c: the side whose memory it is;
 * grant.c: what of it may be mapped.
 *
 * Over the owner's unix socket: the handshake, which proves the key of the control connection's
 * session; ALIVE, with the descriptor of the alive page; then MAP for each region, answered by
 * MAPPED with the descriptor of its memory, or with the reason why there is none.
 */
#ifndef WH_TRANSPORT_SHM_SHM_H
#define WH_TRANSPORT_SHM_SHM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport/copier.h"
#include "transport/transport.h"

/* ---- both sides ---------------------------------------------------------------------------- */

/* Payload of MAPPED: u64 id, u32 errno (positive), u64 number of the allocation, u32 rights, u64
 * offset, u64 length, u64 length of the allocation, then the reason. */
struct wh_mapped {
	uint64_t id;
	/* negative; -EAGAIN: another region may change it; 0: the descriptor has come along */
	int error;
	uint64_t memory; /* the allocation that it lies in; 0: none that could be mapped */
	uint32_t rights; /* enum wh_access: of the mapping */
	uint64_t offset, length; /* of the region in the descriptor's file */
	uint64_t whole; /* bytes of the allocation */
	char text[WH_REFUSAL]; /* why it cannot be mapped, or not for writing */
};
#define WH_MAPPED_HEAD 48
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
	struct wh_alive *alive; /* server.c */
};

/* ---- the owner ----------------------------------------------------------------------------- */

int wh_shm_alive_open(struct wh_shm *shm);
void wh_shm_alive_close(struct wh_shm *shm);
int wh_shm_session_accept(struct wh_session *session, int fd, struct wh_tls *tls,
			  const struct wh_hello *hello);
void wh_shm_session_close(struct wh_session *session);

/* What a session may map of an allocation in one of its states. */
struct wh_shm_verdict {
	uint64_t version; /* wh_allocation.version; 0: of none */
	uint8_t rights; /* enum wh_access; 0: nothing */
	bool others; /* ... for others have more of it */
	uint64_t gap; /* a byte that it may not read, or not write; UINT64_MAX: not known */
};
#define WH_SHM_VERDICTS 8u
struct wh_shm_verdicts {
	struct wh_shm_verdict kept[WH_SHM_VERDICTS];
	unsigned next;
};

/* A descriptor for the allocation that the region lies in, which the caller closes; -1: refused,
 * with the reason in the answer. `access`: of the session to the region. Under engine.lock. */
int wh_shm_grant(const struct wh_session *session, struct wh_shm_verdicts *kept,
		 const struct wh_region *region, uint8_t access, struct wh_mapped *answer);

/* ---- the initiator -------------------------------------------------------------------------- */

enum wh_shm_vm {
	WH_VM_UNKNOWN = 0,
	WH_VM_WORKS,
	WH_VM_REFUSED,
};

struct wh_shm_peer {
	struct wh_copier_peer copy; /* first: it is the transport's state for the peer */
	struct wh_shm *shm;
	struct wh_peer *peer;

	/* The connection. Held while waiting for the owner to answer. */
	pthread_mutex_t lock;
	int fd; /* -1: none */
	unsigned generation; /* of `fd` */
	int64_t retry_at; /* not before */
	char why[WH_REFUSAL]; /* what went wrong the last time */

	_Atomic unsigned current; /* the control connection's generation */

	/* the mappings, and the regions' `map` fields; inside `lock` */
	pthread_mutex_t maps_lock;
	struct wh_list memories; /* struct wh_shm_memory */
	uint64_t removals; /* regions that could be mapped and have gone */
	_Atomic uint32_t arrivals; /* ... and have come */
	_Atomic bool partly; /* one is not mapped that might be when another one comes */
	struct {
		uint64_t number;
		uint32_t arrivals;
		/* the last allocation that was not to be mapped, and when; for its other regions */
	} refused;

	/* The owner; set before the first region is reached, and good until the peer is closed. */
	const _Atomic uint32_t *alive;
	uint32_t owner; /* what `alive` holds while it lives */
	int pidfd; /* -1: none, for the reason in vm_refused */
	pid_t pid;

	_Atomic uint32_t vm; /* enum wh_shm_vm */
	pthread_mutex_t vm_lock; /* vm_refused */
	char vm_refused[WH_REFUSAL];
};

/* The next frame, its payload to `out`. 0, -ETIMEDOUT, -ECONNRESET, -EPROTO, ... */
int wh_shm_receive_frame(int socket, struct wh_frame *frame, void *out, size_t room, int *fd);
/* Can it be mapped without fear? A file that shrinks would be a SIGBUS for us. 0 or -EPROTO. */
int wh_shm_check_file(int fd, uint64_t least);

/* These under shm.lock. Have a connection, a new one if the control connection has broken since the
 * last;
 * 0, or a negative errno with the reason in shm.why. */
int wh_shm_connect(struct wh_shm_peer *shm);
void wh_shm_hang_up(struct wh_shm_peer *shm);
/* Keep what went wrong in shm.why; `error`. The second hangs up, and leaves the owner alone for a
 * while. */
int wh_shm_trouble(struct wh_shm_peer *shm, int error, const char *what);
int wh_shm_broken(struct wh_shm_peer *shm, int error, const char *what);

/* ---- the initiator's mappings: map.c ------------------------------------------------------- */

/* An allocation of the peer's, of which regions have been asked for: one mapping for all of them.
 * Under shm.maps_lock; taken out, and unmapped, on the first loop alone. */
struct wh_shm_memory {
	struct wh_list link; /* shm.memories */
	struct wh_list regions; /* wh_remote_region.map_link */
	uint64_t number; /* as the owner counts */
	uint64_t start, length; /* of the allocation, where the owner has it */
	char *base; /* of the mapping; NULL: none */
	size_t mapped; /* its length */
	bool writable;
	bool ending; /* no region finds it any more; it is unmapped when nobody is in it */
};

/* wh_copier_ops.map */
char *wh_shm_mapped_at(const struct wh_region_entry *entry, uint32_t op);
/* Transport functions. */
int wh_shm_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
			struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL]);
void wh_shm_region_came(struct wh_peer *peer, void *state, struct wh_remote_region *region);
int wh_shm_region_going(struct wh_peer *peer, void *state, struct wh_remote_region *region,
			int64_t deadline);
void wh_shm_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region);
/* Why the region is not mapped for that op; "": it is, or nobody has asked. */
void wh_shm_refused(struct wh_shm_peer *shm, const struct wh_remote_region *region, uint32_t op,
		    char why[WH_REFUSAL]);

/* A mapping of a region of host memory that is the caller's own: of its bytes alone, for as long as
 * the region is there. */
struct wh_shm_own {
	void *base;
	size_t length;
};
/* With `own` NULL: only ask the owner, who has not been asked on this connection yet. 0, or a
 * negative errno with the reason. */
int wh_shm_map(struct wh_shm_peer *shm, struct wh_remote_region *region, struct wh_shm_own *own,
	       char why[WH_REFUSAL]);
/* Has the owner been asked for this region since the control connection was made? */
bool wh_shm_asked(const struct wh_shm_peer *shm, const struct wh_remote_region *region);
/* Ask the owner for a region of a GPU's memory, `objects`: as objects for a CPU window. Calls
 * `each` with the segments in their order; it may keep *fd by setting it to -1. 0, or what `each`
 * said, or a negative errno; the reason is then in `why`. */
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
/* wh_copier_ops.move_unmapped and .refusal */
int wh_shm_vm_move(struct wh_copier_peer *copy, struct wh_unmapped *unmapped);
void wh_shm_vm_refusal(struct wh_copier_peer *copy, char why[WH_REFUSAL]);

#endif
