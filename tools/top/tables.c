/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a sample and their fields. Each field is here once, for CSV, JSON and metrics; the
 * order is that of the output. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "platform/nvml.h"
#include "top/fields.h"

#define FIELDS(fields) fields, sizeof(fields) / sizeof((fields)[0])

/* ---- GPUs ------------------------------------------------------------------------------------ */

static void gpu_reasons(const void *at, char *out, size_t size)
{
	uint64_t reasons;

	memcpy(&reasons, at, sizeof(reasons));
	top_reasons(reasons, out, size);
}

static const char *gpu_meaning(int error)
{
	return wh_nvml_meaning(-error);
}

/* NAME: asked once, with the GPU's name. FIELD: asked by a question, with an errno of its own. */
#define NAME(member) .needs = TOP_NAMES, .offset = offsetof(struct top_gpu, member)
#define FIELD(member, question)                                                                    \
	.needs = TOP_NAMES | 1U << (question), .offset = offsetof(struct top_gpu, member),         \
	.why = offsetof(struct top_gpu, why.member)
#define GAUGE(name, unit, help) .metric = { name, "gauge", "", unit, help }
#define GAUGES(name, labels, unit, help) .metric = { name, "gauge", labels, unit, help }
#define COUNTERS(name, labels, unit, help) .metric = { name, "counter", labels, unit, help }

