/* SPDX-License-Identifier: Apache-2.0 */
/* Speaking the protocol by hand, so that it can be spoken wrongly. */
#ifndef TESTS_INTEGRATION_LIB_RAW_H
#define TESTS_INTEGRATION_LIB_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/proof.h"
#include "wire/wire.h"

/* A connected socket whose reads give up after some seconds, or -1. */
int raw_connect(const char *url);
int raw_unix(const char *name);

/* 0, or -1 (the other side has closed it). */
int raw_send(int fd, const void *bytes, size_t length);
int raw_send_frame(int fd, uint16_t type, uint16_t flags, const void *payload, size_t length);

/* Read that many bytes: 0, or -1. */
int raw_receive(int fd, void *bytes, size_t length);
/* Read one frame; what does not fit is dropped. The length of its payload, or -1. */
int raw_receive_frame(int fd, struct wh_frame *frame, void *payload, size_t room);

/* Does the other side close it within so many ms? Reads and drops what still comes. */
bool raw_closes(int fd, int ms);

/* A HELLO of a role that would be accepted. */
struct wh_hello raw_hello(uint16_t role);
/* The same for a connection that belongs to a session. */
struct wh_hello raw_hello_of(uint16_t role, const struct wh_hello *welcome);
size_t raw_hello_bytes(uint8_t out[WH_FRAME_HEADER + WH_HELLO_MAX], const struct wh_hello *hello);

/* A handshake under way. */
struct raw_shake {
	uint8_t hello[WH_FRAME_HEADER + WH_HELLO_MAX], welcome[WH_HELLO_MAX];
	size_t hello_length, welcome_length; /* hello: with the frame's header */
	struct wh_hello said; /* the WELCOME */
	struct wh_proofs proofs;
};

/* Send a HELLO and take the answer: 0 with the WELCOME and the proofs by `key` (NULL: that of this
 * user, or of the session that the hello names, as it has been proved); the positive errno of a
 * REFUSED; -1: closed or something else. */
int raw_shake(int fd, const struct wh_hello *hello, const uint8_t *key, struct raw_shake *out);
/* Send a PROVE. */
int raw_prove(int fd, const uint8_t proof[WH_PROOF_SIZE]);

/* Both: 0 with the WELCOME, whose proof has been checked. */
int raw_greet(int fd, const struct wh_hello *hello, struct wh_hello *welcome);

/* The other side: from the HELLO as it has come make the WELCOME, whose proof is by `key` (NULL: as
 * above), and what is to come in turn. The length of the payload, or -1. */
int raw_welcome(const uint8_t *hello, size_t length, const struct wh_hello *welcome,
		const uint8_t *key, uint8_t out[WH_HELLO_MAX], struct wh_proofs *proofs);

/* This user's key. */
const struct wh_crypto *raw_crypto(void);
const uint8_t *raw_key(void);

/* Connected and welcome, or -1. */
int raw_control(const char *url, struct wh_hello *welcome);
int raw_data(const char *url, const struct wh_hello *welcome);

/* Read frames of a control connection to the end of the list of regions: how many there are, or -1.
 */
int raw_skip_regions(int fd);

/* Send a request for these extents. `payload` follows; NULL: none. */
int raw_request(int fd, uint8_t op, uint64_t id, const struct wh_extent *extents, size_t count,
		const void *payload, size_t length);

struct raw_error {
	uint32_t extent;
	int32_t error;
};

/* Read a response, its errors (at most `most`) and its payload (at most `room` bytes). 0, or -1. */
int raw_response(int fd, struct wh_response *response, struct raw_error *errors, uint32_t most,
		 void *payload, size_t room);

#endif
