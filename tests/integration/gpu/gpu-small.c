/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu windows-too */
/* gpu-small.c: transfers of a few bytes to and from GPU memory of another process
 *
 * The CPU moves them through a window onto the imported memory if one opens, else the copy engine.
 * Lengths and kinds of memory, flags after data, and estimates. Runs on the fake CUDA driver
 * without windows, on it with a stand-in for the NVIDIA kernel driver, or on the machine's own GPU.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "lib/small.h"
#include "lib/windows.h"

/* ---- lengths and kinds ------------------------------------------------- */

/* Both directions, odd offsets. `must`: through a window, if this machine opens any. */
static void move_lengths(uint32_t here, uint32_t there, const char *elsewhere, bool must)
{
	struct small s;
	bool window;

	small_open_with(&s, here, there, elsewhere, child_start(NULL));
	for (uint64_t length = 1; length <= 9000;
	     length += length < 70 ? SCALE(1, 5) : length / SCALE(3, 1)) {
		uint64_t local = 1 + length * 7 % 131, remote = 1 + length * 13 % 127;

		window = small_move(&s, WH_WRITE, local, remote, length);
		if (length == 1 && must && window != s.windows)
			small_explain(&s);
		if (length <= 64 && must)
			want(s.windows, window);
		window = small_move(&s, WH_READ, local + 10001, remote + 9001, length);
		if (length <= 64 && must)
			want(s.windows, window);
		if (length % 16 < 2)
			small_same(&s, "lengths");
	}
	small_same(&s, "all lengths");
	/* Aligned flags of 1 to 8 bytes. */
	for (uint64_t length = 1; length <= 8; length *= 2)
		small_move(&s, WH_WRITE, 64 * length, 4096 + 64 * length, length);
	small_same(&s, "flags");
	if (!must && s.windows)
		small_explain(&s);
	small_close(&s);
}

static void apart__from_host(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_PAGEABLE, WH_MEMORY_VMM, NULL, true);
}

static void apart__from_our_gpu(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_DEVICE, WH_MEMORY_SHARED, NULL, true);
}

static void apart__between_gpus_memories(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_VMM, WH_MEMORY_VMM, NULL, true);
}

/* Imported by a legacy handle: the driver decides whether a window opens onto that. */
static void apart__legacy(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, NULL, has_stand_in());
}

/* CUDA opens a legacy handle for one GPU at a time; our side's is not the memory's own GPU. */
static void apart__on_another_gpu(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "cuda:1", has_stand_in());
	move_lengths(WH_MEMORY_VMM, WH_MEMORY_DEVICE, "cuda:1", has_stand_in());
	move_lengths(WH_MEMORY_VMM, WH_MEMORY_VMM, "cuda:1", true);
}

/* Several transfers in a batch, and blocks, some with more fragments than a window moves. */
static void apart__several(void **state)
{
	uint64_t offsets[24];
	struct wh_transfer t[5];
	struct wh_base base;
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .block_length = 33,
				       .bases = &base,
				       .base_count = 1,
				       .remote_offsets = offsets };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct small s;

	(void)state;
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	base = (struct wh_base){ .local = s.p.region,
				 .remote = s.p.remote.id,
				 .local_offset = 4000 };
	for (unsigned int i = 0; i < 24; i++)
		offsets[i] = 64 * ((7 * i) % 24) + i;
	for (unsigned int i = 0; i < 5; i++)
		t[i] = small_transfer(&s, i & 1 ? WH_READ : WH_WRITE, 101 * i, 5000 + 97 * i,
				      8 + i);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		for (desc.count = 3; desc.count <= 24; desc.count += 21) {
			desc.op = op;
			want(0, wh_blocks_new(s.p.peer, &desc, &blocks));
			batch = small_batch(&s, t, 5);
			want(0, wh_batch_add_blocks(batch, blocks));
			wh_blocks_free(blocks);
			want(0, gpu_run(batch));
			want(0, wh_batch_free(batch));
			for (unsigned int i = 0; i < 5; i++)
				small_expect(&s, &t[i]);
			for (unsigned int i = 0; i < desc.count; i++) {
				if (op == WH_WRITE)
					memcpy(s.theirs + offsets[i], s.ours + 4000 + 33 * i, 33);
				else
					memcpy(s.ours + 4000 + 33 * i, s.theirs + offsets[i], 33);
			}
			small_same(&s, "several");
		}
	}
	small_close(&s);
}

