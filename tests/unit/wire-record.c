/* SPDX-License-Identifier: Apache-2.0 */
/* wire-record.c: records: every kind of damage is found */
#include "unit.h"

#include <errno.h>

#include "wire/bytes.h"
#include "wire/record.h"

#define LENGTH 300
#define WHOLE (WH_RECORD_HEADER + LENGTH)

struct ways {
	struct wh_record_way sent, received;
};

static struct ways ways_of(uint32_t first, bool owner, bool other)
{
	wh_crc32c *sum = wh_crc32c_choose()->sum;
	struct ways ways;

	wh_record_start(&ways.sent, sum, first, WH_RECORD_DATA_MAX, owner);
	wh_record_start(&ways.received, sum, first, WH_RECORD_DATA_MAX, other);
	return ways;
}

static void record_make(struct wh_record_way *way, uint8_t record[WHOLE], uint64_t seed)
{
	for (size_t i = WH_RECORD_HEADER; i < WHOLE; i++)
		record[i] = (uint8_t)next_random(&seed);
	wh_record_seal(way, record, record + WH_RECORD_HEADER, LENGTH);
}

static void layout__as_documented(void **state)
{
	struct ways ways = ways_of(0x12345678, true, true);
	uint8_t record[WHOLE], covered[12 + LENGTH];
	uint32_t length = 0;

	(void)state;
	for (uint64_t number = 0; number < 3; number++) {
		record_make(&ways.sent, record, number + 1);
		wh_put32(wh_put64(covered, number | UINT64_C(1) << 63), LENGTH);
		memcpy(covered + 12, record + WH_RECORD_HEADER, LENGTH);
		assert_int_equal(wh_get32(record), LENGTH);
		assert_int_equal(wh_get32(record + 4),
				 wh_crc32c_choose()->sum(0x12345678, covered, sizeof(covered)));
		assert_int_equal(wh_record_length(&ways.received, record, &length), 0);
		assert_int_equal(length, LENGTH);
		assert_int_equal(wh_record_check(&ways.received, record), 0);
	}
}

static void length__bounds(void **state)
{
	struct ways ways = ways_of(1, false, false);
	uint8_t header[WH_RECORD_HEADER] = { 0 };
	uint32_t length = 7;

	(void)state;
	assert_int_equal(wh_record_length(&ways.received, header, &length), -EBADMSG);
	wh_put32(header, WH_RECORD_DATA_MAX + 1);
	assert_int_equal(wh_record_length(&ways.received, header, &length), -EBADMSG);
	wh_put32(header, UINT32_MAX);
	assert_int_equal(wh_record_length(&ways.received, header, &length), -EBADMSG);
	assert_int_equal(length, 7);
	wh_put32(header, WH_RECORD_DATA_MAX);
	assert_int_equal(wh_record_length(&ways.received, header, &length), 0);
	assert_int_equal(length, WH_RECORD_DATA_MAX);
}

/* A flipped length is found by its bound, or by the checksum of as many bytes as it says. */
static void damage__every_bit(void **state)
{
	static uint8_t record[WH_RECORD_HEADER + WH_RECORD_DATA_MAX];
	struct ways ways = ways_of(5, false, false);

	(void)state;
	record_make(&ways.sent, record, 9);
	for (size_t bit = 0; bit < (size_t)8 * WHOLE; bit++) {
		record[bit / 8] ^= (uint8_t)(1U << bit % 8);
		assert_int_equal(wh_record_check(&ways.received, record), -EBADMSG);
		record[bit / 8] ^= (uint8_t)(1U << bit % 8);
	}
	assert_int_equal(wh_record_check(&ways.received, record), 0);
}

static void damage__whole_records(void **state)
{
	struct ways ways = ways_of(5, false, false), other = ways_of(6, false, true);
	uint8_t first[WHOLE], second[WHOLE], third[WHOLE];

	(void)state;
	record_make(&ways.sent, first, 1);
	record_make(&ways.sent, second, 2);
	record_make(&ways.sent, third, 3);
	/* Of another connection, and of the other direction of it. */
	assert_int_equal(wh_record_check(&other.received, first), -EBADMSG);
	other = ways_of(5, false, true);
	assert_int_equal(wh_record_check(&other.received, first), -EBADMSG);
	/* Dropped, repeated, in the wrong order. */
	assert_int_equal(wh_record_check(&ways.received, second), -EBADMSG);
	assert_int_equal(wh_record_check(&ways.received, first), 0);
	assert_int_equal(wh_record_check(&ways.received, first), -EBADMSG);
	assert_int_equal(wh_record_check(&ways.received, third), -EBADMSG);
	assert_int_equal(wh_record_check(&ways.received, second), 0);
	assert_int_equal(wh_record_check(&ways.received, third), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layout__as_documented),
		cmocka_unit_test(length__bounds),
		cmocka_unit_test(damage__every_bit),
		cmocka_unit_test(damage__whole_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
