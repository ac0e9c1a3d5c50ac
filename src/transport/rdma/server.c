/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, the side whose memory it is: queue pairs that answer, one for each of an initiator's. On
 * loop 0. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "transport/rdma/rdma.h"
#include "wire/bytes.h"

#define QUEUE_PAIRS_MOST 64u /* of one session */
#define ASKED_BACK 4u /* for each that is refused */
#define TURNS 64u /* events at once, so that others have theirs */

struct answering {
	struct wh_list link;
	struct wh_list among; /* rdma.answering */
	struct wh_session *session;
	struct rdma_nic *nic;
	struct ibv_qp *qp;
	struct ibv_cq *cq; /* of its receives */
	struct wh_task more; /* letters have been left for another turn */
	uint64_t last; /* sequence of a letter */
	uint32_t number; /* the initiator's */
};

struct rdma_session {
	struct wh_list pairs;
	unsigned count;
	struct rdma_bounce *bounce; /* NULL: it has asked for none */
	struct rdma_receive_ring *ring; /* the same */
};

static void drop(struct rdma_session *mine, struct answering *pair)
{
	const struct wh_verbs *verbs = pair->nic->rdma->verbs;

	/* When this returns the NIC answers to it no more. Letters that nobody has looked at yet go
	 * with it. */
	verbs->destroy_qp(pair->qp);
	verbs->destroy_cq(pair->cq);
	wh_loop_cancel(&pair->nic->rdma->engine->loops[0], &pair->more);
	wh_list_remove(&pair->link);
	wh_list_remove(&pair->among);
	pair->nic->rdma->answering_count--;
	mine->count--;
	free(pair);
}

/* Have peers give back those that they have nothing for: a NIC that answers does not tell us which
 * these are. Who has been asked is asked again after all others. */
static void ask_back(struct rdma *rdma)
{
	unsigned most = rdma->answering_count < ASKED_BACK ? rdma->answering_count : ASKED_BACK;
	uint8_t bytes[4];

	for (unsigned i = 0; i < most; i++) {
		struct answering *pair =
			wh_container(rdma->answering.next, struct answering, among);

		wh_list_remove(&pair->among);
		wh_list_append(&rdma->answering, &pair->among);
		wh_put32(bytes, pair->number);
		wh_control_send(&pair->session->control, WH_FRAME_RDMA_SPARE, 0, bytes,
				sizeof(bytes));
	}
}

/* May it have one more? 0 or -EBUSY. */
static int has_room(struct rdma *rdma, const struct rdma_session *mine, char why[WH_REFUSAL])
{
	int64_t most = rdma->engine->config.number[WH_SETTING_RDMA_ANSWERS];

	if (mine->count >= QUEUE_PAIRS_MOST) {
		snprintf(why, WH_REFUSAL, "it has %u queue pairs already", mine->count);
		return -EBUSY;
	}
	if (rdma->answering_count < most)
		return 0;
	snprintf(why, WH_REFUSAL,
		 "all %lld queue pairs that it may answer with are taken (knob rdma_answers)",
		 (long long)most);
	if (!mine->count) /* a further one would but make it faster */
		ask_back(rdma);
	return -EBUSY;
}

/* ---- letters --------------------------------------------------------------------------------- */

static int post_receive(struct answering *pair)
{
	struct ibv_recv_wr request = { 0 }, *bad; /* of no bytes: they are written elsewhere */

	return wh_verbs_receive(pair->qp, &request, &bad);
}

/* A queue for what it receives, which tells of all that comes. */
static int queue_new(struct answering *pair, const struct rdma_rail *rail, char why[WH_REFUSAL])
{
	const struct wh_verbs *verbs = pair->nic->rdma->verbs;
	int error = 0;

	pair->cq = verbs->create_cq(pair->nic->context, (int)WH_RDMA_RING_SLOTS, pair,
				    pair->nic->notifications, 0);
	if (!pair->cq)
		error = errno ? errno : EIO;
	else
		error = wh_verbs_arm(pair->cq);
	if (error)
		snprintf(why, WH_REFUSAL, "%s: a completion queue: %s", rail->name,
			 strerror(error));
	return -error;
}

