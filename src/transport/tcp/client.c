/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator's connections: open, own, break, reconnect.
 *
 * Three kinds of threads work on a connection: submitters, the waiter that owns it, and its loop.
 * Each takes the lock and sends and receives what it can. A thread that finds it locked sets
 * `again`, and the holder does one more turn. Only the loop removes the descriptor from its epoll
 * set and closes it.
 *
 * A broken connection may have left requests in the peer's receive buffer. The peer would execute
 * them even after another connection has repeated and completed them. So no request is sent again
 * until the peer has confirmed that it closed the broken connection (ABORT on the control
 * connection), or the peer is lost.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/stream.h"
#include "net/tls.h"
#include "transport/tcp/tcp.h"
#include "util/clock.h"
#include "util/futex.h"

#define RETRY_PAUSE (50 * WH_MS)
/* How often a waiter wakes to check for completions that do not come through its socket. */
#define LOOK_UP (50 * WH_MS)
/* After a request, its response, or another one, is expected for this long; else peer_look() of
 * tcp.c sends what waits. */
#define RESPONSE_SOON WH_MS
/* A connection that is not open after so long has a reason. */
#define SERVED_SOON WH_SECOND

/* Which thread does a turn of work. */
enum who {
	LOOP, /* or any thread that acts for it */
	SUBMITTER, /* sends, does not receive */
	SPINNER, /* the same, and will poll or wait for the response itself */
	OWNER, /* the waiter that owns the connection */
};

/* ---- one turn of work, under the lock ---------------------------------- */

/* Are bytes left to be sent? */
static bool client_has_unsent(const struct tcp_client *client)
{
	return client->sending || wh_channel_unsent(client->channel);
}

/* Register the epoll events that the loop has to wait for. Under the lock. */
static void client_arm(struct tcp_client *client, enum who who)
{
	bool owned = atomic_load(&client->owned);
	uint32_t events = 0;

	if (client->source.fd < 0 || who == OWNER)
		return;
	if (client->state == TCP_CONNECTING)
		events = EPOLLOUT;
	else if (client->state == TCP_GREETING || client->state == TCP_SHAKING)
		events = EPOLLIN | (wh_channel_unsent(client->channel) ? EPOLLOUT : 0);
	else if (client->state == TCP_OPEN)
		/* A sleeping owner polls for input, but may not know that bytes are left to
		 * be sent. */
		events = (!owned && atomic_load(&client->outstanding) ? EPOLLIN : 0) |
			 (client_has_unsent(client) ? EPOLLOUT : 0);
	/* A spinner is about to own the connection, or polls it: the loop is not needed. */
	if (events == client->armed ||
	    (who == SPINNER && client->state == TCP_OPEN && !client_has_unsent(client)))
		return;
	client->armed = events;
	wh_loop_modify(client->loop, &client->source, events ? events | EPOLLONESHOT : 0);
}

/* Unlock, then do the work of any thread that found it locked. */
static void client_unlock(struct tcp_client *client)
{
	pthread_mutex_unlock(&client->lock);
	if (atomic_load(&client->again))
		tcp_client_pump(client);
}

/* Is it the peer's turn to accept it, or to answer? */
static bool client_is_opening(const struct tcp_client *client)
{
	return client->state >= TCP_CONNECTING && client->state < TCP_OPEN;
}

/* It is one step further on its way to be open, and the next one has its own time. */
static void client_step(struct tcp_client *client, enum tcp_state state)
{
	client->state = state;
	client->stepped = wh_now();
}

/* Mark the connection broken and have the loop clean up. Under the lock. */
static void client_mark_broken(struct tcp_client *client, int error)
{
	if (client->state == TCP_CLOSED || client->state >= TCP_BROKEN)
		return;
	client->error = error;
	client->was_open = client->state == TCP_OPEN;
	if (client->was_open && !client->latency)
		atomic_fetch_sub(&client->tcp->serving, 1);
	client->state = TCP_BROKEN;
	/* Wakes a waiter that polls the socket, and stops all sending and receiving. */
	shutdown(client->source.fd, SHUT_RDWR);
	wh_loop_post(client->loop, &client->cleanup);
}

