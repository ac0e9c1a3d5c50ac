/* SPDX-License-Identifier: Apache-2.0 */
/* memory-gpu.c: allocating and querying GPU memory, on the fake driver */
#include "fake-cuda.h"

#include <dirent.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct wh_engine *engine;

static int setup(void **state)
{
	(void)state;
	engine = engine_with(getenv("TEST_CUDA"));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake_heal();
	return wh_engine_close(engine);
}

static int try(size_t length, uint32_t kind, const char *location, uint32_t flags, void **out)
{
	const struct wh_memory_options options = {
		.size = sizeof(options), .kind = kind, .flags = flags, .location = location
	};

	return wh_memory_alloc(engine, length, &options, out);
}

static void *must_alloc(size_t length, uint32_t kind, const char *location)
{
	void *address = NULL;

	assert_int_equal(try(length, kind, location, 0, &address), 0);
	return address;
}

static void must_free(void *address)
{
	assert_int_equal(wh_memory_free(engine, address), 0);
}

static struct wh_memory_info query(const void *address)
{
	struct wh_memory_info info = { .size = sizeof(info) };

	assert_int_equal(wh_memory_query(engine, address, &info), 0);
	return info;
}

static bool on_device(uint32_t kind)
{
	return kind == WH_MEMORY_DEVICE || kind == WH_MEMORY_VMM || kind == WH_MEMORY_POOL;
}

static int open_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* ---- alloc ------------------------------------------------------------- */

static void check_zero(const void *address, size_t length)
{
	unsigned char *bytes = malloc(length);

	memset(bytes, 0xee, length);
	AS_APPLICATION(engine, 0, CU(engine, cuMemcpyDtoH, bytes, (uintptr_t)address, length));
	for (size_t i = 0; i < length; i++)
		assert_int_equal(bytes[i], 0);
	free(bytes);
}

static void check_info(const struct wh_memory_info *info, uint32_t kind, const char *base,
		       size_t length, size_t offset)
{
	bool gpu = on_device(kind) || kind == WH_MEMORY_MANAGED;

	assert_int_equal(info->kind, kind);
	assert_ptr_equal(info->base, base);
	assert_int_equal(info->length, length);
	assert_int_equal(info->stage, on_device(kind)           ? WH_STAGE_SEPARATE :
				      kind == WH_MEMORY_MANAGED ? WH_STAGE_UNIFIED :
								  WH_STAGE_MAPPED);
	assert_int_equal(info->pinned, gpu ? WH_PINNED_NOT : WH_PINNED_WHERRY);
	assert_int_equal(info->mappings, 1);
	assert_int_equal(info->device, gpu ? 0 : -1);
	assert_true(info->buffer_id != 0);
	assert_int_equal(info->device_address, (uintptr_t)base + offset);
	assert_int_equal(info->host_address, on_device(kind) ? 0 : (uintptr_t)base + offset);
	assert_int_equal(info->imported, 0);
	assert_string_equal(info->uuid, gpu ? engine->cuda->devices[0].uuid : "");
	assert_string_equal(info->pci, gpu ? engine->cuda->devices[0].pci : "");
	assert_int_equal(*info->refusal != 0, kind == WH_MEMORY_MANAGED);
	assert_int_equal(info->page_size, gpu ? 0 : sysconf(_SC_PAGESIZE));
}

static const uint32_t exported[] = {
	[WH_MEMORY_PINNED] = WH_EXPORT_MEMFD,
	[WH_MEMORY_MAPPED] = 0,
	[WH_MEMORY_DEVICE] = WH_EXPORT_IPC | WH_EXPORT_DMA_BUF,
	[WH_MEMORY_VMM] = WH_EXPORT_FD | WH_EXPORT_DMA_BUF,
	[WH_MEMORY_MANAGED] = 0,
	[WH_MEMORY_POOL] = WH_EXPORT_DMA_BUF,
};

