/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-faults.c: NICs, queue pairs and peers that fail
 *
 * The bytes still arrive, by rdma again or by tcp, and the explanation says why. On the fake
 * library, which injects faults. The lab runs what works with real packets, with a port that goes
 * down (commands in TEST_RDMA_DOWN and TEST_RDMA_UP). */
#include <pthread.h>

#include "lib/nics.h"

#define LENGTH (4 * MIB)
#define BLOCK (4 * KIB)

static const char *missing_cable(void)
{
	return getenv("TEST_RDMA") && !getenv("TEST_RDMA_DOWN") ? "no cable to pull" :
	       needs_nics.missing() && !getenv("TEST_RDMA")     ? "no device" :
								  NULL;
}

/* As route_rdma, but any transport may move the bytes. */
static const struct route any = {
	.name = "rdma", .listen = "127.0.0.1:0", .detail = "", .kind = WH_MEMORY_PAGEABLE
};
static const struct route needs_cable = { .name = "cable",
					  .devices = true,
					  .missing = missing_cable };

static void port(bool up)
{
	const char *command = getenv(up ? "TEST_RDMA_UP" : "TEST_RDMA_DOWN");

	if (command)
		want(0, system(command));
	else
		nic_port(0, up);
}

static void *port_pull(void *argument)
{
	(void)argument;
	port(false);
	return NULL;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static const char *const ways[] = { "transports=rdma,tcp", "timeout=1000", NULL };
/* Emulated CPUs that move packets answer pings late. */
static const char *const patient[] = { "transports=rdma,tcp", "timeout=5000", NULL };
static const struct child_options same = { .config = { "transports=rdma,tcp", "timeout=4000" } };

static void open_both(struct fixture *f)
{
	fixture_open_with(f, &any, LENGTH, getenv("TEST_RDMA") ? patient : ways, &same);
}

static void want_refused(struct wh_batch *batch, const char *word)
{
	char refused[192];

	bytes_by(batch, "rdma", refused);
	want_true(strstr(refused, word), "rdma is refused for \"%s\", not for \"%s\"", refused,
		  word);
}

static uint64_t reroutes_of(const struct wh_counters *counters)
{
	uint64_t all = 0;

	for (unsigned int i = 0; i < counters->transports; i++)
		all += counters->transport[i].reroutes;
	return all;
}

/* The blocks of one of `parts` equal parts of the region. */
static struct wh_blocks *part_of(struct fixture *f, uint32_t op, unsigned int part,
				 unsigned int parts)
{
	uint64_t offset = part * (uint64_t)(LENGTH / parts);
	struct wh_base base = { .local = f->region,
				.local_offset = offset,
				.remote = f->remote.id,
				.remote_offset = offset };
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = op,
		.block_length = BLOCK / 2,
		.count = LENGTH / BLOCK / parts,
		.bases = &base,
		.base_count = 1,
		.local_stride = BLOCK,
		.remote_stride = BLOCK,
	};
	struct wh_blocks *blocks;

	want(0, wh_blocks_new(f->peer, &desc, &blocks));
	return blocks;
}

/* A batch of many blocks, all over the region, `times` times. */
static struct wh_batch *blocks_of(struct fixture *f, uint32_t op, unsigned int times)
{
	struct wh_blocks *blocks = part_of(f, op, 0, 1);
	struct wh_batch *batch = batch_of(f, NULL, 0);

	while (times--)
		want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	return batch;
}

/* One batch of the same blocks in `count` fragments. */
static struct wh_batch *fragments_of(struct fixture *f, uint32_t op, unsigned int fragments)
{
	struct wh_batch *batch = batch_of(f, NULL, 0);

	for (unsigned int i = 0; i < fragments; i++) {
		struct wh_blocks *blocks = part_of(f, op, i, fragments);

		want(0, wh_batch_add_blocks(batch, blocks));
		wh_blocks_free(blocks);
	}
	return batch;
}

