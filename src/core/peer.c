/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: connecting to another engine, staying connected, and noticing that it is another one now.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/blocks.h"
#include "core/counters.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/region.h"
#include "core/remote.h"
#include "core/session.h"
#include "memory/region-table.h"
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
#include "util/options.h"
#include "wire/bytes.h"
#include "wire/wire.h"

#define BACKOFF_FIRST (10 * WH_MS)
#define BACKOFF_MOST (1000 * WH_MS)

static void try_next(struct wh_peer *peer);

static struct wh_loop *home(struct wh_peer *peer)
{
	return &peer->engine->loops[0];
}

static int64_t timeout_of(const struct wh_peer *peer)
{
	return peer->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;
}

int wh_peer_check(struct wh_peer *peer)
{
	uint32_t state = atomic_load_explicit(&peer->state, memory_order_acquire);
	char text[WH_TEXT_MAX];

	if (state == WH_PEER_CONNECTED)
		return 0;
	if (state == WH_PEER_STALE)
		return wh_fail(
			ESTALE,
			"peer %s was restarted (a new epoch); close this peer and open it again",
			peer->welcome.name);
	pthread_mutex_lock(&peer->lock);
	memcpy(text, peer->text, sizeof(text));
	pthread_mutex_unlock(&peer->lock);
	return wh_fail(ECONNRESET, "peer %s is lost: %.120s; it is being tried again",
		       peer->welcome.name, text);
}

void wh_peer_refuse(struct wh_peer *peer, enum wh_transport_id id, const char *why)
{
	pthread_mutex_lock(&peer->lock);
	snprintf(peer->refused[id], WH_REFUSAL, "%s", why);
	peer->not_for[id] = false;
	atomic_store(&peer->usable[id], false);
	pthread_mutex_unlock(&peer->lock);
	atomic_fetch_add(&peer->plan_version, 1);
	wh_log_line(&peer->engine->log, "%s to %s: %s", wh_transport(id)->name, peer->welcome.name,
		    why);
}

/* ---- aborting data connections --------------------------------------------------------------- */

void wh_peer_abort(struct wh_peer *peer, struct wh_abort *abort)
{
	uint8_t bytes[8];

	bool connected;

	wh_put64(bytes, abort->number);
	pthread_mutex_lock(&peer->lock);
	connected = atomic_load(&peer->state) == WH_PEER_CONNECTED;
	if (connected)
		wh_list_append(&peer->aborts, &abort->link);
	pthread_mutex_unlock(&peer->lock);
	/* If it cannot be sent the peer is about to be lost, which ends all of them. */
	if (connected)
		wh_control_send(&peer->control, WH_FRAME_ABORT, 0, bytes, sizeof(bytes));
	else
		abort->done(abort, -ECONNRESET);
}

/* Take out the first abort with this number; UINT32_MAX takes any. */
static struct wh_abort *take_abort(struct wh_peer *peer, uint32_t number)
{
	struct wh_abort *found = NULL;

	pthread_mutex_lock(&peer->lock);
	for (struct wh_list *l = peer->aborts.next; l != &peer->aborts && !found; l = l->next) {
		struct wh_abort *abort = wh_container(l, struct wh_abort, link);

		if (number == UINT32_MAX || abort->number == number)
			found = abort;
	}
	if (found)
		wh_list_remove(&found->link);
	pthread_mutex_unlock(&peer->lock);
	return found;
}

static int confirm_abort(struct wh_peer *peer, const uint8_t *payload, size_t length)
{
	struct wh_abort *abort;

	if (length != 8)
		return -EPROTO;
	abort = take_abort(peer, (uint32_t)wh_get64(payload));
	if (abort)
		abort->done(abort, 0);
	return 0;
}

/* ---- transports ------------------------------------------------------------------------------ */

