/* SPDX-License-Identifier: Apache-2.0 */
/* The URLs of registries, names, and the records in them. */
#include "unit.h"

#include <errno.h>

#include <wherry/error.h>

#include "rendezvous/registry.h"

static struct wh_registry_url url;

static void url__every_form(void **state)
{
	(void)state;
	assert_int_equal(wh_registry_url_parse("http://127.0.0.1:7077", &url), 0);
	assert_string_equal(url.scheme, "http");
	assert_false(url.tls);
	assert_int_equal(url.count, 1);
	assert_string_equal(url.endpoint[0], "127.0.0.1:7077");
	assert_string_equal(url.path, "");
	assert_string_equal(url.user, "");

	assert_int_equal(wh_registry_url_parse("https://u@h:1/metadata?cacert=/a%20b.pem", &url),
			 0);
	assert_string_equal(url.scheme, "http");
	assert_true(url.tls);
	assert_string_equal(url.path, "metadata");
	assert_string_equal(url.cacert, "/a b.pem");
	assert_string_equal(url.user, "u");
	assert_string_equal(url.password, "");

	assert_int_equal(wh_registry_url_parse("etcds://me:p%40s%2Fs:w@[::1]:2379,b.c-d:0080,"
					       "1.2.3.4:65535/x/y?cert=c&key=k",
					       &url),
			 0);
	assert_string_equal(url.scheme, "etcd");
	assert_string_equal(url.password, "p@s/s:w");
	assert_int_equal(url.count, 3);
	assert_string_equal(url.endpoint[0], "[::1]:2379");
	assert_string_equal(url.endpoint[1], "b.c-d:80");
	assert_string_equal(url.endpoint[2], "1.2.3.4:65535");
	assert_string_equal(url.path, "x/y");
	assert_string_equal(url.cert, "c");

	assert_int_equal(wh_registry_url_parse("redis://:a@b@h:6379/2", &url), 0);
	assert_string_equal(url.password, "a@b");
	assert_string_equal(url.path, "2");
}

static void url__wrong(void **state)
{
	static const char *const rows[][2] = {
		{ "", "no URL" },
		{ "localhost:7077", "no URL" },
		{ "ftp://h:1", "ftp" },
		{ "://h:1", "no kind" },
		{ "httpx://h:1", "httpx" },
		{ "http://", "host is missing" },
		{ "http:///x", "host is missing" },
		{ "http://h", "no port" },
		{ "http://h:", "port" },
		{ "http://h:0", "65535" },
		{ "http://h:65536", "65535" },
		{ "http://h:99999999999999999999", "65535" },
		{ "http://h:1x", "65535" },
		{ "http://:1", "no host" },
		{ "http://::1:1", "brackets" },
		{ "http://[::1]", "no port" },
		{ "http://[::1:1", "no port" },
		{ "http://h[:1", "'['" },
		{ "http://h#:1", "'#'" },
		{ "http://h:1,", "host is missing" },
		{ "http://h:1,,h:2", "host is missing" },
		{ "etcd://a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9", "more than 8" },
		{ "http://h:1/a b", "space" },
		{ "http://h:1/a\xc3\xa9", "ASCII" },
		{ "http://h:1/a%20", "path" },
		{ "https://h:1?ca=x", "ca" },
		{ "https://h:1?cacert", "cacert" },
		{ "https://h:1?cacert=", "cacert" },
		{ "https://h:1?cert=a", "together" },
		{ "http://h:1?cacert=a", "https" },
		{ "https://h:1?cacert=%zz", "cacert" },
		{ "https://h:1?cacert=%00", "cacert" },
		{ "https://h:1?cacert=a%2", "cacert" },
	};

	(void)state;
	url.count = 77;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(wh_registry_url_parse(rows[i][0], &url), -EINVAL);
		if (!strstr(wh_error_text(), rows[i][1]))
			fail_msg("%s: %s", rows[i][0], wh_error_text());
	}
	assert_int_equal(url.count, 77);
}

