/* SPDX-License-Identifier: Apache-2.0 */
/* A list of region records, and a key. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/memory.h>

#include "wire/wire.h"

static void check_record(const struct wh_region_record *record)
{
	check(record->length && record->address + record->length > record->address);
	check(record->access && record->kind);
	check(strnlen(record->name, WH_NAME_MAX) < WH_NAME_MAX);
}

static void try_records(const uint8_t *data, size_t size)
{
	const uint8_t *at = data, *end = data + size;
	uint8_t bytes[WH_REGION_RECORD_MAX];
	struct wh_region_record record;
	int rc;

	for (;;) {
		const uint8_t *before = at;

		rc = wh_region_decode(&at, end, &record);
		if (rc != 1)
			break;
		check(at > before && at <= end);
		check_record(&record);
		check(wh_region_encode(bytes, &record) == (size_t)(at - before));
		check(!memcmp(bytes, before, (size_t)(at - before)));
	}
	check(rc == 0 ? at == end : rc == -EPROTO);
}

static void try_key(const uint8_t *data, size_t size)
{
	struct wh_region_record record;
	uint8_t bytes[WH_KEY_MAX];
	uint64_t epoch;
	int rc = wh_key_decode(data, size, &epoch, &record);

	if (rc) {
		check(rc == -EINVAL || rc == -EPROTONOSUPPORT);
		return;
	}
	check(epoch);
	check_record(&record);
	check(wh_key_encode(bytes, epoch, &record) == size);
	check(!memcmp(bytes, data, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_records(data, size);
	try_key(data, size);
	return 0;
}
