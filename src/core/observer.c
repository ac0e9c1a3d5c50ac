/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unix socket at which observers of the same user read the statistics: one request of eight
 * bytes, one answer, and the connection is closed. It runs on loop 0 and never blocks: a client
 * that does not send its request or read the answer within PATIENCE is dropped, and at most CLIENTS
 * are served at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/engine.h"
#include "core/observer.h"
#include "telemetry/directory.h"
#include "telemetry/observation.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/listener.h"
#include "util/loop.h"

#define CLIENTS 8
#define PATIENCE (2 * WH_SECOND)

struct client {
	struct wh_source source; /* fd -1: free */
	struct wh_observer *observer;
	int64_t deadline;
	uint8_t request[WH_OBSERVE_REQUEST_SIZE];
	size_t received; /* bytes of the request */
	uint8_t *bytes; /* the answer */
	size_t length, sent;
};

struct wh_observer {
	struct wh_engine *engine;
	/* paused while CLIENTS are connected: others wait in the backlog */
	struct wh_listener listener;
	struct wh_timer timer;
	struct client clients[CLIENTS];
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

static struct wh_loop *observer_loop(struct wh_observer *observer)
{
	return &observer->engine->loops[0];
}

/* ---- a client ---------------------------------------------------------------------------- */

static void client_drop(struct client *client)
{
	struct wh_observer *observer = client->observer;

	wh_loop_remove(observer_loop(observer), &client->source);
	close(client->source.fd);
	client->source.fd = -1;
	free(client->bytes);
	client->bytes = NULL;
	client->received = client->length = client->sent = 0;
	wh_listener_hold(&observer->listener, false);
}

/* Read the request; encode the answer when it is complete. False: the client was dropped. */
static bool client_receive(struct client *client)
{
	ssize_t got = recv(client->source.fd, client->request + client->received,
			   sizeof(client->request) - client->received, MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (got > 0)
		client->received += (size_t)got;
	if (got > 0 && client->received < sizeof(client->request))
		return true;
	/* A client of another version learns ours from the header of the answer. */
	if (got <= 0 || memcmp(client->request, WH_OBSERVE_REQUEST, WH_OBSERVE_PREFIX_SIZE) != 0 ||
	    wh_observation_make(client->observer->engine, &client->bytes, &client->length)) {
		client_drop(client);
		return false;
	}
	wh_loop_modify(observer_loop(client->observer), &client->source, EPOLLOUT);
	return true;
}

static void client_send(struct client *client)
{
	while (client->sent < client->length) {
		ssize_t sent = send(client->source.fd, client->bytes + client->sent,
				    client->length - client->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN)
			return;
		if (sent <= 0)
			break;
		client->sent += (size_t)sent;
	}
	client_drop(client);
}

static void client_ready(struct wh_source *source, uint32_t events)
{
	struct client *client = wh_container(source, struct client, source);

	if (!client->bytes && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !client_receive(client))
		return;
	if (client->bytes)
		client_send(client);
}

/* Drop clients that take too long. */
static void observer_sweep(struct wh_timer *timer)
{
	struct wh_observer *observer = wh_container(timer, struct wh_observer, timer);
	int64_t now = wh_now(), next = INT64_MAX;

	for (unsigned i = 0; i < CLIENTS; i++) {
		struct client *client = &observer->clients[i];

		if (client->source.fd < 0)
			continue;
		if (client->deadline <= now)
			client_drop(client);
		else if (client->deadline < next)
			next = client->deadline;
	}
	if (next != INT64_MAX)
		wh_timer_set(observer_loop(observer), timer, next);
}

static bool client_is_same_user(int fd)
{
	struct ucred who;
	socklen_t length = sizeof(who);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) && who.uid == geteuid();
}

static struct client *observer_free_client(struct wh_observer *observer)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (observer->clients[i].source.fd < 0)
			return &observer->clients[i];
	return NULL;
}

static void observer_accepted(struct wh_listener *listener, int fd,
			      const struct sockaddr_storage *from)
{
	struct wh_observer *observer = wh_container(listener, struct wh_observer, listener);
	struct client *client = observer_free_client(observer);

	(void)from;
	if (!client_is_same_user(fd)) {
		close(fd);
		return;
	}
	client->source.fd = fd;
	client->deadline = wh_now() + PATIENCE;
	if (wh_loop_add(observer_loop(observer), &client->source, EPOLLIN)) {
		close(fd);
		client->source.fd = -1;
		return;
	}
	observer_sweep(&observer->timer);
	wh_listener_hold(listener, !observer_free_client(observer));
}

