/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 for control and data connections, where the setting `tls` is on: who is let in (tls.c),
 * and bytes in and out without waiting (tls-stream.c). docs/security.md.
 *
 * A connection is one thread's at a time. Where the kernel does the encryption (kernel TLS), what
 * is sent goes by sendmsg() as on a plain connection.
 */
#ifndef WH_NET_TLS_H
#define WH_NET_TLS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "net/keyfile.h"
#include "platform/ssl.h"
#include "util/config.h"
#include "util/error.h"
#include "wire/wire.h"

struct wh_tls_context;
struct wh_tls; /* one connection */

/* What a connection takes at most: what is on its way in and out, and OpenSSL's own. */
#define WH_TLS_HELD (96u << 10)

/* With the certificate, key and authorities that the settings name, else with keys[] as pre-shared
 * keys: the first is offered, all are known. 0; -EINVAL, -EACCES, -ELIBACC or an errno of a file,
 * naming it. */
int wh_tls_open(const struct wh_config *config, const struct wh_crypto *crypto,
		const struct wh_keys *keys, struct wh_tls_context **out);
void wh_tls_close(struct wh_tls_context *context);
/* Do the settings name certificates? */
bool wh_tls_by_certificate(const struct wh_config *config);

/* On a connected socket, which stays the caller's. NULL: no memory. */
struct wh_tls *wh_tls_new(struct wh_tls_context *context, int fd, bool accepting);
void wh_tls_free(struct wh_tls *tls);

/* Go on with the handshake. 0: it is done, now or before; -EAGAIN; or -EACCES, -EPROTO, -ECONNRESET
 * and others with wh_tls_text(). */
int wh_tls_shake(struct wh_tls *tls);
bool wh_tls_shaken(const struct wh_tls *tls);

/* As sendmsg() and recvmsg() on a socket that does not wait: bytes, or -1 and errno. What has been
 * taken by wh_tls_send() may in part wait for room in the socket, see below. A short
 * wh_tls_receive() says that there is nothing more. */
ssize_t wh_tls_send(struct wh_tls *tls, const struct iovec *parts, int count);
ssize_t wh_tls_receive(struct wh_tls *tls, const struct iovec *parts, int count);
/* Send what waits. 0, or -1 and errno. */
int wh_tls_flush(struct wh_tls *tls);
/* Does something wait for room in the socket? */
bool wh_tls_unsent(const struct wh_tls *tls);
/* Is there something to receive that the socket does not tell of? */
bool wh_tls_pending(const struct wh_tls *tls);

/* Why the last call failed. */
const char *wh_tls_text(const struct wh_tls *tls);
/* The other side's name by its certificate; "": there is none. */
const char *wh_tls_name(const struct wh_tls *tls);
/* "TLS 1.3, AES_128_GCM". */
void wh_tls_describe(const struct wh_tls *tls, char *out, size_t size);

/* The key that is proved on this connection: `key`, tied to it, so that who is between two
 * connections cannot hand on what is said. `tls` NULL: `key`. 0 or -EIO. */
int wh_tls_bind(const struct wh_tls *tls, const struct wh_crypto *crypto,
		const uint8_t key[WH_KEY_SIZE], uint8_t out[WH_KEY_SIZE]);

/* The same on a connection that may be plain. */
static inline ssize_t wh_stream_send(int fd, struct wh_tls *tls, struct iovec *parts, int count)
{
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)count };

	return tls ? wh_tls_send(tls, parts, count) :
		     sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static inline ssize_t wh_stream_receive(int fd, struct wh_tls *tls, struct iovec *parts, int count)
{
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)count };

	return tls ? wh_tls_receive(tls, parts, count) : recvmsg(fd, &message, MSG_DONTWAIT);
}

static inline bool wh_stream_unsent(const struct wh_tls *tls)
{
	return tls && wh_tls_unsent(tls);
}

/* ---- between tls.c and tls-stream.c ------------------------------------------------------------
 */

struct wh_tls_context {
	struct wh_ssl ssl;
	struct ssl_ctx_st *handle;
	struct bio_method_st *socket; /* how OpenSSL reads and writes */
	bool kernel; /* it may do the encryption */
	bool encrypted; /* a file wanted a password */
	char certificate[WH_CONFIG_TEXT]; /* the file; "": pre-shared keys */
	unsigned count;
	struct {
		char name[8 + WH_FINGERPRINT];
		uint8_t key[WH_KEY_SIZE];
	} shared[WH_KEYS_MAX];
};

/* Records that are sent with one key. AES-GCM is good for 2^24.5 of them (RFC 8446, 5.5), which are
 * 380 GB: minutes, on a fast network. */
#define WH_TLS_REKEY (1u << 22)

/* OpenSSL has made it, the socket has not taken it: a record and a bit at most, and no memory else.
 */
struct wh_tls_out {
	uint8_t *bytes;
	size_t start, end, room;
};

/* The socket has given it, OpenSSL has not read it. */
struct wh_tls_in {
	uint16_t start, end;
	uint8_t bytes[508];
};

struct wh_tls {
	struct wh_tls_context *context;
	struct ssl_st *ssl;
	int fd;
	bool shaken, kernel_sends, kernel_receives;
	bool more; /* of what is sent comes at once */
	bool ended; /* the other side has closed */
	int error; /* of the last recvmsg() that gave nothing */
	uint32_t records; /* sent with the present key */
	struct wh_tls_out out;
	struct wh_tls_in in;
	char name[WH_NAME_MAX];
	char text[WH_TEXT_MAX];
};

/* One step of a handshake; what SSL_do_handshake() returns. */
int wh_tls_step(struct wh_tls *tls);
/* Whose turn it is on this thread. OpenSSL's callbacks are told nothing that leads to us without
 * OpenSSL's functions, which are not linked: around every call that may end in one. */
void wh_tls_enter(struct wh_tls *tls);
struct wh_tls *wh_tls_entered(void);
/* How OpenSSL reads and writes. NULL: it has no memory left. */
struct bio_method_st *wh_tls_socket_new(const struct wh_ssl *ssl);
/* What an OpenSSL call that returned `result` wants, or what is wrong, as a negative errno. */
int wh_tls_failed(struct wh_tls *tls, int result);
/* The handshake is done: is the other side somebody? 0 or -EACCES. */
int wh_tls_identify(struct wh_tls *tls);
#endif
