/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "wire/wire.h"

#define MANY WH_REQUEST_EXTENTS

/* A model of the format, made the slow way, to compare with: one token an extent, no REPEAT. */
static size_t put_varint(uint8_t *out, uint64_t value)
{
	size_t size = 0;

	for (; value >= 0x80; value >>= 7)
		out[size++] = (uint8_t)(value | 0x80);
	out[size++] = (uint8_t)value;
	return size;
}

static uint64_t zigzag(uint64_t value)
{
	return value >> 63 ? ~(value << 1) : value << 1;
}

static size_t put_set(uint8_t *out, uint64_t region_delta, uint64_t offset, uint64_t length)
{
	size_t size = put_varint(out, 2);

	size += put_varint(out + size, zigzag(region_delta));
	size += put_varint(out + size, offset);
	return size + put_varint(out + size, length);
}

static size_t put_delta(uint8_t *out, uint64_t delta)
{
	return put_varint(out, zigzag(delta) << 2);
}

static size_t put_repeat(uint8_t *out, uint64_t count)
{
	return put_varint(out, count << 2 | 1);
}

/* Decode a copy of just that size, at most `room` extents. The number of extents, or -EPROTO if
 * that is how it ended. */
static int decode(const uint8_t *bytes, size_t length, struct wh_extent *out, int room)
{
	uint8_t *copy = exact_copy(bytes, length);
	struct wh_extent_reader reader;
	int count = 0, rc = 1;

	wh_extents_open(&reader, copy, length);
	while (count < room && (rc = wh_extents_next(&reader, &out[count])) == 1) {
		assert_true(out[count].length > 0);
		assert_true(out[count].offset <= UINT64_MAX - out[count].length);
		count++;
	}
	/* It stays as it is. */
	if (rc != 1)
		assert_int_equal(wh_extents_next(&reader, &out[0]), rc);
	free(copy);
	return rc < 0 ? rc : count;
}

static size_t encode(uint8_t *out, size_t size, const struct wh_extent *extents, size_t count)
{
	struct wh_extent_writer writer;
	size_t length;

	wh_extents_start(&writer, out, size);
	for (size_t i = 0; i < count; i++)
		assert_int_equal(wh_extents_put(&writer, &extents[i]), 0);
	length = wh_extents_end(&writer);
	assert_true(length <= size);
	assert_int_equal(wh_extents_end(&writer), length);
	return length;
}

static void assert_round_trip(const struct wh_extent *extents, size_t count)
{
	static struct wh_extent got[MANY + 1];
	uint8_t *bytes = malloc(WH_REQUEST_META);
	size_t length;

	assert_non_null(bytes);
	length = encode(bytes, WH_REQUEST_META, extents, count);
	assert_int_equal(decode(bytes, length, got, MANY + 1), (int)count);
	for (size_t i = 0; i < count; i++) {
		assert_true(got[i].region == extents[i].region);
		assert_true(got[i].offset == extents[i].offset);
		assert_true(got[i].length == extents[i].length);
	}
	free(bytes);
}

static void encode__bytes(void **state)
{
	static const struct wh_extent extents[] = {
		{ 1, 4096, 512 },  { 1, 4608, 512 }, { 1, 5120, 512 }, /* SET, REPEAT 2 */
		{ 1, 8192, 512 }, /* DELTA 2560 */
		{ 1, 11264, 512 }, /* REPEAT 1: step 3072 */
		{ 1, 11263, 512 }, /* DELTA -3073 */
		{ 0, 0, 1 }, /* SET */
	};
	uint8_t want[64], got[64];
	size_t length = 0;

	(void)state;
	length += put_set(want + length, 1, 4096, 512);
	length += put_repeat(want + length, 2);
	length += put_delta(want + length, 2560);
	length += put_repeat(want + length, 1);
	length += put_delta(want + length, (uint64_t)-3073);
	length += put_set(want + length, (uint64_t)-1, 0, 1);
	assert_int_equal(encode(got, sizeof(got), extents, 7), length);
	assert_memory_equal(got, want, length);
	assert_round_trip(extents, 7);
	assert_memory_equal(got, "\2\2\x80\x20\x80\4\11", 7);
}

