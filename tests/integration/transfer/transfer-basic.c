/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads long */
/* transfer-basic.c: single transfers over every transport, of all small sizes and some large
 * ones */
#include <dirent.h>
#include <stdio.h>

#include "lib/driven.h"
#include "lib/fixture.h"
#include "lib/proxy.h"

#define SMALL 4097
#define LARGE (SCALE(64, 16) * MIB)

/* Every odd size, each at different offsets on both sides. */
static void small__odd_sizes(void **state)
{
	struct fixture f;
	uint64_t step = SCALE(2, 18);

	fixture_open(&f, *state, 64 * KIB);
	for (uint64_t size = 1; size <= SMALL; size += step)
		round_trip(&f, 64 + size * 61 % 4096, 128 + size * 37 % 8192, size, size);
	fixture_close(&f);
}

static void small__powers_of_two(void **state)
{
	struct fixture f;

	fixture_open(&f, *state, 64 * KIB);
	for (uint64_t size = 1; size <= 32 * KIB; size *= 2)
		round_trip(&f, 4096, 8192 - f.guard, size, size + 7);
	fixture_close(&f);
}

static void large__a_mebibyte_and_three(void **state)
{
	struct fixture f;

	fixture_open(&f, *state, 2 * MIB);
	round_trip(&f, 65, 8191, MIB + 3, 11);
	round_trip(&f, 4096, 0, MIB + 3, 12);
	fixture_close(&f);
}

/* The whole region: round_trip() then checks the bytes outside of it. */
static void large__whole_region(void **state)
{
	struct fixture f;

	fixture_open(&f, *state, LARGE);
	round_trip(&f, 0, 0, LARGE, 21);
	fixture_close(&f);
}

/* Four times what is lent, at once: what finds no slot free waits for one, and no byte goes by the
 * socket. */
static void large__by_slots_alone(void **state)
{
	static const char *const one[] = { "connections=1", NULL };
	struct route route = *(const struct route *)*state;
	struct wh_transfer whole;
	struct wh_batch *batch;
	struct proxy *proxy;
	struct fixture f;
	uint64_t before;

	route.listen = "127.0.0.1:0";
	fixture_open_with(&f, &route, 64 * MIB, one, NULL);
	want(0, wh_peer_close(f.peer));
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	fixture_connect(&f, proxy_url(proxy));
	whole = transfer_of(&f, WH_WRITE, 0, 0, f.length);
	batch = batch_of(&f, &whole, 1);
	for (uint64_t i = 0; i < 3; i++) {
		pattern_fill(f.local, f.length, 0, i);
		before = proxy_bytes(proxy);
		want(0, batch_run(batch));
		want(PATTERN_GOOD, target_check(&f, 0, f.length, 0, i));
		/* In the first round the peer may not have the slots yet. */
		want_true(!i || proxy_bytes(proxy) - before < MIB, "%llu bytes by the socket",
			  (unsigned long long)(proxy_bytes(proxy) - before));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	proxy_stop(proxy);
}

static void edges__first_and_last_byte(void **state)
{
	struct fixture f;

	fixture_open(&f, *state, 64 * KIB);
	round_trip(&f, 0, 0, 1, 31);
	round_trip(&f, f.length - 1, f.length - 1, 1, 32);
	round_trip(&f, 0, f.length - 4096, 4096, 33);
	fixture_close(&f);
}

/* Many transfers in one batch that share cache lines and pages. */
static void list__neighbours(void **state)
{
	enum { COUNT = 1024, EACH = 33 };
	struct wh_transfer transfers[COUNT];
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, 64 * KIB);
	target_fill(&f, -(int64_t)f.guard, f.length + 2 * f.guard, 0, 1);
	pattern_fill(f.local, COUNT * EACH, 0, 2);
	for (uint64_t i = 0; i < COUNT; i++)
		transfers[i] = transfer_of(&f, WH_WRITE, i * EACH, i * EACH, EACH);
	batch = batch_of(&f, transfers, COUNT);
	want(0, batch_run(batch));
	want_route(&f, batch, COUNT * EACH);
	want(0, wh_batch_free(batch));
	want_true(target_check(&f, 0, COUNT * EACH, 0, 2) == PATTERN_GOOD, "wrong bytes");
	want_true(target_check(&f, -(int64_t)f.guard, f.guard, 0, 1) == PATTERN_GOOD,
		  "bytes before it");
	want_true(target_check(&f, COUNT * EACH, f.length + f.guard - COUNT * EACH,
			       f.guard + COUNT * EACH, 1) == PATTERN_GOOD,
		  "bytes behind it");
	fixture_close(&f);
}

/* Submit one batch again and again: each time the current bytes arrive. */
static void again__new_bytes_each_time(void **state)
{
	enum { EACH = 3001 };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, 64 * KIB);
	transfer = transfer_of(&f, WH_WRITE, 5, 77, EACH);
	batch = batch_of(&f, &transfer, 1);
	for (uint64_t i = 0; i < SCALE(500, 50); i++) {
		pattern_fill(f.local + 5, EACH, 0, i);
		want(0, batch_run(batch));
		want_true(target_check(&f, 77, EACH, 0, i) == PATTERN_GOOD, "time %d", (int)i);
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Copy threads of this process. */
static unsigned copy_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned count = 0;

	want_true(tasks != NULL, "no /proc/self/task");
	for (struct dirent *task = readdir(tasks); task; task = readdir(tasks)) {
		char path[300], name[32] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		file = fopen(path, "re");
		if (!file)
			continue;
		if (!fgets(name, sizeof(name), file))
			name[0] = 0;
		fclose(file);
		count += !strcmp(name, "wherry/copy\n");
	}
	closedir(tasks);
	return count;
}

