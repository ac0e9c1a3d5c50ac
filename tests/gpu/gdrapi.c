/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgdrapi.so.2 on a real driver: every kind of memory pinned, mapped, written and read; and how
 * long each call takes.
 *
 *   gdrapi [LIBRARY [DRIVER]]    libgdrapi.so.2 as the loader finds it, and the usual driver
 */
#include <dlfcn.h>

#include "gdrapi.h"
#include "gpu.h"
#include "util/clock.h"

#define MIB ((size_t)1 << 20)
#define KIB ((size_t)1 << 10)
#define ROUNDS 51

static struct {
	gdr_t (*open)(void);
	int (*close)(gdr_t);
	int (*pin)(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t *);
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
	look_up(library, "gdr_pin_buffer", &api.pin);
	look_up(library, "gdr_unpin_buffer", &api.unpin);
	look_up(library, "gdr_get_info_v2", &api.info);
	look_up(library, "gdr_map", &api.map);
	look_up(library, "gdr_unmap", &api.unmap);
	look_up(library, "gdr_copy_to_mapping", &api.copy_to);
	look_up(library, "gdr_copy_from_mapping", &api.copy_from);
	look_up(library, "gdr_driver_get_version", &api.driver_version);
	look_up(library, "gdr_get_attribute", &api.attribute);
}

/* [address, address+length) from both sides. */
static void round_trip(uint64_t address, size_t length)
{
	unsigned char *sent = malloc(length), *got = calloc(1, length);
	gdr_info_v2_t info = { 0 };
	gdr_mh_t mh = { 0 };
	char *va = NULL;

	for (size_t i = 0; i < length; i++)
		sent[i] = (unsigned char)gpu_random();
	if (!CHECK(api.pin(g, address, length, 0, 0, &mh) == 0))
		goto out;
	CHECK(api.info(g, mh, &info) == 0);
	if (CHECK(api.map(g, mh, (void **)&va, length) == 0)) {
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
		CHECK(api.unmap(g, mh, va - (address - info.va), length) == 0);
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

static void pool(void)
{
	uint64_t address;

	if (!CU(cuMemAllocAsync, &address, MIB, NULL) || !CU(cuStreamSynchronize, NULL))
		return;
	round_trip(address, MIB);
	CU(cuMemFreeAsync, address, NULL);
	CU(cuStreamSynchronize, NULL);
}

static void two_mappings(void)
{
	struct wh_cuda_properties properties = {
		.type = CUDA_ALLOCATION_PINNED,
		.location = { CUDA_LOCATION_DEVICE, device->ordinal },
	};
	struct wh_cuda_access access = { properties.location, 3 };
	CUallocation part[2];
	uint64_t address;

	if (!CU(cuMemAddressReserve, &address, 4 * MIB, 0, 0, 0))
		return;
	for (unsigned i = 0; i < 2; i++) {
		CU(cuMemCreate, &part[i], 2 * MIB, &properties, 0);
		CU(cuMemMap, address + i * 2 * MIB, 2 * MIB, 0, part[i], 0);
	}
	CU(cuMemSetAccess, address, 4 * MIB, &access, 1);
	round_trip(address, 4 * MIB);
	round_trip(address + 2 * MIB - 777, 1555);
	CU(cuMemUnmap, address, 4 * MIB);
	for (unsigned i = 0; i < 2; i++)
		CU(cuMemRelease, part[i]);
	CU(cuMemAddressFree, address, 4 * MIB);
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

	if (!CU(cuMemAlloc, &address, length))
		return;
	for (int i = 0; i < ROUNDS; i++) {
		int64_t t[5] = { wh_now() };
		gdr_mh_t mh = { 0 };
		void *va = NULL;

		CHECK(api.pin(g, address, length, 0, 0, &mh) == 0);
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

	gpu_open(argc > 2 ? argv[2] : NULL);
	load(argc > 1 ? argv[1] : "libgdrapi.so.2");
	if (!CALL(wh_cuda_device_at(gpu, 0, &device)) || !CALL(wh_cuda_enter(gpu, device, &scope)))
		return 1;
	g = api.open();
	if (!g) {
		printf("skipped: gdr_open() finds nobody who maps GPU memory here\n");
		return 77;
	}
	gpu_case("told", told);
	gpu_case("alloc", alloc);
	gpu_case("pool", pool);
	gpu_case("two_mappings", two_mappings);
	gpu_case("times", times);
	status = api.close(g);
	wh_cuda_leave(&scope);
	return gpu_close() || status;
}
