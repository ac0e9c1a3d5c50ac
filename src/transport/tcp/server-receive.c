/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's requests: receives and decodes them, and moves the payload of writes directly from
 * the socket into the regions, or into the slots of server-stage.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "gpu/region-window.h"
#include "memory/memory.h"
#include "net/quota.h"
#include "transport/tcp/server.h"

/* ---- requests ---------------------------------------------------------- */

/* Decode and check the extents of server->request. 0 or -EPROTO. */
static int request_take_extents(struct tcp_server *server, const uint8_t *meta)
{
	const struct wh_request *request = &server->request;
	struct tcp_checked last = { .looked_up = false };
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
		to->error = tcp_extent_check(server, &last, to, request->op);
	}
	if (last.entry)
		wh_region_entry_leave(last.entry);
	return got < 0 || count != request->count || bytes != request->bytes ? -EPROTO : 0;
}

/* Take a request from the buffer. 0; -EAGAIN: not complete yet; -EPROTO; -ENOMEM. */
static int request_take(struct tcp_server *server)
{
	struct tcp_in *in = &server->in;
	struct wh_file_system *system;
	enum wh_slot_use slots;
	int error;

	if (in->length < WH_REQUEST_SIZE)
		return -EAGAIN;
	error = wh_request_decode(in->bytes + in->start, &server->request);
	if (error)
		return error;
	if (in->length < WH_REQUEST_SIZE + server->request.meta)
		return -EAGAIN;
	error = request_take_extents(server, in->bytes + in->start + WH_REQUEST_SIZE);
	if (error)
		return error;
	if (server->request.slot && !tcp_lent_check(server))
		return -EPROTO;
	in->start += WH_REQUEST_SIZE + server->request.meta;
	in->length -= WH_REQUEST_SIZE + server->request.meta;
	if (server->request.op == WH_READ)
		return tcp_answer_read(server);
	server->receiving = true;
	server->singly = false;
	server->at = 0;
	server->skip = 0;
	server->left = server->request.bytes;
	slots = tcp_request_slots(server, &system);
	if (slots == WH_SLOT_USES) {
		if (server->request.slot) /* all of its extents have errors */
			server->left = 0;
		return 0;
	}
	if (server->request.slot) {
		error = tcp_stage_write(server, slots, system);
		return error ? error : tcp_stage_lent_write(server);
	}
	server->windowed = slots == WH_SLOT_OWNER && tcp_window_can_receive(server);
	return server->windowed ? 0 : tcp_stage_write(server, slots, system);
}

/* Fill a vector with the memory for the next payload bytes. Returns its length in bytes. */
static size_t payload_fill_vector(struct tcp_server *server, struct tcp_entered *entered,
				  struct iovec *vector, int *count)
{
	uint64_t skip = server->skip;
	size_t bytes = 0;
	int error;

