/* SPDX-License-Identifier: Apache-2.0 */
/* wherry window latency and api: the time of one access, and of opening and closing a window. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "bench/bench.h"
#include "window/window.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define LINE 64u

/* ---- samples --------------------------------------------------------------------------------- */

struct figures {
	double p50, p99, least, most; /* us; NAN: not measured */
};

static struct figures figures_make(uint64_t *samples, size_t count)
{
	bench_sort(samples, count);
	return (struct figures){
		(double)bench_percentile(samples, count, 0.5) / 1000,
		(double)bench_percentile(samples, count, 0.99) / 1000,
		(double)samples[0] / 1000,
		(double)samples[count - 1] / 1000,
	};
}

/* The cost of reading the clock, which is subtracted from every sample. */
static uint64_t clock_cost(void)
{
	uint64_t samples[1001];
	size_t count = sizeof(samples) / sizeof(samples[0]);

	for (size_t i = 0; i < count; i++) {
		int64_t start = bench_now();

		samples[i] = (uint64_t)(bench_now() - start);
	}
	bench_sort(samples, count);
	return samples[count / 2];
}

/* ---- latency --------------------------------------------------------------------------------- */

#define LATENCY_ROUNDS 2000u
#define SPOTS 64u /* used in turn, each in cache lines of its own */

enum op { WRITE, ARRIVE, READ, OPS };

static const char *const op_names[] = { "write", "write+flush", "read" };

/* Evict bytes from all of the CPU's caches. */
static void cache_evict(const unsigned char *at, uint64_t length)
{
#if defined(__x86_64__)
	for (uint64_t i = 0; i < length + LINE; i += LINE)
		_mm_clflush(at + (i < length ? i : length - 1));
	_mm_mfence();
#elif defined(__aarch64__)
	for (uint64_t i = 0; i < length + LINE; i += LINE)
		__asm__ volatile("dc civac, %0" ::"r"(at + (i < length ? i : length - 1))
				 : "memory");
	__asm__ volatile("dsb sy" ::: "memory");
#else
	/* No instruction for it: read and write more than the caches hold. */
	static unsigned char other[64 << 20];

	(void)at;
	(void)length;
	for (size_t i = 0; i < sizeof(other); i += LINE)
		((volatile unsigned char *)other)[i]++;
#endif
}

static int access_once(struct window_scene *scene, enum op op, uint64_t at, uint64_t size)
{
	unsigned char *host = scene->host + at;
	int error;

	if (op == READ)
		return wh_window_copy_from(scene->window, at, host, size);
	error = wh_window_copy_to(scene->window, at, host, size);
	return error || op == WRITE ? error : wh_window_flush(scene->window);
}

static int access_by_driver(struct window_scene *scene, enum op op, uint64_t at, uint64_t size)
{
	uint64_t gpu = (uintptr_t)scene->fixture.address + at, host = (uintptr_t)scene->host + at;

	if (op == READ)
		return gpu_call(scene->fixture.gpu, cuMemcpy, host, gpu, size);
	return gpu_call(scene->fixture.gpu, cuMemcpy, gpu, host, size);
}

typedef int access_function(struct window_scene *scene, enum op op, uint64_t at, uint64_t size);

struct latency {
	struct window_scene *scene;
	enum op op;
	bool cold;
	uint64_t size;
	uint64_t clock;
	uint64_t *samples;
	size_t count;
};

static int latency_time(const struct latency *l, access_function *access, size_t count,
			struct figures *out)
{
	/* Spots that fit the cache; one if the window has no room for more. */
	uint64_t step = (l->size + LINE - 1) / LINE * LINE;
	uint64_t spots = l->scene->length / step < SPOTS ? l->scene->length / step : SPOTS;
	int error = 0;

	spots = spots ? spots : 1;
	for (size_t i = 0; i < count + spots && !error; i++) {
		uint64_t at = i % spots * step, took;
		int64_t start;

		if (l->cold)
			cache_evict(l->scene->host + at, l->size);
		start = bench_now();
		error = access(l->scene, l->op, at, l->size);
		took = (uint64_t)(bench_now() - start);
		if (i >= spots) /* the first pass warms caches and TLBs */
			l->samples[i - spots] = took > l->clock ? took - l->clock : 0;
	}
	if (!error)
		*out = figures_make(l->samples, count);
	return error;
}

