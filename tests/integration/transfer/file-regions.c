/* SPDX-License-Identifier: Apache-2.0 */
/* file-regions.c: registering files, files on the initiator's side and on both, growth, rights and
 * durability. The other tests of transfers take a file as the target: TEST_FILE_ROUTES. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "lib/files.h"
#include "lib/fixture.h"

#define LENGTH (3 * MIB + 4097)
#define START 4099 /* of the region in the file: unaligned */

/* ---- what the library calls, counted ----------------------------------------------------------
 */

static atomic_int data_syncs, all_syncs, sync_error;

/* The library's calls come here. */
int fdatasync(int fd)
{
	atomic_fetch_add(&data_syncs, 1);
	errno = atomic_load(&sync_error);
	return errno ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	atomic_fetch_add(&all_syncs, 1);
	errno = atomic_load(&sync_error);
	return errno ? -1 : (int)syscall(SYS_fsync, fd);
}

/* The kernel does not know this one: 0, or its number. */
static _Atomic long missing_call;

/* The library's calls come here, and this file's. It takes arguments that were not given, as the
 * real one does. */
__attribute__((no_sanitize("address"))) long syscall(long number, ...)
{
	static long (*_Atomic found)(long, ...);
	long (*next)(long, ...) = atomic_load(&found);
	long arguments[6];
	va_list list;

	if (!next) {
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
		atomic_store(&found, next);
	}
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arguments[i] = va_arg(list, long);
	va_end(list);
	if (number == atomic_load(&missing_call)) {
		errno = ENOSYS;
		return -1;
	}
	return next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
		    arguments[5]);
}

/* ---- a file beside a fixture ------------------------------------------------------------------
 */

struct ours {
	int fd;
	unsigned char *map; /* of START + LENGTH + START bytes */
	struct wh_region *region;
};

static void ours_open(struct ours *ours, struct wh_engine *engine)
{
	ours->fd = file_new(2 * START + LENGTH);
	want_true(ours->fd >= 0, "no file: %s", strerror(-ours->fd));
	ours->map = file_map(ours->fd, 2 * START + LENGTH);
	want_true(ours->map, "mmap: %s", strerror(errno));
	want(0, file_region(engine, ours->fd, START, LENGTH, NULL, &ours->region));
}

static void ours_close(struct ours *ours)
{
	want(0, wh_region_unregister(ours->region));
	munmap(ours->map, 2 * START + LENGTH);
	close(ours->fd);
}

/* Fill the whole file, and check what lies before and behind the region. */
static void ours_fill(struct ours *ours, uint64_t seed)
{
	pattern_fill(ours->map, 2 * START + LENGTH, 0, seed);
}

static void want_rest_untouched(const struct ours *ours, uint64_t seed)
{
	want_true(pattern_check(ours->map, START, 0, seed) == PATTERN_GOOD, "before the region");
	want_true(pattern_check(ours->map + START + LENGTH, START, START + LENGTH, seed) ==
			  PATTERN_GOOD,
		  "behind the region");
}

/* Run one transfer between a region of ours and the fixture's target. */
static int move_region(const struct fixture *f, struct wh_region *region, uint32_t op,
		       uint64_t offset, uint64_t remote_offset, uint64_t length)
{
	struct wh_transfer transfer = { .local = region,
					.local_offset = offset,
					.remote = f->remote.id,
					.remote_offset = remote_offset,
					.length = length,
					.op = op };
	struct wh_batch *batch = batch_of(f, &transfer, 1);
	int status = batch_run(batch);

	if (status)
		print_error("%s\n", wh_batch_error_text(batch));
	want(0, wh_batch_free(batch));
	return status;
}

/* ---- the initiator's file ---------------------------------------------------------------------
 */

