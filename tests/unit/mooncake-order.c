/* SPDX-License-Identifier: Apache-2.0 */
/* In which order the server does what one client asks for over several connections. */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compat/mooncake/internal.h"
#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/order.h"

#define LENGTH (4 << 20)
#define HALF (LENGTH / 2)
#define SMALL 64
#define STALLED 4096 /* the address of memory at which the server stops when it is written */

static unsigned char memory[LENGTH], staging[4096], bytes[LENGTH], back[LENGTH];
static struct wh_mooncake_memory memories[] = {
	{ .length = LENGTH, .writable = true, .name = "memory" },
	{ .address = STALLED, .length = 1, .writable = true, .staged = true, .name = "stalled" },
};
static struct wh_mooncake_server *server;
static atomic_int stalls;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_int given_up;

/* On the server's thread, which does nothing else for as long as the gate is shut. */
static int copy(void *arg, const struct wh_mooncake_memory *which, uint64_t offset, size_t length,
		bool to_memory)
{
	(void)arg, (void)which, (void)offset, (void)length, (void)to_memory;
	atomic_fetch_add(&stalls, 1);
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
	return 0;
}

static void note(void *arg, const char *line)
{
	(void)arg;
	if (strstr(line, "no longer wait"))
		atomic_fetch_add(&given_up, 1);
	else
		fprintf(stderr, "%s\n", line);
}

static int start(void **state)
{
	struct wh_mooncake_server_options options = {
		.listen = "0.0.0.0:0",
		.memories = memories,
		.count = 2,
		.log = note,
		.staging = staging,
		.staging_size = sizeof(staging),
		.copy = copy,
	};

	(void)state;
	memories[0].address = (uintptr_t)memory;
	memset(memory, 0, sizeof(memory));
	atomic_store(&given_up, 0);
	for (size_t i = 0; i < LENGTH; i++)
		bytes[i] = (unsigned char)(i % 251 + 1);
	assert_int_equal(wh_mooncake_serve(&options, &server), 0);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	wh_mooncake_stop(server);
	return 0;
}

/* ---- a client ------------------------------------------------------------------------------ */