static void open_transports(struct wh_peer *peer)
{
	struct wh_engine *engine = peer->engine;

	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		const struct wh_transport *transport = wh_transport(id);
		char why[WH_REFUSAL] = "";
		int error = 0;

		if (engine->transport_off[id][0]) {
			error = engine->not_here[id] ? -ENXIO : -EOPNOTSUPP;
			memcpy(why, engine->transport_off[id], sizeof(why));
		} else if (peer->opened[id]) {
			error = transport->peer_again(peer, peer->transport[id], why);
		} else {
			error = transport->peer_open(peer, &peer->transport[id], why);
			peer->opened[id] = !error;
		}
		pthread_mutex_lock(&peer->lock);
		memcpy(peer->refused[id], why, sizeof(why));
		peer->not_for[id] = error == -ENXIO;
		atomic_store(&peer->usable[id], !error);
		pthread_mutex_unlock(&peer->lock);
	}
	atomic_fetch_add(&peer->plan_version, 1);
}

static void lose_transports(struct wh_peer *peer, int error, const char *text)
{
	struct wh_abort *abort;

	atomic_fetch_add(&peer->plan_version, 1);
	while ((abort = take_abort(peer, UINT32_MAX)))
		abort->done(abort, error);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (peer->opened[id])
			wh_transport(id)->peer_lost(peer, peer->transport[id], error, text);
	wh_notify_peer_lost(peer, error, text);
}

/* ---- state ----------------------------------------------------------------------------------- */

static void set_state(struct wh_peer *peer, uint32_t state, int error, const char *text)
{
	pthread_mutex_lock(&peer->lock);
	peer->connect_error = error;
	snprintf(peer->text, sizeof(peer->text), "%s", text);
	if (state)
		atomic_store_explicit(&peer->state, state, memory_order_release);
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
}

/* ---- the registry ---------------------------------------------------------------------------- */

/* While a peer is lost: has another engine its name now? Then there is no need to wait for the old
 * one. */
static void watch(struct wh_peer *peer)
{
	peer->watch.unlike = peer->welcome.epoch;
	if (*peer->watch.name)
		wh_registry_ask(peer->engine->registry, &peer->watch);
}

static void unwatch(struct wh_peer *peer)
{
	if (!*peer->watch.name)
		return;
	wh_registry_forget(peer->engine->registry, &peer->watch);
	wh_loop_cancel(home(peer), &peer->moved);
}

/* On the registry's thread. */
static void name_moved(struct wh_registry_ask *ask)
{
	struct wh_peer *peer = wh_container(ask, struct wh_peer, watch);

	wh_loop_post(home(peer), &peer->moved);
}

static void stop_connecting(struct wh_peer *peer)
{
	wh_timer_clear(&peer->retry);
	if (peer->connecting.fd >= 0) {
		wh_loop_remove(home(peer), &peer->connecting);
		close(peer->connecting.fd);
		peer->connecting.fd = -1;
	}
	wh_control_close(&peer->control);
}

static void moved(struct wh_task *task)
{
	struct wh_peer *peer = wh_container(task, struct wh_peer, moved);
	char text[WH_TEXT_MAX];

	if (peer->watch.error || atomic_load(&peer->state) != WH_PEER_LOST)
		return;
	stop_connecting(peer);
	peer->listed = false;
	snprintf(text, sizeof(text), "it was restarted; the registry has it at %s",
		 peer->watch.found.address);
	wh_log_line(&peer->engine->log, "%s was restarted, at %s", peer->welcome.name,
		    peer->watch.found.address);
	set_state(peer, WH_PEER_STALE, -ESTALE, text);
}

/* ---- trying again -----------------------------------------------------------------------------
 */

static void retry(struct wh_timer *timer)
{
	struct wh_peer *peer = wh_container(timer, struct wh_peer, retry);

	peer->address_next = 0;
	try_next(peer);
}

