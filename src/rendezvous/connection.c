/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection to a registry that does not speak HTTP (redis), with TLS or without. Every call ends
 * at its deadline, or soon after the engine closes. OpenSSL reads and writes memory and this file
 * the socket: OpenSSL's own writes to a closed socket would raise SIGPIPE.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef HAVE_OPENSSL
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

#include "rendezvous/module.h"
#include "util/clock.h"

#define STOP_INTERVAL (50 * WH_MS) /* between two checks of `stop` */
#define TLS_CHUNK (16 << 10) /* bytes between OpenSSL and the socket at a time */

static int connection_failed(const struct wh_connection *connection, int error, const char *why)
{
	return wh_fail(error, "registry %.80s: %.140s", connection->url->endpoint[0], why);
}

/* Wait until the socket is ready or STOP_INTERVAL has passed. */
static int connection_wait(const struct wh_connection *connection, short events, int64_t deadline)
{
	struct pollfd fd = { .fd = connection->fd, .events = events };
	int64_t left = deadline - wh_now();

	if (atomic_load(connection->stop))
		return connection_failed(connection, ECANCELED, "the engine is closing");
	if (left <= 0)
		return connection_failed(connection, ETIMEDOUT, "no answer in time");
	poll(&fd, 1, (int)((left < STOP_INTERVAL ? left : STOP_INTERVAL) / WH_MS + 1));
	return 0;
}

/* ---- the socket ------------------------------------------------------------------------------ */

static int connection_broken(const struct wh_connection *connection, int error)
{
	bool away = error == EHOSTUNREACH || error == ENETUNREACH;

	return connection_failed(connection,
				 away                  ? EHOSTUNREACH :
				 error == ECONNREFUSED ? ECONNREFUSED :
							 ECONNRESET,
				 strerror(error));
}

static int connection_put(const struct wh_connection *connection, const char *bytes, size_t length,
			  int64_t deadline)
{
	while (length) {
		ssize_t sent = send(connection->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
		int error = 0;

		if (sent > 0) {
			bytes += sent;
			length -= (size_t)sent;
		} else if (errno == EAGAIN || errno == EINTR) {
			error = connection_wait(connection, POLLOUT, deadline);
		} else {
			error = connection_broken(connection, errno);
		}
		if (error)
			return error;
	}
	return 0;
}

/* Receive at least one byte; or a negative errno. */
static ssize_t connection_get(const struct wh_connection *connection, char *bytes, size_t room,
			      int64_t deadline)
{
	for (;;) {
		ssize_t got = recv(connection->fd, bytes, room, MSG_DONTWAIT);
		int error;

		if (got > 0)
			return got;
		if (!got)
			return connection_failed(connection, ECONNRESET,
						 "the server has closed the connection");
		if (errno != EAGAIN && errno != EINTR)
			return connection_broken(connection, errno);
		error = connection_wait(connection, POLLIN, deadline);
		if (error)
			return error;
	}
}

/* Connect to one address. -EAGAIN, with the errno in *why: try the next address. */
static int connection_try(struct wh_connection *connection, const struct addrinfo *address,
			  int64_t deadline, int *why)
{
	struct pollfd fd;
	socklen_t length = sizeof(*why);
	int error, one = 1;

	*why = 0;
	connection->fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (connection->fd < 0 || (connect(connection->fd, address->ai_addr, address->ai_addrlen) &&
				   errno != EINPROGRESS)) {
		*why = errno;
		return -EAGAIN;
	}
	setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fd = (struct pollfd){ .fd = connection->fd, .events = POLLOUT };
	while (poll(&fd, 1, 0) != 1) {
		error = connection_wait(connection, POLLOUT, deadline);
		if (error)
			return error;
	}
	getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, why, &length);
	return *why ? -EAGAIN : 0;
}

static int connection_connect(struct wh_connection *connection, int64_t deadline)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct addrinfo *all = NULL;
	int error = -EAGAIN, why = EHOSTUNREACH, code;

	code = getaddrinfo(connection->host, connection->port, &hints, &all);
	if (code)
		return connection_failed(connection, EHOSTUNREACH, gai_strerror(code));
	for (const struct addrinfo *one = all; one && error == -EAGAIN; one = one->ai_next) {
		error = connection_try(connection, one, deadline, &why);
		if (error)
			wh_connection_end(connection);
	}
	freeaddrinfo(all);
	return error == -EAGAIN ? connection_broken(connection, why) : error;
}

