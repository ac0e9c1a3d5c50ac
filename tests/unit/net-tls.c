/* SPDX-License-Identifier: Apache-2.0 */
/* net-tls.c: TLS between two ends in one thread: memory use, lengths, key changes */
#include "unit.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/ssl.h>
#include <wherry/error.h>

#include "net/tls.h"

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
	static struct wh_config config; /* no certificates: TLS by key */
	struct wh_keys keys = { .count = 1 };
	int error[2] = { -EAGAIN, -EAGAIN };
	uint64_t seed = 1;

	memset(keys.key[0], 7, WH_KEY_SIZE);
	assert_int_equal(wh_crypto_open(&ends->crypto, NULL), 0);
	assert_int_equal(wh_tls_open(&config, &ends->crypto, &keys, &ends->context), 0);
	assert_int_equal(
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends->fd), 0);
	for (int i = 0; i < 2; i++) {
		ends->tls[i] = wh_tls_new(ends->context, ends->fd[i], i);
		assert_non_null(ends->tls[i]);
	}
	while (error[0] || error[1])
		for (int i = 0; i < 2; i++) {
			error[i] = wh_tls_handshake(ends->tls[i]);
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

/* Move `length` bytes from the first end to the second, in as many steps as the socket requires. */
static void move(struct ends *ends, size_t length)
{
	size_t sent = 0, received = 0;
	struct iovec part;
	ssize_t got;

	memset(ends->in, 0, length);
	while (received < length) {
		part = (struct iovec){ ends->out + sent, length - sent };
		got = sent < length ? wh_tls_send(ends->tls[0], &part, 1) :
				      wh_tls_flush(ends->tls[0]);
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

/* Bytes held because the socket does not accept them. */
static size_t kept(const struct ends *ends)
{
	return ends->tls[0]->out.end - ends->tls[0]->out.start;
}

/* Only what the socket does not accept is held: a part of one record. */
static void memory__of_the_idle(void **state)
{
	struct iovec part;
	struct ends ends;
	ssize_t got;

	(void)state;
	ends_open(&ends);
	assert_null(ends.tls[0]->out.bytes);
	assert_null(ends.tls[1]->out.bytes);
	move(&ends, LENGTH);
	assert_null(ends.tls[0]->out.bytes);
	for (got = 1; !kept(&ends);) {
		part = (struct iovec){ ends.out, LENGTH };
		got = wh_tls_send(ends.tls[0], &part, 1);
		assert_true(got > 0);
	}
	assert_true(wh_tls_unsent(ends.tls[0]));
	assert_true(kept(&ends) <= 16384 + 32 && ends.tls[0]->out.room <= 2 * 16384);
	assert_true(ends.tls[0]->out.room + sizeof(struct wh_tls) + 3 * 17000 <= WH_TLS_HELD);
	assert_int_equal(wh_tls_send(ends.tls[0], &part, 1), -1);
	assert_int_equal(errno, EAGAIN);
	while (wh_tls_unsent(ends.tls[0])) {
		part = (struct iovec){ ends.in, LENGTH };
		assert_true(wh_tls_receive(ends.tls[1], &part, 1) > 0);
		wh_tls_flush(ends.tls[0]);
	}
	assert_null(ends.tls[0]->out.bytes);
	ends_close(&ends);
}

static size_t take(struct ends *ends, size_t at, size_t length)
{
	struct iovec part = { ends->in + at, length };
	ssize_t got = wh_tls_receive(ends->tls[1], &part, 1);

	assert_true(got >= 0 || errno == EAGAIN);
	return got < 0 ? 0 : (size_t)got;
}

/* wh_tls_pending() reports decrypted bytes, which the socket does not show, but not a partial
 * record: a loop that waited for the rest of one would starve its other sockets. */
static void pending__whole_records(void **state)
{
	uint8_t wire[1024];
	struct iovec part;
	struct ends ends;
	ssize_t got;

	(void)state;
	ends_open(&ends);
	for (int i = 0; i < 2; i++) {
		part = (struct iovec){ ends.out + 100 * i, 100 };
		assert_int_equal(wh_tls_send(ends.tls[0], &part, 1), 100);
	}
	got = recv(ends.fd[1], wire, sizeof(wire), 0);
	assert_int_equal(got, 2 * (100 + 22));
	/* The first record, and the second without its last byte. */
	assert_int_equal(send(ends.fd[0], wire, (size_t)got - 1, 0), got - 1);
	assert_int_equal(take(&ends, 0, 60), 60);
	assert_true(wh_tls_pending(ends.tls[1])); /* the rest of a decrypted record */
	assert_int_equal(take(&ends, 60, 40), 40);
	assert_false(wh_tls_pending(ends.tls[1]));
	assert_int_equal(take(&ends, 100, 100), 0);
	assert_false(wh_tls_pending(ends.tls[1]));
	assert_int_equal(send(ends.fd[0], wire + got - 1, 1, 0), 1);
	assert_int_equal(take(&ends, 100, 100), 100);
	/* Two records at once. */
	for (int i = 2; i < 4; i++) {
		part = (struct iovec){ ends.out + 100 * i, 100 };
		assert_int_equal(wh_tls_send(ends.tls[0], &part, 1), 100);
	}
	assert_int_equal(take(&ends, 200, 100), 100);
	assert_true(wh_tls_pending(ends.tls[1]));
	assert_int_equal(take(&ends, 300, 100), 100);
	assert_false(wh_tls_pending(ends.tls[1]));
	assert_memory_equal(ends.in, ends.out, 400);
	ends_close(&ends);
}

/* Parts of any size, the last ones empty, arrive unchanged, whatever the size of the receive
 * buffers. */
static void move__parts(void **state)
{
	uint64_t seed = 3;
	struct ends ends;

	(void)state;
	ends_open(&ends);
	for (int turn = 0; turn < 200; turn++) {
		struct iovec part[6];
		size_t at = 0, received = 0;

		for (int i = 0; i < 6; i++) {
			size_t length = next_random(&seed) % (turn % 2 ? 300 : 25000);

			part[i] = (struct iovec){ ends.out + at,
						  i == 5 || turn % 7 == i ? 0 : length };
			at += part[i].iov_len;
		}
		assert_int_equal(wh_tls_send(ends.tls[0], part, 6), at);
		while (received < at) {
			size_t left = at - received, most = 1 + next_random(&seed) % 30000;

			received += take(&ends, received, most < left ? most : left);
			wh_tls_flush(ends.tls[0]);
		}
		assert_memory_equal(ends.in, ends.out, at);
		assert_false(wh_tls_pending(ends.tls[1]));
	}
	ends_close(&ends);
}

/* Every length around a record's, and lengths beyond it. */
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

static void count_updates(int sending, int version, int type, const void *bytes, size_t length,
			  SSL *ssl, void *arg)
{
	(void)version;
	(void)ssl;
	if (sending && type == SSL3_RT_HANDSHAKE && length &&
	    *(const uint8_t *)bytes == SSL3_MT_KEY_UPDATE)
		++*(unsigned *)arg;
}

/* After a number of records the key changes. */
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

/* Bytes changed in transit end the connection; those before them arrive. */
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
		cmocka_unit_test(memory__of_the_idle), cmocka_unit_test(pending__whole_records),
		cmocka_unit_test(move__lengths),       cmocka_unit_test(move__parts),
		cmocka_unit_test(key__changed),        cmocka_unit_test(receive__changed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
