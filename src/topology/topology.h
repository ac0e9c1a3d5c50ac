/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a machine is made of as far as moving bytes goes: NUMA nodes, the PCI tree, GPUs and their
 * NVLinks, NICs, storage; how far two of them are from each other; and how fast the way between
 * them should be.
 *
 * It is made from sysfs and NVML. What is not known stays so: -1, WH_UNKNOWN, NAN or "", never a
 * number that was made up; `notes` says what is missing and why. CPUs and their caches are for
 * people to look at, nothing here depends on them: the command fills them in, with hwloc.
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
#define WH_PCI_DEPTH 64 /* of bridges above each other: a file from elsewhere may have a circle */
#define WH_ADDRESS 20 /* "0000:65:00.0" */

struct wh_node {
	int id;
	uint64_t memory_bytes;
	char cpus[WH_NAME]; /* "0-31,64-95" */
	char distances[2 * WH_NAME]; /* to all nodes in their order: "10 21" */
};

struct wh_cpu_cache {
	int level;
	char kind[WH_NAME]; /* "data", "instruction", "unified" */
	uint64_t size_bytes; /* of one */
	int count;
};

/* What a piece of the CPU part of the machine is. */
struct wh_cpu {
	char model[2 * WH_NAME];
	int packages, cores, threads;
};

struct wh_pci {
	char address[WH_ADDRESS];
	char root[WH_NAME]; /* the host bridge, "pci0000:64" */
	char driver[WH_NAME];
	char cpus[2 * WH_NAME]; /* the nearest ones */
	int parent; /* the bridge above, an index of `pci`; -1: the host bridge */
	int class_code; /* 0x030200 */
	int vendor, device;
	int node; /* -1: not said */
	double speed, speed_most; /* GT/s */
	int width, width_most; /* lanes */
};

/* What need not have been asked. */
enum wh_said { WH_UNSAID, WH_YES, WH_NO };

struct wh_gpu {
	int index; /* as NVML and nvidia-smi count; -1: NVML does not know it */
	int pci; /* an index of `pci`; -1: not found there */
	char address[WH_ADDRESS];
	char name[WH_NAME];
	char uuid[WH_NAME];
	char cpus[2 * WH_NAME];
	char nodes[WH_NAME]; /* NUMA affinity */
	char problem[256]; /* why it cannot be used or asked; "": nothing */
	int capability; /* 90: 9.0 */
	uint64_t memory_bytes, bar1_bytes, l2_bytes;
	int pcie_generation, pcie_generation_most;
	int pcie_width, pcie_width_most;
	int fabric; /* enum wh_nvml_fabric_state */
	int mig; /* 1: cut into instances */
	enum wh_said dma_buf; /* does the driver export its memory as a dma-buf? */
	int recovery; /* what it needs: 0 nothing, 1 a reset, 2 a reboot, others: to be drained */
};

struct wh_nvlink {
	int gpu; /* an index of `gpus` */
	int link;
	int active;
	int version;
	int remote; /* enum wh_nvml_remote */
	int peer; /* an index of `gpus`, if that is at the other end; else -1 */
	char address[WH_ADDRESS]; /* of the other end */
	double speed; /* GB/s a direction */
};

/* What NVML says of a pair of GPUs, both indexes of `gpus`. */
struct wh_gpu_pair {
	int from, to;
	int ancestor; /* enum wh_nvml_ancestor */
	int read, write, nvlink, atomics; /* 0: yes */
};

struct wh_nic {
	char name[WH_NAME]; /* "mlx5_0", or "eth0" if it has no RDMA */
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
	struct wh_topology_gap *notes;
	size_t cache_count, node_count, pci_count, gpu_count, link_count, pair_count, nic_count,
		disk_count, note_count;
};

/* ---- making one ------------------------------------------------------------------------------ */

/* Read everything but the GPUs' own answers. 0 or -ENOMEM. */
int wh_topology_read(const struct wh_tree *tree, struct wh_topology **out);

/* Add what NVML knows of the GPUs. NULL with `why`: there is none. 0 or -ENOMEM. */
int wh_topology_add_nvml(struct wh_topology *topology, struct wh_nvml *nvml, const char *why);

