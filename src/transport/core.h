/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transport may ask of the core: of the engine, of a peer, of a session and of a batch. This
 * header, transport.h and fragment.h are all that a transport knows of the core, whose structures
 * it never sees; src/core/for-transports.c and the files beside it define these functions.
 *
 * Any thread may call them, unless a comment says otherwise. None blocks for longer than a lock
 * takes. Pointers that they return belong to the core, and last as long as the object that was
 * asked.
 */
#ifndef WH_TRANSPORT_CORE_H
#define WH_TRANSPORT_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <wherry/engine.h>

#include "transport/transport.h"
#include "util/list.h"
#include "wire/wire.h"

struct sockaddr_storage;
struct wh_batch;
struct wh_config;
struct wh_control;
struct wh_cuda;
struct wh_engine;
struct wh_estimate;
struct wh_file_threads;
struct wh_fragment;
struct wh_gpus;
struct wh_greeting;
struct wh_lent;
struct wh_log;
struct wh_loop;
struct wh_peer;
struct wh_quota;
struct wh_region;
struct wh_region_entry;
struct wh_region_table;
struct wh_region_windows;
struct wh_session;
struct wh_channel;
struct wh_tls_context;
struct wh_turns;

/* ---- the engine ----------------------------------------------------------------------------- */

const struct wh_config *wh_engine_config(const struct wh_engine *engine);
struct wh_log *wh_engine_log(struct wh_engine *engine);
/* The regions that this engine has registered: the entries of struct wh_region. */
struct wh_region_table *wh_engine_regions(struct wh_engine *engine);
/* Never NULL; wh_cuda_ready() says why if GPUs cannot be used. */
struct wh_cuda *wh_engine_cuda(const struct wh_engine *engine);
/* What moves GPU memory, for all transports. */
struct wh_gpus *wh_engine_gpus(const struct wh_engine *engine);
struct wh_region_windows *wh_engine_region_windows(struct wh_engine *engine);
/* What reads and writes the engine's files; NULL: it has never registered one. */
struct wh_file_threads *wh_engine_file_threads(const struct wh_engine *engine);
/* The state that the transport's engine_open has made; NULL: none, or the transport is off. */
void *wh_engine_transport(const struct wh_engine *engine, enum wh_transport_id id);
/* The process that opened it. A forked child's calls are refused before they come here. */
pid_t wh_engine_process(const struct wh_engine *engine);
/* Loop 0, which control connections, peers and sessions use. */
struct wh_loop *wh_engine_first_loop(const struct wh_engine *engine);
/* Where the data connections of one more peer or session begin among the loops: in turns, since
 * most use few connections. */
unsigned wh_engine_next_loop(struct wh_engine *engine);
/* A loop by its number, which may exceed how many there are: it starts over then. */
struct wh_loop *wh_engine_loop(const struct wh_engine *engine, unsigned number);
/* The loop has moved `bytes` on the socket fd, whose other end is on this machine; `follow`: the
 * other end has opened the connection. See util/placement.h; ignored on other threads. */
void wh_engine_place_loop(struct wh_engine *engine, const struct wh_loop *loop, uint64_t bytes,
			  int fd, bool follow);
/* How many loops there are: one where the engine has no threads. */
unsigned wh_engine_loops(const struct wh_engine *engine);
/* True on the engine's own threads, where waiting for the engine would never end. */
bool wh_engine_inside(const struct wh_engine *engine);
/* NULL: the engine has threads. Otherwise it starts none, and neither do its transports: what waits
 * gives turns (util/turns.h), and work that raises no event is a poller. */
struct wh_turns *wh_engine_turns(const struct wh_engine *engine);
/* How near is the engine that has said `other` of itself? By the boot id, which containers of one
 * machine have in common; that they can share memory is known once they have met. */
enum wh_nearness {
	WH_ELSEWHERE, /* another machine */
	WH_SAME_MACHINE, /* this one, in another network namespace: another container, perhaps */
	WH_SAME_NETWORK, /* and in this network namespace, where abstract unix sockets are found */
};
enum wh_nearness wh_engine_nearness(const struct wh_engine *engine, const struct wh_hello *other);
/* For wh_tls_channel_new(), if the setting `tls` is on: what leaves the host is encrypted. NULL: it
 * is not. */
