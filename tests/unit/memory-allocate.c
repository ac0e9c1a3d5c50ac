/* SPDX-License-Identifier: Apache-2.0 */
/* memory-allocate.c: allocating, freeing and querying host memory */
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "../wipe.h"
#include "core/engine.h"
#include "core/region.h"
#include "memory/memory.h"

static struct wh_engine *engine;

static int setup(void **state)
{
	const struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };

	(void)state;
	return wh_engine_open(&options, &engine);
}

static int teardown(void **state)
{
	(void)state;
	return wh_engine_close(engine);
}

static void *must_alloc(size_t length, uint32_t kind)
{
	const struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
	void *address = NULL;

	assert_int_equal(wh_memory_alloc(engine, length, &options, &address), 0);
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

static struct wh_allocation *find(const void *address)
{
	struct wh_allocation *memory;

	pthread_mutex_lock(&engine->lock);
	memory = wh_allocation_find(&engine->memory, address);
	pthread_mutex_unlock(&engine->lock);
	return memory;
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

static void alloc__every_kind_is_zero_aligned_and_writable(void **state)
{
	static const size_t lengths[] = { 1, 4096, 10000, (3 << 20) + 1 };

	(void)state;
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_SHARED; kind++) {
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			unsigned char *bytes = must_alloc(lengths[i], kind);
			struct wh_memory_info info = query(bytes);

			assert_int_equal((uintptr_t)bytes % (size_t)sysconf(_SC_PAGESIZE), 0);
			if (kind == WH_MEMORY_HUGE)
				assert_int_equal((uintptr_t)bytes % (2 << 20), 0);
			for (size_t at = 0; at < lengths[i]; at++)
				assert_int_equal(bytes[at], 0);
			memset(bytes, 0xa5, lengths[i]);
			assert_int_equal(info.kind, kind);
			assert_int_equal(info.length, lengths[i]);
			assert_ptr_equal(info.base, bytes);
			assert_true(info.page_size == (uint32_t)sysconf(_SC_PAGESIZE) ||
				    (kind == WH_MEMORY_HUGE && info.page_size == 2 << 20));
			must_free(bytes);
		}
	}
}

static void alloc__shared_is_the_default(void **state)
{
	const struct wh_memory_options zero = { .size = sizeof(zero) };
	void *address;

	(void)state;
	assert_int_equal(wh_memory_alloc(engine, 1, NULL, &address), 0);
	assert_int_equal(query(address).kind, WH_MEMORY_SHARED);
	must_free(address);
	assert_int_equal(wh_memory_alloc(engine, 1, &zero, &address), 0);
	assert_int_equal(query(address).kind, WH_MEMORY_SHARED);
	must_free(address);
}

static void alloc__misuse(void **state)
{
	struct wh_memory_options options = { .size = sizeof(options) };
	void *address = &options;

	(void)state;
	assert_int_equal(wh_memory_alloc(NULL, 1, NULL, &address), -EINVAL);
	assert_int_equal(wh_memory_alloc(engine, 0, NULL, &address), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "length"));
	assert_int_equal(wh_memory_alloc(engine, 1, NULL, NULL), -EINVAL);
	options.kind = WH_MEMORY_POOL + 1;
	assert_int_equal(wh_memory_alloc(engine, 1, &options, &address), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "kind is 10"));
	options = (struct wh_memory_options){ .size = sizeof(options), .flags = 2 };
	assert_int_equal(wh_memory_alloc(engine, 1, &options, &address), -EINVAL);
	options = (struct wh_memory_options){ .size = 0 };
	assert_int_equal(wh_memory_alloc(engine, 1, &options, &address), -EINVAL);
	assert_ptr_equal(address, &options); /* unchanged */
}

static void alloc__too_much(void **state)
{
	static const size_t lengths[] = { SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2, SIZE_MAX / 4 };
	int before = open_descriptors();
	void *address;

	(void)state;
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_SHARED; kind++) {
		const struct wh_memory_options options = { .size = sizeof(options), .kind = kind };

		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
			assert_int_equal(wh_memory_alloc(engine, lengths[i], &options, &address),
					 -ENOMEM);
	}
	assert_int_equal(open_descriptors(), before);
}

static void alloc__no_descriptor_left(void **state)
{
	struct rlimit before, none;
	void *address;
	int error;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	error = wh_memory_alloc(engine, 1, NULL, &address);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(error, -EMFILE);
}

/* ---- guarantees of a shared allocation to those who map it ------------- */

