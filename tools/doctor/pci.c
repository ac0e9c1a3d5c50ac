/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of how GPUs and NICs are attached: PCIe links, bridges, the IOMMU, NUMA nodes. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "topology/pci-config.h"

static const char run_as_root[] = "run wherry doctor as root: the rest of the configuration space "
				  "needs CAP_SYS_ADMIN";

static int config_read(const struct doctor *doctor, const struct wh_pci *pci, uint8_t *config)
{
	char path[WH_TREE_PATH];

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/config", pci->address);
	return wh_tree_read(&doctor->tree, path, (char *)config, WH_PCI_CONFIG + 1);
}

/* ---- links ----------------------------------------------------------------------------------- */

#define LINK_SECONDS 2.5 /* for all GPUs that are watched while they copy */

static const char reseat[] =
	"reseat the card or its riser; lspci -vv shows LnkSta; a slot may share its PCIe lanes";

static const char check_again[] = "check while the GPU copies: wherry bench in one terminal, "
				  "wherry doctor --only pci.link in another";

static bool hop_is_slow(const struct wh_hop *hop)
{
	return (hop->width > 0 && hop->width < hop->width_most) || hop->speed < hop->speed_most;
}

/* `load`: the links of the GPU below while it copies; NULL: it was not watched. */
static void hop_check(const struct wh_topology *topology, const struct wh_hop *hop,
		      const char *name, const struct link_fact *load, struct finding *finding)
{
	const char *address = topology->pci[hop->device].address;
	struct wh_hop loaded = *hop;
	char now[32], most[32], then[32];

	topo_link(now, sizeof(now), hop->speed, hop->width);
	topo_link(most, sizeof(most), hop->speed_most, hop->width_most);
	for (int i = 0; load && !load->error && i < load->count; i++) {
		if (strcmp(load->links[i].address, address) != 0)
			continue;
		loaded.speed = load->links[i].speed;
		loaded.width = load->links[i].width;
	}
	topo_link(then, sizeof(then), loaded.speed, loaded.width);
	if (strcmp(most, "-") == 0) {
		finding_add(finding, UNKNOWN, "%s: the link of %s is unknown", name, address);
	} else if (!hop_is_slow(hop)) {
		finding_add(finding, PASS, "%s: %s", name, now);
	} else if (load && load->error && hop->width >= hop->width_most) {
		finding_add(finding, UNKNOWN,
			    "%s: the link of %s runs at %s of %s; the GPU may be idle, and nothing "
			    "could "
			    "be "
			    "copied: %s",
			    name, address, now, most, load->why);
		finding_advise(finding, "%s", check_again);
	} else if (hop_is_slow(&loaded)) {
		finding_add(finding, WARN, "%s: the link of %s runs at %s%s, but supports %s", name,
			    address, then, load && !load->error ? " while the GPU copies" : "",
			    most);
		finding_advise(finding, "%s", reseat);
	} else {
		finding_add(finding, PASS, "%s: %s while the GPU copies, %s idle", name, then, now);
	}
}

/* NVML shows the link of a GPU also in a virtual machine, where sysfs shows none. */
static bool nvml_is_slow(const struct wh_gpu *gpu)
{
	return (gpu->pcie_width > 0 && gpu->pcie_width < gpu->pcie_width_most) ||
	       (gpu->pcie_generation > 0 && gpu->pcie_generation < gpu->pcie_generation_most);
}

