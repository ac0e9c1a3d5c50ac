/* SPDX-License-Identifier: Apache-2.0 */
/* rdma, initiator: connect endpoints, take them down, reconnect them, give them back. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define BACKOFF_MOST (10 * WH_SECOND)
#define MAKE_ROOM (5 * WH_MS) /* ns between attempts to get room for one more endpoint */

static struct wh_loop *endpoint_loop(const struct rdma_endpoint *endpoint)
{
	return wh_engine_first_loop(endpoint->peer->rdma->engine);
}

static int64_t endpoint_setting(const struct rdma_endpoint *endpoint, enum wh_setting setting)
{
	return wh_engine_config(endpoint->peer->rdma->engine)->number[setting];
}

uint32_t rdma_endpoints_ready(const struct rdma_peer *rdma)
{
	uint32_t ready = 0;

	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		ready |= (uint32_t)(rdma->endpoints[i]->state == RDMA_READY) << i;
	return ready;
}

bool rdma_endpoints_pending(const struct rdma_peer *rdma)
{
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (rdma_endpoint_pending(rdma->endpoints[i]))
			return true;
	return false;
}

bool rdma_endpoints_failed(const struct rdma_peer *rdma)
{
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (rdma->endpoints[i]->state != RDMA_FAILED &&
		    rdma->endpoints[i]->state != RDMA_LOST)
			return false;
	return true;
}

bool rdma_endpoints_lost(const struct rdma_peer *rdma)
{
	return rdma->endpoint_count && rdma->endpoints[0]->state == RDMA_LOST;
}

/* What endpoints can move has changed: sort, continue, plan again. Enter with rdma_peer.lock;
 * drops it. */
static void client_changed(struct rdma_peer *rdma, struct wh_list *done)
{
	struct wh_list reroute;

	wh_list_init(&reroute);
	rdma->version++;
	rdma_progress(rdma, done, &reroute);
	wh_peer_reach_again(rdma->peer);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(done);
	rdma_fragments_reroute(rdma, &reroute);
}

/* ---- taking down ----------------------------------------------------------------------------- */

/* On rdma.loop, because loop 0 may be waiting for this endpoint to leave a region's entry. On
 * return, no NIC of ours touches local memory by this endpoint any more. */
static void endpoint_destroy(void *argument)
{
	struct rdma_endpoint *endpoint = argument;
	struct rdma_peer *rdma = endpoint->peer;
	const struct wh_verbs *verbs = rdma->rdma->verbs;

	wh_loop_cancel(&rdma->rdma->loop, &endpoint->break_task);
	if (endpoint->source.fd >= 0)
		wh_loop_remove(&rdma->rdma->loop, &endpoint->source);
	endpoint->source.fd = -1;
	pthread_mutex_lock(&rdma->lock);
	if (endpoint->qp)
		verbs->destroy_qp(endpoint->qp);
	if (endpoint->cq)
		verbs->destroy_cq(endpoint->cq);
	if (endpoint->channel)
		verbs->destroy_comp_channel(endpoint->channel);
	endpoint->qp = NULL;
	endpoint->cq = NULL;
	endpoint->channel = NULL;
	endpoint->armed = false;
	if (endpoint->counted)
		atomic_fetch_sub(&rdma->rdma->connections, 1);
	endpoint->counted = false;
	/* Packets may still be in flight to a region that we leave here. If the owner removes the
	 * region, its keys become invalid. */
	for (uint64_t i = endpoint->ring ? endpoint->ring->tail : 0;
	     endpoint->ring && i != endpoint->ring->head; i++) {
		struct rdma_work *work = &endpoint->ring->works[i % RDMA_DEPTH];

		if (work->entry)
			wh_region_entry_leave(work->entry);
		work->entry = NULL;
		if (work->notification)
			rdma_notify_done(endpoint, work);
	}
	endpoint->in_flight = 0;
	endpoint->unsignalled = 0;
	endpoint->unsignalled_bytes = 0;
	endpoint->speed = 0;
	pthread_mutex_unlock(&rdma->lock);
}

