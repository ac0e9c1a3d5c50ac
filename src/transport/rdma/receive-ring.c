/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma, the owner's half of letters: a mailbox, which is memory that one session's initiator writes
 * to, and what its immediates say is in there. The initiator may write anything at any time: what
 * is looked at is copied first, and what is wrong with it ends its own session.
 *
 * All on loop 0. Memory is pinned there as queue pairs are made there: it is but a few pages.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "transport/rdma/rdma.h"

#define ROOM ((size_t)WH_RDMA_RING_SLOTS * WH_RDMA_RING_SLOT)
#define MAILBOXES 1024u /* of one engine: 70 MB */

struct rdma_receive_ring {
	struct rdma *rdma;
	struct wh_quota *guest;
	unsigned char *slots;
	struct ibv_mr *mrs[RDMA_NICS];
};

static void box_free(struct rdma_receive_ring *box)
{
	for (unsigned i = 0; i < RDMA_NICS; i++)
		if (box->mrs[i])
			box->rdma->verbs->dereg_mr(box->mrs[i]);
	if (box->slots)
		munmap(box->slots, ROOM);
	wh_quota_charge_queued(box->guest, -(int64_t)ROOM);
	box->rdma->mailboxes--;
	free(box);
}

void rdma_receive_ring_close(struct rdma_receive_ring *box)
{
	if (box)
		box_free(box);
}

/* NULL and why not. */
static struct rdma_receive_ring *box_new(struct rdma *rdma, struct wh_quota *guest,
					 struct wh_rdma_ring_opened *mailed)
{
	struct rdma_receive_ring *box;
	int error = EIO;

	mailed->error = -EBUSY;
	if (rdma->mailboxes >= MAILBOXES || !wh_quota_charge_queued(guest, (int64_t)ROOM)) {
		snprintf(mailed->text, sizeof(mailed->text), "%s",
			 rdma->mailboxes >= MAILBOXES ?
				 "other peers have all mailboxes" :
				 "what may wait for its address (the knob held) is used up");
		return NULL;
	}
	box = calloc(1, sizeof(*box));
	if (!box) {
		wh_quota_charge_queued(guest, -(int64_t)ROOM);
		mailed->error = -ENOMEM;
		snprintf(mailed->text, sizeof(mailed->text), "no memory");
		return NULL;
	}
	box->rdma = rdma;
	box->guest = guest;
	rdma->mailboxes++;
	box->slots = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (box->slots == MAP_FAILED) {
		box->slots = NULL;
		error = errno;
	}
	for (unsigned i = 0; box->slots && i < rdma->nic_count && mailed->count < WH_RDMA_RING_KEYS;
	     i++) {
		errno = EIO;
		box->mrs[i] = wh_verbs_register(rdma->verbs, rdma->nics[i]->pd, box->slots, ROOM,
						IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		if (box->mrs[i])
			mailed->keys[mailed->count++] =
				(struct wh_rdma_ring_key){ i, box->mrs[i]->rkey };
		else
			error = errno;
	}
	if (mailed->count) {
		mailed->error = 0;
		mailed->address = (uintptr_t)box->slots;
		return box;
	}
	mailed->error = -error;
	snprintf(mailed->text, sizeof(mailed->text), "a mailbox: %s%s", strerror(error),
		 error == ENOMEM ? " (ulimit -l)" : "");
	box_free(box);
	return NULL;
}

int rdma_receive_ring_frame(struct wh_session *session, struct rdma_receive_ring **mine)
{
	struct wh_rdma_ring_opened mailed = { 0 };
	uint8_t bytes[WH_RDMA_RING_OPENED_MAX];

	if (*mine)
		return -EPROTO;
	*mine = box_new(session->engine->transport[WH_TRANSPORT_RDMA], session->guest, &mailed);
	return wh_control_send(&session->control, WH_FRAME_RDMA_RING_OPENED, 0, bytes,
			       wh_rdma_ring_opened_encode(bytes, &mailed));
}

int rdma_receive_ring_take(struct wh_session *session, const struct rdma_receive_ring *box,
			   uint32_t by, const struct ibv_wc *wc, uint64_t *last)
{
	uint32_t imm = ntohl(wc->imm_data);
	struct wh_rdma_notification letter;
	uint8_t head[WH_RDMA_NOTIFICATION_HEAD];
	const unsigned char *slot;

	if (!box || wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || !(wc->wc_flags & IBV_WC_WITH_IMM) ||
	    wh_rdma_imm_slot(imm) < 0)
		return -EPROTO;
	slot = box->slots + (size_t)wh_rdma_imm_slot(imm) * WH_RDMA_RING_SLOT;
	memcpy(head, slot, sizeof(head));
	__asm__ volatile("" : : "r"(head) : "memory"); /* and looked at nowhere else */
	/* One connection's letters come in their order: what does not grow has been there before.
	 */
	if (wh_rdma_notification_decode(head, imm, &letter) || letter.sequence <= *last)
		return -EPROTO;
	*last = letter.sequence;
	return wh_session_notified_by_transport(session, by, letter.sequence,
						slot + WH_RDMA_NOTIFICATION_HEAD, letter.length);
}
