/* SPDX-License-Identifier: Apache-2.0 */
/* How many CPUs this process may use, and how many threads to give them. */
#ifndef WH_UTIL_CPUS_H
#define WH_UTIL_CPUS_H

#include <stdbool.h>

/* The CPUs that this process may use at once, at least 1: those of its affinity mask, or as many as
 * the quotas of its control groups pay for, rounded up, if these are fewer. Reads /proc and /sys.
 */
unsigned wh_cpus(void);

/* The lesser of `count` and the quotas below the directory `root`, which has proc/self/cgroup and
 * sys/fs/cgroup. What is missing there is no limit. */
unsigned wh_cpus_under(const char *root, unsigned count);

/* The default number of progress threads of an engine on so many CPUs, with so many TCP connections
 * to each peer. `spin`: the threads keep their CPUs all the time. */
unsigned wh_cpus_threads(unsigned cpus, unsigned connections, bool spin);

#endif
