/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-rails.c: several rails
 *
 * Large transfers are shared among the rails, and the explanation says for each rail what it moved;
 * rdma-rails-faults.c has the rails that fail. With the fake libibverbs, whose NICs can be slow,
 * silent and faulty one by one; in the lab with real packets, where TEST_RAILS names our NICs and
 * the target's ("rxe0,rxe2:rxe1,rxe3"). */
#include <pthread.h>

#include "lib/rails.h"

static const char *missing_cables(void)
{
	return getenv("TEST_RAILS") && getenv("TEST_RDMA_DOWN") ? NULL : "there are no two cables";
}

static const struct route cables = { .name = "rdma",
				     .listen = "127.0.0.1:0",
				     .detail = "",
				     .kind = WH_MEMORY_PAGEABLE,
				     .devices = true,
				     .missing = missing_cables };

/* ---- sharing --------------------------------------------------------------------------------- */

static void rails_shared(const char *ours, const char *theirs, unsigned count, uint32_t op)
{
	uint64_t by[RAILS_COUNT], sum = 0;
	struct wh_batch *batch;
	struct fixture f;

	rails_fixture(&f, ours, theirs);
	batch = rails_batch(&f, op);
	rails_fill(&f, op, 3);
	want_rails_used(batch, count);
	rails_run_counted(batch, by);
	for (unsigned i = 0; i < RAILS_COUNT; i++)
		sum += by[i];
	want_true(sum == RAILS_LENGTH, "%llu bytes moved", (unsigned long long)sum);
	want_rails_bytes(&f, op, 3);
	want_all_by(batch, "rdma");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void share__two_write(void **state)
{
	(void)state;
	rails_shared("fake0,fake1", "fake4,fake5", 2, WH_WRITE);
}

static void share__four_read(void **state)
{
	(void)state;
	rails_shared("fake0,fake1,fake2,fake3", "fake4,fake5,fake6,fake7", 4, WH_READ);
}

/* One queue pair for each of our rails: several of theirs, or none, lead to it. */
static void share__unequal_counts(void **state)
{
	(void)state;
	rails_shared("fake0,fake1,fake2", "fake4,fake5", 3, WH_WRITE);
	rails_shared("fake0,fake1", "fake4", 2, WH_WRITE);
	rails_shared("fake0", "fake4,fake5,fake6", 1, WH_READ);
}

static void share__small_by_one(void **state)
{
	static const uint64_t lengths[] = { 1, 8, 4096, 65536 };
	uint64_t by[RAILS_COUNT];
	struct fixture f;

	(void)state;
	rails_fixture(&f, "fake0,fake1", "fake4,fake5");
	for (unsigned i = 0; i < 4; i++) {
		struct wh_transfer transfer = transfer_of(&f, WH_WRITE, 3, 5, lengths[i]);
		struct wh_batch *batch = batch_of(&f, &transfer, 1);

		rails_run_counted(batch, by);
		want_true(!by[0] != !by[1] && by[0] + by[1] == lengths[i], "%llu and %llu bytes",
			  (unsigned long long)by[0], (unsigned long long)by[1]);
		want(0, wh_batch_free(batch));
	}
	fixture_close(&f);
}

/* The slow rail gets less. */
static void share__one_slow(void **state)
{
	int64_t end = now() + 3 * PATIENCE;
	struct wh_batch *batch;
	uint64_t by[RAILS_COUNT];
	struct fixture f;

	(void)state;
	rails_fixture(&f, "fake0,fake1", "fake4,fake5");
	batch = rails_batch(&f, WH_WRITE);
	want_rails_used(batch, 2);
	nic_speed(0, 30);
	do {
		rails_run_counted(batch, by);
		want_true(now() < end, "%llu bytes by the slow rail, %llu by the other",
			  (unsigned long long)by[0], (unsigned long long)by[1]);
	} while (4 * by[0] > by[1]);
	rails_run(&f, batch, WH_WRITE, 9);
	nic_speed(0, 0);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* The owner's rail in the same network answers, whatever its number. */
static void share__by_network(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	setenv("FAKE_VERBS_NETWORKS", "2", 1);
	rails_fixture(&f, "fake0,fake1", "fake5,fake4");
	batch = rails_batch(&f, WH_WRITE);
	want_rails_used(batch, 2);
	want_explained(batch, "2 rails, RoCE v2");
	want_explained(batch, "fake0:1 to fake4:1: ");
	want_explained(batch, "fake1:1 to fake5:1: ");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	unsetenv("FAKE_VERBS_NETWORKS");
}

/* ---- how many connections -------------------------------------------------------------------- */

static void bounded__knob(void **state)
{
	struct wh_batch *batch;
	uint64_t by[RAILS_COUNT];
	struct fixture f;

	(void)state;
	rails_fixture_with(&f, "fake0,fake1", "fake4,fake5", "rdma_connections=1");
	batch = rails_batch(&f, WH_WRITE);
	want(0, batch_run(batch));
	rails_run_counted(batch, by);
	want_true(by[0] == RAILS_LENGTH && !by[1], "%llu and %llu bytes", (unsigned long long)by[0],
		  (unsigned long long)by[1]);
	want_true(nics_pairs() == 1, "%u queue pairs", nics_pairs());
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Two peers and a limit of one connection: the unused one is closed for the other. */
static void bounded__least_used_makes_room(void **state)
{
	const struct child_options options = { .config = { "transports=rdma,tcp", "rdma=fake5" } };
	struct wh_batch *batch, *second;
	struct wh_remote remote;
	struct wh_peer *peer;
	struct wh_transfer transfer;
	struct child *child;
	struct fixture f;

	(void)state;
	rails_fixture_with(&f, "fake0", "fake4", "rdma_connections=1");
	child = child_start(&options);
	child_region(child, child_memory(child, WH_MEMORY_PAGEABLE, RAILS_LENGTH), 0, RAILS_LENGTH,
		     "other", WH_ACCESS_READ | WH_ACCESS_WRITE, NULL);
	want(0, wh_peer_open(f.engine, child->url, NULL, &peer));
	want(0, wh_peer_find(peer, "other", PATIENCE, &remote));
	transfer = transfer_of(&f, WH_WRITE, 0, 0, RAILS_LENGTH);
	transfer.remote = remote.id;
	want(0, wh_batch_new(peer, NULL, &second));
	want(0, wh_batch_add(second, &transfer, 1));
	batch = rails_batch(&f, WH_WRITE);
	for (unsigned i = 0; i < 3; i++) {
		rails_run(&f, batch, WH_WRITE, 20 + i);
		want_all_by(batch, "rdma");
		want(0, batch_run(second));
		want_all_by(second, "rdma");
		want_true(nics_pairs() == 1, "%u queue pairs", nics_pairs());
	}
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(second));
	want(0, wh_peer_close(peer));
	child_exit(child);
	fixture_close(&f);
}

/* Run the batch until rdma moves all of it. */
static void want_rdma(struct wh_batch *batch)
{
	int64_t end = now() + 3 * PATIENCE;

	do {
		want(0, batch_run(batch));
		want_true(now() < end, "rdma is not taken:\n%s", explained(batch));
	} while (bytes_by(batch, "rdma", NULL) != RAILS_LENGTH);
}

/* Two peers of an owner that answers with one queue pair only: an unused one is closed for the
 * other peer, but not for a second rail. */
static void bounded__answers(void **state)
{
	const struct child_options one = { .config = { "transports=rdma,tcp", "rdma=fake4,fake5",
						       "rdma_answers=1" } };
	const char *const ours[] = { "transports=rdma,tcp", "rdma=fake0,fake1", NULL };
	struct wh_batch *batch, *second;
	struct wh_transfer transfer;
	struct wh_region *region;
	struct wh_engine *engine;
	struct wh_remote remote;
	struct wh_peer *peer;
	struct fixture f;

	(void)state;
	rails_fake_nics();
	fixture_open_with(&f, &needs_nics, RAILS_LENGTH, ours, &one);
	engine = engine_open(NULL, "none", ours);
	want(0, wh_region_register(engine, f.local, RAILS_LENGTH, NULL, &region));
	want(0, wh_peer_open(engine, f.child->url, NULL, &peer));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	transfer = transfer_of(&f, WH_WRITE, 0, 0, RAILS_LENGTH);
	transfer.local = region;
	transfer.remote = remote.id;
	want(0, wh_batch_new(peer, NULL, &second));
	want(0, wh_batch_add(second, &transfer, 1));
	batch = rails_batch(&f, WH_WRITE);
	for (unsigned i = 0; i < 2; i++) {
		want_rdma(batch);
		want_rdma(second);
		rails_run(&f, batch, WH_WRITE, 40 + i);
	}
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(second));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(region));
	want(0, wh_engine_close(engine));
	fixture_close(&f);
}

