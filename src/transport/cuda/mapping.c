/* SPDX-License-Identifier: Apache-2.0 */
/* The transport cuda: how GPUs see a region, ours or a peer's, and which of them can move its
 * bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/shm/shm.h"
#include "transport/shm/wire.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "wire/wire.h"

typedef unsigned long long ull;

static uint64_t bit(const struct wh_cuda_device *device)
{
	return UINT64_C(1) << device->ordinal;
}

/* Keep what the last call said. */
static int said(char why[WH_REFUSAL], int error)
{
	snprintf(why, WH_REFUSAL, "%.*s", WH_REFUSAL - 1, wh_error_text());
	return error;
}

static struct wh_device_mapping *mapping_new(char why[WH_REFUSAL])
{
	struct wh_device_mapping *mapping = calloc(1, sizeof(*mapping));

	if (!mapping)
		snprintf(why, WH_REFUSAL, "no memory");
	return mapping;
}

/* ---- host memory -------------------------------------------------------------------------------
 */

/*
 * Page-lock memory that CUDA does not know, so that GPUs reach it. It is what registering memory
 * with a network adapter does, too; where it is not possible (memory locked in part already, a
 * limit) the bytes are staged.
 */
static void pin(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping, void *start,
		uint64_t length, bool writable)
{
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	unsigned flags =
		CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP | (writable ? 0 : CUDA_HOST_READ_ONLY);
	struct wh_cuda_device *device;
	struct wh_cuda_scope scope;
	int error;

	if (!wh_engine_config(mappings->engine)->number[WH_SETTING_PIN]) {
		snprintf(mapping->why, sizeof(mapping->why),
			 "host memory is not page-locked: the setting pin");
		return;
	}
	error = wh_gpus_pinning_device(mappings->gpus, NULL, &device);
	if (!error)
		error = wh_cuda_enter(cuda, device, &scope);
	if (error) {
		said(mapping->why, error);
		return;
	}
	error = wh_cuda_check(cuda, cuda->cuMemHostRegister(start, length, flags),
			      "cuMemHostRegister", "%llu bytes at %p", (ull)length, start);
	if (!error) {
		mapping->pinned = start;
		mapping->pinned_length = length;
		error = wh_cuda_check(cuda,
				      cuda->cuMemHostGetDevicePointer(&mapping->address, start, 0),
				      "cuMemHostGetDevicePointer", "%p", start);
	}
	wh_cuda_leave(&scope);
	if (error)
		said(mapping->why, error);
	else
		mapping->every = true;
}

/* Page-locked memory whose region has gone. */
struct wh_pin {
	struct wh_pin *next;
	void *start;
	uint64_t length;
};

void wh_pin_leave(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping)
{
	struct wh_pin *pin = mapping->pinned ? malloc(sizeof(*pin)) : NULL;

	if (!pin) /* or no memory: it is given back with the view */
		return;
	*pin = (struct wh_pin){ atomic_load(&mappings->pins), mapping->pinned,
				mapping->pinned_length };
	mapping->pinned = NULL;
	atomic_store(&mappings->pins, pin);
}

static bool is_used(struct wh_device_mappings *mappings, const struct wh_pin *pin)
{
	uint64_t start = (uint64_t)(uintptr_t)pin->start, cursor = 0;
	char name[WH_NAME_MAX];
	struct wh_region_entry entry;

	while (wh_region_table_next(wh_engine_regions(mappings->engine), &cursor, &entry, name)) {
		if (entry.address < start + pin->length && start < entry.address + entry.length)
			return true;
	}
	return false;
}

static void unpin(struct wh_device_mappings *mappings, void *start)
{
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	struct wh_cuda_device *device;
	struct wh_cuda_scope scope;

	if (wh_gpus_pinning_device(mappings->gpus, NULL, &device) ||
	    wh_cuda_enter(cuda, device, &scope))
		return;
	cuda->cuMemHostUnregister(start);
	wh_cuda_leave(&scope);
}

void wh_pins_release(struct wh_device_mappings *mappings)
{
	struct wh_pin *pin = atomic_load(&mappings->pins), *cached = NULL, *next;

	for (; pin; pin = next) {
		next = pin->next;
		if (is_used(mappings, pin)) {
			pin->next = cached;
			cached = pin;
			continue;
		}
		unpin(mappings, pin->start);
		free(pin);
	}
	atomic_store(&mappings->pins, cached);
}

