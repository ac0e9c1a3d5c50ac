/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting to a peer and staying connected: addresses in turn, the hello, pings, trying again
 * with a growing pause, and asking the registry whether another engine has taken the name. All of
 * it runs on loop 0, but for the registry's answer.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/counters.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/question.h"
#include "core/removal.h"
#include "net/channel.h"
#include "net/control.h"
#include "net/handshake.h"
#include "net/tls.h"
#include "net/trust.h"
#include "rendezvous/registry.h"
#include "rendezvous/rendezvous.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/bytes.h"
#include "wire/wire.h"

#define BACKOFF_FIRST (10 * WH_MS) /* pauses between tries; each is twice as long */
#define BACKOFF_MOST (1000 * WH_MS)

static void peer_try_next(struct wh_peer *peer);

static struct wh_loop *peer_loop(struct wh_peer *peer)
{
	return &peer->engine->loops[0];
}

static int64_t peer_timeout(const struct wh_peer *peer)
{
	return peer->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;
}

void wh_peer_lose_transports(struct wh_peer *peer, int error, const char *text)
{
	atomic_fetch_add(&peer->plan_version, 1);
	wh_peer_aborts_fail(peer, error);
	wh_questions_fail(peer, error);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (peer->opened[id])
			wh_transport(id)->peer_lost(peer, peer->transport[id], error, text);
	wh_notify_peer_lost(peer, error, text);
}

/* ---- the name in the registry --------------------------------------------------------------- */

/* While the peer is lost, ask the registry whether another engine has its name now: then the old
 * one does not come back. */
static void peer_watch(struct wh_peer *peer)
{
	peer->watch.unlike = peer->welcome.epoch;
	if (*peer->watch.name)
		wh_registry_ask(peer->engine->registry, &peer->watch);
}

static void peer_unwatch(struct wh_peer *peer)
{
	if (!*peer->watch.name)
		return;
	wh_registry_forget(peer->engine->registry, &peer->watch);
	wh_loop_cancel(peer_loop(peer), &peer->moved);
}

/* On the registry's thread. */
static void peer_name_found(struct wh_registry_ask *ask)
{
	struct wh_peer *peer = wh_container(ask, struct wh_peer, watch);

	wh_loop_post(peer_loop(peer), &peer->moved);
}

/* End the present try. */
static void peer_stop_connecting(struct wh_peer *peer)
{
	wh_timer_clear(&peer->retry);
	if (peer->connecting.fd >= 0) {
		wh_loop_remove(peer_loop(peer), &peer->connecting);
		close(peer->connecting.fd);
		peer->connecting.fd = -1;
	}
	wh_control_close(&peer->control);
}

/* Another engine has the name. */
static void peer_moved(struct wh_task *task)
{
	struct wh_peer *peer = wh_container(task, struct wh_peer, moved);
	char text[WH_TEXT_MAX];

	if (peer->watch.error || atomic_load(&peer->state) != WH_PEER_LOST)
		return;
	peer_stop_connecting(peer);
	peer->listed = false;
	snprintf(text, sizeof(text), "it was restarted; the registry has it at %s",
		 peer->watch.found.address);
	wh_log_line(&peer->engine->log, WH_LOG_INFO, "peer", "%s was restarted, at %s",
		    peer->welcome.name, peer->watch.found.address);
	wh_peer_set_state(peer, WH_PEER_STALE, -ESTALE, text);
}

/* ---- failing and trying again --------------------------------------------------------------- */

static void peer_retry(struct wh_timer *timer)
{
	struct wh_peer *peer = wh_container(timer, struct wh_peer, retry);

	peer->address_next = 0;
	peer_try_next(peer);
}

/* One address has failed: go on with the next one. After the last one the first connect fails for
 * good, while a peer that was connected before is tried again after a pause. */
static void peer_try_failed(struct wh_peer *peer, int error, const char *text)
{
	if (peer->address_next < peer->address_count) {
		wh_peer_set_state(peer, 0, 0, text);
		peer_try_next(peer);
		return;
	}
	if (atomic_load(&peer->state) == WH_PEER_CONNECTING) {
		/* -ECONNRESET is that of a peer which is tried again. */
		wh_peer_set_state(peer, WH_PEER_UNREACHABLE,
				  error == -ECONNRESET ? -ECONNABORTED : error, text);
		return;
	}
	if (error == -ESTALE) {
		wh_log_line(&peer->engine->log, WH_LOG_INFO, "peer", "%s was restarted",
			    peer->welcome.name);
		peer_unwatch(peer);
		wh_peer_set_state(peer, WH_PEER_STALE, error, text);
		return;
	}
	wh_peer_set_state(peer, 0, error, text);
	peer->backoff = peer->backoff * 2 > BACKOFF_MOST ? BACKOFF_MOST : peer->backoff * 2;
	wh_timer_set(peer_loop(peer), &peer->retry, wh_now() + peer->backoff);
}

