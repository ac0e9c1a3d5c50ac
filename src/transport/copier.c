/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/copier.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "core/batch.h"
#include "memory/region-table.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/futex.h"
#include "util/list.h"

/* From this size on a fragment goes past the caches: its source and its target together are more
 * than they hold, and an ordinary store would fetch each line of the target before it is
 * overwritten. Below, what is copied is found in a cache by whoever needs it next. */
#define STREAM_BYTES (48u << 20)
/* Runs shorter than that gain nothing from it. */
#define STREAM_RUN (32u << 10)

/* Short runs are known a few in advance, and their first lines asked for: the processor sees a
 * stream of addresses inside a page, but not where the next run is going to be. */
#define AHEAD 16u
#define AHEAD_BYTES 256u

/* How long a waiter looks for the end of chunks that others are copying before it goes to sleep:
 * about as long as a chunk takes. */
#define LINGER (30 * WH_MS / 1000)

/* ---- bytes -------------------------------------------------------------------------------- */

#ifdef __SSE2__
#define STREAM_PAGE 4096u
#define STREAM_PAGES 4u

static inline void stream_line(char *to, const char *from)
{
	__m128i a, b, c, d;

	_mm_prefetch(from + 1024, _MM_HINT_T0);
	a = _mm_loadu_si128((const __m128i *)from);
	b = _mm_loadu_si128((const __m128i *)(from + 16));
	c = _mm_loadu_si128((const __m128i *)(from + 32));
	d = _mm_loadu_si128((const __m128i *)(from + 48));
	_mm_stream_si128((__m128i *)to, a);
	_mm_stream_si128((__m128i *)(to + 16), b);
	_mm_stream_si128((__m128i *)(to + 32), c);
	_mm_stream_si128((__m128i *)(to + 48), d);
}

/* Several pages in step keep more of the memory's banks busy than one after the other. */
static void stream(char *to, const char *from, size_t length)
{
	size_t head = -(uintptr_t)to & 63;

	memcpy(to, from, head);
	to += head;
	from += head;
	length -= head;
	for (; length >= STREAM_PAGES * STREAM_PAGE; length -= STREAM_PAGES * STREAM_PAGE) {
		for (size_t at = 0; at < STREAM_PAGE; at += 64)
			for (size_t page = 0; page < STREAM_PAGES; page++)
				stream_line(to + page * STREAM_PAGE + at,
					    from + page * STREAM_PAGE + at);
		to += STREAM_PAGES * STREAM_PAGE;
		from += STREAM_PAGES * STREAM_PAGE;
	}
	memcpy(to, from, length);
	/* Such stores are not ordered with others: without this a flag that says "done" could be
	 * seen before them. */
	_mm_sfence();
}
#endif

void wh_copy_bytes(char *to, const char *from, size_t length, bool past)
{
#ifdef __SSE2__
	uintptr_t distance = (uintptr_t)to - (uintptr_t)from;

	if (past && length >= STREAM_RUN && distance >= length && -distance >= length) {
		stream(to, from, length);
		return;
	}
#endif
	(void)past;
	memmove(to, from, length);
}

/* ---- runs --------------------------------------------------------------------------------- */

/* The place that the run before was in; the next one is there too as a rule. */
struct spot {
	uint64_t id; /* 0: none */
	struct wh_region_entry *entry; /* entered; NULL: cannot be used, which has been said */
	char *map;
	bool pinned; /* entered by pinning it */
};

static void spot_leave(struct spot *spot)
{
	if (spot->pinned)
		wh_region_entry_unpin(spot->entry);
	else if (spot->entry)
		wh_region_entry_leave(spot->entry);
	*spot = (struct spot){ 0 };
}

static uint64_t index_of(const struct wh_fragment *fragment, const struct wh_extent_pair *run)
{
	/* Of blocks only all of them can fail. */
	return fragment->blocks ? UINT64_MAX : run->index;
}

static void spot_fail(struct wh_fragment *fragment, const struct wh_extent_pair *run,
		      const struct wh_region_entry *entry)
{
	if (!entry)
		wh_fragment_fail(fragment, index_of(fragment, run), -ESTALE,
				 "region %#llx of the peer is gone",
				 (unsigned long long)run->remote);
	else
		wh_fragment_fail(fragment, index_of(fragment, run), -EACCES,
				 "region %#llx of the peer does not grant %s",
				 (unsigned long long)run->remote,
				 fragment->op == WH_READ ? "reading" : "writing");
}

