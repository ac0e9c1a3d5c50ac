/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A topology as JSON and back, by one description of its structs. Unknown values are null. A file
 * is not trusted: counts and indexes are checked before use.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "field.h"
#include "output.h"
#include "topo/topo.h"
#include "util/text.h"

#define ROWS_MOST 4096 /* of one table; more than any machine has */
#define ENDS_MOST 512 /* of the matrix, whose size is their square */

enum type {
	TEXT = FIELD_TEXT,
	NUMBER = FIELD_INT,
	FLAG = FIELD_FLAG,
	SIZE = FIELD_COUNT,
	REAL = FIELD_REAL,
	SAID, /* enum wh_said; unknown: WH_UNSAID */
	/* int: an index into another table of below; unknown: -1 */
	OF_PCI,
	OF_GPUS,
};

struct column {
	const char *key;
	enum type type;
	size_t offset, size;
};

struct table {
	const char *key;
	const struct column *columns;
	size_t column_count, array, count, row;
};

#define COLUMN(key, type, structure, member)                                                       \
	{                                                                                          \
		key, type, offsetof(struct structure, member),                                     \
			sizeof(((struct structure *)0)->member)                                    \
	}

static const struct column cpu_columns[] = {
	COLUMN("model", TEXT, wh_cpu, model),
	COLUMN("packages", NUMBER, wh_cpu, packages),
	COLUMN("cores", NUMBER, wh_cpu, cores),
	COLUMN("threads", NUMBER, wh_cpu, threads),
};

static const struct column cache_columns[] = {
	COLUMN("level", NUMBER, wh_cpu_cache, level),
	COLUMN("kind", TEXT, wh_cpu_cache, kind),
	COLUMN("size_bytes", SIZE, wh_cpu_cache, size_bytes),
	COLUMN("count", NUMBER, wh_cpu_cache, count),
};

static const struct column node_columns[] = {
	COLUMN("id", NUMBER, wh_node, id),
	COLUMN("memory_bytes", SIZE, wh_node, memory_bytes),
	COLUMN("cpus", TEXT, wh_node, cpus),
	COLUMN("distances", TEXT, wh_node, distances),
};

static const struct column pci_columns[] = {
	COLUMN("address", TEXT, wh_pci, address),
	COLUMN("root", TEXT, wh_pci, root),
	COLUMN("driver", TEXT, wh_pci, driver),
	COLUMN("cpus", TEXT, wh_pci, cpus),
	COLUMN("parent", OF_PCI, wh_pci, parent),
	COLUMN("class", NUMBER, wh_pci, class_code),
	COLUMN("vendor", NUMBER, wh_pci, vendor),
	COLUMN("device", NUMBER, wh_pci, device),
	COLUMN("numa_node", NUMBER, wh_pci, node),
	COLUMN("speed_gt_per_s", REAL, wh_pci, speed),
	COLUMN("speed_most_gt_per_s", REAL, wh_pci, speed_most),
	COLUMN("width", NUMBER, wh_pci, width),
	COLUMN("width_most", NUMBER, wh_pci, width_most),
};

static const struct column gpu_columns[] = {
	COLUMN("index", NUMBER, wh_gpu, index),
	COLUMN("pci", OF_PCI, wh_gpu, pci),
	COLUMN("address", TEXT, wh_gpu, address),
	COLUMN("name", TEXT, wh_gpu, name),
	COLUMN("uuid", TEXT, wh_gpu, uuid),
	COLUMN("cpus", TEXT, wh_gpu, cpus),
	COLUMN("numa_nodes", TEXT, wh_gpu, nodes),
	COLUMN("problem", TEXT, wh_gpu, problem),
	COLUMN("capability", NUMBER, wh_gpu, capability),
	COLUMN("memory_bytes", SIZE, wh_gpu, memory_bytes),
	COLUMN("bar1_bytes", SIZE, wh_gpu, bar1_bytes),
	COLUMN("l2_bytes", SIZE, wh_gpu, l2_bytes),
	COLUMN("pcie_generation", NUMBER, wh_gpu, pcie_generation),
	COLUMN("pcie_generation_most", NUMBER, wh_gpu, pcie_generation_most),
	COLUMN("pcie_width", NUMBER, wh_gpu, pcie_width),
	COLUMN("pcie_width_most", NUMBER, wh_gpu, pcie_width_most),
	COLUMN("fabric_state", NUMBER, wh_gpu, fabric),
	COLUMN("nvlink_domain", TEXT, wh_gpu, domain),
	COLUMN("mig", FLAG, wh_gpu, mig),
	COLUMN("dma_buf", SAID, wh_gpu, dma_buf),
	COLUMN("recovery_action", NUMBER, wh_gpu, recovery),
};

