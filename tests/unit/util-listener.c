/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets on a loop: what comes is accepted, and what cannot be makes nothing spin. */
#include "util/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "util/clock.h"

#define PATIENCE (30 * WH_SECOND)

static struct wh_loop loop;
static struct wh_listener listener;
static struct sockaddr_in address;
static atomic_uint accepted, waits;
static atomic_int told;
static atomic_uint hold_at; /* it holds itself when so many have been accepted */

static void count_accepted(struct wh_listener *of, int fd, const struct sockaddr_storage *from)
{
	const struct sockaddr_in *client = (const struct sockaddr_in *)from;

	assert_ptr_equal(of, &listener);
	assert_int_equal(client->sin_family, AF_INET);
	assert_int_equal(client->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	close(fd);
	if (atomic_fetch_add(&accepted, 1) + 1 == atomic_load(&hold_at))
		wh_listener_hold(of, true);
}

static void count_waits(struct wh_listener *of, int error)
{
	assert_ptr_equal(of, &listener);
	atomic_store(&told, error);
	atomic_fetch_add(&waits, 1);
}

static int begin(void **state)
{
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	(void)state;
	address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 128), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
	atomic_store(&accepted, 0);
	atomic_store(&waits, 0);
	atomic_store(&told, 0);
	atomic_store(&hold_at, 0);
	assert_int_equal(wh_loop_start(&loop, "wherry-test", false), 0);
	listener = (struct wh_listener){ .accepted = count_accepted, .waits = count_waits };
	assert_int_equal(wh_listener_open(&listener, &loop, fd), 0);
	return 0;
}

static void close_it(void *argument)
{
	wh_listener_close(argument);
}

static int end(void **state)
{
	(void)state;
	wh_loop_call(&loop, close_it, &listener);
	wh_loop_stop(&loop);
	close(listener.source.fd);
	return 0;
}

static void nap(void)
{
	nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
}

static void reaches(atomic_uint *count, unsigned wanted)
{
	int64_t until = wh_now() + PATIENCE;

	while (atomic_load(count) < wanted && wh_now() < until)
		nap();
	assert_int_equal(atomic_load(count), wanted);
}

static int open_client(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	return fd;
}

/* The backlog takes it, whatever the listener does. */
static void connect_client(int fd)
{
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

static void accept__many(void **state)
{
	int clients[100];

	(void)state;
	for (int i = 0; i < 100; i++)
		connect_client(clients[i] = open_client());
	reaches(&accepted, 100);
	for (int i = 0; i < 100; i++)
		close(clients[i]);
	assert_int_equal(atomic_load(&waits), 0);
}

static void do_nothing(void *argument)
{
	(void)argument;
}

static void let_go(void *argument)
{
	wh_listener_hold(argument, false);
}

static void hold__until_let_go(void **state)
{
	int clients[8];

	(void)state;
	atomic_store(&hold_at, 3);
	for (int i = 0; i < 8; i++)
		connect_client(clients[i] = open_client());
	reaches(&accepted, 3);
	/* What is on the loop behind a connection that was accepted too much has been done by then. */
	for (int i = 0; i < 10; i++)
		wh_loop_call(&loop, do_nothing, NULL);
	assert_int_equal(atomic_load(&accepted), 3);
	wh_loop_call(&loop, let_go, &listener);
	reaches(&accepted, 8);
	for (int i = 0; i < 8; i++)
		close(clients[i]);
}

static int64_t cpu_time(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return used.tv_sec * WH_SECOND + used.tv_nsec;
}

/* Out of descriptors it does not spin, tells so once, and accepts what has waited as soon as there are some. */
static void accept__without_descriptors(void **state)
{
	struct rlimit limit, none;
	int clients[2] = { open_client(), open_client() };
	int64_t used, until;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = limit;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	connect_client(clients[0]);
	reaches(&waits, 1);
	assert_int_equal(atomic_load(&told), EMFILE);
	connect_client(clients[1]);
	used = cpu_time();
	for (until = wh_now() + WH_SECOND / 2; wh_now() < until;)
		nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
	used = cpu_time() - used;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_in_range(used, 0, 100 * WH_MS);
	assert_int_equal(atomic_load(&accepted), 0);
	reaches(&accepted, 2);
	assert_int_equal(atomic_load(&waits), 1);
	/* Another shortage is told again. */
	close(clients[0]);
	clients[0] = open_client();
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	connect_client(clients[0]);
	reaches(&waits, 2);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	reaches(&accepted, 3);
	for (int i = 0; i < 2; i++)
		close(clients[i]);
}

/* Let go of while it waits for descriptors, it goes on waiting. */
static void hold__without_descriptors(void **state)
{
	struct rlimit limit, none;
	int client = open_client();
	int64_t used, until;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = limit;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	connect_client(client);
	reaches(&waits, 1);
	used = cpu_time();
	for (until = wh_now() + WH_SECOND / 4; wh_now() < until;) {
		wh_loop_call(&loop, let_go, &listener);
		nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
	}
	assert_in_range(cpu_time() - used, 0, 50 * WH_MS);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	reaches(&accepted, 1);
	close(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(accept__many, begin, end),
		cmocka_unit_test_setup_teardown(hold__until_let_go, begin, end),
		cmocka_unit_test_setup_teardown(accept__without_descriptors, begin, end),
		cmocka_unit_test_setup_teardown(hold__without_descriptors, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
