/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.c: byte patterns that depend on position and seed */
#include "pattern.h"

#include <string.h>

/* Another process orders these accesses relative to the engine's, where ThreadSanitizer cannot see
 * it. */
#define ORDERED_ELSEWHERE __attribute__((no_sanitize("thread")))

static inline uint64_t pattern_mix(uint64_t x)
{
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	return x ^ x >> 32;
}

/* The eight bytes at position 8 * index of the pattern. */
static inline uint64_t pattern_word(uint64_t index, uint64_t seed)
{
	return pattern_mix(index + seed * UINT64_C(0x9e3779b97f4a7c15) + 1);
}

static inline unsigned char pattern_byte(uint64_t position, uint64_t seed)
{
	return (unsigned char)(pattern_word(position / 8, seed) >> position % 8 * 8);
}

ORDERED_ELSEWHERE void pattern_fill(void *at, size_t length, uint64_t position, uint64_t seed)
{
	unsigned char *out = at;

	for (; length && position % 8; length--)
		*out++ = pattern_byte(position++, seed);
	for (; length >= 8; length -= 8, position += 8, out += 8) {
		uint64_t value = pattern_word(position / 8, seed);

		memcpy(out, &value, 8);
	}
	for (; length; length--)
		*out++ = pattern_byte(position++, seed);
}

ORDERED_ELSEWHERE size_t pattern_check(const void *at, size_t length, uint64_t position,
				       uint64_t seed)
{
	const unsigned char *in = at;
	size_t i = 0;

	while (i < length) {
		if (position % 8 == 0 && length - i >= 8) {
			uint64_t value;

			memcpy(&value, in + i, 8);
			if (value == pattern_word(position / 8, seed)) {
				i += 8;
				position += 8;
				continue;
			}
		}
		if (in[i] != pattern_byte(position, seed))
			return i;
		i++;
		position++;
	}
	return PATTERN_GOOD;
}

ORDERED_ELSEWHERE uint64_t pattern_sum(const void *at, size_t length)
{
	const unsigned char *in = at;
	uint64_t sum = length;
	size_t i = 0;

	for (; length - i >= 8; i += 8) {
		uint64_t value;

		memcpy(&value, in + i, 8);
		sum = (sum << 5 | sum >> 59) ^ value;
		sum *= UINT64_C(0x9e3779b97f4a7c15);
	}
	for (; i < length; i++)
		sum = (sum ^ in[i]) * UINT64_C(0x100000001b3);
	return pattern_mix(sum);
}

uint64_t pattern_random(uint64_t *state)
{
	*state += UINT64_C(0x9e3779b97f4a7c15);
	return pattern_mix(*state);
}

void pattern_shuffle(uint64_t *out, size_t count, uint64_t step, uint64_t seed)
{
	for (size_t i = 0; i < count; i++)
		out[i] = i * step;
	for (size_t i = count; i > 1; i--) {
		size_t j = pattern_random(&seed) % i;
		uint64_t other = out[j];

		out[j] = out[i - 1];
		out[i - 1] = other;
	}
}
