/* SPDX-License-Identifier: Apache-2.0 */
/* How many files wherry serve --dir keeps open, and for whom. */
#include "../../tools/serve/room.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>

#include <cmocka.h>

/* All files fit the descriptors of the process, and leave some. */
static void fit__descriptors(void **state)
{
	static const uint64_t limits[] = { 64, 256, 1024, ROOM_DESCRIPTORS, 1 << 20, UINT64_MAX };
	struct room room;

	(void)state;
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		room_fit(limits[i], &room);
		assert_true(room.all <= ROOM_FILES);
		assert_true(2 * room.all <= limits[i] - limits[i] / 4);
		assert_true(room.of_client && room.of_client <= room.of_source);
		assert_true(room.of_source < room.all);
	}
	room_fit(1024, &room);
	assert_int_equal(room.all, 384);
	room_fit(ROOM_DESCRIPTORS, &room);
	assert_int_equal(room.all, ROOM_FILES);
	room_fit(0, &room);
	assert_true(room.of_client > 0);
}

/* An address that opens files by as many engines as it likes leaves half to others. */
static void check__engines_of_one_address(void **state)
{
	struct room most, open = { 0 };
	size_t files = 0;

	(void)state;
	room_fit(ROOM_DESCRIPTORS, &most);
	for (int engine = 0; engine < 100; engine++) {
		for (open.of_client = 0; !room_check(&most, &open); open.of_client++) {
			open.all++;
			open.of_source++;
			files++;
		}
		assert_true(open.of_client <= most.of_client);
	}
	assert_int_equal(files, most.all / 2);
	open.of_source = open.of_client = 0;
	assert_int_equal(room_check(&most, &open), 0);
	open.all = most.all;
	assert_int_equal(room_check(&most, &open), -EMFILE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fit__descriptors),
		cmocka_unit_test(check__engines_of_one_address),
	};

	return cmocka_run_group_tests_name("tools-room", tests, NULL, NULL);
}
