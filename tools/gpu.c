/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver for the benchmark: its functions resolved at run time, contexts, copies, the list
 * of GPUs. */
#include "gpu.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define POINTER_MEMORY_TYPE 2
#define POINTER_DEVICE_ORDINAL 9
#define MEMORY_TYPE_DEVICE 2

static int gpu_resolve(struct gpu *gpu, void *library, char text[GPU_TEXT])
{
	void *symbol;

#define RESOLVE(name, parameters, from)                                                            \
	symbol = dlsym(library, from);                                                             \
	if (!symbol) {                                                                             \
		snprintf(text, GPU_TEXT, "this CUDA driver has no %s: it is too old", from);       \
		return -1;                                                                         \
	}                                                                                          \
	memcpy(&gpu->name, &symbol, sizeof(symbol));
	GPU_FUNCTIONS(RESOLVE)
#undef RESOLVE
	return 0;
}

struct gpu *gpu_open(const char *path, char text[GPU_TEXT])
{
	void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	struct gpu *gpu;

	if (!library) {
		snprintf(text, GPU_TEXT, "%s", dlerror());
		return NULL;
	}
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu) {
		snprintf(text, GPU_TEXT, "no memory");
		return NULL;
	}
	/* Stays loaded: an initialised driver has threads. */
	if (gpu_resolve(gpu, library, text) || gpu_call(gpu, cuInit, 0)) {
		if (gpu->text[0])
			memcpy(text, gpu->text, GPU_TEXT);
		free(gpu);
		return NULL;
	}
	return gpu;
}

void gpu_close(struct gpu *gpu)
{
	int device;

	for (int i = 0; gpu && i < GPU_MOST; i++)
		if (gpu->context[i] && !gpu->cuDeviceGet(&device, i))
			gpu->cuDevicePrimaryCtxRelease(device);
	free(gpu);
}

int gpu_check(struct gpu *gpu, int result, const char *call)
{
	const char *name = NULL;

	if (!result)
		return 0;
	gpu->cuGetErrorName(result, &name);
	snprintf(gpu->text, sizeof(gpu->text), "%s: %s (%d)", call, name ? name : "unknown error",
		 result);
	return -EIO;
}

int gpu_enter(struct gpu *gpu, int ordinal)
{
	int device, error = 0;

	if (ordinal < 0 || ordinal >= GPU_MOST) {
		snprintf(gpu->text, sizeof(gpu->text), "there is no GPU number %d", ordinal);
		return -EIO;
	}
	if (!gpu->context[ordinal]) {
		error = gpu_call(gpu, cuDeviceGet, &device, ordinal);
		if (!error)
			error = gpu_call(gpu, cuDevicePrimaryCtxRetain, &gpu->context[ordinal],
					 device);
		if (error)
			gpu->context[ordinal] = NULL;
	}
	return error ? error : gpu_call(gpu, cuCtxPushCurrent, gpu->context[ordinal]);
}

void gpu_leave(struct gpu *gpu)
{
	void *context;

	gpu->cuCtxPopCurrent(&context);
}

int gpu_of(struct gpu *gpu, const void *address, int *ordinal)
{
	return gpu_call(gpu, cuPointerGetAttribute, ordinal, POINTER_DEVICE_ORDINAL,
			(uint64_t)(uintptr_t)address);
}

static bool is_device(struct gpu *gpu, const void *address)
{
	unsigned type = 0;

	return !gpu->cuPointerGetAttribute(&type, POINTER_MEMORY_TYPE,
					   (uint64_t)(uintptr_t)address) &&
	       type == MEMORY_TYPE_DEVICE;
}

int gpu_copy(struct gpu *gpu, void *to, const void *from, size_t length)
{
	int ordinal, error = gpu_of(gpu, is_device(gpu, to) ? to : from, &ordinal);

	if (!error)
		error = gpu_enter(gpu, ordinal);
	if (error)
		return error;
	error = gpu_call(gpu, cuMemcpy, (uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, length);
	/* A copy between GPUs does not wait by itself. */
	if (!error)
		error = gpu_call(gpu, cuStreamSynchronize, NULL);
	gpu_leave(gpu);
	return error;
}

static void write_uuid(const unsigned char bytes[16], char out[48])
{
	size_t at = (size_t)snprintf(out, 48, "GPU");

	for (int i = 0; i < 16; i++)
		at += (size_t)snprintf(out + at, 48 - at, "%s%02x",
				       !i || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				       bytes[i]);
}

int gpu_list(struct gpu *gpu, struct gpu_name *out, size_t *count, int *driver)
{
	int devices, device, error = gpu_call(gpu, cuDeviceGetCount, &devices);
	unsigned char uuid[16];

	*count = 0;
	if (!error)
		error = gpu_call(gpu, cuDriverGetVersion, driver);
	for (int i = 0; !error && i < devices && i < GPU_MOST; i++) {
		struct gpu_name *name = &out[i];

		name->ordinal = i;
		error = gpu_call(gpu, cuDeviceGet, &device, i);
		if (!error)
			error = gpu_call(gpu, cuDeviceGetName, name->name, sizeof(name->name),
					 device);
		if (!error)
			error = gpu_call(gpu, cuDeviceGetUuid, uuid, device);
		if (!error)
			error = gpu_call(gpu, cuDeviceGetPCIBusId, name->pci, sizeof(name->pci),
					 device);
		if (error)
			return error;
		write_uuid(uuid, name->uuid);
		for (char *c = name->pci; *c; c++)
			*c = (char)tolower((unsigned char)*c);
		*count = (size_t)i + 1;
	}
	return error;
}
