/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: long */
/* transfer-blocks.c: very many blocks as one descriptor, over every transport */
#include "lib/fixture.h"

#define MANY 20000

/* The layout of a blocks descriptor. */
struct shape {
	uint64_t count, block;
	uint64_t *local_offsets, *remote_offsets; /* NULL: strided */
	uint64_t local_stride, remote_stride;
};

static uint64_t offset_of(const uint64_t *offsets, uint64_t stride, uint64_t block, uint64_t i)
{
	return offsets ? offsets[i] : i * (stride ? stride : block);
}

static void shape_describe(const struct fixture *f, const struct shape *shape, uint32_t op,
			   struct wh_base *base, struct wh_blocks_desc *desc)
{
	*base = (struct wh_base){ .local = f->region, .remote = f->remote.id };
	*desc = (struct wh_blocks_desc){
		.size = sizeof(*desc),
		.op = op,
		.block_length = shape->block,
		.count = shape->count,
		.bases = base,
		.base_count = 1,
		.local_offsets = shape->local_offsets,
		.local_stride = shape->local_stride,
		.remote_offsets = shape->remote_offsets,
		.remote_stride = shape->remote_stride,
	};
}

static void run_blocks(const struct fixture *f, const struct wh_blocks_desc *desc)
{
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	want(0, wh_blocks_new(f->peer, desc, &blocks));
	batch = batch_of(f, NULL, 0);
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	want(0, batch_run(batch));
	want_route(f, batch,
		   desc->count * desc->block_length * (desc->bases ? desc->base_count : 1));
	want(0, wh_batch_free(batch));
}

/* Write, then check the whole target: each block at its offset, all bytes between unchanged. */
static void write_shape(struct fixture *f, const struct shape *shape, uint64_t seed)
{
	unsigned char *seen = pages_new(f->length), *wanted = pages_new(f->length);
	struct wh_blocks_desc desc;
	struct wh_base base;

	target_fill(f, 0, f->length, 0, seed);
	pattern_fill(wanted, f->length, 0, seed);
	pattern_fill(f->local, f->length, 0, seed + 1);
	for (uint64_t i = 0; i < shape->count; i++)
		memcpy(wanted + offset_of(shape->remote_offsets, shape->remote_stride, shape->block,
					  i),
		       f->local + offset_of(shape->local_offsets, shape->local_stride, shape->block,
					    i),
		       shape->block);
	shape_describe(f, shape, WH_WRITE, &base, &desc);
	run_blocks(f, &desc);
	target_fetch(f, 0, f->length, seen);
	want_true(memcmp(seen, wanted, f->length) == 0, "the target is wrong after a write");
	pages_free(seen, f->length);
	pages_free(wanted, f->length);
}

static void read_shape(struct fixture *f, const struct shape *shape, uint64_t seed)
{
	unsigned char *source = pages_new(f->length), *wanted = pages_new(f->length);
	struct wh_blocks_desc desc;
	struct wh_base base;

	target_fill(f, 0, f->length, 0, seed);
	pattern_fill(source, f->length, 0, seed);
	pattern_fill(f->local, f->length, 0, seed + 1);
	pattern_fill(wanted, f->length, 0, seed + 1);
	for (uint64_t i = 0; i < shape->count; i++)
		memcpy(wanted + offset_of(shape->local_offsets, shape->local_stride, shape->block,
					  i),
		       source + offset_of(shape->remote_offsets, shape->remote_stride, shape->block,
					  i),
		       shape->block);
	shape_describe(f, shape, WH_READ, &base, &desc);
	run_blocks(f, &desc);
	want_true(memcmp(f->local, wanted, f->length) == 0, "our memory is wrong after a read");
	pages_free(source, f->length);
	pages_free(wanted, f->length);
}

static void move_shape(struct fixture *f, const struct shape *shape)
{
	write_shape(f, shape, 100);
	read_shape(f, shape, 200);
}

static uint64_t *offsets_new(uint64_t count, uint64_t step, uint64_t seed)
{
	uint64_t *offsets = calloc(count, sizeof(*offsets));

	assert_non_null(offsets);
	pattern_shuffle(offsets, count, step, seed);
	return offsets;
}

