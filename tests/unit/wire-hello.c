/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "wire/wire.h"

/* Where things lie on the wire. */
enum {
	AT_VERSION_MIN = 4,
	AT_VERSION_MAX = 6,
	AT_ROLE = 8,
	AT_AUTH_LENGTH = 10,
	AT_NAME = 60,
};

static struct wh_hello sample(void)
{
	struct wh_hello hello = {
		.version_min = WH_WIRE_VERSION,
		.version_max = WH_WIRE_VERSION,
		.role = WH_ROLE_DATA,
		.capabilities = 0x01020304,
		.connection = 0x05060708,
		.epoch = UINT64_C(0x1122334455667788),
		.expected = 2,
		.session = 3,
		.host = "0123456789abcde",
		.name = "node.42",
		.socket = "wherry-1122",
		.auth_length = 3,
		.auth = { 9, 8, 7 },
	};

	return hello;
}

static void assert_hello_equal(const struct wh_hello *a, const struct wh_hello *b)
{
	assert_int_equal(a->version_min, b->version_min);
	assert_int_equal(a->version_max, b->version_max);
	assert_int_equal(a->role, b->role);
	assert_int_equal(a->capabilities, b->capabilities);
	assert_int_equal(a->connection, b->connection);
	assert_true(a->epoch == b->epoch && a->expected == b->expected);
	assert_true(a->session == b->session);
	assert_memory_equal(a->host, b->host, sizeof(a->host));
	assert_string_equal(a->name, b->name);
	assert_string_equal(a->socket, b->socket);
	assert_int_equal(a->auth_length, b->auth_length);
	assert_memory_equal(a->auth, b->auth, a->auth_length);
}

static int decode(const uint8_t *bytes, size_t length, struct wh_hello *hello)
{
	uint8_t *copy = exact_copy(bytes, length);
	int rc = wh_hello_decode(copy, length, hello);

	free(copy);
	return rc;
}

static void encode__layout(void **state)
{
	const struct wh_hello hello = sample();
	uint8_t bytes[WH_HELLO_MAX];
	size_t length = wh_hello_encode(bytes, &hello);

	(void)state;
	assert_int_equal(length, AT_NAME + 1 + 7 + 1 + 11 + 3);
	assert_memory_equal(bytes, "WHRY\5\0\5\0\2\0\3\0\4\3\2\1\10\7\6\5", 20);
	assert_memory_equal(bytes + 20, "\x88\x77\x66\x55\x44\x33\x22\x11", 8);
	assert_memory_equal(bytes + AT_NAME, "\7node.42\13wherry-1122\11\10\7", 23);
}

static void decode__round_trip(void **state)
{
	struct wh_hello hello = sample(), got;
	uint8_t bytes[WH_HELLO_MAX];

	(void)state;
	assert_int_equal(decode(bytes, wh_hello_encode(bytes, &hello), &got), 0);
	assert_hello_equal(&hello, &got);
	/* Everything as long as it can be, then as short. */
	memset(hello.name, 'n', WH_NAME_MAX - 1);
	memset(hello.socket, 's', WH_NAME_MAX - 1);
	memset(hello.auth, 0xa5, sizeof(hello.auth));
	hello.auth_length = sizeof(hello.auth);
	assert_int_equal(decode(bytes, wh_hello_encode(bytes, &hello), &got), 0);
	assert_hello_equal(&hello, &got);
	memset(&hello, 0, sizeof(hello));
	hello.version_min = hello.version_max = WH_WIRE_VERSION;
	hello.role = WH_ROLE_LOCAL;
	assert_int_equal(decode(bytes, wh_hello_encode(bytes, &hello), &got), 0);
	assert_hello_equal(&hello, &got);
}

static void encode__bounds_what_it_is_given(void **state)
{
	struct wh_hello hello = sample(), got;
	uint8_t bytes[WH_HELLO_MAX];
	size_t length;

	(void)state;
	memset(hello.name, 'n', WH_NAME_MAX); /* not terminated */
	memset(hello.socket, 's', WH_NAME_MAX);
	hello.auth_length = UINT16_MAX;
	length = wh_hello_encode(bytes, &hello);
	assert_true(length <= WH_HELLO_MAX);
	assert_int_equal(decode(bytes, length, &got), 0);
	assert_int_equal(strlen(got.name), WH_NAME_MAX - 1);
	assert_int_equal(strlen(got.socket), WH_NAME_MAX - 1);
	assert_int_equal(got.auth_length, sizeof(got.auth));
}

