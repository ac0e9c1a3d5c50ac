/* SPDX-License-Identifier: Apache-2.0 */
/* Encode and decode region records, and the exported keys that contain one. */
#include "wire/wire.h"

#include <errno.h>

#include <wherry/memory.h>

#include "wire/bytes.h"

#define KEY_VERSION 1
#define KEY_HEADER 12 /* bytes in front of the record */

_Static_assert(KEY_HEADER + WH_REGION_RECORD_MAX <= WH_KEY_MAX, "the longest key fits");

static bool name_char_is_valid(unsigned char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '.' || c == '_' || c == '-';
}

static bool access_is_valid(uint8_t access)
{
	return access && !(access & ~(WH_ACCESS_READ | WH_ACCESS_WRITE));
}

size_t wh_region_encode(uint8_t *out, const struct wh_region_record *record)
{
	size_t length = strnlen(record->name, WH_NAME_MAX - 1);
	uint8_t *at = out;

	at = wh_put64(at, record->id);
	at = wh_put64(at, record->address);
	at = wh_put64(at, record->length);
	at = wh_put8(at, record->access);
	at = wh_put8(at, record->kind);
	at = wh_put8(at, record->flags);
	at = wh_put8(at, (uint8_t)length);
	at = wh_put_bytes(at, record->name, length);
	return (size_t)(at - out);
}

int wh_region_decode(const uint8_t **in, const uint8_t *end, struct wh_region_record *record)
{
	struct wh_bytes bytes = { .at = *in, .end = end };
	struct wh_region_record got = { 0 };
	size_t length;

	if (bytes.at == end)
		return 0;
	got.id = wh_take64(&bytes);
	got.address = wh_take64(&bytes);
	got.length = wh_take64(&bytes);
	got.access = wh_take8(&bytes);
	got.kind = wh_take8(&bytes);
	got.flags = wh_take8(&bytes);
	length = wh_take8(&bytes);
	if (bytes.cut || length >= WH_NAME_MAX)
		return -EPROTO;
	wh_take_bytes(&bytes, got.name, length);
	if (bytes.cut || !got.length || got.address > UINT64_MAX - got.length ||
	    !access_is_valid(got.access) || got.kind < WH_MEMORY_PAGEABLE ||
	    got.kind > WH_MEMORY_POOL)
		return -EPROTO;
	for (size_t i = 0; i < length; i++) {
		if (!name_char_is_valid((unsigned char)got.name[i]))
			return -EPROTO;
	}
	*record = got;
	*in = bytes.at;
	return 1;
}

size_t wh_key_encode(uint8_t *out, uint64_t epoch, const struct wh_region_record *record)
{
	size_t length = KEY_HEADER + wh_region_encode(out + KEY_HEADER, record);

	out = wh_put8(out, KEY_VERSION);
	out = wh_put8(out, 0);
	out = wh_put16(out, (uint16_t)length);
	wh_put64(out, epoch);
	return length;
}

int wh_key_decode(const uint8_t *in, size_t length, uint64_t *epoch,
		  struct wh_region_record *record)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	uint8_t version = wh_take8(&bytes);
	uint8_t reserved = wh_take8(&bytes);
	uint16_t whole = wh_take16(&bytes);
	struct wh_region_record got;
	uint64_t from;

	/* Every version keeps the version, the reserved byte and the length; the rest may differ.
	 */
	if (bytes.cut || !version || whole != length)
		return -EINVAL;
	if (version != KEY_VERSION)
		return -EPROTONOSUPPORT;
	from = wh_take64(&bytes);
	if (bytes.cut || reserved || !from)
		return -EINVAL;
	if (wh_region_decode(&bytes.at, bytes.end, &got) != 1 || bytes.at != bytes.end)
		return -EINVAL;
	*epoch = from;
	*record = got;
	return 0;
}
