/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WHERRY_ENGINE_H
#define WHERRY_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_engine;
struct wh_peer;
struct wh_queue;
struct wh_batch;

/* As a timeout: wait without a limit. */
#define WH_FOREVER INT64_MAX

/* ---- configuration ------------------------------------------------------------------------ */

/* One setting. Each has an environment variable, which is read once, when an engine is opened;
 * wh_engine_options.config overrides it. */
struct wh_config_row {
	const char *name; /* "connections" */
	const char *environment; /* "WHERRY_CONNECTIONS" */
	const char *fallback; /* the default, as text */
	/* "count", "bytes", "ms", "bool", "text", or "secret", which must not be printed */
	const char *type;
	const char *help; /* one line */
};

/* Row `index` of the table of settings; NULL past the end. The row is constant. Never fails. */
const struct wh_config_row *wh_config_row(size_t index);

/* ---- log --------------------------------------------------------------------------------- */

enum wh_log_level {
	/* What every user should see: a path that is far slower than another one would be, and
	 * why; a WHERRY_... variable that no setting reads. Most of them once for an engine. */
	WH_LOG_WARN = 1,
	WH_LOG_INFO = 2, /* an event: a peer was lost, a connection refused */
	WH_LOG_DEBUG = 3, /* a decision that explains a speed: the window of a region */
};

struct wh_log_record {
	size_t size;
	uint32_t level; /* enum wh_log_level */
	uint32_t reserved;
	/* The part of Wherry that the line comes from: "engine", "peer", "session", "net",
	 * "registry", "gpu", "window", "observer", or a transport. Constant. */
	const char *area;
	const char *text; /* one line without a newline; valid during the call */
};

/* ---- engine ------------------------------------------------------------------------------- */

enum wh_engine_flag {
	/* The engine starts no thread: the program's threads make its progress, when they call
	 * wh_engine_progress() or a function that waits. See wh_engine_progress(). */
	WH_ENGINE_NO_THREADS = 1,
};

struct wh_engine_options {
	size_t size;
	/* The name that other engines see: at most 63 bytes of UTF-8 without control characters.
	 * NULL: "<host>.<pid>". */
	const char *name;
	/* Where to listen: "127.0.0.1:0", "[::1]:7000", "0.0.0.0:7000"; port 0 means any free one.
	 * An address that other hosts can reach needs a cluster key (setting `keyfile`).
	 * NULL: the setting `listen`, by default "127.0.0.1:0". "none": no listener; the engine
	 * can reach others, but others cannot reach it. */
	const char *listen;
	/* Settings as "name=value" strings, ended by a NULL; NULL: none. They override the
	 * environment. Read during wh_engine_open() only. */
	const char *const *config;
	/* Receives log lines. NULL: the library is silent, unless the setting `log` (WHERRY_LOG)
	 * asks for lines on stderr. Called from any thread, including the engine's own. Must not
	 * call Wherry. */
	void (*log)(void *arg, const struct wh_log_record *record);
	void *log_arg;
	/* The registry in which engines find each other by name: "http://HOST:PORT" (wherry
	 * registry, or a server with the same three verbs), "etcd://..." or "redis://...", see
	 * docs/registries.md. NULL: the setting `registry`, by default "p2p", which means none. An
	 * engine that listens and has a name in these options is registered until it is closed;
	 * if its process dies, its entry lasts for the setting `lease`. */
	const char *registry;
	/* Up to which level `log` is called: enum wh_log_level; 0: WH_LOG_INFO. The setting `log`
	 * can raise it. */
	uint32_t log_level;
	uint32_t flags; /* enum wh_engine_flag, or-ed */
};

