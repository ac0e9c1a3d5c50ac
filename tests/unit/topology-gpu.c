/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML does not answer about GPUs becomes a gap of the topology, with the reason. */
#include "unit.h"

#include <stdio.h>
#include <unistd.h>

#include "platform/nvml.h"
#include "topology/topology.h"

/* The topology of the fake NVML's two GPUs; `lines` go in front of its script. */
static struct wh_topology *topology_of(const char *lines)
{
	static const char root[] = "/nonexistent";
	const struct wh_tree tree = { .root = root };
	char path[] = "/tmp/topology-gpu-XXXXXX", pcie[512], text[4096];
	struct wh_topology *topology;
	struct wh_nvml *nvml;
	int fd = mkstemp(path);
	FILE *out = fd < 0 ? NULL : fdopen(fd, "w"), *in;
	size_t used;

	assert_non_null(out);
	snprintf(pcie, sizeof(pcie), "%s/tests/fake/nvml/pcie.txt", getenv("TEST_SOURCE"));
	in = fopen(pcie, "r");
	assert_non_null(in);
	used = fread(text, 1, sizeof(text), in);
	fclose(in);
	fputs(lines, out);
	assert_int_equal(fwrite(text, 1, used, out), used);
	fclose(out);
	setenv("FAKE_NVML", path, 1);
	assert_int_equal(wh_nvml_open(getenv("TEST_NVML"), &nvml), 0);
	assert_int_equal(wh_topology_read(&tree, &topology), 0);
	assert_int_equal(wh_topology_add_nvml(topology, nvml, NULL), 0);
	wh_nvml_close(nvml);
	unlink(path);
	assert_int_equal(topology->gpu_count, 2);
	return topology;
}

/* The gap of GPUs; there is at most one. */
static const struct wh_topology_gap *gpu_gap(const struct wh_topology *topology)
{
	const struct wh_topology_gap *found = NULL;

	for (size_t i = 0; i < topology->gap_count; i++) {
		if (strncmp(topology->gaps[i].what, "GPU", 3) != 0)
			continue;
		assert_null(found);
		found = &topology->gaps[i];
	}
	return found;
}

static void note__none(void **state)
{
	struct wh_topology *topology = topology_of("");

	(void)state;
	assert_null(gpu_gap(topology));
	wh_topology_free(topology);
}

static void note__of_one(void **state)
{
	struct wh_topology *topology = topology_of("nvmlDeviceGetBAR1MemoryInfo 1 : 4\n"
						   "nvmlDeviceGetMemoryAffinity 1 : 3\n");

	(void)state;
	assert_true(topology->gpus[1].bar1_bytes == WH_UNKNOWN);
	assert_string_equal(gpu_gap(topology)->what, "GPU1");
	assert_string_equal(gpu_gap(topology)->why,
			    "BAR1: no permission, NUMA nodes: not supported");
	wh_topology_free(topology);
}

static void note__of_all(void **state)
{
	struct wh_topology *topology = topology_of("nvmlDeviceGetMaxPcieLinkWidth * : 3\n");

	(void)state;
	assert_string_equal(gpu_gap(topology)->what, "GPU0 to GPU1");
	assert_string_equal(gpu_gap(topology)->why, "lanes at most: not supported");
	wh_topology_free(topology);
}

/* A GPU that is lost between the handle and the answers has a problem, not gaps. */
static void problem__lost_on_the_way(void **state)
{
	struct wh_topology *topology = topology_of("nvmlDeviceGetMemoryInfo 1 : 15\n");

	(void)state;
	assert_non_null(strstr(topology->gpus[1].problem, "GPU is lost"));
	assert_string_equal(topology->gpus[0].problem, "");
	assert_null(gpu_gap(topology));
	wh_topology_free(topology);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(note__none),
		cmocka_unit_test(note__of_one),
		cmocka_unit_test(note__of_all),
		cmocka_unit_test(problem__lost_on_the_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
