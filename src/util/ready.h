/* SPDX-License-Identifier: Apache-2.0 */
/* An eventfd that is readable while its owner has something to take, and waiting for it. The owner
 * sets it when the first item comes and clears it when the last one goes, both under the lock of
 * its list, so that the eventfd always agrees with the list. */
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

/* A spinning waiter that has seen nothing for this long yields its CPU. */
#define WH_READY_QUIET WH_MS

/* The eventfd, or a negative errno. `call` begins the error text. */
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

/* Sleep until it is set. False: `deadline` (monotonic ns; INT64_MAX: none) came first. */
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

/* The same by spinning: wait until `count`, the number of items, is not 0. */
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
