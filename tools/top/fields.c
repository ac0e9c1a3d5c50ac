/* SPDX-License-Identifier: Apache-2.0 */
/* A sample as CSV and as JSON, by tables of fields. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "output.h"
#include "platform/nvml.h"
#include "top/top.h"

/* ---- fields ---------------------------------------------------------------------------------- */

enum type { TEXT, INT, COUNT, BYTES, REAL, REASONS };

struct field {
	const char *name;
	const char *unit; /* in CSV's header and behind the key in JSON; "" */
	const char *key; /* in JSON; NULL: what it is part of says it */
	enum type type;
	unsigned needs; /* what GPUs are asked for it */
	size_t offset;
	const char *help;
	size_t why; /* where in the row the errno is by which it has no value; 0: none is kept */
};

static const struct field gpu_fields[] = {
#define NAME(name, unit, key, type, member, help)                                                  \
	{                                                                                          \
		name, unit, key, type, TOP_NAMES, offsetof(struct top_gpu, member), help, 0        \
	}
#define FIELD(name, unit, key, type, member, question, help)                                       \
	{                                                                                          \
		name, unit, key, type, TOP_NAMES | 1U << (question),                               \
			offsetof(struct top_gpu, member), help,                                    \
			offsetof(struct top_gpu, why.member)                                       \
	}
	NAME("index", "", "index", INT, index, "as NVML counts"),
	NAME("name", "", "name", TEXT, name, "of the product"),
	NAME("uuid", "", "uuid", TEXT, uuid, "of the card"),
	NAME("pci.bus_id", "", "pci_address", TEXT, address, "where it is"),
	FIELD("utilization.gpu", "%", "gpu_busy_percent", INT, busy, TOP_BUSY,
	      "time with a kernel running"),
	FIELD("utilization.memory", "%", "memory_busy_percent", INT, memory_busy, TOP_BUSY,
	      "time with memory in use"),
	FIELD("memory.used", "MiB", "memory_used_bytes", BYTES, memory_used, TOP_MEMORY,
	      "memory in use"),
	FIELD("memory.total", "MiB", "memory_total_bytes", BYTES, memory_total, TOP_MEMORY,
	      "memory"),
	FIELD("bar1.used", "MiB", "bar1_used_bytes", BYTES, bar1_used, TOP_BAR1, "window in use"),
	FIELD("bar1.total", "MiB", "bar1_total_bytes", BYTES, bar1_total, TOP_BAR1,
	      "window through which the PCI bus sees the memory"),
	FIELD("power.draw", "W", "power_watts", REAL, power, TOP_POWER, "power"),
	FIELD("power.limit", "W", "power_limit_watts", REAL, power_limit, TOP_LIMITS,
	      "limit in force"),
	FIELD("temperature.gpu", "C", "temperature_celsius", INT, temperature, TOP_HEAT,
	      "temperature"),
	FIELD("clocks.sm", "MHz", "sm_clock_mhz", INT, clock, TOP_CLOCK, "clock of the processors"),
	FIELD("clocks.max.sm", "MHz", "sm_clock_most_mhz", INT, clock_most, TOP_LIMITS, "at most"),
	FIELD("clocks.mem", "MHz", "memory_clock_mhz", INT, memory_clock, TOP_MEMORY_CLOCK,
	      "clock of the memory"),
	FIELD("clocks.max.mem", "MHz", "memory_clock_most_mhz", INT, memory_clock_most, TOP_LIMITS,
	      "at most"),
	FIELD("pcie.tx", "GB/s", "pcie_sent_gb_per_s", REAL, pcie_sent, TOP_PCIE, "sent over PCIe"),
	FIELD("pcie.rx", "GB/s", "pcie_received_gb_per_s", REAL, pcie_received, TOP_PCIE,
	      "received over PCIe"),
	NAME("pcie.max", "GB/s", "pcie_most_gb_per_s", REAL, pcie_most, "what the link carries"),
	FIELD("nvlink.tx", "GB/s", "nvlink_sent_gb_per_s", REAL, link_sent, TOP_LINKS,
	      "sent over NVLink"),
	FIELD("nvlink.rx", "GB/s", "nvlink_received_gb_per_s", REAL, link_received, TOP_LINKS,
	      "received over NVLink"),
	NAME("nvlink.max", "GB/s", "nvlink_most_gb_per_s", REAL, link_most, "what all links carry"),
	FIELD("ecc.corrected", "", "ecc_corrected", COUNT, ecc_corrected, TOP_ERRORS,
	      "errors since the driver was loaded"),
	FIELD("ecc.uncorrected", "", "ecc_uncorrected", COUNT, ecc_uncorrected, TOP_ERRORS,
	      "likewise"),
	FIELD("pcie.replays", "", "pcie_replays", COUNT, pcie_replays, TOP_ERRORS,
	      "packets sent again"),
	FIELD("clocks_event_reasons", "", "clock_reasons", REASONS, reasons, TOP_REASONS,
	      "why the clocks are not higher"),
	NAME("problem", "", "problem", TEXT, problem, "why the GPU cannot be asked"),
#undef NAME
#undef FIELD
};

