/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, initiator: the owner's bounce buffer (bounce-server.c), pinned memory that NICs read and
 * write as if it were region 0 of the peer. Its slots are leased to the passes of staging
 * (stage.c); waiters are served in order. All of it is under rdma_peer.lock, unless a function says
 * otherwise.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define ASK_AGAIN (5 * WH_SECOND) /* after a refusal */

/* ---- the bounce buffer ----------------------------------------------------------------------- */

struct wh_remote_region *rdma_remote_enter(struct rdma_peer *rdma, uint64_t id)
{
	struct wh_region_entry *entry;

	if (!id) {
		atomic_fetch_add(&rdma->bounce.entry.users, 1);
		return &rdma->bounce;
	}
	entry = wh_region_entry_enter(wh_peer_regions(rdma->peer), id);
	return entry ? wh_container(entry, struct wh_remote_region, entry) : NULL;
}

int rdma_bounce_request(struct rdma_peer *rdma, char why[WH_REFUSAL])
{
	if (rdma->bounce.entry.length)
		return 0;
	if (rdma->bounce_error && wh_now() < rdma->bounce_until) {
		snprintf(why, WH_REFUSAL, "the owner stages its GPU memory, but %.150s",
			 rdma->bounce_why);
		return rdma->bounce_error;
	}
	if (rdma->bounce_asked)
		return -EAGAIN;
	rdma->bounce_asked = true;
	rdma->bounce_error = 0;
	if (!wh_control_send(wh_peer_control(rdma->peer), WH_FRAME_RDMA_BOUNCE_OPEN, 0, NULL, 0))
		return -EAGAIN;
	snprintf(why, WH_REFUSAL, "the peer is lost");
	return -ECONNRESET;
}

void rdma_bounce_opened(struct rdma_peer *rdma, const struct wh_rdma_bounce_opened *opened)
{
	pthread_mutex_lock(&rdma->lock);
	rdma->bounce_asked = false;
	rdma->bounce_error = opened->error;
	rdma->bounce_until = wh_now() + ASK_AGAIN;
	snprintf(rdma->bounce_why, sizeof(rdma->bounce_why), "%.180s", opened->text);
	if (!opened->error && !rdma->bounce.entry.length) {
		rdma->bounce.entry.address = opened->address;
		rdma->bounce.entry.length = (uint64_t)opened->slots * WH_RDMA_BOUNCE_SLOT;
		rdma->bounce_free = (1u << opened->slots) - 1;
	}
	pthread_cond_broadcast(&rdma->changed);
	pthread_mutex_unlock(&rdma->lock);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static void lease_grant(struct rdma_peer *rdma, struct rdma_lease *lease, unsigned slot)
{
	rdma->bounce_free &= ~(1u << slot);
	rdma->leases[slot] = lease;
	lease->slot = slot;
	lease->held = true;
	lease->used = false;
}

bool rdma_lease_acquire(struct rdma_peer *rdma, struct rdma_lease *lease)
{
	lease->lost = !rdma->bounce.entry.length;
	if (lease->lost)
		return true;
	if (!rdma->bounce_free) {
		wh_list_append(&rdma->bounce_waits, &lease->link);
		return false;
	}
	lease_grant(rdma, lease, (unsigned)__builtin_ctz(rdma->bounce_free));
	return true;
}

void rdma_lease_release(struct rdma_peer *rdma, struct rdma_lease *lease)
{
	struct rdma_lease *next;

	if (!lease->held || lease->lost)
		return;
	lease->held = false;
	rdma->leases[lease->slot] = NULL;
	rdma->bounce_free |= 1u << lease->slot;
	if (wh_list_empty(&rdma->bounce_waits))
		return;
	next = wh_container(wh_list_take(&rdma->bounce_waits), struct rdma_lease, link);
	lease_grant(rdma, next, lease->slot);
	next->have(next);
}

bool rdma_lease_yield(struct rdma_peer *rdma, struct rdma_lease *lease)
{
	if (lease->lost || !lease->used || wh_list_empty(&rdma->bounce_waits))
		return false;
	rdma_lease_release(rdma, lease);
	wh_list_append(&rdma->bounce_waits, &lease->link);
	return true;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Without the lock. */
void rdma_lease_copy(struct rdma_peer *rdma, struct rdma_lease *lease, const uint8_t *bytes,
		     size_t length)
{
	bool sent;

	pthread_mutex_lock(&rdma->lock);
	lease->asked = sent = !lease->lost;
	lease->used = true;
	/* Under the lock: the peer may be lost and come back meanwhile. */
	if (sent)
		sent = !wh_control_send(wh_peer_control(rdma->peer), WH_FRAME_RDMA_COPY, 0, bytes,
					length);
	if (!sent)
		lease->asked = false;
	pthread_mutex_unlock(&rdma->lock);
	if (!sent)
		lease->copied(lease, -ECONNRESET, "the peer is lost");
}

/* Without the lock; on loop 0. */
int rdma_lease_copied(struct rdma_peer *rdma, const struct wh_rdma_flushed *copied)
{
	struct rdma_lease *lease;

	if (copied->number >= WH_RDMA_BOUNCE_SLOTS)
		return -EPROTO;
	pthread_mutex_lock(&rdma->lock);
	lease = rdma->leases[copied->number];
	if (!lease || !lease->asked) {
		pthread_mutex_unlock(&rdma->lock);
		return -EPROTO;
	}
	lease->asked = false;
	pthread_mutex_unlock(&rdma->lock);
	lease->copied(lease, copied->error, copied->text);
	return 0;
}

/* Without the lock; on loop 0, when nothing is in flight any more. */
void rdma_bounce_peer_lost(struct rdma_peer *rdma)
{
	struct rdma_lease *asked[WH_RDMA_BOUNCE_SLOTS], *lease;
	unsigned count = 0;

	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++) {
		lease = rdma->leases[i];
		rdma->leases[i] = NULL;
		if (!lease)
			continue;
		lease->lost = true;
		if (lease->asked)
			asked[count++] = lease;
		lease->asked = false;
	}
	while (!wh_list_empty(&rdma->bounce_waits)) {
		lease = wh_container(wh_list_take(&rdma->bounce_waits), struct rdma_lease, link);
		lease->lost = true;
		lease->have(lease);
	}
	rdma->bounce_asked = false;
	rdma->bounce_error = 0;
	rdma->bounce_free = 0;
	rdma->bounce.entry.length = 0;
	rdma_region_gone(rdma->peer, rdma, &rdma->bounce);
	pthread_mutex_unlock(&rdma->lock);
	while (count) {
		lease = asked[--count];
		lease->copied(lease, -ECONNRESET, "the peer is lost");
	}
}