/* A try to reach it has failed. The first connect fails for good, a later one is tried again. */
static void try_failed(struct wh_peer *peer, int error, const char *text)
{
	if (peer->address_next < peer->address_count) {
		set_state(peer, 0, 0, text);
		try_next(peer);
		return;
	}
	if (!atomic_load(&peer->state)) {
		set_state(peer, 0, error, text);
		return;
	}
	if (error == -ESTALE) {
		wh_log_line(&peer->engine->log, "%s was restarted", peer->welcome.name);
		unwatch(peer);
		set_state(peer, WH_PEER_STALE, error, text);
		return;
	}
	set_state(peer, 0, error, text);
	peer->backoff = peer->backoff * 2 > BACKOFF_MOST ? BACKOFF_MOST : peer->backoff * 2;
	wh_timer_set(home(peer), &peer->retry, wh_now() + peer->backoff);
}

static void peer_gone(struct wh_control *control, int error, const char *text)
{
	struct wh_peer *peer = wh_container(control, struct wh_peer, control);
	uint32_t state = atomic_load(&peer->state);
	char why[WH_TEXT_MAX];

	wh_timer_clear(&peer->heartbeat);
	if (!peer->listed || !state) { /* while shaking hands */
		if (error == -ECONNRESET)
			snprintf(why, sizeof(why),
				 "%s: it closed the connection during the handshake",
				 peer->address_text);
		else
			snprintf(why, sizeof(why), "%s: %s", peer->address_text, text);
		try_failed(peer, error, why);
		return;
	}
	peer->listed = false;
	snprintf(why, sizeof(why), "%s (%s) %s", peer->welcome.name, peer->address_text, text);
	wh_log_line(&peer->engine->log, "lost: %s", why);
	wh_count_add(&peer->lost, 1);
	wh_count_add(&peer->engine->statistics.peers_lost, 1);
	set_state(peer, WH_PEER_LOST, -ECONNRESET, why);
	lose_transports(peer, -ECONNRESET, why);
	watch(peer);
	peer->backoff = BACKOFF_FIRST;
	wh_timer_set(home(peer), &peer->retry, wh_now() + peer->backoff);
}

/* A ping every third of the timeout, and every second at least, which the other side may rely on
 * whatever its own timeout is. */
static int64_t beat_after(const struct wh_peer *peer)
{
	return timeout_of(peer) / 3 < WH_SECOND ? timeout_of(peer) / 3 : WH_SECOND;
}

/* Nothing heard for all of the timeout: lost. */
static void beat(struct wh_timer *timer)
{
	struct wh_peer *peer = wh_container(timer, struct wh_peer, heartbeat);
	uint8_t bytes[8];
	int64_t now = wh_now();

	if (now - peer->heard > timeout_of(peer)) {
		wh_control_close(&peer->control);
		peer_gone(&peer->control, -ETIMEDOUT, "does not answer");
		return;
	}
	wh_put64(bytes, (uint64_t)now);
	if (peer->listed) /* not into a handshake */
		wh_control_send(&peer->control, WH_FRAME_PING, 0, bytes, sizeof(bytes));
	wh_timer_set(home(peer), timer, now + beat_after(peer));
}

/* ---- frames from it -------------------------------------------------------------------------- */

/* No other address would do better. */
static void ended(struct wh_peer *peer, int error, const char *why)
{
	wh_timer_clear(&peer->heartbeat);
	wh_control_close(&peer->control);
	peer->address_next = peer->address_count;
	try_failed(peer, error, why);
}

static void not_proved(struct wh_peer *peer, const char *name)
{
	char why[WH_TEXT_MAX];

	snprintf(why, sizeof(why), "%.40s (%.24s): %.180s", peer->address_text, name,
		 wh_error_text());
	ended(peer, -EACCES, why);
}

static void other_version(struct wh_peer *peer, const struct wh_hello *welcome)
{
	char why[WH_TEXT_MAX];

	snprintf(why, sizeof(why),
		 "%s answers in protocol version %u, this engine speaks %u: one of them is newer",
		 peer->address_text, welcome->version_min, WH_WIRE_VERSION);
	ended(peer, -EPROTONOSUPPORT, why);
}

