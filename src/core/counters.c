/* SPDX-License-Identifier: Apache-2.0 */
/* Counting what batches move, and telling it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"
#include "telemetry/observation.h"
#include "util/clock.h"
#include "util/options.h"

_Static_assert((int)WH_TRANSPORT_COUNT <= WH_TRANSPORTS_MAX, "room for every transport");

/* ---- counting ---------------------------------------------------------------------------------
 */

static void add_latency(struct wh_latency_statistics *latency, uint64_t ns)
{
	unsigned bucket =
		ns <= WH_LATENCY_BOUND(0) ? 0 : 64 - 8 - (unsigned)__builtin_clzll(ns - 1);

	if (bucket >= WH_LATENCY_BUCKETS)
		bucket = WH_LATENCY_BUCKETS - 1;
	wh_count_add(&latency->count, 1);
	wh_count_add(&latency->sum, ns);
	wh_count_add(&latency->bucket[bucket], 1);
}

static void add_piece(struct wh_statistics *tally, const struct wh_fragment *piece, uint64_t rounds)
{
	struct wh_route_statistics *way = wh_route_statistics(tally, piece->transport, piece->op);

	wh_count_add(&way->bytes, piece->bytes * rounds);
	wh_count_add(&way->transfers, piece->transfers * rounds);
	wh_count_add(&way->attempts, rounds);
}

static bool is_large(const struct wh_batch *batch)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (batch->share[id].bytes > WH_SMALL_BATCH)
			return true;
	return false;
}

/* So many rounds of its plan, each of which went well. */
static void add_rounds(struct wh_statistics *tally, const struct wh_batch *batch, uint64_t rounds)
{
	if (!rounds)
		return;
	for (size_t i = 0; i < batch->piece_count; i++)
		add_piece(tally, &batch->pieces[i], rounds);
	wh_count_add(&tally->batches, rounds);
}

static void add_failed(struct wh_statistics *tally, struct wh_batch *batch)
{
	bool cancelled = atomic_load(&batch->status) == -ECANCELED;

	for (size_t i = 0; i < batch->piece_count; i++) {
		struct wh_fragment *piece = &batch->pieces[i];
		int32_t failed = atomic_exchange(&piece->failed, 0);

		if (!failed && !cancelled)
			add_piece(tally, piece, 1);
		else
			wh_count_add(
				&wh_route_statistics(tally, piece->transport, piece->op)->attempts,
				1);
		if (failed && failed != -ECANCELED)
			wh_count_add(&tally->errors[piece->transport], 1);
	}
	wh_count_add(cancelled ? &tally->cancelled : &tally->failed, 1);
}

static void list(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	pthread_mutex_lock(&peer->count_lock);
	batch->told = wh_count_get(&batch->rounds);
	wh_list_append(&peer->counted, &batch->count_link);
	if (batch->timed_in > WH_TIMED_EVERY) /* not timed so far */
		batch->timed_in = 1 + peer->listed_in_all++ % WH_TIMED_EVERY;
	batch->listed = true;
	atomic_store(&batch->watch, WH_STATISTICS_LISTED);
	pthread_mutex_unlock(&peer->count_lock);
}

/* Large ones come by here each time, so that what they have in flight costs the small ones nothing.
 */
void wh_count_begin(struct wh_batch *batch)
{
	bool large = is_large(batch);

	batch->timed_in = large ? 1 : WH_TIMED_EVERY;
	batch->begun = wh_now();
	batch->flying = 0;
	for (size_t i = 0; large && i < batch->piece_count; i++)
		batch->flying += batch->pieces[i].bytes;
	wh_count_add(&batch->peer->tally.flying, batch->flying);
	atomic_fetch_or(&batch->watch, WH_STATISTICS_TIMED | (large ? WH_STATISTICS_IN_FLIGHT : 0));
}

