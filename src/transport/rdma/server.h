/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side: queue pairs that answer (responders), on loop 0, and the worker, a thread that
 * registers and flushes what peers ask for. */
#ifndef WH_TRANSPORT_RDMA_SERVER_H
#define WH_TRANSPORT_RDMA_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

struct rdma;
struct rdma_bounce;
struct wh_frame;
struct wh_session;
struct wh_source;

/* The transport's functions for sessions. */
int rdma_session_frame(struct wh_session *session, const struct wh_frame *frame,
		       const uint8_t *payload);
void rdma_session_close(struct wh_session *session);
int rdma_session_abort(struct wh_session *session, uint32_t number);
/* A NIC's completion channel of notifications has an event. */
void rdma_notifications_ready(struct wh_source *source, uint32_t events);

/* A job of the worker. `run` is called on its thread, once; `stop`: the engine is closing. */
struct rdma_job {
	struct wh_list link; /* rdma.jobs */
	void (*run)(struct rdma_job *job, bool stop);
};

/* Queue a job; starts the thread. From any thread. False: the queue is full. */
bool rdma_worker_add(struct rdma *rdma, struct rdma_job *job);
/* KEYS has arrived: the worker registers the region, for id 0 bounces[0], for a file the bounce
 * buffer of its file system, then loop 0 sends KEYED. FLUSH likewise. On loop 0; 0, or a negative
 * errno that ends the session. */
int rdma_worker_keys(struct wh_session *session, struct rdma_bounce **bounces, uint32_t nic,
		     uint64_t id);
int rdma_worker_flush(struct wh_session *session, uint32_t number, uint64_t id);
/* Run what is queued, and end the thread. */
void rdma_worker_stop(struct rdma *rdma);

#endif
