/* SPDX-License-Identifier: Apache-2.0 */
/* util/log: what reaches the application's function. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "util/log.h"

static char logged[1024];
static unsigned lines;

static void log_keep(void *arg, const char *line)
{
	assert_ptr_equal(arg, &lines);
	snprintf(logged, sizeof(logged), "%s", line);
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
	const struct wh_log log = { log_keep, &lines };

	(void)state;
	wh_log_line(&log, "%s has left: %d", "north", 7);
	assert_string_equal(logged, "north has left: 7");
	assert_int_equal(lines, 1);
}

/* A peer's text must not begin a line of its own, or move a terminal's cursor. */
static void line__control_characters(void **state)
{
	const struct wh_log log = { log_keep, &lines };

	(void)state;
	wh_log_line(&log, "%s", "north\nwherry: \x1b[2Jall is well");
	assert_null(strchr(logged, '\n'));
	assert_null(strchr(logged, '\x1b'));
	assert_int_equal(lines, 1);
}

static void line__too_long(void **state)
{
	const struct wh_log log = { log_keep, &lines };
	char text[2000];

	(void)state;
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = 0;
	wh_log_line(&log, "%s", text);
	assert_int_equal(strlen(logged), 511);
}

static void line__no_function(void **state)
{
	const struct wh_log log = { NULL, &lines };

	(void)state;
	wh_log_line(&log, "nobody reads this");
	assert_int_equal(lines, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(line__as_formatted, log_begin),
		cmocka_unit_test_setup(line__control_characters, log_begin),
		cmocka_unit_test_setup(line__too_long, log_begin),
		cmocka_unit_test_setup(line__no_function, log_begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
