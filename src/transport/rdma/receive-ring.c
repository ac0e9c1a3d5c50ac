/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, owner: the receive ring, memory that one session's initiator writes notifications to, and
 * the checks of what its immediates announce. The initiator may write anything at any time: copy
 * before checking; an invalid notification ends the initiator's own session.
 *
 * All on loop 0, which also pins the memory: it is a few pages only. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "net/quota.h"
#include "transport/rdma/rdma.h"

#define ROOM ((size_t)WH_RDMA_RING_SLOTS * WH_RDMA_RING_SLOT)
#define RECEIVE_RINGS 1024u /* of one engine: 70 MB */

struct rdma_receive_ring {
	struct rdma *rdma;
	struct wh_quota *quota;
	unsigned char *slots;
	struct ibv_mr *mrs[RDMA_NICS];
};

static void ring_free(struct rdma_receive_ring *ring)
{
	for (unsigned i = 0; i < RDMA_NICS; i++)
		if (ring->mrs[i])
			ring->rdma->verbs->dereg_mr(ring->mrs[i]);
	if (ring->slots)
		munmap(ring->slots, ROOM);
	wh_quota_charge_queued(ring->quota, -(int64_t)ROOM);
	ring->rdma->receive_rings--;
	free(ring);
}

void rdma_receive_ring_close(struct rdma_receive_ring *ring)
{
	if (ring)
		ring_free(ring);
}

/* NULL: opened->error and its text say why. */
static struct rdma_receive_ring *ring_new(struct rdma *rdma, struct wh_quota *quota,
					  struct wh_rdma_ring_opened *opened)
{
	struct rdma_receive_ring *ring;
	int error = EIO;

	opened->error = -EBUSY;
	if (rdma->receive_rings >= RECEIVE_RINGS || !wh_quota_charge_queued(quota, (int64_t)ROOM)) {
		snprintf(opened->text, sizeof(opened->text), "%s",
			 rdma->receive_rings >= RECEIVE_RINGS ?
				 "all receive rings are in use by other peers" :
				 "the quota of its address is used up (setting max_buffered)");
		return NULL;
	}
	ring = calloc(1, sizeof(*ring));
	if (!ring) {
		wh_quota_charge_queued(quota, -(int64_t)ROOM);
		opened->error = -ENOMEM;
		snprintf(opened->text, sizeof(opened->text), "no memory");
		return NULL;
	}
	ring->rdma = rdma;
	ring->quota = quota;
	rdma->receive_rings++;
	ring->slots = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ring->slots == MAP_FAILED) {
		ring->slots = NULL;
		error = errno;
	}
	for (unsigned i = 0;
	     ring->slots && i < rdma->nic_count && opened->count < WH_RDMA_RING_KEYS; i++) {
		errno = EIO;
		ring->mrs[i] = wh_verbs_register(rdma->verbs, rdma->nics[i]->pd, ring->slots, ROOM,
						 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		if (ring->mrs[i])
			opened->keys[opened->count++] =
				(struct wh_rdma_ring_key){ i, ring->mrs[i]->rkey };
		else
			error = errno;
	}
	if (opened->count) {
		opened->error = 0;
		opened->address = (uintptr_t)ring->slots;
		return ring;
	}
	opened->error = -error;
	snprintf(opened->text, sizeof(opened->text), "the receive ring: %s%s", strerror(error),
		 error == ENOMEM ? " (ulimit -l)" : "");
	ring_free(ring);
	return NULL;
}

int rdma_receive_ring_open(struct wh_session *session, struct rdma_receive_ring **out)
{
	struct wh_rdma_ring_opened opened = { 0 };
	uint8_t bytes[WH_RDMA_RING_OPENED_MAX];

	if (*out)
		return -EPROTO;
	*out = ring_new(wh_engine_transport(wh_session_engine(session), WH_TRANSPORT_RDMA),
			wh_session_quota(session), &opened);
	return wh_control_send(wh_session_control(session), WH_FRAME_RDMA_RING_OPENED, 0, bytes,
			       wh_rdma_ring_opened_encode(bytes, &opened));
}

int rdma_receive_ring_take(struct wh_session *session, const struct rdma_receive_ring *ring,
			   uint32_t by, const struct ibv_wc *wc, uint64_t *last)
{
	uint32_t imm = ntohl(wc->imm_data);
	struct wh_rdma_notification notification;
	uint8_t head[WH_RDMA_NOTIFICATION_HEAD];
	const unsigned char *slot;

	if (!ring || wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || !(wc->wc_flags & IBV_WC_WITH_IMM) ||
	    wh_rdma_imm_slot(imm) < 0)
		return -EPROTO;
	slot = ring->slots + (size_t)wh_rdma_imm_slot(imm) * WH_RDMA_RING_SLOT;
	memcpy(head, slot, sizeof(head));
	__asm__ volatile("" : : "r"(head) : "memory"); /* the copy is checked, never the slot */
	/* Notifications of one connection arrive in order: a sequence that does not grow is a
	 * repetition. */
	if (wh_rdma_notification_decode(head, imm, &notification) || notification.sequence <= *last)
		return -EPROTO;
	*last = notification.sequence;
	return wh_session_notified_by_transport(session, by, notification.sequence,
						notification.tag, slot + WH_RDMA_NOTIFICATION_HEAD,
						notification.length);
}
