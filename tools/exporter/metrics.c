/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of engines in Prometheus' text format. */
#include "exporter/metrics.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <wherry/wherry.h>

#define FIRST_ROOM 65536
#define LINE_MOST 1024
#define LABELS 640 /* an engine's and a peer's, with everything in them escaped */

/* ---- text ------------------------------------------------------------------------------------ */

void metrics_put(struct metrics *metrics, const char *format, ...)
{
	va_list list;
	char *grown;
	int length;

	if (metrics->failed)
		return;
	if (metrics->length + LINE_MOST > metrics->room) {
		metrics->room = metrics->room * 2 + FIRST_ROOM;
		grown = realloc(metrics->text, metrics->room);
		if (!grown) {
			metrics->failed = true;
			return;
		}
		metrics->text = grown;
	}
	va_start(list, format);
	length = vsnprintf(metrics->text + metrics->length, LINE_MOST, format, list);
	va_end(list);
	if (length >= LINE_MOST) /* never; half a line would invalidate the whole answer */
		metrics->failed = true;
	else
		metrics->length += (size_t)length;
}

void metrics_family(struct metrics *metrics, const char *name, const char *type, const char *help)
{
	metrics_put(metrics, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void metrics_escape(const char *text, char *out, size_t size)
{
	/* Text that is not UTF-8 would invalidate the whole answer. */
	json_t *valid = json_string(text);
	size_t used = 0;

	for (; *text && used + 3 < size; text++) {
		if (*text == '"' || *text == '\\')
			out[used++] = '\\';
		out[used++] = (char)(!valid && (unsigned char)*text >= 0x80 ? '?' : *text);
	}
	out[used] = '\0';
	json_decref(valid);
}

/* ---- engines --------------------------------------------------------------------------------- */

static void engine_labels(const struct wh_observed_engine *engine, char out[LABELS])
{
	char name[2 * WH_OBSERVED_NAME + 4];

	metrics_escape(engine->name, name, sizeof(name));
	snprintf(out, LABELS, "engine=\"%s\",epoch=\"%016" PRIx64 "\"", name, engine->epoch);
}

static void peer_labels(const struct wh_observed_engine *engine, const char *kind, const char *name,
			const char *address, char out[LABELS])
{
	char text[2 * WH_OBSERVED_NAME + 4], where[2 * WH_OBSERVED_NAME + 4], own[LABELS];

	engine_labels(engine, own);
	metrics_escape(name, text, sizeof(text));
	metrics_escape(address ? address : "", where, sizeof(where));
	snprintf(out, LABELS, "%.300s,%s=\"%s\"%s%s%s", own, kind, text,
		 address ? ",address=\"" : "", where, address ? "\"" : "");
}

static const struct number {
	const char *name, *type, *help;
	size_t offset;
	double unit; /* 0: a plain number */
} numbers[] = {
#define NUMBER(name, type, member, unit, help)                                                     \
	{                                                                                          \
		name, type, help, offsetof(struct wh_engine_counters, member), unit                \
	}
	NUMBER("wherry_engine_uptime_seconds", "gauge", uptime, 1e9,
	       "Time since the engine was opened."),
	NUMBER("wherry_engine_peers", "gauge", peers, 0, "Open peers."),
	NUMBER("wherry_engine_peers_opened_total", "counter", peers_opened, 0,
	       "Peers opened so far."),
	NUMBER("wherry_engine_peers_lost_total", "counter", peers_lost, 0,
	       "Connections to peers that broke."),
	NUMBER("wherry_engine_damaged_total", "counter", damaged, 0,
	       "TCP connections cut because bytes were damaged on the way."),
	NUMBER("wherry_engine_sessions", "gauge", sessions, 0, "Engines connected to this one."),
	NUMBER("wherry_engine_sessions_opened_total", "counter", sessions_opened, 0,
	       "Engines that have connected to this one so far."),
	NUMBER("wherry_engine_connections_opened_total", "counter", connections, 0,
	       "Data connections opened so far."),
	NUMBER("wherry_engine_regions", "gauge", regions, 0, "Registered regions."),
	NUMBER("wherry_engine_registered_bytes", "gauge", region_bytes, 0, "Bytes in regions."),
	NUMBER("wherry_engine_registrations_total", "counter", registrations, 0,
	       "Regions registered so far."),
	NUMBER("wherry_engine_registration_seconds_total", "counter", registration_time, 1e9,
	       "Time spent registering regions."),
	NUMBER("wherry_engine_windows", "gauge", windows, 0, "CPU windows on GPU memory."),
	NUMBER("wherry_engine_windows_opened_total", "counter", windows_opened, 0,
	       "CPU windows opened so far."),
	NUMBER("wherry_inflight_batches", "gauge", unfinished, 0,
	       "Unfinished batches, counted once for every local region of a batch."),
	NUMBER("wherry_staging_bytes_total", "counter", staged_bytes, 0,
	       "Bytes of GPU memory that went through pinned memory."),
	NUMBER("wherry_engine_served_requests_total", "counter", served_requests, 0,
	       "Requests of peers over TCP."),
#undef NUMBER
};

static void put_engine_numbers(struct metrics *metrics, const struct wh_observation *engines,
			       size_t count)
{
	char labels[LABELS];

	for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++) {
		const struct number *number = &numbers[k];

		metrics_family(metrics, number->name, number->type, number->help);
		for (size_t i = 0; i < count; i++) {
			const char *base = (const char *)&engines[i].engine.counters;
			uint64_t value;

			memcpy(&value, base + number->offset, sizeof(value));
			engine_labels(&engines[i].engine, labels);
			if (number->unit > 0)
				metrics_put(metrics, "%s{%s} %.9g\n", number->name, labels,
					    (double)value / number->unit);
			else
				metrics_put(metrics, "%s{%s} %" PRIu64 "\n", number->name, labels,
					    value);
		}
	}
	metrics_family(metrics, "wherry_engine_served_bytes_total", "counter",
		       "Bytes that peers moved over TCP in memory of this engine.");
	for (size_t i = 0; i < count; i++) {
		const struct wh_engine_counters *counters = &engines[i].engine.counters;

		engine_labels(&engines[i].engine, labels);
		metrics_put(metrics,
			    "wherry_engine_served_bytes_total{%s,op=\"read\"} %" PRIu64 "\n",
			    labels, counters->served_read_bytes);
		metrics_put(metrics,
			    "wherry_engine_served_bytes_total{%s,op=\"write\"} %" PRIu64 "\n",
			    labels, counters->served_written_bytes);
	}
}

static void put_engine_info(struct metrics *metrics, const struct wh_observation *engines,
			    size_t count)
{
	char labels[LABELS], url[2 * WH_OBSERVED_URL + 4];

	metrics_family(metrics, "wherry_build_info", "gauge", "Version of the exporter.");
	metrics_put(metrics, "wherry_build_info{version=\"%s\"} 1\n", wh_version());
	metrics_family(metrics, "wherry_engine_info", "gauge", "An engine of this machine.");
	for (size_t i = 0; i < count; i++) {
		engine_labels(&engines[i].engine, labels);
		metrics_escape(engines[i].engine.url, url, sizeof(url));
		metrics_put(metrics, "wherry_engine_info{%s,pid=\"%u\",url=\"%s\"} 1\n", labels,
			    engines[i].engine.pid, url);
	}
	metrics_family(metrics, "wherry_engine_left_out", "gauge",
		       "Peers and sessions left out of the engine's answer.");
	for (size_t i = 0; i < count; i++) {
		engine_labels(&engines[i].engine, labels);
		metrics_put(metrics, "wherry_engine_left_out{%s} %u\n", labels,
			    engines[i].left_out);
	}
}

/* ---- transfers -------------------------------------------------------------------------- */

/* Counters of an engine or a peer, with its labels. */
struct row {
	char labels[LABELS];
	const struct wh_counters *counters;
};

static void put_two(struct metrics *metrics, const char *name, const struct row *row,
		    const char *transport, uint64_t read, uint64_t written)
{
	metrics_put(metrics, "%s{%s,transport=\"%s\",op=\"read\"} %" PRIu64 "\n", name, row->labels,
		    transport, read);
	metrics_put(metrics, "%s{%s,transport=\"%s\",op=\"write\"} %" PRIu64 "\n", name,
		    row->labels, transport, written);
}

enum moved_by_transport { BYTES, TRANSFERS, ATTEMPTS, ERRORS, REROUTES };

static void moved_by_transport(struct metrics *metrics, const char *name, const char *help,
			       const struct row *rows, size_t count, enum moved_by_transport what)
{
	metrics_family(metrics, name, "counter", help);
	for (size_t i = 0; i < count; i++) {
		for (unsigned k = 0; k < rows[i].counters->transports; k++) {
			const struct wh_transport_counters *t = &rows[i].counters->transport[k];
			char transport[2 * sizeof(t->transport) + 4];

			/* Transports without attempts are left out: that keeps many peers short. */
			if (!t->attempts)
				continue;
			metrics_escape(t->transport, transport, sizeof(transport));
			if (what == BYTES)
				put_two(metrics, name, &rows[i], transport, t->read_bytes,
					t->written_bytes);
			else if (what == TRANSFERS)
				put_two(metrics, name, &rows[i], transport, t->reads, t->writes);
			else
				metrics_put(metrics, "%s{%s,transport=\"%s\"} %" PRIu64 "\n", name,
					    rows[i].labels, transport,
					    what == ATTEMPTS ? t->attempts :
					    what == ERRORS   ? t->errors :
							       t->reroutes);
		}
	}
}

static void moved_batches(struct metrics *metrics, const char *name, const char *help,
			  const struct row *rows, size_t count)
{
	metrics_family(metrics, name, "counter", help);
	for (size_t i = 0; i < count; i++) {
		const struct wh_counters *counters = rows[i].counters;

		metrics_put(metrics, "%s{%s,result=\"done\"} %" PRIu64 "\n", name, rows[i].labels,
			    counters->batches);
		metrics_put(metrics, "%s{%s,result=\"failed\"} %" PRIu64 "\n", name, rows[i].labels,
			    counters->failed);
		metrics_put(metrics, "%s{%s,result=\"cancelled\"} %" PRIu64 "\n", name,
			    rows[i].labels, counters->cancelled);
	}
}

static void moved_in_flight(struct metrics *metrics, const char *name, const char *help,
			    const struct row *rows, size_t count)
{
	metrics_family(metrics, name, "gauge", help);
	for (size_t i = 0; i < count; i++)
		metrics_put(metrics, "%s{%s,size=\"large\"} %" PRIu64 "\n", name, rows[i].labels,
			    rows[i].counters->large_in_flight);
}

static void put_histogram(struct metrics *metrics, const char *name, const char *labels,
			  const char *size, const struct wh_latency *latency)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < WH_LATENCY_BUCKETS; i++) {
		sum += latency->bucket[i];
		if (i + 1 < WH_LATENCY_BUCKETS)
			metrics_put(metrics, "%s_bucket{%s,size=\"%s\",le=\"%.9g\"} %" PRIu64 "\n",
				    name, labels, size, (double)WH_LATENCY_BOUND(i) / 1e9, sum);
	}
	/* The sum of the buckets: the counter itself may have grown meanwhile. */
	metrics_put(metrics, "%s_bucket{%s,size=\"%s\",le=\"+Inf\"} %" PRIu64 "\n", name, labels,
		    size, sum);
	metrics_put(metrics, "%s_sum{%s,size=\"%s\"} %.9g\n", name, labels, size,
		    (double)latency->sum / 1e9);
	metrics_put(metrics, "%s_count{%s,size=\"%s\"} %" PRIu64 "\n", name, labels, size, sum);
}

