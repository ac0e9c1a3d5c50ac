/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of how GPUs and NICs are attached. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "topology/pci-config.h"

static const char look_as_root[] = "run wherry doctor as root: the rest of the configuration space "
				   "needs CAP_SYS_ADMIN";

/* The devices that matter: GPUs and RDMA NICs, one after the other. -1: no more. */
static int next_device(const struct doctor *doctor, size_t *at, char name[WH_NAME])
{
	const struct wh_topology *topology = doctor->topology;

	while (topology && *at < topology->gpu_count + topology->nic_count) {
		size_t i = (*at)++;
		struct wh_end end = i < topology->gpu_count ?
					    (struct wh_end){ WH_END_GPU, i } :
					    (struct wh_end){ WH_END_NIC, i - topology->gpu_count };
		int pci;

		if (end.kind == WH_END_NIC && !topology->nics[end.index].rdma)
			continue;
		pci = end.kind == WH_END_GPU ? topology->gpus[end.index].pci :
					       topology->nics[end.index].pci;
		topo_end_name(topology, end, name);
		if (pci >= 0)
			return pci;
	}
	return -1;
}

void doctor_pci_folder(const struct wh_pci *pci, char *out, size_t size)
{
	snprintf(out, size, "/sys/bus/pci/devices/%s", pci->address);
}

/* Nothing to look at: say why. */
static void nothing(const struct doctor *doctor, struct finding *finding)
{
	if (doctor->topology)
		found_absent(finding, ABSENT_PCI);
	else
		found(finding, UNKNOWN, "sysfs could not be read in time");
}

static int read_config(const struct doctor *doctor, const struct wh_pci *pci, uint8_t *config)
{
	char path[WH_TREE_PATH], folder[WH_TREE_PATH / 2];

	doctor_pci_folder(pci, folder, sizeof(folder));
	snprintf(path, sizeof(path), "%s/config", folder);
	return wh_tree_read(&doctor->tree, path, (char *)config, WH_PCI_CONFIG + 1);
}

/* ---- links ----------------------------------------------------------------------------------- */

#define LINK_SECONDS 2.5 /* for all GPUs that are looked at under load */

static const char reseat[] =
	"reseat the card or its riser; lspci -vv shows LnkSta; a slot may share its lanes";

static const char look_again[] = "look while something is copied: wherry bench in one terminal, "
				 "wherry doctor --only pci.link in another";

static bool is_slow(const struct wh_hop *hop)
{
	return (hop->width > 0 && hop->width < hop->width_most) || hop->speed < hop->speed_most;
}

/* `load`: of the GPU that the link leads to, once it has been looked at again; else NULL. */
static void check_hop(const struct wh_topology *topology, const struct wh_hop *hop,
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
		found(finding, UNKNOWN, "%s: the link of %s is not known", name, address);
	} else if (!is_slow(hop)) {
		found(finding, PASS, "%s: %s", name, now);
	} else if (load && load->error && hop->width >= hop->width_most) {
		found(finding, UNKNOWN,
		      "%s: the link of %s is %s of %s; the GPU may be idle, and nothing could be "
		      "copied: %s",
		      name, address, now, most, load->why);
		advise(finding, "%s", look_again);
	} else if (is_slow(&loaded)) {
		found(finding, WARN, "%s: the link of %s is %s%s, and could be %s", name, address,
		      then, load && !load->error ? " while the GPU copies" : "", most);
		advise(finding, "%s", reseat);
	} else {
		found(finding, PASS, "%s: %s while it copies, %s idle", name, then, now);
	}
}

/* NVML knows a GPU's link where a virtual machine shows none. */
static bool is_slow_by_nvml(const struct wh_gpu *gpu)
{
	return (gpu->pcie_width > 0 && gpu->pcie_width < gpu->pcie_width_most) ||
	       (gpu->pcie_generation > 0 && gpu->pcie_generation < gpu->pcie_generation_most);
}

/* `load`: NULL if it is not slow. `shown`: sysfs has told of its link. */
static void check_by_nvml(const struct wh_gpu *gpu, const char *name, const struct link_fact *load,
			  bool shown, struct finding *finding)
{
	bool loaded = load && !load->error;
	int generation = loaded && load->generation > 0 ? load->generation : gpu->pcie_generation,
	    width = loaded && load->width > 0 ? load->width : gpu->pcie_width;

	if (width < gpu->pcie_width_most) {
		found(finding, WARN, "%s: NVML says x%d of x%d%s", name, width,
		      gpu->pcie_width_most, loaded ? " while it copies" : "");
		advise(finding, "%s", reseat);
	} else if (shown) {
		return;
	} else if (generation >= gpu->pcie_generation_most) {
		found(finding, PASS, "%s: PCIe %d x%d%s", name, generation, width,
		      load ? " while it copies" : "");
	} else if (!loaded) {
		found(finding, UNKNOWN,
		      "%s: NVML says PCIe %d of %d; it may be idle, and nothing could be copied: "
		      "%s",
		      name, generation, gpu->pcie_generation_most, load ? load->why : "-");
		advise(finding, "%s", look_again);
	} else {
		found(finding, WARN, "%s: NVML says PCIe %d of %d while it copies", name,
		      generation, gpu->pcie_generation_most);
		advise(finding, "%s", reseat);
	}
}

