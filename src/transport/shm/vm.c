/* SPDX-License-Identifier: Apache-2.0 */
/* shm, memory that cannot be mapped: the kernel copies it, if it lets us, by
 * process_vm_readv/writev. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"
#include "util/config.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* Keep the first reason. */
static void refuse_vm(struct wh_shm_peer *shm, const char *why)
{
	pthread_mutex_lock(&shm->vm_lock);
	if (atomic_load(&shm->vm) != WH_VM_REFUSED)
		snprintf(shm->vm_refused, sizeof(shm->vm_refused), "%s", why);
	atomic_store(&shm->vm, WH_VM_REFUSED);
	pthread_mutex_unlock(&shm->vm_lock);
}

void wh_shm_vm_refusal(struct wh_copier_peer *copy, char why[WH_REFUSAL])
{
	struct wh_shm_peer *shm = (struct wh_shm_peer *)copy;

	pthread_mutex_lock(&shm->vm_lock);
	memcpy(why, shm->vm_refused, WH_REFUSAL);
	pthread_mutex_unlock(&shm->vm_lock);
}

/*
 * process_vm takes a process number, which the kernel gives to another process once the old one has
 * been waited for. A pidfd stays with its process: if that still runs after a call, the number was
 * its own all the time. A process that has called exec() is the same to the pidfd, but has lost its
 * threads, which the alive page tells.
 */
static bool still_there(const struct wh_shm_peer *shm)
{
	struct pollfd look = { .fd = shm->pidfd, .events = POLLIN };

	return atomic_load(shm->alive) == shm->owner && poll(&look, 1, 0) == 0;
}

/* The socket's own pidfd and process number speak of the same process, the one that listens; both
 * are kept by the kernel since then. Without the former the number is looked up, and still_there()
 * after the handshake tells whether it was still the same: the process has answered us after that.
 */
void wh_shm_vm_meet(struct wh_shm_peer *shm, uid_t uid)
{
	socklen_t length = sizeof(struct ucred);
	char why[WH_REFUSAL];
	struct ucred user;

	if (!wh_engine_config(wh_peer_engine(shm->peer))->number[WH_SETTING_CMA]) {
		refuse_vm(shm, "process_vm is switched off by the setting cma");
		return;
	}
	if (getsockopt(shm->fd, SOL_SOCKET, SO_PEERCRED, &user, &length) || user.uid != uid ||
	    user.pid <= 0) {
		refuse_vm(shm, "process_vm: the peer is in another pid namespace");
		return;
	}
	shm->pid = user.pid;
	length = sizeof(shm->pidfd);
	if (getsockopt(shm->fd, SOL_SOCKET, SO_PEERPIDFD, &shm->pidfd, &length))
		shm->pidfd = (int)syscall(SYS_pidfd_open, user.pid, 0);
	if (shm->pidfd < 0) {
		snprintf(why, sizeof(why), "process_vm: no pidfd of process %d: %s", (int)user.pid,
			 strerror(errno));
		refuse_vm(shm, why);
	}
}

/* ---- may we? ------------------------------------------------------------------------------- */

static int yama_scope(void)
{
	int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
	char text[8] = "";
	ssize_t got;

	if (fd < 0)
		return 0;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	return got > 0 ? atoi(text) : 0;
}

/* Why the kernel does not let us, as far as can be told. */
static void explain(struct wh_shm_peer *shm, int error)
{
	char why[WH_REFUSAL];
	int scope = error == EPERM ? yama_scope() : 0;

	if (error == ENOSYS)
		snprintf(why, sizeof(why),
			 "process_vm: no such call (the kernel, or a seccomp filter)");
	else if (scope)
		snprintf(why, sizeof(why),
			 "process_vm on process %d: %s (Yama: kernel.yama.ptrace_scope is %d, it "
			 "takes "
			 "0 or CAP_SYS_PTRACE)",
			 (int)shm->pid, strerror(error), scope);
	else if (error == EPERM)
		snprintf(why, sizeof(why),
			 "process_vm on process %d: %s (another user's, not dumpable, or seccomp)",
			 (int)shm->pid, strerror(error));
	else
		snprintf(why, sizeof(why), "process_vm on process %d: %s", (int)shm->pid,
			 strerror(error));
	refuse_vm(shm, why);
}

