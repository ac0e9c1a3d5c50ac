/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wh_memory_alloc() and its list of allocations. This file allocates host memory; gpu.c allocates
 * what takes the CUDA driver.
 *
 * Shared memory is one memfd per allocation. The memfd is sealed, so that a process that maps it
 * can rely on its size. Its mode excludes other users: with a read-only descriptor they could
 * otherwise open it for writing through /proc.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/file-ring.h"
#include "memory/memory.h"
#include "util/error.h"
#include "util/list.h"
#include "util/options.h"

/* Missing in the C libraries of older systems that Wherry builds on. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HUGE_PAGE ((size_t)2 << 20)

static size_t system_page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* Round a length up to whole pages. 0: overflow. */
static size_t length_in_pages(size_t asked, size_t page)
{
	return asked > SIZE_MAX / 2 - page ? 0 : (asked + page - 1) / page * page;
}

static void *pages_map(size_t length, int flags)
{
	void *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags,
			  -1, 0);

	return base == MAP_FAILED ? NULL : base;
}

/* ---- the kinds --------------------------------------------------------- */

/* Bind fresh pages, which nothing has touched, to their NUMA node. On failure they are unmapped. */
static int pages_bind(struct wh_allocation *memory)
{
	int error = memory->node < 0 ? 0 : wh_numa_bind(memory->base, memory->length, memory->node);

	if (error)
		munmap(memory->base, memory->length);
	return error;
}

static int alloc_pageable(struct wh_allocation *memory)
{
	memory->length = length_in_pages(memory->asked, memory->page_size);
	memory->base = memory->length ? pages_map(memory->length, 0) : NULL;
	if (memory->base)
		return pages_bind(memory);
	return wh_fail(ENOMEM, "wh_memory_alloc: no %zu bytes of address space or memory",
		       memory->asked);
}

/* Bind pages of the reserved pool to their node, and touch them now: the pool may have enough
 * pages, but not on that node, and the first access would then raise SIGBUS. False: they are
 * unmapped. */
static bool pages_claim_huge(struct wh_allocation *memory)
{
	if (memory->node < 0)
		return true;
	return !pages_bind(memory) &&
	       (!madvise(memory->base, memory->length, MADV_POPULATE_WRITE) ||
		(munmap(memory->base, memory->length), false));
}

/* Allocate huge pages from the reserved pool if it has enough of them. Else allocate small pages
 * with a hint that the kernel may merge them to huge ones; page_size then stays small. */
