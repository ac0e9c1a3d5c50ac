/* SPDX-License-Identifier: Apache-2.0 */
/*
 * descriptor-cache.c: keeps the offset lists of prepared blocks on a GPU, so that submitting the
 * blocks again uploads nothing.
 *
 * The memory comes from the device's pool, by calls that are ordered with the stream: cuMemFree()
 * would wait for everything that runs on the device.
 */
#include <errno.h>
#include <stdlib.h>

#include "gpu/stream.h"

/* The kernel reads shorter lists from pinned memory; longer ones would use too much GPU memory. */
#define MIN_OFFSETS 512u
#define MAX_OFFSETS (2u << 20)

struct wh_cached_lists {
	struct wh_gpu_stream *stream; /* on which the memory was allocated */
	uint64_t address;
	uint64_t source, target; /* 0: the side has no list */
	_Atomic bool ready; /* the upload has ended: other streams may use the lists */
};

static uint64_t cached_lists_upload(struct wh_cuda *cuda, const struct wh_cached_lists *cached,
				    uint64_t at, const uint64_t *list, uint64_t count, int *error)
{
	if (!list || *error)
		return 0;
	*error = wh_cuda_call(cuda, cuMemcpyHtoDAsync, at, list, 8 * count, cached->stream->handle);
	return at;
}

struct wh_cached_lists *wh_cached_lists_make(struct wh_gpu_stream_turn *turn,
					     const uint64_t *source, const uint64_t *target,
					     uint64_t count)
{
	struct wh_cuda *cuda = wh_gpus_cuda(turn->stream->gpu->gpus);
	uint64_t lists = (source != NULL) + (target != NULL);
	struct wh_cached_lists *cached;
	int error;

	if (turn->error || !lists || count < MIN_OFFSETS || count > MAX_OFFSETS ||
	    !cuda->cuMemAllocAsync || !cuda->cuMemFreeAsync || !turn->stream->gpu->device->pools)
		return NULL;
	cached = calloc(1, sizeof(*cached));
	if (!cached)
		return NULL;
	cached->stream = turn->stream;
	error = wh_cuda_call(cuda, cuMemAllocAsync, &cached->address, 8 * count * lists,
			     turn->stream->handle);
	if (error) {
		free(cached);
		return NULL; /* the ring serves instead */
	}
	cached->source = cached_lists_upload(cuda, cached, cached->address, source, count, &error);
	cached->target = cached_lists_upload(
		cuda, cached, cached->address + (source ? 8 * count : 0), target, count, &error);
	if (!error)
		return cached;
	cuda->cuMemFreeAsync(cached->address, turn->stream->handle);
	free(cached);
	return NULL;
}

void wh_cached_lists_ready(struct wh_cached_lists *cached)
{
	atomic_store_explicit(&cached->ready, true, memory_order_release);
}

bool wh_cached_lists_use(const struct wh_cached_lists *cached, const struct wh_gpu_stream *stream,
			 struct wh_gpu_stream_blocks *blocks)
{
	if (cached->stream != stream &&
	    (cached->stream->gpu != stream->gpu ||
	     !atomic_load_explicit(&cached->ready, memory_order_acquire)))
		return false;
	blocks->source_cached = cached->source;
	blocks->target_cached = cached->target;
	return true;
}

void wh_cached_lists_free(struct wh_cached_lists *cached)
{
	struct wh_cuda_scope scope;
	struct wh_gpu_context *gpu;
	struct wh_cuda *cuda;

	if (!cached)
		return;
	gpu = cached->stream->gpu;
	cuda = wh_gpus_cuda(gpu->gpus);
	if (!wh_cuda_enter_context(cuda, gpu->device, gpu->context, &scope)) {
		cuda->cuMemFreeAsync(cached->address, cached->stream->handle);
		wh_cuda_leave(&scope);
	}
	free(cached);
}
