/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "util/error.h"

static const struct wh_rendezvous *const known[] = { &wh_rendezvous_p2p };

int wh_rendezvous_resolve(const char *url, bool listening, struct sockaddr_storage *out,
			  unsigned *count)
{
	const char *mark = strstr(url, "://");
	size_t length = mark ? (size_t)(mark - url) : 0;

	if (!mark)
		return wh_rendezvous_p2p.resolve(url, listening, out, count);
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		const char *scheme = known[i]->scheme;

		if (strlen(scheme) == length && !strncmp(scheme, url, length))
			return known[i]->resolve(mark + 3, listening, out, count);
	}
	return wh_fail(EINVAL, "%.100s: the scheme \"%.*s\" is not known; write wherry://HOST:PORT",
		       url, length < 32 ? (int)length : 32, url);
}

static void format_v6(char *out, size_t size, const struct sockaddr_in6 *address)
{
	char host[INET6_ADDRSTRLEN] = "?", scope[IF_NAMESIZE + 1] = "", name[IF_NAMESIZE];

	inet_ntop(AF_INET6, &address->sin6_addr, host, sizeof(host));
	/* A link-local address means nothing without its interface. */
	if (address->sin6_scope_id && if_indextoname(address->sin6_scope_id, name))
		snprintf(scope, sizeof(scope), "%%%s", name);
	else if (address->sin6_scope_id)
		snprintf(scope, sizeof(scope), "%%%u", address->sin6_scope_id);
	snprintf(out, size, "[%s%s]:%u", host, scope, ntohs(address->sin6_port));
}

void wh_address_format(char *out, size_t size, const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
	char host[INET_ADDRSTRLEN] = "?";

	if (address->ss_family == AF_INET6) {
		format_v6(out, size, (const struct sockaddr_in6 *)address);
	} else if (address->ss_family == AF_INET) {
		inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
		snprintf(out, size, "%s:%u", host, ntohs(v4->sin_port));
	} else {
		snprintf(out, size, "?");
	}
}

bool wh_address_is_loopback(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

	if (address->ss_family == AF_INET)
		return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return address->ss_family == AF_INET6 && (IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
						  (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) &&
						   v6->sin6_addr.s6_addr[12] == IN_LOOPBACKNET));
}
