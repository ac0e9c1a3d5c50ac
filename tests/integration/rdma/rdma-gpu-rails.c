/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-gpu-rails.c: GPU memory over several NICs
 *
 * Registered with each NIC, or with some, or staged over all; also while rails break. On the fake
 * CUDA driver and the fake libibverbs. */
#include "lib/duo.h"

/* One export of the GPU memory serves both of our NICs. */
static void shared__export(void **state)
{
	const char *ours[] = { "transports=rdma,tcp", "rdma=fake0,fake2", PATIENT, NULL };
	int64_t end = now() + 3 * PATIENCE;
	uint64_t before, bytes = 0;
	struct wh_route routes[8];
	struct wh_batch *batch;
	struct duo duo = { 0 };

	(void)state;
	nics_four();
	side_open(&duo.theirs, WH_MEMORY_PAGEABLE, "target", "127.0.0.1:0",
		  (const char *[]){ "rdma=fake1", PATIENT, NULL });
	side_open(&duo.ours, WH_MEMORY_DEVICE, "mine", "none", ours);
	duo_connect(&duo);
	before = fake_calls("cuMemGetHandleForAddressRange");
	exchange(&duo, "rdma", "dmabuf", NULL);
	nic_port(0, false);
	batch = whole(&duo, WH_WRITE);
	while (!bytes && now() < end) {
		size_t count = 8;

		want(0, batch_run(batch));
		want(0, wh_batch_routes(batch, routes, &count));
		for (size_t i = 0; i < count; i++)
			if (!strcmp(routes[i].transport, "rdma") &&
			    strstr(routes[i].detail, "fake2"))
				bytes = routes[i].bytes;
	}
	nic_port(0, true);
	want_true(bytes == LENGTH, "the other NIC is not taken");
	want_true(fake_calls("cuMemGetHandleForAddressRange") - before == 1, "%llu exports",
		  (unsigned long long)(fake_calls("cuMemGetHandleForAddressRange") - before));
	want(0, wh_batch_free(batch));
	duo_close(&duo);
}

/* Move the whole region over both rails, or over the first only; `says` and `says_more` must be in
 * the explanation. */
static void rails_striped(uint32_t here, uint32_t there, const char *ways, bool second,
			  const char *says, const char *says_more)
{
	struct wh_batch *batch;
	struct duo duo;

	rails_open(&duo, here, there, ways);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		batch = whole(&duo, op);
		want_rails(batch, true, second);
		duo_fill(&duo, op, op + 20);
		want_rails(batch, true, second);
		want_same(&duo, op + 20);
		want_way(batch, "rdma", says, says_more);
		want(0, wh_batch_free(batch));
	}
	duo_close(&duo);
}

static void rails__dma_buf(void **state)
{
	(void)state;
	rails_striped(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "", true, "(2 rails, RoCE v2, dmabuf)",
		      "our GPU memory: dmabuf, ordered; their GPU memory: dmabuf, ordered\n");
	setenv("FAKE_VERBS_MR", "65536", 1); /* many keys */
	rails_striped(WH_MEMORY_DEVICE, WH_MEMORY_POOL, "", true, "(2 rails, RoCE v2, dmabuf)",
		      NULL);
}

static void rails__staged(void **state)
{
	(void)state;
	rails_striped(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "staged", true,
		      "(2 rails, RoCE v2, staged)", "our GPU memory: staged");
}

/* A local or remote NIC cannot reach the memory: the other rail moves all bytes. */
static void rails__one_without(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_NO_DMABUF", "fake2", 1);
	rails_striped(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "", false,
		      "our GPU memory: dmabuf, ordered, fake2: not used",
		      "(dmabuf: the NIC: Operation not supported");
	setenv("FAKE_VERBS_NO_DMABUF", "fake3", 1);
	rails_striped(
		WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "", false,
		"their GPU memory: dmabuf, ordered, fake3: not used (dmabuf: the NIC: Operation",
		NULL);
}

/* The only rail that reaches the memory goes down: the bytes are staged over the other. */
static void rails__staged_instead(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	setenv("FAKE_VERBS_NO_DMABUF", "fake2", 1);
	rails_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "");
	batch = whole(&duo, WH_WRITE);
	want_rails(batch, true, false);
	nic_port(0, false);
	fill(&duo.ours, 31);
	want_rails(batch, false, true);
	want_true(holds(&duo.theirs, 31), "the bytes are wrong");
	want_way(batch, "rdma", "our GPU memory: staged (dmabuf: the NIC: Operation not supported",
		 NULL);
	nic_port(0, true);
	fill(&duo.ours, 32);
	want_rails(batch, true, false);
	want_true(holds(&duo.theirs, 32), "the bytes are wrong");
	want_way(batch, "rdma", "our GPU memory: dmabuf, ordered, fake2: not used", NULL);
	want(0, wh_batch_free(batch));
	duo_close(&duo);
}

/* One of two rails breaks in mid-batch: the other takes over its share. */
static void rail_broken(uint32_t op, const char *ways, uint32_t there)
{
	int64_t end = now() + 3 * PATIENCE;
	struct wh_batch *batch;
	struct duo duo;

	rails_open(&duo, WH_MEMORY_DEVICE, there, ways);
	batch = whole(&duo, op);
	want_rails(batch, true, true);
	duo_fill(&duo, op, 40 + op);
	nic_fail(2, 12, 0);
	/* A rail that was slow in the batch before, as under load, may get nothing of this one. */
	do {
		want(0, batch_run(batch));
		want_true(now() < end, "the rail that fails is never used:\n%s", explained(batch));
	} while (!strstr(explained(batch), "it broke: "));
	nic_fail(2, 0, 0);
	want_same(&duo, 40 + op);
	want_way(batch, "rdma", "it broke: ", NULL);
	want(0, wh_batch_free(batch));
	duo_close(&duo);
}

