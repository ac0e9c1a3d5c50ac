/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the CUDA driver allocates, and host memory that it page-locks.
 *
 * Memory is zeroed in a stream of its own: the default stream would wait for the application's
 * kernels, and invalidate a capture in progress.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "memory/memory.h"
#include "util/error.h"

/* The driver's unit of allocation. IPC exports a whole unit: allocate whole ones, so that no other
 * memory is exported. */
#define BLOCK ((size_t)2 << 20)

typedef unsigned long long ull;

static size_t length_round_up(size_t asked, size_t unit)
{
	return asked > SIZE_MAX / 2 - unit ? 0 : (asked + unit - 1) / unit * unit;
}

static int allocation_too_large(const struct wh_allocation *memory)
{
	return wh_fail(ENOMEM, "wh_memory_alloc: no %zu bytes on %s, which has %llu in all",
		       memory->asked, memory->device->text, (ull)memory->device->memory);
}

/* Zero fresh memory and wait for it. */
static int device_zero(struct wh_cuda *cuda, uint64_t address, size_t length, CUstream stream)
{
	int error = wh_cuda_check(cuda, cuda->cuMemsetD8Async(address, 0, length, stream),
				  "cuMemsetD8Async", "%zu bytes at 0x%llx", length, (ull)address);

	if (error)
		return error;
	error = wh_cuda_check(cuda, cuda->cuStreamSynchronize(stream), "cuStreamSynchronize",
			      "zeroing %zu bytes at 0x%llx", length, (ull)address);
	/* The caller frees the memory: the memset must have ended. */
	if (error)
		cuda->cuCtxSynchronize();
	return error;
}

/* ---- cuMemAlloc and others --------------------------------------------- */

static int device_take(struct wh_cuda *cuda, const struct wh_allocation *memory, CUstream stream,
		       uint64_t *out)
{
	const char *where = memory->device->text;

	switch (memory->kind) {
	case WH_MEMORY_POOL:
		if (!memory->device->pools)
			return wh_fail(EOPNOTSUPP,
				       "wh_memory_alloc: %s has no memory pools; use "
				       "WH_MEMORY_DEVICE",
				       where);
		return !cuda->cuMemAllocAsync ?
			       wh_cuda_missing(cuda, "cuMemAllocAsync") :
			       wh_cuda_check(
				       cuda, cuda->cuMemAllocAsync(out, memory->length, stream),
				       "cuMemAllocAsync", "%zu bytes on %s", memory->length, where);
	case WH_MEMORY_MANAGED:
		if (!memory->device->managed)
			return wh_fail(EOPNOTSUPP,
				       "wh_memory_alloc: %s has no managed memory; use "
				       "WH_MEMORY_PINNED or WH_MEMORY_DEVICE",
				       where);
		return !cuda->cuMemAllocManaged ?
			       wh_cuda_missing(cuda, "cuMemAllocManaged") :
			       wh_cuda_check(cuda,
					     cuda->cuMemAllocManaged(out, memory->length,
								     CUDA_MANAGED_GLOBAL),
					     "cuMemAllocManaged", "%zu bytes on %s", memory->length,
					     where);
	default:
		return wh_cuda_check(cuda, cuda->cuMemAlloc(out, memory->length), "cuMemAlloc",
				     "%zu bytes on %s", memory->length, where);
	}
}

static int device_alloc(struct wh_cuda *cuda, struct wh_allocation *memory, CUstream stream)
{
	uint64_t address = 0;
	int error;

	memory->length = length_round_up(memory->asked, BLOCK);
	if (!memory->length)
		return allocation_too_large(memory);
	error = device_take(cuda, memory, stream, &address);
	if (error)
		return error;
	memory->base = (char *)(uintptr_t)address;
	error = device_zero(cuda, address, memory->length, stream);
	if (error)
		cuda->cuMemFree(address);
	return error;
}

/* ---- cuMemCreate ------------------------------------------------------- */

/* For explanations: why memory of this device has no fabric handles. */
static void fabric_keep_reason(struct wh_cuda *cuda, struct wh_cuda_device *device, int result)
{
	wh_cuda_check(cuda, result, "cuMemCreate for NVLink's fabric", NULL);
	pthread_mutex_lock(&device->lock);
	if (!atomic_load(&device->fabric_refused))
		snprintf(device->fabric_why, sizeof(device->fabric_why), "%.*s",
			 (int)sizeof(device->fabric_why) - 1, wh_error_text());
	atomic_store(&device->fabric_refused, true);
	pthread_mutex_unlock(&device->lock);
}

