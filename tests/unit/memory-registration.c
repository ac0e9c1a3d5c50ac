/* SPDX-License-Identifier: Apache-2.0 */
/* memory-registration.c: registering GPU memory, on the fake driver, which reuses freed
 * addresses */
#include "fake-cuda.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/region.h"

static struct wh_engine *engine;

static int setup(void **state)
{
	(void)state;
	engine = engine_with(getenv("TEST_CUDA"));
	assert_int_equal(wh_cuda_ready(engine->cuda), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake_heal();
	assert_null(engine->memory.registrations); /* all have been released */
	return wh_engine_close(engine);
}

static struct wh_registration *get(uint64_t address, size_t length)
{
	struct wh_registration *registration = NULL;

	assert_int_equal(
		wh_registration_get(&engine->memory, pointer(address), length, &registration), 0);
	return registration;
}

/* Both functions must refuse with `error`; wh_error_text() must contain `text`. */
static void refused(uint64_t address, size_t length, int error, const char *text)
{
	struct wh_registration *registration = NULL;
	struct wh_region *region = NULL;

	assert_int_equal(
		wh_registration_get(&engine->memory, pointer(address), length, &registration),
		error);
	assert_non_null(strstr(wh_error_text(), text));
	assert_null(registration);
	assert_int_equal(wh_region_register(engine, pointer(address), length, NULL, &region),
			 error);
	assert_null(region);
}

static uint64_t device_alloc(size_t size, int device)
{
	uint64_t address = 0;

	AS_APPLICATION(engine, device, CU(engine, cuMemAlloc, &address, size));
	return address;
}

static void device_free(uint64_t address)
{
	AS_APPLICATION(engine, 0, CU(engine, cuMemFree, address));
}

static bool synchronous(uint64_t address)
{
	unsigned value = 0;

	CU(engine, cuPointerGetAttribute, &value, CUDA_POINTER_SYNC_MEMOPS, address);
	return value != 0;
}

/* ---- regions ----------------------------------------------------------- */

static void region__every_kind(void **state)
{
	(void)state;
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_POOL; kind++) {
		const struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
		bool mappable = kind == WH_MEMORY_SHARED || kind == WH_MEMORY_PINNED;
		bool gpu = kind >= WH_MEMORY_DEVICE;
		struct wh_region *region, *part;
		struct wh_region_record record;
		char *base;

		assert_int_equal(wh_memory_alloc(engine, 3 * MIB, &options, (void **)&base), 0);
		assert_int_equal(wh_region_register(engine, base, 3 * MIB, NULL, &region), 0);
		assert_int_equal(wh_region_register(engine, base + 5, 100, NULL, &part), 0);
		wh_region_record(region, &record);
		assert_int_equal(record.kind, kind);
		assert_int_equal(record.flags, mappable ? WH_REGION_MAPPABLE : 0);
		wh_region_record(part, &record);
		assert_int_equal(record.kind, kind);
		assert_int_equal(record.flags, mappable ? WH_REGION_MAPPABLE : 0);
		assert_ptr_equal(region->registration->device,
				 gpu ? &engine->cuda->devices[0] : NULL);
		assert_int_equal(region->registration->segment_count, 1);
		assert_int_equal(wh_registration_check(region->registration), 0);
		assert_int_equal(wh_memory_free(engine, base), -EBUSY);
		assert_int_equal(wh_region_register(engine, base, 4 * MIB + 1, NULL, &part),
				 -EINVAL);
		assert_non_null(strstr(wh_error_text(), "allocation"));
		assert_int_equal(wh_region_unregister(part), 0);
		assert_int_equal(wh_region_unregister(region), 0);
		assert_int_equal(wh_memory_free(engine, base), 0);
	}
}

/* A region that fails to register releases its registration. */
static void region__refused_later(void **state)
{
	const struct wh_region_options options = { .size = sizeof(options), .name = "same" };
	uint64_t address = device_alloc(MIB, 0);
	struct wh_region *region, *second;

	(void)state;
	assert_int_equal(wh_region_register(engine, pointer(address), MIB, &options, &region), 0);
	assert_int_equal(wh_region_register(engine, pointer(address), MIB, &options, &second),
			 -EEXIST);
	assert_int_equal(region->registration->references, 1);
	assert_int_equal(wh_region_unregister(region), 0);
	device_free(address);
}

/* ---- segments ---------------------------------------------------------- */