/* Both ends are down. On loop 0. */
static void endpoint_down(struct wh_task *task)
{
	struct rdma_endpoint *endpoint = wh_container(task, struct rdma_endpoint, ended_task);
	struct rdma_peer *rdma = endpoint->peer;
	struct wh_list done;
	char why[WH_REFUSAL];
	bool news;

	wh_list_init(&done);
	rdma_notify_undelivered(endpoint);
	pthread_mutex_lock(&rdma->lock);
	/* Log once: a port without a cable is tried for ever. */
	news = endpoint->verified || !endpoint->attempts || !rdma_endpoints_ready(rdma);
	endpoint->verified = false;
	rdma_resend_collect(endpoint, &done);
	if (endpoint->reconnect) {
		endpoint->state = RDMA_IDLE;
	} else {
		endpoint->state = RDMA_FAILED;
		endpoint->attempts++;
		wh_timer_set(endpoint_loop(endpoint), &endpoint->timer,
			     wh_now() + endpoint->backoff);
		endpoint->backoff =
			endpoint->backoff * 2 > BACKOFF_MOST ? BACKOFF_MOST : endpoint->backoff * 2;
	}
	/* Reconnect those that have been given back, too. */
	if (rdma->queued || (!rdma_endpoints_ready(rdma) && !wh_list_empty(&rdma->sent)))
		rdma_endpoints_connect(rdma);
	memcpy(why, endpoint->why, sizeof(why));
	client_changed(rdma, &done);
	wh_notify_resume(rdma->peer);
	if (!news)
		return;
	wh_log_line(wh_engine_log(rdma->rdma->engine), WH_LOG_INFO, "rdma", "to %s: %s",
		    wh_peer_name(rdma->peer), why);
	wh_peer_replan(rdma->peer);
}

/* The owner's queue pair is destroyed. With an error, the peer is lost and rdma_client_lost()
 * follows. */
static void endpoint_confirmed(struct wh_abort *abort, int error)
{
	struct rdma_endpoint *endpoint = wh_container(abort, struct rdma_endpoint, abort);

	if (!error)
		wh_loop_post(endpoint_loop(endpoint), &endpoint->ended_task);
}

static void endpoint_take_down(struct wh_task *task)
{
	struct rdma_endpoint *endpoint = wh_container(task, struct rdma_endpoint, break_task);
	struct rdma_peer *rdma = endpoint->peer;
	bool announced;

	endpoint_destroy(endpoint);
	pthread_mutex_lock(&rdma->lock);
	announced = endpoint->announced;
	endpoint->announced = false;
	endpoint->abort.number = endpoint->number;
	endpoint->abort.done = endpoint_confirmed;
	pthread_mutex_unlock(&rdma->lock);
	if (announced)
		wh_peer_abort(rdma->peer, &endpoint->abort);
	else
		wh_loop_post(endpoint_loop(endpoint), &endpoint->ended_task);
}

void rdma_endpoint_break(struct rdma_endpoint *endpoint, bool again, const char *format, ...)
{
	struct rdma_peer *rdma = endpoint->peer;
	va_list list;

	if (endpoint->state != RDMA_CONNECTING && endpoint->state != RDMA_PROBING &&
	    endpoint->state != RDMA_READY)
		return;
	va_start(list, format);
	vsnprintf(endpoint->why, sizeof(endpoint->why), format, list);
	va_end(list);
	if (rdma_endpoint_busy(endpoint))
		memcpy(endpoint->why_broken, endpoint->why, sizeof(endpoint->why_broken));
	if (!again || rdma_endpoint_busy(endpoint)) /* giving back is no failure */
		memcpy(rdma->why, endpoint->why, sizeof(rdma->why));
	endpoint->reconnect = again;
	endpoint->state = RDMA_BREAKING;
	rdma->version++;
	wh_loop_post(&rdma->rdma->loop, &endpoint->break_task);
}

