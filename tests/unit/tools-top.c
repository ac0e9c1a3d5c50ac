/* SPDX-License-Identifier: Apache-2.0 */
/* What wherry top asks NVML, and how often: the test sets the time, and the fake counts the calls.
 */
#include "../../tools/field.c"
#include "../../tools/output.c"
#include "../../tools/top/fields.c"
#include "../../tools/top/gpus.c"
#include "../../tools/top/tables.c"

/* The command's, before cmocka.h names a macro so. */
int fail(int error, const char *format, ...)
{
	(void)format;
	return error;
}

#include "unit.h"

#include <dlfcn.h>

/* ---- two GPUs -------------------------------------------------------------------------------- */

struct machine {
	struct wh_nvml *nvml;
	unsigned (*calls)(const char *function);
	struct wh_tree tree;
	struct top_asking asking;
	struct top_sample *sample;
	double time;
};

static struct wh_nvml *open_nvml(const char *file)
{
	struct wh_nvml *nvml;

	setenv("FAKE_NVML", file, 1);
	assert_int_equal(wh_nvml_open(getenv("TEST_NVML"), &nvml), 0);
	return nvml;
}

static void machine_open(struct machine *m, unsigned needs)
{
	void *library = dlopen(getenv("TEST_NVML"), RTLD_NOW | RTLD_LOCAL);
	char file[512];

	*m = (struct machine){ .asking = { .needs = needs },
			       .time = 1000,
			       .sample = calloc(1, sizeof(*m->sample)) };
	assert_non_null(m->sample);
	assert_non_null(library);
	m->calls = (unsigned (*)(const char *))dlsym(library, "fake_nvml_calls");
	assert_non_null(m->calls);
	snprintf(file, sizeof(file), "%s/tests/fake/nvml/pcie.txt", getenv("TEST_SOURCE"));
	m->nvml = open_nvml(file);
	m->sample->gpu_count = 2;
	for (int i = 0; i < 2; i++) {
		m->sample->gpus[i].index = i;
		gpu_forget(&m->sample->gpus[i]);
	}
	dlclose(library);
}

static void machine_close(struct machine *m)
{
	wh_nvml_close(m->nvml);
	free(m->sample);
}

static void take(struct machine *m, unsigned samples, double interval)
{
	for (unsigned i = 0; i < samples; i++) {
		top_ask_gpus(&m->asking, &m->tree, m->nvml, m->time, interval, m->sample);
		/* Threads wake a bit early or late. */
		m->time += interval * (i % 2 ? 1.01 : 0.99);
	}
}

struct asked {
	const char *function;
	unsigned calls; /* for one GPU */
};

static void expect_calls(struct machine *m, unsigned samples, double interval,
			 const struct asked *rows, size_t count)
{
	unsigned before[16], all = m->calls(NULL), sum = 0;

	assert_true(count <= 16);
	for (size_t i = 0; i < count; i++)
		before[i] = m->calls(rows[i].function);
	take(m, samples, interval);
	for (size_t i = 0; i < count; i++) {
		unsigned calls = m->calls(rows[i].function) - before[i];

		if (calls != 2 * rows[i].calls)
			fail_msg("%s was called %u times for two GPUs, not %u times for each",
				 rows[i].function, calls, rows[i].calls);
		sum += calls;
	}
	/* And nothing else. */
	assert_int_equal(m->calls(NULL) - all, sum);
}
#define EXPECT_CALLS(m, samples, interval, ...)                                                    \
	expect_calls(m, samples, interval, (const struct asked[]){ __VA_ARGS__ },                  \
		     sizeof((const struct asked[]){ __VA_ARGS__ }) / sizeof(struct asked))

/* ---- how often ------------------------------------------------------------------------------- */

/* The budget: 6.5 calls a second for each GPU. */
static void calls__of_a_minute(void **state)
{
	struct machine m;

	(void)state;
	machine_open(&m, TOP_EVERYTHING);
	EXPECT_CALLS(
		&m, 60, 1, { "nvmlDeviceGetUtilizationRates", 60 },
		{ "nvmlDeviceGetPowerUsage", 60 }, { "nvmlDeviceGetFieldValues", 60 },
		{ "nvmlDeviceGetMemoryInfo", 30 }, { "nvmlDeviceGetClockInfo", 30 + 12 },
		{ "nvmlDeviceGetPcieThroughput", 2 * 30 },
		{ "nvmlDeviceGetComputeRunningProcesses", 20 }, { "nvmlDeviceGetTemperature", 12 },
		{ "nvmlDeviceGetCurrentClocksEventReasons", 12 },
		{ "nvmlDeviceGetBAR1MemoryInfo", 12 }, { "nvmlDeviceGetTotalEccErrors", 2 * 6 },
		{ "nvmlDeviceGetPcieReplayCounter", 6 }, { "nvmlDeviceGetEnforcedPowerLimit", 1 },
		{ "nvmlDeviceGetMaxClockInfo", 2 });
	machine_close(&m);
}

