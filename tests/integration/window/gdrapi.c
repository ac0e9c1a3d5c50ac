/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgdrapi.so.2 as the programs have it that were made for GDRCopy: opened at run time, by either
 * name, on each backend (which one, the environment says: gdrapi BACKEND).
 */
#include "../../unit/unit.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "../../fake/nvidia-control.h"
#include "gdrapi.h"

#undef gdr_get_info

#define SIZE ((size_t)1 << 20)
#define PAGE ((uint64_t)65536)
#define KIB ((size_t)1 << 10)

struct info_v1 {
	uint64_t va, mapped_size;
	uint32_t page_size;
	uint64_t tm_cycles;
	uint32_t cycles_per_ms;
	unsigned mapped : 1, wc_mapping : 1;
};

#define FUNCTIONS(X)                                                                               \
	X(gdr_t, gdr_open, (void))                                                                 \
	X(int, gdr_close, (gdr_t))                                                                 \
	X(int, gdr_pin_buffer, (gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t *))     \
	X(int, gdr_pin_buffer_v2, (gdr_t, unsigned long, size_t, uint32_t, gdr_mh_t *))            \
	X(int, gdr_unpin_buffer, (gdr_t, gdr_mh_t))                                                \
	X(int, gdr_get_callback_flag, (gdr_t, gdr_mh_t, int *))                                    \
	X(int, gdr_get_info, (gdr_t, gdr_mh_t, struct info_v1 *))                                  \
	X(int, gdr_get_info_v2, (gdr_t, gdr_mh_t, gdr_info_v2_t *))                                \
	X(int, gdr_map, (gdr_t, gdr_mh_t, void **, size_t))                                        \
	X(int, gdr_map_v2, (gdr_t, gdr_mh_t, void **, size_t, int))                                \
	X(int, gdr_unmap, (gdr_t, gdr_mh_t, void *, size_t))                                       \
	X(int, gdr_copy_to_mapping, (gdr_mh_t, void *, const void *, size_t))                      \
	X(int, gdr_copy_from_mapping, (gdr_mh_t, void *, const void *, size_t))                    \
	X(void, gdr_runtime_get_version, (int *, int *))                                           \
	X(int, gdr_driver_get_version, (gdr_t, int *, int *))                                      \
	X(int, gdr_get_attribute, (gdr_t, int, int *))                                             \
	X(int, gdr_get_mapping_type_string, (int, const char **))

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define MEMBER(type, name, parameters) type(*name) parameters;
static struct {
	FUNCTIONS(MEMBER)
} api;

static struct {
	void *library;
	int (*init)(unsigned);
	int (*retain)(void **, int);
	int (*set_current)(void *);
	int (*alloc)(uint64_t *, size_t);
	int (*free)(uint64_t);
	char *(*alias)(uint64_t);
} cu;

static const char *backend;
static bool shares; /* small allocations lie in one piece of memory */
static gdr_t g;
static uint64_t memory;

static void look_up(void *library, const char *name, void *out)
{
	void *found = dlsym(library, name);

	if (!found)
		print_message("no %s\n", name);
	assert_non_null(found);
	memcpy(out, &found, sizeof(found));
}

static bool is(const char *name)
{
	return !strcmp(backend, name);
}

static struct fake_nvidia state_now(void)
{
	struct fake_nvidia state;

	fake_nvidia_state(&state);
	return state;
}

static int begin(void **state)
{
	(void)state;
	g = api.gdr_open();
	assert_non_null(g);
	assert_int_equal(cu.alloc(&memory, SIZE), 0);
	memset(cu.alias(memory), 0x11, SIZE);
	return 0;
}

static int end(void **state)
{
	struct fake_nvidia left;

	(void)state;
	assert_int_equal(api.gdr_close(g), 0);
	assert_int_equal(cu.free(memory), 0);
	left = state_now();
	assert_int_equal(left.clients + left.objects + left.mapped + left.pins, 0);
	assert_int_equal(left.violations, 0);
	return 0;
}

