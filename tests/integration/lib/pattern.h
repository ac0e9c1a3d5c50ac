/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that say where they belong: each depends on its position and on a seed (the iteration). */
#ifndef TESTS_INTEGRATION_LIB_PATTERN_H
#define TESTS_INTEGRATION_LIB_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* What pattern_check() returns if every byte is right. */
#define PATTERN_GOOD SIZE_MAX

/* Fill `length` bytes, the first of which stands at `position`. */
void pattern_fill(void *at, size_t length, uint64_t position, uint64_t seed);

/* Where the first wrong byte is, or PATTERN_GOOD. */
size_t pattern_check(const void *at, size_t length, uint64_t position, uint64_t seed);

/* A checksum in which the order of the bytes counts. */
uint64_t pattern_sum(const void *at, size_t length);

/* The next of a reproducible sequence of random numbers. */
uint64_t pattern_random(uint64_t *state);

/* 0 .. count-1 in a random order, each multiplied by `step`. */
void pattern_shuffle(uint64_t *out, size_t count, uint64_t step, uint64_t seed);

#endif