static void alloc__every_kind(void **state)
{
	static const size_t lengths[] = { 1, 4096, 10000, 3 * MIB + 1 };
	int descriptors;
	size_t before;

	(void)state;
	before = free_memory(engine, 0);
	descriptors = open_descriptors();
	for (uint32_t kind = WH_MEMORY_PINNED; kind <= WH_MEMORY_POOL; kind++) {
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			char *base = must_alloc(lengths[i], kind, NULL);
			size_t offset = lengths[i] / 2;
			struct wh_memory_info info = query(base + offset);

			check_info(&info, kind, base, lengths[i], offset);
			assert_int_equal(info.exports & (exported[kind] | WH_EXPORT_MEMFD),
					 exported[kind]);
			assert_int_equal((uintptr_t)base % 256, 0);
			if (!on_device(kind)) {
				assert_int_equal((uintptr_t)base % 4096, 0);
				memset(base, 0, lengths[i]); /* the CPU can access it */
			}
			check_zero(base, lengths[i]);
			must_free(base);
			assert_int_equal(wh_memory_query(engine, base + offset, &info), -EFAULT);
			assert_int_equal(wh_memory_free(engine, base), -EINVAL);
		}
	}
	assert_int_equal(free_memory(engine, 0), before);
	assert_int_equal(open_descriptors(), descriptors);
}

/* IPC exports whole blocks: nothing else may share them. */
static void alloc__takes_whole_blocks(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM, WH_MEMORY_POOL };

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		void *base = must_alloc(100, kinds[i], NULL);
		struct wh_cuda_pointer p;

		assert_int_equal(wh_cuda_query(engine->cuda, base, &p), 0);
		assert_int_equal(p.base, (uintptr_t)base);
		assert_int_equal(p.length, 2 * MIB);
		must_free(base);
	}
}

static void alloc__pinned_is_sealed_like_shared(void **state)
{
	char *base = must_alloc(10000, WH_MEMORY_PINNED, NULL), byte = 0;
	struct wh_allocation *memory;

	(void)state;
	pthread_mutex_lock(&engine->lock);
	memory = wh_allocation_find(&engine->memory, base + 9999);
	pthread_mutex_unlock(&engine->lock);
	assert_true(memory->fd >= 0);
	assert_int_equal(ftruncate(memory->fd, 0), -1);
	assert_int_equal(errno, EPERM);
	base[5000] = 42;
	assert_int_equal(pread(memory->fd, &byte, 1, 5000), 1);
	assert_int_equal(byte, 42);
	must_free(base);
}

static void alloc__write_combined(void **state)
{
	unsigned flags = 0;
	void *address;

	(void)state;
	assert_int_equal(try(5000, WH_MEMORY_MAPPED, NULL, WH_MEMORY_WRITE_COMBINED, &address), 0);
	AS_APPLICATION(engine, 0, CU(engine, cuMemHostGetFlags, &flags, address));
	assert_int_equal(flags & CUDA_HOST_WRITE_COMBINED, CUDA_HOST_WRITE_COMBINED);
	must_free(address);
	for (uint32_t kind = 0; kind <= WH_MEMORY_POOL; kind++) {
		if (kind == WH_MEMORY_MAPPED)
			continue;
		assert_int_equal(try(1, kind, NULL, WH_MEMORY_WRITE_COMBINED, &address), -EINVAL);
		assert_non_null(strstr(wh_error_text(), "WRITE_COMBINED"));
	}
	assert_int_equal(try(1, WH_MEMORY_MAPPED, NULL, 4, &address), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "flags is 0x4"));
}

static void alloc__leaves_the_context_alone(void **state)
{
	CUcontext mine, now;

	(void)state;
	assert_int_equal(wh_cuda_ready(engine->cuda), 0);
	CU(engine, cuCtxCreate, &mine, 0, 1);
	for (uint32_t kind = WH_MEMORY_PINNED; kind <= WH_MEMORY_POOL; kind++) {
		must_free(must_alloc(5000, kind, "cuda:0"));
		CU(engine, cuCtxGetCurrent, &now);
		assert_ptr_equal(now, mine);
	}
	CU(engine, cuCtxPopCurrent, &now);
	CU(engine, cuCtxDestroy, mine);
}

