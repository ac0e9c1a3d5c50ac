/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An observation: an engine's statistics as observers receive them. First a record of the engine,
 * then one for each peer, then one for each session (an engine connected to it). docs/metrics.md
 * has the layout. Pure functions; the command and the fuzz target link their own copy.
 */
#ifndef WH_TELEMETRY_OBSERVATION_H
#define WH_TELEMETRY_OBSERVATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/metrics.h>

#define WH_OBSERVE_REQUEST "wherry?\2" /* eight bytes; the last is the version */
#define WH_OBSERVE_REQUEST_SIZE 8
/* The part of the request that all versions share. An engine answers any version with its own. */
#define WH_OBSERVE_PREFIX_SIZE 7
#define WH_OBSERVED_VERSION 2
#define WH_OBSERVED_HEADER 24
/* bytes; peers and sessions that do not fit are left out and counted */
#define WH_OBSERVED_MAX (4u << 20)
#define WH_OBSERVED_NAME 64
#define WH_OBSERVED_URL 96

struct wh_observed_engine {
	uint32_t pid;
	uint64_t epoch;
	char name[WH_OBSERVED_NAME], url[WH_OBSERVED_URL];
	struct wh_engine_counters counters;
	struct wh_counters total;
};

struct wh_observed_peer {
	char name[WH_OBSERVED_NAME], address[WH_OBSERVED_NAME];
	uint32_t state; /* enum wh_peer_state */
	uint64_t epoch, lost;
	struct wh_counters counters;
};

struct wh_observed_session {
	char name[WH_OBSERVED_NAME];
	uint64_t epoch, read_bytes, written_bytes, requests;
};

struct wh_observation {
	struct wh_observed_engine engine;
	struct wh_observed_peer *peers;
	struct wh_observed_session *sessions;
	size_t peer_count, session_count;
	uint32_t left_out; /* peers and sessions that did not fit */
};

/* ---- writing an observation ------------------------------------------------------------------ */

struct wh_observed_writer {
	uint8_t *bytes;
	size_t length, room;
	uint32_t peers, sessions, left_out;
	bool failed;
};

/* Begin; put all peers, then all sessions; end. wh_observed_end() adds the engine in front: 0, and
 * the caller frees *bytes, or -ENOMEM. */
void wh_observed_begin(struct wh_observed_writer *out);
void wh_observed_put_peer(struct wh_observed_writer *out, const struct wh_observed_peer *peer);
void wh_observed_put_session(struct wh_observed_writer *out,
			     const struct wh_observed_session *session);
int wh_observed_end(struct wh_observed_writer *out, const struct wh_observed_engine *engine,
		    uint8_t **bytes, size_t *length);

/* ---- reading an observation ------------------------------------------------------------------ */

/* The length of an observation, header included, from its header. 0, or -EPROTO (not an
 * observation), or -ENOTSUP: another version; *length is then that version. */
int wh_observation_length(const uint8_t header[WH_OBSERVED_HEADER], size_t *length);
/* 0, and the caller frees *out, or -EPROTO (also: another version), -ENOMEM. */
int wh_observation_parse(const uint8_t *bytes, size_t length, struct wh_observation *out);
void wh_observation_free(struct wh_observation *observation);

#endif
