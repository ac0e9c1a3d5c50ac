/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-gpu.c: GPU memory over one NIC
 *
 * By dma-buf, by address (peermem) or staged, and what the explanation says of each; refusals, also
 * in mid-registration; memory that is freed; writes that have to be flushed. Two engines of this
 * process, on the fake CUDA driver and the fake libibverbs. */
#include "lib/duo.h"

/* ---- ways ------------------------------------------------------------------------------------ */

/* A NIC like mlx5. */
static void way__dma_buf(void **state)
{
	struct nics_registered before = nics_registered(), after;

	(void)state;
	expect(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "", "rdma", "our GPU memory: dmabuf, ordered",
	       "their GPU memory: dmabuf, ordered");
	after = nics_registered();
	want_true(after.all - before.all == 2 && after.dma_bufs - before.dma_bufs == 2,
		  "%llu registrations, %llu of dma-bufs",
		  (unsigned long long)(after.all - before.all),
		  (unsigned long long)(after.dma_bufs - before.dma_bufs));
}

/* A NIC without dma-buf, on a host with the module nvidia-peermem. */
static void way__peermem(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	setenv("FAKE_VERBS_PEERMEM", "1", 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_VMM, "", "rdma",
	       "our GPU memory: peermem, ordered (dmabuf: the NIC: Operation not supported)",
	       "their GPU memory: peermem");
}

/* The NIC's driver has the call and refuses this memory. */
static void way__peermem_instead(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_REGISTER", "22", 1);
	setenv("FAKE_VERBS_PEERMEM", "1", 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "", "rdma",
	       "our GPU memory: peermem, ordered (dmabuf: Invalid argument)", NULL);
}

/* A host without the module, and a NIC without dma-buf. */
static void way__staged(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "", "rdma", "our GPU memory: staged (dmabuf: ",
	       "peermem: Bad address (modprobe nvidia-peermem)");
}

static void way__staged_to_registered(void **state)
{
	const char *ours[] = { "transports=rdma,tcp", "rdma=fake0", "rdma_gpu=staged", PATIENT,
			       NULL };
	struct duo duo = { 0 };

	(void)state;
	side_open(&duo.theirs, WH_MEMORY_DEVICE, "target", "127.0.0.1:0",
		  (const char *[]){ "rdma=fake1", PATIENT, NULL });
	side_open(&duo.ours, WH_MEMORY_MANAGED, "mine", "none", ours);
	duo_connect(&duo);
	exchange(&duo, "rdma", "our GPU memory: staged", "their GPU memory: dmabuf");
	duo_close(&duo);
}

/* The owner's setting rdma_gpu does not allow staging: tcp moves the bytes. */
static void way__owner_refuses(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	expect(WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "dmabuf,peermem", "tcp",
	       "does not reach memory of cuda:0", "modprobe nvidia-peermem");
}

static void way__none_left(void **state)
{
	(void)state;
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "peermem", "tcp",
	       "does not reach memory of cuda:0", "peermem: Bad address");
}

static void way__unknown(void **state)
{
	(void)state;
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "dma-buf", "tcp",
	       "known are dmabuf, peermem and staged", NULL);
}

/* One region has many keys. */
static void way__many_keys(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_MR", "65536", 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_POOL, "", "rdma", "our GPU memory: dmabuf",
	       "their GPU memory: dmabuf");
}

/* ---- what is shared -------------------------------------------------------------------------- */

static void shared__by_rights(void **state)
{
	struct wh_region_options readable = { .size = sizeof(readable), .access = WH_ACCESS_READ };
	struct wh_region_options same = { .size = sizeof(same), .access = ACCESS_BOTH };
	struct wh_region *second, *third;
	struct nics_registered before, after;
	struct wh_transfer parts[2];
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	duo_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "");
	want(0, wh_region_register(duo.ours.engine, duo.ours.start, LENGTH, &same, &second));
	want(0, wh_region_register(duo.ours.engine, duo.ours.start, LENGTH, &readable, &third));
	exchange(&duo, "rdma", "dmabuf", NULL);
	before = nics_registered();
	for (unsigned int i = 0; i < 2; i++)
		parts[i] = (struct wh_transfer){ .local = i ? third : second,
						 .remote = duo.remote.id,
						 .length = 5000,
						 .remote_offset = i * 5000,
						 .op = WH_WRITE };
	want(0, wh_batch_new(duo.peer, NULL, &batch));
	want(0, wh_batch_add(batch, parts, 2));
	want(0, batch_run(batch));
	after = nics_registered();
	want_true(after.all - before.all == 1, "%llu registrations for one more set of rights",
		  (unsigned long long)(after.all - before.all));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(second));
	exchange(&duo, "rdma", "dmabuf", NULL);
	want(0, wh_region_unregister(third));
	duo_close(&duo);
}

