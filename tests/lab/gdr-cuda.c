/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of the fake CUDA driver, pinned by its device address: bytes that CUDA copies are
 * what a window shows, and the other way round. */
#include "gdr.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
	int (*init)(unsigned flags);
	int (*retain)(void **context, int device);
	int (*release)(int device);
	int (*set_current)(void *context);
	int (*alloc)(uint64_t *address, size_t size);
	int (*free)(uint64_t address);
	int (*to_device)(uint64_t to, const void *from, size_t size);
	int (*from_device)(void *to, uint64_t from, size_t size);
	int (*synchronize)(void);
} cuda;

static void find(void *library, const char *name, void *function)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "no %s\n", name);
		abort();
	}
	memcpy(function, &found, sizeof(found));
}

static void both_directions(uint64_t address, size_t size)
{
	unsigned char *expected = malloc(size), *got = malloc(size), *window, *bytes;
	struct info_v2 info = { 0 };
	uint64_t start = address & ~(PAGE - 1); /* only such a pin can be mapped */
	int fd = gdr_open();

	ok(gdr_pin(fd, start, address + size - start, &info.handle));
	ok(gdr_ioctl(fd, IOC_INFO_V2, &info));
	ok(gdr_map(fd, info.handle, info.mapped_size, &window));
	bytes = window + (address - info.va);
	fill(expected, size, 70);
	ok(cuda.to_device(address, expected, size));
	ok(cuda.synchronize());
	assert_memory_equal(bytes, expected, size);
	fill(expected, size, 71);
	memcpy(bytes, expected, size);
	ok(cuda.from_device(got, address, size));
	assert_memory_equal(got, expected, size);
	munmap(window, info.mapped_size);
	ok(close(fd));
	free(expected);
	free(got);
}

static void cuda__both_directions(void **state)
{
	static const size_t sizes[] = { 8, 4096, 65536, 100000, 1 << 20, 3 << 20 };
	uint64_t address;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		ok(cuda.alloc(&address, sizes[i]));
		both_directions(address, sizes[i]);
		both_directions(address + sizes[i] / 16 * 8,
				sizes[i] / 16 * 8 + 8 * (sizes[i] == 8));
		ok(cuda.free(address));
	}
}

static void cuda__free_ends_a_window(void **state)
{
	bool persistent = gdr_is_persistent();
	uint64_t address, handle;
	unsigned char *window;
	int fd = gdr_open();

	(void)state;
	ok(cuda.alloc(&address, 2 << 20));
	ok(gdr_pin(fd, address, 2 << 20, &handle));
	ok(gdr_map(fd, handle, 2 << 20, &window));
	assert_int_equal(try_write(window), 0);
	ok(cuda.free(address));
	assert_int_equal(try_write(window), persistent ? 0 : SIGBUS);
	assert_int_equal(gdr_flag(fd, handle), !persistent);
	refused(EINVAL, gdr_pin(fd, address, 4096, &handle));
	munmap(window, 2 << 20);
	ok(close(fd));
}

int test_cuda(const char *path)
{
	const struct CMUnitTest tests[] = {
		gdr_test(cuda__both_directions),
		gdr_test(cuda__free_ends_a_window),
	};
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *context;
	int failed;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	find(library, "cuInit", &cuda.init);
	find(library, "cuDevicePrimaryCtxRetain", &cuda.retain);
	find(library, "cuDevicePrimaryCtxRelease_v2", &cuda.release);
	find(library, "cuCtxSetCurrent", &cuda.set_current);
	find(library, "cuMemAlloc_v2", &cuda.alloc);
	find(library, "cuMemFree_v2", &cuda.free);
	find(library, "cuMemcpyHtoD_v2", &cuda.to_device);
	find(library, "cuMemcpyDtoH_v2", &cuda.from_device);
	find(library, "cuCtxSynchronize", &cuda.synchronize);
	if (cuda.init(0) || cuda.retain(&context, 0) || cuda.set_current(context)) {
		fputs("cannot start the fake CUDA driver\n", stderr);
		return 1;
	}
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	cuda.release(0);
	return failed;
}
