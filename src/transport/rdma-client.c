/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, the initiator's queue pair: connecting it, taking it down, trying again. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "transport/rdma.h"
#include "util/clock.h"

#define BACKOFF_FIRST (100 * WH_MS)
#define BACKOFF_MOST (10 * WH_SECOND)

static struct wh_loop *home(const struct rdma_peer *rdma)
{
	return &rdma->peer->engine->loops[0];
}

static int64_t timeout_of(const struct rdma_peer *rdma)
{
	return rdma->peer->engine->config.number[WH_KNOB_TIMEOUT] * WH_MS;
}

/* ---- taking down ----------------------------------------------------------------------------------- */

/* On the transport's own loop, for loop 0 may be waiting until the places of a region are left. When it
 * returns no NIC of ours touches memory of ours any more. */
static void destroy(void *argument)
{
	struct rdma_peer *rdma = argument;
	const struct wh_verbs *verbs = rdma->rdma->verbs;

	wh_loop_cancel(&rdma->rdma->loop, &rdma->broken);
	if (rdma->source.fd >= 0)
		wh_loop_remove(&rdma->rdma->loop, &rdma->source);
	rdma->source.fd = -1;
	pthread_mutex_lock(&rdma->lock);
	if (rdma->qp)
		verbs->destroy_qp(rdma->qp);
	if (rdma->cq)
		verbs->destroy_cq(rdma->cq);
	if (rdma->channel)
		verbs->destroy_comp_channel(rdma->channel);
	rdma->qp = NULL;
	rdma->cq = NULL;
	rdma->channel = NULL;
	rdma->armed = false;
	/* Packets may still be on their way to a region that we leave here. If it is taken back, so are
	 * its keys. */
	for (; rdma->tail != rdma->head; rdma->tail++) {
		struct rdma_work *work = &rdma->ring[rdma->tail % RDMA_DEPTH];

		if (work->place)
			wh_place_leave(work->place);
	}
	rdma->ahead = 0;
	rdma->unsignalled = 0;
	rdma->unsignalled_bytes = 0;
	pthread_mutex_unlock(&rdma->lock);
}

/* Have all pieces in one list. Under the lock. */
static void collect(struct rdma_peer *rdma, struct wh_list *out)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk, &rdma->sent };

	for (unsigned i = 0; i < 3; i++) {
		struct wh_list *link;

		while ((link = wh_list_take(lists[i])))
			wh_list_append(out, link);
	}
	rdma->unwatched = 0;
}

/* Put a piece back to its start, for the next connection. Under the lock. */
static void restart(struct rdma_peer *rdma, struct wh_piece *piece)
{
	bool urgent = piece->batch->priority == WH_PRIORITY_LATENCY;

	wh_piece_start(piece, &piece->cursor);
	atomic_store(&piece->left, piece->bytes);
	wh_list_append(urgent ? &rdma->urgent : &rdma->bulk, &piece->link);
	rdma->unwatched += !rdma_watched(piece);
}

/* Both ends are gone. On loop 0. */
static void finish(struct wh_task *task)
{
	struct rdma_peer *rdma = wh_container(task, struct rdma_peer, ended);
	struct wh_list all, away, *link;
	char why[WH_REFUSAL];

	wh_list_init(&all);
	wh_list_init(&away);
	pthread_mutex_lock(&rdma->lock);
	collect(rdma, &all);
	while ((link = wh_list_take(&all))) {
		struct wh_piece *piece = wh_container(link, struct wh_piece, link);

		/* One that the owner's NIC refused is marked; it does not try again. */
		if (rdma->again && !piece->owner && !atomic_load(&piece->cancelled))
			restart(rdma, piece);
		else
			wh_list_append(&away, link);
	}
	if (rdma->again) {
		rdma->state = RDMA_IDLE;
		if (!wh_list_empty(&rdma->urgent) || !wh_list_empty(&rdma->bulk))
			rdma_want(rdma);
	} else {
		rdma->state = RDMA_FAILED;
		rdma->tries++;
		rdma->retry_at = wh_now() + rdma->backoff;
		rdma->backoff = rdma->backoff * 2 > BACKOFF_MOST ? BACKOFF_MOST : rdma->backoff * 2;
		wh_timer_set(home(rdma), &rdma->timer, rdma->retry_at);
	}
	memcpy(why, rdma->why, sizeof(why));
	pthread_cond_broadcast(&rdma->changed);
	pthread_mutex_unlock(&rdma->lock);
	wh_engine_log(rdma->peer->engine, "rdma to %s: %s", rdma->peer->welcome.name, why);
	atomic_fetch_add(&rdma->peer->plan_version, 1);
	rdma_pieces_away(&away, -EIO, why);
}

