/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: beginning and ending them, and what they send over the control connection.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/counters.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/region.h"
#include "core/session.h"
#include "gpu/staging.h"
#include "memory/region-table.h"
#include "net/acceptor.h"
#include "net/channel.h"
#include "net/control.h"
#include "net/handshake.h"
#include "net/quota.h"
#include "transport/lent.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/bytes.h"
#include "wire/wire.h"

#define SESSIONS_MAX 16384 /* further engines are refused */

/* ---- frames ------------------------------------------------------------------------- */

/* An ABORT that cannot be confirmed yet, because bytes of its connection are being written. */
struct unconfirmed {
	struct wh_list link; /* session.aborts */
	uint64_t number;
};

/* Confirm it, unless bytes may still be written: 0, -EAGAIN, or another negative errno, which ends
 * the session: a lost peer is all that tells the initiator that bytes may still be written. */
static int session_confirm(struct wh_session *session, uint64_t number)
{
	uint8_t bytes[8];
	int error = 0;

	for (unsigned id = 0; id < WH_TRANSPORT_COUNT && !error; id++)
		error = wh_transport(id)->session_abort(session, (uint32_t)number);
	if (error)
		return error;
	wh_put64(bytes, number);
	return wh_control_send(&session->control, WH_FRAME_ABORTED, 0, bytes, sizeof(bytes));
}

static void session_aborting(struct wh_timer *timer)
{
	struct wh_session *session = wh_container(timer, struct wh_session, aborting);
	struct wh_list *link, *next;

	for (link = session->aborts.next; link != &session->aborts; link = next) {
		struct unconfirmed *waits = wh_container(link, struct unconfirmed, link);
		int error = session_confirm(session, waits->number);

		next = link->next;
		if (error == -EAGAIN)
			continue;
		if (error == -EBUSY) {
			wh_session_end(session, error, "a file system does not answer");
			return;
		}
		/* If it could not be sent, wh_control_send() gives the connection up. */
		wh_list_remove(link);
		free(waits);
	}
	if (!wh_list_empty(&session->aborts))
		wh_timer_set(&session->engine->loops[0], timer, wh_now() + WH_MS);
}

static bool session_has_abort(const struct wh_session *session, uint64_t number)
{
	for (struct wh_list *l = session->aborts.next; l != &session->aborts; l = l->next)
		if (wh_container(l, struct unconfirmed, link)->number == number)
			return true;
	return false;
}

static int session_aborted(struct wh_session *session, const uint8_t *payload, size_t length)
{
	struct unconfirmed *waits;
	uint32_t number;
	int error;

	if (length != 8)
		return -EPROTO;
	number = (uint32_t)wh_get64(payload);
	wh_acceptor_abort(session->engine->acceptor, session->id, number);
	error = session_confirm(session, wh_get64(payload));
	if (error != -EAGAIN || session_has_abort(session, wh_get64(payload)))
		return error == -EAGAIN ? 0 : error;
	waits = malloc(sizeof(*waits));
	if (!waits)
		return -ENOMEM;
	waits->number = wh_get64(payload);
	wh_list_append(&session->aborts, &waits->link);
	wh_timer_set(&session->engine->loops[0], &session->aborting, wh_now() + WH_MS);
	return 0;
}

static void session_drop_aborts(struct wh_session *session)
{
	struct wh_list *link;

	wh_timer_clear(&session->aborting);
	while ((link = wh_list_take(&session->aborts)))
		free(wh_container(link, struct unconfirmed, link));
}

static int session_transport_frame(struct wh_session *session, const struct wh_frame *frame,
				   const uint8_t *payload)
{
	enum wh_transport_id id = wh_transport_by_frame(frame->type);

	if (id == WH_TRANSPORT_COUNT || session->engine->transport_off[id][0])
		return -EPROTO;
	return wh_transport(id)->session_frame(session, frame, payload);
}

