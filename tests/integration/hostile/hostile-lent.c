/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-lent.c: a peer that lends slots of memory for files (LEND), and lies: no memory, memory
 * that is too short, that shrinks, whose pages are missing; requests for slots that are not there
 * and for what is no file. The owner, an engine of this process, refuses, and goes on to serve. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/pinned.h"
#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/handles.h"
#include "lib/raw.h"
#include "transport/shm/wire.h"
#include "wire/bytes.h"

#define LENGTH MIB
#define SLOTS 2u

struct owner {
	struct wh_engine *engine;
	struct wh_region *file, *memory;
	unsigned char *pages; /* of `memory`: LENGTH bytes */
	int fd; /* the file: LENGTH bytes of pattern 1 */
	struct wh_hello welcome;
	int control, local, data;
	struct wh_response response;
};

static void owner_meet(struct owner *o)
{
	o->control = raw_control(wh_engine_url(o->engine), &o->welcome);
	want_true(o->control >= 0, "no session");
	want_true(o->welcome.capabilities & WH_CAPABLE_LEND, "it takes no slots");
	o->local = handles_connect(&o->welcome);
	o->data = raw_data(wh_engine_url(o->engine), &o->welcome);
	want_true(o->data >= 0, "no data connection");
}

static void owner_leave(struct owner *o)
{
	close(o->data);
	close(o->local);
	close(o->control);
}

static void owner_open(struct owner *o)
{
	struct wh_region_options access = { .size = sizeof(access), .access = ACCESS_BOTH };

	*o = (struct owner){ .engine = engine_open(NULL, "127.0.0.1:0", NULL),
			     .pages = pages_new(LENGTH),
			     .fd = file_new(LENGTH) };
	pattern_fill(o->pages, LENGTH, 0, 1);
	want(LENGTH, pwrite(o->fd, o->pages, LENGTH, 0));
	want(0, file_region(o->engine, o->fd, 0, LENGTH, &access, &o->file));
	want(0, wh_region_register(o->engine, o->pages, LENGTH, &access, &o->memory));
	owner_meet(o);
}

static void owner_close(struct owner *o)
{
	owner_leave(o);
	want(0, wh_region_unregister(o->file));
	want(0, wh_region_unregister(o->memory));
	want(0, wh_engine_close(o->engine));
	pages_free(o->pages, LENGTH);
	close(o->fd);
}

/* Slots as an engine makes them, but for the seals and flags. */
static int memory_new(uint64_t length, unsigned flags, int seals)
{
	int fd = memfd_create("hostile-lent", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

	want_true(fd >= 0 && !ftruncate(fd, (off_t)length), "memfd: %s", strerror(errno));
	want(0, fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

static int lend_send(int socket, uint32_t count, int fd)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_LEND_SIZE];
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { bytes, sizeof(bytes) };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *header;

	wh_frame_encode(bytes, &(struct wh_frame){ WH_LEND_SIZE, WH_FRAME_LEND, 0 });
	wh_lend_encode(bytes + WH_FRAME_HEADER, count);
	if (fd >= 0) {
		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &fd, sizeof(int));
	}
	return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(bytes) ? 0 : -errno;
}

/* Returns what LENT says. */
static int lend(const struct owner *o, uint32_t count, int fd)
{
	uint8_t bytes[WH_LENT_SIZE];
	struct wh_frame frame;
	int error, length;

	want(0, lend_send(o->local, count, fd));
	length = raw_receive_frame(o->local, &frame, bytes, sizeof(bytes));
	want_true(length >= 0 && frame.type == WH_FRAME_LENT, "no LENT");
	want(0, wh_lent_decode(bytes, (size_t)length, &error));
	return error;
}

static void lend_good(struct owner *o, unsigned char **slots)
{
	int fd = memory_new(SLOTS * WH_SLOT, 0, F_SEAL_SHRINK | F_SEAL_GROW);

	want(0, lend(o, SLOTS, fd));
	*slots = mmap(NULL, SLOTS * WH_SLOT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	want_true(*slots != MAP_FAILED, "mmap: %s", strerror(errno));
	close(fd);
}

/* The answer to a request of one extent: 0, or the extent's errno. No payload follows. */
static int response_take(struct owner *o, uint8_t op, uint64_t length)
{
	uint8_t bytes[WH_RESPONSE_SIZE];

	want(0, read_all(o->data, bytes, WH_RESPONSE_SIZE));
	want(0, wh_response_decode(bytes, &o->response));
	if (!o->response.errors) {
		want(op == WH_READ ? length : 0, o->response.bytes);
		return 0;
	}
	want(0, o->response.bytes);
	want(0, read_all(o->data, bytes, WH_RESPONSE_ERROR_SIZE));
	return -(int)wh_get32(bytes + 4);
}

static int ask(struct owner *o, uint8_t op, uint32_t slot, uint64_t region, uint64_t offset,
	       uint64_t length)
{
	struct wh_extent extent = { region, offset, length };

	want(0, raw_request_slot(o->data, op, slot, &extent, 1));
	return response_take(o, op, length);
}

/* How many mappings of slots has this process, which is the owner? */
static unsigned slots_mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned count = 0;
	char line[512];

	want_true(maps, "no maps");
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "/memfd:hostile-lent") != NULL;
	fclose(maps);
	return count;
}

