/* SPDX-License-Identifier: Apache-2.0 */
/* route.c: the routes that tests take, and what this machine needs for each */
#include "harness.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

static const char *missing_vm(void)
{
	volatile int there = 1;
	int here = 0;
	struct iovec to = { &here, sizeof(here) }, from = { (void *)&there, sizeof(there) };
	const char *why = NULL;
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(10);
		pause();
		_exit(0);
	}
	/* Yama alone is no reason: children allow access to all with PR_SET_PTRACER. */
	if (process_vm_readv(pid, &to, 1, &from, 1, 0) != sizeof(here) && errno != EPERM)
		why = "the kernel has no process_vm_readv";
	else if (here != 1 && access("/proc/sys/kernel/yama/ptrace_scope", F_OK) != 0)
		why = "process_vm_readv is not permitted";
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return why;
}

static const char *missing_tcp6(void)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int error = fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0;

	if (fd >= 0)
		close(fd);
	return error ? "there is no ::1" : NULL;
}

static const char *missing_root(void)
{
	return geteuid() == 0 ? NULL : "only root can become another user";
}

const struct route route_self = {
	.name = "self",
	.require = "self",
	.detail = "",
	.kind = WH_MEMORY_SHARED,
};
const struct route route_shm = {
	.name = "shm",
	.require = "shm",
	.detail = "memfd",
	.kind = WH_MEMORY_SHARED,
};
const struct route route_shm_parts = {
	.name = "shm",
	.require = "shm",
	.detail = "memfd",
	.kind = WH_MEMORY_SHARED,
	.missing = missing_vm,
};
const struct route route_vm = {
	.name = "shm",
	.require = "shm",
	.detail = "process_vm",
	.kind = CHILD_FOREIGN,
	.missing = missing_vm,
};
const struct route route_tcp4 = {
	.name = "tcp",
	.require = "tcp",
	.listen = "127.0.0.1:0",
	.detail = "connection",
	.kind = WH_MEMORY_PAGEABLE,
};
const struct route route_tcp6 = {
	.name = "tcp",
	.require = "tcp",
	.listen = "[::1]:0",
	.detail = "connection",
	.kind = WH_MEMORY_PAGEABLE,
	.missing = missing_tcp6,
};
/* Devices for this process and for the children: real ones ("rxe0,rxe1") or the fake library's. */
static const char *missing_rdma(void)
{
	return getenv("TEST_RDMA") || getenv("TEST_VERBS") ? NULL :
							     "there is no RDMA device to test with";
}

static const char *missing_gpu_rdma(void)
{
	return !getenv("TEST_VERBS") || getenv("TEST_RDMA") || !getenv("TEST_CUDA") ?
		       "it takes the fake CUDA driver and the fake libibverbs" :
		       NULL;
}

const struct route route_rdma = {
	.name = "rdma",
	.require = "rdma",
	.listen = "127.0.0.1:0",
	.detail = "RoCE v2",
	.kind = WH_MEMORY_PAGEABLE,
	.devices = true,
	.missing = missing_rdma,
};
const struct route route_gpu_rdma = {
	.name = "rdma",
	.require = "rdma",
	.listen = "127.0.0.1:0",
	.detail = "RoCE v2, dmabuf",
	.kind = WH_MEMORY_DEVICE,
	.devices = true,
	.missing = missing_gpu_rdma,
};
const struct route route_file = {
	.name = "self",
	.require = "self",
	.detail = "file",
	.kind = CHILD_FILE,
};
const struct route route_file_tcp = {
	.name = "tcp",
	.require = "tcp",
	.listen = "127.0.0.1:0",
	.detail = "connection",
	.kind = CHILD_FILE,
};
const struct route route_file_lent = {
	.name = "tcp",
	.detail = "shared memory",
	.few = 16 * KIB, /* through the socket */
	.kind = CHILD_FILE,
};
const struct route needs_root = { .name = "root", .missing = missing_root };

static const char *missing_root_or_nics(void)
{
	const char *why = missing_root();

	return why ? why : missing_rdma();
}

const struct route needs_root_and_nics = { .name = "root and NICs",
					   .devices = true,
					   .missing = missing_root_or_nics };