static void segments__device(void **state)
{
	uint64_t address = device_alloc(3 * MIB, 1), pool = 0;
	struct wh_registration *registration = get(address + 100, MIB);
	const struct wh_segment *segment = registration->segments;

	(void)state;
	assert_int_equal(registration->kind, WH_MEMORY_DEVICE);
	assert_ptr_equal(registration->device, &engine->cuda->devices[1]);
	assert_int_equal(registration->segment_count, 1);
	assert_int_equal(segment->start, address + 100);
	assert_int_equal(segment->length, MIB);
	assert_int_equal(segment->base, address);
	assert_int_equal(segment->size, 3 * MIB);
	assert_int_equal(segment->device_address, address + 100);
	assert_int_equal(segment->host_address, 0);
	assert_int_equal(segment->exports, WH_CUDA_EXPORT_IPC | WH_CUDA_EXPORT_DMA_BUF);
	assert_true(segment->buffer_id && segment->sync_memops && !segment->vmm);
	assert_true(synchronous(address));
	wh_registration_put(registration);
	device_free(address);
	AS_APPLICATION(engine, 0, CU(engine, cuMemAllocAsync, &pool, MIB, NULL));
	registration = get(pool, MIB);
	assert_int_equal(registration->kind, WH_MEMORY_POOL);
	assert_true(registration->segments->pool);
	wh_registration_put(registration);
	device_free(pool);
}

static void segments__several_mappings(void **state)
{
	uint64_t base = reserve(engine, 16 * MIB);
	struct wh_registration *registration;

	(void)state;
	map_vmm(engine, base, 2 * MIB, 0);
	map_vmm(engine, base + 2 * MIB, 4 * MIB, 0);
	map_vmm(engine, base + 6 * MIB, 2 * MIB, 0);
	registration = get(base + MIB, 6 * MIB);
	assert_int_equal(registration->kind, WH_MEMORY_VMM);
	assert_int_equal(registration->segment_count, 3);
	for (size_t i = 0; i < 3; i++) {
		static const size_t starts[] = { 1, 2, 6 }, lengths[] = { 1, 4, 1 };
		const struct wh_segment *segment = &registration->segments[i];

		assert_int_equal(segment->start, base + starts[i] * MIB);
		assert_int_equal(segment->length, lengths[i] * MIB);
		assert_int_equal(segment->device_address, segment->start);
		assert_true(segment->vmm && !segment->sync_memops && segment->buffer_id);
		assert_int_equal(segment->exports, WH_CUDA_EXPORT_FD | WH_CUDA_EXPORT_DMA_BUF);
	}
	assert_int_equal(wh_registration_check(registration), 0);
	/* Replace the middle by other memory. */
	CU(engine, cuMemUnmap, base + 2 * MIB, 4 * MIB);
	assert_int_equal(wh_registration_check(registration), -ESTALE);
	assert_null(strstr(wh_error_text(), "allocated again"));
	refused(base + MIB, 6 * MIB, -EFAULT, "no memory at");
	map_vmm(engine, base + 2 * MIB, 4 * MIB, 0);
	assert_int_equal(wh_registration_check(registration), -ESTALE);
	assert_non_null(strstr(wh_error_text(), "allocated again"));
	wh_registration_put(registration);
	unreserve(engine, base, 16 * MIB);
}

static void segments__managed(void **state)
{
	struct wh_registration *registration;
	uint64_t address = 0;

	(void)state;
	AS_APPLICATION(engine, 0, CU(engine, cuMemAllocManaged, &address, MIB, 1));
	registration = get(address, MIB);
	assert_int_equal(registration->kind, WH_MEMORY_MANAGED);
	assert_false(wh_kind_on_host(registration->kind));
	assert_int_equal(wh_registration_check(registration), 0);
	device_free(address);
	assert_int_equal(wh_registration_check(registration), -ESTALE);
	wh_registration_put(registration);
}

