/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA binding on a driver that fails: driver-faults DRIVER, with the fake driver of
 * tests/fake. Each case is a process of its own, since a driver reads the environment once.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"

static const char *driver;

struct fault {
	const char *name;
	const char *variable, *value; /* of the environment */
	void (*run)(void);
};

static void open_only(void)
{
	CALL(wh_cuda_open(driver, &gpu));
}

/* Failing calls on demand; the driver is loaded. */
static void fail(const char *function, unsigned nth, int error)
{
	int (*arm)(const char *, unsigned, int) = wh_cuda_symbol(gpu, "fake_cuda_fail");

	if (CHECK(arm != NULL))
		CHECK(!arm(function, nth, error));
}

static CUcontext current(void)
{
	CUcontext context = NULL;

	CU(cuCtxGetCurrent, &context);
	return context;
}

static uint64_t allocate(void)
{
	struct wh_cuda_scope scope;
	uint64_t address = 0;

	CALL(wh_cuda_enter(gpu, &gpu->devices[0], &scope));
	CU(cuMemAlloc, &address, 4096);
	wh_cuda_leave(&scope);
	return address;
}

/* ---- starting -------------------------------------------------------------------------------- */

static void no_device(void)
{
	open_only();
	CHECK(wh_cuda_ready(gpu) == -ENODEV);
	CHECK(strstr(wh_error_text(), "CUDA_VISIBLE_DEVICES"));
}

static void init_fails(void)
{
	struct wh_cuda_pointer p;

	open_only();
	CHECK(wh_cuda_ready(gpu) == -EIO);
	CHECK(strstr(wh_error_text(), "cuInit: CUDA_ERROR_UNKNOWN (999"));
	CHECK(wh_cuda_ready(gpu) == -EIO);
	CHECK(strstr(wh_error_text(), "cuInit"));
	/* It was not initialised by anyone, so nothing can be its memory. */
	CALL(wh_cuda_query(gpu, &p, &p));
	CHECK(p.memory == WH_CUDA_PLAIN);
}

static void prohibited(void)
{
	struct wh_cuda_device *device;
	struct wh_cuda_scope scope;

	open_only();
	CALL(wh_cuda_ready(gpu));
	CHECK(wh_cuda_device_find(gpu, "cuda:0", &device) == -ENODEV);
	CHECK(strstr(wh_error_text(), "compute mode prohibited") &&
	      strstr(wh_error_text(), "cuda:0 ("));
	CALL(wh_cuda_device_at(gpu, 0, &device));
	CHECK(wh_cuda_enter(gpu, device, &scope) == -ENODEV);
}

static void visible(void)
{
	struct wh_cuda_device *device;

	open_only();
	CALL(wh_cuda_ready(gpu));
	CHECK(gpu->device_count == 1);
	CALL(wh_cuda_device_find(gpu, "cuda:0", &device));
	CHECK(!strcmp(device->pci, "0000:2b:00.0"));
	CHECK(wh_cuda_device_find(gpu, "cuda:1", &device) == -ENODEV);
	CHECK(strstr(wh_error_text(), "there are: cuda:0 ("));
}