/* The owner's queue pair is gone; or the peer is, which rdma_client_lost() is about to be told. */
static void confirmed(struct wh_abort *abort, int error)
{
	struct rdma_peer *rdma = wh_container(abort, struct rdma_peer, abort);

	if (!error)
		wh_loop_post(home(rdma), &rdma->ended);
}

static void take_down(struct wh_task *task)
{
	struct rdma_peer *rdma = wh_container(task, struct rdma_peer, broken);
	bool told;

	destroy(rdma);
	pthread_mutex_lock(&rdma->lock);
	told = rdma->told;
	rdma->told = false;
	rdma->abort.number = rdma->number;
	rdma->abort.done = confirmed;
	pthread_mutex_unlock(&rdma->lock);
	if (told)
		wh_peer_abort(rdma->peer, &rdma->abort);
	else
		wh_loop_post(home(rdma), &rdma->ended);
}

void rdma_break(struct rdma_peer *rdma, bool again, const char *format, ...)
{
	va_list list;

	if (rdma->state != RDMA_CONNECTING && rdma->state != RDMA_PROBING && rdma->state != RDMA_READY)
		return;
	va_start(list, format);
	vsnprintf(rdma->why, sizeof(rdma->why), format, list);
	va_end(list);
	rdma->again = again;
	rdma->state = RDMA_BREAKING;
	wh_loop_post(&rdma->rdma->loop, &rdma->broken);
}

void rdma_client_lost(struct rdma_peer *rdma, int error, const char *text)
{
	struct wh_list all, *link;

	wh_list_init(&all);
	wh_loop_cancel(home(rdma), &rdma->wanted);
	wh_timer_clear(&rdma->timer);
	pthread_mutex_lock(&rdma->lock);
	rdma->state = RDMA_LOST;
	rdma->told = false;
	snprintf(rdma->why, sizeof(rdma->why), "%s", text);
	pthread_mutex_unlock(&rdma->lock);
	wh_loop_call(&rdma->rdma->loop, destroy, rdma);
	wh_loop_cancel(home(rdma), &rdma->ended);
	pthread_mutex_lock(&rdma->lock);
	collect(rdma, &all);
	pthread_cond_broadcast(&rdma->changed);
	pthread_mutex_unlock(&rdma->lock);
	while ((link = wh_list_take(&all))) {
		struct wh_piece *piece = wh_container(link, struct wh_piece, link);

		wh_piece_fail(piece, UINT64_MAX, error, "%s", text);
		wh_piece_done(piece);
	}
}

void rdma_client_close(struct rdma_peer *rdma)
{
	wh_loop_cancel(home(rdma), &rdma->wanted);
	wh_timer_clear(&rdma->timer);
	wh_loop_call(&rdma->rdma->loop, destroy, rdma);
	pthread_mutex_lock(&rdma->peer->lock);
	wh_list_remove(&rdma->abort.link);
	pthread_mutex_unlock(&rdma->peer->lock);
	wh_loop_cancel(home(rdma), &rdma->ended);
}

void rdma_rail_lost(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port, const char *why)
{
	for (struct wh_list *l = rdma->peers.next; l != &rdma->peers; l = l->next) {
		struct rdma_peer *peer = wh_container(l, struct rdma_peer, link);

		pthread_mutex_lock(&peer->lock);
		if (peer->rail && peer->rail->nic == nic && (!port || peer->rail->port == port))
			rdma_break(peer, false, "%s", why);
		pthread_mutex_unlock(&peer->lock);
	}
}