/* The file's bytes go to the target, of memory or a file too, and come back into it. */
static void local__both_directions(void **state)
{
	struct fixture f;
	struct ours ours;

	fixture_open(&f, *state, LENGTH);
	ours_open(&ours, f.engine);
	for (uint64_t i = 0; i < 3; i++) {
		uint64_t from = i * 1001, length = i ? 70000 * i + 3 : LENGTH;

		ours_fill(&ours, i);
		target_fill(&f, 0, LENGTH, 0, 100);
		want(0, move_region(&f, ours.region, WH_WRITE, from, i, length));
		want_true(target_check(&f, (int64_t)i, length, START + from, i) == PATTERN_GOOD,
			  "written bytes");
		ours_fill(&ours, 50);
		want(0, move_region(&f, ours.region, WH_READ, from, i, length));
		want_true(pattern_check(ours.map + START + from, length, START + from, i) ==
				  PATTERN_GOOD,
			  "read bytes");
		want_rest_untouched(&ours, 50);
	}
	ours_close(&ours);
	fixture_close(&f);
}

/* Pages of the file in random order. */
static void local__pages(void **state)
{
	enum { PAGES = LENGTH / 4096 };
	static uint64_t here[PAGES], there[PAGES];
	struct wh_base base = { 0 };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_WRITE,
				       .block_length = 4096,
				       .count = PAGES,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = here,
				       .remote_offsets = there };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct fixture f;
	struct ours ours;

	fixture_open(&f, *state, LENGTH);
	ours_open(&ours, f.engine);
	ours_fill(&ours, 3);
	pattern_shuffle(here, PAGES, 4096, 1);
	pattern_shuffle(there, PAGES, 4096, 2);
	base = (struct wh_base){ .local = ours.region, .remote = f.remote.id };
	want(0, wh_blocks_new(f.peer, &desc, &blocks));
	batch = batch_of(&f, NULL, 0);
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	for (size_t i = 0; i < PAGES; i++)
		want_true(target_check(&f, (int64_t)there[i], 4096, START + here[i], 3) ==
				  PATTERN_GOOD,
			  "page %zu", i);
	ours_close(&ours);
	fixture_close(&f);
}

/* One batch with a file and with memory on our side. */
static void local__file_and_memory(void **state)
{
	struct wh_transfer transfers[4];
	struct wh_batch *batch;
	struct fixture f;
	struct ours ours;

	fixture_open(&f, *state, LENGTH);
	ours_open(&ours, f.engine);
	ours_fill(&ours, 3);
	pattern_fill(f.local, f.length, 0, 4);
	for (uint64_t i = 0; i < 4; i++) {
		transfers[i] = transfer_of(&f, WH_WRITE, i * 5000, i * 5000, 5000);
		if (i & 1)
			transfers[i].local = ours.region;
	}
	batch = batch_of(&f, transfers, 4);
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	for (uint64_t i = 0; i < 4; i++)
		want_true(target_check(&f, (int64_t)i * 5000, 5000,
				       i & 1 ? START + i * 5000 : i * 5000,
				       i & 1 ? 3 : 4) == PATTERN_GOOD,
			  "transfer %d", (int)i);
	ours_close(&ours);
	fixture_close(&f);
}

/* Memory of a peer that is not mapped is reached by tcp, and the explanation says why. */
static void local__explained(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	char text[4096];
	struct fixture f;
	struct ours ours;

	fixture_open(&f, *state, 64 * KIB);
	ours_open(&ours, f.engine);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 4096);
	transfer.local = ours.region;
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	wh_batch_explain(batch, text, sizeof(text));
	want_true(strstr(text, "file"), "it says: %s", text);
	want(0, wh_batch_free(batch));
	ours_close(&ours);
	fixture_close(&f);
}

/* ---- registering ------------------------------------------------------------------------------
 */

