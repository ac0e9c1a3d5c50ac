/* SPDX-License-Identifier: Apache-2.0 */
/* The scheme wherry://HOST:PORT: the URL itself has the host and the port. */
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/rendezvous.h"
#include "util/error.h"

#define HOST_MAX 256 /* with the NUL; a name of the DNS has at most 253 bytes */

/* URLs come from outside: texts quote their beginning only. */
#define SHOWN "%.120s"

struct target {
	char host[HOST_MAX];
	char port[6];
	bool numeric; /* in brackets: an IPv6 address, never a name */
};

static int p2p_parse_port(const char *where, const char *port, bool listening,
			  struct target *target)
{
	size_t length = strspn(port, "0123456789");
	unsigned value = 0;

	if (!length)
		return wh_fail(EINVAL, SHOWN ": the port is missing; write HOST:PORT%s", where,
			       listening ? " (port 0 takes a free one)" :
					   "; to use names, set registry=URL");
	if (port[length] == '/')
		return wh_fail(EINVAL, SHOWN ": nothing may follow the port, \"%.40s\" does", where,
			       port + length);
	for (size_t i = 0; i < length && value <= UINT16_MAX; i++)
		value = value * 10 + (unsigned)(port[i] - '0');
	if (port[length] || value > UINT16_MAX)
		return wh_fail(EINVAL,
			       SHOWN ": the port \"%.20s\" is not a number from %d to 65535", where,
			       port, listening ? 0 : 1);
	if (!value && !listening)
		return wh_fail(EINVAL, SHOWN ": port 0 cannot be connected to", where);
	snprintf(target->port, sizeof(target->port), "%u", value);
	return 0;
}

static int p2p_parse_host(const char *where, const char *host, size_t length, struct target *target)
{
	if (!length)
		return wh_fail(EINVAL, SHOWN ": the host is missing; write HOST:PORT", where);
	if (length >= sizeof(target->host))
		return wh_fail(EINVAL, SHOWN "...: the host has more than %d bytes", where,
			       HOST_MAX - 1);
	for (size_t i = 0; i < length; i++) {
		if (!isgraph((unsigned char)host[i]) || strchr("/?#@[]\\", host[i]))
			return wh_fail(EINVAL, SHOWN ": the host contains '%c'", where, host[i]);
	}
	memcpy(target->host, host, length);
	target->host[length] = '\0';
	return 0;
}

static int p2p_parse(const char *where, bool listening, struct target *target)
{
	const char *colon, *end;
	int error;

	memset(target, 0, sizeof(*target));
	if (*where == '[') {
		end = strchr(where, ']');
		if (!end)
			return wh_fail(EINVAL, SHOWN ": the bracket before the host is not closed",
				       where);
		if (end[1] && end[1] != ':')
			return wh_fail(EINVAL, SHOWN ": a colon and the port must follow the ]",
				       where);
		target->numeric = true;
		error = p2p_parse_host(where, where + 1, (size_t)(end - where - 1), target);
		return error ? error :
			       p2p_parse_port(where, end[1] ? end + 2 : "", listening, target);
	}
	colon = strchr(where, ':');
	if (colon && strchr(colon + 1, ':'))
		return wh_fail(EINVAL, SHOWN ": put an IPv6 address into brackets: [ADDRESS]:PORT",
			       where);
	end = colon ? colon : where + strlen(where);
	error = p2p_parse_host(where, where, (size_t)(end - where), target);
	return error ? error : p2p_parse_port(where, colon ? colon + 1 : "", listening, target);
}

/* Turn a resolver's error into an errno. */
static int p2p_unresolved(const char *where, const struct target *target, int code)
{
	if (code == EAI_MEMORY)
		return wh_fail(ENOMEM, SHOWN ": no memory", where);
	if (code == EAI_SYSTEM)
		return wh_fail(EHOSTUNREACH, SHOWN ": cannot look up \"%.80s\": %s", where,
			       target->host, strerror(errno));
	if (target->numeric)
		return wh_fail(EINVAL, SHOWN ": \"%.80s\" is not an IPv6 address", where,
			       target->host);
	return wh_fail(EHOSTUNREACH, SHOWN ": cannot look up \"%.80s\": %s", where, target->host,
		       gai_strerror(code));
}

static int p2p_resolve(const char *where, enum wh_resolve how, struct sockaddr_storage *out,
		       unsigned *count)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	struct addrinfo *found;
	struct target target;
	unsigned used = 0;
	int code, error = p2p_parse(where, how == WH_RESOLVE_LISTENING, &target);

	if (error)
		return error;
	if (target.numeric) {
		hints.ai_family = AF_INET6;
		hints.ai_flags |= AI_NUMERICHOST;
	}
	if (how == WH_RESOLVE_NUMERIC)
		hints.ai_flags |= AI_NUMERICHOST;
	code = getaddrinfo(target.host, target.port, &hints, &found);
	if (code == EAI_NONAME && how == WH_RESOLVE_NUMERIC && !target.numeric)
		return -EAGAIN;
	if (code)
		return p2p_unresolved(where, &target, code);
	for (struct addrinfo *a = found; a && used < WH_RENDEZVOUS_MOST; a = a->ai_next) {
		if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) ||
		    a->ai_addrlen > sizeof(out[used]))
			continue;
		memset(&out[used], 0, sizeof(out[used]));
		memcpy(&out[used++], a->ai_addr, a->ai_addrlen);
	}
	freeaddrinfo(found);
	if (!used)
		return wh_fail(EHOSTUNREACH, SHOWN ": \"%.80s\" has no IPv4 or IPv6 address", where,
			       target.host);
	*count = used;
	return 0;
}

const struct wh_rendezvous wh_rendezvous_p2p = {
	.name = "p2p",
	.scheme = "wherry",
	.resolve = p2p_resolve,
};
