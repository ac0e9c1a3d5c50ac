/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of the initiator's data connections: requests out, responses in. Everything runs under
 * client.lock and never waits.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "memory/memory.h"
#include "transport/tcp/tcp.h"
#include "util/clock.h"
#include "window/copy.h"
#include "wire/bytes.h"

/* ---- walking through a request ----------------------------------------- */

static void walk_start(struct tcp_walk *walk, const struct tcp_request *request)
{
	*walk = (struct tcp_walk){ .next = request->start };
	wh_fragment_next(request->fragment, &walk->next, request->start.left, &walk->pair);
}

/* Advance to the next extent pair. False: the end of the request. */
static bool walk_step(struct tcp_walk *walk, const struct wh_fragment *fragment)
{
	walk->before += walk->pair.length;
	walk->done = 0;
	walk->extent++;
	return wh_fragment_next(fragment, &walk->next, walk->next.left, &walk->pair);
}

static bool extent_is_bad(const struct tcp_client *client, uint32_t extent)
{
	return client->bad[extent / 64] >> (extent % 64) & 1;
}

/* The address of the walk's next byte: in a region window, in a slot, or in local memory. */
static char *walk_at(const struct tcp_walk *walk, const struct tcp_request *request)
{
	char *staged = tcp_stage_bytes(request);

	if (tcp_of(request->fragment)->windowed)
		return tcp_window_at(request->fragment, &walk->pair) + walk->done;
	return (staged ? staged + walk->before : walk->pair.local) + walk->done;
}

/* Fill a vector from the walk's position, without advancing it. `skip_bad`: leave out the extents
 * that the owner refused. Returns the bytes in the vector. */
static size_t walk_vector(const struct tcp_client *client, const struct tcp_walk *from,
			  const struct tcp_request *request, bool skip_bad, struct iovec *vector,
			  int *count)
{
	struct tcp_walk walk = *from;
	size_t bytes = 0, length;

	do {
		length = walk.pair.length - walk.done;
		if (skip_bad && extent_is_bad(client, walk.extent))
			continue;
		if (!tcp_vector_add(vector, count, TCP_VECTOR - 1, walk_at(&walk, request), length))
			break;
		bytes += length;
	} while (walk_step(&walk, request->fragment));
	return bytes;
}

/* Advance the walk by bytes that were sent or received. */
static void walk_advance(const struct tcp_client *client, struct tcp_walk *walk,
			 const struct wh_fragment *fragment, bool skip_bad, uint64_t bytes)
{
	while (bytes) {
		uint64_t length = walk->pair.length - walk->done;

		if (skip_bad && extent_is_bad(client, walk->extent)) {
			walk_step(walk, fragment);
			continue;
		}
		if (bytes < length) {
			walk->done += bytes;
			return;
		}
		bytes -= length;
		walk_step(walk, fragment);
	}
}

/* ---- local memory that is not mapped ----------------------------------- */

/* The kernel could not access some of the request's memory from the walk's position on. The stream
 * is out of step, so the connection has to break; only this request fails. Find the address at
 * fault. */
static int request_note_fault(struct tcp_request *request, const struct tcp_walk *from)
{
	struct tcp_walk walk = *from;

	request->fault = true;
	request->fault_index = walk.pair.index;
	request->fault_at = walk.pair.local;
	/* What is received fills the memory up to the fault. What is sent is refused by the whole
	 * buffer, which may begin with memory that can be read. */
	do {
		uint64_t at = (uint64_t)(uintptr_t)walk.pair.local;

		if (request->fragment->op == WH_READ || wh_memory_readable(at, walk.pair.length))
			continue;
		request->fault_index = walk.pair.index;
		request->fault_at = walk.pair.local;
		break;
	} while (walk_step(&walk, request->fragment));
	return -EFAULT;
}

