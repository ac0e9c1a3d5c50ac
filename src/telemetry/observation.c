/* SPDX-License-Identifier: Apache-2.0 */
/* Observations to bytes, and bytes to observations. */
#include "telemetry/observation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/bytes.h"

#define MAGIC UINT32_C(0x4f524857) /* "WHRO" */

/* Upper bounds of the records' sizes. */
#define ENGINE_MOST 4096
#define RECORD_MOST 4096
/* Lower bounds: a peer and a session with empty names. */
#define PEER_LEAST 89
#define SESSION_LEAST 33

_Static_assert(sizeof(struct wh_counters) + 2 * WH_OBSERVED_NAME + 256 < RECORD_MOST &&
		       sizeof(struct wh_counters) + 1024 < ENGINE_MOST,
	       "records fit");

/* ---- writing --------------------------------------------------------------------------------- */

static uint8_t *put_text(uint8_t *at, const char *text, size_t most)
{
	size_t length = strnlen(text, most - 1);

	at = wh_put8(at, (uint8_t)length);
	return wh_put_bytes(at, text, length);
}

static uint8_t *put_latency(uint8_t *at, const struct wh_latency *latency)
{
	uint8_t used = 0, *count;

	at = wh_put64(at, latency->count);
	at = wh_put64(at, latency->sum);
	count = at++;
	for (unsigned i = 0; i < WH_LATENCY_BUCKETS; i++) {
		if (!latency->bucket[i])
			continue;
		at = wh_put8(at, (uint8_t)i);
		at = wh_put64(at, latency->bucket[i]);
		used++;
	}
	*count = used;
	return at;
}

static uint8_t *put_counters(uint8_t *at, const struct wh_counters *counters)
{
	at = wh_put64(at, counters->batches);
	at = wh_put64(at, counters->failed);
	at = wh_put64(at, counters->cancelled);
	at = wh_put8(at, (uint8_t)counters->transports);
	for (unsigned i = 0; i < counters->transports; i++) {
		const struct wh_transport_counters *t = &counters->transport[i];

		at = put_text(at, t->transport, sizeof(t->transport));
		at = wh_put64(at, t->read_bytes);
		at = wh_put64(at, t->written_bytes);
		at = wh_put64(at, t->reads);
		at = wh_put64(at, t->writes);
		at = wh_put64(at, t->errors);
		at = wh_put64(at, t->reroutes);
		at = wh_put64(at, t->attempts);
	}
	at = wh_put64(at, counters->large_in_flight);
	at = put_latency(at, &counters->small);
	return put_latency(at, &counters->large);
}

/* The numbers of an engine, in wire order. */
/* clang-format off */
#define ENGINE_NUMBERS(DO) \
	DO(uptime) \
	DO(peers) \
	DO(peers_opened) \
	DO(peers_lost) \
	DO(sessions) \
	DO(sessions_opened) \
	DO(connections) \
	DO(regions) \
	DO(region_bytes) \
	DO(registrations) \
	DO(registration_time) \
	DO(windows) \
	DO(windows_opened) \
	DO(staged_bytes) \
	DO(served_read_bytes) \
	DO(served_written_bytes) \
	DO(served_requests) \
	DO(unfinished) \
	DO(damaged)
/* clang-format on */

static uint8_t *put_engine(uint8_t *at, const struct wh_observed_engine *engine)
{
	const struct wh_engine_counters *counters = &engine->counters;

	at = wh_put32(at, engine->pid);
	at = wh_put64(at, engine->epoch);
	at = put_text(at, engine->name, sizeof(engine->name));
	at = put_text(at, engine->url, sizeof(engine->url));
#define PUT(field) at = wh_put64(at, counters->field);
	ENGINE_NUMBERS(PUT)
#undef PUT
	return put_counters(at, &engine->total);
}

/* Where to write the next record; NULL: no room. Leaves a gap at the front for the header and the
 * engine, which wh_observed_end() fills. */
