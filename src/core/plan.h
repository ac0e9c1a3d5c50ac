/* SPDX-License-Identifier: Apache-2.0 */
/* Planning: which transport moves which part of a batch, and what that takes. */
#ifndef WH_CORE_PLAN_H
#define WH_CORE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

struct wh_batch;
struct wh_estimate;
struct wh_fragment;
struct wh_peer;

/* Choose a transport for everything in the batch; fills its fragments and shares. On the
 * submitter's thread, while the batch is not running. May ask the peer, and wait for the answer. 0,
 * -EOPNOTSUPP (the shares have the reasons), -ESTALE (a region is gone), -ENOMEM. */
int wh_plan(struct wh_batch *batch);
/* Add to out->duration how long the batch's fragments of transport `id` take, as measured by a
 * probe. The first call for a peer runs the probe: it reads from the peer and blocks, up to a
 * second or so. False: not known. */
bool wh_probe_estimate(struct wh_peer *peer, enum wh_transport_id id, const struct wh_batch *batch,
		       struct wh_estimate *out);
/* The next best transport for a fragment whose transport cannot move it; WH_TRANSPORT_COUNT: none.
 */
uint32_t wh_plan_again(const struct wh_fragment *fragment);

#endif
