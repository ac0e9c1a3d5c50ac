/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, initiator: notifications that our NIC writes into the owner's receive ring, by an RDMA
 * write with an immediate, which completes a receive at the owner.
 *
 * A notification goes by the endpoint that carried all bytes of its batch, so neither the network
 * nor the owner's NIC or bus lets it pass them; a batch without bytes uses any endpoint. If the
 * batch is posted as a whole on one endpoint as it is submitted, its notification follows at once,
 * with the same doorbell. All others wait for the last byte, as notifications over the control
 * connection do.
 *
 * A slot is in use until the owner has confirmed its notification and our NIC has completed it.
 * There are as many slots, and receives of each owner's queue pair, as notifications may be
 * unconfirmed, so a receive is never missing. Those that are too long for a slot go over the
 * control connection. While notifications are in flight over the control connection, none go by
 * NIC, and vice versa, except after a failure: so they arrive in order.
 *
 * When an endpoint breaks, the owner destroys its queue pair. Until then it confirms each
 * notification that it delivers to the application; afterwards it drops those that it has not
 * delivered. So once both ends are down, the unconfirmed ones have not been delivered and are sent
 * again. A confirmation also means that the bytes written before the notification have arrived.
 * They are not sent again: the application may already have used and overwritten them. Bytes that
 * were read before it may still be missing.
 *
 * Under wh_notify_lock() and rdma_peer.lock, in this order, unless a function says otherwise. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define ROOM ((size_t)WH_RDMA_RING_SLOTS * WH_RDMA_RING_SLOT)

_Static_assert(WH_RDMA_RING_SLOTS == WH_NOTIFY_UNCONFIRMED,
	       "one slot, and one receive, for each unconfirmed notification");

static unsigned char *notify_slot(const struct rdma_notify *notify, unsigned slot)
{
	return notify->slots + (size_t)slot * WH_RDMA_RING_SLOT;
}

static const struct wh_rdma_ring_key *notify_key(const struct rdma_notify *notify, uint32_t nic)
{
	for (uint32_t i = 0; i < notify->remote.count; i++)
		if (notify->remote.keys[i].nic == nic)
			return &notify->remote.keys[i];
	return NULL;
}

/* The endpoint can send a notification of `length` bytes now, and it fits a slot. */
static bool endpoint_takes(const struct rdma_notify *notify, const struct rdma_endpoint *endpoint,
			   size_t length)
{
	return length <= WH_RDMA_NOTIFICATION_MAX && endpoint->state == RDMA_READY &&
	       endpoint->ring->head - endpoint->ring->tail < RDMA_DEPTH &&
	       notify_key(notify, endpoint->remote_nic) &&
	       (notify->mrs[endpoint->rail->nic->index] ||
		WH_RDMA_NOTIFICATION_HEAD + length <= endpoint->max_inline);
}

static int notify_free_slot(const struct rdma_notify *notify)
{
	for (unsigned i = 0; i < WH_RDMA_RING_SLOTS; i++)
		if (!notify->notifications[i].endpoint && !notify->notifications[i].in_flight)
			return (int)i;
	return -1;
}

static void notify_compose(struct rdma_endpoint *endpoint, unsigned slot,
			   const struct wh_batch *batch, uint64_t sequence,
			   struct ibv_send_wr *request, struct ibv_sge *segment)
{
	size_t length;
	const void *note = wh_batch_note(batch, &length);
	struct wh_rdma_notification head = { .sequence = sequence,
					     .tag = wh_batch_tag(batch),
					     .length = (uint32_t)length };
	struct rdma_notify *notify = &endpoint->peer->notify;
	struct rdma_notification *notification = &notify->notifications[slot];
	const struct ibv_mr *mr = notify->mrs[endpoint->rail->nic->index];
	unsigned char *bytes = notify_slot(notify, slot);

	wh_rdma_notification_encode(bytes, &head);
	memcpy(bytes + WH_RDMA_NOTIFICATION_HEAD, note, length);
	*segment = (struct ibv_sge){ .addr = (uintptr_t)bytes,
				     .length = (uint32_t)(WH_RDMA_NOTIFICATION_HEAD + length),
				     .lkey = mr ? mr->lkey : 0 };
	*request = (struct ibv_send_wr){ .wr_id = endpoint->ring->head,
					 .sg_list = segment,
					 .num_sge = 1,
					 .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
					 .imm_data = htonl(wh_rdma_imm(slot, sequence)) };
	request->wr.rdma.remote_addr = notify->remote.address + (uint64_t)slot * WH_RDMA_RING_SLOT;
	request->wr.rdma.rkey = notify_key(notify, endpoint->remote_nic)->key;
	if (segment->length <= endpoint->max_inline)
		request->send_flags = IBV_SEND_INLINE;
	*notification = (struct rdma_notification){ .endpoint = endpoint,
						    .sequence = sequence,
						    .at = endpoint->ring->head,
						    .in_flight = true };
	notify->unconfirmed++;
	endpoint->peer->unpolled++; /* its completion must make an event: no thread polls for it */
	endpoint->ring->works[endpoint->ring->head++ % RDMA_DEPTH] =
		(struct rdma_work){ .notification = (uint8_t)(slot + 1) };
}

