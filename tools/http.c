/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP server with limits: libmicrohttpd on a thread of its own, whose connections are closed by
 * deadline and by rank when there are too many. */
#include "http.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/address.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/listener.h"
#include "util/loop.h"

/* Connections shut down here that libmicrohttpd has not closed yet. */
#define ENDING 64

struct http_connection {
	struct wh_list link; /* in `waiting` or `asking`; in neither once it is shut down */
	int fd;
	uint64_t source; /* address or network, of wh_address_prefix() */
	int64_t deadline;
	bool asking; /* the head of a request has arrived and the answer is not complete */
};

struct http_server {
	struct http_options options;
	struct MHD_Daemon *daemon;
	struct wh_loop loop;
	struct wh_listener listener;
	struct wh_source ready; /* libmicrohttpd's epoll descriptor */
	struct wh_timer soon; /* libmicrohttpd wants to run without an event */
	struct wh_timer deadlines;
	struct wh_timer tick;
	struct wh_list waiting, asking; /* connections, the earliest deadline first */
	unsigned count; /* in both lists */
};

/* ---- connections ----------------------------------------------------------------------------- */

static void http_turn(struct http_server *server)
{
	MHD_UNSIGNED_LONG_LONG ms;

	MHD_run(server->daemon);
	if (MHD_get_timeout(server->daemon, &ms) == MHD_YES)
		wh_timer_set(&server->loop, &server->soon, wh_now() + (int64_t)ms * WH_MS);
	else
		wh_timer_clear(&server->soon);
}

/* Shut down: libmicrohttpd notices the end and closes the connection. */
static void http_abort(struct http_server *server, struct http_connection *connection)
{
	wh_list_remove(&connection->link);
	server->count--;
	shutdown(connection->fd, SHUT_RDWR);
}

/* Set a new deadline. All deadlines of a list are equally far away, so the list
 * stays sorted when the connection goes to its end. */
static void http_await(struct http_server *server, struct http_connection *connection, bool asking)
{
	if (!connection->link.next)
		return;
	wh_list_remove(&connection->link);
	connection->asking = asking;
	connection->deadline = wh_now() + (asking ? server->options.rest : server->options.head);
	wh_list_append(asking ? &server->asking : &server->waiting, &connection->link);
	if (!server->deadlines.link.next || connection->deadline < server->deadlines.at)
		wh_timer_set(&server->loop, &server->deadlines, connection->deadline);
}

static void http_sweep(struct wh_timer *timer)
{
	struct http_server *server = wh_container(timer, struct http_server, deadlines);
	struct wh_list *lists[] = { &server->waiting, &server->asking };
	int64_t now = wh_now(), next = INT64_MAX;

	for (int i = 0; i < 2; i++)
		while (!wh_list_empty(lists[i])) {
			struct http_connection *first =
				wh_container(lists[i]->next, struct http_connection, link);

			if (first->deadline > now) {
				next = first->deadline < next ? first->deadline : next;
				break;
			}
			http_abort(server, first);
		}
	if (next != INT64_MAX)
		wh_timer_set(&server->loop, timer, next);
}

/* The connection to close first, among those from `source` or, without one, among all; and how many
 * there are. */
static struct http_connection *http_least_wanted(struct http_server *server, const uint64_t *source,
						 unsigned *count)
{
	struct wh_list *lists[] = { &server->waiting, &server->asking };
	struct http_connection *first = NULL;

	*count = 0;
	for (int i = 0; i < 2; i++)
		for (struct wh_list *l = lists[i]->next; l != lists[i]; l = l->next) {
			struct http_connection *connection =
				wh_container(l, struct http_connection, link);

			if (source && connection->source != *source)
				continue;
			(*count)++;
			if (!first)
				first = connection;
		}
	return first;
}

/* Make room for one more connection from `source`. */
static void http_make_room(struct http_server *server, uint64_t source)
{
	unsigned count;
	struct http_connection *last = http_least_wanted(server, &source, &count);

	if (count < server->options.of_address)
		last = server->count < server->options.connections ?
			       NULL :
			       http_least_wanted(server, NULL, &count);
	if (last)
		http_abort(server, last);
}

static void http_connected(struct http_server *server, struct MHD_Connection *connection,
			   void **context)
{
	/* Newer versions of libmicrohttpd give the same client_context for each answer. */
	int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
	const void *from = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)
				   ->client_addr;
	struct http_connection *one = calloc(1, sizeof(*one));

	*context = one;
	if (!one) {
		/* Without a deadline the connection must not stay. */
		shutdown(fd, SHUT_RDWR);
		return;
	}
	one->fd = fd;
	one->source = wh_address_prefix(from);
	http_make_room(server, one->source);
	wh_list_append(&server->waiting, &one->link);
	server->count++;
	http_await(server, one, false);
}

