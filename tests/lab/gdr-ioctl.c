/* SPDX-License-Identifier: Apache-2.0 */
/* Every ioctl, with right and with wrong arguments. */
#include "gdr.h"

#include <sys/mman.h>
#include <unistd.h>

static const unsigned all[] = { IOC_PIN,  IOC_UNPIN,  IOC_CALLBACK_FLAG, IOC_INFO,   IOC_INFO_V2,
				IOC_ATTR, IOC_PIN_V2, IOC_REQUEST,       IOC_VERSION };
#define ALL (sizeof(all) / sizeof(*all))

static void ioctl__numbers(void **state)
{
	uint64_t arguments[6] = { 0 };
	int fd = gdr_open();

	(void)state;
	refused(EINVAL, gdr_ioctl(fd, 0xC008DB02, arguments)); /* another type */
	refused(EINVAL, gdr_ioctl(fd, 0, arguments));
	refused(ENOTTY, gdr_ioctl(fd, 0xC008DA09, arguments)); /* no such number */
	refused(ENOTTY, gdr_ioctl(fd, 0xC008DA01, arguments)); /* another size */
	refused(ENOTTY, gdr_ioctl(fd, 0x8008DA02, arguments)); /* another direction */
	ok(close(fd));
}

/* On a page that is not there, and on one that can be read only. */
static void ioctl__bad_pointers(void **state)
{
	struct memory memory;
	struct pin *pin;
	int fd = gdr_open();
	size_t i;

	(void)state;
	for (i = 0; i < ALL; i++) {
		refused(EFAULT, gdr_ioctl(fd, all[i], NULL));
		refused(EFAULT, gdr_ioctl(fd, all[i], (void *)-8));
	}
	gpu_alloc(&memory, PAGE, 0);
	pin = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*pin = (struct pin){ .addr = memory.address, .size = PAGE };
	ok(mprotect(pin, 4096, PROT_READ));
	/* What was pinned, and whose handle cannot be told, is given back. */
	refused(EFAULT, gdr_ioctl(fd, IOC_PIN, pin));
	assert_int_equal(gdr_refcount(), 0);
	ok(mprotect(pin, 4096, PROT_READ | PROT_WRITE));
	*(struct pin_v2 *)pin = (struct pin_v2){ .addr = memory.address, .size = PAGE };
	ok(mprotect(pin, 4096, PROT_READ));
	refused(EFAULT, gdr_ioctl(fd, IOC_PIN_V2, pin));
	assert_int_equal(gdr_refcount(), 0);
	munmap(pin, 4096);
	ok(gpu_free(&memory));
	ok(close(fd));
}

/* Arguments that lie in a window: reading and writing them faults, and the fault needs the pin. */
static void ioctl__arguments_in_a_window(void **state)
{
	struct info_v2 *info;
	struct memory memory;
	uint64_t handle, other;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, PAGE, 0);
	ok(gdr_pin(fd, memory.address, PAGE, &handle));
	ok(gdr_map(fd, handle, PAGE, &info));
	info->handle = handle;
	ok(gdr_ioctl(fd, IOC_INFO_V2, info));
	assert_int_equal(info->va, memory.address);
	*(struct request *)info = (struct request){ handle, WC };
	refused(EBUSY, gdr_ioctl(fd, IOC_REQUEST, info));
	*(struct pin *)info = (struct pin){ .addr = memory.address, .size = PAGE };
	ok(gdr_ioctl(fd, IOC_PIN, info));
	other = ((struct pin *)info)->handle;
	ok(gdr_unpin(fd, other));
	*(uint64_t *)info = handle;
	ok(gdr_ioctl(fd, IOC_UNPIN, info)); /* its own ground */
	munmap(info, PAGE);
	ok(close(fd));
	ok(gpu_free(&memory));
}

static void version__is_2_6(void **state)
{
	struct version version = { 0 };
	int fd = gdr_open();

	(void)state;
	ok(gdr_ioctl(fd, IOC_VERSION, &version));
	assert_int_equal(version.driver, 0x20006);
	assert_int_equal(version.minimum_library, 0x20000);
	ok(close(fd));
}

static void attributes__each(void **state)
{
	struct attribute attribute = { PERSISTENT, 77 };
	int fd = gdr_open();

	(void)state;
	ok(gdr_ioctl(fd, IOC_ATTR, &attribute));
	assert_int_equal(attribute.value, gdr_is_persistent());
	attribute = (struct attribute){ FORCE_PCIE, 77 };
	ok(gdr_ioctl(fd, IOC_ATTR, &attribute));
	assert_int_equal(attribute.value, gdr_is_persistent());
	refused(EINVAL, gdr_ioctl(fd, IOC_ATTR, &(struct attribute){ 0, 0 }));
	refused(EINVAL, gdr_ioctl(fd, IOC_ATTR, &(struct attribute){ 3, 0 }));
	refused(EINVAL, gdr_ioctl(fd, IOC_ATTR, &(struct attribute){ UINT32_MAX, 0 }));
	ok(close(fd));
}