static void observer_waits(struct wh_listener *listener, int error)
{
	struct wh_observer *observer = wh_container(listener, struct wh_observer, listener);

	wh_listener_log(&observer->engine->log, "observer", "observers", error);
}

/* ---- the socket ----------------------------------------------------------------------------- */

/* Bind under a temporary name and rename the socket once it listens: a socket that refuses
 * connections looks like a dead engine's to observers. */
static int socket_listen_as(int fd, const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int error = 0;

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s%s", path, WH_OBSERVER_NEW) >=
	    (int)sizeof(address.sun_path))
		return -ENAMETOOLONG;
	/* Whatever the umask is, no other user can connect. */
	if (fchmod(fd, 0600) || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		return -errno;
	if (listen(fd, 16) || rename(address.sun_path, path)) {
		error = -errno;
		unlink(address.sun_path);
	}
	return error;
}

static int observer_make_socket(struct wh_observer *observer, const char *directory)
{
	int fd, error,
		length = snprintf(observer->path, sizeof(observer->path), "%s/%d-%016llx%s",
				  directory, (int)getpid(),
				  (unsigned long long)observer->engine->identity.epoch,
				  WH_OBSERVER_SUFFIX);

	if (length >= (int)sizeof(observer->path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	error = socket_listen_as(fd, observer->path);
	if (error)
		close(fd);
	else
		observer->listener.source.fd = fd;
	return error;
}

static int observer_try_directories(struct wh_observer *observer)
{
	char directory[sizeof(observer->path)];
	struct wh_config_paths table;
	int error = -ENOENT;

	wh_config_paths(&table);
	for (unsigned i = 0; wh_observer_directory(i, table.runtime, directory, sizeof(directory));
	     i++) {
		if (!*directory)
			continue;
		error = wh_observer_make(directory);
		if (!error)
			error = observer_make_socket(observer, directory);
		if (!error)
			return 0;
	}
	return error;
}

static int observer_choose_directory(struct wh_observer *observer)
{
	const char *directory = observer->engine->config.text[WH_SETTING_OBSERVE];
	int error = *directory ? wh_observer_check(directory) : observer_try_directories(observer);

	if (!error && *directory)
		error = observer_make_socket(observer, directory);
	if (error && *directory)
		return wh_fail(
			-error,
			"observe=%.120s: %s; name a directory of this user that others cannot "
			"write in, or off",
			directory, strerror(-error));
	/* The default directory is optional: log, and go on without the socket. */
	if (error)
		wh_log_line(&observer->engine->log, WH_LOG_INFO, "observer",
			    "no socket for observers: %s", strerror(-error));
	return error;
}

int wh_observer_open(struct wh_engine *engine)
{
	const char *setting = engine->config.text[WH_SETTING_OBSERVE];
	struct wh_observer *observer;
	int error;

	if (!strcmp(setting, "off"))
		return 0;
	observer = calloc(1, sizeof(*observer));
	if (!observer)
		return wh_fail(ENOMEM, "wh_engine_open: no memory");
	observer->engine = engine;
	observer->listener.accepted = observer_accepted;
	observer->listener.waits = observer_waits;
	observer->listener.flags = SOCK_NONBLOCK;
	observer->timer.fire = observer_sweep;
	for (unsigned i = 0; i < CLIENTS; i++) {
		observer->clients[i].observer = observer;
		observer->clients[i].source.fd = -1;
		observer->clients[i].source.ready = client_ready;
	}
	error = observer_choose_directory(observer);
	if (error) {
		free(observer);
		return *setting ? error : 0;
	}
	error = wh_listener_open(&observer->listener, &engine->loops[0],
				 observer->listener.source.fd);
	if (error) {
		unlink(observer->path);
		close(observer->listener.source.fd);
		free(observer);
		return error;
	}
	engine->observer = observer;
	return 0;
}

static void observer_stop(void *argument)
{
	struct wh_observer *observer = argument;

	for (unsigned i = 0; i < CLIENTS; i++)
		if (observer->clients[i].source.fd >= 0)
			client_drop(&observer->clients[i]);
	wh_timer_clear(&observer->timer);
	wh_listener_close(&observer->listener);
	close(observer->listener.source.fd);
}

void wh_observer_close(struct wh_engine *engine)
{
	struct wh_observer *observer = engine->observer;

	if (!observer)
		return;
	unlink(observer->path);
	wh_loop_call(&engine->loops[0], observer_stop, observer);
	engine->observer = NULL;
	free(observer);
}

const char *wh_engine_observer_path(const struct wh_engine *engine)
{
	return engine && engine->observer ? engine->observer->path : "";
}
