/* SPDX-License-Identifier: Apache-2.0 */
/* A client of Mooncake's engines: control requests, and data connections. */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compat/mooncake/mooncake.h"
#include "rendezvous/rendezvous.h"
#include "util/clock.h"

/* Bytes read back to confirm a write over version 1, which has no confirmation. */
#define PROOF 64

/* ns of polling before sleep while requests follow each other. Sleeping for each late byte, sender
 * and receiver would wake each other on one CPU, and leave the others idle. */
#define SPIN (50 * WH_MS / 1000)

/* ---- sockets ------------------------------------------------------------------------------- */

/* A socket and its limits: an operation fails at `deadline`, or after `still` ns without progress.
 */
struct wire {
	int fd;
	const char *address; /* for texts */
	int64_t deadline, still;
	int64_t spin; /* ns of polling before sleep */
};

static int wire_failed(const struct wire *wire, const char *verb, int error)
{
	return wh_fail(error, "mooncake: %.120s: cannot %s: %s", wire->address, verb,
		       strerror(error));
}

static int wire_wait(const struct wire *wire, short events, const char *verb)
{
	int64_t until = wh_deadline(wire->still), now = wh_now(), awake = now + wire->spin;
	struct pollfd fd = { .fd = wire->fd, .events = events };
	int rc;

	if (until > wire->deadline)
		until = wire->deadline;
	do {
		int64_t left = now < awake ? 0 : (until - now + WH_MS - 1) / WH_MS;

		rc = poll(&fd, 1, left > INT32_MAX ? -1 : left > 0 ? (int)left : 0);
		now = wh_now();
	} while ((rc < 0 && errno == EINTR) || (!rc && now < until));
	return rc > 0 ? 0 :
	       rc     ? wire_failed(wire, verb, errno) :
			wire_failed(wire, verb, ETIMEDOUT);
}

static int wire_send(const struct wire *wire, const void *from, uint64_t length, int flags)
{
	const char *at = from;

	while (length) {
		ssize_t bytes = send(wire->fd, at, length, MSG_NOSIGNAL | flags);
		int error = 0;

		if (bytes > 0) {
			at += bytes;
			length -= (uint64_t)bytes;
		} else if (errno == EAGAIN) {
			error = wire_wait(wire, POLLOUT, "send to it");
		} else if (errno != EINTR) {
			error = wire_failed(wire, "send to it", errno);
		}
		if (error)
			return error;
	}
	return 0;
}

static int wire_receive(const struct wire *wire, void *to, uint64_t length)
{
	char *at = to;

	while (length) {
		ssize_t bytes = recv(wire->fd, at, length, 0);
		int error = 0;

		if (bytes > 0) {
			at += bytes;
			length -= (uint64_t)bytes;
		} else if (!bytes) {
			error = wh_fail(ECONNRESET, "mooncake: %.120s has closed the connection",
					wire->address);
		} else if (errno == EAGAIN) {
			error = wire_wait(wire, POLLIN, "receive from it");
		} else if (errno != EINTR) {
			error = wire_failed(wire, "receive from it", errno);
		}
		if (error)
			return error;
	}
	return 0;
}

static int wire_connect_address(struct wire *wire, const struct sockaddr_storage *address)
{
	socklen_t length = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) :
							   sizeof(struct sockaddr_in6);
	int result = 0, error = 0;
	socklen_t size = sizeof(result);

	wire->fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (wire->fd < 0)
		return wh_fail(errno, "mooncake: socket: %s", strerror(errno));
	wh_mooncake_socket_tune(wire->fd, address);
	if (connect(wire->fd, (const struct sockaddr *)address, length))
		error = errno == EINPROGRESS ? wire_wait(wire, POLLOUT, "connect to it") :
					       wire_failed(wire, "connect to it", errno);
	if (!error && (getsockopt(wire->fd, SOL_SOCKET, SO_ERROR, &result, &size) || result))
		error = wire_failed(wire, "connect to it", result ? result : errno);
	if (error) {
		close(wire->fd);
		wire->fd = -1;
	}
	return error;
}

