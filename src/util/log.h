/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines, to the function that the application has given. */
#ifndef WH_UTIL_LOG_H
#define WH_UTIL_LOG_H

struct wh_log {
	void (*write)(void *arg, const char *line); /* NULL: nothing is logged */
	void *arg;
};

/* Write one line without a newline, at most 511 bytes. Texts of peers may be in it: control
 * characters are replaced. Calls `write` on the caller's thread; any thread may call this. */
void wh_log_line(const struct wh_log *log, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
