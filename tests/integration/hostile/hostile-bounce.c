/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-bounce.c: a hostile peer uses an owner's bounce buffers by hand
 *
 * It cannot reach memory without a right to it, never sees the bytes of another session, and cannot
 * exhaust the owner's memory. */
#include "lib/duo.h"
#include "lib/files.h"
#include "lib/raw.h"
#include "transport/rdma/wire.h"
#include "wire/bytes.h"

#define SOON 60000 /* ms; ends a test that hangs */
#define DESKS 16

static struct side owner;

/* Read as a NIC does, unseen by the thread sanitizer. */
__attribute__((no_sanitize("thread"), noinline)) static void
nic_read(unsigned char *to, const volatile unsigned char *from, size_t length)
{
	for (size_t i = 0; i < length; i++)
		to[i] = from[i];
}

static void owner_open(void)
{
	side_open(&owner, WH_MEMORY_DEVICE, "target", "127.0.0.1:0",
		  (const char *[]){ "rdma=fake1", "rdma_gpu=staged", PATIENT, NULL });
	fill(&owner, 1);
}

static int session_open(void)
{
	struct wh_hello welcome;
	int fd = raw_control(wh_engine_url(owner.engine), &welcome);

	want_true(fd >= 0, "no session");
	want_true(raw_count_regions(fd) >= 1, "no regions");
	return fd;
}

static int receive_frame(int fd, uint16_t type, uint8_t *bytes, size_t room)
{
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, room);

	want_true(length >= 0 && frame.type == type, "frame %d of %d bytes, not %d", frame.type,
		  length, type);
	return length;
}

/* Create the queue pair that the owner requires first. */
static void connect_pair(int fd)
{
	struct wh_rdma_connect wanted = { .number = 0x80000001,
					  .end = { .link = WH_RDMA_ETHERNET,
						   .gid_type = 2,
						   .mtu = 3,
						   .responder_resources = 1,
						   .initiator_depth = 1,
						   .qp = 0x100,
						   .gid = { [10] = 0xff, 0xff, 10, 77, 0, 1 },
						   .name = "fake0:1" } };
	uint8_t bytes[WH_RDMA_CONNECT_MAX], answer[WH_RDMA_CONNECTED_MAX];
	struct wh_rdma_connected connected;
	int length;

	want(0, raw_send_frame(fd, WH_FRAME_RDMA_CONNECT, 0, bytes,
			       wh_rdma_connect_encode(bytes, &wanted)));
	length = receive_frame(fd, WH_FRAME_RDMA_CONNECTED, answer, sizeof(answer));
	want(0, wh_rdma_connected_decode(answer, (size_t)length, &connected));
	want_true(!connected.error, "%s", connected.text);
}

/* Ask for a bounce buffer. Returns the error, or 0 and its address. */
static int open_bounce(int fd, unsigned char **memory)
{
	uint8_t bytes[WH_RDMA_BOUNCE_OPENED_MAX];
	struct wh_rdma_bounce_opened opened;
	int length;

	want(0, raw_send_frame(fd, WH_FRAME_RDMA_BOUNCE_OPEN, 0, NULL, 0));
	length = receive_frame(fd, WH_FRAME_RDMA_BOUNCE_OPENED, bytes, sizeof(bytes));
	want(0, wh_rdma_bounce_opened_decode(bytes, (size_t)length, &opened));
	*memory = (unsigned char *)(uintptr_t)opened.address;
	return opened.error;
}

static int session_with_bounce(unsigned char **memory)
{
	int fd = session_open();

	connect_pair(fd);
	want(0, open_bounce(fd, memory));
	return fd;
}

static void send_copy(int fd, uint32_t slot, uint32_t op, const struct wh_extent *extents,
		      unsigned count)
{
	static uint8_t bytes[65536];
	struct wh_extent_writer writer;

	wh_extents_start(&writer, wh_rdma_copy_encode(bytes, slot, op),
			 sizeof(bytes) - WH_RDMA_COPY_HEAD);
	for (unsigned i = 0; i < count; i++)
		want(0, wh_extents_put(&writer, &extents[i]));
	want(0, raw_send_frame(fd, WH_FRAME_RDMA_COPY, 0, bytes,
			       WH_RDMA_COPY_HEAD + wh_extents_end(&writer)));
}

static int request_copy(int fd, uint32_t slot, uint32_t op, struct wh_extent extent)
{
	uint8_t bytes[WH_RDMA_FLUSHED_MAX];
	struct wh_rdma_flushed copied;
	int length;

	send_copy(fd, slot, op, &extent, 1);
	length = receive_frame(fd, WH_FRAME_RDMA_COPIED, bytes, sizeof(bytes));
	want(0, wh_rdma_flushed_decode(bytes, (size_t)length, &copied));
	want(slot, copied.number);
	return copied.error;
}

static void want_closed(int fd)
{
	want_true(raw_closes(fd, SOON), "it is still open");
	close(fd);
}

