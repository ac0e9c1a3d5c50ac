/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a TLS connection. OpenSSL reads and writes memory, the socket's calls are made here: so
 * several records go in one call, none of them waits, and none sends a signal. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/tls.h"
#include "util/error.h"

#define RECORD 16384u /* the most bytes of ours in one */
/* Of ours, encrypted before they are sent: few, so that the kernel finds them in the CPU's first cache. */
#define BATCH (2 * RECORD)
#define OUT_FIRST 1024u
#define IN_FIRST (RECORD + 512) /* a record and what is around it */
#define IN_MOST (8 * RECORD)
#define MANY RECORD /* bytes at a time for which memory is kept */
#define QUIET 16    /* until there have been fewer so many times */

/* ---- bytes on their way --------------------------------------------------------------------------- */

static size_t waiting(const struct wh_tls_buffer *buffer)
{
	return buffer->end - buffer->start;
}

/* Nothing is left of what were `bytes`. */
static void drained(struct wh_tls_buffer *buffer, size_t bytes)
{
	buffer->start = buffer->end = 0;
	if (bytes >= MANY)
		buffer->quiet = 0;
	else if (bytes && buffer->quiet < QUIET)
		buffer->quiet++;
	if (buffer->quiet < QUIET)
		return;
	free(buffer->bytes);
	buffer->bytes = NULL;
	buffer->room = 0;
}

/* Room for so many bytes more. */
static bool make_room(struct wh_tls_buffer *buffer, size_t length, size_t first)
{
	size_t room = buffer->room ? buffer->room : first;
	uint8_t *grown;

	if (buffer->room - buffer->end >= length)
		return true;
	while (room - buffer->end < length)
		room *= 2;
	grown = realloc(buffer->bytes, room);
	if (!grown)
		return false;
	buffer->bytes = grown;
	buffer->room = room;
	return true;
}

/* OpenSSL reads; that there is nothing left its flags say. */
static int memory_read(struct bio_st *bio, char *bytes, int length)
{
	struct wh_tls_buffer *in = &wh_tls_entered()->in;
	size_t got = waiting(in) < (size_t)length ? waiting(in) : (size_t)length;

	(void)bio;
	if (!got)
		return -1;
	memcpy(bytes, in->bytes + in->start, got);
	in->start += got;
	return (int)got;
}

static int memory_write(struct bio_st *bio, const char *bytes, int length)
{
	struct wh_tls_buffer *out = &wh_tls_entered()->out;

	(void)bio;
	if (!make_room(out, (size_t)length, OUT_FIRST)) {
		errno = ENOMEM;
		return -1;
	}
	memcpy(out->bytes + out->end, bytes, (size_t)length);
	out->end += (size_t)length;
	return length;
}

static long memory_control(struct bio_st *bio, int command, long number, void *pointer)
{
	(void)bio;
	(void)number;
	(void)pointer;
	return command == WH_BIO_CTRL_FLUSH;
}

struct bio_method_st *wh_tls_memory_new(const struct wh_ssl *ssl)
{
	struct bio_method_st *method = ssl->BIO_meth_new(WH_BIO_TYPE_SOURCE_SINK, "wherry");

	if (!method)
		return NULL;
	ssl->BIO_meth_set_read(method, memory_read);
	ssl->BIO_meth_set_write(method, memory_write);
	ssl->BIO_meth_set_ctrl(method, memory_control);
	return method;
}

/* ---- the socket ---------------------------------------------------------------------------------- */

int wh_tls_flush(struct wh_tls *tls)
{
	struct wh_tls_buffer *out = &tls->out;
	ssize_t got;

	while (waiting(out)) {
		got = send(tls->fd, out->bytes + out->start, waiting(out), MSG_DONTWAIT | MSG_NOSIGNAL);
		if (got < 0) {
			if (errno == EINTR)
				errno = EAGAIN;
			return -1;
		}
		out->start += (size_t)got;
	}
	if (out->end)
		drained(out, out->end);
	return 0;
}

bool wh_tls_unsent(const struct wh_tls *tls)
{
	return waiting(&tls->out);
}

bool wh_tls_pending(const struct wh_tls *tls)
{
	return !tls->kernel_receives &&
	       (waiting(&tls->in) || tls->context->ssl.SSL_pending(tls->ssl) > 0);
}

/* More bytes for OpenSSL, which has read all that there were. Returns what recv() returns. */
static ssize_t fetch(struct wh_tls *tls)
{
	struct wh_tls_buffer *in = &tls->in;
	bool full = in->end && in->end == in->room && in->room < IN_MOST;
	ssize_t got;

	in->start = in->end = 0;
	if (!make_room(in, full ? 2 * in->room : IN_FIRST, IN_FIRST) && !in->room) {
		errno = ENOMEM;
		return -1;
	}
	got = recv(tls->fd, in->bytes, in->room, MSG_DONTWAIT);
	if (got < 0 && errno == EINTR)
		errno = EAGAIN;
	if (got > 0)
		in->end = (size_t)got;
	return got;
}