static void segments__host(void **state)
{
	char *base =
		mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t at = (uintptr_t)base;
	struct wh_registration *whole, *pinned;

	(void)state;
	AS_APPLICATION(engine, 0, CU(engine, cuMemHostRegister, base, MIB, CUDA_HOST_DEVICE_MAP);
		       CU(engine, cuMemHostRegister, base + MIB, MIB, CUDA_HOST_DEVICE_MAP));
	pinned = get(at + 1, 2 * MIB - 1);
	assert_int_equal(pinned->kind, WH_MEMORY_PINNED);
	assert_null(pinned->device);
	assert_int_equal(pinned->segment_count, 2);
	assert_int_equal(pinned->segments[1].device_address, at + MIB);
	assert_int_equal(pinned->segments[1].host_address, at + MIB);
	/* Partly page-locked counts as not page-locked. */
	whole = get(at, 4 * MIB);
	assert_int_equal(whole->kind, WH_MEMORY_PAGEABLE);
	assert_int_equal(whole->segment_count, 3);
	assert_int_equal(wh_registration_check(whole), 0);
	AS_APPLICATION(engine, 0, CU(engine, cuMemHostUnregister, base + MIB));
	assert_int_equal(wh_registration_check(pinned), -ESTALE);
	assert_int_equal(wh_registration_check(whole), -ESTALE);
	wh_registration_put(pinned);
	wh_registration_put(whole);
	AS_APPLICATION(engine, 0, CU(engine, cuMemHostUnregister, base));
	whole = get(at, 4 * MIB);
	assert_int_equal(whole->kind, WH_MEMORY_PAGEABLE);
	wh_registration_put(whole);
	munmap(base, 4 * MIB);
}

/* Pageable memory is queried once and causes no driver calls later. */
static void check__plain_asks_nobody(void **state)
{
	char *heap = malloc(MIB);
	struct wh_registration *registration = get((uintptr_t)heap, MIB);
	uint64_t before = fake_calls("cuPointerGetAttribute");

	(void)state;
	assert_int_equal(wh_registration_check(registration), 0);
	assert_int_equal(fake_calls("cuPointerGetAttribute"), before);
	wh_registration_put(registration);
	free(heap);
}

/* One driver call per allocation or mapping. */
static void check__asks_once_a_segment(void **state)
{
	uint64_t base = reserve(engine, 4 * MIB), before;
	struct wh_registration *registration;

	(void)state;
	map_vmm(engine, base, 2 * MIB, 0);
	map_vmm(engine, base + 2 * MIB, 2 * MIB, 0);
	registration = get(base, 4 * MIB);
	before = fake_calls("cuPointerGetAttribute");
	assert_int_equal(wh_registration_check(registration), 0);
	assert_int_equal(fake_calls("cuPointerGetAttribute"), before + 2);
	wh_registration_put(registration);
	unreserve(engine, base, 4 * MIB);
}

/* ---- sharing ----------------------------------------------------------- */

static void share__same_range(void **state)
{
	uint64_t address = device_alloc(4 * MIB, 0);
	struct wh_registration *first = get(address, MIB), *second = get(address, MIB),
			       *third = get(address, 2 * MIB), *fourth = get(address + 1, MIB);

	(void)state;
	assert_ptr_equal(first, second);
	assert_int_equal(first->references, 2);
	assert_true(first != third && first != fourth && third != fourth);
	wh_registration_put(first);
	second = get(address, MIB);
	assert_ptr_equal(first, second);
	wh_registration_put(second);
	wh_registration_put(first);
	first = get(address, MIB);
	assert_int_equal(first->references, 1);
	wh_registration_put(first);
	wh_registration_put(third);
	wh_registration_put(fourth);
	wh_registration_put(NULL);
	device_free(address);
}

static void share__freed_and_allocated_again(void **state)
{
	uint64_t address = device_alloc(4 * MIB, 0), again;
	struct wh_registration *old = get(address, MIB), *young;

	(void)state;
	device_free(address);
	assert_int_equal(wh_registration_check(old), -ESTALE);
	assert_non_null(strstr(wh_error_text(), "cuda:0"));
	assert_non_null(strstr(wh_error_text(), "was freed since"));
	refused(address, MIB, -EFAULT, "no memory at");
	again = device_alloc(4 * MIB, 0);
	assert_int_equal(again, address); /* due to FAKE_CUDA_REUSE */
	assert_int_equal(wh_registration_check(old), -ESTALE);
	assert_non_null(strstr(wh_error_text(), "allocated again"));
	assert_false(synchronous(again));
	young = get(address, MIB);
	assert_true(young != old);
	assert_true(synchronous(again));
	assert_int_equal(wh_registration_check(young), 0);
	assert_int_equal(wh_registration_check(old), -ESTALE);
	/* In either order. */
	wh_registration_put(old);
	assert_ptr_equal(get(address, MIB), young);
	wh_registration_put(young);
	wh_registration_put(young);
	device_free(again);
}