/* Check that all blocks have arrived, and that nothing between them was written. */
static void want_blocks(struct fixture *f, uint64_t seed)
{
	unsigned char *seen = pages_new(LENGTH), *wanted = pages_new(LENGTH);

	pattern_fill(wanted, LENGTH, 0, seed);
	target_fetch(f, 0, LENGTH, seen);
	for (uint64_t at = 0; at < LENGTH; at += BLOCK) {
		want_true(!memcmp(seen + at, wanted + at, BLOCK / 2), "the block at %llu is wrong",
			  (unsigned long long)at);
		for (uint64_t i = BLOCK / 2; i < BLOCK; i++)
			want_true(!seen[at + i], "a byte between the blocks was written");
	}
	pages_free(seen, LENGTH);
	pages_free(wanted, LENGTH);
}

/* Run batches until rdma moves one. */
static void want_rdma_again(struct fixture *f)
{
	struct wh_transfer transfer = transfer_of(f, WH_WRITE, 0, 0, 64);
	int64_t end = now() + 2 * PATIENCE;
	char refused[192];
	uint64_t bytes;

	do {
		struct wh_batch *batch = batch_of(f, &transfer, 1);

		want(0, batch_run(batch));
		bytes = bytes_by(batch, "rdma", refused);
		want(0, wh_batch_free(batch));
		want_true(now() < end, "rdma is not taken again: %s", refused);
		sleep_ms(20);
	} while (!bytes);
}

/* ---- a connection that breaks ---------------------------------------------------------------- */

static void queue_pair_broken(int status, unsigned after, const char *word)
{
	struct wh_batch *batch;
	struct fixture f;

	open_both(&f);
	pattern_fill(f.local, LENGTH, 0, 7);
	batch = blocks_of(&f, WH_WRITE, 1);
	want(0, batch_run(batch));
	want_by(batch, "rdma", LENGTH / 2);
	pattern_fill(f.local, LENGTH, 0, 8);
	nics_fail(status, after);
	want(0, batch_run(batch));
	want_by(batch, "tcp", LENGTH / 2);
	want_refused(batch, word);
	want_blocks(&f, 8);
	want(0, wh_batch_free(batch));
	want_rdma_again(&f);
	fixture_close(&f);
}

static void broken__no_acknowledgement(void **state)
{
	(void)state;
	queue_pair_broken(12, 300, "no acknowledgement");
}

static void broken__first_request(void **state)
{
	(void)state;
	queue_pair_broken(9, 0, "remote invalid request");
}

/* Only the refused fragment is rerouted; the next batch goes by rdma again. */
static void broken__remote_access(void **state)
{
	(void)state;
	queue_pair_broken(10, 100, "refuses the key");
}

/* The NIC never completes a request: the watchdog ends the connection. */
static void silent__goes_by_tcp(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_both(&f);
	batch = blocks_of(&f, WH_WRITE, 1);
	want(0, batch_run(batch));
	pattern_fill(f.local, LENGTH, 0, 9);
	nics_hold(true);
	want(0, wh_batch_submit(batch));
	want(0, batch_end(batch, 2 * PATIENCE));
	nics_hold(false);
	want_by(batch, "tcp", LENGTH / 2);
	want_refused(batch, "nothing has completed for 1000 ms");
	want_blocks(&f, 9);
	want(0, wh_batch_free(batch));
	want_rdma_again(&f);
	fixture_close(&f);
}

/* A batch on a silent NIC can be cancelled, and other batches wait for that only. */
static void silent__cancel(void **state)
{
	struct wh_batch *batch, *other;
	struct fixture f;

	(void)state;
	open_both(&f);
	batch = blocks_of(&f, WH_WRITE, 1);
	other = blocks_of(&f, WH_WRITE, 1);
	want(0, batch_run(batch));
	nics_hold(true);
	want(0, wh_batch_submit(batch));
	pattern_fill(f.local, LENGTH, 0, 11);
	want(0, wh_batch_submit(other));
	want(-EAGAIN, batch_end(batch, 100 * MS));
	want(0, wh_batch_cancel(batch));
	nics_hold(false);
	want(-ECANCELED, batch_now(batch));
	want(0, batch_end(other, PATIENCE));
	want_by(other, "rdma", LENGTH / 2);
	want_blocks(&f, 11);
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(other));
	fixture_close(&f);
}

