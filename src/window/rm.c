/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows through the NVIDIA driver's own user interface, with no kernel module besides.
 *
 * The memory becomes an object of a client of our own: duplicated from CUDA's client, or, where that
 * fails and the memory was created to be exported (cuMemCreate for POSIX file descriptors), imported,
 * which takes ten times as long (1.1 ms: the export does). Such an object holds the memory: a window
 * outlives cuMemFree().
 *
 * The interface is no promised ABI. On a driver with which it was not seen working, a window onto
 * scratch memory is first written through and read with CUDA, and the reverse.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/error.h>

#include "platform/rm-abi.h"
#include "platform/rm.h"
#include "window/window.h"

#define SCRATCH ((size_t)64 << 10)

/* FOREIGN: duplicated, but CUDA has imported it. HANDED: imported by what its owner has sent. */
enum way { IMPORTED, DUPLICATED, FOREIGN, HANDED, WAYS };

/* ---- pinning --------------------------------------------------------------------------------- */

static int keep(struct wh_span *span, uint32_t object, uint64_t offset, uint64_t length)
{
	struct wh_span_object *more =
		realloc(span->rm.objects, (span->rm.count + 1) * sizeof(*more));

	if (!more)
		return wh_fail(ENOMEM, "no memory for a window");
	span->rm.objects = more;
	more[span->rm.count++] = (struct wh_span_object){ object, offset, length };
	return 0;
}

static void unpin(struct wh_windows *windows, struct wh_span *span)
{
	for (unsigned i = 0; i < span->rm.count; i++)
		wh_rm_release(windows->rm, span->rm.gpu, span->rm.objects[i].object);
	free(span->rm.objects);
	span->rm.objects = NULL;
	span->rm.count = 0;
}

/* What was got becomes the span's, or is given back. */
static int adopt(struct wh_windows *windows, struct wh_span *span, uint32_t object,
		 uint64_t offset, uint64_t length)
{
	int error = keep(span, object, offset, length);

	if (error)
		wh_rm_release(windows->rm, span->rm.gpu, object);
	return error;
}

static int import(struct wh_windows *windows, struct wh_span *span)
{
	struct wh_cuda *cuda = windows->cuda;
	CUallocation memory = 0;
	struct wh_cuda_scope scope;
	uint32_t object;
	int fd = -1, error;

	wh_cuda_relax(cuda, &scope);
	error = wh_cuda_call(cuda, cuMemRetainAllocationHandle, &memory,
			     (void *)(uintptr_t)span->pointer.base);
	if (!error) {
		error = wh_cuda_call(cuda, cuMemExportToShareableHandle, &fd, memory, CUDA_HANDLE_FD, 0);
		cuda->cuMemRelease(memory);
	}
	wh_cuda_leave(&scope);
	if (error)
		return error;
	error = wh_rm_import(windows->rm, span->rm.gpu, fd, &object);
	close(fd);
	/* Mappings begin at the start of their memory: cuMemMap() takes no other offset yet. */
	return error ? error :
		       adopt(windows, span, object, span->address - span->pointer.base,
			     span->length);
}

static int import_handed(struct wh_windows *windows, struct wh_span *span)
{
	uint32_t object;
	int error = wh_rm_import(windows->rm, span->rm.gpu, span->object.fd, &object);

	return error ? error : adopt(windows, span, object, span->object.offset, span->length);
}

static int learn(struct wh_windows *windows, const struct wh_span *span, struct wh_rm_parts *parts)
{
	struct wh_cuda_scope scope;
	/* The page may begin before the memory, with somebody else's. */
	int error = wh_cuda_enter_owner(windows->cuda, span->pointer.base, &scope);

	if (error)
		return error;
	error = wh_rm_learn(windows->cuda, span->address, span->length, parts);
	wh_cuda_leave(&scope);
	return error;
}

