/* SPDX-License-Identifier: Apache-2.0 */
/* A topology for people to read. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "topo.h"

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
		/* Without NVML the address is all that names it. */
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

/* "RDMA by mlx5_0, mlx5_1 (PIX)": what its memory is moved by. */
static void print_rdma(const struct wh_topology *topology, struct wh_end memory)
{
	const char *before = "           RDMA by ";
	char word[8];

	for (size_t i = 0; i < topology->nic_count; i++) {
		if (!wh_topology_rdma_by(topology, memory, i))
			continue;
		printf("%s%s", before, topology->nics[i].name);
		before = ", ";
	}
	wh_distance_text(wh_topology_rdma_distance(topology, memory), 0, word);
	if (*before == ',')
		printf(" (%s)\n", word);
}

static void print_machine(const struct wh_topology *topology, const struct screen *screen)
{
	const struct wh_cpu *cpu = &topology->cpu;
	char packages[16], cores[16], threads[16];

	number_text(packages, sizeof(packages), cpu->packages);
	number_text(cores, sizeof(cores), cpu->cores);
	number_text(threads, sizeof(threads), cpu->threads);
	printf("%sMachine%s  %s, NVIDIA driver %s\n", screen_tint(screen, TINT_STRONG),
	       screen_plain(screen), or_dash(topology->host), or_dash(topology->driver));
	printf("%sCPU%s      ", screen_tint(screen, TINT_STRONG), screen_plain(screen));
	if (cpu->threads < 0)
		puts("-");
	else
		printf("%s x %s, %s cores, %s threads\n", packages, or_dash(cpu->model), cores,
		       threads);
	for (size_t i = 0; i < topology->cache_count; i++) {
		const struct wh_cpu_cache *cache = &topology->caches[i];
		char size[32];

		topo_size(size, sizeof(size), cache->size_bytes);
		printf("%s L%d%c %s x %d", i ? "," : "        ", cache->level,
		       cache->kind[0] == 'd' ? 'd' : cache->kind[0] == 'i' ? 'i' : ' ', size,
		       cache->count);
	}
	if (topology->cache_count)
		putchar('\n');
	for (size_t i = 0; i < topology->node_count; i++) {
		const struct wh_node *node = &topology->nodes[i];
		char size[32];

		topo_size(size, sizeof(size), node->memory_bytes);
		printf("%sMEM%d%s     NUMA node %d: %s, CPUs %s, distances %s\n",
		       screen_tint(screen, TINT_STRONG), node->id, screen_plain(screen), node->id,
		       size, or_dash(node->cpus), or_dash(node->distances));
		print_rdma(topology, (struct wh_end){ WH_END_NODE, i });
	}
}

/* ---- devices --------------------------------------------------------------------------------- */

/* "0000:65:00.0 -[2.5 GT/s x16 now, 32 GT/s x16 at most]- 0000:64:01.0 - pci0000:64" */
static void print_path(const struct wh_topology *topology, int pci, const struct screen *screen)
{
	const char *line = screen->ascii ? "-" : "\u2500";
	struct wh_hop hop;
	int at = pci, last = pci;
	char now[32], most[32];

	if (pci < 0) {
		puts("           not found in PCI");
		return;
	}
	printf("           %s", topology->pci[pci].address);
	for (int i = 0; i < WH_PCI_DEPTH && wh_pcie_hop(topology, &at, &hop); i++) {
		bool slow = (!isnan(hop.speed) && hop.speed < hop.speed_most) ||
			    (hop.width > 0 && hop.width < hop.width_most);

		topo_link(now, sizeof(now), hop.speed, hop.width);
		topo_link(most, sizeof(most), hop.speed_most, hop.width_most);
		last = hop.parent >= 0 ? hop.parent : hop.device;
		if (i)
			printf(" %s %s", line, topology->pci[hop.device].address);
		if (strcmp(most, "-") != 0)
			printf(" %s[%s%s%s of %s]", line,
			       slow ? screen_tint(screen, TINT_POOR) : "", now,
			       slow ? screen_plain(screen) : "", most);
		if (hop.parent >= 0)
			printf("%s %s", line, topology->pci[hop.parent].address);
	}
	printf(" %s %s\n", line, or_dash(topology->pci[last].root));
}

