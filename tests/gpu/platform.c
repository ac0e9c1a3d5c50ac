/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binding on a real driver: what it says of devices and of every kind of memory, and that it
 * leaves contexts and stream captures alone. Prints what the driver said, for the record.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../self.h"
#include "gpu.h"
#include "gpu/kernel-images.h"

#define MIB ((size_t)1 << 20)

extern char **environ;

static const char *own_path, *driver_path;

static CUcontext current(void)
{
	CUcontext context = NULL;

	CU(cuCtxGetCurrent, &context);
	return context;
}

static void show(const char *what, const struct wh_cuda_pointer *p)
{
	printf("  %-28s memory %d base 0x%llx length 0x%llx context %s id %llu memory-id %llu "
	       "exports 0x%x%s%s"
	       "%s%s%s%s\n",
	       what, p->memory, (unsigned long long)p->base, (unsigned long long)p->length,
	       p->context ? "yes" : "none", (unsigned long long)p->buffer_id,
	       (unsigned long long)p->memory_id, p->exports, p->mapped ? " mapped" : "",
	       p->vmm ? " vmm" : "", p->pool ? " pool" : "", p->imported ? " imported" : "",
	       p->rdma ? " rdma" : "", p->sync_memops ? " sync" : "");
}

/* Every attribute as the driver gives it, for the record; but not the P2P tokens (5): where those
 * were asked for, SYNC_MEMOPS (6) was set from then on. */
static void show_raw(const char *what, uint64_t address)
{
	printf("  raw %s:", what);
	for (int attribute = 1; attribute <= 20; attribute++) {
		uint64_t value[2] = { 0 };
		int result;

		if (attribute == 5)
			continue;
		result = gpu->cuPointerGetAttribute(value, attribute, address);

		printf(result ? " %d=E%llu" : " %d=0x%llx", attribute,
		       (unsigned long long)(result ? (uint64_t)result : value[0]));
	}
	printf("\n");
}

static struct wh_cuda_pointer query(const char *what, uint64_t address,
				    enum wh_cuda_memory expected)
{
	struct wh_cuda_pointer p = { 0 };

	if (CALL(wh_cuda_query(gpu, (void *)(uintptr_t)address, &p)))
		show(what, &p);
	if (p.memory != WH_CUDA_PLAIN)
		show_raw(what, address);
	CHECK(p.memory == expected);
	return p;
}

/* ---- devices --------------------------------------------------------------------------------- */

static void devices(void)
{
	struct wh_cuda_device *found;
	char name[64];

	printf("  driver %d, %u devices\n", gpu->version, gpu->device_count);
	for (unsigned i = 0; i < gpu->device_count; i++) {
		struct wh_cuda_device *d = &gpu->devices[i];

		printf("  %s %s capability %d processors %d memory %llu copy-engines %d numa %d "
		       "mode %d "
		       "ordering %d flush %d ua %d dmabuf %d rdma %d/%d vmm %d fd %d fabric %d "
		       "managed %d/%d "
		       "pageable %d pools %d peers 0x%llx\n",
		       d->text, d->uuid, d->capability, d->processors,
		       (unsigned long long)d->memory, d->copy_engines, d->numa_node,
		       d->compute_mode, d->writes_ordering, d->flush_options, d->unified_addressing,
		       d->dma_buf, d->rdma, d->rdma_vmm, d->vmm, d->posix_fd, d->fabric, d->managed,
		       d->concurrent_managed, d->pageable, d->pools, (unsigned long long)d->peers);
		CHECK(wh_cuda_device_peers(d, d));
		snprintf(name, sizeof(name), "cuda:%u", i);
		CHECK(CALL(wh_cuda_device_find(gpu, name, &found)) && found == d);
		snprintf(name, sizeof(name), "cuda:%s", d->uuid);
		CHECK(CALL(wh_cuda_device_find(gpu, name, &found)) && found == d);
		snprintf(name, sizeof(name), "cuda:0000%s", d->pci);
		CHECK(CALL(wh_cuda_device_find(gpu, name, &found)) && found == d);
	}
	CHECK(wh_cuda_device_find(gpu, "cuda:63", &found) == -ENODEV);
	CHECK(wh_cuda_device_find(gpu, "cuda:GPU-0123-nonsense", &found) == -ENODEV);
	CHECK(wh_cuda_device_find(gpu, "cuda:ffff:1f:00.0", &found) == -ENODEV);
	CHECK(wh_cuda_device_find(gpu, "gpu0", &found) == -EINVAL);
	CHECK(current() == NULL);
}

