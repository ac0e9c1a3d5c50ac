/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of pyvenv.cfg, for find.c and its fuzzer. */
#ifndef TOOLS_NIXL_FIND_H
#define TOOLS_NIXL_FIND_H

#include <limits.h>
#include <stdbool.h>

struct nixl_venv {
	char home[PATH_MAX]; /* the folder of the interpreter that it was made from */
	bool system; /* its packages are visible, too */
};

/* What a file pyvenv.cfg says, as Python's site reads it. Any text. */
void nixl_venv_parse(const char *text, struct nixl_venv *out);

#endif
