/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of pins and windows when the memory is freed: where pages can be taken away, where
 * they persist, and when it happens in the middle of something else. */
#include "gdr.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- taken away ------------------------------------------------------------------------------ */

static void free__ends_a_window(void **state)
{
	struct memory memory, other;
	unsigned char *bytes, *beside;
	uint64_t handle, kept;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, 2 * PAGE, 0);
	gpu_alloc(&other, PAGE, 0);
	ok(gdr_pin(fd, memory.address, 2 * PAGE, &handle));
	ok(gdr_pin(fd, other.address, PAGE, &kept));
	ok(gdr_map(fd, handle, 2 * PAGE, &bytes));
	ok(gdr_map(fd, kept, PAGE, &beside));
	fill(bytes, 2 * PAGE, 20);
	fill(beside, PAGE, 21);
	assert_int_equal(gdr_flag(fd, handle), 0);
	ok(gpu_free(&memory));

	assert_int_equal(gdr_flag(fd, handle), 1);
	assert_int_equal(gdr_refcount(), 1);
	assert_int_equal(gdr_type(fd, handle), NONE);
	assert_int_equal(try_read(bytes), SIGBUS);
	assert_int_equal(try_write(bytes + PAGE), SIGBUS);
	assert_int_equal(gdr_flag(fd, kept), 0);
	assert_true(is_filled(beside, PAGE, 21));
	munmap(bytes, 2 * PAGE);
	refused(EINVAL, gdr_map(fd, handle, PAGE, &bytes));
	ok(gdr_unpin(fd, handle));
	refused(EINVAL, gdr_unpin(fd, handle));
	munmap(beside, PAGE);
	ok(close(fd));
	ok(gpu_free(&other));
}

/* One that nobody has touched yet has nothing to take away, and must not come to life later. */
static void free__before_the_first_touch(void **state)
{
	struct memory memory;
	unsigned char *bytes;
	uint64_t handle;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, PAGE, 0);
	ok(gdr_pin(fd, memory.address, PAGE, &handle));
	ok(gdr_map(fd, handle, PAGE, &bytes));
	ok(gpu_free(&memory));
	assert_int_equal(try_read(bytes), SIGBUS);
	munmap(bytes, PAGE);
	ok(close(fd));
}

static void free__ends_all_pins(void **state)
{
	unsigned char *bytes[16];
	uint64_t handles[16];
	struct memory memory;
	int i, fds[16];

	(void)state;
	gpu_alloc(&memory, 16 * PAGE, LAB_GPU_SCATTERED);
	for (i = 0; i < 16; i++) {
		fds[i] = gdr_open();
		ok(gdr_pin(fds[i], memory.address, (uint64_t)(i + 1) * PAGE, &handles[i]));
		ok(gdr_map(fds[i], handles[i], (uint64_t)(i + 1) * PAGE, &bytes[i]));
		fill(bytes[i], 4096, 22);
	}
	ok(gpu_free(&memory));
	assert_int_equal(gdr_refcount(), 0);
	for (i = 0; i < 16; i++) {
		assert_int_equal(gdr_flag(fds[i], handles[i]), 1);
		assert_int_equal(try_read(bytes[i]), SIGBUS);
		munmap(bytes[i], (uint64_t)(i + 1) * PAGE);
		ok(close(fds[i]));
	}
}

/* ---- in the middle of something else --------------------------------------------------------- */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *free_it(void *argument)
{
	return gpu_free(argument) ? "cannot free" : NULL;
}

struct meeting {
	struct memory memory;
	unsigned char *bytes;
	uint64_t handle;
	int fd;
	pthread_t thread;
};

/* A pin whose memory is being freed by another thread: the callback sleeps for 150 ms with the
 * provider's lock held. */
static void meet(struct meeting *meeting)
{
	meeting->fd = gdr_open();
	gpu_alloc(&meeting->memory, 2 * PAGE, 0);
	ok(gdr_pin(meeting->fd, meeting->memory.address, 2 * PAGE, &meeting->handle));
	ok(gdr_map(meeting->fd, meeting->handle, 2 * PAGE, &meeting->bytes));
	gpu_order("delay_ms", 150);
	ok(pthread_create(&meeting->thread, NULL, free_it, &meeting->memory));
	usleep(30000);
}