static void peer_gone(struct wh_control *control, int error, const char *text)
{
	struct wh_peer *peer = wh_container(control, struct wh_peer, control);
	uint32_t state = atomic_load(&peer->state);
	char why[WH_TEXT_MAX];

	wh_timer_clear(&peer->heartbeat);
	wh_removals_drop(peer);
	if (error == -EBADMSG)
		wh_engine_report_damage(
			peer->engine, (uintptr_t)peer,
			*peer->welcome.name ? peer->welcome.name : peer->address_text, text);
	if (!peer->listed || state == WH_PEER_CONNECTING) { /* during the handshake */
		if (error == -ECONNRESET)
			snprintf(why, sizeof(why),
				 "%s: it closed the connection during the handshake",
				 peer->address_text);
		else
			snprintf(why, sizeof(why), "%s: %s", peer->address_text, text);
		peer_try_failed(peer, error, why);
		return;
	}
	peer->listed = false;
	snprintf(why, sizeof(why), "%s (%s) %s", peer->welcome.name, peer->address_text, text);
	wh_log_about(&peer->engine->log, (uintptr_t)peer, WH_LOG_INFO, "peer", "lost: %s", why);
	wh_count_add(&peer->lost, 1);
	wh_count_add(&peer->engine->statistics.peers_lost, 1);
	atomic_fetch_add(&peer->losses, 1);
	wh_peer_set_state(peer, WH_PEER_LOST, -ECONNRESET, why);
	wh_peer_lose_transports(peer, -ECONNRESET, why);
	atomic_fetch_add(&peer->losses, 1);
	peer_watch(peer);
	peer->backoff = BACKOFF_FIRST;
	wh_timer_set(peer_loop(peer), &peer->retry, wh_now() + peer->backoff);
}

/* The time between pings: a third of the timeout, and at most 1 s. The other side relies on the
 * latter, whatever its own timeout is. */
static int64_t peer_beat_interval(const struct wh_peer *peer)
{
	return peer_timeout(peer) / 3 < WH_SECOND ? peer_timeout(peer) / 3 : WH_SECOND;
}

static void peer_silent(struct wh_peer *peer)
{
	wh_control_close(&peer->control);
	peer_gone(&peer->control, -ETIMEDOUT, "does not answer");
}

static void peer_cut(void *argument)
{
	struct wh_peer *peer = argument;

	if (atomic_load(&peer->state) == WH_PEER_CONNECTED && peer->listed)
		peer_silent(peer);
}

void wh_peer_cut(struct wh_peer *peer)
{
	wh_loop_call(peer_loop(peer), peer_cut, peer);
}

/* Send a ping; a peer that was silent for the whole timeout, or left a question unanswered, is
 * lost.
 */
static void peer_beat(struct wh_timer *timer)
{
	struct wh_peer *peer = wh_container(timer, struct wh_peer, heartbeat);
	uint8_t bytes[8];
	int64_t now = wh_now();

	if (now - peer->heard > peer_timeout(peer) ||
	    wh_question_is_late(peer, now - peer_timeout(peer))) {
		peer_silent(peer);
		return;
	}
	wh_put64(bytes, (uint64_t)now);
	if (peer->listed) { /* not during the handshake */
		wh_question_pinged(peer, now);
		wh_control_send(&peer->control, WH_FRAME_PING, 0, bytes, sizeof(bytes));
	}
	wh_timer_set(peer_loop(peer), timer, now + peer_beat_interval(peer));
}

void wh_peer_give_up(struct wh_peer *peer, int error, const char *why)
{
	wh_timer_clear(&peer->heartbeat);
	wh_control_close(&peer->control);
	peer->address_next = peer->address_count;
	peer_try_failed(peer, error, why);
}

/* ---- handshakes ----------------------------------------------------------------------------- */

int wh_peer_hello(struct wh_peer *peer, uint16_t role, uint32_t connection, struct wh_greeting *out)
{
	struct wh_hello welcome;

	if (role == WH_ROLE_CONTROL)
		return wh_hello_make(&peer->engine->identity, NULL, role, connection, out);
	pthread_mutex_lock(&peer->lock);
	welcome = peer->welcome;
	pthread_mutex_unlock(&peer->lock);
	return wh_hello_make(&peer->engine->identity, &welcome, role, connection, out);
}

