/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches with regions of the peer that are not known yet. Submitting one asks the peer, and
 * returns; a thread of the engine plans and starts the batch when the answer has come.
 */
#ifndef WH_CORE_RESOLVE_H
#define WH_CORE_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>

struct wh_batch;
struct wh_event_wait;
struct wh_resolution;

/* Look for the regions that the batch named before they were known. 0: all are known, and allow
 * what the batch wants; *asked: NULL, or, if some are not known, what has to be asked for, which
 * the caller hands to wh_resolution_start() or frees by wh_resolution_free(). Without `asked`:
 * -ENOENT if some are not known. Else a negative errno with its text. */
int wh_batch_resolve(struct wh_batch *batch, struct wh_resolution **asked);
void wh_resolution_free(struct wh_resolution *resolution);

/* The batch runs, with one part left: ask, then plan and start it; `wait`: when that event has
 * happened. The batch may be gone on return. */
void wh_resolution_start(struct wh_resolution *resolution, struct wh_event_wait *wait);
/* The batch was cancelled: end the wait for the peer's answer. Returns when the batch's fragments
 * may be looked at; blocks while the batch is planned. */
void wh_resolution_cancel(struct wh_batch *batch);

/* batch-run.c: plan a batch that runs, and whose regions are known, and start it; or fail it with
 * `error`. On the worker's thread. The batch may be gone on return. */
void wh_batch_run_resolved(struct wh_batch *batch, struct wh_event_wait *wait, int error,
			   const char *text);

#endif
