/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing etcd's answers: 64-bit numbers are strings, bytes are Base64, fields that are 0 are
 * absent. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "rendezvous/etcd.h"

/* ---- Base64 ---------------------------------------------------------------------------------- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void wh_base64_encode(const void *bytes, size_t length, char *out)
{
	const uint8_t *in = bytes;

	for (size_t i = 0; i < length; i += 3) {
		size_t left = length - i;
		uint32_t three = (uint32_t)in[i] << 16 | (left > 1 ? in[i + 1] : 0u) << 8 |
				 (left > 2 ? in[i + 2] : 0u);

		*out++ = digits[three >> 18];
		*out++ = digits[three >> 12 & 63];
		*out++ = left > 1 ? digits[three >> 6 & 63] : '=';
		*out++ = left > 2 ? digits[three & 63] : '=';
	}
	*out = '\0';
}

long wh_base64_decode(const char *text, char *out, size_t room)
{
	size_t length = strlen(text), pad = 0, used = 0;
	uint32_t bits = 0;

	if (length % 4)
		return -1;
	while (pad < 2 && pad < length && text[length - 1 - pad] == '=')
		pad++;
	if (length / 4 * 3 - pad > room)
		return -1;
	for (size_t i = 0; i < length; i++) {
		const char *digit = i < length - pad ? strchr(digits, text[i]) : digits;

		if (!digit)
			return -1;
		bits = bits << 6 | (uint32_t)(digit - digits);
		if (i % 4 != 3)
			continue;
		for (int shift = 16; shift >= 0 && used < length / 4 * 3 - pad; shift -= 8)
			out[used++] = (char)(bits >> shift & 0xff);
		bits = 0;
	}
	return (long)used;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* A field's number, written as a string or as a number. 0: no such field; -1: not a number. */
static int64_t answer_number(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);
	const char *text = json_string_value(value);
	char *end;
	long long parsed;

	if (!value)
		return 0;
	if (json_is_integer(value))
		return json_integer_value(value);
	if (!text || !*text || strspn(text, "-0123456789") != strlen(text))
		return -1;
	errno = 0;
	parsed = strtoll(text, &end, 10);
	return errno || *end ? -1 : parsed;
}

static void answer_copy_text(const json_t *object, const char *name, char *out, size_t size)
{
	const char *text = json_string_value(json_object_get(object, name));

	snprintf(out, size, "%s", text ? text : "");
}

/* A token that is too long is dropped: half of one is useless. */
static void answer_take_token(const json_t *object, char out[WH_TOKEN_MAX])
{
	const char *text = json_string_value(json_object_get(object, "token"));

	if (text && strlen(text) < WH_TOKEN_MAX)
		memcpy(out, text, strlen(text) + 1);
}

static int answer_take_record(const json_t *kv, struct wh_etcd_answer *out)
{
	const char *value = json_string_value(json_object_get(kv, "value"));
	char bytes[WH_REGISTRY_RECORD_MAX];
	long length = wh_base64_decode(value ? value : "", bytes, sizeof(bytes));

	out->record_lease = answer_number(kv, "lease");
	out->record_revision = answer_number(kv, "mod_revision");
	if (length < 0)
		return wh_fail(EPROTO,
			       "registry: a value that is not Base64, or longer than a record");
	if (wh_registry_record_parse(bytes, (size_t)length, NULL, &out->record))
		return -EPROTO;
	out->has_record = true;
	return 0;
}

static void answer_take_error(const json_t *root, struct wh_etcd_error *out)
{
	answer_copy_text(root, "error", out->text, sizeof(out->text));
	/* A stream has an object there. */
	if (!*out->text)
		answer_copy_text(json_object_get(root, "error"), "message", out->text,
				 sizeof(out->text));
	out->code = answer_number(root, "code");
}

/* The answer to a range may stand within that to a transaction, the answer to a lease within
 * "result". */
static int answer_take(const json_t *root, struct wh_etcd_answer *out)
{
	const json_t *result = json_object_get(root, "result"), *from = result ? result : root;
	const json_t *responses = json_object_get(from, "responses");
	const json_t *range = json_object_get(json_array_get(responses, 0), "response_range");
	const json_t *kvs = json_object_get(range ? range : from, "kvs");

	out->revision = answer_number(json_object_get(from, "header"), "revision");
	out->lease = answer_number(from, "ID");
	out->ttl = answer_number(from, "TTL");
	out->succeeded = json_is_true(json_object_get(from, "succeeded"));
	answer_take_token(from, out->token);
	answer_take_error(root, &out->error);
	if (kvs && !json_is_array(kvs))
		return wh_fail(EPROTO, "registry: etcd's \"kvs\" is not a list");
	return json_array_size(kvs) ? answer_take_record(json_array_get(kvs, 0), out) : 0;
}

static json_t *answer_load(const char *json, size_t length)
{
	json_error_t error;
	json_t *root = json_loadb(json, length, 0, &error);

	if (!root)
		wh_fail(EPROTO, "registry: etcd's answer is no JSON: %.100s (line %d, column %d)",
			error.text, error.line, error.column);
	else if (!json_is_object(root))
		wh_fail(EPROTO, "registry: etcd's answer is no JSON object");
	if (json_is_object(root))
		return root;
	json_decref(root);
	return NULL;
}

int wh_etcd_parse(const char *json, size_t length, struct wh_etcd_answer *out)
{
	json_t *root = answer_load(json, length);
	int error;

	memset(out, 0, sizeof(*out));
	if (!root)
		return -EPROTO;
	error = answer_take(root, out);
	json_decref(root);
	return error;
}

int wh_etcd_parse_error(const char *json, size_t length, struct wh_etcd_error *out)
{
	json_t *root = answer_load(json, length);

	if (!root)
		return -EPROTO;
	answer_take_error(root, out);
	json_decref(root);
	return 0;
}

static int answer_take_value(const json_t *root, char **value, size_t *length)
{
	const json_t *kvs = json_object_get(root, "kvs");
	const char *text = json_string_value(json_object_get(json_array_get(kvs, 0), "value"));
	size_t room;
	char *bytes;
	long used;

	if (kvs && !json_is_array(kvs))
		return wh_fail(EPROTO, "registry: etcd's \"kvs\" is not a list");
	if (!json_array_size(kvs))
		return wh_fail(ENOENT, "registry: etcd has no such key");
	/* etcd leaves an empty value out. */
	if (!text)
		text = "";
	room = strlen(text) / 4 * 3;
	bytes = malloc(room + 1);
	if (!bytes)
		return wh_fail(ENOMEM, "registry: no memory");
	used = wh_base64_decode(text, bytes, room);
	if (used < 0) {
		free(bytes);
		return wh_fail(EPROTO, "registry: the value in etcd's answer is not Base64");
	}
	bytes[used] = '\0';
	*value = bytes;
	*length = (size_t)used;
	return 0;
}

int wh_etcd_parse_value(const char *json, size_t length, char **value, size_t *value_length)
{
	json_t *root = answer_load(json, length);
	int error = root ? answer_take_value(root, value, value_length) : -EPROTO;

	json_decref(root);
	return error;
}

int wh_etcd_parse_watch(const char *json, size_t length)
{
	json_t *root = answer_load(json, length);
	const json_t *result = json_object_get(root, "result");
	int changed;

	if (!root)
		return -EPROTO;
	if (!result && !json_object_get(root, "error"))
		changed = wh_fail(EPROTO, "registry: etcd's watch says neither result nor error");
	else
		changed = !result || json_array_size(json_object_get(result, "events")) ||
			  json_is_true(json_object_get(result, "canceled"));
	json_decref(root);
	return changed;
}
