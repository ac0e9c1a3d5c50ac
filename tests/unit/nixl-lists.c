/* SPDX-License-Identifier: Apache-2.0 */
/* From NIXL's lists to blocks: whatever the order and the lengths, the same bytes go the same ways.
 */
#include "unit.h"

#include <errno.h>

#include "compat/nixl/internal.h"
#include "compat/nixl/lists.h"

#define MEMORIES 4
#define MEMORY_BYTES (UINT64_C(1) << 24)

/* Objects as NIXL's: something, then a pointer to our memory. */
struct object {
	char before[16];
	struct wh_nixl_memory *memory;
};

static struct wh_nixl_memory local[MEMORIES], remote[MEMORIES];
static struct object local_object[MEMORIES], remote_object[MEMORIES];
static struct wh_nixl_peer peer;

static int memories_make(void **state)
{
	(void)state;
	for (unsigned i = 0; i < MEMORIES; i++) {
		local[i].address = UINT64_C(0x700000000000) + i * 4 * MEMORY_BYTES;
		local[i].region = (struct wh_region *)&local[i]; /* never followed */
		remote[i].address = UINT64_C(0x500000000000) + i * 8 * MEMORY_BYTES;
		remote[i].peer = &peer;
		remote[i].id = 100 + i;
		local_object[i].memory = &local[i];
		remote_object[i].memory = &remote[i];
	}
	return 0;
}

struct lists {
	struct wh_nixl_descriptor *here, *there;
	struct wh_nixl_list local, remote;
};

static void lists_make(struct lists *lists, size_t count)
{
	lists->here = calloc(count + 1, sizeof(*lists->here));
	lists->there = calloc(count + 1, sizeof(*lists->there));
	assert_true(lists->here && lists->there);
	lists->local = (struct wh_nixl_list){ lists->here, count, offsetof(struct object, memory) };
	lists->remote =
		(struct wh_nixl_list){ lists->there, count, offsetof(struct object, memory) };
}

static void lists_set(struct lists *lists, size_t i, unsigned from, uint64_t from_offset,
		      unsigned to, uint64_t to_offset, uint64_t length)
{
	lists->here[i] = (struct wh_nixl_descriptor){ .address = local[from].address + from_offset,
						      .length = length,
						      .object = (char *)&local_object[from] };
	lists->there[i] = (struct wh_nixl_descriptor){ .address = remote[to].address + to_offset,
						       .length = length,
						       .object = (char *)&remote_object[to] };
}

static void lists_end(struct lists *lists, struct wh_nixl_lists *sorted)
{
	wh_nixl_lists_free(sorted);
	free(lists->here);
	free(lists->there);
}

static int sort(struct lists *lists, struct wh_nixl_lists *sorted)
{
	size_t wrong;

	return wh_nixl_lists_sort(&lists->local, &lists->remote, false, sorted, &wrong);
}

/* ---- what comes out is what went in -------------------------------------------------------------
 */

/* A run of bytes: from a memory and offset to a memory and offset. */
struct run {
	uint64_t from, from_offset, to, to_offset, length;
};

static int run_compare(const void *a, const void *b)
{
	const struct run *one = a, *two = b;

	if (one->from != two->from)
		return one->from < two->from ? -1 : 1;
	if (one->to != two->to)
		return one->to < two->to ? -1 : 1;
	if (one->from_offset != two->from_offset)
		return one->from_offset < two->from_offset ? -1 : 1;
	return one->to_offset < two->to_offset ? -1 : one->to_offset > two->to_offset;
}

/* Sort runs and join neighbours. Returns how many are left. */
static size_t runs_join(struct run *runs, size_t count)
{
	size_t kept = 0;

	qsort(runs, count, sizeof(*runs), run_compare);
	for (size_t i = 0; i < count; i++) {
		struct run *last = runs + kept - 1;

		if (kept && last->from == runs[i].from && last->to == runs[i].to &&
		    last->from_offset + last->length == runs[i].from_offset &&
		    last->to_offset + last->length == runs[i].to_offset)
			last->length += runs[i].length;
		else
			runs[kept++] = runs[i];
	}
	return kept;
}

static size_t runs_of_lists(const struct lists *lists, struct run **out)
{
	struct run *runs = calloc(lists->local.count + 1, sizeof(*runs));
	size_t count = 0;

	assert_non_null(runs);
	for (size_t i = 0; i < lists->local.count; i++) {
		const struct wh_nixl_memory *from =
			((const struct object *)lists->here[i].object)->memory;
		const struct wh_nixl_memory *to =
			((const struct object *)lists->there[i].object)->memory;

		if (lists->here[i].length)
			runs[count++] = (struct run){ (uintptr_t)from->region,
						      lists->here[i].address - from->address,
						      to->id, lists->there[i].address - to->address,
						      lists->here[i].length };
	}
	*out = runs;
	return runs_join(runs, count);
}

