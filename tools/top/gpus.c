/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What GPUs are asked, and how often. A question costs a fraction of a millisecond of CPU time in
 * the kernel's driver. So values that change slowly are asked rarely, values that are not shown
 * never, and all but the first few still more rarely if there are many GPUs or their driver is
 * slow.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "top/gpus.h"

#include "util/error.h"

/* CPU time of one sample in s: at one a second, under 2 % of a core together with the rest of the
 * command. */
#define COST_MOST 0.014
#define COST_LITTLE (COST_MOST / 4)
#define COST_SAMPLES 10 /* averaged */
#define PERIOD_FACTOR_MOST 8

typedef void question_function(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds);

/* ---- questions ------------------------------------------------------------------------------- */

/* An errno for struct top_why. */
static uint8_t errno_byte(int error)
{
	return error < -255 ? EIO : (uint8_t)-error;
}

static int ask_indexed(struct wh_nvml *nvml, enum wh_nvml_indexed which, const struct top_gpu *gpu,
		       unsigned at, uint8_t *reason)
{
	uint32_t value;
	int error = wh_nvml_indexed(nvml, which, (unsigned)gpu->index, at, &value);

	if (!error && value > INT32_MAX)
		error = -ENODATA;
	*reason = errno_byte(error);
	return error ? -1 : (int)value;
}

static double ask_watts(struct wh_nvml *nvml, enum wh_nvml_number which, const struct top_gpu *gpu,
			uint8_t *reason)
{
	uint32_t value;

	*reason = errno_byte(wh_nvml_number(nvml, which, (unsigned)gpu->index, &value));
	return *reason ? NAN : value / 1e3;
}

static void ask_busy(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	uint32_t busy, memory_busy;

	(void)seconds;
	gpu->why.busy = gpu->why.memory_busy =
		errno_byte(wh_nvml_utilisation(nvml, (unsigned)gpu->index, &busy, &memory_busy));
	gpu->busy = gpu->why.busy ? -1 : (int)busy;
	gpu->memory_busy = gpu->why.busy ? -1 : (int)memory_busy;
}

static void ask_power(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	(void)seconds;
	gpu->power = ask_watts(nvml, WH_NVML_POWER, gpu, &gpu->why.power);
}

/* The rate in GB/s of a counter of KiB. */
static double link_rate(uint64_t before, uint64_t after, double seconds)
{
	return top_rate(before, after, seconds) * 1024 / 1e9;
}

static void ask_links(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	struct wh_nvml_field fields[] = {
		{ .field = WH_NVML_FIELD_LINK_SENT, .scope = UINT32_MAX, .value = WH_UNKNOWN },
		{ .field = WH_NVML_FIELD_LINK_RECEIVED, .scope = UINT32_MAX, .value = WH_UNKNOWN },
	};

	wh_nvml_fields(nvml, (unsigned)gpu->index, fields, 2);
	gpu->why.link_sent = errno_byte(fields[0].error);
	gpu->why.link_received = errno_byte(fields[1].error);
	gpu->link_sent = link_rate(gpu->link_sent_kib, fields[0].value, seconds);
	gpu->link_received = link_rate(gpu->link_received_kib, fields[1].value, seconds);
	gpu->link_sent_kib = fields[0].value;
	gpu->link_received_kib = fields[1].value;
}

static void ask_memory(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	struct wh_nvml_memory memory = { WH_UNKNOWN, WH_UNKNOWN };

	(void)seconds;
	gpu->why.memory_used = gpu->why.memory_total =
		errno_byte(wh_nvml_memory(nvml, (unsigned)gpu->index, &memory));
	gpu->memory_used = memory.used;
	gpu->memory_total = memory.total;
}

static double ask_pcie_rate(struct wh_nvml *nvml, const struct top_gpu *gpu, unsigned direction,
			    uint8_t *reason)
{
	int value = ask_indexed(nvml, WH_NVML_PCIE_RATE, gpu, direction, reason);

	return value < 0 ? NAN : value / 1e6;
}