_Static_assert(sizeof(struct wh_greeting) <= WH_REQUEST_META,
	       "the request buffer must hold a HELLO");

/* The HELLO as it was sent: the proofs cover it. It uses the buffer of later requests. */
static struct wh_greeting *client_sent_hello(struct tcp_client *client)
{
	return (struct wh_greeting *)client->head;
}

/* Send a few bytes of the handshake, which always fit an empty socket buffer. */
static int client_send_handshake(struct tcp_client *client, const void *bytes, size_t length)
{
	struct iovec part = { (void *)bytes, length };

	return wh_channel_send(client->source.fd, client->channel, &part, 1) == (ssize_t)length ?
		       0 :
		       -ECONNRESET;
}

static int client_send_hello(struct tcp_client *client)
{
	struct wh_greeting *hello = client_sent_hello(client);
	int error = wh_peer_hello(client->tcp->peer, WH_ROLE_DATA, client->number, hello);

	return error ? error : client_send_handshake(client, hello->bytes, hello->length);
}

static int client_finish_connect(struct tcp_client *client)
{
	struct pollfd look = { client->source.fd, POLLOUT, 0 };
	socklen_t length = sizeof(int);
	int error = 0;

	if (poll(&look, 1, 0) != 1)
		return -EAGAIN;
	if (getsockopt(client->source.fd, SOL_SOCKET, SO_ERROR, &error, &length))
		error = errno;
	if (error)
		return -error;
	wh_socket_limit_buffers(wh_engine_config(wh_peer_engine(client->tcp->peer)),
				client->source.fd);
	if (!wh_engine_tls(wh_peer_engine(client->tcp->peer))) {
		error = client_send_hello(client);
		client_step(client, TCP_GREETING);
		return error;
	}
	client->channel = wh_tls_channel_new(wh_engine_tls(wh_peer_engine(client->tcp->peer)),
					     client->source.fd, false);
	client_step(client, TCP_SHAKING);
	return client->channel ? 0 : -ENOMEM;
}

static int client_shake_tls(struct tcp_client *client)
{
	int error = wh_channel_handshake(client->channel);

	if (error && error != -EAGAIN)
		wh_log_about(wh_engine_log(wh_peer_engine(client->tcp->peer)),
			     (uintptr_t)client->tcp->peer, WH_LOG_INFO, "tcp",
			     "TLS handshake of a data connection to %s failed: %s",
			     wh_peer_name(client->tcp->peer), wh_channel_text(client->channel));
	if (!error)
		error = client_send_hello(client);
	if (!error)
		client_step(client, TCP_GREETING);
	return error;
}

/* A connection was opened, or cannot be: nobody has to wait for it any more. */
static void client_not_wanted(struct tcp_client *client)
{
	if (!atomic_exchange(&client->wanted, false))
		return;
	atomic_fetch_add(&client->tcp->changed, 1);
	wh_futex_wake(&client->tcp->changed);
}

