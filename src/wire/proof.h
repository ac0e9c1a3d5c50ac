/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proving a key to each other. Both sides of a handshake have said everything that they say in
 * HELLO and WELCOME, a nonce each among it; a key for this one handshake is extracted from the key
 * and both nonces (HKDF, RFC 5869), and expanded over the whole transcript to three numbers: the
 * owner's proof, which ends the WELCOME, the initiator's, which is the payload of PROVE, and the
 * key of the session. docs/wire-protocol.md has the formulas.
 */
#ifndef WH_WIRE_PROOF_H
#define WH_WIRE_PROOF_H

#include "platform/crypto.h"
#include "wire/wire.h"

#define WH_KEY_SIZE WH_MAC_SIZE

struct wh_proofs {
	uint8_t owner[WH_PROOF_SIZE];
	uint8_t initiator[WH_PROOF_SIZE];
	/* of a control handshake: proved on data and shm connections */
	uint8_t session[WH_KEY_SIZE];
};

/* The proofs of a handshake from the payloads of its HELLO and WELCOME as they went over the wire;
 * the owner's proof at the end of the WELCOME is not looked at. 0; -EPROTO: one of them has not
 * what it takes; -EIO. */
int wh_proofs_make(const struct wh_crypto *crypto, const uint8_t key[WH_KEY_SIZE],
		   const uint8_t *hello, size_t hello_length, const uint8_t *welcome,
		   size_t welcome_length, struct wh_proofs *out);

/* In constant time. */
bool wh_proof_equal(const struct wh_crypto *crypto, const uint8_t a[WH_PROOF_SIZE],
		    const uint8_t b[WH_PROOF_SIZE]);

#endif
