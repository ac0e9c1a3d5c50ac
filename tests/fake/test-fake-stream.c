/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the fake CUDA driver: streams, events, kernels and faults. */
#include "test-fake.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../kernels/blocks.h"

/* ---- gates ----------------------------------------------------------------------------------- */

struct gate {
	sem_t reached, open;
};

static void gate_wait(void *arg)
{
	struct gate *gate = arg;

	sem_post(&gate->reached);
	while (sem_wait(&gate->open))
		;
}

struct gate *close_gate(void *stream)
{
	struct gate *gate = malloc(sizeof(*gate));

	assert_non_null(gate);
	sem_init(&gate->reached, 0, 0);
	sem_init(&gate->open, 0, 0);
	ok(cu.LaunchHostFunc(stream, gate_wait, gate));
	while (sem_wait(&gate->reached))
		;
	return gate;
}

/* Gates are never freed: gate_wait() may still use one after it has been opened. */
static struct gate *opened[64];
static unsigned opened_count;

void open_gate(struct gate *gate)
{
	sem_post(&gate->open);
	assert_true(opened_count < 64);
	opened[opened_count++] = gate;
}

/* ---- streams --------------------------------------------------------------------------------- */

static void *new_stream(unsigned flags)
{
	void *stream;

	ok(cu.StreamCreate(&stream, flags));
	return stream;
}

static void streams__are_asynchronous(void **state)
{
	void *stream = new_stream(1), *context;
	struct gate *gate;
	uint64_t device;
	char *host;

	(void)state;
	ok(cu.MemAlloc(&device, 100));
	ok(cu.MemAllocHost((void **)&host, 100));
	ok(cu.StreamGetCtx(stream, &context));
	assert_ptr_equal(context, contexts[0]);
	ok(cu.MemsetD8Async(device, 1, 100, stream));
	ok(cu.StreamSynchronize(stream));
	gate = close_gate(stream);
	ok(cu.MemsetD8Async(device, 2, 100, stream));
	ok(cu.MemcpyDtoHAsync(host, device, 100, stream));
	assert_int_equal(cu.StreamQuery(stream), 600);
	assert_int_equal(host[50], 0);
	assert_int_equal(((char *)fake.alias(device))[50], 1);
	open_gate(gate);
	ok(cu.StreamSynchronize(stream));
	ok(cu.StreamQuery(stream));
	assert_int_equal(host[99], 2);
	ok(cu.StreamDestroy(stream));
	assert_int_equal(cu.StreamSynchronize(stream), 400);
	ok(cu.MemFree(device));
	ok(cu.MemFreeHost(host));
}

static void streams__pageable_source_is_staged(void **state)
{
	void *stream = new_stream(1);
	char source[100], out[100];
	struct gate *gate;
	uint64_t device;

	(void)state;
	ok(cu.MemAlloc(&device, 100));
	memset(source, 5, sizeof(source));
	gate = close_gate(stream);
	ok(cu.MemcpyHtoDAsync(device, source, 100, stream));
	memset(source, 6, sizeof(source));
	open_gate(gate);
	ok(cu.MemcpyDtoHAsync(out, device, 100, stream)); /* pageable target: waits */
	assert_int_equal(out[99], 5);
	assert_int_equal(cu.MemcpyHtoD(device, (void *)8, 8), 1);
	ok(cu.StreamDestroy(stream));
	ok(cu.MemFree(device));
}

static void streams__copy_between_devices_does_not_wait(void **state)
{
	void *stream = new_stream(0); /* blocking: the default stream waits for it */
	unsigned on = 1;
	struct gate *gate;
	uint64_t a, b;

	(void)state;
	ok(cu.MemAlloc(&a, 100));
	ok(cu.CtxSetCurrent(contexts[1]));
	ok(cu.MemAlloc(&b, 100));
	ok(cu.CtxSetCurrent(contexts[0]));
	ok(cu.MemsetD8(a, 8, 100));
	ok(cu.MemsetD8(b, 0, 100));
	ok(cu.CtxSynchronize());
	gate = close_gate(stream);
	ok(cu.MemcpyDtoD(b, a, 100));
	assert_int_equal(*(char *)fake.alias(b), 0);
	open_gate(gate);
	ok(cu.CtxSynchronize());
	assert_int_equal(*(char *)fake.alias(b), 8);
	ok(cu.PointerSetAttribute(&on, 6, b));
	fake.delay(20000);
	ok(cu.MemsetD8(b, 9, 100));
	assert_int_equal(*(char *)fake.alias(b), 9);
	ok(cu.MemcpyPeerAsync(a, contexts[0], b, contexts[1], 100, stream));
	ok(cu.StreamDestroy(stream)); /* its operations still run */
	ok(cu.CtxSynchronize());
	assert_int_equal(*(char *)fake.alias(a), 9);
	ok(cu.MemFree(a));
	ok(cu.MemFree(b));
}

