/* SPDX-License-Identifier: Apache-2.0 */
/* Which connection is closed when there are too many, and how sockets are tuned. */
#include "unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "compat/mooncake/connection-limit.h"
#include "compat/mooncake/mooncake.h"

struct one {
	struct wh_mooncake_limited limited;
	enum wh_mooncake_rank rank;
};

static enum wh_mooncake_rank rank(const struct wh_mooncake_limited *limited)
{
	return wh_container(limited, struct one, limited)->rank;
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

/* At most five connections, three from one source. */
static void begin(struct wh_mooncake_limit *limit, struct one *ones, const char *const *sources,
		  size_t count)
{
	*limit = (struct wh_mooncake_limit){ .max = 5, .max_per_source = 3, .rank = rank };
	wh_list_init(&limit->connections);
	for (size_t i = 0; i < count; i++) {
		struct sockaddr_storage address = from(sources[i]);

		ones[i].rank = WH_MOONCAKE_PINNED;
		wh_mooncake_limit_add(limit, &ones[i].limited, &address);
	}
}

static void room__of_one_place(void **state)
{
	static const char *const sources[] = { "10.0.0.1", "10.0.0.2", "10.0.0.1",
					       "::ffff:10.0.0.1" };
	struct sockaddr_storage here = from("10.0.0.1"), there = from("10.0.0.2");
	struct wh_mooncake_limited *last = NULL;
	struct wh_mooncake_limit limit;
	struct one ones[4];

	(void)state;
	begin(&limit, ones, sources, 4);
	assert_true(wh_mooncake_limit_has_room(&limit, &there, &last));
	/* None may be closed; then the first of the lowest rank, and none from another source. */
	assert_false(wh_mooncake_limit_has_room(&limit, &here, &last));
	assert_null(last);
	ones[0].rank = WH_MOONCAKE_BUSY;
	ones[1].rank = WH_MOONCAKE_IDLE;
	ones[2].rank = ones[3].rank = WH_MOONCAKE_SLOW;
	assert_false(wh_mooncake_limit_has_room(&limit, &here, &last));
	assert_ptr_equal(last, &ones[2].limited);
	wh_mooncake_limit_remove(&limit, last);
	assert_true(wh_mooncake_limit_has_room(&limit, &here, &last));
}

static void room__of_all(void **state)
{
	static const char *const sources[] = { "10.0.0.1", "10.0.0.1", "10.0.0.2", "fd00::1",
					       "fd00::2" };
	struct sockaddr_storage other = from("10.0.0.3"), network = from("fd00::3");
	struct wh_mooncake_limited *last = NULL;
	struct wh_mooncake_limit limit;
	struct one ones[5];

	(void)state;
	begin(&limit, ones, sources, 5);
	assert_false(wh_mooncake_limit_has_room(&limit, &other, &last));
	assert_null(last);
	assert_null(wh_mooncake_limit_lowest(&limit));
	ones[1].rank = ones[3].rank = WH_MOONCAKE_SLOW;
	assert_false(wh_mooncake_limit_has_room(&limit, &other, &last));
	assert_ptr_equal(last, &ones[1].limited);
	assert_ptr_equal(wh_mooncake_limit_lowest(&limit), &ones[1].limited);
	wh_mooncake_limit_remove(&limit, last);
	/* An IPv6 /64 is one source. */
	assert_true(wh_mooncake_limit_has_room(&limit, &network, &last));
	wh_mooncake_limit_add(&limit, last, &network);
	assert_false(wh_mooncake_limit_has_room(&limit, &network, &last));
	assert_ptr_equal(last, &ones[3].limited);
}

/* On loopback: no pacing by bbr, and buffers that stay in the caches. Other connections keep the
 * system's settings. */
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

	return cmocka_run_group_tests_name("mooncake-connection-limit", tests, NULL, NULL);
}
