/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the NVIDIA driver, of GPUs, and of what CUDA can do with them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "platform/nvml.h"

static const char open_modules[] =
	"install the open kernel modules (nvidia-open, or the .run file with -M=open): the closed "
	"ones export no dma-buf";

static const char start_manager[] = "systemctl start nvidia-fabricmanager, of the driver's version";

/* ---- the driver ------------------------------------------------------------------------------ */

static void driver_flavour(const struct doctor *doctor, struct finding *finding)
{
	static const char path[] = "/proc/driver/nvidia/version";
	char text[1024];
	int length = wh_tree_read(&doctor->tree, path, text, sizeof(text));

	if (length == -ENOENT && !doctor_gpus(doctor)) {
		finding_add_absent(finding, ABSENT_GPU);
	} else if (length == -ENOENT) {
		finding_add(finding, FAIL, "a GPU, but no %s: no driver is loaded", path);
		finding_advise(finding, "modprobe nvidia; dmesg says why it does not load");
	} else if (length < 0) {
		finding_add(finding, UNKNOWN, "%s: %s", path, strerror(-length));
	} else if (!strstr(text, "Kernel Module")) {
		finding_add(finding, UNKNOWN, "%s does not name its kernel module", path);
	} else {
		bool is_open = strstr(text, "Open Kernel Module");

		text[strcspn(text, "\n")] = '\0';
		finding_add(finding, is_open ? PASS : WARN, "%.200s", text);
		if (!is_open)
			finding_advise(finding, "%s", open_modules);
	}
}

static void driver_nvml(const struct doctor *doctor, struct finding *finding)
{
	const char *version = doctor->topology ? doctor->topology->driver : "";

	if (doctor->late) {
		finding_add(finding, UNKNOWN, "NVML did not answer in time");
		finding_advise(
			finding,
			"see dmesg for NVRM and Xid; nvidia-smi -pm 1 keeps the driver loaded");
	} else if (doctor->nvml) {
		finding_add(finding, PASS, "NVML answers, driver %s", *version ? version : "-");
	} else if (!doctor_gpus(doctor) && doctor->nvml_error != -ELIBBAD) {
		finding_add_absent(finding, ABSENT_GPU);
	} else if (doctor->nvml_error == -EACCES || doctor->nvml_error == -EPERM) {
		finding_add(finding, UNKNOWN, "%s", doctor->nvml_why);
	} else {
		finding_add(finding, FAIL, "%s", doctor->nvml_why);
		finding_advise(
			finding,
			doctor->nvml_error == -ELIBBAD ?
				"library and modules are of different versions: reload the NVIDIA "
				"modules, or reboot" :
				"install the driver's user libraries of the version that is "
				"loaded (in a container: nvidia-container-toolkit)");
	}
}

static void gpu_health(const struct doctor *doctor, size_t index, const char *name,
		       struct finding *finding)
{
	const struct wh_gpu *gpu = &doctor->topology->gpus[index];

	if (*gpu->problem) {
		finding_add(finding, FAIL, "%s (%s): %s", name,
			    *gpu->address ? gpu->address : "address unknown", gpu->problem);
		finding_advise(
			finding,
			"see dmesg for Xid; reset the GPU or reboot; a container needs all of "
			"/dev/nvidia*");
	} else if (gpu->recovery > 0) {
		finding_add(finding, FAIL, "%s (%s) requests recovery action %d", name,
			    gpu->address, gpu->recovery);
		finding_advise(
			finding,
			"1: nvidia-smi --gpu-reset; 2: reboot; 3 and 4: end the processes that use "
			"the GPU, then reset it");
	} else {
		finding_add(finding, PASS, "%s is healthy", name);
	}
}

static void fabric_joined(const struct doctor *doctor, size_t index, const char *name,
			  struct finding *finding)
{
	const struct wh_gpu *gpu = &doctor->topology->gpus[index];

	if (*gpu->problem) {
		finding_add(finding, UNKNOWN, "%s cannot be asked", name);
	} else if (gpu->fabric == WH_NVML_FABRIC_COMPLETED && *gpu->domain) {
		finding_add(finding, PASS, "%s is in the NVLink domain %s (cluster/clique)", name,
			    gpu->domain);
	} else if (gpu->fabric == WH_NVML_FABRIC_COMPLETED) {
		finding_add(finding, PASS, "%s has joined its fabric, which ends at this host",
			    name);
	} else if (gpu->fabric == WH_NVML_FABRIC_NOT_STARTED ||
		   gpu->fabric == WH_NVML_FABRIC_IN_PROGRESS) {
		finding_add(finding, FAIL, "%s has not joined its fabric (state %d)", name,
			    gpu->fabric);
		finding_advise(finding, "%s", start_manager);
	} else {
		finding_add(finding, INFO, "%s belongs to no NVSwitch fabric", name);
	}
}