static void rails__break(void **state)
{
	(void)state;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		rail_broken(op, "", WH_MEMORY_DEVICE);
		rail_broken(op, "staged", WH_MEMORY_PAGEABLE);
	}
}

/* The only rail that reaches the memory breaks in mid-batch: its share is staged over the other. */
static void rails__break_the_only(void **state)
{
	struct wh_batch *batch;
	struct duo duo;
	uint64_t seed;

	(void)state;
	setenv("FAKE_VERBS_NO_DMABUF", "fake2", 1);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		rails_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "");
		batch = whole(&duo, op);
		want_rails(batch, true, false);
		duo_fill(&duo, op, 60 + op);
		nic_fail(0, 12, 1);
		want(0, batch_run(batch));
		nic_fail(0, 0, 0);
		want_same(&duo, 60 + op);
		want_by(batch, "rdma", LENGTH);
		want_explained(batch, "it broke: ");
		fill(&duo.ours, 70);
		want_rails(batch, true, false);
		seed = op == WH_WRITE ? 70 : 60 + op;
		want_same(&duo, seed);
		want(0, wh_batch_free(batch));
		duo_close(&duo);
	}
}

/* A slow rail leaves the last part to a fast one, but only if the fast one reaches the memory. */
static void rails__slow_alone(void **state)
{
	struct wh_transfer host = { .length = LENGTH, .op = WH_WRITE };
	unsigned char *pages = pages_new(LENGTH);
	struct wh_region *region;
	struct wh_batch *both, *one;
	struct duo duo;

	(void)state;
	setenv("FAKE_VERBS_NO_DMABUF", "fake2", 1);
	rails_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "");
	want(0, wh_region_register(duo.ours.engine, pages, LENGTH, NULL, &region));
	host.local = region;
	host.remote = duo.remote.id;
	want(0, wh_batch_new(duo.peer, NULL, &both));
	want(0, wh_batch_add(both, &host, 1));
	one = whole(&duo, WH_WRITE);
	want_rails(one, true, false);
	fill(&duo.ours, 80);
	nic_speed(0, 300);
	want_rails(both, true, true); /* the rails' speeds are known now */
	want(0, batch_run(one));
	nic_speed(0, 0);
	want_true(holds(&duo.theirs, 80), "the bytes are wrong");
	want_way(one, "rdma", "our GPU memory: dmabuf", NULL);
	want(0, wh_batch_free(both));
	want(0, wh_batch_free(one));
	want(0, wh_region_unregister(region));
	pages_free(pages, LENGTH);
	duo_close(&duo);
}

/* Scattered bytes in our GPU memory are gathered, across the keys of both sides, and scattered
 * again. */
static void rails__gathered(void **state)
{
	enum { COUNT = 4000, EACH = 300, STEP = 700 };
	static struct wh_transfer parts[COUNT];
	unsigned char *image = malloc(LENGTH), *packed = malloc(COUNT * EACH);
	uint64_t before, after;
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	assert_true(image && packed);
	setenv("FAKE_VERBS_MR", "65536", 1);
	rails_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "");
	batch = whole(&duo, WH_WRITE);
	want_rails(batch, true, true);
	want(0, wh_batch_free(batch));
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		for (unsigned int i = 0; i < COUNT; i++)
			parts[i] = (struct wh_transfer){ .local = duo.ours.region,
							 .remote = duo.remote.id,
							 .local_offset = (uint64_t)i * STEP,
							 .remote_offset = (uint64_t)i * EACH,
							 .length = EACH,
							 .op = op };
		want(0, wh_batch_new(duo.peer, NULL, &batch));
		want(0, wh_batch_add(batch, parts, COUNT));
		duo_fill(&duo, op, 50 + op);
		before = nics_counts().requests;
		want(0, batch_run(batch));
		after = nics_counts().requests;
		bytes_get(image, duo.ours.start, LENGTH, duo.ours.kind);
		bytes_get(packed, duo.theirs.start, COUNT * EACH, duo.theirs.kind);
		for (unsigned int i = 0; i < COUNT; i++)
			want_true(
				!memcmp(image + (size_t)i * STEP, packed + (size_t)i * EACH, EACH),
				"block %u is wrong", i);
		want_true(after - before < COUNT / 3, "%llu requests for %u blocks",
			  (unsigned long long)(after - before), COUNT);
		want(0, wh_batch_free(batch));
	}
	duo_close(&duo);
	free(image);
	free(packed);
}

static const struct CMUnitTest tests[] = {
	ON_FAKES(shared__export),        ON_FAKES(rails__dma_buf),        ON_FAKES(rails__staged),
	ON_FAKES(rails__one_without),    ON_FAKES(rails__staged_instead), ON_FAKES(rails__break),
	ON_FAKES(rails__break_the_only), ON_FAKES(rails__slow_alone),     ON_FAKES(rails__gathered),
};

HARNESS_MAIN("rdma-gpu-rails", tests)
