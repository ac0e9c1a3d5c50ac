/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an address is, as the CUDA driver tells it.
 *
 * Attributes are asked for one by one. cuPointerGetAttributes() would answer them all at once, but
 * it succeeds with zeroes for addresses that it does not know, and with an error for all of them if
 * an older driver does not know one attribute.
 */
#include <errno.h>
#include <string.h>

#include "platform/cuda.h"
#include "util/error.h"

typedef unsigned long long ull;

/* An attribute that this driver or this kind of memory has not leaves *out as it is. */
static void ask(const struct wh_cuda *cuda, int attribute, uint64_t address, void *out, size_t size)
{
	union {
		uint64_t number;
		unsigned char bytes[8];
	} value = { 0 };

	if (!cuda->cuPointerGetAttribute(&value, attribute, address))
		memcpy(out, value.bytes, size);
}

static bool ask_flag(const struct wh_cuda *cuda, int attribute, uint64_t address)
{
	unsigned value = 0; /* int or bool, little-endian */

	ask(cuda, attribute, address, &value, sizeof(value));
	return value != 0;
}

static uint64_t ask_number(const struct wh_cuda *cuda, int attribute, uint64_t address)
{
	uint64_t value = 0;

	ask(cuda, attribute, address, &value, sizeof(value));
	return value;
}

/* ---- extent ---------------------------------------------------------------------------------- */

/* Memory of cuMemCreate is known mapping by mapping; what cuMemGetAddressRange() says of several
 * in one reserved range is of no use. */
static int find_extent(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_pointer *p)
{
	struct wh_cuda_scope scope;
	size_t size = 0;
	int error;

	if (p->vmm) {
		p->base = ask_number(cuda, CUDA_POINTER_MAPPING_BASE, address);
		p->length = ask_number(cuda, CUDA_POINTER_MAPPING_SIZE, address);
	}
	if (!p->length) {
		p->base = ask_number(cuda, CUDA_POINTER_RANGE_START, address);
		p->length = ask_number(cuda, CUDA_POINTER_RANGE_SIZE, address);
	}
	if (!p->length) { /* a driver before CUDA 11 */
		error = wh_cuda_enter_owner(cuda, address, &scope);
		if (error)
			return error;
		error = wh_cuda_check(cuda, cuda->cuMemGetAddressRange(&p->base, &size, address),
				      "cuMemGetAddressRange", "0x%llx", (ull)address);
		wh_cuda_leave(&scope);
		if (error)
			return error;
		p->length = size;
	}
	if (address < p->base || address - p->base >= p->length)
		return wh_fail(
			EIO,
			"the CUDA driver says of address 0x%llx that it lies in 0x%llx and 0x%llx "
			"bytes on",
			(ull)address, (ull)p->base, (ull)p->length);
	return 0;
}

/* ---- exports --------------------------------------------------------------------------------- */

/* Sets vmm, and what the memory was created to become. */
static int find_vmm(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_pointer *p)
{
	struct wh_cuda_properties properties = { 0 };
	struct wh_cuda_scope scope;
	CUallocation memory;
	int error, result;

	if (p->pool || !cuda->cuMemRetainAllocationHandle ||
	    !cuda->cuMemGetAllocationPropertiesFromHandle)
		return 0;
	wh_cuda_relax(cuda, &scope);
	result = cuda->cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)address);
	if (result == CUDA_INVALID_VALUE || result == CUDA_NOT_SUPPORTED) {
		wh_cuda_leave(&scope);
		return 0;
	}
	error = wh_cuda_check(cuda, result, "cuMemRetainAllocationHandle", "0x%llx", (ull)address);
	if (!error) {
		error = wh_cuda_check(
			cuda, cuda->cuMemGetAllocationPropertiesFromHandle(&properties, memory),
			"cuMemGetAllocationPropertiesFromHandle", "0x%llx", (ull)address);
		cuda->cuMemRelease(memory);
	}
	wh_cuda_leave(&scope);
	if (error)
		return error;
	p->vmm = true;
	p->exports |= (properties.handle_types & CUDA_HANDLE_FD ? WH_CUDA_EXPORT_FD : 0) |
		      (properties.handle_types & CUDA_HANDLE_FABRIC ? WH_CUDA_EXPORT_FABRIC : 0);
	return 0;
}

