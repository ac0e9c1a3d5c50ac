/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport: data connections in addition to the control connection.
 *
 *   tcp.c             the operations table, a peer's state, fragments that wait to be sent
 *   client.c          the initiator's connections: open, own, break, reconnect
 *   flow.c            their bytes: requests out, responses in
 *   client-lent.c     the initiator's slots that it lends to the owner of files on its host
 *   client-stage.c    the initiator's GPU memory and files, through slots
 *   server.c          the owner's connections: accept, turns of work, close
 *   server-receive.c  their requests: decode, check, receive the bytes of writes
 *   server-send.c     their responses, with the bytes of reads
 *   server-regions.c  the regions that requests name: check, enter, leave
 *   server-stage.c    the owner's GPU memory and files, through slots
 *   window.c          GPU memory without slots, through region windows, on both sides
 *
 * A fragment is split into requests, each on one connection. A fragment that fits one request is
 * pinned to the connection with the least work, so that batches spread. Larger fragments are
 * shared: each connection pulls the next request when it has nothing left to send. Faster
 * connections pull more, but none gets far ahead of the others. Requests are pipelined; responses
 * name them by id.
 */
#ifndef WH_TRANSPORT_TCP_TCP_H
#define WH_TRANSPORT_TCP_TCP_H

#include <netinet/in.h>
#include <sys/uio.h>

#include "memory/region-table.h"
#include "memory/region.h"
#include "net/channel.h"
#include "net/control.h"
#include "net/handshake.h"
#include "net/quota.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/lent.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/list.h"
#include "util/log.h"
#include "util/loop.h"
#include "wire/wire.h"

#define TCP_WINDOW 64 /* unanswered requests of one connection */
#define TCP_READ_AHEAD 4 /* of them reads: bytes, in units of the largest request */
/* Of them writes that are being gathered into slots, at most; if other file systems do not answer,
 * twice as many. */
#define TCP_GATHER_AHEAD 4
#define TCP_INLINE (64u << 10) /* bytes; up to this the submitting thread sends a fragment */
/* The loops move fragments of TCP_HANDED bytes and more if more batches are in flight than the
 * submitting thread moves by itself: TCP_INLINE_FEW where there are fewer loops than TCP_FEW_LOOPS.
 * On two CPUs handing over costs a tenth of the speed with 8 in flight, and gains one with 16. */
#define TCP_HANDED (32u << 10) /* bytes; shorter batches are not handed over */
#define TCP_HANDED_READ (128u << 10) /* bytes; nor are longer reads */
#define TCP_FEW_LOOPS 4
#define TCP_INLINE_FEW 8
#define TCP_INLINE_MANY 4
/* requests that a connection may have outstanding beyond any other and still pull shared ones */
#define TCP_AHEAD 2
/* Why one is not open that the kernel has connected: */
#define TCP_UNSERVED "the peer does not answer in time; is it out of descriptors?"
#define TCP_ATTEMPTS 3 /* how often a request is sent before its batch fails */
/* Elements of one system call's vector: a request of 4 KiB blocks, and its header. */
#define TCP_VECTOR 272
#define TCP_IN (16u << 10) /* bytes of the initiator's receive buffer: headers, small payloads */
#define TCP_SERVER_IN (64u << 10) /* bytes of the owner's receive buffer */
#define TCP_SERVER_DIRECT (32u << 10) /* bytes of a write that should not go through it */
#define TCP_TAIL 4096 /* bytes behind a payload that are read in the same system call, at most */

/* ---- both sides -------------------------------------------------------- */

/* A receive buffer. The bytes [start, start + length) are received and not yet used. */
struct tcp_in {
	uint8_t *bytes;
	uint32_t start, length, room;
};

/* Append memory to a vector, or extend the last element if adjacent. False: the vector is full. */
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

/* Receive into the vector's `want` bytes, then up to `tail` bytes into the buffer, without waiting.
 * The vector has room for one more element; NULL if count is 0. Returns what recvmsg() returns and
 * adds to in->length what went to the buffer. */
ssize_t tcp_receive(int fd, struct wh_channel *channel, struct iovec *vector, int count,
		    size_t want, struct tcp_in *in, size_t tail);