/* Open an engine: its listener, its progress threads, its transports. One per process is usually
 * enough. options may be NULL. Blocks on the network only to register a name: until the registry
 * has answered, at most the setting `timeout`; if another engine has the name, until that one's
 * lease must have expired, or not at all if its process is seen to have ended on this host.
 * 0, or -EINVAL (an option or a setting), -E2BIG, -EADDRINUSE, -EADDRNOTAVAIL, -EMFILE, -ENOMEM,
 * -EACCES (others can read the key file; listening beyond loopback without a cluster key), -ELIBACC
 * (OpenSSL, which proves the key, is missing). With a registry also -EEXIST (a live engine has the
 * name), -ELIBACC (a library for the registry is missing), -ECONNREFUSED, -EHOSTUNREACH,
 * -ETIMEDOUT, -ECONNRESET, -EACCES (user, password, certificate), -EPROTO. If the registry
 * disappears later, the engine continues and tries it again. With WH_ENGINE_NO_THREADS also
 * -EOPNOTSUPP: it cannot use a registry. */
int wh_engine_open(const struct wh_engine_options *options, struct wh_engine **out);

/* Close the engine. First close its peers, free its batches, queues and memory, and unregister its
 * regions. Engines that are connected to it see it leave. Blocks until its threads have ended, and
 * until GPUs have ended what they do for it.
 *
 * A file system that does not answer is waited for as long as the setting `timeout`, and again as
 * long where a peer's bytes are being written. Then a line of the log names a file, the call
 * returns 0, and a thread of the library waits on: until the file system answers, the files that
 * hang stay open, bytes that a peer has sent before may still be written to them, and the engine's
 * threads and memory stay, so the library must not be unloaded. They touch no memory of the
 * program's and do not call its log. The program may exit meanwhile. Regions of files that
 * wh_region_unregister() has refused with -EBUSY for a peer's request are not open any more; this
 * call frees them.
 *
 * A batch of this engine that waits for a file of its own cannot be freed, because the kernel may
 * still read or write the batch's memory, and keeps its peer open, so this call is -EBUSY. With
 * WH_ENGINE_NO_THREADS this call waits for file systems without a bound.
 * 0, or -EBUSY (the text says what is still open). */
int wh_engine_close(struct wh_engine *engine);

/* The URL at which other engines reach this one, "wherry://127.0.0.1:40123"; "" if it does not
 * listen. Valid until the engine is closed. */
const char *wh_engine_url(const struct wh_engine *engine);

/* The engine's name. Valid until the engine is closed. */
const char *wh_engine_name(const struct wh_engine *engine);

/* The engine's epoch: a random number, not zero, drawn when the engine is opened. It tells this
 * engine from a later one at the same address. */
uint64_t wh_engine_epoch(const struct wh_engine *engine);

/* ---- progress without threads --------------------------------------------------------------- */

/* Make progress of an engine that was opened with WH_ENGINE_NO_THREADS. Serves what is due: data
 * and control connections, copies, GPU jobs, heartbeats, peers' requests, callbacks. If nothing is
 * due, waits up to `timeout` ns (0: does not wait) until something is. A call that finds a large
 * copy moves about a MiB of it and returns; call again.
 *
 * Functions that wait drive the engine themselves while they wait: wh_peer_open(), _find(),
 * _lookup(), _list(), _unpack_key(), _prepare(), _measure() and _close(), wh_batch_wait_for(),
 * _cancel() and _free(), wh_queue_take(), wh_engine_notification(), wh_region_unregister() and
 * wh_engine_close(). wh_batch_test(), and wh_queue_take() and wh_engine_notification() with a
 * timeout of 0, serve once what is due if they have nothing to report yet. All other functions do
 * not: wh_batch_submit() starts a batch, and what follows needs progress. Callbacks run on the
 * thread that calls one of these functions, save wh_peer_close(), wh_region_unregister() and
 * wh_engine_close().
 *
 * Several threads may drive one engine: one of them serves at a time, the others sleep until it has
 * served something, or take over.
 *
 * While no thread drives the engine, its peers are not served: reads of and writes to its memory
 * stand still, unless they go by shared memory, RDMA or a GPU; peers' wh_region_unregister() of
 * memory that this engine has mapped waits, and fails with -EBUSY; after the setting `timeout` of
 * the peers (5 s by default) they take this engine for lost, and connect again when it answers.
 *
 * 1: something was served; 0: nothing was due in that time; -EOPNOTSUPP: the engine has threads;
 * -EDEADLK: called from a callback; -EINVAL. */