static int session_frame(struct wh_control *control, const struct wh_frame *frame,
			 const uint8_t *payload)
{
	struct wh_session *session = wh_container(control, struct wh_session, control);

	session->heard = wh_now();
	switch (frame->type) {
	case WH_FRAME_PING:
		if (frame->length != 8)
			return -EPROTO;
		return wh_control_send(control, WH_FRAME_PONG, 0, payload, frame->length);
	case WH_FRAME_REMOVED:
		return wh_session_removed(session, payload, frame->length);
	case WH_FRAME_LOOKUP:
		return wh_session_lookup(session, payload, frame->length);
	case WH_FRAME_NOTIFY:
		return wh_session_notified(session, payload, frame->length);
	case WH_FRAME_ABORT:
		return session_aborted(session, payload, frame->length);
	default:
		return session_transport_frame(session, frame, payload);
	}
}

static void session_gone(struct wh_control *control, int error, const char *text)
{
	struct wh_session *session = wh_container(control, struct wh_session, control);

	if (error == -EBADMSG)
		wh_engine_report_damage(session->engine, session->quota->node.key,
					session->hello.name, text);
	wh_session_end(session, error, text);
}

/* How long a session may be silent: the other engine sends a ping every second at least. */
static int64_t session_patience(const struct wh_engine *engine)
{
	int64_t timeout = engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;

	return timeout < 5 * WH_SECOND ? 10 * WH_SECOND : 2 * timeout;
}

/* Who answers, but does not confirm that it has let go of memory, holds it for no longer than who
 * is silent. The timer is never set to a later time than this patience from now, so a REMOVE that
 * is sent meanwhile need not set it. */
static void session_watch(struct wh_timer *timer)
{
	struct wh_session *session = wh_container(timer, struct wh_session, watchdog);
	int64_t patience = session_patience(session->engine);
	int64_t owes = wh_session_owes(session), since = session->heard;

	if (owes && owes < since)
		since = owes;
	if (wh_now() - since <= patience)
		wh_timer_set(&session->engine->loops[0], timer, since + patience + WH_MS);
	else if (since == session->heard)
		wh_session_end(session, -ETIMEDOUT, "nothing was received for too long");
	else
		wh_session_end(session, -ETIMEDOUT,
			       "it has not confirmed for too long that it has let go of memory");
}

/* ---- staging of GPU memory ------------------------------------------------------------------ */

/* Will the session need staging buffers? Probably if no transport reaches the GPUs without them. */
static bool session_likely_stages(const struct wh_session *session)
{
	const struct wh_engine *engine = session->engine;
	bool stages = false;

	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		const struct wh_transport *transport = wh_transport(id);

		if (engine->transport_off[id][0])
			continue;
		if (transport->session_reaches_gpus(session))
			return false;
		stages |= (transport->capabilities & WH_USES_STAGING) != 0;
	}
	return stages;
}

void wh_session_stages(struct wh_session *session)
{
	struct wh_engine *engine = session->engine;
	struct wh_region_entry copy;
	uint64_t cursor = 0;
	char name[WH_NAME_MAX];

	pthread_mutex_lock(&engine->lock);
	if (!session->stages) {
		session->stages = true;
		while (wh_region_table_next(&engine->regions, &cursor, &copy, name)) {
			if (wh_kind_on_gpu(copy.kind) && wh_session_knows(session, &copy))
				wh_warm_up_region(engine->early, wh_region_entry_id(&copy));
		}
	}
	pthread_mutex_unlock(&engine->lock);
}

/* ---- begin and end -------------------------------------------------------------------------- */

/* Make it known by its id. 0 or -ENOMEM. */
static int session_enter(struct wh_engine *engine, struct wh_session *session, uint64_t id)
{
	int error;

	pthread_mutex_lock(&engine->lock);
	session->id = id;
	error = wh_hash_insert(&engine->sessions_by_id, id, &session->node);
	pthread_mutex_unlock(&engine->lock);
	return error;
}

