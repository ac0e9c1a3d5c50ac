/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads no-threads-sanitized */
/* peer-regions.c: a peer's regions are asked for when they are needed, by submitting at the latest
 */
#include <pthread.h>
#include <string.h>

#include "lib/fixture.h"
#include "lib/proxy.h"

#define LENGTH (1 << 20)
#define MANY 3000 /* several questions long */

/* The ids of `count` adjacent regions of `length` bytes in a memory of the owner's, of which
 * nothing is known here. */
static void regions_new(struct fixture *f, int memory, uint64_t *ids, unsigned count,
			uint64_t length, uint32_t access)
{
	for (unsigned i = 0; i < count; i++)
		child_region(f->child, memory, i * length, length, NULL, access, &ids[i]);
}

static uint32_t known(struct fixture *f)
{
	struct wh_peer_info info = { .size = sizeof(info) };

	want(0, wh_peer_info(f->peer, &info));
	return info.regions;
}

/* Add `count` transfers of 8 bytes, one for each region. */
static struct wh_batch *batch_of_ids(struct fixture *f, const uint64_t *ids, unsigned count,
				     uint32_t op)
{
	struct wh_batch *batch = batch_of(f, NULL, 0);

	for (unsigned i = 0; i < count; i++) {
		struct wh_transfer transfer = { .local = f->region,
						.remote = ids[i],
						.local_offset = i * 8,
						.length = 8,
						.op = op };

		want(0, wh_batch_add(batch, &transfer, 1));
	}
	return batch;
}

/* Adding does not ask, submitting does, and the second submission has its plan. */
static void ask__by_ids(void **state)
{
	static uint64_t ids[MANY];
	unsigned count = SCALE(MANY, 300);
	struct wh_batch *batch;
	struct fixture f;
	uint32_t before;
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	child_fill(f.child, memory, 0, LENGTH, 0, 5);
	regions_new(&f, memory, ids, count, 64, ACCESS_BOTH);
	before = known(&f);
	batch = batch_of_ids(&f, ids, count, WH_READ);
	want(before, known(&f));
	want(0, batch_run(batch));
	want(before + count, known(&f));
	for (unsigned i = 0; i < count; i++)
		want_true(pattern_check(f.local + i * 8, 8, i * 64, 5) == PATTERN_GOOD,
			  "region %u has other bytes", i);
	memset(f.local, 0, count * 8);
	want(0, batch_run(batch));
	want_true(pattern_check(f.local, 8, 0, 5) == PATTERN_GOOD, "the second time");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void ask__by_blocks(void **state)
{
	struct wh_base bases[10] = { { 0 } };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = 8,
				       .count = 4,
				       .bases = bases,
				       .base_count = 10,
				       .remote_stride = 16 };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct fixture f;
	uint64_t ids[10];
	uint32_t before;
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	child_fill(f.child, memory, 0, LENGTH, 0, 8);
	regions_new(&f, memory, ids, 10, 64, ACCESS_BOTH);
	for (unsigned i = 0; i < 10; i++)
		bases[i] = (struct wh_base){ .local = f.region,
					     .local_offset = i * 32,
					     .remote = ids[i] };
	before = known(&f);
	want(0, wh_blocks_new(f.peer, &desc, &blocks));
	want(before, known(&f));
	batch = batch_of(&f, NULL, 0);
	want(0, wh_batch_add_blocks(batch, blocks));
	want(0, batch_run(batch));
	want(before + 10, known(&f));
	for (unsigned i = 0; i < 40; i++)
		want_true(pattern_check(f.local + i * 8, 8, i / 4 * 64 + i % 4 * 16, 8) ==
				  PATTERN_GOOD,
			  "block %u has other bytes", i);
	want(0, batch_run(batch));
	want(0, wh_batch_clear(batch));
	want(0, wh_blocks_free(blocks));
	/* Outside of a region that is not known yet. */
	for (unsigned i = 0; i < 10; i++)
		child_region(f.child, memory, i * 64, 48, NULL, ACCESS_BOTH, &bases[i].remote);
	want(0, wh_blocks_new(f.peer, &desc, &blocks));
	want(0, wh_batch_add_blocks(batch, blocks));
	want(-ERANGE, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_blocks_free(blocks));
	fixture_close(&f);
}