static const struct field engine_fields[] = {
#define FIELD(name, unit, key, type, member, help)                                                 \
	{                                                                                          \
		name, unit, key, type, 0, offsetof(struct top_engine, member), help, 0             \
	}
	FIELD("engine", "", "name", TEXT, name, "its name"),
	FIELD("epoch", "", "epoch", TEXT, epoch, "new at each start"),
	FIELD("pid", "", "pid", INT, pid, "of its process"),
	FIELD("url", "", "url", TEXT, url, "where it listens"),
	FIELD("uptime", "s", "uptime_seconds", REAL, uptime, "since it was opened"),
	FIELD("read", "GB/s", "read_gb_per_s", REAL, read, "read from peers"),
	FIELD("written", "GB/s", "written_gb_per_s", REAL, written, "written to peers"),
	FIELD("served.read", "GB/s", "served_read_gb_per_s", REAL, served_read,
	      "read by peers over TCP"),
	FIELD("served.written", "GB/s", "served_written_gb_per_s", REAL, served_written,
	      "written by peers over TCP"),
	FIELD("batches.rate", "1/s", "batches_per_s", REAL, batch_rate, "batches done"),
	FIELD("small.p50", "us", "small_p50_us", REAL, small_p50,
	      "half of the batches to 64 KiB took no longer"),
	FIELD("small.p99", "us", "small_p99_us", REAL, small_p99, "99 % of them"),
	FIELD("large.p50", "us", "large_p50_us", REAL, large_p50,
	      "half of the larger batches took no longer"),
	FIELD("large.p99", "us", "large_p99_us", REAL, large_p99, "99 % of them"),
	FIELD("read.total", "B", "read_bytes", COUNT, read_bytes, "since it was opened"),
	FIELD("written.total", "B", "written_bytes", COUNT, written_bytes, "likewise"),
	FIELD("served.read.total", "B", "served_read_bytes", COUNT, served_read_bytes, "likewise"),
	FIELD("served.written.total", "B", "served_written_bytes", COUNT, served_written_bytes,
	      "likewise"),
	FIELD("staged", "B", "staged_bytes", COUNT, staged_bytes, "of GPUs, through pinned memory"),
	FIELD("batches", "", "batches", COUNT, batches, "done"),
	FIELD("failed", "", "failed", COUNT, failed, "batches that failed"),
	FIELD("cancelled", "", "cancelled", COUNT, cancelled, "batches that were cancelled"),
	FIELD("attempts", "", "attempts", COUNT, attempts,
	      "parts of batches that transports were given and that have ended"),
	FIELD("errors", "", "errors", COUNT, errors, "parts of batches that failed"),
	FIELD("reroutes", "", "reroutes", COUNT, reroutes,
	      "parts that took another transport after all"),
	FIELD("unfinished", "", "unfinished", COUNT, unfinished,
	      "batches in flight, each once for every local region that it uses"),
	FIELD("inflight", "B", "inflight_bytes", COUNT, in_flight, "of larger batches, now"),
	FIELD("peers", "", "peers_open", COUNT, peers, "open now"),
	FIELD("peers.lost", "", "peers_lost", COUNT, peers_lost, "connections that broke"),
	FIELD("sessions", "", "sessions", COUNT, sessions, "engines that are connected to it"),
	FIELD("connections", "", "connections", COUNT, connections,
	      "data connections that were opened"),
	FIELD("regions", "", "regions", COUNT, regions, "registered now"),
	FIELD("regions.size", "B", "region_bytes", COUNT, region_bytes, "in them"),
	FIELD("windows", "", "windows", COUNT, windows, "on GPU memory"),
	FIELD("left_out", "", "left_out", COUNT, left_out,
	      "peers and sessions that had no room in its answer"),
#undef FIELD
};

