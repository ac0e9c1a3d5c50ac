/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c: lets small jobs share turns of a GPU stream while many are in flight.
 *
 * A turn costs some calls of the driver, microseconds each, whatever it moves. A stream does one
 * turn after the other, so a job behind two others loses nothing if it is submitted only when the
 * first of them has ended. By then more have come, and all of them are one turn: one launch of the
 * kernel, with one store of the semaphore, or copies with one store. The more are in flight, the
 * more share a turn, and a job alone starts at once.
 *
 * Whoever puts a job, polls, or begins another turn submits what waits; a thread that finds the
 * stream locked leaves it to the one that has locked it. Each job keeps its own error: a turn that
 * fails is repeated job by job, which writes some bytes a second time.
 */
#include "gpu/gpus.h"
#include "util/clock.h"
#include "util/list.h"

/* The most pairs of a turn: so many addresses travel with the launch. */
#define PAIRS WH_BLOCKS_INLINE
/* Free bytes of the ring with which the pairs of any turn fit, whatever their lengths: at most
 * 1,024 blocks of the longest class, and 15 of each other one for each pair, of 16 bytes each, in
 * half of it. */
#define RING ((uint64_t)128 << 10)
#define MIB ((uint64_t)1 << 20)

/* The most bytes of a job, and of a turn: some ten times what the calls for it take (50 to 80 us),
 * so that the stream does not run dry; and little enough for its jobs to end soon after each other.
 */
static const struct {
	uint64_t job, turn;
} most[WH_BLOCKS_WAYS] = {
	[WH_BLOCKS_PUSH] = { 2 * MIB, 8 * MIB },     [WH_BLOCKS_PULL] = { 2 * MIB, 8 * MIB },
	[WH_BLOCKS_TO_HOST] = { 1 * MIB, 4 * MIB },  [WH_BLOCKS_FROM_HOST] = { 1 * MIB, 4 * MIB },
	[WH_BLOCKS_WITHIN] = { 16 * MIB, 64 * MIB },
};

bool wh_gpu_stream_shares(const struct wh_gpu_stream *stream, uint64_t count, uint64_t bytes)
{
	return !stream->urgent && count <= WH_GPU_SHARED_PAIRS && bytes <= most[stream->way].job &&
	       wh_gpus_turns(stream->gpu->gpus);
}

/* ---- what goes into a turn, under stream.lock ------------------------------------------------ */

static uint64_t job_bytes(const struct wh_gpu_stream_job *job)
{
	uint64_t bytes = 0;

	for (uint64_t i = 0; i < job->count; i++)
		bytes += job->pairs[i].length;
	return bytes;
}

/* Move waiting jobs to `jobs`, oldest first, as many as fit into one turn. False: none waits. */
static bool share_take(struct wh_gpu_stream *stream, struct wh_list *jobs)
{
	uint64_t pairs = 0, bytes = 0, all = 0;
	uint32_t taken = 0;

	pthread_mutex_lock(&stream->waiting_lock);
	while (!wh_list_empty(&stream->waiting)) {
		struct wh_list *link = stream->waiting.next;
		const struct wh_gpu_stream_job *job =
			wh_container(link, struct wh_gpu_stream_job, link);

		pairs += job->count;
		bytes += job_bytes(job);
		if (taken && (pairs > PAIRS || bytes > most[stream->way].turn))
			break;
		wh_list_remove(link);
		wh_list_append(jobs, link);
		taken++;
		all = bytes;
	}
	atomic_fetch_sub(&stream->waiting_count, taken);
	atomic_fetch_sub(&stream->waiting_bytes, all);
	pthread_mutex_unlock(&stream->waiting_lock);
	return taken;
}

/* ---- turns, under stream.lock ---------------------------------------------------------------- */

/* Submit the jobs as one turn. False: it has failed, and any of several jobs may be why; they are
 * still in `jobs`. */
static bool share_run(struct wh_gpu_stream *stream, struct wh_list *jobs)
{
	struct wh_pair pairs[PAIRS];
	struct wh_gpu_stream_turn turn;
	bool follows = false;
	uint64_t count = 0;
	struct wh_list *link;

	for (const struct wh_list *l = jobs->next; l != jobs; l = l->next) {
		const struct wh_gpu_stream_job *job =
			wh_container(l, struct wh_gpu_stream_job, link);

		for (uint64_t i = 0; i < job->count; i++)
			pairs[count++] = job->pairs[i];
	}
	wh_gpu_stream_open(stream, &turn);
	wh_gpu_stream_pairs(&turn, pairs, count);
	wh_gpu_stream_close(&turn);
	if (turn.error && !stream->error && jobs->next != jobs->prev)
		return false;
	while ((link = wh_list_take(jobs))) {
		wh_gpu_stream_attach(&turn, wh_container(link, struct wh_gpu_stream_job, link),
				     follows);
		follows = true;
	}
	return true;
}

