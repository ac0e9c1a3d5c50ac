/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects behind the public API, and what the parts of the core ask of each other.
 *
 * Threads: an engine has `loop_count` progress threads (util/loop.h). Loop 0 also serves the
 * listeners, the handshakes and all control connections; sessions and the connecting side of peers
 * are touched on it alone, save for what has a lock of its own. Callbacks run on loop 0.
 *
 * Locks, outermost first: engine.lock, peer.lock, wh_region_table.lock, control.lock. None is held
 * while bytes move. engine.registrations_lock is taken with none of them, and held while the driver
 * is asked. peer.count_lock is the innermost of all.
 */
#ifndef WH_CORE_CORE_H
#define WH_CORE_CORE_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <wherry/wherry.h>

#include "core/counters.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "net/tls.h"
#include "net/trust.h"
#include "rendezvous/registry.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/wire.h"

/* ---- engine ------------------------------------------------------------------------------- */

struct wh_engine {
	struct wh_config config;
	struct wh_trust trust;
	char name[WH_NAME_MAX];
	char url[96];
	uint64_t epoch;
	uint8_t host[16];
	char socket_name[WH_NAME_MAX]; /* of the abstract unix socket; "": none */
	/* A page that is wiped in a forked child: 1 in the process that opened the engine. */
	volatile unsigned char *ours;
	void (*log)(void *arg, const char *line);
	void *log_arg;

	struct wh_loop *loops;
	unsigned loop_count;
	_Atomic unsigned next_loop;

	pthread_mutex_t lock; /* peers, sessions, memory, the counts; publishing */
	struct wh_list peers;
	struct wh_list sessions;
	struct wh_list quotas; /* on loop 0 */
	struct wh_list memory; /* struct wh_allocation */
	/* the last one given to an allocation, or to a state of one; under lock */
	uint64_t memory_number;
	uint64_t removes; /* REMOVE frames sent to every session; under lock */
	uint64_t next_session; /* on loop 0 */
	unsigned session_count; /* on loop 0 */
	unsigned queue_count;
	struct wh_region_table regions; /* of struct wh_region */
	struct wh_cuda *cuda; /* never NULL; wh_cuda_ready() says why if GPUs cannot be used */
	pthread_mutex_t registrations_lock;
	void *registrations; /* tsearch() tree of those of memory that CUDA knows */
	struct wh_gpus *gpus; /* what moves GPU memory, for all transports */
	struct wh_warm_up *early; /* what peers may ask of it is made ready */
	void *transport[WH_TRANSPORT_COUNT];
	uint8_t order[WH_TRANSPORT_COUNT]; /* transports that are on, best first */
	unsigned order_count;
	/* place in the knob's list, be it on or off; else the count */
	uint8_t rank[WH_TRANSPORT_COUNT];
	char transport_off[WH_TRANSPORT_COUNT][WH_REFUSAL]; /* why it is not used; "": it is */
	bool not_here[WH_TRANSPORT_COUNT]; /* that is its setting, or there is no such device */

	struct wh_acceptor *acceptor;
	struct wh_registry *registry; /* NULL: none */
	struct wh_inbox *inbox;
	struct wh_windows *windows; /* once one was opened; under lock, then kept */
	unsigned window_count; /* under lock */
	pthread_mutex_t region_window_lock; /* opening a region's window; comes before `lock` */

	struct wh_engine_statistics statistics;
	struct wh_statistics past; /* of peers that have been closed; under lock */
	struct wh_observer *observer; /* NULL: nobody may ask */

	pthread_mutex_t callback_lock;
	struct wh_list callbacks; /* batches whose callback is due */
	struct wh_task callback_task;
};

