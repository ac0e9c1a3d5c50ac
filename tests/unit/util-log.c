/* SPDX-License-Identifier: Apache-2.0 */
/* util/log: what reaches the application's function. */
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "frozen-clock.h"
#include "util/clock.h"
#include "util/log.h"

static char logged[1024];
static unsigned lines;

static void log_keep(void *arg, const struct wh_log_record *record)
{
	assert_ptr_equal(arg, &lines);
	assert_int_equal(record->size, sizeof(*record));
	assert_string_equal(record->area, "net");
	snprintf(logged, sizeof(logged), "%s", record->text);
	lines++;
}

static int log_begin(void **state)
{
	(void)state;
	*logged = 0;
	lines = 0;
	return 0;
}

static void line__as_formatted(void **state)
{
	const struct wh_log log = { log_keep, &lines, WH_LOG_INFO, NULL };

	(void)state;
	wh_log_line(&log, WH_LOG_INFO, "net", "%s has left: %d", "north", 7);
	assert_string_equal(logged, "north has left: 7");
	assert_int_equal(lines, 1);
}

/* A peer's text must not begin a line of its own, or move a terminal's cursor. */
static void line__control_characters(void **state)
{
	const struct wh_log log = { log_keep, &lines, WH_LOG_INFO, NULL };

	(void)state;
	wh_log_line(&log, WH_LOG_INFO, "net", "%s", "north\nwherry: \x1b[2Jall is well");
	assert_null(strchr(logged, '\n'));
	assert_null(strchr(logged, '\x1b'));
	assert_int_equal(lines, 1);
}

static void line__too_long(void **state)
{
	const struct wh_log log = { log_keep, &lines, WH_LOG_INFO, NULL };
	char text[2000];

	(void)state;
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = 0;
	wh_log_line(&log, WH_LOG_INFO, "net", "%s", text);
	assert_int_equal(strlen(logged), 511);
}

static void line__no_function(void **state)
{
	const struct wh_log log = { NULL, &lines, WH_LOG_INFO, NULL };

	(void)state;
	wh_log_line(&log, WH_LOG_INFO, "net", "nobody reads this");
	assert_int_equal(lines, 0);
}

static void line__level(void **state)
{
	const struct wh_log log = { log_keep, &lines, WH_LOG_WARN, NULL };

	(void)state;
	wh_log_line(&log, WH_LOG_INFO, "net", "an event");
	assert_int_equal(lines, 0);
	wh_log_line(&log, WH_LOG_WARN, "net", "a slow path");
	assert_int_equal(lines, 1);
	assert_string_equal(logged, "a slow path");
}

/* What one call writes to stderr. */
static void line__stderr(void **state)
{
	const struct wh_log log = { wh_log_stderr, NULL, WH_LOG_DEBUG, NULL };
	static const struct {
		uint32_t level;
		const char *line;
	} rows[] = {
		{ WH_LOG_WARN, "wherry: warning: tcp: slow\n" },
		{ WH_LOG_INFO, "wherry: tcp: slow\n" },
		{ WH_LOG_DEBUG, "wherry: debug: tcp: slow\n" },
	};
	int ends[2], saved = dup(STDERR_FILENO);

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		ssize_t length;

		assert_int_equal(pipe(ends), 0);
		dup2(ends[1], STDERR_FILENO);
		wh_log_line(&log, rows[i].level, "tcp", "%s", "slow");
		dup2(saved, STDERR_FILENO);
		close(ends[1]);
		length = read(ends[0], logged, sizeof(logged) - 1);
		close(ends[0]);
		assert_true(length > 0);
		logged[length] = 0;
		assert_string_equal(logged, rows[i].line);
	}
	close(saved);
}

/* Neither one address nor many fill the log, one does not silence the others, and what is left out
 * is said. */
static void about__limit(void **state)
{
	struct wh_log_limit limit = { .lock = PTHREAD_MUTEX_INITIALIZER };
	const struct wh_log log = { log_keep, &lines, WH_LOG_INFO, &limit };

	(void)state;
	frozen_now = 1000 * WH_SECOND;
	for (int i = 0; i < 1000; i++)
		wh_log_about(&log, 1, WH_LOG_INFO, "net", "refused");
	assert_int_equal(lines, 100);
	assert_string_equal(logged, "refused" WH_LOG_REST);
	wh_log_about(&log, 2, WH_LOG_INFO, "net", "another one");
	assert_string_equal(logged, "another one");
	wh_log_about(&log, 3, WH_LOG_DEBUG, "net", "a detail");
	assert_int_equal(lines, 101);
	for (uint64_t i = 0; i < 100000; i++)
		wh_log_about(&log, 100 + i, WH_LOG_INFO, "net", "refused");
	assert_true(lines <= 100 * WH_LOG_WHO);
	lines = 0;
	frozen_now += 10 * WH_SECOND - 1;
	wh_log_about(&log, 1, WH_LOG_INFO, "net", "refused");
	assert_int_equal(lines, 0);
	frozen_now++;
	wh_log_about(&log, 1, WH_LOG_INFO, "net", "refused again");
	assert_string_equal(logged, "refused again");
	assert_int_equal(lines, 1);
	frozen_now = 0;
}

/* The words about what is left out have room. */
static void about__too_long(void **state)
{
	struct wh_log_limit limit = { .lock = PTHREAD_MUTEX_INITIALIZER };
	const struct wh_log log = { log_keep, &lines, WH_LOG_INFO, &limit };
	char text[2000];

	(void)state;
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = 0;
	for (int i = 0; i < 100; i++)
		wh_log_about(&log, 1, WH_LOG_INFO, "net", "%s", text);
	assert_int_equal(lines, 100);
	assert_int_equal(strlen(logged), 511);
	assert_non_null(strstr(logged, "x" WH_LOG_REST));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(line__as_formatted, log_begin),
		cmocka_unit_test_setup(line__control_characters, log_begin),
		cmocka_unit_test_setup(line__too_long, log_begin),
		cmocka_unit_test_setup(line__level, log_begin),
		cmocka_unit_test_setup(line__stderr, log_begin),
		cmocka_unit_test_setup(line__no_function, log_begin),
		cmocka_unit_test_setup(about__limit, log_begin),
		cmocka_unit_test_setup(about__too_long, log_begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
