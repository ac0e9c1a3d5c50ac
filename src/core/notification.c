/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications: the inbox of an engine, and the way there.
 *
 * The inbox is bounded. What does not fit waits at its sender's session (at most WINDOW of them,
 * which is also the most that a peer sends without having them confirmed) or, when an engine
 * notifies itself, with the batch. Whoever is turned away marks the inbox as `wanted`; whoever
 * takes something out of a wanted inbox has loop 0 deliver what waits. So as long as anything
 * waits, the inbox is wanted or loop 0 is about to look.
 *
 * They go over the control connection, or by a transport's own way. In the latter case one may be
 * sent behind the bytes of its batch, before these are known to have arrived, if they cannot be
 * overtaken: then it may be confirmed before its batch's pieces have ended.
 *
 * Locks: engine.lock, wh_peer.notify_lock, that of a transport, wh_inbox.lock, wh_control.lock.
 * wh_batch_finish() is never called under one of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/session.h"
#include "net/control.h"
#include "net/quota.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "util/ready.h"
#include "wire/bytes.h"
#include "wire/wire.h"

#define WINDOW WH_NOTIFY_WINDOW
#define SEQUENCE 8 /* bytes of it in front of the user's */

struct note {
	struct wh_list link; /* inbox.notes or inbox.waiting */
	struct wh_list session_link; /* session.notes, while it waits */
	struct wh_session *session;
	uint64_t sequence;
	uint32_t by; /* connection of a transport; 0: the control connection */
	int64_t charged; /* bytes, to the guest whose it is, while it waits */
	uint64_t epoch;
	char sender[WH_NAME_MAX];
	size_t length;
	unsigned char data[];
};

struct wh_inbox {
	struct wh_engine *engine;
	pthread_mutex_t lock;
	struct wh_list notes;
	_Atomic uint32_t count; /* of them; changed under the lock */
	uint32_t room;
	bool wanted; /* somebody has been turned away */
	int fd; /* readable while count is not 0 */
	struct wh_task deliver;
	struct wh_list waiting; /* of all sessions, the oldest first; on loop 0 */
	bool own_first; /* whose turn it is, our own or the sessions'; on loop 0 */
};

/* ---- the inbox ---------------------------------------------------------------------------- */

static struct note *queued_notification_new(uint64_t epoch, const char *sender, const void *data,
					    size_t length)
{
	struct note *note = malloc(sizeof(*note) + length);

	if (!note)
		return NULL;
	memset(note, 0, sizeof(*note));
	note->epoch = epoch;
	memcpy(note->sender, sender, strnlen(sender, WH_NAME_MAX - 1));
	note->length = length;
	memcpy(note->data, data, length);
	return note;
}

/* False: there is no room; the note is still the caller's. */
static bool push(struct wh_inbox *inbox, struct note *note)
{
	bool fits;

	pthread_mutex_lock(&inbox->lock);
	fits = atomic_load(&inbox->count) < inbox->room;
	if (fits) {
		wh_list_append(&inbox->notes, &note->link);
		if (!atomic_fetch_add(&inbox->count, 1))
			wh_ready_set(inbox->fd);
	} else {
		inbox->wanted = true;
	}
	pthread_mutex_unlock(&inbox->lock);
	return fits;
}

static struct note *pop(struct wh_inbox *inbox)
{
	struct wh_list *link;
	bool wanted = false;

	if (!atomic_load_explicit(&inbox->count, memory_order_acquire))
		return NULL;
	pthread_mutex_lock(&inbox->lock);
	link = wh_list_take(&inbox->notes);
	if (link) {
		if (atomic_fetch_sub(&inbox->count, 1) == 1)
			wh_ready_clear(inbox->fd);
		wanted = inbox->wanted;
		inbox->wanted = false;
	}
	pthread_mutex_unlock(&inbox->lock);
	if (wanted)
		wh_loop_post(&inbox->engine->loops[0], &inbox->deliver);
	return link ? wh_container(link, struct note, link) : NULL;
}

static struct note *wait_note(struct wh_inbox *inbox, int64_t deadline)
{
	bool spin = inbox->engine->config.number[WH_SETTING_SPIN];
	struct note *note;

	while (spin ? wh_ready_spin(&inbox->count, deadline) : wh_ready_wait(inbox->fd, deadline)) {
		note = pop(inbox);
		if (note)
			return note;
	}
	return NULL;
}

