/* SPDX-License-Identifier: Apache-2.0 */
/* misuse.c: wrong calls and misbehaving peers of libtransfer_engine.so
 *
 * Every function gets wrong arguments and unknown numbers; peers lie or stay silent. Several
 * engines run in one process; the peers that misbehave are sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <transfer_engine_c.h>

#define LENGTH ((size_t)1 << 20)

static transfer_engine_t ours, theirs;
static unsigned char *source, *target;
static char their_name[64];
static segment_id_t segment;

#define said(text) assert_non_null(strstr(wherryErrorText(), text))

static int open_engines(void **state)
{
	(void)state;
	ours = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", NULL, 0, 0);
	theirs = createTransferEngine("P2PHANDSHAKE", "127.0.0.1:0", "", 0, 1);
	source = calloc(1, LENGTH);
	target = calloc(1, LENGTH);
	if (!ours || !theirs || !source || !target)
		fail_msg("%s", wherryErrorText());
	assert_int_equal(getLocalIpAndPort(theirs, their_name, sizeof(their_name)), 0);
	assert_int_equal(registerLocalMemory(ours, source, LENGTH, "cpu:0", 1), 0);
	assert_int_equal(registerLocalMemory(theirs, target, LENGTH, "*", 1), 0);
	segment = openSegment(ours, their_name);
	assert_true(segment > 0);
	return 0;
}

static int close_engines(void **state)
{
	(void)state;
	destroyTransferEngine(ours);
	destroyTransferEngine(theirs);
	free(source);
	free(target);
	return 0;
}

static struct transfer_request request_to(segment_id_t to, uint64_t remote, uint64_t length)
{
	return (struct transfer_request){ .opcode = OPCODE_WRITE,
					  .source = source,
					  .target_id = to,
					  .target_offset = remote,
					  .length = length };
}

static struct transfer_request good_request(void)
{
	return request_to(segment, (uintptr_t)target, 4096);
}

/* Wait for the end of the request and return its status. */
static int wait_for(transfer_engine_t engine, batch_id_t batch, size_t task)
{
	struct transfer_status status = { STATUS_WAITING, 0 };

	while (status.status == STATUS_WAITING) {
		assert_int_equal(getTransferStatus(engine, batch, task, &status), 0);
		sched_yield();
	}
	return status.status;
}

static int run(transfer_engine_t engine, struct transfer_request request)
{
	batch_id_t batch = allocateBatchID(engine, 1);
	int status;

	assert_true(batch != INVALID_BATCH);
	assert_int_equal(submitTransfer(engine, batch, &request, 1), 0);
	status = wait_for(engine, batch, 0);
	assert_int_equal(freeBatchID(engine, batch), 0);
	return status;
}

/* ---- arguments ----------------------------------------------------------------------------- */

