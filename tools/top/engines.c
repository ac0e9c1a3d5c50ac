/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of engines, peers and routes, with rates, from two answers of each engine. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

#include "top/top.h"

static const struct wh_observation nothing;

/* Growth per second; NAN: unknown, or smaller because merged peers have gone. */
static double counter_rate(uint64_t before, uint64_t after, double seconds)
{
	return after < before || !(seconds > 0) ? (double)NAN : (double)(after - before) / seconds;
}

/* ---- latencies ------------------------------------------------------------------------------- */

/* A quantile in us of the batches that were timed between two answers. Batches are assumed to be
 * spread evenly within a bucket. */
static double latency_quantile(const struct wh_latency *before, const struct wh_latency *after,
			       double share)
{
	uint64_t counts[WH_LATENCY_BUCKETS], all = 0;
	double wanted, sum = 0;

	for (unsigned i = 0; i < WH_LATENCY_BUCKETS; i++) {
		if (after->bucket[i] < before->bucket[i])
			return NAN;
		counts[i] = after->bucket[i] - before->bucket[i];
		all += counts[i];
	}
	wanted = share * (double)all;
	for (unsigned i = 0; i < WH_LATENCY_BUCKETS && all; i++) {
		double low = i ? (double)WH_LATENCY_BOUND(i - 1) : 0,
		       high = (double)WH_LATENCY_BOUND(i);

		/* The last bucket has no upper bound. */
		if (i + 1 == WH_LATENCY_BUCKETS)
			return low / 1e3;
		if (counts[i] && sum + (double)counts[i] >= wanted)
			return (low + (high - low) * (wanted - sum) / (double)counts[i]) / 1e3;
		sum += (double)counts[i];
	}
	return NAN;
}

struct latencies {
	double small_p50, small_p99, large_p50, large_p99;
};

static struct latencies latencies_between(const struct wh_counters *before,
					  const struct wh_counters *after, double seconds)
{
	if (!(seconds > 0))
		return (struct latencies){ NAN, NAN, NAN, NAN };
	return (struct latencies){
		.small_p50 = latency_quantile(&before->small, &after->small, 0.5),
		.small_p99 = latency_quantile(&before->small, &after->small, 0.99),
		.large_p50 = latency_quantile(&before->large, &after->large, 0.5),
		.large_p99 = latency_quantile(&before->large, &after->large, 0.99),
	};
}

/* ---- totals of all transports ---------------------------------------------------------------- */

struct totals {
	uint64_t read, written, attempts, errors, reroutes;
};

static struct totals totals_add(const struct wh_counters *counters)
{
	struct totals sum = { 0 };

