/* SPDX-License-Identifier: Apache-2.0 */
/* What standard output can show: its columns, colours and character set. */
#include "screen.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The first of these variables that is set decides, as in every program. */
static bool is_utf8(void)
{
	static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
	const char *value = NULL;

	for (size_t i = 0; i < 3 && (!value || !*value); i++)
		value = getenv(names[i]);
	return value && (strcasestr(value, "UTF-8") || strcasestr(value, "UTF8"));
}

/* The terminal's width, or else the shell's. */
static int columns_of(void)
{
	const char *text = getenv("COLUMNS");
	long columns = text ? strtol(text, NULL, 10) : 0;
	struct winsize window;

	if (!isatty(STDOUT_FILENO))
		return 0;
	if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) && window.ws_col)
		return window.ws_col;
	return columns > 0 && columns <= UINT16_MAX ? (int)columns : 80;
}

int screen_open(const struct arguments *arguments, struct screen *out)
{
	const char *when = argument(arguments, "color"), *no_color = getenv("NO_COLOR"),
		   *term = getenv("TERM");
	int code = check_choice(arguments, "color");

	if (code)
		return code;
	if (when && strcmp(when, "auto") != 0)
		out->color = strcmp(when, "always") == 0;
	else
		out->color = isatty(STDOUT_FILENO) && (!no_color || !*no_color) && term &&
			     strcmp(term, "dumb") != 0;
	out->columns = columns_of();
	out->ascii = argument(arguments, "ascii") || !is_utf8();
	return 0;
}

const char *screen_tint(const struct screen *screen, enum tint tint)
{
	static const char *const codes[] = {
		[TINT_GOOD] = "\033[32m", [TINT_FAIR] = "\033[36m", [TINT_POOR] = "\033[33m",
		[TINT_BAD] = "\033[31m",  [TINT_FAINT] = "\033[2m", [TINT_STRONG] = "\033[1m",
	};

	return screen->color ? codes[tint] : "";
}

const char *screen_plain(const struct screen *screen)
{
	return screen->color ? "\033[0m" : "";
}
