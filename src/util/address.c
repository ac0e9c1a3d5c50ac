/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses as text and as prefixes. */
#include "util/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
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

/* ---- networks ------------------------------------------------------------------------------- */

#define NETWORK_TEXT (INET6_ADDRSTRLEN + 4)
#define V4_BITS 96 /* before an IPv4 address that is mapped into IPv6 */

/* All as IPv6. */
struct network {
	struct in6_addr address;
	unsigned bits;
};

static void network_map(const struct in_addr *v4, struct in6_addr *out)
{
	*out = (struct in6_addr){ .s6_addr = { [10] = 0xff, [11] = 0xff } };
	memcpy(out->s6_addr + 12, v4, sizeof(*v4));
}

/* Take the network at *at, and move it to the next one or the end. False: there is none. */
static bool network_take(const char **at, struct network *out)
{
	size_t length = strcspn(*at, ",");
	char text[NETWORK_TEXT], *slash, *end;
	struct in_addr v4;
	unsigned long bits = 128;

	if (length >= sizeof(text))
		return false;
	memcpy(text, *at, length);
	text[length] = 0;
	*at += length + (length && (*at)[length] && (*at)[length + 1]);
	slash = strchr(text, '/');
	if (slash) {
		*slash++ = 0;
		bits = strtoul(slash, &end, 10);
		if (*slash < '0' || *slash > '9' || *end || bits > 128)
			return false;
	}
	if (inet_pton(AF_INET, text, &v4) == 1) {
		network_map(&v4, &out->address);
		bits += slash ? V4_BITS : 0;
	} else if (inet_pton(AF_INET6, text, &out->address) != 1) {
		return false;
	}
	out->bits = (unsigned)bits;
	return bits <= 128;
}

static bool network_has(const struct network *network, const struct in6_addr *address)
{
	unsigned bytes = network->bits / 8, rest = network->bits % 8;
	uint8_t differ = rest ? network->address.s6_addr[bytes] ^ address->s6_addr[bytes] : 0;

	return !memcmp(&network->address, address, bytes) && !(differ >> (8 - rest));
}

bool wh_networks_are_valid(const char *networks)
{
	struct network network;

	while (*networks)
		if (!network_take(&networks, &network) || *networks == ',')
			return false;
	return true;
}

bool wh_networks_have(const char *networks, const struct sockaddr_storage *address)
{
	struct in6_addr v6 = ((const struct sockaddr_in6 *)address)->sin6_addr;
	struct network network;

	if (address->ss_family == AF_INET)
		network_map(&((const struct sockaddr_in *)address)->sin_addr, &v6);
	while (*networks && network_take(&networks, &network))
		if (network_has(&network, &v6))
			return true;
	return false;
}
