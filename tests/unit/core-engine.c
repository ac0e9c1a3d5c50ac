/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c, progress.c and memory.c: what an engine refuses to open with, the order of its
 * transports, what it does not close with, and who may drive it */
#include "allocation.h"
#include "core-fake.h"

#include <unistd.h>

#include "core/progress.h"
#include "frozen-clock.h"
#include "util/loop.h"
#include "util/turns.h"

#define START (1000 * WH_SECOND)

/* ---- opening ------------------------------------------------------------------------------- */

static struct wh_engine_options options;
static const char *config[4];

/* Options of an engine without threads and sockets, with one more setting; NULL: none. */
static void prepare(const char *setting)
{
	config[0] = "observe=off";
	config[1] = "cuda=off";
	config[2] = setting;
	options = (struct wh_engine_options){
		.size = sizeof(options),
		.listen = "none",
		.flags = WH_ENGINE_NO_THREADS,
		.config = config,
	};
}

static void refused(int error, const char *text)
{
	struct wh_engine *out = NULL;

	assert_int_equal(wh_engine_open(&options, &out), error);
	assert_null(out);
	said(text);
}

static struct wh_engine *opened(void)
{
	struct wh_engine *out = NULL;

	if (wh_engine_open(&options, &out))
		fail_msg("%s", wh_error_text());
	return out;
}

static void open__arguments(void **state)
{
	char name[WH_NAME_MAX + 1];
	struct wh_engine *one;

	(void)state;
	prepare(NULL);
	assert_int_equal(wh_engine_open(&options, NULL), -EINVAL);
	said("out is NULL");
	options.log_level = WH_LOG_DEBUG + 1;
	refused(-EINVAL, "options.log_level is 4");
	options.log_level = 0;
	options.flags |= 6;
	refused(-EINVAL, "options.flags is 7");
	prepare(NULL);
	options.size = 4;
	refused(-EINVAL, "wh_engine_open");
	prepare(NULL);
	memset(name, 'n', sizeof(name) - 1);
	name[WH_NAME_MAX] = 0;
	options.name = name;
	refused(-EINVAL, "options.name has more than 63 bytes");
	options.name = "a\nb";
	refused(-EINVAL, "control characters");
	name[WH_NAME_MAX - 1] = 0;
	options.name = name;
	one = opened();
	assert_string_equal(wh_engine_name(one), name);
	assert_string_equal(wh_engine_url(one), "");
	assert_int_equal(wh_engine_close(one), 0);
}

/* A misspelt word is no default. */
static void open__settings(void **state)
{
	static const struct {
		const char *setting, *text;
	} rows[] = {
		{ "transports=tcp,infiniband", "there is no transport \"infiniband\"; known are" },
		{ "transports=tc", "there is no transport \"tc\"" },
		{ "require=roce", "there is no transport \"roce\"" },
		{ "window=driver,magic", "window=driver,magic: known are driver" },
		{ "file_cold=warm", "file_cold=warm: known are direct, ring and pread" },
		{ "file_pages=maybe", "file_pages=maybe: known are auto, keep, once and off" },
		{ "file_writes=late", "file_writes=late: known are cached and direct" },
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		prepare(rows[i].setting);
		refused(-EINVAL, rows[i].text);
	}
}

static void open__settings_of_files(void **state)
{
	static const char *const rows[] = {
		"file_cold=direct", "file_cold=ring",     "file_cold=pread",
		"file_pages=auto",  "file_pages=keep",    "file_pages=once",
		"file_pages=off",   "file_writes=cached", "file_writes=direct",
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		prepare(rows[i]);
		assert_int_equal(wh_engine_close(opened()), 0);
	}
}

static void open__registry(void **state)
{
	struct wh_engine *one;

	(void)state;
	prepare(NULL);
	options.registry = "http://127.0.0.1:7077";
	refused(-EOPNOTSUPP, "an engine without threads cannot use a registry");
	options.registry = "ftp://127.0.0.1:7077";
	refused(-EINVAL, "ftp");
	/* What the program says counts. */
	prepare("registry=ftp://127.0.0.1:7077");
	refused(-EINVAL, "ftp");
	options.registry = "p2p";
	one = opened();
	assert_null(one->registry);
	assert_int_equal(wh_engine_close(one), 0);
}

