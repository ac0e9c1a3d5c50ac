/* SPDX-License-Identifier: Apache-2.0 */
/* transport-tcp.c: which threads send and receive the bytes of batches, that none of them stay in a
 * socket for others to follow, and that none arrive after a cancel */
#include "unit.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "wire/wire.h"

#define BLOCK ((size_t)64 << 10)
#define MANY 32
#define ROUNDS 20
#define PAYLOAD (8u << 10) /* bytes; a shorter send has no payload of a batch, or its end */
#define SOCKETS 1024
#define PORTS 65536
#define LOOPS 2
#define PATIENCE 60000000000 /* ns: for what would never come */
#define PAIRS 8 /* of engines, since connections may be accepted in the order of their making */

static pthread_t program; /* the thread that submits and waits */
static _Atomic uint64_t by_program, by_others; /* bytes sent, or received while it reads */
static _Atomic bool reading;
static _Atomic bool held[SOCKETS]; /* the socket may hold bytes back until others follow */
static _Atomic unsigned holds;
/* By the port at the initiator: the threads (tid), not the program's, that have sent and received
 * last. */
static _Atomic pid_t senders[PORTS], receivers[PORTS];

/* A data connection whose packets from PROVE on are late: they are kept here. */
static struct {
	_Atomic bool armed; /* the next PROVE begins it */
	_Atomic int fd; /* of the library; -1: none */
	int copy; /* of that descriptor, so that the connection lasts */
	uint8_t bytes[2 * BLOCK];
	_Atomic size_t length;
} late = { .fd = -1 };
/* So many calls of socket() have no descriptor left; so many HELLOs meet a connection that breaks.
 */
static _Atomic int no_sockets, no_hellos;
/* The next shutdown() sets the first and waits for the second. */
static _Atomic bool shuts, may_shut = true;

/* ---- between the library and the system ----------------------------------------------------- */

/* Keep what is sent by the late connection. -1: it is sent by another one. */
static ssize_t keep_late(int fd, const struct msghdr *message)
{
	size_t before = atomic_load(&late.length), length = before;

	if (message->msg_iovlen == 1 && message->msg_iov->iov_len == WH_PROVE_SIZE &&
	    atomic_exchange(&late.armed, false)) {
		late.copy = dup(fd);
		atomic_store(&late.fd, fd);
	}
	if (fd != atomic_load(&late.fd))
		return -1;
	for (size_t i = 0; i < message->msg_iovlen; i++) {
		const struct iovec *part = &message->msg_iov[i];

		assert_true(part->iov_len <= sizeof(late.bytes) - length);
		memcpy(late.bytes + length, part->iov_base, part->iov_len);
		length += part->iov_len;
	}
	atomic_store(&late.length, length);
	return (ssize_t)(length - before);
}

/* Break the connection instead of sending its HELLO, if one is to break. */
static bool break_hello(int fd, const struct msghdr *message)
{
	struct wh_frame frame;

	if (message->msg_iov->iov_len < WH_FRAME_HEADER ||
	    wh_frame_decode(message->msg_iov->iov_base, &frame) || frame.type != WH_FRAME_HELLO ||
	    atomic_load(&no_hellos) <= 0)
		return false;
	atomic_fetch_sub(&no_hellos, 1);
	shutdown(fd, SHUT_RDWR);
	return true;
}

