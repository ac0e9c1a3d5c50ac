/* SPDX-License-Identifier: Apache-2.0 */
/* Connection info of NIXL's agents. What is refused is in tests/fuzz/corpus/nixl-info, too. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>

#include <wherry/wherry.h>

#include "compat/nixl/info.h"

static struct wh_engine *engine_open(const char *listen)
{
	struct wh_engine_options options = {
		.size = sizeof(options),
		.name = "alice",
		.listen = listen,
		.config = (const char *const[]){ "transports=tcp",
						 "key=00112233445566778899aabbccddeeff001122334455"
						 "66778899aabbccddeeff",
						 NULL }
	};
	struct wh_engine *engine;

	assert_int_equal(wh_engine_open(&options, &engine), 0);
	return engine;
}

static void info__is_read_as_it_was_written(void **state)
{
	struct wh_engine *engine = engine_open("127.0.0.1:0");
	struct wh_nixl_info info, read;
	char text[WH_NIXL_INFO_MAX], host[64];
	size_t length;

	(void)state;
	assert_int_equal(wh_nixl_info_of(engine, &info), 0);
	length = wh_nixl_info_encode(&info, text);
	assert_int_equal(length, strlen(text));
	assert_int_equal(wh_nixl_info_decode(text, length, &read), 0);
	assert_string_equal(read.name, "alice");
	assert_true(read.epoch == wh_engine_epoch(engine));
	wh_nixl_info_host(host);
	assert_string_equal(read.host, host);
	assert_int_equal(read.url_count, 1);
	assert_string_equal(read.url[0], wh_engine_url(engine));
	assert_int_equal(wh_engine_close(engine), 0);
}

/* An engine that listens on all addresses: others get addresses that they can reach, and loopback
 * comes last, with the same port. */
static void info__has_a_url_for_each_address(void **state)
{
	struct wh_engine *engine = engine_open("0.0.0.0:0");
	const char *port = strrchr(wh_engine_url(engine), ':');
	struct wh_nixl_info info;
	char loopback[64];

	(void)state;
	assert_int_equal(wh_nixl_info_of(engine, &info), 0);
	assert_in_range(info.url_count, 1, WH_NIXL_INFO_URLS);
	for (unsigned i = 0; i < info.url_count; i++) {
		assert_null(strstr(info.url[i], "0.0.0.0"));
		assert_string_equal(strrchr(info.url[i], ':'), port);
	}
	snprintf(loopback, sizeof(loopback), "wherry://127.0.0.1%s", port);
	assert_string_equal(info.url[info.url_count - 1], loopback);
	assert_int_equal(wh_engine_close(engine), 0);
}

static void info__of_an_engine_without_a_listener_has_no_url(void **state)
{
	struct wh_engine *engine = engine_open("none");
	struct wh_nixl_info info;
	char text[WH_NIXL_INFO_MAX];

	(void)state;
	assert_int_equal(wh_nixl_info_of(engine, &info), 0);
	assert_int_equal(wh_nixl_info_decode(text, wh_nixl_info_encode(&info, text), &info), 0);
	assert_int_equal(info.url_count, 0);
	assert_int_equal(wh_engine_close(engine), 0);
}

static void decode__tells_foreign_from_newer_from_damaged(void **state)
{
	static const char lines[] = "1\nname=a\nepoch=0000000000000001\nhost=h\n";
	char good[WH_NIXL_INFO_BEGIN + sizeof(lines)], text[sizeof(good)];
	struct wh_nixl_info info;

	(void)state;
	wh_nixl_info_begin(good);
	memcpy(good + WH_NIXL_INFO_BEGIN, lines, sizeof(lines));
	assert_int_equal(wh_nixl_info_decode(good, sizeof(good) - 1, &info), 0);
	assert_int_equal(wh_nixl_info_decode("", 0, &info), -EPROTO);
	memcpy(text, good, sizeof(good));
	text[0] = 0x27;
	assert_int_equal(wh_nixl_info_decode(text, sizeof(good) - 1, &info), -EPROTO);
	memcpy(text, good, sizeof(good));
	text[WH_NIXL_INFO_BEGIN] = '2';
	assert_int_equal(wh_nixl_info_decode(text, sizeof(good) - 1, &info), -EPROTONOSUPPORT);
	/* Every beginning of it lacks something. */
	for (size_t length = WH_NIXL_INFO_BEGIN + 2; length < sizeof(good) - 1; length++) {
		uint8_t *cut = exact_copy(good, length);

		assert_int_equal(wh_nixl_info_decode((char *)cut, length, &info), -EBADMSG);
		free(cut);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(info__is_read_as_it_was_written),
		cmocka_unit_test(info__has_a_url_for_each_address),
		cmocka_unit_test(info__of_an_engine_without_a_listener_has_no_url),
		cmocka_unit_test(decode__tells_foreign_from_newer_from_damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
