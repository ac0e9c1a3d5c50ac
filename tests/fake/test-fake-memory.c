/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the fake CUDA driver: allocation, pointer attributes, virtual memory management and
 * dma-bufs. */
#include "test-fake.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	CONTEXT = 1,
	MEMORY_TYPE,
	DEVICE_POINTER,
	HOST_POINTER,
	P2P_TOKENS,
	SYNC_MEMOPS,
	BUFFER_ID,
	IS_MANAGED,
	DEVICE_ORDINAL,
	LEGACY_IPC,
	RANGE_START,
	RANGE_SIZE,
	MAPPED,
	HANDLE_TYPES,
	ACCESS_FLAGS = 16,
	MEMPOOL,
	MAPPING_SIZE,
	MAPPING_BASE,
};

static uint64_t get_attribute(int which, uint64_t address)
{
	uint64_t value = 0;

	ok(cu.PointerGetAttribute(&value, which, address));
	return value;
}

/* Does a load by the CPU fault? */
static int load_faults(uint64_t address)
{
	pid_t child = fork();
	int status, nowhere;

	assert_true(child >= 0);
	if (!child) {
		nowhere = open("/dev/null", O_WRONLY);
		dup2(nowhere, 2); /* hide a sanitizer's report */
		signal(SIGSEGV, SIG_DFL);
		status = *(volatile unsigned char *)(uintptr_t)address;
		_exit(status == 1000 ? 41 : 42);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return !(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

/* ---- device memory --------------------------------------------------------------------------- */

static void alloc__device(void **state)
{
	char out[100] = { 0 };
	uint64_t address, base;
	size_t size, available, total, before;

	(void)state;
	ok(cu.MemGetInfo(&before, &total));
	ok(cu.MemAlloc(&address, 3 * MIB));
	ok(cu.MemcpyHtoD(address + 5, "some bytes of a string", 23));
	ok(cu.MemcpyDtoH(out, address + 5, 23));
	assert_string_equal(out, "some bytes of a string");
	ok(cu.MemGetAddressRange(&base, &size, address + MIB));
	assert_int_equal(base, address);
	assert_int_equal(size, 3 * MIB);
	ok(cu.MemGetInfo(&available, &total));
	assert_int_equal(before - available, 3 * MIB);
	assert_int_equal(cu.MemFree(address + 1), 1);
	ok(cu.MemFree(address));
	assert_int_equal(cu.MemFree(address), 1);
	ok(cu.MemFree(0));
	assert_int_equal(cu.MemAlloc(&address, 0), 1);
	assert_int_equal(cu.MemcpyDtoH(out, address, 23), 1);
	ok(cu.MemGetInfo(&available, &total));
	assert_int_equal(before, available);
}

static void alloc__cpu_faults(void **state)
{
	uint64_t device, small, managed;
	void *host;

	(void)state;
	ok(cu.MemAlloc(&device, MIB));
	ok(cu.MemAlloc(&small, 8));
	ok(cu.MemAllocManaged(&managed, 4096, 1));
	ok(cu.MemAllocHost(&host, 4096));
	assert_true(load_faults(device));
	assert_true(load_faults(device + MIB - 1));
	assert_true(load_faults(small));
	assert_false(load_faults(managed));
	assert_false(load_faults((uintptr_t)host));
	/* The driver itself can access it. */
	ok(cu.MemsetD8(small, 7, 8));
	ok(cu.CtxSynchronize());
	assert_int_equal(*(char *)fake.alias(small + 7), 7);
	ok(cu.MemFree(device));
	ok(cu.MemFree(small));
	ok(cu.MemFree(managed));
	ok(cu.MemFreeHost(host));
}

static void alloc__out_of_memory(void **state)
{
	uint64_t a, b;

	(void)state;
	fake.memory(0, 4 * MIB);
	ok(cu.MemAlloc(&a, 3 * MIB));
	assert_int_equal(cu.MemAlloc(&b, 2 * MIB), 2);
	assert_int_equal(cu.MemAlloc(&b, SIZE_MAX), 2);
	ok(cu.MemAlloc(&b, MIB));
	ok(cu.MemFree(a));
	ok(cu.MemAlloc(&a, 2 * MIB));
	ok(cu.MemFree(a));
	ok(cu.MemFree(b));
}

static void alloc__async(void **state)
{
	uint64_t address;
	void *stream;

	(void)state;
	ok(cu.StreamCreate(&stream, 1));
	ok(cu.MemAllocAsync(&address, 1000, stream));
	assert_true(get_attribute(MEMPOOL, address) != 0);
	assert_int_equal(get_attribute(CONTEXT, address), 0);
	assert_int_equal(get_attribute(LEGACY_IPC, address), 0);
	ok(cu.MemsetD8Async(address, 3, 1000, stream));
	ok(cu.MemFreeAsync(address, stream));
	assert_int_equal(cu.MemFreeAsync(address, stream), 1);
	assert_int_equal(cu.MemFree(address), 1);
	ok(cu.StreamSynchronize(stream));
	ok(cu.StreamDestroy(stream));
}

/* ---- attributes ------------------------------------------------------------------------------ */

static void attributes__device(void **state)
{
	struct ipc_handle handle;
	uint64_t address, id;
	unsigned on = 1;

	(void)state;
	ok(cu.CtxSetCurrent(contexts[1]));
	ok(cu.MemAlloc(&address, 5000));
	ok(cu.CtxSetCurrent(contexts[0]));
	assert_ptr_equal(get_attribute(CONTEXT, address + 4999), contexts[1]);
	assert_int_equal(get_attribute(MEMORY_TYPE, address), 2);
	assert_int_equal(get_attribute(DEVICE_POINTER, address + 7), address + 7);
	assert_int_equal(get_attribute(IS_MANAGED, address), 0);
	assert_int_equal(get_attribute(DEVICE_ORDINAL, address), 1);
	assert_int_equal(get_attribute(LEGACY_IPC, address), 1);
	assert_int_equal(get_attribute(RANGE_START, address + 100), address);
	assert_int_equal(get_attribute(RANGE_SIZE, address + 100), 5000);
	assert_int_equal(get_attribute(MAPPED, address), 1);
	assert_int_equal(get_attribute(HANDLE_TYPES, address), 0);
	assert_int_equal(get_attribute(MEMPOOL, address), 0);
	assert_int_equal(get_attribute(ACCESS_FLAGS, address), 3);
	assert_int_equal(cu.PointerGetAttribute(&id, HOST_POINTER, address), 1);
	assert_int_equal(cu.PointerGetAttribute(&id, BUFFER_ID, address + 5000), 1);
	assert_int_equal(cu.PointerGetAttribute(&id, 77, address), 1);
	assert_int_equal(get_attribute(SYNC_MEMOPS, address), 0);
	ok(cu.PointerSetAttribute(&on, SYNC_MEMOPS, address));
	assert_int_equal(get_attribute(SYNC_MEMOPS, address), 1);
	/* A handle opens in other processes only. */
	ok(cu.IpcGetMemHandle(&handle, address + 10));
	assert_int_equal(cu.IpcOpenMemHandle(&id, handle, 1), 201);
	ok(cu.MemFree(address));
}

/* Two numbers in 16 bytes, for memory of cuMemAlloc. */
static void attributes__p2p_tokens(void **state)
{
	struct {
		unsigned long long token;
		unsigned space;
		unsigned char behind[4], beyond[8];
	} tokens, again;
	const int which = P2P_TOKENS;
	void *data = &again;
	uint64_t address, pool;
	void *host;

	(void)state;
	memset(&tokens, 0xa5, sizeof(tokens));
	ok(cu.MemAlloc(&address, 5000));
	ok(cu.PointerGetAttribute(&tokens, P2P_TOKENS, address + 4999));
	assert_true(tokens.token && tokens.space);
	assert_int_equal(tokens.beyond[0], 0xa5);
	ok(cu.PointerGetAttributes(1, &which, &data, address));
	assert_true(again.token == tokens.token && again.space == tokens.space);
	ok(cu.MemHostAlloc(&host, 64, 0));
	assert_int_equal(cu.PointerGetAttribute(&tokens, P2P_TOKENS, (uintptr_t)host), 1);
	ok(cu.MemAllocAsync(&pool, 64, NULL));
	assert_int_equal(cu.PointerGetAttribute(&tokens, P2P_TOKENS, pool), 1);
	ok(cu.PointerGetAttributes(1, &which, &data, pool));
	assert_true(!again.token && !again.space);
	ok(cu.MemFreeAsync(pool, NULL));
	ok(cu.MemFreeHost(host));
	ok(cu.MemFree(address));
}

static void attributes__buffer_ids_never_recur(void **state)
{
	uint64_t address, id, last = 0;

	(void)state;
	for (int i = 0; i < 50; i++) {
		ok(cu.MemAlloc(&address, 4096));
		id = get_attribute(BUFFER_ID, address);
		assert_true(id > last);
		last = id;
		ok(cu.MemFree(address));
	}
}

static void attributes__host(void **state)
{
	static char pageable[8192] __attribute__((aligned(4096)));
	int which[] = { MEMORY_TYPE, DEVICE_ORDINAL, BUFFER_ID };
	uint64_t value, id = 5, type = 5;
	int ordinal = 5;
	void *data[] = { &type, &ordinal, &id }, *pinned;
	unsigned flags;

	(void)state;
	assert_int_equal(cu.PointerGetAttribute(&value, MEMORY_TYPE, (uintptr_t)pageable), 1);
	type = 0;
	ok(cu.PointerGetAttributes(3, which, data, (uintptr_t)pageable));
	assert_int_equal(type, 0);
	assert_int_equal(ordinal, -2);
	assert_int_equal(id, 0);
	ok(cu.MemHostAlloc(&pinned, 5000, 1));
	assert_int_equal(get_attribute(MEMORY_TYPE, (uintptr_t)pinned), 1);
	assert_int_equal(get_attribute(HOST_POINTER, (uintptr_t)pinned + 9), (uintptr_t)pinned + 9);
	assert_ptr_equal(get_attribute(CONTEXT, (uintptr_t)pinned), contexts[0]);
	ok(cu.MemHostGetFlags(&flags, pinned));
	assert_int_equal(flags, 3);
	ok(cu.MemHostGetDevicePointer(&value, pinned, 0));
	assert_ptr_equal(value, pinned);
	ok(cu.PointerGetAttributes(3, which, data, (uintptr_t)pinned));
	assert_int_equal(ordinal, 0);
	ok(cu.MemFreeHost(pinned));
	assert_int_equal(cu.MemFreeHost(pinned), 1);
}

static void host__register(void **state)
{
	char *memory =
		mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t address;

	(void)state;
	assert_ptr_not_equal(memory, MAP_FAILED);
	ok(cu.MemHostRegister(memory, 8192, 0));
	assert_int_equal(cu.MemHostRegister(memory + 4096, 8192, 0), 712);
	assert_int_equal(cu.MemHostRegister(memory + 8192, 4096, 4), 1);
	assert_int_equal(get_attribute(MEMORY_TYPE, (uintptr_t)memory), 1);
	assert_int_equal(cu.MemHostUnregister(memory + 4096), 1);
	ok(cu.MemHostUnregister(memory));
	assert_int_equal(cu.MemHostUnregister(memory), 713);
	munmap(memory, 16384);
	assert_int_equal(cu.MemHostRegister(memory, 8192, 0), 1);
	ok(cu.MemAlloc(&address, 8192));
	assert_int_equal(cu.MemHostRegister((void *)(uintptr_t)(address + 4096), 4096, 0), 1);
	ok(cu.MemFree(address));
}

/* A file that is mapped for reading takes READ_ONLY; pages that it loses later are stale, and no
 * signal comes. */
static void host__register_file(void **state)
{
	char path[] = "/tmp/wherry-fake-XXXXXX", *map, bytes[8192];
	int fd = mkstemp(path);
	uint64_t address, there;

	(void)state;
	assert_true(fd >= 0);
	unlink(path);
	memset(bytes, 7, sizeof(bytes));
	assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	map = mmap(NULL, 16384, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_int_equal(cu.MemHostRegister(map, 8192, 0), 1);
	assert_int_equal(cu.MemHostRegister(map, 16384, 8), 1); /* behind the end */
	fake.attribute(113, 0);
	assert_int_equal(cu.MemHostRegister(map, 8192, 8), 801);
	fake.heal();
	ok(cu.MemHostRegister(map, 8192, 3 | 8));
	ok(cu.MemHostGetDevicePointer(&there, map, 0));
	ok(cu.MemAlloc(&address, 8192));
	assert_int_equal(ftruncate(fd, 4096), 0);
	ok(cu.MemcpyAsync(address, there, 8192, NULL));
	ok(cu.CtxSynchronize());
	ok(cu.MemcpyDtoH(bytes, address, 8192));
	assert_int_equal(bytes[4095], 7);
	assert_int_equal((unsigned char)bytes[4096], 0xee);
	assert_int_equal(cu.MemcpyAsync(there, address, 4096, NULL), 1);
	ok(cu.MemFree(address));
	ok(cu.MemHostUnregister(map));
	munmap(map, 16384);
	close(fd);
}

static void managed__is_reached_by_both(void **state)
{
	uint64_t address;

	(void)state;
	assert_int_equal(cu.MemAllocManaged(&address, 4096, 0), 1);
	ok(cu.MemAllocManaged(&address, 4096, 1));
	assert_int_equal(get_attribute(IS_MANAGED, address), 1);
	assert_int_equal(get_attribute(MEMORY_TYPE, address), 2);
	ok(cu.MemsetD8(address, 9, 4096));
	assert_int_equal(((char *)(uintptr_t)address)[4095], 9);
	ok(cu.MemFree(address));
}

/* ---- virtual memory management --------------------------------------------------------------- */

static const struct properties exportable = { .type = 1, .handle_types = 1, .location = { 1, 0 } };

static uint64_t create(int device, size_t size)
{
	struct properties properties = exportable;
	uint64_t handle;

	properties.location.id = device;
	ok(cu.MemCreate(&handle, size, &properties, 0));
	return handle;
}

static void vmm__several_mappings_in_a_range(void **state)
{
	const struct access access = { { 1, 0 }, 3 };
	uint64_t range, handles[3], base, first;
	size_t granularity, size;
	char in[64], out[64];

	(void)state;
	ok(cu.MemGetAllocationGranularity(&granularity, &exportable, 0));
	assert_int_equal(granularity, 2 * MIB);
	ok(cu.MemAddressReserve(&range, 8 * granularity, 0, 0, 0));
	assert_int_equal(range % granularity, 0);
	assert_true(load_faults(range));
	for (int i = 0; i < 3; i++) {
		handles[i] = create(0, granularity);
		ok(cu.MemMap(range + i * granularity, granularity, 0, handles[i], 0));
		ok(cu.MemRelease(handles[i])); /* the mapping keeps it */
	}
	ok(cu.MemSetAccess(range, 3 * granularity, &access, 1));
	assert_true(load_faults(range + granularity));
	memset(in, 'x', sizeof(in));
	ok(cu.MemcpyHtoD(range + granularity - 32, in, sizeof(in)));
	ok(cu.MemcpyDtoH(out, range + granularity - 32, sizeof(out)));
	assert_memory_equal(in, out, sizeof(in));
	/* Attributes of the mapping, of the reservation and of the next mapping. */
	ok(cu.MemGetAddressRange(&base, &size, range + granularity + 5));
	assert_int_equal(base, range + granularity);
	assert_int_equal(size, granularity);
	assert_int_equal(get_attribute(RANGE_START, range + granularity + 5), range);
	assert_int_equal(get_attribute(RANGE_SIZE, range), 8 * granularity);
	assert_int_equal(get_attribute(MAPPING_SIZE, range), granularity);
	first = get_attribute(BUFFER_ID, range);
	assert_int_not_equal(get_attribute(BUFFER_ID, range + granularity), first);
	assert_int_equal(get_attribute(CONTEXT, range), 0);
	assert_int_equal(get_attribute(HANDLE_TYPES, range), 1);
	assert_int_equal(cu.PointerGetAttribute(&first, MAPPED, range + 3 * granularity), 1);
	assert_int_equal(cu.PointerSetAttribute(&size, SYNC_MEMOPS, range), 801);
	assert_int_equal(cu.MemcpyDtoH(out, range + 3 * granularity - 32, sizeof(out)), 1);
	assert_int_equal(cu.MemAddressFree(range, 8 * granularity), 1);
	assert_int_equal(cu.MemUnmap(range, granularity / 2), 1);
	ok(cu.MemUnmap(range + granularity, granularity));
	assert_int_equal(cu.PointerGetAttribute(&first, MAPPED, range + granularity), 1);
	ok(cu.MemUnmap(range, 8 * granularity)); /* gaps are allowed */
	ok(cu.MemAddressFree(range, 8 * granularity));
}

static void vmm__access(void **state)
{
	struct access access = { { 1, 1 }, 3 };
	const struct location here = { 1, 0 };
	unsigned long long flags;
	uint64_t range, handle = create(1, 2 * MIB), again;
	struct properties properties;

	(void)state;
	ok(cu.MemAddressReserve(&range, 2 * MIB, 0, 0, 0));
	assert_int_equal(cu.MemMap(range, 4 * MIB, 0, handle, 0), 801);
	assert_int_equal(cu.MemMap(range, 2 * MIB, 2 * MIB, handle, 0), 801);
	ok(cu.MemMap(range, 2 * MIB, 0, handle, 0));
	assert_int_equal(cu.MemMap(range, 2 * MIB, 0, handle, 0), 1);
	ok(cu.MemSetAccess(range, 2 * MIB, &access, 1));
	assert_int_equal(cu.MemcpyHtoD(range, "x", 1), 1); /* device 0 has no access */
	access.location.id = 0;
	access.flags = 1;
	ok(cu.MemSetAccess(range, 2 * MIB, &access, 1));
	assert_int_equal(cu.MemcpyHtoD(range, "x", 1), 1); /* read access only */
	ok(cu.MemGetAccess(&flags, &here, range));
	assert_int_equal(flags, 1);
	assert_int_equal(get_attribute(ACCESS_FLAGS, range), 1);
	ok(cu.MemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + 5)));
	assert_int_equal(again, handle);
	ok(cu.MemGetAllocationPropertiesFromHandle(&properties, handle));
	assert_int_equal(properties.location.id, 1);
	ok(cu.MemRelease(handle));
	ok(cu.MemRelease(handle));
	assert_int_equal(cu.MemRelease(handle), 1);
	ok(cu.MemUnmap(range, 2 * MIB));
	ok(cu.MemAddressFree(range, 2 * MIB));
}

static void vmm__export_and_import_in_one_process(void **state)
{
	const struct access access = { { 1, 0 }, 3 };
	uint64_t range, handle = create(0, 2 * MIB), imported, plain;
	struct properties properties = exportable;
	char out[6];
	int fd;

	(void)state;
	ok(cu.MemExportToShareableHandle(&fd, handle, 1, 0));
	ok(cu.MemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, 1));
	close(fd);
	ok(cu.MemAddressReserve(&range, 4 * MIB, 0, 0, 0));
	ok(cu.MemMap(range, 2 * MIB, 0, handle, 0));
	ok(cu.MemMap(range + 2 * MIB, 2 * MIB, 0, imported, 0));
	ok(cu.MemSetAccess(range, 4 * MIB, &access, 1));
	ok(cu.MemcpyHtoD(range + 77, "hello", 6));
	ok(cu.MemcpyDtoH(out, range + 2 * MIB + 77, 6));
	assert_string_equal(out, "hello");
	ok(cu.MemUnmap(range, 4 * MIB));
	ok(cu.MemAddressFree(range, 4 * MIB));
	ok(cu.MemRelease(handle));
	ok(cu.MemRelease(imported));
	assert_int_equal(cu.MemImportFromShareableHandle(&imported, (void *)(intptr_t)0, 1), 1);
	assert_int_equal(cu.MemImportFromShareableHandle(&imported, (void *)(intptr_t)999, 1), 999);
	properties.handle_types = 0;
	ok(cu.MemCreate(&plain, 2 * MIB, &properties, 0));
	assert_int_equal(cu.MemExportToShareableHandle(&fd, plain, 1, 0), 1);
	ok(cu.MemRelease(plain));
	properties.handle_types = 8;
	assert_int_equal(cu.MemCreate(&plain, 2 * MIB, &properties, 0), 800);
	assert_int_equal(cu.MemCreate(&plain, MIB, &exportable, 0), 1);
}

/* ---- dma-buf --------------------------------------------------------------------------------- */

static void dmabuf__is_the_memory(void **state)
{
	uint64_t address;
	char *map;
	off_t offset;
	int fd;

	(void)state;
	ok(cu.MemAlloc(&address, 4 * MIB));
	ok(cu.MemcpyHtoD(address + MIB, "dma", 4));
	ok(cu.CtxSynchronize());
	assert_int_equal(cu.MemGetHandleForAddressRange(&fd, address, 4 * MIB, 1, 1), 801);
	assert_int_equal(cu.MemGetHandleForAddressRange(&fd, address + 1, 4096, 1, 0), 1);
	ok(cu.MemGetHandleForAddressRange(&fd, address + MIB, MIB, 1, 0));
	offset = lseek(fd, 0, SEEK_CUR);
	assert_int_equal(offset, MIB);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, offset);
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_string_equal(map, "dma");
	munmap(map, 4096);
	close(fd);
	ok(cu.MemFree(address));
}

int test_memory(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(alloc__device, test_setup),
		cmocka_unit_test_setup(alloc__cpu_faults, test_setup),
		cmocka_unit_test_setup(alloc__out_of_memory, test_setup),
		cmocka_unit_test_setup(alloc__async, test_setup),
		cmocka_unit_test_setup(attributes__device, test_setup),
		cmocka_unit_test_setup(attributes__p2p_tokens, test_setup),
		cmocka_unit_test_setup(attributes__buffer_ids_never_recur, test_setup),
		cmocka_unit_test_setup(attributes__host, test_setup),
		cmocka_unit_test_setup(host__register, test_setup),
		cmocka_unit_test_setup(host__register_file, test_setup),
		cmocka_unit_test_setup(managed__is_reached_by_both, test_setup),
		cmocka_unit_test_setup(vmm__several_mappings_in_a_range, test_setup),
		cmocka_unit_test_setup(vmm__access, test_setup),
		cmocka_unit_test_setup(vmm__export_and_import_in_one_process, test_setup),
		cmocka_unit_test_setup(dmabuf__is_the_memory, test_setup),
	};

	return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
