/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The speed to expect between two ends, by the model of docs/topology.md: the capacity of the
 * slowest link, times the share that was measured for links of its kind. Compare measurements with
 * it; it is not one itself.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "topology/topology.h"

/* The share of a link's capacity that payload reached, measured on H200s (docs/topology.md). */
#define NVLINK_SHARE 0.83
#define PCIE_SHARE 0.86
#define RDMA_SHARE 0.95
#define TCP_SHARE 0.94

/* ---- links of PCIe --------------------------------------------------------------------------- */

double wh_pcie_speed(int generation)
{
	static const double speeds[] = { NAN, 2.5, 5, 8, 16, 32, 64 };

	return generation > 0 && generation < (int)(sizeof(speeds) / sizeof(speeds[0])) ?
		       speeds[generation] :
		       NAN;
}

double wh_pcie_raw(double speed, int width)
{
	/* Data bits for each bit on the wire: 8 of 10, 128 of 130, 242 of 256. */
	double coding = speed <= 5 ? 0.8 : speed <= 32 ? 128.0 / 130 : 242.0 / 256;

	return isnan(speed) || width <= 0 ? NAN : speed * width * coding / 8;
}

static double lesser_known(double one, double other)
{
	return isnan(one) ? other : isnan(other) || one < other ? one : other;
}

static int lesser_width(int one, int other)
{
	return one <= 0 ? other : other <= 0 || one < other ? one : other;
}

bool wh_pcie_hop(const struct wh_topology *topology, int *at, struct wh_hop *out)
{
	const struct wh_pci *device, *parent;

	if (*at < 0)
		return false;
	device = &topology->pci[*at];
	*out = (struct wh_hop){
		.device = *at,
		.parent = device->parent,
		.speed = device->speed,
		.speed_most = device->speed_most,
		.width = device->width,
		.width_most = device->width_most,
	};
	if (device->parent < 0) {
		*at = -1;
		return true;
	}
	parent = &topology->pci[device->parent];
	if (isnan(out->speed))
		out->speed = parent->speed;
	if (out->width <= 0)
		out->width = parent->width;
	out->speed_most = lesser_known(device->speed_most, parent->speed_most);
	out->width_most = lesser_width(device->width_most, parent->width_most);
	/* The downstream and the upstream port of a switch have no link between them. */
	*at = parent->parent;
	return true;
}

