/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/copier.h: copies by the CPU, for the transports self and shm
 *
 * The submitting thread copies a small fragment at once, and a middling one unless several are in
 * flight: one thread does not fill the memory's paths. A larger one is queued to the copier's
 * threads, and a thread that waits for its batch helps them: each takes a chunk, copies it, and
 * takes the next. The thread that copies the last chunk completes the fragment.
 *
 * A thread that finds the queue empty becomes idle: it polls a word of its own for about as long as
 * waking it would take, then it sleeps on that word. Whoever queues or takes a chunk calls idle
 * threads, the one that became idle last first, as many as the bytes in the queue are worth. So a
 * steady flow of middling fragments costs no system calls, and one fragment wakes one thread.
 *
 * A copier for files has no threads. A fragment with a file is a job of the file system's threads
 * (memory/file.h), which queues itself again before it moves a chunk, so that several threads are
 * at it.
 */
#ifndef WH_TRANSPORT_COPIER_H
#define WH_TRANSPORT_COPIER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "memory/file.h"
#include "memory/region-table.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"
#include "util/turns.h"

/* The most that one chunk holds: bytes, and extents. */
#define WH_CHUNK_BYTES (256u << 10)
#define WH_CHUNK_EXTENTS 1024u
#define WH_FILE_CHUNK_BYTES (1u << 20)

#define WH_COPIER_THREADS_MAX 64
#define WH_COPIER_LINE 64 /* bytes; what different threads write lies this far apart */

struct wh_copier;

/* A thread of the copier. */
struct wh_copier_thread {
	_Atomic uint32_t call; /* enum in copier.c; a futex */
	struct wh_copier_thread *next; /* in copier.idle */
	struct wh_copier *copier;
	pthread_t thread;
	char apart[WH_COPIER_LINE];
};

/* What a copier keeps in a fragment: its job, if one side is a file; else job.system is NULL. */
static inline struct wh_file_job *wh_copier_job(const struct wh_fragment *fragment)
{
	_Static_assert(sizeof(struct wh_file_job) <= WH_FRAGMENT_STATE, "it fits");
	return (struct wh_file_job *)(uintptr_t)fragment->state;
}

/* Threads of one transport in one engine. They start when the first fragment is queued. In an
 * engine without threads a poller copies, in the turns of the program's threads. */
struct wh_copier {
	/* Constant: */
	bool files; /* the fragments are jobs of file systems' threads */
	unsigned most; /* threads */
	uint64_t chunk; /* bytes, at most */
	uint64_t shared_from; /* 0: never (files) */
	int64_t spin; /* ns that an idle thread polls before it sleeps */
	/* Bytes in the queue for each thread that has been called and has not come yet: where the
	 * next one polls, and where it sleeps. */
	uint64_t call_step, wake_step;
	struct wh_turns *turns; /* NULL: it has threads */
	struct wh_poller poller;

	char apart[WH_COPIER_LINE];
	pthread_mutex_t lock; /* of all below, and of the cursors of queued fragments */
	struct wh_list latency, bulk; /* fragments with bytes that no thread has taken yet */
	uint64_t backlog; /* those bytes */
	struct wh_copier_thread *idle; /* the last to become so first */
	unsigned threads;
	unsigned coming; /* threads that have been called and do not hold the lock yet */
	_Atomic unsigned busy; /* threads that are not in `idle`; read without the lock */
	bool stop;
	struct wh_copier_thread thread[WH_COPIER_THREADS_MAX];
};

/* Extents of one fragment whose remote memory is not mapped in this process. Their regions stay
 * entered until they have been moved. */
#define WH_UNMAPPED_EXTENTS 256u
struct wh_unmapped {
	struct wh_fragment *fragment;
	unsigned count;
	struct iovec local[WH_UNMAPPED_EXTENTS],
		remote[WH_UNMAPPED_EXTENTS]; /* equally long, pair by pair */
	uint64_t index[WH_UNMAPPED_EXTENTS]; /* for wh_fragment_fail() */
	struct wh_region_entry *entry[WH_UNMAPPED_EXTENTS]; /* entered; left afterwards */
};

