/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where CUDA's memory lies, as its own IPC handles say.
 *
 * cuIpcGetMemHandle() is a documented call; the 64 bytes that it answers with are not. On the
 * drivers with which windows were seen working they carry the client of the resource manager that
 * the process's CUDA uses, the memory object and the allocation's offset in it. What is read is
 * compared with all that is known otherwise.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "platform/cuda.h"
#include "platform/rm.h"
#include "util/error.h"

typedef unsigned long long ull;

enum {
	HANDLE_PID = 8, /* i32, as the process sees itself */
	HANDLE_LENGTH = 16, /* u64, bytes that were asked for */
	HANDLE_PAGES = 24, /* u32, of the object */
	HANDLE_OFFSET = 28, /* u32, bytes from its start */
	HANDLE_CLIENT = 48, /* u32 */
	HANDLE_OBJECT = 52, /* u32 */
};

#define PAGE UINT64_C(4096)
#define GPU_PAGE UINT64_C(65536)

static uint32_t place_number(const unsigned char *handle, unsigned at)
{
	uint32_t number;

	memcpy(&number, handle + at, sizeof(number));
	return number;
}

static int place_refuse(const char *what, ull got, ull wanted)
{
	return wh_fail(EOPNOTSUPP,
		       "cuIpcGetMemHandle's answer is not laid out as on the drivers that are "
		       "known (%s 0x%llx, "
		       "0x%llx expected); name rm-watch or another backend in the setting window",
		       what, got, wanted);
}

int wh_rm_locate(const unsigned char handle[WH_RM_HANDLE], int32_t pid, uint64_t base,
		 uint64_t length, struct wh_rm_location *out)
{
	struct wh_rm_location place = {
		.client = place_number(handle, HANDLE_CLIENT),
		.object = place_number(handle, HANDLE_OBJECT),
		.offset = place_number(handle, HANDLE_OFFSET),
		.object_length = place_number(handle, HANDLE_PAGES) * PAGE,
	};

	memcpy(&place.length, handle + HANDLE_LENGTH, sizeof(place.length));
	if ((int32_t)place_number(handle, HANDLE_PID) != pid)
		return place_refuse("process", place_number(handle, HANDLE_PID), (ull)pid);
	if (!place.length || place.length != length)
		return place_refuse("length", place.length, length);
	if (place.offset > place.object_length || length > place.object_length - place.offset)
		return place_refuse("end in its object", place.offset + length,
				    place.object_length);
	/* Objects are whole pages of the GPU, and mapped as such. */
	if (base < place.offset || (base - place.offset) % GPU_PAGE)
		return place_refuse("offset in its object", place.offset, base % GPU_PAGE);
	if (!place.client || !place.object)
		return place_refuse("client", place.client, 0xc1d00000);
	*out = place;
	return 0;
}

int wh_rm_location(struct wh_cuda *cuda, uint64_t base, uint64_t length, struct wh_rm_location *out)
{
	struct wh_cuda_ipc_handle handle;
	int error = wh_cuda_call(cuda, cuIpcGetMemHandle, &handle, base);

	_Static_assert(sizeof(handle.bytes) == WH_RM_HANDLE, "CUipcMemHandle");
	return error ? error : wh_rm_locate(handle.bytes, getpid(), base, length, out);
}
