/* SPDX-License-Identifier: Apache-2.0 */
/* What every unit test includes. */
#ifndef TESTS_UNIT_UNIT_H
#define TESTS_UNIT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

/* A copy in a heap block of just that size, so that ASan and valgrind see a byte too far. */
static inline uint8_t *exact_copy(const void *bytes, size_t length)
{
	uint8_t *copy = malloc(length ? length : 1);

	assert_non_null(copy);
	if (length)
		memcpy(copy, bytes, length);
	return copy;
}

/* Numbers that are the same in every run. */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

#endif
