/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications: the inbox of an engine, and sending the notification of a batch. */
#ifndef WH_CORE_NOTIFICATION_H
#define WH_CORE_NOTIFICATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_batch;
struct wh_engine;
struct wh_peer;
struct wh_session;

/* The most notifications that a peer sends before they are confirmed. */
#define WH_NOTIFY_WINDOW 16

/* A notification that was sent ahead of the end of its batch. */
enum wh_notify_state {
	WH_NOTIFY_NONE = 0, /* it was not */
	WH_NOTIFY_EARLY, /* it was, and is in peer.notify_early */
	WH_NOTIFY_CONFIRMED, /* and has been confirmed */
	WH_NOTIFY_LOST, /* and the peer was lost */
};

enum wh_notify_path {
	WH_NOTIFY_UNSENT = 0,
	WH_NOTIFY_CONTROL,
	WH_NOTIFY_TRANSPORT, /* by its transport, after its bytes */
	/* by its transport, behind its bytes, before they were known to have arrived */
	WH_NOTIFY_TRANSPORT_EARLY,
};

int wh_inbox_open(struct wh_engine *engine);
void wh_inbox_close(struct wh_engine *engine);
/* A session has sent one / is going. On loop 0. */
int wh_session_notified(struct wh_session *session, const uint8_t *payload, size_t length);
/* One has come by connection `by` of a transport, which is not 0: `length` bytes, 1 to
 * WH_NOTIFICATION_MAX, which may change while they are copied. */
int wh_session_notified_by_transport(struct wh_session *session, uint32_t by, uint64_t sequence,
				     const void *data, size_t length);
/* Those that came so and have not been confirmed never came. */
void wh_session_notifications_forget(struct wh_session *session, uint32_t by);
void wh_session_notifications_drop(struct wh_session *session);

/* Send a finished batch's notification; wh_batch_finish() follows once it is confirmed, and
 * wh_batch_fail() before it if that cannot be. The batch may be gone when it returns. */
void wh_notify_send(struct wh_batch *batch);
/* True: the batch waits no more for its notification, which has not been sent, or has been and may
 * still arrive; the caller finishes the batch. False: none was due, or it is being finished. */
bool wh_notify_cancel(struct wh_batch *batch);
/* The batch ends without: it has failed, or been cancelled. */
void wh_notify_drop(struct wh_batch *batch);
/* For a transport that sends one behind the batch's bytes. Both under peer.notify_lock. May it be
 * sent now, before any other? Then its sequence, as sent; wh_notify_confirmed() or
 * wh_notify_undelivered() follows. */
bool wh_notify_can_send_early(const struct wh_batch *batch);
uint64_t wh_notify_send_early(struct wh_batch *batch);
/* What a transport has sent has not arrived, and never will: it is sent over the control
 * connection, or, if it was ahead of its batch's end, once that has come. Under peer.notify_lock;
 * wh_notify_resume() follows, without. */
void wh_notify_undelivered(struct wh_peer *peer, uint64_t sequence, const void *data,
			   size_t length);
void wh_notify_resume(struct wh_peer *peer);
/* The peer has confirmed one; or it is lost. On loop 0. */
void wh_notify_confirmed(struct wh_peer *peer, uint64_t sequence);
void wh_notify_peer_lost(struct wh_peer *peer, int error, const char *text);

#endif
