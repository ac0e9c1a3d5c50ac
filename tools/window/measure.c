/* SPDX-License-Identifier: Apache-2.0 */
/* What the measuring subcommands of wherry window share; and bandwidth, with one thread and with
 * several. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include "bench/bench.h"
#include "engine.h"
#include "window/copy.h"
#include "window/window.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define SLICE 4000000 /* ns of one measurement in one round */
#define ROUNDS 9
/* Reads this short are loads, never copies by the copy engine. */
#define CHUNK KIB
/* The largest read by memcpy: 16 bytes take a microsecond. */
#define LOADS_MOST (64 * KIB)

/* ---- the scene ------------------------------------------------------------------------------- */

static int scene_open(struct window_scene *scene, const struct window_choices *choices,
		      const struct memory *memory, uint64_t length, uint64_t on_host,
		      char text[WINDOW_TEXT])
{
	static const struct memory pinned = { .kind = WH_MEMORY_PINNED, .name = "pinned" };
	struct window_fixture *fixture = &scene->fixture;
	void *host = NULL;
	int error;

	*scene = (struct window_scene){ .info.size = sizeof(scene->info), .length = length };
	error = window_fixture_open(fixture, choices, memory, length, text);
	if (error)
		return error;
	error = memory_alloc(fixture->engine, &pinned, on_host, &host);
	scene->host = host;
	if (!error)
		error = window_fixture_window(fixture, 0, length, &scene->window);
	if (!error)
		error = wh_window_info(scene->window, &scene->info);
	if (error) {
		snprintf(text, WINDOW_TEXT, "%s", wh_error_text());
	} else if (gpu_enter(fixture->gpu, fixture->device)) {
		snprintf(text, WINDOW_TEXT, "%s", fixture->gpu->text);
		error = -EIO;
	} else {
		scene->entered = true;
		memset(host, 7, on_host);
	}
	return error;
}

static int scene_close(struct window_scene *scene, char text[WINDOW_TEXT])
{
	struct window_fixture *fixture = &scene->fixture;
	int error = 0, last;

	progress_end(&scene->progress);
	if (scene->entered)
		gpu_leave(fixture->gpu);
	if (scene->window)
		error = wh_window_close(scene->window);
	if (scene->host && !error)
		error = wh_memory_free(fixture->engine, scene->host);
	if (error)
		snprintf(text, WINDOW_TEXT, "%s", wh_error_text());
	if (!fixture->engine)
		return error;
	last = window_fixture_close(fixture, text);
	return error ? error : last;
}

static int scene_skip(const struct window_choices *choices, const struct memory *memory,
		      const char *text)
{
	fprintf(choices->table, "%s: skipped: %s\n", memory->name, text);
	json_array_append_new(choices->skipped,
			      json_pack("{s:s, s:s}", "memory", memory->name, "reason", text));
	return 0;
}

int window_each_memory(struct window_choices *choices, uint64_t length, uint64_t on_host,
		       int (*run)(struct window_scene *scene))
{
	struct window_scene scene;
	char text[WINDOW_TEXT], how[96];
	int error, last, code = EXIT_PASS;

	for (size_t i = 0; !code && i < choices->memory_count; i++) {
		const struct memory *memory = &choices->memories[i];

		error = scene_open(&scene, choices, memory, length, on_host, text);
		if (!error) {
			window_describe(&scene.info, how, sizeof(how));
			fprintf(choices->table, "%s%s: %s\n", i ? "\n" : "", memory->name, how);
			error = run(&scene);
			if (error)
				snprintf(text, sizeof(text), "%s",
					 *scene.text ? scene.text : wh_error_text());
		} else if (error == -EOPNOTSUPP && i && !choices->memories_given) {
			error = scene_skip(choices, memory, text);
		}
		if (error) {
			char more[WINDOW_TEXT];

			code = window_fail(memory, error, text);
			scene_close(&scene, more);
			break;
		}
		last = scene_close(&scene, text);
		if (last)
			code = window_fail(memory, last, text);
	}
	return code;
}