static void part(struct meeting *meeting)
{
	void *trouble;

	ok(pthread_join(meeting->thread, &trouble));
	assert_ptr_equal(trouble, NULL);
	gpu_order("delay_ms", 0);
	assert_int_equal(gdr_refcount(), 0);
}

static void callback__meets_unpin(void **state)
{
	struct meeting meeting;

	(void)state;
	meet(&meeting);
	/* waits for the lock that the callback holds */
	ok(gdr_unpin(meeting.fd, meeting.handle));
	assert_int_equal(try_read(meeting.bytes), SIGBUS);
	part(&meeting);
	munmap(meeting.bytes, 2 * PAGE);
	ok(close(meeting.fd));
}

static void callback__meets_close(void **state)
{
	struct meeting meeting;

	(void)state;
	meet(&meeting);
	munmap(meeting.bytes, 2 * PAGE);
	ok(close(meeting.fd));
	part(&meeting);
}

static void callback__meets_use(void **state)
{
	struct meeting meeting;
	double begun;
	int signal = 0;

	(void)state;
	meet(&meeting);
	/* Other calls do not wait for it. */
	begun = now();
	assert_int_equal(gdr_flag(meeting.fd, meeting.handle), 0);
	refused(EBUSY, gdr_request(meeting.fd, meeting.handle, WC));
	assert_true(now() - begun < 0.1);
	while (!signal && now() - begun < 10)
		signal = try_write(meeting.bytes + PAGE);
	assert_int_equal(signal, SIGBUS);
	part(&meeting);
	assert_int_equal(gdr_flag(meeting.fd, meeting.handle), 1);
	munmap(meeting.bytes, 2 * PAGE);
	ok(close(meeting.fd));
}

static void callback__meets_mmap(void **state)
{
	struct meeting meeting;
	double begun;
	int error = 0;

	(void)state;
	meet(&meeting);
	begun = now();
	while (!error && now() - begun < 10) {
		munmap(meeting.bytes, 2 * PAGE);
		error = gdr_map(meeting.fd, meeting.handle, 2 * PAGE, &meeting.bytes);
	}
	assert_int_equal(error, -EINVAL);
	part(&meeting);
	ok(close(meeting.fd));
}

static void *pin_it(void *argument)
{
	struct meeting *meeting = argument;

	return gdr_pin(meeting->fd, meeting->memory.address, PAGE, &meeting->handle) == -EINVAL ?
		       NULL :
		       "it was pinned";
}

/* Freed when the pages have been got and before the caller knows. */
static void callback__before_get_returns(void **state)
{
	struct meeting meeting;
	void *trouble;

	(void)state;
	meeting.fd = gdr_open();
	gpu_alloc(&meeting.memory, PAGE, 0);
	gpu_order("late_ms", 100);
	ok(pthread_create(&meeting.thread, NULL, pin_it, &meeting));
	usleep(30000);
	ok(gpu_free(&meeting.memory));
	ok(pthread_join(meeting.thread, &trouble));
	assert_ptr_equal(trouble, NULL);
	gpu_order("late_ms", 0);
	assert_int_equal(gdr_refcount(), 0);
	ok(close(meeting.fd));
}

/* The same on the driver's side: the callback runs within get, which then tells of success, or
 * fails. */
static void callback__within_get(void **state)
{
	static const int errors[] = { 0, EIO, ENOMEM, 0, EINVAL };
	struct memory memory;
	uint64_t handle;
	int fd = gdr_open();
	size_t i;

	(void)state;
	gpu_alloc(&memory, 2 * PAGE, 0);
	for (i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		gpu_order("early_errno", errors[i]);
		gpu_order("early", 1);
		refused(errors[i] ? errors[i] : EINVAL,
			gdr_pin(fd, memory.address, 2 * PAGE, &handle));
		assert_int_equal(gdr_refcount(), 0);
		assert_int_equal(gpu_state().tables, 0);
		ok(gdr_pin(fd, memory.address, 2 * PAGE, &handle));
		assert_int_equal(gdr_refcount(), 1);
		ok(gdr_unpin(fd, handle));
	}
	ok(close(fd));
	ok(gpu_free(&memory));
}

