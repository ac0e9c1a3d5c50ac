/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings: the conditions and their words, for the log and for explanations. */
#include "core/warning.h"

#include <stdio.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "util/log.h"

static void plaintext_text(const struct wh_transport *transport, char out[WH_WARNING_MAX])
{
	snprintf(out, WH_WARNING_MAX,
		 "the setting tls is on and %s does not encrypt, so %s is not used: bytes go by "
		 "TCP, which can take many times as long; in a network that you trust, switch tls "
		 "off on all engines",
		 transport->name, transport->name);
}

void wh_warning_plaintext(struct wh_engine *engine, enum wh_transport_id id)
{
	const struct wh_transport *transport = wh_transport(id);
	char text[WH_WARNING_MAX];
	void *opened = NULL;

	if (transport->engine_open(engine, &opened))
		return;
	transport->engine_close(engine, opened);
	engine->plaintext[id] = true;
	plaintext_text(transport, text);
	wh_log_line(&engine->log, WH_LOG_WARN, "engine", "%s", text);
}

/* Was the reason not said before? From now on it counts as said. Another peer's is the same if its
 * words are. */
static bool warning_is_new(struct wh_engine *engine, const char *why)
{
	uint64_t hash = 0xcbf29ce484222325u, free = 0; /* FNV-1a */

	for (const char *at = why; *at; at++)
		hash = (hash ^ (uint8_t)*at) * 0x100000001b3u;
	for (unsigned i = 0; i < WH_WARNINGS; i++) {
		uint64_t said = atomic_load(&engine->warned[i]);

		if (!said && atomic_compare_exchange_strong(&engine->warned[i], &free, hash))
			return true;
		if (said == hash || free == hash)
			return false;
		free = 0;
	}
	atomic_store(&engine->warned[hash % WH_WARNINGS], hash);
	return true;
}

static void local_text(const struct wh_peer *peer, const struct wh_transport *transport,
		       const char *why, char out[WH_WARNING_MAX])
{
	snprintf(out, WH_WARNING_MAX,
		 "%s is on this host, but %s does not reach it, so that bytes take a slower path: "
		 "%s",
		 peer->welcome.name, transport->name, why);
}

void wh_warning_refused(struct wh_peer *peer, enum wh_transport_id id, const char *why)
{
	const struct wh_transport *transport = wh_transport(id);
	struct wh_engine *engine = peer->engine;
	char text[WH_WARNING_MAX];

	if (transport->role == WH_ROLE_LOCAL && warning_is_new(engine, why)) {
		local_text(peer, transport, why, text);
		wh_log_line(&engine->log, WH_LOG_WARN, "peer", "%s", text);
	} else {
		wh_log_about(&engine->log, (uintptr_t)peer, WH_LOG_INFO, "peer",
			     "%s: %s is refused: %s", peer->welcome.name, transport->name, why);
	}
}

bool wh_warning_of(struct wh_peer *peer, enum wh_transport_id id, bool networked,
		   char out[WH_WARNING_MAX])
{
	const struct wh_transport *transport = wh_transport(id);
	char why[WH_REFUSAL] = "";

	if (peer->engine->plaintext[id] && networked) {
		plaintext_text(transport, out);
		return true;
	}
	/* Switched off on purpose: no surprise. */
	if (transport->role != WH_ROLE_LOCAL || peer->engine->transport_off[id][0])
		return false;
	pthread_mutex_lock(&peer->lock);
	if (!peer->not_for[id])
		memcpy(why, peer->refused[id], sizeof(why));
	pthread_mutex_unlock(&peer->lock);
	if (*why)
		local_text(peer, transport, why, out);
	return *why;
}

/* ---- bytes that take the network within a machine ------------------------------------------- */

/* Was the peer refused as a whole, for a reason that wh_warning_refused() has said? */
static bool peer_was_warned(struct wh_peer *peer)
{
	bool was = false;

	pthread_mutex_lock(&peer->lock);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		was |= wh_transport(id)->role == WH_ROLE_LOCAL && *peer->refused[id] &&
		       !peer->not_for[id];
	pthread_mutex_unlock(&peer->lock);
	return was;
}

/* Why the transports that need no network do not take the batch, in the order of the setting; "":
 * they do, or none was meant to. Returns the name of the network. */
static const char *batch_reasons(struct wh_batch *batch, char why[2 * WH_REFUSAL])
{
	const struct wh_engine *engine = batch->peer->engine;
	const char *network = NULL;
	size_t at = 0, room = 2 * WH_REFUSAL;

	*why = 0;
	pthread_mutex_lock(&batch->text_lock);
	for (unsigned i = 0; i < engine->order_count; i++) {
		const struct wh_transport *transport = wh_transport(engine->order[i]);
		const struct wh_share *share = &batch->share[engine->order[i]];

		if (transport->capabilities & WH_IS_NETWORKED) {
			network = !network && share->bytes ? transport->name : network;
			continue;
		}
		if (*share->refused && !share->inapplicable && at < room)
			at += (size_t)snprintf(why + at, room - at, "%s%s: %s", at ? "; " : "",
					       transport->name, share->refused);
	}
	pthread_mutex_unlock(&batch->text_lock);
	return network;
}

static bool batch_text(struct wh_batch *batch, char why[2 * WH_REFUSAL], char out[WH_WARNING_MAX])
{
	const char *network;

	if (!wh_peer_is_near(batch->peer) || peer_was_warned(batch->peer))
		return false;
	network = batch_reasons(batch, why);
	if (!network || !*why)
		return false;
	snprintf(out, WH_WARNING_MAX, "%s is on this host, but bytes go there by %s: %.*s",
		 batch->peer->welcome.name, network, 2 * WH_REFUSAL - 1, why);
	return true;
}

void wh_warning_networked(struct wh_batch *batch)
{
	char why[2 * WH_REFUSAL], text[WH_WARNING_MAX];

	if (batch_text(batch, why, text) && warning_is_new(batch->peer->engine, why))
		wh_log_line(&batch->peer->engine->log, WH_LOG_WARN, "batch", "%s", text);
}

bool wh_warning_of_batch(struct wh_batch *batch, char out[WH_WARNING_MAX])
{
	char why[2 * WH_REFUSAL];

	return batch_text(batch, why, out);
}
