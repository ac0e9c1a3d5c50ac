/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu long */
/* gpu-limits.c: GPU transfers in large numbers: blocks, bases, transfers, mappings, threads */
#include "lib/gpu.h"

#include <pthread.h>
#include <stdatomic.h>

#define LENGTH (8 * MIB)

/* The expected bytes of both sides. */
struct images {
	unsigned char *local, *target;
};

static void images_open(struct images *i, struct gpu_pair *p)
{
	i->local = malloc(p->length);
	i->target = malloc(p->length);
	assert_true(i->local && i->target);
	gpu_pair_fill(p, 1);
	pattern_fill(i->local, p->length, 0, 1);
	pattern_fill(i->target, p->length, 0, 1001);
}

static void images_close(struct images *i, struct gpu_pair *p)
{
	unsigned char *seen = malloc(p->length);

	assert_non_null(seen);
	if (p->child)
		child_fetch(p->child, p->memory, 0, p->length, seen);
	else
		bytes_get(seen, p->target, p->length, p->there);
	want_true(!memcmp(seen, i->target, p->length), "the target is wrong");
	bytes_get(seen, p->local, p->length, p->here);
	want_true(!memcmp(seen, i->local, p->length), "our side is wrong");
	free(seen);
	free(i->local);
	free(i->target);
}

static void run_blocks(struct gpu_pair *p, const struct wh_blocks_desc *desc, unsigned int times)
{
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	want(0, wh_blocks_new(p->peer, desc, &blocks));
	want(0, wh_batch_new(p->peer, NULL, &batch));
	want(0, wh_batch_add_blocks(batch, blocks));
	for (unsigned int i = 0; i < times; i++)
		want(0, gpu_run(batch));
	want(0, wh_batch_free(batch));
	wh_blocks_free(blocks);
}

/* A list longer than the ring, then once more from the copy cached on the GPU. */
static void blocks__hundred_thousand(void **state)
{
	enum { COUNT = 100000, BLOCK = 80 };
	uint64_t *from = malloc(COUNT * sizeof(*from)), *to = malloc(COUNT * sizeof(*to));
	static const struct {
		uint32_t here, there;
		const char *where;
		bool apart;
	} cases[] = { { WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "cuda:1", false },
		      { WH_MEMORY_DEVICE, WH_MEMORY_VMM, "cuda:0", true },
		      { WH_MEMORY_PINNED, WH_MEMORY_VMM, "cuda:0", true },
		      { WH_MEMORY_DEVICE, WH_MEMORY_MANAGED, "cuda:0", false } };

	(void)state;
	assert_true(from && to);
	for (unsigned int c = 0; c < 4; c++) {
		struct wh_blocks_desc desc = { .size = sizeof(desc),
					       .op = WH_WRITE,
					       .block_length = BLOCK,
					       .count = COUNT,
					       .base_count = 1,
					       .local_offsets = from,
					       .remote_offsets = to };
		struct images images;
		struct wh_base base;
		struct gpu_pair p;

		gpu_pair_open(&p, cases[c].here, bytes_on_gpu(cases[c].here) ? "cuda:0" : NULL,
			      cases[c].there, cases[c].where, LENGTH, cases[c].apart);
		base = (struct wh_base){ .local = p.region, .remote = p.remote.id };
		desc.bases = &base;
		pattern_shuffle(from, COUNT, BLOCK, c);
		pattern_shuffle(to, COUNT, BLOCK, c + 10);
		images_open(&images, &p);
		for (size_t i = 0; i < COUNT; i++)
			memcpy(images.target + to[i], images.local + from[i], BLOCK);
		run_blocks(&p, &desc, 3);
		images_close(&images, &p);
		gpu_pair_close(&p);
	}
	free(from);
	free(to);
}

static void blocks__three_hundred_bases(void **state)
{
	enum { COUNT = 50, BLOCK = 500, BASES = 300 };
	struct wh_base bases[BASES];
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_WRITE,
				       .block_length = BLOCK,
				       .count = COUNT,
				       .bases = bases,
				       .base_count = BASES };
	uint64_t offsets[COUNT];
	struct images images;
	struct gpu_pair p;

	(void)state;
	for (unsigned int list = 0; list < 4; list++) {
		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:1", LENGTH,
			      list == 3);
		images_open(&images, &p);
		pattern_shuffle(offsets, COUNT, BLOCK, 3);
		desc.local_offsets = list & 1 ? offsets : NULL;
		desc.remote_offsets = list & 2 ? offsets : NULL;
		for (size_t b = 0; b < BASES; b++) {
			uint64_t at = b * COUNT * BLOCK, back = (BASES - 1 - b) * COUNT * BLOCK + 3;

			bases[b] = (struct wh_base){ .local = p.region,
						     .local_offset = at,
						     .remote = p.remote.id,
						     .remote_offset = back };
			for (size_t i = 0; i < COUNT; i++)
				memcpy(images.target + back + (list & 2 ? offsets[i] : i * BLOCK),
				       images.local + at + (list & 1 ? offsets[i] : i * BLOCK),
				       BLOCK);
		}
		run_blocks(&p, &desc, 2);
		images_close(&images, &p);
		gpu_pair_close(&p);
	}
}

