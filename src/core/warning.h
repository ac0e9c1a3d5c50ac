/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings: what makes bytes take many times as long. Each is said once in the log, and in every
 * explanation that it concerns, by the same words. The third one, that a GPU's memory has no
 * window, is in gpu/region-window.c. */
#ifndef WH_CORE_WARNING_H
#define WH_CORE_WARNING_H

#include <stdbool.h>

#include "transport/transport.h"

struct wh_batch;
struct wh_engine;
struct wh_peer;

#define WH_WARNING_MAX 512
/* As many reasons are remembered as said; a reason beyond that may be said twice. */
#define WH_WARNINGS 16

/* TLS switches off a transport whose bytes would not be encrypted. If this machine could use it,
 * remember that and log it. */
void wh_warning_plaintext(struct wh_engine *engine, enum wh_transport_id id);

/* A transport cannot be used for the peer, for the reason `why`. Log it: as a warning, if the peer
 * is another process of this host whose memory is not reached, and the reason is new. On loop 0. */
void wh_warning_refused(struct wh_peer *peer, enum wh_transport_id id, const char *why);

/* The batch is planned, or was planned anew in part. If it moves bytes for an engine of this
 * machine by a network, although no setting asks for that, log why, unless the reason was said
 * before. Any thread, which does not hold batch.text_lock. */
void wh_warning_networked(struct wh_batch *batch);
/* The same for an explanation. False: it does not. */
bool wh_warning_of_batch(struct wh_batch *batch, char out[WH_WARNING_MAX]);

/* The warning that concerns a transport which a batch for the peer did not take. `networked`: the
 * batch moves bytes by connections of the role WH_ROLE_DATA. False: there is none. */
bool wh_warning_of(struct wh_peer *peer, enum wh_transport_id id, bool networked,
		   char out[WH_WARNING_MAX]);

#endif
