/* SPDX-License-Identifier: Apache-2.0 */
/* Decode extents; encode what came out; decode that: the same. The first two bytes are the size of
 * the buffer to encode into. */
#include "fuzz.h"

#include <errno.h>

#include "wire/wire.h"

#define MANY (4 * WH_REQUEST_EXTENTS)

static struct wh_extent first[MANY], second[MANY];

static size_t decode(const uint8_t *data, size_t size, struct wh_extent *out)
{
	struct wh_extent_reader reader;
	size_t count = 0;
	int rc = 1;

	wh_extents_open(&reader, data, size);
	while (count < MANY && (rc = wh_extents_next(&reader, &out[count])) == 1) {
		check(out[count].length > 0);
		check(out[count].offset <= UINT64_MAX - out[count].length);
		check(reader.at <= reader.end);
		count++;
	}
	check(rc == 1 || rc == 0 || rc == -EPROTO);
	if (rc != 1)
		check(wh_extents_next(&reader, &out[MANY - 1]) == rc);
	return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t count, room, taken, length;
	struct wh_extent_writer writer;
	uint8_t *bytes;

	if (size < 2)
		return 0;
	room = data[0] | (size_t)data[1] << 8;
	count = decode(data + 2, size - 2, first);
	bytes = malloc(room ? room : 1);
	check(bytes);
	wh_extents_start(&writer, bytes, room);
	for (taken = 0; taken < count; taken++) {
		int rc = wh_extents_put(&writer, &first[taken]);

		if (rc) {
			check(rc == -ENOSPC);
			break;
		}
	}
	length = wh_extents_end(&writer);
	check(length <= room);
	/* What one extent can take at most: a REPEAT before it and a SET. */
	if (taken < count)
		check(room < (taken + 1) * 41);
	check(decode(bytes, length, second) == taken);
	/* Field by field is the same: the struct has no padding. */
	check(!memcmp(first, second, taken * sizeof(first[0])));
	free(bytes);
	return 0;
}
