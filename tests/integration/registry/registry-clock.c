/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: registry command bench-many waits */
/* registry-clock.c: a wall clock that jumps by days, forwards and backwards, ten times a second
 *
 * It jumps for everything in this process and its children. Engines must measure waits and leases
 * by another clock. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "lib/fixture.h"
#include "lib/server.h"

#define LENGTH (64 * KIB)
#define OFF __attribute__((no_sanitize("address", "thread", "undefined")))

/* ---- the clock ------------------------------------------------------------------------------- */

/* How often the library has read each kind of clock. */
static _Atomic unsigned int asked_steady, asked_wall;

/* Seconds to add: up to ten days before or after the true time, another value every 0.1 s. */
OFF static int64_t jump(void)
{
	struct timespec t;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
	return (int64_t)((uint64_t)(t.tv_sec * 10 + t.tv_nsec / 100000000) * 2654435761u %
			 1728000) -
	       864000;
}

OFF static void count(const void *caller, _Atomic unsigned int *what)
{
	Dl_info where;

	if (dladdr(caller, &where) && strstr(where.dli_fname, "libwherry"))
		atomic_fetch_add_explicit(what, 1, memory_order_relaxed);
}

/* These replace the C library's functions for everything that this program links with or opens. */
OFF int clock_gettime(clockid_t clock, struct timespec *out)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, out);
	bool wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;

	count(__builtin_return_address(0), wall ? &asked_wall : &asked_steady);
	if (!rc && wall)
		out->tv_sec += jump();
	return rc;
}

OFF int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
	int rc = (int)syscall(SYS_gettimeofday, out, zone);

	count(__builtin_return_address(0), &asked_wall);
	if (!rc)
		out->tv_sec += jump();
	return rc;
}

OFF time_t time(time_t *out)
{
	struct timespec t;

	syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
	count(__builtin_return_address(0), &asked_wall);
	t.tv_sec += jump();
	if (out)
		*out = t.tv_sec;
	return t.tv_sec;
}

/* ---- what goes on all the same --------------------------------------------------------------- */

static _Atomic unsigned int lost;

static void watch_log(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	if (strstr(record->text, "lost") || strstr(record->text, "answers again") ||
	    strstr(record->text, "forgotten"))
		atomic_fetch_add(&lost, 1);
}

static struct wh_engine *open_engine(const struct server *server)
{
	const char *const config[] = { "lease=800", "timeout=2000", "transports=tcp", NULL };
	struct wh_engine_options options = {
		.size = sizeof(options),
		.name = "node8",
		.listen = "127.0.0.1:0",
		.registry = server->url,
		.config = config,
		.log = watch_log,
	};
	struct wh_engine *engine;

	want(0, wh_engine_open(&options, &engine));
	return engine;
}

/* Leases are kept, names are found, bytes are moved, and no engine is lost. */
static void clock__jumps(void **state)
{
	static unsigned char bytes[LENGTH];
	struct child_options node = { .listen = "127.0.0.1:0",
				      .name = "node7",
				      .config = { "lease=800", "timeout=2000" } };
	struct wh_peer *peer, *again;
	struct wh_region *region;
	struct wh_engine *engine;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct server server;
	struct child *child;
	int64_t begun;
	int memory;

	atomic_store(&lost, 0);
	server_start(&server, *state, NULL);
	node.config[2] = server.setting;
	child = child_start(&node);
	memory = child_memory(child, WH_MEMORY_PAGEABLE, LENGTH);
	child_region(child, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	engine = open_engine(&server);
	want(0, wh_peer_open(engine, "wherry://node7", NULL, &peer));
	want(0, wh_region_register(engine, bytes, sizeof(bytes), NULL, &region));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_add(batch,
			     &(struct wh_transfer){ .op = WH_WRITE,
						    .local = region,
						    .remote = remote.id,
						    .length = LENGTH },
			     1));
	begun = now();
	for (uint64_t i = 0; now() - begun < 3 * SECOND; i++) {
		pattern_fill(bytes, LENGTH, 0, i);
		want(0, batch_run(batch));
		want_true(child_check(child, memory, 0, LENGTH, 0, i) == PATTERN_GOOD,
			  "not what was written");
		want(0, wh_peer_open(engine, "wherry://node7", NULL, &again));
		want(0, wh_peer_close(again));
		want(0, wh_peer_open(engine, "wherry://node8", NULL, &again));
		want(0, wh_peer_close(again));
		sleep_ms(30);
	}
	want_true(!atomic_load(&lost), "something was lost");
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(region));
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	child_exit(child);
	server_stop(&server);
	/* Otherwise the library would not have used these functions, and the test would prove
	 * nothing. */
	want_true(atomic_load(&asked_steady) > 100, "it asked %u times",
		  atomic_load(&asked_steady));
	want_true(!atomic_load(&asked_wall), "it asked for the wall clock %u times",
		  atomic_load(&asked_wall));
}

/* A wait for a stopped peer takes as long as the caller asked for. */
static void clock__timeouts(void **state)
{
	const char *const config[] = { "transports=tcp", NULL };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct wh_remote remote;
	struct fixture f;
	int64_t begun;

	(void)state;
	fixture_open_with(&f, &route_tcp4, MIB, config, NULL);
	transfer = transfer_of(&f, WH_READ, 0, 0, MIB);
	batch = batch_of(&f, &transfer, 1);
	child_stop(f.child);
	want(0, wh_batch_submit(batch));
	begun = now();
	want(-EAGAIN, batch_end(batch, SECOND));
	want(-ENOENT, wh_peer_find(f.peer, "nothing", SECOND, &remote));
	want_true(now() - begun >= 2 * SECOND, "after %lld ms", (long long)((now() - begun) / MS));
	child_continue(f.child);
	want(0, batch_end(batch, PATIENCE));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_SERVER(clock__jumps),
	TEST(clock__timeouts),
};

HARNESS_MAIN("registry-clock", tests)
