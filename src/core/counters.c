/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting what batches move, adding it up, and reporting it to the application and to observers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/batch.h"
#include "core/counters.h"
#include "core/engine.h"
#include "core/observer.h"
#include "core/peer.h"
#include "core/region.h"
#include "core/session.h"
#include "core/traffic.h"
#include "memory/region-table.h"
#include "telemetry/observation.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"
#include "util/options.h"

_Static_assert((int)WH_TRANSPORT_COUNT <= WH_TRANSPORTS_MAX, "room for every transport");

/* ---- counting ------------------------------------------------------------------------------- */

static void latency_add(struct wh_latency_statistics *latency, uint64_t ns)
{
	unsigned bucket =
		ns <= WH_LATENCY_BOUND(0) ? 0 : 64 - 8 - (unsigned)__builtin_clzll(ns - 1);

	if (bucket >= WH_LATENCY_BUCKETS)
		bucket = WH_LATENCY_BUCKETS - 1;
	wh_count_add(&latency->count, 1);
	wh_count_add(&latency->sum, ns);
	wh_count_add(&latency->bucket[bucket], 1);
}

static void statistics_add_fragment(struct wh_statistics *statistics,
				    const struct wh_fragment *fragment, uint64_t submissions)
{
	struct wh_route_statistics *route =
		wh_route_statistics(statistics, fragment->transport, fragment->op);

	wh_count_add(&route->bytes, fragment->bytes * submissions);
	wh_count_add(&route->transfers, fragment->transfers * submissions);
	wh_count_add(&route->attempts, submissions);
}

static bool batch_is_large(const struct wh_batch *batch)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (batch->share[id].bytes > WH_SMALL_BATCH)
			return true;
	return false;
}

/* Add submissions without errors, as planned. */
static void statistics_add_submissions(struct wh_statistics *statistics,
				       const struct wh_batch *batch, uint64_t submissions)
{
	if (!submissions)
		return;
	for (size_t i = 0; i < batch->fragment_count; i++)
		statistics_add_fragment(statistics, &batch->fragments[i], submissions);
	wh_count_add(&statistics->batches, submissions);
}

static void statistics_add_failed(struct wh_statistics *statistics, struct wh_batch *batch)
{
	bool cancelled = atomic_load(&batch->status) == -ECANCELED;

	for (size_t i = 0; i < batch->fragment_count; i++) {
		struct wh_fragment *fragment = &batch->fragments[i];
		int32_t failed = atomic_exchange(&fragment->failed, 0);

		if (!failed && !cancelled)
			statistics_add_fragment(statistics, fragment, 1);
		else
			wh_count_add(
				&wh_route_statistics(statistics, fragment->transport, fragment->op)
					 ->attempts,
				1);
		if (failed && failed != -ECANCELED)
			wh_count_add(&statistics->errors[fragment->transport], 1);
	}
	wh_count_add(cancelled ? &statistics->cancelled : &statistics->failed, 1);
}

static void batch_list_pending(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	pthread_mutex_lock(&peer->count_lock);
	batch->flushed_submissions = wh_count_get(&batch->submissions);
	wh_list_append(&peer->pending, &batch->count_link);
	if (batch->timed_in > WH_TIMED_EVERY) /* never timed so far */
		batch->timed_in = 1 + peer->listed_in_all++ % WH_TIMED_EVERY;
	batch->listed = true;
	atomic_store(&batch->watch, WH_STATISTICS_LISTED);
	pthread_mutex_unlock(&peer->count_lock);
}

/* Large batches are timed at every submission, which also maintains their bytes in flight; small
 * ones pay for neither. */
void wh_count_begin(struct wh_batch *batch)
{
	bool large = batch_is_large(batch);

	batch->timed_in = large ? 1 : WH_TIMED_EVERY;
	batch->begun = wh_now();
	batch->in_flight = 0;
	for (size_t i = 0; large && i < batch->fragment_count; i++)
		batch->in_flight += batch->fragments[i].bytes;
	wh_count_add(&batch->peer->statistics.in_flight, batch->in_flight);
	wh_traffic_begin(batch, large);
	atomic_fetch_or(&batch->watch, WH_STATISTICS_TIMED | (large ? WH_STATISTICS_IN_FLIGHT : 0));
}

