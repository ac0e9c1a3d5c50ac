/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgdrapi.so.2 on a real driver: every kind of memory pinned, mapped, written and read, as the
 * programs do that use it: whole pages around a buffer, which others may have a part of; and how
 * long each call takes.
 *
 *   gdrapi [LIBRARY [DRIVER]]    libgdrapi.so.2 as the loader finds it, and the usual driver
 */
#include <dlfcn.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gdrapi.h"
#include "gpu.h"
#include "util/clock.h"

#define MIB ((size_t)1 << 20)
#define KIB ((size_t)1 << 10)
#define ROUNDS 51

static struct {
	gdr_t (*open)(void);
	int (*close)(gdr_t);
	int (*pin)(gdr_t, unsigned long, size_t, uint32_t, gdr_mh_t *);
	int (*unpin)(gdr_t, gdr_mh_t);
	int (*info)(gdr_t, gdr_mh_t, gdr_info_v2_t *);
	int (*map)(gdr_t, gdr_mh_t, void **, size_t);
	int (*unmap)(gdr_t, gdr_mh_t, void *, size_t);
	int (*copy_to)(gdr_mh_t, void *, const void *, size_t);
	int (*copy_from)(gdr_mh_t, void *, const void *, size_t);
	int (*driver_version)(gdr_t, int *, int *);
	int (*attribute)(gdr_t, int, int *);
} api;

static gdr_t g;
static struct wh_cuda_device *device;

static void look_up(void *library, const char *name, void *out)
{
	void *found = dlsym(library, name);

	if (!found) {
		printf("%s: %s\n", name, dlerror());
		exit(1);
	}
	memcpy(out, &found, sizeof(found));
}

static void load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		printf("%s\n", dlerror());
		exit(1);
	}
	look_up(library, "gdr_open", &api.open);
	look_up(library, "gdr_close", &api.close);
	look_up(library, "gdr_pin_buffer_v2", &api.pin);
	look_up(library, "gdr_unpin_buffer", &api.unpin);
	look_up(library, "gdr_get_info_v2", &api.info);
	look_up(library, "gdr_map", &api.map);
	look_up(library, "gdr_unmap", &api.unmap);
	look_up(library, "gdr_copy_to_mapping", &api.copy_to);
	look_up(library, "gdr_copy_from_mapping", &api.copy_from);
	look_up(library, "gdr_driver_get_version", &api.driver_version);
	look_up(library, "gdr_get_attribute", &api.attribute);
}

/* ---- before CUDA is there -------------------------------------------------------------------- */

/* What a child has to say, by its exit status. */
static int in_child(int (*run)(const char *), const char *argument)
{
	int status = 0;
	pid_t child = fork();

	if (!child)
		_exit(run(argument));
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ?
		       WEXITSTATUS(status) :
		       99;
}