/* The first answer. A refusal or another epoch ends the connection here. */
static int welcomed(struct wh_peer *peer, const uint8_t *payload, size_t length)
{
	struct wh_hello welcome;
	bool first = !peer->welcome.epoch;
	uint8_t proof[WH_PROVE_SIZE];
	int error = wh_hello_decode(payload, length, &welcome);

	if (error == -EPROTONOSUPPORT) {
		other_version(peer, &welcome);
		return 0;
	}
	if (error || welcome.role != WH_ROLE_CONTROL || !welcome.epoch)
		return -EPROTO;
	error = wh_peer_prove(peer, WH_ROLE_CONTROL, peer->control.source.fd, peer->control.tls,
			      &peer->hello, payload, length, proof);
	if (error == -EACCES)
		not_proved(peer, welcome.name);
	if (error)
		return error == -EACCES ? 0 : error;
	peer->proved = true;
	if (peer->control.tls && *wh_tls_name(peer->control.tls))
		memcpy(welcome.name, wh_tls_name(peer->control.tls), sizeof(welcome.name));
	/* The registry knew another engine at this address. */
	if (first && peer->wanted && welcome.epoch != peer->wanted) {
		ended(peer, -ESTALE,
		      "another engine answers there than the registry has; try again "
		      "when the lease of the former has ended");
		return 0;
	}
	if (!first && welcome.epoch != peer->welcome.epoch) {
		ended(peer, -ESTALE, "it was restarted");
		return 0;
	}
	pthread_mutex_lock(&peer->lock);
	if (first)
		peer->welcome = welcome;
	else /* the same engine: the rest is as it was, and read without the lock */
		peer->welcome.session = welcome.session;
	pthread_mutex_unlock(&peer->lock);
	peer->list_round++;
	return wh_control_send(&peer->control, WH_FRAME_PROVE, 0, proof + WH_FRAME_HEADER,
			       WH_PROOF_SIZE);
}

/* This engine itself, under its own address; or somebody between it and itself, who must not be
 * taken for that: what is meant for him would go into our own regions. */
static bool is_self(struct wh_peer *peer)
{
	struct wh_session *session = wh_session_find(peer->engine, peer->welcome.session);

	return session && wh_sockets_joined(peer->control.source.fd, session->control.source.fd);
}

static int refused(struct wh_peer *peer, const uint8_t *payload, size_t length)
{
	char text[WH_REFUSAL_MAX], why[WH_TEXT_MAX];
	int error;

	if (wh_refusal_decode(payload, length, &error, text))
		return -EPROTO;
	snprintf(why, sizeof(why), "%s refuses: %.180s", peer->address_text, text);
	/* Who has proved nothing has no say in whether it is another engine now. */
	ended(peer, error == ESTALE ? -EPROTO : -error, why);
	return 0;
}

/* Regions that were there before the connection broke, and are not in the new list. */
static void drop_unlisted(struct wh_peer *peer)
{
	uint64_t cursor = 0;
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];

	while (wh_region_table_next(&peer->regions, &cursor, &copy, name)) {
		struct wh_region_entry *entry = wh_region_table_at(&peer->regions, copy.index);

		if (((struct wh_remote_region *)entry)->round != peer->list_round)
			wh_remote_remove(peer, atomic_load(&copy.id));
	}
}

