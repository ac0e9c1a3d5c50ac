/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu windows-too long */
/* gpu-faults.c: GPU memory that is freed or replaced, foreign contexts, driver calls that fail, and
 * lost GPUs */
#include "lib/gpu.h"

#define LENGTH (1 * MIB)

/* ---- memory freed under a region --------------------------------------- */

static uint64_t application_memory(size_t length)
{
	uint64_t address;

	gpu_enter(0);
	want(0, CU(cuMemAlloc_v2, (uint64_t *, size_t), &address, length));
	gpu_leave();
	return address;
}

static void application_free(uint64_t address)
{
	gpu_enter(0);
	want(0, CU(cuMemFree_v2, (uint64_t), address));
	gpu_leave();
}

/* On either side, before and after the batch is planned: memory under a region is freed, then
 * allocated again at the same address. */
static void memory__freed_and_reallocated(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < 8; i++) {
		bool again = i & 1, planned = i & 2, remote = i & 4;
		struct wh_region *region;
		struct wh_remote found;
		struct wh_transfer one = { .length = 4096, .op = WH_WRITE };
		struct wh_region_options named = { .size = sizeof(named),
						   .name = "freed",
						   .access = ACCESS_BOTH };
		struct wh_batch *batch;
		struct gpu_pair p;
		uint64_t address, second = 0;
		char number[32];

		gpu_pair_open(&p, WH_MEMORY_PINNED, NULL, WH_MEMORY_PINNED, NULL, LENGTH, false);
		gpu_enter(0); /* keeps the context alive */
		address = application_memory(LENGTH);
		snprintf(number, sizeof(number), "0x%llx", (unsigned long long)address);
		want(0, wh_region_register(p.engine, (void *)(uintptr_t)address, LENGTH, &named,
					   &region));
		want(0, wh_peer_find(p.peer, "freed", PATIENCE, &found));
		one.local = remote ? p.region : region;
		one.remote = remote ? found.id : p.remote.id;
		want(0, wh_batch_new(p.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &one, 1));
		if (planned)
			want(0, gpu_run(batch));
		application_free(address);
		if (again) {
			second = application_memory(LENGTH);
			want_true(second == address, "the fake did not use the address again");
		}
		want_text(-ESTALE, number, gpu_run(batch));
		want_true(strstr(wh_error_text(), again ? "allocated again" : "freed"), "%s",
			  wh_error_text());
		want(0, wh_batch_free(batch));
		want(0, wh_region_unregister(region));
		if (second)
			application_free(second);
		gpu_leave();
		gpu_pair_close(&p);
	}
}

static void memory__past_its_end(void **state)
{
	struct wh_region *region;
	struct gpu_pair p;
	uint64_t address;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, NULL, WH_MEMORY_PINNED, NULL, LENGTH, false);
	address = (uintptr_t)p.local;
	want_true(wh_region_register(p.engine, p.local, 64 * LENGTH, NULL, &region) < 0,
		  "a region of more than there is");
	want_true(wh_region_register(p.engine, (void *)(uintptr_t)(address - 4096), 8192, NULL,
				     &region) < 0,
		  "half of it is not memory");
	gpu_pair_close(&p);
}

/* ---- the application's contexts ---------------------------------------- */

struct foreign {
	void *context;
	uint64_t address;
	struct wh_region *region;
};

static void foreign_open(struct foreign *f, struct wh_engine *engine)
{
	want(0, CU(cuCtxCreate_v2, (void **, unsigned int, int), &f->context, 0, 0));
	want(0, CU(cuMemAlloc_v2, (uint64_t *, size_t), &f->address, LENGTH));
	want(0, CU(cuCtxPopCurrent_v2, (void **), &(void *){ NULL }));
	want(0,
	     wh_region_register(engine, (void *)(uintptr_t)f->address, LENGTH, NULL, &f->region));
}

