/* SPDX-License-Identifier: Apache-2.0 */
/* What estimates learn from the durations of batches: the arithmetic of one route. */
#include "core/traffic.h"
#include "unit.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static double expect(const struct wh_traffic_route *route, uint64_t bytes, uint64_t transfers)
{
	struct wh_expected out = wh_traffic_route_expect(route, bytes, transfers);

	assert_true(out.at);
	return out.ns;
}

static bool known(const struct wh_traffic_route *route, uint64_t bytes, uint64_t transfers)
{
	return wh_traffic_route_expect(route, bytes, transfers).at;
}

static void near(double is, double should)
{
	assert_true(is > should * 0.999 && is < should * 1.001);
}

/* Batches show what batches like them take, and nothing of others. */
static void traffic__what_is_known(void **state)
{
	struct wh_traffic_route route = { 0 };

	(void)state;
	assert_false(known(&route, 8, 1));
	wh_traffic_route_learn(&route, 8, 1, 5000, 1);
	near(expect(&route, 8, 1), 5000);
	near(expect(&route, 100, 1), 5000);
	assert_false(known(&route, MIB, 1));
	assert_false(known(&route, 64 * KIB, 16)); /* other lengths */
	wh_traffic_route_learn(&route, MIB, 1, 105000, 7);
	assert_false(known(&route, MIB, 256));
	assert_false(known(&route, 64 * KIB, 1));
	assert_int_equal(wh_traffic_route_expect(&route, MIB, 1).at, 7);
	assert_int_equal(wh_traffic_route_expect(&route, 8, 1).at, 1);
}

/* Short ones show the start-up cost, long ones the rate. */
static void traffic__between_and_beyond(void **state)
{
	struct wh_traffic_route route = { 0 };
	double rate = 100000.0 / (double)(MIB - 8);

	(void)state;
	wh_traffic_route_learn(&route, MIB, 1, 105000, 1);
	near(expect(&route, 16 * MIB, 1), 16 * 105000);
	wh_traffic_route_learn(&route, 8, 1, 5000, 1);
	near(expect(&route, MIB, 1), 105000);
	near(expect(&route, 16 * MIB, 1), 5000 + rate * (double)(16 * MIB - 8));
	near(expect(&route, 100 * KIB, 1), 5000 + rate * (double)(100 * KIB - 8));
}

/* A small batch takes no less than its part of a larger small one, even where the line says so. */
static void traffic__small_of_many(void **state)
{
	struct wh_traffic_route route = { 0 };

	(void)state;
	wh_traffic_route_learn(&route, 64 * KIB, 16, 16000, 1);
	wh_traffic_route_learn(&route, 128 * KIB, 32, 64000, 1);
	near(expect(&route, 64 * KIB, 16), 16000);
	near(expect(&route, 4 * KIB, 1), 1000);
	near(expect(&route, 256 * KIB, 64), 160000);
}

/* A faster batch counts for more: what disturbs one only makes it slower. */
static void traffic__weights(void **state)
{
	struct wh_traffic_route route = { 0 };

	(void)state;
	wh_traffic_route_learn(&route, MIB, 1, 800000, 1);
	wh_traffic_route_learn(&route, MIB, 1, 100000, 2);
	near(expect(&route, MIB, 1), 450000);
	wh_traffic_route_learn(&route, MIB, 1, 1250000, 3);
	near(expect(&route, MIB, 1), 550000);
	for (int i = 0; i < 20; i++)
		wh_traffic_route_learn(&route, MIB, 1, 100000, 4 + i);
	near(expect(&route, MIB, 1), 100000);
	/* A path that has become slower is found as well. */
	for (int i = 0; i < 100; i++)
		wh_traffic_route_learn(&route, MIB, 1, 300000, 30 + i);
	near(expect(&route, MIB, 1), 300000);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(traffic__what_is_known),
		cmocka_unit_test(traffic__between_and_beyond),
		cmocka_unit_test(traffic__small_of_many),
		cmocka_unit_test(traffic__weights),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
