/* SPDX-License-Identifier: Apache-2.0 */
/* Removals: a peer takes back regions that this engine may be using. */
#ifndef WH_CORE_REMOVAL_H
#define WH_CORE_REMOVAL_H

#include <stddef.h>
#include <stdint.h>

struct wh_peer;

/* For a new peer. */
void wh_removals_init(struct wh_peer *peer);

/* The frame REMOVE has come. Stop using the region, then confirm: at once, or when the last copy
 * that uses it has ended, behind the removals before it. If that takes longer than half of the
 * setting `timeout`, the connection is given up. On loop 0; blocks for about a millisecond. 0,
 * -EPROTO, -ENOMEM, or wh_control_send()'s error. */
int wh_removal_received(struct wh_peer *peer, const uint8_t *payload, size_t length);

/* The connection is gone, and with it what was to be confirmed. On loop 0. */
void wh_removals_drop(struct wh_peer *peer);

#endif
