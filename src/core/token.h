/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that cannot be guessed from each other, and of which none comes twice. */
#ifndef WH_CORE_TOKEN_H
#define WH_CORE_TOKEN_H

#include <stdint.h>

#define WH_TOKEN_BITS 42

/* The number of the use `use` of the entry `index`, below 2^WH_TOKEN_BITS: for each index they are all the
 * numbers there are, in an order that only who has the key (of 128 random bits) knows. */
uint64_t wh_token(const uint64_t key[2], uint32_t index, uint64_t use);

/* SipHash-2-4 of two words. */
uint64_t wh_token_hash(const uint64_t key[2], uint64_t first, uint64_t second);

#endif