void wh_count_finish(struct wh_batch *batch)
{
	struct wh_statistics *tally = &batch->peer->tally;
	uint32_t watch = atomic_load(&batch->watch);

	if ((watch & WH_STATISTICS_TIMED) && !(watch & WH_STATISTICS_FAILED))
		add_latency(&tally->latency[batch->timed_in == 1],
			    (uint64_t)(wh_now() - batch->begun));
	if (watch & WH_STATISTICS_FAILED)
		add_failed(tally, batch);
	else if (watch & WH_STATISTICS_LISTED)
		wh_count_add(&batch->rounds, 1);
	else
		add_rounds(tally, batch, 1);
	if (watch & WH_STATISTICS_IN_FLIGHT)
		wh_count_add(&tally->flying, -batch->flying);
	if (watch & WH_STATISTICS_AGAIN)
		list(batch);
	else
		atomic_store(&batch->watch, watch & WH_STATISTICS_LISTED ? WH_STATISTICS_LISTED :
									   WH_STATISTICS_AGAIN);
}

void wh_count_flush(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	pthread_mutex_lock(&peer->count_lock);
	/* Parts of it may be given to other transports by several threads. */
	if (batch->listed) {
		wh_list_remove(&batch->count_link);
		add_rounds(&peer->tally, batch, wh_count_get(&batch->rounds) - batch->told);
		batch->told = wh_count_get(&batch->rounds);
		batch->listed = false;
		atomic_fetch_xor(&batch->watch, WH_STATISTICS_LISTED | WH_STATISTICS_AGAIN);
	}
	pthread_mutex_unlock(&peer->count_lock);
}

/* ---- adding up --------------------------------------------------------------------------------
 */

static void move_count(wh_count *into, const wh_count *from)
{
	wh_count_add(into, wh_count_get(from));
}

/* The peer's numbers with those of its batches. Under peer.count_lock, or where nobody counts. */
static void add_tally(struct wh_statistics *into, const struct wh_statistics *from)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		for (unsigned way = 0; way < 2; way++) {
			move_count(&into->way[id][way].bytes, &from->way[id][way].bytes);
			move_count(&into->way[id][way].transfers, &from->way[id][way].transfers);
			move_count(&into->way[id][way].alone, &from->way[id][way].alone);
			move_count(&into->way[id][way].attempts, &from->way[id][way].attempts);
		}
		move_count(&into->errors[id], &from->errors[id]);
		move_count(&into->reroutes[id], &from->reroutes[id]);
	}
	move_count(&into->batches, &from->batches);
	move_count(&into->failed, &from->failed);
	move_count(&into->cancelled, &from->cancelled);
	move_count(&into->flying, &from->flying);
	for (unsigned i = 0; i < 2; i++) {
		move_count(&into->latency[i].count, &from->latency[i].count);
		move_count(&into->latency[i].sum, &from->latency[i].sum);
		for (unsigned k = 0; k < WH_LATENCY_BUCKETS; k++)
			move_count(&into->latency[i].bucket[k], &from->latency[i].bucket[k]);
	}
}

static void add_peer(struct wh_statistics *into, struct wh_peer *peer)
{
	pthread_mutex_lock(&peer->count_lock);
	add_tally(into, &peer->tally);
	for (struct wh_list *l = peer->counted.next; l != &peer->counted; l = l->next) {
		const struct wh_batch *batch = wh_container(l, struct wh_batch, count_link);

		add_rounds(into, batch, wh_count_get(&batch->rounds) - batch->told);
	}
	pthread_mutex_unlock(&peer->count_lock);
}

void wh_count_peer_closed(struct wh_peer *peer)
{
	add_peer(&peer->engine->past, peer);
}

static void tell_once(const wh_count *count, uint64_t *told, uint64_t *sum)
{
	uint64_t now = wh_count_get(count);

	*sum += now - *told;
	*told = now;
}

void wh_count_session_left(struct wh_session *session)
{
	struct wh_engine_statistics *tally = &session->engine->tally;
	struct wh_served *served = &session->served;

	for (unsigned way = 0; way < 2; way++)
		tell_once(&served->bytes[way], &served->told_bytes[way], &tally->served_bytes[way]);
	tell_once(&served->requests, &served->told_requests, &tally->served_requests);
}

/* ---- telling ----------------------------------------------------------------------------------
 */

static void tell_latency(struct wh_latency *out, const struct wh_latency_statistics *from)
{
	out->count = wh_count_get(&from->count);
	out->sum = wh_count_get(&from->sum);
	for (unsigned i = 0; i < WH_LATENCY_BUCKETS; i++)
		out->bucket[i] = wh_count_get(&from->bucket[i]);
}