int wh_engine_notification(struct wh_engine *engine, struct wh_notification *out, int64_t timeout)
{
	int error = wh_engine_guard(engine, "wh_engine_notification");
	struct note *note;

	if (error)
		return error;
	if (!out || timeout < 0)
		return wh_fail(EINVAL, "wh_engine_notification: %s",
			       out ? "timeout is negative; WH_FOREVER waits for ever" :
				     "out is NULL");
	if (timeout && wh_engine_inside(engine))
		return wh_fail(
			EDEADLK,
			"wh_engine_notification: waiting in one of the engine's own threads");
	note = pop(engine->inbox);
	if (!note && timeout)
		note = wait_note(engine->inbox, wh_deadline(timeout));
	if (!note)
		return wh_fail(EAGAIN, "wh_engine_notification: none has come");
	out->epoch = note->epoch;
	out->length = note->length;
	memcpy(out->sender, note->sender, sizeof(out->sender));
	memcpy(out->data, note->data, note->length);
	free(note);
	return 0;
}

int wh_engine_notification_fd(const struct wh_engine *engine)
{
	int error = wh_engine_guard(engine, "wh_engine_notification_fd");

	return error ? error : engine->inbox->fd;
}

/* ---- from a session ------------------------------------------------------------------------ */

static int confirm(struct wh_session *session, uint64_t sequence)
{
	uint8_t bytes[SEQUENCE];

	wh_put64(bytes, sequence);
	return wh_control_send(&session->control, WH_FRAME_NOTIFIED, 0, bytes, sizeof(bytes));
}

static int take_in(struct wh_session *session, uint32_t by, uint64_t sequence, const void *data,
		   size_t length)
{
	struct wh_inbox *inbox = session->engine->inbox;
	struct note *note;

	if (session->notify_count >= WINDOW)
		return -EPROTO;
	note = queued_notification_new(session->hello.epoch, session->hello.name, data, length);
	if (!note)
		return -ENOMEM;
	note->session = session;
	note->sequence = sequence;
	note->by = by;
	/* Behind those who wait already. */
	if (wh_list_empty(&inbox->waiting) && push(inbox, note))
		return confirm(session, sequence);
	/* One may wait in any case. */
	if (session->notify_count)
		note->charged = (int64_t)(sizeof(*note) + note->length);
	if (!wh_quota_charge_queued(session->quota, note->charged)) {
		free(note);
		session->control.full =
			"notifies more than may wait for its address (the setting max_buffered)";
		return -ENOBUFS;
	}
	wh_list_append(&inbox->waiting, &note->link);
	wh_list_append(&session->notes, &note->session_link);
	session->notify_count++;
	return 0;
}

int wh_session_notified(struct wh_session *session, const uint8_t *payload, size_t length)
{
	if (length <= SEQUENCE || length > SEQUENCE + WH_NOTIFICATION_MAX)
		return -EPROTO;
	return take_in(session, 0, wh_get64(payload), payload + SEQUENCE, length - SEQUENCE);
}

int wh_session_notified_by_transport(struct wh_session *session, uint32_t by, uint64_t sequence,
				     const void *data, size_t length)
{
	return take_in(session, by, sequence, data, length);
}

static void drop_waiting(struct wh_session *session, struct note *note)
{
	wh_list_remove(&note->session_link);
	wh_list_remove(&note->link);
	wh_quota_charge_queued(session->quota, -note->charged);
	session->notify_count--;
	free(note);
}

void wh_session_notifications_forget(struct wh_session *session, uint32_t by)
{
	struct wh_list *link, *next;

	for (link = session->notes.next; link != &session->notes; link = next) {
		struct note *note = wh_container(link, struct note, session_link);

		next = link->next;
		if (note->by == by)
			drop_waiting(session, note);
	}
}

void wh_session_notifications_drop(struct wh_session *session)
{
	while (!wh_list_empty(&session->notes))
		drop_waiting(session, wh_container(session->notes.next, struct note, session_link));
}

/* The oldest of those that wait. False: there is none, or no room. On loop 0. */
static bool deliver_theirs(struct wh_inbox *inbox)
{
	struct wh_list *link = wh_list_take(&inbox->waiting);
	struct wh_session *session;
	struct note *note;
	uint64_t sequence;
	int64_t charged;

	if (!link)
		return false;
	note = wh_container(link, struct note, link);
	session = note->session;
	sequence = note->sequence;
	charged = note->charged;
	wh_list_remove(&note->session_link);
	if (!push(inbox, note)) {
		wh_list_append(&session->notes, &note->session_link);
		wh_list_append(inbox->waiting.next, &note->link); /* in front of the others */
		return false;
	}
	/* From here the note belongs to whoever takes it. */
	session->notify_count--;
	wh_quota_charge_queued(session->quota, -charged);
	confirm(session, sequence);
	return true;
}

