/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a machine's NUMA nodes, PCI tree, NICs and disks from sysfs. */
#include "topology/topology.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

#define PCI "/sys/bus/pci/devices"
#define NODES "/sys/devices/system/node"

#define VENDOR_NVIDIA 0x10de

/* ---- the object ------------------------------------------------------------------------------ */

void *wh_topology_grow(void **array, size_t *count, size_t size)
{
	char *more = realloc(*array, (*count + 1) * size);

	if (!more)
		return NULL;
	*array = more;
	memset(more + *count * size, 0, size);
	return more + (*count)++ * size;
}

int wh_topology_add_gap(struct wh_topology *topology, const char *what, const char *format, ...)
{
	struct wh_topology_gap *gap = WH_TOPOLOGY_ADD(topology, gaps, gap_count);
	va_list list;

	if (!gap)
		return -ENOMEM;
	snprintf(gap->what, sizeof(gap->what), "%s", what);
	va_start(list, format);
	vsnprintf(gap->why, sizeof(gap->why), format, list);
	va_end(list);
	return 0;
}

void wh_topology_free(struct wh_topology *topology)
{
	if (!topology)
		return;
	free(topology->caches);
	free(topology->nodes);
	free(topology->pci);
	free(topology->gpus);
	free(topology->links);
	free(topology->pairs);
	free(topology->nics);
	free(topology->disks);
	free(topology->gaps);
	free(topology);
}

/* The number in a file, or `fallback`. */
static int number_or(const struct wh_tree *tree, const char *folder, const char *file, int fallback)
{
	int64_t value;

	if (wh_tree_number(tree, folder, file, &value) || value < INT32_MIN || value > INT32_MAX)
		return fallback;
	return (int)value;
}

/* ---- NUMA nodes ------------------------------------------------------------------------------ */

static uint64_t node_memory(const struct wh_tree *tree, const char *folder)
{
	char path[WH_TREE_PATH], text[2048], *at;

	snprintf(path, sizeof(path), "%.400s/meminfo", folder);
	if (wh_tree_read(tree, path, text, sizeof(text)) < 0)
		return WH_UNKNOWN;
	at = strstr(text, "MemTotal:");
	return at ? strtoull(at + strlen("MemTotal:"), NULL, 10) << 10 : WH_UNKNOWN;
}

static int read_nodes(const struct wh_tree *tree, struct wh_topology *topology)
{
	struct wh_tree_names names;
	int error = wh_tree_list(tree, NODES, &names);

	if (error)
		return wh_topology_add_gap(topology, "NUMA nodes", "%s: %s", NODES,
					   strerror(-error));
	for (size_t i = 0; i < names.count && !error; i++) {
		char folder[WH_TREE_PATH];
		struct wh_node *node;

		if (strncmp(names.name[i], "node", 4) != 0 ||
		    !isdigit((unsigned char)names.name[i][4]))
			continue;
		node = WH_TOPOLOGY_ADD(topology, nodes, node_count);
		if (!node) {
			error = -ENOMEM;
			break;
		}
		node->id = (int)strtol(names.name[i] + 4, NULL, 10);
		snprintf(folder, sizeof(folder), "%s/%.64s", NODES, names.name[i]);
		wh_tree_line(tree, folder, "cpulist", node->cpus, sizeof(node->cpus));
		wh_tree_line(tree, folder, "distance", node->distances, sizeof(node->distances));
		node->memory_bytes = node_memory(tree, folder);
	}
	wh_tree_names_free(&names);
	return error;
}

/* ---- PCI ------------------------------------------------------------------------------------- */

/* Does the text start with an address such as "0000:65:00.0", up to its end or a '/'? */
static bool is_address(const char *text)
{
	size_t domain = strspn(text, "0123456789abcdef");

	return domain >= 4 && domain <= 8 && text[domain] == ':' &&
	       isxdigit((unsigned char)text[domain + 1]) &&
	       isxdigit((unsigned char)text[domain + 2]) && text[domain + 3] == ':' &&
	       isxdigit((unsigned char)text[domain + 4]) &&
	       isxdigit((unsigned char)text[domain + 5]) && text[domain + 6] == '.' &&
	       isdigit((unsigned char)text[domain + 7]) &&
	       (text[domain + 8] == '\0' || text[domain + 8] == '/');
}

