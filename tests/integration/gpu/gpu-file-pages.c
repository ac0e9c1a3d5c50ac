/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu */
/* gpu-file-pages.c: GPUs that read a file out of the page cache: page-locked pages are used, kept
 * and let go as the setting says; what refuses them is told; and a file that changes meanwhile
 * never gives bytes that it did not have. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/gpu-file.h"
#include "lib/gpu.h"

#define STALE 0xee /* FAKE_STALE */

/* ---- used, kept, let go ------------------------------------------------------------------------
 */

static void pages__kept(void **state)
{
	struct gpu_file ours;
	uint64_t locked;

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 1);
	locked = gpu_file_calls(GPU_FILE_REGISTER);
	want(gpu_file_counts() ? 2 : 0, locked - ours.locked);
	/* Once more, and a few bytes: nothing is locked for them. */
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 1);
	want_gpu_file_read(&ours, 5000, 1);
	want(locked, gpu_file_calls(GPU_FILE_REGISTER));
	gpu_file_close(&ours);
}

static void pages__let_go(void **state)
{
	struct gpu_file ours;
	int64_t until;

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=once", "self");
	for (uint64_t i = 1; i < 3; i++) {
		want_gpu_file_read(&ours, GPU_FILE_LENGTH, 1);
		until = now() + PATIENCE;
		while (gpu_file_counts() &&
		       gpu_file_calls(GPU_FILE_UNREGISTER) - ours.let_go < 2 * i) {
			want_true(now() < until, "they are not let go");
			sleep_ms(1);
		}
		want(gpu_file_counts() ? 2 * i : 0,
		     gpu_file_calls(GPU_FILE_REGISTER) - ours.locked);
	}
	gpu_file_close(&ours);
}

static void pages__off(void **state)
{
	const char *config[] = { "file_pages=maybe", NULL };
	struct wh_engine_options options = { .size = sizeof(options), .config = config };
	struct wh_engine *engine;
	struct gpu_file ours;
	char text[4096];

	(void)state;
	want_text(-EINVAL, "file_pages=maybe", wh_engine_open(&options, &engine));
	gpu_file_open(&ours, "file_pages=off", "self");
	want(0, gpu_file_read(&ours, GPU_FILE_LENGTH, text));
	want_true(strstr(text, "by threads"), "it says: %s", text);
	want(ours.locked, gpu_file_calls(GPU_FILE_REGISTER));
	want_gpu_file(&ours, GPU_FILE_LENGTH, 1);
	gpu_file_close(&ours);
}

/* Few bytes of much of a file are not worth page-locking it. */
static void pages__sparse(void **state)
{
	struct wh_transfer transfers[2];
	struct wh_batch *batch;
	struct gpu_file ours;

	(void)state;
	gpu_file_open(&ours, "file_pages=keep", "self");
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
	want(ours.locked, gpu_file_calls(GPU_FILE_REGISTER));
	want_gpu_file(&ours, 4096, 1);
	gpu_file_close(&ours);
}

/* Our file, a peer's GPU. */
static void pages__of_a_peers_gpu(void **state)
{
	struct child *child = child_start(&(struct child_options){ .listen = "127.0.0.1:0" });
	int memory = child_memory_at(child, WH_MEMORY_DEVICE, GPU_FILE_LENGTH, "cuda:0");
	struct wh_transfer transfer = { .op = WH_WRITE, .length = GPU_FILE_LENGTH };
	struct wh_remote remote;
	struct wh_batch *batch;
	char text[4096];
	struct gpu_file ours;

	(void)state;
	harness_limit(120);
	child_region(child, memory, 0, GPU_FILE_LENGTH, "target", ACCESS_BOTH, NULL);
	gpu_file_open(&ours, "file_pages=keep", child->url);
	want(0, wh_peer_find(ours.peer, "target", PATIENCE, &remote));
	transfer.local = ours.file;
	transfer.remote = remote.id;
	want(0, wh_batch_new(ours.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, batch_run(batch));
	wh_batch_explain(batch, text, sizeof(text));
	want_true(strstr(text, GPU_FILE_USED), "it says: %s", text);
	want(0, wh_batch_free(batch));
	want_true(child_check(child, memory, 0, GPU_FILE_LENGTH, GPU_FILE_START, 1) == PATTERN_GOOD,
		  "the bytes");
	gpu_file_close(&ours);
	child_exit(child);
}

/* ---- refused -----------------------------------------------------------------------------------
 */

static void want_refused(const char *setting, const char *why)
{
	struct gpu_file ours;
	char text[4096];

	gpu_file_open(&ours, setting, "self");
	want(0, gpu_file_read(&ours, GPU_FILE_LENGTH, text));
	want_true(strstr(text, "by threads") && strstr(text, why), "it says: %s", text);
	want_gpu_file(&ours, GPU_FILE_LENGTH, 1);
	ours.uncounted = true;
	gpu_file_close(&ours);
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
	fake_fail(GPU_FILE_REGISTER, 0, 801);
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
	struct gpu_file ours;
	char text[4096];

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	want(0, (int)syscall(SYS_fsync, ours.fd));
	munmap(ours.map, GPU_FILE_SIZE);
	want(0, posix_fadvise(ours.fd, 0, 0, POSIX_FADV_DONTNEED));
	ours.map = file_map(ours.fd, GPU_FILE_SIZE);
	want(0, mincore(ours.map + 8 * MIB, 1, there));
	if (there[0] & 1) {
		gpu_file_close(&ours);
		print_message("this file system keeps its files in memory\n");
		skip();
	}
	want(0, gpu_file_read(&ours, GPU_FILE_LENGTH, text));
	want_true(strstr(text, "not in the page cache"), "it says: %s", text);
	want(ours.locked, gpu_file_calls(GPU_FILE_REGISTER));
	want_gpu_file(&ours, GPU_FILE_LENGTH, 1);
	/* When it is there, it is used. */
	pattern_fill(ours.map, GPU_FILE_SIZE, 0, 2);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 2);
	gpu_file_close(&ours);
}

