/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/shm.h: the transport shm, between processes of one host
 *
 * The initiator: ask.c connects and asks; shm.c fills the transport's table; map.c maps the owner's
 * memory; vm.c copies memory that cannot be mapped. The owner: server.c answers; grant.c decides
 * what a peer may map.
 *
 * They speak over the owner's unix socket, which is an abstract one within a network namespace and
 * else one by path (net/meet.h): the handshake, which proves the key of the control
 * connection's session; ALIVE, with the descriptor of the alive page; then a MAP for each region.
 * MAPPED answers it with the descriptor of the region's memory, or the reason why there is none.
 * lend.c has LEND, which goes the other way.
 */
#ifndef WH_TRANSPORT_SHM_SHM_H
#define WH_TRANSPORT_SHM_SHM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "net/handshake.h"
#include "net/meet.h"
#include "transport/copier.h"
#include "transport/lent.h"
#include "transport/shm/wire.h"
#include "transport/transport.h"

/* ---- both sides ---------------------------------------------------------------------------- */

/* Send all bytes by one sendmsg(), with a descriptor unless fd is -1. `flags` are MSG_*.
 * 0, -ETIMEDOUT, -EPIPE or another negative errno. */
int wh_shm_send(int socket, const void *bytes, size_t length, int fd, int flags);
/* recv(), that also puts the descriptor which comes along into *fd, for the caller. If there is
 * more than one, or *fd is not -1, it closes them and fails with EPROTO; *fd stays the caller's. */
ssize_t wh_shm_receive(int socket, void *out, size_t length, int *fd, int flags);

/* In the alive page of an engine without threads. No thread id has this bit, and neither have
 * FUTEX_WAITERS and FUTEX_OWNER_DIED. */
#define WH_ALIVE_NO_THREAD 0x20000000u

/* The transport's state in an engine. */
struct wh_shm {
	struct wh_engine *engine;
	struct wh_copier copier;
	struct wh_copier files; /* copies between files of ours and mapped memory */
	struct wh_alive *alive; /* server.c */
	struct wh_meet_folders folders; /* where peers in other containers are looked for */
};

/* ---- the owner ----------------------------------------------------------------------------- */

/* Create the alive page; the engine's loops run. 0, or a negative errno with wh_fail()'s text. */
int wh_shm_alive_open(struct wh_shm *shm);
void wh_shm_alive_close(struct wh_shm *shm);
/* Transport functions; on loop 0. */
int wh_shm_session_accept(struct wh_session *session, int fd, struct wh_channel *channel,
			  const struct wh_hello *hello);
void wh_shm_session_ending(struct wh_session *session);
void wh_shm_session_close(struct wh_session *session);

/* What a session may map of an allocation. Valid for one version of the allocation: each region
 * that is published in it or withdrawn from it makes a new version. */
struct wh_shm_verdict {
	uint64_t version; /* wh_allocation.version; 0: this entry is unused */
	uint8_t rights; /* enum wh_access; 0: the session may not map it */
	bool others; /* refused because others may write all of it, and this session may not */
	uint64_t gap; /* offset of a byte that it may not read or write; UINT64_MAX: unknown */
};
/* Cache of verdicts, one per connection. */
#define WH_SHM_VERDICTS 8u
struct wh_shm_verdicts {
	struct wh_shm_verdict kept[WH_SHM_VERDICTS];
	unsigned next;
};

/* Open a descriptor of the region's allocation for the session, which has `access` to the region.
 * The caller closes it. -1: refused, with the reason in `answer`. Under engine.lock. */
int wh_shm_grant(const struct wh_session *session, struct wh_shm_verdicts *kept,
		 const struct wh_region *region, uint8_t access, struct wh_mapped *answer);

/* ---- the initiator -------------------------------------------------------------------------- */

enum wh_shm_vm {
	WH_VM_UNKNOWN = 0,
	WH_VM_WORKS,
	WH_VM_REFUSED,
};

/* How far the handshake on the owner's unix socket has come. */
enum wh_shm_step {
	WH_SHM_APART = 0, /* no connection */
	WH_SHM_GREETED, /* WELCOME is to come */
	WH_SHM_PROVED, /* ALIVE is to come */
	WH_SHM_MET,
};

#define WH_SHM_ASKING "asking the peer for a region's memory"

/* What the owner is asked for, one at a time. */
enum wh_shm_ask {
	WH_SHM_ASK_NOTHING = 0,
	WH_SHM_ASK_MAP,
	WH_SHM_ASK_EXPORTS,
	WH_SHM_ASK_OBJECTS,
	WH_SHM_ASK_LEND,
};

