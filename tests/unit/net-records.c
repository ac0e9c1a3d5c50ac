/* SPDX-License-Identifier: Apache-2.0 */
/* net-records.c: the channel of records between two ends in one thread: lengths, bytes that are
 * held, memory, damage */
#include "unit.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/records.h"
#include "wire/record.h"

#define LENGTH (300u << 10)

struct ends {
	struct wh_channel *channel[2];
	int fd[2];
	uint8_t *out, *in;
};

static void ends_open(struct ends *ends, uint32_t most)
{
	uint64_t seed = 1;

	assert_int_equal(
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends->fd), 0);
	for (int i = 0; i < 2; i++) {
		ends->channel[i] = wh_records_new(ends->fd[i], 77, most, i);
		assert_non_null(ends->channel[i]);
		assert_true(wh_channel_established(ends->channel[i]));
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
		wh_channel_free(ends->channel[i]);
		close(ends->fd[i]);
	}
	free(ends->out);
	free(ends->in);
}

static ssize_t give(struct ends *ends, size_t from, size_t length)
{
	struct iovec part = { ends->out + from, length };

	return wh_channel_send(ends->fd[0], ends->channel[0], &part, 1);
}

static ssize_t take(struct ends *ends, size_t at, size_t length)
{
	struct iovec part = { ends->in + at, length };

	return wh_channel_receive(ends->fd[1], ends->channel[1], &part, 1);
}

/* Move `length` bytes from the first end to the second, in as many steps as the socket requires. */
static void move(struct ends *ends, size_t length)
{
	size_t sent = 0, received = 0;
	ssize_t got;

	memset(ends->in, 0, length);
	while (received < length) {
		got = sent < length ? give(ends, sent, length - sent) :
				      wh_channel_flush(ends->channel[0]);
		assert_true(got >= 0 || errno == EAGAIN);
		sent += got > 0 ? (size_t)got : 0;
		got = take(ends, received, length - received);
		assert_true(got > 0 || (got < 0 && errno == EAGAIN));
		received += got > 0 ? (size_t)got : 0;
	}
	assert_memory_equal(ends->in, ends->out, length);
	assert_false(wh_channel_unsent(ends->channel[0]));
	assert_false(wh_channel_pending(ends->channel[1]));
}

static void move__lengths(void **state)
{
	static const size_t lengths[] = { 1,    7,    8,     9,     4095,  4096,   4097,
					  4112, 4113, 65535, 65536, 65537, 131072, LENGTH };
	static const uint32_t most[] = { WH_RECORD_CONTROL_MAX, WH_RECORD_DATA_MAX };
	struct ends ends;

	(void)state;
	for (size_t k = 0; k < sizeof(most) / sizeof(*most); k++) {
		ends_open(&ends, most[k]);
		for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
			move(&ends, lengths[i]);
		for (size_t i = 1; i < 200; i++)
			move(&ends, i);
		ends_close(&ends);
	}
}

/* Bytes from and to several parts, some of them empty. */
static void move__parts(void **state)
{
	struct iovec part[6];
	struct ends ends;
	size_t at;

	(void)state;
	ends_open(&ends, WH_RECORD_DATA_MAX);
	for (size_t step = 1; step < 3000; step += 97) {
		at = 0;
		for (size_t i = 0; i < 6; i++) {
			part[i] = (struct iovec){ ends.out + at, i % 2 ? step * i : i / 4 };
			at += part[i].iov_len;
		}
		assert_int_equal(wh_channel_send(ends.fd[0], ends.channel[0], part, 6), at);
		memset(ends.in, 0, at);
		at = 0;
		for (size_t i = 0; i < 6; i++) {
			size_t k = 5 - i;

			part[i] = (struct iovec){ ends.in + at, k % 2 ? step * k : k / 4 };
			at += part[i].iov_len;
		}
		assert_int_equal(wh_channel_receive(ends.fd[1], ends.channel[1], part, 6), at);
		assert_memory_equal(ends.in, ends.out, at);
		assert_false(wh_channel_pending(ends.channel[1]));
	}
	ends_close(&ends);
}