static int client_read_welcome(struct tcp_client *client)
{
	struct tcp_in *in = &client->in;
	struct wh_channel *records = NULL;
	uint8_t proof[WH_PROVE_SIZE];
	struct wh_frame frame;
	ssize_t got;
	int error;

	got = tcp_receive(client->source.fd, client->channel, NULL, 0, 0, in, TCP_IN);
	if (got <= 0)
		return !got ? -ECONNRESET : errno == EINTR ? -EAGAIN : -errno;
	if (in->length < WH_FRAME_HEADER)
		return -EAGAIN;
	error = wh_frame_decode(in->bytes + in->start, &frame);
	if (error || frame.length > WH_HELLO_MAX)
		return -EPROTO;
	if (in->length < WH_FRAME_HEADER + frame.length)
		return -EAGAIN;
	if (frame.type == WH_FRAME_REFUSED) {
		char text[WH_REFUSAL_MAX];

		error = EPROTO;
		wh_refusal_decode(in->bytes + in->start + WH_FRAME_HEADER, frame.length, &error,
				  text);
		wh_log_about(wh_engine_log(wh_peer_engine(client->tcp->peer)),
			     (uintptr_t)client->tcp->peer, WH_LOG_INFO, "tcp",
			     "%s refused a data connection: %s", wh_peer_name(client->tcp->peer),
			     text);
		return -error;
	}
	if (frame.type != WH_FRAME_WELCOME || in->length != WH_FRAME_HEADER + frame.length)
		return -EPROTO;
	error = wh_peer_prove(client->tcp->peer, WH_ROLE_DATA, client->source.fd, client->channel,
			      client_sent_hello(client), in->bytes + in->start + WH_FRAME_HEADER,
			      frame.length, proof);
	if (!error)
		error = wh_handshake_channel(client_sent_hello(client),
					     in->bytes + in->start + WH_FRAME_HEADER, frame.length,
					     client->source.fd, false, &records);
	if (records)
		client->channel = records;
	if (!error)
		error = client_send_handshake(client, proof, sizeof(proof));
	if (error)
		return error;
	in->start = in->length = 0;
	client->state = TCP_OPEN;
	if (!client->latency)
		atomic_fetch_add(&client->tcp->serving, 1);
	atomic_store(&client->unserved, false);
	wh_engine_count_connection(wh_peer_engine(client->tcp->peer));
	client->failing_since = 0;
	client->used = wh_now();
	client_not_wanted(client);
	return 0;
}

static int client_open(struct tcp_client *client)
{
	struct tcp_peer *tcp = client->tcp;
	int fd, error;

	if (!client->head) {
		client->head = malloc(WH_REQUEST_SIZE + WH_REQUEST_META);
		client->in.bytes = malloc(TCP_IN);
		client->in.room = TCP_IN;
		if (!client->head || !client->in.bytes) {
			free(client->head);
			free(client->in.bytes);
			client->head = client->in.bytes = NULL;
			return -ENOMEM;
		}
	}
	client->number = tcp_number_next(client->number);
	client->in.start = client->in.length = 0;
	fd = tcp_connect(wh_peer_engine(tcp->peer), &tcp->address);
	if (fd < 0)
		return fd;
	client->source.fd = fd;
	error = wh_loop_add(client->loop, &client->source, 0);
	if (error) {
		close(fd);
		client->source.fd = -1;
		return error;
	}
	client->armed = 0;
	client_step(client, TCP_CONNECTING);
	wh_loop_post(client->loop, &client->cleanup); /* which sets a timer for it */
	return 0;
}

/* Is there anything to send or receive on it? */
static bool client_has_work(struct tcp_client *client)
{
	struct tcp_peer *tcp = client->tcp;
	bool more;

	if (atomic_load(&tcp->lost))
		return false;
	if (atomic_load(&client->outstanding) || atomic_load(&client->wanted))
		return true;
	pthread_mutex_lock(&tcp->lock);
	more = !wh_list_empty(&client->mine) || (!client->latency && !wh_list_empty(&tcp->shared));
	pthread_mutex_unlock(&tcp->lock);
	return more;
}

/* Connecting failed: have the loop try again later. */
static void client_retry_later(struct tcp_client *client, int error)
{
	client->error = error;
	if (!client->failing_since)
		client->failing_since = wh_now();
	wh_loop_post(client->loop, &client->cleanup);
}