void wh_topology_free(struct wh_topology *topology);

/* Read what changes of a NIC, of which `name` and `rdma` say which it is: layer, state and rate.
 * What is not said is not known any more. */
void wh_nic_read(const struct wh_tree *tree, struct wh_nic *nic);

/* One more, all zero, at the end of an array of the topology; NULL without memory. The array may
 * move. */
#define WH_TOPOLOGY_ADD(topology, array, count)                                                    \
	wh_topology_grow((void **)&(topology)->array, &(topology)->count,                          \
			 sizeof(*(topology)->array))
void *wh_topology_grow(void **array, size_t *count, size_t size);

/* A GPU of which nothing is known. */
void wh_gpu_init(struct wh_gpu *gpu);

/* Say that something is missing. 0 or -ENOMEM. */
int wh_topology_note(struct wh_topology *topology, const char *what, const char *format, ...)
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
	WH_NVLINK, /* NV#: so many NVLinks */
	WH_PIX, /* at most one PCIe bridge */
	WH_PXB, /* several PCIe bridges, but no host bridge */
	WH_PHB, /* a PCIe host bridge */
	WH_NODE, /* several host bridges of one NUMA node */
	WH_SYS, /* the interconnect between NUMA nodes */
	WH_FAR, /* not known */
};

/* *links: how many NVLinks; 0 if it does not go by them. */
enum wh_distance wh_topology_distance(const struct wh_topology *topology, struct wh_end one,
				      struct wh_end other, int *links);

/* "NV18", "PIX"; "-" for WH_FAR. */
void wh_distance_text(enum wh_distance distance, int links, char out[8]);

/* The NIC that serves a GPU best: the nearest that is up, RDMA before others, the fastest; several
 * that are equal are dealt out in turn. -1: none. */
int wh_topology_nic_of(const struct wh_topology *topology, size_t gpu);

/* How far the nearest RDMA NICs that are up are from the memory of a GPU or a node. All that are as
 * near are what the transport rdma moves it by, together. WH_FAR: there is none, or it is not
 * known. */
enum wh_distance wh_topology_rdma_distance(const struct wh_topology *topology,
					   struct wh_end memory);

/* Is it one of them? */
bool wh_topology_rdma_by(const struct wh_topology *topology, struct wh_end memory, size_t nic);

/* ---- how fast -------------------------------------------------------------------------------- */

/* GB/s that a PCIe link moves in one direction, headers included; NAN if not known. */
double wh_pcie_raw(double speed, int width);

/* GT/s of a generation of PCIe; NAN if there is no such. */
double wh_pcie_speed(int generation);

/* A link: between a device or a switch's upper end, and what is above it. */
struct wh_hop {
	int device; /* an index of `pci` */
	int parent; /* likewise; -1: the host bridge */
	double speed, speed_most; /* GT/s; at most: of both ends */
	int width, width_most;
};

/* The links from a device up: *at starts as an index of `pci`. False: there is no further one. */
bool wh_pcie_hop(const struct wh_topology *topology, int *at, struct wh_hop *out);

/* What the narrowest of them can move at its most, GB/s; NAN: not known. *where: its lower end. */
double wh_pcie_path(const struct wh_topology *topology, int pci, int *where);

struct wh_expected {
	const char *route; /* "NVLink", "PCIe peer", "pinned copy" ...; NULL: none */
	const char *word; /* the same in up to five letters: "nvl", "p2p", "copy" ...; "-" */
	double speed; /* GB/s one way; NAN: not known */
	char limit[128]; /* what bounds it: "18 NVLinks of 26.6 GB/s, 83 % of it"; "" */
};

/* Does a NIC reach a GPU's memory without going by host memory? By a dma-buf or by nvidia-peermem.
 */
enum wh_said wh_topology_direct(const struct wh_topology *topology, size_t gpu, size_t nic);

/* The route that Wherry would take from one end to the other with large transfers and how fast it
 * should be, by the model of docs/topology.md. */
void wh_topology_expect(const struct wh_topology *topology, struct wh_end from, struct wh_end to,
			struct wh_expected *out);

#endif
