/* SPDX-License-Identifier: Apache-2.0 */
/* A sample as CSV and as JSON, by tables of fields. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "output.h"
#include "platform/nvml.h"
#include "top.h"

/* ---- fields ---------------------------------------------------------------------------------- */

enum type { TEXT, INT, COUNT, BYTES, REAL, REASONS };

static const struct field {
	const char *name;
	const char *unit; /* in CSV's header and behind the key in JSON; "" */
	const char *key;  /* in JSON */
	enum type type;
	size_t offset;
	const char *help;
} fields[] = {
#define FIELD(name, unit, key, type, member, help) \
	{ name, unit, key, type, offsetof(struct top_gpu, member), help }
	FIELD("index", "", "index", INT, index, "as NVML counts"),
	FIELD("name", "", "name", TEXT, name, "of the product"),
	FIELD("uuid", "", "uuid", TEXT, uuid, "of the card"),
	FIELD("pci.bus_id", "", "pci_address", TEXT, address, "where it is"),
	FIELD("utilization.gpu", "%", "gpu_busy_percent", INT, busy, "time with a kernel running"),
	FIELD("utilization.memory", "%", "memory_busy_percent", INT, memory_busy,
	      "time with memory in use"),
	FIELD("memory.used", "MiB", "memory_used_bytes", BYTES, memory_used, "memory in use"),
	FIELD("memory.total", "MiB", "memory_total_bytes", BYTES, memory_total, "memory"),
	FIELD("bar1.used", "MiB", "bar1_used_bytes", BYTES, bar1_used, "window in use"),
	FIELD("bar1.total", "MiB", "bar1_total_bytes", BYTES, bar1_total,
	      "window through which the PCI bus sees the memory"),
	FIELD("power.draw", "W", "power_watts", REAL, power, "power"),
	FIELD("power.limit", "W", "power_limit_watts", REAL, power_limit, "limit in force"),
	FIELD("temperature.gpu", "C", "temperature_celsius", INT, temperature, "temperature"),
	FIELD("clocks.sm", "MHz", "sm_clock_mhz", INT, clock, "clock of the processors"),
	FIELD("clocks.max.sm", "MHz", "sm_clock_most_mhz", INT, clock_most, "at most"),
	FIELD("clocks.mem", "MHz", "memory_clock_mhz", INT, memory_clock, "clock of the memory"),
	FIELD("clocks.max.mem", "MHz", "memory_clock_most_mhz", INT, memory_clock_most, "at most"),
	FIELD("pcie.tx", "GB/s", "pcie_sent_gb_per_s", REAL, pcie_sent, "sent over PCIe"),
	FIELD("pcie.rx", "GB/s", "pcie_received_gb_per_s", REAL, pcie_received,
	      "received over PCIe"),
	FIELD("pcie.max", "GB/s", "pcie_most_gb_per_s", REAL, pcie_most, "what the link carries"),
	FIELD("nvlink.tx", "GB/s", "nvlink_sent_gb_per_s", REAL, link_sent, "sent over NVLink"),
	FIELD("nvlink.rx", "GB/s", "nvlink_received_gb_per_s", REAL, link_received,
	      "received over NVLink"),
	FIELD("nvlink.max", "GB/s", "nvlink_most_gb_per_s", REAL, link_most,
	      "what all links carry"),
	FIELD("ecc.corrected", "", "ecc_corrected", COUNT, ecc_corrected,
	      "errors since the driver was loaded"),
	FIELD("ecc.uncorrected", "", "ecc_uncorrected", COUNT, ecc_uncorrected, "likewise"),
	FIELD("pcie.replays", "", "pcie_replays", COUNT, pcie_replays, "packets sent again"),
	FIELD("clocks_event_reasons", "", "clock_reasons", REASONS, reasons,
	      "why the clocks are not higher"),
	FIELD("problem", "", "problem", TEXT, problem, "why the GPU cannot be asked"),
#undef FIELD
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static const struct field *find_field(const char *name, size_t length)
{
	for (size_t i = 0; i < FIELDS; i++)
		if (strlen(fields[i].name) == length && memcmp(fields[i].name, name, length) == 0)
			return &fields[i];
	return NULL;
}

bool top_unknown_field(const char *list, char word[WH_NAME])
{
	for (; *list; list += strcspn(list, ","), list += *list == ',') {
		size_t length = strcspn(list, ",");

		if (find_field(list, length))
			continue;
		snprintf(word, WH_NAME, "%.*s", (int)(length < WH_NAME ? length : WH_NAME - 1),
			 list);
		return true;
	}
	return false;
}

void top_all_fields(char *out, size_t size)
{
	size_t used = 0;

	*out = '\0';
	for (size_t i = 0; i < FIELDS && used < size; i++)
		used += (size_t)snprintf(out + used, size - used, "%s%s", i ? "," : "",
					 fields[i].name);
}

void top_describe_fields(void)
{
	for (size_t i = 0; i < FIELDS; i++)
		printf("%-22s %-5s %s\n", fields[i].name, fields[i].unit, fields[i].help);
}

void top_reasons(uint64_t reasons, char *out, size_t size)
{
	static const struct {
		uint64_t bit;
		const char *word;
	} words[] = {
		{ WH_NVML_IDLE, "idle" },
		{ WH_NVML_CLOCKS_SET, "set" },
		{ WH_NVML_POWER_CAP, "power" },
		{ WH_NVML_HARDWARE_SLOWDOWN, "hardware" },
		{ WH_NVML_SYNC_BOOST, "sync" },
		{ WH_NVML_THERMAL, "heat" },
		{ WH_NVML_HARDWARE_THERMAL, "hardware-heat" },
		{ WH_NVML_POWER_BRAKE, "power-brake" },
	};
	size_t used = 0;

	snprintf(out, size, reasons == WH_UNKNOWN ? "-" : "none");
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && reasons != WH_UNKNOWN; i++)
		if (reasons & words[i].bit && used < size)
			used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "+" : "",
						 words[i].word);
}

