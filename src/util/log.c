/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: format, replace control characters, and call the application's function. */
#include "util/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/text.h"

#define PERIOD (10 * WH_SECOND)
#define LINES 100

static void log_write(const struct wh_log *log, uint32_t level, const char *area, const char *rest,
		      const char *format, va_list list)
{
	char text[512];
	struct wh_log_record record = {
		.size = sizeof(record), .level = level, .area = area, .text = text
	};
	size_t used;

	vsnprintf(text, sizeof(text) - strlen(rest), format, list);
	used = strlen(text);
	snprintf(text + used, sizeof(text) - used, "%s", rest);
	wh_text_clean(text);
	log->write(log->arg, &record);
}

void wh_log_line(const struct wh_log *log, uint32_t level, const char *area, const char *format,
		 ...)
{
	va_list list;

	if (!log->write || level > log->level)
		return;
	va_start(list, format);
	log_write(log, level, area, "", format, list);
	va_end(list);
}

enum wh_log_turn wh_log_limit_take(struct wh_log_limit *limit, uint64_t who)
{
	unsigned slot = WH_LOG_WHO, lines;
	int64_t now = wh_now();

	pthread_mutex_lock(&limit->lock);
	for (unsigned i = 0; i < WH_LOG_WHO; i++) {
		if (limit->slots[i].lines && now - limit->slots[i].since >= PERIOD)
			limit->slots[i].lines = 0;
		if (limit->slots[i].lines && limit->slots[i].who == who) {
			slot = i;
			break;
		}
		if (!limit->slots[i].lines && slot == WH_LOG_WHO)
			slot = i;
	}
	if (slot == WH_LOG_WHO)
		slot = WH_LOG_WHO - 1;
	if (!limit->slots[slot].lines) {
		limit->slots[slot].who = who;
		limit->slots[slot].since = now;
	}
	lines = limit->slots[slot].lines;
	if (lines < LINES)
		limit->slots[slot].lines++;
	pthread_mutex_unlock(&limit->lock);
	return lines == LINES ? WH_LOG_NOT : lines == LINES - 1 ? WH_LOG_LAST : WH_LOG_NEXT;
}

void wh_log_about(const struct wh_log *log, uint64_t who, uint32_t level, const char *area,
		  const char *format, ...)
{
	enum wh_log_turn turn = WH_LOG_NEXT;
	va_list list;

	if (!log->write || level > log->level)
		return;
	if (log->limit)
		turn = wh_log_limit_take(log->limit, who);
	if (turn == WH_LOG_NOT)
		return;
	va_start(list, format);
	log_write(log, level, area, turn == WH_LOG_LAST ? WH_LOG_REST : "", format, list);
	va_end(list);
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
