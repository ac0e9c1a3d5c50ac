/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c: every form of a prepared descriptor beside the same one in offsets */
#include "core-region.h"

#include "core/batch.h"
#include "transport/blocks.h"

#define BLOCK 64 /* bytes */
#define COUNT 37 /* blocks; not a multiple of what a vector holds */
#define SLOTS 128 /* of BLOCK bytes in a pool */
#define POOL (SLOTS * BLOCK)
#define START 4096 /* of the pools, on both sides */

static char local[1 << 16] __attribute__((aligned(4096)));
static struct wh_region *here, *mine, *there;

/* The same blocks in all forms. */
static struct lists {
	int32_t indices[COUNT];
	uint64_t offsets[COUNT];
	const void *local_addresses[COUNT];
	uint64_t remote_addresses[COUNT];
} lists[2]; /* of the local side, of the remote one */

enum form { STRIDE, OFFSETS, INDICES, ADDRESSES, FORMS };

static struct wh_region *add_local(struct wh_engine *engine, size_t offset, size_t length)
{
	struct wh_region *region;

	assert_int_equal(wh_region_register(engine, local + offset, length, NULL, &region), 0);
	return region;
}

static void await(size_t offset)
{
	int64_t end = wh_now() + PATIENCE;
	struct wh_remote remote;
	uint64_t at;

	while (wh_peer_lookup(peer, (uintptr_t)memory + offset, 1, WH_ANSWER, &remote, &at)) {
		assert_true(wh_now() < end);
		usleep(100);
	}
}

static void lists_fill(struct lists *list, uint32_t step, uint32_t first)
{
	for (uint32_t i = 0; i < COUNT; i++) {
		list->indices[i] = (int32_t)((first + i * step) % SLOTS);
		list->offsets[i] = (uint64_t)list->indices[i] * BLOCK;
		list->local_addresses[i] = local + START + list->offsets[i];
		list->remote_addresses[i] = (uintptr_t)memory + START + list->offsets[i];
	}
}

static void pools_open(void)
{
	there = add(START, POOL, NULL, ALL);
	here = add_local(other, START, POOL);
	mine = add_local(owner, START, POOL);
	await(START);
	lists_fill(&lists[0], 5, 3); /* odd: each slot once */
	lists_fill(&lists[1], 11, 70);
}

static void pools_close(void)
{
	drop(here);
	drop(mine);
	drop(there);
}

static struct wh_blocks_desc desc_of(enum form from, enum form to, struct wh_base *base)
{
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_WRITE,
		.block_length = BLOCK,
		.count = COUNT,
		.bases = base,
		.base_count = 1,
		.local_offsets = from == OFFSETS ? lists[0].offsets : NULL,
		.local_indices = from == INDICES ? lists[0].indices : NULL,
		.local_addresses = from == ADDRESSES ? lists[0].local_addresses : NULL,
		.remote_offsets = to == OFFSETS ? lists[1].offsets : NULL,
		.remote_indices = to == INDICES ? lists[1].indices : NULL,
		.remote_addresses = to == ADDRESSES ? lists[1].remote_addresses : NULL,
	};

	*base = (struct wh_base){ .local = here, .remote = wh_region_id(there) };
	return desc;
}

static struct wh_blocks *blocks_new(struct wh_peer *to, const struct wh_blocks_desc *desc)
{
	struct wh_blocks *blocks;

	if (wh_blocks_new(to, desc, &blocks))
		fail_msg("%s", wh_error_text());
	return blocks;
}

static void want(int error, const char *text, const struct wh_blocks_desc *desc)
{
	struct wh_blocks *blocks = NULL;

	assert_int_equal(wh_blocks_new(peer, desc, &blocks), error);
	if (!strstr(wh_error_text(), text))
		fail_msg("\"%s\" is not in \"%s\"", text, wh_error_text());
	assert_null(blocks);
}

/* The blocks lie where the form says, and their alignment is known. */
static void check_side(enum form form, const uint64_t *offsets, uint64_t stride, uint64_t bits,
		       const uint64_t *wanted)
{
	uint64_t all = 0;

	assert_int_equal(stride, BLOCK);
	if (form == STRIDE) {
		assert_null(offsets);
		assert_int_equal(bits, BLOCK);
		return;
	}
	assert_memory_equal(offsets, wanted, COUNT * sizeof(*offsets));
	for (unsigned i = 0; i < COUNT; i++)
		all |= wanted[i];
	assert_int_equal(bits, all);
}

