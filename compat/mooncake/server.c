/* SPDX-License-Identifier: Apache-2.0 */
/* The server's two ports, and its control connections: each carries one request and one reply. */
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compat/mooncake/internal.h"
#include "rendezvous/rendezvous.h"

#define MAX_CONNECTIONS 512 /* control connections */
#define MAX_PER_SOURCE 256 /* from one source */
#define MAX_BUFFERED_PER_SOURCE (32 << 20) /* bytes of requests and replies */
#define PATIENCE (10 * WH_SECOND) /* for a whole request and its reply */
#define FIRST_ROOM 4096 /* bytes; grows as they arrive */
/* Connections accepted in one turn of a listener, and the bytes moved in it. */
#define ACCEPT_CONTROL 16
#define ACCEPT_DATA 1024
#define ACCEPT_BYTES (UINT64_C(64) << 20)

enum stage { HEAD, BODY, REPLY, GOODBYE };

struct control {
	struct wh_source source;
	struct wh_mooncake_limited limited;
	struct wh_mooncake_server *server;
	enum stage stage;
	uint32_t events;
	int64_t deadline;
	unsigned char head[WH_MOONCAKE_FRAME_HEAD];
	unsigned char *bytes; /* the request behind its head; then the whole reply */
	size_t got, room;
	uint64_t length;
};

void wh_mooncake_log(struct wh_mooncake_server *server, uint64_t who, const char *format, ...)
{
	char line[WH_TEXT_MAX];
	enum wh_log_turn turn;
	va_list arguments;
	size_t used;

	if (!server->options.log)
		return;
	turn = wh_log_limit_take(&server->log_limit, who);
	if (turn == WH_LOG_NOT)
		return;
	va_start(arguments, format);
	vsnprintf(line, sizeof(line) - sizeof(WH_LOG_REST), format, arguments);
	va_end(arguments);
	used = strlen(line);
	if (turn == WH_LOG_LAST)
		snprintf(line + used, sizeof(line) - used, WH_LOG_REST);
	server->options.log(server->options.arg, line);
}

static void control_drop(struct control *control)
{
	struct wh_mooncake_server *server = control->server;

	wh_loop_remove(&server->loop, &control->source);
	wh_mooncake_limit_remove(&server->controls, &control->limited);
	wh_mooncake_socket_close(control->source.fd);
	free(control->bytes);
	free(control);
}

/* A client that has its reply loses nothing, and a genuine one sends its request at once. */
static enum wh_mooncake_rank control_rank(const struct wh_mooncake_limited *limited)
{
	const struct control *control = wh_container(limited, struct control, limited);

	if (control->stage == GOODBYE)
		return WH_MOONCAKE_IDLE;
	return control->stage == HEAD ? WH_MOONCAKE_SLOW : WH_MOONCAKE_BUSY;
}

/* Make room for `bytes` more from this source: its oldest other connections that buffer some are
 * closed. */
static void control_make_room(const struct control *control, size_t bytes)
{
	const struct wh_list *all = &control->server->controls.connections;
	struct wh_list *next;
	size_t held = bytes;

	for (struct wh_list *link = all->prev; link != all; link = next) {
		struct control *other = wh_container(link, struct control, limited.link);

		next = link->prev;
		if (other->limited.source != control->limited.source || !other->room)
			continue;
		held += other->room;
		if (held > MAX_BUFFERED_PER_SOURCE && other != control)
			control_drop(other);
	}
}

/* ---- answers ------------------------------------------------------------------------------- */

static void endpoint_split(const char *address, struct wh_mooncake_endpoint *out)
{
	/* wh_address_format() wrote it. */
	if (wh_mooncake_endpoint_read(address, out))
		memset(out, 0, sizeof(*out));
}