static void pin__wrong_arguments(void **state)
{
	static const struct {
		uint64_t address, size;
	} wrong[] = {
		{ 0, PAGE },
		{ PAGE, 0 },
		{ UINT64_MAX, 1 },
		{ UINT64_MAX, UINT64_MAX },
		{ UINT64_MAX - 10, 5 },
		{ 1, UINT64_MAX },
		{ PAGE, UINT64_MAX - PAGE },
		{ 1ull << 63, 1ull << 63 },
		{ PAGE, 1ull << 62 },
		{ 0, 0 },
		{ 5, 0 },
	};
	unsigned calls;
	struct memory memory;
	uint64_t handle;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, 4 * PAGE, 0);
	calls = gpu_state().calls;
	for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		refused(EINVAL, gdr_pin(fd, wrong[i].address, wrong[i].size, &handle));
		refused(EINVAL, gdr_pin_v2(fd, wrong[i].address, wrong[i].size, 0, &handle));
	}
	refused(EINVAL, gdr_pin(fd, memory.address, 0, &handle));
	refused(EINVAL, gdr_pin(fd, memory.address + 1, 0, &handle));
	refused(EINVAL, gdr_pin(fd, memory.address, UINT64_MAX, &handle));
	refused(EINVAL, gdr_pin(fd, memory.address, -memory.address, &handle));
	assert_int_equal(gpu_state().calls, calls); /* the driver is not asked for nonsense */
	refused(EINVAL, gdr_pin(fd, 4096, PAGE, &handle));
	refused(EINVAL, gdr_pin(fd, memory.address, 4 * PAGE + 1, &handle));
	refused(EINVAL, gdr_pin(fd, memory.address - 1, 2, &handle));
	refused(EINVAL, gdr_pin_v2(fd, memory.address, PAGE, 2, &handle));
	refused(EINVAL, gdr_pin_v2(fd, memory.address, PAGE, UINT32_MAX, &handle));
	assert_int_equal(gdr_refcount(), 0);
	ok(gpu_free(&memory));
	refused(EINVAL, gdr_pin(fd, memory.address, PAGE, &handle));
	ok(close(fd));
}

static void pin__rounds(void **state)
{
	static const struct {
		uint64_t offset, size, from, pages;
	} cases[] = {
		{ 0, 1, 0, 1 },
		{ 0, PAGE, 0, 1 },
		{ 0, PAGE + 1, 0, 2 },
		{ 1, 1, 0, 1 },
		{ PAGE - 1, 2, 0, 2 },
		{ 100, PAGE, 0, 2 },
		{ PAGE, PAGE, 1, 1 },
		{ 2 * PAGE + 5, 2 * PAGE - 5, 2, 2 },
		{ 3 * PAGE - 1, 1, 2, 1 },
	};
	struct info_v2 info;
	struct memory memory;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, 4 * PAGE, 0);
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		info = (struct info_v2){ 0 };
		ok(gdr_pin(fd, memory.address + cases[i].offset, cases[i].size, &info.handle));
		ok(gdr_ioctl(fd, IOC_INFO_V2, &info));
		assert_int_equal(info.va, memory.address + cases[i].from * PAGE);
		assert_int_equal(info.mapped_size, cases[i].pages * PAGE);
		assert_int_equal(info.page_size, PAGE);
		assert_int_not_equal(info.tsc_khz, 0);
		assert_int_not_equal(info.tm_cycles, 0);
		assert_int_equal(info.mapping_type, NONE);
		ok(gdr_unpin(fd, info.handle));
	}
	ok(gpu_free(&memory));
	ok(close(fd));
}

/* Pins of the same memory, of one descriptor and of another. */
static void pin__handles_differ(void **state)
{
	uint64_t handles[64];
	struct memory memory;
	int fd = gdr_open(), other = gdr_open();
	size_t i, j;

	(void)state;
	gpu_alloc(&memory, 4 * PAGE, 0);
	for (i = 0; i < 64; i++) {
		ok(gdr_pin(i % 3 ? fd : other, memory.address, (i % 4 + 1) * PAGE, &handles[i]));
		assert_int_not_equal(handles[i], 0);
		for (j = 0; j < i; j++)
			assert_int_not_equal(handles[i], handles[j]);
	}
	assert_int_equal(gdr_refcount(), 64);
	refused(EINVAL, gdr_unpin(fd, handles[0])); /* the other descriptor's */
	for (i = 0; i < 64; i++)
		ok(gdr_unpin(i % 3 ? fd : other, handles[i]));
	/* A handle does not come back. */
	ok(gdr_pin(fd, memory.address, PAGE, &handles[0]));
	for (j = 1; j < 64; j++)
		assert_int_not_equal(handles[0], handles[j]);
	ok(close(fd));
	ok(close(other));
	assert_int_equal(gdr_refcount(), 0);
	ok(gpu_free(&memory));
}

