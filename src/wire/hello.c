/* SPDX-License-Identifier: Apache-2.0 */
/* Encode and decode the payloads of HELLO, WELCOME and REFUSED. */
#include "wire/wire.h"

#include <errno.h>

#include "wire/bytes.h"

_Static_assert(60 + 2 * WH_NAME_MAX + sizeof(((struct wh_hello *)0)->auth) <= WH_HELLO_MAX,
	       "the longest hello fits");

/* The highest errno; see the kernel's ERR_PTR(). */
#define ERRNO_MAX 4095

static uint8_t *name_put(uint8_t *out, const char *name)
{
	size_t length = strnlen(name, WH_NAME_MAX - 1);

	out = wh_put8(out, (uint8_t)length);
	return wh_put_bytes(out, name, length);
}

/* A name identifies its engine, so a name that is not clean is an error and is never corrected. */
static void name_take(struct wh_bytes *in, char name[WH_NAME_MAX])
{
	size_t length = wh_take8(in);

	memset(name, 0, WH_NAME_MAX);
	if (length >= WH_NAME_MAX) {
		in->cut = true;
		return;
	}
	wh_take_bytes(in, name, length);
	if (!wh_text_is_clean(name, length))
		in->cut = true;
}

size_t wh_hello_encode(uint8_t *out, const struct wh_hello *hello)
{
	size_t auth = hello->auth_length;
	uint8_t *at = out;

	if (auth > sizeof(hello->auth))
		auth = sizeof(hello->auth);
	at = wh_put32(at, WH_WIRE_MAGIC);
	at = wh_put16(at, hello->version_min);
	at = wh_put16(at, hello->version_max);
	at = wh_put16(at, hello->role);
	at = wh_put16(at, (uint16_t)auth);
	at = wh_put32(at, hello->capabilities);
	at = wh_put32(at, hello->connection);
	at = wh_put64(at, hello->epoch);
	at = wh_put64(at, hello->expected);
	at = wh_put64(at, hello->session);
	at = wh_put_bytes(at, hello->host, sizeof(hello->host));
	at = name_put(at, hello->name);
	at = name_put(at, hello->socket);
	at = wh_put_bytes(at, hello->auth, auth);
	return (size_t)(at - out);
}

int wh_hello_decode(const uint8_t *in, size_t length, struct wh_hello *hello)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_hello got = { 0 };

	if (length > WH_HELLO_MAX || wh_take32(&bytes) != WH_WIRE_MAGIC)
		return -EPROTO;
	got.version_min = wh_take16(&bytes);
	got.version_max = wh_take16(&bytes);
	if (bytes.cut || got.version_min > got.version_max)
		return -EPROTO;
	/* Another version may lay out the rest differently: return before reading it. */
	if (got.version_min > WH_WIRE_VERSION || got.version_max < WH_WIRE_VERSION) {
		hello->version_min = got.version_min;
		hello->version_max = got.version_max;
		return -EPROTONOSUPPORT;
	}
	got.role = wh_take16(&bytes);
	got.auth_length = wh_take16(&bytes);
	got.capabilities = wh_take32(&bytes);
	got.connection = wh_take32(&bytes);
	got.epoch = wh_take64(&bytes);
	got.expected = wh_take64(&bytes);
	got.session = wh_take64(&bytes);
	wh_take_bytes(&bytes, got.host, sizeof(got.host));
	name_take(&bytes, got.name);
	name_take(&bytes, got.socket);
	if (got.auth_length > sizeof(got.auth))
		return -EPROTO;
	wh_take_bytes(&bytes, got.auth, got.auth_length);
	if (bytes.cut || got.role < WH_ROLE_CONTROL || got.role > WH_ROLE_LOCAL)
		return -EPROTO;
	/* Trailing bytes are valid only from an engine that supports a newer version, too. */
	if (bytes.at != bytes.end && got.version_max == WH_WIRE_VERSION)
		return -EPROTO;
	*hello = got;
	return 0;
}

size_t wh_refusal_encode(uint8_t *out, int error, const char *text)
{
	size_t length = strnlen(text, WH_REFUSAL_MAX - 1);
	uint8_t *at = wh_put32(out, (uint32_t)error);

	at = wh_put_bytes(at, text, length);
	return (size_t)(at - out);
}

/* A refusal may come from any version, so a text that is too long is truncated, not an error. */
int wh_refusal_decode(const uint8_t *in, size_t length, int *error, char text[WH_REFUSAL_MAX])
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	uint32_t number = wh_take32(&bytes);
	size_t left = (size_t)(bytes.end - bytes.at);

	if (bytes.cut || !number || number > ERRNO_MAX)
		return -EPROTO;
	left = left < WH_REFUSAL_MAX ? left : WH_REFUSAL_MAX - 1;
	wh_take_bytes(&bytes, text, left);
	text[left] = '\0';
	wh_text_clean(text);
	*error = (int)number;
	return 0;
}