/* "18 NVLinks of 26.6 GB/s: 18 to switches" */
static void print_links(const struct wh_topology *topology, size_t gpu)
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
	printf("           %d NVLinks", active);
	if (!isnan(speed))
		printf(" of %.1f GB/s a direction", speed);
	if (active)
		printf(", %d to GPUs, %d to switches", direct, active - direct);
	if (down)
		printf("; %d are down", down);
	putchar('\n');
}

static void print_gpu(const struct wh_topology *topology, size_t index, const struct screen *screen)
{
	const struct wh_gpu *gpu = &topology->gpus[index];
	int nic = wh_topology_nic_of(topology, index), links;
	char name[WH_NAME], memory[32], bar1[32], l2[32], word[8];
	enum wh_distance distance;

	topo_end_name(topology, (struct wh_end){ WH_END_GPU, index }, name);
	topo_size(memory, sizeof(memory), gpu->memory_bytes);
	topo_size(bar1, sizeof(bar1), gpu->bar1_bytes);
	topo_size(l2, sizeof(l2), gpu->l2_bytes);
	printf("%s%-10s%s %s, %s\n", screen_tint(screen, TINT_STRONG), name, screen_plain(screen),
	       or_dash(gpu->name), or_dash(gpu->uuid));
	if (*gpu->problem)
		printf("           %s%s%s\n", screen_tint(screen, TINT_BAD), gpu->problem,
		       screen_plain(screen));
	else
		printf("           memory %s, BAR1 %s, L2 %s, NUMA node %s, CPUs %s%s\n", memory,
		       bar1, l2, or_dash(gpu->nodes), or_dash(gpu->cpus),
		       gpu->mig == 1 ? ", MIG" : "");
	print_path(topology, gpu->pci, screen);
	print_links(topology, index);
	if (nic < 0)
		return;
	distance = wh_topology_distance(topology, (struct wh_end){ WH_END_GPU, index },
					(struct wh_end){ WH_END_NIC, (size_t)nic }, &links);
	wh_distance_text(distance, links, word);
	printf("           served by %s (%s)\n", topology->nics[nic].name, word);
	print_rdma(topology, (struct wh_end){ WH_END_GPU, index });
}

static void print_nic(const struct wh_topology *topology, size_t index, const struct screen *screen)
{
	const struct wh_nic *nic = &topology->nics[index];
	char rate[32] = "-", node[16];

	if (!isnan(nic->rate))
		snprintf(rate, sizeof(rate), "%.4g Gbit/s", nic->rate);
	number_text(node, sizeof(node), nic->node);
	printf("%s%-10s%s %s%s%s%s, %s, %s, NUMA node %s\n", screen_tint(screen, TINT_STRONG),
	       nic->name, screen_plain(screen), nic->rdma == 1 ? "RDMA over " : "",
	       or_dash(nic->layer), *nic->netdev && strcmp(nic->netdev, nic->name) ? ", " : "",
	       strcmp(nic->netdev, nic->name) ? nic->netdev : "", or_dash(nic->state), rate, node);
	print_path(topology, nic->pci, screen);
}

static void print_disk(const struct wh_topology *topology, size_t index,
		       const struct screen *screen)
{
	const struct wh_disk *disk = &topology->disks[index];
	char size[32], node[16];

	topo_size(size, sizeof(size), disk->size_bytes);
	number_text(node, sizeof(node), disk->node);
	printf("%s%-10s%s %s, %s, NUMA node %s\n", screen_tint(screen, TINT_STRONG), disk->name,
	       screen_plain(screen), or_dash(disk->model), size, node);
	print_path(topology, disk->pci, screen);
}

/* ---- the matrix ------------------------------------------------------------------------------ */

static enum tint tint_of(enum wh_distance distance)
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

