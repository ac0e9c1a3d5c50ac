/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a peer: find its addresses, have loop 0 connect to it, and wait for that, or report it to
 * a queue.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/counters.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/progress.h"
#include "core/queue.h"
#include "rendezvous/registry.h"
#include "rendezvous/rendezvous.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "util/options.h"
#include "util/thread.h"

/* ---- addresses ------------------------------------------------------------------------------ */

/* The name in `url` if it can be looked up in the registry; NULL: it is HOST:PORT. */
static const char *peer_registry_name(const struct wh_engine *engine, const char *url)
{
	const char *name = strncmp(url, "wherry://", 9) ? url : url + 9;

	return engine->registry && wh_registry_name_valid(name) ? name : NULL;
}

/* Find the addresses of the peer, from the registry or from its URL itself. May block. */
static int peer_resolve(struct wh_peer *peer)
{
	const char *name = peer_registry_name(peer->engine, peer->url), *address = peer->url;
	struct wh_registry_record record;
	int error = 0;

	if (name) {
		error = wh_registry_find(peer->engine->registry, name, peer->connect_deadline,
					 &record);
		address = record.address;
	}
	if (name && !error) {
		memcpy(peer->watch.name, record.name, sizeof(peer->watch.name));
		peer->wanted = record.epoch;
	}
	peer->address_count = WH_PEER_ADDRESSES;
	if (!error)
		error = wh_rendezvous_resolve(address, WH_RESOLVE_REMOTE, peer->address,
					      &peer->address_count);
	return error;
}

/* ---- opening and waiting -------------------------------------------------------------------- */

static int peer_wait_connected(struct wh_peer *peer)
{
	int late = 0, error = 0;

	pthread_mutex_lock(&peer->lock);
	while (atomic_load(&peer->state) != WH_PEER_CONNECTED && !peer->connect_error && !late)
		late = wh_engine_cond_wait(peer->engine, &peer->changed, &peer->lock,
					   peer->connect_deadline);
	if (atomic_load(&peer->state) == WH_PEER_CONNECTED)
		error = 0;
	else if (peer->connect_error)
		error = wh_fail(-peer->connect_error, "cannot reach %s: %.200s", peer->url,
				peer->text);
	else
		error = wh_fail(ETIMEDOUT, "cannot reach %s: %s does not answer", peer->url,
				peer->address_text);
	pthread_mutex_unlock(&peer->lock);
	return error;
}

static int peer_open_waiting(struct wh_peer *peer)
{
	struct wh_loop *loop = &peer->engine->loops[0];
	char why[WH_TEXT_MAX];
	int error;

	if (!strcmp(peer->url, "self")) {
		wh_loop_call(loop, wh_peer_be_self, peer);
		return peer_wait_connected(peer);
	}
	error = peer_resolve(peer);
	if (error) {
		snprintf(why, sizeof(why), "%s", wh_error_text());
		return wh_fail(-error, "cannot reach \"%.80s\": %.150s", peer->url, why);
	}
	wh_loop_call(loop, wh_peer_connect, peer);
	return peer_wait_connected(peer);
}

/* ---- opening without waiting ---------------------------------------------------------------- */

/* The addresses are known, or there are none. On loop 0. */
static void peer_resolved(struct wh_task *task)
{
	struct wh_peer *peer = wh_container(task, struct wh_peer, resolved);
	char why[WH_TEXT_MAX];

	if (atomic_load(&peer->state) != WH_PEER_CONNECTING)
		return; /* too late */
	if (!strcmp(peer->url, "self")) {
		wh_peer_be_self(peer);
		return;
	}
	if (peer->resolve_error) {
		pthread_mutex_lock(&peer->lock);
		memcpy(why, peer->text, sizeof(why));
		pthread_mutex_unlock(&peer->lock);
		wh_peer_set_state(peer, WH_PEER_UNREACHABLE, peer->resolve_error, why);
		return;
	}
	wh_timer_set(&peer->engine->loops[0], &peer->opening, peer->connect_deadline);
	wh_peer_connect(peer);
}

static void peer_open_late(struct wh_timer *timer)
{
	struct wh_peer *peer = wh_container(timer, struct wh_peer, opening);
	char why[WH_TEXT_MAX];

	if (atomic_load(&peer->state) != WH_PEER_CONNECTING)
		return;
	wh_peer_disconnect(peer);
	snprintf(why, sizeof(why), "%s does not answer", peer->address_text);
	wh_peer_set_state(peer, WH_PEER_UNREACHABLE, -ETIMEDOUT, why);
}

/* Keep how the look-up ended for peer_resolved(). The peer may be gone on return. */
static void peer_end_resolving(struct wh_peer *peer, int error, const char *text)
{
	peer->resolve_error = error;
	if (error) {
		pthread_mutex_lock(&peer->lock);
		snprintf(peer->text, sizeof(peer->text), "%s", text);
		pthread_mutex_unlock(&peer->lock);
	}
	wh_loop_post(&peer->engine->loops[0], &peer->resolved);
}

