/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: what they show, how they may be mapped, and how they end. */
#include "gdr.h"

#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct window {
	struct memory memory;
	uint64_t handle;
	unsigned char *bytes;
	int fd;
};

static void window_open(struct window *window, uint64_t size, unsigned flags)
{
	window->fd = gdr_open();
	gpu_alloc(&window->memory, size, flags);
	ok(gdr_pin(window->fd, window->memory.address, size, &window->handle));
	ok(gdr_map(window->fd, window->handle, size, &window->bytes));
}

static void window_close(struct window *window)
{
	munmap(window->bytes, window->memory.size);
	ok(close(window->fd));
	ok(gpu_free(&window->memory));
}

/* Both directions, page by page, so that a page in the wrong place shows. */
static void check_data(const struct memory *memory, unsigned char *bytes, unsigned seed)
{
	uint64_t i, pages = memory->size / PAGE;

	for (i = 0; i < pages; i++)
		fill(bytes + i * PAGE, PAGE, seed + (unsigned)i);
	for (i = 0; i < pages; i++)
		assert_true(is_filled(gpu_page(memory, i), PAGE, seed + (unsigned)i));
	for (i = 0; i < pages; i++)
		fill(gpu_page(memory, i), PAGE, seed + 1000 + (unsigned)i);
	for (i = 0; i < pages; i++)
		assert_true(is_filled(bytes + i * PAGE, PAGE, seed + 1000 + (unsigned)i));
}

static void window__data(void **state)
{
	struct window window;

	(void)state;
	window_open(&window, 4 * PAGE, 0);
	assert_int_equal(gdr_type(window.fd, window.handle), WC);
	check_data(&window.memory, window.bytes, 100);
	window_close(&window);
}

/* No two pages of the memory lie behind each other. */
static void window__scattered(void **state)
{
	struct window window;

	(void)state;
	window_open(&window, 40 * PAGE, LAB_GPU_SCATTERED);
	check_data(&window.memory, window.bytes, 200);
	window_close(&window);
}

/* More than one fault fills in: touched from the end, and across the stretches. */
static void window__large(void **state)
{
	struct window window;
	uint64_t i;

	(void)state;
	window_open(&window, 160 * PAGE, 0);
	for (i = 160 * PAGE; i; i -= 4096)
		*(volatile uint64_t *)(window.bytes + i - 4096) = i;
	for (i = 4096; i <= 160 * PAGE; i += 4096)
		assert_int_equal(*(volatile uint64_t *)(window.memory.bytes + i - 4096), i);
	window_close(&window);
}

/* A pin from within a GPU page: its window would begin with the page, before what was asked for. */
static void window__of_an_unaligned_address(void **state)
{
	static const struct {
		uint64_t offset, size;
	} pins[] = {
		{ PAGE + 256, PAGE },  { PAGE / 2, 8 }, { 1, 1 },
		{ 4096, PAGE - 4096 }, { PAGE - 1, 2 }, { 2 * PAGE + 1, 2 * PAGE - 1 },
	};
	struct info_v2 info;
	struct memory memory;
	unsigned char *bytes;
	uint64_t handle;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, 4 * PAGE, 0);
	fill(memory.bytes, memory.size, 5);
	for (i = 0; i < sizeof(pins) / sizeof(*pins); i++) {
		ok(gdr_pin(fd, memory.address + pins[i].offset, pins[i].size, &handle));
		info = (struct info_v2){ .handle = handle };
		ok(gdr_ioctl(fd, IOC_INFO_V2, &info));
		refused(EINVAL, gdr_map(fd, handle, 4096, &bytes));
		refused(EINVAL, gdr_map(fd, handle, info.mapped_size, &bytes));
		assert_int_equal(gdr_type(fd, handle), NONE);
		ok(gdr_unpin(fd, handle));
	}
	/* What begins with a page may end anywhere. */
	ok(gdr_pin(fd, memory.address + PAGE, 8, &handle));
	ok(gdr_map(fd, handle, PAGE, &bytes));
	assert_true(!memcmp(bytes, gpu_page(&memory, 1), PAGE));
	munmap(bytes, PAGE);
	assert_true(is_filled(memory.bytes, memory.size, 5));
	ok(close(fd));
	ok(gpu_free(&memory));
}

static void window__lengths(void **state)
{
	struct memory memory;
	unsigned char *bytes;
	uint64_t handle;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, 4 * PAGE, 0);
	ok(gdr_pin(fd, memory.address, 2 * PAGE, &handle));
	refused(EINVAL, gdr_map(fd, handle, 2 * PAGE + 1, &bytes));
	refused(EINVAL, gdr_map(fd, handle, 4 * PAGE, &bytes));
	refused(EINVAL, gdr_map(fd, handle, 1ull << 40, &bytes));
	refused(EINVAL, gdr_map(fd, handle + 1, 4096, &bytes)); /* an offset into it */
	ok(gdr_map(fd, handle, 100, &bytes)); /* a page of the processor's */
	fill(bytes, 4096, 6);
	assert_true(is_filled(memory.bytes, 4096, 6));
	munmap(bytes, 4096);
	ok(gdr_map(fd, handle, 2 * PAGE, &bytes));
	munmap(bytes, 2 * PAGE);
	ok(close(fd));
	ok(gpu_free(&memory));
}

