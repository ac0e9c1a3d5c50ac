/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of records: the first byte is the direction, the rest is received. No byte is delivered
 * unless its record is what the sender of that number would have made of it. */
#include "fuzz.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/records.h"
#include "wire/record.h"

#define FIRST 0x5eed

/* Read the stream with the pure functions; returns the bytes of all good records. */
static size_t read_records(bool from_owner, const uint8_t *data, size_t size, uint8_t *out)
{
	struct wh_record_way way, again;
	uint8_t header[WH_RECORD_HEADER];
	size_t total = 0;
	uint32_t length;

	wh_record_start(&way, wh_crc32c_choose()->sum, FIRST, WH_RECORD_CONTROL_MAX, from_owner);
	again = way;
	while (size >= WH_RECORD_HEADER && !wh_record_length(&way, data, &length)) {
		check(length > 0 && length <= WH_RECORD_CONTROL_MAX);
		if (size < WH_RECORD_HEADER + length || wh_record_check(&way, data))
			break;
		wh_record_seal(&again, header, data + WH_RECORD_HEADER, length);
		check(!memcmp(header, data, sizeof(header)));
		memcpy(out + total, data + WH_RECORD_HEADER, length);
		total += length;
		data += WH_RECORD_HEADER + length;
		size -= WH_RECORD_HEADER + length;
	}
	return total;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_channel *channel;
	uint8_t *right, *got;
	struct iovec part;
	size_t total, at = 0;
	ssize_t n;
	int fd[2];

	if (!size || size > 16384)
		return 0;
	right = malloc(size);
	got = malloc(size);
	check(right && got);
	total = read_records(data[0] & 1, data + 1, size - 1, right);
	/* The channel delivers the same. */
	check(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd));
	check(send(fd[0], data + 1, size - 1, 0) == (ssize_t)(size - 1));
	close(fd[0]);
	channel = wh_records_new(fd[1], FIRST, WH_RECORD_CONTROL_MAX, !(data[0] & 1));
	check(channel);
	do {
		part = (struct iovec){ got + at, 1 + at % 700 };
		if (part.iov_len > size - at)
			part.iov_len = size - at;
		n = wh_channel_receive(fd[1], channel, &part, 1);
		check(n >= 0 || errno == EBADMSG || errno == EAGAIN);
		at += n > 0 ? (size_t)n : 0;
		/* A channel that has drained the socket sees its end the next time. */
	} while (n > 0 || (n < 0 && errno == EAGAIN));
	check(at == total && !memcmp(got, right, total));
	wh_channel_free(channel);
	close(fd[1]);
	free(right);
	free(got);
	return 0;
}
