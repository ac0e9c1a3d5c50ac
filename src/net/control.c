/* SPDX-License-Identifier: Apache-2.0 */
/* Control connections: frames in and out, without ever waiting. */
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
#include "net/tls.h"
#include "rendezvous/rendezvous.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/wire.h"

/* What may wait to be sent: the regions of an engine that publishes very many. */
#define OUT_MAX (256u << 20)
#define OWED_MAX (4u << 20) /* of that, answers to what the other side asked */
#define IN_FIRST 4096
/* So much for sending, and for receiving, does everybody have, whatever others from his address
 * hold. */
#define FREE (16u << 10)
#define NEAR_BUFFER (512 << 10)

#define NO_ROOM                                                                                    \
	"does not read, and what may wait for its address (the setting max_buffered) is used up"

static void received(struct wh_source *source, uint32_t events);

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
	/* every kernel has it, and lets everybody choose it */
	static const char plain[] = "reno";
	char name[16] = "";
	socklen_t length = sizeof(name) - 1;

	if (wh_address_is_loopback(address) &&
	    !getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) && !strncmp(name, "bbr", 3))
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof(plain) - 1);
}

/* What waits there is in the CPU's caches or not any more, and no distance asks for much. The
 * system's buffers grow to megabytes. */
void wh_socket_near(const struct wh_config *config, int fd)
{
	struct sockaddr_storage address = { .ss_family = AF_UNSPEC };
	socklen_t length = sizeof(address);
	int bytes = NEAR_BUFFER;

	if (config->number[WH_SETTING_BUFFER] ||
	    getpeername(fd, (struct sockaddr *)&address, &length) ||
	    !wh_address_is_loopback(&address))
		return;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

/* An end of a connection; IPv4 as IPv6 has it, for a listener may serve both. */
struct end {
	struct in6_addr host;
	uint32_t port; /* so wide that there is nothing beside it */
};

static bool end_of(int fd, int (*ask)(int, struct sockaddr *, socklen_t *), struct end *end)
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
	struct end ends[4];

	return end_of(one, getsockname, &ends[0]) && end_of(other, getpeername, &ends[1]) &&
	       end_of(one, getpeername, &ends[2]) && end_of(other, getsockname, &ends[3]) &&
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
	control->source.ready = received;
	control->loop = loop;
	pthread_mutex_init(&control->lock, NULL);
}

int wh_control_start(struct wh_control *control, int fd, struct wh_tls *tls)
{
	int error;

	pthread_mutex_lock(&control->lock);
	control->source.fd = fd;
	control->tls = tls;
	control->in_length = 0;
	control->full = NULL;
	control->out_start = control->out_length = control->owed = 0;
	control->open = true;
	pthread_mutex_unlock(&control->lock);
	error = wh_loop_add(control->loop, &control->source, EPOLLIN);
	if (error) {
		pthread_mutex_lock(&control->lock);
		control->source.fd = -1;
		control->tls = NULL;
		control->open = false;
		pthread_mutex_unlock(&control->lock);
	}
	return error;
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
	wh_tls_free(control->tls);
	control->tls = NULL;
	pthread_mutex_unlock(&control->lock);
	if (fd >= 0)
		wh_socket_close(fd);
}

/* Memory for sending or receiving is to have another size. What is not above FREE is bounded by the
 * number of sessions. */
static bool account(struct wh_control *control, size_t before, size_t after)
{
	int64_t old = before > FREE ? (int64_t)before : 0,
		wanted = after > FREE ? (int64_t)after : 0;

	return !control->quota || wh_quota_charge_queued(control->quota, wanted - old);
}

void wh_control_destroy(struct wh_control *control)
{
	wh_control_close(control);
	account(control, control->in_room, 0);
	account(control, control->out_room, 0);
	pthread_mutex_destroy(&control->lock);
	free(control->in);
	free(control->out);
}

static void broken(struct wh_control *control, int error, const char *text)
{
	wh_control_close(control);
	control->gone(control, error, text);
}

/* ---- sending ------------------------------------------------------------------------------ */

