/* SPDX-License-Identifier: Apache-2.0 */
/* Withdrawing regions when the server ends: all of them first without waiting, so that all peers
 * are asked at once, then each until the same time. */
#ifndef TOOLS_SERVE_WITHDRAW_H
#define TOOLS_SERVE_WITHDRAW_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/wherry.h>

#include "util/clock.h"

/* 0, or an error of wh_region_unregister_for(). NULL and 0: fine. */
static inline int region_withdraw(struct wh_region *region, int64_t until)
{
	int64_t left = until - wh_now();

	return wh_region_unregister_for(region, left > 0 ? left : 0);
}

/* Between two looks whether a region has been let go of, at first and at most. */
#define LEAVE_FIRST (WH_MS / 10)
#define LEAVE_MOST (100 * WH_MS)

/* A region that is being withdrawn. */
struct leaving {
	int64_t pause, again; /* ns until the next look; when it is due */
};

/* Withdraw the region until then. False: somebody has not let go of it; look again later. */
static inline bool region_leave(struct wh_region **region, struct leaving *leaving, int64_t until)
{
	if (region_withdraw(*region, until)) {
		if (leaving->pause < LEAVE_MOST)
			leaving->pause = leaving->pause ? 2 * leaving->pause : LEAVE_FIRST;
		leaving->again = wh_now() + leaving->pause;
		return false;
	}
	*region = NULL;
	return true;
}

#endif
