/* SPDX-License-Identifier: Apache-2.0 */
/* A byte pattern for checking transfers. Every aligned 8 bytes differ from those at any other
 * position and, for all practical purposes, from those of any other iteration. Bytes that were
 * misplaced by a multiple of 8, left over from an earlier round, or never written are all
 * detected. */
#ifndef TOOLS_PATTERN_H
#define TOOLS_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* The result of a check when every byte is right. */
#define PATTERN_RIGHT SIZE_MAX

/* Guard bytes before and after a target detect writes past either end. */
#define PATTERN_GUARD 64

/* Write the `length` bytes of the pattern that start at `position`. Filling a buffer in parts gives
 * the same bytes as filling it at once; positions need no alignment. */
void pattern_fill(void *buffer, size_t length, uint64_t position, uint64_t iteration);

/* Compare. Returns the offset in `buffer` of the first wrong byte, or PATTERN_RIGHT. */
size_t pattern_check(const void *buffer, size_t length, uint64_t position, uint64_t iteration);

/* Fill and check guard bytes: bytes that no iteration of the pattern has at position `mark`. Use
 * the guard's own position as `mark`, so that guards of different targets differ. */
void pattern_guard_fill(void *guard, size_t length, uint64_t mark);
size_t pattern_guard_check(const void *guard, size_t length, uint64_t mark);

#endif
