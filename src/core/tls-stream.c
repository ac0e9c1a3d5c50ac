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

#define RECORD 16384u          /* the most bytes of ours in one */
#define BATCH (8 * RECORD)     /* of ours, encrypted before they are sent */
#define IN_FIRST (RECORD + 512) /* a record and what is around it */
#define IN_MOST (8 * RECORD)

/* ---- the socket ---------------------------------------------------------------------------------- */

static char *out_bytes(const struct wh_tls *tls, size_t *length)
{
	char *bytes = NULL;
	long all = tls->context->ssl.BIO_ctrl(tls->out, WH_BIO_CTRL_INFO, 0, &bytes);

	*length = all > 0 ? (size_t)all - tls->sent : 0;
	return *length ? bytes + tls->sent : NULL;
}

int wh_tls_flush(struct wh_tls *tls)
{
	size_t length;
	ssize_t got;
	char *bytes;

	if (!tls->out)
		return 0;
	while ((bytes = out_bytes(tls, &length))) {
		got = send(tls->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (got < 0) {
			if (errno == EINTR)
				errno = EAGAIN;
			return -1;
		}
		tls->sent += (size_t)got;
	}
	if (tls->sent)
		tls->context->ssl.BIO_ctrl(tls->out, WH_BIO_CTRL_RESET, 0, NULL);
	tls->sent = 0;
	return 0;
}

bool wh_tls_unsent(const struct wh_tls *tls)
{
	size_t length;

	return tls->out && out_bytes(tls, &length);
}

bool wh_tls_pending(const struct wh_tls *tls)
{
	const struct wh_ssl *ssl = &tls->context->ssl;

	return !tls->kernel_receives &&
	       (ssl->SSL_pending(tls->ssl) > 0 ||
		(tls->in && ssl->BIO_ctrl(tls->in, WH_BIO_CTRL_PENDING, 0, NULL) > 0));
}

/* Have OpenSSL read these bytes, which stay where they are; then it is told to come again. */
static int give(struct wh_tls *tls, size_t length)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	struct bio_st *in = ssl->BIO_new_mem_buf(tls->bytes, (int)length);

	if (!in) {
		errno = ENOMEM;
		return -1;
	}
	ssl->BIO_ctrl(in, WH_BIO_CTRL_SET_MEM_EOF_RETURN, -1, NULL);
	tls->in = in;
	ssl->SSL_set0_rbio(tls->ssl, in); /* the old one is freed */
	return 0;
}

/* More bytes for OpenSSL, which has read all that there were. Returns what recv() returns. */
static ssize_t fetch(struct wh_tls *tls, bool full)
{
	size_t room = full && tls->room < IN_MOST ? 2 * tls->room : tls->room;
	uint8_t *grown;
	ssize_t got;

	if (room > tls->room) {
		/* There is no need for it. */
		grown = malloc(room);
		if (grown && give(tls, 0)) {
			free(grown);
			grown = NULL;
		}
		if (grown) {
			free(tls->bytes);
			tls->bytes = grown;
			tls->room = room;
		}
	}
	got = recv(tls->fd, tls->bytes, tls->room, MSG_DONTWAIT);
	if (got < 0 && errno == EINTR)
		errno = EAGAIN;
	return got > 0 && give(tls, (size_t)got) ? -1 : got;
}

/* ---- the connection's life ------------------------------------------------------------------------ */

static int use_memory(struct wh_tls *tls, bool receiving, bool sending)
{
	const struct wh_ssl *ssl = &tls->context->ssl;

	if (sending) {
		tls->out = ssl->BIO_new(ssl->BIO_s_mem());
		if (!tls->out)
			return -1;
		ssl->SSL_set0_wbio(tls->ssl, tls->out);
	}
	if (!receiving)
		return 0;
	tls->room = IN_FIRST;
	tls->bytes = malloc(tls->room);
	return tls->bytes ? give(tls, 0) : -1;
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
	free(tls->bytes);
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
			got = fetch(tls, false);
		if (got < 0)
			return -errno;
		if (!got) {
			snprintf(tls->text, sizeof(tls->text), "it closed the connection during the TLS handshake");
			return -ECONNRESET;
		}
	}
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

ssize_t wh_tls_send(struct wh_tls *tls, const struct iovec *parts, int count)
{
	struct msghdr message = { .msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count };
	const struct wh_ssl *ssl = &tls->context->ssl;
	struct walk walk = { parts, parts + count, 0 };
	uint8_t together[RECORD];
	size_t total = 0, length;
	const void *bytes;
	int result;

	if (tls->kernel_sends)
		return sendmsg(tls->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (wh_tls_flush(tls))
		return -1;
	while ((bytes = next_record(&walk, together, &length)), length) {
		ssl->ERR_clear_error();
		result = ssl->SSL_write(tls->ssl, bytes, (int)length);
		/* Memory takes all of it, or something is wrong. */
		if (result != (int)length) {
			errno = -wh_tls_failed(tls, result);
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

ssize_t wh_tls_receive(struct wh_tls *tls, const struct iovec *parts, int count)
{
	struct msghdr message = { .msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count };
	const struct wh_ssl *ssl = &tls->context->ssl;
	size_t total = 0, done = 0;
	ssize_t got = 0;
	int result, error;

	if (tls->kernel_receives)
		return recvmsg(tls->fd, &message, MSG_DONTWAIT);
	for (int i = 0; i < count;) {
		size_t left = parts[i].iov_len - done;

		if (!left) {
			done = 0;
			i++;
			continue;
		}
		ssl->ERR_clear_error();
		result = ssl->SSL_read(tls->ssl, (char *)parts[i].iov_base + done,
				       left < INT_MAX ? (int)left : INT_MAX);
		if (result > 0) {
			done += (size_t)result;
			total += (size_t)result;
			continue;
		}
		error = wh_tls_failed(tls, result);
		if (error == -EAGAIN) {
			got = fetch(tls, got == (ssize_t)tls->room);
			if (got > 0)
				continue;
			error = got < 0 ? -errno : 0;
		}
		if (total || !error)
			break;
		errno = -error;
		return -1;
	}
	return (ssize_t)total;
}
