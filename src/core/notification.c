/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications: the inbox of an engine, and the way there.
 *
 * The inbox is bounded. What does not fit waits at its sender's session (at most WINDOW of them,
 * which is also the most that a peer sends without having them confirmed) or, when an engine notifies
 * itself, with the batch. Whoever is turned away marks the inbox as `wanted`; whoever takes something
 * out of a wanted inbox has loop 0 deliver what waits. So as long as anything waits, the inbox is
 * wanted or loop 0 is about to look.
 *
 * Locks: engine.lock, wh_peer.note_lock, wh_inbox.lock, wh_control.lock. wh_batch_finish() is never
 * called under one of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "util/clock.h"
#include "util/ready.h"
#include "wire/bytes.h"

#define WINDOW 16
#define SEQUENCE 8 /* bytes of it in front of the user's */

struct note {
	struct wh_list link;         /* inbox.notes or inbox.waiting */
	struct wh_list session_link; /* session.notes, while it waits */
	struct wh_session *session;
	uint64_t sequence;
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
	int fd;      /* readable while count is not 0 */
	struct wh_task deliver;
	struct wh_list waiting; /* of all sessions, the oldest first; on loop 0 */
	bool own_first;         /* whose turn it is, our own or the sessions'; on loop 0 */
};

/* ---- the inbox ---------------------------------------------------------------------------- */

static struct note *note_new(uint64_t epoch, const char *sender, const void *data, size_t length)
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
	bool spin = inbox->engine->config.number[WH_KNOB_SPIN];
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

int wh_session_notified(struct wh_session *session, const uint8_t *payload, size_t length)
{
	struct wh_inbox *inbox = session->engine->inbox;
	struct note *note;

	if (length <= SEQUENCE || length > SEQUENCE + WH_NOTIFICATION_MAX ||
	    session->note_count >= WINDOW)
		return -EPROTO;
	note = note_new(session->hello.epoch, session->hello.name, payload + SEQUENCE,
			length - SEQUENCE);
	if (!note)
		return -ENOMEM;
	note->session = session;
	note->sequence = wh_get64(payload);
	/* Behind those who wait already. */
	if (wh_list_empty(&inbox->waiting) && push(inbox, note))
		return confirm(session, wh_get64(payload));
	/* One may wait in any case. */
	if (session->note_count)
		note->charged = (int64_t)(sizeof(*note) + note->length);
	if (!wh_guest_queue(session->guest, note->charged)) {
		free(note);
		session->control.full = "notifies more than may wait for its address (the knob held)";
		return -ENOBUFS;
	}
	wh_list_append(&inbox->waiting, &note->link);
	wh_list_append(&session->notes, &note->session_link);
	session->note_count++;
	return 0;
}

void wh_session_notes_drop(struct wh_session *session)
{
	struct wh_list *link;

	while ((link = wh_list_take(&session->notes))) {
		struct note *note = wh_container(link, struct note, session_link);

		wh_list_remove(&note->link);
		wh_guest_queue(session->guest, -note->charged);
		free(note);
	}
	session->note_count = 0;
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
	session->note_count--;
	wh_guest_queue(session->guest, -charged);
	confirm(session, sequence);
	return true;
}

/* ---- to this engine itself ----------------------------------------------------------------- */

/* 0, -EAGAIN (no room), -ENOMEM. */
static int put_own(struct wh_engine *engine, const struct wh_batch *batch)
{
	struct note *note = note_new(engine->epoch, engine->name, batch->note, batch->note_length);

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
	pthread_mutex_lock(&peer->note_lock);
	if (atomic_load(&batch->cancelled))
		error = -ECANCELED;
	else if (!wh_list_empty(&peer->notes_waiting))
		error = -EAGAIN;
	else
		error = put_own(peer->engine, batch);
	if (error == -EAGAIN)
		wh_list_append(&peer->notes_waiting, &batch->note_link);
	pthread_mutex_unlock(&peer->note_lock);
	if (error != -EAGAIN)
		end(batch, error);
}

/* The first that waits at `peer`, if there is room now; NULL. Under engine.lock. */
static struct wh_batch *put_waiting(struct wh_peer *peer, int *error)
{
	struct wh_batch *batch = NULL;

