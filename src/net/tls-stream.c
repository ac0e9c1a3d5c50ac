/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a TLS connection. This file makes the system calls, not OpenSSL: so none waits or
 * raises SIGPIPE, a record is received with one call instead of two, and records that are sent
 * together leave in one segment.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "net/tls.h"
#include "util/error.h"

#define RECORD 16384u /* payload bytes of a record, at most */
#define OUT_FIRST 1024u /* bytes of the first buffer for unsent bytes */
#define HEADER 5u /* bytes of a record's header */
#define LENGTH_AT 3u /* offset of the length in it */

/* ---- callbacks of OpenSSL ---------------------------------------------- */

static size_t out_waiting(const struct wh_tls_out *out)
{
	return out->end - out->start;
}

/* Keep bytes that the socket has not taken. False: no memory. */
static bool out_keep(struct wh_tls_out *out, const char *bytes, size_t length)
{
	size_t room = out->room ? out->room : OUT_FIRST;
	uint8_t *grown;

	while (room - out->end < length)
		room *= 2;
	if (room != out->room) {
		grown = realloc(out->bytes, room);
		if (!grown)
			return false;
		out->bytes = grown;
		out->room = room;
	}
	memcpy(out->bytes + out->end, bytes, length);
	out->end += length;
	return true;
}

/* Callback: send a record that OpenSSL has made, without copying it if the socket takes it whole.
 * The next flush reports errors of the socket. */
static int socket_write(struct bio_st *bio, const char *bytes, int length)
{
	struct wh_tls *tls = wh_tls_entered();
	size_t sent = 0;
	ssize_t got;

	(void)bio;
	if (!out_waiting(&tls->out)) {
		got = send(tls->fd, bytes, (size_t)length,
			   MSG_DONTWAIT | MSG_NOSIGNAL | (tls->more ? MSG_MORE : 0));
		sent = got > 0 ? (size_t)got : 0;
	}
	if (sent < (size_t)length && !out_keep(&tls->out, bytes + sent, (size_t)length - sent)) {
		errno = ENOMEM;
		return -1;
	}
	return length;
}

/* Receive for OpenSSL, which asks for a record's header first, then for its body. A large body is
 * received in place, together with the next record's header: one call per record. A header is
 * received together with as much as fits the buffer: one call for many small records. Returns the
 * bytes stored in place; 0: see tls->in; -1: none. */
static ssize_t socket_fetch(struct wh_tls *tls, char *bytes, size_t length)
{
	struct wh_tls_in *in = &tls->in;
	struct iovec parts[2] = { { bytes, length }, { in->bytes, HEADER } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	bool small = length <= HEADER;
	ssize_t got;

	if (small) {
		parts[1].iov_len = sizeof(in->bytes);
		message.msg_iov++;
		message.msg_iovlen--;
	}
	got = recvmsg(tls->fd, &message, MSG_DONTWAIT);
	if (got <= 0) {
		tls->ended = !got;
		tls->error = got && errno != EINTR ? errno : EAGAIN;
		return -1;
	}
	in->start = 0;
	if (small) {
		in->end = (uint16_t)got;
		return 0;
	}
	in->end = (size_t)got > length ? (uint16_t)((size_t)got - length) : 0;
	return in->end ? (ssize_t)length : got;
}

/* Callback: give OpenSSL received bytes. -1: none are there; the BIO's flags, set in
 * tls_use_socket(), say that it has to try again. */
static int socket_read(struct bio_st *bio, char *bytes, int length)
{
	struct wh_tls *tls = wh_tls_entered();
	struct wh_tls_in *in = &tls->in;
	ssize_t got;

	(void)bio;
	if (in->start == in->end) {
		got = socket_fetch(tls, bytes, (size_t)length);
		if (got)
			return (int)got;
	}
	got = in->end - in->start < length ? in->end - in->start : length;
	memcpy(bytes, in->bytes + in->start, (size_t)got);
	in->start += (uint16_t)got;
	return (int)got;
}

static long socket_control(struct bio_st *bio, int command, long number, void *pointer)
{
	(void)bio;
	(void)number;
	(void)pointer;
	return command == WH_BIO_CTRL_FLUSH;
}

struct bio_method_st *wh_tls_socket_new(const struct wh_ssl *ssl)
{
	struct bio_method_st *method = ssl->BIO_meth_new(WH_BIO_TYPE_SOURCE_SINK, "wherry");

	if (!method)
		return NULL;
	ssl->BIO_meth_set_read(method, socket_read);
	ssl->BIO_meth_set_write(method, socket_write);
	ssl->BIO_meth_set_ctrl(method, socket_control);
	return method;
}

/* ---- the socket -------------------------------------------------------- */

int wh_tls_flush(struct wh_tls *tls)
{
	struct wh_tls_out *out = &tls->out;
	ssize_t got;

	while (out_waiting(out)) {
		got = send(tls->fd, out->bytes + out->start, out_waiting(out),
			   MSG_DONTWAIT | MSG_NOSIGNAL);
		if (got < 0) {
			if (errno == EINTR)
				errno = EAGAIN;
			return -1;
		}
		out->start += (size_t)got;
	}
	free(out->bytes);
	*out = (struct wh_tls_out){ .bytes = NULL };
	return 0;
}

bool wh_tls_unsent(const struct wh_tls *tls)
{
	return out_waiting(&tls->out);
}

/* OpenSSL reads until no complete record is left, so it never holds a part of one: only complete
 * records in its memory or in tls->in count. */
bool wh_tls_pending(const struct wh_tls *tls)
{
	const struct wh_tls_in *in = &tls->in;
	const uint8_t *header = in->bytes + in->start;
	size_t have = in->end - in->start;

	return !tls->kernel_receives &&
	       (tls->context->ssl.SSL_pending(tls->ssl) > 0 ||
		(have >= HEADER &&
		 have >= HEADER + (size_t)(header[LENGTH_AT] << 8 | header[LENGTH_AT + 1])));
}

/* ---- the connection's life --------------------------------------------- */

/* Have OpenSSL receive or send, or both, through the callbacks. 0, or -1: no memory. */
static int tls_use_socket(struct wh_tls *tls, bool receiving, bool sending)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	struct bio_st *in = NULL, *out = NULL;

	if (receiving) {
		in = ssl->BIO_new(tls->context->socket);
		if (!in)
			return -1;
		ssl->BIO_set_flags(in, WH_BIO_FLAGS_READ_AGAIN);
		ssl->SSL_set0_rbio(tls->ssl, in);
	}
	if (sending) {
		out = ssl->BIO_new(tls->context->socket);
		if (!out)
			return -1;
		ssl->SSL_set0_wbio(tls->ssl, out);
	}
	return 0;
}

