/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark's arithmetic: percentiles, medians, ratios of pairs; where its blocks lie; whether
 * its check sees what it should. The command is no library, so its sources are included. */
#include "../../tools/bench/layout.c"
#include "../../tools/bench/statistics.c"
#include "../../tools/pattern.c"

/* Last: cmocka has a macro with the name of one of the command's functions. */
#include "unit.h"

/* ---- statistics --------------------------------------------------------------------------- */

static void percentile__nearest_rank(void **state)
{
	uint64_t samples[100];

	(void)state;
	for (uint64_t i = 0; i < 100; i++)
		samples[i] = 100 - i;
	bench_sort(samples, 100);
	assert_int_equal(samples[0], 1);
	assert_int_equal(samples[99], 100);
	assert_int_equal(bench_percentile(samples, 100, 0.5), 50);
	assert_int_equal(bench_percentile(samples, 100, 0.07), 7);
	assert_int_equal(bench_percentile(samples, 100, 0.99), 99);
	assert_int_equal(bench_percentile(samples, 100, 0.999), 100);
	assert_int_equal(bench_percentile(samples, 100, 0), 1);
	assert_int_equal(bench_percentile(samples, 100, 1), 100);
}

static void percentile__few_samples(void **state)
{
	uint64_t one[] = { 7 }, three[] = { 1, 2, 9 };

	(void)state;
	assert_int_equal(bench_percentile(one, 1, 0.5), 7);
	assert_int_equal(bench_percentile(one, 1, 0.999), 7);
	assert_int_equal(bench_percentile(three, 3, 0.5), 2);
	assert_int_equal(bench_percentile(three, 3, 0.99), 9);
}

static void sort__large_values(void **state)
{
	/* Differences that an int could not hold. */
	uint64_t samples[] = { UINT64_MAX, 1, UINT64_C(1) << 33, 0 };

	(void)state;
	bench_sort(samples, 4);
	assert_true(samples[0] == 0 && samples[1] == 1);
	assert_true(samples[2] == UINT64_C(1) << 33 && samples[3] == UINT64_MAX);
	bench_sort(samples, 0);
}

static void median__odd_and_even(void **state)
{
	double odd[] = { 5, 1, 3 }, even[] = { 4, 1, 3, 2 };

	(void)state;
	assert_true(bench_median(odd, 3) == 3);
	assert_true(bench_median(even, 4) == 2.5);
	assert_true(isnan(bench_median(odd, 0)));
}

static void pairs__ratio_is_that_of_the_rounds(void **state)
{
	struct bench_pairs pairs = { 0 };

	(void)state;
	/* The machine was twice as fast in the first two rounds; Wherry had 0.9 of the limit in
	 * every one. Dividing the two medians of a half-and-half run could say anything. */
	bench_pairs_add(&pairs, 9, 10);
	bench_pairs_add(&pairs, 9, 10);
	bench_pairs_add(&pairs, 4.5, 5);
	bench_pairs_add(&pairs, 4.5, 5);
	bench_pairs_add(&pairs, 4.5, 5);
	assert_true(bench_pairs_test(&pairs) == 4.5);
	assert_true(bench_pairs_limit(&pairs) == 5);
	assert_true(bench_pairs_ratio(&pairs) == 0.9);
}

static void pairs__unknown_limits(void **state)
{
	struct bench_pairs pairs = { 0 };

	(void)state;
	assert_true(isnan(bench_pairs_test(&pairs)));
	bench_pairs_add(&pairs, 3, NAN);
	bench_pairs_add(&pairs, 5, NAN);
	assert_true(bench_pairs_test(&pairs) == 4);
	assert_true(isnan(bench_pairs_limit(&pairs)));
	assert_true(isnan(bench_pairs_ratio(&pairs)));
	bench_pairs_add(&pairs, 4, 8);
	bench_pairs_add(&pairs, 4, 0); /* a limit of nothing is not known either */
	assert_true(bench_pairs_ratio(&pairs) == 0.5);
}