void tcp_request_fault(struct tcp_request *request)
{
	struct wh_fragment *fragment = request->fragment;
	struct tcp_walk walk;

	wh_fragment_fail(fragment, fragment->blocks ? UINT64_MAX : request->fault_index, -EFAULT,
			 "local memory at %p cannot be %s: %s; was it unmapped after it was "
			 "registered?",
			 request->fault_at, fragment->op == WH_READ ? "written" : "read",
			 strerror(EFAULT));
	walk_start(&walk, request);
	do {
		if (!fragment->blocks)
			wh_fragment_fail(fragment, walk.pair.index, -EFAULT,
					 "not moved: other memory of its request cannot be "
					 "accessed");
	} while (walk_step(&walk, fragment));
}

/* Can the memory of an extent pair vanish, so that the CPU must not copy it itself? */
static bool pair_may_vanish(const struct wh_fragment *fragment, const struct wh_extent_pair *pair)
{
	return !tcp_of(fragment)->staged &&
	       wh_region_may_vanish(wh_fragment_local(fragment, pair->index));
}

/* ---- requests ---------------------------------------------------------- */

void tcp_request_end(struct tcp_client *client, struct tcp_request *request, struct wh_list *done)
{
	struct wh_fragment *fragment = request->fragment;
	uint64_t bytes = request->start.left;

	if (fragment->op == WH_READ && !request->landed)
		client->read_bytes -= bytes;
	client->waits -= tcp_of(fragment)->waits;
	/* A failed request, too: none of its bytes may arrive later. */
	if (tcp_of(fragment)->windowed)
		tcp_window_request_end(request);
	tcp_stage_free(client, request);
	request->fragment = NULL;
	atomic_fetch_sub(&client->outstanding, 1);
	if (atomic_fetch_sub(&fragment->left, bytes) == bytes)
		wh_list_append(done, &fragment->link);
}

void tcp_fragments_done(struct wh_list *done)
{
	struct wh_list *link, waited;

	/* Whom this wakes may take this thread's CPU at once: let it find all of them done, instead
	 * of sleeping again for each. */
	wh_list_init(&waited);
	while ((link = wh_list_take(done))) {
		struct wh_fragment *fragment = wh_container(link, struct wh_fragment, link);

		if (wh_batch_is_waited(fragment->batch))
			wh_list_append(&waited, link);
		else
			wh_fragment_done(fragment);
	}
	while ((link = wh_list_take(&waited)))
		wh_fragment_done(wh_container(link, struct wh_fragment, link));
}

/* ---- sending ----------------------------------------------------------- */

static int flow_encode(struct tcp_client *client, struct tcp_request *request)
{
	struct wh_extent_writer writer;
	struct wh_request header = {
		.op = (uint8_t)request->fragment->op,
		.count = request->count,
		.slot = request->slot,
		.id = request->id,
		.bytes = request->start.left,
	};
	struct tcp_walk walk;

	wh_extents_start(&writer, client->head + WH_REQUEST_SIZE, WH_REQUEST_META);
	walk_start(&walk, request);
	do {
		struct wh_extent extent = { walk.pair.remote, walk.pair.offset, walk.pair.length };
		int error = wh_extents_put(&writer, &extent);

		/* Never fails: WH_REQUEST_EXTENTS extents of at most 31 bytes fit. */
		if (error)
			return error;
	} while (walk_step(&walk, request->fragment));
	header.meta = (uint32_t)wh_extents_end(&writer);
	wh_request_encode(client->head, &header);
	client->head_length = WH_REQUEST_SIZE + header.meta;
	client->head_sent = 0;
	return 0;
}

/* Pull new requests until one can be sent at once. Staged requests are queued later, by the loop,
 * unless they are ready at once. */
static int flow_pull(struct tcp_client *client, struct tcp_request **out)
{
	struct tcp_request *request;
	int ready;

	do {
		if (atomic_load_explicit(&client->outstanding, memory_order_relaxed) >=
			    TCP_WINDOW ||
		    (client->gathering >= client->gather_most && !client->gathering_files))
			return -EAGAIN;
		for (request = client->requests; request->fragment;)
			request++;
		if (!tcp_pull(client, request))
			return -EAGAIN;
		atomic_fetch_add(&client->outstanding, 1);
		request->attempts = 0;
		request->sent = request->fault = request->landed = false;
		request->stage = NULL;
		request->slot = 0;
		if (request->fragment->op == WH_READ)
			client->read_bytes += request->start.left;
		client->waits += tcp_of(request->fragment)->waits;
		ready = tcp_of(request->fragment)->staged ? tcp_stage_begin(client, request) : 1;
	} while (!ready);
	*out = request;
	return ready < 0 ? ready : 0;
}

