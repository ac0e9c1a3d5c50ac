/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of GPUs, NICs and processes. One thread asks NVML, which may take its time or hang;
 * another reads sysfs and /proc. Each keeps a sample of its own between two intervals, from which
 * rates are made, and hands its part over under the lock.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "platform/nvml.h"
#include "top.h"
#include "topo.h"

#define SLOW_TURNS 10 /* what hardly changes is asked every so many turns */
#define ENGINE_SECONDS 0.5 /* that engines have to answer */

struct part {
	pthread_t thread;
	bool started, ended;
	uint64_t turns; /* samples that were handed over */
};

struct top_sampler {
	struct wh_tree tree;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	double interval;
	bool stop;
	struct part gpus, host, engines;
	const char *directory; /* where engines have their sockets */
	struct top_sample sample; /* the newest, under the lock */
	struct top_process named[TOP_PROCESSES]; /* by NVML, under the lock */
	size_t named_count;
	struct top_sample gpu_work, host_work; /* each thread's own */
	struct top_engines engine_work;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What a counter has grown by, for each second; NAN: not known, or it was set back. */
static double rate(uint64_t before, uint64_t after, double seconds)
{
	if (before == WH_UNKNOWN || after == WH_UNKNOWN || after < before || !(seconds > 0))
		return NAN;
	return (double)(after - before) / seconds;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static int ask_indexed(struct wh_nvml *nvml, enum wh_nvml_indexed which, unsigned device,
		       unsigned at)
{
	uint32_t value;

	return wh_nvml_indexed(nvml, which, device, at, &value) || value > INT32_MAX ? -1 :
										       (int)value;
}

static double ask_watts(struct wh_nvml *nvml, enum wh_nvml_number which, unsigned device)
{
	uint32_t value;

	return wh_nvml_number(nvml, which, device, &value) ? NAN : value / 1e3;
}

static uint64_t ask_field(struct wh_nvml *nvml, unsigned device, uint32_t field)
{
	uint64_t value;

	return wh_nvml_field(nvml, device, field, UINT32_MAX, &value) ? WH_UNKNOWN : value;
}

static double ask_pcie(struct wh_nvml *nvml, unsigned device, unsigned direction)
{
	int value = ask_indexed(nvml, WH_NVML_PCIE_RATE, device, direction);

	return value < 0 ? NAN : value / 1e6;
}

static void ask_rates(struct wh_nvml *nvml, unsigned device, const struct top_gpu *before,
		      double seconds, struct top_gpu *gpu)
{
	gpu->pcie_sent = ask_pcie(nvml, device, 0);
	gpu->pcie_received = ask_pcie(nvml, device, 1);
	gpu->link_sent_kib = ask_field(nvml, device, WH_NVML_FIELD_LINK_SENT);
	gpu->link_received_kib = ask_field(nvml, device, WH_NVML_FIELD_LINK_RECEIVED);
	gpu->link_sent = rate(before->link_sent_kib, gpu->link_sent_kib, seconds) * 1024 / 1e9;
	gpu->link_received =
		rate(before->link_received_kib, gpu->link_received_kib, seconds) * 1024 / 1e9;
}

/* What hardly changes and takes the driver 1 ms and more for each question. */
static void ask_slow(struct wh_nvml *nvml, unsigned device, struct top_gpu *gpu)
{
	uint32_t replays;

	gpu->power_limit = ask_watts(nvml, WH_NVML_POWER_LIMIT, device);
	gpu->clock_most = ask_indexed(nvml, WH_NVML_CLOCK_MOST, device, 1);
	gpu->memory_clock_most = ask_indexed(nvml, WH_NVML_CLOCK_MOST, device, 2);
	if (wh_nvml_ecc(nvml, device, false, &gpu->ecc_corrected))
		gpu->ecc_corrected = WH_UNKNOWN;
	if (wh_nvml_ecc(nvml, device, true, &gpu->ecc_uncorrected))
		gpu->ecc_uncorrected = WH_UNKNOWN;
	if (!wh_nvml_number(nvml, WH_NVML_PCIE_REPLAYS, device, &replays))
		gpu->pcie_replays = replays;
}

static void keep_slow(const struct top_gpu *before, struct top_gpu *gpu)
{
	gpu->power_limit = before->power_limit;
	gpu->clock_most = before->clock_most;
	gpu->memory_clock_most = before->memory_clock_most;
	gpu->ecc_corrected = before->ecc_corrected;
	gpu->ecc_uncorrected = before->ecc_uncorrected;
	gpu->pcie_replays = before->pcie_replays;
}

static void ask_gpu(struct wh_nvml *nvml, unsigned device, const struct top_gpu *before,
		    double seconds, struct top_gpu *gpu)
{
	struct wh_nvml_memory memory;
	uint32_t busy, memory_busy;

	if (wh_nvml_device(nvml, device)) {
		snprintf(gpu->problem, sizeof(gpu->problem), "%s", wh_fail_text());
		return;
	}
	if (!wh_nvml_utilisation(nvml, device, &busy, &memory_busy)) {
		gpu->busy = (int)busy;
		gpu->memory_busy = (int)memory_busy;
	}
	if (!wh_nvml_memory(nvml, device, &memory)) {
		gpu->memory_used = memory.used;
		gpu->memory_total = memory.total;
	}
	if (!wh_nvml_bar1(nvml, device, &memory)) {
		gpu->bar1_used = memory.used;
		gpu->bar1_total = memory.total;
	}
	gpu->power = ask_watts(nvml, WH_NVML_POWER, device);
	gpu->temperature = ask_indexed(nvml, WH_NVML_TEMPERATURE, device, 0);
	gpu->clock = ask_indexed(nvml, WH_NVML_CLOCK, device, 1);
	gpu->memory_clock = ask_indexed(nvml, WH_NVML_CLOCK, device, 2);
	if (wh_nvml_reasons(nvml, device, &gpu->reasons))
		gpu->reasons = WH_UNKNOWN;
	ask_rates(nvml, device, before, seconds, gpu);
}

/* Names and ceilings do not change: they are taken from the topology, once. */
static void name_gpus(const struct wh_topology *topology, struct top_sample *work)
{
	work->gpu_count = 0;
	snprintf(work->driver, sizeof(work->driver), "%s", topology->driver);
	for (size_t i = 0; i < topology->gpu_count && work->gpu_count < TOP_GPUS; i++) {
		const struct wh_gpu *from = &topology->gpus[i];
		struct top_gpu *gpu;
		double links = 0;
		int where;

		if (from->index < 0)
			continue;
		gpu = &work->gpus[work->gpu_count++];
		*gpu = (struct top_gpu){ .index = from->index, .link_sent_kib = WH_UNKNOWN,
					 .link_received_kib = WH_UNKNOWN };
		memcpy(gpu->name, from->name, sizeof(gpu->name));
		memcpy(gpu->uuid, from->uuid, sizeof(gpu->uuid));
		memcpy(gpu->address, from->address, sizeof(gpu->address));
		gpu->pcie_most = wh_pcie_raw(wh_pcie_speed(from->pcie_generation_most),
					     from->pcie_width_most);
		if (isnan(gpu->pcie_most))
			gpu->pcie_most = wh_pcie_path(topology, from->pci, &where);
		for (size_t k = 0; k < topology->link_count; k++)
			if (topology->links[k].gpu == (int)i && topology->links[k].active == 1)
				links += topology->links[k].speed;
		gpu->link_most = links > 0 ? links : NAN;
	}
}

static void forget_gpu(struct top_gpu *gpu)
{
	struct top_gpu empty = {
		.index = gpu->index, .busy = -1, .memory_busy = -1,
		.memory_used = WH_UNKNOWN, .memory_total = WH_UNKNOWN, .bar1_used = WH_UNKNOWN,
		.bar1_total = WH_UNKNOWN, .power = NAN, .power_limit = NAN, .temperature = -1,
		.clock = -1, .clock_most = -1, .memory_clock = -1, .memory_clock_most = -1,
		.pcie_sent = NAN, .pcie_received = NAN, .pcie_most = gpu->pcie_most,
		.link_sent = NAN, .link_received = NAN, .link_most = gpu->link_most,
		.ecc_corrected = WH_UNKNOWN, .ecc_uncorrected = WH_UNKNOWN,
		.pcie_replays = WH_UNKNOWN, .reasons = WH_UNKNOWN,
		.link_sent_kib = WH_UNKNOWN, .link_received_kib = WH_UNKNOWN,
	};

	memcpy(empty.name, gpu->name, sizeof(empty.name));
	memcpy(empty.uuid, gpu->uuid, sizeof(empty.uuid));
	memcpy(empty.address, gpu->address, sizeof(empty.address));
	*gpu = empty;
}

static bool is_process(const struct wh_tree *tree, uint32_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u", pid);
	return pid > 0 && pid <= INT32_MAX && !wh_tree_exists(tree, path);
}

/* The rest of what is known of them comes from the other thread. */
static void ask_processes(const struct wh_tree *tree, struct wh_nvml *nvml, struct top_sample *work)
{
	work->process_count = 0;
	for (size_t i = 0; i < work->gpu_count; i++) {
		struct wh_nvml_process list[64];
		unsigned count = 64;

		if (*work->gpus[i].problem ||
		    wh_nvml_processes(nvml, (unsigned)work->gpus[i].index, list, &count))
			continue;
		for (unsigned k = 0; k < count && work->process_count < TOP_PROCESSES; k++) {
			struct top_process *process = &work->processes[work->process_count];

			/* The driver may count in another PID namespace. */
			*process = (struct top_process){
				.pid = is_process(tree, list[k].pid) ? (int)list[k].pid : -1,
				.gpu = work->gpus[i].index, .gpu_memory = list[k].memory,
				.memory = WH_UNKNOWN, .cpu = NAN,
			};
			work->process_count++;
		}
	}
}

static void sample_gpus(struct top_sampler *sampler, struct wh_nvml *nvml, uint64_t turn)
{
	struct top_sample *work = &sampler->gpu_work;
	double time = now(), seconds = work->time > 0 ? time - work->time : 0;

	for (size_t i = 0; i < work->gpu_count; i++) {
		struct top_gpu before = work->gpus[i];

		forget_gpu(&work->gpus[i]);
		ask_gpu(nvml, (unsigned)before.index, &before, seconds, &work->gpus[i]);
		if (*work->gpus[i].problem)
			continue;
		if (turn % SLOW_TURNS == 0)
			ask_slow(nvml, (unsigned)before.index, &work->gpus[i]);
		else
			keep_slow(&before, &work->gpus[i]);
	}
	ask_processes(&sampler->tree, nvml, work);
	work->time = time;
}

/* ---- NICs ------------------------------------------------------------------------------------ */

static uint64_t counter(const struct wh_tree *tree, const char *folder, const char *name)
{
	int64_t value;

	return wh_tree_number(tree, folder, name, &value) || value < 0 ? WH_UNKNOWN :
									 (uint64_t)value;
}

static uint64_t sum(uint64_t one, uint64_t other)
{
	return one == WH_UNKNOWN || other == WH_UNKNOWN ? WH_UNKNOWN : one + other;
}

static void read_nic(const struct wh_tree *tree, struct top_nic *nic)
{
	char folder[WH_TREE_PATH];

	if (nic->rdma) {
		snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports/1/counters",
			 nic->name);
		/* In words of four bytes. */
		nic->sent_bytes = counter(tree, folder, "port_xmit_data");
		nic->received_bytes = counter(tree, folder, "port_rcv_data");
		if (nic->sent_bytes != WH_UNKNOWN)
			nic->sent_bytes *= 4;
		if (nic->received_bytes != WH_UNKNOWN)
			nic->received_bytes *= 4;
		nic->error_count = sum(counter(tree, folder, "port_rcv_errors"),
				       counter(tree, folder, "port_xmit_discards"));
		snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports/1/hw_counters",
			 nic->name);
		nic->retransmit_count = sum(counter(tree, folder, "packet_seq_err"),
					    counter(tree, folder, "local_ack_timeout_err"));
		return;
	}
	snprintf(folder, sizeof(folder), "/sys/class/net/%s/statistics", nic->name);
	nic->sent_bytes = counter(tree, folder, "tx_bytes");
	nic->received_bytes = counter(tree, folder, "rx_bytes");
	nic->error_count = sum(sum(counter(tree, folder, "rx_errors"),
				   counter(tree, folder, "tx_errors")),
			       sum(counter(tree, folder, "rx_dropped"),
				   counter(tree, folder, "tx_dropped")));
	nic->retransmit_count = WH_UNKNOWN; /* TCP counts them for all NICs together */
}