static int find_exports(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_pointer *p)
{
	uint32_t types = 0;
	int error;

	p->pool = ask_number(cuda, CUDA_POINTER_POOL, address) != 0;
	error = find_vmm(cuda, address, p);
	if (error)
		return error;
	if (ask_flag(cuda, CUDA_POINTER_IPC_CAPABLE, address))
		p->exports |= WH_CUDA_EXPORT_IPC;
	ask(cuda, CUDA_POINTER_HANDLE_TYPES, address, &types, sizeof(types));
	if (p->pool && types & CUDA_HANDLE_FD)
		p->exports |= WH_CUDA_EXPORT_POOL_FD;
	/* What cuMemAlloc gave can be handed on; what another process gave us cannot. */
	p->imported = !p->vmm && !p->pool && !(p->exports & WH_CUDA_EXPORT_IPC);
	if (p->device->dma_buf && !p->imported)
		p->exports |= WH_CUDA_EXPORT_DMA_BUF;
	p->rdma = ask_flag(cuda, CUDA_POINTER_RDMA_CAPABLE, address);
	p->sync_memops = ask_flag(cuda, CUDA_POINTER_SYNC_MEMOPS, address);
	p->memory_id = ask_number(cuda, CUDA_POINTER_MEMORY_ID, address);
	return 0;
}

/* ---- the query ------------------------------------------------------------------------------- */

static int find_device(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_pointer *p)
{
	int ordinal = -1;

	ask(cuda, CUDA_POINTER_DEVICE_ORDINAL, address, &ordinal, sizeof(ordinal));
	if (ordinal >= 0 && (unsigned)ordinal < cuda->device_count)
		p->device = &cuda->devices[ordinal];
	if (p->memory == WH_CUDA_DEVICE && !p->device)
		return wh_fail(EIO,
			       "the CUDA driver says that address 0x%llx lies on device %d, of %u",
			       (ull)address, ordinal, cuda->device_count);
	return 0;
}

/*
 * How kernels call the memory. What a device or managed memory is called is the same everywhere.
 * Pinned memory may have another name there (some registered memory, write-combined memory), which
 * the driver tells in a context only (else it answers CUDA_ERROR_INVALID_CONTEXT); its owner's
 * exists, so that asking makes none. Host memory of cuMemCreate has no owner and one name for all.
 */
static int find_device_address(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_pointer *p)
{
	struct wh_cuda_scope scope;
	uint64_t found = 0;
	int error, result;

	if (p->memory != WH_CUDA_HOST || !p->context) {
		if (p->memory != WH_CUDA_HOST || ask_flag(cuda, CUDA_POINTER_MAPPED, address))
			p->device_address = address;
		return 0;
	}
	error = wh_cuda_enter_owner(cuda, address, &scope);
	if (error)
		return error;
	result = cuda->cuPointerGetAttribute(&found, CUDA_POINTER_DEVICE_ADDRESS, address);
	if (!result)
		p->device_address = found;
	else if (result != CUDA_INVALID_VALUE) /* which says that it is not mapped */
		error = wh_cuda_check(cuda, result, "cuPointerGetAttribute",
				      "DEVICE_POINTER of 0x%llx", (ull)address);
	wh_cuda_leave(&scope);
	return error;
}

static int fill(struct wh_cuda *cuda, uint64_t address, unsigned type, struct wh_cuda_pointer *p)
{
	int error;

	/* Managed memory says that it is on the device or on the host, as it happens. */
	if (type == CUDA_MEMORY_UNIFIED || ask_flag(cuda, CUDA_POINTER_IS_MANAGED, address))
		p->memory = WH_CUDA_MANAGED;
	else if (type == CUDA_MEMORY_HOST)
		p->memory = WH_CUDA_HOST;
	else if (type == CUDA_MEMORY_DEVICE)
		p->memory = WH_CUDA_DEVICE;
	else
		return wh_fail(EOPNOTSUPP,
			       "address 0x%llx is CUDA memory of type %u (2 would be a device's), "
			       "which Wherry does not move",
			       (ull)address, type);
	error = find_device(cuda, address, p);
	if (error)
		return error;
	p->context = NULL;
	ask(cuda, CUDA_POINTER_CONTEXT, address, &p->context, sizeof(p->context));
	p->buffer_id = ask_number(cuda, CUDA_POINTER_BUFFER_ID, address);
	error = find_device_address(cuda, address, p);
	if (error)
		return error;
	if (p->memory == WH_CUDA_DEVICE) {
		error = find_exports(cuda, address, p);
	} else {
		p->mapped = p->device_address != 0;
		p->host_address = ask_number(cuda, CUDA_POINTER_HOST_ADDRESS, address);
	}
	return error ? error : find_extent(cuda, address, p);
}

