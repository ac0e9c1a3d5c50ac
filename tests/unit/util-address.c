/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses: which prefix limits count by. Their text: rendezvous-p2p.c. */
#include "unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "util/address.h"

static uint64_t prefix(const char *text)
{
	struct sockaddr_storage address = { .ss_family = strchr(text, ':') ? AF_INET6 : AF_INET };

	if (address.ss_family == AF_INET)
		assert_int_equal(
			inet_pton(AF_INET, text, &((struct sockaddr_in *)&address)->sin_addr), 1);
	else
		assert_int_equal(
			inet_pton(AF_INET6, text, &((struct sockaddr_in6 *)&address)->sin6_addr),
			1);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prefix__of_families),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
