/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address map: the kind of memory at each address, and where the driver finds its bytes.
 *
 * Addresses of device memory stay PROT_NONE; the driver accesses each memfd through a second
 * mapping (the alias). Protections never change, so a load or store by the CPU to device memory
 * always faults.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"
#include "nvidia-control.h"

#define PAGE ((size_t)4096)
/* Allocations below this size do not start at a page boundary, as with a driver that cuts small
 * allocations from larger ones. */
#define SMALL ((size_t)1 << 20)
#define SMALL_START 512

pthread_rwlock_t fake_map_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static struct fake_range **ranges; /* by base */
static size_t range_count, range_room;
static struct fake_reservation **reservations; /* by base */
static size_t reservation_count, reservation_room;
/* FAKE_CUDA_REUSE: freed reservations, still mapped, oldest first */
static struct fake_reservation freed[256];
static size_t freed_count;
/* FAKE_CUDA_SHARE: the memory from which small allocations are cut; its first `used` bytes are
 * allocated. */
static struct {
	struct fake_memory *memory; /* NULL: none */
	uint64_t base;
	size_t used;
	enum fake_kind kind;
	const struct fake_context *context;
} shared;
static struct wh_list memories = { &memories, &memories };
static uint64_t next_id = 1; /* of ranges (BUFFER_ID) and of memories */

