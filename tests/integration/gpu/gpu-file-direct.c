/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: fake-cufile gpu */
/* gpu-file-direct.c: files and GPU memory by GPUDirect Storage, with a stand-in for libcufile: what
 * it moves, what it is kept from, and why it is refused */
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mount.h>

#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/gpu.h"

#define LENGTH (3 * MIB + 4099)
#define START 777 /* of the file's region */
#define FILE_LENGTH (START + LENGTH)

struct direct {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_region *file, *memory;
	unsigned char *bytes; /* FILE_LENGTH of them, aligned */
	void *gpu;
	int fd;
};

static void library_path(char *out, size_t size)
{
	const char *driver = getenv("TEST_CUDA");

	snprintf(out, size, "%.*s/libcufile.so.0", (int)(strrchr(driver, '/') - driver), driver);
}

static uint64_t library_ask(const char *name, bool bytes)
{
	char path[512];
	void *library, *found;
	uint64_t (*of_bytes)(void);
	int (*of_handles)(void);

	library_path(path, sizeof(path));
	/* It stays loaded, and so do its counters. */
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	want_true(library, "%s", dlerror());
	found = dlsym(library, name);
	want_true(found, "%s is missing", name);
	memcpy(&of_bytes, &found, sizeof(found));
	memcpy(&of_handles, &found, sizeof(found));
	return bytes ? of_bytes() : (uint64_t)of_handles();
}

static uint64_t moved(void)
{
	return library_ask("fake_cufile_bytes", true);
}

/* `like`: FAKE_CUFILE. */
static void direct_open(struct direct *direct, const char *like, const char *setting)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = WH_MEMORY_DEVICE,
					     .location = "cuda:0" };
	struct wh_region_options file = { .size = sizeof(file), .name = "file" };
	char path[512], cufile[600];
	const char *config[] = { cufile, "file_writes=direct", setting, NULL };

	harness_limit(120);
	library_path(path, sizeof(path));
	snprintf(cufile, sizeof(cufile), "cufile=%s", path);
	setenv("FAKE_CUFILE", like, 1);
	*direct = (struct direct){ .engine = engine_open("cuda", "none", config),
				   .fd = file_new(FILE_LENGTH),
				   .bytes = pages_new(FILE_LENGTH) };
	want_true(direct->fd >= 0, "no file");
	want(0, file_region(direct->engine, direct->fd, START, LENGTH, &file, &direct->file));
	want(0, wh_memory_alloc(direct->engine, LENGTH + MIB, &options, &direct->gpu));
	want(0,
	     wh_region_register(direct->engine, direct->gpu, LENGTH + MIB, NULL, &direct->memory));
	want(0, wh_peer_open(direct->engine, "self", NULL, &direct->peer));
}

static void direct_close(struct direct *direct)
{
	want(0, wh_peer_close(direct->peer));
	want(0, wh_region_unregister(direct->file));
	want(0, (int)library_ask("fake_cufile_handles", false));
	want(0, wh_region_unregister(direct->memory));
	want(0, wh_memory_free(direct->engine, direct->gpu));
	want(0, wh_engine_close(direct->engine));
	pages_free(direct->bytes, FILE_LENGTH);
	close(direct->fd);
}

/* The file's content, and nothing of it in the page cache. False: this file system keeps it there.
 */
static bool file_fill(const struct direct *direct, uint64_t seed)
{
	const uint64_t range[2] = { 0, FILE_LENGTH };
	uint64_t cached[5] = { 0 };

	pattern_fill(direct->bytes, FILE_LENGTH, 0, seed);
	want(FILE_LENGTH, pwrite(direct->fd, direct->bytes, FILE_LENGTH, 0));
	want(0, fsync(direct->fd));
	want(0, posix_fadvise(direct->fd, 0, 0, POSIX_FADV_DONTNEED));
	return !syscall(451 /* cachestat */, direct->fd, range, cached, 0) && !cached[0];
}

static void gpu_fill(const struct direct *direct, uint64_t seed)
{
	unsigned char *bytes = malloc(LENGTH + MIB);

	assert_non_null(bytes);
	pattern_fill(bytes, LENGTH + MIB, 0, seed);
	bytes_put(direct->gpu, bytes, LENGTH + MIB, WH_MEMORY_DEVICE);
	free(bytes);
}

static void want_gpu(const struct direct *direct, uint64_t at, uint64_t length, uint64_t position,
		     uint64_t seed)
{
	unsigned char *bytes = malloc(LENGTH + MIB);
	size_t wrong;

	assert_non_null(bytes);
	bytes_get(bytes, direct->gpu, LENGTH + MIB, WH_MEMORY_DEVICE);
	wrong = pattern_check(bytes + at, length, position, seed);
	want_true(wrong == PATTERN_GOOD, "byte %zu on the GPU", wrong);
	free(bytes);
}

