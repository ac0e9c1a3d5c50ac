/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a data connection: receives requests, checks every extent against the region
 * table, and moves the bytes directly between the socket and the regions.
 *
 * Only the connection's loop uses it. A region is entered for one system call at a time, so that
 * unregistering it never waits for the peer. Bytes for an extent that does not exist, or no longer
 * exists, are received and discarded, and the response has the error.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/region-window.h"
#include "memory/memory.h"
#include "net/quota.h"
#include "transport/tcp/server.h"
#include "wire/bytes.h"

#define CONNECTIONS_MAX 64 /* per session */
#define OUT_MAX (64u << 10) /* bytes of unsent responses to writes; when full, receiving pauses */
#define ENTERED_MAX 64 /* regions in one system call, at most */
#define TRASH (64u << 10) /* bytes of the buffer for discarded payload */
/* Bytes of memory that every connection holds, charged to the quota. */
#define BASE                                                                                       \
	(int64_t)(sizeof(struct tcp_server) + TCP_SERVER_IN + TRASH + OUT_MAX +                    \
		  WH_REQUEST_EXTENTS * sizeof(struct tcp_extent))
/* bytes received before responses are sent early, so that the peer already sends more while the
 * rest is received */
#define TELL_BYTES (1u << 20)
#define TURN_BYTES (8u << 20) /* bytes received in one turn; then other connections get theirs */

/* The connections of one session. On loop 0. */
struct servers {
	struct wh_list list;
	unsigned count;
};

/* ---- regions entered for one system call ------------------------------- */

struct entered {
	struct wh_region_entry *entries[ENTERED_MAX];
	unsigned count;
	uint64_t last; /* id of the last region */
	const struct wh_region_window *window; /* of the last one; NULL: host memory */
	char *memory; /* of the last one, as the CPU reaches it */
	bool windowed; /* at least one of them is used through its window */
};

static void leave_all(struct entered *entered)
{
	if (entered->windowed)
		wh_region_window_fence();
	entered->windowed = false;
	while (entered->count)
		wh_region_entry_leave(entered->entries[--entered->count]);
}

/* Enter an extent's region and return the extent's memory. NULL: *error is a positive errno, or 0
 * if there are too many regions for one call. */
static char *enter(struct tcp_server *server, struct entered *entered,
		   const struct tcp_extent *extent, int *error)
{
	const struct wh_region_window *window;
	struct wh_region_entry *entry;

	*error = 0;
	if (!entered->count || entered->last != extent->region) {
		if (entered->count == ENTERED_MAX)
			return NULL;
		entry = wh_region_entry_enter(&server->engine->regions, extent->region);
		if (!entry) {
			*error = ESTALE;
			return NULL;
		}
		window =
			wh_kind_on_host(entry->kind) || !server->windowed ?
				NULL :
				wh_region_window_peek(wh_container(entry, struct wh_region, entry));
		/* The window was skipped when the write began, because the region was being
		 * unregistered, which then did not happen. */
		if (!window && !wh_kind_on_host(entry->kind)) {
			wh_region_entry_leave(entry);
			*error = ESTALE;
			return NULL;
		}
		entered->entries[entered->count++] = entry;
		entered->last = extent->region;
		entered->window = window;
		entered->memory = window ? (char *)window->base : (char *)(uintptr_t)entry->address;
		entered->windowed |= window != NULL;
	}
	return entered->memory + extent->offset;
}

/* The region of the extent that was checked last, so that the next one need not look it up. */
struct checked {
	struct wh_region_entry *entry; /* entered; NULL: no such region */
	uint64_t id; /* of the last region looked up */
	bool asked; /* `id` is set */
	bool holes; /* some of its memory is no longer mapped */
	uint8_t access;
};

/* Is some of a region's memory no longer mapped? Checked before any byte moves, because some
 * written bytes are copied by the CPU, which would raise a signal, and because the response to a
 * read announces all its bytes before they are sent. */