static void ask_pcie(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	(void)seconds;
	gpu->pcie_sent = ask_pcie_rate(nvml, gpu, 0, &gpu->why.pcie_sent);
	gpu->pcie_received = ask_pcie_rate(nvml, gpu, 1, &gpu->why.pcie_received);
}

static void ask_clock(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	(void)seconds;
	gpu->clock = ask_indexed(nvml, WH_NVML_CLOCK, gpu, 1, &gpu->why.clock);
}

static void ask_heat(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	(void)seconds;
	gpu->temperature = ask_indexed(nvml, WH_NVML_TEMPERATURE, gpu, 0, &gpu->why.temperature);
}

static void ask_reasons(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	(void)seconds;
	gpu->reasons = WH_UNKNOWN;
	gpu->why.reasons = errno_byte(wh_nvml_reasons(nvml, (unsigned)gpu->index, &gpu->reasons));
}

static void ask_bar1(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	struct wh_nvml_memory memory = { WH_UNKNOWN, WH_UNKNOWN };

	(void)seconds;
	gpu->why.bar1_used = gpu->why.bar1_total =
		errno_byte(wh_nvml_bar1(nvml, (unsigned)gpu->index, &memory));
	gpu->bar1_used = memory.used;
	gpu->bar1_total = memory.total;
}

static void ask_memory_clock(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	(void)seconds;
	gpu->memory_clock = ask_indexed(nvml, WH_NVML_CLOCK, gpu, 2, &gpu->why.memory_clock);
}

static void ask_errors(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	unsigned index = (unsigned)gpu->index;
	uint32_t replays;

	(void)seconds;
	gpu->ecc_corrected = gpu->ecc_uncorrected = WH_UNKNOWN;
	gpu->why.ecc_corrected = errno_byte(wh_nvml_ecc(nvml, index, false, &gpu->ecc_corrected));
	gpu->why.ecc_uncorrected =
		errno_byte(wh_nvml_ecc(nvml, index, true, &gpu->ecc_uncorrected));
	gpu->why.pcie_replays =
		errno_byte(wh_nvml_number(nvml, WH_NVML_PCIE_REPLAYS, index, &replays));
	gpu->pcie_replays = gpu->why.pcie_replays ? WH_UNKNOWN : replays;
}

/* Only an administrator changes them. */
static void ask_limits(struct wh_nvml *nvml, struct top_gpu *gpu, double seconds)
{
	(void)seconds;
	gpu->power_limit = ask_watts(nvml, WH_NVML_POWER_LIMIT, gpu, &gpu->why.power_limit);
	gpu->clock_most = ask_indexed(nvml, WH_NVML_CLOCK_MOST, gpu, 1, &gpu->why.clock_most);
	gpu->memory_clock_most =
		ask_indexed(nvml, WH_NVML_CLOCK_MOST, gpu, 2, &gpu->why.memory_clock_most);
}

/* How often each question is asked: every `period` intervals, or every `period` seconds if
 * intervals are longer than a second; 1: for each sample. docs/top.md has the same table. */
static const struct {
	double period;
	question_function *ask; /* NULL: one question for all GPUs */
} questions[TOP_QUESTIONS] = {
	[TOP_BUSY] = { 1, ask_busy },
	[TOP_POWER] = { 1, ask_power },
	[TOP_LINKS] = { 1, ask_links },
	[TOP_MEMORY] = { 2, ask_memory },
	[TOP_CLOCK] = { 2, ask_clock },
	[TOP_PCIE] = { 2, ask_pcie },
	[TOP_PROCESS_LIST] = { 3, NULL },
	[TOP_HEAT] = { 5, ask_heat },
	[TOP_REASONS] = { 5, ask_reasons },
	[TOP_BAR1] = { 5, ask_bar1 },
	[TOP_MEMORY_CLOCK] = { 5, ask_memory_clock },
	[TOP_ERRORS] = { 10, ask_errors },
	[TOP_LIMITS] = { 60, ask_limits },
};