static int duplicate(struct wh_windows *windows, struct wh_span *span)
{
	struct wh_rm_parts parts = { 0 };
	uint64_t left = span->length;
	int error = learn(windows, span, &parts);

	for (unsigned i = 0; i < parts.count && !error && left; i++) {
		const struct wh_rm_part *part = &parts.part[i];
		uint64_t length = part->length < left ? part->length : left;
		uint32_t object;

		error = wh_rm_duplicate(windows->rm, span->rm.gpu, parts.client, part->object,
					&object);
		if (!error)
			error = adopt(windows, span, object, part->offset, length);
		left -= length;
	}
	if (!error && left)
		error = wh_fail(EIO,
				"of %llu bytes at 0x%llx, the CUDA driver's objects hold all but "
				"%llu",
				(unsigned long long)span->length,
				(unsigned long long)span->address, (unsigned long long)left);
	if (error)
		unpin(windows, span);
	return error;
}

static int pin_by(struct wh_windows *windows, struct wh_span *span, enum way way)
{
	int error = wh_rm_gpu(windows->rm, span->pointer.device->pci, &span->rm.gpu);

	if (error)
		return error;
	if (way == HANDED)
		return import_handed(windows, span);
	return way == IMPORTED ? import(windows, span) : duplicate(windows, span);
}

/* ---- mapping --------------------------------------------------------------------------------- */

static enum wh_mapping mapping_of(unsigned caching)
{
	switch (caching) {
	case RM_CACHING_CACHED:
	case RM_CACHING_WRITE_BACK:
		return WH_MAPPING_CACHED;
	case RM_CACHING_UNCACHED:
	case RM_CACHING_UNCACHED_WEAK:
		return WH_MAPPING_DEVICE;
	default:
		return WH_MAPPING_WC;
	}
}

static int map(struct wh_windows *windows, struct wh_span *span, void *at, enum wh_mapping *mapping)
{
	unsigned char *to = at;
	unsigned caching = 0;

	for (unsigned i = 0; i < span->rm.count; i++) {
		const struct wh_span_object *o = &span->rm.objects[i];
		int error = wh_rm_map(windows->rm, span->rm.gpu, o->object, o->offset, o->length,
				      to, &caching);

		if (error)
			return error;
		to += o->length;
	}
	*mapping = mapping_of(caching);
	return 0;
}

/* ---- proving --------------------------------------------------------------------------------- */

static void fill(unsigned char *bytes, unsigned seed)
{
	for (size_t i = 0; i < SCRATCH; i++)
		bytes[i] = (unsigned char)(seed + i * 31 + i / 253);
}

/* Through the window and with CUDA, in both directions. */
static int round_trip(struct wh_windows *windows, struct wh_span *span, unsigned char *at,
		      enum wh_mapping mapping)
{
	struct wh_copy copy = wh_copy_choose(windows->cpu, mapping);
	unsigned char *sent = malloc(2 * SCRATCH), *got;
	struct wh_cuda_device *device = span->pointer.device;
	int error;

	if (!sent)
		return wh_fail(ENOMEM, "no memory to try a window with");
	got = sent + SCRATCH;
	fill(sent, 1);
	wh_copy_to(copy, at, sent, SCRATCH);
	wh_copy_from(copy, got, at, 8); /* so that it has arrived */
	error = wh_windows_get(windows, device, got, span->address, SCRATCH);
	if (!error && memcmp(sent, got, SCRATCH) != 0)
		error = wh_fail(EOPNOTSUPP, "what was written through a window, CUDA does not see");
	fill(sent, 2);
	if (!error)
		error = wh_windows_put(windows, device, span->address, sent, SCRATCH);
	if (!error)
		wh_copy_from(copy, got, at, SCRATCH);
	if (!error && memcmp(sent, got, SCRATCH) != 0)
		error = wh_fail(EOPNOTSUPP, "what CUDA wrote, a window does not show");
	free(sent);
	return error;
}

