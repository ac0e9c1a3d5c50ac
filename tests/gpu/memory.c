/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of every kind on a real driver: memory [DRIVER]. What the engine allocates, what it says
 * of the application's memory, and that registrations notice when memory goes. Prints what it
 * found, and what things cost, for the record.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../self.h"
#include "core/engine.h"
#include "core/region.h"
#include "gpu.h"
#include "memory/memory.h"

#define MIB ((size_t)1 << 20)

extern char **environ;

static struct wh_engine *engine;
static const char *driver_path;

static void *pointer(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

static bool on_device(uint32_t kind)
{
	return kind == WH_MEMORY_DEVICE || kind == WH_MEMORY_VMM || kind == WH_MEMORY_POOL;
}

static struct wh_memory_info query(const char *what, const void *address, uint32_t kind)
{
	struct wh_memory_info info = { .size = sizeof(info) };

	if (!CALL(wh_memory_query(engine, address, &info)))
		return info;
	printf("  %-24s kind %u stage %u pinned %u exports %#x mappings %u device %d numa %d "
	       "imported %u "
	       "page %u base %p length %llu id %llu gpu 0x%llx cpu 0x%llx %s %s%s%s\n",
	       what, info.kind, info.stage, info.pinned, info.exports, info.mappings, info.device,
	       info.numa_node, info.imported, info.page_size, info.base,
	       (unsigned long long)info.length, (unsigned long long)info.buffer_id,
	       (unsigned long long)info.device_address, (unsigned long long)info.host_address,
	       info.uuid, info.pci, *info.refusal ? " refused: " : "", info.refusal);
	CHECK(info.kind == kind);
	return info;
}

/* The kernel's line for the address, for the record. */
static void show_stretch(const char *what, uint64_t address)
{
	FILE *file = fopen("/proc/self/maps", "re");
	char line[512];
	uint64_t start, end;

	while (file && fgets(line, sizeof(line), file)) {
		/* NOLINTNEXTLINE(cert-err34-c): the kernel's own numbers */
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && address >= start && address < end)
			printf("  maps of %s: %s", what, line);
	}
	if (file)
		fclose(file);
}

/* ---- the engine's own memory ------------------------------------------------------------- */

static const char *const names[] = {
	[WH_MEMORY_PAGEABLE] = "pageable", [WH_MEMORY_HUGE] = "huge",
	[WH_MEMORY_SHARED] = "shared",     [WH_MEMORY_PINNED] = "pinned",
	[WH_MEMORY_MAPPED] = "mapped",     [WH_MEMORY_DEVICE] = "device",
	[WH_MEMORY_VMM] = "vmm",           [WH_MEMORY_MANAGED] = "managed",
	[WH_MEMORY_POOL] = "pool",
};

static void check_zero(const void *address, size_t length)
{
	unsigned char *bytes = malloc(length);
	size_t wrong = 0;

	memset(bytes, 0xee, length);
	INSIDE(CU(cuMemcpyDtoH, bytes, (uintptr_t)address, length));
	for (size_t i = 0; i < length; i++)
		wrong += bytes[i] != 0;
	CHECK(wrong == 0);
	free(bytes);
}

