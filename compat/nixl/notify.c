/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications. The peer learns the sending agent's name: it is the engine's, which Wherry
 * delivers with each notification; where it cannot be (too long, control characters), the bytes
 * begin with it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compat/nixl/internal.h"

/* Tags of notifications with such a beginning: a length of 16 bits, little-endian, and the name. */
#define TAG_PLAIN UINT64_C(0x4e49584c00000000) /* "NIXL" */
#define TAG_NAMED UINT64_C(0x4e49584c00000001)

/* How long a peer that is let go of may take to receive what is under way, ns. */
#define LINGER INT64_C(1000000000)

struct note {
	struct wh_list link; /* peer->notes */
	struct wh_batch *batch;
};

int wh_nixl_notification_attach(const struct wh_nixl_agent *agent, struct wh_batch *batch,
				const char *message, size_t length)
{
	size_t named = 2 + agent->name_length;
	char *bytes;
	int error;

	if (!strcmp(wh_engine_name(agent->engine), agent->name) ||
	    named + length > WH_NOTIFICATION_MAX || agent->name_length > UINT16_MAX)
		return wh_batch_notify(batch, TAG_PLAIN, message, length);
	bytes = malloc(named + length);
	if (!bytes)
		return -ENOMEM;
	bytes[0] = (char)(agent->name_length & 0xff);
	bytes[1] = (char)(agent->name_length >> 8);
	memcpy(bytes + 2, agent->name, agent->name_length);
	if (length)
		memcpy(bytes + named, message, length);
	error = wh_batch_notify(batch, TAG_NAMED, bytes, named + length);
	free(bytes);
	return error;
}

/* ---- without a transfer
 * --------------------------------------------------------------------------- */

/* A note whose batch has completed, or a new one; NULL: *error. Under peer->lock. */
static struct note *note_take(struct wh_nixl_peer *peer, int *error)
{
	struct note *note = NULL;
	int status;

	*error = 0;
	if (!wh_list_empty(&peer->notes)) {
		note = wh_container(peer->notes.next, struct note, link);
		status = wh_batch_status(note->batch);
		if (status != -EINPROGRESS) {
			if (status)
				wh_nixl_say(peer->agent, "a notification did not arrive: %s (%s)",
					    wh_batch_error_text(note->batch),
					    wh_status_name(status));
			wh_list_remove(&note->link);
			return note;
		}
	}
	note = calloc(1, sizeof(*note));
	*error = note ? wh_batch_new(peer->peer, NULL, &note->batch) : -ENOMEM;
	if (*error) {
		free(note);
		return NULL;
	}
	return note;
}

int wh_nixl_notify(struct wh_nixl_agent *agent, const char *name, size_t name_length,
		   const char *message, size_t length)
{
	struct wh_nixl_peer *peer = wh_nixl_peer_get(agent, name, name_length);
	struct note *note;
	int error;

	if (!peer)
		return WH_NIXL_NOT_FOUND;
	pthread_mutex_lock(&peer->lock); /* of several threads, too, none overtakes another */
	note = note_take(peer, &error);
	if (note) {
		error = wh_nixl_notification_attach(agent, note->batch, message, length);
		if (!error)
			error = wh_batch_submit(note->batch);
		if (error) {
			wh_batch_free(note->batch);
			free(note);
		} else {
			wh_list_append(&peer->notes, &note->link);
		}
	}
	pthread_mutex_unlock(&peer->lock);
	wh_nixl_peer_put(peer);
	return error ? wh_nixl_fail(agent, error, "cannot send a notification") : WH_NIXL_OK;
}

void wh_nixl_notes_free(struct wh_nixl_peer *peer)
{
	struct wh_list *link;

	while ((link = wh_list_take(&peer->notes))) {
		struct note *note = wh_container(link, struct note, link);

		if (wh_batch_status(note->batch) == -EINPROGRESS &&
		    wh_batch_wait_for(note->batch, LINGER)) {
			wh_nixl_say(peer->agent, "a notification was not received; it is given up");
			wh_batch_cancel(note->batch);
		}
		wh_batch_free(note->batch);
		free(note);
	}
}

/* ---- receiving
 * ------------------------------------------------------------------------------------- */

int wh_nixl_notifications(struct wh_nixl_agent *agent,
			  void (*take)(void *arg, const char *sender, size_t sender_length,
				       const char *message, size_t length),
			  void *arg)
{
	struct wh_notification got = { .size = sizeof(got),
				       .buffer = agent->notification,
				       .capacity = sizeof(agent->notification) };
	int error;

	pthread_mutex_lock(&agent->taking);
	while (!(error = wh_engine_notification(agent->engine, NULL, &got, 0))) {
		const unsigned char *bytes = (const unsigned char *)agent->notification;
		size_t named = got.length < 2 ? 0 : bytes[0] | (size_t)bytes[1] << 8;

		if (got.tag == TAG_NAMED && got.length >= 2 + named)
			take(arg, agent->notification + 2, named, agent->notification + 2 + named,
			     got.length - 2 - named);
		else
			take(arg, got.sender, strlen(got.sender), agent->notification, got.length);
	}
	pthread_mutex_unlock(&agent->taking);
	return error == -EAGAIN ? WH_NIXL_OK :
				  wh_nixl_fail(agent, error, "cannot take notifications");
}
