/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport: data connections beside the control connection.
 *
 * tcp.c         the table, a peer's state, fragments waiting to be sent
 * client.c  the initiator's connections: opening, owning, breaking, trying again
 * flow.c    the bytes on them: requests out, responses in
 * client-stage.c  the same for a GPU's memory, through slots of pinned memory
 * server.c  the owner's side: requests in, checked, answered; server-stage.c likewise
 * window.c  a GPU's memory that bytes are received into without slots, on both sides
 *
 * A fragment is cut into slices; a slice is one request on one connection. One that makes a single
 * slice is meant for one connection, the one with the least to do, so that batches spread. The
 * slices of larger ones are pulled by all connections as they have nothing left to send, so that
 * the faster take more, but none takes much more than another has in hand. Requests are pipelined
 * and answered by id.
 */
#ifndef WH_TRANSPORT_TCP_TCP_H
#define WH_TRANSPORT_TCP_TCP_H

#include <sys/uio.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/fragment.h"
#include "core/peer.h"
#include "core/session.h"
#include "net/tls.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/wire.h"

#define TCP_WINDOW 64 /* requests unanswered on one connection */
#define TCP_READ_AHEAD 4 /* of them reads, in slices' worth of bytes */
#define TCP_GATHER_AHEAD 4 /* of them writes, at most, on their way from a GPU into slots */
#define TCP_INLINE (64u << 10) /* what a submission sends by itself */
/* slices that a connection may take of a shared fragment before others do */
#define TCP_AHEAD 2
#define TCP_ATTEMPTS 3 /* how often a slice is sent before its batch fails */
/* Parts of memory in one system call: a slice of 4 KiB blocks, and its head. */
#define TCP_VECTOR 272
#define TCP_IN (16u << 10) /* initiator's receive buffer: headers, small payloads */
#define TCP_SERVER_IN (64u << 10)
#define TCP_TAIL 4096 /* how much of what follows a payload is read along with it */

/* ---- both sides ---------------------------------------------------------------------------- */

/* Bytes received and not yet used. */
struct tcp_in {
	uint8_t *bytes;
	uint32_t start, length, room;
};

/* Add memory to a vector, joined to the last element where they touch. False: full. */
static inline bool tcp_vector_add(struct iovec *vector, int *count, int most, void *base,
				  size_t length)
{
	struct iovec *last = vector + *count - 1;

	if (*count && (char *)last->iov_base + last->iov_len == (char *)base) {
		last->iov_len += length;
		return true;
	}
	if (*count == most)
		return false;
	vector[(*count)++] = (struct iovec){ base, length };
	return true;
}

/* Receive into the vector's `want` bytes and, behind them, into the empty buffer. Returns what
 * recvmsg returns; what went to the buffer is counted there. */
ssize_t tcp_receive(int fd, struct wh_tls *tls, struct iovec *vector, int count, size_t want,
		    struct tcp_in *in, size_t tail);

/* Connect without waiting. The descriptor, or a negative errno. */
int tcp_connect(struct wh_engine *engine, const struct sockaddr_storage *address);

/* ---- the initiator --------------------------------------------------------------------------- */

/* Where in a slice: the run that is being moved and how much of it is. */
struct tcp_walk {
	struct wh_cursor next; /* behind `run` */
	struct wh_extent_pair run;
	uint64_t done; /* bytes of run */
	uint64_t before; /* bytes of the slice before run */
	uint32_t extent; /* number of run in the slice */
};

struct tcp_request {
	struct wh_fragment *fragment; /* NULL: free */
	struct wh_cursor start; /* start.left: its bytes */
	uint64_t id;
	uint32_t count; /* extents */
	uint8_t attempts;
	bool sent;
	/* the kernel could not get at our memory: of the run `fault_index`, at `fault_at` */
	bool fault;
	uint64_t fault_index;
	const void *fault_at;
	struct tcp_stage *stage; /* its bytes go through a slot; NULL: straight */
};

