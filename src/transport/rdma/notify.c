/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma, the initiator's half of letters: notifications that our NIC writes into a mailbox of the
 * owner's, by a write with an immediate, which tells the owner of it.
 *
 * A letter goes by the line that carried all of its batch's bytes, so that neither the network nor
 * the owner's NIC or bus lets it pass them; one without bytes goes by any line. If the batch is
 * posted as a whole on one line as it is submitted, its letter follows at once, with the same
 * doorbell. All others wait for the last byte, as notifications over the control connection do.
 *
 * A slot is one letter's until the owner has confirmed it (the owner has taken the bytes out), and
 * ours is until the NIC is done as well. There are as many slots, and receives at the owner's end
 * of each line, as notifications may be on their way, so that no receive is missing. Letters are
 * not sent while others are on their way over the control connection, nor the other way round, save
 * after a failure: so they arrive as they were sent.
 *
 * What a line that broke may have delivered is known once the owner has destroyed its end: it has
 * confirmed before all that somebody has been told of, and has forgotten the rest. So a
 * confirmation also means that the bytes before the letter have arrived, and they are not sent
 * again: their owner may have gone on already.
 *
 * Under peer.note_lock and rdma_peer.lock, in this order, unless it says otherwise.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define ROOM ((size_t)WH_RDMA_RING_SLOTS * WH_RDMA_RING_SLOT)

static unsigned char *slot_at(const struct rdma_notify *mail, unsigned slot)
{
	return mail->slots + (size_t)slot * WH_RDMA_RING_SLOT;
}

static const struct wh_rdma_ring_key *key_of(const struct rdma_notify *mail, uint32_t nic)
{
	for (uint32_t i = 0; i < mail->theirs.count; i++)
		if (mail->theirs.keys[i].nic == nic)
			return &mail->theirs.keys[i];
	return NULL;
}

/* Can it take a letter of so many bytes now? */
static bool takes(const struct rdma_notify *mail, const struct rdma_endpoint *line, size_t length)
{
	return line->state == RDMA_READY && line->ring->head - line->ring->tail < RDMA_DEPTH &&
	       key_of(mail, line->nic) &&
	       (mail->mrs[line->rail->nic->index] ||
		WH_RDMA_NOTIFICATION_HEAD + length <= line->inlined);
}

static int free_slot(const struct rdma_notify *mail)
{
	for (unsigned i = 0; i < WH_RDMA_RING_SLOTS; i++)
		if (!mail->letters[i].line && !mail->letters[i].flying)
			return (int)i;
	return -1;
}

static void compose(struct rdma_endpoint *line, unsigned slot, const struct wh_batch *batch,
		    uint64_t sequence, struct ibv_send_wr *request, struct ibv_sge *segment)
{
	struct wh_rdma_notification head = { .sequence = sequence,
					     .length = (uint32_t)batch->note_length };
	struct rdma_notify *mail = &line->peer->mail;
	struct rdma_notification *letter = &mail->letters[slot];
	const struct ibv_mr *mr = mail->mrs[line->rail->nic->index];
	unsigned char *bytes = slot_at(mail, slot);

	wh_rdma_notification_encode(bytes, &head);
	memcpy(bytes + WH_RDMA_NOTIFICATION_HEAD, batch->note, batch->note_length);
	*segment = (struct ibv_sge){ .addr = (uintptr_t)bytes,
				     .length = (uint32_t)(WH_RDMA_NOTIFICATION_HEAD +
							  batch->note_length),
				     .lkey = mr ? mr->lkey : 0 };
	*request = (struct ibv_send_wr){ .wr_id = line->ring->head,
					 .sg_list = segment,
					 .num_sge = 1,
					 .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
					 .imm_data = htonl(wh_rdma_imm(slot, sequence)) };
	request->wr.rdma.remote_addr = mail->theirs.address + (uint64_t)slot * WH_RDMA_RING_SLOT;
	request->wr.rdma.rkey = key_of(mail, line->nic)->key;
	if (segment->length <= line->inlined)
		request->send_flags = IBV_SEND_INLINE;
	*letter = (struct rdma_notification){ .line = line,
					      .sequence = sequence,
					      .length = head.length,
					      .at = line->ring->head,
					      .flying = true };
	mail->out++;
	line->peer->unwatched++; /* its completion is to make an event: nobody looks for it */
	line->ring->works[line->ring->head++ % RDMA_DEPTH] =
		(struct rdma_work){ .letter = (uint8_t)(slot + 1) };
}