static const struct column link_columns[] = {
	COLUMN("gpu", OF_GPUS, wh_nvlink, gpu),
	COLUMN("link", NUMBER, wh_nvlink, link),
	COLUMN("active", FLAG, wh_nvlink, active),
	COLUMN("version", NUMBER, wh_nvlink, version),
	COLUMN("remote_type", NUMBER, wh_nvlink, remote),
	COLUMN("remote_gpu", OF_GPUS, wh_nvlink, peer),
	COLUMN("remote_address", TEXT, wh_nvlink, address),
	COLUMN("speed_gb_per_s", REAL, wh_nvlink, speed),
};

static const struct column pair_columns[] = {
	COLUMN("from", OF_GPUS, wh_gpu_pair, from),
	COLUMN("to", OF_GPUS, wh_gpu_pair, to),
	COLUMN("ancestor", NUMBER, wh_gpu_pair, ancestor),
	COLUMN("read_status", NUMBER, wh_gpu_pair, read),
	COLUMN("write_status", NUMBER, wh_gpu_pair, write),
	COLUMN("nvlink_status", NUMBER, wh_gpu_pair, nvlink),
	COLUMN("atomics_status", NUMBER, wh_gpu_pair, atomics),
};

static const struct column nic_columns[] = {
	COLUMN("name", TEXT, wh_nic, name),        COLUMN("netdev", TEXT, wh_nic, netdev),
	COLUMN("link_layer", TEXT, wh_nic, layer), COLUMN("state", TEXT, wh_nic, state),
	COLUMN("rdma", FLAG, wh_nic, rdma),        COLUMN("pci", OF_PCI, wh_nic, pci),
	COLUMN("numa_node", NUMBER, wh_nic, node), COLUMN("rate_gbit_per_s", REAL, wh_nic, rate),
	COLUMN("dma_buf", SAID, wh_nic, dma_buf),
};

static const struct column disk_columns[] = {
	COLUMN("name", TEXT, wh_disk, name),
	COLUMN("model", TEXT, wh_disk, model),
	COLUMN("size_bytes", SIZE, wh_disk, size_bytes),
	COLUMN("pci", OF_PCI, wh_disk, pci),
	COLUMN("numa_node", NUMBER, wh_disk, node),
};

static const struct column gap_columns[] = {
	COLUMN("what", TEXT, wh_topology_gap, what),
	COLUMN("why", TEXT, wh_topology_gap, why),
};

#define TABLE(key, columns, array, count, structure)                                               \
	{                                                                                          \
		key, columns, sizeof(columns) / sizeof((columns)[0]),                              \
			offsetof(struct wh_topology, array), offsetof(struct wh_topology, count),  \
			sizeof(struct structure)                                                   \
	}

static const struct table tables[] = {
	TABLE("caches", cache_columns, caches, cache_count, wh_cpu_cache),
	TABLE("numa_nodes", node_columns, nodes, node_count, wh_node),
	TABLE("pci", pci_columns, pci, pci_count, wh_pci),
	TABLE("gpus", gpu_columns, gpus, gpu_count, wh_gpu),
	TABLE("nvlinks", link_columns, links, link_count, wh_nvlink),
	TABLE("gpu_pairs", pair_columns, pairs, pair_count, wh_gpu_pair),
	TABLE("nics", nic_columns, nics, nic_count, wh_nic),
	TABLE("storage", disk_columns, disks, disk_count, wh_disk),
	TABLE("missing", gap_columns, gaps, gap_count, wh_topology_gap),
};

#define TABLES (sizeof(tables) / sizeof(tables[0]))

static const struct column head_columns[] = {
	COLUMN("host", TEXT, wh_topology, host),
	COLUMN("nvidia_driver", TEXT, wh_topology, driver),
	COLUMN("peermem", SAID, wh_topology, peermem),
};

/* ---- to JSON --------------------------------------------------------------------------------- */

static json_t *column_to_json(const struct column *column, const char *row)
{
	const char *at = row + column->offset;
	enum wh_said said;

	switch (column->type) {
	case SAID:
		memcpy(&said, at, sizeof(said));
		return said == WH_UNSAID ? json_null() : json_boolean(said == WH_YES);
	case OF_PCI:
	case OF_GPUS:
		return field_to_json(FIELD_INT, at);
	default:
		return field_to_json((enum field_type)column->type, at);
	}
}

