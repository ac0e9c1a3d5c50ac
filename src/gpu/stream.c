/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c: an engine's GPUs, contexts and streams, made on first use and closed with the engine.
 * launch.c submits work to a stream; progress.c finds out which jobs have finished. */
#include "gpu/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpus.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/cpus.h"
#include "util/error.h"
#include "util/list.h"
#include "util/log.h"

/* The longest that a waiting thread spins: about as long as the copies whose time a wake-up would
 * noticeably prolong. */
#define SPIN_FOR (2 * WH_MS)
#define SPIN_FOR_FEW_CPUS (50 * WH_MS / 1000)

struct wh_cuda *wh_gpus_cuda(const struct wh_gpus *gpus)
{
	return gpus->cuda;
}

uint32_t wh_gpus_ctas(const struct wh_gpus *gpus)
{
	return (uint32_t)gpus->config->number[WH_SETTING_CTAS];
}

uint32_t wh_gpus_turns(const struct wh_gpus *gpus)
{
	/* Without the GPU thread nobody submits what waits while the program is elsewhere. */
	return gpus->turns ? 0 : (uint32_t)gpus->config->number[WH_SETTING_GPU_TURNS];
}

bool wh_gpus_yield(const struct wh_gpus *gpus)
{
	return gpus->config->number[WH_SETTING_MODEL_FIRST];
}

void wh_gpus_share(struct wh_gpus *gpus, const struct wh_cuda_device *device, bool shared)
{
	uint64_t bit = UINT64_C(1) << device->ordinal;

	if (shared)
		atomic_fetch_or(&gpus->shared, bit);
	else
		atomic_fetch_and(&gpus->shared, ~bit);
}

/* Everything in flight has ended or never will. A failed context accepts no work any more, and the
 * driver creates no other in its place while the process lives. */
void wh_gpu_stream_fail(struct wh_gpu_stream *stream, int error, const char *text)
{
	stream->error = error;
	if (strstr(text, "until the process is started anew"))
		snprintf(stream->text, sizeof(stream->text), "%s", text);
	else
		snprintf(stream->text, sizeof(stream->text),
			 "%.185s; cuda:%d is out of use until the process is started anew", text,
			 stream->gpu->device->ordinal);
}

/* ---- contexts and streams, under gpus.lock --------------------------------------------------- */

/* Inside a scope of the context. It is no error if the library has no kernels for the GPU, or the
 * driver cannot compile them: copy engines then move everything. */
static int context_load_kernels(struct wh_gpu_context *gpu)
{
	int error = wh_cuda_kernels_load(gpu->gpus->cuda, gpu->device, &gpu->kernels);

	if (error != -ENOEXEC && error != -ENOENT)
		return error ? wh_fail(-error, "%s: %s", gpu->device->text, wh_error_text()) : 0;
	snprintf(gpu->no_kernels, sizeof(gpu->no_kernels), "%s", wh_error_text());
	wh_log_line(gpu->gpus->log, WH_LOG_WARN, "gpu",
		    "cuda:%d: no kernels, its copy engines do everything: %s", gpu->device->ordinal,
		    gpu->no_kernels);
	return 0;
}

static int context_get(struct wh_gpus *gpus, struct wh_cuda_device *device, CUcontext context,
		       struct wh_gpu_context **out)
{
	struct wh_cuda *cuda = gpus->cuda;
	struct wh_cuda_scope scope;
	struct wh_gpu_context *gpu;
	int error;

	for (gpu = gpus->contexts; gpu; gpu = gpu->next) {
		if (gpu->device == device && gpu->context == context) {
			*out = gpu;
			return 0;
		}
	}
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu)
		return wh_fail(ENOMEM, "no memory for %s", device->text);
	gpu->gpus = gpus;
	gpu->device = device;
	gpu->context = context;
	error = wh_cuda_enter_context(cuda, device, context, &scope);
	if (error)
		goto err_free;
	error = context_load_kernels(gpu);
	if (error)
		goto err_leave;
	error = wh_cuda_call_on(cuda, device, cuMemAlloc, &gpu->counters, WH_BLOCKS_WAYS * 2 * 4);
	if (error)
		goto err_unload;
	wh_cuda_leave(&scope);
	gpu->next = gpus->contexts;
	gpus->contexts = gpu;
	*out = gpu;
	return 0;

err_unload:
	wh_cuda_kernels_unload(cuda, &gpu->kernels);
err_leave:
	wh_cuda_leave(&scope);
err_free:
	free(gpu);
	return error;
}