/* Take a queued request, whose bytes are in a slot or which has to be sent again, or pull a new
 * one. A staged request to be sent again is gathered again first, and usually queued later. */
static int flow_take_queued(struct tcp_client *client, struct tcp_request **out)
{
	struct tcp_request *request;
	int ready;

	do {
		if (!client->queue_count)
			return flow_pull(client, out);
		request = &client->requests[client->queue[client->queue_start]];
		client->queue_start = (client->queue_start + 1) % TCP_WINDOW;
		client->queue_count--;
		ready = tcp_of(request->fragment)->staged && !request->stage ?
				tcp_stage_begin(client, request) :
				1;
	} while (!ready);
	*out = request;
	return ready < 0 ? ready : 0;
}

/* Copy the bytes of a write to its slot. 0 or -EFAULT. */
static int flow_fill_slot(struct tcp_client *client, struct tcp_request *request)
{
	char *to = wh_lender_slot(&client->tcp->lender, request->slot);
	struct iovec vector[TCP_VECTOR];
	uint64_t left = request->start.left;
	struct tcp_walk walk;
	size_t length, taken;
	int count;

	walk_start(&walk, request);
	for (; left; left -= length, to += length) {
		length = walk.pair.length - walk.done;
		if (!pair_may_vanish(request->fragment, &walk.pair)) {
			memcpy(to, walk.pair.local + walk.done, length);
		} else {
			count = 0;
			length = walk_vector(client, &walk, request, false, vector, &count);
			taken = wh_memory_take(wh_engine_process(wh_peer_engine(client->tcp->peer)),
					       to, vector, count, length);
			if (taken < length) {
				walk_advance(client, &walk, request->fragment, false, taken);
				return request_note_fault(request, &walk);
			}
		}
		walk_advance(client, &walk, request->fragment, false, length);
	}
	return 0;
}

/* Does another request of this connection write to the same region through a slot? */
static bool flow_writes_by_slot(const struct tcp_client *client, const struct tcp_request *request)
{
	struct tcp_walk mine, walk;

	walk_start(&mine, request);
	for (unsigned i = 0; i < TCP_WINDOW; i++) {
		const struct tcp_request *other = &client->requests[i];

		if (!other->fragment || !other->slot || other->fragment->op != WH_WRITE)
			continue;
		walk_start(&walk, other);
		if (walk.pair.remote == mine.pair.remote)
			return true;
	}
	return false;
}

/* No slot is free for the request. Keep a write until the next response, if another one to its file
 * has a slot: the owner writes one after the other, so to send the bytes by the socket meanwhile
 * costs both processes a copy and gains nothing. Reads lose by waiting. What goes to another file
 * does not wait for this one. */
static bool flow_park(struct tcp_client *client, const struct tcp_request *request)
{
	if (request->fragment->op != WH_WRITE || !flow_writes_by_slot(client, request))
		return false;
	client->parked[client->parked_count++] = (uint8_t)(request - client->requests);
	return true;
}

static void flow_unpark(struct tcp_client *client)
{
	for (uint32_t i = 0; i < client->parked_count; i++)
		client->queue[(client->queue_start + client->queue_count++) % TCP_WINDOW] =
			client->parked[i];
	client->parked_count = 0;
}

/* Start sending the next request. */
static int flow_next_request(struct tcp_client *client)
{
	struct tcp_request *request = NULL;
	int error;

	do {
		error = flow_take_queued(client, &request);
		if (error)
			return error;
	} while (!tcp_lent_begin(client->tcp, request) && flow_park(client, request));
	request->id = client->sequence++ * TCP_WINDOW + (uint64_t)(request - client->requests);
	request->sent = false;
	error = flow_encode(client, request);
	if (!error && request->slot && request->fragment->op == WH_WRITE)
		error = flow_fill_slot(client, request);
	if (error) {
		tcp_lent_end(client->tcp, request); /* the peer has not heard of it */
		return error;
	}
	client->sending = request;
	client->used = wh_now();
	client->out_left =
		request->fragment->op == WH_WRITE && !request->slot ? request->start.left : 0;
	walk_start(&client->out, request);
	return 0;
}