/* A handle that is none is an error, and never the last region or another one. */
static void handle__unknown(void **state)
{
	uint64_t handle, first, wrong[6];
	struct memory memory;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, 2 * PAGE, 0);
	ok(gdr_pin(fd, memory.address, PAGE, &first));
	ok(gdr_pin(fd, memory.address, PAGE, &handle));
	ok(gdr_unpin(fd, first));
	wrong[0] = 0;
	wrong[1] = first;
	wrong[2] = handle + 1;
	wrong[3] = handle - 1;
	wrong[4] = UINT64_MAX;
	wrong[5] = handle | 1ull << 52;
	for (i = 0; i < 6; i++) {
		refused(EINVAL, gdr_unpin(fd, wrong[i]));
		refused(EINVAL,
			gdr_ioctl(fd, IOC_CALLBACK_FLAG, &(struct callback_flag){ wrong[i], 0 }));
		refused(EINVAL, gdr_ioctl(fd, IOC_INFO, &(struct info){ .handle = wrong[i] }));
		refused(EINVAL,
			gdr_ioctl(fd, IOC_INFO_V2, &(struct info_v2){ .handle = wrong[i] }));
		refused(EINVAL, gdr_request(fd, wrong[i], WC));
		if (wrong[i] < 1ull << 51)
			refused(EINVAL, gdr_map(fd, wrong[i], 4096, &(void *){ NULL }));
	}
	assert_int_equal(gdr_flag(fd, handle), 0);
	assert_int_equal(gdr_refcount(), 1);
	ok(close(fd));
	ok(gpu_free(&memory));
}

static void info__both_versions(void **state)
{
	struct info_v2 two;
	struct memory memory;
	struct info one;
	void *window;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, 3 * PAGE, 0);
	ok(gdr_pin(fd, memory.address, 3 * PAGE, &one.handle));
	two = (struct info_v2){ .handle = one.handle };
	ok(gdr_ioctl(fd, IOC_INFO, &one));
	assert_int_equal(one.mapped, 0);
	assert_int_equal(one.wc, 0);
	ok(gdr_map(fd, one.handle, 3 * PAGE, &window));
	ok(gdr_ioctl(fd, IOC_INFO, &one));
	ok(gdr_ioctl(fd, IOC_INFO_V2, &two));
	assert_int_equal(one.handle, two.handle);
	assert_int_equal(one.va, two.va);
	assert_int_equal(one.mapped_size, two.mapped_size);
	assert_int_equal(one.page_size, two.page_size);
	assert_int_equal(one.tsc_khz, two.tsc_khz);
	assert_int_equal(one.tm_cycles, two.tm_cycles);
	assert_int_equal(one.mapped, 1);
	assert_int_equal(one.wc, 1);
	assert_int_equal(two.mapping_type, WC);
	munmap(window, 3 * PAGE);
	ok(gdr_ioctl(fd, IOC_INFO, &one));
	assert_int_equal(one.mapped, 0);
	ok(close(fd));
	ok(gpu_free(&memory));
}

static void request__types(void **state)
{
	struct memory memory;
	uint64_t handle;
	void *window;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, PAGE, 0);
	ok(gdr_pin(fd, memory.address, PAGE, &handle));
	ok(gdr_request(fd, handle, NONE));
	ok(gdr_request(fd, handle, WC));
	refused(EOPNOTSUPP, gdr_request(fd, handle, CACHING));
	refused(EOPNOTSUPP, gdr_request(fd, handle, DEVICE));
	refused(EINVAL, gdr_request(fd, handle, 4));
	refused(EINVAL, gdr_request(fd, handle, UINT32_MAX));
	ok(gdr_map(fd, handle, PAGE, &window));
	assert_int_equal(gdr_type(fd, handle), WC);
	refused(EBUSY, gdr_request(fd, handle, WC));
	refused(EBUSY, gdr_request(fd, handle, NONE));
	munmap(window, PAGE);
	ok(gdr_request(fd, handle, WC));
	ok(close(fd));
	ok(gpu_free(&memory));
}

int test_ioctls(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(ioctl__numbers),
		gdr_test(ioctl__bad_pointers),
		gdr_test(ioctl__arguments_in_a_window),
		gdr_test(version__is_2_6),
		gdr_test(attributes__each),
		gdr_test(pin__wrong_arguments),
		gdr_test(pin__rounds),
		gdr_test(pin__handles_differ),
		gdr_test(handle__unknown),
		gdr_test(info__both_versions),
		gdr_test(request__types),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