static void use(uint32_t kind, size_t length, char *base)
{
	bool host = kind >= WH_MEMORY_PINNED && kind <= WH_MEMORY_MAPPED;
	struct wh_memory_info info = query(names[kind], base + length / 2, kind);
	struct wh_region *region;

	CHECK(info.base == base && info.length == length);
	CHECK(info.device == (kind >= WH_MEMORY_DEVICE ? 0 : -1));
	CHECK(info.pinned == (host ? WH_PINNED_WHERRY : WH_PINNED_NOT));
	CHECK(info.host_address == (on_device(kind) ? 0 : (uintptr_t)base + length / 2));
	CHECK((info.device_address != 0) == (kind >= WH_MEMORY_PINNED));
	CHECK((info.buffer_id != 0) == (kind >= WH_MEMORY_PINNED));
	CHECK(!(info.exports & WH_EXPORT_MEMFD) ==
	      (kind != WH_MEMORY_SHARED && kind != WH_MEMORY_PINNED));
	CHECK(!(info.exports & WH_EXPORT_FD) == (kind != WH_MEMORY_VMM));
	CHECK(!(info.exports & WH_EXPORT_IPC) == (kind != WH_MEMORY_DEVICE));
	if (kind >= WH_MEMORY_PINNED)
		check_zero(base, length);
	if (!on_device(kind))
		memset(base, 1, length);
	else
		show_stretch(names[kind], (uintptr_t)base);
	if (!CALL(wh_region_register(engine, base, length, NULL, &region)))
		return;
	CHECK(region->entry.kind == kind);
	CHECK((region->registration->device != NULL) == (kind >= WH_MEMORY_DEVICE));
	printf("  %-24s registered: segments %zu sync-memops %d rdma %d\n", names[kind],
	       region->registration->segment_count, region->registration->segments->sync_memops,
	       region->registration->segments->rdma);
	CALL(wh_registration_check(region->registration));
	CALL(wh_region_unregister(region));
}

static void alloc_every_kind(void)
{
	static const size_t lengths[] = { 1, 10000, 64 * MIB + 1 };
	size_t before = 0, after = 0, total;

	/* Pools keep what they have; so the second round tells. */
	for (int round = 0; round < 2; round++) {
		INSIDE(CU(cuMemGetInfo, round ? &after : &before, &total));
		for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_POOL; kind++) {
			for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
				const struct wh_memory_options options = { .size = sizeof(options),
									   .kind = kind };
				struct wh_memory_info info = { .size = sizeof(info) };
				void *base = NULL;

				if (!CALL(wh_memory_alloc(engine, lengths[i], &options, &base)))
					continue;
				use(kind, lengths[i], base);
				CALL(wh_memory_free(engine, base));
				CHECK(wh_memory_query(engine, base, &info) == -EFAULT);
			}
		}
	}
	printf("  free on the GPU before %zu, after %zu\n", before, after);
	CHECK(before <= after + 128 * MIB);
}

static void alloc_places(void)
{
	const char *locations[] = { "cuda:0", NULL, NULL };
	char uuid[80], pci[80];
	void *base;

	snprintf(uuid, sizeof(uuid), "cuda:%s", gpu->devices[0].uuid);
	snprintf(pci, sizeof(pci), "cuda:%s", gpu->devices[0].pci);
	locations[1] = uuid;
	locations[2] = pci;
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_POOL; kind++) {
		for (int i = 0; i < 3; i++) {
			const struct wh_memory_options options = { .size = sizeof(options),
								   .kind = kind,
								   .location = locations[i] };

			if (CALL(wh_memory_alloc(engine, MIB, &options, &base)))
				CALL(wh_memory_free(engine, base));
		}
	}
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_PINNED; kind++) {
		const struct wh_memory_options options = { .size = sizeof(options),
							   .kind = kind,
							   .location = "numa:0" };

		if (!CALL(wh_memory_alloc(engine, MIB, &options, &base)))
			continue;
		memset(base, 1, MIB);
		query("on numa:0", base, kind);
		CALL(wh_memory_free(engine, base));
	}
}

static void alloc_too_much(void)
{
	for (uint32_t kind = WH_MEMORY_DEVICE; kind <= WH_MEMORY_POOL; kind++) {
		const struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
		void *base;

		if (kind == WH_MEMORY_MANAGED)
			continue;
		CHECK(wh_memory_alloc(engine, (size_t)1 << 45, &options, &base) == -ENOMEM);
		printf("  %s\n", wh_error_text());
	}
}

/* ---- the application's memory ------------------------------------------------------------ */

static struct wh_registration *get(const char *what, uint64_t address, size_t length, uint32_t kind)
{
	struct wh_registration *registration = NULL;