/* There is one for each letter that may be on its way, by whichever queue pair. */
static int post_receives(struct answering *pair, const struct rdma_rail *rail, char why[WH_REFUSAL])
{
	int error = 0;

	for (unsigned i = 0; i < WH_RDMA_RING_SLOTS && !error; i++)
		error = post_receive(pair);
	if (error)
		snprintf(why, WH_REFUSAL, "%s: ibv_post_recv: %s", rail->name, strerror(error));
	return -error;
}

/* False: the pair has gone, for its session has. */
static bool take_notification(struct answering *pair, const struct ibv_wc *wc)
{
	struct wh_session *session = pair->session;
	struct rdma_session *mine = session->transport[WH_TRANSPORT_RDMA];
	int error;

	/* Of one that fails: so will all others be, and the initiator sees it. */
	if (wc->status != IBV_WC_SUCCESS)
		return true;
	post_receive(pair); /* before it is confirmed; if that fails, the queue pair has */
	error = rdma_receive_ring_take(session, mine->ring, pair->number, wc, &pair->last);
	if (error)
		wh_session_end(session, error,
			       session->control.full ? session->control.full :
						       "broke the protocol of letters");
	return !error;
}

/* Others have their turn before what comes next. */
static void take_notifications(struct answering *pair)
{
	struct ibv_wc wcs[WH_RDMA_RING_SLOTS];
	int got = wh_verbs_poll(pair->cq, WH_RDMA_RING_SLOTS, wcs);

	for (int i = 0; i < got; i++)
		if (!take_notification(pair, &wcs[i]))
			return;
	if (got == (int)WH_RDMA_RING_SLOTS)
		wh_loop_post(&pair->nic->rdma->engine->loops[0], &pair->more);
}

static void take_more(struct wh_task *task)
{
	take_notifications(wh_container(task, struct answering, more));
}

