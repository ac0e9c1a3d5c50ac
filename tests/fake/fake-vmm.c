/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: reserved addresses, physical memory, mappings, and their
 * descriptors. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

static bool granularity_divides(uint64_t n)
{
	return n % FAKE_GRANULARITY == 0;
}

/* ---- addresses ------------------------------------------------------------------------------- */

FAKE_API int cuMemAddressReserve(uint64_t *out, size_t size, size_t alignment, uint64_t hint,
				 unsigned long long flags)
{
	uint64_t base;

	FAKE_ENTER();
	if (!out || !size || !granularity_divides(size) || flags || alignment & (alignment - 1))
		return FAKE_INVALID_VALUE;
	if (alignment < FAKE_GRANULARITY)
		alignment = FAKE_GRANULARITY;
	pthread_rwlock_wrlock(&fake_map_lock);
	base = fake_reserve(size, alignment, hint, true);
	pthread_rwlock_unlock(&fake_map_lock);
	if (!base)
		return FAKE_OUT_OF_MEMORY;
	*out = base;
	return FAKE_OK;
}

FAKE_API int cuMemAddressFree(uint64_t base, size_t size)
{
	struct fake_reservation *reservation;
	int error = FAKE_INVALID_VALUE;

	FAKE_ENTER();
	pthread_rwlock_wrlock(&fake_map_lock);
	reservation = fake_reservation_find(base);
	if (reservation && reservation->user && reservation->base == base &&
	    reservation->size == size && !fake_range_overlap(base, size)) {
		fake_unreserve(reservation);
		error = FAKE_OK;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int check_properties(const struct fake_properties *properties)
{
	if (!properties || properties->type != FAKE_ALLOCATION_PINNED)
		return FAKE_INVALID_VALUE;
	if (properties->location.type != FAKE_LOCATION_DEVICE)
		return FAKE_INVALID_VALUE;
	if (!fake_device(properties->location.id))
		return FAKE_INVALID_DEVICE;
	if (properties->handle_types & FAKE_HANDLE_FABRIC && !fake_settings()->fabric)
		return FAKE_NOT_PERMITTED; /* would need an IMEX channel */
	return properties->handle_types & ~(FAKE_HANDLE_FD | FAKE_HANDLE_FABRIC) ?
		       FAKE_INVALID_VALUE :
		       FAKE_OK;
}

FAKE_API int cuMemGetAllocationGranularity(size_t *out, const struct fake_properties *properties,
					   int option)
{
	int error;

	FAKE_ENTER();
	if (!out || option < 0 || option > 1)
		return FAKE_INVALID_VALUE;
	error = check_properties(properties);
	if (error && error != FAKE_NOT_PERMITTED)
		return error;
	*out = FAKE_GRANULARITY;
	return FAKE_OK;
}

FAKE_API int cuMemCreate(uint64_t *out, size_t size, const struct fake_properties *properties,
			 unsigned long long flags)
{
	struct fake_memory *memory;
	struct fake_device *device;
	int error;

	FAKE_ENTER();
	error = check_properties(properties);
	if (error)
		return error;
	if (!out || !size || !granularity_divides(size) || flags)
		return FAKE_INVALID_VALUE;
	device = fake_device(properties->location.id);
	if (device->lost)
		return device->lost;
	pthread_rwlock_wrlock(&fake_map_lock);
	error = fake_memory_new(device, size, (unsigned)properties->handle_types, &memory);
	if (!error) {
		memory->handles = 1;
		*out = (uintptr_t)memory;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

FAKE_API int cuMemRelease(uint64_t handle)
{
	struct fake_memory *memory;

	FAKE_ENTER();
	pthread_rwlock_wrlock(&fake_map_lock);
	memory = fake_memory_known(handle);
	if (memory) {
		memory->handles--;
		fake_memory_drop(memory);
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return memory ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE_API int cuMemGetAllocationPropertiesFromHandle(struct fake_properties *out, uint64_t handle)
{
	struct fake_memory *memory;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	memory = fake_memory_known(handle);
	if (memory)
		*out = (struct fake_properties){
			.type = FAKE_ALLOCATION_PINNED,
			.handle_types = (int)memory->handle_types,
			.location = { FAKE_LOCATION_DEVICE, memory->device->ordinal },
		};
	pthread_rwlock_unlock(&fake_map_lock);
	return memory ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE_API int cuMemRetainAllocationHandle(uint64_t *out, void *address)
{
	struct fake_range *range;
	int error = FAKE_INVALID_VALUE;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_map_lock);
	range = fake_range_find((uintptr_t)address);
	if (range && range->kind == FAKE_MAPPED) {
		range->memory->handles++;
		*out = (uintptr_t)range->memory;
		error = FAKE_OK;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

/* ---- mappings -------------------------------------------------------------------------------- */

/* May [base, base+size) of a reservation be mapped? Under fake_map_lock. */
static bool range_mappable(uint64_t base, size_t size)
{
	struct fake_reservation *reservation = fake_reservation_find(base);

	return reservation && reservation->user &&
	       size <= reservation->base + reservation->size - base &&
	       !fake_range_overlap(base, size);
}

FAKE_API int cuMemMap(uint64_t base, size_t size, size_t offset, uint64_t handle,
		      unsigned long long flags)
{
	struct fake_range range = { .base = base, .size = size, .kind = FAKE_MAPPED };
	int error = FAKE_INVALID_VALUE;

	FAKE_ENTER();
	if (flags)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_map_lock);
	range.memory = fake_memory_known(handle);
	if (range.memory && (offset || !granularity_divides(base) || size != range.memory->size)) {
		error = FAKE_NOT_SUPPORTED; /* the fake maps only whole memories */
	} else if (range.memory && range_mappable(base, size)) {
		range.device = range.memory->device;
		error = FAKE_OK;
		if (fake_settings()->bar && !range.memory->bar)
			error = fake_memory_to_bar(range.memory, base);
		if (!error && !fake_range_add(&range))
			error = FAKE_OUT_OF_MEMORY;
		range.memory->mappings += !error;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

/* Does [base, base+size) consist of whole mappings, without gaps? */
static bool whole_mappings(uint64_t base, size_t size)
{
	uint64_t at = base;

	while (at < base + size) {
		struct fake_range *range = fake_range_find(at);

		if (!range || range->kind != FAKE_MAPPED || range->base != at)
			return false;
		at += range->size;
	}
	return size && at == base + size;
}

/* Is [base, base+size) inside one reservation, and no mapping only partly in it? Under
 * fake_map_lock. */
static bool range_unmappable(uint64_t base, size_t size)
{
	struct fake_reservation *reservation = fake_reservation_find(base);
	struct fake_range *first = fake_range_find(base), *last = fake_range_find(base + size - 1);

	return size && reservation && reservation->user &&
	       size <= reservation->base + reservation->size - base &&
	       (!first || first->base == base) && (!last || last->base + last->size == base + size);
}

/* The range may contain addresses where nothing is mapped. */
FAKE_API int cuMemUnmap(uint64_t base, size_t size)
{
	struct fake_range *range;
	bool good;

	FAKE_ENTER();
	pthread_rwlock_wrlock(&fake_map_lock);
	good = range_unmappable(base, size);
	while (good && (range = fake_range_overlap(base, size))) {
		struct fake_memory *memory = range->memory;

		fake_range_remove(range);
		memory->mappings--;
		fake_memory_drop(memory);
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return good ? FAKE_OK : FAKE_INVALID_VALUE;
}

static int check_access(const struct fake_range *range, const struct fake_access *access,
			size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct fake_device *device = fake_device(access[i].location.id);

		if (access[i].location.type != FAKE_LOCATION_DEVICE)
			return FAKE_NOT_SUPPORTED;
		if (!device)
			return FAKE_INVALID_DEVICE;
		if (access[i].flags != 0 && access[i].flags != 1 && access[i].flags != 3)
			return FAKE_INVALID_VALUE;
		if (!fake_peers(device, range->device))
			return FAKE_PEER_UNSUPPORTED;
	}
	return FAKE_OK;
}

FAKE_API int cuMemSetAccess(uint64_t base, size_t size, const struct fake_access *access,
			    size_t count)
{
	struct fake_range *range;
	int error = FAKE_OK;

	FAKE_ENTER();
	if (!access || !count)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_map_lock);
	if (!whole_mappings(base, size))
		error = FAKE_INVALID_VALUE;
	for (uint64_t at = base; !error && at < base + size; at += range->size) {
		range = fake_range_find(at);
		error = check_access(range, access, count);
		for (size_t i = 0; !error && i < count; i++)
			range->access[access[i].location.id] = (unsigned char)access[i].flags;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

FAKE_API int cuMemGetAccess(unsigned long long *flags, const struct fake_location *location,
			    uint64_t address)
{
	int error = FAKE_INVALID_VALUE;
	struct fake_range *range;

	FAKE_ENTER();
	if (!flags || !location || location->type != FAKE_LOCATION_DEVICE)
		return FAKE_INVALID_VALUE;
	if (!fake_device(location->id))
		return FAKE_INVALID_DEVICE;
	pthread_rwlock_rdlock(&fake_map_lock);
	range = fake_range_find(address);
	if (range) {
		*flags = range->kind == FAKE_MAPPED ? range->access[location->id] : 3;
		error = FAKE_OK;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* What a fabric handle holds: 64 bytes, by which any process of the world finds the memory. */
struct fabric_handle {
	char magic[8];
	uint64_t inode;
	uint64_t clique;
	uint64_t pad[5];
};
static const char fabric_magic[8] = "fakeFAB1";

static int export_fabric(const struct fake_memory *memory, void *out)
{
	struct fabric_handle handle = { .inode = 0 };
	struct stat is;

	if (fstat(memory->fd, &is))
		return FAKE_UNKNOWN;
	memcpy(handle.magic, fabric_magic, sizeof(handle.magic));
	handle.inode = is.st_ino;
	handle.clique = fake_settings()->fabric;
	memcpy(out, &handle, sizeof(handle));
	return FAKE_OK;
}

static int import_fabric(const void *given)
{
	struct fabric_handle handle;

	memcpy(&handle, given, sizeof(handle));
	return memcmp(handle.magic, fabric_magic, sizeof(handle.magic)) ||
			       handle.clique != fake_settings()->fabric ?
		       -1 :
		       fake_world_open(handle.inode);
}

FAKE_API int cuMemExportToShareableHandle(void *out, uint64_t handle, int type,
					  unsigned long long flags)
{
	struct fake_memory *memory;
	int error = FAKE_OK, fd;

	FAKE_ENTER();
	if (!out || flags)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	memory = fake_memory_known(handle);
	if (!memory || (type != FAKE_HANDLE_FD && type != FAKE_HANDLE_FABRIC) ||
	    !(memory->handle_types & (unsigned)type)) {
		error = FAKE_INVALID_VALUE;
	} else if (type == FAKE_HANDLE_FABRIC) {
		error = export_fabric(memory, out);
	} else {
		fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			error = FAKE_OUT_OF_MEMORY;
		else
			memcpy(out, &fd, sizeof(fd));
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

FAKE_API int cuMemImportFromShareableHandle(uint64_t *out, void *descriptor, int type)
{
	struct fake_memory *memory;
	int error, fd;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	if (type == FAKE_HANDLE_FABRIC && !fake_settings()->fabric)
		return FAKE_NOT_PERMITTED;
	if (type != FAKE_HANDLE_FD && type != FAKE_HANDLE_FABRIC)
		return FAKE_INVALID_VALUE;
	fd = type == FAKE_HANDLE_FABRIC ? import_fabric(descriptor) :
					  fcntl((int)(intptr_t)descriptor, F_DUPFD_CLOEXEC,
						0); /* the caller keeps its own */
	if (fd < 0)
		return type == FAKE_HANDLE_FABRIC ? FAKE_INVALID_VALUE : FAKE_UNKNOWN;
	pthread_rwlock_wrlock(&fake_map_lock);
	error = fake_memory_import(fd, &memory);
	if (!error && !(memory->handle_types & (unsigned)type)) {
		fake_memory_drop(memory); /* closes the descriptor */
		pthread_rwlock_unlock(&fake_map_lock);
		return FAKE_INVALID_VALUE;
	}
	if (!error) {
		memory->handles = 1;
		/* as with driver 580, imported memory cannot be exported again */
		memory->handle_types = 0;
		*out = (uintptr_t)memory;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	if (error)
		close(fd);
	return error;
}