int wh_cuda_query(struct wh_cuda *cuda, const void *pointer, struct wh_cuda_pointer *out)
{
	uint64_t address = (uintptr_t)pointer;
	struct wh_cuda_pointer p = { 0 };
	unsigned type = 0;
	bool initialised;
	int result, error = wh_cuda_attach(cuda, &initialised);

	if (error && error != -ENOENT)
		return error;
	/* Without a driver in the process, or before it was initialised, there is no memory of a
	 * driver. After we have initialised it, it says so in a forked child only. */
	result = error ? CUDA_NOT_INITIALIZED :
			 cuda->cuPointerGetAttribute(&type, CUDA_POINTER_MEMORY_TYPE, address);
	if (result == CUDA_INVALID_VALUE ||
	    (result == CUDA_NOT_INITIALIZED && (error || !initialised))) {
		*out = (struct wh_cuda_pointer){ .memory = WH_CUDA_PLAIN };
		return 0;
	}
	error = wh_cuda_check(cuda, result, "cuPointerGetAttribute", "0x%llx", (ull)address);
	/* The application has initialised the driver, so that this starts nothing. */
	if (!error)
		error = wh_cuda_ready(cuda);
	if (!error)
		error = fill(cuda, address, type, &p);
	if (!error)
		*out = p;
	return error;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static bool on_host(const struct wh_cuda_pointer *p)
{
	return p->memory == WH_CUDA_PLAIN || p->memory == WH_CUDA_HOST;
}

static int mixed(uint64_t start, uint64_t at)
{
	return wh_fail(
		EFAULT,
		"the range at 0x%llx is CUDA memory in part, and in part host memory or addresses "
		"with no memory behind them: another sort begins at or before 0x%llx",
		(ull)start, (ull)at);
}

int wh_cuda_walk(struct wh_cuda *cuda, const void *address, size_t length,
		 int (*each)(void *arg, const struct wh_cuda_pointer *pointer, uint64_t start,
			     uint64_t count),
		 void *arg)
{
	uint64_t start = (uintptr_t)address, at = start, end, count;
	struct wh_cuda_pointer p, last;
	bool host = false;
	int error;

	if (!length || __builtin_add_overflow(start, length, &end))
		return wh_fail(EINVAL, "%zu bytes at 0x%llx are no range of memory", length,
			       (ull)start);
	for (; at < end; at += count) {
		error = wh_cuda_query(cuda, (const void *)(uintptr_t)at, &p);
		if (error)
			return error;
		if (at != start && on_host(&p) != host)
			return mixed(start, at);
		host = on_host(&p);
		if (p.memory == WH_CUDA_PLAIN) {
			/* Nobody knows where plain memory ends; at least the end is looked at. */
			count = end - at;
			error = wh_cuda_query(cuda, (const void *)(uintptr_t)(end - 1), &last);
			if (error)
				return error;
			if (!on_host(&last))
				return mixed(start, end - 1);
		} else {
			count = p.base + p.length - at;
			count = count < end - at ? count : end - at;
		}
		error = each(arg, &p, at, count);
		if (error)
			return error;
	}
	return 0;
}

int wh_cuda_sync_memops(struct wh_cuda *cuda, uint64_t address)
{
	const unsigned on = 1;
	struct wh_cuda_scope scope;
	int error = wh_cuda_enter_owner(cuda, address, &scope);

	if (error)
		return error;
	error = !cuda->cuPointerSetAttribute ?
			wh_cuda_missing(cuda, "cuPointerSetAttribute") :
			wh_cuda_check(
				cuda,
				cuda->cuPointerSetAttribute(&on, CUDA_POINTER_SYNC_MEMOPS, address),
				"cuPointerSetAttribute", "SYNC_MEMOPS of 0x%llx", (ull)address);
	wh_cuda_leave(&scope);
	return error;
}
