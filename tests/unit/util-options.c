/* SPDX-License-Identifier: Apache-2.0 */
/* Public structs that start with their size: from and to older and newer headers. */
#include "unit.h"

#include <errno.h>

#include <wherry/error.h>

#include "util/options.h"

struct old_options {
	size_t size;
	uint64_t first;
};

struct options {
	size_t size;
	uint64_t first;
	const char *second;
};

struct new_options {
	size_t size;
	uint64_t first;
	const char *second;
	uint8_t third[9];
};

static int copy(struct options *into, const void *from)
{
	return wh_options_copy(into, sizeof(*into), from, sizeof(size_t), "wh_thing_open");
}

static void copy__null_is_the_defaults(void **state)
{
	struct options into;

	(void)state;
	memset(&into, 0xff, sizeof(into));
	assert_int_equal(copy(&into, NULL), 0);
	assert_int_equal(into.size, sizeof(into));
	assert_true(into.first == 0);
	assert_null(into.second);
}

static void copy__same_size(void **state)
{
	const struct options from = { .size = sizeof(from), .first = 7, .second = "x" };
	struct options into;

	(void)state;
	assert_int_equal(copy(&into, &from), 0);
	assert_int_equal(into.size, sizeof(into));
	assert_true(into.first == 7);
	assert_ptr_equal(into.second, from.second);
}

static void copy__from_an_older_header(void **state)
{
	const struct old_options from = { .size = sizeof(from), .first = 7 };
	uint8_t *exact = exact_copy(&from, sizeof(from));
	struct options into;

	(void)state;
	memset(&into, 0xff, sizeof(into));
	assert_int_equal(copy(&into, exact), 0);
	assert_int_equal(into.size, sizeof(into));
	assert_true(into.first == 7);
	assert_null(into.second);
	free(exact);
}

static void copy__from_a_newer_header(void **state)
{
	struct new_options from = { .size = sizeof(from), .first = 7, .second = "x" };
	struct options into = { .first = 99 };

	(void)state;
	assert_int_equal(copy(&into, &from), 0);
	assert_int_equal(into.size, sizeof(into));
	assert_true(into.first == 7);
	into.first = 99;
	for (size_t i = 0; i < sizeof(from.third); i++) {
		from.third[i] = 1;
		assert_int_equal(copy(&into, &from), -E2BIG);
		assert_non_null(strstr(wh_error_text(), "wh_thing_open"));
		assert_true(into.first == 99);
		from.third[i] = 0;
	}
}

static void copy__sizes_that_make_no_sense(void **state)
{
	struct options from = { .first = 7 }, into = { .first = 99 };

	(void)state;
	for (from.size = 0; from.size < sizeof(size_t); from.size++)
		assert_int_equal(copy(&into, &from), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "wh_thing_open"));
	from.size = 15;
	assert_int_equal(wh_options_copy(&into, sizeof(into), &from, 16, "x"), -EINVAL);
	/* Sizes that were never initialised: nothing is read. */
	from.size = 4097;
	assert_int_equal(copy(&into, &from), -E2BIG);
	from.size = SIZE_MAX;
	assert_int_equal(copy(&into, &from), -E2BIG);
	assert_true(into.first == 99);
	from.size = sizeof(size_t);
	assert_int_equal(copy(&into, &from), 0);
	assert_true(into.first == 0);
}

static int give_back(void *into)
{
	const struct options from = { .size = 1, .first = 7, .second = "x" };

	return wh_options_return(into, &from, sizeof(from), "wh_thing_query");
}

static void return__same_size(void **state)
{
	struct options into = { .size = sizeof(into) };

	(void)state;
	assert_int_equal(give_back(&into), 0);
	assert_int_equal(into.size, sizeof(into));
	assert_true(into.first == 7);
	assert_string_equal(into.second, "x");
}

static void return__to_an_older_header(void **state)
{
	const struct old_options old = { .size = sizeof(old) };
	uint8_t *exact = exact_copy(&old, sizeof(old));
	struct old_options into;

	(void)state;
	assert_int_equal(give_back(exact), 0);
	memcpy(&into, exact, sizeof(into));
	assert_int_equal(into.size, sizeof(into));
	assert_true(into.first == 7);
	free(exact);
}

static void return__to_a_newer_header(void **state)
{
	struct new_options into = { .size = sizeof(into) };

	(void)state;
	assert_int_equal(give_back(&into), 0);
	assert_int_equal(into.size, sizeof(into));
	assert_true(into.first == 7);
	into.first = 99;
	into.third[8] = 1;
	assert_int_equal(give_back(&into), -E2BIG);
	assert_true(into.first == 99);
}

static void return__sizes_that_make_no_sense(void **state)
{
	struct options into = { .first = 99 };

	(void)state;
	for (into.size = 0; into.size < sizeof(size_t); into.size++)
		assert_int_equal(give_back(&into), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "wh_thing_query"));
	into.size = SIZE_MAX;
	assert_int_equal(give_back(&into), -E2BIG);
	into.size = sizeof(size_t);
	assert_int_equal(give_back(&into), 0);
	assert_true(into.first == 99);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copy__null_is_the_defaults),
		cmocka_unit_test(copy__same_size),
		cmocka_unit_test(copy__from_an_older_header),
		cmocka_unit_test(copy__from_a_newer_header),
		cmocka_unit_test(copy__sizes_that_make_no_sense),
		cmocka_unit_test(return__same_size),
		cmocka_unit_test(return__to_an_older_header),
		cmocka_unit_test(return__to_a_newer_header),
		cmocka_unit_test(return__sizes_that_make_no_sense),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