static void ask__by_addresses(void **state)
{
	struct wh_address_transfer transfer = { .length = 8, .op = WH_READ };
	uint64_t ids[10], address;
	struct wh_batch *batch;
	struct fixture f;
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	child_fill(f.child, memory, 0, LENGTH, 0, 6);
	address = child_address(f.child, memory);
	regions_new(&f, memory, ids, 10, 4096, ACCESS_BOTH);
	batch = batch_of(&f, NULL, 0);
	for (unsigned i = 0; i < 10; i++) {
		transfer.local = f.local + i * 8;
		transfer.remote = address + i * 4096 + 100;
		want(0, wh_batch_add_address(batch, &transfer, 1));
	}
	want(0, batch_run(batch));
	for (unsigned i = 0; i < 10; i++)
		want_true(pattern_check(f.local + i * 8, 8, i * 4096 + 100, 6) == PATTERN_GOOD,
			  "region %u has other bytes", i);
	/* One that reaches into the next region. */
	want(0, wh_batch_clear(batch));
	transfer.remote = address + 4092;
	want(0, wh_batch_add_address(batch, &transfer, 1));
	want(-ENOENT, batch_run(batch));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* What the peer refuses fails the batch, and no byte of it moves. */
static void ask__wrong(void **state)
{
	static const struct {
		uint64_t offset;
		int region, error;
		uint32_t op;
	} wrong[] = {
		{ 0, -1, -ENOENT, WH_READ }, /* no such region */
		{ 60, 0, -ERANGE, WH_READ }, /* outside of it */
		{ 0, 1, -EACCES, WH_WRITE }, /* not granted */
		{ 0, 2, -ENOENT, WH_READ }, /* private */
	};
	struct fixture f;
	uint64_t ids[3];
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	child_fill(f.child, memory, 0, LENGTH, 0, 7);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct wh_transfer bad = { .local = f.region,
					   .remote_offset = wrong[i].offset,
					   .length = 8,
					   .op = wrong[i].op };
		struct wh_batch *batch;
		int status;

		child_region(f.child, memory, 0, 64, NULL, ACCESS_BOTH, &ids[0]);
		child_region(f.child, memory, 64, 64, NULL, WH_ACCESS_READ, &ids[1]);
		child_region(f.child, memory, 128, 64, NULL, 0, &ids[2]);
		bad.remote =
			wrong[i].region < 0 ? ids[0] ^ UINT64_C(1) << 40 : ids[wrong[i].region];
		memset(f.local, 0x11, 64);
		batch = batch_of_ids(&f, ids, 1, WH_WRITE);
		want(0, wh_batch_add(batch, &bad, 1));
		want(wrong[i].error, batch_run(batch));
		want_text(wrong[i].error, "transfer 1", wh_batch_status(batch));
		for (unsigned k = 0; k < 2; k++) {
			want(0, wh_batch_transfer_status(batch, k, &status));
			want(wrong[i].error, status);
		}
		want_true(child_check(f.child, memory, 0, LENGTH, 0, 7) == PATTERN_GOOD,
			  "case %zu: bytes were moved", i);
		want(0, wh_batch_free(batch));
	}
	fixture_close(&f);
}

/* A batch for 20 regions that are not known, of an owner that does not answer. */
static struct wh_batch *stopped_open(struct fixture *f, const struct route *route)
{
	struct wh_batch *batch;
	uint64_t ids[20];
	int memory;

	fixture_open(f, route, LENGTH);
	memory = child_memory(f->child, WH_MEMORY_SHARED, LENGTH);
	regions_new(f, memory, ids, 20, 64, ACCESS_BOTH);
	batch = batch_of_ids(f, ids, 20, WH_READ);
	child_stop(f->child);
	return batch;
}