static void streams__legacy_default(void **state)
{
	void *blocking = new_stream(0), *other = new_stream(0), *free_one = new_stream(1);
	struct gate *gate;
	uint64_t device;

	(void)state;
	ok(cu.MemAlloc(&device, 4));
	gate = close_gate(blocking);
	ok(cu.MemsetD8Async(device, 1, 4, NULL)); /* waits for `blocking` */
	ok(cu.MemsetD8Async(device, 2, 4, other)); /* waits for the default stream */
	assert_int_equal(cu.StreamQuery(NULL), 600);
	assert_int_equal(cu.StreamQuery(other), 600);
	ok(cu.MemsetD8Async(device, 3, 4, free_one));
	ok(cu.StreamSynchronize(free_one));
	assert_int_equal(*(char *)fake.alias(device), 3);
	open_gate(gate);
	ok(cu.StreamSynchronize(other));
	assert_int_equal(*(char *)fake.alias(device), 2);
	ok(cu.StreamDestroy(blocking));
	ok(cu.StreamDestroy(other));
	ok(cu.StreamDestroy(free_one));
	ok(cu.MemFree(device));
}

static void streams__values(void **state)
{
	void *stream = new_stream(1);
	_Atomic uint32_t *flag;

	(void)state;
	ok(cu.MemHostAlloc((void **)&flag, 8, 2));
	ok(cu.StreamWaitValue32(stream, (uintptr_t)flag, 5, 0));
	ok(cu.StreamWriteValue32(stream, (uintptr_t)(flag + 1), 77, 0));
	assert_int_equal(cu.StreamWaitValue32(stream, (uintptr_t)flag + 1, 5, 0), 1);
	usleep(2000);
	assert_int_equal(cu.StreamQuery(stream), 600);
	*flag = 6;
	while (flag[1] != 77)
		usleep(100);
	ok(cu.StreamSynchronize(stream));
	ok(cu.StreamDestroy(stream));
	ok(cu.MemFreeHost(flag));
}

static _Atomic int inner;

static void call_cuda(void *arg)
{
	(void)arg;
	inner = cu.CtxSynchronize();
}

static void streams__host_function_may_not_call(void **state)
{
	(void)state;
	inner = 0;
	ok(cu.LaunchHostFunc(NULL, call_cuda, NULL));
	ok(cu.StreamSynchronize(NULL));
	assert_int_equal(inner, 800);
}

static void streams__batch(void **state)
{
	uint64_t device, from[10], to[10];
	struct batch_attributes attributes = { .order = 1 };
	size_t lengths[10], start = 0, failed;
	void *stream = new_stream(1);
	unsigned char *host;

	(void)state;
	ok(cu.MemAlloc(&device, 1000));
	ok(cu.MemAllocHost((void **)&host, 2000));
	for (unsigned i = 0; i < 10; i++) {
		memset(host + i * 100, (int)i + 1, 100);
		from[i] = (uintptr_t)host + i * 100;
		to[i] = device + (9 - i) * 100;
		lengths[i] = 100;
	}
	ok(cu.MemcpyBatchAsync(to, from, lengths, 10, &attributes, &start, 1, &failed, stream));
	ok(cu.MemcpyDtoHAsync(host + 1000, device, 1000, stream));
	ok(cu.StreamSynchronize(stream));
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(host[1000 + i * 100 + 50], 10 - i);
	assert_int_equal(cu.MemcpyBatchAsync2(to, from, lengths, 10, &attributes, &start, 1, NULL),
			 1);
	ok(cu.MemcpyBatchAsync2(to, from, lengths, 10, &attributes, &start, 1, stream));
	to[3] = device + 950;
	assert_int_equal(
		cu.MemcpyBatchAsync(to, from, lengths, 10, &attributes, &start, 1, &failed, stream),
		1);
	assert_int_equal(failed, 3);
	ok(cu.StreamDestroy(stream));
	ok(cu.MemFree(device));
	ok(cu.MemFreeHost(host));
}

