/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/lent.h: memory that an initiator lends to an owner on its host, for the bytes of the
 * owner's files
 *
 * The initiator makes a memfd of slots for one peer, and sends its descriptor over the owner's unix
 * socket (transport/shm/lend.c). A request for a file then names one of the slots: the owner reads
 * the file straight into it, or writes the file straight out of it, and the sockets carry no bytes
 * of the file. Nothing else lies in that memory, so the owner sees nothing that is not meant for
 * it.
 *
 * The owner touches the slots by system calls only. A CPU that touches memory of another process's
 * file may get SIGBUS, whatever the file's seals say, where the kernel finds no page for it; a
 * system call returns EFAULT.
 */
#ifndef WH_TRANSPORT_LENT_H
#define WH_TRANSPORT_LENT_H

#include <stdatomic.h>
#include <stdint.h>

#include "wire/wire.h"

/* Of a peer that this engine lends to. An owner accepts up to WH_REQUEST_SLOTS. */
#define WH_LENT_SLOTS 16u

/* ---- the owner ------------------------------------------------------------------------------ */

/* A session's mapping. It stays while the session or a read or write of a file uses it. */
struct wh_lent {
	_Atomic uint32_t users;
	uint32_t count; /* slots of WH_SLOT bytes each */
	char *base;
};

/* Map the descriptor, which stays the caller's, and hold the mapping once. The caller has checked
 * that it has the bytes. 0, or a negative errno. */
int wh_lent_map(int fd, uint32_t count, struct wh_lent **out);
void wh_lent_hold(struct wh_lent *lent);
/* NULL is allowed. The last one unmaps it. Any thread, as holding. */
void wh_lent_release(struct wh_lent *lent);
/* The first byte of slot `number`, from 1 to `count`. */
char *wh_lent_slot(const struct wh_lent *lent, uint32_t number);

/* ---- the initiator -------------------------------------------------------------------------- */

struct wh_lender {
	int fd; /* the memfd, sealed against shrinking and growing */
	char *base;
	_Atomic uint64_t free; /* a bit for each free slot */
	_Atomic uint64_t touched; /* a bit for each slot that has its pages */
};

/* Make WH_LENT_SLOTS slots; they get their pages when they are taken first. 0, or a negative errno.
 */
int wh_lender_open(struct wh_lender *lender);
/* No request uses a slot any more. Does nothing to one that is all zeroes. */
void wh_lender_close(struct wh_lender *lender);
/* Take a slot. Returns its number, from 1; 0: none is free. Any thread, as giving back. */
uint32_t wh_lender_take(struct wh_lender *lender);
void wh_lender_give(struct wh_lender *lender, uint32_t number);
char *wh_lender_slot(const struct wh_lender *lender, uint32_t number);

#endif
