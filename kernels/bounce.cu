/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU's side of wherry window pingpong: waits for 1, 2, 3 ... at one place and answers each at
 * another, with one thread. It gives up after `patience` looks for the same number, so that a GPU is
 * not lost to it.
 *
 * As blocks.cu it has to stay within PTX ISA 7.0.
 */
#include <stdint.h>

extern "C" __global__ void __launch_bounds__(1)
wh_bounce(const volatile uint32_t *in, volatile uint32_t *out, uint32_t rounds, uint32_t patience)
{
	for (uint32_t next = 1; next <= rounds; next++) {
		uint32_t left = patience;

		while (*in != next)
			if (!--left)
				return;
		*out = next;
	}
}
