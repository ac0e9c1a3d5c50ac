/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs and NICs in Prometheus' text format. What the driver or the kernel does not say is left out.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "exporter/metrics.h"

enum type { INT, COUNT, REAL };

/* A number of a GPU or a NIC: where it is, and what one of it is in the base unit. */
struct number {
	const char *name, *type, *help, *label; /* label: more of them, or "" */
	size_t offset;
	enum type kind;
	double unit;
};

static const struct number gpu_numbers[] = {
#define GPU(name, type, help, label, member, kind, unit)                                           \
	{                                                                                          \
		"wherry_gpu_" name, type, help, label, offsetof(struct top_gpu, member), kind,     \
			unit                                                                       \
	}
	GPU("busy_ratio", "gauge", "Share of the time with a kernel running.", "", busy, INT, 0.01),
	GPU("memory_busy_ratio", "gauge", "Share of the time with memory in use.", "", memory_busy,
	    INT, 0.01),
	GPU("memory_bytes", "gauge", "Memory.", "", memory_total, COUNT, 1),
	GPU("memory_used_bytes", "gauge", "Memory in use.", "", memory_used, COUNT, 1),
	GPU("bar_bytes", "gauge", "BAR1, through which the PCI bus sees the memory.", "",
	    bar1_total, COUNT, 1),
	GPU("bar_used_bytes", "gauge", "BAR1 in use.", "", bar1_used, COUNT, 1),
	GPU("power_watts", "gauge", "Power.", "", power, REAL, 1),
	GPU("power_limit_watts", "gauge", "The limit in force.", "", power_limit, REAL, 1),
	GPU("temperature_celsius", "gauge", "Temperature.", "", temperature, INT, 1),
	GPU("clock_hertz", "gauge", "Clocks.", ",clock=\"sm\"", clock, INT, 1e6),
	GPU("clock_hertz", "gauge", "", ",clock=\"memory\"", memory_clock, INT, 1e6),
	GPU("pcie_bytes_per_second", "gauge", "Over PCIe with its headers, over 20 ms.",
	    ",direction=\"sent\"", pcie_sent, REAL, 1e9),
	GPU("pcie_bytes_per_second", "gauge", "", ",direction=\"received\"", pcie_received, REAL,
	    1e9),
	GPU("pcie_capacity_bytes_per_second", "gauge", "What the PCIe link carries each way.", "",
	    pcie_most, REAL, 1e9),
	GPU("nvlink_bytes_total", "counter", "Data over all NVLinks.", ",direction=\"sent\"",
	    link_sent_kib, COUNT, 1024),
	GPU("nvlink_bytes_total", "counter", "", ",direction=\"received\"", link_received_kib,
	    COUNT, 1024),
	GPU("nvlink_capacity_bytes_per_second", "gauge", "What all NVLinks carry each way.", "",
	    link_most, REAL, 1e9),
	GPU("ecc_errors_total", "counter", "Memory errors since the driver was loaded.",
	    ",corrected=\"yes\"", ecc_corrected, COUNT, 1),
	GPU("ecc_errors_total", "counter", "", ",corrected=\"no\"", ecc_uncorrected, COUNT, 1),
	GPU("pcie_replays_total", "counter", "Packets that were sent again.", "", pcie_replays,
	    COUNT, 1),
#undef GPU
};

static const struct number nic_numbers[] = {
#define NIC(name, type, help, label, member, kind, unit)                                           \
	{                                                                                          \
		"wherry_nic_" name, type, help, label, offsetof(struct top_nic, member), kind,     \
			unit                                                                       \
	}
	NIC("bytes_total", "counter", "Bytes of port 1, or of the interface.",
	    ",direction=\"sent\"", sent_bytes, COUNT, 1),
	NIC("bytes_total", "counter", "", ",direction=\"received\"", received_bytes, COUNT, 1),
	NIC("capacity_bytes_per_second", "gauge", "What the link carries each way.", "", most, REAL,
	    1e9),
	NIC("errors_total", "counter", "Packets that were broken or dropped.", "", error_count,
	    COUNT, 1),
	NIC("retransmits_total", "counter", "Packets that RDMA sent again.", "", retransmit_count,
	    COUNT, 1),
#undef NIC
};

