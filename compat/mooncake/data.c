/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data connections of the server. A connection carries one request at a time. One thread serves all
 * connections and never waits for a peer; server_sweep() closes a connection whose peer stops
 * sending or receiving in the middle of a request.
 *
 * Order: writes start in their order of arrival, over all connections, and a read starts after the
 * writes that arrived before it. Edge-triggered epoll provides this order: it returns descriptors
 * in the order in which they became ready. (Level-triggered epoll puts a returned descriptor back
 * into its list at once, ahead of those that become ready before the next call.) Therefore:
 * - a visit to a connection reads all that its socket has, or TURN bytes, which is more;
 * - a new connection is visited when it is accepted;
 * - a read that may be younger than its connection's event (the connection is new, or the read
 * follows an unconfirmed write) starts only after all other ready connections have been visited.
 * One case stays open: of two writes that arrived before the server looked, one of them on a new
 * connection or behind another write, either may start first.
 *
 * A request for bytes of an older write that is still incomplete may have to wait: order.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compat/mooncake/internal.h"
#include "util/address.h"

#define MAX_CONNECTIONS 1024 /* data connections */
#define MAX_PER_SOURCE 512 /* from one client address (connection-limit.h) */
/* A request has to move RATE_BYTES in each RATE_PERIOD, or its connection is closed. Once the
 * connection limits are reached, a request below this rate after its first second may lose its
 * connection to a new client. */
#define RATE_PERIOD (30 * WH_SECOND)
#define RATE_BYTES (UINT64_C(1) << 20)
/* The most bytes that one visit moves: more than a socket's buffer, which Linux limits to 6 MiB by
 * default. */
#define TURN (UINT64_C(8) << 20)
/* ns between two checks for requests that have waited too long */
#define EXPIRE_INTERVAL (WH_SECOND / 4)
/* Without EPOLLRDHUP, the peer's end of stream may cause no further event. */
#define INPUT (EPOLLIN | EPOLLRDHUP | EPOLLET)
#define OUTPUT (EPOLLOUT | EPOLLRDHUP | EPOLLET)
#define DRAINED (UINT64_C(64) << 20) /* bytes of a refused request that are read and discarded */

enum stage { HEADER, DEFERRED, WAIT, RECEIVE, ANSWER, SEND, DRAIN };

struct data {
	struct wh_source source;
	struct wh_mooncake_limited limited;
	struct wh_mooncake_server *server;
	struct wh_mooncake_turn turn;
	enum stage stage;
	uint32_t events;
	/* In this visit: a short recv() may not have emptied the socket; a read may be younger than
	 * requests on other connections. */
	bool to_the_end, defer_reads;
	/* the header being received, or the status being sent */
	unsigned char bytes[WH_MOONCAKE_HEADER];
	size_t got;
	struct wh_mooncake_request request;
	const struct wh_mooncake_memory *memory; /* NULL: refused */
	uint64_t done;
	int64_t since; /* start of the request, or of its current RATE_PERIOD, ns */
	uint64_t done_before; /* `done` at that time */
};

static void data_drop(struct data *data)
{
	struct wh_mooncake_server *server = data->server;

	wh_loop_remove(&server->loop, &data->source);
	wh_mooncake_limit_remove(&server->transfers, &data->limited);
	wh_mooncake_turn_close(&server->order, &data->turn);
	if (!wh_list_empty(&server->order.due))
		wh_loop_post(&server->loop, &server->resume);
	wh_mooncake_socket_close(data->source.fd);
	free(data);
}

/* Turn the result of a system call into that of a step: bytes moved; 0: wait for the socket; -1:
 * close the connection. */
