/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another machine, for programs that are started with this library in LD_PRELOAD: as many CPUs as
 * FAKE_CPUS says, and a last-level cache of FAKE_CACHE bytes, as the kernel writes it ("300M").
 * The CPUs that there are run them all.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static void *next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

static int fake_cpus(void)
{
	const char *text = getenv("FAKE_CPUS");

	return text ? atoi(text) : 0;
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

long sysconf(int name)
{
	long (*real)(int name) = (long (*)(int))next("sysconf");
	int cpus = fake_cpus();

	return cpus && (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) ? cpus :
											real(name);
}

int get_nprocs(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
	int (*real)(pid_t pid, size_t size, cpu_set_t * set) =
		(int (*)(pid_t, size_t, cpu_set_t *))next("sched_getaffinity");
	int rc = real(pid, size, set), real_cpus = rc ? 0 : CPU_COUNT_S(size, set);

	/* Who has chosen one CPU keeps it. */
	if (real_cpus < 2)
		return rc;
	for (int i = 0; i < fake_cpus(); i++)
		CPU_SET_S((size_t)i, size, set);
	return rc;
}

/* A thread may be bound to a CPU that there is not. */
int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
	int (*real)(pid_t pid, size_t size, const cpu_set_t *set) =
		(int (*)(pid_t, size_t, const cpu_set_t *))next("sched_setaffinity");
	int rc = real(pid, size, set);

	return rc && fake_cpus() ? 0 : rc;
}

/* ---- the cache ------------------------------------------------------------------------------- */

FILE *fopen(const char *path, const char *mode)
{
	FILE *(*real)(const char *path, const char *mode) =
		(FILE * (*)(const char *, const char *)) next("fopen");
	const char *cache = getenv("FAKE_CACHE"), *size = strrchr(path, '/');

	if (!cache || strncmp(path, "/sys/devices/system/cpu/cpu0/cache/", 35) != 0 ||
	    strcmp(size, "/size") != 0)
		return real(path, mode);
	return fmemopen((char *)cache, strlen(cache), "r");
}