static bool has_holes(const struct wh_region_entry *entry)
{
	return wh_region_may_vanish(wh_container(entry, struct wh_region, entry)) &&
	       !wh_memory_mapped(entry->address, entry->length);
}

/* Check one extent. 0, or a positive errno. A region's range never changes, so one check is enough;
 * each access checks again that the region is still registered. */
static int check(struct tcp_server *server, struct checked *last, const struct tcp_extent *extent,
		 uint8_t op)
{
	if (!last->asked || last->id != extent->region) {
		if (last->entry)
			wh_region_entry_leave(last->entry);
		last->entry = wh_region_entry_enter(&server->engine->regions, extent->region);
		last->id = extent->region;
		last->asked = true;
		/* The session outlives this connection. */
		if (last->entry) {
			last->access = wh_session_access(server->session, last->entry);
			last->holes = has_holes(last->entry);
		}
	}
	if (!last->entry)
		return ESTALE;
	if (last->access & WH_ACCESS_NONE ||
	    !(last->access & (op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE)))
		return EACCES;
	if (!wh_region_entry_holds(last->entry, extent->offset, extent->length))
		return ERANGE;
	return last->holes && !wh_memory_mapped(last->entry->address + extent->offset,
						extent->length) ?
		       EFAULT :
		       0;
}

void tcp_server_charge(struct tcp_server *server, int64_t bytes)
{
	server->held += bytes;
	wh_quota_charge_buffered(server->quota, bytes);
}

/* ---- responses --------------------------------------------------------- */

static uint32_t count_errors(const struct tcp_extent *extents, uint32_t count)
{
	uint32_t errors = 0;

	for (uint32_t i = 0; i < count; i++)
		errors += extents[i].error != 0;
	return errors;
}

/* Encode a response and its errors. Returns the bytes. */
static uint32_t answer(uint8_t *out, const struct wh_request *request,
		       const struct tcp_extent *extents, uint32_t errors, uint64_t bytes)
{
	uint8_t *at = out + WH_RESPONSE_SIZE;
	struct wh_response response = {
		.op = request->op,
		.errors = errors,
		.id = request->id,
		.bytes = bytes,
	};

	wh_response_encode(out, &response);
	for (uint32_t i = 0; errors && i < request->count; i++) {
		if (!extents[i].error)
			continue;
		at = wh_put32(at, i);
		at = wh_put32(at, (uint32_t)extents[i].error);
	}
	return (uint32_t)(at - out);
}

/* Count served bytes. Through other transports only the initiator can count them. */
static void count_served(struct tcp_server *server, uint8_t op, uint64_t bytes)
{
	wh_count_add(&server->served->bytes[op == WH_WRITE], bytes);
	wh_count_add(&server->served->requests, 1);
}

/* Append the response to a write, and count its bytes. */
static void answer_write(struct tcp_server *server, const struct wh_request *request,
			 const struct tcp_extent *extents)
{
	uint32_t errors = count_errors(extents, request->count);
	uint32_t length = WH_RESPONSE_SIZE + errors * WH_RESPONSE_ERROR_SIZE;
	uint64_t bytes = request->bytes;

	for (uint32_t i = 0; errors && i < request->count; i++)
		bytes -= extents[i].error ? extents[i].length : 0;
	count_served(server, WH_WRITE, bytes);
	if (server->out_start && !server->out_length)
		server->out_start = 0;
	if (server->out_start + server->out_length + length > OUT_MAX) {
		memmove(server->out, server->out + server->out_start, server->out_length);
		server->out_start = 0;
	}
	/* full() keeps room for the largest response. */
	server->out_length += answer(server->out + server->out_start + server->out_length, request,
				     extents, errors, 0);
}

/* Is there too little room for the largest response? */
static bool out_full(const struct tcp_server *server)
{
	return server->out_length >
	       OUT_MAX - WH_RESPONSE_SIZE - WH_REQUEST_EXTENTS * WH_RESPONSE_ERROR_SIZE;
}

