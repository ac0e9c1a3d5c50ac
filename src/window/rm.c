/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backends rm and rm-watch: windows through the NVIDIA driver's own user interface, without
 * another kernel module.
 *
 * The memory becomes an object in a client of our own:
 *
 *   cuMemCreate, exportable       imported by the descriptor that CUDA exports
 *   cuMemAlloc                    duplicated from CUDA's client, which the IPC handle names
 *   another process's             imported by the descriptor that its owner has sent
 *   the rest (backend rm-watch)   duplicated, from CUDA's own request to export it as a dma-buf
 *
 * An IPC handle from a peer is never read: it could name an object of ours, or of a third process.
 * Our object keeps the memory: a window stays valid after cuMemFree().
 *
 * The interface is no stable ABI. On a driver with which it is not known to work, a trial goes
 * first: CUDA and a window onto scratch memory must see each other's writes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/error.h>

#include "platform/rm-abi.h"
#include "platform/rm-watch.h"
#include "platform/rm.h"
#include "util/clock.h"
#include "window/view.h"

#define SCRATCH ((size_t)64 << 10)

/* How to get an object. WATCHED_FOREIGN: duplicate memory that CUDA has imported. HANDED: import
 * the descriptor that the owner has sent; the trial of IMPORTED covers it. */
enum way { IMPORTED, DUPLICATED, WATCHED, WATCHED_FOREIGN, HANDED };

/* ---- pinning --------------------------------------------------------------------------------- */

static int span_keep(struct wh_span *span, uint32_t object, uint64_t offset, uint64_t length)
{
	struct wh_span_object *more =
		realloc(span->rm.objects, (span->rm.count + 1) * sizeof(*more));

	if (!more)
		return wh_fail(ENOMEM, "no memory for a window");
	span->rm.objects = more;
	more[span->rm.count++] = (struct wh_span_object){ object, offset, length };
	return 0;
}

static void rm_unpin(struct wh_windows *windows, struct wh_span *span)
{
	for (unsigned i = 0; i < span->rm.count; i++)
		wh_rm_release(windows->rm, span->rm.gpu, span->rm.objects[i].object);
	free(span->rm.objects);
	span->rm.objects = NULL;
	span->rm.count = 0;
}

/* Add the object to the span; release it on failure. */
static int span_adopt(struct wh_windows *windows, struct wh_span *span, uint32_t object,
		      uint64_t offset, uint64_t length)
{
	int error = span_keep(span, object, offset, length);

	if (error)
		wh_rm_release(windows->rm, span->rm.gpu, object);
	return error;
}

/* The driver takes 1 ms to export the first descriptor of a GPU's memory, and 1 ms to close the
 * last one. While one is open, others take 30 us; so keep one open. */
static void hold_anchor(struct wh_windows *windows, const struct wh_cuda_device *device)
{
	int *anchor = &windows->rm_anchors[device->ordinal];

	if (!*anchor && wh_scratch_descriptor(windows->cuda, device, anchor))
		*anchor = -1;
}

static int rm_import_created(struct wh_windows *windows, struct wh_span *span)
{
	struct wh_cuda *cuda = windows->cuda;
	CUallocation memory = 0;
	struct wh_cuda_scope scope;
	uint32_t object;
	int fd = -1, error;

	wh_cuda_relax(cuda, &scope);
	hold_anchor(windows, span->pointer.device);
	error = wh_cuda_call(cuda, cuMemRetainAllocationHandle, &memory,
			     (void *)(uintptr_t)span->pointer.base);
	if (!error) {
		error = wh_cuda_call(cuda, cuMemExportToShareableHandle, &fd, memory,
				     CUDA_HANDLE_FD, 0);
		cuda->cuMemRelease(memory);
	}
	wh_cuda_leave(&scope);
	if (error)
		return error;
	error = wh_rm_import(windows->rm, span->rm.gpu, fd, &object);
	close(fd);
	/* Mappings begin at the start of their memory: cuMemMap() accepts no other offset yet. */
	return error ? error :
		       span_adopt(windows, span, object, span->address - span->pointer.base,
				  span->length);
}

static int import_handed(struct wh_windows *windows, struct wh_span *span)
{
	uint32_t object;
	int error = wh_rm_import(windows->rm, span->rm.gpu, span->object.fd, &object);

	return error ? error : span_adopt(windows, span, object, span->object.offset, span->length);
}

/* Take the whole pages around the allocation, within its object. Small allocations share objects;
 * those that share a page always do. */
