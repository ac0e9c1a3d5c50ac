/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing the connection to close when a limit is reached. */
#include "compat/mooncake/connection-limit.h"
#include "util/address.h"
#include "util/list.h"

void wh_mooncake_limit_add(struct wh_mooncake_limit *limit, struct wh_mooncake_limited *limited,
			   const struct sockaddr_storage *from)
{
	limited->source = wh_address_prefix(from);
	wh_list_append(&limit->connections, &limited->link);
	limit->count++;
}

void wh_mooncake_limit_remove(struct wh_mooncake_limit *limit, struct wh_mooncake_limited *limited)
{
	wh_list_remove(&limited->link);
	limit->count--;
}

/* Among the connections from this source, or among all if it is NULL; *count: how many these are.
 */
static struct wh_mooncake_limited *limit_lowest(const struct wh_mooncake_limit *limit,
						const uint64_t *source, unsigned *count)
{
	enum wh_mooncake_rank found_rank = WH_MOONCAKE_PINNED;
	struct wh_mooncake_limited *found = NULL;

	*count = 0;
	for (struct wh_list *link = limit->connections.next; link != &limit->connections;
	     link = link->next) {
		struct wh_mooncake_limited *limited =
			wh_container(link, struct wh_mooncake_limited, link);
		enum wh_mooncake_rank rank;

		if (source && limited->source != *source)
			continue;
		++*count;
		rank = limit->rank(limited);
		if (rank >= found_rank)
			continue;
		found_rank = rank;
		found = limited;
	}
	return found;
}

bool wh_mooncake_limit_has_room(const struct wh_mooncake_limit *limit,
				const struct sockaddr_storage *from,
				struct wh_mooncake_limited **out)
{
	uint64_t source = wh_address_prefix(from);
	unsigned count;

	if (limit->count < limit->max_per_source)
		return true;
	*out = limit_lowest(limit, &source, &count);
	if (count >= limit->max_per_source)
		return false;
	if (limit->count < limit->max)
		return true;
	*out = limit_lowest(limit, NULL, &count);
	return false;
}

struct wh_mooncake_limited *wh_mooncake_limit_lowest(const struct wh_mooncake_limit *limit)
{
	unsigned count;

	return limit_lowest(limit, NULL, &count);
}