static void register__arguments(void **state)
{
	struct wh_region_options rights = { .size = sizeof(rights), .access = WH_ACCESS_WRITE };
	struct wh_file_options options = { .size = sizeof(options) };
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	struct wh_region *region = NULL;
	int fd = file_new(1000), empty = file_new(0), other;

	(void)state;
	want_text(-EINVAL, "path is NULL", wh_file_register(engine, NULL, NULL, &region));
	want_text(-ENOENT, "/nothing/there",
		  wh_file_register(engine, "/nothing/there", NULL, &region));
	want_text(-EINVAL, "not a regular file", wh_file_register(engine, "/tmp", NULL, &region));
	want_text(-EINVAL, "not a regular file",
		  wh_file_register(engine, "/dev/null", NULL, &region));
	want_text(-EINVAL, "has 0 bytes", wh_file_register_fd(engine, empty, NULL, &region));
	want_text(-EBADF, "not an open file", wh_file_register_fd(engine, 999, NULL, &region));
	options.flags = 8;
	want_text(-EINVAL, "flags", wh_file_register_fd(engine, fd, &options, &region));
	options.flags = WH_FILE_GROW;
	want_text(-EINVAL, "take WH_FILE_WRITE",
		  wh_file_register_fd(engine, fd, &options, &region));
	options.flags = WH_FILE_GROW | WH_FILE_WRITE;
	want_text(-EINVAL, "length is 0", wh_file_register_fd(engine, fd, &options, &region));
	options.flags = WH_FILE_CREATE | WH_FILE_WRITE;
	want_text(-EINVAL, "created", wh_file_register_fd(engine, fd, &options, &region));
	options = (struct wh_file_options){ .size = sizeof(options), .durable = 3 };
	want_text(-EINVAL, "durable", wh_file_register_fd(engine, fd, &options, &region));
	options = (struct wh_file_options){ .size = sizeof(options), .length = 1001 };
	want_text(-ERANGE, "has 1000 bytes", wh_file_register_fd(engine, fd, &options, &region));
	options = (struct wh_file_options){ .size = sizeof(options), .offset = 1000 };
	want_text(-EINVAL, "none from offset 1000",
		  wh_file_register_fd(engine, fd, &options, &region));
	options = (struct wh_file_options){ .size = sizeof(options),
					    .offset = INT64_MAX,
					    .length = 1 };
	want(-EINVAL, wh_file_register_fd(engine, fd, &options, &region));
	options = (struct wh_file_options){ .size = sizeof(options), .region = &rights };
	want_text(-EACCES, "access WRITE", wh_file_register_fd(engine, fd, &options, &region));
	other = open("/tmp", O_PATH | O_CLOEXEC);
	want(-EBADF, wh_file_register_fd(engine, other, NULL, &region));
	close(other);
	want(0, fcntl(fd, F_SETFL, O_APPEND));
	want_text(-EINVAL, "O_APPEND", wh_file_register_fd(engine, fd, NULL, &region));
	want(0, fcntl(fd, F_SETFL, 0));
	assert_null(region);
	close(fd);
	close(empty);
	want(0, wh_engine_close(engine));
}

/* The range's length, its kind, its name, and a file that is created. */
static void register__by_path(void **state)
{
	struct wh_region_options named = { .size = sizeof(named), .name = "weights" };
	struct wh_file_options options = { .size = sizeof(options),
					   .offset = 100,
					   .region = &named };
	char directory[] = "/tmp/wherry-files-XXXXXX", path[64];
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	struct wh_region *region, *again, *found;
	struct wh_remote remote;
	struct wh_peer *peer;
	struct stat stat_now;
	uint64_t offset;

	(void)state;
	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/file", directory);
	want(0, wh_peer_open(engine, "self", NULL, &peer));
	options.flags = WH_FILE_WRITE;
	want(-ENOENT, wh_file_register(engine, path, &options, &region));
	options.flags = WH_FILE_WRITE | WH_FILE_CREATE | WH_FILE_GROW;
	options.length = 900;
	options.durable = WH_FILE_DURABLE_ALL;
	want(0, wh_file_register(engine, path, &options, &region));
	want(1, atomic_exchange(&all_syncs, 0)); /* of the directory */
	want(0, stat(path, &stat_now));
	want(0, stat_now.st_size); /* registering writes nothing */
	want(0, truncate(path, 1000));
	named.name = "once more";
	want(-EINVAL, wh_file_register(engine, path, &options, &again));
	named.name = NULL;
	options.flags = 0;
	options.length = 0;
	want(0, wh_file_register(engine, path, &options, &again));
	want(0, wh_peer_find(peer, "weights", 0, &remote));
	want(WH_MEMORY_FILE, remote.kind);
	want(900, remote.length);
	want(0, wh_region_lookup(engine, (void *)(uintptr_t)(remote.address + 7), 893, &found,
				 &offset));
	assert_ptr_equal(found, region);
	want(7, offset);
	want(-EBUSY, wh_engine_close(engine));
	want(0, wh_region_unregister(region));
	want(0, wh_region_unregister(again));
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	want(0, unlink(path));
	want(0, rmdir(directory));
}

