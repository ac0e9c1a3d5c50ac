/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda, the side whose memory it is: handles of published GPU memory for a peer that has
 * shaken hands on the unix socket. On loop 0.
 *
 * A handle opens the whole allocation (of cuMemCreate: the whole mapping) that a region lies in; CUDA has
 * nothing smaller. The other side runs as the same user, and maps it for the region only.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/core.h"
#include "memory/memory.h"
#include "transport/cuda.h"
#include "transport/shm.h"
#include "wire/bytes.h"

/* ---- the frame --------------------------------------------------------------------------------- */

size_t wh_exported_encode(uint8_t *out, const struct wh_exported *e)
{
	uint8_t *at = wh_put64(out, e->id);

	at = wh_put32(at, (uint32_t)-e->error);
	if (e->error) {
		at = wh_put_bytes(at, e->text, strnlen(e->text, WH_REFUSAL - 1));
		return (size_t)(at - out);
	}
	at = wh_put32(at, e->segments);
	at = wh_put32(at, e->index);
	*at++ = e->type;
	at = wh_put_bytes(at, e->device, sizeof(e->device));
	at = wh_put64(at, e->address);
	at = wh_put64(at, e->length);
	at = wh_put64(at, e->base);
	at = wh_put64(at, e->size);
	if (e->type == WH_HANDLE_LEGACY)
		at = wh_put_bytes(at, e->handle, sizeof(e->handle));
	return (size_t)(at - out);
}

/* Does the segment lie in its allocation, and the allocation in the address space? */
static bool sound(const struct wh_exported *e)
{
	return e->index < e->segments && (e->type == WH_HANDLE_FD || e->type == WH_HANDLE_LEGACY) &&
	       e->length && e->size && e->base <= UINT64_MAX - e->size && e->address >= e->base &&
	       e->length <= e->size && e->address - e->base <= e->size - e->length;
}

int wh_exported_decode(const uint8_t *in, size_t length, struct wh_exported *exported)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_exported e = { 0 };
	uint32_t error;
	size_t text;

	e.id = wh_take64(&bytes);
	error = wh_take32(&bytes);
	if (bytes.cut || error > 4095)
		return -EPROTO;
	e.error = -(int)error;
	if (error) {
		text = (size_t)(bytes.end - bytes.at);
		if (text >= WH_REFUSAL)
			return -EPROTO;
		wh_take_bytes(&bytes, e.text, text);
		for (size_t i = 0; i < text; i++) /* it goes to people's terminals */
			if ((unsigned char)e.text[i] < ' ' || e.text[i] == 127)
				return -EPROTO;
	} else {
		e.segments = wh_take32(&bytes);
		e.index = wh_take32(&bytes);
		wh_take_bytes(&bytes, &e.type, 1);
		wh_take_bytes(&bytes, e.device, sizeof(e.device));
		e.address = wh_take64(&bytes);
		e.length = wh_take64(&bytes);
		e.base = wh_take64(&bytes);
		e.size = wh_take64(&bytes);
		if (e.type == WH_HANDLE_LEGACY)
			wh_take_bytes(&bytes, e.handle, sizeof(e.handle));
		if (bytes.cut || bytes.at != bytes.end || !sound(&e))
			return -EPROTO;
	}
	*exported = e;
	return 0;
}

/* ---- exporting --------------------------------------------------------------------------------- */

static int refuse(struct wh_exported *e, int error, const char *why)
{
	e->error = -error;
	snprintf(e->text, sizeof(e->text), "%s", why);
	return -1;
}

/* What the driver said. */
static int refuse_driver(struct wh_exported *e, int error)
{
	return refuse(e, -error, wh_error_text());
}

static int export_fd(struct wh_cuda *cuda, const struct wh_segment *segment, struct wh_exported *e)
{
	CUallocation memory;
	int error, fd = -1;

	e->type = WH_HANDLE_FD;
	error = wh_cuda_call_on(cuda, segment->device, cuMemRetainAllocationHandle, &memory,
				(void *)(uintptr_t)segment->start);
	if (error)
		return refuse_driver(e, error);
	error = wh_cuda_call_on(cuda, segment->device, cuMemExportToShareableHandle, &fd, memory,
				CUDA_HANDLE_FD, 0);
	cuda->cuMemRelease(memory);
	return error ? refuse_driver(e, error) : fd;
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
		return refuse_driver(e, error);
	error = wh_cuda_call_on(cuda, segment->device, cuIpcGetMemHandle, &handle, segment->base);
	wh_cuda_leave(&scope);
	if (error)
		return refuse_driver(e, error);
	memcpy(e->handle, handle.bytes, sizeof(e->handle));
	return -1;
}

/* Returns a descriptor to be sent and closed, or -1. */
static int export_segment(const struct wh_region *region, uint32_t index, struct wh_exported *e)
{
	const struct wh_registration *registration = region->registration;
	const struct wh_segment *segment = &registration->segments[index];
	struct wh_cuda *cuda = region->engine->cuda;
	struct wh_cuda_uuid uuid;
	int error;

	e->segments = (uint32_t)registration->segment_count;
	e->index = index;
	e->address = segment->start;
	e->length = segment->length;
	e->base = segment->base;
	e->size = segment->size;
	if (segment->memory == WH_CUDA_MANAGED)
		return refuse(e, EOPNOTSUPP, "managed memory, which cannot be mapped by another process");
	if (segment->imported)
		return refuse(e, EOPNOTSUPP, "its memory belongs to a third process, which alone can "
					     "hand it on");
	error = wh_cuda_call(cuda, cuDeviceGetUuid, &uuid, segment->device->handle);
	if (error)
		return refuse_driver(e, error);
	memcpy(e->device, uuid.bytes, sizeof(e->device));
	if (segment->exports & WH_CUDA_EXPORT_FD)
		return export_fd(cuda, segment, e);
	if (segment->exports & WH_CUDA_EXPORT_IPC)
		return export_legacy(cuda, segment, e);
	return refuse(e, EOPNOTSUPP,
		      segment->pool ? "memory of a pool (cuMemAllocAsync), which is not shared" :
		      segment->vmm  ? "memory of cuMemCreate that was not made exportable as a file "
				      "descriptor" :
				      "the driver has no handle for its memory");
}

int wh_cuda_export(const struct wh_region *region, uint32_t index, int socket)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_EXPORTED_MAX];
	struct wh_exported e;
	int fd, sent = 0;

	for (uint32_t n = 0; !sent && n < WH_EXPORTS; n++, index++) {
		size_t length;

		memset(&e, 0, sizeof(e));
		e.id = wh_place_id(&region->place);
		if (n && index == region->registration->segment_count)
			break;
		if (index >= region->registration->segment_count)
			fd = refuse(&e, ERANGE, "it has not so many segments");
		else if (wh_registration_check(region->registration))
			fd = refuse(&e, ESTALE, wh_error_text());
		else
			fd = export_segment(region, index, &e);
		length = wh_exported_encode(bytes + WH_FRAME_HEADER, &e);
		wh_frame_encode(bytes, &(struct wh_frame){ (uint32_t)length, WH_FRAME_EXPORTED, 0 });
		sent = wh_shm_send(socket, bytes, WH_FRAME_HEADER + length, fd, MSG_DONTWAIT);
		if (fd >= 0)
			close(fd);
		if (e.error)
			break;
	}
	return sent;
}
