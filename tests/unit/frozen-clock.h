/* SPDX-License-Identifier: Apache-2.0 */
/* frozen-clock.h: the library's monotonic clock shows what the test sets: meson.build links what
 * includes this with --wrap */
#ifndef TESTS_UNIT_FROZEN_CLOCK_H
#define TESTS_UNIT_FROZEN_CLOCK_H

#include <stdint.h>
#include <time.h>

static int64_t frozen_now; /* ns; 0: the clock runs */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
	if (!frozen_now || clock != CLOCK_MONOTONIC)
		return __real_clock_gettime(clock, time);
	time->tv_sec = frozen_now / 1000000000;
	time->tv_nsec = frozen_now % 1000000000;
	return 0;
}

#endif
