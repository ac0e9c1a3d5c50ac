/* SPDX-License-Identifier: Apache-2.0 */
/* How many CPUs this process may use: affinity, and the CPU quotas of control groups. */
#include "util/cpus.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PATH 1024
#define GROUPS 4096 /* bytes of /proc/self/cgroup */
#define THREADS_USUAL 16 /* from as many CPUs on, with no more connections than that */
#define THREADS_SPINNING 4

/* ---- control groups ------------------------------------------------------------------------- */

/* Read a small file as text. False: it is not there. */
static bool file_read(const char *folder, const char *name, char *out, size_t size)
{
	char path[2 * PATH];
	ssize_t got = -1;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		got = read(fd, out, size - 1);
		close(fd);
	}
	out[got > 0 ? got : 0] = '\0';
	return got > 0;
}

/* The CPUs that one group's quota pays for, rounded up; UINT_MAX: it has none. */
static unsigned group_cpus(const char *folder, bool version_1)
{
	long long quota = 0, period = 0;
	char text[64];
	size_t length;

	if (!file_read(folder, version_1 ? "cpu.cfs_quota_us" : "cpu.max", text, sizeof(text)))
		return UINT_MAX;
	length = strlen(text); /* with a newline: then it reads like the one line of version 2 */
	if (version_1)
		file_read(folder, "cpu.cfs_period_us", text + length, sizeof(text) - length);
	/* "max 100000", or -1 in version 1: no quota. */
	if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0 ||
	    quota / period >= INT_MAX)
		return UINT_MAX;
	return (unsigned)(quota / period + (quota % period != 0));
}

/* The least that a group and those above it allow. In a container the path may be the host's, and
 * only `top` exists, which then is the container's own group. */
static unsigned groups_cpus(const char *root, const char *top, const char *path, bool version_1)
{
	unsigned least = UINT_MAX, cpus;
	char folder[PATH];
	int length = snprintf(folder, sizeof(folder), "%s%s", root, top);
	size_t start = (size_t)length;

	if (length < 0 || start + strcspn(path, "\n") >= sizeof(folder))
		return UINT_MAX;
	snprintf(folder + start, sizeof(folder) - start, "%.*s", (int)strcspn(path, "\n"), path);
	for (;;) {
		cpus = group_cpus(folder, version_1);
		least = cpus < least ? cpus : least;
		if (strlen(folder) <= start)
			return least;
		*strrchr(folder, '/') = '\0';
	}
}

/* Is "cpu" among the comma-separated controllers of [list, end)? */
static bool controllers_have_cpu(const char *list, const char *end)
{
	for (; list < end; list += strcspn(list, ",:") + 1)
		if (!strncmp(list, "cpu", 3) && (list[3] == ',' || list[3] == ':'))
			return true;
	return false;
}

unsigned wh_cpus_under(const char *root, unsigned count)
{
	char text[GROUPS];

	if (!file_read(root, "proc/self/cgroup", text, sizeof(text)))
		return count;
	/* Lines are NUMBER:CONTROLLERS:/PATH, without controllers in version 2. */
	for (const char *line = text; line; line = strchr(line, '\n')) {
		const char *list, *path;
		unsigned cpus = UINT_MAX;

		line += *line == '\n';
		list = strchr(line, ':');
		path = list ? strchr(list + 1, ':') : NULL;
		if (!path || path[1] != '/')
			break;
		if (path == list + 1)
			cpus = groups_cpus(root, "/sys/fs/cgroup", path + 1, false);
		else if (controllers_have_cpu(list + 1, path))
			cpus = groups_cpus(root, "/sys/fs/cgroup/cpu", path + 1, true);
		count = cpus < count ? cpus : count;
	}
	return count;
}

/* ---- counting ------------------------------------------------------------------------------- */

unsigned wh_cpus(void)
{
	long count = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t may;

	if (!sched_getaffinity(0, sizeof(may), &may))
		count = CPU_COUNT(&may);
	return wh_cpus_under("", count < 1 ? 1 : (unsigned)count);
}

unsigned wh_cpus_threads(unsigned cpus, unsigned connections, bool spin)
{
	/* One thread cannot keep up with several connections, even on two CPUs, nor four threads
	 * with 16 connections. An owner does not know how many connections will come, and idle
	 * threads cost little: on 16 CPUs 16 connections wrote at 0.64 and 0.70 of raw streams with
	 * 16 threads on both sides, at 0.59 and 0.52 where the owner had 8. */
	unsigned threads = cpus < 2 ? 1 : cpus < 4 ? 2 : cpus < 16 ? 4 : THREADS_USUAL;
	unsigned all = connections < cpus ? connections : cpus;

	if (threads < all)
		threads = all;
	/* Spinning ones keep their CPUs. */
	return spin && threads > THREADS_SPINNING ? THREADS_SPINNING : threads;
}
