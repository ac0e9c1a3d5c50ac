/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: format, replace control characters, and call the application's function. */
#include "util/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "util/text.h"

void wh_log_line(const struct wh_log *log, const char *format, ...)
{
	char line[512];
	va_list list;

	if (!log->write)
		return;
	va_start(list, format);
	vsnprintf(line, sizeof(line), format, list);
	va_end(list);
	wh_text_clean(line);
	log->write(log->arg, line);
}