static void arguments__null(void **state)
{
	struct transfer_request request = good_request();
	struct transfer_status status;
	char word[] = "word", text[8];
	notify_msg_t note = { .name = word, .msg = word }, empty = { .name = NULL };
	int count = 7;

	(void)state;
	assert_null(createTransferEngine(NULL, "127.0.0.1", NULL, 0, 0));
	said("metadata_conn_string");
	assert_null(createTransferEngine("P2PHANDSHAKE", NULL, NULL, 0, 0));
	said("local_server_name");
	destroyTransferEngine(NULL);
	assert_int_equal(discoverTopology(NULL), -1);
	assert_int_equal(discoverTopology(ours), 0);
	enableGracefulShutdown(NULL);
	assert_int_equal(getLocalIpAndPort(NULL, text, sizeof(text)), -1);
	assert_int_equal(getLocalIpAndPort(ours, NULL, 1), -1);
	assert_int_equal(getLocalIpAndPort(ours, text, 0), -1);
	assert_int_equal(getLocalIpAndPort(ours, text, sizeof(text)), 0);
	assert_string_equal(text, "127.0.0");
	assert_null(installTransport(NULL, "tcp", NULL));
	assert_null(installTransport(ours, NULL, NULL));
	assert_null(installTransport(ours, "nvmeof", NULL));
	said("not nvmeof");
	assert_non_null(installTransport(ours, "rdma", NULL));
	assert_int_equal(uninstallTransport(ours, "rdma"), 0);
	assert_int_equal(uninstallTransport(ours, "ascend"), -1);
	assert_int_equal(showLinks(NULL, text, sizeof(text), 0), -1);
	assert_int_equal(showLinks(ours, NULL, 8, 0), -1);
	assert_int_equal(showLinks(ours, text, 0, 0), -1);
	assert_int_equal(registerLocalMemory(NULL, source, 1, "*", 1), -1);
	assert_int_equal(unregisterLocalMemory(NULL, source), -1);
	assert_int_equal(registerLocalMemoryBatch(ours, NULL, 1, "*"), -1);
	assert_int_equal(registerLocalMemoryBatch(ours, NULL, 0, "*"), 0);
	assert_int_equal(unregisterLocalMemoryBatch(ours, NULL, 1), -1);
	assert_int_equal(openSegment(NULL, "127.0.0.1:1"), -1);
	assert_int_equal(openSegment(ours, NULL), -1);
	assert_int_equal(openSegment(ours, "//"), -1);
	assert_int_equal(openSegmentNoCache(ours, ""), -1);
	assert_int_equal(closeSegment(NULL, 0), -1);
	assert_int_equal(removeLocalSegment(ours, NULL), -1);
	assert_int_equal(removeLocalSegment(ours, their_name), 0);
	assert_int_equal(syncSegmentCache(NULL), -1);
	assert_int_equal(warmupEfaSegment(ours, NULL), -1);
	assert_int_equal(warmupEfaSegment(ours, "x"), 0);
	assert_true(allocateBatchID(NULL, 1) == INVALID_BATCH);
	assert_int_equal(submitTransfer(NULL, 1, &request, 1), 1);
	assert_int_equal(submitTransfer(ours, 1, NULL, 1), 1);
	assert_int_equal(submitTransfer(ours, 1, NULL, 0), 0);
	assert_int_equal(submitTransferWithNotify(ours, 1, NULL, 1, note), 1);
	assert_int_equal(submitTransferWithNotify(ours, 1, NULL, 0, note), 0);
	assert_int_equal(submitTransferWithNotify(ours, 1, NULL, 0, empty), 1);
	assert_int_equal(submitTransferWithNotify(ours, 1, &request, 1, empty), 1);
	assert_int_equal(getTransferStatus(NULL, 1, 0, &status), 1);
	assert_int_equal(getTransferStatus(ours, 1, 0, NULL), 1);
	assert_int_equal(freeBatchID(NULL, 1), 1);
	assert_int_equal(wherryWaitBatch(NULL, 1, 0), 1);
	assert_null(getNotifsFromEngine(NULL, &count));
	assert_null(getNotifsFromEngine(ours, NULL));
	assert_null(getNotifsFromEngine(ours, &count));
	assert_int_equal(count, 0);
	assert_int_equal(freeNotifsMsgBuf(NULL, 0), 0);
	assert_int_equal(genNotifyInEngine(NULL, 0, note), -1);
	assert_int_equal(genNotifyInEngine(ours, 0, empty), -1);
	assert_int_equal(genNotifyInEngine(ours, UINT64_MAX, note), -1);
}

