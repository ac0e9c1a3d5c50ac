/* SPDX-License-Identifier: Apache-2.0 */
/* Loads beside the test, and the threads that run them. */
#include "bench/beside.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/member.h"
#include "output.h"

#define THREADS 256
#define ARRAY ((size_t)16 << 20) /* bytes; each thread has ARRAYS */
#define ARRAYS 3
#define PART ((size_t)256 << 10) /* bytes of an array between two looks at `stop` */
#define STEPS 4096u /* of the arithmetic, the same */
#define SUMS 16u
#define WARM INT64_C(20000000) /* ns before a load's work counts */

/* ---- names ----------------------------------------------------------------------------------- */

static const struct {
	const char *name, *unit;
	double work;
} loads[BENCH_LOADS] = {
	[BENCH_LOAD_MEMORY] = { "memory", "GB/s", 1e9 },
	[BENCH_LOAD_COMPUTE] = { "compute", "GFLOP/s", 1e9 },
	[BENCH_LOAD_GEMM] = { "gemm", "TFLOP/s", 1e12 },
	[BENCH_LOAD_GEMM_APART] = { "gemm-apart", "TFLOP/s", 1e12 },
};

const char *bench_load_name(enum bench_load_kind kind)
{
	return loads[kind].name;
}

const char *bench_load_unit(enum bench_load_kind kind, double *work)
{
	*work = loads[kind].work;
	return loads[kind].unit;
}

int bench_beside_parse(const char *text, enum bench_load_kind kinds[BENCH_BESIDE_MOST],
		       unsigned *count)
{
	static const struct {
		const char *name;
		enum bench_load_kind first, last;
	} words[] = {
		{ "cpu", BENCH_LOAD_MEMORY, BENCH_LOAD_COMPUTE },
		{ "gemm", BENCH_LOAD_GEMM, BENCH_LOAD_GEMM_APART },
		{ "memory", BENCH_LOAD_MEMORY, BENCH_LOAD_MEMORY },
		{ "compute", BENCH_LOAD_COMPUTE, BENCH_LOAD_COMPUTE },
		{ "gemm-apart", BENCH_LOAD_GEMM_APART, BENCH_LOAD_GEMM_APART },
		{ "gemm-inside", BENCH_LOAD_GEMM, BENCH_LOAD_GEMM },
	};

	*count = 0;
	for (;;) {
		size_t length = strcspn(text, "=,"), all = strcspn(text, ","), i = 0;

		while (i < sizeof(words) / sizeof(words[0]) &&
		       (strlen(words[i].name) != length || strncmp(words[i].name, text, length)))
			i++;
		if (i == sizeof(words) / sizeof(words[0]) ||
		    (all > length + 1 && !bench_load_on_gpu(words[i].last)) || all == length + 1)
			return usage_error("--beside: no '%.*s'; write cpu, gemm, or some of "
					   "memory,compute,gemm-inside,gemm-apart",
					   (int)all, text);
		for (unsigned kind = words[i].first; kind <= words[i].last; kind++) {
			if (*count == BENCH_BESIDE_MOST)
				return usage_error("--beside: each load once");
			kinds[(*count)++] = (enum bench_load_kind)kind;
		}
		if (!text[all])
			return 0;
		text += all + 1;
	}
}

/* The library that --beside names. NULL: none, or no memory. The caller frees it. */
static char *beside_library(const char *text)
{
	const char *file = text ? strchr(text, '=') : NULL;

	return file ? strndup(file + 1, strcspn(file + 1, ",")) : NULL;
}

/* ---- loads ----------------------------------------------------------------------------------- */