/* ---- behind the bytes
 * --------------------------------------------------------------------------------- */

bool rdma_notify_follows(const struct rdma_peer *rdma, const struct wh_fragment *piece)
{
	const struct wh_batch *batch = piece->batch;

	return batch->note_length && batch->piece_count == 1 && piece->op == WH_WRITE &&
	       !piece->whole && !atomic_load(&rdma->flushing);
}

void rdma_notify_prepare(struct rdma_peer *rdma, struct wh_fragment *piece)
{
	struct rdma_notify *mail = &rdma->mail;

	mail->ahead = NULL;
	mail->ahead_lines = 0;
	if (mail->state == RDMA_NOTIFY_OPEN && rdma->peer->note_count == mail->out &&
	    wh_notify_can_send_early(piece->batch))
		mail->ahead = piece;
}

bool rdma_notify_send_early(struct rdma_endpoint *line, const struct wh_fragment *piece,
			    struct ibv_send_wr *request, struct ibv_sge *segment)
{
	struct rdma_notify *mail = &line->peer->mail;
	struct wh_batch *batch = piece->batch;
	int slot = free_slot(mail);

	mail->ahead_lines |= 1u << line->index;
	if (piece->cursor.left || !request)
		return false;
	mail->ahead = NULL;
	if (mail->ahead_lines != 1u << line->index || atomic_load(&piece->failed) || slot < 0 ||
	    !takes(mail, line, batch->note_length))
		return false;
	compose(line, (unsigned)slot, batch, wh_notify_send_early(batch), request, segment);
	return true;
}

/* ---- afterwards
 * ---------------------------------------------------------------------------------------- */

/* Once for a session, when a batch with a notification has gone by rdma. */
static void ask(struct rdma_peer *rdma, const struct wh_batch *batch)
{
	if (!(rdma->peer->welcome.capabilities & WH_CAPABLE_RDMA_NOTIFY) || !rdma_ready(rdma) ||
	    !atomic_load(&batch->rails_used))
		return;
	rdma->mail.state = RDMA_NOTIFY_ASKED;
	wh_control_send(&rdma->peer->control, WH_FRAME_RDMA_RING_OPEN, 0, NULL, 0);
}

/* The line that carried all of its bytes; of none, any. NULL: several did, or it cannot take it
 * now. */
static struct rdma_endpoint *line_for(const struct rdma_peer *rdma, const struct wh_batch *batch)
{
	struct rdma_endpoint *any = NULL;

	for (unsigned i = 0; i < rdma->line_count; i++) {
		struct rdma_endpoint *line = rdma->lines[i];
		uint64_t carried = atomic_load(&batch->railed[i]);

		for (unsigned n = i + 1; carried && n < rdma->line_count; n++)
			if (atomic_load(&batch->railed[n]))
				return NULL;
		if (carried)
			return takes(&rdma->mail, line, batch->note_length) ? line : NULL;
		if (!any && takes(&rdma->mail, line, batch->note_length))
			any = line;
	}
	return any;
}

int rdma_notify_send(struct wh_peer *peer, void *state, struct wh_batch *batch, uint64_t sequence)
{
	struct rdma_peer *rdma = state;
	struct rdma_notify *mail = &rdma->mail;
	struct ibv_send_wr request;
	struct ibv_sge segment;
	struct rdma_endpoint *line;
	int error = 0, slot;

	pthread_mutex_lock(&rdma->lock);
	if (mail->state == RDMA_NOTIFY_NONE)
		ask(rdma, batch);
	line = mail->state == RDMA_NOTIFY_OPEN ? line_for(rdma, batch) : NULL;
	slot = line ? free_slot(mail) : -1;
	if (slot < 0)
		error = mail->out ? -EAGAIN : -EOPNOTSUPP;
	else if (peer->note_count != mail->out) /* those over the control connection first */
		error = -EAGAIN;
	if (!error) {
		bool idle = !rdma_endpoint_busy(line);

		compose(line, (unsigned)slot, batch, sequence, &request, &segment);
		rdma_post_notification(line, &request, idle);
	}
	pthread_mutex_unlock(&rdma->lock);
	return error;
}