struct wh_tls *wh_tls_new(struct wh_tls_context *context, int fd, bool accepting)
{
	const struct wh_ssl *ssl = &context->ssl;
	struct wh_tls *tls = calloc(1, sizeof(*tls));

	if (!tls)
		return NULL;
	tls->context = context;
	tls->fd = fd;
	tls->ssl = ssl->SSL_new(context->handle);
	if (!tls->ssl)
		goto err_free;
	/* The kernel can take over only after a handshake on OpenSSL's own socket BIO. */
	if (context->kernel ? !ssl->SSL_set_fd(tls->ssl, fd) : tls_use_socket(tls, true, true))
		goto err_free;
	if (accepting)
		ssl->SSL_set_accept_state(tls->ssl);
	else
		ssl->SSL_set_connect_state(tls->ssl);
	return tls;

err_free:
	ssl->ERR_clear_error();
	wh_tls_free(tls);
	return NULL;
}

void wh_tls_free(struct wh_tls *tls)
{
	if (!tls)
		return;
	if (tls->ssl)
		tls->context->ssl.SSL_free(tls->ssl);
	free(tls->out.bytes);
	free(tls);
}

/* Continue a handshake on OpenSSL's own socket BIO, which may raise SIGPIPE: block the signal, and
 * consume it unless it was pending before, so that the application never sees it. */
static int tls_shake_without_sigpipe(struct wh_tls *tls)
{
	const struct timespec at_once = { 0, 0 };
	sigset_t pipe, before, pending;
	int result, error;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	result = wh_tls_step(tls);
	error = errno;
	if (!sigismember(&pending, SIGPIPE))
		while (sigtimedwait(&pipe, NULL, &at_once) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = error;
	return result;
}

/* After the handshake: note the directions that the kernel encrypts, and use the callbacks for the
 * others. */
static int tls_choose_directions(struct wh_tls *tls)
{
	const struct wh_ssl *ssl = &tls->context->ssl;

	if (!tls->context->kernel)
		return 0;
	tls->kernel_sends =
		ssl->BIO_ctrl(ssl->SSL_get_wbio(tls->ssl), WH_BIO_CTRL_GET_KTLS_SEND, 0, NULL) > 0;
	tls->kernel_receives =
		ssl->BIO_ctrl(ssl->SSL_get_rbio(tls->ssl), WH_BIO_CTRL_GET_KTLS_RECV, 0, NULL) > 0;
	return tls_use_socket(tls, !tls->kernel_receives, !tls->kernel_sends) ? -ENOMEM : 0;
}

int wh_tls_handshake(struct wh_tls *tls)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	int result, error;

	if (tls->shaken)
		return 0;
	ssl->ERR_clear_error();
	result = tls->context->kernel ? tls_shake_without_sigpipe(tls) : wh_tls_step(tls);
	error = result == 1 ? 0 : wh_tls_failed(tls, result);
	/* Also after a failure: the alert tells the peer why. */
	if (wh_tls_flush(tls) && errno != EAGAIN && !error)
		return -errno;
	if (!error)
		error = wh_tls_identify(tls);
	if (!error)
		error = tls_choose_directions(tls);
	tls->shaken = !error;
	if (error == -EAGAIN && tls->ended) {
		snprintf(tls->text, sizeof(tls->text),
			 "it closed the connection during the TLS handshake");
		return -ECONNRESET;
	}
	return error == -EAGAIN && tls->error ? -tls->error : error;
}

