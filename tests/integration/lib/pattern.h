/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.h: byte patterns in which each byte depends on its position and on a seed, so that bytes
 * in the wrong location, or of an earlier iteration, are detected */
#ifndef TESTS_INTEGRATION_LIB_PATTERN_H
#define TESTS_INTEGRATION_LIB_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* The result of pattern_check() if every byte is right. */
#define PATTERN_GOOD SIZE_MAX

/* Fill `length` bytes; the first is at `position` of the pattern. */
void pattern_fill(void *at, size_t length, uint64_t position, uint64_t seed);

/* The offset of the first wrong byte, or PATTERN_GOOD. */
size_t pattern_check(const void *at, size_t length, uint64_t position, uint64_t seed);

/* A checksum that depends on the order of the bytes. */
uint64_t pattern_sum(const void *at, size_t length);

/* The next number of a reproducible random sequence. */
uint64_t pattern_random(uint64_t *state);

/* 0 .. count-1 in random order, each multiplied by `step`. */
void pattern_shuffle(uint64_t *out, size_t count, uint64_t step, uint64_t seed);

#endif