/* Do all work that is possible without waiting. Under the lock. */
static void client_turn(struct tcp_client *client, enum who who, struct wh_list *done)
{
	int error = 0;

	if (client->state == TCP_CLOSED) {
		if (!client_has_work(client) || client->failing_since)
			return;
		error = client_open(client);
		if (error) {
			client_retry_later(client, error);
			return;
		}
	}
	if (client->state == TCP_CONNECTING)
		error = client_finish_connect(client);
	if (!error && client->state == TCP_SHAKING)
		error = client_shake_tls(client);
	if (!error && client->state == TCP_GREETING)
		error = client_read_welcome(client);
	if (!error && client->state == TCP_OPEN) {
		/* Only the owner receives: it sleeps on the socket, and would not notice bytes
		 * that another thread received. */
		error = who == OWNER || (who == LOOP && !atomic_load(&client->owned)) ?
				tcp_flow_receive(client, done) :
				-EAGAIN;
		if (error == -EAGAIN)
			error = tcp_flow_send(client, who == OWNER);
	}
	if (error == -EBADMSG)
		wh_engine_report_damage(
			wh_peer_engine(client->tcp->peer), (uintptr_t)client->tcp->peer,
			wh_peer_name(client->tcp->peer), wh_channel_text(client->channel));
	if (error && error != -EAGAIN)
		client_mark_broken(client, error);
	else
		client_arm(client, who);
}

static void client_pump(struct tcp_client *client, enum who who)
{
	struct wh_list done;
	uint64_t moved;

	wh_list_init(&done);
	atomic_fetch_add(&client->users, 1);
	atomic_store(&client->again, true);
	/* A holder of the lock checks `again` after it unlocks. */
	while (atomic_load(&client->again) && !pthread_mutex_trylock(&client->lock)) {
		atomic_store(&client->again, false);
		moved = client->moved;
		client_turn(client, who, &done);
		moved = client->moved - moved;
		pthread_mutex_unlock(&client->lock);
		wh_loop_moved(client->loop, moved);
		if (moved && client->tcp->near)
			wh_engine_place_loop(wh_peer_engine(client->tcp->peer), client->loop, moved,
					     -1, false);
		tcp_fragments_done(&done);
	}
	atomic_fetch_sub(&client->users, 1);
}

void tcp_client_pump(struct tcp_client *client)
{
	client_pump(client, LOOP);
}

void tcp_client_want(struct tcp_client *client)
{
	pthread_mutex_lock(&client->lock);
	atomic_store(&client->wanted, client->state != TCP_OPEN);
	client_unlock(client);
	tcp_client_pump(client);
}

void tcp_client_push(struct tcp_client *client, bool watched)
{
	client_pump(client, watched ? SPINNER : SUBMITTER);
}

void tcp_client_kick(struct tcp_client *client, bool now)
{
	atomic_store(&client->again, true);
	if (pthread_mutex_trylock(&client->lock))
		return;
	if (client->state == TCP_OPEN && !atomic_load(&client->owned)) {
		atomic_store(&client->again, false);
		/* Waking a thread costs as much as sending a request, and takes a CPU from threads
		 * that move bytes. If a response is outstanding, the loop wakes for that anyway;
		 * but what it is of may hang, such as a file system: then it would never wake. */
		if (now || !client->armed || !atomic_load(&client->outstanding) || client->waits ||
		    wh_now() - client->used > RESPONSE_SOON) {
			client->armed = EPOLLIN | EPOLLOUT;
			wh_loop_modify(client->loop, &client->source,
				       EPOLLIN | EPOLLOUT | EPOLLONESHOT);
		}
	}
	client_unlock(client);
}

/* ---- a waiter ---------------------------------------------------------- */

/* Has the batch unfinished bytes on tcp? If not, it is done, or the thread that finished the last
 * bytes is about to complete it. A fragment that has failed keeps what is left of it. */
static bool batch_is_unfinished(const struct wh_batch *batch)
{
	const struct wh_fragment *fragment = NULL;
	bool left = false;

	while (!left && (fragment = wh_batch_fragment(batch, WH_TRANSPORT_TCP, fragment)))
		left = !atomic_load(&fragment->done) && atomic_load(&fragment->left);
	return left;
}