/* Does another request follow the one that is being sent? A guess: it may be cancelled meanwhile.
 * Of short reads, too: several of them arrive as one packet, and wake the owner once. */
static bool flow_continues(const struct tcp_client *client)
{
	return !client->channel &&
	       (client->out_left || client->sending->start.left <= TCP_HANDED_READ) &&
	       (client->queue_count ||
		atomic_load_explicit(&client->waiting, memory_order_relaxed)) &&
	       atomic_load_explicit(&client->outstanding, memory_order_relaxed) < TCP_WINDOW;
}

/* Nothing follows, for now. */
static void flow_push(struct tcp_client *client)
{
	if (client->corked)
		wh_socket_push(client->source.fd);
	client->corked = false;
}

int tcp_flow_send(struct tcp_client *client, bool owner)
{
	struct iovec vector[TCP_VECTOR];
	struct wh_fragment *fragment;
	size_t bytes, head;
	int count, error;
	ssize_t got;

	if (wh_channel_flush(client->channel))
		return -errno;
	for (;;) {
		if (!client->sending) {
			error = flow_next_request(client);
			if (error) {
				flow_push(client);
				return error;
			}
		}
		/* A waiter wants the lock: let it continue, without a hand-over later. */
		if (!owner && atomic_load_explicit(&client->claimed, memory_order_relaxed))
			return -EAGAIN;
		fragment = client->sending->fragment;
		count = 0;
		head = client->head_length - client->head_sent;
		bytes = head;
		if (head)
			vector[count++] = (struct iovec){ client->head + client->head_sent, head };
		if (client->out_left)
			bytes += walk_vector(client, &client->out, client->sending, false, vector,
					     &count);
		/* With 64 KiB in each the end of a request would be a second packet, which takes
		 * the kernel as long as a full one. */
		client->corked = flow_continues(client);
		got = client->corked ?
			      wh_socket_send_more(client->source.fd, vector, count) :
			      wh_channel_send(client->source.fd, client->channel, vector, count);
		if (got < 0 && errno == EFAULT)
			return request_note_fault(client->sending, &client->out);
		if (got < 0)
			return errno == EINTR ? -EAGAIN : -errno;
		client->moved += (uint64_t)got;
		if ((size_t)got <= head) {
			client->head_sent += (size_t)got;
		} else {
			client->head_sent = client->head_length;
			client->out_left -= (uint64_t)got - head;
			if (client->out_left)
				walk_advance(client, &client->out, fragment, false,
					     (uint64_t)got - head);
		}
		if (client->head_sent == client->head_length && !client->out_left) {
			client->sending->sent = true;
			/* The socket has copied its bytes: return the slot. */
			if (fragment->op == WH_WRITE)
				tcp_stage_free(client, client->sending);
			client->sending = NULL;
		} else if ((size_t)got < bytes) {
			return -EAGAIN;
		}
	}
}

/* ---- receiving --------------------------------------------------------- */

/* Record the extents that the owner refused, so that their bytes are not expected. */
static int flow_take_refused(struct tcp_client *client, const uint8_t *errors)
{
	struct tcp_request *request = client->receiving;
	struct tcp_walk walk;

	memset(client->bad, 0, sizeof(client->bad));
	walk_start(&walk, request);
	for (uint32_t i = 0; i < client->response.errors; i++, errors += WH_RESPONSE_ERROR_SIZE) {
		uint32_t extent = wh_get32(errors);
		int error = (int)wh_get32(errors + 4);

		/* They come in the order of the extents. */
		if (extent >= request->count || extent < walk.extent || error <= 0 || error > 4095)
			return -EPROTO;
		while (walk.extent < extent && walk_step(&walk, request->fragment))
			;
		client->bad[extent / 64] |= UINT64_C(1) << (extent % 64);
		wh_fragment_fail(request->fragment, walk.pair.index, -error,
				 "%s refuses region %#llx offset %llu length %llu: %s",
				 wh_peer_name(request->fragment->peer),
				 (unsigned long long)walk.pair.remote,
				 (unsigned long long)walk.pair.offset,
				 (unsigned long long)walk.pair.length, strerror(error));
	}
	return 0;
}