static void random__both_sides(void **state)
{
	struct shape shape = { .count = SCALE(100000, MANY), .block = 97 };
	struct fixture f;

	shape.local_offsets = offsets_new(shape.count, 101, 1);
	shape.remote_offsets = offsets_new(shape.count, 99, 2);
	fixture_open(&f, *state, 101 * shape.count);
	move_shape(&f, &shape);
	fixture_close(&f);
	free(shape.local_offsets);
	free(shape.remote_offsets);
}

static void random__pages(void **state)
{
	struct shape shape = { .count = 4096, .block = 4096 };
	struct fixture f;

	shape.local_offsets = offsets_new(shape.count, 4096, 3);
	shape.remote_offsets = offsets_new(shape.count, 4096, 4);
	fixture_open(&f, *state, 4096 * shape.count);
	move_shape(&f, &shape);
	fixture_close(&f);
	free(shape.local_offsets);
	free(shape.remote_offsets);
}

/* Scattered on this side, contiguous on the other. */
static void gather__one_side(void **state)
{
	struct shape shape = { .count = MANY, .block = 64 };
	struct fixture f;

	shape.local_offsets = offsets_new(shape.count, 64, 5);
	fixture_open(&f, *state, 64 * shape.count);
	move_shape(&f, &shape);
	fixture_close(&f);
	free(shape.local_offsets);
}

static void strided__both_sides(void **state)
{
	struct shape shape = {
		.count = MANY, .block = 48, .local_stride = 80, .remote_stride = 131
	};
	struct fixture f;

	fixture_open(&f, *state, 131 * shape.count);
	move_shape(&f, &shape);
	fixture_close(&f);
}

static void tiny__single_bytes(void **state)
{
	struct shape shape = { .count = MANY, .block = 1, .remote_stride = 3 };
	struct fixture f;

	shape.local_offsets = offsets_new(shape.count, 2, 6);
	fixture_open(&f, *state, 3 * shape.count);
	move_shape(&f, &shape);
	fixture_close(&f);
	free(shape.local_offsets);
}

static void contiguous__one_block_behind_the_other(void **state)
{
	struct shape shape = { .count = MANY, .block = 100 };
	struct fixture f;

	fixture_open(&f, *state, 100 * shape.count);
	move_shape(&f, &shape);
	fixture_close(&f);
}

/* The layers of a model: the same offsets for every base. */
static void bases__many(void **state)
{
	enum { BASES = 32, BLOCK = 200 };
	uint64_t count = MANY / BASES, layer = count * BLOCK;
	uint64_t *local = offsets_new(count, BLOCK, 7), *remote = offsets_new(count, BLOCK, 8);
	struct wh_base bases[BASES];
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_WRITE,
		.block_length = BLOCK,
		.count = count,
		.bases = bases,
		.base_count = BASES,
		.local_offsets = local,
		.remote_offsets = remote,
	};
	unsigned char *seen = pages_new(BASES * layer);
	struct fixture f;

	fixture_open(&f, *state, BASES * layer);
	pattern_fill(f.local, f.length, 0, 1);
	for (uint64_t b = 0; b < BASES; b++)
		bases[b] = (struct wh_base){ .local = f.region,
					     .remote = f.remote.id,
					     .local_offset = b * layer,
					     .remote_offset = (BASES - 1 - b) * layer };
	run_blocks(&f, &desc);
	target_fetch(&f, 0, f.length, seen);
	for (uint64_t b = 0; b < BASES; b++)
		for (uint64_t i = 0; i < count; i++)
			want_true(memcmp(seen + bases[b].remote_offset + remote[i],
					 f.local + bases[b].local_offset + local[i], BLOCK) == 0,
				  "base %d, block %d", (int)b, (int)i);
	fixture_close(&f);
	pages_free(seen, BASES * layer);
	free(local);
	free(remote);
}

/* Regions of different lengths; each base has its own. */
static void bases__several_regions(void **state)
{
	enum { BASES = 5, COUNT = 100, BLOCK = 1000 };
	struct wh_region *locals[BASES];
	struct wh_base bases[BASES];
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_READ,
		.block_length = BLOCK,
		.count = COUNT,
		.bases = bases,
		.base_count = BASES,
	};
	uint64_t part = COUNT * BLOCK;
	struct fixture f;

	fixture_open(&f, *state, BASES * part);
	target_fill(&f, 0, f.length, 0, 9);
	for (uint64_t b = 0; b < BASES; b++) {
		want(0, wh_region_register(f.engine, f.local + b * part, part, NULL, &locals[b]));
		bases[b] = (struct wh_base){ .local = locals[b],
					     .remote = f.remote.id,
					     .remote_offset = b * part };
	}
	run_blocks(&f, &desc);
	want_true(pattern_check(f.local, f.length, 0, 9) == PATTERN_GOOD, "wrong bytes");
	for (int b = 0; b < BASES; b++)
		want(0, wh_region_unregister(locals[b]));
	fixture_close(&f);
}