static void window__one_for_a_handle(void **state)
{
	struct window window;
	unsigned char *bytes;

	(void)state;
	window_open(&window, 4 * PAGE, 0);
	refused(EINVAL, gdr_map(window.fd, window.handle, 4 * PAGE, &bytes));
	/* A hole in the middle: two areas, and still mapped. */
	ok(munmap(window.bytes + PAGE, PAGE));
	refused(EINVAL, gdr_map(window.fd, window.handle, PAGE, &bytes));
	assert_int_equal(gdr_type(window.fd, window.handle), WC);
	fill(window.bytes + 3 * PAGE, PAGE, 7);
	assert_true(is_filled(gpu_page(&window.memory, 3), PAGE, 7));
	assert_int_equal(try_read(window.bytes + PAGE), SIGSEGV);
	ok(munmap(window.bytes, PAGE));
	assert_int_equal(gdr_type(window.fd, window.handle), WC);
	ok(munmap(window.bytes + 2 * PAGE, 2 * PAGE));
	assert_int_equal(gdr_type(window.fd, window.handle), NONE);
	ok(gdr_map(window.fd, window.handle, 4 * PAGE, &window.bytes));
	window_close(&window);
}

static void window__protections(void **state)
{
	struct memory memory;
	uint64_t handle;
	off_t offset;
	void *bytes;
	int fd = gdr_open(), reader = open("/dev/gdrdrv", O_RDONLY);

	(void)state;
	gpu_alloc(&memory, PAGE, 0);
	ok(gdr_pin(fd, memory.address, PAGE, &handle));
	offset = (off_t)handle * getpagesize();
	/* A private one would be a copy. */
	bytes = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, offset);
	assert_ptr_equal(bytes, MAP_FAILED);
	assert_int_equal(errno, EINVAL);
	bytes = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, offset);
	assert_ptr_not_equal(bytes, MAP_FAILED);
	fill(memory.bytes, PAGE, 8);
	assert_true(is_filled(bytes, PAGE, 8));
	assert_int_equal(try_write(bytes), SIGSEGV);
	ok(mprotect(bytes, PAGE, PROT_READ | PROT_WRITE));
	assert_int_equal(try_write(bytes), 0);
	munmap(bytes, PAGE);

	ok(gdr_pin(reader, memory.address, PAGE, &handle));
	refused(EACCES, gdr_map(reader, handle, PAGE, &bytes));
	bytes = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, reader, (off_t)handle * getpagesize());
	assert_ptr_not_equal(bytes, MAP_FAILED);
	assert_int_equal(try_read(bytes), 0);
	assert_int_not_equal(mprotect(bytes, PAGE, PROT_READ | PROT_WRITE), 0);
	munmap(bytes, PAGE);
	ok(close(fd));
	ok(close(reader));
	ok(gpu_free(&memory));
}

static void window__moved(void **state)
{
	struct window window;
	void *moved;

	(void)state;
	window_open(&window, 2 * PAGE, 0);
	fill(window.bytes, PAGE, 9);
	/* It cannot grow over the end of the pin, nor be doubled, nor inherited. */
	assert_ptr_equal(mremap(window.bytes, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE), MAP_FAILED);
	assert_ptr_equal(mremap(window.bytes, 0, 2 * PAGE, MREMAP_MAYMOVE), MAP_FAILED);
	assert_int_equal(madvise(window.bytes, 2 * PAGE, MADV_DOFORK), -1);
	moved = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	moved = mremap(window.bytes, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, moved);
	assert_ptr_not_equal(moved, MAP_FAILED);
	assert_true(is_filled(moved, PAGE, 9));
	fill((char *)moved + PAGE, PAGE, 10);
	assert_true(is_filled(gpu_page(&window.memory, 1), PAGE, 10));
	assert_int_equal(gdr_type(window.fd, window.handle), WC);
	ok(gdr_unpin(window.fd, window.handle));
	assert_int_equal(try_read(moved), SIGBUS);
	window.bytes = moved;
	window_close(&window);
}

static void window__two_handles(void **state)
{
	struct window one, two;

	(void)state;
	window_open(&one, 4 * PAGE, 0);
	two = one;
	ok(gdr_pin(one.fd, one.memory.address, 4 * PAGE, &two.handle));
	ok(gdr_map(one.fd, two.handle, 4 * PAGE, &two.bytes));
	fill(one.bytes, 4 * PAGE, 11);
	assert_true(is_filled(two.bytes, 4 * PAGE, 11));
	/* Ending one is not felt by the other. */
	ok(gdr_unpin(one.fd, two.handle));
	assert_int_equal(try_read(two.bytes), SIGBUS);
	assert_true(is_filled(one.bytes, 4 * PAGE, 11));
	munmap(two.bytes, 4 * PAGE);
	window_close(&one);
}

