/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer sends over the control connection: its answer to our hello, what it says about its
 * regions, and answers to our aborts and notifications. All of it runs on loop 0, but for
 * wh_peer_abort().
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/question.h"
#include "core/remote.h"
#include "core/removal.h"
#include "core/session.h"
#include "memory/region-table.h"
#include "net/channel.h"
#include "net/control.h"
#include "net/handshake.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* ---- aborting data connections -------------------------------------------------------------- */

void wh_peer_abort(struct wh_peer *peer, struct wh_abort *abort)
{
	uint8_t bytes[8];
	bool connected;

	wh_put64(bytes, abort->number);
	pthread_mutex_lock(&peer->lock);
	connected = atomic_load(&peer->state) == WH_PEER_CONNECTED;
	if (connected)
		wh_list_append(&peer->aborts, &abort->link);
	pthread_mutex_unlock(&peer->lock);
	/* If sending fails the peer is about to be lost, which ends all aborts. */
	if (connected)
		wh_control_send(&peer->control, WH_FRAME_ABORT, 0, bytes, sizeof(bytes));
	else
		abort->done(abort, -ECONNRESET);
}

void wh_peer_forget_abort(struct wh_peer *peer, struct wh_abort *abort)
{
	pthread_mutex_lock(&peer->lock);
	wh_list_remove(&abort->link);
	pthread_mutex_unlock(&peer->lock);
}

/* Remove and return the first abort of connection `number`, of any with UINT32_MAX; or NULL. */
static struct wh_abort *peer_take_abort(struct wh_peer *peer, uint32_t number)
{
	struct wh_abort *found = NULL;

	pthread_mutex_lock(&peer->lock);
	for (struct wh_list *l = peer->aborts.next; l != &peer->aborts && !found; l = l->next) {
		struct wh_abort *abort = wh_container(l, struct wh_abort, link);

		if (number == UINT32_MAX || abort->number == number)
			found = abort;
	}
	if (found)
		wh_list_remove(&found->link);
	pthread_mutex_unlock(&peer->lock);
	return found;
}

void wh_peer_aborts_fail(struct wh_peer *peer, int error)
{
	struct wh_abort *abort;

	while ((abort = peer_take_abort(peer, UINT32_MAX)))
		abort->done(abort, error);
}

static int peer_confirm_abort(struct wh_peer *peer, const uint8_t *payload, size_t length)
{
	struct wh_abort *abort;

	if (length != 8 || wh_get64(payload) >= UINT32_MAX)
		return -EPROTO;
	abort = peer_take_abort(peer, (uint32_t)wh_get64(payload));
	if (abort)
		abort->done(abort, 0);
	return 0;
}

/* ---- the answer to our hello ---------------------------------------------------------------- */

/* Give up an engine whose WELCOME leads to the present error text. */
static void peer_not_usable(struct wh_peer *peer, const char *name, int error)
{
	char why[WH_TEXT_MAX];

	snprintf(why, sizeof(why), "%.40s (%.24s): %.180s", peer->address_text, name,
		 wh_error_text());
	wh_peer_give_up(peer, error, why);
}

static void peer_other_version(struct wh_peer *peer, const struct wh_hello *welcome)
{
	char why[WH_TEXT_MAX];

	snprintf(why, sizeof(why),
		 "%s answers in protocol version %u, this engine speaks %u: one of them is newer",
		 peer->address_text, welcome->version_min, WH_WIRE_VERSION);
	wh_peer_give_up(peer, -EPROTONOSUPPORT, why);
}

/* WELCOME: check its proof and its epoch, and send ours. An engine that we must not use is given up
 * here, with 0; an error breaks the connection. */
static int peer_welcomed(struct wh_peer *peer, const uint8_t *payload, size_t length)
{
	struct wh_hello welcome;
	bool first = !peer->welcome.epoch;
	struct wh_channel *records = NULL;
	uint8_t proof[WH_PROVE_SIZE];
	int error = wh_hello_decode(payload, length, &welcome);

	if (error == -EPROTONOSUPPORT) {
		peer_other_version(peer, &welcome);
		return 0;
	}
	if (error || welcome.role != WH_ROLE_CONTROL || !welcome.epoch)
		return -EPROTO;
	error = wh_peer_prove(peer, WH_ROLE_CONTROL, peer->control.source.fd, peer->control.channel,
			      &peer->hello, payload, length, proof);
	if (error == -EACCES)
		peer_not_usable(peer, welcome.name, error);
	if (error)
		return error == -EACCES ? 0 : error;
	peer->proved = true;
	if (*wh_channel_name(peer->control.channel))
		memcpy(welcome.name, wh_channel_name(peer->control.channel), sizeof(welcome.name));
	/* The registry has another engine at this address. */
	if (first && peer->wanted && welcome.epoch != peer->wanted) {
		wh_peer_give_up(
			peer, -ESTALE,
			"another engine answers at the address in the registry; try again when "
			"the lease of the old one has ended");
		return 0;
	}
	if (!first && welcome.epoch != peer->welcome.epoch) {
		wh_peer_give_up(peer, -ESTALE, "it was restarted");
		return 0;
	}
	error = wh_handshake_channel(&peer->hello, payload, length, peer->control.source.fd, false,
				     &records);
	if (error == -EOPNOTSUPP) {
		peer_not_usable(peer, welcome.name, error);
		return 0;
	}
	if (error)
		return error;
	pthread_mutex_lock(&peer->lock);
	if (first)
		peer->welcome = welcome;
	else /* the same engine: the rest is unchanged, and others read it without the lock */
		peer->welcome.session = welcome.session;
	pthread_mutex_unlock(&peer->lock);
	peer->list_round++;
	peer->relearned = 0;
	if (records)
		wh_control_protect(&peer->control, records);
	error = wh_control_send(&peer->control, WH_FRAME_PROVE, 0, proof + WH_FRAME_HEADER,
				WH_PROOF_SIZE);
	return error ? error : wh_question_relearn(peer);
}