static int regions(struct wh_peer *peer, const struct wh_frame *frame, const uint8_t *payload)
{
	const uint8_t *end = payload + frame->length;
	struct wh_region_record record;
	struct wh_region_entry *entry;
	int got, error;

	if (!peer->listed && peer->welcome.epoch == peer->engine->epoch) {
		if (!is_self(peer))
			return -EPROTO;
		pthread_mutex_lock(&peer->lock);
		peer->self = true;
		pthread_mutex_unlock(&peer->lock);
	}
	while ((got = wh_region_decode(&payload, end, &record)) == 1) {
		error = wh_remote_add(peer, &record);
		if (error)
			return error;
		entry = wh_region_table_at(&peer->regions, wh_region_table_index(record.id));
		((struct wh_remote_region *)entry)->round = peer->list_round;
	}
	if (got < 0)
		return got;
	if ((frame->flags & WH_FRAME_LAST) && !peer->listed) {
		drop_unlisted(peer);
		open_transports(peer);
		peer->listed = true;
		peer->backoff = BACKOFF_FIRST;
		wh_timer_set(home(peer), &peer->heartbeat, wh_now() + beat_after(peer));
		unwatch(peer);
		set_state(peer, WH_PEER_CONNECTED, 0, "");
	} else {
		pthread_mutex_lock(&peer->lock);
		pthread_cond_broadcast(&peer->changed);
		pthread_mutex_unlock(&peer->lock);
	}
	return 0;
}

static int removed(struct wh_peer *peer, const uint8_t *payload, size_t length)
{
	int error = length && length % 8 == 0 ? 0 : -EPROTO;

	/* The answer is a promise: not given if somebody here does not let go. */
	for (size_t i = 0; i < length && !error; i += 8)
		error = wh_remote_remove(peer, wh_get64(payload + i));
	if (error)
		return error;
	atomic_fetch_add(&peer->plan_version, 1);
	pthread_mutex_lock(&peer->lock);
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
	return wh_control_send(&peer->control, WH_FRAME_REMOVED, 0, payload, length);
}

static int peer_frame(struct wh_control *control, const struct wh_frame *frame,
		      const uint8_t *payload)
{
	struct wh_peer *peer = wh_container(control, struct wh_peer, control);

	peer->heard = wh_now();
	if (peer->proved ? frame->type == WH_FRAME_WELCOME :
			   frame->type != WH_FRAME_WELCOME && frame->type != WH_FRAME_REFUSED)
		return -EPROTO;
	switch (frame->type) {
	case WH_FRAME_WELCOME:
		return welcomed(peer, payload, frame->length);
	case WH_FRAME_REFUSED:
		return peer->listed ? -EPROTO : refused(peer, payload, frame->length);
	case WH_FRAME_REGIONS:
		return regions(peer, frame, payload);
	case WH_FRAME_REMOVE:
		return removed(peer, payload, frame->length);
	case WH_FRAME_NOTIFIED:
		if (frame->length != 8)
			return -EPROTO;
		wh_notify_confirmed(peer, wh_get64(payload));
		return 0;
	case WH_FRAME_ABORTED:
		return confirm_abort(peer, payload, frame->length);
	case WH_FRAME_RDMA_CONNECTED:
	case WH_FRAME_RDMA_KEYED:
	case WH_FRAME_RDMA_FLUSHED:
	case WH_FRAME_RDMA_BOUNCE_OPENED:
	case WH_FRAME_RDMA_COPIED:
	case WH_FRAME_RDMA_SPARE:
	case WH_FRAME_RDMA_RING_OPENED:
		if (!peer->opened[WH_TRANSPORT_RDMA])
			return -EPROTO;
		return wh_transport(WH_TRANSPORT_RDMA)
			->peer_frame(peer, peer->transport[WH_TRANSPORT_RDMA], frame, payload);
	case WH_FRAME_PONG:
		return 0;
	default:
		return -EPROTO;
	}
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void greet(struct wh_peer *peer, int fd)
{
	struct wh_tls_context *secure = peer->engine->trust.tls;
	struct wh_tls *tls = secure ? wh_tls_new(secure, fd, false) : NULL;
	int error = wh_peer_hello(peer, WH_ROLE_CONTROL, 0, &peer->hello);

	peer->heard = wh_now();
	peer->proved = false;
	if (!error && secure && !tls)
		error = -ENOMEM;
	if (!error)
		error = wh_control_start(&peer->control, fd, tls);
	if (error) {
		wh_tls_free(tls);
		close(fd);
		try_failed(peer, error, strerror(-error));
		return;
	}
	wh_timer_set(home(peer), &peer->heartbeat, wh_now() + beat_after(peer));
	wh_control_send(&peer->control, WH_FRAME_HELLO, 0, peer->hello.bytes + WH_FRAME_HEADER,
			peer->hello.length - WH_FRAME_HEADER);
	wh_control_early(&peer->control);
}

static void connected(struct wh_source *source, uint32_t events)
{
	struct wh_peer *peer = wh_container(source, struct wh_peer, connecting);
	socklen_t length = sizeof(int);
	char text[WH_TEXT_MAX];
	int error = 0, fd = source->fd;

	(void)events;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length))
		error = errno;
	wh_loop_remove(home(peer), source);
	source->fd = -1;
	if (!error) {
		greet(peer, fd);
		return;
	}
	close(fd);
	snprintf(text, sizeof(text), "%s: %s%s", peer->address_text, strerror(error),
		 error == ECONNREFUSED ? " (nothing listens there)" : "");
	try_failed(peer, -error, text);
}

