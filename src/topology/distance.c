/* SPDX-License-Identifier: Apache-2.0 */
/* The distance between two ends, and the NICs that serve a GPU. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "platform/nvml.h"
#include "topology/topology.h"

/* ---- NVLinks --------------------------------------------------------------------------------- */

static const struct wh_gpu_pair *pair_of(const struct wh_topology *topology, size_t from, size_t to)
{
	for (size_t i = 0; i < topology->pair_count; i++)
		if (topology->pairs[i].from == (int)from && topology->pairs[i].to == (int)to)
			return &topology->pairs[i];
	return NULL;
}

struct link_count {
	int direct; /* to the other GPU */
	int switched; /* to a switch, or to an unknown end */
};

static struct link_count count_links(const struct wh_topology *topology, size_t gpu, size_t other)
{
	struct link_count count = { 0, 0 };

	for (size_t i = 0; i < topology->link_count; i++) {
		const struct wh_nvlink *link = &topology->links[i];

		if (link->gpu != (int)gpu || link->active != 1)
			continue;
		if (link->peer == (int)other)
			count.direct++;
		else if (link->peer < 0 && link->remote != WH_NVML_REMOTE_GPU &&
			 link->remote != WH_NVML_REMOTE_NPU)
			count.switched++;
	}
	return count;
}

/* The number of links between two GPUs, direct or through switches. The links may lead to different
 * switches: NVML's answer about the pair decides. */
static int links_between(const struct wh_topology *topology, size_t one, size_t other)
{
	const struct wh_gpu_pair *pair = pair_of(topology, one, other);
	struct link_count here = count_links(topology, one, other),
			  there = count_links(topology, other, one);

	if (here.direct)
		return here.direct;
	if (!here.switched || !there.switched || (pair && pair->nvlink > 0))
		return 0;
	return here.switched < there.switched ? here.switched : there.switched;
}

/* ---- PCI ------------------------------------------------------------------------------------- */

/* The number of steps up from `pci` to `ancestor`; -1: it is not above. */
static int steps_up(const struct wh_topology *topology, int pci, int ancestor)
{
	int steps = 0;

	for (; pci != ancestor && pci >= 0 && steps < WH_PCI_DEPTH; steps++)
		pci = topology->pci[pci].parent;
	return pci == ancestor && pci >= 0 ? steps : -1;
}

/* A switch has an upstream port and a downstream port above each device: devices that are at most
 * two steps below the same bridge share one switch. */
static enum wh_distance below_bridges(int one, int other)
{
	return one <= 2 && other <= 2 ? WH_PIX : WH_PXB;
}

static enum wh_distance distance_by_nodes(const struct wh_topology *topology, int one, int other)
{
	if (one == other)
		return WH_NODE;
	/* On a machine with one node the devices' node is -1. */
	return (one < 0 || other < 0) && topology->node_count <= 1 ? WH_NODE : WH_SYS;
}

static enum wh_distance distance_by_pci(const struct wh_topology *topology, int one, int other)
{
	const struct wh_pci *pci = topology->pci;
	int at = one, steps, up = 0;

	if (one < 0 || other < 0)
		return WH_FAR;
	for (; at >= 0 && up < WH_PCI_DEPTH; at = pci[at].parent, up++) {
		steps = steps_up(topology, other, at);
		if (steps >= 0)
			return below_bridges(up, steps);
	}
	if (pci[one].root[0] && strcmp(pci[one].root, pci[other].root) == 0)
		return WH_PHB;
	return distance_by_nodes(topology, pci[one].node, pci[other].node);
}

static enum wh_distance distance_by_nvml(const struct wh_gpu_pair *pair)
{
	switch (pair ? pair->ancestor : -1) {
	case WH_NVML_ANCESTOR_BOARD:
	case WH_NVML_ANCESTOR_SWITCH:
		return WH_PIX;
	case WH_NVML_ANCESTOR_SWITCHES:
		return WH_PXB;
	case WH_NVML_ANCESTOR_HOST_BRIDGE:
		return WH_PHB;
	case WH_NVML_ANCESTOR_NODE:
		return WH_NODE;
	case WH_NVML_ANCESTOR_SYSTEM:
		return WH_SYS;
	default:
		return WH_FAR;
	}
}

/* ---- any two ends ---------------------------------------------------------------------------- */

static int pci_of(const struct wh_topology *topology, struct wh_end end)
{
	return end.kind == WH_END_GPU ? topology->gpus[end.index].pci :
	       end.kind == WH_END_NIC ? topology->nics[end.index].pci :
					-1;
}

/* From a device to the memory of a node: through the host bridge of that node or of another. */
static enum wh_distance distance_to_memory(const struct wh_topology *topology, struct wh_end device,
					   struct wh_end node)
{
	int pci = pci_of(topology, device);

	if (pci < 0)
		return WH_FAR;
	if (topology->pci[pci].node == topology->nodes[node.index].id)
		return WH_PHB;
	return distance_by_nodes(topology, topology->pci[pci].node,
				 topology->nodes[node.index].id) == WH_NODE ?
		       WH_PHB :
		       WH_SYS;
}

