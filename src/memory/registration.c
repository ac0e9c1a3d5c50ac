/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations: what a range of memory is, found out once, then shared.
 *
 * No allocator is hooked. Freed memory is found by comparing numbers: CUDA numbers every allocation
 * and every mapping and never reuses a number, so the same number means the same memory.
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "memory/file.h"
#include "memory/memory.h"
#include "util/error.h"

typedef unsigned long long ull;

/* ---- describing a range ------------------------------------------------ */

/* The state of the walk through a range. */
struct registration_walk {
	struct wh_registration *registration;
	size_t room; /* of registration.segments */
	uint64_t reached; /* end of the last segment */
};

/* Are both host memory, or both of the same sort? */
static bool segment_same_side(const struct wh_segment *a, const struct wh_cuda_pointer *b)
{
	bool host = b->memory == WH_CUDA_PLAIN || b->memory == WH_CUDA_HOST;

	return a->memory == b->memory ||
	       (host && (a->memory == WH_CUDA_PLAIN || a->memory == WH_CUDA_HOST));
}

/* May memory at `start` be in one range with the segments before it? */
static int segment_check_next(const struct wh_registration *registration,
			      const struct wh_cuda_pointer *p, uint64_t start)
{
	const struct wh_segment *last;

	if (!registration->segment_count)
		return 0;
	last = &registration->segments[registration->segment_count - 1];
	if (!segment_same_side(last, p))
		return wh_fail(
			EXDEV,
			"wh_region_register: the range at 0x%llx mixes managed and other memory "
			"(from 0x%llx on); register a region for each",
			(ull)registration->address, (ull)start);
	if (p->memory != WH_CUDA_DEVICE)
		return 0;
	if (p->device != registration->device)
		return wh_fail(
			EXDEV,
			"wh_region_register: the range at 0x%llx begins on %s and continues at "
			"0x%llx on %s; register a region for each",
			(ull)registration->address, registration->device->text, (ull)start,
			p->device->text);
	if (!p->vmm || !last->vmm)
		return wh_fail(
			EINVAL,
			"wh_region_register: the range at 0x%llx on %s reaches past the end of its "
			"allocation at 0x%llx, into another; register a region for each",
			(ull)registration->address, p->device->text, (ull)start);
	return 0;
}

/* Append a segment. Called by wh_cuda_walk(). */
static int segment_add(void *arg, const struct wh_cuda_pointer *p, uint64_t start, uint64_t count)
{
	struct registration_walk *walk = arg;
	struct wh_registration *registration = walk->registration;
	int error = segment_check_next(registration, p, start);
	struct wh_segment *grown;
	size_t room;

	if (error)
		return error;
	if (registration->segment_count == walk->room) {
		room = walk->room ? walk->room * 2 : 1;
		grown = realloc(registration->segments, room * sizeof(*grown));
		if (!grown)
			return wh_fail(ENOMEM, "wh_region_register: no memory");
		registration->segments = grown;
		walk->room = room;
	}
	if (!registration->segment_count && p->memory != WH_CUDA_HOST)
		registration->device = p->device;
	registration->segments[registration->segment_count++] = (struct wh_segment){
		.start = start,
		.length = count,
		.memory = p->memory,
		.device = p->memory == WH_CUDA_HOST ? NULL : p->device,
		.context = p->context,
		.base = p->base,
		.size = p->length,
		.device_address = p->device_address,
		.host_address = p->memory == WH_CUDA_PLAIN ? start : p->host_address,
		.buffer_id = p->buffer_id,
		.memory_id = p->memory_id,
		.exports = p->exports,
		.vmm = p->vmm,
		.pool = p->pool,
		.imported = p->imported,
		.rdma = p->rdma,
		.sync_memops = p->sync_memops,
	};
	walk->reached = start + count;
	return 0;
}

static int registration_no_memory(const struct wh_registration *registration, uint64_t at)
{
	return wh_fail(
		EFAULT,
		"wh_region_register: the range at 0x%llx, %llu bytes, has no memory at 0x%llx: the "
		"CPU cannot read it, and CUDA does not know it; was it freed, or never mapped?",
		(ull)registration->address, (ull)registration->length, (ull)at);
}

