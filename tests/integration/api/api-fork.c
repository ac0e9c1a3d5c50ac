/* SPDX-License-Identifier: Apache-2.0 */
/* api-fork.c: after fork(), every call of the child on the parent's objects returns -EPERM, and the
 * parent is not disturbed */
#include <signal.h>
#include <sys/wait.h>

#include "../../wipe.h"
#include "lib/fixture.h"

#define LENGTH (64 * KIB)

struct opened {
	struct fixture *f;
	struct wh_queue *queue;
	struct wh_batch *batch;
	struct wh_blocks *blocks;
	void *memory;
};

/* Runs in the child, which must not use the test's assertions. Returns the number of the first call
 * that does not return -EPERM, or 0. */
static int calls_after_fork(const struct opened *o)
{
	static struct note note;
	struct fixture *f = o->f;
	struct wh_transfer transfer = transfer_of(f, WH_WRITE, 0, 0, 10);
	struct wh_peer_info peer_info = { .size = sizeof(peer_info) };
	struct wh_memory_info memory_info = { .size = sizeof(memory_info) };
	struct wh_blocks_desc desc = {
		.size = sizeof(desc), .op = WH_READ, .block_length = 1, .count = 1, .base_count = 1
	};
	struct wh_base base = { .local = f->region, .remote = f->remote.id };
	struct wh_completion done;
	struct wh_region *region;
	struct wh_remote remote;
	struct wh_route routes[8];
	struct wh_queue *queue;
	struct wh_batch *batch;
	struct wh_blocks *blocks;
	struct wh_peer *peer;
	uint64_t offset, cursor = 0;
	char key[WH_KEY_MAX];
	size_t length = sizeof(key), count = 8;
	void *memory;
	int at = 0, status;

	desc.bases = &base;
#define DENIED(call)                                                                               \
	do {                                                                                       \
		at++;                                                                              \
		if ((call) != -EPERM || !strstr(wh_error_text(), "fork"))                          \
			return at;                                                                 \
	} while (0)
	DENIED(wh_peer_open(f->engine, "self", NULL, &peer));
	DENIED(wh_peer_close(f->peer));
	DENIED(wh_peer_info(f->peer, &peer_info));
	DENIED(wh_queue_new(f->engine, &queue));
	DENIED(wh_queue_take(o->queue, &done, 1, 0));
	DENIED(wh_queue_free(o->queue));
	DENIED(note_take(f->engine, &note, 0));
	DENIED(wh_memory_alloc(f->engine, 4096, NULL, &memory));
	DENIED(wh_memory_free(f->engine, o->memory));
	DENIED(wh_memory_query(f->engine, o->memory, &memory_info));
	DENIED(wh_region_register(f->engine, key, 1, NULL, &region));
	DENIED(wh_region_unregister(f->region)); /* call 12 */
	DENIED(wh_region_lookup(f->engine, f->local, 1, &region, &offset));
	DENIED(wh_peer_find(f->peer, "target", WH_ANSWER, &remote));
	DENIED(wh_peer_list(f->peer, &cursor, &remote, &count, WH_ANSWER));
	DENIED(wh_peer_lookup(f->peer, f->remote.address, 1, WH_ANSWER, &remote, &offset));
	DENIED(wh_region_pack_key(f->region, key, &length));
	DENIED(wh_peer_unpack_key(f->peer, key, length, WH_ANSWER, &remote));
	DENIED(wh_peer_measure(f->peer, f->region, f->remote.id));
	DENIED(wh_blocks_new(f->peer, &desc, &blocks));
	DENIED(wh_blocks_free(o->blocks));
	DENIED(wh_batch_new(f->peer, NULL, &batch));
	DENIED(wh_batch_add(o->batch, &transfer, 1)); /* call 23 */
	DENIED(wh_batch_add_address(o->batch, &(struct wh_address_transfer){ 0 }, 1));
	DENIED(wh_batch_add_blocks(o->batch, o->blocks));
	DENIED(wh_batch_notify(o->batch, 0, "x", 1));
	DENIED(wh_batch_clear(o->batch));
	DENIED(wh_batch_submit(o->batch));
	DENIED(wh_batch_test(o->batch));
	DENIED(wh_batch_wait_for(o->batch, 0));
	DENIED(wh_batch_status(o->batch));
	DENIED(wh_batch_cancel(o->batch));
	DENIED(wh_batch_transfer_status(o->batch, 0, &status));
	DENIED(wh_batch_routes(o->batch, routes, &count));
	DENIED(wh_batch_explain(o->batch, key, sizeof(key))); /* call 34 */
	DENIED(wh_batch_free(o->batch));
	DENIED(wh_engine_close(f->engine));
#undef DENIED
	return 0;
}