/* ---- losing the peer ------------------------------------------------------------------------- */

static void work_ring_free(struct rdma_work_ring *ring)
{
	if (ring)
		wh_list_remove(&ring->link);
	free(ring);
}

/* Without the lock. */
static void endpoint_stop(struct rdma_endpoint *endpoint)
{
	wh_loop_cancel(endpoint_loop(endpoint), &endpoint->connect_task);
	wh_timer_clear(&endpoint->timer);
	wh_loop_call(&endpoint->peer->rdma->loop, endpoint_destroy, endpoint);
	wh_loop_cancel(endpoint_loop(endpoint), &endpoint->ended_task);
}

/* Take all fragments out of all lists. Under rdma_peer.lock. */
static void client_collect(struct rdma_peer *rdma, struct wh_list *out)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk, &rdma->sent };
	struct wh_list *link;

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		work_ring_free(rdma->endpoints[i]->ring);
		rdma->endpoints[i]->ring = NULL;
	}
	while (!wh_list_empty(&rdma->resend))
		work_ring_free(wh_container(rdma->resend.next, struct rdma_work_ring, link));
	for (unsigned i = 0; i < 3; i++)
		while ((link = wh_list_take(lists[i])))
			wh_list_append(out, link);
	rdma->polled = rdma->unpolled = 0;
	rdma->queued = 0;
}

/* Before any of them stops: completions of one endpoint make progress with all of a peer's that are
 * connected. Under rdma_peer.lock. */
static void endpoints_lose(struct rdma_peer *rdma)
{
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		rdma->endpoints[i]->state = RDMA_LOST;
		rdma->endpoints[i]->announced = false;
	}
}

void rdma_client_lost(struct rdma_peer *rdma, int error, const char *text)
{
	struct wh_list all, *link;

	wh_list_init(&all);
	pthread_mutex_lock(&rdma->lock);
	endpoints_lose(rdma);
	snprintf(rdma->why, sizeof(rdma->why), "%s", text);
	pthread_mutex_unlock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		endpoint_stop(rdma->endpoints[i]);
	pthread_mutex_lock(&rdma->lock);
	client_collect(rdma, &all);
	rdma_notify_lost(rdma);
	wh_peer_reach_again(rdma->peer);
	pthread_mutex_unlock(&rdma->lock);
	while ((link = wh_list_take(&all))) {
		struct wh_fragment *fragment = wh_container(link, struct wh_fragment, link);

		wh_fragment_fail(fragment, UINT64_MAX, error, "%s", text);
		wh_fragment_done(fragment);
	}
}

void rdma_client_again(struct rdma_peer *rdma)
{
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		rdma->endpoints[i]->state = RDMA_IDLE;
	memset(rdma->asked, 0, sizeof(rdma->asked));
	pthread_mutex_unlock(&rdma->lock);
}

void rdma_client_close(struct rdma_peer *rdma)
{
	struct wh_list none;

	wh_list_init(&none);
	pthread_mutex_lock(&rdma->lock);
	endpoints_lose(rdma);
	pthread_mutex_unlock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		struct rdma_endpoint *endpoint = rdma->endpoints[i];

		endpoint_stop(endpoint);
		wh_peer_forget_abort(rdma->peer, &endpoint->abort);
		wh_loop_cancel(endpoint_loop(endpoint), &endpoint->ended_task);
	}
	client_collect(rdma, &none);
	rdma_notify_close(rdma);
	while (rdma->endpoint_count)
		free(rdma->endpoints[--rdma->endpoint_count]);
}

/* ---- ports ----------------------------------------------------------------------------------- */

static bool endpoint_uses_port(const struct rdma_endpoint *endpoint, const struct rdma_nic *nic,
			       uint8_t port)
{
	return endpoint->rail->nic == nic && (!port || endpoint->rail->port == port);
}

