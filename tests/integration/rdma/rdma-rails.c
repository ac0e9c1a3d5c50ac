/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several rails: what is large is shared among them, a rail that fails leaves its part to the
 * others, and the explanation says by rail what became of it. On the fake library, whose NICs can
 * be made slow, silent and wrong one by one; and in the lab, where TEST_RAILS names ours and theirs
 * ("rxe0,rxe2:rxe1,rxe3"), by real packets.
 */
#include <pthread.h>

#include "lib/nics.h"

#define LENGTH (8 * MIB)
#define RAILS 4
#define FORGOTTEN 1100 /* ms: then it is not known any more how fast a rail is */

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
/* ---- helpers --------------------------------------------------------------------------------- */

static void nics_eight(void)
{
	setenv("FAKE_VERBS", "fake0,fake1,fake2,fake3,fake4,fake5,fake6,fake7", 1);
}

/* The first four NICs are ours, the others the target's. */
static void open_more(struct fixture *f, const char *ours, const char *theirs, const char *more)
{
	char mine[80], others[80];
	const char *const config[] = { "transports=rdma,tcp", "timeout=2000", mine, more, NULL };
	const struct child_options options = { .config = { "transports=rdma,tcp", "timeout=5000",
							   others } };

	harness_limit(60);
	nics_eight();
	snprintf(mine, sizeof(mine), "rdma=%s", ours);
	snprintf(others, sizeof(others), "rdma=%s", theirs);
	fixture_open_with(f, &needs_nics, LENGTH, config, &options);
}

static void open_rails(struct fixture *f, const char *ours, const char *theirs)
{
	open_more(f, ours, theirs, NULL);
}

static void want_all_by(struct wh_batch *batch, const char *transport)
{
	want_by(batch, transport, LENGTH);
}

/* One large transfer, all of the region. */
static struct wh_batch *large(struct fixture *f, uint32_t op)
{
	struct wh_transfer transfer = fragment(f, op, 0, 0, LENGTH);

	return batch_of(f, &transfer, 1);
}

static void fill(struct fixture *f, uint32_t op, uint64_t seed)
{
	if (op == WH_WRITE)
		pattern_fill(f->local, LENGTH, 0, seed);
	else
		target_fill(f, 0, LENGTH, 0, seed);
}

/* All bytes are where they belong. */
static void want_bytes(struct fixture *f, uint32_t op, uint64_t seed)
{
	uint64_t wrong = op == WH_WRITE ? target_check(f, 0, LENGTH, 0, seed) :
					  pattern_check(f->local, LENGTH, 0, seed);

	want_true(wrong == PATTERN_GOOD, "the byte at %llu is wrong", (unsigned long long)wrong);
}

static void run_well(struct fixture *f, struct wh_batch *batch, uint32_t op, uint64_t seed)
{
	fill(f, op, seed);
	want(0, batch_run(batch));
	want_bytes(f, op, seed);
}

/* How many of a batch's bytes each NIC of ours moves. */
static void run_counted(struct wh_batch *batch, uint64_t by[RAILS])
{
	uint64_t before[RAILS];

	for (unsigned i = 0; i < RAILS; i++)
		before[i] = nic_moved(i);
	want(0, batch_run(batch));
	for (unsigned i = 0; i < RAILS; i++)
		by[i] = nic_moved(i) - before[i];
}

/* Until so many rails carry something. */
static void want_rails(struct wh_batch *batch, unsigned rails_wanted)
{
	int64_t end = now() + 3 * PATIENCE;
	uint64_t by[RAILS];
	unsigned used;

	do {
		used = 0;
		run_counted(batch, by);
		for (unsigned i = 0; i < RAILS; i++)
			used += by[i] > 0;
		want_true(now() < end, "%u rails, not %u:\n%s", used, rails_wanted,
			  explained(batch));
	} while (used != rails_wanted);
}

/* ---- sharing --------------------------------------------------------------------------------- */

