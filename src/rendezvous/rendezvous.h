/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding an engine: from its URL to the socket addresses where it may listen. One constant table
 * for each scheme. Names without a port are looked up in a registry: registry.h.
 */
#ifndef WH_RENDEZVOUS_RENDEZVOUS_H
#define WH_RENDEZVOUS_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "util/address.h"

/* Addresses returned for a URL at most; others are dropped. */
#define WH_RENDEZVOUS_MOST 8

struct wh_rendezvous {
	const char *name;
	const char *scheme; /* "wherry": of "wherry://..." */
	/* `where` is what follows "://". May block on a name server. */
	int (*resolve)(const char *where, bool listening, struct sockaddr_storage *out,
		       unsigned *count);
};

/* The URL itself names the host: "wherry://HOST:PORT". */
extern const struct wh_rendezvous wh_rendezvous_p2p;

/* Turn "wherry://HOST:PORT" or "HOST:PORT" (a name, an IPv4 address, an IPv6 address in brackets)
 * into at most WH_RENDEZVOUS_MOST addresses, best first. `listening`: the address is to be bound,
 * port 0 is allowed.
 * 0, -EINVAL (the text names the malformed part), -EHOSTUNREACH (the name is not known), -ENOMEM.
 */
int wh_rendezvous_resolve(const char *url, bool listening, struct sockaddr_storage *out,
			  unsigned *count);

#endif