static void unpin__while_mapped(void **state)
{
	struct window window;

	(void)state;
	window_open(&window, 2 * PAGE, 0);
	fill(window.bytes, 2 * PAGE, 12);
	ok(gdr_unpin(window.fd, window.handle));
	assert_int_equal(gdr_refcount(), 0);
	assert_int_equal(try_read(window.bytes), SIGBUS);
	assert_int_equal(try_write(window.bytes + 2 * PAGE - 1), SIGBUS);
	assert_true(is_filled(window.memory.bytes, 2 * PAGE, 12));
	refused(EINVAL, gdr_unpin(window.fd, window.handle));
	window_close(&window);
}

/* The window holds the file, and with it the pin, until it goes. */
static void close__while_mapped(void **state)
{
	struct window window;

	(void)state;
	window_open(&window, 2 * PAGE, 0);
	ok(close(window.fd));
	assert_int_equal(gdr_refcount(), 1);
	check_data(&window.memory, window.bytes, 300);
	munmap(window.bytes, 2 * PAGE);
	assert_int_equal(gdr_refcount(), 0);
	ok(gpu_free(&window.memory));
}

/* Through system calls that the kernel does not let near such pages. */
static void window__in_system_calls(void **state)
{
	struct window window;
	int pipes[2];

	(void)state;
	window_open(&window, PAGE, 0);
	ok(pipe(pipes));
	fill(window.bytes, 4096, 13);
	assert_int_equal(write(pipes[1], window.bytes, 4096), 4096);
	assert_int_equal(read(pipes[0], window.bytes + 8192, 4096), 4096);
	assert_true(is_filled(window.memory.bytes + 8192, 4096, 13));
	ok(gdr_unpin(window.fd, window.handle));
	assert_int_equal(write(pipes[1], window.bytes, 4096), -1);
	assert_int_equal(errno, EFAULT);
	close(pipes[0]);
	close(pipes[1]);
	window_close(&window);
}

static void *use_in_thread(void *argument)
{
	struct window *window = argument;
	uint64_t handle;
	unsigned char *bytes;

	/* A thread is of the same process: everything works. */
	if (gdr_pin(window->fd, window->memory.address, PAGE, &handle) ||
	    gdr_map(window->fd, handle, PAGE, &bytes))
		return "cannot pin or map";
	fill(window->bytes, PAGE, 14);
	if (!is_filled(bytes, PAGE, 14))
		return "another window shows something else";
	munmap(bytes, PAGE);
	return gdr_unpin(window->fd, handle) ? "cannot unpin" : NULL;
}

static void window__of_a_thread(void **state)
{
	struct window window;
	pthread_t thread;
	void *trouble;

	(void)state;
	window_open(&window, PAGE, 0);
	ok(pthread_create(&thread, NULL, use_in_thread, &window));
	ok(pthread_join(thread, &trouble));
	assert_ptr_equal(trouble, NULL);
	window_close(&window);
}

static void as_nobody(void *argument)
{
	struct passwd *nobody = getpwnam("nobody");
	struct memory memory;
	unsigned char *bytes;
	uint64_t handle;
	int fd;

	(void)argument;
	child_check(nobody && !setgid(nobody->pw_gid) && !setuid(nobody->pw_uid));
	fd = gdr_open();
	gpu_alloc(&memory, PAGE, 0);
	child_check(!gdr_pin(fd, memory.address, PAGE, &handle));
	child_check(!gdr_map(fd, handle, PAGE, &bytes));
	fill(bytes, PAGE, 15);
	child_check(is_filled(memory.bytes, PAGE, 15));
	child_check(access("/proc/driver/gdrdrv/params", R_OK) == 0);
	child_check(access("/proc/driver/gdrdrv/nv_get_pages_refcount", R_OK) < 0);
}

static void device__is_for_everybody(void **state)
{
	struct stat node;

	(void)state;
	ok(stat("/dev/gdrdrv", &node));
	assert_int_equal(node.st_mode, S_IFCHR | 0666);
	in_child(as_nobody, NULL);
}

int test_windows(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(window__data),        gdr_test(window__scattered),
		gdr_test(window__large),       gdr_test(window__of_an_unaligned_address),
		gdr_test(window__lengths),     gdr_test(window__one_for_a_handle),
		gdr_test(window__protections), gdr_test(window__moved),
		gdr_test(window__two_handles), gdr_test(unpin__while_mapped),
		gdr_test(close__while_mapped), gdr_test(window__in_system_calls),
		gdr_test(window__of_a_thread), gdr_test(device__is_for_everybody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
