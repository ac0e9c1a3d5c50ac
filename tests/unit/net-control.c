/* SPDX-License-Identifier: Apache-2.0 */
/* net-control.c: sockets of loopback connections: no pacing, whatever the system's congestion
 * control, and buffers no larger than the CPU's caches */
#include "unit.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/engine.h"
#include "net/control.h"
#include "util/config.h"

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

/* Select a congestion control (if the kernel lacks it, the default stays), call wh_socket_unpace()
 * for the address, and return the control before and after. */
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
	static const char *const loopback[] = { "127.0.0.1", "127.1.2.3", "::1",
						"::ffff:127.0.0.1" };
	char before[16], after[16];

	(void)state;
	for (size_t i = 0; i < sizeof(loopback) / sizeof(loopback[0]); i++) {
		control_of("bbr", loopback[i], before, after);
		assert_string_equal(after, strncmp(before, "bbr", 3) ? before : "reno");
	}
}

static void unpace__network(void **state)
{
	static const char *const network[] = { "10.0.0.1",        "128.0.0.1", "2001:db8::1",
					       "::ffff:10.0.0.1", "0.0.0.0",   "::" };
	char before[16], after[16];

	(void)state;
	for (size_t i = 0; i < sizeof(network) / sizeof(network[0]); i++) {
		control_of("bbr", network[i], before, after);
		assert_string_equal(after, before);
	}
}

/* The system's default is another control without pacing. */
static void unpace__plain(void **state)
{
	char before[16], after[16];

	(void)state;
	control_of("cubic", "127.0.0.1", before, after);
	assert_string_equal(after, strncmp(before, "bbr", 3) ? before : "reno");
}

/* ---- buffers ----------------------------------------------------------- */

/* A connection over loopback; returns the accepted end. */
static int connected(int *other)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
	*other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(*other, (struct sockaddr *)&address, length), 0);
	fd = accept(listener, NULL, NULL);
	assert_true(fd >= 0);
	close(listener);
	return fd;
}

/* As the kernel reports it: twice the requested size. */
static int buffer(int fd, int which)
{
	socklen_t length = sizeof(int);
	int bytes = 0;

	assert_int_equal(getsockopt(fd, SOL_SOCKET, which, &bytes, &length), 0);
	return bytes;
}

/* What the system grants for 512 KiB: it has a limit. */
static int granted(int which)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), bytes = 512 << 10;

	assert_int_equal(setsockopt(fd, SOL_SOCKET, which, &bytes, sizeof(bytes)), 0);
	bytes = buffer(fd, which);
	close(fd);
	return bytes;
}

static void near__loopback(void **state)
{
	struct wh_engine *engine = calloc(1, sizeof(*engine));
	int other, fd = connected(&other);

	(void)state;
	assert_non_null(engine);
	wh_socket_limit_buffers(&engine->config, fd);
	assert_int_equal(buffer(fd, SO_SNDBUF), granted(SO_SNDBUF));
	assert_int_equal(buffer(fd, SO_RCVBUF), granted(SO_RCVBUF));
	close(fd);
	close(other);
	free(engine);
}

/* The setting takes precedence, and connections other than loopback are not changed. */
static void near__left_alone(void **state)
{
	struct wh_engine *engine = calloc(1, sizeof(*engine));
	int other, fd = connected(&other), pair[2];
	int before = buffer(fd, SO_SNDBUF);

	(void)state;
	assert_non_null(engine);
	engine->config.number[WH_SETTING_BUFFER] = 4096;
	wh_socket_limit_buffers(&engine->config, fd);
	assert_int_equal(buffer(fd, SO_SNDBUF), before);
	engine->config.number[WH_SETTING_BUFFER] = 0;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	before = buffer(pair[0], SO_SNDBUF);
	wh_socket_limit_buffers(&engine->config, pair[0]);
	assert_int_equal(buffer(pair[0], SO_SNDBUF), before);
	close(pair[0]);
	close(pair[1]);
	close(fd);
	close(other);
	free(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unpace__loopback), cmocka_unit_test(unpace__network),
		cmocka_unit_test(unpace__plain),    cmocka_unit_test(near__loopback),
		cmocka_unit_test(near__left_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
