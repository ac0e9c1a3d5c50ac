/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses as text and as prefixes. */
#include "util/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static void address_format_v6(char *out, size_t size, const struct sockaddr_in6 *address)
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
		address_format_v6(out, size, (const struct sockaddr_in6 *)address);
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

uint64_t wh_address_prefix(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
	uint32_t mapped;
	uint64_t network;

	if (address->ss_family == AF_INET)
		return v4->sin_addr.s_addr;
	if (address->ss_family != AF_INET6)
		return UINT64_MAX;
	memcpy(&network, &v6->sin6_addr, sizeof(network));
	memcpy(&mapped, v6->sin6_addr.s6_addr + 12, sizeof(mapped));
	return IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? mapped : network;
}