static void pairs__no_more_than_there_is_room_for(void **state)
{
	struct bench_pairs pairs = { 0 };

	(void)state;
	for (int i = 0; i < 2 * BENCH_ROUNDS; i++)
		bench_pairs_add(&pairs, i, 1);
	assert_int_equal(pairs.count, BENCH_ROUNDS);
	assert_true(bench_pairs_test(&pairs) == (BENCH_ROUNDS - 1) / 2);
}

/* ---- layout ------------------------------------------------------------------------------- */

/* Do all blocks of a walk lie inside, apart from each other, each slot once? */
static void assert_walk(const struct bench_layout *layout)
{
	uint64_t slots = bench_layout_slots(layout);
	unsigned char *seen = calloc(slots, 2);
	struct bench_walk walk;

	assert_non_null(seen);
	assert_int_equal(bench_walk_new(layout, &walk), 0);
	for (uint64_t i = 0; i < slots; i++) {
		uint64_t source = walk.source[i], target = walk.target[i] - layout->guard;

		assert_true(source + layout->size <= layout->source_length);
		assert_true(walk.target[i] >= layout->guard);
		assert_true(walk.target[i] + layout->size + layout->guard <= layout->target_length);
		assert_int_equal(source % layout->source_stride, 0);
		assert_int_equal(target % layout->target_stride, 0);
		assert_int_equal(seen[2 * (source / layout->source_stride)]++, 0);
		assert_int_equal(seen[2 * (target / layout->target_stride) + 1]++, 0);
	}
	bench_walk_free(&walk);
	free(seen);
}

static void layout__covers_the_working_set(void **state)
{
	struct bench_layout layout;

	(void)state;
	assert_int_equal(bench_layout_plan(&layout, 1 << 20, 1, 64 << 20, false), 0);
	assert_int_equal(layout.batches, 64);
	assert_int_equal(layout.source_length, 64 << 20);
	assert_int_equal(layout.target_length, 64 << 20);
	assert_walk(&layout);
	/* A batch larger than the working set is a working set. */
	assert_int_equal(bench_layout_plan(&layout, 64 << 20, 1, 1 << 20, true), 0);
	assert_int_equal(layout.batches, 1);
	assert_int_equal(layout.target_length, (64 << 20) + 2 * PATTERN_GUARD);
	assert_walk(&layout);
}

static void layout__odd_sizes_and_blocks(void **state)
{
	static const uint64_t sizes[] = { 1, 7, 8, 63, 64, 65, 1000, 4096 };
	struct bench_layout layout;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		for (uint64_t blocks = 1; blocks < 2000; blocks = 3 * blocks + 1)
			for (int guarded = 0; guarded < 2; guarded++) {
				int error = bench_layout_plan(&layout, sizes[i], blocks, 1 << 18,
							      guarded);

				assert_int_equal(error, 0);
				assert_walk(&layout);
			}
}

static void layout__too_big(void **state)
{
	struct bench_layout layout;

	(void)state;
	assert_int_equal(bench_layout_plan(&layout, UINT64_MAX, 1, 1, false), -1);
	assert_int_equal(bench_layout_plan(&layout, UINT64_C(1) << 40, 1 << 20, 1, false), -1);
	assert_int_equal(bench_layout_plan(&layout, 8, UINT64_C(1) << 50, 1, false), -1);
}

static void layout__shrink(void **state)
{
	struct bench_layout layout;

	(void)state;
	assert_int_equal(bench_layout_plan(&layout, 4096, 16, 1 << 20, true), 0);
	assert_int_equal(layout.batches, 16);
	assert_int_equal(bench_layout_shrink(&layout, false, 100 * 4096), 0);
	assert_int_equal(layout.batches, 6);
	assert_walk(&layout);
	assert_int_equal(bench_layout_shrink(&layout, true, 50 * 4096), 0);
	assert_int_equal(layout.batches, 3);
	assert_true(layout.target_length <= 50 * 4096);
	assert_int_equal(bench_layout_shrink(&layout, true, 16 * 4096), -1);
}