static void name_nics(const struct wh_topology *topology, struct top_sample *work)
{
	work->nic_count = 0;
	snprintf(work->host, sizeof(work->host), "%s", topology->host);
	for (size_t i = 0; i < topology->nic_count && work->nic_count < TOP_NICS; i++) {
		const struct wh_nic *from = &topology->nics[i];
		struct top_nic *nic = &work->nics[work->nic_count++];

		*nic = (struct top_nic){ .rdma = from->rdma == 1, .most = from->rate / 8 };
		memcpy(nic->name, from->name, sizeof(nic->name));
		memcpy(nic->netdev, from->netdev, sizeof(nic->netdev));
		memcpy(nic->state, from->state, sizeof(nic->state));
		nic->sent_bytes = nic->received_bytes = nic->error_count = nic->retransmit_count =
			WH_UNKNOWN;
	}
}

/* TCP's RetransSegs in /proc/net/snmp: a line of names, and a line of numbers. */
static uint64_t tcp_retransmits(const struct wh_tree *tree)
{
	char text[8192], *names, *values, *name, *value;

	if (wh_tree_read(tree, "/proc/net/snmp", text, sizeof(text)) < 0)
		return WH_UNKNOWN;
	names = strstr(text, "\nTcp: ");
	values = names ? strstr(names + 1, "\nTcp: ") : NULL;
	if (!values)
		return WH_UNKNOWN;
	names++;
	*values++ = '\0';
	values[strcspn(values, "\n")] = '\0';
	while ((name = strsep(&names, " ")) && (value = strsep(&values, " ")))
		if (strcmp(name, "RetransSegs") == 0)
			return strtoull(value, NULL, 10);
	return WH_UNKNOWN;
}

