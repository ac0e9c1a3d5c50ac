/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu */
/* gpu-file-blocks.c: blocks of a file that a GPU reads out of the page cache: all at once where the
 * pages have been locked before, else in ranges; every byte is the file's. */
#include <pthread.h>
#include <sys/mman.h>

#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/gpu-file.h"
#include "lib/gpu.h"

static const char launches[] = "cuLaunchKernel";

/* ---- blocks of any shape -----------------------------------------------------------------------
 */

/* Blocks of one length. Each base has its share of the `room` bytes of the file that begin at
 * `from`, and of the GPU's memory. Its blocks are in random order where there is a list, else a
 * stride apart. */
struct shape {
	uint64_t each, bases, from, room;
	bool in_file, on_gpu; /* lists */
	uint32_t op; /* WH_READ: the file is the remote side */
};

#define MOST_BLOCKS (GPU_FILE_LENGTH / 512)
static uint64_t in_file[MOST_BLOCKS], on_gpu[MOST_BLOCKS];

/* A stride leaves a gap in the file. */
static uint64_t shape_stride(const struct shape *shape)
{
	return shape->in_file ? shape->each : shape->each + 100;
}

/* The first base in the file: a list of offsets counts from the region's start. */
static uint64_t shape_base(const struct shape *shape)
{
	return shape->in_file ? 0 : shape->from;
}

static uint64_t shape_count(const struct shape *shape)
{
	return shape->room / shape->bases / shape_stride(shape);
}

/* Urgent, so that neither mover is tried, and typical costs decide: for the kernel. */
static struct wh_batch *blocks_batch(const struct gpu_file *ours, const struct shape *shape)
{
	struct wh_batch_options urgent = { .size = sizeof(urgent),
					   .priority = WH_PRIORITY_LATENCY };
	uint64_t count = shape_count(shape), share = shape->room / shape->bases;
	bool reads = shape->op == WH_READ;
	struct wh_base bases[40] = { 0 };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = shape->op,
				       .block_length = shape->each,
				       .count = count,
				       .bases = bases,
				       .base_count = shape->bases };
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	for (uint64_t i = 0; i < count; i++) {
		in_file[i] = i * shape_stride(shape);
		on_gpu[i] = i * shape->each;
	}
	if (shape->in_file)
		pattern_shuffle(in_file, count, shape->each, 1);
	for (uint64_t i = 0; i < count; i++)
		in_file[i] += shape->from - shape_base(shape);
	if (shape->on_gpu)
		pattern_shuffle(on_gpu, count, shape->each, 2);
	*(reads ? &desc.remote_offsets : &desc.local_offsets) = shape->in_file ? in_file : NULL;
	*(reads ? &desc.local_offsets : &desc.remote_offsets) = shape->on_gpu ? on_gpu : NULL;
	*(reads ? &desc.remote_stride : &desc.local_stride) = shape_stride(shape);
	for (uint64_t b = 0; b < shape->bases; b++) {
		uint64_t file = shape_base(shape) + b * share, gpu = b * share;

		bases[b].local = reads ? ours->memory : ours->file;
		bases[b].remote = wh_region_id(reads ? ours->file : ours->memory);
		bases[b].local_offset = reads ? gpu : file;
		bases[b].remote_offset = reads ? file : gpu;
	}
	want(0, wh_blocks_new(ours->peer, &desc, &blocks));
	want(0, wh_batch_new(ours->peer, &urgent, &batch));
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	return batch;
}

/* Nothing of an earlier batch is left on the GPU. */
static void gpu_clear(const struct gpu_file *ours)
{
	void *zeroes = calloc(1, GPU_FILE_LENGTH);

	assert_non_null(zeroes);
	bytes_put(ours->gpu, zeroes, GPU_FILE_LENGTH, WH_MEMORY_DEVICE);
	free(zeroes);
}

