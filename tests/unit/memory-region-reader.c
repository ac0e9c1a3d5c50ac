/* SPDX-License-Identifier: Apache-2.0 */
/* memory-region-reader.c: finding regions by address without the lock, against a plain model */
#include "unit.h"

#include <pthread.h>
#include <sched.h>

#include <wherry/memory.h>

#include "memory/region-reader.h"
#include "memory/region-table.h"

#define MOST 1200

static struct wh_region_table table;

struct range {
	struct wh_region_entry *entry; /* NULL: gone */
	uint64_t id;
};

static struct range ranges[MOST];

static int setup(void **state)
{
	(void)state;
	memset(ranges, 0, sizeof(ranges));
	return wh_region_table_init(&table, sizeof(struct wh_region_entry));
}

static int teardown(void **state)
{
	(void)state;
	wh_region_table_destroy(&table);
	return 0;
}

static struct range add(uint64_t address, uint64_t length, uint8_t access)
{
	struct range range;

	range.entry = wh_region_table_new(&table, &range.id);
	assert_non_null(range.entry);
	range.entry->address = address;
	range.entry->length = length;
	range.entry->access = access;
	assert_int_equal(wh_region_table_publish(&table, range.entry, range.id), 0);
	return range;
}

static void drop(struct range *range)
{
	assert_true(wh_region_table_close(&table, range->entry, range->id));
	wh_region_table_free(&table, range->entry);
	range->entry = NULL;
}

/* The id found, or 0; the offset must fit it. */
static uint64_t find(struct wh_region_reader *reader, uint64_t address, uint64_t length,
		     uint8_t access)
{
	struct wh_region_entry *entry;
	uint64_t id, offset;

	if (!wh_region_reader_find(reader, address, length, access, &id, &offset))
		return 0;
	entry = wh_region_table_at(&table, wh_region_table_index(id));
	assert_true(entry->address + offset == address);
	assert_true(wh_region_entry_holds(entry, offset, length));
	return id;
}

/* The length of the smallest range that fits, or 0. */
static uint64_t model_length(uint64_t address, uint64_t length, uint8_t access)
{
	uint64_t best = 0;

	for (int i = 0; i < MOST; i++) {
		const struct wh_region_entry *entry = ranges[i].entry;

		if (!entry || address < entry->address ||
		    address - entry->address > entry->length ||
		    length > entry->length - (address - entry->address) ||
		    (access && !(entry->access & access)))
			continue;
		if (!best || entry->length < best)
			best = entry->length;
	}
	return best;
}

static uint32_t draw(uint32_t most)
{
	static uint64_t state = 42;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % most;
}

/* Look ranges up, at and around the borders of regions, and compare with the model. */
static void compare(unsigned count, unsigned searches)
{
	struct wh_region_reader reader;

	wh_region_reader_begin(&reader, &table);
	for (unsigned i = 0; i < searches; i++) {
		const struct wh_region_entry *entry = ranges[draw(count)].entry;
		uint64_t address = entry ? entry->address : 0x10000, length = 1 + draw(300), id;
		uint8_t access = (uint8_t)draw(3);

		if (draw(2))
			address += (entry ? entry->length : 0) - length;
		address += draw(5) - 2;
		id = find(&reader, address, length, access);
		assert_int_equal(
			id ? wh_region_table_at(&table, wh_region_table_index(id))->length : 0,
			model_length(address, length, access));
		if (!draw(100)) {
			wh_region_reader_end(&reader);
			wh_region_reader_begin(&reader, &table);
		}
	}
	wh_region_reader_end(&reader);
}

static void find__at_the_borders(void **state)
{
	struct range a = add(0x1000, 0x100, WH_ACCESS_READ), b = add(0x1100, 0x100, WH_ACCESS_READ);
	struct wh_region_reader reader;

	(void)state;
	for (int again = 0; again < 3; again++) {
		wh_region_reader_begin(&reader, &table);
		assert_int_equal(find(&reader, 0x1000, 1, 0), a.id);
		assert_int_equal(find(&reader, 0x1000, 0x100, 0), a.id);
		assert_int_equal(find(&reader, 0x10ff, 1, 0), a.id);
		assert_int_equal(find(&reader, 0x10ff, 2, 0), 0); /* spans both */
		assert_int_equal(find(&reader, 0x1100, 0x100, 0), b.id);
		assert_int_equal(find(&reader, 0x11ff, 1, 0), b.id);
		assert_int_equal(find(&reader, 0x1200, 1, 0), 0);
		assert_int_equal(find(&reader, 0xfff, 1, 0), 0);
		assert_int_equal(find(&reader, 0xfff, 2, 0), 0);
		assert_int_equal(find(&reader, 0x1000, UINT64_MAX, 0), 0);
		assert_int_equal(find(&reader, UINT64_MAX, 1, 0), 0);
		assert_int_equal(find(&reader, UINT64_MAX, 2, 0), 0);
		assert_int_equal(find(&reader, 0, 1, 0), 0);
		assert_int_equal(find(&reader, 0x1000, 1, WH_ACCESS_WRITE), 0);
		assert_int_equal(find(&reader, 0x1000, 1, WH_ACCESS_READ), a.id);
		wh_region_reader_end(&reader);
	}
}

static void find__in_an_empty_table(void **state)
{
	struct wh_region_reader reader;

	(void)state;
	wh_region_reader_begin(&reader, &table);
	assert_int_equal(find(&reader, 0, 1, 0), 0);
	assert_int_equal(find(&reader, 0x1000, 1, 0), 0);
	wh_region_reader_end(&reader);
}

