/* SPDX-License-Identifier: Apache-2.0 */
/* copying.h: an engine that copies between two areas of its own process */
#ifndef BENCH_COPYING_H
#define BENCH_COPYING_H

#include <wherry/wherry.h>

#include "timing.h"

struct copying {
	const char *name; /* of the program, for errors, which end it */
	struct wh_engine *engine;
	struct wh_region *from, *to;
	struct wh_peer *self;
};

static inline void copying_open(struct copying *copying, const char *const *settings, void *source,
				void *target, uint64_t bytes)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = settings };

	if (wh_engine_open(&options, &copying->engine) ||
	    wh_region_register(copying->engine, source, bytes, NULL, &copying->from) ||
	    wh_region_register(copying->engine, target, bytes, NULL, &copying->to) ||
	    wh_peer_open(copying->engine, "self", NULL, &copying->self))
		timing_die(copying->name, "the engine");
}

/* A batch of one piece, from and to the same offset. The caller frees it. */
static inline struct wh_batch *copying_batch(const struct copying *copying, uint64_t offset,
					     uint64_t length)
{
	struct wh_transfer transfer = { .op = WH_WRITE,
					.local = copying->from,
					.remote = wh_region_id(copying->to),
					.local_offset = offset,
					.remote_offset = offset,
					.length = length };
	struct wh_batch *batch;

	if (wh_batch_new(copying->self, NULL, &batch) || wh_batch_add(batch, &transfer, 1))
		timing_die(copying->name, "a batch");
	return batch;
}

/* When its batches are free. */
static inline void copying_close(struct copying *copying)
{
	wh_peer_close(copying->self);
	wh_region_unregister(copying->from);
	wh_region_unregister(copying->to);
	if (wh_engine_close(copying->engine))
		timing_die(copying->name, "wh_engine_close");
}

#endif
