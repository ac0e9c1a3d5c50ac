/* SPDX-License-Identifier: Apache-2.0 */
/* A TLS connection between two ends of one thread: what is kept of memory, and keys that wear out. */
#include "unit.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/ssl.h>
#include <wherry/error.h>

#include "core/tls.h"

#define LENGTH (300u << 10)

struct ends {
	struct wh_crypto crypto;
	struct wh_tls_context *context;
	struct wh_tls *tls[2];
	int fd[2];
	uint8_t *out, *in;
};

static void ends_open(struct ends *ends)
{
	static struct wh_config config; /* no certificates: by key */
	struct wh_keys keys = { .count = 1 };
	int error[2] = { -EAGAIN, -EAGAIN };
	uint64_t seed = 1;

	memset(keys.key[0], 7, WH_KEY_SIZE);
	assert_int_equal(wh_crypto_open(&ends->crypto, NULL), 0);
	assert_int_equal(wh_tls_open(&config, &ends->crypto, &keys, &ends->context), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends->fd), 0);
	for (int i = 0; i < 2; i++) {
		ends->tls[i] = wh_tls_new(ends->context, ends->fd[i], i);
		assert_non_null(ends->tls[i]);
	}
	while (error[0] || error[1])
		for (int i = 0; i < 2; i++) {
			error[i] = wh_tls_shake(ends->tls[i]);
			assert_true(!error[i] || error[i] == -EAGAIN);
		}
	ends->out = malloc(LENGTH);
	ends->in = malloc(LENGTH);
	assert_true(ends->out && ends->in);
	for (size_t i = 0; i < LENGTH; i++)
		ends->out[i] = (uint8_t)next_random(&seed);
}

static void ends_close(struct ends *ends)
{
	for (int i = 0; i < 2; i++) {
		wh_tls_free(ends->tls[i]);
		close(ends->fd[i]);
	}
	wh_tls_close(ends->context);
	wh_crypto_close(&ends->crypto);
	free(ends->out);
	free(ends->in);
}

/* Bytes from the first end to the second, in as many turns as the socket takes. */
static void move(struct ends *ends, size_t length)
{
	size_t sent = 0, received = 0;
	struct iovec part;
	ssize_t got;

	memset(ends->in, 0, length);
	while (received < length) {
		part = (struct iovec){ ends->out + sent, length - sent };
		got = sent < length ? wh_tls_send(ends->tls[0], &part, 1) : wh_tls_flush(ends->tls[0]);
		assert_true(got >= 0 || errno == EAGAIN);
		sent += got > 0 ? (size_t)got : 0;
		part = (struct iovec){ ends->in + received, length - received };
		got = wh_tls_receive(ends->tls[1], &part, 1);
		assert_true(got > 0 || (got < 0 && errno == EAGAIN));
		received += got > 0 ? (size_t)got : 0;
	}
	assert_memory_equal(ends->in, ends->out, length);
	assert_false(wh_tls_unsent(ends->tls[0]));
	assert_false(wh_tls_pending(ends->tls[1]));
}

/* Who says little keeps nothing between two words. Who has said much keeps the memory for more of it, until
 * it has said little for a while. */
static void memory__of_the_idle(void **state)
{
	struct ends ends;

	(void)state;
	ends_open(&ends);
	assert_true(!ends.tls[0]->in.room && !ends.tls[1]->in.room);
	assert_true(!ends.tls[0]->out.room && !ends.tls[1]->out.room);
	move(&ends, 100);
	assert_true(!ends.tls[0]->out.room && !ends.tls[1]->in.room);
	move(&ends, LENGTH);
	assert_true(ends.tls[0]->out.room && ends.tls[1]->in.room);
	assert_true(ends.tls[0]->out.room + ends.tls[1]->in.room <= WH_TLS_HELD - (48u << 10));
	for (int i = 0; i < 20; i++)
		move(&ends, 100);
	assert_true(!ends.tls[0]->out.room && !ends.tls[1]->in.room);
	ends_close(&ends);
}

/* Every length about a record's, and what a record does not hold. */
static void move__lengths(void **state)
{
	static const size_t lengths[] = { 1, 16383, 16384, 16385, 32768, 32769, 100000, LENGTH };
	struct ends ends;

	(void)state;
	ends_open(&ends);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		move(&ends, lengths[i]);
	ends_close(&ends);
}

static void count_updates(int sending, int version, int type, const void *bytes, size_t length, SSL *ssl,
			  void *arg)
{
	(void)version;
	(void)ssl;
	if (sending && type == SSL3_RT_HANDSHAKE && length && *(const uint8_t *)bytes == SSL3_MT_KEY_UPDATE)
		++*(unsigned *)arg;
}

/* A key is used for so many records, and then there is another. */
static void key__changed(void **state)
{
	struct ends ends;
	unsigned updates = 0;

	(void)state;
	ends_open(&ends);
	SSL_set_msg_callback(ends.tls[0]->ssl, count_updates);
	SSL_set_msg_callback_arg(ends.tls[0]->ssl, &updates);
	move(&ends, LENGTH);
	assert_int_equal(updates, 0);
	ends.tls[0]->records = WH_TLS_REKEY - 5;
	move(&ends, LENGTH);
	assert_int_equal(updates, 1);
	assert_true(ends.tls[0]->records < LENGTH / 16384 + 1);
	move(&ends, LENGTH);
	assert_int_equal(updates, 1);
	ends_close(&ends);
}

/* Bytes that were changed on the way end the connection; those before them have come. */
static void receive__changed(void **state)
{
	struct iovec part;
	struct ends ends;
	uint8_t wire[256];
	ssize_t got;

	(void)state;
	ends_open(&ends);
	part = (struct iovec){ ends.out, 100 };
	assert_int_equal(wh_tls_send(ends.tls[0], &part, 1), 100);
	got = recv(ends.fd[1], wire, sizeof(wire), 0);
	assert_true(got > 100);
	wire[50] ^= 1;
	assert_int_equal(send(ends.fd[0], wire, (size_t)got, 0), got);
	part = (struct iovec){ ends.in, 100 };
	assert_int_equal(wh_tls_receive(ends.tls[1], &part, 1), -1);
	assert_int_equal(errno, EPROTO);
	assert_non_null(strstr(wh_tls_text(ends.tls[1]), "TLS: "));
	ends_close(&ends);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory__of_the_idle),
		cmocka_unit_test(move__lengths),
		cmocka_unit_test(key__changed),
		cmocka_unit_test(receive__changed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