static gdr_mh_t pin(uint64_t address, size_t size)
{
	gdr_mh_t mh = { 0 };

	assert_int_equal(api.gdr_pin_buffer(g, address, size, 0, 0, &mh), 0);
	assert_true(mh.h != 0);
	return mh;
}

static void *map(gdr_mh_t mh, size_t size)
{
	void *va = NULL;

	assert_int_equal(api.gdr_map(g, mh, &va, size), 0);
	assert_non_null(va);
	return va;
}

static gdr_info_v2_t info(gdr_mh_t mh)
{
	gdr_info_v2_t out;

	assert_int_equal(api.gdr_get_info_v2(g, mh, &out), 0);
	return out;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* What NCCL, NVSHMEM and libfabric do, each in its way. */
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
	assert_int_equal(api.gdr_driver_get_version(g, &major, &minor), 0);
	assert_int_equal(major, 2);
	assert_true(minor >= (is("driver-old") ? 0 : 1));
	api.gdr_runtime_get_version(NULL, NULL);
	assert_int_equal(api.gdr_driver_get_version(g, NULL, &minor), EINVAL);
	assert_int_equal(api.gdr_driver_get_version(NULL, &major, &minor), EINVAL);
	/* Not unloaded: a table of libcuda's may point to it. */
	dlclose(nccl);
	dlclose(nvshmem);
}

static void open__descriptor_first(void **state)
{
	int fd;

	(void)state;
	memcpy(&fd, g, sizeof(fd));
	assert_true(fd >= 0);
	assert_int_equal(lseek(fd, 0, SEEK_CUR) < 0 && errno == EBADF, 0);
	assert_int_equal(api.gdr_close(NULL), EINVAL);
}

static void open__nothing_there(void **state)
{
	(void)state;
	fake_nvidia_fail(FAKE_NVIDIA_OPEN, 0, -ENOENT);
	fake_nvidia_gdrdrv(0);
	if (is("dmabuf")) {
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
		gdr_mh_t mh = pin(memory + at, 100 * KIB);
		gdr_info_v2_t i = info(mh);

		assert_int_equal(i.va % 65536, 0);
		assert_int_equal(i.mapped_size % 65536, 0);
		assert_int_equal(i.page_size, 65536);
		assert_true(i.va <= memory + at && i.va + 65536 > memory + at);
		assert_true(i.va + i.mapped_size >= memory + at + 100 * KIB);
		assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
	}
}

/* As UCX has its buffers: the whole pages around them, found in the mapping by their distance from
 * info.va. The bytes beside the buffer, of whoever they are, stay. */