static void encode__strided_is_short(void **state)
{
	static struct wh_extent extents[MANY];
	uint8_t bytes[64];

	(void)state;
	for (size_t i = 0; i < MANY; i++)
		extents[i] = (struct wh_extent){ 3, i * 8192, 4096 };
	/* SET, a DELTA for the step, a REPEAT for the rest. */
	assert_true(encode(bytes, sizeof(bytes), extents, MANY) <= 12);
	assert_round_trip(extents, MANY);
}

static void encode__no_extents(void **state)
{
	struct wh_extent got;
	uint8_t byte;

	(void)state;
	assert_int_equal(encode(&byte, 0, NULL, 0), 0);
	assert_int_equal(decode(&byte, 0, &got, 1), 0);
}

static void round_trip__corners(void **state)
{
	static const struct wh_extent extents[] = {
		{ UINT64_MAX, 0, UINT64_MAX },
		{ 0, UINT64_MAX - 1, 1 },
		{ 0, 0, 1 },
		{ 0, UINT64_MAX - 1, 1 },
		{ 0, UINT64_C(1) << 62, 1 },
		{ 0, 1, 1 },
		{ UINT64_C(1) << 63, UINT64_C(1) << 63, (UINT64_C(1) << 63) - 1 },
		{ UINT64_C(1) << 63, UINT64_C(1) << 63, (UINT64_C(1) << 63) - 1 },
		{ UINT64_C(1) << 63, 0, (UINT64_C(1) << 63) - 1 },
		{ 1, 0, 1 },
		{ 1, 0, 1 },
		{ 1, 0, 1 },
	};

	(void)state;
	for (size_t first = 0; first < 12; first++)
		assert_round_trip(extents + first, 12 - first);
}

/* Every width of a DELTA, both signs, around each border. */
static void round_trip__every_width(void **state)
{
	const uint64_t middle = UINT64_C(1) << 63;

	(void)state;
	for (unsigned bits = 0; bits < 64; bits++) {
		for (int near = -2; near <= 2; near++) {
			uint64_t delta = (UINT64_C(1) << bits) + (uint64_t)near;
			struct wh_extent extents[] = {
				{ 9, middle, 1 }, { 9, middle + 1 + delta, 1 },
				{ 9, middle, 1 }, { 9, middle - delta, 1 },
				{ 9, middle, 1 },
			};

			for (size_t i = 0; i < 5; i++)
				extents[i].offset -= extents[i].offset == UINT64_MAX;
			assert_round_trip(extents, 5);
		}
	}
}

static void round_trip__random(void **state)
{
	static struct wh_extent extents[MANY];
	uint64_t random = 42;

	(void)state;
	for (int round = 0; round < 300; round++) {
		size_t count = 1 + next_random(&random) % MANY;

		for (size_t i = 0; i < count; i++) {
			struct wh_extent *extent = &extents[i];
			uint64_t dice = next_random(&random);

			*extent = i ? extents[i - 1] : (struct wh_extent){ 1, 1 << 20, 64 };
			if (dice % 16 == 0) {
				extent->region = next_random(&random) >> (dice >> 8) % 64;
				extent->offset = next_random(&random) >> (dice >> 16) % 64;
				extent->length = 1 + (next_random(&random) >> (dice >> 24) % 64);
			} else if (dice % 16 < 8) {
				extent->offset += 64;
			} else {
				extent->offset += next_random(&random) >> (dice >> 8) % 64;
			}
			if (!extent->length || extent->offset > UINT64_MAX - extent->length) {
				extent->offset = 0;
				extent->length = 64;
			}
		}
		assert_round_trip(extents, count);
	}
}

/* A request's most extents always fit into its most bytes. */
static void encode__worst_case_fits(void **state)
{
	static struct wh_extent extents[MANY];

	(void)state;
	for (size_t i = 0; i < MANY; i++) {
		extents[i].region = i % 2 ? UINT64_C(1) << 63 : 0;
		extents[i].offset = UINT64_C(1) << 63;
		extents[i].length = (UINT64_C(1) << 63) - 1 - i % 2;
	}
	assert_round_trip(extents, MANY);
}

