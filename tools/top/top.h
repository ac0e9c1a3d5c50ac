/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of wherry top share: samples, which threads take; their views, as lines of text,
 * CSV and JSON; the terminal. */
#ifndef TOOLS_TOP_TOP_H
#define TOOLS_TOP_TOP_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "observe.h"
#include "screen.h"
#include "topology/topology.h"

#define TOP_GPUS 64
#define TOP_NICS 64
#define TOP_PROCESSES 512
#define TOP_ENGINES 64
#define TOP_PEERS 2048
#define TOP_ROUTES (4 * TOP_PEERS)
#define TOP_SILENT 16
#define TOP_LINES 4096

/* ---- samples --------------------------------------------------------------------------------- */

/* The errno with which NVML refused each number of a GPU; 0: known, or not asked. */
struct top_why {
	uint8_t busy, memory_busy, memory_used, memory_total, bar1_used, bar1_total, power,
		power_limit, temperature, clock, clock_most, memory_clock, memory_clock_most,
		pcie_sent, pcie_received, link_sent, link_received, ecc_corrected, ecc_uncorrected,
		pcie_replays, reasons;
};

/* Unknown values are -1, WH_UNKNOWN or NAN. Rates are GB/s over the last interval. */
struct top_gpu {
	int index;
	char name[WH_NAME], uuid[WH_NAME], address[WH_ADDRESS];
	char problem[256];
	int busy, memory_busy; /* % */
	uint64_t memory_used, memory_total, bar1_used, bar1_total;
	double power, power_limit; /* W */
	int temperature; /* C */
	int clock, clock_most, memory_clock, memory_clock_most; /* MHz */
	double pcie_sent, pcie_received, pcie_most;
	double link_sent, link_received, link_most;
	uint64_t ecc_corrected, ecc_uncorrected, pcie_replays;
	uint64_t reasons; /* enum wh_nvml_reason */
	/* The counters that the next rates start from. */
	uint64_t link_sent_kib, link_received_kib;
	struct top_why why;
};

/* The errno with which the kernel refused each number of a NIC; EOPNOTSUPP: counted for all
 * interfaces together; 0: known. */
struct top_nic_why {
	uint8_t state, most, sent, received, errors, retransmits;
};

struct top_nic {
	char name[WH_NAME], netdev[WH_NAME], state[WH_NAME];
	int rdma;
	double sent, received, most;
	double errors, retransmits; /* a second */
	uint64_t sent_bytes, received_bytes, error_count, retransmit_count;
	struct top_nic_why why;
};

/* Growth of a counter, per second; NAN: unknown, or the counter was reset. */
static inline double top_rate(uint64_t before, uint64_t after, double seconds)
{
	return before == WH_UNKNOWN || after == WH_UNKNOWN || after < before || !(seconds > 0) ?
		       (double)NAN :
		       (double)(after - before) / seconds;
}

/* Is the link up? 1, 0; -1: unknown. */
int top_nic_up(const struct top_nic *nic);

struct top_process {
	int pid;
	int gpu; /* index in NVML; -1: none */
	uint64_t gpu_memory, memory;
	double cpu; /* % of one CPU */
	char name[WH_NAME];
	uint64_t ticks;
	uint8_t why; /* the errno with which /proc refused it; 0: known */
	bool elsewhere; /* in another PID namespace: `pid` is -1 */
};

/* Why values of a process are unknown, such as "name, memory, CPU: it has ended"; "": all are
 * known. */
void top_process_why(const struct top_process *process, char *out, size_t size);

/* One engine's totals, and its rates over the last interval. */
struct top_engine {
	char name[WH_NAME], url[WH_OBSERVED_URL], epoch[20];
	int pid;
	double uptime; /* s */
	double read, written, served_read, served_written;
	double batch_rate; /* a second */
	/* us, from submission to completion, over the interval: batches of up to 64 KiB, and larger
	 * ones */
	double small_p50, small_p99, large_p50, large_p99;
	uint64_t read_bytes, written_bytes, served_read_bytes, served_written_bytes, staged_bytes;
	uint64_t batches, failed, cancelled, attempts, errors, reroutes, unfinished, in_flight;
	uint64_t peers, sessions, peers_lost, connections, regions, region_bytes, windows, left_out;
};

struct top_peer {
	size_t engine_at, first_route;
	char engine[WH_NAME], epoch[20], name[WH_NAME], address[WH_NAME], state[12];
	double read, written, batch_rate;
	double small_p50, small_p99, large_p50, large_p99;
	uint64_t read_bytes, written_bytes, batches, failed, cancelled, attempts, errors, reroutes,
		lost;
	uint64_t in_flight;
};

/* One transport that batches to a peer use. */
struct top_route {
	size_t peer_at;
	char engine[WH_NAME], epoch[20], peer[WH_NAME], address[WH_NAME], transport[16];
	double read, written;
	uint64_t read_bytes, written_bytes, reads, writes, attempts, errors, reroutes;
};

/* Peers are sorted by engine, routes by peer. */
struct top_engines {
	bool asked;
	size_t engine_count, peer_count, route_count;
	size_t silent; /* engines that did not answer */
	struct observe_silent silents[TOP_SILENT]; /* the first of them */
	char why[2 * OBSERVE_WHY]; /* why none could be asked; "" */
	size_t left_out; /* engines and peers that did not fit */
	struct top_engine engines[TOP_ENGINES];
	struct top_peer peers[TOP_PEERS];
	struct top_route routes[TOP_ROUTES];
};

