/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-faults.c: GPU memory that is freed or replaced, GPUs and peers that fail, and driver calls
 * that fail */
#include "lib/gpu.h"
#include "lib/proxy.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>

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
		struct wh_region_options named = { .size = sizeof(named), .name = "freed" };
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
	uint64_t cursor = 0;
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
		cursor = 0;
		while (!wh_peer_next(p.peer, &cursor, &remote))
			if (remote.address == (uintptr_t)p.local)
				break;
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
		STILL(want(0, wh_batch_wait(batch, PATIENCE)));
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
static struct wh_batch *much(struct gpu_pair *p)
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
	want(0, wh_blocks_prepare(p->peer, &desc, &blocks));
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
	batch = much(&p);
	before = fake_calls(call);
	fake_fail(call, nth, error);
	status = gpu_run(batch);
	struck = fake_calls(call) - before >= nth;
	if (status) {
		const char *text = wh_error_text();

		want_true(status != -ETIMEDOUT, "%s number %u: it hangs", call, nth);
		want_true(strstr(text, "CUDA_"), "%s number %u: %s: %s", call, nth,
			  strerrorname_np(-status), text);
		want_true(strstr(text, "cuda:") || strstr(text, "0x"),
			  "%s number %u names no device and no address: %s", call, nth, text);
	}
	fake_heal();
	/* Run it again: it succeeds or fails, and never hangs. */
	status = gpu_run(batch);
	want_true(status != -ETIMEDOUT, "%s number %u: it hangs afterwards", call, nth);
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
	maps = count_maps();
	for (unsigned int i = 0; i < calls; i++)
		for (unsigned int nth = 1; nth <= SCALE(4, 1); nth++)
			if (!one_fault(driver_calls[i], nth, nth % 2 ? 2 : 999, here, there, apart))
				break;
	for (int d = 0; d < 2; d++)
		want(before[d], gpu_free_memory(d));
	want_true(HARNESS_SLOW || count_maps() < maps + 100, "%u mappings before, %u now", maps,
		  count_maps());
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
		((void (*)(unsigned int))gpu_symbol("fake_cuda_delay"))(20000);
		for (unsigned int b = 0; b < 4; b++)
			want(0, wh_batch_submit(batches[b]));
		((void (*)(int, int, unsigned int))gpu_symbol("fake_cuda_lose"))(0, 999, i & 2);
		before = quiet_now();
		for (unsigned int b = 0; b < 4; b++) {
			status = wh_batch_wait(batches[b], PATIENCE);
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

/* ---- peer failures ----------------------------------------------------- */

static void peer__killed(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM, WH_MEMORY_SHARED };

	(void)state;
	for (unsigned int i = 0; i < 6; i++) {
		size_t before[2] = { gpu_free_memory(0), gpu_free_memory(1) };
		struct wh_batch *batch;
		struct gpu_pair p;
		int status;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[i % 3],
			      i % 3 == 2 ? NULL : "cuda:1", LENGTH, true);
		batch = gpu_pair_batch(&p, i % 2 ? WH_WRITE : WH_READ);
		want(0, gpu_run(batch));
		if (i < 3) {
			((void (*)(unsigned int))gpu_symbol("fake_cuda_delay"))(50000);
			want(0, wh_batch_submit(batch));
		}
		child_kill(p.child);
		p.child = NULL;
		if (i < 3)
			want(-ECONNRESET, wh_batch_wait(batch, PATIENCE));
		fake_heal();
		status = gpu_run(batch);
		want_true(status == -ECONNRESET, "%s: %s", strerrorname_np(-status),
			  wh_error_text());
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
		want(before[0], gpu_free_memory(0));
		want(before[1], gpu_free_memory(1));
	}
}

