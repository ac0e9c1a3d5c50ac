/* SPDX-License-Identifier: Apache-2.0 */
/* wherry window latency and api: how long one access takes, and how long making a window does. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
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

static struct figures figures_of(uint64_t *samples, size_t count)
{
	bench_sort(samples, count);
	return (struct figures){
		(double)bench_percentile(samples, count, 0.5) / 1000,
		(double)bench_percentile(samples, count, 0.99) / 1000,
		(double)samples[0] / 1000,
		(double)samples[count - 1] / 1000,
	};
}

/* What it costs to look at the clock, which is in every sample and is taken out again. */
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
#define PLACES 64u /* that are gone through, each in lines of its own */

enum op { WRITE, ARRIVE, READ, OPS };

static const char *const op_names[] = { "write", "write+flush", "read" };

/* Take the bytes out of all of the CPU's caches. */
static void chill(const unsigned char *at, uint64_t length)
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
	/* No instruction for it: what is larger than caches drives it out. */
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

static int by_driver(struct window_scene *scene, enum op op, uint64_t at, uint64_t size)
{
	uint64_t gpu = (uintptr_t)scene->place.address + at, host = (uintptr_t)scene->host + at;

	if (op == READ)
		return gpu_call(scene->place.gpu, cuMemcpy, host, gpu, size);
	return gpu_call(scene->place.gpu, cuMemcpy, gpu, host, size);
}

typedef int access_fn(struct window_scene *scene, enum op op, uint64_t at, uint64_t size);

struct latency {
	struct window_scene *scene;
	enum op op;
	bool cold;
	uint64_t size;
	uint64_t clock;
	uint64_t *samples;
	size_t count;
};

static int time_accesses(const struct latency *l, access_fn *access, size_t count,
			 struct figures *out)
{
	/* Places that the cache has room for, or one, if the window has no room for more. */
	uint64_t step = (l->size + LINE - 1) / LINE * LINE;
	uint64_t places = l->scene->length / step < PLACES ? l->scene->length / step : PLACES;
	int error = 0;

	places = places ? places : 1;
	for (size_t i = 0; i < count + places && !error; i++) {
		uint64_t at = i % places * step, took;
		int64_t start;

		if (l->cold)
			chill(l->scene->host + at, l->size);
		start = bench_now();
		error = access(l->scene, l->op, at, l->size);
		took = (uint64_t)(bench_now() - start);
		if (i >= places) /* the first time round is for the caches and for TLBs */
			l->samples[i - places] = took > l->clock ? took - l->clock : 0;
	}
	if (!error)
		*out = figures_of(l->samples, count);
	return error;
}

