/* SPDX-License-Identifier: Apache-2.0 */
/* Overlapping requests of one client wait for its older unconfirmed writes: see order.h. */
#include <string.h>

#include "compat/mooncake/order.h"

void wh_mooncake_order_open(struct wh_mooncake_order *order)
{
	wh_list_init(&order->writes);
	wh_list_init(&order->waiting);
	wh_list_init(&order->due);
	order->requests = 0;
}

void wh_mooncake_turn_open(struct wh_mooncake_turn *turn, uint64_t client)
{
	memset(turn, 0, sizeof(*turn));
	wh_list_init(&turn->waiters);
	turn->client = client;
}

/* Move all turns that wait for this one to `due`. */
static void turn_release(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn)
{
	struct wh_list *link;

	wh_list_remove(&turn->write);
	while ((link = wh_list_take(&turn->waiters)))
		wh_list_append(&order->due, link);
}

static void turn_stop_waiting(struct wh_mooncake_turn *turn)
{
	wh_list_remove(&turn->waiting);
	wh_list_remove(&turn->blocked);
}

void wh_mooncake_turn_close(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn)
{
	turn_stop_waiting(turn);
	turn_release(order, turn);
}

static bool turn_overlaps(const struct wh_mooncake_turn *turn, const struct wh_mooncake_turn *other)
{
	/* No overflow: the server has checked both ranges against the published memory. */
	return turn->address < other->address + other->length &&
	       other->address < turn->address + turn->length;
}

/* The newest older write that overlaps the request; NULL: none. When the newest is complete, the
 * others usually are, so the turn is seldom queued twice. */
static struct wh_mooncake_turn *turn_blocker(const struct wh_mooncake_order *order,
					     const struct wh_mooncake_turn *turn)
{
	for (struct wh_list *link = order->writes.prev; link != &order->writes; link = link->prev) {
		struct wh_mooncake_turn *write = wh_container(link, struct wh_mooncake_turn, write);

		if (write->number < turn->number && write->client == turn->client &&
		    turn_overlaps(write, turn))
			return write;
	}
	return NULL;
}

bool wh_mooncake_turn_begin(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn,
			    uint64_t address, uint64_t length, bool unconfirmed, int64_t now)
{
	struct wh_mooncake_turn *blocker;

	turn->number = ++order->requests;
	turn->address = address;
	turn->length = length;
	turn->moved = now;
	blocker = turn_blocker(order, turn);
	if (unconfirmed)
		wh_list_append(&order->writes, &turn->write);
	if (!blocker)
		return true;
	turn->since = now;
	wh_list_append(&order->waiting, &turn->waiting);
	wh_list_append(&blocker->waiters, &turn->blocked);
	return false;
}

void wh_mooncake_turn_moved(struct wh_mooncake_turn *turn, int64_t now)
{
	turn->moved = now;
}

void wh_mooncake_turn_end(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn)
{
	turn_release(order, turn);
}

struct wh_mooncake_turn *wh_mooncake_order_next(struct wh_mooncake_order *order)
{
	struct wh_list *link;

	while ((link = wh_list_take(&order->due))) {
		struct wh_mooncake_turn *turn =
			wh_container(link, struct wh_mooncake_turn, blocked);
		/* wh_mooncake_order_expire() has unlinked a turn that waited too long. */
		struct wh_mooncake_turn *blocker =
			turn->waiting.next ? turn_blocker(order, turn) : NULL;

		if (!blocker) {
			turn_stop_waiting(turn);
			return turn;
		}
		wh_list_append(&blocker->waiters, link);
	}
	return NULL;
}

unsigned wh_mooncake_order_expire(struct wh_mooncake_order *order, int64_t now)
{
	unsigned expired = 0;
	struct wh_list *next;

	for (struct wh_list *link = order->writes.next; link != &order->writes; link = next) {
		struct wh_mooncake_turn *write = wh_container(link, struct wh_mooncake_turn, write);

		next = link->next;
		/* A write that waits itself cannot receive bytes. */
		if (write->waiting.next || wh_list_empty(&write->waiters) ||
		    now - write->moved < WH_MOONCAKE_STILL)
			continue;
		turn_release(order, write);
		expired++;
	}
	while (!wh_list_empty(&order->waiting)) {
		struct wh_mooncake_turn *turn =
			wh_container(order->waiting.next, struct wh_mooncake_turn, waiting);

		if (now - turn->since < WH_MOONCAKE_WAIT)
			break;
		turn_stop_waiting(turn);
		wh_list_append(&order->due, &turn->blocked);
		expired++;
	}
	return expired;
}