char *wh_mooncake_describe(const struct wh_mooncake_server *server, const char *host)
{
	const struct wh_mooncake_server_options *options = &server->options;
	struct wh_mooncake_segment segment = { .version = 2, .count = options->count };
	struct wh_mooncake_endpoint data, control;
	char *text;

	endpoint_split(server->data.address, &data);
	endpoint_split(server->control.address, &control);
	snprintf(control.host, sizeof(control.host), "%s", host);
	if (*server->name)
		snprintf(segment.name, sizeof(segment.name), "%s", server->name);
	else
		wh_mooncake_endpoint_text(&control, segment.name, sizeof(segment.name));
	snprintf(segment.host, sizeof(segment.host), "%s", host);
	segment.port = data.port;
	snprintf(segment.wherry, sizeof(segment.wherry), "%s", server->wherry);
	segment.epoch = options->epoch;
	segment.buffers = calloc(options->count + 1, sizeof(*segment.buffers));
	if (!segment.buffers)
		return NULL;
	for (size_t i = 0; i < options->count; i++) {
		segment.buffers[i].address = options->memories[i].address;
		segment.buffers[i].length = options->memories[i].length;
		memcpy(segment.buffers[i].name, options->memories[i].name,
		       sizeof(segment.buffers[i].name));
	}
	text = wh_mooncake_segment_format(&segment);
	free(segment.buffers);
	return text;
}

/* The segment, with the address that the peer connected to: the server may listen on all of them.
 */
static char *control_describe(const struct control *control)
{
	struct sockaddr_storage address;
	struct wh_mooncake_endpoint here;
	socklen_t length = sizeof(address);
	char text[64];

	if (getsockname(control->source.fd, (struct sockaddr *)&address, &length))
		return NULL;
	wh_address_format(text, sizeof(text), &address);
	endpoint_split(text, &here);
	return wh_mooncake_describe(control->server, here.host);
}

static char *control_take_notification(const struct control *control, const char *json,
				       size_t length)
{
	const struct wh_mooncake_server_options *options = &control->server->options;
	struct wh_mooncake_notify notify;
	int error = 0;

	if (wh_mooncake_notify_parse(json, length, &notify))
		return NULL;
	if (options->notified)
		error = options->notified(options->arg, notify.name, notify.message);
	wh_mooncake_notify_free(&notify);
	if (error) {
		wh_fail(-error, "mooncake: the notification was refused: %s", strerror(-error));
		return NULL;
	}
	return strdup("{\"name\":\"\",\"notify_msg\":\"success\"}");
}

/* The reply's JSON, malloc()ed; NULL: there is none, and the text says why. */
static char *control_answer(const struct control *control)
{
	const char *json = (const char *)control->bytes + 1;
	size_t length = (size_t)control->length - 1;

	switch (control->bytes[0]) {
	case WH_MOONCAKE_METADATA:
		/* The peer sends its own segment as well, which is not needed here. */
		return wh_mooncake_object_check(json, length) ? NULL : control_describe(control);
	case WH_MOONCAKE_NOTIFY:
		return control_take_notification(control, json, length);
	case WH_MOONCAKE_PROBE:
		return strdup("{\"status\":\"success\"}");
	case WH_MOONCAKE_CONNECTION:
		return strdup("{\"local_nic_path\":\"\",\"local_lid\":0,\"local_gid\":\"\","
			      "\"peer_nic_path\":\"\",\"qp_num\":[],\"payload\":\"\","
			      "\"reply_msg\":\"RDMA is not served here: use tcp\"}");
	default:
		wh_fail(EPROTO, "mooncake: a request of unknown type %u", control->bytes[0]);
		return NULL;
	}
}

/* The request is complete: the reply takes its place in the buffer. */
static int control_reply(struct control *control)
{
	char *json = control_answer(control);
	size_t length = json ? strlen(json) + 1 : 0;
	unsigned char *reply = json ? malloc(WH_MOONCAKE_FRAME_HEAD + length) : NULL;

	if (!reply) {
		wh_mooncake_log(control->server, control->limited.source,
				"a control request is not answered: %s",
				json ? strerror(ENOMEM) : wh_fail_text());
		free(json);
		return -1;
	}
	control_make_room(control, WH_MOONCAKE_FRAME_HEAD + length);
	wh_mooncake_frame_head(reply, length);
	reply[WH_MOONCAKE_FRAME_HEAD] = control->bytes[0];
	memcpy(reply + WH_MOONCAKE_FRAME_HEAD + 1, json, length - 1);
	free(json);
	free(control->bytes);
	control->bytes = reply;
	control->length = control->room = WH_MOONCAKE_FRAME_HEAD + length;
	control->got = 0;
	control->stage = REPLY;
	return 1;
}

