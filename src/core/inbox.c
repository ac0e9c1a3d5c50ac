/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inbox of an engine: notifications that have arrived and that the application has not taken
 * yet.
 *
 * It is bounded in messages and bytes, but the oldest one of each sender always fits, so that a
 * sender whose notifications nobody takes does not keep others' from the calls that wait for them.
 * What does not fit waits at its sender's session, at most WH_NOTIFY_UNCONFIRMED for each, and
 * WH_NOTIFY_UNCONFIRMED_BYTES, which is also the most that a peer sends unconfirmed; or, when the
 * engine notifies itself, with the batch. A sender that finds no room marks the inbox as `wanted`;
 * whoever takes a notification out of a wanted inbox, or begins to wait at it, has loop 0 deliver
 * what waits. So while anything waits, the inbox is wanted or a delivery is due.
 *
 * A call that finds nothing that its filter matches waits in the inbox's list, with a futex of its
 * own. A notification is handed to the first such call that it matches, before it is in the inbox:
 * so each wakes for its own notification alone, and none is missed.
 *
 * wh_inbox.lock is taken after engine.lock, wh_peer.notify_lock and a transport's locks, and before
 * wh_control.lock.
 */
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/progress.h"
#include "core/session.h"
#include "net/control.h"
#include "net/quota.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/futex.h"
#include "util/list.h"
#include "util/loop.h"
#include "util/options.h"
#include "util/ready.h"
#include "util/turns.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* In an inbox, or at a session until there is room. */
struct notification {
	struct wh_list link; /* inbox.arrived or session.notifications */
	/* Of its sender's, how many are in the inbox; NULL: the sender's session has ended. */
	uint32_t *arrived;
	/* While it waits: */
	uint64_t sequence;
	uint32_t by; /* connection of a transport; 0: the control connection */
	/* What the application gets: */
	uint64_t epoch, tag, source;
	char sender[WH_NAME_MAX];
	size_t length;
	unsigned char data[];
};

/* A call that takes a notification. */
struct waiter {
	struct wh_list link; /* inbox.waiters; below, under its lock */
	const struct wh_notification_filter *filter;
	struct wh_notification *out; /* filled in, but for the bytes */
	struct notification *got; /* if error is 0 */
	int error;
	_Atomic uint32_t ended; /* a futex */
};

/* ---- one notification ----------------------------------------------------------------------- */

static struct notification *notification_new(uint64_t epoch, const char *sender, uint64_t tag,
					     const void *data, size_t length)
{
	struct notification *notification = malloc(sizeof(*notification) + length);

	if (!notification)
		return NULL;
	memset(notification, 0, sizeof(*notification));
	notification->epoch = epoch;
	notification->tag = tag;
	memcpy(notification->sender, sender, strnlen(sender, WH_NAME_MAX - 1));
	notification->length = length;
	memcpy(notification->data, data, length);
	return notification;
}

/* Bytes that it occupies; what waits at a session is charged to its quota. */
static int64_t notification_cost(size_t length)
{
	return (int64_t)(sizeof(struct notification) + length);
}

static bool notification_matches(const struct notification *notification,
				 const struct wh_notification_filter *filter)
{
	return !((notification->tag ^ filter->tag) & filter->tag_mask) &&
	       (!filter->sender || !strcmp(notification->sender, filter->sender));
}

/* ---- calls that wait; under the lock --------------------------------------------------------- */

/* The waiter's call has matched this notification. True: and has taken it. */
static bool waiter_take(struct waiter *waiter, struct notification *notification)
{
	struct wh_notification *out = waiter->out;

	out->length = notification->length;
	out->tag = notification->tag;
	out->epoch = notification->epoch;
	out->source = notification->source;
	memcpy(out->sender, notification->sender, sizeof(out->sender));
	waiter->error = notification->length > out->capacity ? -EMSGSIZE : 0;
	waiter->got = waiter->error ? NULL : notification;
	return !waiter->error;
}

static void waiter_end(struct wh_inbox *inbox, struct waiter *waiter,
		       struct notification *notification)
{
	waiter_take(waiter, notification);
	wh_list_remove(&waiter->link);
	atomic_store(&waiter->ended, 1);
	wh_futex_wake(&waiter->ended);
	wh_turns_wake(inbox->engine->turns);
}

/* Hand it to the first call that waits for it with enough room. False: none does. */
static bool inbox_hand_over(struct wh_inbox *inbox, struct notification *notification)
{
	for (struct wh_list *l = inbox->waiters.next; l != &inbox->waiters; l = l->next) {
		struct waiter *waiter = wh_container(l, struct waiter, link);

		if (notification->length > waiter->out->capacity ||
		    !notification_matches(notification, waiter->filter))
			continue;
		waiter_end(inbox, waiter, notification);
		return true;
	}
	return false;
}

