/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a data connection: its life, and what it does in one turn of its loop.
 *
 * Only the connection's loop uses it. A region is entered for one system call at a time, so that
 * unregistering it never waits for the peer. Bytes for an extent that does not exist, or no longer
 * exists, are received and discarded, and the response has the error.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/quota.h"
#include "transport/tcp/server.h"
#include "util/clock.h"

#define CONNECTIONS_MAX 64 /* per session */
/* Bytes of memory that every connection holds, charged to the quota. */
#define CONNECTION_BYTES                                                                           \
	(int64_t)(sizeof(struct tcp_server) + TCP_SERVER_IN + TCP_SERVER_TRASH + TCP_SERVER_OUT +  \
		  WH_REQUEST_EXTENTS * sizeof(struct tcp_extent))
/* bytes received before responses are sent early, so that the peer already sends more while the
 * rest is received */
#define ANSWER_BYTES (1u << 20)
/* bytes received in one turn, so that other connections get a turn */
#define TURN_BYTES (8u << 20)

/* The connections of one session. On loop 0. */
struct servers {
	struct wh_list list;
	unsigned count;
	unsigned first_loop; /* of index 0: tcp_number_index() */
};

void tcp_server_charge(struct tcp_server *server, int64_t bytes)
{
	server->charged += bytes;
	wh_quota_charge_buffered(server->quota, bytes);
}

/* ---- one turn ---------------------------------------------------------- */

/* Receive (if `readable`), process and respond until the socket is empty or the turn is over.
 * -EAGAIN, or the error that ends the connection. */
static int server_serve(struct tcp_server *server, bool readable)
{
	size_t turn = 0, answered = 0, expected;
	ssize_t got;
	int error, flushed;

	for (;;) {
		error = tcp_server_consume(server);
		if (error != -EAGAIN && error != -ENOBUFS)
			return error;
		/* It continues when a slot is free, or when a GPU has finished a write. */
		if (server->wants_slot ||
		    (error == -ENOBUFS && !server->out_length && !server->job_count))
			break;
		if (server->out_length || server->job_count) {
			/* Responses to small writes are sent together, after the loop. */
			if (error == -ENOBUFS || server->job_count ||
			    turn - answered >= ANSWER_BYTES) {
				answered = turn;
				flushed = tcp_server_flush(server);
				if (flushed && flushed != -EAGAIN)
					return flushed;
				if (error == -ENOBUFS && flushed)
					return -EAGAIN;
				if (error == -ENOBUFS)
					continue;
			}
		}
		/* Bytes that the channel holds raise no event: never leave them for later. */
		if (!readable || (turn > TURN_BYTES && !wh_channel_pending(server->channel)))
			break;
		got = tcp_server_receive(server, &expected);
		if (got == -EAGAIN)
			break;
		if (got < 0)
			return (int)got;
		turn += (size_t)got;
		/* A short read: the socket is empty; respond before receiving again. */
		if ((size_t)got < expected) {
			error = tcp_server_consume(server);
			if (error != -EAGAIN && error != -ENOBUFS)
				return error;
			/* Damage behind good bytes raises no event, either. */
			if (error == -EAGAIN && !wh_channel_pending(server->channel))
				break;
		}
	}
	error = tcp_server_flush(server);
	return error == 0 ? -EAGAIN : error;
}

/* ---- the connection's life --------------------------------------------- */

/* Free a connection that has stopped, or never started. On loop 0. */
static void server_free(struct wh_task *task)
{
	struct tcp_server *server = wh_container(task, struct tcp_server, free_task);
	struct wh_list *link;

	if (server->session) {
		struct servers *servers = wh_session_transport(server->session, WH_TRANSPORT_TCP);

		wh_list_remove(&server->link);
		servers->count--;
	}
	wh_timer_clear(&server->late);
	while ((link = wh_list_take(&server->arrived)))
		free(wh_container(link, struct tcp_write, link));
	free(server->in.bytes);
	free(server->own);
	free(server->trash);
	free(server->out);
	free(server);
}

/* Close the connection. On its loop. GPUs and file systems may still have bytes of it: `in_flight`.
 */
