/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data connections of the server. Requests come one after the other on each; all connections are
 * served by one thread, which never waits for a peer: what a peer does not send or take, the sweep
 * ends after a while.
 *
 * A read is begun after all writes that came before it, whatever their connections, and writes are
 * begun in the order in which they came. epoll keeps it: edge-triggered, it hands out descriptors
 * in the order in which they became ready. (Level-triggered it puts one that it has handed out back
 * into its list at once, ahead of those where something comes before the next look.) For that each
 * visit to a connection takes all that its socket has, or TURN, which is more; a new connection is
 * visited when it is accepted; and a read that may have come later than its connection became
 * ready, because that is new or because an unconfirmed write stands before it, is begun when all
 * others that were ready have been visited. What is not known of two writes that came before the
 * server looked is which is the older one, if one is on a new connection and the other is not, or
 * stands behind another write.
 *
 * A request for bytes of an older write that has not come in full may have to wait: order.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compat/mooncake/internal.h"

#define MOST 1024 /* connections */
#define MOST_PLACE 512 /* from one place */
/* In the middle of a request so many bytes have to move in that time, or it is over; where there is
 * no room for another connection, as many a second as that makes, after the first. */
#define WINDOW (30 * WH_SECOND)
#define LEAST (UINT64_C(1) << 20)
/* Bytes, before others have theirs: more than a socket's buffer holds, of 6 MiB where the system's
 * limit is as usual. */
#define TURN (UINT64_C(8) << 20)
/* how often it is seen whether a request has waited for too long */
#define IMPATIENCE (WH_SECOND / 4)
/* After the end of the peer's bytes no event comes any more: EPOLLRDHUP says that it is there to be
 * read. */
#define INPUT (EPOLLIN | EPOLLRDHUP | EPOLLET)
#define OUTPUT (EPOLLOUT | EPOLLRDHUP | EPOLLET)
#define DRAINED (UINT64_C(64) << 20) /* bytes of a refused request that are read and forgotten */

enum stage { HEADER, DEFERRED, WAIT, RECEIVE, ANSWER, SEND, DRAIN };

struct data {
	struct wh_source source;
	struct wh_mooncake_limited guest;
	struct wh_mooncake_server *server;
	struct wh_mooncake_turn turn;
	enum stage stage;
	uint32_t events;
	/* In this visit: what is less than was asked for may not be all there is; reads may have
	 * come later than what other connections have. */
	bool to_the_end, defer_reads;
	/* of a header that comes or a status that goes */
	unsigned char bytes[WH_MOONCAKE_HEADER];
	size_t got;
	struct wh_mooncake_request request;
	const struct wh_mooncake_memory *memory; /* NULL: refused */
	uint64_t done;
	int64_t since; /* when its request began, or the window in which it is looked at */
	uint64_t already; /* `done` then */
};

static void drop(struct data *data)
{
	struct wh_mooncake_server *server = data->server;

	wh_loop_remove(&server->loop, &data->source);
	wh_mooncake_limit_leave(&server->moving, &data->guest);
	wh_mooncake_turn_close(&server->order, &data->turn);
	if (!wh_list_empty(&server->order.due))
		wh_loop_post(&server->loop, &server->resume);
	close(data->source.fd);
	free(data);
}

