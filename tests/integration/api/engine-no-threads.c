/* SPDX-License-Identifier: Apache-2.0 */
/* engine-no-threads.c: engines that start no thread (WH_ENGINE_NO_THREADS): what drives them, what
 * they serve, and what a caller that stalls does to its peers
 *
 * Other tests run over such engines as well: see lib/driven.h. */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "lib/driven.h"
#include "lib/fixture.h"

#define LENGTH (4 * MIB)

/* The threads of this process, without those of the fake NIC, which stand for hardware. */
static unsigned int count_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned int count = 0;
	struct dirent *task;
	char path[300], name[32];

	assert_non_null(tasks);
	while ((task = readdir(tasks))) {
		FILE *file;

		if (task->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		file = fopen(path, "re");
		if (!file)
			continue; /* it has ended */
		count += fgets(name, sizeof(name), file) && strncmp(name, "fake", 4) != 0;
		fclose(file);
	}
	closedir(tasks);
	return count;
}

/* The fake's threads name themselves, in their time. */
static void want_threads(unsigned int wanted)
{
	int64_t end = now() + PATIENCE;

	while (count_threads() != wanted && now() < end)
		sleep_ms(1);
	want(wanted, count_threads());
}

/* As fixture_open_with(), with an initiator or with children without threads. */
static void open_without(const char *side, struct fixture *f, const struct route *route,
			 const char *const *config, const struct child_options *options)
{
	setenv("TESTS_NO_THREADS", side, 1);
	fixture_open_with(f, route, LENGTH, config, options);
	unsetenv("TESTS_NO_THREADS");
}

/* ---- no thread ------------------------------------------------------------------------------- */

static void *name_itself(void *argument)
{
	*(pid_t *)argument = gettid();
	return NULL;
}

/* A thread that has been joined is still listed for a moment. */
static void thread_left(pid_t id)
{
	int64_t end = now() + PATIENCE;
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%d", id);
	while (!access(path, F_OK) && now() < end)
		sleep_ms(1);
}

/* Over every route: batches large and small, callbacks, a batch that asks for its region, queues.
 */
static void threads__none(void **state)
{
	struct wh_region_options published = { .size = sizeof(published), .access = ACCESS_BOTH };
	struct wh_region *region;
	unsigned int before;
	pthread_t thread;
	struct fixture f;
	pid_t id;

	/* A sanitizer starts a thread of its own with the first other one. */
	want(0, pthread_create(&thread, NULL, name_itself, &id));
	want(0, pthread_join(thread, NULL));
	thread_left(id);
	before = count_threads();
	open_without("initiator", &f, *state, NULL, NULL);
	want_threads(before);
	round_trip(&f, 64, 64, 1000, 1);
	round_trip(&f, 0, 0, LENGTH, 2);
	want(0, wh_region_register(f.engine, f.base, GUARD, &published, &region));
	want(0, wh_region_unregister(region));
	want_threads(before);
	fixture_close(&f);
	want_threads(before);
}

struct called {
	struct wh_engine *engine;
	pthread_t thread;
	int times, progress;
};

static void note_call(struct wh_batch *batch, int status, void *arg)
{
	struct called *called = arg;

	(void)batch;
	called->thread = pthread_self();
	called->progress = wh_engine_progress(called->engine, 0);
	called->times += status ? 100 : 1;
}

