/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the fake CUDA driver that need more than one process: memory shared between processes,
 * and environment variables, which a driver reads only once. */
#include "../self.h"
#include "test-fake.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- messages to a child, whose end of the socket is descriptor 3 ---------------------------- */

struct message {
	struct ipc_handle handle;
	uint64_t offset, size;
};

static void send_message(int socket, const struct message *message, int fd)
{
	struct iovec bytes = { (void *)(uintptr_t)message, sizeof(*message) };
	char space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = { 0 };
	struct msghdr header = { .msg_iov = &bytes, .msg_iovlen = 1 };
	struct cmsghdr *control;

	if (fd >= 0) {
		header.msg_control = space;
		header.msg_controllen = sizeof(space);
		control = CMSG_FIRSTHDR(&header);
		control->cmsg_level = SOL_SOCKET;
		control->cmsg_type = SCM_RIGHTS;
		control->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(control), &fd, sizeof(fd));
	}
	if (sendmsg(socket, &header, MSG_NOSIGNAL) != sizeof(*message))
		abort();
}

/* Returns 0 if the other side has closed the socket. *fd is -1 if the message had no descriptor. */
static int receive_message(int socket, struct message *message, int *fd)
{
	struct iovec bytes = { message, sizeof(*message) };
	char space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	struct msghdr header = {
		.msg_iov = &bytes,
		.msg_iovlen = 1,
		.msg_control = space,
		.msg_controllen = sizeof(space),
	};
	struct cmsghdr *control;

	*fd = -1;
	if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_WAITALL) != sizeof(*message))
		return 0;
	control = CMSG_FIRSTHDR(&header);
	if (control)
		memcpy(fd, CMSG_DATA(control), sizeof(*fd));
	return 1;
}

