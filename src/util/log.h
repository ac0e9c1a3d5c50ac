/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines, to the function that the application has given, or to stderr. */
#ifndef WH_UTIL_LOG_H
#define WH_UTIL_LOG_H

#include <pthread.h>
#include <stdint.h>

#include <wherry/engine.h>

/* What others make this engine log: in 10 s, 100 lines for each of them. All 0 is good. */
#define WH_LOG_WHO 32 /* in 10 s; the others share what one has */
struct wh_log_limit {
	pthread_mutex_t lock;
	struct {
		uint64_t who;
		int64_t since;
		unsigned lines;
	} slots[WH_LOG_WHO];
};

struct wh_log {
	void (*write)(void *arg, const struct wh_log_record *record); /* NULL: no log */
	void *arg;
	uint32_t level; /* enum wh_log_level: lines of higher levels are left out */
	struct wh_log_limit *limit; /* of wh_log_about(); NULL: none */
};

/* Write one line without a newline, of at most 511 bytes. `level` is an enum wh_log_level; `area`,
 * a constant, is the part of Wherry that it comes from: the folder's name. Texts of peers may be in
 * it: control characters are replaced. Calls `write` on the caller's thread; any thread may call
 * this. */
void wh_log_line(const struct wh_log *log, uint32_t level, const char *area, const char *format,
		 ...) __attribute__((format(printf, 4, 5)));

/* The same for what somebody else causes, as often as he likes: `who` is his address by
 * wh_address_prefix(), or of a peer of this engine the object's. One line says that others are left
 * out. */
void wh_log_about(const struct wh_log *log, uint64_t who, uint32_t level, const char *area,
		  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* May one more line about him be written? WH_LOG_LAST: with the words that the others are left out.
 * Any thread. */
enum wh_log_turn { WH_LOG_NOT, WH_LOG_NEXT, WH_LOG_LAST };
enum wh_log_turn wh_log_limit_take(struct wh_log_limit *limit, uint64_t who);
#define WH_LOG_REST " (what else there is about this peer is left out for some seconds)"

/* A function for wh_log.write: "wherry: warning: tcp: ..." to stderr, by one write(). */
void wh_log_stderr(void *arg, const struct wh_log_record *record);

#endif