/* Be in the run's place. False: it cannot be used. The core has checked the same before, but a
 * region may go at any time, and nothing may be touched that is not published now. */
static bool spot_enter(struct wh_copier_peer *copy, struct wh_fragment *fragment,
		       const struct wh_extent_pair *run, struct spot *spot)
{
	bool pins = copy->ops->pins;
	struct wh_region_entry *entry;

	if (spot->id == run->remote) {
		if (!spot->entry && !fragment->blocks)
			spot_fail(fragment, run, NULL);
		return spot->entry != NULL;
	}
	spot_leave(spot);
	entry = pins ? wh_region_entry_pin(copy->entries, run->remote) :
		       wh_region_entry_enter(copy->entries, run->remote);
	spot->id = run->remote;
	spot->entry = entry;
	spot->pinned = pins && entry;
	if (entry &&
	    (entry->access & (fragment->op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE))) {
		spot->map = copy->ops->map(entry, fragment->op);
		if (spot->pinned && !spot->map) {
			wh_region_entry_unpin_enter(entry);
			spot->pinned = false;
		}
		return true;
	}
	spot_fail(fragment, run, entry);
	spot_leave(spot);
	spot->id = run->remote;
	return false;
}

static bool run_fits(struct wh_fragment *fragment, const struct wh_extent_pair *run,
		     const struct wh_region_entry *entry)
{
	if (wh_region_entry_holds(entry, run->offset, run->length))
		return true;
	wh_fragment_fail(fragment, index_of(fragment, run), -ERANGE,
			 "%llu bytes at offset %llu lie outside region %#llx (%llu bytes)",
			 (unsigned long long)run->length, (unsigned long long)run->offset,
			 (unsigned long long)run->remote, (unsigned long long)entry->length);
	return false;
}

/* ---- runs that are not mapped -------------------------------------------------------------- */

static int far_flush(struct wh_copier_peer *copy, struct wh_far *far)
{
	int error = far->count ? copy->ops->move_far(copy, far) : 0;

	for (unsigned i = 0; i < far->count; i++)
		wh_region_entry_leave(far->entry[i]);
	far->count = 0;
	return error;
}

/* Move `run` and those after it for as long as they are not mapped; *more says whether *run is one
 * that is still to be moved. In a function of its own because of its large frame. */
static __attribute__((noinline)) int move_far(struct wh_copier_peer *copy,
					      struct wh_fragment *fragment, struct wh_cursor *at,
					      struct wh_extent_pair *run, struct spot *spot,
					      bool *more)
{
	struct wh_far far;
	int error = 0;

	far.fragment = fragment;
	far.count = 0;
	for (; *more && !error; *more = wh_fragment_next(fragment, at, at->left, run)) {
		if (!spot_enter(copy, fragment, run, spot))
			continue;
		if (spot->map)
			break;
		if (!run_fits(fragment, run, spot->entry))
			continue;
		/* Entered already by the spot, so that it cannot fail. */
		atomic_fetch_add_explicit(&spot->entry->users, 1, memory_order_relaxed);
		far.entry[far.count] = spot->entry;
		far.local[far.count] = (struct iovec){ run->local, run->length };
		far.remote[far.count] =
			(struct iovec){ (void *)(uintptr_t)(spot->entry->address + run->offset),
					run->length };
		far.index[far.count] = index_of(fragment, run);
		if (++far.count == WH_FAR_RUNS)
			error = far_flush(copy, &far);
	}
	return error ? error : far_flush(copy, &far);
}

/* ---- an extent of a fragment ------------------------------------------------------------------
 */

struct near_run {
	char *to;
	const char *from;
	uint64_t length;
};

static void prefetch(const struct near_run *run)
{
	uint64_t length = run->length < AHEAD_BYTES ? run->length : AHEAD_BYTES;

	for (uint64_t at = 0; at < length; at += 64) {
		__builtin_prefetch(run->from + at, 0);
		__builtin_prefetch(run->to + at, 1);
	}
}

/* How many runs of that length to know in advance. */
static unsigned ahead_of(uint64_t length)
{
	return length >= 16384 ? 1 : length >= 2048 ? 4 : length >= 256 ? 8 : AHEAD;
}

/* Move what lies between the cursor and its end. 0, or a negative errno: the fragment cannot go
 * this way. Nothing is left entered. */