/* Append the responses to staged writes whose bytes have all arrived. */
static void answer_staged(struct tcp_server *server)
{
	while (!wh_list_empty(&server->answers) && !out_full(server)) {
		struct tcp_write *write =
			wh_container(wh_list_take(&server->answers), struct tcp_write, link);

		answer_write(server, &write->request, write->extents);
		server->write_count--;
		tcp_server_charge(server, -tcp_write_size(&write->request));
		free(write);
	}
}

static void job_free(struct tcp_server *server, struct tcp_job *job)
{
	tcp_server_charge(server, -(int64_t)job->size);
	free(job);
}

/* Queue a read, with the header of its response. 0 or -ENOMEM. */
static int answer_read(struct tcp_server *server)
{
	const struct wh_request *request = &server->request;
	uint32_t errors = count_errors(server->extents, request->count);
	size_t list = request->count * sizeof(struct tcp_extent), size;
	struct tcp_job *job;
	uint64_t bytes = 0;

	size = sizeof(*job) + list + WH_RESPONSE_SIZE + errors * WH_RESPONSE_ERROR_SIZE;
	job = malloc(size);
	if (!job)
		return -ENOMEM;
	memset(job, 0, sizeof(*job));
	job->size = (uint32_t)size;
	tcp_server_charge(server, job->size);
	job->head = (uint8_t *)job + sizeof(*job) + list;
	/* Only extents without an error are sent. */
	for (uint32_t i = 0; i < request->count; i++) {
		if (server->extents[i].error)
			continue;
		job->extents[job->count++] = server->extents[i];
		bytes += server->extents[i].length;
	}
	count_served(server, WH_READ, bytes);
	job->left = job->ungathered = bytes;
	wh_list_init(&job->chunks);
	job->staged = tcp_extents_on_gpu(server, job->extents, job->count);
	job->head_length = answer(job->head, request, server->extents, errors, bytes);
	wh_list_append(&server->jobs, &job->link);
	server->job_count++;
	return 0;
}

/* Append the next bytes of a read to a vector, and enter their regions. Returns the bytes, or a
 * negative errno that ends the connection. */
static ssize_t job_vector(struct tcp_server *server, const struct tcp_job *job,
			  struct entered *entered, struct iovec *vector, int *count)
{
	uint64_t skip = job->skip;
	size_t bytes = 0;
	int error;

	for (uint32_t i = job->at; i < job->count; i++, skip = 0) {
		char *memory = enter(server, entered, &job->extents[i], &error);

		/* The response has announced these bytes, but their region was unregistered since:
		 * only closing the connection tells the peer. */
		if (!memory && error)
			return -error;
		if (!memory || !tcp_vector_add(vector, count, TCP_VECTOR, memory + skip,
					       job->extents[i].length - skip))
			break;
		bytes += job->extents[i].length - skip;
	}
	return (ssize_t)bytes;
}

/* Account for sent bytes of a read, its header included. */
static void job_sent(struct tcp_server *server, struct tcp_job *job, size_t bytes)
{
	size_t head = job->head_length - job->head_sent;

	if (bytes <= head) {
		job->head_sent += (uint32_t)bytes;
		return;
	}
	job->head_sent = job->head_length;
	job->left -= bytes - head;
	if (job->staged)
		tcp_stage_sent(server, job, bytes - head);
	else
		tcp_extents_advance(job->extents, &job->at, &job->skip, bytes - head);
}

