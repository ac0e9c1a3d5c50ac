/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-files.c: files over NICs, which see slots of memory only, of this engine or of the peer */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/duo.h"
#include "lib/files.h"

#define OURS "our file: staged (no NIC reads or writes a file)"
#define THEIRS "their file: staged (no NIC reads or writes a file)"

/* ---- ways ------------------------------------------------------------------------------------ */

static void way__host_memory(void **state)
{
	(void)state;
	expect(WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "", "rdma", OURS, NULL);
}

static void way__a_gpu(void **state)
{
	(void)state;
	expect(WH_MEMORY_FILE, WH_MEMORY_DEVICE, "", "rdma", OURS, "their GPU memory: dmabuf");
}

/* Through slots of ours and of theirs. */
static void way__a_staged_gpu(void **state)
{
	(void)state;
	expect(WH_MEMORY_FILE, WH_MEMORY_DEVICE, "staged", "rdma", OURS,
	       "their GPU memory: staged");
}

static void way__their_file(void **state)
{
	(void)state;
	expect(WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, "", "rdma", THEIRS, "RoCE v2, staged)");
}

static void way__their_file_and_a_gpu(void **state)
{
	(void)state;
	expect(WH_MEMORY_DEVICE, WH_MEMORY_FILE, "", "rdma", THEIRS, "our GPU memory: dmabuf");
	expect(WH_MEMORY_DEVICE, WH_MEMORY_FILE, "staged", "rdma", THEIRS,
	       "our GPU memory: staged");
}

/* On one host the bytes go through memory that is lent to the owner, although NICs are there. */
static void way__lent_instead(void **state)
{
	const char *const config[] = { "transports=rdma,shm,tcp", PATIENT, NULL };
	struct duo duo = { 0 };

	(void)state;
	side_open(&duo.theirs, WH_MEMORY_FILE, "target", "127.0.0.1:0", config);
	side_open(&duo.ours, WH_MEMORY_PAGEABLE, "mine", "none", config);
	duo_connect(&duo);
	exchange(&duo, "tcp", "shared memory",
		 "rdma: refused: on this host the bytes of a file go through memory that is lent");
	duo_close(&duo);
}

static void way__both_files(void **state)
{
	(void)state;
	expect(WH_MEMORY_FILE, WH_MEMORY_FILE, "", "rdma", OURS, THEIRS);
}

static void way__two_rails(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	rails_open(&duo, WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "");
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		batch = whole(&duo, op);
		duo_fill(&duo, op, op);
		want_rails(batch, true, true);
		want_same(&duo, op);
		want_way(batch, "rdma", "(2 rails, RoCE v2, staged)", OURS);
		want(0, wh_batch_free(batch));
	}
	duo_close(&duo);
}

/* A batch whose local side is a file, GPU memory and host memory: one slot takes all of them. */
static void way__mixed(void **state)
{
	struct wh_region *region[2];
	struct wh_transfer parts[3];
	struct wh_batch *batch;
	struct side memory[2];
	struct duo duo;
	void *bytes;

	(void)state;
	duo_open(&duo, WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "staged");
	settle(&duo, "rdma", OURS);
	for (unsigned i = 0; i < 2; i++) {
		struct wh_memory_options options = { .size = sizeof(options),
						     .kind = i ? WH_MEMORY_DEVICE :
								 WH_MEMORY_PAGEABLE };

		want(0, wh_memory_alloc(duo.ours.engine, LENGTH, &options, &bytes));
		memory[i] = (struct side){ .kind = options.kind, .start = bytes };
		want(0, wh_region_register(duo.ours.engine, bytes, LENGTH, NULL, &region[i]));
	}
	fill(&duo.theirs, 7);
	for (unsigned i = 0; i < 3; i++)
		parts[i] = (struct wh_transfer){ .local = i ? region[i - 1] : duo.ours.region,
						 .remote = duo.remote.id,
						 .length = LENGTH,
						 .op = WH_READ };
	want(0, wh_batch_new(duo.peer, NULL, &batch));
	want(0, wh_batch_add(batch, parts, 3));
	want(0, batch_run(batch));
	want_by(batch, "rdma", 3 * LENGTH);
	want_same(&duo, 7);
	want_true(holds(&memory[0], 7) && holds(&memory[1], 7), "the bytes are wrong");
	want(0, wh_batch_free(batch));
	for (unsigned i = 0; i < 2; i++) {
		want(0, wh_region_unregister(region[i]));
		want(0, wh_memory_free(duo.ours.engine, memory[i].start));
	}
	duo_close(&duo);
}