/* A new thread names itself, in its time. */
static void want_copy_threads(unsigned wanted)
{
	int64_t end = now() + PATIENCE;

	while (copy_threads() < wanted && now() < end)
		sched_yield();
	want_true(copy_threads() == wanted, "%u copy threads, not %u", copy_threads(), wanted);
}

/* Several middling batches in flight: by shm and self, copy threads take them, as many as the
 * setting allows. A program that waits for each batch starts none, nor does an engine without
 * threads. */
static void many__in_flight(void **state)
{
	enum { BATCHES = 12, EACH = 300001 };
	static const char *const config[] = { "copy_threads=3", "copy_from=256KiB", NULL };
	struct wh_batch *batch[BATCHES];
	struct fixture f;
	unsigned threads;
	bool copies;

	fixture_open_with(&f, *state, BATCHES * EACH, config, NULL);
	copies = f.route == &route_self || f.route == &route_shm || f.route == &route_vm;
	threads = driven_is_set() ? 0 : 3;
	for (unsigned turn = 0; turn < 4; turn++) {
		pattern_fill(f.local, BATCHES * EACH, 0, turn);
		for (unsigned i = 0; i < BATCHES; i++) {
			struct wh_transfer transfer =
				transfer_of(&f, WH_WRITE, i * EACH, i * EACH, EACH);

			if (!turn)
				batch[i] = batch_of(&f, &transfer, 1);
			want(0, wh_batch_submit(batch[i]));
			if (!turn)
				want(0, wh_batch_wait_for(batch[i], WH_FOREVER));
		}
		if (copies)
			want_copy_threads(turn ? threads : 0);
		for (unsigned i = 0; i < BATCHES; i++)
			want(0, wh_batch_wait_for(batch[i], WH_FOREVER));
		want_true(target_check(&f, 0, BATCHES * EACH, 0, turn) == PATTERN_GOOD,
			  "turn %u: wrong bytes", turn);
	}
	for (unsigned i = 0; i < BATCHES; i++)
		want(0, wh_batch_free(batch[i]));
	fixture_close(&f);
}

/* The initiator's memory may be of any kind, too. */
static void kinds__initiator(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_PAGEABLE, WH_MEMORY_HUGE, WH_MEMORY_SHARED };
	struct fixture f;

	fixture_open(&f, *state, MIB);
	for (size_t i = 0; i < 3; i++) {
		struct wh_memory_options options = { .size = sizeof(options), .kind = kinds[i] };
		struct wh_memory_info info = { .size = sizeof(info) };
		struct wh_region *usual = f.region;
		void *memory;

		want(0, wh_memory_alloc(f.engine, 2 * MIB + 2 * GUARD, &options, &memory));
		want(0, wh_memory_query(f.engine, (char *)memory + 5000, &info));
		want(kinds[i], info.kind);
		want_true(info.base == memory, "it starts at %p", info.base);
		want(0, wh_region_register(f.engine, (char *)memory + GUARD, 2 * MIB, NULL,
					   &f.region));
		f.local = (unsigned char *)memory + GUARD;
		round_trip(&f, 4095, 5, MIB - 4095 - 64, i);
		want(0, wh_region_unregister(f.region));
		want(0, wh_memory_free(f.engine, memory));
		f.region = usual;
		f.local = f.base + GUARD;
	}
	fixture_close(&f);
}

/* A transfer within this engine whose source and target overlap works like memmove(), in either
 * direction, and changes nothing outside of the target. */
static void self__overlap(void **state)
{
	static const uint64_t lengths[] = { 100, 300000, 7 * MIB };
	enum { SHIFT = 5000 };
	struct fixture f;

	fixture_open(&f, *state, 8 * MIB);
	/* Both sides lie in the one published region. */
	f.remote.id = wh_region_id(f.region);
	for (uint64_t i = 0; i < 12; i++) {
		uint64_t shift = i & 2 ? SHIFT : 3, length = lengths[i / 4];
		uint64_t from = i & 1 ? shift : 0, to = i & 1 ? 0 : shift;

		pattern_fill(f.local, f.length, 0, i);
		want(0, move(&f, i & 2 ? WH_READ : WH_WRITE, i & 2 ? to : from, i & 2 ? from : to,
			     length));
		want_true(pattern_check(f.local, to, 0, i) == PATTERN_GOOD &&
				  pattern_check(f.local + to + length, f.length - to - length,
						to + length, i) == PATTERN_GOOD,
			  "bytes outside of the target changed");
		want_true(pattern_check(f.local + to, length, from, i) == PATTERN_GOOD,
			  "the target has other bytes, of %llu from %llu to %llu",
			  (unsigned long long)length, (unsigned long long)from,
			  (unsigned long long)to);
	}
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(small__odd_sizes),
	TEST_OVER(small__odd_sizes, file_lent),
	TEST_EVERY_ROUTE(small__powers_of_two),
	TEST_EVERY_ROUTE(large__a_mebibyte_and_three),
	TEST_EVERY_ROUTE(large__whole_region),
	TEST_OVER(large__whole_region, file_lent),
	TEST_OVER(large__by_slots_alone, file_lent), /* of a peer's file */
	TEST_EVERY_ROUTE(edges__first_and_last_byte),
	TEST_EVERY_ROUTE(list__neighbours),
	TEST_EVERY_ROUTE(again__new_bytes_each_time),
	TEST_EVERY_ROUTE(many__in_flight),
	TEST_OVER(many__in_flight, file_lent),
	TEST_EVERY_ROUTE(kinds__initiator),
	TEST_OVER(self__overlap, self),
};

HARNESS_MAIN("transfer-basic", tests)