static const struct top_field gpu_fields[] = {
	{ "index", "", "index", FIELD_INT, "number in NVML", NAME(index) },
	{ "name", "", "name", FIELD_TEXT, "product name", NAME(name) },
	{ "uuid", "", "uuid", FIELD_TEXT, "unique id of the card", NAME(uuid) },
	{ "pci.bus_id", "", "pci_address", FIELD_TEXT, "PCI address", NAME(address) },
	{ "utilization.gpu", "%", "gpu_busy_percent", FIELD_INT, "time in which a kernel ran",
	  FIELD(busy, TOP_BUSY),
	  GAUGE("busy_ratio", 0.01, "Share of the time in which a kernel ran.") },
	{ "utilization.memory", "%", "memory_busy_percent", FIELD_INT,
	  "time in which memory was used", FIELD(memory_busy, TOP_BUSY),
	  GAUGE("memory_busy_ratio", 0.01, "Share of the time in which memory was used.") },
	{ "memory.used", "MiB", "memory_used_bytes", FIELD_COUNT, "memory in use",
	  FIELD(memory_used, TOP_MEMORY), GAUGE("memory_used_bytes", 1, "Memory in use.") },
	{ "memory.total", "MiB", "memory_total_bytes", FIELD_COUNT, "memory",
	  FIELD(memory_total, TOP_MEMORY), GAUGE("memory_bytes", 1, "Memory.") },
	{ "bar1.used", "MiB", "bar1_used_bytes", FIELD_COUNT, "BAR1 in use",
	  FIELD(bar1_used, TOP_BAR1), GAUGE("bar_used_bytes", 1, "BAR1 in use.") },
	{ "bar1.total", "MiB", "bar1_total_bytes", FIELD_COUNT,
	  "size of BAR1, through which PCI devices reach the memory", FIELD(bar1_total, TOP_BAR1),
	  GAUGE("bar_bytes", 1, "Size of BAR1, through which PCI devices reach the memory.") },
	{ "power.draw", "W", "power_watts", FIELD_REAL, "power", FIELD(power, TOP_POWER),
	  GAUGE("power_watts", 1, "Power.") },
	{ "power.limit", "W", "power_limit_watts", FIELD_REAL, "power limit in force",
	  FIELD(power_limit, TOP_LIMITS), GAUGE("power_limit_watts", 1, "Power limit in force.") },
	{ "temperature.gpu", "C", "temperature_celsius", FIELD_INT, "temperature",
	  FIELD(temperature, TOP_HEAT), GAUGE("temperature_celsius", 1, "Temperature.") },
	{ "clocks.sm", "MHz", "sm_clock_mhz", FIELD_INT, "clock of the multiprocessors",
	  FIELD(clock, TOP_CLOCK), GAUGES("clock_hertz", ",clock=\"sm\"", 1e6, "Clock rates.") },
	{ "clocks.max.sm", "MHz", "sm_clock_most_mhz", FIELD_INT,
	  "highest clock of the multiprocessors", FIELD(clock_most, TOP_LIMITS) },
	{ "clocks.mem", "MHz", "memory_clock_mhz", FIELD_INT, "clock of the memory",
	  FIELD(memory_clock, TOP_MEMORY_CLOCK),
	  GAUGES("clock_hertz", ",clock=\"memory\"", 1e6, NULL) },
	{ "clocks.max.mem", "MHz", "memory_clock_most_mhz", FIELD_INT,
	  "highest clock of the memory", FIELD(memory_clock_most, TOP_LIMITS) },
	{ "pcie.tx", "GB/s", "pcie_sent_gb_per_s", FIELD_REAL, "sent over PCIe",
	  FIELD(pcie_sent, TOP_PCIE),
	  GAUGES("pcie_bytes_per_second", ",direction=\"sent\"", 1e9,
		 "PCIe traffic with headers, over 20 ms.") },
	{ "pcie.rx", "GB/s", "pcie_received_gb_per_s", FIELD_REAL, "received over PCIe",
	  FIELD(pcie_received, TOP_PCIE),
	  GAUGES("pcie_bytes_per_second", ",direction=\"received\"", 1e9, NULL) },
	{ "pcie.max", "GB/s", "pcie_most_gb_per_s", FIELD_REAL,
	  "capacity of the PCIe link, each way", NAME(pcie_most),
	  GAUGE("pcie_capacity_bytes_per_second", 1e9, "Capacity of the PCIe link, each way.") },
	{ "nvlink.tx", "GB/s", "nvlink_sent_gb_per_s", FIELD_REAL, "sent over NVLink",
	  FIELD(link_sent, TOP_LINKS) },
	{ "nvlink.rx", "GB/s", "nvlink_received_gb_per_s", FIELD_REAL, "received over NVLink",
	  FIELD(link_received, TOP_LINKS) },
	/* metrics only: the counters behind the rates */
	{ "", "", NULL, FIELD_COUNT, "", NAME(link_sent_kib),
	  COUNTERS("nvlink_bytes_total", ",direction=\"sent\"", 1024, "Data over all NVLinks.") },
	{ "", "", NULL, FIELD_COUNT, "", NAME(link_received_kib),
	  COUNTERS("nvlink_bytes_total", ",direction=\"received\"", 1024, NULL) },
	{ "nvlink.max", "GB/s", "nvlink_most_gb_per_s", FIELD_REAL,
	  "capacity of all NVLinks, each way", NAME(link_most),
	  GAUGE("nvlink_capacity_bytes_per_second", 1e9, "Capacity of all NVLinks, each way.") },
	{ "ecc.corrected", "", "ecc_corrected", FIELD_COUNT,
	  "corrected memory errors since the driver was loaded", FIELD(ecc_corrected, TOP_ERRORS),
	  COUNTERS("ecc_errors_total", ",corrected=\"yes\"", 1,
		   "Memory errors since the driver was loaded.") },
	{ "ecc.uncorrected", "", "ecc_uncorrected", FIELD_COUNT,
	  "uncorrected memory errors since the driver was loaded",
	  FIELD(ecc_uncorrected, TOP_ERRORS),
	  COUNTERS("ecc_errors_total", ",corrected=\"no\"", 1, NULL) },
	{ "pcie.replays", "", "pcie_replays", FIELD_COUNT, "PCIe packets sent again",
	  FIELD(pcie_replays, TOP_ERRORS),
	  COUNTERS("pcie_replays_total", "", 1, "PCIe packets sent again.") },
	{ "clocks_event_reasons", "", "clock_reasons", FIELD_COUNT, "why the clocks are not higher",
	  FIELD(reasons, TOP_REASONS), .text = gpu_reasons },
	{ "problem", "", "problem", FIELD_TEXT, "why the GPU cannot be asked", NAME(problem) },
};
#undef NAME
#undef FIELD

/* ---- NICs ------------------------------------------------------------------------------------ */

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

#define NAME(member) .offset = offsetof(struct top_nic, member)
#define FIELD(member) NAME(member), .why = offsetof(struct top_nic, why.member)

