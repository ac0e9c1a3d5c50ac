/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encode and decode lists of extents. Both directions run once per block of a transfer, so tokens
 * of up to 8 bytes are written and read as one 64-bit word, without a loop or a branch on their
 * length.
 */
#include "wire/wire.h"

#include <errno.h>

#include "wire/bytes.h"

enum token_kind {
	TOKEN_DELTA = 0,
	TOKEN_REPEAT = 1,
	TOKEN_SET = 2,
};
#define KIND_BITS 2
#define KIND_MASK 3

#define VARINT_MAX 10 /* bytes */
#define WORD_BITS 56 /* value bits of a varint of 8 bytes */
#define CONTINUES UINT64_C(0x8080808080808080)

static uint64_t zigzag_encode(uint64_t value)
{
	return value << 1 ^ (0 - (value >> 63));
}

static uint64_t zigzag_decode(uint64_t value)
{
	return value >> 1 ^ (0 - (value & 1));
}

static unsigned varint_size(uint64_t value)
{
	unsigned bits = 64 - (unsigned)__builtin_clzll(value | 1);

	return (bits + 6) / 7;
}

/* Spread 56 bits over 8 bytes, 7 bits each. */
static uint64_t bits_spread(uint64_t x)
{
	x = (x & UINT64_C(0x000000000fffffff)) | (x & UINT64_C(0x00fffffff0000000)) << 4;
	x = (x & UINT64_C(0x00003fff00003fff)) | (x & UINT64_C(0x0fffc0000fffc000)) << 2;
	return (x & UINT64_C(0x007f007f007f007f)) | (x & UINT64_C(0x3f803f803f803f80)) << 1;
}

/* The inverse of bits_spread(). */
static uint64_t bits_gather(uint64_t x)
{
	x = (x & UINT64_C(0x007f007f007f007f)) | (x & UINT64_C(0x7f007f007f007f00)) >> 1;
	x = (x & UINT64_C(0x00003fff00003fff)) | (x & UINT64_C(0x3fff00003fff0000)) >> 2;
	return (x & UINT64_C(0x000000000fffffff)) | (x & UINT64_C(0x0fffffff00000000)) >> 4;
}

static uint8_t *varint_put(uint8_t *out, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		*out++ = (uint8_t)(value | 0x80);
	*out++ = (uint8_t)value;
	return out;
}

/* Returns the byte behind the varint. NULL: truncated, or more than 64 bits. */
static const uint8_t *varint_take(const uint8_t *in, const uint8_t *end, uint64_t *out)
{
	uint64_t value = 0;

	for (unsigned shift = 0; in < end && shift < 64; shift += 7) {
		uint8_t byte = *in++;

		/* The tenth byte holds bit 63 only. */
		if (shift == 63 && byte > 1)
			return NULL;
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*out = value;
			return in;
		}
	}
	return NULL;
}

void wh_extents_start(struct wh_extent_writer *writer, uint8_t *buffer, size_t size)
{
	*writer = (struct wh_extent_writer){ .start = buffer, .at = buffer, .end = buffer + size };
}

/* Count one more extent at the same step. Room for the pending REPEAT token is checked here, so
 * that wh_extents_end() never runs out of it. */
static int writer_put_repeat(struct wh_extent_writer *writer, uint64_t offset)
{
	uint64_t token = (writer->repeat + 1) << KIND_BITS | TOKEN_REPEAT;
	size_t room = (size_t)(writer->end - writer->at);

	if (room < VARINT_MAX && room < varint_size(token))
		return -ENOSPC;
	writer->repeat++;
	writer->last.offset = offset;
	return 0;
}

/* The uncommon cases: a SET, a pending REPEAT, less than 8 bytes of room, a wide delta. */
static int writer_put_slowly(struct wh_extent_writer *writer, const struct wh_extent *extent)
{
	uint8_t token[5 * VARINT_MAX], *at = token;
	const struct wh_extent *last = &writer->last;
	uint64_t step = extent->offset - last->offset;
	uint64_t delta = zigzag_encode(step - writer->step);

	if (writer->repeat)
		at = varint_put(at, writer->repeat << KIND_BITS | TOKEN_REPEAT);
	if (extent->region == last->region && extent->length == last->length &&
	    delta <= UINT64_MAX >> KIND_BITS) {
		at = varint_put(at, delta << KIND_BITS | TOKEN_DELTA);
	} else {
		at = varint_put(at, TOKEN_SET);
		at = varint_put(at, zigzag_encode(extent->region - last->region));
		at = varint_put(at, extent->offset);
		at = varint_put(at, extent->length);
		step = extent->length;
	}
	if (at - token > writer->end - writer->at)
		return -ENOSPC;
	writer->at = wh_put_bytes(writer->at, token, (size_t)(at - token));
	writer->last = *extent;
	writer->step = step;
	writer->repeat = 0;
	return 0;
}

