/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the fake CUDA driver: test-fake LIBRARY. This file tests devices and contexts; the other
 * test-fake-*.c are part of the same program. */
#include "test-fake.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct calls cu;
struct controls fake;
void *contexts[2];
const char *driver_path;

static void *find_symbol(void *library, const char *name)
{
	void *symbol = dlsym(library, name);

	if (!symbol) {
		fprintf(stderr, "%s\n", dlerror());
		abort();
	}
	return symbol;
}

#define FIND_CALL(field, symbol, ...) *(void **)&cu.field = find_symbol(library, symbol);
#define FIND_CONTROL(type, field, ...)                                                             \
	*(void **)&fake.field = find_symbol(library, "fake_cuda_" #field);

void load(void)
{
	void *library = dlopen(driver_path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	CALLS(FIND_CALL)
	CONTROLS(FIND_CONTROL)
}

int test_setup(void **state)
{
	(void)state;
	fake.heal();
	return cu.CtxSetCurrent(contexts[0]);
}

/* ---- devices --------------------------------------------------------------------------------- */

static void devices__before_init(void **state)
{
	uint64_t address;
	int count, version;

	(void)state;
	assert_int_equal(cu.DeviceGetCount(&count), 3);
	assert_int_equal(cu.MemAlloc(&address, 64), 3);
	ok(cu.DriverGetVersion(&version));
	assert_int_equal(version, 13000);
	assert_int_equal(cu.Init(1), 1);
	ok(cu.Init(0));
	ok(cu.Init(0));
}

static void devices__what_they_say(void **state)
{
	unsigned char uuid[2][16];
	char name[64], bus[2][16];
	int count, device, value;
	size_t bytes;

	(void)state;
	ok(cu.DeviceGetCount(&count));
	assert_int_equal(count, 2);
	for (int i = 0; i < 2; i++) {
		ok(cu.DeviceGet(&device, i));
		ok(cu.DeviceGetName(name, sizeof(name), device));
		assert_non_null(strstr(name, "Fake"));
		ok(cu.DeviceGetUuid(uuid[i], device));
		ok(cu.DeviceGetPCIBusId(bus[i], sizeof(bus[i]), device));
		ok(cu.DeviceGetByPCIBusId(&value, bus[i]));
		assert_int_equal(value, i);
		ok(cu.DeviceTotalMem(&bytes, device));
		assert_int_equal(bytes, 16ULL << 30);
	}
	assert_memory_not_equal(uuid[0], uuid[1], 16);
	assert_string_not_equal(bus[0], bus[1]);
	assert_int_equal(cu.DeviceGet(&device, 2), 101);
	assert_int_equal(cu.DeviceGet(&device, -1), 101);
	assert_int_equal(cu.DeviceGetPCIBusId(name, 4, 0), 1);
	ok(cu.DeviceGetAttribute(&value, 16, 0));
	assert_int_equal(value, 132);
	assert_int_equal(cu.DeviceGetAttribute(&value, 0, 0), 1);
	assert_int_equal(cu.DeviceGetAttribute(&value, 16, 7), 101);
	ok(cu.DeviceCanAccessPeer(&value, 0, 1));
	assert_int_equal(value, 1);
	ok(cu.DeviceGetP2PAttribute(&value, 2, 0, 1));
	assert_int_equal(value, 1);
}

static void *look_at_context(void *arg)
{
	return (void *)(intptr_t)cu.CtxGetCurrent(arg);
}

static void contexts__stack(void **state)
{
	void *current = NULL, *made, *elsewhere = &made;
	unsigned flags;
	int device, active;
	pthread_t thread;

	(void)state;
	ok(cu.CtxGetCurrent(&current));
	assert_ptr_equal(current, contexts[0]);
	ok(cu.CtxPushCurrent(contexts[1]));
	ok(cu.CtxGetDevice(&device));
	assert_int_equal(device, 1);
	ok(cu.CtxPopCurrent(&current));
	assert_ptr_equal(current, contexts[1]);
	ok(cu.CtxCreate(&made, 0, 1));
	ok(cu.CtxGetCurrent(&current));
	assert_ptr_equal(current, made);
	ok(cu.CtxDestroy(made));
	ok(cu.CtxGetCurrent(&current));
	assert_ptr_equal(current, contexts[0]);
	assert_int_equal(cu.CtxDestroy(made), 709);
	assert_int_equal(cu.CtxDestroy(contexts[0]), 201);
	assert_int_equal(cu.CtxPushCurrent(&device), 201);
	assert_int_equal(pthread_create(&thread, NULL, look_at_context, &elsewhere), 0);
	pthread_join(thread, NULL);
	assert_null(elsewhere);
	ok(cu.DevicePrimaryCtxGetState(0, &flags, &active));
	assert_int_equal(active, 1);
}

static void contexts__none_current(void **state)
{
	uint64_t address;
	void *stream;
	int device;

	(void)state;
	ok(cu.CtxSetCurrent(NULL));
	assert_int_equal(cu.CtxGetDevice(&device), 201);
	assert_int_equal(cu.MemAlloc(&address, 64), 201);
	assert_int_equal(cu.StreamCreate(&stream, 0), 201);
	assert_int_equal(cu.CtxSynchronize(), 201);
}

static void *free_there(void *arg)
{
	uint64_t *address = arg;
	void *current = &address;

	if (cu.CtxGetCurrent(&current) || current)
		return "there is a context";
	if (cu.MemFree(address[0]))
		return "cuMemFree";
	return cu.MemFree(address[0]) ? NULL : "freed twice";
}

/* A thread without a context may free a context's device memory, and then waits for the context's
 * work; it may not free host memory. */
static void contexts__free_without(void **state)
{
	uint64_t address;
	pthread_t thread;
	void *why, *host;

	(void)state;
	ok(cu.MemAlloc(&address, 64));
	ok(cu.MemHostAlloc(&host, 64, 0));
	assert_int_equal(pthread_create(&thread, NULL, free_there, &address), 0);
	pthread_join(thread, &why);
	assert_null(why);
	ok(cu.CtxSetCurrent(NULL));
	assert_int_equal(cu.MemFreeHost(host), 201);
	ok(cu.CtxSetCurrent(contexts[0]));
	ok(cu.MemFreeHost(host));
}

static void contexts__destroyed_elsewhere(void **state)
{
	uint64_t address;
	void *made, *popped;

	(void)state;
	ok(cu.CtxCreate(&made, 0, 0));
	ok(cu.MemAlloc(&address, 64));
	ok(cu.CtxPushCurrent(contexts[0]));
	ok(cu.CtxDestroy(made));
	assert_int_equal(cu.MemFree(address), 1); /* freed with its context */
	ok(cu.CtxPopCurrent(&popped));
	assert_int_equal(cu.MemAlloc(&address, 64), 709);
	ok(cu.CtxPopCurrent(&popped));
	assert_ptr_equal(popped, made);
}

static void errors__have_names(void **state)
{
	const char *text = NULL;

	(void)state;
	ok(cu.GetErrorName(2, &text));
	assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
	ok(cu.GetErrorString(600, &text));
	assert_string_equal(text, "device not ready");
	assert_int_equal(cu.GetErrorName(12345, &text), 1);
	assert_null(text);
}

static void symbols__by_name(void **state)
{
	void *address;
	int status;

	(void)state;
	ok(cu.GetProcAddress("cuMemAlloc", &address, 12000, 0, &status));
	assert_ptr_equal(address, *(void **)&cu.MemAlloc);
	ok(cu.GetProcAddress("cuInit", &address, 12000, 0, &status));
	assert_ptr_equal(address, *(void **)&cu.Init);
	ok(cu.GetProcAddress("cuMemcpyBatchAsync", &address, 13000, 0, &status));
	assert_ptr_equal(address, *(void **)&cu.MemcpyBatchAsync2);
	ok(cu.GetProcAddress("cuMemcpyBatchAsync", &address, 12080, 0, &status));
	assert_ptr_equal(address, *(void **)&cu.MemcpyBatchAsync);
	ok(cu.GetProcAddress("cuMemcpyBatchAsync", &address, 12000, 0, &status));
	assert_null(address);
	assert_int_equal(status, 2);
	ok(cu.GetProcAddress("cuNoSuchThing", &address, 13000, 0, &status));
	assert_null(address);
	assert_int_equal(status, 1);
	ok(cu.GetProcAddress("cuMemAlloc_v2", &address, 13000, 0, &status));
	assert_null(address);
}

static void capture__mode_is_exchanged(void **state)
{
	int mode = 2;

	(void)state;
	ok(cu.ThreadExchangeStreamCaptureMode(&mode));
	assert_int_equal(mode, 0);
	ok(cu.ThreadExchangeStreamCaptureMode(&mode));
	assert_int_equal(mode, 2);
	ok(cu.FlushGPUDirectRDMAWrites(0, 100));
}

/* While another thread captures in the global mode, only a thread in relaxed mode may allocate. */
static void capture__elsewhere(void **state)
{
	int relaxed = 2, capability;
	uint64_t address;
	void *context;

	(void)state;
	fake.capture_elsewhere(1);
	assert_int_equal(cu.MemAlloc(&address, 4096), 900);
	ok(cu.CtxGetCurrent(&context));
	ok(cu.DeviceGetAttribute(&capability, 75, 0));
	ok(cu.ThreadExchangeStreamCaptureMode(&relaxed));
	ok(cu.MemAlloc(&address, 4096));
	ok(cu.ThreadExchangeStreamCaptureMode(&relaxed));
	assert_int_equal(cu.MemFree(address), 900);
	assert_int_equal(fake.capture_elsewhere(0), 2);
	ok(cu.MemFree(address));
}

int test_devices(void)
{
	const struct CMUnitTest first[] = {
		cmocka_unit_test(devices__before_init),
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(devices__what_they_say, test_setup),
		cmocka_unit_test_setup(contexts__stack, test_setup),
		cmocka_unit_test_setup(contexts__none_current, test_setup),
		cmocka_unit_test_setup(contexts__free_without, test_setup),
		cmocka_unit_test_setup(contexts__destroyed_elsewhere, test_setup),
		cmocka_unit_test_setup(errors__have_names, test_setup),
		cmocka_unit_test_setup(symbols__by_name, test_setup),
		cmocka_unit_test_setup(capture__mode_is_exchanged, test_setup),
		cmocka_unit_test_setup(capture__elsewhere, test_setup),
	};
	int failed = cmocka_run_group_tests_name("start", first, NULL, NULL);

	if (cu.DevicePrimaryCtxRetain(&contexts[0], 0) ||
	    cu.DevicePrimaryCtxRetain(&contexts[1], 1))
		return failed + 1;
	return failed + cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	static const char *const variables[] = {
		"CUDA_VISIBLE_DEVICES", "FAKE_CUDA_DEVICES",    "FAKE_CUDA_MEMORY",
		"FAKE_CUDA_DELAY_US",   "FAKE_CUDA_REUSE",      "FAKE_CUDA_PEER",
		"FAKE_CUDA_DRIVER",     "FAKE_CUDA_ATTRIBUTES", "FAKE_CUDA_FAIL",
		"FAKE_CUDA_LOSE",
	};

	if (argc < 2) {
		fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
		return 2;
	}
	driver_path = argv[1];
	for (size_t i = 0; argc == 2 && i < sizeof(variables) / sizeof(variables[0]); i++)
		unsetenv(variables[i]);
	load();
	if (argc > 2)
		return be_child(argv[2]);
	return test_devices() + test_memory() + test_streams() + test_kernels() + test_faults() +
			       test_processes() ?
		       1 :
		       0;
}