/* ---- events ---------------------------------------------------------------------------------- */

static void events__order_streams(void **state)
{
	void *first = new_stream(1), *second = new_stream(1), *event, *late, *foreign;
	struct gate *gate;
	uint64_t device;
	float ms = -1;

	(void)state;
	ok(cu.MemAlloc(&device, 4));
	ok(cu.EventCreate(&event, 0));
	ok(cu.EventCreate(&late, 0));
	ok(cu.EventQuery(event)); /* never recorded */
	assert_int_equal(cu.EventElapsedTime(&ms, event, late), 400);
	gate = close_gate(first);
	ok(cu.MemsetD8Async(device, 1, 4, first));
	ok(cu.EventRecord(event, first));
	ok(cu.StreamWaitEvent(second, event, 0));
	ok(cu.MemsetD8Async(device, 2, 4, second));
	ok(cu.EventRecord(late, second));
	assert_int_equal(cu.EventQuery(event), 600);
	assert_int_equal(cu.EventQuery(late), 600);
	assert_int_equal(cu.EventElapsedTime(&ms, event, late), 600);
	open_gate(gate);
	ok(cu.EventSynchronize(late));
	ok(cu.EventQuery(event));
	assert_int_equal(*(char *)fake.alias(device), 2);
	ok(cu.EventElapsedTime(&ms, event, late));
	assert_true(ms >= 0);
	ok(cu.CtxSetCurrent(contexts[1]));
	ok(cu.EventCreate(&foreign, 2));
	assert_int_equal(cu.EventRecord(foreign, first), 400);
	ok(cu.EventDestroy(foreign));
	ok(cu.StreamWaitEvent(first, late, 0));
	ok(cu.EventDestroy(event));
	ok(cu.EventDestroy(late));
	assert_int_equal(cu.EventQuery(late), 400);
	ok(cu.StreamDestroy(first));
	ok(cu.StreamDestroy(second));
	ok(cu.MemFree(device));
}

int test_streams(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(streams__are_asynchronous, test_setup),
		cmocka_unit_test_setup(streams__pageable_source_is_staged, test_setup),
		cmocka_unit_test_setup(streams__copy_between_devices_does_not_wait, test_setup),
		cmocka_unit_test_setup(streams__legacy_default, test_setup),
		cmocka_unit_test_setup(streams__values, test_setup),
		cmocka_unit_test_setup(streams__host_function_may_not_call, test_setup),
		cmocka_unit_test_setup(streams__batch, test_setup),
		cmocka_unit_test_setup(events__order_streams, test_setup),
	};

	return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static const char ptx[] = "// a comment\n.version 7.0\n.target sm_70\n.address_size 64\n"
			  ".visible .entry fake_fill(\n)\n{ ret; }\n"
			  ".visible .entry wh_blocks_16(\n)\n{ ret; }\n"
			  ".visible .entry wh_blocks_1(\n)\n{ ret; }\n";

static void *get_function(void **module, const char *name)
{
	void *function;

	ok(cu.ModuleLoadData(module, ptx));
	ok(cu.ModuleGetFunction(&function, *module, name));
	return function;
}

static void modules__images(void **state)
{
	static const char newer[] = ".version 99.0\n.target sm_70\n";
	static const char higher[] = ".version 7.0\n.target sm_100\n.entry x";
	char elf[64] = "\177ELF"; /* the fake checks only the architecture */
	int options[] = { 5, 6 }, value;
	void *module, *function;
	char log[200] = "";
	void *values[] = { log, (void *)sizeof(log) };

	(void)state;
	assert_int_equal(cu.ModuleLoadData(&module, "nothing that it knows"), 200);
	assert_int_equal(cu.ModuleLoadDataEx(&module, newer, 2, options, values), 222);
	assert_non_null(strstr(log, "Unsupported .version 99.0"));
	assert_int_equal(cu.ModuleLoadData(&module, ".version 7.0\n.entry x"), 218);
	assert_int_equal(cu.ModuleLoadDataEx(&module, higher, 2, options, values), 218);
	assert_non_null(strstr(log, ".target is higher"));
	elf[49] = 100;
	assert_int_equal(cu.ModuleLoadData(&module, elf), 209);
	elf[49] = 80;
	assert_int_equal(cu.ModuleLoadData(&module, elf), 209);
	elf[49] = 90;
	ok(cu.ModuleLoadData(&module, elf));
	ok(cu.ModuleGetFunction(&function, module, "wh_blocks_8"));
	ok(cu.ModuleUnload(module));
	ok(cu.ModuleLoadData(&module, ptx));
	assert_int_equal(cu.ModuleGetFunction(&function, module, "wh_blocks_8"), 500);
	assert_int_equal(cu.ModuleGetFunction(&function, module, "wh_blocks"), 500);
	ok(cu.ModuleGetFunction(&function, module, "wh_blocks_16"));
	ok(cu.FuncGetAttribute(&value, 0, function));
	assert_int_equal(value, 1024);
	ok(cu.ModuleUnload(module));
	assert_int_equal(cu.ModuleUnload(module), 400);
	assert_int_equal(cu.FuncGetAttribute(&value, 0, function), 400);
}

