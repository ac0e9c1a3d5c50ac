/* SPDX-License-Identifier: Apache-2.0 */
/* pinned.c: pinned host memory of an engine, divided into semaphores and into slots for staging. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/gpus.h"
#include "util/error.h"

#define SLOTS_AT_ONCE 8
#define SEMAPHORES_AT_ONCE 256 /* 16 bytes of pinned memory each */

/* ---- pinned memory --------------------------------------------------------------------------- */

int wh_gpus_pinning_device(struct wh_gpus *gpus, struct wh_cuda_device *device,
			   struct wh_cuda_device **out)
{
	struct wh_cuda_device *none = NULL;
	int error = 0;

	if (!atomic_load(&gpus->pinning_device) && !device)
		error = wh_cuda_device_at(gpus->cuda, 0, &device);
	if (!error)
		atomic_compare_exchange_strong(&gpus->pinning_device, &none, device);
	if (!error && out)
		*out = atomic_load(&gpus->pinning_device);
	return error;
}

/* Allocate `bytes` of pinned memory, and `entries` bytes of zeroes to describe its parts. Under
 * list_lock. */
static int pinned_new(struct wh_gpus *gpus, size_t bytes, size_t entries, struct wh_pinned **out)
{
	struct wh_pinned *block = calloc(1, sizeof(*block));
	struct wh_cuda *cuda = gpus->cuda;
	struct wh_cuda_device *device;
	struct wh_cuda_scope scope;
	void *memory = NULL;
	int error;

	if (block)
		block->entries = calloc(1, entries);
	if (!block || !block->entries) {
		free(block);
		return wh_fail(ENOMEM, "no memory for the list of pinned buffers");
	}
	error = wh_gpus_pinning_device(gpus, NULL, &device);
	if (!error)
		error = wh_cuda_enter(cuda, device, &scope);
	if (error)
		goto err_free;
	error = wh_cuda_call_on(cuda, device, cuMemHostAlloc, &memory, bytes,
				CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
	if (!error)
		error = wh_cuda_call_on(cuda, device, cuMemHostGetDevicePointer, &block->address,
					memory, 0);
	if (error && memory)
		cuda->cuMemFreeHost(memory);
	wh_cuda_leave(&scope);
	if (error)
		goto err_free;
	block->memory = memory;
	block->next = gpus->pinned;
	gpus->pinned = block;
	*out = block;
	return 0;

err_free:
	free(block->entries);
	free(block);
	return error;
}

/* The same of plain memory, which no GPU addresses. Under list_lock. */
static int plain_new(struct wh_gpus *gpus, size_t bytes, size_t entries, struct wh_pinned **out)
{
	struct wh_pinned *block = calloc(1, sizeof(*block));

	if (block)
		block->entries = calloc(1, entries);
	if (block && block->entries)
		block->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!block || !block->entries || block->memory == MAP_FAILED) {
		if (block)
			free(block->entries);
		free(block);
		return wh_fail(ENOMEM, "no memory for slots of files");
	}
	madvise(block->memory, bytes, MADV_HUGEPAGE);
	block->length = bytes;
	block->next = gpus->plain;
	gpus->plain = block;
	*out = block;
	return 0;
}

static void plain_free(struct wh_gpus *gpus)
{
	struct wh_pinned *block;

	while ((block = gpus->plain)) {
		gpus->plain = block->next;
		munmap(block->memory, block->length);
		free(block->entries);
		free(block);
	}
}

void wh_gpus_pinned_free(struct wh_gpus *gpus)
{
	struct wh_cuda *cuda = gpus->cuda;
	struct wh_cuda_device *device;
	struct wh_pinned *block, *next;
	struct wh_cuda_scope scope;
	struct wh_list *link;
	bool entered;

	plain_free(gpus);
	while ((link = wh_list_take(&gpus->file_pools)))
		free(wh_container(link, struct wh_slot_pool, link));
	if (!gpus->pinned)
		return;
	entered = !wh_gpus_pinning_device(gpus, NULL, &device) &&
		  !wh_cuda_enter(cuda, device, &scope);
	for (block = gpus->pinned; block; block = next) {
		next = block->next;
		if (entered)
			cuda->cuMemFreeHost(block->memory);
		free(block->entries);
		free(block);
	}
	if (entered)
		wh_cuda_leave(&scope);
}