/* Text in CSV: in quotes where it has to be. */
static void put_csv(const char *text)
{
	if (!text[strcspn(text, ",\"")]) {
		fputs(*text ? text : "-", stdout);
		return;
	}
	putchar('"');
	for (; *text; text++) {
		if (*text == '"')
			putchar('"');
		putchar(*text);
	}
	putchar('"');
}

static void put_field(const struct top_gpu *gpu, const struct field *field)
{
	const void *at = (const char *)gpu + field->offset;
	uint64_t number;
	char text[128];
	double value;

	switch (field->type) {
	case TEXT:
		put_csv(at);
		return;
	case INT:
		if (*(const int *)at < 0)
			putchar('-');
		else
			printf("%d", *(const int *)at);
		return;
	case REAL:
		value = *(const double *)at;
		printf(isnan(value) ? "-" : "%.3f", value);
		return;
	case REASONS:
		top_reasons(*(const uint64_t *)at, text, sizeof(text));
		fputs(text, stdout);
		return;
	default:
		number = *(const uint64_t *)at;
		if (number == WH_UNKNOWN)
			putchar('-');
		else
			printf("%" PRIu64, field->type == BYTES ? number >> 20 : number);
	}
}

void top_print_header(const char *list)
{
	for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
		const struct field *field = find_field(at, strcspn(at, ","));

		if (field)
			printf("%s%s%s%s%s", at == list ? "" : ", ", field->name,
			       *field->unit ? " [" : "", field->unit, *field->unit ? "]" : "");
	}
	putchar('\n');
}

void top_print_rows(const struct top_sample *sample, const char *list)
{
	for (size_t i = 0; i < sample->gpu_count; i++) {
		for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
			const struct field *field = find_field(at, strcspn(at, ","));

			if (at != list)
				fputs(", ", stdout);
			if (field)
				put_field(&sample->gpus[i], field);
		}
		putchar('\n');
	}
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *real(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *count(uint64_t value)
{
	return value == WH_UNKNOWN ? json_null() : json_integer((json_int_t)value);
}

static json_t *field_to_json(const struct top_gpu *gpu, const struct field *field)
{
	const void *at = (const char *)gpu + field->offset;
	char text[128];

	switch (field->type) {
	case TEXT:
		return output_text(at);
	case INT:
		return *(const int *)at < 0 ? json_null() : json_integer(*(const int *)at);
	case REAL:
		return real(*(const double *)at);
	case REASONS:
		top_reasons(*(const uint64_t *)at, text, sizeof(text));
		return strcmp(text, "-") == 0 ? json_null() : json_string(text);
	default:
		return count(*(const uint64_t *)at);
	}
}

static json_t *nic_to_json(const struct top_nic *nic)
{
	return json_pack("{s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
			 output_text(nic->name), "netdev", output_text(nic->netdev), "rdma",
			 nic->rdma, "state", output_text(nic->state), "sent_gb_per_s",
			 real(nic->sent), "received_gb_per_s", real(nic->received), "most_gb_per_s",
			 real(nic->most), "sent_bytes", count(nic->sent_bytes), "received_bytes",
			 count(nic->received_bytes), "errors_per_s", real(nic->errors),
			 "retransmits_per_s", real(nic->retransmits));
}

static json_t *process_to_json(const struct top_process *process)
{
	return json_pack("{s:o, s:o, s:i, s:o, s:o, s:o}", "pid",
			 process->pid < 0 ? json_null() : json_integer(process->pid), "name",
			 output_text(process->name), "gpu", process->gpu, "gpu_memory_bytes",
			 count(process->gpu_memory), "memory_bytes", count(process->memory),
			 "cpu_percent", real(process->cpu));
}

json_t *top_to_json(const struct top_sample *sample)
{
	json_t *object = output_new(), *gpus = json_array(), *nics = json_array(),
	       *processes = json_array();

	for (size_t i = 0; i < sample->gpu_count; i++) {
		json_t *gpu = json_object();

		for (size_t k = 0; k < FIELDS; k++)
			json_object_set_new(gpu, fields[k].key,
					    field_to_json(&sample->gpus[i], &fields[k]));
		json_array_append_new(gpus, gpu);
	}
	for (size_t i = 0; i < sample->nic_count; i++)
		json_array_append_new(nics, nic_to_json(&sample->nics[i]));
	for (size_t i = 0; i < sample->process_count; i++)
		json_array_append_new(processes, process_to_json(&sample->processes[i]));
	json_object_set_new(object, "host", output_text(sample->host));
	json_object_set_new(object, "nvidia_driver", output_text(sample->driver));
	json_object_set_new(object, "interval_seconds", real(sample->interval));
	json_object_set_new(object, "tcp_retransmits_per_s", real(sample->tcp_retransmits));
	json_object_set_new(object, "gpus", gpus);
	json_object_set_new(object, "nics", nics);
	json_object_set_new(object, "processes", processes);
	json_object_set_new(object, "missing", output_text(sample->note));
	return object;
}