/* -EPERM in a forked child, -EINVAL for NULL; else 0. At the top of every public function. */
int wh_engine_guard(const struct wh_engine *engine, const char *call);
/* Is this one of the engine's own threads, so that waiting would never end? */
bool wh_engine_inside(const struct wh_engine *engine);
void wh_engine_log(struct wh_engine *engine, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* What HELLO and WELCOME say of it. */
uint32_t wh_engine_capabilities(const struct wh_engine *engine);
/* The loop for the next data connection, in turn. */
struct wh_loop *wh_engine_loop(struct wh_engine *engine);

/* ---- being observed -------------------------------------------------------------------------- */

/* Make the engine's unix socket, as the knob `observe` says. An error only if the knob names a
 * directory that cannot be used. */
int wh_observer_open(struct wh_engine *engine);
void wh_observer_close(struct wh_engine *engine);
/* The bytes that observers are told, to be freed by the caller. */
int wh_observation_make(struct wh_engine *engine, uint8_t **bytes, size_t *length);

/* ---- memory and regions -------------------------------------------------------------------- */

/* A region of ours. */
struct wh_region {
	struct wh_region_entry entry;
	struct wh_engine *engine;
	struct wh_allocation *memory; /* that it lies in; NULL: the user's own */
	/* memory->members, as long as it is published; under engine.lock */
	struct wh_list member;
	/* what its memory is; never NULL while it is used */
	struct wh_registration *registration;
	struct wh_rights *rights; /* of single peers; NULL: all have what the place says */
	_Atomic uint32_t batches; /* unfinished ones that use it */
	struct wh_device_mapping *_Atomic mapping; /* the transport cuda's; NULL: none yet */
	/* the CPU window that is kept for it; NULL: not tried yet */
	struct wh_region_window *_Atomic window;
	/* the transport rdma's, one for each NIC; NULL: none yet */
	struct rdma_memory *_Atomic rdma;
};

/* Can its memory be unmapped while it is registered, by whom it belongs to? What transports copy
 * themselves, without a system call that would tell, they look at before. */
static inline bool wh_region_may_vanish(const struct wh_region *region)
{
	return !region->memory && wh_kind_on_host(region->entry.kind);
}

/* A region of a peer. The `map` fields are the shm transport's. */
struct wh_remote_region {
	struct wh_region_entry entry;
	_Atomic uint32_t map_state; /* enum in transport/shm/map.c; 0: not asked for yet */
	_Atomic uint32_t map_arrivals; /* wh_shm_peer.arrivals when it was refused */
	_Atomic(char *) map; /* where the region's first byte is mapped here; NULL: not mapped */
	_Atomic bool map_writable;
	/* of the allocation that it lies in, as the owner has told; 0: not known */
	uint64_t map_number;
	struct wh_shm_memory *map_memory; /* the same, once it has been mapped */
	struct wh_list map_link; /* map_memory->regions */
	char *map_refused; /* why it is not mapped, or not for writing; owned; NULL: it is */
	struct wh_device_mapping *_Atomic mapping; /* the transport cuda's; NULL: none yet */
	struct wh_region_window
		*_Atomic window; /* the CPU window onto `view`; NULL: not tried yet */
	/* the transport rdma's, one for each NIC; NULL: none yet */
	struct rdma_keys *_Atomic rdma;
	uint32_t round; /* peer.list_round when it was last listed; on loop 0 */
};

/* ---- control connections -------------------------------------------------------------------- */

/* A connection that carries frames. Receiving and closing on loop 0; sending from any thread. */
struct wh_control {
	struct wh_source source;
	struct wh_loop *loop;
	struct wh_tls *tls; /* under the lock, but on a new connection; NULL: plain */
	uint8_t *in; /* bytes not yet parsed */
	size_t in_length, in_room;
	pthread_mutex_t lock; /* sending */
	uint8_t *out;
	size_t out_start, out_length, out_room;
	size_t owed; /* of what waits: answers; it goes down when all has gone out */
	struct wh_quota *quota; /* on whose account the memory is; NULL: ours */
	const char *full; /* why no more is kept for it; NULL: it is */
	bool open;
	/* A frame has come; not 0: the connection is broken off with that error. */
	int (*frame)(struct wh_control *control, const struct wh_frame *frame,
		     const uint8_t *payload);
	/* It is gone; `source.fd` is closed by wh_control_close(). Called once, on the loop. */
	void (*gone)(struct wh_control *control, int error, const char *text);
};

void wh_control_init(struct wh_control *control, struct wh_loop *loop);
/* Start receiving on a connected socket; on the loop. Fields frame and gone are set. `tls` may
 * have its handshake still before it, and belongs to the control connection from then on, as
 * `fd` does, but on error. */
int wh_control_start(struct wh_control *control, int fd, struct wh_tls *tls);
/* Take what had come before it was started, and the socket does not tell of. On the loop. */
void wh_control_early(struct wh_control *control);
/* Queue a frame and send what the socket takes. -ECONNRESET when it is not open, -ENOBUFS when the
 * other side does not read, or reads too little of what it has asked for. */
int wh_control_send(struct wh_control *control, enum wh_frame_type type, uint16_t flags,
		    const void *payload, size_t length);
/* Close it; `gone` is not called. On the loop. */
void wh_control_close(struct wh_control *control);
void wh_control_destroy(struct wh_control *control);

/* Set what every connection of ours has: no delay, keepalive, user timeout, close-on-exec. */
void wh_socket_tune(struct wh_engine *engine, int fd);
/* Before connecting to, or listening on, a loopback address: no congestion control that paces,
 * for there the timers that it takes cost more than moving the bytes, and hold them up. What is
 * accepted inherits it; a connection that is established would stay paced. */
void wh_socket_unpace(int fd, const struct sockaddr_storage *address);
/* A data connection has been made: bound what waits in it, if the other end is on this host. */
void wh_socket_near(struct wh_engine *engine, int fd);
/* Shut down and close. A forked child may hold a copy, which would keep a connection, or a listener
 * that nobody serves, alive. */
void wh_socket_close(int fd);

/* Of two connected sockets of this process: are they the two ends of one connection? */
bool wh_sockets_joined(int one, int other);

/* ---- handshakes ------------------------------------------------------------------------------ */

#define WH_GREETING_MAX (WH_FRAME_HEADER + WH_HELLO_MAX)

/* A HELLO or WELCOME as it goes over the wire, with its frame header: what is proved is proved
 * over these bytes. */
struct wh_greeting {
	size_t length;
	uint8_t bytes[WH_GREETING_MAX];
};

/* ---- peers: the side that opens -------------------------------------------------------------- */

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

/* Make the HELLO for a connection of this role to the peer. `connection` is 0 but for data. 0,
 * or -EIO: no random numbers. */
int wh_peer_hello(struct wh_peer *peer, uint16_t role, uint32_t connection,
		  struct wh_greeting *out);
/* The payload of the WELCOME that answers it, on `fd`: does it prove the key, and what do we
 * prove in turn? Of a control connection: the session's key is kept. 0; -EACCES with a text:
 * another key, or another user; -EPROTO, -EIO. */
int wh_peer_prove(struct wh_peer *peer, uint16_t role, int fd, const struct wh_tls *tls,
		  const struct wh_greeting *hello, const uint8_t *welcome, size_t length,
		  uint8_t out[WH_PROVE_SIZE]);
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

/* ---- sessions: the side that is reached ------------------------------------------------------ */

/* Where sessions are from: an IPv4 address, or a network of IPv6. It is there as long as there
 * is a session of it. On loop 0, save `held`. */
struct wh_quota {
	struct wh_list link; /* engine.guests */
	uint64_t entry;
	unsigned sessions;
	int64_t most; /* the setting `max_buffered` */
	/* bytes of memory that are there on their account: data connections, requests */
	_Atomic int64_t held;
	/* the same of control connections, and of notifications that wait */
	_Atomic int64_t queued;
};

uint64_t wh_quota_source(const struct sockaddr_storage *address);
/* NULL: there are too many from there, or there is no memory. */
struct wh_quota *wh_quota_acquire(struct wh_engine *engine, uint64_t entry);
void wh_quota_release(struct wh_quota *quota);

static inline void wh_quota_charge_buffered(struct wh_quota *quota, int64_t bytes)
{
	atomic_fetch_add_explicit(&quota->held, bytes, memory_order_relaxed);
}

/* What is asked for has to wait until something else has ended. */
static inline bool wh_quota_is_full(const struct wh_quota *quota)
{
	return atomic_load_explicit(&quota->held, memory_order_relaxed) >= quota->most;
}

/* So many bytes more; fewer always fit. False: `most` would be passed, and nothing has changed. */
static inline bool wh_quota_charge_queued(struct wh_quota *quota, int64_t bytes)
{
	int64_t before = atomic_fetch_add_explicit(&quota->queued, bytes, memory_order_relaxed);

	if (bytes <= 0 || before + bytes <= quota->most)
		return true;
	atomic_fetch_sub_explicit(&quota->queued, bytes, memory_order_relaxed);
	return false;
}

/* One engine connected to this one. On loop 0, save `control` for sending and the atomics. */
struct wh_session {
	struct wh_list link; /* engine.sessions; also under engine.lock */
	struct wh_engine *engine;
	struct wh_control control;
	struct wh_quota *quota;
	struct wh_hello hello; /* what it said */
	uint64_t id;
	uint8_t key[WH_KEY_SIZE]; /* that its data and shm connections prove */
	/* it may map or reach our memory without asking: wait for its REMOVED */
	_Atomic bool touches;
	/* It may reach our memory by keys that we can take back: waiting for its REMOVED is a
	 * courtesy. */
	_Atomic bool keyed;
	/* it is going to ask for GPUs' memory by way of pinned memory; under engine.lock */
	bool stages;
	/* REMOVE frames: how many the engine had sent when the session began, and how many REMOVED
	 * have come. */
	uint64_t removes_before;
	_Atomic uint64_t removed;
	struct wh_timer watchdog; /* a peer that has fallen silent */
	int64_t heard;
	void *transport[WH_TRANSPORT_COUNT]; /* each transport's own */
	struct wh_list notes; /* notifications for which the inbox has no room yet */
	unsigned notify_count;
	struct wh_served served;
};

/* A control connection whose initiator has proved itself. It belongs to the session now (also on
 * error). */
int wh_session_new(struct wh_engine *engine, int fd, struct wh_tls *tls, uint64_t entry,
		   const struct wh_hello *hello, uint64_t id, const uint8_t key[WH_KEY_SIZE]);
/* The session with this number, or NULL. On loop 0. */
struct wh_session *wh_session_find(struct wh_engine *engine, uint64_t id);
void wh_session_end(struct wh_session *session, int error, const char *text);
/* It is going to ask for GPUs' memory by way of pinned memory of ours: what that takes is made
 * ready, by another thread, for all regions that it may use, now and later. Not under engine.lock.
 */
void wh_session_stages(struct wh_session *session);
/* Make the WELCOME that answers `said`, whose content is `hello`; `proofs` says what the
 * initiator has to prove in turn. 0, or -EPROTO (no nonce), -EIO. */
int wh_welcome(struct wh_engine *engine, const struct wh_greeting *said,
	       const struct wh_hello *hello, uint64_t session, const uint8_t key[WH_KEY_SIZE],
	       struct wh_greeting *out, struct wh_proofs *proofs);
/* Send REFUSED on a fresh connection, as far as its empty buffer takes it, and close it. */
void wh_refuse(int fd, struct wh_tls *tls, int error, const char *text);
/* Tell the sessions that may use it of a region that came, and all of one that goes. Under
 * engine.lock. */
void wh_sessions_publish(struct wh_engine *engine, const struct wh_region *region);
void wh_sessions_remove(struct wh_engine *engine, uint64_t id);
/* Wait until no session that touches memory by itself holds a region removed before this call;
 * half as long for those that do so by keys alone, which the caller takes back. 0 or -EBUSY. */
int wh_sessions_released(struct wh_engine *engine, uint64_t id, int64_t deadline);

void wh_region_record(const struct wh_region *region, struct wh_region_record *record);
/* What an engine of this name may do with it, enum wh_access; place.access is what any of them
 * may. */
uint8_t wh_region_access(const struct wh_region *region, const char *name);
/* The same for a session: inside the region, or under engine.lock. On any thread. */
uint8_t wh_session_access(const struct wh_session *session, const struct wh_region_entry *entry);

/* ---- the acceptor: listeners and handshakes -------------------------------------------------- */

int wh_acceptor_open(struct wh_engine *engine, const char *listen);
void wh_acceptor_close(struct wh_engine *engine);

/* ---- notifications --------------------------------------------------------------------------- */

int wh_inbox_open(struct wh_engine *engine);
void wh_inbox_close(struct wh_engine *engine);
/* A session has sent one / is going. On loop 0. */
int wh_session_notified(struct wh_session *session, const uint8_t *payload, size_t length);
/* One has come by connection `by` of a transport, which is not 0: `length` bytes, 1 to
 * WH_NOTIFICATION_MAX, which may change while they are copied. */
int wh_session_notified_by_transport(struct wh_session *session, uint32_t by, uint64_t sequence,
				     const void *data, size_t length);
/* Those that came so and have not been confirmed never came. */
void wh_session_notifications_forget(struct wh_session *session, uint32_t by);
void wh_session_notifications_drop(struct wh_session *session);

/* Send a finished batch's notification; wh_batch_finish() follows once it is confirmed, and
 * wh_batch_fail() before it if that cannot be. The batch may be gone when it returns. */
void wh_notify_send(struct wh_batch *batch);
/* True: the batch waits no more for its notification, which has not been sent, or has been and may
 * still arrive; the caller finishes the batch. False: none was due, or it is being finished. */
bool wh_notify_cancel(struct wh_batch *batch);
/* The batch ends without: it has failed, or been cancelled. */
void wh_notify_drop(struct wh_batch *batch);
/* For a transport that sends one behind the batch's bytes. Both under peer.notify_lock. May it be
 * sent now, before any other? Then its sequence, as sent; wh_notify_confirmed() or
 * wh_notify_undelivered() follows. */
bool wh_notify_can_send_early(const struct wh_batch *batch);
uint64_t wh_notify_send_early(struct wh_batch *batch);
/* What a transport has sent has not arrived, and never will: it is sent over the control
 * connection, or, if it was ahead of its batch's end, once that has come. Under peer.notify_lock;
 * wh_notify_resume() follows, without. */
void wh_notify_undelivered(struct wh_peer *peer, uint64_t sequence, const void *data,
			   size_t length);
void wh_notify_resume(struct wh_peer *peer);
/* The peer has confirmed one; or it is lost. On loop 0. */
void wh_notify_confirmed(struct wh_peer *peer, uint64_t sequence);
void wh_notify_peer_lost(struct wh_peer *peer, int error, const char *text);

/* ---- batches --------------------------------------------------------------------------------- */

/* One transfer as it is kept. */
struct wh_item {
	char *address; /* ours */
	struct wh_region *local;
	uint64_t local_id;
	uint64_t remote, offset; /* the peer's region, and where in it */
	uint64_t length;
	uint32_t op;
	_Atomic int32_t status;
};

/* One pair of bases of a prepared blocks descriptor. */
struct wh_block_base {
	char *address;
	struct wh_region *local;
	uint64_t local_id;
	uint64_t remote, offset;
};

struct wh_blocks {
	struct wh_list link; /* peer.blocks */
	_Atomic uint32_t references;
	struct wh_peer *peer; /* NULL: closed */
	uint32_t op;
	uint64_t block_length, count, base_count;
	struct wh_block_base *bases;
	uint64_t *local_offsets, *remote_offsets; /* NULL: strides */
	uint64_t local_stride, remote_stride;
	uint64_t local_bits, remote_bits; /* all offsets, or the stride, or-ed */
	_Atomic bool used; /* by the transport cuda, at least once */
	struct wh_cached_lists *_Atomic cached; /* its lists on a GPU; NULL: they are not there */
};

/* How far into a piece. */
struct wh_cursor {
	uint64_t outer; /* transfer, or base */
	uint64_t inner; /* block */
	uint64_t skip; /* bytes into it */
	uint64_t left; /* bytes to the end of the piece */
};

/* A stretch of bytes that lies in one place on both sides. */
struct wh_extent_pair {
	char *local;
	uint64_t remote, offset, length;
	uint64_t index; /* of the transfer; blocks: of the base */
};

/* A part of a batch that goes by one transport: transfers [first, first + count) of the batch's
 * items, all of one op, or bases [first, first + count) of a blocks descriptor. */
struct wh_fragment {
	struct wh_batch *batch;
	struct wh_blocks *blocks; /* NULL: items */
	uint32_t op;
	_Atomic uint32_t transport;
	uint64_t first, count;
	uint64_t bytes, transfers;
	/* The transport's own. */
	struct wh_list link;
	struct wh_cursor cursor; /* what has been handed out */
	_Atomic uint64_t left; /* what has not been finished */
	_Atomic bool cancelled;
	void *owner;
	uint32_t rails; /* the transport rdma's lines that can carry it */
	/* the version of what lines can carry that this was found for; 0: none */
	uint32_t rails_of;
	uint32_t in_flight; /* its work requests that are not done */
	bool watched; /* whoever is at work with its batch looks for their completions */
	bool alone; /* meant for its owner alone */
	bool staged; /* some of our side is a GPU's memory, and goes through slots */
	bool windowed; /* ... and is written by the CPU, through windows */
	/* Not the core's: a part of another piece, which that one's transport has made for
	 * itself. What is said of it comes back by `ended` (with an error: it was to be
	 * rerouted), but for failures, which are the whole's: its items' local_id is the number
	 * of the whole's item. */
	struct wh_fragment *whole;
	void (*ended)(struct wh_fragment *part, int error, const char *why);
	_Atomic bool done;
	/* the errno of its first failure; for the counters, which clear it */
	_Atomic int32_t failed;
};

enum wh_batch_state {
	WH_BATCH_NEW = 0, /* never submitted */
	WH_BATCH_RUNNING = 1,
	WH_BATCH_WAITED = 2, /* running, and somebody sleeps on the word */
	WH_BATCH_DONE = 3,
};

/* A notification that was sent ahead of the end of its batch. */
enum wh_notify_state {
	WH_NOTIFY_NONE = 0, /* it was not */
	WH_NOTIFY_EARLY, /* it was, and is in peer.notify_early */
	WH_NOTIFY_CONFIRMED, /* and has been confirmed */
	WH_NOTIFY_LOST, /* and the peer was lost */
};

enum wh_notify_path {
	WH_NOTIFY_UNSENT = 0,
	WH_NOTIFY_CONTROL,
	WH_NOTIFY_TRANSPORT, /* by its transport, after its bytes */
	/* by its transport, behind its bytes, before they were known to have arrived */
	WH_NOTIFY_TRANSPORT_EARLY,
};

#define WH_RAILS 16 /* connections to one peer, of the transport rdma */
#define WH_RAILS_TRIED (1u << 31)

/* What one transport did for a batch. */
struct wh_share {
	uint64_t bytes, transfers;
	char refused[WH_REFUSAL];
	bool inapplicable; /* as in struct wh_route */
};

struct wh_batch {
	struct wh_peer *peer;
	struct wh_queue *queue;
	void (*callback)(struct wh_batch *batch, int status, void *arg);
	void *callback_arg;
	uint64_t user;
	uint32_t priority;
	/* stream.c: what it has to do with streams; NULL: nothing */
	struct wh_stream_dependency *_Atomic dependency;
	uint32_t require; /* enum wh_transport_id; WH_TRANSPORT_COUNT: any */

	struct wh_item *items;
	size_t item_count, item_room;
	struct wh_blocks **blocks;
	size_t blocks_count, blocks_room;
	unsigned char *note;
	size_t notification_length;

	struct wh_fragment *fragments;
	size_t fragment_count, fragment_room;
	uint32_t planned; /* peer.plan_version of the plan; 0: none */
	struct wh_share share[WH_TRANSPORT_COUNT];
	/* What rails have carried of it, in this submission, and which broke with some of it. */
	_Atomic uint64_t railed[WH_RAILS];
	/* a bit each; WH_RAILS_TRIED: some of it came to them */
	_Atomic uint32_t rails_used, rails_broken;

	_Atomic uint32_t state; /* enum wh_batch_state; a futex */
	_Atomic uint32_t left; /* pieces unfinished, and one for wh_batch_submit() itself */
	_Atomic int32_t status;
	_Atomic bool cancelled;
	_Atomic bool waiting_for_stream; /* it has not been started: it waits for a stream */
	/* A piece that is being cancelled does not change its transport meanwhile. Taken before
	 * those of the transports and text_lock. */
	pthread_mutex_t route_lock;
	pthread_mutex_t text_lock;
	char text[WH_TEXT_MAX];
	struct wh_list queue_link; /* queue.done */
	struct wh_list callback_link; /* engine.callbacks */
	struct wh_list notify_link; /* peer.notes_* */
	uint64_t notify_sequence;
	uint8_t notify_state; /* enum wh_notify_state; under peer.notify_lock */
	_Atomic uint8_t notify_path; /* enum wh_notify_path: how it was sent the last time */
	int notify_error; /* why it could not be sent */
	struct wh_batch *notify_next; /* the next of those */
	_Atomic bool finishing; /* done, but not yet let go of */
	_Atomic uint32_t delivering; /* its callback runs or is due, so many times */

	_Atomic uint32_t watch; /* WH_STATISTICS_... */
	uint32_t timed_in; /* so many submissions: the last of them is timed */
	/* as in `watch`, for whom nobody else is at work; under peer.count_lock */
	bool listed;
	wh_count submissions; /* completed well while listed */
	uint64_t told; /* of those, in the peer's tally; under peer.count_lock */
	int64_t begun; /* WH_STATISTICS_TIMED: when */
	uint64_t in_flight; /* WH_STATISTICS_IN_FLIGHT: its bytes */
	struct wh_list count_link; /* peer.counted */
};

/* For transports: this piece is finished, whichever way. Once for each submit. The batch may be
 * gone when it returns. */
void wh_fragment_done(struct wh_fragment *fragment);
/* Record a failure: of transfer `index` of the batch's items, or of all of the piece
 * (UINT64_MAX). Before wh_fragment_done(). `error` is negative. */
void wh_fragment_fail(struct wh_fragment *fragment, uint64_t index, int error, const char *format,
		      ...) __attribute__((format(printf, 4, 5)));
/* The transport cannot move this piece after all, and nothing of it is in flight any more: the next
 * one gets it from the start, or it fails with `error`. Instead of wh_fragment_done(). */
void wh_fragment_reroute(struct wh_fragment *fragment, int error, const char *why);

/* Before its plan changes, or it goes. */
static inline void wh_batch_flush_counts(struct wh_batch *batch)
{
	if (batch->listed)
		wh_count_flush(batch);
}

static inline bool wh_batch_running(struct wh_batch *batch)
{
	uint32_t state = atomic_load_explicit(&batch->state, memory_order_acquire);

	return state == WH_BATCH_RUNNING || state == WH_BATCH_WAITED;
}

/* Run a finished batch's callback; on loop 0. */
void wh_batch_call_back(struct wh_batch *batch);
/* The batch's pieces have ended and its notification is confirmed, or failed: say so. */
void wh_batch_finish(struct wh_batch *batch);
void wh_batch_fail(struct wh_batch *batch, int error, const char *text);

/* The peer goes: what is prepared for it can be freed afterwards, but holds nothing of the
 * engine. */
void wh_blocks_leave(struct wh_peer *peer);

/* Is this range of the peer's, or of our, region there, and granted? `what` and `index` begin the
 * text of the error. */
int wh_batch_check_remote(struct wh_peer *peer, const char *what, uint64_t index, uint32_t op,
			  uint64_t id, uint64_t offset, uint64_t length);
int wh_batch_check_local(struct wh_peer *peer, const char *what, uint64_t index,
			 const struct wh_region *region, uint64_t offset, uint64_t length);
/* Do the two sides share bytes of a GPU's, some of which would be overwritten before they are read?
 * Seen where both are of this engine; host memory is moved in the right direction there. */
int wh_batch_check_overlap(struct wh_peer *peer, const char *what, uint64_t index,
			   const struct wh_region *region, uint64_t local_offset, uint64_t remote,
			   uint64_t remote_offset, uint64_t length);

/* Choose a transport for everything in the batch; fills pieces and shares. */
int wh_plan(struct wh_batch *batch);
/* What the batch's pieces of a transport take, added to out->duration, from a probe of it: reads
 * from the peer and waits, if there has been none. False: not known. */
bool wh_probe_estimate(struct wh_peer *peer, enum wh_transport_id id, const struct wh_batch *batch,
		       struct wh_estimate *out);
/* The next best transport for a piece that its transport gave up; WH_TRANSPORT_COUNT: none. */
uint32_t wh_plan_again(const struct wh_fragment *fragment);

/* Submit a batch that starts once the event has happened; `wait` is in its gate. */
struct wh_event_wait;
int wh_batch_submit_when(struct wh_batch *batch, struct wh_event_wait *wait);
/* It has; or, with an error, it never will. */
void wh_batch_start(struct wh_batch *batch, int error, const char *text);
/* The batch has ended: let go of the streams that wait for it. */
void wh_stream_dependency_end(struct wh_batch *batch);
/* True: it waited for a stream, and waits no longer; the caller ends it. */
bool wh_stream_dependency_cancel(struct wh_batch *batch);
void wh_stream_dependency_free(struct wh_batch *batch);

void wh_queue_put(struct wh_queue *queue, struct wh_batch *batch);
/* The batch is freed or submitted again: its completion, if it is still there, is nobody's. */
void wh_queue_forget(struct wh_queue *queue, struct wh_batch *batch);
void wh_queue_hold(struct wh_queue *queue, int by);
struct wh_engine *wh_queue_engine(const struct wh_queue *queue);

/* ---- walking through a piece ----------------------------------------------------------------- */

static inline void wh_fragment_start(const struct wh_fragment *fragment, struct wh_cursor *cursor)
{
	*cursor = (struct wh_cursor){ .outer = fragment->first, .left = fragment->bytes };
}

/* The next run of at most `most` bytes; false at the end. */
static inline bool wh_fragment_next(const struct wh_fragment *fragment, struct wh_cursor *at,
				    uint64_t most, struct wh_extent_pair *run)
{
	uint64_t length;

	if (!at->left)
		return false;
	run->index = at->outer;
	if (fragment->blocks) {
		const struct wh_blocks *blocks = fragment->blocks;
		const struct wh_block_base *base = &blocks->bases[at->outer];
		uint64_t i = at->inner;

		run->local = base->address + at->skip +
			     (blocks->local_offsets ? blocks->local_offsets[i] :
						      i * blocks->local_stride);
		run->remote = base->remote;
		run->offset = base->offset + at->skip +
			      (blocks->remote_offsets ? blocks->remote_offsets[i] :
							i * blocks->remote_stride);
		length = blocks->block_length - at->skip;
	} else {
		/* outer counts through the batch's items */
		const struct wh_item *item = &fragment->batch->items[at->outer];

		run->local = item->address + at->skip;
		run->remote = item->remote;
		run->offset = item->offset + at->skip;
		length = item->length - at->skip;
	}
	if (length > most) {
		run->length = most;
		at->skip += most;
	} else {
		run->length = length;
		at->skip = 0;
		if (!fragment->blocks) {
			at->outer++;
		} else if (++at->inner == fragment->blocks->count) {
			at->inner = 0;
			at->outer++;
		}
	}
	at->left -= run->length;
	return true;
}

#endif
