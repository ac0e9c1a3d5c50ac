/* SPDX-License-Identifier: Apache-2.0 */
/* Where wherry serve --weights answers a message. */
#include "../../tools/serve/reply.c"

#include "unit.h"

#include <arpa/inet.h>

static bool is_address(const char *url)
{
	struct sockaddr_storage address;

	return reply_address(url, &address);
}

static void address__of_url(void **state)
{
	(void)state;
	assert_true(is_address("wherry://10.0.0.1:7000"));
	assert_true(is_address("wherry://[fd00::1]:7000"));
	assert_false(is_address("wherry://node1:7000"));
	assert_false(is_address("wherry://node1"));
	assert_false(is_address("wherry://10.0.0.1"));
	assert_false(is_address("http://10.0.0.1:7000"));
	assert_false(is_address("10.0.0.1:7000"));
	assert_false(is_address("wherry://:7000"));
	assert_false(is_address("wherry://"));
	assert_false(is_address(""));
}

/* Does a message from `source` get an answer at `url`? */
static bool is_back(const char *url, const char *source)
{
	struct sockaddr_storage address, from;
	char text[96];

	snprintf(text, sizeof(text), "wherry://%s:1", source);
	assert_true(reply_address(url, &address));
	assert_true(reply_address(text, &from));
	return reply_is_back(&address, wh_address_prefix(&from));
}

static void back__to_the_source(void **state)
{
	(void)state;
	assert_true(is_back("wherry://240.0.0.1:7000", "240.0.0.1"));
	assert_false(is_back("wherry://240.0.0.2:7000", "240.0.0.1"));
	assert_false(is_back("wherry://127.0.0.1:7000", "240.0.0.1"));
	assert_false(is_back("wherry://[::1]:7000", "240.0.0.1"));
	assert_false(is_back("wherry://0.0.0.0:7000", "240.0.0.1"));
	assert_true(is_back("wherry://[100::1]:7000", "[100::2]"));
	assert_false(is_back("wherry://[100:0:0:1::1]:7000", "[100::2]"));
	assert_false(is_back("wherry://[::1]:7000", "[100::2]"));
	assert_false(is_back("wherry://127.0.0.1:7000", "[100::2]"));
	assert_false(is_back("wherry://240.0.0.1:7000", "[100::2]"));
	assert_true(is_back("wherry://[::ffff:240.0.0.1]:7000", "240.0.0.1"));
}

/* This host reaches itself by any of its addresses. */
static void back__on_this_host(void **state)
{
	struct ifaddrs *all, *at;

	(void)state;
	assert_true(is_back("wherry://127.0.0.1:7000", "127.0.0.1"));
	assert_true(is_back("wherry://127.0.0.2:7000", "127.0.0.1"));
	assert_true(is_back("wherry://[::1]:7000", "[::1]"));
	assert_true(is_back("wherry://[::1]:7000", "127.0.0.1"));
	assert_true(is_back("wherry://127.0.0.1:7000", "[::1]"));
	assert_false(is_back("wherry://240.0.0.1:7000", "127.0.0.1"));
	assert_false(is_back("wherry://[100::1]:7000", "[::1]"));
	assert_int_equal(getifaddrs(&all), 0);
	for (at = all; at; at = at->ifa_next) {
		char host[INET_ADDRSTRLEN], url[64];

		if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET)
			continue;
		inet_ntop(AF_INET, &((struct sockaddr_in *)at->ifa_addr)->sin_addr, host,
			  sizeof(host));
		snprintf(url, sizeof(url), "wherry://%s:7000", host);
		assert_true(is_back(url, "127.0.0.1"));
		assert_true(is_back("wherry://127.0.0.1:7000", host));
	}
	freeifaddrs(all);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(address__of_url),
	cmocka_unit_test(back__to_the_source),
	cmocka_unit_test(back__on_this_host),
};

int main(void)
{
	return cmocka_run_group_tests_name("tools-reply", tests, NULL, NULL);
}