/* More sessions than there are buffers are refused, until one of them ends. */
static void expect_bounded(int (*with_buffer)(void), int (*ask)(int fd))
{
	int64_t end = now() + PATIENCE;
	int fds[DESKS], fd, error;

	for (unsigned i = 0; i < DESKS; i++)
		fds[i] = with_buffer();
	fd = session_open();
	connect_pair(fd);
	want(-EBUSY, ask(fd));
	close(fds[3]);
	do {
		error = ask(fd);
		want_true(now() < end, "none is given back");
		sleep_ms(10);
	} while (error == -EBUSY);
	want(0, error);
	close(fd);
	for (unsigned i = 0; i < DESKS; i++)
		if (i != 3)
			close(fds[i]);
}

/* ---- order ------------------------------------------------------------- */

static void order__wrong(void **state)
{
	struct wh_extent extent = { .length = 64 };
	uint8_t keys[WH_RDMA_KEYS_SIZE] = { 0 };
	unsigned char *memory;
	int fd;

	(void)state;
	owner_open();
	extent.region = wh_region_id(owner.region);
	fd = session_open(); /* without a queue pair */
	want(0, raw_send_frame(fd, WH_FRAME_RDMA_BOUNCE_OPEN, 0, NULL, 0));
	want_closed(fd);
	fd = session_open(); /* without a bounce buffer */
	connect_pair(fd);
	send_copy(fd, 0, WH_WRITE, &extent, 1);
	want_closed(fd);
	fd = session_open(); /* without the buffer's keys */
	connect_pair(fd);
	want(0, raw_send_frame(fd, WH_FRAME_RDMA_KEYS, 0, keys, sizeof(keys)));
	want_closed(fd);
	fd = session_with_bounce(&memory); /* a second one */
	want(0, raw_send_frame(fd, WH_FRAME_RDMA_BOUNCE_OPEN, 0, NULL, 0));
	want_closed(fd);
	want_true(holds(&owner, 1), "its memory was touched");
	side_close(&owner);
}

/* ---- copies ------------------------------------------------------------ */

static void copy__of_nonsense(void **state)
{
	static struct wh_extent many[WH_RDMA_COPY_EXTENTS + 1];
	struct wh_extent good, bad;
	unsigned char *memory;
	int fd;

	(void)state;
	owner_open();
	good = (struct wh_extent){ wh_region_id(owner.region), 0, 64 };
	for (unsigned i = 0; i <= WH_RDMA_COPY_EXTENTS; i++)
		many[i] = (struct wh_extent){ good.region, 128 * i, 64 };
	for (unsigned i = 0; i < 7; i++) {
		fd = session_with_bounce(&memory);
		bad = good;
		if (i == 3)
			bad.offset = LENGTH - 63; /* ends beyond the region */
		if (i == 4)
			bad.length = MIB + 1; /* ends beyond the slot */
		if (i == 5)
			bad.offset = UINT64_MAX - 32;
		if (i == 6)
			send_copy(fd, 0, WH_WRITE, many, WH_RDMA_COPY_EXTENTS + 1);
		else if (i < 5)
			send_copy(fd, i == 0 ? WH_RDMA_BOUNCE_SLOTS : 0, i == 1 ? 3 : WH_WRITE,
				  &bad, i != 2);
		else
			raw_send_frame(fd, WH_FRAME_RDMA_COPY, 0, "\0\0\0\0\2\0\0\0\2", 9);
		want_closed(fd);
	}
	want_true(holds(&owner, 1), "its memory was touched");
	side_close(&owner);
}

static void copy__without_the_right(void **state)
{
	struct wh_region_options options = { .size = sizeof(options), .access = WH_ACCESS_READ };
	struct wh_extent extent = { .length = 4096 };
	struct wh_region *readable;
	unsigned char *memory, bytes[4096];
	int fd;

	(void)state;
	owner_open();
	want(0, wh_region_register(owner.engine, owner.start, LENGTH, &options, &readable));
	extent.region = wh_region_id(readable);
	fd = session_with_bounce(&memory);
	want(-EACCES, request_copy(fd, 0, WH_WRITE, extent));
	want(0, request_copy(fd, 1, WH_READ, extent));
	nic_read(bytes, memory + MIB, sizeof(bytes));
	want_true(pattern_check(bytes, sizeof(bytes), 0, 1) == PATTERN_GOOD,
		  "it is not what was read");
	extent.region += UINT64_C(1) << 32;
	want(-ESTALE, request_copy(fd, 0, WH_READ, extent));
	close(fd);
	want(0, wh_region_unregister(readable));
	want_true(holds(&owner, 1), "its memory was touched");
	side_close(&owner);
}

/* ---- files ------------------------------------------------------------- */

#define FILE_SLOT WH_RDMA_BOUNCE_SLOTS /* the first one of bounce buffer 1 */

static int file_fd;
static struct wh_region *file;

static void file_open(uint32_t access)
{
	struct wh_region_options options = { .size = sizeof(options), .access = access };

	owner_open();
	file_fd = file_new(LENGTH);
	want(0, file_region(owner.engine, file_fd, 0, LENGTH, &options, &file));
}

static void file_close(void)
{
	want(0, wh_region_unregister(file));
	close(file_fd);
	want_true(holds(&owner, 1), "its memory was touched");
	side_close(&owner);
}

