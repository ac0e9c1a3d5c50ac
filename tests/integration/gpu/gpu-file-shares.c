/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu */
/* gpu-file-shares.c: a file that is read into a GPU: whether its pages are page-locked or threads
 * read it, and when that changes */
#include <stdatomic.h>
#include <sys/mman.h>

#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/gpu.h"

#define PAGE ((uint64_t)4096)
#define CHUNK (32 * MIB) /* what is page-locked by one call */
#define START 777
#define CHUNKS 3 /* of the file; the first and the last in part */
#define LENGTH ((CHUNKS - 1) * CHUNK + 5 * MIB + 4099)
#define SIZE (START + LENGTH + START)
#define USED "out of the page cache"
#define BY_THREADS "it is read the first time, by threads"

static const char registers[] = "cuMemHostRegister_v2", unregisters[] = "cuMemHostUnregister";

struct ours {
	struct wh_engine *engine;
	struct wh_peer *peer;
	int fd;
	unsigned char *map;
	void *gpu;
	struct wh_region *file, *memory;
};

/* Each page of the file has its number, and `seed`. */
static void file_fill(const struct ours *ours, int seed)
{
	for (uint64_t i = 0; i * PAGE < SIZE; i++) {
		uint64_t at = i * PAGE, left = SIZE - at;

		memset(ours->map + at, seed, left < PAGE ? left : PAGE);
		if (left >= sizeof(i))
			memcpy(ours->map + at, &i, sizeof(i));
	}
}

static void ours_open(struct ours *ours, const char *const *config)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = WH_MEMORY_DEVICE,
					     .location = "cuda:0" };

	harness_limit(240);
	*ours = (struct ours){ .engine = engine_open(NULL, "none", config) };
	ours->fd = file_new(SIZE);
	want_true(ours->fd >= 0, "no file");
	ours->map = file_map(ours->fd, SIZE);
	want_true(ours->map, "mmap: %s", strerror(errno));
	file_fill(ours, 1);
	want(0, file_region(ours->engine, ours->fd, START, LENGTH, NULL, &ours->file));
	want(0, wh_memory_alloc(ours->engine, LENGTH, &options, &ours->gpu));
	want(0, wh_region_register(ours->engine, ours->gpu, LENGTH, NULL, &ours->memory));
	want(0, wh_peer_open(ours->engine, "self", NULL, &ours->peer));
}

static void ours_close(struct ours *ours)
{
	want(0, wh_peer_close(ours->peer));
	want(0, wh_region_unregister(ours->file));
	want(0, wh_region_unregister(ours->memory));
	want(0, wh_memory_free(ours->engine, ours->gpu));
	want(0, wh_engine_close(ours->engine));
	munmap(ours->map, SIZE);
	close(ours->fd);
}

/* Does the GPU have the file's bytes, `bytes` of them? */
static void want_gpu(const struct ours *ours, uint64_t bytes)
{
	unsigned char *found = malloc(LENGTH);

	assert_non_null(found);
	bytes_get(found, ours->gpu, LENGTH, WH_MEMORY_DEVICE);
	for (uint64_t i = 0; i < bytes; i += PAGE)
		want_true(!memcmp(found + i, ours->map + START + i,
				  bytes - i < PAGE ? bytes - i : PAGE),
			  "the bytes at %llu on the GPU", (unsigned long long)i);
	free(found);
}

static void want_says(const char *text, const char *word, bool says)
{
	want_true(!!strstr(text, word) == says, "it says: %s", text);
}

/* Read `count` parts of the file that follow one another, as one batch of as many transfers. */
static void read_parts(const struct ours *ours, uint64_t count, char text[4096])
{
	struct wh_transfer *transfers = calloc(count, sizeof(*transfers));
	uint64_t each = LENGTH / count;
	struct wh_batch *batch;

	assert_non_null(transfers);
	for (uint64_t i = 0; i < count; i++)
		transfers[i] =
			(struct wh_transfer){ .op = WH_READ,
					      .local = ours->memory,
					      .local_offset = i * each,
					      .remote = wh_region_id(ours->file),
					      .remote_offset = i * each,
					      .length = i == count - 1 ? LENGTH - i * each : each };
	want(0, wh_batch_new(ours->peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, count));
	free(transfers);
	want(0, batch_run(batch));
	wh_batch_explain(batch, text, 4096);
	want(0, wh_batch_free(batch));
}

static const char *const locking[] = { "file_threads=4", NULL };

/* Nothing of an earlier batch is left on the GPU. */
static void gpu_clear(const struct ours *ours)
{
	void *zeroes = calloc(1, LENGTH);

	assert_non_null(zeroes);
	bytes_put(ours->gpu, zeroes, LENGTH, WH_MEMORY_DEVICE);
	free(zeroes);
}

/* Page-locking turns out to be slow, as in a file system of small pages: threads read the next
 * file, until somebody reads all of it once more. */