int wh_peer_prove(struct wh_peer *peer, uint16_t role, int fd, const struct wh_channel *channel,
		  const struct wh_greeting *hello, const uint8_t *welcome, size_t length,
		  uint8_t out[WH_PROVE_SIZE])
{
	bool control = role == WH_ROLE_CONTROL;
	uint8_t key[WH_KEY_SIZE];
	int error;

	pthread_mutex_lock(&peer->lock);
	memcpy(key, peer->key, sizeof(key));
	pthread_mutex_unlock(&peer->lock);
	error = wh_prove_make(&peer->engine->trust, role, fd, channel, hello, welcome, length,
			      control ? NULL : key, control ? key : NULL, out);
	if (!error && control) {
		pthread_mutex_lock(&peer->lock);
		memcpy(peer->key, key, sizeof(key));
		pthread_mutex_unlock(&peer->lock);
	}
	explicit_bzero(key, sizeof(key));
	return error;
}

/* ---- connecting ----------------------------------------------------------------------------- */

static void peer_greet(struct wh_peer *peer, int fd)
{
	struct wh_tls_context *secure = peer->engine->trust.tls;
	struct wh_channel *channel = secure ? wh_tls_channel_new(secure, fd, false) : NULL;
	int error = wh_peer_hello(peer, WH_ROLE_CONTROL, 0, &peer->hello);

	peer->heard = wh_now();
	peer->ping = 0;
	peer->proved = false;
	if (!error && secure && !channel)
		error = -ENOMEM;
	if (!error)
		error = wh_control_start(&peer->control, fd, channel);
	if (error) {
		wh_channel_free(channel);
		close(fd);
		peer_try_failed(peer, error, strerror(-error));
		return;
	}
	wh_timer_set(peer_loop(peer), &peer->heartbeat, wh_now() + peer_beat_interval(peer));
	wh_control_send(&peer->control, WH_FRAME_HELLO, 0, peer->hello.bytes + WH_FRAME_HEADER,
			peer->hello.length - WH_FRAME_HEADER);
	wh_control_process_early(&peer->control);
}

static void peer_socket_ready(struct wh_source *source, uint32_t events)
{
	struct wh_peer *peer = wh_container(source, struct wh_peer, connecting);
	socklen_t length = sizeof(int);
	char text[WH_TEXT_MAX];
	int error = 0, fd = source->fd;

	(void)events;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length))
		error = errno;
	wh_loop_remove(peer_loop(peer), source);
	source->fd = -1;
	if (!error) {
		peer_greet(peer, fd);
		return;
	}
	close(fd);
	snprintf(text, sizeof(text), "%s: %s%s", peer->address_text, strerror(error),
		 error == ECONNREFUSED ? " (nothing listens there)" : "");
	peer_try_failed(peer, -error, text);
}

static void peer_try_next(struct wh_peer *peer)
{
	const struct sockaddr_storage *address = &peer->address[peer->address_next++];
	char text[WH_TEXT_MAX];
	int fd, error;

	pthread_mutex_lock(&peer->lock);
	wh_address_format(peer->address_text, sizeof(peer->address_text), address);
	pthread_mutex_unlock(&peer->lock);
	error = wh_trust_allows(&peer->engine->trust, address, false);
	if (error) {
		peer_try_failed(peer, error, wh_error_text());
		return;
	}
	fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0) {
		wh_socket_tune(&peer->engine->config, fd);
		peer->connecting.fd = fd;
		peer->connecting.ready = peer_socket_ready;
		if ((!connect(fd, (const struct sockaddr *)address,
			      address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
							       sizeof(struct sockaddr_in)) ||
		     errno == EINPROGRESS) &&
		    !wh_loop_add(peer_loop(peer), &peer->connecting, EPOLLOUT))
			return;
	}
	snprintf(text, sizeof(text), "%s: %s", peer->address_text, strerror(errno));
	if (fd >= 0)
		close(fd);
	peer->connecting.fd = -1;
	peer_try_failed(peer, -errno, text);
}

/* ---- for peer.c and peer-frame.c ------------------------------------------------------------ */

void wh_peer_connect_init(struct wh_peer *peer)
{
	peer->connecting.fd = -1;
	peer->backoff = BACKOFF_FIRST;
	peer->retry.fire = peer_retry;
	peer->heartbeat.fire = peer_beat;
	peer->watch.done = peer_name_found;
	peer->moved.run = peer_moved;
	peer->control.gone = peer_gone;
}

void wh_peer_connect(void *argument)
{
	peer_try_next(argument);
}

void wh_peer_connected(struct wh_peer *peer)
{
	peer->listed = true;
	peer->backoff = BACKOFF_FIRST;
	wh_timer_set(peer_loop(peer), &peer->heartbeat, wh_now() + peer_beat_interval(peer));
	peer_unwatch(peer);
	wh_peer_set_state(peer, WH_PEER_CONNECTED, 0, "");
}

void wh_peer_disconnect(struct wh_peer *peer)
{
	peer_unwatch(peer);
	wh_timer_clear(&peer->heartbeat);
	wh_removals_drop(peer);
	peer_stop_connecting(peer);
}
