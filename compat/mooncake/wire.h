/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Mooncake's transfer engine sends over its sockets: frames of the control connection, headers
 * of data connections, and the JSON in both and in metadata stores. Bytes to structures and back:
 * no sockets. docs/mooncake.md has the formats.
 */
#ifndef WH_COMPAT_MOONCAKE_WIRE_H
#define WH_COMPAT_MOONCAKE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"

/* ---- control ------------------------------------------------------------------------------- */

/* A frame: u64 of how many bytes follow, u8 type, JSON. */
#define WH_MOONCAKE_FRAME_HEAD 8
#define WH_MOONCAKE_FRAME_MAX (1 << 20) /* the type and the JSON */

enum wh_mooncake_frame {
	WH_MOONCAKE_CONNECTION = 0, /* of RDMA's queue pairs */
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

/* A request on a data connection. Version 2 answers with a status, before what is read and behind
 * what was written; version 1 answers a write with nothing, and closes where it refuses. */
struct wh_mooncake_request {
	uint64_t address, length;
	bool write;
	bool status; /* version 2 */
};

/* 0 or -EPROTO: an operation that there is not. Then only `status` is set. */
int wh_mooncake_request_parse(const unsigned char header[WH_MOONCAKE_HEADER],
			      struct wh_mooncake_request *out);
void wh_mooncake_request_format(const struct wh_mooncake_request *request,
				unsigned char header[WH_MOONCAKE_HEADER]);

#define WH_MOONCAKE_OK 0
#define WH_MOONCAKE_REJECTED 1 /* the address; the connection closes behind it */

/* The code, or -EPROTO: these bytes are no status. */
int wh_mooncake_status_parse(const unsigned char bytes[WH_MOONCAKE_STATUS]);
void wh_mooncake_status_format(int code, unsigned char bytes[WH_MOONCAKE_STATUS]);

/* ---- segments ------------------------------------------------------------------------------ */

#define WH_MOONCAKE_NAME_MAX 256 /* with the NUL */
#define WH_MOONCAKE_URL_MAX 128
#define WH_MOONCAKE_BUFFERS 16384 /* more do not fit into a frame */

struct wh_mooncake_buffer {
	uint64_t address, length;
	char name[64]; /* cut if it is longer */
};

/* What an engine publishes. */
struct wh_mooncake_segment {
	char name[WH_MOONCAKE_NAME_MAX];
	char host[WH_MOONCAKE_NAME_MAX]; /* of the data port; "": the one that was asked */
	uint16_t port;
	unsigned version; /* of what is spoken there: 1, or 2 and later */
	/* Where it can be reached as one of Wherry's engines, and the epoch of that one; "": it
	 * cannot. */
	char wherry[WH_MOONCAKE_URL_MAX];
	uint64_t epoch;
	struct wh_mooncake_buffer *buffers; /* owned */
	size_t count;
};

/* 0, -EPROTO (the text names the field), -EPROTONOSUPPORT (a segment that is not reached by TCP),
 * -ENOMEM. */
int wh_mooncake_segment_parse(const char *json, size_t length, struct wh_mooncake_segment *out);
void wh_mooncake_segment_free(struct wh_mooncake_segment *segment);
/* malloc()ed; NULL: no memory, or a name that is no UTF-8. */
char *wh_mooncake_segment_format(const struct wh_mooncake_segment *segment);

/* Which buffer has all of [address, address+length)? NULL: none. */
const struct wh_mooncake_buffer *wh_mooncake_segment_find(const struct wh_mooncake_segment *segment,
							  uint64_t address, uint64_t length);

/* ---- further messages ---------------------------------------------------------------------- */

/* Is it one JSON object? 0 or -EPROTO. */
int wh_mooncake_object_check(const char *json, size_t length);

struct wh_mooncake_notify {
	char *name, *message; /* owned */
};

/* 0, -EPROTO, -ENOMEM. */
int wh_mooncake_notify_parse(const char *json, size_t length, struct wh_mooncake_notify *out);
void wh_mooncake_notify_free(struct wh_mooncake_notify *notify);
/* malloc()ed; NULL: no memory, or no UTF-8. */
char *wh_mooncake_notify_format(const char *name, const char *message);

/* Where the engine of a segment's name can be asked, as metadata stores keep it. */
struct wh_mooncake_endpoint {
	char host[WH_MOONCAKE_NAME_MAX];
	uint16_t port;
};

/* 0 or -EPROTO. */
int wh_mooncake_endpoint_parse(const char *json, size_t length, struct wh_mooncake_endpoint *out);
char *wh_mooncake_endpoint_format(const struct wh_mooncake_endpoint *endpoint);

/* "HOST:PORT", with brackets around an IPv6 address. */
void wh_mooncake_endpoint_text(const struct wh_mooncake_endpoint *endpoint, char *out, size_t size);
/* The same read: 0 or -EINVAL. Brackets may be missing, as Mooncake writes IPv6 addresses of data
 * ports. */
int wh_mooncake_endpoint_read(const char *text, struct wh_mooncake_endpoint *out);

#endif
