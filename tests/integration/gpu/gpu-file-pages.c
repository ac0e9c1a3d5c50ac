/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-file-pages.c: GPUs that read a file out of the page cache: page-locked pages are used, kept
 * and let go as the setting says; what refuses them is told; and a file that changes meanwhile
 * never gives bytes that it did not have. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/gpu.h"

/* More than one chunk of 32 MiB, and odd ends. */
#define LENGTH (34 * MIB + 4099)
#define START 777
#define SIZE (START + LENGTH + START)
#define USED "out of the page cache"
#define STALE 0xee /* FAKE_STALE */

static const char registers[] = "cuMemHostRegister_v2", unregisters[] = "cuMemHostUnregister";

/* ---- files whose times stand still -------------------------------------------------------------
 */

static atomic_int frozen = -1; /* the times of this descriptor's file do not change */
static struct timespec frozen_at;

/* The library's calls come here. */
int fstat(int fd, struct stat *out)
{
	int error = fstatat(fd, "", out, AT_EMPTY_PATH), still = atomic_load(&frozen);
	struct stat it;

	if (!error && still >= 0 && !fstatat(still, "", &it, AT_EMPTY_PATH) &&
	    it.st_ino == out->st_ino && it.st_dev == out->st_dev)
		out->st_mtim = out->st_ctim = frozen_at;
	return error;
}

/* ---- an engine with a file and a GPU ----------------------------------------------------------
 */

struct ours {
	struct wh_engine *engine;
	struct wh_peer *peer;
	int fd;
	unsigned char *map;
	void *gpu;
	struct wh_region *file, *memory;
	uint64_t locked, let_go; /* calls before */
	bool uncounted; /* some that locked have failed */
};

/* Only the fake driver counts its calls. */
static bool counted(void)
{
	return getenv("TEST_CUDA");
}

static uint64_t calls(const char *name)
{
	return counted() ? fake_calls(name) : 0;
}

static void ours_open(struct ours *ours, const char *setting, const char *url)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = WH_MEMORY_DEVICE,
					     .location = "cuda:0" };
	struct wh_region_options file = { .size = sizeof(file), .name = "file" };
	const char *config[] = { setting, NULL };

	*ours = (struct ours){ .engine = engine_open(NULL, "none", config) };
	ours->fd = file_new(SIZE);
	want_true(ours->fd >= 0, "no file");
	ours->map = file_map(ours->fd, SIZE);
	want_true(ours->map, "mmap: %s", strerror(errno));
	pattern_fill(ours->map, SIZE, 0, 1);
	want(0, file_region(ours->engine, ours->fd, START, LENGTH, &file, &ours->file));
	want(0, wh_memory_alloc(ours->engine, LENGTH, &options, &ours->gpu));
	want(0, wh_region_register(ours->engine, ours->gpu, LENGTH, NULL, &ours->memory));
	want(0, wh_peer_open(ours->engine, url, NULL, &ours->peer));
	ours->locked = calls(registers);
	ours->let_go = calls(unregisters);
}

static void ours_close(struct ours *ours)
{
	want(0, wh_peer_close(ours->peer));
	want(0, wh_region_unregister(ours->file));
	if (!ours->uncounted)
		want(calls(registers) - ours->locked, calls(unregisters) - ours->let_go);
	want(0, wh_region_unregister(ours->memory));
	want(0, wh_memory_free(ours->engine, ours->gpu));
	want(0, wh_engine_close(ours->engine));
	munmap(ours->map, SIZE);
	close(ours->fd);
}

static struct wh_batch *ours_batch(const struct ours *ours, uint64_t length)
{
	struct wh_transfer transfer = { .op = WH_READ,
					.local = ours->memory,
					.remote = wh_region_id(ours->file),
					.length = length };
	struct wh_batch *batch;

