/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into each program that uses the fake driver's device files. It refers to the library by
 * name; otherwise the linker would drop the library, or prefer a sanitizer's functions. */
#include "nvidia-control.h"

extern void (*const fake_nvidia_needed)(struct fake_nvidia *out);
void (*const fake_nvidia_needed)(struct fake_nvidia *out) = fake_nvidia_state;
