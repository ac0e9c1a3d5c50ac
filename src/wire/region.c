/* SPDX-License-Identifier: Apache-2.0 */
/* Encode and decode region records, the exported keys that contain one, and what an initiator and
 * an owner say about regions. */
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

static bool name_is_valid(const char *name, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (!name_char_is_valid((unsigned char)name[i]))
			return false;
	}
	return true;
}

static bool access_is_valid(uint8_t access)
{
	return access && !(access & ~WH_ACCESS_BYTES);
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
	    got.kind > WH_MEMORY_FILE)
		return -EPROTO;
	if (!name_is_valid(got.name, length))
		return -EPROTO;
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

/* ---- questions and removals ----------------------------------------------------------------- */

size_t wh_question_encode(uint8_t *out, const struct wh_question *question)
{
	uint8_t *at = wh_put64(out, question->token);

	at = wh_put8(at, question->kind);
	at = wh_put8(at, 0);
	at = wh_put16(at, 0);
	at = wh_put32(at, question->count);
	if (question->kind == WH_ASK_NAME)
		at = wh_put_bytes(at, question->name, question->count);
	else if (question->kind == WH_ASK_LIST)
		at = wh_put64(at, question->cursor);
	return (size_t)(at - out);
}

void wh_range_encode(uint8_t out[WH_RANGE_SIZE], const struct wh_range *range)
{
	wh_put64(wh_put64(wh_put64(out, range->address), range->length), range->access);
}

/* How many bytes follow the head. */
static size_t question_rest(const struct wh_question *question)
{
	switch (question->kind) {
	case WH_ASK_IDS:
		return 8 * (size_t)question->count;
	case WH_ASK_NAME:
		return question->count;
	case WH_ASK_ADDRESSES:
		return WH_RANGE_SIZE * (size_t)question->count;
	default:
		return 8;
	}
}

int wh_question_decode(const uint8_t *in, size_t length, struct wh_question *question)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_question got = { .token = wh_take64(&bytes) };
	uint32_t most = WH_QUESTION_MAX;
	uint32_t reserved;

	got.kind = wh_take8(&bytes);
	reserved = wh_take8(&bytes);
	reserved |= wh_take16(&bytes);
	got.count = wh_take32(&bytes);
	if (got.kind == WH_ASK_NAME)
		most = WH_NAME_MAX - 1;
	if (bytes.cut || reserved || got.kind < WH_ASK_IDS || got.kind > WH_ASK_LIST ||
	    got.count > most || (size_t)(bytes.end - bytes.at) != question_rest(&got))
		return -EPROTO;
	/* An initiator that knows no region yet asks for no ids. */
	if (!got.count && (got.kind != WH_ASK_IDS || got.token))
		return -EPROTO;
	if (got.kind == WH_ASK_NAME) {
		wh_take_bytes(&bytes, got.name, got.count);
		if (!name_is_valid(got.name, got.count))
			return -EPROTO;
	} else if (got.kind == WH_ASK_LIST) {
		got.cursor = wh_take64(&bytes);
	} else {
		got.entries = bytes.at;
	}
	*question = got;
	return 0;
}

uint64_t wh_question_id(const struct wh_question *question, uint32_t index)
{
	return wh_get64(question->entries + 8 * (size_t)index);
}

bool wh_question_range(const struct wh_question *question, uint32_t index, struct wh_range *range)
{
	const uint8_t *at = question->entries + WH_RANGE_SIZE * (size_t)index;

	range->address = wh_get64(at);
	range->length = wh_get64(at + 8);
	range->access = (uint8_t)(wh_get64(at + 16) & WH_ACCESS_BYTES);
	return range->length && range->access && range->address <= UINT64_MAX - range->length;
}

void wh_removal_encode(uint8_t out[WH_REMOVAL_SIZE], const struct wh_removal *removal)
{
	wh_put64(wh_put64(wh_put64(wh_put64(out, removal->number), removal->id), removal->address),
		 removal->length);
}

int wh_removal_decode(const uint8_t *in, size_t length, struct wh_removal *removal)
{
	if (length != WH_REMOVAL_SIZE)
		return -EPROTO;
	removal->number = wh_get64(in);
	removal->id = wh_get64(in + 8);
	removal->address = wh_get64(in + 16);
	removal->length = wh_get64(in + 24);
	return removal->number && removal->length &&
			       removal->address <= UINT64_MAX - removal->length ?
		       0 :
		       -EPROTO;
}