void tcp_client_own(struct tcp_client *client, struct wh_batch *batch, int64_t deadline)
{
	bool spin = wh_engine_config(wh_peer_engine(client->tcp->peer))->number[WH_SETTING_SPIN],
	     sending;
	struct pollfd look = { .fd = -1 };
	int64_t now, pause;

	if (!deadline) {
		tcp_client_pump(client);
		return;
	}
	if (atomic_exchange(&client->owned, true))
		return;
	atomic_fetch_add(&client->users, 1);
	atomic_store(&client->claimed, true);
	pthread_mutex_lock(&client->lock);
	atomic_store(&client->claimed, false);
	if (client->source.fd >= 0 && client->armed)
		wh_loop_modify(client->loop, &client->source, 0);
	client->armed = 0;
	client_unlock(client);
	for (;;) {
		/* Before anything else: the submitter may have left the sending to this thread. */
		client_pump(client, OWNER);
		if (!batch_is_unfinished(batch))
			break;
		pthread_mutex_lock(&client->lock);
		/* Only the loop can continue with a connection that is not open. */
		look.fd = client->state == TCP_OPEN ? client->source.fd : -1;
		sending = client_has_unsent(client);
		client_unlock(client);
		if (look.fd < 0)
			break;
		now = deadline == INT64_MAX && spin ? 0 : wh_now();
		if (now >= deadline)
			break;
		if (!spin) {
			pause = deadline - now < LOOK_UP ? deadline - now : LOOK_UP;
			look.events = (short)(POLLIN | (sending ? POLLOUT : 0));
			ppoll(&look, 1, &(struct timespec){ 0, pause }, NULL);
		}
	}
	atomic_store(&client->owned, false);
	pthread_mutex_lock(&client->lock);
	client_arm(client, LOOP);
	client_unlock(client);
	atomic_fetch_sub(&client->users, 1);
}

/* ---- breaking and mending ---------------------------------------------- */

/* Does a request that was on a broken connection count that attempt? Not if it was not sent, if it
 * was no fault of its own, or if the peer may merely have been slow: that is repeated for as long
 * as it takes. */
static bool client_counts_attempts(const struct tcp_client *client)
{
	return client->state == TCP_ABORTING && client->error != -EFAULT &&
	       client->error != -ETIMEDOUT;
}

/* End all requests of a closed connection. With an error, all fail. With `error` 0, only those fail
 * that hit a memory fault, are cancelled, or were sent too often; the others are queued to be sent
 * again. Under the lock. */
static void client_end_requests(struct tcp_client *client, int error, const char *text,
				struct wh_list *done)
{
	tcp_flow_reset(client);
	client->queue_start = 0;
	for (unsigned i = 0; i < TCP_WINDOW; i++) {
		struct tcp_request *request = &client->requests[i];

		if (!request->fragment)
			continue;
		/* client-stage.c ends or queues it when its slot or its GPU is ready. */
		if (tcp_stage_busy(request, error || atomic_load(&request->fragment->cancelled))) {
			if (error)
				wh_fragment_fail(request->fragment, UINT64_MAX, error, "%s", text);
			else if (atomic_load(&request->fragment->cancelled))
				wh_fragment_fail(request->fragment, UINT64_MAX, -ECANCELED,
						 "cancelled");
			continue;
		}
		if (error) {
			wh_fragment_fail(request->fragment, UINT64_MAX, error, "%s", text);
		} else if (request->fault) {
			tcp_request_fault(request);
		} else if (atomic_load(&request->fragment->cancelled)) {
			wh_fragment_fail(request->fragment, UINT64_MAX, -ECANCELED, "cancelled");
		} else if (client_counts_attempts(client) && ++request->attempts >= TCP_ATTEMPTS) {
			wh_fragment_fail(
				request->fragment, UINT64_MAX, -ECONNRESET,
				"gave up after %d attempts: data connections to %s break: %s",
				TCP_ATTEMPTS, wh_peer_name(client->tcp->peer),
				strerror(-client->error));
		} else {
			client->queue[client->queue_count++] = (uint8_t)i;
			continue;
		}
		tcp_request_end(client, request, done);
	}
}