/* ---- semaphores ------------------------------------------------------------------------------ */

/* Under list_lock. */
static int pinned_add_semaphores(struct wh_gpus *gpus)
{
	struct wh_pinned *block;
	int error = pinned_new(gpus, SEMAPHORES_AT_ONCE * 16,
			       SEMAPHORES_AT_ONCE * sizeof(struct wh_semaphore), &block);
	struct wh_semaphore *semaphores;

	if (error)
		return error;
	semaphores = block->entries;
	memset(block->memory, 0, SEMAPHORES_AT_ONCE * 16);
	for (unsigned i = 0; i < SEMAPHORES_AT_ONCE; i++) {
		semaphores[i].value = (_Atomic uint32_t *)(block->memory + 16 * i);
		semaphores[i].address = block->address + 16 * i;
		wh_list_append(&gpus->semaphores_free, &semaphores[i].link);
	}
	return 0;
}

int wh_semaphore_acquire(struct wh_gpus *gpus, struct wh_semaphore **out)
{
	struct wh_list *link;
	int error = 0;

	pthread_mutex_lock(&gpus->list_lock);
	if (wh_list_empty(&gpus->semaphores_free))
		error = pinned_add_semaphores(gpus);
	link = wh_list_take(&gpus->semaphores_free);
	pthread_mutex_unlock(&gpus->list_lock);
	if (link)
		*out = wh_container(link, struct wh_semaphore, link);
	return link ? 0 : error;
}