/* A connection's number, by which ABORT names it: the lower bits are its index at the initiator,
 * the upper ones count its connects. The owner gives connections whose indices share a loop at the
 * initiator a common loop, too, if both have as many loops. Then both ends of a connection can have
 * one CPU, where CPUs are few; otherwise each loop would need the CPUs of several. */
#define TCP_INDEX_BITS 8

static inline uint32_t tcp_number_next(uint32_t number)
{
	return number + (1u << TCP_INDEX_BITS);
}

static inline unsigned tcp_number_index(uint32_t number)
{
	return number & ((1u << TCP_INDEX_BITS) - 1);
}

/* Start connecting, without waiting. Returns a descriptor that the caller owns, or a negative
 * errno. */
int tcp_connect(struct wh_engine *engine, const struct sockaddr_storage *address);

/* ---- the initiator ----------------------------------------------------- */

/* What tcp keeps in a fragment. */
struct tcp_fragment {
	bool alone; /* pinned to one connection (`owner`); not shared */
	/* some local memory is a GPU's, or a file, and goes through staging slots ... */
	bool staged;
	uint8_t slots; /* ... of this enum wh_slot_use ... */
	struct wh_file_system *system; /* ... which this file system has to itself, if not NULL */
	bool windowed; /* it is a GPU's, and is written by the CPU, through windows */
	bool lent; /* from or to files of the peer, through slots that it was lent */
	bool waits; /* for a file system, of either side, which may hang */
};

static inline struct tcp_fragment *tcp_of(const struct wh_fragment *fragment)
{
	_Static_assert(sizeof(struct tcp_fragment) <= WH_FRAGMENT_STATE, "it fits");
	return (struct tcp_fragment *)(uintptr_t)fragment->state;
}

/* A position in a request: an extent pair and the bytes of it that are done. */
struct tcp_walk {
	struct wh_cursor next; /* behind `pair`, the current extent pair */
	struct wh_extent_pair pair;
	uint64_t done; /* bytes of `pair` that are done */
	uint64_t before; /* bytes of the request in front of `pair` */
	uint32_t extent; /* index of `pair` in the request */
};

/* One request of a fragment, from the pull until its end. It has at most one response. */
struct tcp_request {
	struct wh_fragment *fragment; /* NULL: free */
	struct wh_cursor start; /* in the fragment; start.left: bytes of the request */
	uint64_t id;
	uint32_t count; /* extents */
	uint8_t attempts;
	uint8_t slot; /* its bytes go through this slot, from 1; 0: through the socket */
	bool sent; /* whole; a response is expected */
	bool landed; /* a read: its bytes are here, and count in client.read_bytes no more */
	/* the kernel could not access local memory: item `fault_index`, address `fault_at` */
	bool fault;
	uint64_t fault_index;
	const void *fault_at;
	struct tcp_stage *stage; /* its slot; NULL: the socket uses the memory directly */
};

enum tcp_state {
	TCP_CLOSED,
	TCP_CONNECTING,
	TCP_SHAKING, /* TLS handshake */
	TCP_GREETING, /* HELLO is sent */
	TCP_OPEN,
	TCP_BROKEN, /* an error; the loop will close it */
	TCP_ABORTING, /* closed here; waits for the peer to confirm ABORT */
};

/* One data connection of the initiator. It belongs to one loop; submitters and waiters use it, too,
 * under `lock`. */
struct tcp_client {
	struct wh_source source;
	struct wh_loop *loop;
	struct tcp_peer *tcp;
	bool latency; /* carries latency batches only */
	struct wh_list mine; /* fragments pinned to this connection; under tcp.lock */
	_Atomic uint32_t waiting; /* length of that list */