static void decode__cut_off(void **state)
{
	const struct wh_hello hello = sample();
	struct wh_hello got;
	uint8_t bytes[WH_HELLO_MAX + 1] = { 0 };
	size_t length = wh_hello_encode(bytes, &hello);

	(void)state;
	for (size_t i = 0; i < length; i++)
		assert_int_equal(decode(bytes, i, &got), -EPROTO);
	assert_int_equal(decode(bytes, length + 1, &got), -EPROTO);
	assert_int_equal(decode(bytes, sizeof(bytes), &got), -EPROTO);
}

static void decode__versions(void **state)
{
	static const struct {
		uint16_t min, max;
		int rc;
	} cases[] = {
		{ 5, 5, 0 },
		{ 5, 6, 0 },
		{ 5, UINT16_MAX, 0 },
		{ 0, 0, -EPROTONOSUPPORT },
		{ 1, 1, -EPROTONOSUPPORT },
		{ 2, 2, -EPROTONOSUPPORT },
		{ 3, 3, -EPROTONOSUPPORT },
		{ 4, 4, -EPROTONOSUPPORT },
		{ 0, 5, 0 },
		{ 1, 5, 0 },
		{ 6, 5, -EPROTO },
		{ 6, 6, -EPROTONOSUPPORT },
		{ 7, UINT16_MAX, -EPROTONOSUPPORT },
	};
	struct wh_hello hello = sample(), got;
	uint8_t bytes[WH_HELLO_MAX];
	size_t length;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		hello.version_min = cases[i].min;
		hello.version_max = cases[i].max;
		memset(&got, 0xff, sizeof(got));
		length = wh_hello_encode(bytes, &hello);
		assert_int_equal(decode(bytes, length, &got), cases[i].rc);
		if (cases[i].rc != -EPROTO) {
			assert_int_equal(got.version_min, cases[i].min);
			assert_int_equal(got.version_max, cases[i].max);
		}
		/* Of a foreign version the first 8 bytes are enough to tell. */
		if (cases[i].rc == -EPROTONOSUPPORT)
			assert_int_equal(decode(bytes, 8, &got), -EPROTONOSUPPORT);
	}
	/* Who speaks a newer version too may say more. */
	hello.version_min = WH_WIRE_VERSION;
	hello.version_max = WH_WIRE_VERSION + 1;
	length = wh_hello_encode(bytes, &hello);
	bytes[length] = 0x55;
	assert_int_equal(decode(bytes, length + 1, &got), 0);
}

static void decode__wrong_bytes(void **state)
{
	static const struct {
		size_t at;
		uint8_t value;
	} cases[] = {
		{ 0, 'w' }, /* magic */
		{ 3, 'y' },
		{ AT_ROLE, 0 },
		{ AT_ROLE, 4 },
		{ AT_ROLE + 1, 1 },
		{ AT_AUTH_LENGTH, 2 },
		{ AT_AUTH_LENGTH, 4 },
		{ AT_AUTH_LENGTH + 1, 1 },
		{ AT_NAME, 64 },
		{ AT_NAME, 255 },
		{ AT_NAME, 6 },
		{ AT_NAME + 1, 0 },
		{ AT_NAME + 1, 27 },
		{ AT_NAME + 3, '\n' },
		{ AT_NAME + 7, 0x7f },
		{ AT_NAME + 8, 64 },
		{ AT_NAME + 9, 0 },
	};
	const struct wh_hello hello = sample();
	struct wh_hello got = { .role = 77 };
	uint8_t bytes[WH_HELLO_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t length = wh_hello_encode(bytes, &hello);

		bytes[cases[i].at] = cases[i].value;
		assert_int_equal(decode(bytes, length, &got), -EPROTO);
		assert_int_equal(got.role, 77);
	}
}

static void decode__name_too_long(void **state)
{
	const struct wh_hello hello = sample();
	uint8_t bytes[WH_HELLO_MAX], *after;
	struct wh_hello got;

	(void)state;
	for (size_t length = WH_NAME_MAX - 1; length < 256; length++) {
		wh_hello_encode(bytes, &hello);
		bytes[AT_NAME] = (uint8_t)length;
		memset(bytes + AT_NAME + 1, 'n', length);
		after = bytes + AT_NAME + 1 + length;
		memcpy(after, "\1s\11\10\7", 5);
		assert_int_equal(decode(bytes, (size_t)(after - bytes) + 5, &got),
				 length < WH_NAME_MAX ? 0 : -EPROTO);
		/* The socket's likewise. */
		wh_hello_encode(bytes, &hello);
		bytes[AT_NAME + 8] = (uint8_t)length;
		memset(bytes + AT_NAME + 9, 's', length);
		after = bytes + AT_NAME + 9 + length;
		memcpy(after, "\11\10\7", 3);
		assert_int_equal(decode(bytes, (size_t)(after - bytes) + 3, &got),
				 length < WH_NAME_MAX ? 0 : -EPROTO);
	}
}

