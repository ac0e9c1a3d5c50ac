/* SPDX-License-Identifier: Apache-2.0 */
/* gdrapi-pin.c: libgdrapi.so.2: loading it, opening, pinning, and handles that are stale */
#include "gdrapi-fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

/* ---- loading --------------------------------------------------------------------------------- */

/* Open the library as NCCL, NVSHMEM and libfabric do. */
static void load__as_peers_do(void **state)
{
	void *nccl = dlopen("libgdrapi.so", RTLD_NOW),
	     *nvshmem = dlopen("libgdrapi.so.2", RTLD_LAZY);
	int major = 0, minor = 0;

	(void)state;
	assert_non_null(nccl);
	assert_ptr_equal(nccl, nvshmem);
	api.gdr_runtime_get_version(&major, &minor);
	assert_int_equal(major, 2);
	assert_int_equal(minor, 6);
	assert_int_equal(api.gdr_driver_get_version(gdr, &major, &minor), 0);
	assert_int_equal(major, 2);
	assert_true(minor >= (backend_is("driver-old") ? 0 : 1));
	api.gdr_runtime_get_version(NULL, NULL);
	assert_int_equal(api.gdr_driver_get_version(gdr, NULL, &minor), EINVAL);
	assert_int_equal(api.gdr_driver_get_version(NULL, &major, &minor), EINVAL);
	/* The library stays loaded: a table in libcuda may point to it. */
	dlclose(nccl);
	dlclose(nvshmem);
}

static void open__descriptor_first(void **state)
{
	int fd;

	(void)state;
	memcpy(&fd, gdr, sizeof(fd));
	assert_true(fd >= 0);
	assert_int_equal(lseek(fd, 0, SEEK_CUR) < 0 && errno == EBADF, 0);
	assert_int_equal(api.gdr_close(NULL), EINVAL);
}

static void open__nothing_there(void **state)
{
	(void)state;
	fake_nvidia_fail(FAKE_NVIDIA_OPEN, 0, -ENOENT);
	fake_nvidia_gdrdrv(0);
	if (backend_is("dmabuf")) {
		gdr_t other = api.gdr_open();

		assert_non_null(other);
		assert_int_equal(api.gdr_close(other), 0);
	} else {
		assert_null(api.gdr_open());
	}
	fake_nvidia_gdrdrv(-1);
	fake_nvidia_fail(FAKE_NVIDIA_OPEN, 0, 0);
}

/* ---- pinning --------------------------------------------------------------------------------- */

static void pin__any_alignment(void **state)
{
	(void)state;
	for (size_t at = 0; at < 200 * KIB; at += 77777) {
		gdr_mh_t mh = pin_buffer(memory + at, 100 * KIB);
		gdr_info_v2_t i = buffer_info(mh);

		assert_int_equal(i.va % 65536, 0);
		assert_int_equal(i.mapped_size % 65536, 0);
		assert_int_equal(i.page_size, 65536);
		assert_true(i.va <= memory + at && i.va + 65536 > memory + at);
		assert_true(i.va + i.mapped_size >= memory + at + 100 * KIB);
		assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
	}
}

static void pin__pages_around(void **state)
{
	static const size_t lengths[] = { 8, 4 * KIB, 64 * KIB, SIZE },
			    shifts[] = { 0, 8, 1000, 70001 };

	(void)state;
	for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
		for (size_t s = 0; s < sizeof(shifts) / sizeof(shifts[0]); s++) {
			uint64_t odd, neighbour, buffer;

			assert_int_equal(cu.alloc(&odd, 300), 0);
			assert_int_equal(cu.alloc(&buffer, shifts[s] + lengths[l]), 0);
			assert_int_equal(cu.alloc(&neighbour, 300), 0);
			memset(cu.alias(neighbour), 0x77, 300);
			use_pages_around(buffer + shifts[s], lengths[l]);
			use_pages_around(odd, 300);
			use_pages_around(buffer, shifts[s] + lengths[l]);
			for (size_t n = 0; n < 300; n++)
				assert_int_equal((unsigned char)cu.alias(neighbour)[n], 0x77);
			assert_int_equal(cu.free(neighbour), 0);
			assert_int_equal(cu.free(buffer), 0);
			assert_int_equal(cu.free(odd), 0);
		}
	}
}

/* Allocate 8 bytes with `memory` neither in their page nor in the pages beside it. The kernel
 * places mappings at random: sometimes one follows `memory` directly. */
static uint64_t small_alone(void)
{
	uint64_t small, page, rejected[16];
	unsigned count = 0;

	for (;;) {
		assert_int_equal(cu.alloc(&small, 8), 0);
		page = small & ~(PAGE - 1);
		if (memory >= page + 2 * PAGE || memory + SIZE <= page - PAGE)
			break;
		assert_true(count + 2 <= sizeof(rejected) / sizeof(rejected[0]));
		rejected[count++] = small;
		assert_int_equal(cu.alloc(&rejected[count++], 2 * PAGE),
				 0); /* the next lies elsewhere */
	}
	while (count)
		assert_int_equal(cu.free(rejected[--count]), 0);
	return small;
}