/* ---- relaxed ordering ------------------------------------------------------------------------ */

static uint64_t relaxed(const char *value)
{
	struct nics_registered before = nics_registered(), after;

	setenv("WHERRY_RDMA_RELAXED", value, 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "", "rdma", "dmabuf", NULL);
	unsetenv("WHERRY_RDMA_RELAXED");
	after = nics_registered();
	want_true(after.all - before.all == 2, "%llu registrations",
		  (unsigned long long)(after.all - before.all));
	return after.relaxed - before.relaxed;
}

static void relaxed__as_the_knob_says(void **state)
{
	(void)state;
	want(2, relaxed("1"));
	want(0, relaxed("0"));
}

/* ---- refused, failed, freed ------------------------------------------------------------------ */

/* The third of many keys is refused: the first two are released, and the next way is used. */
static void refused__in_the_middle(void **state)
{
	struct wh_batch_options by = { .size = sizeof(by), .require = "rdma" };
	struct wh_transfer first = { .length = 64, .op = WH_READ };
	int before = nics_open();
	unsigned char host[4096];
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	setenv("FAKE_VERBS_MR", "1048576", 1);
	duo_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "dmabuf,staged");
	/* So that the owner's region is registered, and ours, of four keys, comes next. */
	want(0, wh_region_register(duo.ours.engine, host, sizeof(host), NULL, &first.local));
	first.remote = duo.remote.id;
	want(0, wh_batch_new(duo.peer, &by, &batch));
	want(0, wh_batch_add(batch, &first, 1));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(first.local));
	nics_refuse(ENOMEM, 2);
	exchange(&duo, "rdma", "our GPU memory: staged (dmabuf: Cannot allocate memory)", NULL);
	duo_close(&duo);
	want(before, nics_open());
}

/* The connection breaks while a slot is in flight: tcp moves all bytes. */
static void staged__broken(void **state)
{
	struct duo duo;

	(void)state;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		duo_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "staged");
		expect_tcp_after_break(&duo, op, "staged", 7);
		duo_close(&duo);
	}
}

static void staged__cancelled(void **state)
{
	(void)state;
	expect_cancelled(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "staged");
}

/* The owner is killed while slots are in flight. */
static void staged__peer_killed(void **state)
{
	static const struct route to = { .name = "rdma",
					 .require = "rdma",
					 .listen = "127.0.0.1:0",
					 .kind = WH_MEMORY_PAGEABLE };
	const char *const config[] = { "rdma_gpu=staged", PATIENT, NULL };
	struct wh_memory_options options = { .size = sizeof(options), .kind = WH_MEMORY_DEVICE };
	struct wh_region *region;
	struct wh_transfer all;
	struct wh_batch *batch;
	struct fixture f;
	void *memory;

	(void)state;
	fixture_open_with(&f, &to, LENGTH, config, NULL);
	want(0, wh_memory_alloc(f.engine, LENGTH, &options, &memory));
	want(0, wh_region_register(f.engine, memory, LENGTH, NULL, &region));
	all = (struct wh_transfer){
		.local = region, .remote = f.remote.id, .length = LENGTH, .op = WH_WRITE
	};
	batch = batch_of(&f, &all, 1);
	want(0, batch_run(batch));
	nics_hold(true);
	want(0, wh_batch_submit(batch));
	child_kill(f.child);
	want_true(batch_end(batch, 2 * PATIENCE) < 0, "it was done without its owner");
	nics_hold(false);
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(region));
	want(0, wh_memory_free(f.engine, memory));
	fixture_close_initiator(&f);
}

/* Our memory is freed: the batch fails before a byte moves, whether it is planned anew or not. */
static void freed__ours(void **state)
{
	static const char *const ways[] = { "dmabuf", "staged" };
	struct wh_transfer part;
	struct wh_region *region;
	struct wh_batch *batch;
	struct duo duo;
	uint64_t memory;

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_PAGEABLE, ways[i]);
		gpu_enter(0);
		want(0, CU(cuMemAlloc_v2, (uint64_t *, size_t), &memory, MIB));
		want(0, wh_region_register(duo.ours.engine, (void *)(uintptr_t)memory, MIB, NULL,
					   &region));
		part = (struct wh_transfer){
			.local = region, .remote = duo.remote.id, .length = MIB, .op = WH_WRITE
		};
		want(0, wh_batch_new(duo.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &part, 1));
		want(0, batch_run(batch));
		want(0, CU(cuMemFree_v2, (uint64_t), memory));
		want(-ESTALE, batch_run(batch));
		want_true(strstr(wh_batch_error_text(batch), "was freed"), "%s",
			  wh_batch_error_text(batch));
		want(0, wh_batch_free(batch));
		want(0, wh_batch_new(duo.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &part, 1));
		want(-ESTALE, batch_run(batch));
		want(0, wh_batch_free(batch));
		want(0, wh_region_unregister(region));
		gpu_leave();
		duo_close(&duo);
	}
}

