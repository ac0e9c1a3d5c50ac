/* SPDX-License-Identifier: Apache-2.0 */
/* How memories are named on the command line. */
#include "../../tools/memory-room.c"
#include "../../tools/memory.c"

#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct {
	const char *text;
	uint32_t kind;
	const char *location, *name, *rest;
} good[] = {
	{ "host", WH_MEMORY_SHARED, "", "host", "" },
	{ "host:1GiB", WH_MEMORY_SHARED, "", "host", "1GiB" },
	{ "host:1GiB:name", WH_MEMORY_SHARED, "", "host", "1GiB:name" },
	{ "shared:1GiB", WH_MEMORY_SHARED, "", "host", "1GiB" },
	{ "pageable:4096:x", WH_MEMORY_PAGEABLE, "", "pageable", "4096:x" },
	{ "huge", WH_MEMORY_HUGE, "", "huge", "" },
	{ "mapped:1", WH_MEMORY_MAPPED, "", "mapped", "1" },
	{ "pinned:numa:1", WH_MEMORY_PINNED, "numa:1", "pinned:numa:1", "" },
	{ "host:numa:12:1MiB", WH_MEMORY_SHARED, "numa:12", "host:numa:12", "1MiB" },
	{ "pinned:cuda:0:2MiB", WH_MEMORY_PINNED, "cuda:0", "pinned:cuda:0", "2MiB" },
	{ "cuda:0", WH_MEMORY_DEVICE, "cuda:0", "cuda:0", "" },
	{ "cuda:0:8GiB", WH_MEMORY_DEVICE, "cuda:0", "cuda:0", "8GiB" },
	{ "device:cuda:0:8GiB:kv", WH_MEMORY_DEVICE, "cuda:0", "cuda:0", "8GiB:kv" },
	{ "cuda:GPU-12ab:8GiB", WH_MEMORY_DEVICE, "cuda:GPU-12ab", "cuda:GPU-12ab", "8GiB" },
	{ "vmm:cuda:1:4GiB", WH_MEMORY_VMM, "cuda:1", "vmm:cuda:1", "4GiB" },
	{ "managed:cuda:0:1GiB", WH_MEMORY_MANAGED, "cuda:0", "managed:cuda:0", "1GiB" },
	{ "pool:cuda:3", WH_MEMORY_POOL, "cuda:3", "pool:cuda:3", "" },
	{ "cuda:0000:65:00.0", WH_MEMORY_DEVICE, "cuda:0000:65:00.0", "cuda:0000:65:00.0", "" },
	{ "cuda:0000:65:00.0:8GiB:a", WH_MEMORY_DEVICE, "cuda:0000:65:00.0", "cuda:0000:65:00.0",
	  "8GiB:a" },
	{ "vmm:cuda:0001a2b3:0F:1f.7:1", WH_MEMORY_VMM, "cuda:0001a2b3:0F:1f.7",
	  "vmm:cuda:0001a2b3:0F:1f.7", "1" },
	/* Not a PCI address: number 65, then a size and a name. */
	{ "cuda:65:00:00.0", WH_MEMORY_DEVICE, "cuda:65", "cuda:65", "00:00.0" },
};

static const struct {
	const char *text, *says;
} bad[] = {
	{ "", "no kind" },
	{ "gpu:0", "no kind" },
	{ "hos", "no kind" },
	{ "1GiB", "no kind" },
	{ ":host", "no kind" },
	{ "cud:0", "no kind" },
	{ "numa:0", "but no kind" },
	{ "cuda:", "no GPU after" },
	{ "cuda", "no GPU" },
	{ "cuda::1GiB", "no GPU after" },
	{ "device", "names no GPU" },
	{ "vmm:1GiB", "names no GPU" },
	{ "managed", "names no GPU" },
	{ "pool:numa:0", "is on no NUMA node" },
	{ "host:numa:", "no number" },
	{ "host:numa:x", "no number" },
	{ "host:numa:1x:3", "no number" },
	{ "cuda:GPU-0123456789012345678901234567890123456789012345678901234567890123456789",
	  "too long" },
};

static void parse__good(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct memory memory;
		const char *rest, *wrong = memory_parse(good[i].text, &memory, &rest);

		if (wrong)
			fail_msg("%s: %s", good[i].text, wrong);
		assert_int_equal(memory.kind, good[i].kind);
		assert_string_equal(memory.location, good[i].location);
		assert_string_equal(memory.name, good[i].name);
		assert_string_equal(rest, good[i].rest);
	}
}

/* What a name stands for is what it was made from. */
static void parse__names(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct memory memory, again;
		const char *rest;

		assert_null(memory_parse(good[i].text, &memory, &rest));
		assert_null(memory_parse(memory.name, &again, &rest));
		assert_string_equal(rest, "");
		assert_memory_equal(&memory, &again, sizeof(memory));
	}
}

static void parse__bad(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct memory memory;
		const char *rest, *wrong = memory_parse(bad[i].text, &memory, &rest);

		if (!wrong || !strstr(wrong, bad[i].says))
			fail_msg("'%s': %s", bad[i].text, wrong ? wrong : "taken");
	}
}

