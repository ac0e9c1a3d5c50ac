/* SPDX-License-Identifier: Apache-2.0 */
/* wherry window pingpong: CPU and GPU exchange numbers by two flags in GPU or host memory; the bare
 * loop over the same flags is measured for comparison. */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <string.h>

#include "bench/bench.h"
#include "window/window.h"

/* kernels/bounce.cu */
extern const char bounce_ptx[];

#define BOUNCES 20000u
#define REPEATS BENCH_ROUNDS
#define SECONDS INT64_C(10) /* limit for an answer of the GPU */
#define LATE 20000 /* ns: longer than any GPU takes */
#define PATIENCE 20000000u /* reads of the GPU for one number: some seconds */
#define STREAM_NON_BLOCKING 1
#define APART 256u /* bytes between the flags: each has a cache line of its own */
#define LENGTH 65536u

/* How the CPU accesses a flag. */
enum by { BY_POINTER, BY_CALLS };

static const struct algorithm {
	const char *name, *meaning;
	/* The flag that the CPU, the GPU writes is in GPU memory; else in pinned memory. */
	bool there, here;
} algorithms[] = {
	{ "window, pinned", "the CPU writes to the GPU's memory, the GPU to the host's", true,
	  false },
	{ "window, window", "both write to the GPU's memory; the CPU reads it through the window",
	  true, true },
	{ "pinned, window", "the CPU writes to the host's memory and reads the GPU's", false,
	  true },
	{ "pinned, pinned", "both write to the host's memory: no window", false, false },
};

struct game {
	struct window_scene *scene;
	const struct algorithm *algorithm;
	void *module, *kernel, *stream;
	uint64_t pinned; /* the GPU's address of the pinned memory */
	uint32_t bounces;
};

/* ---- the CPU's side -------------------------------------------------------------------------- */

static void store_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_sfence();
#else
	__sync_synchronize();
#endif
}

static uint32_t *flag_pointer(const struct game *game, bool window, uint64_t offset)
{
	unsigned char *base = window ? game->scene->info.pointer : game->scene->host;

	return (uint32_t *)(void *)(base + offset);
}

static int flag_write(const struct game *game, enum by by, uint32_t value)
{
	if (by == BY_CALLS && game->algorithm->there)
		return wh_window_copy_to(game->scene->window, 0, &value, sizeof(value));
	__atomic_store_n(flag_pointer(game, game->algorithm->there, 0), value, __ATOMIC_RELAXED);
	store_fence();
	return 0;
}

static int flag_read(const struct game *game, enum by by, uint32_t *value)
{
	if (by == BY_CALLS && game->algorithm->here)
		return wh_window_copy_from(game->scene->window, APART, value, sizeof(*value));
	*value =
		__atomic_load_n(flag_pointer(game, game->algorithm->here, APART), __ATOMIC_RELAXED);
	return 0;
}

/* 0; -ETIMEDOUT: the GPU does not answer. */
static int flag_await(const struct game *game, enum by by, uint32_t value)
{
	int64_t since = 0, now;
	uint32_t seen = ~value;
	int error = flag_read(game, by, &seen);

	for (unsigned i = 1; !error && seen != value; i++) {
		/* Read the clock so rarely that it costs nothing. */
		if (i % 64 == 0) {
			now = bench_now();
			since = since ? since : now;
			if (now - since > SECONDS * 1000000000)
				return -ETIMEDOUT;
			if (now - since > LATE)
				sched_yield(); /* the GPU of tests is a thread */
		}
		error = flag_read(game, by, &seen);
	}
	return error;
}

/* ---- one game -------------------------------------------------------------------------------- */

/* Clear both flags. */
static int game_clear(const struct game *game)
{
	struct window_scene *scene = game->scene;
	struct gpu *gpu = scene->fixture.gpu;

	memset(scene->host, 0, LENGTH);
	return gpu_call(gpu, cuMemcpy, (uintptr_t)scene->fixture.address, (uintptr_t)scene->host,
			LENGTH) ||
			       gpu_call(gpu, cuStreamSynchronize, NULL) ?
		       -EIO :
		       0;
}

static int game_launch(const struct game *game)
{
	uint64_t device = (uintptr_t)game->scene->fixture.address;
	uint64_t in = game->algorithm->there ? device : game->pinned;
	uint64_t out = (game->algorithm->here ? device : game->pinned) + APART;
	uint32_t bounces = game->bounces, patience = PATIENCE;
	void *parameters[] = { &in, &out, &bounces, &patience };
	struct gpu *gpu = game->scene->fixture.gpu;

	return gpu_call(gpu, cuLaunchKernel, game->kernel, 1, 1, 1, 1, 1, 1, 0, game->stream,
			parameters, NULL);
}

