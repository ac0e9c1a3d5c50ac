/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's transfer engine on the other side: a server that programs made for it read from and write
 * to, and a client of theirs. Not in libwherry.so: it needs Jansson.
 *
 * Mooncake's protocol knows no keys and no rights. What the server takes from a peer is checked against
 * what was published before a byte moves, and whoever reaches its ports has that.
 */
#ifndef WH_MOONCAKE_MOONCAKE_H
#define WH_MOONCAKE_MOONCAKE_H

#include <pthread.h>

#include "mooncake/wire.h"

/* ---- the server ---------------------------------------------------------------------------- */

/* Memory that is published. */
struct wh_mooncake_memory {
	uint64_t address, length;
	bool writable;
	bool staged; /* the CPU cannot touch it: it is copied */
	char name[64];
};

struct wh_mooncake_server_options {
	const char *listen; /* the control port: "127.0.0.1:0" */
	const char *name;   /* the segment's; NULL: the address that a peer has connected to */
	const struct wh_mooncake_memory *memories; /* good as long as the server */
	size_t count;

	/* The callbacks are called on the server's thread. */

	/* What is staged goes by way of `staging`, `staging_size` bytes: copy `length` of them to, or
	 * from, `offset` in the memory. 0 or a negative errno. */
	void *staging;
	size_t staging_size;
	int (*copy)(void *arg, const struct wh_mooncake_memory *memory, uint64_t offset,
		    size_t length, bool to_memory);
	void (*notified)(void *arg, const char *name, const char *message); /* may be NULL */
	void (*log)(void *arg, const char *line);                            /* may be NULL */
	void *arg;
};

struct wh_mooncake_server;

/* Listen and serve, on a thread of its own. 0, -EINVAL, -EADDRINUSE, -EADDRNOTAVAIL, -EACCES, -EMFILE,
 * -ENOMEM. */
int wh_mooncake_serve(const struct wh_mooncake_server_options *options, struct wh_mooncake_server **out);

/* After it returns no memory is touched. NULL is fine. */
void wh_mooncake_stop(struct wh_mooncake_server *server);

/* Where it listens: "127.0.0.1:40123". */
const char *wh_mooncake_control(const struct wh_mooncake_server *server);
const char *wh_mooncake_data(const struct wh_mooncake_server *server);

/* What a peer that has connected to `host` is told; malloc()ed, NULL: no memory. */
char *wh_mooncake_describe(const struct wh_mooncake_server *server, const char *host);

/* ---- the client ---------------------------------------------------------------------------- */

/* Ask the engine at `address` (HOST:PORT) what it publishes. `timeout`: ns for all of it.
 * 0, -EINVAL, -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -ECONNRESET, -EPROTO, -EPROTONOSUPPORT,
 * -ENOMEM. */
int wh_mooncake_fetch(const char *address, int64_t timeout, struct wh_mooncake_segment *out);

/* One data connection, which does one thing at a time. */
struct wh_mooncake_lane {
	char address[WH_MOONCAKE_NAME_MAX + 10];
	unsigned version;
	int64_t timeout; /* ns without a byte that moves */
	int fd;          /* -1: not connected */

	/* The thread that does it. */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool started, stop;
	bool asked, done; /* under the lock */
	bool write;
	void *buffer;
	uint64_t remote, length;
	int error;
	char text[WH_TEXT_MAX];
};

/* `host`: where the segment itself says none. Connects when it is first used. 0 or -errno. */
int wh_mooncake_lane_open(struct wh_mooncake_lane *lane, const struct wh_mooncake_segment *segment,
			  const char *host, int64_t timeout);

/* Start to move `length` bytes between the buffer and the remote address. The buffer is left alone
 * again when wh_mooncake_lane_wait() has said how it ended. One at a time. */
void wh_mooncake_lane_start(struct wh_mooncake_lane *lane, bool write, void *buffer, uint64_t remote,
			    uint64_t length);

/* 0: done, the bytes are at their target; -ETIMEDOUT and *ended false: not yet; else why it failed, in
 * lane.text. */
int wh_mooncake_lane_wait(struct wh_mooncake_lane *lane, int64_t timeout, bool *ended);

/* Cuts what is still moving. A lane that was not opened, all zero, is left alone. */
void wh_mooncake_lane_close(struct wh_mooncake_lane *lane);

#endif
