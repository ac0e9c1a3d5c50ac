/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands between a TCP connection's bytes and its socket: nothing (NULL),
 * TLS (tls.h), or records with checksums (records.h).
 *
 * One thread at a time may use a channel. It does not own the socket.
 */
#ifndef WH_NET_CHANNEL_H
#define WH_NET_CHANNEL_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

struct wh_channel;
struct wh_crypto;

struct wh_channel_ops {
	int64_t held; /* bytes of memory that a channel takes at most */
	void (*free)(struct wh_channel *channel);
	int (*handshake)(struct wh_channel *channel);
	bool (*established)(const struct wh_channel *channel);
	ssize_t (*send)(struct wh_channel *channel, const struct iovec *parts, int count);
	ssize_t (*receive)(struct wh_channel *channel, const struct iovec *parts, int count);
	int (*flush)(struct wh_channel *channel);
	bool (*unsent)(const struct wh_channel *channel);
	bool (*pending)(const struct wh_channel *channel);
	const char *(*text)(const struct wh_channel *channel);
	const char *(*name)(const struct wh_channel *channel);
	void (*describe)(const struct wh_channel *channel, char *out, size_t size);
	int (*bind)(const struct wh_channel *channel, const struct wh_crypto *crypto,
		    const uint8_t *key, uint8_t *out);
};

/* The first member of every channel. */
struct wh_channel {
	const struct wh_channel_ops *ops;
};

/* Everything below allows NULL, for a plain connection. */

static inline void wh_channel_free(struct wh_channel *channel)
{
	if (channel)
		channel->ops->free(channel);
}

/* Bytes of memory that it takes at most. */
static inline int64_t wh_channel_held(const struct wh_channel *channel)
{
	return channel ? channel->ops->held : 0;
}

/* Continue the channel's own handshake. 0: it is complete; -EAGAIN: call again when the socket is
 * ready; or -EACCES, -EPROTO, -ECONNRESET or another negative errno, and wh_channel_text() says
 * why. */
static inline int wh_channel_handshake(struct wh_channel *channel)
{
	return channel ? channel->ops->handshake(channel) : 0;
}

/* Is that handshake complete? */
static inline bool wh_channel_established(const struct wh_channel *channel)
{
	return !channel || channel->ops->established(channel);
}

/* Like sendmsg() and recvmsg() on the non-blocking socket `fd`: the bytes, or -1 and errno.
 * wh_channel_send() may keep a part of the bytes that it has accepted until the socket has room:
 * see wh_channel_flush(). A short wh_channel_receive() means that no more bytes are there. */
static inline ssize_t wh_channel_send(int fd, struct wh_channel *channel, struct iovec *parts,
				      int count)
{
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)count };

	return channel ? channel->ops->send(channel, parts, count) :
			 sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The same on a socket without a channel, if more bytes follow at once: the last of these may wait
 * for them, so that they share a packet. If nothing follows, call wh_socket_push(). */
static inline ssize_t wh_socket_send_more(int fd, struct iovec *parts, int count)
{
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)count };

	return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
}

/* Send what waits in the socket for more bytes. */
static inline void wh_socket_push(int fd)
{
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
}

static inline ssize_t wh_channel_receive(int fd, struct wh_channel *channel, struct iovec *parts,
					 int count)
{
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)count };

	return channel ? channel->ops->receive(channel, parts, count) :
			 recvmsg(fd, &message, MSG_DONTWAIT);
}

/* Send the bytes that wait for room in the socket. 0: none is left; or -1 and errno. */
static inline int wh_channel_flush(struct wh_channel *channel)
{
	return channel ? channel->ops->flush(channel) : 0;
}

/* Do bytes wait for room in the socket? */
static inline bool wh_channel_unsent(const struct wh_channel *channel)
{
	return channel && channel->ops->unsent(channel);
}

/* Are received bytes held in memory, for which epoll reports no event? */
static inline bool wh_channel_pending(const struct wh_channel *channel)
{
	return channel && channel->ops->pending(channel);
}

/* Why the last call failed; "" if there is nothing to add to its errno. */
static inline const char *wh_channel_text(const struct wh_channel *channel)
{
	return channel ? channel->ops->text(channel) : "";
}

/* The name that the peer has proved by the channel itself, such as its certificate's; "": none. */
static inline const char *wh_channel_name(const struct wh_channel *channel)
{
	return channel ? channel->ops->name(channel) : "";
}

/* Describe what the channel does, for explanations: "encrypted: TLS 1.3, AES_128_GCM". `out` is
 * unchanged if it does nothing. */
static inline void wh_channel_describe(const struct wh_channel *channel, char *out, size_t size)
{
	if (channel)
		channel->ops->describe(channel, out, size);
}

/* Derive the key that the handshake on this connection proves, of as many bytes as `key`. It is
 * `key`, unless the channel has a secret to bind it to. 0 or -EIO. */
static inline int wh_channel_bind(const struct wh_channel *channel, const struct wh_crypto *crypto,
				  const uint8_t *key, uint8_t *out, size_t size)
{
	if (channel && channel->ops->bind)
		return channel->ops->bind(channel, crypto, key, out);
	memmove(out, key, size);
	return 0;
}

#endif
