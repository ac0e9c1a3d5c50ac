/* SPDX-License-Identifier: Apache-2.0 */
/* A sample as lines of text, at most 80 columns wide where values are of ordinary length. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "platform/nvml.h"
#include "top/top.h"
#include "topo/topo.h"

/* ---- lines ----------------------------------------------------------------------------------- */

struct writer {
	struct top_line *lines;
	size_t count, most;
};

__attribute__((format(printf, 3, 4))) static void writer_line(struct writer *writer, int tint,
							      const char *format, ...)
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
static void bar_text(double share, bool ascii, char out[3 * BAR + 1])
{
	int full = share > 0 ? (int)(fmin(share, 1) * BAR + 0.5) : 0, used = 0;

	for (int i = 0; i < BAR; i++)
		used += snprintf(out + used, (size_t)(3 * BAR + 1 - used), "%s",
				 i >= full ? " " :
				 ascii     ? "#" :
					     "\u2588");
}

static void number_text(char out[16], const char *format, double value)
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

/* "12.30  20%": a rate in GB/s, and its share of the link's capacity. */
static void rate_text(char out[24], double value, double most)
{
	if (isnan(value))
		snprintf(out, 24, "-");
	else if (isnan(most) || !(most > 0))
		snprintf(out, 24, "%.2f", value);
	else
		snprintf(out, 24, "%.2f %3.0f%%", value, value / most * 100);
}

/* Explain the values shown as '-'. */
static void why_line(struct writer *writer, const char *text)
{
	if (*text)
		writer_line(writer, TINT_FAINT, "      -: %s", text);
}

static void gpu_lines(struct writer *writer, const struct top_gpu *gpu, const struct top_view *view)
{
	char busy[16], power[16], limit[16], heat[16], clock[16], used[32], total[32], bar1[32],
		reasons[64], errors[24], rates[4][24], shown[3 * BAR + 1], why[380];
	bool hot = gpu->reasons != WH_UNKNOWN &&
		   gpu->reasons & ~(uint64_t)(WH_NVML_IDLE | WH_NVML_CLOCKS_SET);
	bool broken = gpu->ecc_uncorrected != WH_UNKNOWN && gpu->ecc_uncorrected;

	if (*gpu->problem) {
		writer_line(writer, TINT_BAD, "GPU%-2d %s", gpu->index, gpu->problem);
		return;
	}
	number_text(busy, "%.0f%%", or_nan(gpu->busy));
	number_text(power, "%.0f", gpu->power);
	number_text(limit, "%.0f", gpu->power_limit);
	number_text(heat, "%.0f", or_nan(gpu->temperature));
	number_text(clock, "%.0f", or_nan(gpu->clock));
	topo_size(used, sizeof(used), gpu->memory_used);
	topo_size(total, sizeof(total), gpu->memory_total);
	topo_size(bar1, sizeof(bar1), gpu->bar1_used);
	top_reasons(gpu->reasons, reasons, sizeof(reasons));
	snprintf(errors, sizeof(errors), "-");
	if (gpu->ecc_uncorrected != WH_UNKNOWN)
		snprintf(errors, sizeof(errors), "%" PRIu64, gpu->ecc_uncorrected);
	rate_text(rates[0], gpu->pcie_sent, gpu->pcie_most);
	rate_text(rates[1], gpu->pcie_received, gpu->pcie_most);
	rate_text(rates[2], gpu->link_sent, gpu->link_most);
	rate_text(rates[3], gpu->link_received, gpu->link_most);
	bar_text(gpu->busy < 0 ? 0 : gpu->busy / 100.0, view->ascii, shown);
	writer_line(writer,
		    broken ? TINT_BAD :
		    hot    ? TINT_POOR :
			     -1,
		    "GPU%-2d %-18.18s %4s %s %9s/%-8s %4s/%-4s W %3s C %5s MHz", gpu->index,
		    gpu->name, busy, shown, used, total, power, limit, heat, clock);
	writer_line(writer, -1, "      PCIe %12s out %12s in   NVLink %12s out %12s in", rates[0],
		    rates[1], rates[2], rates[3]);
	writer_line(writer, broken ? TINT_BAD : -1,
		    "      BAR1 %s in use, ECC uncorrected %s, clocks limited by %s", bar1, errors,
		    reasons);
	top_why(gpu, why, sizeof(why));
	if (view->why)
		why_line(writer, why);
}

