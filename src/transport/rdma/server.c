/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, owner: responders, queue pairs that answer, one for each endpoint of a peer. On loop 0. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "transport/rdma/rdma.h"
#include "transport/rdma/server.h"
#include "wire/bytes.h"

#define QUEUE_PAIRS_MOST 64u /* of one session */
#define ASKED_BACK 4u /* queue pairs that are asked back when a CONNECT is refused */
#define TURNS 64u /* events in one turn, so that other sources get theirs */

struct responder {
	struct wh_list link;
	struct wh_list engine_link; /* rdma.responders */
	struct wh_session *session;
	struct rdma_nic *nic;
	struct ibv_qp *qp;
	struct ibv_cq *cq; /* its receives */
	struct wh_task more; /* takes the notifications that one turn left over */
	uint64_t last; /* sequence of the last notification */
	uint32_t number; /* the initiator's number for it */
};

struct rdma_session {
	struct wh_list responders;
	unsigned count;
	struct rdma_bounce *bounces[WH_RDMA_BOUNCES]; /* NULL: not opened */
	struct rdma_receive_ring *ring; /* NULL: not requested */
	bool keyed; /* it has, or had, a queue pair and may ask for keys */
};

static void responder_free(struct rdma_session *state, struct responder *responder)
{
	const struct wh_verbs *verbs = responder->nic->rdma->verbs;

	/* On return the NIC answers to it no more. Notifications that were not taken yet are
	 * dropped. */
	verbs->destroy_qp(responder->qp);
	verbs->destroy_cq(responder->cq);
	wh_loop_cancel(wh_engine_first_loop(responder->nic->rdma->engine), &responder->more);
	wh_list_remove(&responder->link);
	wh_list_remove(&responder->engine_link);
	responder->nic->rdma->responder_count--;
	state->count--;
	free(responder);
}

/* Ask peers to give back responders that they do not need: a NIC that answers does not show which
 * are idle. Responders that were asked for move to the end of the list: others are asked for next
 * time. */
static void responders_ask_back(struct rdma *rdma)
{
	unsigned most = rdma->responder_count < ASKED_BACK ? rdma->responder_count : ASKED_BACK;
	uint8_t bytes[4];

	for (unsigned i = 0; i < most; i++) {
		struct responder *responder =
			wh_container(rdma->responders.next, struct responder, engine_link);

		wh_list_remove(&responder->engine_link);
		wh_list_append(&rdma->responders, &responder->engine_link);
		wh_put32(bytes, responder->number);
		wh_control_send(wh_session_control(responder->session), WH_FRAME_RDMA_SPARE, 0,
				bytes, sizeof(bytes));
	}
}

/* May the session have one more? 0 or -EBUSY. */
static int server_has_room(struct rdma *rdma, const struct rdma_session *state,
			   char why[WH_REFUSAL])
{
	int64_t most = wh_engine_config(rdma->engine)->number[WH_SETTING_RDMA_ANSWERS];

	if (state->count >= QUEUE_PAIRS_MOST) {
		snprintf(why, WH_REFUSAL, "this session has %u queue pairs already", state->count);
		return -EBUSY;
	}
	if (rdma->responder_count < most)
		return 0;
	snprintf(why, WH_REFUSAL,
		 "all %lld queue pairs for peers are in use (setting rdma_answers)",
		 (long long)most);
	if (!state->count) /* a further one would only be faster */
		responders_ask_back(rdma);
	return -EBUSY;
}

/* ---- notifications --------------------------------------------------------------------------- */

static int responder_post_receive(struct responder *responder)
{
	/* Without extents: the bytes are written to the receive ring. */
	struct ibv_recv_wr request = { 0 }, *bad;

	return wh_verbs_receive(responder->qp, &request, &bad);
}

/* Make the completion queue of its receives, armed. */
static int responder_make_queue(struct responder *responder, const struct rdma_rail *rail,
				char why[WH_REFUSAL])
{
	const struct wh_verbs *verbs = responder->nic->rdma->verbs;
	int error = 0;

	responder->cq = verbs->create_cq(responder->nic->context, (int)WH_RDMA_RING_SLOTS,
					 responder, responder->nic->notifications, 0);
	if (!responder->cq)
		error = errno ? errno : EIO;
	else
		error = wh_verbs_arm(responder->cq);
	if (error)
		snprintf(why, WH_REFUSAL, "%s: creating a completion queue: %s", rail->name,
			 strerror(error));
	return -error;
}

/* Post one receive for each notification that may be unconfirmed: all of them may arrive by this
 * queue pair. */
