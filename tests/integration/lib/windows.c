/* SPDX-License-Identifier: Apache-2.0 */
/* windows.c: the state of the stand-in for the NVIDIA kernel driver */
#include "windows.h"

#include "gpu.h"

#pragma weak fake_nvidia_state

bool has_stand_in(void)
{
	return fake_nvidia_state;
}

static const char *missing_stand_in(void)
{
	return has_stand_in() ? NULL : "it takes the stand-in for the NVIDIA kernel driver";
}

const struct route needs_stand_in = { .name = "stand-in", .missing = missing_stand_in };

struct fake_nvidia stand_in_state(void)
{
	struct fake_nvidia state = { 0 };

	if (has_stand_in())
		fake_nvidia_state(&state);
	return state;
}

void want_no_windows(void)
{
	struct fake_nvidia left = stand_in_state();

	want(0, left.mapped);
	want(0, left.objects);
	want(0, left.pins);
	want(0, left.violations);
}

void use_default_costs(void)
{
	if (getenv("TEST_CUDA"))
		fake_fail("cuMemCreate", 0, 2); /* the memory for measurements */
}
