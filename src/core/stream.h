/* SPDX-License-Identifier: Apache-2.0 */
/* Batches that wait for streams of the application, and streams that wait for batches. */
#ifndef WH_CORE_STREAM_H
#define WH_CORE_STREAM_H

#include <stdbool.h>

struct wh_batch;

/* The batch has ended: release the streams that wait for it. Any thread. */
void wh_stream_dependency_end(struct wh_batch *batch);
/* True: the batch was waiting for a stream and no longer does; the caller ends it. */
bool wh_stream_dependency_cancel(struct wh_batch *batch);
/* The batch has failed before it waited for its stream. */
void wh_stream_dependency_drop(struct wh_batch *batch);
/* The batch is being freed. */
void wh_stream_dependency_free(struct wh_batch *batch);

#endif