static void check(struct wh_peer *to, enum form from, enum form into, unsigned named)
{
	struct wh_region *region = to == self ? mine : here;
	struct wh_blocks_desc desc;
	struct wh_blocks *blocks;
	struct wh_base base;

	desc = desc_of(from, into, &base);
	base.local = region;
	if (!named && from == ADDRESSES)
		base.local = NULL;
	if (!named && into == ADDRESSES)
		base.remote = 0;
	if (!named && from == ADDRESSES && into == ADDRESSES) {
		desc.bases = NULL;
		desc.base_count = 0;
	}
	blocks = blocks_new(to, &desc);
	assert_int_equal(blocks->base_count, 1);
	assert_ptr_equal(blocks->bases[0].local, region);
	assert_int_equal(blocks->bases[0].local_id, wh_region_id(region));
	assert_ptr_equal(blocks->bases[0].address, local + START);
	assert_int_equal(blocks->bases[0].remote, wh_region_id(there));
	assert_int_equal(blocks->bases[0].offset, 0);
	check_side(from, blocks->local_offsets, blocks->local_stride, blocks->local_bits,
		   lists[0].offsets);
	check_side(into, blocks->remote_offsets, blocks->remote_stride, blocks->remote_bits,
		   lists[1].offsets);
	assert_int_equal(wh_blocks_free(blocks), 0);
}

static void new__every_form_is_as_offsets(void **state)
{
	struct wh_peer *const both[] = { peer, self };

	(void)state;
	pools_open();
	for (unsigned i = 0; i < 2 * FORMS * FORMS * 2; i++)
		check(both[i % 2], i / 2 % FORMS, i / 2 / FORMS % FORMS, i / 2 / FORMS / FORMS);
	pools_close();
}

/* The stride of indices is not the length of a block, and there are several bases. */
static void new__indices_times_a_stride(void **state)
{
	static const int32_t table[] = { 3, 0, 6, 3 };
	int32_t zeros[4];
	struct wh_base bases[2];
	struct wh_blocks_desc desc;
	struct wh_blocks *blocks;

	(void)state;
	pools_open();
	desc = desc_of(INDICES, INDICES, bases);
	bases[1] = bases[0];
	bases[1].local_offset = bases[1].remote_offset = POOL / 2;
	desc.local_indices = desc.remote_indices = table;
	desc.base_count = 2;
	desc.count = 4;
	desc.local_stride = 100;
	desc.remote_stride = 65;
	blocks = blocks_new(peer, &desc);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(blocks->local_offsets[i], table[i] * 100);
		assert_int_equal(blocks->remote_offsets[i], table[i] * 65);
	}
	assert_int_equal(blocks->local_bits, 300 | 600);
	assert_int_equal(blocks->bases[1].offset, POOL / 2);
	assert_int_equal(wh_blocks_free(blocks), 0);
	/* Of more than 32 bits. */
	memset(zeros, 0, sizeof(zeros));
	desc.local_indices = zeros;
	desc.local_stride = (UINT64_C(1) << 32) + 100;
	blocks = blocks_new(peer, &desc);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(blocks->local_offsets[i], 0);
	assert_int_equal(blocks->local_bits, 0);
	assert_int_equal(wh_blocks_free(blocks), 0);
	zeros[2] = 1;
	want(-ERANGE, "base 0: block 2 is outside the local", &desc);
	pools_close();
}

