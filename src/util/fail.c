/* SPDX-License-Identifier: Apache-2.0 */
/* Apart from error.c, because the command has a copy of its own, for what it takes of the library's
 * insides: wh_error_text() is the library's. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "util/error.h"
#include "util/text.h"

static _Thread_local char text[WH_TEXT_MAX];
static _Thread_local char kept[WH_TEXT_MAX]; /* what it was when the outermost pair began */
static _Thread_local unsigned depth;
static _Thread_local bool changed; /* since then */

int wh_fail(int error, const char *format, ...)
{
	int saved = errno;
	char line[WH_TEXT_MAX];
	va_list arguments;

	/* Not straight into the text: it may be one of the arguments. */
	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	/* Names and texts of others can be in it, and it must stay one line on a terminal. */
	wh_text_clean(line);
	if (depth && !changed) {
		memcpy(kept, text, sizeof(kept));
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
		memcpy(text, kept, sizeof(text));
	return result;
}

const char *wh_fail_text(void)
{
	return text;
}
