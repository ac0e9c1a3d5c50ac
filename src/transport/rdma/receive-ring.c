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

#define ROOM ((size_t)WH_RDMA_LETTERS * WH_RDMA_LETTER_SLOT)
#define MAILBOXES 1024u /* of one engine: 70 MB */

struct rdma_mailbox {
	struct rdma *rdma;
	struct wh_guest *guest;
	unsigned char *slots;
	struct ibv_mr *mrs[RDMA_NICS];
};

static void box_free(struct rdma_mailbox *box)
{
	for (unsigned i = 0; i < RDMA_NICS; i++)
		if (box->mrs[i])
			box->rdma->verbs->dereg_mr(box->mrs[i]);
	if (box->slots)
		munmap(box->slots, ROOM);
	wh_guest_queue(box->guest, -(int64_t)ROOM);
	box->rdma->mailboxes--;
	free(box);
}

void rdma_mailbox_close(struct rdma_mailbox *box)
{
	if (box)
		box_free(box);
}

/* NULL and why not. */
static struct rdma_mailbox *box_new(struct rdma *rdma, struct wh_guest *guest,
				    struct wh_rdma_mailed *mailed)
{
	struct rdma_mailbox *box;
	int error = EIO;

	mailed->error = -EBUSY;
	if (rdma->mailboxes >= MAILBOXES || !wh_guest_queue(guest, (int64_t)ROOM)) {
		snprintf(mailed->text, sizeof(mailed->text), "%s",
			 rdma->mailboxes >= MAILBOXES ?
				 "other peers have all mailboxes" :
				 "what may wait for its address (the knob held) is used up");
		return NULL;
	}
	box = calloc(1, sizeof(*box));
	if (!box) {
		wh_guest_queue(guest, -(int64_t)ROOM);
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
	for (unsigned i = 0; box->slots && i < rdma->nic_count && mailed->count < WH_RDMA_MAIL_KEYS;
	     i++) {
		errno = EIO;
		box->mrs[i] = wh_verbs_register(rdma->verbs, rdma->nics[i]->pd, box->slots, ROOM,
						IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		if (box->mrs[i])
			mailed->keys[mailed->count++] =
				(struct wh_rdma_mail_key){ i, box->mrs[i]->rkey };
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

int rdma_mailbox_frame(struct wh_session *session, struct rdma_mailbox **mine)
{
	struct wh_rdma_mailed mailed = { 0 };
	uint8_t bytes[WH_RDMA_MAILED_MAX];

	if (*mine)
		return -EPROTO;
	*mine = box_new(session->engine->transport[WH_TRANSPORT_RDMA], session->guest, &mailed);
	return wh_control_send(&session->control, WH_FRAME_RDMA_MAILED, 0, bytes,
			       wh_rdma_mailed_encode(bytes, &mailed));
}

int rdma_mailbox_letter(struct wh_session *session, const struct rdma_mailbox *box, uint32_t by,
			const struct ibv_wc *wc, uint64_t *last)
{
	uint32_t imm = ntohl(wc->imm_data);
	struct wh_rdma_letter letter;
	uint8_t head[WH_RDMA_LETTER_HEAD];
	const unsigned char *slot;

	if (!box || wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || !(wc->wc_flags & IBV_WC_WITH_IMM) ||
	    wh_rdma_imm_slot(imm) < 0)
		return -EPROTO;
	slot = box->slots + (size_t)wh_rdma_imm_slot(imm) * WH_RDMA_LETTER_SLOT;
	memcpy(head, slot, sizeof(head));
	__asm__ volatile("" : : "r"(head) : "memory"); /* and looked at nowhere else */
	/* One connection's letters come in their order: what does not grow has been there before.
	 */
	if (wh_rdma_letter_decode(head, imm, &letter) || letter.sequence <= *last)
		return -EPROTO;
	*last = letter.sequence;
	return wh_session_letter(session, by, letter.sequence, slot + WH_RDMA_LETTER_HEAD,
				 letter.length);
}
