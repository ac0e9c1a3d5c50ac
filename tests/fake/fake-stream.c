/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams. Each stream has a thread, which its first operation starts and which runs one
 * operation after the other. An operation that waits for other streams (for an event or the legacy
 * default stream) gets, at submission, a list of these streams and of the number of operations that
 * each must have completed.
 */
#include <stdlib.h>
#include <unistd.h>

#include "fake.h"

enum { STREAM_NON_BLOCKING = 1 };

#define LEGACY ((void *)1)
#define PER_THREAD ((void *)2)

/* ---- life of a stream ------------------------------------------------------------------------ */

/* All under fake_lock. */

static struct fake_stream *new_stream(struct fake_context *context, unsigned flags, int priority)
{
	struct fake_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->context = context;
	stream->flags = flags;
	stream->priority = priority;
	stream->refs = 1;
	stream->last = &stream->first;
	pthread_cond_init(&stream->wake, NULL);
	pthread_cond_init(&stream->progress, NULL);
	wh_list_append(&context->streams, &stream->link);
	return stream;
}

void fake_stream_unref(struct fake_stream *stream)
{
	if (--stream->refs)
		return;
	pthread_cond_destroy(&stream->wake);
	pthread_cond_destroy(&stream->progress);
	free(stream);
}

/* The stream's thread unlinks the stream after its last operation, so that fake_context_wait()
 * still waits for it. */
static void close_stream(struct fake_stream *stream)
{
	stream->closing = true;
	if (!stream->started)
		wh_list_remove(&stream->link);
	pthread_cond_signal(&stream->wake);
	fake_stream_unref(stream);
}

static struct fake_stream *default_stream(struct fake_context *context, bool per_thread)
{
	struct fake_stream *own;
	pid_t self = gettid();

	if (!per_thread) {
		if (!context->null)
			context->null = new_stream(context, 0, 0);
		return context->null;
	}
	for (struct wh_list *l = context->streams.next; l != &context->streams; l = l->next) {
		struct fake_stream *stream = wh_container(l, struct fake_stream, link);

		if (stream->owner == self && !stream->closing)
			return stream;
	}
	own = new_stream(context, 0, 0);
	if (own)
		own->owner = self;
	return own;
}

static bool stream_known(const struct fake_stream *stream)
{
	for (struct wh_list *c = fake_contexts.next; c != &fake_contexts; c = c->next) {
		struct fake_context *context = wh_container(c, struct fake_context, link);

		for (struct wh_list *l = context->streams.next; l != &context->streams; l = l->next)
			if (wh_container(l, struct fake_stream, link) == stream)
				return !stream->closing;
	}
	return false;
}

int fake_stream_find(void *handle, struct fake_stream **out)
{
	struct fake_context *context;
	int error;

	if (handle && handle != LEGACY && handle != PER_THREAD) {
		*out = handle;
		return stream_known(handle) ? fake_health((*out)->context) : FAKE_INVALID_HANDLE;
	}
	error = fake_current(&context);
	if (error)
		return error;
	*out = default_stream(context, handle == PER_THREAD);
	return *out ? FAKE_OK : FAKE_OUT_OF_MEMORY;
}

int fake_stream_context(void *handle, struct fake_context **out)
{
	struct fake_stream *stream;
	int error;

	pthread_mutex_lock(&fake_lock);
	error = fake_stream_find(handle, &stream);
	if (!error)
		*out = stream->context;
	pthread_mutex_unlock(&fake_lock);
	return error;
}

/* ---- running operations ---------------------------------------------------------------------- */

/* Count an operation that begins, and lose the device if fake_cuda_lose() asked for that. */
static void count_operation(struct fake_device *device)
{
	if (device->lose_after > 0 && atomic_fetch_sub(&device->lose_after, 1) == 1) {
		device->lose_after = -1;
		device->lost = device->lose_error;
	}
}

static void do_op(struct fake_op *op)
{
	int error = 0, none = 0;

	fake_take_delay();
	count_operation(op->context->device);
	if (!fake_health(op->context)) {
		fake_pages_operation(true);
		error = op->run(op);
		fake_pages_operation(false);
	}
	if (error)
		atomic_compare_exchange_strong(&op->context->error, &none, error);
}

void fake_op_free(struct fake_op *op)
{
	for (unsigned i = 0; i < op->wait_count; i++)
		fake_stream_unref(op->waits[i].stream);
	free(op->waits);
	if (op->end)
		op->end(op);
	free(op);
}