/* Run `body` in a forked child; return its exit status. */
static int in_child(int (*body)(const struct opened *), const struct opened *opened)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGALRM, SIG_DFL);
		alarm(10);
		_exit(body(opened));
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int own_engine(const struct opened *opened)
{
	struct wh_engine *engine;
	struct wh_peer *peer;

	(void)opened;
	if (wh_engine_open(NULL, &engine))
		return 1;
	if (wh_peer_open(engine, "self", NULL, &peer))
		return 2;
	if (wh_peer_close(peer))
		return 3;
	return wh_engine_close(engine) ? 4 : 0;
}

static void fork__every_call(void **state)
{
	struct wh_blocks_desc desc = {
		.size = sizeof(desc), .op = WH_READ, .block_length = 1, .count = 1, .base_count = 1
	};
	struct fixture f;
	struct opened opened = { .f = &f };
	struct wh_base base;

	skip_without_wipe();
	fixture_open(&f, *state, LENGTH);
	base = (struct wh_base){ .local = f.region, .remote = f.remote.id };
	desc.bases = &base;
	want(0, wh_queue_new(f.engine, &opened.queue));
	want(0, wh_blocks_new(f.peer, &desc, &opened.blocks));
	want(0, wh_memory_alloc(f.engine, 4096, NULL, &opened.memory));
	opened.batch = batch_of(&f, NULL, 0);
	want(0, in_child(calls_after_fork, &opened));
	/* The thread sanitizer forbids new threads in a child forked from a threaded process. */
	if (!HARNESS_TURNS)
		want(0, in_child(own_engine, &opened));
	/* The parent's objects still work. */
	round_trip(&f, 64, 64, 30000, 1);
	want(0, wh_batch_add_blocks(opened.batch, opened.blocks));
	want(0, batch_run(opened.batch));
	want(0, wh_batch_free(opened.batch));
	wh_blocks_free(opened.blocks);
	want(0, wh_memory_free(f.engine, opened.memory));
	want(0, wh_queue_free(opened.queue));
	fixture_close(&f);
}

/* A long-lived child holds copies of the parent's sockets. Peers see the engine leave as soon as it
 * closes all the same, and new connections are refused at once. */
static void fork__child_outlives_the_engine(void **state)
{
	const struct route *route = *state;
	struct child_transfer transfer = {
		.op = WH_WRITE, .remote = "target", .length = 100, .require = route->require
	};
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);
	struct child *initiator = child_start(NULL);
	struct wh_region *region;
	void *pages = pages_new(4096);
	int memory = child_memory(initiator, CHILD_FOREIGN, 4096), status;
	char url[96];
	int64_t before;
	pid_t pid;

	snprintf(url, sizeof(url), "%s", wh_engine_url(engine));
	want(0, wh_region_register(engine, pages, 4096, &named, &region));
	transfer.region = child_region(initiator, memory, 0, 4096, NULL, ACCESS_BOTH, NULL);
	transfer.peer = child_peer(initiator, url, NULL);
	want(0, child_transfer(initiator, &transfer, NULL));
	pid = fork();
	if (pid == 0) {
		signal(SIGALRM, SIG_DFL);
		alarm(20);
		pause();
		_exit(0);
	}
	want(0, wh_region_unregister(region));
	want(0, wh_engine_close(engine));
	before = quiet_now();
	status = child_transfer(initiator, &transfer, NULL);
	want_true(status < 0, "a batch for an engine that has been closed came to an end");
	want(-ECONNREFUSED, child_peer(initiator, url, NULL));
	want_true(quiet_now() - before < SCALE(2, 8) * SECOND, "that took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	child_exit(initiator);
	pages_free(pages, 4096);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(fork__every_call),
	TEST_OVER(fork__child_outlives_the_engine, vm), /* memory that shm cannot map */
	TEST_OVER(fork__child_outlives_the_engine, tcp4),
	TEST_OVER(fork__child_outlives_the_engine, rdma),
};

HARNESS_MAIN("api-fork", tests)
