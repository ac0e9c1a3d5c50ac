/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time in ns, and deadlines. */
#ifndef WH_UTIL_CLOCK_H
#define WH_UTIL_CLOCK_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

#define WH_MS 1000000LL
#define WH_SECOND 1000000000LL

/* Monotonic time, ns. */
static inline int64_t wh_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * WH_SECOND + t.tv_nsec;
}

/* The time `timeout` ns from now; WH_FOREVER stays WH_FOREVER. */
static inline int64_t wh_deadline(int64_t timeout)
{
	int64_t now = wh_now();

	return timeout > INT64_MAX - now ? INT64_MAX : now + (timeout > 0 ? timeout : 0);
}

/* Pause between two looks at what another thread does, where nothing wakes this one: 64 times it
 * yields, then it sleeps for 2 us, 4 us, and so on up to 1 ms. *round is 0 at first. */
static inline void wh_pause(unsigned *round)
{
	unsigned slept = *round < 64 ? 0 : *round - 64;
	struct timespec pause = { 0, slept < 9 ? 2000L << slept : WH_MS };

	if (++*round <= 64)
		sched_yield();
	else
		nanosleep(&pause, NULL);
}

#endif