static size_t runs_of_sorted(const struct wh_nixl_lists *sorted, struct run **out)
{
	size_t room = sorted->single_count + 1, count = 0;
	struct run *runs;

	for (size_t i = 0; i < sorted->block_count; i++)
		room += sorted->blocks[i].count * sorted->blocks[i].base_count;
	runs = calloc(room, sizeof(*runs));
	assert_non_null(runs);
	for (size_t i = 0; i < sorted->block_count; i++) {
		const struct wh_nixl_blocks *blocks = &sorted->blocks[i];

		for (size_t b = 0; b < blocks->base_count; b++)
			for (uint64_t n = 0; n < blocks->count; n++)
				runs[count++] =
					(struct run){ (uintptr_t)blocks->bases[b].local,
						      blocks->local_offsets[n],
						      blocks->bases[b].remote,
						      blocks->remote_offsets[n], blocks->length };
	}
	for (size_t i = 0; i < sorted->single_count; i++)
		runs[count++] =
			(struct run){ (uintptr_t)sorted->singles[i].local,
				      sorted->singles[i].local_offset, sorted->singles[i].remote,
				      sorted->singles[i].remote_offset, sorted->singles[i].length };
	*out = runs;
	return runs_join(runs, count);
}

static void assert_same(const struct lists *lists, const struct wh_nixl_lists *sorted)
{
	struct run *given, *got;
	size_t count = runs_of_lists(lists, &given);

	assert_int_equal(runs_of_sorted(sorted, &got), count);
	assert_memory_equal(given, got, count * sizeof(*given));
	free(given);
	free(got);
}

/* ---- tests
 * ----------------------------------------------------------------------------------------- */

static void equal_lengths__become_one_descriptor(void **state)
{
	struct wh_nixl_lists sorted;
	struct lists lists;

	(void)state;
	lists_make(&lists, 1000);
	for (size_t i = 0; i < 1000; i++)
		lists_set(&lists, i, 0, (999 - i) * 8192, 0, (i * 7 % 1000) * 4096, 4096);
	assert_int_equal(sort(&lists, &sorted), 0);
	assert_int_equal(sorted.block_count, 1);
	assert_int_equal(sorted.single_count, 0);
	assert_int_equal(sorted.blocks[0].count, 1000);
	assert_same(&lists, &sorted);
	lists_end(&lists, &sorted);
}

/* As NIXL does where neighbours happen to be neighbours on both sides. */
static void merged_neighbours__are_divided_again(void **state)
{
	struct wh_nixl_lists sorted;
	struct lists lists;

	(void)state;
	lists_make(&lists, 300);
	for (size_t i = 0; i < 300; i++)
		lists_set(&lists, i, 1, i * 32768, 2, i * 65536, 4096 * (1 + i % 3));
	assert_int_equal(sort(&lists, &sorted), 0);
	assert_int_equal(sorted.block_count, 1);
	assert_int_equal(sorted.blocks[0].length, 4096);
	assert_int_equal(sorted.blocks[0].count, 600);
	assert_int_equal(sorted.single_count, 0);
	assert_same(&lists, &sorted);
	lists_end(&lists, &sorted);
}

static void few_lengths__become_few_descriptors(void **state)
{
	static const uint64_t lengths[] = { 4096, 5000, 7000 };
	struct wh_nixl_lists sorted;
	struct lists lists;

	(void)state;
	lists_make(&lists, 300);
	for (size_t i = 0; i < 300; i++)
		lists_set(&lists, i, 0, i * 8192, 0, i * 8192, lengths[i % 3]);
	assert_int_equal(sort(&lists, &sorted), 0);
	assert_int_equal(sorted.block_count, 3);
	assert_int_equal(sorted.single_count, 0);
	assert_same(&lists, &sorted);
	lists_end(&lists, &sorted);
}

/* A byte beside pages must not turn the pages into bytes. */
static void a_short_piece__divides_nothing(void **state)
{
	struct wh_nixl_lists sorted;
	struct lists lists;

	(void)state;
	lists_make(&lists, 101);
	for (size_t i = 0; i < 101; i++)
		lists_set(&lists, i, 0, i * 8192, 0, i * 8192, i == 50 ? 1 : 4096);
	assert_int_equal(sort(&lists, &sorted), 0);
	assert_int_equal(sorted.block_count, 1);
	assert_int_equal(sorted.blocks[0].length, 4096);
	assert_int_equal(sorted.single_count, 1);
	assert_same(&lists, &sorted);
	lists_end(&lists, &sorted);
}