/* The owner's memory is freed: the owner gives no keys for it. */
static void freed__theirs(void **state)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "short-lived",
					   .access = ACCESS_BOTH };
	struct wh_transfer part;
	struct wh_remote remote;
	struct wh_region *region;
	struct wh_batch *batch;
	struct duo duo;
	uint64_t memory;

	(void)state;
	duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_PAGEABLE, "");
	gpu_enter(0);
	want(0, CU(cuMemAlloc_v2, (uint64_t *, size_t), &memory, MIB));
	want(0, wh_region_register(duo.theirs.engine, (void *)(uintptr_t)memory, MIB, &named,
				   &region));
	want(0, wh_peer_find(duo.peer, "short-lived", PATIENCE, &remote));
	want(0, CU(cuMemFree_v2, (uint64_t), memory));
	part = (struct wh_transfer){
		.local = duo.ours.region, .remote = remote.id, .length = MIB, .op = WH_WRITE
	};
	want(0, wh_batch_new(duo.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &part, 1));
	want(-ESTALE, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(region));
	gpu_leave();
	duo_close(&duo);
}

/* ---- other GPUs: of a child, whose driver reads the environment itself ----------------------- */

static const struct route into_gpu = {
	.name = "rdma", .listen = "127.0.0.1:0", .detail = "", .kind = WH_MEMORY_DEVICE
};

/* Write into the memory of a child whose driver has these attributes and this fault. Returns the
 * status. */
static int write_to(const char *attributes, const char *failing, const char *word, char text[2048])
{
	const char *const config[] = { "transports=rdma,tcp", PATIENT, NULL };
	struct wh_transfer all;
	struct wh_batch *batch;
	struct fixture f;
	int status;

	setenv("FAKE_CUDA_ATTRIBUTES", attributes, 1);
	if (failing)
		setenv("FAKE_CUDA_FAIL", failing, 1);
	fixture_open_with(&f, &into_gpu, MIB, config, NULL);
	unsetenv("FAKE_CUDA_FAIL");
	unsetenv("FAKE_CUDA_ATTRIBUTES");
	pattern_fill(f.local, MIB, 0, 3);
	all = transfer_of(&f, WH_WRITE, 0, 0, MIB);
	do {
		batch = batch_of(&f, &all, 1);
		status = batch_run(batch);
		wh_batch_explain(batch, text, 2048);
		if (strstr(text, "still being"))
			want(0, wh_batch_free(batch));
	} while (strstr(text, "still being"));
	want_true(status || target_check(&f, 0, MIB, 0, 3) == PATTERN_GOOD, "the bytes are wrong");
	want_true(strstr(status ? wh_batch_error_text(batch) : text, word), "no \"%s\": %s\n%s",
		  word, wh_batch_error_text(batch), text);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	return status;
}

/* The owner's flush ends a write: if it fails, so does the write. */
static void flush__theirs(void **state)
{
	char text[2048];

	(void)state;
	want(0, write_to("118=0", NULL, "their GPU memory: dmabuf, flushed", text));
	want(-EIO, write_to("118=0", "cuFlushGPUDirectRDMAWrites:1:999", "could not flush", text));
	/* A GPU that orders the writes itself is not flushed. */
	want(0, write_to("118=100", "cuFlushGPUDirectRDMAWrites:1:999", "dmabuf, ordered", text));
}

static void flush__impossible(void **state)
{
	char text[2048];

	(void)state;
	want(0, write_to("118=0,117=0", NULL, "neither orders nor flushes", text));
}

static void driver__without_dma_buf(void **state)
{
	char text[2048];

	(void)state;
	want(0, write_to("124=0", NULL, "the GPU's driver has none", text));
}