static void kernels__parameters(void **state)
{
	struct {
		uint64_t address;
		uint32_t value, count;
	} buffer = { 0, 3, 10 };
	uint32_t out[10], value = 2, count = 10;
	size_t size = sizeof(buffer);
	void *module, *function = get_function(&module, "fake_fill");
	uint64_t device;
	void *pointers[] = { &device, &value, &count };
	void *extra[] = { (void *)1, &buffer, (void *)2, &size, NULL };

	(void)state;
	ok(cu.MemAlloc(&device, sizeof(out)));
	ok(cu.LaunchKernel(function, 10, 1, 1, 1, 1, 1, 0, NULL, pointers, NULL));
	value = 99; /* the launch has copied the old value */
	ok(cu.MemcpyDtoH(out, device, sizeof(out)));
	assert_int_equal(out[9], 2);
	buffer.address = device;
	ok(cu.LaunchKernel(function, 10, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	ok(cu.MemcpyDtoH(out, device, sizeof(out)));
	assert_int_equal(out[0], 3);
	assert_int_equal(cu.LaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, pointers, NULL), 1);
	assert_int_equal(cu.LaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, NULL, pointers, NULL),
			 1);
	ok(cu.CtxSetCurrent(contexts[1]));
	assert_int_equal(cu.LaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, pointers, NULL), 400);
	ok(cu.CtxSetCurrent(contexts[0]));
	ok(cu.ModuleUnload(module));
	ok(cu.MemFree(device));
}

/* Scatter blocks of `length` bytes from device 0 to device 1 and compare. */
static void scatter(enum wh_blocks_variant variant, size_t length, size_t count, size_t skew)
{
	static const char *const names[] = WH_BLOCKS_NAMES;
	size_t size = (2 * length * count + 64 + 7) & ~(size_t)7;
	uint64_t source, target, lists, *offsets;
	_Atomic uint32_t *flag;
	unsigned char *in, *out;
	struct wh_blocks_job job = { .block_length = length, .count = count, .base_count = 1 };
	void *parameters[] = { &job }, *module, *function;
	uint32_t ctas = wh_blocks_shape(&job, variant, 4);

	function = get_function(&module, names[variant]);
	ok(cu.CtxSetCurrent(contexts[1]));
	ok(cu.MemAlloc(&target, size));
	ok(cu.CtxSetCurrent(contexts[0]));
	ok(cu.MemAlloc(&source, size));
	ok(cu.MemAlloc(&lists, 8 * count + 8));
	ok(cu.MemAllocHost((void **)&in, 2 * size + 8 * count + 64));
	out = in + size;
	offsets = (uint64_t *)(in + 2 * size);
	flag = (_Atomic uint32_t *)(void *)(offsets + count);
	for (size_t i = 0; i < size; i++)
		in[i] = (unsigned char)(i * 7 + i / 251);
	for (size_t i = 0; i < count; i++)
		offsets[i] = (count - 1 - i) * 2 * length;
	ok(cu.MemcpyHtoD(source, in, size));
	ok(cu.MemcpyHtoD(lists, offsets, 8 * count));
	ok(cu.MemsetD8(lists + 8 * count, 0, 8));
	job.source_base[0] = source + skew;
	job.source_stride = length;
	job.target_base[0] = target;
	job.target_offsets = lists;
	job.flag = (uintptr_t)flag;
	job.flag_value = 1234;
	job.counter = lists + 8 * count;
	ok(cu.LaunchKernel(function, ctas, 1, 1, WH_BLOCKS_THREADS, 1, 1, 0, NULL, parameters,
			   NULL));
	ok(cu.CtxSynchronize());
	assert_int_equal(*flag, 1234);
	ok(cu.MemcpyDtoH(out, target, size));
	for (size_t i = 0; i < count; i++)
		assert_memory_equal(out + offsets[i], in + skew + i * length, length);
	ok(cu.ModuleUnload(module));
	ok(cu.MemFree(source));
	ok(cu.MemFree(target));
	ok(cu.MemFree(lists));
	ok(cu.MemFreeHost(in));
}