static int try_window(struct wh_windows *windows, uint64_t address, enum way way)
{
	struct wh_span span = { .address = address, .length = SCRATCH };
	enum wh_mapping mapping = WH_MAPPING_NONE;
	void *at;
	int error = wh_cuda_query(windows->cuda, (void *)(uintptr_t)address, &span.pointer);

	if (error)
		return error;
	error = pin_by(windows, &span, way);
	if (error)
		return error;
	at = mmap(NULL, SCRATCH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) {
		error = wh_fail(errno, "mmap: %s", strerror(errno));
	} else {
		error = map(windows, &span, at, &mapping);
		if (!error)
			error = round_trip(windows, &span, at, mapping);
		munmap(at, SCRATCH);
	}
	unpin(windows, &span);
	return error;
}

/* The memory as another process would know it. */
static int import_again(struct wh_cuda *cuda, CUallocation *memory)
{
	CUallocation imported;
	int fd = -1, error;

	error = wh_cuda_call(cuda, cuMemExportToShareableHandle, &fd, *memory, CUDA_HANDLE_FD, 0);
	if (error)
		return error;
	error = wh_cuda_call(cuda, cuMemImportFromShareableHandle, &imported, (void *)(intptr_t)fd,
			     CUDA_HANDLE_FD);
	close(fd);
	if (error)
		return error;
	cuda->cuMemRelease(*memory);
	*memory = imported;
	return 0;
}

/* Scratch memory of the kind that the way is for. */
static int prove_vmm(struct wh_windows *windows, struct wh_cuda_device *device, enum way way)
{
	struct wh_cuda *cuda = windows->cuda;
	struct wh_cuda_properties properties = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = CUDA_HANDLE_FD,
		.location = { CUDA_LOCATION_DEVICE, device->ordinal },
	};
	struct wh_cuda_access access = { properties.location, 3 };
	CUallocation memory = 0;
	CUdeviceptr address = 0;
	size_t size = 0;
	int error;

	error = wh_cuda_call(cuda, cuMemGetAllocationGranularity, &size, &properties,
			     CUDA_GRANULARITY_MINIMUM);
	if (!error)
		error = wh_cuda_call(cuda, cuMemCreate, &memory, size, &properties, 0);
	if (error)
		return error;
	if (way == FOREIGN)
		error = import_again(cuda, &memory);
	if (!error)
		error = wh_cuda_call(cuda, cuMemAddressReserve, &address, size, 0, 0, 0);
	if (error)
		goto release;
	error = wh_cuda_call(cuda, cuMemMap, address, size, 0, memory, 0);
	if (error)
		goto unreserve;
	error = wh_cuda_call(cuda, cuMemSetAccess, address, size, &access, 1);
	if (!error)
		error = try_window(windows, address, way);
	cuda->cuMemUnmap(address, size);
unreserve:
	cuda->cuMemAddressFree(address, size);
release:
	cuda->cuMemRelease(memory);
	return error;
}

static int prove_duplicated(struct wh_windows *windows)
{
	CUdeviceptr address;
	int error = wh_cuda_call(windows->cuda, cuMemAlloc, &address, 2 * SCRATCH);

	if (error)
		return error;
	error = try_window(windows, (address + SCRATCH - 1) / SCRATCH * SCRATCH, DUPLICATED);
	windows->cuda->cuMemFree(address);
	return error;
}

/* Once for each device and way, unless the driver is known to work. */
static int prove(struct wh_windows *windows, struct wh_cuda_device *device, enum way way)
{
	unsigned bit = (unsigned)device->ordinal * WAYS + way;
	struct wh_cuda_scope scope;
	char why[WH_TEXT_MAX];
	int error;

	if (wh_rm_known(windows->rm) || (bit < 64 && windows->rm_proven >> bit & 1))
		return 0;
	error = wh_cuda_enter(windows->cuda, device, &scope);
	if (error)
		return error;
	error = way == DUPLICATED ? prove_duplicated(windows) : prove_vmm(windows, device, way);
	wh_cuda_leave(&scope);
	if (!error) {
		if (bit < 64)
			windows->rm_proven |= UINT64_C(1) << bit;
		return 0;
	}
	memcpy(why, wh_error_text(), sizeof(why));
	return wh_fail(-error, "NVIDIA driver %s, not seen working before, failed a trial: %.160s",
		       *wh_rm_version(windows->rm) ? wh_rm_version(windows->rm) : "(unknown)", why);
}

