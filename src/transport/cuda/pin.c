/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport cuda: page-lock host memory for GPUs, and release it once no region needs it any more.
 * All under mappings.lock.
 */
#include <stdio.h>
#include <stdlib.h>

#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "util/config.h"

typedef unsigned long long ull;

/*
 * Page-lock memory that CUDA does not know, so that GPUs reach it, as registering memory with a
 * network adapter does. If the driver refuses (a part is locked already, or a limit is reached),
 * the bytes are staged.
 */
void wh_pin_map(struct wh_device_mappings *mappings, struct wh_device_mapping *mapping, void *start,
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
			 "host memory is not page-locked: the setting pin is off");
		return;
	}
	error = wh_gpus_pinning_device(mappings->gpus, NULL, &device);
	if (!error)
		error = wh_cuda_enter(cuda, device, &scope);
	if (error) {
		wh_cuda_refuse(mapping->why, error);
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
		wh_cuda_refuse(mapping->why, error);
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

	if (!pin) /* or there is no memory for the list: it is unlocked with the mapping */
		return;
	*pin = (struct wh_pin){ atomic_load(&mappings->pins), mapping->pinned,
				mapping->pinned_length };
	mapping->pinned = NULL;
	atomic_store(&mappings->pins, pin);
}

static bool pin_is_used(struct wh_device_mappings *mappings, const struct wh_pin *pin)
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

void wh_pin_undo(struct wh_device_mappings *mappings, void *start)
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
		if (pin_is_used(mappings, pin)) {
			pin->next = cached;
			cached = pin;
			continue;
		}
		wh_pin_undo(mappings, pin->start);
		free(pin);
	}
	atomic_store(&mappings->pins, cached);
}
