/* SPDX-License-Identifier: Apache-2.0 */
/* How small the parts and pieces of an offered file may be. */
#include "../../tools/spread/message.c"

#include "unit.h"

#define GIB (UINT64_C(1) << 30)

static const char *wrong(uint64_t size, uint64_t chunk, uint64_t piece, uint64_t receivers)
{
	const struct spread_message offer = { .size = size, .chunk = chunk, .piece = piece };

	return spread_sizes_wrong(&offer, receivers);
}

static void sizes__defaults(void **state)
{
	(void)state;
	assert_null(wrong(UINT64_MAX, 0, 0, 500));
	assert_null(wrong(2048 * GIB, DEFAULT_PART, DEFAULT_PIECE, 500));
}

static void sizes__small(void **state)
{
	(void)state;
	assert_null(wrong(100000000, 256 << 10, 32 << 10, 4));
	assert_null(wrong(SPREAD_PARTS - 1, 1, 0, 1));
	assert_null(wrong(SPREAD_PIECES - 1, 0, 1, 1));
	assert_non_null(wrong(SPREAD_PARTS, 1, 0, 1));
	assert_non_null(wrong(SPREAD_PARTS / 2, 1, 0, 2));
	assert_non_null(wrong(SPREAD_PIECES, 0, 1, 1));
	/* The smallest offer of all: a byte a part. */
	assert_non_null(wrong(GIB, 1, 1, 1));
	assert_non_null(wrong(GIB, 1, 0, UINT64_MAX));
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(sizes__defaults),
	cmocka_unit_test(sizes__small),
};

int main(void)
{
	return cmocka_run_group_tests_name("tools-spread-message", tests, NULL, NULL);
}
