/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes when strangers are too many, and what their sockets are set to. */
#include "unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "compat/mooncake/connection-limit.h"
#include "compat/mooncake/mooncake.h"

struct one {
	struct wh_mooncake_limited guest;
	enum wh_mooncake_worth worth;
};

static enum wh_mooncake_worth worth(const struct wh_mooncake_limited *guest)
{
	return wh_container(guest, struct one, guest)->worth;
}

static struct sockaddr_storage from(const char *address)
{
	struct sockaddr_storage storage = { .ss_family =
						    strchr(address, ':') ? AF_INET6 : AF_INET };

	assert_int_equal(inet_pton(storage.ss_family, address,
				   storage.ss_family == AF_INET ?
					   (void *)&((struct sockaddr_in *)&storage)->sin_addr :
					   (void *)&((struct sockaddr_in6 *)&storage)->sin6_addr),
			 1);
	return storage;
}

/* At most five, three of one place. */
static void begin(struct wh_mooncake_limit *crowd, struct one *ones, const char *const *places,
		  size_t count)
{
	*crowd = (struct wh_mooncake_limit){ .most = 5, .most_place = 3, .worth = worth };
	wh_list_init(&crowd->guests);
	for (size_t i = 0; i < count; i++) {
		struct sockaddr_storage address = from(places[i]);

		ones[i].worth = WH_MOONCAKE_STAYS;
		wh_mooncake_limit_enter(crowd, &ones[i].guest, &address);
	}
}

static void room__of_one_place(void **state)
{
	static const char *const places[] = { "10.0.0.1", "10.0.0.2", "10.0.0.1",
					      "::ffff:10.0.0.1" };
	struct sockaddr_storage here = from("10.0.0.1"), there = from("10.0.0.2");
	struct wh_mooncake_limited *last = NULL;
	struct wh_mooncake_limit crowd;
	struct one ones[4];

	(void)state;
	begin(&crowd, ones, places, 4);
	assert_true(wh_mooncake_limit_room(&crowd, &there, &last));
	/* Nobody may go; then the first of the least worth, and nobody from elsewhere. */
	assert_false(wh_mooncake_limit_room(&crowd, &here, &last));
	assert_null(last);
	ones[0].worth = WH_MOONCAKE_WORKING;
	ones[1].worth = WH_MOONCAKE_DONE;
	ones[2].worth = ones[3].worth = WH_MOONCAKE_LAZY;
	assert_false(wh_mooncake_limit_room(&crowd, &here, &last));
	assert_ptr_equal(last, &ones[2].guest);
	wh_mooncake_limit_leave(&crowd, last);
	assert_true(wh_mooncake_limit_room(&crowd, &here, &last));
}

static void room__of_all(void **state)
{
	static const char *const places[] = { "10.0.0.1", "10.0.0.1", "10.0.0.2", "fd00::1",
					      "fd00::2" };
	struct sockaddr_storage other = from("10.0.0.3"), network = from("fd00::3");
	struct wh_mooncake_limited *last = NULL;
	struct wh_mooncake_limit crowd;
	struct one ones[5];

	(void)state;
	begin(&crowd, ones, places, 5);
	assert_false(wh_mooncake_limit_room(&crowd, &other, &last));
	assert_null(last);
	assert_null(wh_mooncake_limit_least(&crowd));
	ones[1].worth = ones[3].worth = WH_MOONCAKE_LAZY;
	assert_false(wh_mooncake_limit_room(&crowd, &other, &last));
	assert_ptr_equal(last, &ones[1].guest);
	assert_ptr_equal(wh_mooncake_limit_least(&crowd), &ones[1].guest);
	wh_mooncake_limit_leave(&crowd, last);
	/* A network of IPv6 is one place. */
	assert_true(wh_mooncake_limit_room(&crowd, &network, &last));
	wh_mooncake_limit_enter(&crowd, last, &network);
	assert_false(wh_mooncake_limit_room(&crowd, &network, &last));
	assert_ptr_equal(last, &ones[3].guest);
}

/* bbr would pace what has no way to go; buffers that grow leave the caches. From afar both are the
 * system's. */
static void socket__tune(void **state)
{
	struct sockaddr_storage near = from("127.0.0.1"), far = from("10.0.0.1");
	char name[16] = "", before[16] = "";
	int bytes = 0, as_it_was = 0, value = 0;
	socklen_t length = sizeof(before);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	(void)state;
	assert_true(fd >= 0);
	getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, before, &length);
	length = sizeof(int);
	getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &as_it_was, &length);
	wh_mooncake_socket_tune(fd, &far);
	getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length);
	assert_int_equal(bytes, as_it_was);
	getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length);
	assert_int_not_equal(value, 0);
	wh_mooncake_socket_tune(fd, &near);
	/* The system doubles it, or has a limit. */
	getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length);
	assert_in_range(bytes, 64 << 10, 512 << 10);
	length = sizeof(name);
	getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length);
	assert_string_equal(name, strncmp(before, "bbr", 3) ? before : "reno");
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(room__of_one_place),
		cmocka_unit_test(room__of_all),
		cmocka_unit_test(socket__tune),
	};

	return cmocka_run_group_tests_name("mooncake-crowd", tests, NULL, NULL);
}