	pthread_mutex_t lock; /* of all members below that are not atomic */
	_Atomic bool again; /* a thread found it locked: the holder does another turn */
	_Atomic bool owned; /* by a waiter: the loop does not receive */
	_Atomic bool claimed; /* by a waiter that does not have the lock yet */
	_Atomic uint32_t users; /* references: threads inside, stages that the loop has to end */
	_Atomic uint32_t outstanding; /* requests not yet ended */
	_Atomic bool wanted; /* to be opened, though there is nothing to send yet */
	uint32_t state; /* enum tcp_state */
	struct wh_channel *channel; /* NULL: plain */
	uint32_t number; /* tcp_number_next() of it at each connect; at first its index */
	int error; /* why it broke */
	uint32_t armed; /* epoll events, with EPOLLONESHOT; 0: none */
	int64_t failing_since; /* when connecting began to fail; 0: it does not */
	int64_t stepped; /* when it came to its state, of those before TCP_OPEN */
	_Atomic bool unserved; /* the last try was connected, and the peer did not answer in time */
	int64_t used; /* when the last request was started */
	uint64_t moved; /* bytes sent and received, ever */
	/* When tcp_client_watch() saw the last progress, 0: nothing was due; `moved` and the bytes
	 * in the socket's queue then. */
	int64_t progressed;
	uint64_t progressed_moved;
	int progressed_queued;
	struct wh_task cleanup; /* on the loop: close, or schedule another try */
	bool idle_close; /* broken because it was idle: no error */
	bool was_open; /* when it broke: the peer may have requests of it */
	struct wh_abort abort;
	struct wh_timer retry;

	struct tcp_request requests[TCP_WINDOW];
	uint64_t sequence;
	uint64_t read_bytes; /* of outstanding reads */
	uint32_t gathering, gather_most; /* writes being gathered into slots, and their limit */
	uint32_t gathering_files; /* of them writes from files */
	uint32_t waits; /* requests that wait for a file system, or their responses do */
	/* Sending. */
	uint8_t queue[TCP_WINDOW]; /* indices of requests to send (again), a ring */
	uint32_t queue_start, queue_count;
	uint8_t parked[TCP_WINDOW]; /* indices of requests that flow_park() keeps from the queue */
	uint32_t parked_count;
	struct tcp_request *sending;
	uint8_t *head; /* header and extents of `sending`; before that the HELLO */
	size_t head_length, head_sent;
	struct tcp_walk out;
	uint64_t out_left; /* payload bytes of `sending` not yet sent */
	bool corked; /* the last bytes may wait in the socket for those of another request */
	/* Receiving. */
	struct tcp_in in;
	struct wh_response response;
	struct tcp_request *receiving;
	struct tcp_walk into;
	uint64_t into_left; /* payload bytes of `receiving` not yet here */
	uint64_t bad[WH_REQUEST_EXTENTS / 64]; /* one bit per extent that the owner refused */
};

/* The state of one peer. */
struct tcp_peer {
	struct wh_peer *peer;
	/* of all lists of fragments and the fragments' cursors; taken inside client.lock */
	pthread_mutex_t lock;
	struct wh_list shared; /* large fragments, whose requests all bulk connections pull */
	struct sockaddr_storage address;
	_Atomic bool lost;
	unsigned first_loop; /* of clients[0]; the others' loops follow */
	_Atomic bool near; /* the peer is on this machine */
	_Atomic uint32_t changed; /* a futex: wanted connections that were opened, or given up */
	_Atomic uint32_t serving; /* bulk connections that are open */
	_Atomic uint32_t turn; /* the connection that the next shared fragment starts first */
	struct wh_timer look; /* closes idle connections, breaks those that stand still */
	uint32_t inline_most; /* batches; see fragment_hand_over() */
	/* Slots for the bytes of the peer's files: client-lent.c. */
	pthread_mutex_t lend_lock; /* of what is not atomic; held while the peer is asked */
	struct wh_lender lender; /* constant once `lent` is not 0 */
	_Atomic uint32_t losses; /* counts tcp_peer_lost() */
	_Atomic uint32_t lent; /* `losses` + 1 when the peer took the slots; 0: never */
	uint32_t lend_losses; /* `losses` when the peer was asked ... */
	bool lending; /* ... and has not answered */
	int64_t lend_at; /* ns of wh_now(): no new attempt before */
	char lend_refused[WH_REFUSAL]; /* why the last attempt has failed */
	unsigned count; /* bulk connections; clients[count] is the latency connection */
	_Atomic(struct tcp_client *) clients[]; /* NULL: not used yet */
};

/* NULL: no memory. The connection opens when it has something to send. */
struct tcp_client *tcp_client_new(struct tcp_peer *tcp, unsigned index);
/* Close it, with nothing outstanding, and let it do nothing more of itself. On loop 0; blocks until
 * its loop and all users leave it. */
void tcp_client_shut(struct tcp_client *client);
/* Free it, when all connections of the peer are shut. On loop 0. */
void tcp_client_free(struct tcp_client *client);
/* Connect, pull, send and receive as far as possible without waiting. On any thread; if another one
 * has the lock, that one does the work. */