/* Descriptors and mappings come back; harness_end() counts the descriptors, too. */
static void register__thousands(void **state)
{
	enum { ROUNDS = 5, FILES = 200 };
	static struct wh_region *regions[FILES];
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	int fd = file_new(10000);
	unsigned int fds = count_fds(), maps = count_maps(MAPS_OF_FILES);

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < FILES; i++)
			want(0, file_region(engine, fd, (uint64_t)i, 10000 - (uint64_t)i, NULL,
					    &regions[i]));
		for (int i = 0; i < FILES; i++)
			want(0, wh_region_unregister(regions[i]));
	}
	want(fds, count_fds());
	want(maps, count_maps(MAPS_OF_FILES));
	close(fd);
	want(0, wh_engine_close(engine));
}

/* ---- rights, growth, durability ---------------------------------------------------------------
 */

static void rights__read_only(void **state)
{
	struct wh_region_options access = { .size = sizeof(access), .access = WH_ACCESS_READ };
	struct wh_file_options options = { .size = sizeof(options),
					   .length = 64 * KIB,
					   .region = &access };
	struct wh_region *region;
	struct fixture f;
	struct ours ours;

	fixture_open(&f, *state, 64 * KIB);
	ours_open(&ours, f.engine);
	ours_fill(&ours, 1);
	want(0, wh_file_register_fd(f.engine, ours.fd, &options, &region));
	target_fill(&f, 0, f.length, 0, 9);
	want(-EACCES, move_region(&f, region, WH_READ, 0, 0, 4096));
	want(0, move_region(&f, region, WH_WRITE, 0, 0, 4096));
	want_true(pattern_check(ours.map, 2 * START + LENGTH, 0, 1) == PATTERN_GOOD,
		  "the file has changed");
	want(0, wh_region_unregister(region));
	ours_close(&ours);
	fixture_close(&f);
}

static uint64_t file_size(int fd)
{
	struct stat now_is;

	want(0, fstat(fd, &now_is));
	return (uint64_t)now_is.st_size;
}

/* A write behind the end makes the file as long as it reaches, and no longer. */
static void grow__as_far_as_written(void **state)
{
	struct wh_file_options options = { .size = sizeof(options),
					   .offset = 100,
					   .length = MIB,
					   .flags = WH_FILE_WRITE | WH_FILE_GROW };
	unsigned char bytes[5000];
	struct wh_region *region;
	struct fixture f;
	int fd = file_new(200);

	fixture_open(&f, *state, MIB);
	want(0, wh_file_register_fd(f.engine, fd, &options, &region));
	target_fill(&f, 0, f.length, 0, 9);
	want(0, move_region(&f, region, WH_READ, 3000, 0, 5000));
	want(100 + 3000 + 5000, file_size(fd));
	want(5000, pread(fd, bytes, 5000, 3100));
	want_true(pattern_check(bytes, 5000, 0, 9) == PATTERN_GOOD, "the bytes");
	want(0, move_region(&f, region, WH_READ, 0, 0, 100));
	want(100 + 3000 + 5000, file_size(fd));
	/* What was never written is not there to be read. */
	want(-EIO, move_region(&f, region, WH_WRITE, 4000, 0, 5000));
	want(0, move_region(&f, region, WH_WRITE, 0, 0, 8000));
	want(100 + 3000 + 5000, file_size(fd));
	want(0, wh_region_unregister(region));
	close(fd);
	fixture_close(&f);
}

