/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/copier.c: copies fragments by the CPU: the queue of chunks, and the threads
 */
#include "transport/copier.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>

#include "memory/region-table.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/cpus.h"
#include "util/futex.h"
#include "util/list.h"
#include "util/thread.h"

/* Without the setting `copy_threads`: one thread on a few CPUs, else three for four CPUs. */
#define FEW_CPUS 4
#define THREADS_MOST 24

/* If more batches than these are in flight to a peer, as the program sees it, the threads copy
 * their middling fragments, from `shared_from` bytes on. A program that waits for each batch before
 * it submits the next has one in flight, and hands nothing over. */
#define MANY_IN_FLIGHT 2
/* Without the setting `copy_from`. */
#define SHARED_FROM_FEW_CPUS ((uint64_t)1 << 20)
#define SHARED_FROM ((uint64_t)64 << 10)

/* How long a waiter polls for the end of chunks that other threads copy, before it sleeps: about
 * the time of one chunk. An idle thread polls as long for work: about what waking it costs. */
#define SPIN_TIME (30 * WH_MS / 1000)
/* Polls of a word between two calls of sched_yield(), which lets others have the CPU. */
#define SPIN_POLLS 16

/* For how many bytes in the queue a thread is called that polls, and one that sleeps: calling the
 * latter is a system call, and it comes some 20 us later. */
#define CALL_STEP ((uint64_t)64 << 10)
#define WAKE_STEP ((uint64_t)256 << 10)

/* In an engine without threads: how many chunks a turn copies, a MiB, before it looks after the
 * connections again. */
#define TURN_CHUNKS 4u

/* Verify the fragment, of which nothing is in flight any more. False: it was not moved, but
 * rerouted, and may be gone with its peer. `refused`: negative errno, why it is rerouted. */
static bool copier_verify(struct wh_copier_peer *peer, struct wh_fragment *fragment, int refused)
{
	char why[WH_REFUSAL] = "";

	if (refused) {
		peer->ops->refusal(peer, why);
		wh_fragment_reroute(fragment, refused, why);
		return false;
	}
	if (peer->ops->verify)
		peer->ops->verify(peer, fragment);
	return true;
}

/* ---- idle threads; under copier.lock ------------------------------------------------------- */

/* struct wh_copier_thread.call */
enum {
	CALL_NONE, /* the thread polls */
	CALL_ASLEEP, /* it sleeps on the word */
	CALLED,
};

/* Call an idle thread if the queue has work for one more. The thread to be woken once the lock is
 * released, by copier_wake(); NULL: none. */
static struct wh_copier_thread *copier_call(struct wh_copier *copier)
{
	struct wh_copier_thread *thread = copier->idle;
	bool asleep;

	if (!thread)
		return NULL;
	asleep = atomic_load_explicit(&thread->call, memory_order_relaxed) == CALL_ASLEEP;
	if (copier->backlog <= copier->coming * (asleep ? copier->wake_step : copier->call_step))
		return NULL;
	copier->idle = thread->next;
	copier->coming++;
	atomic_fetch_add_explicit(&copier->busy, 1, memory_order_relaxed);
	asleep = atomic_exchange(&thread->call, CALLED) == CALL_ASLEEP;
	return asleep ? thread : NULL;
}

static void copier_wake(struct wh_copier_thread *thread)
{
	if (thread)
		wh_futex_wake(&thread->call);
}

/* Be idle until called; releases the lock meanwhile. */
static void copier_rest(struct wh_copier *copier, struct wh_copier_thread *thread)
{
	uint32_t none = CALL_NONE;
	int64_t until;

	thread->next = copier->idle;
	copier->idle = thread;
	atomic_store(&thread->call, CALL_NONE);
	atomic_fetch_sub_explicit(&copier->busy, 1, memory_order_relaxed);
	pthread_mutex_unlock(&copier->lock);
	until = copier->spin ? wh_now() + copier->spin : 0;
	for (unsigned polls = 0; atomic_load(&thread->call) == CALL_NONE; polls++) {
		if (polls % SPIN_POLLS) {
			wh_cpu_relax();
			continue;
		}
		if (wh_now() >= until)
			break;
		sched_yield();
	}
	if (atomic_compare_exchange_strong(&thread->call, &none, CALL_ASLEEP))
		while (atomic_load(&thread->call) == CALL_ASLEEP)
			wh_futex_wait(&thread->call, CALL_ASLEEP, INT64_MAX);
	pthread_mutex_lock(&copier->lock);
	copier->coming--;
}

