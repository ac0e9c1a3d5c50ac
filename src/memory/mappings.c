/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual memory areas (VMAs) of this process, as the kernel reports them.
 *
 * A driver reserves addresses for a GPU by mapping them without any access right, and CUDA does not
 * know them while no memory is mapped there. The kernel reports them without touching a page,
 * unlike a system call that tries to read a byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "memory/memory.h"

#define MAPS "/proc/self/maps"
#define SIGNALS 8 /* bytes of a set of signals, as the kernel has it */

/* struct procmap_query, for PROCMAP_QUERY of Linux 6.11. */
struct maps_query {
	uint64_t size, flags, address;
	uint64_t start, end, vma_flags, page_size, offset, inode;
	uint32_t major, minor, name_size, build_id_size;
	uint64_t name, build_id;
};

_Static_assert(sizeof(struct maps_query) == 104, "struct procmap_query");

enum { READABLE = 1, AT_OR_ABOVE = 16 }; /* PROCMAP_QUERY_VMA_READABLE, _COVERING_OR_NEXT_VMA */

#define MAPS_QUERY _IOWR('f', 17, struct maps_query)

/* Walk by PROCMAP_QUERY. -ENOSYS: the kernel does not have it. */
static int vmas_walk_query(int fd, uint64_t start, uint64_t end,
			   int (*each)(void *arg, const struct wh_vma *vma), void *arg)
{
	uint64_t small = (uint64_t)sysconf(_SC_PAGESIZE);
	int rc = 0;

	while (!rc && start < end) {
		struct maps_query query = { .size = sizeof(query),
					    .flags = AT_OR_ABOVE,
					    .address = start };
		struct wh_vma vma;

		if (ioctl(fd, MAPS_QUERY, &query))
			return errno == ENOENT ? 0 : -ENOSYS;
		if (query.start >= end)
			return 0;
		vma = (struct wh_vma){
			.start = query.start,
			.end = query.end,
			.readable = query.vma_flags & READABLE,
			.page_size = query.page_size,
			.huge = query.page_size > small,
		};
		rc = each(arg, &vma);
		start = query.end;
	}
	return rc;
}

int wh_vmas_walk_text(uint64_t start, uint64_t end,
		      int (*each)(void *arg, const struct wh_vma *vma), void *arg)
{
	FILE *file = fopen(MAPS, "re");
	char *line = NULL;
	size_t room = 0;
	int rc = 0;

	if (!file)
		return -ENOSYS;
	while (!rc && getline(&line, &room, file) > 0) {
		struct wh_vma vma = { 0 };
		char right = '-';

		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %c", &vma.start, &vma.end, &right) != 3) {
			rc = -ENOSYS;
			break;
		}
		if (vma.end <= start)
			continue;
		if (vma.start >= end)
			break;
		vma.readable = right == 'r';
		vma.huge = strstr(line, "/anon_hugepage") != NULL;
		vma.page_size = vma.huge ? 0 : (uint64_t)sysconf(_SC_PAGESIZE);
		rc = each(arg, &vma);
	}
	free(line);
	fclose(file);
	return rc;
}

int wh_vmas_walk(uint64_t start, uint64_t end, int (*each)(void *arg, const struct wh_vma *vma),
		 void *arg)
{
	int fd = open(MAPS, O_RDONLY | O_CLOEXEC), rc;

	if (fd < 0)
		return -ENOSYS;
	rc = vmas_walk_query(fd, start, end, each, arg);
	close(fd);
	/* A kernel before 6.11 fails at the first query. */
	return rc == -ENOSYS ? wh_vmas_walk_text(start, end, each, arg) : rc;
}

/* msync(MS_ASYNC) does not write anything, but fails with ENOMEM if a page is not mapped. */
bool wh_memory_mapped(uint64_t start, uint64_t length)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = start / page * page;

	return !msync((void *)(uintptr_t)first, start - first + length, MS_ASYNC) ||
	       errno != ENOMEM;
}

