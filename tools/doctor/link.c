/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The PCIe links of GPUs under load: an idle GPU slows its links down. Each GPU copies to and from
 * pinned host memory while its links are read over and over. A recorded tree has links.txt, with a
 * line for each GPU, followed by one for each link above it that sysfs shows:
 * "gpu ADDRESS error=ERRNO generation=5 width=16 why=TEXT", "link ADDRESS speed=GT/S width=16".
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
#define COPY_SECONDS 0.4 /* a GPU needs some tens of ms to speed its link up */

/* One GPU, on a thread of its own. Never freed if the thread was abandoned. */
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

/* ---- reading links --------------------------------------------------------------------------- */

static double link_read(const struct wh_tree *tree, const char *address, const char *name)
{
	char path[WH_TREE_PATH], line[64], *end;
	double value;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", address);
	if (wh_tree_line(tree, path, name, line, sizeof(line)))
		return NAN;
	value = strtod(line, &end);
	return end == line ? NAN : value;
}

/* Keep the highest values so far. True: every link is as fast as it can be. */
static bool load_watch(struct load *load)
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
		double speed = link_read(load->tree, fact->links[i].address, "current_link_speed"),
		       width = link_read(load->tree, fact->links[i].address, "current_link_width");

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

static int load_copy(struct load *load, CUdeviceptr there, void *here, CUstream stream)
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
		all = load_watch(load);
		error = wh_cuda_call(cuda, cuStreamSynchronize, stream);
	}
	return error;
}

static int load_allocate(struct load *load)
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
	error = load_copy(load, there, here, stream);
	cuda->cuStreamDestroy(stream);
err_free_host:
	cuda->cuMemFreeHost(here);
err_free:
	cuda->cuMemFree(there);
	return error;
}

static void *load_run(void *arg)
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
		error = load_allocate(load);
		wh_cuda_leave(&scope);
	}
	load->fact.error = -error;
	snprintf(load->fact.why, sizeof(load->fact.why), "%s", error ? wh_fail_text() : "");
	atomic_store(&load->ended, true);
	return NULL;
}

static void loads_run(void *arg)
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
		load->started = !pthread_create(&load->thread, NULL, load_run, load);
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
	struct link_fact *facts, *at; /* `at`: of the GPU named last */
	size_t count;
};

static void reading_link(const char *line, struct link_fact *fact)
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

static void reading_line(const char *line, void *arg)
{
	struct reading *reading = arg;
	const char *why = strstr(line, " why=");
	char address[WH_ADDRESS];

	if (sscanf(line, "gpu %19s", address) != 1) {
		if (reading->at)
			reading_link(line, reading->at);
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

static void links_record(const struct wh_tree *tree, const struct link_fact *facts, size_t count)
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
						 "the recorded tree has no line for it");
	}
	if (!wh_tree_is_live(tree)) {
		facts_lines(tree, "/links.txt", reading_line,
			    &(struct reading){ .facts = facts, .count = count });
		return;
	}
	loads = count && seconds > 0 ? calloc(1, sizeof(*loads)) : NULL;
	if (!loads) {
		links_record(tree, facts, count);
		return;
	}
	loads->tree = *tree;
	loads->count = count;
	for (size_t i = 0; i < count; i++)
		loads->loads[i].fact = facts[i];
	ended = facts_bounded(loads_run, loads, seconds);
	for (size_t i = 0; i < count; i++)
		if (atomic_load(&loads->loads[i].ended))
			facts[i] = loads->loads[i].fact;
	if (ended)
		free(loads);
	links_record(tree, facts, count);
}
