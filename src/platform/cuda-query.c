/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the CUDA driver what memory is at an address.
 *
 * Attributes are queried one by one. cuPointerGetAttributes() would return all at once, but it
 * succeeds with zeroes for an unknown address, and fails for all attributes if an older driver does
 * not know one of them.
 */
#include <errno.h>
#include <string.h>

#include "platform/cuda.h"
#include "util/error.h"

typedef unsigned long long ull;

/* Leaves *out unchanged if this driver or this kind of memory lacks the attribute. */
static void query_attribute(const struct wh_cuda *cuda, int attribute, uint64_t address, void *out,
			    size_t size)
{
	union {
		uint64_t number;
		unsigned char bytes[8];
	} value = { 0 };

	if (!cuda->cuPointerGetAttribute(&value, attribute, address))
		memcpy(out, value.bytes, size);
}

static bool query_flag(const struct wh_cuda *cuda, int attribute, uint64_t address)
{
	unsigned value = 0; /* int or bool, little-endian */

	query_attribute(cuda, attribute, address, &value, sizeof(value));
	return value != 0;
}

static uint64_t query_number(const struct wh_cuda *cuda, int attribute, uint64_t address)
{
	uint64_t value = 0;

	query_attribute(cuda, attribute, address, &value, sizeof(value));
	return value;
}

/* ---- extent ---------------------------------------------------------------------------------- */

/* For memory of cuMemCreate this finds the mapping: cuMemGetAddressRange() would merge the mappings
 * in one reserved range. */
static int find_extent(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_pointer *p)
{
	struct wh_cuda_scope scope;
	size_t size = 0;
	int error;

	if (p->vmm) {
		p->base = query_number(cuda, CUDA_POINTER_MAPPING_BASE, address);
		p->length = query_number(cuda, CUDA_POINTER_MAPPING_SIZE, address);
	}
	if (!p->length) {
		p->base = query_number(cuda, CUDA_POINTER_RANGE_START, address);
		p->length = query_number(cuda, CUDA_POINTER_RANGE_SIZE, address);
	}
	if (!p->length) { /* a driver older than CUDA 11 */
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
		return wh_fail(EIO,
			       "address 0x%llx: the CUDA driver reports an allocation at 0x%llx of "
			       "0x%llx bytes",
			       (ull)address, (ull)p->base, (ull)p->length);
	return 0;
}

/* ---- exports --------------------------------------------------------------------------------- */

/* Sets p->vmm, and the kinds of handle that the memory was created for. */
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

	p->pool = query_number(cuda, CUDA_POINTER_POOL, address) != 0;
	error = find_vmm(cuda, address, p);
	if (error)
		return error;
	if (query_flag(cuda, CUDA_POINTER_IPC_CAPABLE, address))
		p->exports |= WH_CUDA_EXPORT_IPC;
	query_attribute(cuda, CUDA_POINTER_HANDLE_TYPES, address, &types, sizeof(types));
	if (p->pool && types & CUDA_HANDLE_FD)
		p->exports |= WH_CUDA_EXPORT_POOL_FD;
	/* Memory of cuMemAlloc can be exported; memory imported from another process cannot. */
	p->imported = !p->vmm && !p->pool && !(p->exports & WH_CUDA_EXPORT_IPC);
	if (p->device->dma_buf && !p->imported)
		p->exports |= WH_CUDA_EXPORT_DMA_BUF;
	p->rdma = query_flag(cuda, CUDA_POINTER_RDMA_CAPABLE, address);
	p->sync_memops = query_flag(cuda, CUDA_POINTER_SYNC_MEMOPS, address);
	p->memory_id = query_number(cuda, CUDA_POINTER_MEMORY_ID, address);
	return 0;
}

/* ---- the query ------------------------------------------------------------------------------- */

static int find_device(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_pointer *p)
{
	int ordinal = -1;

	query_attribute(cuda, CUDA_POINTER_DEVICE_ORDINAL, address, &ordinal, sizeof(ordinal));
	if (ordinal >= 0 && (unsigned)ordinal < cuda->device_count)
		p->device = &cuda->devices[ordinal];
	if (p->memory == WH_CUDA_DEVICE && !p->device)
		return wh_fail(EIO, "address 0x%llx: the CUDA driver reports device %d of %u",
			       (ull)address, ordinal, cuda->device_count);
	return 0;
}

/*
 * The address of the memory for kernels. Device and managed memory has one address everywhere.
 * Pinned memory may have another address on GPUs (some registered memory, write-combined memory);
 * the driver returns it only inside a context, else CUDA_ERROR_INVALID_CONTEXT. The owner's context
 * exists, so entering it creates none. Host memory of cuMemCreate has no owner, and one address.
 */
