/* SPDX-License-Identifier: Apache-2.0 */
/* util-cpus.c: how many CPUs a process may use, and how many progress threads they get */
#include "unit.h"
#include "util/cpus.h"

#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a tree of files instead of /proc and /sys ---------------------------------------------- */

static int tree_setup(void **state)
{
	char *root = strdup("/tmp/wherry-cpus-XXXXXX");

	*state = root;
	return root && mkdtemp(root) ? 0 : -1;
}

static int entry_remove(const char *path, const struct stat *status, int type, struct FTW *walk)
{
	(void)status;
	(void)type;
	(void)walk;
	return remove(path);
}

static int tree_teardown(void **state)
{
	int rc = nftw(*state, entry_remove, 8, FTW_DEPTH | FTW_PHYS);

	free(*state);
	return rc;
}

/* Write a file below the root, and the folders above it. */
static void put(const char *root, const char *name, const char *text)
{
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		assert_true(!mkdir(path, 0700) || errno == EEXIST);
		*slash = '/';
	}
	file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* ---- quotas --------------------------------------------------------------------------------- */

static void under__nothing(void **state)
{
	assert_int_equal(wh_cpus_under(*state, 32), 32);
	put(*state, "proc/self/cgroup", "0::/\n");
	assert_int_equal(wh_cpus_under(*state, 32), 32);
}

static void under__version_2(void **state)
{
	put(*state, "proc/self/cgroup", "0::/pods/one\n");
	put(*state, "sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
	assert_int_equal(wh_cpus_under(*state, 32), 32);
	put(*state, "sys/fs/cgroup/pods/one/cpu.max", "800000 100000\n");
	assert_int_equal(wh_cpus_under(*state, 32), 8);
	assert_int_equal(wh_cpus_under(*state, 4), 4);
	/* A part of a CPU counts as one. */
	put(*state, "sys/fs/cgroup/pods/one/cpu.max", "250000 100000\n");
	assert_int_equal(wh_cpus_under(*state, 32), 3);
	put(*state, "sys/fs/cgroup/pods/one/cpu.max", "1000 100000\n");
	assert_int_equal(wh_cpus_under(*state, 32), 1);
	/* The group above bounds it, too. */
	put(*state, "sys/fs/cgroup/pods/one/cpu.max", "800000 100000\n");
	put(*state, "sys/fs/cgroup/pods/cpu.max", "200000 100000\n");
	assert_int_equal(wh_cpus_under(*state, 32), 2);
}

static void under__version_1(void **state)
{
	/* "cpuset" and "cpuacct" are other controllers; version 2 has no quota beside it. */
	put(*state, "proc/self/cgroup",
	    "4:cpuset:/pod\n3:memory:/\n2:cpuacct,cpu:/pod\n1:name=systemd:/\n0::/\n");
	put(*state, "sys/fs/cgroup/cpuset/pod/cpu.cfs_quota_us", "100000\n");
	put(*state, "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "-1\n");
	put(*state, "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000\n");
	assert_int_equal(wh_cpus_under(*state, 32), 32);
	put(*state, "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "1600000\n");
	assert_int_equal(wh_cpus_under(*state, 32), 16);
	/* In a container its own group is the topmost one, whatever the path says. */
	put(*state, "proc/self/cgroup", "2:cpu,cpuacct:/docker/0123\n");
	put(*state, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
	put(*state, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "25000\n");
	assert_int_equal(wh_cpus_under(*state, 32), 2);
}

static void under__garbage(void **state)
{
	static const char *const groups[] = { "",    "\n",       ":",     "::",      "0:",
					      "0::", "0::pod\n", "x:cpu", "1:cpu:\n" };
	static const char *const quotas[] = { "\n",
					      "max\n",
					      "0 100000\n",
					      "-5 100000\n",
					      "100000 0\n",
					      "100000\n",
					      "9223372036854775807 1\n" };
	char path[3000];

	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		put(*state, "proc/self/cgroup", groups[i]);
		assert_int_equal(wh_cpus_under(*state, 32), 32);
	}
	put(*state, "proc/self/cgroup", "0::/pod\n");
	for (size_t i = 0; i < sizeof(quotas) / sizeof(quotas[0]); i++) {
		put(*state, "sys/fs/cgroup/pod/cpu.max", quotas[i]);
		assert_int_equal(wh_cpus_under(*state, 32), 32);
	}
	memset(path, 'a', sizeof(path) - 1);
	memcpy(path, "0::/", 4);
	path[sizeof(path) - 1] = '\0';
	put(*state, "proc/self/cgroup", path);
	assert_int_equal(wh_cpus_under(*state, 32), 32);
}

static void cpus__affinity(void **state)
{
	cpu_set_t before, one;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_in_range(wh_cpus(), 1, CPU_COUNT(&before));
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
		if (CPU_ISSET(cpu, &before))
			CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(wh_cpus(), 1);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

/* ---- threads -------------------------------------------------------------------------------- */

static void threads__default(void **state)
{
	static const struct {
		unsigned cpus, connections, threads, spinning;
	} cases[] = {
		{ 1, 4, 1, 1 },     { 1, 64, 1, 1 },    { 2, 4, 2, 2 },    { 2, 16, 2, 2 },
		{ 4, 4, 4, 4 },     { 4, 16, 4, 4 },    { 8, 4, 4, 4 },    { 8, 6, 6, 4 },
		{ 8, 16, 8, 4 },    { 16, 1, 16, 4 },   { 16, 4, 16, 4 },  { 16, 12, 16, 4 },
		{ 16, 16, 16, 4 },  { 24, 4, 16, 4 },   { 32, 4, 16, 4 },  { 32, 16, 16, 4 },
		{ 32, 24, 24, 4 },  { 32, 64, 32, 4 },  { 128, 4, 16, 4 }, { 128, 16, 16, 4 },
		{ 128, 40, 40, 4 }, { 128, 64, 64, 4 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(wh_cpus_threads(cases[i].cpus, cases[i].connections, false),
				 cases[i].threads);
		assert_int_equal(wh_cpus_threads(cases[i].cpus, cases[i].connections, true),
				 cases[i].spinning);
	}
}

/* 128 CPUs are there, and a quota of four of them: threads for four. */
static void threads__quota(void **state)
{
	put(*state, "proc/self/cgroup", "0::/pod\n");
	put(*state, "sys/fs/cgroup/pod/cpu.max", "400000 100000\n");
	assert_int_equal(wh_cpus_threads(wh_cpus_under(*state, 128), 16, false), 4);
	put(*state, "sys/fs/cgroup/pod/cpu.max", "3200000 100000\n");
	assert_int_equal(wh_cpus_threads(wh_cpus_under(*state, 128), 16, false), 16);
}

#define IN_A_TREE(test) cmocka_unit_test_setup_teardown(test, tree_setup, tree_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_A_TREE(under__nothing),        IN_A_TREE(under__version_2),
		IN_A_TREE(under__version_1),      IN_A_TREE(under__garbage),
		cmocka_unit_test(cpus__affinity), cmocka_unit_test(threads__default),
		IN_A_TREE(threads__quota),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