static void new__moves_the_bytes(void **state)
{
	struct wh_peer *const both[] = { peer, self };
	struct wh_blocks_desc desc;
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	(void)state;
	pools_open();
	for (unsigned i = 0; i < 2; i++) {
		desc = desc_of(ADDRESSES, ADDRESSES, &(struct wh_base){ 0 });
		desc.bases = NULL;
		desc.base_count = 0;
		blocks = blocks_new(both[i], &desc);
		memset(memory, 0, sizeof(memory));
		for (size_t at = 0; at < sizeof(local); at++)
			local[at] = (char)(at * 7 + at / 256 + 1);
		assert_int_equal(wh_batch_new(both[i], NULL, &batch), 0);
		assert_int_equal(wh_batch_add_blocks(batch, blocks), 0);
		assert_int_equal(wh_batch_submit(batch), 0);
		assert_int_equal(wh_batch_wait_for(batch, PATIENCE), 0);
		assert_int_equal(wh_batch_status(batch), 0);
		for (unsigned b = 0; b < COUNT; b++)
			assert_memory_equal(memory + START + lists[1].offsets[b],
					    local + START + lists[0].offsets[b], BLOCK);
		assert_int_equal(wh_batch_free(batch), 0);
		assert_int_equal(wh_blocks_free(blocks), 0);
	}
	pools_close();
}

/* A program that was compiled before the lists were added. */
static void new__of_the_former_size(void **state)
{
	struct wh_blocks_desc desc;
	struct wh_blocks *blocks;
	struct wh_base base;

	(void)state;
	pools_open();
	desc = desc_of(STRIDE, OFFSETS, &base);
	desc.size = offsetof(struct wh_blocks_desc, local_indices);
	desc.local_indices = desc.remote_indices = (const int32_t *)1;
	desc.local_addresses = (const void *const *)1;
	desc.remote_addresses = (const uint64_t *)1;
	desc.remote_stride = 1; /* ignored beside offsets, as ever */
	blocks = blocks_new(peer, &desc);
	assert_null(blocks->local_offsets);
	assert_memory_equal(blocks->remote_offsets, lists[1].offsets, sizeof(lists[1].offsets));
	assert_int_equal(wh_blocks_free(blocks), 0);
	pools_close();
}

static void new__wrong_forms(void **state)
{
	struct wh_blocks_desc desc;
	struct wh_base bases[2];

	(void)state;
	pools_open();
#define WRONG(text, from, to, change)                                                              \
	do {                                                                                       \
		desc = desc_of(from, to, bases);                                                   \
		bases[1] = bases[0];                                                               \
		change;                                                                            \
		want(-EINVAL, text, &desc);                                                        \
	} while (0)
	WRONG("more than one of local_offsets, local_indices", OFFSETS, STRIDE,
	      desc.local_indices = lists[0].indices);
	WRONG("more than one of local_offsets, local_indices", OFFSETS, STRIDE,
	      desc.local_addresses = lists[0].local_addresses);
	WRONG("more than one of local_offsets, local_indices", INDICES, STRIDE,
	      desc.local_addresses = lists[0].local_addresses);
	WRONG("more than one of remote_offsets, remote_indices", STRIDE, OFFSETS,
	      desc.remote_indices = lists[1].indices);
	WRONG("more than one of remote_offsets, remote_indices", STRIDE, OFFSETS,
	      desc.remote_addresses = lists[1].remote_addresses);
	WRONG("more than one of remote_offsets, remote_indices", STRIDE, INDICES,
	      desc.remote_addresses = lists[1].remote_addresses);
	WRONG("local_addresses and local_stride", ADDRESSES, STRIDE, desc.local_stride = BLOCK);
	WRONG("remote_addresses and remote_stride", STRIDE, ADDRESSES, desc.remote_stride = BLOCK);
	WRONG("base_count is more than 1", ADDRESSES, STRIDE, desc.base_count = 2);
	WRONG("base_count is more than 1", STRIDE, ADDRESSES, desc.base_count = 2);
	WRONG("local_offset", ADDRESSES, STRIDE, bases[0].local_offset = 1);
	WRONG("remote_offset", STRIDE, ADDRESSES, bases[0].remote_offset = 1);
	WRONG("bases is NULL", ADDRESSES, STRIDE, (desc.bases = NULL, desc.base_count = 0));
	WRONG("bases is NULL", INDICES, ADDRESSES, (desc.bases = NULL, desc.base_count = 0));
	WRONG("bases is NULL", ADDRESSES, ADDRESSES, desc.bases = NULL);
	WRONG("base_count is 0", ADDRESSES, ADDRESSES, desc.base_count = 0);
	WRONG("local is NULL", STRIDE, ADDRESSES, bases[0].local = NULL);
	WRONG("another engine", ADDRESSES, STRIDE, bases[0].local = mine);
	WRONG("base 0: reserved", ADDRESSES, ADDRESSES, bases[0].reserved[1] = 1);
#undef WRONG
	pools_close();
}

