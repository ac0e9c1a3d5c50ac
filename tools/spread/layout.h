/* SPDX-License-Identifier: Apache-2.0 */
/* What an offer (spread/message.h) says, as layouts: one tensor of bytes, which the first member
 * has and all others want. All members make the same ones from it. */
#ifndef TOOLS_SPREAD_LAYOUT_H
#define TOOLS_SPREAD_LAYOUT_H

#include <wherry/wherry.h>

#include "spread/message.h"
#include "weights/plan.h"

/* Become a member, with `size` bytes at `address`. As wh_weights_open(). */
int spread_weights_open(struct wh_engine *engine, const struct spread_message *offer, void *address,
			struct wh_weights **out);

/* The plan that the members will follow; *layouts are its two, which outlive it. Free all three,
 * also after an error. 0, or a negative errno with wh_fail_text(). */
int spread_plan(const struct spread_message *offer, struct wh_layout *layouts[2],
		struct wh_plan **out);

#endif
