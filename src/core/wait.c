/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the end of a batch. */
#include "core/wait.h"

#include <sched.h>

#include "core/batch.h"
#include "core/peer.h"
#include "util/clock.h"
#include "util/futex.h"

/* If more batches than these are in flight to a peer, as the program sees it, the next one ends
 * soon after the last. Then a thread that slept for each would be woken thousands of times a
 * second, and each time whoever moves the bytes would stop to do that, for up to 20 us on a virtual
 * machine. A program that waits for a batch or two sleeps at once. */
#define MANY_IN_FLIGHT 4

int64_t wh_wait_patience(int64_t patience, int64_t took)
{
	/* It would have paid to poll to the end. */
	if (took <= WH_PATIENCE_MOST)
		return WH_PATIENCE_MOST;
	/* In vain. Halved each time, so that slow traffic costs next to no CPU. */
	return patience / 2 > WH_PATIENCE_LEAST ? patience / 2 : WH_PATIENCE_LEAST;
}

static void batch_sleep(struct wh_batch *batch, int64_t deadline)
{
	uint32_t running = WH_BATCH_RUNNING;

	if (atomic_compare_exchange_strong(&batch->state, &running, WH_BATCH_WAITED) ||
	    running == WH_BATCH_WAITED)
		wh_futex_wait(&batch->state, WH_BATCH_WAITED, deadline);
}

void wh_wait_for_batch(struct wh_batch *batch, int64_t deadline)
{
	_Atomic int64_t *learned = &batch->peer->patience;
	int64_t start, now, until, patience;

	if (wh_batch_unseen(batch) <= MANY_IN_FLIGHT) {
		batch_sleep(batch, deadline);
		return;
	}
	start = now = wh_now();
	patience = atomic_load_explicit(learned, memory_order_relaxed);
	until = deadline - start < patience ? deadline : start + patience;
	/* Others get the CPU meanwhile: where there are few, those that move the bytes. */
	for (; now < until && wh_batch_running(batch); now = wh_now())
		sched_yield();
	if (wh_batch_running(batch)) {
		batch_sleep(batch, deadline);
		now = wh_now();
	}
	patience = wh_wait_patience(patience, wh_batch_running(batch) ? INT64_MAX : now - start);
	atomic_store_explicit(learned, patience, memory_order_relaxed);
}
