/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: beginning and ending them, what they send over the control connection, and telling them
 * which regions there are.
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
#include "net/control.h"
#include "net/handshake.h"
#include "net/quota.h"
#include "net/tls.h"
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
#define HOLDERS 64 /* sessions waited for after one walk over all of them */

/* ---- frames ------------------------------------------------------------------------- */

static int session_aborted(struct wh_session *session, const uint8_t *payload, size_t length)
{
	if (length != 8)
		return -EPROTO;
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		wh_transport(id)->session_abort(session, (uint32_t)wh_get64(payload));
	return wh_control_send(&session->control, WH_FRAME_ABORTED, 0, payload, length);
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
		if (!frame->length || frame->length % 8)
			return -EPROTO;
		atomic_fetch_add(&session->removed, frame->length / 8);
		return 0;
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
	wh_session_end(wh_container(control, struct wh_session, control), error, text);
}

/* How long a session may be silent: the other engine sends a ping every second at least. */
static int64_t session_patience(const struct wh_engine *engine)
{
	int64_t timeout = engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;

	return timeout < 5 * WH_SECOND ? 10 * WH_SECOND : 2 * timeout;
}

static void session_watch(struct wh_timer *timer)
{
	struct wh_session *session = wh_container(timer, struct wh_session, watchdog);

	if (wh_now() - session->heard > session_patience(session->engine))
		wh_session_end(session, -ETIMEDOUT, "nothing was received for too long");
	else
		wh_timer_set(&session->engine->loops[0], timer,
			     session->heard + session_patience(session->engine) + WH_MS);
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

/* Under engine.lock. */
static void session_warm_up(const struct wh_session *session, const struct wh_region *region)
{
	if (session->stages && !wh_kind_on_host(region->entry.kind) &&
	    wh_session_access(session, &region->entry))
		wh_warm_up_region(session->engine->early, wh_region_entry_id(&region->entry));
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
		while (wh_region_table_next(&engine->regions, &cursor, &copy, name))
			session_warm_up(session, wh_container(wh_region_table_at(&engine->regions,
										 copy.index),
							      struct wh_region, entry));
	}
	pthread_mutex_unlock(&engine->lock);
}

/* ---- begin and end -------------------------------------------------------------------------- */

/* Send the list of regions. Under engine.lock, so that later publications come after it. */
static int session_send_regions(struct wh_session *session)
{
	struct wh_engine *engine = session->engine;
	size_t room = 64u << 10, length = 0;
	uint8_t *bytes = malloc(room);
	struct wh_region_entry copy;
	uint64_t cursor = 0;
	char name[WH_NAME_MAX];
	int error = bytes ? 0 : -ENOMEM;

	while (!error && wh_region_table_next(&engine->regions, &cursor, &copy, name)) {
		struct wh_region_record record = {
			.id = atomic_load(&copy.id),
			.address = copy.address,
			.length = copy.length,
			.access = wh_session_access(
				session, wh_region_table_at(&engine->regions, copy.index)),
			.kind = copy.kind,
			.flags = copy.flags,
		};

		if (!record.access)
			continue;
		memcpy(record.name, name, sizeof(record.name));
		length += wh_region_encode(bytes + length, &record);
		if (length + WH_REGION_RECORD_MAX > room) {
			error = wh_control_send(&session->control, WH_FRAME_REGIONS, 0, bytes,
						length);
			length = 0;
		}
	}
	if (!error)
		error = wh_control_send(&session->control, WH_FRAME_REGIONS, WH_FRAME_LAST, bytes,
					length);
	free(bytes);
	return error;
}

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

int wh_session_new(struct wh_engine *engine, int fd, struct wh_tls *tls, uint64_t source,
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
		wh_refuse(fd, tls, EBUSY, "this engine cannot take more connections now");
		return -EBUSY;
	}
	session->engine = engine;
	session->quota = quota;
	memcpy(session->key, key, sizeof(session->key));
	session->hello = *hello;
	/* The name in the certificate counts, not the one that the initiator claims. */
	if (tls && *wh_tls_name(tls))
		memcpy(session->hello.name, wh_tls_name(tls), sizeof(session->hello.name));
	session->heard = wh_now();
	session->watchdog.fire = session_watch;
	wh_list_init(&session->notifications);
	wh_control_init(&session->control, &engine->loops[0]);
	session->control.frame = session_frame;
	session->control.gone = session_gone;
	session->control.quota = quota;
	error = wh_control_start(&session->control, fd, tls);
	if (error) {
		wh_tls_free(tls);
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
	session->removes_before = engine->removes;
	wh_list_append(&engine->sessions, &session->link);
	engine->session_count++;
	wh_count_add(&engine->statistics.sessions_opened, 1);
	error = session_send_regions(session);
	pthread_mutex_unlock(&engine->lock);
	if (error) {
		wh_session_end(session, error,
			       session->control.queue_refused ?
				       session->control.queue_refused :
				       "cannot be sent the list of regions");
		return error;
	}
	wh_timer_set(&engine->loops[0], &session->watchdog, wh_now() + session_patience(engine));
	wh_log_line(&engine->log, WH_LOG_INFO, "session", "%s has connected", session->hello.name);
	if (session_likely_stages(session))
		wh_session_stages(session);
	wh_control_process_early(&session->control);
	return 0;
}

