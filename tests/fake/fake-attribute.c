/* SPDX-License-Identifier: Apache-2.0 */
/* Pointer attributes: cuPointerGetAttribute() and the like. */
#include <string.h>

#include "fake.h"

enum {
	CONTEXT = 1,
	MEMORY_TYPE,
	DEVICE_POINTER,
	HOST_POINTER,
	P2P_TOKENS,
	SYNC_MEMOPS,
	BUFFER_ID,
	IS_MANAGED,
	DEVICE_ORDINAL,
	IS_LEGACY_CUDA_IPC_CAPABLE,
	RANGE_START_ADDR,
	RANGE_SIZE,
	MAPPED,
	ALLOWED_HANDLE_TYPES,
	IS_GPU_DIRECT_RDMA_CAPABLE,
	ACCESS_FLAGS,
	MEMPOOL_HANDLE,
	MAPPING_SIZE,
	MAPPING_BASE_ADDR,
	MEMORY_BLOCK_ID,
	ATTRIBUTES,
};

enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };

/* The size of each attribute's value, in bytes. */
static const unsigned char widths[ATTRIBUTES] = {
	[CONTEXT] = 8,
	[MEMORY_TYPE] = 4,
	[DEVICE_POINTER] = 8,
	[HOST_POINTER] = 8,
	[P2P_TOKENS] = 16,
	[SYNC_MEMOPS] = 4,
	[BUFFER_ID] = 8,
	[IS_MANAGED] = 4,
	[DEVICE_ORDINAL] = 4,
	[IS_LEGACY_CUDA_IPC_CAPABLE] = 4,
	[RANGE_START_ADDR] = 8,
	[RANGE_SIZE] = 8,
	[MAPPED] = 4,
	[ALLOWED_HANDLE_TYPES] = 8,
	[IS_GPU_DIRECT_RDMA_CAPABLE] = 4,
	[ACCESS_FLAGS] = 4,
	[MEMPOOL_HANDLE] = 8,
	[MAPPING_SIZE] = 8,
	[MAPPING_BASE_ADDR] = 8,
	[MEMORY_BLOCK_ID] = 8,
};

static bool is_host(const struct fake_range *range)
{
	return range->kind == FAKE_HOST || range->kind == FAKE_REGISTERED;
}

static uint64_t access_flags(const struct fake_range *range)
{
	struct fake_context *context;

	if (range->kind == FAKE_REGISTERED && range->flags & 8) /* READ_ONLY */
		return 1;
	if (range->kind != FAKE_MAPPED)
		return 3;
	return fake_current(&context) ? 0 : range->access[context->device->ordinal];
}

/* The extent of VMM memory is that of its reservation, which may contain several mappings. */
static uint64_t range_extent(const struct fake_range *range, bool size)
{
	const struct fake_reservation *reservation =
		range->kind == FAKE_MAPPED ? fake_reservation_find(range->base) : NULL;

	if (!reservation)
		return size ? range->size : range->base;
	return size ? reservation->size : reservation->base;
}

/* Mappings are whole pages of the device, or of the host where memory was registered; a pool grows
 * by 32 MiB. */
static uint64_t mapping_extent(const struct fake_range *range, bool size)
{
	uint64_t page = range->kind == FAKE_REGISTERED ? 4096 :
			range->kind == FAKE_POOL       ? 16 * FAKE_GRANULARITY :
							 FAKE_GRANULARITY;
	uint64_t base = range->base / page * page;

	return size ? (range->base + range->size - base + page - 1) / page * page : base;
}

static int of_range(const struct fake_range *range, int attribute, uint64_t address,
		    uint64_t *value)
{
	struct fake_context *context;

	*value = 0;
	switch (attribute) {
	case CONTEXT: /* VMM and pool memory have none */
		*value = (uintptr_t)range->context;
		return FAKE_OK;
	case MEMORY_TYPE:
		*value = is_host(range) ? TYPE_HOST : TYPE_DEVICE;
		return FAKE_OK;
	case DEVICE_POINTER: /* needs a current context that can access the memory */
		if (fake_current(&context) == FAKE_INVALID_CONTEXT)
			return FAKE_INVALID_CONTEXT;
		*value = address;
		return access_flags(range) ? FAKE_OK : FAKE_INVALID_VALUE;
	case HOST_POINTER:
		*value = range->memory ? 0 : address;
		return range->memory ? FAKE_INVALID_VALUE : FAKE_OK;
	case SYNC_MEMOPS:
		*value = range->sync;
		return FAKE_OK;
	case BUFFER_ID:
		*value = range->buffer_id;
		return FAKE_OK;
	case IS_MANAGED:
		*value = range->kind == FAKE_MANAGED;
		return FAKE_OK;
	case DEVICE_ORDINAL:
		*value = (uint64_t)range->device->ordinal;
		return FAKE_OK;
	case IS_LEGACY_CUDA_IPC_CAPABLE:
		*value = range->kind == FAKE_DEVICE;
		return FAKE_OK;
	case RANGE_START_ADDR:
	case RANGE_SIZE:
		*value = range_extent(range, attribute == RANGE_SIZE);
		return FAKE_OK;
	case MAPPED:
		*value = 1;
		return FAKE_OK;
	case ALLOWED_HANDLE_TYPES:
		*value = range->kind == FAKE_MAPPED ? range->memory->handle_types :
			 range->kind == FAKE_POOL   ? range->flags :
						      0;
		return FAKE_OK;
	case IS_GPU_DIRECT_RDMA_CAPABLE:
		*value = range->kind == FAKE_DEVICE;
		return FAKE_OK;
	case ACCESS_FLAGS:
		*value = access_flags(range);
		return FAKE_OK;
	case MEMPOOL_HANDLE: /* one pool for each device; no other call accepts the handle */
		*value = range->kind == FAKE_POOL ? (uintptr_t)range->device : 0;
		return FAKE_OK;
	case MAPPING_SIZE:
	case MAPPING_BASE_ADDR:
		*value = mapping_extent(range, attribute == MAPPING_SIZE);
		return FAKE_OK;
	case MEMORY_BLOCK_ID:
		*value = range->memory ? range->memory->id : range->buffer_id;
		return FAKE_OK;
	default:
		return FAKE_INVALID_VALUE;
	}
}