static ssize_t data_outcome(ssize_t bytes)
{
	if (bytes > 0)
		return bytes;
	return bytes < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

/* Start a RATE_PERIOD. */
static void data_start_period(struct data *data, uint64_t done)
{
	data->since = wh_now();
	data->done = data->done_before = done;
}

/* ---- requests ------------------------------------------------------------------------------ */

/* The published memory that contains the whole request and permits it; NULL: none, and *why. */
static const struct wh_mooncake_memory *data_find_memory(const struct wh_mooncake_server *server,
							 const struct wh_mooncake_request *request,
							 const char **why)
{
	*why = "is not within published memory";
	if (!request->length)
		*why = "has length 0";
	for (size_t i = 0; i < server->options.count && request->length; i++) {
		const struct wh_mooncake_memory *memory = &server->options.memories[i];

		if (request->address < memory->address || request->length > memory->length ||
		    request->address - memory->address > memory->length - request->length)
			continue;
		if (!request->write || memory->writable)
			return memory;
		*why = "is for memory published read-only";
	}
	return NULL;
}

static void data_answer(struct data *data, int code)
{
	wh_mooncake_status_format(code, data->bytes);
	data->got = 0;
	data->stage = ANSWER;
}

static ssize_t data_refuse(struct data *data)
{
	data->memory = NULL;
	if (!data->request.status)
		return -1;
	data_answer(data, WH_MOONCAKE_REJECTED);
	return 1;
}

/* A write of version 1: the client gets no answer when it is complete. */
static bool data_is_unconfirmed(const struct data *data)
{
	return data->request.write && !data->request.status;
}

static void data_start(struct data *data)
{
	if (data->request.write)
		data->stage = RECEIVE;
	else if (data->request.status)
		data_answer(data, WH_MOONCAKE_OK);
	else
		data->stage = SEND;
}

static ssize_t data_wait(struct data *data)
{
	struct wh_mooncake_server *server = data->server;

	data->stage = WAIT;
	if (!server->patience.link.next)
		wh_timer_set(&server->loop, &server->patience, wh_now() + EXPIRE_INTERVAL);
	return 0;
}

/* Start the request, or let it wait for older ones of the same client (order.h). */
static ssize_t data_begin(struct data *data)
{
	const struct wh_mooncake_request *request = &data->request;

	if (!wh_mooncake_turn_begin(&data->server->order, &data->turn, request->address,
				    request->length, data_is_unconfirmed(data), data->since))
		return data_wait(data);
	data_start(data);
	return 1;
}

static ssize_t data_check_request(struct data *data)
{
	struct wh_mooncake_request *request = &data->request;
	const char *why;

	data->done = data->done_before = 0;
	if (wh_mooncake_request_parse(data->bytes, request)) {
		wh_mooncake_log(data->server, data->limited.source, "refused: %s", wh_fail_text());
		return data_refuse(data);
	}
	data->memory = data_find_memory(data->server, request, &why);
	if (!data->memory) {
		wh_mooncake_log(data->server, data->limited.source,
				"refused: a %s of %" PRIu64 " bytes at 0x%" PRIx64 " %s",
				request->write ? "write" : "read", request->length,
				request->address, why);
		return data_refuse(data);
	}
	if (data->defer_reads && !request->write) {
		data->stage = DEFERRED;
		return 0;
	}
	return data_begin(data);
}

static void data_end(struct data *data)
{
	data->stage = HEADER;
	data->got = 0;
}

/* ---- steps --------------------------------------------------------------------------------- */

static ssize_t data_take_header(struct data *data)
{
	ssize_t bytes = data_outcome(
		recv(data->source.fd, data->bytes + data->got, WH_MOONCAKE_HEADER - data->got, 0));

	if (bytes <= 0)
		return bytes;
	if (!data->got)
		data_start_period(data, 0);
	data->got += (size_t)bytes;
	return data->got == WH_MOONCAKE_HEADER ? data_check_request(data) : bytes;
}

/* The length of the next part; *out: its bytes, or the staging memory. */
static size_t data_next_bytes(const struct data *data, void **out)
{
	const struct wh_mooncake_server_options *options = &data->server->options;
	uint64_t left = data->request.length - data->done;
	uint64_t most = data->memory->staged ? options->staging_size : TURN;

	*out = data->memory->staged ? options->staging :
				      (void *)(uintptr_t)(data->request.address + data->done);
	return left < most ? (size_t)left : (size_t)most;
}

/* Copy a part between the staging memory and the request's memory, if that is staged. */
static int data_copy(const struct data *data, size_t length)
{
	const struct wh_mooncake_server_options *options = &data->server->options;
	int error;

	if (!data->memory->staged)
		return 0;
	error = options->copy(options->arg, data->memory,
			      data->request.address - data->memory->address + data->done, length,
			      data->request.write);
	if (error)
		wh_mooncake_log(data->server, data->limited.source,
				"cannot copy %zu bytes %s %s: %s", length,
				data->request.write ? "to" : "from", data->memory->name,
				strerror(-error));
	return error;
}

static ssize_t data_receive(struct data *data)
{
	void *to;
	size_t length = data_next_bytes(data, &to);
	ssize_t bytes = data_outcome(recv(data->source.fd, to, length, 0));

	if (bytes <= 0)
		return bytes;
	if (data_copy(data, (size_t)bytes))
		return data_refuse(data);
	data->done += (uint64_t)bytes;
	if (data_is_unconfirmed(data))
		wh_mooncake_turn_moved(&data->turn, wh_now());
	if (data->done < data->request.length)
		/* A short recv() has emptied the socket. */
		return (size_t)bytes < length && !data->to_the_end ? 0 : bytes;
	if (data->request.status) {
		data_answer(data, WH_MOONCAKE_OK);
	} else {
		wh_mooncake_turn_end(&data->server->order, &data->turn);
		data->defer_reads = true;
		data_end(data);
	}
	return bytes;
}

static ssize_t data_send_status(struct data *data)
{
	bool more = data->memory && !data->request.write;
	ssize_t bytes = data_outcome(send(data->source.fd, data->bytes + data->got,
					  WH_MOONCAKE_STATUS - data->got,
					  MSG_NOSIGNAL | (more ? MSG_MORE : 0)));

	if (bytes <= 0)
		return bytes;
	data->got += (size_t)bytes;
	if (data->got < WH_MOONCAKE_STATUS)
		return bytes;
	if (!data->memory) {
		/* Closing a socket with unread bytes resets it, and the status would be lost. */
		shutdown(data->source.fd, SHUT_WR);
		data->stage = DRAIN;
		data->done = data->done_before = 0;
	} else if (more) {
		data->stage = SEND;
	} else {
		data_end(data);
	}
	return bytes;
}

static ssize_t data_send_bytes(struct data *data)
{
	void *from;
	size_t length = data_next_bytes(data, &from);
	ssize_t bytes;

	/* All connections share the staging memory: bytes that the socket does not accept now are
	 * copied again later. */
	if (data_copy(data, length))
		return -1;
	bytes = data_outcome(send(data->source.fd, from, length, MSG_NOSIGNAL));
	if (bytes <= 0)
		return bytes;
	data->done += (uint64_t)bytes;
	if (data->done == data->request.length)
		data_end(data);
	return bytes;
}

static ssize_t data_drain(struct data *data)
{
	unsigned char bytes[16384];
	ssize_t got = data_outcome(recv(data->source.fd, bytes, sizeof(bytes), 0));

	if (got > 0)
		data->done += (uint64_t)got;
	return data->done > DRAINED ? -1 : got;
}

static ssize_t data_step(struct data *data)
{
	switch (data->stage) {
	case HEADER:
		return data_take_header(data);
	case DEFERRED:
		return data_begin(data);
	case WAIT:
		return 0;
	case RECEIVE:
		return data_receive(data);
	case ANSWER:
		return data_send_status(data);
	case SEND:
		return data_send_bytes(data);
	case DRAIN:
	default:
		return data_drain(data);
	}
}

/* ---- connections --------------------------------------------------------------------------- */

/* Progress the connection until its socket blocks or TURN bytes have moved. `events`: from epoll;
 * EPOLLRDHUP if none is known; 0 for a new connection. False: the connection was closed. */
static bool data_visit(struct data *data, uint32_t events)
{
	struct wh_mooncake_server *server = data->server;
	uint64_t moved = 0;
	uint32_t wanted;
	ssize_t bytes;

	data->to_the_end = !events || events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
	data->defer_reads = !events;
	while ((bytes = data_step(data)) > 0 && moved < TURN)
		moved += (uint64_t)bytes;
	server->moved += moved;
	if (bytes < 0) {
		data_drop(data);
		return false;
	}
	if (moved) {
		wh_list_remove(&data->limited.link);
		wh_list_append(&server->transfers.connections, &data->limited.link);
	}
	/* The socket is writable: waiting for that puts a deferred one behind all ready ones. */
	wanted = data->stage == DEFERRED || data->stage == ANSWER || data->stage == SEND ? OUTPUT :
											   INPUT;
	/* Bytes left after TURN, and space that was free before, cause no edge: re-arm. */
	if (wanted != data->events || bytes > 0 || data->stage == DEFERRED)
		wh_loop_modify(&server->loop, &data->source, wanted);
	data->events = wanted;
	return true;
}

/* Start requests that no longer have to wait, before newer ones. */
static void data_resume(struct wh_mooncake_server *server)
{
	struct wh_mooncake_turn *turn;

	while ((turn = wh_mooncake_order_next(&server->order))) {
		struct data *data = wh_container(turn, struct data, turn);

		data_start_period(data, 0);
		wh_mooncake_turn_moved(turn, data->since);
		data_start(data);
		data_visit(data, EPOLLRDHUP);
	}
}

static void data_resume_task(struct wh_task *task)
{
	data_resume(wh_container(task, struct wh_mooncake_server, resume));
}

static void data_patience(struct wh_timer *timer)
{
	struct wh_mooncake_server *server =
		wh_container(timer, struct wh_mooncake_server, patience);
	int64_t now = wh_now();

	if (wh_mooncake_order_expire(&server->order, now))
		wh_mooncake_log(server, 0,
				"requests of a client no longer wait for its unfinished "
				"write");
	data_resume(server);
	if (!wh_list_empty(&server->order.waiting))
		wh_timer_set(&server->loop, timer, now + EXPIRE_INTERVAL);
}

static void data_ready(struct wh_source *source, uint32_t events)
{
	struct data *data = wh_container(source, struct data, source);
	struct wh_mooncake_server *server = data->server;

	data_visit(data, events);
	data_resume(server);
}

static bool data_is_idle(const struct data *data)
{
	return data->stage == HEADER && !data->got;
}

/* Has a request moved too few bytes in `ago` ns, or since its RATE_PERIOD began? */
static bool data_is_slow(const struct data *data, int64_t ago)
{
	if (ago > RATE_PERIOD)
		ago = RATE_PERIOD;
	return !data_is_idle(data) &&
	       data->done - data->done_before < RATE_BYTES * (uint64_t)ago / (uint64_t)RATE_PERIOD;
}

static enum wh_mooncake_rank data_rank(const struct wh_mooncake_limited *limited)
{
	const struct data *data = wh_container(limited, struct data, limited);
	int64_t ago = wh_now() - data->since;

	if (data_is_idle(data))
		return WH_MOONCAKE_IDLE;
	return ago >= WH_SECOND && data_is_slow(data, ago) ? WH_MOONCAKE_SLOW : WH_MOONCAKE_PINNED;
}

void wh_mooncake_data_open(struct wh_mooncake_server *server)
{
	server->transfers = (struct wh_mooncake_limit){ .max = MAX_CONNECTIONS,
							.max_per_source = MAX_PER_SOURCE,
							.rank = data_rank };
	wh_list_init(&server->transfers.connections);
	wh_mooncake_order_open(&server->order);
	server->resume.run = data_resume_task;
	server->patience.fire = data_patience;
}

bool wh_mooncake_data_evict(struct wh_mooncake_server *server)
{
	struct wh_mooncake_limited *last = wh_mooncake_limit_lowest(&server->transfers);

	if (last)
		data_drop(wh_container(last, struct data, limited));
	return last != NULL;
}

void wh_mooncake_data_accepted(struct wh_mooncake_server *server, int fd,
			       const struct sockaddr_storage *from)
{
	struct wh_mooncake_limited *last = NULL;
	struct data *data;

	if (!wh_mooncake_limit_has_room(&server->transfers, from, &last)) {
		if (!last) {
			wh_mooncake_log(server, wh_address_prefix(from),
					"a data connection was refused: all %d, or all %d of its "
					"address, are busy",
					MAX_CONNECTIONS, MAX_PER_SOURCE);
			close(fd);
			return;
		}
		data_drop(wh_container(last, struct data, limited));
	}
	data = calloc(1, sizeof(*data));
	if (!data) {
		close(fd);
		return;
	}
	wh_mooncake_socket_tune(fd, from);
	data->source = (struct wh_source){ .fd = fd, .ready = data_ready };
	data->server = server;
	data->events = INPUT;
	wh_mooncake_limit_add(&server->transfers, &data->limited, from);
	wh_mooncake_turn_open(&data->turn, data->limited.source);
	/* Its bytes are older than those that earlier connections have yet to receive. */
	if (data_visit(data, 0) && wh_loop_add(&server->loop, &data->source, data->events))
		data_drop(data);
	data_resume(server);
}

/* Find the same memory in the new list; NULL: it is no longer published. */
static const struct wh_mooncake_memory *data_same_memory(const struct wh_mooncake_memory *memory,
							 const struct wh_mooncake_memory *memories,
							 size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (memories[i].address == memory->address &&
		    memories[i].length == memory->length && memories[i].arg == memory->arg &&
		    memories[i].writable == memory->writable &&
		    memories[i].staged == memory->staged)
			return &memories[i];
	return NULL;
}

void wh_mooncake_data_publish(struct wh_mooncake_server *server,
			      const struct wh_mooncake_memory *memories, size_t count)
{
	struct wh_list *next;

	for (struct wh_list *link = server->transfers.connections.next;
	     link != &server->transfers.connections; link = next) {
		struct data *data = wh_container(link, struct data, limited.link);

		next = link->next;
		if (data->stage == HEADER || !data->memory)
			continue;
		data->memory = data_same_memory(data->memory, memories, count);
		if (!data->memory)
			data_drop(data);
	}
}

void wh_mooncake_data_sweep(struct wh_mooncake_server *server, bool all)
{
	int64_t now = wh_now();
	struct wh_list *next;

	for (struct wh_list *link = server->transfers.connections.next;
	     link != &server->transfers.connections; link = next) {
		struct data *data = wh_container(link, struct data, limited.link);

		next = link->next;
		if (!all && now - data->since < RATE_PERIOD)
			continue;
		if (all || data_is_slow(data, RATE_PERIOD))
			data_drop(data);
		else if (!data_is_idle(data))
			data_start_period(data, data->done);
	}
}
