/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation: device, stream-ordered, pinned, registered and managed memory. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

#define PAGE ((size_t)4096)

static size_t whole_pages(size_t size)
{
	return (size + PAGE - 1) / PAGE * PAGE;
}

/* ---- device memory --------------------------------------------------------------------------- */

static int device_allocate(uint64_t *out, size_t size, enum fake_kind kind)
{
	struct fake_context *context;
	int error = fake_current(&context);

	if (error)
		return error;
	if (!out || !size)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_map_lock);
	error = fake_range_allocate(context, size, kind, out);
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

FAKE_API int cuMemAlloc_v2(uint64_t *out, size_t size)
{
	FAKE_ENTER();
	return device_allocate(out, size, FAKE_DEVICE);
}

/* The range that starts at the address, if it is of one of `kinds`; NULL: it cannot be freed so.
 * Under fake_map_lock. */
static struct fake_range *range_freeable(uint64_t address, unsigned kinds)
{
	struct fake_range *range = fake_range_find(address);

	return range && range->base == address && !range->freeing && kinds & 1U << range->kind ?
		       range :
		       NULL;
}

#define KIND(kind) (1U << (kind))

/* Wait for the streams of the memory's context, or of the current one, then free the memory. Like a
 * real driver, frees `unbound` kinds also for a thread that has no context. */
static int free_range(uint64_t address, unsigned kinds, unsigned unbound)
{
	struct fake_context *context = NULL, *owner;
	int error = fake_current(&context), none = error == FAKE_INVALID_CONTEXT ? error : 0;
	struct fake_range *range;

	if (error && !none)
		return error;
	pthread_rwlock_rdlock(&fake_map_lock);
	range = range_freeable(address, none ? kinds & unbound : kinds);
	owner = range && range->context ? range->context : context;
	error = range ? (range->device ? range->device->lost : 0) :
		none  ? none :
			FAKE_INVALID_VALUE;
	pthread_rwlock_unlock(&fake_map_lock);
	if (error)
		return error;
	if (owner)
		fake_context_wait(owner);
	if (context && owner != context)
		fake_context_wait(context);
	pthread_rwlock_wrlock(&fake_map_lock);
	range = range_freeable(address, kinds);
	if (range)
		fake_range_free(range);
	pthread_rwlock_unlock(&fake_map_lock);
	return range ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE_API int cuMemFree_v2(uint64_t address)
{
	FAKE_ENTER();
	if (!address)
		return FAKE_OK;
	return free_range(address, KIND(FAKE_DEVICE) | KIND(FAKE_POOL) | KIND(FAKE_MANAGED),
			  KIND(FAKE_DEVICE));
}

FAKE_API int cuMemGetInfo_v2(size_t *available, size_t *total)
{
	struct fake_context *context;
	struct fake_device *device;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!available || !total)
		return FAKE_INVALID_VALUE;
	device = context->device;
	pthread_rwlock_rdlock(&fake_map_lock);
	*total = device->memory;
	*available = *total > device->used ? *total - device->used : 0;
	pthread_rwlock_unlock(&fake_map_lock);
	return FAKE_OK;
}

/* ---- stream-ordered -------------------------------------------------------------------------- */

/* A pool that the application has created. Attributes of its memory report the device's own pool,
 * with this pool's handle types. */
struct pool {
	int device;
	unsigned handle_types;
};

FAKE_API int cuMemPoolCreate(void **out, const struct fake_pool_properties *properties)
{
	struct pool *pool;

	FAKE_ENTER();
	if (!out || !properties || properties->type != FAKE_ALLOCATION_PINNED ||
	    properties->location.type != FAKE_LOCATION_DEVICE ||
	    properties->handle_types & ~FAKE_HANDLE_FD)
		return FAKE_INVALID_VALUE;
	if (!fake_device(properties->location.id))
		return FAKE_INVALID_DEVICE;
	pool = malloc(sizeof(*pool));
	if (!pool)
		return FAKE_OUT_OF_MEMORY;
	*pool = (struct pool){ properties->location.id, (unsigned)properties->handle_types };
	*out = pool;
	return FAKE_OK;
}

FAKE_API int cuMemPoolDestroy(void *pool)
{
	FAKE_ENTER();
	free(pool);
	return pool ? FAKE_OK : FAKE_INVALID_VALUE;
}

struct free_op {
	struct fake_op op;
	uint64_t address;
};