/* ---- sent with the bytes --------------------------------------------------------------------- */

static bool fragment_is_only(const struct wh_fragment *fragment)
{
	const struct wh_batch *batch = fragment->batch;

	return wh_batch_fragment(batch, WH_TRANSPORT_COUNT, NULL) == fragment &&
	       !wh_batch_fragment(batch, WH_TRANSPORT_COUNT, fragment);
}

bool rdma_notify_can_follow(const struct rdma_peer *rdma, const struct wh_fragment *fragment)
{
	size_t length;

	return wh_batch_note(fragment->batch, &length) && fragment_is_only(fragment) &&
	       fragment->op == WH_WRITE && !fragment->whole && !atomic_load(&rdma->flushing);
}

void rdma_notify_prepare(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	struct rdma_notify *notify = &rdma->notify;

	notify->early = NULL;
	notify->early_endpoints = 0;
	if (notify->state == RDMA_NOTIFY_OPEN &&
	    wh_notify_can_send_early(fragment->batch, notify->unconfirmed))
		notify->early = fragment;
}

bool rdma_notify_send_early(struct rdma_endpoint *endpoint, const struct wh_fragment *fragment,
			    struct ibv_send_wr *request, struct ibv_sge *segment)
{
	struct rdma_notify *notify = &endpoint->peer->notify;
	struct wh_batch *batch = fragment->batch;
	int slot = notify_free_slot(notify);
	size_t length;

	notify->early_endpoints |= 1u << endpoint->index;
	if (fragment->cursor.left || !request)
		return false;
	notify->early = NULL;
	if (notify->early_endpoints != 1u << endpoint->index || atomic_load(&fragment->failed) ||
	    slot < 0 || !wh_batch_note(batch, &length) || !endpoint_takes(notify, endpoint, length))
		return false;
	notify_compose(endpoint, (unsigned)slot, batch,
		       wh_notify_send_early(batch, WH_TRANSPORT_RDMA), request, segment);
	return true;
}

/* ---- sent after the bytes -------------------------------------------------------------------- */

/* Send RING_OPEN, once a session, when a batch with a notification has gone by rdma. */
static void notify_ask(struct rdma_peer *rdma, const struct wh_batch *batch)
{
	const struct rdma_batch *kept = rdma_batch_of(batch);

	if (!(wh_peer_welcome(rdma->peer)->capabilities & WH_CAPABLE_RDMA_NOTIFY) ||
	    !rdma_endpoints_ready(rdma) || !kept || !atomic_load(&kept->tried))
		return;
	rdma->notify.state = RDMA_NOTIFY_ASKED;
	wh_control_send(wh_peer_control(rdma->peer), WH_FRAME_RDMA_RING_OPEN, 0, NULL, 0);
}

/* The endpoint that carried all bytes of the batch; any, if it has none. NULL: several carried
 * some, or it has no room, or the notification exceeds a slot. */
static struct rdma_endpoint *notify_endpoint_for(const struct rdma_peer *rdma,
						 const struct wh_batch *batch)
{
	struct rdma_endpoint *any = NULL;
	size_t length;

	wh_batch_note(batch, &length);
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		struct rdma_endpoint *endpoint = rdma->endpoints[i];
		uint64_t carried = rdma_batch_bytes(batch, i);

		for (unsigned n = i + 1; carried && n < rdma->endpoint_count; n++)
			if (rdma_batch_bytes(batch, n))
				return NULL;
		if (carried)
			return endpoint_takes(&rdma->notify, endpoint, length) ? endpoint : NULL;
		if (!any && endpoint_takes(&rdma->notify, endpoint, length))
			any = endpoint;
	}
	return any;
}

int rdma_notify_send(struct wh_peer *peer, void *state, struct wh_batch *batch, uint64_t sequence)
{
	struct rdma_peer *rdma = state;
	struct rdma_notify *notify = &rdma->notify;
	struct ibv_send_wr request;
	struct ibv_sge segment;
	struct rdma_endpoint *endpoint;
	int error = 0, slot;

	pthread_mutex_lock(&rdma->lock);
	if (notify->state == RDMA_NOTIFY_NONE)
		notify_ask(rdma, batch);
	endpoint = notify->state == RDMA_NOTIFY_OPEN ? notify_endpoint_for(rdma, batch) : NULL;
	slot = endpoint ? notify_free_slot(notify) : -1;
	if (slot < 0)
		error = notify->unconfirmed ? -EAGAIN : -EOPNOTSUPP;
	else if (wh_notify_unconfirmed(peer) != notify->unconfirmed)
		error = -EAGAIN; /* those over the control connection arrive first */
	if (!error) {
		bool idle = !rdma_endpoint_busy(endpoint);

		notify_compose(endpoint, (unsigned)slot, batch, sequence, &request, &segment);
		rdma_endpoint_post_notification(endpoint, &request, idle);
	}
	pthread_mutex_unlock(&rdma->lock);
	return error;
}

