/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there still is: of the machine, and of the control groups that this process is
 * in. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

/* The number behind `field` in a file, or, for "", its first word. False: no such file, field or
 * number. */
static bool room_read(const char *root, const char *path, const char *field, uint64_t *out)
{
	size_t length = strlen(field);
	char name[1024], line[256], *end;
	bool found = false;
	FILE *file;

	if (snprintf(name, sizeof(name), "%s%s", root, path) >= (int)sizeof(name))
		return false;
	file = fopen(name, "re");
	while (file && !found && fgets(line, sizeof(line), file)) {
		if (strncmp(line, field, length) != 0)
			continue;
		*out = strtoull(line + length, &end, 10);
		found = end > line + length;
	}
	if (file)
		fclose(file);
	return found;
}

/* The names that a version of control groups has. */
struct room_names {
	const char *base, *limit, *used, *inactive, *active;
};

/* What one group leaves: the pages of files that it has read can be had back. UINT64_MAX: it has no
 * limit. */
static uint64_t room_of_group(const char *root, const struct room_names *names, const char *group)
{
	uint64_t limit, used, inactive = 0, active = 0, free;
	char path[768];

	snprintf(path, sizeof(path), "%s%s/%s", names->base, group, names->limit);
	if (!room_read(root, path, "", &limit)) /* or it is "max" */
		return UINT64_MAX;
	snprintf(path, sizeof(path), "%s%s/%s", names->base, group, names->used);
	if (!room_read(root, path, "", &used))
		return UINT64_MAX;
	snprintf(path, sizeof(path), "%s%s/memory.stat", names->base, group);
	room_read(root, path, names->inactive, &inactive);
	room_read(root, path, names->active, &active);
	used = used > inactive + active ? used - inactive - active : 0;
	free = limit > used ? limit - used : 0;
	return free;
}

/* Of a line of /proc/self/cgroup: its group, and all above. */
static uint64_t room_of_groups(const char *root, char *line)
{
	static const struct room_names two = { "/sys/fs/cgroup", "memory.max", "memory.current",
					       "inactive_file ", "active_file " },
				       one = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
					       "memory.usage_in_bytes", "total_inactive_file ",
					       "total_active_file " };
	char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : NULL, *slash;
	const struct room_names *names;
	uint64_t least = UINT64_MAX, room;

	if (!group)
		return least;
	*group++ = '\0';
	group[strcspn(group, "\n")] = '\0';
	if (strcmp(kinds, ":") == 0)
		names = &two;
	else if (strstr(kinds, "memory"))
		names = &one;
	else
		return least;
	for (;;) {
		room = room_of_group(root, names, strcmp(group, "/") == 0 ? "" : group);
		least = room < least ? room : least;
		slash = strrchr(group, '/');
		if (!slash || !*group)
			return least;
		*slash = '\0';
	}
}

uint64_t memory_room(const char *root, bool locked)
{
	uint64_t room = UINT64_MAX, kib, pages, size;
	char name[1024], line[512];
	FILE *file;

	if (room_read(root, "/proc/meminfo", "MemAvailable:", &kib))
		room = kib << 10;
	snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
	file = fopen(name, "re");
	while (file && fgets(line, sizeof(line), file)) {
		uint64_t group = room_of_groups(root, line);

		room = group < room ? group : room;
	}
	if (file)
		fclose(file);
	if (room == UINT64_MAX)
		return room;
	/* What is swapped out, and what has been put aside for huge pages, is not in MemAvailable.
	 */
	if (!locked && room_read(root, "/proc/meminfo", "SwapFree:", &kib))
		room += kib << 10;
	if (room_read(root, "/proc/meminfo", "HugePages_Free:", &pages) &&
	    room_read(root, "/proc/meminfo", "Hugepagesize:", &size))
		room += pages * (size << 10);
	return room;
}

static void room_text(uint64_t bytes, char *out, size_t size)
{
	static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 1024 && unit < sizeof(units) / sizeof(units[0]) - 1; unit++)
		value /= 1024;
	snprintf(out, size, "%.*f %s", unit && value < 100 ? 1 : 0, value, units[unit]);
}

bool memory_fits(const char *root, uint64_t bytes, bool locked, char text[MEMORY_TEXT])
{
	uint64_t room = memory_room(root, locked);
	char wanted[32], there[32];

	if (bytes <= room)
		return true;
	room_text(bytes, wanted, sizeof(wanted));
	room_text(room, there, sizeof(there));
	snprintf(text, MEMORY_TEXT, "that takes %s of memory, and there are %s", wanted, there);
	return false;
}