/* Explain why the walk failed with -EFAULT: the range has host and GPU memory, or only seems to,
 * because CUDA reports an address without memory like host memory. */
static int registration_explain_mixed(const struct registration_walk *walk)
{
	const struct wh_registration *registration = walk->registration;
	struct wh_cuda_pointer p;
	uint64_t bad;
	int error = wh_cuda_query(registration->domain->cuda,
				  (const void *)(uintptr_t)walk->reached, &p);

	if (error)
		return error;
	if (p.memory == WH_CUDA_PLAIN && wh_vmas_readable(walk->reached, 1, &bad))
		return registration_no_memory(registration, walk->reached);
	return wh_fail(
		EXDEV,
		"wh_region_register: the range at 0x%llx, %llu bytes, mixes host and GPU memory; "
		"register a region for each",
		(ull)registration->address, (ull)registration->length);
}

/* Check that host memory is there, if the engine did not allocate it. Addresses reserved for a GPU
 * are mapped but not readable; they exist only if a driver is loaded, and take a longer check. */
static int registration_check_plain(const struct wh_registration *registration)
{
	bool driver = wh_cuda_present(registration->domain->cuda), there;
	uint64_t bad;

	for (size_t i = 0; i < registration->segment_count; i++) {
		const struct wh_segment *segment = &registration->segments[i];

		if (segment->memory != WH_CUDA_PLAIN)
			continue;
		there = driver ? !wh_vmas_readable(segment->start, segment->length, &bad) :
				 wh_vmas_mapped(segment->start, segment->length, &bad);
		if (!there)
			return registration_no_memory(registration, bad);
	}
	return 0;
}

/* Set SYNC_MEMOPS, so that the application's synchronous copies return only when a NIC or a window
 * can read their bytes. The driver does not have it for memory of cuMemCreate. */
static int registration_synchronise(struct wh_registration *registration)
{
	for (size_t i = 0; i < registration->segment_count; i++) {
		struct wh_segment *segment = &registration->segments[i];
		int error;

		if (segment->memory != WH_CUDA_DEVICE || segment->vmm || segment->sync_memops)
			continue;
		error = wh_cuda_sync_memops(registration->domain->cuda, segment->start);
		if (error && error != -EOPNOTSUPP)
			return error;
		segment->sync_memops = !error;
	}
	return 0;
}

static uint32_t segment_kind(const struct wh_segment *segment)
{
	return segment->vmm ? WH_MEMORY_VMM : segment->pool ? WH_MEMORY_POOL : WH_MEMORY_DEVICE;
}

static uint32_t registration_kind(const struct wh_registration *registration)
{
	const struct wh_segment *first = registration->segments;

	if (first->memory == WH_CUDA_DEVICE)
		return segment_kind(first);
	if (first->memory == WH_CUDA_MANAGED)
		return WH_MEMORY_MANAGED;
	/* Pinned only if all of it is. */
	for (size_t i = 0; i < registration->segment_count; i++) {
		if (registration->segments[i].memory == WH_CUDA_PLAIN)
			return WH_MEMORY_PAGEABLE;
	}
	return WH_MEMORY_PINNED;
}

static void registration_free(struct wh_registration *registration)
{
	wh_file_close(registration->file);
	free(registration->segments);
	free(registration);
}

/* Make the registration of a range. `own`: the engine allocated the memory. */
static int registration_make(struct wh_memory_domain *domain, void *address, size_t length,
			     bool own, struct wh_registration **out)
{
	struct wh_registration *registration = calloc(1, sizeof(*registration));
	struct registration_walk walk = { .registration = registration,
					  .reached = (uintptr_t)address };
	int error;

	if (!registration)
		return wh_fail(ENOMEM, "wh_region_register: no memory");
	registration->domain = domain;
	registration->address = (uintptr_t)address;
	registration->length = length;
	registration->references = 1;
	error = wh_cuda_walk(domain->cuda, address, length, segment_add, &walk);
	if (error == -EFAULT)
		error = registration_explain_mixed(&walk);
	if (!error && !own)
		error = registration_check_plain(registration);
	if (!error)
		error = registration_synchronise(registration);
	if (error) {
		registration_free(registration);
		return error;
	}
	registration->kind = registration_kind(registration);
	*out = registration;
	return 0;
}