/* In the child: it says so, and does nothing. */
#define refuses(expression)                                                                        \
	do {                                                                                       \
		if (!(expression) || !strstr(wherryErrorText(), "has forked")) {                   \
			fprintf(stderr, "in the child: %s\n", #expression);                        \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static void child_call_all(void)
{
	struct transfer_request request = good_request();
	struct transfer_status status;
	char word[] = "word", text[200];
	notify_msg_t note = { .name = word, .msg = word };
	buffer_entry_t entry = { .addr = text, .length = sizeof(text) };
	void *address = source;
	int count;

	refuses(discoverTopology(ours) == -1);
	refuses(getLocalIpAndPort(ours, text, sizeof(text)) == -1);
	refuses(!installTransport(ours, "tcp", NULL));
	refuses(uninstallTransport(ours, "tcp") == -1);
	refuses(showLinks(ours, text, sizeof(text), 1) == -1);
	refuses(registerLocalMemory(ours, text, sizeof(text), "*", 1) == -1);
	refuses(registerLocalMemoryBatch(ours, &entry, 1, "*") == -1);
	refuses(unregisterLocalMemory(ours, source) == -1);
	refuses(unregisterLocalMemoryBatch(ours, &address, 1) == -1);
	refuses(openSegment(ours, their_name) == -1);
	refuses(openSegmentNoCache(ours, their_name) == -1);
	refuses(closeSegment(ours, segment) == -1);
	refuses(removeLocalSegment(ours, "127.0.0.1") == -1);
	refuses(syncSegmentCache(ours) == -1);
	refuses(warmupEfaSegment(ours, their_name) == -1);
	refuses(allocateBatchID(ours, 1) == INVALID_BATCH);
	refuses(submitTransfer(ours, 0, &request, 1) == 1);
	refuses(submitTransferWithNotify(ours, 0, &request, 1, note) == 1);
	refuses(getTransferStatus(ours, 0, 0, &status) == 1);
	refuses(wherryWaitBatch(ours, 0, 0) == 1);
	refuses(freeBatchID(ours, 0) == 1);
	refuses(!getNotifsFromEngine(ours, &count));
	refuses(genNotifyInEngine(ours, 0, note) == -1);
	enableGracefulShutdown(ours);
	destroyTransferEngine(ours);
	destroyTransferEngine(theirs);
	_exit(0);
}

/* The engines, which have threads, are the parent's, and go on there. */
static void fork__every_call(void **state)
{
	int status;
	pid_t child = fork();

	(void)state;
	if (!child) {
		alarm(60);
		child_call_all();
	}
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(run(ours, good_request()), STATUS_COMPLETED);
}

static void create__wrong(void **state)
{
	char longer[300];

	(void)state;
	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	assert_null(createTransferEngine("P2PHANDSHAKE", longer, NULL, 0, 0));
	assert_null(createTransferEngine("P2PHANDSHAKE", "127.0.0.1:x", NULL, 0, 0));
	said("\"127.0.0.1:x\" is not HOST");
	assert_null(createTransferEngine("P2PHANDSHAKE", "[::1", NULL, 0, 0));
	/* An address for documentation, which no machine has. */
	assert_null(createTransferEngine("P2PHANDSHAKE", "192.0.2.7:1", NULL, 0, 0));
	said("192.0.2.7");
	setenv("WHERRY_TIMEOUT", "soon", 1);
	assert_null(createTransferEngine("P2PHANDSHAKE", "127.0.0.1", NULL, 0, 0));
	said("WHERRY_TIMEOUT=soon");
	unsetenv("WHERRY_TIMEOUT");
	assert_null(createTransferEngine("ftp://127.0.0.1", "a", "127.0.0.1", 0, 0));
	/* Stores are in a module, which may not have been built. */
	if (strstr(wherryErrorText(), "libwherry-registry.so"))
		return;
	said("ftp");
	/* Nothing listens there. */
	assert_null(createTransferEngine("http://127.0.0.1:1/metadata", "a", "127.0.0.1", 0, 0));
	said("127.0.0.1");
}

/* ---- memory -------------------------------------------------------------------------------- */

static void memory__wrong(void **state)
{
	buffer_entry_t entries[] = { { source + 4096, 4096 },
				     { source + 16384, 4096 },
				     { source + 8191, 2 } };
	void *addresses[] = { source + 1, source + 16384, source + 4096 };
	struct transfer_request request = good_request();

	(void)state;
	assert_int_equal(unregisterLocalMemory(ours, source), 0);
	assert_int_equal(unregisterLocalMemory(ours, source), -3);
	assert_int_equal(registerLocalMemory(ours, NULL, 4096, "*", 1), -1);
	assert_int_equal(registerLocalMemory(ours, source, SIZE_MAX, "*", 1), -1);
	assert_int_equal(registerLocalMemory(ours, (void *)8, 4096, "*", 1), -1);
	/* All entries are registered, or none. */
	assert_int_equal(registerLocalMemoryBatch(ours, entries, 3, "*"), -7);
	said("overlaps");
	assert_int_equal(unregisterLocalMemory(ours, source + 4096), -3);
	assert_int_equal(registerLocalMemoryBatch(ours, entries, 2, NULL), 0);
	assert_int_equal(registerLocalMemory(ours, source + 4096, 4096, "*", 1), -7);
	assert_int_equal(registerLocalMemory(ours, source, 4097, "*", 1), -7);
	assert_int_equal(registerLocalMemory(ours, source, LENGTH, "*", 1), -7);
	assert_int_equal(registerLocalMemory(ours, source + 8191, 1, "*", 1), -7);
	assert_int_equal(registerLocalMemory(ours, source + 8192, 4096, "*", 1), 0);
	/* From one buffer into the next. */
	request.source = source + 8191;
	request.length = 2;
	assert_int_equal(submitTransfer(ours, allocateBatchID(ours, 1), &request, 1), 3);
	said("are not in registered memory");
	assert_int_equal(unregisterLocalMemoryBatch(ours, addresses, 3), -3);
	assert_int_equal(unregisterLocalMemory(ours, source + 4096), -3);
	assert_int_equal(unregisterLocalMemory(ours, source + 8192), 0);
	assert_int_equal(registerLocalMemory(ours, source, LENGTH, "*", 1), 0);
}

/* Memory that peers may not access can be a source, but no target. */
static void memory__not_accessible(void **state)
{
	(void)state;
	assert_int_equal(unregisterLocalMemory(theirs, target), 0);
	assert_int_equal(run(ours, good_request()), STATUS_FAILED);
	assert_int_equal(registerLocalMemory(theirs, target, LENGTH, "*", 0), 0);
	assert_int_equal(run(ours, good_request()), STATUS_FAILED);
	/* This side or the peer notices it. */
	assert_true(strstr(wherryErrorText(), "not in memory that is registered there") ||
		    strstr(wherryErrorText(), "it is not published"));
	assert_int_equal(unregisterLocalMemory(theirs, target), 0);
	assert_int_equal(registerLocalMemory(theirs, target, LENGTH, "*", 1), 0);
	assert_int_equal(run(ours, good_request()), STATUS_COMPLETED);
}

/* ---- batches ------------------------------------------------------------------------------- */

static void batch__numbers(void **state)
{
	const batch_id_t wrong[] = { 0, 1, INVALID_BATCH, UINT64_C(1) << 32 | 0xffffff,
				     UINT64_C(0xdead) << 32 };
	batch_id_t batch = allocateBatchID(ours, 1), next;
	struct transfer_request request = good_request();
	struct transfer_status status = { .status = 77 };

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(submitTransfer(ours, wrong[i], &request, 1), 1);
		assert_int_equal(getTransferStatus(ours, wrong[i], 0, &status), 1);
		assert_int_equal(wherryWaitBatch(ours, wrong[i], 0), 1);
		assert_int_equal(freeBatchID(ours, wrong[i]), 1);
	}
	assert_int_equal(wherryWaitBatch(ours, batch, -1), 1);
	assert_int_equal(wherryWaitBatch(ours, batch, 0), 0);
	assert_int_equal(freeBatchID(ours, batch), 0);
	next = allocateBatchID(ours, 1);
	assert_true(next != batch);
	assert_int_equal(submitTransfer(ours, batch, &request, 1), 1);
	said("or has been freed");
	assert_int_equal(freeBatchID(ours, batch), 1);
	assert_int_equal(getTransferStatus(ours, next, 0, &status), 1);
	/* A batch of another engine. */
	assert_int_equal(freeBatchID(theirs, next), 1);
	assert_int_equal(status.status, 77);
	assert_int_equal(freeBatchID(ours, next), 0);
}

/* Requests without bytes have succeeded, wherever they are, alone and beside others; a notification
 * that is with them arrives. */
static void batch__nothing(void **state)
{
	struct transfer_request requests[3] = { good_request(), good_request(), good_request() };
	char name[] = "step", text[] = "nothing";
	notify_msg_t note = { .name = name, .msg = text }, *got = NULL;
	struct transfer_status status;
	batch_id_t batch = allocateBatchID(ours, 6);
	int count = 0;

	(void)state;
	requests[0].source = NULL;
	requests[2].target_offset = 1;
	requests[0].length = requests[2].length = 0;
	assert_int_equal(submitTransfer(ours, batch, requests, 1), 0);
	assert_int_equal(getTransferStatus(ours, batch, 0, &status), 0);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(status.transferred_bytes, 0);
	assert_int_equal(submitTransfer(ours, batch, requests, 3), 0);
	assert_int_equal(wherryWaitBatch(ours, batch, INT64_C(60000000000)), 0);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(wait_for(ours, batch, i), STATUS_COMPLETED);
	assert_int_equal(submitTransferWithNotify(ours, batch, requests, 1, note), 0);
	assert_int_equal(wait_for(ours, batch, 4), STATUS_COMPLETED);
	while (!(got = getNotifsFromEngine(theirs, &count)))
		usleep(1000);
	assert_int_equal(count, 1);
	assert_string_equal(got->msg, text);
	freeNotifsMsgBuf(got, count);
	/* Nobody is notified of nothing. */
	assert_int_equal(submitTransferWithNotify(ours, batch, requests, 0, note), 0);
	requests[0].target_id = segment + 100;
	assert_int_equal(submitTransfer(ours, batch, requests, 1), 1);
	assert_int_equal(freeBatchID(ours, batch), 0);
}

/* Memory of 0 bytes, as of empty tensors, whose address may be NULL, may be registered anywhere,
 * and as often as one likes. */
static void memory__empty(void **state)
{
	buffer_entry_t entries[] = { { NULL, 0 }, { source, 0 }, { source + 8, 4096 } };
	void *addresses[] = { NULL, source, NULL };
	struct transfer_request request = good_request();
	batch_id_t batch = allocateBatchID(ours, 1);

	(void)state;
	assert_int_equal(unregisterLocalMemory(ours, NULL), -3);
	assert_int_equal(registerLocalMemory(ours, NULL, 0, "*", 1), 0);
	assert_int_equal(registerLocalMemory(ours, source, 0, "*", 1), 0);
	assert_int_equal(registerLocalMemory(ours, source + 5, 0, "*", 0), 0);
	assert_int_equal(unregisterLocalMemory(ours, source + 5), 0);
	assert_int_equal(unregisterLocalMemory(ours, source + 5), -3);
	/* All entries are registered, or none, and what was there before stays. */
	assert_int_equal(registerLocalMemoryBatch(ours, entries, 3, "*"), -7);
	assert_int_equal(registerLocalMemoryBatch(ours, entries, 2, "*"), 0);
	assert_int_equal(submitTransfer(ours, batch, &request, 1), 0);
	assert_int_equal(wait_for(ours, batch, 0), STATUS_COMPLETED);
	assert_int_equal(freeBatchID(ours, batch), 0);
	/* Of two at one address the one with bytes goes first. */
	assert_int_equal(unregisterLocalMemoryBatch(ours, addresses, 3), 0);
	assert_int_equal(unregisterLocalMemory(ours, NULL), -3);
	assert_int_equal(unregisterLocalMemory(ours, source), 0);
	assert_int_equal(unregisterLocalMemory(ours, source), 0);
	assert_int_equal(unregisterLocalMemory(ours, source), -3);
	assert_int_equal(registerLocalMemory(ours, source, LENGTH, "*", 1), 0);
}

static void batch__requests(void **state)
{
	batch_id_t batch = allocateBatchID(ours, 2);
	struct transfer_request requests[3] = { good_request(), good_request(), good_request() };
	struct transfer_status status;

	(void)state;
	assert_int_equal(submitTransfer(ours, batch, requests, 3), 2);
	said("3 requests are too many: the batch has room for 2");
	requests[1].opcode = 2;
	assert_int_equal(submitTransfer(ours, batch, requests, 2), 1);
	said("request 1: opcode is 2");
	requests[1] = good_request();
	requests[1].length = 8;
	requests[1].target_offset = UINT64_MAX - 4;
	assert_int_equal(submitTransfer(ours, batch, requests, 2), 1);
	requests[1] = good_request();
	requests[1].target_id = segment + 100;
	assert_int_equal(submitTransfer(ours, batch, requests, 2), 1);
	requests[1].target_id = -1;
	assert_int_equal(submitTransfer(ours, batch, requests, 2), 1);
	requests[1] = good_request();
	requests[1].source = target;
	assert_int_equal(submitTransfer(ours, batch, requests, 2), 3);
	requests[1].source = source + LENGTH - 1;
	assert_int_equal(submitTransfer(ours, batch, requests, 2), 3);
	/* None of these requests has started. */
	assert_int_equal(getTransferStatus(ours, batch, 0, &status), 1);
	requests[1] = good_request();
	requests[1].source = source + 8192;
	requests[1].target_offset += 8192;
	assert_int_equal(submitTransfer(ours, batch, requests, 2), 0);
	assert_int_equal(submitTransfer(ours, batch, requests, 1), 2);
	assert_int_equal(wait_for(ours, batch, 0), STATUS_COMPLETED);
	assert_int_equal(wait_for(ours, batch, 1), STATUS_COMPLETED);
	assert_int_equal(getTransferStatus(ours, batch, 2, &status), 1);
	assert_int_equal(freeBatchID(ours, batch), 0);
	batch = allocateBatchID(ours, 0);
	assert_int_equal(submitTransfer(ours, batch, requests, 1), 2);
	assert_int_equal(freeBatchID(ours, batch), 0);
	/* Space for more requests than any program has. */
	batch = allocateBatchID(ours, SIZE_MAX);
	assert_int_equal(submitTransfer(ours, batch, requests, 1), 0);
	assert_int_equal(wait_for(ours, batch, 0), STATUS_COMPLETED);
	assert_int_equal(freeBatchID(ours, batch), 0);
	/* Still open when the engine is destroyed. */
	batch = allocateBatchID(ours, 2);
	assert_int_equal(submitTransfer(ours, batch, requests, 2), 0);
}

static void segment__wrong(void **state)
{
	(void)state;
	assert_int_equal(openSegment(ours, "127.0.0.1:1"), -102);
	said("127.0.0.1:1");
	assert_int_equal(openSegment(ours, "no port"), -1);
	assert_int_equal(closeSegment(ours, -1), -1);
	assert_int_equal(closeSegment(ours, 1000), -1);
	assert_int_equal(closeSegment(ours, segment), 0);
	assert_int_equal(closeSegment(ours, segment), 0);
	assert_int_equal(run(ours, good_request()), STATUS_COMPLETED);
	assert_int_equal(openSegment(ours, their_name), segment);
}

/* The target's engine is destroyed: requests to it fail. */
static void segment__gone(void **state)
{
	char word[] = "word";
	notify_msg_t note = { .name = word, .msg = word };

	(void)state;
	assert_int_equal(run(ours, good_request()), STATUS_COMPLETED);
	destroyTransferEngine(theirs);
	theirs = NULL;
	assert_int_equal(run(ours, good_request()), STATUS_FAILED);
	assert_true(*wherryErrorText());
	assert_true(genNotifyInEngine(ours, (uint64_t)segment, note) < 0);
	assert_true(openSegmentNoCache(ours, their_name) < 0);
	assert_true(syncSegmentCache(ours) <= 0);
}

/* ---- notifications ------------------------------------------------------------------------- */

static void notifications__none_sent(void **state)
{
	char word[] = "word";
	notify_msg_t note = { .name = word, .msg = word };
	struct transfer_request requests[2] = { good_request(), good_request() };
	batch_id_t batch = allocateBatchID(ours, 2);
	int count = 0;

	(void)state;
	requests[0].target_offset = 4096; /* nothing is registered there */
	requests[1].length = LENGTH;
	assert_int_equal(submitTransferWithNotify(ours, batch, requests, 2, note), 0);
	assert_int_equal(wait_for(ours, batch, 0), STATUS_FAILED);
	/* Requests that notify end together. */
	assert_int_equal(freeBatchID(ours, batch), 0);
	assert_null(getNotifsFromEngine(theirs, &count));
}

static void notifications__bounds(void **state)
{
	static char word[] = "word";
	const size_t size = (size_t)1000 << 10;
	char *longer = malloc(2 * size);
	notify_msg_t note = { .name = word, .msg = longer }, *taken;
	int count = 0, sent = 0;

	(void)state;
	memset(longer, 'x', 2 * size);
	longer[2 * size - 1] = '\0';
	assert_int_equal(genNotifyInEngine(ours, (uint64_t)segment, note), -1);
	strcpy(longer, "\xff\xfe");
	assert_int_equal(genNotifyInEngine(ours, (uint64_t)segment, note), -1);
	said("UTF-8");
	memset(longer, 'x', size);
	longer[size] = '\0';
	while (sent < 100 && !genNotifyInEngine(ours, (uint64_t)segment, note))
		sent++;
	/* The receiver keeps 16 MiB; then the sender gets an error. */
	assert_in_range(sent, 12, 17);
	taken = getNotifsFromEngine(theirs, &count);
	assert_int_equal(count, sent);
	assert_int_equal(strlen(taken[count - 1].msg), size);
	freeNotifsMsgBuf(taken, count);
	assert_int_equal(genNotifyInEngine(ours, (uint64_t)segment, note), 0);
	free(longer);
}

/* ---- peers that misbehave ------------------------------------------------------------------ */

/* Answers each question with a segment; accepts data connections and stays silent. */
struct peer {
	int control, data;
	char name[64], json[1024];
	pthread_t thread;
};

static int listen_here(unsigned *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&address, length) && !listen(fd, 16));
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
	*port = ntohs(address.sin_port);
	return fd;
}