static int move(struct wh_copier_peer *copy, struct wh_fragment *fragment, struct wh_cursor *at)
{
	const bool past = fragment->bytes >= STREAM_BYTES;
	struct near_run ring[AHEAD];
	struct spot spot = { 0 };
	unsigned in = 0, out = 0;
	struct wh_extent_pair run;
	bool more = wh_fragment_next(fragment, at, at->left, &run);
	int error = 0;

	while (more || in != out) {
		while (more && in - out < ahead_of(run.length)) {
			struct near_run *near = &ring[in % AHEAD];

			/* A place is left once all that is in it has been copied. */
			if (run.remote != spot.id && in != out)
				break;
			if (spot_enter(copy, fragment, &run, &spot) && !spot.map) {
				error = move_far(copy, fragment, at, &run, &spot, &more);
				if (error)
					goto out;
				continue;
			}
			if (spot.entry && run_fits(fragment, &run, spot.entry)) {
				char *remote = spot.map + run.offset;

				near->length = run.length;
				near->to = fragment->op == WH_READ ? run.local : remote;
				near->from = fragment->op == WH_READ ? remote : run.local;
				if (at->left || in != out)
					prefetch(near);
				in++;
			}
			more = wh_fragment_next(fragment, at, at->left, &run);
		}
		if (in != out) {
			const struct near_run *near = &ring[out++ % AHEAD];

			wh_copy_bytes(near->to, near->from, near->length, past);
		}
	}
out:
	spot_leave(&spot);
	return error;
}

/* Nothing of it is in flight, nor will be. Afterwards neither the fragment nor the copy may be
 * looked at. */
static void finish(struct wh_copier_peer *copy, struct wh_fragment *fragment, int given_up)
{
	char why[WH_REFUSAL] = "";

	if (given_up) {
		copy->ops->refusal(copy, why);
		wh_fragment_reroute(fragment, given_up, why);
		return;
	}
	if (copy->ops->verify)
		copy->ops->verify(copy, fragment);
	wh_fragment_done(fragment);
}

/* ---- the queue; all under the copier's lock ------------------------------------------------ */

struct chunk {
	struct wh_cursor at;
	uint64_t bytes;
};

/* Bytes that overlap have to be moved in one go, in the right direction. */
static bool must_be_whole(struct wh_copier_peer *copy, const struct wh_extent_pair *run)
{
	struct wh_region_entry *entry;
	uint64_t distance = 0;

	if (!copy->ops->overlaps)
		return false;
	entry = wh_region_entry_enter(copy->entries, run->remote);
	if (!entry)
		return false;
	distance = entry->address + run->offset - (uint64_t)(uintptr_t)run->local;
	wh_region_entry_leave(entry);
	return distance < run->length || -distance < run->length;
}

/* Hand out the next chunk of a fragment that has one. A run that would not fit is left for the next
 * chunk; one that never will is cut. */
static void take_chunk(struct wh_copier_peer *copy, struct wh_fragment *fragment,
		       struct chunk *chunk)
{
	struct wh_cursor next = fragment->cursor;
	struct wh_extent_pair run;

	chunk->at = next;
	chunk->bytes = 0;
	for (unsigned runs = 0; runs < WH_CHUNK_RUNS && next.left; runs++) {
		wh_fragment_next(fragment, &next, UINT64_MAX, &run);
		if (chunk->bytes + run.length > WH_CHUNK_BYTES) {
			if (chunk->bytes)
				break;
			if (!must_be_whole(copy, &run)) {
				next = fragment->cursor;
				wh_fragment_next(fragment, &next, WH_CHUNK_BYTES, &run);
			}
			runs = WH_CHUNK_RUNS;
		}
		fragment->cursor = next;
		chunk->bytes += run.length;
	}
	chunk->at.left = chunk->bytes;
	if (!fragment->cursor.left)
		wh_list_remove(&fragment->link);
}

/* Hand out nothing more of a fragment that is queued. True: nothing is in flight either, so that
 * the caller has to finish it. `given_up` is kept where given_up_of() finds it. */
static bool stop_fragment(struct wh_fragment *fragment, int given_up)
{
	uint64_t rest = fragment->cursor.left;

	wh_list_remove(&fragment->link);
	fragment->cursor = (struct wh_cursor){ .skip = (uint64_t)-given_up };
	return atomic_fetch_sub_explicit(&fragment->left, rest, memory_order_relaxed) == rest;
}

/* What stop_fragment() was told. The cursor of a fragment that came to its end by itself is not
 * inside a run. */