/* ---- GPUs ------------------------------------------------------------------------------------ */

static void gpu_forget(struct top_gpu *gpu)
{
	struct top_gpu empty = {
		.index = gpu->index,
		.busy = -1,
		.memory_busy = -1,
		.memory_used = WH_UNKNOWN,
		.memory_total = WH_UNKNOWN,
		.bar1_used = WH_UNKNOWN,
		.bar1_total = WH_UNKNOWN,
		.power = NAN,
		.power_limit = NAN,
		.temperature = -1,
		.clock = -1,
		.clock_most = -1,
		.memory_clock = -1,
		.memory_clock_most = -1,
		.pcie_sent = NAN,
		.pcie_received = NAN,
		.pcie_most = gpu->pcie_most,
		.link_sent = NAN,
		.link_received = NAN,
		.link_most = gpu->link_most,
		.ecc_corrected = WH_UNKNOWN,
		.ecc_uncorrected = WH_UNKNOWN,
		.pcie_replays = WH_UNKNOWN,
		.reasons = WH_UNKNOWN,
		.link_sent_kib = WH_UNKNOWN,
		.link_received_kib = WH_UNKNOWN,
	};

	memcpy(empty.name, gpu->name, sizeof(empty.name));
	memcpy(empty.uuid, gpu->uuid, sizeof(empty.uuid));
	memcpy(empty.address, gpu->address, sizeof(empty.address));
	*gpu = empty;
}

void top_name_gpus(const struct wh_topology *topology, struct top_sample *out)
{
	out->gpu_count = 0;
	snprintf(out->driver, sizeof(out->driver), "%s", topology->driver);
	for (size_t i = 0; i < topology->gpu_count && out->gpu_count < TOP_GPUS; i++) {
		const struct wh_gpu *from = &topology->gpus[i];
		struct top_gpu *gpu;
		double links = 0;
		int where;

		if (from->index < 0)
			continue;
		gpu = &out->gpus[out->gpu_count++];
		*gpu = (struct top_gpu){ .index = from->index };
		memcpy(gpu->name, from->name, sizeof(gpu->name));
		memcpy(gpu->uuid, from->uuid, sizeof(gpu->uuid));
		memcpy(gpu->address, from->address, sizeof(gpu->address));
		gpu->pcie_most = wh_pcie_raw(wh_pcie_speed(from->pcie_generation_most),
					     from->pcie_width_most);
		if (isnan(gpu->pcie_most))
			gpu->pcie_most = wh_pcie_path(topology, from->pci, &where);
		for (size_t k = 0; k < topology->link_count; k++)
			if (topology->links[k].gpu == (int)i && topology->links[k].active == 1)
				links += topology->links[k].speed;
		gpu->link_most = links > 0 ? links : NAN;
		gpu_forget(gpu);
	}
}

static bool is_process(const struct wh_tree *tree, uint32_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u", pid);
	return pid > 0 && pid <= INT32_MAX && !wh_tree_exists(tree, path);
}

/* Which processes use GPUs. The host thread asks /proc about them. */
static void ask_processes(const struct wh_tree *tree, struct wh_nvml *nvml, struct top_sample *out)
{
	out->process_count = 0;
	for (size_t i = 0; i < out->gpu_count; i++) {
		struct wh_nvml_process list[64];
		unsigned count = 64;

		if (*out->gpus[i].problem ||
		    wh_nvml_processes(nvml, (unsigned)out->gpus[i].index, list, &count))
			continue;
		for (unsigned k = 0; k < count && out->process_count < TOP_PROCESSES; k++) {
			struct top_process *process = &out->processes[out->process_count];

			/* The PID may be of another PID namespace. */
			bool here = is_process(tree, list[k].pid);

			*process = (struct top_process){
				.pid = here ? (int)list[k].pid : -1,
				.elsewhere = !here,
				.gpu = out->gpus[i].index,
				.gpu_memory = list[k].memory,
				.memory = WH_UNKNOWN,
				.cpu = NAN,
			};
			out->process_count++;
		}
	}
}

