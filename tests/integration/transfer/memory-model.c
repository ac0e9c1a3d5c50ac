/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads */
/* memory-model.c: the rules of docs/memory-model.md, by threads that look at memory while batches
 * write to it. That a notification comes after its bytes: notification-delivery.c. */
#include <sched.h>
#include <stdatomic.h>

#include "lib/fixture.h"
#include "lib/proxy.h"

#define PAYLOAD (256 * KIB)
#define FLAGS 64 /* bytes at the start of both regions; the payload follows */

/* Two engines of this process, so that threads of the test are threads of the owner. Over `self`
 * both are the same one. */
struct pair {
	struct wh_engine *owner, *initiator;
	struct wh_peer *peer;
	struct wh_remote remote;
	struct wh_region *target_region, *region;
	size_t length;
	unsigned char *target, *local;
	bool foreign; /* `target` is not the engine's memory */
};

static void pair_open(struct pair *pair, const struct route *route, size_t length)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	struct wh_memory_options options = { .size = sizeof(options), .kind = route->kind };
	void *memory;

	*pair = (struct pair){ .length = length, .foreign = route->kind == CHILD_FOREIGN };
	pair->owner =
		engine_open(route == &route_self ? route->require : NULL, route->listen, NULL);
	pair->initiator =
		route == &route_self ? pair->owner : engine_open(route->require, "none", NULL);
	if (pair->foreign)
		memory = pages_new(length);
	else
		want(0, wh_memory_alloc(pair->owner, length, &options, &memory));
	pair->target = memory;
	pair->local = pages_new(length);
	want(0,
	     wh_region_register(pair->owner, pair->target, length, &named, &pair->target_region));
	want(0, wh_region_register(pair->initiator, pair->local, length, NULL, &pair->region));
	want(0, wh_peer_open(pair->initiator,
			     route == &route_self ? "self" : wh_engine_url(pair->owner), NULL,
			     &pair->peer));
	want(0, wh_peer_find(pair->peer, "target", PATIENCE, &pair->remote));
}

static void pair_close(struct pair *pair)
{
	want(0, wh_peer_close(pair->peer));
	want(0, wh_region_unregister(pair->region));
	want(0, wh_region_unregister(pair->target_region));
	if (pair->foreign)
		pages_free(pair->target, pair->length);
	else
		want(0, wh_memory_free(pair->owner, pair->target));
	if (pair->initiator != pair->owner)
		want(0, wh_engine_close(pair->initiator));
	want(0, wh_engine_close(pair->owner));
	pages_free(pair->local, pair->length);
}

/* A batch of one transfer between the same offsets of both sides. */
static struct wh_batch *pair_batch(struct pair *pair, uint32_t op, uint64_t offset, size_t length)
{
	struct wh_transfer transfer = { .local = pair->region,
					.local_offset = offset,
					.remote = pair->remote.id,
					.remote_offset = offset,
					.length = length,
					.op = op };
	struct wh_batch *batch;

	want(0, wh_batch_new(pair->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	return batch;
}

/* All bytes must have gone as the route says. */
static void pair_want_route(const struct route *route, struct wh_batch *batch)
{
	struct wh_route routes[8];
	size_t count = 8, used = 0;

	want(0, wh_batch_routes(batch, routes, &count));
	for (size_t i = 0; i < count; i++) {
		if (!routes[i].bytes)
			continue;
		used++;
		assert_string_equal(routes[i].transport, route->name);
		want_true(strstr(routes[i].detail, route->detail) != NULL, "by %s",
			  routes[i].detail);
	}
	want(1, used);
}

/* ---- 1, 2, 4 and 8 aligned bytes are whole ----------------------------------------------- */

/* A value of 1 to 8 bytes that are all the same; -1: they are not. */
static int value_of(const void *at, size_t length)
{
	uint64_t value = length == 8 ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE) :
			 length == 4 ? __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE) :
			 length == 2 ? __atomic_load_n((const uint16_t *)at, __ATOMIC_ACQUIRE) :
				       __atomic_load_n((const uint8_t *)at, __ATOMIC_ACQUIRE);
	uint64_t same = (value & 0xff) * UINT64_C(0x0101010101010101);

	if (length < 8)
		same &= (UINT64_C(1) << 8 * length) - 1;
	return value == same ? (int)(value & 0xff) : -1;
}

