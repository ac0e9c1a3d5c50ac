/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, initiator: the owner's bounce buffers (bounce-server.c), memory that NICs read and write as
 * if these were the first regions of the peer. Their slots are leased to the passes of staging
 * (stage.c); waiters are served in order. All of it is under rdma_peer.lock, unless a function says
 * otherwise.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define ASK_AGAIN (5 * WH_SECOND) /* after a refusal */

/* ---- the bounce buffers ---------------------------------------------------------------------- */

void rdma_bounces_init(struct rdma_peer *rdma)
{
	for (unsigned i = 0; i < WH_RDMA_BOUNCES; i++) {
		struct rdma_remote_bounce *bounce = &rdma->bounces[i];

		bounce->region.entry.index = i;
		atomic_init(&bounce->region.entry.id, i);
		wh_list_init(&bounce->waits);
	}
}

struct wh_remote_region *rdma_remote_enter(struct rdma_peer *rdma, uint64_t id)
{
	struct wh_region_entry *entry;

	if (id < WH_RDMA_BOUNCES) {
		atomic_fetch_add(&rdma->bounces[id].region.entry.users, 1);
		return &rdma->bounces[id].region;
	}
	entry = wh_region_entry_enter(wh_peer_regions(rdma->peer), id);
	return entry ? wh_container(entry, struct wh_remote_region, entry) : NULL;
}