/* It has arrived; nobody who waits for it has enough room: tell them. */
static void inbox_tell_short(struct wh_inbox *inbox, struct notification *notification)
{
	for (struct wh_list *l = inbox->waiters.next, *next; l != &inbox->waiters; l = next) {
		struct waiter *waiter = wh_container(l, struct waiter, link);

		next = l->next;
		if (notification_matches(notification, waiter->filter))
			waiter_end(inbox, waiter, notification);
	}
}

/* ---- the inbox ------------------------------------------------------------------------------ */

static void inbox_add(struct wh_inbox *inbox, struct notification *notification)
{
	wh_list_append(&inbox->arrived, &notification->link);
	inbox->bytes += notification->length;
	++*notification->arrived;
	if (!atomic_fetch_add(&inbox->count, 1))
		wh_ready_set(inbox->fd);
	inbox_tell_short(inbox, notification);
}

static void inbox_remove(struct wh_inbox *inbox, struct notification *notification)
{
	wh_list_remove(&notification->link);
	inbox->bytes -= notification->length;
	if (notification->arrived)
		--*notification->arrived;
	if (atomic_fetch_sub(&inbox->count, 1) == 1)
		wh_ready_clear(inbox->fd);
}

/* Deliver a notification of the sender that counts in *arrived. `behind`: others wait for room
 * already. False: there is no room; the caller still owns the notification. */
static bool inbox_push(struct wh_inbox *inbox, struct notification *notification, uint32_t *arrived,
		       bool behind)
{
	bool delivered;

	pthread_mutex_lock(&inbox->lock);
	notification->arrived = arrived;
	delivered = inbox_hand_over(inbox, notification);
	if (!delivered &&
	    (!*arrived || (!behind && atomic_load(&inbox->count) < inbox->room &&
			   inbox->bytes + notification->length <= inbox->room_bytes))) {
		inbox_add(inbox, notification);
		delivered = true;
	}
	inbox->wanted |= !delivered;
	pthread_mutex_unlock(&inbox->lock);
	return delivered;
}

/* The oldest one that the filter matches; NULL: none. Under the lock. */
static struct notification *inbox_find(const struct wh_inbox *inbox,
				       const struct wh_notification_filter *filter)
{
	for (struct wh_list *l = inbox->arrived.next; l != &inbox->arrived; l = l->next) {
		struct notification *notification = wh_container(l, struct notification, link);

		if (notification_matches(notification, filter))
			return notification;
	}
	return NULL;
}

/* End the call at once, or have it wait if it `may`. True: it waits, or has ended since. */
static bool inbox_begin(struct wh_inbox *inbox, struct waiter *waiter, bool may)
{
	struct notification *notification;
	bool waits, wanted = false;

	if (!may && !atomic_load_explicit(&inbox->count, memory_order_acquire)) {
		waiter->error = -EAGAIN;
		return false;
	}
	pthread_mutex_lock(&inbox->lock);
	notification = inbox_find(inbox, waiter->filter);
	waits = !notification && may;
	if (notification && waiter_take(waiter, notification))
		inbox_remove(inbox, notification);
	else if (waits)
		wh_list_append(&inbox->waiters, &waiter->link);
	else if (!notification)
		waiter->error = -EAGAIN;
	if (waits || waiter->got) {
		wanted = inbox->wanted;
		inbox->wanted = false;
	}
	pthread_mutex_unlock(&inbox->lock);
	if (wanted)
		wh_loop_post(&inbox->engine->loops[0], &inbox->deliver);
	return waits;
}

/* In an engine without threads: give a turn, unless the call has ended. */
static void inbox_turn(struct wh_inbox *inbox, struct waiter *waiter, int64_t deadline)
{
	uint64_t seen = wh_turns_seen(inbox->engine->turns);

	if (!atomic_load(&waiter->ended))
		wh_engine_turn(inbox->engine, seen, deadline);
}

