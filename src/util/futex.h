/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a 32-bit word to change: by futex, or by spinning. */
#ifndef WH_UTIL_FUTEX_H
#define WH_UTIL_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "util/clock.h"

/* Sleep while *word == value, until woken or until `deadline` (monotonic ns; INT64_MAX: none).
 * Spurious wakes happen. */
static inline void wh_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t deadline)
{
	struct timespec t = { .tv_sec = deadline / WH_SECOND, .tv_nsec = deadline % WH_SECOND };

	/* FUTEX_WAIT_BITSET takes an absolute monotonic time. */
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, value,
		deadline == INT64_MAX ? NULL : &t, NULL, FUTEX_BITSET_MATCH_ANY);
}

static inline void wh_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

/* Tell the CPU that this thread spins; call it between two reads of a word. */
static inline void wh_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
