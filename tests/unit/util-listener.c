/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets on a loop: accepting, holding, and pausing when descriptors run out. */
#include "util/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "util/clock.h"
#include "util/log.h"

#define PATIENCE (30 * WH_SECOND)

static struct wh_loop loop;
static struct wh_listener listener;
static struct sockaddr_in address;
static atomic_uint accepted, waits;
static atomic_int told;
static atomic_uint hold_at; /* hold the listener after this many connections */

/* accept4() fails as if the process had no descriptors left; how often it has failed. */
static atomic_bool starved;
static atomic_uint refused;

/* Replaces the C library's. RLIMIT_NOFILE has no effect under valgrind;
 * tests/integration/metrics/metrics-counters.c tests that one. */
int accept4(int fd, __SOCKADDR_ARG from, socklen_t *restrict length, int flags)
{
	if (atomic_load(&starved)) {
		atomic_fetch_add(&refused, 1);
		errno = EMFILE;
		return -1;
	}
	return (int)syscall(SYS_accept4, fd, from.__sockaddr__, length, flags);
}

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

static atomic_uint end_turn_at, turn_longest, evictions_left;

static void count_turns(struct wh_listener *of, int fd, const struct sockaddr_storage *from)
{
	if (of->turn > atomic_load(&turn_longest))
		atomic_store(&turn_longest, of->turn);
	if (of->turn == atomic_load(&end_turn_at))
		wh_listener_end_turn(of);
	count_accepted(of, fd, from);
}

/* The last eviction leaves a descriptor. */
static bool evict_one(struct wh_listener *of)
{
	assert_ptr_equal(of, &listener);
	if (!atomic_load(&evictions_left))
		return false;
	if (atomic_fetch_sub(&evictions_left, 1) == 1)
		atomic_store(&starved, false);
	return true;
}

static void count_waits(struct wh_listener *of, int error)
{
	assert_ptr_equal(of, &listener);
	atomic_store(&told, error);
	atomic_fetch_add(&waits, 1);
}

static int begin_with(const struct wh_listener *options)
{
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	address = (struct sockaddr_in){ .sin_family = AF_INET,
					.sin_addr = { htonl(INADDR_LOOPBACK) } };
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 128), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
	atomic_store(&accepted, 0);
	atomic_store(&waits, 0);
	atomic_store(&told, 0);
	atomic_store(&hold_at, 0);
	assert_int_equal(wh_loop_start(&loop, "wherry-test", false, NULL), 0);
	listener = *options;
	assert_int_equal(wh_listener_open(&listener, &loop, fd), 0);
	return 0;
}

static int begin(void **state)
{
	const struct wh_listener options = { .accepted = count_accepted, .waits = count_waits };

	(void)state;
	return begin_with(&options);
}

static int begin_edge(void **state)
{
	const struct wh_listener options = { .accepted = count_turns,
					     .waits = count_waits,
					     .turn_max = 5,
					     .edge_triggered = true,
					     .evict = evict_one };

	(void)state;
	atomic_store(&turn_longest, 0);
	atomic_store(&end_turn_at, 0);
	atomic_store(&evictions_left, 0);
	return begin_with(&options);
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
	assert_true(atomic_load(count) >= wanted);
}

static int open_client(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	return fd;
}

/* Succeeds whatever the listener does: the connection goes into the backlog. */
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
	/* By then the loop would have accepted a connection too many. */
	for (int i = 0; i < 10; i++)
		wh_loop_call(&loop, do_nothing, NULL);
	assert_int_equal(atomic_load(&accepted), 3);
	wh_loop_call(&loop, let_go, &listener);
	reaches(&accepted, 8);
	for (int i = 0; i < 8; i++)
		close(clients[i]);
}

/* Since `from` the listener has tried at most once in 100 ms. */
static void tries_slowly(int64_t from, unsigned before)
{
	assert_in_range(atomic_load(&refused) - before, 0,
			(uint64_t)((wh_now() - from) / (100 * WH_MS)) + 1);
}

/* Without descriptors the listener does not spin and reports it once. It accepts the waiting
 * connections as soon as there are descriptors. */