static void map_host(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping,
		     const struct wh_region *region)
{
	const struct wh_segment *segment = &region->registration->segments[0];

	mapping->host = (char *)(uintptr_t)region->entry.address;
	if (region->registration->segment_count == 1 && segment->device_address) {
		mapping->address = segment->device_address;
		mapping->every = true;
	} else if (region->registration->segment_count == 1 && segment->memory == WH_CUDA_PLAIN) {
		pin(mappings, mapping, mapping->host, region->entry.length, true);
	} else {
		snprintf(mapping->why, sizeof(mapping->why),
			 "its host memory is page-locked in parts, or not for GPUs");
	}
}

/* ---- a GPU's memory ----------------------------------------------------------------------------
 */

/* Which devices the mappings of cuMemCreate's memory admit. */
static uint64_t admitted(struct wh_cuda *cuda, const struct wh_registration *registration)
{
	uint64_t all = 0;

	for (unsigned d = 0; d < cuda->device_count && cuda->cuMemGetAccess; d++) {
		struct wh_cuda_location location = { CUDA_LOCATION_DEVICE,
						     cuda->devices[d].handle };
		unsigned long long flags = 3;

		for (size_t i = 0; i < registration->segment_count && flags == 3; i++) {
			if (cuda->cuMemGetAccess(&flags, &location,
						 registration->segments[i].start))
				flags = 0;
		}
		if (flags == 3)
			all |= UINT64_C(1) << d;
	}
	return all;
}

static void map_gpu(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping,
		    const struct wh_region *region)
{
	const struct wh_registration *registration = region->registration;
	const struct wh_segment *first = &registration->segments[0];
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);

	mapping->device = registration->device;
	wh_gpus_pinning_device(mappings->gpus, mapping->device, NULL);
	mapping->address = region->entry.address;
	if (region->entry.kind == WH_MEMORY_MANAGED) {
		mapping->managed = true;
		snprintf(mapping->why, sizeof(mapping->why),
			 "managed memory moves between host and GPU by itself: only the driver may "
			 "copy it");
		return;
	}
	/* The handle of the primary context, once somebody has it, is kept in the device. */
	if (first->context != mapping->device->context)
		mapping->context = first->context;
	mapping->fixed = first->vmm || first->pool;
	atomic_store(&mapping->reached,
		     first->vmm ? admitted(cuda, registration) : bit(mapping->device));
}

int wh_device_mapping_local(struct wh_device_mappings *mappings, struct wh_region *region,
			    struct wh_device_mapping **out, char why[WH_REFUSAL])
{
	struct wh_device_mapping *mapping =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_CUDA], memory_order_acquire);
	int error = wh_registration_check(region->registration);

	if (error)
		return said(why, error);
	if (!mapping) {
		error = wh_cuda_ready(wh_gpus_cuda(mappings->gpus));
		if (error)
			return said(why, error);
		pthread_mutex_lock(&mappings->lock);
		mapping = atomic_load(&region->transport[WH_TRANSPORT_CUDA]);
		if (!mapping)
			mapping = mapping_new(why);
		if (mapping && !atomic_load(&region->transport[WH_TRANSPORT_CUDA])) {
			if (wh_kind_on_host(region->entry.kind))
				map_host(mappings, mapping, region);
			else
				map_gpu(mappings, mapping, region);
			atomic_store_explicit(&region->transport[WH_TRANSPORT_CUDA], mapping,
					      memory_order_release);
		}
		pthread_mutex_unlock(&mappings->lock);
	}
	*out = mapping;
	return mapping ? 0 : -ENOMEM;
}

/* ---- a peer's memory; under mappings.lock
 * ----------------------------------------------------------- */

struct import {
	struct wh_device_mappings *mappings;
	struct wh_remote_region *region;
	struct wh_device_mapping *mapping;
	struct wh_cuda_device *device;
	uint8_t type;
	uint64_t owner_base; /* in the owner's address space: where the first mapping begins */
	uint64_t mapped; /* so many bytes from there */
	uint64_t covered; /* up to there the owner has told of */
	CUallocation *memory; /* by segment, to be mapped; released afterwards */
	uint64_t *sizes;
	uint32_t count, segments;
};

static int find_device(struct import *import, const uint8_t uuid[16], char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(import->mappings->gpus);
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
	snprintf(why, WH_REFUSAL,
		 "GPU-%02x%02x%02x%02x-... is not visible here (CUDA_VISIBLE_DEVICES?)", uuid[0],
		 uuid[1], uuid[2], uuid[3]);
	return -ENODEV;
}

