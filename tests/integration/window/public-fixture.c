/* SPDX-License-Identifier: Apache-2.0 */
/* public-fixture.c: the fake CUDA driver, a fresh engine for each test, and windows that open or
 * not */
#include "public-fixture.h"

#include <dlfcn.h>
#include <stdio.h>

struct cuda_functions cu;
struct wh_engine *engine;
uint64_t memory;

static void look_up(const char *name, void *out)
{
	void *found = dlsym(cu.library, name);

	assert_non_null(found);
	memcpy(out, &found, sizeof(found));
}

void public_load(void)
{
	void *context;

	cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	assert_non_null(cu.library);
	look_up("cuInit", &cu.init);
	look_up("cuDevicePrimaryCtxRetain", &cu.retain);
	look_up("cuCtxSetCurrent", &cu.set_current);
	look_up("cuMemAlloc_v2", &cu.alloc);
	look_up("cuMemFree_v2", &cu.free);
	look_up("cuMemAllocManaged", &cu.managed);
	look_up("cuMemHostAlloc", &cu.host_alloc);
	look_up("cuMemGetHandleForAddressRange", &cu.export_range);
	look_up("cuMemAddressReserve", &cu.reserve);
	look_up("cuMemCreate", &cu.create);
	look_up("cuMemMap", &cu.map);
	look_up("cuMemSetAccess", &cu.access);
	look_up("fake_cuda_alias", &cu.alias);
	look_up("fake_cuda_fail", &cu.fail_call);
	look_up("fake_cuda_ipc_layout", &cu.ipc_layout);
	look_up("fake_cuda_calls", &cu.calls);
	assert_int_equal(cu.init(0), 0);
	assert_int_equal(cu.retain(&context, 0), 0);
	assert_int_equal(cu.set_current(context), 0);
}
int public_begin(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };

	(void)state;
	fake_nvidia_version("580.159.04");
	fake_nvidia_gdrdrv(0);
	assert_int_equal(wh_engine_open(&options, &engine), 0);
	assert_int_equal(cu.alloc(&memory, SIZE), 0);
	memset(cu.alias(memory), 0x11, SIZE);
	return 0;
}

int public_end(void **state)
{
	(void)state;
	assert_int_equal(cu.free(memory), 0);
	assert_int_equal(wh_engine_close(engine), 0);
	want_nvidia_clean();
	return 0;
}

struct wh_window *open_window(uint64_t address, size_t length, const char *backends)
{
	struct wh_window_options options = { .size = sizeof(options), .backends = backends };
	struct wh_window *window = NULL;
	int error = wh_window_open(engine, (void *)(uintptr_t)address, length, &options, &window);

	if (error)
		print_message("%d: %s\n", error, wh_error_text());
	assert_int_equal(error, 0);
	return window;
}

void want_refused(uint64_t address, size_t length, const char *backends, int error,
		  const char *text)
{
	struct wh_window_options options = { .size = sizeof(options), .backends = backends };
	struct wh_window *window = (void *)&options;
	int got = wh_window_open(engine, (void *)(uintptr_t)address, length, &options, &window);

	if (got != -error || !strstr(wh_error_text(), text))
		print_message("%d, wanted %d and '%s': %s\n", got, -error, text, wh_error_text());
	assert_int_equal(got, -error);
	assert_non_null(strstr(wh_error_text(), text));
	assert_ptr_equal(window, &options);
}

struct wh_window_info info_of(struct wh_window *window)
{
	struct wh_window_info info = { .size = sizeof(info) };

	assert_int_equal(wh_window_info(window, &info), 0);
	return info;
}

void want_usable(struct wh_window *window, uint64_t address)
{
	char sent[100], got[100];

	memset(sent, 'x', sizeof(sent));
	assert_int_equal(wh_window_copy_to(window, 7, sent, sizeof(sent)), 0);
	assert_int_equal(wh_window_flush(window), 0);
	assert_memory_equal(cu.alias(address + 7), sent, sizeof(sent));
	strcpy(cu.alias(address + 7), "from the GPU");
	assert_int_equal(wh_window_copy_from(window, 7, got, sizeof(got)), 0);
	assert_string_equal(got, "from the GPU");
}