static void new__wrong_indices(void **state)
{
	struct wh_blocks_desc desc;
	struct wh_base base;

	(void)state;
	pools_open();
#define WRONG(error, text, list, index, change)                                                    \
	do {                                                                                       \
		int32_t kept = (list).indices[index];                                              \
                                                                                                   \
		desc = desc_of(INDICES, INDICES, &base);                                           \
		change;                                                                            \
		want(error, text, &desc);                                                          \
		(list).indices[index] = kept;                                                      \
	} while (0)
	WRONG(-EINVAL, "local_indices[36] is -1", lists[0], 36, lists[0].indices[36] = -1);
	WRONG(-EINVAL, "remote_indices[5] is -2147483648", lists[1], 5,
	      lists[1].indices[5] = INT32_MIN);
	WRONG(-ERANGE, "base 0: block 7 is outside the local", lists[0], 7,
	      lists[0].indices[7] = SLOTS);
	WRONG(-ERANGE, "base 0: block 7 is outside remote", lists[1], 7,
	      lists[1].indices[7] = INT32_MAX);
	/* More than 64 bits: the product, and the end of the block. */
	WRONG(-ERANGE, "base 0: block 4 is outside the local", lists[0], 4,
	      (memset(lists[0].indices, 0, 4 * sizeof(int32_t)), lists[0].indices[4] = 16,
	       desc.local_stride = UINT64_C(1) << 60));
	lists_fill(&lists[0], 5, 3);
	WRONG(-ERANGE, "base 0: block 0 is outside remote", lists[1], 0,
	      (lists[1].indices[0] = 1, desc.remote_stride = UINT64_MAX - BLOCK / 2));
#undef WRONG
	desc = desc_of(INDICES, INDICES, &base);
	assert_int_equal(wh_blocks_free(blocks_new(peer, &desc)), 0);
	pools_close();
}

static void new__wrong_addresses(void **state)
{
	struct wh_region *beside, *there_beside, *readable;
	struct wh_blocks_desc desc;
	struct wh_base base;

	(void)state;
	pools_open();
	beside = add_local(other, START + POOL, 4096);
	there_beside = add(START + POOL, 4096, NULL, ALL);
	readable = add(START + POOL + 4096, 4096, NULL, WH_ACCESS_READ);
	await(START + POOL);
	await(START + POOL + 4096);
#define WRONG(error, text, named, change)                                                          \
	do {                                                                                       \
		struct lists kept[2];                                                              \
                                                                                                   \
		memcpy(kept, lists, sizeof(kept));                                                 \
		desc = desc_of(ADDRESSES, ADDRESSES, &base);                                       \
		if (!(named))                                                                      \
			base = (struct wh_base){ 0 };                                              \
		change;                                                                            \
		want(error, text, &desc);                                                          \
		memcpy(lists, kept, sizeof(kept));                                                 \
	} while (0)
#define LOCAL(i, to) lists[0].local_addresses[i] = (to)
#define REMOTE(i, to) lists[1].remote_addresses[i] = (to)
	/* In no region. */
	WRONG(-ENOENT, "block 0: local", false, LOCAL(0, NULL));
	WRONG(-ENOENT, "block 36: local", false, LOCAL(36, NULL));
	WRONG(-ENOENT, "block 9: local", false, LOCAL(9, local + START - 1));
	WRONG(-ENOENT, "block 9: local", false, LOCAL(9, (const void *)(UINTPTR_MAX - 8)));
	WRONG(-ENOENT, "block 9: local", false, LOCAL(9, local + START + POOL - BLOCK + 1));
	WRONG(-ENOENT, "block 0: remote", false, REMOTE(0, 0));
	WRONG(-ENOENT, "block 12: remote", false, REMOTE(12, (uintptr_t)memory));
	WRONG(-ENOENT, "block 12: remote", false, REMOTE(12, UINT64_MAX));
	/* In another one. */
	WRONG(-ERANGE, "block 9 is outside the local", false, LOCAL(9, local + START + POOL));
	WRONG(-ERANGE, "block 12 is outside remote", false,
	      REMOTE(12, (uintptr_t)memory + START + POOL));
	/* Outside the region that the base names. */
	WRONG(-ERANGE, "block 0 is outside the local", true, LOCAL(0, NULL));
	WRONG(-ERANGE, "block 9 is outside the local", true, LOCAL(9, local + START - 1));
	WRONG(-ERANGE, "block 12 is outside remote", true, REMOTE(12, (uintptr_t)memory));
	WRONG(-ERANGE, "block 12 is outside remote", true, REMOTE(12, UINT64_MAX));
	WRONG(-ENOENT, "base 0", true, base.remote = 1);
	/* A right is missing. */
	WRONG(-EACCES, "may not be written", false,
	      (desc.count = 1, REMOTE(0, (uintptr_t)memory + START + POOL + 4096)));
#undef WRONG
	drop(beside);
	drop(there_beside);
	drop(readable);
	pools_close();
}