enum tcp_state {
	TCP_CLOSED,
	TCP_CONNECTING,
	TCP_SHAKING, /* the handshake of TLS */
	TCP_GREETING, /* HELLO is out */
	TCP_OPEN,
	TCP_BROKEN, /* an error; its loop is told */
	TCP_ABORTING, /* closed here; the peer is asked to close its side, too */
};

struct tcp_client {
	struct wh_source source;
	struct wh_loop *loop;
	struct tcp_peer *tcp;
	bool latency; /* carries latency batches only */
	struct wh_list mine; /* fragments meant for this connection; under tcp.lock */
	_Atomic uint32_t waiting; /* how many of them */

	pthread_mutex_t lock; /* all below */
	_Atomic bool again; /* somebody came while it was locked */
	_Atomic bool owned; /* by a waiter: the loop keeps off */
	_Atomic bool claimed; /* by a waiter that has not got the lock yet */
	_Atomic uint32_t users; /* threads inside */
	_Atomic uint32_t outstanding; /* slices held */
	uint32_t state;
	struct wh_tls *tls; /* NULL: plain */
	uint32_t number; /* of this connection, for ABORT */
	int error; /* why it broke */
	uint32_t armed; /* what its loop waits for, once */
	int64_t trouble_since; /* connecting has failed since; 0: no trouble */
	int64_t used; /* when it last moved something */
	uint64_t moved; /* bytes sent and received, ever */
	struct wh_task cleanup;
	bool idle_close;
	struct wh_abort abort;
	struct wh_timer retry;

	struct tcp_request requests[TCP_WINDOW];
	uint64_t sequence;
	uint64_t read_bytes; /* asked for and not yet here */
	uint32_t gathering, gather_most; /* slices of writes that are on their way into slots */
	/* Sending. */
	uint8_t queue[TCP_WINDOW]; /* slices to be sent, a ring */
	uint32_t queue_start, queue_count;
	struct tcp_request *sending;
	uint8_t *head; /* request and extents of `sending` */
	size_t head_length, head_sent;
	struct tcp_walk out;
	uint64_t out_left; /* payload bytes of `sending` */
	/* Receiving. */
	struct tcp_in in;
	struct wh_response response;
	struct tcp_request *receiving;
	struct tcp_walk into;
	uint64_t into_left;
	uint64_t bad[WH_REQUEST_EXTENTS / 64]; /* extents that the owner refused */
};

/* A peer, as tcp sees it. */
struct tcp_peer {
	struct wh_peer *peer;
	pthread_mutex_t lock; /* the lists, the fragments' cursors */
	struct wh_list shared; /* large fragments, of which each connection takes its part */
	struct sockaddr_storage address;
	_Atomic bool lost;
	_Atomic uint32_t numbers;
	_Atomic uint32_t turn; /* the connection that is told first of the next shared fragment */
	struct wh_timer idle;
	unsigned count; /* connections for bulk; the latency connection is behind them */
	_Atomic(struct tcp_client *) clients[]; /* NULL: not needed yet */
};

struct tcp_client *tcp_client_new(struct tcp_peer *tcp, bool latency);
/* On loop 0. Nothing is outstanding. */
void tcp_client_free(struct tcp_client *client);
/* Get it going: connect, pull, send, receive; on any thread. */
void tcp_client_pump(struct tcp_client *client);
/* The same without receiving: a submission does not do the work of others. `watched`: somebody will
 * poll or wait for it, so that the loop need not. */
void tcp_client_push(struct tcp_client *client, bool watched);
/* Have its loop get it going, unless a waiter comes first. Without `now` it is enough that it finds
 * the work when it has its next answer. */