static int wire_connect(struct wire *wire)
{
	struct sockaddr_storage address[WH_RENDEZVOUS_MOST];
	unsigned count;
	int error = wh_rendezvous_resolve(wire->address, WH_RESOLVE_REMOTE, address, &count);

	for (unsigned i = 0; !error && i < count; i++) {
		error = wire_connect_address(wire, &address[i]);
		if (!error)
			return 0;
		if (i + 1 < count)
			error = 0;
	}
	return error;
}

/* ---- control requests ---------------------------------------------------------------------- */

static int control_exchange(const struct wire *wire, unsigned char type, const char *json,
			    char **reply, uint64_t *length)
{
	unsigned char head[WH_MOONCAKE_FRAME_HEAD + 1];
	uint64_t bytes;
	char *body;
	int error;

	wh_mooncake_frame_head(head, strlen(json) + 1);
	head[WH_MOONCAKE_FRAME_HEAD] = type;
	error = wire_send(wire, head, sizeof(head), MSG_MORE);
	if (!error)
		error = wire_send(wire, json, strlen(json), 0);
	if (!error)
		error = wire_receive(wire, head, WH_MOONCAKE_FRAME_HEAD);
	if (!error)
		error = wh_mooncake_frame_length(head, &bytes);
	if (error)
		return error;
	body = malloc(bytes);
	if (!body)
		return wh_fail(ENOMEM, "mooncake: no memory");
	error = wire_receive(wire, body, bytes);
	if (!error && (unsigned char)body[0] != type)
		error = wh_fail(EPROTO,
				"mooncake: %.120s answers a request of type %u with type %u",
				wire->address, type, (unsigned char)body[0]);
	if (error) {
		free(body);
		return error;
	}
	/* The reply without its type. */
	memmove(body, body + 1, bytes - 1);
	*reply = body;
	*length = bytes - 1;
	return 0;
}

/* The client's own segment, which the protocol sends along: it has no buffers. */
static char *control_own_segment(const struct wire *wire)
{
	struct wh_mooncake_segment segment = { .version = 2 };
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);

	if (getsockname(wire->fd, (struct sockaddr *)&address, &length))
		return NULL;
	wh_address_format(segment.name, sizeof(segment.name), &address);
	return wh_mooncake_segment_format(&segment);
}

int wh_mooncake_fetch(const char *address, int64_t timeout, struct wh_mooncake_segment *out)
{
	struct wire wire = {
		.fd = -1,
		.address = address,
		.deadline = wh_deadline(timeout),
		.still = timeout,
	};
	char *own = NULL, *reply = NULL;
	uint64_t length = 0;
	int error = wire_connect(&wire);

	if (error)
		return error;
	own = control_own_segment(&wire);
	error = own ? control_exchange(&wire, WH_MOONCAKE_METADATA, own, &reply, &length) :
		      wh_fail(ENOMEM, "mooncake: no memory");
	close(wire.fd);
	if (!error)
		error = wh_mooncake_segment_parse(reply, length, out);
	free(own);
	free(reply);
	return error;
}

/* A control request whose reply is an object without content. */
static int control_ask(const char *address, unsigned char type, const char *json, int64_t timeout)
{
	struct wire wire = {
		.fd = -1,
		.address = address,
		.deadline = wh_deadline(timeout),
		.still = timeout,
	};
	char *reply = NULL;
	uint64_t length = 0;
	int error = wire_connect(&wire);

	if (error)
		return error;
	error = control_exchange(&wire, type, json, &reply, &length);
	close(wire.fd);
	if (!error)
		error = wh_mooncake_object_check(reply, length);
	free(reply);
	return error;
}

int wh_mooncake_notify(const char *address, const char *name, const char *message, int64_t timeout)
{
	char *json = wh_mooncake_notify_format(name, message);
	int error;

	if (!json)
		return wh_fail(EINVAL, "mooncake: the notification is not UTF-8");
	if (strlen(json) >= WH_MOONCAKE_FRAME_MAX)
		error = wh_fail(EMSGSIZE, "mooncake: a notification of %zu bytes; the most are %d",
				strlen(json), WH_MOONCAKE_FRAME_MAX - 1);
	else
		error = control_ask(address, WH_MOONCAKE_NOTIFY, json, timeout);
	free(json);
	return error;
}

