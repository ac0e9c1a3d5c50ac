/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of Mooncake's engines and of their metadata stores: each input as all that it could be.
 */
#include "fuzz.h"

#include <errno.h>

#include <wherry/error.h>

#include "compat/mooncake/wire.h"

static void check_refusal(int error)
{
	check(error == -EPROTO || error == -EPROTONOSUPPORT);
	check(*wh_error_text() && !strchr(wh_error_text(), '\n'));
}

static void try_segment(const char *json, size_t size)
{
	struct wh_mooncake_segment segment, again;
	int error = wh_mooncake_segment_parse(json, size, &segment);
	char *text;

	if (error) {
		check_refusal(error);
		return;
	}
	check(!wh_mooncake_object_check(json, size));
	check(segment.version && segment.count <= WH_MOONCAKE_BUFFERS);
	check(strnlen(segment.wherry, sizeof(segment.wherry)) < sizeof(segment.wherry));
	for (size_t i = 0; i < segment.count; i++) {
		const struct wh_mooncake_buffer *buffer = &segment.buffers[i];

		check(buffer->address && buffer->length &&
		      buffer->length - 1 <= UINT64_MAX - buffer->address);
		check(strnlen(buffer->name, sizeof(buffer->name)) < sizeof(buffer->name));
		check(wh_mooncake_segment_find(&segment, buffer->address, buffer->length));
	}
	text = wh_mooncake_segment_format(&segment);
	/* A name that was cut in the middle of a character cannot be written. */
	if (text) {
		check(!wh_mooncake_segment_parse(text, strlen(text), &again));
		check(again.count == segment.count && again.port == segment.port);
		check(!strcmp(again.name, segment.name) && !strcmp(again.host, segment.host));
		check(!strcmp(again.wherry, segment.wherry) && again.epoch == segment.epoch);
		wh_mooncake_segment_free(&again);
	}
	free(text);
	wh_mooncake_segment_free(&segment);
}

static void try_notify(const char *json, size_t size)
{
	struct wh_mooncake_notify notify;
	int error = wh_mooncake_notify_parse(json, size, &notify);

	if (error) {
		check_refusal(error);
		return;
	}
	check(strlen(notify.name) + strlen(notify.message) <= size);
	wh_mooncake_notify_free(&notify);
}

static void try_endpoint(const char *json, size_t size)
{
	struct wh_mooncake_endpoint endpoint, again;
	int error = wh_mooncake_endpoint_parse(json, size, &endpoint);
	char text[WH_MOONCAKE_NAME_MAX + 10], *back;

	if (error) {
		check_refusal(error);
		return;
	}
	check(endpoint.port && *endpoint.host);
	back = wh_mooncake_endpoint_format(&endpoint);
	check(back && !wh_mooncake_endpoint_parse(back, strlen(back), &again));
	check(!strcmp(endpoint.host, again.host) && endpoint.port == again.port);
	free(back);
	wh_mooncake_endpoint_text(&endpoint, text, sizeof(text));
	check(strlen(text) < sizeof(text));
}

static void try_text(const char *bytes, size_t size)
{
	struct wh_mooncake_endpoint endpoint, again;
	char *text = calloc(1, size + 1), back[WH_MOONCAKE_NAME_MAX + 10];

	check(text);
	if (size)
		memcpy(text, bytes, size);
	if (!wh_mooncake_endpoint_read(text, &endpoint)) {
		wh_mooncake_endpoint_text(&endpoint, back, sizeof(back));
		check(!wh_mooncake_endpoint_read(back, &again));
		check(!strcmp(endpoint.host, again.host) && endpoint.port == again.port &&
		      again.port);
	}
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *json = (const char *)data;

	try_segment(json, size);
	try_notify(json, size);
	try_endpoint(json, size);
	try_text(json, size);
	return 0;
}