/* The segments follow each other, in the region and in the mappings, and are of one kind. */
static int check_order(struct import *import, const struct wh_exported *e, char why[WH_REFUSAL])
{
	const struct wh_region_entry *entry = &import->region->entry;
	bool first = !e->index;
	uint64_t at = first ? entry->address : import->covered;

	if (e->type > WH_HANDLE_LEGACY || e->address != at ||
	    e->length > entry->address + entry->length - at ||
	    (!first &&
	     (e->type != import->type || e->base != import->owner_base + import->mapped)) ||
	    (e->type == WH_HANDLE_LEGACY && e->segments != 1) ||
	    (e->index + 1 == e->segments && at + e->length != entry->address + entry->length) ||
	    e->size > UINT64_C(1) << 46) {
		snprintf(why, WH_REFUSAL, "the peer's answer is not as it should be");
		return -EPROTO;
	}
	return 0;
}

static int keep_legacy(struct import *import, const struct wh_exported *e, char why[WH_REFUSAL])
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

static int import_fd(struct import *import, const struct wh_exported *e, int fd,
		     char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(import->mappings->gpus);
	struct wh_cuda_scope scope;
	int error;

	if (fd < 0) {
		snprintf(why, WH_REFUSAL, "the peer's descriptor has not arrived (ulimit -n?)");
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
				&import->memory[import->count], (void *)(intptr_t)fd,
				CUDA_HANDLE_FD);
	wh_cuda_leave(&scope);
	if (error)
		return said(why, error);
	import->sizes[import->count++] = e->size;
	return 0;
}

static int import_segment(void *argument, const struct wh_exported *e, int *fd,
			  char why[WH_REFUSAL])
{
	struct import *import = argument;
	int error = check_order(import, e, why);

	if (!error && !e->index) {
		error = find_device(import, e->device, why);
		import->owner_base = e->base;
		import->type = e->type;
	}
	if (error)
		return error;
	import->covered = e->address + e->length;
	import->mapped += e->size;
	return e->type == WH_HANDLE_FD ? import_fd(import, e, *fd, why) :
					 keep_legacy(import, e, why);
}

/* Let the device and all that reach it use a range of address space. */
static int admit(struct wh_cuda *cuda, struct wh_device_mapping *mapping)
{
	struct wh_cuda_access access[WH_CUDA_DEVICES];
	uint64_t all = 0;
	size_t count = 0;
	int error;

	for (unsigned d = 0; d < cuda->device_count; d++) {
		struct wh_cuda_device *device = &cuda->devices[d];

		if (device != mapping->device && !wh_cuda_device_peers(device, mapping->device))
			continue;
		access[count++] = (struct wh_cuda_access){
			.location = { CUDA_LOCATION_DEVICE, device->handle }, .flags = 3
		};
		all |= bit(device);
	}
	error = wh_cuda_call_on(cuda, mapping->device, cuMemSetAccess, mapping->reserved,
				mapping->size, access, count);
	if (!error)
		atomic_store(&mapping->reached, all);
	return error;
}

/* Map what has been imported, one behind the other as at the owner. Inside a scope: some drivers
 * want one. */
static int map_segments(struct import *import)
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
	return admit(cuda, mapping);
}

