/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU's side of wherry window pingpong. One thread waits until *in is 1, 2, 3 ... `rounds`, and
 * answers each number in *out. It ends after `patience` reads that did not show the next number, so
 * that a dead CPU side does not occupy the GPU for ever.
 *
 * Like blocks.cu it uses PTX ISA 7.0 only.
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