void window_begin(struct window_scene *scene, uint64_t rows)
{
	snprintf(scene->label, sizeof(scene->label), "%s", scene->fixture.memory->name);
	progress_start_steps(&scene->progress, scene->label, rows, false);
}

void window_doing(struct window_scene *scene, const char *format, ...)
{
	size_t used = strlen(scene->fixture.memory->name);
	va_list list;

	snprintf(scene->label, sizeof(scene->label), "%s: ", scene->fixture.memory->name);
	va_start(list, format);
	vsnprintf(scene->label + used + 2, sizeof(scene->label) - used - 2, format, list);
	va_end(list);
	progress_move(&scene->progress, scene->rows);
}

json_t *window_row(struct window_scene *scene, const char *what)
{
	json_t *json = json_pack("{s:s, s:s, s:s, s:s}", "what", what, "memory",
				 scene->fixture.memory->name, "backend", scene->info.backend,
				 "mapping", window_mapping_name(scene->info.mapping));

	json_array_append_new(scene->fixture.choices->results, json);
	scene->rows++;
	progress_wipe();
	return json;
}

void window_number(json_t *row, const char *key, double value)
{
	json_object_set_new(row, key, isfinite(value) ? json_real(value) : json_null());
}

/* ---- one copy -------------------------------------------------------------------------------- */

enum way { BY_WINDOW, BY_LIBC, BY_DRIVER, WAYS, BY_ONE };

struct copy {
	struct window_scene *scene;
	bool write;
	enum way way;
	uint64_t size, walk, at; /* bytes; `at` starts over after `walk` */
	const struct wh_copy_way *one; /* BY_ONE */
};

/* memcpy() may use accesses that device mappings refuse. */
static bool copy_is_possible(const struct copy *copy)
{
	uint32_t mapping = copy->scene->info.mapping;

	return copy->way != BY_LIBC || ((mapping == WH_WINDOW_WC || mapping == WH_WINDOW_CACHED) &&
					(copy->write || copy->size <= LOADS_MOST));
}

static int copy_once(struct copy *copy)
{
	struct window_scene *scene = copy->scene;
	unsigned char *host = scene->host + copy->at;
	unsigned char *window = (unsigned char *)scene->info.pointer + copy->at;
	uint64_t on_gpu = (uintptr_t)scene->fixture.address + copy->at;
	struct gpu *gpu = scene->fixture.gpu;

	switch (copy->way) {
	case BY_WINDOW:
		return copy->write ? wh_window_copy_to(scene->window, copy->at, host, copy->size) :
				     wh_window_copy_from(scene->window, copy->at, host, copy->size);
	case BY_LIBC:
		if (copy->write)
			memcpy(window, host, copy->size);
		else
			memcpy(host, window, copy->size);
		__sync_synchronize();
		return 0;
	case BY_ONE:
		if (copy->write)
			wh_copy_to((struct wh_copy){ .put = copy->one }, window, host, copy->size);
		else
			wh_copy_from((struct wh_copy){ .get = copy->one }, host, window,
				     copy->size);
		return 0;
	default:
		return copy->write ? gpu_call(gpu, cuMemcpy, on_gpu, (uintptr_t)host, copy->size) :
				     gpu_call(gpu, cuMemcpy, (uintptr_t)host, on_gpu, copy->size);
	}
}

/* GB/s of back-to-back copies; NAN: error. */
static double copy_rate(struct copy *copy)
{
	struct bench_pace pace = { .deadline = bench_now() + SLICE };
	int64_t start = bench_now();
	uint64_t bytes = 0;

	do {
		if (copy_once(copy))
			return NAN;
		bytes += copy->size;
		copy->at += copy->size;
		if (copy->at + copy->size > copy->walk)
			copy->at = 0;
	} while (!bench_pace_over(&pace));
	return (double)bytes / (double)(bench_now() - start);
}

