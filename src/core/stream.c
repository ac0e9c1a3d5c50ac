/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dependencies between batches and CUDA streams of the application.
 *
 * A batch that follows a stream starts when an event recorded on that stream has happened; a thread
 * of ours waits for it. A GPU stream of ours that waited instead would delay other batches and
 * could not be cancelled. A stream that follows a batch waits for a semaphore in pinned memory,
 * which the end of the batch sets, whether it succeeds or not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/stream.h"
#include "gpu/stream.h"
#include "util/error.h"
#include "util/list.h"
#include "util/options.h"

struct wh_stream_dependency {
	struct wh_event_wait wait;
	struct wh_batch *batch;
	struct wh_semaphore *_Atomic semaphore; /* NULL: no stream has waited yet */
	_Atomic uint32_t ends; /* the value that the semaphore gets when the batch ends */
};

/* ---- the stream's context ------------------------------------------------------------------- */

/* NULL and the two named default streams are not handles: they belong to the current context. */
static bool stream_is_default(const void *stream)
{
	return (uintptr_t)stream <= 2;
}

static int stream_find_context(struct wh_cuda *cuda, const struct wh_stream *stream,
			       struct wh_cuda_device **device, CUcontext *context)
{
	int error, ordinal = -1, result;

	if (stream_is_default(stream->stream) && stream->device) {
		*context = NULL;
		return wh_cuda_device_find(cuda, stream->device, device);
	}
	error = stream_is_default(stream->stream) ?
			wh_cuda_call(cuda, cuCtxGetCurrent, context) :
			wh_cuda_call(cuda, cuStreamGetCtx, stream->stream, context);
	if (error)
		return error;
	if (!*context)
		return wh_fail(EINVAL, "stream.device is NULL, and this thread has no current CUDA "
				       "context whose default stream could be meant");
	/* Which device a context is of can be asked in any scope. */
	result = cuda->cuCtxPushCurrent(*context);
	if (!result) {
		result = cuda->cuCtxGetDevice(&ordinal);
		cuda->cuCtxPopCurrent(&(CUcontext){ NULL });
	}
	error = wh_cuda_check(cuda, result, "cuCtxGetDevice", "the context of stream %p",
			      stream->stream);
	for (unsigned i = 0; !error && i < cuda->device_count; i++) {
		if (cuda->devices[i].handle != ordinal)
			continue;
		*device = &cuda->devices[i];
		return 0;
	}
	return error ? error :
		       wh_fail(ENODEV, "the device of stream %p is not one of this process",
			       stream->stream);
}

/* A stream of the application, whose context the calling thread has entered. */
struct stream_scope {
	struct wh_stream stream;
	struct wh_cuda_device *device;
	CUcontext context;
	struct wh_cuda_scope scope;
};

/* Check the arguments of the public function `call` and enter the stream's context. `idle`: fail if
 * the batch is running. */
static int stream_enter(struct wh_batch *batch, bool idle, const struct wh_stream *given,
			const char *call, struct stream_scope *at)
{
	int error, capturing = 0;
	struct wh_cuda *cuda;

	memset(at, 0, sizeof(*at));
	if (!batch)
		return wh_fail(EINVAL, "%s: batch is NULL", call);
	error = wh_engine_guard(batch->peer->engine, call);
	if (error)
		return error;
	if (idle && wh_batch_running(batch))
		return wh_fail(EBUSY, "%s: the batch is running", call);
	if (!given)
		return wh_fail(EINVAL, "%s: stream is NULL", call);
	cuda = batch->peer->engine->cuda;
	error = wh_options_copy(&at->stream, sizeof(at->stream), given, sizeof(size_t), call);
	if (!error)
		error = wh_cuda_ready(cuda);
	if (!error)
		error = stream_find_context(cuda, &at->stream, &at->device, &at->context);
	if (!error)
		error = wh_cuda_enter_context(cuda, at->device, at->context, &at->scope);
	if (error)
		return error;
	if (cuda->cuStreamIsCapturing &&
	    !cuda->cuStreamIsCapturing(at->stream.stream, &capturing) && capturing) {
		wh_cuda_leave(&at->scope);
		return wh_fail(EBUSY, "%s: stream %p is being captured into a graph", call,
			       at->stream.stream);
	}
	return 0;
}

static int dependency_create(struct wh_batch *batch)
{
	struct wh_stream_dependency *dependency;

	if (batch->dependency)
		return 0;
	dependency = calloc(1, sizeof(*dependency));
	if (!dependency)
		return wh_fail(ENOMEM, "no memory for a batch that follows a stream");
	dependency->batch = batch;
	atomic_store(&batch->dependency, dependency);
	return 0;
}

/* ---- a batch that follows a stream ---------------------------------------------------------- */

/* Destroy the event. Not later than when the batch starts: then the application may destroy the
 * context to which the event belongs. */
static void dependency_drop_event(struct wh_stream_dependency *dependency)
{
	struct wh_cuda *cuda = dependency->batch->peer->engine->cuda;
	struct wh_cuda_scope scope;

	if (!dependency->wait.event)
		return;
	if (!wh_cuda_enter_context(cuda, dependency->wait.device, dependency->wait.context,
				   &scope)) {
		cuda->cuEventDestroy(dependency->wait.event);
		wh_cuda_leave(&scope);
	}
	dependency->wait.event = NULL;
}