/* The smallest region that holds all blocks, whatever region holds the first one. */
static void new__addresses_in_overlapping_regions(void **state)
{
	struct wh_region *small, *there_small, *readable;
	struct wh_blocks_desc desc;
	struct wh_blocks *blocks;

	(void)state;
	pools_open();
	small = add_local(other, START + lists[0].offsets[0], 4 * BLOCK);
	there_small = add(START + lists[1].offsets[0], 4 * BLOCK, NULL, ALL);
	readable = add(START + lists[1].offsets[0], 2 * BLOCK, NULL, WH_ACCESS_READ);
	await(START);
	desc = desc_of(ADDRESSES, ADDRESSES, &(struct wh_base){ 0 });
	desc.bases = NULL;
	desc.base_count = 0;
	for (int again = 0; again < 3; again++) {
		desc.count = COUNT;
		blocks = blocks_new(peer, &desc);
		assert_ptr_equal(blocks->bases[0].local, here);
		assert_ptr_equal(blocks->bases[0].address, local + START);
		assert_int_equal(blocks->bases[0].remote, wh_region_id(there));
		assert_memory_equal(blocks->local_offsets, lists[0].offsets,
				    sizeof(lists[0].offsets));
		assert_memory_equal(blocks->remote_offsets, lists[1].offsets,
				    sizeof(lists[1].offsets));
		assert_int_equal(wh_blocks_free(blocks), 0);
		desc.count = 1;
		blocks = blocks_new(self, &desc);
		assert_ptr_equal(blocks->bases[0].local, mine);
		assert_int_equal(wh_blocks_free(blocks), 0);
		blocks = blocks_new(peer, &desc);
		assert_ptr_equal(blocks->bases[0].local, small);
		assert_int_equal(blocks->local_offsets[0], 0);
		assert_int_equal(wh_blocks_free(blocks), 0);
	}
	drop(small);
	drop(there_small);
	drop(readable);
	pools_close();
}

/* Blocks keep to the region that was found, and fail once it is gone. */
static void new__after_a_region_has_gone(void **state)
{
	struct wh_blocks_desc desc;
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	(void)state;
	pools_open();
	desc = desc_of(ADDRESSES, ADDRESSES, &(struct wh_base){ 0 });
	desc.bases = NULL;
	desc.base_count = 0;
	blocks = blocks_new(peer, &desc);
	assert_int_equal(wh_batch_new(peer, NULL, &batch), 0);
	assert_int_equal(wh_batch_add_blocks(batch, blocks), 0);
	drop(here);
	want(-ENOENT, "block 0: local", &desc);
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	here = add_local(other, START, POOL);
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	assert_int_equal(wh_batch_free(batch), 0);
	assert_int_equal(wh_blocks_free(blocks), 0);
	pools_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(new__every_form_is_as_offsets),
		TEST(new__indices_times_a_stride),
		TEST(new__moves_the_bytes),
		TEST(new__of_the_former_size),
		TEST(new__wrong_forms),
		TEST(new__wrong_indices),
		TEST(new__wrong_addresses),
		TEST(new__addresses_in_overlapping_regions),
		TEST(new__after_a_region_has_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