	pthread_mutex_lock(&peer->note_lock);
	if (!wh_list_empty(&peer->notes_waiting)) {
		batch = wh_container(peer->notes_waiting.next, struct wh_batch, note_link);
		*error = put_own(peer->engine, batch);
		if (*error == -EAGAIN)
			batch = NULL;
		else
			wh_list_remove(&batch->note_link);
	}
	pthread_mutex_unlock(&peer->note_lock);
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

/* Under note_lock: a peer that is lost is not connected again before wh_notes_lost() has had this
 * lock, so that nothing gets to another epoch of it. */
static int send_one(struct wh_peer *peer, struct wh_batch *batch)
{
	uint8_t bytes[SEQUENCE + WH_NOTIFICATION_MAX];
	int error;

	if (atomic_load(&batch->cancelled))
		return -ECANCELED;
	if (atomic_load(&peer->state) != WH_PEER_CONNECTED)
		return -ECONNRESET;
	batch->note_sequence = ++peer->note_sequence;
	wh_put64(bytes, batch->note_sequence);
	memcpy(bytes + SEQUENCE, batch->note, batch->note_length);
	error = wh_control_send(&peer->control, WH_FRAME_NOTIFY, 0, bytes,
				SEQUENCE + batch->note_length);
	if (error)
		return error == -ENOMEM ? error : -ECONNRESET;
	wh_list_append(&peer->notes_sent, &batch->note_link);
	peer->note_count++;
	return 0;
}

/* Send what the window takes. As soon as the lock is given back, what was sent may be confirmed, its batch
 * freed and the peer closed, by others; so it is taken once, and the peer not touched afterwards. */
static void send_waiting(struct wh_peer *peer)
{
	struct wh_batch *batch, *failed = NULL;
	struct wh_list *link;
	int error;

	pthread_mutex_lock(&peer->note_lock);
	while (peer->note_count < WINDOW && (link = wh_list_take(&peer->notes_waiting))) {
		batch = wh_container(link, struct wh_batch, note_link);
		error = send_one(peer, batch);
		if (!error)
			continue;
		batch->note_error = error;
		batch->note_next = failed;
		failed = batch;
	}
	pthread_mutex_unlock(&peer->note_lock);
	while ((batch = failed)) {
		failed = batch->note_next;
		end(batch, batch->note_error);
	}
}

void wh_note_send(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	if (peer->self) {
		send_own(peer, batch);
		return;
	}
	pthread_mutex_lock(&peer->note_lock);
	wh_list_append(&peer->notes_waiting, &batch->note_link);
	pthread_mutex_unlock(&peer->note_lock);
	send_waiting(peer);
}

bool wh_note_cancel(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;
	bool waited;

	pthread_mutex_lock(&peer->note_lock);
	waited = batch->note_link.next;
	/* If it has been sent it counts until the peer confirms it, but as nobody's. */
	wh_list_remove(&batch->note_link);
	pthread_mutex_unlock(&peer->note_lock);
	return waited;
}

void wh_note_confirmed(struct wh_peer *peer, uint64_t sequence)
{
	struct wh_batch *found = NULL;
	unsigned sent = 0;

	pthread_mutex_lock(&peer->note_lock);
	for (struct wh_list *l = peer->notes_sent.next; l != &peer->notes_sent; l = l->next) {
		struct wh_batch *batch = wh_container(l, struct wh_batch, note_link);

		sent++;
		if (batch->note_sequence == sequence)
			found = batch;
	}
	if (found)
		wh_list_remove(&found->note_link);
	/* Else of one that was cancelled, or made up. */
	if (found || peer->note_count > sent)
		peer->note_count--;
	pthread_mutex_unlock(&peer->note_lock);
	if (found)
		wh_batch_finish(found);
	send_waiting(peer);
}

void wh_notes_lost(struct wh_peer *peer, int error, const char *text)
{
	struct wh_list *link;

	do {
		pthread_mutex_lock(&peer->note_lock);
		peer->note_count = 0;
		link = wh_list_take(&peer->notes_sent);
		if (!link)
			link = wh_list_take(&peer->notes_waiting);
		pthread_mutex_unlock(&peer->note_lock);
		if (link) {
			struct wh_batch *batch = wh_container(link, struct wh_batch, note_link);

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
	inbox->room = (uint32_t)engine->config.number[WH_KNOB_NOTIFICATIONS];
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
