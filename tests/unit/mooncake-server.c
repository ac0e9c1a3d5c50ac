/* SPDX-License-Identifier: Apache-2.0 */
/* The server and the client of Mooncake's protocol, with each other, in one process. */
#include "unit.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/error.h>

#include "compat/mooncake/mooncake.h"
#include "util/clock.h"

#define LENGTH (1 << 20)
#define CONNECTIONS 4
#define LONG (60 * WH_SECOND)

static unsigned char direct[LENGTH], hidden[LENGTH], staging[65536];
static atomic_int copies;

/* Where the second memory says that it lies there is nothing. */
static const struct wh_mooncake_memory memories[] = {
	{ .address = 4096, .length = LENGTH, .writable = true, .staged = true, .name = "hidden" },
	{ .length = LENGTH, .writable = true, .name = "direct" },
};

static int copy(void *arg, const struct wh_mooncake_memory *memory, uint64_t offset, size_t length,
		bool to_memory)
{
	(void)arg;
	/* On the server's thread: what is wrong becomes an error of the request. */
	if (strcmp(memory->name, "hidden") != 0 || offset + length > LENGTH ||
	    length > sizeof(staging))
		return -EINVAL;
	if (to_memory)
		memcpy(hidden + offset, staging, length);
	else
		memcpy(staging, hidden + offset, length);
	atomic_fetch_add(&copies, 1);
	return 0;
}

static struct wh_mooncake_server *server;
static struct wh_mooncake_segment segment;
static struct wh_mooncake_memory served[2];

static int start(void **state)
{
	struct wh_mooncake_server_options options = {
		.listen = "127.0.0.1:0",
		.memories = served,
		.count = 2,
		.staging = staging,
		.staging_size = sizeof(staging),
		.copy = copy,
	};

	(void)state;
	memcpy(served, memories, sizeof(served));
	served[1].address = (uintptr_t)direct;
	assert_int_equal(wh_mooncake_serve(&options, &server), 0);
	assert_int_equal(wh_mooncake_fetch(wh_mooncake_control(server), LONG, &segment), 0);
	assert_int_equal(segment.count, 2);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	wh_mooncake_segment_free(&segment);
	wh_mooncake_stop(server);
	return 0;
}

static bool bytes_are(const unsigned char *bytes, size_t length, unsigned char value)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != value)
			return false;
	return true;
}

static int finish(struct wh_mooncake_connection *connection)
{
	bool ended;
	int error = wh_mooncake_connection_wait(connection, LONG, &ended);

	assert_true(ended);
	return error;
}

/* Several connections at once, each with a part of its own, to both memories and back. */
static void lanes__both_ways(void **state)
{
	const size_t part = LENGTH / CONNECTIONS;
	unsigned char *bytes = malloc(LENGTH), *back = malloc(LENGTH);
	struct wh_mooncake_connection connections[CONNECTIONS];
	uint64_t random = 7;

	(void)state;
	assert_true(bytes && back);
	for (unsigned version = 1; version <= 2; version++) {
		segment.version = version;
		for (int i = 0; i < CONNECTIONS; i++)
			assert_int_equal(wh_mooncake_connection_open(&connections[i], &segment,
								     "127.0.0.1", LONG),
					 0);
		for (int m = 0; m < 2; m++) {
			for (size_t i = 0; i < LENGTH; i++)
				bytes[i] = (unsigned char)next_random(&random);
			for (size_t i = 0; i < CONNECTIONS; i++)
				wh_mooncake_connection_start(&connections[i], true,
							     bytes + i * part,
							     served[m].address + i * part, part);
			for (int i = 0; i < CONNECTIONS; i++)
				assert_int_equal(finish(&connections[i]), 0);
			for (size_t i = 0; i < CONNECTIONS; i++)
				wh_mooncake_connection_start(&connections[i], false,
							     back + i * part,
							     served[m].address + i * part, part);
			for (int i = 0; i < CONNECTIONS; i++)
				assert_int_equal(finish(&connections[i]), 0);
			assert_memory_equal(bytes, back, LENGTH);
		}
		for (int i = 0; i < CONNECTIONS; i++)
			wh_mooncake_connection_close(&connections[i]);
	}
	assert_true(atomic_load(&copies) >= 2 * 2 * LENGTH / (int)sizeof(staging));
	free(bytes);
	free(back);
}

static void lanes__refused(void **state)
{
	struct wh_mooncake_connection connection;
	unsigned char byte = 0;

	(void)state;
	segment.version = 2;
	assert_int_equal(wh_mooncake_connection_open(&connection, &segment, "127.0.0.1", LONG), 0);
	wh_mooncake_connection_start(&connection, true, &byte, 4095, 1);
	assert_int_equal(finish(&connection), -EACCES);
	assert_non_null(strstr(connection.text, "0xfff"));
	/* The next one goes over a connection of its own. */
	wh_mooncake_connection_start(&connection, true, &byte, 4096, 1);
	assert_int_equal(finish(&connection), 0);
	wh_mooncake_connection_close(&connection);
}

