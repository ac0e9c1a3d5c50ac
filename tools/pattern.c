/* SPDX-License-Identifier: Apache-2.0 */
/* The pattern that transfers are checked by: a bijective mix of position and iteration, and its
 * comparison. */
#include "pattern.h"

#include <string.h>

/* Often a thread of an engine has written the bytes that are checked here, and another process has
 * reported that they are complete. The thread sanitizer cannot see that order, and would report a
 * race. */
#define NO_THREAD_SANITIZER __attribute__((no_sanitize("thread")))

#define STEP UINT64_C(0x9e3779b97f4a7c15)
#define FACTOR UINT64_C(0xbf58476d1ce4e5b9)

/* Guards use an iteration that no run reaches. */
#define GUARD_ITERATION (UINT64_MAX - 0x5ea1)

/* Every step is a bijection of 64 bits: within one iteration no two words are equal. */
static inline uint64_t pattern_mix(uint64_t x)
{
	x ^= x >> 29;
	x *= FACTOR;
	return x ^ x >> 32;
}

/* Word number `index` is mix(start(iteration) + index * STEP). A plain sum of the iteration would
 * only shift the sequence of words: start() scatters it first. */
static uint64_t pattern_start(uint64_t iteration)
{
	return pattern_mix(pattern_mix(iteration ^ FACTOR) + STEP);
}

static inline uint64_t little_endian(uint64_t word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	return __builtin_bswap64(word);
#else
	return word;
#endif
}

static uint8_t byte_at(uint64_t position, uint64_t seed)
{
	return (uint8_t)(pattern_mix(seed + position / 8 * STEP) >> position % 8 * 8);
}

NO_THREAD_SANITIZER
void pattern_fill(void *buffer, size_t length, uint64_t position, uint64_t iteration)
{
	uint64_t seed = pattern_start(iteration), state, word;
	uint8_t *at = buffer, *end = at + length;

	for (; at < end && position % 8; at++, position++)
		*at = byte_at(position, seed);
	state = seed + position / 8 * STEP;
	for (; end - at >= 8; at += 8, position += 8, state += STEP) {
		word = little_endian(pattern_mix(state));
		memcpy(at, &word, 8);
	}
	for (; at < end; at++, position++)
		*at = byte_at(position, seed);
}

/* The first wrong byte between `at` and `end`, or PATTERN_RIGHT. */
NO_THREAD_SANITIZER
static size_t check_bytes(const uint8_t *buffer, size_t at, size_t end, uint64_t position,
			  uint64_t seed)
{
	for (; at < end; at++)
		if (buffer[at] != byte_at(position + at, seed))
			return at;
	return PATTERN_RIGHT;
}

NO_THREAD_SANITIZER
size_t pattern_check(const void *buffer, size_t length, uint64_t position, uint64_t iteration)
{
	uint64_t seed = pattern_start(iteration), state, word;
	size_t head = -position % 8, at, wrong;
	const uint8_t *in = buffer;

	if (head > length)
		head = length;
	wrong = check_bytes(in, 0, head, position, seed);
	if (wrong != PATTERN_RIGHT)
		return wrong;
	state = seed + (position + head) / 8 * STEP;
	for (at = head; length - at >= 8; at += 8, state += STEP) {
		memcpy(&word, in + at, 8);
		if (word != little_endian(pattern_mix(state)))
			break;
	}
	/* The last bytes, less than a word, or a word with a wrong byte. */
	return check_bytes(in, at, length - at < 8 ? length : at + 8, position, seed);
}

void pattern_guard_fill(void *guard, size_t length, uint64_t mark)
{
	pattern_fill(guard, length, mark, GUARD_ITERATION);
}

size_t pattern_guard_check(const void *guard, size_t length, uint64_t mark)
{
	return pattern_check(guard, length, mark, GUARD_ITERATION);
}
