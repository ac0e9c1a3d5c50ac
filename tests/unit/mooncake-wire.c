/* SPDX-License-Identifier: Apache-2.0 */
/* What Mooncake's engines send. The good ones are as version 0.3.13 of them sent it over loopback.
 */
#include "unit.h"

#include <errno.h>

#include <wherry/error.h>

#include "compat/mooncake/wire.h"

/* The answer to a question for metadata: length, type, JSON. */
static const char recorded[] = "\x03\x01\0\0\0\0\0\0\x01{\"buffers\":[{\"addr\":139969968455696,"
			       "\"length\":1048576,\"name\":"
			       "\"127.0.0.1:15375\"}],\"name\":\"127.0.0.1:15375\",\"protocol\":"
			       "\"tcp\",\"rdma_server_name\":\"\","
			       "\"tcp_data_host\":\"127.0.0.1\",\"tcp_data_port\":15476,\"tcp_"
			       "proto_version\":2,\"timestamp\":"
			       "\"2026-11-21 11:49:26.507286\"}\n";

static int parse(const char *json, struct wh_mooncake_segment *out)
{
	size_t length = strlen(json);
	uint8_t *copy = exact_copy(json, length);
	int error = wh_mooncake_segment_parse((const char *)copy, length, out);

	free(copy);
	return error;
}

static void segment__recorded(void **state)
{
	struct wh_mooncake_segment segment, again;
	uint64_t length;
	char *text;

	(void)state;
	assert_int_equal(wh_mooncake_frame_length((const unsigned char *)recorded, &length), 0);
	assert_int_equal(length, sizeof(recorded) - 1 - WH_MOONCAKE_FRAME_HEAD);
	assert_int_equal(recorded[8], WH_MOONCAKE_METADATA);
	assert_int_equal(parse(recorded + 9, &segment), 0);
	assert_string_equal(segment.name, "127.0.0.1:15375");
	assert_string_equal(segment.host, "127.0.0.1");
	assert_int_equal(segment.port, 15476);
	assert_int_equal(segment.version, 2);
	assert_int_equal(segment.count, 1);
	assert_true(segment.buffers[0].address == 139969968455696);
	assert_true(segment.buffers[0].length == 1 << 20);
	assert_string_equal(segment.buffers[0].name, "127.0.0.1:15375");

	text = wh_mooncake_segment_format(&segment);
	assert_non_null(text);
	assert_int_equal(parse(text, &again), 0);
	assert_string_equal(again.name, segment.name);
	assert_int_equal(again.port, segment.port);
	assert_memory_equal(again.buffers, segment.buffers, sizeof(*again.buffers));
	free(text);
	wh_mooncake_segment_free(&segment);
	wh_mooncake_segment_free(&again);
}

#define BUFFERS "\"buffers\":[{\"addr\":4096,\"length\":1,\"name\":\"cpu:0\"}]"

static void segment__others(void **state)
{
	/* An older engine's, which says neither host nor version; with its NUL. */
	static const char old[] =
		"{\"name\":\"a\",\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[]}";
	struct wh_mooncake_segment segment;

	(void)state;
	assert_int_equal(wh_mooncake_segment_parse(old, sizeof(old), &segment), 0);
	assert_int_equal(segment.version, 1);
	assert_string_equal(segment.host, "");
	assert_int_equal(segment.count, 0);
	wh_mooncake_segment_free(&segment);
	/* Several protocols: what is tcp's counts. */
	assert_int_equal(parse("{\"name\":\"a\",\"protocol\":[\"rdma\",\"tcp\"],\"tcp_data_port\":"
			       "7,\"buffers\":["
			       "{\"addr\":1,\"length\":1,\"name\":\"r\",\"protocol\":\"rdma\"},"
			       "{\"addr\":2,\"length\":3,\"name\":\"t\",\"protocol\":\"tcp\"},{}]}",
			       &segment),
			 0);
	assert_int_equal(segment.count, 1);
	assert_string_equal(segment.buffers[0].name, "t");
	wh_mooncake_segment_free(&segment);
	assert_int_equal(parse("{\"name\":\"a\",\"protocol\":\"rdma\"}", &segment),
			 -EPROTONOSUPPORT);
	assert_non_null(strstr(wh_error_text(), "rdma"));
	assert_int_equal(parse("{\"name\":\"a\",\"protocol\":[\"rdma\"]}", &segment),
			 -EPROTONOSUPPORT);
}

