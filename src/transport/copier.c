/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/copier.c: copies a fragment by the CPU: the copy loop, the queue of chunks, the threads
 */
#include "transport/copier.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "memory/region-table.h"
#include "transport/copier-file.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/cpus.h"
#include "util/futex.h"
#include "util/list.h"
#include "util/thread.h"

/* Fragments of this size or more bypass the caches. Their source and target together do not fit
 * into the caches, and an ordinary store would first fetch each line of the target. The bytes of a
 * smaller fragment stay in a cache for the thread that uses them next. */
#define NON_TEMPORAL_BYTES (48u << 20)
/* The same where one thread copies alone, in an engine without threads: its cached copies are
 * slower than the memory. */
#define NON_TEMPORAL_ALONE (4u << 20)
/* Bytes; shorter extents gain nothing from it. */
#define NON_TEMPORAL_EXTENT (32u << 10)

/* The first lines of short extents are prefetched, up to PREFETCH_MAX extents ahead: the hardware
 * prefetcher follows addresses inside a page, but cannot guess where the next extent begins. */
#define PREFETCH_MAX 16u
#define PREFETCH_BYTES 256u

/* Without the setting `copy_threads`: a thread for four CPUs, within these bounds. */
#define FEW_CPUS 4
#define THREADS_LEAST 2
#define THREADS_MOST 8

/* If more batches than these are in flight to a peer, as the program sees it, the threads copy
 * their middling fragments, from `shared_from` bytes on. A program that waits for each batch before
 * it submits the next has one in flight, and hands nothing over. */
#define MANY_IN_FLIGHT 2
/* Without the setting `copy_from`. On two CPUs, of memcpy by both of them: fragments of 1 MiB have
 * 0.98 by the threads and 0.85 by the submitter, those of 64 KiB 0.75 and 0.87, because handing
 * over costs some us (bench/results/2026-11-26-2cpu-x86_64-shm-in-flight*.json). With more CPUs it
 * was not measured. */
#define SHARED_FROM_FEW_CPUS ((uint64_t)1 << 20)
#define SHARED_FROM ((uint64_t)256 << 10)

/* How long a waiter polls for the end of chunks that other threads copy, before it sleeps: about
 * the time of one chunk. */
#define SPIN_TIME (30 * WH_MS / 1000)

/* In an engine without threads: how many chunks a turn copies, a MiB, before it looks after the
 * connections again. */
#define TURN_CHUNKS 4u

/* ---- bytes -------------------------------------------------------------------------------- */

#ifdef __SSE2__
#define PAGE 4096u
#define PAGES_IN_STEP 4u

static inline void copy_line(char *to, const char *from)
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
static void copy_pages(char *to, const char *from, size_t length)
{
	size_t head = -(uintptr_t)to & 63;

	memcpy(to, from, head);
	to += head;
	from += head;
	length -= head;
	for (; length >= PAGES_IN_STEP * PAGE; length -= PAGES_IN_STEP * PAGE) {
		for (size_t at = 0; at < PAGE; at += 64)
			for (size_t page = 0; page < PAGES_IN_STEP; page++)
				copy_line(to + page * PAGE + at, from + page * PAGE + at);
		to += PAGES_IN_STEP * PAGE;
		from += PAGES_IN_STEP * PAGE;
	}
	memcpy(to, from, length);
	/* Non-temporal stores are not ordered with ordinary ones: without the fence, another thread
	 * could see a "done" flag before the bytes. */
	_mm_sfence();
}
#endif

/* Bytes that a program may poll while they change: other threads must not see a part of them, nor
 * see them before what this thread has copied earlier. memmove() promises neither. */
static bool copy_is_flag(const char *to, const char *from, size_t length)
{
	return length <= sizeof(uint64_t) && !(length & (length - 1)) &&
	       !(((uintptr_t)to | (uintptr_t)from) & (length - 1));
}

/* NOLINTBEGIN(bugprone-macro-parentheses): a type */
#define COPY_FLAG(type)                                                                            \
	do {                                                                                       \
		typedef type __attribute__((may_alias)) flag_type;                                 \
		__atomic_store_n(                                                                  \
			(flag_type *)(void *)to,                                                   \
			__atomic_load_n((const flag_type *)(const void *)from, __ATOMIC_ACQUIRE),  \
			__ATOMIC_RELEASE);                                                         \
	} while (0)
