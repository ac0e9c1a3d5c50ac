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

struct wh_channel;
struct wh_trust;

#define WH_GREETING_MAX (WH_FRAME_HEADER + WH_HELLO_MAX)

/* A HELLO or WELCOME as it is sent, with its frame header. The proofs cover these bytes. */
struct wh_greeting {
	size_t length;
	uint8_t bytes[WH_GREETING_MAX];
};

/* What an engine says of itself, and what it holds to prove it. */
struct wh_identity {
	char name[WH_NAME_MAX];
	uint64_t epoch;
	uint8_t host[16]; /* equal: one network namespace of a machine; the last 8: one machine */
	char socket[WH_NAME_MAX]; /* name of the unix socket that it listens on; "": none */
	uint32_t capabilities; /* WH_CAPABLE_... */
	const struct wh_trust *trust;
};

/* Make the HELLO of a connection of this role. `welcome`: what the peer said on the control
 * connection, or NULL if this is that. `connection` numbers a data connection, for ABORT; 0 for
 * other roles. 0, or -EIO: no random numbers. */
int wh_hello_make(const struct wh_identity *self, const struct wh_hello *welcome, uint16_t role,
		  uint32_t connection, struct wh_greeting *out);
/* Check the owner's proof in the payload of the WELCOME that answered `hello` on `fd`, and make the
 * PROVE frame. `session`: the session's key, which this connection proves. NULL: it is a control
 * connection, which proves a key of `trust`, and `made` gets the session's. 0; -EACCES with a text:
 * another key, or another user; -EPROTO; -EIO. */
int wh_prove_make(const struct wh_trust *trust, uint16_t role, int fd,
		  const struct wh_channel *channel, const struct wh_greeting *hello,
		  const uint8_t *welcome, size_t length, const uint8_t *session,
		  uint8_t made[WH_KEY_SIZE], uint8_t out[WH_PROVE_SIZE]);
/* Make the WELCOME that answers the HELLO `received`, decoded as `hello`, and prove `key` in it.
 * *proofs gets the proof that the initiator has to send, and the session's key. 0, -EPROTO (no
 * nonce) or -EIO. */
int wh_welcome_make(const struct wh_identity *self, const struct wh_greeting *received,
		    const struct wh_hello *hello, uint64_t session, const uint8_t key[WH_KEY_SIZE],
		    struct wh_greeting *out, struct wh_proofs *proofs);
/* Behind HELLO and WELCOME, make the channel that both agree on by their capabilities: records, if
 * either asks for them. *out is NULL if neither does: the connection stays as it is. `owner`: this
 * engine sent the WELCOME. 0; -EOPNOTSUPP with a text: one asks for records, and the other cannot;
 * -EPROTO, -ENOMEM. */
int wh_handshake_channel(const struct wh_greeting *hello, const uint8_t *welcome, size_t length,
			 int fd, bool owner, struct wh_channel **out);
/* Send REFUSED with errno and text, and close the connection. Does not wait: nothing may have been
 * sent before, so that the frame fits the socket buffer. Takes ownership of fd and channel. */
void wh_refuse(int fd, struct wh_channel *channel, int error, const char *text);

#endif