static int find_address(const struct wh_topology *topology, const char *address, size_t length)
{
	for (size_t i = 0; i < topology->pci_count; i++)
		if (strlen(topology->pci[i].address) == length &&
		    memcmp(topology->pci[i].address, address, length) == 0)
			return (int)i;
	return -1;
}

/* The last PCI device on a path in /sys/devices. */
static int find_in_path(const struct wh_topology *topology, const char *path)
{
	int found = -1;

	for (; path; path = strchr(path, '/')) {
		path += *path == '/';
		if (is_address(path))
			found = find_address(topology, path, strcspn(path, "/"));
	}
	return found;
}

/* Find the device's folder and its host bridge by the link in /sys/bus/pci/devices, such as
 * ".../pci0000:64/0000:64:01.0/0000:65:00.0". */
static void read_root(const struct wh_tree *tree, struct wh_pci *device, char *folder, size_t size)
{
	char path[WH_TREE_PATH], target[WH_TREE_PATH];
	const char *at;

	snprintf(path, sizeof(path), "%s/%s", PCI, device->address);
	snprintf(folder, size, "%s", path);
	if (wh_tree_link(tree, path, target, sizeof(target)))
		return;
	for (at = target; strncmp(at, "../", 3) == 0; at += 3)
		;
	snprintf(folder, size, "/sys/%.500s", at);
	for (at = target; at; at = strchr(at, '/')) {
		at += *at == '/';
		if (strncmp(at, "pci", 3) == 0 && isxdigit((unsigned char)at[3]))
			snprintf(device->root, sizeof(device->root), "%.*s", (int)strcspn(at, "/"),
				 at);
	}
}

/* The number of "32.0 GT/s PCIe"; NAN for "Unknown" or no file. */
static double read_speed(const struct wh_tree *tree, const char *folder, const char *file)
{
	char text[64], *end;
	double value;

	if (wh_tree_line(tree, folder, file, text, sizeof(text)))
		return NAN;
	value = strtod(text, &end);
	return end > text && value > 0 && value < 1000 ? value : NAN;
}

static void read_driver(const struct wh_tree *tree, const char *folder, struct wh_pci *device)
{
	char path[WH_TREE_PATH], target[WH_TREE_PATH];
	const char *name;

	snprintf(path, sizeof(path), "%.500s/driver", folder);
	if (wh_tree_link(tree, path, target, sizeof(target)))
		return;
	name = strrchr(target, '/');
	snprintf(device->driver, sizeof(device->driver), "%.60s", name ? name + 1 : target);
}

static void read_device(const struct wh_tree *tree, struct wh_pci *device)
{
	char folder[WH_TREE_PATH];
	int width;

	read_root(tree, device, folder, sizeof(folder));
	device->parent = -1;
	device->class_code = number_or(tree, folder, "class", -1);
	device->vendor = number_or(tree, folder, "vendor", -1);
	device->device = number_or(tree, folder, "device", -1);
	device->node = number_or(tree, folder, "numa_node", -1);
	read_driver(tree, folder, device);
	wh_tree_line(tree, folder, "local_cpulist", device->cpus, sizeof(device->cpus));
	device->speed = read_speed(tree, folder, "current_link_speed");
	device->speed_most = read_speed(tree, folder, "max_link_speed");
	/* A link that is down or absent reads as 255 or 0. */
	width = number_or(tree, folder, "current_link_width", 0);
	device->width = width > 0 && width <= 32 ? width : -1;
	width = number_or(tree, folder, "max_link_width", 0);
	device->width_most = width > 0 && width <= 32 ? width : -1;
}

