/* SPDX-License-Identifier: Apache-2.0 */
/* A request, a response. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/transfer.h>

#include "wire/wire.h"

static void try_request(const uint8_t *data)
{
	uint8_t bytes[WH_REQUEST_SIZE];
	struct wh_request request;
	int rc = wh_request_decode(data, &request);

	if (rc) {
		check(rc == -EPROTO);
		return;
	}
	check(request.op == WH_READ || request.op == WH_WRITE);
	check(request.meta && request.meta <= WH_REQUEST_META);
	check(request.count && request.count <= WH_REQUEST_EXTENTS);
	check(request.bytes >= request.count && request.bytes <= WH_REQUEST_BYTES);
	check(request.slot <= WH_REQUEST_SLOTS);
	wh_request_encode(bytes, &request);
	check(!memcmp(bytes, data, sizeof(bytes)));
}

static void try_response(const uint8_t *data)
{
	uint8_t bytes[WH_RESPONSE_SIZE];
	struct wh_response response;
	int rc = wh_response_decode(data, &response);

	if (rc) {
		check(rc == -EPROTO);
		return;
	}
	check(response.op == WH_READ || (response.op == WH_WRITE && !response.bytes));
	check(response.errors <= WH_REQUEST_EXTENTS && response.bytes <= WH_REQUEST_BYTES);
	wh_response_encode(bytes, &response);
	check(!memcmp(bytes, data, sizeof(bytes)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size >= WH_REQUEST_SIZE)
		try_request(data);
	if (size >= WH_RESPONSE_SIZE)
		try_response(data + size - WH_RESPONSE_SIZE);
	return 0;
}
