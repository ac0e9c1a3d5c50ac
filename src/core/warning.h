/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings: what makes bytes take many times as long. Each is said once in the log, and in every
 * explanation that it concerns, by the same words. The third one, that a GPU's memory has no
 * window, is in gpu/region-window.c. */
#ifndef WH_CORE_WARNING_H
#define WH_CORE_WARNING_H

#include <stdbool.h>

#include "transport/transport.h"

struct wh_engine;
struct wh_peer;

#define WH_WARNING_MAX 448

/* TLS switches off a transport whose bytes would not be encrypted. If this machine could use it,
 * remember that and log it. */
void wh_warning_plaintext(struct wh_engine *engine, enum wh_transport_id id);

/* A transport cannot be used for the peer, for the reason `why`. Log it: as a warning, if the peer
 * is another process of this host whose memory is not reached, for the first time. On loop 0. */
void wh_warning_refused(struct wh_peer *peer, enum wh_transport_id id, const char *why);

/* The warning that concerns a transport which a batch for the peer did not take. `networked`: the
 * batch moves bytes by connections of the role WH_ROLE_DATA. False: there is none. */
bool wh_warning_of(struct wh_peer *peer, enum wh_transport_id id, bool networked,
		   char out[WH_WARNING_MAX]);

#endif