static void *answer(void *argument)
{
	const struct peer *peer = argument;
	unsigned char frame[2048];
	uint64_t length = strlen(peer->json) + 1;
	int fd;

	while ((fd = accept(peer->control, NULL, NULL)) >= 0) {
		/* A question has at least 9 bytes. */
		if (recv(fd, frame, 9, MSG_WAITALL) == 9) {
			memcpy(frame, &length, 8);
			memcpy(frame + 9, peer->json, length - 1);
			if (send(fd, frame, 8 + length, MSG_NOSIGNAL) < 0)
				print_message("send: %s\n", strerror(errno));
			shutdown(fd, SHUT_WR);
			while (recv(fd, frame, sizeof(frame), 0) > 0)
				;
		}
		close(fd);
	}
	return NULL;
}

/* `more` is inserted into the segment. */
static void start_peer(struct peer *peer, const char *more)
{
	unsigned control, data;

	peer->control = listen_here(&control);
	peer->data = listen_here(&data);
	snprintf(peer->name, sizeof(peer->name), "127.0.0.1:%u", control);
	snprintf(peer->json, sizeof(peer->json),
		 "{\"name\":\"%s\",\"protocol\":\"tcp\",\"tcp_data_port\":%u,\"tcp_proto_version\":"
		 "2,%s"
		 "\"buffers\":[{\"name\":\"a\",\"addr\":%" PRIuPTR ",\"length\":%zu}]}",
		 peer->name, data, more, (uintptr_t)target, LENGTH);
	assert_int_equal(pthread_create(&peer->thread, NULL, answer, peer), 0);
}