/* Whatever is wrong with the URL, what is before the @ is not told. */
static void url__secrets_are_not_told(void **state)
{
	static const char *const rows[] = {
		"redis://:secret@",
		"redis://secret:secret@h",
		"ftp://secret:secret@h:1",
		"secret:secret@h:1",
		"http://u:se%zzcret@h:1",
		"http://u:secret@h:1/ ",
		"http://u:secret/secret@h:1",
		"http://u:secret@secret@h",
		"http://u:secret@[::1:1",
		"http://u:secret@h/secret@h:1",
		"u:secret@h://h:1",
		"secret:secret@http://h:1",
		"http://u:secret?secret@h:1",
		"etcd://u:secret@h:1,h",
		"http://u:secret@h:1?key=x",
		/* The host is forgotten, and the @ with it. */
		"redis://:secret",
		"http://u:secret",
		"u:secret",
		":secret",
		"redis://:secret:1",
		"http://u:secret:1",
		"http://u:1secret",
		"http://u:secret/1",
		"http://u:secret?1",
		"http://u:1,secret",
		"http://u:1,2secret:3x",
		"http://u:1,secret:x",
		"http://u:[secret",
		"http://[secret",
		"http://[::1]:secret",
		"http://u:#secret",
		"http://u:se:secret",
		"http://u:secret,h:1",
		"etcd://h:1,u:secret",
		"u:secret,h:1",
		"http://u:secret://h",
		"http://:secret/1",
		"http://u:1,:secret",
		"http://u:1,[secret]",
		"http://u:1/secret!secret",
	};
	static const char *const whole[] = {
		"http://h:1",
		"http://h",
		"http://127.0.0.1:7077/metadata",
		"127.0.0.1:7077",
		"p2p",
		"",
		"etcds://[::1]:2379,b:80,1.2.3.4:65535/x?cacert=/a.pem",
	};
	char shown[200];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(wh_registry_url_parse(rows[i], &url), -EINVAL);
		if (strstr(wh_error_text(), "secret"))
			fail_msg("%s: %s", rows[i], wh_error_text());
		wh_registry_url_show(rows[i], shown, sizeof(shown));
		if (strstr(shown, "secret"))
			fail_msg("%s is shown as %s", rows[i], shown);
	}
	wh_registry_url_show("redis://:a@h:1/2", shown, sizeof(shown));
	assert_string_equal(shown, "redis://***@h:1/2");
	for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
		wh_registry_url_show(whole[i], shown, sizeof(shown));
		assert_string_equal(shown, whole[i]);
	}
	wh_registry_url_show("http://u:sesame", shown, sizeof(shown));
	assert_string_equal(shown, "http://u***");
}

static void url__too_long(void **state)
{
	char text[WH_REGISTRY_URL_MAX + 8] = "http://h:1/";
	char user[128] = "http://";

	(void)state;
	memset(text + strlen(text), 'a', WH_REGISTRY_URL_MAX - strlen(text));
	assert_int_equal(wh_registry_url_parse(text, &url), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "1023"));
	text[200] = '\0';
	assert_int_equal(wh_registry_url_parse(text, &url), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "path has more"));
	memset(user + 7, 'u', 64);
	strcpy(user + 71, "@h:1");
	assert_int_equal(wh_registry_url_parse(user, &url), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "63 bytes"));
}

static void name__valid(void **state)
{
	char longest[80];

	(void)state;
	memset(longest, 'n', sizeof(longest));
	longest[63] = '\0';
	assert_true(wh_registry_name_valid("node7"));
	assert_true(wh_registry_name_valid("a.B_c-9"));
	assert_true(wh_registry_name_valid("vm.4711"));
	assert_true(wh_registry_name_valid(longest));
	longest[63] = 'n';
	longest[64] = '\0';
	assert_false(wh_registry_name_valid(longest));
	assert_false(wh_registry_name_valid(""));
	assert_false(wh_registry_name_valid("10.0.0.1"));
	assert_false(wh_registry_name_valid("a b"));
	assert_false(wh_registry_name_valid("a/b"));
	assert_false(wh_registry_name_valid("h:1"));
	assert_false(wh_registry_name_valid("\xc3\xa9"));
}

static int parse(const char *json, struct wh_registry_record *record)
{
	return wh_registry_record_parse(json, strlen(json), NULL, record);
}