struct bench_load {
	enum bench_load_kind kind;
	pthread_t thread[THREADS];
	unsigned threads;
	_Atomic unsigned running; /* that have done their first part */
	_Atomic bool stop;
	_Atomic uint64_t work;
	_Atomic unsigned numbered; /* threads that have taken their arrays */
	/* Kept from one start to the next: to fill them takes longer than a slice. */
	double *arrays[THREADS];
	/* of a GPU's load; kept from one start to the next */
	struct bench_gemm *gemm;
	int ordinal;
	_Atomic int error;
	char text[BENCH_TEXT];
	int64_t begun;
	uint64_t work_begun;
};

/* The arrays of one of the threads, one behind the other. NULL: no memory. */
static double *load_arrays(struct bench_load *load, unsigned number)
{
	double *arrays = load->arrays[number];

	if (!arrays) {
		arrays = load->arrays[number] = malloc(ARRAYS * ARRAY);
		for (size_t i = 0; arrays && i < ARRAYS * ARRAY / sizeof(*arrays); i++)
			arrays[i] = (double)i;
	}
	return arrays;
}

/* A triad over three arrays: as many bytes as a copy of one and a half times as much, and few
 * instructions. */
static void *load_memory(void *arg)
{
	struct bench_load *load = arg;
	double *a = load_arrays(load, atomic_fetch_add(&load->numbered, 1)), *b, *c;
	size_t count = ARRAY / sizeof(*a), part = PART / sizeof(*a);
	bool first = true;

	if (!a)
		atomic_store(&load->error, -ENOMEM);
	b = a ? a + count : NULL;
	c = a ? b + count : NULL;
	for (size_t at = 0; !atomic_load(&load->stop) && !atomic_load(&load->error);
	     at = (at + part) % count) {
		for (size_t i = at; i < at + part; i++)
			a[i] = b[i] + 3.0 * c[i];
		/* So that no pass can be left out. */
		__asm__ volatile("" : : "r"(a), "r"(b), "r"(c) : "memory");
		atomic_fetch_add(&load->work, 3 * PART);
		if (first)
			atomic_fetch_add(&load->running, 1);
		first = false;
	}
	if (first)
		atomic_fetch_add(&load->running, 1);
	return NULL;
}

static void *load_compute(void *arg)
{
	struct bench_load *load = arg;
	double sum[SUMS];
	bool first = true;

	for (unsigned i = 0; i < SUMS; i++)
		sum[i] = 1.0 + i;
	while (!atomic_load(&load->stop)) {
		for (unsigned step = 0; step < STEPS; step++)
			for (unsigned i = 0; i < SUMS; i++)
				sum[i] = sum[i] * 0.999999 + 1e-6;
		__asm__ volatile("" : : "r"(sum) : "memory");
		atomic_fetch_add(&load->work, 2ull * STEPS * SUMS);
		if (first)
			atomic_fetch_add(&load->running, 1);
		first = false;
	}
	if (first)
		atomic_fetch_add(&load->running, 1);
	return NULL;
}

static void *load_gemm(void *arg)
{
	struct bench_load *load = arg;
	bool first = true;

	while (!atomic_load(&load->stop)) {
		int error = bench_gemm_step(load->gemm, load->text, sizeof(load->text));

		if (error) {
			atomic_store(&load->error, error);
			break;
		}
		atomic_fetch_add(&load->work, bench_gemm_work());
		if (first)
			atomic_fetch_add(&load->running, 1);
		first = false;
	}
	if (first)
		atomic_fetch_add(&load->running, 1);
	return NULL;
}

static int load_threads(struct bench_load *load, unsigned wanted)
{
	static void *(*const run[BENCH_LOADS])(void *) = {
		[BENCH_LOAD_MEMORY] = load_memory,
		[BENCH_LOAD_COMPUTE] = load_compute,
		[BENCH_LOAD_GEMM] = load_gemm,
		[BENCH_LOAD_GEMM_APART] = load_gemm,
	};
	const struct timespec pause = { .tv_nsec = 1000000 };
	int64_t start;
	int error = 0;

	while (!error && load->threads < wanted) {
		error = -pthread_create(&load->thread[load->threads], NULL, run[load->kind], load);
		load->threads += !error;
	}
	while (atomic_load(&load->running) < load->threads)
		nanosleep(&pause, NULL);
	start = bench_now();
	while (!error && !atomic_load(&load->error) && bench_now() - start < WARM)
		nanosleep(&pause, NULL);
	load->begun = bench_now();
	load->work_begun = atomic_load(&load->work);
	return error ? error : atomic_load(&load->error);
}

