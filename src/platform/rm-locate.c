/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the resource manager's object behind CUDA memory, by reading CUDA's own IPC handle.
 *
 * cuIpcGetMemHandle() is documented; the 64 bytes of its handle are not. On the drivers with which
 * windows are known to work, they contain the resource manager's client that CUDA uses in this
 * process, the memory object, and the allocation's offset in it. Every number that can be known
 * otherwise is compared.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "platform/cuda.h"
#include "platform/rm.h"
#include "util/error.h"

typedef unsigned long long ull;

enum {
	HANDLE_PID = 8, /* i32, in the process's own PID namespace */
	HANDLE_LENGTH = 16, /* u64, bytes requested */
	HANDLE_PAGES = 24, /* u32, size of the object in 4 KiB pages */
	HANDLE_OFFSET = 28, /* u32, bytes from the start of the object */
	HANDLE_CLIENT = 48, /* u32 */
	HANDLE_OBJECT = 52, /* u32 */
};

#define PAGE UINT64_C(4096)
#define GPU_PAGE UINT64_C(65536)

static uint32_t location_number(const unsigned char *handle, unsigned at)
{
	uint32_t number;

	memcpy(&number, handle + at, sizeof(number));
	return number;
}

static int location_refuse(const char *what, ull got, ull wanted)
{
	return wh_fail(EOPNOTSUPP,
		       "cuIpcGetMemHandle's handle has an unknown layout (%s 0x%llx, expected "
		       "0x%llx); name rm-watch or another backend in the setting window",
		       what, got, wanted);
}

int wh_rm_locate(const unsigned char handle[WH_RM_HANDLE], int32_t pid, uint64_t base,
		 uint64_t length, struct wh_rm_location *out)
{
	struct wh_rm_location location = {
		.client = location_number(handle, HANDLE_CLIENT),
		.object = location_number(handle, HANDLE_OBJECT),
		.offset = location_number(handle, HANDLE_OFFSET),
		.object_length = location_number(handle, HANDLE_PAGES) * PAGE,
	};

	memcpy(&location.length, handle + HANDLE_LENGTH, sizeof(location.length));
	if ((int32_t)location_number(handle, HANDLE_PID) != pid)
		return location_refuse("process", location_number(handle, HANDLE_PID), (ull)pid);
	if (!location.length || location.length != length)
		return location_refuse("length", location.length, length);
	if (location.offset > location.object_length ||
	    length > location.object_length - location.offset)
		return location_refuse("end in its object", location.offset + length,
				       location.object_length);
	/* Objects start at, and are mapped at, a boundary of the GPU's pages. */
	if (base < location.offset || (base - location.offset) % GPU_PAGE)
		return location_refuse("offset in its object", location.offset, base % GPU_PAGE);
	if (!location.client || !location.object)
		return location_refuse("client", location.client, 0xc1d00000);
	*out = location;
	return 0;
}

int wh_rm_location(struct wh_cuda *cuda, uint64_t base, uint64_t length, struct wh_rm_location *out)
{
	struct wh_cuda_ipc_handle handle;
	int error = wh_cuda_call(cuda, cuIpcGetMemHandle, &handle, base);

	_Static_assert(sizeof(handle.bytes) == WH_RM_HANDLE, "CUipcMemHandle");
	return error ? error : wh_rm_locate(handle.bytes, getpid(), base, length, out);
}