/* Copies of up to 1 MiB use the same 1 MiB, which stays in the CPU's cache. */
static uint64_t copy_walk(const struct window_scene *scene, uint64_t size)
{
	return size <= MIB && scene->length > MIB ? MIB : scene->length;
}

struct rates {
	double median[WAYS]; /* GB/s; NAN: not possible */
	double ratio; /* to the driver's: the median of the rounds' ratios */
};

static int copy_measure(struct window_scene *scene, bool write, uint64_t size,
			const char *size_text, struct rates *out)
{
	struct bench_pairs pairs = { .count = 0 };
	unsigned rounds = scene->fixture.choices->rounds;
	double values[WAYS][BENCH_ROUNDS];

	rounds = rounds && rounds < BENCH_ROUNDS ? rounds : ROUNDS;
	for (unsigned r = 0; r < rounds; r++) {
		window_doing(scene, "%s of %s", write ? "write" : "read", size_text);
		for (enum way way = 0; way < WAYS; way++) {
			struct copy copy = { scene, write, way, size, copy_walk(scene, size),
					     0,     NULL };

			values[way][r] = copy_is_possible(&copy) ? copy_rate(&copy) : NAN;
			if (way != BY_LIBC && isnan(values[way][r])) {
				if (way == BY_DRIVER)
					snprintf(scene->text, sizeof(scene->text), "%s",
						 scene->fixture.gpu->text);
				return -EIO;
			}
		}
		bench_pairs_add(&pairs, values[BY_WINDOW][r], values[BY_DRIVER][r]);
	}
	for (enum way way = 0; way < WAYS; way++)
		out->median[way] = isnan(values[way][0]) ? NAN : bench_median(values[way], rounds);
	out->ratio = bench_pairs_ratio(&pairs);
	return 0;
}

void window_cell(FILE *table, double value, int width, int digits)
{
	if (isfinite(value))
		fprintf(table, " %*.*f", width, digits, value);
	else
		fprintf(table, " %*s", width, "-");
}

static const uint64_t copy_sizes[] = { 64, KIB, 4 * KIB, 64 * KIB, MIB, 16 * MIB };

#define COPIES (sizeof(copy_sizes) / sizeof(copy_sizes[0]))

static void copy_row(struct window_scene *scene, bool read, uint64_t size,
		     const struct rates *rates)
{
	json_t *row = window_row(scene, "copy");

	json_object_set_new(row, "op", json_string(read ? "read" : "write"));
	json_object_set_new(row, "size_bytes", json_integer((json_int_t)size));
	window_number(row, "bandwidth_GBps", rates->median[BY_WINDOW]);
	window_number(row, "libc_GBps", rates->median[BY_LIBC]);
	json_object_set_new(row, "limit_name", json_string("cuMemcpy"));
	window_number(row, "limit_GBps", rates->median[BY_DRIVER]);
	window_number(row, "ratio", rates->ratio);
}

static int copies_run(struct window_scene *scene)
{
	FILE *table = scene->fixture.choices->table;
	struct rates rates[2];
	char text[32];

	fprintf(table, "  %-8s %23s   %23s\n  %-8s %7s %7s %7s   %7s %7s %7s  GB/s\n", "", "write",
		"read", "size", "window", "memcpy", "driver", "window", "memcpy", "driver");
	for (size_t s = 0; s < COPIES && copy_sizes[s] <= scene->length; s++) {
		format_size(text, sizeof(text), copy_sizes[s]);
		for (int read = 0; read < 2; read++) {
			int error = copy_measure(scene, !read, copy_sizes[s], text, &rates[read]);

			if (error)
				return error;
			copy_row(scene, read, copy_sizes[s], &rates[read]);
		}
		fprintf(table, "  %-8s", text);
		for (int read = 0; read < 2; read++) {
			for (enum way way = 0; way < WAYS; way++)
				window_cell(table, rates[read].median[way], 7, 3);
			fputs(read ? "\n" : "  ", table);
		}
		fflush(table);
	}
	return 0;
}

