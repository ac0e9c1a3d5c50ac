/* SPDX-License-Identifier: Apache-2.0 */
/* Which process this is, so that another one can prove later that it has ended. */
#ifndef WH_UTIL_PROCESS_H
#define WH_UTIL_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct wh_process {
	uint64_t space; /* boot, pid namespace and time namespace: where `pid` and `start` count */
	int64_t pid; /* 0: unknown */
	uint64_t start; /* clock ticks since the boot; a later process with this pid has another */
};

/* The calling process; all 0 if /proc does not say. */
void wh_process_identify(struct wh_process *out);

/* True only where it is proved: this process counts in the same space, and either no process has
 * the pid, or one that started at another time, or one that only waits to be reaped. */
bool wh_process_has_ended(const struct wh_process *process);

#endif
