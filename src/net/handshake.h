/* SPDX-License-Identifier: Apache-2.0 */
/* What the two sides of a handshake say, and how they prove the key to each other. */
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

/* A HELLO or WELCOME as it goes over the wire, with its frame header: what is proved is proved
 * over these bytes. */
struct wh_greeting {
	size_t length;
	uint8_t bytes[WH_GREETING_MAX];
};

/* Make the HELLO for a connection of this role to the peer. `connection` is 0 but for data. 0,
 * or -EIO: no random numbers. */
int wh_peer_hello(struct wh_peer *peer, uint16_t role, uint32_t connection,
		  struct wh_greeting *out);
/* The payload of the WELCOME that answers it, on `fd`: does it prove the key, and what do we
 * prove in turn? Of a control connection: the session's key is kept. 0; -EACCES with a text:
 * another key, or another user; -EPROTO, -EIO. */
int wh_peer_prove(struct wh_peer *peer, uint16_t role, int fd, const struct wh_tls *tls,
		  const struct wh_greeting *hello, const uint8_t *welcome, size_t length,
		  uint8_t out[WH_PROVE_SIZE]);
/* Make the WELCOME that answers `said`, whose content is `hello`; `proofs` says what the
 * initiator has to prove in turn. 0, or -EPROTO (no nonce), -EIO. */
int wh_welcome(struct wh_engine *engine, const struct wh_greeting *said,
	       const struct wh_hello *hello, uint64_t session, const uint8_t key[WH_KEY_SIZE],
	       struct wh_greeting *out, struct wh_proofs *proofs);
/* Send REFUSED on a fresh connection, as far as its empty buffer takes it, and close it. */
void wh_refuse(int fd, struct wh_tls *tls, int error, const char *text);

#endif
