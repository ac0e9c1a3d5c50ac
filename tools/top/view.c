/* SPDX-License-Identifier: Apache-2.0 */
/* A sample as lines of text. */
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

__attribute__((format(printf, 3, 4))) static void line(struct writer *writer, int tint,
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
static void bar(double share, bool ascii, char out[3 * BAR + 1])
{
	int full = share > 0 ? (int)(fmin(share, 1) * BAR + 0.5) : 0, used = 0;

	for (int i = 0; i < BAR; i++)
		used += snprintf(out + used, (size_t)(3 * BAR + 1 - used), "%s",
				 i >= full ? " " :
				 ascii     ? "#" :
					     "\u2588");
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

/* Why there is a '-'. */
static void why_line(struct writer *writer, const char *text)
{
	if (*text)
		line(writer, TINT_FAINT, "      -: %s", text);
}

static void gpu_lines(struct writer *writer, const struct top_gpu *gpu, const struct top_view *view)
{
	char busy[16], power[16], limit[16], heat[16], clock[16], used[32], total[32], bar1[32],
		reasons[64], errors[24], rates[4][24], shown[3 * BAR + 1], why[380];
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
	top_reasons(gpu->reasons, reasons, sizeof(reasons));
	snprintf(errors, sizeof(errors), "-");
	if (gpu->ecc_uncorrected != WH_UNKNOWN)
		snprintf(errors, sizeof(errors), "%" PRIu64, gpu->ecc_uncorrected);
	rate_text(rates[0], gpu->pcie_sent, gpu->pcie_most);
	rate_text(rates[1], gpu->pcie_received, gpu->pcie_most);
	rate_text(rates[2], gpu->link_sent, gpu->link_most);
	rate_text(rates[3], gpu->link_received, gpu->link_most);
	bar(gpu->busy < 0 ? 0 : gpu->busy / 100.0, view->ascii, shown);
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
	number(errors, "%.0f", nic->errors);
	number(again, "%.0f", nic->retransmits);
	bar(isnan(nic->most) ? 0 : most / nic->most, view->ascii, shown);
	line(writer,
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

static double traffic(const struct top_peer *peer)
{
	double rate = peer->read + peer->written;

	return isnan(rate) ? 0 : rate;
}

static double slowest(const struct top_peer *peer)
{
	double small = isnan(peer->small_p99) ? -1 : peer->small_p99,
	       large = isnan(peer->large_p99) ? -1 : peer->large_p99;

	return fmax(small, large);
}

/* qsort() has no argument for these. */
static _Thread_local const struct top_view *sorting;

static int more(double one, double other)
{
	return (one < other) - (one > other);
}

/* The last two decide where nothing else does: what has been moved in all, and the order they came
 * in. */
static int compare_peers(const void *a, const void *b)
{
	const struct top_peer *one = *(struct top_peer *const *)a,
			      *other = *(struct top_peer *const *)b;
	int order = 0;

	switch (sorting->peer_order) {
	case TOP_PEERS_BY_ERRORS:
		order = more((double)(one->errors + one->failed + one->lost),
			     (double)(other->errors + other->failed + other->lost));
		break;
	case TOP_PEERS_BY_LATENCY:
		order = more(slowest(one), slowest(other));
		break;
	case TOP_PEERS_BY_NAME:
		order = strcmp(one->name, other->name);
		break;
	default:
		break;
	}
	if (!order && sorting->peer_order != TOP_PEERS_BY_NAME)
		order = more(traffic(one), traffic(other));
	if (!order && sorting->peer_order != TOP_PEERS_BY_NAME)
		order = more((double)(one->read_bytes + one->written_bytes),
			     (double)(other->read_bytes + other->written_bytes));
	if (!order)
		order = (one > other) - (one < other);
	return sorting->reverse ? -order : order;
}

/* "  tcp 0.00/1.20  shm 3.00/0.00": what is read and written by each. */
static void routes_text(const struct top_engines *all, const struct top_peer *peer, char *out,
			size_t size)
{
	size_t at = (size_t)(peer - all->peers), used = 0;

	*out = '\0';
	for (size_t i = peer->first_route; i < all->route_count && used < size; i++) {
		const struct top_route *route = &all->routes[i];
		char read[16], written[16];

		if (route->peer_at != at)
			break;
		number(read, "%.2f", route->read);
		number(written, "%.2f", route->written);
		used += (size_t)snprintf(out + used, size - used, "  %s %s/%s", route->transport,
					 read, written);
	}
}

static void peer_line(struct writer *writer, const struct top_engines *all,
		      const struct top_peer *peer)
{
	bool up = strcmp(peer->state, "connected") == 0;
	char routes[160], batches[16], half[16], most[16];

	routes_text(all, peer, routes, sizeof(routes));
	number(batches, "%.0f", peer->batch_rate);
	number(half, "%.0f", isnan(peer->large_p50) ? peer->small_p50 : peer->large_p50);
	number(most, "%.0f", isnan(peer->large_p99) ? peer->small_p99 : peer->large_p99);
	line(writer,
	     !up                          ? TINT_BAD :
	     peer->failed || peer->errors ? TINT_POOR :
					    -1,
	     "  %-20.20s %-21.21s errors %-4" PRIu64
	     " %-9s%s, %s batches/s, %s us, 99%% %s us, failed %" PRIu64 ", lost %" PRIu64
	     ", rerouted %" PRIu64,
	     peer->name, peer->address, peer->errors, peer->state, *routes ? routes : "  -",
	     batches, half, most, peer->failed, peer->lost, peer->reroutes);
}

static bool passes(const struct top_view *view, const char *name)
{
	return !*view->filter || strcasestr(name, view->filter);
}

static void peer_lines(struct writer *writer, const struct top_engines *all, size_t engine,
		       const struct top_view *view)
{
	static const char *const orders[] = { "traffic", "errors", "latency", "name" };
	const struct top_peer **list = calloc(all->peer_count + 1, sizeof(struct top_peer *));
	bool whole = passes(view, all->engines[engine].name);
	size_t count = 0, shown;

	for (size_t i = 0; list && i < all->peer_count; i++)
		if (all->peers[i].engine_at == engine &&
		    (whole || passes(view, all->peers[i].name)))
			list[count++] = &all->peers[i];
	sorting = view;
	if (count)
		qsort(list, count, sizeof(struct top_peer *), compare_peers);
	shown = view->all_peers || count <= BUSIEST ? count : BUSIEST;
	for (size_t i = 0; i < shown; i++)
		peer_line(writer, all, list[i]);
	if (shown < count)
		line(writer, TINT_FAINT, "  and %zu more peers (key e), by %s%s (key p)",
		     count - shown, orders[view->peer_order], view->reverse ? ", reversed" : "");
	free(list);
}

static void engine_lines(struct writer *writer, const struct top_engines *all, size_t at,
			 const struct top_view *view)
{
	const struct top_engine *engine = &all->engines[at];
	char read[16], written[16], served[2][16], batches[16], times[4][16], size[32], flying[32];

	number(read, "%.2f", engine->read);
	number(written, "%.2f", engine->written);
	number(served[0], "%.2f", engine->served_read);
	number(served[1], "%.2f", engine->served_written);
	number(batches, "%.0f", engine->batch_rate);
	number(times[0], "%.1f", engine->small_p50);
	number(times[1], "%.1f", engine->small_p99);
	number(times[2], "%.0f", engine->large_p50);
	number(times[3], "%.0f", engine->large_p99);
	topo_size(size, sizeof(size), engine->region_bytes);
	topo_size(flying, sizeof(flying), engine->in_flight);
	/* Each line fits into 80 columns. */
	line(writer,
	     engine->failed || engine->errors || engine->peers_lost ? TINT_POOR : TINT_STRONG,
	     "%-24.24s pid %-7d  read %s, written %s GB/s", engine->name, engine->pid, read,
	     written);
	line(writer, -1,
	     "      served over TCP %s/%s GB/s; %s batches/s; failed %" PRIu64 "; errors %" PRIu64,
	     served[0], served[1], batches, engine->failed, engine->errors);
	line(writer, -1, "      <=64 KiB: p50 %s, p99 %s us; larger: p50 %s, p99 %s us", times[0],
	     times[1], times[2], times[3]);
	line(writer, -1,
	     "      in flight %" PRIu64 ", %s; sessions %" PRIu64 "; lost %" PRIu64
	     "; regions %" PRIu64 ", %s",
	     engine->unfinished, flying, engine->sessions, engine->peers_lost, engine->regions,
	     size);
	peer_lines(writer, all, at, view);
}

static void all_engines(struct writer *writer, const struct top_engines *all,
			const struct top_view *view)
{
	for (size_t i = 0; i < all->engine_count; i++)
		engine_lines(writer, all, i, view);
	if (all->asked && !all->engine_count)
		line(writer, TINT_FAINT, "no engine of this user");
	if (all->silent)
		line(writer, TINT_BAD, "%zu engine%s did not answer%s", all->silent,
		     all->silent == 1 ? "" : "s", view->why ? "" : " (key w)");
	for (size_t i = 0; view->why && i < all->silent && i < TOP_SILENT; i++) {
		char pid[16];

		number(pid, "%.0f", or_nan(all->silents[i].pid));
		line(writer, TINT_FAINT, "      pid %s: %s", pid, all->silents[i].why);
	}
	if (view->why)
		why_line(writer, all->why);
	if (all->left_out)
		line(writer, TINT_FAINT, "%zu engines, peers or routes are too many to show",
		     all->left_out);
}

/* ---- processes ------------------------------------------------------------------------------- */

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
		if (passes(view, sample->processes[i].name))
			list[used++] = &sample->processes[i];
	sorting = view;
	if (used)
		qsort(list, used, sizeof(struct top_process *), compare);
	line(writer, TINT_STRONG, "%8s %4s %10s %10s %6s  NAME   by %s%s%s%s", "PID", "GPU",
	     "GPU MEM", "MEM", "CPU%", orders[view->order], view->reverse ? ", reversed" : "",
	     *view->filter ? ", only " : "", view->filter);
	for (size_t i = 0; i < used; i++) {
		char pid[16], gpu_memory[32], memory[32], cpu[16], why[256];

		number(pid, "%.0f", list[i]->pid < 0 ? NAN : list[i]->pid);
		topo_size(gpu_memory, sizeof(gpu_memory), list[i]->gpu_memory);
		topo_size(memory, sizeof(memory), list[i]->memory);
		number(cpu, "%.0f", list[i]->cpu);
		line(writer, -1, "%8s %4d %10s %10s %6s  %s", pid, list[i]->gpu, gpu_memory, memory,
		     cpu,
		     *list[i]->name     ? list[i]->name :
		     list[i]->elsewhere ? "- (of another PID namespace)" :
					  "-");
		top_process_why(list[i], why, sizeof(why));
		if (view->why)
			why_line(writer, why);
	}
	if (!used)
		line(writer, TINT_FAINT, "%8s %s", "",
		     sample->process_count ? "none of that name" : "no process computes on a GPU");
	free(list);
}

static size_t help_lines(struct writer *writer)
{
	static const char *const text[] = {
		"q            quit",
		"h ?          this help, and back",
		"s            sort processes by the next column",
		"p            sort peers: the busiest first, by errors, by latency, by name",
		"r            reverse the order of both",
		"/            only processes and peers with a text in their name; Enter, Esc: all",
		"e            all peers of engines, and only the busiest",
		"w            why numbers are not known: the lines \"-:\"; why engines do not "
		"answer",
		"+ -          longer, shorter intervals",
		"space        hold the picture, and go on",
		"arrows       scroll; Home: to the top",
		"",
		"Rates are over the last interval; % is of what the link carries.",
		"Of engines: batches a second and how long they took, half of them and 99 %;",
		"after a transport's name, what is read and written by it in GB/s.",
		"'-': not known; the key w says why. Clocks held by 'power' or 'heat' are slowed "
		"down.",
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
		gpu_lines(&writer, &sample->gpus[i], view);
	if (!sample->gpu_count)
		line(&writer, TINT_FAINT, "no GPU%s%s", *sample->note ? ": " : "", sample->note);
	for (size_t i = 0; i < sample->nic_count; i++)
		nic_lines(&writer, &sample->nics[i], view);
	if (!sample->nic_count)
		line(&writer, TINT_FAINT, "no NIC");
	all_engines(&writer, &sample->engines, view);
	process_lines(&writer, sample, view);
	return writer.count;
}
