/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes by which a transfer can be checked. Every aligned 8 bytes differ from those at any other
 * position and, for all practical purposes, from those of any other iteration: bytes that are
 * misplaced by any multiple of 8, left over from the round before or never written, all show. */
#ifndef TOOLS_PATTERN_H
#define TOOLS_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* What a check returns when every byte is right. */
#define PATTERN_RIGHT SIZE_MAX

/* Bytes to leave before and behind a target, so that a write past either end shows. */
#define PATTERN_GUARD 64

/* Write the `length` bytes of the pattern that start at `position`. A buffer filled in one piece
 * equals one filled in many; positions need no alignment. */
void pattern_fill(void *buffer, size_t length, uint64_t position, uint64_t iteration);

/* Compare. Returns the offset in `buffer` of the first wrong byte, or PATTERN_RIGHT. */
size_t pattern_check(const void *buffer, size_t length, uint64_t position, uint64_t iteration);

/* The same for guard bytes: bytes that no iteration of the pattern has at the position `mark`. Use
 * the guard's own position as `mark`, so that guards of different targets differ. */
void pattern_guard_fill(void *guard, size_t length, uint64_t mark);
size_t pattern_guard_check(const void *guard, size_t length, uint64_t mark);

#endif
