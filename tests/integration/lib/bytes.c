/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.c: copy bytes of GPU memory for the tests
 *
 * Calls the driver directly: the library under test must not vouch for its own results. */
#include <dlfcn.h>
#include <pthread.h>

#include "harness.h"

static struct {
	int (*init)(unsigned flags);
	int (*count)(int *count);
	int (*attribute)(void *out, int attribute, uint64_t address);
	int (*retain)(void **context, int device);
	int (*enter)(void *context);
	int (*leave)(void **context);
	int (*copy)(uint64_t to, uint64_t from, size_t length);
	int (*synchronise)(void);
} driver;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void *driver_symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "the CUDA driver has no %s\n", name);
		abort();
	}
	return found;
}

static void open_driver(void)
{
	const char *path = getenv("TEST_CUDA");
	void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		abort();
	}
	driver.init = driver_symbol(library, "cuInit");
	driver.count = driver_symbol(library, "cuDeviceGetCount");
	driver.attribute = driver_symbol(library, "cuPointerGetAttribute");
	driver.retain = driver_symbol(library, "cuDevicePrimaryCtxRetain");
	driver.enter = driver_symbol(library, "cuCtxPushCurrent_v2");
	driver.leave = driver_symbol(library, "cuCtxPopCurrent_v2");
	driver.copy = driver_symbol(library, "cuMemcpy");
	driver.synchronise = driver_symbol(library, "cuCtxSynchronize");
	if (driver.init(0))
		abort();
}

unsigned int bytes_gpus(void)
{
	int count = 0;

	pthread_once(&opened, open_driver);
	return driver.count(&count) ? 0 : (unsigned int)count;
}

bool bytes_on_gpu(uint32_t kind)
{
	return kind == CHILD_SEGMENTED || kind == CHILD_FABRIC ||
	       (kind >= WH_MEMORY_DEVICE && kind <= WH_MEMORY_POOL);
}

#define SEGMENT (2 * MIB)

void *bytes_segmented(int device, size_t length, bool fabric)
{
	struct {
		int type, handles, location, id;
		void *none;
		unsigned char flags[8];
	} properties = { .type = 1, .handles = fabric ? 8 : 1, .location = 1, .id = device };
	struct {
		int location, id, flags;
	} access = { 1, device, 3 };
	const char *path = getenv("TEST_CUDA");
	void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
	int (*create)(unsigned long long *, size_t, const void *, unsigned long long);
	int (*map)(uint64_t, size_t, size_t, unsigned long long, unsigned long long);
	int (*admit)(uint64_t, size_t, const void *, size_t);
	int (*drop)(unsigned long long);
	unsigned long long memory;
	uint64_t base;
	int error;

	pthread_once(&opened, open_driver);
	reserve = driver_symbol(library, "cuMemAddressReserve");
	create = driver_symbol(library, "cuMemCreate");
	map = driver_symbol(library, "cuMemMap");
	admit = driver_symbol(library, "cuMemSetAccess");
	drop = driver_symbol(library, "cuMemRelease");
	error = reserve(&base, length, 0, 0, 0);
	for (size_t at = 0; !error && at < length; at += SEGMENT) {
		error = create(&memory, SEGMENT, &properties, 0);
		error = error ? error : map(base + at, SEGMENT, 0, memory, 0);
		error = error ? error : drop(memory);
	}
	error = error ? error : admit(base, length, &access, 1);
	return error ? NULL : (void *)(uintptr_t)base;
}

static void driver_copy(void *to, const void *from, size_t length, const void *gpu)
{
	const int ordinal = 9, context_of = 1;
	void *context = NULL;
	int device = 0, error;

	pthread_once(&opened, open_driver);
	error = driver.attribute(&context, context_of, (uintptr_t)gpu);
	if (error || !context) {
		error = driver.attribute(&device, ordinal, (uintptr_t)gpu);
		error = error ? error : driver.retain(&context, device);
	}
	if (!error)
		error = driver.enter(context);
	if (!error) {
		error = driver.copy((uintptr_t)to, (uintptr_t)from, length);
		/* Between memory of GPUs the driver may come back earlier. */
		error = error ? error : driver.synchronise();
		driver.leave(&context);
	}
	if (error) {
		fprintf(stderr, "copying %zu bytes at %p for a test: CUDA error %d\n", length, gpu,
			error);
		abort();
	}
}

void bytes_get(void *to, const void *from, size_t length, uint32_t kind)
{
	if (bytes_on_gpu(kind))
		driver_copy(to, from, length, from);
	else
		memcpy(to, from, length);
}

void bytes_put(void *to, const void *from, size_t length, uint32_t kind)
{
	if (bytes_on_gpu(kind))
		driver_copy(to, from, length, to);
	else
		memcpy(to, from, length);
}
