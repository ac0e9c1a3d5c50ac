/* SPDX-License-Identifier: Apache-2.0 */
/* The table of URL schemes: pick the one that finds an engine by its URL. */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <string.h>

#include "util/error.h"

static const struct wh_rendezvous *const known[] = { &wh_rendezvous_p2p };

int wh_rendezvous_resolve(const char *url, enum wh_resolve how, struct sockaddr_storage *out,
			  unsigned *count)
{
	const char *mark = strstr(url, "://");
	size_t length = mark ? (size_t)(mark - url) : 0;

	if (!mark)
		return wh_rendezvous_p2p.resolve(url, how, out, count);
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		const char *scheme = known[i]->scheme;

		if (strlen(scheme) == length && !strncmp(scheme, url, length))
			return known[i]->resolve(mark + 3, how, out, count);
	}
	return wh_fail(EINVAL, "%.100s: the scheme \"%.*s\" is not known; write wherry://HOST:PORT",
		       url, length < 32 ? (int)length : 32, url);
}
