/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending the notification of a batch, to a peer or to this engine itself.
 *
 * A notification goes over the control connection, or by a transport's own means. A transport may
 * send it early: behind the bytes of its batch, before these are known to have arrived, if it
 * cannot overtake them. It may then be confirmed before the fragments of its batch have ended.
 *
 * Locks, outermost first: engine.lock, wh_peer.notify_lock, a transport's, wh_inbox.lock,
 * wh_control.lock. wh_batch_finish() is never called under one of them.
 */
#include <errno.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "net/control.h"
#include "transport/transport.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* ---- to this engine itself ------------------------------------------------------------------ */

static void notify_end(struct wh_batch *batch, int error)
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

static void notify_send_self(struct wh_peer *peer, struct wh_batch *batch)
{
	int error;

	/* Keep the lock until the batch is in the list: a delivery that starts when there is room
	 * again has to find it there. */
	pthread_mutex_lock(&peer->notify_lock);
	if (atomic_load(&batch->cancelled))
		error = -ECANCELED;
	else if (!wh_list_empty(&peer->notify_waiting))
		error = -EAGAIN;
	else
		error = wh_inbox_put_self(peer->engine, batch);
	if (error == -EAGAIN)
		wh_list_append(&peer->notify_waiting, &batch->notify_link);
	pthread_mutex_unlock(&peer->notify_lock);
	if (error != -EAGAIN)
		notify_end(batch, error);
}

/* Deliver the notification of the first batch that waits at `peer`, and return the batch. NULL:
 * none waits, or there is no room. Under engine.lock. */
static struct wh_batch *notify_put_waiting(struct wh_peer *peer, int *error)
{
	struct wh_batch *batch = NULL;

	pthread_mutex_lock(&peer->notify_lock);
	if (!wh_list_empty(&peer->notify_waiting)) {
		batch = wh_container(peer->notify_waiting.next, struct wh_batch, notify_link);
		*error = wh_inbox_put_self(peer->engine, batch);
		if (*error == -EAGAIN)
			batch = NULL;
		else
			wh_list_remove(&batch->notify_link);
	}
	pthread_mutex_unlock(&peer->notify_lock);
	return batch;
}

bool wh_notify_deliver_self(struct wh_engine *engine)
{
	struct wh_batch *batch = NULL;
	int error = 0;

	pthread_mutex_lock(&engine->lock);
	for (struct wh_list *l = engine->peers.next; l != &engine->peers && !batch; l = l->next) {
		struct wh_peer *peer = wh_container(l, struct wh_peer, link);

		if (peer->self)
			batch = notify_put_waiting(peer, &error);
	}
	pthread_mutex_unlock(&engine->lock);
	if (batch)
		notify_end(batch, error);
	return batch;
}

/* ---- what is unconfirmed; under notify_lock -------------------------------------------------- */

/* May this batch's notification be sent? The peer keeps what it has no room for, up to this. */
static bool notify_window_fits(const struct wh_peer *peer, const struct wh_batch *batch)
{
	return peer->notify_count < WH_NOTIFY_UNCONFIRMED &&
	       peer->notify_bytes + batch->note_length <= WH_NOTIFY_UNCONFIRMED_BYTES;
}

static struct wh_notify_slot *notify_window_find(struct wh_peer *peer, uint64_t sequence)
{
	for (unsigned i = 0; i < WH_NOTIFY_UNCONFIRMED; i++)
		if (peer->notify_window[i].sequence == sequence)
			return &peer->notify_window[i];
	return NULL;
}

/* Count the batch's notification as sent, with the next number. It fits. */
static uint64_t notify_window_add(struct wh_peer *peer, struct wh_batch *batch)
{
	struct wh_notify_slot *slot = notify_window_find(peer, 0);

	batch->notify_sequence = slot->sequence = ++peer->notify_sequence;
	slot->bytes = batch->note_length;
	peer->notify_count++;
	peer->notify_bytes += slot->bytes;
	return slot->sequence;
}

/* It is confirmed, or never will be. Ignores a number that is not in the window: the peer has made
 * it up. */