static int rm_duplicate(struct wh_windows *windows, struct wh_span *span)
{
	const struct wh_cuda_pointer *p = &span->pointer;
	struct wh_cuda_scope scope;
	struct wh_rm_location place;
	uint64_t start, offset, length;
	uint32_t object;
	int error = wh_cuda_enter_owner(windows->cuda, p->base, &scope);

	if (error)
		return error;
	error = wh_rm_location(windows->cuda, p->base, p->length, &place);
	wh_cuda_leave(&scope);
	if (error)
		return error;
	start = p->base - place.offset;
	offset = span->address - start;
	if (span->address < start || offset >= place.object_length ||
	    span->length >= place.object_length - offset + WH_WINDOW_PAGE)
		return wh_fail(EIO,
			       "%llu bytes at 0x%llx are outside of the object of %llu bytes at "
			       "0x%llx that "
			       "CUDA names",
			       (unsigned long long)span->length, (unsigned long long)span->address,
			       (unsigned long long)place.object_length, (unsigned long long)start);
	length = place.object_length - offset;
	error = wh_rm_duplicate(windows->rm, span->rm.gpu, place.client, place.object, &object);
	return error ? error :
		       span_adopt(windows, span, object, offset,
				  length < span->length ? length : span->length);
}

static int rm_watch_parts(struct wh_windows *windows, const struct wh_span *span,
			  struct wh_rm_parts *parts)
{
	struct wh_cuda_scope scope;
	/* The page may begin before the memory, with another allocation. */
	int error = wh_cuda_enter_owner(windows->cuda, span->pointer.base, &scope);

	if (error)
		return error;
	error = wh_rm_watch(windows->rm_watch, windows->cuda, span->address, span->length, parts);
	wh_cuda_leave(&scope);
	return error;
}

static int duplicate_watched(struct wh_windows *windows, struct wh_span *span)
{
	struct wh_rm_parts parts = { 0 };
	uint64_t left = span->length;
	int error = rm_watch_parts(windows, span, &parts);

	for (unsigned i = 0; i < parts.count && !error && left; i++) {
		const struct wh_rm_part *part = &parts.part[i];
		uint64_t length = part->length < left ? part->length : left;
		uint32_t object;

		error = wh_rm_duplicate(windows->rm, span->rm.gpu, parts.client, part->object,
					&object);
		if (!error)
			error = span_adopt(windows, span, object, part->offset, length);
		left -= length;
	}
	if (!error && left)
		error = wh_fail(EIO,
				"of %llu bytes at 0x%llx, the CUDA driver's objects hold all but "
				"%llu",
				(unsigned long long)span->length, (unsigned long long)span->address,
				(unsigned long long)left);
	if (error)
		rm_unpin(windows, span);
	return error;
}

static int pin_by(struct wh_windows *windows, struct wh_span *span, enum way way)
{
	int error = wh_rm_gpu(windows->rm, span->pointer.device->pci, &span->rm.gpu);

	if (error)
		return error;
	switch (way) {
	case IMPORTED:
		return rm_import_created(windows, span);
	case DUPLICATED:
		return rm_duplicate(windows, span);
	case HANDED:
		return import_handed(windows, span);
	default:
		return duplicate_watched(windows, span);
	}
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

static int rm_map(struct wh_windows *windows, struct wh_span *span, void *at,
		  enum wh_mapping *mapping)
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

static void fill_pattern(unsigned char *bytes, unsigned seed)
{
	for (size_t i = 0; i < SCRATCH; i++)
		bytes[i] = (unsigned char)(seed + i * 31 + i / 253);
}

/* Write with CUDA and read through the window, then the other way round. The window is read first:
 * if it shows other memory, it must not be written. `seed` differs between trials. */
static int round_trip(struct wh_windows *windows, struct wh_span *span, unsigned char *at,
		      enum wh_mapping mapping)
{
	struct wh_copy copy = wh_copy_choose(windows->cpu, mapping);
	unsigned char *sent = malloc(2 * SCRATCH), *got;
	struct wh_cuda_device *device = span->pointer.device;
	unsigned seed = (unsigned)(wh_now() / 1000);
	int error;

	if (!sent)
		return wh_fail(ENOMEM, "no memory for a trial of windows");
	got = sent + SCRATCH;
	fill_pattern(sent, seed);
	error = wh_windows_put(windows, device, span->address, sent, SCRATCH);
	if (!error)
		wh_copy_from(copy, got, at, SCRATCH);
	if (!error && memcmp(sent, got, SCRATCH) != 0)
		error = wh_fail(EOPNOTSUPP, "a window does not show what CUDA wrote");
	fill_pattern(sent, seed + 1);
	if (!error) {
		wh_copy_to(copy, at, sent, SCRATCH);
		wh_copy_from(copy, got, at, 8); /* until it has arrived */
		error = wh_windows_get(windows, device, got, span->address, SCRATCH);
	}
	if (!error && memcmp(sent, got, SCRATCH) != 0)
		error = wh_fail(EOPNOTSUPP, "CUDA does not see what was written through a window");
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
		error = rm_map(windows, &span, at, &mapping);
		if (!error)
			error = round_trip(windows, &span, at, mapping);
		munmap(at, SCRATCH);
	}
	rm_unpin(windows, &span);
	return error;
}