static const struct top_field nic_fields[] = {
	{ "name", "", "name", FIELD_TEXT, "name", NAME(name) },
	{ "netdev", "", "netdev", FIELD_TEXT, "network interface", NAME(netdev) },
	{ "rdma", "", "rdma", FIELD_FLAG, "has RDMA", NAME(rdma) },
	{ "state", "", "state", FIELD_TEXT, "state of port 1 or of the interface", FIELD(state) },
	{ "out", "GB/s", "sent_gb_per_s", FIELD_REAL, "sent", FIELD(sent) },
	{ "in", "GB/s", "received_gb_per_s", FIELD_REAL, "received", FIELD(received) },
	{ "rate at most", "GB/s", "most_gb_per_s", FIELD_REAL, "capacity of the link", FIELD(most),
	  GAUGE("capacity_bytes_per_second", 1e9, "Capacity of the link, each way.") },
	{ "", "B", "sent_bytes", FIELD_COUNT, "sent so far", NAME(sent_bytes),
	  COUNTERS("bytes_total", ",direction=\"sent\"", 1,
		   "Bytes of port 1, or of the interface.") },
	{ "", "B", "received_bytes", FIELD_COUNT, "received so far", NAME(received_bytes),
	  COUNTERS("bytes_total", ",direction=\"received\"", 1, NULL) },
	{ "errors/s", "1/s", "errors_per_s", FIELD_REAL, "broken or dropped packets",
	  FIELD(errors) },
	{ "retransmits/s", "1/s", "retransmits_per_s", FIELD_REAL, "packets sent again",
	  FIELD(retransmits) },
	/* metrics only: the counters behind the rates */
	{ "", "", NULL, FIELD_COUNT, "", NAME(error_count),
	  COUNTERS("errors_total", "", 1, "Packets that were broken or dropped.") },
	{ "", "", NULL, FIELD_COUNT, "", NAME(retransmit_count),
	  COUNTERS("retransmits_total", "", 1, "Packets that RDMA sent again.") },
};
#undef NAME
#undef FIELD

/* ---- engines, peers, routes ------------------------------------------------------------------ */

