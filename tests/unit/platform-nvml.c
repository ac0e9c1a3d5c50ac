/* SPDX-License-Identifier: Apache-2.0 */
/* The NVML binding: with the fake of tests/fake/nvml, and without NVML. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <wherry/error.h>

#include "platform/nvml.h"

/* A machine of tests/fake/nvml, or a file elsewhere. */
static int open_on(const char *library, const char *machine, struct wh_nvml **out)
{
	char path[512];

	if (machine && *machine != '/')
		snprintf(path, sizeof(path), "%s/tests/fake/nvml/%s.txt", getenv("TEST_SOURCE"),
			 machine);
	else
		snprintf(path, sizeof(path), "%s", machine ? machine : "/nonexistent");
	setenv("FAKE_NVML", path, 1);
	return wh_nvml_open(getenv(library), out);
}

static struct wh_nvml *machine(const char *name)
{
	struct wh_nvml *nvml;

	assert_int_equal(open_on("TEST_NVML", name, &nvml), 0);
	return nvml;
}

static void open__no_library(void **state)
{
	struct wh_nvml *nvml = NULL;

	(void)state;
	assert_int_equal(wh_nvml_open("/nonexistent/libnvidia-ml.so.1", &nvml), -ENODEV);
	assert_null(nvml);
	assert_non_null(strstr(wh_error_text(), "/nonexistent/libnvidia-ml.so.1"));
	assert_int_equal(wh_nvml_open("libm.so.6", &nvml), -ELIBBAD);
	assert_null(nvml);
	wh_nvml_close(NULL);
}

static void open__no_driver(void **state)
{
	struct wh_nvml *nvml;

	(void)state;
	assert_int_equal(open_on("TEST_NVML", NULL, &nvml), -ENODEV);
	assert_non_null(strstr(wh_error_text(), "modprobe nvidia"));
	assert_int_equal(open_on("TEST_NVML", "mismatch", &nvml), -ELIBBAD);
	assert_non_null(strstr(wh_error_text(), "do not match"));
}

static void ask__pcie(void **state)
{
	struct wh_nvml *nvml = machine("pcie");
	struct wh_nvml_memory memory;
	struct wh_nvml_pci pci;
	char text[WH_NVML_TEXT];
	uint64_t words[2], big = 7;
	uint32_t value = 99;
	int major, minor;
	bool mig;

	(void)state;
	assert_int_equal(wh_nvml_count(nvml), 2);
	assert_int_equal(wh_nvml_device(nvml, 1), 0);
	assert_int_equal(wh_nvml_device(nvml, 2), -ENODEV);
	assert_int_equal(wh_nvml_text(nvml, WH_NVML_NAME, 1, text), 0);
	assert_string_equal(text, "NVIDIA L40S");
	assert_int_equal(wh_nvml_system_text(nvml, WH_NVML_DRIVER_VERSION, text), 0);
	assert_string_equal(text, "570.86.10");
	assert_int_equal(wh_nvml_pci(nvml, 1, &pci), 0);
	assert_int_equal(pci.bus, 0xca);
	assert_int_equal(pci.id, 0x233510de);
	assert_int_equal(wh_nvml_memory(nvml, 0, &memory), 0);
	assert_true(memory.total == UINT64_C(48) << 30 && memory.used == 1048576);
	assert_int_equal(wh_nvml_bar1(nvml, 1, &memory), 0);
	assert_true(memory.total == 256 << 20);
	assert_int_equal(wh_nvml_number(nvml, WH_NVML_PCIE_WIDTH, 1, &value), 0);
	assert_int_equal(value, 8);
	assert_int_equal(wh_nvml_capability(nvml, 0, &major, &minor), 0);
	assert_int_equal(major, 9);
	assert_int_equal(wh_nvml_mig(nvml, 0, &mig), 0);
	assert_false(mig);
	assert_int_equal(wh_nvml_cpus(nvml, 1, words, 2), 0);
	assert_true(words[0] == 0xff00 && words[1] == 0);
	assert_int_equal(wh_nvml_nodes(nvml, 1, words, 1), 0);
	assert_true(words[0] == 2);
	assert_int_equal(wh_nvml_ancestor(nvml, 0, 1, &value), 0);
	assert_int_equal(value, WH_NVML_ANCESTOR_SYSTEM);
	assert_int_equal(wh_nvml_p2p(nvml, 0, 1, WH_NVML_P2P_READ, &value), 0);
	assert_int_equal(value, 0);
	assert_int_equal(wh_nvml_p2p(nvml, 0, 1, WH_NVML_P2P_NVLINK, &value), 0);
	assert_int_equal(value, 5);
	/* An error leaves the output unchanged. */
	value = 99;
	assert_int_equal(wh_nvml_indexed(nvml, WH_NVML_LINK_STATE, 0, 3, &value), -EOPNOTSUPP);
	assert_non_null(strstr(wh_error_text(), "nvmlDeviceGetNvLinkState 0 3: not supported"));
	assert_int_equal(value, 99);
	assert_int_equal(wh_nvml_field(nvml, 0, WH_NVML_FIELD_LINK_SPEED, 0, &big), -EOPNOTSUPP);
	assert_int_equal(big, 7);
	assert_int_equal(wh_nvml_ancestor(nvml, 0, 2, &value), -ENODEV);
	wh_nvml_close(nvml);
}

