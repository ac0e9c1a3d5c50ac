/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames of a handshake, and the proofs of the key in them. Initiator: HELLO, then PROVE, after
 * it has checked the owner's proof in WELCOME. Owner: WELCOME. docs/wire-protocol.md.
 */
#ifndef WH_NET_HANDSHAKE_H
#define WH_NET_HANDSHAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/proof.h"
#include "wire/wire.h"

struct wh_engine;
struct wh_peer;
struct wh_tls;

#define WH_GREETING_MAX (WH_FRAME_HEADER + WH_HELLO_MAX)

/* A HELLO or WELCOME as it is sent, with its frame header. The proofs cover these bytes. */
struct wh_greeting {
	size_t length;
	uint8_t bytes[WH_GREETING_MAX];
};

/* Make the HELLO of a connection of this role to the peer. `connection` numbers a data connection,
 * for ABORT; 0 for other roles. 0, or -EIO: no random numbers. */
int wh_peer_hello(struct wh_peer *peer, uint16_t role, uint32_t connection,
		  struct wh_greeting *out);
/* Check the owner's proof in the payload of a WELCOME that answered `hello` on `fd`, and make the
 * PROVE frame. On a control connection, keep the session's key in the peer. 0; -EACCES with a text:
 * another key, or another user; -EPROTO; -EIO. */
int wh_peer_prove(struct wh_peer *peer, uint16_t role, int fd, const struct wh_tls *tls,
		  const struct wh_greeting *hello, const uint8_t *welcome, size_t length,
		  uint8_t out[WH_PROVE_SIZE]);
/* Make the WELCOME that answers the HELLO `received`, decoded as `hello`, and prove `key` in it.
 * *proofs gets the proof that the initiator has to send, and the session's key. 0, -EPROTO (no
 * nonce) or -EIO. */
int wh_welcome(struct wh_engine *engine, const struct wh_greeting *received,
	       const struct wh_hello *hello, uint64_t session, const uint8_t key[WH_KEY_SIZE],
	       struct wh_greeting *out, struct wh_proofs *proofs);
/* Send REFUSED with errno and text, and close the connection. Does not wait: nothing may have been
 * sent before, so that the frame fits the socket buffer. Takes ownership of fd and tls. */
void wh_refuse(int fd, struct wh_tls *tls, int error, const char *text);

#endif