static void gpu_fabric(const struct doctor *doctor, struct finding *finding)
{
	/* CUDA_ERROR_SYSTEM_NOT_READY */
	if (!doctor->cuda.known || !strstr(doctor->cuda.why, "802")) {
		doctor_each_gpu(doctor, fabric_joined, finding);
		return;
	}
	finding_add(finding, FAIL, "%s", doctor->cuda.why);
	finding_advise(finding, "%s", start_manager);
}

static void gpu_nvlink(const struct doctor *doctor, size_t index, const char *name,
		       struct finding *finding)
{
	size_t active = 0, down = 0;

	for (size_t i = 0; i < doctor->topology->link_count; i++) {
		const struct wh_nvlink *link = &doctor->topology->links[i];

		active += link->gpu == (int)index && link->active == 1;
		down += link->gpu == (int)index && link->active != 1;
	}
	if (*doctor->topology->gpus[index].problem) {
		finding_add(finding, UNKNOWN, "%s cannot be asked", name);
	} else if (down) {
		finding_add(finding, WARN, "%s: %zu of %zu NVLinks are down", name, down,
			    active + down);
		finding_advise(
			finding,
			"nvidia-smi nvlink -s and dmesg; the fabric manager's log on NVSwitch "
			"machines");
	} else if (active) {
		finding_add(finding, PASS, "%s: %zu NVLinks", name, active);
	}
}

static void gpu_nvlink_end(const struct doctor *doctor, struct finding *finding)
{
	(void)doctor;
	if (!*finding->evidence)
		finding_add(finding, INFO, "no NVLinks");
}

static void gpu_bar1(const struct doctor *doctor, size_t index, const char *name,
		     struct finding *finding)
{
	const struct wh_gpu *gpu = &doctor->topology->gpus[index];
	bool known = gpu->bar1_bytes != WH_UNKNOWN && gpu->memory_bytes != WH_UNKNOWN,
	     small = known && gpu->bar1_bytes < gpu->memory_bytes;
	char bar1[32], memory[32];

	topo_size(bar1, sizeof(bar1), gpu->bar1_bytes);
	topo_size(memory, sizeof(memory), gpu->memory_bytes);
	finding_add(finding,
		    !known ? UNKNOWN :
		    small  ? WARN :
			     PASS,
		    "%s: BAR1 %s, memory %s", name, bar1, memory);
	if (small)
		finding_advise(
			finding,
			"NICs and the CPU reach no more than BAR1 of the memory at a time; enable "
			"Resizable BAR and Above 4G Decoding in the BIOS");
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

/* True: CUDA lists no GPU, and the finding says why. */
static bool cuda_is_missing(const struct doctor *doctor, struct finding *finding)
{
	if (doctor->cuda.known && doctor->cuda.count)
		return false;
	if (!doctor->cuda.known)
		finding_add(finding, UNKNOWN, "%s",
			    wh_tree_is_live(&doctor->tree) ?
				    "the CUDA driver did not answer in time" :
				    "the recorded tree has no cuda.txt");
	else if (!doctor_gpus(doctor))
		finding_add_absent(finding, ABSENT_GPU);
	else
		finding_add(finding, FAIL, "%s", doctor->cuda.why);
	if (finding->verdict == FAIL)
		finding_advise(finding, "nvidia-smi and dmesg show more");
	return true;
}

static void gpu_direct(const struct doctor *doctor, struct finding *finding)
{
	if (cuda_is_missing(doctor, finding))
		return;
	for (int i = 0; i < doctor->cuda.count; i++) {
		const struct cuda_fact *gpu = &doctor->cuda.gpus[i];
		bool unknown = gpu->rdma < 0 || gpu->dma_buf < 0,
		     good = gpu->rdma == 1 && gpu->dma_buf == 1;

		finding_add(finding,
			    unknown ? UNKNOWN :
			    good    ? PASS :
				      WARN,
			    "%s: GPUDirect RDMA %d, of cuMemCreate() memory %d, dma-buf %d, fabric "
			    "handles %d",
			    gpu->address, gpu->rdma, gpu->rdma_vmm, gpu->dma_buf, gpu->fabric);
		if (gpu->dma_buf == 0)
			finding_advise(finding, "%s", open_modules);
		else if (gpu->rdma == 0)
			finding_advise(finding,
				       "NICs cannot reach this GPU's memory; transfers are staged "
				       "through host "
				       "memory");
	}
}

bool doctor_environment(const struct doctor *doctor, const char *name, char *out, size_t size)
{
	char text[4096], *next = text, *line;
	const char *value;
	size_t length = strlen(name);

	*out = 0;
	if (wh_tree_is_live(&doctor->tree)) {
		value = getenv(name);
		snprintf(out, size, "%s", value ? value : "");
		return value;
	}
	if (wh_tree_read(&doctor->tree, "/environment", text, sizeof(text)) < 0)
		return false;
	while ((line = strsep(&next, "\n"))) {
		if (strncmp(line, name, length) != 0 || line[length] != '=')
			continue;
		snprintf(out, size, "%s", line + length + 1);
		return true;
	}
	return false;
}

/* Check a list such as "0,GPU-8f6d,7". */
static void visible_check(const struct doctor *doctor, char *list, bool by_bus,
			  struct finding *finding)
{
	size_t gpus = doctor->topology->gpu_count;
	bool alike = true;
	char *item;