void wh_count_finish(struct wh_batch *batch)
{
	struct wh_statistics *statistics = &batch->peer->statistics;
	uint32_t watch = atomic_load(&batch->watch);

	if ((watch & WH_STATISTICS_TIMED) && !(watch & WH_STATISTICS_FAILED)) {
		uint64_t took = (uint64_t)(wh_now() - batch->begun);

		latency_add(&statistics->latency[batch->timed_in == 1], took);
		wh_traffic_learn(batch, took, watch & WH_STATISTICS_IN_FLIGHT);
	}
	if (watch & WH_STATISTICS_FAILED)
		statistics_add_failed(statistics, batch);
	else if (watch & WH_STATISTICS_LISTED)
		wh_count_add(&batch->submissions, 1);
	else
		statistics_add_submissions(statistics, batch, 1);
	if (watch & WH_STATISTICS_IN_FLIGHT) {
		wh_count_add(&statistics->in_flight, -batch->in_flight);
		wh_traffic_end_large(batch);
	}
	if (watch & WH_STATISTICS_AGAIN)
		batch_list_pending(batch);
	else
		atomic_store(&batch->watch, watch & WH_STATISTICS_LISTED ? WH_STATISTICS_LISTED :
									   WH_STATISTICS_AGAIN);
}

void wh_count_flush(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	pthread_mutex_lock(&peer->count_lock);
	/* Several threads may reroute fragments of it: only the first one flushes. */
	if (batch->listed) {
		wh_list_remove(&batch->count_link);
		statistics_add_submissions(&peer->statistics, batch,
					   wh_count_get(&batch->submissions) -
						   batch->flushed_submissions);
		batch->flushed_submissions = wh_count_get(&batch->submissions);
		batch->listed = false;
		atomic_fetch_xor(&batch->watch, WH_STATISTICS_LISTED | WH_STATISTICS_AGAIN);
	}
	pthread_mutex_unlock(&peer->count_lock);
}

/* ---- adding up ------------------------------------------------------------------------------ */

static void count_move(wh_count *into, const wh_count *from)
{
	wh_count_add(into, wh_count_get(from));
}

static void statistics_add(struct wh_statistics *into, const struct wh_statistics *from)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		for (unsigned op = 0; op < 2; op++) {
			count_move(&into->route[id][op].bytes, &from->route[id][op].bytes);
			count_move(&into->route[id][op].transfers, &from->route[id][op].transfers);
			count_move(&into->route[id][op].alone, &from->route[id][op].alone);
			count_move(&into->route[id][op].attempts, &from->route[id][op].attempts);
		}
		count_move(&into->errors[id], &from->errors[id]);
		count_move(&into->reroutes[id], &from->reroutes[id]);
	}
	count_move(&into->batches, &from->batches);
	count_move(&into->failed, &from->failed);
	count_move(&into->cancelled, &from->cancelled);
	count_move(&into->in_flight, &from->in_flight);
	for (unsigned i = 0; i < 2; i++) {
		count_move(&into->latency[i].count, &from->latency[i].count);
		count_move(&into->latency[i].sum, &from->latency[i].sum);
		for (unsigned k = 0; k < WH_LATENCY_BUCKETS; k++)
			count_move(&into->latency[i].bucket[k], &from->latency[i].bucket[k]);
	}
}

/* The statistics of a peer, and what its listed batches have not flushed. */
static void statistics_add_peer(struct wh_statistics *into, struct wh_peer *peer)
{
	pthread_mutex_lock(&peer->count_lock);
	statistics_add(into, &peer->statistics);
	for (struct wh_list *l = peer->pending.next; l != &peer->pending; l = l->next) {
		const struct wh_batch *batch = wh_container(l, struct wh_batch, count_link);

		statistics_add_submissions(into, batch,
					   wh_count_get(&batch->submissions) -
						   batch->flushed_submissions);
	}
	pthread_mutex_unlock(&peer->count_lock);
}