/* NOLINTEND(bugprone-macro-parentheses) */

static void copy_flag(char *to, const char *from, size_t length)
{
	switch (length) {
	case 8:
		COPY_FLAG(uint64_t);
		break;
	case 4:
		COPY_FLAG(uint32_t);
		break;
	case 2:
		COPY_FLAG(uint16_t);
		break;
	case 1:
		COPY_FLAG(uint8_t);
		break;
	default: /* 0 */
		break;
	}
}

void wh_copy_bytes(char *to, const char *from, size_t length, bool non_temporal)
{
	if (copy_is_flag(to, from, length)) {
		copy_flag(to, from, length);
		return;
	}
#ifdef __SSE2__
	uintptr_t distance = (uintptr_t)to - (uintptr_t)from;

	if (non_temporal && length >= NON_TEMPORAL_EXTENT && distance >= length &&
	    -distance >= length) {
		copy_pages(to, from, length);
		return;
	}
#endif
	(void)non_temporal;
	memmove(to, from, length);
}

/* ---- the current region -------------------------------------------------------------------- */

/* The remote region of the last extent. It is kept entered, because the next extent mostly lies in
 * it, too. */
struct current_region {
	uint64_t id; /* 0: none */
	struct wh_region_entry *entry; /* entered; NULL: unusable, and reported */
	char *map; /* its first byte in this process; NULL: not mapped */
	bool pinned; /* entered by wh_region_entry_pin() */
};

static void current_leave(struct current_region *current)
{
	if (current->pinned)
		wh_region_entry_unpin(current->entry);
	else if (current->entry)
		wh_region_entry_leave(current->entry);
	*current = (struct current_region){ 0 };
}

static uint64_t pair_index(const struct wh_fragment *fragment, const struct wh_extent_pair *pair)
{
	/* Blocks fail only as a whole. */
	return fragment->blocks ? UINT64_MAX : pair->index;
}

static void current_fail(struct wh_fragment *fragment, const struct wh_extent_pair *pair,
			 const struct wh_region_entry *entry)
{
	if (!entry)
		wh_fragment_fail(fragment, pair_index(fragment, pair), -ESTALE,
				 "region %#llx of the peer is gone",
				 (unsigned long long)pair->remote);
	else
		wh_fragment_fail(fragment, pair_index(fragment, pair), -EACCES,
				 "region %#llx of the peer does not grant %s",
				 (unsigned long long)pair->remote,
				 fragment->op == WH_READ ? "reading" : "writing");
}

/* Make the extent's region the current one. False: it is gone or does not grant the op. The core
 * has checked the same, but a region may be unregistered since, and its memory must not be touched
 * then. */
static bool current_enter(struct wh_copier_peer *peer, struct wh_fragment *fragment,
			  const struct wh_extent_pair *pair, struct current_region *current)
{
	bool pins = peer->ops->pins;
	struct wh_region_entry *entry;

	if (current->id == pair->remote) {
		if (!current->entry && !fragment->blocks)
			current_fail(fragment, pair, NULL);
		return current->entry != NULL;
	}
	current_leave(current);
	entry = pins ? wh_region_entry_pin(peer->entries, pair->remote) :
		       wh_region_entry_enter(peer->entries, pair->remote);
	current->id = pair->remote;
	current->entry = entry;
	current->pinned = pins && entry;
	if (entry &&
	    (peer->ops->own ||
	     entry->access & (fragment->op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE))) {
		current->map = peer->ops->map(entry, fragment->op);
		if (current->pinned && !current->map) {
			wh_region_entry_unpin_enter(entry);
			current->pinned = false;
		}
		return true;
	}
	current_fail(fragment, pair, entry);
	current_leave(current);
	current->id = pair->remote;
	return false;
}

