/* SPDX-License-Identifier: Apache-2.0 */
#include "platform/crypto.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "util/error.h"

/* OPENSSL_INIT_NO_ATEXIT: our threads may still be shaking hands while the process ends, and what
 * they use must not be cleaned up beforehand. No effect where the program has started OpenSSL
 * before. */
#define NO_ATEXIT UINT64_C(0x00080000)

static int missing(struct wh_crypto *crypto, const char *what)
{
	const char *why = dlerror();
	int error = wh_fail(ELIBACC,
			    "no OpenSSL to prove the cluster key with: %s: %.110s; install libssl3 "
			    "(openssl-libs)",
			    what, why ? why : "not found");

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
	/* It keeps things for the threads that use it, and so is never unloaded. */
	if (path)
		crypto->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	for (size_t i = 0; !path && !crypto->library && i < 2; i++)
		crypto->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!crypto->library)
		return missing(crypto, path ? path : "libcrypto.so.3 and libcrypto.so.1.1");
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		found = dlsym(crypto->library, symbols[i].name);
		if (!found)
			return missing(crypto, symbols[i].name);
		memcpy(symbols[i].at, &found, sizeof(found));
	}
	crypto->start(NO_ATEXIT, NULL);
	return 0;
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
		return wh_fail(EIO, "OpenSSL computes no HMAC-SHA-256 (its policy, or no memory)");
	return 0;
}