static void http_notify(void *arg, struct MHD_Connection *connection, void **context,
			enum MHD_ConnectionNotificationCode code)
{
	struct http_server *server = arg;
	struct http_connection *one = *context;

	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		http_connected(server, connection, context);
	} else if (one) {
		if (one->link.next)
			server->count--;
		wh_list_remove(&one->link);
		free(one);
		*context = NULL;
	}
}

static struct http_connection *http_of(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
		->socket_context;
}

/* ---- requests -------------------------------------------------------------------------------- */

static enum MHD_Result http_handle(void *arg, struct MHD_Connection *connection, const char *path,
				   const char *method, const char *version, const char *data,
				   size_t *length, void **state)
{
	struct http_server *server = arg;
	struct http_connection *one = http_of(connection);
	bool first, last;
	enum MHD_Result result;

	if (!one)
		return MHD_NO;
	first = !one->asking;
	last = !first && !*length;
	if (first)
		http_await(server, one, true);
	result = server->options.handle(server->options.arg, connection, path, method, version,
					data, length, state);
	/* The time taken to make the answer is not the client's. */
	if (last)
		http_await(server, one, true);
	return result;
}

static void http_done(void *arg, struct MHD_Connection *connection, void **state,
		      enum MHD_RequestTerminationCode code)
{
	struct http_server *server = arg;
	struct http_connection *one = http_of(connection);

	if (server->options.done)
		server->options.done(server->options.arg, connection, state, code);
	if (one)
		http_await(server, one, false);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void http_ready(struct wh_source *source, uint32_t events)
{
	(void)events;
	http_turn(wh_container(source, struct http_server, ready));
}

static void http_soon(struct wh_timer *timer)
{
	http_turn(wh_container(timer, struct http_server, soon));
}

static void http_tick(struct wh_timer *timer)
{
	struct http_server *server = wh_container(timer, struct http_server, tick);

	server->options.tick(server->options.arg);
	wh_timer_set(&server->loop, timer, wh_now() + server->options.every);
}

static void http_accepted(struct wh_listener *listener, int fd, const struct sockaddr_storage *from)
{
	struct http_server *server = wh_container(listener, struct http_server, listener);

	/* It closes a connection that it cannot take. */
	MHD_add_connection(server->daemon, fd, (const struct sockaddr *)from,
			   from->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
							 sizeof(struct sockaddr_in));
	http_turn(server);
}

static void http_begin(void *arg)
{
	struct http_server *server = arg;

	if (server->options.tick)
		wh_timer_set(&server->loop, &server->tick, wh_now() + server->options.every);
}

static void http_end(void *arg)
{
	struct http_server *server = arg;

	wh_listener_close(&server->listener);
	wh_loop_remove(&server->loop, &server->ready);
	MHD_stop_daemon(server->daemon);
	wh_timer_clear(&server->soon);
	wh_timer_clear(&server->deadlines);
	wh_timer_clear(&server->tick);
}

static struct MHD_Daemon *http_daemon(struct http_server *server)
{
	return MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL,
				http_handle, server, MHD_OPTION_NOTIFY_COMPLETED, http_done, server,
				MHD_OPTION_NOTIFY_CONNECTION, http_notify, server,
				MHD_OPTION_CONNECTION_LIMIT, server->options.connections + ENDING,
				MHD_OPTION_CONNECTION_MEMORY_LIMIT, server->options.memory,
				MHD_OPTION_END);
}

int http_start(const struct http_options *options, int listener, struct http_server **out)
{
	struct http_server *server = calloc(1, sizeof(*server));
	int error = -ENOMEM;

	if (!server)
		goto err_close;
	server->options = *options;
	wh_list_init(&server->waiting);
	wh_list_init(&server->asking);
	server->ready.ready = http_ready;
	server->soon.fire = http_soon;
	server->deadlines.fire = http_sweep;
	server->tick.fire = http_tick;
	server->listener.accepted = http_accepted;
	server->listener.flags = SOCK_NONBLOCK;
	/* For accepted sockets, which inherit it; the kernel allocates twice as much. */
	if (options->unread)
		setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &options->unread,
			   sizeof(options->unread));
	server->daemon = http_daemon(server);
	if (!server->daemon)
		goto err_free;
	server->ready.fd = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
	error = wh_loop_start(&server->loop, "wherry/http", false, NULL);
	if (error)
		goto err_daemon;
	error = wh_loop_add(&server->loop, &server->ready, EPOLLIN);
	if (error)
		goto err_loop;
	wh_loop_call(&server->loop, http_begin, server);
	error = wh_listener_open(&server->listener, &server->loop, listener);
	if (error) {
		http_stop(server);
		return error;
	}
	*out = server;
	return 0;

err_loop:
	wh_loop_stop(&server->loop);
err_daemon:
	MHD_stop_daemon(server->daemon);
err_free:
	free(server);
err_close:
	close(listener);
	return error;
}

void http_stop(struct http_server *server)
{
	wh_loop_call(&server->loop, http_end, server);
	wh_loop_stop(&server->loop);
	close(server->listener.source.fd);
	free(server);
}