/* In every size of buffer: what was taken can be read back, what was not changed nothing. */
static void put__no_room(void **state)
{
	struct wh_extent extents[220], got[220];
	uint8_t bytes[400];

	(void)state;
	for (size_t i = 0; i < 220; i++) {
		/* A run of over 64, so that its REPEAT grows to a second byte; then singles. */
		uint64_t jump = i < 120 ? 0 : i % 3 ? i * i : 0;

		extents[i] =
			(struct wh_extent){ 1 + i / 200, (UINT64_C(1) << 40) + 64 * i + jump, 64 };
	}
	for (size_t size = 0; size <= sizeof(bytes); size++) {
		uint8_t *buffer = malloc(size ? size : 1);
		struct wh_extent_writer writer, before;
		size_t taken = 0, length;

		assert_non_null(buffer);
		wh_extents_start(&writer, buffer, size);
		for (; taken < 220; taken++) {
			before = writer;
			if (wh_extents_put(&writer, &extents[taken]))
				break;
		}
		if (taken < 220) {
			assert_int_equal(wh_extents_put(&writer, &extents[taken]), -ENOSPC);
			assert_memory_equal(&before, &writer, sizeof(writer));
		}
		length = wh_extents_end(&writer);
		assert_true(length <= size);
		assert_int_equal(decode(buffer, length, got, 220), (int)taken);
		for (size_t i = 0; i < taken; i++)
			assert_memory_equal(&got[i], &extents[i], sizeof(got[i]));
		if (taken == 220)
			assert_true(size - length < 16); /* no room was wasted */
		free(buffer);
		if (taken == 220)
			return;
	}
	fail();
}

static void decode__cut_off(void **state)
{
	static const struct wh_extent extents[] = {
		{ 1, 1 << 20, 4096 },
		{ 1, 5 << 20, 4096 },
		{ 70000, 1 << 30, 3 },
		{ 70000, 7, 3 },
	};
	struct wh_extent got[8];
	uint8_t bytes[64];
	size_t length = encode(bytes, sizeof(bytes), extents, 4);

	(void)state;
	for (size_t i = 0; i < length; i++) {
		int count = decode(bytes, i, got, 8);

		/* At a border between tokens it is just shorter. */
		assert_true(count == -EPROTO || (count >= 0 && count < 4));
		for (int n = 0; n < count; n++)
			assert_memory_equal(&got[n], &extents[n], sizeof(got[n]));
	}
}

static void decode__bad_starts(void **state)
{
	static const char *const starts[] = {
		"\4", /* DELTA: of what? */
		"\5", /* REPEAT: of what? */
		"\3", /* no such kind */
		"\6\2\1\1", /* SET with a value */
		"\2\2\1", /* cut off */
		"\2\2",     "\2", "\x80",
	};
	struct wh_extent got[4];
	uint8_t bytes[16];

	(void)state;
	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
		assert_int_equal(decode((const uint8_t *)starts[i], strlen(starts[i]), got, 4),
				 -EPROTO);
	/* The same with room for a whole word behind it. */
	for (unsigned token = 0; token < 128; token++) {
		memset(bytes, 0, sizeof(bytes));
		bytes[0] = (uint8_t)token;
		assert_int_equal(decode(bytes, sizeof(bytes), got, 4), -EPROTO);
	}
	assert_int_equal(decode(bytes, put_set(bytes, 1, 5, 0), got, 4), -EPROTO);
}