static void open__identity(void **state)
{
	struct wh_engine *one, *two;
	char end[24];

	(void)state;
	prepare(NULL);
	one = opened();
	options.name = "";
	two = opened();
	assert_int_not_equal(wh_engine_epoch(one), 0);
	assert_int_not_equal(wh_engine_epoch(two), 0);
	assert_int_not_equal(wh_engine_epoch(one), wh_engine_epoch(two));
	snprintf(end, sizeof(end), ".%d", (int)getpid());
	assert_non_null(strstr(wh_engine_name(one), end));
	assert_string_equal(wh_engine_name(one), wh_engine_name(two));
	assert_int_equal(wh_engine_close(one), 0);
	assert_int_equal(wh_engine_close(two), 0);
	assert_int_equal(wh_engine_epoch(NULL), 0);
	assert_string_equal(wh_engine_name(NULL), "");
	assert_string_equal(wh_engine_url(NULL), "");
}

/* Each allocation fails once: -ENOMEM, or what needed it is done without. */
static void open__no_memory(void **state)
{
	struct wh_engine *one;
	unsigned failed = 0;
	bool refused = true;
	int error;

	(void)state;
	prepare(NULL);
	for (unsigned nth = 1; refused; nth++) {
		one = NULL;
		allocation_fails = nth;
		error = wh_engine_open(&options, &one);
		refused = !allocation_fails;
		allocation_fails = 0;
		assert_int_equal(error, one ? 0 : -ENOMEM);
		failed += !one;
		assert_int_equal(wh_engine_close(one), 0);
	}
	assert_true(failed > 5);
}

static void log_line(void *count, const struct wh_log_record *record)
{
	(void)record;
	++*(unsigned *)count;
}

/* The setting raises the program's level, and never lowers it. */
static void open__log_level(void **state)
{
	static const struct {
		uint32_t given;
		const char *setting;
		uint32_t level;
	} rows[] = {
		{ 0, NULL, WH_LOG_INFO },
		{ WH_LOG_WARN, NULL, WH_LOG_WARN },
		{ WH_LOG_WARN, "log=info", WH_LOG_INFO },
		{ WH_LOG_DEBUG, "log=warn", WH_LOG_DEBUG },
	};
	unsigned count = 0;

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct wh_engine *one;

		prepare(rows[i].setting);
		options.log = log_line;
		options.log_arg = &count;
		options.log_level = rows[i].given;
		one = opened();
		assert_ptr_equal(one->log.write, log_line);
		assert_int_equal(one->log.level, rows[i].level);
		assert_int_equal(wh_engine_close(one), 0);
	}
}

/* ---- transports ---------------------------------------------------------------------------- */

static void transports__order(void **state)
{
	struct wh_engine *one;

	(void)state;
	prepare("transports=tcp,self");
	one = opened();
	assert_int_equal(one->order_count, 2);
	assert_int_equal(one->order[0], WH_TRANSPORT_TCP);
	assert_int_equal(one->order[1], WH_TRANSPORT_SELF);
	assert_int_equal(one->rank[WH_TRANSPORT_TCP], 0);
	assert_int_equal(one->rank[WH_TRANSPORT_SELF], 1);
	assert_int_equal(one->rank[WH_TRANSPORT_SHM], WH_TRANSPORT_COUNT);
	assert_string_equal(one->transport_off[WH_TRANSPORT_SHM],
			    "switched off by the setting transports (tcp,self)");
	assert_true(one->not_here[WH_TRANSPORT_SHM]);
	assert_string_equal(one->transport_off[WH_TRANSPORT_TCP], "");
	assert_false(one->not_here[WH_TRANSPORT_TCP]);
	assert_int_equal(wh_engine_close(one), 0);
}

/* A name counts where it is first: a batch that a transport fails goes on with the next one, and
 * would come back to one that is twice in the order. */