static int direct_move(const struct direct *direct, uint32_t op,
		       const struct wh_transfer *transfers, uint64_t count, char text[4096])
{
	struct wh_transfer all[64];
	struct wh_batch *batch;
	int status;

	for (uint64_t i = 0; i < count; i++) {
		all[i] = transfers[i];
		all[i].op = op;
		all[i].local = direct->memory;
		all[i].remote = wh_region_id(direct->file);
	}
	want(0, wh_batch_new(direct->peer, NULL, &batch));
	want(0, wh_batch_add(batch, all, count));
	status = batch_run(batch);
	want_true(wh_batch_explain(batch, text, 4096) > 0, "no explanation");
	want(0, wh_batch_free(batch));
	return status;
}

/* ---- what it moves --------------------------------------------------------------------------- */

/* Aligned alike on both sides: all whole pages; heads and tails through slots. */
static void read_and_write(const char *like)
{
	const struct wh_transfer all = { .local_offset = START, .length = LENGTH };
	const uint64_t whole = (LENGTH - (4096 - START)) / 4096 * 4096;
	uint64_t before;
	struct direct direct;
	char text[4096];
	bool cold;

	direct_open(&direct, like, NULL);
	gpu_fill(&direct, 1);
	cold = file_fill(&direct, 2);
	before = moved();
	want(0, direct_move(&direct, WH_READ, &all, 1, text));
	want_gpu(&direct, START, LENGTH, START, 2);
	want_gpu(&direct, 0, START, 0, 1);
	want_gpu(&direct, START + LENGTH, 1000, START + LENGTH, 1);
	if (cold) {
		want_true(moved() - before == whole, "%llu bytes by cuFile, %llu are whole pages",
			  (unsigned long long)(moved() - before), (unsigned long long)whole);
		want_true(strstr(text, "file, by GPUDirect Storage"), "it says: %s", text);
	}
	gpu_fill(&direct, 3);
	before = moved();
	want(0, direct_move(&direct, WH_WRITE, &all, 1, text));
	want(whole, moved() - before);
	want_true(strstr(text, "file, by GPUDirect Storage"), "it says: %s", text);
	want(FILE_LENGTH, pread(direct.fd, direct.bytes, FILE_LENGTH, 0));
	want_true(pattern_check(direct.bytes + START, LENGTH, START, 3) == PATTERN_GOOD &&
			  pattern_check(direct.bytes, START, 0, 2) == PATTERN_GOOD,
		  "the file");
	direct_close(&direct);
}

static void moves__whole_pages(void **state)
{
	(void)state;
	read_and_write("");
}

static void moves__by_p2pdma(void **state)
{
	(void)state;
	read_and_write("p2pdma");
}

static void moves__in_parts(void **state)
{
	(void)state;
	read_and_write("short");
}

/* Blocks: of each that is aligned alike its pages, of the others nothing; and what is in the page
 * cache is taken from there. */
