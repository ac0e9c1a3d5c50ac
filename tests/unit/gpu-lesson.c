/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-lesson.c: which mover a stream learns to take, from turns whose times are made up */
#include "unit.h"

#include <string.h>

#include "gpu/lesson.h"
#include "util/clock.h"

#define SECOND ((double)WH_SECOND)

/* Movers that take `takes` ns, and up to `noise` times as much beside other work. */
struct world {
	struct wh_lesson lesson;
	struct wh_lesson_times times;
	double takes[WH_MOVERS];
	double noise;
	uint64_t random;
	int64_t now;
	unsigned turns[WH_MOVERS];
};

static enum wh_mover world_turn(struct world *w)
{
	enum wh_mover mover = wh_lesson_choose(&w->lesson, &w->times, w->now);
	double share = (double)(next_random(&w->random) % 1000) / 1000, took;

	took = w->takes[mover] * (next_random(&w->random) % 2 ? 1 + (w->noise - 1) * share : 1);
	w->now += (int64_t)took;
	wh_lesson_learn(&w->lesson, mover, w->times.typical[mover], took, w->now);
	w->turns[mover]++;
	return mover;
}

static void world_turns(struct world *w, unsigned count)
{
	memset(w->turns, 0, sizeof(w->turns));
	while (count--)
		world_turn(w);
}

/* The first look says that one mover takes ten times as long as the other; in truth it takes 0.8
 * times as long. */
static struct world misjudged(enum wh_mover better, double noise, uint64_t random)
{
	struct world w = { .noise = noise, .random = random, .now = 1000 * WH_SECOND };

	for (enum wh_mover m = 0; m < WH_MOVERS; m++) {
		w.times.typical[m] = 20000;
		w.times.first[m] = m == better ? 200000 : 20000;
		w.takes[m] = m == better ? 40000 : 50000;
	}
	return w;
}

static void learn__first_look_was_wrong(void **state)
{
	unsigned late = 0;

	(void)state;
	for (uint64_t random = 1; random <= 500; random++) {
		for (enum wh_mover better = 0; better < WH_MOVERS; better++) {
			struct world w = misjudged(better, 4, random);

			assert_int_equal(world_turn(&w), !better);
			world_turns(&w, 99);
			late += wh_lesson_faster(&w.lesson, &w.times) != better;
			world_turns(&w, 640);
			assert_int_equal(wh_lesson_faster(&w.lesson, &w.times), better);
			world_turns(&w, 640);
			assert_true(w.turns[better] >= 620); /* the rest tries the other */
		}
	}
	assert_true(late <= 10); /* of 1,000: all tries may meet other work */
}

/* What costs say is far slower gets no turn; what three turns show to be so gets no fourth. */
static void choose__never_what_is_far_slower(void **state)
{
	struct world w = misjudged(WH_MOVER_KERNEL, 1, 1);

	(void)state;
	w.times.typical[WH_MOVER_KERNEL] = w.times.first[WH_MOVER_KERNEL];
	world_turns(&w, 1000);
	assert_int_equal(w.turns[WH_MOVER_KERNEL], 0);
	w = misjudged(WH_MOVER_KERNEL, 1, 1);
	w.takes[WH_MOVER_KERNEL] = 10 * w.takes[WH_MOVER_COPIES];
	world_turns(&w, 1000);
	assert_int_equal(w.turns[WH_MOVER_KERNEL], 3);
}

/* Two first turns that met other work do not keep the better mover away. */
static void choose__once_more_after_slow_first_turns(void **state)
{
	struct world w = misjudged(WH_MOVER_KERNEL, 1, 1);
	double good = w.takes[WH_MOVER_KERNEL];

	(void)state;
	w.takes[WH_MOVER_KERNEL] = 100 * good;
	memset(w.turns, 0, sizeof(w.turns));
	while (w.turns[WH_MOVER_KERNEL] < 2)
		world_turn(&w);
	w.takes[WH_MOVER_KERNEL] = good;
	world_turns(&w, 100);
	assert_int_equal(wh_lesson_faster(&w.lesson, &w.times), WH_MOVER_KERNEL);
}

/* Trying costs a 64th of the time at most, after the first eight. */
static void choose__tries_are_rare(void **state)
{
	struct world w = misjudged(WH_MOVER_KERNEL, 1, 1);

	(void)state;
	for (int tenths = 11; tenths < 30; tenths += 3) {
		double slower = tenths / 10.0;

		w = misjudged(WH_MOVER_KERNEL, 1, 1);
		w.takes[WH_MOVER_KERNEL] = slower * w.takes[WH_MOVER_COPIES];
		world_turns(&w, 100);
		assert_true(w.turns[WH_MOVER_KERNEL] >= 8);
		world_turns(&w, 6400);
		assert_true(w.turns[WH_MOVER_KERNEL] >= 40);
		assert_true((slower - 1) * w.turns[WH_MOVER_KERNEL] <= 102);
	}
}

