/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads */
/* rdma-bounce.c: GPU memory that no NIC of its owner reaches
 *
 * The owner stages it through pinned bounce buffers, which the initiator's NICs read and write.
 * Also: rails that break, copies that fail, regions that are removed, peers that are lost, and many
 * batches at once. */
#include <pthread.h>

#include "lib/duo.h"

#define STAGED_THERE "their GPU memory: staged"

/* ---- ways ------------------------------------------------------------------------------------ */

static void way__into_a_gpu(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	expect(WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "", "rdma",
	       STAGED_THERE " (dmabuf: the NIC: Operation not supported; peermem: Bad address",
	       "RoCE v2, staged)");
}

static void way__into_managed_memory(void **state)
{
	(void)state;
	expect(WH_MEMORY_PAGEABLE, WH_MEMORY_MANAGED, "", "rdma",
	       STAGED_THERE " (dmabuf: managed memory", NULL);
}

static void way__both_ends(void **state)
{
	(void)state;
	expect(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "staged", "rdma", "our GPU memory: staged",
	       STAGED_THERE);
}

/* Our memory is registered by dma-buf; theirs is staged. */
static void way__registered_to_staged(void **state)
{
	struct duo duo = { 0 };

	(void)state;
	side_open(&duo.theirs, WH_MEMORY_DEVICE, "target", "127.0.0.1:0",
		  (const char *[]){ "rdma=fake1", "rdma_gpu=staged", PATIENT, NULL });
	side_open(&duo.ours, WH_MEMORY_DEVICE, "mine", "none",
		  (const char *[]){ "transports=rdma,tcp", "rdma=fake0", PATIENT, NULL });
	duo_connect(&duo);
	exchange(&duo, "rdma", "our GPU memory: dmabuf", STAGED_THERE);
	duo_close(&duo);
}

/* Pinned memory with many keys, over two rails. */
static void way__two_rails(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	setenv("FAKE_VERBS_MR", "65536", 1);
	rails_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "staged");
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		batch = whole(&duo, op);
		duo_fill(&duo, op, op);
		want_rails(batch, true, true);
		want_same(&duo, op);
		want_way(batch, "rdma", "(2 rails, RoCE v2, staged)", STAGED_THERE);
		want(0, wh_batch_free(batch));
	}
	duo_close(&duo);
}

static void way__blocks(void **state)
{
	(void)state;
	expect_blocks(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "staged", WH_WRITE, 100, 1000,
		      STAGED_THERE);
}

/* ---- rails that break ------------------------------------------------------------------------ */

static void rails__one_breaks(void **state)
{
	int64_t end = now() + 3 * PATIENCE;
	struct wh_batch *batch;
	uint64_t seed = 10;
	struct duo duo;

	(void)state;
	rails_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "staged");
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		batch = whole(&duo, op);
		want_rails(batch, true, true);
		do { /* on a busy machine rail 0 may have done all before rail 2 begins */
			want_true(now() < end, "it does not break:\n%s", explained(batch));
			duo_fill(&duo, op, ++seed);
			nic_fail(2, 12, 0);
			want(0, batch_run(batch));
			nic_fail(2, 0, 0);
			want_same(&duo, seed);
			want_way(batch, "rdma", STAGED_THERE, NULL);
		} while (!strstr(explained(batch), "it broke: "));
		want(0, wh_batch_free(batch));
	}
	duo_close(&duo);
}

/* The last endpoint breaks in the middle of a fragment: tcp moves all of it. Later batches go by
 * rdma. */
static void rails__last_breaks(void **state)
{
	struct duo duo;

	(void)state;
	for (uint32_t kind = 0; kind < 2; kind++) {
		duo_open(&duo, kind ? WH_MEMORY_DEVICE : WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE,
			 "staged");
		settle(&duo, "rdma", STAGED_THERE);
		for (uint32_t op = WH_READ; op <= WH_WRITE; op++)
			expect_tcp_after_break(&duo, op, STAGED_THERE, 20 + op);
		exchange(&duo, "rdma", STAGED_THERE, NULL);
		duo_close(&duo);
	}
}

/* ---- cancelled, failed, gone ----------------------------------------------------------------- */

static void cancelled__staged_there(void **state)
{
	(void)state;
	expect_cancelled(WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, STAGED_THERE);
}

static void cancelled__staged_at_both_ends(void **state)
{
	(void)state;
	expect_cancelled(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, STAGED_THERE);
}

/* The owner's GPU refuses one copy: the next transport moves the bytes, and the explanation says
 * why. */
static void copy__fails(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "staged");
		settle(&duo, "rdma", STAGED_THERE);
		batch = whole(&duo, op);
		duo_fill(&duo, op, 30 + op);
		gpu_settled(0);
		/* One of the two functions: the engine uses the faster one by its measurements, and
		 * tcp may use the other. */
		fake_fail("cuMemcpyAsync|cuLaunchKernel", 1, 1);
		want(0, batch_run(batch));
		fake_heal();
		want_same(&duo, 30 + op);
		want_way(batch, "tcp", "CUDA_ERROR_INVALID_VALUE", NULL);
		want(0, wh_batch_free(batch));
		exchange(&duo, "rdma", STAGED_THERE, NULL);
		duo_close(&duo);
	}
}

static void *unregister(void *argument)
{
	struct duo *duo = argument;

	want(0, wh_region_unregister(duo->theirs.region));
	return NULL;
}

/* The owner removes the region while its bytes are in flight to the bounce buffer: none of them
 * gets into it. */