static void *stream_run(void *arg)
{
	struct fake_stream *stream = arg;

	pthread_mutex_lock(&fake_lock);
	while (stream->first || !stream->closing) {
		struct fake_op *op = stream->first;

		if (!op) {
			pthread_cond_wait(&stream->wake, &fake_lock);
			continue;
		}
		for (unsigned i = 0; i < op->wait_count; i++)
			while (op->waits[i].stream->done < op->waits[i].until)
				pthread_cond_wait(&op->waits[i].stream->progress, &fake_lock);
		pthread_mutex_unlock(&fake_lock);
		do_op(op);
		pthread_mutex_lock(&fake_lock);
		stream->first = op->next;
		if (!stream->first)
			stream->last = &stream->first;
		fake_op_free(op);
		stream->done++;
		pthread_cond_broadcast(&stream->progress);
	}
	wh_list_remove(&stream->link);
	fake_stream_unref(stream);
	pthread_mutex_unlock(&fake_lock);
	return NULL;
}

static int stream_start(struct fake_stream *stream)
{
	pthread_attr_t detached;
	pthread_t thread;
	int error;

	if (stream->started)
		return FAKE_OK;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	stream->refs++;
	error = pthread_create(&thread, &detached, stream_run, stream);
	if (!error) /* else the thread has the name of its creator */
		pthread_setname_np(thread, "fake/stream");
	pthread_attr_destroy(&detached);
	stream->started = !error;
	stream->refs -= error != 0;
	return error ? FAKE_OUT_OF_MEMORY : FAKE_OK;
}

/* ---- submitting ------------------------------------------------------------------------------ */

bool fake_op_add_wait(struct fake_op *op, struct fake_stream *stream, uint64_t until)
{
	struct fake_wait *waits = op->waits;

	if (stream->done >= until)
		return true;
	if (op->wait_count == op->wait_room) {
		op->wait_room = op->wait_room * 2 + 2;
		waits = realloc(waits, op->wait_room * sizeof(*waits));
		if (!waits)
			return false;
		op->waits = waits;
	}
	stream->refs++;
	waits[op->wait_count++] = (struct fake_wait){ stream, until };
	return true;
}

/* Add the waits between the legacy default stream and the blocking streams of its context. */
static bool wait_for_default(struct fake_op *op, struct fake_stream *stream)
{
	struct fake_context *context = stream->context;

	if (stream->flags & STREAM_NON_BLOCKING || !context->null)
		return true;
	if (stream != context->null)
		return fake_op_add_wait(op, context->null, context->null->submitted);
	for (struct wh_list *l = context->streams.next; l != &context->streams; l = l->next) {
		struct fake_stream *other = wh_container(l, struct fake_stream, link);

		if (other != stream && !(other->flags & STREAM_NON_BLOCKING) &&
		    !fake_op_add_wait(op, other, other->submitted))
			return false;
	}
	return true;
}

void fake_stream_wait_until(struct fake_stream *stream, uint64_t until)
{
	stream->refs++;
	while (stream->done < until)
		pthread_cond_wait(&stream->progress, &fake_lock);
	fake_stream_unref(stream);
}

int fake_stream_submit(struct fake_stream *stream, struct fake_op *op)
{
	int error = stream_start(stream);

	if (error)
		return error;
	op->context = stream->context;
	if (!wait_for_default(op, stream))
		return FAKE_OUT_OF_MEMORY;
	op->next = NULL;
	*stream->last = op;
	stream->last = &op->next;
	stream->submitted++;
	pthread_cond_signal(&stream->wake);
	return FAKE_OK;
}

int fake_submit(void *handle, struct fake_op *op, bool wait)
{
	struct fake_context *context;
	struct fake_stream *stream;
	int error;

	pthread_mutex_lock(&fake_lock);
	error = fake_stream_find(handle, &stream);
	if (!error)
		error = fake_stream_submit(stream, op);
	if (error) {
		fake_op_free(op);
	} else if (wait) {
		context = stream->context;
		fake_stream_wait_until(stream, stream->submitted);
		error = fake_health(context);
	}
	pthread_mutex_unlock(&fake_lock);
	return error;
}

/* Does not wait for operations that other threads submit meanwhile. */
void fake_context_wait(struct fake_context *context)
{
	struct fake_op all = { .context = context };

	pthread_mutex_lock(&fake_lock);
	for (struct wh_list *l = context->streams.next; l != &context->streams; l = l->next) {
		struct fake_stream *stream = wh_container(l, struct fake_stream, link);

		if (!fake_op_add_wait(&all, stream, stream->submitted))
			abort();
	}
	for (unsigned i = 0; i < all.wait_count; i++) {
		fake_stream_wait_until(all.waits[i].stream, all.waits[i].until);
		fake_stream_unref(all.waits[i].stream);
	}
	pthread_mutex_unlock(&fake_lock);
	free(all.waits);
}

