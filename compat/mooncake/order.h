/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of requests that one client sends over several connections.
 *
 * Version 1 of the data protocol does not confirm writes. The client considers a write complete
 * when its kernel has the bytes, and sends its next request over another connection, often before
 * the write's last bytes have arrived here. So a request waits for older unconfirmed writes of the
 * same client address that are still incomplete and overlap its bytes. Requests wait only for older
 * ones, so there is no deadlock.
 *
 * The rest of a write may never arrive, so the wait is bounded: other requests stop waiting for a
 * write that has received no bytes for WH_MOONCAKE_STILL, and no request waits longer than
 * WH_MOONCAKE_WAIT in all. A client delays only requests from its own address.
 *
 * This module uses neither sockets nor clocks: its caller passes the time. One thread at a time may
 * call it.
 */
#ifndef WH_COMPAT_MOONCAKE_ORDER_H
#define WH_COMPAT_MOONCAKE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "util/clock.h"
#include "util/list.h"

#define WH_MOONCAKE_STILL WH_SECOND
#define WH_MOONCAKE_WAIT (10 * WH_SECOND)

/* One for each server. */
struct wh_mooncake_order {
	struct wh_list writes; /* turns with an unconfirmed write, oldest first, by `write` */
	struct wh_list waiting; /* turns whose request waits, oldest first, by `waiting` */
	struct wh_list due; /* turns that wh_mooncake_order_next() checks next, by `blocked` */
	uint64_t requests; /* number of the newest request */
};

/* The current request of one connection. A list link that is zero is in no list. */
struct wh_mooncake_turn {
	struct wh_list write; /* in order.writes */
	struct wh_list waiting; /* in order.waiting; zero: the request does not wait */
	struct wh_list blocked; /* in `waiters` of an older write, or in order.due */
	struct wh_list waiters; /* turns that wait for this write, by `blocked` */
	uint64_t client; /* address of the client: wh_address_prefix() */
	uint64_t number; /* of the request: an older one has a lower number */
	uint64_t address, length;
	int64_t since; /* when the request began to wait, ns */
	int64_t moved; /* when the write last received bytes, ns */
};

void wh_mooncake_order_open(struct wh_mooncake_order *order);

/* Initialise the turn of a new connection from `client`. */
void wh_mooncake_turn_open(struct wh_mooncake_turn *turn, uint64_t client);
/* The connection closes, with or without a request: release every turn that waits for it. */
void wh_mooncake_turn_close(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn);

/* Begin a request for [address, address+length). `unconfirmed`: a write that the client gets no
 * answer for; end it with wh_mooncake_turn_end(). True: run the request now. False: it waits until
 * wh_mooncake_order_next() returns it. */
bool wh_mooncake_turn_begin(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn,
			    uint64_t address, uint64_t length, bool unconfirmed, int64_t now);
/* The write has received bytes. */
void wh_mooncake_turn_moved(struct wh_mooncake_turn *turn, int64_t now);
/* The unconfirmed write is complete: release the turns that wait for it. */
void wh_mooncake_turn_end(struct wh_mooncake_order *order, struct wh_mooncake_turn *turn);

/* The next request that has waited and may run now; NULL: none. */
struct wh_mooncake_turn *wh_mooncake_order_next(struct wh_mooncake_order *order);
/* Stop waiting for stalled writes, and release requests that have waited too long. Call it several
 * times a second while requests wait. Returns how many limits were reached. */
unsigned wh_mooncake_order_expire(struct wh_mooncake_order *order, int64_t now);

#endif