/* Ask for the keys of a region of which there is one NIC. Returns the error. */
static int request_keys(int fd, uint64_t id, struct wh_rdma_keyed *keyed)
{
	static uint8_t bytes[4096];
	uint8_t keys[WH_RDMA_KEYS_SIZE];
	int length;

	wh_put64(wh_put32(keys, 0), id);
	want(0, raw_send_frame(fd, WH_FRAME_RDMA_KEYS, 0, keys, sizeof(keys)));
	length = receive_frame(fd, WH_FRAME_RDMA_KEYED, bytes, sizeof(bytes));
	want(0, wh_rdma_keyed_decode(bytes, (size_t)length, keyed));
	return keyed->error;
}

static int session_with_file(struct wh_rdma_keyed *keyed)
{
	int fd = session_open();

	connect_pair(fd);
	want(0, request_keys(fd, wh_region_id(file), keyed));
	want(WH_RDMA_STAGED, keyed->method);
	want(1, keyed->bounce);
	return fd;
}

/* Each buffer takes what it is for, and the rights count as for memory. */
static void file__through_another_buffer(void **state)
{
	struct wh_extent of_file = { .length = 64 }, of_gpu = { .length = 64 };
	struct wh_rdma_keyed keyed;
	unsigned char *memory;
	int fd;

	(void)state;
	file_open(WH_ACCESS_READ);
	of_file.region = wh_region_id(file);
	of_gpu.region = wh_region_id(owner.region);
	fd = session_with_file(&keyed);
	want(0, request_copy(fd, FILE_SLOT, WH_READ, of_file));
	want(-EACCES, request_copy(fd, FILE_SLOT, WH_WRITE, of_file));
	send_copy(fd, FILE_SLOT, WH_READ, &of_gpu, 1);
	want_closed(fd);
	fd = session_with_file(&keyed);
	send_copy(fd, 2 * FILE_SLOT, WH_READ, &of_file, 1); /* buffer 2 is not open */
	want_closed(fd);
	fd = session_with_bounce(&memory);
	send_copy(fd, 0, WH_READ, &of_file, 1);
	want_closed(fd);
	fd = session_with_bounce(&memory);
	send_copy(fd, FILE_SLOT, WH_READ, &of_file, 1); /* no keys were asked for */
	want_closed(fd);
	file_close();
}

/* A peer without any right to the file gets no buffer. */
static void file__without_the_right(void **state)
{
	struct wh_rdma_keyed keyed;
	int fd;

	(void)state;
	file_open(0);
	fd = session_open();
	connect_pair(fd);
	want(-ESTALE, request_keys(fd, wh_region_id(file), &keyed));
	close(fd);
	file_close();
}

static int session_of_file(void)
{
	struct wh_rdma_keyed keyed;

	return session_with_file(&keyed);
}

static int ask_for_file(int fd)
{
	struct wh_rdma_keyed keyed;

	return request_keys(fd, wh_region_id(file), &keyed);
}

static void file__memory_is_bounded(void **state)
{
	(void)state;
	file_open(WH_ACCESS_READ);
	expect_bounded(session_of_file, ask_for_file);
	file_close();
}

/* ---- after the session ------------------------------------------------- */

/* The next session gets the same memory, cleared. */
static void memory__is_cleared(void **state)
{
	static unsigned char bytes[WH_RDMA_BOUNCE_SLOTS * MIB];
	unsigned char *first, *second, seen = 0;
	struct wh_extent extent = { .length = MIB };
	int fd, other;

	(void)state;
	owner_open();
	extent.region = wh_region_id(owner.region);
	fd = session_with_bounce(&first);
	for (uint32_t slot = 0; slot < WH_RDMA_BOUNCE_SLOTS; slot++)
		want(0, request_copy(fd, slot, WH_READ, extent));
	close(fd);
	do {
		other = session_with_bounce(&second);
		nic_read(bytes, second, second == first ? sizeof(bytes) : 0);
		close(other);
	} while (second != first);
	for (size_t i = 0; i < sizeof(bytes); i++)
		seen |= bytes[i];
	want_true(!seen, "bytes of another peer are there still");
	side_close(&owner);
}

static int session_of_gpu(void)
{
	unsigned char *memory;

	return session_with_bounce(&memory);
}

static int ask_for_gpu(int fd)
{
	unsigned char *memory;

	return open_bounce(fd, &memory);
}

static void memory__is_bounded(void **state)
{
	(void)state;
	owner_open();
	expect_bounded(session_of_gpu, ask_for_gpu);
	side_close(&owner);
}

static const struct CMUnitTest tests[] = {
	ON_FAKES(order__wrong),
	ON_FAKES(copy__of_nonsense),
	ON_FAKES(copy__without_the_right),
	ON_FAKES(file__through_another_buffer),
	ON_FAKES(file__without_the_right),
	ON_FAKES(file__memory_is_bounded),
	ON_FAKES(memory__is_cleared),
	ON_FAKES(memory__is_bounded),
};

HARNESS_MAIN("hostile-bounce", tests)
