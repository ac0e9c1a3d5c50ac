/* SPDX-License-Identifier: Apache-2.0 */
/* container.c: child processes in namespaces of their own, as containers are */
#include "container.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "network.h"

static const char *missing_containers(void)
{
	if (needs_network.missing())
		return needs_network.missing();
	return system("unshare --pid --ipc --mount --uts --fork --mount-proc true 2>/dev/null") ?
		       "no namespaces of PIDs, IPC, mounts and UTS here: they want root and "
		       "unshare" :
		       NULL;
}

const struct route needs_containers = { .name = "containers", .missing = missing_containers };

/* ---- in the child, which may call nothing that allocates or locks ------------------------------
 */

/* Before, it is a user whom its namespace does not know. */
static bool become_root(const struct container *container)
{
	return !(container->namespaces & CLONE_NEWUSER) ||
	       (!syscall(SYS_setresgid, 0, 0, 0) && !syscall(SYS_setresuid, 0, 0, 0));
}

static bool mount_volume(const struct container *container)
{
	const char *at = container->at;

	if (!at)
		return true;
	return !mkdir(at, 0777) && !mount(container->volume, at, NULL, MS_BIND, NULL) &&
	       (!container->read_only ||
		!mount(NULL, at, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
}

static bool mount_all(const struct container *container)
{
	const char *shm = container->full ? "mode=1777,nr_inodes=1" : "mode=1777";

	if (!(container->namespaces & CLONE_NEWNS))
		return true;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    (container->namespaces & CLONE_NEWPID && !container->old_proc &&
	     mount("proc", "/proc", "proc", 0, NULL)))
		return false;
	if (container->boot &&
	    mount(container->boot, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL))
		return false;
	return !mount("tmpfs", "/run", "tmpfs", 0, "mode=755") &&
	       !mount("tmpfs", "/dev/shm", "tmpfs", 0, shm) && mount_volume(container);
}

/* ---- in the test --------------------------------------------------------------------------------
 */

static void map_users(pid_t pid)
{
	static const char *const files[] = { "setgroups", "uid_map", "gid_map" };
	char path[64], text[64];

	for (int i = 0; i < 3; i++) {
		int fd;

		snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, files[i]);
		snprintf(text, sizeof(text), i ? "0 %u 1000" : "deny", CONTAINER_USERS);
		fd = open(path, O_WRONLY | O_CLOEXEC);
		want_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text),
			  "%s: %s", path, strerror(errno));
		close(fd);
	}
}

pid_t container_fork(const struct container *container)
{
	int go[2];
	char byte = 0;
	pid_t pid;

	want_true(!pipe2(go, O_CLOEXEC), "%s", strerror(errno));
	pid = (pid_t)syscall(SYS_clone, (unsigned long)container->namespaces | SIGCHLD, NULL, NULL,
			     NULL, NULL);
	if (pid == 0) {
		if (read(go[0], &byte, 1) != 1 || !become_root(container) || !mount_all(container))
			_exit(126);
		return 0;
	}
	want_true(pid > 0, "clone: %s", strerror(errno));
	if (container->namespaces & CLONE_NEWUSER)
		map_users(pid);
	want(1, write(go[1], &byte, 1));
	close(go[0]);
	close(go[1]);
	return pid;
}

void container_cable_open(struct container_cable *cable)
{
	char line[256];

	cable->right = network_new();
	cable->left = network_new();
	snprintf(line, sizeof(line),
		 "ip link add c0 type veth peer name c1 && ip addr add " CONTAINER_LEFT
		 "/24 dev c0 && ip link set c0 up && "
		 "ip link set c1 netns /proc/%d/fd/%d",
		 (int)getpid(), cable->right);
	want_true(!system(line), "%s", line);
	snprintf(line, sizeof(line),
		 "nsenter --net=/proc/%d/fd/%d sh -c 'ip addr add " CONTAINER_RIGHT
		 "/24 dev c1 && ip link set c1 up'",
		 (int)getpid(), cable->right);
	want_true(!system(line), "%s", line);
}

void container_cable_close(struct container_cable *cable)
{
	network_leave();
	close(cable->left);
	close(cable->right);
}
