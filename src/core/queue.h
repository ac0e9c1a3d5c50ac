/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues: where the completions of many batches arrive. */
#ifndef WH_CORE_QUEUE_H
#define WH_CORE_QUEUE_H

#include <stdint.h>

#include "util/list.h"

struct wh_batch;
struct wh_engine;
struct wh_peer;
struct wh_queue;

/* Part of what reports to a queue: a batch, or a peer that is being opened. */
struct wh_queue_entry {
	struct wh_list link; /* queue.done; zero: not there */
	/* One of them; the other is NULL. Constant, as `user`. */
	struct wh_batch *batch;
	struct wh_peer *peer;
	uint64_t user;
	int32_t status; /* of the completion; set while it is not in the queue */
};

/* Add a completion, unless the entry's last one is still there. Any thread. */
void wh_queue_put(struct wh_queue *queue, struct wh_queue_entry *entry);
/* The batch is being freed or submitted again, or the peer closed: drop a completion that was not
 * taken. */
void wh_queue_forget(struct wh_queue *queue, struct wh_queue_entry *entry);
/* A batch or a peer begins (1) or ceases (-1) to report to the queue. */
void wh_queue_hold(struct wh_queue *queue, int by);
struct wh_engine *wh_queue_engine(const struct wh_queue *queue);

#endif