static void latency_row(const struct latency *l, const struct figures *window,
			const struct figures *driver)
{
	FILE *table = l->scene->fixture.choices->table;
	json_t *row = window_row(l->scene, "latency");
	char text[32];

	json_object_set_new(row, "op", json_string(op_names[l->op]));
	json_object_set_new(row, "cache", json_string(l->cold ? "cold" : "warm"));
	json_object_set_new(row, "size_bytes", json_integer((json_int_t)l->size));
	window_number(row, "p50_us", window->p50);
	window_number(row, "p99_us", window->p99);
	json_object_set_new(row, "limit_name", json_string("cuMemcpy"));
	window_number(row, "limit_p50_us", driver->p50);
	window_number(row, "limit_p99_us", driver->p99);
	json_object_set_new(row, "samples", json_integer((json_int_t)l->count));
	format_size(text, sizeof(text), l->size);
	fprintf(table, "  %-11s %-5s %-8s", op_names[l->op], l->cold ? "cold" : "warm", text);
	window_cell(table, window->p50, 8, 3);
	window_cell(table, window->p99, 8, 3);
	window_cell(table, driver->p50, 8, 3);
	window_cell(table, driver->p99, 8, 3);
	fputc('\n', table);
	fflush(table);
}

static int latency_measure(struct latency *l)
{
	static const uint64_t sizes[] = { 4, 8, 64, KIB, 4 * KIB };
	struct window_scene *scene = l->scene;
	struct figures window, driver;
	uint64_t rows = 0;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		rows += sizes[s] <= scene->length ? 2 * OPS : 0;
	window_begin(scene, rows);

	fprintf(scene->fixture.choices->table, "  %-11s %-5s %-8s %8s %8s %8s %8s\n", "us", "cache",
		"size", "p50", "p99", "driver's", "p99");
	for (l->op = 0; l->op < OPS; l->op++)
		for (int cold = 0; cold < 2; cold++)
			for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
				int error;

				if (sizes[s] > scene->length)
					continue;
				l->cold = cold;
				l->size = sizes[s];
				window_doing(scene, "%s, %s cache", op_names[l->op],
					     cold ? "cold" : "warm");
				error = latency_time(l, access_once, l->count, &window);
				if (error)
					return error;
				if (latency_time(l, access_by_driver, l->count / 10 + 1, &driver)) {
					snprintf(scene->text, sizeof(scene->text), "%s",
						 scene->fixture.gpu->text);
					return -EIO;
				}
				latency_row(l, &window, &driver);
			}
	return 0;
}

static int latency_run(struct window_scene *scene)
{
	unsigned rounds = scene->fixture.choices->rounds;
	struct latency l = { .scene = scene,
			     .count = rounds ? rounds : LATENCY_ROUNDS,
			     .clock = clock_cost() };
	int error;

	l.samples = calloc(l.count + 1, sizeof(*l.samples));
	if (!l.samples) {
		snprintf(scene->text, sizeof(scene->text), "out of memory");
		return -ENOMEM;
	}
	error = latency_measure(&l);
	free(l.samples);
	return error;
}

int window_latency(struct window_choices *choices)
{
	uint64_t size = choices->size ? choices->size : 512 * KIB;

	return window_each_memory(choices, size, size, latency_run);
}

/* ---- api ------------------------------------------------------------------------------------- */

#define API_ROUNDS 100u

enum call { OPEN, AGAIN, INFO, CLOSE, CALLS };

static const char *const call_names[] = { "open", "open again", "info", "close" };
static const char *const call_meanings[] = { "pin and map", "shares the open one", "",
					     "unmap and unpin" };

static int api_time_calls(struct window_scene *scene, uint64_t size, uint64_t *took[CALLS],
			  size_t i)
{
	struct wh_window_info info = { .size = sizeof(info) };
	struct wh_window *window, *again;
	int64_t at[CALLS + 1], before;
	int error;

	at[0] = bench_now();
	error = window_fixture_window(&scene->fixture, 0, size, &window);
	at[1] = bench_now();
	if (error)
		return error;
	error = window_fixture_window(&scene->fixture, 0, size, &again);
	at[2] = bench_now();
	if (!error)
		error = wh_window_info(window, &info);
	at[3] = bench_now();
	if (!error)
		error = wh_window_close(again);
	before = bench_now();
	if (!error)
		error = wh_window_close(window);
	took[OPEN][i] = (uint64_t)(at[1] - at[0]);
	took[AGAIN][i] = (uint64_t)(at[2] - at[1]);
	took[INFO][i] = (uint64_t)(at[3] - at[2]);
	took[CLOSE][i] = (uint64_t)(bench_now() - before);
	return error;
}

#define BUCKETS 24u /* of us: below 1, below 2, below 4 ... */
#define BAR 40u