/* Once the flag says that the memory was freed no window shows it, and the driver has its pages. */
static void callback__meets_flag(void **state)
{
	struct meeting meeting;
	void *trouble;
	int i;

	(void)state;
	for (i = 0; i < 100; i++) {
		meeting.fd = gdr_open();
		gpu_alloc(&meeting.memory, 2 * PAGE, 0);
		ok(gdr_pin(meeting.fd, meeting.memory.address, 2 * PAGE, &meeting.handle));
		ok(gdr_map(meeting.fd, meeting.handle, 2 * PAGE, &meeting.bytes));
		assert_int_equal(try_write(meeting.bytes), 0);
		ok(pthread_create(&meeting.thread, NULL, free_it, &meeting.memory));
		while (!gdr_flag(meeting.fd, meeting.handle))
			;
		assert_int_equal(gdr_type(meeting.fd, meeting.handle), NONE);
		assert_int_equal(try_write(meeting.bytes), SIGBUS);
		ok(pthread_join(meeting.thread, &trouble));
		assert_ptr_equal(trouble, NULL);
		assert_int_equal(gdr_refcount(), 0);
		munmap(meeting.bytes, 2 * PAGE);
		ok(close(meeting.fd));
	}
}

static void *pin_slowly(void *argument)
{
	struct meeting *meeting = argument;

	return gdr_pin(meeting->fd, meeting->memory.address, PAGE, &meeting->handle) ?
		       "cannot pin" :
		       NULL;
}

/* D: asleep in the kernel, where only SIGKILL ends it, if that. */
static bool is_in_state(pid_t pid, char wanted)
{
	char path[40], state = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "r");
	if (!file)
		return false;
	if (fscanf(file, "%*d %*s %c", &state) != 1)
		state = 0;
	fclose(file);
	return state == wanted;
}

/* Pins of pages that can be taken away wait for each other; whoever waits can be killed. */
static void pin__waits_killable(void **state)
{
	struct meeting meeting;
	struct memory memory;
	uint64_t handle;
	void *trouble;
	double begun;
	pid_t child;

	(void)state;
	meeting.fd = gdr_open();
	gpu_alloc(&meeting.memory, PAGE, 0);
	gpu_order("late_ms", 60000); /* ended below */
	ok(pthread_create(&meeting.thread, NULL, pin_slowly, &meeting));
	while (!gdr_refcount())
		usleep(1000);
	begun = now();
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		gpu_alloc(&memory, PAGE, 0);
		gdr_pin(gdr_open(), memory.address, PAGE, &handle);
		_exit(0);
	}
	while (!is_in_state(child, 'D') && now() - begun < 30)
		usleep(1000);
	ok(kill(child, SIGKILL));
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_true(now() - begun < 50); /* it did not wait for the other's pages */
	gpu_order("late_ms", 0);
	ok(pthread_join(meeting.thread, &trouble));
	assert_ptr_equal(trouble, NULL);
	ok(close(meeting.fd));
	ok(gpu_free(&meeting.memory));
}

/* Closing one descriptor while the pages of another are taken away, again and again. */
static void callback__meets_everything(void **state)
{
	struct meeting meeting;
	void *trouble;
	int i;

	(void)state;
	for (i = 0; i < 200; i++) {
		meeting.fd = gdr_open();
		gpu_alloc(&meeting.memory, 2 * PAGE, 0);
		ok(gdr_pin(meeting.fd, meeting.memory.address, 2 * PAGE, &meeting.handle));
		ok(gdr_map(meeting.fd, meeting.handle, 2 * PAGE, &meeting.bytes));
		ok(pthread_create(&meeting.thread, NULL, free_it, &meeting.memory));
		if (i % 2)
			try_write(meeting.bytes);
		if (i % 3)
			munmap(meeting.bytes, 2 * PAGE);
		if (i % 5)
			ok(gdr_unpin(meeting.fd, meeting.handle));
		ok(close(meeting.fd));
		if (i % 3 == 0)
			munmap(meeting.bytes, 2 * PAGE);
		ok(pthread_join(meeting.thread, &trouble));
		assert_ptr_equal(trouble, NULL);
	}
}