/* Fill in what the GPU's links are; false: they need not be looked at again. */
static bool is_worth_a_load(const struct wh_topology *topology, const struct wh_gpu *gpu,
			    struct link_fact *out)
{
	bool slow = is_slow_by_nvml(gpu);
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
		slow |= is_slow(&hop);
	}
	return slow && *gpu->address;
}

static const struct link_fact *load_of(const struct link_fact *facts, size_t count,
				       const char *address)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(facts[i].address, address) == 0)
			return &facts[i];
	return NULL;
}

static void check_links(const struct doctor *doctor, const struct link_fact *facts, size_t count,
			struct finding *finding)
{
	const struct wh_topology *topology = doctor->topology;
	size_t at = 0, looked = 0;
	char name[WH_NAME];
	int pci;

	while ((pci = next_device(doctor, &at, name)) >= 0) {
		const struct link_fact *load = load_of(facts, count, topology->pci[pci].address);
		struct wh_hop hop;
		int up = pci;

		for (int i = 0; i < WH_PCI_DEPTH && wh_pcie_hop(topology, &up, &hop); i++)
			check_hop(topology, &hop, name, load, finding);
		looked++;
	}
	for (size_t i = 0; topology && i < topology->gpu_count; i++) {
		const struct wh_gpu *gpu = &topology->gpus[i];
		int up = gpu->pci;
		struct wh_hop hop;

		if (gpu->pcie_width <= 0)
			continue;
		topo_end_name(topology, (struct wh_end){ WH_END_GPU, i }, name);
		check_by_nvml(gpu, name, load_of(facts, count, gpu->address),
			      wh_pcie_hop(topology, &up, &hop) && !isnan(hop.speed_most), finding);
		looked++;
	}
	if (!looked)
		nothing(doctor, finding);
}

static void pci_link(const struct doctor *doctor, struct finding *finding)
{
	struct link_fact *facts = calloc(FACTS_GPUS, sizeof(*facts));
	size_t count = 0;

	for (size_t i = 0; facts && i < doctor_gpus(doctor) && count < FACTS_GPUS; i++)
		count += is_worth_a_load(doctor->topology, &doctor->topology->gpus[i],
					 &facts[count]);
	if (count)
		facts_links(&doctor->tree, doctor->cuda_late ? 0 : LINK_SECONDS, facts, count);
	check_links(doctor, facts, count, finding);
	free(facts);
}

/* ---- ACS and relaxed ordering ---------------------------------------------------------------- */

static void pci_acs(const struct doctor *doctor, struct finding *finding)
{
	uint8_t config[WH_PCI_CONFIG + 1];
	char name[WH_NAME];
	size_t at = 0, bridges = 0, devices = 0;
	int pci;

	while ((pci = next_device(doctor, &at, name)) >= 0) {
		const struct wh_pci *all = doctor->topology->pci;

		devices++;
		for (int up = all[pci].parent, i = 0; up >= 0 && i < WH_PCI_DEPTH;
		     up = all[up].parent, i++) {
			int length = read_config(doctor, &all[up], config),
			    redirects =
				    length < 0 ? length : wh_pci_redirects(config, (size_t)length);

			bridges++;
			if (redirects == 1) {
				found(finding, WARN,
				      "%s, above %s, sends traffic between devices "
				      "up to the host",
				      all[up].address, name);
				advise(finding,
				       "turn ACS off for bare metal (BIOS, or setpci on the "
				       "bridge's ACS control); virtual machines need it on");
			} else if (redirects < 0) {
				found(finding, UNKNOWN, "%s: %s", all[up].address,
				      length < 0 ? strerror(-length) :
						   "no more than 256 bytes shown");
				advise(finding, "%s", look_as_root);
			} else {
				found(finding, PASS, "%s lets it pass", all[up].address);
			}
		}
	}
	if (!devices)
		nothing(doctor, finding);
	else if (!bridges)
		found(finding, PASS, "no bridge above a GPU or an RDMA NIC");
}

static void pci_relaxed(const struct doctor *doctor, struct finding *finding)
{
	uint8_t config[WH_PCI_CONFIG + 1];
	char name[WH_NAME];
	size_t at = 0, devices = 0;
	int pci;

	while ((pci = next_device(doctor, &at, name)) >= 0) {
		const struct wh_pci *device = &doctor->topology->pci[pci];
		int length = read_config(doctor, device, config),
		    relaxed = length < 0 ? length : wh_pci_relaxed(config, (size_t)length);

		devices++;
		if (relaxed == 1) {
			found(finding, PASS, "%s: on", name);
		} else if (!relaxed) {
			found(finding, WARN, "%s (%s): off", name, device->address);
			advise(finding,
			       "PCI relaxed ordering in the BIOS, and in the NIC's firmware "
			       "(mlxconfig PCI_WR_ORDERING=1)");
		} else {
			found(finding, UNKNOWN, "%s: %s", name,
			      length < 0 ? strerror(-length) :
					   "its configuration does not show it");
			advise(finding, "%s", look_as_root);
		}
	}
	if (!devices)
		nothing(doctor, finding);
}