static uint8_t *room_for_record(struct wh_observed_writer *out)
{
	uint8_t *grown;
	size_t room;

	if (out->failed)
		return NULL;
	if (out->length + RECORD_MOST > WH_OBSERVED_MAX) {
		out->left_out++;
		return NULL;
	}
	if (out->length + RECORD_MOST > out->room) {
		room = out->room * 2 + ENGINE_MOST + RECORD_MOST;
		grown = realloc(out->bytes, room);
		if (!grown) {
			out->failed = true;
			return NULL;
		}
		out->bytes = grown;
		out->room = room;
	}
	return out->bytes + out->length;
}

void wh_observed_begin(struct wh_observed_writer *out)
{
	*out = (struct wh_observed_writer){ .length = WH_OBSERVED_HEADER + ENGINE_MOST };
}

void wh_observed_put_peer(struct wh_observed_writer *out, const struct wh_observed_peer *peer)
{
	uint8_t *at = room_for_record(out);

	if (!at)
		return;
	at = put_text(at, peer->name, sizeof(peer->name));
	at = put_text(at, peer->address, sizeof(peer->address));
	at = wh_put32(at, peer->state);
	at = wh_put64(at, peer->epoch);
	at = wh_put64(at, peer->lost);
	at = put_counters(at, &peer->counters);
	out->length = (size_t)(at - out->bytes);
	out->peers++;
}

void wh_observed_put_session(struct wh_observed_writer *out,
			     const struct wh_observed_session *session)
{
	uint8_t *at = room_for_record(out);

	if (!at)
		return;
	at = put_text(at, session->name, sizeof(session->name));
	at = wh_put64(at, session->epoch);
	at = wh_put64(at, session->read_bytes);
	at = wh_put64(at, session->written_bytes);
	at = wh_put64(at, session->requests);
	out->length = (size_t)(at - out->bytes);
	out->sessions++;
}

