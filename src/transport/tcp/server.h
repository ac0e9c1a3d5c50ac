/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a data connection. server.c: the connection, requests and answers.
 * server-stage.c: requests for a GPU's memory, whose bytes go through slots of pinned memory.
 */
#ifndef WH_TRANSPORT_TCP_SERVER_H
#define WH_TRANSPORT_TCP_SERVER_H

#include "gpu/staging.h"
#include "transport/tcp/tcp.h"

#define TCP_JOBS_MAX TCP_WINDOW /* requests under way on one connection */
#define TCP_CHUNKS 4 /* of a connection's reads that are staged, at a time */

/* An extent as it is checked. */
struct tcp_extent {
	uint64_t region, offset, length;
	int error; /* positive errno; 0: good */
};

/* A read being answered. */
struct tcp_job {
	struct wh_list link;
	uint32_t size; /* bytes of memory */
	uint32_t count, at; /* extents, and the one being sent; staged: the one being gathered */
	uint64_t skip, left;
	uint64_t ungathered; /* staged: bytes that no chunk has yet */
	bool staged;
	struct wh_list chunks; /* staged: struct tcp_chunk, in order */
	uint32_t head_length, head_sent;
	uint8_t *head;
	struct tcp_extent extents[];
};

/* A write to a GPU's memory: it is answered when its last chunk has arrived there. */
struct tcp_write {
	struct wh_list link; /* server.answers, once that is so */
	struct wh_request request;
	uint32_t chunks; /* not there yet, and one while it is being received */
	struct tcp_extent extents[];
};

static inline int64_t tcp_write_size(const struct wh_request *request)
{
	return (int64_t)(sizeof(struct tcp_write) + request->count * sizeof(struct tcp_extent));
}

struct tcp_server {
	struct wh_source source;
	struct wh_spinner spinner;
	struct wh_loop *loop;
	struct wh_tls *tls; /* NULL: plain */
	struct wh_engine *engine;
	struct wh_session *session; /* on loop 0 */
	struct wh_quota *quota; /* the session's, likewise */
	int64_t held; /* on the guest's account */
	struct wh_served *served; /* the session's, which stays until this has stopped */
	struct wh_list link; /* session's list, on loop 0 */
	struct wh_task bury; /* to loop 0: free it */
	bool dead;
	uint32_t number;
	uint32_t events; /* what it waits for */
	uint64_t moved; /* bytes, in and out */

	struct tcp_in in;
	struct wh_request request;
	bool receiving; /* the payload of `request` */
	bool windowed; /* ... through CPU windows */
	bool singly; /* ... one extent at a time, for one of them cannot be stored */
	struct tcp_extent *extents; /* of `request`; write: in that, else in `own` */
	struct tcp_extent *own; /* WH_REQUEST_EXTENTS of them */
	uint32_t at;
	uint64_t skip, left;
	uint8_t *trash;

	uint8_t *out;
	uint32_t out_start, out_length;
	struct wh_list jobs;
	uint32_t job_count;

	/* What is staged. */
	struct tcp_write *write; /* being received; NULL: it is not staged */
	struct tcp_chunk *chunk; /* that its bytes go to; NULL: none yet */
	struct wh_list answers; /* struct tcp_write that are there */
	uint32_t write_count; /* writes not answered */
	uint32_t chunk_count; /* that exist */
	uint32_t read_chunks; /* of them those of reads under way */
	bool wants_slot; /* to receive into: nothing is taken in before */
	bool failed; /* there is no memory to go on with */
	bool stalled; /* what is to be sent next is still on the GPU */
	_Atomic uint32_t in_flight; /* chunks that a GPU is moving */
};

/* ---- server.c ----------------------------------------------------------------------------------
 */

/* Something that it has waited for is there: go on. `came`: bytes may have come. On its loop. */
void tcp_server_turn(struct tcp_server *server, bool came);
/* Memory that is taken, or (negative) given back, on account of the peer. On its loop, before it
 * stops. */
void tcp_server_charge(struct tcp_server *server, int64_t bytes);
/* The last chunk of a connection that has ended is gone. */
void tcp_server_bury(struct tcp_server *server);

/* ---- window.c ---------------------------------------------------------------------------------
 */

/* Is the payload of the write at hand received through CPU windows? Opens them. */
bool tcp_window_takes(struct tcp_server *server);
/* No more of it comes: what has is in place when this returns. */
void tcp_window_end(struct tcp_server *server);

/* ---- server-stage.c
 * ------------------------------------------------------------------------------ */

/* Move along a list of extents by bytes that have been moved. */
void tcp_extents_advance(const struct tcp_extent *extents, uint32_t *at, uint64_t *skip,
			 uint64_t bytes);

/* Does any of the good ones lie in a GPU's memory? */
bool tcp_extents_on_gpu(struct tcp_server *server, const struct tcp_extent *extents,
			uint32_t count);

/* The payload of a write goes through slots from now on. 0 or -ENOMEM. */
int tcp_stage_write(struct tcp_server *server);
/* Where the next payload bytes go. Returns how many; 0: a slot has to be waited for. */
size_t tcp_stage_into(struct tcp_server *server, struct iovec *vector);
/* So many have come there. */
void tcp_stage_received(struct tcp_server *server, size_t bytes);
/* All of it has come. */
void tcp_stage_end_write(struct tcp_server *server);

/* Gather the next bytes of the reads under way, as far as there are slots. -ENOMEM, -ESTALE and
 * others. */
int tcp_stage_read(struct tcp_server *server);
/* What can be sent of it now; 0: nothing yet. */
size_t tcp_stage_out_of(struct tcp_job *job, struct iovec *vector);
/* So many have been sent. */
void tcp_stage_sent(struct tcp_server *server, struct tcp_job *job, size_t bytes);
void tcp_stage_drop_read(struct tcp_server *server, struct tcp_job *job);

/* The connection ends: when it returns no GPU moves anything for it. */
void tcp_stage_stop(struct tcp_server *server);

#endif
