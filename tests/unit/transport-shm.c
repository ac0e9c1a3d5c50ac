/* SPDX-License-Identifier: Apache-2.0 */
/* transport-shm.c: decoding the answer to MAP; descriptors that come with frames */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <wherry/memory.h>

#include "transport/shm/shm.h"

static void mapped__there_and_back(void **state)
{
	struct wh_mapped in = { .id = 0x1234567890abcdef,
				.memory = 12,
				.rights = WH_ACCESS_READ,
				.offset = 4096,
				.length = 1ull << 40,
				.whole = 1ull << 41 },
			 out;
	uint8_t bytes[WH_MAPPED_MAX];
	size_t length;

	(void)state;
	length = wh_mapped_encode(bytes, &in);
	assert_int_equal(length, WH_MAPPED_HEAD);
	assert_int_equal(bytes[0], 0xef);
	assert_int_equal(wh_mapped_decode(bytes, length, &out), 0);
	assert_int_equal(out.id, in.id);
	assert_int_equal(out.error, 0);
	assert_int_equal(out.offset, in.offset);
	assert_int_equal(out.length, in.length);
	assert_int_equal(out.memory, in.memory);
	assert_int_equal(out.rights, in.rights);
	assert_int_equal(out.whole, in.whole);
	assert_string_equal(out.text, "");

	in.error = -EOPNOTSUPP;
	memset(in.text, 'x', sizeof(in.text) - 1);
	length = wh_mapped_encode(bytes, &in);
	assert_true(length <= WH_MAPPED_MAX);
	assert_int_equal(wh_mapped_decode(bytes, length, &out), 0);
	assert_int_equal(out.error, -EOPNOTSUPP);
	assert_string_equal(out.text, in.text);
}

/* The fields of an answer with a descriptor must be consistent; the caller checks them against the
 * region. */
static void mapped__granted(void **state)
{
	const struct wh_mapped good = { .id = 7,
					.memory = 1,
					.rights = WH_ACCESS_READ | WH_ACCESS_WRITE,
					.length = 1,
					.whole = 1,
					.text = "a reason for less" };
	struct wh_mapped wrong[] = { good, good, good, good, good }, out;
	uint8_t bytes[WH_MAPPED_MAX];

	(void)state;
	assert_int_equal(wh_mapped_decode(bytes, wh_mapped_encode(bytes, &good), &out), 0);
	assert_string_equal(out.text, good.text);
	wrong[0].memory = 0;
	wrong[1].rights = 0;
	wrong[2].rights = WH_ACCESS_WRITE;
	wrong[3].rights = WH_ACCESS_READ | 4;
	wrong[4].length = 0;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		assert_int_equal(wh_mapped_decode(bytes, wh_mapped_encode(bytes, &wrong[i]), &out),
				 -EPROTO);
}

static void mapped__malformed(void **state)
{
	struct wh_mapped in = { .id = 7, .error = -ENOENT, .text = "gone" }, out = { .id = 99 };
	uint8_t bytes[WH_MAPPED_MAX + 1] = { 0 };
	size_t length = wh_mapped_encode(bytes, &in);

	(void)state;
	for (size_t i = 0; i < WH_MAPPED_HEAD; i++) {
		uint8_t *cut = exact_copy(bytes, i);

		assert_int_equal(wh_mapped_decode(cut, i, &out), -EPROTO);
		free(cut);
	}
	/* No space for the text and its NUL. */
	memset(bytes + WH_MAPPED_HEAD, 'x', WH_REFUSAL + 1);
	assert_int_equal(wh_mapped_decode(bytes, WH_MAPPED_HEAD + WH_REFUSAL, &out), -EPROTO);
	assert_int_equal(wh_mapped_decode(bytes, WH_MAPPED_HEAD + WH_REFUSAL - 1, &out), 0);
	out.id = 99;
	bytes[WH_MAPPED_HEAD + 2] = 27; /* an escape sequence */
	assert_int_equal(wh_mapped_decode(bytes, length, &out), -EPROTO);
	/* U+009B is an escape, too; and a text may end within a character. */
	memcpy(bytes + WH_MAPPED_HEAD, "\302\233J\303", length - WH_MAPPED_HEAD);
	assert_int_equal(wh_mapped_decode(bytes, length, &out), 0);
	assert_string_equal(out.text, "?J?");
	out.id = 99;
	bytes[11] = 0x80; /* not an errno */
	assert_int_equal(wh_mapped_decode(bytes, length, &out), -EPROTO);
	assert_int_equal(out.id, 99);
}

