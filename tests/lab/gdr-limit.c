/* SPDX-License-Identifier: Apache-2.0 */
/* How much each user may pin, where the module was loaded with a limit of 1 MiB. */
#include "gdr.h"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, OTHER = 1, LIMIT = 16 /* pages */ };

static void be_user(uid_t uid)
{
	child_check(!setgid(uid) && !setuid(uid));
}

/* Still root, but limited. */
static void drop_capability(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct sets[2];

	child_check(!syscall(SYS_capget, &header, sets));
	sets[0].effective &= ~(1u << CAP_IPC_LOCK);
	child_check(!syscall(SYS_capset, &header, sets));
}

/* In a child: exactly the limit fits, however it is cut, and no call more reaches the driver. */
static void use_up(const struct memory *memory, int fd, uint64_t handles[2])
{
	uint64_t handle;
	unsigned calls;
	int other = gdr_open();

	child_check(!gdr_pin(fd, memory->address, (LIMIT - 1) * PAGE, &handles[0]));
	child_check(!gdr_pin(other, memory->address + PAGE - 1, 1, &handles[1])); /* a page */
	calls = gpu_state().calls;
	child_check(gdr_pin(fd, memory->address, 1, &handle) == -EDQUOT);
	child_check(gdr_pin(other, memory->address, 1, &handle) == -EDQUOT);
	child_check(gdr_pin_v2(fd, memory->address, 1, 0, &handle) == -EDQUOT);
	child_check(gdr_pin(fd, memory->address, (LIMIT + 4) * PAGE, &handle) == -EDQUOT);
	child_check(gpu_state().calls == calls);
	child_check(!gdr_unpin(other, handles[1]));
	child_check(gdr_pin(fd, memory->address, PAGE + 1, &handle) == -EDQUOT);
	child_check(!gdr_pin(fd, memory->address, PAGE, &handles[1]));
	child_check(!close(other));
}

static void fill_up(void *argument)
{
	uint64_t handles[2];
	struct memory memory;
	int fd;

	if (argument)
		be_user(*(const uid_t *)argument);
	else
		drop_capability();
	fd = gdr_open();
	gpu_alloc(&memory, (LIMIT + 4) * PAGE, 0);
	use_up(&memory, fd, handles);
	/* Closing gives all of it back. */
	child_check(!close(fd));
	fd = gdr_open();
	child_check(!gdr_pin(fd, memory.address, LIMIT * PAGE, &handles[0]));
	child_check(!close(fd));
}

static void limit__of_a_user(void **state)
{
	uid_t uid = NOBODY;

	(void)state;
	in_child(fill_up, &uid);
	in_child(fill_up, &uid); /* what a process that ended had pinned does not count */
}

/* Also finds what anything that ran before has left on root's account. */
static void limit__of_root_without_the_capability(void **state)
{
	(void)state;
	in_child(fill_up, NULL);
}

static void limit__not_for_the_capable(void **state)
{
	struct memory memory;
	uint64_t handle;
	int fd = gdr_open();

	(void)state;
	gpu_alloc(&memory, (LIMIT + 4) * PAGE, 0);
	ok(gdr_pin(fd, memory.address, (LIMIT + 4) * PAGE, &handle));
	in_child(fill_up, &(uid_t){ NOBODY });
	ok(gdr_pin(fd, memory.address, (LIMIT + 4) * PAGE, &handle));
	ok(close(fd));
	ok(gpu_free(&memory));
}

/* A second process of the user, while the first has all; and one of another user. */
static void beside(void *argument)
{
	struct memory memory;
	uint64_t handle;
	int fd;

	be_user(*(const uid_t *)argument);
	fd = gdr_open();
	gpu_alloc(&memory, PAGE, 0);
	child_check(gdr_pin(fd, memory.address, PAGE, &handle) ==
		    (*(const uid_t *)argument == NOBODY ? -EDQUOT : 0));
}

static void limit__for_each_user(void **state)
{
	struct memory memory;
	uint64_t handles[2];
	int ready[2], done[2], status, fd;
	char byte;
	pid_t child;

	(void)state;
	ok(pipe(ready));
	ok(pipe(done));
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		close(done[1]);
		be_user(NOBODY);
		fd = gdr_open();
		gpu_alloc(&memory, (LIMIT + 4) * PAGE, 0);
		use_up(&memory, fd, handles);
		child_check(write(ready[1], "", 1) == 1 && read(done[0], &byte, 1) == 0);
		_exit(0);
	}
	close(done[0]);
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	in_child(beside, &(uid_t){ NOBODY });
	in_child(beside, &(uid_t){ OTHER });
	close(done[1]);
	close(ready[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* Pages count until the driver has them back: with the memory's being freed, or with the last of
 * the pin where they persist. A window that was unpinned does not count, though it is still mapped.
 */
static void give_back(void *argument)
{
	bool persistent = *(const bool *)argument;
	struct memory memory, next;
	uint64_t handle;
	void *window;
	int fd, i;

	be_user(NOBODY);
	fd = gdr_open();
	gpu_alloc(&next, PAGE, 0);
	gpu_alloc(&memory, LIMIT * PAGE, 0);
	for (i = 0; i < 3; i++) {
		child_check(!gdr_pin(fd, memory.address, LIMIT * PAGE, &handle));
		child_check(!gdr_map(fd, handle, PAGE, &window));
		child_check(!gdr_unpin(fd, handle));
	}
	child_check(!gdr_pin(fd, memory.address, LIMIT * PAGE, &handle));
	child_check(!gpu_free(&memory));
	child_check(gdr_pin(fd, next.address, PAGE, &handle) == (persistent ? -EDQUOT : 0));
	child_check(!close(fd));
}

static void limit__until_pages_are_back(void **state)
{
	bool persistent = gdr_is_persistent();

	(void)state;
	in_child(give_back, &persistent);
}

/* A driver that refuses has given nothing. */
static void refused_pins(void *argument)
{
	struct memory memory;
	uint64_t handle;
	int fd;

	(void)argument;
	gpu_order("fail_get", 1);
	be_user(NOBODY);
	fd = gdr_open();
	gpu_alloc(&memory, LIMIT * PAGE, 0);
	child_check(gdr_pin(fd, memory.address, LIMIT * PAGE, &handle) == -ENOMEM);
	child_check(gdr_pin(fd, memory.address + PAGE, LIMIT * PAGE, &handle) == -EINVAL);
	child_check(!gdr_pin(fd, memory.address, LIMIT * PAGE, &handle));
	child_check(!close(fd));
}

static void limit__after_refusals(void **state)
{
	(void)state;
	in_child(refused_pins, NULL);
}

int test_limits(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(limit__of_a_user),
		gdr_test(limit__of_root_without_the_capability),
		gdr_test(limit__not_for_the_capable),
		gdr_test(limit__for_each_user),
		gdr_test(limit__until_pages_are_back),
		gdr_test(limit__after_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