static void inbox_wait(struct wh_inbox *inbox, struct waiter *waiter, int64_t deadline)
{
	bool spin = inbox->engine->config.number[WH_SETTING_SPIN];
	int64_t start = wh_now(), now = start;

	while (!atomic_load_explicit(&waiter->ended, memory_order_acquire) && now < deadline) {
		if (inbox->engine->turns)
			inbox_turn(inbox, waiter, spin ? 0 : deadline);
		else if (!spin)
			wh_futex_wait(&waiter->ended, 0, deadline);
		else if (now - start > WH_READY_QUIET)
			sched_yield();
		now = wh_now();
	}
	/* Whoever ends the call has the lock until it no longer uses the waiter. */
	pthread_mutex_lock(&inbox->lock);
	if (!atomic_load(&waiter->ended)) {
		wh_list_remove(&waiter->link);
		waiter->error = -EAGAIN;
	}
	pthread_mutex_unlock(&inbox->lock);
}

static int inbox_take(struct wh_inbox *inbox, const struct wh_notification_filter *filter,
		      struct wh_notification *out, int64_t timeout)
{
	struct waiter waiter = { .filter = filter, .out = out };

	if (!timeout && inbox->engine->turns && !wh_engine_inside(inbox->engine))
		wh_engine_turn(inbox->engine, wh_turns_seen(inbox->engine->turns), 0);
	if (inbox_begin(inbox, &waiter, timeout))
		inbox_wait(inbox, &waiter, wh_deadline(timeout));
	if (waiter.error == -EAGAIN)
		return wh_fail(EAGAIN, "wh_engine_notification: no notification has arrived");
	if (waiter.error)
		return wh_fail(EMSGSIZE,
			       "wh_engine_notification: the notification has %llu bytes, the "
			       "buffer %llu",
			       (unsigned long long)out->length, (unsigned long long)out->capacity);
	if (waiter.got->length)
		memcpy(out->buffer, waiter.got->data, waiter.got->length);
	free(waiter.got);
	return 0;
}

/* ---- what the application calls -------------------------------------------------------------- */

static const char *const call = "wh_engine_notification";

static int notification_check(const struct wh_notification *out,
			      const struct wh_notification_filter *filter)
{
	if (out->capacity && !out->buffer)
		return wh_fail(EINVAL, "%s: out.buffer is NULL, out.capacity is not 0", call);
	for (size_t i = 0; i < sizeof(out->reserved) / sizeof(out->reserved[0]); i++)
		if (out->reserved[i])
			return wh_fail(EINVAL, "%s: out.reserved is not 0", call);
	for (size_t i = 0; i < sizeof(filter->reserved) / sizeof(filter->reserved[0]); i++)
		if (filter->reserved[i])
			return wh_fail(EINVAL, "%s: filter.reserved is not 0", call);
	return 0;
}

int wh_engine_notification(struct wh_engine *engine, const struct wh_notification_filter *given,
			   struct wh_notification *out, int64_t timeout)
{
	int error = wh_engine_guard(engine, call), copied;
	struct wh_notification_filter filter;
	struct wh_notification full;

