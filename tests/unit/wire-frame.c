/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "wire/wire.h"

static void encode__bytes(void **state)
{
	static const uint8_t want[WH_FRAME_HEADER] = { 0x56, 0x34, 0x02, 0, 4, 0, 1, 0 };
	const struct wh_frame frame = { .length = 0x23456,
					.type = WH_FRAME_REGIONS,
					.flags = WH_FRAME_LAST };
	uint8_t out[WH_FRAME_HEADER];

	(void)state;
	wh_frame_encode(out, &frame);
	assert_memory_equal(out, want, sizeof(want));
}

static void decode__every_type(void **state)
{
	uint8_t bytes[WH_FRAME_HEADER];

	(void)state;
	for (unsigned type = 0; type <= UINT16_MAX; type++) {
		struct wh_frame frame = { .length = 7, .type = (uint16_t)type, .flags = 0x8001 };
		struct wh_frame got = { .length = 1 };
		bool known = type >= WH_FRAME_HELLO && type < WH_FRAME_TYPE_END;

		wh_frame_encode(bytes, &frame);
		assert_int_equal(wh_frame_decode(bytes, &got), known ? 0 : -EPROTO);
		assert_int_equal(got.length, known ? 7 : 1);
		if (known) {
			assert_int_equal(got.type, type);
			assert_int_equal(got.flags, 0x8001);
		}
	}
}

static void decode__length(void **state)
{
	static const uint32_t good[] = { 0, 1, WH_FRAME_MAX - 1, WH_FRAME_MAX };
	static const uint32_t bad[] = { WH_FRAME_MAX + 1, 1u << 31, UINT32_MAX };
	struct wh_frame frame = { .type = WH_FRAME_PING }, got;
	uint8_t bytes[WH_FRAME_HEADER];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		frame.length = good[i];
		wh_frame_encode(bytes, &frame);
		assert_int_equal(wh_frame_decode(bytes, &got), 0);
		assert_int_equal(got.length, good[i]);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		frame.length = bad[i];
		wh_frame_encode(bytes, &frame);
		assert_int_equal(wh_frame_decode(bytes, &got), -EPROTO);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(encode__bytes),
		cmocka_unit_test(decode__every_type),
		cmocka_unit_test(decode__length),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
