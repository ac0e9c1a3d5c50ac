/* SPDX-License-Identifier: Apache-2.0 */
/* yama.c: read Yama's scope, or imitate it with a mount namespace and a seccomp filter */
#include "yama.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ABOVE "/proc/sys/kernel"
#define SCOPE ABOVE "/yama/ptrace_scope"
#define BOOT ABOVE "/random/boot_id" /* tells engines that they share a host */

int yama_scope(void)
{
	int fd = open(SCOPE, O_RDONLY | O_CLOEXEC);
	char text[8] = "";

	if (fd < 0)
		return 0;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	close(fd);
	return atoi(text);
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644), error;

	if (fd < 0)
		return -errno;
	error = write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -EIO;
	close(fd);
	return error;
}

/* Show ptrace_scope 1 in a mount namespace of this process. */
static int write_scope(void)
{
	int fd = open(BOOT, O_RDONLY | O_CLOEXEC), error;
	char boot[64] = "";

	if (fd < 0)
		return -errno;
	error = read(fd, boot, sizeof(boot) - 1) > 0 ? 0 : -EIO;
	close(fd);
	if (error)
		return error;
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", ABOVE, "tmpfs", 0, "mode=755") || mkdir(ABOVE "/yama", 0755) ||
	    mkdir(ABOVE "/random", 0755))
		return -errno;
	error = write_file(BOOT, boot);
	return error ? error : write_file(SCOPE, "1\n");
}

/* Fail the calls with EPERM, as the kernel does under Yama. */
static int refuse_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
			       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ?
		       -errno :
		       0;
}

int yama_pretend(void)
{
	int error = write_scope();

	return error ? error : refuse_calls();
}