int socket(int domain, int type, int protocol)
{
	static int (*_Atomic real)(int, int, int);

	if (!atomic_load(&real))
		atomic_store(&real, (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket"));
	if (atomic_load(&no_sockets) <= 0)
		return atomic_load(&real)(domain, type, protocol);
	atomic_fetch_sub(&no_sockets, 1);
	errno = EMFILE;
	return -1;
}

int shutdown(int fd, int how)
{
	static int (*_Atomic real)(int, int);

	if (!atomic_load(&real))
		atomic_store(&real, (int (*)(int, int))dlsym(RTLD_NEXT, "shutdown"));
	atomic_store(&shuts, true);
	while (!atomic_load(&may_shut))
		usleep(1000);
	return fd == atomic_load(&late.fd) ? 0 : atomic_load(&real)(fd, how);
}

static void note(_Atomic pid_t *threads, int fd, int (*end)(int, struct sockaddr *, socklen_t *))
{
	struct sockaddr_in address;
	socklen_t length = sizeof(address);

	if (!pthread_equal(pthread_self(), program) &&
	    !end(fd, (struct sockaddr *)&address, &length))
		atomic_store(&threads[ntohs(address.sin_port)], (pid_t)syscall(SYS_gettid));
}

static void count(ssize_t bytes)
{
	atomic_fetch_add(pthread_equal(pthread_self(), program) ? &by_program : &by_others,
			 (uint64_t)bytes);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	static ssize_t (*_Atomic real)(int, struct msghdr *, int);
	ssize_t got;

	if (!atomic_load(&real))
		atomic_store(&real,
			     (ssize_t(*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg"));
	got = atomic_load(&real)(fd, message, flags);
	if (got >= (ssize_t)PAYLOAD)
		note(receivers, fd, getpeername);
	if (got >= (ssize_t)PAYLOAD && atomic_load(&reading))
		count(got);
	return got;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	static ssize_t (*_Atomic real)(int, const struct msghdr *, int);
	ssize_t got;

	if (!atomic_load(&real))
		atomic_store(&real, (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT,
										       "sendmsg"));
	got = keep_late(fd, message);
	if (got >= 0)
		return got;
	if (break_hello(fd, message))
		return (ssize_t)message->msg_iov->iov_len;
	got = atomic_load(&real)(fd, message, flags);
	if (got > 0 && fd < SOCKETS) {
		atomic_store(&held[fd], flags & MSG_MORE);
		atomic_fetch_add(&holds, flags & MSG_MORE ? 1 : 0);
	}
	if (got >= (ssize_t)PAYLOAD)
		note(senders, fd, getsockname);
	if (got >= (ssize_t)PAYLOAD && !atomic_load(&reading))
		count(got);
	return got;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	static int (*_Atomic real)(int, int, int, const void *, socklen_t);

	if (!atomic_load(&real))
		atomic_store(&real, (int (*)(int, int, int, const void *, socklen_t))dlsym(
					    RTLD_NEXT, "setsockopt"));
	if (level == IPPROTO_TCP && name == TCP_NODELAY && fd < SOCKETS)
		atomic_store(&held[fd], false);
	return atomic_load(&real)(fd, level, name, value, length);
}

/* ---- two engines ---------------------------------------------------------------------------- */

struct pair {
	struct wh_engine *owner, *engine;
	struct wh_peer *peer;
	struct wh_region *target, *source;
	struct wh_batch *batch[MANY], *whole;
	uint8_t *to, *from;
};

static void pair_open_with(struct pair *pair, const char *const *config, uint32_t op)
{
	struct wh_engine_options options = { .size = sizeof(options), .config = config };
	struct wh_region_options access = { .size = sizeof(access),
					    .name = "target",
					    .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	struct wh_transfer all = { .length = MANY * BLOCK, .op = op };
	struct wh_remote remote;

	atomic_store(&reading, op == WH_READ);
	pair->to = calloc(MANY, BLOCK);
	pair->from = calloc(MANY, BLOCK);
	assert_true(pair->to && pair->from);
	memset(pair->to, 0xa5, MANY * BLOCK); /* what reads find; no round has that */
	options.listen = "127.0.0.1:0";
	assert_int_equal(wh_engine_open(&options, &pair->owner), 0);
	options.listen = "none";
	assert_int_equal(wh_engine_open(&options, &pair->engine), 0);
	assert_int_equal(
		wh_region_register(pair->owner, pair->to, MANY * BLOCK, &access, &pair->target), 0);
	assert_int_equal(
		wh_region_register(pair->engine, pair->from, MANY * BLOCK, NULL, &pair->source), 0);
	assert_int_equal(wh_peer_open(pair->engine, wh_engine_url(pair->owner), NULL, &pair->peer),
			 0);
	assert_int_equal(wh_peer_find(pair->peer, "target", WH_FOREVER, &remote), 0);
	for (size_t i = 0; i < MANY; i++) {
		struct wh_transfer transfer = { .local = pair->source,
						.local_offset = i * BLOCK,
						.remote = remote.id,
						.remote_offset = i * BLOCK,
						.length = BLOCK,
						.op = op };

		assert_int_equal(wh_batch_new(pair->peer, NULL, &pair->batch[i]), 0);
		assert_int_equal(wh_batch_add(pair->batch[i], &transfer, 1), 0);
	}
	all.local = pair->source;
	all.remote = remote.id;
	assert_int_equal(wh_batch_new(pair->peer, NULL, &pair->whole), 0);
	assert_int_equal(wh_batch_add(pair->whole, &all, 1), 0);
}

static void pair_open(struct pair *pair, const char *threads, uint32_t op)
{
	const char *const config[] = { "transports=tcp", "connections=4", threads, NULL };

	pair_open_with(pair, config, op);
}

static void pair_close(struct pair *pair)
{
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(wh_batch_free(pair->batch[i]), 0);
	assert_int_equal(wh_batch_free(pair->whole), 0);
	assert_int_equal(wh_region_unregister(pair->source), 0);
	assert_int_equal(wh_peer_close(pair->peer), 0);
	assert_int_equal(wh_engine_close(pair->engine), 0);
	assert_int_equal(wh_region_unregister(pair->target), 0);
	assert_int_equal(wh_engine_close(pair->owner), 0);
	free(pair->to);
	free(pair->from);
}

static void finish(struct wh_batch *batch)
{
	assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
	assert_int_equal(wh_batch_status(batch), 0);
}

/* Move all blocks, `flight` at a time, so often, and count who sends them. */
static void move(struct pair *pair, size_t flight)
{
	for (size_t i = 0; i < MANY; i++) { /* opens the connections */
		assert_int_equal(wh_batch_submit(pair->batch[i]), 0);
		finish(pair->batch[i]);
	}
	atomic_store(&by_program, 0);
	atomic_store(&by_others, 0);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		memset(pair->from, (int)round, MANY * BLOCK);
		for (size_t first = 0; first < MANY; first += flight) {
			for (size_t i = first; i < first + flight; i++)
				assert_int_equal(wh_batch_submit(pair->batch[i]), 0);
			for (size_t i = first; i < first + flight; i++)
				finish(pair->batch[i]);
		}
		assert_memory_equal(pair->to, pair->from, MANY * BLOCK);
		/* Whatever was to follow has followed, or the socket was told that it will not. */
		for (size_t fd = 0; fd < SOCKETS; fd++)
			assert_false(atomic_load(&held[fd]));
	}
}

/* ---- who sends ------------------------------------------------------------------------------ */

/* The thread that submits a batch and waits for it needs no other. */
static void write__one_in_flight(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, "threads=4", WH_WRITE);
	move(&pair, 1);
	assert_true(atomic_load(&by_program) > atomic_load(&by_others));
	pair_close(&pair);
}

static void many_in_flight(uint32_t op)
{
	struct pair pair;

	pair_open(&pair, "threads=4", op);
	move(&pair, MANY);
	assert_true(atomic_load(&by_others) > atomic_load(&by_program));
	pair_close(&pair);
}

/* One thread would send all of them, one after the other. */
static void write__many_in_flight(void **state)
{
	(void)state;
	many_in_flight(WH_WRITE);
}

/* The waiter leaves the connections to their loops, which have the requests of several batches to
 * send and their bytes to receive. */
static void read__many_in_flight(void **state)
{
	(void)state;
	many_in_flight(WH_READ);
}

/* Nobody to hand over to: everything arrives all the same. */
static void write__one_loop(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, "threads=1", WH_WRITE);
	move(&pair, MANY);
	pair_close(&pair);
}

/* Bytes that wait for others share a packet with these. Until a connection's thread finds two
 * requests at once, which is a matter of luck. */
static void write__follows(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, "threads=2", WH_WRITE);
	atomic_store(&holds, 0);
	while (!atomic_load(&holds))
		move(&pair, MANY);
	pair_close(&pair);
}

/* Connections that share a loop here share one at the owner, in whatever order they were made. */
static void write__loops_in_pairs(void **state)
{
	unsigned shared = 0;
	struct pair pair;

	(void)state;
	for (unsigned i = 0; i < PAIRS; i++) {
		pid_t sender[LOOPS] = { 0 }, receiver[LOOPS] = { 0 };

		for (size_t port = 0; port < PORTS; port++) {
			atomic_store(&senders[port], 0);
			atomic_store(&receivers[port], 0);
		}
		pair_open(&pair, "threads=2", WH_WRITE);
		move(&pair, MANY);
		pair_close(&pair);
		for (size_t port = 0; port < PORTS; port++) {
			pid_t from = atomic_load(&senders[port]),
			      to = atomic_load(&receivers[port]);
			unsigned loop = 0;

			if (!from || !to)
				continue;
			while (loop < LOOPS && sender[loop] && sender[loop] != from)
				loop++;
			assert_true(loop < LOOPS);
			assert_true(!sender[loop] || receiver[loop] == to);
			shared += sender[loop] != 0;
			sender[loop] = from;
			receiver[loop] = to;
		}
		assert_true(!receiver[0] || receiver[0] != receiver[1]);
	}
	/* On a busy machine a connection may have had the program's own sends alone. */
	assert_true(shared > 0);
}

/* ---- what is late --------------------------------------------------------------------------- */

/* Submit a batch whose request is late. */
static void submit_late(struct wh_batch *batch)
{
	atomic_store(&late.length, 0);
	atomic_store(&late.armed, true);
	assert_int_equal(wh_batch_submit(batch), 0);
	while (atomic_load(&late.length) < WH_PROVE_SIZE + BLOCK)
		usleep(1000);
}

/* Send what was kept, and wait until the owner responds to it or closes the connection. */
static void deliver_late(void)
{
	struct pollfd look = { .fd = late.copy };
	size_t sent = 0, length = atomic_load(&late.length);
	ssize_t got = 0;
	uint8_t byte;

	while (sent < length && got >= 0) {
		look.events = POLLOUT;
		assert_int_equal(poll(&look, 1, -1), 1);
		got = send(late.copy, late.bytes + sent, length - sent, MSG_NOSIGNAL);
		sent += got > 0 ? (size_t)got : 0;
	}
	look.events = POLLIN;
	assert_int_equal(poll(&look, 1, -1), 1);
	got = recv(late.copy, &byte, 1, 0);
	assert_true(got >= 0 || errno == ECONNRESET || errno == EPIPE);
	close(late.copy);
}

/* The initiator sends its requests behind PROVE. If both are late, the owner learns of the cancel
 * while the connection is in its handshake there. */
static void cancel__behind_prove(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, "threads=2", WH_WRITE);
	memset(pair.from, 'A', BLOCK);
	submit_late(pair.batch[0]);
	assert_int_equal(wh_batch_cancel(pair.batch[0]), 0);
	assert_int_equal(wh_batch_status(pair.batch[0]), -ECANCELED);
	atomic_store(&late.fd, -1);
	memset(pair.from, 'B', BLOCK);
	assert_int_equal(wh_batch_submit(pair.batch[0]), 0);
	finish(pair.batch[0]);
	deliver_late();
	assert_memory_equal(pair.to, pair.from, BLOCK);
	pair_close(&pair);
}

/* What ended before the peer was lost has arrived, or was given up by both sides. */
static void cancel__lost_peer(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, "threads=2", WH_WRITE);
	submit_late(pair.batch[0]);
	assert_int_equal(wh_batch_cancel(pair.batch[0]), 0);
	close(late.copy);
	atomic_store(&late.fd, -1);
	submit_late(pair.batch[2]);
	assert_int_equal(wh_batch_submit(pair.batch[1]), 0); /* by another connection */
	finish(pair.batch[1]);
	assert_int_equal(wh_region_unregister(pair.target), 0);
	assert_int_equal(wh_engine_close(pair.owner), 0);
	pair.target = NULL;
	pair.owner = NULL;
	assert_int_equal(wh_batch_wait_for(pair.batch[2], WH_FOREVER), 0);
	assert_int_equal(wh_batch_status(pair.batch[2]), -ECONNRESET);
	for (unsigned again = 0; again < 2; again++) {
		assert_int_equal(wh_batch_cancel(pair.batch[0]), 0);
		assert_int_equal(wh_batch_cancel(pair.batch[1]), 0);
		assert_int_equal(wh_batch_cancel(pair.batch[2]), -ETIMEDOUT);
		assert_non_null(strstr(wh_error_text(), "was lost while the batch ran"));
	}
	assert_int_equal(wh_batch_status(pair.batch[0]), -ECANCELED);
	assert_int_equal(wh_batch_status(pair.batch[2]), -ECONNRESET);
	close(late.copy);
	atomic_store(&late.fd, -1);
	pair_close(&pair);
}

