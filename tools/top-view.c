/* SPDX-License-Identifier: Apache-2.0 */
/* A sample as lines of text, as CSV and as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"
#include "platform/nvml.h"
#include "top.h"
#include "topo.h"

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

/* "power, heat"; "-" if not known, "none". */
static void reasons_text(uint64_t reasons, char *out, size_t size)
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
		reasons_text(*(const uint64_t *)at, text, sizeof(text));
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
		reasons_text(*(const uint64_t *)at, text, sizeof(text));
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

/* ---- lines ----------------------------------------------------------------------------------- */

struct writer {
	struct top_line *lines;
	size_t count, most;
};

__attribute__((format(printf, 3, 4)))
static void line(struct writer *writer, int tint, const char *format, ...)
{
	struct top_line *out = &writer->lines[writer->count];
	va_list list;

	if (writer->count == writer->most)
		return;
	out->plain = tint < 0;
	out->tint = tint < 0 ? TINT_GOOD : (enum tint)tint;
	va_start(list, format);
	vsnprintf(out->text, sizeof(out->text), format, list);
	va_end(list);
	writer->count++;
}

#define BAR 10

/* "#####     " */
static void bar(double share, bool ascii, char out[3 * BAR + 1])
{
	int full = share > 0 ? (int)(fmin(share, 1) * BAR + 0.5) : 0, used = 0;

	for (int i = 0; i < BAR; i++)
		used += snprintf(out + used, (size_t)(3 * BAR + 1 - used), "%s",
				 i >= full ? " " : ascii ? "#" : "\u2588");
}

static void number(char out[16], const char *format, double value)
{
	if (isnan(value))
		snprintf(out, 16, "-");
	else
		/* NOLINTNEXTLINE(clang-diagnostic-format-nonliteral): the callers' are constants */
		snprintf(out, 16, format, value);
}

static double or_nan(int value)
{
	return value < 0 ? NAN : value;
}

/* "12.3 (20 %)": a rate, and its share of the ceiling. */
static void rate_text(char out[24], double value, double most)
{
	if (isnan(value))
		snprintf(out, 24, "-");
	else if (isnan(most) || !(most > 0))
		snprintf(out, 24, "%.2f", value);
	else
		snprintf(out, 24, "%.2f %3.0f%%", value, value / most * 100);
}

static void gpu_lines(struct writer *writer, const struct top_gpu *gpu, bool ascii)
{
	char busy[16], power[16], limit[16], heat[16], clock[16], used[32], total[32], bar1[32],
		reasons[64], errors[24], rates[4][24], shown[3 * BAR + 1];
	bool hot = gpu->reasons != WH_UNKNOWN &&
		   gpu->reasons & ~(uint64_t)(WH_NVML_IDLE | WH_NVML_CLOCKS_SET);
	bool broken = gpu->ecc_uncorrected != WH_UNKNOWN && gpu->ecc_uncorrected;

	if (*gpu->problem) {
		line(writer, TINT_BAD, "GPU%-2d %s", gpu->index, gpu->problem);
		return;
	}
	number(busy, "%.0f%%", or_nan(gpu->busy));
	number(power, "%.0f", gpu->power);
	number(limit, "%.0f", gpu->power_limit);
	number(heat, "%.0f", or_nan(gpu->temperature));
	number(clock, "%.0f", or_nan(gpu->clock));
	topo_size(used, sizeof(used), gpu->memory_used);
	topo_size(total, sizeof(total), gpu->memory_total);
	topo_size(bar1, sizeof(bar1), gpu->bar1_used);
	reasons_text(gpu->reasons, reasons, sizeof(reasons));
	snprintf(errors, sizeof(errors), "-");
	if (gpu->ecc_uncorrected != WH_UNKNOWN)
		snprintf(errors, sizeof(errors), "%" PRIu64, gpu->ecc_uncorrected);
	rate_text(rates[0], gpu->pcie_sent, gpu->pcie_most);
	rate_text(rates[1], gpu->pcie_received, gpu->pcie_most);
	rate_text(rates[2], gpu->link_sent, gpu->link_most);
	rate_text(rates[3], gpu->link_received, gpu->link_most);
	bar(gpu->busy < 0 ? 0 : gpu->busy / 100.0, ascii, shown);
	line(writer,
	     broken ? TINT_BAD :
	     hot    ? TINT_POOR :
		      -1,
	     "GPU%-2d %-18.18s %4s %s %9s/%-8s %4s/%-4s W %3s C %5s MHz", gpu->index, gpu->name,
	     busy, shown, used, total, power, limit, heat, clock);
	line(writer, -1, "      PCIe %12s out %12s in   NVLink %12s out %12s in", rates[0],
	     rates[1], rates[2], rates[3]);
	line(writer, broken ? TINT_BAD : -1,
	     "      BAR1 %s in use, ECC uncorrected %s, clocks held by %s", bar1, errors, reasons);
}

static void nic_line(struct writer *writer, const struct top_nic *nic, bool ascii)
{
	bool down = strcmp(nic->state, "ACTIVE") != 0 && strcmp(nic->state, "up") != 0;
	char rates[2][24], errors[16], again[16], shown[3 * BAR + 1];
	double most = fmax(isnan(nic->sent) ? 0 : nic->sent,
			   isnan(nic->received) ? 0 : nic->received);

	rate_text(rates[0], nic->sent, nic->most);
	rate_text(rates[1], nic->received, nic->most);
	number(errors, "%.0f", nic->errors);
	number(again, "%.0f", nic->retransmits);
	bar(isnan(nic->most) ? 0 : most / nic->most, ascii, shown);
	line(writer, down ? TINT_FAINT : nic->errors > 0 ? TINT_POOR : -1,
	     "%-10s %-7s %12s out %12s in %s errors/s %s, retransmits/s %s", nic->name,
	     *nic->state ? nic->state : "-", rates[0], rates[1], shown, errors, again);
}

