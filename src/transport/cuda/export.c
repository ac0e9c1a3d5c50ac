/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda, the owner: handles of published GPU memory for an authenticated peer on the
 * unix socket of shm. On loop 0.
 *
 * A handle opens the whole allocation (of cuMemCreate: the whole mapping) that contains the region;
 * CUDA has nothing smaller. The peer runs as the same user, and maps only the region.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/shm/shm.h"
#include "transport/shm/wire.h"
#include "transport/transport.h"
#include "wire/bytes.h"
#include "wire/wire.h"

_Static_assert(WH_EXPORTED_TEXT == WH_REFUSAL, "a reason fits");

/* ---- exporting ------------------------------------------------------------------------------- */

int wh_exported_refuse(struct wh_exported *e, int error, const char *why)
{
	e->error = -error;
	snprintf(e->text, sizeof(e->text), "%s", why);
	return -1;
}

/* Refuse with the text of the driver's error. */
static int exported_refuse_driver(struct wh_exported *e, int error)
{
	return wh_exported_refuse(e, -error, wh_error_text());
}

int wh_exported_fabric(struct wh_cuda *cuda, const struct wh_segment *segment,
		       struct wh_exported *e)
{
	CUallocation memory = 0;
	struct wh_cuda_scope scope;
	int error;

	e->type = WH_HANDLE_FABRIC;
	wh_cuda_relax(cuda, &scope);
	error = wh_cuda_call_on(cuda, segment->device, cuMemRetainAllocationHandle, &memory,
				(void *)(uintptr_t)segment->start);
	if (!error) {
		error = wh_cuda_call_on(cuda, segment->device, cuMemExportToShareableHandle,
					e->handle, memory, CUDA_HANDLE_FABRIC, 0);
		cuda->cuMemRelease(memory);
	}
	wh_cuda_leave(&scope);
	return error ? exported_refuse_driver(e, error) : -1;
}

static int export_fd(struct wh_cuda *cuda, const struct wh_segment *segment, struct wh_exported *e)
{
	CUallocation memory = 0;
	struct wh_cuda_scope scope;
	int error, fd = -1;

	e->type = WH_HANDLE_FD;
	wh_cuda_relax(cuda, &scope);
	error = wh_cuda_call_on(cuda, segment->device, cuMemRetainAllocationHandle, &memory,
				(void *)(uintptr_t)segment->start);
	if (!error) {
		error = wh_cuda_call_on(cuda, segment->device, cuMemExportToShareableHandle, &fd,
					memory, CUDA_HANDLE_FD, 0);
		cuda->cuMemRelease(memory);
	}
	wh_cuda_leave(&scope);
	return error ? exported_refuse_driver(e, error) : fd;
}

/* Export the object that the NVIDIA kernel driver has for the segment, where CUDA gives no
 * descriptor. */
static int export_object(const struct wh_region *region, const struct wh_segment *segment,
			 struct wh_exported *e)
{
	uint64_t offset;
	int error, fd;

	e->type = WH_HANDLE_OBJECT;
	error = wh_cuda_object(region->engine, segment, &fd, &offset);
	if (error)
		return exported_refuse_driver(e, error);
	if (offset > segment->start) {
		close(fd);
		return wh_exported_refuse(e, EOPNOTSUPP,
					  "its object is longer than the address space before it");
	}
	e->base = segment->start - offset;
	e->size = offset + segment->length;
	return fd;
}

static int export_legacy(struct wh_cuda *cuda, const struct wh_segment *segment,
			 struct wh_exported *e)
{
	struct wh_cuda_ipc_handle handle;
	struct wh_cuda_scope scope;
	int error;

	e->type = WH_HANDLE_LEGACY;
	error = wh_cuda_enter_owner(cuda, segment->start, &scope);
	if (error)
		return exported_refuse_driver(e, error);
	error = wh_cuda_call_on(cuda, segment->device, cuIpcGetMemHandle, &handle, segment->base);
	wh_cuda_leave(&scope);
	if (error)
		return exported_refuse_driver(e, error);
	memcpy(e->handle, handle.bytes, sizeof(e->handle));
	return -1;
}

