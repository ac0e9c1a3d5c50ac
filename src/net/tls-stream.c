/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a TLS connection. The socket's calls are made here, not by OpenSSL: so none waits
 * and none sends a signal, a record is received by one call and not by two, and several that are
 * sent go as one. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "net/tls.h"
#include "util/error.h"

#define RECORD 16384u /* the most bytes of ours in one */
#define OUT_FIRST 1024u
#define HEADER 5u /* of a record */
#define LENGTH_AT 3u /* in it */

/* ---- OpenSSL's side of the socket
 * ----------------------------------------------------------------- */

static size_t waiting(const struct wh_tls_out *out)
{
	return out->end - out->start;
}

/* What the socket has not taken. */
static bool keep(struct wh_tls_out *out, const char *bytes, size_t length)
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

/* OpenSSL has made a record. The socket takes it from where it is; what is wrong the next flush
 * says. */
static int socket_write(struct bio_st *bio, const char *bytes, int length)
{
	struct wh_tls *tls = wh_tls_entered();
	size_t sent = 0;
	ssize_t got;

	(void)bio;
	if (!waiting(&tls->out)) {
		got = send(tls->fd, bytes, (size_t)length,
			   MSG_DONTWAIT | MSG_NOSIGNAL | (tls->more ? MSG_MORE : 0));
		sent = got > 0 ? (size_t)got : 0;
	}
	if (sent < (size_t)length && !keep(&tls->out, bytes + sent, (size_t)length - sent)) {
		errno = ENOMEM;
		return -1;
	}
	return length;
}

/* OpenSSL asks for a record's header, then for what it says that follows. A large record goes to
 * where it is wanted, and the next one's header comes along with it: one call a record. Small ones
 * come together. */
static ssize_t fetch(struct wh_tls *tls, char *bytes, size_t length)
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

/* That there is nothing left the flags of OpenSSL's end say. */
static int socket_read(struct bio_st *bio, char *bytes, int length)
{
	struct wh_tls *tls = wh_tls_entered();
	struct wh_tls_in *in = &tls->in;
	ssize_t got;

	(void)bio;
	if (in->start == in->end) {
		got = fetch(tls, bytes, (size_t)length);
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

/* ---- the socket
 * ---------------------------------------------------------------------------------- */

int wh_tls_flush(struct wh_tls *tls)
{
	struct wh_tls_out *out = &tls->out;
	ssize_t got;

	while (waiting(out)) {
		got = send(tls->fd, out->bytes + out->start, waiting(out),
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
	return waiting(&tls->out);
}

/* OpenSSL reads on until there is not one record more, so what is in its hands is never half of
 * one. */
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

/* ---- the connection's life
 * ------------------------------------------------------------------------ */

static int use_socket(struct wh_tls *tls, bool receiving, bool sending)
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
	/* The kernel takes over at the end of a handshake that went over OpenSSL's own way to the
	 * socket. */
	if (context->kernel ? !ssl->SSL_set_fd(tls->ssl, fd) : use_socket(tls, true, true))
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

/* OpenSSL's own way to the socket raises SIGPIPE, which is the application's. */
static int shake_quietly(struct wh_tls *tls)
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

/* What the kernel does not do is done here. */
static int settle(struct wh_tls *tls)
{
	const struct wh_ssl *ssl = &tls->context->ssl;

	if (!tls->context->kernel)
		return 0;
	tls->kernel_sends =
		ssl->BIO_ctrl(ssl->SSL_get_wbio(tls->ssl), WH_BIO_CTRL_GET_KTLS_SEND, 0, NULL) > 0;
	tls->kernel_receives =
		ssl->BIO_ctrl(ssl->SSL_get_rbio(tls->ssl), WH_BIO_CTRL_GET_KTLS_RECV, 0, NULL) > 0;
	return use_socket(tls, !tls->kernel_receives, !tls->kernel_sends) ? -ENOMEM : 0;
}

int wh_tls_shake(struct wh_tls *tls)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	int result, error;

	if (tls->shaken)
		return 0;
	ssl->ERR_clear_error();
	result = tls->context->kernel ? shake_quietly(tls) : wh_tls_step(tls);
	error = result == 1 ? 0 : wh_tls_failed(tls, result);
	/* Also of one that has failed: the other side learns why. */
	if (wh_tls_flush(tls) && errno != EAGAIN && !error)
		return -errno;
	if (!error)
		error = wh_tls_identify(tls);
	if (!error)
		error = settle(tls);
	tls->shaken = !error;
	if (error == -EAGAIN && tls->ended) {
		snprintf(tls->text, sizeof(tls->text),
			 "it closed the connection during the TLS handshake");
		return -ECONNRESET;
	}
	return error == -EAGAIN && tls->error ? -tls->error : error;
}

bool wh_tls_shaken(const struct wh_tls *tls)
{
	return tls->shaken;
}

/* ---- sending
 * --------------------------------------------------------------------------------------- */

/* Where in the parts: never at the end of one. */
struct walk {
	const struct iovec *part, *end;
	size_t done; /* of the first */
};

static void step(struct walk *walk, size_t bytes)
{
	walk->done += bytes;
	while (walk->part < walk->end && walk->done == walk->part->iov_len) {
		walk->part++;
		walk->done = 0;
	}
}

/* The next bytes for a record: in place where they make up a whole one, else put together. */
static const void *next_record(struct walk *walk, uint8_t together[RECORD], size_t *length)
{
	size_t used = 0;

	while (walk->part < walk->end && used < RECORD) {
		const char *at = (const char *)walk->part->iov_base + walk->done;
		size_t left = walk->part->iov_len - walk->done;

		if (!used && (left >= RECORD || walk->part + 1 == walk->end)) {
			*length = left < RECORD ? left : RECORD;
			step(walk, *length);
			return at;
		}
		if (left > RECORD - used)
			left = RECORD - used;
		memcpy(together + used, at, left);
		used += left;
		step(walk, left);
	}
	*length = used;
	return together;
}

/* One record, of which all is taken, or something is wrong. `more`: another one follows at once. */
static int write_record(struct wh_tls *tls, const void *bytes, size_t length, bool more)
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
	struct walk walk = { parts, parts + count, 0 };
	uint8_t together[RECORD];
	size_t total = 0, length;
	const void *bytes;
	int error;

	if (tls->kernel_sends)
		return sendmsg(tls->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (wh_tls_flush(tls))
		return -1;
	step(&walk, 0);
	while ((bytes = next_record(&walk, together, &length)), length) {
		error = write_record(tls, bytes, length, walk.part < walk.end);
		if (error) {
			errno = -error;
			return -1;
		}
		total += length;
		/* What the socket does not take waits, and is sent first the next time. */
		if (wh_tls_unsent(tls))
			break;
	}
	if (wh_tls_flush(tls) && errno != EAGAIN)
		return -1;
	return (ssize_t)total;
}

/* ---- receiving
 * -------------------------------------------------------------------------------------- */

/* The bytes of a record, or what is left of it: how many, or a negative errno. */
static int read_record(struct wh_tls *tls, void *bytes, size_t length)
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
		got = read_record(tls, (char *)parts[i].iov_base + done, parts[i].iov_len - done);
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
