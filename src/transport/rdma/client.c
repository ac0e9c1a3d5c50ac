/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, the initiator's queue pairs: connecting them, taking them down, trying again, giving them
 * back. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define BACKOFF_MOST (10 * WH_SECOND)
#define MAKE_ROOM (5 * WH_MS) /* how often it is looked whether there is room for one more */

static struct wh_loop *home(const struct rdma_endpoint *line)
{
	return &line->peer->peer->engine->loops[0];
}

static int64_t knob(const struct rdma_endpoint *line, enum wh_setting knob)
{
	return line->peer->peer->engine->config.number[knob];
}

uint32_t rdma_ready(const struct rdma_peer *rdma)
{
	uint32_t ready = 0;

	for (unsigned i = 0; i < rdma->line_count; i++)
		ready |= (uint32_t)(rdma->lines[i]->state == RDMA_READY) << i;
	return ready;
}

bool rdma_pending(const struct rdma_peer *rdma)
{
	for (unsigned i = 0; i < rdma->line_count; i++)
		if (rdma_endpoint_pending(rdma->lines[i]))
			return true;
	return false;
}

bool rdma_hopeless(const struct rdma_peer *rdma)
{
	for (unsigned i = 0; i < rdma->line_count; i++)
		if (rdma->lines[i]->state != RDMA_FAILED && rdma->lines[i]->state != RDMA_LOST)
			return false;
	return true;
}

bool rdma_lost(const struct rdma_peer *rdma)
{
	return rdma->line_count && rdma->lines[0]->state == RDMA_LOST;
}

/* What lines can carry has changed: sort, go on, and tell those who wait. With the lock, which is
 * let go. */
static void changed(struct rdma_peer *rdma, struct wh_list *done)
{
	struct wh_list away;

	wh_list_init(&away);
	rdma->version++;
	rdma_progress(rdma, done, &away);
	pthread_cond_broadcast(&rdma->changed);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(done);
	rdma_fragments_in_flight(rdma, &away);
}

/* ---- taking down
 * ----------------------------------------------------------------------------------- */

/* On the transport's own loop, for loop 0 may be waiting until the places of a region are left.
 * When it returns no NIC of ours touches memory of ours any more by this line. */
static void destroy(void *argument)
{
	struct rdma_endpoint *line = argument;
	struct rdma_peer *rdma = line->peer;
	const struct wh_verbs *verbs = rdma->rdma->verbs;

	wh_loop_cancel(&rdma->rdma->loop, &line->broken);
	if (line->source.fd >= 0)
		wh_loop_remove(&rdma->rdma->loop, &line->source);
	line->source.fd = -1;
	pthread_mutex_lock(&rdma->lock);
	if (line->qp)
		verbs->destroy_qp(line->qp);
	if (line->cq)
		verbs->destroy_cq(line->cq);
	if (line->channel)
		verbs->destroy_comp_channel(line->channel);
	line->qp = NULL;
	line->cq = NULL;
	line->channel = NULL;
	line->armed = false;
	if (line->open)
		atomic_fetch_sub(&rdma->rdma->connections, 1);
	line->open = false;
	/* Packets may still be on their way to a region that we leave here. If it is taken back, so
	 * are its keys. */
	for (uint64_t i = line->ring ? line->ring->tail : 0; line->ring && i != line->ring->head;
	     i++) {
		struct rdma_work *work = &line->ring->works[i % RDMA_DEPTH];

		if (work->place)
			wh_region_entry_leave(work->place);
		work->place = NULL;
		if (work->letter)
			rdma_notify_done(line, work);
	}
	line->ahead = 0;
	line->unsignalled = 0;
	line->unsignalled_bytes = 0;
	line->speed = 0;
	pthread_mutex_unlock(&rdma->lock);
}