	if (!CALL(wh_registration_get(&engine->memory, pointer(address), length, &registration)))
		return NULL;
	printf("  %-24s registered: kind %u segments %zu sync-memops %d exports %#x rdma %d\n",
	       what, registration->kind, registration->segment_count,
	       registration->segments->sync_memops, registration->segments->exports,
	       registration->segments->rdma);
	CHECK(registration->kind == kind);
	CALL(wh_registration_check(registration));
	return registration;
}

static void refused(uint64_t address, size_t length, int error)
{
	struct wh_registration *registration;

	CHECK(wh_registration_get(&engine->memory, pointer(address), length, &registration) ==
	      error);
	printf("  %s\n", wh_error_text());
}

static void application(void)
{
	void *plain = aligned_alloc(4096, 4 * MIB), *pinned = NULL;
	struct wh_registration *held[5] = { NULL };
	uint64_t device = 0, pool = 0, managed = 0;

	INSIDE(CU(cuMemAlloc, &device, 3 * MIB); CU(cuMemAllocAsync, &pool, MIB, NULL);
	       CU(cuStreamSynchronize, NULL);
	       CU(cuMemAllocManaged, &managed, MIB, CUDA_MANAGED_GLOBAL);
	       CU(cuMemHostAlloc, &pinned, MIB, CUDA_HOST_PORTABLE);
	       CU(cuMemHostRegister, plain, MIB, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
	query("cuMemAlloc", pointer(device + 5), WH_MEMORY_DEVICE);
	query("cuMemAllocAsync", pointer(pool + 5), WH_MEMORY_POOL);
	CHECK(*query("cuMemAllocManaged", pointer(managed + 5), WH_MEMORY_MANAGED).refusal);
	CHECK(query("cuMemHostAlloc", (char *)pinned + 5, WH_MEMORY_PINNED).pinned ==
	      WH_PINNED_APPLICATION);
	CHECK(query("cuMemHostRegister", (char *)plain + 5, WH_MEMORY_PINNED).pinned ==
	      WH_PINNED_APPLICATION);
	CHECK(query("plain", (char *)plain + 2 * MIB, WH_MEMORY_PAGEABLE).pinned == WH_PINNED_NOT);
	show_stretch("cuMemHostAlloc", (uintptr_t)pinned);
	show_stretch("cuMemAllocManaged", managed);
	held[0] = get("cuMemAlloc", device + 1, 2 * MIB, WH_MEMORY_DEVICE);
	held[1] = get("cuMemAllocAsync", pool, MIB, WH_MEMORY_POOL);
	held[2] = get("cuMemAllocManaged", managed, MIB, WH_MEMORY_MANAGED);
	held[3] = get("cuMemHostAlloc", (uintptr_t)pinned, MIB, WH_MEMORY_PINNED);
	held[4] = get("half cuMemHostRegister", (uintptr_t)plain, 2 * MIB, WH_MEMORY_PAGEABLE);
	INSIDE(CU(cuMemFree, device); CU(cuMemFree, pool); CU(cuMemFree, managed);
	       CU(cuMemFreeHost, pinned); CU(cuMemHostUnregister, plain));
	for (int i = 0; i < 5; i++) {
		if (held[i])
			CHECK(wh_registration_check(held[i]) == -ESTALE);
		wh_registration_put(held[i]);
	}
	refused(device, MIB, -EFAULT);
	refused(pool, MIB, -EFAULT);
	wh_registration_put(get("plain again", (uintptr_t)plain, 4 * MIB, WH_MEMORY_PAGEABLE));
	free(plain);
}

/* The same address, another allocation: drivers give addresses out again at once as a rule. */
static void allocated_again(void)
{
	struct wh_registration *old, *young;
	uint64_t first = 0, again = 0;
	int same = 0;

	for (int turn = 0; turn < 8; turn++) {
		INSIDE(CU(cuMemAlloc, &first, 64 * MIB));
		old = get("first", first, 64 * MIB, WH_MEMORY_DEVICE);
		INSIDE(CU(cuMemFree, first); CU(cuMemAlloc, &again, 64 * MIB));
		same += first == again;
		CHECK(old && wh_registration_check(old) == -ESTALE);
		if (!turn)
			printf("  %s\n", wh_error_text());
		young = get("second", again, 64 * MIB, WH_MEMORY_DEVICE);
		CHECK(young != old);
		wh_registration_put(old);
		wh_registration_put(young);
		INSIDE(CU(cuMemFree, again));
	}
	printf("  the same address in %d of 8 turns\n", same);
}

static void map_at(uint64_t address, size_t size)
{
	struct wh_cuda_properties properties = { .type = CUDA_ALLOCATION_PINNED,
						 .handle_types = CUDA_HANDLE_FD,
						 .location = { CUDA_LOCATION_DEVICE, 0 } };
	struct wh_cuda_access access = { { CUDA_LOCATION_DEVICE, 0 }, 3 };
	CUallocation memory = 0;

	properties.location.id = access.location.id = gpu->devices[0].handle;
	CU(cuMemCreate, &memory, size, &properties, 0);
	CU(cuMemMap, address, size, 0, memory, 0);
	CU(cuMemSetAccess, address, size, &access, 1);
	CU(cuMemRelease, memory);
}

static void mappings(void)
{
	const size_t page = 2 * MIB;
	struct wh_registration *registration;
	struct wh_memory_info info = { .size = sizeof(info) };
	uint64_t base = 0;

	CU(cuMemAddressReserve, &base, 8 * page, 0, 0, 0);
	map_at(base, page);
	map_at(base + page, 2 * page);
	map_at(base + 3 * page, page);
	CHECK(query("three mappings", pointer(base + page), WH_MEMORY_VMM).mappings == 3);
	CHECK(query("three mappings", pointer(base + 3 * page + 9), WH_MEMORY_VMM).mappings == 3);
	CHECK(wh_memory_query(engine, pointer(base + 5 * page), &info) == -EFAULT);
	printf("  %s\n", wh_error_text());
	show_stretch("reserved only", base + 5 * page);
	registration = get("three mappings", base + 77, 4 * page - 100, WH_MEMORY_VMM);
	CHECK(registration && registration->segment_count == 3);
	refused(base, 5 * page, -EFAULT);
	refused(base + 5 * page, page, -EFAULT);
	CU(cuMemUnmap, base + page, 2 * page);
	CHECK(registration && wh_registration_check(registration) == -ESTALE);
	refused(base, 4 * page, -EFAULT);
	map_at(base + page, 2 * page);
	CHECK(registration && wh_registration_check(registration) == -ESTALE);
	printf("  %s\n", wh_error_text());
	wh_registration_put(registration);
	registration = get("mapped again", base, 4 * page, WH_MEMORY_VMM);
	wh_registration_put(registration);
	CU(cuMemUnmap, base, 4 * page);
	refused(base, 4 * page, -EFAULT);
	CU(cuMemAddressFree, base, 8 * page);
	refused(base, page, -EFAULT);
}

/* ---- another process's memory ------------------------------------------------------------ */

/* In the other process: the handle comes in on descriptor 0. */
static void import_case(void)
{
	struct wh_ipc {
		struct wh_cuda_ipc_handle handle;
	} in;
	struct wh_registration *registration;
	uint64_t address = 0;

	CHECK(read(0, &in, sizeof(in)) == (ssize_t)sizeof(in));
	INSIDE(CU(cuIpcOpenMemHandle, &address, in.handle, CUDA_IPC_LAZY_PEER));
	CHECK(query("cuIpcOpenMemHandle", pointer(address + 10), WH_MEMORY_DEVICE).imported);
	registration = get("cuIpcOpenMemHandle", address, 4 * MIB, WH_MEMORY_DEVICE);
	CHECK(registration && registration->segments->imported);
	INSIDE(CU(cuIpcCloseMemHandle, address));
	CHECK(registration && wh_registration_check(registration) == -ESTALE);
	wh_registration_put(registration);
}

static void imported(void)
{
	char *const arguments[] = { (char *)self_path(), "import", (char *)driver_path, NULL };
	const struct wh_memory_options options = { .size = sizeof(options),
						   .kind = WH_MEMORY_DEVICE };
	posix_spawn_file_actions_t actions;
	struct wh_cuda_ipc_handle handle;
	void *base = NULL;
	int ends[2], status = -1;
	pid_t child;

	CALL(wh_memory_alloc(engine, 4 * MIB, &options, &base));
	INSIDE(CU(cuIpcGetMemHandle, &handle, (uintptr_t)base));
	CHECK(!pipe2(ends, O_CLOEXEC) &&
	      write(ends[1], &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
	if (CHECK(!posix_spawn(&child, arguments[0], &actions, NULL, arguments, environ)))
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[0]);
	close(ends[1]);
	CALL(wh_memory_free(engine, base));
}

/* ---- cost -------------------------------------------------------------------------------- */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void cost_of(const char *what, void *address, size_t length)
{
	enum { TURNS = 200 };
	struct wh_registration *registration = NULL, *second;
	double start = now(), fresh, shared, checked;

	for (int i = 0; i < TURNS; i++) {
		if (!CALL(wh_registration_get(&engine->memory, address, length, &registration)))
			return;
		wh_registration_put(registration);
	}
	fresh = (now() - start) / TURNS;
	CALL(wh_registration_get(&engine->memory, address, length, &registration));
	start = now();
	for (int i = 0; i < TURNS; i++) {
		CALL(wh_registration_get(&engine->memory, address, length, &second));
		wh_registration_put(second);
	}
	shared = (now() - start) / TURNS;
	start = now();
	for (int i = 0; i < TURNS; i++)
		CALL(wh_registration_check(registration));
	checked = (now() - start) / TURNS;
	wh_registration_put(registration);
	printf("  %-24s a registration %.2f us, one more user %.2f us, a check %.3f us\n", what,
	       fresh, shared, checked);
}

static void cost(void)
{
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_POOL; kind++) {
		const struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
		void *base;

		if (!CALL(wh_memory_alloc(engine, 64 * MIB, &options, &base)))
			continue;
		cost_of(names[kind], base, 64 * MIB);
		CALL(wh_memory_free(engine, base));
	}
	cost_of("the stack", &(char[4096]){ 0 }, 4096);
}

/* ---- main -------------------------------------------------------------------------------- */

static void open_engine(void)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	const char *config[2] = { NULL };
	char text[300];

	snprintf(text, sizeof(text), "cuda=%s", driver_path ? driver_path : "");
	config[0] = text;
	options.config = config;
	if (wh_engine_open(&options, &engine)) {
		printf("%s\n", wh_error_text());
		exit(1);
	}
	gpu = wh_cuda_hold(engine->cuda);
	if (wh_cuda_ready(gpu)) {
		printf("skipped: %s\n", wh_error_text());
		wh_engine_close(engine);
		wh_cuda_close(gpu);
		exit(77);
	}
}

static void close_engine(void)
{
	CHECK(!engine->memory.registrations);
	CALL(wh_engine_close(engine));
}

int main(int count, char **arguments)
{
	bool importing = count > 1 && !strcmp(arguments[1], "import");

	driver_path = count > (importing ? 2 : 1) ? arguments[importing ? 2 : 1] : NULL;
	open_engine();
	if (importing) {
		gpu_case("import", import_case);
	} else {
		gpu_case("alloc__every_kind", alloc_every_kind);
		gpu_case("alloc__places", alloc_places);
		gpu_case("alloc__too_much", alloc_too_much);
		gpu_case("application", application);
		gpu_case("allocated_again", allocated_again);
		gpu_case("mappings", mappings);
		gpu_case("imported", imported);
		gpu_case("cost", cost);
	}
	gpu_case("close", close_engine);
	return gpu_close();
}