static void nic_lines(struct writer *writer, const struct top_nic *nic, const struct top_view *view)
{
	bool down = top_nic_up(nic) != 1;
	char rates[2][24], errors[16], again[16], shown[3 * BAR + 1], why[380];
	double most =
		fmax(isnan(nic->sent) ? 0 : nic->sent, isnan(nic->received) ? 0 : nic->received);

	rate_text(rates[0], nic->sent, nic->most);
	rate_text(rates[1], nic->received, nic->most);
	number_text(errors, "%.0f", nic->errors);
	number_text(again, "%.0f", nic->retransmits);
	bar_text(isnan(nic->most) ? 0 : most / nic->most, view->ascii, shown);
	writer_line(writer,
		    down            ? TINT_FAINT :
		    nic->errors > 0 ? TINT_POOR :
				      -1,
		    "%-10s %-7s %12s out %12s in %s errors/s %s, retransmits/s %s", nic->name,
		    *nic->state ? nic->state : "-", rates[0], rates[1], shown, errors, again);
	top_nic_why(nic, why, sizeof(why));
	if (view->why)
		why_line(writer, why);
}

/* ---- engines --------------------------------------------------------------------------------- */

#define BUSIEST 8

static double peer_traffic(const struct top_peer *peer)
{
	double rate = peer->read + peer->written;

	return isnan(rate) ? 0 : rate;
}

static double peer_slowest(const struct top_peer *peer)
{
	double small = isnan(peer->small_p99) ? -1 : peer->small_p99,
	       large = isnan(peer->large_p99) ? -1 : peer->large_p99;

	return fmax(small, large);
}

/* The order that the functions for qsort() below apply. */
static _Thread_local const struct top_view *sorting;

static int larger_first(double one, double other)
{
	return (one < other) - (one > other);
}

/* Ties are broken by traffic, then by all bytes moved, then by the order in the sample. */
static int compare_peers(const void *a, const void *b)
{
	const struct top_peer *one = *(struct top_peer *const *)a,
			      *other = *(struct top_peer *const *)b;
	int order = 0;

	switch (sorting->peer_order) {
	case TOP_PEERS_BY_ERRORS:
		order = larger_first((double)(one->errors + one->failed + one->lost),
				     (double)(other->errors + other->failed + other->lost));
		break;
	case TOP_PEERS_BY_LATENCY:
		order = larger_first(peer_slowest(one), peer_slowest(other));
		break;
	case TOP_PEERS_BY_NAME:
		order = strcmp(one->name, other->name);
		break;
	default:
		break;
	}
	if (!order && sorting->peer_order != TOP_PEERS_BY_NAME)
		order = larger_first(peer_traffic(one), peer_traffic(other));
	if (!order && sorting->peer_order != TOP_PEERS_BY_NAME)
		order = larger_first((double)(one->read_bytes + one->written_bytes),
				     (double)(other->read_bytes + other->written_bytes));
	if (!order)
		order = (one > other) - (one < other);
	return sorting->reverse ? -order : order;
}

/* Items of text that share lines of at most COLUMNS columns. */
#define COLUMNS 80
#define INDENT 6
struct items {
	struct writer *writer;
	int tint;
	char text[COLUMNS + 1];
	size_t used;
};

static void items_end(struct items *items)
{
	if (items->used)
		writer_line(items->writer, items->tint, "%*s%s", INDENT, "", items->text);
	items->used = 0;
}

__attribute__((format(printf, 2, 3))) static void items_add(struct items *items, const char *format,
							    ...)
{
	char item[COLUMNS - INDENT + 1];
	va_list list;

	va_start(list, format);
	vsnprintf(item, sizeof(item), format, list);
	va_end(list);
	if (INDENT + items->used + strlen("; ") + strlen(item) > COLUMNS)
		items_end(items);
	items->used +=
		(size_t)snprintf(items->text + items->used, sizeof(items->text) - items->used,
				 "%s%s", items->used ? "; " : "", item);
}

/* "tcp 0.00/1.20; shm 3.00/0.00": GB/s read and written over each transport. */
static void route_items(struct items *items, const struct top_engines *all,
			const struct top_peer *peer)
{
	for (size_t i = peer->first_route; i < all->route_count; i++) {
		const struct top_route *route = &all->routes[i];
		char read[16], written[16];

		if (route->peer_at != (size_t)(peer - all->peers))
			break;
		number_text(read, "%.2f", route->read);
		number_text(written, "%.2f", route->written);
		items_add(items, "%s %s/%s", route->transport, read, written);
	}
}

