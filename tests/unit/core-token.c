/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "core/token.h"

static const uint64_t key[2] = { UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908) };

/* Of 16 bytes that count up: the vector of the paper's authors. */
static void hash__known(void **state)
{
	(void)state;
	assert_true(wh_token_hash(key, UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)) ==
		    UINT64_C(0x3f2acc7f57c29bdb));
}

static int by_value(const void *a, const void *b)
{
	uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

	return one < other ? -1 : one > other;
}

/* Of a million uses none has another's number, and the numbers are all over. */
static void token__never_twice(void **state)
{
	enum { COUNT = 1 << 20 };
	uint64_t *all = malloc(COUNT * sizeof(*all));

	(void)state;
	assert_non_null(all);
	for (uint64_t i = 0; i < COUNT; i++) {
		/* From both ends of what there is. */
		all[i] = wh_token(key, 5, i % 2 ? i : (UINT64_C(1) << WH_TOKEN_BITS) - 1 - i);
		assert_true(all[i] < UINT64_C(1) << WH_TOKEN_BITS);
	}
	qsort(all, COUNT, sizeof(*all), by_value);
	for (size_t i = 1; i < COUNT; i++)
		assert_true(all[i] != all[i - 1]);
	for (size_t i = 0; i < 16; i++)
		assert_in_range(all[i * (COUNT / 16)] >> (WH_TOKEN_BITS - 4), i ? i - 1 : 0, i);
	free(all);
}

static void token__of_its_key_and_entry(void **state)
{
	const uint64_t other[2] = { key[0] ^ 1, key[1] };
	unsigned equal = 0;

	(void)state;
	for (uint64_t use = 0; use < 1000; use++)
		equal += wh_token(key, 1, use) == wh_token(key, 2, use) ||
			 wh_token(key, 1, use) == wh_token(other, 1, use);
	assert_int_equal(equal, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hash__known),
		cmocka_unit_test(token__never_twice),
		cmocka_unit_test(token__of_its_key_and_entry),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
