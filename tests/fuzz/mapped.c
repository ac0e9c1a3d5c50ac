/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to a request for a region's memory. */
#include "fuzz.h"

#include <errno.h>

#include "transport/shm/shm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_mapped mapped = { .id = 7 };
	uint8_t bytes[WH_MAPPED_MAX];
	int rc = wh_mapped_decode(data, size, &mapped);

	if (rc) {
		check(rc == -EPROTO && mapped.id == 7);
		return 0;
	}
	check(mapped.error <= 0 && mapped.error >= -4095);
	check(strnlen(mapped.text, WH_REFUSAL) < WH_REFUSAL);
	check_reencoded(bytes, wh_mapped_encode(bytes, &mapped), mapped.text, data, size);
	return 0;
}
