/* SPDX-License-Identifier: Apache-2.0 */
/* util-crc32c.c: CRC-32C: known vectors, and each way against the table */
#include "unit.h"

#include "util/crc32c.h"

#define LENGTH 8192

static uint8_t bytes[LENGTH + 64];

static const struct wh_crc32c_way *table(void)
{
	const struct wh_crc32c_way *way = wh_crc32c_ways;

	while (way[1].name)
		way++;
	return way;
}

static void fill(void)
{
	uint64_t seed = 5;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)next_random(&seed);
}

/* RFC 3720, appendix B.4, and the check value of the CRC catalogues. */
static void vectors__known(void **state)
{
	uint8_t line[32];

	(void)state;
	for (const struct wh_crc32c_way *way = wh_crc32c_ways; way->name; way++) {
		if (!way->works())
			continue;
		assert_int_equal(way->sum(0, "", 0), 0);
		assert_int_equal(way->sum(0, "123456789", 9), 0xe3069283);
		memset(line, 0, sizeof(line));
		assert_int_equal(way->sum(0, line, sizeof(line)), 0x8a9136aa);
		memset(line, 0xff, sizeof(line));
		assert_int_equal(way->sum(0, line, sizeof(line)), 0x62a8ab43);
		for (size_t i = 0; i < sizeof(line); i++)
			line[i] = (uint8_t)i;
		assert_int_equal(way->sum(0, line, sizeof(line)), 0x46dd794e);
	}
}

static void ways__equal_the_table(void **state)
{
	static const size_t long_ones[] = { 3071, 3072, 3073, 4096, 6143, 6144, 6145, LENGTH };
	wh_crc32c *sum = table()->sum;

	(void)state;
	fill();
	for (const struct wh_crc32c_way *way = wh_crc32c_ways; way->name; way++) {
		if (!way->works())
			continue;
		for (size_t from = 0; from < 16; from++)
			for (size_t length = 0; length <= 1000; length++)
				assert_int_equal(way->sum(0, bytes + from, length),
						 sum(0, bytes + from, length));
		for (size_t from = 0; from < 64; from++)
			for (size_t i = 0; i < sizeof(long_ones) / sizeof(*long_ones); i++)
				assert_int_equal(way->sum(7, bytes + from, long_ones[i]),
						 sum(7, bytes + from, long_ones[i]));
	}
}

static void sum__in_two_parts(void **state)
{
	(void)state;
	fill();
	for (const struct wh_crc32c_way *way = wh_crc32c_ways; way->name; way++) {
		if (!way->works())
			continue;
		for (size_t first = 0; first <= 4096; first += 7)
			assert_int_equal(
				way->sum(way->sum(0, bytes, first), bytes + first, 4096 - first),
				way->sum(0, bytes, 4096));
	}
}

static void choose__the_first_that_works(void **state)
{
	const struct wh_crc32c_way *chosen = wh_crc32c_choose();

	(void)state;
	for (const struct wh_crc32c_way *way = wh_crc32c_ways; way != chosen; way++)
		assert_false(way->works());
	assert_true(chosen->works());
	assert_true(table()->works());
	print_message("crc32c: %s\n", chosen->name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vectors__known),
		cmocka_unit_test(ways__equal_the_table),
		cmocka_unit_test(sum__in_two_parts),
		cmocka_unit_test(choose__the_first_that_works),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