static void contexts__of_the_application(void **state)
{
	struct wh_transfer one = { .length = LENGTH };
	struct foreign first, second;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct gpu_pair p;
	uint64_t offset;
	char text[512];

	(void)state;
	for (unsigned int round = 0; round < 2; round++) {
		gpu_pair_open(&p, WH_MEMORY_PINNED, NULL, WH_MEMORY_PINNED, NULL, LENGTH, false);
		foreign_open(&first, p.engine);
		foreign_open(&second, p.engine);
		gpu_pair_fill(&p, 3);
		want(0, wh_batch_new(p.peer, NULL, &batch));
		/* From our region to the first context's, from there to the second's, from there to
		 * the target. */
		one.op = WH_READ;
		one.local = first.region;
		want(0, wh_peer_lookup(p.peer, (uintptr_t)p.local, LENGTH, WH_ANSWER, &remote,
				       &offset));
		one.remote = remote.id;
		want(0, wh_batch_add(batch, &one, 1));
		want(0, gpu_run(batch));
		want(0, wh_batch_clear(batch));
		one.op = WH_WRITE;
		one.remote = wh_region_id(second.region);
		want(0, wh_batch_add(batch, &one, 1));
		want(0, gpu_run(batch));
		want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
		want_true(strstr(text, "staged") && strstr(text, "contexts"), "%s", text);
		want(0, wh_batch_clear(batch));
		one.local = second.region;
		one.remote = p.remote.id;
		want(0, wh_batch_add(batch, &one, 1));
		want(0, gpu_run(batch));
		want_true(gpu_pair_copied(&p, 3), "the bytes are wrong");
		/* The context is destroyed before its region and before the engine. */
		want(0, CU(cuCtxDestroy_v2, (void *), second.context));
		want(-ESTALE, gpu_run(batch));
		want(0, wh_batch_free(batch));
		want(0, wh_region_unregister(second.region));
		want(0, wh_region_unregister(first.region));
		if (round)
			want(0, CU(cuCtxDestroy_v2, (void *), first.context));
		gpu_pair_close(&p);
		if (!round)
			want(0, CU(cuCtxDestroy_v2, (void *), first.context));
	}
}

/* Every call leaves the thread's current context and capture mode as they were. */
static void contexts__left_alone(void **state)
{
	void *context, *seen;
	struct wh_batch *batch;
	struct gpu_pair p;
	int mode = 1;

	(void)state;
	want(0, CU(cuInit, (unsigned int), 0));
	want(0, CU(cuCtxCreate_v2, (void **, unsigned int, int), &context, 0, 0));
	want(0, CU(cuThreadExchangeStreamCaptureMode, (int *), &mode));
#define STILL(call)                                                                                \
	do {                                                                                       \
		int still_ = 1;                                                                    \
		call;                                                                              \
		want(0, CU(cuCtxGetCurrent, (void **), &seen));                                    \
		want_true(seen == context, "another context after " #call);                        \
		want(0, CU(cuThreadExchangeStreamCaptureMode, (int *), &still_));                  \
		want(1, still_);                                                                   \
	} while (0)
	for (unsigned int i = 0; i < 3; i++) {
		uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_MANAGED, WH_MEMORY_PAGEABLE };

		STILL(gpu_pair_open(&p, kinds[i], NULL, WH_MEMORY_VMM, "cuda:1", LENGTH, false));
		batch = gpu_pair_batch(&p, WH_WRITE);
		STILL(want(0, wh_batch_submit(batch)));
		STILL(want(0, batch_end(batch, PATIENCE)));
		STILL(wh_batch_explain(batch, NULL, 0));
		fake_fail("cuMemcpyAsync", 1, 1);
		fake_fail("cuLaunchKernel", 1, 1);
		STILL(gpu_run(batch));
		fake_heal();
		STILL(wh_batch_cancel(batch));
		STILL(want(0, wh_batch_free(batch)));
		STILL(gpu_pair_close(&p));
	}
	mode = 0;
	want(0, CU(cuThreadExchangeStreamCaptureMode, (int *), &mode));
	want(0, CU(cuCtxDestroy_v2, (void *), context));
}

/* ---- calls that fail --------------------------------------------------- */

static const char *const driver_calls[] = {
	"cuCtxPushCurrent_v2",
	"cuMemAlloc_v2",
	"cuMemAllocAsync",
	"cuMemHostAlloc",
	"cuMemHostGetDevicePointer_v2",
	"cuMemHostRegister_v2",
	"cuModuleLoadDataEx",
	"cuModuleGetFunction",
	"cuStreamCreateWithPriority",
	"cuMemsetD8Async",
	"cuMemcpyAsync",
	"cuMemcpyHtoDAsync_v2",
	"cuLaunchKernel",
	"cuStreamWriteValue32_v2",
	"cuPointerGetAttribute",
	"cuCtxEnablePeerAccess",
	"cuMemGetAccess",
	"cuMemImportFromShareableHandle",
	"cuMemAddressReserve",
	"cuMemMap",
	"cuMemSetAccess",
	"cuIpcOpenMemHandle_v2",
	"cuDeviceGetUuid_v2",
};

