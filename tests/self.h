/* SPDX-License-Identifier: Apache-2.0 */
/* self.h: how a test program starts itself again */
#ifndef TESTS_SELF_H
#define TESTS_SELF_H

#include <stdlib.h>

/* The path to execute. Under qemu-user, /proc/self/exe would execute qemu: scripts/aarch64 says
 * what starts this program there. */
static inline const char *self_path(void)
{
	const char *path = getenv("TEST_SELF");

	return path ? path : "/proc/self/exe";
}

#endif