/* What a system call said, as a step says it: bytes, 0 for not now, -1 for the end. */
static ssize_t outcome(ssize_t bytes)
{
	if (bytes > 0)
		return bytes;
	return bytes < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

/* From here on it has to move. */
static void look(struct data *data, uint64_t done)
{
	data->since = wh_now();
	data->done = data->already = done;
}

/* ---- requests ------------------------------------------------------------------------------ */

/* All of it in one memory, and its owner allows it? Else NULL, and *why. */
static const struct wh_mooncake_memory *check(const struct wh_mooncake_server *server,
					      const struct wh_mooncake_request *request,
					      const char **why)
{
	*why = "is not in what is published";
	if (!request->length)
		*why = "has no length";
	for (size_t i = 0; i < server->options.count && request->length; i++) {
		const struct wh_mooncake_memory *memory = &server->options.memories[i];

		if (request->address < memory->address || request->length > memory->length ||
		    request->address - memory->address > memory->length - request->length)
			continue;
		if (!request->write || memory->writable)
			return memory;
		*why = "may not be written";
	}
	return NULL;
}

static void answer(struct data *data, int code)
{
	wh_mooncake_status_format(code, data->bytes);
	data->got = 0;
	data->stage = ANSWER;
}

static ssize_t refuse(struct data *data)
{
	data->memory = NULL;
	if (!data->request.status)
		return -1;
	answer(data, WH_MOONCAKE_REJECTED);
	return 1;
}

/* A write of which the client does not learn when it is over. */
static bool data_is_unconfirmed(const struct data *data)
{
	return data->request.write && !data->request.status;
}

static void data_start(struct data *data)
{
	if (data->request.write)
		data->stage = RECEIVE;
	else if (data->request.status)
		answer(data, WH_MOONCAKE_OK);
	else
		data->stage = SEND;
}

static ssize_t data_wait(struct data *data)
{
	struct wh_mooncake_server *server = data->server;

	data->stage = WAIT;
	if (!server->patience.link.next)
		wh_timer_set(&server->loop, &server->patience, wh_now() + IMPATIENCE);
	return 0;
}

/* In its turn among the requests of its address. */
static ssize_t data_begin(struct data *data)
{
	const struct wh_mooncake_request *request = &data->request;

	if (!wh_mooncake_turn_begin(&data->server->order, &data->turn, request->address,
				    request->length, data_is_unconfirmed(data), data->since))
		return data_wait(data);
	data_start(data);
	return 1;
}

static ssize_t begin(struct data *data)
{
	struct wh_mooncake_request *request = &data->request;
	const char *why;

	data->done = data->already = 0;
	if (wh_mooncake_request_parse(data->bytes, request)) {
		wh_mooncake_log(data->server, "refused: %s", wh_fail_text());
		return refuse(data);
	}
	data->memory = check(data->server, request, &why);
	if (!data->memory) {
		wh_mooncake_log(
			data->server, "refused: a %s of %" PRIu64 " bytes at 0x%" PRIx64 " %s",
			request->write ? "write" : "read", request->length, request->address, why);
		return refuse(data);
	}
	if (data->defer_reads && !request->write) {
		data->stage = DEFERRED;
		return 0;
	}
	return data_begin(data);
}

static void end(struct data *data)
{
	data->stage = HEADER;
	data->got = 0;
}

/* ---- steps --------------------------------------------------------------------------------- */

static ssize_t take_header(struct data *data)
{
	ssize_t bytes = outcome(
		recv(data->source.fd, data->bytes + data->got, WH_MOONCAKE_HEADER - data->got, 0));

	if (bytes <= 0)
		return bytes;
	if (!data->got)
		look(data, 0);
	data->got += (size_t)bytes;
	return data->got == WH_MOONCAKE_HEADER ? begin(data) : bytes;
}

/* How many bytes next, and where they are, or are staged. */
static size_t next_bytes(const struct data *data, void **out)
{
	const struct wh_mooncake_server_options *options = &data->server->options;
	uint64_t left = data->request.length - data->done;
	uint64_t most = data->memory->staged ? options->staging_size : TURN;

	*out = data->memory->staged ? options->staging :
				      (void *)(uintptr_t)(data->request.address + data->done);
	return left < most ? (size_t)left : (size_t)most;
}

/* Between the staging memory and the one that the request is for. */
static int copy(const struct data *data, size_t length)
{
	const struct wh_mooncake_server_options *options = &data->server->options;
	int error;

	if (!data->memory->staged)
		return 0;
	error = options->copy(options->arg, data->memory,
			      data->request.address - data->memory->address + data->done, length,
			      data->request.write);
	if (error)
		wh_mooncake_log(data->server, "cannot copy %zu bytes %s %s: %s", length,
				data->request.write ? "to" : "from", data->memory->name,
				strerror(-error));
	return error;
}

static ssize_t receive(struct data *data)
{
	void *to;
	size_t length = next_bytes(data, &to);
	ssize_t bytes = outcome(recv(data->source.fd, to, length, 0));

	if (bytes <= 0)
		return bytes;
	if (copy(data, (size_t)bytes))
		return refuse(data);
	data->done += (uint64_t)bytes;
	if (data_is_unconfirmed(data))
		wh_mooncake_turn_moved(&data->turn, wh_now());
	if (data->done < data->request.length)
		/* that was all there is */
		return (size_t)bytes < length && !data->to_the_end ? 0 : bytes;
	if (data->request.status) {
		answer(data, WH_MOONCAKE_OK);
	} else {
		wh_mooncake_turn_end(&data->server->order, &data->turn);
		data->defer_reads = true;
		end(data);
	}
	return bytes;
}

static ssize_t send_status(struct data *data)
{
	bool more = data->memory && !data->request.write;
	ssize_t bytes =
		outcome(send(data->source.fd, data->bytes + data->got,
			     WH_MOONCAKE_STATUS - data->got, MSG_NOSIGNAL | (more ? MSG_MORE : 0)));

	if (bytes <= 0)
		return bytes;
	data->got += (size_t)bytes;
	if (data->got < WH_MOONCAKE_STATUS)
		return bytes;
	if (!data->memory) {
		/* Closed with bytes unread, the connection would be reset, and the status lost. */
		shutdown(data->source.fd, SHUT_WR);
		data->stage = DRAIN;
		data->done = data->already = 0;
	} else if (more) {
		data->stage = SEND;
	} else {
		end(data);
	}
	return bytes;
}

static ssize_t send_bytes(struct data *data)
{
	void *from;
	size_t length = next_bytes(data, &from);
	ssize_t bytes;

	/* What a staged connection does not take now is copied again later, so that connections can
	 * share the staging memory. */
	if (copy(data, length))
		return -1;
	bytes = outcome(send(data->source.fd, from, length, MSG_NOSIGNAL));
	if (bytes <= 0)
		return bytes;
	data->done += (uint64_t)bytes;
	if (data->done == data->request.length)
		end(data);
	return bytes;
}

static ssize_t drain(struct data *data)
{
	unsigned char bytes[16384];
	ssize_t got = outcome(recv(data->source.fd, bytes, sizeof(bytes), 0));

	if (got > 0)
		data->done += (uint64_t)got;
	return data->done > DRAINED ? -1 : got;
}

static ssize_t step(struct data *data)
{
	switch (data->stage) {
	case HEADER:
		return take_header(data);
	case DEFERRED:
		return data_begin(data);
	case WAIT:
		return 0;
	case RECEIVE:
		return receive(data);
	case ANSWER:
		return send_status(data);
	case SEND:
		return send_bytes(data);
	case DRAIN:
	default:
		return drain(data);
	}
}

/* ---- connections --------------------------------------------------------------------------- */

/* Do what can be done now. `events`: what epoll said; EPOLLRDHUP: there may be anything; 0: it is
 * new, and there may be anything. False: the connection is gone. */
static bool data_visit(struct data *data, uint32_t events)
{
	struct wh_mooncake_server *server = data->server;
	uint64_t moved = 0;
	uint32_t wanted;
	ssize_t bytes;

	data->to_the_end = !events || events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
	data->defer_reads = !events;
	while ((bytes = step(data)) > 0 && moved < TURN)
		moved += (uint64_t)bytes;
	server->moved += moved;
	if (bytes < 0) {
		drop(data);
		return false;
	}
	if (moved) {
		wh_list_remove(&data->guest.link);
		wh_list_append(&server->moving.guests, &data->guest.link);
	}
	/* Room to send in, which there is, puts a deferred one behind all that are ready. */
	wanted = data->stage == DEFERRED || data->stage == ANSWER || data->stage == SEND ? OUTPUT :
											   INPUT;
	/* Neither what is still there after TURN nor room that was there before causes an event of
	 * its own. */
	if (wanted != data->events || bytes > 0 || data->stage == DEFERRED)
		wh_loop_modify(&server->loop, &data->source, wanted);
	data->events = wanted;
	return true;
}

/* Go on with requests that need not wait any longer, before newer ones are begun. */
static void data_resume(struct wh_mooncake_server *server)
{
	struct wh_mooncake_turn *turn;

	while ((turn = wh_mooncake_order_next(&server->order))) {
		struct data *data = wh_container(turn, struct data, turn);

		look(data, 0);
		wh_mooncake_turn_moved(turn, data->since);
		data_start(data);
		data_visit(data, EPOLLRDHUP);
	}
}

static void resume(struct wh_task *task)
{
	data_resume(wh_container(task, struct wh_mooncake_server, resume));
}

static void patience(struct wh_timer *timer)
{
	struct wh_mooncake_server *server =
		wh_container(timer, struct wh_mooncake_server, patience);
	int64_t now = wh_now();

	if (wh_mooncake_order_expire(&server->order, now))
		wh_mooncake_log(server, "an unfinished write is not waited for any longer by "
					"requests of the same address");
	data_resume(server);
	if (!wh_list_empty(&server->order.waiting))
		wh_timer_set(&server->loop, timer, now + IMPATIENCE);
}

static void ready(struct wh_source *source, uint32_t events)
{
	struct data *data = wh_container(source, struct data, source);
	struct wh_mooncake_server *server = data->server;

	data_visit(data, events);
	data_resume(server);
}

static bool is_idle(const struct data *data)
{
	return data->stage == HEADER && !data->got;
}

/* Since a time ago, of more than nothing, it has moved less than it should. */
static bool is_lazy(const struct data *data, int64_t ago)
{
	if (ago > WINDOW)
		ago = WINDOW;
	return !is_idle(data) &&
	       data->done - data->already < LEAST * (uint64_t)ago / (uint64_t)WINDOW;
}

static enum wh_mooncake_worth worth(const struct wh_mooncake_limited *guest)
{
	const struct data *data = wh_container(guest, struct data, guest);
	int64_t ago = wh_now() - data->since;

	if (is_idle(data))
		return WH_MOONCAKE_DONE;
	return ago >= WH_SECOND && is_lazy(data, ago) ? WH_MOONCAKE_LAZY : WH_MOONCAKE_STAYS;
}

void wh_mooncake_data_open(struct wh_mooncake_server *server)
{
	server->moving = (struct wh_mooncake_limit){ .most = MOST,
						     .most_place = MOST_PLACE,
						     .worth = worth };
	wh_list_init(&server->moving.guests);
	wh_mooncake_order_open(&server->order);
	server->resume.run = resume;
	server->patience.fire = patience;
}

bool wh_mooncake_data_evict(struct wh_mooncake_server *server)
{
	struct wh_mooncake_limited *last = wh_mooncake_limit_least(&server->moving);

	if (last)
		drop(wh_container(last, struct data, guest));
	return last != NULL;
}

void wh_mooncake_data_accepted(struct wh_mooncake_server *server, int fd,
			       const struct sockaddr_storage *from)
{
	struct wh_mooncake_limited *last = NULL;
	struct data *data;

	if (!wh_mooncake_limit_room(&server->moving, from, &last)) {
		if (!last) {
			wh_mooncake_log(server,
					"a data connection is closed: %d others, %d of one "
					"address, are at work",
					MOST, MOST_PLACE);
			close(fd);
			return;
		}
		drop(wh_container(last, struct data, guest));
	}
	data = calloc(1, sizeof(*data));
	if (!data) {
		close(fd);
		return;
	}
	wh_mooncake_socket_tune(fd, from);
	data->source = (struct wh_source){ .fd = fd, .ready = ready };
	data->server = server;
	data->events = INPUT;
	wh_mooncake_limit_enter(&server->moving, &data->guest, from);
	wh_mooncake_turn_open(&data->turn, data->guest.place);
	/* What it has brought is older than what older connections are going to have. */
	if (data_visit(data, 0) && wh_loop_add(&server->loop, &data->source, data->events))
		drop(data);
	data_resume(server);
}

/* The same memory among those that are published now, else NULL. */
static const struct wh_mooncake_memory *same(const struct wh_mooncake_memory *memory,
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

	for (struct wh_list *link = server->moving.guests.next; link != &server->moving.guests;
	     link = next) {
		struct data *data = wh_container(link, struct data, guest.link);

		next = link->next;
		if (data->stage == HEADER || !data->memory)
			continue;
		data->memory = same(data->memory, memories, count);
		if (!data->memory)
			drop(data);
	}
}

void wh_mooncake_data_sweep(struct wh_mooncake_server *server, bool all)
{
	int64_t now = wh_now();
	struct wh_list *next;

	for (struct wh_list *link = server->moving.guests.next; link != &server->moving.guests;
	     link = next) {
		struct data *data = wh_container(link, struct data, guest.link);

		next = link->next;
		if (!all && now - data->since < WINDOW)
			continue;
		if (all || is_lazy(data, WINDOW))
			drop(data);
		else if (!is_idle(data))
			look(data, data->done);
	}
}