void rdma_rail_down(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port, const char *why)
{
	for (struct wh_list *l = rdma->peers.next; l != &rdma->peers; l = l->next) {
		struct rdma_peer *peer = wh_container(l, struct rdma_peer, link);

		pthread_mutex_lock(&peer->lock);
		for (unsigned i = 0; i < peer->endpoint_count; i++)
			if (endpoint_uses_port(peer->endpoints[i], nic, port))
				rdma_endpoint_break(peer->endpoints[i], false, "%s", why);
		pthread_mutex_unlock(&peer->lock);
	}
}

void rdma_rail_up(struct rdma *rdma, const struct rdma_nic *nic, uint8_t port)
{
	for (struct wh_list *l = rdma->peers.next; l != &rdma->peers; l = l->next) {
		struct rdma_peer *peer = wh_container(l, struct rdma_peer, link);

		pthread_mutex_lock(&peer->lock);
		for (unsigned i = 0; i < peer->endpoint_count; i++)
			if (endpoint_uses_port(peer->endpoints[i], nic, port) &&
			    peer->endpoints[i]->state == RDMA_FAILED)
				wh_timer_set(endpoint_loop(peer->endpoints[i]),
					     &peer->endpoints[i]->timer, wh_now());
		pthread_mutex_unlock(&peer->lock);
	}
}

/* ---- connecting; on loop 0 ------------------------------------------------------------------- */

/* The completion channel has an event. On rdma.loop. */
static void endpoint_channel_ready(struct wh_source *source, uint32_t events)
{
	struct rdma_endpoint *endpoint = wh_container(source, struct rdma_endpoint, source);
	struct rdma_peer *rdma = endpoint->peer;
	struct wh_list done, reroute;
	struct ibv_cq *cq;
	void *context;

	wh_list_init(&done);
	wh_list_init(&reroute);
	pthread_mutex_lock(&rdma->lock);
	if (events & (EPOLLERR | EPOLLHUP)) /* it stays ready for ever */
		rdma_endpoint_break(endpoint, false, "%s has been removed",
				    endpoint->local_end.name);
	while (endpoint->channel &&
	       !rdma->rdma->verbs->get_cq_event(endpoint->channel, &cq, &context)) {
		rdma->rdma->verbs->ack_cq_events(cq, 1);
		endpoint->armed = false;
	}
	rdma_progress(rdma, &done, &reroute);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(&done);
	rdma_fragments_reroute(rdma, &reroute);
}

static int endpoint_make(struct rdma_endpoint *endpoint, char why[WH_REFUSAL])
{
	struct rdma *all = endpoint->peer->rdma;
	const struct wh_verbs *verbs = all->verbs;
	uint32_t depth = RDMA_DEPTH;
	struct rdma_nic *nic = endpoint->rail->nic;
	int error;

	if (!rdma_rail_query(endpoint->rail, &endpoint->snapshot, why))
		return -ENETDOWN;
	if (nic->attributes.max_qp_wr > 0 && (uint32_t)nic->attributes.max_qp_wr < depth) {
		snprintf(why, WH_REFUSAL,
			 "%s has queue pairs of %d work requests, and %u are needed",
			 endpoint->snapshot.name, nic->attributes.max_qp_wr, depth);
		return -EOPNOTSUPP;
	}
	endpoint->ring = calloc(1, sizeof(*endpoint->ring));
	if (!endpoint->ring) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	atomic_fetch_add(&all->connections, 1);
	endpoint->counted = true;
	endpoint->channel = verbs->create_comp_channel(nic->context);
	if (endpoint->channel)
		endpoint->cq = verbs->create_cq(nic->context, (int)depth + 1, endpoint,
						endpoint->channel, 0);
	if (!endpoint->cq || fcntl(endpoint->channel->fd, F_SETFL,
				   fcntl(endpoint->channel->fd, F_GETFL) | O_NONBLOCK)) {
		snprintf(why, WH_REFUSAL, "%s: creating a completion queue: %s",
			 endpoint->snapshot.name, strerror(errno));
		return -errno;
	}
	error = rdma_qp_new(&endpoint->snapshot, endpoint->cq, depth, &endpoint->qp,
			    &endpoint->max_inline, why);
	if (error)
		return error;
	endpoint->source.fd = endpoint->channel->fd;
	endpoint->source.ready = endpoint_channel_ready;
	error = wh_loop_add(&all->loop, &endpoint->source, EPOLLIN);
	if (error) {
		endpoint->source.fd = -1;
		snprintf(why, WH_REFUSAL, "epoll: %s", strerror(-error));
	}
	return error;
}