/* Of the batch that was made last. */
static void want_blocks(const struct gpu_file *ours, const struct shape *shape, uint64_t seed)
{
	uint64_t count = shape_count(shape), share = shape->room / shape->bases;
	unsigned char *bytes = gpu_file_bytes(ours);

	for (uint64_t i = 0; i < count * shape->bases; i++) {
		uint64_t start = i / count * share, to = start + on_gpu[i % count];
		uint64_t from = GPU_FILE_START + shape_base(shape) + start + in_file[i % count];

		want_true(pattern_check(bytes + to, shape->each, from, seed) == PATTERN_GOOD,
			  "block %llu of %llu bytes", (unsigned long long)i,
			  (unsigned long long)shape->each);
	}
	free(bytes);
}

/* Returns how many kernels were launched. */
static uint64_t blocks_run(const struct gpu_file *ours, const struct shape *shape,
			   struct wh_batch *batch)
{
	uint64_t before = gpu_file_calls(launches);
	char text[4096];

	gpu_clear(ours);
	want(0, batch_run(batch));
	before = gpu_file_calls(launches) - before;
	wh_batch_explain(batch, text, sizeof(text));
	want_true(strstr(text, GPU_FILE_USED), "it says: %s", text);
	want_blocks(ours, shape, 1);
	return before;
}

/* All blocks of up to 32 bases are one launch; ranges would be at least one for each 8 MiB. */
static void want_at_once(const struct gpu_file *ours, const struct shape *shape, uint64_t wanted)
{
	struct wh_batch *batch = blocks_batch(ours, shape);

	/* The second reading puts the offsets into the GPU's memory, the third uses them. */
	for (int i = 0; i < 3; i++) {
		uint64_t launched = blocks_run(ours, shape, batch);

		want_true(!gpu_file_counts() || launched == wanted,
			  "%llu launches for blocks of %llu bytes of %llu bases, reading %d",
			  (unsigned long long)launched, (unsigned long long)shape->each,
			  (unsigned long long)shape->bases, i);
	}
	want(0, wh_batch_free(batch));
}

/* Blocks that lie in two chunks, at places of any alignment, in random order: in ranges, as the
 * first time nothing is locked, and later the pages are looked at before each use, because the file
 * was changed a moment ago. */
static void blocks__of_a_new_file(void **state)
{
	const struct shape shape = { 12345, 1, 0, GPU_FILE_LENGTH, true, true, WH_READ };
	struct wh_batch *batch;
	struct gpu_file ours;

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	batch = blocks_batch(&ours, &shape);
	for (int i = 0; i < 2; i++)
		want_true(!gpu_file_counts() || blocks_run(&ours, &shape, batch) > 1,
			  "unsettled pages are not looked at");
	want(0, wh_batch_free(batch));
	gpu_file_close(&ours);
}

/* When the file has been at rest for a while, they are looked at once more, and never again. */
static void blocks__of_a_file_at_rest(void **state)
{
	const struct shape shape = { 4096, 1, 0, GPU_FILE_LENGTH, true, false, WH_READ };
	int64_t until = now() + PATIENCE;
	struct wh_batch *batch;
	struct gpu_file ours;

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	gpu_file_freeze(&ours, 8);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 1);
	batch = blocks_batch(&ours, &shape);
	while (blocks_run(&ours, &shape, batch) != 1) {
		want_true(now() < until, "they are still looked at");
		sleep_ms(100);
	}
	want(0, wh_batch_free(batch));
	gpu_file_thaw();
	gpu_file_close(&ours);
}

