/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inbox of an engine: notifications that have arrived and that the application has not taken
 * yet.
 *
 * It is bounded. What does not fit waits at its sender's session, at most WH_NOTIFY_WINDOW for
 * each, which is also the most that a peer sends unconfirmed; or, when the engine notifies itself,
 * with the batch. A sender that finds no room marks the inbox as `wanted`; whoever takes a
 * notification out of a wanted inbox has loop 0 deliver what waits. So while anything waits, the
 * inbox is wanted or a delivery is due.
 *
 * wh_inbox.lock is taken after engine.lock, wh_peer.notify_lock and a transport's locks, and before
 * wh_control.lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/notification.h"
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

struct notification {
	struct wh_list link; /* inbox.arrived or inbox.waiting */
	/* While it waits: */
	struct wh_list session_link; /* session.notifications */
	struct wh_session *session;
	uint64_t sequence;
	uint32_t by; /* connection of a transport; 0: the control connection */
	int64_t charged; /* bytes, to the session's quota */
	/* What the application gets: */
	uint64_t epoch;
	char sender[WH_NAME_MAX];
	size_t length;
	unsigned char data[];
};

struct wh_inbox {
	struct wh_engine *engine;
	pthread_mutex_t lock; /* below, to `wanted` */
	struct wh_list arrived; /* struct notification, the oldest first */
	_Atomic uint32_t count; /* of them; also read without the lock */
	uint32_t room; /* the most of them; setting `notifications` */
	bool wanted; /* a sender found no room */
	int fd; /* readable while count is not 0 */
	struct wh_task deliver;
	struct wh_list waiting; /* of all sessions, the oldest first; on loop 0 */
	bool self_next; /* the next one delivered is our own, not a session's; on loop 0 */
};

/* ---- the inbox ------------------------------------------------------------------------------ */

static struct notification *notification_new(uint64_t epoch, const char *sender, const void *data,
					     size_t length)
{
	struct notification *notification = malloc(sizeof(*notification) + length);

	if (!notification)
		return NULL;
	memset(notification, 0, sizeof(*notification));
	notification->epoch = epoch;
	memcpy(notification->sender, sender, strnlen(sender, WH_NAME_MAX - 1));
	notification->length = length;
	memcpy(notification->data, data, length);
	return notification;
}

/* False: there is no room; the caller still owns the notification. */
static bool inbox_push(struct wh_inbox *inbox, struct notification *notification)
{
	bool fits;

	pthread_mutex_lock(&inbox->lock);
	fits = atomic_load(&inbox->count) < inbox->room;
	if (fits) {
		wh_list_append(&inbox->arrived, &notification->link);
		if (!atomic_fetch_add(&inbox->count, 1))
			wh_ready_set(inbox->fd);
	} else {
		inbox->wanted = true;
	}
	pthread_mutex_unlock(&inbox->lock);
	return fits;
}

static struct notification *inbox_pop(struct wh_inbox *inbox)
{
	struct wh_list *link;
	bool wanted = false;

	if (!atomic_load_explicit(&inbox->count, memory_order_acquire))
		return NULL;
	pthread_mutex_lock(&inbox->lock);
	link = wh_list_take(&inbox->arrived);
	if (link) {
		if (atomic_fetch_sub(&inbox->count, 1) == 1)
			wh_ready_clear(inbox->fd);
		wanted = inbox->wanted;
		inbox->wanted = false;
	}
	pthread_mutex_unlock(&inbox->lock);
	if (wanted)
		wh_loop_post(&inbox->engine->loops[0], &inbox->deliver);
	return link ? wh_container(link, struct notification, link) : NULL;
}

static struct notification *inbox_wait(struct wh_inbox *inbox, int64_t deadline)
{
	bool spin = inbox->engine->config.number[WH_SETTING_SPIN];
	struct notification *notification;

	while (spin ? wh_ready_spin(&inbox->count, deadline) : wh_ready_wait(inbox->fd, deadline)) {
		notification = inbox_pop(inbox);
		if (notification)
			return notification;
	}
	return NULL;
}

int wh_engine_notification(struct wh_engine *engine, struct wh_notification *out, int64_t timeout)
{
	int error = wh_engine_guard(engine, "wh_engine_notification");
	struct notification *notification;

	if (error)
		return error;
	if (!out || timeout < 0)
		return wh_fail(EINVAL, "wh_engine_notification: %s",
			       out ? "timeout is negative; WH_FOREVER waits without limit" :
				     "out is NULL");
	if (timeout && wh_engine_inside(engine))
		return wh_fail(
			EDEADLK,
			"wh_engine_notification: waiting in one of the engine's own threads");
	notification = inbox_pop(engine->inbox);
	if (!notification && timeout)
		notification = inbox_wait(engine->inbox, wh_deadline(timeout));
	if (!notification)
		return wh_fail(EAGAIN, "wh_engine_notification: no notification has arrived");
	out->epoch = notification->epoch;
	out->length = notification->length;
	memcpy(out->sender, notification->sender, sizeof(out->sender));
	memcpy(out->data, notification->data, notification->length);
	free(notification);
	return 0;
}

int wh_engine_notification_fd(const struct wh_engine *engine)
{
	int error = wh_engine_guard(engine, "wh_engine_notification_fd");

	return error ? error : engine->inbox->fd;
}

/* ---- from sessions -------------------------------------------------------------------------- */

static int inbox_confirm(struct wh_session *session, uint64_t sequence)
{
	uint8_t bytes[WH_NOTIFY_SEQUENCE];

	wh_put64(bytes, sequence);
	return wh_control_send(&session->control, WH_FRAME_NOTIFIED, 0, bytes, sizeof(bytes));
}

