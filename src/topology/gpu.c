/* SPDX-License-Identifier: Apache-2.0 */
/* Adding NVML's answers to the topology: GPUs, their NVLinks and pairs of GPUs. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "platform/nvml.h"
#include "topology/topology.h"
#include "util/error.h"

#define CPU_WORDS 16 /* 1,024 CPUs */
#define NODE_WORDS 2

static void write_address(const struct wh_nvml_pci *pci, char out[WH_ADDRESS])
{
	snprintf(out, WH_ADDRESS, "%04x:%02x:%02x.0", pci->domain & 0xffff, pci->bus & 0xff,
		 pci->device & 0x1f);
}

/* Write a set of bits as "0-15,32-47". */
static void write_list(const uint64_t *words, unsigned count, char *out, size_t size)
{
	unsigned bits = count * 64, used = 0;

	*out = '\0';
	for (unsigned first = 0; first < bits && used + 12 < size; first++) {
		unsigned last = first;

		if (!(words[first / 64] >> first % 64 & 1))
			continue;
		while (last + 1 < bits && words[(last + 1) / 64] >> (last + 1) % 64 & 1)
			last++;
		used += (unsigned)snprintf(out + used, size - used, "%s%u", used ? "," : "", first);
		if (last > first)
			used += (unsigned)snprintf(out + used, size - used, "-%u", last);
		first = last;
	}
}

/* What NVML does not answer about a GPU, and its reason: "BAR1: no permission, CPUs: not
 * supported". */
struct missing {
	char text[sizeof(((struct wh_topology_gap *)0)->why)];
	size_t used;
};

/* Did NVML answer? If not, add `what` and the error to `missing`. */
static bool answered(struct missing *missing, const char *what, int error)
{
	if (error && missing->used < sizeof(missing->text))
		missing->used += (size_t)snprintf(
			missing->text + missing->used, sizeof(missing->text) - missing->used,
			"%s%s: %s", missing->used ? ", " : "", what, wh_nvml_meaning(error));
	return !error;
}

/* Record what is missing. Consecutive GPUs that miss the same share one gap: "GPU0 to GPU7". */
static int add_gpu_gap(struct wh_topology *topology, const struct missing *missing, unsigned device)
{
	struct wh_topology_gap *last =
		topology->gap_count ? &topology->gaps[topology->gap_count - 1] : NULL;
	char what[WH_NAME];

	if (!missing->used)
		return 0;
	if (!last || strncmp(last->what, "GPU", 3) != 0 || strcmp(last->why, missing->text) != 0) {
		snprintf(what, sizeof(what), "GPU%u", device);
		return wh_topology_add_gap(topology, what, "%s", missing->text);
	}
	snprintf(what, sizeof(what), "%.*s to GPU%u", (int)strcspn(last->what, " "), last->what,
		 device);
	memcpy(last->what, what, sizeof(what));
	return 0;
}

static int query_number(struct wh_nvml *nvml, enum wh_nvml_number which, unsigned device,
			const char *what, struct missing *missing)
{
	uint32_t value;
	int error = wh_nvml_number(nvml, which, device, &value);

	return answered(missing, what, error) && value <= INT32_MAX ? (int)value : -1;
}

static void copy_text(char *out, size_t size, const char *text)
{
	snprintf(out, size, "%.*s", (int)size - 1, text);
}

static void query_affinity(struct wh_nvml *nvml, unsigned device, struct wh_gpu *gpu,
			   struct missing *missing)
{
	uint64_t words[CPU_WORDS];

	if (answered(missing, "CPUs", wh_nvml_cpus(nvml, device, words, CPU_WORDS)))
		write_list(words, CPU_WORDS, gpu->cpus, sizeof(gpu->cpus));
	if (answered(missing, "NUMA nodes", wh_nvml_nodes(nvml, device, words, NODE_WORDS)))
		write_list(words, NODE_WORDS, gpu->nodes, sizeof(gpu->nodes));
}

static void query_gpu(struct wh_nvml *nvml, unsigned device, struct wh_gpu *gpu,
		      struct missing *missing)
{
	struct wh_nvml_memory memory;
	struct wh_nvml_fabric fabric;
	char text[WH_NVML_TEXT];
	uint64_t recovery;
	int major, minor;
	bool mig;