static int import_region(struct import *import, struct wh_shm_peer *shm, char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(import->mappings->gpus);
	struct wh_cuda_scope scope;
	int error = wh_shm_exports(shm, import->region, false, import_segment, import, why);

	import->mapping->device = import->device;
	if (!error)
		wh_gpus_pinning_device(import->mappings->gpus, import->device, NULL);
	if (!error && import->type == WH_HANDLE_FD) {
		error = wh_cuda_enter(cuda, import->device, &scope);
		if (!error) {
			error = map_segments(import);
			wh_cuda_leave(&scope);
		}
		if (error)
			said(why, error);
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

/* The memory is mapped already; the owner has to hear of it on its new connection. */
static int forget_segment(void *argument, const struct wh_exported *e, int *fd,
			  char why[WH_REFUSAL])
{
	(void)argument;
	(void)e;
	(void)fd;
	(void)why;
	return 0;
}

static int make_remote(struct wh_device_mappings *mappings, struct wh_shm_peer *shm,
		       struct wh_remote_region *region, char why[WH_REFUSAL])
{
	struct wh_device_mapping *mapping = mapping_new(why);
	struct wh_shm_own own;
	int error = -ENOMEM;

	if (!mapping)
		return error;
	if (wh_kind_on_host(region->entry.kind)) {
		error = wh_shm_map(shm, region, &own, why);
		if (!error) {
			mapping->host = mapping->mapped = own.base;
			mapping->mapped_length = own.length;
			pin(mappings, mapping, own.base, own.length,
			    region->entry.access & WH_ACCESS_WRITE);
		}
	} else {
		struct import import = { .mappings = mappings,
					 .region = region,
					 .mapping = mapping };

		error = import_region(&import, shm, why);
	}
	if (error)
		wh_view_free(mappings, mapping);
	else
		atomic_store_explicit(&region->transport[WH_TRANSPORT_CUDA], mapping,
				      memory_order_release);
	return error;
}

static int map_remote(struct wh_device_mappings *mappings, struct wh_shm_peer *shm,
		      struct wh_remote_region *region, struct wh_device_mapping **out,
		      char why[WH_REFUSAL])
{
	struct wh_device_mapping *mapping =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_CUDA], memory_order_acquire);
	int error;

	if (!mapping || !wh_shm_asked(shm, region)) {
		error = wh_cuda_ready(wh_gpus_cuda(mappings->gpus));
		if (error)
			return said(why, error);
		pthread_mutex_lock(&mappings->lock);
		if (!atomic_load(&region->transport[WH_TRANSPORT_CUDA]))
			error = make_remote(mappings, shm, region, why);
		else if (!wh_shm_asked(shm, region))
			error = wh_kind_on_host(region->entry.kind) ?
					wh_shm_map(shm, region, NULL, why) :
					wh_shm_exports(shm, region, false, forget_segment, NULL,
						       why);
		pthread_mutex_unlock(&mappings->lock);
		if (error)
			return error;
		mapping = atomic_load(&region->transport[WH_TRANSPORT_CUDA]);
	}
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
	/* It is opened after this transport, and for good. */
	shm = wh_peer_transport(peer, WH_TRANSPORT_SHM);
	if (!shm) {
		snprintf(why, WH_REFUSAL,
			 "handles of GPU memory come by way of shm, which is refused");
		return -EOPNOTSUPP;
	}
	return map_remote(cuda->mappings, shm, wh_container(entry, struct wh_remote_region, entry),
			  out, why);
}