static int inbox_receive(struct wh_session *session, uint32_t by, uint64_t sequence,
			 const void *data, size_t length)
{
	struct wh_inbox *inbox = session->engine->inbox;
	struct notification *notification;

	if (session->notify_count >= WH_NOTIFY_WINDOW)
		return -EPROTO;
	notification = notification_new(session->hello.epoch, session->hello.name, data, length);
	if (!notification)
		return -ENOMEM;
	notification->session = session;
	notification->sequence = sequence;
	notification->by = by;
	/* Not ahead of those that wait already. */
	if (wh_list_empty(&inbox->waiting) && inbox_push(inbox, notification))
		return inbox_confirm(session, sequence);
	/* One for each session may wait free of charge, so that a full quota stops no session. */
	if (session->notify_count)
		notification->charged = (int64_t)(sizeof(*notification) + notification->length);
	if (!wh_quota_charge_queued(session->quota, notification->charged)) {
		free(notification);
		session->control.full =
			"sends more notifications than may wait for its address (setting "
			"max_buffered)";
		return -ENOBUFS;
	}
	wh_list_append(&inbox->waiting, &notification->link);
	wh_list_append(&session->notifications, &notification->session_link);
	session->notify_count++;
	return 0;
}

int wh_session_notified(struct wh_session *session, const uint8_t *payload, size_t length)
{
	if (length <= WH_NOTIFY_SEQUENCE || length > WH_NOTIFY_SEQUENCE + WH_NOTIFICATION_MAX)
		return -EPROTO;
	return inbox_receive(session, 0, wh_get64(payload), payload + WH_NOTIFY_SEQUENCE,
			     length - WH_NOTIFY_SEQUENCE);
}

int wh_session_notified_by_transport(struct wh_session *session, uint32_t by, uint64_t sequence,
				     const void *data, size_t length)
{
	return inbox_receive(session, by, sequence, data, length);
}

static void inbox_drop_waiting(struct wh_session *session, struct notification *notification)
{
	wh_list_remove(&notification->session_link);
	wh_list_remove(&notification->link);
	wh_quota_charge_queued(session->quota, -notification->charged);
	session->notify_count--;
	free(notification);
}

void wh_session_notifications_forget(struct wh_session *session, uint32_t by)
{
	struct wh_list *link, *next;

	for (link = session->notifications.next; link != &session->notifications; link = next) {
		struct notification *notification =
			wh_container(link, struct notification, session_link);

		next = link->next;
		if (notification->by == by)
			inbox_drop_waiting(session, notification);
	}
}

void wh_session_notifications_drop(struct wh_session *session)
{
	while (!wh_list_empty(&session->notifications))
		inbox_drop_waiting(session, wh_container(session->notifications.next,
							 struct notification, session_link));
}

/* Deliver the oldest notification that waits at a session. False: none waits, or there is no room.
 * On loop 0. */
static bool inbox_deliver_session(struct wh_inbox *inbox)
{
	struct wh_list *link = wh_list_take(&inbox->waiting);
	struct wh_session *session;
	struct notification *notification;
	uint64_t sequence;
	int64_t charged;

	if (!link)
		return false;
	notification = wh_container(link, struct notification, link);
	session = notification->session;
	sequence = notification->sequence;
	charged = notification->charged;
	wh_list_remove(&notification->session_link);
	if (!inbox_push(inbox, notification)) {
		wh_list_append(&session->notifications, &notification->session_link);
		wh_list_append(inbox->waiting.next, &notification->link); /* at the front again */
		return false;
	}
	/* From here the application may have taken and freed it. */
	session->notify_count--;
	wh_quota_charge_queued(session->quota, -charged);
	inbox_confirm(session, sequence);
	return true;
}

/* ---- from this engine itself ---------------------------------------------------------------- */

int wh_inbox_put_self(struct wh_engine *engine, const struct wh_batch *batch)
{
	struct notification *notification =
		notification_new(engine->identity.epoch, engine->identity.name, batch->note,
				 batch->notification_length);

	if (!notification)
		return -ENOMEM;
	if (inbox_push(engine->inbox, notification))
		return 0;
	free(notification);
	return -EAGAIN;
}

/* ---- delivering what waits ------------------------------------------------------------------ */

/* There may be room: take from sessions and from our own batches in turn, until there is none or
 * nothing waits. */
static void inbox_deliver(struct wh_task *task)
{
	struct wh_inbox *inbox = wh_container(task, struct wh_inbox, deliver);
	bool own = true, sessions = true;

	while (own || sessions) {
		if (inbox->self_next)
			own = wh_notify_deliver_self(inbox->engine);
		else
			sessions = inbox_deliver_session(inbox);
		inbox->self_next = !inbox->self_next;
	}
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
	inbox->deliver.run = inbox_deliver;
	wh_list_init(&inbox->arrived);
	wh_list_init(&inbox->waiting);
	pthread_mutex_init(&inbox->lock, NULL);
	engine->inbox = inbox;
	return 0;
}

static void inbox_nothing(void *argument)
{
	(void)argument;
}

void wh_inbox_close(struct wh_engine *engine)
{
	struct wh_inbox *inbox = engine->inbox;
	struct wh_list *link;

	/* Let a delivery that is still due run first. */
	wh_loop_call(&engine->loops[0], inbox_nothing, NULL);
	while ((link = wh_list_take(&inbox->arrived)))
		free(wh_container(link, struct notification, link));
	close(inbox->fd);
	pthread_mutex_destroy(&inbox->lock);
	free(inbox);
	engine->inbox = NULL;
}