/* An unused connection is closed, and opened again when it is needed. */
static void bounded__idle(void **state)
{
	int64_t end = now() + 3 * PATIENCE;
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	rails_fixture_with(&f, "fake0,fake1", "fake4,fake5", "idle=300");
	batch = rails_batch(&f, WH_WRITE);
	want_rails_used(batch, 2);
	while (nics_pairs()) {
		want_true(now() < end, "%u queue pairs are open still", nics_pairs());
		sleep_ms(20);
	}
	want_rails_used(batch, 2);
	rails_run(&f, batch, WH_WRITE, 12);
	want_all_by(batch, "rdma");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- gathering ------------------------------------------------------------------------------- */

#define BLOCK 512u
#define BLOCKS 1536u

/* Blocks that are scattered here and contiguous there: one work request takes several. */
static void blocks_gathered(uint32_t op, const char *sges, uint64_t wanted)
{
	struct wh_base base = { 0 };
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = op,
		.block_length = BLOCK,
		.count = BLOCKS,
		.bases = &base,
		.base_count = 1,
		.local_stride = 2 * BLOCK,
		.remote_stride = BLOCK,
	};
	unsigned char *seen = pages_new(BLOCKS * BLOCK);
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct fixture f;
	uint64_t before;

	if (sges)
		setenv("FAKE_VERBS_SGE", sges, 1);
	rails_fixture(&f, "fake0", "fake4");
	base.local = f.region;
	base.remote = f.remote.id;
	want(0, wh_blocks_new(f.peer, &desc, &blocks));
	batch = batch_of(&f, NULL, 0);
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	want(0, batch_run(batch)); /* it is connected */
	rails_fill(&f, op, 13);
	before = nics_counts().requests;
	want(0, batch_run(batch));
	before = nics_counts().requests - before;
	want_true(before == wanted, "%llu requests, not %llu", (unsigned long long)before,
		  (unsigned long long)wanted);
	target_fetch(&f, 0, BLOCKS * BLOCK, seen);
	for (unsigned i = 0; i < BLOCKS; i++)
		want_true(!memcmp(seen + i * BLOCK, f.local + 2ul * i * BLOCK, BLOCK),
			  "block %u is wrong", i);
	pages_free(seen, BLOCKS * BLOCK);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	unsetenv("FAKE_VERBS_SGE");
}