static const struct field peer_fields[] = {
#define FIELD(name, unit, key, type, member, help)                                                 \
	{                                                                                          \
		name, unit, key, type, 0, offsetof(struct top_peer, member), help, 0               \
	}
	FIELD("engine", "", NULL, TEXT, engine, "whose peer it is"),
	FIELD("epoch", "", NULL, TEXT, epoch, "of that engine"),
	FIELD("peer", "", "name", TEXT, name, "its name"),
	FIELD("address", "", "address", TEXT, address, "where it is"),
	FIELD("state", "", "state", TEXT, state, "connected, lost or stale"),
	FIELD("read", "GB/s", "read_gb_per_s", REAL, read, "read from it"),
	FIELD("written", "GB/s", "written_gb_per_s", REAL, written, "written to it"),
	FIELD("batches.rate", "1/s", "batches_per_s", REAL, batch_rate, "batches done"),
	FIELD("small.p50", "us", "small_p50_us", REAL, small_p50,
	      "half of the batches to 64 KiB took no longer"),
	FIELD("small.p99", "us", "small_p99_us", REAL, small_p99, "99 % of them"),
	FIELD("large.p50", "us", "large_p50_us", REAL, large_p50,
	      "half of the larger batches took no longer"),
	FIELD("large.p99", "us", "large_p99_us", REAL, large_p99, "99 % of them"),
	FIELD("read.total", "B", "read_bytes", COUNT, read_bytes, "since it was opened"),
	FIELD("written.total", "B", "written_bytes", COUNT, written_bytes, "likewise"),
	FIELD("batches", "", "batches", COUNT, batches, "done"),
	FIELD("failed", "", "failed", COUNT, failed, "batches that failed"),
	FIELD("cancelled", "", "cancelled", COUNT, cancelled, "batches that were cancelled"),
	FIELD("attempts", "", "attempts", COUNT, attempts,
	      "parts of batches that transports were given and that have ended"),
	FIELD("errors", "", "errors", COUNT, errors, "parts of batches that failed"),
	FIELD("reroutes", "", "reroutes", COUNT, reroutes,
	      "parts that took another transport after all"),
	FIELD("lost", "", "lost", COUNT, lost, "how often the connection broke"),
	FIELD("inflight", "B", "inflight_bytes", COUNT, in_flight, "of larger batches, now"),
#undef FIELD
};

static const struct field route_fields[] = {
#define FIELD(name, unit, key, type, member, help)                                                 \
	{                                                                                          \
		name, unit, key, type, 0, offsetof(struct top_route, member), help, 0              \
	}
	FIELD("engine", "", NULL, TEXT, engine, "who moves"),
	FIELD("epoch", "", NULL, TEXT, epoch, "of that engine"),
	FIELD("peer", "", NULL, TEXT, peer, "from or to whom"),
	FIELD("address", "", NULL, TEXT, address, "of the peer"),
	FIELD("transport", "", "transport", TEXT, transport, "self, cuda, shm, rdma, tcp"),
	FIELD("read", "GB/s", "read_gb_per_s", REAL, read, "read by it"),
	FIELD("written", "GB/s", "written_gb_per_s", REAL, written, "written by it"),
	FIELD("read.total", "B", "read_bytes", COUNT, read_bytes, "since the peer was opened"),
	FIELD("written.total", "B", "written_bytes", COUNT, written_bytes, "likewise"),
	FIELD("reads", "", "reads", COUNT, reads, "transfers and blocks"),
	FIELD("writes", "", "writes", COUNT, writes, "likewise"),
	FIELD("attempts", "", "attempts", COUNT, attempts,
	      "parts of batches that transports were given and that have ended"),
	FIELD("errors", "", "errors", COUNT, errors, "parts of batches that failed"),
	FIELD("reroutes", "", "reroutes", COUNT, reroutes,
	      "parts that it gave up and another transport took over"),
#undef FIELD
};