/* Both ends are gone. On loop 0. */
static void finish(struct wh_task *task)
{
	struct rdma_endpoint *line = wh_container(task, struct rdma_endpoint, ended);
	struct rdma_peer *rdma = line->peer;
	struct wh_list done;
	char why[WH_REFUSAL];
	bool news;

	wh_list_init(&done);
	rdma_notify_undelivered(line);
	pthread_mutex_lock(&rdma->lock);
	/* A port without a cable is tried for ever. */
	news = line->proved || !line->tries || !rdma_ready(rdma);
	line->proved = false;
	rdma_recover(line, &done);
	if (line->again) {
		line->state = RDMA_IDLE;
	} else {
		line->state = RDMA_FAILED;
		line->tries++;
		wh_timer_set(home(line), &line->timer, wh_now() + line->backoff);
		line->backoff = line->backoff * 2 > BACKOFF_MOST ? BACKOFF_MOST : line->backoff * 2;
	}
	/* Those that have been given back, too. */
	if (rdma->queued || (!rdma_ready(rdma) && !wh_list_empty(&rdma->sent)))
		rdma_want(rdma);
	memcpy(why, line->why, sizeof(why));
	changed(rdma, &done);
	wh_notify_resume(rdma->peer);
	if (!news)
		return;
	wh_engine_log(rdma->peer->engine, "rdma to %s: %s", rdma->peer->welcome.name, why);
	atomic_fetch_add(&rdma->peer->plan_version, 1);
}

/* The owner's queue pair is gone; or the peer is, which rdma_client_lost() is about to be told. */
static void confirmed(struct wh_abort *abort, int error)
{
	struct rdma_endpoint *line = wh_container(abort, struct rdma_endpoint, abort);

	if (!error)
		wh_loop_post(home(line), &line->ended);
}

static void take_down(struct wh_task *task)
{
	struct rdma_endpoint *line = wh_container(task, struct rdma_endpoint, broken);
	struct rdma_peer *rdma = line->peer;
	bool told;

	destroy(line);
	pthread_mutex_lock(&rdma->lock);
	told = line->told;
	line->told = false;
	line->abort.number = line->number;
	line->abort.done = confirmed;
	pthread_mutex_unlock(&rdma->lock);
	if (told)
		wh_peer_abort(rdma->peer, &line->abort);
	else
		wh_loop_post(home(line), &line->ended);
}

void rdma_break(struct rdma_endpoint *line, bool again, const char *format, ...)
{
	struct rdma_peer *rdma = line->peer;
	va_list list;

	if (line->state != RDMA_CONNECTING && line->state != RDMA_PROBING &&
	    line->state != RDMA_READY)
		return;
	va_start(list, format);
	vsnprintf(line->why, sizeof(line->why), format, list);
	va_end(list);
	if (rdma_endpoint_busy(line))
		memcpy(line->broke, line->why, sizeof(line->broke));
	if (!again || rdma_endpoint_busy(line)) /* not what is given back */
		memcpy(rdma->why, line->why, sizeof(rdma->why));
	line->again = again;
	line->state = RDMA_BREAKING;
	rdma->version++;
	wh_loop_post(&rdma->rdma->loop, &line->broken);
}

/* ---- the peer goes
 * ----------------------------------------------------------------------------------- */

static void drop_ring(struct rdma_ring *ring)
{
	if (ring)
		wh_list_remove(&ring->link);
	free(ring);
}

/* Without the lock. */
static void stop(struct rdma_endpoint *line)
{
	wh_loop_cancel(home(line), &line->wanted);
	wh_timer_clear(&line->timer);
	wh_loop_call(&line->peer->rdma->loop, destroy, line);
	wh_loop_cancel(home(line), &line->ended);
}

/* All pieces are let go of. Under the lock. */
static void collect(struct rdma_peer *rdma, struct wh_list *out)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk, &rdma->sent };
	struct wh_list *link;

	for (unsigned i = 0; i < rdma->line_count; i++) {
		drop_ring(rdma->lines[i]->ring);
		rdma->lines[i]->ring = NULL;
	}
	while (!wh_list_empty(&rdma->again))
		drop_ring(wh_container(rdma->again.next, struct rdma_ring, link));
	for (unsigned i = 0; i < 3; i++)
		while ((link = wh_list_take(lists[i])))
			wh_list_append(out, link);
	rdma->watched = rdma->unwatched = 0;
	rdma->queued = 0;
}

