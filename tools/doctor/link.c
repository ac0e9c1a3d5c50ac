/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links of GPUs once more, under load: GPUs slow theirs down while they have nothing to do. A few
 * copies between pinned host memory and the GPU's own, and meanwhile a look at the links. In a
 * recorded tree links.txt has a line for each GPU that was looked at again, followed by one for
 * each link above it that sysfs shows: "gpu ADDRESS error=ERRNO generation=5 width=16 why=TEXT",
 * "link ADDRESS speed=GT/S width=16".
 */
#include "doctor/doctor.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "platform/cuda.h"
#include "platform/nvml.h"

#define BYTES ((size_t)16 << 20)
#define COPY_SECONDS 0.4 /* a GPU takes some tens of ms to speed its link up */

/* One GPU, on a thread of its own. Never freed where the thread was given up. */
struct load {
	const struct wh_tree *tree;
	struct wh_cuda *cuda;
	struct wh_nvml *nvml; /* NULL: there is none */
	struct link_fact fact;
	pthread_t thread;
	bool started;
	_Atomic bool ended;
};

struct loads {
	struct wh_tree tree;
	size_t count;
	struct load loads[FACTS_GPUS];
};

/* ---- looking --------------------------------------------------------------------------------- */

static double read_number(const struct wh_tree *tree, const char *address, const char *name)
{
	char path[WH_TREE_PATH], line[64], *end;
	double value;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", address);
	if (wh_tree_line(tree, path, name, line, sizeof(line)))
		return NAN;
	value = strtod(line, &end);
	return end == line ? NAN : value;
}

/* The best of what has been seen so far. True: each is what it could be. */
static bool look(struct load *load)
{
	struct link_fact *fact = &load->fact;
	uint32_t value;
	bool all;

	if (load->nvml &&
	    !wh_nvml_number(load->nvml, WH_NVML_PCIE_GENERATION, (unsigned)fact->index, &value) &&
	    (int)value > fact->generation)
		fact->generation = (int)value;
	if (load->nvml &&
	    !wh_nvml_number(load->nvml, WH_NVML_PCIE_WIDTH, (unsigned)fact->index, &value) &&
	    (int)value > fact->width)
		fact->width = (int)value;
	all = fact->generation >= fact->generation_most && fact->width >= fact->width_most;
	for (int i = 0; i < fact->count; i++) {
		double speed = read_number(load->tree, fact->links[i].address,
					   "current_link_speed"),
		       width = read_number(load->tree, fact->links[i].address,
					   "current_link_width");

		if (!(speed <= fact->links[i].speed) && !isnan(speed))
			fact->links[i].speed = speed;
		if (!isnan(width) && (int)width > fact->links[i].width)
			fact->links[i].width = (int)width;
		all &= !(fact->links[i].speed < fact->links[i].speed_most) &&
		       fact->links[i].width >= fact->links[i].width_most;
	}
	return all;
}

/* ---- copying --------------------------------------------------------------------------------- */

static int copy(struct load *load, CUdeviceptr there, void *here, CUstream stream)
{
	struct wh_cuda *cuda = load->cuda;
	double until = facts_now() + COPY_SECONDS;
	bool all = false;
	int error = 0;

	while (!error && !all && facts_now() < until) {
		error = wh_cuda_call(cuda, cuMemcpyHtoDAsync, there, here, BYTES, stream);
		if (!error)
			error = wh_cuda_call(cuda, cuMemcpyDtoHAsync, here, there, BYTES, stream);
		if (error)
			break;
		all = look(load);
		error = wh_cuda_call(cuda, cuStreamSynchronize, stream);
	}
	return error;
}

static int copy_in(struct load *load)
{
	struct wh_cuda *cuda = load->cuda;
	CUstream stream = NULL;
	CUdeviceptr there = 0;
	void *here = NULL;
	int error = wh_cuda_call(cuda, cuMemAlloc, &there, BYTES);

	if (error)
		return error;
	error = wh_cuda_call(cuda, cuMemHostAlloc, &here, BYTES, CUDA_HOST_PORTABLE);
	if (error)
		goto err_free;
	error = wh_cuda_call(cuda, cuStreamCreate, &stream, CUDA_STREAM_NON_BLOCKING);
	if (error)
		goto err_free_host;
	error = copy(load, there, here, stream);
	cuda->cuStreamDestroy(stream);
err_free_host:
	cuda->cuMemFreeHost(here);
err_free:
	cuda->cuMemFree(there);
	return error;
}