/* Submitting returns, cancelling ends it. */
static void ask__cancelled(void **state)
{
	struct fixture f;
	struct wh_batch *batch = stopped_open(&f, *state);
	int64_t start = now();

	want(0, wh_batch_submit(batch));
	want(-EAGAIN, wh_batch_test(batch));
	want(-EAGAIN, wh_batch_wait_for(batch, 20 * MS));
	want(0, wh_batch_cancel(batch));
	want(-ECANCELED, wh_batch_status(batch));
	want_true(now() - start < PATIENCE / 2, "it took %lld ms",
		  (long long)((now() - start) / MS));
	child_continue(f.child);
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* The owner ends while it is asked. */
static void ask__lost(void **state)
{
	struct fixture f;
	struct wh_batch *batch = stopped_open(&f, *state);

	want(0, wh_batch_submit(batch));
	child_kill(f.child);
	want(0, wh_batch_wait_for(batch, PATIENCE));
	want(-ECONNRESET, wh_batch_status(batch));
	want(0, wh_batch_free(batch));
	fixture_close_initiator(&f);
}

/* The notification comes behind the bytes. */
static void ask__with_a_notification(void **state)
{
	struct wh_batch *batch;
	struct note note;
	struct fixture f;
	uint64_t ids[5];
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	regions_new(&f, memory, ids, 5, 64, ACCESS_BOTH);
	batch = batch_of_ids(&f, ids, 5, WH_WRITE);
	want(0, wh_batch_notify(batch, 9, "there", 5));
	want(0, batch_run(batch));
	want(0, child_notification(f.child, PATIENCE, &note));
	want(9, note.tag);
	want(5, note.length);
	want(0, memcmp(note.data, "there", 5));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* After a lost connection what was known is known again, but for what has gone meanwhile. */
static void ask__again_after_a_loss(void **state)
{
	static uint64_t ids[MANY + 1];
	unsigned count = SCALE(MANY, 1100); /* more than one question has room for */
	struct wh_batch *batch;
	struct proxy *proxy;
	struct fixture f;
	uint32_t before;
	int memory, gone;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	regions_new(&f, memory, ids, count, 64, ACCESS_BOTH);
	gone = child_region(f.child, memory, 0, 64, NULL, ACCESS_BOTH, &ids[count]);
	want(0, wh_peer_close(f.peer));
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	fixture_connect(&f, proxy_url(proxy));
	want(0, wh_peer_prepare(f.peer, NULL, 0, ids, count + 1, PATIENCE));
	before = known(&f);
	want_true(before > count, "%u regions are known", before);
	/* It goes while nothing gets through, and the news of it are lost with the connection. */
	proxy_freeze(proxy, true);
	want(0, child_unregister(f.child, gone));
	want_true(proxy_cut(proxy, PROXY_CONTROL) > 0, "there is no connection");
	proxy_freeze(proxy, false);
	for (int64_t until = now() + PATIENCE;
	     (wh_peer_status(f.peer) || known(&f) == before) && now() < until;)
		sleep_ms(1);
	want(before - 1, known(&f));
	batch = batch_of_ids(&f, ids, count, WH_READ);
	want(before - 1, known(&f));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	proxy_stop(proxy);
}

struct asker {
	struct fixture *f;
	const uint64_t *ids;
	unsigned count;
	uint64_t offset; /* of its local bytes */
};

static void *ask_always(void *argument)
{
	struct asker *asker = argument;
	const char *wrong = NULL;

	for (unsigned i = 0; i < asker->count && !wrong; i++) {
		struct wh_transfer transfer = { .local = asker->f->region,
						.local_offset = asker->offset,
						.remote = asker->ids[i],
						.length = 8,
						.op = WH_READ };
		struct wh_batch *batch;

		if (wh_batch_new(asker->f->peer, NULL, &batch))
			return "wh_batch_new";
		if (wh_batch_add(batch, &transfer, 1))
			wrong = "wh_batch_add";
		else if (wh_batch_submit(batch) || wh_batch_wait_for(batch, PATIENCE) ||
			 wh_batch_status(batch))
			wrong = "the batch";
		wh_batch_free(batch);
	}
	return (void *)(uintptr_t)wrong;
}

/* Threads that ask for the same regions at once. */
static void ask__by_many_threads(void **state)
{
	static uint64_t ids[400];
	pthread_t threads[8];
	struct asker askers[8];
	struct fixture f;
	void *wrong;
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	regions_new(&f, memory, ids, 400, 64, ACCESS_BOTH);
	for (unsigned i = 0; i < 8; i++) {
		askers[i] = (struct asker){ &f, ids, SCALE(400, 40), i * 64 };
		want(0, pthread_create(&threads[i], NULL, ask_always, &askers[i]));
	}
	for (unsigned i = 0; i < 8; i++) {
		pthread_join(threads[i], &wrong);
		want_true(!wrong, "%s failed", (const char *)wrong);
	}
	fixture_close(&f);
}

/* A key is believed without asking, and the submission asks. */
static void ask__by_a_key(void **state)
{
	struct wh_remote remote;
	struct fixture f;
	char key[WH_KEY_MAX];
	size_t length = sizeof(key);
	uint32_t before;
	uint64_t id;
	int memory, region;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	region = child_region(f.child, memory, 0, 64, NULL, ACCESS_BOTH, &id);
	child_key(f.child, region, key, &length);
	before = known(&f);
	want(0, wh_peer_unpack_key(f.peer, key, length, 0, &remote));
	want(id, remote.id);
	want(before, known(&f));
	want(0, wh_peer_unpack_key(f.peer, key, length, WH_ANSWER, &remote));
	want(before + 1, known(&f));
	want(0, child_unregister(f.child, region));
	/* Over TCP the owner does not wait until this is known here. */
	for (int64_t until = now() + PATIENCE; known(&f) > before && now() < until;)
		sleep_ms(1);
	want(-ENOENT, wh_peer_unpack_key(f.peer, key, length, WH_ANSWER, &remote));
	fixture_close(&f);
}

/* Nothing is listed that does not grant it; wh_peer_prepare() asks. */
static void list__is_granted(void **state)
{
	struct wh_remote list[8];
	struct fixture f;
	uint64_t cursor = 0, id, hidden;
	size_t count = 8;
	uint32_t before;
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	child_region(f.child, memory, 0, 64, "hidden", WH_ACCESS_READ, &hidden);
	child_region(f.child, memory, 64, 64, NULL, ACCESS_BOTH, &id);
	want(0, wh_peer_list(f.peer, &cursor, list, &count, PATIENCE));
	want(0, cursor);
	want(2, count);
	for (size_t i = 0; i < count; i++)
		want_true(list[i].id != hidden, "it is listed");
	before = known(&f);
	want(0, wh_peer_prepare(f.peer, NULL, 0, &hidden, 1, PATIENCE));
	want(before + 1, known(&f));
	/* Page by page. */
	cursor = 0;
	count = 1;
	want(0, wh_peer_list(f.peer, &cursor, list, &count, PATIENCE));
	want(1, count);
	want_true(cursor != 0, "that was all");
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_PARTS_ROUTES(ask__by_ids),
	TEST_PARTS_ROUTES(ask__by_blocks),
	TEST_PARTS_ROUTES(ask__by_addresses),
	TEST_REMOTE_ROUTES(ask__wrong),
	TEST_PARTS_ROUTES(ask__cancelled),
	TEST_REMOTE_ROUTES(ask__lost),
	TEST_PARTS_ROUTES(ask__with_a_notification),
	TEST_OVER(ask__again_after_a_loss, tcp4),
	TEST_PARTS_ROUTES(ask__by_many_threads),
	TEST_REMOTE_ROUTES(ask__by_a_key),
	TEST_REMOTE_ROUTES(list__is_granted),
};

HARNESS_MAIN("peer-regions", tests)