static void *peer_resolver(void *argument)
{
	int error;

	pthread_setname_np(pthread_self(), "wherry/resolver");
	error = peer_resolve(argument);
	peer_end_resolving(argument, error, wh_error_text());
	return NULL;
}

/* Look the name up on a thread; in an engine without threads, here. */
static void peer_start_resolver(struct wh_peer *peer)
{
	int error;

	if (peer->engine->turns) {
		error = peer_resolve(peer);
		peer_end_resolving(peer, error, wh_error_text());
		return;
	}
	peer->resolving = true;
	error = wh_thread_start(&peer->resolver, NULL, peer_resolver, peer);
	if (!error)
		return; /* the peer may be gone */
	peer->resolving = false;
	peer_end_resolving(peer, -error, "no thread to look up its name");
}

/* Find the addresses, if that needs no look-up. 0; -EAGAIN: it does; -EINVAL. */
static int peer_resolve_now(struct wh_peer *peer)
{
	peer->address_count = WH_PEER_ADDRESSES;
	if (!strcmp(peer->url, "self"))
		return 0;
	if (peer_registry_name(peer->engine, peer->url))
		return -EAGAIN;
	return wh_rendezvous_resolve(peer->url, WH_RESOLVE_NUMERIC, peer->address,
				     &peer->address_count);
}

/* ---- the call ------------------------------------------------------------------------------- */

static int peer_check_options(struct wh_engine *engine, const struct wh_peer_options *options)
{
	if (options->timeout < 0)
		return wh_fail(EINVAL, "wh_peer_open: options.timeout is negative");
	if (options->queue && wh_queue_engine(options->queue) != engine)
		return wh_fail(EINVAL, "wh_peer_open: options.queue belongs to another engine");
	if (!options->queue && wh_engine_inside(engine))
		return wh_fail(EDEADLK,
			       "wh_peer_open: called from one of the engine's own threads, without "
			       "a queue");
	return 0;
}

static void peer_list(struct wh_peer *peer)
{
	struct wh_engine *engine = peer->engine;

	wh_count_add(&engine->statistics.peers_opened, 1);
	pthread_mutex_lock(&engine->lock);
	wh_list_append(&engine->peers, &peer->link);
	pthread_mutex_unlock(&engine->lock);
}

static int peer_open_and_wait(struct wh_peer *peer, struct wh_peer **out)
{
	int error = peer_open_waiting(peer);

	if (error)
		return error;
	peer_list(peer);
	*out = peer;
	return 0;
}

static int peer_open_by_queue(struct wh_peer *peer, const struct wh_peer_options *options,
			      struct wh_peer **out)
{
	int error = peer_resolve_now(peer);

	if (error && error != -EAGAIN)
		return error;
	peer->resolved.run = peer_resolved;
	peer->opening.fire = peer_open_late;
	peer->queue = options->queue;
	peer->queued = (struct wh_queue_entry){ .peer = peer, .user = options->user };
	wh_queue_hold(peer->queue, 1);
	peer_list(peer);
	*out = peer;
	/* From here another thread may take the completion, and close the peer. */
	if (error)
		peer_start_resolver(peer);
	else
		wh_loop_post(&peer->engine->loops[0], &peer->resolved);
	return 0;
}

/* How long to try to connect, in ns. A program that waits long for a peer which it has waits as
 * long for a new one. */
static int64_t peer_patience(const struct wh_engine *engine, const struct wh_peer_options *options)
{
	int64_t silence = engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;

	if (options->timeout)
		return options->timeout;
	return silence > 5 * WH_SECOND ? silence : 5 * WH_SECOND;
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
	if (!error)
		error = peer_check_options(engine, &options);
	if (!error)
		error = wh_peer_new(engine, url, &peer);
	if (error)
		return error;
	peer->connect_deadline = wh_deadline(peer_patience(engine, &options));
	error = options.queue ? peer_open_by_queue(peer, &options, out) :
				peer_open_and_wait(peer, out);
	if (error)
		wh_peer_free(peer);
	return error;
}

int wh_peer_open(struct wh_engine *engine, const char *url, const struct wh_peer_options *given,
		 struct wh_peer **out)
{
	wh_fail_begin();
	return wh_fail_end(peer_try_open(engine, url, given, out));
}

void wh_peer_opened(struct wh_peer *peer, int status)
{
	wh_timer_clear(&peer->opening);
	if (!peer->queue || peer->reported)
		return;
	peer->reported = true;
	peer->queued.status = status;
	wh_queue_put(peer->queue, &peer->queued);
}