void wh_semaphore_release(struct wh_gpus *gpus, struct wh_semaphore *semaphore)
{
	pthread_mutex_lock(&gpus->list_lock);
	wh_list_append(&gpus->semaphores_free, &semaphore->link);
	pthread_mutex_unlock(&gpus->list_lock);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void slots_lay_out(struct wh_slot *slots, unsigned count, const struct wh_pinned *block)
{
	for (unsigned i = 0; i < count; i++) {
		slots[i].host = block->memory + i * WH_SLOT;
		slots[i].address = block->address ? block->address + i * WH_SLOT : 0;
	}
}

int wh_slots_contiguous(struct wh_gpus *gpus, unsigned count, struct wh_slot *out)
{
	struct wh_pinned *block = NULL;
	int error;

	pthread_mutex_lock(&gpus->list_lock);
	error = pinned_new(gpus, count * WH_SLOT, 1, &block);
	if (!error)
		slots_lay_out(out, count, block);
	pthread_mutex_unlock(&gpus->list_lock);
	return error;
}

/* Allocate SLOTS_AT_ONCE more. Under list_lock. */
static int pool_add_slots(struct wh_gpus *gpus, struct wh_slot_pool *pool)
{
	size_t bytes = SLOTS_AT_ONCE * WH_SLOT, entries = SLOTS_AT_ONCE * sizeof(struct wh_slot);
	struct wh_pinned *block;
	struct wh_slot *slots;
	int error = pool->use == WH_SLOT_FILE_INITIATOR || pool->use == WH_SLOT_FILE_OWNER ?
			    plain_new(gpus, bytes, entries, &block) :
			    pinned_new(gpus, bytes, entries, &block);

	if (error)
		return error;
	slots = block->entries;
	slots_lay_out(slots, SLOTS_AT_ONCE, block);
	for (unsigned i = 0; i < SLOTS_AT_ONCE; i++) {
		slots[i].use = pool->use;
		slots[i].pool = pool;
		wh_list_append(&pool->slots, &slots[i].link);
	}
	pool->count += SLOTS_AT_ONCE;
	/* A file's bytes go through those of WH_SLOT_OWNER only if one request has GPU memory, too.
	 */
	if (pool->use != WH_SLOT_OWNER)
		wh_file_buffers_add(&gpus->file_buffers, block->memory, bytes);
	return 0;
}

struct wh_file_buffers *wh_gpus_file_buffers(struct wh_gpus *gpus)
{
	return &gpus->file_buffers;
}

/* Without memory for another pool, that for no file in particular. Under list_lock. */
static struct wh_slot_pool *pool_of(struct wh_gpus *gpus, enum wh_slot_use use,
				    const struct wh_file_system *system)
{
	struct wh_slot_pool *pool;

	if (!system)
		return &gpus->pools[use];
	for (struct wh_list *l = gpus->file_pools.next; l != &gpus->file_pools; l = l->next) {
		pool = wh_container(l, struct wh_slot_pool, link);
		if (pool->system == system && pool->use == use)
			return pool;
	}
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return &gpus->pools[use];
	pool->use = use;
	pool->system = system;
	wh_list_init(&pool->slots);
	wh_list_init(&pool->waiters);
	wh_list_append(&gpus->file_pools, &pool->link);
	return pool;
}

int wh_slots_prepare_file(struct wh_gpus *gpus, enum wh_slot_use use,
			  const struct wh_file_system *system)
{
	struct wh_slot_pool *pool;
	int error = 0;

	pthread_mutex_lock(&gpus->list_lock);
	pool = pool_of(gpus, use, system);
	if (!pool->count)
		error = pool_add_slots(gpus, pool);
	pthread_mutex_unlock(&gpus->list_lock);
	return error;
}

int wh_slots_prepare(struct wh_gpus *gpus, enum wh_slot_use use)
{
	return wh_slots_prepare_file(gpus, use, NULL);
}

struct wh_slot *wh_slot_acquire_file(struct wh_gpus *gpus, enum wh_slot_use use,
				     const struct wh_file_system *system, struct wh_slot_wait *wait)
{
	struct wh_slot_pool *pool;
	struct wh_list *link;

	pthread_mutex_lock(&gpus->list_lock);
	pool = pool_of(gpus, use, system);
	if (wh_list_empty(&pool->slots) && pool->count < WH_SLOTS)
		pool_add_slots(gpus, pool); /* on failure: as if none were free */
	/* It had no pool of its own when the first slots were prepared. */
	if (!pool->count && gpus->pools[use].count)
		pool = &gpus->pools[use];
	link = wh_list_take(&pool->slots);
	if (!link && wait)
		wh_list_append(&pool->waiters, &wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	return link ? wh_container(link, struct wh_slot, link) : NULL;
}

struct wh_slot *wh_slot_acquire(struct wh_gpus *gpus, enum wh_slot_use use,
				struct wh_slot_wait *wait)
{
	return wh_slot_acquire_file(gpus, use, NULL, wait);
}

bool wh_slot_cancel_wait(struct wh_gpus *gpus, struct wh_slot_wait *wait)
{
	bool waits;

	pthread_mutex_lock(&gpus->list_lock);
	waits = wait->link.next;
	wh_list_remove(&wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	return waits;
}

/* A waiter may give its slot back from inside `ready`. If that called the next waiter's `ready`,
 * thousands of calls could nest. So one thread at a time hands slots out, in a loop, until no
 * waiter or no slot is left; the others only add their slot to the list. */
void wh_slot_release(struct wh_gpus *gpus, struct wh_slot *slot)
{
	struct wh_slot_pool *pool = slot->pool;
	struct wh_slot_wait *wait;

	pthread_mutex_lock(&gpus->list_lock);
	/* First, because its memory is still in a CPU cache. */
	wh_list_push(&pool->slots, &slot->link);
	if (pool->handing_out) {
		pthread_mutex_unlock(&gpus->list_lock);
		return;
	}
	pool->handing_out = true;
	while (!wh_list_empty(&pool->waiters) && !wh_list_empty(&pool->slots)) {
		wait = wh_container(wh_list_take(&pool->waiters), struct wh_slot_wait, link);
		slot = wh_container(wh_list_take(&pool->slots), struct wh_slot, link);
		pthread_mutex_unlock(&gpus->list_lock);
		wait->ready(wait, slot);
		pthread_mutex_lock(&gpus->list_lock);
	}
	pool->handing_out = false;
	pthread_mutex_unlock(&gpus->list_lock);
}