void rdma_notify_confirmed(struct wh_peer *peer, void *state, uint64_t sequence)
{
	struct rdma_peer *rdma = state;
	struct rdma_notify *mail = &rdma->mail;

	(void)peer;
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < WH_RDMA_RING_SLOTS; i++) {
		struct rdma_notification *letter = &mail->letters[i];

		if (!letter->line || letter->sequence != sequence)
			continue;
		if (letter->line->ring->arrived <= letter->at)
			letter->line->ring->arrived = letter->at + 1;
		letter->line = NULL;
		mail->out--;
	}
	pthread_mutex_unlock(&rdma->lock);
}

void rdma_notify_done(struct rdma_endpoint *line, struct rdma_work *work)
{
	struct rdma_notification *letter = &line->peer->mail.letters[work->letter - 1];

	if (letter->flying)
		line->peer->unwatched--;
	letter->flying = false;
}

/* ---- what becomes of lines
 * ------------------------------------------------------------------------------ */

static struct rdma_notification *oldest(struct rdma_notify *mail, const struct rdma_endpoint *line)
{
	struct rdma_notification *found = NULL;

	for (unsigned i = 0; i < WH_RDMA_RING_SLOTS; i++) {
		struct rdma_notification *letter = &mail->letters[i];

		if (letter->line == line && (!found || letter->sequence < found->sequence))
			found = letter;
	}
	return found;
}

void rdma_notify_undelivered(struct rdma_endpoint *line)
{
	struct rdma_peer *rdma = line->peer;
	struct rdma_notify *mail = &rdma->mail;
	struct rdma_notification *letter;

	pthread_mutex_lock(&rdma->peer->note_lock);
	pthread_mutex_lock(&rdma->lock);
	while ((letter = oldest(mail, line))) {
		letter->line = NULL;
		mail->out--;
		wh_notify_undelivered(rdma->peer, letter->sequence,
				      slot_at(mail, (unsigned)(letter - mail->letters)) +
					      WH_RDMA_NOTIFICATION_HEAD,
				      letter->length);
	}
	pthread_mutex_unlock(&rdma->lock);
	pthread_mutex_unlock(&rdma->peer->note_lock);
}

void rdma_notify_lost(struct rdma_peer *rdma)
{
	struct rdma_notify *mail = &rdma->mail;

	memset(mail->letters, 0, sizeof(mail->letters));
	mail->out = 0;
	mail->ahead = NULL;
	mail->state = RDMA_NOTIFY_NONE;
}

/* ---- opening and closing; on loop 0, without a lock
 * -------------------------------------------------------- */

/* Pages of their own, for they are pinned. A NIC that does not get them takes what can be inlined.
 */
static int get_slots(struct rdma_peer *rdma)
{
	const struct rdma *all = rdma->rdma;
	struct rdma_notify *mail = &rdma->mail;
	void *memory;

	if (mail->slots)
		return 0;
	memory = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -errno;
	mail->slots = memory;
	for (unsigned i = 0; i < all->nic_count; i++)
		mail->mrs[i] = wh_verbs_register(all->verbs, all->nics[i]->pd, memory, ROOM, 0);
	return 0;
}

int rdma_ring_opened(struct rdma_peer *rdma, const struct wh_rdma_ring_opened *mailed)
{
	struct rdma_notify *mail = &rdma->mail;
	int error = mailed->error;
	bool asked;

	pthread_mutex_lock(&rdma->lock);
	asked = mail->state == RDMA_NOTIFY_ASKED;
	pthread_mutex_unlock(&rdma->lock);
	if (!asked)
		return -EPROTO;
	if (error)
		wh_engine_log(rdma->peer->engine,
			      "rdma to %s: no mailbox, notifications go over TCP: %s",
			      rdma->peer->welcome.name, mailed->text);
	else
		error = get_slots(rdma);
	pthread_mutex_lock(&rdma->lock);
	mail->theirs = *mailed;
	mail->state = error ? RDMA_NOTIFY_REFUSED : RDMA_NOTIFY_OPEN;
	pthread_mutex_unlock(&rdma->lock);
	return 0;
}

void rdma_notify_close(struct rdma_peer *rdma)
{
	struct rdma_notify *mail = &rdma->mail;

	for (unsigned i = 0; i < RDMA_NICS; i++)
		if (mail->mrs[i])
			rdma->rdma->verbs->dereg_mr(mail->mrs[i]);
	if (mail->slots)
		munmap(mail->slots, ROOM);
}
