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

/* Choose a transport for everything in the batch; fills pieces and shares. */
int wh_plan(struct wh_batch *batch);
/* What the batch's pieces of a transport take, added to out->duration, from a probe of it: reads
 * from the peer and waits, if there has been none. False: not known. */
bool wh_probe_estimate(struct wh_peer *peer, enum wh_transport_id id, const struct wh_batch *batch,
		       struct wh_estimate *out);
/* The next best transport for a piece that its transport gave up; WH_TRANSPORT_COUNT: none. */
uint32_t wh_plan_again(const struct wh_fragment *fragment);

#endif