	for (uint32_t i = server->at; i < server->request.count; i++, skip = 0) {
		struct tcp_extent *extent = &server->extents[i];
		uint64_t length = extent->length - skip;
		char *memory =
			extent->error ? NULL : tcp_region_enter(server, entered, extent, &error);

		if (!extent->error && !memory) {
			if (!error)
				break;
			extent->error = error;
		}
		if (extent->error) { /* discard it: every part goes to the same buffer */
			length = length < TCP_SERVER_TRASH ? length : TCP_SERVER_TRASH;
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
static void payload_find_fault(struct tcp_server *server)
{
	if (server->singly)
		server->extents[server->at].error = EFAULT;
	server->singly = !server->singly;
}

/* Copy payload that arrived in the buffer, together with the header, into slots. */
static void payload_copy_to_slots(struct tcp_server *server)
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

/* Account for payload taken from the buffer. */
static void payload_took(struct tcp_server *server, size_t length)
{
	server->in.start += (uint32_t)length;
	server->in.length -= (uint32_t)length;
	server->left -= length;
	tcp_extents_advance(server->extents, &server->at, &server->skip, length);
}

/* Copy to memory of the application's: as many extents as there are bytes for, by one system
 * call, or only this one of a request for region windows. */
static void payload_put(struct tcp_server *server, struct tcp_entered *entered, char *to,
			size_t length)
{
	const uint8_t *from = server->in.bytes + server->in.start;
	struct iovec vector[TCP_VECTOR] = { { to, length } };
	size_t put;
	int count = 1;

	if (!server->windowed) {
		count = 0;
		length = payload_fill_vector(server, entered, vector, &count);
		length = length < server->in.length ? length : server->in.length;
	}
	put = wh_memory_put(wh_engine_process(server->engine), vector, count, from, length);
	payload_took(server, put);
	if (put < length)
		server->extents[server->at].error = EFAULT;
}

/* Copy the next bytes of the buffer to the region entered last, `length` of them to `to`. */
static void payload_copy(struct tcp_server *server, struct tcp_entered *entered, char *to,
			 size_t length)
{
	const uint8_t *from = server->in.bytes + server->in.start;
	struct wh_region_entry *entry = entered->entries[entered->count - 1];

	if (!entered->window &&
	    wh_region_may_vanish(wh_container(entry, struct wh_region, entry))) {
		payload_put(server, entered, to, length);
		return;
	}
	if (entered->window)
		wh_region_window_write(entered->window, to, from, length);
	else
		memcpy(to, from, length);
	payload_took(server, length);
}

/* Copy payload that arrived in the buffer, together with the header, into the regions. */
static void payload_copy_to_regions(struct tcp_server *server)
{
	struct tcp_in *in = &server->in;
	struct tcp_entered entered = { .count = 0 };
	int error;

	while (in->length && server->left) {
		struct tcp_extent *extent = &server->extents[server->at];
		uint64_t length = extent->length - server->skip;
		char *memory = NULL;

		if (length > in->length)
			length = in->length;
		if (!extent->error) {
			memory = tcp_region_enter(server, &entered, extent, &error);
			if (!memory && !error) {
				tcp_regions_leave(&entered);
				continue;
			}
			extent->error = error;
		}
		if (memory)
			payload_copy(server, &entered, memory + server->skip, length);
		else
			payload_took(server, length);
	}
	tcp_regions_leave(&entered);
}

bool tcp_server_full(const struct tcp_server *server)
{
	uint32_t asked = server->job_count + server->write_count;

	/* If the quota is used up, one request at a time proceeds: its end resumes receiving. */
	return server->job_count == TCP_JOBS_MAX || server->write_count == TCP_JOBS_MAX ||
	       (asked && wh_quota_is_full(server->quota)) || tcp_answers_full(server);
}

int tcp_server_consume(struct tcp_server *server)
{
	int error;

	for (;;) {
		if (!server->receiving) {
			if (tcp_server_full(server))
				return -ENOBUFS;
			error = request_take(server);
			if (error)
				return error;
			if (!server->receiving)
				continue;
		}
		if (server->write)
			payload_copy_to_slots(server);
		else
			payload_copy_to_regions(server);
		/* What is in the buffer comes before what the socket has: receive no more. */
		if (server->failed)
			return -ENOMEM;
		if (server->left)
			return server->wants_slot ? -ENOBUFS : -EAGAIN;
		server->receiving = false;
		if (server->write) {
			tcp_stage_end_write(server);
			continue;
		}
		if (server->windowed)
			tcp_window_end(server);
		tcp_answer_write(server, &server->request, server->extents);
	}
}

/* How many bytes to receive into the buffer, beyond `want`. Payload among them costs a copy. */
static size_t receive_room(const struct tcp_server *server, size_t want)
{
	if (server->receiving)
		return want == server->left ? TCP_TAIL : 0;
	/* A large write usually follows a large write: leave its payload for payload_fill_vector().
	 * Another system call costs less than to copy the bytes once more. */
	return server->request.op == WH_WRITE && server->request.bytes >= TCP_SERVER_DIRECT ?
		       TCP_TAIL :
		       TCP_SERVER_IN;
}

ssize_t tcp_server_receive(struct tcp_server *server, size_t *expected)
{
	struct iovec vector[TCP_VECTOR];
	struct tcp_entered entered = { .count = 0 };
	size_t moved, want, tail;
	int count = 0, error;
	ssize_t got;

	if (server->receiving && server->write) {
		want = tcp_stage_into(server, vector);
		if (!want)
			return server->failed ? -ENOMEM : -EAGAIN;
		count = 1;
	} else {
		want = server->receiving ? payload_fill_vector(server, &entered, vector, &count) :
					   0;
	}
	tail = receive_room(server, want);
	*expected = want ? want : tail / 2;
	got = tcp_receive(server->source.fd, server->channel, vector, count, want, &server->in,
			  tail);
	error = errno;
	tcp_regions_leave(&entered);
	if (got < 0 && error == EFAULT && want && !server->write) {
		payload_find_fault(server);
		return tcp_server_receive(server, expected);
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
