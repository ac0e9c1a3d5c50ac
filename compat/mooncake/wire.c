/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake's binary formats (frame heads, requests, statuses) and HOST:PORT texts. json.c has the
 * JSON formats. */
#include "compat/mooncake/wire.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATUS_MAGIC UINT64_C(0x4d43545600000000)
#define OP_VERSION_2 0x80

static uint64_t wire_load(const unsigned char *bytes)
{
	uint64_t value = 0;

	for (int i = 7; i >= 0; i--)
		value = value << 8 | bytes[i];
	return value;
}

static void wire_store(unsigned char *bytes, uint64_t value)
{
	for (int i = 0; i < 8; i++)
		bytes[i] = (unsigned char)(value >> 8 * i);
}

int wh_mooncake_frame_length(const unsigned char head[WH_MOONCAKE_FRAME_HEAD], uint64_t *out)
{
	uint64_t length = wire_load(head);

	if (!length)
		return wh_fail(EPROTO, "mooncake: received a frame of length 0");
	if (length > WH_MOONCAKE_FRAME_MAX)
		return wh_fail(EPROTO,
			       "mooncake: received a frame of %" PRIu64 " bytes; the limit is %d",
			       length, WH_MOONCAKE_FRAME_MAX);
	*out = length;
	return 0;
}

void wh_mooncake_frame_head(unsigned char head[WH_MOONCAKE_FRAME_HEAD], uint64_t length)
{
	wire_store(head, length);
}

int wh_mooncake_request_parse(const unsigned char header[WH_MOONCAKE_HEADER],
			      struct wh_mooncake_request *out)
{
	unsigned op = header[16] & ~OP_VERSION_2;

	out->status = header[16] & OP_VERSION_2;
	/* The other seven bytes are padding of the sender's struct, with any content. */
	if (op > 1)
		return wh_fail(EPROTO,
			       "mooncake: received operation %u; expected 0 (read) or 1 (write)",
			       op);
	out->length = wire_load(header);
	out->address = wire_load(header + 8);
	out->write = op;
	return 0;
}

void wh_mooncake_request_format(const struct wh_mooncake_request *request,
				unsigned char header[WH_MOONCAKE_HEADER])
{
	memset(header, 0, WH_MOONCAKE_HEADER);
	wire_store(header, request->length);
	wire_store(header + 8, request->address);
	header[16] = (unsigned char)(request->write | (request->status ? OP_VERSION_2 : 0));
}

int wh_mooncake_status_parse(const unsigned char bytes[WH_MOONCAKE_STATUS])
{
	uint64_t value = wire_load(bytes);

	if ((value & 0xffffffff00000000) != STATUS_MAGIC || (value & 0xffffffff) > INT32_MAX)
		return wh_fail(EPROTO, "mooncake: 0x%016" PRIx64 " is not a status", value);
	return (int)(value & 0xffffffff);
}

void wh_mooncake_status_format(int code, unsigned char bytes[WH_MOONCAKE_STATUS])
{
	wire_store(bytes, STATUS_MAGIC | (uint32_t)code);
}

const struct wh_mooncake_buffer *wh_mooncake_segment_find(const struct wh_mooncake_segment *segment,
							  uint64_t address, uint64_t length)
{
	for (size_t i = 0; i < segment->count; i++) {
		const struct wh_mooncake_buffer *buffer = &segment->buffers[i];

		if (address >= buffer->address && length <= buffer->length &&
		    address - buffer->address <= buffer->length - length)
			return buffer;
	}
	return NULL;
}

void wh_mooncake_segment_free(struct wh_mooncake_segment *segment)
{
	free(segment->buffers);
	segment->buffers = NULL;
	segment->count = 0;
}

void wh_mooncake_endpoint_text(const struct wh_mooncake_endpoint *endpoint, char *out, size_t size)
{
	if (strchr(endpoint->host, ':'))
		snprintf(out, size, "[%s]:%u", endpoint->host, endpoint->port);
	else
		snprintf(out, size, "%s:%u", endpoint->host, endpoint->port);
}

int wh_mooncake_endpoint_read(const char *text, struct wh_mooncake_endpoint *out)
{
	const char *colon = strrchr(text, ':'), *host = text;
	size_t length = colon ? (size_t)(colon - text) : 0;
	unsigned long port = 0;
	size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;

	if (digits && digits <= 5 && !colon[1 + digits])
		port = strtoul(colon + 1, NULL, 10);
	if (length > 1 && text[0] == '[' && text[length - 1] == ']') {
		host++;
		length -= 2;
	}
	if (!length || length >= sizeof(out->host) || !port || port > UINT16_MAX)
		return wh_fail(EINVAL, "mooncake: \"%.100s\" is not HOST:PORT", text);
	for (size_t i = 0; i < length; i++)
		if (!isgraph((unsigned char)host[i]) || strchr("/[]", host[i]))
			return wh_fail(EINVAL, "mooncake: the host in \"%.100s\" contains '%c'",
				       text, host[i]);
	memcpy(out->host, host, length);
	out->host[length] = '\0';
	out->port = (uint16_t)port;
	return 0;
}