/* ---- to this engine itself ----------------------------------------------------------------- */

/* 0, -EAGAIN (no room), -ENOMEM. */
static int put_own(struct wh_engine *engine, const struct wh_batch *batch)
{
	struct note *note = queued_notification_new(engine->epoch, engine->name, batch->note,
						    batch->notification_length);

	if (!note)
		return -ENOMEM;
	if (push(engine->inbox, note))
		return 0;
	free(note);
	return -EAGAIN;
}

static void end(struct wh_batch *batch, int error)
{
	if (error == -ECANCELED)
		wh_batch_fail(batch, error, "cancelled before its notification was sent");
	else if (error == -ENOMEM)
		wh_batch_fail(batch, error, "no memory for the notification");
	else if (error)
		wh_batch_fail(batch, error,
			      "the notification cannot be sent: the connection is lost");
	wh_batch_finish(batch);
}

static void send_own(struct wh_peer *peer, struct wh_batch *batch)
{
	int error;

	/* Under the lock until it is in the list, so that loop 0, told to look by whoever makes
	 * room, finds it there. */
	pthread_mutex_lock(&peer->notify_lock);
	if (atomic_load(&batch->cancelled))
		error = -ECANCELED;
	else if (!wh_list_empty(&peer->notify_waiting))
		error = -EAGAIN;
	else
		error = put_own(peer->engine, batch);
	if (error == -EAGAIN)
		wh_list_append(&peer->notify_waiting, &batch->notify_link);
	pthread_mutex_unlock(&peer->notify_lock);
	if (error != -EAGAIN)
		end(batch, error);
}

/* The first that waits at `peer`, if there is room now; NULL. Under engine.lock. */
static struct wh_batch *put_waiting(struct wh_peer *peer, int *error)
{
	struct wh_batch *batch = NULL;

	pthread_mutex_lock(&peer->notify_lock);
	if (!wh_list_empty(&peer->notify_waiting)) {
		batch = wh_container(peer->notify_waiting.next, struct wh_batch, notify_link);
		*error = put_own(peer->engine, batch);
		if (*error == -EAGAIN)
			batch = NULL;
		else
			wh_list_remove(&batch->notify_link);
	}
	pthread_mutex_unlock(&peer->notify_lock);
	return batch;
}

/* One that waits in a batch of ours. False: there is none, or no room. On loop 0. */
static bool deliver_own(struct wh_inbox *inbox)
{
	struct wh_engine *engine = inbox->engine;
	struct wh_batch *batch = NULL;
	int error = 0;

	pthread_mutex_lock(&engine->lock);
	for (struct wh_list *l = engine->peers.next; l != &engine->peers && !batch; l = l->next) {
		struct wh_peer *peer = wh_container(l, struct wh_peer, link);

		if (peer->self)
			batch = put_waiting(peer, &error);
	}
	pthread_mutex_unlock(&engine->lock);
	if (batch)
		end(batch, error);
	return batch;
}

/* There may be room: in turn, until there is none, or nothing waits. */
static void deliver(struct wh_task *task)
{
	struct wh_inbox *inbox = wh_container(task, struct wh_inbox, deliver);
	bool own = true, theirs = true;

	while (own || theirs) {
		if (inbox->own_first)
			own = deliver_own(inbox);
		else
			theirs = deliver_theirs(inbox);
		inbox->own_first = !inbox->own_first;
	}
}

/* ---- to a peer ------------------------------------------------------------------------------ */

static int by_control(struct wh_peer *peer, uint64_t sequence, const void *data, size_t length)
{
	uint8_t bytes[SEQUENCE + WH_NOTIFICATION_MAX];

	wh_put64(bytes, sequence);
	memcpy(bytes + SEQUENCE, data, length);
	return wh_control_send(&peer->control, WH_FRAME_NOTIFY, 0, bytes, SEQUENCE + length);
}

static int by_transport(struct wh_peer *peer, struct wh_batch *batch, uint64_t sequence)
{
	if (!peer->opened[WH_TRANSPORT_RDMA])
		return -EOPNOTSUPP;
	return wh_transport(WH_TRANSPORT_RDMA)
		->notify(peer, peer->transport[WH_TRANSPORT_RDMA], batch, sequence);
}

/* Under notify_lock: a peer that is lost is not connected again before wh_notify_peer_lost() has
 * had this lock, so that nothing gets to another epoch of it. */