static int responder_post_receives(struct responder *responder, const struct rdma_rail *rail,
				   char why[WH_REFUSAL])
{
	int error = 0;

	for (unsigned i = 0; i < WH_RDMA_RING_SLOTS && !error; i++)
		error = responder_post_receive(responder);
	if (error)
		snprintf(why, WH_REFUSAL, "%s: ibv_post_recv: %s", rail->name, strerror(error));
	return -error;
}

/* False: the session has ended, and the responder with it. */
static bool responder_take_one(struct responder *responder, const struct ibv_wc *wc)
{
	struct wh_session *session = responder->session;
	struct rdma_session *state = wh_session_transport(session, WH_TRANSPORT_RDMA);
	int error;

	/* After a failed receive all others fail, and the initiator notices. */
	if (wc->status != IBV_WC_SUCCESS)
		return true;
	/* Before the notification is confirmed. If this fails, the queue pair fails, too. */
	responder_post_receive(responder);
	error = rdma_receive_ring_take(session, state->ring, responder->number, wc,
				       &responder->last);
	if (error)
		wh_session_end(session, error,
			       wh_session_control(session)->queue_refused ?
				       wh_session_control(session)->queue_refused :
				       "sent an invalid notification over RDMA");
	return !error;
}

/* One batch of completions; other sources get their turn before the rest. */
static void responder_take(struct responder *responder)
{
	struct ibv_wc wcs[WH_RDMA_RING_SLOTS];
	int got = wh_verbs_poll(responder->cq, WH_RDMA_RING_SLOTS, wcs);

	for (int i = 0; i < got; i++)
		if (!responder_take_one(responder, &wcs[i]))
			return;
	if (got == (int)WH_RDMA_RING_SLOTS)
		wh_loop_post(wh_engine_first_loop(responder->nic->rdma->engine), &responder->more);
}

static void responder_take_more(struct wh_task *task)
{
	responder_take(wh_container(task, struct responder, more));
}

void rdma_notifications_ready(struct wh_source *source, uint32_t events)
{
	struct rdma_nic *nic = wh_container(source, struct rdma_nic, notifications_source);
	const struct wh_verbs *verbs = nic->rdma->verbs;
	struct ibv_cq *cq;
	void *context;

	for (unsigned turn = 0;
	     turn < TURNS && !verbs->get_cq_event(nic->notifications, &cq, &context); turn++) {
		/* The queue cannot be destroyed before its events are acknowledged. */
		verbs->ack_cq_events(cq, 1);
		/* Before polling, so that what arrives afterwards makes an event. */
		wh_verbs_arm(cq);
		responder_take(context);
	}
	/* A removed device stays ready for ever. */
	if (events & (EPOLLERR | EPOLLHUP)) {
		wh_loop_remove(wh_engine_first_loop(nic->rdma->engine), source);
		source->fd = -1;
	}
}

/* ---- responders ------------------------------------------------------------------------------ */

static struct rdma_session *session_get_state(struct wh_session *session)
{
	struct rdma_session *state = wh_session_transport(session, WH_TRANSPORT_RDMA);

	if (!state) {
		state = calloc(1, sizeof(*state));
		if (!state)
			return NULL;
		wh_list_init(&state->responders);
		wh_session_set_transport(session, WH_TRANSPORT_RDMA, state);
	}
	return state;
}

/* 0 and the answer, or a negative errno with the reason. */
static int responder_connect(struct wh_session *session, const struct wh_rdma_connect *wanted,
			     struct wh_rdma_connected *answer, char why[WH_REFUSAL])
{
	struct rdma *rdma = wh_engine_transport(wh_session_engine(session), WH_TRANSPORT_RDMA);
	struct rdma_session *state = session_get_state(session);
	struct responder *responder = calloc(1, sizeof(*responder));
	struct rdma_rail rail;
	int error = -ENOMEM;

