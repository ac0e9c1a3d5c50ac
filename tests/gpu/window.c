/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows onto every kind of memory, by every backend that is there, on a real driver: what is
 * written through them CUDA sees, and the reverse. Prints what each backend said, for the record.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"
#include "util/clock.h"
#include "window/view.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define VMM_SIZE (2 * MIB)

static struct wh_windows *windows;
static struct wh_cuda_device *device;
static const char *order;

/* ---- memory ---------------------------------------------------------------------------------- */

enum kind { ALLOC, POOL, POOL_PRIVATE, POOL_EXPORTABLE, VMM, VMM_EXPORTABLE, VMM_TWO, KINDS };

/* rm: by itself, without anything watched. */
static const struct {
	const char *name;
	bool rm;
	const char *remedy; /* in what it says where it cannot */
} kinds[] = {
	[ALLOC] = { "cuMemAlloc", .rm = true },
	[POOL] = { "cuMemAllocAsync", .remedy = "take cuMemAlloc" },
	[POOL_PRIVATE] = { "a pool without a handle type", .remedy = "take cuMemAlloc" },
	[POOL_EXPORTABLE] = { "a pool with a handle type", .remedy = "take cuMemAlloc" },
	[VMM] = { "cuMemCreate", .remedy = "create it for POSIX descriptors" },
	[VMM_EXPORTABLE] = { "cuMemCreate exportable", .rm = true },
	[VMM_TWO] = { "two mappings", .rm = true },
};

struct memory {
	enum kind kind;
	uint64_t address;
	size_t size;
	CUallocation parts[2];
	unsigned part_count;
	void *pool;
};

/* ---- pools, which the library has no use for ---- */

struct pool_properties { /* CUmemPoolProps */
	int type, handle_types;
	struct wh_cuda_location location;
	void *win32;
	unsigned char reserved[64];
};

static struct {
	int (*create)(void **out, const struct pool_properties *properties);
	int (*destroy)(void *pool);
	int (*allocate)(uint64_t *out, size_t size, void *pool, CUstream stream);
} pools;

static void find_pools(void)
{
	*(void **)&pools.create = wh_cuda_symbol(gpu, "cuMemPoolCreate");
	*(void **)&pools.destroy = wh_cuda_symbol(gpu, "cuMemPoolDestroy");
	*(void **)&pools.allocate = wh_cuda_symbol(gpu, "cuMemAllocFromPoolAsync");
}

static bool allocate_from_pool(struct memory *m)
{
	struct pool_properties properties = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = m->kind == POOL_EXPORTABLE ? CUDA_HANDLE_FD : CUDA_HANDLE_NONE,
		.location = { CUDA_LOCATION_DEVICE, device->ordinal },
	};
	CUstream stream = NULL;

	return CHECK(pools.create && pools.destroy && pools.allocate) &&
	       CHECK(!pools.create(&m->pool, &properties)) &&
	       CHECK(!pools.allocate(&m->address, m->size, m->pool, stream)) &&
	       CU(cuStreamSynchronize, stream);
}

/* All inside a scope of the device. */
static bool map_part(struct memory *m, uint64_t at)
{
	struct wh_cuda_properties properties = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = m->kind == VMM ? 0 : CUDA_HANDLE_FD,
		.location = { CUDA_LOCATION_DEVICE, device->ordinal },
	};
	struct wh_cuda_access access = { properties.location, 3 };
	CUallocation *part = &m->parts[m->part_count];

	/* Where a driver has to be asked for memory that devices may reach. */
	properties.flags.rdma = device->rdma_vmm;
	if (!CU(cuMemCreate, part, VMM_SIZE, &properties, 0))
		return false;
	m->part_count++;
	return CU(cuMemMap, at, VMM_SIZE, 0, *part, 0) &&
	       CU(cuMemSetAccess, at, VMM_SIZE, &access, 1);
}

static bool allocate(struct memory *m, enum kind kind, size_t size)
{
	CUstream stream = NULL;

	*m = (struct memory){ .kind = kind, .size = size };
	if (kind == ALLOC)
		return CU(cuMemAlloc, &m->address, size);
	if (kind == POOL)
		return CU(cuMemAllocAsync, &m->address, size, stream) &&
		       CU(cuStreamSynchronize, stream);
	if (kind == POOL_PRIVATE || kind == POOL_EXPORTABLE)
		return allocate_from_pool(m);
	m->size = kind == VMM_TWO ? 2 * VMM_SIZE : VMM_SIZE;
	return CU(cuMemAddressReserve, &m->address, m->size, 0, 0, 0) && map_part(m, m->address) &&
	       (kind != VMM_TWO || map_part(m, m->address + VMM_SIZE));
}