/* A batch whose remote side is a file, GPU memory and host memory. What is staged goes through two
 * bounce buffers of the owner's; host memory, and GPU memory that NICs reach, does not have to. */
static void mixed_there(const char *ways, const char *how)
{
	struct wh_region *region[2], *local;
	struct wh_transfer parts[6];
	struct wh_batch *batch;
	struct side memory[2];
	struct wh_remote remote;
	unsigned char *bytes = pages_new(3 * LENGTH);
	struct duo duo;

	duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, ways);
	want(0, wh_region_register(duo.ours.engine, bytes, 3 * LENGTH, NULL, &local));
	for (unsigned i = 0; i < 2; i++) {
		const char *const names[] = { "host", "gpu" };
		struct wh_region_options access = { .size = sizeof(access),
						    .name = names[i],
						    .access = ACCESS_BOTH };
		struct wh_memory_options options = { .size = sizeof(options),
						     .kind = i ? WH_MEMORY_DEVICE :
								 WH_MEMORY_PAGEABLE };
		void *there;

		want(0, wh_memory_alloc(duo.theirs.engine, LENGTH, &options, &there));
		memory[i] = (struct side){ .kind = options.kind, .start = there };
		fill(&memory[i], i);
		want(0, wh_region_register(duo.theirs.engine, there, LENGTH, &access, &region[i]));
	}
	settle(&duo, "rdma", THEIRS);
	fill(&duo.theirs, 7);
	for (unsigned i = 0; i < 6; i++) { /* a half of each in turn: the way changes every time */
		const char *const names[] = { "host", "target", "gpu" };

		want(0, wh_peer_find(duo.peer, names[i % 3], PATIENCE, &remote));
		parts[i] =
			(struct wh_transfer){ .local = local,
					      .local_offset = i % 3 * LENGTH + i / 3 * (LENGTH / 2),
					      .remote = remote.id,
					      .remote_offset = i / 3 * (LENGTH / 2),
					      .length = i < 3 ? LENGTH / 2 : LENGTH - LENGTH / 2,
					      .op = WH_READ };
	}
	want(0, wh_batch_new(duo.peer, NULL, &batch));
	want(0, wh_batch_add(batch, parts, 6));
	for (unsigned round = 0; round < 2; round++) {
		memset(bytes, 0, 3 * LENGTH);
		want(0, batch_run(batch));
	}
	want_by(batch, "rdma", 3 * LENGTH);
	want_explained(batch, how);
	for (unsigned i = 0; i < 3; i++) {
		const uint64_t seeds[] = { 0, 7, 1 };
		size_t wrong = pattern_check(bytes + i * LENGTH, LENGTH, 0, seeds[i]);

		want_true(wrong == PATTERN_GOOD, "byte %zu of side %u is wrong", wrong, i);
	}
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(local));
	for (unsigned i = 0; i < 2; i++) {
		want(0, wh_region_unregister(region[i]));
		want(0, wh_memory_free(duo.theirs.engine, memory[i].start));
	}
	duo_close(&duo);
	pages_free(bytes, 3 * LENGTH);
}

static void way__mixed_there(void **state)
{
	(void)state;
	mixed_there("staged", "staged");
	mixed_there("", "staged");
}