/* Give back the idle endpoint, of any peer, that has been idle longest. True: one is going down, so
 * there is room soon. Without any lock. */
static bool client_give_back_one(struct rdma *rdma)
{
	struct rdma_endpoint *oldest = NULL;
	int64_t since = INT64_MAX;
	bool going = false;

	for (struct wh_list *l = rdma->peers.next; l != &rdma->peers; l = l->next) {
		struct rdma_peer *peer = wh_container(l, struct rdma_peer, link);

		pthread_mutex_lock(&peer->lock);
		for (unsigned i = 0; i < peer->endpoint_count; i++) {
			struct rdma_endpoint *endpoint = peer->endpoints[i];

			going |= endpoint->state == RDMA_BREAKING;
			if (endpoint->state != RDMA_READY || rdma_endpoint_busy(endpoint) ||
			    peer->queued || endpoint->since >= since)
				continue;
			oldest = endpoint;
			since = endpoint->since;
		}
		pthread_mutex_unlock(&peer->lock);
	}
	if (going || !oldest)
		return going;
	pthread_mutex_lock(&oldest->peer->lock);
	if (oldest->state == RDMA_READY && !rdma_endpoint_busy(oldest))
		rdma_endpoint_break(oldest, true,
				    "%s is given back: another connection needs its room",
				    oldest->path);
	pthread_mutex_unlock(&oldest->peer->lock);
	return true;
}

/* True: one more endpoint may open. False: later, or not at all. Without the lock. */
static bool client_has_room(struct rdma_endpoint *endpoint)
{
	struct rdma_peer *rdma = endpoint->peer;
	unsigned most = (unsigned)endpoint_setting(endpoint, WH_SETTING_RDMA_CONNECTIONS);
	struct wh_list done;
	bool going;

	wh_list_init(&done);
	if (atomic_load(&rdma->rdma->connections) < most)
		return true;
	pthread_mutex_lock(&rdma->lock);
	if (rdma_endpoints_ready(rdma)) { /* the peer is reachable; one more would only be faster */
		endpoint->state = RDMA_IDLE;
		client_changed(rdma, &done);
		return false;
	}
	pthread_mutex_unlock(&rdma->lock);
	going = client_give_back_one(rdma->rdma);
	pthread_mutex_lock(&rdma->lock);
	if (going) {
		wh_timer_set(endpoint_loop(endpoint), &endpoint->timer, wh_now() + MAKE_ROOM);
	} else {
		endpoint->state = RDMA_CONNECTING;
		rdma_endpoint_break(endpoint, false,
				    "all %u connections that may be open are in use (setting "
				    "rdma_connections)",
				    most);
	}
	pthread_mutex_unlock(&rdma->lock);
	return false;
}