/* A mover that looked bad, because the GPU was busy then, is found again after a minute. */
static void learn__forgets_after_a_minute(void **state)
{
	struct world w = misjudged(WH_MOVER_COPIES, 1, 1);
	double good = w.takes[WH_MOVER_COPIES];

	(void)state;
	w.takes[WH_MOVER_COPIES] = 100 * good;
	world_turns(&w, 100);
	assert_int_equal(w.turns[WH_MOVER_COPIES], 3);
	w.takes[WH_MOVER_COPIES] = good;
	world_turns(&w, 100);
	assert_int_equal(w.turns[WH_MOVER_COPIES], 0);
	w.now += 61 * WH_SECOND;
	world_turns(&w, 100);
	assert_true(w.turns[WH_MOVER_COPIES] > 50);
}

/* The figure follows a lasting change, and shrugs at one slow turn. */
static void learn__one_slow_turn(void **state)
{
	struct wh_lesson lesson = { 0 };
	struct wh_lesson_times times = { { 1000, 1000 }, { 1000, 1000 }, 0 };
	struct wh_lesson_view view[WH_MOVERS];

	(void)state;
	wh_lesson_learn(&lesson, WH_MOVER_KERNEL, 1000, 2000, 1);
	wh_lesson_learn(&lesson, WH_MOVER_KERNEL, 1000, SECOND, 2);
	wh_lesson_look(&lesson, &times, view);
	assert_true(view[WH_MOVER_KERNEL].time > 2000 && view[WH_MOVER_KERNEL].time < 2100);
	assert_int_equal(view[WH_MOVER_KERNEL].turns, 2);
	/* The other is unknown: as much slower than its first look. */
	assert_int_equal(view[WH_MOVER_COPIES].turns, 0);
	assert_true(view[WH_MOVER_COPIES].time > 2000 && view[WH_MOVER_COPIES].time < 2100);
	for (int i = 0; i < 1500; i++)
		wh_lesson_learn(&lesson, WH_MOVER_KERNEL, 1000, 4000, 3);
	wh_lesson_look(&lesson, &times, view);
	assert_true(view[WH_MOVER_KERNEL].time > 3900 && view[WH_MOVER_KERNEL].time <= 4000);
	/* No time and no work teach nothing. */
	wh_lesson_learn(&lesson, WH_MOVER_COPIES, 0, 1000, 4);
	wh_lesson_learn(&lesson, WH_MOVER_COPIES, 1000, 0, 4);
	wh_lesson_look(&lesson, &times, view);
	assert_int_equal(view[WH_MOVER_COPIES].turns, 0);
}

/* A kernel that takes from other work has to be so much faster; but it is shown as it is. */
static void choose__burden(void **state)
{
	struct wh_lesson lesson = { 0 };
	struct wh_lesson_times times = { { 1000, 1100 }, { 1000, 1100 }, 0 };
	struct wh_lesson_view view[WH_MOVERS];

	(void)state;
	assert_int_equal(wh_lesson_faster(&lesson, &times), WH_MOVER_KERNEL);
	times.burden = 0.15;
	assert_int_equal(wh_lesson_faster(&lesson, &times), WH_MOVER_COPIES);
	assert_int_equal(wh_lesson_choose(&lesson, &times, 1), WH_MOVER_COPIES);
	wh_lesson_look(&lesson, &times, view);
	assert_true(view[WH_MOVER_KERNEL].time < view[WH_MOVER_COPIES].time);
	times.typical[WH_MOVER_COPIES] = times.first[WH_MOVER_COPIES] = 1200;
	assert_int_equal(wh_lesson_faster(&lesson, &times), WH_MOVER_KERNEL);
}

static void class__all_sizes(void **state)
{
	unsigned last = 0;

	(void)state;
	for (uint64_t length = 1; length; length *= 2) {
		unsigned class = wh_lesson_class(1, length);

		assert_true(class >= last && class < WH_LESSONS);
		assert_true(wh_lesson_class(UINT64_MAX, length) < WH_LESSONS);
		last = class;
	}
	assert_int_equal(wh_lesson_class(1, 4096), wh_lesson_class(1, 257));
	assert_int_not_equal(wh_lesson_class(1, 4096), wh_lesson_class(2, 4096));
	assert_int_not_equal(wh_lesson_class(1, 4096), wh_lesson_class(1, 4097));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(learn__first_look_was_wrong),
		cmocka_unit_test(choose__never_what_is_far_slower),
		cmocka_unit_test(choose__once_more_after_slow_first_turns),
		cmocka_unit_test(choose__tries_are_rare),
		cmocka_unit_test(learn__forgets_after_a_minute),
		cmocka_unit_test(learn__one_slow_turn),
		cmocka_unit_test(choose__burden),
		cmocka_unit_test(class__all_sizes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