struct wh_shm_peer {
	struct wh_copier_peer copy; /* first: it is the transport's state for the peer */
	struct wh_copier_peer files;
	struct wh_shm *shm;
	struct wh_peer *peer;

	/* The connection to the owner's unix socket: ask.c. A thread outside of plans that waits
	 * for an answer holds the lock. Times are ns of wh_now(). */
	pthread_mutex_t lock;
	int fd; /* -1: none; does not block */
	enum wh_shm_step step;
	unsigned generation; /* value of `current` when `fd` was connected */
	int64_t dialed_at; /* since when the owner accepts nobody; 0: it does */
	int64_t retry_at; /* no new attempt before */
	struct wh_greeting hello; /* the last one */
	int64_t asked_at; /* when that was sent to which an answer is to come */
	struct {
		enum wh_shm_ask kind; /* WH_SHM_ASK_NOTHING: no answer is to come */
		uint64_t id; /* of the region */
		int64_t answered_at; /* when the answer was seen; 0: it was not */
		uint64_t removals; /* those below, when it was sent */
		uint32_t arrivals;
	} question;
	char why[WH_REFUSAL]; /* the last failure */

	_Atomic unsigned current; /* counts the control connections to the peer */

	/* Guards the mappings, and struct region_map of map.c. Taken after `lock`. */
	pthread_mutex_t maps_lock;
	struct wh_list memories; /* struct wh_shm_memory */
	uint64_t removals; /* counts the mappable regions that the owner has withdrawn */
	_Atomic uint32_t arrivals; /* counts its hints that a region was registered */
	_Atomic bool partly; /* a refused region might become mappable by another region */
	/* The allocation that was refused last, so that its other regions need not ask. */
	struct {
		uint64_t number;
		uint32_t arrivals; /* `arrivals` at that time */
	} refused;

	/* The owner's process; set by the first connection, then constant until the peer closes. */
	const _Atomic uint32_t *alive; /* its alive page */
	size_t alive_length;
	uint32_t owner; /* what *alive holds while the owner lives */
	/* The session's word, in the upper half its index; 0: the owner has none. */
	_Atomic uint64_t word;
	/* An owner without threads: a duplicate of `fd`, which hangs up when the owner closes the
	 * session. Its number is constant once it is not -1. */
	_Atomic int line;
	int pidfd; /* -1: none, for the reason in vm_refused */
	pid_t pid;

	_Atomic uint32_t vm; /* enum wh_shm_vm */
	pthread_mutex_t vm_lock; /* of vm_refused */
	char vm_refused[WH_REFUSAL]; /* why process_vm cannot be used */
};

/* 0: the file has `least` bytes and is sealed against shrinking, so that no access to its mapping
 * raises SIGBUS. Otherwise -EPROTO. */
int wh_shm_check_file(int fd, uint64_t least);

/* Take shm.lock. 0; in plans -EINPROGRESS, without it, if another thread asks the owner. */
int wh_shm_lock(struct wh_shm_peer *shm, char why[WH_REFUSAL]);
/* The next ones are called under shm.lock. In plans they wait for the owner's answer for a moment,
 * and return -EINPROGRESS, to be called again for the same, if it has not come. */
/* Connect and shake hands, unless this was done since the last control connection was made. 0, or a
 * negative errno with the reason in shm.why. */
int wh_shm_connect(struct wh_shm_peer *shm);
/* Ask, on a connection: send what begins with the frame header in `bytes`, with a descriptor unless
 * `fd` is -1, unless that was asked already, and wait for the answer. 0: receive it. Or a negative
 * errno with the reason in shm.why. */
int wh_shm_ask(struct wh_shm_peer *shm, enum wh_shm_ask kind, uint64_t id, const void *bytes,
	       size_t length, int fd);
/* Receive the next frame from shm.fd, its payload to `out`, waiting for it for up to 1 s. *fd is -1
 * before; a descriptor that the frame carries goes there and is the caller's, also on error. 0,
 * -ETIMEDOUT, -ECONNRESET, -EPROTO or another negative errno. */
int wh_shm_receive_frame(struct wh_shm_peer *shm, struct wh_frame *frame, void *out, size_t room,
			 int *fd);
void wh_shm_disconnect(struct wh_shm_peer *shm);
/* Store "<what>: <error>" in shm.why and return `error`. wh_shm_fail_disconnect() also closes the
 * connection and allows no new one for 5 s. */
int wh_shm_fail(struct wh_shm_peer *shm, int error, const char *what);
int wh_shm_fail_disconnect(struct wh_shm_peer *shm, int error, const char *what);

/* ---- the initiator's mappings: map.c ------------------------------------------------------- */