int wh_mooncake_probe(const char *address, int64_t timeout)
{
	return control_ask(address, WH_MOONCAKE_PROBE, "{}", timeout);
}

/* ---- one request --------------------------------------------------------------------------- */

static struct wire connection_wire(const struct wh_mooncake_connection *connection)
{
	return (struct wire){ .fd = connection->fd,
			      .address = connection->address,
			      .deadline = INT64_MAX,
			      .still = connection->timeout };
}

static int connection_take_status(const struct wire *wire,
				  const struct wh_mooncake_request *request)
{
	unsigned char bytes[WH_MOONCAKE_STATUS];
	int code, error = wire_receive(wire, bytes, sizeof(bytes));

	if (error)
		return error;
	code = wh_mooncake_status_parse(bytes);
	if (code <= 0)
		return code;
	return wh_fail(EACCES,
		       "mooncake: %.100s refuses the %s of %" PRIu64 " bytes at 0x%" PRIx64
		       " (status %d): it is not published",
		       wire->address, request->write ? "write" : "read", request->length,
		       request->address, code);
}

/* One request and its answer. Success says nothing about a write over version 1. */
static int connection_ask(const struct wh_mooncake_connection *connection, bool write, void *buffer,
			  uint64_t address, uint64_t length)
{
	struct wire wire = connection_wire(connection);
	struct wh_mooncake_request request = {
		.address = address,
		.length = length,
		.write = write,
		.status = connection->version >= 2,
	};
	unsigned char header[WH_MOONCAKE_HEADER];
	int error;

	wh_mooncake_request_format(&request, header);
	error = wire_send(&wire, header, sizeof(header), write ? MSG_MORE : 0);
	if (!error && write) {
		error = wire_send(&wire, buffer, length, 0);
		/* The peer refused it before all bytes were sent: its status says why. */
		if (error && request.status && connection_take_status(&wire, &request) == -EACCES)
			return -EACCES;
	}
	if (!error && request.status)
		error = connection_take_status(&wire, &request);
	if (!error && !write)
		error = wire_receive(&wire, buffer, length);
	return error;
}

static int connection_aborted(const struct wh_mooncake_connection *connection)
{
	return wh_fail(ECANCELED, "mooncake: %.120s: cancelled", connection->address);
}

/* Close the socket under the lock: wh_mooncake_connection_abort() shuts it down from other threads.
 */
static int connection_disconnect(struct wh_mooncake_connection *connection)
{
	bool stop;

	pthread_mutex_lock(&connection->lock);
	if (connection->fd >= 0)
		wh_mooncake_socket_close(connection->fd);
	connection->fd = -1;
	stop = connection->stop;
	pthread_mutex_unlock(&connection->lock);
	return stop ? connection_aborted(connection) : 0;
}

static int connection_reconnect(struct wh_mooncake_connection *connection)
{
	struct wire wire = connection_wire(connection);
	int error = connection_disconnect(connection);

	wire.deadline = wh_deadline(connection->timeout);
	if (!error)
		error = wire_connect(&wire);
	if (error)
		return error;
	pthread_mutex_lock(&connection->lock);
	if (connection->stop)
		close(wire.fd);
	else
		connection->fd = wire.fd;
	pthread_mutex_unlock(&connection->lock);
	return connection->fd < 0 ? connection_aborted(connection) : 0;
}

/* Confirm a write over version 1, which has no answer. An engine does the requests of a connection
 * in order, so the write is done when a read behind it is answered. An engine that serves one
 * request per connection closes it instead: then a new connection reads the bytes back. */
static int connection_prove(struct wh_mooncake_connection *connection, const void *buffer,
			    uint64_t address, uint64_t length)
{
	uint64_t size = length < PROOF ? length : PROOF, from = length - size;
	unsigned char found[PROOF];
	int error = connection_ask(connection, false, found, address + from, size);

	/* Answered. Its bytes do not matter: others may have written there since. */
	if (error != -ECONNRESET && error != -EPIPE)
		return error;
	error = connection_reconnect(connection);
	if (!error)
		error = connection_ask(connection, false, found, address + from, size);
	if (error == -ECONNRESET)
		return wh_fail(EACCES,
			       "mooncake: %.100s closes the connection: what is at 0x%" PRIx64
			       " is not published",
			       connection->address, address);
	if (!error && memcmp(found, (const char *)buffer + from, size) != 0)
		return wh_fail(EIO,
			       "mooncake: %.100s has not done a write of %" PRIu64
			       " bytes at 0x%" PRIx64,
			       connection->address, length, address);
	return error;
}

