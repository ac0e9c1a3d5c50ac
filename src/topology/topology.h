/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a machine that matter for moving bytes: NUMA nodes, the PCI tree, GPUs and their
 * NVLinks, NICs, storage. Also the distance between two of them, and the speed to expect.
 *
 * The sources are sysfs and NVML. An unknown value is -1, WH_UNKNOWN, NAN or "", never a guess;
 * `gaps` says what is missing and why. CPUs and their caches are only shown to people: the command
 * fills them in, with hwloc.
 */
#ifndef WH_TOPOLOGY_TOPOLOGY_H
#define WH_TOPOLOGY_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topology/tree.h"

struct wh_nvml;

#define WH_UNKNOWN UINT64_MAX
#define WH_NAME 64
#define WH_PCI_DEPTH                                                                               \
	64 /* bridges above each other: a topology read from a file may have a loop                \
	    */
#define WH_ADDRESS 20 /* "0000:65:00.0" */

struct wh_node {
	int id;
	uint64_t memory_bytes;
	char cpus[WH_NAME]; /* "0-31,64-95" */
	char distances[2 * WH_NAME]; /* to each node, in order: "10 21" */
};

struct wh_cpu_cache {
	int level;
	char kind[WH_NAME]; /* "data", "instruction", "unified" */
	uint64_t size_bytes; /* of one cache */
	int count; /* caches of this kind in the machine */
};

struct wh_cpu {
	char model[2 * WH_NAME];
	int packages, cores, threads;
};

struct wh_pci {
	char address[WH_ADDRESS];
	char root[WH_NAME]; /* the host bridge, "pci0000:64" */
	char driver[WH_NAME];
	char cpus[2 * WH_NAME]; /* the nearest CPUs */
	int parent; /* the bridge above, an index of `pci`; -1: the host bridge */
	int class_code; /* 0x030200 */
	int vendor, device;
	int node; /* NUMA node; -1: not known */
	double speed, speed_most; /* GT/s */
	int width, width_most; /* lanes */
};

/* The answer to a question; WH_UNSAID: nobody asked, or nobody answered. */
enum wh_said { WH_UNSAID, WH_YES, WH_NO };

struct wh_gpu {
	int index; /* as NVML and nvidia-smi count; -1: NVML does not know it */
	int pci; /* an index of `pci`; -1: not found there */
	char address[WH_ADDRESS];
	char name[WH_NAME];
	char uuid[WH_NAME];
	char cpus[2 * WH_NAME];
	char nodes[WH_NAME]; /* NUMA affinity */
	char problem[256]; /* why it cannot be used or queried; "": it can */
	int capability; /* 90: 9.0 */
	uint64_t memory_bytes, bar1_bytes, l2_bytes;
	int pcie_generation, pcie_generation_most;
	int pcie_width, pcie_width_most;
	int fabric; /* enum wh_nvml_fabric_state */
	/* the NVLink domain, "CLUSTER/CLIQUE", whose GPUs of all hosts reach each other's memory;
	 * "": none beyond this host */
	char domain[WH_NAME];
	int mig; /* 1: partitioned into instances */
	enum wh_said dma_buf; /* does the driver export its memory as a dma-buf? */
	int recovery; /* action it needs: 0 none, 1 a reset, 2 a reboot, others: draining */
};

struct wh_nvlink {
	int gpu; /* an index of `gpus` */
	int link;
	int active;
	int version;
	int remote; /* enum wh_nvml_remote */
	int peer; /* the GPU at the other end, an index of `gpus`; -1: no GPU, or not known */
	char address[WH_ADDRESS]; /* of the other end */
	double speed; /* GB/s in each direction */
};

/* NVML's answers about a pair of GPUs, both indexes of `gpus`. */
struct wh_gpu_pair {
	int from, to;
	int ancestor; /* enum wh_nvml_ancestor */
	int read, write, nvlink, atomics; /* 0: yes */
};

struct wh_nic {
	char name[WH_NAME]; /* "mlx5_0", or "eth0" without RDMA */
	char netdev[WH_NAME]; /* its network interface */
	char layer[WH_NAME]; /* "InfiniBand", "Ethernet" */
	char state[WH_NAME]; /* "ACTIVE", "up", "down" */
	int rdma;
	int pci;
	int node;
	double rate; /* Gbit/s now */
	enum wh_said dma_buf; /* does it register dma-bufs? */
};

struct wh_disk {
	char name[WH_NAME];
	char model[WH_NAME];
	uint64_t size_bytes;
	int pci;
	int node;
};

/* Something that is not known. */
struct wh_topology_gap {
	char what[WH_NAME]; /* "NVML" */
	char why[256];
};

struct wh_topology {
	char host[WH_NAME];
	char driver[WH_NAME]; /* the NVIDIA driver's version */
	enum wh_said peermem; /* can NICs register addresses of GPU memory (nvidia-peermem)? */
	struct wh_cpu cpu;
	struct wh_cpu_cache *caches;
	struct wh_node *nodes;
	struct wh_pci *pci;
	struct wh_gpu *gpus;
	struct wh_nvlink *links;
	struct wh_gpu_pair *pairs;
	struct wh_nic *nics;
	struct wh_disk *disks;
	struct wh_topology_gap *gaps;
	size_t cache_count, node_count, pci_count, gpu_count, link_count, pair_count, nic_count,
		disk_count, gap_count;
};

