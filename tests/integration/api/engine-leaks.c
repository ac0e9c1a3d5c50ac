/* SPDX-License-Identifier: Apache-2.0 */
/* engine-leaks.c: repeated open and close leaves nothing behind, and open engines and peers stay
 * small */
#include "lib/fixture.h"

#define TIMES SCALE(200, 40)

struct usage {
	unsigned int fds, maps, of_files;
	uint64_t bytes;
};

static struct usage usage_now(void)
{
	return (struct usage){ count_fds(), count_maps(MAPS_ALL), count_maps(MAPS_OF_FILES),
			       resident() };
}

/* `before` was taken after a warm-up, in which a thread pool may not have started all its threads,
 * nor the ring of one. Their stacks and arenas are no more than the threads are; whoever leaks
 * leaks at least in each second repetition, as half of them read and half write. */
static void want_back(const struct usage *before, const char *what)
{
	struct usage after = usage_now();

	want_true(after.fds <= before->fds, "%s: %u descriptors, before: %u", what, after.fds,
		  before->fds);
	want_true(after.of_files <= before->of_files + TIMES / 4,
		  "%s: %u mappings of files, before: %u", what, after.of_files, before->of_files);
	want_true(after.maps <= before->maps + SCALE(TIMES / 4, 60), "%s: %u mappings, before: %u",
		  what, after.maps, before->maps);
	want_true(HARNESS_SLOW || after.bytes <= before->bytes + 2 * MIB,
		  "%s: %llu KiB resident, before: %llu", what,
		  (unsigned long long)(after.bytes / KIB),
		  (unsigned long long)(before->bytes / KIB));
}

static void engines__open_and_close(void **state)
{
	struct usage before = { 0 };

	(void)state;
	for (int i = 0; i < TIMES + 10; i++) {
		struct wh_engine *engine;

		if (i == 10)
			before = usage_now();
		want(0, wh_engine_open(NULL, &engine));
		want(0, wh_engine_close(engine));
	}
	want_back(&before, "engines");
}

/* Over each route: open a peer, use its connections, close it; check both sides. */
static void peers__open_and_close(void **state)
{
	struct usage before = { 0 };
	unsigned int theirs = 0, after = 0;
	struct fixture f;
	int64_t end;

	fixture_open(&f, *state, MIB);
	want(0, wh_peer_close(f.peer));
	for (int i = 0; i < TIMES + 10; i++) {
		if (i == 10) {
			before = usage_now();
			theirs = f.child ? child_fds(f.child) : 0;
		}
		fixture_connect(&f, f.child ? f.child->url : "self");
		want(0, move(&f, i % 2 ? WH_READ : WH_WRITE, 0, 0, 100000));
		want(0, wh_peer_close(f.peer));
	}
	want_back(&before, "peers");
	end = now() + PATIENCE;
	while (f.child && (after = child_fds(f.child)) > theirs && now() < end)
		sleep_ms(10);
	want_true(!f.child || after <= theirs, "the target has %u descriptors, before: %u", after,
		  theirs);
	fixture_connect(&f, f.child ? f.child->url : "self");
	fixture_close(&f);
}

static void regions__register_and_unregister(void **state)
{
	struct usage before = { 0 };
	struct fixture f;

	fixture_open(&f, *state, MIB);
	for (int i = 0; i < 5 * TIMES + 10; i++) {
		struct wh_region *region;
		void *memory;

		if (i == 10)
			before = usage_now();
		want(0, wh_memory_alloc(f.engine, 256 * KIB, NULL, &memory));
		memset(memory, 1, 256 * KIB);
		want(0, wh_region_register(f.engine, memory, 256 * KIB, NULL, &region));
		want(0, wh_region_unregister(region));
		want(0, wh_memory_free(f.engine, memory));
	}
	want_back(&before, "regions");
	fixture_close(&f);
}

/* A region of the peer that was mapped here is unmapped when it is unregistered. */
static void mappings__of_the_peer(void **state)
{
	struct wh_transfer transfer;
	struct wh_remote remote;
	struct usage before = { 0 };
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, MIB);
	batch = batch_of(&f, NULL, 0);
	for (int i = 0; i < TIMES + 10; i++) {
		int memory = child_memory(f.child, WH_MEMORY_SHARED, MIB);
		int region = child_region(f.child, memory, 0, MIB, "passing", ACCESS_BOTH, NULL);

		if (i == 10)
			before = usage_now();
		want(0, wh_peer_find(f.peer, "passing", PATIENCE, &remote));
		transfer = transfer_of(&f, WH_WRITE, 0, 0, MIB);
		transfer.remote = remote.id;
		want(0, wh_batch_clear(batch));
		want(0, wh_batch_add(batch, &transfer, 1));
		want(0, batch_run(batch));
		want_route(&f, batch, MIB);
		want(0, child_unregister(f.child, region));
		want(0, child_free(f.child, memory));
	}
	want_back(&before, "mappings");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void batches__new_and_free(void **state)
{
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_WRITE,
				       .block_length = 64,
				       .count = 1000,
				       .base_count = 1 };
	struct usage before = { 0 };
	struct wh_base base;
	struct fixture f;

	fixture_open(&f, *state, MIB);
	base = (struct wh_base){ .local = f.region, .remote = f.remote.id };
	desc.bases = &base;
	for (int i = 0; i < 10 * TIMES + 10; i++) {
		struct wh_transfer transfer = transfer_of(&f, WH_READ, f.length, 0, 1000);
		struct wh_blocks *blocks;
		struct wh_batch *batch;

		if (i == 10)
			before = usage_now();
		want(0, wh_blocks_new(f.peer, &desc, &blocks));
		batch = batch_of(&f, &transfer, 1);
		want(0, wh_batch_add_blocks(batch, blocks));
		wh_blocks_free(blocks);
		if (i % 2)
			want(0, wh_batch_notify(batch, 0, "x", 1));
		want(0, wh_batch_clear(batch));
		want(0, wh_batch_add(batch, &transfer, 1));
		want(0, batch_run(batch));
		want(0, wh_batch_free(batch));
	}
	want_back(&before, "batches");
	fixture_close(&f);
}