struct wh_tls_context *wh_engine_tls(const struct wh_engine *engine);
/* Can the engine that has said `other` of itself find the unix socket of this one, for the role
 * WH_ROLE_LOCAL? In another container it has to look into the same folder, which is not known yet.
 */
bool wh_engine_is_met(const struct wh_engine *engine, const struct wh_hello *other);
/* What the peer of this name may do with a region of the engine: enum wh_access. entry.access is
 * the union over all peers. Inside the entry, or between the next two. */
uint8_t wh_region_access(const struct wh_region *region, const char *name);
/* Between the two, no region is published and none is unregistered. */
void wh_engine_hold_regions(struct wh_engine *engine);
void wh_engine_release_regions(struct wh_engine *engine);
/* For the statistics: bytes that went through staging buffers; a data connection was made. */
void wh_engine_count_staged(struct wh_engine *engine, uint64_t bytes);
void wh_engine_count_connection(struct wh_engine *engine);
/* Log that a connection with `name` is cut because of damaged bytes, as `text` says, and count it.
 * On any thread. */
void wh_engine_report_damage(struct wh_engine *engine, uint64_t who, const char *name,
			     const char *text);
/* Do the TCP connections to the peer consist of records, or will they when they are opened? */
bool wh_peer_has_records(const struct wh_peer *peer);

/* ---- a peer, which this engine has opened --------------------------------------------------- */

struct wh_engine *wh_peer_engine(const struct wh_peer *peer);
/* The peer's name, for texts. */
const char *wh_peer_name(const struct wh_peer *peer);
/* What the peer has said of itself. Constant once it was reached first, but for `session`. */
const struct wh_hello *wh_peer_welcome(const struct wh_peer *peer);
/* True: the peer is this engine itself. */
bool wh_peer_is_self(const struct wh_peer *peer);
/* What this engine may do with the entry of a region of the peer: enum wh_access, or-ed; with its
 * own regions, by a peer "self", everything. */
uint8_t wh_remote_access(const struct wh_peer *peer, const struct wh_region_entry *entry);
/* What the peer has published: the entries of struct wh_remote_region. */
struct wh_region_table *wh_peer_regions(struct wh_peer *peer);
/* For sending frames of the transport's own. */
struct wh_control *wh_peer_control(struct wh_peer *peer);
/* The state that a transport's peer_open has made; NULL: none, or it is not open for this peer. */
void *wh_peer_transport(const struct wh_peer *peer, enum wh_transport_id id);
/* Plans of batches may have become wrong: later submissions ask is_reachable again. */
void wh_peer_replan(struct wh_peer *peer);
/* Something has changed for which is_reachable returned -EINPROGRESS. Any thread. */
void wh_peer_reach_again(struct wh_peer *peer);

/* What is_reachable may do on this thread now. */
enum wh_planning {
	WH_PLAN_WAITS, /* wait for the peer, about a second: outside of plans */
	WH_PLAN_LINGERS, /* ask it, and wait for its answer for some ms: -EINPROGRESS */
	WH_PLAN_ASKS, /* ask it, if that takes next to no time: -EINPROGRESS */
	WH_PLAN_DECIDES, /* the same; it is not asked again, and what is not ready is not taken */
};
enum wh_planning wh_plan_how(void);

/* May this thread do what takes some time, such as asking the peer? */
static inline bool wh_plan_may_linger(void)
{
	return wh_plan_how() <= WH_PLAN_LINGERS;
}
/* 0 if the peer is connected; else -ECONNRESET or -ESTALE with its text. */
int wh_peer_check(struct wh_peer *peer);
/* `id` no longer works for this peer. Later plans avoid it and say `why`. */
void wh_peer_refuse(struct wh_peer *peer, enum wh_transport_id id, const char *why);
/* The address that the control connection goes to. False: the peer was opened as "self" and has
 * none. On loop 0. */
bool wh_peer_address(const struct wh_peer *peer, struct sockaddr_storage *out);