static void value_set(void *at, size_t length, uint8_t byte)
{
	uint64_t same = byte * UINT64_C(0x0101010101010101);

	if (length == 8)
		__atomic_store_n((uint64_t *)at, same, __ATOMIC_RELEASE);
	else if (length == 4)
		__atomic_store_n((uint32_t *)at, (uint32_t)same, __ATOMIC_RELEASE);
	else if (length == 2)
		__atomic_store_n((uint16_t *)at, (uint16_t)same, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint8_t *)at, byte, __ATOMIC_RELEASE);
}

/* One value at the end of each cache line. Many in a batch make it likely that a thread looks at
 * one while it changes. */
#define LINE ((size_t)64)
#define VALUES ((size_t)64)

struct watcher {
	pthread_t thread;
	unsigned char *at; /* the first value */
	size_t length;
	bool stores; /* it changes the values instead of looking at them */
	_Atomic bool stop;
	uint64_t looks, torn;
};

static void *watch(void *arg)
{
	struct watcher *watcher = arg;

	while (!atomic_load(&watcher->stop)) {
		watcher->looks++;
		for (size_t i = 0; i < VALUES; i++) {
			unsigned char *at = watcher->at + i * LINE;

			if (watcher->stores)
				value_set(at, watcher->length, (uint8_t)watcher->looks);
			else
				watcher->torn += value_of(at, watcher->length) < 0;
		}
	}
	return NULL;
}

static void values_set(unsigned char *at, size_t length, uint8_t byte)
{
	for (size_t i = 0; i < VALUES; i++)
		value_set(at + i * LINE, length, byte);
}

static uint64_t values_torn(const unsigned char *at, size_t length)
{
	uint64_t torn = 0;

	for (size_t i = 0; i < VALUES; i++)
		torn += value_of(at + i * LINE, length) < 0;
	return torn;
}

static struct wh_batch *values_batch(struct pair *pair, uint32_t op, uint64_t offset, size_t length)
{
	struct wh_transfer transfers[VALUES];
	struct wh_batch *batch;

	for (size_t i = 0; i < VALUES; i++)
		transfers[i] = (struct wh_transfer){ .local = pair->region,
						     .local_offset = offset + i * LINE,
						     .remote = pair->remote.id,
						     .remote_offset = offset + i * LINE,
						     .length = length,
						     .op = op };
	want(0, wh_batch_new(pair->peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, VALUES));
	return batch;
}

/* The owner's thread looks at the values while batches write them, or stores while they read. */
static void atomic_run(const struct route *route, uint32_t op)
{
	struct pair pair;

	pair_open(&pair, route, VALUES * LINE);
	for (size_t length = 1; length <= 8; length *= 2) {
		uint64_t offset = LINE - length, torn = 0;
		struct watcher watcher = { .at = pair.target + offset,
					   .length = length,
					   .stores = op == WH_READ };
		struct wh_batch *batch = values_batch(&pair, op, offset, length);

		values_set(pair.target + offset, length, 0);
		values_set(pair.local + offset, length, 0);
		want(0, pthread_create(&watcher.thread, NULL, watch, &watcher));
		for (uint64_t i = 0; i < SCALE(20000, 1000); i++) {
			if (op == WH_WRITE)
				values_set(pair.local + offset, length, (uint8_t)i);
			want(0, batch_run(batch));
			torn += values_torn(pair.local + offset, length);
		}
		atomic_store(&watcher.stop, true);
		pthread_join(watcher.thread, NULL);
		want_true(!torn && !watcher.torn, "%d values of %d bytes are torn",
			  (int)(torn + watcher.torn), (int)length);
		pair_want_route(route, batch);
		want(0, wh_batch_free(batch));
	}
	pair_close(&pair);
}

static void atomic__written(void **state)
{
	atomic_run(*state, WH_WRITE);
}

static void atomic__read(void **state)
{
	atomic_run(*state, WH_READ);
}

/* ---- a flag in a later batch is seen after the data ------------------------------------- */

struct poller {
	pthread_t thread;
	struct pair *pair;
	unsigned rounds;
	_Atomic unsigned seen; /* rounds that were checked */
	unsigned wrong;
};

/* Bytes that no thread of this process may have written: the sanitizer knows nothing of the other
 * mapping, nor of the kernel's stores. */
__attribute__((no_sanitize("thread"))) static bool payload_is(const unsigned char *at,
							      size_t length, uint8_t byte)
{
	for (size_t i = 0; i < length; i++)
		if (((const volatile unsigned char *)at)[i] != byte)
			return false;
	return true;
}