static void use_pages_around(uint64_t buffer, size_t length)
{
	uint64_t start = buffer & ~(PAGE - 1), end = (buffer + length + PAGE - 1) & ~(PAGE - 1);
	unsigned char *sent = malloc(length), *got = calloc(1, length), *va = NULL, *mine;
	unsigned char before = 0, behind = 0, now;
	gdr_info_v2_t i;
	gdr_mh_t mh;

	for (size_t n = 0; n < length; n++)
		sent[n] = (unsigned char)(n * 13 + buffer / 512);
	assert_int_equal(api.gdr_pin_buffer_v2(g, start, end - start, GDR_PIN_FLAG_DEFAULT, &mh),
			 0);
	assert_int_equal(api.gdr_map(g, mh, (void **)&va, end - start), 0);
	i = info(mh);
	assert_int_equal(i.va, start);
	assert_int_equal(i.mapped_size, end - start);
	mine = va + (buffer - i.va);
	if (buffer > start)
		before = mine[-1];
	if (buffer + length < end)
		behind = mine[length];
	assert_int_equal(api.gdr_copy_to_mapping(mh, mine, sent, length), 0);
	assert_memory_equal(cu.alias(buffer), sent, length);
	for (size_t n = 0; n < length; n++)
		sent[n] ^= 0xff;
	memcpy(cu.alias(buffer), sent, length);
	assert_int_equal(api.gdr_copy_from_mapping(mh, got, mine, length), 0);
	assert_memory_equal(got, sent, length);
	now = buffer > start ? mine[-1] : before;
	assert_int_equal(now, before);
	now = buffer + length < end ? mine[length] : behind;
	assert_int_equal(now, behind);
	assert_int_equal(api.gdr_unmap(g, mh, va, end - start), 0);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
	free(sent);
	free(got);
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

/* An allocation of 8 bytes, with `memory` neither in its page nor in those beside it. Where the
 * kernel places a mapping is random: now and then one lies right behind `memory`. */
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

/* A page is pinned for a byte of the range that is allocated in it, and for nothing else. */
static void pin__pages_without_memory(void **state)
{
	gdr_mh_t mh = { 77 };
	uint64_t small, page;

	(void)state;
	small = small_alone();
	page = small & ~(PAGE - 1);
	assert_int_equal(api.gdr_pin_buffer(g, page, 2 * PAGE, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, page - PAGE, 2 * PAGE, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, small + 4096, 8, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, small + 8, PAGE - (small + 8) % PAGE, 0, 0, &mh),
			 EINVAL);
	assert_int_equal(mh.h, 77);
	mh = pin(small, PAGE - small % PAGE); /* more than there is, of the same page */
	assert_int_equal(info(mh).va, page);
	assert_int_equal(info(mh).mapped_size, PAGE);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
	assert_int_equal(cu.free(small), 0);
	assert_int_equal(api.gdr_pin_buffer(g, page, PAGE, 0, 0, &mh), EINVAL);
}

/* Three allocations, one behind the other, and the middle one freed. */
static void free_amid(size_t length, uint64_t *first, uint64_t *last, size_t *whole)
{
	uint64_t middle;

	assert_int_equal(cu.alloc(first, 100 * KIB), 0);
	assert_int_equal(cu.alloc(&middle, length), 0);
	assert_int_equal(cu.alloc(last, 100 * KIB), 0);
	assert_int_equal(middle - *first, 100 * KIB);
	*whole = *last + 100 * KIB - *first;
	assert_int_equal(*whole, 200 * KIB + length);
	assert_int_equal(cu.free(middle), 0);
}

static void pin__gaps(void **state)
{
	uint64_t first, last;
	size_t whole;
	gdr_mh_t mh;

	(void)state;
	if (!shares)
		return; /* addresses of their own */
	free_amid(KIB, &first, &last, &whole);
	mh = pin(first, whole);
	assert_true(info(mh).va <= first && info(mh).va + info(mh).mapped_size >= last + 100 * KIB);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
	use_pages_around(first, 100 * KIB);
	use_pages_around(last, 100 * KIB);
	assert_int_equal(cu.free(first) + cu.free(last), 0);

	free_amid(200 * KIB, &first, &last, &whole);
	assert_int_equal(api.gdr_pin_buffer(g, first, whole, 0, 0, &mh), EINVAL);
	use_pages_around(last, 100 * KIB);
	assert_int_equal(cu.free(first) + cu.free(last), 0);
}

static void map__unaligned_is_refused(void **state)
{
	static const size_t shifts[] = { 1, 8, 512, 4096, 0x8000, 0xffff, 0x10001 };

	(void)state;
	for (size_t s = 0; s < sizeof(shifts) / sizeof(shifts[0]); s++) {
		gdr_mh_t mh = pin(memory + shifts[s], 8);
		void *va = &mh;

		assert_int_equal(api.gdr_map(g, mh, &va, 8), EINVAL);
		assert_int_equal(api.gdr_map_v2(g, mh, &va, 8, GDR_MAP_FLAG_REQ_WC_MAPPING),
				 EINVAL);
		assert_ptr_equal(va, &mh);
		assert_int_equal(info(mh).mapped, 0);
		assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
	}
	for (uint64_t at = 0; at < SIZE; at += PAGE) {
		gdr_mh_t mh = pin(memory + at, 8);
		char *va = map(mh, 8);

		va[5] = 'b'; /* as a program does that stores by itself */
		assert_int_equal(*cu.alias(memory + at + 5), 'b');
		assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
	}
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
	assert_int_equal(api.gdr_pin_buffer(g, memory, 1, 0, 0, NULL), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, memory, 0, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, memory, SIZE_MAX, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, UINT64_MAX - 4095, 4096, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, memory, 64 * SIZE, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, freed, 4096, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, (uintptr_t)stack, 64, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer(g, 0, 64, 0, 0, &mh), EINVAL);
	assert_int_equal(api.gdr_pin_buffer_v2(g, memory, 64, 2, &mh), EINVAL);
	assert_int_equal(mh.h, 77);
#if defined(__x86_64__) /* a module that is too old for it leaves it to the next backend */
	assert_int_equal(api.gdr_pin_buffer_v2(g, memory, 64, GDR_PIN_FLAG_FORCE_PCIE, &mh), 0);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
#endif
}

static void handle__stale_and_foreign(void **state)
{
	gdr_mh_t first = pin(memory, 64), second, none = { 0 }, wild = { ~0UL };
	gdr_t other = api.gdr_open();
	gdr_info_v2_t i;
	int flag;
	void *va;

	(void)state;
	assert_int_equal(api.gdr_unpin_buffer(other, first), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(g, first), 0);
	second = pin(memory, 64);
	assert_true(first.h != second.h);
	for (int n = 0; n < 3; n++) {
		gdr_mh_t mh = n == 0 ? first : n == 1 ? none : wild;

		assert_int_equal(api.gdr_unpin_buffer(g, mh), EINVAL);
		assert_int_equal(api.gdr_map(g, mh, &va, 64), EINVAL);
		assert_int_equal(api.gdr_unmap(g, mh, &i, 64), EINVAL);
		assert_int_equal(api.gdr_get_info_v2(g, mh, &i), EINVAL);
		assert_int_equal(api.gdr_get_callback_flag(g, mh, &flag), EINVAL);
		assert_int_equal(api.gdr_copy_to_mapping(mh, &i, &i, 1), EINVAL);
		assert_int_equal(api.gdr_copy_from_mapping(mh, &i, &i, 1), EINVAL);
	}
	assert_int_equal(api.gdr_get_info_v2(other, second, &i), EINVAL);
	assert_int_equal(api.gdr_get_info_v2(NULL, second, &i), EINVAL);
	assert_int_equal(api.gdr_close(other), 0);
	assert_int_equal(api.gdr_unpin_buffer(g, second), 0);
}

static void close__gives_all_back(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		gdr_mh_t mh = pin(memory + (unsigned)i % 16 * PAGE, 64);

		if (i & 1)
			map(mh, 64);
	}
	/* What is left is counted when the test ends. */
}