/* Send as much of one read as possible. 0: all is sent; else -EAGAIN, or a fatal error. */
static int send_job(struct tcp_server *server, struct tcp_job *job)
{
	struct iovec vector[TCP_VECTOR];
	struct entered entered = { .count = 0 };
	ssize_t got, payload;
	size_t head;
	int count, error;

	while (job->head_sent < job->head_length || job->left) {
		count = 0;
		head = job->head_length - job->head_sent;
		if (head)
			vector[count++] = (struct iovec){ job->head + job->head_sent, head };
		if (job->staged && job->left) {
			error = tcp_stage_read(server);
			if (error)
				return error;
			payload = (ssize_t)tcp_stage_out_of(job, &vector[count]);
			server->stalled = !payload;
			if (!payload) /* the header waits for the payload */
				return -EAGAIN;
			count++;
		} else {
			payload = job_vector(server, job, &entered, vector, &count);
		}
		got = payload < 0 ? payload :
				    wh_stream_send(server->source.fd, server->tls, vector, count);
		error = payload < 0 ? (int)-payload : errno;
		leave_all(&entered);
		if (got < 0)
			return error == EINTR ? -EAGAIN : -error;
		server->moved += (uint64_t)got;
		job_sent(server, job, (size_t)got);
		if ((size_t)got < head + (size_t)payload)
			return -EAGAIN;
	}
	return 0;
}

/* Send as much as possible. A read is never interrupted; between reads, responses to writes go
 * first. 0: all is sent; -EAGAIN; or the error that ends the connection. */
static int flush(struct tcp_server *server)
{
	ssize_t got;
	int error;

	server->stalled = false;
	if (server->tls && wh_tls_flush(server->tls))
		return -errno;
	for (;;) {
		struct tcp_job *job = wh_list_empty(&server->jobs) ?
					      NULL :
					      wh_container(server->jobs.next, struct tcp_job, link);

		answer_staged(server);
		if (server->out_length && !(job && job->head_sent)) {
			struct iovec part = { server->out + server->out_start, server->out_length };

			got = wh_stream_send(server->source.fd, server->tls, &part, 1);
			if (got < 0)
				return errno == EINTR ? -EAGAIN : -errno;
			server->out_start += (uint32_t)got;
			server->out_length -= (uint32_t)got;
			if (server->out_length)
				return -EAGAIN;
			continue;
		}
		if (!job)
			return 0;
		error = send_job(server, job);
		if (error)
			return error;
		wh_list_remove(&job->link);
		server->job_count--;
		job_free(server, job);
	}
}

/* ---- requests ---------------------------------------------------------- */

/* Decode and check the extents of server->request. 0 or -EPROTO. */
static int take_extents(struct tcp_server *server, const uint8_t *meta)
{
	const struct wh_request *request = &server->request;
	struct checked last = { .asked = false };
	struct wh_extent_reader reader;
	struct wh_extent extent;
	uint64_t bytes = 0;
	uint32_t count = 0;
	int got;

	wh_extents_open(&reader, meta, request->meta);
	while ((got = wh_extents_next(&reader, &extent)) == 1) {
		struct tcp_extent *to = &server->extents[count];

		if (count == request->count || extent.length > request->bytes - bytes) {
			got = -EPROTO;
			break;
		}
		count++;
		bytes += extent.length;
		*to = (struct tcp_extent){ extent.region, extent.offset, extent.length, 0 };
		to->error = check(server, &last, to, request->op);
	}
	if (last.entry)
		wh_region_entry_leave(last.entry);
	return got < 0 || count != request->count || bytes != request->bytes ? -EPROTO : 0;
}

/* Take a request from the buffer. 0; -EAGAIN: not complete yet; -EPROTO; -ENOMEM. */
static int take_request(struct tcp_server *server)
{
	struct tcp_in *in = &server->in;
	int error;

	if (in->length < WH_REQUEST_SIZE)
		return -EAGAIN;
	error = wh_request_decode(in->bytes + in->start, &server->request);
	if (error)
		return error;
	if (in->length < WH_REQUEST_SIZE + server->request.meta)
		return -EAGAIN;
	error = take_extents(server, in->bytes + in->start + WH_REQUEST_SIZE);
	if (error)
		return error;
	in->start += WH_REQUEST_SIZE + server->request.meta;
	in->length -= WH_REQUEST_SIZE + server->request.meta;
	if (server->request.op == WH_READ)
		return answer_read(server);
	server->receiving = true;
	server->singly = false;
	server->at = 0;
	server->skip = 0;
	server->left = server->request.bytes;
	if (!tcp_extents_on_gpu(server, server->extents, server->request.count))
		return 0;
	server->windowed = tcp_window_takes(server);
	return server->windowed ? 0 : tcp_stage_write(server);
}

