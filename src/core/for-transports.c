/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transports may ask of the core (transport/core.h), as far as it is only reading or setting a
 * member. The rest of that header is defined where its object is.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "core/batch.h"
#include "core/counters.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/session.h"
#include "net/handshake.h"
#include "transport/core.h"

/* ---- the engine ----------------------------------------------------------------------------- */

const struct wh_config *wh_engine_config(const struct wh_engine *engine)
{
	return &engine->config;
}

struct wh_log *wh_engine_log(struct wh_engine *engine)
{
	return &engine->log;
}

struct wh_region_table *wh_engine_regions(struct wh_engine *engine)
{
	return &engine->regions;
}

struct wh_cuda *wh_engine_cuda(const struct wh_engine *engine)
{
	return engine->cuda;
}

struct wh_gpus *wh_engine_gpus(const struct wh_engine *engine)
{
	return engine->gpus;
}

struct wh_region_windows *wh_engine_region_windows(struct wh_engine *engine)
{
	return &engine->region_windows;
}

struct wh_file_threads *wh_engine_file_threads(const struct wh_engine *engine)
{
	return atomic_load_explicit(&engine->memory.file_threads, memory_order_acquire);
}

void *wh_engine_transport(const struct wh_engine *engine, enum wh_transport_id id)
{
	return engine->transport[id];
}

pid_t wh_engine_process(const struct wh_engine *engine)
{
	return engine->process;
}

struct wh_loop *wh_engine_first_loop(const struct wh_engine *engine)
{
	return &engine->loops[0];
}

struct wh_turns *wh_engine_turns(const struct wh_engine *engine)
{
	return engine->turns;
}

enum wh_nearness wh_engine_nearness(const struct wh_engine *engine, const struct wh_hello *other)
{
	const uint8_t *here = engine->identity.host;

	if (memcmp(other->host + 8, here + 8, 8) != 0)
		return WH_ELSEWHERE;
	return memcmp(other->host, here, 8) ? WH_SAME_MACHINE : WH_SAME_NETWORK;
}

struct wh_tls_context *wh_engine_tls(const struct wh_engine *engine)
{
	return engine->trust.tls;
}

bool wh_engine_is_met(const struct wh_engine *engine, const struct wh_hello *other)
{
	enum wh_nearness near = wh_engine_nearness(engine, other);

	return *engine->identity.socket &&
	       (near == WH_SAME_NETWORK ||
		(near == WH_SAME_MACHINE && engine->identity.capabilities & WH_CAPABLE_MEET));
}

void wh_engine_hold_regions(struct wh_engine *engine)
{
	pthread_mutex_lock(&engine->lock);
}

void wh_engine_release_regions(struct wh_engine *engine)
{
	pthread_mutex_unlock(&engine->lock);
}

void wh_engine_count_staged(struct wh_engine *engine, uint64_t bytes)
{
	wh_count_add(&engine->statistics.staged_bytes, bytes);
}

void wh_engine_count_connection(struct wh_engine *engine)
{
	wh_count_add(&engine->statistics.connections, 1);
}

void wh_engine_report_damage(struct wh_engine *engine, uint64_t who, const char *name,
			     const char *text)
{
	wh_count_add(&engine->statistics.damaged, 1);
	wh_log_about(&engine->log, who, WH_LOG_WARN, "net", "%s %s; the connection is cut", name,
		     text);
}

/* ---- peers ---------------------------------------------------------------------------------- */

struct wh_engine *wh_peer_engine(const struct wh_peer *peer)
{
	return peer->engine;
}

const char *wh_peer_name(const struct wh_peer *peer)
{
	return peer->welcome.name;
}

const struct wh_hello *wh_peer_welcome(const struct wh_peer *peer)
{
	return &peer->welcome;
}

bool wh_peer_has_records(const struct wh_peer *peer)
{
	return (peer->engine->identity.capabilities | peer->welcome.capabilities) &
	       WH_WANTS_RECORDS;
}

bool wh_peer_is_self(const struct wh_peer *peer)
{
	return peer->self;
}

struct wh_region_table *wh_peer_regions(struct wh_peer *peer)
{
	return &peer->regions;
}

struct wh_control *wh_peer_control(struct wh_peer *peer)
{
	return &peer->control;
}

