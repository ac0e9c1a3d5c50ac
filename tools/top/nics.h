/* SPDX-License-Identifier: Apache-2.0 */
/* The NICs of the samples of wherry top. */
#ifndef TOOLS_TOP_NICS_H
#define TOOLS_TOP_NICS_H

#include "top/top.h"

/* Begins as zeros. */
struct top_nics {
	/* hash of all names in /sys/class when NICs were listed; 0: not yet */
	uint64_t listed;
};

/* Take a sample, `seconds` after the one before (0: the first): which NICs there are, their states
 * and counters. */
void top_read_nics(struct top_nics *nics, const struct wh_tree *tree, double seconds,
		   struct top_sample *out);

#endif