static void shared__is_sealed_and_private_to_the_user(void **state)
{
	char *bytes = must_alloc(10000, WH_MEMORY_SHARED);
	struct wh_allocation *memory = find(bytes);
	size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (9999 / page + 1) * page;
	struct stat file;
	char byte = 1;

	(void)state;
	assert_int_equal(memory->length, whole);
	assert_int_equal(memory->asked, 10000);
	assert_true(fcntl(memory->fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fcntl(memory->fd, F_GET_SEALS) &
				 (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE),
			 F_SEAL_SHRINK | F_SEAL_GROW);
	assert_int_equal(fstat(memory->fd, &file), 0);
	assert_int_equal(file.st_size, whole);
	assert_int_equal(file.st_mode & 0777, 0600);
	assert_int_equal(ftruncate(memory->fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(memory->fd, 1 << 20), -1);
	assert_int_equal(errno, EPERM);
	/* The file is this memory. */
	bytes[5000] = 42;
	assert_int_equal(pread(memory->fd, &byte, 1, 5000), 1);
	assert_int_equal(byte, 42);
	must_free(bytes);
}

static void shared__a_read_only_descriptor_maps_read_only(void **state)
{
	char *bytes = must_alloc(4096, WH_MEMORY_SHARED), path[40];
	struct wh_allocation *memory = find(bytes);
	int fd;

	(void)state;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(errno, EACCES);
	close(fd);
	must_free(bytes);
}

static void private__kinds_have_no_descriptor(void **state)
{
	int before = open_descriptors();
	void *pageable = must_alloc(4096, WH_MEMORY_PAGEABLE),
	     *huge = must_alloc(4096, WH_MEMORY_HUGE);

	(void)state;
	assert_int_equal(open_descriptors(), before);
	assert_int_equal(find(pageable)->fd, -1);
	must_free(pageable);
	must_free(huge);
}

/* ---- free -------------------------------------------------------------- */

static void free__misuse(void **state)
{
	char *bytes = must_alloc(8192, WH_MEMORY_SHARED);
	int local;

	(void)state;
	assert_int_equal(wh_memory_free(NULL, bytes), -EINVAL);
	assert_int_equal(wh_memory_free(engine, NULL), 0);
	assert_int_equal(wh_memory_free(engine, &local), -EINVAL);
	assert_int_equal(wh_memory_free(engine, bytes + 4096), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "is inside"));
	must_free(bytes);
	assert_int_equal(wh_memory_free(engine, bytes), -EINVAL);
}

static void free__while_a_region_lies_in_it(void **state)
{
	char *bytes = must_alloc(8192, WH_MEMORY_PAGEABLE);
	struct wh_region *region;

	(void)state;
	assert_int_equal(wh_region_register(engine, bytes + 100, 10, NULL, &region), 0);
	assert_int_equal(wh_memory_free(engine, bytes), -EBUSY);
	assert_non_null(strstr(wh_error_text(), "regions (1)"));
	assert_int_equal(wh_region_unregister(region), 0);
	must_free(bytes);
}

static void free__gives_everything_back(void **state)
{
	int before = open_descriptors();

	(void)state;
	for (int turn = 0; turn < 100; turn++) {
		for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_SHARED; kind++)
			must_free(must_alloc(100000, kind));
	}
	assert_int_equal(open_descriptors(), before);
}

/* ---- query ------------------------------------------------------------- */

static void query__inside_and_outside(void **state)
{
	char *bytes = must_alloc(10000, WH_MEMORY_SHARED), *other = malloc(100);
	struct wh_memory_info info;

	(void)state;
	info = query(bytes + 9999);
	assert_ptr_equal(info.base, bytes);
	assert_int_equal(info.length, 10000);
	info = query(other + 7);
	assert_int_equal(info.kind, WH_MEMORY_PAGEABLE);
	assert_ptr_equal(info.base, other + 7);
	assert_int_equal(info.length, 0);
	free(other);
	must_free(bytes);
	assert_int_equal(wh_memory_query(engine, bytes, &info), -EFAULT);
	assert_non_null(strstr(wh_error_text(), "freed"));
}

static void query__misuse(void **state)
{
	struct {
		struct wh_memory_info info;
		uint64_t more;
	} newer = { .info.size = sizeof(newer), .more = 1 };
	struct wh_memory_info info = { .size = sizeof(info) };
	void *bytes = must_alloc(1, WH_MEMORY_PAGEABLE);

	(void)state;
	assert_int_equal(wh_memory_query(NULL, bytes, &info), -EINVAL);
	assert_int_equal(wh_memory_query(engine, NULL, &info), -EINVAL);
	assert_int_equal(wh_memory_query(engine, bytes, NULL), -EINVAL);
	assert_int_equal(wh_memory_query(engine, bytes, &newer.info), -E2BIG);
	info.size = 0;
	assert_int_equal(wh_memory_query(engine, bytes, &info), -EINVAL);
	must_free(bytes);
}

static void every_call__in_a_forked_child(void **state)
{
	struct wh_memory_info info = { .size = sizeof(info) };
	void *address;
	int status;
	pid_t child;

	(void)state;
	skip_without_wipe();
	address = must_alloc(4096, WH_MEMORY_PAGEABLE);
	child = fork();
	if (!child) {
		void *other;

		_exit(wh_memory_alloc(engine, 1, NULL, &other) == -EPERM &&
				      wh_memory_query(engine, address, &info) == -EPERM &&
				      wh_memory_free(engine, address) == -EPERM ?
			      0 :
			      1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	must_free(address);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(alloc__every_kind_is_zero_aligned_and_writable),
		TEST(alloc__shared_is_the_default),
		TEST(alloc__misuse),
		TEST(alloc__too_much),
		TEST(alloc__no_descriptor_left),
		TEST(shared__is_sealed_and_private_to_the_user),
		TEST(shared__a_read_only_descriptor_maps_read_only),
		TEST(private__kinds_have_no_descriptor),
		TEST(free__misuse),
		TEST(free__while_a_region_lies_in_it),
		TEST(free__gives_everything_back),
		TEST(query__inside_and_outside),
		TEST(query__misuse),
		TEST(every_call__in_a_forked_child),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