void rdma_notify_confirmed(struct wh_peer *peer, void *state, uint64_t sequence)
{
	struct rdma_peer *rdma = state;
	struct rdma_notify *notify = &rdma->notify;

	(void)peer;
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < WH_RDMA_RING_SLOTS; i++) {
		struct rdma_notification *notification = &notify->notifications[i];

		if (!notification->endpoint || notification->sequence != sequence)
			continue;
		if (notification->endpoint->ring->arrived <= notification->at)
			notification->endpoint->ring->arrived = notification->at + 1;
		notification->endpoint = NULL;
		notify->unconfirmed--;
	}
	pthread_mutex_unlock(&rdma->lock);
}

void rdma_notify_done(struct rdma_endpoint *endpoint, struct rdma_work *work)
{
	struct rdma_notification *notification =
		&endpoint->peer->notify.notifications[work->notification - 1];

	if (notification->in_flight)
		endpoint->peer->unpolled--;
	notification->in_flight = false;
}

/* ---- confirmed, or undelivered --------------------------------------------------------------- */

static struct rdma_notification *notify_oldest(struct rdma_notify *notify,
					       const struct rdma_endpoint *endpoint)
{
	struct rdma_notification *found = NULL;

	for (unsigned i = 0; i < WH_RDMA_RING_SLOTS; i++) {
		struct rdma_notification *notification = &notify->notifications[i];

		if (notification->endpoint == endpoint &&
		    (!found || notification->sequence < found->sequence))
			found = notification;
	}
	return found;
}

void rdma_notify_undelivered(struct rdma_endpoint *endpoint)
{
	struct rdma_peer *rdma = endpoint->peer;
	struct rdma_notify *notify = &rdma->notify;
	struct rdma_notification *notification;

	wh_notify_lock(rdma->peer);
	pthread_mutex_lock(&rdma->lock);
	while ((notification = notify_oldest(notify, endpoint))) {
		notification->endpoint = NULL;
		notify->unconfirmed--;
		wh_notify_undelivered(rdma->peer, notification->sequence);
	}
	pthread_mutex_unlock(&rdma->lock);
	wh_notify_unlock(rdma->peer);
}

void rdma_notify_lost(struct rdma_peer *rdma)
{
	struct rdma_notify *notify = &rdma->notify;

	memset(notify->notifications, 0, sizeof(notify->notifications));
	notify->unconfirmed = 0;
	notify->early = NULL;
	notify->state = RDMA_NOTIFY_NONE;
}

/* ---- opening and closing; on loop 0, without a lock ------------------------------------------ */

/* Whole pages, because they are pinned. A NIC that cannot register them sends inline only. */
static int notify_get_slots(struct rdma_peer *rdma)
{
	const struct rdma *all = rdma->rdma;
	struct rdma_notify *notify = &rdma->notify;
	void *memory;

	if (notify->slots)
		return 0;
	memory = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -errno;
	notify->slots = memory;
	for (unsigned i = 0; i < all->nic_count; i++)
		notify->mrs[i] = wh_verbs_register(all->verbs, all->nics[i]->pd, memory, ROOM, 0);
	return 0;
}

int rdma_ring_opened(struct rdma_peer *rdma, const struct wh_rdma_ring_opened *opened)
{
	struct rdma_notify *notify = &rdma->notify;
	int error = opened->error;
	bool asked;

	pthread_mutex_lock(&rdma->lock);
	asked = notify->state == RDMA_NOTIFY_ASKED;
	pthread_mutex_unlock(&rdma->lock);
	if (!asked)
		return -EPROTO;
	if (error)
		wh_log_line(wh_engine_log(rdma->rdma->engine), WH_LOG_INFO, "rdma",
			    "rdma to %s: no receive ring, notifications go over TCP: %s",
			    wh_peer_name(rdma->peer), opened->text);
	else
		error = notify_get_slots(rdma);
	pthread_mutex_lock(&rdma->lock);
	notify->remote = *opened;
	notify->state = error ? RDMA_NOTIFY_REFUSED : RDMA_NOTIFY_OPEN;
	pthread_mutex_unlock(&rdma->lock);
	return 0;
}

void rdma_notify_close(struct rdma_peer *rdma)
{
	struct rdma_notify *notify = &rdma->notify;

	for (unsigned i = 0; i < RDMA_NICS; i++)
		if (notify->mrs[i])
			rdma->rdma->verbs->dereg_mr(notify->mrs[i]);
	if (notify->slots)
		munmap(notify->slots, ROOM);
}