static void gpu_lose(struct top_gpu *gpu)
{
	gpu_forget(gpu);
	snprintf(gpu->problem, sizeof(gpu->problem), "%s", wh_fail_text());
}

/* Try again to reach a GPU. True: it was lost and answers now. */
static bool gpu_comes_back(struct wh_nvml *nvml, struct top_gpu *gpu)
{
	bool lost = *gpu->problem;
	char text[WH_NVML_TEXT];

	if (wh_nvml_retry(nvml, (unsigned)gpu->index)) {
		gpu_lose(gpu);
		return false;
	}
	*gpu->problem = '\0';
	/* A GPU that was lost at the start has no name yet. */
	if (lost && !*gpu->name && !wh_nvml_text(nvml, WH_NVML_NAME, (unsigned)gpu->index, text))
		snprintf(gpu->name, sizeof(gpu->name), "%.*s", WH_NAME - 1, text);
	if (lost && !*gpu->uuid && !wh_nvml_text(nvml, WH_NVML_UUID, (unsigned)gpu->index, text))
		snprintf(gpu->uuid, sizeof(gpu->uuid), "%.*s", WH_NAME - 1, text);
	return lost;
}

void top_ask_gpus(struct top_asking *asking, const struct wh_tree *tree, struct wh_nvml *nvml,
		  double time, double interval, struct top_sample *out)
{
	double scale =
		(interval < 1 ? interval : 1) * (asking->period_factor ? asking->period_factor : 1);
	bool back[TOP_GPUS];

	for (size_t i = 0; i < out->gpu_count; i++)
		back[i] = gpu_comes_back(nvml, &out->gpus[i]);
	for (unsigned q = 0; q < TOP_QUESTIONS; q++) {
		double seconds = time - asking->asked[q];
		/* Questions of each sample are always due; half an interval allows for late wakes.
		 */
		double period = questions[q].period > 1 ? questions[q].period * scale : 0;

		bool due = !(asking->asked[q] > 0) || seconds >= period - interval / 2;

		if (!(asking->needs & 1U << q))
			continue;
		if (due)
			asking->asked[q] = time;
		if (due && !questions[q].ask)
			ask_processes(tree, nvml, out);
		/* A GPU that comes back is asked everything. */
		for (size_t i = 0; i < out->gpu_count && questions[q].ask; i++)
			if ((due || back[i]) && !*out->gpus[i].problem)
				questions[q].ask(nvml, &out->gpus[i], seconds);
	}
	/* A GPU that was lost meanwhile keeps no old answers. */
	for (size_t i = 0; i < out->gpu_count; i++)
		if (!*out->gpus[i].problem && wh_nvml_device(nvml, (unsigned)out->gpus[i].index))
			gpu_lose(&out->gpus[i]);
}

void top_asked_for(struct top_asking *asking, double seconds, double interval)
{
	double most = COST_MOST * (interval > 1 ? interval : 1), mean;

	/* The first sample asks everything: it does not count. */
	if (asking->samples++ == 0)
		return;
	asking->spent += seconds;
	if (asking->samples <= COST_SAMPLES)
		return;
	mean = asking->spent / COST_SAMPLES;
	if (!asking->period_factor)
		asking->period_factor = 1;
	if (mean > most && asking->period_factor < PERIOD_FACTOR_MOST)
		asking->period_factor *= 2;
	else if (mean < COST_LITTLE && asking->period_factor > 1)
		asking->period_factor /= 2;
	asking->samples = 1;
	asking->spent = 0;
}