/* A page is pinned only for bytes of the range that are allocated in it. */
static void pin__pages_without_memory(void **state)
{
	gdr_mh_t mh = { 77 };
	uint64_t small, page;

	(void)state;
	small = small_alone();
	page = small & ~(PAGE - 1);
	assert_int_equal(api.gdr_pin_buffer(gdr, page, 2 * PAGE, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, page - PAGE, 2 * PAGE, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, small + 4096, 8, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, small + 8, PAGE - (small + 8) % PAGE, 0, 0, &mh),
			 EINVAL);
	assert_int_equal(mh.h, 77);
	mh = pin_buffer(small,
			PAGE - small % PAGE); /* more than is allocated, within the same page */
	assert_int_equal(buffer_info(mh).va, page);
	assert_int_equal(buffer_info(mh).mapped_size, PAGE);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
	assert_int_equal(cu.free(small), 0);
	assert_int_equal(api.gdr_pin_buffer(gdr, page, PAGE, 0, 0, &mh), EINVAL);
}

static void pin__gaps(void **state)
{
	uint64_t first, last;
	size_t whole;
	gdr_mh_t mh;

	(void)state;
	if (!shares_pages)
		return; /* each allocation has pages of its own */
	free_middle(KIB, &first, &last, &whole);
	mh = pin_buffer(first, whole);
	assert_true(buffer_info(mh).va <= first &&
		    buffer_info(mh).va + buffer_info(mh).mapped_size >= last + 100 * KIB);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
	use_pages_around(first, 100 * KIB);
	use_pages_around(last, 100 * KIB);
	assert_int_equal(cu.free(first) + cu.free(last), 0);

	free_middle(200 * KIB, &first, &last, &whole);
	assert_int_equal(api.gdr_pin_buffer(gdr, first, whole, 0, 0, &mh), EINVAL);
	use_pages_around(last, 100 * KIB);
	assert_int_equal(cu.free(first) + cu.free(last), 0);
}

static void pin__refusals(void **state)
{
	uint64_t freed;
	gdr_mh_t mh = { 77 };
	char stack[64];

	(void)state;
	assert_int_equal(cu.alloc(&freed, SIZE), 0);
	assert_int_equal(cu.free(freed), 0);
	assert_int_equal(api.gdr_pin_buffer(NULL, memory, 1, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, memory, 1, 0, 0, NULL), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, memory, 0, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, memory, SIZE_MAX, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, UINT64_MAX - 4095, 4096, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, memory, 64 * SIZE, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, freed, 4096, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, (uintptr_t)stack, 64, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(gdr, 0, 64, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer_v2(gdr, memory, 64, 2, &mh), EINVAL);
	assert_int_equal(mh.h, 77);
#if defined(__x86_64__) /* a module without pin flags leaves the pin to the next backend */
	assert_int_equal(api.gdr_pin_buffer_v2(gdr, memory, 64, GDR_PIN_FLAG_FORCE_PCIE, &mh), 0);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
#endif
}

static void handle__stale_and_foreign(void **state)
{
	gdr_mh_t first = pin_buffer(memory, 64), second, none = { 0 }, wild = { ~0UL };
	gdr_t other = api.gdr_open();
	gdr_info_v2_t i;
	int flag;
	void *va;

	(void)state;
	assert_int_equal(api.gdr_unpin_buffer(other, first), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(gdr, first), 0);
	second = pin_buffer(memory, 64);
	assert_true(first.h != second.h);
	for (int n = 0; n < 3; n++) {
		gdr_mh_t mh = n == 0 ? first : n == 1 ? none : wild;

		assert_int_equal(api.gdr_unpin_buffer(gdr, mh), EINVAL);
		assert_int_equal(api.gdr_map(gdr, mh, &va, 64), EINVAL);
		assert_int_equal(api.gdr_unmap(gdr, mh, &i, 64), EINVAL);
		assert_int_equal(api.gdr_get_info_v2(gdr, mh, &i), EINVAL);
		assert_int_equal(api.gdr_get_callback_flag(gdr, mh, &flag), EINVAL);
		assert_int_equal(api.gdr_copy_to_mapping(mh, &i, &i, 1), EINVAL);
		assert_int_equal(api.gdr_copy_from_mapping(mh, &i, &i, 1), EINVAL);
	}
	assert_int_equal(api.gdr_get_info_v2(other, second, &i), EINVAL);
	assert_int_equal(api.gdr_get_info_v2(NULL, second, &i), EINVAL);
	assert_int_equal(api.gdr_close(other), 0);
	assert_int_equal(api.gdr_unpin_buffer(gdr, second), 0);
}

/* All calls that take a gdr refuse this one, and touch nothing. */
static void want_unknown(gdr_t g)
{
	gdr_mh_t mh = { 77 };
	int major, minor, value;
	gdr_info_v2_t i;
	void *va;

	assert_int_equal(api.gdr_pin_buffer(g, memory, 64, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer_v2(g, memory, 64, 0, &mh), EINVAL);
	assert_int_equal(mh.h, 77);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), EINVAL);
	assert_int_equal(api.gdr_get_info_v2(g, mh, &i), EINVAL);
	assert_int_equal(api.gdr_get_callback_flag(g, mh, &value), EINVAL);
	assert_int_equal(api.gdr_map(g, mh, &va, 64), EINVAL);
	assert_int_equal(api.gdr_unmap(g, mh, &i, 64), EINVAL);
	assert_int_equal(api.gdr_driver_get_version(g, &major, &minor), EINVAL);
	assert_int_equal(api.gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &value), EINVAL);
	assert_int_equal(api.gdr_close(g), EINVAL);
}