static void moves__blocks(void **state)
{
	struct wh_transfer blocks[40];
	struct direct direct;
	char text[4096];
	uint64_t before;
	bool cold;

	(void)state;
	direct_open(&direct, "", "file_pages=off");
	gpu_fill(&direct, 4);
	cold = file_fill(&direct, 5);
	for (uint64_t i = 0; i < 40; i++) /* every third is not aligned as its memory is */
		blocks[i] = (struct wh_transfer){
			.local_offset = i * 65536 + (i % 3 ? 0 : 8),
			.remote_offset = (i * 7 % 40) * 65536 + 4096 - START,
			.length = i % 2 ? 16384 : 5000,
		};
	before = moved();
	want(0, direct_move(&direct, WH_READ, blocks, 40, text));
	for (uint64_t i = 0; i < 40; i++)
		want_gpu(&direct, blocks[i].local_offset, blocks[i].length,
			 START + blocks[i].remote_offset, 5);
	if (cold)
		want_true(moved() > before && (moved() - before) % 4096 == 0, "%llu bytes",
			  (unsigned long long)(moved() - before));
	want(FILE_LENGTH, pread(direct.fd, direct.bytes, FILE_LENGTH, 0));
	before = moved();
	want(0, direct_move(&direct, WH_READ, blocks, 40, text));
	if (cold)
		want(before, moved());
	direct_close(&direct);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void fails__shorter(void **state)
{
	const struct wh_transfer all = { .local_offset = START, .length = LENGTH };
	struct direct direct;
	char text[4096];

	(void)state;
	direct_open(&direct, "", NULL);
	gpu_fill(&direct, 1);
	file_fill(&direct, 2);
	want(0, ftruncate(direct.fd, MIB));
	want(-EIO, direct_move(&direct, WH_READ, &all, 1, text));
	want(-EIO, direct_move(&direct, WH_WRITE, &all, 1, text));
	want(MIB, lseek(direct.fd, 0, SEEK_END));
	direct_close(&direct);
}

/* Open one on a file system that has room for a MiB. False: it cannot be mounted here. */
static bool direct_open_on_full_disk(struct direct *direct)
{
	const char *before = getenv("TEST_FILES");
	char directory[] = "/tmp/wherry-full-XXXXXX";

	want_true(mkdtemp(directory), "no directory");
	if (mount("wherry-full", directory, "tmpfs", 0, "size=1m")) {
		rmdir(directory);
		return false;
	}
	setenv("TEST_FILES", directory, 1);
	direct_open(direct, "", NULL);
	if (before)
		setenv("TEST_FILES", before, 1);
	else
		unsetenv("TEST_FILES");
	umount2(directory, MNT_DETACH);
	rmdir(directory);
	return true;
}

/* The batch fails, and cuFile is used again when there is room. */
static void fails__full_disk(void **state)
{
	const struct wh_transfer all = { .local_offset = START, .length = LENGTH };
	const struct wh_transfer few = { .local_offset = START, .length = 256 * KIB };
	struct direct direct;
	char text[4096];
	uint64_t before;

	(void)state;
	if (!direct_open_on_full_disk(&direct)) {
		print_message("tmpfs cannot be mounted here: %s\n", strerror(errno));
		skip();
	}
	gpu_fill(&direct, 1);
	want(-ENOSPC, direct_move(&direct, WH_WRITE, &all, 1, text));
	want(0, fallocate(direct.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, FILE_LENGTH));
	before = moved();
	want(0, direct_move(&direct, WH_WRITE, &few, 1, text));
	want_true(moved() > before, "cuFile moves nothing any more: %s", text);
	want(FILE_LENGTH, pread(direct.fd, direct.bytes, FILE_LENGTH, 0));
	want_true(pattern_check(direct.bytes + START, 256 * KIB, START, 1) == PATTERN_GOOD,
		  "wrong bytes");
	direct_close(&direct);
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* Then slots move all of it, and the explanation has the reason. */
static void refused(const char *like, const char *why)
{
	const struct wh_transfer all = { .local_offset = START, .length = LENGTH };
	uint64_t before;
	struct direct direct;
	char text[4096];

	direct_open(&direct, like, NULL);
	gpu_fill(&direct, 6);
	file_fill(&direct, 7);
	before = moved();
	want(0, direct_move(&direct, WH_WRITE, &all, 1, text));
	want(before, moved());
	want_true(strstr(text, "not by GPUDirect Storage: ") && strstr(text, why),
		  "'%s' is not in: %s", why, text);
	want(FILE_LENGTH, pread(direct.fd, direct.bytes, FILE_LENGTH, 0));
	want_true(pattern_check(direct.bytes + START, LENGTH, START, 6) == PATTERN_GOOD,
		  "the file");
	direct_close(&direct);
}

static void refused__compatibility_mode(void **state)
{
	(void)state;
	refused("compat", "allow_compat_mode");
	refused("forced", "force_compat_mode");
	refused("nothing", "nvidia-fs is not loaded");
}

static void refused__no_driver(void **state)
{
	(void)state;
	refused("unloaded", "cuFileDriverOpen: nvidia-fs is not loaded");
}

static void refused__moving(void **state)
{
	(void)state;
	refused("fail", "cuFileWrite of ");
}

static void refused__file(void **state)
{
	(void)state;
	refused("refuse", "does not support the file");
}

static void refused__no_library(void **state)
{
	const struct wh_transfer all = { .local_offset = START, .length = LENGTH };
	struct direct direct;
	char text[4096];

	(void)state;
	direct_open(&direct, "", "cufile=/nowhere/libcufile.so.0");
	gpu_fill(&direct, 6);
	want(0, direct_move(&direct, WH_WRITE, &all, 1, text));
	want_true(strstr(text, "not by GPUDirect Storage: no cuFile: dlopen"), "it says: %s", text);
	direct_close(&direct);
}

/* Writes go past the page cache only where the program has asked for that. */
static void refused__cached_writes(void **state)
{
	const struct wh_transfer all = { .local_offset = START, .length = LENGTH };
	uint64_t before;
	struct direct direct;
	char text[4096];

	(void)state;
	direct_open(&direct, "", "file_writes=cached");
	gpu_fill(&direct, 6);
	before = moved();
	want(0, direct_move(&direct, WH_WRITE, &all, 1, text));
	want(before, moved());
	direct_close(&direct);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(moves__whole_pages, needs_fake),
	TEST_NEEDS(moves__by_p2pdma, needs_fake),
	TEST_NEEDS(moves__in_parts, needs_fake),
	TEST_NEEDS(moves__blocks, needs_fake),
	TEST_NEEDS(fails__shorter, needs_fake),
	TEST_NEEDS(fails__full_disk, needs_fake),
	TEST_NEEDS(refused__compatibility_mode, needs_fake),
	TEST_NEEDS(refused__no_driver, needs_fake),
	TEST_NEEDS(refused__file, needs_fake),
	TEST_NEEDS(refused__moving, needs_fake),
	TEST_NEEDS(refused__no_library, needs_fake),
	TEST_NEEDS(refused__cached_writes, needs_fake),
};

HARNESS_MAIN("gpu-file-direct", tests)