/* ---- connecting; on loop 0 ------------------------------------------------------------------------ */

/* The channel has an event. */
static void ready(struct wh_source *source, uint32_t events)
{
	struct rdma_peer *rdma = wh_container(source, struct rdma_peer, source);
	struct wh_list done, away;
	struct ibv_cq *cq;
	void *context;

	(void)events;
	wh_list_init(&done);
	wh_list_init(&away);
	pthread_mutex_lock(&rdma->lock);
	while (rdma->channel && !rdma->rdma->verbs->get_cq_event(rdma->channel, &cq, &context)) {
		rdma->rdma->verbs->ack_cq_events(cq, 1);
		rdma->armed = false;
	}
	rdma_progress(rdma, &done, &away);
	pthread_mutex_unlock(&rdma->lock);
	rdma_pieces_done(&done);
	rdma_pieces_away(&away, -EIO, "a region of it is not registered with the NIC now in use");
}

/* The next rail that can be used; the others have their turns after it has failed. */
static struct rdma_rail *pick(struct rdma_peer *rdma, char why[WH_REFUSAL])
{
	struct rdma *all = rdma->rdma;

	for (unsigned i = 0; i < all->rail_count; i++) {
		struct rdma_rail *rail = &all->rails[(rdma->tries + i) % all->rail_count];

		if (rdma_rail_look(rail, &rdma->here, why))
			return rail;
	}
	return NULL;
}

static int make(struct rdma_peer *rdma, char why[WH_REFUSAL])
{
	const struct wh_verbs *verbs = rdma->rdma->verbs;
	uint32_t depth = RDMA_DEPTH;
	struct ibv_context *context;
	int error;

	rdma->rail = pick(rdma, why);
	if (!rdma->rail)
		return -ENETDOWN;
	if (rdma->here.nic->attributes.max_qp_wr > 0 &&
	    (uint32_t)rdma->here.nic->attributes.max_qp_wr < depth) {
		snprintf(why, WH_REFUSAL, "%s has queue pairs of %d work requests, and %u are needed",
			 rdma->here.name, rdma->here.nic->attributes.max_qp_wr, depth);
		return -EOPNOTSUPP;
	}
	context = rdma->here.nic->context;
	rdma->channel = verbs->create_comp_channel(context);
	if (rdma->channel)
		rdma->cq = verbs->create_cq(context, (int)depth + 1, rdma, rdma->channel, 0);
	if (!rdma->cq || fcntl(rdma->channel->fd, F_SETFL,
			       fcntl(rdma->channel->fd, F_GETFL) | O_NONBLOCK)) {
		snprintf(why, WH_REFUSAL, "%s: a completion queue: %s", rdma->here.name, strerror(errno));
		return -errno;
	}
	error = rdma_qp_new(&rdma->here, rdma->cq, depth, &rdma->qp, &rdma->inlined, why);
	if (error)
		return error;
	rdma->source.fd = rdma->channel->fd;
	rdma->source.ready = ready;
	error = wh_loop_add(&rdma->rdma->loop, &rdma->source, EPOLLIN);
	if (error) {
		rdma->source.fd = -1;
		snprintf(why, WH_REFUSAL, "epoll: %s", strerror(-error));
	}
	return error;
}

static void connect_now(struct wh_task *task)
{
	struct rdma_peer *rdma = wh_container(task, struct rdma_peer, wanted);
	uint8_t bytes[WH_RDMA_CONNECT_MAX];
	struct wh_rdma_connect wanted;
	char why[WH_REFUSAL] = "";
	int error;

	pthread_mutex_lock(&rdma->lock);
	if (rdma->state != RDMA_IDLE) {
		pthread_mutex_unlock(&rdma->lock);
		return;
	}
	rdma->state = RDMA_CONNECTING;
	rdma->since = wh_now();
	error = make(rdma, why);
	if (error) {
		rdma_break(rdma, false, "%s", why);
		pthread_mutex_unlock(&rdma->lock);
		return;
	}
	rdma->number = RDMA_NUMBER | ++rdma->numbers;
	rdma->mine = rdma->here.end;
	rdma->mine.qp = rdma->qp->qp_num;
	if (getrandom(&rdma->mine.psn, sizeof(rdma->mine.psn), 0) < 0)
		rdma->mine.psn = rdma->mine.qp;
	rdma->mine.psn &= 0xffffff;
	rdma->told = true;
	wanted = (struct wh_rdma_connect){ .number = rdma->number, .end = rdma->mine };
	wh_timer_set(home(rdma), &rdma->timer, wh_now() + timeout_of(rdma) / 4);
	pthread_mutex_unlock(&rdma->lock);
	wh_control_send(&rdma->peer->control, WH_FRAME_RDMA_CONNECT, 0, bytes,
			wh_rdma_connect_encode(bytes, &wanted));
}