/* `load`: NULL if the link is not slow. `shown`: sysfs shows the link, too. */
static void nvml_check(const struct wh_gpu *gpu, const char *name, const struct link_fact *load,
		       bool shown, struct finding *finding)
{
	bool loaded = load && !load->error;
	int generation = loaded && load->generation > 0 ? load->generation : gpu->pcie_generation,
	    width = loaded && load->width > 0 ? load->width : gpu->pcie_width;

	if (width < gpu->pcie_width_most) {
		finding_add(finding, WARN, "%s: NVML says x%d of x%d%s", name, width,
			    gpu->pcie_width_most, loaded ? " while the GPU copies" : "");
		finding_advise(finding, "%s", reseat);
	} else if (shown) {
		return;
	} else if (generation >= gpu->pcie_generation_most) {
		finding_add(finding, PASS, "%s: PCIe %d x%d%s", name, generation, width,
			    load ? " while the GPU copies" : "");
	} else if (!loaded) {
		finding_add(
			finding, UNKNOWN,
			"%s: NVML says PCIe %d of %d; the GPU may be idle, and nothing could be "
			"copied: %s",
			name, generation, gpu->pcie_generation_most, load ? load->why : "-");
		finding_advise(finding, "%s", check_again);
	} else {
		finding_add(finding, WARN, "%s: NVML says PCIe %d of %d while the GPU copies", name,
			    generation, gpu->pcie_generation_most);
		finding_advise(finding, "%s", reseat);
	}
}

/* Fill in a GPU's links as they are now. True: one is slow, so watch them while the GPU copies. */
static bool link_needs_load(const struct wh_topology *topology, const struct wh_gpu *gpu,
			    struct link_fact *out)
{
	bool slow = nvml_is_slow(gpu);
	struct wh_hop hop;
	int up = gpu->pci;

	*out = (struct link_fact){
		.index = gpu->index,
		.generation = gpu->pcie_generation,
		.generation_most = gpu->pcie_generation_most,
		.width = gpu->pcie_width,
		.width_most = gpu->pcie_width_most,
	};
	snprintf(out->address, sizeof(out->address), "%s", gpu->address);
	for (; out->count < WH_PCI_DEPTH && wh_pcie_hop(topology, &up, &hop); out->count++) {
		memcpy(out->links[out->count].address, topology->pci[hop.device].address,
		       WH_ADDRESS);
		out->links[out->count].speed = hop.speed;
		out->links[out->count].speed_most = hop.speed_most;
		out->links[out->count].width = hop.width;
		out->links[out->count].width_most = hop.width_most;
		slow |= hop_is_slow(&hop);
	}
	return slow && *gpu->address;
}

static const struct link_fact *link_find(const struct link_fact *facts, size_t count,
					 const char *address)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(facts[i].address, address) == 0)
			return &facts[i];
	return NULL;
}

static void links_check(const struct doctor *doctor, const struct link_fact *facts, size_t count,
			struct finding *finding)
{
	const struct wh_topology *topology = doctor->topology;
	size_t at = 0, checked = 0;
	char name[WH_NAME];
	int pci;

	while ((pci = doctor_next_device(doctor, &at, name)) >= 0) {
		const struct link_fact *load = link_find(facts, count, topology->pci[pci].address);
		struct wh_hop hop;
		int up = pci;

		for (int i = 0; i < WH_PCI_DEPTH && wh_pcie_hop(topology, &up, &hop); i++)
			hop_check(topology, &hop, name, load, finding);
		checked++;
	}
	for (size_t i = 0; topology && i < topology->gpu_count; i++) {
		const struct wh_gpu *gpu = &topology->gpus[i];
		int up = gpu->pci;
		struct wh_hop hop;

		if (gpu->pcie_width <= 0)
			continue;
		topo_end_name(topology, (struct wh_end){ WH_END_GPU, i }, name);
		nvml_check(gpu, name, link_find(facts, count, gpu->address),
			   wh_pcie_hop(topology, &up, &hop) && !isnan(hop.speed_most), finding);
		checked++;
	}
	if (!checked)
		doctor_no_device(doctor, finding);
}

static void pci_link(const struct doctor *doctor, struct finding *finding)
{
	struct link_fact *facts = calloc(FACTS_GPUS, sizeof(*facts));
	size_t count = 0;

	for (size_t i = 0; facts && i < doctor_gpus(doctor) && count < FACTS_GPUS; i++)
		count += link_needs_load(doctor->topology, &doctor->topology->gpus[i],
					 &facts[count]);
	if (count)
		facts_links(&doctor->tree, doctor->cuda_late ? 0 : LINK_SECONDS, facts, count);
	links_check(doctor, facts, count, finding);
	free(facts);
}

