/* SPDX-License-Identifier: Apache-2.0 */
/* windows.h: what the tests of CPU windows share
 *
 * The state of the stand-in for the NVIDIA kernel driver (tests/fake/nvidia.c), where the program
 * is linked with it. */
#ifndef TESTS_INTEGRATION_LIB_WINDOWS_H
#define TESTS_INTEGRATION_LIB_WINDOWS_H

#include "../../fake/nvidia-control.h"
#include "harness.h"

/* Condition of tests: the stand-in. */
extern const struct route needs_stand_in;
bool has_stand_in(void);

/* The state of the stand-in now; without it, zeros. */
struct fake_nvidia stand_in_state(void);
/* Check that every window has been closed. */
void want_no_windows(void);

/* Let engines use the default costs of windows until fake_heal(): measurements on a busy machine
 * vary. Nothing changes on a real driver. */
void use_default_costs(void);

#endif