/* How many are done; the others may be repeated. */
static unsigned several(struct wh_mooncake_connection *connection, bool write,
			const struct wh_mooncake_move *moves, unsigned count)
{
	unsigned lost, done;
	int error;

	done = wh_mooncake_connection_several(connection, write, moves, count, &lost, &error);
	assert_int_equal(lost, 0);
	assert_true(done == count ? !error : error);
	return done;
}

/* Several reads that are asked for together: they are done up to the first that is not to be had.
 */
static void lanes__several(void **state)
{
	const size_t part = 65536 - 17;
	unsigned char *back = malloc(LENGTH);
	struct wh_mooncake_move reads[WH_MOONCAKE_MOVES];
	struct wh_mooncake_connection connection;
	uint64_t random = 8;

	(void)state;
	assert_non_null(back);
	for (size_t i = 0; i < LENGTH; i++)
		direct[i] = hidden[i] = (unsigned char)next_random(&random);
	for (segment.version = 1; segment.version <= 2; segment.version++) {
		assert_int_equal(
			wh_mooncake_connection_prepare(&connection, &segment, "127.0.0.1", LONG),
			0);
		memset(back, 0, LENGTH);
		for (size_t i = 0; i < WH_MOONCAKE_MOVES; i++)
			reads[i] =
				(struct wh_mooncake_move){ back + i * part,
							   served[i & 1].address + i * part, part };
		assert_int_equal(several(&connection, false, reads, WH_MOONCAKE_MOVES),
				 WH_MOONCAKE_MOVES);
		assert_memory_equal(back, direct, WH_MOONCAKE_MOVES * part);
		memset(back, 0, LENGTH);
		reads[3].remote = 4095;
		assert_int_equal(several(&connection, false, reads, WH_MOONCAKE_MOVES), 3);
		assert_memory_equal(back, direct, 3 * part);
		assert_true(bytes_are(back + 3 * part, LENGTH - 3 * part, 0));
		/* By a connection of its own. Writes over version 1 are confirmed by nobody. */
		assert_int_equal(wh_mooncake_connection_move(&connection, false, back,
							     served[0].address, part),
				 0);
		reads[3].remote = served[1].address + 3 * part;
		for (size_t i = 0; segment.version == 2 && i < LENGTH; i++)
			back[i] = (unsigned char)next_random(&random);
		if (segment.version == 2) {
			assert_int_equal(several(&connection, true, reads, WH_MOONCAKE_MOVES),
					 WH_MOONCAKE_MOVES);
			for (size_t i = 0; i < WH_MOONCAKE_MOVES; i++)
				assert_memory_equal((i & 1 ? direct : hidden) + i * part,
						    back + i * part, part);
			reads[5].remote = 4095;
			assert_int_equal(several(&connection, true, reads, WH_MOONCAKE_MOVES), 5);
		}
		wh_mooncake_connection_abort(&connection);
		assert_int_equal(several(&connection, false, reads, 1), 0);
		wh_mooncake_connection_close(&connection);
	}
	segment.version = 2;
	free(back);
}

/* An engine that ends the connection after each answer. */
static void *answer_once(void *listener)
{
	unsigned char bytes[WH_MOONCAKE_HEADER];
	int fd = accept(*(int *)listener, NULL, NULL);

	if (recv(fd, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes))
		send(fd, "answer", 6, MSG_NOSIGNAL);
	shutdown(fd, SHUT_WR);
	while (recv(fd, bytes, sizeof(bytes), 0) > 0)
		;
	close(fd);
	return NULL;
}

/* The port is `segment`'s. */
static int listen_here(struct wh_mooncake_segment *other)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
	other->port = ntohs(at.sin_port);
	return listener;
}

static void lanes__one_at_a_time(void **state)
{
	struct wh_mooncake_segment other = { .version = 1 };
	unsigned char back[3][6] = { "" };
	struct wh_mooncake_move reads[3];
	struct wh_mooncake_connection connection;
	int listener = listen_here(&other);
	pthread_t thread;

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		reads[i] = (struct wh_mooncake_move){ back[i], i, 6 };
	assert_int_equal(wh_mooncake_connection_prepare(&connection, &other, "127.0.0.1", LONG), 0);
	assert_int_equal(pthread_create(&thread, NULL, answer_once, &listener), 0);
	assert_int_equal(several(&connection, false, reads, 3), 1);
	assert_memory_equal(back[0], "answer", 6);
	wh_mooncake_connection_close(&connection);
	pthread_join(thread, NULL);
	close(listener);
}

