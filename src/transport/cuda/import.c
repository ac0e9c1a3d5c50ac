/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport cuda: device mappings of a peer's regions. The owner sends handles of GPU memory, one
 * for each segment, over the unix socket of the transport shm; they are imported and mapped here.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/shm/shm.h"
#include "transport/shm/wire.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"

typedef unsigned long long ull;

struct import {
	struct wh_device_mappings *mappings;
	struct wh_remote_region *region;
	struct wh_device_mapping *mapping;
	struct wh_cuda_device *device;
	bool apart; /* from a GPU of another host, in this domain */
	struct wh_fabric_domain domain;
	uint8_t type;
	uint64_t owner_base; /* in the owner's address space: where the first mapping begins */
	uint64_t mapped; /* bytes that are mapped, from owner_base on */
	uint64_t covered; /* end of the segments that the owner has sent handles for */
	CUallocation *memory; /* by segment, to be mapped; released afterwards */
	uint64_t *sizes;
	uint32_t count, segments;
};

/* As nvidia-smi and CUDA_VISIBLE_DEVICES write it. */
static void uuid_text(char out[sizeof("GPU-") + 36], const uint8_t uuid[16])
{
	const size_t size = sizeof("GPU-") + 36;
	size_t at = (size_t)snprintf(out, size, "GPU-");

	for (int i = 0; i < 16; i++)
		at += (size_t)snprintf(out + at, size - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static int import_find_device(struct import *import, const uint8_t uuid[16], char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(import->mappings->gpus);
	char text[sizeof("GPU-") + 36];
	struct wh_cuda_uuid known;

	for (unsigned i = 0; i < cuda->device_count; i++) {
		if (cuda->cuDeviceGetUuid(&known, cuda->devices[i].handle) ||
		    memcmp(known.bytes, uuid, sizeof(known.bytes)))
			continue;
		if (*cuda->devices[i].skipped) {
			snprintf(why, WH_REFUSAL, "%.*s", WH_REFUSAL - 1, cuda->devices[i].skipped);
			return -ENODEV;
		}
		import->device = &cuda->devices[i];
		return 0;
	}
	uuid_text(text, uuid);
	snprintf(why, WH_REFUSAL,
		 "%s is not visible here: give this process, or its container, the GPU, too "
		 "(CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES)",
		 text);
	return -ENODEV;
}

/* A GPU of ours that reaches those of another host, to stand for them. */
static int import_find_stand_in(struct import *import, char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(import->mappings->gpus);
	struct wh_cuda_device *device;

	/* The one that host memory is pinned for, if it can be. */
	if (!wh_gpus_pinning_device(import->mappings->gpus, NULL, &device) &&
	    wh_fabric_domain_has(import->mappings, device, &import->domain))
		import->device = device;
	for (unsigned i = 0; i < cuda->device_count && !import->device; i++) {
		if (wh_fabric_domain_has(import->mappings, &cuda->devices[i], &import->domain))
			import->device = &cuda->devices[i];
	}
	if (!import->device)
		snprintf(why, WH_REFUSAL, "no GPU here is in the NVLink domain of the peer's");
	return import->device ? 0 : -ENODEV;
}

/* Check that the segments are contiguous, in the region and in the mappings, and of one kind. */
static int import_check_order(struct import *import, const struct wh_exported *e,
			      char why[WH_REFUSAL])
{
	const struct wh_region_entry *entry = &import->region->entry;
	bool first = !e->index;
	uint64_t at = first ? entry->address : import->covered;

	if (e->type == WH_HANDLE_OBJECT || e->address != at ||
	    e->length > entry->address + entry->length - at ||
	    (!first &&
	     (e->type != import->type || e->base != import->owner_base + import->mapped)) ||
	    (e->type == WH_HANDLE_LEGACY && e->segments != 1) ||
	    (e->index + 1 == e->segments && at + e->length != entry->address + entry->length) ||
	    e->size > UINT64_C(1) << 46) {
		snprintf(why, WH_REFUSAL,
			 "the peer's answers contradict each other: its segments are not "
			 "contiguous, or "
			 "of two kinds");
		return -EPROTO;
	}
	return 0;
}

static int import_keep_legacy(struct import *import, const struct wh_exported *e,
			      char why[WH_REFUSAL])
{
	struct wh_legacy *legacy = calloc(1, sizeof(*legacy));

	if (!legacy) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	memcpy(legacy->handle.bytes, e->handle, sizeof(legacy->handle.bytes));
	legacy->skip = e->address - e->base;
	legacy->size = e->size;
	import->mapping->legacy = legacy;
	return 0;
}

/* cuMemCreate memory, by a descriptor or by a fabric handle. */
static int import_handle(struct import *import, const struct wh_exported *e, int fd,
			 char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(import->mappings->gpus);
	bool fabric = e->type == WH_HANDLE_FABRIC;
	uint8_t handle[sizeof(e->handle)];
	struct wh_cuda_scope scope;
	int error;

	memcpy(handle, e->handle, sizeof(handle));
	if (!fabric && fd < 0) {
		snprintf(why, WH_REFUSAL,
			 "no descriptor came with the peer's answer; is the limit of open files "
			 "reached (ulimit -n)?");
		return -EMFILE;
	}
	if (!import->memory) {
		import->segments = e->segments;
		import->memory = calloc(e->segments, sizeof(*import->memory));
		import->sizes = calloc(e->segments, sizeof(*import->sizes));
		if (!import->memory || !import->sizes) {
			snprintf(why, WH_REFUSAL, "no memory for %u segments", e->segments);
			return -ENOMEM;
		}
	}
	wh_cuda_relax(cuda, &scope);
	error = wh_cuda_call_on(cuda, import->device, cuMemImportFromShareableHandle,
				&import->memory[import->count],
				fabric ? (void *)handle : (void *)(intptr_t)fd,
				fabric ? CUDA_HANDLE_FABRIC : CUDA_HANDLE_FD);
	wh_cuda_leave(&scope);
	if (error)
		return wh_cuda_refuse(why, error);
	import->sizes[import->count++] = e->size;
	return 0;
}

static int import_segment(void *argument, const struct wh_exported *e, int *fd,
			  char why[WH_REFUSAL])
{
	struct import *import = argument;
	int error = import_check_order(import, e, why);

	if (!error && !e->index) {
		error = import->apart ? import_find_stand_in(import, why) :
					import_find_device(import, e->device, why);
		import->owner_base = e->base;
		import->type = e->type;
	}
	if (error)
		return error;
	import->covered = e->address + e->length;
	import->mapped += e->size;
	return e->type == WH_HANDLE_LEGACY ? import_keep_legacy(import, e, why) :
					     import_handle(import, e, *fd, why);
}

/* Give the device, and every device that reaches it, access to a range of address space. */
static int import_admit(struct import *import, struct wh_cuda *cuda,
			struct wh_device_mapping *mapping)
{
	struct wh_cuda_access access[WH_CUDA_DEVICES];
	uint64_t all = 0;
	size_t count = 0;
	int error;

	for (unsigned d = 0; d < cuda->device_count; d++) {
		struct wh_cuda_device *device = &cuda->devices[d];

		if (import->apart ?
			    !wh_fabric_domain_has(import->mappings, device, &import->domain) :
			    device != mapping->device &&
				    !wh_cuda_device_peers(device, mapping->device))
			continue;
		access[count++] = (struct wh_cuda_access){
			.location = { CUDA_LOCATION_DEVICE, device->handle }, .flags = 3
		};
		all |= wh_device_bit(device);
	}
	error = wh_cuda_call_on(cuda, mapping->device, cuMemSetAccess, mapping->reserved,
				mapping->size, access, count);
	if (!error)
		atomic_store(&mapping->reached, all);
	return error;
}

/* Map the imported segments one after the other, as at the owner. In a CUDA scope, because some
 * drivers need a current context. */
static int import_map_segments(struct import *import)
{
	struct wh_cuda *cuda = wh_gpus_cuda(import->mappings->gpus);
	struct wh_device_mapping *mapping = import->mapping;
	CUdeviceptr at;
	int error;

	error = wh_cuda_call_on(cuda, mapping->device, cuMemAddressReserve, &at, import->mapped, 0,
				0, 0);
	if (error)
		return error;
	mapping->reserved = at;
	mapping->reserved_length = import->mapped;
	mapping->fixed = true;
	for (uint32_t i = 0; i < import->count; i++) {
		error = wh_cuda_check(cuda,
				      cuda->cuMemMap(at, import->sizes[i], 0, import->memory[i], 0),
				      "cuMemMap", "%llu bytes of a peer's memory on %s",
				      (ull)import->sizes[i], mapping->device->text);
		if (error)
			return error;
		at += import->sizes[i];
		mapping->size += import->sizes[i];
	}
	mapping->address = mapping->reserved + (import->region->entry.address - import->owner_base);
	return import_admit(import, cuda, mapping);
}

/* All segments have come, or `error`. */
static int import_finish(struct import *import, int error, char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(import->mappings->gpus);
	struct wh_cuda_scope scope;

	import->mapping->device = import->device;
	if (!error)
		wh_gpus_pinning_device(import->mappings->gpus, import->device, NULL);
	if (!error && import->type != WH_HANDLE_LEGACY) {
		error = wh_cuda_enter(cuda, import->device, &scope);
		if (!error) {
			error = import_map_segments(import);
			wh_cuda_leave(&scope);
		}
		if (error)
			wh_cuda_refuse(why, error);
	}
	if (import->count) {
		wh_cuda_relax(cuda, &scope);
		for (uint32_t i = 0; i < import->count; i++)
			cuda->cuMemRelease(import->memory[i]);
		wh_cuda_leave(&scope);
	}
	free(import->memory);
	free(import->sizes);
	return error;
}

/* ---- from another host ----------------------------------------------------------------------- */

static int import_fabric_segment(void *argument, const struct wh_exported *e,
				 const struct wh_fabric_domain *domain, char why[WH_REFUSAL])
{
	struct import *import = argument;
	int none = -1;

	if (!e->index)
		import->domain = *domain;
	return import_segment(import, e, &none, why);
}

int wh_fabric_import(struct wh_cuda_peer *cuda, struct wh_remote_region *region,
		     struct wh_device_mapping **out, char why[WH_REFUSAL])
{
	struct import import = { .mappings = cuda->mappings, .region = region, .apart = true };
	int error = -ENOMEM;

	import.mapping = wh_device_mapping_new(why);
	if (!import.mapping)
		return error;
	import.mapping->fabric = true;
	import.mapping->region = region;
	error = wh_fabric_exports(cuda, region, import_fabric_segment, &import, why);
	error = import_finish(&import, error, why);
	if (!error) {
		*out = import.mapping;
		return 0;
	}
	pthread_mutex_lock(&cuda->mappings->lock);
	wh_device_mapping_free(cuda->mappings, import.mapping);
	pthread_mutex_unlock(&cuda->mappings->lock);
	return error;
}

/* ---- from a process of this host ------------------------------------------------------------- */

/* The memory is mapped already: tell the owner on the new connection. */
static int import_forget_segment(void *argument, const struct wh_exported *e, int *fd,
				 char why[WH_REFUSAL])
{
	(void)argument;
	(void)e;
	(void)fd;
	(void)why;
	return 0;
}

static void mapping_drop(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping)
{
	pthread_mutex_lock(&mappings->lock);
	wh_device_mapping_free(mappings, mapping);
	pthread_mutex_unlock(&mappings->lock);
}

static int mapping_make_remote(struct wh_device_mappings *mappings, struct wh_shm_peer *shm,
			       struct wh_remote_region *region, struct wh_device_mapping **out,
			       char why[WH_REFUSAL])
{
	struct wh_device_mapping *mapping = wh_device_mapping_new(why);
	struct wh_shm_own own;
	int error = -ENOMEM;

	if (!mapping)
		return error;
	if (wh_kind_on_host(region->entry.kind)) {
		error = wh_shm_map(shm, region, &own, why);
		if (!error) {
			mapping->host = mapping->mapped = own.base;
			mapping->mapped_length = own.length;
			wh_pin_map(mappings, mapping, own.base, own.length,
				   region->entry.access & WH_ACCESS_WRITE);
		}
	} else {
		struct import import = { .mappings = mappings,
					 .region = region,
					 .mapping = mapping };

		error = wh_shm_exports(shm, region, false, import_segment, &import, why);
		error = import_finish(&import, error, why);
	}
	if (error)
		mapping_drop(mappings, mapping);
	else
		*out = mapping;
	return error;
}

/* Without mappings.lock while the owner is asked: an engine without threads serves its peers
 * meanwhile, and what they withdraw frees other mappings. Two threads may ask at once; the mapping
 * of the first one stays. */
static int mapping_remote(struct wh_device_mappings *mappings, struct wh_shm_peer *shm,
			  struct wh_remote_region *region, struct wh_device_mapping **out,
			  char why[WH_REFUSAL])
{
	struct wh_device_mapping *made = NULL;
	void *mapping =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_CUDA], memory_order_acquire);
	int error;

	if (!mapping || !wh_shm_asked(shm, region)) {
		error = wh_cuda_ready(wh_gpus_cuda(mappings->gpus));
		if (error)
			return wh_cuda_refuse(why, error);
		if (!wh_plan_may_linger()) {
			snprintf(why, WH_REFUSAL, "the peer is still to be asked for its memory");
			return -EINPROGRESS;
		}
		if (!mapping)
			error = mapping_make_remote(mappings, shm, region, &made, why);
		else
			error = wh_kind_on_host(region->entry.kind) ?
					wh_shm_map(shm, region, NULL, why) :
					wh_shm_exports(shm, region, false, import_forget_segment,
						       NULL, why);
		if (error)
			return error;
	}
	if (made &&
	    !atomic_compare_exchange_strong(&region->transport[WH_TRANSPORT_CUDA], &mapping, made))
		mapping_drop(mappings, made);
	else if (made)
		mapping = made;
	*out = mapping;
	return 0;
}