/* A table of a sample: rows of `step` bytes from `rows` on, as many as the size_t at `count` says.
 */
struct top_table {
	const char *name;
	const struct field *fields;
	size_t field_count, rows, step, count;
};

static const struct top_table tables[] = {
#define TABLE(name, fields, rows, count)                                                           \
	{                                                                                          \
		name, fields, sizeof(fields) / sizeof((fields)[0]),                                \
			offsetof(struct top_sample, rows),                                         \
			sizeof(((struct top_sample *)NULL)->rows[0]),                              \
			offsetof(struct top_sample, count)                                         \
	}
	TABLE("gpus", gpu_fields, gpus, gpu_count),
	TABLE("engines", engine_fields, engines.engines, engines.engine_count),
	TABLE("peers", peer_fields, engines.peers, engines.peer_count),
	TABLE("routes", route_fields, engines.routes, engines.route_count),
#undef TABLE
};
enum { GPUS, ENGINES, PEERS, ROUTES };

const struct top_table *top_table(const char *name)
{
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		if (strcmp(tables[i].name, name) == 0)
			return &tables[i];
	return NULL;
}

static const struct field *find_field(const struct top_table *table, const char *name,
				      size_t length)
{
	for (size_t i = 0; i < table->field_count; i++)
		if (strlen(table->fields[i].name) == length &&
		    memcmp(table->fields[i].name, name, length) == 0)
			return &table->fields[i];
	return NULL;
}

bool top_unknown_field(const struct top_table *table, const char *list, char word[WH_NAME])
{
	for (; *list; list += strcspn(list, ","), list += *list == ',') {
		size_t length = strcspn(list, ",");

		if (find_field(table, list, length))
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
		const struct field *field = find_field(table, list, strcspn(list, ","));

		needs |= field ? field->needs : 0;
	}
	return needs;
}

void top_all_fields(const struct top_table *table, char *out, size_t size)
{
	size_t used = 0;

	*out = '\0';
	for (size_t i = 0; i < table->field_count && used < size; i++)
		used += (size_t)snprintf(out + used, size - used, "%s%s", i ? "," : "",
					 table->fields[i].name);
}

void top_describe_fields(const struct top_table *table)
{
	for (size_t i = 0; i < table->field_count; i++)
		printf("%-22s %-5s %s\n", table->fields[i].name, table->fields[i].unit,
		       table->fields[i].help);
}

/* NULL: it has a value, or nobody has said why not. */
static const char *reason_of(const char *row, const struct field *field)
{
	uint8_t error = field->why ? *(const uint8_t *)(row + field->why) : 0;

	return error ? wh_nvml_meaning(-error) : NULL;
}

void top_why(const struct top_gpu *gpu, char *out, size_t size)
{
	const struct top_table *table = &tables[GPUS];
	size_t used = 0;

	*out = '\0';
	for (size_t i = 0; i < table->field_count; i++) {
		const char *reason = reason_of((const char *)gpu, &table->fields[i]);
		bool first = reason;

		/* Each reason once, with all that it is of. */
		for (size_t k = 0; k < i && first; k++)
			first = reason_of((const char *)gpu, &table->fields[k]) != reason;
		for (size_t k = i; k < table->field_count && first && used < size; k++)
			if (reason_of((const char *)gpu, &table->fields[k]) == reason)
				used += (size_t)snprintf(out + used, size - used, "%s%s",
							 k > i ? ", " :
							 used  ? "; " :
								 "",
							 table->fields[k].name);
		if (first && used < size)
			used += (size_t)snprintf(out + used, size - used, ": %s", reason);
	}
}