/* Fill a vector with the memory for the next payload bytes. Returns its length in bytes. */
static size_t payload_vector(struct tcp_server *server, struct entered *entered,
			     struct iovec *vector, int *count)
{
	uint64_t skip = server->skip;
	size_t bytes = 0;
	int error;

	for (uint32_t i = server->at; i < server->request.count; i++, skip = 0) {
		struct tcp_extent *extent = &server->extents[i];
		uint64_t length = extent->length - skip;
		char *memory = extent->error ? NULL : enter(server, entered, extent, &error);

		if (!extent->error && !memory) {
			if (!error)
				break;
			extent->error = error;
		}
		if (extent->error) { /* discard it: every part goes to the same buffer */
			length = length < TRASH ? length : TRASH;
			if (*count == TCP_VECTOR - 1)
				break;
			vector[(*count)++] = (struct iovec){ server->trash, length };
			bytes += length;
			if (length < extent->length - skip)
				break;
			continue;
		}
		if (!tcp_vector_add(vector, count, TCP_VECTOR - 1, memory + skip, length))
			break;
		bytes += length;
		if (server->singly)
			break;
	}
	return bytes;
}

/* The kernel could not store received bytes (EFAULT). Receive one extent at a time to find the one
 * at fault, and discard only its bytes. */
static void blame(struct tcp_server *server)
{
	if (server->singly)
		server->extents[server->at].error = EFAULT;
	server->singly = !server->singly;
}

/* Copy payload that arrived in the buffer, together with the header, into slots. */
static void take_early_staged(struct tcp_server *server)
{
	struct tcp_in *in = &server->in;
	struct iovec to;

	while (in->length && server->left) {
		size_t length = tcp_stage_into(server, &to);

		if (!length)
			return;
		length = length < in->length ? length : in->length;
		memcpy(to.iov_base, in->bytes + in->start, length);
		in->start += (uint32_t)length;
		in->length -= (uint32_t)length;
		tcp_stage_received(server, length);
	}
}

/* Copy payload that arrived in the buffer, together with the header, into the regions. */
static void take_early(struct tcp_server *server)
{
	struct tcp_in *in = &server->in;
	struct entered entered = { .count = 0 };
	int error;

	while (in->length && server->left) {
		struct tcp_extent *extent = &server->extents[server->at];
		uint64_t length = extent->length - server->skip;
		char *memory = NULL;

		if (length > in->length)
			length = in->length;
		if (!extent->error) {
			memory = enter(server, &entered, extent, &error);
			if (!memory && !error) {
				leave_all(&entered);
				continue;
			}
			if (!memory)
				extent->error = error;
			else if (entered.window)
				wh_region_window_put(entered.window, memory + server->skip,
						     in->bytes + in->start, length);
			else
				memcpy(memory + server->skip, in->bytes + in->start, length);
		}
		in->start += (uint32_t)length;
		in->length -= (uint32_t)length;
		server->left -= length;
		tcp_extents_advance(server->extents, &server->at, &server->skip, length);
	}
	leave_all(&entered);
}

/* Are too many responses unsent? Then receiving pauses until the peer has taken some. */
static bool full(const struct tcp_server *server)
{
	uint32_t asked = server->job_count + server->write_count;

	/* If the quota is used up, one request at a time proceeds: its end resumes receiving. */
	return server->job_count == TCP_JOBS_MAX || server->write_count == TCP_JOBS_MAX ||
	       (asked && wh_quota_is_full(server->quota)) || out_full(server);
}

/* Process the bytes in the buffer. -EAGAIN: more bytes are needed. -ENOBUFS: responses have to be
 * sent, or a slot has to become free, first. Other errors end the connection. */
