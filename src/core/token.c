/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A keyed permutation: a Feistel network whose rounds are SipHash-2-4 (Aumasson and Bernstein, 2012). OpenSSL
 * has better ones, but an engine that stays within its process has no OpenSSL.
 */
#include "core/token.h"

#define HALF_BITS (WH_TOKEN_BITS / 2)
#define HALF ((UINT64_C(1) << HALF_BITS) - 1)
/* With four nobody can tell it from chance who sees some numbers; six are for those who see most of them. */
#define ROUNDS 6

static uint64_t rotate(uint64_t x, unsigned bits)
{
	return x << bits | x >> (64 - bits);
}

static void mix(uint64_t v[4], int rounds)
{
	for (int i = 0; i < rounds; i++) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] = rotate(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] = rotate(v[2], 32);
	}
}

static void take(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	mix(v, 2);
	v[0] ^= word;
}

uint64_t wh_token_hash(const uint64_t key[2], uint64_t first, uint64_t second)
{
	uint64_t v[4] = {
		key[0] ^ UINT64_C(0x736f6d6570736575),
		key[1] ^ UINT64_C(0x646f72616e646f6d),
		key[0] ^ UINT64_C(0x6c7967656e657261),
		key[1] ^ UINT64_C(0x7465646279746573),
	};

	take(v, first);
	take(v, second);
	take(v, UINT64_C(16) << 56); /* the length in bytes */
	v[2] ^= 0xff;
	mix(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t wh_token(const uint64_t key[2], uint32_t index, uint64_t use)
{
	uint64_t left = use >> HALF_BITS & HALF, right = use & HALF, next;

	for (uint64_t round = 0; round < ROUNDS; round++) {
		next = left ^ (wh_token_hash(key, round << 32 | index, right) & HALF);
		left = right;
		right = next;
	}
	return left << HALF_BITS | right;
}