static void tell(struct wh_counters *out, const struct wh_statistics *tally)
{
	*out = (struct wh_counters){
		.size = sizeof(*out),
		.batches = wh_count_get(&tally->batches),
		.failed = wh_count_get(&tally->failed),
		.cancelled = wh_count_get(&tally->cancelled),
		.transports = WH_TRANSPORT_COUNT,
		.large_in_flight = wh_count_get(&tally->flying),
	};
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		struct wh_transport_counters *transport = &out->transport[id];

		snprintf(transport->transport, sizeof(transport->transport), "%s",
			 wh_transport(id)->name);
		transport->read_bytes = wh_count_get(&tally->way[id][0].bytes);
		transport->written_bytes = wh_count_get(&tally->way[id][1].bytes);
		transport->reads = wh_count_get(&tally->way[id][0].transfers);
		transport->writes = wh_count_get(&tally->way[id][1].transfers);
		transport->errors = wh_count_get(&tally->errors[id]);
		transport->reroutes = wh_count_get(&tally->reroutes[id]);
		for (unsigned way = 0; way < 2; way++) {
			uint64_t alone = wh_count_get(&tally->way[id][way].alone);

			out->batches += alone;
			out->attempts[id] += alone + wh_count_get(&tally->way[id][way].attempts);
		}
	}
	tell_latency(&out->small, &tally->latency[0]);
	tell_latency(&out->large, &tally->latency[1]);
}

int wh_peer_counters(struct wh_peer *peer, struct wh_counters *out)
{
	struct wh_statistics tally = { 0 };
	struct wh_counters full;
	int error;

	if (!peer || !out)
		return wh_fail(EINVAL, "wh_peer_counters: %s is NULL", peer ? "out" : "peer");
	error = wh_engine_guard(peer->engine, "wh_peer_counters");
	if (error)
		return error;
	add_peer(&tally, peer);
	tell(&full, &tally);
	return wh_options_return(out, &full, sizeof(full), "wh_peer_counters");
}

/* A submission holds its regions anyway: who looks adds up, and nobody counts. */
static uint64_t unfinished(struct wh_engine *engine)
{
	struct wh_region_table *places = &engine->regions;
	uint64_t sum = 0;
	uint32_t high;

	pthread_mutex_lock(&places->lock);
	high = places->high;
	pthread_mutex_unlock(&places->lock);
	for (uint32_t i = 0; i < high; i++) {
		struct wh_region_entry *place = wh_region_table_at(places, i);

		if (place)
			sum += atomic_load_explicit(
				&wh_container(place, struct wh_region, place)->batches,
				memory_order_relaxed);
	}
	return sum;
}

/* Under engine.lock. */
static void tell_engine(struct wh_engine *engine, struct wh_engine_counters *out)
{
	const struct wh_engine_statistics *tally = &engine->tally;

	*out = (struct wh_engine_counters){
		.size = sizeof(*out),
		.uptime = (uint64_t)(wh_now() - tally->opened),
		.peers_opened = wh_count_get(&tally->peers_opened),
		.peers_lost = wh_count_get(&tally->peers_lost),
		.sessions_opened = wh_count_get(&tally->sessions_opened),
		.connections = wh_count_get(&tally->connections),
		.regions = wh_region_table_count(&engine->regions),
		.region_bytes = wh_count_get(&tally->region_bytes),
		.registrations = wh_count_get(&tally->registrations),
		.registration_time = wh_count_get(&tally->registration_time),
		.windows = engine->window_count + wh_count_get(&engine->tally.panes),
		.windows_opened = wh_count_get(&tally->windows_opened),
		.staged_bytes = wh_count_get(&tally->staged_bytes),
		.served_read_bytes = tally->served_bytes[0],
		.served_written_bytes = tally->served_bytes[1],
		.served_requests = tally->served_requests,
		.unfinished = unfinished(engine),
	};
	for (struct wh_list *l = engine->peers.next; l != &engine->peers; l = l->next)
		out->peers++;
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions; l = l->next) {
		const struct wh_session *session = wh_container(l, struct wh_session, link);

		out->sessions++;
		out->served_read_bytes += wh_count_get(&session->served.bytes[0]);
		out->served_written_bytes += wh_count_get(&session->served.bytes[1]);
		out->served_requests += wh_count_get(&session->served.requests);
	}
}