static int alloc_huge(struct wh_allocation *memory)
{
	size_t length = length_in_pages(memory->asked, HUGE_PAGE), before;
	char *base;

	if (!length)
		goto err_memory;
	memory->length = length;
	memory->page_size = HUGE_PAGE;
	memory->base = pages_map(length, MAP_HUGETLB | MAP_HUGE_2MB);
	if (memory->base && pages_claim_huge(memory))
		return 0;
	/* Huge pages are aligned to their size: map more, and unmap both ends. */
	base = pages_map(length + HUGE_PAGE, 0);
	if (!base)
		goto err_memory;
	before = (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
	if (before)
		munmap(base, before);
	munmap(base + before + length, HUGE_PAGE - before);
	memory->base = base + before;
	memory->page_size = (uint32_t)system_page_size();
	/* Only a hint: a kernel without huge pages is no reason to fail. */
	madvise(memory->base, length, MADV_HUGEPAGE);
	return pages_bind(memory);

err_memory:
	return wh_fail(ENOMEM,
		       "wh_memory_alloc: no %zu bytes of address space or memory for huge pages",
		       memory->asked);
}

static int memfd_open(void)
{
	int fd = memfd_create("wherry", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL) /* Linux before 6.3 */
		fd = memfd_create("wherry", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0)
		return fd;
	return wh_fail(errno == ENFILE ? EMFILE : errno, "wh_memory_alloc: memfd_create: %s%s",
		       strerror(errno),
		       errno == EMFILE ?
			       "; each shared allocation takes a descriptor: raise ulimit -n" :
			       "");
}

static int alloc_shared(struct wh_allocation *memory)
{
	int error;

	memory->length = length_in_pages(memory->asked, memory->page_size);
	if (!memory->length)
		return wh_fail(ENOMEM, "wh_memory_alloc: no %zu bytes of address space",
			       memory->asked);
	memory->fd = memfd_open();
	if (memory->fd < 0)
		return memory->fd;
	if (ftruncate(memory->fd, (off_t)memory->length)) {
		error = wh_fail(errno == EMFILE ? EMFILE : ENOMEM,
				"wh_memory_alloc: a memfd of %zu bytes: ftruncate: %s",
				memory->length, strerror(errno));
		goto err_close;
	}
	memory->base =
		mmap(NULL, memory->length, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
	if (memory->base == MAP_FAILED) {
		error = wh_fail(ENOMEM, "wh_memory_alloc: a memfd of %zu bytes: mmap: %s",
				memory->length, strerror(errno));
		goto err_close;
	}
	error = pages_bind(memory);
	if (error)
		goto err_close;
	/* No F_SEAL_SEAL yet: shm adds it together with F_SEAL_FUTURE_WRITE, or without, before it
	 * hands the descriptor to another process. */
	if (fchmod(memory->fd, S_IRUSR | S_IWUSR) ||
	    fcntl(memory->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
		error = wh_fail(errno, "wh_memory_alloc: sealing a memfd: %s", strerror(errno));
		goto err_unmap;
	}
	return 0;

err_unmap:
	munmap(memory->base, memory->length);
err_close:
	close(memory->fd);
	return error;
}

/* Shared memory, page-locked for GPUs. */
static int alloc_pinned(struct wh_memory_domain *domain, struct wh_allocation *memory)
{
	int error = alloc_shared(memory);

	if (error)
		return error;
	error = wh_gpu_pin(domain, memory);
	if (error) {
		munmap(memory->base, memory->length);
		close(memory->fd);
	}
	return error;
}

static int alloc_kind(struct wh_memory_domain *domain, struct wh_allocation *memory)
{
	switch (memory->kind) {
	case WH_MEMORY_PAGEABLE:
		return alloc_pageable(memory);
	case WH_MEMORY_HUGE:
		return alloc_huge(memory);
	case WH_MEMORY_SHARED:
		return alloc_shared(memory);
	case WH_MEMORY_PINNED:
		return alloc_pinned(domain, memory);
	default:
		return wh_gpu_alloc(domain, memory);
	}
}

static int free_kind(struct wh_memory_domain *domain, struct wh_allocation *memory)
{
	int error = 0;

	if (memory->kind > WH_MEMORY_PINNED)
		return wh_gpu_free(domain, memory);
	if (memory->kind == WH_MEMORY_PINNED)
		error = wh_gpu_unpin(domain, memory);
	munmap(memory->base, memory->length);
	if (memory->fd >= 0)
		close(memory->fd);
	return error;
}

/* ---- the public functions ---------------------------------------------- */

static int memory_options_check(const struct wh_memory_options *options)
{
	if (options->kind > WH_MEMORY_POOL)
		return wh_fail(EINVAL,
			       "wh_memory_alloc: options.kind is %u, which is not a kind of memory",
			       options->kind);
	if (options->flags & ~(uint32_t)WH_MEMORY_WRITE_COMBINED)
		return wh_fail(EINVAL,
			       "wh_memory_alloc: options.flags is %#x; the only known flag is %#x",
			       options->flags, WH_MEMORY_WRITE_COMBINED);
	if (options->flags && options->kind != WH_MEMORY_MAPPED)
		return wh_fail(
			EINVAL,
			"wh_memory_alloc: options.flags has WRITE_COMBINED, which needs kind "
			"WH_MEMORY_MAPPED, not %u",
			options->kind);
	return 0;
}

int wh_memory_domain_alloc(struct wh_memory_domain *domain, size_t length,
			   const struct wh_memory_options *given, void **out)
{
	struct wh_memory_options options;
	struct wh_allocation *memory;
	int error;

	if (!out || !length)
		return wh_fail(EINVAL, "wh_memory_alloc: %s", out ? "length is 0" : "out is NULL");
	error = wh_options_copy(&options, sizeof(options), given, sizeof(size_t),
				"wh_memory_alloc");
	if (!error)
		error = memory_options_check(&options);
	if (error)
		return error;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return wh_fail(ENOMEM, "wh_memory_alloc: no memory");
	memory->fd = -1;
	memory->asked = length;
	memory->page_size = (uint32_t)system_page_size();
	memory->kind = options.kind ? options.kind : WH_MEMORY_SHARED;
	memory->flags = options.flags;
	error = wh_location_find(domain, options.location, memory);
	if (!error)
		error = alloc_kind(domain, memory);
	if (error) {
		free(memory);
		return error;
	}
	wh_list_init(&memory->members);
	pthread_mutex_lock(&domain->lock);
	memory->number = memory->version = atomic_fetch_add(&domain->number, 1) + 1;
	wh_list_append(&domain->allocations, &memory->link);
	pthread_mutex_unlock(&domain->lock);
	*out = memory->base;
	return 0;
}

struct wh_allocation *wh_allocation_find(struct wh_memory_domain *domain, const void *address)
{
	uintptr_t at = (uintptr_t)address;

	/* From the end: recent allocations are looked up most. */
	for (struct wh_list *l = domain->allocations.prev; l != &domain->allocations; l = l->prev) {
		struct wh_allocation *memory = wh_container(l, struct wh_allocation, link);

		if (at >= (uintptr_t)memory->base && at - (uintptr_t)memory->base < memory->length)
			return memory;
	}
	return NULL;
}

int wh_allocation_holds(struct wh_memory_domain *domain, const void *address, size_t length,
			struct wh_allocation **out)
{
	struct wh_allocation *memory = wh_allocation_find(domain, address);

	if (memory && length > memory->length - (size_t)((const char *)address - memory->base))
		return wh_fail(EINVAL,
			       "wh_region_register: %zu bytes at %p reach past the end of the "
			       "allocation of %zu bytes at %p",
			       length, address, memory->asked, (void *)memory->base);
	*out = memory;
	return 0;
}

int wh_allocation_acquire(struct wh_memory_domain *domain, const void *address, size_t length,
			  struct wh_allocation **out)
{
	int error;

	pthread_mutex_lock(&domain->lock);
	error = wh_allocation_holds(domain, address, length, out);
	if (!error && *out)
		(*out)->regions++;
	pthread_mutex_unlock(&domain->lock);
	return error;
}

void wh_allocation_release(struct wh_memory_domain *domain, struct wh_allocation *allocation)
{
	if (!allocation)
		return;
	pthread_mutex_lock(&domain->lock);
	allocation->regions--;
	pthread_mutex_unlock(&domain->lock);
}

int wh_memory_domain_free(struct wh_memory_domain *domain, void *address)
{
	struct wh_allocation *memory;
	int error = 0;

	pthread_mutex_lock(&domain->lock);
	memory = wh_allocation_find(domain, address);
	if (!memory)
		error = wh_fail(
			EINVAL,
			"wh_memory_free: %p was not allocated by this engine, or is already free",
			address);
	else if (memory->base != address)
		error = wh_fail(EINVAL,
				"wh_memory_free: %p is inside the allocation that starts at %p",
				address, (void *)memory->base);
	else if (memory->regions)
		error = wh_fail(
			EBUSY,
			"wh_memory_free: the allocation at %p holds registered regions (%u); "
			"unregister them first",
			address, memory->regions);
	else
		wh_list_remove(&memory->link);
	pthread_mutex_unlock(&domain->lock);
	if (error)
		return error;
	error = free_kind(domain, memory);
	free(memory);
	return error;
}

unsigned wh_memory_domain_count(struct wh_memory_domain *domain)
{
	unsigned count = 0;

	pthread_mutex_lock(&domain->lock);
	for (struct wh_list *l = domain->allocations.next; l != &domain->allocations; l = l->next)
		count++;
	pthread_mutex_unlock(&domain->lock);
	return count;
}

void wh_memory_domain_init(struct wh_memory_domain *domain)
{
	pthread_mutex_init(&domain->lock, NULL);
	pthread_mutex_init(&domain->registrations_lock, NULL);
	wh_list_init(&domain->allocations);
}

void wh_memory_domain_destroy(struct wh_memory_domain *domain)
{
	if (domain->file_rings)
		wh_file_rings_destroy(domain->file_rings);
	free(domain->file_rings);
	pthread_mutex_destroy(&domain->lock);
	pthread_mutex_destroy(&domain->registrations_lock);
}