static void transports__named_twice(void **state)
{
	struct wh_engine *one;

	(void)state;
	prepare("transports=tcp,self,tcp,tcp,tcp,tcp,shm,self");
	one = opened();
	assert_int_equal(one->order_count, 3);
	assert_int_equal(one->order[0], WH_TRANSPORT_TCP);
	assert_int_equal(one->order[1], WH_TRANSPORT_SELF);
	assert_int_equal(one->order[2], WH_TRANSPORT_SHM);
	assert_int_equal(one->rank[WH_TRANSPORT_TCP], 0);
	assert_int_equal(one->rank[WH_TRANSPORT_SELF], 1);
	assert_int_equal(one->rank[WH_TRANSPORT_SHM], 2);
	assert_int_equal(wh_engine_close(one), 0);
}

/* Records are what TCP has instead of TLS. */
static void transports__records(void **state)
{
	static const struct {
		const char *setting;
		uint32_t capabilities;
	} rows[] = {
		{ "integrity=none", WH_CAPABLE_RECORDS },
		{ "integrity=crc32c", WH_CAPABLE_RECORDS | WH_WANTS_RECORDS },
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct wh_engine *one;

		prepare(rows[i].setting);
		one = opened();
		assert_int_equal(one->identity.capabilities &
					 (WH_CAPABLE_RECORDS | WH_WANTS_RECORDS),
				 rows[i].capabilities);
		assert_int_equal(wh_engine_close(one), 0);
	}
}

/* ---- guards and closing -------------------------------------------------------------------- */

static void guard__fork(void **state)
{
	(void)state;
	assert_int_equal(wh_engine_guard(engine, "call"), 0);
	assert_int_equal(wh_engine_guard(NULL, "call"), -EINVAL);
	said("call: engine is NULL");
	*engine->ours = 0; /* as the kernel does in a child */
	assert_int_equal(wh_engine_guard(engine, "call"), -EPERM);
	said("call: the engine belongs to the process that opened it");
	assert_int_equal(wh_engine_close(engine), -EPERM);
	assert_int_equal(wh_engine_progress(engine, 0), -EPERM);
	assert_int_equal(wh_memory_free(engine, source), -EPERM);
	*engine->ours = 1;
}

static void close__what_is_open(void **state)
{
	struct wh_queue *queue;
	void *address;

	(void)state;
	assert_int_equal(wh_engine_close(NULL), 0);
	assert_int_equal(wh_queue_new(engine, &queue), 0);
	assert_int_equal(wh_memory_alloc(engine, 4096, NULL, &address), 0);
	engine->window_count = 3;
	assert_int_equal(wh_engine_close(engine), -EBUSY);
	said("still open are 1 peers, 1 queues, 2 regions, 3 windows and 1 allocations");
	engine->window_count = 0;
	assert_int_equal(wh_memory_free(engine, address), 0);
	assert_int_equal(wh_queue_free(queue), 0);
}

static void close__each_alone(void **state)
{
	struct wh_engine *one;
	struct wh_queue *queue;
	struct wh_region *region;
	struct wh_peer *peer;
	void *address;

	(void)state;
	prepare(NULL);
	one = opened();
	one->window_count = 1;
	assert_int_equal(wh_engine_close(one), -EBUSY);
	one->window_count = 0;
	assert_int_equal(wh_queue_new(one, &queue), 0);
	assert_int_equal(wh_engine_close(one), -EBUSY);
	assert_int_equal(wh_queue_free(queue), 0);
	assert_int_equal(wh_memory_alloc(one, 4096, NULL, &address), 0);
	assert_int_equal(wh_engine_close(one), -EBUSY);
	assert_int_equal(wh_region_register(one, address, 4096, NULL, &region), 0);
	assert_int_equal(wh_memory_free(one, address), -EBUSY);
	assert_int_equal(wh_region_unregister(region), 0);
	assert_int_equal(wh_memory_free(one, address), 0);
	assert_int_equal(wh_region_register(one, source, 4096, NULL, &region), 0);
	assert_int_equal(wh_engine_close(one), -EBUSY);
	assert_int_equal(wh_region_unregister(region), 0);
	assert_int_equal(wh_peer_open(one, "self", NULL, &peer), 0);
	assert_int_equal(wh_engine_close(one), -EBUSY);
	assert_int_equal(wh_peer_close(peer), 0);
	assert_int_equal(wh_engine_close(one), 0);
}