/* ---- location ---------------------------------------------------------- */

static void location__device(void **state)
{
	char names[3][80];
	const struct wh_cuda_device *device;

	(void)state;
	assert_int_equal(wh_cuda_ready(engine->cuda), 0);
	device = &engine->cuda->devices[1];
	snprintf(names[0], sizeof(names[0]), "cuda:1");
	snprintf(names[1], sizeof(names[1]), "cuda:%s", device->uuid);
	snprintf(names[2], sizeof(names[2]), "cuda:%s", device->pci);
	for (uint32_t kind = WH_MEMORY_DEVICE; kind <= WH_MEMORY_POOL; kind++) {
		for (int i = 0; i < 3; i++) {
			void *address = must_alloc(MIB, kind, names[i]);
			struct wh_memory_info info = query(address);

			assert_int_equal(info.device, 1);
			assert_string_equal(info.uuid, device->uuid);
			assert_string_equal(info.pci, device->pci);
			must_free(address);
		}
	}
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_MAPPED; kind++) {
		must_free(must_alloc(MIB, kind, "host"));
		must_free(must_alloc(MIB, kind, "cuda:1"));
	}
}

static void location__misuse(void **state)
{
	static const struct {
		uint32_t kind;
		const char *location;
		int error;
		const char *text;
	} cases[] = {
		{ WH_MEMORY_DEVICE, "host", -EINVAL, "cuda:0" },
		{ WH_MEMORY_VMM, "numa:0", -EINVAL, "\"numa:0\"" },
		{ WH_MEMORY_POOL, "", -EINVAL, "location" },
		{ WH_MEMORY_MANAGED, "gpu:0", -EINVAL, "gpu:0" },
		{ WH_MEMORY_DEVICE, "cuda:", -EINVAL, "cuda:" },
		{ WH_MEMORY_DEVICE, "cuda:17", -ENODEV, "cuda:17" },
		{ WH_MEMORY_DEVICE, "cuda:GPU-ffffffff", -ENODEV, "GPU-ffffffff" },
		{ WH_MEMORY_PINNED, "cuda:17", -ENODEV, "cuda:17" },
		{ WH_MEMORY_PAGEABLE, "cuda:17", -ENODEV, "cuda:17" },
		{ WH_MEMORY_MAPPED, "numa:0", -EINVAL, "PINNED" },
		{ WH_MEMORY_MAPPED, "nowhere", -EINVAL, "nowhere" },
		{ WH_MEMORY_SHARED, "", -EINVAL, "numa:0" },
		{ WH_MEMORY_SHARED, "numa:", -EINVAL, "number" },
		{ WH_MEMORY_SHARED, "numa:x", -EINVAL, "number" },
		{ WH_MEMORY_HUGE, "numa:0x", -EINVAL, "number" },
		{ WH_MEMORY_SHARED, "numa:1024", -EINVAL, "number" },
		{ WH_MEMORY_PAGEABLE, "numa:99999999999999999999", -EINVAL, "number" },
		{ WH_MEMORY_PAGEABLE, "numa:-1", -EINVAL, "number" },
		{ WH_MEMORY_SHARED, "HOST", -EINVAL, "HOST" },
	};
	void *address = &address;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(try(1, cases[i].kind, cases[i].location, 0, &address),
				 cases[i].error);
		assert_non_null(strstr(wh_error_text(), cases[i].text));
		assert_ptr_equal(address, &address);
	}
}