/* ---- connections that do not open ----------------------------------------------------------- */

/* Break the late connection, with its request outstanding. */
static void break_late(void)
{
	atomic_store(&late.fd, -1);
	assert_int_equal(shutdown(late.copy, SHUT_RDWR), 0);
	close(late.copy);
}

/* Whatever keeps a connection from being opened, it is tried again. */
static void reconnect__fails_in_several_ways(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, "threads=2", WH_WRITE);
	memset(pair.from, 'A', BLOCK);
	submit_late(pair.batch[0]);
	atomic_store(&no_sockets, 1);
	atomic_store(&no_hellos, 4); /* more than a request may be sent */
	break_late();
	assert_int_equal(wh_batch_wait_for(pair.batch[0], PATIENCE), 0);
	assert_int_equal(wh_batch_status(pair.batch[0]), 0);
	assert_int_equal(atomic_load(&no_sockets), 0);
	assert_int_equal(atomic_load(&no_hellos), 0);
	assert_memory_equal(pair.to, pair.from, BLOCK);
	pair_close(&pair);
}

/* What waits for a connection ends at once, and the peer is not cut. */
static void cancel__cannot_connect(void **state)
{
	struct wh_engine_counters counters = { .size = sizeof(counters) };
	struct pair pair;

	(void)state;
	pair_open(&pair, "threads=2", WH_WRITE);
	submit_late(pair.batch[0]);
	atomic_store(&no_sockets, INT32_MAX);
	break_late();
	while (atomic_load(&no_sockets) == INT32_MAX)
		usleep(1000);
	assert_int_equal(wh_batch_cancel(pair.batch[0]), 0);
	assert_int_equal(wh_batch_status(pair.batch[0]), -ECANCELED);
	assert_int_equal(wh_engine_counters(pair.engine, &counters, NULL), 0);
	assert_int_equal(counters.peers_lost, 0);
	atomic_store(&no_sockets, 0);
	assert_int_equal(wh_batch_submit(pair.batch[0]), 0);
	finish(pair.batch[0]);
	pair_close(&pair);
}