/* NAN: not known. */
static double value_of(const void *base, const struct number *number)
{
	const char *at = (const char *)base + number->offset;
	uint64_t count;
	double real;
	int whole;

	switch (number->kind) {
	case INT:
		memcpy(&whole, at, sizeof(whole));
		return whole < 0 ? (double)NAN : whole * number->unit;
	case COUNT:
		memcpy(&count, at, sizeof(count));
		return count == WH_UNKNOWN ? (double)NAN : (double)count * number->unit;
	default:
		memcpy(&real, at, sizeof(real));
		return real * number->unit;
	}
}

/* One number of all devices. The first row of a family has its help. */
static void put_number(struct metrics *metrics, const struct number *number, const void *base,
		       size_t step, size_t count, char (*labels)[400])
{
	if (*number->help)
		metrics_family(metrics, number->name, number->type, number->help);
	for (size_t i = 0; i < count; i++) {
		double value = value_of((const char *)base + i * step, number);

		if (isfinite(value))
			metrics_put(metrics, "%s{%s%s} %.15g\n", number->name, labels[i],
				    number->label, value);
	}
}

static void gpus(struct metrics *metrics, const struct top_sample *sample)
{
	static char labels[TOP_GPUS][400];
	char uuid[2 * WH_NAME], name[2 * WH_NAME], address[2 * WH_NAME];

	for (size_t i = 0; i < sample->gpu_count; i++) {
		metrics_escape(sample->gpus[i].uuid, uuid, sizeof(uuid));
		snprintf(labels[i], sizeof(labels[i]), "gpu=\"%d\",uuid=\"%s\"",
			 sample->gpus[i].index, uuid);
	}
	metrics_family(metrics, "wherry_gpu_info", "gauge", "1: it answers; 0: it does not.");
	for (size_t i = 0; i < sample->gpu_count; i++) {
		metrics_escape(sample->gpus[i].name, name, sizeof(name));
		metrics_escape(sample->gpus[i].address, address, sizeof(address));
		metrics_put(metrics, "wherry_gpu_info{%s,name=\"%s\",address=\"%s\"} %d\n",
			    labels[i], name, address, !*sample->gpus[i].problem);
	}
	for (size_t k = 0; k < sizeof(gpu_numbers) / sizeof(gpu_numbers[0]); k++)
		put_number(metrics, &gpu_numbers[k], sample->gpus, sizeof(sample->gpus[0]),
			   sample->gpu_count, labels);
}

static void nics(struct metrics *metrics, const struct top_sample *sample)
{
	static char labels[TOP_NICS][400];
	char name[2 * WH_NAME], netdev[2 * WH_NAME];

	metrics_family(metrics, "wherry_nic_up", "gauge", "1: it is; 0: it is not.");
	for (size_t i = 0; i < sample->nic_count; i++) {
		const struct top_nic *nic = &sample->nics[i];

		metrics_escape(nic->name, name, sizeof(name));
		metrics_escape(nic->netdev, netdev, sizeof(netdev));
		snprintf(labels[i], sizeof(labels[i]), "nic=\"%s\",netdev=\"%s\"", name, netdev);
		if (top_nic_up(nic) >= 0)
			metrics_put(metrics, "wherry_nic_up{%s} %d\n", labels[i], top_nic_up(nic));
	}
	for (size_t k = 0; k < sizeof(nic_numbers) / sizeof(nic_numbers[0]); k++)
		put_number(metrics, &nic_numbers[k], sample->nics, sizeof(sample->nics[0]),
			   sample->nic_count, labels);
}

void metrics_machine(struct metrics *metrics, const struct top_sample *sample)
{
	gpus(metrics, sample);
	nics(metrics, sample);
	metrics_family(metrics, "wherry_tcp_retransmits_total", "counter",
		       "TCP segments that were sent again, of the whole machine.");
	if (sample->tcp_retransmit_count != WH_UNKNOWN)
		metrics_put(metrics, "wherry_tcp_retransmits_total %" PRIu64 "\n",
			    sample->tcp_retransmit_count);
}