static int dial_from(const char *host)
{
	struct sockaddr_in from = { .sin_family = AF_INET }, to = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	struct wh_mooncake_endpoint data;

	assert_int_equal(wh_mooncake_endpoint_read(wh_mooncake_data(server), &data), 0);
	assert_int_equal(inet_pton(AF_INET, host, &from.sin_addr), 1);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons(data.port);
	assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static int dial(void)
{
	return dial_from("127.0.0.1");
}

/* When it returns the bytes are in the server's socket, be they read or not: a busy kernel may take
 * what is sent later over another connection there sooner. */
static void put(int fd, const void *what, size_t length)
{
	int left;

	assert_int_equal(send(fd, what, length, MSG_NOSIGNAL), length);
	do {
		assert_int_equal(ioctl(fd, SIOCOUTQ, &left), 0);
		if (left)
			sched_yield();
	} while (left);
}

static void ask(int fd, bool write, unsigned version, uint64_t address, uint64_t length)
{
	struct wh_mooncake_request request = {
		.write = write,
		.status = version == 2,
		.address = address,
		.length = length,
	};
	unsigned char header[WH_MOONCAKE_HEADER];

	wh_mooncake_request_format(&request, header);
	put(fd, header, sizeof(header));
}

static void take(int fd, void *where, size_t length)
{
	assert_int_equal(recv(fd, where, length, MSG_WAITALL), length);
}

/* The server has looked at all that had come to it before. */
static void settle(const char *host)
{
	int fd = dial_from(host);
	unsigned char status[WH_MOONCAKE_STATUS];

	for (int i = 0; i < 2; i++) {
		ask(fd, true, 2, STALLED, 1);
		put(fd, "", 1);
		take(fd, status, sizeof(status));
	}
	close(fd);
}

/* From here on what is sent stays in the server's sockets. The connection that did it. */
static int shut_gate(void)
{
	int fd = dial_from("127.0.0.2"), before = atomic_load(&stalls);

	pthread_mutex_lock(&gate);
	ask(fd, true, 1, STALLED, 1);
	put(fd, "", 1);
	while (atomic_load(&stalls) == before)
		sched_yield();
	return fd;
}

static void open_gate(int fd)
{
	pthread_mutex_unlock(&gate);
	close(fd);
}

/* ---- writes of which a part has come --------------------------------------------------------- */

static void do_nothing(void *argument)
{
	(void)argument;
}

/* After what the server has done so far, which clients know of by their sockets and the thread
 * sanitizer does not. */
static void clear_memory(void)
{
	wh_loop_call(&server->loop, do_nothing, NULL);
	memset(memory, 0, sizeof(memory));
}

static int half_a_write(unsigned version)
{
	int fd = dial();

	clear_memory();
	ask(fd, true, version, memories[0].address, LENGTH);
	put(fd, bytes, HALF);
	settle("127.0.0.1");
	return fd;
}

static bool are(const unsigned char *what, size_t length, unsigned char value)
{
	for (size_t i = 0; i < length; i++)
		if (what[i] != value)
			return false;
	return true;
}

/* A client of version 1 knows no more than that its kernel has taken the bytes. */
static void half__read(void **state)
{
	unsigned char status[WH_MOONCAKE_STATUS];

	(void)state;
	for (unsigned version = 1; version <= 2; version++) {
		int writer = half_a_write(1), reader = dial();

		ask(reader, false, version, memories[0].address + HALF - SMALL, 2 * SMALL);
		settle("127.0.0.1");
		put(writer, bytes + HALF, HALF);
		if (version == 2)
			take(reader, status, sizeof(status));
		take(reader, back, 2 * SMALL);
		assert_memory_equal(back, bytes + HALF - SMALL, 2 * SMALL);
		close(writer);
		close(reader);
	}
	assert_int_equal(atomic_load(&given_up), 0);
}

/* The reader's connection is the older one. */
static void half__read_on_an_older_connection(void **state)
{
	int reader = dial(), writer;

	(void)state;
	ask(reader, false, 1, memories[0].address, 1);
	take(reader, back, 1);
	writer = half_a_write(1);
	ask(reader, false, 1, memories[0].address + LENGTH - 1, 1);
	settle("127.0.0.1");
	put(writer, bytes + HALF, HALF);
	take(reader, back, 1);
	assert_int_equal(back[0], bytes[LENGTH - 1]);
	close(writer);
	close(reader);
}

/* A second write, and a third, over the same bytes; then a read. */
static void half__writes(void **state)
{
	int writers[3], reader;

	(void)state;
	writers[0] = half_a_write(1);
	for (int i = 1; i < 3; i++) {
		unsigned char some[SMALL];

		writers[i] = dial();
		memset(some, 0xfe + i - 1, SMALL);
		ask(writers[i], true, 1, memories[0].address + LENGTH - SMALL - 7 * (i - 1), SMALL);
		put(writers[i], some, SMALL);
		settle("127.0.0.1");
	}
	reader = dial();
	ask(reader, false, 1, memories[0].address, LENGTH);
	settle("127.0.0.1");
	put(writers[0], bytes + HALF, HALF);
	take(reader, back, LENGTH);
	assert_memory_equal(back, bytes, LENGTH - SMALL - 7);
	assert_true(are(back + LENGTH - SMALL - 7, SMALL, 0xff));
	assert_true(are(back + LENGTH - 7, 7, 0xfe));
	assert_int_equal(atomic_load(&given_up), 0);
	for (int i = 0; i < 3; i++)
		close(writers[i]);
	close(reader);
}

/* Nobody waits for other bytes, for other clients, or for a write that will be confirmed. */
static void half__others(void **state)
{
	static const struct {
		unsigned version;
		const char *host;
		uint64_t offset, length;
	} others[] = {
		{ 2, "127.0.0.1", 0, LENGTH },
		{ 1, "127.0.0.3", 0, LENGTH },
		{ 1, "127.0.0.1", LENGTH - SMALL, SMALL },
	};

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		int writer = dial(), reader = dial_from(others[i].host);

		clear_memory();
		ask(writer, true, others[i].version, memories[0].address, LENGTH - SMALL);
		put(writer, bytes, HALF);
		settle("127.0.0.1");
		ask(reader, false, 1, memories[0].address + others[i].offset, others[i].length);
		take(reader, back, others[i].length);
		assert_true(are(back + others[i].length - SMALL, SMALL, 0));
		close(writer);
		close(reader);
	}
	assert_int_equal(atomic_load(&given_up), 0);
}

