/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control connections: frames in and out, without waiting. What the socket does not take is queued,
 * and charged to the quota of the peer's address. Also the options of Wherry's sockets.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "net/control.h"
#include "net/quota.h"
#include "rendezvous/rendezvous.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/wire.h"

/* bytes queued to be sent, at most; an engine that withdraws very many regions needs that much */
#define QUEUED_MAX (256u << 20)
#define ANSWERS_MAX (4u << 20) /* of these, bytes of answers to the peer's frames */
#define INPUT_FIRST 4096 /* bytes of the first receive buffer */
#define TURN WH_MS /* of one connection, if others wait */
/* bytes; a send queue or receive buffer of up to this size is not charged to the quota, so that a
 * connection works even if others from its address have used up the quota */
#define UNCHARGED (16u << 10)
#define LOCAL_BUFFER (512 << 10) /* bytes of each socket buffer, if the peer is on this host */

#define NO_ROOM "does not read, and its address has reached the limit of the setting max_buffered"

static void control_ready(struct wh_source *source, uint32_t events);

void wh_socket_tune(const struct wh_config *config, int fd)
{
	int64_t timeout = config->number[WH_SETTING_TIMEOUT];
	int probes = 3, one = 1;
	int seconds = (int)(timeout / 1000 / (probes + 1));
	unsigned milliseconds = (unsigned)timeout;
	int bytes = (int)config->number[WH_SETTING_BUFFER];

	if (seconds < 1)
		seconds = 1;
	/* A Unix socket refuses these; nothing depends on their success. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
	if (bytes > 0) {
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	}
}

void wh_socket_unpace(int fd, const struct sockaddr_storage *address)
{
	/* Every kernel has it, and any user may select it. */
	static const char plain[] = "reno";
	char name[16] = "";
	socklen_t length = sizeof(name) - 1;

	if (wh_address_is_loopback(address) &&
	    !getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) && !strncmp(name, "bbr", 3))
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof(plain) - 1);
}

/* Between processes of one host there is no distance that large buffers would bridge. Small ones
 * keep the bytes in the CPU's caches; the system's default grows to megabytes. */
