/* SPDX-License-Identifier: Apache-2.0 */
/* The HELLO and WELCOME that a handshake is proved over: u16 length of the HELLO, it, the WELCOME.
 */
#include "fuzz.h"

#include <errno.h>

#include "wire/proof.h"

/* In place of OpenSSL's: it depends on every byte, and reads no further. */
static unsigned char *mix(const void *digest, const void *key, int key_length,
			  const unsigned char *data, size_t length, unsigned char *out,
			  unsigned *out_length)
{
	const unsigned char *key_at = key;
	uint64_t state = 1;

	(void)digest;
	for (int i = 0; i < key_length; i++)
		state = (state ^ key_at[i]) * UINT64_C(0x100000001b3);
	for (size_t i = 0; i < length; i++)
		state = (state ^ data[i]) * UINT64_C(0x100000001b3);
	for (int i = 0; i < WH_MAC_SIZE; i++)
		out[i] = (unsigned char)(state >> i % 8 * 8);
	*out_length = WH_MAC_SIZE;
	return out;
}

static const void *no_digest(void)
{
	return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct wh_crypto crypto = { .sha256 = no_digest, .hmac = mix };
	static const uint8_t key[WH_KEY_SIZE] = { 1 };
	struct wh_proofs proofs, again;
	uint8_t *hello, *welcome;
	struct wh_hello decoded;
	size_t first, second;
	int rc;

	if (size < 2)
		return 0;
	first = (size_t)(data[0] | data[1] << 8);
	if (first > size - 2)
		return 0;
	second = size - 2 - first;
	/* In blocks of their own: reading past an end is seen. */
	hello = malloc(first ? first : 1);
	welcome = malloc(second ? second : 1);
	check(hello && welcome);
	memcpy(hello, data + 2, first);
	memcpy(welcome, data + 2 + first, second);
	rc = wh_proofs_make(&crypto, key, hello, first, welcome, second, &proofs);
	check(rc == 0 || rc == -EPROTO);
	if (!rc) {
		check(!wh_hello_decode(hello, first, &decoded));
		check(decoded.auth_length == WH_NONCE_SIZE);
		check(!wh_hello_decode(welcome, second, &decoded));
		check(decoded.auth_length == WH_NONCE_SIZE + WH_PROOF_SIZE);
		/* What the proof is put over is not looked at. */
		memset(welcome + second - WH_PROOF_SIZE, 0x5a, WH_PROOF_SIZE);
		check(!wh_proofs_make(&crypto, key, hello, first, welcome, second, &again));
		check(!memcmp(&proofs, &again, sizeof(proofs)));
	}
	free(hello);
	free(welcome);
	return 0;
}
