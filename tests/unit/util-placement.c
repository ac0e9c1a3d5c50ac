/* SPDX-License-Identifier: Apache-2.0 */
/* util-placement.c: to which CPU a busy loop moves, and when it looks */
#include "unit.h"
#include "util/clock.h"
#include "util/placement.h"

#include <dlfcn.h>
#include <string.h>

#define LOOK ((uint64_t)32 << 20) /* bytes between two looks */
#define LOOKS 8

static cpu_set_t asked[2]; /* of the calls of sched_setaffinity(), the last one last */

/* Between the library and the system. */
int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t *set)
{
	int (*real)(pid_t, size_t, const cpu_set_t *) =
		(int (*)(pid_t, size_t, const cpu_set_t *))dlsym(RTLD_NEXT, "sched_setaffinity");

	asked[0] = asked[1];
	asked[1] = *set;
	return real(thread, size, set);
}

static cpu_set_t cpus(int count)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	for (int cpu = 0; cpu < count; cpu++)
		CPU_SET(cpu, &set);
	return set;
}

/* Both loops of the side that opened the connections are on one CPU: one of them leaves it. */
static void choose__spread(void **state)
{
	struct wh_placed loops[2] = { { 1, -1 }, { 1, -1 } };
	cpu_set_t may = cpus(2);

	(void)state;
	assert_int_equal(wh_placement_choose(loops, 2, 0, &may), 0);
	loops[0].cpu = 0; /* it has moved */
	assert_int_equal(wh_placement_choose(loops, 2, 0, &may), -1);
	assert_int_equal(wh_placement_choose(loops, 2, 1, &may), -1);
}

/* Crossed: each follows the other end of its connection, though the CPUs are evenly used. */
static void choose__follow(void **state)
{
	struct wh_placed loops[2] = { { 0, 1 }, { 1, 0 } };
	cpu_set_t may = cpus(2);

	(void)state;
	assert_int_equal(wh_placement_choose(loops, 2, 0, &may), 1);
	assert_int_equal(wh_placement_choose(loops, 2, 1, &may), 0);
	loops[0].cpu = 1; /* both on CPU 1 for a moment: the second still goes */
	assert_int_equal(wh_placement_choose(loops, 2, 0, &may), -1);
	assert_int_equal(wh_placement_choose(loops, 2, 1, &may), 0);
}

/* Both other ends are on one CPU: to follow them would leave the other CPU idle. */
static void choose__follow_too_many(void **state)
{
	struct wh_placed loops[2] = { { 0, 1 }, { 0, 1 } };
	cpu_set_t may = cpus(2);

	(void)state;
	assert_int_equal(wh_placement_choose(loops, 2, 0, &may), 1);
	loops[0].cpu = 1;
	assert_int_equal(wh_placement_choose(loops, 2, 0, &may), -1);
	assert_int_equal(wh_placement_choose(loops, 2, 1, &may), -1);
}

/* Three loops on two CPUs: two may follow to one of them. */
static void choose__follow_uneven(void **state)
{
	const struct wh_placed loops[3] = { { 0, 1 }, { 1, 1 }, { 1, 0 } };
	cpu_set_t may = cpus(2);

	(void)state;
	assert_int_equal(wh_placement_choose(loops, 3, 0, &may), 1);
	assert_int_equal(wh_placement_choose(loops, 3, 1, &may), -1);
	assert_int_equal(wh_placement_choose(loops, 3, 2, &may), 0);
}

/* Where CPUs are left, the two ends are faster on two of them; nor is there a choice of one. */
static void choose__enough_cpus(void **state)
{
	const struct wh_placed loops[3] = { { 0, 1 }, { 0, 2 }, { -1, 0 } };
	cpu_set_t three = cpus(3), one = cpus(1);

	(void)state;
	assert_int_equal(wh_placement_choose(loops, 3, 0, &three), -1);
	assert_int_equal(wh_placement_choose(loops, 3, 1, &three), -1);
	assert_int_equal(wh_placement_choose(loops, 3, 0, &one), -1);
}

/* The other end is where this process may not go: another container's CPUs. */
static void choose__elsewhere(void **state)
{
	const struct wh_placed loops[2] = { { 0, 7 }, { 1, 6 } };
	cpu_set_t may = cpus(2);

	(void)state;
	assert_int_equal(wh_placement_choose(loops, 2, 0, &may), -1);
}

/* Nothing is looked at for few bytes, and never for one loop alone. */
static void moved__looks(void **state)
{
	struct wh_place places[2];

	(void)state;
	memset(places, 0, sizeof(places));
	wh_placement_moved(places, 2, 0, LOOK - 1, -1, false);
	assert_int_equal(atomic_load(&places[0].seen), 0);
	wh_placement_moved(places, 2, 0, 1, -1, false);
	assert_true(atomic_load(&places[0].seen) > 0);
	wh_placement_moved(places, 1, 1, LOOK, -1, false);
	assert_int_equal(atomic_load(&places[1].seen), 0);
}

/* A loop that finds another one on its CPU goes to a second one, and may go anywhere later. */
static void moved__moves(void **state)
{
	cpu_set_t all, two, after;
	struct wh_place places[2];
	int first = 0, second, to;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	while (!CPU_ISSET(first, &all))
		first++;
	for (second = first + 1; second < CPU_SETSIZE && !CPU_ISSET(second, &all);)
		second++;
	if (second == CPU_SETSIZE)
		return; /* one CPU: choose__enough_cpus */
	CPU_ZERO(&two);
	CPU_SET(first, &two);
	CPU_SET(second, &two);
	assert_int_equal(sched_setaffinity(0, sizeof(two), &two), 0);
	memset(places, 0, sizeof(places));
	/* It may be moved between two looks; then the next ones find it again. */
	do {
		for (int i = 0; i < LOOKS; i++) {
			atomic_store(&places[1].cpu, sched_getcpu());
			atomic_store(&places[1].other, -1);
			atomic_store(&places[1].seen, wh_now());
			wh_placement_moved(places, 2, 0, LOOK, -1, false);
		}
	} while (CPU_COUNT(&asked[0]) != 1);
	to = CPU_ISSET(first, &asked[0]) ? first : second;
	assert_true(CPU_ISSET(to, &asked[0]));
	assert_true(CPU_EQUAL(&asked[1], &two));
	assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
	assert_true(CPU_EQUAL(&two, &after));
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(choose__spread),
		cmocka_unit_test(choose__follow),
		cmocka_unit_test(choose__follow_too_many),
		cmocka_unit_test(choose__follow_uneven),
		cmocka_unit_test(choose__enough_cpus),
		cmocka_unit_test(choose__elsewhere),
		cmocka_unit_test(moved__looks),
		cmocka_unit_test(moved__moves),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
