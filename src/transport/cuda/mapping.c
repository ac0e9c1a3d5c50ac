/* SPDX-License-Identifier: Apache-2.0 */
/* Transport cuda: device mappings, that is how GPUs see a region. Makes those of our own regions,
 * and undoes all. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/memory.h"
#include "memory/region.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/gds.h"
#include "transport/cuda/pages.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/error.h"

struct wh_device_mapping *wh_device_mapping_new(char why[WH_REFUSAL])
{
	struct wh_device_mapping *mapping = calloc(1, sizeof(*mapping));

	if (!mapping)
		snprintf(why, WH_REFUSAL, "no memory");
	return mapping;
}

static void mapping_map_host(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping,
			     const struct wh_region *region)
{
	const struct wh_segment *segment = &region->registration->segments[0];

	mapping->host = (char *)(uintptr_t)region->entry.address;
	if (region->registration->segment_count == 1 && segment->device_address) {
		mapping->address = segment->device_address;
		mapping->every = true;
	} else if (region->registration->segment_count == 1 && segment->memory == WH_CUDA_PLAIN) {
		wh_pin_map(mappings, mapping, mapping->host, region->entry.length, true);
	} else {
		snprintf(mapping->why, sizeof(mapping->why),
			 "its host memory is page-locked in parts, or not for GPUs");
	}
}

static void mapping_map_file(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping,
			     const struct wh_region *region)
{
	const char *pages = wh_engine_config(mappings->engine)->text[WH_SETTING_FILE_PAGES];

	mapping->file = region->registration->file;
	if (strcmp(pages, "off") != 0)
		mapping->pages = wh_file_pages_new(mappings, mapping->file);
	mapping->gds = wh_file_gds_new(mappings->gds, mapping->file);
	snprintf(mapping->why, sizeof(mapping->why), "file, by threads");
}

/* ---- a GPU's memory -------------------------------------------------------------------------- */

/* Find out which devices have access to memory of cuMemCreate(). */
static uint64_t mapping_admitted(struct wh_cuda *cuda, const struct wh_registration *registration)
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

static void mapping_map_gpu(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping,
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
	if (first->context && !wh_cuda_is_primary(cuda, mapping->device, first->context))
		mapping->context = first->context;
	mapping->fixed = first->vmm || first->pool;
	atomic_store(&mapping->reached, first->vmm ? mapping_admitted(cuda, registration) :
						     wh_device_bit(mapping->device));
}

int wh_device_mapping_local(struct wh_device_mappings *mappings, struct wh_region *region,
			    struct wh_device_mapping **out, char why[WH_REFUSAL])
{
	struct wh_device_mapping *mapping =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_CUDA], memory_order_acquire);
	int error = wh_registration_check(region->registration);

	if (error)
		return wh_cuda_refuse(why, error);
	if (!mapping) {
		error = wh_cuda_ready(wh_gpus_cuda(mappings->gpus));
		if (error)
			return wh_cuda_refuse(why, error);
		pthread_mutex_lock(&mappings->lock);
		mapping = atomic_load(&region->transport[WH_TRANSPORT_CUDA]);
		if (!mapping)
			mapping = wh_device_mapping_new(why);
		if (mapping && !atomic_load(&region->transport[WH_TRANSPORT_CUDA])) {
			if (region->entry.kind == WH_MEMORY_FILE)
				mapping_map_file(mappings, mapping, region);
			else if (wh_kind_on_host(region->entry.kind))
				mapping_map_host(mappings, mapping, region);
			else
				mapping_map_gpu(mappings, mapping, region);
			atomic_store_explicit(&region->transport[WH_TRANSPORT_CUDA], mapping,
					      memory_order_release);
		}
		pthread_mutex_unlock(&mappings->lock);
	}
	*out = mapping;
	return mapping ? 0 : -ENOMEM;
}

static void legacy_close(struct wh_cuda *cuda, struct wh_legacy *legacy)
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

void wh_device_mapping_free(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping)
{
	struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	struct wh_cuda_scope scope;

	wh_list_remove(&mapping->link);
	wh_file_gds_close(mapping->gds);
	wh_file_pages_close(mapping->pages);
	if (mapping->legacy)
		legacy_close(cuda, mapping->legacy);
	if (mapping->pinned)
		wh_pin_undo(mappings, mapping->pinned);
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
