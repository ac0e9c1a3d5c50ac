/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits on a server's connections, in all and per client address, and which connection is closed
 * to make room. An address counts by its prefix, wh_address_prefix(): IPv4 address or IPv6 /64.
 */
#ifndef WH_COMPAT_MOONCAKE_CONNECTION_LIMIT_H
#define WH_COMPAT_MOONCAKE_CONNECTION_LIMIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "util/list.h"

/* A connection's part of the limit; the caller embeds it in the connection. */
struct wh_mooncake_limited {
	struct wh_list link; /* limit.connections */
	uint64_t source; /* prefix of the client's address */
};

/* The lowest rank is closed first. */
enum wh_mooncake_rank {
	WH_MOONCAKE_IDLE, /* no request is under way */
	WH_MOONCAKE_SLOW, /* has moved fewer bytes than it should */
	WH_MOONCAKE_BUSY, /* is closed only if there is no other */
	WH_MOONCAKE_PINNED, /* is never closed */
};

struct wh_mooncake_limit {
	struct wh_list connections; /* in the caller's order */
	unsigned count;
	unsigned max, max_per_source;
	enum wh_mooncake_rank (*rank)(const struct wh_mooncake_limited *limited);
};

void wh_mooncake_limit_add(struct wh_mooncake_limit *limit, struct wh_mooncake_limited *limited,
			   const struct sockaddr_storage *from);
void wh_mooncake_limit_remove(struct wh_mooncake_limit *limit, struct wh_mooncake_limited *limited);

/* May one more connection from this address be added? False: close *out first; NULL: none may be
 * closed. It is the first in the list of those with the lowest rank, among the connections from the
 * same source if these are too many, else among all. */
bool wh_mooncake_limit_has_room(const struct wh_mooncake_limit *limit,
				const struct sockaddr_storage *from,
				struct wh_mooncake_limited **out);

/* The connection to close first, among all; NULL: none may be closed. */
struct wh_mooncake_limited *wh_mooncake_limit_lowest(const struct wh_mooncake_limit *limit);

#endif
