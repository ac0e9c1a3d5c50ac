/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/reply.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "util/address.h"

bool reply_address(const char *url, struct sockaddr_storage *out)
{
	static const char scheme[] = "wherry://";
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
					.ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	char host[128], *start = host, *port;

	if (strncmp(url, scheme, sizeof(scheme) - 1) != 0)
		return false;
	snprintf(host, sizeof(host), "%s", url + sizeof(scheme) - 1);
	port = strrchr(host, ':');
	if (!port || port == host)
		return false;
	*port++ = 0;
	if (*start == '[' && port[-2] == ']') {
		start++;
		port[-2] = 0;
	}
	if (getaddrinfo(start, port, &hints, &found))
		return false;
	*out = (struct sockaddr_storage){ 0 };
	memcpy(out, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return true;
}

/* The IPv4 address of a prefix, as wh_address_prefix() has it; of others only ::1 is of interest.
 */
static struct sockaddr_storage source_address(uint64_t source)
{
	struct sockaddr_storage out = { .ss_family = AF_INET6 };

	((struct sockaddr_in6 *)&out)->sin6_addr = in6addr_loopback;
	if (!source)
		return out;
	out = (struct sockaddr_storage){ .ss_family = AF_INET };
	((struct sockaddr_in *)&out)->sin_addr.s_addr = (in_addr_t)source;
	return out;
}

static bool address_is_same(const struct sockaddr_storage *one, const struct sockaddr *other)
{
	if (!other || one->ss_family != other->sa_family)
		return false;
	if (one->ss_family == AF_INET)
		return ((const struct sockaddr_in *)one)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)other)->sin_addr.s_addr;
	return one->ss_family == AF_INET6 &&
	       IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)one)->sin6_addr,
				  &((const struct sockaddr_in6 *)other)->sin6_addr);
}

static bool address_is_own(const struct sockaddr_storage *address)
{
	struct ifaddrs *all, *at;

	if (wh_address_is_loopback(address))
		return true;
	if (getifaddrs(&all))
		return false;
	for (at = all; at && !address_is_same(address, at->ifa_addr); at = at->ifa_next)
		;
	freeifaddrs(all);
	return at;
}

bool reply_is_back(const struct sockaddr_storage *address, uint64_t source)
{
	struct sockaddr_storage from = source_address(source);

	if (wh_address_prefix(address) == source && source)
		return true;
	return source <= UINT32_MAX && address_is_own(&from) && address_is_own(address);
}
