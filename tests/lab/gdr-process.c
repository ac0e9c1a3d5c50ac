/* SPDX-License-Identifier: Apache-2.0 */
/* Several processes: forked ones, ones that have got a descriptor, ones that die. */
#include "gdr.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct pinned {
	struct memory memory;
	uint64_t handle;
	unsigned char *bytes;
	int fd;
};

static void open_pinned(struct pinned *pinned)
{
	pinned->fd = gdr_open();
	gpu_alloc(&pinned->memory, 2 * PAGE, 0);
	ok(gdr_pin(pinned->fd, pinned->memory.address, 2 * PAGE, &pinned->handle));
	ok(gdr_map(pinned->fd, pinned->handle, 2 * PAGE, &pinned->bytes));
	fill(pinned->bytes, 2 * PAGE, 40);
}

static void close_pinned(struct pinned *pinned)
{
	assert_true(is_filled(pinned->bytes, 2 * PAGE, 40));
	munmap(pinned->bytes, 2 * PAGE);
	ok(close(pinned->fd));
	ok(gpu_free(&pinned->memory));
}

/* Nothing that the descriptor of another process is asked for is done. */
static void be_refused(const struct pinned *pinned)
{
	static const unsigned numbers[] = { IOC_PIN,    IOC_UNPIN,   IOC_CALLBACK_FLAG,
					    IOC_INFO,   IOC_INFO_V2, IOC_ATTR,
					    IOC_PIN_V2, IOC_REQUEST, IOC_VERSION };
	union {
		uint64_t handle;
		uint64_t words[6];
	} arguments = { .handle = pinned->handle };
	void *window;
	size_t i;

	for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		child_check(gdr_ioctl(pinned->fd, numbers[i], &arguments) == -EACCES);
	child_check(gdr_ioctl(pinned->fd, 0xC008DA09, &arguments) == -EACCES);
	child_check(gdr_ioctl(pinned->fd, 0xC008DB02, &arguments) == -EINVAL);
	child_check(gdr_map(pinned->fd, pinned->handle, 2 * PAGE, &window) == -EACCES);
}

static void be_a_child(void *argument)
{
	struct pinned *pinned = argument, own;

	be_refused(pinned);
	/* The window is not inherited. */
	child_check(try_read(pinned->bytes) == SIGSEGV);
	child_check(try_write(pinned->bytes + PAGE) == SIGSEGV);
	/* With a descriptor of its own, and memory of its own, everything works. */
	own.fd = gdr_open();
	child_check(gdr_pin(own.fd, pinned->memory.address, PAGE, &own.handle) == -EINVAL);
	gpu_alloc(&own.memory, PAGE, 0);
	child_check(!gdr_pin(own.fd, own.memory.address, PAGE, &own.handle));
	child_check(!gdr_map(own.fd, own.handle, PAGE, &own.bytes));
	fill(own.bytes, PAGE, 41);
	child_check(is_filled(own.memory.bytes, PAGE, 41));
	child_check(gdr_unpin(own.fd, pinned->handle) == -EINVAL);
}

static void fork__after_map(void **state)
{
	struct pinned pinned;

	(void)state;
	open_pinned(&pinned);
	in_child(be_a_child, &pinned);
	assert_int_equal(gdr_refcount(), 1);
	close_pinned(&pinned);
}

static void be_a_child_that_closes(void *argument)
{
	struct pinned *pinned = argument;

	child_check(!close(pinned->fd));
	child_check(!munmap(pinned->bytes, 2 * PAGE) || errno == EINVAL);
}

static void fork__child_closes(void **state)
{
	struct pinned pinned;

	(void)state;
	open_pinned(&pinned);
	in_child(be_a_child_that_closes, &pinned);
	assert_int_equal(gdr_refcount(), 1);
	assert_int_equal(gdr_type(pinned.fd, pinned.handle), WC);
	close_pinned(&pinned);
}

/* The child has the descriptor for longer than the parent, and so is the last to close it. */
static void fork__parent_closes_first(void **state)
{
	struct pinned pinned;
	int pipes[2], status;
	char byte;
	pid_t child;

	(void)state;
	ok(pipe(pipes));
	open_pinned(&pinned);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		close(pipes[1]);
		child_check(read(pipes[0], &byte, 1) == 0); /* until the parent has closed */
		be_refused(&pinned);
		child_check(!close(pinned.fd));
		child_check(gdr_refcount() == 0);
		_exit(0);
	}
	close(pipes[0]);
	munmap(pinned.bytes, 2 * PAGE);
	ok(close(pinned.fd));
	assert_int_equal(gdr_refcount(), 1);
	close(pipes[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(gdr_refcount(), 0);
	ok(gpu_free(&pinned.memory));
}

/* ---- a descriptor over a socket -------------------------------------------------------------- */

static void send_fd(int socket, int fd)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec vector = { &byte, 1 };
	struct msghdr message = { .msg_iov = &vector,
				  .msg_iovlen = 1,
				  .msg_control = space,
				  .msg_controllen = sizeof(space) };
	struct cmsghdr *control = CMSG_FIRSTHDR(&message);

	control->cmsg_level = SOL_SOCKET;
	control->cmsg_type = SCM_RIGHTS;
	control->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(control), &fd, sizeof(fd));
	child_check(sendmsg(socket, &message, 0) == 1);
}