void wh_count_peer_closed(struct wh_peer *peer)
{
	statistics_add_peer(&peer->engine->past, peer);
}

static void count_fold(const wh_count *count, uint64_t *folded, uint64_t *sum)
{
	uint64_t now = wh_count_get(count);

	*sum += now - *folded;
	*folded = now;
}

void wh_count_session_left(struct wh_session *session)
{
	struct wh_engine_statistics *statistics = &session->engine->statistics;
	struct wh_served *served = &session->served;

	for (unsigned op = 0; op < 2; op++)
		count_fold(&served->bytes[op], &served->flushed_bytes[op],
			   &statistics->served_bytes[op]);
	count_fold(&served->requests, &served->flushed_requests, &statistics->served_requests);
}

/* ---- reporting ------------------------------------------------------------------------------- */

static void latency_report(struct wh_latency *out, const struct wh_latency_statistics *from)
{
	out->count = wh_count_get(&from->count);
	out->sum = wh_count_get(&from->sum);
	for (unsigned i = 0; i < WH_LATENCY_BUCKETS; i++)
		out->bucket[i] = wh_count_get(&from->bucket[i]);
}

static void statistics_report(struct wh_counters *out, const struct wh_statistics *statistics)
{
	*out = (struct wh_counters){
		.size = sizeof(*out),
		.batches = wh_count_get(&statistics->batches),
		.failed = wh_count_get(&statistics->failed),
		.cancelled = wh_count_get(&statistics->cancelled),
		.transports = WH_TRANSPORT_COUNT,
		.large_in_flight = wh_count_get(&statistics->in_flight),
	};
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		struct wh_transport_counters *transport = &out->transport[id];

		snprintf(transport->transport, sizeof(transport->transport), "%s",
			 wh_transport(id)->name);
		transport->read_bytes = wh_count_get(&statistics->route[id][0].bytes);
		transport->written_bytes = wh_count_get(&statistics->route[id][1].bytes);
		transport->reads = wh_count_get(&statistics->route[id][0].transfers);
		transport->writes = wh_count_get(&statistics->route[id][1].transfers);
		transport->errors = wh_count_get(&statistics->errors[id]);
		transport->reroutes = wh_count_get(&statistics->reroutes[id]);
		for (unsigned op = 0; op < 2; op++) {
			uint64_t alone = wh_count_get(&statistics->route[id][op].alone);

			out->batches += alone;
			transport->attempts +=
				alone + wh_count_get(&statistics->route[id][op].attempts);
		}
	}
	latency_report(&out->small, &statistics->latency[0]);
	latency_report(&out->large, &statistics->latency[1]);
}

int wh_peer_counters(struct wh_peer *peer, struct wh_counters *out)
{
	struct wh_statistics statistics = { 0 };
	struct wh_counters full;
	int error;

	if (!peer || !out)
		return wh_fail(EINVAL, "wh_peer_counters: %s is NULL", peer ? "out" : "peer");
	error = wh_engine_guard(peer->engine, "wh_peer_counters");
	if (error)
		return error;
	statistics_add_peer(&statistics, peer);
	statistics_report(&full, &statistics);
	return wh_options_return(out, &full, sizeof(full), "wh_peer_counters");
}

/* Uses of regions by unfinished batches. Submitting maintains these counters anyway. */
static uint64_t engine_unfinished(struct wh_engine *engine)
{
	struct wh_region_table *table = &engine->regions;
	uint64_t sum = 0;
	uint32_t high;

	pthread_mutex_lock(&table->lock);
	high = table->high;
	pthread_mutex_unlock(&table->lock);
	for (uint32_t i = 0; i < high; i++) {
		struct wh_region_entry *entry = wh_region_table_at(table, i);

		if (entry)
			sum += atomic_load_explicit(
				&wh_container(entry, struct wh_region, entry)->batches,
				memory_order_relaxed);
	}
	return sum;
}