static void try_next(struct wh_peer *peer)
{
	const struct sockaddr_storage *address = &peer->address[peer->address_next++];
	char text[WH_TEXT_MAX];
	int fd, error;

	pthread_mutex_lock(&peer->lock);
	wh_address_format(peer->address_text, sizeof(peer->address_text), address);
	pthread_mutex_unlock(&peer->lock);
	error = wh_trust_allows(&peer->engine->trust, address, false);
	if (error) {
		try_failed(peer, error, wh_error_text());
		return;
	}
	fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0) {
		wh_socket_tune(peer->engine, fd);
		peer->connecting.fd = fd;
		peer->connecting.ready = connected;
		if ((!connect(fd, (const struct sockaddr *)address,
			      address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
							       sizeof(struct sockaddr_in)) ||
		     errno == EINPROGRESS) &&
		    !wh_loop_add(home(peer), &peer->connecting, EPOLLOUT))
			return;
	}
	snprintf(text, sizeof(text), "%s: %s", peer->address_text, strerror(errno));
	if (fd >= 0)
		close(fd);
	peer->connecting.fd = -1;
	try_failed(peer, -errno, text);
}

static void start(void *argument)
{
	try_next(argument);
}

/* Everything of loop 0 that could still touch the peer. */
static void stop(void *argument)
{
	struct wh_peer *peer = argument;

	unwatch(peer);
	wh_timer_clear(&peer->heartbeat);
	stop_connecting(peer);
	wh_remote_clear(peer);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (peer->opened[id])
			wh_transport(id)->peer_close(peer, peer->transport[id]);
}

/* ---- the public functions ----------------------------------------------------------------------
 */

static void peer_free(struct wh_peer *peer)
{
	wh_region_table_destroy(&peer->regions);
	wh_control_destroy(&peer->control);
	pthread_mutex_destroy(&peer->lock);
	pthread_mutex_destroy(&peer->notify_lock);
	pthread_mutex_destroy(&peer->count_lock);
	pthread_mutex_destroy(&peer->probe_lock);
	pthread_cond_destroy(&peer->changed);
	explicit_bzero(peer->key, sizeof(peer->key));
	free(peer);
}