/* What a call on the engine's loop returns. */
static int within;

static void close_within(void *argument)
{
	assert_true(wh_engine_inside(argument));
	within = wh_engine_close(argument);
}

static void progress_within(void *argument)
{
	within = wh_engine_progress(argument, 0);
}

static void close__within_the_engine(void **state)
{
	(void)state;
	assert_false(wh_engine_inside(engine));
	wh_loop_call(&engine->loops[0], close_within, engine);
	assert_int_equal(within, -EDEADLK);
	wh_loop_call(&engine->loops[0], progress_within, engine);
	assert_int_equal(within, -EDEADLK);
}

/* Connections begin at one loop after the other, and numbers start over. */
static void loops__in_turns(void **state)
{
	struct wh_loop *loops = engine->loops, four[4] = { 0 };

	(void)state;
	assert_int_equal(wh_engine_loops(engine), 1);
	engine->loops = four;
	engine->loop_count = 4;
	for (unsigned i = 0; i < 9; i++) {
		unsigned next = wh_engine_next_loop(engine);

		assert_int_equal(wh_engine_next_loop(engine), (next + 1) % 4);
		assert_ptr_equal(wh_engine_loop(engine, i), &four[i % 4]);
	}
	engine->loops = loops;
	engine->loop_count = 1;
}

/* ---- progress ------------------------------------------------------------------------------ */

static struct wh_task task;
static unsigned ran;

static void on_task(struct wh_task *posted)
{
	(void)posted;
	ran++;
}

static void progress__who_may(void **state)
{
	struct wh_turns *turns = engine->turns;

	(void)state;
	assert_int_equal(wh_engine_progress(NULL, 0), -EINVAL);
	assert_int_equal(wh_engine_fd(NULL), -EINVAL);
	assert_int_equal(wh_engine_progress(engine, -1), -EINVAL);
	said("timeout is negative");
	engine->turns = NULL;
	assert_int_equal(wh_engine_progress(engine, 0), -EOPNOTSUPP);
	said("wh_engine_progress: the engine has threads of its own");
	assert_int_equal(wh_engine_fd(engine), -EOPNOTSUPP);
	said("wh_engine_fd: the engine has threads of its own");
	engine->turns = turns;
	assert_true(wh_engine_fd(engine) >= 0);
}

static void settle(void)
{
	while (wh_engine_progress(engine, 0) > 0)
		;
}

/* 1: there was something to do; 0: there was nothing until the timeout. */
static void progress__says_what_it_did(void **state)
{
	int64_t start;

	(void)state;
	settle();
	assert_int_equal(wh_engine_progress(engine, 0), 0);
	ran = 0;
	task.run = on_task;
	wh_loop_post(&engine->loops[0], &task);
	assert_int_equal(wh_engine_progress(engine, WH_FOREVER), 1);
	assert_int_equal(ran, 1);
	start = wh_now();
	assert_int_equal(wh_engine_progress(engine, 5 * WH_MS), 0);
	assert_true(wh_now() - start >= 5 * WH_MS);
}

static void on_timer(struct wh_timer *timer)
{
	(void)timer;
	ran++;
}

static void set_timer(void *timer)
{
	wh_timer_set(&engine->loops[0], timer, START + WH_SECOND);
}

static void progress__timers(void **state)
{
	struct wh_timer timer = { .fire = on_timer };

	(void)state;
	frozen_now = START;
	ran = 0;
	wh_loop_call(&engine->loops[0], set_timer, &timer);
	settle();
	frozen_now = START + WH_SECOND - 1;
	settle();
	assert_int_equal(ran, 0);
	frozen_now++;
	assert_int_equal(wh_engine_progress(engine, 0), 1);
	assert_int_equal(ran, 1);
	frozen_now = 0;
}

