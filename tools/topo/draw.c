/* SPDX-License-Identifier: Apache-2.0 */
/* A topology as a graph for Graphviz, and as an SVG drawing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "topo/topo.h"

/* Write text escaped for quotes of DOT and for elements of SVG. */
static void draw_text(FILE *out, const char *text)
{
	for (; *text; text++) {
		switch (*text) {
		case '"':
			fputs("&quot;", out);
			break;
		case '&':
			fputs("&amp;", out);
			break;
		case '<':
			fputs("&lt;", out);
			break;
		case '>':
			fputs("&gt;", out);
			break;
		case '\\':
			fputs("&#92;", out);
			break;
		default:
			fputc(*text, out);
		}
	}
}

/* ---- DOT ------------------------------------------------------------------------------------- */

/* The PCI devices on the way to a GPU, NIC or disk, as flags. The caller frees them. */
static bool *draw_choose_pci(const struct wh_topology *topology)
{
	bool *wanted = calloc(topology->pci_count + 1, sizeof(*wanted));
	size_t total = topology->gpu_count + topology->nic_count + topology->disk_count;

	for (size_t i = 0; wanted && i < total; i++) {
		size_t nic = i - topology->gpu_count, disk = nic - topology->nic_count;
		int at = i < topology->gpu_count   ? topology->gpus[i].pci :
			 nic < topology->nic_count ? topology->nics[nic].pci :
						     topology->disks[disk].pci;

		for (; at >= 0 && !wanted[at]; at = topology->pci[at].parent)
			wanted[at] = true;
	}
	return wanted;
}

static void dot_node(FILE *out, const char *id, const char *shape, const char *label)
{
	fputs("\t\"", out);
	draw_text(out, id);
	fprintf(out, "\" [shape=%s label=\"", shape);
	draw_text(out, label);
	fputs("\"]\n", out);
}

static void dot_edge(FILE *out, const char *from, const char *to, const char *label)
{
	fputs("\t\"", out);
	draw_text(out, from);
	fputs("\" -- \"", out);
	draw_text(out, to);
	fputs("\" [label=\"", out);
	draw_text(out, label);
	fputs("\"]\n", out);
}

/* The NUMA node near a device or host bridge; -1: unknown. */
static int draw_near_node(const struct wh_topology *topology, int node)
{
	return node < 0 && topology->node_count == 1 ? topology->nodes[0].id : node;
}

/* "2.5 GT/s x16 of 32 GT/s x16": now and at most; once if they are the same. */
static void hop_text(const struct wh_hop *hop, char *out, size_t size)
{
	char now[32], most[32];

	topo_link(now, sizeof(now), hop->speed, hop->width);
	topo_link(most, sizeof(most), hop->speed_most, hop->width_most);
	snprintf(out, size, strcmp(now, most) ? "%s of %s" : "%s", now, most);
}

/* The links above all drawn devices, by the device at the lower end. There is none between a
 * switch's ports. The caller frees them. */
static struct wh_hop *draw_hops(const struct wh_topology *topology, const bool *wanted)
{
	struct wh_hop *hops = calloc(topology->pci_count + 1, sizeof(*hops)), hop;
	size_t total = topology->gpu_count + topology->nic_count + topology->disk_count;

	for (size_t i = 0; hops && wanted && i < topology->pci_count; i++)
		hops[i].device = -1;
	for (size_t i = 0; hops && i < total; i++) {
		size_t nic = i - topology->gpu_count, disk = nic - topology->nic_count;
		int at = i < topology->gpu_count   ? topology->gpus[i].pci :
			 nic < topology->nic_count ? topology->nics[nic].pci :
						     topology->disks[disk].pci;

		for (int k = 0; k < WH_PCI_DEPTH && wh_pcie_hop(topology, &at, &hop); k++)
			hops[hop.device] = hop;
	}
	return hops;
}