void tcp_client_pump(struct tcp_client *client);
/* The same without receiving: a submitter does not do the work of other batches. `watched`: a
 * thread will poll or wait for the batch, so that the loop need not watch the socket. */
void tcp_client_push(struct tcp_client *client, bool watched);
/* Have the loop do the work, unless a waiter comes first. If `now` is false and a response is
 * outstanding, the loop is not woken: it finds the work when the response arrives. */
void tcp_client_kick(struct tcp_client *client, bool now);
/* Open the connection without anything to send; tcp_peer.changed tells when `wanted` is false
 * again. */
void tcp_client_want(struct tcp_client *client);
/* As a waiter: do the connection's work until the batch is done or the deadline passes. Blocks, or
 * spins in spin mode. Deadline 0: do one turn. Returns at once if another waiter owns it. */
void tcp_client_own(struct tcp_client *client, struct wh_batch *batch, int64_t deadline);
/* Close the connection, if it is not closed; unfinished requests are sent again, or end if they are
 * cancelled. */
void tcp_client_break(struct tcp_client *client, int error);
/* Close the connection; unfinished requests fail with the error and text. */
void tcp_client_lose(struct tcp_client *client, int error, const char *text);
/* Does it have unfinished requests of the batch? */
bool tcp_client_carries(struct tcp_client *client, const struct wh_batch *batch);
bool tcp_client_is_open(struct tcp_client *client);
/* Is it, or was its last try, connected without an answer of the peer? */
bool tcp_client_is_unserved(struct tcp_client *client);
/* Why the connection was closed or could not be opened last, a negative errno; 0: neither. */
int tcp_client_error(struct tcp_client *client);
/* Describe its encryption; `out` is unchanged if it is not encrypted, or not open. */
void tcp_client_describe(struct tcp_client *client, char *out, size_t size);
/* Close it if nothing is outstanding and it was last used before the time `before`; free the
 * buffers of a closed one. Does nothing if it is locked. */
void tcp_client_retire(struct tcp_client *client, int64_t before);

/* Break it if bytes are due from the peer, and for `patience` ns none has gone either way: some
 * were lost on the way, as in a proxy, and both sides would wait for ever. True: a request is
 * outstanding, so call again soon. */
bool tcp_client_watch(struct tcp_client *client, int64_t patience);

/* Take the next request for this connection, under client.lock. False: nothing to send for now. */
bool tcp_pull(struct tcp_client *client, struct tcp_request *request);

/* Fail all that no connection has pulled yet: fragments pinned to `client`, and shared fragments
 * unless it is the latency connection or another one is open. `client` NULL: shared ones only. */
void tcp_fail_waiting(struct tcp_peer *tcp, struct tcp_client *client, int error, const char *text);
/* Instead, share what is pinned to `client` with the connections that are open; tcp_peer_kick()
 * starts them. False: none is open. */
bool tcp_share_waiting(struct tcp_peer *tcp, struct tcp_client *client);
/* Have the loops of the bulk connections work; no client.lock may be held. */
void tcp_peer_kick(struct tcp_peer *tcp);

/* In flow.c; under client.lock. Both return 0, -EAGAIN, or the error that breaks the connection,
 * and never wait. Completed fragments go to `done`, for tcp_fragments_done() after unlocking. */
int tcp_flow_send(struct tcp_client *client, bool owner);
int tcp_flow_receive(struct tcp_client *client, struct wh_list *done);
/* Release a request that has succeeded or failed. */
void tcp_request_end(struct tcp_client *client, struct tcp_request *request, struct wh_list *done);
/* Local memory of the request could not be accessed: fail all its transfers, as nobody knows which
 * of its bytes have moved. */
void tcp_request_fault(struct tcp_request *request);
/* Forget what was half sent or received, after the connection has been closed. */
void tcp_flow_reset(struct tcp_client *client);
/* Complete the fragments in the list. Not under client.lock or tcp.lock. */
void tcp_fragments_done(struct wh_list *done);

/* In client-stage.c; under client.lock. */

/* The fragment of the list from which the connection pulls next; NULL: none. What waits for a file
 * system is overtaken by what does not. Under tcp.lock, too. */