static void notify_window_remove(struct wh_peer *peer, uint64_t sequence)
{
	struct wh_notify_slot *slot = sequence ? notify_window_find(peer, sequence) : NULL;

	if (!slot)
		return;
	peer->notify_count--;
	peer->notify_bytes -= slot->bytes;
	*slot = (struct wh_notify_slot){ 0 };
}

/* ---- to a peer ------------------------------------------------------------------------------ */

/* Under notify_lock, which also guards the head in front of the batch's bytes. */
static int notify_by_control(struct wh_batch *batch, uint64_t sequence)
{
	wh_put64(wh_put64(batch->note, sequence), batch->note_tag);
	return wh_control_send(&batch->peer->control, WH_FRAME_NOTIFY, 0, batch->note,
			       WH_NOTIFY_HEAD + batch->note_length);
}

static bool notify_can_use(const struct wh_peer *peer, unsigned id)
{
	return peer->opened[id] && wh_transport(id)->capabilities & WH_CAN_NOTIFY;
}

/* -EAGAIN: later; another error: not by any transport. */
static int notify_by_transport(struct wh_peer *peer, struct wh_batch *batch, uint64_t sequence)
{
	int error = -EOPNOTSUPP;

	for (unsigned id = 0; id < WH_TRANSPORT_COUNT && error && error != -EAGAIN; id++) {
		if (!notify_can_use(peer, id))
			continue;
		atomic_store(&batch->notify_by, (uint8_t)id);
		error = wh_transport(id)->notify(peer, peer->transport[id], batch, sequence);
	}
	return error;
}

/* Under notify_lock: a lost peer is not connected again before wh_notify_peer_lost() has had this
 * lock, so no notification reaches another epoch of the peer. */
static int notify_send_one(struct wh_peer *peer, struct wh_batch *batch)
{
	uint64_t sequence = peer->notify_sequence + 1;
	int error;

	if (atomic_load(&batch->cancelled))
		return -ECANCELED;
	if (atomic_load(&peer->state) != WH_PEER_CONNECTED)
		return -ECONNRESET;
	error = notify_by_transport(peer, batch, sequence);
	if (error == -EAGAIN)
		return error;
	atomic_store(&batch->notify_path, error ? WH_NOTIFY_CONTROL : WH_NOTIFY_TRANSPORT);
	if (error)
		error = notify_by_control(batch, sequence);
	if (error)
		return error == -ENOMEM ? error : -ECONNRESET;
	notify_window_add(peer, batch);
	wh_list_append(&peer->notify_sent, &batch->notify_link);
	return 0;
}

/* Send waiting notifications as far as the window of unconfirmed ones goes. Once the lock is
 * released, others may confirm them, free their batches and close the peer: so the lock is taken
 * once, and the peer is not touched afterwards. */
void wh_notify_resume(struct wh_peer *peer)
{
	struct wh_batch *batch, *failed = NULL;
	struct wh_list *link;
	int error = 0;

	pthread_mutex_lock(&peer->notify_lock);
	while (error != -EAGAIN && (link = wh_list_take(&peer->notify_waiting))) {
		batch = wh_container(link, struct wh_batch, notify_link);
		error = notify_window_fits(peer, batch) ? notify_send_one(peer, batch) : -EAGAIN;
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
		notify_end(batch, batch->notify_error);
	}
}

void wh_notify_send(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;
	uint8_t state;

	if (peer->self) {
		notify_send_self(peer, batch);
		return;
	}
	pthread_mutex_lock(&peer->notify_lock);
	state = batch->notify_state;
	batch->notify_state = WH_NOTIFY_NONE;
	if (state == WH_NOTIFY_EARLY) { /* from now on like any other that has been sent */
		wh_list_remove(&batch->notify_link);
		wh_list_append(&peer->notify_sent, &batch->notify_link);
	} else if (state == WH_NOTIFY_NONE) {
		wh_list_append(&peer->notify_waiting, &batch->notify_link);
	}
	pthread_mutex_unlock(&peer->notify_lock);
	if (state == WH_NOTIFY_NONE)
		wh_notify_resume(peer);
	else if (state == WH_NOTIFY_CONFIRMED)
		wh_batch_finish(batch);
	else if (state == WH_NOTIFY_LOST)
		notify_end(batch, -ECONNRESET);
}

/* Detach the batch from a notification that was sent early; notify_count still counts that until
 * the peer confirms it. Under notify_lock. */