/* ---- ACS and relaxed ordering ---------------------------------------------------------------- */

static void pci_acs(const struct doctor *doctor, const struct wh_pci *device, const char *name,
		    struct finding *finding)
{
	const struct wh_pci *all = doctor->topology->pci;
	uint8_t config[WH_PCI_CONFIG + 1];

	for (int up = device->parent, i = 0; up >= 0 && i < WH_PCI_DEPTH;
	     up = all[up].parent, i++) {
		int length = config_read(doctor, &all[up], config),
		    redirects = length < 0 ? length : wh_pci_redirects(config, (size_t)length);

		if (redirects == 1) {
			finding_add(finding, WARN,
				    "%s, above %s, sends traffic between devices up to the host",
				    all[up].address, name);
			finding_advise(finding,
				       "turn ACS off on bare metal (in the BIOS, or by setpci on "
				       "the bridge's ACS control); virtual machines need it on");
		} else if (redirects < 0) {
			finding_add(finding, UNKNOWN, "%s: %s", all[up].address,
				    length < 0 ? strerror(-length) :
						 "no more than 256 bytes shown");
			finding_advise(finding, "%s", run_as_root);
		} else {
			finding_add(finding, PASS, "%s forwards it directly", all[up].address);
		}
	}
}

static void pci_acs_end(const struct doctor *doctor, struct finding *finding)
{
	(void)doctor;
	if (!*finding->evidence)
		finding_add(finding, PASS, "no bridge above a GPU or an RDMA NIC");
}

static void pci_relaxed(const struct doctor *doctor, const struct wh_pci *device, const char *name,
			struct finding *finding)
{
	uint8_t config[WH_PCI_CONFIG + 1];
	int length = config_read(doctor, device, config),
	    relaxed = length < 0 ? length : wh_pci_relaxed(config, (size_t)length);

	if (relaxed == 1) {
		finding_add(finding, PASS, "%s: on", name);
	} else if (!relaxed) {
		finding_add(finding, WARN, "%s (%s): off", name, device->address);
		finding_advise(finding,
			       "enable PCI relaxed ordering in the BIOS, and in the NIC's firmware "
			       "(mlxconfig PCI_WR_ORDERING=1)");
	} else {
		finding_add(finding, UNKNOWN, "%s: %s", name,
			    length < 0 ? strerror(-length) :
					 "the visible configuration space does not show it");
		finding_advise(finding, "%s", run_as_root);
	}
}

/* ---- IOMMU ----------------------------------------------------------------------------------- */

static void pci_iommu(const struct doctor *doctor, const struct wh_pci *device, const char *name,
		      struct finding *finding)
{
	char path[WH_TREE_PATH], target[WH_TREE_PATH], type[64];
	struct wh_tree_names names;
	const char *group;
	int error = wh_tree_list(&doctor->tree, "/sys/kernel/iommu_groups", &names);
	bool groups = names.count > 0;

	wh_tree_names_free(&names);
	if (error && error != -ENOENT) {
		finding_add(finding, UNKNOWN, "/sys/kernel/iommu_groups: %s", strerror(-error));
		return;
	}
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/iommu_group", device->address);
	if (wh_tree_link(&doctor->tree, path, target, sizeof(target))) {
		finding_add(finding, groups ? UNKNOWN : PASS,
			    groups ? "%s is in no group" : "%s: no IOMMU", name);
		return;
	}
	group = strrchr(target, '/');
	snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%.32s", group ? group + 1 : target);
	error = wh_tree_line(&doctor->tree, path, "type", type, sizeof(type));
	if (error) {
		finding_add(finding, UNKNOWN, "%s: %s/type: %s", name, path, strerror(-error));
	} else if (strcmp(type, "identity") == 0) {
		finding_add(finding, PASS, "%s: identity", name);
	} else {
		finding_add(finding, WARN, "%s: the IOMMU translates every address (%s)", name,
			    type);
		finding_advise(finding,
			       "boot with iommu=pt (intel_iommu=on iommu=pt), so that peer traffic "
			       "need not pass the IOMMU");
	}
}

