/* SPDX-License-Identifier: Apache-2.0 */
/* Loading libssl and looking up its functions. */
#include "platform/ssl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "util/error.h"

static int ssl_missing(struct wh_ssl *ssl, const char *what)
{
	const char *why = dlerror();
	int error = wh_fail(
		ELIBACC,
		"no OpenSSL for the setting tls: %s: %.110s; install libssl3 (openssl-libs)", what,
		why ? why : "not found");

	wh_ssl_close(ssl);
	return error;
}

/* Finds functions of libcrypto, too: dlsym() also searches the libraries that libssl needs. */
static bool ssl_bind(struct wh_ssl *ssl, const char *name, void *function)
{
	void *found = dlsym(ssl->library, name);

	memcpy(function, &found, sizeof(found));
	return found;
}

int wh_ssl_open(struct wh_ssl *ssl, const char *path)
{
	static const char *const names[] = { "libssl.so.3", "libssl.so.1.1" };

	memset(ssl, 0, sizeof(*ssl));
	/* NODELETE: OpenSSL keeps data for each thread that has used it, so it must stay loaded. */
	if (path)
		ssl->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	for (size_t i = 0; !path && !ssl->library && i < 2; i++)
		ssl->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!ssl->library)
		return ssl_missing(ssl, path ? path : "libssl.so.3 and libssl.so.1.1");
#define X(type, name, arguments)                                                                   \
	if (!ssl_bind(ssl, #name, &ssl->name))                                                     \
		return ssl_missing(ssl, #name);
	WH_SSL_FUNCTIONS(X)
#undef X
	if (!ssl_bind(ssl, "SSL_get1_peer_certificate", &ssl->peer_certificate) &&
	    !ssl_bind(ssl, "SSL_get_peer_certificate", &ssl->peer_certificate))
		return ssl_missing(ssl, "SSL_get1_peer_certificate");
	return 0;
}

void wh_ssl_close(struct wh_ssl *ssl)
{
	if (ssl->library)
		dlclose(ssl->library);
	memset(ssl, 0, sizeof(*ssl));
}