/* What stands in a cell of the matrix: the distance, or the expected GB/s. */
static enum tint cell(const struct wh_topology *topology, struct wh_end row, struct wh_end column,
		      bool speed, char out[16])
{
	struct wh_expected expected;
	enum wh_distance distance;
	int links;

	distance = wh_topology_distance(topology, row, column, &links);
	wh_distance_text(distance, links, out);
	if (!speed)
		return tint_of(distance);
	wh_topology_expect(topology, row, column, &expected);
	if (isnan(expected.speed))
		snprintf(out, 16, "-");
	else
		snprintf(out, 16, expected.speed < 10 ? "%.2f" : "%.0f", expected.speed);
	return isnan(expected.speed) ? TINT_FAINT : tint_of(distance);
}

static void print_affinity(const struct wh_topology *topology, struct wh_end end)
{
	int pci, node;

	if (end.kind == WH_END_GPU) {
		printf("  %-16s %s", or_dash(topology->gpus[end.index].cpus),
		       or_dash(topology->gpus[end.index].nodes));
	} else if (end.kind == WH_END_NIC) {
		pci = topology->nics[end.index].pci;
		node = topology->nics[end.index].node;
		printf("  %-16s ", pci < 0 ? "-" : or_dash(topology->pci[pci].cpus));
		printf(node < 0 ? "-" : "%d", node);
	} else {
		printf("  %-16s %d", or_dash(topology->nodes[end.index].cpus),
		       topology->nodes[end.index].id);
	}
}

static void print_matrix(const struct wh_topology *topology, const struct screen *screen,
			 const struct wh_end *ends, size_t count, bool speed)
{
	int width = name_width(topology, ends, count);
	char name[WH_NAME], text[16];

	printf("%*s", width, "");
	for (size_t i = 0; i < count; i++) {
		topo_end_name(topology, ends[i], name);
		printf(" %*s", width, name);
	}
	puts(speed ? "" : "  CPU affinity     NUMA");
	for (size_t i = 0; i < count; i++) {
		topo_end_name(topology, ends[i], name);
		printf("%-*s", width, name);
		for (size_t k = 0; k < count; k++) {
			enum tint tint = cell(topology, ends[i], ends[k], speed, text);

			printf(" %s%*s%s", screen_tint(screen, tint), width, text,
			       screen_plain(screen));
		}
		if (!speed)
			print_affinity(topology, ends[i]);
		putchar('\n');
	}
}

static void print_pairs(const struct wh_topology *topology, const struct screen *screen)
{
	size_t count;
	struct wh_end *ends = topo_ends(topology, &count);

	if (count) {
		puts("\nDistances, from row to column:");
		print_matrix(topology, screen, ends, count, false);
		puts("  NV#: so many NVLinks; PIX: one PCIe bridge at most; PXB: several; PHB: a "
		     "host\n"
		     "  bridge; NODE: several of one NUMA node; SYS: from NUMA node to NUMA node");
	}
	if (topology->gpu_count + topology->nic_count) {
		puts("\nExpected GB/s one way, large transfers (docs/topology.md has the model; "
		     "wherry bench\nmeasures):");
		print_matrix(topology, screen, ends, count, true);
	}
	free(ends);
}

/* Switches of NVLink are PCI devices of their own, where the machine shows them. */
static void print_switches(const struct wh_topology *topology, const struct screen *screen)
{
	for (size_t i = 0; i < topology->pci_count; i++) {
		const struct wh_pci *pci = &topology->pci[i];

		if (pci->vendor == 0x10de && pci->class_code >> 8 == 0x0680)
			printf("%sNVSwitch%s   %s\n", screen_tint(screen, TINT_STRONG),
			       screen_plain(screen), pci->address);
	}
}

void topo_print(const struct wh_topology *topology, const struct screen *screen)
{
	print_machine(topology, screen);
	for (size_t i = 0; i < topology->gpu_count; i++)
		print_gpu(topology, i, screen);
	print_switches(topology, screen);
	for (size_t i = 0; i < topology->nic_count; i++)
		print_nic(topology, i, screen);
	for (size_t i = 0; i < topology->disk_count; i++)
		print_disk(topology, i, screen);
	if (!topology->gpu_count)
		puts("GPU        none");
	if (!topology->nic_count)
		puts("NIC        none");
	print_pairs(topology, screen);
	if (topology->note_count)
		puts("\nMissing:");
	for (size_t i = 0; i < topology->note_count; i++)
		printf("  %s: %s\n", topology->notes[i].what, topology->notes[i].why);
}