/* Batches are cancelled while their fragments are rerouted to tcp, one after the other. */
static void broken__cancelled_meanwhile(void **state)
{
	struct wh_counters counters = { .size = sizeof(counters) };
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_both(&f);
	batch = fragments_of(&f, WH_WRITE, 64);
	for (unsigned int round = 0; round < 20; round++) {
		uint64_t before, after = 0;
		int status;

		want_rdma_again(&f);
		want(0, wh_peer_counters(f.peer, &counters));
		before = reroutes_of(&counters);
		nics_fail(12, round * 7);
		want(0, wh_batch_submit(batch));
		while (batch_now(batch) == -EAGAIN && after < before + 1 + round) {
			want(0, wh_peer_counters(f.peer, &counters));
			after = reroutes_of(&counters);
		}
		want(0, wh_batch_cancel(batch));
		status = batch_now(batch);
		want_true(!status || status == -ECANCELED, "it is %d", status);
	}
	pattern_fill(f.local, LENGTH, 0, 12);
	want(0, batch_run(batch));
	want_blocks(&f, 12);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* The owner unregisters a region while the path is dead, and does not wait for the initiator. */
static void silent__region_taken_back(void **state)
{
	struct wh_batch *batch;
	struct fixture f;
	int status;

	(void)state;
	open_both(&f);
	batch = blocks_of(&f, WH_WRITE, 1);
	want(0, batch_run(batch));
	nics_hold(true);
	want(0, wh_batch_submit(batch));
	want(0, child_unregister(f.child, 0));
	nics_hold(false);
	status = batch_end(batch, 2 * PATIENCE);
	want_true(status < 0 && status != -EAGAIN, "it is %d", status);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- a port that goes down ------------------------------------------------------------------- */

static void port__down_in_mid_batch(void **state)
{
	/* With real packets a batch is always under way; the fake holds its own. */
	bool real = getenv("TEST_RDMA");
	unsigned int times = real ? 64 : 1;
	int64_t until = now() + 30 * SECOND;
	struct wh_batch *batch;
	pthread_t thread;
	struct fixture f;

	(void)state;
	open_both(&f);
	batch = blocks_of(&f, WH_WRITE, times);
	want(0, batch_run(batch));
	want_by(batch, "rdma", times * LENGTH / 2);
	pattern_fill(f.local, LENGTH, 0, 5);
	if (!real)
		nics_hold(true);
	want(0, wh_batch_submit(batch));
	want(0, pthread_create(&thread, NULL, port_pull, NULL));
	want(0, batch_end(batch, 3 * PATIENCE));
	while (real && !bytes_by(batch, "tcp", NULL) && now() < until)
		want(0, batch_run(batch));
	want(0, pthread_join(thread, NULL));
	want_blocks(&f, 5);
	want_true(bytes_by(batch, "tcp", NULL), "it was not in the middle");
	/* rxe0:1, however the failure was noticed */
	want_refused(batch, real ? ":1" : "gone down");
	want(0, batch_run(batch)); /* while it is down */
	want_by(batch, "tcp", times * LENGTH / 2);
	if (!real)
		nics_hold(false);
	port(true);
	want_rdma_again(&f);
	pattern_fill(f.local, LENGTH, 0, 6);
	want(0, batch_run(batch));
	want_blocks(&f, 6);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* With this variable of the fake library, a batch goes by tcp, and the explanation says why rdma
 * refused. */
static void rdma_refused(const char *name, const char *value, const char *ours, const char *word)
{
	const char *const config[] = { "transports=rdma,tcp", ours, NULL };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	if (name)
		setenv(name, value, 1);
	fixture_open_with(&f, &any, LENGTH, config, &same);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 64);
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	want_by(batch, "tcp", 64);
	want_refused(batch, word);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	if (name)
		unsetenv(name);
}

static void refused__memlock(void **state)
{
	(void)state;
	rdma_refused("FAKE_VERBS_MEMLOCK", "1048576", NULL, "ulimit -l");
}

static void refused__no_such_gid(void **state)
{
	(void)state;
	rdma_refused(NULL, NULL, "rdma=fake0:1:6", "no GID with index 6");
}

static void refused__no_such_device(void **state)
{
	(void)state;
	rdma_refused(NULL, NULL, "rdma=mlx5_7", "there is no device mlx5_7");
}

static void refused__other_family(void **state)
{
	(void)state;
	rdma_refused(NULL, NULL, "rdma=fake0:1:0", "different families");
}

static void refused__switched_off(void **state)
{
	(void)state;
	rdma_refused(NULL, NULL, "rdma=off", "switched off");
}

static void refused__peer_without(void **state)
{
	const struct child_options none = { .config = { "rdma=off" } };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	fixture_open_with(&f, &any, LENGTH, ways, &none);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 64);
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	want_refused(batch, "has no rdma");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- addressing ------------------------------------------------------------------------------ */

static void addressed(const char *name, const char *value, const char *detail)
{
	struct route route = route_rdma;
	struct fixture f;

	route.detail = detail;
	setenv(name, value, 1);
	fixture_open(&f, &route, LENGTH);
	round_trip(&f, 1, 2, MIB + 5, 3);
	fixture_close(&f);
	unsetenv(name);
}

static void address__infiniband(void **state)
{
	(void)state;
	addressed("FAKE_VERBS_LINK", "infiniband", "InfiniBand");
}

static void address__roce_v1(void **state)
{
	(void)state;
	addressed("FAKE_VERBS_GIDS", "1/fe80::1,1/::ffff:10.9.0.1", "RoCE v1");
}

static void address__version_2_first(void **state)
{
	(void)state;
	addressed("FAKE_VERBS_GIDS", "1/::ffff:10.9.0.1,2/fe80::1,1/fe80::1,2/fd00::1", "RoCE v2");
}

/* A region is registered in chunks of the NIC's maximum; no request crosses a chunk. */
static void chunks__many(void **state)
{
	(void)state;
	addressed("FAKE_VERBS_MR", "65536", "RoCE v2");
}

/* ---- costs ----------------------------------------------------------------------------------- */

/* One doorbell for many requests, and one completion for several. */
static void costs__of_many_blocks(void **state)
{
	uint64_t blocks = LENGTH / BLOCK;
	struct nics_counts before, after;
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_both(&f);
	batch = blocks_of(&f, WH_WRITE, 1);
	want(0, batch_run(batch));
	before = nics_counts();
	want(0, batch_run(batch));
	after = nics_counts();
	want_true(after.requests - before.requests == blocks, "%llu requests",
		  (unsigned long long)(after.requests - before.requests));
	want_true(after.doorbells - before.doorbells <= blocks / 4, "%llu doorbells",
		  (unsigned long long)(after.doorbells - before.doorbells));
	want_true(after.completions - before.completions <= blocks / 2, "%llu completions",
		  (unsigned long long)(after.completions - before.completions));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(broken__no_acknowledgement, needs_nics),
	TEST_NEEDS(broken__first_request, needs_nics),
	TEST_NEEDS(broken__remote_access, needs_nics),
	TEST_NEEDS(broken__cancelled_meanwhile, needs_nics),
	TEST_NEEDS(silent__goes_by_tcp, needs_nics),
	TEST_NEEDS(silent__cancel, needs_nics),
	TEST_NEEDS(silent__region_taken_back, needs_nics),
	TEST_NEEDS(port__down_in_mid_batch, needs_cable),
	TEST_NEEDS(refused__memlock, needs_nics),
	TEST_NEEDS(refused__no_such_gid, needs_nics),
	TEST_NEEDS(refused__no_such_device, needs_nics),
	TEST_NEEDS(refused__other_family, needs_nics),
	TEST_NEEDS(refused__switched_off, needs_nics),
	TEST_NEEDS(refused__peer_without, needs_nics),
	TEST_NEEDS(address__infiniband, needs_nics),
	TEST_NEEDS(address__roce_v1, needs_nics),
	TEST_NEEDS(address__version_2_first, needs_nics),
	TEST_NEEDS(chunks__many, needs_nics),
	TEST_NEEDS(costs__of_many_blocks, needs_nics),
};

HARNESS_MAIN("rdma-faults", tests)