/* Addresses and lengths have 64 bits, each of which counts. */
static void segment__wide(void **state)
{
	struct wh_mooncake_segment segment, again;
	char *text;

	(void)state;
	assert_int_equal(
		parse("{\"name\":\"18446744073709551615 "
		      "\\\"9223372036854775809\",\"protocol\":\"tcp\","
		      "\"timestamp\":[9223372036854775808,-1,0.5],\"tcp_data_port\":7,\"buffers\":["
		      "{\"addr\":18446744073709551615,\"length\":1,\"name\":\"top\"},"
		      "{\"addr\":9223372036854775809,\"length\":9223372036854775807,\"name\":\"9\"}"
		      ","
		      "{\"addr\":9223372036854775807,\"length\": 9223372036854775808 "
		      ",\"name\":\"8\"},"
		      "{\"addr\":1,\"length\":18446744073709551615,\"name\":\"all\"}]}",
		      &segment),
		0);
	assert_string_equal(segment.name, "18446744073709551615 \"9223372036854775809");
	assert_int_equal(segment.count, 4);
	assert_true(segment.buffers[0].address == UINT64_MAX && segment.buffers[0].length == 1);
	assert_true(segment.buffers[1].address == UINT64_C(9223372036854775809));
	assert_true(segment.buffers[2].length == UINT64_C(9223372036854775808));
	assert_true(segment.buffers[3].length == UINT64_MAX);
	text = wh_mooncake_segment_format(&segment);
	assert_non_null(text);
	assert_non_null(strstr(text, "\"addr\":18446744073709551615,"));
	assert_int_equal(parse(text, &again), 0);
	assert_memory_equal(again.buffers, segment.buffers, 4 * sizeof(*again.buffers));
	free(text);
	wh_mooncake_segment_free(&again);
	wh_mooncake_segment_free(&segment);
}

static void segment__wrong(void **state)
{
	static const char *const rows[][2] = {
		{ "", "invalid JSON" },
		{ "[]", "not an object" },
		{ "{}x", "invalid JSON" },
		{ "{\"a\":1,\"a\":2}", "invalid JSON" },
		{ "{}", "protocol" },
		{ "{\"protocol\":1}", "protocol" },
		{ "{\"protocol\":\"tcp\",\"name\":1}", "name" },
		{ "{\"protocol\":\"tcp\",\"name\":\"a\\u0000b\"}", "invalid JSON" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_host\":{}}", "tcp_data_host" },
		{ "{\"protocol\":\"tcp\"," BUFFERS "}", "tcp_data_port" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":65536," BUFFERS "}", "tcp_data_port" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":-1," BUFFERS "}", "tcp_data_port" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":\"1\"," BUFFERS "}", "tcp_data_port" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"tcp_proto_version\":0," BUFFERS "}",
		  "version" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1}", "buffers" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":{}}", "buffers" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[1]}", "addr" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":0,\"length\":1,"
		  "\"name\":\"\"}]}",
		  "addr" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":1.5,\"length\":"
		  "1,\"name\":\"\"}]}",
		  "addr" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":"
		  "18446744073709551616,"
		  "\"length\":1,\"name\":\"\"}]}",
		  "too big" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":"
		  "18446744073709551615,"
		  "\"length\":2,\"name\":\"\"}]}",
		  "exceeds 64 bits" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":-"
		  "9223372036854775809,"
		  "\"length\":2,\"name\":\"\"}]}",
		  "too big" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":18446744073709551615,\"buffers\":[]}",
		  "tcp_data_port" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":"
		  "\"9223372036854775808\","
		  "\"length\":18446744073709551615,\"name\":\"\"}]}",
		  "addr" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":1,\"length\":0,"
		  "\"name\":\"\"}]}",
		  "length" },
		{ "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":1,\"length\":1}"
		  "]}",
		  "name" },
	};
	struct wh_mooncake_segment segment = { .port = 99 };

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(parse(rows[i][0], &segment), -EPROTO);
		if (!strstr(wh_error_text(), rows[i][1]))
			fail_msg("%s: %s", rows[i][0], wh_error_text());
	}
	assert_int_equal(segment.port, 99);
}