/* A lower priority is a greater number. On today's GPUs the lowest is that of an ordinary stream.
 */
static int stream_create_handle(struct wh_cuda *cuda, const struct wh_gpu_stream *stream,
				CUstream *out)
{
	const struct wh_cuda_device *device = stream->gpu->device;
	bool last = wh_gpus_yield(stream->gpu->gpus) && !stream->urgent;
	int least = 0, greatest = 0;

	if (!cuda->cuStreamCreateWithPriority || !cuda->cuCtxGetStreamPriorityRange)
		return wh_cuda_call_on(cuda, device, cuStreamCreate, out, CUDA_STREAM_NON_BLOCKING);
	cuda->cuCtxGetStreamPriorityRange(&least, &greatest);
	return wh_cuda_call_on(cuda, device, cuStreamCreateWithPriority, out,
			       CUDA_STREAM_NON_BLOCKING, last ? least : greatest);
}

/* Inside a scope of the stream's context. */
static int stream_allocate(struct wh_gpus *gpus, struct wh_gpu_stream *stream)
{
	const struct wh_cuda_device *device = stream->gpu->device;
	struct wh_cuda *cuda = gpus->cuda;
	void *ring;
	int error;

	if (!cuda->cuStreamWriteValue32)
		return wh_cuda_missing(cuda, "cuStreamWriteValue32");
	error = stream_create_handle(cuda, stream, &stream->handle);
	if (error)
		return error;
	error = wh_cuda_call_on(cuda, device, cuMemHostAlloc, &ring, WH_GPU_STREAM_RING,
				CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
	if (error)
		goto err_stream;
	stream->ring = ring;
	error = wh_cuda_call_on(cuda, device, cuMemHostGetDevicePointer, &stream->ring_host, ring,
				0);
	if (error)
		goto err_ring;
	error = wh_cuda_call_on(cuda, device, cuMemAlloc, &stream->ring_device, WH_GPU_STREAM_RING);
	if (error)
		goto err_ring;
	stream->counter = stream->gpu->counters + 4 * (2 * (uint64_t)stream->way + stream->urgent);
	/* On the stream, so that the counter is 0 before the first kernel uses it. */
	error = wh_cuda_call_on(cuda, device, cuMemsetD8Async, stream->counter, 0, 4,
				stream->handle);
	if (error)
		goto err_lists;
	error = wh_semaphore_acquire(gpus, &stream->semaphore);
	if (error)
		goto err_lists;
	stream->stored = atomic_load(stream->semaphore->value);
	atomic_store(&stream->number, stream->stored);
	return 0;

err_lists:
	cuda->cuStreamSynchronize(stream->handle);
	cuda->cuMemFree(stream->ring_device);
err_ring:
	cuda->cuMemFreeHost(ring);
err_stream:
	cuda->cuStreamDestroy(stream->handle);
	return error;
}

static int stream_new(struct wh_gpu_context *gpu, enum wh_blocks_way way, bool urgent,
		      struct wh_gpu_stream **out)
{
	struct wh_gpus *gpus = gpu->gpus;
	struct wh_gpu_stream *stream = calloc(1, sizeof(*stream));
	struct wh_cuda_scope scope;
	int error;

	if (!stream)
		return wh_fail(ENOMEM, "no memory for a stream of %s", gpu->device->text);
	stream->gpu = gpu;
	stream->way = way;
	stream->urgent = urgent;
	pthread_mutex_init(&stream->lock, NULL);
	pthread_mutex_init(&stream->waiting_lock, NULL);
	wh_list_init(&stream->jobs);
	wh_list_init(&stream->ended);
	wh_list_init(&stream->waiting);
	error = wh_gpus_thread_start(gpus);
	if (!error)
		error = wh_cuda_enter_context(gpus->cuda, gpu->device, gpu->context, &scope);
	if (!error) {
		error = stream_allocate(gpus, stream);
		wh_cuda_leave(&scope);
	}
	if (error) {
		pthread_mutex_destroy(&stream->waiting_lock);
		pthread_mutex_destroy(&stream->lock);
		free(stream);
		return error;
	}
	wh_gpu_stream_guess_cost(stream);
	gpu->stream[way][urgent] = stream;
	atomic_store_explicit(&stream->next, atomic_load(&gpus->streams), memory_order_relaxed);
	atomic_store_explicit(&gpus->streams, stream, memory_order_release);
	*out = stream;
	return 0;
}

int wh_gpus_stream(struct wh_gpus *gpus, struct wh_cuda_device *device, CUcontext context,
		   enum wh_blocks_way way, bool urgent, struct wh_gpu_stream **out)
{
	struct wh_gpu_context *gpu = NULL;
	int error;

	pthread_mutex_lock(&gpus->lock);
	error = context_get(gpus, device, context, &gpu);
	if (!error && gpu->stream[way][urgent])
		*out = gpu->stream[way][urgent];
	else if (!error)
		error = stream_new(gpu, way, urgent, out);
	pthread_mutex_unlock(&gpus->lock);
	return error;
}

bool wh_gpus_describe(struct wh_gpus *gpus, const struct wh_cuda_device *device, char *line,
		      size_t size)
{
	const struct wh_gpu_context *gpu;

	pthread_mutex_lock(&gpus->lock);
	for (gpu = gpus->contexts; gpu; gpu = gpu->next)
		if (gpu->device == device && *gpu->no_kernels)
			break;
	pthread_mutex_unlock(&gpus->lock);
	if (gpu)
		snprintf(line, size, "cuda:%d: no kernels, its copy engines do everything: %s",
			 device->ordinal, gpu->no_kernels);
	return gpu;
}

/* ---- opening and closing --------------------------------------------------------------------- */

int wh_gpus_open(struct wh_cuda *cuda, const struct wh_config *config, const struct wh_log *log,
		 struct wh_turns *turns, struct wh_gpus **out)
{
	struct wh_gpus *gpus = calloc(1, sizeof(*gpus));

	if (!gpus)
		return wh_fail(ENOMEM, "no memory for the engine's GPUs");
	gpus->config = config;
	gpus->log = log;
	gpus->cuda = cuda;
	pthread_mutex_init(&gpus->lock, NULL);
	pthread_mutex_init(&gpus->list_lock, NULL);
	wh_list_init(&gpus->events);
	wh_list_init(&gpus->semaphores_free);
	for (int i = 0; i < WH_SLOT_USES; i++) {
		gpus->pools[i].use = (enum wh_slot_use)i;
		wh_list_init(&gpus->pools[i].slots);
		wh_list_init(&gpus->pools[i].waiters);
	}
	wh_list_init(&gpus->file_pools);
	gpus->many_cpus = wh_cpus() > 4;
	gpus->probe_patience = 2 * WH_SECOND;
	gpus->spin_for = gpus->many_cpus ? SPIN_FOR : SPIN_FOR_FEW_CPUS;
	gpus->turns = turns;
	gpus->poller = (struct wh_poller){ .poll = wh_gpus_poll_turn, .next = wh_gpus_next_turn };
	if (turns)
		wh_turns_add_poller(turns, &gpus->poller);
	*out = gpus;
	return 0;
}

static void context_close(struct wh_gpu_context *gpu)
{
	struct wh_cuda *cuda = gpu->gpus->cuda;
	struct wh_cuda_scope scope;
	/* The application may have destroyed its context, with all that was in it. */
	bool alive = !wh_cuda_enter_context(cuda, gpu->device, gpu->context, &scope);

	for (unsigned i = 0; i < 2 * WH_BLOCKS_WAYS; i++) {
		struct wh_gpu_stream *stream = gpu->stream[i / 2][i % 2];

		if (!stream)
			continue;
		if (alive) {
			cuda->cuStreamSynchronize(stream->handle);
			cuda->cuStreamDestroy(stream->handle);
			cuda->cuMemFree(stream->ring_device);
			cuda->cuMemFreeHost(stream->ring);
		}
		pthread_mutex_destroy(&stream->waiting_lock);
		pthread_mutex_destroy(&stream->lock);
		free(stream->late_probe);
		free(stream);
	}
	if (alive) {
		cuda->cuMemFree(gpu->counters);
		wh_cuda_kernels_unload(cuda, &gpu->kernels);
		wh_cuda_leave(&scope);
	}
	free(gpu);
}

void wh_gpus_close(struct wh_gpus *gpus)
{
	struct wh_gpu_context *gpu, *next;

	if (!gpus)
		return;
	wh_gpus_stop(gpus);
	if (gpus->turns)
		wh_turns_remove_poller(gpus->turns, &gpus->poller);
	for (gpu = gpus->contexts; gpu; gpu = next) {
		next = gpu->next;
		context_close(gpu);
	}
	wh_gpus_pinned_free(gpus);
	pthread_mutex_destroy(&gpus->list_lock);
	pthread_mutex_destroy(&gpus->lock);
	free(gpus);
}
