/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 for control and data connections, if the setting `tls` is on: authentication (tls.c), and
 * bytes in and out without waiting (tls-stream.c). docs/security.md.
 *
 * One thread at a time may use a connection. If the kernel encrypts (kernel TLS), bytes are sent
 * with sendmsg(), as on a plain connection.
 */
#ifndef WH_NET_TLS_H
#define WH_NET_TLS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "net/channel.h"
#include "net/keyfile.h"
#include "platform/ssl.h"
#include "util/config.h"
#include "util/error.h"
#include "wire/wire.h"

struct wh_tls_context;
struct wh_tls; /* one connection */

/* Bytes of memory that a connection takes at most: buffers of both directions, and OpenSSL's. */
#define WH_TLS_HELD (96u << 10)

/* Set up TLS for an engine: with the certificate, key and authorities that the settings name, or
 * else with `keys` as pre-shared keys: it offers the first and accepts all. 0, or with a text
 * -EINVAL, -EACCES, -ELIBACC (no OpenSSL), -EOPNOTSUPP, -ENOMEM or an errno of a file. */
int wh_tls_open(const struct wh_config *config, const struct wh_crypto *crypto,
		const struct wh_keys *keys, struct wh_tls_context **out);
/* NULL is allowed. All connections have been freed. */
void wh_tls_close(struct wh_tls_context *context);
/* Do the settings name certificates? */
bool wh_tls_by_certificate(const struct wh_config *config);

/* Start TLS on a connected socket, which the caller keeps and closes. NULL: no memory. */
struct wh_tls *wh_tls_new(struct wh_tls_context *context, int fd, bool accepting);
void wh_tls_free(struct wh_tls *tls);
/* The same as a channel; net/channel.h describes the functions below as well. */
struct wh_channel *wh_tls_channel_new(struct wh_tls_context *context, int fd, bool accepting);

/* Continue the TLS handshake. 0: it is complete; -EAGAIN: call again when the socket is ready; or
 * -EACCES, -EPROTO, -ECONNRESET or another negative errno, and wh_tls_text() says why. */
int wh_tls_handshake(struct wh_tls *tls);
/* Is the handshake complete? */
bool wh_tls_established(const struct wh_tls *tls);

/* Like sendmsg() and recvmsg() on a non-blocking socket: the bytes, or -1 and errno. wh_tls_send()
 * may keep a part of the bytes that it has accepted until the socket has room: see wh_tls_flush().
 * A short wh_tls_receive() means that no more bytes are there. */
ssize_t wh_tls_send(struct wh_tls *tls, const struct iovec *parts, int count);
ssize_t wh_tls_receive(struct wh_tls *tls, const struct iovec *parts, int count);
/* Send the bytes that wait for room in the socket. 0: none is left; or -1 and errno. */
int wh_tls_flush(struct wh_tls *tls);
/* Do bytes wait for room in the socket? */
bool wh_tls_unsent(const struct wh_tls *tls);
/* Are received bytes held in memory, for which epoll reports no event? */
bool wh_tls_pending(const struct wh_tls *tls);

/* Why the last call failed; "" if there is nothing to add to its errno. */
const char *wh_tls_text(const struct wh_tls *tls);
/* The common name (CN) in the peer's certificate; "": pre-shared keys. */
const char *wh_tls_name(const struct wh_tls *tls);
/* Describe the encryption: "encrypted: TLS 1.3, AES_128_GCM" or "kernel TLS 1.3, AES_128_GCM". */
void wh_tls_describe(const struct wh_tls *tls, char *out, size_t size);

/* Derive the key that the handshake on this connection proves, from `key` and a secret of the
 * connection, so that a man in the middle of two connections cannot relay the proofs. 0 or
 * -EIO. */
int wh_tls_bind(const struct wh_tls *tls, const struct wh_crypto *crypto,
		const uint8_t key[WH_KEY_SIZE], uint8_t out[WH_KEY_SIZE]);

/* ---- between tls.c and tls-stream.c ------------------------------------ */

struct wh_tls_context {
	struct wh_ssl ssl;
	struct ssl_ctx_st *handle;
	struct bio_method_st *socket; /* how OpenSSL reads and writes */
	bool kernel; /* the kernel can encrypt */
	bool encrypted; /* a key file is encrypted with a password */
	char certificate[WH_CONFIG_TEXT]; /* the file; "": pre-shared keys */
	unsigned count;
	struct {
		char name[8 + WH_FINGERPRINT];
		uint8_t key[WH_KEY_SIZE];
	} shared[WH_KEYS_MAX];
};

/* Records sent with one key. AES-GCM allows 2^24.5 (RFC 8446, 5.5), or 380 GB: minutes on a fast
 * network. */
#define WH_TLS_REKEY (1u << 22)

/* Encrypted bytes that the socket has not taken: a little more than a record, at most. Empty, it
 * has no memory. */
struct wh_tls_out {
	uint8_t *bytes;
	size_t start, end, room;
};

/* Bytes received from the socket that OpenSSL has not read. */
struct wh_tls_in {
	uint16_t start, end;
	uint8_t bytes[508];
};

struct wh_tls {
	struct wh_channel channel;
	struct wh_tls_context *context;
	struct ssl_st *ssl;
	int fd;
	bool shaken, kernel_sends, kernel_receives;
	bool more; /* another record follows at once: MSG_MORE */
	bool ended; /* the peer has closed the connection */
	int error; /* errno of the last recvmsg() that returned no bytes */
	uint32_t records; /* sent with the current key */
	struct wh_tls_out out;
	struct wh_tls_in in;
	char name[WH_NAME_MAX];
	char text[WH_TEXT_MAX];
};

/* Call SSL_do_handshake() and return its result. */
int wh_tls_step(struct wh_tls *tls);
/* Set and get the connection that this thread works on, for OpenSSL's callbacks: their arguments do
 * not lead to it, except through OpenSSL functions that are not loaded. Set it around every call
 * that may invoke a callback. */
void wh_tls_enter(struct wh_tls *tls);
struct wh_tls *wh_tls_entered(void);
/* The BIO method by which OpenSSL reads and writes: socket_read() and socket_write(). NULL: no
 * memory. */
struct bio_method_st *wh_tls_socket_new(const struct wh_ssl *ssl);
/* Translate the failure of an OpenSSL call that returned `result`: -EAGAIN if it needs the socket,
 * or another negative errno, with tls->text. */
int wh_tls_failed(struct wh_tls *tls, int result);
/* After the handshake, check that the peer is authenticated, and get its name. 0 or -EACCES. */
int wh_tls_identify(struct wh_tls *tls);
#endif
