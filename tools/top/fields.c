/* SPDX-License-Identifier: Apache-2.0 */
/* A sample as CSV and as JSON, by the tables of fields; and the reasons of unknown values. */
#include "top/fields.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "output.h"
#include "platform/nvml.h"

/* ---- lists of fields ------------------------------------------------------------------------- */

static const struct top_field *field_find(const struct top_table *table, const char *name,
					  size_t length)
{
	for (size_t i = 0; i < table->field_count && length; i++)
		if (strlen(table->fields[i].name) == length &&
		    memcmp(table->fields[i].name, name, length) == 0)
			return &table->fields[i];
	return NULL;
}

bool top_unknown_field(const struct top_table *table, const char *list, char word[WH_NAME])
{
	for (; *list; list += strcspn(list, ","), list += *list == ',') {
		size_t length = strcspn(list, ",");

		if (field_find(table, list, length))
			continue;
		snprintf(word, WH_NAME, "%.*s", (int)(length < WH_NAME ? length : WH_NAME - 1),
			 list);
		return true;
	}
	return false;
}

unsigned top_needs(const struct top_table *table, const char *list)
{
	unsigned needs = 0;

	for (; *list; list += strcspn(list, ","), list += *list == ',') {
		const struct top_field *field = field_find(table, list, strcspn(list, ","));

		needs |= field ? field->needs : 0;
	}
	return needs;
}

void top_all_fields(const struct top_table *table, char *out, size_t size)
{
	size_t used = 0;

	*out = '\0';
	for (size_t i = 0; i < table->field_count && used < size; i++)
		if (*table->fields[i].name)
			used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "," : "",
						 table->fields[i].name);
}

void top_describe_fields(const struct top_table *table)
{
	for (size_t i = 0; i < table->field_count; i++)
		if (*table->fields[i].name)
			printf("%-22s %-5s %s\n", table->fields[i].name, table->fields[i].unit,
			       table->fields[i].help);
}

/* ---- reasons of unknown values --------------------------------------------------------------- */

/* NULL: the value is known, or its reason is not. */
static const char *field_reason(const struct top_table *table, const char *row, size_t at)
{
	const struct top_field *field = &table->fields[at];
	uint8_t error = field->why ? *(const uint8_t *)(row + field->why) : 0;

	return error ? table->meaning(error) : NULL;
}

static bool same_reason(const char *one, const char *other)
{
	return one && other && strcmp(one, other) == 0;
}

/* "power.draw, power.limit: no permission; ...": each reason once, after the fields it explains. */
static void reasons_text(const struct top_table *table, const void *row, char *out, size_t size)
{
	size_t used = 0;

	*out = '\0';
	for (size_t i = 0; i < table->field_count; i++) {
		const char *reason = field_reason(table, row, i);
		bool first = reason;

		for (size_t k = 0; k < i && first; k++)
			first = !same_reason(field_reason(table, row, k), reason);
		for (size_t k = i; k < table->field_count && first && used < size; k++)
			if (same_reason(field_reason(table, row, k), reason))
				used += (size_t)snprintf(out + used, size - used, "%s%s",
							 k > i ? ", " :
							 used  ? "; " :
								 "",
							 table->fields[k].name);
		if (first && used < size)
			used += (size_t)snprintf(out + used, size - used, ": %s", reason);
	}
}

void top_why(const struct top_gpu *gpu, char *out, size_t size)
{
	reasons_text(&top_tables[TOP_GPU_TABLE], gpu, out, size);
}

void top_nic_why(const struct top_nic *nic, char *out, size_t size)
{
	reasons_text(&top_tables[TOP_NIC_TABLE], nic, out, size);
}