void rdma_client_lost(struct rdma_peer *rdma, int error, const char *text)
{
	struct wh_list all, *link;

	wh_list_init(&all);
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->line_count; i++) {
		rdma->lines[i]->state = RDMA_LOST;
		rdma->lines[i]->told = false;
	}
	snprintf(rdma->why, sizeof(rdma->why), "%s", text);
	pthread_mutex_unlock(&rdma->lock);
	for (unsigned i = 0; i < rdma->line_count; i++)
		stop(rdma->lines[i]);
	pthread_mutex_lock(&rdma->lock);
	collect(rdma, &all);
	rdma_notify_lost(rdma);
	pthread_cond_broadcast(&rdma->changed);
	pthread_mutex_unlock(&rdma->lock);
	while ((link = wh_list_take(&all))) {
		struct wh_fragment *piece = wh_container(link, struct wh_fragment, link);

		wh_fragment_fail(piece, UINT64_MAX, error, "%s", text);
		wh_fragment_done(piece);
	}
}

void rdma_client_again(struct rdma_peer *rdma)
{
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->line_count; i++)
		rdma->lines[i]->state = RDMA_IDLE;
	pthread_mutex_unlock(&rdma->lock);
}

void rdma_client_close(struct rdma_peer *rdma)
{
	struct wh_list none;

	wh_list_init(&none);
	for (unsigned i = 0; i < rdma->line_count; i++) {
		struct rdma_endpoint *line = rdma->lines[i];

		stop(line);
		pthread_mutex_lock(&rdma->peer->lock);
		wh_list_remove(&line->abort.link);
		pthread_mutex_unlock(&rdma->peer->lock);
		wh_loop_cancel(home(line), &line->ended);
	}
	collect(rdma, &none);
	rdma_notify_close(rdma);
	while (rdma->line_count)
		free(rdma->lines[--rdma->line_count]);
}

/* ---- ports
 * --------------------------------------------------------------------------------------- */

static bool goes_by(const struct rdma_endpoint *line, const struct rdma_nic *nic, uint8_t port)
{
	return line->rail->nic == nic && (!port || line->rail->port == port);
}

void rdma_rail_lost(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port, const char *why)
{
	for (struct wh_list *l = rdma->peers.next; l != &rdma->peers; l = l->next) {
		struct rdma_peer *peer = wh_container(l, struct rdma_peer, link);

		pthread_mutex_lock(&peer->lock);
		for (unsigned i = 0; i < peer->line_count; i++)
			if (goes_by(peer->lines[i], nic, port))
				rdma_break(peer->lines[i], false, "%s", why);
		pthread_mutex_unlock(&peer->lock);
	}
}

void rdma_rail_back(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port)
{
	for (struct wh_list *l = rdma->peers.next; l != &rdma->peers; l = l->next) {
		struct rdma_peer *peer = wh_container(l, struct rdma_peer, link);

		pthread_mutex_lock(&peer->lock);
		for (unsigned i = 0; i < peer->line_count; i++)
			if (goes_by(peer->lines[i], nic, port) &&
			    peer->lines[i]->state == RDMA_FAILED)
				wh_timer_set(home(peer->lines[i]), &peer->lines[i]->timer,
					     wh_now());
		pthread_mutex_unlock(&peer->lock);
	}
}

/* ---- connecting; on loop 0
 * ------------------------------------------------------------------------ */