/* ---- each way of copying --------------------------------------------------------------------- */

#define WAY_SIZES 5

static void way_row(struct window_scene *scene, const struct wh_copy_way *one, bool write)
{
	static const uint64_t sizes[WAY_SIZES] = { 8, 64, KIB, 4 * KIB, 64 * KIB };
	FILE *table = scene->fixture.choices->table;
	double medians[WAY_SIZES];
	size_t count = 0;

	for (size_t s = 0; s < WAY_SIZES && sizes[s] <= scene->length; s++) {
		double rounds[3];
		json_t *row;

		window_doing(scene, "%s by %s", write ? "write" : "read", one->name);
		for (int r = 0; r < 3; r++) {
			struct copy copy = {
				scene, write, BY_ONE, sizes[s], copy_walk(scene, sizes[s]), 0, one
			};

			rounds[r] = copy_rate(&copy);
		}
		row = window_row(scene, "way");
		medians[count++] = bench_median(rounds, 3);
		json_object_set_new(row, "op", json_string(write ? "write" : "read"));
		json_object_set_new(row, "way", json_string(one->name));
		json_object_set_new(row, "size_bytes", json_integer((json_int_t)sizes[s]));
		window_number(row, "bandwidth_GBps", medians[s]);
	}
	fprintf(table, "  %-10s %-6s", one->name, write ? "write" : "read");
	for (size_t s = 0; s < count; s++)
		window_cell(table, medians[s], 8, 3);
	fputc('\n', table);
}

static bool way_serves(const struct window_scene *scene, const struct wh_copy_way *way)
{
	return (way->needs & wh_copy_cpu()) == way->needs &&
	       way->mappings >> scene->info.mapping & 1;
}

/* Measure all methods of this CPU for the mapping, not only the best one. */
static void ways_run(struct window_scene *scene)
{
	FILE *table = scene->fixture.choices->table;

	if (!scene->info.pointer)
		return;
	fprintf(table, "  %-17s %8s %8s %8s %8s %8s  GB/s\n", "way", "8 bytes", "64 bytes", "1 KiB",
		"4 KiB", "64 KiB");
	for (int read = 0; read < 2; read++)
		for (const struct wh_copy_way *w = read ? wh_copy_gets : wh_copy_puts; w->name; w++)
			if (way_serves(scene, w))
				way_row(scene, w, !read);
}

/* ---- several threads ------------------------------------------------------------------------- */

#define THREADS 8
#define PART_MOST (2 * MIB)

/* Threads start together here, unless one could not be created. */
struct start_line {
	_Atomic unsigned waiting;
	_Atomic bool broken;
};

struct worker {
	struct window_scene *scene;
	pthread_t thread;
	struct start_line *line;
	bool write;
	uint64_t offset, part;
	double rate; /* GB/s; NAN: error */
};

static int worker_copy(const struct worker *w)
{
	unsigned char *host = w->scene->host + w->offset;
	int error = 0;

	if (w->write)
		return wh_window_copy_to(w->scene->window, w->offset, host, w->part);
	for (uint64_t at = 0; at < w->part && !error; at += CHUNK)
		error = wh_window_copy_from(w->scene->window, w->offset + at, host + at,
					    w->part - at < CHUNK ? w->part - at : CHUNK);
	return error;
}

static void *worker_run(void *arg)
{
	struct worker *w = arg;
	int64_t start, now;
	uint64_t bytes = 0;
	int error;

	w->line->waiting--;
	while (w->line->waiting && !w->line->broken)
		sched_yield();
	if (w->line->broken) {
		w->rate = NAN;
		return NULL;
	}
	start = bench_now();
	do {
		error = worker_copy(w);
		bytes += w->part;
		now = bench_now();
	} while (!error && now - start < 2 * SLICE);
	w->rate = error ? NAN : (double)bytes / (double)(now - start);
	return NULL;
}