static void lend__what_is_no_memory(void **state)
{
	uint64_t whole = SLOTS * WH_SLOT;
	int pipes[2], file = file_new(whole), fd;
	struct owner o;

	(void)state;
	owner_open(&o);
	want(0, pipe(pipes));
	want(-EBADF, lend(&o, SLOTS, -1));
	want(-EPROTO, lend(&o, SLOTS, pipes[0]));
	want(-EPROTO, lend(&o, SLOTS, file));
	fd = memory_new(whole, 0, F_SEAL_GROW); /* it may shrink */
	want(-EPROTO, lend(&o, SLOTS, fd));
	close(fd);
	fd = memory_new(whole - 1, 0, F_SEAL_SHRINK);
	want(-EPROTO, lend(&o, SLOTS, fd));
	close(fd);
	want(0, slots_mapped());
	/* None of them keeps it from taking good ones, once. */
	fd = memory_new(whole, 0, F_SEAL_SHRINK);
	want(0, lend(&o, SLOTS, fd));
	want(-EALREADY, lend(&o, SLOTS, fd));
	want(1, slots_mapped());
	close(fd);
	close(file);
	close(pipes[0]);
	close(pipes[1]);
	owner_close(&o);
}

static void lend__how_many(void **state)
{
	static const uint32_t counts[] = { 0, WH_REQUEST_SLOTS + 1, UINT32_MAX };
	struct owner o;

	(void)state;
	owner_open(&o);
	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		int fd = memory_new(WH_SLOT, 0, F_SEAL_SHRINK);

		want(0, lend_send(o.local, counts[i], fd));
		want_true(raw_closes(o.local, SCALE(5000, 60000)), "it takes %u slots", counts[i]);
		close(fd);
		close(o.local);
		o.local = handles_connect(&o.welcome);
	}
	want(0, slots_mapped());
	owner_close(&o);
}

/* The owner's side of a good peer; the session's end unmaps the slots. */
static void slot__moves(void **state)
{
	unsigned char *slots, *file = pages_new(LENGTH);
	int64_t until;
	struct owner o;

	(void)state;
	owner_open(&o);
	lend_good(&o, &slots);
	want(0, ask(&o, WH_READ, 2, wh_region_id(o.file), 0, LENGTH));
	want_true(pattern_check(slots + WH_SLOT, LENGTH, 0, 1) == PATTERN_GOOD, "wrong bytes");
	want_true(!slots[0] && !slots[WH_SLOT - 1], "another slot was touched");
	pattern_fill(slots, 5000, 0, 3);
	want(0, ask(&o, WH_WRITE, 1, wh_region_id(o.file), 300, 5000));
	want(LENGTH, pread(o.fd, file, LENGTH, 0));
	want_true(pattern_check(file, 300, 0, 1) == PATTERN_GOOD &&
			  pattern_check(file + 300, 5000, 0, 3) == PATTERN_GOOD &&
			  pattern_check(file + 5300, LENGTH - 5300, 5300, 1) == PATTERN_GOOD,
		  "wrong bytes in the file");
	munmap(slots, SLOTS * WH_SLOT);
	want(1, slots_mapped());
	owner_leave(&o);
	until = now() + PATIENCE;
	while (slots_mapped()) {
		want_true(now() < until, "it keeps the slots of a session that has ended");
		sleep_ms(1);
	}
	owner_meet(&o);
	pages_free(file, LENGTH);
	owner_close(&o);
}