static int given_up_of(const struct wh_fragment *fragment)
{
	return fragment->cursor.left ? 0 : -(int)fragment->cursor.skip;
}

/* Copy one chunk of a fragment that has something to hand out; the lock is let go for that time.
 * False: there is no more to take from it, and it may be gone. */
static bool copy_chunk(struct wh_copier *copier, struct wh_fragment *fragment)
{
	struct wh_copier_peer *copy = fragment->owner;
	struct chunk chunk;
	uint64_t left;
	int error;

	take_chunk(copy, fragment, &chunk);
	if (copier->idle && (!wh_list_empty(&copier->latency) || !wh_list_empty(&copier->bulk)))
		pthread_cond_signal(&copier->work);
	pthread_mutex_unlock(&copier->lock);
	error = move(copy, fragment, &chunk.at);
	pthread_mutex_lock(&copier->lock);
	if (error) /* also if all has been handed out: it keeps the error */
		stop_fragment(fragment, error);
	left = atomic_fetch_sub_explicit(&fragment->left, chunk.bytes, memory_order_relaxed);
	if (left != chunk.bytes)
		return fragment->cursor.left > 0;
	error = given_up_of(fragment);
	pthread_mutex_unlock(&copier->lock);
	finish(copy, fragment, error);
	pthread_mutex_lock(&copier->lock);
	return false;
}

/* ---- threads ------------------------------------------------------------------------------ */