static void pin__thousands(void **state)
{
	enum { COUNT = 3000 };
	gdr_mh_t *all = calloc(COUNT, sizeof(*all));

	(void)state;
	for (int i = 0; i < COUNT; i++)
		all[i] = pin(memory, 64);
	for (int i = 0; i < COUNT; i++)
		assert_int_equal(info(all[i]).page_size, 65536);
	for (int i = 0; i < COUNT; i++)
		assert_int_equal(api.gdr_unpin_buffer(g, all[i]), 0);
	free(all);
}

/* ---- mapping --------------------------------------------------------------------------------- */

static void map__twice_and_not(void **state)
{
	gdr_mh_t mh = pin(memory, SIZE);
	void *va = (void *)1, *got;
	char byte = 0;

	(void)state;
	assert_int_equal(api.gdr_unmap(g, mh, &byte, SIZE), EINVAL);
	assert_int_equal(api.gdr_map(g, mh, &va, 0), EINVAL);
	assert_int_equal(api.gdr_map(g, mh, &va, 2 * SIZE), EINVAL);
	assert_int_equal(api.gdr_map(g, mh, NULL, SIZE), EINVAL);
	assert_int_equal(api.gdr_map_v2(g, mh, &va, SIZE, 4), EINVAL);
	assert_int_equal(api.gdr_map_v2(g, mh, &va, SIZE, -1), EINVAL);
	assert_ptr_equal(va, (void *)1);
	got = map(mh, SIZE);
	assert_int_equal(api.gdr_map(g, mh, &va, SIZE), EAGAIN);
	assert_int_equal(api.gdr_unmap(g, mh, (char *)got + 1, SIZE), EINVAL);
	assert_int_equal(api.gdr_unmap(g, mh, got, SIZE), 0);
	assert_int_equal(api.gdr_unmap(g, mh, got, SIZE), EINVAL);
	/* And again. */
	got = map(mh, 64);
	assert_int_equal(api.gdr_copy_to_mapping(mh, got, "again", 6), 0);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0); /* while it is mapped */
	assert_int_equal(api.gdr_copy_to_mapping(mh, got, "again", 6), EINVAL);
}