/* Close the socket. On the loop. */
static void client_disconnect(struct tcp_client *client)
{
	wh_loop_remove(client->loop, &client->source);
	wh_channel_free(client->channel);
	client->channel = NULL;
	wh_socket_close(client->source.fd);
	client->source.fd = -1;
}

/* The peer has closed its side of the connection, or (`error`) is lost. On loop 0. */
static void client_abort_done(struct wh_abort *abort, int error)
{
	struct tcp_client *client = wh_container(abort, struct tcp_client, abort);
	struct wh_list done;

	wh_list_init(&done);
	pthread_mutex_lock(&client->lock);
	client_end_requests(client, error ? -ECONNRESET : 0, "the peer was lost", &done);
	client->state = TCP_CLOSED;
	pthread_mutex_unlock(&client->lock);
	tcp_fragments_done(&done);
	tcp_client_pump(client);
}

/* It cannot be opened. What waits for it goes by the connections that are open, if any is. */
static void client_give_up(struct tcp_client *client, struct wh_list *done)
{
	char text[WH_TEXT_MAX];

	snprintf(text, sizeof(text), "cannot open a data connection to %s: %s",
		 wh_peer_name(client->tcp->peer),
		 atomic_load(&client->unserved) ? TCP_UNSERVED : strerror(-client->error));
	client_end_requests(client, -EHOSTUNREACH, text, done);
	if (!tcp_share_waiting(client->tcp, client))
		tcp_fail_waiting(client->tcp, client, -EHOSTUNREACH, text);
	client->failing_since = 0;
	client_not_wanted(client);
}

/* Close a broken connection; schedule the next try of one that cannot be opened, or give up; limit
 * the time of one that is being opened. On the loop. */
static void client_cleanup(struct wh_task *task)
{
	struct tcp_client *client = wh_container(task, struct tcp_client, cleanup);
	struct wh_peer *peer = client->tcp->peer;
	int64_t timeout =
		wh_engine_config(wh_peer_engine(peer))->number[WH_SETTING_TIMEOUT] * WH_MS;
	bool ask = false, given_up = false;
	struct wh_list done;

	wh_list_init(&done);
	pthread_mutex_lock(&client->lock);
	if (client->source.fd >= 0 && client->state == TCP_BROKEN) {
		client_disconnect(client);
		/* The peer may still execute its outstanding requests. It has none of a connection
		 * that broke before WELCOME: that one is a failed try to connect. */
		ask = client->was_open && atomic_load(&client->outstanding);
		client->state = ask ? TCP_ABORTING : TCP_CLOSED;
		if (!ask && !client->idle_close && !client->failing_since)
			client->failing_since = client->was_open ? wh_now() : client->stepped;
		if (!ask) /* of former connections */
			client_end_requests(client, 0, NULL, &done);
		client->idle_close = false;
		client->abort.number = client->number;
		client->abort.done = client_abort_done;
	}
	if (client->state == TCP_CLOSED && client->failing_since) {
		given_up = wh_now() - client->failing_since >= timeout;
		if (given_up)
			client_give_up(client, &done);
		else
			wh_timer_set(client->loop, &client->retry, wh_now() + RETRY_PAUSE);
	} else if (client_is_opening(client)) {
		wh_timer_set(client->loop, &client->retry, client->stepped + timeout);
	}
	client_unlock(client);
	tcp_fragments_done(&done);
	if (given_up)
		tcp_peer_kick(client->tcp);
	if (ask)
		wh_peer_abort(peer, &client->abort);
	else /* what was submitted while an idle connection was being closed */
		tcp_client_pump(client);
}

/* Break a connection whose next step takes too long. The kernel has often connected it, and the
 * peer does not accept it, as for lack of descriptors. On the loop, under the lock. */
