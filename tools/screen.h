/* SPDX-License-Identifier: Apache-2.0 */
/* What standard output can show: colours, characters beyond ASCII, columns. */
#ifndef TOOLS_SCREEN_H
#define TOOLS_SCREEN_H

#include <stdbool.h>

#include "command.h"

/* The option rows of commands that draw. */
#define SCREEN_OPTIONS                                                                             \
	{ .name = "color",                                                                         \
	  .argument = "WHEN",                                                                      \
	  .complete = "auto always never",                                                         \
	  .help = "auto (on a terminal, unless NO_COLOR is set), always or never" },               \
	{                                                                                          \
		.name = "ascii", .help = "no characters beyond ASCII"                              \
	}

struct screen {
	bool color, ascii;
	int columns; /* of the terminal; 0: not a terminal, lines are not limited */
};

enum tint { TINT_GOOD, TINT_FAIR, TINT_POOR, TINT_BAD, TINT_FAINT, TINT_STRONG };

/* Read the options and the environment. 0, or EXIT_USAGE after a line on stderr. */
int screen_open(const struct arguments *arguments, struct screen *out);

/* The escape sequences that start and end a tint; "" without colours. */
const char *screen_tint(const struct screen *screen, enum tint tint);
const char *screen_plain(const struct screen *screen);

#endif
