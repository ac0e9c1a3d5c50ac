/* SPDX-License-Identifier: Apache-2.0 */
/* Compute and compare the proofs of a handshake. */
#include "wire/proof.h"

#include <errno.h>

#include "wire/bytes.h"

#define LABEL 24 /* bytes; a shorter label is padded with zeros */

/* The label, u32 length, HELLO, u32 length, WELCOME without its proof, and the byte 1: HKDF's
 * counter behind the info. */
struct transcript {
	size_t length;
	uint8_t bytes[LABEL + 4 + WH_HELLO_MAX + 4 + WH_HELLO_MAX + 1];
};

/* Copy the nonce of a HELLO or WELCOME. False: not a valid payload, or its auth is not `auth` bytes
 * long. */
static bool hello_nonce(const uint8_t *payload, size_t length, size_t auth, uint8_t *nonce)
{
	struct wh_hello hello;

	if (wh_hello_decode(payload, length, &hello) || hello.auth_length != auth)
		return false;
	memcpy(nonce, hello.auth, WH_NONCE_SIZE);
	return true;
}

static int proof_expand(const struct wh_crypto *crypto, const uint8_t secret[WH_MAC_SIZE],
			const char *label, struct transcript *transcript, uint8_t out[WH_MAC_SIZE])
{
	memset(transcript->bytes, 0, LABEL);
	memcpy(transcript->bytes, label, strlen(label));
	return wh_crypto_hmac(crypto, secret, WH_MAC_SIZE, transcript->bytes, transcript->length,
			      out);
}

int wh_proofs_make(const struct wh_crypto *crypto, const uint8_t key[WH_KEY_SIZE],
		   const uint8_t *hello, size_t hello_length, const uint8_t *welcome,
		   size_t welcome_length, struct wh_proofs *out)
{
	uint8_t salt[2 * WH_NONCE_SIZE], secret[WH_MAC_SIZE];
	struct transcript transcript;
	uint8_t *at = transcript.bytes + LABEL;
	size_t covered = welcome_length - WH_PROOF_SIZE;
	int error;

	if (!hello_nonce(hello, hello_length, WH_NONCE_SIZE, salt) ||
	    !hello_nonce(welcome, welcome_length, WH_NONCE_SIZE + WH_PROOF_SIZE,
			 salt + WH_NONCE_SIZE))
		return -EPROTO;
	at = wh_put_bytes(wh_put32(at, (uint32_t)hello_length), hello, hello_length);
	at = wh_put_bytes(wh_put32(at, (uint32_t)covered), welcome, covered);
	*at++ = 1;
	transcript.length = (size_t)(at - transcript.bytes);
	error = wh_crypto_hmac(crypto, salt, sizeof(salt), key, WH_KEY_SIZE, secret);
	if (!error)
		error = proof_expand(crypto, secret, "wherry 2 owner", &transcript, out->owner);
	if (!error)
		error = proof_expand(crypto, secret, "wherry 2 initiator", &transcript,
				     out->initiator);
	if (!error)
		error = proof_expand(crypto, secret, "wherry 2 session", &transcript, out->session);
	explicit_bzero(secret, sizeof(secret));
	return error;
}

bool wh_proof_equal(const struct wh_crypto *crypto, const uint8_t a[WH_PROOF_SIZE],
		    const uint8_t b[WH_PROOF_SIZE])
{
	return !crypto->compare(a, b, WH_PROOF_SIZE);
}