	for (size_t i = 1; i < gpus; i++)
		alike &=
			strcmp(doctor->topology->gpus[i].name, doctor->topology->gpus[0].name) == 0;
	while ((item = strsep(&list, ","))) {
		char *end;
		long index = strtol(item, &end, 10);

		if (strncmp(item, "GPU-", 4) == 0 || strncmp(item, "MIG-", 4) == 0)
			continue;
		if (end == item || *end || index < 0 || (size_t)index >= gpus) {
			finding_add(
				finding, WARN,
				"'%.32s' is none of the %zu GPUs: CUDA ignores it and the rest of "
				"the "
				"list",
				item, gpus);
			finding_advise(finding, "use UUIDs, which nvidia-smi -L lists");
		} else if (!alike && !by_bus) {
			finding_add(finding, WARN,
				    "'%.32s': CUDA numbers the fastest GPU first, nvidia-smi the "
				    "lowest "
				    "bus",
				    item);
			finding_advise(finding,
				       "export CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs");
		}
	}
}

static void cuda_order(const struct doctor *doctor, struct finding *finding)
{
	char visible[512], order[64] = "";
	bool by_bus = doctor_environment(doctor, "CUDA_DEVICE_ORDER", order, sizeof(order)) &&
		      strcmp(order, "PCI_BUS_ID") == 0;

	if (!doctor_environment(doctor, "CUDA_VISIBLE_DEVICES", visible, sizeof(visible))) {
		finding_add(finding, PASS, "CUDA_VISIBLE_DEVICES is not set");
	} else if (!*visible) {
		finding_add(finding, WARN, "CUDA_VISIBLE_DEVICES is empty: CUDA sees no GPU");
		finding_advise(finding, "unset CUDA_VISIBLE_DEVICES");
	} else if (!doctor->nvml) {
		finding_add(finding, UNKNOWN, "CUDA_VISIBLE_DEVICES=%.100s; NVML cannot be asked",
			    visible);
	} else {
		finding_add(finding, PASS, "CUDA_VISIBLE_DEVICES=%.100s", visible);
		visible_check(doctor, visible, by_bus, finding);
	}
}

static void gpu_imex(const struct doctor *doctor, struct finding *finding)
{
	static const char folder[] = "/dev/nvidia-caps-imex-channels";
	struct wh_tree_names names;
	bool fabric = false, spans = false;
	int error = wh_tree_list(&doctor->tree, folder, &names);

	for (int i = 0; i < doctor->cuda.count; i++)
		fabric |= doctor->cuda.gpus[i].fabric == 1;
	for (size_t i = 0; doctor->nvml && i < doctor->topology->gpu_count; i++)
		spans |= *doctor->topology->gpus[i].domain != '\0';
	if (!error && names.count) {
		char path[WH_TREE_PATH];

		snprintf(path, sizeof(path), "%s/%.64s", folder, names.name[0]);
		error = wh_tree_open(&doctor->tree, path, true);
		finding_add(finding, error ? WARN : PASS, "%s: %s", path,
			    error ? strerror(-error) : "opens");
		if (error)
			finding_advise(finding, "add it to the container's devices");
	} else if (error && error != -ENOENT) {
		finding_add(finding, UNKNOWN, "%s: %s", folder, strerror(-error));
	} else if (!doctor_gpus(doctor)) {
		finding_add_absent(finding, ABSENT_GPU);
	} else {
		finding_add(finding, spans ? WARN : INFO,
			    "no IMEX channel: memory cannot be shared with other hosts over "
			    "NVLink%s",
			    spans  ? ", although a GPU is in a domain of several" :
			    fabric ? ", although this GPU supports it" :
				     "");
		if (fabric || spans)
			finding_advise(
				finding,
				"in a multi-node NVLink domain: nvidia-modprobe -c 0, and start "
				"the nvidia-imex service; a pod: resources: {claims: [{name: "
				"imex}]} of a ComputeDomain of NVIDIA's DRA driver");
	}
	wh_tree_names_free(&names);
}

/* ---- device files ---------------------------------------------------------------------------- */

static void device_file_check(const struct doctor *doctor, const char *path,
			      struct finding *finding)
{
	int error = wh_tree_open(&doctor->tree, path, true);
	bool refused = error == -EACCES || error == -EPERM || error == -ENOENT || error == -ENXIO;