static void client_limit_opening(struct tcp_client *client)
{
	const struct wh_config *config = wh_engine_config(wh_peer_engine(client->tcp->peer));
	int64_t until = client->stepped + config->number[WH_SETTING_TIMEOUT] * WH_MS;

	if (wh_now() < until) {
		wh_timer_set(client->loop, &client->retry, until);
		return;
	}
	atomic_store(&client->unserved, client->state > TCP_CONNECTING);
	client_mark_broken(client, -ETIMEDOUT);
}

static void client_retry(struct wh_timer *timer)
{
	struct tcp_client *client = wh_container(timer, struct tcp_client, retry);
	int error = 0;

	/* If this process stood still, the peer's answer may be here. */
	tcp_client_pump(client);
	pthread_mutex_lock(&client->lock);
	if (client_is_opening(client))
		client_limit_opening(client);
	if (client->state == TCP_CLOSED) {
		if (!client_has_work(client))
			client->failing_since = 0;
		else
			error = client_open(client);
		if (error)
			client_retry_later(client, error);
		else
			client_arm(client, LOOP);
	}
	client_unlock(client);
}

void tcp_client_break(struct tcp_client *client, int error)
{
	struct wh_list done;

	wh_list_init(&done);
	pthread_mutex_lock(&client->lock);
	if (client->state == TCP_CLOSED) /* until the next try to connect */
		client_end_requests(client, 0, NULL, &done);
	else
		client_mark_broken(client, error);
	client_unlock(client);
	tcp_fragments_done(&done);
}

void tcp_client_lose(struct tcp_client *client, int error, const char *text)
{
	struct wh_list done;

	wh_list_init(&done);
	pthread_mutex_lock(&client->lock);
	client_mark_broken(client, error);
	client_end_requests(client, error, text, &done);
	client->failing_since = 0;
	client_not_wanted(client);
	client_unlock(client);
	tcp_fragments_done(&done);
}

bool tcp_client_carries(struct tcp_client *client, const struct wh_batch *batch)
{
	bool carries = false;

	pthread_mutex_lock(&client->lock);
	for (unsigned i = 0; i < TCP_WINDOW && !carries; i++)
		carries = client->requests[i].fragment &&
			  client->requests[i].fragment->batch == batch;
	client_unlock(client);
	return carries;
}

bool tcp_client_is_open(struct tcp_client *client)
{
	bool open;

	pthread_mutex_lock(&client->lock);
	open = client->state == TCP_OPEN;
	client_unlock(client);
	return open;
}

bool tcp_client_is_unserved(struct tcp_client *client)
{
	bool unserved;

	pthread_mutex_lock(&client->lock);
	unserved = atomic_load(&client->unserved) ||
		   (client_is_opening(client) && wh_now() - client->stepped > SERVED_SOON);
	client_unlock(client);
	return unserved;
}

int tcp_client_error(struct tcp_client *client)
{
	int error;

	pthread_mutex_lock(&client->lock);
	error = client->error;
	client_unlock(client);
	return error;
}

void tcp_client_describe(struct tcp_client *client, char *out, size_t size)
{
	pthread_mutex_lock(&client->lock);
	if (client->state == TCP_OPEN)
		wh_channel_describe(client->channel, out, size);
	client_unlock(client);
}

void tcp_client_retire(struct tcp_client *client, int64_t before)
{
	if (atomic_load(&client->outstanding) || pthread_mutex_trylock(&client->lock))
		return;
	if (client->state == TCP_OPEN && client->used < before && !client_has_work(client)) {
		client->idle_close = true;
		client_mark_broken(client, -ETIMEDOUT);
	}
	if (client->state == TCP_CLOSED && client->head) {
		free(client->head);
		free(client->in.bytes);
		client->head = client->in.bytes = NULL;
	}
	client_unlock(client);
}

/* Is it the peer's turn? Not while all requests wait here for a slot or a GPU. Under the lock. */
static bool client_awaits_peer(struct tcp_client *client)
{
	bool awaits = client->sending;

	for (unsigned i = 0; i < TCP_WINDOW && !awaits; i++)
		awaits = client->requests[i].fragment && client->requests[i].sent &&
			 !tcp_stage_busy(&client->requests[i], false);
	return awaits;
}