void rdma_want(struct rdma_peer *rdma)
{
	if (rdma->state == RDMA_IDLE)
		wh_loop_post(home(rdma), &rdma->wanted);
}

int rdma_connected(struct rdma_peer *rdma, const struct wh_rdma_connected *answer)
{
	static const char *const layers[] = { "InfiniBand", "RoCE v1", "RoCE v2" };
	char why[WH_REFUSAL];

	pthread_mutex_lock(&rdma->lock);
	if (rdma->state != RDMA_CONNECTING || answer->number != rdma->number) {
		pthread_mutex_unlock(&rdma->lock); /* too late */
		return 0;
	}
	rdma->since = wh_now();
	rdma->told = !answer->error;
	if (answer->error) {
		rdma_break(rdma, false, "%.60s refuses: %.120s", rdma->peer->welcome.name, answer->text);
	} else if (rdma_qp_connect(&rdma->here, rdma->qp, &rdma->mine, &answer->end, why)) {
		rdma_break(rdma, false, "%s", why);
	} else {
		rdma->theirs = answer->end;
		rdma->nic = answer->nic;
		pthread_mutex_lock(&rdma->way_lock);
		snprintf(rdma->way, sizeof(rdma->way), "%.15s to %.15s, %s", rdma->mine.name,
			 rdma->theirs.name, layers[rdma->mine.gid_type]);
		pthread_mutex_unlock(&rdma->way_lock);
		rdma->state = RDMA_PROBING;
		rdma_probe(rdma);
	}
	pthread_mutex_unlock(&rdma->lock);
	return 0;
}

/* ---- looking after it ------------------------------------------------------------------------------ */

/* Verbs may stay silent for ever, as when our own cable is pulled while something is on its way. */
static void look(struct wh_timer *timer)
{
	struct rdma_peer *rdma = wh_container(timer, struct rdma_peer, timer);
	int64_t now = wh_now(), timeout = timeout_of(rdma);
	bool late;

	pthread_mutex_lock(&rdma->lock);
	late = now - rdma->since > timeout;
	if (rdma->state == RDMA_FAILED) {
		rdma->state = RDMA_IDLE;
		rdma_want(rdma);
	} else if (rdma->state == RDMA_CONNECTING && late) {
		rdma_break(rdma, false, "%.63s has not answered for %lld ms", rdma->peer->welcome.name,
			   (long long)(timeout / WH_MS));
	} else if ((rdma->state == RDMA_PROBING || rdma->state == RDMA_READY) && late &&
		   rdma->tail != rdma->head) {
		rdma_break(rdma, false,
			   "from %s to %s nothing has completed for %lld ms: is the MTU of all switches "
			   "as large, and no cable out?",
			   rdma->mine.name, rdma->theirs.name, (long long)(timeout / WH_MS));
	}
	if (rdma->state == RDMA_CONNECTING || rdma->state == RDMA_PROBING || rdma->state == RDMA_READY)
		wh_timer_set(home(rdma), timer, now + timeout / 4);
	pthread_mutex_unlock(&rdma->lock);
}

void rdma_client_open(struct rdma_peer *rdma)
{
	rdma->source.fd = -1;
	rdma->wanted.run = connect_now;
	rdma->broken.run = take_down;
	rdma->ended.run = finish;
	rdma->timer.fire = look;
	rdma->backoff = BACKOFF_FIRST;
}