/* An allocation of the owner's, with one mapping for all of its regions. Under shm.maps_lock; only
 * loop 0 unmaps and removes it. */
struct wh_shm_memory {
	struct wh_list link; /* shm.memories */
	struct wh_list regions; /* those that it shows: struct region_map of map.c */
	uint64_t number; /* the owner's number of the allocation */
	uint64_t start, length; /* its address in the owner's process, and its bytes */
	char *base; /* of the mapping; NULL: none */
	size_t mapped; /* bytes of the mapping: whole pages */
	bool writable;
	bool ending; /* hidden from all regions; unmapped when no copy pins one of them */
};

/* Why a file of ours and memory of the peer do not go together. */
#define WH_SHM_FILE_UNMAPPED                                                                       \
	"a file is read into, and written from, mapped memory only, and the peer's is not mapped"

/* wh_copier_ops.map */
char *wh_shm_mapped_at(const struct wh_region_entry *entry, uint32_t op);
/* Transport functions. */
int wh_shm_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
			struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL]);
void wh_shm_region_came(struct wh_peer *peer, void *state);
int wh_shm_region_going(struct wh_peer *peer, void *state, uint64_t address, uint64_t length,
			int64_t deadline);
void wh_shm_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region);
/* Write why the region is not mapped for that op; "" if it is mapped. */
void wh_shm_refused(struct wh_shm_peer *shm, const struct wh_remote_region *region, uint32_t op,
		    char why[WH_REFUSAL]);

/* A mapping of exactly one region of host memory. It belongs to the caller, who unmaps it when the
 * region goes. */
struct wh_shm_own {
	void *base;
	size_t length;
};
/* Ask the owner for the region and map it into *own; NULL: only ask. As wh_shm_ask().
 * 0, or a negative errno with the reason in `why`. */
int wh_shm_map(struct wh_shm_peer *shm, struct wh_remote_region *region, struct wh_shm_own *own,
	       char why[WH_REFUSAL]);
/* Has the owner answered for this region since the control connection was made? */
bool wh_shm_asked(const struct wh_shm_peer *shm, const struct wh_remote_region *region);
/* Ask the owner for a region of GPU memory; `objects`: as objects for a CPU window. Calls `each`
 * for every segment, in order; `each` keeps the descriptor *fd by setting it to -1. As
 * wh_shm_ask(); once the first one has come, blocks for those behind, about 10 s at most. 0, the
 * first error that `each` returned, or another negative errno; the reason is then in `why`. */
int wh_shm_exports(struct wh_shm_peer *shm, struct wh_remote_region *region, bool objects,
		   int (*each)(void *arg, const struct wh_exported *exported, int *fd,
			       char why[WH_REFUSAL]),
		   void *arg, char why[WH_REFUSAL]);
/* Does the owner's process live, with its engine open, and does our session there last? If not, it
 * may have unregistered what is mapped here without asking: nothing that has been moved may count
 * as a success. Two loads; if the owner has no threads, also a system call. */
bool wh_shm_owner_lives(const struct wh_shm_peer *shm);
/* What has happened to the owner, if it does not: "has died". */
const char *wh_shm_owner_fate(const struct wh_shm_peer *shm);

/* ---- lending memory: lend.c ---------------------------------------------------------------- */

/* Does the owner take LEND? */
bool wh_shm_may_lend(const struct wh_shm_peer *shm);
/* Lend the slots to the owner, for requests of the tcp transport. As wh_shm_ask(). 0, or a negative
 * errno with the reason in `why`. */
int wh_shm_lend(struct wh_shm_peer *shm, const struct wh_lender *lender, char why[WH_REFUSAL]);
/* The owner: answer a LEND that came with this descriptor, which stays the caller's; -1: none. On
 * loop 0. 0, or a negative errno, which ends the connection. */
int wh_shm_lend_accept(struct wh_session *session, int socket, const uint8_t payload[WH_LEND_SIZE],
		       int fd);

/* Get a pidfd of the process at the other end of the socket, and its number, which process_vm
 * needs: a process has one only in PID namespaces that contain it. A failure is stored in
 * shm.vm_refused. Under shm.lock. */
void wh_shm_vm_meet(struct wh_shm_peer *shm);
/* Does the kernel allow process_vm on the owner? 0, or a negative errno with the reason in `why`.
 */
int wh_shm_vm_probe(struct wh_shm_peer *shm, char why[WH_REFUSAL]);
/* wh_copier_ops.move_unmapped and .refusal */
int wh_shm_vm_move(struct wh_copier_peer *copy, struct wh_unmapped *unmapped);
void wh_shm_vm_refusal(struct wh_copier_peer *copy, char why[WH_REFUSAL]);

#endif
