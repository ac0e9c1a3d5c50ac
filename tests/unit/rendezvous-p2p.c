/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>

#include <wherry/error.h>

#include "core/peer.h"
#include "rendezvous/rendezvous.h"

_Static_assert(WH_RENDEZVOUS_MOST == WH_PEER_ADDRESSES, "a peer has room for what is resolved");

static struct sockaddr_storage addresses[WH_RENDEZVOUS_MOST];
static unsigned count;

/* The first address as text, or the error's number. */
static const char *resolve(const char *url, bool listening)
{
	static char text[64];
	int error;

	memset(addresses, 0xee, sizeof(addresses));
	count = 99;
	error = wh_rendezvous_resolve(url, listening ? WH_RESOLVE_LISTENING : WH_RESOLVE_REMOTE,
				      addresses, &count);
	if (error) {
		assert_int_equal(count, 99);
		return error == -EINVAL ? "EINVAL" : error == -EHOSTUNREACH ? "EHOSTUNREACH" : "?";
	}
	assert_in_range(count, 1, WH_RENDEZVOUS_MOST);
	wh_address_format(text, sizeof(text), &addresses[0]);
	return text;
}

static void assert_refused(const char *url, bool listening, const char *part)
{
	assert_string_equal(resolve(url, listening), "EINVAL");
	if (!strstr(wh_error_text(), part))
		fail_msg("\"%s\" is not in \"%s\"", part, wh_error_text());
}

static void resolve__every_form(void **state)
{
	(void)state;
	assert_string_equal(resolve("wherry://127.0.0.1:40123", false), "127.0.0.1:40123");
	assert_string_equal(resolve("127.0.0.1:1", false), "127.0.0.1:1");
	assert_string_equal(resolve("127.0.0.1:65535", false), "127.0.0.1:65535");
	assert_string_equal(resolve("wherry://[::1]:7000", false), "[::1]:7000");
	assert_string_equal(resolve("[2001:db8::5]:7000", false), "[2001:db8::5]:7000");
	assert_string_equal(resolve("[::]:0", true), "[::]:0");
	assert_string_equal(resolve("0.0.0.0:0", true), "0.0.0.0:0");
	assert_string_equal(resolve("127.0.0.1:0007", false), "127.0.0.1:7");
	assert_int_equal(count, 1);
}

static void resolve__a_name(void **state)
{
	const char *got = resolve("localhost:7000", false);

	(void)state;
	assert_true(!strcmp(got, "127.0.0.1:7000") || !strcmp(got, "[::1]:7000"));
}

static void resolve__a_scope(void **state)
{
	const struct sockaddr_in6 *address = (const struct sockaddr_in6 *)&addresses[0];

	(void)state;
	if (!if_nametoindex("lo"))
		return;
	assert_string_equal(resolve("[fe80::1%lo]:7000", false), "[fe80::1%lo]:7000");
	assert_int_equal(address->sin6_scope_id, if_nametoindex("lo"));
}

static void resolve__an_unknown_name(void **state)
{
	(void)state;
	/* Of the kind that must not exist (RFC 6761), so no name server is asked for long. */
	assert_string_equal(resolve("wherry.invalid:7000", false), "EHOSTUNREACH");
	assert_non_null(strstr(wh_error_text(), "wherry.invalid"));
}

static void resolve__malformed(void **state)
{
	char longest[400];

	(void)state;
	assert_refused("", false, "host is missing");
	assert_refused("wherry://", false, "host is missing");
	assert_refused(":7000", true, "host is missing");
	assert_refused("[]:7000", true, "host is missing");
	assert_refused("localhost", false, "port is missing");
	assert_refused("localhost:", true, "port is missing");
	assert_refused("localhost:http", true, "port is missing");
	assert_refused("[::1]", true, "port is missing");
	assert_refused("localhost:70000", true, "70000");
	assert_refused("localhost:99999999999999999999999", true, "9999999");
	assert_refused("localhost:-1", true, "port");
	assert_refused("localhost:80x", true, "80x");
	assert_refused("localhost:80 ", true, "80 ");
	assert_refused("localhost:0", false, "port 0");
	assert_refused("wherry://localhost:7000/region", false, "/region");
	assert_refused("wherry://localhost:7000/", false, "follow");
	assert_refused("wherry://me@localhost:7000", false, "'@'");
	assert_refused("local host:7000", false, "' '");
	assert_refused("::1:7000", false, "brackets");
	assert_refused("[::1:7000", false, "bracket");
	assert_refused("[::1]7000", false, "colon");
	assert_refused("[localhost]:7000", false, "not an IPv6 address");
	assert_refused("[127.0.0.1]:7000", false, "not an IPv6 address");
	assert_refused("http://localhost:7000", false, "\"http\"");
	assert_refused("wherryx://localhost:7000", false, "\"wherryx\"");
	assert_refused("://localhost:7000", false, "scheme");
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	assert_refused(longest, false, "255 bytes");
	memcpy(longest + 300, ":7000", 6);
	assert_refused(longest, false, "255 bytes");
	memcpy(longest, "x://", 4);
	assert_refused(longest, false, "scheme");
}

static void format__families_and_room(void **state)
{
	struct sockaddr_storage address = { .ss_family = AF_UNIX };
	char text[64], small[6];

	(void)state;
	wh_address_format(text, sizeof(text), &address);
	assert_string_equal(text, "?");
	assert_string_equal(resolve("[1111:2222:3333:4444:5555:6666:7777:8888]:65535", true),
			    "[1111:2222:3333:4444:5555:6666:7777:8888]:65535");
	wh_address_format(small, sizeof(small), &addresses[0]);
	assert_string_equal(small, "[1111");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(resolve__every_form), cmocka_unit_test(resolve__a_name),
		cmocka_unit_test(resolve__a_scope),    cmocka_unit_test(resolve__an_unknown_name),
		cmocka_unit_test(resolve__malformed),  cmocka_unit_test(format__families_and_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