static unsigned cpus(void)
{
	cpu_set_t set;
	int count = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

	return count < 1 ? 1 : count > THREADS ? THREADS : (unsigned)count;
}

int bench_load_start(struct bench_load **at, const struct arguments *arguments,
		     const struct bench_order *order, struct bench_answer *answer)
{
	struct bench_load *load = *at;
	int ordinal = (int)order->length, error = 0;

	if (!load)
		*at = load = calloc(1, sizeof(*load));
	if (!load)
		return answer_error(answer, -ENOMEM, "no memory for a load");
	load->kind = (enum bench_load_kind)order->kind;
	load->running = 0;
	load->numbered = 0;
	load->stop = false;
	load->error = 0;
	load->text[0] = 0;
	if (bench_load_on_gpu(load->kind) && (!load->gemm || load->ordinal != ordinal)) {
		char *library = beside_library(argument(arguments, "beside"));

		bench_gemm_close(load->gemm);
		error = bench_gemm_open(library, bench_setting(arguments, "cuda"), ordinal,
					&load->gemm, load->text, sizeof(load->text));
		load->ordinal = ordinal;
		free(library);
	}
	if (!error)
		error = load_threads(load, bench_load_on_gpu(load->kind) ? 1 : cpus());
	if (!error)
		return 0;
	answer_error(answer, error, "--beside %s: %s", bench_load_name(load->kind),
		     load->text[0] ? load->text : strerror(-error));
	bench_load_free(load);
	*at = NULL;
	return error;
}

static void load_join(struct bench_load *load)
{
	atomic_store(&load->stop, true);
	for (; load->threads; load->threads--)
		pthread_join(load->thread[load->threads - 1], NULL);
}

void bench_load_free(struct bench_load *load)
{
	if (!load)
		return;
	load_join(load);
	bench_gemm_close(load->gemm);
	for (unsigned i = 0; i < THREADS; i++)
		free(load->arrays[i]);
	free(load);
}

int bench_load_stop(struct bench_load *load, struct bench_answer *answer)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	int error;

	if (!load)
		return answer_error(answer, -EINVAL, "no load runs");
	/* On a busy machine a slice may end before any thread has had a processor. */
	while (atomic_load(&load->work) == load->work_begun && !atomic_load(&load->error))
		nanosleep(&pause, NULL);
	answer->ns = bench_now() - load->begun;
	answer->bytes = atomic_load(&load->work) - load->work_begun;
	answer->count = load->threads;
	load_join(load);
	error = atomic_load(&load->error);
	if (error)
		answer_error(answer, error, "--beside %s: %s", bench_load_name(load->kind),
			     load->text[0] ? load->text : strerror(-error));
	return error;
}

/* ---- the process ----------------------------------------------------------------------------- */

void bench_beside_serve(int fd, void *arg)
{
	const struct bench_member_setup *setup = arg;
	struct bench_load *load = NULL;
	struct bench_order order;
	struct bench_answer answer;

	while (bench_next_order(fd, &order)) {
		memset(&answer, 0, sizeof(answer));
		if (order.what == BENCH_BESIDE_START)
			answer.error = bench_load_start(&load, setup->arguments, &order, &answer);
		else if (order.what == BENCH_BESIDE_STOP)
			answer.error = bench_load_stop(load, &answer);
		bench_reply(fd, &answer);
		if (order.what == BENCH_QUIT)
			break;
	}
	bench_load_free(load);
}
