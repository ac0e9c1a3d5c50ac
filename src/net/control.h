/* SPDX-License-Identifier: Apache-2.0 */
/* Control connections, which carry frames; and what every socket of ours is set to. */
#ifndef WH_NET_CONTROL_H
#define WH_NET_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "net/tls.h"
#include "util/loop.h"
#include "wire/wire.h"

struct wh_config;
struct wh_quota;

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
int wh_control_send(struct wh_control *control, uint16_t type, uint16_t flags, const void *payload,
		    size_t length);
/* Close it; `gone` is not called. On the loop. */
void wh_control_close(struct wh_control *control);
void wh_control_destroy(struct wh_control *control);

/* Set what every connection of ours has: no delay, keepalive, user timeout, close-on-exec. */
void wh_socket_tune(const struct wh_config *config, int fd);
/* Before connecting to, or listening on, a loopback address: no congestion control that paces,
 * for there the timers that it takes cost more than moving the bytes, and hold them up. What is
 * accepted inherits it; a connection that is established would stay paced. */
void wh_socket_unpace(int fd, const struct sockaddr_storage *address);
/* A data connection has been made: bound what waits in it, if the other end is on this host. */
void wh_socket_near(const struct wh_config *config, int fd);
/* Shut down and close. A forked child may hold a copy, which would keep a connection, or a listener
 * that nobody serves, alive. */
void wh_socket_close(int fd);

/* Of two connected sockets of this process: are they the two ends of one connection? */
bool wh_sockets_joined(int one, int other);

#endif