int wh_extents_put(struct wh_extent_writer *writer, const struct wh_extent *extent)
{
	uint64_t offset = extent->offset;
	uint64_t step = offset - writer->last.offset;
	uint64_t delta = zigzag_encode(step - writer->step);
	uint64_t token = delta << KIND_BITS | TOKEN_DELTA;
	unsigned size;

	if (extent->region != writer->last.region || extent->length != writer->last.length)
		return writer_put_slowly(writer, extent);
	if (!delta)
		return writer_put_repeat(writer, offset);
	if (writer->repeat || delta >> (WORD_BITS - KIND_BITS) ||
	    writer->end - writer->at < (ptrdiff_t)sizeof(uint64_t))
		return writer_put_slowly(writer, extent);
	size = varint_size(token);
	wh_put64(writer->at,
		 bits_spread(token) | (CONTINUES & ((UINT64_C(1) << 8 * (size - 1)) - 1)));
	writer->at += size;
	writer->last.offset = offset;
	writer->step = step;
	return 0;
}

size_t wh_extents_end(struct wh_extent_writer *writer)
{
	if (writer->repeat)
		writer->at = varint_put(writer->at, writer->repeat << KIND_BITS | TOKEN_REPEAT);
	writer->repeat = 0;
	return (size_t)(writer->at - writer->start);
}

void wh_extents_open(struct wh_extent_reader *reader, const uint8_t *in, size_t length)
{
	*reader = (struct wh_extent_reader){ .at = in, .end = in + length };
}

/* Return an extent with the last region and length. On an error the reader is unchanged, so the
 * next call returns -EPROTO again. */
static inline int reader_next_at(struct wh_extent_reader *reader, const uint8_t *at,
				 uint64_t offset, struct wh_extent *extent)
{
	uint64_t length = reader->last.length;

	if (!length || offset > UINT64_MAX - length)
		return -EPROTO;
	reader->at = at;
	reader->last.offset = offset;
	extent->region = reader->last.region;
	extent->offset = offset;
	extent->length = length;
	return 1;
}

static int reader_next_set(struct wh_extent_reader *reader, const uint8_t *at,
			   struct wh_extent *extent)
{
	uint64_t region, offset, length;

	at = varint_take(at, reader->end, &region);
	if (at)
		at = varint_take(at, reader->end, &offset);
	if (at)
		at = varint_take(at, reader->end, &length);
	if (!at || !length || offset > UINT64_MAX - length)
		return -EPROTO;
	reader->last.region += zigzag_decode(region);
	reader->last.offset = offset;
	reader->last.length = length;
	reader->step = length;
	reader->at = at;
	*extent = reader->last;
	return 1;
}

static int reader_next_repeat(struct wh_extent_reader *reader, const uint8_t *at, uint64_t count,
			      struct wh_extent *extent)
{
	int rc;

	if (!count)
		return -EPROTO;
	rc = reader_next_at(reader, at, reader->last.offset + reader->step, extent);
	if (rc == 1)
		reader->repeat = count - 1;
	return rc;
}

int wh_extents_next(struct wh_extent_reader *reader, struct wh_extent *extent)
{
	const uint8_t *at = reader->at;
	uint64_t token, step;
	int rc;

	if (reader->repeat)
		return reader_next_repeat(reader, at, reader->repeat, extent);
	if (at == reader->end)
		return 0;
	if (reader->end - at >= (ptrdiff_t)sizeof(uint64_t)) {
		uint64_t word = wh_get64(at);
		uint64_t last = ~word & CONTINUES;

		if (last) {
			token = bits_gather(word & (last ^ (last - 1)));
			at += (unsigned)__builtin_ctzll(last) / 8 + 1;
		} else {
			at = varint_take(at, reader->end, &token);
		}
	} else {
		at = varint_take(at, reader->end, &token);
	}
	if (!at)
		return -EPROTO;
	switch (token & KIND_MASK) {
	case TOKEN_DELTA:
		step = reader->step + zigzag_decode(token >> KIND_BITS);
		rc = reader_next_at(reader, at, reader->last.offset + step, extent);
		if (rc == 1)
			reader->step = step;
		return rc;
	case TOKEN_REPEAT:
		return reader_next_repeat(reader, at, token >> KIND_BITS, extent);
	case TOKEN_SET:
		return token == TOKEN_SET ? reader_next_set(reader, at, extent) : -EPROTO;
	default:
		return -EPROTO;
	}
}
