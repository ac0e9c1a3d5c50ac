/* SPDX-License-Identifier: Apache-2.0 */
/* What a result depends on besides Wherry: the machine, its kernel, its settings, its state. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/machine.h"

/* ---- the time a cache line takes from CPU to CPU ------------------------------------------ */

#define WINDOWS 5

struct volley {
	_Alignas(64) _Atomic uint32_t ball; /* even: this side's turn; odd: the other's */
	_Alignas(64) _Atomic bool over;
	int cpu;
};

static void sit_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void *return_ball(void *arg)
{
	struct volley *volley = arg;
	uint32_t ball;

	sit_on(volley->cpu);
	while (!atomic_load_explicit(&volley->over, memory_order_relaxed)) {
		ball = atomic_load_explicit(&volley->ball, memory_order_acquire);
		if (ball % 2)
			atomic_store_explicit(&volley->ball, ball + 1, memory_order_release);
	}
	return NULL;
}

/* Play until `deadline`; returns ns for one way. */
static double volley_play(struct volley *volley, int64_t deadline)
{
	int64_t start = bench_now(), now = start;
	uint64_t volleys = 0;
	unsigned waited = 0;
	uint32_t ball;

	while (now < deadline) {
		ball = atomic_load_explicit(&volley->ball, memory_order_acquire);
		if (ball % 2) {
			/* The other thread may not be running at all. */
			if (++waited % 4096 == 0)
				now = bench_now();
			continue;
		}
		atomic_store_explicit(&volley->ball, ball + 1, memory_order_release);
		if (++volleys % 64 == 0)
			now = bench_now();
	}
	now = bench_now();
	return volleys < 64 ? NAN : (double)(now - start) / (double)volleys / 2;
}

/* The first two CPUs that this process may use. */
static bool two_cpus(cpu_set_t *allowed, int cpu[2])
{
	int found = 0;

	if (sched_getaffinity(0, sizeof(*allowed), allowed))
		return false;
	for (int i = 0; found < 2 && i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, allowed))
			cpu[found++] = i;
	return found == 2;
}

double bench_cache_line(int64_t duration)
{
	struct volley volley = { 0 };
	double window[WINDOWS];
	size_t known = 0;
	cpu_set_t allowed;
	pthread_t thread;
	int cpu[2];

	if (!two_cpus(&allowed, cpu))
		return NAN;
	volley.cpu = cpu[1];
	if (pthread_create(&thread, NULL, return_ball, &volley))
		return NAN;
	sit_on(cpu[0]);
	/* The median of short windows: in some of them other processes had the CPU. */
	for (int i = 0; i < WINDOWS; i++) {
		double ns = volley_play(&volley, bench_now() + duration / WINDOWS);

		if (!isnan(ns))
			window[known++] = ns;
	}
	atomic_store(&volley.over, true);
	pthread_join(thread, NULL);
	sched_setaffinity(0, sizeof(allowed), &allowed);
	return bench_median(window, known);
}

/* ---- the environment ------------------------------------------------------------------------- */

static json_t *json_number(double value)
{
	return isnan(value) ? json_null() : json_real(round(value * 10) / 10);
}

/* Every GPU that this process sees, so that a reader knows what "cuda:0" is. */
static void add_gpus(json_t *environment, const struct bench_gpus *gpus)
{
	json_t *list = json_array();

	for (size_t i = 0; i < gpus->count; i++)
		json_array_append_new(
			list, json_pack("{s:i, s:s, s:s, s:s}", "number", gpus->name[i].ordinal,
					"name", gpus->name[i].name, "uuid", gpus->name[i].uuid,
					"pci", gpus->name[i].pci));
	json_object_set_new(environment, "gpus", list);
	json_object_set_new(environment, "cuda_version", json_integer(gpus->driver));
}

json_t *bench_environment(const struct bench_gpus *gpus, double cache_line_before,
			  double cache_line_after)
{
	json_t *environment = machine_describe();

	if (gpus)
		add_gpus(environment, gpus);
	json_object_set_new(environment, "cache_line_before_ns", json_number(cache_line_before));
	json_object_set_new(environment, "cache_line_after_ns", json_number(cache_line_after));
	return environment;
}

/* ---- GPUs --------------------------------------------------------------------------------- */

/* As the library reads the setting cuda. */
static bool is_off(const char *path)
{
	return !strcmp(path, "off") || !strcmp(path, "no");
}

static void gpus_look(const char *path, struct bench_gpus *out)
{
	struct gpu *gpu = gpu_open(path, out->text);

	if (gpu && gpu_list(gpu, out->name, &out->count, &out->driver))
		memcpy(out->text, gpu->text, sizeof(out->text));
	gpu_close(gpu);
}

void bench_gpus_look(const char *path, struct bench_gpus *out)
{
	int status, pair[2];
	pid_t pid;

	*out = (struct bench_gpus){ .text = "the driver could not be asked" };
	if (is_off(path)) {
		snprintf(out->text, sizeof(out->text), "the setting cuda is %s", path);
		return;
	}
	if (pipe(pair))
		return;
	fflush(NULL);
	pid = fork();
	if (!pid) {
		struct bench_gpus seen = { .count = 0 };

		gpus_look(path, &seen);
		_exit(write(pair[1], &seen, sizeof(seen)) == (ssize_t)sizeof(seen) ? 0 : 1);
	}
	close(pair[1]);
	if (pid > 0) {
		struct bench_gpus seen;
		size_t got = 0;
		ssize_t n;

		while (got < sizeof(seen) &&
		       (n = read(pair[0], (char *)&seen + got, sizeof(seen) - got)) > 0)
			got += (size_t)n;
		waitpid(pid, &status, 0);
		if (got == sizeof(seen))
			*out = seen;
	}
	close(pair[0]);
}

const char *bench_setting(const struct arguments *arguments, const char *name)
{
	const struct wh_config_row *row;
	size_t length = strlen(name);
	const char *setting, *value;
	int cursor = 0;

	while ((setting = argument_next(arguments, "config", &cursor)))
		if (!strncmp(setting, name, length) && setting[length] == '=')
			return setting + length + 1;
	for (size_t i = 0; (row = wh_config_row(i)); i++)
		if (!strcmp(row->name, name)) {
			value = getenv(row->environment);
			return value ? value : row->fallback;
		}
	return "";
}
