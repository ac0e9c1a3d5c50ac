/* SPDX-License-Identifier: Apache-2.0 */
/* The NICs of the samples of wherry top. */
#ifndef TOOLS_TOP_NICS_H
#define TOOLS_TOP_NICS_H

#include "top/top.h"

/* Begins as zeros. */
struct top_nics {
	/* a sum of the names among which the NICs were found; 0: not looked yet */
	uint64_t listed;
};

/* Take a sample, `seconds` after the one before (0: there is none): which NICs there are, in what
 * state, and what they have counted. */
void top_read_nics(struct top_nics *nics, const struct wh_tree *tree, double seconds,
		   struct top_sample *out);

#endif
