/* SPDX-License-Identifier: Apache-2.0 */
/* How a thread waits for a batch that other threads move: it polls for a moment, then sleeps. */
#ifndef WH_CORE_WAIT_H
#define WH_CORE_WAIT_H

#include <stdint.h>

struct wh_batch;

/* ns that a wait polls at most: about what waking a thread takes. */
#define WH_PATIENCE_MOST 32768
#define WH_PATIENCE_LEAST 1024

/* How long the next wait for a batch of the same peer polls, if this one, which polled for
 * `patience` ns (0: there was none yet), took so many ns. */
int64_t wh_wait_patience(int64_t patience, int64_t took);

/* Wait until the batch has ended or the deadline (monotonic ns) has passed, or for no reason. Not
 * in an engine without threads. */
void wh_wait_for_batch(struct wh_batch *batch, int64_t deadline);

#endif