static bool pair_fits(struct wh_fragment *fragment, const struct wh_extent_pair *pair,
		      const struct wh_region_entry *entry)
{
	if (wh_region_entry_holds(entry, pair->offset, pair->length))
		return true;
	wh_fragment_fail(fragment, pair_index(fragment, pair), -ERANGE,
			 "%llu bytes at offset %llu lie outside region %#llx (%llu bytes)",
			 (unsigned long long)pair->length, (unsigned long long)pair->offset,
			 (unsigned long long)pair->remote, (unsigned long long)entry->length);
	return false;
}

/* ---- extents in unmapped memory ------------------------------------------------------------ */

static int unmapped_flush(struct wh_copier_peer *peer, struct wh_unmapped *unmapped)
{
	int error = unmapped->count ? peer->ops->move_unmapped(peer, unmapped) : 0;

	for (unsigned i = 0; i < unmapped->count; i++)
		wh_region_entry_leave(unmapped->entry[i]);
	unmapped->count = 0;
	return error;
}

/* Move `pair` and the extents after it, up to the first that is mapped. Afterwards *more says
 * whether *pair is still to be moved. A function of its own because of its large stack frame. */
static __attribute__((noinline)) int
move_unmapped(struct wh_copier_peer *peer, struct wh_fragment *fragment, struct wh_cursor *at,
	      struct wh_extent_pair *pair, struct current_region *current, bool *more)
{
	struct wh_unmapped unmapped;
	int error = 0;

	unmapped.fragment = fragment;
	unmapped.count = 0;
	for (; *more && !error; *more = wh_fragment_next(fragment, at, at->left, pair)) {
		if (!current_enter(peer, fragment, pair, current))
			continue;
		if (current->map)
			break;
		if (!pair_fits(fragment, pair, current->entry))
			continue;
		/* `current` has entered the region, so one more user cannot fail. */
		atomic_fetch_add_explicit(&current->entry->users, 1, memory_order_relaxed);
		unmapped.entry[unmapped.count] = current->entry;
		unmapped.local[unmapped.count] = (struct iovec){ pair->local, pair->length };
		unmapped.remote[unmapped.count] =
			(struct iovec){ (void *)(uintptr_t)(current->entry->address + pair->offset),
					pair->length };
		unmapped.index[unmapped.count] = pair_index(fragment, pair);
		if (++unmapped.count == WH_UNMAPPED_EXTENTS)
			error = unmapped_flush(peer, &unmapped);
	}
	return error ? error : unmapped_flush(peer, &unmapped);
}

/* ---- extents in mapped memory -------------------------------------------------------------- */

struct pending_copy {
	char *to;
	const char *from;
	uint64_t length;
};

static void pending_prefetch(const struct pending_copy *copy)
{
	uint64_t length = copy->length < PREFETCH_BYTES ? copy->length : PREFETCH_BYTES;

	for (uint64_t at = 0; at < length; at += 64) {
		__builtin_prefetch(copy->from + at, 0);
		__builtin_prefetch(copy->to + at, 1);
	}
}

/* How many extents of that length to prefetch. */
static unsigned prefetch_depth(uint64_t length)
{
	return length >= 16384 ? 1 : length >= 2048 ? 4 : length >= 256 ? 8 : PREFETCH_MAX;
}

/* Move the `left` bytes from the cursor on. 0, or a negative errno: this transport cannot move the
 * fragment. No region stays entered. */
static int copier_move(struct wh_copier_peer *peer, struct wh_fragment *fragment,
		       struct wh_cursor *at)
{
	const bool non_temporal =
		fragment->bytes >= (peer->copier->turns ? NON_TEMPORAL_ALONE : NON_TEMPORAL_BYTES);
	struct pending_copy ring[PREFETCH_MAX];
	struct current_region current = { 0 };
	unsigned in = 0, out = 0;
	struct wh_extent_pair pair;
	bool more = wh_fragment_next(fragment, at, at->left, &pair);
	int error = 0;

