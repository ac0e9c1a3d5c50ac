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
#include "core/queue.h"
#include "core/remote.h"
#include "core/removal.h"
#include "core/warning.h"
#include "memory/region-table.h"
#include "net/control.h"
#include "transport/blocks.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "util/options.h"

/* Apart from wh_peer_check(), which every submission calls: the text needs a large stack frame. */
static __attribute__((noinline)) int peer_explain_state(struct wh_peer *peer, uint32_t state)
{
	char text[WH_TEXT_MAX];
	int error;

	if (state == WH_PEER_STALE)
		return wh_fail(ESTALE,
			       "peer %s was restarted (it has a new epoch); close this peer and "
			       "open it again",
			       peer->welcome.name);
	pthread_mutex_lock(&peer->lock);
	memcpy(text, peer->text, sizeof(text));
	error = -peer->connect_error;
	pthread_mutex_unlock(&peer->lock);
	if (state == WH_PEER_UNREACHABLE)
		return wh_fail(error, "cannot reach %.80s: %.180s", peer->url, text);
	if (state == WH_PEER_CONNECTING)
		return wh_fail(
			EINPROGRESS,
			"peer %.80s is not connected yet; wait for its completion in the queue",
			peer->url);
	return wh_fail(ECONNRESET, "peer %s is lost: %.120s; reconnecting", peer->welcome.name,
		       text);
}

int wh_peer_check(struct wh_peer *peer)
{
	uint32_t state = atomic_load_explicit(&peer->state, memory_order_acquire);

	return state == WH_PEER_CONNECTED ? 0 : peer_explain_state(peer, state);
}

void wh_peer_refuse(struct wh_peer *peer, enum wh_transport_id id, const char *why)
{
	pthread_mutex_lock(&peer->lock);
	snprintf(peer->refused[id], WH_REFUSAL, "%s", why);
	peer->not_for[id] = false;
	atomic_store(&peer->usable[id], false);
	pthread_mutex_unlock(&peer->lock);
	atomic_fetch_add(&peer->plan_version, 1);
	wh_log_about(&peer->engine->log, (uintptr_t)peer, WH_LOG_WARN, "peer",
		     "%s to %s is not used any more: %s", wh_transport(id)->name,
		     peer->welcome.name, why);
}

/* ---- transports and state -------------------------------------------------------------------- */

bool wh_peer_is_near(const struct wh_peer *peer)
{
	return !peer->self && wh_engine_nearness(peer->engine, &peer->welcome) != WH_ELSEWHERE;
}

int wh_peer_open_transports(struct wh_peer *peer)
{
	struct wh_engine *engine = peer->engine;
	int short_of = 0;

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
		if (error == -ENOMEM)
			short_of = error;
		else if (error && error != -ENXIO)
			wh_warning_refused(peer, id, why);
		pthread_mutex_lock(&peer->lock);
		memcpy(peer->refused[id], why, sizeof(why));
		peer->not_for[id] = error == -ENXIO;
		atomic_store(&peer->usable[id], !error);
		pthread_mutex_unlock(&peer->lock);
	}
	atomic_fetch_add(&peer->plan_version, 1);
	return short_of;
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
	if (state == WH_PEER_CONNECTED || state == WH_PEER_UNREACHABLE)
		wh_peer_opened(peer, error);
}

/* ---- making and closing it ------------------------------------------------------------------ */

/* End all of the peer that runs on loop 0. */
static void peer_stop(void *argument)
{
	struct wh_peer *peer = argument;

	wh_loop_cancel(&peer->engine->loops[0], &peer->resolved);
	wh_timer_clear(&peer->opening);
	wh_peer_disconnect(peer);
	wh_remote_clear(peer);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (peer->opened[id])
			wh_transport(id)->peer_close(peer, peer->transport[id]);
}

