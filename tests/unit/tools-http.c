/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server of the command: who dawdles is cut off, and keeps nobody else out. */
#include "../../tools/http.c"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define SOON (300 * WH_MS)
#define LATE (30 * WH_SECOND) /* what must happen has happened by then */
#define LARGE (16 << 20)

static struct http_server *server;
static struct sockaddr_in address;
static atomic_uint begun, ended, ticks;
static char large[LARGE];

static enum MHD_Result answer_it(void *arg, struct MHD_Connection *connection, const char *path,
				 const char *method, const char *version, const char *data,
				 size_t *length, void **state)
{
	size_t size = strcmp(path, "/large") ? 2 : LARGE;
	struct MHD_Response *response;
	enum MHD_Result result;

	(void)arg, (void)method, (void)version, (void)data;
	if (!*state) {
		*state = &server;
		atomic_fetch_add(&begun, 1);
		return MHD_YES;
	}
	if (*length) {
		*length = 0;
		return MHD_YES;
	}
	response = MHD_create_response_from_buffer(
		size, size > 2 ? large : (void *)(uintptr_t) "ok", MHD_RESPMEM_PERSISTENT);
	result = MHD_queue_response(connection, MHD_HTTP_OK, response);
	MHD_destroy_response(response);
	return result;
}

static void count_done(void *arg, struct MHD_Connection *connection, void **state,
		       enum MHD_RequestTerminationCode code)
{
	(void)arg, (void)connection, (void)code;
	assert_ptr_equal(*state, &server);
	atomic_fetch_add(&ended, 1);
}

static void count_tick(void *arg)
{
	(void)arg;
	atomic_fetch_add(&ticks, 1);
}

static void start(unsigned connections, unsigned of_address, int64_t head, int64_t rest)
{
	const struct http_options options = {
		.handle = answer_it,
		.done = count_done,
		.tick = count_tick,
		.every = 10 * WH_MS,
		.connections = connections,
		.of_address = of_address,
		.memory = 4096,
		.unread = 64 << 10,
		.head = head,
		.rest = rest,
	};
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	address = (struct sockaddr_in){ .sin_family = AF_INET,
					.sin_addr = { htonl(INADDR_LOOPBACK) } };
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 128), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
	atomic_store(&begun, 0);
	atomic_store(&ended, 0);
	atomic_store(&ticks, 0);
	assert_int_equal(http_start(&options, fd, &server), 0);
}

