/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON that Mooncake's engines exchange and keep in metadata stores: segments, notifications
 * and control endpoints. Parsers check every field before they use it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "compat/mooncake/wire.h"

/* Mooncake's integers have up to 64 bits, Jansson's end at 2^63 - 1. Before parsing, a larger
 * ("wide") integer is replaced by an object that has its digits under this key. */
#define WIDE "\001"
#define WIDE_OPEN "{\"\\u0001\":\""
#define WIDE_CLOSE "\"}"

/* Do the digits at `at` make an integer of exactly 64 bits? Sets *end past the last digit. */
static bool json_is_wide(const char *at, const char *limit, const char **end)
{
	uint64_t number = 0;
	bool fits = true;

	for (*end = at; *end < limit && **end >= '0' && **end <= '9'; ++*end) {
		uint64_t digit = (uint64_t)(**end - '0');

		fits = fits && number <= (UINT64_MAX - digit) / 10;
		number = number * 10 + digit;
	}
	return fits && number > INT64_MAX && *at != '0' && (*end == limit || !strchr(".eE", **end));
}

/* Replace the wide integers of a text. Returns a malloc()ed text and sets *length to its length;
 * NULL: no memory. */
static char *json_widen(const char *json, size_t *length)
{
	const char *limit = json + *length, *digits = json, *at = json;
	size_t extra = strlen(WIDE_OPEN WIDE_CLOSE);
	/* A wide integer has at least 19 digits. */
	char *out = malloc(*length + (*length / 19 + 1) * extra), *to = out;
	bool quoted = false;

	while (out && at < limit) {
		bool begins = !quoted && *at >= '0' && *at <= '9' &&
			      (at == json || !strchr("-+.eE", at[-1]));
		bool wide = begins && json_is_wide(at, limit, &digits);

		if (wide)
			to = stpcpy(to, WIDE_OPEN);
		if (begins) {
			to = mempcpy(to, at, (size_t)(digits - at));
			at = digits;
		}
		if (wide)
			to = stpcpy(to, WIDE_CLOSE);
		if (begins)
			continue;
		if (quoted && *at == '\\' && at + 1 < limit)
			*to++ = *at++;
		else if (*at == '"')
			quoted = !quoted;
		*to++ = *at++;
	}
	*length = (size_t)(to - out);
	return out;
}

/* A JSON integer, or its replacement if it is wide. */
static json_t *json_put_number(uint64_t number)
{
	char digits[24];

	if (number <= INT64_MAX)
		return json_integer((json_int_t)number);
	snprintf(digits, sizeof(digits), "%" PRIu64, number);
	return json_pack("{s:s}", WIDE, digits);
}

/* Put the wide integers back into a text, in place. */
static void json_narrow(char *text)
{
	char *at = text, *to = text;

	while (*at) {
		if (strncmp(at, WIDE_OPEN, strlen(WIDE_OPEN)) != 0) {
			*to++ = *at++;
			continue;
		}
		at += strlen(WIDE_OPEN);
		while (*at >= '0' && *at <= '9')
			*to++ = *at++;
		at += strlen(WIDE_CLOSE);
	}
	*to = '\0';
}

/* Parse a text that is one object. NULL: failed, with wh_fail_text(). */
static json_t *json_load(const char *json, size_t length)
{
	json_error_t error;
	json_t *object;

	/* Some writers end a text with NULs, which Jansson rejects. */
	while (length && !json[length - 1])
		length--;
	object = json_loadb(json, length, JSON_REJECT_DUPLICATES, &error);
	if (!object && json_error_code(&error) == json_error_numeric_overflow) {
		char *text = json_widen(json, &length);

		object = text ? json_loadb(text, length, JSON_REJECT_DUPLICATES, &error) : NULL;
		free(text);
	}
	if (!object)
		wh_fail(EPROTO, "mooncake: invalid JSON: %.100s at byte %d", error.text,
			error.position);
	else if (!json_is_object(object))
		wh_fail(EPROTO, "mooncake: the JSON is not an object");
	if (json_is_object(object))
		return object;
	json_decref(object);
	return NULL;
}

int wh_mooncake_object_check(const char *json, size_t length)
{
	json_t *object = json_load(json, length);

	if (!object)
		return -EPROTO;
	json_decref(object);
	return 0;
}

/* Read an unsigned integer of at most `most`. False: missing, or not one. */
static bool json_get_number(const json_t *object, const char *key, uint64_t most, uint64_t *out)
{
	const json_t *value = json_object_get(object, key);
	const char *wide = json_string_value(json_object_get(value, WIDE));
	json_int_t number = json_integer_value(value);

	if (wide) {
		*out = strtoull(wide, NULL, 10);
		return *out > INT64_MAX && *out <= most;
	}
	if (!json_is_integer(value) || number < 0 || (uint64_t)number > most)
		return false;
	*out = (uint64_t)number;
	return true;
}