static void latency_row(const struct latency *l, const struct figures *window,
			const struct figures *driver)
{
	FILE *table = l->scene->place.choices->table;
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

static int measure_latency(struct latency *l)
{
	static const uint64_t sizes[] = { 4, 8, 64, KIB, 4 * KIB };
	struct window_scene *scene = l->scene;
	struct figures window, driver;
	uint64_t rows = 0;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		rows += sizes[s] <= scene->length ? 2 * OPS : 0;
	window_begin(scene, rows);

	fprintf(scene->place.choices->table, "  %-11s %-5s %-8s %8s %8s %8s %8s\n", "us", "cache",
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
				error = time_accesses(l, access_once, l->count, &window);
				if (error)
					return error;
				if (time_accesses(l, by_driver, l->count / 10 + 1, &driver)) {
					snprintf(scene->text, sizeof(scene->text), "%s",
						 scene->place.gpu->text);
					return -EIO;
				}
				latency_row(l, &window, &driver);
			}
	return 0;
}

static int latency(struct window_scene *scene)
{
	unsigned rounds = scene->place.choices->rounds;
	struct latency l = { .scene = scene,
			     .count = rounds ? rounds : LATENCY_ROUNDS,
			     .clock = clock_cost() };
	int error;

	l.samples = calloc(l.count + 1, sizeof(*l.samples));
	if (!l.samples) {
		snprintf(scene->text, sizeof(scene->text), "out of memory");
		return -ENOMEM;
	}
	error = measure_latency(&l);
	free(l.samples);
	return error;
}

int window_latency(struct window_choices *choices)
{
	uint64_t size = choices->size ? choices->size : 512 * KIB;

	return window_each_memory(choices, size, size, latency);
}

/* ---- api ------------------------------------------------------------------------------------- */

#define API_ROUNDS 100u

enum call { OPEN, AGAIN, INFO, CLOSE, CALLS };

static const char *const call_names[] = { "open", "open again", "info", "close" };
static const char *const call_meanings[] = { "pin and map", "shares what is open", "",
					     "unmap and unpin" };

static int time_calls(struct window_scene *scene, uint64_t size, uint64_t *took[CALLS], size_t i)
{
	struct wh_window_info info = { .size = sizeof(info) };
	struct wh_window *window, *again;
	int64_t at[CALLS + 1], before;
	int error;

	at[0] = bench_now();
	error = window_place_window(&scene->place, 0, size, &window);
	at[1] = bench_now();
	if (error)
		return error;
	error = window_place_window(&scene->place, 0, size, &again);
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

static unsigned bucket_of(uint64_t ns)
{
	unsigned bucket = 0;

	while (bucket + 1 < BUCKETS && ns >= UINT64_C(1000) << bucket)
		bucket++;
	return bucket;
}

/* How often it took how long, for people and as JSON. */
static json_t *histogram(FILE *table, const uint64_t *sorted, size_t count)
{
	size_t buckets[BUCKETS] = { 0 }, highest = 0;
	json_t *json = json_array();

	for (size_t i = 0; i < count; i++)
		buckets[bucket_of(sorted[i])]++;
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
	struct figures f = figures_of(samples, count);
	FILE *table = scene->place.choices->table;
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
	json_object_set_new(row, "histogram", histogram(table, samples, count));
}

static int measure_calls(struct window_scene *scene, uint64_t *took[CALLS], size_t count)
{
	static const uint64_t sizes[] = { 64 * KIB, MIB, 16 * MIB, 64 * MIB, 1024 * MIB };
	uint64_t rows = 0;
	char text[32];
	int error = 0;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		rows += sizes[s] <= scene->length ? CALLS : 0;
	window_begin(scene, rows);

	fprintf(scene->place.choices->table, "  %-8s %-11s %9s %9s %9s %9s  us\n", "size", "call",
		"p50", "p99", "least", "most");
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && sizes[s] <= scene->length; s++) {
		/* Once before: what a backend does the first time is not of interest. */
		error = time_calls(scene, sizes[s], took, 0);
		format_size(text, sizeof(text), sizes[s]);
		for (size_t i = 0; i < count && !error; i++) {
			window_doing(scene, "windows of %s", text);
			error = time_calls(scene, sizes[s], took, i);
		}
		if (error)
			return error;
		for (enum call call = 0; call < CALLS; call++)
			api_row(scene, sizes[s], call, took[call], count);
	}
	return 0;
}

static int api(struct window_scene *scene)
{
	size_t count = scene->place.choices->rounds ? scene->place.choices->rounds : API_ROUNDS;
	uint64_t *samples = calloc(CALLS * count, sizeof(*samples)), *took[CALLS];
	int error;

	if (!samples) {
		snprintf(scene->text, sizeof(scene->text), "out of memory");
		return -ENOMEM;
	}
	for (unsigned call = 0; call < CALLS; call++)
		took[call] = samples + call * count;
	/* The scene's own window would be shared by all others. */
	error = wh_window_close(scene->window);
	scene->window = NULL;
	if (!error)
		error = measure_calls(scene, took, count);
	free(samples);
	return error;
}

int window_api(struct window_choices *choices)
{
	return window_each_memory(choices, choices->size ? choices->size : 64 * MIB, KIB, api);
}
