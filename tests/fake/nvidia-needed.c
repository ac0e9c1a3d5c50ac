/* SPDX-License-Identifier: Apache-2.0 */
/* A part of each program that wants the fake driver's nodes. Without it the linker would leave the
 * library out where nothing of it is called by name, or where a sanitizer defines the same. */
#include "nvidia-control.h"

extern void (*const fake_nvidia_needed)(struct fake_nvidia *out);
void (*const fake_nvidia_needed)(struct fake_nvidia *out) = fake_nvidia_state;
