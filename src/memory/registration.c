/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations: what a range of memory is, found out once and shared.
 *
 * There are no hooks into anybody's allocator. Freed memory is noticed by asking: CUDA numbers
 * every allocation and every mapping, and never uses a number again, so the same number is the
 * same memory.
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "util/error.h"

typedef unsigned long long ull;

/* ---- looking ----------------------------------------------------------------------------- */

struct look {
	struct wh_registration *registration;
	size_t room;
	uint64_t reached;
};

static bool same_side(const struct wh_segment *a, const struct wh_cuda_pointer *b)
{
	bool host = b->memory == WH_CUDA_PLAIN || b->memory == WH_CUDA_HOST;

	return a->memory == b->memory ||
	       (host && (a->memory == WH_CUDA_PLAIN || a->memory == WH_CUDA_HOST));
}

/* May it lie in one range with what comes before? */
static int check_next(const struct wh_registration *registration, const struct wh_cuda_pointer *p,
		      uint64_t start)
{
	const struct wh_segment *last;

	if (!registration->segment_count)
		return 0;
	last = &registration->segments[registration->segment_count - 1];
	if (!same_side(last, p))
		return wh_fail(
			EXDEV,
			"wh_region_register: the range at 0x%llx is managed memory in part, and "
			"from 0x%llx on another sort; register a region for each",
			(ull)registration->address, (ull)start);
	if (p->memory != WH_CUDA_DEVICE)
		return 0;
	if (p->device != registration->device)
		return wh_fail(
			EXDEV,
			"wh_region_register: the range at 0x%llx begins on %s, and from 0x%llx on "
			"lies on %s; register a region for each",
			(ull)registration->address, registration->device->text, (ull)start,
			p->device->text);
	if (!p->vmm || !last->vmm)
		return wh_fail(
			EINVAL,
			"wh_region_register: the range at 0x%llx on %s reaches past the end of its "
			"allocation, 0x%llx, into another; register a region for each",
			(ull)registration->address, p->device->text, (ull)start);
	return 0;
}

static int add_segment(void *arg, const struct wh_cuda_pointer *p, uint64_t start, uint64_t count)
{
	struct look *look = arg;
	struct wh_registration *registration = look->registration;
	int error = check_next(registration, p, start);
	struct wh_segment *grown;
	size_t room;

	if (error)
		return error;
	if (registration->segment_count == look->room) {
		room = look->room ? look->room * 2 : 1;
		grown = realloc(registration->segments, room * sizeof(*grown));
		if (!grown)
			return wh_fail(ENOMEM, "wh_region_register: no memory");
		registration->segments = grown;
		look->room = room;
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
	look->reached = start + count;
	return 0;
}

static int no_memory(const struct wh_registration *registration, uint64_t at)
{
	return wh_fail(
		EFAULT,
		"wh_region_register: of 0x%llx and %llu bytes on, there is no memory at 0x%llx: "
		"freed, or never mapped; the CPU cannot read there, and CUDA does not know it",
		(ull)registration->address, (ull)registration->length, (ull)at);
}

/* The walk met host and GPU, or so it seems: an address without memory looks like the host's. */
static int explain_mixed(const struct look *look)
{
	const struct wh_registration *registration = look->registration;
	struct wh_cuda_pointer p;
	uint64_t bad;
	int error = wh_cuda_query(registration->domain->cuda,
				  (const void *)(uintptr_t)look->reached, &p);

	if (error)
		return error;
	if (p.memory == WH_CUDA_PLAIN && wh_vmas_readable(look->reached, 1, &bad))
		return no_memory(registration, look->reached);
	return wh_fail(
		EXDEV,
		"wh_region_register: of 0x%llx and %llu bytes on, a part is host memory and a "
		"part a GPU's; register a region for each",
		(ull)registration->address, (ull)registration->length);
}

/* Of what the engine did not allocate itself. Only where a driver is in the process there may be
 * addresses that are mapped and a GPU's, which takes a longer look. */
static int check_plain(const struct wh_registration *registration)
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
			return no_memory(registration, bad);
	}
	return 0;
}

