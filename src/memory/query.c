/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wh_memory_query(): describes the memory at an address, from the engine's list of allocations,
 * CUDA and the kernel.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "util/error.h"
#include "util/options.h"

static const char managed[] =
	"managed memory migrates between host and GPU; it is copied through pinned memory";

_Static_assert(sizeof(managed) <= sizeof(((struct wh_memory_info *)0)->refusal), "the text fits");
#define SAME(bit) ((int)WH_EXPORT_##bit == (int)WH_CUDA_EXPORT_##bit)

_Static_assert(SAME(IPC) && SAME(FD) && SAME(POOL_FD) && SAME(DMA_BUF) && SAME(FABRIC),
	       "the bits are passed on unchanged");

/* ---- host memory ------------------------------------------------------- */

static int vma_take_first(void *arg, const struct wh_vma *vma)
{
	*(struct wh_vma *)arg = *vma;
	return 1;
}

/* Can all GPUs of this process access pageable memory? */
static bool gpus_are_unified(struct wh_cuda *cuda)
{
	bool initialised, all;

	if (wh_cuda_attach(cuda, &initialised) || !initialised)
		return false;
	all = cuda->device_count != 0;
	for (unsigned i = 0; i < cuda->device_count; i++)
		all &= cuda->devices[i].pageable;
	return all;
}

static int query_fail(const void *address)
{
	return wh_fail(
		EFAULT,
		"wh_memory_query: no memory at %p: the CPU cannot read it, and CUDA does not "
		"know it; was it freed?",
		address);
}

/* Describe memory that CUDA does not know. info->kind is set if the engine allocated it. */
static int describe_plain(struct wh_memory_domain *domain, const void *address,
			  struct wh_memory_info *info)
{
	uint64_t at = (uintptr_t)address;
	struct wh_vma vma = { 0 };
	int rc = wh_vmas_walk(at, at + 1, vma_take_first, &vma);

	/* The application has freed memory of the engine with the driver. */
	if (info->kind && !wh_kind_on_host(info->kind))
		return query_fail(address);
	if (rc != -ENOSYS && (rc != 1 || !vma.readable))
		return query_fail(address);
	if (!info->kind) {
		info->kind = vma.huge ? WH_MEMORY_HUGE : WH_MEMORY_PAGEABLE;
		info->page_size =
			rc == 1 ? (uint32_t)vma.page_size : (uint32_t)sysconf(_SC_PAGESIZE);
		info->base = (void *)at;
	}
	info->stage = WH_STAGE_SEPARATE;
	if (gpus_are_unified(domain->cuda)) {
		info->stage = WH_STAGE_UNIFIED;
		info->device_address = at;
	}
	info->host_address = at;
	info->numa_node = wh_numa_node(address);
	return 0;
}

/* ---- memory that CUDA knows -------------------------------------------- */

/* Is there a VMM mapping at the address, on this device? */
static bool query_mapping(struct wh_cuda *cuda, uint64_t address,
			  const struct wh_cuda_device *device, struct wh_cuda_pointer *out)
{
	return !wh_cuda_query(cuda, (const void *)(uintptr_t)address, out) && out->vmm &&
	       out->device == device;
}

/* Count the VMM mappings around and including `p` that are adjacent and on its device. */
static uint32_t query_count_mappings(struct wh_cuda *cuda, const struct wh_cuda_pointer *p)
{
	struct wh_cuda_pointer other;
	uint32_t count = 1;

	for (uint64_t at = p->base; at && query_mapping(cuda, at - 1, p->device, &other);
	     at = other.base)
		count++;
	for (uint64_t at = p->base + p->length; at && query_mapping(cuda, at, p->device, &other);
	     at = other.base + other.length)
		count++;
	return count;
}