/* The kernel takes all bytes, and nobody answers: they may be taken later, so the writes have
 * failed. Reads may be repeated. */
static void lanes__silent(void **state)
{
	struct wh_mooncake_segment other = { .version = 2 };
	struct wh_mooncake_move moves[3];
	struct wh_mooncake_connection connection;
	unsigned char bytes[3][6] = { "" };
	int error, listener = listen_here(&other);
	unsigned lost;

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		moves[i] = (struct wh_mooncake_move){ bytes[i], i, 6 };
	assert_int_equal(
		wh_mooncake_connection_prepare(&connection, &other, "127.0.0.1", WH_SECOND / 10),
		0);
	assert_int_equal(wh_mooncake_connection_several(&connection, true, moves, 3, &lost, &error),
			 0);
	assert_int_equal(lost, 3);
	assert_int_equal(error, -ETIMEDOUT);
	assert_int_equal(
		wh_mooncake_connection_several(&connection, false, moves, 3, &lost, &error), 0);
	assert_int_equal(lost, 0);
	assert_int_equal(error, -ETIMEDOUT);
	wh_mooncake_connection_close(&connection);
	close(listener);
}

/* Closed in the middle of something, and before anything. */
static void lanes__close(void **state)
{
	unsigned char *bytes = calloc(1, LENGTH);
	struct wh_mooncake_connection connection;

	(void)state;
	assert_non_null(bytes);
	assert_int_equal(wh_mooncake_connection_open(&connection, &segment, "127.0.0.1", LONG), 0);
	wh_mooncake_connection_close(&connection);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(
			wh_mooncake_connection_open(&connection, &segment, "127.0.0.1", LONG), 0);
		wh_mooncake_connection_start(&connection, i & 1, bytes, 4096, LENGTH);
		wh_mooncake_connection_close(&connection);
	}
	free(bytes);
	/* One that is all zero was never opened. */
	memset(&connection, 0, sizeof(connection));
	wh_mooncake_connection_close(&connection);
}

/* What is published changes: who is in the middle of what is gone is cut off, the other memory
 * stays. */
static void server__update(void **state)
{
	struct wh_mooncake_memory *others = calloc(1, sizeof(*others));
	unsigned char *bytes = calloc(1, LENGTH);
	struct wh_mooncake_connection connections[2];
	int error;

	(void)state;
	assert_true(others && bytes);
	others[0] = served[1];
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_mooncake_connection_prepare(&connections[i], &segment,
								"127.0.0.1", LONG),
				 0);
		assert_int_equal(wh_mooncake_connection_move(&connections[i], true, bytes,
							     served[i].address, LENGTH),
				 0);
	}
	wh_mooncake_update(server, others, 1, staging);
	error = wh_mooncake_connection_move(&connections[0], true, bytes, served[0].address, 1);
	assert_int_equal(error, -EACCES);
	assert_int_equal(wh_mooncake_connection_move(&connections[1], false, bytes,
						     served[1].address, LENGTH),
			 0);
	wh_mooncake_update(server, served, 2, staging);
	free(others);
	assert_int_equal(wh_mooncake_connection_move(&connections[0], true, bytes,
						     served[0].address, LENGTH),
			 0);
	wh_mooncake_connection_close(&connections[0]);
	wh_mooncake_connection_close(&connections[1]);
	free(bytes);
}

/* Half of a write has come when its memory goes. */
static void server__update_in_the_middle(void **state)
{
	struct wh_mooncake_request request = { .length = LENGTH, .write = true, .status = true };
	struct wh_mooncake_endpoint data;
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	unsigned char header[WH_MOONCAKE_HEADER];
	int fd = socket(AF_INET, SOCK_STREAM, 0), before;

	(void)state;
	request.address = served[0].address;
	assert_int_equal(wh_mooncake_endpoint_read(wh_mooncake_data(server), &data), 0);
	to.sin_port = htons(data.port);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	wh_mooncake_request_format(&request, header);
	before = atomic_load(&copies);
	assert_int_equal(send(fd, header, sizeof(header), 0), sizeof(header));
	assert_int_equal(send(fd, direct, 1000, 0), 1000);
	while (atomic_load(&copies) == before)
		sched_yield();
	wh_mooncake_update(server, &served[1], 1, staging);
	/* Neither a status nor room for more. */
	assert_true(recv(fd, header, sizeof(header), 0) <= 0);
	close(fd);
	wh_mooncake_update(server, served, 2, staging);
}

static void *cut_soon(void *connection)
{
	wh_mooncake_connection_abort(connection);
	return NULL;
}