static void kernels__blocks(void **state)
{
	(void)state;
	ok(cu.CtxEnablePeerAccess(contexts[1], 0));
	assert_int_equal(cu.CtxEnablePeerAccess(contexts[1], 0), 704);
	scatter(WH_BLOCKS_16, 4096, 33, 0);
	scatter(WH_BLOCKS_16, 16, 1000, 0);
	scatter(WH_BLOCKS_16, 300000, 3, 0);
	scatter(WH_BLOCKS_1, 777, 20, 3);
	scatter(WH_BLOCKS_1, 1, 1, 1);
	ok(cu.CtxDisablePeerAccess(contexts[1]));
	assert_int_equal(cu.CtxDisablePeerAccess(contexts[1]), 705);
}

/* Run a kernel that fails in a context of its own, which it breaks. */
static int broken_by(enum wh_blocks_variant variant, uint64_t target, size_t skew)
{
	static const char *const names[] = WH_BLOCKS_NAMES;
	struct wh_blocks_job job = { .block_length = 64, .count = 1, .base_count = 1 };
	void *context, *module, *function, *parameters[] = { &job };
	uint64_t source, other;
	int error;

	wh_blocks_shape(&job, variant, 1);
	ok(cu.CtxCreate(&context, 0, 0));
	function = get_function(&module, names[variant]);
	ok(cu.MemAlloc(&source, 4096));
	job.source_base[0] = source + skew;
	job.target_base[0] = target ? target : source + 256;
	ok(cu.LaunchKernel(function, 1, 1, 1, WH_BLOCKS_THREADS, 1, 1, 0, NULL, parameters, NULL));
	error = cu.CtxSynchronize();
	assert_int_equal(cu.MemAlloc(&other, 64), error); /* every later call fails, too */
	cu.ModuleUnload(module);
	ok(cu.CtxDestroy(context));
	return error;
}

static void kernels__bad_addresses(void **state)
{
	static char pageable[64];
	uint64_t far, nothing;

	(void)state;
	ok(cu.CtxSetCurrent(contexts[1]));
	ok(cu.MemAlloc(&far, 4096));
	ok(cu.CtxSetCurrent(contexts[0]));
	ok(cu.MemAddressReserve(&nothing, 2 * MIB, 0, 0, 0));
	assert_int_equal(broken_by(WH_BLOCKS_1, far, 0), 700); /* no peer access */
	assert_int_equal(broken_by(WH_BLOCKS_1, nothing, 0), 700);
	assert_int_equal(broken_by(WH_BLOCKS_1, (uintptr_t)pageable, 0), 700);
	assert_int_equal(broken_by(WH_BLOCKS_16, 0, 8), 716);
	ok(cu.CtxSynchronize()); /* the current context still works */
	ok(cu.MemAddressFree(nothing, 2 * MIB));
	ok(cu.CtxSetCurrent(contexts[1]));
	ok(cu.MemFree(far));
}

int test_kernels(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(modules__images, test_setup),
		cmocka_unit_test_setup(kernels__parameters, test_setup),
		cmocka_unit_test_setup(kernels__blocks, test_setup),
		cmocka_unit_test_setup(kernels__bad_addresses, test_setup),
	};

	return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void faults__nth_call(void **state)
{
	uint64_t calls = fake.calls("cuMemAlloc_v2"), address;

	(void)state;
	ok(fake.fail("cuMemAlloc_v2", 2, 999));
	ok(cu.MemAlloc(&address, 8));
	ok(cu.MemFree(address));
	assert_int_equal(cu.MemAlloc(&address, 8), 999);
	ok(cu.MemAlloc(&address, 8));
	ok(cu.MemFree(address));
	assert_int_equal(fake.calls("cuMemAlloc_v2"), calls + 3);
	ok(fake.fail("cuMemAlloc_v2", 0, 2));
	assert_int_equal(cu.MemAlloc(&address, 8), 2);
	assert_int_equal(cu.MemAlloc(&address, 8), 2);
	ok(fake.fail("cuMemAlloc_v2", 0, 0));
	ok(cu.MemAlloc(&address, 8));
	ok(cu.MemFree(address));
}