static void put_summary(struct metrics *metrics, const char *name, const char *labels,
			const char *size, const struct wh_latency *latency)
{
	if (!latency->count)
		return;
	metrics_put(metrics, "%s_sum{%s,size=\"%s\"} %.9g\n", name, labels, size,
		    (double)latency->sum / 1e9);
	metrics_put(metrics, "%s_count{%s,size=\"%s\"} %" PRIu64 "\n", name, labels, size,
		    latency->count);
}

static void moved_by_engines(struct metrics *metrics, const struct row *rows, size_t count)
{
	moved_by_transport(metrics, "wherry_transfer_bytes_total", "Bytes moved by transfers.",
			   rows, count, BYTES);
	moved_by_transport(metrics, "wherry_transfers_total", "Transfers and blocks.", rows, count,
			   TRANSFERS);
	moved_by_transport(metrics, "wherry_attempts_total", "Completed parts of batches.", rows,
			   count, ATTEMPTS);
	moved_by_transport(metrics, "wherry_transfer_errors_total", "Failed parts of batches.",
			   rows, count, ERRORS);
	moved_by_transport(metrics, "wherry_reroutes_total",
			   "Parts of batches that moved to another transport.", rows, count,
			   REROUTES);
	moved_in_flight(metrics, "wherry_inflight_bytes",
			"Bytes of unfinished batches of more than 64 KiB.", rows, count);
	moved_batches(metrics, "wherry_batches_total", "Ended batches.", rows, count);
	metrics_family(metrics, "wherry_batch_duration_seconds", "histogram",
		       "From submission to completion; small: up to 64 KiB, of which one in 128 is "
		       "timed.");
	for (size_t i = 0; i < count; i++) {
		put_histogram(metrics, "wherry_batch_duration_seconds", rows[i].labels, "small",
			      &rows[i].counters->small);
		put_histogram(metrics, "wherry_batch_duration_seconds", rows[i].labels, "large",
			      &rows[i].counters->large);
	}
}

