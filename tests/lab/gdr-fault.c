/* SPDX-License-Identifier: Apache-2.0 */
/* Drivers that fail, or answer in a way that nobody has seen yet; and memory that a processor may
 * cache. */
#include "gdr.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void get__fails(void **state)
{
	static const struct {
		int given, seen;
	} errors[] = {
		{ ENOMEM, ENOMEM }, { EINVAL, EINVAL },  { EIO, EIO }, { EBUSY, EBUSY },
		{ ENODEV, ENODEV }, { 524, EOPNOTSUPP }, /* the kernel's ENOTSUPP, which has no name
							    outside */
	};
	uint64_t handles[3], handle;
	struct memory memory;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, 4 * PAGE, 0);
	for (i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		gpu_order("fail_errno", errors[i].given);
		gpu_order("fail_get", 3);
		ok(gdr_pin(fd, memory.address, PAGE, &handles[0]));
		ok(gdr_pin(fd, memory.address, 2 * PAGE, &handles[1]));
		refused(errors[i].seen, gdr_pin(fd, memory.address, PAGE, &handle));
		ok(gdr_pin(fd, memory.address, 3 * PAGE, &handles[2]));
		assert_int_equal(gdr_refcount(), 3);
		ok(gdr_unpin(fd, handles[1]));
		ok(gdr_unpin(fd, handles[0]));
		ok(gdr_unpin(fd, handles[2]));
	}
	ok(close(fd));
	ok(gpu_free(&memory));
}

/* The BAR is full: everything is undone, and it works again when there is room. */
static void get__out_of_aperture(void **state)
{
	uint64_t handles[2];
	struct memory memory;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, 8 * PAGE, 0);
	gpu_order("aperture", 10);
	ok(gdr_pin(fd, memory.address, 8 * PAGE, &handles[0]));
	refused(ENOMEM, gdr_pin(fd, memory.address, 3 * PAGE, &handles[1]));
	ok(gdr_pin(fd, memory.address, 2 * PAGE, &handles[1]));
	ok(gdr_unpin(fd, handles[0]));
	ok(gdr_pin(fd, memory.address, 8 * PAGE, &handles[0]));
	assert_int_equal(gdr_refcount(), 2);
	ok(close(fd));
	ok(gpu_free(&memory));
}

static void table__of_a_kind_unknown(void **state)
{
	static const struct {
		const char *order;
		int value, error;
	} wrong[] = {
		{ "version", 0x30000, EOPNOTSUPP },
		{ "version", 0, EOPNOTSUPP },
		{ "size_type", 0, EOPNOTSUPP },
		{ "size_type", 2, EOPNOTSUPP },
		{ "size_type", 77, EOPNOTSUPP },
		{ "missing", 1, EIO },
		{ "missing", 2, EIO },
		{ "skew", 512, EIO },
	};
	struct memory memory;
	uint64_t handle;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, 2 * PAGE, 0);
	for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		gpu_order(wrong[i].order, wrong[i].value);
		refused(wrong[i].error, gdr_pin(fd, memory.address, 2 * PAGE, &handle));
		assert_int_equal(gdr_refcount(), 0);
		assert_int_equal(gpu_state().tables, 0);
		quiet(NULL);
	}
	ok(close(fd));
	ok(gpu_free(&memory));
}

/* Versions that are known, the older one without flags. */
static void table__versions(void **state)
{
	static const int versions[] = { 0x10001, 0x10002, 0x10003, 0x20000, 0x20001 };
	struct memory memory;
	unsigned char *bytes;
	uint64_t handle;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, 2 * PAGE, 0);
	for (i = 0; i < sizeof(versions) / sizeof(*versions); i++) {
		gpu_order("version", versions[i]);
		gpu_order("cacheable", versions[i] < 0x20000); /* to be looked at from 2 on */
		ok(gdr_pin(fd, memory.address, 2 * PAGE, &handle));
		ok(gdr_map(fd, handle, 2 * PAGE, &bytes));
		assert_int_equal(gdr_type(fd, handle), WC);
		fill(bytes, 2 * PAGE, 50 + (unsigned)i);
		assert_true(is_filled(memory.bytes, 2 * PAGE, 50 + (unsigned)i));
		munmap(bytes, 2 * PAGE);
		ok(gdr_unpin(fd, handle));
	}
	ok(close(fd));
	ok(gpu_free(&memory));
}

/* So many that a leak or a quadratic list would show. */
static void pin__thousands(void **state)
{
	static uint64_t handles[5000];
	struct memory memory;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, PAGE, 0);
	for (i = 0; i < 5000; i++)
		ok(gdr_pin(fd, memory.address, PAGE, &handles[i]));
	assert_int_equal(gdr_refcount(), 5000);
	for (i = 0; i < 2500; i++)
		ok(gdr_unpin(fd, handles[i * 2]));
	assert_int_equal(gdr_refcount(), 2500);
	ok(close(fd));
	assert_int_equal(gdr_refcount(), 0);
	ok(gpu_free(&memory));
}

int test_faults(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(get__fails),
		gdr_test(get__out_of_aperture),
		gdr_test(table__of_a_kind_unknown),
		gdr_test(table__versions),
		gdr_test(pin__thousands),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ---- no memory ------------------------------------------------------------------------------- */

static int fail_nth;

/* From now on the n-th allocation of this thread fails; 0: none. */
static void arm(int n)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%d", n);

	assert_int_equal(pwrite(fail_nth, text, (size_t)length, 0), length);
}