static void *copier_main(void *argument)
{
	struct wh_copier *copier = argument;

	pthread_mutex_lock(&copier->lock);
	while (!copier->stop) {
		struct wh_list *queue =
			wh_list_empty(&copier->latency) ? &copier->bulk : &copier->latency;

		if (wh_list_empty(queue)) {
			copier->idle++;
			pthread_cond_wait(&copier->work, &copier->lock);
			copier->idle--;
			continue;
		}
		/* Look again after every chunk, so that a latency fragment need not wait for a bulk
		 * one. */
		copy_chunk(copier, wh_container(queue->next, struct wh_fragment, link));
	}
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

/* One thread has most of a small machine's memory bandwidth, together with the waiter; a second one
 * would only take CPUs away from those who have something to compute. */
static void start_threads(struct wh_copier *copier)
{
	unsigned wanted = WH_COPIER_THREADS;
	sigset_t all, before;
	cpu_set_t cpus;

	if (!sched_getaffinity(0, sizeof(cpus), &cpus) && CPU_COUNT(&cpus) <= 4)
		wanted = 1;
	/* Signals are for the program's threads, but for those that a fault brings. */
	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGABRT);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (copier->threads < wanted &&
	       !pthread_create(&copier->thread[copier->threads], NULL, copier_main, copier)) {
		pthread_setname_np(copier->thread[copier->threads], "wherry/copy");
		copier->threads++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void wh_copier_init(struct wh_copier *copier)
{
	*copier = (struct wh_copier){ 0 };
	pthread_mutex_init(&copier->lock, NULL);
	pthread_cond_init(&copier->work, NULL);
	wh_list_init(&copier->latency);
	wh_list_init(&copier->bulk);
}

void wh_copier_destroy(struct wh_copier *copier)
{
	pthread_mutex_lock(&copier->lock);
	copier->stop = true;
	pthread_cond_broadcast(&copier->work);
	pthread_mutex_unlock(&copier->lock);
	for (unsigned i = 0; i < copier->threads; i++)
		pthread_join(copier->thread[i], NULL);
	pthread_cond_destroy(&copier->work);
	pthread_mutex_destroy(&copier->lock);
}

/* ---- what the transports offer ------------------------------------------------------------- */

/* Under the lock. False: there is no thread to do it. */
static bool enqueue(struct wh_copier *copier, struct wh_fragment *fragment)
{
	bool latency = fragment->priority == WH_PRIORITY_LATENCY;

	if (!copier->threads)
		start_threads(copier);
	if (!copier->threads)
		return false;
	wh_list_append(latency ? &copier->latency : &copier->bulk, &fragment->link);
	if (copier->idle)
		pthread_cond_signal(&copier->work);
	return true;
}

/* False: it has to be copied here and now. */
static bool submit_large(struct wh_copier_peer *copy, struct wh_fragment *fragment)
{
	struct wh_copier *copier = copy->copier;
	bool ended = false, taken = true;

	fragment->owner = copy;
	wh_fragment_start(fragment, &fragment->cursor);
	atomic_store_explicit(&fragment->left, fragment->bytes, memory_order_relaxed);
	pthread_mutex_lock(&copier->lock);
	if (copy->lost) {
		wh_fragment_fail(fragment, UINT64_MAX, copy->lost, "%s", copy->lost_text);
		ended = true;
	} else if (atomic_load(&fragment->cancelled)) {
		/* Cancelled on its way from another transport to this one. */
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		ended = true;
	} else {
		taken = enqueue(copier, fragment);
	}
	pthread_mutex_unlock(&copier->lock);
	if (ended)
		wh_fragment_done(fragment);
	return taken;
}

void wh_copier_submit(struct wh_copier_peer *copy, struct wh_fragment *fragment)
{
	struct wh_cursor at;

	if (fragment->bytes > copy->at_once && submit_large(copy, fragment))
		return;
	wh_fragment_start(fragment, &at);
	finish(copy, fragment, move(copy, fragment, &at));
}

/* A queued fragment of this batch. */
static struct wh_fragment *find_fragment(struct wh_copier *copier, const struct wh_batch *batch)
{
	struct wh_list *queue =
		batch->priority == WH_PRIORITY_LATENCY ? &copier->latency : &copier->bulk;

	for (struct wh_list *l = queue->next; l != queue; l = l->next) {
		struct wh_fragment *fragment = wh_container(l, struct wh_fragment, link);

		if (fragment->batch == batch)
			return fragment;
	}
	return NULL;
}

void wh_copier_progress(struct wh_copier_peer *copy, struct wh_batch *batch, int64_t deadline)
{
	struct wh_copier *copier = copy->copier;
	struct wh_fragment *fragment;
	bool helped = false;
	int64_t now = 0;

	pthread_mutex_lock(&copier->lock);
	while (now < deadline || !helped) {
		fragment = find_fragment(copier, batch);
		if (!fragment)
			break;
		helped = true;
		do
			now = deadline == INT64_MAX ? 0 : wh_now();
		while (copy_chunk(copier, fragment) && now < deadline);
	}
	pthread_mutex_unlock(&copier->lock);
	if (!helped || !deadline)
		return;
	/* What is left is being copied by others, and about to be finished. */
	now = wh_now();
	if (deadline > now + LINGER)
		deadline = now + LINGER;
	while (wh_batch_running(batch) && wh_now() < deadline)
		wh_cpu_relax();
}

void wh_copier_cancel(struct wh_copier_peer *copy, struct wh_fragment *fragment)
{
	struct wh_copier *copier = copy->copier;
	bool ended = false;

	pthread_mutex_lock(&copier->lock);
	/* Otherwise all of it has been handed out, and what has not ended is about to. */
	if (fragment->link.next) {
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		ended = stop_fragment(fragment, 0);
	}
	pthread_mutex_unlock(&copier->lock);
	if (ended)
		wh_fragment_done(fragment);
}

/* Stop the fragments of this peer; those that are finished with it go to `ended`. */
static void stop_fragments(struct wh_copier_peer *copy, struct wh_list *queue,
			   struct wh_list *ended)
{
	struct wh_list *next;

	for (struct wh_list *l = queue->next; l != queue; l = next) {
		struct wh_fragment *fragment = wh_container(l, struct wh_fragment, link);

		next = l->next;
		if (fragment->owner != copy)
			continue;
		wh_fragment_fail(fragment, UINT64_MAX, copy->lost, "%s", copy->lost_text);
		if (stop_fragment(fragment, 0))
			wh_list_append(ended, &fragment->link);
	}
}

void wh_copier_lost(struct wh_copier_peer *copy, int error, const char *text)
{
	struct wh_copier *copier = copy->copier;
	struct wh_list ended, *link;

	wh_list_init(&ended);
	pthread_mutex_lock(&copier->lock);
	copy->lost = error;
	snprintf(copy->lost_text, sizeof(copy->lost_text), "%s", text);
	stop_fragments(copy, &copier->latency, &ended);
	stop_fragments(copy, &copier->bulk, &ended);
	pthread_mutex_unlock(&copier->lock);
	while ((link = wh_list_take(&ended)))
		wh_fragment_done(wh_container(link, struct wh_fragment, link));
}

void wh_copier_again(struct wh_copier_peer *copy)
{
	pthread_mutex_lock(&copy->copier->lock);
	copy->lost = 0;
	pthread_mutex_unlock(&copy->copier->lock);
}