/* ---- making one ------------------------------------------------------------------------------ */

/* Read what sysfs shows: everything but NVML's part. 0 or -ENOMEM. */
int wh_topology_read(const struct wh_tree *tree, struct wh_topology **out);

/* Add what NVML knows about the GPUs. `nvml` may be NULL: `why` then says why there is none. 0 or
 * -ENOMEM. */
int wh_topology_add_nvml(struct wh_topology *topology, struct wh_nvml *nvml, const char *why);

void wh_topology_free(struct wh_topology *topology);

/* Read again what changes of a NIC: layer, state and rate. `name` and `rdma` identify it. A value
 * that cannot be read becomes unknown. */
void wh_nic_read(const struct wh_tree *tree, struct wh_nic *nic);

/* Append an element, all zero, to an array of the topology. The array may move. NULL: no memory. */
#define WH_TOPOLOGY_ADD(topology, array, count)                                                    \
	wh_topology_grow((void **)&(topology)->array, &(topology)->count,                          \
			 sizeof(*(topology)->array))
void *wh_topology_grow(void **array, size_t *count, size_t size);

/* Set every value of a GPU to unknown. */
void wh_gpu_init(struct wh_gpu *gpu);

/* Record that something is missing, and why. 0 or -ENOMEM. */
int wh_topology_add_gap(struct wh_topology *topology, const char *what, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- distances ------------------------------------------------------------------------------- */

enum wh_end_kind { WH_END_GPU, WH_END_NIC, WH_END_NODE };

/* An end of a route: an index of `gpus`, `nics` or `nodes`. */
struct wh_end {
	enum wh_end_kind kind;
	size_t index;
};

/* From near to far, in the words of nvidia-smi topo -m. */
enum wh_distance {
	WH_SELF, /* X */
	WH_NVLINK, /* NV#: # NVLinks */
	WH_PIX, /* at most one PCIe bridge */
	WH_PXB, /* several PCIe bridges, but no host bridge */
	WH_PHB, /* a PCIe host bridge */
	WH_NODE, /* several host bridges of one NUMA node */
	WH_SYS, /* the interconnect between NUMA nodes */
	WH_FAR, /* not known */
};

/* *links: the number of NVLinks; 0 for every distance but WH_NVLINK. */
enum wh_distance wh_topology_distance(const struct wh_topology *topology, struct wh_end one,
				      struct wh_end other, int *links);

/* "NV18", "PIX"; "-" for WH_FAR. */
void wh_distance_text(enum wh_distance distance, int links, char out[8]);

/* The best NIC for a GPU, an index of `nics`; -1: none. NICs that are up come first, then those
 * with RDMA, then the nearest, then the fastest. Equal NICs are shared out among the GPUs. */
int wh_topology_nic_of(const struct wh_topology *topology, size_t gpu);

/* The distance from the memory of a GPU or a NUMA node to the nearest RDMA NICs that are up. The
 * transport rdma uses all NICs at that distance together. WH_FAR: there are none, or the distance
 * is not known. */
enum wh_distance wh_topology_rdma_distance(const struct wh_topology *topology,
					   struct wh_end memory);

/* Is the NIC one of those nearest? */
bool wh_topology_rdma_by(const struct wh_topology *topology, struct wh_end memory, size_t nic);

/* ---- speeds ---------------------------------------------------------------------------------- */

/* GB/s that a PCIe link moves in one direction, headers included; NAN: not known. */
double wh_pcie_raw(double speed, int width);

/* GT/s of a PCIe generation; NAN: no such generation. */
double wh_pcie_speed(int generation);

/* A PCIe link: from a device, or from the upstream port of a switch, to the port above. */
struct wh_hop {
	int device; /* an index of `pci` */
	int parent; /* likewise; -1: the host bridge */
	double speed, speed_most; /* GT/s; now, and at most by what both ends support */
	int width, width_most;
};

/* The next link on the way up from a device. *at starts as an index of `pci`. False: no more
 * links. */
bool wh_pcie_hop(const struct wh_topology *topology, int *at, struct wh_hop *out);

/* The most that the slowest link on the way up can move, in GB/s; NAN: not known. *where: the
 * device below that link. */
double wh_pcie_path(const struct wh_topology *topology, int pci, int *where);

struct wh_expected {
	const char *route; /* "NVLink", "PCIe peer", "pinned copy" ...; NULL: none */
	const char *word; /* the same in up to five letters: "nvl", "p2p", "copy" ...; "-" */
	double speed; /* GB/s in one direction; NAN: not known */
	char limit[128]; /* what bounds it: "83 % of 18 NVLinks at 26.6 GB/s"; "" */
};

/* Can a NIC reach a GPU's memory directly, not through host memory? By dma-buf or nvidia-peermem.
 */
enum wh_said wh_topology_direct(const struct wh_topology *topology, size_t gpu, size_t nic);

/* The route that Wherry would choose for large transfers from one end to the other, and the speed
 * to expect, by the model of docs/topology.md. */
void wh_topology_expect(const struct wh_topology *topology, struct wh_end from, struct wh_end to,
			struct wh_expected *out);

#endif