/* Works put works: each call runs what was due when it began, and does not sleep if more came. */
static struct wh_work first, second;
static unsigned works;

static void on_second(struct wh_work *work)
{
	(void)work;
	works += 10;
}

static void on_first(struct wh_work *work)
{
	(void)work;
	works++;
	wh_worker_put(&engine->planner, &second);
}

static void progress__works(void **state)
{
	(void)state;
	settle();
	works = 0;
	first.run = on_first;
	second.run = on_second;
	assert_int_equal(wh_worker_start(&engine->callbacks, "unit"), 0);
	assert_int_equal(wh_worker_start(&engine->planner, "unit"), 0);
	wh_worker_put(&engine->callbacks, &first);
	assert_int_equal(wh_engine_progress(engine, WH_FOREVER), 1);
	assert_int_equal(works, 11);
	settle();
	assert_int_equal(works, 11);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

static void take_lock(struct wh_task *posted)
{
	(void)posted;
	assert_int_equal(pthread_mutex_trylock(&lock), 0);
	pthread_mutex_unlock(&lock);
	ran++;
}

/* A turn, without the lock, instead of a wait. */
static void cond_wait__gives_a_turn(void **state)
{
	(void)state;
	settle();
	frozen_now = START;
	ran = 0;
	task.run = take_lock;
	pthread_mutex_lock(&lock);
	wh_loop_post(&engine->loops[0], &task);
	assert_int_equal(wh_engine_cond_wait(engine, &cond, &lock, INT64_MAX), 0);
	assert_int_equal(ran, 1);
	assert_int_equal(pthread_mutex_trylock(&lock), EBUSY);
	wh_loop_post(&engine->loops[0], &task);
	assert_int_equal(wh_engine_cond_wait(engine, &cond, &lock, START + 1), 0);
	assert_int_equal(wh_engine_cond_wait(engine, &cond, &lock, START), ETIMEDOUT);
	pthread_mutex_unlock(&lock);
	frozen_now = 0;
}

/* ---- memory -------------------------------------------------------------------------------- */

static void memory__guards(void **state)
{
	struct wh_memory_info info = { .size = sizeof(info) };
	void *address = NULL;

	(void)state;
	assert_int_equal(wh_memory_alloc(NULL, 1, NULL, &address), -EINVAL);
	said("wh_memory_alloc: engine is NULL");
	assert_int_equal(wh_memory_free(NULL, source), -EINVAL);
	said("wh_memory_free: engine is NULL");
	assert_int_equal(wh_memory_query(NULL, source, &info), -EINVAL);
	said("wh_memory_query: engine is NULL");
	assert_int_equal(wh_memory_free(engine, NULL), 0);
	assert_int_equal(wh_memory_free(engine, source), -EINVAL);
	assert_int_equal(wh_memory_alloc(engine, 0, NULL, &address), -EINVAL);
	assert_null(address);
	assert_int_equal(wh_memory_alloc(engine, 4096, NULL, &address), 0);
	memset(address, 1, 4096);
	assert_int_equal(wh_memory_query(engine, address, &info), 0);
	assert_int_equal(info.kind, WH_MEMORY_SHARED);
	assert_int_equal(wh_memory_free(engine, address), 0);
	assert_int_equal(wh_memory_free(engine, address), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__arguments),
		cmocka_unit_test(open__settings),
		cmocka_unit_test(open__settings_of_files),
		cmocka_unit_test(open__registry),
		cmocka_unit_test(open__identity),
		cmocka_unit_test(open__no_memory),
		cmocka_unit_test(open__log_level),
		cmocka_unit_test(transports__order),
		cmocka_unit_test(transports__named_twice),
		cmocka_unit_test(transports__records),
		TEST(guard__fork),
		TEST(close__what_is_open),
		cmocka_unit_test(close__each_alone),
		TEST(close__within_the_engine),
		TEST(loops__in_turns),
		TEST(progress__who_may),
		TEST(progress__says_what_it_did),
		TEST(progress__timers),
		TEST(progress__works),
		TEST(cond_wait__gives_a_turn),
		TEST(memory__guards),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