int wh_exported_begin(const struct wh_region *region, uint32_t index, struct wh_exported *e)
{
	const struct wh_registration *registration = region->registration;
	const struct wh_segment *segment = &registration->segments[index];
	struct wh_cuda *cuda = wh_engine_cuda(region->engine);
	struct wh_cuda_uuid uuid;
	int error;

	e->segments = (uint32_t)registration->segment_count;
	e->index = index;
	e->address = segment->start;
	e->length = segment->length;
	e->base = segment->base;
	e->size = segment->size;
	if (segment->memory == WH_CUDA_MANAGED)
		return wh_exported_refuse(
			e, EOPNOTSUPP, "managed memory, which cannot be mapped by another process");
	if (segment->imported)
		return wh_exported_refuse(
			e, EOPNOTSUPP,
			"its memory belongs to a third process; only that one can share it");
	error = wh_cuda_call(cuda, cuDeviceGetUuid, &uuid, segment->device->handle);
	if (error)
		return exported_refuse_driver(e, error);
	memcpy(e->device, uuid.bytes, sizeof(e->device));
	return 0;
}

/* Returns a descriptor to be sent and closed, or -1. */
static int export_segment(const struct wh_region *region, uint32_t index, uint32_t how,
			  struct wh_exported *e)
{
	const struct wh_segment *segment = &region->registration->segments[index];
	struct wh_cuda *cuda = wh_engine_cuda(region->engine);

	if (wh_exported_begin(region, index, e))
		return -1;
	if (segment->exports & WH_CUDA_EXPORT_FD)
		return export_fd(cuda, segment, e);
	if (how & WH_MAP_OBJECTS)
		return export_object(region, segment, e);
	/* Memory that has no descriptor: its maker meant it for the fabric alone. */
	if (how & WH_MAP_FABRIC && segment->exports & WH_CUDA_EXPORT_FABRIC)
		return wh_exported_fabric(cuda, segment, e);
	if (segment->exports & WH_CUDA_EXPORT_IPC)
		return export_legacy(cuda, segment, e);
	return wh_exported_refuse(
		e, EOPNOTSUPP,
		segment->pool ? "memory of a pool (cuMemAllocAsync), which is not shared" :
		segment->vmm  ? "memory of cuMemCreate that was not made exportable as a file "
				"descriptor" :
				"the driver has no handle for its memory");
}

int wh_cuda_export(struct wh_region *region, uint32_t index, int socket)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_EXPORTED_MAX];
	uint32_t how = index & (WH_MAP_OBJECTS | WH_MAP_FABRIC);
	struct wh_exported e;
	int fd, sent = 0;

	index &= ~(WH_MAP_OBJECTS | WH_MAP_FABRIC);
	for (uint32_t n = 0; !sent && n < WH_EXPORTS; n++, index++) {
		size_t length;

		memset(&e, 0, sizeof(e));
		e.id = wh_region_entry_id(&region->entry);
		if (n && index == region->registration->segment_count)
			break;
		if (index >= region->registration->segment_count)
			fd = wh_exported_refuse(&e, ERANGE, "the region has fewer segments");
		else if (wh_registration_check(region->registration))
			fd = wh_exported_refuse(&e, ESTALE, wh_error_text());
		else
			fd = export_segment(region, index, how, &e);
		length = wh_exported_encode(bytes + WH_FRAME_HEADER, &e);
		wh_frame_encode(bytes,
				&(struct wh_frame){ (uint32_t)length, WH_FRAME_EXPORTED, 0 });
		sent = wh_shm_send(socket, bytes, WH_FRAME_HEADER + length, fd, MSG_DONTWAIT);
		if (fd >= 0)
			close(fd);
		if (e.error)
			break;
	}
	return sent;
}