/* GB/s of all threads together; NAN: one could not be created, or failed. */
static double workers_rate(struct window_scene *scene, bool write, unsigned count, uint64_t part)
{
	struct worker workers[WINDOW_THREADS];
	struct start_line line = { .waiting = count };
	unsigned started = 1;
	double sum;

	for (unsigned i = 0; i < count; i++)
		workers[i] = (struct worker){ .scene = scene,
					      .line = &line,
					      .write = write,
					      .offset = i * part,
					      .part = part };
	/* This thread is the first. */
	while (started < count &&
	       !pthread_create(&workers[started].thread, NULL, worker_run, &workers[started]))
		started++;
	line.broken = started < count;
	worker_run(&workers[0]);
	sum = workers[0].rate;
	for (unsigned i = 1; i < started; i++) {
		pthread_join(workers[i].thread, NULL);
		sum += workers[i].rate;
	}
	return sum;
}

static int workers_run(struct window_scene *scene)
{
	const struct window_choices *choices = scene->fixture.choices;
	unsigned most = choices->threads ? choices->threads : THREADS;
	uint64_t part = scene->length / most;

	if (!scene->info.pointer)
		return 0;
	part = part > PART_MOST ? PART_MOST : part;
	fprintf(choices->table, "  %-8s %7s %7s  GB/s, read by loads\n", "threads", "write",
		"read");
	for (unsigned count = 1; part && count <= most; count *= 2) {
		double medians[2];

		for (int read = 0; read < 2; read++) {
			double rounds[3];
			json_t *row;

			window_doing(scene, "%s by %u thread%s", read ? "read" : "write", count,
				     count > 1 ? "s" : "");
			for (int r = 0; r < 3; r++)
				rounds[r] = workers_rate(scene, !read, count, part);
			medians[read] = bench_median(rounds, 3);
			if (isnan(medians[read]))
				return -EAGAIN;
			row = window_row(scene, "threads");
			json_object_set_new(row, "op", json_string(read ? "read" : "write"));
			json_object_set_new(row, "threads", json_integer(count));
			json_object_set_new(row, "size_bytes", json_integer((json_int_t)part));
			window_number(row, "bandwidth_GBps", medians[read]);
		}
		fprintf(choices->table, "  %-8u", count);
		window_cell(choices->table, medians[0], 7, 3);
		window_cell(choices->table, medians[1], 7, 3);
		fputc('\n', choices->table);
	}
	return 0;
}

/* ---- bandwidth ------------------------------------------------------------------------------- */

/* The expected number of rows, for the progress. */
static uint64_t bandwidth_rows(const struct window_scene *scene)
{
	const struct window_choices *choices = scene->fixture.choices;
	unsigned most = choices->threads ? choices->threads : THREADS;
	uint64_t rows = 0;

	for (size_t s = 0; s < COPIES && copy_sizes[s] <= scene->length; s++)
		rows += 2;
	if (!scene->info.pointer)
		return rows;
	for (int read = 0; read < 2 && argument(choices->arguments, "ways"); read++)
		for (const struct wh_copy_way *w = read ? wh_copy_gets : wh_copy_puts; w->name; w++)
			rows += way_serves(scene, w) ? WAY_SIZES : 0;
	for (unsigned count = 1; count <= most; count *= 2)
		rows += 2;
	return rows + WINDOW_SHAPES;
}

static int bandwidth_run(struct window_scene *scene)
{
	int error;

	window_begin(scene, bandwidth_rows(scene));
	error = copies_run(scene);
	if (!error && argument(scene->fixture.choices->arguments, "ways"))
		ways_run(scene);
	if (!error)
		error = workers_run(scene);
	return error ? error : window_receive(scene);
}

int window_bandwidth(struct window_choices *choices)
{
	uint64_t size = choices->size ? choices->size : 64 * MIB;

	/* The second half of the pinned memory is for recv(). */
	return window_each_memory(choices, size, 2 * size, bandwidth_run);
}