static void notify_detach(struct wh_batch *batch)
{
	if (batch->notify_state == WH_NOTIFY_EARLY)
		wh_list_remove(&batch->notify_link);
	batch->notify_state = WH_NOTIFY_NONE;
}

void wh_notify_drop(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;

	pthread_mutex_lock(&peer->notify_lock);
	notify_detach(batch);
	pthread_mutex_unlock(&peer->notify_lock);
}

bool wh_notify_cancel(struct wh_batch *batch)
{
	struct wh_peer *peer = batch->peer;
	bool waited = false;

	pthread_mutex_lock(&peer->notify_lock);
	if (batch->notify_state != WH_NOTIFY_NONE) { /* its fragments have not ended */
		notify_detach(batch);
	} else {
		waited = batch->notify_link.next;
		/* If it has been sent, notify_count still counts it until the peer confirms it. */
		wh_list_remove(&batch->notify_link);
	}
	pthread_mutex_unlock(&peer->notify_lock);
	return waited;
}

bool wh_notify_can_send_early(const struct wh_batch *batch, unsigned mine)
{
	const struct wh_peer *peer = batch->peer;

	return peer->notify_count == mine && notify_window_fits(peer, batch) &&
	       wh_list_empty(&peer->notify_waiting) &&
	       atomic_load(&peer->state) == WH_PEER_CONNECTED && !atomic_load(&batch->cancelled) &&
	       !atomic_load(&batch->status);
}

uint64_t wh_notify_send_early(struct wh_batch *batch, enum wh_transport_id id)
{
	struct wh_peer *peer = batch->peer;

	batch->notify_state = WH_NOTIFY_EARLY;
	atomic_store(&batch->notify_by, (uint8_t)id);
	atomic_store(&batch->notify_path, WH_NOTIFY_TRANSPORT_EARLY);
	wh_list_append(&peer->notify_early, &batch->notify_link);
	return notify_window_add(peer, batch);
}

/* The batch in `list` whose notification has this number, or NULL. */
static struct wh_batch *notify_find(const struct wh_list *list, uint64_t sequence)
{
	for (struct wh_list *l = list->next; l != list; l = l->next) {
		struct wh_batch *batch = wh_container(l, struct wh_batch, notify_link);

		if (batch->notify_sequence == sequence)
			return batch;
	}
	return NULL;
}

void wh_notify_undelivered(struct wh_peer *peer, uint64_t sequence)
{
	struct wh_batch *early = notify_find(&peer->notify_early, sequence);
	struct wh_batch *sent = notify_find(&peer->notify_sent, sequence);

	if (sent) { /* an error means that the connection is lost, which ends all batches */
		atomic_store(&sent->notify_path, WH_NOTIFY_CONTROL);
		notify_by_control(sent, sequence);
		return;
	}
	if (early)
		notify_detach(early);
	notify_window_remove(peer, sequence);
}

void wh_notify_confirmed(struct wh_peer *peer, uint64_t sequence)
{
	struct wh_batch *found, *early;

	pthread_mutex_lock(&peer->notify_lock);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (notify_can_use(peer, id))
			wh_transport(id)->notified(peer, peer->transport[id], sequence);
	found = notify_find(&peer->notify_sent, sequence);
	early = notify_find(&peer->notify_early, sequence);
	if (found)
		wh_list_remove(&found->notify_link);
	if (early) {
		notify_detach(early);
		early->notify_state = WH_NOTIFY_CONFIRMED;
	}
	notify_window_remove(peer, sequence);
	pthread_mutex_unlock(&peer->notify_lock);
	if (found)
		wh_batch_finish(found);
	wh_notify_resume(peer);
}

void wh_notify_peer_lost(struct wh_peer *peer, int error, const char *text)
{
	struct wh_list *link;

	do {
		pthread_mutex_lock(&peer->notify_lock);
		peer->notify_count = 0;
		peer->notify_bytes = 0;
		memset(peer->notify_window, 0, sizeof(peer->notify_window));
		while (!wh_list_empty(&peer->notify_early)) {
			struct wh_batch *batch =
				wh_container(peer->notify_early.next, struct wh_batch, notify_link);

			notify_detach(batch);
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