void tcp_client_kick(struct tcp_client *client, bool now);
/* As a waiter: own it until the batch is done or the deadline. */
void tcp_client_own(struct tcp_client *client, struct wh_batch *batch, int64_t deadline);
/* Break it off; slices in flight are sent again, or dropped when cancelled. */
void tcp_client_break(struct tcp_client *client, int error);
/* Break it off; slices in flight fail. */
void tcp_client_lose(struct tcp_client *client, int error, const char *text);
bool tcp_client_carries(struct tcp_client *client, const struct wh_batch *batch);
bool tcp_client_is_open(struct tcp_client *client);
/* How it is encrypted; "" if it is not, or not open. */
void tcp_client_describe(struct tcp_client *client, char *out, size_t size);
/* Close it if it has been idle since `before`. */
void tcp_client_retire(struct tcp_client *client, int64_t before);

/* Take the next slice for this connection; false: nothing to send. */
bool tcp_pull(struct tcp_client *client, struct tcp_request *request);

/* Fail what has not been taken yet: what is meant for this connection, and what is for all. */
void tcp_fail_waiting(struct tcp_peer *tcp, struct tcp_client *client, int error, const char *text);

/* In flow.c; under client.lock. Each returns 0, -EAGAIN, or the error that breaks the connection.
 * Fragments that are done go to `done`. */
int tcp_flow_send(struct tcp_client *client, bool owner);
int tcp_flow_receive(struct tcp_client *client, struct wh_list *done);
/* A slice has ended; `finished`: with its bytes moved or refused by the owner. */
void tcp_request_end(struct tcp_client *client, struct tcp_request *request, struct wh_list *done);
void tcp_flow_reset(struct tcp_client *client);
void tcp_fragments_done(struct wh_list *done);

/* In client-stage.c; under client.lock. */

/* A slice of a GPU's memory has been pulled. 1: it can be sent now; 0: it is queued later, by the
 * connection's loop; or a negative errno. */
int tcp_stage_begin(struct tcp_client *client, struct tcp_request *request);
/* The bytes of the slice, where the socket finds them; NULL: in its runs. */
char *tcp_stage_bytes(const struct tcp_request *request);
/* All bytes of a read have come; the slice is ended when they have reached the GPU. `bad`: of these
 * extents none has come. */
void tcp_stage_scatter(struct tcp_client *client, struct tcp_request *request);
/* Is a GPU at work on it, so that it has to be left alone until that has ended? With an error it
 * fails then. */
bool tcp_stage_busy(struct tcp_request *request, bool fail);
/* The slice has ended. */
void tcp_stage_free(struct tcp_client *client, struct tcp_request *request);

/* In window.c. */

struct wh_region_window;
/* Open windows onto those of our regions that are a GPU's. No lock is held. */
void tcp_window_open(const struct wh_fragment *fragment);
/* A region window of those that the fragment's bytes are received through, in slices of so many
 * bytes; NULL: they are not, or it has nothing to do with GPUs. */
const struct wh_region_window *tcp_window_of(const struct wh_fragment *fragment, uint64_t request);
/* A region window of those that the few bytes of a write are read through before they are sent;
 * NULL: they are not. */
const struct wh_region_window *tcp_window_few(const struct wh_fragment *fragment);
/* Are our regions still the memory that they were made of? */
bool tcp_window_current(const struct wh_fragment *fragment);
/* Where the CPU finds the first byte of a run of such a fragment. */
char *tcp_window_at(const struct wh_fragment *fragment, const struct wh_extent_pair *run);
/* Copy bytes to a place in the run. */
void tcp_window_put(const struct wh_fragment *fragment, const struct wh_extent_pair *run, char *at,
		    const uint8_t *from, size_t length);
/* What has come of the slice is in place when this returns. */
void tcp_window_request_end(const struct tcp_request *request);

/* ---- the owner's side --------------------------------------------------------------------------
 */

int tcp_session_accept(struct wh_session *session, int fd, struct wh_tls *tls,
		       const struct wh_hello *hello);
void tcp_session_close(struct wh_session *session);
void tcp_session_abort(struct wh_session *session, uint32_t number);

#endif