/* The rest of the write never comes. */
static void half__for_ever(void **state)
{
	int writer = half_a_write(1), reader = dial();

	(void)state;
	ask(reader, false, 1, memories[0].address, LENGTH);
	take(reader, back, LENGTH);
	assert_memory_equal(back, bytes, HALF);
	assert_true(are(back + HALF, HALF, 0));
	assert_int_equal(atomic_load(&given_up), 1);
	/* It goes on, when it does. */
	put(writer, bytes + HALF, HALF);
	ask(writer, false, 1, memories[0].address, LENGTH);
	take(writer, back, LENGTH);
	assert_memory_equal(back, bytes, LENGTH);
	close(writer);
	close(reader);
}

/* The connection of either ends, its memory is published no more, the server ends. */
static void half__gone(void **state)
{
	struct linger reset = { .l_onoff = 1 };
	int writer = half_a_write(1), reader = dial(), gone = dial();

	ask(gone, false, 1, memories[0].address, LENGTH);
	ask(reader, false, 1, memories[0].address, LENGTH);
	settle("127.0.0.1");
	setsockopt(gone, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(gone);
	close(writer);
	take(reader, back, LENGTH);
	assert_memory_equal(back, bytes, HALF);
	assert_true(are(back + HALF, HALF, 0));

	writer = half_a_write(1);
	ask(reader, false, 1, memories[0].address, LENGTH);
	settle("127.0.0.1");
	wh_mooncake_update(server, memories + 1, 1, staging);
	assert_int_equal(recv(reader, back, 1, 0), 0);
	wh_mooncake_update(server, memories, 2, staging);
	close(writer);
	close(reader);
	assert_int_equal(atomic_load(&given_up), 0);

	writer = half_a_write(1);
	reader = dial();
	ask(reader, false, 1, memories[0].address, LENGTH);
	settle("127.0.0.1");
	stop(state);
	assert_true(recv(reader, back, 1, 0) <= 0);
	close(writer);
	close(reader);
	start(state);
}

/* ---- what has come while the server did something else --------------------------------------- */

#define OLD 8 /* connections, which are used again and again */
#define ALL 12
#define ROUNDS 24
#define HALVES (SMALL / 2)

/* Writes and reads of a few bytes over connections old and new, one after the other, all of them
 * before the server looks at the first. A read has to see each write that came before it, and may
 * see newer ones. Of two writes the newer one has to be seen in the end, but if nobody can know
 * which that is: a connection writes once, and old and new ones write different bytes. */
static void order__of_arrival(void **state)
{
	unsigned char now[SMALL], wanted[ALL][SMALL], got[SMALL];
	uint64_t random = 77;
	int fds[ALL];

	(void)state;
	for (int i = 0; i < OLD; i++)
		fds[i] = dial();
	for (int round = 0; round < ROUNDS; round++) {
		bool written[ALL] = { false }, read[ALL] = { false };
		int stalled, used = OLD;

		settle("127.0.0.1");
		clear_memory();
		memset(now, 0, SMALL);
		stalled = shut_gate();
		for (int i = 0; i < 2 * ALL; i++) {
			int which = (int)(next_random(&random) % ALL);
			bool write = next_random(&random) & 1;
			size_t at = next_random(&random) % HALVES,
			       length = 1 + next_random(&random) % (HALVES - at);

			/* New ones come one by one. */
			if (which >= used) {
				which = used++;
				fds[which] = dial();
			}
			if (read[which] || (write && written[which]))
				continue;
			if (write) {
				at += which < OLD ? 0 : HALVES;
				memset(now + at, i + 1, length);
				ask(fds[which], true, 1, memories[0].address + at, length);
				put(fds[which], now + at, length);
				written[which] = true;
			} else {
				ask(fds[which], false, 1, memories[0].address, SMALL);
				memcpy(wanted[which], now, SMALL);
				read[which] = true;
			}
		}
		open_gate(stalled);
		for (int i = 0; i < used; i++) {
			if (!read[i])
				continue;
			take(fds[i], got, SMALL);
			for (size_t b = 0; b < SMALL; b++)
				assert_true(got[b] >= wanted[i][b]);
		}
		settle("127.0.0.1");
		assert_memory_equal(memory, now, SMALL);
		while (used > OLD)
			close(fds[--used]);
	}
	for (int i = 0; i < OLD; i++)
		close(fds[i]);
}

/* A write and a read over one connection, and between the two a write over another one. */
static void order__read_behind_a_write(void **state)
{
	(void)state;
	for (int round = 0; round < 4; round++) {
		int one = dial(), other = dial(), stalled;

		settle("127.0.0.1");
		stalled = shut_gate();
		ask(one, true, 1, memories[0].address + SMALL, SMALL);
		put(one, bytes, SMALL);
		ask(other, true, 1, memories[0].address, SMALL);
		put(other, bytes + round, SMALL);
		ask(one, false, 1, memories[0].address, SMALL);
		open_gate(stalled);
		take(one, back, SMALL);
		assert_memory_equal(back, bytes + round, SMALL);
		close(one);
		close(other);
	}
}

/* ---- without sockets, and with a clock of its own -------------------------------------------- */

static void turns__bounds(void **state)
{
	struct wh_mooncake_turn writes[2], reads[2];
	struct wh_mooncake_order order;
	int64_t now = 5;

	(void)state;
	wh_mooncake_order_open(&order);
	for (int i = 0; i < 2; i++) {
		wh_mooncake_turn_open(&writes[i], 7);
		wh_mooncake_turn_open(&reads[i], 7);
	}
	/* One that goes on and on is waited for, but not for ever. */
	assert_true(wh_mooncake_turn_begin(&order, &writes[0], 0, 100, true, now));
	assert_false(wh_mooncake_turn_begin(&order, &reads[0], 99, 1, false, now));
	for (; now < 5 + WH_MOONCAKE_WAIT; now += WH_MOONCAKE_STILL / 2) {
		assert_int_equal(wh_mooncake_order_expire(&order, now), 0);
		assert_null(wh_mooncake_order_next(&order));
		wh_mooncake_turn_moved(&writes[0], now);
	}
	assert_int_equal(wh_mooncake_order_expire(&order, now), 1);
	assert_ptr_equal(wh_mooncake_order_next(&order), &reads[0]);
	assert_null(wh_mooncake_order_next(&order));
	/* The next one that waits begins anew. One that is still is not waited for again. */
	assert_false(wh_mooncake_turn_begin(&order, &reads[0], 99, 1, false, now));
	now += WH_MOONCAKE_STILL;
	assert_int_equal(wh_mooncake_order_expire(&order, now), 1);
	assert_ptr_equal(wh_mooncake_order_next(&order), &reads[0]);
	assert_true(wh_mooncake_turn_begin(&order, &reads[1], 99, 1, false, now));
	/* One that waits is not still: nobody but the one that it waits for can move it. */
	assert_true(wh_mooncake_turn_begin(&order, &writes[0], 0, 100, true, now));
	assert_false(wh_mooncake_turn_begin(&order, &writes[1], 90, 20, true, now));
	assert_false(wh_mooncake_turn_begin(&order, &reads[0], 105, 1, false, now));
	now += WH_MOONCAKE_STILL;
	wh_mooncake_turn_moved(&writes[0], now);
	assert_int_equal(wh_mooncake_order_expire(&order, now), 0);
	wh_mooncake_turn_end(&order, &writes[0]);
	assert_ptr_equal(wh_mooncake_order_next(&order), &writes[1]);
	assert_null(wh_mooncake_order_next(&order));
	wh_mooncake_turn_close(&order, &writes[1]);
	assert_ptr_equal(wh_mooncake_order_next(&order), &reads[0]);
	assert_true(wh_list_empty(&order.writes) && wh_list_empty(&order.waiting) &&
		    wh_list_empty(&order.due));
}

#define TURNS 12
#define STEPS 20000

/* Any order of events: who is begun has no older unconfirmed write of its client's bytes before it
 * that is not over, and when all writes are over nobody waits. */
static void turns__any_order(void **state)
{
	struct wh_mooncake_turn turns[TURNS];
	enum { IDLE, WAITING, RUNNING } is[TURNS] = { IDLE };
	bool write[TURNS] = { false };
	struct wh_mooncake_order order;
	uint64_t random = 5;

	(void)state;
	wh_mooncake_order_open(&order);
	for (unsigned i = 0; i < TURNS; i++)
		wh_mooncake_turn_open(&turns[i], i % 2);
	for (int step = 0; step < STEPS + TURNS; step++) {
		unsigned i =
			(unsigned)(step < STEPS ? next_random(&random) : (uint64_t)step) % TURNS;
		struct wh_mooncake_turn *turn = &turns[i];

		if (is[i] == IDLE && step < STEPS) {
			write[i] = next_random(&random) & 1;
			is[i] = wh_mooncake_turn_begin(&order, turn, next_random(&random) % 90,
						       1 + next_random(&random) % 9, write[i], 0) ?
					RUNNING :
					WAITING;
		} else if (is[i] == RUNNING) {
			if (write[i])
				wh_mooncake_turn_end(&order, turn);
			is[i] = IDLE;
		} else if (step >= STEPS || next_random(&random) % 8 == 0) {
			wh_mooncake_turn_close(&order, turn);
			wh_mooncake_turn_open(turn, i % 2);
			is[i] = IDLE;
		}
		while ((turn = wh_mooncake_order_next(&order))) {
			i = (unsigned)(turn - turns);
			assert_int_equal(is[i], WAITING);
			is[i] = RUNNING;
		}
		for (unsigned j = 0; j < TURNS; j++) {
			bool free = true;

			for (unsigned k = j % 2; k < TURNS && is[j] != IDLE; k += 2)
				free &= !(write[k] && is[k] != IDLE &&
					  turns[k].number < turns[j].number &&
					  turns[k].address < turns[j].address + turns[j].length &&
					  turns[j].address < turns[k].address + turns[k].length);
			if (is[j] != IDLE)
				assert_int_equal(is[j] == RUNNING, free);
		}
	}
	assert_true(wh_list_empty(&order.writes) && wh_list_empty(&order.waiting) &&
		    wh_list_empty(&order.due));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(half__read, start, stop),
		cmocka_unit_test_setup_teardown(half__read_on_an_older_connection, start, stop),
		cmocka_unit_test_setup_teardown(half__writes, start, stop),
		cmocka_unit_test_setup_teardown(half__others, start, stop),
		cmocka_unit_test_setup_teardown(half__for_ever, start, stop),
		cmocka_unit_test_setup_teardown(half__gone, start, stop),
		cmocka_unit_test_setup_teardown(order__of_arrival, start, stop),
		cmocka_unit_test_setup_teardown(order__read_behind_a_write, start, stop),
		cmocka_unit_test(turns__bounds),
		cmocka_unit_test(turns__any_order),
	};

	return cmocka_run_group_tests_name("mooncake-order", tests, NULL, NULL);
}
