/* SPDX-License-Identifier: Apache-2.0 */
/* The raw limit where the setting tls is on: blocking SSL_write() and SSL_read() on OpenSSL's own
 * sockets, as the plainest program has them. Both ends make up the key: how they came to trust each
 * other makes no difference to the bytes. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>

#include <openssl/ssl.h>

#include "bench/bench.h"

static const unsigned char key[32] = "both ends are of one process";

static unsigned int client_key(SSL *ssl, const char *hint, char *identity, unsigned int room,
			       unsigned char *psk, unsigned int most)
{
	(void)ssl;
	(void)hint;
	if (room < sizeof("bench") || most < sizeof(key))
		return 0;
	memcpy(identity, "bench", sizeof("bench"));
	memcpy(psk, key, sizeof(key));
	return sizeof(key);
}

static unsigned int server_key(SSL *ssl, const char *identity, unsigned char *psk,
			       unsigned int most)
{
	(void)ssl;
	if (strcmp(identity, "bench") != 0 || most < sizeof(key))
		return 0;
	memcpy(psk, key, sizeof(key));
	return sizeof(key);
}

static SSL *new_end(int fd, uint32_t cipher, bool accepting)
{
	SSL_CTX *context = SSL_CTX_new(TLS_method());
	SSL *ssl = NULL;

	if (!context)
		return NULL;
	SSL_CTX_set_psk_client_callback(context, client_key);
	SSL_CTX_set_psk_server_callback(context, server_key);
	if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) &&
	    SSL_CTX_set_num_tickets(context, 0) &&
	    SSL_CTX_set_ciphersuites(context, cipher == BENCH_TLS_CHACHA20 ?
						      "TLS_CHACHA20_POLY1305_SHA256" :
						      "TLS_AES_128_GCM_SHA256"))
		ssl = SSL_new(context);
	SSL_CTX_free(context); /* the connection holds a reference */
	if (ssl && !SSL_set_fd(ssl, fd)) {
		SSL_free(ssl);
		return NULL;
	}
	if (ssl && accepting)
		SSL_set_accept_state(ssl);
	else if (ssl)
		SSL_set_connect_state(ssl);
	return ssl;
}

int bench_tls_start(struct bench_pipe *pipe, uint32_t cipher, bool accepting)
{
	if (cipher == BENCH_TLS_NONE)
		return 0;
	/* A closed connection must be an error; OpenSSL's write() has no MSG_NOSIGNAL. */
	signal(SIGPIPE, SIG_IGN);
	pipe->ssl = new_end(pipe->fd, cipher, accepting);
	if (!pipe->ssl)
		return -ENOMEM;
	return SSL_do_handshake(pipe->ssl) == 1 ? 0 : -EPROTO;
}

void bench_tls_end(struct bench_pipe *pipe)
{
	SSL_free(pipe->ssl);
	pipe->ssl = NULL;
}

/* OpenSSL's calls have no flags, so the socket itself blocks or not. */
static int set_spin(struct bench_pipe *pipe, bool spin)
{
	int flags;

	if (pipe->spins == spin)
		return 0;
	flags = fcntl(pipe->fd, F_GETFL);
	if (flags < 0 || fcntl(pipe->fd, F_SETFL, spin ? flags | O_NONBLOCK : flags & ~O_NONBLOCK))
		return -1;
	pipe->spins = spin;
	return 0;
}

static ssize_t result_of(struct bench_pipe *pipe, int result)
{
	int kind;

	if (result > 0)
		return result;
	kind = SSL_get_error(pipe->ssl, result);
	if (kind == SSL_ERROR_ZERO_RETURN)
		return 0;
	if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE)
		errno = EAGAIN;
	else if (kind != SSL_ERROR_SYSCALL || !errno)
		errno = kind == SSL_ERROR_SYSCALL ? ECONNRESET : EPROTO;
	return -1;
}

ssize_t bench_tls_send(struct bench_pipe *pipe, const void *bytes, size_t length, bool spin)
{
	if (set_spin(pipe, spin))
		return -1;
	return result_of(pipe,
			 SSL_write(pipe->ssl, bytes, length < INT_MAX ? (int)length : INT_MAX));
}

ssize_t bench_tls_recv(struct bench_pipe *pipe, void *bytes, size_t length, bool spin)
{
	if (set_spin(pipe, spin))
		return -1;
	return result_of(pipe,
			 SSL_read(pipe->ssl, bytes, length < INT_MAX ? (int)length : INT_MAX));
}
