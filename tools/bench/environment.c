/* SPDX-License-Identifier: Apache-2.0 */
/* What a result depends on besides Wherry: the machine, its kernel, its settings, its state. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "revision.h"

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
static double play(struct volley *volley, int64_t deadline)
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
		double ns = play(&volley, bench_now() + duration / WINDOWS);

		if (!isnan(ns))
			window[known++] = ns;
	}
	atomic_store(&volley.over, true);
	pthread_join(thread, NULL);
	sched_setaffinity(0, sizeof(allowed), &allowed);
	return bench_median(window, known);
}

/* ---- files of one value ------------------------------------------------------------------- */

static json_t *read_line(const char *path)
{
	FILE *file = fopen(path, "re");
	char line[256];
	json_t *value;

	if (!file)
		return json_null();
	if (!fgets(line, sizeof(line), file))
		line[0] = '\0';
	fclose(file);
	line[strcspn(line, "\n")] = '\0';
	value = json_string(line);
	return value ? value : json_null();
}

/* "4096\t16384\t4194304" as an array. */
static json_t *read_numbers(const char *path)
{
	FILE *file = fopen(path, "re");
	json_t *array;
	int64_t number;

	if (!file)
		return json_null();
	array = json_array();
	while (fscanf(file, "%" SCNd64, &number) == 1)
		json_array_append_new(array, json_integer(number));
	fclose(file);
	return array;
}

/* The value after "key:" in a file of such lines; with `kib` a number of bytes. */
static json_t *read_field(const char *path, const char *key, bool kib)
{
	FILE *file = fopen(path, "re");
	size_t length = strlen(key);
	json_t *value = NULL;
	char line[256], *at;

	if (!file)
		return json_null();
	while (!value && fgets(line, sizeof(line), file)) {
		if (strncmp(line, key, length) || !strchr(" \t:", line[length]))
			continue;
		at = strchr(line, ':');
		if (!at)
			continue;
		at += 1 + strspn(at + 1, " \t");
		at[strcspn(at, "\n")] = '\0';
		value = kib ? json_integer((json_int_t)(strtoull(at, NULL, 10) << 10)) :
			      json_string(at);
	}
	fclose(file);
	return value ? value : json_null();
}

/* "always [madvise] never": the word in brackets. */
static json_t *read_choice(const char *path)
{
	json_t *line = read_line(path), *value = NULL;
	const char *text = json_string_value(line), *open, *shut;

	open = text ? strchr(text, '[') : NULL;
	shut = open ? strchr(open, ']') : NULL;
	if (shut)
		value = json_stringn(open + 1, (size_t)(shut - open - 1));
	json_decref(line);
	return value ? value : json_null();
}

/* ---- the environment ------------------------------------------------------------------------- */

static json_t *number(double value)
{
	return isnan(value) ? json_null() : json_real(round(value * 10) / 10);
}

static void add_machine(json_t *environment)
{
	struct utsname name;

	if (!uname(&name)) {
		json_object_set_new(environment, "kernel", json_string(name.release));
		json_object_set_new(environment, "architecture", json_string(name.machine));
	}
	json_object_set_new(environment, "cpu", read_field("/proc/cpuinfo", "model name", false));
	json_object_set_new(environment, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
	json_object_set_new(environment, "clock_source",
			    read_line("/sys/devices/system/clocksource/clocksource0/"
				      "current_clocksource"));
}

static void add_network(json_t *environment)
{
	json_object_set_new(environment, "congestion_control",
			    read_line("/proc/sys/net/ipv4/tcp_congestion_control"));
	json_object_set_new(environment, "tcp_wmem_bytes",
			    read_numbers("/proc/sys/net/ipv4/tcp_wmem"));
	json_object_set_new(environment, "tcp_rmem_bytes",
			    read_numbers("/proc/sys/net/ipv4/tcp_rmem"));
}

static void add_memory(json_t *environment)
{
	static const char file[] = "/proc/meminfo";
	json_t *pages = read_field(file, "HugePages_Total", false);

	json_object_set_new(environment, "memory_bytes", read_field(file, "MemTotal", true));
	json_object_set_new(environment, "memory_available_bytes",
			    read_field(file, "MemAvailable", true));
	json_object_set_new(environment, "page_bytes", json_integer(sysconf(_SC_PAGESIZE)));
	json_object_set_new(environment, "huge_pages_reserved",
			    json_is_string(pages) ?
				    json_integer(strtoll(json_string_value(pages), NULL, 10)) :
				    json_null());
	json_decref(pages);
	json_object_set_new(environment, "huge_page_bytes", read_field(file, "Hugepagesize", true));
	json_object_set_new(environment, "transparent_huge_pages",
			    read_choice("/sys/kernel/mm/transparent_hugepage/enabled"));
	json_object_set_new(environment, "transparent_huge_pages_shared",
			    read_choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
}

static void add_wherry(json_t *environment)
{
	json_object_set_new(environment, "wherry", json_string(wh_version()));
	json_object_set_new(environment, "revision",
			    WHERRY_REVISION[0] ? json_string(WHERRY_REVISION) : json_null());
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
	json_t *environment = json_object();
	time_t now = time(NULL);
	struct tm utc;
	char date[32];

	gmtime_r(&now, &utc);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
	json_object_set_new(environment, "date", json_string(date));
	add_wherry(environment);
	add_machine(environment);
	add_network(environment);
	add_memory(environment);
	if (gpus)
		add_gpus(environment, gpus);
	json_object_set_new(environment, "cache_line_before_ns", number(cache_line_before));
	json_object_set_new(environment, "cache_line_after_ns", number(cache_line_after));
	return environment;
}

/* ---- GPUs --------------------------------------------------------------------------------- */

/* As the library reads the setting cuda. */
static bool is_off(const char *path)
{
	return !strcmp(path, "off") || !strcmp(path, "no");
}

static void look(const char *path, struct bench_gpus *out)
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

		look(path, &seen);
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

const char *bench_knob(const struct arguments *arguments, const char *name)
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