/* Did it come to that? */
static bool disarm(void)
{
	char text[16] = "";

	assert_true(pread(fail_nth, text, sizeof(text) - 1, 0) > 0);
	arm(0);
	return atoi(text) == 0;
}

/* Each allocation that pinning and mapping need fails in turn: ENOMEM, and everything is undone. */
static void allocation__fails(void **state)
{
	uint64_t handle = 0, first;
	int fd = gdr_open(), n, error, failures = 0;
	struct memory memory;
	bool failed = true;
	void *window;

	(void)state;
	gpu_alloc(&memory, 3 * PAGE, LAB_GPU_SCATTERED);
	ok(gdr_pin(fd, memory.address, PAGE, &first)); /* so that the client's index is there */
	for (n = 1; failed && n < 100; n++) {
		arm(n);
		error = gdr_pin(fd, memory.address, 3 * PAGE, &handle);
		failed = disarm();
		failures += error != 0;
		assert_true(!error || (failed && error == -ENOMEM));
		assert_int_equal(gdr_refcount(), error ? 1 : 2);
		if (!error)
			ok(gdr_unpin(fd, handle));
	}
	assert_true(failures >= 5); /* a region, and what the provider needs */
	ok(gdr_pin(fd, memory.address, 3 * PAGE, &handle));
	for (n = 1, failed = true; failed && n < 100; n++) {
		arm(n);
		error = gdr_map(fd, handle, 3 * PAGE, &window);
		failed = disarm();
		assert_true(!error || (failed && error == -ENOMEM));
		if (!error) {
			*(volatile unsigned char *)window = 1;
			munmap(window, 3 * PAGE);
		}
		assert_int_equal(gdr_type(fd, handle), NONE);
	}
	ok(close(fd));
	for (n = 1, failed = true; failed && n < 100; n++) {
		arm(n);
		fd = open("/dev/gdrdrv", O_RDWR);
		error = errno;
		failed = disarm();
		assert_true(fd >= 0 || (failed && error == ENOMEM));
		if (fd >= 0)
			close(fd);
	}
	ok(gpu_free(&memory));
}

int test_allocations(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(allocation__fails),
	};

	fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fail_nth < 0) {
		perror("/proc/thread-self/fail-nth: a kernel with FAILSLAB is needed");
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ---- coherent memory ------------------------------------------------------------------------- */

static void cacheable__default(void **state)
{
	struct memory memory;
	unsigned char *bytes;
	uint64_t handle;
	int fd = gdr_open();

	(void)state;
	gpu_order("cacheable", 1);
	gpu_alloc(&memory, 3 * PAGE, LAB_GPU_SCATTERED);
	ok(gdr_pin(fd, memory.address, 3 * PAGE, &handle));
	ok(gdr_map(fd, handle, 3 * PAGE, &bytes));
	assert_int_equal(gdr_type(fd, handle), CACHING);
	fill(bytes, PAGE, 60);
	assert_true(is_filled(gpu_page(&memory, 0), PAGE, 60));
	fill(gpu_page(&memory, 2), PAGE, 61);
	assert_true(is_filled(bytes + 2 * PAGE, PAGE, 61));
	munmap(bytes, 3 * PAGE);
	ok(close(fd));
	ok(gpu_free(&memory));
}

/* One window of each type onto the same memory at the same time. */
static void cacheable__hybrid(void **state)
{
	static const unsigned types[] = { WC, CACHING, NONE };
	unsigned char *bytes[3];
	uint64_t handles[3];
	struct memory memory;
	struct info info;
	int fd = gdr_open(), i;

	(void)state;
	gpu_order("cacheable", 1);
	gpu_alloc(&memory, PAGE, 0);
	for (i = 0; i < 3; i++) {
		ok(gdr_pin(fd, memory.address, PAGE, &handles[i]));
		refused(EOPNOTSUPP, gdr_request(fd, handles[i], DEVICE));
		ok(gdr_request(fd, handles[i], types[i]));
		ok(gdr_map(fd, handles[i], PAGE, &bytes[i]));
	}
	assert_int_equal(gdr_type(fd, handles[0]), WC);
	assert_int_equal(gdr_type(fd, handles[1]), CACHING);
	assert_int_equal(gdr_type(fd, handles[2]), CACHING);
	info.handle = handles[1];
	ok(gdr_ioctl(fd, IOC_INFO, &info));
	assert_int_equal(info.mapped, 1);
	assert_int_equal(info.wc, 0);
	fill(bytes[0], PAGE, 62);
	__builtin_ia32_sfence();
	assert_true(is_filled(bytes[1], PAGE, 62));
	fill(bytes[1], PAGE, 63);
	assert_true(is_filled(bytes[2], PAGE, 63));
	assert_true(is_filled(bytes[0], PAGE, 63));
	for (i = 0; i < 3; i++)
		munmap(bytes[i], PAGE);
	/* And the type of one can be changed when it is not mapped. */
	ok(gdr_request(fd, handles[0], CACHING));
	ok(gdr_map(fd, handles[0], PAGE, &bytes[0]));
	assert_int_equal(gdr_type(fd, handles[0]), CACHING);
	munmap(bytes[0], PAGE);
	ok(close(fd));
	ok(gpu_free(&memory));
}

int test_cacheable(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(cacheable__default),
		gdr_test(cacheable__hybrid),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
