/* SPDX-License-Identifier: Apache-2.0 */
/* HELLO or WELCOME, and REFUSED. */
#include "fuzz.h"

#include <errno.h>

#include "util/text.h"
#include "wire/wire.h"

static void check_text(const char *text, size_t room)
{
	size_t length = strnlen(text, room);

	check(length < room);
	for (size_t i = 0; i < length; i++)
		check((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
	check(wh_text_is_clean(text, length));
}

static void try_hello(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_HELLO_MAX];
	struct wh_hello hello;
	size_t length;
	int rc = wh_hello_decode(data, size, &hello);

	if (rc) {
		check(rc == -EPROTO || rc == -EPROTONOSUPPORT);
		return;
	}
	check(hello.version_min <= WH_WIRE_VERSION && hello.version_max >= WH_WIRE_VERSION);
	check(hello.role >= WH_ROLE_CONTROL && hello.role <= WH_ROLE_LOCAL);
	check(hello.auth_length <= sizeof(hello.auth));
	check_text(hello.name, sizeof(hello.name));
	check_text(hello.socket, sizeof(hello.socket));
	length = wh_hello_encode(bytes, &hello);
	check(length <= WH_HELLO_MAX && length <= size);
	check(!memcmp(bytes, data, length));
	check(length == size || hello.version_max > WH_WIRE_VERSION);
}

static void try_refusal(const uint8_t *data, size_t size)
{
	char text[WH_REFUSAL_MAX], again[WH_REFUSAL_MAX];
	uint8_t bytes[4 + WH_REFUSAL_MAX];
	int error, error_again;
	size_t length;

	if (wh_refusal_decode(data, size, &error, text))
		return;
	check(error > 0);
	check_text(text, sizeof(text));
	length = wh_refusal_encode(bytes, error, text);
	check(length <= size);
	check(!wh_refusal_decode(bytes, length, &error_again, again));
	check(error == error_again && !strcmp(text, again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_hello(data, size);
	try_refusal(data, size);
	return 0;
}