	while (more || in != out) {
		while (more && in - out < prefetch_depth(pair.length)) {
			struct pending_copy *next_copy = &ring[in % PREFETCH_MAX];

			/* Copy all that is pending in a region before leaving it. */
			if (pair.remote != current.id && in != out)
				break;
			if (current_enter(peer, fragment, &pair, &current) && !current.map) {
				error = move_unmapped(peer, fragment, at, &pair, &current, &more);
				if (error)
					goto out;
				continue;
			}
			if (current.entry && pair_fits(fragment, &pair, current.entry)) {
				char *remote = current.map + pair.offset;

				next_copy->length = pair.length;
				next_copy->to = fragment->op == WH_READ ? pair.local : remote;
				next_copy->from = fragment->op == WH_READ ? remote : pair.local;
				if (at->left || in != out)
					pending_prefetch(next_copy);
				in++;
			}
			more = wh_fragment_next(fragment, at, at->left, &pair);
		}
		if (in != out) {
			const struct pending_copy *next_copy = &ring[out++ % PREFETCH_MAX];

			wh_copy_bytes(next_copy->to, next_copy->from, next_copy->length,
				      non_temporal);
		}
	}
out:
	current_leave(&current);
	return error;
}

/* ---- extents of files ---------------------------------------------------------------------- */

/* Move the `left` bytes from the cursor on, of which one side is a file. As copier_move(). A
 * function of its own because of its large stack frame. */
static __attribute__((noinline)) int move_files(struct wh_copier_peer *peer,
						struct wh_fragment *fragment, struct wh_cursor *at)
{
	struct current_region current = { 0 };
	struct wh_file_mover mover;
	struct wh_extent_pair pair;

	wh_file_mover_init(&mover, peer, fragment);
	while (wh_fragment_next(fragment, at, at->left, &pair)) {
		if (pair.remote != current.id) /* move all that is pending before leaving it */
			wh_file_mover_flush(&mover);
		if (!current_enter(peer, fragment, &pair, &current))
			continue;
		if (!current.map) { /* nothing but files and mapped memory */
			current_leave(&current);
			return -EOPNOTSUPP;
		}
		if (pair_fits(fragment, &pair, current.entry))
			wh_file_mover_add(&mover, &pair, current.entry, current.map + pair.offset);
	}
	wh_file_mover_flush(&mover);
	current_leave(&current);
	return 0;
}

/* Complete the fragment; nothing of it is in flight. `refused`: negative errno, reroute it instead.
 * Afterwards the fragment and the peer may be freed. */
static void copier_finish(struct wh_copier_peer *peer, struct wh_fragment *fragment, int refused)
{
	char why[WH_REFUSAL] = "";

	if (refused) {
		peer->ops->refusal(peer, why);
		wh_fragment_reroute(fragment, refused, why);
		return;
	}
	if (peer->ops->verify)
		peer->ops->verify(peer, fragment);
	wh_fragment_done(fragment);
}

/* ---- the queue; under copier.lock ---------------------------------------------------------- */

struct chunk {
	struct wh_cursor at;
	uint64_t bytes;
};

/* An extent whose two sides overlap must be copied by one memmove(). */
static bool pair_must_be_whole(struct wh_copier_peer *peer, const struct wh_extent_pair *pair)
{
	struct wh_region_entry *entry;
	uint64_t distance = 0;

	if (!peer->ops->overlaps)
		return false;
	entry = wh_region_entry_enter(peer->entries, pair->remote);
	if (!entry)
		return false;
	distance = entry->address + pair->offset - (uint64_t)(uintptr_t)pair->local;
	wh_region_entry_leave(entry);
	return distance < pair->length || -distance < pair->length;
}

/* Take the next chunk of a fragment; it has one. An extent that does not fit any more is left for
 * the next chunk; one that is larger than a chunk is split. */
static void chunk_take(struct wh_copier_peer *peer, struct wh_fragment *fragment,
		       struct chunk *chunk)
{
	const uint64_t most = peer->copier->chunk;
	struct wh_cursor next = fragment->cursor;
	struct wh_extent_pair pair;

	chunk->at = next;
	chunk->bytes = 0;
	for (unsigned count = 0; count < WH_CHUNK_EXTENTS && next.left; count++) {
		wh_fragment_next(fragment, &next, UINT64_MAX, &pair);
		if (chunk->bytes + pair.length > most) {
			if (chunk->bytes)
				break;
			if (!pair_must_be_whole(peer, &pair)) {
				next = fragment->cursor;
				wh_fragment_next(fragment, &next, most, &pair);
			}
			count = WH_CHUNK_EXTENTS;
		}
		fragment->cursor = next;
		chunk->bytes += pair.length;
	}
	chunk->at.left = chunk->bytes;
	if (!fragment->cursor.left)
		wh_list_remove(&fragment->link);
}