/* What moves on the calling thread ends when another one cuts it, if not before. */
static void lanes__cut(void **state)
{
	unsigned char *bytes = calloc(1, LENGTH);
	struct wh_mooncake_connection connection;
	pthread_t thread;
	int error;

	(void)state;
	assert_non_null(bytes);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(
			wh_mooncake_connection_prepare(&connection, &segment, "127.0.0.1", LONG),
			0);
		assert_int_equal(pthread_create(&thread, NULL, cut_soon, &connection), 0);
		error = wh_mooncake_connection_move(&connection, i & 1, bytes, 4096, LENGTH);
		pthread_join(thread, NULL);
		assert_true(!error || error == -ECANCELED);
		assert_int_equal(wh_mooncake_connection_move(&connection, false, bytes, 4096, 1),
				 -ECANCELED);
		wh_mooncake_connection_close(&connection);
	}
	free(bytes);
}

static int inbox; /* what the next notification gets */

static int take(void *arg, const char *name, const char *message)
{
	assert_true(arg == &inbox && !strcmp(name, "a") && !strcmp(message, "b"));
	return inbox;
}

/* Confirmed, or not; and what it says of itself as one of Wherry's. */
static void server__notified(void **state)
{
	struct wh_mooncake_server_options options = {
		.listen = "127.0.0.1:0",
		.notified = take,
		.arg = &inbox,
		.wherry = "wherry://127.0.0.1:7",
		.epoch = UINT64_C(0xfedcba9876543210),
	};
	struct wh_mooncake_segment told;
	struct wh_mooncake_server *other;

	(void)state;
	assert_string_equal(segment.wherry, "");
	assert_int_equal(wh_mooncake_serve(&options, &other), 0);
	assert_int_equal(wh_mooncake_notify(wh_mooncake_control(other), "a", "b", LONG), 0);
	inbox = -ENOBUFS;
	assert_int_equal(wh_mooncake_notify(wh_mooncake_control(other), "a", "b", LONG),
			 -ECONNRESET);
	assert_int_equal(wh_mooncake_notify(wh_mooncake_control(other), "\xff", "b", LONG),
			 -EINVAL);
	assert_int_equal(wh_mooncake_probe(wh_mooncake_control(other), LONG), 0);
	assert_int_equal(wh_mooncake_fetch(wh_mooncake_control(other), LONG, &told), 0);
	assert_string_equal(told.wherry, options.wherry);
	assert_true(told.epoch == options.epoch);
	wh_mooncake_segment_free(&told);
	wh_mooncake_stop(other);
}

/* The server goes while a lane has a connection to it. */
static void server__goes(void **state)
{
	struct wh_mooncake_connection connection;
	unsigned char byte;

	assert_int_equal(wh_mooncake_connection_open(&connection, &segment, "127.0.0.1", LONG), 0);
	wh_mooncake_connection_start(&connection, false, &byte, 4096, 1);
	assert_int_equal(finish(&connection), 0);
	stop(state);
	wh_mooncake_connection_start(&connection, false, &byte, 4096, 1);
	assert_int_equal(finish(&connection), -ECONNREFUSED);
	wh_mooncake_connection_close(&connection);
	start(state);
}

/* A child of fork() holds copies of all sockets, and outlives the server: nobody waits for it. */
static void server__goes_before_a_child(void **state)
{
	struct wh_mooncake_connection connection;
	struct wh_mooncake_server_options options = { .memories = served,
						      .count = 2,
						      .staging = staging,
						      .staging_size = sizeof(staging),
						      .copy = copy };
	struct wh_mooncake_server *other;
	unsigned char byte;
	char address[96];
	pid_t child;

	snprintf(address, sizeof(address), "%s", wh_mooncake_control(server));
	options.listen = address;
	assert_int_equal(
		wh_mooncake_connection_open(&connection, &segment, "127.0.0.1", 5 * WH_SECOND), 0);
	wh_mooncake_connection_start(&connection, false, &byte, 4096, 1);
	assert_int_equal(finish(&connection), 0);
	child = fork();
	if (!child)
		for (;;)
			pause();
	stop(state);
	wh_mooncake_connection_start(&connection, false, &byte, 4096, 1);
	assert_int_equal(finish(&connection), -ECONNREFUSED);
	wh_mooncake_connection_close(&connection);
	assert_int_equal(wh_mooncake_serve(&options, &other), 0);
	wh_mooncake_stop(other);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	start(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lanes__both_ways),
		cmocka_unit_test(lanes__refused),
		cmocka_unit_test(lanes__several),
		cmocka_unit_test(lanes__one_at_a_time),
		cmocka_unit_test(lanes__silent),
		cmocka_unit_test(lanes__close),
		cmocka_unit_test(lanes__cut),
		cmocka_unit_test(server__update),
		cmocka_unit_test(server__update_in_the_middle),
		cmocka_unit_test(server__notified),
		cmocka_unit_test(server__goes),
		cmocka_unit_test(server__goes_before_a_child),
	};

	return cmocka_run_group_tests_name("mooncake-server", tests, start, stop);
}