static void *run_load(void *arg)
{
	struct load *load = arg;
	struct wh_cuda_device *device;
	struct wh_cuda_scope scope;
	char name[40];
	int error;

	snprintf(name, sizeof(name), "cuda:%s", load->fact.address);
	error = wh_cuda_device_find(load->cuda, name, &device);
	if (!error)
		error = wh_cuda_enter(load->cuda, device, &scope);
	if (!error) {
		error = copy_in(load);
		wh_cuda_leave(&scope);
	}
	load->fact.error = -error;
	snprintf(load->fact.why, sizeof(load->fact.why), "%s", error ? wh_fail_text() : "");
	atomic_store(&load->ended, true);
	return NULL;
}

static void run_loads(void *arg)
{
	struct loads *loads = arg;
	struct wh_nvml *nvml = NULL;
	struct wh_cuda *cuda;

	if (wh_cuda_open(NULL, &cuda))
		return;
	if (wh_nvml_open(NULL, &nvml))
		nvml = NULL;
	for (size_t i = 0; i < loads->count; i++) {
		struct load *load = &loads->loads[i];

		load->tree = &loads->tree;
		load->cuda = cuda;
		load->nvml = load->fact.index < 0 ? NULL : nvml;
		load->started = !pthread_create(&load->thread, NULL, run_load, load);
	}
	for (size_t i = 0; i < loads->count; i++)
		if (loads->loads[i].started)
			pthread_join(loads->loads[i].thread, NULL);
	if (nvml)
		wh_nvml_close(nvml);
	wh_cuda_close(cuda);
}

/* ---- text ------------------------------------------------------------------------------------ */

struct reading {
	struct link_fact *facts, *at; /* `at`: whose lines they are */
	size_t count;
};

static void read_link(const char *line, struct link_fact *fact)
{
	const char *speed = strstr(line, " speed=");
	char address[WH_ADDRESS];

	if (sscanf(line, "link %19s", address) != 1)
		return;
	for (int i = 0; i < fact->count; i++) {
		if (strcmp(fact->links[i].address, address) != 0)
			continue;
		fact->links[i].speed = speed ? strtod(speed + strlen(" speed="), NULL) : NAN;
		fact->links[i].width = (int)facts_value(line, "width");
	}
}

static void read_line(const char *line, void *arg)
{
	struct reading *reading = arg;
	const char *why = strstr(line, " why=");
	char address[WH_ADDRESS];

	if (sscanf(line, "gpu %19s", address) != 1) {
		if (reading->at)
			read_link(line, reading->at);
		return;
	}
	reading->at = NULL;
	for (size_t i = 0; i < reading->count; i++)
		if (strcmp(reading->facts[i].address, address) == 0)
			reading->at = &reading->facts[i];
	if (!reading->at)
		return;
	reading->at->error = (int)facts_value(line, "error");
	reading->at->generation = (int)facts_value(line, "generation");
	reading->at->width = (int)facts_value(line, "width");
	snprintf(reading->at->why, sizeof(reading->at->why), "%s",
		 why ? why + strlen(" why=") : "-");
}

static void record(const struct wh_tree *tree, const struct link_fact *facts, size_t count)
{
	FILE *file = facts_file(tree, "links.txt");

	for (size_t i = 0; file && i < count; i++) {
		fprintf(file, "gpu %s error=%d generation=%d width=%d why=%s\n", facts[i].address,
			facts[i].error, facts[i].generation, facts[i].width, facts[i].why);
		for (int k = 0; k < facts[i].count; k++)
			fprintf(file, "link %s speed=%.1f width=%d\n", facts[i].links[k].address,
				facts[i].links[k].speed, facts[i].links[k].width);
	}
	if (file)
		fclose(file);
}

void facts_links(const struct wh_tree *tree, double seconds, struct link_fact *facts, size_t count)
{
	struct loads *loads;
	bool ended;

	for (size_t i = 0; i < count; i++) {
		facts[i].error = ETIMEDOUT;
		snprintf(facts[i].why, sizeof(facts[i].why), "%s",
			 wh_tree_is_live(tree) ? "the CUDA driver did not answer in time" :
						 "the recording does not tell");
	}
	if (!wh_tree_is_live(tree)) {
		facts_lines(tree, "/links.txt", read_line,
			    &(struct reading){ .facts = facts, .count = count });
		return;
	}
	loads = count && seconds > 0 ? calloc(1, sizeof(*loads)) : NULL;
	if (!loads) {
		record(tree, facts, count);
		return;
	}
	loads->tree = *tree;
	loads->count = count;
	for (size_t i = 0; i < count; i++)
		loads->loads[i].fact = facts[i];
	ended = bounded(run_loads, loads, seconds);
	for (size_t i = 0; i < count; i++)
		if (atomic_load(&loads->loads[i].ended))
			facts[i] = loads->loads[i].fact;
	if (ended)
		free(loads);
	record(tree, facts, count);
}