static json_t *row_to_json(const struct column *columns, size_t count, const char *row)
{
	json_t *object = json_object();

	for (size_t i = 0; i < count; i++)
		json_object_set_new(object, columns[i].key, column_to_json(&columns[i], row));
	return object;
}

static json_t *pair_to_json(const struct wh_topology *topology, struct wh_end from,
			    struct wh_end to)
{
	struct wh_expected expected;
	char names[2][WH_NAME], word[8];
	enum wh_distance distance;
	int links;

	topo_end_name(topology, from, names[0]);
	topo_end_name(topology, to, names[1]);
	distance = wh_topology_distance(topology, from, to, &links);
	wh_distance_text(distance, links, word);
	wh_topology_expect(topology, from, to, &expected);
	return json_pack(
		"{s:o, s:o, s:o, s:i, s:o, s:o, s:o}", "from", output_text(names[0]), "to",
		output_text(names[1]), "distance", output_text(distance == WH_FAR ? NULL : word),
		"nvlinks", links, "route", output_text(expected.route), "expected_gb_per_s",
		field_to_json(FIELD_REAL, &expected.speed), "limit", output_text(expected.limit));
}

/* Derived values, for readers of the JSON. */
static void derived_to_json(json_t *object, const struct wh_topology *topology)
{
	json_t *matrix = json_array(), *chosen = json_array();
	size_t count;
	struct wh_end *ends = topo_ends(topology, &count);

	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < count; k++)
			json_array_append_new(matrix, pair_to_json(topology, ends[i], ends[k]));
	free(ends);
	for (size_t i = 0; i < topology->gpu_count; i++) {
		int nic = wh_topology_nic_of(topology, i);
		char name[WH_NAME];

		topo_end_name(topology, (struct wh_end){ WH_END_GPU, i }, name);
		json_array_append_new(
			chosen, json_pack("{s:o, s:o}", "gpu", output_text(name), "nic",
					  output_text(nic < 0 ? NULL : topology->nics[nic].name)));
	}
	json_object_set_new(object, "matrix", matrix);
	json_object_set_new(object, "gpu_nics", chosen);
}

json_t *topo_to_json(const struct wh_topology *topology)
{
	json_t *object = output_new();

	for (size_t i = 0; i < sizeof(head_columns) / sizeof(head_columns[0]); i++)
		json_object_set_new(object, head_columns[i].key,
				    column_to_json(&head_columns[i], (const char *)topology));
	json_object_set_new(object, "cpu",
			    row_to_json(cpu_columns, sizeof(cpu_columns) / sizeof(cpu_columns[0]),
					(const char *)&topology->cpu));
	for (size_t i = 0; i < TABLES; i++) {
		const struct table *table = &tables[i];
		const char *rows = *(char *const *)((const char *)topology + table->array);
		size_t count = *(const size_t *)((const char *)topology + table->count);
		json_t *array = json_array();

		for (size_t k = 0; k < count; k++)
			json_array_append_new(array,
					      row_to_json(table->columns, table->column_count,
							  rows + k * table->row));
		json_object_set_new(object, table->key, array);
	}
	derived_to_json(object, topology);
	return object;
}

/* ---- from JSON ------------------------------------------------------------------------------- */

/* Set a column of a row. A missing value is null. False: the value is not valid for the column. */
static bool column_from_json(const struct column *column, const json_t *value, char *row)
{
	bool null = !value || json_is_null(value);
	char *at = row + column->offset;

	switch (column->type) {
	case TEXT:
		if (null)
			return true;
		if (!json_is_string(value) || json_string_length(value) >= column->size)
			return false;
		memcpy(at, json_string_value(value), json_string_length(value) + 1);
		wh_text_clean(at); /* it may end on a terminal */
		return true;
	case FLAG:
		*(int *)at = null ? -1 : json_is_true(value);
		return null || json_is_boolean(value);
	case SAID:
		*(enum wh_said *)at = null ? WH_UNSAID : json_is_true(value) ? WH_YES : WH_NO;
		return null || json_is_boolean(value);
	case SIZE:
		*(uint64_t *)at = null ? WH_UNKNOWN : (uint64_t)json_integer_value(value);
		return null || (json_is_integer(value) && json_integer_value(value) >= 0);
	case REAL:
		*(double *)(void *)at = null ? NAN : json_number_value(value);
		return null || (json_is_number(value) && json_number_value(value) >= 0 &&
				json_number_value(value) <= 1e6);
	default:
		*(int *)at = null ? -1 : (int)json_integer_value(value);
		return null || (json_is_integer(value) && json_integer_value(value) >= 0 &&
				json_integer_value(value) <= INT32_MAX);
	}
}