static int send_one(struct wh_peer *peer, struct wh_batch *batch)
{
	uint64_t sequence = peer->notify_sequence + 1;
	int error;

	if (atomic_load(&batch->cancelled))
		return -ECANCELED;
	if (atomic_load(&peer->state) != WH_PEER_CONNECTED)
		return -ECONNRESET;
	error = by_transport(peer, batch, sequence);
	if (error == -EAGAIN)
		return error;
	atomic_store(&batch->notify_path, error ? WH_NOTIFY_CONTROL : WH_NOTIFY_TRANSPORT);
	if (error)
		error = by_control(peer, sequence, batch->note, batch->notification_length);
	if (error)
		return error == -ENOMEM ? error : -ECONNRESET;
	batch->notify_sequence = peer->notify_sequence = sequence;
	wh_list_append(&peer->notify_sent, &batch->notify_link);
	peer->notify_count++;
	return 0;
}

/* Send what the window takes. As soon as the lock is given back, what was sent may be confirmed,
 * its batch freed and the peer closed, by others; so it is taken once, and the peer not touched
 * afterwards. */
static void send_waiting(struct wh_peer *peer)
{
	struct wh_batch *batch, *failed = NULL;
	struct wh_list *link;
	int error = 0;

	pthread_mutex_lock(&peer->notify_lock);
	while (error != -EAGAIN && peer->notify_count < WINDOW &&
	       (link = wh_list_take(&peer->notify_waiting))) {
		batch = wh_container(link, struct wh_batch, notify_link);
		error = send_one(peer, batch);
		if (error == -EAGAIN)
			wh_list_push(&peer->notify_waiting, &batch->notify_link);
		if (!error || error == -EAGAIN)
			continue;
		batch->notify_error = error;
		batch->notify_next = failed;
		failed = batch;
	}
	pthread_mutex_unlock(&peer->notify_lock);
	while ((batch = failed)) {
		failed = batch->notify_next;
		end(batch, batch->notify_error);
	}
}

void wh_notify_resume(struct wh_peer *peer)
{
	send_waiting(peer);
}

void wh_notify_send(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;
	uint8_t state;

	if (peer->self) {
		send_own(peer, batch);
		return;
	}
	pthread_mutex_lock(&peer->notify_lock);
	state = batch->notify_state;
	batch->notify_state = WH_NOTIFY_NONE;
	if (state == WH_NOTIFY_EARLY) { /* from here as any that has been sent */
		wh_list_remove(&batch->notify_link);
		wh_list_append(&peer->notify_sent, &batch->notify_link);
	} else if (state == WH_NOTIFY_NONE) {
		wh_list_append(&peer->notify_waiting, &batch->notify_link);
	}
	pthread_mutex_unlock(&peer->notify_lock);
	if (state == WH_NOTIFY_NONE)
		send_waiting(peer);
	else if (state == WH_NOTIFY_CONFIRMED)
		wh_batch_finish(batch);
	else if (state == WH_NOTIFY_LOST)
		end(batch, -ECONNRESET);
}

/* Under notify_lock. What has been sent counts until the peer confirms it, but as nobody's. */
static void leave_ahead(struct wh_batch *batch)
{
	if (batch->notify_state == WH_NOTIFY_EARLY)
		wh_list_remove(&batch->notify_link);
	batch->notify_state = WH_NOTIFY_NONE;
}

void wh_notify_drop(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	pthread_mutex_lock(&peer->notify_lock);
	leave_ahead(batch);
	pthread_mutex_unlock(&peer->notify_lock);
}

bool wh_notify_cancel(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;
	bool waited = false;

	pthread_mutex_lock(&peer->notify_lock);
	if (batch->notify_state != WH_NOTIFY_NONE) { /* its pieces have not ended */
		leave_ahead(batch);
	} else {
		waited = batch->notify_link.next;
		/* If it has been sent it counts until the peer confirms it, but as nobody's. */
		wh_list_remove(&batch->notify_link);
	}
	pthread_mutex_unlock(&peer->notify_lock);
	return waited;
}

bool wh_notify_can_send_early(const struct wh_batch *batch)
{
	const struct wh_peer *peer = batch->peer;

	return peer->notify_count < WINDOW && wh_list_empty(&peer->notify_waiting) &&
	       atomic_load(&peer->state) == WH_PEER_CONNECTED && !atomic_load(&batch->cancelled) &&
	       !atomic_load(&batch->status);
}

uint64_t wh_notify_send_early(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	batch->notify_sequence = ++peer->notify_sequence;
	batch->notify_state = WH_NOTIFY_EARLY;
	atomic_store(&batch->notify_path, WH_NOTIFY_TRANSPORT_EARLY);
	wh_list_append(&peer->notify_early, &batch->notify_link);
	peer->notify_count++;
	return batch->notify_sequence;
}

