/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page-locked pages of files. A real driver keeps a page-locked page after the file has lost it,
 * and GPUs go on reading what it had. Here nothing is locked, so the streams' threads would get
 * SIGBUS: a handler gives them a page of FAKE_STALE bytes instead. On every other thread, and
 * elsewhere, SIGBUS is what it always is.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

#define PAGE ((size_t)4096)

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static _Thread_local bool in_operation;

void fake_pages_operation(bool begins)
{
	in_operation = begins;
}

static void bus_error(int number, siginfo_t *info, void *context)
{
	uint64_t address = (uintptr_t)info->si_addr & ~(uint64_t)(PAGE - 1);
	/* The operation holds fake_map_lock. */
	const struct fake_range *range = in_operation ? fake_range_find(address) : NULL;
	void *page = (void *)(uintptr_t)address;

	(void)context;
	if (!range || range->kind != FAKE_REGISTERED || !(range->flags & 8) ||
	    mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) != page) {
		signal(number, SIG_DFL); /* the same access ends the process */
		return;
	}
	memset(page, FAKE_STALE, PAGE);
}

int fake_pages_lock(uint64_t base, size_t size)
{
	struct sigaction action = { .sa_sigaction = bus_error, .sa_flags = SA_SIGINFO };
	uint64_t start = base & ~(uint64_t)(PAGE - 1);
	uint64_t end = (base + size + PAGE - 1) & ~(uint64_t)(PAGE - 1);

	/* Locking brings the pages in, and fails behind a file's end. */
	if (madvise((void *)(uintptr_t)start, end - start, MADV_POPULATE_READ))
		return FAKE_INVALID_VALUE;
	sigaction(SIGBUS, &action, NULL);
	return FAKE_OK;
}

bool fake_pages_writable(uint64_t base, size_t size)
{
	unsigned long long start, end;
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512], rights[8];
	bool writable = true;

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%llx-%llx %7s", &start, &end, rights) == 3 &&
		    start < base + size && base < end && rights[1] != 'w')
			writable = false;
	if (maps)
		fclose(maps);
	return writable;
}