/* Set the devices' parents; all devices have been read. */
static void find_parents(const struct wh_tree *tree, struct wh_topology *topology)
{
	for (size_t i = 0; i < topology->pci_count; i++) {
		struct wh_pci *device = &topology->pci[i];
		char path[WH_TREE_PATH], target[WH_TREE_PATH], *last;

		snprintf(path, sizeof(path), "%s/%s", PCI, device->address);
		if (wh_tree_link(tree, path, target, sizeof(target)))
			continue;
		last = strrchr(target, '/');
		if (!last)
			continue;
		*last = '\0';
		last = strrchr(target, '/');
		if (last && is_address(last + 1))
			device->parent = find_address(topology, last + 1, strlen(last + 1));
	}
}

static int read_pci(const struct wh_tree *tree, struct wh_topology *topology)
{
	struct wh_tree_names names;
	int error = wh_tree_list(tree, PCI, &names);

	if (error)
		return wh_topology_add_gap(topology, "PCI", "%s: %s", PCI, strerror(-error));
	for (size_t i = 0; i < names.count; i++) {
		struct wh_pci *device;

		if (!is_address(names.name[i]))
			continue;
		device = WH_TOPOLOGY_ADD(topology, pci, pci_count);
		if (!device) {
			wh_tree_names_free(&names);
			return -ENOMEM;
		}
		snprintf(device->address, sizeof(device->address), "%.19s", names.name[i]);
		read_device(tree, device);
	}
	wh_tree_names_free(&names);
	find_parents(tree, topology);
	return 0;
}

/* ---- GPUs in the PCI tree -------------------------------------------------------------------- */

void wh_gpu_init(struct wh_gpu *gpu)
{
	*gpu = (struct wh_gpu){
		.index = -1,
		.pci = -1,
		.capability = -1,
		.memory_bytes = WH_UNKNOWN,
		.bar1_bytes = WH_UNKNOWN,
		.l2_bytes = WH_UNKNOWN,
		.pcie_generation = -1,
		.pcie_generation_most = -1,
		.pcie_width = -1,
		.pcie_width_most = -1,
		.fabric = -1,
		.mig = -1,
		.recovery = -1,
	};
}

static int add_gpus(struct wh_topology *topology)
{
	for (size_t i = 0; i < topology->pci_count; i++) {
		const struct wh_pci *pci = &topology->pci[i];
		struct wh_gpu *gpu;

		if (pci->vendor != VENDOR_NVIDIA || pci->class_code >> 16 != 0x03)
			continue;
		gpu = WH_TOPOLOGY_ADD(topology, gpus, gpu_count);
		if (!gpu)
			return -ENOMEM;
		wh_gpu_init(gpu);
		gpu->pci = (int)i;
		memcpy(gpu->address, pci->address, sizeof(gpu->address));
		memcpy(gpu->cpus, pci->cpus, sizeof(gpu->cpus));
		if (pci->node >= 0)
			snprintf(gpu->nodes, sizeof(gpu->nodes), "%d", pci->node);
	}
	return 0;
}

/* ---- NICs and storage ------------------------------------------------------------------------ */

/* The PCI device of FOLDER/NAME in /sys/class or /sys/block; -1: none. */
static int device_of(const struct wh_tree *tree, const struct wh_topology *topology,
		     const char *folder, const char *name)
{
	char path[WH_TREE_PATH], target[WH_TREE_PATH];

	/* The path of the link itself contains the device, or that of its "device" link does. */
	snprintf(path, sizeof(path), "%s/%.64s", folder, name);
	if (!wh_tree_link(tree, path, target, sizeof(target)))
		return find_in_path(topology, target);
	snprintf(path, sizeof(path), "%s/%.64s/device", folder, name);
	return wh_tree_link(tree, path, target, sizeof(target)) ? -1 :
								  find_in_path(topology, target);
}

static int node_of(const struct wh_topology *topology, int pci)
{
	return pci < 0 ? -1 : topology->pci[pci].node;
}

