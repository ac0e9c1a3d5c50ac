/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by the GPU's copy engine: for windows without a mapping (staged), for long reads, and for
 * trials of mappings. */
#include <errno.h>
#include <stdlib.h>

#include "util/clock.h"
#include "window/view.h"

#define PROBE ((size_t)4096)
#define PROBE_ROUNDS 3

/* Under windows->stream_lock. */
static int stream_of(struct wh_windows *windows, struct wh_cuda_device *device, CUstream *out)
{
	struct wh_cuda *cuda = windows->cuda;
	struct wh_window_gpu *gpu;
	int error = 0;

	if (!windows->gpus)
		windows->gpus = calloc(cuda->device_count, sizeof(*windows->gpus));
	if (!windows->gpus)
		return wh_fail(ENOMEM, "no memory for a stream");
	gpu = &windows->gpus[device->ordinal];
	/* Non-blocking: kernels of the application may be waiting for this copy. */
	if (!gpu->stream)
		error = wh_cuda_call(cuda, cuStreamCreate, &gpu->stream, CUDA_STREAM_NON_BLOCKING);
	*out = gpu->stream;
	return error;
}

int wh_windows_stream(struct wh_windows *windows, struct wh_cuda_device *device, CUstream *out)
{
	int error;

	pthread_mutex_lock(&windows->stream_lock);
	error = stream_of(windows, device, out);
	pthread_mutex_unlock(&windows->stream_lock);
	return error;
}

void wh_windows_streams_free(struct wh_windows *windows)
{
	struct wh_cuda *cuda = windows->cuda;
	struct wh_cuda_scope scope;

	for (unsigned i = 0; windows->gpus && i < cuda->device_count; i++) {
		if (!windows->gpus[i].stream || wh_cuda_enter(cuda, &cuda->devices[i], &scope))
			continue;
		cuda->cuStreamDestroy(windows->gpus[i].stream);
		wh_cuda_leave(&scope);
	}
}

enum direction { PUT, GET };

static int copy_in(struct wh_cuda *cuda, CUstream stream, enum direction direction,
		   uint64_t device_address, void *host, size_t length)
{
	int error = direction == PUT ? wh_cuda_call(cuda, cuMemcpyHtoDAsync, device_address, host,
						    length, stream) :
				       wh_cuda_call(cuda, cuMemcpyDtoHAsync, host, device_address,
						    length, stream);

	return error ? error : wh_cuda_call(cuda, cuStreamSynchronize, stream);
}

static int staged_copy(struct wh_windows *windows, struct wh_cuda_device *device,
		       enum direction direction, uint64_t device_address, void *host, size_t length)
{
	struct wh_cuda_scope scope;
	CUstream stream = NULL;
	int error = wh_cuda_enter(windows->cuda, device, &scope);

	if (error)
		return error;
	error = wh_windows_stream(windows, device, &stream);
	if (!error)
		error = copy_in(windows->cuda, stream, direction, device_address, host, length);
	wh_cuda_leave(&scope);
	return error;
}

int wh_windows_put(struct wh_windows *windows, struct wh_cuda_device *device, uint64_t to,
		   const void *from, size_t length)
{
	return staged_copy(windows, device, PUT, to, (void *)(uintptr_t)from, length);
}

int wh_windows_get(struct wh_windows *windows, struct wh_cuda_device *device, void *to,
		   uint64_t from, size_t length)
{
	return staged_copy(windows, device, GET, from, to, length);
}

/* ---- choosing how to read -------------------------------------------------------------------- */

/* Nanoseconds of the fastest of several reads; -1: it failed. */
static int64_t time_read(struct wh_view *view, void *to, size_t length, bool engine)
{
	int64_t best = INT64_MAX, start, took;

	for (int i = 0; i < PROBE_ROUNDS; i++) {
		start = wh_now();
		if (!engine)
			wh_copy_from(view->copy, to, wh_view_at(view, view->wanted), length);
		else if (wh_windows_get(view->windows, view->device, to, view->wanted, length))
			return -1;
		took = wh_now() - start;
		best = took < best ? took : best;
	}
	return best;
}

/* Model loads as a time for each byte and the copy engine as a time for each call: accurate enough
 * for the few KiB at which they are equal. */
static size_t staged_measure(struct wh_view *view)
{
	size_t length = view->wanted_length < PROBE ? view->wanted_length : PROBE;
	unsigned char bytes[PROBE];
	int64_t loads = time_read(view, bytes, length, false),
		engine = time_read(view, bytes, length, true);

	if (engine < 0)
		return SIZE_MAX;
	loads = loads ? loads : 1;
	return (size_t)((double)engine / (double)loads * (double)length) + 1;
}

size_t wh_windows_threshold(struct wh_view *view)
{
	struct wh_windows *windows = view->windows;
	_Atomic uint64_t *kept;
	CUstream stream;
	struct wh_cuda_scope scope;
	int error;

	if (view->wanted_length < PROBE)
		return SIZE_MAX;
	if (wh_cuda_enter(windows->cuda, view->device, &scope))
		return SIZE_MAX;
	error = wh_windows_stream(windows, view->device, &stream);
	wh_cuda_leave(&scope);
	if (error)
		return SIZE_MAX;
	kept = &windows->gpus[view->device->ordinal].engine;
	if (!*kept)
		*kept = staged_measure(view);
	return *kept;
}