/* ---- the queue; under copier.lock ---------------------------------------------------------- */

struct chunk {
	struct wh_cursor at;
	uint64_t bytes;
};

/* What the job of a fragment with a file adds to wh_fragment.left, besides bytes. */
#define JOB_HOLD ((uint64_t)1)

static void fragment_unlink(struct wh_fragment *fragment)
{
	wh_list_remove(&fragment->link);
	atomic_store_explicit(&fragment->copier, NULL, memory_order_relaxed);
}

/* Does the fragment have chunks that no thread has taken yet? */
static bool copier_has(const struct wh_copier *copier, const struct wh_fragment *fragment)
{
	return atomic_load_explicit(&fragment->copier, memory_order_relaxed) == copier;
}

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
	peer->copier->backlog -= chunk->bytes;
	if (!fragment->cursor.left)
		fragment_unlink(fragment);
}

/* Take a fragment out of the queue: nobody copies the rest of it. True: nothing is in flight
 * either, and the caller completes it. `refused`: 0, or the negative errno that
 * fragment_refused() returns later; kept in the cursor, which is not needed any more. Its job holds
 * the fragment, unless nobody runs it. */
static bool fragment_stop(struct wh_copier *copier, struct wh_fragment *fragment, int refused)
{
	uint64_t rest = fragment->cursor.left;

	copier->backlog -= rest;
	if (copier->files && copier_has(copier, fragment) &&
	    wh_file_job_take_back(wh_copier_job(fragment)))
		rest += JOB_HOLD;
	fragment_unlink(fragment);
	fragment->cursor = (struct wh_cursor){ .skip = (uint64_t)-refused };
	return atomic_fetch_sub(&fragment->left, rest) == rest;
}

/* The errno that fragment_stop() stored; 0 if the fragment was not stopped: then its cursor has
 * left 0 and skip 0. */
static int fragment_refused(const struct wh_fragment *fragment)
{
	return fragment->cursor.left ? 0 : -(int)fragment->cursor.skip;
}

/* Give up a hold of the fragment, which may be gone on return. */
static void fragment_release(struct wh_copier_peer *peer, struct wh_fragment *fragment,
			     uint64_t hold)
{
	/* Whoever takes `left` to 0 is alone with the fragment, and sees what the others have
	 * written to its cursor and its target. */
	if (atomic_fetch_sub(&fragment->left, hold) == hold &&
	    copier_verify(peer, fragment, fragment_refused(fragment)))
		wh_fragment_done(fragment);
}

/* Copy a chunk that has been taken. */
static void chunk_move(struct wh_copier_peer *peer, struct wh_fragment *fragment,
		       struct chunk *chunk)
{
	struct wh_copier *copier = peer->copier;
	int error = wh_copier_move(peer, fragment, &chunk->at);

	if (!error)
		return;
	/* Even if all chunks have been taken, so that the error is stored. */
	pthread_mutex_lock(&copier->lock);
	fragment_stop(copier, fragment, error);
	pthread_mutex_unlock(&copier->lock);
}

/* Copy one chunk of a queued fragment, and release the lock. The fragment may be gone on return. */
static void chunk_copy(struct wh_copier *copier, struct wh_fragment *fragment)
{
	struct wh_copier_peer *peer = fragment->owner;
	struct wh_copier_thread *called;
	struct chunk chunk;

	chunk_take(peer, fragment, &chunk);
	called = copier_call(copier);
	pthread_mutex_unlock(&copier->lock);
	copier_wake(called);
	chunk_move(peer, fragment, &chunk);
	fragment_release(peer, fragment, chunk.bytes);
}

/* The job of a fragment with a file, on a thread of its file system. While it is queued or runs it
 * holds the fragment. */
