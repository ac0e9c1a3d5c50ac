/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of strangers: how many there may be, of all and from one place, and who has to go. A
 * place is what wh_address_prefix() says: an IPv4 address, or a network of IPv6. */
#ifndef WH_COMPAT_MOONCAKE_CONNECTION_LIMIT_H
#define WH_COMPAT_MOONCAKE_CONNECTION_LIMIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "util/list.h"

/* One of them, within what is known of it. */
struct wh_mooncake_limited {
	struct wh_list link;
	uint64_t place;
};

enum wh_mooncake_worth {
	WH_MOONCAKE_DONE, /* it wants nothing any more, or nothing now */
	WH_MOONCAKE_LAZY, /* it should have moved more than it has */
	WH_MOONCAKE_WORKING, /* goes only where one has to */
	WH_MOONCAKE_STAYS,
};

struct wh_mooncake_limit {
	struct wh_list guests;
	unsigned count;
	unsigned most, most_place;
	enum wh_mooncake_worth (*worth)(const struct wh_mooncake_limited *guest);
};

void wh_mooncake_limit_enter(struct wh_mooncake_limit *crowd, struct wh_mooncake_limited *guest,
			     const struct sockaddr_storage *from);
void wh_mooncake_limit_leave(struct wh_mooncake_limit *crowd, struct wh_mooncake_limited *guest);

/* Is there room for one more from there? If not, *out is who has to go before it: the least worth,
 * of those from its place if they are too many, else of all, and of equals the first in the list;
 * NULL: nobody may go. */
bool wh_mooncake_limit_room(const struct wh_mooncake_limit *crowd,
			    const struct sockaddr_storage *from, struct wh_mooncake_limited **out);

/* Who goes first of all; NULL: nobody may. */
struct wh_mooncake_limited *wh_mooncake_limit_least(const struct wh_mooncake_limit *crowd);

#endif
