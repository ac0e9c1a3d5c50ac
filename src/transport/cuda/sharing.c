/* SPDX-License-Identifier: Apache-2.0 */
/* Transport cuda: which GPUs other processes compute on, as NVML knows it. Without MPS the GPU
 * works for one process after the other, so that a kernel of ours stops theirs; copy engines stop
 * nobody.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "platform/nvml.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "util/clock.h"
#include "util/error.h"

#define LOOK_AGAIN (10 * WH_SECOND)
#define PROCESSES 64 /* of a GPU; more are not counted */
#define MPS "nvidia-cuda-mps" /* as much of the server's name as the kernel keeps */

void wh_gpu_sharing_init(struct wh_gpu_sharing *sharing)
{
	pthread_mutex_init(&sharing->lock, NULL);
}

void wh_gpu_sharing_destroy(struct wh_gpu_sharing *sharing)
{
	pthread_mutex_destroy(&sharing->lock);
}

static bool process_is_mps(uint32_t pid)
{
	char path[40], name[sizeof(MPS)] = "";
	FILE *file;
	bool is;

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	is = fgets(name, sizeof(name), file) && !strcmp(name, MPS);
	fclose(file);
	return is;
}

/* Who else computes on the GPU? This process does, or nobody would have asked. In a PID namespace
 * of its own NVML may list it by another number: then one of the list is taken for it. */
static void sharing_count(struct wh_nvml *nvml, unsigned index, struct wh_gpu_others *others)
{
	struct wh_nvml_process list[PROCESSES];
	unsigned count = PROCESSES;
	bool found = false;

	*others = (struct wh_gpu_others){ 0 };
	if (wh_nvml_processes(nvml, index, list, &count))
		return;
	for (unsigned i = 0; i < count; i++) {
		if (process_is_mps(list[i].pid)) {
			others->count = 0; /* its clients run side by side */
			return;
		}
		if (list[i].pid == (uint32_t)getpid())
			found = true;
		else if (!others->count++)
			others->pid = list[i].pid;
	}
	if (!found && others->count) {
		others->count--;
		others->pid = 0;
	}
}

/* Under the lock. Without NVML nothing is known. */
static void sharing_look(struct wh_gpu_sharing *sharing, struct wh_gpus *gpus)
{
	struct wh_cuda *cuda = wh_gpus_cuda(gpus);
	struct wh_nvml *nvml;
	unsigned index;

	memset(sharing->of, 0, sizeof(sharing->of));
	if (!wh_nvml_open(NULL, &nvml)) {
		for (unsigned d = 0; d < cuda->device_count; d++)
			if (wh_cuda_nvml_find(nvml, &cuda->devices[d], &index))
				sharing_count(nvml, index, &sharing->of[d]);
		wh_nvml_close(nvml);
	}
	for (unsigned d = 0; d < cuda->device_count; d++)
		wh_gpus_share(gpus, &cuda->devices[d], sharing->of[d].count);
	sharing->looked_at = wh_now();
}

void wh_gpu_sharing_first(struct wh_device_mappings *mappings)
{
	struct wh_gpu_sharing *sharing = &mappings->sharing;

	pthread_mutex_lock(&sharing->lock);
	if (!sharing->looked_at && !wh_engine_inside(mappings->engine))
		sharing_look(sharing, mappings->gpus);
	pthread_mutex_unlock(&sharing->lock);
}

bool wh_gpu_sharing_describe(struct wh_device_mappings *mappings,
			     const struct wh_cuda_device *device, char *line, size_t size)
{
	struct wh_gpu_sharing *sharing = &mappings->sharing;
	struct wh_gpu_others others;
	char who[64];

	pthread_mutex_lock(&sharing->lock);
	/* NVML may block: not on the engine's own threads. */
	if (!wh_engine_inside(mappings->engine) &&
	    (!sharing->looked_at || wh_now() - sharing->looked_at > LOOK_AGAIN))
		sharing_look(sharing, mappings->gpus);
	others = sharing->of[device->ordinal];
	pthread_mutex_unlock(&sharing->lock);
	if (!others.count)
		return false;
	if (others.count > 1)
		snprintf(who, sizeof(who), "%u other processes compute", others.count);
	else if (others.pid)
		snprintf(who, sizeof(who), "another process (pid %u) computes", others.pid);
	else
		snprintf(who, sizeof(who), "another process computes");
	snprintf(
		line, size,
		"cuda:%d: shared by time slices (no MPS): %s on it, too. While a kernel moves "
		"blocks, a model there loses 40 to 46 %% of its speed (one H100, both busy all the "
		"time), and nothing while copy engines do, which therefore move long ones between "
		"it and the host; move them in the model's own process, or start MPS",
		device->ordinal, who);
	return true;
}
