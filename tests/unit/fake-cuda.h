/* SPDX-License-Identifier: Apache-2.0 */
/* For unit tests on the fake CUDA driver, whose path is in TEST_CUDA. */
#ifndef TESTS_UNIT_FAKE_CUDA_H
#define TESTS_UNIT_FAKE_CUDA_H

#include "unit.h"

#include <dlfcn.h>
#include <stdio.h>

#include <wherry/wherry.h>

#include "core/engine.h"
#include "gpu/pinned.h"
#include "gpu/stream.h"
#include "memory/memory.h"

#define MIB ((size_t)1 << 20)

/* An engine that uses the driver at `path`, with two more settings (NULL: none). */
static inline struct wh_engine *engine_with_settings(const char *path, const char *first,
						     const char *second)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	const char *config[] = { NULL, first, second, NULL };
	struct wh_engine *engine;
	char text[300];

	snprintf(text, sizeof(text), "cuda=%s", path);
	config[0] = text;
	options.config = config;
	assert_int_equal(wh_engine_open(&options, &engine), 0);
	return engine;
}

static inline struct wh_engine *engine_with(const char *path)
{
	return engine_with_settings(path, NULL, NULL);
}

/* A function of the fake driver: tests/fake/fake-control.h. */
static inline void *fake_symbol(const char *name)
{
	void *library = dlopen(getenv("TEST_CUDA"), RTLD_NOW | RTLD_LOCAL), *found;

	assert_non_null(library);
	found = dlsym(library, name);
	assert_non_null(found);
	dlclose(library); /* it stays: it cannot be unloaded */
	return found;
}

static inline void fake_fail(const char *function, unsigned nth, int error)
{
	int (*arm)(const char *, unsigned, int) = fake_symbol("fake_cuda_fail");

	assert_int_equal(arm(function, nth, error), 0);
}

static inline uint64_t fake_calls(const char *function)
{
	uint64_t (*calls)(const char *) = fake_symbol("fake_cuda_calls");

	return calls(function);
}

static inline void fake_heal(void)
{
	void (*heal)(void) = fake_symbol("fake_cuda_heal");

	heal();
}

/* Calls of the application, in the primary context of a device. */
#define AS_APPLICATION(engine, ordinal, ...)                                                       \
	do {                                                                                       \
		struct wh_cuda_scope inside_;                                                      \
		assert_int_equal(wh_cuda_ready((engine)->cuda), 0);                                \
		assert_int_equal(wh_cuda_enter((engine)->cuda, &(engine)->cuda->devices[ordinal],  \
					       &inside_),                                          \
				 0);                                                               \
		__VA_ARGS__;                                                                       \
		wh_cuda_leave(&inside_);                                                           \
	} while (0)
#define CU(engine, name, ...) assert_int_equal((engine)->cuda->name(__VA_ARGS__), 0)

/* A stream of cuda:0 waits until it is told to go on: meanwhile all that is submitted to it is in
 * flight. */
static inline struct wh_semaphore *stream_hold(struct wh_engine *engine,
					       const struct wh_gpu_stream *stream)
{
	struct wh_semaphore *gate;

	assert_int_equal(wh_semaphore_acquire(engine->gpus, &gate), 0);
	AS_APPLICATION(engine, 0,
		       CU(engine, cuStreamWaitValue32, stream->handle, gate->address,
			  atomic_load(gate->value) + 1, 0));
	return gate;
}

static inline void stream_go_on(struct wh_engine *engine, struct wh_semaphore *gate)
{
	atomic_fetch_add(gate->value, 1);
	wh_semaphore_release(engine->gpus, gate);
}

/* Memory of cuMemCreate on a device, mapped at `address`; the mapping holds it. */
static inline void map_vmm(struct wh_engine *engine, uint64_t address, size_t size, int device)
{
	struct wh_cuda_properties properties = { .type = CUDA_ALLOCATION_PINNED,
						 .handle_types = CUDA_HANDLE_FD,
						 .location = { CUDA_LOCATION_DEVICE, device } };
	struct wh_cuda_access access = { { CUDA_LOCATION_DEVICE, device }, 3 };
	CUallocation memory;

	CU(engine, cuMemCreate, &memory, size, &properties, 0);
	CU(engine, cuMemMap, address, size, 0, memory, 0);
	CU(engine, cuMemSetAccess, address, size, &access, 1);
	CU(engine, cuMemRelease, memory);
}

static inline uint64_t reserve(struct wh_engine *engine, size_t size)
{
	uint64_t address;

	assert_int_equal(wh_cuda_ready(engine->cuda), 0);
	CU(engine, cuMemAddressReserve, &address, size, 0, 0, 0);
	return address;
}

static inline void unreserve(struct wh_engine *engine, uint64_t address, size_t size)
{
	CU(engine, cuMemUnmap, address, size);
	CU(engine, cuMemAddressFree, address, size);
}

static inline void *pointer(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

/* Memory of a device that is free. */
static inline size_t free_memory(struct wh_engine *engine, int device)
{
	size_t available = 0, total;

	AS_APPLICATION(engine, device, CU(engine, cuMemGetInfo, &available, &total));
	return available;
}

#endif