static void record__there_and_back(void **state)
{
	const struct wh_registry_record record = {
		.name = "node7",
		.address = "[fe80::1%eth0]:40123",
		.epoch = 0xfedcba9876543210,
		.lease = 3600000,
		.beat = 42,
		.process = { 0x0123456789abcdef, INT32_MAX, INT64_MAX },
	};
	struct wh_registry_record got;
	char json[WH_REGISTRY_RECORD_MAX];

	(void)state;
	assert_in_range(wh_registry_record_format(&record, json), 1, sizeof(json) - 1);
	assert_int_equal(parse(json, &got), 0);
	assert_string_equal(got.name, record.name);
	assert_string_equal(got.address, record.address);
	assert_true(got.epoch == record.epoch);
	assert_int_equal(got.lease, record.lease);
	assert_int_equal(got.beat, record.beat);
	assert_true(got.process.space == record.process.space);
	assert_int_equal(got.process.pid, record.process.pid);
	assert_int_equal(got.process.start, record.process.start);
}

#define RECORD(schema, name, epoch, address, lease)                                                \
	"{\"schema\": " schema ", \"name\": " name ", \"epoch\": " epoch ", \"address\": " address \
	", \"lease_ms\": " lease ", \"more\": []}"
#define PROCESS(space, pid, start)                                                                 \
	RECORD("1", "\"n\"", EPOCH, "\"h:1\"",                                                     \
	       "1, \"process\": {\"space\": \"" space "\", \"pid\": " pid ", \"start\": " start    \
	       "}")
#define EPOCH "\"0123456789abcdef\""

static void record__wrong(void **state)
{
	static const char *const rows[][2] = {
		{ "", "no JSON" },
		{ "{", "no JSON" },
		{ "[]", "not an engine's" },
		{ "{}", "schema" },
		{ "{\"schema\": 1, \"schema\": 1}", "no JSON" },
		{ RECORD("2", "\"n\"", EPOCH, "\"h:1\"", "1"), "schema" },
		{ RECORD("\"1\"", "\"n\"", EPOCH, "\"h:1\"", "1"), "not an engine's" },
		{ RECORD("1", "\"\"", EPOCH, "\"h:1\"", "1"), "name" },
		{ RECORD("1", "7", EPOCH, "\"h:1\"", "1"), "not an engine's" },
		{ RECORD("1", "\"n n\"", EPOCH, "\"h:1\"", "1"), "name" },
		{ RECORD("1", "\"n\"", "\"0000000000000000\"", "\"h:1\"", "1"), "epoch" },
		{ RECORD("1", "\"n\"", "\"123\"", "\"h:1\"", "1"), "epoch" },
		{ RECORD("1", "\"n\"", "\"0123456789ABCDEF\"", "\"h:1\"", "1"), "epoch" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h\"", "1"), "address" },
		{ RECORD("1", "\"n\"", EPOCH, "\":1\"", "1"), "address" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h:\"", "1"), "address" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h :1\"", "1"), "address" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h\\n:1\"", "1"), "address" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h:1\"", "0"), "lease_ms" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h:1\"", "3600001"), "lease_ms" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h:1\"", "1.5"), "not an engine's" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h:1\"", "99999999999999999999"), "no JSON" },
		{ RECORD("1", "\"n\"", EPOCH, "\"h:1\"", "1, \"process\": 7"), "not an engine's" },
		{ PROCESS("123", "1", "1"), "process" },
		{ PROCESS("0123456789abcdef", "0", "1"), "process" },
		{ PROCESS("0123456789abcdef", "2147483648", "1"), "process" },
		{ PROCESS("0123456789abcdef", "1", "0"), "process" },
	};
	struct wh_registry_record record = { .epoch = 99 };
	char longest[WH_REGISTRY_RECORD_MAX + 2];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(parse(rows[i][0], &record), -EINVAL);
		if (!strstr(wh_error_text(), rows[i][1]))
			fail_msg("%s: %s", rows[i][0], wh_error_text());
	}
	memset(longest, ' ', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	assert_int_equal(parse(longest, &record), -EINVAL);
	assert_true(record.epoch == 99);
	assert_int_equal(parse(RECORD("1", "\"n\"", EPOCH, "\"h:1\"", "1"), &record), 0);
	assert_int_equal(record.beat, 0);
	/* An engine of an earlier version. */
	assert_int_equal(record.process.pid, 0);
	assert_int_equal(parse(PROCESS("0123456789abcdef", "4711", "5"), &record), 0);
	assert_int_equal(record.process.pid, 4711);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(url__every_form),
		cmocka_unit_test(url__wrong),
		cmocka_unit_test(url__secrets_are_not_told),
		cmocka_unit_test(url__too_long),
		cmocka_unit_test(name__valid),
		cmocka_unit_test(record__there_and_back),
		cmocka_unit_test(record__wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