/* A page table: `count` pages of a pool, in random order. */
static int32_t *table_new(uint64_t count, uint64_t slots, uint64_t seed)
{
	uint64_t *slot = offsets_new(slots, 1, seed);
	int32_t *table = calloc(count, sizeof(*table));

	assert_non_null(table);
	for (uint64_t i = 0; i < count; i++)
		table[i] = (int32_t)slot[i];
	free(slot);
	return table;
}

/* Paged caches: tables of 32 bits, one for each side, the same for the layers; then one layer by
 * the addresses of its pages. */
static void pages__by_tables_and_addresses(void **state)
{
	enum { LAYERS = 3, PAGE = 528, SLOT = 544 }; /* bytes; a gap behind each page */
	const uint64_t count = SCALE(3000, 600), slots = 2 * count, layer = slots * SLOT;
	int32_t *local = table_new(count, slots, 31), *remote = table_new(count, slots, 32);
	const void **local_pages = calloc(count, sizeof(*local_pages));
	uint64_t *remote_pages = calloc(count, sizeof(*remote_pages));
	unsigned char *seen = pages_new(LAYERS * layer), *wanted = pages_new(LAYERS * layer);
	struct wh_base bases[LAYERS];
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_WRITE,
		.block_length = PAGE,
		.count = count,
		.bases = bases,
		.base_count = LAYERS,
		.local_stride = SLOT,
		.remote_stride = SLOT,
		.local_indices = local,
		.remote_indices = remote,
	};
	struct fixture f;

	fixture_open(&f, *state, LAYERS * layer);
	target_fill(&f, 0, f.length, 0, 33);
	pattern_fill(wanted, f.length, 0, 33);
	pattern_fill(f.local, f.length, 0, 34);
	for (uint64_t b = 0; b < LAYERS; b++) {
		bases[b] = (struct wh_base){ .local = f.region,
					     .remote = f.remote.id,
					     .local_offset = b * layer,
					     .remote_offset = b * layer };
		for (uint64_t i = 0; i < count; i++)
			memcpy(wanted + b * layer + (uint64_t)remote[i] * SLOT,
			       f.local + b * layer + (uint64_t)local[i] * SLOT, PAGE);
	}
	run_blocks(&f, &desc);
	target_fetch(&f, 0, f.length, seen);
	want_true(memcmp(seen, wanted, f.length) == 0, "the target is wrong after a write");

	/* Back, into the second layer. */
	memcpy(wanted, f.local, f.length);
	for (uint64_t i = 0; i < count; i++) {
		local_pages[i] = f.local + layer + (uint64_t)local[i] * SLOT;
		remote_pages[i] = f.remote.address + 2 * layer + (uint64_t)remote[i] * SLOT;
		memcpy(wanted + layer + (uint64_t)local[i] * SLOT,
		       seen + 2 * layer + (uint64_t)remote[i] * SLOT, PAGE);
	}
	desc = (struct wh_blocks_desc){
		.size = sizeof(desc),
		.op = WH_READ,
		.block_length = PAGE,
		.count = count,
		.local_addresses = local_pages,
		.remote_addresses = remote_pages,
	};
	run_blocks(&f, &desc);
	want_true(memcmp(f.local, wanted, f.length) == 0, "our memory is wrong after a read");
	fixture_close(&f);
	pages_free(seen, LAYERS * layer);
	pages_free(wanted, LAYERS * layer);
	free(local);
	free(remote);
	free(local_pages);
	free(remote_pages);
}