static void peer_lines(struct writer *writer, const struct top_engines *all,
		       const struct top_peer *peer)
{
	bool up = strcmp(peer->state, "connected") == 0;
	int tint = !up ? TINT_BAD : peer->failed || peer->errors ? TINT_POOR : -1;
	struct items items = { .writer = writer, .tint = tint };
	char batches[16], p50[16], p99[16];

	number_text(batches, "%.0f", peer->batch_rate);
	number_text(p50, "%.0f", isnan(peer->large_p50) ? peer->small_p50 : peer->large_p50);
	number_text(p99, "%.0f", isnan(peer->large_p99) ? peer->small_p99 : peer->large_p99);
	writer_line(writer, tint, "  %-20.20s %-21.21s %-9s failed %" PRIu64 "; errors %" PRIu64,
		    peer->name, peer->address, peer->state, peer->failed, peer->errors);
	route_items(&items, all, peer);
	items_add(&items, "%s batches/s", batches);
	items_add(&items, "p50 %s, p99 %s us", p50, p99);
	items_add(&items, "lost %" PRIu64, peer->lost);
	items_add(&items, "rerouted %" PRIu64, peer->reroutes);
	items_end(&items);
}

static bool filter_passes(const struct top_view *view, const char *name)
{
	return !*view->filter || strcasestr(name, view->filter);
}

static void engine_peers(struct writer *writer, const struct top_engines *all, size_t engine,
			 const struct top_view *view)
{
	static const char *const orders[] = { "traffic", "errors", "latency", "name" };
	const struct top_peer **list = calloc(all->peer_count + 1, sizeof(struct top_peer *));
	bool whole = filter_passes(view, all->engines[engine].name);
	size_t count = 0, shown;

	for (size_t i = 0; list && i < all->peer_count; i++)
		if (all->peers[i].engine_at == engine &&
		    (whole || filter_passes(view, all->peers[i].name)))
			list[count++] = &all->peers[i];
	sorting = view;
	if (count)
		qsort(list, count, sizeof(struct top_peer *), compare_peers);
	shown = view->all_peers || count <= BUSIEST ? count : BUSIEST;
	for (size_t i = 0; i < shown; i++)
		peer_lines(writer, all, list[i]);
	if (shown < count)
		writer_line(writer, TINT_FAINT, "  and %zu more peers (key e), by %s%s (key p)",
			    count - shown, orders[view->peer_order],
			    view->reverse ? ", reversed" : "");
	free(list);
}

static void engine_lines(struct writer *writer, const struct top_engines *all, size_t at,
			 const struct top_view *view)
{
	const struct top_engine *engine = &all->engines[at];
	char read[16], written[16], served[2][16], batches[16], times[4][16], size[32],
		in_flight[32];

	number_text(read, "%.2f", engine->read);
	number_text(written, "%.2f", engine->written);
	number_text(served[0], "%.2f", engine->served_read);
	number_text(served[1], "%.2f", engine->served_written);
	number_text(batches, "%.0f", engine->batch_rate);
	number_text(times[0], "%.1f", engine->small_p50);
	number_text(times[1], "%.1f", engine->small_p99);
	number_text(times[2], "%.0f", engine->large_p50);
	number_text(times[3], "%.0f", engine->large_p99);
	topo_size(size, sizeof(size), engine->region_bytes);
	topo_size(in_flight, sizeof(in_flight), engine->in_flight);
	/* Each line fits into 80 columns. */
	writer_line(writer,
		    engine->failed || engine->errors || engine->peers_lost ? TINT_POOR :
									     TINT_STRONG,
		    "%-24.24s pid %-7d  read %s, written %s GB/s", engine->name, engine->pid, read,
		    written);
	writer_line(writer, -1,
		    "      served over TCP %s/%s GB/s; %s batches/s; failed %" PRIu64
		    "; errors %" PRIu64,
		    served[0], served[1], batches, engine->failed, engine->errors);
	writer_line(writer, -1, "      <=64 KiB: p50 %s, p99 %s us; larger: p50 %s, p99 %s us",
		    times[0], times[1], times[2], times[3]);
	writer_line(writer, -1,
		    "      in flight %" PRIu64 ", %s; sessions %" PRIu64 "; lost %" PRIu64
		    "; regions %" PRIu64 ", %s",
		    engine->unfinished, in_flight, engine->sessions, engine->peers_lost,
		    engine->regions, size);
	engine_peers(writer, all, at, view);
}