static void shared(const char *ours, const char *theirs, unsigned count, uint32_t op)
{
	uint64_t by[RAILS], sum = 0;
	struct wh_batch *batch;
	struct fixture f;

	open_rails(&f, ours, theirs);
	batch = large(&f, op);
	fill(&f, op, 3);
	want_rails(batch, count);
	run_counted(batch, by);
	for (unsigned i = 0; i < RAILS; i++)
		sum += by[i];
	want_true(sum == LENGTH, "%llu bytes moved", (unsigned long long)sum);
	want_bytes(&f, op, 3);
	want_all_by(batch, "rdma");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void share__two_write(void **state)
{
	(void)state;
	shared("fake0,fake1", "fake4,fake5", 2, WH_WRITE);
}

static void share__four_read(void **state)
{
	(void)state;
	shared("fake0,fake1,fake2,fake3", "fake4,fake5,fake6,fake7", 4, WH_READ);
}

/* One queue pair for each of ours: theirs have several, or none. */
static void share__unequal_counts(void **state)
{
	(void)state;
	shared("fake0,fake1,fake2", "fake4,fake5", 3, WH_WRITE);
	shared("fake0,fake1", "fake4", 2, WH_WRITE);
	shared("fake0", "fake4,fake5,fake6", 1, WH_READ);
}

static void share__small_by_one(void **state)
{
	static const uint64_t lengths[] = { 1, 8, 4096, 65536 };
	uint64_t by[RAILS];
	struct fixture f;

	(void)state;
	open_rails(&f, "fake0,fake1", "fake4,fake5");
	for (unsigned i = 0; i < 4; i++) {
		struct wh_transfer transfer = fragment(&f, WH_WRITE, 3, 5, lengths[i]);
		struct wh_batch *batch = batch_of(&f, &transfer, 1);

		run_counted(batch, by);
		want_true(!by[0] != !by[1] && by[0] + by[1] == lengths[i], "%llu and %llu bytes",
			  (unsigned long long)by[0], (unsigned long long)by[1]);
		want(0, wh_batch_free(batch));
	}
	fixture_close(&f);
}

/* The slow one takes the less. */
static void share__one_slow(void **state)
{
	int64_t end = now() + 3 * PATIENCE;
	struct wh_batch *batch;
	uint64_t by[RAILS];
	struct fixture f;

	(void)state;
	open_rails(&f, "fake0,fake1", "fake4,fake5");
	batch = large(&f, WH_WRITE);
	want_rails(batch, 2);
	nic_speed(0, 30);
	do {
		run_counted(batch, by);
		want_true(now() < end, "%llu bytes by the slow rail, %llu by the other",
			  (unsigned long long)by[0], (unsigned long long)by[1]);
	} while (4 * by[0] > by[1]);
	run_well(&f, batch, WH_WRITE, 9);
	nic_speed(0, 0);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* The owner's rail of the same network answers, whatever its number. */
static void share__by_network(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	setenv("FAKE_VERBS_NETWORKS", "2", 1);
	open_rails(&f, "fake0,fake1", "fake5,fake4");
	batch = large(&f, WH_WRITE);
	want_rails(batch, 2);
	want_told(batch, "2 rails, RoCE v2");
	want_told(batch, "fake0:1 to fake4:1: ");
	want_told(batch, "fake1:1 to fake5:1: ");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	unsetenv("FAKE_VERBS_NETWORKS");
}

/* ---- a rail that fails in mid-batch ---------------------------------------------------------- */

enum fault { STATUS, SILENCE, PORT };

static void broken(enum fault fault, uint32_t op)
{
	struct wh_batch *batch;
	struct fixture f;

	open_rails(&f, "fake0,fake1", "fake4,fake5");
	batch = large(&f, op);
	fill(&f, op, 4);
	want_rails(batch, 2);
	fill(&f, op, 5);
	/* A rail whose thread had to wait for a processor is slow, and would get nothing of it. */
	sleep_ms(FORGOTTEN);
	if (fault == STATUS)
		nic_fail(1, 12, 0); /* each rail has some of it at once */
	else
		nic_hold(1, true);
	want(0, wh_batch_submit(batch));
	if (fault == PORT)
		nic_port(1, false);
	want(0, wh_batch_wait(batch, 3 * PATIENCE));
	if (fault == PORT)
		nic_port(1, true);
	nic_hold(1, false);
	want_bytes(&f, op, 5);
	want_all_by(batch, "rdma");
	want_told(batch, "fake1:1 to fake");
	want_told(batch, fault == STATUS ? "it broke: from fake1:1 to fake5:1: no acknowledgement" :
			 fault == PORT   ? "it broke: fake1:1 has gone down" :
					   "nothing has completed for 2000 ms");
	want_rails(batch, 2);
	want_bytes(&f, op, 5);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void broken__status_of_write(void **state)
{
	(void)state;
	broken(STATUS, WH_WRITE);
}

static void broken__status_of_read(void **state)
{
	(void)state;
	broken(STATUS, WH_READ);
}

static void broken__silence(void **state)
{
	(void)state;
	broken(SILENCE, WH_WRITE);
}

static void broken__port(void **state)
{
	(void)state;
	broken(PORT, WH_READ);
}

/* One after the other: what the first leaves the second takes, and tcp what that leaves. */
static void broken__all(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_rails(&f, "fake0,fake1,fake2", "fake4,fake5,fake6");
	batch = large(&f, WH_WRITE);
	want_rails(batch, 3);
	fill(&f, WH_WRITE, 6);
	for (unsigned i = 0; i < 3; i++)
		nic_fail(i, 12, 0);
	want(0, batch_run(batch));
	want_bytes(&f, WH_WRITE, 6);
	want_all_by(batch, "tcp");
	want_told(batch, "no acknowledgement");
	want_rails(batch, 3);
	run_well(&f, batch, WH_WRITE, 7);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* A refused key concerns its own fragment only: others continue by rdma. */
static void broken__remote_access(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch, *other;
	struct fixture f;

	(void)state;
	open_rails(&f, "fake0,fake1", "fake4,fake5");
	batch = large(&f, WH_WRITE);
	transfer = fragment(&f, WH_READ, LENGTH, 0, LENGTH);
	other = batch_of(&f, &transfer, 1);
	want_rails(batch, 2);
	fill(&f, WH_WRITE, 8);
	/* A rail whose thread had to wait for a processor is slow, and would get nothing of it. */
	sleep_ms(FORGOTTEN);
	nic_fail(0, 10, 0);
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_submit(other));
	want(0, wh_batch_wait(batch, PATIENCE));
	want(0, wh_batch_wait(other, PATIENCE));
	want_bytes(&f, WH_WRITE, 8);
	want_all_by(batch, "tcp");
	want_told(batch, "refuses the key");
	want_all_by(other, "rdma");
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(other));
	fixture_close(&f);
}

/* Both rails are silent: cancelling cuts both, and the next batch goes by them. */
static void broken__cancel(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_rails(&f, "fake0,fake1", "fake4,fake5");
	batch = large(&f, WH_WRITE);
	want_rails(batch, 2);
	nic_hold(0, true);
	nic_hold(1, true);
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_cancel(batch));
	nic_hold(0, false);
	nic_hold(1, false);
	want(-ECANCELED, wh_batch_poll(batch));
	want_rails(batch, 2);
	run_well(&f, batch, WH_WRITE, 10);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* The owner's port goes, too: our rail then leads to another one of its. */
static void broken__other_end(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_rails(&f, "fake0", "fake4,fake5");
	batch = large(&f, WH_WRITE);
	want_rails(batch, 1);
	want_told(batch, "fake0:1 to fake4:1");
	nic_fail(0, 12, 1); /* as it looks from here */
	want(0, batch_run(batch));
	want_rails(batch, 1);
	want_told(batch, "fake0:1 to fake5:1");
	run_well(&f, batch, WH_WRITE, 11);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Rails break time and again, while one batch writes, one reads and one is cancelled; each has a
 * third of the memory. Whatever ends well has its bytes where they belong, and nothing else is
 * touched. */
static void broken__often(void **state)
{
	enum { PART = 2 * MIB, ROUNDS_BROKEN = 40 };
	struct wh_transfer transfers[3];
	struct wh_batch *batches[3];
	struct fixture f;
	int status;

	(void)state;
	open_rails(&f, "fake0,fake1,fake2", "fake4,fake5,fake6");
	for (unsigned i = 0; i < 3; i++) {
		transfers[i] = fragment(&f, i == 1 ? WH_READ : WH_WRITE, i * PART, i * PART, PART);
		batches[i] = batch_of(&f, &transfers[i], 1);
	}
	want_rails(batches[0], 3);
	target_fill(&f, 3 * PART, PART, 0, 1);
	for (unsigned i = 0; i < ROUNDS_BROKEN; i++) {
		pattern_fill(f.local, PART, 0, i);
		target_fill(&f, PART, PART, 0, i + 1);
		nic_fail(i % 3, i % 5 ? 12 : 10, i * 7 % 11);
		if (i % 4 == 3)
			nic_hold((i / 4) % 3, true);
		for (unsigned n = 0; n < 3; n++)
			want(0, wh_batch_submit(batches[n]));
		want(0, wh_batch_cancel(batches[2]));
		status = wh_batch_poll(batches[2]);
		want_true(!status || status == -ECANCELED, "round %u: %d", i, status);
		nic_hold((i / 4) % 3, false);
		want(0, wh_batch_wait(batches[0], 2 * PATIENCE));
		want(0, wh_batch_wait(batches[1], 2 * PATIENCE));
		want_true(target_check(&f, 0, PART, 0, i) == PATTERN_GOOD,
			  "round %u: written wrongly", i);
		want_true(pattern_check(f.local + PART, PART, 0, i + 1) == PATTERN_GOOD,
			  "round %u: read wrongly", i);
	}
	want_true(target_check(&f, 3 * PART, PART, 0, 1) == PATTERN_GOOD,
		  "bytes of nobody are written");
	for (unsigned i = 0; i < 3; i++) {
		nic_fail(i, 0, 0);
		want(0, wh_batch_free(batches[i]));
	}
	fixture_close(&f);
}

/* ---- how many connections -------------------------------------------------------------------- */

static void bounded__knob(void **state)
{
	struct wh_batch *batch;
	uint64_t by[RAILS];
	struct fixture f;

	(void)state;
	open_more(&f, "fake0,fake1", "fake4,fake5", "rdma_connections=1");
	batch = large(&f, WH_WRITE);
	want(0, batch_run(batch));
	run_counted(batch, by);
	want_true(by[0] == LENGTH && !by[1], "%llu and %llu bytes", (unsigned long long)by[0],
		  (unsigned long long)by[1]);
	want_true(nics_pairs() == 1, "%u queue pairs", nics_pairs());
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Two peers, and one connection: the one that is not used makes room. */
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
	open_more(&f, "fake0", "fake4", "rdma_connections=1");
	child = child_start(&options);
	child_region(child, child_memory(child, WH_MEMORY_PAGEABLE, LENGTH), 0, LENGTH, "other",
		     WH_ACCESS_READ | WH_ACCESS_WRITE, NULL);
	want(0, wh_peer_open(f.engine, child->url, NULL, &peer));
	want(0, wh_peer_find(peer, "other", PATIENCE, &remote));
	transfer = fragment(&f, WH_WRITE, 0, 0, LENGTH);
	transfer.remote = remote.id;
	want(0, wh_batch_new(peer, NULL, &second));
	want(0, wh_batch_add(second, &transfer, 1));
	batch = large(&f, WH_WRITE);
	for (unsigned i = 0; i < 3; i++) {
		run_well(&f, batch, WH_WRITE, 20 + i);
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

/* Until all of it has gone by rdma. */
static void want_rdma(struct wh_batch *batch)
{
	int64_t end = now() + 3 * PATIENCE;

	do {
		want(0, batch_run(batch));
		want_true(now() < end, "rdma is not taken:\n%s", explained(batch));
	} while (bytes_by(batch, "rdma", NULL) != LENGTH);
}

/* Two peers of an owner that answers with one queue pair alone: whoever has it and does not use it
 * makes room; and who has more rails than one does not take it away. */
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
	harness_limit(60);
	nics_eight();
	fixture_open_with(&f, &needs_nics, LENGTH, ours, &one);
	engine = engine_open(NULL, "none", ours);
	want(0, wh_region_register(engine, f.local, LENGTH, NULL, &region));
	want(0, wh_peer_open(engine, f.child->url, NULL, &peer));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	transfer = fragment(&f, WH_WRITE, 0, 0, LENGTH);
	transfer.local = region;
	transfer.remote = remote.id;
	want(0, wh_batch_new(peer, NULL, &second));
	want(0, wh_batch_add(second, &transfer, 1));
	batch = large(&f, WH_WRITE);
	for (unsigned i = 0; i < 2; i++) {
		want_rdma(batch);
		want_rdma(second);
		run_well(&f, batch, WH_WRITE, 40 + i);
	}
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(second));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(region));
	want(0, wh_engine_close(engine));
	fixture_close(&f);
}

/* What is not used is given back, and made again when it is needed. */
static void bounded__idle(void **state)
{
	int64_t end = now() + 3 * PATIENCE;
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_more(&f, "fake0,fake1", "fake4,fake5", "idle=300");
	batch = large(&f, WH_WRITE);
	want_rails(batch, 2);
	while (nics_pairs()) {
		want_true(now() < end, "%u queue pairs are open still", nics_pairs());
		sleep_ms(20);
	}
	want_rails(batch, 2);
	run_well(&f, batch, WH_WRITE, 12);
	want_all_by(batch, "rdma");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- gathering ------------------------------------------------------------------------------- */

#define BLOCK 512u
#define BLOCKS 1536u

/* Blocks that lie apart here and together there: several in one work request. */
static void gathered(uint32_t op, const char *sges, uint64_t wanted)
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
	open_rails(&f, "fake0", "fake4");
	base.local = f.region;
	base.remote = f.remote.id;
	want(0, wh_blocks_prepare(f.peer, &desc, &blocks));
	batch = batch_of(&f, NULL, 0);
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	want(0, batch_run(batch)); /* it is connected */
	fill(&f, op, 13);
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
	gathered(WH_WRITE, NULL, BLOCKS / 6);
}

static void gather__read(void **state)
{
	(void)state;
	gathered(WH_READ, NULL, BLOCKS / 6);
}

static void gather__device_of_one(void **state)
{
	(void)state;
	gathered(WH_WRITE, "1", BLOCKS);
}

/* ---- in the lab ------------------------------------------------------------------------------ */

#define ROUNDS 3
#define TIMED (4 * MIB)

/* Ours, or theirs, of TEST_RAILS: so many of them. */
static void open_cables(struct fixture *f, bool both)
{
	const char *ours = getenv("TEST_RAILS"), *theirs = strchr(ours, ':') + 1;
	char mine[80], others[80];
	/* Emulated processors that move packets do not answer pings at once. */
	const char *const config[] = { "transports=rdma,tcp", "timeout=5000", mine, NULL };
	const struct child_options options = { .config = { "transports=rdma,tcp", "timeout=8000",
							   others } };

	snprintf(mine, sizeof(mine), "rdma=%.*s", (int)strcspn(ours, both ? ":" : ","), ours);
	snprintf(others, sizeof(others), "rdma=%.*s", (int)strcspn(theirs, both ? ":" : ","),
		 theirs);
	fixture_open_with(f, &cables, LENGTH, config, &options);
}

/* Until the explanation has this word. */
static void want_in_time(struct wh_batch *batch, const char *word)
{
	int64_t end = now() + 60 * SECOND;

	do {
		want(0, batch_run(batch));
		want_true(now() < end, "\"%s\" is not told:\n%s", word, explained(batch));
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

/* In turns, medians. */
static void cable__speed(void **state)
{
	int64_t by_one[ROUNDS], by_two[ROUNDS];
	struct wh_transfer transfer_one, transfer_two;
	struct wh_batch *batch_one, *batch_two;
	struct fixture one, two;
	double faster = 0;

	(void)state;
	harness_limit(90);
	open_cables(&one, false);
	open_cables(&two, true);
	transfer_one = fragment(&one, WH_WRITE, 0, 0, TIMED);
	transfer_two = fragment(&two, WH_WRITE, 0, 0, TIMED);
	batch_one = batch_of(&one, &transfer_one, 1);
	batch_two = batch_of(&two, &transfer_two, 1);
	want_in_time(batch_one, "RoCE v2");
	want_in_time(batch_two, "2 rails, RoCE v2");
	/* Processors that are starved lose a rail now and then, which is not what is measured here.
	 */
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

static void *pull(void *argument)
{
	(void)argument;
	want(0, system(getenv("TEST_RDMA_DOWN")));
	return NULL;
}

/* The first of two cables, while batches are under way: the second carries on. */
static void cable__pulled(void **state)
{
	int64_t end = now() + 60 * SECOND;
	struct wh_batch *batch;
	pthread_t thread;
	struct fixture f;

	(void)state;
	harness_limit(60);
	open_cables(&f, true);
	batch = large(&f, WH_WRITE);
	want_in_time(batch, "2 rails, RoCE v2");
	fill(&f, WH_WRITE, 32);
	want(0, wh_batch_submit(batch));
	want(0, pthread_create(&thread, NULL, pull, NULL));
	want(0, wh_batch_wait(batch, 60 * SECOND));
	while (strstr(explained(batch), "2 rails, RoCE v2") && now() < end) {
		want_bytes(&f, WH_WRITE, 32);
		want(0, batch_run(batch));
	}
	want(0, pthread_join(thread, NULL));
	want_bytes(&f, WH_WRITE, 32);
	run_well(&f, batch, WH_WRITE, 33); /* while it is down */
	want_all_by(batch, "rdma");
	want_told(batch, "it is down: ");
	want(0, system(getenv("TEST_RDMA_UP")));
	want_in_time(batch, "2 rails, RoCE v2");
	run_well(&f, batch, WH_WRITE, 34);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- notifications --------------------------------------------------------------------------- */

/* What several rails carry is told of over the control connection, what one does by a letter on
 * that one; each once. */
static void notified__large_and_small(void **state)
{
	enum { SMALL = 24, FEW = 64 };
	struct wh_notification *got = calloc(1, sizeof(*got));
	struct wh_batch *all, *batches[SMALL];
	unsigned by_nic = 0, others = 0;
	bool came[SMALL + 1];
	struct fixture f;

	(void)state;
	assert_non_null(got);
	open_rails(&f, "fake0,fake1", "fake4,fake5");
	all = large(&f, WH_WRITE);
	want_rails(all, 2);
	want(0, wh_batch_notify(all, &(uint32_t){ SMALL }, 4));
	for (uint32_t i = 0; i < SMALL; i++) {
		struct wh_transfer transfer = fragment(&f, WH_WRITE, 0, 0, FEW);

		batches[i] = batch_of(&f, &transfer, 1);
		want(0, wh_batch_notify(batches[i], &i, sizeof(i)));
	}
	for (unsigned round = 0; round < 30 && (round < 5 || !by_nic || !others); round++) {
		memset(came, 0, sizeof(came));
		want(0, wh_batch_submit(all));
		for (uint32_t i = 0; i < SMALL; i++)
			want(0, wh_batch_submit(batches[i]));
		for (uint32_t i = 0; i <= SMALL; i++) {
			uint32_t which = SMALL + 1;

			want(0, child_notification(f.child, PATIENCE, got));
			memcpy(&which, got->data, sizeof(which));
			want_true(which <= SMALL && !came[which], "number %u came again", which);
			came[which] = true;
		}
		want(0, wh_batch_wait(all, PATIENCE));
		for (uint32_t i = 0; i < SMALL; i++) {
			want(0, wh_batch_wait(batches[i], PATIENCE));
			by_nic += strstr(explained(batches[i]), "right behind the bytes") != NULL;
		}
		if (strstr(explained(all), "2 rails")) {
			want_told(all, "notification: over the control connection");
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
	TEST_NEEDS(broken__status_of_write, needs_nics),
	TEST_NEEDS(broken__status_of_read, needs_nics),
	TEST_NEEDS(broken__silence, needs_nics),
	TEST_NEEDS(broken__port, needs_nics),
	TEST_NEEDS(broken__all, needs_nics),
	TEST_NEEDS(broken__remote_access, needs_nics),
	TEST_NEEDS(broken__cancel, needs_nics),
	TEST_NEEDS(broken__other_end, needs_nics),
	TEST_NEEDS(broken__often, needs_nics),
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
