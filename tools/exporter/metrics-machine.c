/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs and NICs in Prometheus' text format, by the fields of top/tables.c. Unknown values are left
 * out. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "exporter/metrics.h"
#include "top/fields.h"

/* One field of all rows. The first field of a family has its help. */
static void machine_put_field(struct metrics *metrics, const struct top_table *table,
			      const struct top_field *field, const struct top_sample *sample,
			      size_t count, char (*labels)[400])
{
	const struct top_metric *metric = &field->metric;
	char name[96];

	snprintf(name, sizeof(name), "%s%s", table->prefix, metric->name);
	if (metric->help)
		metrics_family(metrics, name, metric->type, metric->help);
	for (size_t i = 0; i < count; i++) {
		const char *row = (const char *)sample + table->rows + i * table->step;
		double value = field_to_number(field->type, row + field->offset) * metric->unit;

		if (isfinite(value))
			metrics_put(metrics, "%s{%s%s} %.15g\n", name, labels[i], metric->labels,
				    value);
	}
}

static void machine_put_table(struct metrics *metrics, const struct top_table *table,
			      const struct top_sample *sample, size_t count, char (*labels)[400])
{
	for (size_t i = 0; i < table->field_count; i++)
		if (table->fields[i].metric.name)
			machine_put_field(metrics, table, &table->fields[i], sample, count, labels);
}

static void machine_gpus(struct metrics *metrics, const struct top_sample *sample)
{
	static char labels[TOP_GPUS][400];
	char uuid[2 * WH_NAME], name[2 * WH_NAME], address[2 * WH_NAME];

	for (size_t i = 0; i < sample->gpu_count; i++) {
		metrics_escape(sample->gpus[i].uuid, uuid, sizeof(uuid));
		snprintf(labels[i], sizeof(labels[i]), "gpu=\"%d\",uuid=\"%s\"",
			 sample->gpus[i].index, uuid);
	}
	metrics_family(metrics, "wherry_gpu_info", "gauge", "1: the GPU answers; 0: it does not.");
	for (size_t i = 0; i < sample->gpu_count; i++) {
		metrics_escape(sample->gpus[i].name, name, sizeof(name));
		metrics_escape(sample->gpus[i].address, address, sizeof(address));
		metrics_put(metrics, "wherry_gpu_info{%s,name=\"%s\",address=\"%s\"} %d\n",
			    labels[i], name, address, !*sample->gpus[i].problem);
	}
	machine_put_table(metrics, &top_tables[TOP_GPU_TABLE], sample, sample->gpu_count, labels);
}

static void machine_nics(struct metrics *metrics, const struct top_sample *sample)
{
	static char labels[TOP_NICS][400];
	char name[2 * WH_NAME], netdev[2 * WH_NAME];

	metrics_family(metrics, "wherry_nic_up", "gauge", "1: the link is up; 0: it is not.");
	for (size_t i = 0; i < sample->nic_count; i++) {
		const struct top_nic *nic = &sample->nics[i];

		metrics_escape(nic->name, name, sizeof(name));
		metrics_escape(nic->netdev, netdev, sizeof(netdev));
		snprintf(labels[i], sizeof(labels[i]), "nic=\"%s\",netdev=\"%s\"", name, netdev);
		if (top_nic_up(nic) >= 0)
			metrics_put(metrics, "wherry_nic_up{%s} %d\n", labels[i], top_nic_up(nic));
	}
	machine_put_table(metrics, &top_tables[TOP_NIC_TABLE], sample, sample->nic_count, labels);
}

void metrics_machine(struct metrics *metrics, const struct top_sample *sample)
{
	machine_gpus(metrics, sample);
	machine_nics(metrics, sample);
	metrics_family(metrics, "wherry_tcp_retransmits_total", "counter",
		       "TCP segments that the whole machine sent again.");
	if (sample->tcp_retransmit_count != WH_UNKNOWN)
		metrics_put(metrics, "wherry_tcp_retransmits_total %" PRIu64 "\n",
			    sample->tcp_retransmit_count);
}