/* Make the driver wait where it would otherwise come back from a synchronous copy too early for a
 * NIC or a window. It has no such thing for memory of cuMemCreate. */
static int synchronise(struct wh_registration *registration)
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

static uint32_t kind_of_device(const struct wh_segment *segment)
{
	return segment->vmm ? WH_MEMORY_VMM : segment->pool ? WH_MEMORY_POOL : WH_MEMORY_DEVICE;
}

static uint32_t kind_of(const struct wh_registration *registration)
{
	const struct wh_segment *first = registration->segments;

	if (first->memory == WH_CUDA_DEVICE)
		return kind_of_device(first);
	if (first->memory == WH_CUDA_MANAGED)
		return WH_MEMORY_MANAGED;
	/* Pinned is what is pinned in all of its parts, for all GPUs. */
	for (size_t i = 0; i < registration->segment_count; i++) {
		if (registration->segments[i].memory == WH_CUDA_PLAIN)
			return WH_MEMORY_PAGEABLE;
	}
	return WH_MEMORY_PINNED;
}

static void destroy(struct wh_registration *registration)
{
	free(registration->segments);
	free(registration);
}

static int look(struct wh_memory_domain *domain, void *address, size_t length, bool own,
		struct wh_registration **out)
{
	struct wh_registration *registration = calloc(1, sizeof(*registration));
	struct look look = { .registration = registration, .reached = (uintptr_t)address };
	int error;

	if (!registration)
		return wh_fail(ENOMEM, "wh_region_register: no memory");
	registration->domain = domain;
	registration->address = (uintptr_t)address;
	registration->length = length;
	registration->references = 1;
	error = wh_cuda_walk(domain->cuda, address, length, add_segment, &look);
	if (error == -EFAULT)
		error = explain_mixed(&look);
	if (!error && !own)
		error = check_plain(registration);
	if (!error)
		error = synchronise(registration);
	if (error) {
		destroy(registration);
		return error;
	}
	registration->kind = kind_of(registration);
	*out = registration;
	return 0;
}

/* ---- sharing ----------------------------------------------------------------------------- */

static int compare(const void *left, const void *right)
{
	const struct wh_registration *a = left, *b = right;

	if (a->address != b->address)
		return a->address < b->address ? -1 : 1;
	return a->length < b->length ? -1 : a->length > b->length;
}

/* Under registrations_lock. */
static void forget(struct wh_registration *registration)
{
	if (registration->known)
		tdelete(registration, &registration->domain->registrations, compare);
	registration->known = false;
}

/* Under registrations_lock. One that has become stale stays with those who have it. */
static int share(struct wh_memory_domain *domain, void *address, size_t length, bool own,
		 struct wh_registration **out)
{
	const struct wh_registration key = { .address = (uintptr_t)address, .length = length };
	struct wh_registration **found = tfind(&key, &domain->registrations, compare);
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
		forget(registration);
	}
	error = look(domain, address, length, own, &registration);
	if (error)
		return error;
	if (!tsearch(registration, &domain->registrations, compare)) {
		destroy(registration);
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
		return look(domain, address, length, own, out);
	pthread_mutex_lock(&domain->registrations_lock);
	error = share(domain, address, length, own, out);
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
		forget(registration);
	pthread_mutex_unlock(&domain->registrations_lock);
	if (last)
		destroy(registration);
}

/* ---- checking ---------------------------------------------------------------------------- */

static int stale(const struct wh_segment *segment, bool again)
{
	return wh_fail(
		ESTALE,
		"the memory at 0x%llx%s%s was freed%s since it was registered; unregister it "
		"before it is freed",
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
			return stale(segment, !result);
	}
	return 0;
}