/* More than 4 GiB in one call: the same blocks, repeated. */
static void blocks__beyond_4_gib(void **state)
{
	enum { PLACES = 64 };
	const uint64_t block = 128 * KIB, count = SCALE(33000, 2000);
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = block,
				       .count = count,
				       .base_count = 1 };
	uint64_t *offsets = malloc(count * sizeof(*offsets));
	struct images images;
	struct wh_base base;
	struct gpu_pair p;

	(void)state;
	assert_non_null(offsets);
	for (uint64_t i = 0; i < count; i++)
		offsets[i] = i % PLACES * block;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, false);
	images_open(&images, &p);
	base = (struct wh_base){ .local = p.region, .remote = p.remote.id };
	desc.bases = &base;
	desc.local_offsets = desc.remote_offsets = offsets;
	memcpy(images.local, images.target, PLACES * block);
	run_blocks(&p, &desc, 1);
	images_close(&images, &p);
	gpu_pair_close(&p);
	free(offsets);
}

static void transfers__mixed_lengths(void **state)
{
	enum { COUNT = 1024 };
	struct wh_transfer t[COUNT];
	uint64_t at = 1, random = 5;
	struct wh_batch *batch;
	struct images images;
	struct gpu_pair p;

	(void)state;
	for (unsigned int c = 0; c < 3; c++) {
		gpu_pair_open(&p, c == 2 ? WH_MEMORY_MANAGED : WH_MEMORY_DEVICE, "cuda:0",
			      c ? WH_MEMORY_DEVICE : WH_MEMORY_PINNED, c ? "cuda:1" : NULL, LENGTH,
			      c == 1);
		images_open(&images, &p);
		at = 1;
		for (size_t i = 0; i < COUNT; i++) {
			uint64_t length;

			random = random * 6364136223846793005u + 1442695040888963407u;
			length = i % 100 == 99 ? 40000 + (random >> 40) % 40000 :
						 1 + (random >> 33) % (i % 3 ? 100 : 9000);
			t[i] = (struct wh_transfer){ .local = p.region,
						     .local_offset = at,
						     .remote = p.remote.id,
						     .remote_offset = LENGTH - at - length,
						     .length = length,
						     .op = WH_WRITE };
			memcpy(images.target + t[i].remote_offset, images.local + at, length);
			at += length;
		}
		want(0, wh_batch_new(p.peer, NULL, &batch));
		want(0, wh_batch_add(batch, t, COUNT));
		want(0, gpu_run(batch));
		want(0, gpu_run(batch));
		want(0, wh_batch_free(batch));
		images_close(&images, &p);
		gpu_pair_close(&p);
	}
}

/* Many mappings of another process: the owner answers for 32 at a time. */
static void segments__of_another_process(void **state)
{
	const uint64_t length = SCALE(70, 34) * 2 * MIB, part = length - 4 * MIB - 5;
	struct wh_transfer one = { .op = WH_WRITE };
	struct wh_batch *batch;
	struct gpu_pair p;
	int memory, region;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_VMM, "cuda:0", length, true);
	memory = child_memory_at(p.child, CHILD_SEGMENTED, length, "cuda:1");
	for (unsigned int i = 0; i < 2; i++) {
		uint64_t skip = i ? 2 * MIB + 5 : 0, most = i ? part : length;

		region = child_region(p.child, memory, skip, most, "segments", ACCESS_BOTH, NULL);
		want(0, wh_peer_find(p.peer, "segments", PATIENCE, &p.remote));
		one.local = p.region;
		one.remote = p.remote.id;
		one.length = most;
		gpu_pair_fill(&p, i);
		child_fill(p.child, memory, 0, length, 0, 9);
		want(0, wh_batch_new(p.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &one, 1));
		want(0, gpu_run(batch));
		want(0, wh_batch_free(batch));
		want(PATTERN_GOOD, child_check(p.child, memory, skip, most, 0, i));
		if (i) {
			want(PATTERN_GOOD, child_check(p.child, memory, 0, skip, 0, 9));
			want(PATTERN_GOOD, child_check(p.child, memory, skip + most,
						       length - skip - most, skip + most, 9));
		}
		want(0, child_unregister(p.child, region));
	}
	child_kill(p.child);
	p.child = NULL;
	gpu_pair_close(&p);
}

