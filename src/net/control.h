/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control connections, which carry frames (wire/wire.h), and the options of Wherry's sockets.
 */
#ifndef WH_NET_CONTROL_H
#define WH_NET_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "net/channel.h"
#include "util/loop.h"
#include "wire/wire.h"

struct wh_config;
struct wh_quota;

/* A connection that carries frames. Loop 0 receives and closes; any thread may send. */
struct wh_control {
	struct wh_source source;
	struct wh_loop *loop;
	struct wh_channel *channel; /* under the lock; NULL: plain */
	uint8_t *in; /* received bytes, not parsed yet */
	size_t in_length, in_room;
	pthread_mutex_t lock; /* of channel and the members below, down to `open` */
	uint8_t *out; /* queued bytes */
	size_t out_start, out_length, out_room;
	size_t answers; /* bytes of answers sent since the queue was last empty */
	struct wh_quota *quota; /* of the peer's address; NULL: nothing is charged */
	const char *queue_refused; /* why nothing more is queued, and the connection breaks; NULL:
			     no limit reached */
	bool open;
	/* Handle a frame. Called on the loop, without the lock. 0, or a negative errno that breaks
	 * the connection. */
	int (*frame)(struct wh_control *control, const struct wh_frame *frame,
		     const uint8_t *payload);
	/* The connection has broken and is closed. Called once, on the loop. */
	void (*gone)(struct wh_control *control, int error, const char *text);
};

void wh_control_init(struct wh_control *control, struct wh_loop *loop);
/* Start receiving on a connected socket. On the loop; the caller has set `frame` and `gone`. The
 * channel's handshake need not be complete. Takes ownership of fd and channel, except on error. 0
 * or a negative errno. */
int wh_control_start(struct wh_control *control, int fd, struct wh_channel *channel);
/* Continue through another channel, behind the frame that is being handled. On the loop, within
 * `frame`, with nothing queued. Takes ownership of the channel. */
void wh_control_protect(struct wh_control *control, struct wh_channel *channel);
/* Process bytes that the channel received before wh_control_start(), for which epoll reports no
 * event. On the loop; may call `frame` and `gone`. */
void wh_control_process_early(struct wh_control *control);
/* Send a frame as far as the socket takes it, and queue the rest. From any thread; does not wait.
 * 0; -ECONNRESET: not open; -ENOBUFS: the peer does not read, and a limit is reached, or -ENOMEM:
 * the connection breaks. */
int wh_control_send(struct wh_control *control, uint16_t type, uint16_t flags, const void *payload,
		    size_t length);
/* Close the connection, without calling `gone`. On the loop. */
void wh_control_close(struct wh_control *control);
/* Close the connection and free its memory. On the loop. */
void wh_control_destroy(struct wh_control *control);

/* Set the options that all connections have: no delay, keepalive, user timeout, buffer sizes if the
 * setting `buffer` gives them. */
void wh_socket_tune(const struct wh_config *config, int fd);
/* Before connecting to, or listening on, a loopback address: select a congestion control that does
 * not pace. On loopback the timers of pacing cost more than moving the bytes, and delay them.
 * Accepted connections inherit the choice; on an established one it would come too late. */
void wh_socket_unpace(int fd, const struct sockaddr_storage *address);
/* Limit the socket buffers of a connected data connection whose peer is on this host, unless the
 * setting `buffer` gives their size. */
void wh_socket_limit_buffers(const struct wh_config *config, int fd);
/* Shut down and close. Closing alone is not enough: a forked child may hold a copy of the
 * descriptor, which would keep the connection or listener alive. */
void wh_socket_close(int fd);

/* Are two connected sockets of this process the two ends of one connection? */
bool wh_sockets_joined(int one, int other);

#endif
