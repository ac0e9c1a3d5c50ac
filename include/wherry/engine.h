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

/* Wait for ever, where a function takes a timeout. */
#define WH_FOREVER INT64_MAX

/* ---- configuration ------------------------------------------------------------------------ */

/* One knob. Every knob has an environment variable, read once, when an engine is opened;
 * wh_engine_options.config overrides it. */
struct wh_config_row {
	const char *name; /* "connections" */
	const char *environment; /* "WHERRY_CONNECTIONS" */
	const char *fallback; /* its default, as text */
	/* "count", "bytes", "ms", "bool", "text", "secret": not to be printed */
	const char *type;
	const char *help; /* one line */
};

/* Row number `index` of the table of knobs, or NULL past the end. Constant; never fails. */
const struct wh_config_row *wh_config_row(size_t index);

/* ---- engine ------------------------------------------------------------------------------- */

struct wh_engine_options {
	size_t size;
	/* How other engines see this one, at most 63 bytes of UTF-8 without control characters;
	 * NULL: "<host>.<pid>". */
	const char *name;
	/* Where to listen: "127.0.0.1:0", "[::1]:7000", "0.0.0.0:7000"; port 0 takes a free one.
	 * An address that is not of this host alone takes a cluster key: the knob `keyfile`.
	 * NULL: the knob `listen`, by default "127.0.0.1:0". "none": no listener; such an engine
	 * can reach others but not be reached. */
	const char *listen;
	/* Knobs set by the caller, "name=value" strings ended by a NULL; NULL: none. They go before
	 * the environment. Read during wh_engine_open() only. */
	const char *const *config;
	/* Called with one line for each thing worth telling (a peer lost, a route refused); NULL:
	 * silence. What a user should see in any case starts with "warning: " (a variable
	 * WHERRY_... that no setting reads, the lease of an earlier engine of this name that is
	 * waited for). Called from any thread, also the engine's own; must not call into Wherry. */
	void (*log)(void *arg, const char *line);
	void *log_arg;
	/* The registry that engines find each other in by name: "http://HOST:PORT" (wherry
	 * registry, or a server with the same three verbs), "etcd://...", "redis://...", as
	 * docs/registries.md says; NULL: the knob `registry`, by default "p2p", which is none. An
	 * engine that listens and was given a name is registered under it as long as it lives, and
	 * for the knob `lease` after it has died. */
	const char *registry;
};

/* Open an engine: its listener, its progress threads, its transports. A process needs one as a
 * rule. options may be NULL. Does not block on the network, unless it is registered: then until
 * the registry has answered, at most the knob `timeout`, and where the name belongs to another
 * engine until that one's lease must have run out.
 * 0, or -EINVAL (an option or a knob), -E2BIG, -EADDRINUSE, -EADDRNOTAVAIL, -EMFILE, -ENOMEM,
 * -EACCES (a key file that others can read; more than loopback without a cluster key), -ELIBACC (no
 * OpenSSL to prove the key with). With a registry also -EEXIST (a live engine has the name),
 * -ELIBACC (a library for it is not there), -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -ECONNRESET,
 * -EACCES (user, password, certificate), -EPROTO. A registry that goes away later disturbs nothing:
 * it is tried again. */
int wh_engine_open(const struct wh_engine_options *options, struct wh_engine **out);

/* Close the engine. Everything opened from it must be gone before: peers closed, batches and
 * queues freed, regions unregistered, memory freed. Engines connected to this one see it leave.
 * Blocks until its threads have ended. 0, or -EBUSY (the text says what is still open). */
int wh_engine_close(struct wh_engine *engine);

/* The address under which other engines reach this one, "wherry://127.0.0.1:40123"; "" if it
 * does not listen. Good as long as the engine. */
const char *wh_engine_url(const struct wh_engine *engine);

/* The engine's name; good as long as the engine. */
const char *wh_engine_name(const struct wh_engine *engine);

/* The engine's epoch: a random number, not zero, drawn anew whenever an engine is opened. */
uint64_t wh_engine_epoch(const struct wh_engine *engine);

/* ---- peers -------------------------------------------------------------------------------- */