static void share__freed_while_nobody_has_it(void **state)
{
	(void)state;
	for (int turn = 0; turn < 50; turn++) {
		uint64_t address = device_alloc(4 * MIB, 0);
		struct wh_registration *registration = get(address, 4 * MIB);

		assert_int_equal(registration->references, 1);
		assert_int_equal(wh_registration_check(registration), 0);
		if (turn % 2)
			wh_registration_put(registration);
		device_free(address);
		if (turn % 2 == 0)
			wh_registration_put(registration);
	}
}

static uint64_t raced;

static void *race(void *arg)
{
	(void)arg;
	for (int turn = 0; turn < 200; turn++) {
		struct wh_registration *one = get(raced + (uint64_t)(turn % 3), MIB),
				       *two = get(raced, MIB);

		if (wh_registration_check(one) || wh_registration_check(two))
			return arg;
		wh_registration_put(one);
		wh_registration_put(two);
	}
	return NULL;
}

static void share__threads(void **state)
{
	pthread_t threads[4];
	void *result;

	(void)state;
	raced = device_alloc(4 * MIB, 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, race, &raced), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], &result), 0);
		assert_null(result);
	}
	device_free(raced);
}

/* ---- refusals ---------------------------------------------------------- */

/* Next to an allocation there may be nothing or, by chance, host memory. */
static void refuse__past_the_end(void **state)
{
	uint64_t address = device_alloc(4 * MIB, 0);
	const struct {
		uint64_t address;
		size_t length;
	} cases[] = {
		{ address, 4 * MIB + 1 },
		{ address + 4 * MIB - 1, 2 },
		{ address - 1, 2 },
		{ address - MIB, 6 * MIB },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct wh_registration *registration;
		int error = wh_registration_get(&engine->memory, pointer(cases[i].address),
						cases[i].length, &registration);

		assert_true(error == -EFAULT || error == -EXDEV);
	}
	device_free(address);
	refused(address, 1, -EFAULT, "freed");
	refused(address, 4 * MIB, -EFAULT, "freed");
}

static void refuse__holes(void **state)
{
	uint64_t base = reserve(engine, 16 * MIB);

	(void)state;
	refused(base, 16 * MIB, -EFAULT, "no memory at");
	refused(base + 5, 1, -EFAULT, "no memory at");
	map_vmm(engine, base + 4 * MIB, 2 * MIB, 0);
	map_vmm(engine, base + 10 * MIB, 2 * MIB, 0);
	refused(base, 16 * MIB, -EFAULT, "no memory at"); /* holes at both ends */
	refused(base, 6 * MIB, -EFAULT, "no memory at"); /* at the start */
	refused(base + 4 * MIB, 3 * MIB, -EFAULT, "no memory at"); /* at the end */
	refused(base + 4 * MIB, 8 * MIB, -EFAULT, "no memory at"); /* in the middle */
	unreserve(engine, base, 16 * MIB);
}

static void refuse__two_devices(void **state)
{
	uint64_t base = reserve(engine, 4 * MIB);

	(void)state;
	map_vmm(engine, base, 2 * MIB, 0);
	map_vmm(engine, base + 2 * MIB, 2 * MIB, 1);
	refused(base, 4 * MIB, -EXDEV, "cuda:0");
	refused(base + MIB, 2 * MIB, -EXDEV, "cuda:1");
	wh_registration_put(get(base + 2 * MIB, 2 * MIB));
	unreserve(engine, base, 4 * MIB);
}