/* Callbacks run inside the calls that drive the engine. */
static void callback__in_the_driving_call(void **state)
{
	struct called seen = { 0 };
	struct wh_batch_options options = { .size = sizeof(options),
					    .callback = note_call,
					    .callback_arg = &seen };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	open_without("initiator", &f, *state, NULL, NULL);
	seen.engine = f.engine;
	transfer = transfer_of(&f, WH_WRITE, 0, 0, LENGTH);
	want(0, wh_batch_new(f.peer, &options, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, wh_batch_submit(batch));
	want(0, seen.times); /* not inside the submission */
	want(0, wh_batch_wait_for(batch, PATIENCE));
	want(0, wh_batch_free(batch)); /* waits for the callback */
	want(1, seen.times);
	want(-EDEADLK, seen.progress);
	want_true(pthread_equal(seen.thread, pthread_self()), "it ran on another thread");
	fixture_close(&f);
}

/* Other calls that wait run them, too. */
static void callback__in_another_call(void **state)
{
	struct called seen = { 0 };
	struct wh_batch_options options = { .size = sizeof(options),
					    .callback = note_call,
					    .callback_arg = &seen };
	struct wh_transfer transfer;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct fixture f;
	int64_t end;

	open_without("initiator", &f, *state, NULL, NULL);
	seen.engine = f.engine;
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 8);
	want(0, wh_batch_new(f.peer, &options, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, wh_batch_submit(batch));
	want(0, seen.times);
	end = now() + PATIENCE;
	while (!seen.times && now() < end)
		want(-ENOENT, wh_peer_find(f.peer, "nothing", 10000000, &remote));
	want(1, seen.times);
	want(-EDEADLK, seen.progress);
	want_true(pthread_equal(seen.thread, pthread_self()), "it ran on another thread");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void arguments__refused(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .flags = WH_ENGINE_NO_THREADS,
					     .registry = "http://127.0.0.1:1" };
	struct wh_engine *engine = NULL;

	(void)state;
	want_text(-EOPNOTSUPP, "registry", wh_engine_open(&options, &engine));
	options.registry = NULL;
	options.flags = 4;
	want_text(-EINVAL, "flags", wh_engine_open(&options, &engine));
	options.flags = 0;
	want(0, wh_engine_open(&options, &engine));
	want_text(-EOPNOTSUPP, "WH_ENGINE_NO_THREADS", wh_engine_progress(engine, 0));
	want_text(-EOPNOTSUPP, "WH_ENGINE_NO_THREADS", wh_engine_fd(engine));
	want(0, wh_engine_close(engine));
	options.flags = WH_ENGINE_NO_THREADS;
	want(0, wh_engine_open(&options, &engine));
	want_text(-EINVAL, "negative", wh_engine_progress(engine, -1));
	want(0, wh_engine_progress(engine, 0));
	want(0, wh_engine_progress(engine, 5 * MS));
	want_text(-EINVAL, "NULL", wh_engine_progress(NULL, 0));
	want_text(-EINVAL, "NULL", wh_engine_fd(NULL));
	want(0, wh_engine_close(engine));
}

/* ---- the descriptor -------------------------------------------------------------------------- */

/* poll() and wh_engine_progress(engine, 0) do everything: no other call makes progress. */
static void descriptor__is_enough(void **state)
{
	const uint64_t lengths[] = { 8, 4096, LENGTH };
	bool rests = false;
	struct fixture f;

	open_without("initiator", &f, *state, NULL, NULL);
	for (size_t i = 0; i < 3; i++) {
		struct wh_transfer transfer = transfer_of(&f, WH_WRITE, 0, 0, lengths[i]);
		struct wh_batch *batch = batch_of(&f, &transfer, 1);
		struct pollfd look = { .fd = wh_engine_fd(f.engine), .events = POLLIN };

		target_fill(&f, 0, lengths[i], 0, i);
		pattern_fill(f.local, lengths[i], 0, i + 10);
		want(0, wh_batch_submit(batch));
		while (wh_batch_status(batch) == -EINPROGRESS) {
			want_true(poll(&look, 1, (int)(PATIENCE / MS)) == 1,
				  "%llu bytes: nothing to do, and the batch runs",
				  (unsigned long long)lengths[i]);
			want_true(wh_engine_progress(f.engine, 0) >= 0, "%s", wh_error_text());
		}
		want(0, wh_batch_status(batch));
		want(PATTERN_GOOD, target_check(&f, 0, lengths[i], 0, i + 10));
		want(0, wh_batch_free(batch));
	}
	/* At rest it is not readable for long: else a program would spin. */
	for (int i = 0; i < 100 && !rests; i++) {
		rests = poll(&(struct pollfd){ wh_engine_fd(f.engine), POLLIN, 0 }, 1, 0) == 0;
		wh_engine_progress(f.engine, 0);
	}
	want_true(rests, "it is always readable");
	fixture_close(&f);
}

/* ---- several callers ------------------------------------------------------------------------- */

struct worker {
	pthread_t thread;
	const struct fixture *f;
	unsigned int number;
	int error;
};

#define WORKERS 4
#define PART (LENGTH / WORKERS)

static void *work(void *argument)
{
	struct worker *worker = argument;
	uint64_t at = worker->number * PART;
	struct wh_transfer transfer = transfer_of(worker->f, WH_WRITE, at, at, PART);
	struct wh_batch *batch;

	worker->error = wh_batch_new(worker->f->peer, NULL, &batch);
	if (worker->error)
		return NULL;
	worker->error = wh_batch_add(batch, &transfer, 1);
	for (int i = 0; i < SCALE(50, 10) && !worker->error; i++) {
		worker->error = wh_batch_submit(batch);
		if (!worker->error)
			worker->error = wh_batch_wait_for(batch, PATIENCE);
		if (!worker->error)
			worker->error = wh_batch_status(batch);
	}
	wh_batch_free(batch);
	return NULL;
}

static void callers__many(void **state)
{
	struct worker workers[WORKERS];
	struct fixture f;

	open_without("initiator", &f, *state, NULL, NULL);
	target_fill(&f, 0, LENGTH, 0, 1);
	pattern_fill(f.local, LENGTH, 0, 2);
	for (unsigned int i = 0; i < WORKERS; i++) {
		workers[i] = (struct worker){ .f = &f, .number = i };
		want(0, pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
	for (unsigned int i = 0; i < WORKERS; i++) {
		want(0, pthread_join(workers[i].thread, NULL));
		want(0, workers[i].error);
	}
	want(PATTERN_GOOD, target_check(&f, 0, LENGTH, 0, 2));
	fixture_close(&f);
}

/* ---- serving --------------------------------------------------------------------------------- */

/* An engine of this process without threads, whose memory a child reads and writes. */
struct served {
	struct wh_engine *engine;
	void *memory;
	struct wh_region *region;
	struct child *child;
	int peer, local;
};

static void served_open(struct served *s, const char *timeout)
{
	const char *const config[] = { timeout, NULL };
	struct child_options options = { .config = { timeout } };
	struct wh_engine_options mine = { .size = sizeof(mine),
					  .config = config,
					  .flags = WH_ENGINE_NO_THREADS };
	struct wh_region_options published = { .size = sizeof(published),
					       .name = "ours",
					       .access = ACCESS_BOTH };

	want(0, wh_engine_open(&mine, &s->engine));
	driven_set(s->engine);
	want(0, wh_memory_alloc(s->engine, LENGTH, NULL, &s->memory));
	want(0, wh_region_register(s->engine, s->memory, LENGTH, &published, &s->region));
	s->child = child_start(&options);
	s->local = child_region(s->child, child_memory(s->child, WH_MEMORY_SHARED, LENGTH), 0,
				LENGTH, "theirs", ACCESS_BOTH, NULL);
	s->peer = child_peer(s->child, wh_engine_url(s->engine), NULL);
	want_true(s->peer >= 0, "the child cannot connect");
}

static void served_close(struct served *s)
{
	want(0, child_peer_close(s->child, s->peer));
	child_exit(s->child);
	want(0, wh_region_unregister(s->region));
	want(0, wh_memory_free(s->engine, s->memory));
	driven_set(NULL);
	want(0, wh_engine_close(s->engine));
}

static struct child_transfer served_read(const struct served *s, const char *require)
{
	return (struct child_transfer){ .peer = s->peer,
					.region = s->local,
					.remote = "ours",
					.op = WH_READ,
					.length = LENGTH,
					.require = require };
}

/* The peer is served while, and only while, somebody drives the engine. */
static void peer__served_by_progress(void **state)
{
	struct child_transfer transfer;
	struct child_result result;
	struct pollfd answered;
	struct served s;

	(void)state;
	served_open(&s, "timeout=20000");
	pattern_fill(s.memory, LENGTH, 0, 5);
	transfer = served_read(&s, "tcp");
	driven_set(NULL);
	child_transfer_send(s.child, &transfer);
	answered = (struct pollfd){ s.child->fd, POLLIN, 0 };
	want(0, poll(&answered, 1, 200));
	driven_set(s.engine);
	want(0, child_transfer_receive(s.child, &result));
	want(PATTERN_GOOD, child_check(s.child, 0, 0, LENGTH, 0, 5));
	/* Memory that is mapped needs no progress of its owner, once it is mapped. */
	transfer.require = "shm";
	want(0, child_transfer(s.child, &transfer, &result));
	pattern_fill(s.memory, LENGTH, 0, 6);
	driven_set(NULL);
	want(0, child_transfer(s.child, &transfer, &result));
	want(PATTERN_GOOD, child_check(s.child, 0, 0, LENGTH, 0, 6));
	driven_set(s.engine);
	served_close(&s);
}

/* Until the transfer succeeds: a busy machine may lose the peer. */
static void want_works(const struct served *s, const struct child_transfer *transfer)
{
	int64_t end = now() + PATIENCE;
	struct child_result result;
	int status;

	do {
		sleep_ms(20);
		status = child_transfer(s->child, transfer, &result);
	} while (status && now() < end);
	want_true(!status, "it is %d: %s", status, result.text);
}

/* A caller that stalls for longer than its peer's timeout is lost to it; when it goes on, the peer
 * connects again by itself. */
static void stall__lost_and_back(void **state)
{
	struct child_transfer transfer;
	struct child_result result;
	struct served s;
	int status;

	(void)state;
	served_open(&s, SCALE("timeout=1000", "timeout=4000"));
	transfer = served_read(&s, "tcp");
	want_works(&s, &transfer);
	driven_set(NULL);
	/* The child notices by itself. */
	status = child_transfer(s.child, &transfer, &result);
	want_true(status == -ECONNRESET, "it is %d: %s", status, result.text);
	driven_set(s.engine);
	want_works(&s, &transfer);
	served_close(&s);
}

/* The owner of memory that a stalled engine has mapped cannot take it back meanwhile; it is told
 * whom it waits for. */
static void stall__holds_memory(void **state)
{
	struct child_options options = { .config = { SCALE("timeout=1000", "timeout=4000") } };
	struct fixture f;
	int64_t end;
	int another, status;
	uint64_t id;

	(void)state;
	open_without("initiator", &f, &route_shm, NULL, &options);
	round_trip(&f, 0, 0, LENGTH, 1);
	another = child_region(f.child, f.memory, 0, LENGTH, "again", ACCESS_BOTH, &id);
	driven_set(NULL);
	status = child_unregister(f.child, another);
	/* The mapping of "target" shows the same bytes, so the engine has to answer. */
	want_true(status == -EBUSY, "a mapped region went without an answer: %d", status);
	driven_set(f.engine);
	end = now() + PATIENCE;
	while ((status = child_unregister(f.child, another)) == -EBUSY && now() < end)
		;
	want(0, status);
	fixture_close(&f);
}

/* ---- two without threads --------------------------------------------------------------------- */

/* Each maps the other's memory at the same moment: a wait for an answer serves the other's
 * question. */
static void both__map_each_other(void **state)
{
	(void)state;
	for (int i = 0; i < SCALE(10, 3); i++) {
		struct child_transfer transfer;
		struct child_result result;
		struct wh_transfer mine;
		struct wh_remote theirs;
		struct wh_region *local;
		struct wh_batch *batch;
		struct wh_peer *peer;
		unsigned char *bytes = pages_new(LENGTH);
		struct served s;

		setenv("TESTS_NO_THREADS", "target", 1);
		served_open(&s, "timeout=10000");
		unsetenv("TESTS_NO_THREADS");
		pattern_fill(s.memory, LENGTH, 0, 7);
		child_fill(s.child, 0, 0, LENGTH, 0, 8);
		want(0, wh_peer_open(s.engine, s.child->url, NULL, &peer));
		want(0, wh_peer_find(peer, "theirs", PATIENCE, &theirs));
		want(0, wh_region_register(s.engine, bytes, LENGTH, NULL, &local));
		mine = (struct wh_transfer){ .local = local,
					     .remote = theirs.id,
					     .length = LENGTH / 2,
					     .remote_offset = LENGTH / 2,
					     .op = WH_READ };
		transfer = served_read(&s, "shm");
		transfer.length = LENGTH / 2;
		child_transfer_send(s.child, &transfer);
		want(0, wh_batch_new(
				peer,
				&(struct wh_batch_options){ .size = sizeof(struct wh_batch_options),
							    .require = "shm" },
				&batch));
		want(0, wh_batch_add(batch, &mine, 1));
		want(0, wh_batch_submit(batch));
		want(0, wh_batch_wait_for(batch, PATIENCE));
		want(0, wh_batch_status(batch));
		want(0, child_transfer_receive(s.child, &result));
		want(PATTERN_GOOD, pattern_check(bytes, LENGTH / 2, LENGTH / 2, 8));
		want(PATTERN_GOOD, child_check(s.child, 0, 0, LENGTH / 2, 0, 7));
		want(0, wh_batch_free(batch));
		want(0, wh_peer_close(peer));
		want(0, wh_region_unregister(local));
		served_close(&s);
		pages_free(bytes, LENGTH);
	}
}

/* Its process dies while its memory is mapped: no thread of it holds a futex, and yet no write
 * succeeds afterwards. */
static void owner__dies(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;
	int status;

	(void)state;
	open_without("target", &f, &route_shm, NULL, NULL);
	round_trip(&f, 0, 0, LENGTH, 1);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 64);
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	child_kill(f.child);
	f.child = NULL;
	/* Either the connection is known to be lost, or the batch finds out. */
	status = wh_batch_submit(batch);
	if (!status) {
		want(0, wh_batch_wait_for(batch, PATIENCE));
		status = wh_batch_status(batch);
	}
	want(-ECONNRESET, status);
	want(0, wh_batch_free(batch));
	fixture_close_initiator(&f);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST_EVERY_ROUTE(threads__none),
		TEST_OVER(threads__none, file_lent),
		TEST_OVER(callback__in_the_driving_call, self),
		TEST_OVER(callback__in_the_driving_call, shm),
		TEST_OVER(callback__in_the_driving_call, tcp4),
		TEST_OVER(callback__in_another_call, shm),
		TEST_OVER(callback__in_another_call, tcp4),
		TEST(arguments__refused),
		TEST_EVERY_ROUTE(descriptor__is_enough),
		TEST_HOST_ROUTES(callers__many),
		TEST(peer__served_by_progress),
		TEST(stall__lost_and_back),
		TEST(stall__holds_memory),
		TEST(both__map_each_other),
		TEST(owner__dies),
	};

	return harness_main(argc, argv, "engine-no-threads", tests,
			    sizeof(tests) / sizeof(tests[0]));
}