static void give_back(struct memory *m)
{
	if (m->kind == ALLOC)
		CU(cuMemFree, m->address);
	else if (m->kind <= POOL_EXPORTABLE)
		CU(cuMemFreeAsync, m->address, NULL);
	else
		CU(cuMemUnmap, m->address, m->size);
	for (unsigned i = 0; i < m->part_count; i++)
		CU(cuMemRelease, m->parts[i]);
	if (m->part_count)
		CU(cuMemAddressFree, m->address, m->size);
	if (m->pool)
		CHECK(CU(cuCtxSynchronize) && !pools.destroy(m->pool));
}

#define WITH_MEMORY(m, kind, size, ...)                                                            \
	do {                                                                                       \
		struct wh_cuda_scope inside_;                                                      \
		struct memory m;                                                                   \
		if (!CALL(wh_cuda_enter(gpu, device, &inside_)))                                   \
			break;                                                                     \
		if (allocate(&(m), kind, size)) {                                                  \
			__VA_ARGS__;                                                               \
			give_back(&(m));                                                           \
		}                                                                                  \
		wh_cuda_leave(&inside_);                                                           \
	} while (0)

static struct wh_view *open_view(uint64_t address, size_t length, bool private)
{
	struct wh_view_request request = {
		.address = address,
		.length = length,
		.order = order,
		.private = private,
		.map = true,
	};
	struct wh_view *view = NULL;
	int64_t start = wh_now();
	int error = wh_view_open(windows, &request, &view);

	printf("  0x%llx+%zu: %d in %lld us: %s\n", (unsigned long long)address, length, error,
	       (long long)(wh_now() - start) / 1000, error ? wh_error_text() : view->said);
	return CHECK(error == 0) ? view : NULL;
}

static void fill(unsigned char *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (unsigned char)gpu_random();
}

/* `length` bytes in both directions, with guards on both sides kept. */
static void round_trip(struct wh_view *view, uint64_t address, size_t length)
{
	unsigned char *sent = malloc(length), *got = malloc(length);
	unsigned char *at = wh_view_at(view, address);

	fill(sent, length);
	wh_copy_to(view->copy, at, sent, length);
	wh_copy_from(view->copy, got, at, 1);
	CU(cuMemcpyDtoH, got, address, length);
	CHECK(!memcmp(sent, got, length));
	fill(sent, length);
	CU(cuMemcpyHtoD, address, sent, length);
	CU(cuCtxSynchronize);
	memset(got, 0, length);
	wh_copy_from(view->copy, got, at, length);
	CHECK(!memcmp(sent, got, length));
	free(sent);
	free(got);
}

