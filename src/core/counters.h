/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine counts.
 *
 * The path of a batch that is submitted over and over, which is what has to be cheap, adds 1 to a
 * word of the batch itself, for what a round moves is known from its plan: no shared cache line is
 * touched and no instruction is locked. Who wants the numbers multiplies. The first round of a
 * batch adds to the peer's tally; if it has one piece, as most have that are made anew each time,
 * at once. Everything else, such as failures and batches that are timed, goes by wh_count_finish().
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
#define WH_TIMED_EVERY 128 /* of small ones; WH_BATCH_MADE counts to it */

typedef _Atomic uint64_t wh_count;

struct wh_latency_statistics {
	wh_count count, sum, bucket[WH_LATENCY_BUCKETS];
};

/* Side by side, for they are counted together. */
struct wh_route_statistics {
	wh_count bytes, transfers;
	/* batches of one part that ended well, and are in no other number of batches or attempts */
	wh_count alone;
	wh_count attempts;
};

struct wh_statistics {
	struct wh_route_statistics way[WH_TRANSPORT_COUNT][2]; /* read, written */
	wh_count errors[WH_TRANSPORT_COUNT], reroutes[WH_TRANSPORT_COUNT];
	wh_count batches, failed, cancelled;
	wh_count in_flight; /* bytes of large batches that have not ended */
	struct wh_latency_statistics latency[2]; /* small, large */
};

struct wh_engine_statistics {
	int64_t opened; /* when the engine was */
	wh_count peers_opened, peers_lost, sessions_opened, connections, region_bytes,
		registrations, registration_time, windows_opened, staged_bytes;
	/* Of sessions that have left; under engine.lock. */
	uint64_t served_bytes[2], served_requests;
};

/* What a peer did over TCP in our memory. */
struct wh_served {
	wh_count bytes[2], requests;
	/* of these, in the engine's tally; under engine.lock */
	uint64_t flushed_bytes[2], flushed_requests;
};

/* wh_batch.watch. Nothing: the first round of a fresh batch, of one piece; LISTED alone: one more
 * round of a batch whose rounds are multiplied. These two are quick, everything else goes by
 * wh_count_finish(). */
enum {
	WH_STATISTICS_LISTED = 1, /* the batch is in peer.counted */
	WH_STATISTICS_AGAIN = 2, /* it is not, but has had a round: the next one is worth listing */
	WH_STATISTICS_TIMED = 4,
	WH_STATISTICS_FAILED = 8,
	WH_STATISTICS_FRAGMENTS = 16, /* a fresh one may have several pieces, or none */
	WH_STATISTICS_IN_FLIGHT = 32, /* its bytes are in peer.tally.flying */
};

/* What a batch adds to wh_peer.batches when it is made: to how many there are, and to a number in
 * the uppermost 7 bits, by which one in WH_TIMED_EVERY is found. When it is freed it takes 1 away.
 */
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
	return &statistics->way[transport][op - WH_READ];
}

struct wh_batch;
struct wh_fragment;

/* This round of the batch is timed. */
void wh_count_begin(struct wh_batch *batch);
/* A round of the batch ends, and something has to be watched. */
void wh_count_finish(struct wh_batch *batch);
/* The plan of a batch that is listed changes, or it goes: count what it has not told yet. */
void wh_count_flush(struct wh_batch *batch);
/* A peer is closed: its numbers become the engine's. Under engine.lock. */
struct wh_peer;
void wh_count_peer_closed(struct wh_peer *peer);
/* A session is no longer in the engine's list: so are its. Once when it leaves, so that nothing
 * goes back, and again when nobody serves it any more. Under engine.lock. */
struct wh_session;
void wh_count_session_left(struct wh_session *session);

#endif