/* The channel has an event. */
static void ready(struct wh_source *source, uint32_t events)
{
	struct rdma_endpoint *line = wh_container(source, struct rdma_endpoint, source);
	struct rdma_peer *rdma = line->peer;
	struct wh_list done, away;
	struct ibv_cq *cq;
	void *context;

	wh_list_init(&done);
	wh_list_init(&away);
	pthread_mutex_lock(&rdma->lock);
	if (events & (EPOLLERR | EPOLLHUP)) /* it is ready for ever */
		rdma_break(line, false, "%s has been removed", line->mine.name);
	while (line->channel && !rdma->rdma->verbs->get_cq_event(line->channel, &cq, &context)) {
		rdma->rdma->verbs->ack_cq_events(cq, 1);
		line->armed = false;
	}
	rdma_progress(rdma, &done, &away);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(&done);
	rdma_fragments_in_flight(rdma, &away);
}

static int make(struct rdma_endpoint *line, char why[WH_REFUSAL])
{
	struct rdma *all = line->peer->rdma;
	const struct wh_verbs *verbs = all->verbs;
	uint32_t depth = RDMA_DEPTH;
	struct rdma_nic *nic = line->rail->nic;
	int error;

	if (!rdma_rail_look(line->rail, &line->here, why))
		return -ENETDOWN;
	if (nic->attributes.max_qp_wr > 0 && (uint32_t)nic->attributes.max_qp_wr < depth) {
		snprintf(why, WH_REFUSAL,
			 "%s has queue pairs of %d work requests, and %u are needed",
			 line->here.name, nic->attributes.max_qp_wr, depth);
		return -EOPNOTSUPP;
	}
	line->ring = calloc(1, sizeof(*line->ring));
	if (!line->ring) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	atomic_fetch_add(&all->connections, 1);
	line->open = true;
	line->channel = verbs->create_comp_channel(nic->context);
	if (line->channel)
		line->cq = verbs->create_cq(nic->context, (int)depth + 1, line, line->channel, 0);
	if (!line->cq ||
	    fcntl(line->channel->fd, F_SETFL, fcntl(line->channel->fd, F_GETFL) | O_NONBLOCK)) {
		snprintf(why, WH_REFUSAL, "%s: a completion queue: %s", line->here.name,
			 strerror(errno));
		return -errno;
	}
	error = rdma_qp_new(&line->here, line->cq, depth, &line->qp, &line->inlined, why);
	if (error)
		return error;
	line->source.fd = line->channel->fd;
	line->source.ready = ready;
	error = wh_loop_add(&all->loop, &line->source, EPOLLIN);
	if (error) {
		line->source.fd = -1;
		snprintf(why, WH_REFUSAL, "epoll: %s", strerror(-error));
	}
	return error;
}

/* Of all lines with nothing to do, give back the one that has had nothing for longest. True: one is
 * being given back, so that there soon is room. Without any lock. */
static bool give_back_one(struct rdma *rdma)
{
	struct rdma_endpoint *oldest = NULL;
	int64_t since = INT64_MAX;
	bool going = false;

	for (struct wh_list *l = rdma->peers.next; l != &rdma->peers; l = l->next) {
		struct rdma_peer *peer = wh_container(l, struct rdma_peer, link);

		pthread_mutex_lock(&peer->lock);
		for (unsigned i = 0; i < peer->line_count; i++) {
			struct rdma_endpoint *line = peer->lines[i];

			going |= line->state == RDMA_BREAKING;
			if (line->state != RDMA_READY || rdma_endpoint_busy(line) || peer->queued ||
			    line->since >= since)
				continue;
			oldest = line;
			since = line->since;
		}
		pthread_mutex_unlock(&peer->lock);
	}
	if (going || !oldest)
		return going;
	pthread_mutex_lock(&oldest->peer->lock);
	if (oldest->state == RDMA_READY && !rdma_endpoint_busy(oldest))
		rdma_break(oldest, true, "%s is given back: another one is needed more",
			   oldest->way);
	pthread_mutex_unlock(&oldest->peer->lock);
	return true;
}