static void gather__write(void **state)
{
	(void)state;
	blocks_gathered(WH_WRITE, NULL, BLOCKS / 6);
}

static void gather__read(void **state)
{
	(void)state;
	blocks_gathered(WH_READ, NULL, BLOCKS / 6);
}

static void gather__device_of_one(void **state)
{
	(void)state;
	blocks_gathered(WH_WRITE, "1", BLOCKS);
}

/* ---- in the lab ------------------------------------------------------------------------------ */

#define ROUNDS 3
#define TIMED (4 * MIB)

/* Open with the first or with both NICs of each side in TEST_RAILS. */
static void open_cables(struct fixture *f, bool both)
{
	const char *ours = getenv("TEST_RAILS"), *theirs = strchr(ours, ':') + 1;
	char mine[80], others[80];
	/* Emulated CPUs that move packets answer pings late. */
	const char *const config[] = { "transports=rdma,tcp", "timeout=5000", mine, NULL };
	const struct child_options options = { .config = { "transports=rdma,tcp", "timeout=8000",
							   others } };

	snprintf(mine, sizeof(mine), "rdma=%.*s", (int)strcspn(ours, both ? ":" : ","), ours);
	snprintf(others, sizeof(others), "rdma=%.*s", (int)strcspn(theirs, both ? ":" : ","),
		 theirs);
	fixture_open_with(f, &cables, RAILS_LENGTH, config, &options);
}