static void dot_pci(const struct wh_topology *topology, FILE *out)
{
	bool *wanted = draw_choose_pci(topology);
	struct wh_hop *hops = draw_hops(topology, wanted);

	for (size_t i = 0; wanted && hops && i < topology->pci_count; i++) {
		const struct wh_pci *pci = &topology->pci[i];
		char label[80] = "", memory[WH_NAME];
		int node = draw_near_node(topology, pci->node);

		if (!wanted[i])
			continue;
		dot_node(out, pci->address, "box", pci->address);
		if (hops[i].device >= 0)
			hop_text(&hops[i], label, sizeof(label));
		if (pci->parent >= 0) {
			dot_edge(out, topology->pci[pci->parent].address, pci->address, label);
			continue;
		}
		dot_edge(out, *pci->root ? pci->root : "PCI", pci->address, label);
		snprintf(memory, sizeof(memory), "MEM%d", node);
		if (node >= 0 && topology->node_count)
			dot_edge(out, memory, *pci->root ? pci->root : "PCI", "");
	}
	free(hops);
	free(wanted);
}

static void dot_devices(const struct wh_topology *topology, FILE *out)
{
	char name[WH_NAME], first[WH_NAME], label[192], size[32];

	for (size_t i = 0; i < topology->node_count; i++) {
		topo_end_name(topology, (struct wh_end){ WH_END_NODE, i }, name);
		topo_size(size, sizeof(size), topology->nodes[i].memory_bytes);
		snprintf(label, sizeof(label), "%s %s", name, size);
		dot_node(out, name, "cylinder", label);
		if (!i)
			memcpy(first, name, sizeof(first));
		else
			dot_edge(out, first, name, "SYS");
	}
	for (size_t i = 0; i < topology->gpu_count; i++) {
		topo_end_name(topology, (struct wh_end){ WH_END_GPU, i }, name);
		snprintf(label, sizeof(label), "%.60s %.60s", name, topology->gpus[i].name);
		dot_node(out, name, "box3d", label);
		if (topology->gpus[i].pci >= 0)
			dot_edge(out, topology->gpus[i].address, name, "");
	}
	for (size_t i = 0; i < topology->nic_count; i++) {
		dot_node(out, topology->nics[i].name, "component", topology->nics[i].name);
		if (topology->nics[i].pci >= 0)
			dot_edge(out, topology->pci[topology->nics[i].pci].address,
				 topology->nics[i].name, "");
	}
	for (size_t i = 0; i < topology->disk_count; i++) {
		dot_node(out, topology->disks[i].name, "folder", topology->disks[i].name);
		if (topology->disks[i].pci >= 0)
			dot_edge(out, topology->pci[topology->disks[i].pci].address,
				 topology->disks[i].name, "");
	}
}

/* NVLinks: an edge for each pair of GPUs; a star if they go through switches. */
static void dot_links(const struct wh_topology *topology, FILE *out)
{
	for (size_t i = 0; i < topology->gpu_count; i++) {
		int direct[2] = { 0, 0 }; /* links to one GPU, links to switches */
		char name[WH_NAME], other[WH_NAME], label[32];

		topo_end_name(topology, (struct wh_end){ WH_END_GPU, i }, name);
		for (size_t k = 0; k < topology->gpu_count; k++) {
			direct[0] = 0;
			for (size_t l = 0; l < topology->link_count; l++)
				direct[0] += topology->links[l].gpu == (int)i &&
					     topology->links[l].peer == (int)k;
			if (!direct[0] || k < i)
				continue;
			topo_end_name(topology, (struct wh_end){ WH_END_GPU, k }, other);
			snprintf(label, sizeof(label), "NV%d", direct[0]);
			dot_edge(out, name, other, label);
		}
		for (size_t l = 0; l < topology->link_count; l++)
			direct[1] += topology->links[l].gpu == (int)i &&
				     topology->links[l].active == 1 && topology->links[l].peer < 0;
		if (!direct[1])
			continue;
		snprintf(label, sizeof(label), "NV%d", direct[1]);
		dot_edge(out, name, "NVSwitch", label);
	}
}