static void accept__without_descriptors(void **state)
{
	int clients[2] = { open_client(), open_client() };
	int64_t from;
	unsigned before;

	(void)state;
	atomic_store(&starved, true);
	connect_client(clients[0]);
	reaches(&waits, 1);
	assert_int_equal(atomic_load(&told), EMFILE);
	connect_client(clients[1]);
	from = wh_now();
	before = atomic_load(&refused);
	reaches(&refused, before + 3);
	tries_slowly(from, before);
	assert_int_equal(atomic_load(&accepted), 0);
	atomic_store(&starved, false);
	reaches(&accepted, 2);
	assert_int_equal(atomic_load(&waits), 1);
	/* The next shortage is reported again. */
	close(clients[0]);
	clients[0] = open_client();
	atomic_store(&starved, true);
	connect_client(clients[0]);
	reaches(&waits, 2);
	atomic_store(&starved, false);
	reaches(&accepted, 3);
	for (int i = 0; i < 2; i++)
		close(clients[i]);
}

/* wh_listener_hold(false) during a pause does not end the pause. */
static void hold__without_descriptors(void **state)
{
	int client = open_client();
	unsigned before;
	int64_t from;

	(void)state;
	atomic_store(&starved, true);
	connect_client(client);
	reaches(&waits, 1);
	from = wh_now();
	before = atomic_load(&refused);
	for (int i = 0; i < 100; i++)
		wh_loop_call(&loop, let_go, &listener);
	tries_slowly(from, before);
	atomic_store(&starved, false);
	reaches(&accepted, 1);
	close(client);
}

static void hold_it(void *argument)
{
	wh_listener_hold(argument, true);
}

/* Edge-triggered: no connection is forgotten where a turn ends early, whatever ended it. */
static void accept__edge_triggered(void **state)
{
	int clients[40];

	(void)state;
	wh_loop_call(&loop, hold_it, &listener);
	for (int i = 0; i < 20; i++)
		connect_client(clients[i] = open_client());
	wh_loop_call(&loop, let_go, &listener);
	reaches(&accepted, 20);
	assert_int_equal(atomic_load(&turn_longest), 5);
	atomic_store(&end_turn_at, 3);
	atomic_store(&turn_longest, 0);
	wh_loop_call(&loop, hold_it, &listener);
	for (int i = 20; i < 40; i++)
		connect_client(clients[i] = open_client());
	wh_loop_call(&loop, let_go, &listener);
	reaches(&accepted, 40);
	assert_int_equal(atomic_load(&turn_longest), 3);
	for (int i = 0; i < 40; i++)
		close(clients[i]);
}

/* Out of descriptors it evicts as long as there is something to evict, and then waits. */
static void accept__evicts(void **state)
{
	int clients[2] = { open_client(), open_client() };

	(void)state;
	atomic_store(&evictions_left, 2);
	atomic_store(&starved, true);
	connect_client(clients[0]);
	reaches(&accepted, 1);
	assert_int_equal(atomic_load(&evictions_left), 0);
	assert_int_equal(atomic_load(&waits), 0);
	atomic_store(&starved, true);
	connect_client(clients[1]);
	reaches(&waits, 1);
	assert_int_equal(atomic_load(&told), EMFILE);
	atomic_store(&starved, false);
	reaches(&accepted, 2);
	for (int i = 0; i < 2; i++)
		close(clients[i]);
}

static struct wh_log_record logged;

static void keep_record(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	logged = *record;
}

/* A lack of descriptors is a warning: it lasts until somebody mends it. */
static void log__levels(void **state)
{
	static const struct {
		int error;
		uint32_t level;
	} lines[] = {
		{ EMFILE, WH_LOG_WARN },
		{ ENFILE, WH_LOG_WARN },
		{ ENOMEM, WH_LOG_INFO },
		{ ENOBUFS, WH_LOG_INFO },
	};
	struct wh_log log = { .write = keep_record, .level = WH_LOG_DEBUG };

	(void)state;
	for (unsigned i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		logged.level = UINT32_MAX;
		wh_listener_log(&log, "net", "connections", lines[i].error);
		assert_int_equal(logged.level, lines[i].level);
		assert_string_equal(logged.area, "net");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(accept__many, begin, end),
		cmocka_unit_test_setup_teardown(hold__until_let_go, begin, end),
		cmocka_unit_test_setup_teardown(accept__without_descriptors, begin, end),
		cmocka_unit_test_setup_teardown(hold__without_descriptors, begin, end),
		cmocka_unit_test_setup_teardown(accept__edge_triggered, begin_edge, end),
		cmocka_unit_test_setup_teardown(accept__evicts, begin_edge, end),
		cmocka_unit_test(log__levels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