/* ---- IOMMU ----------------------------------------------------------------------------------- */

static void check_group(const struct doctor *doctor, const struct wh_pci *pci, const char *name,
			bool groups, struct finding *finding)
{
	char path[WH_TREE_PATH], target[WH_TREE_PATH], type[64];
	const char *group;
	int error;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/iommu_group", pci->address);
	if (wh_tree_link(&doctor->tree, path, target, sizeof(target))) {
		found(finding, groups ? UNKNOWN : PASS,
		      groups ? "%s is in no group" : "%s: no IOMMU", name);
		return;
	}
	group = strrchr(target, '/');
	snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%.32s", group ? group + 1 : target);
	error = wh_tree_line(&doctor->tree, path, "type", type, sizeof(type));
	if (error) {
		found(finding, UNKNOWN, "%s: %s/type: %s", name, path, strerror(-error));
	} else if (strcmp(type, "identity") == 0) {
		found(finding, PASS, "%s: identity", name);
	} else {
		found(finding, WARN, "%s: every address is translated (%s)", name, type);
		advise(finding,
		       "boot with iommu=pt (intel_iommu=on iommu=pt): peer traffic then need "
		       "not go by the IOMMU");
	}
}

static void pci_iommu(const struct doctor *doctor, struct finding *finding)
{
	struct wh_tree_names names;
	char name[WH_NAME];
	size_t at = 0, devices = 0;
	int pci, error = wh_tree_list(&doctor->tree, "/sys/kernel/iommu_groups", &names);
	bool groups = names.count > 0;

	wh_tree_names_free(&names);
	while ((pci = next_device(doctor, &at, name)) >= 0) {
		devices++;
		if (error && error != -ENOENT)
			found(finding, UNKNOWN, "/sys/kernel/iommu_groups: %s", strerror(-error));
		else
			check_group(doctor, &doctor->topology->pci[pci], name, groups, finding);
	}
	if (!devices)
		nothing(doctor, finding);
}

/* ---- NUMA ------------------------------------------------------------------------------------ */

/* Have two lists of CPUs, "0-3,8", one in common? */
static bool overlap(const char *one, const char *other)
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

static bool allowed_cpus(const struct doctor *doctor, char *out, size_t size)
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

/* The number of a device's node; -1: not known. Where there is only one node it is that one. */
static int node_of(const struct doctor *doctor, const struct wh_pci *device)
{
	return device->node < 0 && doctor->topology->node_count == 1 ?
		       doctor->topology->nodes[0].id :
		       device->node;
}

static void numa_affinity(const struct doctor *doctor, struct finding *finding)
{
	char name[WH_NAME], allowed[512];
	bool known = allowed_cpus(doctor, allowed, sizeof(allowed));
	size_t at = 0, devices = 0;
	int pci;

	while ((pci = next_device(doctor, &at, name)) >= 0) {
		const struct wh_pci *device = &doctor->topology->pci[pci];

		int node = node_of(doctor, device);

		devices++;
		if (node < 0 && doctor->topology->node_count > 1) {
			found(finding, WARN,
			      "%s: the firmware does not say which NUMA node it is on", name);
			advise(finding,
			       "update the BIOS; in a virtual machine, place the device on a "
			       "node");
		} else if (!known || !*device->cpus) {
			found(finding, UNKNOWN, "%s: %s", name,
			      known ? "the CPUs near it are not known" :
				      "the CPUs of this process are not known");
		} else if (!overlap(device->cpus, allowed)) {
			found(finding, WARN, "%s: CPUs %s are near it, this process runs on %s",
			      name, device->cpus, allowed);
			if (node < 0)
				advise(finding, "taskset -c %s", device->cpus);
			else
				advise(finding, "numactl --cpunodebind=%d --membind=%d, or taskset",
				       node, node);
		} else if (node < 0) {
			found(finding, PASS, "%s: CPUs %s, its NUMA node is not known", name,
			      device->cpus);
		} else {
			found(finding, PASS, "%s: node %d", name, node);
		}
	}
	if (!devices)
		nothing(doctor, finding);
}

const struct check doctor_pci_checks[] = {
	{ "pci.link", "speed and width of PCIe links against what they could be", pci_link,
	  NEEDS_NVML },
	{ "pci.acs", "bridges that send peer traffic up to the host (ACS)", pci_acs, NEEDS_NVML },
	{ "pci.relaxed", "relaxed ordering", pci_relaxed, NEEDS_NVML },
	{ "pci.iommu", "translation by the IOMMU", pci_iommu, NEEDS_NVML },
	{ "numa.affinity", "NUMA nodes, and CPUs that this process may use", numa_affinity,
	  NEEDS_NVML },
	{ 0 },
};