static int start_cuda(const char *driver)
{
	void *library = dlopen(driver ? driver : WH_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	int (*init)(unsigned), (*get_count)(int *), count = 0;

	if (!library)
		return 77;
	look_up(library, "cuInit", &init);
	look_up(library, "cuDeviceGetCount", &get_count);
	return init(0) || get_count(&count) || !count;
}

/* Neither an open nor a question may start CUDA: a child could not use it any more. */
static int ask_and_fork(const char *driver)
{
	int major, minor, value;

	g = api.open();
	if (g && api.driver_version(g, &major, &minor))
		return 2;
	for (int a = GDR_ATTR_USE_PERSISTENT_MAPPING; g && a < GDR_ATTR_MAX; a++) {
		if (api.attribute(g, a, &value))
			return 3;
	}
	return in_child(start_cuda, driver);
}

static int ask_and_fork_dmabuf(const char *driver)
{
	setenv("GDRCOPY_USE_DMABUF_MMAP", "1", 1);
	return ask_and_fork(driver);
}

static int forked, forked_dmabuf;

static void queries(void)
{
	CHECK(forked == 0);
	CHECK(forked_dmabuf == 0);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* [address, address+length) from both sides, by a mapping of the pages around it. */
static void round_trip(uint64_t address, size_t length)
{
	uint64_t start = address & GPU_PAGE_MASK;
	size_t pages = ((address + length + GPU_PAGE_OFFSET) & GPU_PAGE_MASK) - start;
	unsigned char *sent = malloc(length), *got = calloc(1, length);
	gdr_info_v2_t info = { 0 };
	gdr_mh_t mh = { 0 };
	char *va = NULL;

	for (size_t i = 0; i < length; i++)
		sent[i] = (unsigned char)gpu_random();
	if (!CHECK(api.pin(g, start, pages, GDR_PIN_FLAG_DEFAULT, &mh) == 0))
		goto out;
	CHECK(api.info(g, mh, &info) == 0);
	CHECK(info.va == start && info.mapped_size == pages);
	if (CHECK(api.map(g, mh, (void **)&va, pages) == 0)) {
		va += address - info.va;
		CHECK(api.copy_to(mh, va, sent, length) == 0);
		CHECK(api.copy_from(mh, got, va, 1) == 0);
		CU(cuMemcpyDtoH, got, address, length);
		CHECK(!memcmp(sent, got, length));
		CU(cuMemsetD8, address, 0x5a, length);
		CU(cuCtxSynchronize);
		CHECK(api.copy_from(mh, got, va, length) == 0);
		memset(sent, 0x5a, length);
		CHECK(!memcmp(sent, got, length));
		CHECK(api.unmap(g, mh, va - (address - info.va), pages) == 0);
	}
	CHECK(api.unpin(g, mh) == 0);
out:
	free(sent);
	free(got);
}

static void alloc(void)
{
	uint64_t address;

	if (!CU(cuMemAlloc, &address, MIB))
		return;
	round_trip(address, MIB);
	for (size_t i = 0; i < 50; i++) {
		size_t at = gpu_random() % (MIB - 1);

		round_trip(address + at, 1 + gpu_random() % (MIB - at));
	}
	CU(cuMemFree, address);
}

/* Buffers of these lengths, at whatever places CUDA gives them and amid them, with neighbours. */
static void buffers(void)
{
	static const size_t lengths[] = { 8, 4 * KIB, 64 * KIB, MIB, 3 * MIB };
	enum { COUNT = 5, ROUND = 15 };
	unsigned char got[300];
	uint64_t buffer[ROUND], neighbour[ROUND];

	for (int i = 0; i < ROUND; i++) {
		if (!CU(cuMemAlloc, &buffer[i], lengths[i % COUNT] + 3333) ||
		    !CU(cuMemAlloc, &neighbour[i], sizeof(got)))
			return;
		CU(cuMemsetD8, neighbour[i], (unsigned char)(i + 1), sizeof(got));
	}
	for (int i = 0; i < ROUND; i++) {
		round_trip(buffer[i], lengths[i % COUNT]);
		round_trip(buffer[i] + 1 + gpu_random() % 3333, lengths[i % COUNT]);
	}
	for (int i = 0; i < ROUND; i++) {
		unsigned different = 0;

		CU(cuMemcpyDtoH, got, neighbour[i], sizeof(got));
		for (size_t n = 0; n < sizeof(got); n++)
			different += got[n] != i + 1;
		CHECK(different == 0);
		CU(cuMemFree, neighbour[i]);
		CU(cuMemFree, buffer[i]);
	}
}

static void refusals(void)
{
	gdr_mh_t mh = { 0 };
	uint64_t address, odd;
	void *va = NULL;

	if (!CU(cuMemAlloc, &address, MIB))
		return;
	odd = address & GPU_PAGE_OFFSET ? address : address + 4096;
	CHECK(api.pin(g, odd, 8, GDR_PIN_FLAG_DEFAULT, &mh) == 0);
	CHECK(api.map(g, mh, &va, 8) == EINVAL);
	CHECK(!va && api.unpin(g, mh) == 0);
	CHECK(api.pin(g, address, (size_t)1 << 40, GDR_PIN_FLAG_DEFAULT, &mh) == EINVAL);
	CU(cuMemFree, address);
	CHECK(api.pin(g, address, MIB, GDR_PIN_FLAG_DEFAULT, &mh) == EINVAL);
}

/* The driver has no handle of a pool's memory: by the kernel module, or by watching. */
static bool reaches_pools(void)
{
	const char *order = getenv("WHERRY_WINDOW");

	return !order || strstr(order, "rm-watch") || !access("/dev/gdrdrv", F_OK);
}

static void pool(void)
{
	gdr_mh_t mh = { 0 };
	uint64_t address;

	if (!CU(cuMemAllocAsync, &address, MIB, NULL) || !CU(cuStreamSynchronize, NULL))
		return;
	if (reaches_pools())
		round_trip(address, MIB);
	else
		CHECK(api.pin(g, address, MIB, GDR_PIN_FLAG_DEFAULT, &mh) == EOPNOTSUPP);
	CU(cuMemFreeAsync, address, NULL);
	CU(cuStreamSynchronize, NULL);
}

/* Memory of cuMemCreate in two parts. */
static void two_mappings_of(int handle_types)
{
	struct wh_cuda_properties properties = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = handle_types,
		.location = { CUDA_LOCATION_DEVICE, device->ordinal },
	};
	struct wh_cuda_access access = { properties.location, 3 };
	CUallocation part[2];
	gdr_mh_t mh = { 0 };
	uint64_t address;

	if (!CU(cuMemAddressReserve, &address, 4 * MIB, 0, 0, 0))
		return;
	for (unsigned i = 0; i < 2; i++) {
		CU(cuMemCreate, &part[i], 2 * MIB, &properties, 0);
		CU(cuMemMap, address + i * 2 * MIB, 2 * MIB, 0, part[i], 0);
	}
	CU(cuMemSetAccess, address, 4 * MIB, &access, 1);
	if (handle_types || reaches_pools()) {
		round_trip(address, 4 * MIB);
		round_trip(address + 2 * MIB - 777, 1555);
	} else {
		CHECK(api.pin(g, address, MIB, GDR_PIN_FLAG_DEFAULT, &mh) == EOPNOTSUPP);
	}
	CU(cuMemUnmap, address, 4 * MIB);
	for (unsigned i = 0; i < 2; i++)
		CU(cuMemRelease, part[i]);
	CU(cuMemAddressFree, address, 4 * MIB);
}

static void two_mappings(void)
{
	two_mappings_of(CUDA_HANDLE_FD);
}

/* NVIDIA's tests create most of their memory like this. */
static void without_handle_type(void)
{
	two_mappings_of(0);
}

static void told(void)
{
	int major = -1, minor = -1, value;

	CHECK(api.driver_version(g, &major, &minor) == 0);
	printf("  driver version %d.%d\n", major, minor);
	for (int a = GDR_ATTR_USE_PERSISTENT_MAPPING; a < GDR_ATTR_MAX; a++) {
		CHECK(api.attribute(g, a, &value) == 0);
		printf("  attribute %d: %d\n", a, value);
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Medians, in microseconds. */
static void times(void)
{
	double took[4][ROUNDS];
	uint64_t address;
	size_t length = 64 * KIB;
	uint64_t start;

	if (!CU(cuMemAlloc, &address, 2 * length))
		return;
	start = (address + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;
	for (int i = 0; i < ROUNDS; i++) {
		int64_t t[5] = { wh_now() };
		gdr_mh_t mh = { 0 };
		void *va = NULL;

		CHECK(api.pin(g, start, length, GDR_PIN_FLAG_DEFAULT, &mh) == 0);
		t[1] = wh_now();
		CHECK(api.map(g, mh, &va, length) == 0);
		t[2] = wh_now();
		CHECK(api.unmap(g, mh, va, length) == 0);
		t[3] = wh_now();
		CHECK(api.unpin(g, mh) == 0);
		t[4] = wh_now();
		for (int n = 0; n < 4; n++)
			took[n][i] = (double)(t[n + 1] - t[n]) / 1000;
	}
	for (int n = 0; n < 4; n++)
		qsort(took[n], ROUNDS, sizeof(double), by_value);
	printf("  64 KiB: pin %.1f us, map %.1f us, unmap %.1f us, unpin %.1f us\n",
	       took[0][ROUNDS / 2], took[1][ROUNDS / 2], took[2][ROUNDS / 2], took[3][ROUNDS / 2]);
	CU(cuMemFree, address);
}

int main(int argc, char **argv)
{
	struct wh_cuda_scope scope;
	int status;

	load(argc > 1 ? argv[1] : "libgdrapi.so.2");
	forked = in_child(ask_and_fork, argc > 2 ? argv[2] : NULL);
	forked_dmabuf = in_child(ask_and_fork_dmabuf, argc > 2 ? argv[2] : NULL);
	gpu_open(argc > 2 ? argv[2] : NULL);
	if (!CALL(wh_cuda_device_at(gpu, 0, &device)) || !CALL(wh_cuda_enter(gpu, device, &scope)))
		return 1;
	g = api.open();
	if (!g) {
		printf("skipped: gdr_open() finds nobody who maps GPU memory here\n");
		return 77;
	}
	gpu_case("queries", queries);
	gpu_case("told", told);
	gpu_case("alloc", alloc);
	gpu_case("buffers", buffers);
	gpu_case("refusals", refusals);
	gpu_case("pool", pool);
	gpu_case("two_mappings", two_mappings);
	gpu_case("without_handle_type", without_handle_type);
	gpu_case("times", times);
	status = api.close(g);
	wh_cuda_leave(&scope);
	return gpu_close() || status;
}