/* Copy a string; a missing one becomes "". False: not a string, or too long. Jansson rejects
 * strings that contain a NUL. */
static bool json_get_text(const json_t *object, const char *key, char *out, size_t size)
{
	const json_t *value = json_object_get(object, key);

	*out = '\0';
	if (!value)
		return true;
	if (!json_is_string(value) || json_string_length(value) >= size)
		return false;
	memcpy(out, json_string_value(value), json_string_length(value) + 1);
	return true;
}

/* ---- segments ------------------------------------------------------------------------------ */

/* Does the segment offer TCP? `protocol` is one name or a list. *listed: a list, and each buffer
 * names its own protocol. */
static int segment_check_protocol(const json_t *object, bool *listed)
{
	const json_t *protocol = json_object_get(object, "protocol"), *each;
	size_t i;

	*listed = json_is_array(protocol);
	json_array_foreach(protocol, i, each) if (json_is_string(each) &&
						  !strcmp(json_string_value(each), "tcp")) return 0;
	if (*listed)
		return wh_fail(EPROTONOSUPPORT, "mooncake: the segment does not offer tcp, the "
						"only protocol that works here");
	if (!json_is_string(protocol))
		return wh_fail(EPROTO, "mooncake: the segment has no protocol");
	if (strcmp(json_string_value(protocol), "tcp") != 0)
		return wh_fail(EPROTONOSUPPORT,
			       "mooncake: the segment offers \"%.40s\"; only tcp works here",
			       json_string_value(protocol));
	return 0;
}

static int segment_get_buffer(const json_t *object, struct wh_mooncake_buffer *out)
{
	const json_t *name = json_object_get(object, "name");

	if (!json_get_number(object, "addr", UINT64_MAX, &out->address) || !out->address)
		return wh_fail(EPROTO, "mooncake: a buffer's addr is missing or not an address");
	if (!json_get_number(object, "length", UINT64_MAX, &out->length) || !out->length)
		return wh_fail(EPROTO, "mooncake: a buffer's length is missing, 0 or not a length");
	if (out->length - 1 > UINT64_MAX - out->address)
		return wh_fail(EPROTO, "mooncake: a buffer's addr plus length exceeds 64 bits");
	if (!json_is_string(name))
		return wh_fail(EPROTO, "mooncake: a buffer has no name");
	snprintf(out->name, sizeof(out->name), "%s", json_string_value(name));
	return 0;
}

static int segment_get_buffers(const json_t *object, bool listed, struct wh_mooncake_segment *out)
{
	const json_t *buffers = json_object_get(object, "buffers"), *each;
	size_t i;

	if (!json_is_array(buffers) || json_array_size(buffers) > WH_MOONCAKE_BUFFERS)
		return wh_fail(EPROTO, "mooncake: the segment has no buffers list, or more than %d",
			       WH_MOONCAKE_BUFFERS);
	out->buffers = calloc(json_array_size(buffers) + 1, sizeof(*out->buffers));
	if (!out->buffers)
		return wh_fail(ENOMEM, "mooncake: no memory");
	json_array_foreach(buffers, i, each)
	{
		const char *protocol = json_string_value(json_object_get(each, "protocol"));
		int error;

		if (listed && (!protocol || strcmp(protocol, "tcp") != 0))
			continue;
		error = segment_get_buffer(each, &out->buffers[out->count]);
		if (error)
			return error;
		out->count++;
	}
	return 0;
}

/* Read the "wherry" object, which only Wherry's engines publish. If it does not look as this
 * version writes it, ignore it: the segment is then reached by Mooncake's TCP. */
static void segment_get_wherry(const json_t *object, struct wh_mooncake_segment *out)
{
	const json_t *wherry = json_object_get(object, "wherry");
	const char *epoch = json_string_value(json_object_get(wherry, "epoch"));

	if (!epoch || strlen(epoch) != 16 || strspn(epoch, "0123456789abcdef") != 16 ||
	    !json_get_text(wherry, "url", out->wherry, sizeof(out->wherry)) || !*out->wherry)
		out->wherry[0] = '\0';
	else
		out->epoch = strtoull(epoch, NULL, 16);
}

static int segment_get(const json_t *object, struct wh_mooncake_segment *out)
{
	uint64_t port, version = 1;
	bool listed;
	int error = segment_check_protocol(object, &listed);

	if (error)
		return error;
	if (!json_get_text(object, "name", out->name, sizeof(out->name)))
		return wh_fail(EPROTO, "mooncake: the segment's name is too long or not a string");
	if (!json_get_text(object, "tcp_data_host", out->host, sizeof(out->host)))
		return wh_fail(EPROTO, "mooncake: tcp_data_host is too long or not a string");
	if (!json_get_number(object, "tcp_data_port", UINT16_MAX, &port))
		return wh_fail(EPROTO, "mooncake: tcp_data_port is missing or not a port");
	if (json_object_get(object, "tcp_proto_version") &&
	    (!json_get_number(object, "tcp_proto_version", INT32_MAX, &version) || !version))
		return wh_fail(EPROTO, "mooncake: tcp_proto_version is not a version");
	out->port = (uint16_t)port;
	out->version = (unsigned)version;
	segment_get_wherry(object, out);
	return segment_get_buffers(object, listed, out);
}