void rdma_notifications_ready(struct wh_source *source, uint32_t events)
{
	struct rdma_nic *nic = wh_container(source, struct rdma_nic, notifications_source);
	const struct wh_verbs *verbs = nic->rdma->verbs;
	struct ibv_cq *cq;
	void *context;

	for (unsigned turn = 0;
	     turn < TURNS && !verbs->get_cq_event(nic->notifications, &cq, &context); turn++) {
		/* It is destroyed only once that is done. */
		verbs->ack_cq_events(cq, 1);
		/* Before it is looked at, so that what comes afterwards is told of. */
		wh_verbs_arm(cq);
		take_notifications(context);
	}
	/* A device that has been removed is ready for ever. */
	if (events & (EPOLLERR | EPOLLHUP)) {
		wh_loop_remove(&nic->rdma->engine->loops[0], source);
		source->fd = -1;
	}
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

static struct rdma_session *session_state(struct wh_session *session)
{
	struct rdma_session *mine = session->transport[WH_TRANSPORT_RDMA];

	if (!mine) {
		mine = calloc(1, sizeof(*mine));
		if (!mine)
			return NULL;
		wh_list_init(&mine->pairs);
		session->transport[WH_TRANSPORT_RDMA] = mine;
	}
	return mine;
}

/* 0 and the answer, or a negative errno and the reason in it. */
static int connect_pair(struct wh_session *session, const struct wh_rdma_connect *wanted,
			struct wh_rdma_connected *answer, char why[WH_REFUSAL])
{
	struct rdma *rdma = session->engine->transport[WH_TRANSPORT_RDMA];
	struct rdma_session *mine = session_state(session);
	struct answering *pair = calloc(1, sizeof(*pair));
	struct rdma_rail rail;
	int error = -ENOMEM;

	snprintf(why, WH_REFUSAL, "no memory");
	if (!mine || !pair)
		goto err_free;
	error = has_room(rdma, mine, why);
	if (error)
		goto err_free;
	error = -EOPNOTSUPP;
	if (!rdma_rail_for(rdma, wanted, &rail, why))
		goto err_free;
	pair->nic = rail.nic;
	pair->number = wanted->number;
	pair->more.run = take_more;
	error = queue_new(pair, &rail, why);
	if (error)
		goto err_queue;
	error = rdma_qp_new_answering(&rail, pair->cq, &pair->qp, why);
	if (error)
		goto err_queue;
	error = post_receives(pair, &rail, why);
	if (error)
		goto err_destroy;
	answer->end = rail.end;
	answer->end.qp = pair->qp->qp_num;
	answer->nic = rail.nic->index;
	if (getrandom(&answer->end.psn, sizeof(answer->end.psn), 0) < 0)
		answer->end.psn = pair->qp->qp_num;
	answer->end.psn &= 0xffffff;
	error = rdma_qp_connect(&rail, pair->qp, &answer->end, &wanted->end, why);
	if (error)
		goto err_destroy;
	pair->session = session;
	wh_list_append(&mine->pairs, &pair->link);
	wh_list_append(&rdma->answering, &pair->among);
	rdma->answering_count++;
	mine->count++;
	return 0;

err_destroy:
	rdma->verbs->destroy_qp(pair->qp);
err_queue:
	if (pair->cq)
		rdma->verbs->destroy_cq(pair->cq);
err_free:
	free(pair);
	return error;
}

static int connect_frame(struct wh_session *session, const uint8_t *payload, size_t length)
{
	struct wh_rdma_connected answer = { 0 };
	uint8_t bytes[WH_RDMA_CONNECTED_MAX];
	struct wh_rdma_connect wanted;
	char why[WH_REFUSAL] = "";

	if (wh_rdma_connect_decode(payload, length, &wanted) || !(wanted.number & RDMA_NUMBER))
		return -EPROTO;
	answer.number = wanted.number;
	answer.error = connect_pair(session, &wanted, &answer, why);
	if (answer.error)
		snprintf(answer.text, sizeof(answer.text), "%s", why);
	else
		atomic_store(&session->keyed, true);
	return wh_control_send(&session->control, WH_FRAME_RDMA_CONNECTED, 0, bytes,
			       wh_rdma_connected_encode(bytes, &answer));
}

int rdma_session_frame(struct wh_session *session, const struct wh_frame *frame,
		       const uint8_t *payload)
{
	struct rdma_session *mine = session->transport[WH_TRANSPORT_RDMA];

	if (frame->type == WH_FRAME_RDMA_CONNECT)
		return connect_frame(session, payload, frame->length);
	/* Whoever asks for anything else has a queue pair, or had one. */
	if (!atomic_load(&session->keyed))
		return -EPROTO;
	if (frame->type == WH_FRAME_RDMA_BOUNCE_OPEN)
		return frame->length ? -EPROTO : rdma_bounce_frame(session, &mine->bounce);
	if (frame->type == WH_FRAME_RDMA_RING_OPEN)
		return frame->length ? -EPROTO : rdma_receive_ring_frame(session, &mine->ring);
	if (frame->type == WH_FRAME_RDMA_COPY)
		return rdma_bounce_copy(session, mine->bounce, payload, frame->length);
	_Static_assert(WH_RDMA_KEYS_SIZE == WH_RDMA_FLUSH_SIZE, "both are a number and a region");
	if (frame->length != WH_RDMA_KEYS_SIZE)
		return -EPROTO;
	if (frame->type == WH_FRAME_RDMA_KEYS)
		return rdma_serve_keys(session, mine->bounce, wh_get32(payload),
				       wh_get64(payload + 4));
	return rdma_serve_flush(session, wh_get32(payload), wh_get64(payload + 4));
}

void rdma_session_abort(struct wh_session *session, uint32_t number)
{
	struct rdma_session *mine = session->transport[WH_TRANSPORT_RDMA];
	struct wh_list *link, *next;

	for (link = mine ? mine->pairs.next : NULL; link && link != &mine->pairs; link = next) {
		struct answering *pair = wh_container(link, struct answering, link);

		next = link->next;
		if (pair->number != number)
			continue;
		drop(mine, pair);
		/* What came by it and has not been confirmed is sent again in another way. */
		wh_session_notifications_forget(session, number);
	}
}

void rdma_session_close(struct wh_session *session)
{
	struct rdma_session *mine = session->transport[WH_TRANSPORT_RDMA];

	while (mine && !wh_list_empty(&mine->pairs))
		drop(mine, wh_container(mine->pairs.next, struct answering, link));
	if (mine)
		rdma_receive_ring_close(mine->ring);
	if (mine && mine->bounce)
		rdma_bounce_close(mine->bounce);
	free(mine);
	session->transport[WH_TRANSPORT_RDMA] = NULL;
}