/* Under engine.lock. */
static void engine_report(struct wh_engine *engine, struct wh_engine_counters *out)
{
	const struct wh_engine_statistics *statistics = &engine->statistics;

	*out = (struct wh_engine_counters){
		.size = sizeof(*out),
		.uptime = (uint64_t)(wh_now() - statistics->opened),
		.peers_opened = wh_count_get(&statistics->peers_opened),
		.peers_lost = wh_count_get(&statistics->peers_lost),
		.sessions_opened = wh_count_get(&statistics->sessions_opened),
		.connections = wh_count_get(&statistics->connections),
		.regions = wh_region_table_used(&engine->regions),
		.region_bytes = wh_count_get(&statistics->region_bytes),
		.registrations = wh_count_get(&statistics->registrations),
		.registration_time = wh_count_get(&statistics->registration_time),
		.windows = engine->window_count + wh_count_get(&engine->region_windows.open),
		.windows_opened = wh_count_get(&statistics->windows_opened) +
				  wh_count_get(&engine->region_windows.opened),
		.staged_bytes = wh_count_get(&statistics->staged_bytes),
		.served_read_bytes = statistics->served_bytes[0],
		.served_written_bytes = statistics->served_bytes[1],
		.served_requests = statistics->served_requests,
		.unfinished = engine_unfinished(engine),
		.damaged = wh_count_get(&statistics->damaged),
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
	struct wh_statistics statistics = { 0 };
	struct wh_counters all;
	int error = wh_engine_guard(engine, "wh_engine_counters");

	if (error)
		return error;
	if (!out)
		return wh_fail(EINVAL, "wh_engine_counters: out is NULL");
	pthread_mutex_lock(&engine->lock);
	engine_report(engine, &full);
	statistics_add(&statistics, &engine->past);
	for (struct wh_list *l = engine->peers.next; l != &engine->peers; l = l->next)
		statistics_add_peer(&statistics, wh_container(l, struct wh_peer, link));
	pthread_mutex_unlock(&engine->lock);
	statistics_report(&all, &statistics);
	error = total ? wh_options_return(total, &all, sizeof(all), "wh_engine_counters: total") :
			0;
	return error ? error : wh_options_return(out, &full, sizeof(full), "wh_engine_counters");
}

/* ---- for observers -------------------------------------------------------------------------- */

static void observation_add_peer(struct wh_peer *peer, struct wh_statistics *total,
				 struct wh_observed_writer *out)
{
	struct wh_observed_peer row = { .lost = wh_count_get(&peer->lost) };
	struct wh_statistics statistics = { 0 };

	statistics_add_peer(&statistics, peer);
	statistics_add(total, &statistics);
	statistics_report(&row.counters, &statistics);
	pthread_mutex_lock(&peer->lock);
	row.epoch = peer->welcome.epoch;
	row.state = atomic_load(&peer->state);
	memcpy(row.name, peer->welcome.name, sizeof(row.name));
	memcpy(row.address, peer->address_text, sizeof(row.address));
	pthread_mutex_unlock(&peer->lock);
	wh_observed_put_peer(out, &row);
}

static void observation_add_session(const struct wh_session *session,
				    struct wh_observed_writer *out)
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
	struct wh_observed_engine row = { .epoch = engine->identity.epoch,
					  .pid = (uint32_t)getpid() };
	struct wh_statistics total = { 0 };

	memcpy(row.name, engine->identity.name, sizeof(row.name));
	snprintf(row.url, sizeof(row.url), "%s", engine->url);
	wh_observed_begin(&out);
	pthread_mutex_lock(&engine->lock);
	engine_report(engine, &row.counters);
	statistics_add(&total, &engine->past);
	for (struct wh_list *l = engine->peers.next; l != &engine->peers; l = l->next)
		observation_add_peer(wh_container(l, struct wh_peer, link), &total, &out);
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions; l = l->next)
		observation_add_session(wh_container(l, struct wh_session, link), &out);
	pthread_mutex_unlock(&engine->lock);
	statistics_report(&row.total, &total);
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