__attribute__((no_sanitize("thread"))) static uint8_t flag_load(const unsigned char *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static size_t round_length(unsigned round)
{
	static const size_t lengths[] = { 1, 8, 100, 4096, 65536 + 3, PAYLOAD };

	return lengths[round % (sizeof(lengths) / sizeof(*lengths))];
}

static void *poll_flag(void *arg)
{
	struct poller *poller = arg;
	const unsigned char *target = poller->pair->target;

	for (unsigned round = 1; round <= poller->rounds; round++) {
		while (flag_load(target) != (uint8_t)round)
			sched_yield();
		if (!payload_is(target + FLAGS, round_length(round), (uint8_t)round))
			poller->wrong++;
		atomic_store(&poller->seen, round);
	}
	return NULL;
}

static void order__flag_after_data(void **state)
{
	const struct route *route = *state;
	struct poller poller = { .rounds = SCALE(2000, 60) };
	struct wh_batch *flag;
	struct pair pair;

	pair_open(&pair, route, FLAGS + PAYLOAD);
	poller.pair = &pair;
	flag = pair_batch(&pair, WH_WRITE, 0, 1);
	want(0, pthread_create(&poller.thread, NULL, poll_flag, &poller));
	for (unsigned round = 1; round <= poller.rounds; round++) {
		struct wh_batch *data = pair_batch(&pair, WH_WRITE, FLAGS, round_length(round));

		memset(pair.local + FLAGS, (uint8_t)round, round_length(round));
		pair.local[0] = (uint8_t)round;
		want(0, batch_run(data));
		want(0, batch_run(flag));
		while (atomic_load(&poller.seen) != round)
			sched_yield();
		pair_want_route(route, data);
		want(0, wh_batch_free(data));
	}
	pthread_join(poller.thread, NULL);
	want(0, poller.wrong);
	pair_want_route(route, flag);
	want(0, wh_batch_free(flag));
	pair_close(&pair);
}

/* ---- bytes of a path that was given up ------------------------------------------------- */

/* A connection breaks for the initiator alone. Its last bytes reach the owner after the same bytes
 * have been written by another connection, and newer ones over them. */
static void stale__never_over_newer(void **state)
{
	enum { LENGTH = 8 << 20 };
	static const char *const one[] = { "connections=1", NULL };
	struct wh_batch *batch;
	struct proxy *proxy;
	struct fixture f;
	size_t kept = 0;

	fixture_open_with(&f, *state, LENGTH, one, NULL);
	want(0, wh_peer_close(f.peer));
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	fixture_connect(&f, proxy_url(proxy));
	batch = batch_of(&f, (struct wh_transfer[]){ transfer_of(&f, WH_WRITE, 0, 0, LENGTH) }, 1);
	pattern_fill(f.local, LENGTH, 0, 1);
	want(0, batch_run(batch));
	for (uint64_t round = 2; round < SCALE(8, 4); round++) {
		pattern_fill(f.local, LENGTH, 0, 2 * round);
		/* On a busy machine all may have gone before this thread looks. */
		for (int tries = 0; tries < 50; tries++) {
			uint64_t before = proxy_bytes(proxy);

			/* So slow that sockets are full. */
			proxy_slow(proxy, 20 * MIB);
			want(0, wh_batch_submit(batch));
			want_true(proxy_await_bytes(proxy, before + MIB), "hardly a byte was sent");
			kept = proxy_strand(proxy, PROXY_DATA);
			if (kept)
				break;
			proxy_slow(proxy, 0);
			want(0, batch_end(batch, PATIENCE));
		}
		want_true(kept > 0, "nothing was on its way");
		proxy_slow(proxy, 0);
		want(0, batch_end(batch, PATIENCE));
		pattern_fill(f.local, LENGTH, 0, 2 * round + 1);
		want(0, batch_run(batch));
		want_true(!proxy_deliver(proxy),
			  "the owner took bytes of a connection that was given up");
		want(PATTERN_GOOD, target_check(&f, 0, LENGTH, 0, 2 * round + 1));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	proxy_stop(proxy);
}

static const struct CMUnitTest tests[] = {
	TEST_OVER(atomic__written, self),
	TEST_OVER(atomic__written, shm),
	TEST_OVER(atomic__read, self),
	TEST_OVER(atomic__read, shm),
	TEST_OVER(order__flag_after_data, self),
	TEST_OVER(order__flag_after_data, shm),
	TEST_OVER(order__flag_after_data, vm),
	TEST_OVER(order__flag_after_data, tcp4),
	TEST_OVER(stale__never_over_newer, tcp4),
};

HARNESS_MAIN("memory-model", tests)