/* From 127.0.0.`from`. */
static int dial(unsigned char from)
{
	struct sockaddr_in own = { .sin_family = AF_INET,
				   .sin_addr = { htonl(0x7f000000 | from) } };
	const int small = 4096;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static void say(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Until it has something to tell. */
static bool is_ready(int fd, int64_t patience)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	return poll(&one, 1, (int)(patience / WH_MS)) == 1;
}

/* Nothing more comes, and it has ended. */
static bool is_closed(int fd, int64_t patience)
{
	char byte;

	return is_ready(fd, patience) && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

static void ask(int fd)
{
	char bytes[1024];
	size_t got = 0;
	ssize_t more;

	say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	do {
		assert_true(is_ready(fd, LATE));
		more = recv(fd, bytes + got, sizeof(bytes) - 1 - got, 0);
		assert_true(more > 0);
		got += (size_t)more;
		bytes[got] = '\0';
	} while (!strstr(bytes, "\r\n\r\nok"));
	assert_int_equal(strncmp(bytes, "HTTP/1.1 200", 12), 0);
}

static void reaches(atomic_uint *count, unsigned wanted)
{
	int64_t until = wh_now() + LATE;

	while (atomic_load(count) < wanted && wh_now() < until)
		nanosleep(&(struct timespec){ 0, WH_MS }, NULL);
	assert_true(atomic_load(count) >= wanted);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* A byte now and then does not help. */
static void trickle(int fd, int64_t least)
{
	int64_t started = wh_now();

	while (!is_closed(fd, 20 * WH_MS)) {
		assert_true(wh_now() - started < LATE);
		send(fd, "x", 1, MSG_NOSIGNAL);
	}
	assert_true(wh_now() - started >= least);
}

static void deadline__of_a_head(void **state)
{
	int fd, silent;

	(void)state;
	start(32, 32, SOON, LATE);
	fd = dial(1);
	silent = dial(1);
	say(fd, "GET / HTTP/1.1\r\nX: ");
	trickle(fd, SOON - 50 * WH_MS);
	assert_true(is_closed(silent, LATE));
	assert_int_equal(atomic_load(&begun), 0);
	close(silent);
	close(fd);
	http_stop(server);
}

static void deadline__of_a_body(void **state)
{
	int fd;

	(void)state;
	start(32, 32, LATE, SOON);
	fd = dial(1);
	say(fd, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
	trickle(fd, SOON - 50 * WH_MS);
	reaches(&ended, 1);
	close(fd);
	http_stop(server);
}

static void deadline__of_an_answer(void **state)
{
	int fd;

	(void)state;
	start(32, 32, LATE, SOON);
	fd = dial(1);
	say(fd, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_true(is_ready(fd, LATE));
	reaches(&ended, 1);
	close(fd);
	http_stop(server);
}

/* Each request has its own, and one that waits for the next has time. */
static void deadline__of_each_request(void **state)
{
	int64_t until;
	int fd;

	(void)state;
	start(32, 32, LATE, SOON);
	fd = dial(1);
	for (until = wh_now() + 2 * SOON; wh_now() < until;) {
		ask(fd);
		nanosleep(&(struct timespec){ 0, SOON / 4 }, NULL);
	}
	nanosleep(&(struct timespec){ 0, 2 * SOON }, NULL);
	ask(fd);
	reaches(&ended, atomic_load(&begun));
	close(fd);
	http_stop(server);
	/* And one that waits for too long has none. */
	start(32, 32, 2 * WH_SECOND, LATE);
	fd = dial(1);
	ask(fd);
	assert_true(is_closed(fd, LATE));
	close(fd);
	http_stop(server);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Of one address: the one that has asked nothing for the longest time goes. */
static void limit__of_an_address(void **state)
{
	int fds[6], other;

	(void)state;
	start(32, 4, LATE, LATE);
	other = dial(2);
	ask(other);
	for (int i = 0; i < 4; i++) {
		fds[i] = dial(1);
		ask(fds[i]);
	}
	ask(fds[0]);
	/* Its answer is not read: it is at work, and stays as long as there is one that is not. */
	say(fds[3], "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
	reaches(&begun, 7);
	fds[4] = dial(1);
	assert_true(is_closed(fds[1], LATE));
	ask(fds[4]);
	fds[5] = dial(1);
	assert_true(is_closed(fds[2], LATE));
	ask(fds[5]);
	ask(fds[0]);
	assert_true(is_ready(fds[3], LATE));
	assert_false(is_closed(fds[3], 0));
	ask(other);
	for (int i = 0; i < 6; i++)
		close(fds[i]);
	close(other);
	http_stop(server);
}

/* Where all are at work, the one that began first goes. */
static void limit__of_those_at_work(void **state)
{
	char bytes[4096];
	int fds[4];

	(void)state;
	start(32, 3, LATE, LATE);
	for (int i = 0; i < 3; i++) {
		fds[i] = dial(1);
		say(fds[i], "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
		reaches(&begun, (unsigned)i + 1);
	}
	fds[3] = dial(1);
	reaches(&ended, 1);
	ask(fds[3]);
	/* The first, of which some has been sent. */
	while (is_ready(fds[0], LATE) && recv(fds[0], bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	assert_true(is_closed(fds[0], 0));
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	http_stop(server);
}

/* From many addresses, more than there is room for: who asks is answered all the while. */
static void limit__of_all(void **state)
{
	int silent[200], one;

	(void)state;
	start(32, 8, LATE, LATE);
	for (int i = 0; i < 200; i++) {
		silent[i] = dial((unsigned char)(1 + i));
		say(silent[i], "GET / HTT");
		one = dial((unsigned char)(1 + i % 7));
		ask(one);
		close(one);
	}
	for (int i = 0; i < 200 - 32; i++)
		assert_true(is_closed(silent[i], LATE));
	/* The last one that came has stayed. */
	say(silent[199], "P/1.1\r\nHost: x\r\n\r\n");
	assert_true(is_ready(silent[199], LATE));
	assert_false(is_closed(silent[199], 0));
	for (int i = 0; i < 200; i++)
		close(silent[i]);
	http_stop(server);
}

/* With answers and requests under way. */
static void stop__at_any_time(void **state)
{
	int fds[3];

	(void)state;
	start(32, 32, LATE, LATE);
	for (int i = 0; i < 3; i++)
		fds[i] = dial(1);
	say(fds[0], "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
	say(fds[1], "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx");
	reaches(&begun, 2);
	reaches(&ticks, 3);
	http_stop(server);
	assert_int_equal(atomic_load(&ended), 2);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(deadline__of_a_head),
		cmocka_unit_test(deadline__of_a_body),
		cmocka_unit_test(deadline__of_an_answer),
		cmocka_unit_test(deadline__of_each_request),
		cmocka_unit_test(limit__of_an_address),
		cmocka_unit_test(limit__of_those_at_work),
		cmocka_unit_test(limit__of_all),
		cmocka_unit_test(stop__at_any_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