/* One batch for regions on two GPUs, in host memory and in managed memory, in both directions. */
static void batch__several_gpus(void **state)
{
	static const struct {
		uint32_t kind;
		const char *where;
	} kinds[] = { { WH_MEMORY_DEVICE, "cuda:0" },
		      { WH_MEMORY_DEVICE, "cuda:1" },
		      { WH_MEMORY_PAGEABLE, NULL },
		      { WH_MEMORY_MANAGED, "cuda:1" },
		      { WH_MEMORY_VMM, "cuda:0" } };
	const size_t length = 300001;
	struct wh_transfer t[20] = { 0 };
	struct wh_region *regions[5];
	unsigned char *image = malloc(length);
	struct wh_batch *batch;
	struct gpu_pair p;
	void *memory[5];

	(void)state;
	assert_non_null(image);
	for (unsigned int urgent = 0; urgent < 2; urgent++) {
		struct wh_batch_options options = { .size = sizeof(options), .priority = urgent };

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:1",
			      10 * length, false);
		gpu_pair_fill(&p, 0);
		pattern_fill(image, length, 0, 77);
		for (unsigned int i = 0; i < 5; i++) {
			struct wh_memory_options on = { .size = sizeof(on),
							.kind = kinds[i].kind,
							.location = kinds[i].where };

			want(0, wh_memory_alloc(p.engine, length, &on, &memory[i]));
			want(0, wh_region_register(p.engine, memory[i], length, NULL, &regions[i]));
			bytes_put(memory[i], image, length, kinds[i].kind);
		}
		for (unsigned int i = 0; i < 10; i++)
			t[i] = (struct wh_transfer){ .local = regions[i % 5],
						     .remote = p.remote.id,
						     .remote_offset = i * length,
						     .length = length,
						     .op = WH_WRITE };
		want(0, wh_batch_new(p.peer, &options, &batch));
		want(0, wh_batch_add(batch, t, 10));
		want(0, gpu_run(batch));
		for (unsigned int i = 0; i < 10; i++) {
			bytes_get(image, p.target + i * length, length, WH_MEMORY_DEVICE);
			want_true(pattern_check(image, length, 0, 77) == PATTERN_GOOD, "%u", i);
		}
		want(0, wh_batch_free(batch));
		for (unsigned int i = 0; i < 5; i++) {
			want(0, wh_region_unregister(regions[i]));
			want(0, wh_memory_free(p.engine, memory[i]));
		}
		gpu_pair_close(&p);
	}
	free(image);
}

/* Cancel at different times, also before the start and after the end: nothing moves afterwards. */
static void batch__cancelled_in_the_middle(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < SCALE(12, 4); i++) {
		struct wh_batch *batch;
		struct gpu_pair p;
		int status;

		gpu_pair_open(&p, i % 2 ? WH_MEMORY_MANAGED : WH_MEMORY_DEVICE, "cuda:0",
			      WH_MEMORY_DEVICE, "cuda:1", SCALE(40, 16) * MIB, false);
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batch));
		fake_delay(1000);
		want(0, wh_batch_submit(batch));
		sleep_ms(i);
		want(0, wh_batch_cancel(batch));
		status = batch_now(batch);
		want_true(!status || status == -ECANCELED, "%s", strerrorname_np(-status));
		gpu_pair_fill(&p, 4);
		sleep_ms(5);
		want_true(gpu_pair_untouched(&p, 4), "bytes come after the cancel");
		fake_heal();
		want(0, gpu_run(batch));
		want_true(gpu_pair_copied(&p, 4), "it is wrong afterwards");
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
	}
}

/* Cancel thousands of staged fragments at once. */
static void batch__many_staged_parts(void **state)
{
	enum { COUNT = 40000 };
	struct wh_transfer *t = calloc(COUNT, sizeof(*t));
	struct wh_region *second;
	struct wh_batch *batch;
	struct gpu_pair p;
	int status;

	(void)state;
	assert_non_null(t);
	gpu_pair_open(&p, WH_MEMORY_MANAGED, "cuda:0", WH_MEMORY_DEVICE, "cuda:1", LENGTH, false);
	want(0, wh_region_register(p.engine, p.local, LENGTH, NULL, &second));
	for (size_t i = 0; i < COUNT; i++)
		t[i] = (struct wh_transfer){ .local = i % 2 ? second : p.region,
					     .local_offset = i * 16,
					     .remote = p.remote.id,
					     .remote_offset = i * 16,
					     .length = 16,
					     .op = WH_WRITE };
	want(0, wh_batch_new(p.peer, NULL, &batch));
	want(0, wh_batch_add(batch, t, COUNT));
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_cancel(batch));
	status = batch_now(batch);
	want_true(!status || status == -ECANCELED, "%s", strerrorname_np(-status));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(second));
	gpu_pair_close(&p);
	free(t);
}