static int receive_fd(int socket)
{
	char byte, space[CMSG_SPACE(sizeof(int))];
	struct iovec vector = { &byte, 1 };
	struct msghdr message = { .msg_iov = &vector,
				  .msg_iovlen = 1,
				  .msg_control = space,
				  .msg_controllen = sizeof(space) };
	int fd;

	if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* Opened and pinned in the child, used by the parent. */
static void pass__from_a_child(void **state)
{
	struct pinned pinned;
	int sockets[2], status;
	char byte;
	pid_t child;

	(void)state;
	ok(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		pinned.fd = gdr_open();
		gpu_alloc(&pinned.memory, 2 * PAGE, 0);
		child_check(!gdr_pin(pinned.fd, pinned.memory.address, 2 * PAGE, &pinned.handle));
		send_fd(sockets[1], pinned.fd);
		child_check(write(sockets[1], &pinned.handle, 8) == 8);
		child_check(read(sockets[1], &byte, 1) == 1);
		_exit(0);
	}
	close(sockets[1]);
	pinned.fd = receive_fd(sockets[0]);
	assert_true(pinned.fd >= 0);
	assert_int_equal(read(sockets[0], &pinned.handle, 8), 8);
	be_refused(&pinned);
	assert_int_equal(write(sockets[0], "x", 1), 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* Its owner is dead: still nobody else's. Where pages can be taken away they are gone by
	 * now. */
	be_refused(&pinned);
	assert_int_equal(gdr_refcount(), gdr_is_persistent());
	ok(close(pinned.fd));
	assert_int_equal(gdr_refcount(), 0);
	close(sockets[0]);
}

/* The owner is dead, and its process id has come again: another process, all the same. */
static void pass__process_id_again(void **state)
{
	struct pinned pinned = { 0 };
	struct clone_args arguments;
	int sockets[2], status;
	pid_t owner, child;

	(void)state;
	ok(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	owner = fork();
	assert_true(owner >= 0);
	if (!owner) {
		send_fd(sockets[1], gdr_open());
		_exit(0);
	}
	close(sockets[1]);
	pinned.fd = receive_fd(sockets[0]);
	assert_true(pinned.fd >= 0);
	assert_int_equal(waitpid(owner, &status, 0), owner);
	arguments = (struct clone_args){ .exit_signal = SIGCHLD,
					 .set_tid_size = 1,
					 .set_tid = (uint64_t)(uintptr_t)&owner };
	child = (pid_t)syscall(SYS_clone3, &arguments, sizeof(arguments));
	if (!child) {
		be_refused(&pinned);
		_exit(0);
	}
	assert_int_equal(child, owner);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	ok(close(pinned.fd));
	close(sockets[0]);
}

/* ---- death ----------------------------------------------------------------------------------- */

static void die__with_pins(void **state)
{
	struct pinned pinned;
	int status, i, how;
	pid_t child;

	(void)state;
	for (how = 0; how < 2; how++) {
		child = fork();
		assert_true(child >= 0);
		if (!child) {
			pinned.fd = gdr_open();
			gpu_alloc(&pinned.memory, 20 * PAGE, 0);
			for (i = 0; i < 20; i++) {
				child_check(!gdr_pin(pinned.fd, pinned.memory.address, 20 * PAGE,
						     &pinned.handle));
				child_check(!gdr_map(pinned.fd, pinned.handle, 20 * PAGE,
						     &pinned.bytes));
				fill(pinned.bytes, 4096, 42);
			}
			if (how)
				_exit(0);
			raise(SIGKILL);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(how ? status == 0 : WIFSIGNALED(status));
		assert_int_equal(gdr_refcount(), 0);
	}
}

/* The second program of the test below. */
int after_exec(int fd, uint64_t handle)
{
	struct pinned pinned = { .fd = fd, .handle = handle };
	long left = gdr_is_persistent(); /* other pages went with the memory */

	be_refused(&pinned);
	child_check(gdr_refcount() == left);
	child_check(!close(fd));
	child_check(gdr_refcount() == 0);
	return 0;
}

/* The same process, another program: what was pinned before is none of its business, though it got
 * the descriptor and so is the last to close it. */
static void exec__ends_ownership(void **state)
{
	char number[16], handle[24];
	struct pinned pinned;
	int status;
	pid_t child;

	(void)state;
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		pinned.fd = open("/dev/gdrdrv", O_RDWR);
		gpu_alloc(&pinned.memory, PAGE, 0);
		child_check(!gdr_pin(pinned.fd, pinned.memory.address, PAGE, &pinned.handle));
		child_check(!gdr_map(pinned.fd, pinned.handle, PAGE, &pinned.bytes));
		snprintf(number, sizeof(number), "%d", pinned.fd);
		snprintf(handle, sizeof(handle), "%llu", (unsigned long long)pinned.handle);
		execl("/proc/self/exe", "lab-gdr", "after-exec", number, handle, NULL);
		_exit(1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* Shares memory and descriptors, and is another process nevertheless. */
static void clone__shares_memory(void **state)
{
	struct pinned pinned;
	int status;
	pid_t child;

	(void)state;
	open_pinned(&pinned);
	child = vfork();
	assert_true(child >= 0);
	if (!child) {
		if (gdr_ioctl(pinned.fd, IOC_VERSION, &(struct version){ 0 }) != -EACCES)
			_exit(1);
		_exit(pinned.bytes[0] == pinned.memory.bytes[0] ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close_pinned(&pinned);
}

int test_processes(void)
{
	const struct CMUnitTest tests[] = {
		gdr_test(fork__after_map),           gdr_test(fork__child_closes),
		gdr_test(fork__parent_closes_first), gdr_test(pass__from_a_child),
		gdr_test(pass__process_id_again),    gdr_test(die__with_pins),
		gdr_test(exec__ends_ownership),      gdr_test(clone__shares_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
