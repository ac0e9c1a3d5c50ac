/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a tensor where slices begin and end. */
#ifndef WH_WEIGHTS_CUT_H
#define WH_WEIGHTS_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weights/layout.h"

/* Slices with one box: members [first, first + sources) hold it, the `targets` behind them want it.
 */
struct wh_same_box {
	const uint64_t *box; /* dims begins, dims ends */
	uint32_t first, sources, targets;
};

struct wh_cut {
	uint32_t dims;
	/* Called for each cell that a target wants, in the order of the tensor's elements: its box,
	 * and the boxes of which it is a part. Not 0: stop, and return it. */
	int (*cell)(void *arg, const uint64_t *box, const struct wh_same_box *const *boxes,
		    size_t count);
	void *arg;
};

/* Cut along one dimension after the other, each time among the boxes that are left. Boxes that are
 * cut in one dimension only, as with tensor parallelism, take time in proportion to their number,
 * apart from sorting. 0, or what cell() returned, or -ENOMEM. */
int wh_cut(const struct wh_cut *cut, const struct wh_same_box *boxes, size_t count);

#endif