static void copier_run_job(struct wh_file_job *job)
{
	struct wh_fragment *fragment = wh_container(
		(unsigned char(*)[WH_FRAGMENT_STATE])(void *)job, struct wh_fragment, state);
	struct wh_copier_peer *peer = fragment->owner;
	struct wh_copier *copier = peer->copier;
	bool more, queued;

	do {
		struct chunk chunk = { .bytes = 0 };

		pthread_mutex_lock(&copier->lock);
		if (copier_has(copier, fragment))
			chunk_take(peer, fragment, &chunk);
		more = copier_has(copier, fragment);
		queued = more && wh_file_job_queue(job, true);
		pthread_mutex_unlock(&copier->lock);
		if (chunk.bytes)
			chunk_move(peer, fragment, &chunk);
		fragment_release(peer, fragment, chunk.bytes + (more ? 0 : JOB_HOLD));
	} while (more && !queued);
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

	for (; chunks < TURN_CHUNKS; chunks++) {
		struct wh_list *queue;

		pthread_mutex_lock(&copier->lock);
		queue = copier_next_queue(copier);
		if (wh_list_empty(queue)) {
			pthread_mutex_unlock(&copier->lock);
			break;
		}
		chunk_copy(copier, wh_container(queue->next, struct wh_fragment, link));
	}
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
	struct wh_copier_thread *thread = argument;
	struct wh_copier *copier = thread->copier;

	pthread_mutex_lock(&copier->lock);
	while (!copier->stop) {
		struct wh_list *queue = copier_next_queue(copier);

		if (wh_list_empty(queue)) {
			copier_rest(copier, thread);
			continue;
		}
		/* Choose the queue anew after each chunk: a latency fragment waits for one bulk
		 * chunk at most. */
		chunk_copy(copier, wh_container(queue->next, struct wh_fragment, link));
		pthread_mutex_lock(&copier->lock);
	}
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

static void copier_start_threads(struct wh_copier *copier)
{
	while (copier->threads < copier->most) {
		struct wh_copier_thread *thread = &copier->thread[copier->threads];

		thread->copier = copier;
		if (wh_thread_start(&thread->thread, "wherry/copy", copier_main, thread))
			break;
		copier->threads++;
		atomic_fetch_add_explicit(&copier->busy, 1, memory_order_relaxed);
	}
}

static void copier_init(struct wh_copier *copier, struct wh_turns *turns)
{
	pthread_mutexattr_t attributes;

	*copier = (struct wh_copier){
		.turns = turns,
		.poller = { .poll = copier_poll, .next = copier_next },
	};
	pthread_mutexattr_init(&attributes);
#ifdef __GLIBC__
	/* It is held for less time than sleeping takes. */
	pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
	pthread_mutex_init(&copier->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	wh_list_init(&copier->latency);
	wh_list_init(&copier->bulk);
}

/* On a small machine one thread and the waiter use most of the memory bandwidth, and a second
 * thread would only take a CPU away from the program. */
static unsigned copier_threads(unsigned count)
{
	unsigned threads = count - count / 4;

	return count <= FEW_CPUS ? 1 : threads < THREADS_MOST ? threads : THREADS_MOST;
}

void wh_copier_init(struct wh_copier *copier, struct wh_turns *turns, unsigned threads,
		    uint64_t shared_from)
{
	unsigned count = wh_cpus();

	copier_init(copier, turns);
	if (turns)
		wh_turns_add_poller(turns, &copier->poller);
	copier->most = threads ? threads : copier_threads(count);
	copier->chunk = WH_CHUNK_BYTES;
	copier->shared_from = shared_from       ? shared_from :
			      count <= FEW_CPUS ? SHARED_FROM_FEW_CPUS :
						  SHARED_FROM;
	copier->spin = SPIN_TIME;
	copier->call_step = CALL_STEP;
	copier->wake_step = WAKE_STEP;
}

void wh_copier_init_files(struct wh_copier *copier, struct wh_turns *turns, unsigned threads)
{
	copier_init(copier, turns);
	copier->files = true;
	copier->most = threads;
	copier->chunk = WH_FILE_CHUNK_BYTES;
}

void wh_copier_destroy(struct wh_copier *copier)
{
	if (copier->turns && !copier->files)
		wh_turns_remove_poller(copier->turns, &copier->poller);
	pthread_mutex_lock(&copier->lock);
	copier->stop = true;
	for (struct wh_copier_thread *idle = copier->idle; idle; idle = idle->next) {
		atomic_store(&idle->call, CALLED);
		copier->coming++;
		copier_wake(idle);
	}
	pthread_mutex_unlock(&copier->lock);
	for (unsigned i = 0; i < copier->threads; i++)
		pthread_join(copier->thread[i].thread, NULL);
	pthread_mutex_destroy(&copier->lock);
}

/* ---- transport functions ------------------------------------------------------------------- */

/* Queue the job of a fragment with a file. False: no thread could be started. */
static bool copier_queue_job(struct wh_fragment *fragment)
{
	struct wh_file_job *job = wh_copier_job(fragment);

	job->run = copier_run_job;
	job->urgent = fragment->priority == WH_PRIORITY_LATENCY;
	atomic_fetch_add_explicit(&fragment->left, JOB_HOLD, memory_order_relaxed);
	return wh_file_job_queue(job, false);
}

/* Under the lock. False: no thread could be started. *called: see copier_call(). */
static bool copier_enqueue(struct wh_copier *copier, struct wh_fragment *fragment,
			   struct wh_copier_thread **called)
{
	bool latency = fragment->priority == WH_PRIORITY_LATENCY;

	if (!copier->files && !copier->threads && !copier->turns)
		copier_start_threads(copier);
	if (copier->files ? !copier_queue_job(fragment) : !copier->threads && !copier->turns)
		return false;
	wh_list_append(latency ? &copier->latency : &copier->bulk, &fragment->link);
	atomic_store_explicit(&fragment->copier, copier, memory_order_relaxed);
	copier->backlog += fragment->bytes;
	*called = copier_call(copier);
	wh_turns_ready(copier->turns);
	return true;
}

/* Queue the fragment, or fail it. False: the submitter has to copy it. */
static bool copier_submit_large(struct wh_copier_peer *peer, struct wh_fragment *fragment)
{
	struct wh_copier *copier = peer->copier;
	struct wh_copier_thread *called = NULL;
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
		taken = copier_enqueue(copier, fragment, &called);
	}
	pthread_mutex_unlock(&copier->lock);
	copier_wake(called);
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
	if (copier_verify(peer, fragment, wh_copier_move(peer, fragment, &at)))
		wh_fragment_done_at_once(fragment);
}

/* Copy a chunk of the fragment, if it has one that no thread has taken. */
static bool copier_help(struct wh_copier *copier, struct wh_fragment *fragment)
{
	if (!copier_has(copier, fragment))
		return false;
	pthread_mutex_lock(&copier->lock);
	if (!copier_has(copier, fragment)) {
		pthread_mutex_unlock(&copier->lock);
		return false;
	}
	chunk_copy(copier, fragment);
	return true;
}

void wh_copier_progress(struct wh_copier_peer *peer, struct wh_batch *batch, int64_t deadline)
{
	struct wh_copier *copier = peer->copier;
	struct wh_fragment *fragment = NULL;
	bool has_helped = false;
	int64_t now = 0;

	while (wh_batch_is_running(batch) &&
	       (fragment = wh_batch_fragment(batch, WH_TRANSPORT_COUNT, fragment))) {
		while ((now < deadline || !has_helped) && copier_help(copier, fragment)) {
			has_helped = true;
			now = deadline == INT64_MAX ? 0 : wh_now();
			if (!wh_batch_is_running(batch))
				break;
		}
	}
	/* Other threads copy the last chunks and are about to finish. */
	if (!deadline ||
	    (!has_helped && !atomic_load_explicit(&copier->busy, memory_order_relaxed)))
		return;
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
	if (copier_has(copier, fragment)) {
		wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
		ended = fragment_stop(copier, fragment, 0);
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
		if (fragment_stop(peer->copier, fragment, 0))
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
