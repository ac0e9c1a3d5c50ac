/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's libcrypto, opened at run time: HMAC-SHA-256 and a comparison in constant time. */
#ifndef WH_PLATFORM_CRYPTO_H
#define WH_PLATFORM_CRYPTO_H

#include <stddef.h>
#include <stdint.h>

#define WH_MAC_SIZE 32

/* Our own declarations of functions that have not changed since OpenSSL 1.1. */
struct wh_crypto {
	void *library;
	const void *(*sha256)(void);
	unsigned char *(*hmac)(const void *digest, const void *key, int key_length,
			       const unsigned char *data, size_t length, unsigned char *out,
			       unsigned *out_length);
	int (*compare)(const void *a, const void *b, size_t length);
	int (*start)(uint64_t options, const void *settings);
};

/* `path` NULL: libcrypto.so.3, or else libcrypto.so.1.1. 0, or -ELIBACC: the text names what is
 * missing. */
int wh_crypto_open(struct wh_crypto *crypto, const char *path);
void wh_crypto_close(struct wh_crypto *crypto);

/* 0, or -EIO: OpenSSL refuses (a policy without SHA-256, or no memory). Thread-safe. */
int wh_crypto_hmac(const struct wh_crypto *crypto, const uint8_t *key, size_t key_length,
		   const void *data, size_t length, uint8_t out[WH_MAC_SIZE]);

#endif
