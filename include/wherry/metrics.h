/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WHERRY_METRICS_H
#define WHERRY_METRICS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_engine;
struct wh_peer;

/* Counters since the engine was opened. They only grow, unless a comment says "now". Each is exact.
 * One call reads them one after the other while work goes on, so they are not one snapshot. */

/* Bucket i of a histogram counts durations up to WH_LATENCY_BOUND(i) ns that are above the previous
 * bound. The last bucket counts all longer ones. */
#define WH_LATENCY_BUCKETS 28
#define WH_LATENCY_BOUND(i) (UINT64_C(256) << (i))

/* Durations of batches, from submission to completion. */
struct wh_latency {
	uint64_t count; /* batches that were timed */
	uint64_t sum; /* ns, of all durations */
	uint64_t bucket[WH_LATENCY_BUCKETS];
};

/* What one transport moved: the bytes of completed batches; of a failed batch, the bytes of the
 * fragments that succeeded. */
struct wh_transport_counters {
	char transport[16]; /* "self", "cuda", "shm", "rdma", "tcp" */
	uint64_t read_bytes;
	uint64_t written_bytes;
	uint64_t reads; /* transfers and blocks */
	uint64_t writes;
	uint64_t errors; /* fragments that failed on it, without cancelled ones */
	uint64_t reroutes; /* fragments that it gave up and another transport took over */
	/* Fragments that have ended on it: done, failed, cancelled, or taken over by another
	 * transport. A batch has at least one fragment for each transport and direction that it
	 * uses. */
	uint64_t attempts;
	uint64_t reserved[3]; /* 0 */
};

#define WH_TRANSPORTS_MAX 16

/* Counters of one peer, or of all peers of an engine together. */
struct wh_counters {
	size_t size; /* set by the caller */
	uint64_t batches; /* completed with success */
	uint64_t failed; /* completed with an error */
	uint64_t cancelled;
	uint64_t large_in_flight; /* bytes of batches as in `large` that are in flight now */
	/* `small`: batches of at most 64 KiB per transport, of which one in 128 is timed. `large`:
	 * all other batches. Batches that waited for a stream or failed are not timed. */
	struct wh_latency small;
	struct wh_latency large;
	/* used entries of `transport`, including transports that moved nothing */
	uint32_t transports;
	uint32_t reserved; /* 0 */
	struct wh_transport_counters transport[WH_TRANSPORTS_MAX];
};

/* Read the counters of a peer. Does not block. 0, or -EINVAL, -E2BIG. */
int wh_peer_counters(struct wh_peer *peer, struct wh_counters *out);

struct wh_engine_counters {
	size_t size; /* set by the caller */
	uint64_t uptime; /* ns since the engine was opened */
	uint64_t peers; /* open now */
	uint64_t peers_opened;
	uint64_t peers_lost; /* connections to peers that broke */
	uint64_t sessions; /* engines connected to this one now */
	uint64_t sessions_opened;
	uint64_t connections; /* data connections opened, as initiator and as owner */
	uint64_t regions; /* registered now */
	uint64_t region_bytes; /* in registered regions, now */
	uint64_t registrations;
	uint64_t registration_time; /* ns spent on registrations */
	/* open now, by the application and by the engine for its regions */
	uint64_t windows;
	uint64_t windows_opened;
	uint64_t staged_bytes; /* GPU memory moved through pinned memory */
	/* What peers moved over TCP from and to this engine's memory. This engine does not see what
	 * engines of this host move through mappings or by copies of the kernel: the engine that
	 * moves the bytes counts them. */
	uint64_t served_read_bytes;
	uint64_t served_written_bytes;
	uint64_t served_requests;
	/* batches in flight now, counted once for each local region that they use */
	uint64_t unfinished;
	/* TCP connections cut because bytes were damaged on the way (setting `integrity`) */
	uint64_t damaged;
};

/* Read the engine's counters and, if `total` is not NULL, the sum over its peers, including closed
 * ones. Does not block. 0, or -EINVAL, -E2BIG. */
int wh_engine_counters(struct wh_engine *engine, struct wh_engine_counters *out,
		       struct wh_counters *total);

/* Write all counters, including every peer and session, in the format of the observers' socket
 * (docs/metrics.md). *length is the size of `buffer` on entry and the bytes used on return.
 * 0, or -EINVAL, -ENOSPC (*length is the size needed now), -ENOMEM. */
int wh_engine_observe(struct wh_engine *engine, void *buffer, size_t *length);

/* The path of the unix socket at which programs of the same user can read the counters; "" if there
 * is none (setting `observe`). Valid until the engine is closed. */
const char *wh_engine_observer_path(const struct wh_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
