/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of errors, and cuGetProcAddress(). */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

static const struct {
	int error;
	const char *name, *text;
} errors[] = {
	{ 0, "CUDA_SUCCESS", "no error" },
	{ 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ 4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down" },
	{ 46, "CUDA_ERROR_DEVICE_UNAVAILABLE",
	  "CUDA-capable device(s) is/are busy or unavailable" },
	{ 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid" },
	{ 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ 205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed" },
	{ 209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
	  "no kernel image is available for execution on the device" },
	{ 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered" },
	{ 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
	  "peer access is not supported between these two devices" },
	{ 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed" },
	{ 220, "CUDA_ERROR_NVLINK_UNCORRECTABLE",
	  "uncorrectable NVLink error detected during the execution" },
	{ 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
	  "the provided PTX was compiled with an unsupported toolchain." },
	{ 304, "CUDA_ERROR_OPERATING_SYSTEM",
	  "OS call failed or operation not supported on this OS" },
	{ 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
	{ 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ 600, "CUDA_ERROR_NOT_READY", "device not ready" },
	{ 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
	{ 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch" },
	{ 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated" },
	{ 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled" },
	{ 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled" },
	{ 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed" },
	{ 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	  "part or all of the requested memory range is already mapped" },
	{ 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	  "pointer does not correspond to a registered memory region" },
	{ 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address" },
	{ 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
	{ 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted" },
	{ 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
	{ 802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized" },
	{ 999, "CUDA_ERROR_UNKNOWN", "unknown error" },
};

static int error_word(int error, bool text, const char **out)
{
	if (!out)
		return FAKE_INVALID_VALUE;
	*out = NULL;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].error == error)
			*out = text ? errors[i].text : errors[i].name;
	return *out ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE_API int cuGetErrorName(int error, const char **out)
{
	return error_word(error, false, out);
}

FAKE_API int cuGetErrorString(int error, const char **out)
{
	return error_word(error, true, out);
}

/* ---- functions by name ----------------------------------------------------------------------- */

/* Functions with several versions, newest first, and functions that old drivers lack: name without
 * suffix, suffix, first CUDA version. All others have no suffix and exist in every version. */
static const struct {
	const char *name, *suffix;
	int since;
} versions[] = {
	{ "cuCtxCreate", "_v2", 3020 },
	{ "cuCtxDestroy", "_v2", 4000 },
	{ "cuCtxPopCurrent", "_v2", 4000 },
	{ "cuCtxPushCurrent", "_v2", 4000 },
	{ "cuDeviceGetUuid", "_v2", 11040 },
	{ "cuDeviceGetUuid", "", 9020 },
	{ "cuDevicePrimaryCtxRelease", "_v2", 11000 },
	{ "cuDevicePrimaryCtxSetFlags", "_v2", 11000 },
	{ "cuDeviceTotalMem", "_v2", 3020 },
	{ "cuEventDestroy", "_v2", 4000 },
	{ "cuEventElapsedTime", "_v2", 12080 },
	{ "cuEventElapsedTime", "", 2000 },
	{ "cuFlushGPUDirectRDMAWrites", "", 11030 },
	{ "cuGetProcAddress", "_v2", 12000 },
	{ "cuIpcOpenMemHandle", "_v2", 11000 },
	{ "cuLaunchKernelEx", "", 11060 },
	{ "cuMemAddressFree", "", 10020 },
	{ "cuMemAddressReserve", "", 10020 },
	{ "cuMemAlloc", "_v2", 3020 },
	{ "cuMemAllocAsync", "", 11020 },
	{ "cuMemAllocFromPoolAsync", "", 11020 },
	{ "cuMemPoolCreate", "", 11020 },
	{ "cuMemPoolDestroy", "", 11020 },
	{ "cuMemAllocHost", "_v2", 3020 },
	{ "cuMemCreate", "", 10020 },
	{ "cuMemExportToShareableHandle", "", 10020 },
	{ "cuMemFree", "_v2", 3020 },
	{ "cuMemFreeAsync", "", 11020 },
	{ "cuMemGetAddressRange", "_v2", 3020 },
	{ "cuMemGetHandleForAddressRange", "", 11070 },
	{ "cuMemGetInfo", "_v2", 3020 },
	{ "cuMemHostGetDevicePointer", "_v2", 3020 },
	{ "cuMemHostRegister", "_v2", 6050 },
	{ "cuMemImportFromShareableHandle", "", 10020 },
	{ "cuMemMap", "", 10020 },
	{ "cuMemRelease", "", 10020 },
	{ "cuMemRetainAllocationHandle", "", 11000 },
	{ "cuMemSetAccess", "", 10020 },
	{ "cuMemUnmap", "", 10020 },
	{ "cuMemcpyBatchAsync", "_v2", 13000 },
	{ "cuMemcpyBatchAsync", "", 12080 },
	{ "cuMemcpyDtoD", "_v2", 3020 },
	{ "cuMemcpyDtoDAsync", "_v2", 3020 },
	{ "cuMemcpyDtoH", "_v2", 3020 },
	{ "cuMemcpyDtoHAsync", "_v2", 3020 },
	{ "cuMemcpyHtoD", "_v2", 3020 },
	{ "cuMemcpyHtoDAsync", "_v2", 3020 },
	{ "cuMemsetD8", "_v2", 3020 },
	{ "cuStreamDestroy", "_v2", 4000 },
	{ "cuStreamWaitValue32", "_v2", 11070 },
	{ "cuStreamWriteValue32", "_v2", 11070 },
};

/* The library is usually loaded with RTLD_LOCAL, so only its own handle finds its symbols. */
static void *own_symbol(const char *name)
{
	Dl_info info;
	void *self, *symbol;

	if (!dladdr(&fake_lock, &info))
		return NULL;
	self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!self)
		return NULL;
	symbol = dlsym(self, name);
	dlclose(self);
	return symbol;
}

enum { QUERY_FOUND, QUERY_NOT_FOUND, QUERY_TOO_OLD };

static int symbol_resolve(const char *name, int version, void **out)
{
	const char *suffix = "";
	bool listed = false, found = false;
	char full[128];

	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]) && !found; i++) {
		if (strcmp(versions[i].name, name) != 0)
			continue;
		listed = true;
		found = versions[i].since <= version &&
			versions[i].since <= fake_settings()->driver;
		suffix = versions[i].suffix;
	}
	if (listed && !found)
		return QUERY_TOO_OLD;
	if (strncmp(name, "cu", 2) != 0 ||
	    snprintf(full, sizeof(full), "%s%s", name, suffix) >= (int)sizeof(full) ||
	    (!listed && strstr(name, "_v")))
		return QUERY_NOT_FOUND;
	*out = own_symbol(full);
	return *out ? QUERY_FOUND : QUERY_NOT_FOUND;
}

FAKE_API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
				 int *status)
{
	void *symbol = NULL;
	int is;

	FAKE_ENTER_WITH(fake_enter_uninitialised);
	if (!name || !out || flags > 2)
		return FAKE_INVALID_VALUE;
	is = symbol_resolve(name, version, &symbol);
	*out = symbol;
	if (status)
		*status = is;
	return FAKE_OK; /* also if *out is NULL */
}

FAKE_API int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
	FAKE_ENTER_WITH(fake_enter_uninitialised);
	return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
