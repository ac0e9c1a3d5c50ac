/* SPDX-License-Identifier: Apache-2.0 */
/* file-kinds.c: what files are like: cut anywhere, with holes, where O_DIRECT is refused, and very
 * many of them. With TEST_FILES=DIRECTORY on the file system of that directory. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "lib/files.h"
#include "lib/fixture.h"

#define LENGTH (MIB + 777)

static atomic_bool direct_refused;
static atomic_int direct_asked;

/* The library's calls come here: as on a file system without O_DIRECT. */
int open(const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list list;

	if (flags & (O_CREAT | O_TMPFILE)) {
		va_start(list, flags);
		mode = va_arg(list, mode_t);
		va_end(list);
	}
	if (flags & O_DIRECT && atomic_load(&direct_refused)) {
		atomic_fetch_add(&direct_asked, 1);
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* An engine with one file and one memory. */
struct kinds {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_batch *batch;
	struct wh_region *file, *region;
	unsigned char *memory; /* LENGTH bytes */
	int fd;
};

static void kinds_open(struct kinds *kinds, const char *setting, uint64_t length)
{
	const char *config[] = { setting, NULL };

	*kinds = (struct kinds){ .engine = engine_open("self", "none", config),
				 .fd = file_new(length) };
	want_true(kinds->fd >= 0, "no file: %s", strerror(-kinds->fd));
	kinds->memory = pages_new(LENGTH);
	want(0, file_region(kinds->engine, kinds->fd, 0, length, NULL, &kinds->file));
	want(0, wh_peer_open(kinds->engine, "self", NULL, &kinds->peer));
	want(0, wh_region_register(kinds->engine, kinds->memory, LENGTH, NULL, &kinds->region));
	want(0, wh_batch_new(kinds->peer, NULL, &kinds->batch));
}

static void kinds_close(struct kinds *kinds)
{
	want(0, wh_batch_free(kinds->batch));
	want(0, wh_peer_close(kinds->peer));
	want(0, wh_region_unregister(kinds->file));
	want(0, wh_region_unregister(kinds->region));
	want(0, wh_engine_close(kinds->engine));
	pages_free(kinds->memory, LENGTH);
	close(kinds->fd);
}

static int kinds_move(struct kinds *kinds, uint32_t op, uint64_t memory, uint64_t file,
		      uint64_t length)
{
	struct wh_transfer transfer = { .op = op,
					.local = kinds->region,
					.local_offset = memory,
					.remote = wh_region_id(kinds->file),
					.remote_offset = file,
					.length = length };

	want(0, wh_batch_clear(kinds->batch));
	want(0, wh_batch_add(kinds->batch, &transfer, 1));
	return batch_run(kinds->batch);
}

/* On the disk, and not in the page cache where the file system allows that. */
static void evict(int fd)
{
	want(0, (int)syscall(SYS_fsync, fd));
	want(0, posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
}

/* Every edge of a block: offsets in the file, offsets in memory and lengths that are one less, the
 * same and one more than what O_DIRECT wants. What lies beside is untouched. */
static void edges(const char *setting)
{
	static const uint64_t places[] = { 0,    1,    511,  512,   513,
					   4095, 4096, 4097, 65535, LENGTH - 70000 };
	static const uint64_t lengths[] = { 1, 511, 512, 513, 4095, 4096, 4097, 8191, 65537 };
	const size_t place_count = sizeof(places) / sizeof(places[0]);
	struct kinds kinds;

	kinds_open(&kinds, setting, LENGTH);
	pattern_fill(kinds.memory, LENGTH, 0, 9);
	want(LENGTH, pwrite(kinds.fd, kinds.memory, LENGTH, 0));
	for (size_t i = 0; i < place_count; i++)
		for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
			uint64_t length = lengths[k], at = places[(i + k) % place_count];

			memset(kinds.memory, 0xee, LENGTH);
			evict(kinds.fd);
			want(0, kinds_move(&kinds, WH_READ, at, places[i], length));
			want_true(pattern_check(kinds.memory + at, length, places[i], 9) ==
					  PATTERN_GOOD,
				  "%d bytes at %d to %d", (int)length, (int)places[i], (int)at);
			want_true(kinds.memory[at + length] == 0xee &&
					  (!at || kinds.memory[at - 1] == 0xee),
				  "beside %d bytes at %d", (int)length, (int)at);
			pattern_fill(kinds.memory + at, length, places[i], 9);
			want(0, kinds_move(&kinds, WH_WRITE, at, places[i], length));
		}
	/* Whatever was written, it was what had been there. */
	want(0, kinds_move(&kinds, WH_READ, 0, 0, LENGTH));
	want_true(pattern_check(kinds.memory, LENGTH, 0, 9) == PATTERN_GOOD, "the whole file");
	/* The file's last bytes, which no sector has to itself. */
	evict(kinds.fd);
	want(0, kinds_move(&kinds, WH_READ, 3, LENGTH - 777, 777));
	want_true(pattern_check(kinds.memory + 3, 777, LENGTH - 777, 9) == PATTERN_GOOD,
		  "the tail");
	kinds_close(&kinds);
}

static void edges__direct(void **state)
{
	(void)state;
	edges("file_cold=direct");
}

static void edges__ring(void **state)
{
	(void)state;
	edges("file_cold=ring");
}

static void edges__pread(void **state)
{
	(void)state;
	edges("file_cold=pread");
}

static void edges__direct_refused(void **state)
{
	(void)state;
	atomic_store(&direct_refused, true);
	edges("file_cold=direct");
	atomic_store(&direct_refused, false);
	/* Only where something was cold, O_DIRECT was asked for. */
	print_message("O_DIRECT was asked for %d times\n", atomic_load(&direct_asked));
}

static uint64_t blocks_of(int fd)
{
	struct stat is;

	want(0, fstat(fd, &is));
	return (uint64_t)is.st_blocks;
}

/* Holes read as zeroes, and reading fills none; a write fills its own. */
static void holes(const char *setting)
{
	const uint64_t middle = LENGTH / 2;
	struct kinds kinds;
	uint64_t before;

	kinds_open(&kinds, setting, LENGTH);
	want(5, pwrite(kinds.fd, "bytes", 5, (off_t)middle));
	evict(kinds.fd);
	before = blocks_of(kinds.fd);
	memset(kinds.memory, 0xee, LENGTH);
	want(0, kinds_move(&kinds, WH_READ, 0, 0, LENGTH));
	want(0, memcmp(kinds.memory + middle, "bytes", 5));
	for (uint64_t i = 0; i < LENGTH; i++)
		want_true(!kinds.memory[i] || (i >= middle && i < middle + 5), "byte %d is %d",
			  (int)i, kinds.memory[i]);
	evict(kinds.fd);
	want(before, blocks_of(kinds.fd));
	memcpy(kinds.memory, "more", 4);
	want(0, kinds_move(&kinds, WH_WRITE, 0, 100000, 4));
	memset(kinds.memory, 0xee, LENGTH);
	want(0, kinds_move(&kinds, WH_READ, 0, 99999, 6));
	want(0, memcmp(kinds.memory, "\0more\0", 6));
	evict(kinds.fd);
	want_true(blocks_of(kinds.fd) <= before + 16, "%d blocks, %d before",
		  (int)blocks_of(kinds.fd), (int)before);
	kinds_close(&kinds);
}

static void holes__direct(void **state)
{
	(void)state;
	holes("file_cold=direct");
}

static void holes__pread(void **state)
{
	(void)state;
	holes("file_cold=pread");
}

/* Growth from nothing, in pieces of odd length, backwards: what lies between is a hole. */
static void grow__backwards(void **state)
{
	const uint64_t piece = 4099, count = 20;
	struct wh_file_options options = { .size = sizeof(options),
					   .length = LENGTH,
					   .flags = WH_FILE_WRITE | WH_FILE_GROW };
	struct kinds kinds;
	struct stat is;

	(void)state;
	kinds_open(&kinds, "file_cold=direct", LENGTH);
	want(0, wh_region_unregister(kinds.file));
	want(0, ftruncate(kinds.fd, 0));
	want(0, wh_file_register_fd(kinds.engine, kinds.fd, &options, &kinds.file));
	pattern_fill(kinds.memory, LENGTH, 0, 4);
	for (uint64_t i = count; i-- > 0;) {
		want(0, kinds_move(&kinds, WH_WRITE, i * piece, i * piece, piece));
		want(0, fstat(kinds.fd, &is));
		want(count * piece, is.st_size);
	}
	want(-EIO, kinds_move(&kinds, WH_READ, 0, count * piece - 1, 2));
	memset(kinds.memory, 0, LENGTH);
	evict(kinds.fd);
	want(0, kinds_move(&kinds, WH_READ, 0, 0, count * piece));
	want_true(pattern_check(kinds.memory, count * piece, 0, 4) == PATTERN_GOOD, "the bytes");
	kinds_close(&kinds);
}

/* ---- very many ----------------------------------------------------------------------------------
 */

static uint64_t resident_kib(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[128];
	unsigned long long kib = 0;

	while (status && fgets(line, sizeof(line), status))
		sscanf(line, "VmRSS: %llu kB", &kib);
	if (status)
		fclose(status);
	return kib;
}

/* Open, read and close files by path, `TOGETHER` at once. */
static void open_some(struct kinds *kinds, const char *directory, int first)
{
	enum { TOGETHER = 100 };
	struct wh_region *files[TOGETHER];
	struct wh_transfer transfers[TOGETHER];
	char path[300];

	for (int i = 0; i < TOGETHER; i++) {
		struct wh_file_options options = { .size = sizeof(options),
						   .length = 64,
						   .flags = WH_FILE_WRITE | WH_FILE_CREATE |
							    WH_FILE_GROW };

		snprintf(path, sizeof(path), "%s/%d", directory, first + i);
		want(0, wh_file_register(kinds->engine, path, &options, &files[i]));
		transfers[i] = (struct wh_transfer){ .op = WH_WRITE,
						     .local = kinds->region,
						     .local_offset = (uint64_t)(first + i),
						     .remote = wh_region_id(files[i]),
						     .length = 64 };
	}
	want(0, wh_batch_clear(kinds->batch));
	want(0, wh_batch_add(kinds->batch, transfers, TOGETHER));
	want(0, batch_run(kinds->batch));
	want(0, wh_batch_clear(kinds->batch));
	for (int i = 0; i < TOGETHER; i++) {
		unsigned char bytes[64];
		int fd;

		want(0, wh_region_unregister(files[i]));
		snprintf(path, sizeof(path), "%s/%d", directory, first + i);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		want(64, read(fd, bytes, 64));
		want(0, memcmp(bytes, kinds->memory + first + i, 64));
		close(fd);
		want(0, unlink(path));
	}
}

static void many__ten_thousand(void **state)
{
	const int count = SCALE(10000, 2000);
	const char *parent = getenv("TEST_FILES");
	char directory[256];
	unsigned int fds = 0;
	uint64_t kib = 0;
	struct kinds kinds;

	(void)state;
	harness_limit(120);
	snprintf(directory, sizeof(directory), "%s/wherry-many-XXXXXX", parent ? parent : "/tmp");
	assert_non_null(mkdtemp(directory));
	kinds_open(&kinds, NULL, LENGTH);
	pattern_fill(kinds.memory, LENGTH, 0, 6);
	for (int i = 0; i < count; i += 100) {
		if (i == count / 5) { /* threads and tables have been made */
			fds = count_fds();
			kib = resident_kib();
		}
		open_some(&kinds, directory, i);
	}
	want(fds, count_fds());
	/* 100 bytes for each file would be 800 KiB; sanitizers keep what was freed. */
	want_true(resident_kib() < kib + SCALE(512, 65536), "%d KiB, %d before",
		  (int)resident_kib(), (int)kib);
	kinds_close(&kinds);
	want(0, rmdir(directory));
}

static const struct CMUnitTest tests[] = {
	TEST(edges__direct), TEST(edges__ring),  TEST(edges__pread),    TEST(edges__direct_refused),
	TEST(holes__direct), TEST(holes__pread), TEST(grow__backwards), TEST(many__ten_thousand),
};

HARNESS_MAIN("file-kinds", tests)