void wh_socket_limit_buffers(const struct wh_config *config, int fd)
{
	struct sockaddr_storage address = { .ss_family = AF_UNSPEC };
	socklen_t length = sizeof(address);
	int bytes = LOCAL_BUFFER;

	if (config->number[WH_SETTING_BUFFER] ||
	    getpeername(fd, (struct sockaddr *)&address, &length) ||
	    !wh_address_is_loopback(&address))
		return;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

/* One end of a connection. IPv4 addresses are mapped to IPv6, as a listener may serve both. */
struct socket_end {
	struct in6_addr host;
	uint32_t port; /* 32 bits, so that the struct has no padding: memcmp() compares it */
};

/* Call getsockname() or getpeername(). False: it failed, or is not an IP address. */
static bool socket_end(int fd, int (*ask)(int, struct sockaddr *, socklen_t *),
		       struct socket_end *end)
{
	struct sockaddr_storage address;
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address;
	socklen_t length = sizeof(address);

	memset(end, 0, sizeof(*end));
	if (ask(fd, (struct sockaddr *)&address, &length))
		return false;
	if (address.ss_family == AF_INET6) {
		end->host = v6->sin6_addr;
		end->port = v6->sin6_port;
		return true;
	}
	memset(end->host.s6_addr + 10, 0xff, 2);
	memcpy(end->host.s6_addr + 12, &v4->sin_addr, 4);
	end->port = v4->sin_port;
	return address.ss_family == AF_INET;
}

bool wh_sockets_joined(int one, int other)
{
	struct socket_end ends[4];

	return socket_end(one, getsockname, &ends[0]) && socket_end(other, getpeername, &ends[1]) &&
	       socket_end(one, getpeername, &ends[2]) && socket_end(other, getsockname, &ends[3]) &&
	       !memcmp(&ends[0], &ends[1], sizeof(ends[0])) &&
	       !memcmp(&ends[2], &ends[3], sizeof(ends[2]));
}

void wh_socket_close(int fd)
{
	shutdown(fd, SHUT_RDWR);
	close(fd);
}

void wh_control_init(struct wh_control *control, struct wh_loop *loop)
{
	memset(control, 0, sizeof(*control));
	control->source.fd = -1;
	control->source.ready = control_ready;
	control->loop = loop;
	pthread_mutex_init(&control->lock, NULL);
}

int wh_control_start(struct wh_control *control, int fd, struct wh_channel *channel)
{
	int error;

	pthread_mutex_lock(&control->lock);
	control->source.fd = fd;
	control->channel = channel;
	control->in_length = 0;
	control->queue_refused = NULL;
	control->out_start = control->out_length = control->answers = 0;
	control->open = true;
	pthread_mutex_unlock(&control->lock);
	error = wh_loop_add(control->loop, &control->source, EPOLLIN);
	if (error) {
		pthread_mutex_lock(&control->lock);
		control->source.fd = -1;
		control->channel = NULL;
		control->open = false;
		pthread_mutex_unlock(&control->lock);
	}
	return error;
}

void wh_control_protect(struct wh_control *control, struct wh_channel *channel)
{
	struct wh_channel *before;

	pthread_mutex_lock(&control->lock);
	before = control->channel;
	control->channel = channel;
	pthread_mutex_unlock(&control->lock);
	wh_channel_free(before);
}

void wh_control_close(struct wh_control *control)
{
	int fd;

	pthread_mutex_lock(&control->lock);
	fd = control->source.fd;
	control->open = false;
	if (fd >= 0)
		wh_loop_remove(control->loop, &control->source);
	control->source.fd = -1;
	wh_channel_free(control->channel);
	control->channel = NULL;
	pthread_mutex_unlock(&control->lock);
	if (fd >= 0)
		wh_socket_close(fd);
}

/* Charge the quota for a buffer whose size changes from `before` to `after` bytes. Up to UNCHARGED,
 * the limit on sessions bounds the memory. False: the quota is used up; nothing is charged. */
static bool control_charge(struct wh_control *control, size_t before, size_t after)
{
	int64_t old = before > UNCHARGED ? (int64_t)before : 0,
		wanted = after > UNCHARGED ? (int64_t)after : 0;

	return !control->quota || wh_quota_charge_queued(control->quota, wanted - old);
}

void wh_control_destroy(struct wh_control *control)
{
	wh_control_close(control);
	control_charge(control, control->in_room, 0);
	control_charge(control, control->out_room, 0);
	pthread_mutex_destroy(&control->lock);
	free(control->in);
	free(control->out);
}

/* Close the connection and report its end to the owner. */
static void control_break(struct wh_control *control, int error, const char *text)
{
	wh_control_close(control);
	control->gone(control, error, text);
}

/* ---- sending ----------------------------------------------------------- */

/* Is the channel's own handshake, if it has one, complete? Under the lock. */
static bool control_can_send(const struct wh_control *control)
{
	return wh_channel_established(control->channel);
}

/* Register the epoll events that the connection waits for. Under the lock. */
static void control_set_events(struct wh_control *control)
{
	bool out = (control->out_length && control_can_send(control)) ||
		   wh_channel_unsent(control->channel);

	wh_loop_modify(control->loop, &control->source, out ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Does this engine send frames of the type on its own account? Then their number is not the peer's
 * choice, and they do not count as answers. */
static bool frame_is_announcement(enum wh_frame_type type)
{
	return type == WH_FRAME_REGISTERED || type == WH_FRAME_REMOVE;
}

/* Queue bytes. Under the lock. 0, or -ENOBUFS (and control->queue_refused says why), -ENOMEM. */
static int control_queue(struct wh_control *control, const void *bytes, size_t length)
{
	size_t room = control->out_room ? control->out_room : 4096;
	uint8_t *grown;

	if (control->out_start) {
		memmove(control->out, control->out + control->out_start, control->out_length);
		control->out_start = 0;
	}
	if (control->out_length + length > QUEUED_MAX) {
		control->queue_refused = "does not read the frames sent to it";
		return -ENOBUFS;
	}
	while (room < control->out_length + length)
		room *= 2;
	if (room != control->out_room) {
		if (!control_charge(control, control->out_room, room)) {
			control->queue_refused = NO_ROOM;
			return -ENOBUFS;
		}
		grown = realloc(control->out, room);
		if (!grown) {
			control_charge(control, room, control->out_room);
			return -ENOMEM;
		}
		control->out = grown;
		control->out_room = room;
	}
	memcpy(control->out + control->out_length, bytes, length);
	control->out_length += length;
	return 0;
}

int wh_control_send(struct wh_control *control, uint16_t type, uint16_t flags, const void *payload,
		    size_t length)
{
	uint8_t header[WH_FRAME_HEADER];
	struct iovec parts[2] = { { header, sizeof(header) }, { (void *)payload, length } };
	size_t sent = 0;
	ssize_t got;
	int error = 0;

	wh_frame_encode(header, &(struct wh_frame){ (uint32_t)length, (uint16_t)type, flags });
	pthread_mutex_lock(&control->lock);
	if (!control->open) {
		pthread_mutex_unlock(&control->lock);
		return -ECONNRESET;
	}
	if (!control->out_length && control_can_send(control)) {
		got = wh_channel_send(control->source.fd, control->channel, parts, length ? 2 : 1);
		/* The receiving side notices and reports a broken socket. */
		if (got > 0)
			sent = (size_t)got;
	}
	if (sent < sizeof(header)) {
		error = control_queue(control, header + sent, sizeof(header) - sent);
		sent = sizeof(header);
	}
	if (!error && sent < sizeof(header) + length)
		error = control_queue(control, (const uint8_t *)payload + (sent - sizeof(header)),
				      sizeof(header) + length - sent);
	if (!frame_is_announcement(type) && control->out_length) {
		control->answers += sizeof(header) + length;
		if (control->answers > ANSWERS_MAX) {
			control->queue_refused = "does not read the answers to its frames";
			error = -ENOBUFS;
		}
	}
	if (control->out_length || wh_channel_unsent(control->channel))
		control_set_events(control);
	if (error) /* Part of a frame may have been sent: the stream is out of step. */
		shutdown(control->source.fd, SHUT_RDWR);
	pthread_mutex_unlock(&control->lock);
	return error;
}

/* Send what is queued, as far as the socket takes it; free the queue when it is empty. */
static void control_flush(struct wh_control *control)
{
	ssize_t got;

	pthread_mutex_lock(&control->lock);
	if (control->open)
		wh_channel_flush(control->channel);
	while (control->open && control->out_length && control_can_send(control)) {
		struct iovec part = { control->out + control->out_start, control->out_length };

		got = wh_channel_send(control->source.fd, control->channel, &part, 1);
		/* A channel that has failed fails again, and the socket stays writable. */
		if (got < 0 && errno != EAGAIN && errno != EINTR)
			shutdown(control->source.fd, SHUT_RDWR);
		if (got <= 0)
			break;
		control->out_start += (size_t)got;
		control->out_length -= (size_t)got;
	}
	if (control->open && !control->out_length) {
		control->out_start = control->answers = 0;
		control_charge(control, control->out_room, 0);
		free(control->out);
		control->out = NULL;
		control->out_room = 0;
	}
	if (control->open)
		control_set_events(control);
	pthread_mutex_unlock(&control->lock);
}

/* ---- receiving --------------------------------------------------------- */

/* Why the connection breaks: the reason that a sender found, which shut the socket down, or else
 * `text`, the receiving side's. */
static const char *control_reason(struct wh_control *control, const char *text)
{
	pthread_mutex_lock(&control->lock);
	if (control->queue_refused)
		text = control->queue_refused;
	pthread_mutex_unlock(&control->lock);
	return text;
}

/* Resize the receive buffer for a frame of `need` bytes; shrink it after a long frame. 1: the
 * connection is closed, as there is no memory or quota. */
static int control_make_room(struct wh_control *control, size_t need)
{
	uint8_t *grown;

	if (need <= control->in_room &&
	    !(need == INPUT_FIRST && control->in_room > 4 * INPUT_FIRST &&
	      control->in_length < INPUT_FIRST))
		return 0;
	if (!control_charge(control, control->in_room, need)) {
		control_break(
			control, -ENOBUFS,
			"sends a large frame, and its address has reached the limit of the setting "
			"max_buffered");
		return 1;
	}
	grown = realloc(control->in, need);
	if (!grown) {
		control_charge(control, need, control->in_room);
		control_break(control, -ENOMEM, "sent a frame, but there is no memory for it");
		return 1;
	}
	control->in = grown;
	control->in_room = need;
	return 0;
}

/* Handle all complete frames in the receive buffer. 1: the connection is closed. */
static int control_parse(struct wh_control *control)
{
	const struct wh_channel *channel = control->channel;
	size_t at = 0, need = INPUT_FIRST;
	struct wh_frame frame;
	int error;

	while (control->in_length - at >= WH_FRAME_HEADER) {
		error = wh_frame_decode(control->in + at, &frame);
		if (error) {
			control_break(control, error, "sent bytes that are not a frame");
			return 1;
		}
		need = WH_FRAME_HEADER + frame.length;
		if (control->in_length - at < need)
			break;
		error = control->frame(control, &frame, control->in + at + WH_FRAME_HEADER);
		if (!control->open)
			return 1;
		if (error) {
			control_break(control, error,
				      control_reason(control, "broke the protocol"));
			return 1;
		}
		at += need;
		need = INPUT_FIRST;
		/* Bytes behind the last unprotected frame did not come through the channel. */
		if (control->channel != channel && at < control->in_length) {
			control_break(control, -EPROTO, "sent bytes that are not a record");
			return 1;
		}
	}
	if (at) {
		control->in_length -= at;
		memmove(control->in, control->in + at, control->in_length);
	}
	return control_make_room(control, need);
}

/* Free the receive buffer of an idle connection. */
static void control_free_input(struct wh_control *control)
{
	if (control->in_length)
		return;
	control_charge(control, control->in_room, 0);
	free(control->in);
	control->in = NULL;
	control->in_room = 0;
}

/* Continue the channel's own handshake on a connection that this engine opened. True: it is
 * complete. */
static bool control_shake(struct wh_control *control)
{
	char text[WH_TEXT_MAX];
	int error;

	if (wh_channel_established(control->channel))
		return true;
	pthread_mutex_lock(&control->lock);
	error = wh_channel_handshake(control->channel);
	control_set_events(control);
	snprintf(text, sizeof(text), "%s", wh_channel_text(control->channel));
	pthread_mutex_unlock(&control->lock);
	if (!error)
		control_flush(control);
	else if (error != -EAGAIN)
		control_break(control, error, *text ? text : strerror(-error));
	return !error;
}

/* Receive once. Returns what recv() returns; *pending: the channel holds more bytes, for which
 * epoll reports no event. */
static ssize_t control_receive(struct wh_control *control, bool *pending, char text[WH_TEXT_MAX])
{
	struct iovec part = { control->in + control->in_length,
			      control->in_room - control->in_length };
	ssize_t got;
	int error;

	*pending = false;
	if (!control->channel) {
		got = recv(control->source.fd, part.iov_base, part.iov_len, MSG_DONTWAIT);
	} else {
		/* Sending threads use the same channel. */
		pthread_mutex_lock(&control->lock);
		got = wh_channel_receive(control->source.fd, control->channel, &part, 1);
		error = errno;
		*pending = wh_channel_pending(control->channel);
		snprintf(text, WH_TEXT_MAX, "%s", wh_channel_text(control->channel));
		pthread_mutex_unlock(&control->lock);
		errno = error;
	}
	return got;
}

static void control_ready(struct wh_source *source, uint32_t events)
{
	struct wh_control *control = wh_container(source, struct wh_control, source);
	int64_t until = wh_now() + TURN;
	char text[WH_TEXT_MAX] = "";
	bool pending = false;
	ssize_t got;
	int error;

	if (!control_shake(control))
		return;
	if (events & EPOLLOUT)
		control_flush(control);
	if (!(events & ~(uint32_t)EPOLLOUT))
		return;
	/* A limit per turn, so that other sources of the loop get theirs. What a frame costs
	 * depends on what it asks for, and the peer chooses that. */
	for (int turn = 0; (turn < 64 && wh_now() <= until) || pending; turn++) {
		if (control->in_length == control->in_room && control_parse(control))
			return;
		got = control_receive(control, &pending, text);
		if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
			control_free_input(control);
			break;
		}
		if (got < 0) {
			error = errno;
			control_break(control, -error,
				      control_reason(control, *text ? text : strerror(error)));
			return;
		}
		if (!got) {
			control_break(control, -ECONNRESET,
				      control_reason(control, "closed the connection"));
			return;
		}
		control->in_length += (size_t)got;
		if (control_parse(control))
			return;
	}
}

void wh_control_process_early(struct wh_control *control)
{
	if (control->channel)
		control_ready(&control->source, EPOLLIN);
}