static void server_stop(void *argument)
{
	struct tcp_server *server = argument;
	const struct wh_config *config = wh_engine_config(server->engine);
	struct wh_list *link;

	if (server->dead)
		return;
	server->dead = true;
	server->patience = wh_deadline(config->number[WH_SETTING_TIMEOUT] * WH_MS);
	wh_list_remove(&server->spinner.link);
	wh_loop_remove(server->loop, &server->source);
	wh_channel_free(server->channel);
	server->channel = NULL;
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
	tcp_server_charge(server, -server->charged);
	if (!--server->chunk_count)
		tcp_server_post_free(server);
}

void tcp_server_post_free(struct tcp_server *server)
{
	/* All chunks are back, but a thread may be between posting the last one and counting it. */
	while (atomic_load(&server->in_flight))
		sched_yield();
	wh_loop_post(wh_engine_first_loop(server->engine), &server->free_task);
}

void tcp_server_turn(struct tcp_server *server, bool readable)
{
	uint64_t moved = server->moved;
	int error = server->dead || server->failed ? 0 : server_serve(server, readable);
	uint32_t events;

	if (server->dead)
		return;
	wh_loop_moved(server->loop, server->moved - moved);
	if (server->near)
		wh_engine_place_loop(server->engine, server->loop, server->moved - moved,
				     server->source.fd, true);
	if (server->failed)
		error = -ENOMEM;
	if (error && error != -EAGAIN) {
		if (error == -EBADMSG)
			wh_engine_report_damage(server->engine,
						wh_session_quota(server->session)->node.key,
						wh_session_hello(server->session)->name,
						wh_channel_text(server->channel));
		else if (error != -ECONNRESET && error != -EPIPE)
			wh_log_about(wh_engine_log(server->engine),
				     wh_session_quota(server->session)->node.key, WH_LOG_INFO,
				     "tcp", "data connection dropped: %s",
				     error == -EPROTO ? "the peer broke the protocol" :
							strerror(-error));
		server_stop(server);
		return;
	}
	events = (tcp_server_full(server) || server->wants_slot ? 0 : EPOLLIN) |
		 (((server->out_length || server->job_count) && !server->stalled) ||
				  wh_channel_unsent(server->channel) ?
			  EPOLLOUT :
			  0);
	if (events != server->events) {
		server->events = events;
		wh_loop_modify(server->loop, &server->source, events);
	}
}

static void server_ready(struct wh_source *source, uint32_t events)
{
	struct tcp_server *server = wh_container(source, struct tcp_server, source);

	/* EPOLLOUT alone: skip receiving, which would be a wasted system call. */
	tcp_server_turn(server, events != EPOLLOUT || server->channel);
}

static bool server_spin(struct wh_spinner *spinner)
{
	struct tcp_server *server = wh_container(spinner, struct tcp_server, spinner);
	uint64_t moved = server->moved;
	bool progress;

	server->chunk_count++; /* so that it is not buried before this returns */
	tcp_server_turn(server, true);
	progress = server->moved != moved;
	if (!--server->chunk_count && server->dead)
		tcp_server_post_free(server);
	return progress;
}

/* Start serving. On its loop. */
static void server_begin(void *argument)
{
	struct tcp_server *server = argument;

	if (wh_loop_add(server->loop, &server->source, EPOLLIN)) {
		server->dead = true;
		tcp_server_charge(server, -server->charged);
		wh_channel_free(server->channel);
		close(server->source.fd);
		wh_loop_post(wh_engine_first_loop(server->engine), &server->free_task);
		return;
	}
	if (server->loop->spin)
		wh_list_append(&server->loop->spinners, &server->spinner.link);
	/* Bytes that the channel received together with PROVE raise no event. */
	if (server->channel)
		tcp_server_turn(server, true);
}

static void server_late(struct wh_timer *timer)
{
	const struct tcp_server *server = wh_container(timer, struct tcp_server, late);

	if (atomic_load(&server->in_flight))
		wh_log_line(
			wh_engine_log(server->engine), WH_LOG_WARN, "tcp",
			"a file system or a GPU does not answer: bytes that a peer has sent may "
			"still be written although its connection is closed");
}