/* ---- the connection's life ------------------------------------------------------------------------ */

static int use_memory(struct wh_tls *tls, bool receiving, bool sending)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	struct bio_st *in = NULL, *out = NULL;

	if (receiving) {
		in = ssl->BIO_new(tls->context->memory);
		if (!in)
			return -1;
		ssl->BIO_set_flags(in, WH_BIO_FLAGS_READ_AGAIN);
		ssl->SSL_set0_rbio(tls->ssl, in);
	}
	if (sending) {
		out = ssl->BIO_new(tls->context->memory);
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
	tls->in.quiet = tls->out.quiet = QUIET;
	tls->ssl = ssl->SSL_new(context->handle);
	if (!tls->ssl)
		goto err_free;
	/* The kernel takes over at the end of a handshake that went over OpenSSL's own way to the socket. */
	if (context->kernel ? !ssl->SSL_set_fd(tls->ssl, fd) : use_memory(tls, true, true))
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
	free(tls->in.bytes);
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
	tls->kernel_sends = ssl->BIO_ctrl(ssl->SSL_get_wbio(tls->ssl), WH_BIO_CTRL_GET_KTLS_SEND, 0,
					  NULL) > 0;
	tls->kernel_receives = ssl->BIO_ctrl(ssl->SSL_get_rbio(tls->ssl), WH_BIO_CTRL_GET_KTLS_RECV,
					     0, NULL) > 0;
	return use_memory(tls, !tls->kernel_receives, !tls->kernel_sends) ? -ENOMEM : 0;
}

int wh_tls_shake(struct wh_tls *tls)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	ssize_t got = 1;
	int result, error;

	while (!tls->shaken) {
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
		if (error && (error != -EAGAIN || tls->context->kernel))
			return error;
		if (error)
			got = fetch(tls);
		if (got < 0)
			return -errno;
		if (!got) {
			snprintf(tls->text, sizeof(tls->text), "it closed the connection during the TLS handshake");
			return -ECONNRESET;
		}
	}
	if (tls->in.end && !waiting(&tls->in))
		drained(&tls->in, tls->in.end);
	return 0;
}

bool wh_tls_shaken(const struct wh_tls *tls)
{
	return tls->shaken;
}

/* ---- sending --------------------------------------------------------------------------------------- */

/* Where in the parts. */
struct walk {
	const struct iovec *part, *end;
	size_t done; /* of the first */
};

/* The next bytes for a record: in place where they make up a whole one, else put together. */
static const void *next_record(struct walk *walk, uint8_t together[RECORD], size_t *length)
{
	size_t used = 0;

	while (walk->part < walk->end) {
		const char *at = (const char *)walk->part->iov_base + walk->done;
		size_t left = walk->part->iov_len - walk->done;

		if (!used && (left >= RECORD || walk->part + 1 == walk->end)) {
			*length = left < RECORD ? left : RECORD;
			walk->done += *length;
			if (walk->done == walk->part->iov_len) {
				walk->part++;
				walk->done = 0;
			}
			return at;
		}
		if (left > RECORD - used)
			left = RECORD - used;
		memcpy(together + used, at, left);
		used += left;
		walk->done += left;
		if (walk->done == walk->part->iov_len) {
			walk->part++;
			walk->done = 0;
		}
		if (used == RECORD)
			break;
	}
	*length = used;
	return together;
}

/* One record into memory, which takes all of it, or something is wrong. */
static int write_record(struct wh_tls *tls, const void *bytes, size_t length)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	int result;

	if (++tls->records == WH_TLS_REKEY) {
		tls->records = 0;
		ssl->SSL_key_update(tls->ssl, WH_SSL_KEY_UPDATE_NOT_REQUESTED);
	}
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
	while ((bytes = next_record(&walk, together, &length)), length) {
		error = write_record(tls, bytes, length);
		if (error) {
			errno = -error;
			return -1;
		}
		total += length;
		/* What the socket does not take waits, and is sent first the next time. */
		if (total % BATCH == 0 && wh_tls_flush(tls))
			break;
	}
	if (wh_tls_flush(tls) && errno != EAGAIN)
		return -1;
	return (ssize_t)total;
}

/* ---- receiving -------------------------------------------------------------------------------------- */

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
	ssize_t more;

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
		error = got;
		if (error != -EAGAIN)
			break;
		more = fetch(tls);
		if (!more)
			return (ssize_t)total;
		error = more < 0 ? -errno : 0;
	}
	if (!waiting(&tls->in))
		drained(&tls->in, total);
	if (total || !error)
		return (ssize_t)total;
	errno = -error;
	return -1;
}