static int prove_created(struct wh_windows *windows, struct wh_cuda_device *device, enum way way)
{
	struct wh_scratch scratch;
	int error = wh_scratch_new(windows->cuda, device, SCRATCH, way != IMPORTED, &scratch);

	if (error)
		return error;
	error = try_window(windows, scratch.address, way);
	wh_scratch_free(windows->cuda, &scratch);
	return error;
}

/* Small allocations, most of which are not at the start of an object. */
#define TRIALS 4
#define TRIAL (2 * SCRATCH)

/* Choose an allocation with an offset in its object, or the trial would miss a wrong offset. Also
 * check that two allocations in one object are as far apart there as their addresses. */
static int choose_trial(struct wh_windows *windows, const CUdeviceptr *at, unsigned *out)
{
	struct wh_rm_location place[TRIALS];
	int error = 0;

	*out = TRIALS;
	for (unsigned i = 0; i < TRIALS && !error; i++) {
		error = wh_rm_location(windows->cuda, at[i], TRIAL, &place[i]);
		for (unsigned j = 0; j < i && !error; j++) {
			if (place[i].client == place[j].client &&
			    place[i].object == place[j].object &&
			    at[i] - at[j] != place[i].offset - place[j].offset)
				error = wh_fail(
					EOPNOTSUPP,
					"the distance of two allocations in their object differs "
					"from that of their addresses");
		}
		if (!error && place[i].offset)
			*out = i;
	}
	if (!error && *out == TRIALS)
		error = wh_fail(EOPNOTSUPP,
				"no allocation with an offset in its object for a trial");
	return error;
}

static int prove_allocated(struct wh_windows *windows, enum way way)
{
	CUdeviceptr at[TRIALS] = { 0 };
	unsigned count = 0, chosen = 0;
	int error = 0;

	while (count < TRIALS && !error) {
		error = wh_cuda_call(windows->cuda, cuMemAlloc, &at[count], TRIAL);
		count += !error;
	}
	if (!error && way == DUPLICATED)
		error = choose_trial(windows, at, &chosen);
	if (!error)
		error = try_window(windows, (at[chosen] + SCRATCH - 1) / SCRATCH * SCRATCH, way);
	while (count)
		windows->cuda->cuMemFree(at[--count]);
	return error;
}

static bool is_proven(const struct wh_windows *windows, const struct wh_cuda_device *device,
		      enum way way)
{
	return wh_rm_known(windows->rm) || windows->rm_proven[device->ordinal] >> way & 1;
}

/* A trial for each device and way, once, unless the driver is known to work. */
static int rm_prove(struct wh_windows *windows, struct wh_cuda_device *device, enum way way)
{
	struct wh_cuda_scope scope;
	char why[WH_TEXT_MAX];
	int error;

	if (is_proven(windows, device, way))
		return 0;
	error = wh_cuda_enter(windows->cuda, device, &scope);
	if (error)
		return error;
	error = way == DUPLICATED || way == WATCHED ? prove_allocated(windows, way) :
						      prove_created(windows, device, way);
	wh_cuda_leave(&scope);
	if (!error) {
		windows->rm_proven[device->ordinal] |= (uint8_t)(1u << way);
		return 0;
	}
	memcpy(why, wh_error_text(), sizeof(why));
	return wh_fail(-error, "NVIDIA driver %s, not seen working before, failed a trial: %.160s",
		       *wh_rm_version(windows->rm) ? wh_rm_version(windows->rm) : "(unknown)", why);
}

/* ---- the backend ----------------------------------------------------------------------------- */