/* The segments' order is that of the mappings, which was checked when they were imported. */
static int keep_object(void *argument, const struct wh_exported *e, int *fd, char why[WH_REFUSAL])
{
	struct wh_window_objects *objects = argument;

	if ((e->type != WH_HANDLE_FD && e->type != WH_HANDLE_OBJECT) || *fd < 0 ||
	    e->segments > WH_WINDOW_OBJECTS) {
		snprintf(why, WH_REFUSAL,
			 e->segments > WH_WINDOW_OBJECTS ?
				 "it is made of too many mappings to ask the owner for" :
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
			       keep_object, out, why);
	if (!error)
		return 0;
	while (out->count)
		close(out->fd[--out->count]);
	return wh_fail(-error, "%s", why);
}

static void close_legacy(struct wh_cuda *cuda, struct wh_legacy *legacy)
{
	struct wh_cuda_scope scope;

	for (unsigned d = 0; d < cuda->device_count; d++) {
		if (!legacy->base[d] || wh_cuda_enter(cuda, &cuda->devices[d], &scope))
			continue;
		cuda->cuIpcCloseMemHandle(legacy->base[d]);
		wh_cuda_leave(&scope);
	}
	free(legacy);
}

void wh_view_free(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping)
{
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	struct wh_cuda_scope scope;

	if (mapping->legacy)
		close_legacy(cuda, mapping->legacy);
	if (mapping->pinned)
		unpin(mappings, mapping->pinned);
	if (mapping->reserved && !wh_cuda_enter(cuda, mapping->device, &scope)) {
		if (mapping->size)
			cuda->cuMemUnmap(mapping->reserved, mapping->size);
		cuda->cuMemAddressFree(mapping->reserved, mapping->reserved_length);
		wh_cuda_leave(&scope);
	}
	if (mapping->mapped)
		munmap(mapping->mapped, mapping->mapped_length);
	free(mapping);
}

/* ---- paths -------------------------------------------------------------------------------------
 */

static bool reaches(const struct wh_device_mapping *by, const struct wh_device_mapping *to)
{
	if (!by->device || by->managed || to->managed)
		return false;
	if (to->every)
		return true;
	/* Between contexts of the application's own only what they own themselves. */
	if (by->context || to->context)
		return by->device == to->device && by->context == to->context;
	return atomic_load_explicit(&to->reached, memory_order_acquire) & bit(by->device);
}

void wh_path_choose(const struct wh_device_mapping *local, const struct wh_device_mapping *remote,
		    uint32_t op, struct wh_gpu_path *path)
{
	const struct wh_device_mapping *source = op == WH_WRITE ? local : remote, *by;

	memset(path, 0, sizeof(*path));
	/* Our own GPU first: the other one belongs to somebody else's work. */
	if (reaches(local, local) && reaches(local, remote))
		by = local;
	else if (reaches(remote, remote) && reaches(remote, local))
		by = remote;
	else
		return;
	path->device = by->device;
	path->context = by->context;
	if (!local->device || !remote->device)
		path->way = by == source ? WH_BLOCKS_TO_HOST : WH_BLOCKS_FROM_HOST;
	else if (local->device == remote->device)
		path->way = WH_BLOCKS_WITHIN;
	else
		path->way = by == source ? WH_BLOCKS_PUSH : WH_BLOCKS_PULL;
}

/* Open a legacy handle for the device, if that has not been done; with access to the other device's
 * memory, where it is another one's. */
static int open_legacy(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping,
		       struct wh_cuda_device *device)
{
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	struct wh_cuda_scope scope;
	CUdeviceptr base = 0;
	size_t size;
	int error;

	if (atomic_load(&mapping->reached) & bit(device))
		return 0;
	error = wh_cuda_enter(cuda, device, &scope);
	if (error)
		return error;
	error = !cuda->cuIpcOpenMemHandle ?
			wh_cuda_missing(cuda, "cuIpcOpenMemHandle") :
			wh_cuda_check(cuda,
				      cuda->cuIpcOpenMemHandle(&base, mapping->legacy->handle,
							       CUDA_IPC_LAZY_PEER),
				      "cuIpcOpenMemHandle", "memory of %s on cuda:%d",
				      mapping->device->text, device->ordinal);
	/* The owner's word for how large it is must not lead a kernel past its end. */
	if (!error && !cuda->cuMemGetAddressRange(NULL, &size, base) &&
	    size < mapping->legacy->size) {
		cuda->cuIpcCloseMemHandle(base);
		error = wh_fail(EPROTO, "the peer's memory on %s has %zu bytes, and not %llu",
				mapping->device->text, size, (ull)mapping->legacy->size);
	}
	wh_cuda_leave(&scope);
	if (error)
		return error;
	mapping->legacy->base[device->ordinal] = base;
	atomic_fetch_or(&mapping->reached, bit(device));
	return 0;
}

uint64_t wh_device_mapping_own(struct wh_device_mappings *mappings,
			       struct wh_device_mapping *mapping)
{
	int error = 0;

	if (!mapping->legacy)
		return mapping->address;
	if (!(atomic_load_explicit(&mapping->reached, memory_order_acquire) &
	      bit(mapping->device))) {
		pthread_mutex_lock(&mappings->lock);
		error = open_legacy(mappings, mapping, mapping->device);
		pthread_mutex_unlock(&mappings->lock);
	}
	return error ? 0 : wh_device_mapping_address(mapping, mapping->device);
}

/* Let the device that one side lies on reach the other side, where that can be switched on. */
static void try_reach(struct wh_device_mappings *mappings, const struct wh_device_mapping *by,
		      struct wh_device_mapping *to, char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	int error = 0;

	if (!by->device || by->managed || to->managed || reaches(by, to))
		return;
	if (to->legacy) {
		error = open_legacy(mappings, to, by->device);
	} else if (by->context || to->context || !to->device) {
		snprintf(why, WH_REFUSAL, "%s",
			 *to->why ? to->why : "two contexts of the application");
	} else if (to->fixed) {
		snprintf(why, WH_REFUSAL, "its mapping does not admit %.100s (cuMemSetAccess)",
			 by->device->text);
	} else {
		error = wh_cuda_peer_enable(cuda, by->device, to->device);
		if (!error)
			atomic_fetch_or(&to->reached, bit(by->device));
	}
	if (error)
		said(why, error);
}

bool wh_path_make(struct wh_device_mappings *mappings, struct wh_device_mapping *local,
		  struct wh_device_mapping *remote, uint32_t op, struct wh_gpu_path *path,
		  char why[WH_REFUSAL])
{
	pthread_mutex_lock(&mappings->lock);
	if (local->managed || remote->managed)
		snprintf(why, WH_REFUSAL, "%s", local->managed ? local->why : remote->why);
	try_reach(mappings, local, remote, why);
	wh_path_choose(local, remote, op, path);
	if (!path->device) {
		/* Its own device, for staging as well; then that towards us. */
		try_reach(mappings, remote, remote, why);
		try_reach(mappings, remote, local, why);
		wh_path_choose(local, remote, op, path);
	}
	pthread_mutex_unlock(&mappings->lock);
	return path->device;
}