	if (error)
		return error;
	if (!out || timeout < 0)
		return wh_fail(EINVAL, "%s: %s", call,
			       out ? "timeout is negative; WH_FOREVER waits without limit" :
				     "out is NULL");
	error = wh_options_copy(&filter, sizeof(filter), given, sizeof(size_t), call);
	if (!error)
		error = wh_options_copy(&full, sizeof(full), out,
					offsetof(struct wh_notification, source), call);
	if (!error)
		error = notification_check(&full, &filter);
	if (error)
		return error;
	if (timeout && wh_engine_inside(engine))
		return wh_fail(EDEADLK, "%s: waiting in one of the engine's own threads", call);
	error = inbox_take(engine->inbox, &filter, &full, timeout);
	if (error && error != -EMSGSIZE)
		return error;
	copied = wh_options_return(out, &full, sizeof(full), call);
	return copied ? copied : error;
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

static int inbox_receive(struct wh_session *session, uint32_t by, uint64_t sequence, uint64_t tag,
			 const void *data, size_t length)
{
	struct wh_inbox *inbox = session->engine->inbox;
	struct notification *notification;

	if (session->notify_count >= WH_NOTIFY_UNCONFIRMED ||
	    session->notify_bytes + length > WH_NOTIFY_UNCONFIRMED_BYTES)
		return -EPROTO;
	notification =
		notification_new(session->hello.epoch, session->hello.name, tag, data, length);
	if (!notification)
		return -ENOMEM;
	notification->source = session->quota->node.key;
	notification->sequence = sequence;
	notification->by = by;
	/* Not ahead of its sender's that wait already, nor by the room that other sessions wait
	 * for. */
	if (!session->notify_count && inbox_push(inbox, notification, &session->notify_arrived,
						 !wh_list_empty(&inbox->waiting)))
		return inbox_confirm(session, sequence);
	if (!wh_quota_charge_queued(session->quota, notification_cost(length))) {
		free(notification);
		session->control.queue_refused =
			"sends more notifications than may wait for its address (setting "
			"max_buffered)";
		return -ENOBUFS;
	}
	if (!session->notify_count++)
		wh_list_append(&inbox->waiting, &session->notify_link);
	session->notify_bytes += length;
	wh_list_append(&session->notifications, &notification->link);
	return 0;
}

int wh_session_notified(struct wh_session *session, const uint8_t *payload, size_t length)
{
	if (length < WH_NOTIFY_HEAD || length > WH_NOTIFY_HEAD + WH_NOTIFICATION_MAX)
		return -EPROTO;
	return inbox_receive(session, 0, wh_get64(payload), wh_get64(payload + WH_NOTIFY_SEQUENCE),
			     payload + WH_NOTIFY_HEAD, length - WH_NOTIFY_HEAD);
}

int wh_session_notified_by_transport(struct wh_session *session, uint32_t by, uint64_t sequence,
				     uint64_t tag, const void *data, size_t length)
{
	return inbox_receive(session, by, sequence, tag, data, length);
}

/* A notification of the session waits no longer. */
static void session_waits_less(struct wh_session *session, size_t length)
{
	wh_quota_charge_queued(session->quota, -notification_cost(length));
	session->notify_bytes -= length;
	if (!--session->notify_count)
		wh_list_remove(&session->notify_link);
}

static void inbox_drop_waiting(struct wh_session *session, struct notification *notification)
{
	wh_list_remove(&notification->link);
	session_waits_less(session, notification->length);
	free(notification);
}

void wh_session_notifications_forget(struct wh_session *session, uint32_t by)
{
	struct wh_list *link, *next;

	for (link = session->notifications.next; link != &session->notifications; link = next) {
		struct notification *notification = wh_container(link, struct notification, link);

		next = link->next;
		if (notification->by == by)
			inbox_drop_waiting(session, notification);
	}
}

void wh_session_notifications_drop(struct wh_session *session)
{
	struct wh_inbox *inbox = session->engine->inbox;

	while (!wh_list_empty(&session->notifications))
		inbox_drop_waiting(session, wh_container(session->notifications.next,
							 struct notification, link));
	/* Those in the inbox stay. */
	pthread_mutex_lock(&inbox->lock);
	for (struct wh_list *l = inbox->arrived.next;
	     session->notify_arrived && l != &inbox->arrived; l = l->next) {
		struct notification *notification = wh_container(l, struct notification, link);

		if (notification->arrived == &session->notify_arrived) {
			notification->arrived = NULL;
			session->notify_arrived--;
		}
	}
	pthread_mutex_unlock(&inbox->lock);
}

/* Deliver the oldest notification that waits at the session. False: there is no room. */
static bool session_deliver(struct wh_inbox *inbox, struct wh_session *session)
{
	struct wh_list *link = wh_list_take(&session->notifications);
	struct notification *notification = wh_container(link, struct notification, link);
	uint64_t sequence = notification->sequence;
	size_t length = notification->length;

	if (!inbox_push(inbox, notification, &session->notify_arrived, false)) {
		wh_list_push(&session->notifications, link);
		return false;
	}
	/* From here the application may have taken and freed it. */
	session_waits_less(session, length);
	inbox_confirm(session, sequence);
	return true;
}

/* Deliver one notification that waits at a session; sessions take turns. False: none waits, or
 * there is no room for any. On loop 0. */
static bool inbox_deliver_session(struct wh_inbox *inbox)
{
	for (struct wh_list *l = inbox->waiting.next; l != &inbox->waiting; l = l->next) {
		struct wh_session *session = wh_container(l, struct wh_session, notify_link);

		if (!session_deliver(inbox, session))
			continue;
		if (session->notify_count) {
			wh_list_remove(&session->notify_link);
			wh_list_append(&inbox->waiting, &session->notify_link);
		}
		return true;
	}
	return false;
}

/* ---- from this engine itself ---------------------------------------------------------------- */

int wh_inbox_put_self(struct wh_engine *engine, const struct wh_batch *batch)
{
	struct notification *notification =
		notification_new(engine->identity.epoch, engine->identity.name, batch->note_tag,
				 batch->note + WH_NOTIFY_HEAD, batch->note_length);

	if (!notification)
		return -ENOMEM;
	if (inbox_push(engine->inbox, notification, &engine->inbox->own, false))
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
	inbox->room_bytes = (uint64_t)engine->config.number[WH_SETTING_NOTIFICATION_BYTES];
	wh_list_init(&inbox->arrived);
	wh_list_init(&inbox->waiters);
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