static int free_later(struct fake_op *op)
{
	struct fake_range *range;

	pthread_rwlock_wrlock(&fake_map_lock);
	range = fake_range_find(((struct free_op *)op)->address);
	if (range && range->freeing)
		fake_range_free(range);
	pthread_rwlock_unlock(&fake_map_lock);
	return 0;
}

/* Allocates at once. With a real driver only later operations of the stream may use the memory; a
 * caller cannot see the difference. */
FAKE_API int cuMemAllocAsync(uint64_t *out, size_t size, void *stream)
{
	struct fake_context *context;
	int error;

	FAKE_ENTER();
	error = fake_stream_context(stream, &context);
	return error ? error : device_allocate(out, size, FAKE_POOL);
}

FAKE_API int cuMemAllocFromPoolAsync(uint64_t *out, size_t size, const struct pool *pool,
				     void *stream)
{
	struct fake_context *context;
	struct fake_range *range;
	int error;

	FAKE_ENTER();
	error = pool ? fake_stream_context(stream, &context) : FAKE_INVALID_VALUE;
	if (!error && context->device->ordinal != pool->device)
		error = FAKE_INVALID_VALUE;
	if (!error)
		error = device_allocate(out, size, FAKE_POOL);
	if (error)
		return error;
	pthread_rwlock_wrlock(&fake_map_lock);
	range = fake_range_find(*out);
	if (range)
		range->flags = pool->handle_types;
	pthread_rwlock_unlock(&fake_map_lock);
	return FAKE_OK;
}

FAKE_API int cuMemFreeAsync(uint64_t address, void *stream)
{
	struct fake_context *context;
	struct fake_range *range;
	struct free_op *op;
	int error;

	FAKE_ENTER();
	error = fake_stream_context(stream, &context);
	if (error)
		return error;
	op = calloc(1, sizeof(*op));
	if (!op)
		return FAKE_OUT_OF_MEMORY;
	pthread_rwlock_wrlock(&fake_map_lock);
	range = range_freeable(address, KIND(FAKE_DEVICE) | KIND(FAKE_POOL));
	if (range)
		range->freeing = true;
	pthread_rwlock_unlock(&fake_map_lock);
	if (!range) {
		free(op);
		return FAKE_INVALID_VALUE;
	}
	op->op.run = free_later;
	op->address = address;
	return fake_submit(stream, &op->op, false);
}

/* ---- pinned ---------------------------------------------------------------------------------- */

static int add_host(struct fake_context *context, void *base, size_t size, enum fake_kind kind,
		    unsigned flags)
{
	struct fake_range range = {
		.base = (uintptr_t)base,
		.size = size,
		.kind = kind,
		.context = context,
		.device = context->device,
		.flags = flags,
		.sync = kind == FAKE_MANAGED,
	};
	struct fake_range *added;

	pthread_rwlock_wrlock(&fake_map_lock);
	added = fake_range_add(&range);
	if (added && kind == FAKE_MANAGED)
		context->device->used += size;
	pthread_rwlock_unlock(&fake_map_lock);
	return added ? FAKE_OK : FAKE_OUT_OF_MEMORY;
}

static int allocate_host(void **out, size_t size, enum fake_kind kind, unsigned flags)
{
	struct fake_context *context;
	int error = fake_current(&context);
	void *base;

	if (error)
		return error;
	if (!out || !size)
		return FAKE_INVALID_VALUE;
	if (size > SIZE_MAX / 4)
		return FAKE_OUT_OF_MEMORY;
	base = mmap(NULL, whole_pages(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		    -1, 0);
	if (base == MAP_FAILED)
		return FAKE_OUT_OF_MEMORY;
	error = add_host(context, base, size, kind, flags);
	if (error)
		munmap(base, whole_pages(size));
	else
		*out = base;
	return error;
}

/* Add pinned memory to *arg; returns false so that the search visits every range. */
static bool add_host_size(const struct fake_range *range, const void *arg)
{
	uint64_t *sum = (uint64_t *)(uintptr_t)arg;

	if (range->kind == FAKE_HOST)
		*sum += range->size;
	return false;
}

FAKE_API uint64_t fake_cuda_host_bytes(void)
{
	uint64_t sum = 0;

	pthread_rwlock_rdlock(&fake_map_lock);
	fake_range_search(add_host_size, &sum);
	pthread_rwlock_unlock(&fake_map_lock);
	return sum;
}

FAKE_API int cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
	FAKE_ENTER();
	if (flags & ~7U) /* PORTABLE, DEVICEMAP, WRITECOMBINED */
		return FAKE_INVALID_VALUE;
	return allocate_host(out, size, FAKE_HOST, flags | 2);
}