/* Another process takes the same port, with memory at the dead one's addresses. */
static void peer__restarted(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		struct child_options options = { 0 };
		int64_t end = now() + PATIENCE;
		struct wh_batch *batch;
		struct wh_peer *old;
		struct gpu_pair p;
		char address[96];
		int status;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[i], "cuda:1", LENGTH, true);
		snprintf(address, sizeof(address), "%s", p.child->url + strlen("wherry://"));
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batch));
		child_kill(p.child);
		options.listen = address;
		p.child = child_start(&options);
		p.memory = child_memory_at(p.child, kinds[i], LENGTH, "cuda:1");
		p.child_region = child_region(p.child, p.memory, 0, LENGTH, "target", 0, NULL);
		child_fill(p.child, p.memory, 0, LENGTH, 0, 99);
		while ((status = gpu_run(batch)) != -ESTALE && now() < end) {
			want_true(status < 0, "the batch for the dead one came to an end");
			sleep_ms(2);
		}
		want(-ESTALE, status);
		want(PATTERN_GOOD, child_check(p.child, p.memory, 0, LENGTH, 0, 99));
		want(0, wh_batch_free(batch));
		old = p.peer;
		want(0, wh_peer_open(p.engine, p.child->url, NULL, &p.peer));
		want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
		gpu_pair_fill(&p, 5);
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batch));
		want_true(gpu_pair_copied(&p, 5), "it is wrong");
		want(0, wh_batch_free(batch));
		want(0, wh_peer_close(old));
		gpu_pair_close(&p);
	}
}

/* The peer is stopped: mapped memory is still reached, and other memory is refused quickly. */
static void peer__stopped(void **state)
{
	struct wh_batch *batch, *second;
	struct wh_batch_options only = { .size = sizeof(only), .require = "cuda" };
	struct wh_transfer one = { .length = 4096, .op = WH_WRITE };
	struct wh_remote remote;
	struct gpu_pair p;
	int64_t before;
	int memory;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_VMM, "cuda:1", LENGTH, true);
	memory = child_memory_at(p.child, WH_MEMORY_DEVICE, LENGTH, "cuda:0");
	child_region(p.child, memory, 0, LENGTH, "second", 0, NULL);
	want(0, wh_peer_find(p.peer, "second", PATIENCE, &remote));
	batch = gpu_pair_batch(&p, WH_WRITE);
	gpu_pair_fill(&p, 8);
	want(0, gpu_run(batch));
	child_stop(p.child);
	want(0, gpu_run(batch));
	want(0, wh_batch_new(p.peer, &only, &second));
	one.local = p.region;
	one.remote = remote.id;
	want(0, wh_batch_add(second, &one, 1));
	before = quiet_now();
	want_text(-EOPNOTSUPP, "no answer within", wh_batch_submit(second));
	want_true(quiet_now() - before < SCALE(4, 10) * SECOND, "it took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	child_continue(p.child);
	want_true(gpu_pair_copied(&p, 8), "it is wrong");
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(second));
	gpu_pair_close(&p);
}

/* Unregistering waits until we have unmapped the memory; the owner may then free it. */
static void peer__takes_its_memory_back(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };

	(void)state;
	for (unsigned int i = 0; i < 4; i++) {
		struct wh_batch *batch;
		struct gpu_pair p;
		int64_t before;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[i % 2], "cuda:1", LENGTH, true);
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batch));
		if (i >= 2) {
			((void (*)(unsigned int))gpu_symbol("fake_cuda_delay"))(100000);
			want(0, wh_batch_submit(batch));
		}
		before = now();
		want(0, child_unregister(p.child, p.child_region));
		want_true(i < 2 || wh_batch_poll(batch) == 0, "it did not wait (%lld ms): %s",
			  (long long)((now() - before) / MS), wh_error_text());
		fake_heal();
		want(0, child_free(p.child, p.memory));
		want(-ESTALE, gpu_run(batch));
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
	}
}

/* The connection breaks and is restored. Mapped memory works meanwhile; unregistering still
 * waits. */
static void peer__reached_again(void **state)
{
	int64_t end = now() + PATIENCE;
	struct wh_batch *batch;
	struct proxy *proxy;
	struct gpu_pair p;
	int status;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_VMM, "cuda:1", LENGTH, true);
	proxy = proxy_start(p.child->url);
	want(0, wh_peer_close(p.peer));
	want(0, wh_peer_open(p.engine, proxy_url(proxy), NULL, &p.peer));
	want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
	batch = gpu_pair_batch(&p, WH_WRITE);
	want(0, gpu_run(batch));
	for (unsigned int i = 0; i < 2; i++) {
		unsigned int accepted = proxy_accepted(proxy);

		want(1, proxy_cut(proxy, PROXY_CONTROL));
		while (proxy_accepted(proxy) == accepted && now() < end)
			sleep_ms(1);
		gpu_pair_fill(&p, i);
		while ((status = gpu_run(batch)) && now() < end)
			sleep_ms(5);
		want(0, status);
		want_true(gpu_pair_copied(&p, i), "it is wrong");
	}
	want(0, child_unregister(p.child, p.child_region));
	want(-ESTALE, gpu_run(batch));
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
	proxy_stop(proxy);
}

