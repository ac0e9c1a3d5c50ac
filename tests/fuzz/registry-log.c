/* SPDX-License-Identifier: Apache-2.0 */
/* The log of wherry registry: what is taken is written again as it stands there. */
#include "../../tools/registry/log.c"

#include "fuzz.h"

static void try_entry(const uint8_t *bytes, size_t took, const struct log_entry *entry)
{
	uint8_t *again = malloc(took);

	check(again && log_entry_size(entry) == took);
	log_entry_encode(entry, again);
	check(!memcmp(again, bytes, took));
	free(again);
}

/* A mutation hardly ever has the right checksum: it is set right. */
static void mend(uint8_t *bytes, size_t length)
{
	uint32_t size = length < LOG_HEADER ? 0 : wh_get32(bytes);

	if (size && size <= length - LOG_HEADER)
		wh_put32(bytes + 4, log_checksum(bytes + LOG_HEADER, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = malloc(size + 1);
	struct log_entry entry;

	check(bytes);
	for (int mended = 0; mended < 2; mended++) {
		size_t at = 0, took;

		if (size)
			memcpy(bytes, data, size);
		do {
			if (mended && at < size)
				mend(bytes + at, size - at);
			took = log_entry_decode(bytes + at, size - at, &entry);
			check(took <= size - at);
			if (took)
				try_entry(bytes + at, took, &entry);
			/* Where one does not have its length right, the next may begin anywhere. */
			at += took;
		} while (took);
	}
	free(bytes);
	return 0;
}
