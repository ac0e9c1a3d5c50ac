/* SPDX-License-Identifier: Apache-2.0 */
/* An IPC handle of CUDA's, and what is known of the memory otherwise: process, address, length. */
#include "fuzz.h"

#include <errno.h>

#include "platform/rm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_rm_location entry = { .client = 7 };
	uint64_t base, length;
	int32_t pid;
	int rc;

	if (size != WH_RM_HANDLE + sizeof(pid) + sizeof(base) + sizeof(length))
		return 0;
	memcpy(&pid, data + WH_RM_HANDLE, sizeof(pid));
	memcpy(&base, data + WH_RM_HANDLE + sizeof(pid), sizeof(base));
	memcpy(&length, data + WH_RM_HANDLE + sizeof(pid) + sizeof(base), sizeof(length));
	rc = wh_rm_locate(data, pid, base, length, &entry);
	if (rc) {
		check(rc == -EOPNOTSUPP && entry.client == 7);
		return 0;
	}
	check(entry.client && entry.object && entry.length == length && length);
	check(entry.object_length % 4096 == 0 && entry.offset <= entry.object_length);
	check(length <= entry.object_length - entry.offset);
	check(base >= entry.offset && (base - entry.offset) % 65536 == 0);
	return 0;
}