/* A batch with files of two file systems of one side, which change with every transfer. */
static void two_systems(bool ours)
{
	enum { PARTS = 8 };
	const uint64_t part = LENGTH / PARTS;
	struct wh_region_options access = { .size = sizeof(access),
					    .name = "second",
					    .access = ACCESS_BOTH };
	struct side second = { .kind = WH_MEMORY_FILE, .fd = memfd_create("second", MFD_CLOEXEC) };
	unsigned char *bytes = pages_new(LENGTH);
	struct wh_transfer parts[PARTS];
	struct wh_remote remote = { 0 };
	struct wh_batch *batch;
	struct side *files;
	struct duo duo;

	duo_open(&duo, ours ? WH_MEMORY_FILE : WH_MEMORY_PAGEABLE,
		 ours ? WH_MEMORY_PAGEABLE : WH_MEMORY_FILE, "");
	files = ours ? &duo.ours : &duo.theirs;
	want(0, ftruncate(second.fd, DUO_OFFSET + LENGTH));
	want(0, file_region(files->engine, second.fd, DUO_OFFSET, LENGTH, &access, &second.region));
	if (!ours)
		want(0, wh_peer_find(duo.peer, "second", PATIENCE, &remote));
	settle(&duo, "rdma", ours ? OURS : THEIRS);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		bool into = (op == WH_READ) == ours; /* the files are written */

		fill(ours ? &duo.theirs : &duo.ours, 7);
		fill(files, into ? 8 : 9);
		fill(&second, into ? 8 : 9);
		for (unsigned i = 0; i < PARTS; i++)
			parts[i] = (struct wh_transfer){
				.local = ours && i % 2 ? second.region : duo.ours.region,
				.remote = !ours && i % 2 ? remote.id : duo.remote.id,
				.local_offset = i * part,
				.remote_offset = i * part,
				.length = part,
				.op = op,
			};
		want(0, wh_batch_new(duo.peer, NULL, &batch));
		want(0, wh_batch_add(batch, parts, PARTS));
		want(0, batch_run(batch));
		want_by(batch, "rdma", PARTS * part);
		want(0, wh_batch_free(batch));
		for (unsigned i = 0; i < PARTS; i++) {
			const struct side *file = i % 2 ? &second : files;
			const struct side *memory = ours ? &duo.theirs : &duo.ours;

			want((int)part,
			     (int)pread(file->fd, bytes, part, (off_t)(DUO_OFFSET + i * part)));
			want_true(pattern_check(bytes, part, i * part, into ? 7 : 9) ==
						  PATTERN_GOOD &&
					  pattern_check(memory->start + i * part, part, i * part,
							into ? 7 : 9) == PATTERN_GOOD,
				  "part %u is wrong", i);
		}
	}
	want(0, wh_region_unregister(second.region));
	close(second.fd);
	duo_close(&duo);
	pages_free(bytes, LENGTH);
}

static void way__two_file_systems(void **state)
{
	(void)state;
	two_systems(true);
	two_systems(false);
}

/* A file of a file system that no other file is of. -1: none can be mounted here. */
static int file_of_its_own_system(void)
{
	char directory[] = "/tmp/wherry-system-XXXXXX", path[64];
	int fd = -1;

	want_true(mkdtemp(directory), "no directory");
	if (!mount("wherry-system", directory, "tmpfs", 0, "size=8m")) {
		snprintf(path, sizeof(path), "%s/file", directory);
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		want_true(fd >= 0, "no file: %m");
		want(0, ftruncate(fd, DUO_OFFSET + LENGTH));
		umount2(directory, MNT_DETACH);
	}
	rmdir(directory);
	return fd;
}

/* One more than a session has bounce buffers for goes by sockets, and says why. */
static void way__eight_file_systems(void **state)
{
	enum { SYSTEMS = 7 };
	struct side files[SYSTEMS + 1], first;
	struct duo duo;
	int fd = file_of_its_own_system();

	(void)state;
	if (fd < 0) {
		print_message("tmpfs cannot be mounted here: %m\n");
		skip();
	}
	duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, "");
	first = duo.theirs;
	for (unsigned i = 0; i <= SYSTEMS; i++) {
		struct wh_region_options access = { .size = sizeof(access), .access = ACCESS_BOTH };
		char name[16];

		snprintf(name, sizeof(name), "file%u", i);
		access.name = name;
		files[i] = first;
		files[i].fd = i ? file_of_its_own_system() : fd;
		want(0, file_region(first.engine, files[i].fd, DUO_OFFSET, LENGTH, &access,
				    &files[i].region));
		want(0, wh_peer_find(duo.peer, name, PATIENCE, &duo.remote));
		duo.theirs = files[i];
		if (i < SYSTEMS)
			exchange(&duo, "rdma", THEIRS, NULL);
		else
			exchange(&duo, "tcp", "in use by files of other file systems", NULL);
	}
	for (unsigned i = 0; i <= SYSTEMS; i++) {
		want(0, wh_region_unregister(files[i].region));
		close(files[i].fd);
	}
	duo.theirs = first;
	duo_close(&duo);
}

