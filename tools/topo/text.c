/* SPDX-License-Identifier: Apache-2.0 */
/* A topology as text for people, folded to the width of the screen. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "topo/topo.h"

/* ---- words ----------------------------------------------------------------------------------- */

void topo_size(char *out, size_t size, uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double value = (double)bytes;
	size_t unit = 0;

	if (bytes == WH_UNKNOWN) {
		snprintf(out, size, "-");
		return;
	}
	for (; value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		value /= 1024;
	if (value < 10 && value != floor(value))
		snprintf(out, size, "%.1f %s", value, units[unit]);
	else
		snprintf(out, size, "%.0f %s", value, units[unit]);
}

void topo_link(char *out, size_t size, double speed, int width)
{
	char lanes[8] = "-";

	if (width > 0)
		snprintf(lanes, sizeof(lanes), "%d", width % 100);
	if (isnan(speed) && width <= 0)
		snprintf(out, size, "-");
	else if (isnan(speed))
		snprintf(out, size, "- x%s", lanes);
	else
		snprintf(out, size, "%.3g GT/s x%s", speed, lanes);
}

struct wh_end *topo_ends(const struct wh_topology *topology, size_t *count)
{
	size_t most = topology->gpu_count + topology->nic_count + topology->node_count, used = 0;
	struct wh_end *ends = calloc(most + 1, sizeof(*ends));

	*count = 0;
	if (!ends)
		return NULL;
	for (size_t i = 0; i < topology->gpu_count; i++)
		ends[used++] = (struct wh_end){ WH_END_GPU, i };
	for (size_t i = 0; i < topology->nic_count; i++)
		ends[used++] = (struct wh_end){ WH_END_NIC, i };
	for (size_t i = 0; i < topology->node_count; i++)
		ends[used++] = (struct wh_end){ WH_END_NODE, i };
	*count = used;
	return ends;
}

void topo_end_name(const struct wh_topology *topology, struct wh_end end, char out[WH_NAME])
{
	const struct wh_gpu *gpu;

	switch (end.kind) {
	case WH_END_GPU:
		gpu = &topology->gpus[end.index];
		/* Without NVML a GPU has only its address. */
		if (gpu->index >= 0)
			snprintf(out, WH_NAME, "GPU%d", gpu->index);
		else
			snprintf(out, WH_NAME, "GPU@%s", gpu->address);
		return;
	case WH_END_NIC:
		snprintf(out, WH_NAME, "%s", topology->nics[end.index].name);
		return;
	default:
		snprintf(out, WH_NAME, "MEM%d", topology->nodes[end.index].id);
	}
}

static const char *or_dash(const char *text)
{
	return *text ? text : "-";
}

static void number_text(char *out, size_t size, int number)
{
	if (number < 0)
		snprintf(out, size, "-");
	else
		snprintf(out, size, "%d", number);
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* "RDMA by mlx5_0, mlx5_1 (PIX)": the NICs that move this memory. */
static void print_rdma(const struct wh_topology *topology, struct wh_end memory, FILE *out)
{
	const char *before = "           RDMA by ";
	char word[8];

	for (size_t i = 0; i < topology->nic_count; i++) {
		if (!wh_topology_rdma_by(topology, memory, i))
			continue;
		fprintf(out, "%s%s", before, topology->nics[i].name);
		before = ", ";
	}
	wh_distance_text(wh_topology_rdma_distance(topology, memory), 0, word);
	if (*before == ',')
		fprintf(out, " (%s)\n", word);
}

static void print_machine(const struct wh_topology *topology, const struct screen *screen,
			  FILE *out)
{
	const struct wh_cpu *cpu = &topology->cpu;
	char packages[16], cores[16], threads[16];

	number_text(packages, sizeof(packages), cpu->packages);
	number_text(cores, sizeof(cores), cpu->cores);
	number_text(threads, sizeof(threads), cpu->threads);
	fprintf(out, "%sMachine%s  %s, NVIDIA driver %s\n", screen_tint(screen, TINT_STRONG),
		screen_plain(screen), or_dash(topology->host), or_dash(topology->driver));
	fprintf(out, "%sCPU%s      ", screen_tint(screen, TINT_STRONG), screen_plain(screen));
	if (cpu->threads < 0)
		fputs("-\n", out);
	else
		fprintf(out, "%s x %s, %s cores, %s threads\n", packages, or_dash(cpu->model),
			cores, threads);
	for (size_t i = 0; i < topology->cache_count; i++) {
		const struct wh_cpu_cache *cache = &topology->caches[i];
		char size[32];

		topo_size(size, sizeof(size), cache->size_bytes);
		fprintf(out, "%s L%d%c %s x %d", i ? "," : "        ", cache->level,
			cache->kind[0] == 'd' ? 'd' :
			cache->kind[0] == 'i' ? 'i' :
						' ',
			size, cache->count);
	}
	if (topology->cache_count)
		fputc('\n', out);
	for (size_t i = 0; i < topology->node_count; i++) {
		const struct wh_node *node = &topology->nodes[i];
		char size[32];

		topo_size(size, sizeof(size), node->memory_bytes);
		fprintf(out, "%sMEM%d%s     NUMA node %d: %s, CPUs %s, distances %s\n",
			screen_tint(screen, TINT_STRONG), node->id, screen_plain(screen), node->id,
			size, or_dash(node->cpus), or_dash(node->distances));
		print_rdma(topology, (struct wh_end){ WH_END_NODE, i }, out);
	}
}

/* ---- devices --------------------------------------------------------------------------------- */

/* "0000:65:00.0 -[2.5 GT/s x16 now, 32 GT/s x16 at most]- 0000:64:01.0 - pci0000:64" */
static void print_path(const struct wh_topology *topology, int pci, const struct screen *screen,
		       FILE *out)
{
	const char *line = screen->ascii ? "-" : "\u2500";
	struct wh_hop hop;
	int at = pci, last = pci;
	char now[32], most[32];

	if (pci < 0) {
		fputs("           not found in PCI\n", out);
		return;
	}
	fprintf(out, "           %s", topology->pci[pci].address);
	for (int i = 0; i < WH_PCI_DEPTH && wh_pcie_hop(topology, &at, &hop); i++) {
		bool slow = (!isnan(hop.speed) && hop.speed < hop.speed_most) ||
			    (hop.width > 0 && hop.width < hop.width_most);

		topo_link(now, sizeof(now), hop.speed, hop.width);
		topo_link(most, sizeof(most), hop.speed_most, hop.width_most);
		last = hop.parent >= 0 ? hop.parent : hop.device;
		if (i)
			fprintf(out, " %s %s", line, topology->pci[hop.device].address);
		if (strcmp(most, "-") != 0)
			fprintf(out, " %s[%s%s%s of %s]", line,
				slow ? screen_tint(screen, TINT_POOR) : "", now,
				slow ? screen_plain(screen) : "", most);
		if (hop.parent >= 0)
			fprintf(out, "%s %s", line, topology->pci[hop.parent].address);
	}
	fprintf(out, " %s %s\n", line, or_dash(topology->pci[last].root));
}

/* "18 NVLinks of 26.6 GB/s a direction, 0 to GPUs, 18 to switches" */
static void print_links(const struct wh_topology *topology, size_t gpu, FILE *out)
{
	int active = 0, down = 0, direct = 0;
	double speed = NAN;

	for (size_t i = 0; i < topology->link_count; i++) {
		const struct wh_nvlink *link = &topology->links[i];

		if (link->gpu != (int)gpu)
			continue;
		active += link->active == 1;
		down += link->active != 1;
		direct += link->peer >= 0;
		if (link->active == 1 && !isnan(link->speed))
			speed = link->speed;
	}
	if (!active && !down)
		return;
	fprintf(out, "           %d NVLinks", active);
	if (!isnan(speed))
		fprintf(out, " of %.1f GB/s a direction", speed);
	if (active)
		fprintf(out, ", %d to GPUs, %d to switches", direct, active - direct);
	if (down)
		fprintf(out, "; %d are down", down);
	fputc('\n', out);
}

static void print_gpu(const struct wh_topology *topology, size_t index, const struct screen *screen,
		      FILE *out)
{
	const struct wh_gpu *gpu = &topology->gpus[index];
	int nic = wh_topology_nic_of(topology, index), links;
	char name[WH_NAME], memory[32], bar1[32], l2[32], word[8];
	enum wh_distance distance;

	topo_end_name(topology, (struct wh_end){ WH_END_GPU, index }, name);
	topo_size(memory, sizeof(memory), gpu->memory_bytes);
	topo_size(bar1, sizeof(bar1), gpu->bar1_bytes);
	topo_size(l2, sizeof(l2), gpu->l2_bytes);
	fprintf(out, "%s%-10s%s %s, %s\n", screen_tint(screen, TINT_STRONG), name,
		screen_plain(screen), or_dash(gpu->name), or_dash(gpu->uuid));
	if (*gpu->problem)
		fprintf(out, "           %s%s%s\n", screen_tint(screen, TINT_BAD), gpu->problem,
			screen_plain(screen));
	else
		fprintf(out, "           memory %s, BAR1 %s, L2 %s, NUMA node %s, CPUs %s%s\n",
			memory, bar1, l2, or_dash(gpu->nodes), or_dash(gpu->cpus),
			gpu->mig == 1 ? ", MIG" : "");
	print_path(topology, gpu->pci, screen, out);
	print_links(topology, index, out);
	if (*gpu->domain)
		fprintf(out, "           NVLink domain %s (cluster/clique), with other hosts\n",
			gpu->domain);
	if (nic < 0)
		return;
	distance = wh_topology_distance(topology, (struct wh_end){ WH_END_GPU, index },
					(struct wh_end){ WH_END_NIC, (size_t)nic }, &links);
	wh_distance_text(distance, links, word);
	fprintf(out, "           served by %s (%s)\n", topology->nics[nic].name, word);
	print_rdma(topology, (struct wh_end){ WH_END_GPU, index }, out);
}

static void print_nic(const struct wh_topology *topology, size_t index, const struct screen *screen,
		      FILE *out)
{
	const struct wh_nic *nic = &topology->nics[index];
	char rate[32] = "-", node[16];

	if (!isnan(nic->rate))
		snprintf(rate, sizeof(rate), "%.4g Gbit/s", nic->rate);
	number_text(node, sizeof(node), nic->node);
	fprintf(out, "%s%-10s%s %s%s%s%s, %s, %s, NUMA node %s\n", screen_tint(screen, TINT_STRONG),
		nic->name, screen_plain(screen), nic->rdma == 1 ? "RDMA over " : "",
		or_dash(nic->layer), *nic->netdev && strcmp(nic->netdev, nic->name) ? ", " : "",
		strcmp(nic->netdev, nic->name) ? nic->netdev : "", or_dash(nic->state), rate, node);
	print_path(topology, nic->pci, screen, out);
}

static void print_disk(const struct wh_topology *topology, size_t index,
		       const struct screen *screen, FILE *out)
{
	const struct wh_disk *disk = &topology->disks[index];
	char size[32], node[16];

	topo_size(size, sizeof(size), disk->size_bytes);
	number_text(node, sizeof(node), disk->node);
	fprintf(out, "%s%-10s%s %s, %s, NUMA node %s\n", screen_tint(screen, TINT_STRONG),
		disk->name, screen_plain(screen), or_dash(disk->model), size, node);
	print_path(topology, disk->pci, screen, out);
}

/* ---- the matrix ------------------------------------------------------------------------------ */

static enum tint distance_tint(enum wh_distance distance)
{
	switch (distance) {
	case WH_NVLINK:
	case WH_PIX:
		return TINT_GOOD;
	case WH_PXB:
	case WH_PHB:
		return TINT_FAIR;
	case WH_NODE:
		return TINT_POOR;
	case WH_SYS:
		return TINT_BAD;
	default:
		return TINT_FAINT;
	}
}

static int name_width(const struct wh_topology *topology, const struct wh_end *ends, size_t count)
{
	int width = 5;

	for (size_t i = 0; i < count; i++) {
		char name[WH_NAME];

		topo_end_name(topology, ends[i], name);
		if ((int)strlen(name) > width)
			width = (int)strlen(name);
	}
	return width;
}

/* The content of a matrix. */
enum content { DISTANCE, SPEED, ROUTE };

static enum tint matrix_cell(const struct wh_topology *topology, struct wh_end row,
			     struct wh_end column, enum content content, char out[16])
{
	struct wh_expected expected;
	enum wh_distance distance;
	int links;

	distance = wh_topology_distance(topology, row, column, &links);
	wh_distance_text(distance, links, out);
	if (content == DISTANCE)
		return distance_tint(distance);
	wh_topology_expect(topology, row, column, &expected);
	if (content == ROUTE)
		snprintf(out, 16, "%s", expected.word);
	else if (isnan(expected.speed))
		snprintf(out, 16, "-");
	else
		snprintf(out, 16, expected.speed < 10 ? "%.2f" : "%.0f", expected.speed);
	return strcmp(out, "-") == 0 ? TINT_FAINT : distance_tint(distance);
}

static void print_affinity(const struct wh_topology *topology, struct wh_end end, FILE *out)
{
	int pci, node;

	if (end.kind == WH_END_GPU) {
		fprintf(out, "  %-16s %s", or_dash(topology->gpus[end.index].cpus),
			or_dash(topology->gpus[end.index].nodes));
	} else if (end.kind == WH_END_NIC) {
		pci = topology->nics[end.index].pci;
		node = topology->nics[end.index].node;
		fprintf(out, "  %-16s ", pci < 0 ? "-" : or_dash(topology->pci[pci].cpus));
		fprintf(out, node < 0 ? "-" : "%d", node);
	} else {
		fprintf(out, "  %-16s %d", or_dash(topology->nodes[end.index].cpus),
			topology->nodes[end.index].id);
	}
}

#define AFFINITY_COLUMNS 23

/* Print columns `first` to `last`-1 of a matrix; `affinity`: and the affinities. */
static void print_columns(const struct wh_topology *topology, const struct screen *screen,
			  const struct wh_end *ends, size_t count, enum content content,
			  size_t first, size_t last, bool affinity, FILE *out)
{
	int width = name_width(topology, ends, count);
	char name[WH_NAME], text[16];

	fprintf(out, "%*s", width, "");
	for (size_t i = first; i < last; i++) {
		topo_end_name(topology, ends[i], name);
		fprintf(out, " %*s", width, name);
	}
	fputs(affinity ? "  CPU affinity     NUMA\n" : "\n", out);
	for (size_t i = 0; i < count; i++) {
		topo_end_name(topology, ends[i], name);
		fprintf(out, "%-*s", width, name);
		for (size_t k = first; k < last; k++) {
			enum tint tint = matrix_cell(topology, ends[i], ends[k], content, text);

			fprintf(out, " %s%*s%s", screen_tint(screen, tint), width, text,
				screen_plain(screen));
		}
		if (affinity)
			print_affinity(topology, ends[i], out);
		fputc('\n', out);
	}
}

/* Print a matrix in parts as wide as the screen. */
static void print_matrix(const struct wh_topology *topology, const struct screen *screen,
			 const struct wh_end *ends, size_t count, enum content content, FILE *out)
{
	int width = name_width(topology, ends, count), room = screen->columns - width;
	size_t fit = !screen->columns ? count : room > width ? (size_t)(room / (width + 1)) : 1;
	bool affinity = content == DISTANCE;

	for (size_t at = 0; at < count; at += fit) {
		size_t last = at + fit < count ? at + fit : count;
		bool beside = last == count &&
			      (!screen->columns ||
			       room - (int)(last - at) * (width + 1) >= AFFINITY_COLUMNS);

		print_columns(topology, screen, ends, count, content, at, last, affinity && beside,
			      out);
		if (last == count && affinity && !beside)
			print_columns(topology, screen, ends, count, content, last, last, true,
				      out);
	}
}

/* Explain the words that are in the matrix of routes. */
static void print_legend(const struct wh_topology *topology, const struct wh_end *ends,
			 size_t count, FILE *out)
{
	const char *seen[16] = { "-" };
	size_t known = 1;
	int column = 0;

	for (size_t i = 0; i < count * count; i++) {
		struct wh_expected expected;
		size_t at = 0;
		int length;

		wh_topology_expect(topology, ends[i / count], ends[i % count], &expected);
		while (at < known && strcmp(seen[at], expected.word) != 0)
			at++;
		if (at < known || known == sizeof(seen) / sizeof(seen[0]))
			continue;
		seen[known++] = expected.word;
		length = (int)(strlen(expected.word) + strlen(expected.route)) + 4;
		if (column && column + length > 78) {
			fputs(";\n  ", out);
			column = 0;
		} else {
			fputs(column ? "; " : "  ", out);
		}
		fprintf(out, "%s: %s", expected.word,
			strcmp(expected.word, "mem") == 0 ? "copy in memory" : expected.route);
		column += length;
	}
	if (column)
		fputc('\n', out);
}

static void print_pairs(const struct wh_topology *topology, const struct screen *screen, FILE *out)
{
	size_t count;
	struct wh_end *ends = topo_ends(topology, &count);

	if (count) {
		fputs("\nDistances, from row to column:\n", out);
		print_matrix(topology, screen, ends, count, DISTANCE, out);
		/* fold_text() folds these lines. */
		fputs("  NV#: # NVLinks; PIX: at most one PCIe bridge; PXB: several;\n"
		      "  PHB: a host bridge; NODE: host bridges of one NUMA node; SYS: another "
		      "NUMA node\n",
		      out);
	}
	if (topology->gpu_count + topology->nic_count) {
		fputs("\nRoutes, from row to column:\n", out);
		print_matrix(topology, screen, ends, count, ROUTE, out);
		print_legend(topology, ends, count, out);
		fputs("\nExpected GB/s one way, large transfers (docs/topology.md has the "
		      "model):\n",
		      out);
		print_matrix(topology, screen, ends, count, SPEED, out);
	}
	free(ends);
}

/* NVSwitches are PCI devices, if the machine shows them. */
static void print_switches(const struct wh_topology *topology, const struct screen *screen,
			   FILE *out)
{
	for (size_t i = 0; i < topology->pci_count; i++) {
		const struct wh_pci *pci = &topology->pci[i];

		if (pci->vendor == 0x10de && pci->class_code >> 8 == 0x0680)
			fprintf(out, "%sNVSwitch%s   %s\n", screen_tint(screen, TINT_STRONG),
				screen_plain(screen), pci->address);
	}
}

static void print_all(const struct wh_topology *topology, const struct screen *screen, FILE *out)
{
	print_machine(topology, screen, out);
	for (size_t i = 0; i < topology->gpu_count; i++)
		print_gpu(topology, i, screen, out);
	print_switches(topology, screen, out);
	for (size_t i = 0; i < topology->nic_count; i++)
		print_nic(topology, i, screen, out);
	for (size_t i = 0; i < topology->disk_count; i++)
		print_disk(topology, i, screen, out);
	if (!topology->gpu_count)
		fputs("GPU        none\n", out);
	if (!topology->nic_count)
		fputs("NIC        none\n", out);
	print_pairs(topology, screen, out);
	if (topology->gap_count)
		fputs("\nMissing:\n", out);
	for (size_t i = 0; i < topology->gap_count; i++)
		fprintf(out, "  %s: %s\n", topology->gaps[i].what, topology->gaps[i].why);
}

/* ---- lines that fit -------------------------------------------------------------------------- */

/* How many bytes of a line fit into `columns`; *space: the last space among them that follows a
 * word; 0: none. Colours take no columns. */
static size_t fold_fit(const char *line, size_t length, int columns, size_t *space)
{
	bool word = false;
	size_t i = 0;

	*space = 0;
	while (i < length) {
		size_t next = i + 1;

		if (line[i] == '\033')
			next = i + strcspn(line + i, "m") + 1;
		else if (columns-- == 0)
			return i;
		else
			while (next < length && ((unsigned char)line[next] & 0xc0) == 0x80)
				next++;
		if (line[i] == ' ' && word)
			*space = i;
		word |= line[i] != ' ';
		i = next;
	}
	return length;
}

/* Fold long lines; continuations are indented a little more. */
static void fold_text(FILE *out, const char *text, int columns)
{
	while (*text) {
		size_t length = strcspn(text, "\n"), space, fit;
		int indent = (int)strspn(text, " ") + 2, room = columns;

		indent = indent < columns / 4 ? indent : columns / 4;
		while ((fit = fold_fit(text, length, room, &space)) < length) {
			fit = space ? space : fit ? fit : 1;
			fwrite(text, 1, fit, out);
			text += fit;
			length -= fit;
			while (length && *text == ' ') {
				text++;
				length--;
			}
			fprintf(out, "\n%*s", indent, "");
			room = columns - indent > 1 ? columns - indent : 1;
		}
		fwrite(text, 1, length, out);
		text += length;
		if (*text == '\n')
			fputc(*text++, out);
	}
}

void topo_print(const struct wh_topology *topology, const struct screen *screen)
{
	char *text = NULL;
	size_t size;
	FILE *all = screen->columns ? open_memstream(&text, &size) : NULL;

	print_all(topology, screen, all ? all : stdout);
	if (all && !fclose(all))
		fold_text(stdout, text, screen->columns);
	free(text);
}