/* A batch with one blocks descriptor and some transfers of different lengths. */
static struct wh_batch *big_batch(struct gpu_pair *p)
{
	enum { COUNT = 600 };
	uint64_t offsets[COUNT];
	struct wh_base base = { .local = p->region, .remote = p->remote.id };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_WRITE,
				       .block_length = 512,
				       .count = COUNT,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = offsets,
				       .remote_offsets = offsets };
	struct wh_transfer t[4] = { 0 };
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	for (uint64_t i = 0; i < COUNT; i++)
		offsets[i] = i * 512;
	for (uint64_t i = 0; i < 4; i++)
		t[i] = (struct wh_transfer){ .local = p->region,
					     .local_offset = 512 * COUNT + 4096 * i,
					     .remote = p->remote.id,
					     .remote_offset = 512 * COUNT + 4096 * i,
					     .length = 4096 - i,
					     .op = WH_WRITE };
	want(0, wh_batch_new(p->peer, NULL, &batch));
	want(0, wh_blocks_new(p->peer, &desc, &blocks));
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	want(0, wh_batch_add(batch, t, 4));
	return batch;
}

/* Make the nth call of this function fail once, and run a batch. True: the call was reached. */
static bool one_fault(const char *call, unsigned int nth, int error, uint32_t here, uint32_t there,
		      bool apart)
{
	uint64_t before;
	struct wh_batch *batch;
	struct gpu_pair p;
	bool struck;
	int status;

	gpu_pair_open(&p, here, bytes_on_gpu(here) ? "cuda:0" : NULL, there,
		      bytes_on_gpu(there) ? "cuda:1" : NULL, LENGTH, apart);
	gpu_pair_fill(&p, 5);
	batch = big_batch(&p);
	before = fake_calls(call);
	fake_fail(call, nth, error);
	status = gpu_run(batch);
	struck = fake_calls(call) - before >= nth;
	if (status) {
		const char *text = wh_error_text();

		want_true(status != -EAGAIN, "%s number %u: it hangs", call, nth);
		want_true(strstr(text, "CUDA_"), "%s number %u: %s: %s", call, nth,
			  strerrorname_np(-status), text);
		want_true(strstr(text, "cuda:") || strstr(text, "0x"),
			  "%s number %u names no device and no address: %s", call, nth, text);
	}
	fake_heal();
	/* Run it again: it succeeds or fails, and never hangs. */
	status = gpu_run(batch);
	want_true(status != -EAGAIN, "%s number %u: it hangs afterwards", call, nth);
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
	return struck;
}

static void every_call(uint32_t here, uint32_t there, bool apart)
{
	unsigned int calls = sizeof(driver_calls) / sizeof(driver_calls[0]), maps;
	size_t before[2];

	harness_limit(110);
	/* Create first what the engine creates once and keeps. */
	one_fault("cuMemcpyAsync", 1000, 1, here, there, apart);
	for (int d = 0; d < 2; d++)
		before[d] = gpu_free_memory(d);
	maps = count_maps(MAPS_ALL);
	for (unsigned int i = 0; i < calls; i++)
		for (unsigned int nth = 1; nth <= SCALE(4, 1); nth++)
			if (!one_fault(driver_calls[i], nth, nth % 2 ? 2 : 999, here, there, apart))
				break;
	for (int d = 0; d < 2; d++)
		want(before[d], gpu_free_memory(d));
	want_true(HARNESS_SLOW || count_maps(MAPS_ALL) < maps + 100, "%u mappings before, %u now",
		  maps, count_maps(MAPS_ALL));
}

static void calls__device_to_pageable(void **state)
{
	(void)state;
	every_call(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, false);
}

static void calls__staged(void **state)
{
	(void)state;
	every_call(WH_MEMORY_MANAGED, WH_MEMORY_DEVICE, false);
}

static void calls__to_another_process(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM, WH_MEMORY_SHARED };

	(void)state;
	harness_limit(110);
	for (unsigned int k = 0; k < 3; k++) {
		size_t before[2] = { 0 };

		for (unsigned int i = 0; i < sizeof(driver_calls) / sizeof(driver_calls[0]); i++) {
			one_fault(driver_calls[i], 1, 999, WH_MEMORY_DEVICE, kinds[k], true);
			for (int d = 0; d < 2; d++) {
				size_t free = gpu_free_memory(d);

				if (before[d])
					want(before[d], free);
				before[d] = free;
			}
		}
	}
}

/* ---- GPU failures ------------------------------------------------------ */

