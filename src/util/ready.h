/* SPDX-License-Identifier: Apache-2.0 */
/* A descriptor that is readable while there is something to take, and waiting on it. Its owner sets
 * and clears it under the lock of what it counts, at the first and after the last, so that it is
 * always in step. */
#ifndef WH_UTIL_READY_H
#define WH_UTIL_READY_H

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"

/* A spinning waiter that has seen nothing for so long lets others have the CPU. */
#define WH_READY_QUIET WH_MS

/* The descriptor, or a negative errno. */
static inline int wh_ready_open(const char *call)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return fd >= 0 ? fd : wh_fail(errno, "%s: eventfd: %s", call, strerror(errno));
}

static inline void wh_ready_set(int fd)
{
	uint64_t one = 1;
	/* The counter goes from 0 to 1 and back: neither can fail. */
	ssize_t rc = write(fd, &one, sizeof(one));

	(void)rc;
}

static inline void wh_ready_clear(int fd)
{
	uint64_t count;
	ssize_t rc = read(fd, &count, sizeof(count));

	(void)rc;
}

/* Sleep until it is set; false when `deadline` comes first. */
static inline bool wh_ready_wait(int fd, int64_t deadline)
{
	struct pollfd poll = { .fd = fd, .events = POLLIN };
	struct timespec left;
	int64_t ns;
	int rc;

	do {
		ns = deadline == INT64_MAX ? 0 : deadline - wh_now();
		if (ns < 0)
			ns = 0;
		left = (struct timespec){ ns / WH_SECOND, ns % WH_SECOND };
		rc = ppoll(&poll, 1, deadline == INT64_MAX ? NULL : &left, NULL);
	} while (rc < 0 && (errno == EINTR || errno == EAGAIN));
	return rc > 0;
}

/* The same without sleeping: look at what the descriptor stands for. */
static inline bool wh_ready_spin(const _Atomic uint32_t *count, int64_t deadline)
{
	int64_t start = wh_now(), now = start;

	while (!atomic_load_explicit(count, memory_order_acquire)) {
		now = wh_now();
		if (now >= deadline)
			return false;
		if (now - start > WH_READY_QUIET)
			sched_yield();
	}
	return true;
}

#endif
