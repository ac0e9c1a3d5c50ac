/* SPDX-License-Identifier: Apache-2.0 */
/* transport-page-rates.c: whether threads read a file the first time, or its pages are locked */
#include "unit.h"

#include <string.h>

#include "transport/cuda/page-rates.h"

#define GIB ((uint64_t)1 << 30)
#define MS ((int64_t)1000000)

static struct wh_page_rates rates;
static char why[192];

static int setup(void **state)
{
	(void)state;
	wh_page_rates_init(&rates);
	memset(why, 0, sizeof(why));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	wh_page_rates_free(&rates);
	return 0;
}

static bool prefer(dev_t device, unsigned threads)
{
	return wh_page_rates_prefer_threads(&rates, device, threads, why, sizeof(why));
}

/* Nothing is known: many threads are faster, few are not. */
static void rates__guess(void **state)
{
	(void)state;
	assert_false(prefer(1, 1));
	assert_false(prefer(1, 5));
	assert_string_equal(why, "");
	assert_true(prefer(1, 8));
	assert_non_null(strstr(why, "by threads at 44.8 GB/s (typical)"));
	assert_non_null(strstr(why, "page-locking at 38 (typical)"));
}

/* Each file system has its own. */
static void rates__measured(void **state)
{
	(void)state;
	wh_page_rates_learn(&rates, 1, WH_PAGE_BY_LOCKING, GIB, 100 * MS);
	assert_true(prefer(1, 2)); /* 11.2, as is typical, and 10.7 */
	assert_non_null(strstr(why, "10.7 (measured)"));
	assert_false(prefer(2, 2));
	wh_page_rates_learn(&rates, 1, WH_PAGE_BY_THREADS, GIB, 140 * MS); /* 7.7 */
	assert_false(prefer(1, 2));
	assert_false(prefer(1, 8)); /* what was measured counts */
	assert_true(prefer(2, 8));
}

/* Few bytes say nothing, nor does a clock that stands still. */
static void rates__too_few(void **state)
{
	(void)state;
	wh_page_rates_learn(&rates, 1, WH_PAGE_BY_LOCKING, 1 << 20, 100 * MS);
	wh_page_rates_learn(&rates, 1, WH_PAGE_BY_LOCKING, GIB, 0);
	wh_page_rates_learn(&rates, 1, WH_PAGE_BY_THREADS, 0, 5);
	assert_false(prefer(1, 2));
	assert_true(prefer(1, 8));
	assert_non_null(strstr(why, "38 (typical)"));
}

/* One slow reading, beside other work, does not count; many do. */
static void rates__disturbed(void **state)
{
	(void)state;
	wh_page_rates_learn(&rates, 1, WH_PAGE_BY_THREADS, GIB, 20 * MS); /* 54 GB/s */
	wh_page_rates_learn(&rates, 1, WH_PAGE_BY_THREADS, GIB, 1000 * MS);
	assert_true(prefer(1, 8));
	for (int i = 0; i < 50; i++)
		wh_page_rates_learn(&rates, 1, WH_PAGE_BY_THREADS, GIB, 1000 * MS);
	assert_false(prefer(1, 8));
}

/* More file systems than are remembered: the oldest is forgotten. */
static void rates__many_systems(void **state)
{
	(void)state;
	for (dev_t device = 0; device <= WH_PAGE_RATES; device++)
		wh_page_rates_learn(&rates, device, WH_PAGE_BY_LOCKING, GIB, 1000 * MS);
	assert_false(prefer(0, 2));
	for (dev_t device = 1; device <= WH_PAGE_RATES; device++)
		assert_true(prefer(device, 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(rates__guess, setup, teardown),
		cmocka_unit_test_setup_teardown(rates__measured, setup, teardown),
		cmocka_unit_test_setup_teardown(rates__too_few, setup, teardown),
		cmocka_unit_test_setup_teardown(rates__disturbed, setup, teardown),
		cmocka_unit_test_setup_teardown(rates__many_systems, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
