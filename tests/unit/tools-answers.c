/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of wherry serve --dir: whose are dropped when there are too many. */
#include "unit.h"

#include <errno.h>
#include <stdbool.h>

#include <wherry/wherry.h>

/* The engine's regions, which a peer may hold. */
static bool held;

static int fake_register(struct wh_engine *engine, struct wh_region **out)
{
	static char region;

	(void)engine;
	*out = (struct wh_region *)&region;
	return 0;
}

static int fake_unregister(const struct wh_region *region, int64_t timeout)
{
	(void)timeout;
	return region && held ? -EBUSY : 0;
}

#define wh_region_register(engine, data, size, options, out) fake_register(engine, out)
#define wh_region_unregister_for fake_unregister

#include "../../tools/dir/message.c"
#undef HEAD
#undef ITEM
#undef MAGIC
#undef VERSION
#include "../../tools/serve/answers.c"

/* An answer of so many bytes, whose token is a number. */
static int publish(struct answers *answers, uint64_t source, uint64_t number, size_t size)
{
	struct dir_writer written = { .data = malloc(1), .size = size };
	uint8_t token[DIR_TOKEN] = { 0 };
	int error;

	memcpy(token, &number, sizeof(number));
	error = answers_publish(answers, NULL, source, token, &written);
	free(written.data);
	return error;
}

static bool is_there(const struct answers *answers, uint64_t number)
{
	const struct answer *answer = answers->waiting.first;

	while (answer && memcmp(answer->token, &number, sizeof(number)) != 0)
		answer = answer->next;
	return answer;
}

static void end(struct answers *answers)
{
	held = false;
	answers_end(answers);
	answers_retry(answers, true, 0, 0);
	assert_int_equal(answers->waiting.count + answers->leaving.count, 0);
	assert_int_equal(answers->waiting.bytes + answers->leaving.bytes, 0);
}

/* Who asks for more than its half pushes out its own answers, the oldest first. */
static void publish__half_for_one_address(void **state)
{
	struct answers answers = { 0 };

	(void)state;
	assert_int_equal(publish(&answers, 2, 1, 10), 0);
	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(publish(&answers, 1, 1000 + i, 10), 0);
	assert_true(is_there(&answers, 1));
	assert_int_equal(answers.waiting.count, 1 + ANSWERS_MAX / 2);
	assert_true(is_there(&answers, 1999));
	assert_true(is_there(&answers, 2000 - ANSWERS_MAX / 2));
	assert_false(is_there(&answers, 1999 - ANSWERS_MAX / 2));
	end(&answers);
}

static void publish__half_of_the_bytes(void **state)
{
	struct answers answers = { 0 };

	(void)state;
	assert_int_equal(publish(&answers, 2, 1, ANSWERS_BYTES / 4), 0);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(publish(&answers, 1, 1000 + i, ANSWERS_BYTES / 5), 0);
	assert_true(is_there(&answers, 1));
	assert_int_equal(answers.waiting.bytes, ANSWERS_BYTES / 4 + 2 * (ANSWERS_BYTES / 5));
	/* Many addresses together push out the oldest of all. */
	for (uint64_t i = 10; i < 14; i++)
		assert_int_equal(publish(&answers, i, i, ANSWERS_BYTES / 4), 0);
	assert_false(is_there(&answers, 1));
	assert_true(answers.waiting.bytes <= ANSWERS_BYTES);
	end(&answers);
}

/* Who lets go of nothing is refused when its half is full of that, and nobody else. */
static void publish__never_let_go(void **state)
{
	struct answers answers = { 0 };

	(void)state;
	held = true;
	for (uint64_t i = 0; i < ANSWERS_MAX; i++)
		assert_int_equal(publish(&answers, 1, 1000 + i, 10), 0);
	assert_int_equal(answers.leaving.count, ANSWERS_MAX / 2);
	for (uint64_t i = 0; i < 10; i++)
		assert_int_equal(publish(&answers, 1, 2000 + i, 10), -ENOBUFS);
	for (uint64_t i = 0; i < 2 * ANSWERS_MAX / 2; i++)
		assert_int_equal(publish(&answers, 2 + i % 2, i, 10), 0);
	assert_int_equal(answers.waiting.count, ANSWERS_MAX);
	end(&answers);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(publish__half_for_one_address),
	cmocka_unit_test(publish__half_of_the_bytes),
	cmocka_unit_test(publish__never_let_go),
};

int main(void)
{
	return cmocka_run_group_tests_name("tools-answers", tests, NULL, NULL);
}