static void describe_device(struct wh_memory_domain *domain, const struct wh_cuda_pointer *p,
			    struct wh_memory_info *info)
{
	info->kind = p->vmm ? WH_MEMORY_VMM : p->pool ? WH_MEMORY_POOL : WH_MEMORY_DEVICE;
	info->stage = WH_STAGE_SEPARATE;
	info->imported = p->imported;
	info->numa_node = p->device->numa_node;
	if (p->vmm)
		info->mappings = query_count_mappings(domain->cuda, p);
}

static void describe_pinned(const struct wh_cuda_pointer *p, const void *address, bool own,
			    struct wh_memory_info *info)
{
	/* An allocation of the engine keeps its kind, even if the application has locked it. */
	info->pinned =
		own && info->kind >= WH_MEMORY_PINNED ? WH_PINNED_WHERRY : WH_PINNED_APPLICATION;
	if (!own)
		info->kind = WH_MEMORY_PINNED;
	info->stage = p->mapped ? WH_STAGE_MAPPED : WH_STAGE_SEPARATE;
	info->numa_node = wh_numa_node(address);
}

static void describe_managed(const struct wh_cuda_pointer *p, struct wh_memory_info *info)
{
	info->kind = WH_MEMORY_MANAGED;
	info->stage = WH_STAGE_UNIFIED;
	info->numa_node = p->device ? p->device->numa_node : -1;
	memcpy(info->refusal, managed, sizeof(managed));
}

/* Describe memory that CUDA knows. `own`: the engine allocated it. */
static void describe_cuda(struct wh_memory_domain *domain, const struct wh_cuda_pointer *p,
			  const void *address, bool own, struct wh_memory_info *info)
{
	if (!own) {
		info->base = (void *)(uintptr_t)p->base;
		info->length = p->length;
	}
	info->buffer_id = p->buffer_id;
	info->device_address = p->device_address;
	info->host_address = p->host_address;
	info->exports |= p->exports;
	if (p->memory == WH_CUDA_DEVICE)
		describe_device(domain, p, info);
	else if (p->memory == WH_CUDA_HOST)
		describe_pinned(p, address, own, info);
	else
		describe_managed(p, info);
	if (p->device && p->memory != WH_CUDA_HOST) {
		info->device = p->device->ordinal;
		snprintf(info->uuid, sizeof(info->uuid), "%s", p->device->uuid);
		snprintf(info->pci, sizeof(info->pci), "%s", p->device->pci);
	}
	if (wh_kind_on_host(info->kind) && !own)
		info->page_size = (uint32_t)sysconf(_SC_PAGESIZE);
}

/* ---- both -------------------------------------------------------------- */

/* Describe an allocation of the engine. False: it is not one. */
static bool describe_own(struct wh_memory_domain *domain, const void *address,
			 struct wh_memory_info *info)
{
	struct wh_allocation *memory;

	pthread_mutex_lock(&domain->lock);
	memory = wh_allocation_find(domain, address);
	if (memory) {
		info->kind = memory->kind;
		info->page_size = wh_kind_on_host(memory->kind) ? memory->page_size : 0;
		info->base = memory->base;
		info->length = memory->asked;
		info->exports = memory->fd >= 0 ? WH_EXPORT_MEMFD : 0;
	}
	pthread_mutex_unlock(&domain->lock);
	return memory != NULL;
}

int wh_memory_domain_query(struct wh_memory_domain *domain, const void *address,
			   struct wh_memory_info *info)
{
	struct wh_memory_info full = {
		.size = sizeof(full), .device = -1, .numa_node = -1, .mappings = 1
	};
	int error;
	struct wh_cuda_pointer p;
	bool own;

	if (!address || !info)
		return wh_fail(EINVAL, "wh_memory_query: %s is NULL", info ? "address" : "info");
	error = wh_cuda_query(domain->cuda, address, &p);
	if (error)
		return error;
	own = describe_own(domain, address, &full);
	if (p.memory == WH_CUDA_PLAIN)
		error = describe_plain(domain, address, &full);
	else
		describe_cuda(domain, &p, address, own, &full);
	return error ? error : wh_options_return(info, &full, sizeof(full), "wh_memory_query");
}
