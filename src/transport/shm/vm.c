/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/vm.c: copies memory that cannot be mapped, by process_vm_readv() and
 * process_vm_writev(), where the kernel allows them
 */
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

/* Give up process_vm for this peer. The first reason is kept. */
static void vm_refuse(struct wh_shm_peer *shm, const char *why)
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
 * Is the owner still the process with the number `pid`? The kernel may give the number to another
 * process once the owner has been waited for, but a pidfd stays with its process: if that still
 * runs after a call, the call has used the right process. After an exec() the pidfd is still valid,
 * but loop 0's thread is gone, and the alive page shows that.
 */
static bool vm_owner_lives(const struct wh_shm_peer *shm)
{
	struct pollfd look = { .fd = shm->pidfd, .events = POLLIN };

	return wh_shm_owner_lives(shm) && poll(&look, 1, 0) == 0;
}

/* The kernel keeps the pidfd and the number of the process that listens. Without SO_PEERPIDFD only
 * the number is known, and pidfd_open() might find another process that has it now. Then
 * vm_owner_lives(), called after the handshake, says whether it is the owner: the owner has
 * answered since, so it still had its number when the pidfd was opened. */
void wh_shm_vm_meet(struct wh_shm_peer *shm)
{
	socklen_t length = sizeof(struct ucred);
	char why[WH_REFUSAL];
	struct ucred user = { .pid = 0 };

	if (getsockopt(shm->fd, SOL_SOCKET, SO_PEERCRED, &user, &length) || user.pid < 0)
		user.pid = 0;
	length = sizeof(shm->pidfd);
	if (getsockopt(shm->fd, SOL_SOCKET, SO_PEERPIDFD, &shm->pidfd, &length))
		shm->pidfd = user.pid ? (int)syscall(SYS_pidfd_open, user.pid, 0) : -1;
	shm->pid = user.pid;
	if (!wh_engine_config(wh_peer_engine(shm->peer))->number[WH_SETTING_CMA]) {
		vm_refuse(shm, "process_vm is switched off by the setting cma");
	} else if (!user.pid) {
		vm_refuse(shm, "process_vm: it is in another PID namespace: use wh_memory_alloc() "
			       "there, or run both in one PID namespace");
	} else if (shm->pidfd < 0) {
		snprintf(why, sizeof(why), "process_vm: no pidfd of process %d: %s", (int)user.pid,
			 strerror(errno));
		vm_refuse(shm, why);
	}
}

/* ---- permission ---------------------------------------------------------------------------- */

static int vm_yama_scope(void)
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

/* Give up process_vm and name the most likely reason. */
static void vm_explain(struct wh_shm_peer *shm, int error)
{
	char why[WH_REFUSAL];
	int scope = error == EPERM ? vm_yama_scope() : 0;

	if (error == ENOSYS)
		snprintf(why, sizeof(why),
			 "process_vm: the kernel lacks it, or a seccomp filter blocks it");
	else if (scope)
		snprintf(why, sizeof(why),
			 "process_vm on process %d: %s (Yama: kernel.yama.ptrace_scope is %d; "
			 "set 0 or add CAP_SYS_PTRACE)",
			 (int)shm->pid, strerror(error), scope);
	else if (error == EPERM)
		snprintf(why, sizeof(why),
			 "process_vm on process %d: %s (another user's, not dumpable, or seccomp)",
			 (int)shm->pid, strerror(error));
	else
		snprintf(why, sizeof(why), "process_vm on process %d: %s", (int)shm->pid,
			 strerror(error));
	vm_refuse(shm, why);
}

/* Reads one byte at an address that no process can map. The kernel checks the permission first, so
 * EFAULT means that it would be granted. None of the owner's memory is read. */
int wh_shm_vm_probe(struct wh_shm_peer *shm, char why[WH_REFUSAL])
{
	char byte;
	struct iovec here = { &byte, 1 }, there = { (void *)(UINTPTR_MAX - 4095), 1 };

	if (atomic_load(&shm->vm) == WH_VM_UNKNOWN) {
		if (process_vm_readv(shm->pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT)
			atomic_store(&shm->vm, WH_VM_WORKS);
		else
			vm_explain(shm, errno);
		if (!vm_owner_lives(shm)) {
			snprintf(why, WH_REFUSAL, "process %d %s", (int)shm->pid,
				 wh_shm_owner_fate(shm));
			return -ECONNRESET;
		}
	}
	if (atomic_load(&shm->vm) == WH_VM_WORKS)
		return 0;
	wh_shm_vm_refusal(&shm->copy, why);
	return -EOPNOTSUPP;
}

/* ---- moving -------------------------------------------------------------------------------- */

static void vm_fail_ended(struct wh_shm_peer *shm, struct wh_unmapped *unmapped)
{
	wh_fragment_fail(unmapped->fragment, UINT64_MAX, -ECONNRESET, "%s (process %d) %s",
			 wh_peer_name(shm->peer), (int)shm->pid, wh_shm_owner_fate(shm));
}

/* Skip `bytes` that have been moved, from extent `at` on. Returns the first unfinished extent. */
static unsigned vm_advance(struct wh_unmapped *unmapped, unsigned at, size_t bytes)
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

/* The kernel stops at the first extent that it cannot copy. */
static void vm_fail_extent(struct wh_shm_peer *shm, struct wh_unmapped *unmapped, unsigned at,
			   int error)
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

	/* Untested so far if the region was mapped when the batch was planned. */
	if (atomic_load(&shm->vm) != WH_VM_WORKS && wh_shm_vm_probe(shm, why))
		return -EOPNOTSUPP;

	while (at < unmapped->count) {
		if (!vm_owner_lives(shm)) {
			vm_fail_ended(shm, unmapped);
			return 0;
		}
		count = unmapped->count - at;
		moved = read ? process_vm_readv(shm->pid, unmapped->local + at, count,
						unmapped->remote + at, count, 0) :
			       process_vm_writev(shm->pid, unmapped->local + at, count,
						 unmapped->remote + at, count, 0);
		error = moved < 0 ? errno : EFAULT;
		if (!vm_owner_lives(shm) || (moved < 0 && error == ESRCH)) {
			vm_fail_ended(shm, unmapped);
			return 0;
		}
		if (moved > 0) {
			at = vm_advance(unmapped, at, (size_t)moved);
		} else if (error == EPERM || error == EACCES || error == ENOSYS) {
			/* The owner may have changed its credentials. Plan batches anew. */
			vm_explain(shm, error);
			wh_peer_replan(shm->peer);
			return -error;
		} else {
			vm_fail_extent(shm, unmapped, at++, error);
		}
	}
	return 0;
}
