/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine counts.
 *
 * Counting must cost a submission next to nothing. The plan of a batch says what a submission
 * moves, so a batch that is submitted again and again only adds 1 to a counter of its own: no
 * shared cache line, no locked instruction. Readers multiply, which is why such batches are listed
 * in peer.pending. The first submission of a batch adds to the peer's statistics; with one
 * fragment, as most batches have that are used once, that is inline. Everything else, such as
 * failures and submissions that are timed, takes wh_count_finish().
 */
#ifndef WH_CORE_COUNTERS_H
#define WH_CORE_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <wherry/metrics.h>
#include <wherry/transfer.h>

#include "transport/transport.h"

#define WH_SMALL_BATCH 65536 /* bytes; larger ones are all timed */
#define WH_TIMED_EVERY 128 /* small batches for one that is timed; see WH_BATCH_MADE */

typedef _Atomic uint64_t wh_count;

struct wh_latency_statistics {
	wh_count count, sum, bucket[WH_LATENCY_BUCKETS];
};

/* Next to each other, since they are counted together. */
struct wh_route_statistics {
	wh_count bytes, transfers;
	/* first submissions, without error, of batches of one fragment; not in `batches`,
	 * `attempts` */
	wh_count alone;
	wh_count attempts;
};

struct wh_statistics {
	struct wh_route_statistics route[WH_TRANSPORT_COUNT][2]; /* read, write */
	wh_count errors[WH_TRANSPORT_COUNT], reroutes[WH_TRANSPORT_COUNT];
	wh_count batches, failed, cancelled;
	wh_count in_flight; /* bytes of unfinished large batches */
	struct wh_latency_statistics latency[2]; /* small, large */
};

struct wh_engine_statistics {
	int64_t opened; /* when the engine was opened */
	wh_count peers_opened, peers_lost, sessions_opened, connections, region_bytes,
		registrations, registration_time, windows_opened, staged_bytes, damaged;
	/* Of sessions that have ended; read, written; under engine.lock. */
	uint64_t served_bytes[2], served_requests;
};

/* What a session did over TCP in local memory. */
struct wh_served {
	wh_count bytes[2], requests;
	/* of these, in the engine's statistics; under engine.lock */
	uint64_t flushed_bytes[2], flushed_requests;
};

/* wh_batch.watch. 0: the first submission of a batch of one fragment; LISTED alone: another one of
 * a listed batch. These two are inline, all else takes wh_count_finish(). */
enum {
	WH_STATISTICS_LISTED = 1, /* the batch is in peer.pending */
	WH_STATISTICS_AGAIN = 2, /* not listed, but submitted before: list it the next time */
	WH_STATISTICS_TIMED = 4,
	WH_STATISTICS_FAILED = 8,
	WH_STATISTICS_FRAGMENTS = 16, /* it may have several fragments, or none */
	WH_STATISTICS_IN_FLIGHT = 32, /* its bytes are in peer.statistics.in_flight */
};

/* A new batch adds this to wh_peer.batches: 1 to the number of batches, from which it is subtracted
 * when the batch is freed, and 1 to the upper 7 bits, which are 0 for one new batch in
 * WH_TIMED_EVERY. */
#define WH_BATCH_MADE ((UINT64_C(1) << 57) + 1)
#define WH_BATCHES(batches) ((uint32_t)(batches))

static inline void wh_count_add(wh_count *count, uint64_t by)
{
	atomic_fetch_add_explicit(count, by, memory_order_relaxed);
}

static inline uint64_t wh_count_get(const wh_count *count)
{
	return atomic_load_explicit(count, memory_order_relaxed);
}

static inline struct wh_route_statistics *wh_route_statistics(struct wh_statistics *statistics,
							      size_t transport, size_t op)
{
	return &statistics->route[transport][op - WH_READ];
}

struct wh_batch;
struct wh_peer;
struct wh_session;

/* Time the submission that begins now. */
void wh_count_begin(struct wh_batch *batch);
/* Count a submission that has ended, where the inline cases do not apply. */
void wh_count_finish(struct wh_batch *batch);
/* Add a listed batch's submissions to the peer's statistics and take it off the list, before its
 * plan changes or it is freed. */
void wh_count_flush(struct wh_batch *batch);
/* A peer is being closed: add its statistics to engine.past. Under engine.lock. */
void wh_count_peer_closed(struct wh_peer *peer);
/* Fold a departed session's counters into the engine's: on unlink, so that totals never decrease,
 * and after its last I/O. Under engine.lock. */
void wh_count_session_left(struct wh_session *session);

#endif