/* qsort() has no argument for these. */
static _Thread_local const struct top_view *sorting;

static int compare(const void *a, const void *b)
{
	const struct top_process *one = *(struct top_process *const *)a,
				 *other = *(struct top_process *const *)b;
	double first = 0, second = 0;
	int order;

	switch (sorting->order) {
	case TOP_BY_GPU_MEMORY:
		first = one->gpu_memory == WH_UNKNOWN ? -1 : (double)one->gpu_memory;
		second = other->gpu_memory == WH_UNKNOWN ? -1 : (double)other->gpu_memory;
		break;
	case TOP_BY_CPU:
		first = isnan(one->cpu) ? -1 : one->cpu;
		second = isnan(other->cpu) ? -1 : other->cpu;
		break;
	case TOP_BY_MEMORY:
		first = one->memory == WH_UNKNOWN ? -1 : (double)one->memory;
		second = other->memory == WH_UNKNOWN ? -1 : (double)other->memory;
		break;
	case TOP_BY_PID:
		first = -one->pid;
		second = -other->pid;
		break;
	default:
		order = strcmp(one->name, other->name);
		return sorting->reverse ? -order : order;
	}
	order = (first < second) - (first > second);
	if (!order)
		order = (one->pid > other->pid) - (one->pid < other->pid);
	return sorting->reverse ? -order : order;
}

static void process_lines(struct writer *writer, const struct top_sample *sample,
			  const struct top_view *view)
{
	static const char *const orders[] = { "GPU memory", "CPU", "memory", "PID", "name" };
	const struct top_process **list =
		calloc(sample->process_count + 1, sizeof(struct top_process *));
	size_t used = 0;

	for (size_t i = 0; list && i < sample->process_count; i++)
		if (!*view->filter || strcasestr(sample->processes[i].name, view->filter))
			list[used++] = &sample->processes[i];
	sorting = view;
	if (used)
		qsort(list, used, sizeof(struct top_process *), compare);
	line(writer, TINT_STRONG, "%8s %4s %10s %10s %6s  NAME   by %s%s%s%s", "PID", "GPU",
	     "GPU MEM", "MEM", "CPU%", orders[view->order], view->reverse ? ", reversed" : "",
	     *view->filter ? ", only " : "", view->filter);
	for (size_t i = 0; i < used; i++) {
		char pid[16], gpu_memory[32], memory[32], cpu[16];

		number(pid, "%.0f", list[i]->pid < 0 ? NAN : list[i]->pid);
		topo_size(gpu_memory, sizeof(gpu_memory), list[i]->gpu_memory);
		topo_size(memory, sizeof(memory), list[i]->memory);
		number(cpu, "%.0f", list[i]->cpu);
		line(writer, -1, "%8s %4d %10s %10s %6s  %s", pid, list[i]->gpu, gpu_memory, memory,
		     cpu, *list[i]->name ? list[i]->name : "- (of another PID namespace)");
	}
	if (!used)
		line(writer, TINT_FAINT, "%8s %s", "", sample->process_count ?
							       "none of that name" :
							       "no process computes on a GPU");
	free(list);
}

static size_t help_lines(struct writer *writer)
{
	static const char *const text[] = {
		"q            quit",
		"h ?          this help, and back",
		"s            sort processes by the next column",
		"r            reverse the order",
		"/            show only processes with a text in their name; Enter, Esc: all",
		"+ -          longer, shorter intervals",
		"space        hold the picture, and go on",
		"arrows       scroll; Home: to the top",
		"",
		"Rates are over the last interval; % is of what the link carries.",
		"'-': the driver does not say. Clocks held by 'power' or 'heat' are slowed down.",
	};

	for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++)
		line(writer, -1, "%s", text[i]);
	return writer->count;
}

size_t top_render(const struct top_sample *sample, const struct top_view *view,
		  struct top_line *lines, size_t most)
{
	struct writer writer = { .lines = lines, .most = most };
	char retransmits[16];

	number(retransmits, "%.0f", sample->tcp_retransmits);
	line(&writer, TINT_STRONG, "%s  driver %s  every %.1f s  TCP retransmits/s %s%s",
	     *sample->host ? sample->host : "-", *sample->driver ? sample->driver : "-",
	     sample->interval, retransmits, view->paused ? "  HELD" : "");
	if (view->help)
		return help_lines(&writer);
	for (size_t i = 0; i < sample->gpu_count; i++)
		gpu_lines(&writer, &sample->gpus[i], view->ascii);
	if (!sample->gpu_count)
		line(&writer, TINT_FAINT, "no GPU%s%s", *sample->note ? ": " : "", sample->note);
	for (size_t i = 0; i < sample->nic_count; i++)
		nic_line(&writer, &sample->nics[i], view->ascii);
	if (!sample->nic_count)
		line(&writer, TINT_FAINT, "no NIC");
	process_lines(&writer, sample, view);
	return writer.count;
}