/* ---- threads ----------------------------------------------------------- */

struct worker {
	pthread_t thread;
	struct gpu_pair *pair;
	unsigned int number;
	const char *wrong;
	_Atomic bool *go;
};

#define SHARE (LENGTH / 8)

/* All threads start together: streams, measurements and rings are created while others use them. */
static void *move_in_thread(void *arg)
{
	enum { COUNT = 4000 };
	struct worker *w = arg;
	struct gpu_pair *p = w->pair;
	struct wh_batch_options options = { .size = sizeof(options), .priority = w->number % 2 };
	struct wh_base base = { .local = p->region,
				.local_offset = w->number * SHARE,
				.remote = p->remote.id,
				.remote_offset = w->number * SHARE };
	uint64_t *from = malloc(COUNT * sizeof(*from)), *to = malloc(COUNT * sizeof(*to));
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_WRITE,
				       .block_length = 256,
				       .count = COUNT,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = from,
				       .remote_offsets = to };
	struct wh_transfer rest = { .local = p->region,
				    .remote = p->remote.id,
				    .local_offset = w->number * SHARE + COUNT * 256,
				    .remote_offset = w->number * SHARE + COUNT * 256,
				    .length = SHARE - COUNT * 256,
				    .op = WH_WRITE };
	struct wh_blocks *blocks = NULL;
	struct wh_batch *batch = NULL;

	pattern_shuffle(from, COUNT, 256, w->number);
	memcpy(to, from, COUNT * sizeof(*to));
	while (!atomic_load(w->go))
		;
	if (wh_blocks_new(p->peer, &desc, &blocks) || wh_batch_new(p->peer, &options, &batch) ||
	    wh_batch_add_blocks(batch, blocks) || wh_batch_add(batch, &rest, 1))
		w->wrong = "preparing";
	for (unsigned int i = 0; !w->wrong && i < 4; i++)
		if (gpu_run(batch))
			w->wrong = "moving";
	if (wh_batch_free(batch))
		w->wrong = "freeing";
	wh_blocks_free(blocks);
	free(from);
	free(to);
	return NULL;
}

/* The first use of a GPU stream between two GPUs reads the other GPU's memory and discards the
 * bytes. The thread sanitizer would report a race with the test's writes. */
static void use_lanes(struct gpu_pair *p)
{
	for (unsigned int i = 0; i < 2; i++) {
		struct wh_batch *batch = gpu_pair_batch(p, i ? WH_WRITE : WH_READ);

		want(0, gpu_run(batch));
		want(0, wh_batch_free(batch));
	}
}

static void threads__eight_at_once(void **state)
{
	static const uint32_t there[] = { WH_MEMORY_DEVICE, WH_MEMORY_PINNED, WH_MEMORY_MANAGED };

	(void)state;
	for (unsigned int round = 0; round < SCALE(9, 3); round++) {
		struct worker workers[8];
		_Atomic bool go = false;
		struct gpu_pair p;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", there[round % 3],
			      round % 3 == 1 ? NULL : "cuda:1", LENGTH, false);
		if (HARNESS_TURNS)
			use_lanes(&p);
		gpu_pair_fill(&p, round);
		for (unsigned int i = 0; i < 8; i++) {
			workers[i] = (struct worker){ .pair = &p, .number = i, .go = &go };
			want(0,
			     pthread_create(&workers[i].thread, NULL, move_in_thread, &workers[i]));
		}
		atomic_store(&go, true);
		for (unsigned int i = 0; i < 8; i++) {
			pthread_join(workers[i].thread, NULL);
			want_true(!workers[i].wrong, "%s", workers[i].wrong);
		}
		want_true(gpu_pair_copied(&p, round), "round %u is wrong", round);
		gpu_pair_close(&p);
	}
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(blocks__hundred_thousand, needs_two_gpus),
	TEST_NEEDS(blocks__three_hundred_bases, needs_two_gpus),
	TEST(blocks__beyond_4_gib),
	TEST_NEEDS(transfers__mixed_lengths, needs_two_gpus),
	TEST_NEEDS(segments__of_another_process, needs_two_gpus),
	TEST_NEEDS(batch__several_gpus, needs_two_gpus),
	TEST_NEEDS(batch__cancelled_in_the_middle, needs_fake),
	TEST_NEEDS(batch__many_staged_parts, needs_two_gpus),
	TEST_NEEDS(threads__eight_at_once, needs_two_gpus),
};

HARNESS_MAIN("gpu-limits", tests)