static void blocks__all_at_once(void **state)
{
	static const struct shape shapes[] = {
		{ 4096, 1, 0, GPU_FILE_LENGTH, true, true, WH_READ },
		{ 12345, 1, 0, GPU_FILE_LENGTH, true, true, WH_READ },
		{ 12345, 1, 0, GPU_FILE_LENGTH, false, true, WH_READ },
		{ 777, 1, 0, GPU_FILE_LENGTH, true, false, WH_READ },
		{ 1024, 5, 0, GPU_FILE_LENGTH, true, true, WH_READ },
		{ 4000, 32, 4096, GPU_FILE_LENGTH - 5000, false, false, WH_READ },
		{ 4096, 3, 5, GPU_FILE_LENGTH - 5, true, false, WH_WRITE },
		{ 1000, 1, 31 * MIB, 2 * MIB, false, false, WH_WRITE },
	};
	const struct shape many = { 600, 33, 0, GPU_FILE_LENGTH, true, true, WH_READ };
	struct gpu_file ours;

	(void)state;
	harness_limit(240);
	gpu_file_open(&ours, "file_pages=keep", "self");
	gpu_file_freeze(&ours, 60);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 1);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		want_at_once(&ours, &shapes[i], 1);
	want_at_once(&ours, &many, 2);
	want(gpu_file_counts() ? 2 : 0, gpu_file_calls(GPU_FILE_REGISTER) - ours.locked);
	gpu_file_thaw();
	gpu_file_close(&ours);
}

/* Pages of which nothing was locked, or too little: ranges lock them. */
static void blocks__in_part(void **state)
{
	const struct shape end = { 1024, 1, 32 * MIB, 2 * MIB, true, true, WH_READ };
	const struct shape all = { 4096, 1, 0, GPU_FILE_LENGTH, true, true, WH_READ };
	struct wh_transfer transfers[3];
	struct wh_batch *batch;
	struct gpu_file ours;

	(void)state;
	harness_limit(240);
	gpu_file_open(&ours, "file_pages=keep", "self");
	gpu_file_freeze(&ours, 60);
	/* The end of the file, as often as is worth locking its pages. */
	for (uint64_t i = 0; i < 3; i++)
		transfers[i] = (struct wh_transfer){ .op = WH_READ,
						     .local = ours.memory,
						     .local_offset = i * 2 * MIB,
						     .remote = wh_region_id(ours.file),
						     .remote_offset = 32 * MIB,
						     .length = 2 * MIB };
	want(0, wh_batch_new(ours.peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, 3));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(gpu_file_counts() ? 1 : 0, gpu_file_calls(GPU_FILE_REGISTER) - ours.locked);
	want_at_once(&ours, &end, 1);
	batch = blocks_batch(&ours, &all);
	want_true(!gpu_file_counts() || blocks_run(&ours, &all, batch) > 1,
		  "they are not locked yet");
	want(gpu_file_counts() ? 2 : 0, gpu_file_calls(GPU_FILE_REGISTER) - ours.locked);
	want(0, wh_batch_free(batch));
	want_at_once(&ours, &all, 1);
	gpu_file_thaw();
	gpu_file_close(&ours);
}

/* Copy engines take blocks one by one, in ranges. */
static void blocks__without_kernels(void **state)
{
	int (*set)(int, int) = (int (*)(int, int))gpu_symbol("fake_cuda_attribute");
	const struct shape shape = { 12345, 1, 0, 9 * MIB, true, true, WH_READ };
	struct gpu_file ours;

	(void)state;
	harness_limit(120);
	/* Compute capability 7.0. */
	want(0, set(75, 7));
	want(0, set(76, 0));
	gpu_file_open(&ours, "file_pages=keep", "self");
	gpu_file_freeze(&ours, 60);
	want_at_once(&ours, &shape, 0);
	gpu_file_thaw();
	gpu_file_close(&ours);
	fake_heal();
}

static void *blocks_cancel(void *batch)
{
	wh_batch_cancel(batch);
	return NULL;
}

/* Cancelled while the GPU reads: what is not on the stream yet is left out, and later submissions
 * of the same blocks are whole. */