/* The same errors as without slots, and for memory, which only the CPU could copy. */
static void slot__refused(void **state)
{
	unsigned char *slots;
	struct owner o;

	(void)state;
	owner_open(&o);
	lend_good(&o, &slots);
	for (uint8_t op = WH_READ; op <= WH_WRITE; op++) {
		want(-ERANGE, ask(&o, op, 1, wh_region_id(o.file), 1, LENGTH));
		want(-ERANGE, ask(&o, op, 1, wh_region_id(o.file), UINT64_C(1) << 63, 5));
		want(-ESTALE, ask(&o, op, 1, 4711, 0, 5));
		want(-EOPNOTSUPP, ask(&o, op, 1, wh_region_id(o.memory), 0, LENGTH));
	}
	want_true(!slots[0], "a slot was touched");
	want_true(pattern_check(o.pages, LENGTH, 0, 1) == PATTERN_GOOD, "memory was touched");
	want(0, ftruncate(o.fd, 100));
	want(-EIO, ask(&o, WH_READ, 1, wh_region_id(o.file), 50, 100));
	want(0, ask(&o, WH_READ, 1, wh_region_id(o.file), 50, 50));
	munmap(slots, SLOTS * WH_SLOT);
	owner_close(&o);
}

static void want_cut_off(struct owner *o, uint32_t slot, uint64_t length)
{
	struct wh_extent extent = { wh_region_id(o->file), 0, length };

	want(0, raw_request_slot(o->data, WH_READ, slot, &extent, 1));
	want_true(raw_closes(o->data, SCALE(5000, 60000)), "slot %u is taken", slot);
	close(o->data);
	o->data = raw_data(wh_engine_url(o->engine), &o->welcome);
	want_true(o->data >= 0, "no data connection");
}

static void slot__that_is_not_there(void **state)
{
	unsigned char *slots;
	struct owner o;

	(void)state;
	owner_open(&o);
	want_cut_off(&o, 1, 100);
	lend_good(&o, &slots);
	want_cut_off(&o, SLOTS + 1, 100);
	want_cut_off(&o, WH_REQUEST_SLOTS + 1, 100);
	want_cut_off(&o, UINT32_MAX, 100);
	want(0, ask(&o, WH_READ, SLOTS, wh_region_id(o.file), 0, 100));
	munmap(slots, SLOTS * WH_SLOT);
	owner_close(&o);
}

/* Longer than a slot, into the last one. */
static void slot__too_small(void **state)
{
	int fd = file_new(2 * WH_SLOT);
	struct wh_region_options access = { .size = sizeof(access), .access = ACCESS_BOTH };
	struct wh_region *file;
	struct wh_extent extent = { .length = WH_SLOT + 1 };
	unsigned char *slots;
	struct owner o;

	(void)state;
	owner_open(&o);
	lend_good(&o, &slots);
	want(0, file_region(o.engine, fd, 0, 2 * WH_SLOT, &access, &file));
	extent.region = wh_region_id(file);
	want(0, raw_request_slot(o.data, WH_READ, SLOTS, &extent, 1));
	want_true(raw_closes(o.data, SCALE(5000, 60000)), "it reads beyond the slots");
	munmap(slots, SLOTS * WH_SLOT);
	want(0, wh_region_unregister(file));
	close(fd);
	owner_close(&o);
}

/* A CPU that touches such memory gets SIGBUS: there are no huge pages for it. */
static void slot__without_pages(void **state)
{
	int fd = memfd_create("hostile-lent", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	struct owner o;

	(void)state;
	if (fd < 0 || ftruncate(fd, 2 * MIB) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)) {
		fprintf(stderr, "no memfd of huge pages: %s\n", strerror(errno));
		if (fd >= 0)
			close(fd);
		return;
	}
	owner_open(&o);
	/* Its mmap() fails where huge pages are reserved, and there are none. */
	if (!lend(&o, SLOTS, fd)) {
		int error = ask(&o, WH_READ, 1, wh_region_id(o.file), 0, LENGTH);

		want_true(!error || error == -EFAULT, "errno %d", -error);
	}
	close(fd);
	owner_close(&o);
}

/* Holes that come and go under the owner's reads and writes. */
static void slot__holes(void **state)
{
	int fd = memory_new(SLOTS * WH_SLOT, 0, F_SEAL_SHRINK);
	struct owner o;

	(void)state;
	owner_open(&o);
	want(0, lend(&o, SLOTS, fd));
	for (int i = 0; i < 50; i++) {
		uint8_t op = i % 2 ? WH_WRITE : WH_READ;
		struct wh_extent extent = { wh_region_id(o.file), 0, LENGTH };

		want(0, raw_request_slot(o.data, op, 1, &extent, 1));
		want(0,
		     fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SLOTS * WH_SLOT));
		want(0, response_take(&o, op, LENGTH));
	}
	close(fd);
	owner_close(&o);
}

static const struct CMUnitTest tests[] = {
	TEST(lend__what_is_no_memory),
	TEST(lend__how_many),
	TEST(slot__moves),
	TEST(slot__refused),
	TEST(slot__that_is_not_there),
	TEST(slot__too_small),
	TEST(slot__without_pages),
	TEST(slot__holes),
};

HARNESS_MAIN("hostile-lent", tests)
