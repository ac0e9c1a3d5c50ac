/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of offsets that stay on a GPU: those of a prepared descriptor that is submitted again, so
 * that its next submissions have nothing to upload.
 *
 * The memory comes from the device's pool, by calls that are ordered with the lane's stream: an
 * ordinary free would wait for everything that runs on the device.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/core.h"
#include "gpu/stream.h"

/* Shorter lists are read where the CPU wrote them; longer ones would take too much of a GPU. */
#define LEAST 512u
#define MOST (2u << 20)

struct wh_cached_lists {
	struct wh_gpu_stream *lane; /* whose stream the memory was made on */
	uint64_t address;
	uint64_t source, target; /* 0: the side has no list */
	_Atomic bool ready; /* the upload has been done: other lanes may use it */
};

static uint64_t upload(struct wh_cuda *cuda, const struct wh_cached_lists *kept, uint64_t at,
		       const uint64_t *list, uint64_t count, int *error)
{
	if (!list || *error)
		return 0;
	*error = wh_cuda_call(cuda, cuMemcpyHtoDAsync, at, list, 8 * count, kept->lane->stream);
	return at;
}

struct wh_cached_lists *wh_cached_lists_make(struct wh_gpu_stream_turn *turn,
					     const uint64_t *source, const uint64_t *target,
					     uint64_t count)
{
	struct wh_cuda *cuda = wh_gpus_cuda(turn->lane->gpu->gpus);
	uint64_t lists = (source != NULL) + (target != NULL);
	struct wh_cached_lists *kept;
	int error;

	if (turn->error || !lists || count < LEAST || count > MOST || !cuda->cuMemAllocAsync ||
	    !cuda->cuMemFreeAsync || !turn->lane->gpu->device->pools)
		return NULL;
	kept = calloc(1, sizeof(*kept));
	if (!kept)
		return NULL;
	kept->lane = turn->lane;
	error = wh_cuda_call(cuda, cuMemAllocAsync, &kept->address, 8 * count * lists,
			     turn->lane->stream);
	if (error) {
		free(kept);
		return NULL; /* the ring does as well */
	}
	kept->source = upload(cuda, kept, kept->address, source, count, &error);
	kept->target =
		upload(cuda, kept, kept->address + (source ? 8 * count : 0), target, count, &error);
	if (!error)
		return kept;
	cuda->cuMemFreeAsync(kept->address, turn->lane->stream);
	free(kept);
	return NULL;
}

void wh_cached_lists_ready(struct wh_cached_lists *kept)
{
	atomic_store_explicit(&kept->ready, true, memory_order_release);
}

bool wh_cached_lists_use(const struct wh_cached_lists *kept, const struct wh_gpu_stream *lane,
			 struct wh_gpu_stream_blocks *blocks)
{
	if (kept->lane != lane && (kept->lane->gpu != lane->gpu ||
				   !atomic_load_explicit(&kept->ready, memory_order_acquire)))
		return false;
	blocks->source_kept = kept->source;
	blocks->target_kept = kept->target;
	return true;
}

void wh_cached_lists_free(struct wh_cached_lists *kept)
{
	struct wh_cuda_scope scope;
	struct wh_gpu *gpu;
	struct wh_cuda *cuda;

	if (!kept)
		return;
	gpu = kept->lane->gpu;
	cuda = wh_gpus_cuda(gpu->gpus);
	if (!wh_cuda_enter_context(cuda, gpu->device, gpu->context, &scope)) {
		cuda->cuMemFreeAsync(kept->address, kept->lane->stream);
		wh_cuda_leave(&scope);
	}
	free(kept);
}
