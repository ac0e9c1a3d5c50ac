/* SPDX-License-Identifier: Apache-2.0 */
/* Encode and decode the headers of requests and responses on data connections. */
#include "wire/wire.h"

#include <errno.h>

#include <wherry/transfer.h>

#include "wire/bytes.h"

static uint8_t *op_put(uint8_t *out, uint8_t op)
{
	static const uint8_t reserved[3];

	out = wh_put8(out, op);
	return wh_put_bytes(out, reserved, sizeof(reserved));
}

/* Read the op and the three reserved bytes. 0: unknown op, or a reserved byte is not 0. */
static uint8_t op_take(struct wh_bytes *in)
{
	uint32_t word = wh_take32(in);

	return word == WH_READ || word == WH_WRITE ? (uint8_t)word : 0;
}

void wh_request_encode(uint8_t out[WH_REQUEST_SIZE], const struct wh_request *request)
{
	out = op_put(out, request->op);
	out = wh_put32(out, request->meta);
	out = wh_put32(out, request->count);
	out = wh_put32(out, request->slot);
	out = wh_put64(out, request->id);
	wh_put64(out, request->bytes);
}

int wh_request_decode(const uint8_t in[WH_REQUEST_SIZE], struct wh_request *request)
{
	struct wh_bytes bytes = { .at = in, .end = in + WH_REQUEST_SIZE };
	struct wh_request got;

	got.op = op_take(&bytes);
	got.meta = wh_take32(&bytes);
	got.count = wh_take32(&bytes);
	got.slot = wh_take32(&bytes);
	got.id = wh_take64(&bytes);
	got.bytes = wh_take64(&bytes);
	if (!got.op || got.slot > WH_REQUEST_SLOTS)
		return -EPROTO;
	/* Every extent has at least one byte of payload, and `count` extents some bytes of meta. */
	if (!got.meta || got.meta > WH_REQUEST_META)
		return -EPROTO;
	if (!got.count || got.count > WH_REQUEST_EXTENTS)
		return -EPROTO;
	if (got.bytes < got.count || got.bytes > WH_REQUEST_BYTES)
		return -EPROTO;
	*request = got;
	return 0;
}

void wh_response_encode(uint8_t out[WH_RESPONSE_SIZE], const struct wh_response *response)
{
	out = op_put(out, response->op);
	out = wh_put32(out, response->errors);
	out = wh_put64(out, response->id);
	out = wh_put64(out, response->bytes);
	wh_put64(out, 0);
}

int wh_response_decode(const uint8_t in[WH_RESPONSE_SIZE], struct wh_response *response)
{
	struct wh_bytes bytes = { .at = in, .end = in + WH_RESPONSE_SIZE };
	struct wh_response got;
	uint64_t reserved;

	got.op = op_take(&bytes);
	got.errors = wh_take32(&bytes);
	got.id = wh_take64(&bytes);
	got.bytes = wh_take64(&bytes);
	reserved = wh_take64(&bytes);
	if (!got.op || reserved || got.errors > WH_REQUEST_EXTENTS)
		return -EPROTO;
	if (got.bytes > (got.op == WH_READ ? WH_REQUEST_BYTES : 0))
		return -EPROTO;
	*response = got;
	return 0;
}
