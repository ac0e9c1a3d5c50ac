/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unix socket that observers of the same user ask. One question of eight bytes, one answer, and
 * the connection is closed. All of it on loop 0 and without waiting: who does not ask, or does not
 * read, is dropped after a moment, and only so many are served at a time.
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
	uint8_t question[WH_OBSERVE_REQUEST_SIZE];
	size_t asked;
	uint8_t *bytes; /* the answer */
	size_t length, sent;
};

struct wh_observer {
	struct wh_engine *engine;
	/* held while all places are taken: the others wait in the backlog */
	struct wh_listener listener;
	struct wh_timer timer;
	struct client clients[CLIENTS];
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

static struct wh_loop *home(struct wh_observer *observer)
{
	return &observer->engine->loops[0];
}

/* ---- one of them ------------------------------------------------------------------------------
 */

static void leave(struct client *client)
{
	struct wh_observer *observer = client->observer;

	wh_loop_remove(home(observer), &client->source);
	close(client->source.fd);
	client->source.fd = -1;
	free(client->bytes);
	client->bytes = NULL;
	client->asked = client->length = client->sent = 0;
	wh_listener_hold(&observer->listener, false);
}

/* False: it has gone. */
static bool ask(struct client *client)
{
	ssize_t got = recv(client->source.fd, client->question + client->asked,
			   sizeof(client->question) - client->asked, MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (got > 0)
		client->asked += (size_t)got;
	if (got > 0 && client->asked < sizeof(client->question))
		return true;
	/* Who asks in another version learns ours from the header. */
	if (got <= 0 || memcmp(client->question, WH_OBSERVE_REQUEST, WH_OBSERVE_WORD_SIZE) != 0 ||
	    wh_observation_make(client->observer->engine, &client->bytes, &client->length)) {
		leave(client);
		return false;
	}
	wh_loop_modify(home(client->observer), &client->source, EPOLLOUT);
	return true;
}

static void tell(struct client *client)
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
	leave(client);
}

static void client_ready(struct wh_source *source, uint32_t events)
{
	struct client *client = wh_container(source, struct client, source);

	if (!client->bytes && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !ask(client))
		return;
	if (client->bytes)
		tell(client);
}

/* Those that take too long. */
static void sweep(struct wh_timer *timer)
{
	struct wh_observer *observer = wh_container(timer, struct wh_observer, timer);
	int64_t now = wh_now(), next = INT64_MAX;

	for (unsigned i = 0; i < CLIENTS; i++) {
		struct client *client = &observer->clients[i];

		if (client->source.fd < 0)
			continue;
		if (client->deadline <= now)
			leave(client);
		else if (client->deadline < next)
			next = client->deadline;
	}
	if (next != INT64_MAX)
		wh_timer_set(home(observer), timer, next);
}

static bool same_user(int fd)
{
	struct ucred who;
	socklen_t length = sizeof(who);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) && who.uid == geteuid();
}

static struct client *free_client(struct wh_observer *observer)
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
	struct client *client = free_client(observer);

	(void)from;
	if (!same_user(fd)) {
		close(fd);
		return;
	}
	client->source.fd = fd;
	client->deadline = wh_now() + PATIENCE;
	if (wh_loop_add(home(observer), &client->source, EPOLLIN)) {
		close(fd);
		client->source.fd = -1;
		return;
	}
	sweep(&observer->timer);
	wh_listener_hold(listener, !free_client(observer));
}

static void observer_waits(struct wh_listener *listener, int error)
{
	struct wh_observer *observer = wh_container(listener, struct wh_observer, listener);

	wh_log_line(&observer->engine->log, "an observer has to wait: %s", strerror(error));
}

/* ---- the socket ---------------------------------------------------------------------------------
 */

/* Under its name only once it listens: a socket that refuses is one of a dead engine to those who
 * look. */
static int listen_as(int fd, const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int error = 0;

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s%s", path, WH_OBSERVER_NEW) >=
	    (int)sizeof(address.sun_path))
		return -ENAMETOOLONG;
	/* Whatever the umask is, nobody else can connect. */
	if (fchmod(fd, 0600) || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		return -errno;
	if (listen(fd, 16) || rename(address.sun_path, path)) {
		error = -errno;
		unlink(address.sun_path);
	}
	return error;
}

static int make_socket(struct wh_observer *observer, const char *directory)
{
	int fd, error,
		length = snprintf(observer->path, sizeof(observer->path), "%s/%d-%016llx%s",
				  directory, (int)getpid(),
				  (unsigned long long)observer->engine->epoch, WH_OBSERVER_SUFFIX);

	if (length >= (int)sizeof(observer->path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	error = listen_as(fd, observer->path);
	if (error)
		close(fd);
	else
		observer->listener.source.fd = fd;
	return error;
}

static int try_places(struct wh_observer *observer)
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
			error = make_socket(observer, directory);
		if (!error)
			return 0;
	}
	return error;
}

static int choose(struct wh_observer *observer)
{
	const char *directory = observer->engine->config.text[WH_SETTING_OBSERVE];
	int error = *directory ? wh_observer_check(directory) : try_places(observer);

	if (!error && *directory)
		error = make_socket(observer, directory);
	if (error && *directory)
		return wh_fail(
			-error,
			"observe=%.120s: %s; name a directory of this user that others cannot "
			"write in, or off",
			directory, strerror(-error));
	/* One that was not asked for is not worth failing for. */
	if (error)
		wh_log_line(&observer->engine->log, "no socket for observers: %s",
			    strerror(-error));
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
	observer->timer.fire = sweep;
	for (unsigned i = 0; i < CLIENTS; i++) {
		observer->clients[i].observer = observer;
		observer->clients[i].source.fd = -1;
		observer->clients[i].source.ready = client_ready;
	}
	error = choose(observer);
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

static void stop(void *argument)
{
	struct wh_observer *observer = argument;

	for (unsigned i = 0; i < CLIENTS; i++)
		if (observer->clients[i].source.fd >= 0)
			leave(&observer->clients[i]);
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
	wh_loop_call(&engine->loops[0], stop, observer);
	engine->observer = NULL;
	free(observer);
}

const char *wh_engine_observer_path(const struct wh_engine *engine)
{
	return engine && engine->observer ? engine->observer->path : "";
}