int rdma_bounce_request(struct rdma_peer *rdma, char why[WH_REFUSAL])
{
	if (rdma->bounces[0].region.entry.length)
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

static void bounce_open(struct rdma_remote_bounce *bounce, uint64_t address, unsigned slots)
{
	bounce->region.entry.address = address;
	bounce->region.entry.length = (uint64_t)slots * WH_RDMA_BOUNCE_SLOT;
	bounce->free = (1u << slots) - 1;
}

void rdma_bounce_opened(struct rdma_peer *rdma, const struct wh_rdma_bounce_opened *opened)
{
	pthread_mutex_lock(&rdma->lock);
	rdma->bounce_asked = false;
	rdma->bounce_error = opened->error;
	rdma->bounce_until = wh_now() + ASK_AGAIN;
	snprintf(rdma->bounce_why, sizeof(rdma->bounce_why), "%.180s", opened->text);
	if (!opened->error && !rdma->bounces[0].region.entry.length)
		bounce_open(&rdma->bounces[0], opened->address, opened->slots);
	wh_peer_reach_again(rdma->peer);
	pthread_mutex_unlock(&rdma->lock);
}

int rdma_bounce_opened_for_files(struct rdma_peer *rdma, unsigned number, uint64_t address,
				 uint64_t length)
{
	struct rdma_remote_bounce *bounce = &rdma->bounces[number];
	int error = 0;

	pthread_mutex_lock(&rdma->lock);
	if (!bounce->region.entry.length)
		bounce_open(bounce, address, (unsigned)(length / WH_RDMA_BOUNCE_SLOT));
	else if (bounce->region.entry.address != address || bounce->region.entry.length != length)
		error = -EPROTO;
	pthread_mutex_unlock(&rdma->lock);
	return error;
}

int rdma_bounce_of(const struct wh_remote_region *remote)
{
	const struct rdma_keys *keys =
		atomic_load_explicit(&remote->transport[WH_TRANSPORT_RDMA], memory_order_acquire);

	while (keys && keys->error != -WH_RDMA_STAGED_BY_OWNER)
		keys = keys->next;
	return keys ? keys->bounce : -1;
}

/* ---- leases ---------------------------------------------------------------------------------- */

static void lease_grant(struct rdma_lease *lease, unsigned slot)
{
	lease->bounce->leases[slot] = lease;
	lease->slot = slot;
	lease->held = true;
	lease->used = false;
}

/* A slot that is in use is free again: the next waiter gets it. */
static void bounce_free_slot(struct rdma_remote_bounce *bounce, unsigned slot)
{
	struct rdma_lease *next;

	bounce->leases[slot] = NULL;
	if (wh_list_empty(&bounce->waits)) {
		bounce->free |= 1u << slot;
		return;
	}
	next = wh_container(wh_list_take(&bounce->waits), struct rdma_lease, link);
	lease_grant(next, slot);
	next->have(next);
}

bool rdma_lease_acquire(struct rdma_lease *lease)
{
	struct rdma_remote_bounce *bounce = lease->bounce;
	unsigned slot;

	lease->lost = !bounce->region.entry.length;
	if (lease->lost || lease->cancelled)
		return true;
	if (!bounce->free) {
		wh_list_append(&bounce->waits, &lease->link);
		return false;
	}
	slot = (unsigned)__builtin_ctz(bounce->free);
	bounce->free &= ~(1u << slot);
	lease_grant(lease, slot);
	return true;
}

void rdma_lease_release(struct rdma_lease *lease)
{
	if (!lease->held || lease->lost)
		return;
	lease->held = false;
	bounce_free_slot(lease->bounce, lease->slot);
}

bool rdma_lease_yield(struct rdma_lease *lease)
{
	struct rdma_remote_bounce *bounce = lease->bounce;

	if (lease->lost || lease->cancelled || !lease->used || wh_list_empty(&bounce->waits))
		return false;
	rdma_lease_release(lease);
	wh_list_append(&bounce->waits, &lease->link);
	return true;
}

bool rdma_lease_abandon(struct rdma_lease *lease, bool asked)
{
	struct rdma_remote_bounce *bounce = lease->bounce;

	lease->cancelled = true;
	if (lease->link.next) {
		wh_list_remove(&lease->link);
		return true;
	}
	/* A GPU answers soon. */
	if (!asked || !lease->asked || !bounce->region.entry.index)
		return false;
	lease->asked = lease->held = false;
	bounce->leases[lease->slot] = NULL;
	bounce->abandoned |= 1u << lease->slot;
	return true;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Without the lock. */
void rdma_lease_copy(struct rdma_peer *rdma, struct rdma_lease *lease, const uint8_t *bytes,
		     size_t length)
{
	bool cancelled, sent;

	pthread_mutex_lock(&rdma->lock);
	cancelled = lease->cancelled;
	lease->asked = sent = !lease->lost && !cancelled;
	lease->used = true;
	/* Under the lock: the peer may be lost and come back meanwhile. */
	if (sent)
		sent = !wh_control_send(wh_peer_control(rdma->peer), WH_FRAME_RDMA_COPY, 0, bytes,
					length);
	if (!sent)
		lease->asked = false;
	pthread_mutex_unlock(&rdma->lock);
	if (!sent)
		lease->copied(lease, cancelled ? -ECANCELED : -ECONNRESET,
			      cancelled ? "cancelled" : "the peer is lost");
}

/* Without the lock; on loop 0. */
int rdma_lease_copied(struct rdma_peer *rdma, const struct wh_rdma_flushed *copied)
{
	struct rdma_remote_bounce *bounce;
	struct rdma_lease *lease;
	bool abandoned;
	unsigned slot;

	if (copied->number >= WH_RDMA_SLOTS)
		return -EPROTO;
	bounce = &rdma->bounces[copied->number / WH_RDMA_BOUNCE_SLOTS];
	slot = copied->number % WH_RDMA_BOUNCE_SLOTS;
	pthread_mutex_lock(&rdma->lock);
	lease = bounce->leases[slot];
	abandoned = bounce->abandoned & 1u << slot;
	if (abandoned) {
		bounce->abandoned &= ~(1u << slot);
		bounce_free_slot(bounce, slot);
	} else if (lease && lease->asked) {
		lease->asked = false;
	} else {
		lease = NULL;
	}
	pthread_mutex_unlock(&rdma->lock);
	if (abandoned)
		return 0;
	if (!lease)
		return -EPROTO;
	lease->copied(lease, copied->error, copied->text);
	return 0;
}

/* Nothing of the buffer is valid any more. Returns how many leases it has added to asked[], whose
 * `copied` the caller calls without the lock. */
static unsigned bounce_lost(struct rdma_peer *rdma, struct rdma_remote_bounce *bounce,
			    struct rdma_lease **asked)
{
	struct rdma_lease *lease;
	unsigned count = 0;

	for (unsigned i = 0; i < WH_RDMA_BOUNCE_SLOTS; i++) {
		lease = bounce->leases[i];
		bounce->leases[i] = NULL;
		if (!lease)
			continue;
		lease->lost = true;
		if (lease->asked)
			asked[count++] = lease;
		lease->asked = false;
	}
	while (!wh_list_empty(&bounce->waits)) {
		lease = wh_container(wh_list_take(&bounce->waits), struct rdma_lease, link);
		lease->lost = true;
		lease->have(lease);
	}
	bounce->free = bounce->abandoned = 0;
	bounce->region.entry.length = 0;
	rdma_region_gone(rdma->peer, rdma, &bounce->region);
	return count;
}

/* Without the lock; on loop 0, when nothing is in flight any more. */
void rdma_bounce_peer_lost(struct rdma_peer *rdma)
{
	struct rdma_lease *asked[WH_RDMA_SLOTS], *lease;
	unsigned count = 0;

	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < WH_RDMA_BOUNCES; i++)
		count += bounce_lost(rdma, &rdma->bounces[i], asked + count);
	rdma->bounce_asked = false;
	rdma->bounce_error = 0;
	pthread_mutex_unlock(&rdma->lock);
	while (count) {
		lease = asked[--count];
		lease->copied(lease, -ECONNRESET, "the peer is lost");
	}
}