int wh_mooncake_segment_parse(const char *json, size_t length, struct wh_mooncake_segment *out)
{
	struct wh_mooncake_segment segment = { .port = 0 };
	json_t *object = json_load(json, length);
	int error;

	if (!object)
		return -EPROTO;
	error = segment_get(object, &segment);
	json_decref(object);
	if (error)
		wh_mooncake_segment_free(&segment);
	else
		*out = segment;
	return error;
}

/* The time in Mooncake's format, which is local time. Informational only. */
static json_t *segment_timestamp(void)
{
	struct timespec now;
	struct tm local;
	char text[64];
	size_t used;

	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &local);
	used = strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
	snprintf(text + used, sizeof(text) - used, ".%06ld", now.tv_nsec / 1000);
	return json_string(text);
}

char *wh_mooncake_segment_format(const struct wh_mooncake_segment *segment)
{
	json_t *object, *buffers = json_array();
	char *text;

	for (size_t i = 0; i < segment->count; i++)
		json_array_append_new(
			buffers, json_pack("{s:s, s:o, s:o}", "name", segment->buffers[i].name,
					   "addr", json_put_number(segment->buffers[i].address),
					   "length", json_put_number(segment->buffers[i].length)));
	object = json_pack("{s:s, s:s, s:i, s:i, s:o, s:o}", "name", segment->name, "protocol",
			   "tcp", "tcp_data_port", segment->port, "tcp_proto_version",
			   (int)segment->version, "timestamp", segment_timestamp(), "buffers",
			   buffers);
	if (*segment->host)
		json_object_set_new(object, "tcp_data_host", json_string(segment->host));
	if (*segment->wherry) {
		char epoch[17];

		snprintf(epoch, sizeof(epoch), "%016" PRIx64, segment->epoch);
		json_object_set_new(
			object, "wherry",
			json_pack("{s:s, s:s}", "url", segment->wherry, "epoch", epoch));
	}
	text = json_array_size(buffers) == segment->count ? json_dumps(object, JSON_COMPACT) : NULL;
	json_decref(object);
	if (text)
		json_narrow(text);
	return text;
}

/* ---- further messages ---------------------------------------------------------------------- */

int wh_mooncake_notify_parse(const char *json, size_t length, struct wh_mooncake_notify *out)
{
	json_t *object = json_load(json, length);
	const json_t *name = json_object_get(object, "name");
	const json_t *message = json_object_get(object, "notify_msg");
	int error = 0;

	if (!object)
		return -EPROTO;
	if (!json_is_string(name) || !json_is_string(message)) {
		error = wh_fail(EPROTO, "mooncake: the notification has no name or no notify_msg");
	} else {
		out->name = strdup(json_string_value(name));
		out->message = strdup(json_string_value(message));
		if (!out->name || !out->message) {
			wh_mooncake_notify_free(out);
			error = wh_fail(ENOMEM, "mooncake: no memory");
		}
	}
	json_decref(object);
	return error;
}

char *wh_mooncake_notify_format(const char *name, const char *message)
{
	json_t *object = json_pack("{s:s, s:s}", "name", name, "notify_msg", message);
	char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

	json_decref(object);
	return text;
}

void wh_mooncake_notify_free(struct wh_mooncake_notify *notify)
{
	free(notify->name);
	free(notify->message);
	notify->name = notify->message = NULL;
}

int wh_mooncake_endpoint_parse(const char *json, size_t length, struct wh_mooncake_endpoint *out)
{
	json_t *object = json_load(json, length);
	struct wh_mooncake_endpoint found;
	uint64_t port;
	int error = 0;

	if (!object)
		return -EPROTO;
	if (!json_get_text(object, "ip_or_host_name", found.host, sizeof(found.host)) ||
	    !*found.host)
		error = wh_fail(
			EPROTO,
			"mooncake: ip_or_host_name is missing, empty, too long or not a string");
	else if (!json_get_number(object, "rpc_port", UINT16_MAX, &port) || !port)
		error = wh_fail(EPROTO, "mooncake: rpc_port is missing or not a port");
	json_decref(object);
	if (error)
		return error;
	found.port = (uint16_t)port;
	*out = found;
	return 0;
}

char *wh_mooncake_endpoint_format(const struct wh_mooncake_endpoint *endpoint)
{
	json_t *object = json_pack("{s:s, s:i}", "ip_or_host_name", endpoint->host, "rpc_port",
				   endpoint->port);
	char *text = json_dumps(object, JSON_COMPACT);

	json_decref(object);
	return text;
}