/* Take a fragment out of the queue: nobody copies the rest of it. True: nothing is in flight
 * either, and the caller completes it. `refused`: 0, or the negative errno that
 * fragment_refused() returns later; kept in the cursor, which is not needed any more. */
static bool fragment_stop(struct wh_fragment *fragment, int refused)
{
	uint64_t rest = fragment->cursor.left;

	wh_list_remove(&fragment->link);
	fragment->cursor = (struct wh_cursor){ .skip = (uint64_t)-refused };
	return atomic_fetch_sub_explicit(&fragment->left, rest, memory_order_relaxed) == rest;
}

/* The errno that fragment_stop() stored; 0 if the fragment was not stopped: then its cursor has
 * left 0 and skip 0. */
static int fragment_refused(const struct wh_fragment *fragment)
{
	return fragment->cursor.left ? 0 : -(int)fragment->cursor.skip;
}

/* Copy one chunk of a queued fragment; releases the lock meanwhile. False: it has no chunk left,
 * and may be freed. */
static bool chunk_copy(struct wh_copier *copier, struct wh_fragment *fragment)
{
	struct wh_copier_peer *peer = fragment->owner;
	struct chunk chunk;
	uint64_t left;
	int error;

	chunk_take(peer, fragment, &chunk);
	if (copier->idle && (!wh_list_empty(&copier->latency) || !wh_list_empty(&copier->bulk)))
		pthread_cond_signal(&copier->work);
	pthread_mutex_unlock(&copier->lock);
	error = peer->ops->files ? move_files(peer, fragment, &chunk.at) :
				   copier_move(peer, fragment, &chunk.at);
	pthread_mutex_lock(&copier->lock);
	if (error) /* even if all chunks have been taken, so that the error is stored */
		fragment_stop(fragment, error);
	left = atomic_fetch_sub_explicit(&fragment->left, chunk.bytes, memory_order_relaxed);
	if (left != chunk.bytes)
		return fragment->cursor.left > 0;
	error = fragment_refused(fragment);
	pthread_mutex_unlock(&copier->lock);
	copier_finish(peer, fragment, error);
	pthread_mutex_lock(&copier->lock);
	return false;
}

/* The queue that comes next; empty if both are. Under the lock. */
static struct wh_list *copier_next_queue(struct wh_copier *copier)
{
	return wh_list_empty(&copier->latency) ? &copier->bulk : &copier->latency;
}

/* ---- threads, or turns -------------------------------------------------------------------- */

static bool copier_poll(struct wh_poller *poller)
{
	struct wh_copier *copier = wh_container(poller, struct wh_copier, poller);
	unsigned chunks = 0;

	pthread_mutex_lock(&copier->lock);
	for (; chunks < TURN_CHUNKS; chunks++) {
		struct wh_list *queue = copier_next_queue(copier);

		if (wh_list_empty(queue))
			break;
		chunk_copy(copier, wh_container(queue->next, struct wh_fragment, link));
	}
	pthread_mutex_unlock(&copier->lock);
	return chunks;
}

static int64_t copier_next(struct wh_poller *poller)
{
	struct wh_copier *copier = wh_container(poller, struct wh_copier, poller);
	bool busy;

	pthread_mutex_lock(&copier->lock);
	busy = !wh_list_empty(copier_next_queue(copier));
	pthread_mutex_unlock(&copier->lock);
	return busy ? 0 : INT64_MAX;
}