double wh_pcie_path(const struct wh_topology *topology, int pci, int *where)
{
	double narrowest = NAN;
	struct wh_hop hop;
	int at = pci;

	*where = -1;
	for (int i = 0; i < WH_PCI_DEPTH && wh_pcie_hop(topology, &at, &hop); i++) {
		double raw = wh_pcie_raw(hop.speed_most, hop.width_most);

		if (!isnan(raw) && (isnan(narrowest) || raw < narrowest)) {
			narrowest = raw;
			*where = hop.device;
		}
	}
	return narrowest;
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* GB/s that bound a device: its path up, and the GPU's own link as NVML knows it. */
static double bound_of(const struct wh_topology *topology, struct wh_end end)
{
	const struct wh_gpu *gpu;
	int where;

	if (end.kind == WH_END_NIC)
		return wh_pcie_path(topology, topology->nics[end.index].pci, &where);
	gpu = &topology->gpus[end.index];
	return lesser_known(
		wh_pcie_path(topology, gpu->pci, &where),
		wh_pcie_raw(wh_pcie_speed(gpu->pcie_generation_most), gpu->pcie_width_most));
}

__attribute__((format(printf, 5, 6))) static void expected_set(struct wh_expected *out,
							       const char *route, const char *word,
							       double speed, const char *format,
							       ...)
{
	va_list list;

	out->route = route;
	out->word = word;
	out->speed = speed;
	if (isnan(speed)) {
		snprintf(out->limit, sizeof(out->limit), "the speed of its links is not known");
		return;
	}
	va_start(list, format);
	vsnprintf(out->limit, sizeof(out->limit), format, list);
	va_end(list);
}

static double link_speed(const struct wh_topology *topology, size_t gpu)
{
	for (size_t i = 0; i < topology->link_count; i++)
		if (topology->links[i].gpu == (int)gpu && topology->links[i].active == 1 &&
		    !isnan(topology->links[i].speed))
			return topology->links[i].speed;
	return NAN;
}

static bool is_peer(const struct wh_topology *topology, size_t from, size_t to)
{
	for (size_t i = 0; i < topology->pair_count; i++)
		if (topology->pairs[i].from == (int)from && topology->pairs[i].to == (int)to)
			return topology->pairs[i].write == 0 && topology->pairs[i].read == 0;
	return false;
}

static void expected_between_gpus(const struct wh_topology *topology, struct wh_end from,
				  struct wh_end to, struct wh_expected *out)
{
	bool peer = is_peer(topology, from.index, to.index);
	double speed = link_speed(topology, from.index),
	       raw = lesser_known(bound_of(topology, from), bound_of(topology, to));
	int links;

	if (wh_topology_distance(topology, from, to, &links) == WH_NVLINK)
		expected_set(out, "NVLink", "nvl", links * speed * NVLINK_SHARE,
			     "%.0f %% of %d NVLinks at %.1f GB/s", NVLINK_SHARE * 100, links,
			     speed);
	else
		expected_set(out, peer ? "PCIe peer" : "host staging", peer ? "p2p" : "host",
			     raw * PCIE_SHARE, "%.0f %% of PCIe at %.1f GB/s", PCIE_SHARE * 100,
			     raw);
}

enum wh_said wh_topology_direct(const struct wh_topology *topology, size_t gpu, size_t nic)
{
	enum wh_said exported = topology->gpus[gpu].dma_buf, taken = topology->nics[nic].dma_buf;

	if (topology->peermem == WH_YES || (exported == WH_YES && taken == WH_YES))
		return WH_YES;
	return topology->peermem == WH_NO && (exported == WH_NO || taken == WH_NO) ? WH_NO :
										     WH_UNSAID;
}

/* Between a NIC and host memory or GPU memory. A staged transfer copies while the NIC sends, so the
 * slower of the two bounds it. */
static void expected_with_nic(const struct wh_nic *nic, double bound, bool gpu, enum wh_said direct,
			      struct wh_expected *out)
{
	static const struct {
		const char *route, *word;
	} rdma[] = { [WH_UNSAID] = { "GPUDirect RDMA or staged", "gdr?" },
		     [WH_YES] = { "GPUDirect RDMA", "gdr" },
		     [WH_NO] = { "RDMA, staged", "rdma*" } };
	double share = nic->rdma == 1 ? RDMA_SHARE : TCP_SHARE, wire = nic->rate / 8 * share;
	const char *route = nic->rdma != 1 ? (gpu ? "TCP, staged" : "TCP") :
					     (gpu ? rdma[direct].route : "RDMA"),
		   *word = nic->rdma != 1 ? (gpu ? "tcp*" : "tcp") :
					    (gpu ? rdma[direct].word : "rdma"),
		   *staged = gpu && (nic->rdma != 1 || direct == WH_NO) ? ", through host memory" :
									  "";

	bound *= PCIE_SHARE;
	if (isnan(wire)) /* the port may be slower than its PCIe link */
		expected_set(out, route, word, NAN, "%s", "");
	else if (isnan(bound) || wire <= bound)
		expected_set(out, route, word, wire, "%.0f %% of a port of %.0f Gbit/s%s",
			     share * 100, nic->rate, staged);
	else
		expected_set(out, route, word, bound, "%.0f %% of PCIe%s", PCIE_SHARE * 100,
			     staged);
}

static void expected_in_memory(const char *route, struct wh_expected *out)
{
	out->route = route;
	out->word = "mem";
	snprintf(out->limit, sizeof(out->limit), "memory; wherry bench measures it");
}

static bool end_is_unusable(const struct wh_topology *topology, struct wh_end end)
{
	return end.kind == WH_END_GPU && *topology->gpus[end.index].problem;
}

void wh_topology_expect(const struct wh_topology *topology, struct wh_end from, struct wh_end to,
			struct wh_expected *out)
{
	/* The model is the same in both directions: order the ends GPU, NIC, memory. */
	struct wh_end one = from.kind <= to.kind ? from : to,
		      other = from.kind <= to.kind ? to : from;
	double raw;

	*out = (struct wh_expected){ .speed = NAN, .word = "-" };
	if (end_is_unusable(topology, one) || end_is_unusable(topology, other)) {
		snprintf(out->limit, sizeof(out->limit), "the GPU cannot be used");
	} else if (one.kind == WH_END_NODE) {
		expected_in_memory("memory copy", out);
	} else if (one.kind == WH_END_NIC && other.kind == WH_END_NODE) {
		expected_with_nic(&topology->nics[one.index], bound_of(topology, one), false,
				  WH_UNSAID, out);
	} else if (one.kind == WH_END_NIC) {
		snprintf(out->limit, sizeof(out->limit), "neither end is memory");
	} else if (other.kind == WH_END_NIC) {
		expected_with_nic(&topology->nics[other.index],
				  lesser_known(bound_of(topology, one), bound_of(topology, other)),
				  true, wh_topology_direct(topology, one.index, other.index), out);
	} else if (other.kind == WH_END_NODE) {
		raw = bound_of(topology, one);
		expected_set(out, "pinned copy", "copy", raw * PCIE_SHARE,
			     "%.0f %% of PCIe at %.1f GB/s", PCIE_SHARE * 100, raw);
	} else if (one.index == other.index) {
		expected_in_memory("copy in the GPU", out);
	} else {
		expected_between_gpus(topology, one, other, out);
	}
}