/* ---- flags ------------------------------------------------------------- */

#define ROUNDS SCALE(60, 20)
#define WORDS 1024 /* of the data before the flag: 8 KiB */
#define FLAG 16384

struct signaller {
	struct small *s;
	uint64_t *words, *flag; /* our side's */
	_Atomic bool done;
	int error;
};

static int signal_once(struct signaller *g, uint64_t round)
{
	struct wh_transfer bytes = small_transfer(g->s, WH_WRITE, 0, 0, WORDS * 8);
	struct wh_transfer flag = small_transfer(g->s, WH_WRITE, FLAG, FLAG, 8);
	struct wh_batch *batch = small_batch(g->s, &bytes, 1);
	int error;

	for (unsigned int i = 0; i < WORDS; i++)
		g->words[i] = round;
	*g->flag = round;
	error = gpu_run(batch);
	want(0, wh_batch_free(batch));
	batch = small_batch(g->s, &flag, 1);
	error = error ? error : gpu_run(batch);
	want(0, wh_batch_free(batch));
	return error;
}

static void *signal_all(void *arg)
{
	struct signaller *g = arg;

	for (uint64_t round = 1; round <= ROUNDS && !g->error; round++)
		g->error = signal_once(g, round);
	atomic_store(&g->done, true);
	return NULL;
}

/* A thread that sees the flag also sees the data moved before it. */
static void flags__come_last(void **state)
{
	uint64_t *words = calloc(WORDS, sizeof(*words)), flag = 0, least;
	struct signaller g = { 0 };
	pthread_t thread;
	struct small s;
	bool done;

	(void)state;
	assert_non_null(words);
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	memset(s.p.local, 0, AREA);
	small_move(&s, WH_WRITE, 0, 0, WORDS * 8);
	want(s.windows, small_move(&s, WH_WRITE, FLAG, FLAG, 8));
	child_fetch(s.p.child, s.p.memory, FLAG, 8, &flag);
	want(0, flag);
	g.s = &s;
	g.words = (uint64_t *)(void *)s.p.local;
	g.flag = (uint64_t *)(void *)(s.p.local + FLAG);
	want(0, pthread_create(&thread, NULL, signal_all, &g));
	do {
		done = atomic_load(&g.done);
		child_fetch(s.p.child, s.p.memory, FLAG, 8, &flag);
		child_fetch(s.p.child, s.p.memory, 0, WORDS * 8, words);
		least = UINT64_MAX;
		for (unsigned int i = 0; i < WORDS; i++)
			least = words[i] < least ? words[i] : least;
		want_true(flag <= least, "flag %llu, but bytes of round %llu",
			  (unsigned long long)flag, (unsigned long long)least);
	} while (!done);
	pthread_join(thread, NULL);
	want(0, g.error);
	want(ROUNDS, flag);
	small_close(&s);
	free(words);
}

/* ---- window or copy engine --------------------------------------------- */

static uint64_t small_duration(struct small *s, uint32_t op, uint64_t length, bool *window)
{
	struct wh_transfer one = small_transfer(s, op, 0, 0, length);
	struct wh_batch *batch = small_batch(s, &one, 1);
	struct wh_estimate estimate = { .size = sizeof(estimate) };

	*window = batch_uses_window(batch); /* opens the window */
	want(0, wh_batch_estimate(batch, &estimate));
	want(0, wh_batch_free(batch));
	return estimate.duration;
}

/* The estimate: writes through a window cost what was measured, reads cost more per byte, and long
 * transfers use the copy engine. */