/* Bytes that raise no event are reported, a partial record is not. */
static void pending__whole_records(void **state)
{
	uint8_t record[2 * (WH_RECORD_HEADER + 100)];
	struct ends ends;

	(void)state;
	ends_open(&ends, WH_RECORD_DATA_MAX);
	for (int i = 0; i < 3; i++)
		assert_int_equal(give(&ends, 0, 100), 100);
	assert_int_equal(take(&ends, 0, 60), 60);
	assert_true(wh_channel_pending(ends.channel[1])); /* the rest of a checked record */
	assert_int_equal(take(&ends, 0, 40), 40);
	assert_true(wh_channel_pending(ends.channel[1])); /* further records */
	assert_int_equal(take(&ends, 0, 1000), 200);
	assert_false(wh_channel_pending(ends.channel[1]));
	/* One record and a half. */
	assert_int_equal(give(&ends, 0, 100), 100);
	assert_int_equal(give(&ends, 100, 100), 100);
	assert_int_equal(recv(ends.fd[1], record, sizeof(record), 0), sizeof(record));
	assert_int_equal(send(ends.fd[0], record, 150, 0), 150);
	assert_int_equal(take(&ends, 0, 1000), 100);
	assert_false(wh_channel_pending(ends.channel[1]));
	assert_int_equal(take(&ends, 100, 1000), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(send(ends.fd[0], record + 150, sizeof(record) - 150, 0),
			 sizeof(record) - 150);
	assert_int_equal(take(&ends, 100, 1000), 100);
	assert_memory_equal(ends.in, ends.out, 200);
	/* The end of the stream. */
	shutdown(ends.fd[0], SHUT_WR);
	assert_int_equal(take(&ends, 0, 1000), 0);
	ends_close(&ends);
}

/* A full socket: at most one record is held, and flushed later. */
static void send__full_socket(void **state)
{
	size_t sent = 0, received = 0;
	struct ends ends;
	ssize_t got;

	(void)state;
	ends_open(&ends, WH_RECORD_DATA_MAX);
	while (!wh_channel_unsent(ends.channel[0])) {
		got = give(&ends, 0, LENGTH);
		assert_true(got > 0);
		sent += (size_t)got;
	}
	assert_int_equal(give(&ends, 0, 1), -1);
	assert_int_equal(errno, EAGAIN);
	while (received < sent) {
		got = take(&ends, 0, LENGTH);
		assert_true(got > 0);
		received += (size_t)got;
		wh_channel_flush(ends.channel[0]);
	}
	assert_false(wh_channel_unsent(ends.channel[0]));
	ends_close(&ends);
}

/* Good records before the damage are delivered; the damage stays, and is reported though the socket
 * is empty. */
static void damage__behind_good_bytes(void **state)
{
	uint8_t record[2 * (WH_RECORD_HEADER + 100)];
	struct ends ends;

	(void)state;
	ends_open(&ends, WH_RECORD_CONTROL_MAX);
	assert_int_equal(give(&ends, 0, 100), 100);
	assert_int_equal(give(&ends, 100, 100), 100);
	assert_int_equal(recv(ends.fd[1], record, sizeof(record), 0), sizeof(record));
	record[sizeof(record) - 1] ^= 4;
	assert_int_equal(send(ends.fd[0], record, sizeof(record), 0), sizeof(record));
	memset(ends.in, 0, 200);
	assert_int_equal(take(&ends, 0, 200), 100);
	assert_memory_equal(ends.in, ends.out, 100);
	assert_int_equal(ends.in[100], 0);
	assert_true(wh_channel_pending(ends.channel[1]));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(take(&ends, 100, 100), -1);
		assert_int_equal(errno, EBADMSG);
	}
	assert_non_null(strstr(wh_channel_text(ends.channel[1]), "record 1 "));
	ends_close(&ends);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(move__lengths),
		cmocka_unit_test(move__parts),
		cmocka_unit_test(pending__whole_records),
		cmocka_unit_test(send__full_socket),
		cmocka_unit_test(damage__behind_good_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