/* What a reader remembers must not hide a smaller region, nor outlive a region. */
static void find__after_changes(void **state)
{
	struct range large = add(0x1000, 0x1000, WH_ACCESS_READ), small, next;
	struct wh_region_reader reader;

	(void)state;
	wh_region_reader_begin(&reader, &table);
	for (int i = 0; i < 3; i++)
		assert_int_equal(find(&reader, 0x1800, 0x10, 0), large.id);
	small = add(0x1800, 0x100, WH_ACCESS_READ);
	wh_region_reader_end(&reader);
	wh_region_reader_begin(&reader, &table);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(find(&reader, 0x1800, 0x10, 0), small.id);
		assert_int_equal(find(&reader, 0x1900, 0x10, 0), large.id);
		assert_int_equal(find(&reader, 0x18ff, 2, 0), large.id);
	}
	drop(&small);
	assert_int_equal(find(&reader, 0x1800, 0x10, 0), large.id);
	drop(&large);
	assert_int_equal(find(&reader, 0x1800, 0x10, 0), 0);
	/* Another one in the same entry, at the same addresses. */
	next = add(0x1000, 0x1000, WH_ACCESS_READ);
	assert_int_equal(find(&reader, 0x1800, 0x10, 0), next.id);
	wh_region_reader_end(&reader);
}

/* A snapshot that a reader stays inside is not overwritten. */
static void find__with_a_reader_that_stays(void **state)
{
	struct wh_region_reader stays, reader;

	(void)state;
	ranges[0] = add(0x1000, 0x100, WH_ACCESS_READ);
	wh_region_reader_begin(&stays, &table);
	/* The second one remembers the range in the snapshot. */
	for (int i = 0; i < 2; i++)
		assert_int_equal(find(&stays, 0x1000, 1, 0), ranges[0].id);
	assert_non_null(stays.last);
	wh_region_reader_begin(&reader, &table);
	for (int i = 1; i < 200; i++) {
		ranges[i] = add(0x1000 + (uint64_t)i * 0x100, 0x100, WH_ACCESS_READ);
		wh_region_reader_end(&reader);
		wh_region_reader_begin(&reader, &table);
		for (int j = i; j >= 0; j--)
			assert_int_equal(find(&reader, 0x1000 + (uint64_t)j * 0x100, 0x100, 0),
					 ranges[j].id);
	}
	wh_region_reader_end(&reader);
	assert_int_equal(find(&stays, 0x1000, 1, 0), ranges[0].id);
	wh_region_reader_end(&stays);
	compare(200, 2000);
}

/* Ranges that overlap at random: every answer is as small as the model's. */
static void find__as_the_model(void **state)
{
	(void)state;
	for (unsigned count = 1; count <= 1000; count = count * 4 + 4) {
		for (unsigned i = 0; i < count; i++) {
			if (ranges[i].entry)
				drop(&ranges[i]);
			ranges[i] = add(0x10000 + draw(count * 400),
					1 + draw(draw(8) ? 600 : 20000), (uint8_t)(1 + draw(3)));
		}
		compare(count, 4000);
		for (unsigned i = 0; i < count; i += 1 + draw(4))
			if (ranges[i].entry)
				drop(&ranges[i]);
		compare(count, 4000);
	}
}

/* Very far apart, so that most buckets are empty. */
static void find__far_apart(void **state)
{
	(void)state;
	ranges[0] = add(1, 10, WH_ACCESS_READ);
	ranges[1] = add(UINT64_MAX - 4096, 4096, WH_ACCESS_READ);
	for (int i = 2; i < 200; i++)
		ranges[i] = add(0x1000 + (uint64_t)i * 64, 64, WH_ACCESS_READ);
	compare(200, 10000);
}

/* ---- threads ------------------------------------------------------------------------------- */

#define LOOPS 3000

static _Atomic bool stop;

/* The first 16 ranges stay; the others come and go. Counts what is wrong of the first. */
static void *search(void *arg)
{
	struct wh_region_reader reader;
	unsigned *wrong = arg;

	while (!atomic_load(&stop)) {
		wh_region_reader_begin(&reader, &table);
		for (uint64_t i = 0; i < 32; i++) {
			uint64_t id = 0, offset = 0;
			bool found = wh_region_reader_find(&reader, 0x1000 + i * 0x100, 0x100, 0,
							   &id, &offset);

			if (offset || (i < 16 && (!found || id != ranges[i].id)))
				++*wrong;
		}
		wh_region_reader_end(&reader);
	}
	return NULL;
}

static void find__while_regions_come_and_go(void **state)
{
	unsigned wrong[3] = { 0 };
	pthread_t threads[3];

	(void)state;
	for (uint64_t i = 0; i < 16; i++)
		ranges[i] = add(0x1000 + i * 0x100, 0x100, WH_ACCESS_READ);
	atomic_store(&stop, false);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, search, &wrong[i]), 0);
	for (unsigned i = 0; i < LOOPS; i++) {
		struct range *range = &ranges[16 + i % 16];

		if (range->entry)
			drop(range);
		*range = add(0x1000 + (16 + i % 16) * 0x100, 0x100, WH_ACCESS_READ);
		if (i % 64 == 0)
			sched_yield();
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(wrong[i], 0);
	}
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(find__at_the_borders),
		TEST(find__in_an_empty_table),
		TEST(find__after_changes),
		TEST(find__with_a_reader_that_stays),
		TEST(find__as_the_model),
		TEST(find__far_apart),
		TEST(find__while_regions_come_and_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