static void kinds__on_gpu(void **state)
{
	(void)state;
	assert_true(memory_on_gpu(WH_MEMORY_DEVICE) && memory_on_gpu(WH_MEMORY_MANAGED));
	assert_true(memory_on_gpu(WH_MEMORY_VMM) && memory_on_gpu(WH_MEMORY_POOL));
	assert_false(memory_on_gpu(WH_MEMORY_PINNED) || memory_on_gpu(WH_MEMORY_SHARED));
	assert_true(memory_needs_gpu(WH_MEMORY_PINNED) && memory_needs_gpu(WH_MEMORY_MAPPED));
	assert_false(memory_needs_gpu(WH_MEMORY_HUGE));
	assert_string_equal(memory_kind_name(WH_MEMORY_SHARED), "host");
	assert_string_equal(memory_kind_name(99), "other");
}

/* ---- how much there is ---------------------------------------------------------------------- */

/* A machine made of files. */
static char machine[64];

static int machine_make(void **state)
{
	(void)state;
	snprintf(machine, sizeof(machine), "/tmp/memory-room.XXXXXX");
	return mkdtemp(machine) ? 0 : -1;
}

static int machine_remove(void **state)
{
	char line[128];

	(void)state;
	snprintf(line, sizeof(line), "rm -rf %s", machine);
	return system(line);
}

/* Write a file of it, with the directories that it is in. */
static void put(const char *path, const char *text)
{
	char name[256];
	FILE *file;

	snprintf(name, sizeof(name), "%s%s", machine, path);
	for (char *slash = strchr(name + strlen(machine) + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(name, 0700);
		*slash = '/';
	}
	file = fopen(name, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

#define GIB (UINT64_C(1) << 30)

static void room__of_the_machine(void **state)
{
	char text[MEMORY_TEXT] = "";

	(void)state;
	assert_true(memory_room(machine, false) == UINT64_MAX);
	assert_true(memory_fits(machine, UINT64_MAX, false, text));
	put("/proc/meminfo",
	    "MemTotal: 25165824 kB\nMemAvailable: 20971520 kB\nSwapFree: 1048576 kB\n");
	assert_int_equal(memory_room(machine, false), 21 * GIB);
	assert_int_equal(memory_room(machine, true), 20 * GIB);
	assert_true(memory_fits(machine, 21 * GIB, false, text));
	assert_string_equal(text, "");
	assert_false(memory_fits(machine, 21 * GIB, true, text));
	assert_string_equal(text, "that takes 21.0 GiB of memory, and there are 20.0 GiB");
	assert_false(memory_fits(machine, UINT64_C(1) << 40, false, text));
	assert_string_equal(text, "that takes 1.0 TiB of memory, and there are 21.0 GiB");
	put("/proc/meminfo",
	    "MemAvailable: 20971520 kB\nHugePages_Free: 512\nHugepagesize: 2048 kB\n");
	assert_int_equal(memory_room(machine, true), 21 * GIB);
}

static void room__of_groups(void **state)
{
	(void)state;
	put("/proc/meminfo", "MemAvailable: 20971520 kB\n");
	put("/proc/self/cgroup", "0::/a/b\n");
	put("/sys/fs/cgroup/a/b/memory.max", "max\n");
	put("/sys/fs/cgroup/a/b/memory.current", "1073741824\n");
	assert_int_equal(memory_room(machine, false), 20 * GIB);
	/* The limit is that of a group above; what files use can be had back. */
	put("/sys/fs/cgroup/a/memory.max", "8589934592\n");
	put("/sys/fs/cgroup/a/memory.current", "5368709120\n");
	assert_int_equal(memory_room(machine, false), 3 * GIB);
	put("/sys/fs/cgroup/a/memory.stat",
	    "anon 5\ninactive_file 1073741824\nactive_file 1073741824\n");
	assert_int_equal(memory_room(machine, false), 5 * GIB);
	put("/sys/fs/cgroup/a/b/memory.max", "536870912\n");
	assert_int_equal(memory_room(machine, false), 0);
	/* A container sees its own group as the first. */
	put("/proc/self/cgroup", "0::/\n");
	assert_int_equal(memory_room(machine, false), 20 * GIB);
	put("/sys/fs/cgroup/memory.max", "4294967296\n");
	put("/sys/fs/cgroup/memory.current", "0\n");
	assert_int_equal(memory_room(machine, false), 4 * GIB);
}

static void room__of_groups_of_version_one(void **state)
{
	(void)state;
	put("/proc/meminfo", "MemAvailable: 20971520 kB\n");
	put("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/c\n0::/\n");
	put("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "1073741824\n");
	assert_int_equal(memory_room(machine, false), 20 * GIB);
	put("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "3221225472\n");
	assert_int_equal(memory_room(machine, false), 2 * GIB);
	put("/sys/fs/cgroup/memory/c/memory.stat", "total_inactive_file 536870912\n");
	assert_int_equal(memory_room(machine, false), 2 * GIB + GIB / 2);
	put("/proc/self/cgroup", "nonsense\n:\n::\n4:memory\n");
	assert_int_equal(memory_room(machine, false), 20 * GIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parse__good),
		cmocka_unit_test(parse__names),
		cmocka_unit_test(parse__bad),
		cmocka_unit_test(kinds__on_gpu),
		cmocka_unit_test_setup_teardown(room__of_the_machine, machine_make, machine_remove),
		cmocka_unit_test_setup_teardown(room__of_groups, machine_make, machine_remove),
		cmocka_unit_test_setup_teardown(room__of_groups_of_version_one, machine_make,
						machine_remove),
	};

	return cmocka_run_group_tests_name("tools-memory", tests, NULL, NULL);
}