static const char *nic_meaning(int error)
{
	switch (error) {
	case ENOENT:
		return "the driver has no such file in sysfs";
	case EINVAL:
	case ENODATA:
		return "the driver does not say";
	case EACCES:
	case EPERM:
		return "no permission";
	case EOPNOTSUPP:
		return "TCP counts them for all interfaces together";
	default:
		return strerror(error);
	}
}

/* The numbers of a NIC, their names in JSON, and where the errno is by which there is none. */
static const struct {
	const char *name, *key;
	size_t why;
} nic_values[] = {
	{ "state", "state", offsetof(struct top_nic_why, state) },
	{ "rate at most", "most_gb_per_s", offsetof(struct top_nic_why, most) },
	{ "out", "sent_gb_per_s", offsetof(struct top_nic_why, sent) },
	{ "in", "received_gb_per_s", offsetof(struct top_nic_why, received) },
	{ "errors/s", "errors_per_s", offsetof(struct top_nic_why, errors) },
	{ "retransmits/s", "retransmits_per_s", offsetof(struct top_nic_why, retransmits) },
};
#define NIC_VALUES (sizeof(nic_values) / sizeof(nic_values[0]))

static int nic_error(const struct top_nic *nic, size_t at)
{
	return ((const uint8_t *)&nic->why)[nic_values[at].why];
}

void top_nic_why(const struct top_nic *nic, char *out, size_t size)
{
	size_t used = 0;

	*out = '\0';
	for (size_t i = 0; i < NIC_VALUES; i++) {
		int error = nic_error(nic, i);
		bool first = error;

		/* Each reason once, with all that it is of. */
		for (size_t k = 0; k < i && first; k++)
			first = nic_error(nic, k) != error;
		for (size_t k = i; k < NIC_VALUES && first && used < size; k++)
			if (nic_error(nic, k) == error)
				used += (size_t)snprintf(out + used, size - used, "%s%s",
							 k > i ? ", " :
							 used  ? "; " :
								 "",
							 nic_values[k].name);
		if (first && used < size)
			used += (size_t)snprintf(out + used, size - used, ": %s",
						 nic_meaning(error));
	}
}