struct top_sample {
	double time; /* s, CLOCK_MONOTONIC; 0: none taken yet */
	double interval;
	char host[WH_NAME], driver[WH_NAME];
	char note[256]; /* why no GPU could be asked; "" */
	double tcp_retransmits; /* a second, of the whole machine */
	uint64_t tcp_retransmit_count;
	size_t gpu_count, nic_count, process_count;
	struct top_gpu gpus[TOP_GPUS];
	struct top_nic nics[TOP_NICS];
	struct top_process processes[TOP_PROCESSES];
	struct top_engines engines; /* last, so that copies can leave its unused rows out */
};

/* Rows of engines' answers, with rates since the answers of `seconds` before. Both are merged
 * (observe_merge()). */
void top_engines_rows(const struct observed *now, const struct observed *before, double seconds,
		      struct top_engines *out);

/* Questions to GPUs, in the order of asking; each costs one or two calls of NVML. */
enum top_question {
	TOP_BUSY,
	TOP_POWER,
	TOP_LINKS,
	TOP_MEMORY,
	TOP_CLOCK,
	TOP_PCIE,
	TOP_PROCESS_LIST,
	TOP_HEAT,
	TOP_REASONS,
	TOP_BAR1,
	TOP_MEMORY_CLOCK,
	TOP_ERRORS,
	TOP_LIMITS,
	TOP_QUESTIONS,
};
#define TOP_NAMES (1U << TOP_QUESTIONS) /* only which GPUs there are */
#define TOP_EVERYTHING ((TOP_NAMES << 1) - 1)

/* Start threads that take a sample every `interval` seconds: of engines that observe_all() finds in
 * `engines`, and of GPUs what `needs` has bits for (0: nothing). If a driver hangs, its GPUs keep
 * their last sample, and everything else goes on. */
struct top_sampler;
struct top_sampler *top_start(const struct wh_tree *tree, double interval, const char *engines,
			      unsigned needs);

/* Copy the newest sample once each thread has taken `turns` samples, or after `seconds`. The first
 * sample has no rates. False: there is none yet. */
bool top_take(struct top_sampler *sampler, uint64_t turns, double seconds, struct top_sample *out);

/* Grows whenever a thread has taken its part of a sample. */
uint64_t top_turns(struct top_sampler *sampler);

void top_interval(struct top_sampler *sampler, double interval);

/* Stop the threads. False: one hangs in a driver; then only _exit() ends the process. */
bool top_stop(struct top_sampler *sampler);

/* ---- views ----------------------------------------------------------------------------------- */

struct top_line {
	char text[400]; /* UTF-8 */
	enum tint tint;
	bool plain; /* ignore `tint` */
};

enum top_order {
	TOP_BY_GPU_MEMORY,
	TOP_BY_CPU,
	TOP_BY_MEMORY,
	TOP_BY_PID,
	TOP_BY_NAME,
	TOP_ORDERS
};

enum top_peer_order {
	TOP_PEERS_BY_TRAFFIC,
	TOP_PEERS_BY_ERRORS,
	TOP_PEERS_BY_LATENCY,
	TOP_PEERS_BY_NAME,
	TOP_PEER_ORDERS
};

struct top_view {
	enum top_order order; /* of processes */
	enum top_peer_order peer_order;
	bool reverse; /* both */
	char filter[WH_NAME]; /* processes and peers whose name has this in it; "": all */
	bool ascii;
	bool help;
	bool paused;
	bool all_peers; /* not only the first eight */
	bool why; /* explain unknown values */
};

/* The sample as at most `most` lines. How many. */
size_t top_render(const struct top_sample *sample, const struct top_view *view,
		  struct top_line *lines, size_t most);

/* ---- fields, by name ------------------------------------------------------------------------- */

/* A table by its name: gpus, engines, peers, routes; NULL: no such table. */
struct top_table;
const struct top_table *top_table(const char *name);

/* Does a list such as "index,name,power.draw" name an unknown field? `word`: the first one. */
bool top_unknown_field(const struct top_table *table, const char *fields, char word[WH_NAME]);

/* The questions that these fields need answers to, as bits; 0: none. */
unsigned top_needs(const struct top_table *table, const char *fields);

/* All fields of a table: as a list with commas; printed with units and help. */
void top_all_fields(const struct top_table *table, char *out, size_t size);
void top_describe_fields(const struct top_table *table);

/* Print a line of names with units, and a line for each row. `why`: the reason in place of an
 * unknown value. */
void top_print_header(const struct top_table *table, const char *fields);
void top_print_rows(const struct top_table *table, const struct top_sample *sample,
		    const char *fields, bool why);

/* Why values are unknown, such as "utilization.gpu, power.draw: no permission; ..."; "": all are
 * known. */
void top_why(const struct top_gpu *gpu, char *out, size_t size);
void top_nic_why(const struct top_nic *nic, char *out, size_t size);

/* What limits the clocks, such as "power+heat"; "none"; "-": unknown. */
void top_reasons(uint64_t reasons, char *out, size_t size);

json_t *top_to_json(const struct top_sample *sample, bool why);

/* ---- the terminal ---------------------------------------------------------------------------- */

/* Show samples until the user quits. An exit code. */
int top_interactive(struct top_sampler *sampler, const struct screen *screen, double interval,
		    bool why);

#endif