/* True: the connection leads back to this engine. False, although the epoch is ours: a relay stands
 * in between, and bytes meant for what is behind it would go to our own regions. */
static bool peer_is_self(struct wh_peer *peer)
{
	struct wh_session *session = wh_session_find(peer->engine, peer->welcome.session);

	return session && wh_sockets_joined(peer->control.source.fd, session->control.source.fd);
}

static int peer_refused(struct wh_peer *peer, const uint8_t *payload, size_t length)
{
	char text[WH_REFUSAL_MAX], why[WH_TEXT_MAX];
	int error;

	if (wh_refusal_decode(payload, length, &error, text))
		return -EPROTO;
	snprintf(why, sizeof(why), "%s refuses: %.180s", peer->address_text, text);
	/* A refusal is not authenticated: it cannot make the peer stale. */
	wh_peer_give_up(peer, error == ESTALE ? -EPROTO : -error, why);
	return 0;
}

/* ---- regions -------------------------------------------------------------------------------- */

/* Remove the regions that were known before the connection broke and are not there any more. */
static void peer_drop_unlisted(struct wh_peer *peer)
{
	uint64_t cursor = 0;
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];

	while (wh_region_table_next(&peer->regions, &cursor, &copy, name)) {
		struct wh_region_entry *entry = wh_region_table_at(&peer->regions, copy.index);

		if (((struct wh_remote_region *)entry)->round != peer->list_round)
			wh_remote_remove(peer, wh_region_entry_id(&copy), copy.address, copy.length,
					 wh_remote_patience(peer));
	}
}

static int peer_regions(struct wh_peer *peer, const struct wh_frame *frame, const uint8_t *payload)
{
	int got;

	if (!peer->listed && peer->welcome.epoch == peer->engine->identity.epoch) {
		if (!peer_is_self(peer))
			return -EPROTO;
		pthread_mutex_lock(&peer->lock);
		peer->self = true;
		pthread_mutex_unlock(&peer->lock);
	}
	got = wh_question_answered(peer, frame, payload);
	if (got != 1)
		return got;
	peer_drop_unlisted(peer);
	/* A transport that is refused now would be as long as the connection lasts. */
	if (wh_peer_open_transports(peer)) {
		peer->control.queue_refused = "has sent its regions, but there is no memory for a "
					      "transport to it";
		wh_peer_lose_transports(peer, -ENOMEM, "there is no memory for a transport");
		return -ENOMEM;
	}
	wh_peer_connected(peer);
	return 0;
}

/* REGISTERED: threads that wait for a region ask again. */
static int peer_registered(struct wh_peer *peer, size_t length)
{
	if (length)
		return -EPROTO;
	pthread_mutex_lock(&peer->lock);
	peer->registered++;
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (peer->opened[id])
			wh_transport(id)->region_came(peer, peer->transport[id]);
	return 0;
}

/* ---- all frames ----------------------------------------------------------------------------- */

static int peer_transport_frame(struct wh_peer *peer, const struct wh_frame *frame,
				const uint8_t *payload)
{
	enum wh_transport_id id = wh_transport_by_frame(frame->type);

	if (id == WH_TRANSPORT_COUNT || !peer->opened[id])
		return -EPROTO;
	return wh_transport(id)->peer_frame(peer, peer->transport[id], frame, payload);
}

int wh_peer_frame(struct wh_control *control, const struct wh_frame *frame, const uint8_t *payload)
{
	struct wh_peer *peer = wh_container(control, struct wh_peer, control);

	peer->heard = wh_now();
	if (peer->proved ? frame->type == WH_FRAME_WELCOME :
			   frame->type != WH_FRAME_WELCOME && frame->type != WH_FRAME_REFUSED)
		return -EPROTO;
	switch (frame->type) {
	case WH_FRAME_WELCOME:
		return peer_welcomed(peer, payload, frame->length);
	case WH_FRAME_REFUSED:
		return peer->listed ? -EPROTO : peer_refused(peer, payload, frame->length);
	case WH_FRAME_REGIONS:
		return peer_regions(peer, frame, payload);
	case WH_FRAME_REGISTERED:
		return peer_registered(peer, frame->length);
	case WH_FRAME_REMOVE:
		return wh_removal_received(peer, payload, frame->length);
	case WH_FRAME_NOTIFIED:
		if (frame->length != 8)
			return -EPROTO;
		wh_notify_confirmed(peer, wh_get64(payload));
		return 0;
	case WH_FRAME_ABORTED:
		return peer_confirm_abort(peer, payload, frame->length);
	case WH_FRAME_PONG:
		return frame->length == 8 ? wh_question_ponged(peer, wh_get64(payload)) : -EPROTO;
	default:
		return peer_transport_frame(peer, frame, payload);
	}
}