/* The payload bytes of the response: those of the extents that were not refused. */
static uint64_t flow_expected_bytes(struct tcp_client *client)
{
	struct tcp_request *request = client->receiving;
	uint64_t bytes = 0;
	struct tcp_walk walk;

	if (request->fragment->op == WH_WRITE)
		return 0;
	if (!client->response.errors)
		return request->start.left;
	walk_start(&walk, request);
	do {
		bytes += extent_is_bad(client, walk.extent) ? 0 : walk.pair.length;
	} while (walk_step(&walk, request->fragment));
	return bytes;
}

/* Take a response's header and errors from the buffer. 0; -EAGAIN: not complete yet; -EPROTO. */
static int flow_take_head(struct tcp_client *client)
{
	struct tcp_in *in = &client->in;
	const uint8_t *at = in->bytes + in->start;
	struct tcp_request *request;
	uint32_t length;
	int error;

	if (in->length < WH_RESPONSE_SIZE)
		return -EAGAIN;
	error = wh_response_decode(at, &client->response);
	if (error)
		return error;
	length = WH_RESPONSE_SIZE + client->response.errors * WH_RESPONSE_ERROR_SIZE;
	if (client->response.errors > WH_REQUEST_EXTENTS)
		return -EPROTO;
	if (in->length < length)
		return -EAGAIN;
	request = &client->requests[client->response.id % TCP_WINDOW];
	/* Owners never answer a write before they have received all of it, not even to refuse it:
	 * a response to a request that is not fully sent breaks the protocol. */
	if (!request->fragment || request->id != client->response.id || !request->sent ||
	    request->fragment->op != client->response.op)
		return -EPROTO;
	client->receiving = request;
	walk_start(&client->into, request);
	if (client->response.errors) {
		error = flow_take_refused(client, at + WH_RESPONSE_SIZE);
		if (error)
			return error;
	}
	in->start += length;
	in->length -= length;
	client->into_left = flow_expected_bytes(client);
	return client->into_left == client->response.bytes ? 0 : -EPROTO;
}

/* Copy payload to memory of the application's: as many extents as there are bytes for, up to
 * `most`, by one system call. Returns how many bytes, or -EFAULT. */
static ssize_t flow_put_checked(struct tcp_client *client, const uint8_t *from, size_t most)
{
	struct tcp_request *request = client->receiving;
	bool errors = client->response.errors;
	struct iovec vector[TCP_VECTOR];
	size_t length, put;
	int count = 0;

	length = walk_vector(client, &client->into, request, errors, vector, &count);
	length = length < most ? length : most;
	put = wh_memory_put(wh_engine_process(wh_peer_engine(client->tcp->peer)), vector, count,
			    from, length);
	if (put == length)
		return (ssize_t)length;
	walk_advance(client, &client->into, request->fragment, errors, put);
	return request_note_fault(request, &client->into);
}

/* Copy payload to where it belongs: up to `most` bytes at `from`. Returns how many, or -EFAULT. */
static ssize_t flow_put_payload(struct tcp_client *client, const uint8_t *from, size_t most)
{
	struct wh_fragment *fragment = client->receiving->fragment;
	bool errors = client->response.errors;
	struct tcp_walk *walk = &client->into;
	ssize_t length;
	size_t put = 0;
	char *to;

	for (; put < most && client->into_left; put += (size_t)length) {
		if (errors && extent_is_bad(client, walk->extent)) {
			walk_step(walk, fragment);
			length = 0;
			continue;
		}
		length = (ssize_t)(walk->pair.length - walk->done);
		if ((size_t)length > most - put)
			length = (ssize_t)(most - put);
		to = walk_at(walk, client->receiving);
		if (pair_may_vanish(fragment, &walk->pair))
			length = flow_put_checked(client, from + put,
						  tcp_of(fragment)->windowed ? (size_t)length :
									       most - put);
		else if (tcp_of(fragment)->windowed)
			tcp_window_put(fragment, &walk->pair, to, from + put, (size_t)length);
		else
			memcpy(to, from + put, (size_t)length);
		if (length < 0)
			return length;
		client->into_left -= (uint64_t)length;
		walk_advance(client, walk, fragment, errors, (uint64_t)length);
	}
	if (tcp_of(fragment)->windowed)
		wh_copy_issued();
	return (ssize_t)put;
}