#define FIELD(member) .offset = offsetof(struct top_engine, member)
static const struct top_field engine_fields[] = {
	{ "engine", "", "name", FIELD_TEXT, "name", FIELD(name) },
	{ "epoch", "", "epoch", FIELD_TEXT, "changes at every start", FIELD(epoch) },
	{ "pid", "", "pid", FIELD_INT, "process id", FIELD(pid) },
	{ "url", "", "url", FIELD_TEXT, "URL it listens at", FIELD(url) },
	{ "uptime", "s", "uptime_seconds", FIELD_REAL, "time since the engine was opened",
	  FIELD(uptime) },
	{ "read", "GB/s", "read_gb_per_s", FIELD_REAL, "read from peers", FIELD(read) },
	{ "written", "GB/s", "written_gb_per_s", FIELD_REAL, "written to peers", FIELD(written) },
	{ "served.read", "GB/s", "served_read_gb_per_s", FIELD_REAL, "read by peers over TCP",
	  FIELD(served_read) },
	{ "served.written", "GB/s", "served_written_gb_per_s", FIELD_REAL,
	  "written by peers over TCP", FIELD(served_written) },
	{ "batches.rate", "1/s", "batches_per_s", FIELD_REAL, "batches completed",
	  FIELD(batch_rate) },
	{ "small.p50", "us", "small_p50_us", FIELD_REAL,
	  "median duration of batches of up to 64 KiB", FIELD(small_p50) },
	{ "small.p99", "us", "small_p99_us", FIELD_REAL,
	  "99th percentile of batches of up to 64 KiB", FIELD(small_p99) },
	{ "large.p50", "us", "large_p50_us", FIELD_REAL, "median duration of larger batches",
	  FIELD(large_p50) },
	{ "large.p99", "us", "large_p99_us", FIELD_REAL, "99th percentile of larger batches",
	  FIELD(large_p99) },
	{ "read.total", "B", "read_bytes", FIELD_COUNT, "bytes read since the engine was opened",
	  FIELD(read_bytes) },
	{ "written.total", "B", "written_bytes", FIELD_COUNT, "bytes written likewise",
	  FIELD(written_bytes) },
	{ "served.read.total", "B", "served_read_bytes", FIELD_COUNT,
	  "bytes read by peers over TCP likewise", FIELD(served_read_bytes) },
	{ "served.written.total", "B", "served_written_bytes", FIELD_COUNT,
	  "bytes written by peers over TCP likewise", FIELD(served_written_bytes) },
	{ "staged", "B", "staged_bytes", FIELD_COUNT,
	  "bytes of GPU memory that went through pinned memory", FIELD(staged_bytes) },
	{ "batches", "", "batches", FIELD_COUNT, "batches completed", FIELD(batches) },
	{ "failed", "", "failed", FIELD_COUNT, "batches that failed", FIELD(failed) },
	{ "cancelled", "", "cancelled", FIELD_COUNT, "batches that were cancelled",
	  FIELD(cancelled) },
	{ "attempts", "", "attempts", FIELD_COUNT, "completed parts of batches", FIELD(attempts) },
	{ "errors", "", "errors", FIELD_COUNT, "failed parts of batches", FIELD(errors) },
	{ "reroutes", "", "reroutes", FIELD_COUNT,
	  "parts of batches that moved to another transport", FIELD(reroutes) },
	{ "unfinished", "", "unfinished", FIELD_COUNT,
	  "batches in flight, counted once for every local region of a batch", FIELD(unfinished) },
	{ "inflight", "B", "inflight_bytes", FIELD_COUNT,
	  "bytes in flight of batches larger than 64 KiB", FIELD(in_flight) },
	{ "peers", "", "peers_open", FIELD_COUNT, "peers open", FIELD(peers) },
	{ "peers.lost", "", "peers_lost", FIELD_COUNT, "connections to peers that broke",
	  FIELD(peers_lost) },
	{ "sessions", "", "sessions", FIELD_COUNT, "engines connected to this one",
	  FIELD(sessions) },
	{ "connections", "", "connections", FIELD_COUNT, "data connections opened so far",
	  FIELD(connections) },
	{ "regions", "", "regions", FIELD_COUNT, "regions registered", FIELD(regions) },
	{ "regions.size", "B", "region_bytes", FIELD_COUNT, "bytes in regions",
	  FIELD(region_bytes) },
	{ "windows", "", "windows", FIELD_COUNT, "CPU windows open", FIELD(windows) },
	{ "left_out", "", "left_out", FIELD_COUNT, "peers and sessions left out of its answer",
	  FIELD(left_out) },
};
#undef FIELD

#define FIELD(member) .offset = offsetof(struct top_peer, member)
static const struct top_field peer_fields[] = {
	{ "engine", "", NULL, FIELD_TEXT, "engine that opened the peer", FIELD(engine) },
	{ "epoch", "", NULL, FIELD_TEXT, "epoch of that engine", FIELD(epoch) },
	{ "peer", "", "name", FIELD_TEXT, "name", FIELD(name) },
	{ "address", "", "address", FIELD_TEXT, "address", FIELD(address) },
	{ "state", "", "state", FIELD_TEXT, "connected, lost or stale", FIELD(state) },
	{ "read", "GB/s", "read_gb_per_s", FIELD_REAL, "read from the peer", FIELD(read) },
	{ "written", "GB/s", "written_gb_per_s", FIELD_REAL, "written to the peer",
	  FIELD(written) },
	{ "batches.rate", "1/s", "batches_per_s", FIELD_REAL, "batches completed",
	  FIELD(batch_rate) },
	{ "small.p50", "us", "small_p50_us", FIELD_REAL,
	  "median duration of batches of up to 64 KiB", FIELD(small_p50) },
	{ "small.p99", "us", "small_p99_us", FIELD_REAL,
	  "99th percentile of batches of up to 64 KiB", FIELD(small_p99) },
	{ "large.p50", "us", "large_p50_us", FIELD_REAL, "median duration of larger batches",
	  FIELD(large_p50) },
	{ "large.p99", "us", "large_p99_us", FIELD_REAL, "99th percentile of larger batches",
	  FIELD(large_p99) },
	{ "read.total", "B", "read_bytes", FIELD_COUNT, "bytes read since the peer was opened",
	  FIELD(read_bytes) },
	{ "written.total", "B", "written_bytes", FIELD_COUNT, "bytes written likewise",
	  FIELD(written_bytes) },
	{ "batches", "", "batches", FIELD_COUNT, "batches completed", FIELD(batches) },
	{ "failed", "", "failed", FIELD_COUNT, "batches that failed", FIELD(failed) },
	{ "cancelled", "", "cancelled", FIELD_COUNT, "batches that were cancelled",
	  FIELD(cancelled) },
	{ "attempts", "", "attempts", FIELD_COUNT, "completed parts of batches", FIELD(attempts) },
	{ "errors", "", "errors", FIELD_COUNT, "failed parts of batches", FIELD(errors) },
	{ "reroutes", "", "reroutes", FIELD_COUNT,
	  "parts of batches that moved to another transport", FIELD(reroutes) },
	{ "lost", "", "lost", FIELD_COUNT, "times the connection broke", FIELD(lost) },
	{ "inflight", "B", "inflight_bytes", FIELD_COUNT,
	  "bytes in flight of batches larger than 64 KiB", FIELD(in_flight) },
};
#undef FIELD

