/* SPDX-License-Identifier: Apache-2.0 */
/* raw.h: speak the protocol by hand, so that tests can violate it */
#ifndef TESTS_INTEGRATION_LIB_RAW_H
#define TESTS_INTEGRATION_LIB_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/proof.h"
#include "wire/wire.h"

/* A connected socket with a time-out of some seconds for each read and write, or -1. */
int raw_connect(const char *url);
int raw_unix(const char *name);
/* By path, in a folder of the setting `meet`. */
int raw_meet(const char *folder, const char *name);

/* Send a frame: 0, or -1 if the other side has closed the connection. send_all() and read_all() of
 * harness.h move plain bytes. */
int raw_send_frame(int fd, uint16_t type, uint16_t flags, const void *payload, size_t length);

/* Read one frame; bytes beyond `room` are dropped. Returns the length of the payload, or -1. */
int raw_receive_frame(int fd, struct wh_frame *frame, void *payload, size_t room);

/* True if the other side closes the connection within `ms`. Reads and drops what arrives before. */
bool raw_closes(int fd, int ms);

/* A valid HELLO for a role. */
struct wh_hello raw_hello(uint16_t role);
/* The same for a connection that joins the session of `welcome`. */
struct wh_hello raw_hello_of(uint16_t role, const struct wh_hello *welcome);
size_t raw_hello_bytes(uint8_t out[WH_FRAME_HEADER + WH_HELLO_MAX], const struct wh_hello *hello);

/* A handshake in progress. */
struct raw_shake {
	uint8_t hello[WH_FRAME_HEADER + WH_HELLO_MAX], welcome[WH_HELLO_MAX];
	size_t hello_length, welcome_length; /* hello: including the frame header */
	struct wh_hello decoded; /* the WELCOME, decoded */
	struct wh_proofs proofs;
};

/* Send a HELLO and read the answer. 0: `out` holds the WELCOME and the proofs by `key` (NULL: this
 * user's key, or the key of the session that the HELLO names, as proved). A positive errno:
 * REFUSED. -1: closed, or an unexpected frame. */
int raw_shake(int fd, const struct wh_hello *hello, const uint8_t *key, struct raw_shake *out);
/* Send a PROVE. */
int raw_prove(int fd, const uint8_t proof[WH_PROOF_SIZE]);

/* raw_shake() and raw_prove(). 0: the WELCOME's proof is valid. */
int raw_greet(int fd, const struct wh_hello *hello, struct wh_hello *welcome);

/* The server's side: build the WELCOME to a received HELLO, with its proof by `key` (NULL: as
 * above), and compute the proofs that must follow. Returns the length of the payload, or -1. */
int raw_welcome(const uint8_t *hello, size_t length, const struct wh_hello *welcome,
		const uint8_t *key, uint8_t out[WH_HELLO_MAX], struct wh_proofs *proofs);

/* The key of the session of a control connection that raw_greet() has made. */
const uint8_t *raw_session_key(const struct wh_hello *welcome);

/* This user's crypto functions and key. */
const struct wh_crypto *raw_crypto(void);
const uint8_t *raw_key(void);

/* A connection whose handshake has succeeded, or -1. */
int raw_control(const char *url, struct wh_hello *welcome);
int raw_data(const char *url, const struct wh_hello *welcome);

/* Write the payload of a REGIONS frame that answers an engine's first question with one region.
 * `out` has room for WH_REGIONS_HEAD + WH_REGION_RECORD_MAX bytes. Returns the bytes used. */
size_t raw_regions(uint8_t *out, const struct wh_region_record *record);
/* Send a question, with its encoded ids or ranges. 0 or -1. */
int raw_ask(int fd, const struct wh_question *question, const void *entries, size_t length);
/* Ask for a region by its id. 1, 0: it is not told, or -1. */
int raw_lookup(int fd, uint64_t id);
/* List the regions, and count them; -1: the answer is not right. */
int raw_count_regions(int fd);

/* Send a request for these extents, then `length` bytes of `payload` (NULL: none). */
int raw_request(int fd, uint8_t op, uint64_t id, const struct wh_extent *extents, size_t count,
		const void *payload, size_t length);
/* The same for a slot that was lent, without payload. */
int raw_request_slot(int fd, uint8_t op, uint32_t slot, const struct wh_extent *extents,
		     size_t count);

struct raw_error {
	uint32_t extent;
	int32_t error;
};

/* Read a response, up to `most` errors and up to `room` bytes of payload. 0, or -1. */
int raw_response(int fd, struct wh_response *response, struct raw_error *errors, uint32_t most,
		 void *payload, size_t room);

#endif