static void ask__broken(void **state)
{
	struct wh_nvml *nvml = machine("broken");
	static const uint8_t cluster[16] = { 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
					     0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00 };
	static const uint8_t none[16];
	struct wh_nvml_fabric fabric;
	char text[WH_NVML_TEXT];
	uint64_t big;
	struct wh_nvml_field fields[] = { { .field = WH_NVML_FIELD_LINK_SPEED, .scope = 4 },
					  { .field = 1000, .scope = 4, .value = 9 },
					  { .field = WH_NVML_FIELD_LINK_SPEED, .scope = 5 } };
	uint32_t value;

	(void)state;
	assert_int_equal(wh_nvml_count(nvml), 4);
	assert_int_equal(wh_nvml_device(nvml, 1), -ENODEV);
	assert_non_null(strstr(wh_error_text(), "Xid 79"));
	assert_int_equal(wh_nvml_text(nvml, WH_NVML_NAME, 1, text), -ENODEV);
	assert_int_equal(wh_nvml_device(nvml, 2), -EACCES);
	assert_non_null(strstr(wh_error_text(), "root"));
	assert_int_equal(wh_nvml_ancestor(nvml, 0, 1, &value), -ENODEV);
	assert_int_equal(wh_nvml_ancestor(nvml, 0, 3, &value), 0);
	assert_int_equal(wh_nvml_indexed(nvml, WH_NVML_LINK_REMOTE, 0, 17, &value), 0);
	assert_int_equal(value, WH_NVML_REMOTE_SWITCH);
	assert_int_equal(wh_nvml_field(nvml, 0, WH_NVML_FIELD_LINK_SPEED, 4, &big), 0);
	assert_int_equal(big, 26562);
	wh_nvml_fields(nvml, 0, fields, 3);
	assert_int_equal(fields[0].error, 0);
	assert_int_equal(fields[0].value, 26562);
	assert_int_equal(fields[1].error, -EOPNOTSUPP);
	assert_int_equal(fields[1].value, 9);
	assert_int_equal(fields[2].error, 0);
	wh_nvml_fields(nvml, 1, fields, 1);
	assert_int_equal(fields[0].error, -ENODEV);
	assert_int_equal(fields[0].value, 26562);
	assert_int_equal(wh_nvml_field(nvml, 3, WH_NVML_FIELD_RECOVERY, UINT32_MAX, &big), 0);
	assert_int_equal(big, 1);
	assert_int_equal(wh_nvml_fabric(nvml, 0, &fabric), 0);
	assert_int_equal(fabric.state, WH_NVML_FABRIC_COMPLETED);
	assert_int_equal(fabric.clique, 2);
	assert_memory_equal(fabric.cluster, cluster, sizeof(cluster));
	assert_int_equal(wh_nvml_fabric(nvml, 3, &fabric), 0);
	assert_int_equal(fabric.state, WH_NVML_FABRIC_IN_PROGRESS);
	assert_memory_equal(fabric.cluster, none, sizeof(none));
	wh_nvml_close(nvml);
}

static void ask__load(void **state)
{
	struct wh_nvml_process processes[4];
	struct wh_nvml *nvml = machine("pcie");
	unsigned count = 4;
	uint32_t gpu = 99, memory = 99;
	uint64_t big = 7;

	(void)state;
	assert_int_equal(wh_nvml_utilisation(nvml, 0, &gpu, &memory), 0);
	assert_int_equal(gpu, 37);
	assert_int_equal(memory, 12);
	assert_int_equal(wh_nvml_utilisation(nvml, 1, &gpu, &memory), -EOPNOTSUPP);
	assert_int_equal(gpu, 37);
	assert_int_equal(wh_nvml_ecc(nvml, 0, true, &big), 0);
	assert_true(big == 2);
	assert_int_equal(wh_nvml_ecc(nvml, 0, false, &big), 0);
	assert_true(big == UINT64_C(5000000000));
	assert_int_equal(wh_nvml_reasons(nvml, 0, &big), 0);
	assert_true(big == (WH_NVML_POWER_CAP | WH_NVML_THERMAL));
	assert_int_equal(wh_nvml_reasons(nvml, 1, &big), -EOPNOTSUPP);
	assert_int_equal(wh_nvml_processes(nvml, 0, processes, &count), 0);
	assert_int_equal(count, 2);
	assert_int_equal(processes[0].pid, 4711);
	assert_true(processes[0].memory == 1 << 30 && processes[1].memory == UINT64_MAX);
	/* At most as many as fit. */
	count = 1;
	assert_int_equal(wh_nvml_processes(nvml, 0, processes, &count), 0);
	assert_int_equal(count, 1);
	count = 4;
	assert_int_equal(wh_nvml_processes(nvml, 1, processes, &count), 0);
	assert_int_equal(count, 0);
	wh_nvml_close(nvml);
}

