/* SPDX-License-Identifier: Apache-2.0 */
/* What etcd answers, as the servers of 3.4 wrote it; and Base64. */
#include "unit.h"

#include <errno.h>

#include <wherry/error.h>

#include "rendezvous/etcd.h"

#define HEADER                                                                                     \
	"{\"header\":{\"cluster_id\":\"324952591200643719\",\"member_id\":"                        \
	"\"3319814642761637952\","                                                                 \
	"\"revision\":\"42\",\"raft_term\":\"2\"}"
#define RECORD                                                                                     \
	"{\"schema\": 1, \"name\": \"node7\", \"epoch\": \"0123456789abcdef\", \"address\": "      \
	"\"10.0.0.7:7000\", \"lease_ms\": 10000}"

static struct wh_etcd_answer answer;

static int parse(const char *json)
{
	return wh_etcd_parse(json, strlen(json), &answer);
}

static void base64__there_and_back(void **state)
{
	/* Of RFC 4648. */
	static const char *const rows[][2] = {
		{ "", "" },
		{ "f", "Zg==" },
		{ "fo", "Zm8=" },
		{ "foo", "Zm9v" },
		{ "foob", "Zm9vYg==" },
		{ "fooba", "Zm9vYmE=" },
		{ "foobar", "Zm9vYmFy" },
		{ "\xff\xfe\xfd", "//79" },
	};
	char text[16], back[16];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		size_t length = strlen(rows[i][0]);

		wh_base64_encode(rows[i][0], length, text);
		assert_string_equal(text, rows[i][1]);
		assert_int_equal(wh_base64_decode(text, back, sizeof(back)), length);
		assert_memory_equal(back, rows[i][0], length);
		assert_int_equal(wh_base64_decode(text, back, length), length);
	}
}

static void base64__wrong(void **state)
{
	static const char *const rows[] = { "Z",    "Zg",   "Zg=",    "Zg===", "====",
					    "Z===", "Z=g=", "Zm9v\n", "Zm9 ",  "Zm-_" };
	char back[16];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(wh_base64_decode(rows[i], back, sizeof(back)), -1);
	assert_int_equal(wh_base64_decode("Zm9vYmFy", back, 5), -1);
}

static void answer__leases(void **state)
{
	(void)state;
	assert_int_equal(parse(HEADER ",\"ID\":\"2324035516516530949\",\"TTL\":\"2\"}"), 0);
	assert_true(answer.lease == 2324035516516530949);
	assert_int_equal(answer.ttl, 2);
	assert_int_equal(answer.revision, 42);
	assert_string_equal(answer.error.text, "");
	/* Kept alive; and one that has ended, of which the time is left out. */
	assert_int_equal(parse("{\"result\":" HEADER ",\"ID\":\"123\",\"TTL\":\"10\"}}\n"), 0);
	assert_int_equal(answer.ttl, 10);
	assert_int_equal(parse("{\"result\":" HEADER ",\"ID\":\"123\"}}\n"), 0);
	assert_int_equal(answer.lease, 123);
	assert_int_equal(answer.ttl, 0);
	assert_int_equal(parse("{\"error\":\"etcdserver: requested lease not found\",\"message\":"
			       "\"etcdserver: requested lease not found\",\"code\":5}"),
			 0);
	assert_int_equal(answer.error.code, 5);
	assert_non_null(strstr(answer.error.text, "not found"));
}

static void wrap(const char *format, const char *value, char *out, size_t size)
{
	char text[WH_BASE64_SIZE(2048)];

	wh_base64_encode(value, strlen(value), text);
	snprintf(out, size, format, text);
}

#define KVS                                                                                        \
	"\"kvs\":[{\"key\":\"Zm9v\",\"create_revision\":\"40\",\"mod_revision\":\"41\","           \
	"\"version\":"                                                                             \
	"\"1\",\"value\":\"%s\",\"lease\":\"77\"}],\"count\":\"1\""

static void answer__records(void **state)
{
	char json[4096];

	(void)state;
	assert_int_equal(parse(HEADER "}"), 0);
	assert_false(answer.has_record);
	wrap(HEADER "," KVS "}", RECORD, json, sizeof(json));
	assert_int_equal(parse(json), 0);
	assert_true(answer.has_record);
	assert_string_equal(answer.record.name, "node7");
	assert_int_equal(answer.record_lease, 77);
	assert_int_equal(answer.record_revision, 41);
	wrap(HEADER ",\"responses\":[{\"response_range\":{\"header\":{}," KVS "}}]}", RECORD, json,
	     sizeof(json));
	assert_int_equal(parse(json), 0);
	assert_true(answer.has_record && !answer.succeeded);
	assert_int_equal(parse(HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{}}]}"),
			 0);
	assert_true(answer.succeeded && !answer.has_record);
}

static void answer__wrong(void **state)
{
	static const char *const rows[] = { "",
					    "{",
					    "[]",
					    "\"x\"",
					    "{}{}",
					    "{\"kvs\":{}}",
					    "{\"kvs\":[{\"value\":\"Zg\"}]}",
					    "{\"kvs\":[{}]}" };
	char json[4096], longest[1100];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(parse(rows[i]), -EPROTO);
		assert_non_null(strstr(wh_error_text(), "registry: "));
	}
	wrap(HEADER "," KVS "}", "{\"schema\": 2}", json, sizeof(json));
	assert_int_equal(parse(json), -EPROTO);
	memset(longest, ' ', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	wrap(HEADER "," KVS "}", longest, json, sizeof(json));
	assert_int_equal(parse(json), -EPROTO);
	/* Numbers that are none are not taken for a lease. */
	assert_int_equal(parse("{\"ID\":\"99999999999999999999\",\"TTL\":\"1x\"}"), 0);
	assert_int_equal(answer.lease, -1);
	assert_int_equal(answer.ttl, -1);
}

static int watched(const char *json)
{
	return wh_etcd_parse_watch(json, strlen(json));
}

static void watch__lines(void **state)
{
	(void)state;
	assert_int_equal(watched("{\"result\":" HEADER ",\"created\":true}}"), 0);
	assert_int_equal(watched("{\"result\":" HEADER ",\"watch_id\":\"1\",\"events\":[{\"type\":"
				 "\"DELETE\",\"kv\":{\"key\":\"YmFy\"}}]}}"),
			 1);
	assert_int_equal(
		watched("{\"result\":" HEADER ",\"canceled\":true,\"compact_revision\":\"7\"}}"),
		1);
	assert_int_equal(watched("{\"error\":{\"grpc_code\":14,\"message\":\"x\"}}"), 1);
	assert_int_equal(watched("{}"), -EPROTO);
	assert_int_equal(watched("404 page not found"), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(base64__there_and_back), cmocka_unit_test(base64__wrong),
		cmocka_unit_test(answer__leases),         cmocka_unit_test(answer__records),
		cmocka_unit_test(answer__wrong),          cmocka_unit_test(watch__lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
