/* SPDX-License-Identifier: Apache-2.0 */
/* Withdrawing regions when the server ends: all of them first without waiting, so that all peers
 * are asked at once, then each until the same time. */
#ifndef TOOLS_SERVE_WITHDRAW_H
#define TOOLS_SERVE_WITHDRAW_H

#include <stdint.h>

#include <wherry/wherry.h>

#include "util/clock.h"

/* 0, or an error of wh_region_unregister_for(). NULL and 0: fine. */
static inline int region_withdraw(struct wh_region *region, int64_t until)
{
	int64_t left = until - wh_now();

	return wh_region_unregister_for(region, left > 0 ? left : 0);
}

#endif
