/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c: finds out which jobs of the streams are done and which events have happened, and
 * calls their functions: in a thread that waits for a batch, or else in the GPU thread. */
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

#include "gpu/gpus.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/futex.h"
#include "util/thread.h"

/* The GPU thread polls at this interval (ns) while jobs are in flight, and goes on for SLEEP_AFTER
 * before it sleeps until the next job. */
#define POLL_INTERVAL 20000
#define SLEEP_AFTER (2 * WH_MS)
/* A thread that has polled so long ago may still be about to poll, if it puts jobs meanwhile. */
#define HELP_LATEST (200 * WH_MS / 1000)
/* With CPUs to spare the GPU thread spins for so long after a job instead of sleeping for an
 * interval: in a pipeline of slots each pause would delay the next slot. */
#define SPIN_AFTER_JOB (100 * WH_MS / 1000)
/* If a semaphore does not change for so long, ask the driver whether the stream has failed. */
#define QUERY_AFTER (20 * WH_MS)
/* Jobs that end without a store get one when the GPU has fewer jobs in front of them than this:
 * early enough to be submitted meanwhile. */
#define STORE_BEFORE 4u

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Fail the stream if the driver reports an error. Under stream.lock. */
static void progress_query_stream(struct wh_gpu_stream *stream, int64_t now)
{
	struct wh_cuda *cuda = stream->gpu->gpus->cuda;
	struct wh_cuda_scope scope;
	int result, error;

	stream->last_progress = now;
	error = wh_cuda_enter_context(cuda, stream->gpu->device, stream->gpu->context, &scope);
	if (!error) {
		result = cuda->cuStreamQuery(stream->handle);
		if (result != CUDA_NOT_READY)
			error = wh_cuda_check(cuda, result, "cuStreamQuery", "%s",
					      stream->gpu->device->text);
		wh_cuda_leave(&scope);
	}
	if (error)
		wh_gpu_stream_fail(stream, error, wh_error_text());
}

/* See that the GPU stores the semaphore for the last jobs, too, if no later turn has done so. Under
 * stream.lock. */
static void progress_store(struct wh_gpu_stream *stream, uint32_t last_done)
{
	struct wh_gpus *gpus = stream->gpu->gpus;
	struct wh_cuda_scope scope;
	int error;

	if (stream->error || stream->stored == stream->number ||
	    (int32_t)(stream->stored - last_done) >= (int32_t)STORE_BEFORE)
		return;
	error = wh_cuda_enter_context(gpus->cuda, stream->gpu->device, stream->gpu->context,
				      &scope);
	if (error) {
		wh_gpu_stream_fail(stream, error, wh_error_text());
		return;
	}
	wh_gpu_stream_store(stream);
	wh_cuda_leave(&scope);
}

/* What the jobs that ended by one poll took together. They teach if one mover did all of them. */
struct ended_jobs {
	struct wh_gpu_stream_lesson lesson; /* of the first; `typical` and `submitted`: of all */
	unsigned count;
	bool alike;
};

static void ended_add(struct ended_jobs *jobs, const struct wh_gpu_stream_job *job)
{
	const struct wh_gpu_stream_lesson *lesson = &job->lesson;

	if (job->follows) {
		jobs->alike = jobs->alike && !job->error;
		return;
	}
	if (!jobs->count++) {
		jobs->lesson = *lesson;
		jobs->alike = lesson->lesson && !job->error;
		return;
	}
	jobs->alike = jobs->alike && !job->error && lesson->lesson == jobs->lesson.lesson &&
		      lesson->mover == jobs->lesson.mover;
	jobs->lesson.typical += lesson->typical;
	jobs->lesson.submitted += lesson->submitted;
}

/* Under stream.lock. A job's time starts no later than the job does: when its predecessor was last
 * seen unfinished, or when its turn began. So times are never too short, however late a poll comes,
 * and the fastest of many is near the truth. What submitting took counts although the GPU was busy
 * with the predecessor meanwhile: one after the other, turns are no faster than they are submitted.
 * `before`: ns, from before the poll looked. */