static int consume(struct tcp_server *server)
{
	int error;

	for (;;) {
		if (!server->receiving) {
			if (full(server))
				return -ENOBUFS;
			error = take_request(server);
			if (error)
				return error;
			if (!server->receiving)
				continue;
		}
		if (server->write)
			take_early_staged(server);
		else
			take_early(server);
		if (server->left)
			return server->wants_slot ? -ENOBUFS : -EAGAIN;
		server->receiving = false;
		if (server->write) {
			tcp_stage_end_write(server);
			continue;
		}
		if (server->windowed)
			tcp_window_end(server);
		answer_write(server, &server->request, server->extents);
	}
}

/* How many bytes to receive into the buffer, beyond `want`. Payload among them costs a copy. */
static size_t room(const struct tcp_server *server, size_t want)
{
	if (server->receiving)
		return want == server->left ? TCP_TAIL : 0;
	/* A large write usually follows a large write: leave its payload for payload_vector(). */
	return server->request.op == WH_WRITE && server->request.bytes > TCP_SERVER_IN ?
		       TCP_TAIL :
		       TCP_SERVER_IN;
}

/* Receive once. Returns the bytes, or a negative errno. Fewer bytes than *little: the socket is
 * empty. */
static ssize_t receive(struct tcp_server *server, size_t *little)
{
	struct iovec vector[TCP_VECTOR];
	struct entered entered = { .count = 0 };
	size_t moved, want, tail;
	int count = 0, error;
	ssize_t got;

	if (server->receiving && server->write) {
		want = tcp_stage_into(server, vector);
		if (!want)
			return -EAGAIN;
		count = 1;
	} else {
		want = server->receiving ? payload_vector(server, &entered, vector, &count) : 0;
	}
	tail = room(server, want);
	*little = want ? want : tail / 2;
	got = tcp_receive(server->source.fd, server->tls, vector, count, want, &server->in, tail);
	error = errno;
	leave_all(&entered);
	if (got < 0 && error == EFAULT && want && !server->write) {
		blame(server);
		return receive(server, little);
	}
	if (got <= 0)
		return got ? (error == EINTR ? -EAGAIN : -error) : -ECONNRESET;
	server->moved += (uint64_t)got;
	moved = (size_t)got < want ? (size_t)got : want;
	if (moved && server->write) {
		tcp_stage_received(server, moved);
	} else if (moved) {
		server->left -= moved;
		tcp_extents_advance(server->extents, &server->at, &server->skip, moved);
	}
	return got;
}

/* Receive (if `came`), process and respond until the socket is empty or the turn is over. -EAGAIN,
 * or the error that ends the connection. */
static int service(struct tcp_server *server, bool came)
{
	size_t turn = 0, told = 0, little;
	ssize_t got;
	int error, flushed;

	for (;;) {
		error = consume(server);
		if (error != -EAGAIN && error != -ENOBUFS)
			return error;
		/* It continues when a slot is free, or when a GPU has finished a write. */
		if (server->wants_slot ||
		    (error == -ENOBUFS && !server->out_length && !server->job_count))
			break;
		if (server->out_length || server->job_count) {
			/* Responses to small writes are sent together, after the loop. */
			if (error == -ENOBUFS || server->job_count || turn - told >= TELL_BYTES) {
				told = turn;
				flushed = flush(server);
				if (flushed && flushed != -EAGAIN)
					return flushed;
				if (error == -ENOBUFS && flushed)
					return -EAGAIN;
				if (error == -ENOBUFS)
					continue;
			}
		}
		/* Bytes that TLS holds raise no event: never leave them for later. */
		if (!came || (turn > TURN_BYTES && !(server->tls && wh_tls_pending(server->tls))))
			break;
		got = receive(server, &little);
		if (got == -EAGAIN)
			break;
		if (got < 0)
			return (int)got;
		turn += (size_t)got;
		/* A short read: the socket is empty; respond before receiving again. */
		if ((size_t)got < little) {
			error = consume(server);
			if (error != -EAGAIN && error != -ENOBUFS)
				return error;
			if (error == -EAGAIN)
				break;
		}
	}
	error = flush(server);
	return error == 0 ? -EAGAIN : error;
}

