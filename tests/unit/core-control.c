/* SPDX-License-Identifier: Apache-2.0 */
/* On loopback no connection of ours is paced, whatever the system's congestion control. */
#include "unit.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/core.h"

static struct sockaddr_storage address_of(const char *text)
{
	struct sockaddr_storage address = { .ss_family = AF_INET };
	struct sockaddr_in *four = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;

	if (inet_pton(AF_INET, text, &four->sin_addr) == 1)
		return address;
	address.ss_family = AF_INET6;
	assert_int_equal(inet_pton(AF_INET6, text, &six->sin6_addr), 1);
	return address;
}

/* Ask for one congestion control (if the kernel has it; else it stays the default), call
 * wh_socket_unpace() for that address, and look what it is then. */
static void control_of(const char *wanted, const char *text, char before[16], char after[16])
{
	struct sockaddr_storage address = address_of(text);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t length = 16;

	assert_true(fd >= 0);
	(void)!setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wanted, (socklen_t)strlen(wanted));
	memset(before, 0, 16);
	memset(after, 0, 16);
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, before, &length), 0);
	wh_socket_unpace(fd, &address);
	length = 16;
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, after, &length), 0);
	close(fd);
}

static void unpace__loopback(void **state)
{
	static const char *const loopback[] = { "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1" };
	char before[16], after[16];

	(void)state;
	for (size_t i = 0; i < sizeof(loopback) / sizeof(loopback[0]); i++) {
		control_of("bbr", loopback[i], before, after);
		assert_string_equal(after, strncmp(before, "bbr", 3) ? before : "reno");
	}
}

static void unpace__network(void **state)
{
	static const char *const network[] = { "10.0.0.1", "128.0.0.1", "2001:db8::1", "::ffff:10.0.0.1",
					       "0.0.0.0", "::" };
	char before[16], after[16];

	(void)state;
	for (size_t i = 0; i < sizeof(network) / sizeof(network[0]); i++) {
		control_of("bbr", network[i], before, after);
		assert_string_equal(after, before);
	}
}

/* Another that does not pace is the system's choice. */
static void unpace__plain(void **state)
{
	char before[16], after[16];

	(void)state;
	control_of("cubic", "127.0.0.1", before, after);
	assert_string_equal(after, strncmp(before, "bbr", 3) ? before : "reno");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unpace__loopback),
		cmocka_unit_test(unpace__network),
		cmocka_unit_test(unpace__plain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
