/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking samples. One thread asks NVML, which may be slow or hang; one reads sysfs and /proc; one
 * asks engines. Each keeps its own last sample, from which it computes rates, and publishes its
 * part under the lock.
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

#include "top/gpus.h"
#include "top/nics.h"
#include "top/top.h"
#include "topo/topo.h"
#include "util/text.h"

#define ENGINE_SECONDS 0.5 /* for engines to answer */

struct part {
	pthread_t thread;
	bool started, ended;
	uint64_t turns; /* samples published */
};

struct top_sampler {
	struct wh_tree tree;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	double interval;
	bool stop;
	struct part gpus, host, engines;
	const char *directory; /* of the engines' sockets */
	struct top_sample sample; /* the newest, under the lock */
	struct top_process named[TOP_PROCESSES]; /* NVML's, under the lock */
	size_t named_count;
	struct top_sample gpu_work, host_work; /* each thread's own */
	struct top_asking asking; /* of the thread that asks NVML */
	struct top_engines engine_work;
};

static double clock_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* CPU time of this thread, in s. */
static double cpu_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sample_gpus(struct top_sampler *sampler, struct wh_nvml *nvml, double time)
{
	double before = cpu_time(), interval;

	pthread_mutex_lock(&sampler->lock);
	interval = sampler->interval;
	pthread_mutex_unlock(&sampler->lock);
	top_ask_gpus(&sampler->asking, &sampler->tree, nvml, time, interval, &sampler->gpu_work);
	top_asked_for(&sampler->asking, cpu_time() - before, interval);
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Parse /proc/PID/stat, "PID (NAME) STATE ...". The name may contain anything, so it ends at the
 * last parenthesis. */
static bool process_read(const struct wh_tree *tree, int pid, struct top_process *out)
{
	char path[64], text[1024], *open, *close;
	unsigned long long user, kernel;
	long long pages;
	int length;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	length = wh_tree_read(tree, path, text, sizeof(text));
	out->why = length < 0 && length > -256 ? (uint8_t)-length : length <= 0 ? ENODATA : 0;
	if (out->why)
		return false;
	out->why = ENODATA;
	open = strchr(text, '(');
	close = strrchr(text, ')');
	if (!open || !close || close < open ||
	    sscanf(close + 1,
		   " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d "
		   "%*d %*d %*d %*u %*u %lld",
		   &user, &kernel, &pages) != 3)
		return false;
	snprintf(out->name, sizeof(out->name), "%.*s", (int)(close - open - 1), open + 1);
	wh_text_clean(out->name);
	out->why = 0;
	out->ticks = user + kernel;
	out->memory = pages < 0 ? WH_UNKNOWN : (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
	return true;
}

static const struct top_process *process_find(const struct top_sample *sample, int pid)
{
	for (size_t i = 0; i < sample->process_count && pid > 0; i++)
		if (sample->processes[i].pid == pid)
			return &sample->processes[i];
	return NULL;
}

/* Fill in what /proc has about the processes that NVML lists. */
static void sample_processes(struct top_sampler *sampler, struct top_sample *work,
			     const struct top_sample *named, double seconds)
{
	struct top_process *list = malloc(sizeof(work->processes));
	double ticks = (double)sysconf(_SC_CLK_TCK);

	if (!list)
		return;
	for (size_t i = 0; i < named->process_count; i++) {
		const struct top_process *before = process_find(work, named->processes[i].pid);

		list[i] = named->processes[i];
		if (list[i].pid <= 0 || !process_read(&sampler->tree, list[i].pid, &list[i]))
			continue;
		if (before)
			list[i].cpu = top_rate(before->ticks, list[i].ticks, seconds) / ticks * 100;
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
	memcpy(to->silents, from->silents, sizeof(from->silents));
	memcpy(to->why, from->why, sizeof(from->why));
	to->left_out = from->left_out;
	memcpy(to->engines, from->engines, from->engine_count * sizeof(from->engines[0]));
	memcpy(to->peers, from->peers, from->peer_count * sizeof(from->peers[0]));
	memcpy(to->routes, from->routes, from->route_count * sizeof(from->routes[0]));
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Publish a part, then wait for the next interval. False: stop. */
static bool sampler_publish(struct top_sampler *sampler, struct part *part, double started)
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
	/* The condition uses the monotonic clock. */
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
	double started;

	if (!nvml)
		snprintf(sampler->gpu_work.note, sizeof(sampler->gpu_work.note), "%s",
			 wh_fail_text());
	if (nvml && !wh_topology_read(&sampler->tree, &topology)) {
		if (!wh_topology_add_nvml(topology, nvml, NULL))
			top_name_gpus(topology, &sampler->gpu_work);
		wh_topology_free(topology);
	}
	do {
		started = clock_now();
		if (nvml)
			sample_gpus(sampler, nvml, started);
	} while (sampler_publish(sampler, &sampler->gpus, started));
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
		started = clock_now();
		if (!observe_all(sampler->directory, ENGINE_SECONDS, &answers)) {
			for (size_t i = 0; i < answers.count; i++)
				observe_merge(&answers.engines[i]);
			top_engines_rows(&answers, &before, started - asked, &sampler->engine_work);
			observe_free(&before);
			before = answers;
			asked = started;
		}
	} while (sampler_publish(sampler, &sampler->engines, started));
	observe_free(&before);
	pthread_mutex_lock(&sampler->lock);
	sampler->engines.ended = true;
	pthread_cond_broadcast(&sampler->changed);
	pthread_mutex_unlock(&sampler->lock);
	return NULL;
}

/* The first sample of processes waits for NVML's list of them, but not long. */
static void sampler_await_gpus(struct top_sampler *sampler)
{
	double end = clock_now() + 2;
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
	struct top_nics nics = { 0 };
	double started;

	sampler_await_gpus(sampler);
	do {
		started = clock_now();
		work->interval = work->time > 0 ? started - work->time : 0;
		top_read_nics(&nics, &sampler->tree, work->interval, work);
		pthread_mutex_lock(&sampler->lock);
		if (named) {
			named->process_count = sampler->named_count;
			memcpy(named->processes, sampler->named, sizeof(named->processes));
		}
		pthread_mutex_unlock(&sampler->lock);
		if (named)
			sample_processes(sampler, work, named, work->interval);
		work->time = started;
	} while (sampler_publish(sampler, &sampler->host, started));
	free(named);
	pthread_mutex_lock(&sampler->lock);
	sampler->host.ended = true;
	pthread_cond_broadcast(&sampler->changed);
	pthread_mutex_unlock(&sampler->lock);
	return NULL;
}

struct top_sampler *top_start(const struct wh_tree *tree, double interval, const char *engines,
			      unsigned needs)
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
	sampler->asking.needs = needs;
	if (needs)
		sampler->gpus.started =
			!pthread_create(&sampler->gpus.thread, NULL, gpu_thread, sampler);
	sampler->host.started = !pthread_create(&sampler->host.thread, NULL, host_thread, sampler);
	sampler->directory = engines;
	if (!engines || strcmp(engines, "off") != 0)
		sampler->engines.started =
			!pthread_create(&sampler->engines.thread, NULL, engine_thread, sampler);
	pthread_mutex_unlock(&sampler->lock);
	return sampler;
}

/* Has each thread published that many samples? Call with the lock. */
static bool sampler_has_turned(const struct top_sampler *sampler, uint64_t turns)
{
	return sampler->host.turns >= turns &&
	       (!sampler->gpus.started || sampler->gpus.turns >= turns) &&
	       (!sampler->engines.started || sampler->engines.turns >= turns);
}

bool top_take(struct top_sampler *sampler, uint64_t turns, double seconds, struct top_sample *out)
{
	double end = clock_now() + seconds;
	struct timespec until = { .tv_sec = (time_t)end,
				  .tv_nsec = (long)((end - (double)(time_t)end) * 1e9) };
	int error = 0;
	bool taken;

	pthread_mutex_lock(&sampler->lock);
	while (!error && !sampler_has_turned(sampler, turns))
		error = pthread_cond_timedwait(&sampler->changed, &sampler->lock, &until);
	taken = sampler->host.turns > 0;
	if (taken) {
		memcpy(out, &sampler->sample, offsetof(struct top_sample, engines));
		copy_engines(&sampler->sample.engines, &out->engines);
	}
	if (taken && sampler->asking.needs && !sampler->gpus.turns)
		snprintf(out->note, sizeof(out->note), "NVML has not answered yet");
	pthread_mutex_unlock(&sampler->lock);
	return taken;
}

uint64_t top_turns(struct top_sampler *sampler)
{
	uint64_t turns;

	pthread_mutex_lock(&sampler->lock);
	turns = sampler->host.turns + sampler->gpus.turns + sampler->engines.turns;
	pthread_mutex_unlock(&sampler->lock);
	return turns;
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
	double end = clock_now() + 2;
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
