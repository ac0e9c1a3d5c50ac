/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings: the conditions and their words, for the log and for explanations. */
#include "core/warning.h"

#include <stdio.h>
#include <string.h>

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

	if (transport->role == WH_ROLE_LOCAL && !atomic_exchange(&engine->warned_local, true)) {
		local_text(peer, transport, why, text);
		wh_log_line(&engine->log, WH_LOG_WARN, "peer", "%s", text);
	} else {
		wh_log_line(&engine->log, WH_LOG_INFO, "peer", "%s: %s is refused: %s",
			    peer->welcome.name, transport->name, why);
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