static int connection_move_once(struct wh_mooncake_connection *connection)
{
	int error = connection_ask(connection, connection->write, connection->buffer,
				   connection->remote, connection->length);

	if (!error && connection->write && connection->version < 2)
		error = connection_prove(connection, connection->buffer, connection->remote,
					 connection->length);
	return error;
}

static int connection_move(struct wh_mooncake_connection *connection)
{
	bool fresh = connection->fd < 0;
	int error = fresh ? connection_reconnect(connection) : 0;

	if (error)
		return error;
	error = connection_move_once(connection);
	/* The peer may have closed a reused connection meanwhile. A request may run twice. */
	if ((error == -ECONNRESET || error == -EPIPE) && !fresh) {
		error = connection_reconnect(connection);
		if (!error)
			error = connection_move_once(connection);
	}
	/* An abort by another thread looks like a close by the peer. */
	if (error && connection_disconnect(connection))
		error = -ECANCELED;
	return error;
}

/* Send all requests, then read the answers: an engine does a connection's requests in order. An
 * engine that closes after each request answers the first only. *error: why it ended early. */
static unsigned connection_do_all(const struct wh_mooncake_connection *connection, bool write,
				  const struct wh_mooncake_move *moves, unsigned count,
				  unsigned *sent, int *error)
{
	struct wh_mooncake_request request = { .write = write, .status = connection->version >= 2 };
	struct wire wire = connection_wire(connection);
	unsigned done = 0;

	wire.spin = SPIN;
	*error = 0;
	for (*sent = 0; *sent < count && !*error; ++*sent) {
		const struct wh_mooncake_move *move = &moves[*sent];
		unsigned char header[WH_MOONCAKE_HEADER];

		request.address = move->remote;
		request.length = move->length;
		wh_mooncake_request_format(&request, header);
		*error = wire_send(&wire, header, sizeof(header),
				   write || *sent + 1 < count ? MSG_MORE : 0);
		if (!*error && write)
			*error = wire_send(&wire, move->buffer, move->length, 0);
	}
	/* A refused request ends the connection; the requests before it are done. */
	for (; done < *sent && *error != -ETIMEDOUT; done++) {
		request.address = moves[done].remote;
		request.length = moves[done].length;
		*error = request.status ? connection_take_status(&wire, &request) : 0;
		if (!*error && !write)
			*error = wire_receive(&wire, moves[done].buffer, moves[done].length);
		if (*error)
			break;
	}
	return done;
}

/* ---- connections --------------------------------------------------------------------------- */

static void *connection_run(void *argument)
{
	struct wh_mooncake_connection *connection = argument;

	pthread_mutex_lock(&connection->lock);
	while (!connection->stop) {
		int error;

		if (!connection->requested) {
			pthread_cond_wait(&connection->changed, &connection->lock);
			continue;
		}
		connection->requested = false;
		pthread_mutex_unlock(&connection->lock);
		error = connection_move(connection);
		pthread_mutex_lock(&connection->lock);
		connection->error = error;
		snprintf(connection->text, sizeof(connection->text), "%s",
			 error ? wh_fail_text() : "");
		connection->done = true;
		pthread_cond_broadcast(&connection->changed);
	}
	pthread_mutex_unlock(&connection->lock);
	return NULL;
}