static void lost__while_batches_run(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < 4; i++) {
		struct wh_batch *batches[4];
		struct gpu_pair p;
		int64_t before;
		int status;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0",
			      i & 1 ? WH_MEMORY_DEVICE : WH_MEMORY_PINNED, i & 1 ? "cuda:1" : NULL,
			      LENGTH, false);
		for (unsigned int b = 0; b < 4; b++)
			batches[b] = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batches[0]));
		/* Pool memory whose free is still pending would never be freed. */
		gpu_enter(0);
		want(0, ((int (*)(void))gpu_symbol("cuCtxSynchronize"))());
		gpu_leave();
		fake_delay(20000);
		for (unsigned int b = 0; b < 4; b++)
			want(0, wh_batch_submit(batches[b]));
		((void (*)(int, int, unsigned int))gpu_symbol("fake_cuda_lose"))(0, 999, i & 2);
		before = quiet_now();
		for (unsigned int b = 0; b < 4; b++) {
			status = batch_end(batches[b], PATIENCE);
			want_true(!status || status == -EIO, "%s: %s", strerrorname_np(-status),
				  wh_error_text());
			want_true(b < 3 || status, "the last one is done by a GPU that is lost");
		}
		want_true(strstr(wh_error_text(), "cuda:0"), "%s", wh_error_text());
		want_true(quiet_now() - before < SCALE(3, 10) * SECOND, "it took %lld ms",
			  (long long)((quiet_now() - before) / MS));
		want_true(strstr(wh_error_text(), "until the process is started anew"), "%s",
			  wh_error_text());
		/* Later batches are refused. */
		want(-EIO, gpu_run(batches[0]));
		for (unsigned int b = 0; b < 4; b++)
			want(0, wh_batch_free(batches[b]));
		want(0, wh_peer_close(p.peer));
		want(0, wh_region_unregister(p.region));
		want(0, wh_region_unregister(p.target_region));
		want(-EIO, wh_memory_free(p.engine, p.local));
		wh_memory_free(p.engine, p.target);
		want(0, wh_engine_close(p.engine));
		fake_heal();
	}
}

/* The first call that fails is one that submits, and the error says what that means. */
static void lost__while_submitting(void **state)
{
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_PINNED, NULL, LENGTH, false);
	batch = gpu_pair_batch(&p, WH_WRITE);
	want(0, gpu_run(batch));
	fake_fail("cuMemcpyAsync|cuLaunchKernel", 0, 999);
	fake_fail("cuStreamWriteValue32_v2", 0, 999);
	for (int i = 0; i < 2; i++) {
		want(-EIO, gpu_run(batch));
		want_true(strstr(wh_error_text(), "cuMemcpyAsync") ||
				  strstr(wh_error_text(), "cuLaunchKernel"),
			  "%s", wh_error_text());
		want_true(strstr(wh_error_text(), "until the process is started anew"), "%s",
			  wh_error_text());
	}
	fake_heal();
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

/* ---- host memory shared by several regions ----------------------------- */

/* The first region page-locks pages that the second one shares. */
static void pinned__overlapping_regions(void **state)
{
	struct wh_transfer one = { .length = 8192, .op = WH_WRITE };
	struct wh_region *inner;
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		gpu_pair_open(&p, WH_MEMORY_PAGEABLE, NULL, WH_MEMORY_DEVICE, NULL, LENGTH, false);
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batch));
		want(0, wh_region_register(p.engine, p.local + 4096, 8192, NULL, &inner));
		want(0, wh_batch_clear(batch));
		one.local = inner;
		one.remote = p.remote.id;
		want(0, wh_batch_add(batch, &one, 1));
		if (i)
			want(0, gpu_run(batch));
		want(0, wh_region_unregister(p.region));
		want(0, gpu_run(batch));
		want(0, wh_batch_free(batch));
		want(0, wh_region_unregister(inner));
		want(0, wh_region_register(p.engine, p.local, LENGTH, NULL, &p.region));
		gpu_pair_close(&p);
	}
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(memory__freed_and_reallocated, needs_fake),
	TEST_NEEDS(memory__past_its_end, needs_fake),
	TEST_NEEDS(contexts__of_the_application, needs_fake),
	TEST_NEEDS(contexts__left_alone, needs_fake),
	TEST_NEEDS(calls__device_to_pageable, needs_fake),
	TEST_NEEDS(calls__staged, needs_fake),
	TEST_NEEDS(calls__to_another_process, needs_fake),
	TEST_NEEDS(lost__while_batches_run, needs_fake),
	TEST_NEEDS(lost__while_submitting, needs_fake),
	TEST_NEEDS(pinned__overlapping_regions, needs_fake),
};

int main(int argc, char **argv)
{
	setenv("FAKE_CUDA_REUSE", "1", 1); /* read at the first call */
	return harness_main(argc, argv, "gpu-faults", tests, sizeof(tests) / sizeof(*tests));
}