/* True if the local side equals the target's pattern. */
static bool read_back(struct gpu_pair *p, uint64_t seed)
{
	unsigned char *image = malloc(p->length);
	bool good;

	assert_non_null(image);
	bytes_get(image, p->local, p->length, p->here);
	good = pattern_check(image, p->length, 0, seed + 1000) == PATTERN_GOOD;
	free(image);
	return good;
}

/* A data connection breaks while a GPU's bytes are in its slots, in the socket, or at the owner
 * without an answer yet. They are gathered and sent again. */
static void peer__connection_cut(void **state)
{
	static const uint32_t ops[] = { WH_WRITE, WH_READ };
	struct wh_transfer whole = { .length = 16 * MIB };
	struct wh_batch_options tcp = { .size = sizeof(tcp), .require = "tcp" };
	struct proxy *proxy;
	struct gpu_pair p;
	unsigned int cuts;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_PINNED, NULL, whole.length, true);
	proxy = proxy_start(p.child->url);
	want(0, wh_peer_close(p.peer));
	want(0, wh_peer_open(p.engine, proxy_url(proxy), NULL, &p.peer));
	want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
	whole.local = p.region;
	whole.remote = p.remote.id;
	for (uint64_t round = 0; round < SCALE(6, 2); round++) {
		struct wh_batch *batch;

		whole.op = ops[round % 2];
		want(0, wh_batch_new(p.peer, &tcp, &batch));
		want(0, wh_batch_add(batch, &whole, 1));
		gpu_pair_fill(&p, round);
		proxy_slow(proxy, 16 * MIB);
		want(0, wh_batch_submit(batch));
		/* Once when hardly anything has been sent, once midway. */
		sleep_ms(round < 2 ? 20 : 100);
		cuts = proxy_cut(proxy, PROXY_DATA);
		proxy_slow(proxy, 0);
		want_true(cuts > 0, "there was nothing to cut");
		want(0, wh_batch_wait(batch, PATIENCE));
		want_true(whole.op == WH_WRITE ? gpu_pair_copied(&p, round) : read_back(&p, round),
			  "it is wrong in round %llu", (unsigned long long)round);
		want(0, wh_batch_free(batch));
	}
	gpu_pair_close(&p);
	proxy_stop(proxy);
}

/* ---- memory out of this process's reach -------------------------------- */

struct apart {
	struct child *owner, *other;
	int target, local;
	struct child_transfer move;
	struct child_result result;
};

/* Start two processes. The one that moves the bytes has `name=value` in its environment. */
static void apart_open(struct apart *a, const char *name, const char *value, const char *where,
		       uint64_t length)
{
	memset(a, 0, sizeof(*a));
	a->owner = child_start(NULL);
	setenv(name, value, 1);
	a->other = child_start(NULL);
	unsetenv(name);
	a->target = child_memory_at(a->owner, WH_MEMORY_VMM, length, "cuda:0");
	child_region(a->owner, a->target, 0, length, "target", 0, NULL);
	a->local = child_memory_at(a->other, where ? WH_MEMORY_DEVICE : WH_MEMORY_SHARED, length,
				   where);
	a->move = (struct child_transfer){ .length = length, .op = WH_WRITE, .remote = "target" };
	a->move.region = child_region(a->other, a->local, 0, length, NULL, WH_ACCESS_NONE, NULL);
	a->move.peer = child_peer(a->other, a->owner->url, NULL);
	child_fill(a->other, a->local, 0, length, 0, 3);
}

static void apart_close(struct apart *a)
{
	child_exit(a->other);
	child_exit(a->owner);
}

static void reach__no_peer_access(void **state)
{
	struct apart a;

	(void)state;
	apart_open(&a, "FAKE_CUDA_PEER", "0", "cuda:1", 21 * MIB + 5);
	want(0, child_transfer(a.other, &a.move, &a.result));
	assert_string_equal(a.result.transport, "cuda");
	want_true(strstr(a.result.explain, "staged"), "%s", a.result.explain);
	want(PATTERN_GOOD, child_check(a.owner, a.target, 0, a.move.length, 0, 3));
	child_fill(a.owner, a.target, 0, a.move.length, 0, 4);
	a.move.op = WH_READ;
	/* More fragments than slots. */
	a.move.times = SCALE(20, 4);
	want(0, child_transfer(a.other, &a.move, &a.result));
	want(PATTERN_GOOD, child_check(a.other, a.local, 0, a.move.length, 0, 4));
	apart_close(&a);
}