static void no_peers(void)
{
	open_only();
	CALL(wh_cuda_ready(gpu));
	CHECK(!wh_cuda_device_peers(&gpu->devices[0], &gpu->devices[1]));
	CHECK(wh_cuda_peer_enable(gpu, &gpu->devices[0], &gpu->devices[1]) == -EOPNOTSUPP);
	CHECK(strstr(wh_error_text(), "cuda:0 (") && strstr(wh_error_text(), "cuda:1 ("));
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* The application has the driver, Wherry has asked for nothing yet: nothing is loaded or
 * initialised, and the application's memory is seen all the same. */
static void query_first(void)
{
	struct wh_cuda_pointer p;
	struct wh_cuda *application;
	uint64_t address = 0;
	int mark;

	open_only();
	CALL(wh_cuda_query(gpu, &mark, &p));
	CHECK(p.memory == WH_CUDA_PLAIN && !gpu->library);
	application = gpu;
	CALL(wh_cuda_ready(application));
	address = allocate();
	open_only();
	CALL(wh_cuda_query(gpu, &mark, &p));
	CHECK(p.memory == WH_CUDA_PLAIN && !gpu->device_count);
	CALL(wh_cuda_query(gpu, (void *)(uintptr_t)address, &p));
	CHECK(p.memory == WH_CUDA_DEVICE && p.device == &gpu->devices[0]);
	wh_cuda_close(gpu);
	gpu = application;
}

/* Asking about pinned memory makes no context: the one that owns it answers, whichever is current,
 * and also if none is. */
static void query_pinned(void)
{
	CUcontext mine = NULL, popped = NULL;
	struct wh_cuda_pointer p = { 0 };
	void *pinned = NULL;
	unsigned flags;
	int active = 1;

	open_only();
	CALL(wh_cuda_ready(gpu));
	CU(cuCtxCreate, &mine, 0, gpu->devices[1].handle);
	CU(cuMemHostAlloc, &pinned, 4096, CUDA_HOST_PORTABLE);
	CU(cuCtxPopCurrent, &popped);
	CHECK(current() == NULL);
	CALL(wh_cuda_query(gpu, (char *)pinned + 7, &p));
	CHECK(p.memory == WH_CUDA_HOST && p.mapped && p.context == mine);
	CHECK(p.device_address == (uintptr_t)pinned + 7 && p.host_address == p.device_address);
	CHECK(current() == NULL);
	for (unsigned i = 0; i < gpu->device_count; i++) {
		CU(cuDevicePrimaryCtxGetState, gpu->devices[i].handle, &flags, &active);
		CHECK(!active);
	}
	/* Why it cannot be asked is told, and it is not taken for memory that is not mapped. */
	p.memory = 0;
	fail("cuCtxPushCurrent_v2", 1, 999);
	CHECK(wh_cuda_query(gpu, pinned, &p) == -EIO && !p.memory);
	CHECK(current() == NULL);
	CU(cuCtxPushCurrent, mine);
	CU(cuMemFreeHost, pinned);
	CU(cuCtxDestroy, mine);
}

/* An error that is not "no such address" does not make it host memory. */
static void query_fails(void)
{
	struct wh_cuda_pointer p = { 0 };
	uint64_t address;

	open_only();
	CALL(wh_cuda_ready(gpu));
	address = allocate();
	fail("cuPointerGetAttribute", 1, 999);
	CHECK(wh_cuda_query(gpu, (void *)(uintptr_t)address, &p) == -EIO && !p.memory);
	fail("cuPointerGetAttribute", 1, 999);
	CHECK(wh_cuda_query(gpu, &p, &p) == -EIO);
	fail("cuMemRetainAllocationHandle", 1, 999);
	CHECK(wh_cuda_query(gpu, (void *)(uintptr_t)address, &p) == -EIO);
	CHECK(strstr(wh_error_text(), "cuMemRetainAllocationHandle"));
	CALL(wh_cuda_query(gpu, (void *)(uintptr_t)address, &p));
	CHECK(p.memory == WH_CUDA_DEVICE);
}

/* In a child of fork() the driver knows nothing any more; that does not make it host memory. */
static void query_forked(void)
{
	struct wh_cuda_pointer p;
	uint64_t address;
	int status = -1;
	pid_t child;

	open_only();
	CALL(wh_cuda_ready(gpu));
	address = allocate();
	child = fork();
	if (!child)
		_exit(wh_cuda_query(gpu, (void *)(uintptr_t)address, &p) == -EPERM ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static int accept_any(void *arg, const struct wh_cuda_pointer *p, uint64_t start, uint64_t count)
{
	(void)arg, (void)p, (void)start, (void)count;
	return 0;
}

/* A range that starts in the GPU's memory and goes on behind it. */
static void past_the_end(void)
{
	uint64_t address;

	open_only();
	CALL(wh_cuda_ready(gpu));
	address = allocate();
	CALL(wh_cuda_walk(gpu, (void *)(uintptr_t)address, 4096, accept_any, NULL));
	CHECK(wh_cuda_walk(gpu, (void *)(uintptr_t)address, 64 << 20, accept_any, NULL) == -EFAULT);
	CHECK(wh_cuda_walk(gpu, (void *)(uintptr_t)(address - (64 << 20)), (64 << 20) + 1,
			   accept_any, NULL) == -EFAULT);
}

/* ---- contexts and kernels -------------------------------------------------------------------- */

static void push_fails(void)
{
	struct wh_cuda_scope scope;
	int mode = 1, result;

	open_only();
	CALL(wh_cuda_ready(gpu));
	result = gpu->cuThreadExchangeStreamCaptureMode(&mode);
	fail("cuCtxPushCurrent_v2", 1, 999);
	CHECK(wh_cuda_enter(gpu, &gpu->devices[0], &scope) == -EIO);
	CHECK(strstr(wh_error_text(), "cuda:0 ("));
	fail("cuDevicePrimaryCtxRetain", 1, 2);
	CHECK(wh_cuda_enter(gpu, &gpu->devices[1], &scope) == -ENOMEM);
	CHECK(current() == NULL);
	mode = 0;
	CHECK(gpu->cuThreadExchangeStreamCaptureMode(&mode) == result && mode == 1);
	CALL(wh_cuda_enter(gpu, &gpu->devices[1], &scope));
	wh_cuda_leave(&scope);
	CHECK(current() == NULL);
}

static void lost(void)
{
	struct wh_cuda_scope scope;
	uint64_t address;

	open_only();
	CALL(wh_cuda_ready(gpu));
	address = allocate();
	CALL(wh_cuda_enter(gpu, &gpu->devices[0], &scope));
	((void (*)(int, int, unsigned))wh_cuda_symbol(gpu, "fake_cuda_lose"))(0, 719, 0);
	CHECK(wh_cuda_call(gpu, cuMemsetD8, address, 0, 16) != 0);
	CHECK(wh_cuda_call(gpu, cuCtxSynchronize) == -EIO);
	CHECK(strstr(wh_error_text(), "CUDA_ERROR_LAUNCH_FAILED"));
	wh_cuda_leave(&scope);
	CHECK(current() == NULL);
}

static void old_driver(void)
{
	struct wh_cuda_kernels kernels;
	struct wh_cuda_scope scope;

	open_only();
	CALL(wh_cuda_ready(gpu));
	CALL(wh_cuda_enter(gpu, &gpu->devices[0], &scope));
	/* It refuses the machine code and compiles the PTX. */
	fail("cuModuleLoadDataEx", 1, 200);
	CALL(wh_cuda_kernels_load(gpu, &gpu->devices[0], &kernels));
	CHECK(!strcmp(kernels.image, "ptx"));
	wh_cuda_kernels_unload(gpu, &kernels);
	fail("cuModuleLoadDataEx", 0, 222);
	CHECK(wh_cuda_kernels_load(gpu, &gpu->devices[0], &kernels) == -ENOEXEC);
	CHECK(strstr(wh_error_text(), "the driver is too old"));
	fail("cuModuleLoadDataEx", 0, 0);
	fail("cuModuleGetFunction", 2, 500);
	CHECK(wh_cuda_kernels_load(gpu, &gpu->devices[0], &kernels) == -ENOENT);
	wh_cuda_leave(&scope);
	CHECK(current() == NULL);
}

static const struct fault faults[] = {
	{ "no_device", "FAKE_CUDA_DEVICES", "0", no_device },
	{ "init_fails", "FAKE_CUDA_FAIL", "cuInit:0:999", init_fails },
	{ "prohibited", "FAKE_CUDA_ATTRIBUTES", "20=2", prohibited },
	{ "visible", "CUDA_VISIBLE_DEVICES", "1", visible },
	{ "no_peers", "FAKE_CUDA_PEER", "0", no_peers },
	{ "query_first", NULL, NULL, query_first },
	{ "query_pinned", NULL, NULL, query_pinned },
	{ "query_fails", NULL, NULL, query_fails },
	{ "query_forked", NULL, NULL, query_forked },
	{ "past_the_end", NULL, NULL, past_the_end },
	{ "push_fails", NULL, NULL, push_fails },
	{ "lost", NULL, NULL, lost },
	{ "old_driver", NULL, NULL, old_driver },
};

int main(int count, char **arguments)
{
	int failed = 0, status;
	pid_t child;

	if (count != 2)
		return 64;
	driver = arguments[1];
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		fflush(stdout);
		child = fork();
		if (!child) {
			if (faults[i].variable)
				setenv(faults[i].variable, faults[i].value, 1);
			gpu_case(faults[i].name, faults[i].run);
			return gpu_close();
		}
		if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
			printf("[  FAILED  ] %s: status 0x%x\n", faults[i].name, (unsigned)status);
		failed += status != 0;
	}
	return failed ? 1 : 0;
}