static void segment__find(void **state)
{
	struct wh_mooncake_buffer buffers[] = { { .address = 100, .length = 10 },
						{ .address = UINT64_MAX - 9, .length = 9 } };
	struct wh_mooncake_segment segment = { .buffers = buffers, .count = 2 };

	(void)state;
	assert_ptr_equal(wh_mooncake_segment_find(&segment, 100, 10), &buffers[0]);
	assert_ptr_equal(wh_mooncake_segment_find(&segment, 109, 1), &buffers[0]);
	assert_null(wh_mooncake_segment_find(&segment, 109, 2));
	assert_null(wh_mooncake_segment_find(&segment, 110, 1));
	assert_null(wh_mooncake_segment_find(&segment, 99, 1));
	assert_null(wh_mooncake_segment_find(&segment, 105, UINT64_MAX));
	assert_ptr_equal(wh_mooncake_segment_find(&segment, UINT64_MAX - 9, 9), &buffers[1]);
	assert_null(wh_mooncake_segment_find(&segment, UINT64_MAX - 8, 9));
}

/* A write of 300,000 bytes at 0x700000000000 over version 2, as it came. */
static void request__recorded(void **state)
{
	static const unsigned char header[WH_MOONCAKE_HEADER] = {
		0xe0, 0x93, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x70, 0, 0, 0x81,
	};
	unsigned char again[WH_MOONCAKE_HEADER];
	struct wh_mooncake_request request;

	(void)state;
	assert_int_equal(wh_mooncake_request_parse(header, &request), 0);
	assert_true(request.length == 300000 && request.address == 0x700000000000);
	assert_true(request.write && request.status);
	wh_mooncake_request_format(&request, again);
	assert_memory_equal(header, again, sizeof(again));
}

static void request__operations(void **state)
{
	unsigned char header[WH_MOONCAKE_HEADER] = { 1 };
	struct wh_mooncake_request request;

	(void)state;
	for (unsigned op = 0; op < 256; op++) {
		bool good = (op & 0x7f) <= 1;

		header[16] = (unsigned char)op;
		assert_int_equal(wh_mooncake_request_parse(header, &request), good ? 0 : -EPROTO);
		assert_int_equal(request.status, op >= 128);
		if (good)
			assert_int_equal(request.write, op & 1);
	}
}

static void status__recorded(void **state)
{
	/* What a write was answered with, and one outside of what is published. */
	static const unsigned char good[] = "\0\0\0\0VTCM", refused[] = "\1\0\0\0VTCM";
	unsigned char again[WH_MOONCAKE_STATUS];

	(void)state;
	assert_int_equal(wh_mooncake_status_parse(good), WH_MOONCAKE_OK);
	assert_int_equal(wh_mooncake_status_parse(refused), WH_MOONCAKE_REJECTED);
	wh_mooncake_status_format(WH_MOONCAKE_REJECTED, again);
	assert_memory_equal(again, refused, sizeof(again));
	assert_int_equal(wh_mooncake_status_parse((const unsigned char *)"\0\0\0\0VTCN"), -EPROTO);
	assert_int_equal(wh_mooncake_status_parse((const unsigned char *)"\0\0\0\xffVTCM"),
			 -EPROTO);
	assert_int_equal(wh_mooncake_status_parse((const unsigned char *)"12345678"), -EPROTO);
}