static int find_device_address(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_pointer *p)
{
	struct wh_cuda_scope scope;
	uint64_t found = 0;
	int error, result;

	if (p->memory != WH_CUDA_HOST || !p->context) {
		if (p->memory != WH_CUDA_HOST || query_flag(cuda, CUDA_POINTER_MAPPED, address))
			p->device_address = address;
		return 0;
	}
	error = wh_cuda_enter_owner(cuda, address, &scope);
	if (error)
		return error;
	result = cuda->cuPointerGetAttribute(&found, CUDA_POINTER_DEVICE_ADDRESS, address);
	if (!result)
		p->device_address = found;
	else if (result != CUDA_INVALID_VALUE) /* CUDA_INVALID_VALUE: it is not mapped */
		error = wh_cuda_check(cuda, result, "cuPointerGetAttribute",
				      "DEVICE_POINTER of 0x%llx", (ull)address);
	wh_cuda_leave(&scope);
	return error;
}

static int query_fill(struct wh_cuda *cuda, uint64_t address, unsigned type,
		      struct wh_cuda_pointer *p)
{
	int error;

	/* Managed memory is reported as device or host memory, wherever it is now. */
	if (type == CUDA_MEMORY_UNIFIED || query_flag(cuda, CUDA_POINTER_IS_MANAGED, address))
		p->memory = WH_CUDA_MANAGED;
	else if (type == CUDA_MEMORY_HOST)
		p->memory = WH_CUDA_HOST;
	else if (type == CUDA_MEMORY_DEVICE)
		p->memory = WH_CUDA_DEVICE;
	else
		return wh_fail(EOPNOTSUPP,
			       "address 0x%llx is CUDA memory of type %u, which Wherry does not "
			       "support (type 2 is device memory)",
			       (ull)address, type);
	error = find_device(cuda, address, p);
	if (error)
		return error;
	p->context = NULL;
	query_attribute(cuda, CUDA_POINTER_CONTEXT, address, &p->context, sizeof(p->context));
	p->buffer_id = query_number(cuda, CUDA_POINTER_BUFFER_ID, address);
	error = find_device_address(cuda, address, p);
	if (error)
		return error;
	if (p->memory == WH_CUDA_DEVICE) {
		error = find_exports(cuda, address, p);
	} else {
		p->mapped = p->device_address != 0;
		p->host_address = query_number(cuda, CUDA_POINTER_HOST_ADDRESS, address);
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
	/* Without a driver, or before anybody has initialised it, there is no CUDA memory. Once we
	 * have initialised it, "not initialised" means that this is a forked child. */
	result = error ? CUDA_NOT_INITIALIZED :
			 cuda->cuPointerGetAttribute(&type, CUDA_POINTER_MEMORY_TYPE, address);
	if (result == CUDA_INVALID_VALUE ||
	    (result == CUDA_NOT_INITIALIZED && (error || !initialised))) {
		*out = (struct wh_cuda_pointer){ .memory = WH_CUDA_PLAIN };
		return 0;
	}
	error = wh_cuda_check(cuda, result, "cuPointerGetAttribute", "0x%llx", (ull)address);
	/* The application has initialised the driver, so this initialises nothing new. */
	if (!error)
		error = wh_cuda_ready(cuda);
	if (!error)
		error = query_fill(cuda, address, type, &p);
	if (!error)
		*out = p;
	return error;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static bool is_on_host(const struct wh_cuda_pointer *p)
{
	return p->memory == WH_CUDA_PLAIN || p->memory == WH_CUDA_HOST;
}

static int range_is_mixed(uint64_t start, uint64_t at)
{
	return wh_fail(
		EFAULT,
		"the range at 0x%llx mixes CUDA memory with host memory or with addresses without "
		"memory: it changes at or before 0x%llx",
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
		return wh_fail(EINVAL, "%zu bytes at 0x%llx are not a range of memory", length,
			       (ull)start);
	for (; at < end; at += count) {
		error = wh_cuda_query(cuda, (const void *)(uintptr_t)at, &p);
		if (error)
			return error;
		if (at != start && is_on_host(&p) != host)
			return range_is_mixed(start, at);
		host = is_on_host(&p);
		if (p.memory == WH_CUDA_PLAIN) {
			/* Where plain memory ends is not known: at least check the last byte. */
			count = end - at;
			error = wh_cuda_query(cuda, (const void *)(uintptr_t)(end - 1), &last);
			if (error)
				return error;
			if (!is_on_host(&last))
				return range_is_mixed(start, end - 1);
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