/* The NUMA policy of a page's mapping, from the kernel. */
static int policy_node(const void *address)
{
	unsigned long nodes[16] = { 0 };
	int mode = -1;

	assert_int_equal(
		syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof(nodes), address, MPOL_F_ADDR),
		0);
	if (mode != MPOL_BIND)
		return -1;
	for (int node = 0; node < (int)(8 * sizeof(nodes)); node++)
		if (nodes[node / 64] >> node % 64 & 1)
			return node;
	return -1;
}

static void location__numa(void **state)
{
	unsigned long allowed[16] = { 0 };
	int first = -1, absent = -1, error;
	bool can = !syscall(SYS_get_mempolicy, NULL, allowed, 8 * sizeof(allowed), NULL,
			    MPOL_F_MEMS_ALLOWED);
	char name[2][16];
	void *address;

	(void)state;
	for (int node = 0; node < 1024; node++) {
		bool there = allowed[node / 64] >> node % 64 & 1;

		first = there && first < 0 ? node : first;
		absent = !there && absent < 0 ? node : absent;
	}
	snprintf(name[0], sizeof(name[0]), "numa:%d", first < 0 ? 0 : first);
	snprintf(name[1], sizeof(name[1]), "numa:%d", absent);
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_PINNED; kind++) {
		error = try(5 * MIB, kind, name[0], 0, &address);
		/* no NUMA in the kernel, or forbidden in this container: the error says so */
		if (!can) {
			assert_true(error == -EOPNOTSUPP || error == -EPERM);
			assert_non_null(strstr(wh_error_text(), "get_mempolicy"));
			continue;
		}
		assert_int_equal(error, 0);
		assert_int_equal(policy_node(address), first);
		((char *)address)[4096] = 1;
		assert_int_equal(query((char *)address + 4096).numa_node, first);
		must_free(address);
		assert_int_equal(try(1, kind, name[1], 0, &address), -ENODEV);
		assert_non_null(strstr(wh_error_text(), name[1]));
		assert_non_null(strstr(wh_error_text(), "it may use nodes "));
	}
}

/* ---- failures ---------------------------------------------------------- */

static void alloc__out_of_memory(void **state)
{
	void (*set)(int, size_t) = fake_symbol("fake_cuda_memory");
	size_t before = free_memory(engine, 0);
	int descriptors = open_descriptors();
	void *address;

	(void)state;
	set(0, 4 * MIB);
	for (uint32_t kind = WH_MEMORY_DEVICE; kind <= WH_MEMORY_POOL; kind++) {
		if (kind == WH_MEMORY_MANAGED) /* it may exceed a GPU's memory */
			continue;
		assert_int_equal(try(8 * MIB, kind, NULL, 0, &address), -ENOMEM);
		assert_non_null(strstr(wh_error_text(), "cuda:0"));
		assert_int_equal(try(SIZE_MAX, kind, NULL, 0, &address), -ENOMEM);
		assert_int_equal(try(SIZE_MAX / 2, kind, NULL, 0, &address), -ENOMEM);
		must_free(must_alloc(4 * MIB, kind, NULL));
	}
	for (uint32_t kind = WH_MEMORY_PINNED; kind <= WH_MEMORY_POOL; kind++)
		assert_int_equal(try(SIZE_MAX - 4096, kind, NULL, 0, &address), -ENOMEM);
	set(0, before);
	assert_int_equal(free_memory(engine, 0), before);
	assert_int_equal(open_descriptors(), descriptors);
}

