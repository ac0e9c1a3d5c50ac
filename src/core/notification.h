/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications: a batch may carry a few bytes that the peer's application gets after the bytes of
 * the batch have arrived. inbox.c is the receiving side, notification.c the sending one.
 */
#ifndef WH_CORE_NOTIFICATION_H
#define WH_CORE_NOTIFICATION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/core.h"
#include "util/list.h"
#include "util/loop.h"

struct wh_batch;
struct wh_engine;
struct wh_peer;
struct wh_session;

/* Bytes of NOTIFY in front of the application's: sequence number and tag. */
#define WH_NOTIFY_HEAD 16
#define WH_NOTIFY_SEQUENCE 8 /* bytes of the sequence number, all of NOTIFIED */

/* A notification that was sent before its batch's fragments had ended. */
enum wh_notify_state {
	WH_NOTIFY_NONE = 0, /* not sent early */
	WH_NOTIFY_EARLY, /* sent, not confirmed: in peer.notify_early */
	WH_NOTIFY_CONFIRMED,
	WH_NOTIFY_LOST, /* the peer was lost before it confirmed */
};

enum wh_notify_path {
	WH_NOTIFY_UNSENT = 0,
	WH_NOTIFY_CONTROL,
	WH_NOTIFY_TRANSPORT, /* by a transport, after the batch's bytes had arrived */
	WH_NOTIFY_TRANSPORT_EARLY, /* by a transport, behind the bytes, before that was known */
};

/* What has arrived, and calls that wait for more; inbox.c explains it. */
struct wh_inbox {
	struct wh_engine *engine;
	pthread_mutex_t lock; /* below, to `wanted`, and session.notify_arrived */
	struct wh_list arrived; /* struct notification, the oldest first */
	_Atomic uint32_t count; /* of them; also read without the lock */
	uint64_t bytes; /* of them */
	uint32_t own; /* of them, from this engine itself */
	struct wh_list waiters; /* struct waiter, the first to come first */
	bool wanted; /* a sender found no room */
	uint32_t room; /* the most of `count`; setting `notifications` */
	uint64_t room_bytes; /* the most of `bytes`; setting `notification_bytes` */
	int fd; /* readable while count is not 0 */
	struct wh_task deliver;
	struct wh_list waiting; /* sessions at which some wait, whose turn is next first; loop 0 */
	bool self_next; /* the next one delivered is our own, not a session's; on loop 0 */
};

int wh_inbox_open(struct wh_engine *engine);
void wh_inbox_close(struct wh_engine *engine);
/* Put the notification of a batch for this engine itself into the inbox. Any thread.
 * 0, -EAGAIN (no room), -ENOMEM. */
int wh_inbox_put_self(struct wh_engine *engine, const struct wh_batch *batch);

/* A session has sent a NOTIFY frame. It is delivered, or waits until the inbox has room. On loop 0.
 * 0, or a negative errno, which breaks the connection. */
int wh_session_notified(struct wh_session *session, const uint8_t *payload, size_t length);
/* The session ends: drop all that waits. On loop 0. */
void wh_session_notifications_drop(struct wh_session *session);

/* Send the notification of a batch whose fragments have ended. wh_batch_finish() follows once it is
 * confirmed, or after wh_batch_fail() if it cannot be sent. Any thread. The batch may be gone on
 * return. */
void wh_notify_send(struct wh_batch *batch);
/* Stop waiting for a notification. True: the caller finishes the batch; the notification was not
 * sent, or may still arrive. False: none was due, or another thread finishes the batch. */
bool wh_notify_cancel(struct wh_batch *batch);
/* The batch ends without its notification, because it has failed or was cancelled. */
void wh_notify_drop(struct wh_batch *batch);
/* Deliver one notification of a batch for this engine itself that waits for room in the inbox. On
 * loop 0. False: none waits, or there is no room. */
bool wh_notify_deliver_self(struct wh_engine *engine);
/* The peer has confirmed a notification; the peer is lost. On loop 0. */
void wh_notify_confirmed(struct wh_peer *peer, uint64_t sequence);
void wh_notify_peer_lost(struct wh_peer *peer, int error, const char *text);

#endif
