/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: distances between NICs and memory, from sysfs. Of the endpoints that reach a peer, the
 * nearest carry the bytes; the others are used when those have failed. If the setting `rdma` names
 * NICs, the user has chosen: all count as equally near. */
#include <string.h>

#include "platform/cuda.h"
#include "topology/topology.h"
#include "transport/rdma/rdma.h"

void rdma_affinity_open(struct rdma *rdma)
{
	const struct wh_tree live = { .root = "" };

	if (rdma->nic_count < 2 || *wh_engine_config(rdma->engine)->text[WH_SETTING_RDMA])
		return;
	/* On failure all NICs count as equally near. */
	if (wh_topology_read(&live, &rdma->topology))
		rdma->topology = NULL;
}

void rdma_affinity_close(struct rdma *rdma)
{
	wh_topology_free(rdma->topology);
	rdma->topology = NULL;
}

/* The GPU, or the NUMA node, that the region's memory is on. */
static bool affinity_locate(const struct rdma *rdma, const struct wh_region *region,
			    struct wh_end *out)
{
	const struct wh_topology *topology = rdma->topology;
	const struct wh_cuda_device *device = region->registration ?
						      region->registration->device :
						      NULL; /* NULL: a slot of pinned memory */
	int node;

	if (device) {
		for (size_t i = 0; i < topology->gpu_count; i++)
			if (!strcmp(topology->gpus[i].address, device->pci)) {
				*out = (struct wh_end){ WH_END_GPU, i };
				return true;
			}
		return false;
	}
	node = wh_numa_node((const void *)(uintptr_t)region->entry.address);
	for (size_t i = 0; i < topology->node_count; i++)
		if (topology->nodes[i].id == node) {
			*out = (struct wh_end){ WH_END_NODE, i };
			return true;
		}
	return false;
}

uint8_t rdma_distance(const struct rdma_nic *nic, const struct wh_region *region)
{
	const struct wh_topology *topology = nic->rdma->topology;
	struct wh_end memory;
	int links;

	if (!topology || !affinity_locate(nic->rdma, region, &memory))
		return 0;
	for (size_t i = 0; i < topology->nic_count; i++)
		if (!strcmp(topology->nics[i].name, nic->name))
			return (uint8_t)wh_topology_distance(
				topology, memory, (struct wh_end){ WH_END_NIC, i }, &links);
	return WH_FAR;
}
