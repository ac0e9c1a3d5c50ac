/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of frames, and in each what its type says. */
#include "fuzz.h"

#include <errno.h>

#include "wire/wire.h"

static void read_question(const uint8_t *payload, size_t length)
{
	struct wh_question question;
	struct wh_range range;

	if (wh_question_decode(payload, length, &question))
		return;
	check(question.count <= WH_QUESTION_MAX);
	check(strnlen(question.name, WH_NAME_MAX) < WH_NAME_MAX);
	for (uint32_t i = 0; question.kind == WH_ASK_IDS && i < question.count; i++)
		wh_question_id(&question, i);
	for (uint32_t i = 0; question.kind == WH_ASK_ADDRESSES && i < question.count; i++)
		if (wh_question_range(&question, i, &range))
			check(range.length && range.access);
}

static void read_payload(const struct wh_frame *frame, const uint8_t *payload)
{
	const uint8_t *at = payload, *end = payload + frame->length;
	struct wh_region_record record;
	struct wh_removal removal;
	struct wh_hello hello;
	char text[WH_REFUSAL_MAX];
	int error;

	switch (frame->type) {
	case WH_FRAME_HELLO:
	case WH_FRAME_WELCOME:
		wh_hello_decode(payload, frame->length, &hello);
		break;
	case WH_FRAME_REFUSED:
		wh_refusal_decode(payload, frame->length, &error, text);
		break;
	case WH_FRAME_REGIONS:
		at += frame->length < WH_REGIONS_HEAD ? frame->length : WH_REGIONS_HEAD;
		while (wh_region_decode(&at, end, &record) == 1)
			;
		break;
	case WH_FRAME_LOOKUP:
		read_question(payload, frame->length);
		break;
	case WH_FRAME_REMOVE:
		if (!wh_removal_decode(payload, frame->length, &removal))
			check(removal.length && removal.address <= UINT64_MAX - removal.length);
		break;
	default:
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	while (size >= WH_FRAME_HEADER) {
		uint8_t header[WH_FRAME_HEADER];
		struct wh_frame frame;
		uint8_t *payload;
		int rc = wh_frame_decode(data, &frame);

		if (rc) {
			check(rc == -EPROTO);
			return 0;
		}
		check(frame.length <= WH_FRAME_MAX);
		check(frame.type > 0 && frame.type < WH_FRAME_TYPE_END);
		wh_frame_encode(header, &frame);
		check(!memcmp(header, data, sizeof(header)));
		data += WH_FRAME_HEADER;
		size -= WH_FRAME_HEADER;
		if (frame.length > size)
			return 0;
		/* In a block of its own: reading past its end is seen. */
		payload = malloc(frame.length ? frame.length : 1);
		check(payload);
		memcpy(payload, data, frame.length);
		read_payload(&frame, payload);
		free(payload);
		data += frame.length;
		size -= frame.length;
	}
	return 0;
}
