/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts: per thread, one clean line, and restored after a call that recovered. */
#include "unit.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <wherry/error.h>

#include "util/error.h"

static void *fail_elsewhere(void *argument)
{
	(void)argument;
	assert_string_equal(wh_error_text(), "");
	wh_fail(EIO, "elsewhere");
	assert_string_equal(wh_error_text(), "elsewhere");
	return NULL;
}

static void text__is_of_its_thread(void **state)
{
	pthread_t thread;

	(void)state;
	assert_string_equal(wh_error_text(), "");
	assert_int_equal(wh_fail(ENOENT, "no region \"%s\" at %d", "weights", 7), -ENOENT);
	assert_string_equal(wh_error_text(), "no region \"weights\" at 7");
	assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_string_equal(wh_error_text(), "no region \"weights\" at 7");
}

static void fail__is_cut_and_one_line(void **state)
{
	char longest[2 * WH_TEXT_MAX];

	(void)state;
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	wh_fail(EIO, "%s", longest);
	assert_int_equal(strlen(wh_error_text()), WH_TEXT_MAX - 1);
	wh_fail(EIO, "%s", "a\nb\33[2Jc\177\tz\303\251");
	assert_string_equal(wh_error_text(), "a?b?[2Jc??z\303\251");
}

static void fail__may_quote_the_last_text(void **state)
{
	(void)state;
	wh_fail(EIO, "the disk is full");
	wh_fail(EPROTO, "peer a: %s: %s", wh_error_text(), wh_error_text());
	assert_string_equal(wh_error_text(), "peer a: the disk is full: the disk is full");
}

/* A call that succeeds restores the text from before it; a call that fails leaves its own. */
static void fail__within_a_call(void **state)
{
	(void)state;
	wh_fail(EIO, "before");
	wh_fail_begin();
	wh_fail(ENOENT, "no library");
	wh_fail_begin();
	wh_fail(EPERM, "%s, and no device", wh_error_text());
	assert_int_equal(wh_fail_end(-EPERM), -EPERM);
	assert_string_equal(wh_error_text(), "no library, and no device");
	assert_int_equal(wh_fail_end(3), 3);
	assert_string_equal(wh_error_text(), "before");
	wh_fail_begin();
	wh_fail(ENOMEM, "no memory");
	wh_fail_begin();
	assert_int_equal(wh_fail_end(0), 0);
	assert_int_equal(wh_fail_end(-ENOMEM), -ENOMEM);
	assert_string_equal(wh_error_text(), "no memory");
	wh_fail_begin();
	assert_int_equal(wh_fail_end(0), 0);
	assert_string_equal(wh_error_text(), "no memory");
}

static void fail__keeps_errno(void **state)
{
	(void)state;
	errno = EXDEV;
	wh_fail(EIO, "%m");
	assert_int_equal(errno, EXDEV);
	assert_string_equal(wh_error_text(), strerror(EXDEV));
}

static void version__is_the_header_s(void **state)
{
	char text[32];

	(void)state;
	snprintf(text, sizeof(text), "%d.%d.%d", WH_VERSION_MAJOR, WH_VERSION_MINOR,
		 WH_VERSION_PATCH);
	assert_string_equal(wh_version(), text);
}

static void name__as_the_c_library_s(void **state)
{
	unsigned known = 0;

	(void)state;
	assert_string_equal(wh_status_name(0), "OK");
	assert_string_equal(wh_status_name(1), "UNKNOWN");
	assert_string_equal(wh_status_name(INT_MIN), "UNKNOWN");
	for (int number = 1; number < 5000; number++) {
		const char *name = wh_status_name(-number);

		if (!strcmp(name, "UNKNOWN"))
			continue;
		assert_string_equal(name, strerrorname_np(number));
		known++;
	}
	assert_true(known > 70);
}

/* Every errno that a public header names has a name here. */
static void name__of_every_documented_error(void **state)
{
	static const char *const headers[] = { "engine",  "error",    "memory",
					       "metrics", "transfer", "window" };
	unsigned found = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++) {
		char path[4096], line[512];
		FILE *file;

		snprintf(path, sizeof(path), "%s/include/wherry/%s.h", getenv("TEST_SOURCE"),
			 headers[i]);
		file = fopen(path, "r");
		assert_non_null(file);
		while (fgets(line, sizeof(line), file)) {
			for (char *at = line; (at = strstr(at, "-E")); at++) {
				size_t length =
					strspn(at + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
				bool known = false;

				for (int number = 1; number < 200 && !known; number++) {
					const char *name = wh_status_name(-number);

					known = strlen(name) == length &&
						!memcmp(name, at + 1, length);
				}
				if (!known)
					print_error("%s.h: %s", headers[i], at);
				assert_true(known);
				found++;
			}
		}
		fclose(file);
	}
	assert_true(found > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text__is_of_its_thread),
		cmocka_unit_test(fail__is_cut_and_one_line),
		cmocka_unit_test(fail__may_quote_the_last_text),
		cmocka_unit_test(fail__within_a_call),
		cmocka_unit_test(fail__keeps_errno),
		cmocka_unit_test(name__as_the_c_library_s),
		cmocka_unit_test(name__of_every_documented_error),
		cmocka_unit_test(version__is_the_header_s),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
