/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of records, and their headers. */
#include "wire/record.h"

#include <errno.h>

#include "wire/bytes.h"

#define FROM_OWNER (UINT64_C(1) << 63)

void wh_record_start(struct wh_record_way *way, wh_crc32c *sum, uint32_t first, uint32_t most,
		     bool from_owner)
{
	*way = (struct wh_record_way){
		.sum = sum,
		.first = first,
		.most = most,
		.number = from_owner ? FROM_OWNER : 0,
	};
}

static uint32_t record_sum(const struct wh_record_way *way, const void *bytes, uint32_t length)
{
	uint8_t head[12];
	uint32_t crc;

	wh_put32(wh_put64(head, way->number), length);
	crc = way->sum(way->first, head, sizeof(head));
	return way->sum(crc, bytes, length);
}

void wh_record_seal(struct wh_record_way *way, uint8_t header[WH_RECORD_HEADER], const void *bytes,
		    uint32_t length)
{
	wh_put32(wh_put32(header, length), record_sum(way, bytes, length));
	way->number++;
}

int wh_record_length(const struct wh_record_way *way, const uint8_t header[WH_RECORD_HEADER],
		     uint32_t *length)
{
	uint32_t got = wh_get32(header);

	if (!got || got > way->most)
		return -EBADMSG;
	*length = got;
	return 0;
}

int wh_record_check(struct wh_record_way *way, const uint8_t *record)
{
	uint32_t length;

	if (wh_record_length(way, record, &length) ||
	    record_sum(way, record + WH_RECORD_HEADER, length) != wh_get32(record + 4))
		return -EBADMSG;
	way->number++;
	return 0;
}