int wh_observed_end(struct wh_observed_writer *out, const struct wh_observed_engine *engine,
		    uint8_t **bytes, size_t *length)
{
	uint32_t left_out = out->left_out;
	size_t used, records = out->length - WH_OBSERVED_HEADER - ENGINE_MOST;
	uint8_t *at;

	/* Without records there is no buffer yet. */
	out->left_out = 0;
	if (!out->bytes && !room_for_record(out)) {
		out->failed = true;
	}
	if (out->failed) {
		free(out->bytes);
		return -ENOMEM;
	}
	at = put_engine(out->bytes + WH_OBSERVED_HEADER, engine);
	used = (size_t)(at - out->bytes);
	memmove(at, out->bytes + WH_OBSERVED_HEADER + ENGINE_MOST, records);
	used += records;
	at = wh_put32(out->bytes, MAGIC);
	at = wh_put32(at, WH_OBSERVED_VERSION);
	at = wh_put32(at, (uint32_t)used);
	at = wh_put32(at, out->peers);
	at = wh_put32(at, out->sessions);
	wh_put32(at, left_out);
	*bytes = out->bytes;
	*length = used;
	return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void take_text(struct wh_bytes *in, char *out, size_t room)
{
	uint8_t length = wh_take8(in);

	if (length >= room) {
		in->cut = true;
		length = 0;
	}
	wh_take_text(in, out, length);
}

static void take_latency(struct wh_bytes *in, struct wh_latency *out)
{
	uint8_t used, bucket;

	out->count = wh_take64(in);
	out->sum = wh_take64(in);
	used = wh_take8(in);
	for (uint8_t i = 0; i < used && !in->cut; i++) {
		bucket = wh_take8(in);
		if (bucket >= WH_LATENCY_BUCKETS)
			in->cut = true;
		else
			out->bucket[bucket] = wh_take64(in);
	}
}

static void take_counters(struct wh_bytes *in, struct wh_counters *out)
{
	*out = (struct wh_counters){ .size = sizeof(*out) };
	out->batches = wh_take64(in);
	out->failed = wh_take64(in);
	out->cancelled = wh_take64(in);
	out->transports = wh_take8(in);
	if (out->transports > WH_TRANSPORTS_MAX) {
		in->cut = true;
		out->transports = 0;
	}
	for (unsigned i = 0; i < out->transports; i++) {
		struct wh_transport_counters *t = &out->transport[i];

		take_text(in, t->transport, sizeof(t->transport));
		t->read_bytes = wh_take64(in);
		t->written_bytes = wh_take64(in);
		t->reads = wh_take64(in);
		t->writes = wh_take64(in);
		t->errors = wh_take64(in);
		t->reroutes = wh_take64(in);
		t->attempts = wh_take64(in);
	}
	out->large_in_flight = wh_take64(in);
	take_latency(in, &out->small);
	take_latency(in, &out->large);
}

static void take_engine(struct wh_bytes *in, struct wh_observed_engine *out)
{
	struct wh_engine_counters *counters = &out->counters;

	out->pid = wh_take32(in);
	out->epoch = wh_take64(in);
	take_text(in, out->name, sizeof(out->name));
	take_text(in, out->url, sizeof(out->url));
	counters->size = sizeof(*counters);
#define TAKE(field) counters->field = wh_take64(in);
	ENGINE_NUMBERS(TAKE)
#undef TAKE
	take_counters(in, &out->total);
}

static void take_peer(struct wh_bytes *in, struct wh_observed_peer *out)
{
	take_text(in, out->name, sizeof(out->name));
	take_text(in, out->address, sizeof(out->address));
	out->state = wh_take32(in);
	out->epoch = wh_take64(in);
	out->lost = wh_take64(in);
	take_counters(in, &out->counters);
}

static void take_session(struct wh_bytes *in, struct wh_observed_session *out)
{
	take_text(in, out->name, sizeof(out->name));
	out->epoch = wh_take64(in);
	out->read_bytes = wh_take64(in);
	out->written_bytes = wh_take64(in);
	out->requests = wh_take64(in);
}

int wh_observation_length(const uint8_t header[WH_OBSERVED_HEADER], size_t *length)
{
	uint32_t whole = wh_get32(header + 8);

	if (wh_get32(header) != MAGIC)
		return -EPROTO;
	if (wh_get32(header + 4) != WH_OBSERVED_VERSION) {
		*length = wh_get32(header + 4);
		return -ENOTSUP;
	}
	if (whole < WH_OBSERVED_HEADER || whole > WH_OBSERVED_MAX)
		return -EPROTO;
	*length = whole;
	return 0;
}

int wh_observation_parse(const uint8_t *bytes, size_t length, struct wh_observation *out)
{
	struct wh_bytes in = { .at = bytes + WH_OBSERVED_HEADER, .end = bytes + length };
	struct wh_observation got = { 0 };
	size_t whole;

	if (length < WH_OBSERVED_HEADER || wh_observation_length(bytes, &whole) || whole != length)
		return -EPROTO;
	got.peer_count = wh_get32(bytes + 12);
	got.session_count = wh_get32(bytes + 16);
	got.left_out = wh_get32(bytes + 20);
	take_engine(&in, &got.engine);
	/* Do not allocate for more records than the bytes can hold. */
	if (in.cut || got.peer_count > (size_t)(in.end - in.at) / PEER_LEAST ||
	    got.session_count > (size_t)(in.end - in.at) / SESSION_LEAST)
		return -EPROTO;
	got.peers = calloc(got.peer_count + 1, sizeof(*got.peers));
	got.sessions = calloc(got.session_count + 1, sizeof(*got.sessions));
	if (!got.peers || !got.sessions) {
		wh_observation_free(&got);
		return -ENOMEM;
	}
	for (size_t i = 0; i < got.peer_count && !in.cut; i++)
		take_peer(&in, &got.peers[i]);
	for (size_t i = 0; i < got.session_count && !in.cut; i++)
		take_session(&in, &got.sessions[i]);
	if (in.cut || in.at != in.end) {
		wh_observation_free(&got);
		return -EPROTO;
	}
	*out = got;
	return 0;
}

void wh_observation_free(struct wh_observation *observation)
{
	free(observation->peers);
	free(observation->sessions);
	observation->peers = NULL;
	observation->sessions = NULL;
	observation->peer_count = observation->session_count = 0;
}