void top_process_why(const struct top_process *process, char *out, size_t size)
{
	bool gone = process->why == ENOENT || process->why == ESRCH;

	*out = '\0';
	if (process->elsewhere)
		snprintf(out, size,
			 "PID, name, memory, CPU: no process here has the PID that the driver "
			 "tells; it is of "
			 "another PID namespace, or /proc hides it");
	else if (process->why)
		snprintf(out, size, "name, memory, CPU: %s",
			 gone ? "it has ended" : strerror(process->why));
	if (process->gpu_memory == WH_UNKNOWN)
		snprintf(out + strlen(out), size - strlen(out),
			 "%sGPU memory: the driver does not tell", *out ? "; " : "");
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

static void put_field(const char *row, const struct field *field, bool why)
{
	const char *reason = why ? reason_of(row, field) : NULL;
	const void *at = row + field->offset;
	uint64_t number;
	char text[128];
	double value;

	if (reason) {
		printf("[%s]", reason);
		return;
	}
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

void top_print_header(const struct top_table *table, const char *list)
{
	for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
		const struct field *field = find_field(table, at, strcspn(at, ","));

		if (field)
			printf("%s%s%s%s%s", at == list ? "" : ", ", field->name,
			       *field->unit ? " [" : "", field->unit, *field->unit ? "]" : "");
	}
	putchar('\n');
}

static const char *row_of(const struct top_table *table, const struct top_sample *sample, size_t at)
{
	return (const char *)sample + table->rows + at * table->step;
}

void top_print_rows(const struct top_table *table, const struct top_sample *sample,
		    const char *list, bool why)
{
	size_t count;

	memcpy(&count, (const char *)sample + table->count, sizeof(count));
	for (size_t i = 0; i < count; i++) {
		for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
			const struct field *field = find_field(table, at, strcspn(at, ","));

			if (at != list)
				fputs(", ", stdout);
			if (field)
				put_field(row_of(table, sample, i), field, why);
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

static json_t *field_to_json(const char *row, const struct field *field)
{
	const void *at = row + field->offset;
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

static json_t *row_to_json(const struct top_table *table, const struct top_sample *sample,
			   size_t at)
{
	json_t *object = json_object();

	for (size_t i = 0; i < table->field_count; i++)
		if (table->fields[i].key)
			json_object_set_new(
				object, table->fields[i].key,
				field_to_json(row_of(table, sample, at), &table->fields[i]));
	return object;
}

/* Names as in JSON, and why they are null. */
static json_t *reasons_to_json(const struct top_gpu *gpu)
{
	json_t *object = json_object();

	for (size_t i = 0; i < tables[GPUS].field_count; i++) {
		const struct field *field = &tables[GPUS].fields[i];
		const char *reason = reason_of((const char *)gpu, field);

		if (reason)
			json_object_set_new(object, field->key, json_string(reason));
	}
	return object;
}

/* Peers in their engines, routes in their peers. */
static json_t *engines_to_json(const struct top_sample *sample)
{
	const struct top_engines *from = &sample->engines;
	json_t *engines = json_array();
	size_t peer = 0, route = 0;

	for (size_t i = 0; i < from->engine_count; i++) {
		json_t *engine = row_to_json(&tables[ENGINES], sample, i), *peers = json_array();

		for (; peer < from->peer_count && from->peers[peer].engine_at == i; peer++) {
			json_t *object = row_to_json(&tables[PEERS], sample, peer),
			       *routes = json_array();

			for (; route < from->route_count && from->routes[route].peer_at == peer;
			     route++)
				json_array_append_new(routes,
						      row_to_json(&tables[ROUTES], sample, route));
			json_object_set_new(object, "routes", routes);
			json_array_append_new(peers, object);
		}
		json_object_set_new(engine, "peers", peers);
		json_array_append_new(engines, engine);
	}
	return engines;
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

static json_t *nic_reasons_to_json(const struct top_nic *nic)
{
	json_t *object = json_object();

	for (size_t i = 0; i < NIC_VALUES; i++)
		if (nic_error(nic, i))
			json_object_set_new(object, nic_values[i].key,
					    json_string(nic_meaning(nic_error(nic, i))));
	return object;
}

/* Of engines that did not answer, and of all if none could be asked. */
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

static json_t *process_to_json(const struct top_process *process)
{
	return json_pack("{s:o, s:o, s:i, s:o, s:o, s:o}", "pid",
			 process->pid < 0 ? json_null() : json_integer(process->pid), "name",
			 output_text(process->name), "gpu", process->gpu, "gpu_memory_bytes",
			 count(process->gpu_memory), "memory_bytes", count(process->memory),
			 "cpu_percent", real(process->cpu));
}

json_t *top_to_json(const struct top_sample *sample, bool why)
{
	json_t *object = output_new(), *gpus = json_array(), *nics = json_array(),
	       *processes = json_array();

	for (size_t i = 0; i < sample->gpu_count; i++) {
		json_t *gpu = row_to_json(&tables[GPUS], sample, i);

		if (why)
			json_object_set_new(gpu, "missing", reasons_to_json(&sample->gpus[i]));
		json_array_append_new(gpus, gpu);
	}
	for (size_t i = 0; i < sample->nic_count; i++) {
		json_t *nic = nic_to_json(&sample->nics[i]);

		if (why)
			json_object_set_new(nic, "missing", nic_reasons_to_json(&sample->nics[i]));
		json_array_append_new(nics, nic);
	}
	for (size_t i = 0; i < sample->process_count; i++) {
		json_t *process = process_to_json(&sample->processes[i]);
		char text[256];

		top_process_why(&sample->processes[i], text, sizeof(text));
		if (why)
			json_object_set_new(process, "missing", output_text(text));
		json_array_append_new(processes, process);
	}
	json_object_set_new(object, "host", output_text(sample->host));
	json_object_set_new(object, "nvidia_driver", output_text(sample->driver));
	json_object_set_new(object, "interval_seconds", real(sample->interval));
	json_object_set_new(object, "tcp_retransmits_per_s", real(sample->tcp_retransmits));
	json_object_set_new(object, "gpus", gpus);
	json_object_set_new(object, "nics", nics);
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
