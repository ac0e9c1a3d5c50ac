/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read and write little-endian integers in byte buffers. wh_put*() writes without bounds checks:
 * the caller provides enough room. wh_take*() reads through a cursor that never passes its end.
 */
#ifndef WH_WIRE_BYTES_H
#define WH_WIRE_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "util/text.h"

/* Each writes one value and returns the address behind it. */
static inline uint8_t *wh_put8(uint8_t *out, uint8_t value)
{
	*out = value;
	return out + 1;
}

static inline uint8_t *wh_put16(uint8_t *out, uint16_t value)
{
	value = htole16(value);
	memcpy(out, &value, sizeof(value));
	return out + sizeof(value);
}

static inline uint8_t *wh_put32(uint8_t *out, uint32_t value)
{
	value = htole32(value);
	memcpy(out, &value, sizeof(value));
	return out + sizeof(value);
}

static inline uint8_t *wh_put64(uint8_t *out, uint64_t value)
{
	value = htole64(value);
	memcpy(out, &value, sizeof(value));
	return out + sizeof(value);
}

static inline uint8_t *wh_put_bytes(uint8_t *out, const void *bytes, size_t length)
{
	memcpy(out, bytes, length);
	return out + length;
}

static inline uint32_t wh_get32(const uint8_t *in)
{
	uint32_t value;

	memcpy(&value, in, sizeof(value));
	return le32toh(value);
}

static inline uint64_t wh_get64(const uint8_t *in)
{
	uint64_t value;

	memcpy(&value, in, sizeof(value));
	return le64toh(value);
}

/* A cursor over bytes that may end too early. A read past the end returns 0 and sets `cut`; all
 * later reads return 0, too. So a decoder reads all its fields and then tests `cut` once. */
struct wh_bytes {
	const uint8_t *at, *end;
	bool cut;
};

static inline void wh_take_bytes(struct wh_bytes *in, void *out, size_t length)
{
	if (in->cut || (size_t)(in->end - in->at) < length) {
		in->cut = true;
		memset(out, 0, length);
		return;
	}
	memcpy(out, in->at, length);
	in->at += length;
}

/* Read a text for people: `length` bytes and a NUL into `out`, which has room for length + 1. No
 * engine sends control characters, so one sets `cut`. wh_text_clean() replaces other bytes that
 * cannot be shown: they are valid where the sender truncated its text within a character. */
static inline void wh_take_text(struct wh_bytes *in, char *out, size_t length)
{
	wh_take_bytes(in, out, length);
	out[length] = '\0';
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)out[i] < ' ' || out[i] == 0x7f)
			in->cut = true;
	wh_text_clean(out);
}

static inline uint8_t wh_take8(struct wh_bytes *in)
{
	uint8_t value;

	wh_take_bytes(in, &value, sizeof(value));
	return value;
}

static inline uint16_t wh_take16(struct wh_bytes *in)
{
	uint16_t value;

	wh_take_bytes(in, &value, sizeof(value));
	return le16toh(value);
}

static inline uint32_t wh_take32(struct wh_bytes *in)
{
	uint32_t value;

	wh_take_bytes(in, &value, sizeof(value));
	return le32toh(value);
}

static inline uint64_t wh_take64(struct wh_bytes *in)
{
	uint64_t value;

	wh_take_bytes(in, &value, sizeof(value));
	return le64toh(value);
}

#endif