static void endpoint_connect_now(struct wh_task *task)
{
	struct rdma_endpoint *endpoint = wh_container(task, struct rdma_endpoint, connect_task);
	struct rdma_peer *rdma = endpoint->peer;
	uint8_t bytes[WH_RDMA_CONNECT_MAX];
	struct wh_rdma_connect wanted;
	char why[WH_REFUSAL] = "";
	int error;

	if (!client_has_room(endpoint))
		return;
	pthread_mutex_lock(&rdma->lock);
	if (endpoint->state != RDMA_WANTED) {
		pthread_mutex_unlock(&rdma->lock);
		return;
	}
	endpoint->state = RDMA_CONNECTING;
	endpoint->since = wh_now();
	error = endpoint_make(endpoint, why);
	if (error) {
		rdma_endpoint_break(endpoint, false, "%s", why);
		pthread_mutex_unlock(&rdma->lock);
		return;
	}
	endpoint->number = RDMA_NUMBER | ++rdma->numbers;
	endpoint->local_end = endpoint->snapshot.end;
	endpoint->local_end.qp = endpoint->qp->qp_num;
	if (getrandom(&endpoint->local_end.psn, sizeof(endpoint->local_end.psn), 0) < 0)
		endpoint->local_end.psn = endpoint->local_end.qp;
	endpoint->local_end.psn &= 0xffffff;
	endpoint->announced = true;
	wanted = (struct wh_rdma_connect){ .number = endpoint->number,
					   .index = (uint16_t)endpoint->index,
					   .turn = (uint16_t)endpoint->attempts,
					   .end = endpoint->local_end };
	wh_timer_set(endpoint_loop(endpoint), &endpoint->timer,
		     wh_now() + endpoint_setting(endpoint, WH_SETTING_TIMEOUT) * WH_MS / 4);
	pthread_mutex_unlock(&rdma->lock);
	wh_control_send(wh_peer_control(rdma->peer), WH_FRAME_RDMA_CONNECT, 0, bytes,
			wh_rdma_connect_encode(bytes, &wanted));
}

void rdma_endpoint_connect(struct rdma_endpoint *endpoint)
{
	if (endpoint->state != RDMA_IDLE)
		return;
	endpoint->state = RDMA_WANTED;
	wh_loop_post(endpoint_loop(endpoint), &endpoint->connect_task);
}

void rdma_endpoints_connect(struct rdma_peer *rdma)
{
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		rdma_endpoint_connect(rdma->endpoints[i]);
}

static struct rdma_endpoint *endpoint_by_number(const struct rdma_peer *rdma, uint32_t number)
{
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (rdma->endpoints[i]->state == RDMA_CONNECTING &&
		    rdma->endpoints[i]->number == number)
			return rdma->endpoints[i];
	return NULL;
}

int rdma_endpoint_connected(struct rdma_peer *rdma, const struct wh_rdma_connected *answer)
{
	char why[WH_REFUSAL];
	struct rdma_endpoint *endpoint;

	pthread_mutex_lock(&rdma->lock);
	endpoint = endpoint_by_number(rdma, answer->number);
	if (!endpoint) {
		pthread_mutex_unlock(&rdma->lock); /* the answer is late */
		return 0;
	}
	endpoint->since = wh_now();
	endpoint->announced = !answer->error;
	if (answer->error) {
		if (answer->error == -EBUSY)
			/* the rail is not at fault: use the same one next time */
			endpoint->attempts--;
		rdma_endpoint_break(endpoint, false, "%.60s refuses: %.120s",
				    wh_peer_name(rdma->peer), answer->text);
	} else if (rdma_qp_connect(&endpoint->snapshot, endpoint->qp, &endpoint->local_end,
				   &answer->end, why)) {
		rdma_endpoint_break(endpoint, false, "%s", why);
	} else {
		endpoint->remote_end = answer->end;
		endpoint->remote_nic = answer->nic;
		snprintf(endpoint->path, sizeof(endpoint->path), "%.15s to %.15s",
			 endpoint->local_end.name, endpoint->remote_end.name);
		endpoint->state = RDMA_PROBING;
		rdma_endpoint_probe(endpoint);
	}
	pthread_mutex_unlock(&rdma->lock);
	return 0;
}