static int peer_new(struct wh_engine *engine, struct wh_peer **out)
{
	struct wh_peer *peer = calloc(1, sizeof(*peer));
	pthread_condattr_t clock;
	int error;

	if (!peer)
		return wh_fail(ENOMEM, "wh_peer_open: no memory");
	peer->engine = engine;
	peer->connecting.fd = -1;
	peer->backoff = BACKOFF_FIRST;
	atomic_store(&peer->plan_version, 1);
	peer->retry.fire = retry;
	peer->watch.done = name_moved;
	peer->moved.run = moved;
	peer->heartbeat.fire = beat;
	wh_control_init(&peer->control, &engine->loops[0]);
	peer->control.frame = peer_frame;
	peer->control.gone = peer_gone;
	pthread_mutex_init(&peer->lock, NULL);
	pthread_mutex_init(&peer->notify_lock, NULL);
	pthread_mutex_init(&peer->count_lock, NULL);
	pthread_mutex_init(&peer->probe_lock, NULL);
	wh_list_init(&peer->pending);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&peer->changed, &clock);
	pthread_condattr_destroy(&clock);
	wh_list_init(&peer->notify_waiting);
	wh_list_init(&peer->notify_sent);
	wh_list_init(&peer->notify_early);
	wh_list_init(&peer->aborts);
	wh_list_init(&peer->blocks);
	error = wh_region_table_init(&peer->regions, sizeof(struct wh_remote_region));
	if (error) {
		peer_free(peer);
		return error;
	}
	*out = peer;
	return 0;
}

/* This engine itself: nothing to connect. */
static void be_self(void *argument)
{
	struct wh_peer *peer = argument;

	peer->self = true;
	peer->welcome.epoch = peer->engine->epoch;
	memcpy(peer->welcome.host, peer->engine->host, sizeof(peer->welcome.host));
	memcpy(peer->welcome.name, peer->engine->name, sizeof(peer->welcome.name));
	memcpy(peer->welcome.socket, peer->engine->socket_name, sizeof(peer->welcome.socket));
	snprintf(peer->address_text, sizeof(peer->address_text), "self");
	open_transports(peer);
	peer->listed = true;
	set_state(peer, WH_PEER_CONNECTED, 0, "");
}

static int wait_connected(struct wh_peer *peer, const char *url, int64_t deadline)
{
	struct timespec until = { deadline / WH_SECOND, deadline % WH_SECOND };
	int late = 0, error = 0;

	pthread_mutex_lock(&peer->lock);
	while (atomic_load(&peer->state) != WH_PEER_CONNECTED && !peer->connect_error && !late)
		late = deadline == INT64_MAX ?
			       pthread_cond_wait(&peer->changed, &peer->lock) :
			       pthread_cond_timedwait(&peer->changed, &peer->lock, &until);
	if (atomic_load(&peer->state) == WH_PEER_CONNECTED)
		error = 0;
	else if (peer->connect_error)
		error = wh_fail(-peer->connect_error, "cannot reach %s: %.200s", url, peer->text);
	else
		error = wh_fail(ETIMEDOUT, "cannot reach %s: %s does not answer", url,
				peer->address_text);
	pthread_mutex_unlock(&peer->lock);
	return error;
}

/* Is this a name of the registry, and not HOST:PORT? */
static const char *registry_name(const struct wh_engine *engine, const char *url)
{
	const char *name = strncmp(url, "wherry://", 9) ? url : url + 9;

	return engine->registry && wh_registry_name_valid(name) ? name : NULL;
}

/* Where the peer may be: by its name if the registry knows that, else by its address. */
static int resolve(struct wh_peer *peer, const char *url, int64_t deadline)
{
	const char *name = registry_name(peer->engine, url), *address = url;
	struct wh_registry_record record;
	char why[WH_TEXT_MAX];
	int error = 0;

	if (name) {
		error = wh_registry_find(peer->engine->registry, name, deadline, &record);
		address = record.address;
	}
	if (name && !error) {
		memcpy(peer->watch.name, record.name, sizeof(peer->watch.name));
		peer->wanted = record.epoch;
	}
	peer->address_count = WH_PEER_ADDRESSES;
	if (!error)
		error = wh_rendezvous_resolve(address, false, peer->address, &peer->address_count);
	if (!error)
		return 0;
	snprintf(why, sizeof(why), "%s", wh_error_text());
	return wh_fail(-error, "cannot reach \"%.80s\": %.150s", url, why);
}