/* Its files contain lines such as "4: ACTIVE" and "200 Gb/sec (4X HDR)". */
static void read_port(const struct wh_tree *tree, struct wh_nic *nic)
{
	char folder[WH_TREE_PATH], text[64], *colon, *end;

	snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports/1", nic->name);
	wh_tree_line(tree, folder, "link_layer", nic->layer, sizeof(nic->layer));
	if (!wh_tree_line(tree, folder, "state", text, sizeof(text))) {
		colon = strchr(text, ':');
		snprintf(nic->state, sizeof(nic->state), "%s",
			 colon ? colon + 1 + (colon[1] == ' ') : text);
	}
	if (wh_tree_line(tree, folder, "rate", text, sizeof(text)))
		return;
	nic->rate = strtod(text, &end);
	if (end == text || !(nic->rate > 0))
		nic->rate = NAN;
}

static void read_interface(const struct wh_tree *tree, struct wh_nic *nic)
{
	char folder[WH_TREE_PATH];
	int rate;

	snprintf(nic->layer, sizeof(nic->layer), "Ethernet");
	snprintf(folder, sizeof(folder), "/sys/class/net/%s", nic->name);
	wh_tree_line(tree, folder, "operstate", nic->state, sizeof(nic->state));
	rate = number_or(tree, folder, "speed", -1); /* Mbit/s; -1 of virtual interfaces */
	nic->rate = rate > 0 ? rate / 1e3 : NAN;
}

void wh_nic_read(const struct wh_tree *tree, struct wh_nic *nic)
{
	*nic->layer = *nic->state = '\0';
	nic->rate = NAN;
	if (nic->rdma == 1)
		read_port(tree, nic);
	else
		read_interface(tree, nic);
}

static int add_rdma(const struct wh_tree *tree, struct wh_topology *topology)
{
	struct wh_tree_names names, interfaces;
	int error = wh_tree_list(tree, "/sys/class/infiniband", &names);

	if (error || !names.count) {
		wh_tree_names_free(&names);
		return wh_topology_add_gap(
			topology, "RDMA",
			"no RDMA device in /sys/class/infiniband: there is no such "
			"NIC, or its driver is not loaded");
	}
	for (size_t i = 0; i < names.count; i++) {
		struct wh_nic *nic = WH_TOPOLOGY_ADD(topology, nics, nic_count);
		char path[WH_TREE_PATH];

		if (!nic) {
			error = -ENOMEM;
			break;
		}
		snprintf(nic->name, sizeof(nic->name), "%.63s", names.name[i]);
		nic->rdma = 1;
		nic->pci = device_of(tree, topology, "/sys/class/infiniband", nic->name);
		nic->node = node_of(topology, nic->pci);
		wh_nic_read(tree, nic);
		snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/net", nic->name);
		if (!wh_tree_list(tree, path, &interfaces) && interfaces.count)
			snprintf(nic->netdev, sizeof(nic->netdev), "%.63s", interfaces.name[0]);
		wh_tree_names_free(&interfaces);
	}
	wh_tree_names_free(&names);
	return error;
}

/* Does the interface belong to an RDMA device that has been added? */
static bool nic_is_known(const struct wh_topology *topology, const char *netdev)
{
	for (size_t i = 0; i < topology->nic_count; i++)
		if (strcmp(topology->nics[i].netdev, netdev) == 0)
			return true;
	return false;
}

/* Add the interfaces of hardware. Virtual interfaces have no PCI device. */
static int add_ethernet(const struct wh_tree *tree, struct wh_topology *topology)
{
	struct wh_tree_names names;
	int error = wh_tree_list(tree, "/sys/class/net", &names);

	if (error)
		return wh_topology_add_gap(topology, "network", "/sys/class/net: %s",
					   strerror(-error));
	for (size_t i = 0; i < names.count; i++) {
		int pci = device_of(tree, topology, "/sys/class/net", names.name[i]);
		struct wh_nic *nic;

		if (pci < 0 || nic_is_known(topology, names.name[i]))
			continue;
		nic = WH_TOPOLOGY_ADD(topology, nics, nic_count);
		if (!nic) {
			error = -ENOMEM;
			break;
		}
		snprintf(nic->name, sizeof(nic->name), "%.63s", names.name[i]);
		memcpy(nic->netdev, nic->name, sizeof(nic->netdev));
		nic->pci = pci;
		nic->node = node_of(topology, pci);
		wh_nic_read(tree, nic);
	}
	wh_tree_names_free(&names);
	return error;
}