int wh_engine_counters(struct wh_engine *engine, struct wh_engine_counters *out,
		       struct wh_counters *total)
{
	struct wh_engine_counters full;
	struct wh_statistics tally = { 0 };
	struct wh_counters all;
	int error = wh_engine_guard(engine, "wh_engine_counters");

	if (error)
		return error;
	if (!out)
		return wh_fail(EINVAL, "wh_engine_counters: out is NULL");
	pthread_mutex_lock(&engine->lock);
	tell_engine(engine, &full);
	add_tally(&tally, &engine->past);
	for (struct wh_list *l = engine->peers.next; l != &engine->peers; l = l->next)
		add_peer(&tally, wh_container(l, struct wh_peer, link));
	pthread_mutex_unlock(&engine->lock);
	tell(&all, &tally);
	error = total ? wh_options_return(total, &all, sizeof(all), "wh_engine_counters: total") :
			0;
	return error ? error : wh_options_return(out, &full, sizeof(full), "wh_engine_counters");
}

/* ---- for observers ------------------------------------------------------------------------------
 */

static void observe_peer(struct wh_peer *peer, struct wh_statistics *total,
			 struct wh_observed_writer *out)
{
	struct wh_observed_peer row = { .lost = wh_count_get(&peer->lost) };
	struct wh_statistics tally = { 0 };

	add_peer(&tally, peer);
	add_tally(total, &tally);
	tell(&row.counters, &tally);
	pthread_mutex_lock(&peer->lock);
	row.epoch = peer->welcome.epoch;
	row.state = atomic_load(&peer->state);
	memcpy(row.name, peer->welcome.name, sizeof(row.name));
	memcpy(row.address, peer->address_text, sizeof(row.address));
	pthread_mutex_unlock(&peer->lock);
	wh_observed_put_peer(out, &row);
}

static void observe_session(const struct wh_session *session, struct wh_observed_writer *out)
{
	struct wh_observed_session row = {
		.epoch = session->hello.epoch,
		.read_bytes = wh_count_get(&session->served.bytes[0]),
		.written_bytes = wh_count_get(&session->served.bytes[1]),
		.requests = wh_count_get(&session->served.requests),
	};

	memcpy(row.name, session->hello.name, sizeof(row.name));
	wh_observed_put_session(out, &row);
}

int wh_observation_make(struct wh_engine *engine, uint8_t **bytes, size_t *length)
{
	struct wh_observed_writer out = { 0 };
	struct wh_observed_engine row = { .epoch = engine->epoch, .pid = (uint32_t)getpid() };
	struct wh_statistics total = { 0 };

	memcpy(row.name, engine->name, sizeof(row.name));
	snprintf(row.url, sizeof(row.url), "%s", engine->url);
	wh_observed_begin(&out);
	pthread_mutex_lock(&engine->lock);
	tell_engine(engine, &row.counters);
	add_tally(&total, &engine->past);
	for (struct wh_list *l = engine->peers.next; l != &engine->peers; l = l->next)
		observe_peer(wh_container(l, struct wh_peer, link), &total, &out);
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions; l = l->next)
		observe_session(wh_container(l, struct wh_session, link), &out);
	pthread_mutex_unlock(&engine->lock);
	tell(&row.total, &total);
	return wh_observed_end(&out, &row, bytes, length);
}

int wh_engine_observe(struct wh_engine *engine, void *buffer, size_t *length)
{
	int error = wh_engine_guard(engine, "wh_engine_observe");
	uint8_t *bytes;
	size_t used;

	if (error)
		return error;
	if (!length || (!buffer && *length))
		return wh_fail(EINVAL, "wh_engine_observe: %s is NULL",
			       length ? "buffer" : "length");
	error = wh_observation_make(engine, &bytes, &used);
	if (error)
		return wh_fail(-error, "wh_engine_observe: no memory");
	if (used > *length)
		error = wh_fail(ENOSPC, "wh_engine_observe: room for %zu bytes, there are %zu",
				*length, used);
	else
		memcpy(buffer, bytes, used);
	*length = used;
	free(bytes);
	return error;
}