struct wh_peer_options {
	size_t size;
	/* How long to try to connect, in ns; 0: 5 s. */
	int64_t timeout;
};

/* Connect to another engine and learn its published regions. `url` is "wherry://HOST:PORT" or
 * "HOST:PORT" (names, IPv4, [IPv6]) or "self" for this engine itself; where this engine has a
 * registry also "wherry://NAME" or "NAME". options may be NULL. Blocks until connected. Safe to
 * call from several threads; each call gives a peer of its own, with connections of its own. 0, or
 * -EINVAL (a malformed URL), -ECONNREFUSED, -ETIMEDOUT, -EHOSTUNREACH, -EPROTO (something that is
 * not Wherry answers), -EPROTONOSUPPORT (another version of the protocol), -EDEADLK (called from a
 * callback); with a name also -ENOENT (no engine has it), -ESTALE (another engine answers at its
 * address), -EHOSTDOWN (the registry did not answer a moment ago) and what a registry may say, as
 * for wh_engine_open(). */
int wh_peer_open(struct wh_engine *engine, const char *url, const struct wh_peer_options *options,
		 struct wh_peer **out);

/* Close the connections. -EBUSY while batches of this peer exist; -EDEADLK from a callback. */
int wh_peer_close(struct wh_peer *peer);

enum wh_peer_state {
	WH_PEER_CONNECTED = 1,
	WH_PEER_LOST = 2, /* the connection broke; the engine tries to reach it again */
	WH_PEER_STALE = 3, /* it came back as another engine (a new epoch): open a new peer */
};

struct wh_peer_info {
	size_t size; /* set by the caller */
	uint64_t epoch;
	uint32_t state; /* enum wh_peer_state */
	uint32_t regions; /* how many regions it publishes now */
	char name[64];
	char address[64]; /* "127.0.0.1:40123", or "self" */
};

/* What is known of the peer now. Does not block. 0, -EINVAL, -E2BIG. */
int wh_peer_info(struct wh_peer *peer, struct wh_peer_info *info);

/* ---- completion queues -------------------------------------------------------------------- */

struct wh_completion {
	struct wh_batch *batch;
	uint64_t user; /* wh_batch_options.user of that batch */
	int32_t status; /* 0, or the negative errno of the batch's first failure */
	uint32_t reserved;
};

/* A place where the completions of many batches arrive. 0, -EMFILE, -ENOMEM. */
int wh_queue_new(struct wh_engine *engine, struct wh_queue **out);

/* -EBUSY while batches that report here exist. */
int wh_queue_free(struct wh_queue *queue);

/* Take at most `max` completions. Waits up to `timeout` ns for the first (0: do not wait).
 * Returns how many were taken (0: none in that time) or -EINVAL, -EDEADLK (timeout > 0 in a
 * callback). A completion taken here counts as the batch's wait: it may be freed or submitted
 * again. */
int wh_queue_take(struct wh_queue *queue, struct wh_completion *out, size_t max, int64_t timeout);

/* A file descriptor that is readable while completions are waiting, for poll() and epoll. Owned
 * by the queue: do not read or close it. */
int wh_queue_fd(const struct wh_queue *queue);

/* ---- notifications ------------------------------------------------------------------------ */

/* The most bytes in a notification. */
#define WH_NOTIFICATION_MAX 4096

struct wh_notification {
	uint64_t epoch; /* the sender's */
	uint64_t length; /* bytes used in data */
	char sender[64]; /* its name */
	unsigned char data[WH_NOTIFICATION_MAX];
};

/* Take the oldest notification sent to this engine (wh_batch_notify() of a peer). When it arrives
 * the bytes of the batch that carried it are visible here. Waits up to `timeout` ns (0: do not
 * wait). At most the knob `notifications` are kept; a sender beyond that waits for its turn.
 * 0, or -EAGAIN (none in that time), -EDEADLK (timeout > 0 in a callback). */
int wh_engine_notification(struct wh_engine *engine, struct wh_notification *out, int64_t timeout);

/* A file descriptor that is readable while notifications are waiting. Owned by the engine. */
int wh_engine_notification_fd(const struct wh_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