int wh_engine_progress(struct wh_engine *engine, int64_t timeout);

/* A file descriptor that is readable when wh_engine_progress() would have something to do, timers
 * included, for poll() and epoll. The engine owns it: do not read or close it. Call
 * wh_engine_progress(engine, 0) when it is readable. -EOPNOTSUPP: the engine has threads. */
int wh_engine_fd(const struct wh_engine *engine);

/* ---- peers -------------------------------------------------------------------------------- */

struct wh_peer_options {
	size_t size;
	/* How long to try to connect, in ns; 0: 5 s, or the setting `timeout` if that is longer. */
	int64_t timeout;
	/* A queue: the call returns without waiting, and the queue receives one completion with
	 * `peer` when the peer is connected, or cannot be reached. NULL: the call waits. */
	struct wh_queue *queue;
	uint64_t user; /* returned in the completion */
};

/* Connect to another engine and learn its published regions. `url` is "wherry://HOST:PORT" or
 * "HOST:PORT" (a name, IPv4 or [IPv6]), or "self" for this engine itself; if this engine has a
 * registry, also "wherry://NAME" or "NAME". options may be NULL. Blocks until connected. Each call
 * makes a separate peer with its own connections.
 * 0, or -EINVAL (a malformed URL), -ECONNREFUSED, -ETIMEDOUT, -EHOSTUNREACH, -ECONNABORTED (the
 * other side closed the connection during the handshake), -EPROTO (it is not Wherry),
 * -EPROTONOSUPPORT (another version of the protocol), -EDEADLK (called from a callback); with a
 * name also -ENOENT (no engine has it), -ESTALE (another engine answers at its address), -EHOSTDOWN
 * (the registry did not answer a moment ago), and the registry's errors as for wh_engine_open().
 *
 * With options.queue the call does not block, may be called from a callback, and returns 0, or
 * -EINVAL (arguments), -E2BIG, -ENOMEM; all other errors come with the completion, and
 * wh_peer_status() has their text. Another thread may take the completion before this call returns.
 * Until it comes the peer can be closed, and batches for it can be made, but not filled. Names are
 * looked up on a thread of their own, which ends with the look-up; in an engine without threads the
 * call looks the name of a host up itself, and blocks meanwhile. */
int wh_peer_open(struct wh_engine *engine, const char *url, const struct wh_peer_options *options,
		 struct wh_peer **out);

/* Close the peer and its connections. Waits while its name is being looked up, and until GPUs that
 * map its memory have ended what they do. 0, or -EBUSY (it still has batches), -EDEADLK (called
 * from a callback). */
int wh_peer_close(struct wh_peer *peer);

enum wh_peer_state {
	WH_PEER_CONNECTING = 0, /* opened with a queue, and not reached yet */
	WH_PEER_CONNECTED = 1,
	WH_PEER_LOST = 2, /* the connection broke; the engine tries to connect again */
	WH_PEER_STALE = 3, /* another engine (epoch) answers at its address: open a new peer */
	WH_PEER_UNREACHABLE = 4, /* opened with a queue, and could not be reached: close it */
};

/* The name of a peer's state: "connecting", "connected", "lost", "stale", "unreachable"; "unknown"
 * for any other number. A constant string; never fails. */
const char *wh_peer_state_name(uint32_t state);

/* Can the peer be used? 0: it is connected; -EINPROGRESS: not yet; -ECONNRESET: it was, is lost,
 * and the engine tries to connect again; all others are final, so close it: -ESTALE: it was
 * restarted; else the error with which opening it failed, which is never -ECONNRESET.
 * wh_error_text() has the reason. Does not block. */
int wh_peer_status(struct wh_peer *peer);

struct wh_peer_info {
	size_t size; /* set by the caller */
	uint64_t epoch;
	uint32_t state; /* enum wh_peer_state */
	uint32_t regions; /* of the peer that this engine knows now; of "self" all */
	char name[64]; /* of the engine; before it was reached, what was opened */
	char address[64]; /* "127.0.0.1:40123", or "self" */
};