/* A connection of the transport's role begins with HELLO, WELCOME and PROVE. Make the HELLO;
 * `connection` is its number, for wh_peer_abort(). 0, or -EIO: no random numbers. */
int wh_peer_hello(struct wh_peer *peer, uint16_t role, uint32_t connection,
		  struct wh_greeting *out);
/* Check the proof in the payload of the WELCOME that answers `hello` on `fd`, and make the frame
 * PROVE. 0; -EACCES with a text: another key, or another user; -EPROTO, -EIO. */
int wh_peer_prove(struct wh_peer *peer, uint16_t role, int fd, const struct wh_channel *channel,
		  const struct wh_greeting *hello, const uint8_t *welcome, size_t length,
		  uint8_t out[WH_PROVE_SIZE]);

/* Ask the peer to drop the data connection `number`. `done` runs once: on loop 0, with 0 when the
 * peer has dropped it or an error when the peer is lost; or at once, within wh_peer_abort(), with
 * -ECONNRESET. The caller keeps `abort` until then. */
struct wh_abort {
	struct wh_list link;
	uint32_t number;
	void (*done)(struct wh_abort *abort, int error);
};
void wh_peer_abort(struct wh_peer *peer, struct wh_abort *abort);
/* Do not call `done` any more, if it has not run yet. On loop 0. */
void wh_peer_forget_abort(struct wh_peer *peer, struct wh_abort *abort);

/* ---- a session: another engine that has connected to this one; on loop 0 -------------------- */

struct wh_engine *wh_session_engine(const struct wh_session *session);
uint64_t wh_session_id(const struct wh_session *session);
/* The session with this id, or NULL. */
struct wh_session *wh_session_find(struct wh_engine *engine, uint64_t id);
/* What the initiator has said of itself. Any thread, as the next two. */
const struct wh_hello *wh_session_hello(const struct wh_session *session);
struct wh_quota *wh_session_quota(const struct wh_session *session);
struct wh_control *wh_session_control(struct wh_session *session);
/* The transport's own pointer; NULL at first. Any thread may read it. */
void *wh_session_transport(const struct wh_session *session, enum wh_transport_id id);
void wh_session_set_transport(struct wh_session *session, enum wh_transport_id id, void *state);
/* The slots that the initiator has lent (transport/lent.h), for as long as the session is open;
 * NULL: none. Any thread. */
struct wh_lent *wh_session_lent(const struct wh_session *session);
/* Take them over. 0; -EALREADY: it has lent some before, and these stay the caller's. */
int wh_session_lend(struct wh_session *session, struct wh_lent *lent);
/* What the session may do with a region: enum wh_access. Inside the entry, or between
 * wh_engine_hold_regions() and its end; any thread. */
uint8_t wh_session_access(const struct wh_session *session, const struct wh_region_entry *entry);
/* From now on the initiator can access our memory without our threads: as by a mapping, so that
 * unregistering a region waits for its answer; or by keys, which we invalidate, so that waiting
 * only spares it errors. Any thread. */
void wh_session_touches(struct wh_session *session);
void wh_session_keyed(struct wh_session *session);
/* Between wh_engine_hold_regions() and its end: the session knows a region of ours from now on, and
 * is told when it goes (0 or -ENOMEM); it was refused memory for now, and is told when another
 * region of shared memory comes. */
int wh_session_learn(struct wh_session *session, const struct wh_region_entry *entry);
void wh_session_misses_memory(struct wh_session *session);
/* The session accesses GPU memory through staging buffers: prepare them. Not between
 * wh_engine_hold_regions() and its end. */
void wh_session_stages(struct wh_session *session);
/* For the statistics: a request that moved `bytes` for the session (WH_READ or WH_WRITE). Any
 * thread, until session_close has returned. */
void wh_session_count(struct wh_session *session, uint32_t op, uint64_t bytes);
/* End and free a session; `text` says why, for the log. */
void wh_session_end(struct wh_session *session, int error, const char *text);

/* A notification has come by connection `by` of the transport, not 0: `length` bytes, 0 to
 * WH_NOTIFICATION_MAX, which the peer may change while they are copied. It is delivered, or waits
 * until the inbox has room. 0, or a negative errno, which ends the session. */
