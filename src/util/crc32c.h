/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected), which finds accidental damage: every burst
 * of up to 32 bits, and other errors but for one in 2^32. It protects against nobody who wants to
 * deceive.
 */
#ifndef WH_UTIL_CRC32C_H
#define WH_UTIL_CRC32C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Continue the checksum `crc` of earlier bytes, 0 if there are none, with `length` bytes more. On
 * any thread. */
typedef uint32_t wh_crc32c(uint32_t crc, const void *bytes, size_t length);

struct wh_crc32c_way {
	const char *name;
	bool (*works)(void); /* on this CPU? */
	wh_crc32c *sum;
};

/* All ways of this architecture, the fastest first. The last one is a table and works everywhere;
 * behind it is one without a name. */
extern const struct wh_crc32c_way wh_crc32c_ways[];

/* The fastest way that works on this CPU. */
const struct wh_crc32c_way *wh_crc32c_choose(void);

#endif