/* Whichever call fails: the errno is its own, and nothing leaks. */
static void alloc__each_call_fails(void **state)
{
	static const char *const calls[] = {
		"cuCtxPushCurrent_v2",
		"cuStreamCreate",
		"cuStreamSynchronize",
		"cuMemsetD8Async",
		"cuMemAlloc_v2",
		"cuMemAllocAsync",
		"cuMemAllocManaged",
		"cuMemHostAlloc",
		"cuMemHostRegister_v2",
		"cuMemGetAllocationGranularity",
		"cuMemAddressReserve",
		"cuMemCreate",
		"cuMemMap",
		"cuMemSetAccess",
	};
	size_t before = free_memory(engine, 0);
	int descriptors = open_descriptors(), failed = 0;
	void *address = NULL;

	(void)state;
	for (uint32_t kind = WH_MEMORY_PINNED; kind <= WH_MEMORY_POOL; kind++) {
		for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
			uint64_t count = fake_calls(calls[i]);
			int error;

			fake_fail(calls[i], 1, 999);
			error = try(3 * MIB, kind, NULL, 0, &address);
			fake_fail(calls[i], 1, 0);
			if (fake_calls(calls[i]) == count) { /* not used for this kind */
				assert_int_equal(error, 0);
				must_free(address);
				continue;
			}
			assert_int_equal(error, -EIO);
			assert_non_null(strstr(wh_error_text(), "999"));
			assert_int_equal(free_memory(engine, 0), before);
			assert_int_equal(open_descriptors(), descriptors);
			failed++;
		}
	}
	assert_true(failed >= 2 + 2 + 5 + 9 + 5 + 5);
}

static void free__the_driver_fails(void **state)
{
	void *address = must_alloc(MIB, WH_MEMORY_DEVICE, NULL);

	(void)state;
	fake_fail("cuMemFree_v2", 1, 999);
	assert_int_equal(wh_memory_free(engine, address), -EIO);
	assert_non_null(strstr(wh_error_text(), "cuMemFree"));
	assert_int_equal(wh_memory_free(engine, address), -EINVAL);
	AS_APPLICATION(engine, 0, CU(engine, cuMemFree, (uintptr_t)address));
	address = must_alloc(MIB, WH_MEMORY_PINNED, NULL);
	fake_fail("cuMemHostUnregister", 1, 999);
	assert_int_equal(wh_memory_free(engine, address), -EIO);
	assert_int_equal(wh_memory_free(engine, address), -EINVAL);
	AS_APPLICATION(engine, 0, CU(engine, cuMemHostUnregister, address));
}

static void every_call__the_device_is_lost(void **state)
{
	void (*lose)(int, int, unsigned) = fake_symbol("fake_cuda_lose");
	void *address = must_alloc(MIB, WH_MEMORY_DEVICE, NULL), *other = NULL, *second;
	struct wh_memory_info info = { .size = sizeof(info) };
	struct wh_region *region;

	(void)state;
	lose(0, 719, 0);
	for (uint32_t kind = WH_MEMORY_PINNED; kind <= WH_MEMORY_POOL; kind++) {
		assert_true(try(MIB, kind, NULL, 0, &other) < 0);
		assert_non_null(strstr(wh_error_text(), "719"));
	}
	assert_int_equal(wh_memory_query(engine, address, &info), -EIO);
	assert_int_equal(wh_region_register(engine, address, MIB, NULL, &region), -EIO);
	/* The other GPU works. */
	second = must_alloc(MIB, WH_MEMORY_DEVICE, "cuda:1");
	assert_int_equal(query(second).device, 1);
	must_free(second);
	assert_int_equal(wh_memory_free(engine, address), -EIO);
	assert_int_equal(wh_memory_free(engine, address), -EINVAL);
	fake_heal();
	AS_APPLICATION(engine, 0, CU(engine, cuMemFree, (uintptr_t)address));
}

