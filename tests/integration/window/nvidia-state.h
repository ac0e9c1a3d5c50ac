/* SPDX-License-Identifier: Apache-2.0 */
/* nvidia-state.h: what the stand-in for the NVIDIA kernel driver counts */
#ifndef TESTS_INTEGRATION_WINDOW_NVIDIA_STATE_H
#define TESTS_INTEGRATION_WINDOW_NVIDIA_STATE_H

#include "../../fake/nvidia-control.h"
#include "../../unit/unit.h"

static inline struct fake_nvidia nvidia_state(void)
{
	struct fake_nvidia state;

	fake_nvidia_state(&state);
	return state;
}

/* Fail the test unless the driver holds nothing more for this process, and saw no violation. */
static inline void want_nvidia_clean(void)
{
	struct fake_nvidia left = nvidia_state();

	assert_int_equal(left.clients, 0);
	assert_int_equal(left.objects, 0);
	assert_int_equal(left.mapped, 0);
	assert_int_equal(left.pins, 0);
	assert_int_equal(left.violations, 0);
}

#endif