/* Blocks of odd lengths at odd places, into a file and out of one. */
static void way__blocks(void **state)
{
	(void)state;
	expect_blocks(WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "", WH_READ, 99, 1001, OURS);
	expect_blocks(WH_MEMORY_FILE, WH_MEMORY_DEVICE, "staged", WH_WRITE, 99, 1001, OURS);
	expect_blocks(WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, "", WH_READ, 99, 1001, THEIRS);
	expect_blocks(WH_MEMORY_FILE, WH_MEMORY_FILE, "", WH_WRITE, 99, 1001, OURS);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

/* The file is too short: the batch has EIO, from this transport, and the file stays as it is. */
static void truncated(bool ours)
{
	uint32_t here = ours ? WH_MEMORY_FILE : WH_MEMORY_PAGEABLE;
	uint32_t there = ours ? WH_MEMORY_PAGEABLE : WH_MEMORY_FILE;
	const char *way = ours ? OURS : THEIRS;
	struct wh_batch *batch;
	struct duo duo;
	struct stat stat;
	int fd;

	duo_open(&duo, here, there, "");
	fd = ours ? duo.ours.fd : duo.theirs.fd;
	settle(&duo, "rdma", way);
	assert_int_equal(ftruncate(fd, DUO_OFFSET + 2 * MIB), 0);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		batch = whole(&duo, op);
		want(-EIO, batch_run(batch));
		/* A peer is not told the file's name. */
		want_true(ours == !!strstr(wh_batch_error_text(batch), "descriptor"), "it says: %s",
			  wh_batch_error_text(batch));
		want_explained(batch, way);
		want_by(batch, "tcp", 0);
		want(0, wh_batch_free(batch));
	}
	assert_int_equal(fstat(fd, &stat), 0);
	assert_int_equal(stat.st_size, DUO_OFFSET + 2 * MIB);
	/* It goes on with what is there. */
	assert_int_equal(ftruncate(fd, DUO_OFFSET + LENGTH), 0);
	exchange(&duo, "rdma", way, NULL);
	duo_close(&duo);
}

static void fault__truncated(void **state)
{
	(void)state;
	truncated(true);
	truncated(false);
}

static void fault__cancelled(void **state)
{
	(void)state;
	expect_cancelled(WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, OURS);
	expect_cancelled(WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, THEIRS);
}

static void fault__connection_breaks(void **state)
{
	struct duo duo;

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t op = i % 2 ? WH_WRITE : WH_READ;

		if (i < 2)
			duo_open(&duo, WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "");
		else
			duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, "");
		settle(&duo, "rdma", i < 2 ? OURS : THEIRS);
		expect_tcp_after_break(&duo, op, i < 2 ? OURS : THEIRS, i);
		exchange(&duo, "rdma", i < 2 ? OURS : THEIRS, NULL);
		duo_close(&duo);
	}
}

/* The owner takes its file back while the bytes are in flight to the bounce buffer. */
static void fault__taken_back(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, "");
	settle(&duo, "rdma", THEIRS);
	batch = whole(&duo, WH_WRITE);
	fill(&duo.theirs, 40);
	fill(&duo.ours, 41);
	nics_hold(true);
	want(0, wh_batch_submit(batch));
	want(0, wh_region_unregister(duo.theirs.region));
	nics_hold(false);
	want(-ESTALE, batch_end(batch, PATIENCE));
	want_true(holds(&duo.theirs, 40), "bytes have got into it");
	want(0, wh_batch_free(batch));
	want(0, file_region(duo.theirs.engine, duo.theirs.fd, DUO_OFFSET, LENGTH,
			    &(struct wh_region_options){ .size = sizeof(struct wh_region_options),
							 .name = "target",
							 .access = ACCESS_BOTH },
			    &duo.theirs.region));
	want(0, wh_peer_find(duo.peer, "target", PATIENCE, &duo.remote));
	exchange(&duo, "rdma", THEIRS, NULL);
	duo_close(&duo);
}

/* The session ends and another one begins: the bounce buffers are opened anew. */
static void fault__peer_again(void **state)
{
	struct duo duo;

	(void)state;
	duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, "");
	for (unsigned i = 0; i < 20; i++) { /* more than FILE_BOUNCES */
		settle(&duo, "rdma", THEIRS);
		want(0, wh_peer_close(duo.peer));
		duo_connect(&duo);
	}
	exchange(&duo, "rdma", THEIRS, NULL);
	duo_close(&duo);
}

static const struct CMUnitTest tests[] = {
	/* This test comes first: the fake library reads its list of NICs once. */
	ON_FAKES(way__two_rails),
	ON_FAKES(way__host_memory),
	ON_FAKES(way__a_gpu),
	ON_FAKES(way__a_staged_gpu),
	ON_FAKES(way__their_file),
	ON_FAKES(way__their_file_and_a_gpu),
	ON_FAKES(way__lent_instead),
	ON_FAKES(way__both_files),
	ON_FAKES(way__mixed),
	ON_FAKES(way__mixed_there),
	ON_FAKES(way__two_file_systems),
	ON_FAKES(way__eight_file_systems),
	ON_FAKES(way__blocks),
	ON_FAKES(fault__truncated),
	ON_FAKES(fault__cancelled),
	ON_FAKES(fault__connection_breaks),
	ON_FAKES(fault__taken_back),
	ON_FAKES(fault__peer_again),
};

HARNESS_MAIN("rdma-files", tests)