static void blocks__cancelled(void **state)
{
	/* Two lists of more offsets than go to the GPU together. */
	const struct shape shape = { 512, 1, 0, GPU_FILE_LENGTH, true, true, WH_READ };
	struct wh_batch *batch;
	struct gpu_file ours;
	pthread_t thread;
	uint64_t before;
	int status;

	(void)state;
	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	gpu_file_freeze(&ours, 60);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 1);
	batch = blocks_batch(&ours, &shape);
	before = gpu_file_calls(launches);
	fake_delay(100000000);
	want(0, wh_batch_submit(batch));
	while (gpu_file_calls(launches) == before)
		usleep(100);
	want(0, pthread_create(&thread, NULL, blocks_cancel, batch));
	sleep_ms(50);
	fake_delay(0);
	pthread_join(thread, NULL);
	status = wh_batch_status(batch);
	want_true((status == -ECANCELED && gpu_file_calls(launches) == before + 1) ||
			  (!status && gpu_file_calls(launches) == before + 2),
		  "it ended with %d", status);
	fake_heal();
	for (int i = 0; i < 2; i++)
		want(1, blocks_run(&ours, &shape, batch));
	want(0, wh_batch_free(batch));
	gpu_file_thaw();
	gpu_file_close(&ours);
}

/* ---- files that are cut ------------------------------------------------------------------------
 */

/* The file is cut before the GPU reads it, and long after its pages were locked. */
static void cut_before_the_blocks(bool mend)
{
	const struct shape shape = { 4096, 1, 0, 9 * MIB, true, false, WH_READ };
	struct gpu_file_mender mender = { .mend = mend, .call = launches };
	struct wh_batch *batch;
	unsigned char *bytes;
	struct gpu_file ours;
	pthread_t thread;

	harness_limit(120);
	gpu_file_open(&ours, "file_pages=keep", "self");
	gpu_file_freeze(&ours, 60);
	want_gpu_file_read(&ours, GPU_FILE_LENGTH, 1);
	batch = blocks_batch(&ours, &shape);
	munmap(ours.map, GPU_FILE_SIZE);
	mender.ours = &ours;
	mender.calls = gpu_file_calls(launches);
	fake_delay(100000000);
	want(0, pthread_create(&thread, NULL, gpu_file_cut, &mender));
	want(mend ? 0 : -EIO, batch_run(batch));
	fake_heal();
	pthread_join(thread, NULL);
	want(0, wh_batch_free(batch));
	bytes = gpu_file_bytes(&ours);
	for (uint64_t i = 0; mend && i < shape_count(&shape); i++) {
		const unsigned char *block = bytes + on_gpu[i];

		for (uint64_t k = 0; k < shape.each; k++)
			want_true(in_file[i] + k < MIB ?
					  pattern_check(block + k, 1,
							GPU_FILE_START + in_file[i] + k,
							1) == PATTERN_GOOD :
					  !block[k],
				  "byte %llu of the file is %#x",
				  (unsigned long long)(in_file[i] + k), block[k]);
	}
	free(bytes);
	ours.map = file_map(ours.fd, GPU_FILE_SIZE);
	gpu_file_close(&ours);
}

static void cut__before_the_blocks(void **state)
{
	(void)state;
	cut_before_the_blocks(false);
}

static void cut__before_the_blocks_and_mended(void **state)
{
	(void)state;
	cut_before_the_blocks(true);
}

static const struct CMUnitTest tests[] = {
	TEST(blocks__of_a_new_file),
	TEST_NEEDS(blocks__of_a_file_at_rest, needs_fake),
	TEST(blocks__all_at_once),
	TEST(blocks__in_part),
	TEST_NEEDS(blocks__without_kernels, needs_fake),
	TEST_NEEDS(blocks__cancelled, needs_fake),
	TEST_NEEDS(cut__before_the_blocks, needs_fake),
	TEST_NEEDS(cut__before_the_blocks_and_mended, needs_fake),
};

HARNESS_MAIN("gpu-file-blocks", tests)
