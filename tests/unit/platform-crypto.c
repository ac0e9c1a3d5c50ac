/* SPDX-License-Identifier: Apache-2.0 */
/* HMAC-SHA-256 by OpenSSL's libcrypto, and libraries that are missing or wrong. */
#include "unit.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/error.h>

#include "platform/crypto.h"

static struct wh_crypto crypto;

/* ---- OpenSSL's memory ---- */

static bool memory_is_short;
static unsigned memory_refused;

static void *ssl_malloc(size_t size, const char *file, int line)
{
	(void)file;
	(void)line;
	memory_refused += memory_is_short;
	return memory_is_short ? NULL : malloc(size);
}

static void *ssl_realloc(void *block, size_t size, const char *file, int line)
{
	(void)file;
	(void)line;
	memory_refused += memory_is_short;
	return memory_is_short ? NULL : realloc(block, size);
}

static void ssl_free(void *block, const char *file, int line)
{
	(void)file;
	(void)line;
	free(block);
}

/* Before OpenSSL's first allocation. */
static void take_memory(void)
{
	int (*set)(void *(*)(size_t, const char *, int),
		   void *(*)(void *, size_t, const char *, int),
		   void (*)(void *, const char *, int));
	void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE), *found;

	if (!library)
		library = dlopen("libcrypto.so.1.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	found = library ? dlsym(library, "CRYPTO_set_mem_functions") : NULL;
	assert_non_null(found);
	memcpy(&set, &found, sizeof(set));
	assert_int_equal(set(ssl_malloc, ssl_realloc, ssl_free), 1);
}

static int open_it(void **state)
{
	(void)state;
	take_memory();
	return wh_crypto_open(&crypto, NULL);
}

static int close_it(void **state)
{
	(void)state;
	wh_crypto_close(&crypto);
	return 0;
}

/* The first digest of a handshake may come while memory is short. First of the tests. */
static void hmac__no_memory(void **state)
{
	uint8_t mac[WH_MAC_SIZE] = { 0 };

	(void)state;
	memory_is_short = true;
	assert_int_equal(wh_crypto_hmac(&crypto, mac, 4, "", 0, mac), -EIO);
	memory_is_short = false;
	assert_true(memory_refused > 0);
	assert_int_equal(wh_crypto_hmac(&crypto, mac, 4, "", 0, mac), 0);
}

/* RFC 4231, cases 1, 2, 3 and 6. */
static void hmac__as_published(void **state)
{
	static uint8_t aa[131], dd[50];
	static const struct {
		const void *key;
		size_t key_length;
		const void *data;
		size_t length;
		const char *mac;
	} cases[] = {
		{ "\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b"
		  "\x0b",
		  20, "Hi There", 8,
		  "\xb0\x34\x4c\x61\xd8\xdb\x38\x53\x5c\xa8\xaf\xce\xaf\x0b\xf1\x2b"
		  "\x88\x1d\xc2\x00\xc9\x83\x3d\xa7\x26\xe9\x37\x6c\x2e\x32\xcf\xf7" },
		{ "Jefe", 4, "what do ya want for nothing?", 28,
		  "\x5b\xdc\xc1\x46\xbf\x60\x75\x4e\x6a\x04\x24\x26\x08\x95\x75\xc7"
		  "\x5a\x00\x3f\x08\x9d\x27\x39\x83\x9d\xec\x58\xb9\x64\xec\x38\x43" },
		{ aa, 20, dd, 50,
		  "\x77\x3e\xa9\x1e\x36\x80\x0e\x46\x85\x4d\xb8\xeb\xd0\x91\x81\xa7"
		  "\x29\x59\x09\x8b\x3e\xf8\xc1\x22\xd9\x63\x55\x14\xce\xd5\x65\xfe" },
		{ aa, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
		  "\x60\xe4\x31\x59\x1e\xe0\xb6\x7f\x0d\x8a\x26\xaa\xcb\xf5\xb7\x7f"
		  "\x8e\x0b\xc6\x21\x37\x28\xc5\x14\x05\x46\x04\x0f\x0e\xe3\x7f\x54" },
	};
	uint8_t mac[WH_MAC_SIZE];

	(void)state;
	memset(aa, 0xaa, sizeof(aa));
	memset(dd, 0xdd, sizeof(dd));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(wh_crypto_hmac(&crypto, cases[i].key, cases[i].key_length,
						cases[i].data, cases[i].length, mac),
				 0);
		assert_memory_equal(mac, cases[i].mac, sizeof(mac));
	}
}

static unsigned char *refuses(const void *digest, const void *key, int key_length,
			      const unsigned char *data, size_t length, unsigned char *out,
			      unsigned *out_length)
{
	(void)digest;
	(void)key;
	(void)key_length;
	(void)data;
	(void)length;
	(void)out;
	(void)out_length;
	return NULL;
}

static void hmac__refused(void **state)
{
	struct wh_crypto policy = crypto;
	uint8_t mac[WH_MAC_SIZE] = { 0 };

	(void)state;
	policy.hmac = refuses;
	assert_int_equal(wh_crypto_hmac(&policy, mac, 4, "", 0, mac), -EIO);
	assert_non_null(strstr(wh_error_text(), "policy"));
}

static void open__missing(void **state)
{
	struct wh_crypto missing;

	(void)state;
	assert_int_equal(wh_crypto_open(&missing, "/nowhere/libcrypto.so.3"), -ELIBACC);
	assert_non_null(strstr(wh_error_text(), "/nowhere/libcrypto.so.3"));
	assert_non_null(strstr(wh_error_text(), "libssl3"));
	assert_null(missing.library);
	/* Some other library. */
	assert_int_equal(wh_crypto_open(&missing, "libc.so.6"), -ELIBACC);
	assert_non_null(strstr(wh_error_text(), "EVP_sha256"));
	assert_null(missing.library);
	wh_crypto_close(&missing);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hmac__no_memory),
		cmocka_unit_test(hmac__as_published),
		cmocka_unit_test(hmac__refused),
		cmocka_unit_test(open__missing),
	};

	return cmocka_run_group_tests(tests, open_it, close_it);
}