static void layout__scattered_in_two_ways(void **state)
{
	struct bench_layout layout;
	struct bench_walk walk;
	unsigned same = 0;

	(void)state;
	assert_int_equal(bench_layout_plan(&layout, 64, 1000, 64000, false), 0);
	assert_int_equal(bench_walk_new(&layout, &walk), 0);
	for (uint64_t i = 0; i < 1000; i++)
		same += walk.source[i] == walk.target[i];
	assert_true(same < 20);
	bench_walk_free(&walk);
}

/* ---- the check ---------------------------------------------------------------------------- */

struct sides {
	struct bench_layout layout;
	char *source, *target;
};

/* What a transfer without a fault leaves behind in iteration 2. */
static void move(struct sides *memory)
{
	struct bench_walk walk;

	assert_int_equal(bench_layout_plan(&memory->layout, 100, 4, 1600, true), 0);
	memory->source = malloc(memory->layout.source_length);
	memory->target = malloc(memory->layout.target_length);
	assert_true(memory->source && memory->target);
	bench_layout_fill(&memory->layout, memory->source, 2);
	bench_layout_guard(&memory->layout, memory->target);
	assert_int_equal(bench_walk_new(&memory->layout, &walk), 0);
	for (uint64_t i = 0; i < bench_layout_slots(&memory->layout); i++)
		memcpy(memory->target + walk.target[i], memory->source + walk.source[i], 100);
	bench_walk_free(&walk);
}

static void release(struct sides *memory)
{
	free(memory->source);
	free(memory->target);
}

static void check__right(void **state)
{
	struct sides memory;
	char text[BENCH_TEXT] = "";

	(void)state;
	move(&memory);
	assert_true(bench_layout_check(&memory.layout, memory.target, 2, text, sizeof(text)));
	assert_string_equal(text, "");
	release(&memory);
}

static void check__sees_every_single_byte(void **state)
{
	struct sides memory;
	char text[BENCH_TEXT];

	(void)state;
	move(&memory);
	for (uint64_t i = 0; i < memory.layout.target_length; i++) {
		memory.target[i] ^= 0x40;
		text[0] = '\0';
		assert_false(
			bench_layout_check(&memory.layout, memory.target, 2, text, sizeof(text)));
		assert_true(text[0] != '\0');
		memory.target[i] ^= 0x40;
	}
	release(&memory);
}

static void check__sees_what_is_left_over(void **state)
{
	struct sides memory;
	char text[BENCH_TEXT];

	(void)state;
	move(&memory);
	assert_false(bench_layout_check(&memory.layout, memory.target, 3, text, sizeof(text)));
	assert_non_null(strstr(text, "iteration 3"));
	bench_layout_guard(&memory.layout, memory.target);
	assert_false(bench_layout_check(&memory.layout, memory.target, 2, text, sizeof(text)));
	release(&memory);
}

static void check__sees_blocks_that_changed_places(void **state)
{
	struct sides memory;
	char text[BENCH_TEXT], block[100];
	char *one, *two;

	(void)state;
	move(&memory);
	one = memory.target + memory.layout.guard;
	two = one + memory.layout.target_stride;
	memcpy(block, one, sizeof(block));
	memcpy(one, two, sizeof(block));
	memcpy(two, block, sizeof(block));
	assert_false(bench_layout_check(&memory.layout, memory.target, 2, text, sizeof(text)));
	release(&memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(percentile__nearest_rank),
		cmocka_unit_test(percentile__few_samples),
		cmocka_unit_test(sort__large_values),
		cmocka_unit_test(median__odd_and_even),
		cmocka_unit_test(pairs__ratio_is_that_of_the_rounds),
		cmocka_unit_test(pairs__unknown_limits),
		cmocka_unit_test(pairs__no_more_than_there_is_room_for),
		cmocka_unit_test(layout__covers_the_working_set),
		cmocka_unit_test(layout__odd_sizes_and_blocks),
		cmocka_unit_test(layout__too_big),
		cmocka_unit_test(layout__shrink),
		cmocka_unit_test(layout__scattered_in_two_ways),
		cmocka_unit_test(check__right),
		cmocka_unit_test(check__sees_every_single_byte),
		cmocka_unit_test(check__sees_what_is_left_over),
		cmocka_unit_test(check__sees_blocks_that_changed_places),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