static void region__taken_back(void **state)
{
	struct wh_batch *batch;
	pthread_t thread;
	struct duo duo;

	(void)state;
	duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "staged");
	settle(&duo, "rdma", STAGED_THERE);
	batch = whole(&duo, WH_WRITE);
	fill(&duo.theirs, 40);
	fill(&duo.ours, 41);
	nics_hold(true);
	want(0, wh_batch_submit(batch));
	want(0, pthread_create(&thread, NULL, unregister, &duo));
	want(0, pthread_join(thread, NULL));
	nics_hold(false);
	want(-ESTALE, batch_end(batch, PATIENCE));
	want_true(holds(&duo.theirs, 40), "bytes have got into it");
	want(0, wh_batch_free(batch));
	want(0, wh_region_register(
			duo.theirs.engine, duo.theirs.start, LENGTH,
			&(struct wh_region_options){ .size = sizeof(struct wh_region_options),
						     .name = "target",
						     .access = ACCESS_BOTH },
			&duo.theirs.region));
	want(0, wh_peer_close(duo.peer));
	duo_connect(&duo);
	exchange(&duo, "rdma", STAGED_THERE, NULL);
	duo_close(&duo);
}

static const struct route anyhow = { .name = "rdma",
				     .listen = "127.0.0.1:0",
				     .kind = WH_MEMORY_DEVICE };

/* The owner cannot pin a bounce buffer: the batch goes by tcp, and the explanation says why. */
static void refused__memlock(void **state)
{
	const struct child_options staging = { .config = { "rdma_gpu=staged", PATIENT } };
	const char *const ours[] = { "transports=rdma,tcp", PATIENT, NULL };
	int64_t end = now() + 2 * PATIENCE;
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;
	bool explains;

	(void)state;
	setenv("FAKE_VERBS_MEMLOCK", "1048576", 1);
	fixture_open_with(&f, &anyhow, LENGTH, ours, &staging);
	unsetenv("FAKE_VERBS_MEMLOCK");
	transfer = transfer_of(&f, WH_WRITE, 0, 0, LENGTH);
	do {
		batch = batch_of(&f, &transfer, 1);
		want(0, batch_run(batch));
		explains = strstr(explained(batch), "ulimit -l");
		want_true(explains || now() < end, "no reason in:\n%s", explained(batch));
		want_by(batch, "tcp", LENGTH);
		want(0, wh_batch_free(batch));
	} while (!explains);
	fixture_close(&f);
}

static const struct route into_gpu = {
	.name = "rdma", .require = "rdma", .listen = "127.0.0.1:0", .kind = WH_MEMORY_DEVICE
};

/* The owner is killed while its bounce buffer is in use. */
static void peer__killed(void **state)
{
	const struct child_options staging = { .config = { "rdma_gpu=staged", PATIENT } };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	fixture_open_with(&f, &into_gpu, LENGTH, (const char *[]){ PATIENT, NULL }, &staging);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	nics_hold(true);
	want(0, wh_batch_submit(batch));
	child_kill(f.child);
	want_true(batch_end(batch, 2 * PATIENCE) < 0, "it was done without its owner");
	nics_hold(false);
	want(0, wh_batch_free(batch));
	fixture_close_initiator(&f);
}

/* ---- many ------------------------------------------------------------------------------------ */

/* A bounce buffer has four slots. Batches take turns, and none starves. */
static void many__batches(void **state)
{
	enum { BATCHES = 6, ROUNDS = 3 };
	const uint64_t part = LENGTH / BATCHES;
	struct wh_batch *batches[BATCHES];
	struct wh_transfer transfer;
	struct duo duo;

	(void)state;
	duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "staged");
	settle(&duo, "rdma", STAGED_THERE);
	fill(&duo.theirs, 50);
	fill(&duo.ours, 50);
	for (unsigned i = 0; i < BATCHES; i++) {
		/* The last batch reads bytes that the others do not write. */
		transfer = (struct wh_transfer){ .local = duo.ours.region,
						 .remote = duo.remote.id,
						 .local_offset = i * part,
						 .remote_offset = i * part,
						 .length = part,
						 .op = i % 2 ? WH_READ : WH_WRITE };
		want(0, wh_batch_new(duo.peer, NULL, &batches[i]));
		want(0, wh_batch_add(batches[i], &transfer, 1));
	}
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (unsigned i = 0; i < BATCHES; i++)
			want(0, wh_batch_submit(batches[i]));
		for (unsigned i = 0; i < BATCHES; i++) {
			want(0, batch_end(batches[i], PATIENCE));
			want_by(batches[i], "rdma", part);
		}
	}
	want_same(&duo, 50);
	for (unsigned i = 0; i < BATCHES; i++)
		want(0, wh_batch_free(batches[i]));
	duo_close(&duo);
}

static const struct CMUnitTest tests[] = {
	/* This test comes first: the fake library reads its list of NICs once. */
	ON_FAKES(way__two_rails),
	ON_FAKES(way__into_a_gpu),
	ON_FAKES(way__into_managed_memory),
	ON_FAKES(way__both_ends),
	ON_FAKES(way__registered_to_staged),
	ON_FAKES(way__blocks),
	ON_FAKES(rails__one_breaks),
	ON_FAKES(rails__last_breaks),
	ON_FAKES(cancelled__staged_there),
	ON_FAKES(cancelled__staged_at_both_ends),
	ON_FAKES(copy__fails),
	ON_FAKES(region__taken_back),
	ON_FAKES(refused__memlock),
	ON_FAKES(peer__killed),
	ON_FAKES(many__batches),
};

HARNESS_MAIN("rdma-bounce", tests)
