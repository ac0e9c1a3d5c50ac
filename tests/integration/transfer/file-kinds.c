/* SPDX-License-Identifier: Apache-2.0 */
/* file-kinds.c: what files are like: cut anywhere, with holes, where O_DIRECT is refused, and very
 * many of them. With TEST_FILES=DIRECTORY on the file system of that directory. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "lib/files.h"
#include "lib/fixture.h"

#define LENGTH (MIB + 777)

static const char *writing; /* a setting for all engines, or NULL */
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

/* The most requests that one call has given to io_uring. */
static atomic_int ring_most;

/* Not all callers give six arguments. */
__attribute__((no_sanitize("address"))) long syscall(long number, ...)
{
	static long (*_Atomic real)(long, ...);
	long (*function)(long, ...) = atomic_load(&real), argument[6];
	va_list list;

	if (!function) {
		void *found = dlsym(RTLD_NEXT, "syscall");

		memcpy(&function, &found, sizeof(found));
		atomic_store(&real, function);
	}
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		argument[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_io_uring_enter && argument[1] > atomic_load(&ring_most))
		atomic_store(&ring_most, (int)argument[1]);
	return function(number, argument[0], argument[1], argument[2], argument[3], argument[4],
			argument[5]);
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
	const char *config[] = { setting, writing, NULL };

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

/* ---- writes past the page cache -------------------------------------------------------------- */

#define WRITE_PIECES 24
#define SYS_CACHESTAT 451 /* newer than some headers */

/* Disjoint pieces in the order of the file: some end where the next one begins. */
static uint32_t pieces(struct wh_transfer *transfers, const struct kinds *kinds, uint64_t *random)
{
	uint64_t at = 0;
	uint32_t count = 0;

	while (count < WRITE_PIECES) {
		uint64_t gap = pattern_random(random) % 3 ? 0 : pattern_random(random) % 9000;
		uint64_t length = pattern_random(random) % 4 ?
					  1 + pattern_random(random) % 70000 :
					  4096 * (1 + pattern_random(random) % 9);

		at += gap;
		if (!(pattern_random(random) % 4))
			at = (at + 4095) / 4096 * 4096;
		if (at + length > LENGTH)
			break;
		transfers[count++] = (struct wh_transfer){ .op = WH_WRITE,
							   .local = kinds->region,
							   .local_offset = at,
							   .remote = wh_region_id(kinds->file),
							   .remote_offset = at,
							   .length = length };
		at += length;
	}
	return count;
}

/* Write pieces and look at the whole file, as the disk has it, each time. Those that the engine's
 * threads write at the same time have heads and tails in the same pages. */
static void write_pieces(const char *setting, const char *expected)
{
	struct wh_transfer transfers[WRITE_PIECES];
	uint64_t seed = (uint64_t)now(), random = seed;
	unsigned char *model = pages_new(LENGTH), *found = pages_new(LENGTH);
	char text[4096];
	struct kinds kinds;

	print_message("seed %llu\n", (unsigned long long)seed);
	writing = "file_writes=direct";
	kinds_open(&kinds, setting, LENGTH);
	writing = NULL;
	for (int round = 0; round < SCALE(40, 10); round++) {
		uint32_t count = pieces(transfers, &kinds, &random);

		pattern_fill(kinds.memory, LENGTH, 0, (uint64_t)round + 1);
		for (uint32_t i = 0; i < count; i++)
			memcpy(model + transfers[i].local_offset,
			       kinds.memory + transfers[i].local_offset, transfers[i].length);
		want(0, wh_batch_clear(kinds.batch));
		want(0, wh_batch_add(kinds.batch, transfers, count));
		want(0, batch_run(kinds.batch));
		evict(kinds.fd);
		want(LENGTH, pread(kinds.fd, found, LENGTH, 0));
		want_true(!memcmp(found, model, LENGTH), "round %d: the file differs", round);
	}
	want_true(wh_batch_explain(kinds.batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, expected), "'%s' is not in %s", expected, text);
	kinds_close(&kinds);
	pages_free(model, LENGTH);
	pages_free(found, LENGTH);
}

/* Does O_DIRECT work for writing here? */
static bool direct_is_possible(int fd)
{
	char path[40];
	int direct;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (direct >= 0)
		close(direct);
	return direct >= 0;
}

static const char *direct_expected(void)
{
	int fd = file_new(LENGTH);
	bool possible = direct_is_possible(fd);

	close(fd);
	return possible ? "past the page cache where they are aligned, by" : "refuses O_DIRECT";
}

static void writes__direct(void **state)
{
	(void)state;
	write_pieces("file_cold=direct", direct_expected());
}

static void writes__direct_by_threads(void **state)
{
	(void)state;
	write_pieces("file_cold=pread", direct_expected());
}

static void writes__direct_refused(void **state)
{
	(void)state;
	atomic_store(&direct_refused, true);
	write_pieces("file_cold=direct", "refuses O_DIRECT");
	atomic_store(&direct_refused, false);
}

/* Whole pages that do not follow one another are under way at once. */
static void writes__direct_scattered(void **state)
{
	struct wh_transfer transfers[MIB / 4096];
	struct kinds kinds;
	char text[4096];

	(void)state;
	writing = "file_writes=direct";
	kinds_open(&kinds, "file_threads=1", LENGTH);
	writing = NULL;
	pattern_fill(kinds.memory, LENGTH, 0, 8);
	for (uint64_t i = 0; i < MIB / 4096; i++) {
		uint64_t at = i * 37 % (MIB / 4096) * 4096;

		transfers[i] = (struct wh_transfer){ .op = WH_WRITE,
						     .local = kinds.region,
						     .local_offset = at,
						     .remote = wh_region_id(kinds.file),
						     .remote_offset = at,
						     .length = 4096 };
	}
	atomic_store(&ring_most, 0);
	want(0, wh_batch_add(kinds.batch, transfers, MIB / 4096));
	want(0, batch_run(kinds.batch));
	want_true(wh_batch_explain(kinds.batch, text, sizeof(text)) > 0, "no explanation");
	if (strstr(text, "aligned, by io_uring"))
		want_true(atomic_load(&ring_most) >= 32, "at most %d requests at once",
			  atomic_load(&ring_most));
	else
		print_message("not by io_uring: %s\n", text);
	evict(kinds.fd);
	memset(kinds.memory, 0, LENGTH);
	want(0, kinds_move(&kinds, WH_READ, 0, 0, LENGTH));
	want_true(pattern_check(kinds.memory, MIB, 0, 8) == PATTERN_GOOD, "the bytes");
	kinds_close(&kinds);
}

/* Nothing of an aligned write stays in the page cache; it grows the file; a file without room for
 * it says so, and one that may not grow stays as long as it is. */
static void writes__direct_grow(void **state)
{
	struct wh_file_options options = { .size = sizeof(options),
					   .length = LENGTH,
					   .durable = WH_FILE_DURABLE_DATA,
					   .flags = WH_FILE_WRITE | WH_FILE_GROW };
	const uint64_t range[2] = { 0, LENGTH };
	uint64_t cached[5] = { 0 }, left[5] = { 0 };
	struct kinds kinds;
	struct stat is;
	bool known;

	(void)state;
	writing = "file_writes=direct";
	kinds_open(&kinds, "file_cold=direct", LENGTH);
	writing = NULL;
	pattern_fill(kinds.memory, LENGTH, 0, 8);
	want(0, ftruncate(kinds.fd, MIB / 2));
	want(-EIO, kinds_move(&kinds, WH_WRITE, 0, 0, MIB));
	want(0, fstat(kinds.fd, &is));
	want(MIB / 2, is.st_size);
	want(0, wh_region_unregister(kinds.file));
	want(0, ftruncate(kinds.fd, 0));
	want(0, wh_file_register_fd(kinds.engine, kinds.fd, &options, &kinds.file));
	want(0, kinds_move(&kinds, WH_WRITE, 0, 0, MIB));
	want(0, fstat(kinds.fd, &is));
	want(MIB, is.st_size);
	known = direct_is_possible(kinds.fd) && !syscall(SYS_CACHESTAT, kinds.fd, range, cached, 0);
	evict(kinds.fd);
	if (known && !syscall(SYS_CACHESTAT, kinds.fd, range, left, 0) && !left[0])
		want_true(cached[0] < MIB / 4096 / 8, "%d pages are in the page cache",
			  (int)cached[0]);
	else
		print_message("what is in the page cache is not known, or cannot be evicted\n");
	want(0, kinds_move(&kinds, WH_WRITE, MIB, MIB, 777));
	evict(kinds.fd);
	memset(kinds.memory, 0, LENGTH);
	want(0, kinds_move(&kinds, WH_READ, 0, 0, LENGTH));
	want_true(pattern_check(kinds.memory, LENGTH, 0, 8) == PATTERN_GOOD, "the bytes");
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
	TEST(writes__direct),
	TEST(writes__direct_by_threads),
	TEST(writes__direct_refused),
	TEST(writes__direct_grow),
	TEST(writes__direct_scattered),
	TEST(edges__direct),
	TEST(edges__ring),
	TEST(edges__pread),
	TEST(edges__direct_refused),
	TEST(holes__direct),
	TEST(holes__pread),
	TEST(grow__backwards),
	TEST(many__ten_thousand),
};

HARNESS_MAIN("file-kinds", tests)
