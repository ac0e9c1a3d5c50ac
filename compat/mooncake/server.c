/* SPDX-License-Identifier: Apache-2.0 */
/* The server's listeners, and its control connections: one question, one answer, and the end. */
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

#define MOST 512 /* control connections */
#define MOST_PLACE 256 /* from one place */
#define HELD_PLACE (32 << 20) /* bytes of their questions and answers */
#define PATIENCE (10 * WH_SECOND) /* for all of a question and its answer */
#define FIRST_ROOM 4096 /* bytes; more as they come */
/* Connections that are accepted before others have their turn, and the bytes that these may bring
 * with them. */
#define ACCEPT_CONTROL 16
#define ACCEPT_DATA 1024
#define ACCEPT_BYTES (UINT64_C(64) << 20)

enum stage { HEAD, BODY, REPLY, GOODBYE };

struct control {
	struct wh_source source;
	struct wh_mooncake_limited guest;
	struct wh_mooncake_server *server;
	enum stage stage;
	uint32_t events;
	int64_t deadline;
	unsigned char head[WH_MOONCAKE_FRAME_HEAD];
	unsigned char *bytes; /* behind the head; then the whole reply */
	size_t got, room;
	uint64_t length;
};

void wh_mooncake_log(const struct wh_mooncake_server *server, const char *format, ...)
{
	char line[WH_TEXT_MAX];
	va_list arguments;

	if (!server->options.log)
		return;
	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	server->options.log(server->options.arg, line);
}

static void drop(struct control *control)
{
	struct wh_mooncake_server *server = control->server;

	wh_loop_remove(&server->loop, &control->source);
	wh_mooncake_limit_leave(&server->asking, &control->guest);
	close(control->source.fd);
	free(control->bytes);
	free(control);
}

/* Who has its answer loses nothing; who means it asks at once. */
static enum wh_mooncake_worth worth(const struct wh_mooncake_limited *guest)
{
	const struct control *control = wh_container(guest, struct control, guest);

	if (control->stage == GOODBYE)
		return WH_MOONCAKE_DONE;
	return control->stage == HEAD ? WH_MOONCAKE_LAZY : WH_MOONCAKE_WORKING;
}

/* Before there are so many bytes more from its place: the oldest others that have some go. */
static void make_room(const struct control *control, size_t bytes)
{
	const struct wh_list *all = &control->server->asking.guests;
	struct wh_list *next;
	size_t held = bytes;

	for (struct wh_list *link = all->prev; link != all; link = next) {
		struct control *other = wh_container(link, struct control, guest.link);

		next = link->prev;
		if (other->guest.place != control->guest.place || !other->room)
			continue;
		held += other->room;
		if (held > HELD_PLACE && other != control)
			drop(other);
	}
}

/* ---- answers ------------------------------------------------------------------------------- */

static void split(const char *address, struct wh_mooncake_endpoint *out)
{
	/* It was formatted here. */
	if (wh_mooncake_endpoint_read(address, out))
		memset(out, 0, sizeof(*out));
}

char *wh_mooncake_describe(const struct wh_mooncake_server *server, const char *host)
{
	const struct wh_mooncake_server_options *options = &server->options;
	struct wh_mooncake_segment segment = { .version = 2, .count = options->count };
	struct wh_mooncake_endpoint data, control;
	char *text;

	split(server->data.address, &data);
	split(server->control.address, &control);
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

/* With the address that the peer itself has reached, for we may listen on all. */
static char *describe_to(const struct control *control)
{
	struct sockaddr_storage address;
	struct wh_mooncake_endpoint here;
	socklen_t length = sizeof(address);
	char text[64];

	if (getsockname(control->source.fd, (struct sockaddr *)&address, &length))
		return NULL;
	wh_address_format(text, sizeof(text), &address);
	split(text, &here);
	return wh_mooncake_describe(control->server, here.host);
}

static char *take_notification(const struct control *control, const char *json, size_t length)
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
		wh_fail(-error, "a notification is not taken: %s", strerror(-error));
		return NULL;
	}
	return strdup("{\"name\":\"\",\"notify_msg\":\"success\"}");
}