static size_t round_up(size_t size, size_t to)
{
	return (size + to - 1) / to * to;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Index of the first range that ends after the address. */
static size_t range_index(uint64_t address)
{
	size_t low = 0, high = range_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (ranges[middle]->base + ranges[middle]->size <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct fake_range *fake_range_find(uint64_t address)
{
	size_t i = range_index(address);

	return i < range_count && ranges[i]->base <= address ? ranges[i] : NULL;
}

struct fake_range *fake_range_overlap(uint64_t base, size_t size)
{
	size_t i = range_index(base);

	return i < range_count && ranges[i]->base < base + size ? ranges[i] : NULL;
}

static bool array_grow(void **array, size_t count, size_t *room)
{
	size_t more = *room ? *room * 2 : 64;
	void *bigger;

	if (count < *room)
		return true;
	bigger = realloc(*array, more * sizeof(void *));
	if (!bigger)
		return false;
	*array = bigger;
	*room = more;
	return true;
}

struct fake_range *fake_range_add(const struct fake_range *range)
{
	struct fake_range *added = malloc(sizeof(*added));
	size_t i = range_index(range->base);
	void *array = ranges;

	if (!added || !array_grow(&array, range_count, &range_room)) {
		free(added);
		return NULL;
	}
	ranges = array;
	memmove(ranges + i + 1, ranges + i, (range_count - i) * sizeof(*ranges));
	range_count++;
	*added = *range;
	added->buffer_id = next_id++;
	ranges[i] = added;
	return added;
}

void fake_range_remove(struct fake_range *range)
{
	size_t i = range_index(range->base);

	memmove(ranges + i, ranges + i + 1, (range_count - i - 1) * sizeof(*ranges));
	range_count--;
	free(range);
}

struct fake_range *fake_range_search(bool (*match)(const struct fake_range *range, const void *arg),
				     const void *arg)
{
	for (size_t i = 0; i < range_count; i++)
		if (match(ranges[i], arg))
			return ranges[i];
	return NULL;
}

/* ---- reservations ---------------------------------------------------------------------------- */

static size_t reservation_index(uint64_t address)
{
	size_t low = 0, high = reservation_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (reservations[middle]->base + reservations[middle]->size <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct fake_reservation *fake_reservation_find(uint64_t address)
{
	size_t i = reservation_index(address);

	return i < reservation_count && reservations[i]->base <= address ? reservations[i] : NULL;
}

/* Take a freed reservation of exactly that size. 0: none. */
static uint64_t reservation_reuse(size_t size, size_t alignment)
{
	for (size_t i = freed_count; i-- > 0;) {
		uint64_t base = freed[i].base;

		if (freed[i].size != size || base % alignment)
			continue;
		memmove(freed + i, freed + i + 1, (--freed_count - i) * sizeof(*freed));
		return base;
	}
	return 0;
}

static uint64_t address_reserve(size_t size, size_t alignment, uint64_t hint)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	size_t before;
	char *base;

	if (hint && hint % alignment == 0) {
		/* Only a hint: valgrind 3.19 does not know MAP_FIXED_NOREPLACE. */
		base = mmap((void *)(uintptr_t)hint, size, PROT_NONE, flags, -1, 0);
		if ((uintptr_t)base == hint)
			return hint;
		if (base != MAP_FAILED)
			munmap(base, size);
	}
	base = mmap(NULL, size + alignment, PROT_NONE, flags, -1, 0);
	if (base == MAP_FAILED)
		return 0;
	before = (alignment - (uintptr_t)base % alignment) % alignment;
	if (before)
		munmap(base, before);
	if (alignment > before)
		munmap(base + before + size, alignment - before);
	return (uintptr_t)base + before;
}

uint64_t fake_reserve(size_t size, size_t alignment, uint64_t hint, bool user)
{
	struct fake_reservation *reservation = malloc(sizeof(*reservation));
	void *array = reservations;
	uint64_t base = 0;
	size_t i;

	if (!reservation || !array_grow(&array, reservation_count, &reservation_room))
		goto err_free;
	reservations = array;
	if (!hint)
		base = reservation_reuse(size, alignment);
	if (!base)
		base = address_reserve(size, alignment, hint);
	if (!base)
		goto err_free;
	*reservation = (struct fake_reservation){ .base = base, .size = size, .user = user };
	i = reservation_index(base);
	memmove(reservations + i + 1, reservations + i,
		(reservation_count - i) * sizeof(struct fake_reservation *));
	reservations[i] = reservation;
	reservation_count++;
	return base;

err_free:
	free(reservation);
	return 0;
}

void fake_unreserve(struct fake_reservation *reservation)
{
	size_t i = reservation_index(reservation->base);

	memmove(reservations + i, reservations + i + 1,
		(reservation_count - i - 1) * sizeof(struct fake_reservation *));
	reservation_count--;
	if (fake_settings()->reuse && freed_count < sizeof(freed) / sizeof(freed[0]))
		freed[freed_count++] = *reservation;
	else
		munmap((void *)(uintptr_t)reservation->base, reservation->size);
	free(reservation);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The memfd's name carries the facts that an importing process needs. */
#define NAME_FORMAT "fake-cuda device %d size %zu types %u"

static struct fake_memory *add_memory(int fd, char *alias, size_t size)
{
	struct fake_memory *memory = calloc(1, sizeof(*memory));

	if (!memory)
		return NULL;
	memory->alias = alias;
	madvise(memory->alias, size, MADV_DONTFORK);
	memory->fd = fd;
	memory->size = size;
	memory->id = next_id++;
	wh_list_append(&memories, &memory->link);
	return memory;
}

static struct fake_memory *map_memory(int fd, size_t size)
{
	char *alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct fake_memory *memory;

	if (alias == MAP_FAILED)
		return NULL;
	memory = add_memory(fd, alias, size);
	if (!memory)
		munmap(alias, size);
	return memory;
}

static void memory_charge(struct fake_memory *memory, struct fake_device *device)
{
	memory->device = device;
	memory->charged = true;
	device->used += memory->size;
}

/* Needs the device address `base` first, because the BAR's kernel driver asks for it. */
static int memory_on_bar(struct fake_device *device, uint64_t base, size_t size,
			 struct fake_memory **out)
{
	struct fake_memory *memory;
	char *alias;
	int fd, error;

	if (size > device->memory || device->used > device->memory - size)
		return FAKE_OUT_OF_MEMORY;
	error = fake_bar_map(base, size, true, &fd, &alias);
	if (error)
		return error;
	memory = add_memory(fd, alias, size);
	if (!memory) {
		munmap(alias, size);
		close(fd);
		return FAKE_OUT_OF_MEMORY;
	}
	memory->bar = base;
	memory_charge(memory, device);
	*out = memory;
	return FAKE_OK;
}

/* A memfd; or, so that processes find it which do not see this one, a file of the same name. */
static int memory_file(const char *name)
{
	const char *world = fake_settings()->world;
	char path[PATH_MAX];

	if (!world)
		return memfd_create(name, MFD_CLOEXEC);
	snprintf(path, sizeof(path), "%s/memfd:%s #%d-%llx", world, name, (int)getpid(),
		 (unsigned long long)next_id);
	return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

/* Remove the name of memory that no process uses under it any more. */
static void memory_file_remove(const struct fake_memory *memory)
{
	char link[64], path[PATH_MAX];
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", memory->fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length <= 0)
		return;
	path[length] = 0;
	unlink(path);
}

int fake_memory_new(struct fake_device *device, size_t size, unsigned handle_types,
		    struct fake_memory **out)
{
	struct fake_memory *memory;
	char name[128];
	int fd;

	if (size > device->memory || device->used > device->memory - size)
		return FAKE_OUT_OF_MEMORY;
	snprintf(name, sizeof(name), NAME_FORMAT, device->physical, size, handle_types);
	fd = memory_file(name);
	if (fd < 0)
		return FAKE_OUT_OF_MEMORY;
	memory = ftruncate(fd, (off_t)size) ? NULL : map_memory(fd, size);
	if (!memory) {
		close(fd);
		return FAKE_OUT_OF_MEMORY;
	}
	memory->handle_types = handle_types;
	memory_charge(memory, device);
	*out = memory;
	return FAKE_OK;
}

int fake_memory_import(int fd, struct fake_memory **out)
{
	char path[64], name[192];
	const char *at;
	unsigned types;
	struct stat is;
	size_t size;
	ssize_t length;
	int physical;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, name, sizeof(name) - 1);
	if (length < 0)
		return FAKE_INVALID_VALUE;
	name[length] = 0;
	at = strstr(name, "memfd:fake-cuda");
	/* NOLINTNEXTLINE(cert-err34-c): fake_memory_new() has written the name */
	if (!at || sscanf(at, "memfd:" NAME_FORMAT, &physical, &size, &types) != 3 ||
	    fstat(fd, &is) || (uint64_t)is.st_size != size)
		return FAKE_INVALID_VALUE;
	if (!fake_device_physical(physical))
		return FAKE_INVALID_DEVICE;
	*out = map_memory(fd, size);
	if (!*out)
		return FAKE_OUT_OF_MEMORY;
	(*out)->device = fake_device_physical(physical);
	(*out)->handle_types = types;
	return FAKE_OK;
}

/* Holding fake_map_lock keeps other threads from using the alias meanwhile. */
int fake_memory_to_bar(struct fake_memory *memory, uint64_t base)
{
	char *alias;
	int fd, error = fake_bar_map(base, memory->size, false, &fd, &alias);

	if (error)
		return error;
	memcpy(alias, memory->alias, memory->size);
	madvise(alias, memory->size, MADV_DONTFORK);
	munmap(memory->alias, memory->size);
	close(memory->fd);
	memory->alias = alias;
	memory->fd = fd;
	memory->bar = base;
	return FAKE_OK;
}

/* Defined if the fake kernel driver (nvidia.c) is loaded. */
#pragma weak fake_nvidia_object

static uint32_t object_name(const struct fake_memory *memory)
{
	return 0x5c000000u + (uint32_t)memory->id;
}

uint32_t fake_object(const struct fake_memory *memory)
{
	if (fake_nvidia_object)
		fake_nvidia_object(FAKE_CLIENT, object_name(memory), memory->fd);
	return object_name(memory);
}

void fake_memory_drop(struct fake_memory *memory)
{
	if (memory->handles || memory->mappings)
		return;
	if (shared.memory == memory)
		shared.memory = NULL;
	if (fake_nvidia_object)
		fake_nvidia_object(FAKE_CLIENT, object_name(memory), -1);
	wh_list_remove(&memory->link);
	if (memory->charged)
		memory->device->used -= memory->size;
	if (memory->bar)
		fake_bar_unmap(memory->bar, memory->fd);
	munmap(memory->alias, memory->size);
	if (memory->charged && fake_settings()->world)
		memory_file_remove(memory);
	close(memory->fd);
	free(memory);
}

struct fake_memory *fake_memory_known(uint64_t handle)
{
	for (struct wh_list *l = memories.next; l != &memories; l = l->next) {
		struct fake_memory *memory = wh_container(l, struct fake_memory, link);

		if ((uintptr_t)memory == handle && memory->handles)
			return memory;
	}
	return NULL;
}

/* ---- allocations ----------------------------------------------------------------------------- */

static bool shared_fits(const struct fake_context *context, size_t size, enum fake_kind kind)
{
	return shared.memory && shared.kind == kind && shared.context == context &&
	       size <= shared.memory->size - shared.used;
}

static int shared_new(struct fake_context *context, enum fake_kind kind)
{
	uint64_t base = fake_reserve(FAKE_GRANULARITY, FAKE_GRANULARITY, 0, false);
	int error;

	if (!base)
		return FAKE_OUT_OF_MEMORY;
	error = fake_memory_new(context->device, FAKE_GRANULARITY, 0, &shared.memory);
	if (error) {
		fake_unreserve(fake_reservation_find(base));
		return error;
	}
	shared.base = base;
	shared.used = 0;
	shared.kind = kind;
	shared.context = context;
	return FAKE_OK;
}

static int shared_allocate(struct fake_context *context, size_t size, enum fake_kind kind,
			   uint64_t *out)
{
	struct fake_range range = {
		.size = size,
		.kind = kind,
		.context = kind == FAKE_POOL ? NULL : context,
		.device = context->device,
	};
	int error = shared_fits(context, size, kind) ? FAKE_OK : shared_new(context, kind);

	if (error)
		return error;
	range.memory = shared.memory;
	range.offset = shared.used;
	range.base = shared.base + shared.used;
	if (!fake_range_add(&range))
		return FAKE_OUT_OF_MEMORY;
	range.memory->mappings++;
	shared.used = round_up(shared.used + size, SMALL_START);
	*out = range.base;
	return FAKE_OK;
}

int fake_range_allocate(struct fake_context *context, size_t size, enum fake_kind kind,
			uint64_t *out)
{
	struct fake_range range = {
		.size = size,
		.kind = kind,
		.context = kind == FAKE_POOL ? NULL : context,
		.device = context->device,
		.offset = size < SMALL ? SMALL_START : 0,
	};
	size_t total, alignment = size < SMALL ? 64 << 10 : FAKE_GRANULARITY;
	uint64_t base;
	int error;

	if (size > SIZE_MAX / 4)
		return FAKE_OUT_OF_MEMORY;
	if (fake_settings()->share && size < SMALL)
		return shared_allocate(context, size, kind, out);
	/* Kernel drivers pin whole GPU pages, so an allocation fills whole ones. */
	total = round_up(range.offset + size, FAKE_BAR_PAGE);
	base = fake_reserve(total, alignment, 0, false);
	if (!base)
		return FAKE_OUT_OF_MEMORY;
	if (fake_settings()->bar)
		error = memory_on_bar(context->device, base, total, &range.memory);
	else
		error = fake_memory_new(context->device, total, 0, &range.memory);
	if (error)
		goto err_unreserve;
	range.base = base + range.offset;
	if (!fake_range_add(&range))
		goto err_drop;
	range.memory->mappings++;
	*out = range.base;
	return FAKE_OK;

err_drop:
	fake_memory_drop(range.memory);
	error = FAKE_OUT_OF_MEMORY;
err_unreserve:
	fake_unreserve(fake_reservation_find(base));
	return error;
}

void fake_range_free(struct fake_range *range)
{
	struct fake_reservation *reservation = fake_reservation_find(range->base);

	if (range->kind == FAKE_HOST || range->kind == FAKE_MANAGED)
		munmap((void *)(uintptr_t)range->base, round_up(range->size, PAGE));
	if (range->kind == FAKE_MANAGED)
		range->device->used -= range->size;
	if (range->memory) {
		if (!--range->memory->mappings)
			fake_unreserve(reservation);
		fake_memory_drop(range->memory);
	}
	fake_range_remove(range);
}

static bool range_belongs(const struct fake_range *range, const void *context)
{
	return range->context == context;
}

void fake_ranges_drop(const struct fake_context *context)
{
	struct fake_range *range;

	pthread_rwlock_wrlock(&fake_map_lock);
	while ((range = fake_range_search(range_belongs, context)))
		fake_range_free(range);
	pthread_rwlock_unlock(&fake_map_lock);
}

/* ---- translation ----------------------------------------------------------------------------- */

static bool range_reachable(const struct fake_context *context, enum fake_user user,
			    const struct fake_range *range, bool write)
{
	int own = context->device->ordinal;

	switch (range->kind) {
	case FAKE_MAPPED:
		return range->access[own] & (write ? 2 : 1);
	case FAKE_DEVICE:
	case FAKE_POOL:
		if (user == FAKE_BY_COPY || range->device == context->device)
			return true;
		return range->kind == FAKE_DEVICE && context->peers & 1U << range->device->ordinal;
	case FAKE_REGISTERED:
		return !write || !(range->flags & 8); /* READ_ONLY */
	case FAKE_IMPORTED: /* the opening context has got peer access */
		return user == FAKE_BY_COPY || range->device == context->device ||
		       range->context->device == context->device;
	default:
		return true;
	}
}

char *fake_translate(const struct fake_context *context, enum fake_user user, uint64_t address,
		     size_t *length, bool write)
{
	struct fake_range *range = fake_range_find(address);
	size_t left;

	if (!range || !range_reachable(context, user, range, write))
		return NULL;
	left = range->base + range->size - address;
	if (*length > left)
		*length = left;
	if (!range->memory)
		return (char *)(uintptr_t)address;
	return range->memory->alias + range->offset + (address - range->base);
}

FAKE_API void *fake_cuda_alias(uint64_t address)
{
	struct fake_range *range;
	char *alias = NULL;

	pthread_rwlock_rdlock(&fake_map_lock);
	range = fake_range_find(address);
	if (range && range->memory)
		alias = range->memory->alias + range->offset + (address - range->base);
	else if (range)
		alias = (char *)(uintptr_t)address;
	pthread_rwlock_unlock(&fake_map_lock);
	return alias;
}
