/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address space of this process, as the kernel tells it.
 *
 * Addresses that a driver has set aside for a GPU are, for the CPU, mapped without any right, and
 * CUDA itself says nothing of them while no memory lies behind them. Asking the kernel finds them
 * without touching a page, which reading a byte by way of a system call would do.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memory.h"

#define MAPS "/proc/self/maps"

/* PROCMAP_QUERY of Linux 6.11. */
struct maps_question {
	uint64_t size, flags, address;
	uint64_t start, end, vma_flags, page_size, offset, inode;
	uint32_t major, minor, name_size, build_id_size;
	uint64_t name, build_id;
};

_Static_assert(sizeof(struct maps_question) == 104, "struct procmap_query");

enum { READABLE = 1, AT_OR_ABOVE = 16 };

#define MAPS_QUERY _IOWR('f', 17, struct maps_question)

static int walk_questions(int fd, uint64_t start, uint64_t end,
			  int (*each)(void *arg, const struct wh_vma *vma), void *arg)
{
	uint64_t small = (uint64_t)sysconf(_SC_PAGESIZE);
	int rc = 0;

	while (!rc && start < end) {
		struct maps_question question = { .size = sizeof(question),
						  .flags = AT_OR_ABOVE,
						  .address = start };
		struct wh_vma vma;

		if (ioctl(fd, MAPS_QUERY, &question))
			return errno == ENOENT ? 0 : -ENOSYS;
		if (question.start >= end)
			return 0;
		vma = (struct wh_vma){
			.start = question.start,
			.end = question.end,
			.readable = question.vma_flags & READABLE,
			.page_size = question.page_size,
			.huge = question.page_size > small,
		};
		rc = each(arg, &vma);
		start = question.end;
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
	rc = walk_questions(fd, start, end, each, arg);
	close(fd);
	/* An older kernel says so at the first question. */
	return rc == -ENOSYS ? wh_vmas_walk_text(start, end, each, arg) : rc;
}

/* MS_ASYNC does nothing, for pages are written back anyway, but looks whether all of them are
 * mapped. */
bool wh_memory_mapped(uint64_t start, uint64_t length)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = start / page * page;

	return !msync((void *)(uintptr_t)first, start - first + length, MS_ASYNC) ||
	       errno != ENOMEM;
}

static int cover_any(void *arg, const struct wh_vma *vma)
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
	wh_vmas_walk(start, start + length, cover_any, bad);
	return false;
}

static int cover(void *arg, const struct wh_vma *vma)
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
	int rc = wh_vmas_walk(start, start + length, cover, &reached);

	if (rc == -ENOSYS)
		return 0;
	*bad = reached;
	return reached < start + length ? -EFAULT : 0;
}