/* For the fabric as well, where the driver allows that: it needs an IMEX channel, so that the first
 * attempt decides for the device. Returns the driver's result. */
static int vmm_create(struct wh_cuda *cuda, size_t length, struct wh_cuda_device *device,
		      const struct wh_cuda_properties *properties, CUallocation *out)
{
	struct wh_cuda_properties both = *properties;
	int result;

	if (!device->fabric || atomic_load(&device->fabric_refused))
		return cuda->cuMemCreate(out, length, properties, 0);
	both.handle_types |= CUDA_HANDLE_FABRIC;
	result = cuda->cuMemCreate(out, length, &both, 0);
	if (!result || wh_cuda_errno(result) == ENOMEM)
		return result;
	fabric_keep_reason(cuda, device, result);
	return cuda->cuMemCreate(out, length, properties, 0);
}

/* Create memory and map it at reserved addresses, with access for its device. */
static int vmm_map(struct wh_cuda *cuda, uint64_t address, size_t length,
		   struct wh_cuda_device *device, const struct wh_cuda_properties *properties)
{
	struct wh_cuda_access access = { properties->location, 3 };
	CUallocation handle;
	int error = wh_cuda_check(cuda, vmm_create(cuda, length, device, properties, &handle),
				  "cuMemCreate", "%zu bytes on %s", length, device->text);

	if (error)
		return error;
	error = wh_cuda_check(cuda, cuda->cuMemMap(address, length, 0, handle, 0), "cuMemMap",
			      "%zu bytes at 0x%llx on %s", length, (ull)address, device->text);
	/* The mapping keeps the memory alive, and yields the handle again when it is exported. */
	cuda->cuMemRelease(handle);
	if (error)
		return error;
	error = wh_cuda_check(cuda, cuda->cuMemSetAccess(address, length, &access, 1),
			      "cuMemSetAccess", "%zu bytes at 0x%llx on %s", length, (ull)address,
			      device->text);
	if (error)
		cuda->cuMemUnmap(address, length);
	return error;
}

static int vmm_alloc(struct wh_cuda *cuda, struct wh_allocation *memory, CUstream stream)
{
	struct wh_cuda_device *device = memory->device;
	struct wh_cuda_properties properties = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = device->posix_fd ? CUDA_HANDLE_FD : CUDA_HANDLE_NONE,
		.location = { CUDA_LOCATION_DEVICE, device->handle },
		.flags.rdma = device->rdma_vmm,
	};
	uint64_t address;
	size_t page;
	int error;

	if (!device->vmm || !cuda->cuMemCreate)
		return wh_fail(
			EOPNOTSUPP,
			"wh_memory_alloc: %s has no virtual memory management (cuMemCreate); use "
			"WH_MEMORY_DEVICE",
			device->text);
	error = wh_cuda_check(
		cuda,
		cuda->cuMemGetAllocationGranularity(&page, &properties, CUDA_GRANULARITY_MINIMUM),
		"cuMemGetAllocationGranularity", "%s", device->text);
	if (error)
		return error;
	memory->length = length_round_up(memory->asked, page > BLOCK ? page : BLOCK);
	if (!memory->length)
		return allocation_too_large(memory);
	error = wh_cuda_check(cuda, cuda->cuMemAddressReserve(&address, memory->length, 0, 0, 0),
			      "cuMemAddressReserve", "%zu bytes", memory->length);
	if (error)
		return error;
	error = vmm_map(cuda, address, memory->length, device, &properties);
	if (error)
		goto err_addresses;
	error = device_zero(cuda, address, memory->length, stream);
	if (error)
		goto err_unmap;
	memory->base = (char *)(uintptr_t)address;
	return 0;

err_unmap:
	cuda->cuMemUnmap(address, memory->length);
err_addresses:
	cuda->cuMemAddressFree(address, memory->length);
	return error;
}