/* ---- sizes ------------------------------------------------------------- */

static void size__idle_engine(void **state)
{
	struct child *child;

	(void)state;
	if (HARNESS_SLOW)
		return; /* it would count shadow memory */
	child = child_start(NULL);
	want_true(child_resident(child) < 8 * MIB, "%llu KiB",
		  (unsigned long long)(child_resident(child) / KIB));
	child_exit(child);
}

/* Memory per TCP peer with all its connections in use, at the initiator and at the target. */
static void size__tcp_peers(void **state)
{
	enum { PEERS = 8 };
	static const char *const config[] = { "connections=4", NULL };
	struct wh_peer *peers[PEERS];
	struct wh_batch *batches[PEERS];
	uint64_t ours, theirs;
	struct fixture f;

	if (HARNESS_SLOW)
		return;
	fixture_open_with(&f, *state, 16 * MIB, config, NULL);
	memset(f.local, 1, 2 * f.length);
	target_fill(&f, 0, f.length, 0, 1);
	ours = resident();
	theirs = child_resident(f.child);
	for (int i = 0; i < PEERS; i++) {
		struct wh_peer *first = f.peer;
		struct wh_transfer transfer =
			transfer_of(&f, i % 2 ? WH_READ : WH_WRITE, 0, 0, f.length);

		want(0, wh_peer_open(f.engine, f.child->url, NULL, &peers[i]));
		f.peer = peers[i];
		batches[i] = batch_of(&f, &transfer, 1);
		want(0, batch_run(batches[i]));
		f.peer = first;
	}
	ours = resident() - ours;
	theirs = child_resident(f.child) - theirs;
	want_true(ours < PEERS * 16 * MIB, "%llu KiB for a peer",
		  (unsigned long long)(ours / PEERS / KIB));
	want_true(theirs < PEERS * 16 * MIB, "%llu KiB for a peer on the target's side",
		  (unsigned long long)(theirs / PEERS / KIB));
	for (int i = 0; i < PEERS; i++) {
		want(0, wh_batch_free(batches[i]));
		want(0, wh_peer_close(peers[i]));
	}
	fixture_close(&f);
}

/* Unused data connections are closed, and opened again on use. */
static void idle__connections_are_closed(void **state)
{
	static const char *const config[] = { "idle=500", "connections=4", NULL };
	struct child_options options = { .config = { "idle=500" } };
	unsigned int before, ours, theirs;
	struct fixture f;
	int64_t end;

	fixture_open_with(&f, *state, 16 * MIB, config, &options);
	ours = count_fds();
	theirs = child_fds(f.child);
	for (int i = 0; i < 3; i++) {
		want(0, move(&f, WH_WRITE, 0, 0, f.length));
		before = count_fds();
		want_true(i > 0 || before > ours, "no data connection was opened");
		want_true(fds_back_to(ours, PATIENCE), "%u descriptors, before: %u", count_fds(),
			  ours);
		end = now() + PATIENCE;
		while (child_fds(f.child) > theirs && now() < end)
			sleep_ms(10);
		want_true(child_fds(f.child) <= theirs, "the target has %u, before: %u",
			  child_fds(f.child), theirs);
	}
	round_trip(&f, 64, 64, 100000, 1);
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST(engines__open_and_close),
	TEST_EVERY_ROUTE(peers__open_and_close),
	TEST_OVER(peers__open_and_close, file_lent),
	TEST_OVER(regions__register_and_unregister, tcp4),
	TEST_OVER(regions__register_and_unregister, shm),
	TEST_OVER(mappings__of_the_peer, shm),
	TEST_EVERY_ROUTE(batches__new_and_free),
	TEST(size__idle_engine),
	TEST_OVER(size__tcp_peers, tcp4),
	TEST_OVER(idle__connections_are_closed, tcp4),
};

HARNESS_MAIN("engine-leaks", tests)