int test_revoked(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(free__ends_a_window),   gdr_test(free__before_the_first_touch),
		gdr_test(free__ends_all_pins),   gdr_test(callback__meets_unpin),
		gdr_test(callback__meets_close), gdr_test(callback__meets_use),
		gdr_test(callback__meets_mmap),  gdr_test(callback__before_get_returns),
		gdr_test(callback__within_get),  gdr_test(callback__meets_flag),
		gdr_test(pin__waits_killable),   gdr_test(callback__meets_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ---- persistent ------------------------------------------------------------------------------ */

/* The memory outlives its being freed, as long as it is pinned; nobody else gets it. */
static void free__under_a_persistent_pin(void **state)
{
	struct memory memory, next;
	unsigned char *bytes;
	uint64_t handle;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, 2 * PAGE, 0);
	ok(gdr_pin(fd, memory.address, 2 * PAGE, &handle));
	ok(gdr_map(fd, handle, 2 * PAGE, &bytes));
	fill(bytes, 2 * PAGE, 30);
	ok(gpu_free(&memory));
	gpu_alloc(&next, 2 * PAGE, 0);
	fill(next.bytes, 2 * PAGE, 31);
	assert_true(is_filled(bytes, 2 * PAGE, 30));
	assert_int_equal(gdr_flag(fd, handle), 0);
	assert_int_equal(gdr_refcount(), 1);
	assert_int_equal(gdr_type(fd, handle), WC);
	refused(EINVAL, gdr_pin(fd, memory.address, PAGE, &(uint64_t){ 0 }));
	ok(gdr_unpin(fd, handle));
	assert_int_equal(try_read(bytes), SIGBUS);
	munmap(bytes, 2 * PAGE);
	ok(gpu_free(&next));
	ok(close(fd));
}

static void pin__token(void **state)
{
	struct memory memory;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, PAGE, 0);
	refused(EINVAL,
		gdr_ioctl(fd, IOC_PIN,
			  &(struct pin){ .addr = memory.address, .size = PAGE, .token = 1 }));
	refused(EINVAL,
		gdr_ioctl(fd, IOC_PIN,
			  &(struct pin){ .addr = memory.address, .size = PAGE, .va_space = 1 }));
	ok(gpu_free(&memory));
	ok(close(fd));
}

static void force_pcie__beside_default(void **state)
{
	unsigned char *bytes[2];
	uint64_t handles[2];
	struct memory memory;
	int fd = gdr_open(), i;

	(void)state;
	gpu_alloc(&memory, PAGE, 0);
	for (i = 0; i < 2; i++) {
		ok(gdr_pin_v2(fd, memory.address, PAGE, i ? FORCE_PCIE_FLAG : 0, &handles[i]));
		ok(gdr_map(fd, handles[i], PAGE, &bytes[i]));
	}
	fill(bytes[0], PAGE, 32);
	assert_true(is_filled(bytes[1], PAGE, 32));
	for (i = 0; i < 2; i++)
		munmap(bytes[i], PAGE);
	/* A driver that does not know the flag says so; pins without it go on. */
	gpu_order("refuse_flags", 1);
	refused(EINVAL, gdr_pin_v2(fd, memory.address, PAGE, FORCE_PCIE_FLAG, &handles[0]));
	ok(gdr_pin_v2(fd, memory.address, PAGE, 0, &handles[0]));
	ok(close(fd));
	ok(gpu_free(&memory));
}

int test_persistent(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(free__under_a_persistent_pin),
		gdr_test(pin__token),
		gdr_test(force_pcie__beside_default),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