static void explain__by_size(void **state)
{
	uint64_t few, more, many, reads;
	bool window;
	struct small s;

	(void)state;
	small_open(&s, WH_MEMORY_PINNED, WH_MEMORY_VMM);
	few = small_duration(&s, WH_WRITE, 8, &window);
	want(s.windows, window);
	more = small_duration(&s, WH_WRITE, 4096, &window);
	want(s.windows, window);
	many = small_duration(&s, WH_WRITE, MIB, &window);
	want(false, window);
	want_true(few && few <= more && more < many, "%llu, %llu, %llu ns", (unsigned long long)few,
		  (unsigned long long)more, (unsigned long long)many);
	reads = small_duration(&s, WH_READ, 64, &window);
	want(s.windows, window);
	want_true(reads, "not known");
	small_duration(&s, WH_READ, 64 * KIB, &window);
	want(false, window);
	small_same(&s, "explained");
	small_close(&s);
}

static void explain__switched_off(void **state)
{
	char text[1024];
	struct wh_transfer one;
	struct wh_batch *batch;
	struct small s;

	(void)state;
	setenv("WHERRY_WINDOW", "off", 1);
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	unsetenv("WHERRY_WINDOW");
	want(false, small_move(&s, WH_WRITE, 3, 5, 8));
	one = small_transfer(&s, WH_WRITE, 3, 5, 8);
	batch = small_batch(&s, &one, 1);
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, "no CPU window: windows are switched off"), "%s", text);
	want(0, wh_batch_free(batch));
	small_same(&s, "switched off");
	small_close(&s);
}

/* ---- both sides in the same memory ------------------------------------- */

/* Copy engines and kernels have no direction: a transfer onto overlapping memory is refused; one
 * onto itself, or onto adjacent memory, is not. */
static void self__overlap(void **state)
{
	static const struct {
		uint64_t local, remote, length;
		int error;
	} cases[] = {
		{ 0, 4096, 4096, 0 },       { 4096, 0, 4096, 0 },
		{ 0, 0, LENGTH, 0 },        { 0, 1, 2, -EINVAL },
		{ 1, 0, 2, -EINVAL },       { 0, 4095, 4096, -EINVAL },
		{ 4095, 0, 4096, -EINVAL }, { 0, LENGTH / 2 - 1, LENGTH / 2, -EINVAL },
	};
	struct wh_transfer transfer = { .op = WH_WRITE };
	const uint64_t offsets[] = { 0, 8192 }, shifted[] = { 64, 8192 };
	struct wh_base base = { 0 };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = 128,
				       .count = 2,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = offsets,
				       .remote_offsets = shifted };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, false);
	base.local = transfer.local = p.target_region;
	base.remote = transfer.remote = p.remote.id;
	want(0, wh_batch_new(p.peer, NULL, &batch));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		transfer.local_offset = cases[i].local;
		transfer.remote_offset = cases[i].remote;
		transfer.length = cases[i].length;
		want(cases[i].error, wh_batch_add(batch, &transfer, 1));
		want_true(!cases[i].error || strstr(wh_error_text(), "overlap"), "%s",
			  wh_error_text());
	}
	want_text(-EINVAL, "block 0: source and target overlap",
		  wh_blocks_new(p.peer, &desc, &blocks));
	base.remote_offset = 256;
	want(0, wh_blocks_new(p.peer, &desc, &blocks));
	wh_blocks_free(blocks);
	/* Different memory at different addresses. */
	base.local = p.region;
	base.remote_offset = 0;
	want(0, wh_blocks_new(p.peer, &desc, &blocks));
	wh_blocks_free(blocks);
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

static const struct CMUnitTest tests[] = {
	TEST(self__overlap),
	TEST(apart__from_host),
	TEST_NEEDS(apart__from_our_gpu, needs_time),
	TEST_NEEDS(apart__between_gpus_memories, needs_time),
	TEST_NEEDS(apart__legacy, needs_time),
	TEST_NEEDS(apart__on_another_gpu, needs_two_gpus),
	TEST(apart__several),
	TEST_NEEDS(flags__come_last, needs_time),
	TEST_NEEDS(explain__by_size, needs_time),
	TEST_NEEDS(explain__switched_off, needs_time),
};

HARNESS_MAIN("gpu-small", tests)