void topo_dot(const struct wh_topology *topology, FILE *out)
{
	fputs("graph topology {\n\trankdir=TB\n\tnode [fontname=\"sans-serif\"]\n"
	      "\tedge [fontname=\"sans-serif\" fontsize=9]\n",
	      out);
	dot_devices(topology, out);
	dot_pci(topology, out);
	dot_links(topology, out);
	fputs("}\n", out);
}

/* ---- SVG ------------------------------------------------------------------------------------- */

#define BOX 104
#define GAP 12
#define ROW 44
#define LEFT 130
#define CELL_HEIGHT 34

static const char *distance_color(enum wh_distance distance)
{
	static const char *const colors[] = {
		[WH_SELF] = "#f2f2f2", [WH_NVLINK] = "#a6d96a", [WH_PIX] = "#a6d96a",
		[WH_PXB] = "#d9ef8b",  [WH_PHB] = "#ffffbf",    [WH_NODE] = "#fee08b",
		[WH_SYS] = "#fdae61",  [WH_FAR] = "#f2f2f2",
	};

	return colors[distance];
}

static void svg_text(FILE *out, double x, double y, const char *anchor, const char *text)
{
	fprintf(out, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\">", x, y, anchor);
	draw_text(out, text);
	fputs("</text>\n", out);
}

static void svg_box(FILE *out, double x, double y, double width, const char *color,
		    const char *name, const char *more)
{
	fprintf(out,
		"<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%d\" rx=\"4\" fill=\"%s\" "
		"stroke=\"#444\"/>\n",
		x, y, width, ROW - 8, color);
	svg_text(out, x + width / 2, y + 15, "middle", name);
	svg_text(out, x + width / 2, y + 29, "middle", more);
}

/* The NUMA node below which an end is drawn; -1: unknown. */
static int end_node(const struct wh_topology *topology, struct wh_end end)
{
	int pci = end.kind == WH_END_GPU ? topology->gpus[end.index].pci :
					   topology->nics[end.index].pci;

	return draw_near_node(topology, pci < 0 ? -1 : topology->pci[pci].node);
}

/* A row of the drawing: the devices near a NUMA node; node -1: those whose node is unknown. */
static void svg_row(const struct wh_topology *topology, const struct wh_end *ends, size_t count,
		    int node, double y, FILE *out)
{
	char name[WH_NAME], more[64];
	double x = LEFT;

	for (size_t i = 0; i < count; i++) {
		if (ends[i].kind == WH_END_NODE || end_node(topology, ends[i]) != node)
			continue;
		topo_end_name(topology, ends[i], name);
		if (ends[i].kind == WH_END_GPU) {
			const struct wh_gpu *gpu = &topology->gpus[ends[i].index];

			const char *model = *gpu->name ? gpu->name : gpu->address;

			/* Cut to the width of a box. */
			if (strncmp(model, "NVIDIA ", 7) == 0)
				model += 7;
			snprintf(more, sizeof(more), "%.16s", model);
			svg_box(out, x, y, BOX, *gpu->problem ? "#fdae61" : "#c7e9c0", name, more);
		} else {
			const struct wh_nic *nic = &topology->nics[ends[i].index];

			snprintf(more, sizeof(more), "-");
			if (!isnan(nic->rate))
				snprintf(more, sizeof(more), "%.4g Gbit/s", nic->rate);
			svg_box(out, x, y, BOX, "#fde0ef", name, more);
		}
		x += BOX + GAP;
	}
}

static void svg_node(const struct wh_topology *topology, const struct wh_end *ends, size_t count,
		     struct wh_end node, double y, FILE *out)
{
	char name[WH_NAME], size[32];

	topo_end_name(topology, node, name);
	topo_size(size, sizeof(size), topology->nodes[node.index].memory_bytes);
	svg_box(out, GAP, y, BOX, "#dbe9f6", name, size);
	svg_row(topology, ends, count, topology->nodes[node.index].id, y, out);
}

static size_t svg_count_near(const struct wh_topology *topology, const struct wh_end *ends,
			     size_t count, int node)
{
	size_t near = 0;

	for (size_t i = 0; i < count; i++)
		near += ends[i].kind != WH_END_NODE && end_node(topology, ends[i]) == node;
	return near;
}

