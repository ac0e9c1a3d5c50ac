/* SPDX-License-Identifier: Apache-2.0 */
#include "../../tools/pattern.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define LENGTH 4096

static void fill__pieces_equal_whole(void **state)
{
	uint8_t whole[LENGTH], pieces[LENGTH];
	uint64_t position = 1234567;

	(void)state;
	pattern_fill(whole, LENGTH, position, 3);
	for (size_t at = 0, step = 1; at < LENGTH; at += step, step = step % 37 + 1)
		pattern_fill(pieces + at, step < LENGTH - at ? step : LENGTH - at, position + at,
			     3);
	assert_memory_equal(whole, pieces, LENGTH);
}

static void fill__stays_inside(void **state)
{
	uint8_t buffer[64];

	(void)state;
	for (size_t start = 0; start < 17; start++) {
		for (size_t length = 0; length < 33; length++) {
			memset(buffer, 0, sizeof(buffer));
			pattern_fill(buffer + start, length, 5, 1);
			for (size_t i = 0; i < start; i++)
				assert_int_equal(buffer[i], 0);
			for (size_t i = start + length; i < sizeof(buffer); i++)
				assert_int_equal(buffer[i], 0);
		}
	}
}

static void check__right_at_every_alignment(void **state)
{
	uint8_t buffer[128];

	(void)state;
	for (uint64_t position = 0; position < 19; position++) {
		for (size_t length = 0; length < 64; length++) {
			pattern_fill(buffer + 3, length, position, 9);
			assert_true(pattern_check(buffer + 3, length, position, 9) ==
				    PATTERN_RIGHT);
		}
	}
}

static void check__names_first_wrong_byte(void **state)
{
	uint8_t buffer[100];

	(void)state;
	for (size_t wrong = 0; wrong < sizeof(buffer); wrong++) {
		pattern_fill(buffer, sizeof(buffer), 77, 2);
		buffer[wrong] ^= 0x10;
		assert_int_equal(pattern_check(buffer, sizeof(buffer), 77, 2), wrong);
		buffer[sizeof(buffer) - 1] ^= 1;
		assert_int_equal(pattern_check(buffer, sizeof(buffer), 77, 2), wrong);
	}
}

static void check__sees_other_iteration(void **state)
{
	uint8_t buffer[LENGTH];

	(void)state;
	pattern_fill(buffer, LENGTH, 0, 7);
	for (uint64_t iteration = 0; iteration < 1000; iteration++) {
		size_t wrong = pattern_check(buffer, LENGTH, 0, iteration);

		if (iteration == 7)
			assert_true(wrong == PATTERN_RIGHT);
		else
			assert_true(wrong < 8);
	}
}

/* A check that repeats itself every 2 MiB lets bytes pass that lie 2 MiB off. */
static void check__sees_misplacement(void **state)
{
	uint8_t buffer[64];

	(void)state;
	for (unsigned shift = 3; shift < 48; shift++) {
		pattern_fill(buffer, sizeof(buffer), UINT64_C(1) << shift, 1);
		assert_true(pattern_check(buffer, sizeof(buffer), 0, 1) < 8);
	}
}

static void check__sees_neighbouring_words(void **state)
{
	uint64_t words[512];

	(void)state;
	pattern_fill(words, sizeof(words), 0, 0);
	for (size_t i = 0; i < 512; i++)
		for (size_t k = i + 1; k < 512; k++)
			assert_true(words[i] != words[k]);
}

static void guard__is_no_pattern(void **state)
{
	uint8_t guard[PATTERN_GUARD];

	(void)state;
	pattern_guard_fill(guard, sizeof(guard), 4096);
	assert_true(pattern_guard_check(guard, sizeof(guard), 4096) == PATTERN_RIGHT);
	assert_true(pattern_guard_check(guard, sizeof(guard), 8192) < 8);
	for (uint64_t iteration = 0; iteration < 1000; iteration++)
		assert_true(pattern_check(guard, sizeof(guard), 4096, iteration) < 8);
	guard[63]++;
	assert_int_equal(pattern_guard_check(guard, sizeof(guard), 4096), 63);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fill__pieces_equal_whole),
		cmocka_unit_test(fill__stays_inside),
		cmocka_unit_test(check__right_at_every_alignment),
		cmocka_unit_test(check__names_first_wrong_byte),
		cmocka_unit_test(check__sees_other_iteration),
		cmocka_unit_test(check__sees_misplacement),
		cmocka_unit_test(check__sees_neighbouring_words),
		cmocka_unit_test(guard__is_no_pattern),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