static void no_driver(const char *setting, const char *text)
{
	struct wh_engine *with = engine;
	struct wh_memory_info info = { .size = sizeof(info) };
	struct wh_region *region;
	void *address, *gpu = must_alloc(MIB, WH_MEMORY_DEVICE, NULL);
	void *plain = calloc(4, MIB);

	engine = engine_with(setting);
	for (uint32_t kind = WH_MEMORY_PINNED; kind <= WH_MEMORY_POOL; kind++) {
		assert_int_equal(try(MIB, kind, NULL, 0, &address), -ENODEV);
		assert_non_null(strstr(wh_error_text(), text));
		assert_int_equal(try(MIB, kind, "cuda:0", 0, &address), -ENODEV);
		assert_non_null(strstr(wh_error_text(), text));
	}
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_SHARED; kind++) {
		address = must_alloc(MIB, kind, NULL);
		assert_int_equal(query(address).kind, kind);
		assert_int_equal(wh_region_register(engine, address, MIB, NULL, &region), 0);
		assert_int_equal(wh_region_unregister(region), 0);
		must_free(address);
	}
	/* GPU memory of another user in this process is still not host memory. */
	assert_true(wh_memory_query(engine, gpu, &info) < 0);
	assert_true(wh_region_register(engine, gpu, MIB, NULL, &region) < 0);
	assert_int_equal(wh_memory_query(engine, plain, &info), 0);
	assert_int_equal(info.kind, WH_MEMORY_PAGEABLE);
	assert_int_equal(info.stage, WH_STAGE_SEPARATE);
	free(plain);
	assert_int_equal(wh_engine_close(engine), 0);
	engine = with;
	must_free(gpu);
}

static void every_call__switched_off(void **state)
{
	(void)state;
	no_driver("off", "WHERRY_CUDA");
	no_driver("no", "switched off");
}

/* ---- query ------------------------------------------------------------- */

static void query__memory_of_the_application(void **state)
{
	uint64_t device = 0, pool = 0, unified = 0;
	void *pinned = NULL, *heap = calloc(4, MIB);
	char *page = (char *)(((uintptr_t)heap + 4095) / 4096 * 4096);
	struct wh_memory_info info;

	(void)state;
	AS_APPLICATION(engine, 1, CU(engine, cuMemAlloc, &device, 3 * MIB);
		       CU(engine, cuMemAllocAsync, &pool, MIB, NULL);
		       CU(engine, cuMemAllocManaged, &unified, MIB, 1);
		       CU(engine, cuMemHostAlloc, &pinned, MIB, CUDA_HOST_PORTABLE);
		       CU(engine, cuMemHostRegister, page, MIB, CUDA_HOST_DEVICE_MAP));
	info = query(pointer(device + 5));
	assert_int_equal(info.kind, WH_MEMORY_DEVICE);
	assert_ptr_equal(info.base, pointer(device));
	assert_int_equal(info.length, 3 * MIB);
	assert_int_equal(info.device, 1);
	assert_int_equal(info.exports, WH_EXPORT_IPC | WH_EXPORT_DMA_BUF);
	assert_int_equal(query(pointer(pool)).kind, WH_MEMORY_POOL);
	info = query(pointer(unified + 9));
	assert_int_equal(info.kind, WH_MEMORY_MANAGED);
	assert_int_equal(info.stage, WH_STAGE_UNIFIED);
	assert_non_null(strstr(info.refusal, "managed"));
	info = query((char *)pinned + 7);
	assert_int_equal(info.kind, WH_MEMORY_PINNED);
	assert_int_equal(info.pinned, WH_PINNED_APPLICATION);
	assert_int_equal(info.stage, WH_STAGE_MAPPED);
	assert_int_equal(info.device, -1);
	assert_int_equal(info.exports, 0);
	info = query(page + MIB - 1);
	assert_int_equal(info.pinned, WH_PINNED_APPLICATION);
	assert_ptr_equal(info.base, page);
	info = query(page + MIB);
	assert_int_equal(info.kind, WH_MEMORY_PAGEABLE);
	assert_int_equal(info.pinned, WH_PINNED_NOT);
	AS_APPLICATION(engine, 1, CU(engine, cuMemFree, device); CU(engine, cuMemFree, pool);
		       CU(engine, cuMemFree, unified); CU(engine, cuMemFreeHost, pinned);
		       CU(engine, cuMemHostUnregister, page));
	assert_int_equal(wh_memory_query(engine, pointer(device), &info), -EFAULT);
	assert_int_equal(query(page).kind, WH_MEMORY_PAGEABLE);
	free(heap);
}