static bool row_from_json(const struct column *columns, size_t count, const json_t *object,
			  char *row, const char *table, char *why, size_t size)
{
	if (!json_is_object(object)) {
		snprintf(why, size, "%s: expected an object", table);
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		if (column_from_json(&columns[i], json_object_get(object, columns[i].key), row))
			continue;
		snprintf(why, size, "%s: %s has an invalid value", table, columns[i].key);
		return false;
	}
	return true;
}

static bool table_from_json(const struct table *table, const json_t *array,
			    struct wh_topology *topology, char *why, size_t size)
{
	size_t count = json_array_size(array);
	char *rows;

	if (array && !json_is_array(array)) {
		snprintf(why, size, "%s is not an array", table->key);
		return false;
	}
	if (count > ROWS_MOST) {
		snprintf(why, size, "%s has %zu entries; the limit is %d", table->key, count,
			 ROWS_MOST);
		return false;
	}
	rows = calloc(count + 1, table->row);
	if (!rows) {
		snprintf(why, size, "out of memory");
		return false;
	}
	*(char **)((char *)topology + table->array) = rows;
	*(size_t *)((char *)topology + table->count) = count;
	for (size_t i = 0; i < count; i++)
		if (!row_from_json(table->columns, table->column_count, json_array_get(array, i),
				   rows + i * table->row, table->key, why, size))
			return false;
	return true;
}

/* Links and pairs must name their GPUs. */
static bool column_is_required(const struct column *column)
{
	return strcmp(column->key, "gpu") == 0 || strcmp(column->key, "from") == 0 ||
	       strcmp(column->key, "to") == 0;
}

/* Are all indexes of a table valid? */
static bool table_check_indexes(const struct table *table, const struct wh_topology *topology,
				char *why, size_t size)
{
	const char *rows = *(char *const *)((const char *)topology + table->array);
	size_t count = *(const size_t *)((const char *)topology + table->count);

	for (size_t i = 0; i < count * table->column_count; i++) {
		const struct column *column = &table->columns[i % table->column_count];
		size_t most = column->type == OF_PCI  ? topology->pci_count :
			      column->type == OF_GPUS ? topology->gpu_count :
							0;
		int index;

		if (column->type != OF_PCI && column->type != OF_GPUS)
			continue;
		index = *(const int *)(rows + i / table->column_count * table->row +
				       column->offset);
		if (index < (column_is_required(column) ? 0 : -1) ||
		    (index >= 0 && (size_t)index >= most)) {
			snprintf(why, size, "%s: %s is %d, of %zu", table->key, column->key, index,
				 most);
			return false;
		}
	}
	return true;
}

static bool topology_from_json(struct wh_topology *topology, const json_t *object, char *why,
			       size_t size)
{
	const json_t *schema = json_object_get(object, "schema"),
		     *cpu = json_object_get(object, "cpu");

	if (json_integer_value(schema) != 1) {
		snprintf(why, size, "it is not what wherry topo --json writes (\"schema\": 1)");
		return false;
	}
	if (!row_from_json(head_columns, sizeof(head_columns) / sizeof(head_columns[0]), object,
			   (char *)topology, "the whole", why, size))
		return false;
	if (!cpu || !row_from_json(cpu_columns, sizeof(cpu_columns) / sizeof(cpu_columns[0]), cpu,
				   (char *)&topology->cpu, "cpu", why, size)) {
		if (!cpu)
			snprintf(why, size,
				 "it has no \"cpu\": was it written by another command?");
		return false;
	}
	for (size_t i = 0; i < TABLES; i++)
		if (!table_from_json(&tables[i], json_object_get(object, tables[i].key), topology,
				     why, size))
			return false;
	if (topology->gpu_count + topology->nic_count + topology->node_count > ENDS_MOST) {
		snprintf(why, size, "more than %d GPUs, NICs and NUMA nodes together", ENDS_MOST);
		return false;
	}
	for (size_t i = 0; i < TABLES; i++)
		if (!table_check_indexes(&tables[i], topology, why, size))
			return false;
	return true;
}

struct wh_topology *topo_from_json(const json_t *object, char *why, size_t size)
{
	struct wh_topology *topology = calloc(1, sizeof(*topology));

	if (!topology)
		snprintf(why, size, "out of memory");
	else if (topology_from_json(topology, object, why, size))
		return topology;
	wh_topology_free(topology);
	return NULL;
}
