/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses: which prefix limits count by. Their text: rendezvous-p2p.c. */
#include "unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>

#include "util/address.h"

static struct sockaddr_storage address_of(const char *text)
{
	struct sockaddr_storage address = { .ss_family = strchr(text, ':') ? AF_INET6 : AF_INET };

	if (address.ss_family == AF_INET)
		assert_int_equal(
			inet_pton(AF_INET, text, &((struct sockaddr_in *)&address)->sin_addr), 1);
	else
		assert_int_equal(
			inet_pton(AF_INET6, text, &((struct sockaddr_in6 *)&address)->sin6_addr),
			1);
	return address;
}

static uint64_t prefix(const char *text)
{
	struct sockaddr_storage address = address_of(text);

	return wh_address_prefix(&address);
}

static void prefix__of_families(void **state)
{
	struct sockaddr_storage none = { .ss_family = AF_UNSPEC };

	(void)state;
	assert_int_equal(prefix("10.0.0.1"), prefix("::ffff:10.0.0.1"));
	assert_int_not_equal(prefix("10.0.0.1"), prefix("10.0.0.2"));
	assert_int_equal(prefix("2001:db8:1:2::1"), prefix("2001:db8:1:2:ffff::9"));
	assert_int_not_equal(prefix("2001:db8:1:2::1"), prefix("2001:db8:1:3::1"));
	assert_int_equal(wh_address_prefix(&none), UINT64_MAX);
}

static void networks__valid(void **state)
{
	static const char *const good[] = {
		"",     "10.0.0.0/8",          "10.0.0.1",          "0.0.0.0/0", "fd00::/8", "::1",
		"::/0", "10.0.0.0/8,fd00::/8", "::1/128,1.2.3.4/32"
	};
	static const char *const bad[] = {
		",",           "10.0.0.0/",    "10.0.0.0/33", "10.0.0/8",
		"10.0.0.1,",   "1.2.3.4,,::1", "node1",       "fd00::/129",
		"10.0.0.0/8x", "10.0.0.0/-1",  " 10.0.0.1",   "1.2.3.4/18446744073709551615"
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_true(wh_networks_are_valid(good[i]));
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(wh_networks_are_valid(bad[i]));
}

static bool have(const char *networks, const char *text)
{
	struct sockaddr_storage address = address_of(text);

	return wh_networks_have(networks, &address);
}

static void networks__have(void **state)
{
	struct sockaddr_storage none = { .ss_family = AF_UNSPEC };

	(void)state;
	assert_false(have("", "10.0.0.1"));
	assert_true(have("10.0.0.0/8", "10.255.0.1"));
	assert_true(have("10.0.0.0/8", "::ffff:10.255.0.1"));
	assert_false(have("10.0.0.0/8", "11.0.0.1"));
	assert_true(have("10.0.0.128/25", "10.0.0.200"));
	assert_false(have("10.0.0.128/25", "10.0.0.100"));
	assert_true(have("1.2.3.4,10.0.0.1", "10.0.0.1"));
	assert_false(have("1.2.3.4,10.0.0.1", "10.0.0.2"));
	assert_true(have("0.0.0.0/0", "10.0.0.1"));
	assert_false(have("0.0.0.0/0", "fd00::1"));
	assert_true(have("fd00::/9", "fd7f::1"));
	assert_false(have("fd00::/9", "fd80::1"));
	assert_true(have("1.2.3.4,::/0", "fd80::1"));
	assert_false(wh_networks_have("10.0.0.0/8,fd00::/8", &none));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prefix__of_families),
		cmocka_unit_test(networks__valid),
		cmocka_unit_test(networks__have),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