/* ---- steps: 1: go on, 0: wait for the socket, -1: close -------------------------------------- */

static int control_outcome(ssize_t bytes)
{
	if (bytes > 0)
		return 1;
	return bytes < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int control_take_head(struct control *control)
{
	ssize_t bytes = recv(control->source.fd, control->head + control->got,
			     sizeof(control->head) - control->got, 0);

	if (bytes <= 0)
		return control_outcome(bytes);
	control->got += (size_t)bytes;
	if (control->got < sizeof(control->head))
		return 1;
	if (wh_mooncake_frame_length(control->head, &control->length)) {
		wh_mooncake_log(control->server, control->limited.source,
				"a control request is not answered: %s", wh_fail_text());
		return -1;
	}
	control->got = 0;
	control->stage = BODY;
	return 1;
}

/* The buffer grows with the bytes that arrive, not with the length that the peer announces. */
static int control_take_body(struct control *control)
{
	ssize_t bytes;

	if (control->got == control->room) {
		size_t room = control->room ? 2 * control->room : FIRST_ROOM;
		unsigned char *more;

		if (room > control->length)
			room = (size_t)control->length;
		control_make_room(control, room - control->room);
		more = realloc(control->bytes, room);
		if (!more)
			return -1;
		control->bytes = more;
		control->room = room;
	}
	bytes = recv(control->source.fd, control->bytes + control->got,
		     control->room - control->got, 0);
	if (bytes <= 0)
		return control_outcome(bytes);
	control->got += (size_t)bytes;
	return control->got == control->length ? control_reply(control) : 1;
}

static int control_send_reply(struct control *control)
{
	ssize_t bytes = send(control->source.fd, control->bytes + control->got,
			     (size_t)control->length - control->got, MSG_NOSIGNAL);

	if (bytes <= 0)
		return control_outcome(bytes);
	control->got += (size_t)bytes;
	if (control->got < control->length)
		return 1;
	shutdown(control->source.fd, SHUT_WR);
	control->stage = GOODBYE;
	return 1;
}

static int control_step(struct control *control)
{
	unsigned char bytes[64];

	switch (control->stage) {
	case HEAD:
		return control_take_head(control);
	case BODY:
		return control_take_body(control);
	case REPLY:
		return control_send_reply(control);
	case GOODBYE:
	default:
		/* The peer closes once it has the reply; any further byte ends the connection. */
		return control_outcome(recv(control->source.fd, bytes, sizeof(bytes), 0)) ? -1 : 0;
	}
}

static void control_ready(struct wh_source *source, uint32_t events)
{
	struct control *control = wh_container(source, struct control, source);
	uint32_t wanted;
	int more;

	(void)events;
	while ((more = control_step(control)) > 0)
		;
	if (more < 0) {
		control_drop(control);
		return;
	}
	wanted = control->stage == REPLY ? EPOLLOUT : EPOLLIN;
	if (wanted != control->events)
		wh_loop_modify(&control->server->loop, source, wanted);
	control->events = wanted;
}

static void control_accepted(struct wh_mooncake_server *server, int fd,
			     const struct sockaddr_storage *from)
{
	struct control *control = calloc(1, sizeof(*control));
	struct wh_mooncake_limited *last = NULL;

	if (!control) {
		close(fd);
		return;
	}
	if (!wh_mooncake_limit_has_room(&server->controls, from, &last))
		control_drop(wh_container(last, struct control, limited));
	control->source = (struct wh_source){ .fd = fd, .ready = control_ready };
	control->server = server;
	control->events = EPOLLIN;
	control->deadline = wh_now() + PATIENCE;
	if (wh_loop_add(&server->loop, &control->source, EPOLLIN)) {
		close(fd);
		free(control);
		return;
	}
	wh_mooncake_limit_add(&server->controls, &control->limited, from);
	/* Among many new connections the request is often there already: read it now, so that this
	 * connection does not rank as slow. */
	control_ready(&control->source, EPOLLIN);
}

/* ---- ports --------------------------------------------------------------------------------- */

static struct wh_mooncake_server *port_server(struct wh_listener *listener)
{
	return wh_container(listener, struct wh_mooncake_port, listener)->server;
}

static void port_control_accepted(struct wh_listener *listener, int fd,
				  const struct sockaddr_storage *from)
{
	control_accepted(port_server(listener), fd, from);
}

/* New connections bring requests with them. */
static void port_data_accepted(struct wh_listener *listener, int fd,
			       const struct sockaddr_storage *from)
{
	struct wh_mooncake_server *server = port_server(listener);

	if (listener->turn == 1)
		server->moved_before_turn = server->moved;
	wh_mooncake_data_accepted(server, fd, from);
	if (server->moved - server->moved_before_turn >= ACCEPT_BYTES)
		wh_listener_end_turn(listener);
}

static bool port_evict(struct wh_listener *listener)
{
	return wh_mooncake_data_evict(port_server(listener));
}

static void port_waits(struct wh_listener *listener, int error)
{
	wh_mooncake_log(port_server(listener), 0, "new connections have to wait: accept4: %s",
			strerror(error));
}

static int port_listen(struct wh_mooncake_port *port, const char *where)
{
	struct sockaddr_storage address[WH_RENDEZVOUS_MOST], bound;
	socklen_t length = sizeof(struct sockaddr_in6), bound_length = sizeof(bound);
	unsigned count;
	int error = wh_rendezvous_resolve(where, WH_RESOLVE_LISTENING, address, &count);
	int fd, one = 1;

	if (error)
		return error;
	fd = socket(address[0].ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return wh_fail(errno, "mooncake: socket: %s", strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (address[0].ss_family == AF_INET)
		length = sizeof(struct sockaddr_in);
	if (bind(fd, (struct sockaddr *)&address[0], length) || listen(fd, SOMAXCONN) ||
	    getsockname(fd, (struct sockaddr *)&bound, &bound_length)) {
		error = wh_fail(errno, "mooncake: cannot listen at %.80s: %s", where,
				strerror(errno));
		close(fd);
		return error;
	}
	wh_address_format(port->address, sizeof(port->address), &bound);
	port->fd = fd;
	return 0;
}

/* The data port is a free port of the control port's address. */
static int server_listen(struct wh_mooncake_server *server, const char *where)
{
	struct wh_mooncake_endpoint endpoint;
	char free_port[WH_MOONCAKE_NAME_MAX + 10];
	int error = port_listen(&server->control, where);

	if (error)
		return error;
	endpoint_split(server->control.address, &endpoint);
	endpoint.port = 0;
	wh_mooncake_endpoint_text(&endpoint, free_port, sizeof(free_port));
	return port_listen(&server->data, free_port);
}

/* ---- the server ---------------------------------------------------------------------------- */

static void server_sweep(struct wh_timer *timer)
{
	struct wh_mooncake_server *server = wh_container(timer, struct wh_mooncake_server, sweep);
	int64_t now = wh_now();

	while (!wh_list_empty(&server->controls.connections)) {
		struct control *oldest = wh_container(server->controls.connections.next,
						      struct control, limited.link);

		if (oldest->deadline > now)
			break;
		control_drop(oldest);
	}
	wh_mooncake_data_sweep(server, false);
	wh_timer_set(&server->loop, timer, now + WH_SECOND);
}

struct start {
	struct wh_mooncake_server *server;
	int error;
	char text[WH_TEXT_MAX];
};

static void server_start(void *argument)
{
	struct start *start = argument;
	struct wh_mooncake_server *server = start->server;

	start->error =
		wh_listener_open(&server->control.listener, &server->loop, server->control.fd);
	if (!start->error) {
		start->error =
			wh_listener_open(&server->data.listener, &server->loop, server->data.fd);
		if (start->error)
			wh_listener_close(&server->control.listener);
	}
	if (start->error)
		snprintf(start->text, sizeof(start->text), "%s", wh_fail_text());
	else
		wh_timer_set(&server->loop, &server->sweep, wh_now() + WH_SECOND);
}

static void server_stop(void *argument)
{
	struct wh_mooncake_server *server = argument;

	wh_timer_clear(&server->sweep);
	wh_timer_clear(&server->patience);
	wh_listener_close(&server->control.listener);
	wh_listener_close(&server->data.listener);
	wh_mooncake_data_sweep(server, true);
	while (!wh_list_empty(&server->controls.connections))
		control_drop(wh_container(server->controls.connections.next, struct control,
					  limited.link));
}

static void server_close_ports(struct wh_mooncake_server *server)
{
	if (server->control.fd >= 0)
		wh_mooncake_socket_close(server->control.fd);
	if (server->data.fd >= 0)
		wh_mooncake_socket_close(server->data.fd);
}

int wh_mooncake_serve(const struct wh_mooncake_server_options *options,
		      struct wh_mooncake_server **out)
{
	struct wh_mooncake_server *server = calloc(1, sizeof(*server));
	struct start begin = { .server = server };
	int error;

	if (!server)
		return wh_fail(ENOMEM, "mooncake: no memory");
	server->options = *options;
	server->options.listen = NULL;
	if (options->name)
		snprintf(server->name, sizeof(server->name), "%s", options->name);
	server->options.name = server->name;
	if (options->wherry)
		snprintf(server->wherry, sizeof(server->wherry), "%s", options->wherry);
	server->options.wherry = server->wherry;
	server->control = (struct wh_mooncake_port){
		.fd = -1,
		.server = server,
		.listener = {
			.accepted = port_control_accepted,
			.evict = port_evict,
			.waits = port_waits,
			.flags = SOCK_NONBLOCK,
			.turn_max = ACCEPT_CONTROL,
		},
	};
	server->data = server->control;
	/* The server visits requests in their order of arrival (data.c), those on new connections
	 * included: it accepts all that wait before it visits older connections again. */
	server->data.listener.accepted = port_data_accepted;
	server->data.listener.turn_max = ACCEPT_DATA;
	server->data.listener.edge_triggered = true;
	server->sweep.fire = server_sweep;
	server->controls = (struct wh_mooncake_limit){ .max = MAX_CONNECTIONS,
						       .max_per_source = MAX_PER_SOURCE,
						       .rank = control_rank };
	wh_list_init(&server->controls.connections);
	wh_mooncake_data_open(server);
	error = server_listen(server, options->listen);
	if (!error)
		error = wh_loop_start(&server->loop, "wherry-mooncake", false, NULL);
	if (error)
		goto err_free;
	wh_loop_call(&server->loop, server_start, &begin);
	if (begin.error) {
		error = wh_fail(-begin.error, "%s", begin.text);
		wh_loop_stop(&server->loop);
		goto err_free;
	}
	*out = server;
	return 0;
err_free:
	server_close_ports(server);
	free(server);
	return error;
}

struct update {
	struct wh_mooncake_server *server;
	const struct wh_mooncake_memory *memories;
	size_t count;
	void *staging;
};

static void server_update(void *argument)
{
	const struct update *update = argument;
	struct wh_mooncake_server *server = update->server;

	wh_mooncake_data_publish(server, update->memories, update->count);
	server->options.memories = update->memories;
	server->options.count = update->count;
	server->options.staging = update->staging;
}

void wh_mooncake_update(struct wh_mooncake_server *server,
			const struct wh_mooncake_memory *memories, size_t count, void *staging)
{
	struct update next = {
		.server = server, .memories = memories, .count = count, .staging = staging
	};

	wh_loop_call(&server->loop, server_update, &next);
}

void wh_mooncake_stop(struct wh_mooncake_server *server)
{
	if (!server)
		return;
	wh_loop_call(&server->loop, server_stop, server);
	wh_loop_stop(&server->loop);
	server_close_ports(server);
	free(server);
}

const char *wh_mooncake_control(const struct wh_mooncake_server *server)
{
	return server->control.address;
}

const char *wh_mooncake_data(const struct wh_mooncake_server *server)
{
	return server->data.address;
}