/* ---- NUMA ------------------------------------------------------------------------------------ */

/* Do two lists of CPUs, such as "0-3,8", overlap? */
static bool cpus_overlap(const char *one, const char *other)
{
	for (const char *a = one; *a;) {
		char *end;
		unsigned long first = strtoul(a, &end, 10), last = first;

		if (end == a)
			return false;
		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		for (const char *b = other; *b;) {
			char *stop;
			unsigned long begin = strtoul(b, &stop, 10), final = begin;

			if (stop == b)
				return false;
			if (*stop == '-')
				final = strtoul(stop + 1, &stop, 10);
			if (first <= final && begin <= last)
				return true;
			b = stop + (*stop == ',');
		}
		a = end + (*end == ',');
	}
	return false;
}

/* The CPUs that this process may run on; false: unknown. */
static bool cpus_allowed(const struct doctor *doctor, char *out, size_t size)
{
	char text[8192], *at;

	if (wh_tree_read(&doctor->tree, "/proc/self/status", text, sizeof(text)) < 0)
		return false;
	at = strstr(text, "Cpus_allowed_list:");
	if (!at)
		return false;
	at += strlen("Cpus_allowed_list:");
	at += strspn(at, " \t");
	snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
	return true;
}

/* A device's NUMA node; -1: unknown. A machine of one node has only that one. */
static int device_node(const struct doctor *doctor, const struct wh_pci *device)
{
	return device->node < 0 && doctor->topology->node_count == 1 ?
		       doctor->topology->nodes[0].id :
		       device->node;
}

static void numa_affinity(const struct doctor *doctor, const struct wh_pci *device,
			  const char *name, struct finding *finding)
{
	char allowed[512];
	bool known = cpus_allowed(doctor, allowed, sizeof(allowed));
	int node = device_node(doctor, device);

	if (node < 0 && doctor->topology->node_count > 1) {
		finding_add(finding, WARN, "%s: the firmware does not name its NUMA node", name);
		finding_advise(
			finding,
			"update the BIOS; in a virtual machine, assign the device to a NUMA node");
	} else if (!known || !*device->cpus) {
		finding_add(finding, UNKNOWN, "%s: %s", name,
			    known ? "the CPUs near it are unknown" :
				    "the CPUs of this process are unknown");
	} else if (!cpus_overlap(device->cpus, allowed)) {
		finding_add(finding, WARN, "%s: CPUs %s are near it, this process runs on %s", name,
			    device->cpus, allowed);
		if (node < 0)
			finding_advise(finding, "taskset -c %s", device->cpus);
		else
			finding_advise(finding, "numactl --cpunodebind=%d --membind=%d, or taskset",
				       node, node);
	} else if (node < 0) {
		finding_add(finding, PASS, "%s: CPUs %s, NUMA node unknown", name, device->cpus);
	} else {
		finding_add(finding, PASS, "%s: node %d", name, node);
	}
}

const struct check doctor_pci_checks[] = {
	{ .id = "pci.link",
	  .title = "PCIe links run at full speed and width",
	  .needs = NEEDS_NVML,
	  .machine = pci_link },
	{ .id = "pci.acs",
	  .title = "bridges forward peer traffic directly (ACS off)",
	  .needs = NEEDS_NVML,
	  .device = pci_acs,
	  .end = pci_acs_end },
	{ .id = "pci.relaxed",
	  .title = "relaxed ordering is on",
	  .needs = NEEDS_NVML,
	  .device = pci_relaxed },
	{ .id = "pci.iommu",
	  .title = "the IOMMU does not translate addresses of GPUs and NICs",
	  .needs = NEEDS_NVML,
	  .device = pci_iommu },
	{ .id = "numa.affinity",
	  .title = "this process may use CPUs near its GPUs and NICs",
	  .needs = NEEDS_NVML,
	  .device = numa_affinity },
	{ 0 },
};
