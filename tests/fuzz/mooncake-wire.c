/* SPDX-License-Identifier: Apache-2.0 */
/* Frames, headers and statuses of Mooncake's sockets. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/error.h>

#include "compat/mooncake/wire.h"

static void try_frame(const unsigned char *bytes)
{
	unsigned char again[WH_MOONCAKE_FRAME_HEAD];
	uint64_t length = 0;
	int error = wh_mooncake_frame_length(bytes, &length);

	check(error ? error == -EPROTO && !length : length && length <= WH_MOONCAKE_FRAME_MAX);
	wh_mooncake_frame_head(again, length);
	check(error || !memcmp(again, bytes, sizeof(again)));
}

static void try_request(const unsigned char *bytes)
{
	unsigned char again[WH_MOONCAKE_HEADER];
	struct wh_mooncake_request request;
	int error = wh_mooncake_request_parse(bytes, &request);

	check(!error || error == -EPROTO);
	if (error)
		return;
	wh_mooncake_request_format(&request, again);
	check(!memcmp(again, bytes, 17));
}

static void try_status(const unsigned char *bytes)
{
	unsigned char again[WH_MOONCAKE_STATUS];
	int code = wh_mooncake_status_parse(bytes);

	check(code >= 0 || code == -EPROTO);
	if (code < 0)
		return;
	wh_mooncake_status_format(code, again);
	check(!memcmp(again, bytes, sizeof(again)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (; size >= WH_MOONCAKE_HEADER; data += WH_MOONCAKE_HEADER, size -= WH_MOONCAKE_HEADER) {
		try_frame(data);
		try_request(data);
		try_status(data);
	}
	return 0;
}