	for (unsigned i = 0; i < counters->transports; i++) {
		sum.read += counters->transport[i].read_bytes;
		sum.written += counters->transport[i].written_bytes;
		sum.attempts += counters->transport[i].attempts;
		sum.errors += counters->transport[i].errors;
		sum.reroutes += counters->transport[i].reroutes;
	}
	return sum;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void rows_add_routes(const struct wh_observed_peer *now,
			    const struct wh_observed_peer *before, double seconds,
			    const struct top_peer *peer, struct top_engines *out)
{
	for (unsigned i = 0; i < now->counters.transports; i++) {
		const struct wh_transport_counters *t = &now->counters.transport[i],
						   *b = &before->counters.transport[i];
		struct top_route *route = &out->routes[out->route_count];

		if (!t->attempts)
			continue;
		if (out->route_count == TOP_ROUTES) {
			out->left_out++;
			return;
		}
		*route = (struct top_route){
			.peer_at = out->peer_count,
			.read = counter_rate(b->read_bytes, t->read_bytes, seconds) / 1e9,
			.written = counter_rate(b->written_bytes, t->written_bytes, seconds) / 1e9,
			.read_bytes = t->read_bytes,
			.written_bytes = t->written_bytes,
			.reads = t->reads,
			.writes = t->writes,
			.attempts = t->attempts,
			.errors = t->errors,
			.reroutes = t->reroutes,
		};
		memcpy(route->engine, peer->engine, sizeof(route->engine));
		memcpy(route->epoch, peer->epoch, sizeof(route->epoch));
		memcpy(route->peer, peer->name, sizeof(route->peer));
		memcpy(route->address, peer->address, sizeof(route->address));
		memcpy(route->transport, t->transport, sizeof(route->transport));
		out->route_count++;
	}
}

static void rows_add_peer(const struct wh_observed_peer *now, const struct wh_observed_peer *before,
			  double seconds, struct top_engines *out)
{
	const struct top_engine *engine = &out->engines[out->engine_count];
	struct totals sum = totals_add(&now->counters), last = totals_add(&before->counters);
	struct latencies times = latencies_between(&before->counters, &now->counters, seconds);
	struct top_peer *peer = &out->peers[out->peer_count];

	if (out->peer_count == TOP_PEERS) {
		out->left_out++;
		return;
	}
	*peer = (struct top_peer){
		.engine_at = out->engine_count,
		.first_route = out->route_count,
		.read = counter_rate(last.read, sum.read, seconds) / 1e9,
		.written = counter_rate(last.written, sum.written, seconds) / 1e9,
		.batch_rate =
			counter_rate(before->counters.batches, now->counters.batches, seconds),
		.small_p50 = times.small_p50,
		.small_p99 = times.small_p99,
		.large_p50 = times.large_p50,
		.large_p99 = times.large_p99,
		.read_bytes = sum.read,
		.written_bytes = sum.written,
		.batches = now->counters.batches,
		.failed = now->counters.failed,
		.cancelled = now->counters.cancelled,
		.attempts = sum.attempts,
		.errors = sum.errors,
		.reroutes = sum.reroutes,
		.lost = now->lost,
		.in_flight = now->counters.large_in_flight,
	};
	memcpy(peer->engine, engine->name, sizeof(peer->engine));
	memcpy(peer->epoch, engine->epoch, sizeof(peer->epoch));
	memcpy(peer->name, now->name, sizeof(peer->name));
	memcpy(peer->address, now->address, sizeof(peer->address));
	snprintf(peer->state, sizeof(peer->state), "%s", wh_peer_state_name(now->state));
	rows_add_routes(now, before, seconds, peer, out);
	out->peer_count++;
}

static void fill_engine(const struct wh_observation *now, const struct wh_observation *before,
			double seconds, struct top_engine *out)
{
	const struct wh_engine_counters *counters = &now->engine.counters,
					*old = &before->engine.counters;
	const struct wh_counters *total = &now->engine.total, *last = &before->engine.total;
	struct totals sum = totals_add(total), earlier = totals_add(last);
	struct latencies times = latencies_between(last, total, seconds);

	*out = (struct top_engine){
		.pid = (int)now->engine.pid,
		.uptime = (double)counters->uptime / 1e9,
		.read = counter_rate(earlier.read, sum.read, seconds) / 1e9,
		.written = counter_rate(earlier.written, sum.written, seconds) / 1e9,
		.served_read =
			counter_rate(old->served_read_bytes, counters->served_read_bytes, seconds) /
			1e9,
		.served_written = counter_rate(old->served_written_bytes,
					       counters->served_written_bytes, seconds) /
				  1e9,
		.batch_rate = counter_rate(last->batches, total->batches, seconds),
		.small_p50 = times.small_p50,
		.small_p99 = times.small_p99,
		.large_p50 = times.large_p50,
		.large_p99 = times.large_p99,
		.read_bytes = sum.read,
		.written_bytes = sum.written,
		.served_read_bytes = counters->served_read_bytes,
		.served_written_bytes = counters->served_written_bytes,
		.staged_bytes = counters->staged_bytes,
		.batches = total->batches,
		.failed = total->failed,
		.cancelled = total->cancelled,
		.attempts = sum.attempts,
		.errors = sum.errors,
		.reroutes = sum.reroutes,
		.unfinished = counters->unfinished,
		.in_flight = total->large_in_flight,
		.peers = counters->peers,
		.sessions = counters->sessions,
		.peers_lost = counters->peers_lost,
		.connections = counters->connections,
		.regions = counters->regions,
		.region_bytes = counters->region_bytes,
		.windows = counters->windows,
		.left_out = now->left_out,
	};
	memcpy(out->name, now->engine.name, sizeof(out->name));
	memcpy(out->url, now->engine.url, sizeof(out->url));
	snprintf(out->epoch, sizeof(out->epoch), "%016" PRIx64, now->engine.epoch);
}

/* ---- the answer before ----------------------------------------------------------------------- */

static const struct wh_observation *engine_before(const struct observed *before,
						  const struct wh_observed_engine *engine)
{
	for (size_t i = 0; before && i < before->count; i++)
		if (before->engines[i].engine.epoch == engine->epoch &&
		    strcmp(before->engines[i].engine.name, engine->name) == 0)
			return &before->engines[i];
	return NULL;
}

/* Add an engine's peers. Both answers are in observe_merge()'s order; a new peer has moved all its
 * bytes since the answer before. */
static void rows_add_peers(const struct wh_observation *now, const struct wh_observation *before,
			   double seconds, struct top_engines *out)
{
	static const struct wh_observed_peer new_peer;
	size_t k = 0;

	for (size_t i = 0; i < now->peer_count; i++) {
		const struct wh_observed_peer *peer = &now->peers[i];
		bool same;

		while (k < before->peer_count && observe_order(&before->peers[k], peer) < 0)
			k++;
		same = k < before->peer_count && observe_order(&before->peers[k], peer) == 0;
		rows_add_peer(peer, same ? &before->peers[k] : &new_peer, seconds, out);
	}
}

void top_engines_rows(const struct observed *now, const struct observed *before, double seconds,
		      struct top_engines *out)
{
	out->engine_count = out->peer_count = out->route_count = out->left_out = 0;
	out->silent = now->silent;
	for (size_t i = 0; i < now->silent && i < TOP_SILENT; i++)
		out->silents[i] = now->silents[i];
	memcpy(out->why, now->why, sizeof(out->why));
	out->asked = true;
	for (size_t i = 0; i < now->count; i++) {
		const struct wh_observation *engine = &now->engines[i],
					    *last = engine_before(before, &engine->engine);
		/* Without an answer before there are no rates. */
		double passed = last ? seconds : 0;

		if (out->engine_count == TOP_ENGINES) {
			out->left_out++;
			continue;
		}
		fill_engine(engine, last ? last : &nothing, passed,
			    &out->engines[out->engine_count]);
		rows_add_peers(engine, last ? last : &nothing, passed, out);
		out->left_out += engine->left_out;
		out->engine_count++;
	}
}
