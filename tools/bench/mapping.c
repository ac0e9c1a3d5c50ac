/* SPDX-License-Identifier: Apache-2.0 */
/* Find where another process's memory is mapped in this one. */
#include <inttypes.h>
#include <string.h>

#include "bench/bench.h"

/* A line of /proc/PID/maps that has a file. */
struct mapping {
	uint64_t start, end, offset, inode;
	unsigned major, minor;
	char access[5];
};

static bool next_mapping(FILE *file, struct mapping *mapping)
{
	char line[512];

	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64,
			   &mapping->start, &mapping->end, mapping->access, &mapping->offset,
			   &mapping->major, &mapping->minor, &mapping->inode) == 7 &&
		    mapping->inode)
			return true;
	}
	return false;
}

static bool mapping_has(const struct mapping *mapping, uint64_t start, uint64_t length)
{
	return start >= mapping->start && start < mapping->end && length <= mapping->end - start;
}

/* The address in our mapping of the bytes at `address` in theirs; 0: our mapping does not have
 * them. */
static uint64_t mapping_translate(const struct mapping *theirs, const struct mapping *ours,
				  uint64_t address, uint64_t length)
{
	uint64_t at = address - theirs->start + theirs->offset - ours->offset + ours->start;

	if (ours->inode != theirs->inode || ours->major != theirs->major ||
	    ours->minor != theirs->minor || strncmp(ours->access, "rw", 2) != 0)
		return 0;
	return mapping_has(ours, at, length) ? at : 0;
}

void *bench_find_mapping(pid_t pid, uint64_t address, uint64_t length)
{
	struct mapping theirs, ours;
	bool found = false;
	uint64_t at = 0;
	char name[64];
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%d/maps", (int)pid);
	file = fopen(name, "re");
	while (file && !found && next_mapping(file, &theirs))
		found = mapping_has(&theirs, address, length);
	if (file)
		fclose(file);
	file = found ? fopen("/proc/self/maps", "re") : NULL;
	while (file && !at && next_mapping(file, &ours))
		at = mapping_translate(&theirs, &ours, address, length);
	if (file)
		fclose(file);
	return (void *)(uintptr_t)at;
}