/* ---- TLS ------------------------------------------------------------------------------------- */

#ifdef HAVE_OPENSSL

/* Send what OpenSSL has written. */
static int tls_flush(const struct wh_connection *connection, int64_t deadline)
{
	char bytes[TLS_CHUNK];
	int length, error = 0;

	while (!error &&
	       (length = BIO_read(SSL_get_wbio(connection->tls), bytes, sizeof(bytes))) > 0)
		error = connection_put(connection, bytes, (size_t)length, deadline);
	return error;
}

/* An OpenSSL call failed with `result`. 0: call it again; else the error. */
static int tls_retry(const struct wh_connection *connection, int result, int64_t deadline)
{
	int kind = SSL_get_error(connection->tls, result), error;
	long verified = SSL_get_verify_result(connection->tls);
	char bytes[TLS_CHUNK];
	const char *why;
	ssize_t got;

	error = tls_flush(connection, deadline); /* it may be an alert */
	if (kind == SSL_ERROR_WANT_READ) {
		got = error ? error : connection_get(connection, bytes, sizeof(bytes), deadline);
		if (got > 0 && BIO_write(SSL_get_rbio(connection->tls), bytes, (int)got) != got)
			return connection_failed(connection, ENOMEM, "no memory");
		return got > 0 ? 0 : (int)got;
	}
	if (kind == SSL_ERROR_ZERO_RETURN)
		return connection_failed(connection, ECONNRESET,
					 "the server has closed the connection");
	why = ERR_reason_error_string(ERR_peek_error());
	if (verified != X509_V_OK)
		return wh_fail(
			EACCES, "registry %.80s: the server's certificate is not accepted: %.100s",
			connection->url->endpoint[0], X509_verify_cert_error_string(verified));
	why = why ? why : "no reason given";
	return wh_fail(strstr(why, " alert ") ? EACCES : EPROTO, "registry %.80s: TLS: %.100s",
		       connection->url->endpoint[0], why);
}

static int tls_start(struct wh_connection *connection, int64_t deadline)
{
	BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
	SSL *tls = SSL_new(connection->context);
	int result, error = 0;
	bool named;

	connection->tls = tls;
	if (!in || !out || !tls) {
		BIO_free(in);
		BIO_free(out);
		return connection_failed(connection, ENOMEM, "no memory for TLS");
	}
	SSL_set_bio(tls, in, out); /* takes ownership of both */
	SSL_set_connect_state(tls);
	named = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), connection->host);
	/* Not an address: a host name. */
	if (!named)
		named = SSL_set1_host(tls, connection->host) &&
			SSL_set_tlsext_host_name(tls, connection->host);
	if (!named)
		return connection_failed(connection, ENOMEM, "OpenSSL cannot start TLS");
	ERR_clear_error();
	while (!error && (result = SSL_do_handshake(tls)) != 1)
		error = tls_retry(connection, result, deadline);
	return error ? error : tls_flush(connection, deadline);
}

static int tls_send(const struct wh_connection *connection, const char *bytes, size_t length,
		    int64_t deadline)
{
	int error = 0, sent;

	ERR_clear_error();
	while (!error && (sent = SSL_write(connection->tls, bytes, (int)length)) <= 0)
		error = tls_retry(connection, sent, deadline);
	return error ? error : tls_flush(connection, deadline);
}

static ssize_t tls_receive(const struct wh_connection *connection, char *bytes, size_t room,
			   int64_t deadline)
{
	int error = 0, got;

	ERR_clear_error();
	while (!error && (got = SSL_read(connection->tls, bytes, (int)room)) <= 0)
		error = tls_retry(connection, got, deadline);
	return error ? error : got;
}

/* OpenSSL's default callback would ask on the terminal. */
static int tls_no_password(char *into, int room, int writing, void *argument)
{
	(void)into, (void)room, (void)writing, (void)argument;
	return -1;
}