bool wh_tls_established(const struct wh_tls *tls)
{
	return tls->shaken;
}

/* ---- sending ----------------------------------------------------------- */

/* A position in the parts; never at the end of one. */
struct parts_walk {
	const struct iovec *part, *end;
	size_t done; /* bytes of `part` */
};

static void parts_step(struct parts_walk *walk, size_t bytes)
{
	walk->done += bytes;
	while (walk->part < walk->end && walk->done == walk->part->iov_len) {
		walk->part++;
		walk->done = 0;
	}
}

/* The bytes of the next record: in place if they are contiguous, else copied to `together`. */
static const void *parts_next_record(struct parts_walk *walk, uint8_t together[RECORD],
				     size_t *length)
{
	size_t used = 0;

	while (walk->part < walk->end && used < RECORD) {
		const char *at = (const char *)walk->part->iov_base + walk->done;
		size_t left = walk->part->iov_len - walk->done;

		if (!used && (left >= RECORD || walk->part + 1 == walk->end)) {
			*length = left < RECORD ? left : RECORD;
			parts_step(walk, *length);
			return at;
		}
		if (left > RECORD - used)
			left = RECORD - used;
		memcpy(together + used, at, left);
		used += left;
		parts_step(walk, left);
	}
	*length = used;
	return together;
}

/* Encrypt and send one record. `more`: another one follows at once. 0 or a negative errno. */
static int tls_write_record(struct wh_tls *tls, const void *bytes, size_t length, bool more)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	int result;

	if (++tls->records == WH_TLS_REKEY) {
		tls->records = 0;
		ssl->SSL_key_update(tls->ssl, WH_SSL_KEY_UPDATE_NOT_REQUESTED);
	}
	tls->more = more;
	ssl->ERR_clear_error();
	wh_tls_enter(tls);
	result = ssl->SSL_write(tls->ssl, bytes, (int)length);
	wh_tls_enter(NULL);
	return result == (int)length ? 0 : wh_tls_failed(tls, result);
}

ssize_t wh_tls_send(struct wh_tls *tls, const struct iovec *parts, int count)
{
	struct msghdr message = { .msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count };
	struct parts_walk walk = { parts, parts + count, 0 };
	uint8_t together[RECORD];
	size_t total = 0, length;
	const void *bytes;
	int error;

	if (tls->kernel_sends)
		return sendmsg(tls->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (wh_tls_flush(tls))
		return -1;
	parts_step(&walk, 0);
	while ((bytes = parts_next_record(&walk, together, &length)), length) {
		error = tls_write_record(tls, bytes, length, walk.part < walk.end);
		if (error) {
			errno = -error;
			return -1;
		}
		total += length;
		/* The rest of this record waits, and is sent first the next time. */
		if (wh_tls_unsent(tls))
			break;
	}
	if (wh_tls_flush(tls) && errno != EAGAIN)
		return -1;
	return (ssize_t)total;
}

/* ---- receiving --------------------------------------------------------- */

/* Read the bytes of a record, or the rest of it. Returns how many, or a negative errno. */
static int tls_read_record(struct wh_tls *tls, void *bytes, size_t length)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	int result;

	ssl->ERR_clear_error();
	wh_tls_enter(tls);
	result = ssl->SSL_read(tls->ssl, bytes, length < INT_MAX ? (int)length : INT_MAX);
	wh_tls_enter(NULL);
	return result > 0 ? result : wh_tls_failed(tls, result);
}

ssize_t wh_tls_receive(struct wh_tls *tls, const struct iovec *parts, int count)
{
	struct msghdr message = { .msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count };
	size_t total = 0, done = 0;
	int error = 0, got;

	if (tls->kernel_receives)
		return recvmsg(tls->fd, &message, MSG_DONTWAIT);
	for (int i = 0; i < count && !error;) {
		if (done == parts[i].iov_len) {
			done = 0;
			i++;
			continue;
		}
		got = tls_read_record(tls, (char *)parts[i].iov_base + done,
				      parts[i].iov_len - done);
		if (got > 0) {
			done += (size_t)got;
			total += (size_t)got;
			continue;
		}
		if (got == -EAGAIN && tls->ended)
			return (ssize_t)total;
		error = got == -EAGAIN ? -tls->error : got;
	}
	if (total || !error)
		return (ssize_t)total;
	errno = -error;
	return -1;
}