static void faults__device_lost(void **state)
{
	void *stream, *event, *well;
	uint64_t address, value;
	char out[8];

	(void)state;
	ok(cu.MemAlloc(&address, 8));
	stream = new_stream(1);
	ok(cu.EventCreate(&event, 2));
	ok(cu.MemsetD8Async(address, 1, 8, stream));
	ok(cu.StreamSynchronize(stream));
	fake.lose(0, 719, 2);
	ok(cu.MemsetD8Async(address, 2, 8, stream));
	ok(cu.StreamSynchronize(stream));
	/* The second operation begins and does nothing. */
	assert_true(cu.MemsetD8Async(address, 3, 8, stream) == 0);
	assert_int_equal(cu.StreamSynchronize(stream), 719);
	assert_int_equal(cu.StreamQuery(stream), 719);
	assert_int_equal(cu.EventRecord(event, stream), 719);
	assert_int_equal(cu.EventQuery(event), 719);
	assert_int_equal(cu.MemAlloc(&value, 8), 719);
	assert_int_equal(cu.MemFree(address), 719);
	assert_int_equal(cu.PointerGetAttribute(&value, 7, address), 719);
	assert_int_equal(cu.DevicePrimaryCtxRetain(&well, 0), 719);
	/* The other device works, but it cannot read the lost device's memory. */
	ok(cu.CtxSetCurrent(contexts[1]));
	ok(cu.MemAlloc(&value, 8));
	assert_int_equal(cu.MemcpyDtoD(value, address, 8), 719);
	ok(cu.MemFree(value));
	fake.heal();
	ok(cu.CtxSetCurrent(contexts[0]));
	ok(cu.MemcpyDtoH(out, address, 8));
	assert_int_equal(out[0], 2);
	ok(cu.EventDestroy(event));
	ok(cu.StreamDestroy(stream));
	ok(cu.MemFree(address));
}

static void faults__lost_while_waiting(void **state)
{
	void *stream = new_stream(1);
	uint32_t *flag;

	(void)state;
	ok(cu.MemAllocHost((void **)&flag, 4));
	ok(cu.StreamWaitValue32(stream, (uintptr_t)flag, 1, 0));
	fake.lose(0, 999, 0);
	assert_int_equal(cu.StreamSynchronize(stream), 999);
	usleep(200000); /* the waiting operation has ended by now */
	fake.heal();
	ok(cu.StreamWriteValue32(stream, (uintptr_t)flag, 1, 0));
	ok(cu.StreamSynchronize(stream));
	ok(cu.StreamDestroy(stream));
	ok(cu.MemFreeHost(flag));
}

/* Memory is freed while a stream is about to use it. */
static void faults__unmapped_under_a_copy(void **state)
{
	const struct properties properties = { .type = 1, .location = { 1, 0 } };
	const struct access access = { { 1, 0 }, 3 };
	void *context, *stream;
	uint64_t range, handle;
	struct gate *gate;

	(void)state;
	ok(cu.CtxCreate(&context, 0, 0));
	stream = new_stream(1);
	ok(cu.MemAddressReserve(&range, 2 * MIB, 0, 0, 0));
	ok(cu.MemCreate(&handle, 2 * MIB, &properties, 0));
	ok(cu.MemMap(range, 2 * MIB, 0, handle, 0));
	ok(cu.MemSetAccess(range, 2 * MIB, &access, 1));
	gate = close_gate(stream);
	ok(cu.MemsetD8Async(range, 1, 2 * MIB, stream));
	ok(cu.MemUnmap(range, 2 * MIB));
	open_gate(gate);
	assert_int_equal(cu.StreamSynchronize(stream), 700);
	ok(cu.MemRelease(handle));
	ok(cu.MemAddressFree(range, 2 * MIB));
	ok(cu.CtxDestroy(context));
}

int test_faults(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(faults__nth_call, test_setup),
		cmocka_unit_test_setup(faults__device_lost, test_setup),
		cmocka_unit_test_setup(faults__lost_while_waiting, test_setup),
		cmocka_unit_test_setup(faults__unmapped_under_a_copy, test_setup),
	};
	int failed = cmocka_run_group_tests_name("faults", tests, NULL, NULL);

	while (opened_count)
		free(opened[--opened_count]);
	return failed;
}
