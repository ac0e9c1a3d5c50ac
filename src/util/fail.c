/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the last error, per thread. Separate from error.c because the command links its own
 * copy for the internal functions that it uses, and takes wh_error_text() from the library. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "util/error.h"
#include "util/text.h"

static _Thread_local char text[WH_TEXT_MAX];
static _Thread_local char saved_text[WH_TEXT_MAX]; /* `text` when the outermost pair began */
static _Thread_local unsigned depth; /* of wh_fail_begin() */
static _Thread_local bool changed; /* since the outermost pair began */

int wh_fail(int error, const char *format, ...)
{
	int saved = errno;
	char line[WH_TEXT_MAX];
	va_list arguments;

	/* Into `line` first: `text` may be one of the arguments. */
	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	/* It may contain names and texts of peers, and must stay one line on a terminal. */
	wh_text_clean(line);
	if (depth && !changed) {
		memcpy(saved_text, text, sizeof(saved_text));
		changed = true;
	}
	memcpy(text, line, sizeof(text));
	errno = saved;
	return -error;
}

void wh_fail_begin(void)
{
	if (!depth++)
		changed = false;
}

int wh_fail_end(int result)
{
	if (!--depth && changed && result >= 0)
		memcpy(text, saved_text, sizeof(text));
	return result;
}

const char *wh_fail_text(void)
{
	return text;
}