void top_process_why(const struct top_process *process, char *out, size_t size)
{
	bool gone = process->why == ENOENT || process->why == ESRCH;

	*out = '\0';
	if (process->elsewhere)
		snprintf(out, size,
			 "PID, name, memory, CPU: no process here has the PID that the driver "
			 "reports; "
			 "it is in another PID namespace, or /proc hides it");
	else if (process->why)
		snprintf(out, size, "name, memory, CPU: %s",
			 gone ? "it has ended" : strerror(process->why));
	if (process->gpu_memory == WH_UNKNOWN)
		snprintf(out + strlen(out), size - strlen(out),
			 "%sGPU memory: the driver does not report it", *out ? "; " : "");
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

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Print a text, in quotes if it has a comma or a quote. */
static void csv_put_text(const char *text)
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

static void csv_put_field(const struct top_table *table, const char *row,
			  const struct top_field *field, bool why)
{
	const char *reason = why ? field_reason(table, row, (size_t)(field - table->fields)) : NULL;
	const void *at = row + field->offset;
	double number = field_to_number(field->type, at);
	uint64_t count;
	char text[128];

	if (reason) {
		printf("[%s]", reason);
	} else if (field->text) {
		field->text(at, text, sizeof(text));
		fputs(text, stdout);
	} else if (field->type == FIELD_TEXT) {
		csv_put_text(at);
	} else if (isnan(number)) {
		putchar('-');
	} else if (field->type == FIELD_COUNT) {
		memcpy(&count, at, sizeof(count)); /* a double would round it */
		printf("%" PRIu64, strcmp(field->unit, "MiB") == 0 ? count >> 20 : count);
	} else {
		printf(field->type == FIELD_REAL ? "%.3f" : "%.0f", number);
	}
}

void top_print_header(const struct top_table *table, const char *list)
{
	for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
		const struct top_field *field = field_find(table, at, strcspn(at, ","));

		if (field)
			printf("%s%s%s%s%s", at == list ? "" : ", ", field->name,
			       *field->unit ? " [" : "", field->unit, *field->unit ? "]" : "");
	}
	putchar('\n');
}

static const char *table_row(const struct top_table *table, const struct top_sample *sample,
			     size_t at)
{
	return (const char *)sample + table->rows + at * table->step;
}

static size_t table_count(const struct top_table *table, const struct top_sample *sample)
{
	size_t count;

	memcpy(&count, (const char *)sample + table->count, sizeof(count));
	return count;
}

void top_print_rows(const struct top_table *table, const struct top_sample *sample,
		    const char *list, bool why)
{
	for (size_t i = 0; i < table_count(table, sample); i++) {
		for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
			const struct top_field *field = field_find(table, at, strcspn(at, ","));

			if (at != list)
				fputs(", ", stdout);
			if (field)
				csv_put_field(table, table_row(table, sample, i), field, why);
		}
		putchar('\n');
	}
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *value_to_json(const char *row, const struct top_field *field)
{
	char text[128];

	if (!field->text)
		return field_to_json(field->type, row + field->offset);
	field->text(row + field->offset, text, sizeof(text));
	return strcmp(text, "-") == 0 ? json_null() : json_string(text);
}

static json_t *row_to_json(const struct top_table *table, const struct top_sample *sample,
			   size_t at)
{
	json_t *object = json_object();

	for (size_t i = 0; i < table->field_count; i++)
		if (table->fields[i].key)
			json_object_set_new(
				object, table->fields[i].key,
				value_to_json(table_row(table, sample, at), &table->fields[i]));
	return object;
}

/* Keys of unknown values, with the reason of each. */
static json_t *reasons_to_json(const struct top_table *table, const char *row)
{
	json_t *object = json_object();

	for (size_t i = 0; i < table->field_count; i++) {
		const char *reason = field_reason(table, row, i);

		if (reason)
			json_object_set_new(object, table->fields[i].key, json_string(reason));
	}
	return object;
}

static json_t *table_to_json(const struct top_table *table, const struct top_sample *sample,
			     bool why)
{
	json_t *array = json_array();

	for (size_t i = 0; i < table_count(table, sample); i++) {
		json_t *row = row_to_json(table, sample, i);

		if (why)
			json_object_set_new(row, "missing",
					    reasons_to_json(table, table_row(table, sample, i)));
		json_array_append_new(array, row);
	}
	return array;
}

