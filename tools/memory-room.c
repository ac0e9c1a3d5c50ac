/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory is left: of the machine, and of the control groups that this process is in. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

/* Read the number after `field` in a file; "": the file's first word. False: there is no such file,
 * field or number. */
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

/* The file names of one version of control groups. */
struct room_names {
	const char *base, *limit, *used, *inactive, *active;
};

/* What one group has left. Pages of files that it has read count as free. UINT64_MAX: no limit. */
static uint64_t room_of_group(const char *root, const struct room_names *names, const char *group)
{
	uint64_t limit, used, inactive = 0, active = 0, free;
	char path[768];

	snprintf(path, sizeof(path), "%s%s/%s", names->base, group, names->limit);
	if (!room_read(root, path, "", &limit)) /* or the limit is "max" */
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

/* The least room of the group named in a line of /proc/self/cgroup and of all groups above it. */
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
	/* MemAvailable leaves out free swap and the pages reserved as huge pages. */
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
