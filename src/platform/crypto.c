/* SPDX-License-Identifier: Apache-2.0 */
/* Loading libcrypto and computing HMAC-SHA-256 with it. */
#include "platform/crypto.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "util/error.h"

/* OPENSSL_INIT_NO_ATEXIT: our threads may still be in a handshake while the process exits, so
 * OpenSSL must not clean up at exit. No effect if the program has initialised OpenSSL before. */
#define NO_ATEXIT UINT64_C(0x00080000)

static int crypto_missing(struct wh_crypto *crypto, const char *what)
{
	const char *why = dlerror();
	int error = wh_fail(ELIBACC,
			    "no OpenSSL for the cluster key: %s: %.110s; install libssl3 "
			    "(openssl-libs)",
			    what, why ? why : "not found");

	wh_crypto_close(crypto);
	return error;
}

/* Use the digest once: OpenSSL then loads its configuration and providers, and crashes if memory is
 * short meanwhile. In the middle of a handshake nobody could do anything about that. */
static int crypto_fetch(struct wh_crypto *crypto)
{
	uint8_t mac[WH_MAC_SIZE];
	int error = wh_crypto_hmac(crypto, mac, 0, "", 0, mac);

	if (error)
		wh_crypto_close(crypto);
	return error;
}

int wh_crypto_open(struct wh_crypto *crypto, const char *path)
{
	static const char *const names[] = { "libcrypto.so.3", "libcrypto.so.1.1" };
	const struct {
		const char *name;
		void *at;
	} symbols[] = {
		{ "EVP_sha256", &crypto->sha256 },
		{ "HMAC", &crypto->hmac },
		{ "CRYPTO_memcmp", &crypto->compare },
		{ "OPENSSL_init_crypto", &crypto->start },
	};
	void *found;

	memset(crypto, 0, sizeof(*crypto));
	/* NODELETE: OpenSSL keeps data for each thread that has used it, so it must stay loaded. */
	if (path)
		crypto->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	for (size_t i = 0; !path && !crypto->library && i < 2; i++)
		crypto->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!crypto->library)
		return crypto_missing(crypto, path ? path : "libcrypto.so.3 and libcrypto.so.1.1");
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		found = dlsym(crypto->library, symbols[i].name);
		if (!found)
			return crypto_missing(crypto, symbols[i].name);
		memcpy(symbols[i].at, &found, sizeof(found));
	}
	crypto->start(NO_ATEXIT, NULL);
	return crypto_fetch(crypto);
}

void wh_crypto_close(struct wh_crypto *crypto)
{
	if (crypto->library)
		dlclose(crypto->library);
	memset(crypto, 0, sizeof(*crypto));
}

int wh_crypto_hmac(const struct wh_crypto *crypto, const uint8_t *key, size_t key_length,
		   const void *data, size_t length, uint8_t out[WH_MAC_SIZE])
{
	unsigned got = 0;

	if (!crypto->hmac(crypto->sha256(), key, (int)key_length, data, length, out, &got) ||
	    got != WH_MAC_SIZE)
		return wh_fail(EIO,
			       "OpenSSL cannot compute HMAC-SHA-256 (crypto policy, or no memory)");
	return 0;
}