int wh_cuda_remote(struct wh_cuda_peer *cuda, struct wh_region_entry *entry,
		   struct wh_device_mapping **out, char why[WH_REFUSAL])
{
	struct wh_peer *peer = cuda->peer;
	struct wh_shm_peer *shm;

	if (wh_peer_is_self(peer))
		return wh_device_mapping_local(
			cuda->mappings, wh_container(entry, struct wh_region, entry), out, why);
	/* shm is opened after this transport, and stays open as long as the engine. */
	shm = wh_peer_transport(peer, WH_TRANSPORT_SHM);
	if (!shm && wh_fabric_is_apart(peer))
		return wh_fabric_remote(cuda, entry, out, why);
	if (!shm) {
		snprintf(why, WH_REFUSAL,
			 "shm, over which handles of GPU memory are sent, is refused");
		return -EOPNOTSUPP;
	}
	return mapping_remote(cuda->mappings, shm,
			      wh_container(entry, struct wh_remote_region, entry), out, why);
}

/* Find the segment by its position: import checked that segments are in the order of mappings. */
static int import_keep_object(void *argument, const struct wh_exported *e, int *fd,
			      char why[WH_REFUSAL])
{
	struct wh_window_objects *objects = argument;

	if ((e->type != WH_HANDLE_FD && e->type != WH_HANDLE_OBJECT) || *fd < 0 ||
	    e->segments > WH_WINDOW_OBJECTS) {
		snprintf(why, WH_REFUSAL,
			 e->segments > WH_WINDOW_OBJECTS ?
				 "it consists of more mappings than the owner may be asked for" :
				 "the owner has sent no descriptor");
		return -EOPNOTSUPP;
	}
	objects->fd[objects->count] = *fd;
	objects->offset[objects->count++] = e->address - e->base;
	*fd = -1;
	return 0;
}

int wh_cuda_objects(struct wh_cuda_peer *cuda, struct wh_region_entry *entry,
		    struct wh_window_objects *out)
{
	struct wh_remote_region *region = wh_container(entry, struct wh_remote_region, entry);
	char why[WH_REFUSAL];
	int error;

	out->count = 0;
	error = wh_shm_exports(wh_peer_transport(cuda->peer, WH_TRANSPORT_SHM), region, true,
			       import_keep_object, out, why);
	if (!error)
		return 0;
	while (out->count)
		close(out->fd[--out->count]);
	return wh_fail(-error, "%s", why);
}
