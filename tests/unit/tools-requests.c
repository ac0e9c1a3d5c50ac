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

/* A request by another name each time. */
static bool may_note(struct requests *requests, uint64_t source)
{
	static unsigned names;
	struct request request = { .source = source };

	snprintf(request.sender, sizeof(request.sender), "s%u", names++);
	return request_may_note(requests, &request);
}

/* Neither one address nor many fill the log, whatever names their senders have, and one of them
 * does not silence the others. */
static void may_note__once_for_each_address(void **state)
{
	struct requests requests = { .most = 1 };
	int lines = 0;

	(void)state;
	frozen_now = 1000 * WH_SECOND;
	assert_true(may_note(&requests, 1));
	for (int i = 0; i < 1000; i++)
		assert_false(may_note(&requests, 1));
	assert_true(may_note(&requests, 2));
	frozen_now += NOTE_EVERY - 1;
	assert_false(may_note(&requests, 1));
	frozen_now++;
	assert_true(may_note(&requests, 1));
	assert_false(may_note(&requests, 1));
	for (uint64_t i = 0; i < 1000; i++)
		lines += may_note(&requests, 100 + i);
	assert_int_equal(lines, REQUESTS_NOTED - 1);
	frozen_now = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(may_note__once_for_each_address),
	};

	return cmocka_run_group_tests_name("tools-requests", tests, NULL, NULL);
}