static void stop_peer(struct peer *peer)
{
	shutdown(peer->control, SHUT_RDWR);
	pthread_join(peer->thread, NULL);
	close(peer->control);
	close(peer->data);
}

/* An engine with 4,096 bytes of memory and the setting `timeout`, and its segment of a peer that
 * will not answer. */
static segment_id_t open_silent(struct peer *peer, const char *timeout, void *bytes,
				transfer_engine_t *engine)
{
	segment_id_t id;

	start_peer(peer, "");
	setenv("WHERRY_TIMEOUT", timeout, 1);
	*engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", NULL, 0, 0);
	unsetenv("WHERRY_TIMEOUT");
	assert_non_null(*engine);
	assert_int_equal(registerLocalMemory(*engine, bytes, 4096, "*", 1), 0);
	id = openSegment(*engine, peer->name);
	assert_true(id > 0);
	return id;
}

/* Nothing comes back: requests stay pending, and fail when the peer has been silent for too long.
 */
static void peer__silent(void **state)
{
	struct transfer_request request;
	struct transfer_status status;
	transfer_engine_t engine;
	struct peer peer;
	batch_id_t batch;
	unsigned char *bytes = calloc(1, 4096);
	segment_id_t id;

	(void)state;
	id = open_silent(&peer, "3000", bytes, &engine);
	request = request_to(id, (uintptr_t)target, 4096);
	request.source = bytes;
	batch = allocateBatchID(engine, 1);
	assert_int_equal(submitTransfer(engine, batch, &request, 1), 0);
	assert_int_equal(getTransferStatus(engine, batch, 0, &status), 0);
	assert_int_equal(status.status, STATUS_WAITING);
	assert_int_equal(freeBatchID(engine, batch), 4);
	assert_int_equal(unregisterLocalMemory(engine, bytes), -4);
	assert_int_equal(closeSegment(engine, id), 0);
	assert_int_equal(wait_for(engine, batch, 0), STATUS_TIMEOUT);
	assert_int_equal(freeBatchID(engine, batch), 0);
	assert_int_equal(unregisterLocalMemory(engine, bytes), 0);
	destroyTransferEngine(engine);
	stop_peer(&peer);
	free(bytes);
}

