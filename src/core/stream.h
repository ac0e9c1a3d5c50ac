/* SPDX-License-Identifier: Apache-2.0 */
/* Batches that wait for streams of the application, and streams that wait for batches. */
#ifndef WH_CORE_STREAM_H
#define WH_CORE_STREAM_H

#include <stdbool.h>

struct wh_batch;

/* The batch has ended: let go of the streams that wait for it. */
void wh_stream_dependency_end(struct wh_batch *batch);
/* True: it waited for a stream, and waits no longer; the caller ends it. */
bool wh_stream_dependency_cancel(struct wh_batch *batch);
void wh_stream_dependency_free(struct wh_batch *batch);

#endif