static int rm_start(struct wh_windows *windows)
{
	return windows->rm ? 0 : wh_rm_open(&windows->rm);
}

static void rm_stop(struct wh_windows *windows)
{
	for (size_t i = 0; i < WH_CUDA_DEVICES; i++) {
		if (windows->rm_anchors[i] > 0)
			close(windows->rm_anchors[i]);
		windows->rm_anchors[i] = 0;
	}
	wh_rm_close(windows->rm);
	windows->rm = NULL;
}

static int pin_proven(struct wh_windows *windows, struct wh_span *span, enum way way)
{
	int error = rm_prove(windows, span->pointer.device, way == HANDED ? IMPORTED : way);

	return error ? error : pin_by(windows, span, way);
}

/* Fail for memory with neither a descriptor nor an IPC handle, and say what to try. */
static int no_handle(const struct wh_cuda_pointer *p)
{
	return wh_fail(
		EOPNOTSUPP,
		"%s: CUDA has no handle for it; %s, or name rm-watch in the setting window "
		"(WHERRY_WINDOW)",
		p->pool ? "memory of a pool (cuMemAllocAsync)" :
		p->vmm  ? "memory of cuMemCreate without a handle type" :
			  "memory of this kind",
		p->pool ? "take cuMemAlloc (PyTorch: no backend:cudaMallocAsync)" :
		p->vmm  ? "create it for POSIX descriptors (PyTorch: no expandable_segments)" :
			  "take cuMemAlloc");
}

static int rm_pin(struct wh_windows *windows, struct wh_span *span)
{
	const struct wh_cuda_pointer *p = &span->pointer;
	bool exportable = p->vmm && p->exports & WH_CUDA_EXPORT_FD;

	if (span->foreign)
		return span->handed ? pin_proven(windows, span, HANDED) :
				      wh_fail(EOPNOTSUPP,
					      "another process's memory, whose objects only its "
					      "owner knows");
	if (exportable)
		return pin_proven(windows, span, IMPORTED);
	return p->exports & WH_CUDA_EXPORT_IPC ? pin_proven(windows, span, DUPLICATED) :
						 no_handle(p);
}

/* ---- the backend rm-watch -------------------------------------------------------------------- */

static int start_watching(struct wh_windows *windows)
{
	int error = windows->rm_watch ? 0 : wh_rm_watch_open(&windows->rm_watch);

	return error ? error : rm_start(windows);
}

static int pin_watched(struct wh_windows *windows, struct wh_span *span)
{
	return pin_proven(windows, span, span->foreign ? WATCHED_FOREIGN : WATCHED);
}

/* ---- exports for another process ------------------------------------------------------------- */

/* Under windows->lock. Without a trial: freeing the trial's memory could wait for the GPU.
 */
static int rm_export(struct wh_windows *windows, struct wh_span *span, struct wh_view_object *out)
{
	int error = rm_start(windows);

	if (error)
		return error;
	if (span->pointer.memory != WH_CUDA_DEVICE || span->pointer.imported)
		return wh_fail(EOPNOTSUPP, "it is not this process's memory");
	if (!is_proven(windows, span->pointer.device, DUPLICATED))
		return wh_fail(EOPNOTSUPP,
			       "NVIDIA driver %.32s has not been seen working with windows",
			       wh_rm_version(windows->rm));
	error = pin_by(windows, span, DUPLICATED);
	if (error)
		return error;
	if (span->rm.count != 1)
		error = wh_fail(EOPNOTSUPP, "the memory has %u objects, not one", span->rm.count);
	else
		error = wh_rm_export(windows->rm, span->rm.gpu, span->rm.objects[0].object,
				     &out->fd);
	if (!error)
		out->offset = span->rm.objects[0].offset;
	rm_unpin(windows, span); /* the descriptor keeps the memory now */
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
	error = rm_export(windows, &span, &object);
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
	return started && wh_window_order_has(order, wh_window_rm.name);
}

const struct wh_window_backend wh_window_rm = {
	.name = "rm",
	.start = rm_start,
	.stop = rm_stop,
	.pin = rm_pin,
	.unpin = rm_unpin,
	.map = rm_map,
};

/* It shares the client of the backend rm, which closes it. */
static void stop_watching(struct wh_windows *windows)
{
	(void)windows;
}

const struct wh_window_backend wh_window_rm_watch = {
	.name = "rm-watch",
	.start = start_watching,
	.stop = stop_watching,
	.pin = pin_watched,
	.unpin = rm_unpin,
	.map = rm_map,
};