struct wh_fragment *tcp_stage_choose(struct tcp_client *client, const struct wh_list *list);
/* Get a slot for a request of GPU memory and, for a write, gather its bytes. 1: it can be sent now;
 * 0: the connection's loop queues it later; or a negative errno. */
int tcp_stage_begin(struct tcp_client *client, struct tcp_request *request);
/* The request's bytes in its slot. NULL: it has no slot. */
char *tcp_stage_bytes(const struct tcp_request *request);
/* All bytes of a read are in the slot: copy them to the GPU, except extents in client.bad, and then
 * end the request. */
void tcp_stage_scatter(struct tcp_client *client, struct tcp_request *request);
/* Does the request wait for a slot or a GPU? Then it must be left alone until that has ended.
 * `fail`: it is to end then, and not to be sent. */
bool tcp_stage_busy(struct tcp_request *request, bool fail);
/* Return the request's slot, if it has one. */
void tcp_stage_free(struct tcp_client *client, struct tcp_request *request);

/* In client-lent.c. */

/* Lend the peer slots for its files, if it is on this host and has none yet. Waits for the peer. 0,
 * or -EINPROGRESS in a plan that must not wait. */
int tcp_lend(struct tcp_peer *tcp);
/* Is any remote region of the fragment a file, or are `all`? One that is gone is none. */
bool tcp_is_of_files(struct wh_peer *peer, const struct wh_fragment *fragment, bool all);
/* May requests of this fragment, whose local side is host memory, name slots? */
bool tcp_lent_fits(struct tcp_peer *tcp, const struct wh_fragment *fragment);
/* Give the request a slot, if that is worth it and one is free. What it had before, on a connection
 * that is closed, is not used again: the peer may still write to it. False: none is free. */
bool tcp_lent_begin(struct tcp_peer *tcp, struct tcp_request *request);
/* The peer has answered the request, or never hears of it. */
void tcp_lent_end(struct tcp_peer *tcp, struct tcp_request *request);
/* Describe, for the batch's fragments that have ended or run, how the bytes of the peer's files go.
 * False: no fragment concerns one. */
bool tcp_lent_describe(struct tcp_peer *tcp, const struct wh_batch *batch, bool *lent, char *line,
		       size_t size);

/* In window.c. */

struct wh_region_window;
/* Open the region windows of the fragment's local GPU regions. May block; no lock may be held. */
void tcp_window_open(const struct wh_fragment *fragment);
/* One of the region windows through which the fragment's bytes can be received, in requests of up
 * to `request` bytes. NULL: slots are faster, a window is missing, or no local GPU memory. */
const struct wh_region_window *tcp_window_of(const struct wh_fragment *fragment, uint64_t request);
/* One of the region windows through which the CPU can read a small fragment into a slot. NULL: too
 * many bytes, a window is missing, or no local GPU memory. */
const struct wh_region_window *tcp_window_few(const struct wh_fragment *fragment);
/* Do the fragment's local regions still name the memory that was registered? */
bool tcp_window_current(const struct wh_fragment *fragment);
/* The CPU's address of the first byte of an extent pair, in a region window if it has one. */
char *tcp_window_at(const struct wh_fragment *fragment, const struct wh_extent_pair *pair);
/* Copy bytes to the address `at` within the extent pair. */
void tcp_window_put(const struct wh_fragment *fragment, const struct wh_extent_pair *pair, char *at,
		    const uint8_t *from, size_t length);
/* Flush the request's region windows: on return its bytes are visible in GPU memory, or the
 * fragment fails with -ESTALE. */
void tcp_window_request_end(const struct tcp_request *request);

/* ---- the owner's side -------------------------------------------------- */

/* On loop 0. Serve a data connection whose handshake is complete; takes ownership of fd and channel
 * in every case. 0, or -EBUSY: a limit is reached, or no memory; the reason is logged. */
int tcp_session_accept(struct wh_session *session, int fd, struct wh_channel *channel,
		       const struct wh_hello *hello);
/* On loop 0. Close all connections, or the one with the given number; each blocks until the
 * connection's loop has stopped serving it. The former waits for file systems, up to the setting
 * `timeout`. The latter does not: see transport.h. */
void tcp_session_close(struct wh_session *session);
int tcp_session_abort(struct wh_session *session, uint32_t number);

#endif