static void progress_learn(struct wh_gpu_stream *stream, const struct ended_jobs *ended,
			   int64_t before)
{
	const struct wh_gpu_stream_lesson *lesson = &ended->lesson;
	const struct wh_gpu_stream_job *next;
	int64_t now, took;

	if (ended->count && ended->alike && !stream->error) {
		now = wh_now();
		took = now - stream->oldest_since;
		took = took > lesson->submitted ? took : lesson->submitted;
		wh_lesson_learn(lesson->lesson, lesson->mover, lesson->typical, (double)took, now);
	}
	if (wh_list_empty(&stream->jobs))
		return;
	next = wh_container(stream->jobs.next, struct wh_gpu_stream_job, link);
	if (ended->count)
		stream->oldest_since =
			next->begun > stream->seen_busy ? next->begun : stream->seen_busy;
	stream->seen_busy = before;
}

/* Move the stream's finished jobs to stream.ended, and learn from what they took. Returns how many
 * turns have ended. Under stream.lock. */
static unsigned progress_see_ended(struct wh_gpu_stream *stream, uint32_t last_done, int64_t now)
{
	struct ended_jobs jobs = { .count = 0 };

	while (!wh_list_empty(&stream->jobs)) {
		struct wh_gpu_stream_job *job =
			wh_container(stream->jobs.next, struct wh_gpu_stream_job, link);

		if (!stream->error && (int32_t)(last_done - job->number) < 0)
			break;
		wh_list_remove(&job->link);
		ended_add(&jobs, job);
		if ((int64_t)(job->ring - stream->tail) > 0)
			stream->tail = job->ring;
		if (stream->error && !job->error) {
			job->error = stream->error;
			memcpy(job->text, stream->text, sizeof(job->text));
		}
		wh_list_append(&stream->ended, &job->link);
	}
	progress_learn(stream, &jobs, now);
	return jobs.count;
}

void wh_gpu_stream_glance(struct wh_gpu_stream *stream)
{
	int64_t now = wh_now();

	if (!wh_list_empty(&stream->jobs))
		progress_see_ended(
			stream,
			atomic_load_explicit(stream->semaphore->value, memory_order_acquire), now);
}

/* Move the stream's finished jobs to `ended`. */
static void progress_collect_jobs(struct wh_gpu_stream *stream, struct wh_list *ended)
{
	uint32_t last_done;
	struct wh_list *link;
	unsigned count;
	int64_t now;

	/* Busy: another thread submits work or polls. A later poll collects the jobs. */
	if (pthread_mutex_trylock(&stream->lock))
		return;
	now = wh_now();
	last_done = atomic_load_explicit(stream->semaphore->value, memory_order_acquire);
	count = progress_see_ended(stream, last_done, now);
	while ((link = wh_list_take(&stream->ended))) {
		wh_list_append(ended, link);
		atomic_fetch_sub_explicit(&stream->pending, 1, memory_order_relaxed);
	}
	if (!wh_list_empty(&stream->jobs)) {
		progress_store(stream, last_done);
		if (count)
			stream->last_progress = now;
		else if (now - stream->last_progress > QUERY_AFTER)
			progress_query_stream(stream, now);
	}
	if (stream->error)
		wh_gpu_stream_flush(stream); /* a later poll collects them, failed */
	pthread_mutex_unlock(&stream->lock);
	wh_gpu_stream_pump(stream);
}

/* 1: the event has occurred; 0: not yet; negative: it never will. */
static int progress_query_event(struct wh_gpus *gpus, const struct wh_event_wait *wait)
{
	struct wh_cuda *cuda = gpus->cuda;
	struct wh_cuda_scope scope;
	int error = wh_cuda_enter_context(cuda, wait->device, wait->context, &scope), result;

	if (error)
		return error;
	result = cuda->cuEventQuery(wait->event);
	error = result == CUDA_NOT_READY ?
			0 :
			wh_cuda_check(cuda, result, "cuEventQuery", "%s", wait->device->text);
	wh_cuda_leave(&scope);
	return error || result ? error : 1;
}