/* May what is to be sent be given to the socket? Under the lock. */
static bool ready_to_send(const struct wh_control *control)
{
	return !control->tls || wh_tls_shaken(control->tls);
}

/* Under the lock. */
static void wait_for(struct wh_control *control)
{
	bool out =
		(control->out_length && ready_to_send(control)) || wh_stream_unsent(control->tls);

	wh_loop_modify(control->loop, &control->source, out ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* How much there is of these is not the other side's choice. */
static bool is_news(enum wh_frame_type type)
{
	return type == WH_FRAME_REGIONS || type == WH_FRAME_REMOVE || type == WH_FRAME_REMOVED;
}

/* Under the lock. */
static int keep(struct wh_control *control, const void *bytes, size_t length)
{
	size_t room = control->out_room ? control->out_room : 4096;
	uint8_t *grown;

	if (control->out_start) {
		memmove(control->out, control->out + control->out_start, control->out_length);
		control->out_start = 0;
	}
	if (control->out_length + length > OUT_MAX) {
		control->full = "does not read what it is sent";
		return -ENOBUFS;
	}
	while (room < control->out_length + length)
		room *= 2;
	if (room != control->out_room) {
		if (!account(control, control->out_room, room)) {
			control->full = NO_ROOM;
			return -ENOBUFS;
		}
		grown = realloc(control->out, room);
		if (!grown) {
			account(control, room, control->out_room);
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
	if (!control->out_length && ready_to_send(control)) {
		got = wh_stream_send(control->source.fd, control->tls, parts, length ? 2 : 1);
		/* A broken socket is noticed, and said, by the receiving side. */
		if (got > 0)
			sent = (size_t)got;
	}
	if (sent < sizeof(header)) {
		error = keep(control, header + sent, sizeof(header) - sent);
		sent = sizeof(header);
	}
	if (!error && sent < sizeof(header) + length)
		error = keep(control, (const uint8_t *)payload + (sent - sizeof(header)),
			     sizeof(header) + length - sent);
	if (!is_news(type) && control->out_length) {
		control->owed += sizeof(header) + length;
		if (control->owed > OWED_MAX) {
			control->full = "does not read what it has asked for";
			error = -ENOBUFS;
		}
	}
	if (control->out_length || wh_stream_unsent(control->tls))
		wait_for(control);
	if (error) /* half a frame may be out: the connection is of no use any more */
		shutdown(control->source.fd, SHUT_RDWR);
	pthread_mutex_unlock(&control->lock);
	return error;
}

static void flush(struct wh_control *control)
{
	ssize_t got;

	pthread_mutex_lock(&control->lock);
	if (control->open && control->tls)
		wh_tls_flush(control->tls);
	while (control->open && control->out_length && ready_to_send(control)) {
		struct iovec part = { control->out + control->out_start, control->out_length };

		got = wh_stream_send(control->source.fd, control->tls, &part, 1);
		if (got <= 0)
			break;
		control->out_start += (size_t)got;
		control->out_length -= (size_t)got;
	}
	if (control->open && !control->out_length) {
		control->out_start = control->owed = 0;
		account(control, control->out_room, 0);
		free(control->out);
		control->out = NULL;
		control->out_room = 0;
	}
	if (control->open)
		wait_for(control);
	pthread_mutex_unlock(&control->lock);
}

/* ---- receiving ---------------------------------------------------------------------------- */

/* Why it was broken off while something was sent; else what the receiving side has found. */
static const char *why(struct wh_control *control, const char *text)
{
	pthread_mutex_lock(&control->lock);
	if (control->full)
		text = control->full;
	pthread_mutex_unlock(&control->lock);
	return text;
}

/* Room for the next frame, and no more of what a long one took. */
static int make_room(struct wh_control *control, size_t need)
{
	uint8_t *grown;

	if (need <= control->in_room &&
	    !(need == IN_FIRST && control->in_room > 4 * IN_FIRST && control->in_length < IN_FIRST))
		return 0;
	if (!account(control, control->in_room, need)) {
		broken(control, -ENOBUFS,
		       "sends a frame for which there is no room: what may wait for its address "
		       "(the setting max_buffered) "
		       "is used up");
		return 1;
	}
	grown = realloc(control->in, need);
	if (!grown) {
		account(control, need, control->in_room);
		broken(control, -ENOMEM, "sent a frame for which there is no memory");
		return 1;
	}
	control->in = grown;
	control->in_room = need;
	return 0;
}

/* Handle the whole frames that have come. 1 when the connection has gone, or been closed. */
static int parse(struct wh_control *control)
{
	size_t at = 0, need = IN_FIRST;
	struct wh_frame frame;
	int error;

	while (control->in_length - at >= WH_FRAME_HEADER) {
		error = wh_frame_decode(control->in + at, &frame);
		if (error) {
			broken(control, error, "sent something that is not a frame");
			return 1;
		}
		need = WH_FRAME_HEADER + frame.length;
		if (control->in_length - at < need)
			break;
		error = control->frame(control, &frame, control->in + at + WH_FRAME_HEADER);
		if (!control->open)
			return 1;
		if (error) {
			broken(control, error, why(control, "broke the protocol"));
			return 1;
		}
		at += need;
		need = IN_FIRST;
	}
	if (at) {
		control->in_length -= at;
		memmove(control->in, control->in + at, control->in_length);
	}
	return make_room(control, need);
}

/* An idle connection keeps no memory for what may come. */
static void rest(struct wh_control *control)
{
	if (control->in_length)
		return;
	account(control, control->in_room, 0);
	free(control->in);
	control->in = NULL;
	control->in_room = 0;
}

/* The handshake of a connection that was opened here. True: it is done, now or before. */
static bool shaken(struct wh_control *control)
{
	char text[WH_TEXT_MAX];
	int error;

	if (!control->tls || wh_tls_shaken(control->tls))
		return true;
	pthread_mutex_lock(&control->lock);
	error = wh_tls_shake(control->tls);
	wait_for(control);
	snprintf(text, sizeof(text), "%s", wh_tls_text(control->tls));
	pthread_mutex_unlock(&control->lock);
	if (!error)
		flush(control);
	else if (error != -EAGAIN)
		broken(control, error, *text ? text : strerror(-error));
	return !error;
}

/* Returns what recv() returns; *pending: there is more that the socket does not tell of. */
static ssize_t receive(struct wh_control *control, bool *pending, char text[WH_TEXT_MAX])
{
	struct iovec part = { control->in + control->in_length,
			      control->in_room - control->in_length };
	ssize_t got;
	int error;

	*pending = false;
	if (!control->tls) {
		got = recv(control->source.fd, part.iov_base, part.iov_len, MSG_DONTWAIT);
	} else {
		/* Others may be sending. */
		pthread_mutex_lock(&control->lock);
		got = wh_tls_receive(control->tls, &part, 1);
		error = errno;
		*pending = wh_tls_pending(control->tls);
		snprintf(text, WH_TEXT_MAX, "%s", wh_tls_text(control->tls));
		pthread_mutex_unlock(&control->lock);
		errno = error;
	}
	return got;
}

static void received(struct wh_source *source, uint32_t events)
{
	struct wh_control *control = wh_container(source, struct wh_control, source);
	char text[WH_TEXT_MAX] = "";
	bool pending = false;
	ssize_t got;
	int error;

	if (!shaken(control))
		return;
	if (events & EPOLLOUT)
		flush(control);
	if (!(events & ~(uint32_t)EPOLLOUT))
		return;
	/* At most so much in one turn, so that others have theirs. */
	for (int turn = 0; turn < 64 || pending; turn++) {
		if (control->in_length == control->in_room && parse(control))
			return;
		got = receive(control, &pending, text);
		if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
			rest(control);
			break;
		}
		if (got < 0) {
			error = errno;
			broken(control, -error, why(control, *text ? text : strerror(error)));
			return;
		}
		if (!got) {
			broken(control, -ECONNRESET, why(control, "closed the connection"));
			return;
		}
		control->in_length += (size_t)got;
		if (parse(control))
			return;
	}
}

void wh_control_early(struct wh_control *control)
{
	if (control->tls)
		received(&control->source, EPOLLIN);
}