bool tcp_client_watch(struct tcp_client *client, int64_t patience)
{
	int64_t now = wh_now();
	int queued = 0;

	if (!atomic_load(&client->outstanding))
		return false;
	pthread_mutex_lock(&client->lock);
	if (client->state != TCP_OPEN || !client_awaits_peer(client) ||
	    ioctl(client->source.fd, SIOCOUTQ, &queued)) {
		client->progressed = 0;
	} else if (!client->progressed || client->moved != client->progressed_moved ||
		   queued != client->progressed_queued) {
		client->progressed = now;
		client->progressed_moved = client->moved;
		client->progressed_queued = queued;
	} else if (now - client->progressed > patience) {
		wh_log_about(wh_engine_log(wh_peer_engine(client->tcp->peer)),
			     (uintptr_t)client->tcp->peer, WH_LOG_INFO, "tcp",
			     "a data connection to %s has stood still for %lld ms: opening another "
			     "one",
			     wh_peer_name(client->tcp->peer), (long long)(patience / WH_MS));
		client->progressed = 0;
		client_mark_broken(client, -ETIMEDOUT);
	}
	client_unlock(client);
	return true;
}

/* ---- new and free ------------------------------------------------------ */

static void client_ready(struct wh_source *source, uint32_t events)
{
	struct tcp_client *client = wh_container(source, struct tcp_client, source);

	pthread_mutex_lock(&client->lock);
	client->armed = 0; /* EPOLLONESHOT */
	client_unlock(client);
	/* An owner receives by itself, and arms the source later. EPOLLOUT alone: skip receiving,
	 * which would be a wasted system call; but a channel may hold bytes that raise no event. */
	if (!atomic_load(&client->owned) || (events & EPOLLOUT))
		client_pump(client, events == EPOLLOUT && !client->channel ? SUBMITTER : LOOP);
}

/* How many writes one connection may gather at a time: its share of the slots. More would only wait
 * for slots here, while a connection that has slots could send them. */
static uint32_t client_gather_most(const struct tcp_peer *tcp)
{
	uint32_t share = WH_SLOTS / tcp->count;

	return share < 1 ? 1 : share < TCP_GATHER_AHEAD ? share : TCP_GATHER_AHEAD;
}

struct tcp_client *tcp_client_new(struct tcp_peer *tcp, unsigned index)
{
	struct tcp_client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	client->tcp = tcp;
	client->latency = index == tcp->count;
	client->number = index;
	client->gather_most = client_gather_most(tcp);
	wh_list_init(&client->mine);
	client->loop = wh_engine_loop(wh_peer_engine(tcp->peer), tcp->first_loop + index);
	client->source.fd = -1;
	client->source.ready = client_ready;
	client->cleanup.run = client_cleanup;
	client->retry.fire = client_retry;
	pthread_mutex_init(&client->lock, NULL);
	return client;
}

/* Remove the connection from its loop and close it. On that loop. */
static void client_shut(void *argument)
{
	struct tcp_client *client = argument;

	wh_timer_clear(&client->retry);
	wh_loop_cancel(client->loop, &client->cleanup);
	pthread_mutex_lock(&client->lock);
	if (client->source.fd >= 0)
		client_disconnect(client);
	if (client->state == TCP_OPEN && !client->latency)
		atomic_fetch_sub(&client->tcp->serving, 1);
	client->state = TCP_CLOSED;
	client->failing_since = 0;
	pthread_mutex_unlock(&client->lock);
}

void tcp_client_shut(struct tcp_client *client)
{
	wh_loop_call(client->loop, client_shut, client);
	while (atomic_load(&client->users))
		sched_yield();
}

void tcp_client_free(struct tcp_client *client)
{
	/* A user, or another connection, may have posted `cleanup` meanwhile. */
	tcp_client_shut(client);
	pthread_mutex_destroy(&client->lock);
	free(client->head);
	free(client->in.bytes);
	free(client);
}
