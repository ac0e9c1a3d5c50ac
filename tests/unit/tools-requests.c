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

static struct requests queue_of(size_t most)
{
	return (struct requests){ .most = most, .lock = PTHREAD_MUTEX_INITIALIZER };
}

static void take(struct requests *requests, uint64_t source)
{
	const struct wh_notification note = { .source = source, .sender = "s" };

	requests_take(requests, &note);
}

/* One address leaves others half of the room, by however many engines it asks. */
static void take__half_for_one_address(void **state)
{
	struct requests requests = queue_of(8);

	(void)state;
	requests.last = &requests.first;
	for (int i = 0; i < 100; i++)
		take(&requests, 1);
	assert_int_equal(requests.count, 4);
	take(&requests, 2);
	take(&requests, 3);
	assert_int_equal(requests.count, 6);
	for (uint64_t i = 0; i < 100; i++)
		take(&requests, 100 + i);
	assert_int_equal(requests.count, 8);
	requests_free(requests.first);
}

static void want_source(struct requests *requests, uint64_t source, size_t size)
{
	struct request *request;

	assert_true(request_next(requests, 0, &request));
	assert_non_null(request);
	assert_int_equal(request->source, source);
	assert_int_equal(request->size, size);
	free(request);
}

static void take_sized(struct requests *requests, uint64_t source, size_t size)
{
	char bytes[16] = { 0 };
	const struct wh_notification note = {
		.source = source, .sender = "s", .buffer = bytes, .length = size
	};

	requests_take(requests, &note);
}

/* Addresses take turns, each with its requests in their order. */
static void next__addresses_in_turn(void **state)
{
	struct requests requests = queue_of(16);
	struct request *request;

	(void)state;
	requests.last = &requests.first;
	pthread_cond_init(&requests.changed, NULL);
	for (size_t i = 1; i <= 4; i++)
		take_sized(&requests, 1, i);
	take_sized(&requests, 2, 5);
	take_sized(&requests, 2, 6);
	take_sized(&requests, 3, 7);
	want_source(&requests, 1, 1);
	want_source(&requests, 2, 5);
	take_sized(&requests, 4, 8);
	want_source(&requests, 3, 7);
	want_source(&requests, 1, 2);
	take_sized(&requests, 3, 9);
	want_source(&requests, 2, 6);
	want_source(&requests, 4, 8);
	want_source(&requests, 1, 3);
	want_source(&requests, 3, 9);
	want_source(&requests, 1, 4);
	assert_true(request_next(&requests, 0, &request));
	assert_null(request);
	assert_int_equal(requests.count, 0);
	take_sized(&requests, 1, 1);
	want_source(&requests, 1, 1);
	pthread_cond_destroy(&requests.changed);
}

static bool never_its_turn(void *owner, const struct request *request)
{
	size_t *refused = owner;

	*refused += request->last && request->source == 2;
	return false;
}

/* Nor do requests that wait for something fill the room of others'. */
static void later__half_for_one_address(void **state)
{
	size_t refused = 0;
	struct requests requests = queue_of(8);

	(void)state;
	frozen_now = 1000 * WH_SECOND;
	requests.handle = never_its_turn;
	requests.owner = &refused;
	for (int i = 0; i < 2 * LATER_MOST; i++) {
		struct request *request = calloc(1, sizeof(*request));

		request->source = 1 + i % 8 / 7;
		request->until = frozen_now + LATER_FOR;
		request_first(&requests, request);
	}
	assert_int_equal(refused, 0);
	assert_int_equal(requests.later_count, LATER_MOST / 2 + 2 * LATER_MOST / 8);
	requests_free(requests.later);
	frozen_now = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(may_note__once_for_each_address),
		cmocka_unit_test(take__half_for_one_address),
		cmocka_unit_test(later__half_for_one_address),
		cmocka_unit_test(next__addresses_in_turn),
	};

	return cmocka_run_group_tests_name("tools-requests", tests, NULL, NULL);
}
