/* SPDX-License-Identifier: Apache-2.0 */
/* The offer of slots of memory, and the answer. */
#include "fuzz.h"

#include <errno.h>

#include "transport/shm/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_LEND_SIZE];
	uint32_t count = 0;
	int error = 1, rc = wh_lend_decode(data, size, &count);

	check(rc ? rc == -EPROTO && !count : count && count <= WH_REQUEST_SLOTS);
	if (!rc) {
		wh_lend_encode(bytes, count);
		check(!memcmp(bytes, data, WH_LEND_SIZE));
	}
	rc = wh_lent_decode(data, size, &error);
	check(rc ? rc == -EPROTO && error == 1 : error <= 0 && error >= -4095);
	if (!rc) {
		wh_lent_encode(bytes, error);
		check(!memcmp(bytes, data, WH_LENT_SIZE));
	}
	return 0;
}