/* Copy payload that arrived in the buffer, together with a header, or that lies in the request's
 * slot. 0 or -EFAULT. */
static int flow_take_payload(struct tcp_client *client)
{
	const struct tcp_request *request = client->receiving;
	struct tcp_in *in = &client->in;
	ssize_t put;

	if (request->slot)
		put = flow_put_payload(
			client, (uint8_t *)wh_lender_slot(&client->tcp->lender, request->slot),
			client->into_left);
	else
		put = flow_put_payload(client, in->bytes + in->start, in->length);
	if (put < 0)
		return (int)put;
	if (!request->slot) {
		in->start += (uint32_t)put;
		in->length -= (uint32_t)put;
	}
	return 0;
}

/* Process the bytes in the buffer. -EAGAIN: more bytes are needed. */
static int flow_consume(struct tcp_client *client, struct wh_list *done)
{
	int error;

	for (;;) {
		if (!client->receiving) {
			error = flow_take_head(client);
			if (error)
				return error;
		}
		error = flow_take_payload(client);
		if (error)
			return error;
		if (client->into_left)
			return -EAGAIN;
		tcp_lent_end(client->tcp, client->receiving);
		if (client->receiving->stage && client->receiving->fragment->op == WH_READ)
			tcp_stage_scatter(client, client->receiving);
		else
			tcp_request_end(client, client->receiving, done);
		client->receiving = NULL;
		flow_unpark(client);
	}
}

int tcp_flow_receive(struct tcp_client *client, struct wh_list *done)
{
	struct iovec vector[TCP_VECTOR];
	struct tcp_in *in = &client->in;
	size_t want, moved;
	int count, error;
	ssize_t got;

	while (atomic_load_explicit(&client->outstanding, memory_order_relaxed)) {
		count = 0;
		want = 0;
		if (client->receiving) /* the buffer is empty: see flow_consume() */
			want = walk_vector(client, &client->into, client->receiving,
					   client->response.errors, vector, &count);
		if (want > client->into_left)
			return -EPROTO;
		got = tcp_receive(client->source.fd, client->channel, vector, count, want, in,
				  client->receiving ? TCP_TAIL : TCP_IN);
		if (!got)
			return -ECONNRESET;
		if (got < 0 && errno == EFAULT && client->receiving)
			return request_note_fault(client->receiving, &client->into);
		if (got < 0)
			return errno == EINTR ? -EAGAIN : -errno;
		client->moved += (uint64_t)got;
		/* Another thread may end the request: order this thread's stores before that. */
		if (client->receiving && tcp_of(client->receiving->fragment)->windowed)
			wh_copy_issued();
		moved = (size_t)got < want ? (size_t)got : want;
		if (moved) {
			client->into_left -= moved;
			if (client->into_left)
				walk_advance(client, &client->into, client->receiving->fragment,
					     client->response.errors, moved);
		}
		error = flow_consume(client, done);
		if (error != -EAGAIN)
			return error;
		/* A short read: the socket is empty. What the channel holds raises no event. */
		if ((size_t)got < (want ? want : TCP_IN) && !wh_channel_pending(client->channel))
			return -EAGAIN;
	}
	return -EAGAIN;
}

void tcp_flow_reset(struct tcp_client *client)
{
	client->sending = client->receiving = NULL;
	client->in.start = client->in.length = 0;
	client->out_left = client->into_left = 0;
	client->head_length = client->head_sent = 0;
	client->queue_count = client->parked_count = 0;
	client->corked = false;
}