/* One's own memory, always allowed but for a seccomp filter. The application's memory is `local`,
 * which the kernel copies as for any other call; the library's own is `remote`, which it pins.
 * Returns the bytes up to the first that cannot be accessed, or that the call is refused. */
static ssize_t memory_move(pid_t self, struct iovec *app, int count, struct iovec own, bool writes)
{
	ssize_t moved, all = 0;

	while (own.iov_len) {
		moved = writes ? process_vm_readv(self, app, (unsigned long)count, &own, 1, 0) :
				 process_vm_writev(self, app, (unsigned long)count, &own, 1, 0);
		/* The caller may go on by itself only if nothing has moved. */
		if (moved < 0 && errno != EFAULT && !all)
			return -errno;
		/* It may end some bytes before those at fault: only then is there another call. */
		if (moved <= 0)
			break;
		all += moved;
		own.iov_base = (char *)own.iov_base + moved;
		own.iov_len -= (size_t)moved;
		for (; count && (size_t)moved >= app->iov_len; app++, count--)
			moved -= (ssize_t)app->iov_len;
		if (count) {
			app->iov_base = (char *)app->iov_base + moved;
			app->iov_len -= (size_t)moved;
		}
	}
	return all;
}

/* rt_sigprocmask() reads the signals before it refuses to know what to do with them (EINVAL).
 * Threads need it, so that no seccomp filter forbids it. */
bool wh_memory_readable(uint64_t start, uint64_t length)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	for (uint64_t at = start / page * page; at < start + length; at += page)
		if (syscall(SYS_rt_sigprocmask, -1, at, NULL, SIGNALS) && errno == EFAULT)
			return false;
	return true;
}

size_t wh_memory_put(pid_t self, struct iovec *to, int count, const void *from, size_t length)
{
	ssize_t moved = memory_move(self, to, count,
				    (struct iovec){ (void *)(uintptr_t)from, length }, true);
	size_t put = 0, part;

	if (moved >= 0)
		return (size_t)moved;
	for (; put < length; put += part, to++) {
		part = to->iov_len < length - put ? to->iov_len : length - put;
		if (!wh_memory_mapped((uint64_t)(uintptr_t)to->iov_base, part))
			break;
		memcpy(to->iov_base, (const char *)from + put, part);
	}
	return put;
}

size_t wh_memory_take(pid_t self, void *to, struct iovec *from, int count, size_t length)
{
	ssize_t moved = memory_move(self, from, count, (struct iovec){ to, length }, false);
	size_t taken = 0, part;

	if (moved >= 0)
		return (size_t)moved;
	for (; taken < length; taken += part, from++) {
		part = from->iov_len < length - taken ? from->iov_len : length - taken;
		if (!wh_memory_readable((uint64_t)(uintptr_t)from->iov_base, part))
			break;
		memcpy((char *)to + taken, from->iov_base, part);
	}
	return taken;
}

/* Stop at the first gap. */
static int vma_is_adjacent(void *arg, const struct wh_vma *vma)
{
	uint64_t *reached = arg;

	if (vma->start > *reached)
		return 1;
	*reached = vma->end;
	return 0;
}

bool wh_vmas_mapped(uint64_t start, uint64_t length, uint64_t *bad)
{
	if (wh_memory_mapped(start, length))
		return true;
	*bad = start;
	wh_vmas_walk(start, start + length, vma_is_adjacent, bad);
	return false;
}

/* Stop at the first gap or VMA that is not readable. */
static int vma_is_readable(void *arg, const struct wh_vma *vma)
{
	uint64_t *reached = arg;

	if (vma->start > *reached || !vma->readable)
		return -EFAULT;
	*reached = vma->end;
	return 0;
}

int wh_vmas_readable(uint64_t start, uint64_t length, uint64_t *bad)
{
	uint64_t reached = start;
	int rc = wh_vmas_walk(start, start + length, vma_is_readable, &reached);

	if (rc == -ENOSYS)
		return 0;
	*bad = reached;
	return reached < start + length ? -EFAULT : 0;
}