int wh_session_notified_by_transport(struct wh_session *session, uint32_t by, uint64_t sequence,
				     uint64_t tag, const void *data, size_t length);
/* Connection `by` is gone; the peer sends again what was not confirmed, so drop what waits. */
void wh_session_notifications_forget(struct wh_session *session, uint32_t by);

/* ---- a batch -------------------------------------------------------------------------------- */

/* The batch's next fragment behind `before` (NULL: the first) that belongs to transport `id` now;
 * WH_TRANSPORT_COUNT: to any. NULL: there are no more. */
struct wh_fragment *wh_batch_fragment(const struct wh_batch *batch, enum wh_transport_id id,
				      const struct wh_fragment *before);
/* True from submit to the end. `batch` is a struct wh_batch; what moves GPU memory does not know
 * more of it. */
bool wh_batch_is_running(const void *batch);
/* False: it ends in a callback, a queue or a stream, so that no thread is expected to wait for it
 * or to poll it. */
bool wh_batch_has_waiter(const struct wh_batch *batch);
/* Does a thread sleep until the batch has ended? It may begin or stop at any time. */
bool wh_batch_is_waited(const struct wh_batch *batch);
/* How many batches to its peer are in flight as the program sees it, this one included: submitted,
 * and the program has not learned that they have ended. Only those of 4 KiB or more count. */
uint32_t wh_batch_unseen(const struct wh_batch *batch);
/* enum wh_priority, as in each of its fragments. */
uint32_t wh_batch_priority(const struct wh_batch *batch);
/* The bytes of its notification, maybe 0 of them; NULL: it has none. And its tag. */
const void *wh_batch_note(const struct wh_batch *batch, size_t *length);
uint64_t wh_batch_tag(const struct wh_batch *batch);
/* The transport's own pointer; NULL at first. The transport's batch_again and batch_closed get it.
 * Writers need a lock of the transport's. */
void *wh_batch_transport(const struct wh_batch *batch, enum wh_transport_id id);
void wh_batch_set_transport(struct wh_batch *batch, enum wh_transport_id id, void *state);

/* ---- estimates ------------------------------------------------------------------------------ */

/* Add to out->duration how long the batch's fragments of transport `id` take, as measured by
 * wh_peer_measure() or by traffic, and set `measured`, `age` and `working_set`. Does not block.
 * False: not known. */
bool wh_probe_estimate(struct wh_peer *peer, enum wh_transport_id id, const struct wh_batch *batch,
		       struct wh_estimate *out);

/* ---- notifications that a transport sends --------------------------------------------------- */

/* The most notifications that a peer sends before they are confirmed. */
#define WH_NOTIFY_UNCONFIRMED 16
#define WH_NOTIFY_UNCONFIRMED_BYTES (256u << 10) /* of all of them */

/* The lock under which notifications are sent and counted. It is taken before a transport's. */
void wh_notify_lock(struct wh_peer *peer);
void wh_notify_unlock(struct wh_peer *peer);
/* How many are sent and not confirmed. Under the lock, as the next two. */
unsigned wh_notify_unconfirmed(const struct wh_peer *peer);
/* May the notification of the batch be sent behind its bytes, before these are known to have
 * arrived? True if none waits, one more may be unconfirmed, and all that are not confirmed, `mine`,
 * went by the transport that asks. */
bool wh_notify_can_send_early(const struct wh_batch *batch, unsigned mine);
/* Count it as sent by transport `id`, and return its sequence number. Confirmed or
 * wh_notify_undelivered() follows.
 */
uint64_t wh_notify_send_early(struct wh_batch *batch, enum wh_transport_id id);
/* The transport's copy was lost. Send it again over the control connection: now, or when the
 * batch's fragments have ended. Under the lock; call wh_notify_resume() after releasing it. */
void wh_notify_undelivered(struct wh_peer *peer, uint64_t sequence);
/* Send what waits, up to WH_NOTIFY_UNCONFIRMED. Without the lock. */
void wh_notify_resume(struct wh_peer *peer);

#endif
