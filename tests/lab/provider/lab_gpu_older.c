// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The same as a driver before 550, whose functions are not for GPL modules in particular, and which
 * symbol_get() does not find. */
#define OLD_DRIVER
#define EXPORT(symbol) EXPORT_SYMBOL(symbol)
#include "lab_gpu.c"