static void shares__slow_page_locking(void **state)
{
	const char *config[] = { "file_threads=1", NULL };
	uint64_t before = fake_calls(registers);
	struct ours ours;
	char text[4096];

	(void)state;
	ours_open(&ours, config);
	fake_slow_locking(100000);
	read_parts(&ours, 1, text);
	want_says(text, USED, true);
	want_says(text, BY_THREADS, false);
	want_gpu(&ours, LENGTH);
	want(before + CHUNKS, fake_calls(registers));

	want(0, wh_region_unregister(ours.file));
	want(0, file_region(ours.engine, ours.fd, START, LENGTH, NULL, &ours.file));
	file_fill(&ours, 2);
	read_parts(&ours, 5, text);
	want_says(text, BY_THREADS, true);
	want_gpu(&ours, LENGTH);
	want(before + CHUNKS, fake_calls(registers));

	for (int i = 0; i < 2; i++) {
		gpu_clear(&ours);
		read_parts(&ours, 1, text);
		want_says(text, BY_THREADS, false);
		want_says(text, USED, true);
		want_gpu(&ours, LENGTH);
		want(before + 2 * CHUNKS, fake_calls(registers));
	}
	fake_heal();
	ours_close(&ours);
}

/* file_pages=keep locks at once, however slow that is. */
static void shares__asked_for(void **state)
{
	const char *config[] = { "file_threads=1", "file_pages=keep", NULL };
	struct ours ours;
	char text[4096];

	(void)state;
	ours_open(&ours, config);
	fake_slow_locking(100000);
	for (int i = 0; i < 2; i++) {
		uint64_t before = fake_calls(registers);

		read_parts(&ours, 1, text);
		want_says(text, USED, true);
		want(before + CHUNKS, fake_calls(registers));
		want(0, wh_region_unregister(ours.file));
		want(0, file_region(ours.engine, ours.fd, START, LENGTH, NULL, &ours.file));
	}
	fake_heal();
	ours_close(&ours);
}

/* Many transfers, as the tensors of a file: ranges end where chunks do, so that each chunk is
 * locked once. */
static void shares__many_transfers(void **state)
{
	uint64_t before = fake_calls(registers);
	struct ours ours;
	char text[4096];

	(void)state;
	ours_open(&ours, locking);
	read_parts(&ours, 97, text);
	want_says(text, USED, true);
	want_gpu(&ours, LENGTH);
	want(before + CHUNKS, fake_calls(registers));
	ours_close(&ours);
}

/* Pages that are let go: each batch has to lock them anew. */
static void shares__let_go(void **state)
{
	const char *config[] = { locking[0], "file_pages=once", NULL };
	struct ours ours;
	uint64_t locked;
	char text[4096];

	(void)state;
	ours_open(&ours, config);
	locked = fake_calls(registers) - fake_calls(unregisters);
	for (int i = 0; i < 2; i++) {
		int64_t until = now() + 6 * PATIENCE;

		file_fill(&ours, 7 + i);
		read_parts(&ours, 1, text);
		want_says(text, USED, true);
		want_gpu(&ours, LENGTH);
		while (fake_calls(registers) - fake_calls(unregisters) != locked) {
			want_true(now() < until, "they are not let go");
			sleep_ms(1);
		}
	}
	ours_close(&ours);
}

/* The driver refuses from some chunk on: threads read all the rest, and it is said why. */
static void shares__refused_later(void **state)
{
	struct ours ours;
	char text[4096];

	(void)state;
	ours_open(&ours, locking);
	fake_fail(registers, 2, 801);
	read_parts(&ours, 1, text);
	want_gpu(&ours, LENGTH);
	want_says(text, "cuMemHostRegister", true);
	fake_heal();
	ours_close(&ours);
}

struct canceller {
	struct wh_batch *batch;
	uint64_t calls;
};

static void *cancel_soon(void *argument)
{
	const struct canceller *canceller = argument;

	while (fake_calls(registers) == canceller->calls)
		usleep(100);
	wh_batch_cancel(canceller->batch);
	return NULL;
}

/* Cancelled while it is at work: the batch ends, and a later one is whole. */
static void shares__cancelled(void **state)
{
	struct canceller canceller = { 0 };
	struct wh_transfer transfer = { .op = WH_READ, .length = LENGTH };
	pthread_t thread;
	struct ours ours;
	char text[4096];
	int status;

	(void)state;
	ours_open(&ours, locking);
	transfer.local = ours.memory;
	transfer.remote = wh_region_id(ours.file);
	want(0, wh_batch_new(ours.peer, NULL, &canceller.batch));
	want(0, wh_batch_add(canceller.batch, &transfer, 1));
	canceller.calls = fake_calls(registers);
	want(0, wh_batch_submit(canceller.batch));
	want(0, pthread_create(&thread, NULL, cancel_soon, &canceller));
	pthread_join(thread, NULL);
	status = wh_batch_status(canceller.batch);
	want_true(!status || status == -ECANCELED, "it ended with %d", status);
	want(0, wh_batch_free(canceller.batch));
	read_parts(&ours, 1, text);
	want_gpu(&ours, LENGTH);
	ours_close(&ours);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(shares__slow_page_locking, needs_fake),
	TEST_NEEDS(shares__asked_for, needs_fake),
	TEST_NEEDS(shares__many_transfers, needs_fake),
	TEST_NEEDS(shares__let_go, needs_fake),
	TEST_NEEDS(shares__refused_later, needs_fake),
	TEST_NEEDS(shares__cancelled, needs_fake),
};

HARNESS_MAIN("gpu-file-shares", tests)