/* malloc()ed; NULL: none, and the text says why. */
static char *answer_to(const struct control *control)
{
	const char *json = (const char *)control->bytes + 1;
	size_t length = (size_t)control->length - 1;

	switch (control->bytes[0]) {
	case WH_MOONCAKE_METADATA:
		/* Of what the peer publishes nothing is asked of it: it asks us. */
		return wh_mooncake_object_check(json, length) ? NULL : describe_to(control);
	case WH_MOONCAKE_NOTIFY:
		return take_notification(control, json, length);
	case WH_MOONCAKE_PROBE:
		return strdup("{\"status\":\"success\"}");
	case WH_MOONCAKE_CONNECTION:
		return strdup("{\"local_nic_path\":\"\",\"local_lid\":0,\"local_gid\":\"\","
			      "\"peer_nic_path\":\"\",\"qp_num\":[],\"payload\":\"\","
			      "\"reply_msg\":\"RDMA is not served here: use tcp\"}");
	default:
		wh_fail(EPROTO, "mooncake: a question of type %u, which is not known",
			control->bytes[0]);
		return NULL;
	}
}

/* The question has come: the reply takes its place. */
static int turn_round(struct control *control)
{
	char *json = answer_to(control);
	size_t length = json ? strlen(json) + 1 : 0;
	unsigned char *reply = json ? malloc(WH_MOONCAKE_FRAME_HEAD + length) : NULL;

	if (!reply) {
		wh_mooncake_log(control->server, "a question is not answered: %s",
				json ? strerror(ENOMEM) : wh_fail_text());
		free(json);
		return -1;
	}
	make_room(control, WH_MOONCAKE_FRAME_HEAD + length);
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

/* ---- steps: more than 0: go on, 0: not now, less: the end ------------------------------------ */

static int outcome(ssize_t bytes)
{
	if (bytes > 0)
		return 1;
	return bytes < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int take_head(struct control *control)
{
	ssize_t bytes = recv(control->source.fd, control->head + control->got,
			     sizeof(control->head) - control->got, 0);

	if (bytes <= 0)
		return outcome(bytes);
	control->got += (size_t)bytes;
	if (control->got < sizeof(control->head))
		return 1;
	if (wh_mooncake_frame_length(control->head, &control->length)) {
		wh_mooncake_log(control->server, "a question is not answered: %s", wh_fail_text());
		return -1;
	}
	control->got = 0;
	control->stage = BODY;
	return 1;
}

/* Memory is taken as the bytes come, not as many as are announced. */
static int take_body(struct control *control)
{
	ssize_t bytes;

	if (control->got == control->room) {
		size_t room = control->room ? 2 * control->room : FIRST_ROOM;
		unsigned char *more;

		if (room > control->length)
			room = (size_t)control->length;
		make_room(control, room - control->room);
		more = realloc(control->bytes, room);
		if (!more)
			return -1;
		control->bytes = more;
		control->room = room;
	}
	bytes = recv(control->source.fd, control->bytes + control->got,
		     control->room - control->got, 0);
	if (bytes <= 0)
		return outcome(bytes);
	control->got += (size_t)bytes;
	return control->got == control->length ? turn_round(control) : 1;
}

static int send_reply(struct control *control)
{
	ssize_t bytes = send(control->source.fd, control->bytes + control->got,
			     (size_t)control->length - control->got, MSG_NOSIGNAL);

	if (bytes <= 0)
		return outcome(bytes);
	control->got += (size_t)bytes;
	if (control->got < control->length)
		return 1;
	shutdown(control->source.fd, SHUT_WR);
	control->stage = GOODBYE;
	return 1;
}

static int step(struct control *control)
{
	unsigned char bytes[64];

	switch (control->stage) {
	case HEAD:
		return take_head(control);
	case BODY:
		return take_body(control);
	case REPLY:
		return send_reply(control);
	case GOODBYE:
	default:
		/* The peer closes when it has the answer; what else it sends is not waited for. */
		return outcome(recv(control->source.fd, bytes, sizeof(bytes), 0)) ? -1 : 0;
	}
}

static void ready(struct wh_source *source, uint32_t events)
{
	struct control *control = wh_container(source, struct control, source);
	uint32_t wanted;
	int more;

	(void)events;
	while ((more = step(control)) > 0)
		;
	if (more < 0) {
		drop(control);
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
	if (!wh_mooncake_limit_room(&server->asking, from, &last))
		drop(wh_container(last, struct control, guest));
	control->source = (struct wh_source){ .fd = fd, .ready = ready };
	control->server = server;
	control->events = EPOLLIN;
	control->deadline = wh_now() + PATIENCE;
	if (wh_loop_add(&server->loop, &control->source, EPOLLIN)) {
		close(fd);
		free(control);
		return;
	}
	wh_mooncake_limit_enter(&server->asking, &control->guest, from);
	/* Where many come, its question has been waiting: the sooner it is heard, the less it is
	 * taken for one of those that never ask. */
	ready(&control->source, EPOLLIN);
}

/* ---- listeners ----------------------------------------------------------------------------- */

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
	wh_mooncake_log(port_server(listener), "new connections have to wait: accept4: %s",
			strerror(error));
}

static int port_listen(struct wh_mooncake_port *port, const char *where)
{
	struct sockaddr_storage address[WH_RENDEZVOUS_MOST], bound;
	socklen_t length = sizeof(struct sockaddr_in6), bound_length = sizeof(bound);
	unsigned count;
	int fd, one = 1, error = wh_rendezvous_resolve(where, true, address, &count);

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

/* The data port is a free one of the same address. */
static int listen_both(struct wh_mooncake_server *server, const char *where)
{
	struct wh_mooncake_endpoint endpoint;
	char free_port[WH_MOONCAKE_NAME_MAX + 10];
	int error = port_listen(&server->control, where);

	if (error)
		return error;
	split(server->control.address, &endpoint);
	endpoint.port = 0;
	wh_mooncake_endpoint_text(&endpoint, free_port, sizeof(free_port));
	return port_listen(&server->data, free_port);
}

/* ---- the server ---------------------------------------------------------------------------- */

static void sweep(struct wh_timer *timer)
{
	struct wh_mooncake_server *server = wh_container(timer, struct wh_mooncake_server, sweep);
	int64_t now = wh_now();

	while (!wh_list_empty(&server->asking.guests)) {
		struct control *oldest =
			wh_container(server->asking.guests.next, struct control, guest.link);

		if (oldest->deadline > now)
			break;
		drop(oldest);
	}
	wh_mooncake_data_sweep(server, false);
	wh_timer_set(&server->loop, timer, now + WH_SECOND);
}

struct start {
	struct wh_mooncake_server *server;
	int error;
	char text[WH_TEXT_MAX];
};

static void start(void *argument)
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

static void stop(void *argument)
{
	struct wh_mooncake_server *server = argument;

	wh_timer_clear(&server->sweep);
	wh_timer_clear(&server->patience);
	wh_listener_close(&server->control.listener);
	wh_listener_close(&server->data.listener);
	wh_mooncake_data_sweep(server, true);
	while (!wh_list_empty(&server->asking.guests))
		drop(wh_container(server->asking.guests.next, struct control, guest.link));
}

static void close_listeners(struct wh_mooncake_server *server)
{
	if (server->control.fd >= 0)
		close(server->control.fd);
	if (server->data.fd >= 0)
		close(server->data.fd);
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
	server->sweep.fire = sweep;
	server->asking = (struct wh_mooncake_limit){ .most = MOST,
						     .most_place = MOST_PLACE,
						     .worth = worth };
	wh_list_init(&server->asking.guests);
	wh_mooncake_data_open(server);
	error = listen_both(server, options->listen);
	if (!error)
		error = wh_loop_start(&server->loop, "wherry-mooncake", false);
	if (error)
		goto err_free;
	wh_loop_call(&server->loop, start, &begin);
	if (begin.error) {
		error = wh_fail(-begin.error, "%s", begin.text);
		wh_loop_stop(&server->loop);
		goto err_free;
	}
	*out = server;
	return 0;
err_free:
	close_listeners(server);
	free(server);
	return error;
}

struct update {
	struct wh_mooncake_server *server;
	const struct wh_mooncake_memory *memories;
	size_t count;
	void *staging;
};

static void update(void *argument)
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

	wh_loop_call(&server->loop, update, &next);
}

void wh_mooncake_stop(struct wh_mooncake_server *server)
{
	if (!server)
		return;
	wh_loop_call(&server->loop, stop, server);
	wh_loop_stop(&server->loop);
	close_listeners(server);
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
