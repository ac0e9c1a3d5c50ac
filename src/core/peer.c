/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer as an object: opening and closing it, and its transports. peer-connect.c connects it and
 * keeps it connected, peer-frame.c reads what it sends.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/counters.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/remote.h"
#include "memory/region-table.h"
#include "net/control.h"
#include "rendezvous/registry.h"
#include "rendezvous/rendezvous.h"
#include "transport/blocks.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "util/options.h"

int wh_peer_check(struct wh_peer *peer)
{
	uint32_t state = atomic_load_explicit(&peer->state, memory_order_acquire);
	char text[WH_TEXT_MAX];

	if (state == WH_PEER_CONNECTED)
		return 0;
	if (state == WH_PEER_STALE)
		return wh_fail(ESTALE,
			       "peer %s was restarted (it has a new epoch); close this peer and "
			       "open it again",
			       peer->welcome.name);
	pthread_mutex_lock(&peer->lock);
	memcpy(text, peer->text, sizeof(text));
	pthread_mutex_unlock(&peer->lock);
	return wh_fail(ECONNRESET, "peer %s is lost: %.120s; reconnecting", peer->welcome.name,
		       text);
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

/* ---- transports and state -------------------------------------------------------------------- */

void wh_peer_open_transports(struct wh_peer *peer)
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

void wh_peer_set_state(struct wh_peer *peer, uint32_t state, int error, const char *text)
{
	pthread_mutex_lock(&peer->lock);
	peer->connect_error = error;
	snprintf(peer->text, sizeof(peer->text), "%s", text);
	if (state)
		atomic_store_explicit(&peer->state, state, memory_order_release);
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
}

/* ---- opening and closing ------------------------------------------------------------------- */

/* End all of the peer that runs on loop 0. */
static void peer_stop(void *argument)
{
	struct wh_peer *peer = argument;

	wh_peer_disconnect(peer);
	wh_remote_clear(peer);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (peer->opened[id])
			wh_transport(id)->peer_close(peer, peer->transport[id]);
}

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
	atomic_store(&peer->plan_version, 1);
	wh_control_init(&peer->control, &engine->loops[0]);
	peer->control.frame = wh_peer_frame;
	wh_peer_connect_init(peer);
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

/* The peer is this engine itself: nothing to connect. On loop 0. */
static void peer_be_self(void *argument)
{
	struct wh_peer *peer = argument;

	peer->self = true;
	peer->welcome.epoch = peer->engine->identity.epoch;
	memcpy(peer->welcome.host, peer->engine->identity.host, sizeof(peer->welcome.host));
	memcpy(peer->welcome.name, peer->engine->identity.name, sizeof(peer->welcome.name));
	memcpy(peer->welcome.socket, peer->engine->identity.socket, sizeof(peer->welcome.socket));
	snprintf(peer->address_text, sizeof(peer->address_text), "self");
	wh_peer_open_transports(peer);
	peer->listed = true;
	wh_peer_set_state(peer, WH_PEER_CONNECTED, 0, "");
}

static int peer_wait_connected(struct wh_peer *peer, const char *url, int64_t deadline)
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

/* The name in `url` if it can be looked up in the registry; NULL: it is HOST:PORT. */
static const char *peer_registry_name(const struct wh_engine *engine, const char *url)
{
	const char *name = strncmp(url, "wherry://", 9) ? url : url + 9;

	return engine->registry && wh_registry_name_valid(name) ? name : NULL;
}

/* Find the addresses of the peer, from the registry or from `url` itself. May block. */
static int peer_resolve(struct wh_peer *peer, const char *url, int64_t deadline)
{
	const char *name = peer_registry_name(peer->engine, url), *address = url;
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
		wh_loop_call(&engine->loops[0], peer_be_self, peer);
	} else {
		int64_t deadline = wh_deadline(options.timeout ? options.timeout : 5 * WH_SECOND);

		error = peer_resolve(peer, url, deadline);
		if (!error) {
			wh_loop_call(&engine->loops[0], wh_peer_connect, peer);
			error = peer_wait_connected(peer, url, deadline);
		}
	}
	if (error) {
		wh_loop_call(&engine->loops[0], peer_stop, peer);
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
	wh_loop_call(&engine->loops[0], peer_stop, peer);
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