	if (answered(missing, "name", wh_nvml_text(nvml, WH_NVML_NAME, device, text)))
		copy_text(gpu->name, sizeof(gpu->name), text);
	if (answered(missing, "UUID", wh_nvml_text(nvml, WH_NVML_UUID, device, text)))
		copy_text(gpu->uuid, sizeof(gpu->uuid), text);
	if (answered(missing, "memory", wh_nvml_memory(nvml, device, &memory)))
		gpu->memory_bytes = memory.total;
	if (answered(missing, "BAR1", wh_nvml_bar1(nvml, device, &memory)))
		gpu->bar1_bytes = memory.total;
	if (!wh_nvml_capability(nvml, device, &major, &minor))
		gpu->capability = major * 10 + minor;
	gpu->pcie_generation = query_number(nvml, WH_NVML_PCIE_GENERATION, device, "PCIe", missing);
	gpu->pcie_generation_most =
		query_number(nvml, WH_NVML_PCIE_GENERATION_MOST, device, "PCIe at most", missing);
	gpu->pcie_width = query_number(nvml, WH_NVML_PCIE_WIDTH, device, "lanes", missing);
	gpu->pcie_width_most =
		query_number(nvml, WH_NVML_PCIE_WIDTH_MOST, device, "lanes at most", missing);
	if (!wh_nvml_fabric(nvml, device, &fabric) && fabric.state <= INT32_MAX) {
		gpu->fabric = (int)fabric.state;
		wh_nvml_domain_text(&fabric, gpu->domain);
	}
	if (!wh_nvml_mig(nvml, device, &mig))
		gpu->mig = mig;
	if (!wh_nvml_field(nvml, device, WH_NVML_FIELD_RECOVERY, UINT32_MAX, &recovery) &&
	    recovery <= INT32_MAX)
		gpu->recovery = (int)recovery;
	query_affinity(nvml, device, gpu, missing);
}

/* The GPU of the topology with this address, or a new one. "": the next GPU, in PCI order, that
 * has no index of NVML's yet: NVML counts in PCI order, too. NULL: no memory. */
static struct wh_gpu *gpu_at_address(struct wh_topology *topology, const char *address)
{
	struct wh_gpu *gpu;

	for (size_t i = 0; i < topology->gpu_count; i++) {
		gpu = &topology->gpus[i];
		if (*address ? strcmp(gpu->address, address) == 0 : gpu->index < 0)
			return gpu;
	}
	gpu = WH_TOPOLOGY_ADD(topology, gpus, gpu_count);
	if (!gpu)
		return NULL;
	wh_gpu_init(gpu);
	copy_text(gpu->address, sizeof(gpu->address), address);
	return gpu;
}

/* Add a GPU, if it has an address (`named`), or if it is lost and has none (not `named`). */
static int add_gpu(struct wh_topology *topology, struct wh_nvml *nvml, unsigned device, bool named)
{
	char address[WH_ADDRESS] = "", problem[sizeof(((struct wh_gpu *)0)->problem)] = "";
	struct missing missing = { .used = 0 };
	struct wh_nvml_pci pci;
	struct wh_gpu *gpu;

	/* Already added: it was lost since and has no address any more. */
	for (size_t i = 0; i < topology->gpu_count; i++)
		if (topology->gpus[i].index == (int)device)
			return 0;
	if (!wh_nvml_pci(nvml, device, &pci))
		write_address(&pci, address);
	if (!*address == named)
		return 0;
	if (wh_nvml_device(nvml, device))
		copy_text(problem, sizeof(problem), wh_fail_text());
	gpu = gpu_at_address(topology, address);
	if (!gpu)
		return -ENOMEM;
	gpu->index = (int)device;
	memcpy(gpu->problem, problem, sizeof(gpu->problem));
	if (*problem)
		return 0;
	query_gpu(nvml, device, gpu, &missing);
	if (!wh_nvml_device(nvml, device))
		return add_gpu_gap(topology, &missing, device);
	/* It was lost while it answered. */
	copy_text(gpu->problem, sizeof(gpu->problem), wh_fail_text());
	return 0;
}

/* ---- NVLinks --------------------------------------------------------------------------------- */

static int find_gpu(const struct wh_topology *topology, const char *address)
{
	for (size_t i = 0; i < topology->gpu_count; i++)
		if (strcmp(topology->gpus[i].address, address) == 0)
			return (int)i;
	return -1;
}

static int add_link(struct wh_topology *topology, struct wh_nvml *nvml, size_t gpu, unsigned link,
		    bool active)
{
	unsigned device = (unsigned)topology->gpus[gpu].index;
	struct wh_nvlink *out = WH_TOPOLOGY_ADD(topology, links, link_count);
	struct wh_nvml_pci pci;
	uint32_t value;
	uint64_t speed;

	if (!out)
		return -ENOMEM;
	*out = (struct wh_nvlink){ .gpu = (int)gpu,
				   .link = (int)link,
				   .active = active,
				   .version = -1,
				   .remote = -1,
				   .peer = -1,
				   .speed = NAN };
	if (!active)
		return 0;
	if (!wh_nvml_indexed(nvml, WH_NVML_LINK_VERSION, device, link, &value))
		out->version = (int)value;
	if (!wh_nvml_indexed(nvml, WH_NVML_LINK_REMOTE, device, link, &value) && value <= 255)
		out->remote = (int)value;
	if (!wh_nvml_field(nvml, device, WH_NVML_FIELD_LINK_SPEED, link, &speed) && speed)
		out->speed = (double)speed / 1e3;
	/* All ones: the other end is hidden from this virtual machine. */
	if (!wh_nvml_link_pci(nvml, device, link, &pci) && pci.domain != UINT32_MAX) {
		write_address(&pci, out->address);
		out->peer = find_gpu(topology, out->address);
	}
	/* Older drivers do not say what is at the other end; the address shows a GPU. */
	if (out->remote < 0 && out->peer >= 0)
		out->remote = WH_NVML_REMOTE_GPU;
	return 0;
}