/* Prepare once, submit in several batches at once, and free while they run. */
static void prepared__many_batches_at_once(void **state)
{
	enum { BATCHES = 8, BLOCK = 64 };
	struct shape shape = { .count = 4000, .block = BLOCK };
	struct wh_batch *batches[BATCHES];
	struct wh_blocks_desc desc;
	struct wh_blocks *blocks;
	struct wh_base base;
	struct fixture f;

	shape.local_offsets = offsets_new(shape.count, BLOCK, 11);
	fixture_open(&f, *state, BLOCK * shape.count);
	target_fill(&f, 0, f.length, 0, 12);
	shape_describe(&f, &shape, WH_READ, &base, &desc);
	want(0, wh_blocks_new(f.peer, &desc, &blocks));
	/* Prepared blocks are a copy of the descriptor. */
	memset(&base, 0xff, sizeof(base));
	for (int b = 0; b < BATCHES; b++) {
		batches[b] = batch_of(&f, NULL, 0);
		want(0, wh_batch_add_blocks(batches[b], blocks));
	}
	for (int round = 0; round < 4; round++) {
		memset(f.local, 0, f.length);
		for (int b = 0; b < BATCHES; b++) {
			want(0, wh_batch_submit(batches[b]));
			if (HARNESS_TURNS)
				want(0, batch_end(batches[b], PATIENCE));
		}
		if (round == 2) {
			wh_blocks_free(blocks);
			blocks = NULL;
		}
		for (int b = 0; b < BATCHES; b++)
			want(0, batch_end(batches[b], PATIENCE));
		for (uint64_t i = 0; i < shape.count; i++)
			want_true(pattern_check(f.local + shape.local_offsets[i], BLOCK, i * BLOCK,
						12) == PATTERN_GOOD,
				  "round %d, block %d", round, (int)i);
	}
	for (int b = 0; b < BATCHES; b++)
		want(0, wh_batch_free(batches[b]));
	fixture_close(&f);
	free(shape.local_offsets);
}

/* Two blocks descriptors and single transfers in one batch. */
static void mixed__blocks_and_transfers(void **state)
{
	enum { COUNT = 1000, BLOCK = 96 };
	struct shape low = { .count = COUNT, .block = BLOCK }, high = low;
	struct wh_blocks_desc desc;
	struct wh_transfer single;
	struct wh_blocks *first, *second;
	struct wh_batch *batch;
	struct wh_base base;
	struct fixture f;

	fixture_open(&f, *state, 3 * COUNT * BLOCK);
	pattern_fill(f.local, f.length, 0, 1);
	target_fill(&f, 0, f.length, 0, 2);
	shape_describe(&f, &low, WH_WRITE, &base, &desc);
	want(0, wh_blocks_new(f.peer, &desc, &first));
	shape_describe(&f, &high, WH_READ, &base, &desc);
	base.local_offset = f.length;
	base.remote_offset = 2 * COUNT * BLOCK;
	want(0, wh_blocks_new(f.peer, &desc, &second));
	single = transfer_of(&f, WH_WRITE, COUNT * BLOCK, COUNT * BLOCK, COUNT * BLOCK);
	batch = batch_of(&f, &single, 1);
	want(0, wh_batch_add_blocks(batch, first));
	want(0, wh_batch_add_blocks(batch, second));
	wh_blocks_free(first);
	wh_blocks_free(second);
	want(0, batch_run(batch));
	want_route(&f, batch, 3 * COUNT * BLOCK);
	want(0, batch_item(batch, 0));
	want(0, wh_batch_free(batch));
	want_true(target_check(&f, 0, 2 * COUNT * BLOCK, 0, 1) == PATTERN_GOOD, "written bytes");
	want_true(target_check(&f, 2 * COUNT * BLOCK, COUNT * BLOCK, 2 * COUNT * BLOCK, 2) ==
			  PATTERN_GOOD,
		  "the source of the read");
	want_true(pattern_check(f.local + f.length, COUNT * BLOCK, 2 * COUNT * BLOCK, 2) ==
			  PATTERN_GOOD,
		  "read bytes");
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(random__both_sides),
	TEST_OVER(random__both_sides, file_lent),
	TEST_EVERY_ROUTE(random__pages),
	TEST_EVERY_ROUTE(gather__one_side),
	TEST_EVERY_ROUTE(strided__both_sides),
	TEST_EVERY_ROUTE(tiny__single_bytes),
	TEST_EVERY_ROUTE(contiguous__one_block_behind_the_other),
	TEST_EVERY_ROUTE(bases__many),
	TEST_EVERY_ROUTE(bases__several_regions),
	TEST_EVERY_ROUTE(pages__by_tables_and_addresses),
	/* Not over GPU RDMA: it adds nothing to this test, and the fake takes seconds. */
	TEST_HOST_ROUTES(prepared__many_batches_at_once),
	TEST_EVERY_ROUTE(mixed__blocks_and_transfers),
};

HARNESS_MAIN("transfer-blocks", tests)