/* ---- files that change -------------------------------------------------------------------------
 */

static void put(const struct gpu_file *ours, uint64_t at, uint64_t length, uint64_t seed)
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
	struct gpu_file ours;
	char text[4096];

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 1);
	put(&ours, 0, GPU_FILE_SIZE, 2);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 2);
	want(0, ftruncate(ours.fd, 0));
	put(&ours, 0, GPU_FILE_SIZE, 3);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 3);
	want(0, ftruncate(ours.fd, GPU_FILE_START + 10 * MIB));
	want(-EIO, gpu_file_read(&ours, GPU_FILE_LENGTH, text));
	want(0, gpu_file_read(&ours, 10 * MIB, text));
	want_gpu_file(&ours, 10 * MIB, 3);
	want(0, ftruncate(ours.fd, GPU_FILE_SIZE));
	gpu_file_close(&ours);
}

/* The same where neither size nor times say so: the page tables do. */
static void changed__with_equal_times(void **state)
{
	struct gpu_file ours;
	char text[4096];

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	munmap(ours.map, GPU_FILE_SIZE); /* it would map the pages again */
	put(&ours, 0, GPU_FILE_SIZE, 4);
	gpu_file_freeze(&ours, 0);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 4);
	want(0, ftruncate(ours.fd, 0));
	put(&ours, 0, GPU_FILE_SIZE, 5);
	want(0, gpu_file_read(&ours, GPU_FILE_LENGTH, text));
	want_gpu_file(&ours, GPU_FILE_LENGTH, 5);
	want_true(strstr(text, "taken out of the page cache"), "it says: %s", text);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 5);
	gpu_file_thaw();
	ours.map = file_map(ours.fd, GPU_FILE_SIZE);
	gpu_file_close(&ours);
}

/* The file is cut after its pages were locked and before the GPU reads them. */
static void cut_before_the_copy(bool mend)
{
	struct gpu_file_mender mender = { .mend = mend };
	unsigned char *bytes;
	struct gpu_file ours;
	pthread_t thread;
	char text[4096];
	int status;

	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	want(0, gpu_file_read(&ours, 5000, text)); /* the streams are there now */
	mender.ours = &ours;
	mender.call = GPU_FILE_REGISTER;
	mender.calls = gpu_file_calls(GPU_FILE_REGISTER);
	munmap(ours.map, GPU_FILE_SIZE);
	fake_delay(100000000); /* until the thread has done its work */
	want(0, pthread_create(&thread, NULL, gpu_file_cut, &mender));
	/* Of one chunk: no thread reads what could not be locked, unless the file is cut at once.
	 */
	status = gpu_file_read(&ours, 9 * MIB, text);
	fake_heal();
	pthread_join(thread, NULL);
	want_true(status == -EIO || (mend && !status), "the batch ended with %d", status);
	mend = mend && !status;
	ours.uncounted = true;
	bytes = gpu_file_bytes(&ours);
	want_true(!mend || pattern_check(bytes, MIB, GPU_FILE_START, 1) == PATTERN_GOOD,
		  "the first bytes");
	for (size_t i = MIB; mend && i < 9 * MIB; i++)
		want_true(!bytes[i], "byte %zu is %#x: not in the file any more", i, bytes[i]);
	free(bytes);
	ours.map = file_map(ours.fd, GPU_FILE_SIZE);
	gpu_file_close(&ours);
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
	const int fd = ((const struct gpu_file *)argument)->fd;

	for (int i = 0; atomic_load(&cutting); i++) {
		ftruncate(fd, (off_t)(GPU_FILE_START + (uint64_t)(i % 5) * 2 * MIB));
		usleep(500);
		ftruncate(fd, GPU_FILE_SIZE);
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
	struct gpu_file ours;
	pthread_t thread;
	char text[4096];

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	memset(ours.map, 1, GPU_FILE_SIZE);
	munmap(ours.map, GPU_FILE_SIZE);
	atomic_store(&cutting, true);
	want(0, pthread_create(&thread, NULL, cut_often, &ours));
	while (good + bad < SCALE(30, 10) || atomic_load(&cuts) < SCALE(100, 30)) {
		int status = gpu_file_read(&ours, 9 * MIB, text);

		want_true(!status || status == -EIO, "a batch ended with %d", status);
		good += !status;
		bad += status == -EIO;
		bytes = gpu_file_bytes(&ours);
		for (size_t i = 0; !status && i < 9 * MIB; i++)
			want_true(bytes[i] < 2, "byte %zu is %#x", i, bytes[i]);
		free(bytes);
	}
	atomic_store(&cutting, false);
	pthread_join(thread, NULL);
	print_message("%u batches succeeded, %u failed\n", good, bad);
	ours.uncounted = true;
	ours.map = file_map(ours.fd, GPU_FILE_SIZE);
	pattern_fill(ours.map, GPU_FILE_SIZE, 0, 9);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 9);
	gpu_file_close(&ours);
}

static const struct CMUnitTest tests[] = {
	TEST(pages__kept),
	TEST(pages__let_go),
	TEST(pages__off),
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