static pid_t start_child(const char *what, int socket)
{
	char *arguments[] = {
		"test-fake",
		(char *)(uintptr_t)driver_path,
		(char *)(uintptr_t)what,
		NULL,
	};
	posix_spawn_file_actions_t actions;
	pid_t child;

	posix_spawn_file_actions_init(&actions);
	if (socket >= 0)
		posix_spawn_file_actions_adddup2(&actions, socket, 3);
	assert_int_equal(posix_spawn(&child, self_path(), &actions, NULL, arguments, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	return child;
}

static void expect_success(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- children -------------------------------------------------------------------------------- */

#define NEED(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

static int open_device(int device)
{
	return cu.Init(0) || cu.DevicePrimaryCtxRetain(&contexts[0], device) ||
	       cu.CtxSetCurrent(contexts[0]);
}

/* Add 1 to each byte of the memory. */
static int increment(uint64_t address, size_t size)
{
	unsigned char *bytes = malloc(size);

	NEED(bytes && cu.MemcpyDtoH(bytes, address, size) == 0);
	for (size_t i = 0; i < size; i++)
		bytes[i]++;
	NEED(cu.MemcpyHtoD(address, bytes, size) == 0);
	NEED(cu.CtxSynchronize() == 0);
	free(bytes);
	return 0;
}

static int child_legacy(void)
{
	uint64_t address, again;
	struct message message = { .size = 0 };
	int fd;

	NEED(open_device(1) == 0);
	while (receive_message(3, &message, &fd)) {
		NEED(cu.IpcOpenMemHandle(&address, message.handle, 0) == 1);
		NEED(cu.IpcOpenMemHandle(&address, message.handle, 1) == 0);
		NEED(cu.IpcOpenMemHandle(&again, message.handle, 1) == 0);
		NEED(again == address);
		NEED(cu.MemFree(address) == 1);
		NEED(increment(address + message.offset, message.size) == 0);
		NEED(cu.IpcCloseMemHandle(address) == 0);
		NEED(cu.IpcCloseMemHandle(address) == 0);
		NEED(cu.IpcCloseMemHandle(address) == 1);
		message.handle.bytes[0] ^= 1;
		NEED(cu.IpcOpenMemHandle(&again, message.handle, 1) == 1);
		send_message(3, &message, -1);
	}
	return 0;
}

static int child_stale(void)
{
	struct message message = { .size = 0 };
	uint64_t address;
	int fd;

	NEED(open_device(0) == 0);
	NEED(receive_message(3, &message, &fd));
	NEED(cu.IpcOpenMemHandle(&address, message.handle, 1) == 1);
	return 0;
}

static int child_vmm(void)
{
	const struct access access = { { 1, 1 }, 3 };
	struct properties properties;
	uint64_t range, handle;
	struct message message = { .size = 0 };
	int fd;

	NEED(open_device(1) == 0);
	NEED(receive_message(3, &message, &fd) && fd >= 0);
	NEED(cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, 1) == 0);
	close(fd);
	NEED(cu.MemGetAllocationPropertiesFromHandle(&properties, handle) == 0);
	/* As with driver 580, imported memory cannot be exported again. */
	NEED(properties.location.id == 0 && properties.handle_types == 0);
	NEED(cu.MemAddressReserve(&range, message.size, 0, 0, 0) == 0);
	NEED(cu.MemMap(range, message.size, 0, handle, 0) == 0);
	NEED(cu.MemSetAccess(range, message.size, &access, 1) == 0);
	NEED(increment(range + message.offset, 1000) == 0);
	NEED(cu.MemUnmap(range, message.size) == 0);
	NEED(cu.MemRelease(handle) == 0);
	NEED(cu.MemAddressFree(range, message.size) == 0);
	send_message(3, &message, -1);
	return 0;
}

static int child_after_fork(void)
{
	int status, count;
	pid_t child;

	NEED(open_device(0) == 0);
	child = fork();
	if (!child)
		_exit(cu.DeviceGetCount(&count));
	NEED(waitpid(child, &status, 0) == child);
	NEED(WIFEXITED(status) && WEXITSTATUS(status) == 3);
	return 0;
}

static int child_no_device(void)
{
	NEED(cu.Init(0) == 100);
	return 0;
}

/* CUDA_VISIBLE_DEVICES=2,0 of four. */
static int child_visible_index(void)
{
	char bus[16];
	int count;

	NEED(cu.Init(0) == 0);
	NEED(cu.DeviceGetCount(&count) == 0 && count == 2);
	NEED(cu.DeviceGetPCIBusId(bus, sizeof(bus), 0) == 0);
	NEED(strcmp(bus, "0000:3B:00.0") == 0);
	NEED(cu.DeviceGetPCIBusId(bus, sizeof(bus), 1) == 0);
	NEED(strcmp(bus, "0000:1B:00.0") == 0);
	return 0;
}

/* The UUID of device 1 only. */
static int child_visible_uuid(void)
{
	char bus[16];
	int count;

	NEED(cu.Init(0) == 0);
	NEED(cu.DeviceGetCount(&count) == 0 && count == 1);
	NEED(cu.DeviceGetPCIBusId(bus, sizeof(bus), 0) == 0);
	NEED(strcmp(bus, "0000:2B:00.0") == 0);
	return 0;
}

/* The other environment variables. */
static int child_settings(void)
{
	uint64_t a, b, id_a, id_b;
	size_t total;
	void *symbol;
	int value, version, status;

	NEED(open_device(0) == 0);
	NEED(cu.DeviceTotalMem(&total, 0) == 0 && total == 8 * MIB);
	NEED(cu.DriverGetVersion(&version) == 0 && version == 12020);
	NEED(cu.GetProcAddress("cuMemcpyBatchAsync", &symbol, 13000, 0, &status) == 0 && !symbol);
	NEED(cu.DeviceCanAccessPeer(&value, 0, 1) == 0 && value == 0);
	NEED(cu.DevicePrimaryCtxRetain(&contexts[1], 1) == 0);
	NEED(cu.CtxEnablePeerAccess(contexts[1], 0) == 217);
	NEED(cu.DeviceGetAttribute(&value, 124, 0) == 0 && value == 0);
	NEED(cu.DeviceGetAttribute(&value, 103, 1) == 0 && value == 0);
	NEED(cu.MemAlloc(&a, MIB) == 0);
	NEED(cu.MemAlloc(&b, MIB) == 999); /* FAKE_CUDA_FAIL */
	NEED(cu.MemGetHandleForAddressRange(&value, a, MIB, 1, 0) == 801);
	NEED(cu.PointerGetAttribute(&id_a, 7, a) == 0);
	NEED(cu.MemFree(a) == 0);
	NEED(cu.MemAlloc(&b, MIB) == 0 && a == b);
	NEED(cu.PointerGetAttribute(&id_b, 7, b) == 0 && id_a != id_b);
	NEED(cu.MemsetD8Async(b, 1, MIB, NULL) == 0);
	NEED(cu.StreamQuery(NULL) == 600); /* the delay */
	NEED(cu.CtxSynchronize() == 0);
	NEED(cu.CtxSetCurrent(contexts[1]) == 0);
	NEED(cu.MemAlloc(&a, 64) == 0);
	NEED(cu.MemsetD8Async(a, 1, 64, NULL) == 0); /* FAKE_CUDA_LOSE: the first operation */
	NEED(cu.StreamSynchronize(NULL) == 719);
	return 0;
}

int be_child(const char *what)
{
	static const struct {
		const char *what;
		int (*run)(void);
	} children[] = {
		{ "legacy", child_legacy },
		{ "stale", child_stale },
		{ "vmm", child_vmm },
		{ "after-fork", child_after_fork },
		{ "no-device", child_no_device },
		{ "visible-index", child_visible_index },
		{ "visible-uuid", child_visible_uuid },
		{ "settings", child_settings },
	};

	for (size_t i = 0; i < sizeof(children) / sizeof(children[0]); i++)
		if (strcmp(children[i].what, what) == 0)
			return children[i].run();
	return 2;
}

/* ---- memory between processes ---------------------------------------------------------------- */

static void processes__legacy(void **state)
{
	struct message message = { .offset = 4000, .size = 1000 };
	unsigned char bytes[8000] = { 0 };
	int sockets[2], fd;
	uint64_t address, small;
	pid_t child;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = start_child("legacy", sockets[1]);
	close(sockets[1]);
	ok(cu.MemAlloc(&address, 4 * MIB));
	ok(cu.MemcpyHtoD(address, bytes, sizeof(bytes)));
	ok(cu.CtxSynchronize());
	ok(cu.IpcGetMemHandle(&message.handle, address + 77)); /* of all of the allocation */
	for (int i = 1; i <= 3; i++) {
		send_message(sockets[0], &message, -1);
		assert_true(receive_message(sockets[0], &message, &fd));
		message.handle.bytes[0] ^= 1;
		ok(cu.MemcpyDtoH(bytes, address, sizeof(bytes)));
		assert_int_equal(bytes[3999], 0);
		assert_int_equal(bytes[4000], i);
		assert_int_equal(bytes[4999], i);
		assert_int_equal(bytes[5000], 0);
	}
	/* Memory that does not start at a page. */
	ok(cu.MemAlloc(&small, 100));
	ok(cu.MemsetD8(small, 50, 100));
	ok(cu.CtxSynchronize());
	ok(cu.IpcGetMemHandle(&message.handle, small));
	message.offset = 10;
	message.size = 90;
	send_message(sockets[0], &message, -1);
	assert_true(receive_message(sockets[0], &message, &fd));
	ok(cu.MemcpyDtoH(bytes, small, 100));
	assert_int_equal(bytes[9], 50);
	assert_int_equal(bytes[10], 51);
	assert_int_equal(bytes[99], 51);
	close(sockets[0]);
	expect_success(child);
	ok(cu.MemFree(small));
	ok(cu.MemFree(address));
}

/* The memory was freed before the handle was opened. */
static void processes__legacy_stale(void **state)
{
	struct message message = { .size = 0 };
	uint64_t address, other;
	int sockets[2];
	pid_t child;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	ok(cu.MemAlloc(&address, MIB));
	ok(cu.IpcGetMemHandle(&message.handle, address));
	ok(cu.MemFree(address));
	ok(cu.MemAlloc(&other, MIB)); /* may get the same descriptor number, for other memory */
	child = start_child("stale", sockets[1]);
	close(sockets[1]);
	send_message(sockets[0], &message, -1);
	expect_success(child);
	close(sockets[0]);
	ok(cu.MemFree(other));
}

static void processes__vmm(void **state)
{
	const struct properties properties = { .type = 1, .handle_types = 1, .location = { 1, 0 } };
	const struct access access = { { 1, 0 }, 3 };
	struct message message = { .offset = 2 * MIB - 500, .size = 4 * MIB };
	uint64_t range, handle;
	int sockets[2], fd;
	unsigned char out[2];
	pid_t child;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = start_child("vmm", sockets[1]);
	close(sockets[1]);
	ok(cu.MemCreate(&handle, 4 * MIB, &properties, 0));
	ok(cu.MemAddressReserve(&range, 4 * MIB, 0, 0, 0));
	ok(cu.MemMap(range, 4 * MIB, 0, handle, 0));
	ok(cu.MemSetAccess(range, 4 * MIB, &access, 1));
	ok(cu.MemsetD8(range, 20, 4 * MIB));
	ok(cu.CtxSynchronize());
	ok(cu.MemExportToShareableHandle(&fd, handle, 1, 0));
	send_message(sockets[0], &message, fd);
	close(fd);
	assert_true(receive_message(sockets[0], &message, &fd));
	ok(cu.MemcpyDtoH(out, range + message.offset - 1, 2));
	assert_int_equal(out[0], 20);
	assert_int_equal(out[1], 21);
	expect_success(child);
	close(sockets[0]);
	ok(cu.MemUnmap(range, 4 * MIB));
	ok(cu.MemAddressFree(range, 4 * MIB));
	ok(cu.MemRelease(handle));
}

static void processes__after_fork(void **state)
{
	(void)state;
	expect_success(start_child("after-fork", -1));
}

/* ---- the environment ------------------------------------------------------------------------- */

/* Run a child with environment variables: NAME=VALUE, separated by spaces. */
static void with_environment(const char *what, const char *settings)
{
	char *copy = strdup(settings), *save = NULL, *names[16];
	size_t count = 0;
	pid_t child;

	assert_non_null(copy);
	for (char *at = strtok_r(copy, " ", &save); at && count < 16;
	     at = strtok_r(NULL, " ", &save)) {
		char *value = strchr(at, '=');

		assert_non_null(value);
		*value = 0;
		setenv(at, value + 1, 1);
		names[count++] = at;
	}
	child = start_child(what, -1);
	while (count)
		unsetenv(names[--count]);
	free(copy);
	expect_success(child);
}

static void environment__devices(void **state)
{
	unsigned char u[16];
	char setting[96];

	(void)state;
	with_environment("no-device", "FAKE_CUDA_DEVICES=0");
	with_environment("no-device", "CUDA_VISIBLE_DEVICES=");
	with_environment("no-device", "CUDA_VISIBLE_DEVICES=-1");
	with_environment("no-device", "CUDA_VISIBLE_DEVICES=0,0");
	with_environment("visible-index", "FAKE_CUDA_DEVICES=4 CUDA_VISIBLE_DEVICES=2,0");
	with_environment("visible-index", "FAKE_CUDA_DEVICES=4 CUDA_VISIBLE_DEVICES=2,0,9,1");
	ok(cu.DeviceGetUuid(u, 1));
	snprintf(setting, sizeof(setting),
		 "CUDA_VISIBLE_DEVICES="
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
		 u[13], u[14], u[15]);
	with_environment("visible-uuid", setting);
	setting[strlen("CUDA_VISIBLE_DEVICES=GPU-") + 6] = 0;
	with_environment("visible-uuid", setting);
}

static void environment__settings(void **state)
{
	(void)state;
	with_environment("settings",
			 "FAKE_CUDA_MEMORY=8388608 FAKE_CUDA_DRIVER=12020 FAKE_CUDA_PEER=0 "
			 "FAKE_CUDA_ATTRIBUTES=124=0,103=0 FAKE_CUDA_FAIL=cuMemAlloc_v2:2:999 "
			 "FAKE_CUDA_REUSE=1 FAKE_CUDA_DELAY_US=20000 FAKE_CUDA_LOSE=1:719:1");
}

int test_processes(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(processes__legacy, test_setup),
		cmocka_unit_test_setup(processes__legacy_stale, test_setup),
		cmocka_unit_test_setup(processes__vmm, test_setup),
		cmocka_unit_test_setup(processes__after_fork, test_setup),
		cmocka_unit_test_setup(environment__devices, test_setup),
		cmocka_unit_test_setup(environment__settings, test_setup),
	};

	return cmocka_run_group_tests_name("processes", tests, NULL, NULL);
}
