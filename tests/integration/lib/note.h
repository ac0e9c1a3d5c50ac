/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving a notification together with its bytes. */
#ifndef LIB_NOTE_H
#define LIB_NOTE_H

#include <string.h>

#include <wherry/wherry.h>

struct note {
	uint64_t length, tag, epoch;
	char sender[64];
	unsigned char data[WH_NOTIFICATION_MAX];
};

/* wh_engine_notification() with room for any notification. */
static inline int note_take_filtered(struct wh_engine *engine,
				     const struct wh_notification_filter *filter, struct note *out,
				     int64_t timeout)
{
	struct wh_notification got = { .size = sizeof(got),
				       .buffer = out->data,
				       .capacity = sizeof(out->data) };
	int error = wh_engine_notification(engine, filter, &got, timeout);

	if (error)
		return error;
	out->length = got.length;
	out->tag = got.tag;
	out->epoch = got.epoch;
	memcpy(out->sender, got.sender, sizeof(out->sender));
	return 0;
}

static inline int note_take(struct wh_engine *engine, struct note *out, int64_t timeout)
{
	return note_take_filtered(engine, NULL, out, timeout);
}

#endif