/* ---- the connection's life --------------------------------------------- */

/* Free a connection that has stopped, or never started. On loop 0. */
static void bury(struct wh_task *task)
{
	struct tcp_server *server = wh_container(task, struct tcp_server, bury);
	struct wh_list *link;

	if (server->session) {
		struct servers *servers = server->session->transport[WH_TRANSPORT_TCP];

		wh_list_remove(&server->link);
		servers->count--;
	}
	while ((link = wh_list_take(&server->answers)))
		free(wh_container(link, struct tcp_write, link));
	free(server->in.bytes);
	free(server->own);
	free(server->trash);
	free(server->out);
	free(server);
}

/* Close the connection. On its loop; blocks briefly for GPUs. On return it accesses no region. */
static void stop(void *argument)
{
	struct tcp_server *server = argument;
	struct wh_list *link;

	if (server->dead)
		return;
	server->dead = true;
	wh_list_remove(&server->spinner.link);
	wh_loop_remove(server->loop, &server->source);
	wh_tls_free(server->tls);
	server->tls = NULL;
	wh_socket_close(server->source.fd);
	if (server->windowed)
		tcp_window_end(server);
	server->chunk_count++; /* so that freeing chunks does not bury it yet */
	tcp_stage_stop(server);
	while ((link = wh_list_take(&server->jobs))) {
		struct tcp_job *job = wh_container(link, struct tcp_job, link);

		tcp_stage_drop_read(server, job);
		free(job);
	}
	tcp_server_charge(server, -server->held);
	if (!--server->chunk_count)
		tcp_server_bury(server);
}

void tcp_server_bury(struct tcp_server *server)
{
	wh_loop_post(&server->engine->loops[0], &server->bury);
}

void tcp_server_turn(struct tcp_server *server, bool came)
{
	uint64_t moved = server->moved;
	int error = server->dead ? 0 : service(server, came);
	uint32_t events;

	if (server->dead)
		return;
	wh_loop_moved(server->loop, server->moved - moved);
	if (server->failed)
		error = -ENOMEM;
	if (error && error != -EAGAIN) {
		if (error != -ECONNRESET && error != -EPIPE)
			wh_log_line(&server->engine->log, "a data connection is dropped: %s",
				    error == -EPROTO ? "the peer broke the protocol" :
						       strerror(-error));
		stop(server);
		return;
	}
	events = (full(server) || server->wants_slot ? 0 : EPOLLIN) |
		 (((server->out_length || server->job_count) && !server->stalled) ||
				  wh_stream_unsent(server->tls) ?
			  EPOLLOUT :
			  0);
	if (events != server->events) {
		server->events = events;
		wh_loop_modify(server->loop, &server->source, events);
	}
}

static void ready(struct wh_source *source, uint32_t events)
{
	struct tcp_server *server = wh_container(source, struct tcp_server, source);

	/* EPOLLOUT alone: skip receiving, which would be a wasted system call. */
	tcp_server_turn(server, events != EPOLLOUT || server->tls);
}

static bool spin(struct wh_spinner *spinner)
{
	struct tcp_server *server = wh_container(spinner, struct tcp_server, spinner);
	uint64_t moved = server->moved;
	bool progress;

	server->chunk_count++; /* so that it is not buried before this returns */
	tcp_server_turn(server, true);
	progress = server->moved != moved;
	if (!--server->chunk_count && server->dead)
		tcp_server_bury(server);
	return progress;
}

/* Start serving. On its loop. */
static void begin(void *argument)
{
	struct tcp_server *server = argument;

	if (wh_loop_add(server->loop, &server->source, EPOLLIN)) {
		server->dead = true;
		tcp_server_charge(server, -server->held);
		wh_tls_free(server->tls);
		close(server->source.fd);
		wh_loop_post(&server->engine->loops[0], &server->bury);
		return;
	}
	if (server->loop->spin)
		wh_list_append(&server->loop->spinners, &server->spinner.link);
	/* Bytes that TLS received together with PROVE raise no event. */
	if (server->tls)
		tcp_server_turn(server, true);
}