/* Play one game; *us: microseconds of a round trip. */
static int game_play(const struct game *game, enum by by, double *us)
{
	struct window_scene *scene = game->scene;
	struct gpu *gpu = scene->fixture.gpu;
	uint32_t warm = game->bounces / 10; /* the first ones wait for the kernel's start */
	int64_t start = bench_now();
	int error = game_clear(game);

	if (!error)
		error = game_launch(game);
	if (error) {
		snprintf(scene->text, sizeof(scene->text), "%s", gpu->text);
		return error;
	}
	for (uint32_t i = 1; i <= game->bounces && !error; i++) {
		if (i == warm + 1)
			start = bench_now();
		error = flag_write(game, by, i);
		if (!error)
			error = flag_await(game, by, i);
	}
	*us = (double)(bench_now() - start) / 1000 / (game->bounces - warm);
	if (error == -ETIMEDOUT)
		snprintf(scene->text, sizeof(scene->text), "%s: the GPU does not answer",
			 game->algorithm->name);
	/* The kernel ends by itself after PATIENCE reads. */
	if (gpu_call(gpu, cuStreamSynchronize, game->stream) && !error) {
		snprintf(scene->text, sizeof(scene->text), "%s", gpu->text);
		error = -EIO;
	}
	return error;
}

static void game_skip(const struct game *game)
{
	struct window_scene *scene = game->scene;
	const struct window_choices *choices = scene->fixture.choices;

	scene->rows++;
	progress_wipe();
	fprintf(choices->table, "  %-15s skipped: staged: no pointer for a loop\n",
		game->algorithm->name);
	json_array_append_new(choices->skipped,
			      json_pack("{s:s, s:s, s:s}", "memory", scene->fixture.memory->name,
					"algorithm", game->algorithm->name, "reason",
					"staged: no pointer for a loop"));
}

static int game_row(const struct game *game)
{
	const struct algorithm *a = game->algorithm;
	struct bench_pairs pairs = { .count = 0 };
	FILE *table = game->scene->fixture.choices->table;
	bool window = a->there || a->here;
	double mine = NAN, bare = NAN;
	json_t *row;
	int error = 0;

	if (window && !game->scene->info.pointer) {
		game_skip(game);
		return 0;
	}
	for (int i = 0; i < REPEATS && !error; i++) {
		window_doing(game->scene, "%s", a->name);
		if (window)
			error = game_play(game, BY_CALLS, &mine);
		if (!error)
			error = game_play(game, BY_POINTER, &bare);
		bench_pairs_add(&pairs, mine, bare);
	}
	if (error)
		return error;
	row = window_row(game->scene, "pingpong");
	json_object_set_new(row, "algorithm", json_string(a->name));
	window_number(row, "round_trip_us", bench_pairs_test(&pairs));
	json_object_set_new(row, "limit_name", json_string("the bare loop over the same flags"));
	window_number(row, "limit_us", bench_pairs_limit(&pairs));
	window_number(row, "ratio", bench_pairs_ratio(&pairs));
	json_object_set_new(row, "bounces", json_integer(game->bounces));
	fprintf(table, "  %-15s", a->name);
	window_cell(table, bench_pairs_test(&pairs), 8, 3);
	window_cell(table, bench_pairs_limit(&pairs), 8, 3);
	window_cell(table, bench_pairs_ratio(&pairs), 6, 3);
	fprintf(table, "  %s\n", a->meaning);
	fflush(table);
	return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int game_set_up(struct game *game)
{
	struct window_scene *scene = game->scene;
	struct gpu *gpu = scene->fixture.gpu;
	struct wh_memory_info info = { .size = sizeof(info) };
	int error = wh_memory_query(scene->fixture.engine, scene->host, &info);

	if (error)
		return error;
	game->pinned = info.device_address;
	if (gpu_call(gpu, cuModuleLoadData, &game->module, bounce_ptx) ||
	    gpu_call(gpu, cuModuleGetFunction, &game->kernel, game->module, "wh_bounce") ||
	    gpu_call(gpu, cuStreamCreate, &game->stream, STREAM_NON_BLOCKING)) {
		snprintf(scene->text, sizeof(scene->text), "%s", gpu->text);
		return -EIO;
	}
	return 0;
}

static int pingpong_run(struct window_scene *scene)
{
	unsigned rounds = scene->fixture.choices->rounds;
	struct game game = { .scene = scene, .bounces = rounds ? rounds : BOUNCES };
	struct gpu *gpu = scene->fixture.gpu;
	int error = game_set_up(&game);

	window_begin(scene, sizeof(algorithms) / sizeof(algorithms[0]));
	if (!error)
		fprintf(scene->fixture.choices->table, "  %-15s %8s %8s %6s  us of a round trip\n",
			"CPU's, GPU's", "window", "bare", "ratio");
	for (size_t i = 0; i < sizeof(algorithms) / sizeof(algorithms[0]) && !error; i++) {
		game.algorithm = &algorithms[i];
		error = game_row(&game);
	}
	if (game.stream)
		gpu->cuStreamDestroy(game.stream);
	if (game.module)
		gpu->cuModuleUnload(game.module);
	return error;
}

int window_pingpong(struct window_choices *choices)
{
	return window_each_memory(choices, LENGTH, LENGTH, pingpong_run);
}
