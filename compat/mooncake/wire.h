/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's wire formats: frames of the control connection, headers of data connections, and the
 * JSON in both and in metadata stores. Functions here convert bytes to structures and back; they
 * use no sockets. docs/mooncake.md describes the formats. Functions that return an error also set
 * wh_fail_text().
 */
#ifndef WH_COMPAT_MOONCAKE_WIRE_H
#define WH_COMPAT_MOONCAKE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"

/* ---- control ------------------------------------------------------------------------------- */

/* A frame: u64 length of the rest, u8 type, JSON. */
#define WH_MOONCAKE_FRAME_HEAD 8
#define WH_MOONCAKE_FRAME_MAX (1 << 20) /* the type and the JSON */

enum wh_mooncake_frame {
	WH_MOONCAKE_CONNECTION = 0, /* connects RDMA queue pairs */
	WH_MOONCAKE_METADATA = 1,
	WH_MOONCAKE_NOTIFY = 2,
	WH_MOONCAKE_PROBE = 3,
};

/* The length in a frame's first 8 bytes: 0 or -EPROTO. */
int wh_mooncake_frame_length(const unsigned char head[WH_MOONCAKE_FRAME_HEAD], uint64_t *out);
void wh_mooncake_frame_head(unsigned char head[WH_MOONCAKE_FRAME_HEAD], uint64_t length);

/* ---- data ---------------------------------------------------------------------------------- */

#define WH_MOONCAKE_HEADER 24
#define WH_MOONCAKE_STATUS 8

/* A request on a data connection. In version 2 the owner sends a status, before the bytes of a read
 * and after those of a write. In version 1 it does not answer writes, and rejects a request by
 * closing the connection. */
struct wh_mooncake_request {
	uint64_t address, length;
	bool write;
	bool status; /* version 2 */
};

/* 0, or -EPROTO for an unknown operation; then only `out->status` is set. */
int wh_mooncake_request_parse(const unsigned char header[WH_MOONCAKE_HEADER],
			      struct wh_mooncake_request *out);
void wh_mooncake_request_format(const struct wh_mooncake_request *request,
				unsigned char header[WH_MOONCAKE_HEADER]);

#define WH_MOONCAKE_OK 0
#define WH_MOONCAKE_REJECTED 1 /* address not registered; the owner then closes the connection */

/* The code, or -EPROTO if these bytes are not a status. */
int wh_mooncake_status_parse(const unsigned char bytes[WH_MOONCAKE_STATUS]);
void wh_mooncake_status_format(int code, unsigned char bytes[WH_MOONCAKE_STATUS]);

/* ---- segments ------------------------------------------------------------------------------ */

#define WH_MOONCAKE_NAME_MAX 256 /* with the NUL */
#define WH_MOONCAKE_URL_MAX 128
#define WH_MOONCAKE_BUFFERS 16384 /* a frame has no room for more */

struct wh_mooncake_buffer {
	uint64_t address, length;
	char name[64]; /* truncated */
};

/* What an engine publishes. */
struct wh_mooncake_segment {
	char name[WH_MOONCAKE_NAME_MAX];
	char host[WH_MOONCAKE_NAME_MAX]; /* of the data port; "": the host of the control port */
	uint16_t port;
	unsigned version; /* of the data protocol: 1, or 2 and later */
	/* URL and epoch of the Wherry engine behind the segment; "": there is none. */
	char wherry[WH_MOONCAKE_URL_MAX];
	uint64_t epoch;
	struct wh_mooncake_buffer *buffers; /* owned */
	size_t count;
};

/* 0, -EPROTO (the text names the field), -EPROTONOSUPPORT (the segment does not offer TCP),
 * -ENOMEM. Free the segment with wh_mooncake_segment_free(). */
int wh_mooncake_segment_parse(const char *json, size_t length, struct wh_mooncake_segment *out);
void wh_mooncake_segment_free(struct wh_mooncake_segment *segment);
/* A malloc()ed string; NULL: no memory, or a name is not UTF-8. */
char *wh_mooncake_segment_format(const struct wh_mooncake_segment *segment);

/* The buffer that contains all of [address, address+length); NULL: none. */
const struct wh_mooncake_buffer *wh_mooncake_segment_find(const struct wh_mooncake_segment *segment,
							  uint64_t address, uint64_t length);

/* ---- further messages ---------------------------------------------------------------------- */

/* 0 if the text is one JSON object, else -EPROTO. */
int wh_mooncake_object_check(const char *json, size_t length);

struct wh_mooncake_notify {
	char *name, *message; /* owned */
};

/* 0, -EPROTO, -ENOMEM. */
int wh_mooncake_notify_parse(const char *json, size_t length, struct wh_mooncake_notify *out);
void wh_mooncake_notify_free(struct wh_mooncake_notify *notify);
/* A malloc()ed string; NULL: no memory, or not UTF-8. */
char *wh_mooncake_notify_format(const char *name, const char *message);

/* The control port of a segment's engine, as metadata stores keep it. */
struct wh_mooncake_endpoint {
	char host[WH_MOONCAKE_NAME_MAX];
	uint16_t port;
};

/* 0 or -EPROTO. */
int wh_mooncake_endpoint_parse(const char *json, size_t length, struct wh_mooncake_endpoint *out);
char *wh_mooncake_endpoint_format(const struct wh_mooncake_endpoint *endpoint);

/* "HOST:PORT", with brackets around an IPv6 address. */
void wh_mooncake_endpoint_text(const struct wh_mooncake_endpoint *endpoint, char *out, size_t size);
/* Parse such a text: 0 or -EINVAL. An IPv6 address may lack its brackets, because Mooncake writes
 * those of data ports without. */
int wh_mooncake_endpoint_read(const char *text, struct wh_mooncake_endpoint *out);

#endif