/* Replace the file that the fake reads. */
static void say(const char *path, const char *text)
{
	char other[64];
	FILE *file;

	snprintf(other, sizeof(other), "%s.new", path);
	file = fopen(other, "w");
	assert_non_null(file);
	fprintf(file,
		"nvmlDeviceGetCount : 0 2\nnvmlDeviceGetHandleByIndex 0 : 0\n"
		"nvmlDeviceGetHandleByIndex 1 : 0\nnvmlDeviceGetName * : 0 GPU\n%s",
		text);
	fclose(file);
	assert_int_equal(rename(other, path), 0);
}

/* A GPU that is lost, or needs a reset, while NVML is open. */
static void ask__lost_on_the_way(void **state)
{
	static const struct {
		const char *answer, *says;
		int error;
	} ways[] = {
		{ "nvmlDeviceGetPowerUsage 1 : 15\nnvmlDeviceGetTopologyCommonAncestor 0 1 : 15\n",
		  "Xid 79", -ENODEV },
		{ "nvmlDeviceGetPowerUsage 1 : 16\nnvmlDeviceGetTopologyCommonAncestor 0 1 : 15\n",
		  "gpu-reset", -EIO },
	};
	char path[] = "/tmp/wherry-nvml-XXXXXX", text[WH_NVML_TEXT];
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	for (size_t i = 0; i < 2; i++) {
		static const char well[] = "nvmlDeviceGetPowerUsage * : 0 5\n";
		struct wh_nvml *nvml;
		uint32_t value;

		say(path, well);
		nvml = machine(path);
		assert_int_equal(wh_nvml_number(nvml, WH_NVML_POWER, 1, &value), 0);
		say(path, ways[i].answer);
		/* A query about two GPUs does not show which of them is lost. */
		assert_int_equal(wh_nvml_ancestor(nvml, 0, 1, &value), -ENODEV);
		assert_int_equal(wh_nvml_device(nvml, 1), 0);
		assert_int_equal(wh_nvml_number(nvml, WH_NVML_POWER, 1, &value), ways[i].error);
		assert_int_equal(wh_nvml_device(nvml, 1), ways[i].error);
		assert_non_null(strstr(wh_error_text(), ways[i].says));
		assert_int_equal(wh_nvml_device(nvml, 0), 0);
		/* A lost GPU gets no further queries. */
		assert_int_equal(wh_nvml_text(nvml, WH_NVML_NAME, 1, text), ways[i].error);
		/* A new handle does not prove that the GPU is back. */
		assert_int_equal(wh_nvml_retry(nvml, 1), 0);
		assert_int_equal(wh_nvml_number(nvml, WH_NVML_POWER, 1, &value), ways[i].error);
		assert_int_equal(wh_nvml_device(nvml, 1), ways[i].error);
		say(path, well);
		assert_int_equal(wh_nvml_retry(nvml, 1), 0);
		assert_int_equal(wh_nvml_number(nvml, WH_NVML_POWER, 1, &value), 0);
		assert_int_equal(wh_nvml_device(nvml, 1), 0);
		wh_nvml_close(nvml);
	}
	assert_int_equal(unlink(path), 0);
}

static void meaning__of_errors(void **state)
{
	(void)state;
	assert_string_equal(wh_nvml_meaning(-EOPNOTSUPP), "not supported");
	assert_string_equal(wh_nvml_meaning(-EACCES), "no permission");
	assert_string_equal(wh_nvml_meaning(-ENOSYS), "function not found");
	assert_string_equal(wh_nvml_meaning(-EIO), "an error of the driver");
	assert_string_equal(wh_nvml_meaning(-ENAMETOOLONG), strerror(ENAMETOOLONG));
}