/* Ten samples a second are asked each of what is asked each second, and the others in proportion.
 */
static void calls__of_short_intervals(void **state)
{
	struct machine m;

	(void)state;
	machine_open(&m, 1U << TOP_BUSY | 1U << TOP_MEMORY | 1U << TOP_ERRORS);
	EXPECT_CALLS(&m, 60, 0.1, { "nvmlDeviceGetUtilizationRates", 60 },
		     { "nvmlDeviceGetMemoryInfo", 30 }, { "nvmlDeviceGetTotalEccErrors", 2 * 6 },
		     { "nvmlDeviceGetPcieReplayCounter", 6 });
	machine_close(&m);
}

static void calls__of_long_intervals(void **state)
{
	struct machine m;

	(void)state;
	machine_open(&m, 1U << TOP_BUSY | 1U << TOP_MEMORY | 1U << TOP_ERRORS | 1U << TOP_LIMITS);
	EXPECT_CALLS(&m, 12, 10, { "nvmlDeviceGetUtilizationRates", 12 },
		     { "nvmlDeviceGetMemoryInfo", 12 }, { "nvmlDeviceGetTotalEccErrors", 2 * 12 },
		     { "nvmlDeviceGetPcieReplayCounter", 12 },
		     { "nvmlDeviceGetEnforcedPowerLimit", 2 }, { "nvmlDeviceGetMaxClockInfo", 4 });
	machine_close(&m);
}

static void calls__of_what_is_shown(void **state)
{
	const struct top_table *gpus = top_table("gpus");
	char all[1024];
	struct machine m;

	(void)state;
	machine_open(&m, top_needs(gpus, "index,power.draw,name"));
	EXPECT_CALLS(&m, 20, 1, { "nvmlDeviceGetPowerUsage", 20 });
	machine_close(&m);
	machine_open(&m, top_needs(gpus, "index,pcie.max"));
	take(&m, 3, 1);
	EXPECT_CALLS(&m, 20, 1, { "nvmlDeviceGetPowerUsage", 0 });
	machine_close(&m);
	assert_int_equal(top_needs(top_table("routes"), "peer,read"), 0);
	/* Processes have no field; everything else is in one. */
	top_all_fields(gpus, all, sizeof(all));
	assert_int_equal(top_needs(gpus, all) | 1U << TOP_PROCESS_LIST, TOP_EVERYTHING);
}

/* ---- a driver that is slow ------------------------------------------------------------------- */

static void cost(struct machine *m, unsigned samples, double seconds, double interval)
{
	for (unsigned i = 0; i < samples; i++)
		top_asked_for(&m->asking, seconds, interval);
}

static void cost__too_much_is_asked_less_often(void **state)
{
	struct machine m;

	(void)state;
	machine_open(&m, 1U << TOP_BUSY | 1U << TOP_MEMORY);
	cost(&m, 1, 10, 1); /* the first does not count */
	cost(&m, COST_SAMPLES, 0.013, 1);
	assert_int_equal(m.asking.period_factor, 1);
	cost(&m, COST_SAMPLES - 1, 0.030, 1);
	assert_int_equal(m.asking.period_factor, 1);
	cost(&m, 1, 0.030, 1);
	assert_int_equal(m.asking.period_factor, 2);
	EXPECT_CALLS(&m, 40, 1, { "nvmlDeviceGetUtilizationRates", 40 },
		     { "nvmlDeviceGetMemoryInfo", 10 });
	/* Neither one way nor the other. */
	cost(&m, COST_SAMPLES, 0.010, 1);
	assert_int_equal(m.asking.period_factor, 2);
	cost(&m, 9 * COST_SAMPLES, 0.030, 1);
	assert_int_equal(m.asking.period_factor, PERIOD_FACTOR_MOST);
	cost(&m, 9 * COST_SAMPLES, 0.001, 1);
	assert_int_equal(m.asking.period_factor, 1);
	/* Of ten seconds it may be more. */
	cost(&m, 2 * COST_SAMPLES, 0.1, 10);
	assert_int_equal(m.asking.period_factor, 1);
	machine_close(&m);
}