static void *copier_main(void *argument)
{
	struct wh_copier *copier = argument;

	pthread_mutex_lock(&copier->lock);
	while (!copier->stop) {
		struct wh_list *queue = copier_next_queue(copier);

		if (wh_list_empty(queue)) {
			copier->idle++;
			pthread_cond_wait(&copier->work, &copier->lock);
			copier->idle--;
			continue;
		}
		/* Choose the queue anew after each chunk: a latency fragment waits for one bulk
		 * chunk at most. */
		chunk_copy(copier, wh_container(queue->next, struct wh_fragment, link));
	}
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

static void copier_start_threads(struct wh_copier *copier)
{
	while (copier->threads < copier->most &&
	       !wh_thread_start(&copier->thread[copier->threads], "wherry/copy", copier_main,
				copier))
		copier->threads++;
}

static void copier_init(struct wh_copier *copier, struct wh_turns *turns, unsigned most,
			uint64_t chunk)
{
	*copier = (struct wh_copier){
		.turns = turns,
		.most = most,
		.chunk = chunk,
		.poller = { .poll = copier_poll, .next = copier_next },
	};
	pthread_mutex_init(&copier->lock, NULL);
	pthread_cond_init(&copier->work, NULL);
	wh_list_init(&copier->latency);
	wh_list_init(&copier->bulk);
	if (turns)
		wh_turns_add_poller(turns, &copier->poller);
}

/* On a small machine one thread and the waiter use most of the memory bandwidth, and a second
 * thread would only take a CPU away from the program. */
static unsigned copier_threads(unsigned count)
{
	if (count <= FEW_CPUS)
		return 1;
	return count < 4 * THREADS_LEAST ? THREADS_LEAST :
	       count > 4 * THREADS_MOST  ? THREADS_MOST :
					   count / 4;
}

void wh_copier_init(struct wh_copier *copier, struct wh_turns *turns, unsigned threads,
		    uint64_t shared_from)
{
	unsigned count = wh_cpus();

	copier_init(copier, turns, threads ? threads : copier_threads(count), WH_CHUNK_BYTES);
	copier->shared_from = shared_from       ? shared_from :
			      count <= FEW_CPUS ? SHARED_FROM_FEW_CPUS :
						  SHARED_FROM;
}

void wh_copier_init_files(struct wh_copier *copier, struct wh_turns *turns, unsigned threads)
{
	copier_init(copier, turns, threads, WH_FILE_CHUNK_BYTES);
}

void wh_copier_destroy(struct wh_copier *copier)
{
	if (copier->turns)
		wh_turns_remove_poller(copier->turns, &copier->poller);
	pthread_mutex_lock(&copier->lock);
	copier->stop = true;
	pthread_cond_broadcast(&copier->work);
	pthread_mutex_unlock(&copier->lock);
	for (unsigned i = 0; i < copier->threads; i++)
		pthread_join(copier->thread[i], NULL);
	pthread_cond_destroy(&copier->work);
	pthread_mutex_destroy(&copier->lock);
}

/* ---- transport functions ------------------------------------------------------------------- */

/* Under the lock. False: no thread could be started. */
static bool copier_enqueue(struct wh_copier *copier, struct wh_fragment *fragment)
{
	bool latency = fragment->priority == WH_PRIORITY_LATENCY;

	if (!copier->threads && !copier->turns)
		copier_start_threads(copier);
	if (!copier->threads && !copier->turns)
		return false;
	wh_list_append(latency ? &copier->latency : &copier->bulk, &fragment->link);
	if (copier->idle)
		pthread_cond_signal(&copier->work);
	wh_turns_ready(copier->turns);
	return true;
}

/* Queue the fragment, or fail it. False: the submitter has to copy it. */
static bool copier_submit_large(struct wh_copier_peer *peer, struct wh_fragment *fragment)
{
	struct wh_copier *copier = peer->copier;
	bool ended = false, taken = true;

	fragment->owner = peer;
	wh_fragment_start(fragment, &fragment->cursor);
	atomic_store_explicit(&fragment->left, fragment->bytes, memory_order_relaxed);
	pthread_mutex_lock(&copier->lock);
	if (peer->lost) {
		wh_fragment_fail(fragment, UINT64_MAX, peer->lost, "%s", peer->lost_text);
		ended = true;
	} else if (atomic_load(&fragment->cancelled)) {
		/* Cancelled while it was rerouted from another transport. */
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		ended = true;
	} else {
		taken = copier_enqueue(copier, fragment);
	}
	pthread_mutex_unlock(&copier->lock);
	if (ended)
		wh_fragment_done(fragment);
	return taken;
}

static bool copier_has_many(const struct wh_copier_peer *peer, const struct wh_fragment *fragment)
{
	return peer->copier->shared_from && fragment->bytes >= peer->copier->shared_from &&
	       !peer->copier->turns && wh_batch_unseen(fragment->batch) > MANY_IN_FLIGHT;
}

void wh_copier_submit(struct wh_copier_peer *peer, struct wh_fragment *fragment)
{
	struct wh_cursor at;

	if ((fragment->bytes > peer->at_once || copier_has_many(peer, fragment)) &&
	    copier_submit_large(peer, fragment))
		return;
	wh_fragment_start(fragment, &at);
	copier_finish(peer, fragment,
		      peer->ops->files ? move_files(peer, fragment, &at) :
					 copier_move(peer, fragment, &at));
}

/* A queued fragment of this batch. */
static struct wh_fragment *copier_find_fragment(struct wh_copier *copier,
						const struct wh_batch *batch)
{
	struct wh_list *queue =
		wh_batch_priority(batch) == WH_PRIORITY_LATENCY ? &copier->latency : &copier->bulk;

	for (struct wh_list *l = queue->next; l != queue; l = l->next) {
		struct wh_fragment *fragment = wh_container(l, struct wh_fragment, link);

		if (fragment->batch == batch)
			return fragment;
	}
	return NULL;
}

void wh_copier_progress(struct wh_copier_peer *peer, struct wh_batch *batch, int64_t deadline)
{
	struct wh_copier *copier = peer->copier;
	struct wh_fragment *fragment;
	bool has_helped = false;
	int64_t now = 0;

	pthread_mutex_lock(&copier->lock);
	while (now < deadline || !has_helped) {
		fragment = copier_find_fragment(copier, batch);
		if (!fragment)
			break;
		has_helped = true;
		do
			now = deadline == INT64_MAX ? 0 : wh_now();
		while (chunk_copy(copier, fragment) && now < deadline);
	}
	pthread_mutex_unlock(&copier->lock);
	if (!has_helped || !deadline)
		return;
	/* Other threads copy the last chunks and are about to finish. */
	now = wh_now();
	if (deadline > now + SPIN_TIME)
		deadline = now + SPIN_TIME;
	while (wh_batch_is_running(batch) && wh_now() < deadline)
		wh_cpu_relax();
}

void wh_copier_cancel(struct wh_copier_peer *peer, struct wh_fragment *fragment)
{
	struct wh_copier *copier = peer->copier;
	bool ended = false;

	pthread_mutex_lock(&copier->lock);
	/* A fragment in no queue has no chunk left to take and is about to end. */
	if (fragment->link.next) {
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		ended = fragment_stop(fragment, 0);
	}
	pthread_mutex_unlock(&copier->lock);
	if (ended)
		wh_fragment_done(fragment);
}

/* Stop the peer's fragments in a queue. Those with nothing in flight go to `ended`. */
static void copier_stop_fragments(struct wh_copier_peer *peer, struct wh_list *queue,
				  struct wh_list *ended)
{
	struct wh_list *next;

	for (struct wh_list *l = queue->next; l != queue; l = next) {
		struct wh_fragment *fragment = wh_container(l, struct wh_fragment, link);

		next = l->next;
		if (fragment->owner != peer)
			continue;
		wh_fragment_fail(fragment, UINT64_MAX, peer->lost, "%s", peer->lost_text);
		if (fragment_stop(fragment, 0))
			wh_list_append(ended, &fragment->link);
	}
}

void wh_copier_lost(struct wh_copier_peer *peer, int error, const char *text)
{
	struct wh_copier *copier = peer->copier;
	struct wh_list ended, *link;

	wh_list_init(&ended);
	pthread_mutex_lock(&copier->lock);
	peer->lost = error;
	snprintf(peer->lost_text, sizeof(peer->lost_text), "%s", text);
	copier_stop_fragments(peer, &copier->latency, &ended);
	copier_stop_fragments(peer, &copier->bulk, &ended);
	pthread_mutex_unlock(&copier->lock);
	while ((link = wh_list_take(&ended)))
		wh_fragment_done(wh_container(link, struct wh_fragment, link));
}

void wh_copier_again(struct wh_copier_peer *peer)
{
	pthread_mutex_lock(&peer->copier->lock);
	peer->lost = 0;
	pthread_mutex_unlock(&peer->copier->lock);
}