/* NVIDIA's tests pass a struct of their own, of 48 bytes, with a descriptor as its first member. */
static void gdr__only_open_ones(void **state)
{
	gdr_t other = api.gdr_open();
	int copy[12], fd;

	(void)state;
	memcpy(copy, other, sizeof(copy));
	fd = copy[0];
	memset(copy, 0xa5, sizeof(copy));
	copy[0] = fd;
	want_unknown((gdr_t)(void *)copy);
	want_unknown((gdr_t)(uintptr_t)8);
	assert_int_equal(api.gdr_close(other), 0);
	want_unknown(other);
	other = api.gdr_open();
	assert_non_null(other);
	assert_int_equal(api.gdr_close(other), 0);
}

/* They also read an entry of GDRCopy's at the address that a handle is, and pass the address of a
 * copy. */
static void handle__is_readable(void **state)
{
	gdr_mh_t mh = pin_buffer(memory, 64), copied;
	char copy[256];
	gdr_info_v2_t i;
	void *va;

	(void)state;
	memcpy(copy, (const void *)mh.h, sizeof(copy));
	copied.h = (unsigned long)copy;
	assert_int_equal(api.gdr_map(gdr, copied, &va, 64), EINVAL);
	assert_int_equal(api.gdr_get_info_v2(gdr, copied, &i), EINVAL);
	copied.h = mh.h + 1;
	assert_int_equal(api.gdr_get_info_v2(gdr, copied, &i), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
}

static int compare(const void *a, const void *b)
{
	unsigned long one = ((const gdr_mh_t *)a)->h, other = ((const gdr_mh_t *)b)->h;

	return one < other ? -1 : one > other;
}

static void handle__never_again(void **state)
{
	enum { COUNT = 1500 };
	gdr_mh_t *all = calloc(COUNT, sizeof(*all));
	char copy[256];

	(void)state;
	for (int i = 0; i < COUNT; i++) {
		all[i] = pin_buffer(memory, 64);
		memcpy(copy, (const void *)all[i].h, sizeof(copy));
		assert_int_equal(api.gdr_unpin_buffer(gdr, all[i]), 0);
	}
	qsort(all, COUNT, sizeof(*all), compare);
	for (int i = 1; i < COUNT; i++)
		assert_true(all[i - 1].h != all[i].h);
	free(all);
}

static void close__gives_all_back(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		gdr_mh_t mh = pin_buffer(memory + (unsigned)i % 16 * PAGE, 64);

		if (i & 1)
			map_buffer(mh, 64);
	}
	/* gdrapi_end() counts what is left. */
}

static void pin__thousands(void **state)
{
	enum { COUNT = 3000 };
	gdr_mh_t *all = calloc(COUNT, sizeof(*all));

	(void)state;
	for (int i = 0; i < COUNT; i++)
		all[i] = pin_buffer(memory, 64);
	for (int i = 0; i < COUNT; i++)
		assert_int_equal(buffer_info(all[i]).page_size, 65536);
	for (int i = 0; i < COUNT; i++)
		assert_int_equal(api.gdr_unpin_buffer(gdr, all[i]), 0);
	free(all);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		GDRAPI_TEST(load__as_peers_do),
		GDRAPI_TEST(open__descriptor_first),
		GDRAPI_TEST(open__nothing_there),
		GDRAPI_TEST(pin__any_alignment),
		GDRAPI_TEST(pin__pages_around),
		GDRAPI_TEST(pin__pages_without_memory),
		GDRAPI_TEST(pin__gaps),
		GDRAPI_TEST(pin__refusals),
		GDRAPI_TEST(handle__stale_and_foreign),
		GDRAPI_TEST(gdr__only_open_ones),
		GDRAPI_TEST(handle__is_readable),
		GDRAPI_TEST(handle__never_again),
		GDRAPI_TEST(close__gives_all_back),
		GDRAPI_TEST(pin__thousands),
	};

	gdrapi_load(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