static void moved_by_peers(struct metrics *metrics, const struct row *rows, size_t count)
{
	moved_by_transport(metrics, "wherry_peer_transfer_bytes_total",
			   "Bytes moved by transfers with the peer.", rows, count, BYTES);
	moved_by_transport(metrics, "wherry_peer_transfers_total",
			   "Transfers and blocks with the peer.", rows, count, TRANSFERS);
	moved_by_transport(metrics, "wherry_peer_attempts_total",
			   "Completed parts of batches with the peer.", rows, count, ATTEMPTS);
	moved_by_transport(metrics, "wherry_peer_transfer_errors_total",
			   "Failed parts of batches with the peer.", rows, count, ERRORS);
	moved_by_transport(metrics, "wherry_peer_reroutes_total",
			   "Parts of batches with the peer that moved to another transport.", rows,
			   count, REROUTES);
	moved_in_flight(metrics, "wherry_peer_inflight_bytes",
			"Bytes of unfinished batches with the peer of more than 64 KiB.", rows,
			count);
	moved_batches(metrics, "wherry_peer_batches_total", "Ended batches with the peer.", rows,
		      count);
	metrics_family(metrics, "wherry_peer_batch_duration_seconds", "summary",
		       "From submission to completion, with the peer.");
	for (size_t i = 0; i < count; i++) {
		put_summary(metrics, "wherry_peer_batch_duration_seconds", rows[i].labels, "small",
			    &rows[i].counters->small);
		put_summary(metrics, "wherry_peer_batch_duration_seconds", rows[i].labels, "large",
			    &rows[i].counters->large);
	}
}