static void svg_matrix(const struct wh_topology *topology, const struct wh_end *ends, size_t count,
		       double top, FILE *out)
{
	for (size_t i = 0; i < count; i++) {
		char name[WH_NAME];

		topo_end_name(topology, ends[i], name);
		svg_text(out, LEFT - 6, top + (double)(i + 1) * CELL_HEIGHT + 17, "end", name);
		svg_text(out, LEFT + (double)i * 64 + 32, top + 17, "middle", name);
		for (size_t k = 0; k < count; k++) {
			struct wh_expected expected;
			enum wh_distance distance;
			char word[8], text[32];
			int links;

			distance = wh_topology_distance(topology, ends[i], ends[k], &links);
			wh_distance_text(distance, links, word);
			wh_topology_expect(topology, ends[i], ends[k], &expected);
			snprintf(text, sizeof(text), "%s", word);
			if (!isnan(expected.speed))
				snprintf(text, sizeof(text), "%s %.3g", word, expected.speed);
			fprintf(out,
				"<rect x=\"%.0f\" y=\"%.0f\" width=\"64\" height=\"%d\" "
				"fill=\"%s\" stroke=\"#fff\"/>\n",
				LEFT + (double)k * 64, top + (double)(i + 1) * CELL_HEIGHT,
				CELL_HEIGHT, distance_color(distance));
			svg_text(out, LEFT + (double)k * 64 + 32,
				 top + (double)(i + 1) * CELL_HEIGHT + 15, "middle", text);
			svg_text(out, LEFT + (double)k * 64 + 32,
				 top + (double)(i + 1) * CELL_HEIGHT + 28, "middle", expected.word);
		}
	}
}

void topo_svg(const struct wh_topology *topology, FILE *out)
{
	size_t count;
	struct wh_end *ends = topo_ends(topology, &count);
	size_t lost = svg_count_near(topology, ends, count, -1), boxes = lost;
	double width = LEFT + (double)count * 64 + GAP,
	       rows = (double)(topology->node_count + (lost > 0)) * ROW, top = 40 + rows;

	/* Wide enough for the widest row, and for the words below the matrix. */
	for (size_t i = 0; i < topology->node_count; i++) {
		size_t used = svg_count_near(topology, ends, count, topology->nodes[i].id);

		boxes = used > boxes ? used : boxes;
	}
	width = fmax(fmax(width, LEFT + (double)boxes * (BOX + GAP) + GAP), 700);
	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
		"font-family=\"sans-serif\" font-size=\"11\" fill=\"#111\">\n<title>",
		width, top + (double)(count + 2) * CELL_HEIGHT + 48);
	draw_text(out, *topology->host ? topology->host : "topology");
	fputs("</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", out);
	svg_text(out, GAP, 18, "start", *topology->host ? topology->host : "topology");
	for (size_t i = 0; i < topology->node_count; i++)
		svg_node(topology, ends, count, (struct wh_end){ WH_END_NODE, i },
			 28 + (double)i * ROW, out);
	if (lost) {
		svg_text(out, GAP, 28 + (double)topology->node_count * ROW + 22, "start",
			 "NUMA node: -");
		svg_row(topology, ends, count, -1, 28 + (double)topology->node_count * ROW, out);
	}
	svg_matrix(topology, ends, count, top, out);
	svg_text(out, GAP, top + (double)(count + 1) * CELL_HEIGHT + 24, "start",
		 "From row to column: the distance as in nvidia-smi topo -m, the expected GB/s one "
		 "way, "
		 "and below the route:");
	svg_text(
		out, GAP, top + (double)(count + 1) * CELL_HEIGHT + 40, "start",
		"nvl NVLink, p2p PCIe peer access, host through host memory, copy pinned copy, gdr "
		"GPUDirect RDMA (? if the NIC supports it),");
	svg_text(out, GAP, top + (double)(count + 1) * CELL_HEIGHT + 56, "start",
		 "rdma, tcp over the NIC (* staged in host memory), mem in memory.");
	fputs("</svg>\n", out);
	free(ends);
}