#define READS 64

/* Requests that have all waited for a silent peer end together, and not one after the other. The
 * peer counts the connections that were made for them. */
static void peer__silent_to_many(void **state)
{
	transfer_engine_t engine;
	struct peer peer;
	unsigned char *bytes = calloc(1, 4096);
	segment_id_t id;
	batch_id_t batch;
	int connections = 0, fd;

	(void)state;
	id = open_silent(&peer, "1000", bytes, &engine);
	batch = allocateBatchID(engine, READS);
	for (unsigned i = 0; i < READS; i++) {
		struct transfer_request request = request_to(id, (uintptr_t)target + 64 * i, 64);

		request.source = bytes + 64 * i;
		request.opcode = OPCODE_READ;
		assert_int_equal(submitTransfer(engine, batch, &request, 1), 0);
	}
	for (unsigned i = 0; i < READS; i++)
		assert_int_equal(wait_for(engine, batch, i), STATUS_TIMEOUT);
	assert_int_equal(fcntl(peer.data, F_SETFL, O_NONBLOCK), 0);
	for (; (fd = accept(peer.data, NULL, NULL)) >= 0; connections++)
		close(fd);
	/* Of each thread; and a second one for what was submitted within the first one's time. */
	assert_in_range(connections, 1, 8);
	assert_int_equal(freeBatchID(engine, batch), 0);
	destroyTransferEngine(engine);
	stop_peer(&peer);
	free(bytes);
}