/* An old driver: it lacks the newer functions, and has old versions of the others. */
static void ask__old(void **state)
{
	struct wh_nvml_memory memory;
	struct wh_nvml_fabric fabric;
	struct wh_nvml_process processes[4];
	struct wh_nvml_pci pci;
	struct wh_nvml *nvml;
	unsigned count = 4;
	uint64_t reasons;
	uint32_t value;

	(void)state;
	assert_int_equal(open_on("TEST_NVML_OLD", "pcie", &nvml), 0);
	assert_int_equal(wh_nvml_count(nvml), 2);
	assert_int_equal(wh_nvml_pci(nvml, 1, &pci), 0);
	assert_int_equal(pci.bus, 0xca);
	assert_int_equal(wh_nvml_memory(nvml, 0, &memory), 0);
	assert_true(memory.total == UINT64_C(48) << 30 && memory.used == 1048576);
	assert_int_equal(wh_nvml_p2p(nvml, 0, 1, WH_NVML_P2P_READ, &value), -ENOSYS);
	assert_non_null(strstr(wh_error_text(), "too old"));
	assert_int_equal(wh_nvml_fabric(nvml, 0, &fabric), -ENOSYS);
	/* Under its older name. */
	assert_int_equal(wh_nvml_reasons(nvml, 0, &reasons), 0);
	assert_true(reasons == 0x24);
	assert_int_equal(wh_nvml_processes(nvml, 0, processes, &count), -ENOSYS);
	wh_nvml_close(nvml);
}

/* All queries that a topology makes. */
static void ask_all(struct wh_nvml *nvml, FILE *out)
{
	struct wh_nvml_memory memory;
	struct wh_nvml_fabric fabric;
	struct wh_nvml_pci pci;
	char text[WH_NVML_TEXT];
	uint64_t words[2];
	uint32_t value;
	int major, minor;
	bool mig;

	wh_nvml_record(nvml, out);
	wh_nvml_system_text(nvml, WH_NVML_DRIVER_VERSION, text);
	for (unsigned i = 0; i < wh_nvml_count(nvml); i++) {
		wh_nvml_text(nvml, WH_NVML_NAME, i, text);
		wh_nvml_number(nvml, WH_NVML_PCIE_WIDTH, i, &value);
		wh_nvml_indexed(nvml, WH_NVML_LINK_STATE, i, 3, &value);
		wh_nvml_pci(nvml, i, &pci);
		wh_nvml_link_pci(nvml, i, 3, &pci);
		wh_nvml_memory(nvml, i, &memory);
		wh_nvml_bar1(nvml, i, &memory);
		wh_nvml_capability(nvml, i, &major, &minor);
		wh_nvml_mig(nvml, i, &mig);
		wh_nvml_cpus(nvml, i, words, 2);
		wh_nvml_nodes(nvml, i, words, 1);
		wh_nvml_field(nvml, i, WH_NVML_FIELD_LINK_SPEED, 3, words);
		wh_nvml_fabric(nvml, i, &fabric);
		for (unsigned k = 0; k < wh_nvml_count(nvml); k++) {
			wh_nvml_ancestor(nvml, i, k, &value);
			wh_nvml_p2p(nvml, i, k, WH_NVML_P2P_READ, &value);
		}
	}
	wh_nvml_record(nvml, NULL);
}

/* A fake that replays a recording gives the same answers as the machine. */
static void record__replays(void **state)
{
	static const char *const machines[] = { "pcie", "broken" };

	(void)state;
	for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
		char *said[2] = { NULL, NULL }, path[] = "/tmp/wherry-nvml-XXXXXX";
		size_t length[2];
		int fd = mkstemp(path);
		FILE *file;

		assert_true(fd >= 0);
		for (int turn = 0; turn < 2; turn++) {
			struct wh_nvml *nvml = machine(turn ? path : machines[i]);

			file = open_memstream(&said[turn], &length[turn]);
			assert_non_null(file);
			ask_all(nvml, file);
			fclose(file);
			wh_nvml_close(nvml);
			if (turn)
				continue;
			file = fdopen(fd, "w");
			assert_non_null(file);
			assert_int_equal(fwrite(said[0], 1, length[0], file), length[0]);
			fclose(file);
		}
		assert_string_equal(said[0], said[1]);
		assert_non_null(strstr(said[0], "nvmlDeviceGetName 0 : 0 NVIDIA"));
		unlink(path);
		free(said[0]);
		free(said[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__no_library),   cmocka_unit_test(open__no_driver),
		cmocka_unit_test(ask__pcie),          cmocka_unit_test(ask__broken),
		cmocka_unit_test(ask__old),           cmocka_unit_test(record__replays),
		cmocka_unit_test(ask__load),          cmocka_unit_test(ask__lost_on_the_way),
		cmocka_unit_test(meaning__of_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
