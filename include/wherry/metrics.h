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

/* What an engine has counted since it was opened. Numbers only grow, save where a comment says
 * "now". Each is exact; those of one call were read one after the other, while work went on. */

/* Bucket i of a histogram counts what took at most WH_LATENCY_BOUND(i) ns and more than the bound
 * before; the last one takes all that was longer. */
#define WH_LATENCY_BUCKETS 28
#define WH_LATENCY_BOUND(i) (UINT64_C(256) << (i))

/* How long batches took, from their submission to their completion. */
struct wh_latency {
	uint64_t count; /* batches that were timed */
	uint64_t sum; /* ns, of all of them */
	uint64_t bucket[WH_LATENCY_BUCKETS];
};

/* What went by one transport. Bytes of batches that have completed; of a batch that failed, those
 * of the parts that did not. */
struct wh_transport_counters {
	char transport[16]; /* "self", "cuda", "shm", "rdma", "tcp" */
	uint64_t read_bytes;
	uint64_t written_bytes;
	uint64_t reads; /* transfers and blocks */
	uint64_t writes;
	uint64_t errors; /* parts of batches that failed on it, cancelled ones not counted */
	uint64_t reroutes; /* parts that it gave up and another transport took over */
};

#define WH_TRANSPORTS_MAX 8

/* What this engine did with a peer, or with all of its peers. */
struct wh_counters {
	size_t size; /* set by the caller */
	uint64_t batches; /* that have completed well */
	uint64_t failed; /* with an error */
	uint64_t cancelled;
	/* how many of the next are used; those that moved nothing are there, too */
	uint32_t transports;
	uint32_t reserved;
	struct wh_transport_counters transport[WH_TRANSPORTS_MAX];
	/* Of batches of at most 64 KiB (by each of their transports) one in 128 is timed, of larger
	 * ones each. Those that waited for a stream, and those that failed, are not. */
	struct wh_latency small;
	struct wh_latency large;
	/* By the index of `transport`: parts of batches that it was given and that have ended
	 * there: done, failed, cancelled, or taken over by another transport. A batch has one part
	 * at least for each transport and direction that it takes. */
	uint64_t attempts[WH_TRANSPORTS_MAX];
	/* bytes of larger batches (as in `large`) that have not ended, now */
	uint64_t large_in_flight;
};

/* 0, or -EINVAL, -E2BIG. Does not block. */
int wh_peer_counters(struct wh_peer *peer, struct wh_counters *out);

struct wh_engine_counters {
	size_t size; /* set by the caller */
	uint64_t uptime; /* ns since it was opened */
	uint64_t peers; /* open now */
	uint64_t peers_opened;
	uint64_t peers_lost; /* connections to peers that broke */
	uint64_t sessions; /* engines that are connected to this one now */
	uint64_t sessions_opened;
	uint64_t connections; /* data connections, of both sides, that were opened */
	uint64_t regions; /* registered now */
	uint64_t region_bytes; /* in them, now */
	uint64_t registrations;
	uint64_t registration_time; /* ns that they took */
	/* open now, by the application and by the engine for its regions */
	uint64_t windows;
	uint64_t windows_opened;
	uint64_t staged_bytes; /* of GPUs that went through pinned memory */
	/* Over TCP, by peers, in memory of this engine. What engines of this host move by mapped or
	 * by the kernel's copies this engine does not see: it is counted by those that move it. */
	uint64_t served_read_bytes;
	uint64_t served_written_bytes;
	uint64_t served_requests;
	/* batches in flight now, each once for every local region that it uses */
	uint64_t unfinished;
};

/* What the engine as a whole has counted, and, if `total` is not NULL, what it did with all of its
 * peers, also those that have been closed. 0, or -EINVAL, -E2BIG. Does not block. */
int wh_engine_counters(struct wh_engine *engine, struct wh_engine_counters *out,
		       struct wh_counters *total);

/* All of it, with every peer and session, as the bytes that the engine tells observers over its
 * socket (docs/metrics.md). *length is the room in `buffer` on entry and what is used on return. 0,
 * or -EINVAL, -ENOSPC (*length says how much is needed now), -ENOMEM. */
int wh_engine_observe(struct wh_engine *engine, void *buffer, size_t *length);

/* Where observers find the engine: the path of a unix socket that programs of the same user may
 * ask;
 * "" if there is none (the knob `observe`). Good as long as the engine. */
const char *wh_engine_observer_path(const struct wh_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
