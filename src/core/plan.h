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

/* Choose a transport for everything in the batch; fills its fragments and shares. While no fragment
 * has started. 0, -EINPROGRESS (unless it decides: a better transport is being set up, so plan
 * again; core/deferred.h), -EOPNOTSUPP (the shares have the reasons), -ESTALE (a region is gone),
 * -ENOMEM. */
int wh_plan(struct wh_batch *batch, enum wh_planning how);
/* The next best transport for a fragment whose transport cannot move it; WH_TRANSPORT_COUNT: none.
 */
uint32_t wh_plan_again(const struct wh_fragment *fragment);

/* Between these two calls the fragments and shares change, or the items: wh_plan() makes them
 * itself. They nest. */
void wh_plan_begin(struct wh_batch *batch);
void wh_plan_end(struct wh_batch *batch);
/* Keep the plan as it is until wh_plan_release(), to look at it on a thread that does not own the
 * batch. False: there is none now, it is being made; nothing is held. */
bool wh_plan_hold(struct wh_batch *batch);
void wh_plan_release(struct wh_batch *batch);

/* What the setting and the option `require` may say besides the name of a transport: bytes for an
 * engine of this machine go by no network; those for other machines are not concerned. */
#define WH_REQUIRE_LOCAL "local"
/* Is it "", "local" or the name of a transport? */
bool wh_require_is_known(const char *require);

#endif
