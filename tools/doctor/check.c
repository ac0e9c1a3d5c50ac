/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all checks of wherry doctor share: collecting what a check finds, and the walk over the
 * GPUs, PCI devices, NICs or ports that a check looks at one by one. A machine without them gets
 * one finding that says so.
 */
#include "doctor/doctor.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const doctor_absences[] = {
	[ABSENT_GPU] = "no NVIDIA GPU here",
	[ABSENT_NIC] = "no RDMA NIC here",
	[ABSENT_PCI] = "no GPU and no RDMA NIC in PCI",
};

/* ---- findings -------------------------------------------------------------------------------- */

void finding_add(struct finding *finding, enum verdict verdict, const char *format, ...)
{
	size_t used = strlen(finding->evidence);
	va_list list;

	finding->passed += verdict == PASS;
	/* What passed is left out as soon as something else is found. */
	if (verdict > finding->verdict && finding->verdict == PASS)
		used = 0;
	if (verdict < finding->verdict && verdict == PASS)
		return;
	if (verdict > finding->verdict)
		finding->verdict = verdict;
	if (used && used + 2 < sizeof(finding->evidence)) {
		memcpy(finding->evidence + used, "; ", 3);
		used += 2;
	}
	va_start(list, format);
	vsnprintf(finding->evidence + used, sizeof(finding->evidence) - used, format, list);
	va_end(list);
}

void finding_add_absent(struct finding *finding, enum absent what)
{
	finding->absent = what;
	finding_add(finding, INFO, "%s", doctor_absences[what]);
}

void finding_advise(struct finding *finding, const char *format, ...)
{
	va_list list;

	if (*finding->fix)
		return;
	va_start(list, format);
	vsnprintf(finding->fix, sizeof(finding->fix), format, list);
	va_end(list);
}

/* ---- GPUs and PCI devices -------------------------------------------------------------------- */

size_t doctor_gpus(const struct doctor *doctor)
{
	return doctor->topology ? doctor->topology->gpu_count : 0;
}

size_t doctor_rdma(const struct doctor *doctor)
{
	size_t count = 0;

	for (size_t i = 0; doctor->topology && i < doctor->topology->nic_count; i++)
		count += doctor->topology->nics[i].rdma == 1;
	return count;
}

void doctor_each_gpu(const struct doctor *doctor, gpu_check *check, struct finding *finding)
{
	if (!doctor_gpus(doctor) && !doctor->late) {
		finding_add_absent(finding, ABSENT_GPU);
		return;
	}
	if (!doctor->nvml || !doctor_gpus(doctor)) {
		finding_add(finding, UNKNOWN, "NVML cannot be asked");
		return;
	}
	for (size_t i = 0; i < doctor_gpus(doctor); i++) {
		char name[WH_NAME];

		topo_end_name(doctor->topology, (struct wh_end){ WH_END_GPU, i }, name);
		check(doctor, i, name, finding);
	}
}

int doctor_next_device(const struct doctor *doctor, size_t *at, char name[WH_NAME])
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

void doctor_no_device(const struct doctor *doctor, struct finding *finding)
{
	if (doctor->topology)
		finding_add_absent(finding, ABSENT_PCI);
	else
		finding_add(finding, UNKNOWN, "sysfs could not be read in time");
}

static void check_devices(const struct doctor *doctor, device_check *check, struct finding *finding)
{
	size_t at = 0, devices = 0;
	char name[WH_NAME];
	int pci;

	for (; (pci = doctor_next_device(doctor, &at, name)) >= 0; devices++)
		check(doctor, &doctor->topology->pci[pci], name, finding);
	if (!devices)
		doctor_no_device(doctor, finding);
}

/* ---- NICs and ports -------------------------------------------------------------------------- */

const struct verbs_fact *doctor_verbs(const struct doctor *doctor, const char *name)
{
	for (int i = 0; i < doctor->verbs.count; i++)
		if (strcmp(doctor->verbs.nics[i].name, name) == 0)
			return &doctor->verbs.nics[i];
	return NULL;
}

static struct nic_port port_read(const struct doctor *doctor, const struct wh_nic *nic,
				 const char *number, bool only)
{
	struct nic_port port = { .nic = nic, .number = atoi(number) };
	char folder[WH_TREE_PATH];

	snprintf(port.name, sizeof(port.name), only ? "%s" : "%s:%d", nic->name, port.number);
	snprintf(port.folder, sizeof(port.folder), "/sys/class/infiniband/%s/ports/%d", nic->name,
		 port.number);
	wh_tree_line(&doctor->tree, port.folder, "link_layer", port.layer, sizeof(port.layer));
	snprintf(folder, sizeof(folder), "%s/gid_attrs/ndevs", port.folder);
	/* The interface of a NIC with one port is the device's. */
	if (wh_tree_line(&doctor->tree, folder, "0", port.netdev, sizeof(port.netdev)) && only)
		snprintf(port.netdev, sizeof(port.netdev), "%s", nic->netdev);
	return port;
}

static void check_port(const struct doctor *doctor, const struct check *check,
		       const struct nic_port *port, struct finding *finding)
{
	if (check->not_roce && strcmp(port->layer, "Ethernet") != 0)
		finding_add(finding, PASS, "%s: %s %s", port->name,
			    *port->layer ? port->layer : "-", check->not_roce);
	else
		check->port(doctor, port, finding);
}

/* A NIC that shows no ports has port 1. */
static void check_ports(const struct doctor *doctor, const struct check *check,
			const struct wh_nic *nic, struct finding *finding)
{
	struct wh_tree_names names;
	char folder[WH_TREE_PATH];

	snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports", nic->name);
	if (wh_tree_list(&doctor->tree, folder, &names))
		names = (struct wh_tree_names){ 0 };
	for (size_t i = 0; i < names.count || !i; i++) {
		struct nic_port port =
			port_read(doctor, nic, names.count ? names.name[i] : "1", names.count <= 1);

		port.first = !i;
		check_port(doctor, check, &port, finding);
	}
	wh_tree_names_free(&names);
}

/* ---- one check ------------------------------------------------------------------------------- */

/* False: the machine has nothing that the check looks at, and the finding says so. */
static bool check_applies(const struct doctor *doctor, const struct check *check,
			  struct finding *finding)
{
	if (check->subjects & NICS && !doctor_rdma(doctor)) {
		if (doctor->topology)
			finding_add_absent(finding, ABSENT_NIC);
		else
			finding_add(finding, UNKNOWN, "sysfs could not be read in time");
		return false;
	}
	if (check->subjects & GPUS && !doctor_gpus(doctor)) {
		finding_add_absent(finding, ABSENT_GPU);
		return false;
	}
	return true;
}

void doctor_check(const struct doctor *doctor, const struct check *check, struct finding *finding)
{
	const struct wh_topology *topology = doctor->topology;

	if (!check_applies(doctor, check, finding))
		return;
	if (check->machine)
		check->machine(doctor, finding);
	if (check->gpu)
		doctor_each_gpu(doctor, check->gpu, finding);
	if (check->device)
		check_devices(doctor, check->device, finding);
	for (size_t i = 0; (check->nic || check->port) && i < topology->nic_count; i++) {
		if (topology->nics[i].rdma != 1)
			continue;
		if (check->nic)
			check->nic(doctor, &topology->nics[i], finding);
		else
			check_ports(doctor, check, &topology->nics[i], finding);
	}
	if (check->end)
		check->end(doctor, finding);
}
