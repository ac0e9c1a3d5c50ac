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

/* Wait a little for what another thread is about to do, and looks at nothing that could wake this
 * one: yield 64 times, then sleep for 50 us each time. *round is 0 at first. */
static inline void wh_pause(unsigned *round)
{
	const struct timespec little = { 0, 50000 };

	if (++*round <= 64)
		sched_yield();
	else
		nanosleep(&little, NULL);
}

#endif