/* ---- sharing ----------------------------------------------------------- */

static int registration_compare(const void *left, const void *right)
{
	const struct wh_registration *a = left, *b = right;

	if (a->address != b->address)
		return a->address < b->address ? -1 : 1;
	return a->length < b->length ? -1 : a->length > b->length;
}

/* Remove a registration from the tree. Under registrations_lock. */
static void registration_remove(struct wh_registration *registration)
{
	if (registration->known)
		tdelete(registration, &registration->domain->registrations, registration_compare);
	registration->known = false;
}

/* Find or make the registration of a range that CUDA knows. Under registrations_lock. A stale one
 * is replaced in the tree; its users keep it. */
static int registration_share(struct wh_memory_domain *domain, void *address, size_t length,
			      bool own, struct wh_registration **out)
{
	const struct wh_registration key = { .address = (uintptr_t)address, .length = length };
	struct wh_registration **found = tfind(&key, &domain->registrations, registration_compare);
	struct wh_registration *registration = NULL;
	int error;

	if (found) {
		registration = *found;
		error = wh_registration_check(registration);
		if (!error) {
			registration->references++;
			*out = registration;
		}
		if (error != -ESTALE)
			return error;
		registration_remove(registration);
	}
	error = registration_make(domain, address, length, own, &registration);
	if (error)
		return error;
	if (!tsearch(registration, &domain->registrations, registration_compare)) {
		registration_free(registration);
		return wh_fail(ENOMEM, "wh_region_register: no memory");
	}
	registration->known = true;
	*out = registration;
	return 0;
}

int wh_registration_get(struct wh_memory_domain *domain, void *address, size_t length,
			struct wh_registration **out)
{
	struct wh_allocation *memory;
	struct wh_cuda_pointer p;
	bool own;
	int error;

	pthread_mutex_lock(&domain->lock);
	error = wh_allocation_holds(domain, address, length, &memory);
	own = !error && memory && memory->kind <= WH_MEMORY_SHARED;
	pthread_mutex_unlock(&domain->lock);
	if (error)
		return error;
	error = wh_cuda_query(domain->cuda, address, &p);
	if (error)
		return error;
	if (p.memory == WH_CUDA_PLAIN)
		return registration_make(domain, address, length, own, out);
	pthread_mutex_lock(&domain->registrations_lock);
	error = registration_share(domain, address, length, own, out);
	pthread_mutex_unlock(&domain->registrations_lock);
	return error;
}

void wh_registration_put(struct wh_registration *registration)
{
	struct wh_memory_domain *domain;
	bool last;

	if (!registration)
		return;
	domain = registration->domain;
	pthread_mutex_lock(&domain->registrations_lock);
	last = !--registration->references;
	if (last)
		registration_remove(registration);
	pthread_mutex_unlock(&domain->registrations_lock);
	if (last)
		registration_free(registration);
}

/* ---- checking ---------------------------------------------------------- */

static int registration_stale(const struct wh_segment *segment, bool again)
{
	return wh_fail(
		ESTALE,
		"the memory at 0x%llx%s%s was freed%s since it was registered; unregister regions "
		"before freeing their memory",
		(ull)segment->start, segment->device ? " on " : "",
		segment->device ? segment->device->text : "",
		again ? ", and allocated again," : "");
}

int wh_registration_check(const struct wh_registration *registration)
{
	struct wh_cuda *cuda = registration->domain->cuda;

	for (size_t i = 0; i < registration->segment_count; i++) {
		const struct wh_segment *segment = &registration->segments[i];
		uint64_t id = 0;
		int result;

		if (!segment->buffer_id)
			continue;
		result = cuda->cuPointerGetAttribute(&id, CUDA_POINTER_BUFFER_ID, segment->start);
		if (result && result != CUDA_INVALID_VALUE)
			return wh_cuda_check(cuda, result, "cuPointerGetAttribute",
					     "BUFFER_ID of 0x%llx", (ull)segment->start);
		if (result || id != segment->buffer_id)
			return registration_stale(segment, !result);
	}
	return 0;
}