struct wh_copier_peer;

/* Where the transports differ. Only `map` is required; `refusal` belongs to `move_unmapped`. */
struct wh_copier_ops {
	/* Address of the region's first byte in this process. NULL: not mapped for that op. */
	char *(*map)(const struct wh_region_entry *entry, uint32_t op);
	/* Move the extents; may change unmapped->local and unmapped->remote. Failures of an extent
	 * or of the fragment go to wh_fragment_fail(), and the result is 0. Negative errno: this
	 * transport cannot move unmapped memory, for the reason that `refusal` gives; the fragment
	 * is rerouted. */
	int (*move_unmapped)(struct wh_copier_peer *peer, struct wh_unmapped *unmapped);
	void (*refusal)(struct wh_copier_peer *peer, char why[WH_REFUSAL]);
	/* All bytes have been moved. Fail the fragment if the owner of the memory died before, or
	 * if a file cannot be made durable. */
	void (*verify)(struct wh_copier_peer *peer, struct wh_fragment *fragment);
	/* Both sides are in this process, so they may overlap. */
	bool overlaps;
	/* A mapping may end before its region does, so a copy pins the region. */
	bool pins;
	/* One side of each fragment is a file, or both are: copier-file.h. `map` returns addresses
	 * that are not mapped where the region is one. */
	bool files;
	/* The regions are this engine's own: whatever their access, they may be read and written.
	 */
	bool own;
};

/* The copier's state for one peer. */
struct wh_copier_peer {
	struct wh_copier *copier;
	struct wh_region_table *entries; /* of the peer */
	const struct wh_copier_ops *ops;
	uint64_t at_once; /* bytes: the submitter copies fragments up to this size; setting `inline`
			   */
	int lost; /* negative errno while the peer is lost: nothing is queued; under copier.lock */
	char lost_text[WH_TEXT_MAX];
};

/* `turns`: what runs the engine instead of threads; NULL: threads do. `threads`: at most; 0: by the
 * number of CPUs. `shared_from`: bytes of a fragment that
 * they take, where the submitter would copy it, if the program has several batches in flight; 0: by
 * the number of CPUs. */
void wh_copier_init(struct wh_copier *copier, struct wh_turns *turns, unsigned threads,
		    uint64_t shared_from);
/* For files: `threads`, for explanations, of each file system. The transport sets the system of
 * wh_copier_job() before it submits a fragment. */
void wh_copier_init_files(struct wh_copier *copier, struct wh_turns *turns, unsigned threads);
/* Joins the threads. No fragment may be queued. */
void wh_copier_destroy(struct wh_copier *copier);

/* The functions of these names in struct wh_transport call these. */
void wh_copier_submit(struct wh_copier_peer *peer, struct wh_fragment *fragment);
void wh_copier_progress(struct wh_copier_peer *peer, struct wh_batch *batch, int64_t deadline);
void wh_copier_cancel(struct wh_copier_peer *peer, struct wh_fragment *fragment);
void wh_copier_lost(struct wh_copier_peer *peer, int error, const char *text);
void wh_copier_again(struct wh_copier_peer *peer);

/* Move the `left` bytes from the cursor on: copier-move.c. 0, or a negative errno: this transport
 * cannot move the fragment. No region stays entered. */
int wh_copier_move(struct wh_copier_peer *peer, struct wh_fragment *fragment, struct wh_cursor *at);

/* Copy memory that may overlap. `non_temporal`: with stores that bypass the caches, for copies
 * larger than these. The copied bytes are visible before whatever the thread stores next. 1, 2, 4
 * or 8 bytes, aligned on both sides, are one load (acquire) and one store (release). */
void wh_copy_bytes(char *to, const char *from, size_t length, bool non_temporal);

#endif