/* ---- the backend ----------------------------------------------------------------------------- */

static int start(struct wh_windows *windows)
{
	return windows->rm ? 0 : wh_rm_open(&windows->rm);
}

static void stop(struct wh_windows *windows)
{
	wh_rm_close(windows->rm);
	windows->rm = NULL;
}

static int pin_proven(struct wh_windows *windows, struct wh_span *span, enum way way)
{
	int error = prove(windows, span->pointer.device, way == HANDED ? IMPORTED : way);

	return error ? error : pin_by(windows, span, way);
}

static int pin(struct wh_windows *windows, struct wh_span *span)
{
	const struct wh_cuda_pointer *p = &span->pointer;
	bool exportable = p->vmm && p->exports & WH_CUDA_EXPORT_FD;
	int error = pin_proven(windows, span, span->foreign ? FOREIGN : DUPLICATED);
	char why[WH_TEXT_MAX];

	if (!error || !(exportable || span->handed))
		return error;
	memcpy(why, wh_error_text(), sizeof(why));
	if ((span->handed && !pin_proven(windows, span, HANDED)) ||
	    (exportable && !pin_proven(windows, span, IMPORTED)))
		return 0;
	return wh_fail(-error, "%s", why); /* the first is the one to do something about */
}

/* ---- for another process --------------------------------------------------------------------- */

/* Under the lock. Not tried on scratch memory: giving that back could wait for what the GPU does. */
static int export(struct wh_windows *windows, struct wh_span *span, struct wh_view_object *out)
{
	unsigned bit;
	int error = start(windows);

	if (error)
		return error;
	if (span->pointer.memory != WH_CUDA_DEVICE || span->pointer.imported)
		return wh_fail(EOPNOTSUPP, "it is not this process's memory");
	bit = (unsigned)span->pointer.device->ordinal * WAYS + DUPLICATED;
	if (!wh_rm_known(windows->rm) && !(bit < 64 && windows->rm_proven >> bit & 1))
		return wh_fail(EOPNOTSUPP, "NVIDIA driver %.32s has not been seen working with windows",
			       wh_rm_version(windows->rm));
	error = pin_by(windows, span, DUPLICATED);
	if (error)
		return error;
	if (span->rm.count != 1)
		error = wh_fail(EOPNOTSUPP, "the memory has %u objects, not one", span->rm.count);
	else
		error = wh_rm_export(windows->rm, span->rm.gpu, span->rm.objects[0].object, &out->fd);
	if (!error)
		out->offset = span->rm.objects[0].offset;
	unpin(windows, span); /* the descriptor holds it now */
	return error;
}

int wh_windows_export(struct wh_windows *windows, uint64_t address, uint64_t length,
		      struct wh_view_object *out)
{
	uint64_t skip = address % WH_WINDOW_PAGE;
	struct wh_span span = { .address = address - skip };
	struct wh_view_object object;
	int error = wh_cuda_query(windows->cuda, (void *)(uintptr_t)address, &span.pointer);

	if (error)
		return error;
	span.length = (skip + length + WH_WINDOW_PAGE - 1) / WH_WINDOW_PAGE * WH_WINDOW_PAGE;
	pthread_mutex_lock(&windows->lock);
	error = export(windows, &span, &object);
	pthread_mutex_unlock(&windows->lock);
	if (error)
		return error;
	object.offset += skip;
	*out = object;
	return 0;
}

bool wh_windows_imports(struct wh_windows *windows, const char *order)
{
	bool started;

	pthread_mutex_lock(&windows->lock);
	started = windows->rm;
	pthread_mutex_unlock(&windows->lock);
	return started && strstr(order, wh_window_rm.name);
}

const struct wh_window_backend wh_window_rm = {
	.name = "rm",
	.start = start,
	.stop = stop,
	.pin = pin,
	.unpin = unpin,
	.map = map,
};