void wh_session_end(struct wh_session *session, int error, const char *text)
{
	struct wh_engine *engine = session->engine;

	(void)error; /* `text` says it */
	wh_log_line(&engine->log, WH_LOG_INFO, "session", "%s has left: %s", session->hello.name,
		    text);
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
	wh_session_notifications_drop(session);
	wh_timer_clear(&session->watchdog);
	wh_control_destroy(&session->control);
	explicit_bzero(session->key, sizeof(session->key));
	wh_quota_release(session->quota);
	free(session);
}

struct wh_session *wh_session_find(struct wh_engine *engine, uint64_t id)
{
	struct wh_hash_node *node = wh_hash_find(&engine->sessions_by_id, id);

	return node ? wh_container(node, struct wh_session, node) : NULL;
}

/* ---- regions -------------------------------------------------------------------------------- */

uint8_t wh_session_access(const struct wh_session *session, const struct wh_region_entry *entry)
{
	return wh_region_access(wh_container(entry, struct wh_region, entry), session->hello.name);
}

void wh_sessions_publish(struct wh_engine *engine, const struct wh_region *region)
{
	uint8_t bytes[WH_REGION_RECORD_MAX];
	struct wh_region_record record;
	size_t length;

	wh_region_record(region, &record);
	/* Ignore errors of sending: a broken connection ends the session elsewhere. */
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions; l = l->next) {
		struct wh_session *session = wh_container(l, struct wh_session, link);

		record.access = wh_session_access(session, &region->entry);
		if (!record.access)
			continue;
		session_warm_up(session, region);
		length = wh_region_encode(bytes, &record);
		wh_control_send(&session->control, WH_FRAME_REGIONS, 0, bytes, length);
	}
}

void wh_sessions_remove(struct wh_engine *engine, uint64_t id)
{
	uint8_t bytes[8];

	wh_put64(bytes, id);
	engine->removes++;
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions; l = l->next)
		wh_control_send(&wh_container(l, struct wh_session, link)->control, WH_FRAME_REMOVE,
				0, bytes, sizeof(bytes));
}

/* May the session still touch a region of the first `removes` that were removed? It answers each
 * REMOVE with a REMOVED, in order, so counting the answers is enough. */
static bool session_holds(const struct wh_session *session, uint64_t removes, bool keyed)
{
	return (atomic_load(&session->touches) || (keyed && atomic_load(&session->keyed))) &&
	       session->removes_before + atomic_load(&session->removed) < removes;
}

/* The ids of the first sessions that hold a removed region; returns how many of at most `most`. */
static unsigned sessions_holding(struct wh_engine *engine, uint64_t removes, bool keyed,
				 uint64_t *ids, unsigned most)
{
	unsigned count = 0;

	pthread_mutex_lock(&engine->lock);
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions && count < most;
	     l = l->next) {
		const struct wh_session *session = wh_container(l, struct wh_session, link);

		if (session_holds(session, removes, keyed))
			ids[count++] = session->id;
	}
	pthread_mutex_unlock(&engine->lock);
	return count;
}

/* True: the session has ended or answered. Else `name` is its name. */
static bool session_released(struct wh_engine *engine, uint64_t id, uint64_t removes, bool keyed,
			     char name[WH_NAME_MAX])
{
	const struct wh_session *session;
	bool held;

	pthread_mutex_lock(&engine->lock);
	session = wh_session_find(engine, id);
	held = session && session_holds(session, removes, keyed);
	if (held)
		memcpy(name, session->hello.name, WH_NAME_MAX);
	pthread_mutex_unlock(&engine->lock);
	return !held;
}

/* All sessions are walked once for each HOLDERS of them that hold the region; each of these is then
 * polled by its id, so that waiting for one does not walk past thousands of others. */
int wh_sessions_released(struct wh_engine *engine, uint64_t id, int64_t deadline)
{
	int64_t begun = wh_now(), courtesy = begun + (deadline - begun) / 2;
	struct timespec pause = { 0, 20000 };
	uint64_t removes, holders[HOLDERS];
	char name[WH_NAME_MAX];
	unsigned count;

	pthread_mutex_lock(&engine->lock);
	removes = engine->removes;
	pthread_mutex_unlock(&engine->lock);
	while ((count = sessions_holding(engine, removes, wh_now() < courtesy, holders, HOLDERS))) {
		for (unsigned i = 0; i < count;) {
			if (session_released(engine, holders[i], removes, wh_now() < courtesy,
					     name)) {
				i++;
				continue;
			}
			if (wh_now() > deadline)
				return wh_fail(EBUSY,
					       "region %#llx: %s can still access it; it is no "
					       "longer published, try again",
					       (unsigned long long)id, name);
			nanosleep(&pause, NULL);
			if (pause.tv_nsec < 1000000)
				pause.tv_nsec *= 2;
		}
	}
	return 0;
}
