/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Talking to Mooncake's transfer engines over their TCP protocol: a server that they read from and
 * write to, and a client. Not in libwherry.so, because it needs Jansson.
 *
 * Mooncake's protocol has neither keys nor access rights. The server checks every request against
 * the published memory before a byte moves, but anyone who can reach its ports can read and write
 * that memory.
 */
#ifndef WH_COMPAT_MOONCAKE_MOONCAKE_H
#define WH_COMPAT_MOONCAKE_MOONCAKE_H

#include <pthread.h>
#include <sys/socket.h>

#include "compat/mooncake/wire.h"

/* ---- the server ---------------------------------------------------------------------------- */

/* Published memory. */
struct wh_mooncake_memory {
	uint64_t address, length;
	bool writable;
	bool staged; /* the CPU cannot access it: copy() moves its bytes */
	char name[64];
	void *arg; /* for copy(); the server does not use it */
};

struct wh_mooncake_server_options {
	const char *listen; /* the control port: "127.0.0.1:0" */
	const char *name; /* the segment's name; NULL: the address that the peer connected to */
	/* The caller's; valid until wh_mooncake_update() replaces it or the server stops. */
	const struct wh_mooncake_memory *memories;
	size_t count;
	/* URL and epoch of the Wherry engine that offers the same memory; NULL: none. */
	const char *wherry;
	uint64_t epoch;

	/* The callbacks run on the server's thread. */

	/* Staged memory moves through `staging`, `staging_size` bytes: copy() moves `length` bytes
	 * between the start of `staging` and `offset` in the memory. 0 or a negative errno. */
	void *staging;
	size_t staging_size;
	int (*copy)(void *arg, const struct wh_mooncake_memory *memory, uint64_t offset,
		    size_t length, bool to_memory);
	/* A notification arrived. 0 confirms it; a negative errno refuses it, and the sender sees
	 * that. NULL: confirm all. */
	int (*notified)(void *arg, const char *name, const char *message);
	void (*log)(void *arg, const char *line); /* may be NULL */
	void *arg;
};

struct wh_mooncake_server;

/* Listen and serve on a new thread. Names are copied. 0, -EINVAL, -EADDRINUSE, -EADDRNOTAVAIL,
 * -EACCES, -EMFILE, -ENOMEM. */
int wh_mooncake_serve(const struct wh_mooncake_server_options *options,
		      struct wh_mooncake_server **out);

/* Replace the published memory and the staging memory. When it returns, the server no longer
 * touches memory that has left the list: it has closed connections whose request was using it.
 * Blocks until the server's thread has done so. */
void wh_mooncake_update(struct wh_mooncake_server *server,
			const struct wh_mooncake_memory *memories, size_t count, void *staging);

/* Stop and free the server; it touches no memory afterwards. NULL is allowed. */
void wh_mooncake_stop(struct wh_mooncake_server *server);

/* The addresses of its control port and its data port: "127.0.0.1:40123". */
const char *wh_mooncake_control(const struct wh_mooncake_server *server);
const char *wh_mooncake_data(const struct wh_mooncake_server *server);

/* The segment as JSON, as a peer that connected to `host` receives it; malloc()ed. NULL: no memory,
 * or a name that is not UTF-8. */
char *wh_mooncake_describe(const struct wh_mooncake_server *server, const char *host);

/* ---- sockets ------------------------------------------------------------------------------- */

/* Close a socket, also for children of fork() that hold copies of it. */
void wh_mooncake_socket_close(int fd);
/* Set the options of a connection with `peer`, at any time. */
void wh_mooncake_socket_tune(int fd, const struct sockaddr_storage *peer);

/* ---- the client ---------------------------------------------------------------------------- */

/* Fetch the segment of the engine at `address` (HOST:PORT). `timeout`: ns, for the whole call.
 * 0, -EINVAL, -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -ECONNRESET, -EPROTO, -EPROTONOSUPPORT,
 * -ENOMEM. */
int wh_mooncake_fetch(const char *address, int64_t timeout, struct wh_mooncake_segment *out);

/* Send a notification to the engine at `address` and wait for its confirmation. 0, -EINVAL (not
 * UTF-8), or as above. */
int wh_mooncake_notify(const char *address, const char *name, const char *message, int64_t timeout);

/* Does an engine answer at `address`? 0, or as above; -ECONNREFUSED: the host answers, and no
 * process listens there. */
int wh_mooncake_probe(const char *address, int64_t timeout);

/* A data connection of the client. One request at a time, or up to WH_MOONCAKE_MOVES together. */
struct wh_mooncake_connection {
	char address[WH_MOONCAKE_NAME_MAX + 10];
	unsigned version;
	int64_t timeout; /* ns without progress, after which a request fails */
	int fd; /* -1: not connected */

	/* Its thread, if wh_mooncake_connection_open() started one, and that thread's request. */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool ready, started, stop;
	bool requested, done; /* under the lock */
	bool write;
	void *buffer;
	uint64_t remote, length;
	int error;
	char text[WH_TEXT_MAX];
};

/* Prepare a connection without a thread, for wh_mooncake_connection_move(). `host` is used if the
 * segment names none. It connects at its first request. 0 or -EPROTO (no data port). */
int wh_mooncake_connection_prepare(struct wh_mooncake_connection *connection,
				   const struct wh_mooncake_segment *segment, const char *host,
				   int64_t timeout);
/* Move bytes on the calling thread. 0: they are at their target; -ECANCELED: the connection was
 * aborted; else a negative errno with its text. */
int wh_mooncake_connection_move(struct wh_mooncake_connection *connection, bool write, void *buffer,
				uint64_t remote, uint64_t length);
/* Make several requests on the calling thread: send all, then wait for the answers, spinning for
 * some us. Returns how many are done, counted from the first. *lost: how many behind these have
 * failed with *error and its text: writes whose bytes the peer may still take, so a repetition that
 * succeeds would not be the last of them. Repeat the others with wh_mooncake_connection_move(),
 * which returns their errors. Writes need version 2 of the protocol, which confirms them. */
struct wh_mooncake_move {
	void *buffer;
	uint64_t remote, length;
};
#define WH_MOONCAKE_MOVES 8u /* requests at once */
unsigned wh_mooncake_connection_several(struct wh_mooncake_connection *connection, bool write,
					const struct wh_mooncake_move *moves, unsigned count,
					unsigned *lost, int *error);
/* End the current request soon, and refuse later ones. From any thread. */
void wh_mooncake_connection_abort(struct wh_mooncake_connection *connection);

/* As wh_mooncake_connection_prepare(), and start a thread for wh_mooncake_connection_start(). */
int wh_mooncake_connection_open(struct wh_mooncake_connection *connection,
				const struct wh_mooncake_segment *segment, const char *host,
				int64_t timeout);

/* Start to move `length` bytes between the buffer and the remote address. The connection uses the
 * buffer until wh_mooncake_connection_wait() sets *ended. One request at a time. */
void wh_mooncake_connection_start(struct wh_mooncake_connection *connection, bool write,
				  void *buffer, uint64_t remote, uint64_t length);

/* 0: the bytes are at their target. -ETIMEDOUT with *ended false: not finished within `timeout` ns.
 * Else the request failed; its text is in connection->text. */
int wh_mooncake_connection_wait(struct wh_mooncake_connection *connection, int64_t timeout,
				bool *ended);

/* Abort the current request and free everything. All zero: never opened, nothing happens. */
void wh_mooncake_connection_close(struct wh_mooncake_connection *connection);

#endif
