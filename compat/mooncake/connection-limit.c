/* SPDX-License-Identifier: Apache-2.0 */
/* Who of a crowd of connections has to go. */
#include "compat/mooncake/connection-limit.h"
#include "util/address.h"
#include "util/list.h"

void wh_mooncake_limit_enter(struct wh_mooncake_limit *crowd, struct wh_mooncake_limited *guest,
			     const struct sockaddr_storage *from)
{
	guest->place = wh_address_prefix(from);
	wh_list_append(&crowd->guests, &guest->link);
	crowd->count++;
}

void wh_mooncake_limit_leave(struct wh_mooncake_limit *crowd, struct wh_mooncake_limited *guest)
{
	wh_list_remove(&guest->link);
	crowd->count--;
}

/* Of those from this place, or, without one, of all. */
static struct wh_mooncake_limited *least(const struct wh_mooncake_limit *crowd,
					 const uint64_t *place, unsigned *count)
{
	enum wh_mooncake_worth lowest = WH_MOONCAKE_STAYS;
	struct wh_mooncake_limited *found = NULL;

	*count = 0;
	for (struct wh_list *link = crowd->guests.next; link != &crowd->guests; link = link->next) {
		struct wh_mooncake_limited *guest =
			wh_container(link, struct wh_mooncake_limited, link);
		enum wh_mooncake_worth worth;

		if (place && guest->place != *place)
			continue;
		++*count;
		worth = crowd->worth(guest);
		if (worth >= lowest)
			continue;
		lowest = worth;
		found = guest;
	}
	return found;
}

bool wh_mooncake_limit_room(const struct wh_mooncake_limit *crowd,
			    const struct sockaddr_storage *from, struct wh_mooncake_limited **out)
{
	uint64_t place = wh_address_prefix(from);
	unsigned count;

	if (crowd->count < crowd->most_place)
		return true;
	*out = least(crowd, &place, &count);
	if (count >= crowd->most_place)
		return false;
	if (crowd->count < crowd->most)
		return true;
	*out = least(crowd, NULL, &count);
	return false;
}

struct wh_mooncake_limited *wh_mooncake_limit_least(const struct wh_mooncake_limit *crowd)
{
	unsigned count;

	return least(crowd, NULL, &count);
}