void fake_streams_end(struct fake_context *context)
{
	fake_context_wait(
		context); /* operations that have not begun are dropped, after their delay */
	pthread_mutex_lock(&fake_lock);
	for (struct wh_list *l = context->streams.next, *next; l != &context->streams; l = next) {
		struct fake_stream *stream = wh_container(l, struct fake_stream, link);

		next = l->next;
		if (!stream->closing)
			close_stream(stream);
	}
	context->null = NULL;
	pthread_mutex_unlock(&fake_lock);
}

/* ---- stream calls ---------------------------------------------------------------------------- */

FAKE_API int cuStreamCreateWithPriority(struct fake_stream **out, unsigned flags, int priority)
{
	struct fake_context *context;
	struct fake_stream *stream;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!out || flags > STREAM_NON_BLOCKING)
		return FAKE_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	stream = new_stream(context, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
	pthread_mutex_unlock(&fake_lock);
	if (!stream)
		return FAKE_OUT_OF_MEMORY;
	*out = stream;
	return FAKE_OK;
}

FAKE_API int cuStreamCreate(struct fake_stream **out, unsigned flags)
{
	FAKE_ENTER();
	return cuStreamCreateWithPriority(out, flags, 0);
}

/* The stream still runs the operations that it has. */
FAKE_API int cuStreamDestroy_v2(struct fake_stream *stream)
{
	int error = FAKE_OK;

	FAKE_ENTER();
	pthread_mutex_lock(&fake_lock);
	if (!stream_known(stream) || stream == stream->context->null || stream->owner) {
		error = FAKE_INVALID_HANDLE;
	} else {
		error = fake_health(stream->context);
		close_stream(stream);
	}
	pthread_mutex_unlock(&fake_lock);
	return error;
}

FAKE_API int cuStreamSynchronize(void *handle)
{
	struct fake_context *context;
	struct fake_stream *stream;
	int error;

	FAKE_ENTER();
	pthread_mutex_lock(&fake_lock);
	error = fake_stream_find(handle, &stream);
	if (!error) {
		context = stream->context;
		fake_stream_wait_until(stream, stream->submitted);
		error = fake_health(context);
	}
	pthread_mutex_unlock(&fake_lock);
	return error;
}

FAKE_API int cuStreamQuery(void *handle)
{
	struct fake_stream *stream;
	int error;

	FAKE_ENTER();
	pthread_mutex_lock(&fake_lock);
	error = fake_stream_find(handle, &stream);
	if (!error && stream->done < stream->submitted)
		error = FAKE_NOT_READY;
	pthread_mutex_unlock(&fake_lock);
	return error;
}

FAKE_API int cuStreamGetCtx(void *handle, struct fake_context **out)
{
	FAKE_ENTER();
	return out ? fake_stream_context(handle, out) : FAKE_INVALID_VALUE;
}

FAKE_API int cuStreamGetDevice(void *handle, int *out)
{
	struct fake_context *context;
	int error;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	error = fake_stream_context(handle, &context);
	if (!error)
		*out = context->device->ordinal;
	return error;
}

FAKE_API int cuStreamGetPriority(void *handle, int *out)
{
	struct fake_stream *stream;
	int error;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	error = fake_stream_find(handle, &stream);
	if (!error)
		*out = stream->priority;
	pthread_mutex_unlock(&fake_lock);
	return error;
}

/* The fake captures nothing, but a test can make a stream appear to be capturing. */
static void *_Atomic captured;

FAKE_API void fake_cuda_capture(void *stream)
{
	captured = stream;
}

FAKE_API int cuStreamIsCapturing(void *handle, int *out)
{
	struct fake_context *context;
	int error;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	error = fake_stream_context(handle, &context);
	if (!error)
		*out = handle && handle == captured;
	return error;
}

FAKE_API int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int before = fake_capture_mode;

	FAKE_ENTER();
	if (!mode)
		return FAKE_INVALID_VALUE;
	fake_capture_mode = *mode;
	*mode = before;
	return FAKE_OK;
}

struct host_op {
	struct fake_op op;
	void (*function)(void *arg);
	void *arg;
};

static int call_host(struct fake_op *op)
{
	struct host_op *host = (struct host_op *)op;

	fake_in_callback = true;
	host->function(host->arg);
	fake_in_callback = false;
	return 0;
}

FAKE_API int cuLaunchHostFunc(void *stream, void (*function)(void *arg), void *arg)
{
	struct host_op *host;

	FAKE_ENTER();
	if (!function)
		return FAKE_INVALID_VALUE;
	host = calloc(1, sizeof(*host));
	if (!host)
		return FAKE_OUT_OF_MEMORY;
	host->op.run = call_host;
	host->function = function;
	host->arg = arg;
	return fake_submit(stream, &host->op, false);
}