static void sample_nics(const struct wh_tree *tree, struct top_sample *work, double seconds)
{
	uint64_t retransmits = tcp_retransmits(tree);

	work->tcp_retransmits = rate(work->tcp_retransmit_count, retransmits, seconds);
	work->tcp_retransmit_count = retransmits;
	for (size_t i = 0; i < work->nic_count; i++) {
		struct top_nic *nic = &work->nics[i], before = *nic;

		read_nic(tree, nic);
		nic->sent = rate(before.sent_bytes, nic->sent_bytes, seconds) / 1e9;
		nic->received = rate(before.received_bytes, nic->received_bytes, seconds) / 1e9;
		nic->errors = rate(before.error_count, nic->error_count, seconds);
		nic->retransmits = rate(before.retransmit_count, nic->retransmit_count, seconds);
	}
}

/* ---- processes ------------------------------------------------------------------------------- */

/* "PID (NAME) STATE ...": the name may have anything in it, so the last parenthesis counts. */
static bool read_process(const struct wh_tree *tree, int pid, struct top_process *out)
{
	char path[64], text[1024], *open, *close;
	unsigned long long user, kernel;
	long long pages;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	if (wh_tree_read(tree, path, text, sizeof(text)) <= 0)
		return false;
	open = strchr(text, '(');
	close = strrchr(text, ')');
	if (!open || !close || close < open ||
	    sscanf(close + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d "
			      "%*d %*d %*d %*u %*u %lld", &user, &kernel, &pages) != 3)
		return false;
	snprintf(out->name, sizeof(out->name), "%.*s", (int)(close - open - 1), open + 1);
	for (char *c = out->name; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	out->ticks = user + kernel;
	out->memory = pages < 0 ? WH_UNKNOWN : (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
	return true;
}

static const struct top_process *find_process(const struct top_sample *sample, int pid)
{
	for (size_t i = 0; i < sample->process_count && pid > 0; i++)
		if (sample->processes[i].pid == pid)
			return &sample->processes[i];
	return NULL;
}

/* Fill in what /proc knows of the processes that NVML has named. */
static void sample_processes(struct top_sampler *sampler, struct top_sample *work,
			     const struct top_sample *named, double seconds)
{
	struct top_process *list = malloc(sizeof(work->processes));
	double ticks = (double)sysconf(_SC_CLK_TCK);

	if (!list)
		return;
	for (size_t i = 0; i < named->process_count; i++) {
		const struct top_process *before = find_process(work, named->processes[i].pid);

		list[i] = named->processes[i];
		if (list[i].pid <= 0 || !read_process(&sampler->tree, list[i].pid, &list[i]))
			continue;
		if (before)
			list[i].cpu = rate(before->ticks, list[i].ticks, seconds) / ticks * 100;
	}
	memcpy(work->processes, list, named->process_count * sizeof(*list));
	work->process_count = named->process_count;
	free(list);
}

/* ---- engines --------------------------------------------------------------------------------- */

static void copy_engines(const struct top_engines *from, struct top_engines *to)
{
	to->asked = from->asked;
	to->engine_count = from->engine_count;
	to->peer_count = from->peer_count;
	to->route_count = from->route_count;
	to->silent = from->silent;
	to->left_out = from->left_out;
	memcpy(to->engines, from->engines, from->engine_count * sizeof(from->engines[0]));
	memcpy(to->peers, from->peers, from->peer_count * sizeof(from->peers[0]));
	memcpy(to->routes, from->routes, from->route_count * sizeof(from->routes[0]));
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Hand over a part, then wait for the next turn. False: it is the end. */
static bool hand_over(struct top_sampler *sampler, struct part *part, double started)
{
	struct timespec until;
	bool stop;

	pthread_mutex_lock(&sampler->lock);
	if (part == &sampler->gpus) {
		const struct top_sample *work = &sampler->gpu_work;

		sampler->sample.gpu_count = work->gpu_count;
		memcpy(sampler->sample.gpus, work->gpus, sizeof(work->gpus));
		memcpy(sampler->sample.driver, work->driver, sizeof(work->driver));
		memcpy(sampler->sample.note, work->note, sizeof(work->note));
		memcpy(sampler->named, work->processes, sizeof(work->processes));
		sampler->named_count = work->process_count;
	} else if (part == &sampler->engines) {
		copy_engines(&sampler->engine_work, &sampler->sample.engines);
	} else {
		const struct top_sample *work = &sampler->host_work;

		sampler->sample.nic_count = work->nic_count;
		memcpy(sampler->sample.nics, work->nics, sizeof(work->nics));
		memcpy(sampler->sample.host, work->host, sizeof(work->host));
		sampler->sample.process_count = work->process_count;
		memcpy(sampler->sample.processes, work->processes, sizeof(work->processes));
		sampler->sample.tcp_retransmits = work->tcp_retransmits;
		sampler->sample.tcp_retransmit_count = work->tcp_retransmit_count;
		sampler->sample.time = started;
		sampler->sample.interval = work->interval;
	}
	part->turns++;
	pthread_cond_broadcast(&sampler->changed);
	/* The condition's clock is the monotonic one. */
	started += sampler->interval;
	until.tv_sec = (time_t)started;
	until.tv_nsec = (long)((started - (double)until.tv_sec) * 1e9);
	while (!sampler->stop &&
	       pthread_cond_timedwait(&sampler->changed, &sampler->lock, &until) != ETIMEDOUT)
		;
	stop = sampler->stop;
	pthread_mutex_unlock(&sampler->lock);
	return !stop;
}

static void *gpu_thread(void *arg)
{
	struct top_sampler *sampler = arg;
	struct wh_topology *topology;
	struct wh_nvml *nvml = topo_nvml(&sampler->tree);
	uint64_t turn = 0;
	double started;

	if (!nvml)
		snprintf(sampler->gpu_work.note, sizeof(sampler->gpu_work.note), "%s",
			 wh_fail_text());
	if (nvml && !wh_topology_read(&sampler->tree, &topology)) {
		if (!wh_topology_add_nvml(topology, nvml, NULL))
			name_gpus(topology, &sampler->gpu_work);
		wh_topology_free(topology);
	}
	do {
		started = now();
		if (nvml)
			sample_gpus(sampler, nvml, turn++);
	} while (hand_over(sampler, &sampler->gpus, started));
	wh_nvml_close(nvml);
	pthread_mutex_lock(&sampler->lock);
	sampler->gpus.ended = true;
	pthread_cond_broadcast(&sampler->changed);
	pthread_mutex_unlock(&sampler->lock);
	return NULL;
}

static void *engine_thread(void *arg)
{
	struct top_sampler *sampler = arg;
	struct observed before = { 0 }, answers;
	double started, asked = 0;

	do {
		started = now();
		if (!observe_all(sampler->directory, ENGINE_SECONDS, &answers)) {
			for (size_t i = 0; i < answers.count; i++)
				observe_merge(&answers.engines[i]);
			top_engines_rows(&answers, &before, started - asked, &sampler->engine_work);
			observe_free(&before);
			before = answers;
			asked = started;
		}
	} while (hand_over(sampler, &sampler->engines, started));
	observe_free(&before);
	pthread_mutex_lock(&sampler->lock);
	sampler->engines.ended = true;
	pthread_cond_broadcast(&sampler->changed);
	pthread_mutex_unlock(&sampler->lock);
	return NULL;
}

/* The first turn comes after the GPUs', if they do not take too long: it looks at their
 * processes. */
static void wait_for_gpus(struct top_sampler *sampler)
{
	double end = now() + 2;
	struct timespec until = { .tv_sec = (time_t)end,
				  .tv_nsec = (long)((end - (double)(time_t)end) * 1e9) };

	pthread_mutex_lock(&sampler->lock);
	while (sampler->gpus.started && !sampler->gpus.turns && !sampler->stop &&
	       pthread_cond_timedwait(&sampler->changed, &sampler->lock, &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&sampler->lock);
}

static void *host_thread(void *arg)
{
	struct top_sampler *sampler = arg;
	struct top_sample *work = &sampler->host_work, *named = malloc(sizeof(*named));
	struct wh_topology *topology;
	double started;

	work->tcp_retransmit_count = WH_UNKNOWN;
	if (!wh_topology_read(&sampler->tree, &topology)) {
		name_nics(topology, work);
		wh_topology_free(topology);
	}
	wait_for_gpus(sampler);
	do {
		started = now();
		work->interval = work->time > 0 ? started - work->time : 0;
		sample_nics(&sampler->tree, work, work->interval);
		pthread_mutex_lock(&sampler->lock);
		if (named) {
			named->process_count = sampler->named_count;
			memcpy(named->processes, sampler->named, sizeof(named->processes));
		}
		pthread_mutex_unlock(&sampler->lock);
		if (named)
			sample_processes(sampler, work, named, work->interval);
		work->time = started;
	} while (hand_over(sampler, &sampler->host, started));
	free(named);
	pthread_mutex_lock(&sampler->lock);
	sampler->host.ended = true;
	pthread_cond_broadcast(&sampler->changed);
	pthread_mutex_unlock(&sampler->lock);
	return NULL;
}

struct top_sampler *top_start(const struct wh_tree *tree, double interval,
			      const char *engines)
{
	struct top_sampler *sampler = calloc(1, sizeof(*sampler));
	pthread_condattr_t attributes;

	if (!sampler)
		return NULL;
	sampler->tree = *tree;
	sampler->interval = interval;
	sampler->sample.tcp_retransmits = NAN;
	pthread_mutex_init(&sampler->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&sampler->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	pthread_mutex_lock(&sampler->lock);
	sampler->gpus.started = !pthread_create(&sampler->gpus.thread, NULL, gpu_thread, sampler);
	sampler->host.started = !pthread_create(&sampler->host.thread, NULL, host_thread, sampler);
	sampler->directory = engines;
	if (!engines || strcmp(engines, "off") != 0)
		sampler->engines.started =
			!pthread_create(&sampler->engines.thread, NULL, engine_thread, sampler);
	pthread_mutex_unlock(&sampler->lock);
	return sampler;
}

/* All parts have handed over so many. Under the lock. */
static bool have_turned(const struct top_sampler *sampler, uint64_t turns)
{
	return sampler->host.turns >= turns && sampler->gpus.turns >= turns &&
	       (!sampler->engines.started || sampler->engines.turns >= turns);
}

bool top_take(struct top_sampler *sampler, uint64_t turns, double seconds, struct top_sample *out)
{
	double end = now() + seconds;
	struct timespec until = { .tv_sec = (time_t)end,
				  .tv_nsec = (long)((end - (double)(time_t)end) * 1e9) };
	int error = 0;
	bool taken;

	pthread_mutex_lock(&sampler->lock);
	while (!error && !have_turned(sampler, turns))
		error = pthread_cond_timedwait(&sampler->changed, &sampler->lock, &until);
	taken = sampler->host.turns > 0;
	if (taken) {
		memcpy(out, &sampler->sample, offsetof(struct top_sample, engines));
		copy_engines(&sampler->sample.engines, &out->engines);
	}
	if (taken && !sampler->gpus.turns)
		snprintf(out->note, sizeof(out->note), "NVML has not answered yet");
	pthread_mutex_unlock(&sampler->lock);
	return taken;
}

void top_interval(struct top_sampler *sampler, double interval)
{
	pthread_mutex_lock(&sampler->lock);
	sampler->interval = interval;
	pthread_mutex_unlock(&sampler->lock);
}

bool top_stop(struct top_sampler *sampler)
{
	struct part *const parts[] = { &sampler->gpus, &sampler->host, &sampler->engines };
	double end = now() + 2;
	struct timespec until = { .tv_sec = (time_t)end };
	bool ended = true;

	pthread_mutex_lock(&sampler->lock);
	sampler->stop = true;
	pthread_cond_broadcast(&sampler->changed);
	for (size_t i = 0; i < 3 && ended; i++) {
		while (parts[i]->started && !parts[i]->ended && ended)
			ended = pthread_cond_timedwait(&sampler->changed, &sampler->lock, &until) !=
				ETIMEDOUT;
		ended = !parts[i]->started || parts[i]->ended;
	}
	pthread_mutex_unlock(&sampler->lock);
	for (size_t i = 0; i < 3; i++) {
		if (parts[i]->started && ended)
			pthread_join(parts[i]->thread, NULL);
		else if (parts[i]->started)
			pthread_detach(parts[i]->thread);
	}
	if (!ended)
		return false;
	pthread_cond_destroy(&sampler->changed);
	pthread_mutex_destroy(&sampler->lock);
	free(sampler);
	return true;
}