static void types__names(void **state)
{
	static const char *const names[] = { "None", "Write Combining", "Caching", "Device" };
	const char *name;

	(void)state;
	for (int type = 0; type < GDR_MAPPING_TYPE_MAX; type++) {
		assert_int_equal(api.gdr_get_mapping_type_string(type, &name), 0);
		assert_string_equal(name, names[type]);
	}
	name = "unchanged";
	assert_int_equal(api.gdr_get_mapping_type_string(GDR_MAPPING_TYPE_MAX, &name), EINVAL);
	assert_int_equal(api.gdr_get_mapping_type_string(-1, &name), EINVAL);
	assert_int_equal(api.gdr_get_mapping_type_string(1, NULL), EINVAL);
	assert_string_equal(name, "unchanged");
}

static void map__types(void **state)
{
	gdr_mh_t mh = pin(memory, SIZE);
	gdr_info_v2_t i = info(mh);
	void *va;

	(void)state;
	assert_int_equal(i.mapped, 0);
	assert_int_equal(i.mapping_type, GDR_MAPPING_TYPE_NONE);
	assert_int_equal(api.gdr_map_v2(g, mh, &va, SIZE, GDR_MAP_FLAG_REQ_CACHE_MAPPING),
			 EOPNOTSUPP);
	assert_int_equal(api.gdr_map_v2(g, mh, &va, SIZE, GDR_MAP_FLAG_REQ_DEVICE_MAPPING),
			 EOPNOTSUPP);
	assert_int_equal(api.gdr_map_v2(g, mh, &va, SIZE, GDR_MAP_FLAG_REQ_WC_MAPPING), 0);
	i = info(mh);
	assert_int_equal(i.mapped, 1);
	assert_int_equal(i.wc_mapping, 1);
	assert_int_equal(i.mapping_type, GDR_MAPPING_TYPE_WC);
	assert_int_equal(i.tm_cycles, strncmp(backend, "driver", 6) ? 0 : 4711);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
}

/* Programs compiled long ago have 40 bytes for it. */
static void info__of_old(void **state)
{
	struct {
		struct info_v1 info;
		unsigned char guard[16];
	} old;
	gdr_mh_t mh = pin(memory + PAGE, 64);

	(void)state;
	memset(&old, 0x5a, sizeof(old));
	map(mh, 64);
	assert_int_equal(api.gdr_get_info(g, mh, &old.info), 0);
	assert_int_equal(sizeof(old.info), 40);
	assert_int_equal(old.info.va, memory + PAGE);
	assert_int_equal(old.info.mapped_size % 65536, 0);
	assert_int_equal(old.info.mapped, 1);
	assert_int_equal(old.info.wc_mapping, 1);
	for (size_t i = 0; i < sizeof(old.guard); i++)
		assert_int_equal(old.guard[i], 0x5a);
	assert_int_equal(api.gdr_get_info(g, mh, NULL), EINVAL);
	assert_int_equal(api.gdr_get_info_v2(g, mh, NULL), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
}

static void map__two_of_the_same(void **state)
{
	gdr_mh_t a = pin(memory, SIZE), b = pin(memory, SIZE);
	char *first = map(a, SIZE), *second = map(b, SIZE), byte;

	(void)state;
	assert_ptr_not_equal(first, second);
	assert_int_equal(api.gdr_copy_to_mapping(a, first + 1000, "x", 1), 0);
	assert_int_equal(api.gdr_copy_from_mapping(b, &byte, second + 1000, 1), 0);
	assert_int_equal(byte, 'x');
	/* Each handle has its own mapping only. */
	assert_int_equal(api.gdr_copy_to_mapping(a, second, "x", 1), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(g, a), 0);
	assert_int_equal(api.gdr_copy_from_mapping(b, &byte, second + 1000, 1), 0);
	assert_int_equal(api.gdr_unpin_buffer(g, b), 0);
}

/* ---- copying --------------------------------------------------------------------------------- */

static void copy__bounds(void **state)
{
	gdr_mh_t mh = pin(memory, SIZE);
	char *va = map(mh, SIZE), byte = 0;
	size_t length = info(mh).mapped_size;

	(void)state;
	assert_int_equal(api.gdr_copy_to_mapping(mh, NULL, NULL, 0), 0);
	assert_int_equal(api.gdr_copy_from_mapping((gdr_mh_t){ 0 }, NULL, NULL, 0), 0);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va + length - 1, &byte, 1), 0);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va + length, &byte, 1), EINVAL);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va - 1, &byte, 1), EINVAL);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va + 1, &byte, SIZE_MAX), EINVAL);
	assert_int_equal(api.gdr_copy_from_mapping(mh, &byte, va + length - 1, 2), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
}

