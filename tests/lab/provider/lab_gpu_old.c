// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The same as an older, proprietary driver without persistent pages. */
#define OLD_DRIVER
#include "lab_gpu.c"