static bool progress_poll_events(struct wh_gpus *gpus)
{
	struct wh_event_wait *wait = NULL;
	int state = 0;

	pthread_mutex_lock(&gpus->list_lock);
	for (struct wh_list *l = gpus->events.next; l != &gpus->events && !state; l = l->next) {
		wait = wh_container(l, struct wh_event_wait, link);
		state = progress_query_event(gpus, wait);
	}
	if (state)
		wh_list_remove(&wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	if (!state)
		return false;
	atomic_fetch_sub(&gpus->event_count, 1);
	wait->ready(wait, state < 0 ? state : 0, state < 0 ? wh_error_text() : "");
	atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	return true;
}

bool wh_gpus_poll(struct wh_gpus *gpus)
{
	struct wh_gpu_stream *stream = atomic_load_explicit(&gpus->streams, memory_order_acquire);
	struct wh_list ended, *link;
	bool any = false;

	if (!atomic_load_explicit(&gpus->jobs, memory_order_relaxed))
		return false;
	if (atomic_load_explicit(&gpus->event_count, memory_order_relaxed))
		any = progress_poll_events(gpus);
	wh_list_init(&ended);
	for (; stream; stream = atomic_load_explicit(&stream->next, memory_order_acquire)) {
		if (atomic_load_explicit(&stream->pending, memory_order_relaxed) ||
		    atomic_load_explicit(&stream->waiting_count, memory_order_relaxed))
			progress_collect_jobs(stream, &ended);
	}
	while ((link = wh_list_take(&ended))) {
		struct wh_gpu_stream_job *job = wh_container(link, struct wh_gpu_stream_job, link);

		any = true;
		job->done(job, job->error, job->text);
		atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	}
	return any;
}

void wh_gpus_progress(struct wh_gpus *gpus, bool (*is_running)(const void *arg), const void *arg,
		      int64_t deadline)
{
	int64_t until, now = wh_now();

	atomic_store_explicit(&gpus->polled_at, now, memory_order_relaxed);
	wh_gpus_poll(gpus);
	if (!deadline || !is_running(arg))
		return;
	until = now + gpus->spin_for;
	if (deadline > until)
		deadline = until;
	do {
		atomic_store_explicit(&gpus->polled_at, now, memory_order_relaxed);
		for (int i = 0; i < 16 && is_running(arg); i++) {
			if (!wh_gpus_poll(gpus))
				wh_cpu_relax();
		}
		now = wh_now();
	} while (is_running(arg) && now < deadline);
}

/* ---- events ---------------------------------------------------------------------------------- */

int wh_gpus_wait_event(struct wh_gpus *gpus, struct wh_event_wait *wait)
{
	bool cancelled;
	int error;

	pthread_mutex_lock(&gpus->lock);
	error = wh_gpus_thread_start(gpus);
	pthread_mutex_unlock(&gpus->lock);
	if (error)
		return error;
	wh_gpus_job_added(gpus);
	atomic_fetch_add(&gpus->event_count, 1);
	pthread_mutex_lock(&gpus->list_lock);
	cancelled = wait->cancelled;
	if (!cancelled)
		wh_list_append(&gpus->events, &wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	if (!cancelled)
		return 0;
	atomic_fetch_sub(&gpus->event_count, 1);
	atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	return wh_fail(ECANCELED, "cancelled before it was started");
}

bool wh_gpus_cancel_event(struct wh_gpus *gpus, struct wh_event_wait *wait)
{
	bool waits;

	pthread_mutex_lock(&gpus->list_lock);
	waits = wait->link.next;
	wait->cancelled = !waits;
	wh_list_remove(&wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	if (waits) {
		atomic_fetch_sub(&gpus->event_count, 1);
		atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	}
	return waits;
}

/* ---- without a thread ------------------------------------------------------------------------ */

bool wh_gpus_poll_turn(struct wh_poller *poller)
{
	return wh_gpus_poll(wh_container(poller, struct wh_gpus, poller));
}

int64_t wh_gpus_next_turn(struct wh_poller *poller)
{
	const struct wh_gpus *gpus = wh_container(poller, struct wh_gpus, poller);

	return atomic_load(&gpus->jobs) ? POLL_INTERVAL : INT64_MAX;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void progress_sleep(struct wh_gpus *gpus)
{
	for (;;) {
		atomic_store(&gpus->sleeping, 1);
		if (atomic_load(&gpus->jobs) || atomic_load(&gpus->stop))
			break;
		wh_futex_wait(&gpus->sleeping, 1, INT64_MAX);
	}
	atomic_store(&gpus->sleeping, 0);
}

/* A thread that waits polls all streams. Two threads that do so at once take turns at their locks,
 * and hand the batches' memory to and fro between their caches. Between two polls such a thread may
 * put many jobs; it is not waited for longer than HELP_LATEST. */
static bool progress_is_helped(const struct wh_gpus *gpus, int64_t now)
{
	int64_t polled = now - atomic_load_explicit(&gpus->polled_at, memory_order_relaxed);
	int64_t put = now - atomic_load_explicit(&gpus->put_at, memory_order_relaxed);

	return polled < POLL_INTERVAL || (put < POLL_INTERVAL && polled < HELP_LATEST);
}

static void *progress_thread(void *argument)
{
	const struct timespec pause = { .tv_nsec = POLL_INTERVAL };
	struct wh_gpus *gpus = argument;
	int64_t worked = wh_now(), found = worked, now;
	bool busy = false, was;

	prctl(PR_SET_TIMERSLACK, 1);
	while (!atomic_load(&gpus->stop)) {
		now = wh_now();
		was = busy;
		busy = atomic_load_explicit(&gpus->jobs, memory_order_relaxed);
		if (busy)
			worked = now;
		else if (now - worked > SLEEP_AFTER)
			progress_sleep(gpus);
		if (busy && progress_is_helped(gpus, now)) {
			found = now;
			nanosleep(&pause, NULL);
		} else if (wh_gpus_poll(gpus) || (busy && !was)) {
			found = now;
		} else if (busy && gpus->many_cpus && now - found < SPIN_AFTER_JOB) {
			wh_cpu_relax();
		} else {
			nanosleep(&pause, NULL);
		}
	}
	return NULL;
}

int wh_gpus_thread_start(struct wh_gpus *gpus)
{
	int error;

	if (gpus->started || gpus->turns)
		return 0;
	error = wh_thread_start(&gpus->thread, "wherry/gpu", progress_thread, gpus);
	if (error)
		return wh_fail(error, "starting the GPU thread: pthread_create: %s",
			       strerror(error));
	gpus->started = true;
	return 0;
}

void wh_gpus_job_added(struct wh_gpus *gpus)
{
	/* Sequentially consistent, as in progress_sleep(): either this thread sees `sleeping`, or
	 * the GPU thread sees the job. */
	atomic_fetch_add(&gpus->jobs, 1);
	wh_turns_ready(gpus->turns);
	if (!atomic_load(&gpus->sleeping))
		return;
	atomic_store(&gpus->sleeping, 0);
	wh_futex_wake(&gpus->sleeping);
}

void wh_gpus_stop(struct wh_gpus *gpus)
{
	if (!gpus || !gpus->started)
		return;
	atomic_store(&gpus->stop, true);
	atomic_store(&gpus->sleeping, 0);
	wh_futex_wake(&gpus->sleeping);
	pthread_join(gpus->thread, NULL);
	gpus->started = false;
}
