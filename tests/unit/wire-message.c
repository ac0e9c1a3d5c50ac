/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <stdbool.h>

#include <wherry/transfer.h>

#include "wire/wire.h"

static const struct wh_request request_sample = {
	.op = WH_WRITE,
	.meta = 0x1234,
	.count = 3,
	.slot = 9,
	.id = UINT64_C(0x8877665544332211),
	.bytes = 4096,
};
static const struct wh_response response_sample = {
	.op = WH_READ,
	.errors = 2,
	.id = UINT64_C(0x8877665544332211),
	.bytes = 4096,
};

static int request_round(struct wh_request request)
{
	struct wh_request got = { .op = 0 };
	uint8_t bytes[WH_REQUEST_SIZE];
	int rc;

	wh_request_encode(bytes, &request);
	rc = wh_request_decode(bytes, &got);
	if (rc == 0) {
		assert_int_equal(got.op, request.op);
		assert_int_equal(got.meta, request.meta);
		assert_int_equal(got.count, request.count);
		assert_int_equal(got.slot, request.slot);
		assert_true(got.id == request.id && got.bytes == request.bytes);
	} else {
		assert_int_equal(rc, -EPROTO);
		assert_int_equal(got.op, 0);
	}
	return rc;
}

static int response_round(struct wh_response response)
{
	struct wh_response got = { .op = 0 };
	uint8_t bytes[WH_RESPONSE_SIZE];
	int rc;

	wh_response_encode(bytes, &response);
	rc = wh_response_decode(bytes, &got);
	if (rc == 0) {
		assert_int_equal(got.op, response.op);
		assert_int_equal(got.errors, response.errors);
		assert_true(got.id == response.id && got.bytes == response.bytes);
	} else {
		assert_int_equal(rc, -EPROTO);
		assert_int_equal(got.op, 0);
	}
	return rc;
}

static void encode__layout(void **state)
{
	static const uint8_t request[WH_REQUEST_SIZE] = {
		2,    0,    0,    0,    0x34, 0x12, 0,    0,    3, 0,    0, 0, 9, 0, 0, 0,
		0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0x10, 0, 0, 0, 0, 0, 0,
	};
	static const uint8_t response[WH_RESPONSE_SIZE] = {
		1, 0,    0, 0, 2, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
		0, 0x10, 0, 0, 0, 0, 0, 0, 0,    0,    0,    0,    0,    0,    0,    0,
	};
	uint8_t bytes[WH_REQUEST_SIZE];

	(void)state;
	wh_request_encode(bytes, &request_sample);
	assert_memory_equal(bytes, request, sizeof(request));
	wh_response_encode(bytes, &response_sample);
	assert_memory_equal(bytes, response, sizeof(response));
}

static void request__limits(void **state)
{
	struct wh_request request = request_sample;

	(void)state;
	assert_int_equal(request_round(request), 0);
	for (unsigned op = 0; op < 256; op++) {
		request.op = (uint8_t)op;
		assert_int_equal(request_round(request),
				 op == WH_READ || op == WH_WRITE ? 0 : -EPROTO);
	}
	request = (struct wh_request){ .op = WH_READ,
				       .meta = WH_REQUEST_META,
				       .count = WH_REQUEST_EXTENTS,
				       .id = 0,
				       .bytes = WH_REQUEST_BYTES };
	assert_int_equal(request_round(request), 0);
	request.meta++;
	assert_int_equal(request_round(request), -EPROTO);
	request.meta = 0;
	assert_int_equal(request_round(request), -EPROTO);
	request.meta = 5;
	request.count++;
	assert_int_equal(request_round(request), -EPROTO);
	request.count = 0;
	assert_int_equal(request_round(request), -EPROTO);
	request.count = 1;
	request.bytes++;
	assert_int_equal(request_round(request), -EPROTO);
	request.bytes = UINT64_MAX;
	assert_int_equal(request_round(request), -EPROTO);
	request.bytes = 0;
	assert_int_equal(request_round(request), -EPROTO);
	request.bytes = 1;
	assert_int_equal(request_round(request), 0);
	request.count = 2; /* one of them would be empty */
	assert_int_equal(request_round(request), -EPROTO);
	request.count = 1;
	request.slot = WH_REQUEST_SLOTS;
	assert_int_equal(request_round(request), 0);
	request.slot++;
	assert_int_equal(request_round(request), -EPROTO);
}

static void response__limits(void **state)
{
	struct wh_response response = response_sample;

	(void)state;
	assert_int_equal(response_round(response), 0);
	response.errors = WH_REQUEST_EXTENTS;
	response.bytes = WH_REQUEST_BYTES;
	assert_int_equal(response_round(response), 0);
	response.bytes++;
	assert_int_equal(response_round(response), -EPROTO);
	response.bytes = 0;
	assert_int_equal(response_round(response), 0);
	response.errors++;
	assert_int_equal(response_round(response), -EPROTO);
	response = (struct wh_response){ .op = WH_WRITE };
	assert_int_equal(response_round(response), 0);
	response.bytes = 1;
	assert_int_equal(response_round(response), -EPROTO);
	response.bytes = 0;
	response.op = 3;
	assert_int_equal(response_round(response), -EPROTO);
	response.op = 0;
	assert_int_equal(response_round(response), -EPROTO);
}

static void decode__reserved_bytes(void **state)
{
	struct wh_request request;
	struct wh_response response;
	uint8_t bytes[32];

	(void)state;
	for (size_t i = 0; i < 32; i++) {
		wh_request_encode(bytes, &request_sample);
		bytes[i] |= 0x40;
		if ((i >= 1 && i < 4) || (i >= 12 && i < 16))
			assert_int_equal(wh_request_decode(bytes, &request), -EPROTO);
		wh_response_encode(bytes, &response_sample);
		bytes[i] |= 0x40;
		if ((i >= 1 && i < 4) || i >= 24)
			assert_int_equal(wh_response_decode(bytes, &response), -EPROTO);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(encode__layout),
		cmocka_unit_test(request__limits),
		cmocka_unit_test(response__limits),
		cmocka_unit_test(decode__reserved_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