/* ---- descriptors --------------------------------------------------------------------------- */

/* Send a byte with `count` descriptors. */
static void send_descriptors(int socket, int fd, size_t count)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(4 * sizeof(int))];
	} control = { .room = "" };
	struct iovec byte = { "a", 1 };
	struct msghdr message = { .msg_iov = &byte,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = CMSG_SPACE(count * sizeof(int)) };

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
	for (size_t i = 0; i < count; i++)
		memcpy(CMSG_DATA(&control.header) + i * sizeof(int), &fd, sizeof(int));
	assert_int_equal(sendmsg(socket, &message, 0), 1);
}

/* The number that the next descriptor gets: higher if one is leaked. */
static int next_descriptor(void)
{
	int fd = dup(0);

	assert_true(fd >= 0);
	close(fd);
	return fd;
}

/* A frame has one descriptor, or none. Others are a broken protocol, and none of them stays open.
 */
static void receive__descriptors(void **state)
{
	int sockets[2], before, fd = -1, held;
	char byte = 0;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	before = next_descriptor();
	send_descriptors(sockets[0], 0, 1);
	assert_int_equal(wh_shm_receive(sockets[1], &byte, 1, &fd, 0), 1);
	assert_int_equal(fd, before);
	/* Another one, while one is there. */
	held = fd;
	send_descriptors(sockets[0], 0, 1);
	assert_int_equal(wh_shm_receive(sockets[1], &byte, 1, &fd, 0), -1);
	assert_int_equal(errno, EPROTO);
	assert_int_equal(fd, held);
	close(held);
	for (size_t count = 2; count <= 4; count++) {
		fd = -1;
		send_descriptors(sockets[0], 0, count);
		assert_int_equal(wh_shm_receive(sockets[1], &byte, 1, &fd, 0), -1);
		assert_int_equal(errno, EPROTO);
		if (fd >= 0)
			close(fd);
		assert_int_equal(next_descriptor(), before);
	}
	fd = -1;
	assert_int_equal(send(sockets[0], "b", 1, 0), 1);
	assert_int_equal(wh_shm_receive(sockets[1], &byte, 1, &fd, 0), 1);
	assert_int_equal(fd, -1);
	assert_int_equal(byte, 'b');
	close(sockets[0]);
	close(sockets[1]);
}

static void alive__words(void **state)
{
	static const struct wh_alive_word wrong[] = {
		{ 0, 1 }, { 1, 0 }, { WH_ALIVE_WORDS, 1 }, { UINT32_MAX, 1 }
	};
	uint8_t bytes[WH_ALIVE_SIZE + 1] = { 0 };
	struct wh_alive_word out = { 0, 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		wh_alive_encode(bytes, wrong[i]);
		assert_int_equal(wh_alive_decode(bytes, WH_ALIVE_SIZE, &out), -EPROTO);
	}
	wh_alive_encode(bytes, (struct wh_alive_word){ WH_ALIVE_WORDS - 1, UINT32_MAX });
	for (size_t length = 0; length <= WH_ALIVE_SIZE + 1; length++)
		if (length != WH_ALIVE_SIZE)
			assert_int_equal(wh_alive_decode(bytes, length, &out), -EPROTO);
	assert_int_equal(out.index, 0);
	assert_int_equal(wh_alive_decode(bytes, WH_ALIVE_SIZE, &out), 0);
	assert_int_equal(out.index, WH_ALIVE_WORDS - 1);
	assert_int_equal(out.value, UINT32_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mapped__there_and_back), cmocka_unit_test(mapped__granted),
		cmocka_unit_test(mapped__malformed),      cmocka_unit_test(alive__words),
		cmocka_unit_test(receive__descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