/* Peers are in their engines, routes in their peers. */
static json_t *engines_to_json(const struct top_sample *sample)
{
	const struct top_engines *from = &sample->engines;
	json_t *engines = json_array();
	size_t peer = 0, route = 0;

	for (size_t i = 0; i < from->engine_count; i++) {
		json_t *engine = row_to_json(&top_tables[TOP_ENGINE_TABLE], sample, i),
		       *peers = json_array();

		for (; peer < from->peer_count && from->peers[peer].engine_at == i; peer++) {
			json_t *object = row_to_json(&top_tables[TOP_PEER_TABLE], sample, peer),
			       *routes = json_array();

			for (; route < from->route_count && from->routes[route].peer_at == peer;
			     route++)
				json_array_append_new(
					routes,
					row_to_json(&top_tables[TOP_ROUTE_TABLE], sample, route));
			json_object_set_new(object, "routes", routes);
			json_array_append_new(peers, object);
		}
		json_object_set_new(engine, "peers", peers);
		json_array_append_new(engines, engine);
	}
	return engines;
}

/* The engines that did not answer, and the reason if none could be asked. */
static json_t *silents_to_json(const struct top_engines *engines)
{
	json_t *array = json_array();

	for (size_t i = 0; i < engines->silent && i < TOP_SILENT; i++)
		json_array_append_new(array,
				      json_pack("{s:o, s:o}", "pid",
						engines->silents[i].pid < 0 ?
							json_null() :
							json_integer(engines->silents[i].pid),
						"why", output_text(engines->silents[i].why)));
	if (*engines->why)
		json_array_append_new(
			array, json_pack("{s:n, s:o}", "pid", "why", output_text(engines->why)));
	return array;
}

static json_t *process_to_json(const struct top_process *process, bool why)
{
	json_t *object =
		json_pack("{s:o, s:o, s:i, s:o, s:o, s:o}", "pid",
			  process->pid < 0 ? json_null() : json_integer(process->pid), "name",
			  output_text(process->name), "gpu", process->gpu, "gpu_memory_bytes",
			  field_to_json(FIELD_COUNT, &process->gpu_memory), "memory_bytes",
			  field_to_json(FIELD_COUNT, &process->memory), "cpu_percent",
			  field_to_json(FIELD_REAL, &process->cpu));
	char text[256];

	top_process_why(process, text, sizeof(text));
	if (why)
		json_object_set_new(object, "missing", output_text(text));
	return object;
}

json_t *top_to_json(const struct top_sample *sample, bool why)
{
	json_t *object = output_new(), *processes = json_array();

	for (size_t i = 0; i < sample->process_count; i++)
		json_array_append_new(processes, process_to_json(&sample->processes[i], why));
	json_object_set_new(object, "host", output_text(sample->host));
	json_object_set_new(object, "nvidia_driver", output_text(sample->driver));
	json_object_set_new(object, "interval_seconds",
			    field_to_json(FIELD_REAL, &sample->interval));
	json_object_set_new(object, "tcp_retransmits_per_s",
			    field_to_json(FIELD_REAL, &sample->tcp_retransmits));
	json_object_set_new(object, "gpus", table_to_json(&top_tables[TOP_GPU_TABLE], sample, why));
	json_object_set_new(object, "nics", table_to_json(&top_tables[TOP_NIC_TABLE], sample, why));
	json_object_set_new(object, "processes", processes);
	json_object_set_new(object, "engines",
			    sample->engines.asked ? engines_to_json(sample) : json_null());
	json_object_set_new(object, "engines_silent",
			    json_integer((json_int_t)sample->engines.silent));
	if (why)
		json_object_set_new(object, "engines_missing", silents_to_json(&sample->engines));
	json_object_set_new(object, "left_out", json_integer((json_int_t)sample->engines.left_out));
	json_object_set_new(object, "missing", output_text(sample->note));
	return object;
}