static void refused(uint64_t address, size_t length, int errno_, const char *what)
{
	struct wh_view_request request = {
		.address = address, .length = length, .order = order, .map = true
	};
	struct wh_view *view = NULL;
	int error = wh_view_open(windows, &request, &view);

	printf("  %s: %d: %s\n", what, error, error ? wh_error_text() : "");
	CHECK(error == -errno_);
	CHECK(view == NULL);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* What CUDA has no handle of, and what is nobody's to have. */
static void want_remedy(uint64_t address, size_t length, const char *remedy)
{
	struct wh_view_request request = {
		.address = address, .length = length, .order = order, .map = true
	};
	struct wh_view *view = NULL;
	int error = wh_view_open(windows, &request, &view);

	printf("    %d: %s\n", error, error ? wh_error_text() : "");
	CHECK(error == -EOPNOTSUPP && !view);
	CHECK(strstr(wh_error_text(), "rm-watch in the setting window"));
	CHECK(strstr(wh_error_text(), remedy));
}

static void each_kind(void)
{
	for (int kind = 0; kind < KINDS; kind++) {
		bool refused = !strcmp(order, "rm") && !kinds[kind].rm;

		printf("  %s\n", kinds[kind].name);
		WITH_MEMORY(m, (enum kind)kind, MIB, {
			struct wh_view *view = refused ? NULL : open_view(m.address, m.size, false);

			if (refused)
				want_remedy(m.address, m.size, kinds[kind].remedy);
			if (view) {
				printf("    %s, mapping %d, %s/%s\n", view->backend->name,
				       view->mapping, view->copy.put->name, view->copy.get->name);
				round_trip(view, m.address, m.size);
				round_trip(view, m.address + 12345, 54321);
				wh_view_close(view);
			}
		});
	}
}

/* The CPU reaches it by itself. */
static void managed(void)
{
	struct wh_cuda_scope scope;
	uint64_t address = 0;

	if (!CALL(wh_cuda_enter(gpu, device, &scope)))
		return;
	if (CU(cuMemAllocManaged, &address, MIB, CUDA_MANAGED_GLOBAL)) {
		refused(address, MIB, EOPNOTSUPP, "managed memory");
		CHECK(strstr(wh_error_text(), "managed memory"));
		CU(cuMemFree, address);
	}
	wh_cuda_leave(&scope);
}

static void across_mappings(void)
{
	WITH_MEMORY(m, VMM_TWO, 0, {
		struct wh_view *view = open_view(m.address + VMM_SIZE - 5000, 10001, false);

		if (view) {
			CHECK(view->span_count == 2);
			round_trip(view, m.address + VMM_SIZE - 5000, 10001);
			wh_view_close(view);
		}
	});
}

/* Allocations that share a page, and a GPU's page, with others. */
static void small(void)
{
	struct wh_cuda_scope scope;
	uint64_t at[16];

	if (!CALL(wh_cuda_enter(gpu, device, &scope)))
		return;
	for (int i = 0; i < 16; i++)
		CU(cuMemAlloc, &at[i], 300);
	for (int i = 0; i < 16; i += 5) {
		struct wh_view *view = open_view(at[i], 300, true);

		if (!view)
			continue;
		round_trip(view, at[i], 300);
		wh_view_close(view);
	}
	for (int i = 0; i < 16; i++)
		CU(cuMemFree, at[i]);
	wh_cuda_leave(&scope);
}

static void unaligned(void)
{
	WITH_MEMORY(m, ALLOC, 256 * KIB, {
		struct wh_view *view = open_view(m.address + 777, 66666, true);

		for (size_t i = 0; view && i < 200; i++) {
			size_t from = gpu_random() % 66000;

			round_trip(view, m.address + 777 + from, 1 + gpu_random() % (66666 - from));
		}
		if (view)
			wh_view_close(view);
	});
}

/* The same buffer again is the same mapping; other memory at its address is not. */
static void shared(void)
{
	WITH_MEMORY(m, ALLOC, MIB, {
		struct wh_view *a = open_view(m.address, MIB, false), *b, *c;

		b = open_view(m.address + 4096, 8192, false);
		c = open_view(m.address, MIB, true);
		CHECK(a && a == b && a != c);
		if (a && b && c) {
			wh_view_close(a);
			round_trip(b, m.address + 4096, 8192);
			round_trip(c, m.address, MIB);
			wh_view_close(b);
			wh_view_close(c);
		}
	});
}

/* rm and a persistent driver: the window holds on to the memory. */
static void freed(void)
{
	struct wh_cuda_scope scope;
	struct wh_view *view;
	uint64_t address = 0, value = 0;

	if (!CALL(wh_cuda_enter(gpu, device, &scope)))
		return;
	CU(cuMemAlloc, &address, 4 * MIB);
	CU(cuMemsetD8, address, 0x5a, 4 * MIB);
	CU(cuCtxSynchronize);
	view = open_view(address, 4 * MIB, true);
	CU(cuMemFree, address);
	if (view) {
		wh_copy_from(view->copy, &value, wh_view_at(view, address + MIB), 8);
		CHECK(value == UINT64_C(0x5a5a5a5a5a5a5a5a));
		wh_view_close(view);
	}
	wh_cuda_leave(&scope);
}

static void forked(void)
{
	WITH_MEMORY(m, ALLOC, MIB, {
		struct wh_view *view = open_view(m.address, MIB, true);
		struct wh_view_request request = { .address = m.address,
						   .length = 1,
						   .order = order };
		struct wh_view *other;
		int status = 0;
		pid_t child;

		fflush(stdout);
		child = view ? fork() : -1;
		if (!child) {
			if (wh_view_open(windows, &request, &other) != -EPERM)
				_exit(41);
			signal(SIGSEGV, SIG_DFL);
			*(volatile char *)wh_view_at(view, m.address) = 1;
			_exit(42);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		/* By a signal, unless a sanitizer has caught it. */
		CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV :
					    WEXITSTATUS(status) && WEXITSTATUS(status) < 41);
		if (view)
			round_trip(view, m.address, 4096);
		if (view)
			wh_view_close(view);
	});
}

static void bad(void)
{
	struct wh_cuda_scope scope;
	uint64_t freed_address = 0;
	void *pinned = NULL;

	if (!CALL(wh_cuda_enter(gpu, device, &scope)))
		return;
	CU(cuMemHostAlloc, &pinned, 4096, 0);
	CU(cuMemAlloc, &freed_address, 32 * MIB);
	refused(freed_address, 0, EINVAL, "no bytes");
	refused(freed_address, SIZE_MAX, EINVAL, "around the end of the addresses");
	CHECK(wh_cuda_errno(0) == 0);
	refused(freed_address + 16 * MIB, 64 * MIB, EFAULT, "over the end");
	CU(cuMemFree, freed_address);
	refused(freed_address, 4096, EFAULT, "freed memory");
	refused((uintptr_t)pinned, 4096, EFAULT, "pinned host memory");
	refused((uintptr_t)&scope, sizeof(scope), EFAULT, "the stack");
	refused(0, 4096, EFAULT, "NULL");
	CU(cuMemFreeHost, pinned);
	wh_cuda_leave(&scope);
}

struct shooter {
	pthread_t thread;
	bool good;
};

/* Opens, uses and closes, while others do. */
static void *shoot(void *arg)
{
	struct shooter *s = arg;
	struct wh_cuda_scope scope;
	uint64_t address = 0;

	s->good = !wh_cuda_enter(gpu, device, &scope) && !gpu->cuMemAlloc(&address, 256 * KIB);
	for (int i = 0; i < 30 && s->good; i++) {
		struct wh_view_request request = { .address = address,
						   .length = 256 * KIB,
						   .order = order,
						   .map = true,
						   .private = i & 1 };
		struct wh_view *view;
		uint64_t value = (uint64_t)i << 32 | address, got = 0;

		if (wh_view_open(windows, &request, &view)) {
			printf("  %s\n", wh_error_text());
			s->good = false;
			break;
		}
		wh_copy_to(view->copy, wh_view_at(view, address + 8 * (unsigned)i), &value, 8);
		wh_copy_from(view->copy, &got, wh_view_at(view, address + 8 * (unsigned)i), 8);
		s->good &= got == value;
		s->good &= !gpu->cuMemcpyDtoH(&got, address + 8 * (unsigned)i, 8) && got == value;
		wh_view_close(view);
	}
	if (address)
		gpu->cuMemFree(address);
	wh_cuda_leave(&scope);
	return NULL;
}

static void threads(void)
{
	struct shooter s[6];

	for (int i = 0; i < 6; i++)
		CHECK(!pthread_create(&s[i].thread, NULL, shoot, &s[i]));
	for (int i = 0; i < 6; i++) {
		pthread_join(s[i].thread, NULL);
		CHECK(s[i].good);
	}
}

static void staged(void)
{
	WITH_MEMORY(m, ALLOC, MIB, {
		unsigned char sent[1000], got[1000];

		fill(sent, sizeof(sent));
		CALL(wh_windows_put(windows, device, m.address + 3, sent, sizeof(sent)));
		CALL(wh_windows_get(windows, device, got, m.address + 3, sizeof(got)));
		CHECK(!memcmp(sent, got, sizeof(got)));
	});
}

static void threshold(void)
{
	WITH_MEMORY(m, ALLOC, MIB, {
		struct wh_view *view = open_view(m.address, MIB, false);

		if (view) {
			printf("  reads by copy engine from %zu bytes on\n",
			       wh_windows_threshold(view));
			wh_view_close(view);
		}
	});
}

static int by_time(const void *a, const void *b)
{
	int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;

	return (first > second) - (first < second);
}

/* What it takes to open and map 64 KiB: asked for are 100 us, of a real driver. */
static void open_kind(enum kind kind)
{
	enum { ROUNDS = 101 };
	bool real = !wh_cuda_symbol(gpu, "fake_cuda_fail");
	int64_t took[ROUNDS];

	WITH_MEMORY(m, kind, MIB, {
		struct wh_view_request request = { .address = m.address,
						   .length = 64 * KIB,
						   .order = order,
						   .private = true,
						   .map = true };

		for (int i = 0; i < ROUNDS; i++) {
			struct wh_view *view = NULL;
			int64_t start = wh_now();

			if (!CALL(wh_view_open(windows, &request, &view)))
				break;
			took[i] = wh_now() - start;
			wh_view_close(view);
		}
		qsort(took, ROUNDS, sizeof(took[0]), by_time);
		printf("  %s: open and map 64 KiB: median %lld us, best %lld, worst %lld\n",
		       kinds[kind].name, (long long)took[ROUNDS / 2] / 1000,
		       (long long)took[0] / 1000, (long long)took[ROUNDS - 1] / 1000);
		/* What watches libcuda is for those who name it, at whatever it costs. */
		CHECK(!real || !strcmp(order, "rm-watch") || took[ROUNDS / 2] <= 100000);
	});
}

static void opening(void)
{
	open_kind(ALLOC);
	open_kind(VMM_EXPORTABLE);
}

static void open_while_busy(uint64_t address, unsigned char *pinned)
{
	struct wh_view *view = open_view(address, 64 * KIB, true);
	struct wh_window_cost cost;

	wh_windows_cost(windows, device, order, pinned, &cost);
	if (view)
		wh_view_close(view);
}

/* While the GPU waits for us: nothing here waits for it. */
static void busy(void)
{
	unsigned char *pinned = NULL;
	uint32_t *flag = NULL;
	CUstream stream = NULL;
	struct memory v;

	if (!gpu->cuStreamWaitValue32)
		return;
	WITH_MEMORY(m, ALLOC, MIB, {
		bool both = allocate(&v, VMM_EXPORTABLE, MIB);
		int64_t start;

		CU(cuMemHostAlloc, (void **)&pinned, WH_WINDOW_PROBE, 0);
		CU(cuMemHostAlloc, (void **)&flag, 4096, CUDA_HOST_DEVICE_MAP);
		*flag = 0;
		CU(cuStreamCreate, &stream, CUDA_STREAM_NON_BLOCKING);
		CU(cuStreamWaitValue32, stream, (uintptr_t)flag, 1, CUDA_STREAM_WAIT_EQ);
		start = wh_now();
		open_while_busy(m.address, pinned);
		if (both)
			open_while_busy(v.address, pinned);
		CHECK(gpu->cuStreamQuery(stream) == CUDA_NOT_READY);
		printf("  while the GPU waited: %lld us\n", (long long)(wh_now() - start) / 1000);
		__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
		CU(cuStreamSynchronize, stream);
		CU(cuStreamDestroy, stream);
		CU(cuMemFreeHost, flag);
		CU(cuMemFreeHost, pinned);
		if (both)
			give_back(&v);
	});
}

static void run(const char *backends)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{ "each_kind", each_kind },
		{ "managed", managed },
		{ "across_mappings", across_mappings },
		{ "small", small },
		{ "unaligned", unaligned },
		{ "shared", shared },
		{ "freed", freed },
		{ "forked", forked },
		{ "bad", bad },
		{ "threads", threads },
		{ "staged", staged },
		{ "threshold", threshold },
		{ "opening", opening },
		{ "busy", busy },
	};
	char name[64];

	order = backends;
	if (!CALL(wh_windows_new(gpu, &windows)))
		return;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(name, sizeof(name), "%s__%s", backends, cases[i].name);
		gpu_case(name, cases[i].run);
	}
	CHECK(wh_list_empty(&windows->views));
	wh_windows_free(windows);
}

int main(int argc, char **argv)
{
	gpu_open(argc > 1 ? argv[1] : NULL);
	if (!CALL(wh_cuda_device_at(gpu, 0, &device)))
		return 1;
	printf("%s, driver %d\n", device->text, gpu->version);
	find_pools();
	for (int i = 2; i < argc; i++)
		run(argv[i]);
	if (argc <= 2) {
		run("rm");
		run("rm-watch");
	}
	return gpu_close();
}