#define FIELD(member) .offset = offsetof(struct top_route, member)
static const struct top_field route_fields[] = {
	{ "engine", "", NULL, FIELD_TEXT, "engine that submitted the transfers", FIELD(engine) },
	{ "epoch", "", NULL, FIELD_TEXT, "epoch of that engine", FIELD(epoch) },
	{ "peer", "", NULL, FIELD_TEXT, "name of the peer", FIELD(peer) },
	{ "address", "", NULL, FIELD_TEXT, "address of the peer", FIELD(address) },
	{ "transport", "", "transport", FIELD_TEXT,
	  "name of the transport: self, cuda, shm, rdma, tcp", FIELD(transport) },
	{ "read", "GB/s", "read_gb_per_s", FIELD_REAL, "read over it", FIELD(read) },
	{ "written", "GB/s", "written_gb_per_s", FIELD_REAL, "written over it", FIELD(written) },
	{ "read.total", "B", "read_bytes", FIELD_COUNT, "bytes read since the peer was opened",
	  FIELD(read_bytes) },
	{ "written.total", "B", "written_bytes", FIELD_COUNT, "bytes written likewise",
	  FIELD(written_bytes) },
	{ "reads", "", "reads", FIELD_COUNT, "read transfers and blocks", FIELD(reads) },
	{ "writes", "", "writes", FIELD_COUNT, "write transfers and blocks", FIELD(writes) },
	{ "attempts", "", "attempts", FIELD_COUNT, "completed parts of batches", FIELD(attempts) },
	{ "errors", "", "errors", FIELD_COUNT, "failed parts of batches", FIELD(errors) },
	{ "reroutes", "", "reroutes", FIELD_COUNT,
	  "parts of batches that moved to another transport", FIELD(reroutes) },
};
#undef FIELD

/* ---- tables ---------------------------------------------------------------------------------- */

#define ROWS(rows, count)                                                                          \
	offsetof(struct top_sample, rows), sizeof(((struct top_sample *)NULL)->rows[0]),           \
		offsetof(struct top_sample, count)

const struct top_table top_tables[] = {
	[TOP_GPU_TABLE] = { "gpus", "wherry_gpu_", FIELDS(gpu_fields), ROWS(gpus, gpu_count),
			    gpu_meaning },
	[TOP_NIC_TABLE] = { NULL, "wherry_nic_", FIELDS(nic_fields), ROWS(nics, nic_count),
			    nic_meaning },
	[TOP_ENGINE_TABLE] = { "engines", NULL, FIELDS(engine_fields),
			       ROWS(engines.engines, engines.engine_count), NULL },
	[TOP_PEER_TABLE] = { "peers", NULL, FIELDS(peer_fields),
			     ROWS(engines.peers, engines.peer_count), NULL },
	[TOP_ROUTE_TABLE] = { "routes", NULL, FIELDS(route_fields),
			      ROWS(engines.routes, engines.route_count), NULL },
};

const struct top_table *top_table(const char *name)
{
	for (size_t i = 0; i < sizeof(top_tables) / sizeof(top_tables[0]); i++)
		if (top_tables[i].name && strcmp(top_tables[i].name, name) == 0)
			return &top_tables[i];
	return NULL;
}
