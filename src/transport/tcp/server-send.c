/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's responses: answers to writes, and the bytes of reads, straight from the regions or
 * from the slots of server-stage.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/tcp/server.h"
#include "wire/bytes.h"

/* ---- encoding ---------------------------------------------------------- */

static uint32_t extents_count_errors(const struct tcp_extent *extents, uint32_t count)
{
	uint32_t errors = 0;

	for (uint32_t i = 0; i < count; i++)
		errors += extents[i].error != 0;
	return errors;
}

/* Encode a response and its errors. Returns the bytes. */
static uint32_t answer_encode(uint8_t *out, const struct wh_request *request,
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
static void answer_count(struct tcp_server *server, uint8_t op, uint64_t bytes)
{
	wh_session_count(server->session, op, bytes);
}

void tcp_answer_write(struct tcp_server *server, const struct wh_request *request,
		      const struct tcp_extent *extents)
{
	uint32_t errors = extents_count_errors(extents, request->count);
	uint32_t length = WH_RESPONSE_SIZE + errors * WH_RESPONSE_ERROR_SIZE;
	uint64_t bytes = request->bytes;

	for (uint32_t i = 0; errors && i < request->count; i++)
		bytes -= extents[i].error ? extents[i].length : 0;
	answer_count(server, WH_WRITE, bytes);
	if (server->out_start && !server->out_length)
		server->out_start = 0;
	if (server->out_start + server->out_length + length > TCP_SERVER_OUT) {
		memmove(server->out, server->out + server->out_start, server->out_length);
		server->out_start = 0;
	}
	/* tcp_server_full() keeps room for the largest response. */
	server->out_length += answer_encode(server->out + server->out_start + server->out_length,
					    request, extents, errors, 0);
}

bool tcp_answers_full(const struct tcp_server *server)
{
	return server->out_length >
	       TCP_SERVER_OUT - WH_RESPONSE_SIZE - WH_REQUEST_EXTENTS * WH_RESPONSE_ERROR_SIZE;
}

/* Append the responses to staged writes whose bytes have all arrived. */
static void answer_staged_writes(struct tcp_server *server)
{
	while (!wh_list_empty(&server->arrived) && !tcp_answers_full(server)) {
		struct tcp_write *write =
			wh_container(wh_list_take(&server->arrived), struct tcp_write, link);

		tcp_answer_write(server, &write->request, write->extents);
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

int tcp_answer_read(struct tcp_server *server)
{
	const struct wh_request *request = &server->request;
	uint32_t errors = extents_count_errors(server->extents, request->count);
	size_t list = request->count * sizeof(struct tcp_extent), size;
	struct wh_file_system *system;
	enum wh_slot_use slots = tcp_request_slots(server, &system);
	bool staged = slots != WH_SLOT_USES;
	struct tcp_job *job;
	uint64_t bytes = 0;

	/* Any extent may fail yet. */
	size = sizeof(*job) + list + WH_RESPONSE_SIZE + request->count * WH_RESPONSE_ERROR_SIZE;
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
	answer_count(server, WH_READ, bytes);
	job->left = job->ungathered = bytes;
	wh_list_init(&job->chunks);
	job->staged = staged;
	job->slots = slots;
	job->system = system;
	job->request = *request;
	job->head_length = answer_encode(job->head, request, server->extents, errors, bytes);
	wh_list_append(&server->jobs, &job->link);
	server->job_count++;
	return 0;
}

bool tcp_answer_refuse_read(struct tcp_server *server, struct tcp_job *job, int error)
{
	uint32_t count = job->request.count;
	struct tcp_extent *extents;

	if (job->head_sent)
		return false;
	extents = calloc(count, sizeof(*extents));
	if (!extents)
		return false;
	for (uint32_t i = 0; i < count; i++)
		extents[i].error = error;
	tcp_stage_drop_read(server, job);
	job->head_length = answer_encode(job->head, &job->request, extents, count, 0);
	job->left = job->ungathered = 0;
	job->at = job->count;
	free(extents);
	return true;
}

/* The kernel could not read some memory of a plain read, of which nothing has been sent: leave out
 * the extents that it is of, and say so in the header. */
static bool job_leave_out(struct tcp_server *server, struct tcp_job *job)
{
	uint32_t count = job->request.count, kept = 0, next = 0, errors = 0;
	const uint8_t *known = job->head + WH_RESPONSE_SIZE, *end = job->head + job->head_length;
	struct tcp_extent *extents = calloc(count, sizeof(*extents));
	uint64_t bytes = 0;

	if (!extents)
		return false;
	for (; known < end; known += WH_RESPONSE_ERROR_SIZE)
		extents[wh_get32(known)].error = (int)wh_get32(known + 4);
	for (uint32_t i = 0; i < count; i++) {
		struct tcp_extent *extent = &job->extents[next];

		if (!extents[i].error) {
			next++;
			extents[i].error = tcp_extent_probe(server, extent);
			if (!extents[i].error) {
				bytes += extent->length;
				job->extents[kept++] = *extent;
			}
		}
		errors += extents[i].error != 0;
	}
	job->head_length = answer_encode(job->head, &job->request, extents, errors, bytes);
	free(extents);
	job->count = kept;
	job->left = job->ungathered = bytes;
	return kept < next;
}

/* The kernel could not read some memory of a plain read. Look at all reads that wait: where the
 * connection has to be closed, because it cannot send the bytes that it has announced, the peer
 * asks for them again over another one, and those that cannot be read are refused there. True: the
 * read is answered without them. */
static bool jobs_fault(struct tcp_server *server, struct tcp_job *first)
{
	if (!first->head_sent)
		return job_leave_out(server, first) ||
		       tcp_answer_refuse_read(server, first, EFAULT);
	for (struct wh_list *link = server->jobs.next; link != &server->jobs; link = link->next) {
		const struct tcp_job *job = wh_container(link, struct tcp_job, link);

		for (uint32_t i = job->at; !job->staged && i < job->count; i++)
			tcp_extent_probe(server, &job->extents[i]);
	}
	return false;
}

/* Append the next bytes of a read to a vector, and enter their regions. Returns the bytes, or a
 * negative errno that ends the connection. */
static ssize_t job_fill_vector(struct tcp_server *server, const struct tcp_job *job,
			       struct tcp_entered *entered, struct iovec *vector, int *count)
{
	uint64_t skip = job->skip;
	size_t bytes = 0;
	int error;

	for (uint32_t i = job->at; i < job->count; i++, skip = 0) {
		char *memory = tcp_region_enter(server, entered, &job->extents[i], &error);

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
static int job_send(struct tcp_server *server, struct tcp_job *job)
{
	struct iovec vector[TCP_VECTOR];
	struct tcp_entered entered = { .count = 0 };
	ssize_t got, payload;
	size_t head;
	int count, error;

	while (job->head_sent < job->head_length || job->left) {
		count = 0;
		/* First: it changes the header if bytes cannot be read. */
		error = job->staged && job->left ? tcp_stage_read(server, false) : 0;
		if (error)
			return error;
		if (job->request.slot && job->left && !tcp_stage_landed(server, job)) {
			server->stalled = true;
			return -EAGAIN;
		}
		head = job->head_length - job->head_sent;
		if (head)
			vector[count++] = (struct iovec){ job->head + job->head_sent, head };
		if (job->staged && job->left) {
			payload = (ssize_t)tcp_stage_out_of(job, &vector[count]);
			server->stalled = !payload;
			if (!payload) /* the header waits for the payload */
				return -EAGAIN;
			count++;
		} else {
			payload = job_fill_vector(server, job, &entered, vector, &count);
		}
		got = payload < 0 ?
			      payload :
			      wh_channel_send(server->source.fd, server->channel, vector, count);
		error = payload < 0 ? (int)-payload : errno;
		tcp_regions_leave(&entered);
		/* Mapped, and yet not readable. */
		if (got < 0 && error == EFAULT && !job->staged && jobs_fault(server, job))
			continue;
		if (got < 0)
			return error == EINTR ? -EAGAIN : -error;
		server->moved += (uint64_t)got;
		job_sent(server, job, (size_t)got);
		if ((size_t)got < head + (size_t)payload)
			return -EAGAIN;
	}
	return 0;
}

/* The first read waits for its bytes, and nothing of its response has been sent. Let the first one
 * that can be sent whole take its place: a read that waited after its header would again delay
 * all. 0; -EAGAIN: there is none; or a fatal error. */
static int jobs_overtake(struct tcp_server *server)
{
	int error = tcp_stage_read(server, true);
	struct wh_list *link = server->jobs.next;

	if (error)
		return error;
	while ((link = link->next) != &server->jobs) {
		struct tcp_job *job = wh_container(link, struct tcp_job, link);

		if (job->staged && !tcp_stage_is_whole(job))
			continue;
		wh_list_remove(link);
		wh_list_push(&server->jobs, link);
		server->stalled = false;
		return 0;
	}
	return -EAGAIN;
}

int tcp_server_flush(struct tcp_server *server)
{
	ssize_t got;
	int error;

	server->stalled = false;
	if (wh_channel_flush(server->channel))
		return -errno;
	for (;;) {
		struct tcp_job *job = wh_list_empty(&server->jobs) ?
					      NULL :
					      wh_container(server->jobs.next, struct tcp_job, link);

		answer_staged_writes(server);
		if (server->out_length && !(job && job->head_sent)) {
			struct iovec part = { server->out + server->out_start, server->out_length };

			got = wh_channel_send(server->source.fd, server->channel, &part, 1);
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
		error = job_send(server, job);
		if (error == -EAGAIN && server->stalled && !job->head_sent) {
			error = jobs_overtake(server);
			if (!error)
				continue;
		}
		if (error)
			return error;
		wh_list_remove(&job->link);
		server->job_count--;
		job_free(server, job);
	}
}
