/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding an engine: from its URL to the socket addresses where it may listen. One constant table
 * for each scheme. Names without a port are looked up in a registry: registry.h.
 */
#ifndef WH_RENDEZVOUS_RENDEZVOUS_H
#define WH_RENDEZVOUS_RENDEZVOUS_H

#include <stddef.h>
#include <sys/socket.h>

#include "util/address.h"

/* Addresses returned for a URL at most; others are dropped. */
#define WH_RENDEZVOUS_MOST 8

enum wh_resolve {
	WH_RESOLVE_REMOTE, /* an address to connect to; may block on a name server */
	WH_RESOLVE_NUMERIC, /* the same without blocking: -EAGAIN for the name of a host */
	WH_RESOLVE_LISTENING, /* an address to be bound: port 0 is allowed */
};

struct wh_rendezvous {
	const char *name;
	const char *scheme; /* "wherry": of "wherry://..." */
	/* `where` is what follows "://". */
	int (*resolve)(const char *where, enum wh_resolve how, struct sockaddr_storage *out,
		       unsigned *count);
};

/* The URL itself names the host: "wherry://HOST:PORT". */
extern const struct wh_rendezvous wh_rendezvous_p2p;

/* Turn "wherry://HOST:PORT" or "HOST:PORT" (a name, an IPv4 address, an IPv6 address in brackets)
 * into at most WH_RENDEZVOUS_MOST addresses, best first.
 * 0, -EINVAL (the text names the malformed part), -EHOSTUNREACH (the name is not known), -EAGAIN
 * (WH_RESOLVE_NUMERIC), -ENOMEM. */
int wh_rendezvous_resolve(const char *url, enum wh_resolve how, struct sockaddr_storage *out,
			  unsigned *count);

#endif