static int add_links(struct wh_topology *topology, struct wh_nvml *nvml, size_t gpu)
{
	int error = 0;

	for (unsigned link = 0; link < WH_NVML_LINKS && !error; link++) {
		uint32_t state;

		/* The first link that NVML does not know ends the list. */
		if (wh_nvml_indexed(nvml, WH_NVML_LINK_STATE, (unsigned)topology->gpus[gpu].index,
				    link, &state))
			break;
		error = add_link(topology, nvml, gpu, link, state == 1);
	}
	return error;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static int query_p2p(struct wh_nvml *nvml, unsigned from, unsigned to, enum wh_nvml_p2p what)
{
	uint32_t value;

	return wh_nvml_p2p(nvml, from, to, what, &value) || value > INT32_MAX ? -1 : (int)value;
}

static int add_pair(struct wh_topology *topology, struct wh_nvml *nvml, size_t from, size_t to)
{
	struct wh_gpu_pair *pair = WH_TOPOLOGY_ADD(topology, pairs, pair_count);
	unsigned one = (unsigned)topology->gpus[from].index,
		 other = (unsigned)topology->gpus[to].index;
	uint32_t ancestor;

	if (!pair)
		return -ENOMEM;
	*pair = (struct wh_gpu_pair){
		.from = (int)from,
		.to = (int)to,
		.ancestor = -1,
		.read = query_p2p(nvml, one, other, WH_NVML_P2P_READ),
		.write = query_p2p(nvml, one, other, WH_NVML_P2P_WRITE),
		.nvlink = query_p2p(nvml, one, other, WH_NVML_P2P_NVLINK),
		.atomics = query_p2p(nvml, one, other, WH_NVML_P2P_ATOMICS),
	};
	if (!wh_nvml_ancestor(nvml, one, other, &ancestor) && ancestor <= INT32_MAX)
		pair->ancestor = (int)ancestor;
	return 0;
}

static bool gpu_is_usable(const struct wh_gpu *gpu)
{
	return gpu->index >= 0 && !*gpu->problem;
}

static int add_relations(struct wh_topology *topology, struct wh_nvml *nvml)
{
	int error = 0;

	for (size_t i = 0; i < topology->gpu_count && !error; i++) {
		if (!gpu_is_usable(&topology->gpus[i]))
			continue;
		error = add_links(topology, nvml, i);
		for (size_t k = 0; k < topology->gpu_count && !error; k++)
			if (i != k && gpu_is_usable(&topology->gpus[k]))
				error = add_pair(topology, nvml, i, k);
	}
	return error;
}

/* Sort by NVML's index; GPUs that NVML does not know come last. */
static void sort_gpus(struct wh_topology *topology)
{
	for (size_t i = 1; i < topology->gpu_count; i++) {
		struct wh_gpu gpu = topology->gpus[i];
		size_t k = i;

		for (; k && (unsigned)topology->gpus[k - 1].index > (unsigned)gpu.index; k--)
			topology->gpus[k] = topology->gpus[k - 1];
		topology->gpus[k] = gpu;
	}
}

/* There is no NVML: nothing more can be known about the GPUs in the PCI tree. */
static int add_nvml_gap(struct wh_topology *topology, const char *why)
{
	int error = wh_topology_add_gap(topology, "NVML", "%s", why);

	for (size_t i = 0; i < topology->gpu_count; i++)
		snprintf(topology->gpus[i].problem, sizeof(topology->gpus[i].problem),
			 "NVML cannot be asked");
	return error;
}

int wh_topology_add_nvml(struct wh_topology *topology, struct wh_nvml *nvml, const char *why)
{
	char text[WH_NVML_TEXT];
	int error = 0;

	if (!nvml)
		return add_nvml_gap(topology, why);
	if (!wh_nvml_system_text(nvml, WH_NVML_DRIVER_VERSION, text))
		copy_text(topology->driver, sizeof(topology->driver), text);
	for (int named = 1; named >= 0; named--)
		for (unsigned i = 0; i < wh_nvml_count(nvml) && !error; i++)
			error = add_gpu(topology, nvml, i, named);
	for (size_t i = 0; i < topology->gpu_count && !error; i++)
		if (topology->gpus[i].index < 0 && !*topology->gpus[i].problem)
			snprintf(topology->gpus[i].problem, sizeof(topology->gpus[i].problem),
				 "NVML does not list it: it is lost, has another driver, or is "
				 "hidden "
				 "from this container");
	sort_gpus(topology);
	if (!error)
		error = add_relations(topology, nvml);
	return error ? wh_fail(ENOMEM, "no memory for the topology of the GPUs") : 0;
}