void rdma_endpoint_spare(struct rdma_peer *rdma, uint32_t number)
{
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		struct rdma_endpoint *endpoint = rdma->endpoints[i];

		if (endpoint->state == RDMA_READY && endpoint->number == number &&
		    !rdma_endpoint_busy(endpoint) && !rdma->queued)
			rdma_endpoint_break(endpoint, true,
					    "%s is given back: %.60s needs it for others",
					    endpoint->path, wh_peer_name(rdma->peer));
	}
	pthread_mutex_unlock(&rdma->lock);
}

/* ---- the timer ------------------------------------------------------------------------------- */

/* Verbs may stay silent for ever, for example when our own cable is pulled with bytes in flight. */
static void endpoint_timer_fired(struct wh_timer *timer)
{
	struct rdma_endpoint *endpoint = wh_container(timer, struct rdma_endpoint, timer);
	int64_t now = wh_now(), timeout = endpoint_setting(endpoint, WH_SETTING_TIMEOUT) * WH_MS;
	int64_t idle = endpoint_setting(endpoint, WH_SETTING_IDLE) * WH_MS, next = timeout / 4;
	struct rdma_peer *rdma = endpoint->peer;
	bool late;

	pthread_mutex_lock(&rdma->lock);
	late = now - endpoint->since > timeout;
	if (endpoint->state == RDMA_FAILED) {
		endpoint->state = RDMA_IDLE;
		rdma_endpoint_connect(endpoint);
	} else if (endpoint->state == RDMA_WANTED) {
		wh_loop_post(endpoint_loop(endpoint), &endpoint->connect_task);
	} else if (endpoint->state == RDMA_CONNECTING && late) {
		rdma_endpoint_break(endpoint, false, "%.63s has not answered for %lld ms",
				    wh_peer_name(rdma->peer), (long long)(timeout / WH_MS));
	} else if ((endpoint->state == RDMA_PROBING || endpoint->state == RDMA_READY) && late &&
		   rdma_endpoint_busy(endpoint)) {
		rdma_endpoint_break(
			endpoint, false,
			"from %s to %s nothing has completed for %lld ms: is the MTU of all "
			"switches "
			"as large, and no cable out?",
			endpoint->local_end.name, endpoint->remote_end.name,
			(long long)(timeout / WH_MS));
	} else if (endpoint->state == RDMA_READY && !rdma_endpoint_busy(endpoint) &&
		   now - endpoint->since > idle) {
		rdma_endpoint_break(endpoint, true, "%s is given back: not used for %lld s",
				    endpoint->path, (long long)(idle / WH_SECOND));
	}
	if (endpoint->state == RDMA_CONNECTING || endpoint->state == RDMA_PROBING ||
	    endpoint->state == RDMA_READY)
		wh_timer_set(endpoint_loop(endpoint), timer,
			     now + (next < idle / 4 + 1 ? next : idle / 4 + 1));
	pthread_mutex_unlock(&rdma->lock);
}

int rdma_client_open(struct rdma_peer *rdma)
{
	struct rdma *all = rdma->rdma;

	for (unsigned i = 0; i < all->rail_count && i < RDMA_ENDPOINTS; i++) {
		struct rdma_endpoint *endpoint = calloc(1, sizeof(*endpoint));

		if (!endpoint)
			return -ENOMEM;
		rdma->endpoints[rdma->endpoint_count++] = endpoint;
		endpoint->peer = rdma;
		endpoint->rail = &all->rails[i];
		endpoint->index = i;
		endpoint->source.fd = -1;
		endpoint->connect_task.run = endpoint_connect_now;
		endpoint->break_task.run = endpoint_take_down;
		endpoint->ended_task.run = endpoint_down;
		endpoint->timer.fire = endpoint_timer_fired;
		endpoint->backoff = RDMA_BACKOFF_FIRST;
	}
	return 0;
}
