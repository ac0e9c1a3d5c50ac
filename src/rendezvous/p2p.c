/* SPDX-License-Identifier: Apache-2.0 */
/* The simplest way to find an engine: being told its host and port. */
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/rendezvous.h"
#include "util/error.h"

#define HOST_MAX 256 /* with the NUL; a name of the DNS has at most 253 bytes */

/* Only the beginning of what may be long and foreign. */
#define SHOWN "%.120s"

struct place {
	char host[HOST_MAX];
	char port[6];
	bool numeric; /* in brackets: an IPv6 address, never a name */
};

static int parse_port(const char *where, const char *port, bool listening, struct place *place)
{
	size_t length = strspn(port, "0123456789");
	unsigned value = 0;

	if (!length)
		return wh_fail(EINVAL, SHOWN ": the port is missing; write HOST:PORT%s", where,
			       listening ? " (port 0 takes a free one)" :
					   "; names want the knob registry");
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
	snprintf(place->port, sizeof(place->port), "%u", value);
	return 0;
}

static int parse_host(const char *where, const char *host, size_t length, struct place *place)
{
	if (!length)
		return wh_fail(EINVAL, SHOWN ": the host is missing; write HOST:PORT", where);
	if (length >= sizeof(place->host))
		return wh_fail(EINVAL, SHOWN "...: the host has more than %d bytes", where,
			       HOST_MAX - 1);
	for (size_t i = 0; i < length; i++) {
		if (!isgraph((unsigned char)host[i]) || strchr("/?#@[]\\", host[i]))
			return wh_fail(EINVAL, SHOWN ": the host contains '%c'", where, host[i]);
	}
	memcpy(place->host, host, length);
	place->host[length] = '\0';
	return 0;
}

static int parse(const char *where, bool listening, struct place *place)
{
	const char *colon, *end;
	int error;

	memset(place, 0, sizeof(*place));
	if (*where == '[') {
		end = strchr(where, ']');
		if (!end)
			return wh_fail(EINVAL, SHOWN ": the bracket before the host is not closed",
				       where);
		if (end[1] && end[1] != ':')
			return wh_fail(EINVAL, SHOWN ": a colon and the port must follow the ]",
				       where);
		place->numeric = true;
		error = parse_host(where, where + 1, (size_t)(end - where - 1), place);
		return error ? error : parse_port(where, end[1] ? end + 2 : "", listening, place);
	}
	colon = strchr(where, ':');
	if (colon && strchr(colon + 1, ':'))
		return wh_fail(EINVAL, SHOWN ": put an IPv6 address into brackets: [ADDRESS]:PORT",
			       where);
	end = colon ? colon : where + strlen(where);
	error = parse_host(where, where, (size_t)(end - where), place);
	return error ? error : parse_port(where, colon ? colon + 1 : "", listening, place);
}

/* From the resolver's codes to ours. */
static int unresolved(const char *where, const struct place *place, int code)
{
	if (code == EAI_MEMORY)
		return wh_fail(ENOMEM, SHOWN ": no memory", where);
	if (code == EAI_SYSTEM)
		return wh_fail(EHOSTUNREACH, SHOWN ": cannot look up \"%.80s\": %s", where,
			       place->host, strerror(errno));
	if (place->numeric)
		return wh_fail(EINVAL, SHOWN ": \"%.80s\" is not an IPv6 address", where,
			       place->host);
	return wh_fail(EHOSTUNREACH, SHOWN ": cannot look up \"%.80s\": %s", where, place->host,
		       gai_strerror(code));
}

static int resolve(const char *where, bool listening, struct sockaddr_storage *out, unsigned *count)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	struct addrinfo *found;
	struct place place;
	unsigned used = 0;
	int code, error = parse(where, listening, &place);

	if (error)
		return error;
	if (place.numeric) {
		hints.ai_family = AF_INET6;
		hints.ai_flags |= AI_NUMERICHOST;
	}
	code = getaddrinfo(place.host, place.port, &hints, &found);
	if (code)
		return unresolved(where, &place, code);
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
			       place.host);
	*count = used;
	return 0;
}

const struct wh_rendezvous wh_rendezvous_p2p = {
	.name = "p2p",
	.scheme = "wherry",
	.resolve = resolve,
};
