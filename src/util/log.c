/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: format, replace control characters, and call the application's function. */
#include "util/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "util/text.h"

void wh_log_line(const struct wh_log *log, uint32_t level, const char *area, const char *format,
		 ...)
{
	char text[512];
	struct wh_log_record record = {
		.size = sizeof(record), .level = level, .area = area, .text = text
	};
	va_list list;

	if (!log->write || level > log->level)
		return;
	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	wh_text_clean(text);
	log->write(log->arg, &record);
}

void wh_log_stderr(void *arg, const struct wh_log_record *record)
{
	static const char *const levels[] = {
		[WH_LOG_WARN] = "warning: ", [WH_LOG_INFO] = "", [WH_LOG_DEBUG] = "debug: "
	};
	char line[600];
	int length = snprintf(line, sizeof(line), "wherry: %s%s: %s\n", levels[record->level],
			      record->area, record->text);
	ssize_t written;

	(void)arg;
	/* A log that cannot be written is not worth an error. */
	written = write(STDERR_FILENO, line, (size_t)length);
	(void)written;
}