static int add_disks(const struct wh_tree *tree, struct wh_topology *topology)
{
	struct wh_tree_names names;
	int error = wh_tree_list(tree, "/sys/block", &names);

	if (error)
		return wh_topology_add_gap(topology, "storage", "/sys/block: %s", strerror(-error));
	for (size_t i = 0; i < names.count; i++) {
		char folder[WH_TREE_PATH];
		struct wh_disk *disk;
		int64_t sectors;
		int pci = device_of(tree, topology, "/sys/block", names.name[i]);

		snprintf(folder, sizeof(folder), "/sys/block/%.64s", names.name[i]);
		/* Without a PCI device it is a virtual disk. */
		if (pci < 0 || wh_tree_number(tree, folder, "size", &sectors) || sectors <= 0)
			continue;
		disk = WH_TOPOLOGY_ADD(topology, disks, disk_count);
		if (!disk) {
			error = -ENOMEM;
			break;
		}
		snprintf(disk->name, sizeof(disk->name), "%.63s", names.name[i]);
		disk->size_bytes = (uint64_t)sectors * 512;
		disk->pci = pci;
		disk->node = node_of(topology, pci);
		snprintf(folder, sizeof(folder), "/sys/block/%.64s/device", names.name[i]);
		wh_tree_line(tree, folder, "model", disk->model, sizeof(disk->model));
	}
	wh_tree_names_free(&names);
	return error;
}

/* ---- the whole machine ----------------------------------------------------------------------- */

/* Why the value of a NIC's file is not known; "": it is known. */
static const char *nic_missing(const struct wh_tree *tree, const struct wh_nic *nic,
			       const char *file, bool known)
{
	char folder[WH_TREE_PATH], line[64];
	int error;

	if (known)
		return "";
	snprintf(folder, sizeof(folder),
		 nic->rdma == 1 ? "/sys/class/infiniband/%s/ports/1" : "/sys/class/net/%s",
		 nic->name);
	error = wh_tree_line(tree, folder, file, line, sizeof(line));
	/* An interface that is down or virtual gives EINVAL, or -1. */
	return !error || error == -EINVAL ? "the driver does not say" : strerror(-error);
}

static int add_nic_gaps(const struct wh_tree *tree, struct wh_topology *topology)
{
	int error = 0;

	for (size_t i = 0; i < topology->nic_count && !error; i++) {
		const struct wh_nic *nic = &topology->nics[i];
		const char *state = nic_missing(tree, nic, nic->rdma == 1 ? "state" : "operstate",
						*nic->state),
			   *rate = nic_missing(tree, nic, nic->rdma == 1 ? "rate" : "speed",
					       !isnan(nic->rate)),
			   *node = nic->node < 0 ? "the firmware does not say" : "";

		if (*state || *rate || *node)
			error = wh_topology_add_gap(
				topology, nic->name, "%s%s%s%s%s%s%s%s", *state ? "state: " : "",
				state, *state && *rate ? "; " : "", *rate ? "rate: " : "", rate,
				(*state || *rate) && *node ? "; " : "", *node ? "NUMA node: " : "",
				node);
	}
	return error;
}

int wh_topology_read(const struct wh_tree *tree, struct wh_topology **out)
{
	static int (*const steps[])(const struct wh_tree *, struct wh_topology *) = {
		read_nodes, read_pci, add_rdma, add_ethernet, add_nic_gaps, add_disks,
	};
	struct wh_topology *topology = calloc(1, sizeof(*topology));
	int error = topology ? 0 : -ENOMEM;

	if (topology) {
		topology->cpu = (struct wh_cpu){ .packages = -1, .cores = -1, .threads = -1 };
		wh_tree_line(tree, "/proc/sys/kernel", "hostname", topology->host,
			     sizeof(topology->host));
	}
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && !error; i++)
		error = steps[i](tree, topology);
	if (!error)
		error = add_gpus(topology);
	if (error) {
		wh_topology_free(topology);
		return wh_fail(ENOMEM, "no memory for the topology of this machine");
	}
	*out = topology;
	return 0;
}
