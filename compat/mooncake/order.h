/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of what one client asks for over several connections.
 *
 * Version 1 of the data protocol does not confirm writes: the client's write is over when its
 * kernel has the bytes, and what it asks for next comes over another connection, often before the
 * last of them have arrived here. So a request waits for the unconfirmed writes of the same address
 * that began before it, are not over and touch the same bytes. It waits for older requests only:
 * requests cannot wait for each other in a circle.
 *
 * The wait is bounded, because the rest of a write may never come: a write that is still for
 * WH_MOONCAKE_STILL is not waited for any longer, and no request waits for more than
 * WH_MOONCAKE_WAIT in all. A client delays requests of its own address alone.
 *
 * Nothing here knows sockets or clocks. One thread.
 */
#ifndef WH_COMPAT_MOONCAKE_ORDER_H
#define WH_COMPAT_MOONCAKE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "util/clock.h"
#include "util/list.h"

#define WH_MOONCAKE_STILL WH_SECOND
#define WH_MOONCAKE_WAIT (10 * WH_SECOND)

/* Of a server. */
struct wh_mooncake_order {
	struct wh_list writes; /* unconfirmed ones that others wait for, the oldest first */
	struct wh_list waiting; /* requests, the oldest first */
	/* requests that waited for a write that is over: see wh_mooncake_order_next() */
	struct wh_list due;
	uint64_t requests; /* so far */
};

/* The current request of a connection. */
struct wh_mooncake_turn {
	struct wh_list write; /* in order.writes; zero: not there */
	struct wh_list waiting; /* in order.waiting; zero: it does not wait */
	/* in `waiters` of another, or in order.due; zero: it does not wait */
	struct wh_list blocked;
	struct wh_list waiters; /* those that wait for this one, by `blocked` */
	uint64_t client; /* its address: wh_address_prefix() */
	uint64_t number; /* of the request: an older one has a lower number */
	uint64_t address, length;
	int64_t since; /* when it began to wait */
	int64_t moved; /* when bytes of the write came last */
};

void wh_mooncake_order_open(struct wh_mooncake_order *order);

/* A connection of that client; no request yet. */
void wh_mooncake_turn_open(struct wh_mooncake_turn *turn, uint64_t client);
/* The connection ends, whatever it was doing: nobody waits for it any longer. */
void wh_mooncake_turn_close(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn);

/* A request for these bytes has come. `unconfirmed`: it is a write of which the client does not
 * learn when it is over; wh_mooncake_turn_end() has to be called then. True: do it now. False: it
 * waits, until wh_mooncake_order_next() returns it. */
bool wh_mooncake_turn_begin(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn,
			    uint64_t address, uint64_t length, bool unconfirmed, int64_t now);
/* Bytes of it have come. */
void wh_mooncake_turn_moved(struct wh_mooncake_turn *turn, int64_t now);
/* It is over. */
void wh_mooncake_turn_end(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn);

/* The next request that has waited and is to be done now; NULL: none. */
struct wh_mooncake_turn *wh_mooncake_order_next(struct wh_mooncake_order *order);
/* Give up writes that are still, and let requests go that have waited for too long: to be called
 * several times a second for as long as requests wait. How many bounds were reached. */
unsigned wh_mooncake_order_expire(struct wh_mooncake_order *order, int64_t now);

#endif