static void dependency_event_happened(struct wh_event_wait *wait, int error, const char *text)
{
	struct wh_stream_dependency *dependency =
		wh_container(wait, struct wh_stream_dependency, wait);

	dependency_drop_event(dependency);
	wh_batch_start(dependency->batch, error, text);
}

/* Record an event on the stream. */
static int dependency_record_event(struct wh_cuda *cuda, struct wh_stream_dependency *dependency,
				   const struct stream_scope *at)
{
	void *stream = at->stream.stream;
	int error;

	dependency->wait.device = at->device;
	dependency->wait.context = at->context;
	error = wh_cuda_call_on(cuda, at->device, cuEventCreate, &dependency->wait.event,
				CUDA_EVENT_DISABLE_TIMING);
	if (error) {
		dependency->wait.event = NULL;
		return error;
	}
	error = wh_cuda_check(cuda, cuda->cuEventRecord(dependency->wait.event, stream),
			      "cuEventRecord", "stream %p of %s", stream, at->device->text);
	if (error)
		dependency_drop_event(dependency);
	return error;
}

static int stream_submit_after(struct wh_batch *batch, const struct wh_stream *stream)
{
	struct stream_scope at;
	int error = stream_enter(batch, true, stream, "wh_batch_submit_after", &at);

	if (error)
		return error;
	error = dependency_create(batch);
	if (!error)
		error = dependency_record_event(batch->peer->engine->cuda, batch->dependency, &at);
	wh_cuda_leave(&at.scope);
	if (error)
		return error;
	batch->dependency->wait.cancelled = false;
	batch->dependency->wait.ready = dependency_event_happened;
	error = wh_batch_submit_when(batch, &batch->dependency->wait);
	if (error)
		dependency_drop_event(batch->dependency);
	return error;
}

int wh_batch_submit_after(struct wh_batch *batch, const struct wh_stream *stream)
{
	wh_fail_begin();
	return wh_fail_end(stream_submit_after(batch, stream));
}

/* ---- a stream that follows a batch ---------------------------------------------------------- */

static int dependency_create_semaphore(struct wh_batch *batch)
{
	struct wh_semaphore *semaphore;
	struct wh_stream_dependency *dependency;
	int error = dependency_create(batch);

	dependency = batch->dependency;
	if (error || atomic_load(&dependency->semaphore))
		return error;
	error = wh_semaphore_acquire(batch->peer->engine->gpus, &semaphore);
	if (error)
		return error;
	atomic_store(&dependency->ends, atomic_load(semaphore->value) + 1);
	atomic_store(&dependency->semaphore, semaphore);
	return 0;
}

/* Make the stream wait for the end of the batch. Order matters: here the semaphore is published,
 * then `ends` read, then the batch's state. wh_stream_dependency_end() runs after the state has
 * become DONE and reads the semaphore then. All accesses are sequentially consistent: either the
 * end sees the semaphore, or this sees that the batch has ended. */
static int stream_wait_semaphore(struct wh_batch *batch, const struct stream_scope *at)
{
	struct wh_cuda *cuda = batch->peer->engine->cuda;
	uint32_t ends = atomic_load(&batch->dependency->ends), state = atomic_load(&batch->state);

	if (state != WH_BATCH_RUNNING && state != WH_BATCH_WAITED)
		return 0;
	return wh_cuda_call_on(cuda, at->device, cuStreamWaitValue32, at->stream.stream,
			       atomic_load(&batch->dependency->semaphore)->address, ends,
			       CUDA_STREAM_WAIT_GEQ);
}

static int stream_hold(struct wh_batch *batch, const struct wh_stream *stream)
{
	struct stream_scope at;
	int error = stream_enter(batch, false, stream, "wh_batch_make_stream_wait", &at);

	if (error)
		return error;
	wh_gpus_pinning_device(batch->peer->engine->gpus, at.device, NULL);
	error = dependency_create_semaphore(batch);
	if (!error)
		error = stream_wait_semaphore(batch, &at);
	wh_cuda_leave(&at.scope);
	return error;
}

int wh_batch_make_stream_wait(struct wh_batch *batch, const struct wh_stream *stream)
{
	wh_fail_begin();
	return wh_fail_end(stream_hold(batch, stream));
}

/* ---- for batch.c ---------------------------------------------------------------------------- */

void wh_stream_dependency_end(struct wh_batch *batch)
{
	struct wh_stream_dependency *dependency = atomic_load(&batch->dependency);
	struct wh_semaphore *semaphore = dependency ? atomic_load(&dependency->semaphore) : NULL;
	uint32_t ends;

	if (!semaphore)
		return;
	ends = atomic_load(&dependency->ends);
	atomic_store(semaphore->value, ends);
	atomic_store(&dependency->ends, ends + 1);
}

bool wh_stream_dependency_cancel(struct wh_batch *batch)
{
	struct wh_stream_dependency *dependency = atomic_load(&batch->dependency);

	if (!dependency || !wh_gpus_cancel_event(batch->peer->engine->gpus, &dependency->wait))
		return false;
	dependency_drop_event(dependency);
	return true;
}

void wh_stream_dependency_drop(struct wh_batch *batch)
{
	dependency_drop_event(atomic_load(&batch->dependency));
}

void wh_stream_dependency_free(struct wh_batch *batch)
{
	struct wh_engine *engine = batch->peer->engine;
	struct wh_stream_dependency *dependency = batch->dependency;

	if (!dependency)
		return;
	if (atomic_load(&dependency->semaphore))
		wh_semaphore_release(engine->gpus, atomic_load(&dependency->semaphore));
	free(dependency);
}
