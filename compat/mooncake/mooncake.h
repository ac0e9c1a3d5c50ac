/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's transfer engine on the other side: a server that programs made for it read from and
 * write to, and a client of theirs. Not in libwherry.so: it needs Jansson.
 *
 * Mooncake's protocol knows no keys and no rights. What the server takes from a peer is checked
 * against what was published before a byte moves, and whoever reaches its ports has that.
 */
#ifndef WH_COMPAT_MOONCAKE_MOONCAKE_H
#define WH_COMPAT_MOONCAKE_MOONCAKE_H

#include <pthread.h>
#include <sys/socket.h>

#include "compat/mooncake/wire.h"

/* ---- the server ---------------------------------------------------------------------------- */

/* Memory that is published. */
struct wh_mooncake_memory {
	uint64_t address, length;
	bool writable;
	bool staged; /* the CPU cannot touch it: it is copied */
	char name[64];
	void *arg; /* the owner's, for copy() */
};

struct wh_mooncake_server_options {
	const char *listen; /* the control port: "127.0.0.1:0" */
	const char *name; /* the segment's; NULL: the address that a peer has connected to */
	/* good as long as the server, or until an update */
	const struct wh_mooncake_memory *memories;
	size_t count;
	/* Under which URL the same memory is reached by Wherry's engines, and the epoch; NULL: not.
	 */
	const char *wherry;
	uint64_t epoch;

	/* The callbacks are called on the server's thread. */

	/* What is staged goes by way of `staging`, `staging_size` bytes: copy `length` of them to,
	 * or from, `offset` in the memory. 0 or a negative errno. */
	void *staging;
	size_t staging_size;
	int (*copy)(void *arg, const struct wh_mooncake_memory *memory, uint64_t offset,
		    size_t length, bool to_memory);
	/* What is not 0 is not confirmed, and the sender learns of it. May be NULL. */
	int (*notified)(void *arg, const char *name, const char *message);
	void (*log)(void *arg, const char *line); /* may be NULL */
	void *arg;
};

struct wh_mooncake_server;

/* Listen and serve, on a thread of its own. 0, -EINVAL, -EADDRINUSE, -EADDRNOTAVAIL, -EACCES,
 * -EMFILE, -ENOMEM. */
int wh_mooncake_serve(const struct wh_mooncake_server_options *options,
		      struct wh_mooncake_server **out);

/* Publish these memories from now on, with this memory to stage in. After it returns what was
 * published before and is not any more is not touched: who was in the middle of it is cut off. */
void wh_mooncake_update(struct wh_mooncake_server *server,
			const struct wh_mooncake_memory *memories, size_t count, void *staging);

/* After it returns no memory is touched. NULL is fine. */
void wh_mooncake_stop(struct wh_mooncake_server *server);

/* Where it listens: "127.0.0.1:40123". */
const char *wh_mooncake_control(const struct wh_mooncake_server *server);
const char *wh_mooncake_data(const struct wh_mooncake_server *server);

/* What a peer that has connected to `host` is told; malloc()ed, NULL: no memory. */
char *wh_mooncake_describe(const struct wh_mooncake_server *server, const char *host);

/* ---- sockets ------------------------------------------------------------------------------- */

/* For a connection with that peer, before bytes move or after. */
void wh_mooncake_socket_tune(int fd, const struct sockaddr_storage *peer);

/* ---- the client ---------------------------------------------------------------------------- */

/* Ask the engine at `address` (HOST:PORT) what it publishes. `timeout`: ns for all of it.
 * 0, -EINVAL, -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -ECONNRESET, -EPROTO, -EPROTONOSUPPORT,
 * -ENOMEM. */
int wh_mooncake_fetch(const char *address, int64_t timeout, struct wh_mooncake_segment *out);

/* Send a notification to the engine at `address`, and wait until it is confirmed. 0, -EINVAL (not
 * UTF-8), or as above. */
int wh_mooncake_notify(const char *address, const char *name, const char *message, int64_t timeout);

/* Does an engine answer at `address`? 0, or as above; -ECONNREFUSED: the host does, and there is
 * none. */
int wh_mooncake_probe(const char *address, int64_t timeout);

/* One data connection, which does one thing at a time. */
struct wh_mooncake_connection {
	char address[WH_MOONCAKE_NAME_MAX + 10];
	unsigned version;
	int64_t timeout; /* ns without a byte that moves */
	int fd; /* -1: not connected */

	/* The thread that does it. */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool ready, started, stop;
	bool asked, done; /* under the lock */
	bool write;
	void *buffer;
	uint64_t remote, length;
	int error;
	char text[WH_TEXT_MAX];
};

/* A lane without a thread, for wh_mooncake_connection_move(). `host`: where the segment itself says
 * none. Connects when it is first used. 0 or -errno. */
int wh_mooncake_connection_prepare(struct wh_mooncake_connection *lane,
				   const struct wh_mooncake_segment *segment, const char *host,
				   int64_t timeout);
/* Move bytes on the calling thread. 0: they are at their target; -ECANCELED: the lane was cut. */
int wh_mooncake_connection_move(struct wh_mooncake_connection *lane, bool write, void *buffer,
				uint64_t remote, uint64_t length);
/* Several at once, on the calling thread, which spins for moments: all are asked for before the
 * first is waited for. How many of them, from the first on, are done; what becomes of the others is
 * for wh_mooncake_connection_move() to say. Writes over version 2 alone: nobody confirms others. */
struct wh_mooncake_move {
	void *buffer;
	uint64_t remote, length;
};
#define WH_MOONCAKE_MOVES 8u /* at most */
unsigned wh_mooncake_connection_several(struct wh_mooncake_connection *lane, bool write,
					const struct wh_mooncake_move *moves, unsigned count);
/* Whatever it moves ends soon, and nothing will be moved any more. From any thread. */
void wh_mooncake_connection_abort(struct wh_mooncake_connection *lane);

/* The same with a thread of its own. 0 or -errno. */
int wh_mooncake_connection_open(struct wh_mooncake_connection *lane,
				const struct wh_mooncake_segment *segment, const char *host,
				int64_t timeout);

/* Start to move `length` bytes between the buffer and the remote address. The buffer is left alone
 * again when wh_mooncake_connection_wait() has said how it ended. One at a time. */
void wh_mooncake_connection_start(struct wh_mooncake_connection *lane, bool write, void *buffer,
				  uint64_t remote, uint64_t length);

/* 0: done, the bytes are at their target; -ETIMEDOUT and *ended false: not yet; else why it failed,
 * in lane.text. */
int wh_mooncake_connection_wait(struct wh_mooncake_connection *lane, int64_t timeout, bool *ended);

/* Cuts what is still moving. A lane that was not opened, all zero, is left alone. */
void wh_mooncake_connection_close(struct wh_mooncake_connection *lane);

#endif
