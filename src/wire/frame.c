/* SPDX-License-Identifier: Apache-2.0 */
/* Encode and decode frame headers. */
#include "wire/wire.h"

#include <errno.h>

#include "wire/bytes.h"

void wh_frame_encode(uint8_t out[WH_FRAME_HEADER], const struct wh_frame *frame)
{
	out = wh_put32(out, frame->length);
	out = wh_put16(out, frame->type);
	wh_put16(out, frame->flags);
}

int wh_frame_decode(const uint8_t in[WH_FRAME_HEADER], struct wh_frame *frame)
{
	struct wh_bytes bytes = { .at = in, .end = in + WH_FRAME_HEADER };
	struct wh_frame got;

	got.length = wh_take32(&bytes);
	got.type = wh_take16(&bytes);
	/* Accept unknown flags: a later version may add flags that this one can ignore. */
	got.flags = wh_take16(&bytes);
	if (got.length > WH_FRAME_MAX || !got.type || got.type >= WH_FRAME_TYPE_END)
		return -EPROTO;
	*frame = got;
	return 0;
}
