/* SPDX-License-Identifier: Apache-2.0 */
/* weights-phases.c: the line about where a version's time went */
#include "unit.h"

#include "weights/run/phases.h"

#define MS INT64_C(1000000)
#define START (1000 * MS)

static void text__two_reads(void **state)
{
	struct wh_phases phases;
	char text[512];
	int length;

	(void)state;
	wh_phases_begin(&phases, 7, START, START + 2 * MS);
	wh_phases_looked(&phases, MS);
	wh_phases_read(&phases, 3 << 20, START + 3 * MS);
	wh_phases_read(&phases, 1 << 20, START + 5 * MS);
	wh_phases_landed(&phases, START + 7 * MS);
	wh_phases_landed(&phases, START + 9 * MS);
	wh_phases_looked(&phases, 3 * MS);
	/* 4 ms in which it waits for others' pieces. */
	wh_phases_read(&phases, 2 << 20, START + 13 * MS);
	wh_phases_landed(&phases, START + 15 * MS);
	assert_int_equal(wh_phases_text(&phases, text, sizeof(text)), 0);
	assert_string_equal(text, "");
	wh_phases_whole(&phases, START + 16 * MS);
	length = wh_phases_text(&phases, text, sizeof(text));
	assert_int_equal(length, strlen(text));
	assert_string_equal(
		text, "version 7 took 16.000 ms: 2.000 ms from hearing of it until all was "
		      "published, 1.000 ms to the first read, 12.000 ms reading (none under way "
		      "for 4.000 of them), 1.000 ms for the last check; 3 reads of 2.000 MiB, "
		      "0.8 under way at once, 2 at most; 2 looks of 2.000 ms\n");
}

/* What was received without a hello before, and nothing at all. */
static void text__nothing(void **state)
{
	struct wh_phases phases = { 0 };
	char text[8] = "before";

	(void)state;
	assert_int_equal(wh_phases_text(&phases, text, sizeof(text)), 0);
	assert_string_equal(text, "");
	wh_phases_begin(&phases, 1, 0, START);
	assert_int_equal(phases.heard, START);
	wh_phases_whole(&phases, START);
	assert_int_equal(wh_phases_text(&phases, text, sizeof(text)), 0);
	assert_int_equal(wh_phases_text(&phases, NULL, 0), 0);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(text__two_reads),
	cmocka_unit_test(text__nothing),
};

int main(void)
{
	return cmocka_run_group_tests_name("weights-phases", tests, NULL, NULL);
}