int wh_mooncake_connection_prepare(struct wh_mooncake_connection *connection,
				   const struct wh_mooncake_segment *segment, const char *host,
				   int64_t timeout)
{
	struct wh_mooncake_endpoint endpoint = { .port = segment->port };
	pthread_condattr_t monotonic;

	*connection = (struct wh_mooncake_connection){ .fd = -1,
						       .version = segment->version,
						       .timeout = timeout };
	if (!segment->port)
		return wh_fail(EPROTO,
			       "mooncake: %.100s has no data port: nothing is published by tcp",
			       host);
	snprintf(endpoint.host, sizeof(endpoint.host), "%s", *segment->host ? segment->host : host);
	wh_mooncake_endpoint_text(&endpoint, connection->address, sizeof(connection->address));
	pthread_mutex_init(&connection->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&connection->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	connection->ready = true;
	return 0;
}

int wh_mooncake_connection_move(struct wh_mooncake_connection *connection, bool write, void *buffer,
				uint64_t remote, uint64_t length)
{
	connection->write = write;
	connection->buffer = buffer;
	connection->remote = remote;
	connection->length = length;
	return connection_move(connection);
}

/* Has the peer ended the connection? Then it takes no byte of it any more. */
static bool peer_has_ended(int error)
{
	return error == -ECONNRESET || error == -EPIPE || error == -EACCES;
}

unsigned wh_mooncake_connection_several(struct wh_mooncake_connection *connection, bool write,
					const struct wh_mooncake_move *moves, unsigned count,
					unsigned *lost, int *error)
{
	unsigned done = 0, sent = 0;

	*lost = 0;
	*error = connection->fd < 0 ? connection_reconnect(connection) : 0;
	if (!*error)
		done = connection_do_all(connection, write, moves, count, &sent, error);
	if (write && *error && !peer_has_ended(*error))
		*lost = sent - done;
	/* Answers to the other requests may still arrive: do not reuse the connection. */
	if (done < count)
		connection_disconnect(connection);
	return done;
}

int wh_mooncake_connection_open(struct wh_mooncake_connection *connection,
				const struct wh_mooncake_segment *segment, const char *host,
				int64_t timeout)
{
	int error = wh_mooncake_connection_prepare(connection, segment, host, timeout);

	if (error)
		return error;
	error = pthread_create(&connection->thread, NULL, connection_run, connection);
	if (error) {
		wh_mooncake_connection_close(connection);
		return wh_fail(error, "mooncake: cannot start a thread: %s", strerror(error));
	}
	connection->started = true;
	return 0;
}

void wh_mooncake_connection_start(struct wh_mooncake_connection *connection, bool write,
				  void *buffer, uint64_t remote, uint64_t length)
{
	pthread_mutex_lock(&connection->lock);
	connection->write = write;
	connection->buffer = buffer;
	connection->remote = remote;
	connection->length = length;
	connection->done = false;
	connection->requested = true;
	pthread_cond_broadcast(&connection->changed);
	pthread_mutex_unlock(&connection->lock);
}

int wh_mooncake_connection_wait(struct wh_mooncake_connection *connection, int64_t timeout,
				bool *ended)
{
	int64_t until = wh_deadline(timeout);
	struct timespec at = { .tv_sec = until / WH_SECOND, .tv_nsec = until % WH_SECOND };
	int error = 0;

	pthread_mutex_lock(&connection->lock);
	while (!connection->done && !error)
		error = pthread_cond_timedwait(&connection->changed, &connection->lock, &at);
	*ended = connection->done;
	error = connection->done ? connection->error : -ETIMEDOUT;
	pthread_mutex_unlock(&connection->lock);
	return error;
}

void wh_mooncake_connection_abort(struct wh_mooncake_connection *connection)
{
	if (!connection->ready)
		return;
	pthread_mutex_lock(&connection->lock);
	connection->stop = true;
	if (connection->fd >= 0)
		shutdown(connection->fd, SHUT_RDWR);
	pthread_cond_broadcast(&connection->changed);
	pthread_mutex_unlock(&connection->lock);
}

void wh_mooncake_connection_close(struct wh_mooncake_connection *connection)
{
	if (!connection->ready)
		return;
	wh_mooncake_connection_abort(connection);
	if (connection->started)
		pthread_join(connection->thread, NULL);
	if (connection->fd >= 0)
		close(connection->fd);
	pthread_cond_destroy(&connection->changed);
	pthread_mutex_destroy(&connection->lock);
	connection->ready = connection->started = false;
}