/* The batch in the list whose notification has this number; NULL. The list has *count more of them.
 */
static struct wh_batch *find(const struct wh_list *list, uint64_t sequence, unsigned *count)
{
	struct wh_batch *found = NULL;

	for (struct wh_list *l = list->next; l != list; l = l->next) {
		struct wh_batch *batch = wh_container(l, struct wh_batch, notify_link);

		++*count;
		if (batch->notify_sequence == sequence)
			found = batch;
	}
	return found;
}

void wh_notify_undelivered(struct wh_peer *peer, uint64_t sequence, const void *data, size_t length)
{
	unsigned count = 0;
	struct wh_batch *ahead = find(&peer->notify_early, sequence, &count);
	struct wh_batch *sent = find(&peer->notify_sent, sequence, &count);

	if (sent) { /* if that fails the connection is lost, and all with it */
		atomic_store(&sent->notify_path, WH_NOTIFY_CONTROL);
		by_control(peer, sequence, data, length);
		return;
	}
	if (ahead)
		leave_ahead(ahead);
	peer->notify_count--;
}

void wh_notify_confirmed(struct wh_peer *peer, uint64_t sequence)
{
	struct wh_batch *found, *ahead;
	unsigned sent = 0;

	pthread_mutex_lock(&peer->notify_lock);
	if (peer->opened[WH_TRANSPORT_RDMA])
		wh_transport(WH_TRANSPORT_RDMA)
			->notified(peer, peer->transport[WH_TRANSPORT_RDMA], sequence);
	found = find(&peer->notify_sent, sequence, &sent);
	ahead = find(&peer->notify_early, sequence, &sent);
	if (found)
		wh_list_remove(&found->notify_link);
	if (ahead) {
		leave_ahead(ahead);
		ahead->notify_state = WH_NOTIFY_CONFIRMED;
	}
	/* Else of one that was cancelled, or made up. */
	if (found || ahead || peer->notify_count > sent)
		peer->notify_count--;
	pthread_mutex_unlock(&peer->notify_lock);
	if (found)
		wh_batch_finish(found);
	send_waiting(peer);
}

void wh_notify_peer_lost(struct wh_peer *peer, int error, const char *text)
{
	struct wh_list *link;

	do {
		pthread_mutex_lock(&peer->notify_lock);
		peer->notify_count = 0;
		while (!wh_list_empty(&peer->notify_early)) {
			struct wh_batch *batch =
				wh_container(peer->notify_early.next, struct wh_batch, notify_link);

			leave_ahead(batch);
			batch->notify_state = WH_NOTIFY_LOST;
		}
		link = wh_list_take(&peer->notify_sent);
		if (!link)
			link = wh_list_take(&peer->notify_waiting);
		pthread_mutex_unlock(&peer->notify_lock);
		if (link) {
			struct wh_batch *batch = wh_container(link, struct wh_batch, notify_link);

			wh_batch_fail(batch, error, text);
			wh_batch_finish(batch);
		}
	} while (link);
}

/* ---- open and close ------------------------------------------------------------------------- */

int wh_inbox_open(struct wh_engine *engine)
{
	struct wh_inbox *inbox = calloc(1, sizeof(*inbox));
	int fd;

	if (!inbox)
		return wh_fail(ENOMEM, "wh_engine_open: no memory");
	fd = wh_ready_open("wh_engine_open");
	if (fd < 0) {
		free(inbox);
		return fd;
	}
	inbox->engine = engine;
	inbox->fd = fd;
	inbox->room = (uint32_t)engine->config.number[WH_SETTING_NOTIFICATIONS];
	inbox->deliver.run = deliver;
	wh_list_init(&inbox->notes);
	wh_list_init(&inbox->waiting);
	pthread_mutex_init(&inbox->lock, NULL);
	engine->inbox = inbox;
	return 0;
}

static void nothing(void *argument)
{
	(void)argument;
}

void wh_inbox_close(struct wh_engine *engine)
{
	struct wh_inbox *inbox = engine->inbox;
	struct wh_list *link;

	/* Behind a delivery that is still due. */
	wh_loop_call(&engine->loops[0], nothing, NULL);
	while ((link = wh_list_take(&inbox->notes)))
		free(wh_container(link, struct note, link));
	close(inbox->fd);
	pthread_mutex_destroy(&inbox->lock);
	free(inbox);
	engine->inbox = NULL;
}