static void copy__every_offset(void **state)
{
	gdr_mh_t mh = pin(memory, SIZE);
	char *va = map(mh, SIZE), *mine = va + (memory - info(mh).va);
	unsigned char sent[300], got[300];

	(void)state;
	for (size_t i = 0; i < sizeof(sent); i++)
		sent[i] = (unsigned char)(i * 7);
	for (size_t at = 0; at < 300; at++) {
		for (size_t length = 1; length < 300; length += 1 + at % 7) {
			assert_int_equal(api.gdr_copy_to_mapping(mh, mine + at, sent, length), 0);
			assert_memory_equal(cu.alias(memory + at), sent, length);
			assert_int_equal(api.gdr_copy_from_mapping(mh, got, mine + at, length), 0);
			assert_memory_equal(got, sent, length);
		}
	}
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
}

/* ---- what holds, and what ends --------------------------------------------------------------- */

static void attribute__truth(void **state)
{
	bool old = is("driver-old"), dmabuf = is("dmabuf");
	int value = -1;

	(void)state;
	assert_int_equal(api.gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &value), 0);
	assert_int_equal(value, !old);
	assert_int_equal(api.gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &value), 0);
	assert_int_equal(value, dmabuf);
	assert_int_equal(api.gdr_get_attribute(g, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE, &value), 0);
	assert_true(value == 0 || value == 1);
	assert_int_equal(api.gdr_get_attribute(g, 0, &value), EINVAL);
	assert_int_equal(api.gdr_get_attribute(g, GDR_ATTR_MAX, &value), EINVAL);
	assert_int_equal(api.gdr_get_attribute(g, -1, &value), EINVAL);
	assert_int_equal(api.gdr_get_attribute(g, 1, NULL), EINVAL);
	assert_int_equal(api.gdr_get_attribute(NULL, 1, &value), EINVAL);
}

static void freed__flag(void **state)
{
	gdr_mh_t mh = pin(memory, SIZE);
	int flag = 7;

	(void)state;
	map(mh, SIZE);
	assert_int_equal(api.gdr_get_callback_flag(g, mh, &flag), 0);
	assert_int_equal(flag, 0);
	assert_int_equal(api.gdr_get_callback_flag(g, mh, NULL), EINVAL);
	for (uint64_t handle = 1; handle < 100000 && !strncmp(backend, "driver", 6); handle++)
		fake_nvidia_revoke(handle);
	assert_int_equal(api.gdr_get_callback_flag(g, mh, &flag), 0);
	assert_int_equal(flag, !strncmp(backend, "driver", 6));
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
}

static void fork__child_has_none(void **state)
{
	gdr_mh_t mh = pin(memory, SIZE), unmapped = pin(memory, SIZE), other;
	volatile char *va = map(mh, SIZE);
	int status;
	pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (!child) {
		void *at;
		bool good = api.gdr_pin_buffer(g, memory, 64, 0, 0, &other) == EACCES &&
			    api.gdr_map(g, unmapped, &at, SIZE) == EACCES;

		signal(SIGSEGV, SIG_DFL);
		if (good)
			*va = 1;
		_exit(good ? 42 : 41);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) || (WEXITSTATUS(status) && WEXITSTATUS(status) < 41));
	assert_int_equal(api.gdr_copy_to_mapping(mh, (void *)(uintptr_t)va, "still", 6), 0);
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
	assert_int_equal(api.gdr_unpin_buffer(g, unmapped), 0);
}

