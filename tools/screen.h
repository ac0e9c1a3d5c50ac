/* SPDX-License-Identifier: Apache-2.0 */
/* What standard output can show: colours, letters beyond ASCII. */
#ifndef TOOLS_SCREEN_H
#define TOOLS_SCREEN_H

#include <stdbool.h>

#include "command.h"

/* The rows of commands that draw. */
#define SCREEN_OPTIONS                                                                             \
	{ .name = "color",                                                                         \
	  .argument = "WHEN",                                                                      \
	  .complete = "auto always never",                                                         \
	  .help = "auto (on a terminal, unless NO_COLOR is set), always or never" },               \
	{                                                                                          \
		.name = "ascii", .help = "no letters beyond ASCII"                                 \
	}

struct screen {
	bool color, ascii;
	int columns; /* of the terminal; 0: there is none, and no line is too long */
};

enum tint { TINT_GOOD, TINT_FAIR, TINT_POOR, TINT_BAD, TINT_FAINT, TINT_STRONG };

/* As the options and the environment say. 0, or EXIT_USAGE after a line on stderr. */
int screen_open(const struct arguments *arguments, struct screen *out);

/* The escape sequence that starts a tint, and the one that ends it; "" without colours. */
const char *screen_tint(const struct screen *screen, enum tint tint);
const char *screen_plain(const struct screen *screen);

#endif