/* The loop that closes an idle connection finds what was submitted meanwhile. */
static void submit__while_idle_closes(void **state)
{
	const char *const config[] = { "transports=tcp", "connections=1", "idle=10", NULL };
	struct pair pair;

	(void)state;
	pair_open_with(&pair, config, WH_WRITE);
	memset(pair.from, 'A', MANY * BLOCK);
	atomic_store(&shuts, false);
	atomic_store(&may_shut, false);
	assert_int_equal(wh_batch_submit(pair.batch[0]), 0);
	finish(pair.batch[0]);
	while (!atomic_load(&shuts))
		usleep(1000);
	assert_int_equal(wh_batch_submit(pair.whole), 0); /* left to the loop, being so large */
	atomic_store(&may_shut, true);
	assert_int_equal(wh_batch_wait_for(pair.whole, PATIENCE), 0);
	assert_int_equal(wh_batch_status(pair.whole), 0);
	assert_memory_equal(pair.to, pair.from, MANY * BLOCK);
	pair_close(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(write__one_in_flight),
		cmocka_unit_test(write__many_in_flight),
		cmocka_unit_test(read__many_in_flight),
		cmocka_unit_test(write__one_loop),
		cmocka_unit_test(write__follows),
		cmocka_unit_test(write__loops_in_pairs),
		cmocka_unit_test(cancel__behind_prove),
		cmocka_unit_test(cancel__lost_peer),
		cmocka_unit_test(reconnect__fails_in_several_ways),
		cmocka_unit_test(cancel__cannot_connect),
		cmocka_unit_test(submit__while_idle_closes),
	};

	program = pthread_self();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