/* In a child the parent's is closed without touching what is the parent's. */
static void fork__child_closes(void **state)
{
	gdr_mh_t mh = pin(memory, SIZE);
	char *va = map(mh, SIZE);
	int status;
	pid_t child = fork();

	(void)state;
	if (!child)
		_exit(api.gdr_close(g) ? 41 : 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : 99, 0);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va, "still", 6), 0);
	assert_string_equal(cu.alias(info(mh).va), "still");
	assert_int_equal(api.gdr_unpin_buffer(g, mh), 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *pin_and_unpin(void *arg)
{
	unsigned at = (unsigned)(uintptr_t)arg;

	for (unsigned i = 0; i < 50; i++) {
		uint64_t address = memory + at * PAGE, value = (uint64_t)at << 32 | i, got = 0;
		gdr_info_v2_t about;
		gdr_mh_t mh;
		void *va;

		if (api.gdr_pin_buffer(g, address, 4096, 0, 0, &mh) ||
		    api.gdr_get_info_v2(g, mh, &about) || api.gdr_map(g, mh, &va, 4096))
			return "pin or map";
		va = (char *)va + (address - about.va);
		if (api.gdr_copy_to_mapping(mh, va, &value, 8) ||
		    api.gdr_copy_from_mapping(mh, &got, va, 8) || got != value)
			return "copy";
		if (api.gdr_unpin_buffer(g, mh))
			return "unpin";
	}
	return NULL;
}

/* libwherry does the same with libcuda's table at the same time. */
static void *open_and_close(void *arg)
{
	struct wh_engine *engine = arg;

	for (int i = 0; i < 50; i++) {
		struct wh_window_options options = { .size = sizeof(options), .backends = "rm" };
		struct wh_window *window;

		if (wh_window_open(engine, (void *)(uintptr_t)memory, SIZE, &options, &window) ||
		    wh_window_close(window))
			return (void *)(uintptr_t)wh_error_text();
	}
	return NULL;
}

static void threads__beside_libwherry(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_engine *engine;
	pthread_t threads[5];
	void *why;

	(void)state;
	assert_int_equal(wh_engine_open(&options, &engine), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, pin_and_unpin,
						(void *)(uintptr_t)(i + 1)),
				 0);
	assert_int_equal(pthread_create(&threads[4], NULL, open_and_close, engine), 0);
	for (int i = 0; i < 5; i++) {
		pthread_join(threads[i], &why);
		if (why)
			print_message("%d: %s\n", i, (char *)why);
		assert_null(why);
	}
	assert_int_equal(wh_engine_close(engine), 0);
}

static _Atomic bool stop;

static void *come_and_go(void *arg)
{
	void *context;

	(void)arg;
	if (cu.retain(&context, 0) || cu.set_current(context))
		return "no context";
	while (!stop) {
		uint64_t neighbours[8];

		for (int i = 0; i < 8; i++) {
			if (cu.alloc(&neighbours[i], 300))
				return "alloc";
		}
		for (int i = 0; i < 8; i++) {
			if (cu.free(neighbours[i]))
				return "free";
		}
	}
	return NULL;
}

/* Whose memory a page begins with may be freed while the page is being pinned for somebody else. */
static void threads__neighbours_come_and_go(void **state)
{
	pthread_t thread;
	void *why;

	(void)state;
	stop = false;
	assert_int_equal(pthread_create(&thread, NULL, come_and_go, NULL), 0);
	for (int i = 0; i < 300; i++) {
		uint64_t before, buffer;

		assert_int_equal(cu.alloc(&before, 700), 0);
		assert_int_equal(cu.alloc(&buffer, 8), 0);
		assert_int_equal(cu.free(before), 0);
		for (int n = 0; n < 5; n++)
			use_pages_around(buffer, 8);
		assert_int_equal(cu.free(buffer), 0);
	}
	stop = true;
	pthread_join(thread, &why);
	if (why)
		print_message("%s\n", (char *)why);
	assert_null(why);
}