static void peer_destroy(struct wh_peer *peer)
{
	wh_region_table_destroy(&peer->regions);
	wh_control_destroy(&peer->control);
	pthread_mutex_destroy(&peer->lock);
	pthread_mutex_destroy(&peer->notify_lock);
	pthread_mutex_destroy(&peer->count_lock);
	pthread_mutex_destroy(&peer->probed_lock);
	pthread_mutex_destroy(&peer->probe_lock);
	pthread_cond_destroy(&peer->changed);
	explicit_bzero(peer->key, sizeof(peer->key));
	free(peer->url);
	free(peer->traffic);
	free(peer);
}

void wh_peer_free(struct wh_peer *peer)
{
	struct wh_queue *queue = peer->queue;

	if (peer->resolving)
		pthread_join(peer->resolver, NULL);
	wh_loop_call(&peer->engine->loops[0], peer_stop, peer);
	if (queue) {
		wh_queue_forget(queue, &peer->queued);
		wh_queue_hold(queue, -1);
	}
	peer_destroy(peer);
}

int wh_peer_new(struct wh_engine *engine, const char *url, struct wh_peer **out)
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
	pthread_mutex_init(&peer->probed_lock, NULL);
	wh_list_init(&peer->pending);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&peer->changed, &clock);
	pthread_condattr_destroy(&clock);
	wh_list_init(&peer->notify_waiting);
	wh_list_init(&peer->notify_sent);
	wh_list_init(&peer->notify_early);
	wh_list_init(&peer->questions);
	wh_list_init(&peer->aborts);
	wh_removals_init(peer);
	wh_list_init(&peer->blocks);
	error = wh_region_table_init(&peer->regions, sizeof(struct wh_remote_region));
	peer->url = strdup(url);
	if (!error && !peer->url)
		error = wh_fail(ENOMEM, "wh_peer_open: no memory");
	if (error) {
		peer_destroy(peer);
		return error;
	}
	snprintf(peer->welcome.name, sizeof(peer->welcome.name), "%s", url);
	*out = peer;
	return 0;
}

/* The peer is this engine itself: nothing to connect. On loop 0. */
void wh_peer_be_self(void *argument)
{
	struct wh_peer *peer = argument;

	peer->self = true;
	peer->welcome.epoch = peer->engine->identity.epoch;
	memcpy(peer->welcome.host, peer->engine->identity.host, sizeof(peer->welcome.host));
	memcpy(peer->welcome.name, peer->engine->identity.name, sizeof(peer->welcome.name));
	memcpy(peer->welcome.socket, peer->engine->identity.socket, sizeof(peer->welcome.socket));
	snprintf(peer->address_text, sizeof(peer->address_text), "self");
	if (wh_peer_open_transports(peer)) {
		wh_peer_set_state(peer, WH_PEER_UNREACHABLE, -ENOMEM, "self: no memory");
		return;
	}
	peer->listed = true;
	wh_peer_set_state(peer, WH_PEER_CONNECTED, 0, "");
}

static int peer_try_close(struct wh_peer *peer)
{
	struct wh_engine *engine;
	uint32_t batches;
	int error;

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
	wh_blocks_leave(peer);
	wh_peer_free(peer);
	return 0;
}

int wh_peer_close(struct wh_peer *peer)
{
	if (!peer)
		return 0;
	wh_fail_begin();
	return wh_fail_end(peer_try_close(peer));
}

const char *wh_peer_state_name(uint32_t state)
{
	static const char *const names[] = { [WH_PEER_CONNECTING] = "connecting",
					     [WH_PEER_CONNECTED] = "connected",
					     [WH_PEER_LOST] = "lost",
					     [WH_PEER_STALE] = "stale",
					     [WH_PEER_UNREACHABLE] = "unreachable" };

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

int wh_peer_status(struct wh_peer *peer)
{
	int error;

	if (!peer)
		return wh_fail(EINVAL, "wh_peer_status: peer is NULL");
	error = wh_engine_guard(peer->engine, "wh_peer_status");
	return error ? error : wh_peer_check(peer);
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
	full.regions = peer->self ? wh_region_table_used(&peer->engine->regions) :
				    wh_region_table_count(&peer->regions);
	return wh_options_return(info, &full, sizeof(full), "wh_peer_info");
}