static int tls_open_context(struct wh_connection *connection)
{
	const struct wh_registry_url *url = connection->url;
	SSL_CTX *context = SSL_CTX_new(TLS_client_method());
	int error = 0;

	if (!context)
		return wh_fail(ENOMEM, "registry: OpenSSL cannot start TLS");
	ERR_clear_error();
	SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
	SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_default_passwd_cb(context, tls_no_password);
	if (!(*url->cacert ? SSL_CTX_load_verify_locations(context, url->cacert, NULL) :
			     SSL_CTX_set_default_verify_paths(context)))
		error = wh_fail(EINVAL, "registry: cacert=%.120s: cannot read certificates from it",
				url->cacert);
	else if (*url->cert && SSL_CTX_use_certificate_chain_file(context, url->cert) != 1)
		error = wh_fail(EINVAL, "registry: cert=%.120s: cannot read a certificate from it",
				url->cert);
	else if (*url->cert &&
		 SSL_CTX_use_PrivateKey_file(context, url->key, SSL_FILETYPE_PEM) != 1)
		error = wh_fail(
			EINVAL,
			"registry: key=%.120s: cannot read the key of that certificate from it",
			url->key);
	if (error)
		SSL_CTX_free(context);
	else
		connection->context = context;
	return error;
}

static void tls_end(struct wh_connection *connection)
{
	SSL_free(connection->tls);
	connection->tls = NULL;
}

static void tls_free_context(struct wh_connection *connection)
{
	SSL_CTX_free(connection->context);
}

#else

static int tls_start(struct wh_connection *connection, int64_t deadline)
{
	(void)deadline;
	return connection_failed(connection, EINVAL, "this build of Wherry is without TLS");
}

static int tls_send(const struct wh_connection *connection, const char *bytes, size_t length,
		    int64_t deadline)
{
	return connection_put(connection, bytes, length, deadline);
}

static ssize_t tls_receive(const struct wh_connection *connection, char *bytes, size_t room,
			   int64_t deadline)
{
	return connection_get(connection, bytes, room, deadline);
}

static int tls_open_context(struct wh_connection *connection)
{
	return wh_fail(EINVAL,
		       "registry: %ss:// needs OpenSSL, and this build of Wherry is without it",
		       connection->url->scheme);
}

static void tls_end(struct wh_connection *connection)
{
	(void)connection;
}

static void tls_free_context(struct wh_connection *connection)
{
	(void)connection;
}

#endif

/* ---- the connection -------------------------------------------------------------------------- */

int wh_connection_init(struct wh_connection *connection, const struct wh_registry_setup *setup)
{
	const char *host = setup->url->endpoint[0], *port = strrchr(host, ':');
	int length = (int)(port - host), error = wh_registry_key_check(setup->url);
	bool six = *host == '['; /* the resolver takes IPv6 addresses without brackets */

	*connection = (struct wh_connection){ .url = setup->url, .stop = setup->stop, .fd = -1 };
	snprintf(connection->host, sizeof(connection->host), "%.*s", length - 2 * six, host + six);
	snprintf(connection->port, sizeof(connection->port), "%s", port + 1);
	return error ? error : setup->url->tls ? tls_open_context(connection) : 0;
}

int wh_connection_begin(struct wh_connection *connection, int64_t deadline)
{
	int error = connection_connect(connection, deadline);

	if (!error && connection->url->tls)
		error = tls_start(connection, deadline);
	if (error)
		wh_connection_end(connection);
	return error;
}

int wh_connection_send(struct wh_connection *connection, const char *bytes, size_t length,
		       int64_t deadline)
{
	return connection->tls ? tls_send(connection, bytes, length, deadline) :
				 connection_put(connection, bytes, length, deadline);
}

ssize_t wh_connection_receive(struct wh_connection *connection, char *bytes, size_t room,
			      int64_t deadline)
{
	return connection->tls ? tls_receive(connection, bytes, room, deadline) :
				 connection_get(connection, bytes, room, deadline);
}

void wh_connection_end(struct wh_connection *connection)
{
	tls_end(connection);
	if (connection->fd >= 0)
		close(connection->fd);
	connection->fd = -1;
}

void wh_connection_destroy(struct wh_connection *connection)
{
	wh_connection_end(connection);
	tls_free_context(connection);
}