struct tokens { /* CUDA_POINTER_ATTRIBUTE_P2P_TOKENS */
	uint64_t token;
	uint32_t va_space, pad;
};

/* Tokens that kernel drivers once needed besides the address; only memory of cuMemAlloc() has them.
 * The fake has one pair for each device. */
static int get_tokens(void *data, const struct fake_range *range)
{
	struct tokens tokens = { .token = 0x1000u + (unsigned)range->device->ordinal,
				 .va_space = 1u + (unsigned)range->device->ordinal };

	if (range->kind != FAKE_DEVICE)
		return FAKE_INVALID_VALUE;
	memcpy(data, &tokens, sizeof(tokens));
	return FAKE_OK;
}

/* Under fake_map_lock. */
static int range_attribute(void *data, int attribute, uint64_t address)
{
	struct fake_range *range = fake_range_find(address);
	uint64_t value = 0;
	int error;

	_Static_assert(sizeof(struct tokens) == 16, "CUDA_POINTER_ATTRIBUTE_P2P_TOKENS");
	if (!range) /* pageable memory of the host, reserved addresses, or nothing */
		return FAKE_INVALID_VALUE;
	if (range->device->lost)
		return range->device->lost;
	if (attribute == P2P_TOKENS)
		return get_tokens(data, range);
	error = of_range(range, attribute, address, &value);
	if (!error)
		memcpy(data, &value, widths[attribute]);
	return error;
}

FAKE_API int cuPointerGetAttribute(void *data, int attribute, uint64_t address)
{
	int error;

	FAKE_ENTER();
	if (!data || attribute <= 0 || attribute >= ATTRIBUTES)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	error = range_attribute(data, attribute, address);
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

/* An attribute that an address does not have is 0, not an error. */
FAKE_API int cuPointerGetAttributes(unsigned count, const int *attributes, void **data,
				    uint64_t address)
{
	int error = FAKE_OK;

	FAKE_ENTER();
	if (!count || !attributes || !data)
		return FAKE_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if (attributes[i] <= 0 || attributes[i] >= ATTRIBUTES || !data[i])
			return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	for (unsigned i = 0; i < count && !error; i++) {
		error = range_attribute(data[i], attributes[i], address);
		if (error != FAKE_INVALID_VALUE)
			continue;
		memset(data[i], 0, widths[attributes[i]]);
		if (attributes[i] == DEVICE_ORDINAL)
			memcpy(data[i], &(int){ -2 }, sizeof(int)); /* CU_DEVICE_INVALID */
		error = FAKE_OK;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

FAKE_API int cuPointerSetAttribute(const void *value, int attribute, uint64_t address)
{
	struct fake_range *range;
	unsigned sync;
	int error = FAKE_INVALID_VALUE;

	FAKE_ENTER();
	if (!value || attribute != SYNC_MEMOPS)
		return FAKE_INVALID_VALUE;
	memcpy(&sync, value, sizeof(sync));
	pthread_rwlock_wrlock(&fake_map_lock);
	range = fake_range_find(address);
	if (range && range->kind == FAKE_MAPPED)
		error = FAKE_NOT_SUPPORTED;
	else if (range)
		error = range->device->lost;
	if (!error)
		range->sync = sync != 0;
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

FAKE_API int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address)
{
	struct fake_context *context;
	struct fake_range *range;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	pthread_rwlock_rdlock(&fake_map_lock);
	range = fake_range_find(address);
	if (!range)
		error = FAKE_NOT_FOUND;
	else if (range->device->lost)
		error = range->device->lost;
	if (!error && base)
		*base = range->base;
	if (!error && size)
		*size = range->size;
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}
