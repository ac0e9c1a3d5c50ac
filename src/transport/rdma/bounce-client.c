/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma, the initiator's half of a desk (bounce-server.c): pinned memory of the owner's, which NICs
 * read and write as if it were a region of the peer's, with the number 0. Its slots are lent to
 * whatever stages; what waits for one has it in its turn. All of it under rdma_peer.lock, unless it
 * says otherwise.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define ASK_AGAIN (5 * WH_SECOND) /* after a refusal */

/* ---- the desk
 * ------------------------------------------------------------------------------------ */

struct wh_remote_region *rdma_enter(struct rdma_peer *rdma, uint64_t id)
{
	struct wh_region_entry *place;

	if (!id) {
		atomic_fetch_add(&rdma->desk.place.users, 1);
		return &rdma->desk;
	}
	place = wh_region_entry_enter(&rdma->peer->regions, id);
	return place ? wh_container(place, struct wh_remote_region, place) : NULL;
}

int rdma_bounce_known(struct rdma_peer *rdma, char why[WH_REFUSAL])
{
	if (rdma->desk.place.length)
		return 0;
	if (rdma->desk_error && wh_now() < rdma->desk_until) {
		snprintf(why, WH_REFUSAL, "its GPU's memory is staged there, but %.150s",
			 rdma->desk_why);
		return rdma->desk_error;
	}
	if (rdma->desk_asked)
		return -EAGAIN;
	rdma->desk_asked = true;
	rdma->desk_error = 0;
	if (!wh_control_send(&rdma->peer->control, WH_FRAME_RDMA_BOUNCE_OPEN, 0, NULL, 0))
		return -EAGAIN;
	snprintf(why, WH_REFUSAL, "the peer is lost");
	return -ECONNRESET;
}

void rdma_bounce_opened(struct rdma_peer *rdma, const struct wh_rdma_bounce_opened *desked)
{
	pthread_mutex_lock(&rdma->lock);
	rdma->desk_asked = false;
	rdma->desk_error = desked->error;
	rdma->desk_until = wh_now() + ASK_AGAIN;
	snprintf(rdma->desk_why, sizeof(rdma->desk_why), "%.180s", desked->text);
	if (!desked->error && !rdma->desk.place.length) {
		rdma->desk.place.address = desked->address;
		rdma->desk.place.length = (uint64_t)desked->slots * WH_RDMA_BOUNCE_SLOT;
		rdma->desk_free = (1u << desked->slots) - 1;
	}
	pthread_cond_broadcast(&rdma->changed);
	pthread_mutex_unlock(&rdma->lock);
}

/* ---- loans
 * ----------------------------------------------------------------------------------------- */

static void lend(struct rdma_peer *rdma, struct rdma_lease *loan, unsigned slot)
{
	rdma->desk_free &= ~(1u << slot);
	rdma->loans[slot] = loan;
	loan->slot = slot;
	loan->held = true;
	loan->used = false;
}

bool rdma_lease_acquire(struct rdma_peer *rdma, struct rdma_lease *loan)
{
	loan->lost = !rdma->desk.place.length;
	if (loan->lost)
		return true;
	if (!rdma->desk_free) {
		wh_list_append(&rdma->desk_waits, &loan->link);
		return false;
	}
	lend(rdma, loan, (unsigned)__builtin_ctz(rdma->desk_free));
	return true;
}

void rdma_lease_release(struct rdma_peer *rdma, struct rdma_lease *loan)
{
	struct rdma_lease *next;

	if (!loan->held || loan->lost)
		return;
	loan->held = false;
	rdma->loans[loan->slot] = NULL;
	rdma->desk_free |= 1u << loan->slot;
	if (wh_list_empty(&rdma->desk_waits))
		return;
	next = wh_container(wh_list_take(&rdma->desk_waits), struct rdma_lease, link);
	lend(rdma, next, loan->slot);
	next->have(next);
}

bool rdma_lease_yield(struct rdma_peer *rdma, struct rdma_lease *loan)
{
	if (loan->lost || !loan->used || wh_list_empty(&rdma->desk_waits))
		return false;
	rdma_lease_release(rdma, loan);
	wh_list_append(&rdma->desk_waits, &loan->link);
	return true;
}

/* ---- copies
 * ---------------------------------------------------------------------------------------- */

/* Without the lock. */
void rdma_lease_copy(struct rdma_peer *rdma, struct rdma_lease *loan, const uint8_t *bytes,
		     size_t length)
{
	bool sent;

	pthread_mutex_lock(&rdma->lock);
	loan->asked = sent = !loan->lost;
	loan->used = true;
	/* Under the lock, so that it is not sent to a peer that has come back meanwhile. */
	if (sent)
		sent = !wh_control_send(&rdma->peer->control, WH_FRAME_RDMA_COPY, 0, bytes, length);
	if (!sent)
		loan->asked = false;
	pthread_mutex_unlock(&rdma->lock);
	if (!sent)
		loan->copied(loan, -ECONNRESET, "the peer is lost");
}

/* Without the lock; on loop 0. */
int rdma_copied(struct rdma_peer *rdma, const struct wh_rdma_flushed *copied)
{
	struct rdma_lease *loan;

	if (copied->number >= WH_RDMA_BOUNCE_SLOTS)
		return -EPROTO;
	pthread_mutex_lock(&rdma->lock);
	loan = rdma->loans[copied->number];
	if (!loan || !loan->asked) {
		pthread_mutex_unlock(&rdma->lock);
		return -EPROTO;
	}
	loan->asked = false;
	pthread_mutex_unlock(&rdma->lock);
	loan->copied(loan, copied->error, copied->text);
	return 0;
}

/* Without the lock; on loop 0, when nothing is on its way any more. */
void rdma_bounce_lost(struct rdma_peer *rdma)
{
	struct rdma_lease *asked[WH_RDMA_BOUNCE_SLOTS], *loan;
	unsigned count = 0;

	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++) {
		loan = rdma->loans[i];
		rdma->loans[i] = NULL;
		if (!loan)
			continue;
		loan->lost = true;
		if (loan->asked)
			asked[count++] = loan;
		loan->asked = false;
	}
	while (!wh_list_empty(&rdma->desk_waits)) {
		loan = wh_container(wh_list_take(&rdma->desk_waits), struct rdma_lease, link);
		loan->lost = true;
		loan->have(loan);
	}
	rdma->desk_asked = false;
	rdma->desk_error = 0;
	rdma->desk_free = 0;
	rdma->desk.place.length = 0;
	rdma_region_gone(rdma->peer, rdma, &rdma->desk);
	pthread_mutex_unlock(&rdma->lock);
	while (count) {
		loan = asked[--count];
		loan->copied(loan, -ECONNRESET, "the peer is lost");
	}
}