static void durable__as_asked(void **state)
{
	struct wh_file_options options = { .size = sizeof(options), .flags = WH_FILE_WRITE };
	struct wh_region *region;
	struct fixture f;
	int fd = file_new(2 * MIB);

	fixture_open(&f, *state, 2 * MIB);
	for (options.durable = 0; options.durable <= WH_FILE_DURABLE_ALL; options.durable++) {
		want(0, wh_file_register_fd(f.engine, fd, &options, &region));
		atomic_store(&data_syncs, 0);
		atomic_store(&all_syncs, 0);
		want(0, move_region(&f, region, WH_WRITE, 0, 0, MIB));
		want(0, atomic_load(&data_syncs) + atomic_load(&all_syncs));
		want(0, move_region(&f, region, WH_READ, 0, 0, 2 * MIB));
		want(options.durable == WH_FILE_DURABLE_DATA, atomic_load(&data_syncs) > 0);
		want(options.durable == WH_FILE_DURABLE_ALL, atomic_load(&all_syncs) > 0);
		want(0, wh_region_unregister(region));
	}
	/* The kernel reports lost bytes once: all later batches have to know of it. */
	options.durable = WH_FILE_DURABLE_DATA;
	want(0, wh_file_register_fd(f.engine, fd, &options, &region));
	atomic_store(&sync_error, ENOSPC);
	want(-ENOSPC, move_region(&f, region, WH_READ, 0, 0, 100));
	atomic_store(&sync_error, 0);
	want(-ENOSPC, move_region(&f, region, WH_READ, 0, 0, 100));
	want(0, move_region(&f, region, WH_WRITE, 0, 0, 100));
	want(0, wh_region_unregister(region));
	close(fd);
	fixture_close(&f);
}

/* An owner with a file of 1 MiB, in this process, and a region of as much memory. */
struct owner {
	struct wh_engine *owner, *engine;
	struct wh_peer *peer;
	struct wh_region *file, *region;
	unsigned char *memory;
	int fd;
};

static void owner_open(struct owner *o, uint32_t durable)
{
	struct wh_region_options access = { .size = sizeof(access),
					    .name = "file",
					    .access = ACCESS_BOTH };
	struct wh_file_options options = { .size = sizeof(options),
					   .flags = WH_FILE_WRITE,
					   .durable = durable,
					   .region = &access };

	o->fd = file_new(MIB);
	o->owner = engine_open(NULL, "127.0.0.1:0", NULL);
	want(0, wh_file_register_fd(o->owner, o->fd, &options, &o->file));
	o->engine = engine_open(NULL, "none", NULL);
	o->memory = pages_new(MIB);
	want(0, wh_region_register(o->engine, o->memory, MIB, NULL, &o->region));
	want(0, wh_peer_open(o->engine, wh_engine_url(o->owner), NULL, &o->peer));
}