enum wh_distance wh_topology_distance(const struct wh_topology *topology, struct wh_end one,
				      struct wh_end other, int *links)
{
	enum wh_distance distance;

	*links = 0;
	if (one.kind == other.kind && one.index == other.index)
		return WH_SELF;
	if (one.kind == WH_END_NODE && other.kind == WH_END_NODE)
		return WH_SYS;
	if (one.kind == WH_END_NODE)
		return distance_to_memory(topology, other, one);
	if (other.kind == WH_END_NODE)
		return distance_to_memory(topology, one, other);
	if (one.kind == WH_END_GPU && other.kind == WH_END_GPU) {
		*links = links_between(topology, one.index, other.index);
		if (*links)
			return WH_NVLINK;
		distance = distance_by_nvml(pair_of(topology, one.index, other.index));
		if (distance != WH_FAR)
			return distance;
	}
	return distance_by_pci(topology, pci_of(topology, one), pci_of(topology, other));
}

void wh_distance_text(enum wh_distance distance, int links, char out[8])
{
	static const char *const words[] = {
		[WH_SELF] = "X",  [WH_NVLINK] = "NV", [WH_PIX] = "PIX", [WH_PXB] = "PXB",
		[WH_PHB] = "PHB", [WH_NODE] = "NODE", [WH_SYS] = "SYS", [WH_FAR] = "-",
	};

	if (distance == WH_NVLINK)
		snprintf(out, 8, "NV%d", links % 1000);
	else
		snprintf(out, 8, "%s", words[distance]);
}

/* ---- NICs ------------------------------------------------------------------------------------ */

static bool nic_is_up(const struct wh_nic *nic)
{
	return strcmp(nic->state, "ACTIVE") == 0 || strcmp(nic->state, "up") == 0;
}

/* Compare two NICs at these distances: 1: `one` is better; -1: `other` is; 0: they are equal. */
static int nic_compare(const struct wh_nic *one, enum wh_distance distance,
		       const struct wh_nic *other, enum wh_distance other_distance)
{
	double rate = isnan(one->rate) ? 0 : one->rate,
	       other_rate = isnan(other->rate) ? 0 : other->rate;

	if (nic_is_up(one) != nic_is_up(other))
		return nic_is_up(one) - nic_is_up(other);
	if (!one->rdma != !other->rdma)
		return !other->rdma - !one->rdma;
	if (distance != other_distance)
		return distance < other_distance ? 1 : -1;
	return (rate > other_rate) - (rate < other_rate);
}

static enum wh_distance nic_distance(const struct wh_topology *topology, size_t gpu, size_t nic)
{
	int links;

	return wh_topology_distance(topology, (struct wh_end){ WH_END_GPU, gpu },
				    (struct wh_end){ WH_END_NIC, nic }, &links);
}

int wh_topology_nic_of(const struct wh_topology *topology, size_t gpu)
{
	const struct wh_nic *nics = topology->nics;
	size_t best = 0, equals = 0, turn;

	if (!topology->nic_count)
		return -1;
	for (size_t i = 1; i < topology->nic_count; i++)
		if (nic_compare(&nics[i], nic_distance(topology, gpu, i), &nics[best],
				nic_distance(topology, gpu, best)) > 0)
			best = i;
	for (size_t i = 0; i < topology->nic_count; i++)
		equals += !nic_compare(&nics[i], nic_distance(topology, gpu, i), &nics[best],
				       nic_distance(topology, gpu, best));
	turn = gpu % equals;
	for (size_t i = 0; i < topology->nic_count; i++) {
		if (nic_compare(&nics[i], nic_distance(topology, gpu, i), &nics[best],
				nic_distance(topology, gpu, best)))
			continue;
		if (!turn--)
			return (int)i;
	}
	return (int)best;
}

static enum wh_distance rdma_distance(const struct wh_topology *topology, struct wh_end memory,
				      size_t nic)
{
	int links;

	if (topology->nics[nic].rdma != 1 || !nic_is_up(&topology->nics[nic]))
		return WH_FAR;
	return wh_topology_distance(topology, memory, (struct wh_end){ WH_END_NIC, nic }, &links);
}

enum wh_distance wh_topology_rdma_distance(const struct wh_topology *topology, struct wh_end memory)
{
	enum wh_distance nearest = WH_FAR;

	for (size_t i = 0; i < topology->nic_count; i++) {
		enum wh_distance distance = rdma_distance(topology, memory, i);

		if (distance < nearest)
			nearest = distance;
	}
	return nearest;
}

bool wh_topology_rdma_by(const struct wh_topology *topology, struct wh_end memory, size_t nic)
{
	enum wh_distance nearest = wh_topology_rdma_distance(topology, memory);

	return nearest != WH_FAR && rdma_distance(topology, memory, nic) == nearest;
}
