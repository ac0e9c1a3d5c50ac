/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues: where the completions of many batches arrive. */
#ifndef WH_CORE_QUEUE_H
#define WH_CORE_QUEUE_H

struct wh_batch;
struct wh_engine;
struct wh_queue;

void wh_queue_put(struct wh_queue *queue, struct wh_batch *batch);
/* The batch is freed or submitted again: its completion, if it is still there, is nobody's. */
void wh_queue_forget(struct wh_queue *queue, struct wh_batch *batch);
void wh_queue_hold(struct wh_queue *queue, int by);
struct wh_engine *wh_queue_engine(const struct wh_queue *queue);

#endif