FAKE_API int cuMemAllocHost_v2(void **out, size_t size)
{
	FAKE_ENTER();
	return allocate_host(out, size, FAKE_HOST, 2);
}

FAKE_API int cuMemAllocHost(void **out, size_t size)
{
	FAKE_ENTER();
	return allocate_host(out, size, FAKE_HOST, 2);
}

FAKE_API int cuMemFreeHost(void *address)
{
	FAKE_ENTER();
	return free_range((uintptr_t)address, KIND(FAKE_HOST), 0);
}

/* Is every one of these pages mapped? */
static bool is_mapped(uint64_t base, size_t size)
{
	uint64_t from = base & ~(uint64_t)(PAGE - 1);
	unsigned char seen[256];

	while (from < base + size) {
		uint64_t end = whole_pages(base + size), step = sizeof(seen) * PAGE;

		if (step > end - from)
			step = end - from;
		if (mincore((void *)(uintptr_t)from, step, seen))
			return false;
		from += step;
	}
	return true;
}

FAKE_API int cuMemHostRegister_v2(void *address, size_t size, unsigned flags)
{
	uint64_t base = (uintptr_t)address;
	struct fake_context *context;
	struct fake_range *other;
	bool device;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!address || !size || base + size < base || flags & ~15U)
		return FAKE_INVALID_VALUE;
	if (flags & 8 && !fake_attribute(113)) /* READ_ONLY_HOST_REGISTER_SUPPORTED */
		return FAKE_NOT_SUPPORTED;
	if (flags & 4) /* IOMEMORY: needs memory that a kernel driver has mapped; there is none */
		return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	other = fake_range_overlap(base, size);
	device = fake_reservation_find(base) != NULL;
	pthread_rwlock_unlock(&fake_map_lock);
	if (other && (other->kind == FAKE_HOST || other->kind == FAKE_REGISTERED))
		return FAKE_HOST_REGISTERED;
	if (other || device || !is_mapped(base, size))
		return FAKE_INVALID_VALUE;
	fake_take_locking();
	if (flags & 8)
		error = fake_pages_lock(base, size);
	else if (!fake_pages_writable(base, size))
		error = FAKE_INVALID_VALUE;
	return error ? error : add_host(context, address, size, FAKE_REGISTERED, flags | 2);
}

FAKE_API int cuMemHostUnregister(void *address)
{
	const struct fake_range *range;
	bool known;

	FAKE_ENTER();
	pthread_rwlock_rdlock(&fake_map_lock);
	range = fake_range_find((uintptr_t)address);
	known = range && range->kind == FAKE_REGISTERED;
	pthread_rwlock_unlock(&fake_map_lock);
	if (!known)
		return FAKE_HOST_NOT_REGISTERED;
	return free_range((uintptr_t)address, KIND(FAKE_REGISTERED), 0);
}

static struct fake_range *host_range(uint64_t address)
{
	struct fake_range *range = fake_range_find(address);

	return range && (range->kind == FAKE_HOST || range->kind == FAKE_REGISTERED) ? range : NULL;
}

FAKE_API int cuMemHostGetDevicePointer_v2(uint64_t *out, void *address, unsigned flags)
{
	struct fake_context *context;
	bool found;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!out || flags)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	found = host_range((uintptr_t)address) != NULL;
	pthread_rwlock_unlock(&fake_map_lock);
	if (!found)
		return FAKE_INVALID_VALUE;
	*out = (uintptr_t)address;
	return FAKE_OK;
}

FAKE_API int cuMemHostGetFlags(unsigned *flags, void *address)
{
	struct fake_range *range;
	int error = FAKE_INVALID_VALUE;

	FAKE_ENTER();
	if (!flags)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	range = host_range((uintptr_t)address);
	if (range) {
		*flags = range->flags;
		error = FAKE_OK;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

/* ---- managed --------------------------------------------------------------------------------- */

FAKE_API int cuMemAllocManaged(uint64_t *out, size_t size, unsigned flags)
{
	void *base;
	int error;

	FAKE_ENTER();
	if (!out || (flags != 1 && flags != 2)) /* ATTACH_GLOBAL, ATTACH_HOST */
		return FAKE_INVALID_VALUE;
	error = allocate_host(&base, size, FAKE_MANAGED, flags);
	if (!error)
		*out = (uintptr_t)base;
	return error;
}