/* May one more be made? False: later, or not at all. Without the lock. */
static bool has_room(struct rdma_endpoint *line)
{
	struct rdma_peer *rdma = line->peer;
	unsigned most = (unsigned)knob(line, WH_SETTING_RDMA_CONNECTIONS);
	struct wh_list done;
	bool going;

	wh_list_init(&done);
	if (atomic_load(&rdma->rdma->connections) < most)
		return true;
	pthread_mutex_lock(&rdma->lock);
	if (rdma_ready(rdma)) { /* the peer is reached; this one would but make it faster */
		line->state = RDMA_IDLE;
		changed(rdma, &done);
		return false;
	}
	pthread_mutex_unlock(&rdma->lock);
	going = give_back_one(rdma->rdma);
	pthread_mutex_lock(&rdma->lock);
	if (going) {
		wh_timer_set(home(line), &line->timer, wh_now() + MAKE_ROOM);
	} else {
		line->state = RDMA_CONNECTING;
		rdma_break(line, false,
			   "all %u connections that may be open are in use (knob "
			   "rdma_connections)",
			   most);
	}
	pthread_mutex_unlock(&rdma->lock);
	return false;
}

static void connect_now(struct wh_task *task)
{
	struct rdma_endpoint *line = wh_container(task, struct rdma_endpoint, wanted);
	struct rdma_peer *rdma = line->peer;
	uint8_t bytes[WH_RDMA_CONNECT_MAX];
	struct wh_rdma_connect wanted;
	char why[WH_REFUSAL] = "";
	int error;

	if (!has_room(line))
		return;
	pthread_mutex_lock(&rdma->lock);
	if (line->state != RDMA_WANTED) {
		pthread_mutex_unlock(&rdma->lock);
		return;
	}
	line->state = RDMA_CONNECTING;
	line->since = wh_now();
	error = make(line, why);
	if (error) {
		rdma_break(line, false, "%s", why);
		pthread_mutex_unlock(&rdma->lock);
		return;
	}
	line->number = RDMA_NUMBER | ++rdma->numbers;
	line->mine = line->here.end;
	line->mine.qp = line->qp->qp_num;
	if (getrandom(&line->mine.psn, sizeof(line->mine.psn), 0) < 0)
		line->mine.psn = line->mine.qp;
	line->mine.psn &= 0xffffff;
	line->told = true;
	wanted = (struct wh_rdma_connect){ .number = line->number,
					   .index = (uint16_t)line->index,
					   .turn = (uint16_t)line->tries,
					   .end = line->mine };
	wh_timer_set(home(line), &line->timer,
		     wh_now() + knob(line, WH_SETTING_TIMEOUT) * WH_MS / 4);
	pthread_mutex_unlock(&rdma->lock);
	wh_control_send(&rdma->peer->control, WH_FRAME_RDMA_CONNECT, 0, bytes,
			wh_rdma_connect_encode(bytes, &wanted));
}

void rdma_endpoint_want(struct rdma_endpoint *line)
{
	if (line->state != RDMA_IDLE)
		return;
	line->state = RDMA_WANTED;
	wh_loop_post(home(line), &line->wanted);
}

void rdma_want(struct rdma_peer *rdma)
{
	for (unsigned i = 0; i < rdma->line_count; i++)
		rdma_endpoint_want(rdma->lines[i]);
}

static struct rdma_endpoint *by_number(const struct rdma_peer *rdma, uint32_t number)
{
	for (unsigned i = 0; i < rdma->line_count; i++)
		if (rdma->lines[i]->state == RDMA_CONNECTING && rdma->lines[i]->number == number)
			return rdma->lines[i];
	return NULL;
}