static int owner_move(const struct owner *o, uint32_t op, const char *require, char text[4096])
{
	struct wh_batch_options options = { .size = sizeof(options), .require = require };
	struct wh_transfer transfer = { .op = op, .local = o->region, .length = MIB };
	struct wh_remote remote;
	struct wh_batch *batch;
	int status;

	want(0, wh_peer_find(o->peer, "file", PATIENCE, &remote));
	transfer.remote = remote.id;
	want(0, wh_batch_new(o->peer, &options, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	status = batch_run(batch);
	wh_batch_explain(batch, text, 4096);
	want(0, wh_batch_free(batch));
	return status;
}

static void owner_close(struct owner *o)
{
	want(0, wh_peer_close(o->peer));
	want(0, wh_region_unregister(o->region));
	want(0, wh_region_unregister(o->file));
	want(0, wh_engine_close(o->engine));
	want(0, wh_engine_close(o->owner));
	pages_free(o->memory, MIB);
	close(o->fd);
}

/* The owner answers a write when its bytes are durable. */
static void durable__of_a_peer(void **state)
{
	char text[4096];
	struct owner o;

	(void)state;
	owner_open(&o, WH_FILE_DURABLE_DATA);
	atomic_store(&data_syncs, 0);
	want(0, owner_move(&o, WH_READ, NULL, text));
	want(0, atomic_load(&data_syncs));
	want(0, owner_move(&o, WH_WRITE, NULL, text));
	want_true(atomic_load(&data_syncs), "there was no fdatasync");
	atomic_store(&sync_error, EIO);
	want(-EIO, owner_move(&o, WH_WRITE, NULL, text));
	atomic_store(&sync_error, 0);
	want(-EIO, owner_move(&o, WH_WRITE, NULL, text));
	owner_close(&o);
}

/* On one host as well: nobody but the owner touches the file. Its bytes go through shared memory,
 * and the explanation says so. */
static void owner__alone(void **state)
{
	char text[4096];
	struct owner o;

	(void)state;
	owner_open(&o, WH_FILE_DURABLE_NONE);
	want(0, owner_move(&o, WH_READ, NULL, text));
	want_true(strstr(text, "tcp: 1048576 bytes") && strstr(text, "through shared memory") &&
			  !strstr(text, "warning"),
		  "it says: %s", text);
	want_text(-EOPNOTSUPP, "only its owner", owner_move(&o, WH_READ, "shm", text));
	owner_close(&o);
}

static void overlap__in_one_file(void **state)
{
	struct fixture f;
	struct wh_transfer transfer;
	struct wh_batch *batch;

	fixture_open(&f, *state, MIB);
	transfer = transfer_of(&f, WH_WRITE, 0, 100, 4096);
	transfer.local = f.target_region;
	want(0, wh_batch_new(f.peer, NULL, &batch));
	want_text(-EINVAL, "overlap in a file", wh_batch_add(batch, &transfer, 1));
	transfer.remote_offset = 8192;
	target_fill(&f, 0, MIB, 0, 3);
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, batch_run(batch));
	want_true(target_check(&f, 8192, 4096, 0, 3) == PATTERN_GOOD, "the bytes");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- what is not in the page cache -------------------------------------------------------------
 */

#define COLD_LENGTH (6 * MIB + 1234)

static size_t resident_pages(int fd)
{
	static unsigned char pages[COLD_LENGTH / 4096 + 1];
	void *map = file_map(fd, COLD_LENGTH);
	size_t count = 0;

	want_true(map, "mmap: %s", strerror(errno));
	want(0, mincore(map, COLD_LENGTH, pages));
	munmap(map, COLD_LENGTH);
	for (size_t i = 0; i < sizeof(pages); i++)
		count += pages[i] & 1;
	return count;
}

/* A file of which nothing is in the page cache; the test is skipped where that cannot be. */
static int cold_file(void)
{
	unsigned char *bytes = pages_new(COLD_LENGTH);
	int fd = file_new(0);

	pattern_fill(bytes, COLD_LENGTH, 0, 77);
	want(COLD_LENGTH, pwrite(fd, bytes, COLD_LENGTH, 0));
	pages_free(bytes, COLD_LENGTH);
	want(0, (int)syscall(SYS_fsync, fd));
	want(0, posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	if (resident_pages(fd)) {
		close(fd);
		print_message("this file system keeps its files in memory\n");
		skip();
	}
	return fd;
}

/* Blocks of odd lengths at odd places, and all of the file. `direct`: the page cache stays empty.
 */
static void cold_read(const char *setting, bool direct)
{
	enum { BLOCKS = 400, EACH = 4096 + 57 };
	static struct wh_transfer transfers[BLOCKS];
	const char *config[] = { setting, NULL };
	int fd = cold_file();
	unsigned char *memory = pages_new(COLD_LENGTH);
	struct wh_region *file, *region;
	struct wh_engine *engine = engine_open("self", "none", config);
	struct wh_peer *peer;
	struct wh_batch *batch;
	uint64_t random = 5;

	want(0, wh_file_register_fd(engine, fd, NULL, &file));
	want(0, wh_peer_open(engine, "self", NULL, &peer));
	want(0, wh_region_register(engine, memory, COLD_LENGTH, NULL, &region));
	for (size_t i = 0; i < BLOCKS; i++)
		transfers[i] = (struct wh_transfer){ .op = WH_READ,
						     .local = region,
						     .local_offset = i * EACH,
						     .remote = wh_region_id(file),
						     .remote_offset = pattern_random(&random) %
								      (COLD_LENGTH - EACH),
						     .length = EACH };
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, BLOCKS));
	want(0, batch_run(batch));
	for (size_t i = 0; i < BLOCKS; i++)
		want_true(pattern_check(memory + i * EACH, EACH, transfers[i].remote_offset, 77) ==
				  PATTERN_GOOD,
			  "block %zu", i);
	want(0, wh_batch_clear(batch));
	want(0, posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	transfers[0] = (struct wh_transfer){
		.op = WH_READ, .local = region, .remote = wh_region_id(file), .length = COLD_LENGTH
	};
	want(0, wh_batch_add(batch, transfers, 1));
	want(0, batch_run(batch));
	want_true(pattern_check(memory, COLD_LENGTH, 0, 77) == PATTERN_GOOD, "the whole file");
	if (direct)
		want_true(resident_pages(fd) < 100, "%zu pages are in the page cache",
			  resident_pages(fd));
	/* Once more, of what is there now; then shorter than the batch. */
	want(0, batch_run(batch));
	want(0, ftruncate(fd, COLD_LENGTH / 2));
	want(0, posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	want(-EIO, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(file));
	want(0, wh_region_unregister(region));
	want(0, wh_engine_close(engine));
	pages_free(memory, COLD_LENGTH);
	close(fd);
}

static void cold__direct(void **state)
{
	(void)state;
	cold_read("file_cold=direct", file_ring_is_allowed());
}

static void cold__ring(void **state)
{
	(void)state;
	cold_read("file_cold=ring", false);
}

static void cold__pread(void **state)
{
	(void)state;
	cold_read("file_cold=pread", false);
}

#define SYS_CACHESTAT 451

/* Before Linux 6.5 nobody says what is in the page cache: a read that does not wait finds out. */
static void cold__no_cachestat(void **state)
{
	(void)state;
	atomic_store(&missing_call, SYS_CACHESTAT);
	cold_read("file_cold=direct", false);
	atomic_store(&missing_call, 0);
}

/* Where io_uring is switched off, as in most containers, threads read. */
static void cold__no_io_uring(void **state)
{
	(void)state;
	atomic_store(&missing_call, SYS_io_uring_setup);
	cold_read("file_cold=direct", false);
	atomic_store(&missing_call, 0);
}

/* A sandbox may allow rings and then no use of them. */
static void cold__no_io_uring_enter(void **state)
{
	(void)state;
	atomic_store(&missing_call, SYS_io_uring_enter);
	cold_read("file_cold=direct", false);
	atomic_store(&missing_call, 0);
}

static void cold__no_such_way(void **state)
{
	const char *config[] = { "file_cold=fast", NULL };
	struct wh_engine_options options = { .size = sizeof(options), .config = config };
	struct wh_engine *engine;

	(void)state;
	want_text(-EINVAL, "file_cold=fast", wh_engine_open(&options, &engine));
}

#define TEST_LOCAL(function)                                                                       \
	TEST_OVER(function, self), TEST_OVER(function, shm), TEST_OVER(function, tcp4),            \
		TEST_FILE_ROUTES(function)

static const struct CMUnitTest tests[] = {
	TEST_LOCAL(local__both_directions),
	TEST_LOCAL(local__pages),
	TEST_LOCAL(local__file_and_memory),
	TEST_LOCAL(local__explained),
	TEST(register__arguments),
	TEST(register__by_path),
	TEST(register__thousands),
	TEST_LOCAL(rights__read_only),
	TEST_LOCAL(grow__as_far_as_written),
	TEST_LOCAL(durable__as_asked),
	TEST(durable__of_a_peer),
	TEST(owner__alone),
	TEST_OVER(overlap__in_one_file, file),
	TEST(cold__direct),
	TEST(cold__ring),
	TEST(cold__pread),
	TEST(cold__no_cachestat),
	TEST(cold__no_io_uring),
	TEST(cold__no_io_uring_enter),
	TEST(cold__no_such_way),
};

HARNESS_MAIN("file-regions", tests)