/* Windows of Wherry's own: all of the range has to be allocated, and allocations may meet within a
 * page. */
static void window__of_neighbours(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	char *backends = is("driver-old") ? "driver" : (char *)(uintptr_t)backend, got[8] = "";
	struct wh_window_options with = { .size = sizeof(with), .backends = backends };
	struct wh_window *window;
	struct wh_engine *engine;
	uint64_t first, second;
	size_t whole;

	(void)state;
	if (!shares)
		return;
	assert_int_equal(wh_engine_open(&options, &engine), 0);
	assert_int_equal(cu.alloc(&first, 100 * KIB), 0);
	assert_int_equal(cu.alloc(&second, 100 * KIB), 0);
	assert_int_equal(second - first, 100 * KIB);
	assert_int_equal(
		wh_window_open(engine, (void *)(uintptr_t)first, 200 * KIB, &with, &window), 0);
	assert_int_equal(wh_window_copy_to(window, 100 * KIB - 4, "12345678", 8), 0);
	assert_memory_equal(cu.alias(first + 100 * KIB - 4), "1234", 4);
	assert_memory_equal(cu.alias(second), "5678", 4);
	assert_int_equal(wh_window_copy_from(window, 100 * KIB - 4, got, 8), 0);
	assert_memory_equal(got, "12345678", 8);
	assert_int_equal(wh_window_close(window), 0);
	assert_int_equal(cu.free(first) + cu.free(second), 0);

	free_amid(KIB, &first, &second, &whole);
	assert_int_equal(wh_window_open(engine, (void *)(uintptr_t)first, whole, &with, &window),
			 -EFAULT);
	assert_int_equal(cu.free(first) + cu.free(second), 0);
	assert_int_equal(wh_engine_close(engine), 0);
}

/* ---- all ------------------------------------------------------------------------------------- */

static void load(void)
{
	void *library = dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_LOCAL), *context;

	if (!library)
		print_message("%s\n", dlerror());
	assert_non_null(library);
#define LOOK_UP(type, name, parameters) look_up(library, #name, &api.name);
	FUNCTIONS(LOOK_UP)
	cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	assert_non_null(cu.library);
	look_up(cu.library, "cuInit", &cu.init);
	look_up(cu.library, "cuDevicePrimaryCtxRetain", &cu.retain);
	look_up(cu.library, "cuCtxSetCurrent", &cu.set_current);
	look_up(cu.library, "cuMemAlloc_v2", &cu.alloc);
	look_up(cu.library, "cuMemFree_v2", &cu.free);
	look_up(cu.library, "fake_cuda_alias", &cu.alias);
	assert_int_equal(cu.init(0), 0);
	assert_int_equal(cu.retain(&context, 0), 0);
	assert_int_equal(cu.set_current(context), 0);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
	const struct CMUnitTest tests[] = {
		TEST(load__as_peers_do),
		TEST(open__descriptor_first),
		TEST(open__nothing_there),
		TEST(pin__any_alignment),
		TEST(pin__pages_around),
		TEST(pin__pages_without_memory),
		TEST(pin__gaps),
		TEST(pin__refusals),
		TEST(handle__stale_and_foreign),
		TEST(close__gives_all_back),
		TEST(pin__thousands),
		TEST(map__twice_and_not),
		TEST(map__unaligned_is_refused),
		TEST(map__types),
		TEST(types__names),
		TEST(info__of_old),
		TEST(map__two_of_the_same),
		TEST(copy__bounds),
		TEST(copy__every_offset),
		TEST(attribute__truth),
		TEST(freed__flag),
		TEST(fork__child_has_none),
		TEST(fork__child_closes),
		TEST(threads__beside_libwherry),
		TEST(threads__neighbours_come_and_go),
		TEST(window__of_neighbours),
	};

	backend = argc > 1 ? argv[1] : "rm";
	shares = getenv("FAKE_CUDA_SHARE");
	load();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