/* A read of one byte at an address where no process has anything: permission is checked first, so
 * that EFAULT means it would be given. None of the peer's memory is touched. */
int wh_shm_vm_probe(struct wh_shm_peer *shm, char why[WH_REFUSAL])
{
	char byte;
	struct iovec here = { &byte, 1 }, there = { (void *)(UINTPTR_MAX - 4095), 1 };

	if (atomic_load(&shm->vm) == WH_VM_UNKNOWN) {
		if (process_vm_readv(shm->pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT)
			atomic_store(&shm->vm, WH_VM_WORKS);
		else
			explain(shm, errno);
		if (!still_there(shm)) {
			snprintf(why, WH_REFUSAL, "process %d has ended", (int)shm->pid);
			return -ECONNRESET;
		}
	}
	if (atomic_load(&shm->vm) == WH_VM_WORKS)
		return 0;
	wh_shm_vm_refusal(&shm->copy, why);
	return -EOPNOTSUPP;
}

/* ---- moving -------------------------------------------------------------------------------- */

static void fail_gone(struct wh_shm_peer *shm, struct wh_unmapped *unmapped)
{
	wh_fragment_fail(unmapped->fragment, UINT64_MAX, -ECONNRESET, "%s (process %d) has ended",
			 wh_peer_name(shm->peer), (int)shm->pid);
}

/* Go on behind `bytes` that have been moved. Returns the first run that is not finished. */
static unsigned advance(struct wh_unmapped *unmapped, unsigned at, size_t bytes)
{
	while (at < unmapped->count && bytes >= unmapped->local[at].iov_len)
		bytes -= unmapped->local[at++].iov_len;
	if (bytes) {
		unmapped->local[at].iov_base = (char *)unmapped->local[at].iov_base + bytes;
		unmapped->local[at].iov_len -= bytes;
		unmapped->remote[at].iov_base = (char *)unmapped->remote[at].iov_base + bytes;
		unmapped->remote[at].iov_len -= bytes;
	}
	return at;
}

/* The kernel stops at the first run that it cannot copy; that one is to blame. */
static void fail_run(struct wh_shm_peer *shm, struct wh_unmapped *unmapped, unsigned at, int error)
{
	wh_fragment_fail(unmapped->fragment, unmapped->index[at], -error,
			 "%s: %zu bytes between %p of %s and %p here: %s",
			 unmapped->fragment->op == WH_READ ? "process_vm_readv" :
							     "process_vm_writev",
			 unmapped->local[at].iov_len, unmapped->remote[at].iov_base,
			 wh_peer_name(shm->peer), unmapped->local[at].iov_base, strerror(error));
}

int wh_shm_vm_move(struct wh_copier_peer *copy, struct wh_unmapped *unmapped)
{
	struct wh_shm_peer *shm = (struct wh_shm_peer *)copy;
	bool read = unmapped->fragment->op == WH_READ;
	char why[WH_REFUSAL];
	unsigned at = 0, count;
	ssize_t moved;
	int error;

	/* It was mapped when the batch was planned, and is not any more. */
	if (atomic_load(&shm->vm) != WH_VM_WORKS && wh_shm_vm_probe(shm, why))
		return -EOPNOTSUPP;

	while (at < unmapped->count) {
		if (!still_there(shm)) {
			fail_gone(shm, unmapped);
			return 0;
		}
		count = unmapped->count - at;
		moved = read ? process_vm_readv(shm->pid, unmapped->local + at, count,
						unmapped->remote + at, count, 0) :
			       process_vm_writev(shm->pid, unmapped->local + at, count,
						 unmapped->remote + at, count, 0);
		error = moved < 0 ? errno : EFAULT;
		if (!still_there(shm) || (moved < 0 && error == ESRCH)) {
			fail_gone(shm, unmapped);
			return 0;
		}
		if (moved > 0) {
			at = advance(unmapped, at, (size_t)moved);
		} else if (error == EPERM || error == EACCES || error == ENOSYS) {
			/* It has changed its credentials, say. What is planned has to be planned
			 * anew. */
			explain(shm, error);
			wh_peer_replan(shm->peer);
			return -error;
		} else {
			fail_run(shm, unmapped, at++, error);
		}
	}
	return 0;
}