static int peer_try_open(struct wh_engine *engine, const char *url,
			 const struct wh_peer_options *given, struct wh_peer **out)
{
	struct wh_peer_options options;
	struct wh_peer *peer = NULL;
	int error = wh_engine_guard(engine, "wh_peer_open");

	if (error)
		return error;
	if (!url || !out)
		return wh_fail(EINVAL, "wh_peer_open: %s is NULL", url ? "out" : "url");
	error = wh_options_copy(&options, sizeof(options), given, sizeof(size_t), "wh_peer_open");
	if (error)
		return error;
	if (options.timeout < 0)
		return wh_fail(EINVAL, "wh_peer_open: options.timeout is negative");
	if (wh_engine_inside(engine))
		return wh_fail(EDEADLK,
			       "wh_peer_open: called from one of the engine's own threads");
	error = peer_new(engine, &peer);
	if (error)
		return error;
	if (!strcmp(url, "self")) {
		wh_loop_call(&engine->loops[0], be_self, peer);
	} else {
		int64_t deadline = wh_deadline(options.timeout ? options.timeout : 5 * WH_SECOND);

		error = resolve(peer, url, deadline);
		if (!error) {
			wh_loop_call(&engine->loops[0], start, peer);
			error = wait_connected(peer, url, deadline);
		}
	}
	if (error) {
		wh_loop_call(&engine->loops[0], stop, peer);
		peer_free(peer);
		return error;
	}
	wh_count_add(&engine->statistics.peers_opened, 1);
	pthread_mutex_lock(&engine->lock);
	wh_list_append(&engine->peers, &peer->link);
	pthread_mutex_unlock(&engine->lock);
	*out = peer;
	return 0;
}

int wh_peer_open(struct wh_engine *engine, const char *url, const struct wh_peer_options *given,
		 struct wh_peer **out)
{
	wh_fail_begin();
	return wh_fail_end(peer_try_open(engine, url, given, out));
}

static int peer_try_close(struct wh_peer *peer)
{
	struct wh_engine *engine;
	uint32_t batches;
	int error;

	if (!peer)
		return wh_fail(EINVAL, "wh_peer_close: peer is NULL");
	error = wh_engine_guard(peer->engine, "wh_peer_close");
	if (error)
		return error;
	engine = peer->engine;
	if (wh_engine_inside(engine))
		return wh_fail(EDEADLK,
			       "wh_peer_close: called from one of the engine's own threads");
	batches = WH_BATCHES(atomic_load(&peer->batches));
	if (batches)
		return wh_fail(EBUSY, "wh_peer_close: %u batches of %s have not been freed",
			       batches, peer->welcome.name);
	pthread_mutex_lock(&engine->lock);
	wh_list_remove(&peer->link);
	wh_count_peer_closed(peer);
	pthread_mutex_unlock(&engine->lock);
	wh_loop_call(&engine->loops[0], stop, peer);
	wh_blocks_leave(peer);
	peer_free(peer);
	return 0;
}

int wh_peer_close(struct wh_peer *peer)
{
	wh_fail_begin();
	return wh_fail_end(peer_try_close(peer));
}

int wh_peer_info(struct wh_peer *peer, struct wh_peer_info *info)
{
	struct wh_peer_info full = { .size = sizeof(full) };
	int error;

	if (!peer || !info)
		return wh_fail(EINVAL, "wh_peer_info: %s is NULL", peer ? "info" : "peer");
	error = wh_engine_guard(peer->engine, "wh_peer_info");
	if (error)
		return error;
	pthread_mutex_lock(&peer->lock);
	full.epoch = peer->welcome.epoch;
	full.state = atomic_load(&peer->state);
	memcpy(full.name, peer->welcome.name, sizeof(full.name));
	memcpy(full.address, peer->address_text, sizeof(full.address));
	pthread_mutex_unlock(&peer->lock);
	full.regions = wh_region_table_count(peer->self ? &peer->engine->regions : &peer->regions);
	return wh_options_return(info, &full, sizeof(full), "wh_peer_info");
}
