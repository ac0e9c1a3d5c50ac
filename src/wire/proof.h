/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutual authentication with a shared key. HELLO and WELCOME each carry a nonce. HKDF (RFC 5869)
 * extracts a secret for this one handshake from the key and both nonces, and expands it over the
 * transcript to three values: the owner's proof, at the end of WELCOME; the initiator's proof, the
 * payload of PROVE; and the session's key. docs/wire-protocol.md has the formulas.
 */
#ifndef WH_WIRE_PROOF_H
#define WH_WIRE_PROOF_H

#include "platform/crypto.h"
#include "wire/wire.h"

#define WH_KEY_SIZE WH_MAC_SIZE

struct wh_proofs {
	uint8_t owner[WH_PROOF_SIZE];
	uint8_t initiator[WH_PROOF_SIZE];
	/* control handshake only: the key of the session's data and shm handshakes */
	uint8_t session[WH_KEY_SIZE];
};

/* Compute the proofs of a handshake from the payloads of HELLO and WELCOME as they were on the
 * wire. The owner's proof at the end of WELCOME is not read.
 * 0; -EPROTO: not a HELLO or WELCOME, or its auth has the wrong size; -EIO: the crypto library
 * failed. */
int wh_proofs_make(const struct wh_crypto *crypto, const uint8_t key[WH_KEY_SIZE],
		   const uint8_t *hello, size_t hello_length, const uint8_t *welcome,
		   size_t welcome_length, struct wh_proofs *out);

/* Compare two proofs in constant time. */
bool wh_proof_equal(const struct wh_crypto *crypto, const uint8_t a[WH_PROOF_SIZE],
		    const uint8_t b[WH_PROOF_SIZE]);

#endif