/* Another transport serves, and the explanation says why cuda does not. If cuda is required, that
 * is the error. */
static void want_refused(struct apart *a, const char *word)
{
	a->move.require = "cuda";
	want(-EOPNOTSUPP, child_transfer(a->other, &a->move, &a->result));
	want_true(strstr(a->result.text, word), "%s", a->result.text);
	a->move.require = NULL;
}

static void want_another_way(struct apart *a, const char *word)
{
	want(0, child_transfer(a->other, &a->move, &a->result));
	assert_string_equal(a->result.transport, "tcp");
	want_true(strstr(a->result.explain, word), "%s", a->result.explain);
	want(PATTERN_GOOD, child_check(a->owner, a->target, 0, a->move.length, 0, 3));
}

static void reach__device_not_visible(void **state)
{
	struct apart a;

	(void)state;
	apart_open(&a, "CUDA_VISIBLE_DEVICES", "1", "cuda:0", LENGTH);
	want_refused(&a, "CUDA_VISIBLE_DEVICES");
	want_another_way(&a, "CUDA_VISIBLE_DEVICES");
	apart_close(&a);
}

static void reach__compute_mode(void **state)
{
	static const char *const modes[] = { "20=2", "20=3" }, *const semaphores[] = {
		"prohibited", "exclusive"
	};

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		struct apart a;

		apart_open(&a, "FAKE_CUDA_ATTRIBUTES", modes[i], NULL, LENGTH);
		want_refused(&a, semaphores[i]);
		want_another_way(&a, semaphores[i]);
		apart_close(&a);
	}
}

/* One side has a driver of CUDA 10.1, without cuMemCreate: it can neither import such memory nor
 * allocate it. */
static void reach__old_driver(void **state)
{
	const char *driver = getenv("TEST_CUDA");
	char old[PATH_MAX];
	struct apart a;
	int memory;

	(void)state;
	snprintf(old, sizeof(old), "%.*s/libcuda-old.so", (int)(strrchr(driver, '/') - driver),
		 driver);
	memset(&a, 0, sizeof(a));
	a.owner = child_start(NULL);
	setenv("FAKE_CUDA_DRIVER", "10010", 1);
	setenv("WHERRY_CUDA", old, 1);
	driver = strdup(driver);
	setenv("TEST_CUDA", old, 1);
	a.other = child_start(NULL);
	setenv("TEST_CUDA", driver, 1);
	setenv("WHERRY_CUDA", driver, 1);
	unsetenv("FAKE_CUDA_DRIVER");
	free((void *)driver);
	a.target = child_memory_at(a.owner, WH_MEMORY_VMM, LENGTH, "cuda:0");
	child_region(a.owner, a.target, 0, LENGTH, "target", 0, NULL);
	memory = child_memory_at(a.owner, WH_MEMORY_DEVICE, LENGTH, "cuda:0");
	child_region(a.owner, memory, 0, LENGTH, "legacy", 0, NULL);
	a.local = child_memory_at(a.other, WH_MEMORY_DEVICE, LENGTH, "cuda:1");
	a.move = (struct child_transfer){ .length = LENGTH, .op = WH_WRITE, .remote = "target" };
	a.move.region = child_region(a.other, a.local, 0, LENGTH, NULL, WH_ACCESS_NONE, NULL);
	a.move.peer = child_peer(a.other, a.owner->url, NULL);
	child_fill(a.other, a.local, 0, LENGTH, 0, 3);
	want_refused(&a, "update the driver");
	want_another_way(&a, "CUDA 10.1");
	a.target = memory;
	a.move.remote = "legacy";
	want(0, child_transfer(a.other, &a.move, &a.result));
	assert_string_equal(a.result.transport, "cuda");
	want(PATTERN_GOOD, child_check(a.owner, memory, 0, LENGTH, 0, 3));
	apart_close(&a);
}

/* The owner is in a PID namespace of its own. Descriptors of cuMemCreate memory work both ways;
 * legacy handles, with which the driver looks up a process, do not. */