/* Describe the peer as it is known now. Does not block. 0, or -EINVAL, -E2BIG. */
int wh_peer_info(struct wh_peer *peer, struct wh_peer_info *info);

/* ---- completion queues -------------------------------------------------------------------- */

struct wh_completion {
	struct wh_batch *batch; /* NULL: a peer was opened */
	struct wh_peer *peer; /* NULL: a batch has completed */
	uint64_t user; /* wh_batch_options.user or wh_peer_options.user */
	int32_t status; /* 0, or the negative errno: of wh_batch_status() or wh_peer_status() */
	uint32_t reserved[3]; /* 0 */
};

/* Create a queue, which receives the completions of many batches. 0, or -EMFILE, -ENOMEM. */
int wh_queue_new(struct wh_engine *engine, struct wh_queue **out);

/* Free the queue. 0, or -EBUSY (batches or peers that report to it exist). */
int wh_queue_free(struct wh_queue *queue);

/* Take at most `max` completions. Waits up to `timeout` ns for the first one (0: does not wait).
 * Returns the number taken (0: none in that time), or -EINVAL, -EDEADLK (timeout > 0 in a
 * callback). Taking its completion replaces waiting for the batch, which may then be freed or
 * submitted again. */
int wh_queue_take(struct wh_queue *queue, struct wh_completion *out, size_t max, int64_t timeout);

/* A file descriptor that is readable while completions are waiting, for poll() and epoll. The
 * queue owns it: do not read or close it. */
int wh_queue_fd(const struct wh_queue *queue);

/* ---- notifications ------------------------------------------------------------------------ */

/* The largest notification, in bytes. */
#define WH_NOTIFICATION_MAX 65536

/* A notification that has arrived, and the memory that takes its bytes. */
struct wh_notification {
	size_t size; /* set by the caller, as the next two */
	void *buffer; /* for the bytes; the caller's; NULL if capacity is 0 */
	uint64_t capacity; /* bytes of `buffer` */
	uint64_t length; /* bytes of the notification, 0 to WH_NOTIFICATION_MAX */
	uint64_t tag; /* as given to wh_batch_notify() */
	uint64_t epoch; /* of the sending engine */
	char sender[64]; /* name of the sending engine */
	/* Where it came from, for limits that a sender cannot evade by another name and epoch: one
	 * number for each IPv4 address and each IPv6 /64; 0: this engine itself, or unknown. */
	uint64_t source;
	uint64_t reserved[2]; /* 0 */
};

/* The notifications that a call takes: those that match all of its members. */
struct wh_notification_filter {
	size_t size;
	const char *sender; /* name of the sending engine; NULL: any */
	uint64_t tag; /* the bits of the tag that tag_mask has must be as in `tag` */
	uint64_t tag_mask; /* 0: any tag; UINT64_MAX: exactly `tag` */
	uint64_t reserved[2]; /* 0 */
};

/* Take the oldest notification that the filter matches (NULL: any), of those that peers have sent
 * to this engine with wh_batch_notify(). All bytes of the batch that carried it are visible here.
 * Its bytes are copied to out->buffer. Notifications of one peer are taken in the order in which
 * they were sent, among those that the filter matches. Waits up to `timeout` ns (0: does not wait).
 * Several threads may wait at once, with the same or different filters: each notification goes to
 * one of them.
 *
 * The engine keeps at most the settings `notifications` and `notification_bytes`, and always the
 * oldest of each peer. Further ones wait at their senders, whose batches do not complete meanwhile.
 * So a program that leaves some of a peer's notifications untaken may not see later ones of that
 * peer, but it sees those of other peers.
 * 0, or -EAGAIN (none in that time), -EMSGSIZE (the buffer is too small: `out` says of which
 * notification, with its length, and the next call finds it again), -EINVAL, -E2BIG, -EDEADLK
 * (timeout > 0 in a callback). */
int wh_engine_notification(struct wh_engine *engine, const struct wh_notification_filter *filter,
			   struct wh_notification *out, int64_t timeout);

/* A file descriptor that is readable while notifications are waiting. The engine owns it: do not
 * read or close it. */
int wh_engine_notification_fd(const struct wh_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