/* Host memory at addresses next to a GPU's. */
static void refuse__host_and_device(void **state)
{
	uint64_t base = reserve(engine, 6 * MIB);
	char *host = mmap(pointer(base), 2 * MIB, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	(void)state;
	assert_ptr_equal(host, pointer(base));
	assert_ptr_equal(mmap(pointer(base + 4 * MIB), 2 * MIB, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 pointer(base + 4 * MIB));
	map_vmm(engine, base + 2 * MIB, 2 * MIB, 0);
	refused(base, 4 * MIB, -EXDEV, "mixes host and GPU memory");
	refused(base + 2 * MIB, 3 * MIB, -EXDEV, "mixes host and GPU memory");
	refused(base + 2 * MIB - 1, 2, -EXDEV, "mixes host and GPU memory");
	refused(base, 6 * MIB, -EFAULT, "no memory at");
	wh_registration_put(get(base, 2 * MIB));
	unreserve(engine, base, 6 * MIB);
}

/* Addresses for two adjacent allocations. */
static uint64_t side_by_side(void)
{
	uint64_t first = 0, second = 0;

	for (int tries = 0; tries < 10; tries++) {
		char *hole = mmap(NULL, 6 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		uint64_t at = ((uintptr_t)hole + 2 * MIB - 1) & ~(uint64_t)(2 * MIB - 1);

		munmap(hole, 6 * MIB);
		CU(engine, cuMemAddressReserve, &first, 2 * MIB, 0, at, 0);
		CU(engine, cuMemAddressReserve, &second, 2 * MIB, 0, at + 2 * MIB, 0);
		if (second == first + 2 * MIB)
			return first;
		CU(engine, cuMemAddressFree, second, 2 * MIB);
		CU(engine, cuMemAddressFree, first, 2 * MIB);
	}
	fail_msg("no 4 MiB of addresses are to be had at once");
	return 0;
}

/* An adjacent allocation is a different one nevertheless. */
static void refuse__neighbours(void **state)
{
	uint64_t first = side_by_side(), second = first + 2 * MIB;

	(void)state;
	CU(engine, cuMemAddressFree, first, 2 * MIB);
	assert_int_equal(device_alloc(2 * MIB, 0), first);
	map_vmm(engine, second, 2 * MIB, 0);
	refused(first, 4 * MIB, -EINVAL, "past the end of its allocation");
	refused(second - 1, 2, -EINVAL, "past the end of its allocation");
	unreserve(engine, second, 2 * MIB);
	device_free(first);
}

static void refuse__unreadable(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *base =
		mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t at = (uintptr_t)base;

	(void)state;
	wh_registration_put(get(at, 3 * page));
	assert_int_equal(mprotect(base + page, page, PROT_NONE), 0);
	refused(at, 3 * page, -EFAULT, "no memory at");
	wh_registration_put(get(at, page));
	wh_registration_put(get(at + 2 * page, page));
	munmap(base, 3 * page);
	refused(at, page, -EFAULT, "no memory at");
}

/* ---- driver errors ----------------------------------------------------- */

static void get__each_call_fails(void **state)
{
	uint64_t address = device_alloc(4 * MIB, 0), base = reserve(engine, 4 * MIB);
	struct wh_registration *registration = NULL;
	unsigned failed = 0, nth;
	int error;

	(void)state;
	map_vmm(engine, base, 4 * MIB, 0);
	fake_fail("cuPointerSetAttribute", 1, 999);
	assert_int_equal(wh_registration_get(&engine->memory, pointer(address), MIB, &registration),
			 -EIO);
	assert_non_null(strstr(wh_error_text(), "SYNC_MEMOPS"));
	/* A driver that does not support the attribute is no failure. */
	fake_fail("cuPointerSetAttribute", 1, 801);
	registration = get(address, MIB);
	assert_false(registration->segments->sync_memops);
	wh_registration_put(registration);
	fake_fail("cuMemRetainAllocationHandle", 1, 999);
	assert_int_equal(wh_registration_get(&engine->memory, pointer(base), MIB, &registration),
			 -EIO);
	/* A failed query of an optional attribute counts as absent; of the memory kind, it is an
	 * error. */
	for (nth = 1; nth < 40; nth++) {
		fake_fail("cuPointerGetAttribute", nth, 999);
		error = wh_registration_get(&engine->memory, pointer(address), MIB, &registration);
		fake_fail("cuPointerGetAttribute", nth, 0);
		if (!error)
			wh_registration_put(registration);
		else
			assert_int_equal(error, -EIO);
		failed += error != 0;
	}
	assert_true(failed >= 2);
	registration = get(address, MIB);
	fake_fail("cuPointerGetAttribute", 1, 999);
	assert_int_equal(wh_registration_check(registration), -EIO);
	assert_int_equal(wh_registration_check(registration), 0);
	wh_registration_put(registration);
	unreserve(engine, base, 4 * MIB);
	device_free(address);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(region__every_kind),
		TEST(region__refused_later),
		TEST(segments__device),
		TEST(segments__several_mappings),
		TEST(segments__managed),
		TEST(segments__host),
		TEST(check__plain_asks_nobody),
		TEST(check__asks_once_a_segment),
		TEST(share__same_range),
		TEST(share__freed_and_allocated_again),
		TEST(share__freed_while_nobody_has_it),
		TEST(share__threads),
		TEST(refuse__past_the_end),
		TEST(refuse__holes),
		TEST(refuse__two_devices),
		TEST(refuse__host_and_device),
		TEST(refuse__neighbours),
		TEST(refuse__unreadable),
		TEST(get__each_call_fails),
	};

	setenv("FAKE_CUDA_DEVICES", "2", 1);
	setenv("FAKE_CUDA_REUSE", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