static void decode__wraps(void **state)
{
	struct wh_extent got[8];
	uint8_t bytes[64];
	size_t set;

	(void)state;
	assert_int_equal(decode(bytes, put_set(bytes, 1, UINT64_MAX, 1), got, 8), -EPROTO);
	assert_int_equal(decode(bytes, put_set(bytes, 1, 1, UINT64_MAX), got, 8), -EPROTO);
	assert_int_equal(decode(bytes, put_set(bytes, 1, UINT64_MAX - 1, 1), got, 8), 1);
	set = put_set(bytes, 1, UINT64_MAX - 20, 10);
	/* One more fits, none after it. */
	assert_int_equal(decode(bytes, set + put_repeat(bytes + set, 1), got, 8), 2);
	assert_int_equal(decode(bytes, set + put_repeat(bytes + set, 2), got, 8), -EPROTO);
	assert_int_equal(decode(bytes, set + put_delta(bytes + set, 1), got, 8), -EPROTO);
	/* Below 0. */
	set = put_set(bytes, 1, 5, 10);
	assert_int_equal(decode(bytes, set + put_delta(bytes + set, (uint64_t)-15), got, 8), 2);
	assert_int_equal(decode(bytes, set + put_delta(bytes + set, (uint64_t)-16), got, 8),
			 -EPROTO);
}

static void decode__repeat_counts(void **state)
{
	static struct wh_extent got[100];
	uint8_t bytes[64];
	size_t set = put_set(bytes, 1, 100, 10);

	(void)state;
	assert_int_equal(decode(bytes, set + put_repeat(bytes + set, 0), got, 100), -EPROTO);
	/* As many as are asked for come, one by one; nothing is allocated for the others. */
	assert_int_equal(decode(bytes, set + put_repeat(bytes + set, UINT64_MAX >> 2), got, 100),
			 100);
	assert_true(got[99].offset == 100 + 99 * 10);
	/* With a step of 0 they would never end: the caller counts. */
	set += put_delta(bytes + set, (uint64_t)-10);
	assert_int_equal(decode(bytes, set + put_repeat(bytes + set, UINT64_MAX >> 2), got, 100),
			 100);
	assert_true(got[1].offset == 100 && got[99].offset == 100);
}

static void decode__varints(void **state)
{
	struct wh_extent got[4];
	uint8_t bytes[64];
	size_t set = put_set(bytes, 1, 100, 10);

	(void)state;
	for (size_t size = 1; size <= 12; size++) {
		/* 0 in that many bytes: longer than it need be, but at most 10. */
		memset(bytes + set, 0x80, size - 1);
		bytes[set + size - 1] = 0;
		assert_int_equal(decode(bytes, set + size, got, 4), size <= 10 ? 2 : -EPROTO);
		memset(bytes + set + size, 0, 16);
		assert_int_equal(decode(bytes, set + size + 1, got, 4), size <= 10 ? 3 : -EPROTO);
		/* Bytes that all go on. */
		memset(bytes + set, 0xff, size);
		assert_int_equal(decode(bytes, set + size, got, 4), -EPROTO);
	}
	for (int tenth = 0; tenth < 256; tenth++) {
		/* A delta of 2^61, or the 65th bit and beyond. */
		memset(bytes + set, 0x80, 9);
		bytes[set + 9] = (uint8_t)tenth;
		assert_int_equal(decode(bytes, set + 10, got, 4), tenth <= 1 ? 2 : -EPROTO);
		if (tenth == 1)
			assert_true(got[1].offset == 110 + (UINT64_C(1) << 60));
	}
	/* The same in each of the three numbers of a SET. */
	for (size_t at = 1; at < 4; at++) {
		static const uint8_t wide[10] = { 0x80, 0x80, 0x80, 0x80, 0x80,
						  0x80, 0x80, 0x80, 0x80, 2 };

		memset(bytes, 1, sizeof(bytes));
		bytes[0] = 2;
		memcpy(bytes + at, wide, 10);
		assert_int_equal(decode(bytes, 13, got, 1), -EPROTO);
		bytes[at + 9] = 1;
		assert_int_equal(decode(bytes, 13, got, 1), 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(encode__bytes),       cmocka_unit_test(encode__strided_is_short),
		cmocka_unit_test(encode__no_extents),  cmocka_unit_test(encode__worst_case_fits),
		cmocka_unit_test(round_trip__corners), cmocka_unit_test(round_trip__every_width),
		cmocka_unit_test(round_trip__random),  cmocka_unit_test(put__no_room),
		cmocka_unit_test(decode__cut_off),     cmocka_unit_test(decode__bad_starts),
		cmocka_unit_test(decode__wraps),       cmocka_unit_test(decode__repeat_counts),
		cmocka_unit_test(decode__varints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