static struct tcp_server *server_new(struct wh_session *session, int fd, struct wh_tls *tls,
				     const struct wh_hello *hello)
{
	struct tcp_server *server = calloc(1, sizeof(*server));

	if (!server)
		return NULL;
	server->source.fd = fd;
	server->tls = tls;
	server->source.ready = ready;
	server->events = EPOLLIN;
	server->spinner.poll = spin;
	server->bury.run = bury;
	server->engine = session->engine;
	server->session = session;
	server->quota = session->quota;
	server->served = &session->served;
	server->number = hello->connection;
	server->loop = wh_engine_loop(session->engine);
	server->in.room = TCP_SERVER_IN;
	server->in.bytes = malloc(TCP_SERVER_IN);
	server->own = malloc(WH_REQUEST_EXTENTS * sizeof(*server->own));
	server->extents = server->own;
	server->trash = malloc(TRASH);
	server->out = malloc(OUT_MAX);
	wh_list_init(&server->jobs);
	wh_list_init(&server->answers);
	if (server->in.bytes && server->own && server->trash && server->out) {
		tcp_server_charge(server, BASE + (tls ? (int64_t)WH_TLS_HELD : 0));
		return server;
	}
	server->session = NULL;
	bury(&server->bury);
	return NULL;
}

int tcp_session_accept(struct wh_session *session, int fd, struct wh_tls *tls,
		       const struct wh_hello *hello)
{
	struct servers *servers = session->transport[WH_TRANSPORT_TCP];
	struct tcp_server *server = NULL;

	if (!servers) {
		servers = calloc(1, sizeof(*servers));
		if (servers)
			wh_list_init(&servers->list);
		session->transport[WH_TRANSPORT_TCP] = servers;
	}
	/* No frame follows PROVE, so the initiator cannot be sent the reason. */
	if (servers && servers->count < CONNECTIONS_MAX && !wh_quota_is_full(session->quota))
		server = server_new(session, fd, tls, hello);
	if (!server) {
		wh_log_line(
			&session->engine->log, "a data connection of %s is dropped: %s",
			session->hello.name,
			servers && servers->count == CONNECTIONS_MAX ?
				"it has too many" :
			wh_quota_is_full(session->quota) ?
				"what its address may hold (the setting max_buffered) is used up" :
				"no memory");
		wh_tls_free(tls);
		wh_socket_close(fd);
		return -EBUSY;
	}
	wh_session_stages(session);
	wh_socket_near(&session->engine->config, fd);
	wh_count_add(&session->engine->statistics.connections, 1);
	wh_list_append(&servers->list, &server->link);
	servers->count++;
	wh_loop_call(server->loop, begin, server);
	return 0;
}

void tcp_session_close(struct wh_session *session)
{
	struct servers *servers = session->transport[WH_TRANSPORT_TCP];
	struct wh_list *link;

	if (!servers)
		return;
	while ((link = wh_list_take(&servers->list))) {
		struct tcp_server *server = wh_container(link, struct tcp_server, link);

		wh_loop_call(server->loop, stop, server);
		server->session = NULL; /* before bury(), which runs on this loop, too */
	}
	session->transport[WH_TRANSPORT_TCP] = NULL;
	free(servers);
}

void tcp_session_abort(struct wh_session *session, uint32_t number)
{
	struct servers *servers = session->transport[WH_TRANSPORT_TCP];

	if (!servers)
		return;
	for (struct wh_list *l = servers->list.next; l != &servers->list; l = l->next) {
		struct tcp_server *server = wh_container(l, struct tcp_server, link);

		if (server->number == number)
			wh_loop_call(server->loop, stop, server);
	}
}