static unsigned histogram_bucket(uint64_t ns)
{
	unsigned bucket = 0;

	while (bucket + 1 < BUCKETS && ns >= UINT64_C(1000) << bucket)
		bucket++;
	return bucket;
}

/* Print a histogram; it is returned as JSON. */
static json_t *histogram_print(FILE *table, const uint64_t *sorted, size_t count)
{
	size_t buckets[BUCKETS] = { 0 }, highest = 0;
	json_t *json = json_array();

	for (size_t i = 0; i < count; i++)
		buckets[histogram_bucket(sorted[i])]++;
	for (unsigned b = 0; b < BUCKETS; b++)
		highest = buckets[b] > highest ? buckets[b] : highest;
	for (unsigned b = 0; b < BUCKETS; b++) {
		unsigned length =
			highest ? (unsigned)((buckets[b] * BAR + highest - 1) / highest) : 0;

		if (!buckets[b])
			continue;
		json_array_append_new(json, json_pack("{s:I, s:I}", "below_us", (json_int_t)1 << b,
						      "count", (json_int_t)buckets[b]));
		fprintf(table, "      < %7llu us %7zu ", 1ULL << b, buckets[b]);
		for (unsigned i = 0; i < length; i++)
			fputc('#', table);
		fputc('\n', table);
	}
	return json;
}

static void api_row(struct window_scene *scene, uint64_t size, enum call call, uint64_t *samples,
		    size_t count)
{
	struct figures f = figures_make(samples, count);
	FILE *table = scene->fixture.choices->table;
	json_t *row = window_row(scene, "api");
	char text[32];

	format_size(text, sizeof(text), size);
	fprintf(table, "  %-8s %-11s", text, call_names[call]);
	window_cell(table, f.p50, 9, 2);
	window_cell(table, f.p99, 9, 2);
	window_cell(table, f.least, 9, 2);
	window_cell(table, f.most, 9, 2);
	fprintf(table, "%s%s\n", *call_meanings[call] ? "  " : "", call_meanings[call]);
	json_object_set_new(row, "call", json_string(call_names[call]));
	json_object_set_new(row, "size_bytes", json_integer((json_int_t)size));
	window_number(row, "p50_us", f.p50);
	window_number(row, "p99_us", f.p99);
	window_number(row, "least_us", f.least);
	window_number(row, "most_us", f.most);
	json_object_set_new(row, "samples", json_integer((json_int_t)count));
	json_object_set_new(row, "histogram", histogram_print(table, samples, count));
}

static int api_measure(struct window_scene *scene, uint64_t *took[CALLS], size_t count)
{
	static const uint64_t sizes[] = { 64 * KIB, MIB, 16 * MIB, 64 * MIB, 1024 * MIB };
	uint64_t rows = 0;
	char text[32];
	int error = 0;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		rows += sizes[s] <= scene->length ? CALLS : 0;
	window_begin(scene, rows);

	fprintf(scene->fixture.choices->table, "  %-8s %-11s %9s %9s %9s %9s  us\n", "size", "call",
		"p50", "p99", "least", "most");
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && sizes[s] <= scene->length; s++) {
		/* Warm up: the first call of a backend does more. */
		error = api_time_calls(scene, sizes[s], took, 0);
		format_size(text, sizeof(text), sizes[s]);
		for (size_t i = 0; i < count && !error; i++) {
			window_doing(scene, "windows of %s", text);
			error = api_time_calls(scene, sizes[s], took, i);
		}
		if (error)
			return error;
		for (enum call call = 0; call < CALLS; call++)
			api_row(scene, sizes[s], call, took[call], count);
	}
	return 0;
}

static int api_run(struct window_scene *scene)
{
	size_t count = scene->fixture.choices->rounds ? scene->fixture.choices->rounds : API_ROUNDS;
	uint64_t *samples = calloc(CALLS * count, sizeof(*samples)), *took[CALLS];
	int error;

	if (!samples) {
		snprintf(scene->text, sizeof(scene->text), "out of memory");
		return -ENOMEM;
	}
	for (unsigned call = 0; call < CALLS; call++)
		took[call] = samples + call * count;
	/* Else all windows would share the scene's. */
	error = wh_window_close(scene->window);
	scene->window = NULL;
	if (!error)
		error = api_measure(scene, took, count);
	free(samples);
	return error;
}

int window_api(struct window_choices *choices)
{
	return window_each_memory(choices, choices->size ? choices->size : 64 * MIB, KIB, api_run);
}