/* Destroying an engine does not wait for silent peers. */
static void peer__silent_at_the_end(void **state)
{
	struct transfer_request request;
	batch_id_t batch = allocateBatchID(ours, 20);
	struct peer peer;
	segment_id_t id;

	(void)state;
	start_peer(&peer, "");
	id = openSegment(ours, peer.name);
	assert_true(id > 0);
	for (int i = 0; i < 20; i++) {
		request = request_to(id, (uintptr_t)target + 8192 * (unsigned)i, 4096);
		request.source = source + (size_t)8192 * (unsigned)i;
		assert_int_equal(submitTransfer(ours, batch, &request, 1), 0);
	}
	destroyTransferEngine(ours);
	ours = NULL;
	stop_peer(&peer);
}

static void links_say(const char *text)
{
	char links[4096];

	assert_int_equal(showLinks(ours, links, sizeof(links), 0), 0);
	if (!strstr(links, text))
		fail_msg("no \"%s\" in: %s", text, links);
}

/* The segment names a Wherry engine that does not exist, or another one: Mooncake's TCP is used.
 */
static void peer__lies(void **state)
{
	static const struct {
		const char *field, *why;
	} lies[] = {
		{ "\"wherry\":7,", "it is not a Wherry engine" },
		{ "\"wherry\":{\"url\":\"wherry://127.0.0.1:1\"},", "it is not a Wherry engine" },
		{ "\"wherry\":{\"url\":\"wherry://127.0.0.1:1\",\"epoch\":\"12\"},",
		  "it is not a Wherry engine" },
		{ "\"wherry\":{\"url\":\"wherry://127.0.0.1:1\",\"epoch\":\"0123456789abcdef\"},",
		  "127.0.0.1:1" },
		{ "\"wherry\":{\"url\":\"gopher://!\",\"epoch\":\"0123456789abcdef\"},",
		  "Mooncake's TCP (" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct peer peer;

		start_peer(&peer, lies[i].field);
		assert_true(openSegment(ours, peer.name) > 0);
		links_say(lies[i].why);
		stop_peer(&peer);
	}
}

/* The engine at the published URL has another epoch. */
static void peer__another_engine(void **state)
{
	struct transfer_request request;
	char wherry[256], segment_text[4096];
	uint64_t length = 3;
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct peer peer;
	ssize_t got;
	char *url, *end;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)state;
	/* The segment that the other engine publishes. */
	address.sin_port = htons((uint16_t)strtoul(strchr(their_name, ':') + 1, NULL, 10));
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	memcpy(segment_text, &length, 8);
	memcpy(segment_text + 8, "\1{}", 3);
	assert_int_equal(send(fd, segment_text, 11, MSG_NOSIGNAL), 11);
	got = recv(fd, segment_text, sizeof(segment_text) - 1, MSG_WAITALL);
	assert_true(got > 9);
	segment_text[got] = '\0';
	close(fd);
	url = strstr(segment_text + 9, "wherry://");
	assert_non_null(url);
	end = strchr(url, '"');
	*end = '\0';
	snprintf(wherry, sizeof(wherry),
		 "\"wherry\":{\"url\":\"%s\",\"epoch\":\"0123456789abcdef\"},", url);
	start_peer(&peer, wherry);
	request = request_to(openSegment(ours, peer.name), (uintptr_t)target, 4096);
	assert_true(request.target_id > 0);
	links_say("a different engine answers");
	stop_peer(&peer);
}