	finding_add(finding,
		    !error  ? PASS :
		    refused ? FAIL :
			      UNKNOWN,
		    "%s: %s", path, error ? strerror(-error) : "opens");
	if (error == -ENOENT || error == -ENXIO)
		finding_advise(
			finding,
			"nvidia-modprobe -u -c 0 creates them; in a container run it with the "
			"NVIDIA runtime (--gpus all)");
	else if (error)
		finding_advise(finding,
			       "add it to the container's devices, or allow it in its cgroup");
}

static void gpu_files(const struct doctor *doctor, struct finding *finding)
{
	struct wh_tree_names names;
	size_t count = 0;

	if (!doctor_gpus(doctor) && wh_tree_exists(&doctor->tree, "/dev/nvidiactl")) {
		finding_add_absent(finding, ABSENT_GPU);
		return;
	}
	device_file_check(doctor, "/dev/nvidiactl", finding);
	device_file_check(doctor, "/dev/nvidia-uvm", finding);
	if (wh_tree_list(&doctor->tree, "/dev", &names))
		return;
	for (size_t i = 0; i < names.count; i++) {
		char path[WH_TREE_PATH];

		if (strncmp(names.name[i], "nvidia", 6) != 0 || names.name[i][6] < '0' ||
		    names.name[i][6] > '9')
			continue;
		count++;
		snprintf(path, sizeof(path), "/dev/%.64s", names.name[i]);
		device_file_check(doctor, path, finding);
	}
	wh_tree_names_free(&names);
	if (!count) {
		finding_add(finding, FAIL, "no /dev/nvidia0 or any other /dev/nvidiaN");
		finding_advise(finding, "nvidia-modprobe -c 0, or give the container its GPUs");
	}
}

const struct check doctor_gpu_checks[] = {
	{ .id = "driver.flavour",
	  .title = "open NVIDIA kernel modules",
	  .needs = NEEDS_NVML,
	  .machine = driver_flavour },
	{ .id = "driver.nvml",
	  .title = "NVML answers, and matches the kernel modules",
	  .needs = NEEDS_NVML,
	  .machine = driver_nvml },
	{ .id = "gpu.health", .title = "GPUs are healthy", .needs = NEEDS_NVML, .gpu = gpu_health },
	{ .id = "gpu.files",
	  .title = "device files of GPUs can be opened",
	  .needs = NEEDS_NVML,
	  .machine = gpu_files },
	{ .id = "gpu.direct",
	  .title = "GPUDirect RDMA and dma-buf",
	  .needs = NEEDS_NVML | NEEDS_CUDA,
	  .machine = gpu_direct },
	{ .id = "gpu.bar1",
	  .title = "BAR1 covers the memory of the GPU",
	  .needs = NEEDS_NVML,
	  .gpu = gpu_bar1 },
	{ .id = "gpu.nvlink",
	  .title = "NVLinks are active",
	  .needs = NEEDS_NVML,
	  .gpu = gpu_nvlink,
	  .end = gpu_nvlink_end },
	{ .id = "gpu.fabric",
	  .title = "GPUs have joined their NVSwitch fabric",
	  .needs = NEEDS_NVML | NEEDS_CUDA,
	  .machine = gpu_fabric },
	{ .id = "gpu.imex",
	  .title = "IMEX channel, for NVLink between hosts",
	  .needs = NEEDS_NVML | NEEDS_CUDA,
	  .machine = gpu_imex },
	{ .id = "cuda.order",
	  .title = "CUDA_VISIBLE_DEVICES names the GPUs that you mean",
	  .needs = NEEDS_NVML,
	  .machine = cuda_order },
	{ 0 },
};