static void all_engine_lines(struct writer *writer, const struct top_engines *all,
			     const struct top_view *view)
{
	for (size_t i = 0; i < all->engine_count; i++)
		engine_lines(writer, all, i, view);
	if (all->asked && !all->engine_count)
		writer_line(writer, TINT_FAINT, "no engine of this user");
	if (all->silent)
		writer_line(writer, TINT_BAD, "%zu engine%s did not answer%s", all->silent,
			    all->silent == 1 ? "" : "s", view->why ? "" : " (key w)");
	for (size_t i = 0; view->why && i < all->silent && i < TOP_SILENT; i++) {
		char pid[16];

		number_text(pid, "%.0f", or_nan(all->silents[i].pid));
		writer_line(writer, TINT_FAINT, "      pid %s: %s", pid, all->silents[i].why);
	}
	if (view->why)
		why_line(writer, all->why);
	if (all->left_out)
		writer_line(writer, TINT_FAINT, "%zu engines, peers or routes left out: no room",
			    all->left_out);
}

/* ---- processes ------------------------------------------------------------------------------- */

static int compare_processes(const void *a, const void *b)
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
		if (filter_passes(view, sample->processes[i].name))
			list[used++] = &sample->processes[i];
	sorting = view;
	if (used)
		qsort(list, used, sizeof(struct top_process *), compare_processes);
	writer_line(writer, TINT_STRONG, "%8s %4s %10s %10s %6s  NAME   by %s%s%s%s", "PID", "GPU",
		    "GPU MEM", "MEM", "CPU%", orders[view->order],
		    view->reverse ? ", reversed" : "", *view->filter ? ", only " : "",
		    view->filter);
	for (size_t i = 0; i < used; i++) {
		char pid[16], gpu_memory[32], memory[32], cpu[16], why[256];

		number_text(pid, "%.0f", list[i]->pid < 0 ? NAN : list[i]->pid);
		topo_size(gpu_memory, sizeof(gpu_memory), list[i]->gpu_memory);
		topo_size(memory, sizeof(memory), list[i]->memory);
		number_text(cpu, "%.0f", list[i]->cpu);
		writer_line(writer, -1, "%8s %4d %10s %10s %6s  %s", pid, list[i]->gpu, gpu_memory,
			    memory, cpu,
			    *list[i]->name     ? list[i]->name :
			    list[i]->elsewhere ? "- (in another PID namespace)" :
						 "-");
		top_process_why(list[i], why, sizeof(why));
		if (view->why)
			why_line(writer, why);
	}
	if (!used)
		writer_line(writer, TINT_FAINT, "%8s %s", "",
			    sample->process_count ? "none of that name" : "no process uses a GPU");
	free(list);
}

static size_t help_lines(struct writer *writer)
{
	static const char *const text[] = {
		"q            quit",
		"h ?          show or leave this help",
		"s            sort processes by the next column",
		"p            sort peers by traffic, errors, latency or name",
		"r            reverse both orders",
		"/            only processes and peers with a text in their name; Enter: done,",
		"             Esc: all again",
		"e            all peers of each engine, or only the first eight",
		"w            why values are unknown (lines \"-:\") and engines do not answer",
		"+ -          longer, shorter interval",
		"space        pause and resume",
		"arrows       scroll; Home: to the top",
		"",
		"Rates are those of the last interval; % is the share of the link's capacity.",
		"Peers: GB/s read/written over each transport; batches a second; half of the",
		"batches took at most p50, 99 % of them at most p99.",
		"'-': unknown; the key w says why. Clocks limited by 'power' or 'heat' are",
		"slowed down.",
	};

	for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++)
		writer_line(writer, -1, "%s", text[i]);
	return writer->count;
}

size_t top_render(const struct top_sample *sample, const struct top_view *view,
		  struct top_line *lines, size_t most)
{
	struct writer writer = { .lines = lines, .most = most };
	char retransmits[16];

	number_text(retransmits, "%.0f", sample->tcp_retransmits);
	writer_line(&writer, TINT_STRONG, "%s  driver %s  every %.1f s  TCP retransmits/s %s%s",
		    *sample->host ? sample->host : "-", *sample->driver ? sample->driver : "-",
		    sample->interval, retransmits, view->paused ? "  PAUSED" : "");
	if (view->help)
		return help_lines(&writer);
	for (size_t i = 0; i < sample->gpu_count; i++)
		gpu_lines(&writer, &sample->gpus[i], view);
	if (!sample->gpu_count)
		writer_line(&writer, TINT_FAINT, "no GPU%s%s", *sample->note ? ": " : "",
			    sample->note);
	for (size_t i = 0; i < sample->nic_count; i++)
		nic_lines(&writer, &sample->nics[i], view);
	if (!sample->nic_count)
		writer_line(&writer, TINT_FAINT, "no NIC");
	all_engine_lines(&writer, &sample->engines, view);
	process_lines(&writer, sample, view);
	return writer.count;
}