static int vmm_free(struct wh_cuda *cuda, const struct wh_allocation *memory)
{
	uint64_t address = (uintptr_t)memory->base;
	int error = wh_cuda_check(cuda, cuda->cuMemUnmap(address, memory->length), "cuMemUnmap",
				  "%zu bytes at 0x%llx on %s", memory->length, (ull)address,
				  memory->device->text);
	int second = cuda->cuMemAddressFree(address, memory->length);

	return error ? error :
		       wh_cuda_check(cuda, second, "cuMemAddressFree", "%zu bytes at 0x%llx",
				     memory->length, (ull)address);
}

/* ---- host memory ------------------------------------------------------- */

static int mapped_alloc(struct wh_cuda *cuda, struct wh_allocation *memory)
{
	unsigned flags = CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP;
	void *base;
	int error;

	if (memory->flags & WH_MEMORY_WRITE_COMBINED)
		flags |= CUDA_HOST_WRITE_COMBINED;
	memory->length = length_round_up(memory->asked, memory->page_size);
	if (!memory->length)
		return wh_fail(ENOMEM, "wh_memory_alloc: no %zu bytes of address space",
			       memory->asked);
	error = wh_cuda_check(cuda, cuda->cuMemHostAlloc(&base, memory->length, flags),
			      "cuMemHostAlloc", "%zu bytes", memory->length);
	if (error)
		return error;
	memset(base, 0, memory->length);
	memory->base = base;
	return 0;
}

int wh_gpu_pin(struct wh_memory_domain *domain, const struct wh_allocation *memory)
{
	struct wh_cuda *cuda = domain->cuda;
	struct wh_cuda_scope scope;
	int error = wh_cuda_enter(cuda, memory->device, &scope);

	if (error)
		return error;
	error = wh_cuda_check(cuda,
			      cuda->cuMemHostRegister(memory->base, memory->length,
						      CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP),
			      "cuMemHostRegister", "%zu bytes at %p", memory->length,
			      (void *)memory->base);
	wh_cuda_leave(&scope);
	return error;
}

int wh_gpu_unpin(struct wh_memory_domain *domain, const struct wh_allocation *memory)
{
	struct wh_cuda *cuda = domain->cuda;
	struct wh_cuda_scope scope;
	int error = wh_cuda_enter(cuda, memory->device, &scope);

	if (error)
		return error;
	error = wh_cuda_check(cuda, cuda->cuMemHostUnregister(memory->base), "cuMemHostUnregister",
			      "%zu bytes at %p", memory->length, (void *)memory->base);
	wh_cuda_leave(&scope);
	return error;
}

/* ---- all kinds --------------------------------------------------------- */

static int kind_alloc(struct wh_cuda *cuda, struct wh_allocation *memory)
{
	CUstream stream;
	int error;

	if (memory->kind == WH_MEMORY_MAPPED)
		return mapped_alloc(cuda, memory);
	error = wh_cuda_check(cuda, cuda->cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING),
			      "cuStreamCreate", "%s", memory->device->text);
	if (error)
		return error;
	error = memory->kind == WH_MEMORY_VMM ? vmm_alloc(cuda, memory, stream) :
						device_alloc(cuda, memory, stream);
	cuda->cuStreamDestroy(stream);
	return error;
}

int wh_gpu_alloc(struct wh_memory_domain *domain, struct wh_allocation *memory)
{
	struct wh_cuda_scope scope;
	int error = wh_cuda_enter(domain->cuda, memory->device, &scope);

	if (error)
		return error;
	error = kind_alloc(domain->cuda, memory);
	wh_cuda_leave(&scope);
	return error;
}

int wh_gpu_free(struct wh_memory_domain *domain, const struct wh_allocation *memory)
{
	struct wh_cuda *cuda = domain->cuda;
	struct wh_cuda_scope scope;
	int error = wh_cuda_enter(cuda, memory->device, &scope);

	if (error)
		return error;
	if (memory->kind == WH_MEMORY_VMM)
		error = vmm_free(cuda, memory);
	else if (memory->kind == WH_MEMORY_MAPPED)
		error = wh_cuda_check(cuda, cuda->cuMemFreeHost(memory->base), "cuMemFreeHost",
				      "%zu bytes at %p", memory->length, (void *)memory->base);
	else
		error = wh_cuda_check(cuda, cuda->cuMemFree((uintptr_t)memory->base), "cuMemFree",
				      "%zu bytes at %p on %s", memory->length, (void *)memory->base,
				      memory->device->text);
	wh_cuda_leave(&scope);
	return error;
}
