/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues: where the completions of many batches arrive. */
#ifndef WH_CORE_QUEUE_H
#define WH_CORE_QUEUE_H

struct wh_batch;
struct wh_engine;
struct wh_queue;

/* Add a completed batch, unless its last completion is still there. Any thread. */
void wh_queue_put(struct wh_queue *queue, struct wh_batch *batch);
/* The batch is being freed or submitted again: drop its completion if it was not taken. */
void wh_queue_forget(struct wh_queue *queue, struct wh_batch *batch);
/* A batch begins (1) or ceases (-1) to report to the queue. */
void wh_queue_hold(struct wh_queue *queue, int by);
struct wh_engine *wh_queue_engine(const struct wh_queue *queue);

#endif