static void decode__name_not_to_be_shown(void **state)
{
	static const struct {
		const char *name;
		int result;
	} names[] = {
		{ "caf\303\251 (rack 3)", 0 }, { "a\33[2J", -EPROTO }, { "a\nb", -EPROTO },
		{ "a\302\2332J", -EPROTO },    { "a\2332J", -EPROTO }, { "cut\303", -EPROTO },
		{ "a\342\200\250b", -EPROTO },
	};
	uint8_t bytes[WH_HELLO_MAX];
	struct wh_hello hello, got;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		hello = sample();
		memset(hello.name, 0, sizeof(hello.name));
		strcpy(hello.name, names[i].name);
		assert_int_equal(wh_hello_decode(bytes, wh_hello_encode(bytes, &hello), &got),
				 names[i].result);
	}
}

static void refusal__round_trip(void **state)
{
	uint8_t bytes[4 + WH_REFUSAL_MAX];
	char text[WH_REFUSAL_MAX], longest[WH_REFUSAL_MAX + 50];
	int error;

	(void)state;
	assert_int_equal(wh_refusal_encode(bytes, ESTALE, "restarted"), 4 + 9);
	assert_int_equal(wh_refusal_decode(bytes, 4 + 9, &error, text), 0);
	assert_int_equal(error, ESTALE);
	assert_string_equal(text, "restarted");
	assert_int_equal(wh_refusal_encode(bytes, EPERM, ""), 4);
	assert_int_equal(wh_refusal_decode(bytes, 4, &error, text), 0);
	assert_string_equal(text, "");
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	assert_int_equal(wh_refusal_encode(bytes, EPERM, longest), 4 + WH_REFUSAL_MAX - 1);
	assert_int_equal(wh_refusal_decode(bytes, 4 + WH_REFUSAL_MAX - 1, &error, text), 0);
	assert_int_equal(strlen(text), WH_REFUSAL_MAX - 1);
}

static void refusal__hostile(void **state)
{
	static const uint8_t zero[8], negative[4] = { 0xff, 0xff, 0xff, 0xff };
	static const uint8_t huge[4] = { 0, 0x10, 0, 0 };
	char text[WH_REFUSAL_MAX];
	uint8_t *flood = malloc(WH_FRAME_MAX);
	int error = 5;

	(void)state;
	assert_non_null(flood);
	for (size_t i = 0; i <= sizeof(zero); i++)
		assert_int_equal(wh_refusal_decode(zero, i, &error, text), -EPROTO);
	assert_int_equal(wh_refusal_decode(negative, sizeof(negative), &error, text), -EPROTO);
	assert_int_equal(wh_refusal_decode(huge, sizeof(huge), &error, text), -EPROTO);
	assert_int_equal(error, 5);
	/* No line breaks or escapes, no more than there is room for, nothing behind a NUL. */
	memset(flood, '\n', WH_FRAME_MAX);
	memcpy(flood, "\1\0\0\0\33[2J", 8);
	assert_int_equal(wh_refusal_decode(flood, WH_FRAME_MAX, &error, text), 0);
	assert_int_equal(error, 1);
	assert_int_equal(strlen(text), WH_REFUSAL_MAX - 1);
	assert_memory_equal(text, "?[2J??", 6);
	flood[6] = 0;
	assert_int_equal(wh_refusal_decode(flood, WH_FRAME_MAX, &error, text), 0);
	assert_string_equal(text, "?[");
	/* U+009B is the same escape, as a character and as a byte. */
	assert_int_equal(
		wh_refusal_decode((const uint8_t *)"\1\0\0\0a\302\2332J\2332J", 12, &error, text),
		0);
	assert_string_equal(text, "a?2J?2J");
	free(flood);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(encode__layout),
		cmocka_unit_test(encode__bounds_what_it_is_given),
		cmocka_unit_test(decode__round_trip),
		cmocka_unit_test(decode__cut_off),
		cmocka_unit_test(decode__versions),
		cmocka_unit_test(decode__wrong_bytes),
		cmocka_unit_test(decode__name_too_long),
		cmocka_unit_test(decode__name_not_to_be_shown),
		cmocka_unit_test(refusal__round_trip),
		cmocka_unit_test(refusal__hostile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
