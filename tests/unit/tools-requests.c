/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of wherry serve that answers requests. */
#include "../../tools/serve/requests.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "frozen-clock.h"

#undef fail /* cmocka's; this is the command's */
int fail(int error, const char *format, ...)
{
	(void)error, (void)format;
	return EXIT_FAIL;
}

static bool may_note(struct requests *requests, const char *sender)
{
	struct request request = { .size = 0 };

	snprintf(request.sender, sizeof(request.sender), "%s", sender);
	return request_may_note(requests, &request);
}

/* Neither one sender nor many fill the log, and one of them does not silence the others. */
static void may_note__once_for_each_sender(void **state)
{
	struct requests requests = { .most = 1 };
	char sender[16];
	int lines = 0;

	(void)state;
	frozen_now = 1000 * WH_SECOND;
	assert_true(may_note(&requests, "one"));
	assert_false(may_note(&requests, "one"));
	assert_true(may_note(&requests, "other"));
	frozen_now += NOTE_EVERY - 1;
	assert_false(may_note(&requests, "one"));
	frozen_now++;
	assert_true(may_note(&requests, "one"));
	assert_false(may_note(&requests, "one"));
	for (int i = 0; i < 1000; i++) {
		snprintf(sender, sizeof(sender), "s%d", i);
		lines += may_note(&requests, sender);
	}
	assert_int_equal(lines, REQUESTS_NOTED - 1);
	frozen_now = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(may_note__once_for_each_sender),
	};

	return cmocka_run_group_tests_name("tools-requests", tests, NULL, NULL);
}