/* ---- what is not known any more -------------------------------------------------------------- */

static void values__are_kept_until_they_are_asked(void **state)
{
	char path[] = "/tmp/tools-top.XXXXXX";
	const struct top_gpu *gpu;
	struct machine m;
	FILE *file;
	int fd;

	(void)state;
	machine_open(&m, TOP_EVERYTHING);
	gpu = &m.sample->gpus[0];
	take(&m, 1, 1);
	assert_int_equal(gpu->busy, 37);
	assert_int_equal(gpu->memory_used, 1048576);
	assert_int_equal(gpu->ecc_uncorrected, 2);
	assert_int_equal(gpu->reasons, 0x24);
	assert_int_equal(m.sample->process_count, 2);
	/* A driver that has nothing to say any more. */
	wh_nvml_close(m.nvml);
	fd = mkstemp(path);
	file = fd < 0 ? NULL : fdopen(fd, "w");
	assert_non_null(file);
	fputs("nvmlDeviceGetCount : 0 2\nnvmlDeviceGetHandleByIndex 0 : 0\n"
	      "nvmlDeviceGetHandleByIndex 1 : 15\n",
	      file);
	fclose(file);
	m.nvml = open_nvml(path);
	take(&m, 1, 1);
	assert_int_equal(gpu->busy, -1);
	assert_int_equal(gpu->memory_used, 1048576);
	assert_int_equal(gpu->ecc_uncorrected, 2);
	take(&m, 1, 1);
	assert_true(gpu->memory_used == WH_UNKNOWN && gpu->memory_total == WH_UNKNOWN);
	assert_true(isnan(gpu->power) && isnan(gpu->link_sent) && isnan(gpu->pcie_sent));
	take(&m, 60, 1);
	assert_true(gpu->ecc_uncorrected == WH_UNKNOWN && gpu->reasons == WH_UNKNOWN &&
		    gpu->bar1_total == WH_UNKNOWN && isnan(gpu->power_limit));
	assert_int_equal(m.sample->process_count, 0);
	/* One that is lost keeps nothing. */
	assert_non_null(strstr(m.sample->gpus[1].problem, "GPU is lost"));
	assert_true(m.sample->gpus[1].memory_total == WH_UNKNOWN);
	unlink(path);
	machine_close(&m);
}

/* Every number that is not known has a reason, and no other has one. */
static void why__as_the_numbers(void **state)
{
	const struct top_table *gpus = top_table("gpus");
	struct machine m;

	(void)state;
	machine_open(&m, TOP_EVERYTHING);
	take(&m, 3, 1);
	for (size_t i = 0; i < 2; i++) {
		for (size_t k = 0; k < gpus->field_count; k++) {
			const struct top_field *field = &gpus->fields[k];
			const char *row = (const char *)&m.sample->gpus[i];
			json_t *value = value_to_json(row, field);

			if (field->why)
				assert_int_equal(json_is_null(value),
						 field_reason(gpus, row, k) != NULL);
			json_decref(value);
		}
	}
	assert_int_equal(m.sample->gpus[0].why.busy, 0);
	assert_int_equal(m.sample->gpus[1].why.busy, EOPNOTSUPP);
	machine_close(&m);
}

static void links__rate_of_a_second(void **state)
{
	struct machine m;
	struct top_gpu *gpu;

	(void)state;
	assert_true(isnan(link_rate(WH_UNKNOWN, 5, 1)) && isnan(link_rate(5, WH_UNKNOWN, 1)) &&
		    isnan(link_rate(6, 5, 1)) && isnan(link_rate(5, 6, 0)));
	assert_true(fabs(link_rate(0, 1000000, 0.5) - 2.048) < 1e-9);
	machine_open(&m, 1U << TOP_LINKS);
	gpu = &m.sample->gpus[0];
	take(&m, 3, 1);
	assert_true(isnan(gpu->link_sent) && gpu->link_sent_kib == WH_UNKNOWN);
	machine_close(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(calls__of_a_minute),
		cmocka_unit_test(calls__of_short_intervals),
		cmocka_unit_test(calls__of_long_intervals),
		cmocka_unit_test(calls__of_what_is_shown),
		cmocka_unit_test(cost__too_much_is_asked_less_often),
		cmocka_unit_test(values__are_kept_until_they_are_asked),
		cmocka_unit_test(why__as_the_numbers),
		cmocka_unit_test(links__rate_of_a_second),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