int rdma_connected(struct rdma_peer *rdma, const struct wh_rdma_connected *answer)
{
	char why[WH_REFUSAL];
	struct rdma_endpoint *line;

	pthread_mutex_lock(&rdma->lock);
	line = by_number(rdma, answer->number);
	if (!line) {
		pthread_mutex_unlock(&rdma->lock); /* too late */
		return 0;
	}
	line->since = wh_now();
	line->told = !answer->error;
	if (answer->error) {
		if (answer->error == -EBUSY)
			/* it is not the port's fault: the same one the next time */
			line->tries--;
		rdma_break(line, false, "%.60s refuses: %.120s", rdma->peer->welcome.name,
			   answer->text);
	} else if (rdma_qp_connect(&line->here, line->qp, &line->mine, &answer->end, why)) {
		rdma_break(line, false, "%s", why);
	} else {
		line->theirs = answer->end;
		line->nic = answer->nic;
		snprintf(line->way, sizeof(line->way), "%.15s to %.15s", line->mine.name,
			 line->theirs.name);
		line->state = RDMA_PROBING;
		rdma_probe(line);
	}
	pthread_mutex_unlock(&rdma->lock);
	return 0;
}

void rdma_spare(struct rdma_peer *rdma, uint32_t number)
{
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->line_count; i++) {
		struct rdma_endpoint *line = rdma->lines[i];

		if (line->state == RDMA_READY && line->number == number &&
		    !rdma_endpoint_busy(line) && !rdma->queued)
			rdma_break(line, true, "%s is given back: %.60s needs it for others",
				   line->way, rdma->peer->welcome.name);
	}
	pthread_mutex_unlock(&rdma->lock);
}

/* ---- looking after it
 * ------------------------------------------------------------------------------ */

/* Verbs may stay silent for ever, as when our own cable is pulled while something is on its way. */
static void look(struct wh_timer *timer)
{
	struct rdma_endpoint *line = wh_container(timer, struct rdma_endpoint, timer);
	int64_t now = wh_now(), timeout = knob(line, WH_SETTING_TIMEOUT) * WH_MS;
	int64_t idle = knob(line, WH_SETTING_IDLE) * WH_MS, next = timeout / 4;
	struct rdma_peer *rdma = line->peer;
	bool late;

	pthread_mutex_lock(&rdma->lock);
	late = now - line->since > timeout;
	if (line->state == RDMA_FAILED) {
		line->state = RDMA_IDLE;
		rdma_endpoint_want(line);
	} else if (line->state == RDMA_WANTED) {
		wh_loop_post(home(line), &line->wanted);
	} else if (line->state == RDMA_CONNECTING && late) {
		rdma_break(line, false, "%.63s has not answered for %lld ms",
			   rdma->peer->welcome.name, (long long)(timeout / WH_MS));
	} else if ((line->state == RDMA_PROBING || line->state == RDMA_READY) && late &&
		   rdma_endpoint_busy(line)) {
		rdma_break(line, false,
			   "from %s to %s nothing has completed for %lld ms: is the MTU of all "
			   "switches "
			   "as large, and no cable out?",
			   line->mine.name, line->theirs.name, (long long)(timeout / WH_MS));
	} else if (line->state == RDMA_READY && !rdma_endpoint_busy(line) &&
		   now - line->since > idle) {
		rdma_break(line, true, "%s is given back: not used for %lld s", line->way,
			   (long long)(idle / WH_SECOND));
	}
	if (line->state == RDMA_CONNECTING || line->state == RDMA_PROBING ||
	    line->state == RDMA_READY)
		wh_timer_set(home(line), timer, now + (next < idle / 4 + 1 ? next : idle / 4 + 1));
	pthread_mutex_unlock(&rdma->lock);
}

int rdma_client_open(struct rdma_peer *rdma)
{
	struct rdma *all = rdma->rdma;

	for (unsigned i = 0; i < all->rail_count && i < RDMA_ENDPOINTS; i++) {
		struct rdma_endpoint *line = calloc(1, sizeof(*line));

		if (!line)
			return -ENOMEM;
		rdma->lines[rdma->line_count++] = line;
		line->peer = rdma;
		line->rail = &all->rails[i];
		line->index = i;
		line->source.fd = -1;
		line->wanted.run = connect_now;
		line->broken.run = take_down;
		line->ended.run = finish;
		line->timer.fire = look;
		line->backoff = RDMA_BACKOFF_FIRST;
	}
	return 0;
}
