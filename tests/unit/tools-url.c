/* SPDX-License-Identifier: Apache-2.0 */
#include "../../tools/command.c"
#include "../../tools/progress.c"
#include "../../tools/url.c"

#include <setjmp.h>

#include <cmocka.h>

static void parse__good(void **state)
{
	static const struct {
		const char *text, *engine, *region;
		uint64_t offset;
	} rows[] = {
		{ "wherry://127.0.0.1:7000", "wherry://127.0.0.1:7000", "", 0 },
		{ "wherry://127.0.0.1:7000/", "wherry://127.0.0.1:7000", "", 0 },
		{ "wherry://node7:1/host", "wherry://node7:1", "host", 0 },
		{ "wherry://node7.lab:65535/a.B_c-9", "wherry://node7.lab:65535", "a.B_c-9", 0 },
		{ "wherry://[::1]:7000/host+4096", "wherry://[::1]:7000", "host", 4096 },
		{ "wherry://[fe80::1%eth0]:7000/x+2MiB", "wherry://[fe80::1%eth0]:7000", "x",
		  2 << 20 },
		{ "wherry://h:80/x+0", "wherry://h:80", "x", 0 },
		{ "wherry://node7", "wherry://node7", "", 0 },
		{ "wherry://node-7.lab_2/cache+1MiB", "wherry://node-7.lab_2", "cache", 1 << 20 },
	};
	struct url url;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_null(url_parse(rows[i].text, &url));
		assert_string_equal(url.engine, rows[i].engine);
		assert_string_equal(url.region, rows[i].region);
		assert_int_equal(url.offset, rows[i].offset);
	}
}

static void parse__wrong(void **state)
{
	static const char *const rows[][2] = {
		{ "", "no address" },
		{ "/tmp/file", "no address" },
		{ "http://h:1/x", "no address" },
		{ "wherry:/h:1/x", "no address" },
		{ "wherry://", "no host" },
		{ "wherry://:7000", "no host" },
		{ "wherry:///host", "no host" },
		{ "wherry://[]:7000", "no host" },
		{ "wherry://[::1:7000", "no ']'" },
		{ "wherry://[::1]", "no port" },
		{ "wherry://[::1]7000", "no port" },
		{ "wherry://a name/region", "no port" },
		{ "wherry://h@st", "no port" },
		{ "wherry://host:", "port" },
		{ "wherry://host:0", "port" },
		{ "wherry://host:65536", "port" },
		{ "wherry://host:999999", "port" },
		{ "wherry://host:7o", "port" },
		{ "wherry://host:-1", "port" },
		{ "wherry://::1:7000", "brackets" },
		{ "wherry://h:1/+5", "no region" },
		{ "wherry://h:1/a/b", "characters" },
		{ "wherry://h:1/a b", "characters" },
		{ "wherry://h:1/a+", "offset" },
		{ "wherry://h:1/a+5x", "offset" },
		{ "wherry://h:1/a+-5", "offset" },
		{ "wherry://h:1/a+99999999999999999999", "offset" },
		{ "wherry://h:1/0123456789012345678901234567890123456789012345678901234567890123",
		  "63 bytes" },
	};
	struct url url = { .region = "untouched" };

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *wrong = url_parse(rows[i][0], &url);

		if (!wrong || !strstr(wrong, rows[i][1]))
			fail_msg("%s: %s", rows[i][0], wrong ? wrong : "taken");
	}
	assert_string_equal(url.region, "untouched");
}

static void parse__long_host(void **state)
{
	char text[600] = "wherry://";
	struct url url;

	(void)state;
	memset(text + 9, 'h', 400);
	strcpy(text + 409, ":7000/x");
	assert_non_null(strstr(url_parse(text, &url), "too long"));
}

static void mooncake__good(void **state)
{
	static const struct {
		const char *text, *engine;
		uint64_t address;
	} rows[] = {
		{ "mooncake://10.0.0.7:12345/0x7f2a40000000", "10.0.0.7:12345", 0x7f2a40000000 },
		{ "mooncake://node7:1/139969968455696+4KiB", "node7:1", 139969968459792 },
		{ "mooncake://[::1]:7/0XfF+1", "[::1]:7", 0x100 },
		{ "mooncake://h:1", "h:1", 0 },
		{ "mooncake://h:1/", "h:1", 0 },
	};
	struct mooncake_url url;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_true(mooncake_url_is(rows[i].text));
		assert_null(mooncake_url_parse(rows[i].text, false, &url));
		assert_string_equal(url.engine, rows[i].engine);
		assert_true(url.address == rows[i].address);
	}
}

static void mooncake__wrong(void **state)
{
	static const char *const rows[][2] = {
		{ "mooncake://", "no engine" },
		{ "mooncake://h/1", "no engine" },
		{ "mooncake://h:0/1", "no engine" },
		{ "mooncake://h:1/0", "address" },
		{ "mooncake://h:1/0x", "address" },
		{ "mooncake://h:1/-1", "address" },
		{ "mooncake://h:1/0x10000000000000000", "address" },
		{ "mooncake://h:1/1x", "address" },
		{ "mooncake://h:1/1+", "offset" },
		{ "mooncake://h:1/1+1KB", "offset" },
		{ "mooncake://h:1/0xffffffffffffffff+1", "offset" },
	};
	struct mooncake_url url;

	(void)state;
	assert_false(mooncake_url_is("wherry://h:1/x"));
	assert_null(mooncake_url_parse("mooncake://node 7/16", true, &url));
	assert_string_equal(url.engine, "node 7");
	assert_non_null(mooncake_url_parse("mooncake:///16", true, &url));
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *wrong = mooncake_url_parse(rows[i][0], false, &url);

		assert_non_null(wrong);
		assert_non_null(strstr(wrong, rows[i][1]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parse__good),      cmocka_unit_test(parse__wrong),
		cmocka_unit_test(parse__long_host), cmocka_unit_test(mooncake__good),
		cmocka_unit_test(mooncake__wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