void *wh_peer_transport(const struct wh_peer *peer, enum wh_transport_id id)
{
	return peer->opened[id] ? peer->transport[id] : NULL;
}

void wh_peer_replan(struct wh_peer *peer)
{
	atomic_fetch_add(&peer->plan_version, 1);
}

void wh_peer_reach_again(struct wh_peer *peer)
{
	wh_deferred_look(peer->engine);
}

bool wh_peer_address(const struct wh_peer *peer, struct sockaddr_storage *out)
{
	if (!peer->address_next)
		return false;
	*out = peer->address[peer->address_next - 1];
	return true;
}

/* ---- sessions ------------------------------------------------------------------------------- */

struct wh_engine *wh_session_engine(const struct wh_session *session)
{
	return session->engine;
}

uint64_t wh_session_id(const struct wh_session *session)
{
	return session->id;
}

const struct wh_hello *wh_session_hello(const struct wh_session *session)
{
	return &session->hello;
}

struct wh_quota *wh_session_quota(const struct wh_session *session)
{
	return session->quota;
}

struct wh_lent *wh_session_lent(const struct wh_session *session)
{
	return atomic_load(&session->lent);
}

int wh_session_lend(struct wh_session *session, struct wh_lent *lent)
{
	if (atomic_load(&session->lent))
		return -EALREADY;
	atomic_store(&session->lent, lent);
	return 0;
}

struct wh_control *wh_session_control(struct wh_session *session)
{
	return &session->control;
}

void *wh_session_transport(const struct wh_session *session, enum wh_transport_id id)
{
	return session->transport[id];
}

void wh_session_set_transport(struct wh_session *session, enum wh_transport_id id, void *state)
{
	session->transport[id] = state;
}

void wh_session_touches(struct wh_session *session)
{
	atomic_store(&session->touches, true);
}

void wh_session_keyed(struct wh_session *session)
{
	atomic_store(&session->keyed, true);
}

void wh_session_count(struct wh_session *session, uint32_t op, uint64_t bytes)
{
	wh_count_add(&session->served.bytes[op - WH_READ], bytes);
	wh_count_add(&session->served.requests, 1);
}

/* ---- batches -------------------------------------------------------------------------------- */

struct wh_fragment *wh_batch_fragment(const struct wh_batch *batch, enum wh_transport_id id,
				      const struct wh_fragment *before)
{
	size_t at = before ? (size_t)(before - batch->fragments) + 1 : 0;

	while (at < batch->fragment_count && id != WH_TRANSPORT_COUNT &&
	       atomic_load(&batch->fragments[at].transport) != id)
		at++;
	return at < batch->fragment_count ? &batch->fragments[at] : NULL;
}

bool wh_batch_is_running(const void *batch)
{
	return wh_batch_running(batch);
}

bool wh_batch_has_waiter(const struct wh_batch *batch)
{
	return !batch->callback && !batch->queue && !batch->dependency;
}

const void *wh_batch_note(const struct wh_batch *batch, size_t *length)
{
	if (!batch->notifies)
		return NULL;
	*length = batch->note_length;
	return batch->note + WH_NOTIFY_HEAD;
}

uint64_t wh_batch_tag(const struct wh_batch *batch)
{
	return batch->note_tag;
}

uint32_t wh_batch_priority(const struct wh_batch *batch)
{
	return batch->priority;
}

void *wh_batch_transport(const struct wh_batch *batch, enum wh_transport_id id)
{
	return atomic_load_explicit(&batch->transport[id], memory_order_acquire);
}

void wh_batch_set_transport(struct wh_batch *batch, enum wh_transport_id id, void *state)
{
	atomic_store_explicit(&batch->transport[id], state, memory_order_release);
	atomic_store_explicit(&batch->kept, true, memory_order_relaxed);
}

/* ---- notifications -------------------------------------------------------------------------- */

void wh_notify_lock(struct wh_peer *peer)
{
	pthread_mutex_lock(&peer->notify_lock);
}

void wh_notify_unlock(struct wh_peer *peer)
{
	pthread_mutex_unlock(&peer->notify_lock);
}

unsigned wh_notify_unconfirmed(const struct wh_peer *peer)
{
	return peer->notify_count;
}
