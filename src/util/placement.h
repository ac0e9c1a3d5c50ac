/* SPDX-License-Identifier: Apache-2.0 */
/* On which CPU a busy loop runs, where there are no more CPUs than busy loops.
 *
 * What one engine sends over TCP another one on the same machine receives, and both copy the bytes.
 * If the loops of the two keep all CPUs busy, the receiving loop should share the CPU of the loop
 * that sends to it: the bytes are in that CPU's cache, and the two take turns. The kernel does not
 * see to that: loops that stay awake are never woken, and threads that are evenly spread are not
 * moved. So from time to time a loop looks, and moves itself once; its affinity stays as it was.
 *
 * The engine that has opened the connection spreads its loops over the CPUs. The one that has
 * accepted it follows, so that the two do not change places for ever. */
#ifndef WH_UTIL_PLACEMENT_H
#define WH_UTIL_PLACEMENT_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Of one loop of an engine. Zero: it has not moved anything yet. */
struct wh_place {
	/* When the loop looked last (monotonic ns), where it ran, and where the other end of its
	 * connection; -1: it does not follow that. */
	_Atomic int64_t seen;
	_Atomic int cpu, other;
	/* Bytes moved since, and how many looks in a row have found `other`; its thread only. */
	uint64_t moved;
	unsigned steady;
};

/* Where a busy loop runs, and where the other end does; cpu -1: it is not busy. */
struct wh_placed {
	int cpu, other;
};

/* The CPU to which loop `self` of `count` should move; -1: it stays. `may`: the CPUs that it may
 * use. */
int wh_placement_choose(const struct wh_placed *loops, unsigned count, unsigned self,
			const cpu_set_t *may);

/* The loop `self` of `count` has moved `bytes` more on the socket fd, whose other end is on this
 * machine; `follow`: it shall follow that. Rarely makes a few system calls. On the loop's thread.
 */
void wh_placement_moved(struct wh_place *places, unsigned count, unsigned self, uint64_t bytes,
			int fd, bool follow);

#endif