static void frame__lengths(void **state)
{
	static const struct {
		uint64_t length;
		int error;
	} rows[] = {
		{ 0, -EPROTO },          { 1, 0 }, { 1 << 20, 0 }, { (1 << 20) + 1, -EPROTO },
		{ UINT64_MAX, -EPROTO },
	};
	unsigned char head[WH_MOONCAKE_FRAME_HEAD];
	uint64_t length;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		wh_mooncake_frame_head(head, rows[i].length);
		assert_int_equal(wh_mooncake_frame_length(head, &length), rows[i].error);
		if (!rows[i].error)
			assert_true(length == rows[i].length);
	}
}

static void notify__parse(void **state)
{
	static const char good[] = "{\"name\":\"x\",\"notify_msg\":\"y\"}\n";
	static const char *const wrong[] = { "{}", "{\"name\":\"x\"}",
					     "{\"name\":1,\"notify_msg\":\"y\"}", "y" };
	struct wh_mooncake_notify notify;

	(void)state;
	assert_int_equal(wh_mooncake_notify_parse(good, strlen(good), &notify), 0);
	assert_string_equal(notify.name, "x");
	assert_string_equal(notify.message, "y");
	wh_mooncake_notify_free(&notify);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(wh_mooncake_notify_parse(wrong[i], strlen(wrong[i]), &notify),
				 -EPROTO);
}

static void endpoint__json(void **state)
{
	static const char good[] = "{\"ip_or_host_name\":\"10.0.0.7\",\"rpc_port\":15375}";
	static const char *const wrong[] = {
		"{}",
		"{\"ip_or_host_name\":\"\",\"rpc_port\":1}",
		"{\"ip_or_host_name\":\"h\"}",
		"{\"ip_or_host_name\":\"h\",\"rpc_port\":0}",
		"{\"ip_or_host_name\":\"h\",\"rpc_port\":65536}",
	};
	struct wh_mooncake_endpoint endpoint;
	char *text;

	(void)state;
	assert_int_equal(wh_mooncake_endpoint_parse(good, strlen(good), &endpoint), 0);
	assert_string_equal(endpoint.host, "10.0.0.7");
	assert_int_equal(endpoint.port, 15375);
	text = wh_mooncake_endpoint_format(&endpoint);
	assert_string_equal(text, good);
	free(text);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(wh_mooncake_endpoint_parse(wrong[i], strlen(wrong[i]), &endpoint),
				 -EPROTO);
}

static void endpoint__text(void **state)
{
	static const char *const rows[][3] = {
		{ "h:1", "h", "h:1" },
		{ "10.0.0.7:65535", "10.0.0.7", "10.0.0.7:65535" },
		{ "[::1]:7", "::1", "[::1]:7" },
		{ "::1:7", "::1", "[::1]:7" },
	};
	static const char *const wrong[] = { "",        ":1",    "h",        "h:",       "h:0",
					     "h:65536", "h:1x",  "h:111111", "[]:1",     "[::1:7",
					     "h]:1",    "a b:1", "h/x:1",    "[[::1]]:1" };
	struct wh_mooncake_endpoint endpoint;
	char text[WH_MOONCAKE_NAME_MAX + 10];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(wh_mooncake_endpoint_read(rows[i][0], &endpoint), 0);
		assert_string_equal(endpoint.host, rows[i][1]);
		wh_mooncake_endpoint_text(&endpoint, text, sizeof(text));
		assert_string_equal(text, rows[i][2]);
	}
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(wh_mooncake_endpoint_read(wrong[i], &endpoint), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(segment__recorded),   cmocka_unit_test(segment__others),
		cmocka_unit_test(segment__wide),       cmocka_unit_test(segment__wrong),
		cmocka_unit_test(segment__find),       cmocka_unit_test(request__recorded),
		cmocka_unit_test(request__operations), cmocka_unit_test(status__recorded),
		cmocka_unit_test(frame__lengths),      cmocka_unit_test(notify__parse),
		cmocka_unit_test(endpoint__json),      cmocka_unit_test(endpoint__text),
	};

	return cmocka_run_group_tests_name("mooncake", tests, NULL, NULL);
}