/* Wait until the explanation contains this word. */
static void want_in_time(struct wh_batch *batch, const char *word)
{
	int64_t end = now() + 60 * SECOND;

	do {
		want(0, batch_run(batch));
		want_true(now() < end, "\"%s\" is not in the explanation:\n%s", word,
			  explained(batch));
	} while (!strstr(explained(batch), word));
}

static int64_t timed(struct wh_batch *batch)
{
	int64_t start = now();

	want(0, batch_run(batch));
	return now() - start;
}

static int ascending(const void *a, const void *b)
{
	int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;

	return (one > other) - (one < other);
}

/* Medians of runs in turns. */
static void cable__speed(void **state)
{
	int64_t by_one[ROUNDS], by_two[ROUNDS];
	struct wh_transfer transfer_one, transfer_two;
	struct wh_batch *batch_one, *batch_two;
	struct fixture one, two;
	double faster = 0;

	(void)state;
	open_cables(&one, false);
	open_cables(&two, true);
	transfer_one = transfer_of(&one, WH_WRITE, 0, 0, TIMED);
	transfer_two = transfer_of(&two, WH_WRITE, 0, 0, TIMED);
	batch_one = batch_of(&one, &transfer_one, 1);
	batch_two = batch_of(&two, &transfer_two, 1);
	want_in_time(batch_one, "RoCE v2");
	want_in_time(batch_two, "2 rails, RoCE v2");
	/* A starved CPU loses a rail now and then, which is not measured here. */
	for (int tries = 0; tries < 3 && faster < 1.9; tries++) {
		for (int i = 0; i < ROUNDS; i++) {
			want_in_time(batch_two, "2 rails, RoCE v2");
			by_one[i] = timed(batch_one);
			by_two[i] = timed(batch_two);
		}
		qsort(by_one, ROUNDS, sizeof(by_one[0]), ascending);
		qsort(by_two, ROUNDS, sizeof(by_two[0]), ascending);
		faster = (double)by_one[ROUNDS / 2] / (double)by_two[ROUNDS / 2];
		printf("one rail %.2f MB/s, two rails %.2f MB/s: %.3f times as fast\n",
		       TIMED * 1e3 / (double)by_one[ROUNDS / 2],
		       TIMED * 1e3 / (double)by_two[ROUNDS / 2], faster);
	}
	want_true(faster >= 1.9, "two rails are %.3f times as fast as one:\n%s", faster,
		  explained(batch_two));
	pattern_fill(two.local, TIMED, 0, 31);
	want(0, batch_run(batch_two));
	want_true(target_check(&two, 0, TIMED, 0, 31) == PATTERN_GOOD, "a byte is wrong");
	want_true(bytes_by(batch_two, "rdma", NULL) == TIMED, "not all by rdma:\n%s",
		  explained(batch_two));
	want(0, wh_batch_free(batch_one));
	want(0, wh_batch_free(batch_two));
	fixture_close(&one);
	fixture_close(&two);
}

static void *cable_pull(void *argument)
{
	(void)argument;
	want(0, system(getenv("TEST_RDMA_DOWN")));
	return NULL;
}