static void put_peers(struct metrics *metrics, const struct wh_observation *engines, size_t count)
{
	size_t all = 0, used = 0;
	struct row *rows;

	for (size_t i = 0; i < count; i++)
		all += engines[i].peer_count;
	rows = calloc(all + 1, sizeof(*rows));
	if (!rows) {
		metrics->failed = true;
		return;
	}
	metrics_family(metrics, "wherry_peer_connected", "gauge",
		       "1: connected; 0: lost or stale.");
	for (size_t i = 0; i < count; i++) {
		for (size_t k = 0; k < engines[i].peer_count; k++, used++) {
			const struct wh_observed_peer *peer = &engines[i].peers[k];

			peer_labels(&engines[i].engine, "peer", peer->name, peer->address,
				    rows[used].labels);
			rows[used].counters = &peer->counters;
			metrics_put(metrics, "wherry_peer_connected{%s} %d\n", rows[used].labels,
				    peer->state == WH_PEER_CONNECTED);
		}
	}
	metrics_family(metrics, "wherry_peer_lost_total", "counter",
		       "Times the connection was lost.");
	used = 0;
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < engines[i].peer_count; k++)
			metrics_put(metrics, "wherry_peer_lost_total{%s} %" PRIu64 "\n",
				    rows[used++].labels, engines[i].peers[k].lost);
	moved_by_peers(metrics, rows, used);
	free(rows);
}

static void put_sessions(struct metrics *metrics, const struct wh_observation *engines,
			 size_t count)
{
	char labels[LABELS];

	metrics_family(metrics, "wherry_session_served_bytes_total", "counter",
		       "Bytes that a connected engine moved over TCP in memory of this engine.");
	for (size_t i = 0; i < count; i++) {
		for (size_t k = 0; k < engines[i].session_count; k++) {
			const struct wh_observed_session *session = &engines[i].sessions[k];

			peer_labels(&engines[i].engine, "session", session->name, NULL, labels);
			metrics_put(metrics,
				    "wherry_session_served_bytes_total{%s,op=\"read\"} %" PRIu64
				    "\n",
				    labels, session->read_bytes);
			metrics_put(metrics,
				    "wherry_session_served_bytes_total{%s,op=\"write\"} %" PRIu64
				    "\n",
				    labels, session->written_bytes);
		}
	}
}

void metrics_engines(struct metrics *metrics, const struct wh_observation *engines, size_t count)
{
	struct row *rows = calloc(count + 1, sizeof(*rows));

	if (!rows) {
		metrics->failed = true;
		return;
	}
	for (size_t i = 0; i < count; i++) {
		engine_labels(&engines[i].engine, rows[i].labels);
		rows[i].counters = &engines[i].engine.total;
	}
	put_engine_info(metrics, engines, count);
	put_engine_numbers(metrics, engines, count);
	moved_by_engines(metrics, rows, count);
	put_peers(metrics, engines, count);
	put_sessions(metrics, engines, count);
	free(rows);
}

void metrics_observed(struct metrics *metrics, const struct observed *observed)
{
	metrics_family(metrics, "wherry_engines", "gauge", "Engines of this user on this machine.");
	metrics_put(metrics, "wherry_engines{state=\"answered\"} %zu\n", observed->count);
	metrics_put(metrics, "wherry_engines{state=\"silent\"} %zu\n", observed->silent);
}