static void layers__become_bases(void **state)
{
	struct wh_nixl_lists sorted;
	struct lists lists;

	(void)state;
	lists_make(&lists, 400);
	for (size_t i = 0; i < 400; i++) {
		size_t layer = i / 100, page = i % 100;

		lists_set(&lists, i, (unsigned)layer, page * 8192, (unsigned)layer,
			  (99 - page) * 4096, 4096);
	}
	assert_int_equal(sort(&lists, &sorted), 0);
	assert_int_equal(sorted.pair_count, 4);
	assert_int_equal(sorted.block_count, 1);
	assert_int_equal(sorted.blocks[0].base_count, 4);
	assert_int_equal(sorted.blocks[0].count, 100);
	assert_same(&lists, &sorted);
	lists_end(&lists, &sorted);
}

static void nothing__is_nothing(void **state)
{
	struct wh_nixl_lists sorted;
	struct lists lists;

	(void)state;
	lists_make(&lists, 2);
	lists_set(&lists, 0, 0, 0, 0, 0, 0);
	lists_set(&lists, 1, 1, 4096, 1, 0, 0);
	assert_int_equal(sort(&lists, &sorted), 0);
	assert_int_equal(sorted.block_count + sorted.single_count, 0);
	lists_end(&lists, &sorted);
	lists_make(&lists, 0);
	assert_int_equal(sort(&lists, &sorted), 0);
	assert_int_equal(sorted.pair_count, 0);
	lists_end(&lists, &sorted);
}

static void what_is_wrong__is_refused_and_named(void **state)
{
	struct wh_nixl_lists sorted;
	struct lists lists;
	size_t wrong;

	(void)state;
	lists_make(&lists, 10);
	for (size_t i = 0; i < 10; i++)
		lists_set(&lists, i, 0, i * 4096, 0, i * 4096, 4096);
	lists.there[7].length = 4095;
	assert_int_equal(wh_nixl_lists_sort(&lists.local, &lists.remote, false, &sorted, &wrong),
			 -EINVAL);
	assert_int_equal(wrong, 7);
	lists.there[7].length = 4096;
	lists.there[3].object = lists.here[3].object; /* memory of this side */
	assert_int_equal(wh_nixl_lists_sort(&lists.local, &lists.remote, false, &sorted, &wrong),
			 -EINVAL);
	assert_int_equal(wrong, 3);
	lists.there[3].object = NULL;
	assert_int_equal(wh_nixl_lists_sort(&lists.local, &lists.remote, false, &sorted, &wrong),
			 -EINVAL);
	assert_int_equal(wrong, 3);
	lists.remote.count = 9;
	assert_int_equal(wh_nixl_lists_sort(&lists.local, &lists.remote, false, &sorted, &wrong),
			 -EINVAL);
	assert_int_equal(wrong, 9);
	free(lists.here);
	free(lists.there);
}

static void random_lists__keep_every_byte(void **state)
{
	uint64_t random = 42;

	(void)state;
	for (int round = 0; round < 300; round++) {
		size_t count = next_random(&random) % 600;
		unsigned kinds = 1 + next_random(&random) % 6;
		struct wh_nixl_lists sorted;
		struct lists lists;

		lists_make(&lists, count);
		for (size_t i = 0; i < count; i++) {
			uint64_t unit = UINT64_C(1) << next_random(&random) % 13;
			uint64_t length = next_random(&random) % kinds * unit;

			/* Slots do not overlap, so that runs join in one way only. */
			lists_set(&lists, i, next_random(&random) % MEMORIES, i * 24576,
				  next_random(&random) % MEMORIES, (count - i) * 24576, length);
		}
		assert_int_equal(sort(&lists, &sorted), 0);
		assert_same(&lists, &sorted);
		lists_end(&lists, &sorted);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_lengths__become_one_descriptor),
		cmocka_unit_test(merged_neighbours__are_divided_again),
		cmocka_unit_test(few_lengths__become_few_descriptors),
		cmocka_unit_test(a_short_piece__divides_nothing),
		cmocka_unit_test(layers__become_bases),
		cmocka_unit_test(nothing__is_nothing),
		cmocka_unit_test(what_is_wrong__is_refused_and_named),
		cmocka_unit_test(random_lists__keep_every_byte),
	};

	return cmocka_run_group_tests(tests, memories_make, NULL);
}