/* The first of two cables is pulled while batches run: the second carries on. */
static void cable__pulled(void **state)
{
	int64_t end = now() + 60 * SECOND;
	struct wh_batch *batch;
	pthread_t thread;
	struct fixture f;

	(void)state;
	open_cables(&f, true);
	batch = rails_batch(&f, WH_WRITE);
	want_in_time(batch, "2 rails, RoCE v2");
	rails_fill(&f, WH_WRITE, 32);
	want(0, wh_batch_submit(batch));
	want(0, pthread_create(&thread, NULL, cable_pull, NULL));
	want(0, batch_end(batch, 60 * SECOND));
	while (strstr(explained(batch), "2 rails, RoCE v2") && now() < end) {
		want_rails_bytes(&f, WH_WRITE, 32);
		want(0, batch_run(batch));
	}
	want(0, pthread_join(thread, NULL));
	want_rails_bytes(&f, WH_WRITE, 32);
	rails_run(&f, batch, WH_WRITE, 33); /* while it is down */
	want_all_by(batch, "rdma");
	want_explained(batch, "it is down: ");
	want(0, system(getenv("TEST_RDMA_UP")));
	want_in_time(batch, "2 rails, RoCE v2");
	rails_run(&f, batch, WH_WRITE, 34);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- notifications --------------------------------------------------------------------------- */

/* A batch over several rails notifies over the control connection, one over a single rail by that
 * rail; each notification arrives once. */
static void notified__large_and_small(void **state)
{
	enum { SMALL = 24, FEW = 64 };
	struct note *got = calloc(1, sizeof(*got));
	struct wh_batch *all, *batches[SMALL];
	unsigned by_nic = 0, others = 0;
	bool came[SMALL + 1];
	struct fixture f;

	(void)state;
	assert_non_null(got);
	rails_fixture(&f, "fake0,fake1", "fake4,fake5");
	all = rails_batch(&f, WH_WRITE);
	want_rails_used(all, 2);
	want(0, wh_batch_notify(all, 0, &(uint32_t){ SMALL }, 4));
	for (uint32_t i = 0; i < SMALL; i++) {
		struct wh_transfer transfer = transfer_of(&f, WH_WRITE, 0, 0, FEW);

		batches[i] = batch_of(&f, &transfer, 1);
		want(0, wh_batch_notify(batches[i], 0, &i, sizeof(i)));
	}
	for (unsigned round = 0; round < 30 && (round < 5 || !by_nic || !others); round++) {
		/* Behind a large one that still runs small ones may all go as it does. */
		bool apart = round >= 5 && !by_nic;

		memset(came, 0, sizeof(came));
		want(0, wh_batch_submit(all));
		if (apart)
			want(0, batch_end(all, PATIENCE));
		for (uint32_t i = 0; i < SMALL; i++)
			want(0, wh_batch_submit(batches[i]));
		for (uint32_t i = 0; i <= SMALL; i++) {
			uint32_t which = SMALL + 1;

			want(0, child_notification(f.child, PATIENCE, got));
			memcpy(&which, got->data, sizeof(which));
			want_true(which <= SMALL && !came[which], "number %u came again", which);
			came[which] = true;
		}
		if (!apart)
			want(0, batch_end(all, PATIENCE));
		for (uint32_t i = 0; i < SMALL; i++) {
			want(0, batch_end(batches[i], PATIENCE));
			by_nic += strstr(explained(batches[i]), "right behind the bytes") != NULL;
		}
		if (strstr(explained(all), "2 rails")) {
			want_explained(all, "notification: over the control connection");
			others++;
		}
	}
	want_true(by_nic && others, "%u by NIC, %u large ones", by_nic, others);
	want(-EAGAIN, child_notification(f.child, 30 * MS, got));
	for (uint32_t i = 0; i < SMALL; i++)
		want(0, wh_batch_free(batches[i]));
	want(0, wh_batch_free(all));
	fixture_close(&f);
	want(0, nics_underruns());
	free(got);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(share__two_write, needs_nics),
	TEST_NEEDS(share__four_read, needs_nics),
	TEST_NEEDS(share__unequal_counts, needs_nics),
	TEST_NEEDS(share__small_by_one, needs_nics),
	TEST_NEEDS(share__one_slow, needs_nics),
	TEST_NEEDS(share__by_network, needs_nics),
	TEST_NEEDS(bounded__knob, needs_nics),
	TEST_NEEDS(bounded__least_used_makes_room, needs_nics),
	TEST_NEEDS(bounded__answers, needs_nics),
	TEST_NEEDS(bounded__idle, needs_nics),
	TEST_NEEDS(gather__write, needs_nics),
	TEST_NEEDS(gather__read, needs_nics),
	TEST_NEEDS(gather__device_of_one, needs_nics),
	TEST_NEEDS(cable__speed, cables),
	TEST_NEEDS(cable__pulled, cables),
	TEST_NEEDS(notified__large_and_small, needs_nics),
};

HARNESS_MAIN("rdma-rails", tests)