/* The engine's own memory keeps its kind if the application page-locks it, too. */
/* Grace: GPUs use the CPU's page tables. The nearest node has the CPUs; the GPU's memory is a node
 * of its own (NUMA_ID), on which nobody is near. */
static void query__a_coherent_machine(void **state)
{
	int (*set)(int, int) = (int (*)(int, int))fake_symbol("fake_cuda_attribute");
	const uint32_t kinds[] = { WH_MEMORY_PAGEABLE, WH_MEMORY_HUGE, WH_MEMORY_SHARED };
	struct wh_memory_info info;
	char *base;

	(void)state;
	assert_int_equal(wh_engine_close(engine), 0);
	assert_int_equal(set(CUDA_DEVICE_PAGEABLE_ACCESS, 1), 0);
	assert_int_equal(set(CUDA_DEVICE_PAGEABLE_HOST_TABLES, 1), 0);
	assert_int_equal(set(131 /* NUMA_ID */, 5), 0);
	engine = engine_with(getenv("TEST_CUDA"));
	assert_int_equal(wh_cuda_ready(engine->cuda), 0);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		base = must_alloc(MIB, kinds[i], NULL);
		*base = 1;
		info = query(base + 9);
		assert_int_equal(info.stage, WH_STAGE_UNIFIED);
		assert_int_equal(info.device_address, (uintptr_t)base + 9);
		assert_int_equal(info.host_address, (uintptr_t)base + 9);
		must_free(base);
	}
	base = must_alloc(MIB, WH_MEMORY_DEVICE, "cuda:1");
	info = query(base);
	assert_int_equal(info.stage, WH_STAGE_SEPARATE);
	assert_int_equal(info.numa_node, 0);
	must_free(base);
	/* And without. */
	assert_int_equal(wh_engine_close(engine), 0);
	fake_heal();
	engine = engine_with(getenv("TEST_CUDA"));
	assert_int_equal(wh_cuda_ready(engine->cuda), 0);
	base = must_alloc(MIB, WH_MEMORY_PAGEABLE, NULL);
	info = query(base);
	assert_int_equal(info.stage, WH_STAGE_SEPARATE);
	assert_int_equal(info.device_address, 0);
	must_free(base);
}

static void query__ours_pinned_by_the_application(void **state)
{
	char *shared = must_alloc(MIB, WH_MEMORY_SHARED, NULL);
	struct wh_memory_info info;

	(void)state;
	AS_APPLICATION(engine, 0, CU(engine, cuMemHostRegister, shared, MIB, CUDA_HOST_DEVICE_MAP));
	info = query(shared + 1);
	assert_int_equal(info.kind, WH_MEMORY_SHARED);
	assert_int_equal(info.pinned, WH_PINNED_APPLICATION);
	assert_int_equal(info.stage, WH_STAGE_MAPPED);
	assert_int_equal(info.exports, WH_EXPORT_MEMFD);
	AS_APPLICATION(engine, 0, CU(engine, cuMemHostUnregister, shared));
	must_free(shared);
}

static void query__several_mappings(void **state)
{
	uint64_t base = reserve(engine, 16 * MIB);
	struct wh_memory_info info;

	(void)state;
	map_vmm(engine, base, 2 * MIB, 0);
	map_vmm(engine, base + 2 * MIB, 4 * MIB, 0);
	map_vmm(engine, base + 6 * MIB, 2 * MIB, 0);
	map_vmm(engine, base + 8 * MIB, 2 * MIB, 1);
	map_vmm(engine, base + 12 * MIB, 2 * MIB, 1);
	for (uint64_t at = base; at < base + 8 * MIB; at += 2 * MIB) {
		info = query(pointer(at + 77));
		assert_int_equal(info.kind, WH_MEMORY_VMM);
		assert_int_equal(info.device, 0);
		assert_int_equal(info.mappings, 3);
	}
	info = query(pointer(base + 3 * MIB));
	assert_ptr_equal(info.base, pointer(base + 2 * MIB));
	assert_int_equal(info.length, 4 * MIB);
	info = query(pointer(base + 8 * MIB));
	assert_int_equal(info.device, 1);
	assert_int_equal(info.mappings, 1);
	/* Reserved addresses without memory. */
	assert_int_equal(wh_memory_query(engine, pointer(base + 11 * MIB), &info), -EFAULT);
	unreserve(engine, base, 16 * MIB);
}

