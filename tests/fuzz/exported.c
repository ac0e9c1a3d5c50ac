/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to a request for a segment of a GPU's memory. */
#include "fuzz.h"

#include <errno.h>

#include "transport/shm/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_exported exported = { .id = 7 };
	uint8_t bytes[WH_EXPORTED_MAX];
	int rc = wh_exported_decode(data, size, &exported);

	if (rc) {
		check(rc == -EPROTO && exported.id == 7);
		return 0;
	}
	check(exported.error <= 0 && exported.error >= -4095);
	check(strnlen(exported.text, WH_REFUSAL) < WH_REFUSAL);
	if (!exported.error) {
		check(exported.index < exported.segments);
		check(exported.address >= exported.base);
		check(exported.address - exported.base + exported.length <= exported.size);
	}
	check_reencoded(bytes, wh_exported_encode(bytes, &exported), exported.text, data, size);
	return 0;
}
