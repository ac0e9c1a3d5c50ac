/* SPDX-License-Identifier: Apache-2.0 */
/* Events: recorded in a stream, queried, waited for by threads and by other streams. */
#include <stdlib.h>
#include <time.h>

#include "fake.h"

enum { EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4 };

struct fake_event {
	struct wh_list link;
	struct fake_context *context;
	unsigned flags;
	unsigned refs; /* the user's, and operations that record it */
	struct fake_stream *stream; /* where it was last recorded; NULL: never */
	uint64_t at;
	int64_t time; /* ns; of the record at `at` */
};

static struct wh_list events = { &events, &events };

static bool known_event(const struct fake_event *event)
{
	for (struct wh_list *l = events.next; l != &events; l = l->next)
		if (wh_container(l, struct fake_event, link) == event)
			return true;
	return false;
}

static void unref_event(struct fake_event *event)
{
	if (--event->refs)
		return;
	if (event->stream)
		fake_stream_unref(event->stream);
	free(event);
}

FAKE_API int cuEventCreate(struct fake_event **out, unsigned flags)
{
	struct fake_context *context;
	struct fake_event *event;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!out || flags & ~7U || (flags & EVENT_INTERPROCESS && !(flags & EVENT_DISABLE_TIMING)))
		return FAKE_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (!event)
		return FAKE_OUT_OF_MEMORY;
	event->context = context;
	event->flags = flags;
	event->refs = 1;
	pthread_mutex_lock(&fake_lock);
	wh_list_append(&events, &event->link);
	pthread_mutex_unlock(&fake_lock);
	*out = event;
	return FAKE_OK;
}

FAKE_API int cuEventDestroy_v2(struct fake_event *event)
{
	int error = FAKE_INVALID_HANDLE;

	FAKE_ENTER();
	pthread_mutex_lock(&fake_lock);
	if (known_event(event)) {
		error = fake_health(event->context);
		wh_list_remove(&event->link);
		unref_event(event);
	}
	pthread_mutex_unlock(&fake_lock);
	return error;
}

struct record_op {
	struct fake_op op;
	struct fake_event *event;
	struct fake_stream *stream;
	uint64_t at;
	int64_t time;
};

static int do_record(struct fake_op *op)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	((struct record_op *)op)->time = now.tv_sec * 1000000000LL + now.tv_nsec;
	return 0;
}

/* Set the time of the record at `at`, unless the event has been recorded again. Under fake_lock. */
static void end_record(struct fake_op *op)
{
	struct record_op *record = (struct record_op *)op;

	if (!record->event)
		return;
	if (record->event->stream == record->stream && record->event->at == record->at)
		record->event->time = record->time;
	unref_event(record->event);
}

FAKE_API int cuEventRecord(struct fake_event *event, void *handle)
{
	struct record_op *record;
	struct fake_stream *stream;
	int error;

	FAKE_ENTER();
	record = calloc(1, sizeof(*record));
	if (!record)
		return FAKE_OUT_OF_MEMORY;
	record->op.run = do_record;
	record->op.end = end_record;
	pthread_mutex_lock(&fake_lock);
	error = known_event(event) ? fake_stream_find(handle, &stream) : FAKE_INVALID_HANDLE;
	if (!error && stream->context != event->context)
		error = FAKE_INVALID_HANDLE;
	if (!error)
		error = fake_stream_submit(stream, &record->op);
	if (error) {
		fake_op_free(&record->op);
		goto out;
	}
	record->event = event;
	record->stream = stream;
	record->at = stream->submitted;
	event->refs++;
	stream->refs++;
	if (event->stream)
		fake_stream_unref(event->stream);
	event->stream = stream;
	event->at = stream->submitted;
out:
	pthread_mutex_unlock(&fake_lock);
	return error;
}

/* The state of a known event: 0, FAKE_NOT_READY or its context's error. */
static int event_state(const struct fake_event *event)
{
	int error = fake_health(event->stream ? event->stream->context : event->context);

	if (error)
		return error;
	return event->stream && event->stream->done < event->at ? FAKE_NOT_READY : FAKE_OK;
}

FAKE_API int cuEventQuery(struct fake_event *event)
{
	int error;

	FAKE_ENTER();
	pthread_mutex_lock(&fake_lock);
	error = known_event(event) ? event_state(event) : FAKE_INVALID_HANDLE;
	pthread_mutex_unlock(&fake_lock);
	return error;
}

FAKE_API int cuEventSynchronize(struct fake_event *event)
{
	struct fake_context *context;
	int error;

	FAKE_ENTER();
	pthread_mutex_lock(&fake_lock);
	error = known_event(event) ? event_state(event) : FAKE_INVALID_HANDLE;
	if (error == FAKE_NOT_READY) {
		context = event->context;
		fake_stream_wait_until(event->stream, event->at);
		error = fake_health(context);
	}
	pthread_mutex_unlock(&fake_lock);
	return error;
}

FAKE_API int cuEventElapsedTime(float *out, struct fake_event *from, struct fake_event *to)
{
	int error;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	if (!known_event(from) || !known_event(to) || !from->stream || !to->stream ||
	    (from->flags | to->flags) & EVENT_DISABLE_TIMING) {
		error = FAKE_INVALID_HANDLE;
	} else {
		error = event_state(from);
		error = error ? error : event_state(to);
	}
	if (!error)
		*out = (float)(to->time - from->time) / 1e6F;
	pthread_mutex_unlock(&fake_lock);
	return error;
}

FAKE_API int cuEventElapsedTime_v2(float *out, struct fake_event *from, struct fake_event *to)
{
	FAKE_ENTER();
	return cuEventElapsedTime(out, from, to);
}

static int do_nothing(struct fake_op *op)
{
	(void)op;
	return 0;
}

FAKE_API int cuStreamWaitEvent(void *handle, struct fake_event *event, unsigned flags)
{
	struct fake_stream *stream;
	struct fake_op *op;
	int error;

	FAKE_ENTER();
	if (flags > 1)
		return FAKE_INVALID_VALUE;
	op = calloc(1, sizeof(*op));
	if (!op)
		return FAKE_OUT_OF_MEMORY;
	op->run = do_nothing;
	pthread_mutex_lock(&fake_lock);
	error = known_event(event) ? fake_stream_find(handle, &stream) : FAKE_INVALID_HANDLE;
	if (!error && event->stream && !fake_op_add_wait(op, event->stream, event->at))
		error = FAKE_OUT_OF_MEMORY;
	if (!error)
		error = fake_stream_submit(stream, op);
	if (error)
		fake_op_free(op);
	pthread_mutex_unlock(&fake_lock);
	return error;
}