static int copy_stretches(void *arg, const struct wh_vma *stretch)
{
	struct wh_vma **out = arg;

	*(*out)++ = *stretch;
	return 0;
}

/* Both queries of the kernel's mappings agree, and are right. */
static void stretches__both_ways(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *base = mmap(NULL, 5 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t start = (uintptr_t)base, bad = 0;
	struct wh_vma found[2][8], *at[2] = { found[0], found[1] };

	(void)state;
	assert_int_equal(mprotect(base, page, PROT_READ), 0);
	assert_int_equal(mprotect(base + 2 * page, page, PROT_READ | PROT_WRITE), 0);
	assert_int_equal(munmap(base + 3 * page, page), 0);
	assert_int_equal(wh_vmas_walk(start, start + 5 * page, copy_stretches, &at[0]), 0);
	assert_int_equal(wh_vmas_walk_text(start, start + 5 * page, copy_stretches, &at[1]), 0);
	assert_int_equal(at[0] - found[0], 4);
	assert_int_equal(at[1] - found[1], 4);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(found[0][i].readable, i % 2 == 0);
		assert_int_equal(found[1][i].readable, i % 2 == 0);
		assert_int_equal(found[1][i].start, found[0][i].start);
		assert_int_equal(found[1][i].end, found[0][i].end);
		assert_int_equal(found[0][i].page_size, page);
		assert_false(found[0][i].huge || found[1][i].huge);
	}
	assert_int_equal(wh_vmas_readable(start, page, &bad), 0);
	assert_int_equal(wh_vmas_readable(start + 1, page - 1, &bad), 0);
	assert_int_equal(wh_vmas_readable(start, page + 1, &bad), -EFAULT);
	assert_int_equal(bad, start + page);
	assert_int_equal(wh_vmas_readable(start + 2 * page + page - 1, 2, &bad), -EFAULT);
	assert_int_equal(bad, start + 3 * page);
	assert_int_equal(wh_vmas_readable(start + 3 * page, 1, &bad), -EFAULT);
	munmap(base, 5 * page);
}

/* An older caller's struct gets the members that it has. */
static void query__an_older_header(void **state)
{
	struct {
		struct wh_memory_info info;
	} old = { .info = { .size = offsetof(struct wh_memory_info, stage), .stage = 77 } };
	void *address = must_alloc(MIB, WH_MEMORY_DEVICE, NULL);

	(void)state;
	assert_int_equal(wh_memory_query(engine, address, &old.info), 0);
	assert_int_equal(old.info.kind, WH_MEMORY_DEVICE);
	assert_int_equal(old.info.length, MIB);
	assert_int_equal(old.info.stage, 77);
	must_free(address);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(alloc__every_kind),
		TEST(alloc__takes_whole_blocks),
		TEST(alloc__pinned_is_sealed_like_shared),
		TEST(alloc__write_combined),
		TEST(alloc__leaves_the_context_alone),
		TEST(location__device),
		TEST(location__misuse),
		TEST(location__numa),
		TEST(alloc__out_of_memory),
		TEST(alloc__each_call_fails),
		TEST(free__the_driver_fails),
		TEST(every_call__the_device_is_lost),
		TEST(every_call__switched_off),
		TEST(query__memory_of_the_application),
		TEST(query__a_coherent_machine),
		TEST(query__ours_pinned_by_the_application),
		TEST(query__several_mappings),
		TEST(stretches__both_ways),
		TEST(query__an_older_header),
	};

	setenv("FAKE_CUDA_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