int wh_session_new(struct wh_engine *engine, int fd, struct wh_channel *channel, uint64_t source,
		   const struct wh_hello *hello, uint64_t id, const uint8_t key[WH_KEY_SIZE])
{
	struct wh_session *session;
	struct wh_quota *quota;
	int error;

	quota = engine->session_count < SESSIONS_MAX ? wh_quota_acquire(&engine->quotas, source) :
						       NULL;
	session = quota ? calloc(1, sizeof(*session)) : NULL;
	if (session && session_enter(engine, session, id)) {
		free(session);
		session = NULL;
	}
	if (!session) {
		if (quota)
			wh_quota_release(quota);
		wh_refuse(fd, channel, EBUSY, "this engine cannot take more connections now");
		return -EBUSY;
	}
	session->engine = engine;
	session->quota = quota;
	memcpy(session->key, key, sizeof(session->key));
	session->hello = *hello;
	/* The name in the certificate counts, not the one that the initiator claims. */
	if (*wh_channel_name(channel))
		memcpy(session->hello.name, wh_channel_name(channel), sizeof(session->hello.name));
	session->heard = wh_now();
	session->watchdog.fire = session_watch;
	wh_list_init(&session->notifications);
	wh_list_init(&session->aborts);
	session->aborting.fire = session_aborting;
	wh_control_init(&session->control, &engine->loops[0]);
	session->control.frame = session_frame;
	session->control.gone = session_gone;
	session->control.quota = quota;
	error = wh_control_start(&session->control, fd, channel);
	if (error) {
		wh_channel_free(channel);
		close(fd);
		wh_control_destroy(&session->control);
		wh_quota_release(quota);
		pthread_mutex_lock(&engine->lock);
		wh_hash_remove(&engine->sessions_by_id, &session->node);
		pthread_mutex_unlock(&engine->lock);
		free(session);
		return error;
	}
	pthread_mutex_lock(&engine->lock);
	wh_list_append(&engine->sessions, &session->link);
	engine->session_count++;
	wh_count_add(&engine->statistics.sessions_opened, 1);
	pthread_mutex_unlock(&engine->lock);
	wh_timer_set(&engine->loops[0], &session->watchdog, wh_now() + session_patience(engine));
	wh_log_about(&engine->log, quota->node.key, WH_LOG_INFO, "session", "%s has connected",
		     session->hello.name);
	if (session_likely_stages(session))
		wh_session_stages(session);
	wh_control_process_early(&session->control);
	return 0;
}

void wh_session_end(struct wh_session *session, int error, const char *text)
{
	struct wh_engine *engine = session->engine;

	(void)error; /* `text` says it */
	wh_log_about(&engine->log, session->quota->node.key, WH_LOG_INFO, "session",
		     "%s has left: %s", session->hello.name, text);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		wh_transport(id)->session_ending(session);
	pthread_mutex_lock(&engine->lock);
	wh_list_remove(&session->link);
	wh_hash_remove(&engine->sessions_by_id, &session->node);
	engine->session_count--;
	wh_count_session_left(session);
	pthread_mutex_unlock(&engine->lock);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		wh_transport(id)->session_close(session);
	pthread_mutex_lock(&engine->lock);
	wh_count_session_left(session);
	pthread_mutex_unlock(&engine->lock);
	wh_lent_release(atomic_load(&session->lent));
	wh_session_notifications_drop(session);
	wh_timer_clear(&session->watchdog);
	session_drop_aborts(session);
	wh_control_destroy(&session->control);
	explicit_bzero(session->key, sizeof(session->key));
	free(session->learned);
	wh_quota_release(session->quota);
	free(session);
}

struct wh_session *wh_session_find(struct wh_engine *engine, uint64_t id)
{
	struct wh_hash_node *node = wh_hash_find(&engine->sessions_by_id, id);

	return node ? wh_container(node, struct wh_session, node) : NULL;
}

uint8_t wh_session_access(const struct wh_session *session, const struct wh_region_entry *entry)
{
	return wh_region_access(wh_container(entry, struct wh_region, entry), session->hello.name);
}
