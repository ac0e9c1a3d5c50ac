/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving a fragment by the CPU: what the transports self and shm have in common.
 *
 * A small fragment is copied at once, by the thread that submits it. A larger one is queued to the
 * copier's threads, and whoever waits for its batch copies along with them: each takes a chunk,
 * copies it, and takes the next. Who finishes the last chunk finishes the fragment.
 */
#ifndef WH_TRANSPORT_COPIER_H
#define WH_TRANSPORT_COPIER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "memory/region-table.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"

/* What one thread takes of a fragment at a time. */
#define WH_CHUNK_BYTES (256u << 10)
#define WH_CHUNK_RUNS 1024u

#define WH_COPIER_THREADS 2

/* The threads of one transport in one engine; none until the first fragment is queued. */
struct wh_copier {
	pthread_mutex_t lock; /* all below, and the cursors and `left` of queued fragments */
	pthread_cond_t work;
	struct wh_list latency, bulk; /* fragments of which something has not been handed out */
	pthread_t thread[WH_COPIER_THREADS];
	unsigned threads, idle;
	bool stop;
};

/* Runs in memory that is not mapped here, all of one direction. Their places are entered. */
#define WH_FAR_RUNS 256u
struct wh_far {
	struct wh_fragment *fragment;
	unsigned count;
	struct iovec local[WH_FAR_RUNS], remote[WH_FAR_RUNS]; /* equally long, pair by pair */
	uint64_t index[WH_FAR_RUNS]; /* for wh_fragment_fail() */
	struct wh_region_entry *entry[WH_FAR_RUNS]; /* to be left; NULL: none */
};

struct wh_copier_peer;

/* What the transports do differently. Only `map` may be all there is. */
struct wh_copier_ops {
	/* Where the first byte of a place is in this process, for that op; NULL: not mapped. */
	char *(*map)(const struct wh_region_entry *entry, uint32_t op);
	/* Move the runs of memory that is not mapped; may change far->local and far->remote.
	 * Failures of runs and of the fragment through wh_fragment_fail(). Negative: it cannot be
	 * done this way at all; `refusal` says why. */
	int (*move_far)(struct wh_copier_peer *copy, struct wh_far *far);
	void (*refusal)(struct wh_copier_peer *copy, char why[WH_REFUSAL]);
	/* All bytes of the fragment have been moved: was there still somebody to move them to? */
	void (*verify)(struct wh_copier_peer *copy, struct wh_fragment *fragment);
	/* Both sides are in this process and may overlap. */
	bool overlaps;
	/* The mapping may end before the place does: who is in it pins the place. */
	bool pins;
};

/* One peer's part. */
struct wh_copier_peer {
	struct wh_copier *copier;
	struct wh_region_table *entries; /* of the peer */
	const struct wh_copier_ops *ops;
	uint64_t at_once; /* a fragment of at most so many bytes is copied by the submitter */
	int lost; /* 0, or why nothing can be queued now; under copier.lock */
	char lost_text[WH_TEXT_MAX];
};

void wh_copier_init(struct wh_copier *copier);
/* Ends the threads. No fragment may be queued. */
void wh_copier_destroy(struct wh_copier *copier);

/* The transport functions of the same names. */
void wh_copier_submit(struct wh_copier_peer *copy, struct wh_fragment *fragment);
void wh_copier_progress(struct wh_copier_peer *copy, struct wh_batch *batch, int64_t deadline);
void wh_copier_cancel(struct wh_copier_peer *copy, struct wh_fragment *fragment);
void wh_copier_lost(struct wh_copier_peer *copy, int error, const char *text);
void wh_copier_again(struct wh_copier_peer *copy);

/* Copy memory that may overlap; `stream`: past the caches, for what does not fit into them. Ordered
 * before whatever the thread stores next. */
void wh_copy_bytes(char *to, const char *from, size_t length, bool stream);

#endif
