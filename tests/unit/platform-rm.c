/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the object behind CUDA memory by reading CUDA's IPC handles. */
#include "unit.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <wherry/error.h>

#include "platform/cuda.h"
#include "platform/rm.h"

#define BASE UINT64_C(0x7f9f8de10600)
#define PID 450

/* Handles of driver 580.159.04: allocations of 128 KiB and of 3 MiB. */
static const unsigned char small[WH_RM_HANDLE] = {
	0x60, 0x97, 0xa6, 0x41, 0xf0, 0x55, 0x00, 0x00, 0xc2, 0x01, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00,
	0x00, 0x06, 0x01, 0x00, 0x06, 0x00, 0x00, 0x00, 0x00, 0xff, 0x00, 0x00, 0x32, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x1c, 0x00, 0xd0, 0xc1, 0x96, 0x00, 0x00, 0x5c,
};

static void put32(unsigned char *handle, unsigned at, uint32_t value)
{
	memcpy(handle + at, &value, sizeof(value));
}

static void place__as_the_driver_says(void **state)
{
	unsigned char large[WH_RM_HANDLE];
	struct wh_rm_location place;

	(void)state;
	assert_int_equal(wh_rm_locate(small, PID, BASE, 0x20000, &place), 0);
	assert_int_equal(place.client, 0xc1d0001c);
	assert_int_equal(place.object, 0x5c000096);
	assert_int_equal(place.offset, 0x10600);
	assert_int_equal(place.length, 0x20000);
	assert_int_equal(place.object_length, 2 << 20);
	/* Over 4 GiB: the allocation fills its object. */
	memcpy(large, small, sizeof(large));
	put32(large, 16, 0);
	put32(large, 20, 5);
	put32(large, 24, 5u << 20);
	put32(large, 28, 0);
	assert_int_equal(
		wh_rm_locate(large, PID, UINT64_C(0x7f9f92a00000), UINT64_C(5) << 32, &place), 0);
	assert_true(place.object_length == UINT64_C(5) << 32);
}

static void place__of_another_layout(void **state)
{
	static const struct {
		unsigned at;
		uint32_t value;
		const char *says;
	} rows[] = {
		{ 8, PID + 1, "(process 0x1c3, expected 0x1c2" },
		{ 8, 0, "(process" },
		{ 16, 0, "(length 0x0" },
		{ 16, 0x20001, "(length 0x20001, expected 0x20000" },
		{ 20, 1, "(length 0x100020000" },
		{ 24, 0, "(end in its object" },
		{ 24, 0x30, "(end in its object 0x30600, expected 0x30000" },
		{ 28, 0x1ff600, "(end in its object" },
		{ 28, 0xffffffff, "(end in its object" },
		{ 28, 0x10400, "(offset in its object 0x10400, expected 0x600" },
		{ 48, 0, "(client" },
		{ 52, 0, "(client" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct wh_rm_location place = { .client = 7 };
		unsigned char handle[WH_RM_HANDLE];

		memcpy(handle, small, sizeof(handle));
		put32(handle, rows[i].at, rows[i].value);
		assert_int_equal(wh_rm_locate(handle, PID, BASE, 0x20000, &place), -EOPNOTSUPP);
		if (!strstr(wh_error_text(), rows[i].says))
			fail_msg("no \"%s\" in \"%s\"", rows[i].says, wh_error_text());
		assert_non_null(strstr(wh_error_text(), "in the setting window"));
		assert_int_equal(place.client, 7);
	}
}

/* The object would begin below address 0. */
static void place__before_everything(void **state)
{
	struct wh_rm_location place;

	(void)state;
	assert_int_equal(wh_rm_locate(small, PID, 0x600, 0x20000, &place), -EOPNOTSUPP);
}

/* With the handles of the fake driver, which have the same layout. */
static void place__asked_of_cuda(void **state)
{
	static const size_t sizes[] = { 100, 65536, 1000000, 3 << 20 };
	struct wh_cuda_scope scope;
	struct wh_rm_location place;
	struct wh_cuda *cuda;
	uint64_t address;

	(void)state;
	assert_int_equal(wh_cuda_open(getenv("TEST_CUDA"), &cuda), 0);
	assert_int_equal(wh_cuda_ready(cuda), 0);
	assert_int_equal(wh_cuda_enter(cuda, &cuda->devices[0], &scope), 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		assert_int_equal(cuda->cuMemAlloc(&address, sizes[i]), 0);
		assert_int_equal(wh_rm_location(cuda, address, sizes[i], &place), 0);
		assert_true(place.offset + sizes[i] <= place.object_length);
		assert_int_equal((address - place.offset) % 65536, 0);
		assert_int_equal(wh_rm_location(cuda, address, sizes[i] + 1, &place), -EOPNOTSUPP);
		assert_int_equal(cuda->cuMemFree(address), 0);
	}
	/* Memory without a handle. */
	assert_int_equal(cuda->cuMemAllocAsync(&address, 65536, NULL), 0);
	assert_true(wh_rm_location(cuda, address, 65536, &place) < 0);
	assert_non_null(strstr(wh_error_text(), "cuIpcGetMemHandle"));
	assert_int_equal(cuda->cuMemFreeAsync(address, NULL), 0);
	wh_cuda_leave(&scope);
	wh_cuda_close(cuda);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(place__as_the_driver_says),
		cmocka_unit_test(place__of_another_layout),
		cmocka_unit_test(place__before_everything),
		cmocka_unit_test(place__asked_of_cuda),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