/* The child reads into its own GPU memory, and flushes that. */
static int read_by(const char *failing, struct child_result *result)
{
	const struct child_options options = { .config = { "transports=rdma,tcp", "rdma=fake1",
							   PATIENT } };
	struct child_transfer read = { .remote = "target", .op = WH_READ, .length = LENGTH };
	struct side ours = { 0 };
	struct child *child;
	int memory, status;

	side_open(&ours, WH_MEMORY_PAGEABLE, "target", "127.0.0.1:0",
		  (const char *[]){ "transports=rdma,tcp", PATIENT, NULL });
	fill(&ours, 4);
	setenv("FAKE_CUDA_ATTRIBUTES", "118=0", 1);
	if (failing)
		setenv("FAKE_CUDA_FAIL", failing, 1);
	child = child_start(&options);
	unsetenv("FAKE_CUDA_FAIL");
	unsetenv("FAKE_CUDA_ATTRIBUTES");
	memory = child_memory(child, WH_MEMORY_DEVICE, LENGTH);
	read.region = child_region(child, memory, 0, LENGTH, NULL, ACCESS_BOTH, NULL);
	read.peer = child_peer(child, wh_engine_url(ours.engine), NULL);
	status = child_transfer(child, &read, result);
	want_true(status || child_check(child, memory, 0, LENGTH, 0, 4) == PATTERN_GOOD,
		  "the bytes are wrong");
	child_exit(child);
	side_close(&ours);
	return status;
}

static void flush__ours(void **state)
{
	struct child_result result;

	(void)state;
	want(0, read_by(NULL, &result));
	want_true(strstr(result.explain, "our GPU memory: dmabuf, flushed"), "%s", result.explain);
	want(-EIO, read_by("cuFlushGPUDirectRDMAWrites:1:999", &result));
	want_true(strstr(result.text, "cuFlushGPUDirectRDMAWrites"), "%s", result.text);
}

/* Memory of many mappings, which the driver exports one at a time; the region is in the middle. */
static void segmented(const char *way)
{
	const struct child_options options = { .listen = "127.0.0.1:0",
					       .config = { "rdma=fake1", PATIENT } };
	const uint64_t length = 5 * MIB + 1, offset = MIB + 4099;
	struct child *child = child_start(&options);
	int memory = child_memory(child, CHILD_SEGMENTED, 8 * MIB);
	struct side ours = { 0 };
	struct wh_transfer all;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct wh_region *region;
	struct wh_peer *peer;
	unsigned char *pages = pages_new(length);
	char text[2048];

	child_region(child, memory, offset, length, "target", ACCESS_BOTH, NULL);
	side_open(&ours, WH_MEMORY_PAGEABLE, "mine", "none", (const char *[]){ PATIENT, NULL });
	want(0, wh_region_register(ours.engine, pages, length, NULL, &region));
	pattern_fill(pages, length, 0, 6);
	want(0, wh_peer_open(ours.engine, child->url, NULL, &peer));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	all = (struct wh_transfer){
		.local = region, .remote = remote.id, .length = length, .op = WH_WRITE
	};
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_add(batch, &all, 1));
	setenv("WHERRY_REQUIRE", "rdma", 1);
	want(0, batch_run(batch));
	unsetenv("WHERRY_REQUIRE");
	wh_batch_explain(batch, text, sizeof(text));
	want_true(strstr(text, way), "not by %s:\n%s", way, text);
	want_true(child_check(child, memory, offset, length, 0, 6) == PATTERN_GOOD,
		  "the bytes are wrong");
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(region));
	side_close(&ours);
	pages_free(pages, length);
	child_exit(child);
}

static void segments__dma_buf(void **state)
{
	(void)state;
	setenv("WHERRY_TRANSPORTS", "rdma,tcp", 1);
	segmented("their GPU memory: dmabuf");
}

static void segments__peermem(void **state)
{
	(void)state;
	setenv("WHERRY_TRANSPORTS", "rdma,tcp", 1);
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	setenv("FAKE_VERBS_PEERMEM", "1", 1);
	segmented("their GPU memory: peermem");
}

static const struct CMUnitTest tests[] = {
	ON_FAKES(way__dma_buf),
	ON_FAKES(way__peermem),
	ON_FAKES(way__peermem_instead),
	ON_FAKES(way__staged),
	ON_FAKES(way__staged_to_registered),
	ON_FAKES(way__owner_refuses),
	ON_FAKES(way__none_left),
	ON_FAKES(way__unknown),
	ON_FAKES(way__many_keys),
	ON_FAKES(shared__by_rights),
	ON_FAKES(relaxed__as_the_knob_says),
	ON_FAKES(refused__in_the_middle),
	ON_FAKES(staged__broken),
	ON_FAKES(staged__cancelled),
	ON_FAKES(staged__peer_killed),
	ON_FAKES(freed__ours),
	ON_FAKES(freed__theirs),
	ON_FAKES(flush__theirs),
	ON_FAKES(flush__impossible),
	ON_FAKES(driver__without_dma_buf),
	ON_FAKES(flush__ours),
	ON_FAKES(segments__dma_buf),
	ON_FAKES(segments__peermem),
};

HARNESS_MAIN("rdma-gpu", tests)
