/* SPDX-License-Identifier: Apache-2.0 */
/* Which machine this is, as engines tell each other. */
#ifndef WH_PLATFORM_MACHINE_H
#define WH_PLATFORM_MACHINE_H

#include <stdint.h>

#define WH_MACHINE_SIZE 16

/* The boot id, with the number of this process's network namespace mixed into the first half: equal
 * in one network namespace; the second half, bytes 8 to 15, is equal in all containers of a
 * machine. 0; -ENOENT: /proc does not say, and `out` is random, so equal to no other. */
int wh_machine_identify(uint8_t out[WH_MACHINE_SIZE]);

#endif