	snprintf(why, WH_REFUSAL, "no memory");
	if (!state || !responder)
		goto err_free;
	error = server_has_room(rdma, state, why);
	if (error)
		goto err_free;
	error = -EOPNOTSUPP;
	if (!rdma_rail_choose(rdma, wanted, &rail, why))
		goto err_free;
	responder->nic = rail.nic;
	responder->number = wanted->number;
	responder->more.run = responder_take_more;
	error = responder_make_queue(responder, &rail, why);
	if (error)
		goto err_queue;
	error = rdma_qp_new_responder(&rail, responder->cq, &responder->qp, why);
	if (error)
		goto err_queue;
	error = responder_post_receives(responder, &rail, why);
	if (error)
		goto err_destroy;
	answer->end = rail.end;
	answer->end.qp = responder->qp->qp_num;
	answer->nic = rail.nic->index;
	if (getrandom(&answer->end.psn, sizeof(answer->end.psn), 0) < 0)
		answer->end.psn = responder->qp->qp_num;
	answer->end.psn &= 0xffffff;
	error = rdma_qp_connect(&rail, responder->qp, &answer->end, &wanted->end, why);
	if (error)
		goto err_destroy;
	responder->session = session;
	wh_list_append(&state->responders, &responder->link);
	wh_list_append(&rdma->responders, &responder->engine_link);
	rdma->responder_count++;
	state->count++;
	return 0;

err_destroy:
	rdma->verbs->destroy_qp(responder->qp);
err_queue:
	if (responder->cq)
		rdma->verbs->destroy_cq(responder->cq);
err_free:
	free(responder);
	return error;
}

static int server_connect_frame(struct wh_session *session, const uint8_t *payload, size_t length)
{
	struct wh_rdma_connected answer = { 0 };
	uint8_t bytes[WH_RDMA_CONNECTED_MAX];
	struct wh_rdma_connect wanted;
	char why[WH_REFUSAL] = "";

	if (wh_rdma_connect_decode(payload, length, &wanted) || !(wanted.number & RDMA_NUMBER))
		return -EPROTO;
	answer.number = wanted.number;
	answer.error = responder_connect(session, &wanted, &answer, why);
	if (answer.error) {
		snprintf(answer.text, sizeof(answer.text), "%s", why);
	} else {
		session_get_state(session)->keyed = true;
		wh_session_keyed(session);
	}
	return wh_control_send(wh_session_control(session), WH_FRAME_RDMA_CONNECTED, 0, bytes,
			       wh_rdma_connected_encode(bytes, &answer));
}

int rdma_session_frame(struct wh_session *session, const struct wh_frame *frame,
		       const uint8_t *payload)
{
	struct rdma_session *state = wh_session_transport(session, WH_TRANSPORT_RDMA);

	if (frame->type == WH_FRAME_RDMA_CONNECT)
		return server_connect_frame(session, payload, frame->length);
	/* A peer that sends anything else has a queue pair, or had one. */
	if (!state || !state->keyed)
		return -EPROTO;
	if (frame->type == WH_FRAME_RDMA_BOUNCE_OPEN)
		return frame->length ? -EPROTO :
				       rdma_bounce_open_frame(session, &state->bounces[0]);
	if (frame->type == WH_FRAME_RDMA_RING_OPEN)
		return frame->length ? -EPROTO : rdma_receive_ring_open(session, &state->ring);
	if (frame->type == WH_FRAME_RDMA_COPY)
		return rdma_bounce_copy_frame(session, state->bounces, payload, frame->length);
	_Static_assert(WH_RDMA_KEYS_SIZE == WH_RDMA_FLUSH_SIZE, "both are a number and a region");
	if (frame->length != WH_RDMA_KEYS_SIZE)
		return -EPROTO;
	if (frame->type == WH_FRAME_RDMA_KEYS)
		return rdma_worker_keys(session, state->bounces, wh_get32(payload),
					wh_get64(payload + 4));
	return rdma_worker_flush(session, wh_get32(payload), wh_get64(payload + 4));
}

int rdma_session_abort(struct wh_session *session, uint32_t number)
{
	struct rdma_session *state = wh_session_transport(session, WH_TRANSPORT_RDMA);
	struct wh_list *link, *next;

	for (link = state ? state->responders.next : NULL; link && link != &state->responders;
	     link = next) {
		struct responder *responder = wh_container(link, struct responder, link);

		next = link->next;
		if (responder->number != number)
			continue;
		responder_free(state, responder);
		/* What arrived by it and is unconfirmed is sent again in another way. */
		wh_session_notifications_forget(session, number);
	}
	return 0;
}

void rdma_session_close(struct wh_session *session)
{
	struct rdma_session *state = wh_session_transport(session, WH_TRANSPORT_RDMA);

	while (state && !wh_list_empty(&state->responders))
		responder_free(state, wh_container(state->responders.next, struct responder, link));
	if (state)
		rdma_receive_ring_close(state->ring);
	for (unsigned i = 0; state && i < WH_RDMA_BOUNCES; i++)
		if (state->bounces[i])
			rdma_bounce_close(state->bounces[i]);
	free(state);
	wh_session_set_transport(session, WH_TRANSPORT_RDMA, NULL);
}
