/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines, to the function that the application has given, or to stderr. */
#ifndef WH_UTIL_LOG_H
#define WH_UTIL_LOG_H

#include <stdint.h>

#include <wherry/engine.h>

struct wh_log {
	void (*write)(void *arg, const struct wh_log_record *record); /* NULL: no log */
	void *arg;
	uint32_t level; /* enum wh_log_level: lines of higher levels are left out */
};

/* Write one line without a newline, of at most 511 bytes. `level` is an enum wh_log_level; `area`,
 * a constant, is the part of Wherry that it comes from: the folder's name. Texts of peers may be in
 * it: control characters are replaced. Calls `write` on the caller's thread; any thread may call
 * this. */
void wh_log_line(const struct wh_log *log, uint32_t level, const char *area, const char *format,
		 ...) __attribute__((format(printf, 4, 5)));

/* A function for wh_log.write: "wherry: warning: tcp: ..." to stderr, by one write(). */
void wh_log_stderr(void *arg, const struct wh_log_record *record);

#endif