static void reach__pid_namespace(void **state)
{
	int here = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC), memory;
	struct apart a;

	(void)state;
	if (here < 0 || unshare(CLONE_NEWPID))
		skip(); /* needs root */
	memset(&a, 0, sizeof(a));
	a.owner = child_start(NULL);
	want(0, setns(here, CLONE_NEWPID) ? -errno : 0);
	close(here);
	a.other = child_start(NULL);
	a.target = child_memory_at(a.owner, WH_MEMORY_VMM, LENGTH, "cuda:0");
	child_region(a.owner, a.target, 0, LENGTH, "target", 0, NULL);
	memory = child_memory_at(a.owner, WH_MEMORY_DEVICE, LENGTH, "cuda:0");
	child_region(a.owner, memory, 0, LENGTH, "legacy", 0, NULL);
	a.local = child_memory_at(a.other, WH_MEMORY_DEVICE, LENGTH, "cuda:0");
	a.move = (struct child_transfer){ .length = LENGTH, .op = WH_WRITE, .remote = "target" };
	a.move.region = child_region(a.other, a.local, 0, LENGTH, NULL, WH_ACCESS_NONE, NULL);
	a.move.peer = child_peer(a.other, a.owner->url, NULL);
	child_fill(a.other, a.local, 0, LENGTH, 0, 3);
	want(0, child_transfer(a.other, &a.move, &a.result));
	assert_string_equal(a.result.transport, "cuda");
	want(PATTERN_GOOD, child_check(a.owner, a.target, 0, LENGTH, 0, 3));
	a.target = memory;
	a.move.remote = "legacy";
	want_refused(&a, "cuIpcOpenMemHandle");
	want_another_way(&a, "cuIpcOpenMemHandle");
	apart_close(&a);
}

/* Two regions inside one allocation of another process. */
static void reach__parts_of_an_allocation(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };
	struct apart a;

	(void)state;
	apart_open(&a, "FAKE_CUDA_PEER", "1", "cuda:1", 4 * MIB);
	for (unsigned int i = 0; i < 2; i++) {
		int memory = child_memory_at(a.owner, kinds[i], 4 * MIB, "cuda:0"), first, second;

		first = child_region(a.owner, memory, 4099, MIB, "first", 0, NULL);
		second = child_region(a.owner, memory, 2 * MIB + 1, MIB + 7, "second", 0, NULL);
		child_fill(a.owner, memory, 0, 4 * MIB, 0, 9);
		a.move.remote = "first";
		a.move.length = MIB;
		want(0, child_transfer(a.other, &a.move, &a.result));
		a.move.remote = "second";
		a.move.length = MIB + 7;
		want(0, child_transfer(a.other, &a.move, &a.result));
		want(PATTERN_GOOD, child_check(a.owner, memory, 4099, MIB, 0, 3));
		want(PATTERN_GOOD, child_check(a.owner, memory, 2 * MIB + 1, MIB + 7, 0, 3));
		want(PATTERN_GOOD, child_check(a.owner, memory, 0, 4099, 0, 9));
		want(PATTERN_GOOD,
		     child_check(a.owner, memory, 4099 + MIB, MIB - 4098, 4099 + MIB, 9));
		want(PATTERN_GOOD,
		     child_check(a.owner, memory, 3 * MIB + 8, MIB - 8, 3 * MIB + 8, 9));
		/* One region is unregistered; the other stays mapped. */
		want(0, child_unregister(a.owner, first));
		want(0, child_transfer(a.other, &a.move, &a.result));
		want(0, child_unregister(a.owner, second));
		want(0, child_free(a.owner, memory));
	}
	apart_close(&a);
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
	TEST_NEEDS(peer__killed, needs_fake),
	TEST_NEEDS(peer__restarted, needs_fake),
	TEST_NEEDS(peer__stopped, needs_fake),
	TEST_NEEDS(peer__takes_its_memory_back, needs_fake),
	TEST_NEEDS(peer__reached_again, needs_fake),
	TEST_NEEDS(peer__connection_cut, needs_fake),
	TEST_NEEDS(reach__no_peer_access, needs_fake),
	TEST_NEEDS(reach__device_not_visible, needs_fake),
	TEST_NEEDS(reach__compute_mode, needs_fake),
	TEST_NEEDS(reach__old_driver, needs_fake),
	TEST_NEEDS(reach__pid_namespace, needs_fake),
	TEST_NEEDS(reach__parts_of_an_allocation, needs_fake),
	TEST_NEEDS(pinned__overlapping_regions, needs_fake),
};

int main(int argc, char **argv)
{
	setenv("FAKE_CUDA_REUSE", "1", 1); /* read at the first call */
	return harness_main(argc, argv, "gpu-faults", tests, sizeof(tests) / sizeof(*tests));
}