/* Submit one turn of what waits. False: nothing waits, or the ring has no room. */
static bool share_submit(struct wh_gpu_stream *stream)
{
	struct wh_list jobs, one, *link;

	wh_list_init(&jobs);
	if ((!stream->error && !wh_gpu_stream_ring_has(stream, RING)) || !share_take(stream, &jobs))
		return false;
	if (share_run(stream, &jobs))
		return true;
	wh_list_init(&one);
	while ((link = wh_list_take(&jobs))) {
		wh_list_append(&one, link);
		share_run(stream, &one);
	}
	return true;
}

void wh_gpu_stream_flush(struct wh_gpu_stream *stream)
{
	while (atomic_load_explicit(&stream->waiting_count, memory_order_relaxed) &&
	       share_submit(stream))
		;
}

/* ---- when ------------------------------------------------------------------------------------ */

/* Is what waits worth a turn while others are in flight? Few turns are cheap, so it should be as
 * many jobs as are in flight, or so many bytes that the GPU would wait for them. */
static bool stream_has_company(const struct wh_gpu_stream *stream)
{
	return atomic_load_explicit(&stream->waiting_count, memory_order_relaxed) >=
		       atomic_load_explicit(&stream->pending, memory_order_relaxed) ||
	       atomic_load_explicit(&stream->waiting_bytes, memory_order_relaxed) >=
		       most[stream->way].job;
}

/* May what waits be submitted? A job alone starts at once. */
static bool stream_has_room(const struct wh_gpu_stream *stream)
{
	uint32_t turns = wh_gpu_stream_in_flight(stream);

	return !turns || (turns < wh_gpus_turns(stream->gpu->gpus) && stream_has_company(stream));
}

void wh_gpu_stream_pump(struct wh_gpu_stream *stream)
{
	bool more = true;

	/* Looked at again after unlocking: a job that has come meanwhile was left to this thread.
	 */
	while (more && atomic_load(&stream->waiting_count) && stream_has_room(stream)) {
		if (pthread_mutex_trylock(&stream->lock))
			return;
		more = stream_has_room(stream) && share_submit(stream);
		pthread_mutex_unlock(&stream->lock);
	}
}

void wh_gpu_stream_put(struct wh_gpu_stream *stream, struct wh_gpu_stream_job *job)
{
	atomic_store_explicit(&stream->gpu->gpus->put_at, wh_now(), memory_order_relaxed);
	/* Before any poll can collect it. */
	wh_gpus_job_added(stream->gpu->gpus);
	pthread_mutex_lock(&stream->waiting_lock);
	wh_list_append(&stream->waiting, &job->link);
	atomic_fetch_add(&stream->waiting_count, 1);
	atomic_fetch_add(&stream->waiting_bytes, job_bytes(job));
	pthread_mutex_unlock(&stream->waiting_lock);
	wh_gpu_stream_pump(stream);
}

void wh_gpus_withdraw(struct wh_gpus *gpus, const void *owner, int error, const char *text)
{
	struct wh_gpu_stream *stream = atomic_load_explicit(&gpus->streams, memory_order_acquire);
	struct wh_list jobs, *link;

	wh_list_init(&jobs);
	for (; stream; stream = atomic_load_explicit(&stream->next, memory_order_acquire)) {
		if (!atomic_load_explicit(&stream->waiting_count, memory_order_relaxed))
			continue;
		pthread_mutex_lock(&stream->waiting_lock);
		for (struct wh_list *l = stream->waiting.next, *next; l != &stream->waiting;
		     l = next) {
			next = l->next;
			if (wh_container(l, struct wh_gpu_stream_job, link)->owner != owner)
				continue;
			wh_list_remove(l);
			wh_list_append(&jobs, l);
			atomic_fetch_sub(&stream->waiting_count, 1);
			atomic_fetch_sub(
				&stream->waiting_bytes,
				job_bytes(wh_container(l, struct wh_gpu_stream_job, link)));
		}
		pthread_mutex_unlock(&stream->waiting_lock);
	}
	while ((link = wh_list_take(&jobs))) {
		struct wh_gpu_stream_job *job = wh_container(link, struct wh_gpu_stream_job, link);

		job->done(job, error, text);
		atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	}
}