	want(0, wh_batch_new(ours->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	return batch;
}

/* Read the file's first `length` bytes into the GPU. */
static int ours_read(const struct ours *ours, uint64_t length, char text[4096])
{
	struct wh_batch *batch = ours_batch(ours, length);
	int status = batch_run(batch);

	wh_batch_explain(batch, text, 4096);
	want(0, wh_batch_free(batch));
	return status;
}

static unsigned char *gpu_bytes(const struct ours *ours)
{
	unsigned char *bytes = malloc(LENGTH);

	assert_non_null(bytes);
	bytes_get(bytes, ours->gpu, LENGTH, WH_MEMORY_DEVICE);
	return bytes;
}

static void want_gpu(const struct ours *ours, uint64_t length, uint64_t seed)
{
	unsigned char *bytes = gpu_bytes(ours);
	size_t wrong = pattern_check(bytes, length, START, seed);

	free(bytes);
	want_true(wrong == PATTERN_GOOD, "byte %zu on the GPU", wrong);
}

static void want_reads(const struct ours *ours, uint64_t length, uint64_t seed)
{
	char text[4096];

	want(0, ours_read(ours, length, text));
	want_true(strstr(text, USED), "it says: %s", text);
	want_gpu(ours, length, seed);
}

/* ---- used, kept, let go ------------------------------------------------------------------------
 */

static void pages__kept(void **state)
{
	struct ours ours;
	uint64_t locked;

	(void)state;
	harness_limit(120);
	ours_open(&ours, "file_pages=keep", "self");
	want_reads(&ours, LENGTH, 1);
	locked = calls(registers);
	want(counted() ? 2 : 0, locked - ours.locked);
	/* Once more, and a few bytes: nothing is locked for them. */
	want_reads(&ours, LENGTH, 1);
	want_reads(&ours, 5000, 1);
	want(locked, calls(registers));
	ours_close(&ours);
}

static void pages__let_go(void **state)
{
	struct ours ours;
	int64_t until;

	(void)state;
	harness_limit(120);
	ours_open(&ours, "file_pages=once", "self");
	for (uint64_t i = 1; i < 3; i++) {
		want_reads(&ours, LENGTH, 1);
		until = now() + PATIENCE;
		while (counted() && calls(unregisters) - ours.let_go < 2 * i) {
			want_true(now() < until, "they are not let go");
			sleep_ms(1);
		}
		want(counted() ? 2 * i : 0, calls(registers) - ours.locked);
	}
	ours_close(&ours);
}

static void pages__off(void **state)
{
	const char *config[] = { "file_pages=maybe", NULL };
	struct wh_engine_options options = { .size = sizeof(options), .config = config };
	struct wh_engine *engine;
	struct ours ours;
	char text[4096];

	(void)state;
	want_text(-EINVAL, "file_pages=maybe", wh_engine_open(&options, &engine));
	ours_open(&ours, "file_pages=off", "self");
	want(0, ours_read(&ours, LENGTH, text));
	want_true(strstr(text, "by threads"), "it says: %s", text);
	want(ours.locked, calls(registers));
	want_gpu(&ours, LENGTH, 1);
	ours_close(&ours);
}

/* Blocks that lie in two chunks, at places of any alignment, in random order. */
static void pages__blocks(void **state)
{
	enum { EACH = 12345, BLOCKS = LENGTH / EACH };
	static uint64_t here[BLOCKS], there[BLOCKS];
	struct wh_base base = { 0 };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = EACH,
				       .count = BLOCKS,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = here,
				       .remote_offsets = there };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	unsigned char *bytes;
	char text[4096];
	struct ours ours;

	(void)state;
	harness_limit(120);
	ours_open(&ours, "file_pages=keep", "self");
	pattern_shuffle(here, BLOCKS, EACH, 1);
	pattern_shuffle(there, BLOCKS, EACH, 2);
	base = (struct wh_base){ .local = ours.memory, .remote = wh_region_id(ours.file) };
	want(0, wh_blocks_new(ours.peer, &desc, &blocks));
	want(0, wh_batch_new(ours.peer, NULL, &batch));
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	want(0, batch_run(batch));
	wh_batch_explain(batch, text, sizeof(text));
	want_true(strstr(text, USED), "it says: %s", text);
	want(0, wh_batch_free(batch));
	bytes = gpu_bytes(&ours);
	for (size_t i = 0; i < BLOCKS; i++)
		want_true(pattern_check(bytes + here[i], EACH, START + there[i], 1) == PATTERN_GOOD,
			  "block %zu", i);
	free(bytes);
	ours_close(&ours);
}

/* Few bytes of much of a file are not worth page-locking it. */
static void pages__sparse(void **state)
{
	struct wh_transfer transfers[2];
	struct wh_batch *batch;
	struct ours ours;

	(void)state;
	ours_open(&ours, "file_pages=keep", "self");
	for (uint64_t i = 0; i < 2; i++)
		transfers[i] = (struct wh_transfer){ .op = WH_READ,
						     .local = ours.memory,
						     .local_offset = i * 4096,
						     .remote = wh_region_id(ours.file),
						     .remote_offset = i * 33 * MIB,
						     .length = 4096 };
	want(0, wh_batch_new(ours.peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, 2));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(ours.locked, calls(registers));
	want_gpu(&ours, 4096, 1);
	ours_close(&ours);
}

/* Our file, a peer's GPU. */
static void pages__of_a_peers_gpu(void **state)
{
	struct child *child = child_start(&(struct child_options){ .listen = "127.0.0.1:0" });
	int memory = child_memory_at(child, WH_MEMORY_DEVICE, LENGTH, "cuda:0");
	struct wh_transfer transfer = { .op = WH_WRITE, .length = LENGTH };
	struct wh_remote remote;
	struct wh_batch *batch;
	char text[4096];
	struct ours ours;

	(void)state;
	harness_limit(120);
	child_region(child, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	ours_open(&ours, "file_pages=keep", child->url);
	want(0, wh_peer_find(ours.peer, "target", PATIENCE, &remote));
	transfer.local = ours.file;
	transfer.remote = remote.id;
	want(0, wh_batch_new(ours.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, batch_run(batch));
	wh_batch_explain(batch, text, sizeof(text));
	want_true(strstr(text, USED), "it says: %s", text);
	want(0, wh_batch_free(batch));
	want_true(child_check(child, memory, 0, LENGTH, START, 1) == PATTERN_GOOD, "the bytes");
	ours_close(&ours);
	child_exit(child);
}

/* ---- refused -----------------------------------------------------------------------------------
 */

static void want_refused(const char *setting, const char *why)
{
	struct ours ours;
	char text[4096];

	ours_open(&ours, setting, "self");
	want(0, ours_read(&ours, LENGTH, text));
	want_true(strstr(text, "by threads") && strstr(text, why), "it says: %s", text);
	want_gpu(&ours, LENGTH, 1);
	ours.uncounted = true;
	ours_close(&ours);
}

static void refused__by_the_device(void **state)
{
	(void)state;
	want(0, CU(fake_cuda_attribute, (int, int), 113, 0));
	want_refused("file_pages=keep", "READ_ONLY_HOST_REGISTER_SUPPORTED");
	fake_heal();
}

static void refused__by_the_driver(void **state)
{
	(void)state;
	fake_fail(registers, 0, 801);
	want_refused("file_pages=keep", "cuMemHostRegister");
	fake_heal();
}

static void refused__by_the_setting(void **state)
{
	(void)state;
	want_refused("pin=0", "the setting pin is off");
}

static void refused__not_in_the_page_cache(void **state)
{
	unsigned char there[1];
	struct ours ours;
	char text[4096];

	(void)state;
	harness_limit(120);
	ours_open(&ours, "file_pages=keep", "self");
	want(0, (int)syscall(SYS_fsync, ours.fd));
	munmap(ours.map, SIZE);
	want(0, posix_fadvise(ours.fd, 0, 0, POSIX_FADV_DONTNEED));
	ours.map = file_map(ours.fd, SIZE);
	want(0, mincore(ours.map + 8 * MIB, 1, there));
	if (there[0] & 1) {
		ours_close(&ours);
		print_message("this file system keeps its files in memory\n");
		skip();
	}
	want(0, ours_read(&ours, LENGTH, text));
	want_true(strstr(text, "not in the page cache"), "it says: %s", text);
	want(ours.locked, calls(registers));
	want_gpu(&ours, LENGTH, 1);
	/* When it is there, it is used. */
	pattern_fill(ours.map, SIZE, 0, 2);
	want_reads(&ours, LENGTH, 2);
	ours_close(&ours);
}

/* ---- files that change -------------------------------------------------------------------------
 */

static void put(const struct ours *ours, uint64_t at, uint64_t length, uint64_t seed)
{
	unsigned char *bytes = malloc(length);

	assert_non_null(bytes);
	pattern_fill(bytes, length, at, seed);
	want((long)length, pwrite(ours->fd, bytes, length, (off_t)at));
	free(bytes);
}

/* What others write is what the next batch reads, whatever is kept. */
static void changed__between_batches(void **state)
{
	struct ours ours;
	char text[4096];

	(void)state;
	harness_limit(120);
	ours_open(&ours, "file_pages=keep", "self");
	want_reads(&ours, LENGTH, 1);
	put(&ours, 0, SIZE, 2);
	want_reads(&ours, LENGTH, 2);
	want(0, ftruncate(ours.fd, 0));
	put(&ours, 0, SIZE, 3);
	want_reads(&ours, LENGTH, 3);
	want(0, ftruncate(ours.fd, START + 10 * MIB));
	want(-EIO, ours_read(&ours, LENGTH, text));
	want(0, ours_read(&ours, 10 * MIB, text));
	want_gpu(&ours, 10 * MIB, 3);
	want(0, ftruncate(ours.fd, SIZE));
	ours_close(&ours);
}

/* The same where neither size nor times say so: the page tables do. */
static void changed__with_equal_times(void **state)
{
	struct ours ours;
	char text[4096];

	(void)state;
	harness_limit(120);
	ours_open(&ours, "file_pages=keep", "self");
	munmap(ours.map, SIZE); /* it would map the pages again */
	put(&ours, 0, SIZE, 4);
	want(0, clock_gettime(CLOCK_REALTIME, &frozen_at));
	atomic_store(&frozen, ours.fd);
	want_reads(&ours, LENGTH, 4);
	want(0, ftruncate(ours.fd, 0));
	put(&ours, 0, SIZE, 5);
	want(0, ours_read(&ours, LENGTH, text));
	want_gpu(&ours, LENGTH, 5);
	want_true(strstr(text, "taken out of the page cache"), "it says: %s", text);
	want_reads(&ours, LENGTH, 5);
	atomic_store(&frozen, -1);
	ours.map = file_map(ours.fd, SIZE);
	ours_close(&ours);
}

struct mender {
	const struct ours *ours;
	uint64_t calls; /* it begins when the driver has been called once more */
	bool mend;
};

static void *cut_then_mend(void *argument)
{
	const struct mender *mender = argument;

	while (calls(registers) == mender->calls)
		usleep(100);
	usleep(20000); /* they are locked by now */
	ftruncate(mender->ours->fd, START + MIB);
	if (mender->mend)
		ftruncate(mender->ours->fd, SIZE);
	fake_delay(0); /* the copies begin */
	return NULL;
}

/* The file is cut after its pages were locked and before the GPU reads them. */
static void cut_before_the_copy(bool mend)
{
	struct mender mender = { .mend = mend };
	unsigned char *bytes;
	struct ours ours;
	pthread_t thread;
	char text[4096];
	int status;

	harness_limit(120);
	ours_open(&ours, "file_pages=keep", "self");
	want(0, ours_read(&ours, 5000, text)); /* the streams are there now */
	mender.ours = &ours;
	mender.calls = calls(registers);
	munmap(ours.map, SIZE);
	fake_delay(100000000); /* until the thread has done its work */
	want(0, pthread_create(&thread, NULL, cut_then_mend, &mender));
	/* Of one chunk: no thread reads what could not be locked, unless the file is cut at once.
	 */
	status = ours_read(&ours, 9 * MIB, text);
	fake_heal();
	pthread_join(thread, NULL);
	want_true(status == -EIO || (mend && !status), "the batch ended with %d", status);
	mend = mend && !status;
	ours.uncounted = true;
	bytes = gpu_bytes(&ours);
	want_true(!mend || pattern_check(bytes, MIB, START, 1) == PATTERN_GOOD, "the first bytes");
	for (size_t i = MIB; mend && i < 9 * MIB; i++)
		want_true(!bytes[i], "byte %zu is %#x: not in the file any more", i, bytes[i]);
	free(bytes);
	ours.map = file_map(ours.fd, SIZE);
	ours_close(&ours);
}

static void cut__before_the_copy(void **state)
{
	(void)state;
	cut_before_the_copy(false);
}

static void cut__and_mended(void **state)
{
	(void)state;
	cut_before_the_copy(true);
}

static atomic_bool cutting;
static atomic_int cuts;

static void *cut_often(void *argument)
{
	const int fd = ((const struct ours *)argument)->fd;

	for (int i = 0; atomic_load(&cutting); i++) {
		ftruncate(fd, (off_t)(START + (uint64_t)(i % 5) * 2 * MIB));
		usleep(500);
		ftruncate(fd, SIZE);
		atomic_fetch_add(&cuts, 1);
		usleep(10000);
	}
	return NULL;
}

/* The outcome is success or EIO; of a success, every byte was the file's at some moment. */
static void cut__under_way(void **state)
{
	unsigned int good = 0, bad = 0;
	unsigned char *bytes;
	struct ours ours;
	pthread_t thread;
	char text[4096];

	(void)state;
	harness_limit(120);
	ours_open(&ours, "file_pages=keep", "self");
	memset(ours.map, 1, SIZE);
	munmap(ours.map, SIZE);
	atomic_store(&cutting, true);
	want(0, pthread_create(&thread, NULL, cut_often, &ours));
	while (good + bad < SCALE(30, 10) || atomic_load(&cuts) < SCALE(100, 30)) {
		int status = ours_read(&ours, 9 * MIB, text);

		want_true(!status || status == -EIO, "a batch ended with %d", status);
		good += !status;
		bad += status == -EIO;
		bytes = gpu_bytes(&ours);
		for (size_t i = 0; !status && i < 9 * MIB; i++)
			want_true(bytes[i] < 2, "byte %zu is %#x", i, bytes[i]);
		free(bytes);
	}
	atomic_store(&cutting, false);
	pthread_join(thread, NULL);
	print_message("%u batches succeeded, %u failed\n", good, bad);
	ours.uncounted = true;
	ours.map = file_map(ours.fd, SIZE);
	pattern_fill(ours.map, SIZE, 0, 9);
	want_reads(&ours, LENGTH, 9);
	ours_close(&ours);
}

static const struct CMUnitTest tests[] = {
	TEST(pages__kept),
	TEST(pages__let_go),
	TEST(pages__off),
	TEST(pages__blocks),
	TEST(pages__sparse),
	TEST(pages__of_a_peers_gpu),
	TEST_NEEDS(refused__by_the_device, needs_fake),
	TEST_NEEDS(refused__by_the_driver, needs_fake),
	TEST(refused__by_the_setting),
	TEST(refused__not_in_the_page_cache),
	TEST(changed__between_batches),
	TEST(changed__with_equal_times),
	TEST_NEEDS(cut__before_the_copy, needs_fake),
	TEST_NEEDS(cut__and_mended, needs_fake),
	TEST(cut__under_way),
};

HARNESS_MAIN("gpu-file-pages", tests)