static void peers(void)
{
	if (gpu->device_count < 2)
		return;
	if (wh_cuda_device_peers(&gpu->devices[0], &gpu->devices[1])) {
		CALL(wh_cuda_peer_enable(gpu, &gpu->devices[0], &gpu->devices[1]));
		CALL(wh_cuda_peer_enable(gpu, &gpu->devices[0], &gpu->devices[1]));
	} else {
		CHECK(wh_cuda_peer_enable(gpu, &gpu->devices[0], &gpu->devices[1]) == -EOPNOTSUPP);
	}
	CHECK(current() == NULL);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t as_kernels_see(void *pinned)
{
	uint64_t address = 0;

	INSIDE(CU(cuMemHostGetDevicePointer, &address, pinned, 0));
	return address;
}

/* Memory that no context owns is worked on in the primary one of its device. */
static void check_ownerless(const struct wh_cuda_pointer *p)
{
	struct wh_cuda_scope scope;

	CHECK(!p->context && p->device_address && p->device == &gpu->devices[0]);
	if (!CALL(wh_cuda_enter_owner(gpu, p->device_address, &scope)))
		return;
	CHECK(scope.context == gpu->devices[0].context && current() == scope.context);
	wh_cuda_leave(&scope);
}

static void query_host(void)
{
	void *plain = malloc(4 * MIB), *pinned = NULL, *mapped = NULL;
	struct wh_cuda_pointer p;
	int local = 0;

	query("malloc", (uintptr_t)plain, WH_CUDA_PLAIN);
	query("stack", (uintptr_t)&local, WH_CUDA_PLAIN);
	query("code", (uintptr_t)&query_host, WH_CUDA_PLAIN);
	INSIDE(CU(cuMemHostAlloc, &pinned, MIB, CUDA_HOST_PORTABLE));
	INSIDE(CU(cuMemHostAlloc, &mapped, MIB, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
	p = query("pinned", (uintptr_t)pinned + 100, WH_CUDA_HOST);
	CHECK(p.base == (uintptr_t)pinned && p.length >= MIB && p.host_address == p.base + 100);
	CHECK(p.mapped && p.device_address == p.host_address); /* so CUDA promises */
	p = query("pinned mapped", (uintptr_t)mapped + 100, WH_CUDA_HOST);
	CHECK(p.mapped && p.device_address == as_kernels_see(mapped) + 100);
	INSIDE(CU(cuMemFreeHost, pinned));
	INSIDE(CU(cuMemFreeHost, mapped));
	query("pinned, freed", (uintptr_t)pinned, WH_CUDA_PLAIN);
	INSIDE(CU(cuMemHostRegister, plain, 4 * MIB, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
	p = query("registered", (uintptr_t)plain + 3 * MIB, WH_CUDA_HOST);
	CHECK(p.mapped && p.device_address == as_kernels_see(plain) + 3 * MIB);
	INSIDE(CU(cuMemHostUnregister, plain));
	query("unregistered", (uintptr_t)plain, WH_CUDA_PLAIN);
	free(plain);
	CHECK(current() == NULL);
}

static void query_pool(void)
{
	struct wh_cuda_pointer p;
	uint64_t pool = 0;

	if (!gpu->devices[0].pools)
		return;
	INSIDE(CU(cuMemAllocAsync, &pool, MIB, NULL); CU(cuStreamSynchronize, NULL));
	p = query("cuMemAllocAsync", pool + 5, WH_CUDA_DEVICE);
	CHECK(p.pool && !p.vmm && !p.imported && p.base == pool && p.length >= MIB);
	check_ownerless(&p);
	INSIDE(CU(cuMemFreeAsync, pool, NULL); CU(cuStreamSynchronize, NULL));
}

static void query_device(void)
{
	uint64_t first = 0, second = 0, managed = 0, id;
	struct wh_cuda_pointer p;

	INSIDE(CU(cuMemAlloc, &first, 3 * MIB); CU(cuMemAlloc, &second, 1000);
	       CU(cuMemAllocManaged, &managed, MIB, CUDA_MANAGED_GLOBAL));
	p = query("cuMemAlloc", first + 2 * MIB, WH_CUDA_DEVICE);
	CHECK(p.base == first && p.length >= 3 * MIB && p.device == &gpu->devices[0]);
	CHECK(!p.vmm && !p.pool && !p.imported && p.exports & WH_CUDA_EXPORT_IPC &&
	      !p.host_address);
	CHECK(!p.sync_memops && p.device_address == first + 2 * MIB);
	CALL(wh_cuda_sync_memops(gpu, first));
	CHECK(query("cuMemAlloc, sync", first, WH_CUDA_DEVICE).sync_memops);
	id = p.buffer_id;
	p = query("cuMemAlloc, 1000", second + 999, WH_CUDA_DEVICE);
	CHECK(p.base == second && p.length >= 1000 && p.buffer_id != id);
	p = query("managed", managed + 5, WH_CUDA_MANAGED);
	CHECK(p.device_address == managed + 5 && p.host_address == managed + 5);
	INSIDE(CU(cuMemFree, managed); CU(cuMemFree, first); CU(cuMemFree, second));
	INSIDE(CU(cuMemAlloc, &second, 3 * MIB));
	p = query("allocated again", second, WH_CUDA_DEVICE);
	CHECK(p.buffer_id != id && !p.sync_memops);
	INSIDE(CU(cuMemFree, second));
	CHECK(current() == NULL);
}

struct walk {
	unsigned count;
	uint64_t bytes, end;
};

static int step(void *arg, const struct wh_cuda_pointer *p, uint64_t start, uint64_t count)
{
	struct walk *walk = arg;

	CHECK(!walk->count || start == walk->end);
	CHECK(start >= p->base && start + count <= p->base + p->length);
	walk->count++;
	walk->bytes += count;
	walk->end = start + count;
	return 0;
}

/* By a system call, which says EFAULT where the CPU would fault. */
static bool can_read(uint64_t address)
{
	int ends[2];
	bool can = true;

	if (CHECK(!pipe2(ends, O_CLOEXEC))) {
		can = write(ends[1], (void *)(uintptr_t)address, 1) == 1 || errno != EFAULT;
		close(ends[0]);
		close(ends[1]);
	}
	return can;
}

static void query_vmm(void)
{
	struct wh_cuda_properties properties = { .type = CUDA_ALLOCATION_PINNED,
						 .handle_types = CUDA_HANDLE_FD,
						 .location = { CUDA_LOCATION_DEVICE, 0 } };
	struct wh_cuda_access access = { { CUDA_LOCATION_DEVICE, 0 }, 3 };
	CUallocation memory[3] = { 0 };
	struct wh_cuda_pointer p;
	struct walk walk = { 0 };
	size_t page = 0;
	uint64_t base = 0;

	if (!gpu->devices[0].vmm)
		return;
	properties.location.id = access.location.id = gpu->devices[0].handle;
	CU(cuMemGetAllocationGranularity, &page, &properties, CUDA_GRANULARITY_MINIMUM);
	CU(cuMemAddressReserve, &base, 8 * page, 0, 0, 0);
	/* Three mappings of 1, 2 and 1 pages, then nothing. */
	for (int i = 0; i < 3; i++)
		CU(cuMemCreate, &memory[i], (i == 1 ? 2 : 1) * page, &properties, 0);
	CU(cuMemMap, base, page, 0, memory[0], 0);
	CU(cuMemMap, base + page, 2 * page, 0, memory[1], 0);
	CU(cuMemMap, base + 3 * page, page, 0, memory[2], 0);
	CU(cuMemSetAccess, base, 4 * page, &access, 1);
	p = query("cuMemMap, first", base, WH_CUDA_DEVICE);
	CHECK(p.vmm && !p.pool && !p.imported && p.exports & WH_CUDA_EXPORT_FD);
	CHECK(p.base == base && p.length == page);
	check_ownerless(&p);
	CHECK(wh_cuda_sync_memops(gpu, base) == -EOPNOTSUPP);
	p = query("cuMemMap, second", base + 2 * page + 77, WH_CUDA_DEVICE);
	CHECK(p.base == base + page && p.length == 2 * page);
	CALL(wh_cuda_walk(gpu, (void *)(uintptr_t)(base + 100), 4 * page - 200, step, &walk));
	CHECK(walk.count == 3 && walk.bytes == 4 * page - 200);
	show_raw("reserved only", base + 6 * page);
	query("reserved only", base + 6 * page, WH_CUDA_PLAIN);
	CHECK(!can_read(base + 6 * page) && !can_read(base));
	CHECK(wh_cuda_walk(gpu, (void *)(uintptr_t)base, 5 * page, step, &(struct walk){ 0 }) ==
	      -EFAULT);
	printf("  %s\n", wh_error_text());
	CHECK(wh_cuda_walk(gpu, (void *)(uintptr_t)(base + 3 * page), 2 * page, step,
			   &(struct walk){ 0 }) == -EFAULT);
	CU(cuMemUnmap, base, 4 * page);
	for (int i = 0; i < 3; i++)
		CU(cuMemRelease, memory[i]);
	CU(cuMemAddressFree, base, 8 * page);
	query("address freed", base, WH_CUDA_PLAIN);
	CHECK(current() == NULL);
}

/* ---- another process's memory ---------------------------------------------------------------- */

/* In the other process: the handle comes in on descriptor 0. */
static void import_case(void)
{
	struct wh_cuda_ipc_handle handle;
	struct wh_cuda_pointer p;
	uint64_t address = 0;

	CHECK(read(0, &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
	INSIDE(CU(cuIpcOpenMemHandle, &address, handle, CUDA_IPC_LAZY_PEER));
	p = query("cuIpcOpenMemHandle", address + 10, WH_CUDA_DEVICE);
	CHECK(p.imported && !p.vmm && !p.pool && p.base == address);
	INSIDE(CU(cuIpcCloseMemHandle, address));
}

static void query_imported(void)
{
	char *const arguments[] = { (char *)own_path, "import", (char *)driver_path, NULL };
	posix_spawn_file_actions_t actions;
	struct wh_cuda_ipc_handle handle;
	uint64_t address = 0;
	int ends[2], status = -1;
	pid_t child;

	INSIDE(CU(cuMemAlloc, &address, 4 * MIB); CU(cuIpcGetMemHandle, &handle, address));
	CHECK(!pipe2(ends, O_CLOEXEC) &&
	      write(ends[1], &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
	if (CHECK(!posix_spawn(&child, own_path, &actions, NULL, arguments, environ)))
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[0]);
	close(ends[1]);
	INSIDE(CU(cuMemFree, address));
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void contexts(void)
{
	struct wh_cuda_device *device = &gpu->devices[0];
	struct wh_cuda_scope outer, inner;
	CUcontext mine = NULL, popped = NULL;
	struct wh_cuda_pointer p;
	uint64_t address = 0;

	CU(cuCtxCreate, &mine, 0, device->handle);
	CU(cuMemAlloc, &address, MIB);
	CHECK(current() == mine);
	CALL(wh_cuda_enter(gpu, device, &outer));
	CHECK(current() == outer.context && outer.context != mine &&
	      outer.context == device->context);
	CALL(wh_cuda_enter_owner(gpu, address, &inner));
	CHECK(current() == mine);
	wh_cuda_leave(&inner);
	CHECK(current() == device->context);
	wh_cuda_leave(&outer);
	CHECK(current() == mine);
	p = query("of another context", address, WH_CUDA_DEVICE);
	CHECK(p.context == mine);
	CHECK(wh_cuda_enter_owner(gpu, (uintptr_t)&p, &inner) == -EINVAL);
	printf("  %s\n", wh_error_text());
	CHECK(current() == mine);
	CU(cuMemFree, address);
	CU(cuCtxPopCurrent, &popped);
	CHECK(popped == mine && current() == NULL);
	CU(cuCtxDestroy, mine);
}

/* Allocating while the application captures a stream, which the driver refuses otherwise. */
static void capture(void)
{
	int (*begin)(CUstream, int) = wh_cuda_symbol(gpu, "cuStreamBeginCapture_v2");
	int (*end)(CUstream, void **) = wh_cuda_symbol(gpu, "cuStreamEndCapture");
	int (*destroy)(void *) = wh_cuda_symbol(gpu, "cuGraphDestroy");
	struct wh_cuda_scope application, scope;
	uint64_t address = 0;
	CUstream stream = NULL;
	void *graph = NULL;
	int mode;

	if (!begin || !end || !destroy)
		return;
	CALL(wh_cuda_enter(gpu, &gpu->devices[0], &application));
	mode = CUDA_CAPTURE_GLOBAL;
	CU(cuThreadExchangeStreamCaptureMode, &mode);
	CU(cuStreamCreate, &stream, CUDA_STREAM_NON_BLOCKING);
	CHECK(!begin(stream, CUDA_CAPTURE_GLOBAL));
	CALL(wh_cuda_enter(gpu, &gpu->devices[0], &scope));
	CU(cuMemAlloc, &address, MIB);
	CU(cuMemFree, address);
	wh_cuda_leave(&scope);
	mode = CUDA_CAPTURE_GLOBAL;
	CU(cuThreadExchangeStreamCaptureMode, &mode);
	CHECK(mode == CUDA_CAPTURE_GLOBAL);
	CHECK(!end(stream, &graph) && graph && !destroy(graph));
	CU(cuStreamDestroy, stream);
	wh_cuda_leave(&application);
}

/* ---- errors and kernels ---------------------------------------------------------------------- */

static void errors(void)
{
	struct wh_cuda_scope scope;
	uint64_t address;

	CALL(wh_cuda_enter(gpu, &gpu->devices[0], &scope));
	CHECK(wh_cuda_call(gpu, cuMemAlloc, &address, (size_t)1 << 46) == -ENOMEM);
	CHECK(strstr(wh_error_text(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2"));
	printf("  %s\n", wh_error_text());
	wh_cuda_leave(&scope);
}

static void kernels(void)
{
	static const char broken[] =
		".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry x()\n"
		"{ mov.b32 %nowhere, 1; }\n";
	const struct wh_cuda_image *ptx = &wh_cuda_images[WH_CUDA_IMAGES - 1];
	struct wh_cuda_device *device = &gpu->devices[0];
	struct wh_cuda_kernels loaded;
	struct wh_cuda_scope scope;
	CUmodule module;

	CALL(wh_cuda_enter(gpu, device, &scope));
	if (CALL(wh_cuda_kernels_load(gpu, device, &loaded))) {
		printf("  loaded as %s\n", loaded.image);
		wh_cuda_kernels_unload(gpu, &loaded);
		CHECK(!loaded.module);
	}
	if (CALL(wh_cuda_image_load(gpu, ptx->bytes, ptx->name, &module)))
		CU(cuModuleUnload, module);
	if (!driver_path) { /* the real one compiles */
		CHECK(wh_cuda_image_load(gpu, broken, "broken", &module) == -ENOEXEC);
		CHECK(strstr(wh_error_text(), "nowhere") || strstr(wh_error_text(), "ptxas"));
		printf("  %s\n", wh_error_text());
	}
	wh_cuda_leave(&scope);
	CHECK(current() == NULL);
}

int main(int count, char **arguments)
{
	bool importing = count > 1 && !strcmp(arguments[1], "import");

	own_path = self_path();
	driver_path = count > (importing ? 2 : 1) ? arguments[importing ? 2 : 1] : NULL;
	gpu_open(driver_path);
	if (importing) {
		gpu_case("import", import_case);
		return gpu_close();
	}
	gpu_case("devices", devices);
	gpu_case("peers", peers);
	gpu_case("query__host", query_host);
	gpu_case("query__device", query_device);
	gpu_case("query__pool", query_pool);
	gpu_case("query__vmm", query_vmm);
	gpu_case("query__imported", query_imported);
	gpu_case("contexts", contexts);
	gpu_case("capture", capture);
	gpu_case("errors", errors);
	gpu_case("kernels", kernels);
	return gpu_close();
}