static struct tcp_server *server_new(struct wh_session *session, int fd, struct wh_channel *channel,
				     const struct wh_hello *hello, unsigned first_loop)
{
	struct tcp_server *server = calloc(1, sizeof(*server));

	if (!server)
		return NULL;
	server->source.fd = fd;
	server->channel = channel;
	server->source.ready = server_ready;
	server->events = EPOLLIN;
	server->spinner.poll = server_spin;
	server->free_task.run = server_free;
	server->late.fire = server_late;
	server->engine = wh_session_engine(session);
	server->session = session;
	server->quota = wh_session_quota(session);
	server->number = hello->connection;
	server->near =
		wh_engine_nearness(server->engine, wh_session_hello(session)) != WH_ELSEWHERE;
	server->loop = wh_engine_loop(wh_session_engine(session),
				      first_loop + tcp_number_index(hello->connection));
	server->in.room = TCP_SERVER_IN;
	server->in.bytes = malloc(TCP_SERVER_IN);
	server->own = malloc(WH_REQUEST_EXTENTS * sizeof(*server->own));
	server->extents = server->own;
	server->trash = malloc(TCP_SERVER_TRASH);
	server->out = malloc(TCP_SERVER_OUT);
	wh_list_init(&server->jobs);
	wh_list_init(&server->arrived);
	if (server->in.bytes && server->own && server->trash && server->out) {
		tcp_server_charge(server, CONNECTION_BYTES + wh_channel_held(channel));
		return server;
	}
	server->session = NULL;
	server_free(&server->free_task);
	return NULL;
}

int tcp_session_accept(struct wh_session *session, int fd, struct wh_channel *channel,
		       const struct wh_hello *hello)
{
	struct servers *servers = wh_session_transport(session, WH_TRANSPORT_TCP);
	struct tcp_server *server = NULL;

	if (!servers) {
		servers = calloc(1, sizeof(*servers));
		if (servers) {
			wh_list_init(&servers->list);
			servers->first_loop = wh_engine_next_loop(wh_session_engine(session));
		}
		wh_session_set_transport(session, WH_TRANSPORT_TCP, servers);
	}
	/* No frame follows PROVE, so the initiator cannot be sent the reason. */
	if (servers && servers->count < CONNECTIONS_MAX &&
	    !wh_quota_is_full(wh_session_quota(session)))
		server = server_new(session, fd, channel, hello, servers->first_loop);
	if (!server) {
		wh_log_about(
			wh_engine_log(wh_session_engine(session)),
			wh_session_quota(session)->node.key, WH_LOG_INFO, "tcp",
			"data connection from %s dropped: %s", wh_session_hello(session)->name,
			servers && servers->count == CONNECTIONS_MAX ?
				"its session has the most allowed" :
			wh_quota_is_full(wh_session_quota(session)) ?
				"its address has reached the limit of the setting max_buffered" :
				"no memory");
		wh_channel_free(channel);
		wh_socket_close(fd);
		return -EBUSY;
	}
	wh_session_stages(session);
	wh_socket_limit_buffers(wh_engine_config(wh_session_engine(session)), fd);
	wh_engine_count_connection(wh_session_engine(session));
	wh_list_append(&servers->list, &server->link);
	servers->count++;
	wh_loop_call(server->loop, server_begin, server);
	return 0;
}

/* Nothing here waits for GPUs and file systems: loop 0 serves all other peers. What they have begun
 * keeps its regions entered and its connection in memory. */
void tcp_session_close(struct wh_session *session)
{
	struct servers *servers = wh_session_transport(session, WH_TRANSPORT_TCP);
	struct wh_list *link;

	if (!servers)
		return;
	/* Loop 0 frees a connection that has stopped, but later, as this is loop 0. */
	while ((link = wh_list_take(&servers->list))) {
		struct tcp_server *server = wh_container(link, struct tcp_server, link);

		wh_loop_call(server->loop, server_stop, server);
		server->session = NULL;
		if (atomic_load(&server->in_flight))
			wh_timer_set(wh_engine_first_loop(server->engine), &server->late,
				     server->patience);
	}
	wh_session_set_transport(session, WH_TRANSPORT_TCP, NULL);
	free(servers);
}

int tcp_session_abort(struct wh_session *session, uint32_t number)
{
	struct servers *servers = wh_session_transport(session, WH_TRANSPORT_TCP);
	int error = 0;

	if (!servers)
		return 0;
	for (struct wh_list *l = servers->list.next; l != &servers->list; l = l->next) {
		struct tcp_server *server = wh_container(l, struct tcp_server, link);

		if (server->number != number)
			continue;
		wh_loop_call(server->loop, server_stop, server);
		if (atomic_load(&server->in_flight))
			error = wh_now() < server->patience ? -EAGAIN : -EBUSY;
	}
	return error;
}