/* ---- threads ------------------------------------------------------------------------------- */

#define THREADS 4
#define ROUNDS 60

static void *mover(void *argument)
{
	unsigned char *from = argument;
	size_t offset = (size_t)(from - source);

	for (int i = 0; i < ROUNDS; i++) {
		struct transfer_request request = {
			.opcode = i & 1,
			.source = from,
			.target_id = segment,
			.target_offset = (uintptr_t)target + offset,
			.length = 16384,
		};
		batch_id_t batch = allocateBatchID(ours, 1);
		struct transfer_status status = { STATUS_WAITING, 0 };

		if (batch == INVALID_BATCH || submitTransfer(ours, batch, &request, 1))
			return from;
		while (status.status == STATUS_WAITING)
			if (getTransferStatus(ours, batch, 0, &status))
				return from;
		if (status.status != STATUS_COMPLETED || freeBatchID(ours, batch))
			return from;
	}
	return NULL;
}

/* Memory is registered and unregistered, and segments are opened, while other threads transfer. */
static void threads__all_at_once(void **state)
{
	unsigned char *other = calloc(1, LENGTH);
	pthread_t threads[THREADS];
	void *wrong;

	(void)state;
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, mover, source + i * 65536), 0);
	for (int i = 0; i < ROUNDS / 4; i++) {
		char links[1024];

		assert_int_equal(registerLocalMemory(ours, other, LENGTH, "*", 1), 0);
		assert_int_equal(syncSegmentCache(ours), 0);
		assert_int_equal(openSegment(ours, their_name), segment);
		assert_int_equal(showLinks(ours, links, sizeof(links), i & 1), 0);
		assert_int_equal(unregisterLocalMemory(ours, other), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], &wrong), 0);
		assert_null(wrong);
	}
	free(other);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, open_engines, close_engines)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(arguments__null),
		CASE(fork__every_call),
		CASE(create__wrong),
		CASE(memory__wrong),
		CASE(memory__empty),
		CASE(memory__not_accessible),
		CASE(batch__numbers),
		CASE(batch__nothing),
		CASE(batch__requests),
		CASE(segment__wrong),
		CASE(segment__gone),
		CASE(notifications__none_sent),
		CASE(notifications__bounds),
		CASE(peer__silent),
		CASE(peer__silent_to_many),
		CASE(peer__silent_at_the_end),
		CASE(peer__lies),
		CASE(threads__all_at_once),
		CASE(peer__another_engine), /* by Wherry's routes only */
	};
	bool by_mooncake = getenv("TEST_MOONCAKE_TCP");

	setenv("WHERRY_CUDA", "off", 1);
	setenv("WHERRY_RDMA", "off", 1);
	/* Then Wherry's routes reach no engine. */
	if (by_mooncake)
		setenv("WHERRY_LISTEN", "none", 1);
	return _cmocka_run_group_tests("mooncake-misuse", tests,
				       sizeof(tests) / sizeof(tests[0]) - by_mooncake, NULL, NULL);
}
