/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idle TURNS [FILE [SETTING...]]: what idle copy threads take from programs beside them
 *
 * A process copies pieces of 64 KiB within itself, BURST at a time, so that the copy threads get
 * them, so many pieces a second. Its CPU time for each piece, less that of memcpy() of as many
 * bytes at the same rate, is what the queue, the waits and the polling of idle threads take: with
 * nothing beside it, and with a process that computes on each CPU. What these do while the pieces
 * are copied is compared with what they do alone.
 */
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "bench/machine.h"
#include "copying.h"
#include "timing.h"

#define PIECE ((uint64_t)64 << 10)
#define BYTES ((uint64_t)16 << 20) /* of the memory on each side */
#define PIECES (BYTES / PIECE)
#define BURST 8
#define SLICE 100e6 /* ns of each measurement */
#define MOST 100 /* turns */
#define LOADS 64

static const unsigned rates[] = { 1000, 2000, 5000, 10000, 20000 }; /* pieces a second */

#define RATES (sizeof(rates) / sizeof(rates[0]))

enum { ALONE, MEMCPY, WHERRY, WAYS };

/* Of one slice. */
struct cost {
	double cpu_us; /* of this process, for each piece */
	double work; /* of the loads, a second */
};

static struct cost costs[2][RATES][WAYS][MOST]; /* without and with the loads */
static char *source, *target;
static struct wh_batch *batches[PIECES];

/* ---- the load ------------------------------------------------------------------------------- */

static struct load {
	_Atomic uint64_t done;
	char apart[120];
} * loads;
static unsigned load_count;
static pid_t load_pids[LOADS];

static _Noreturn void load_run(struct load *load)
{
	double x = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		for (unsigned i = 0; i < 1000; i++)
			x = x * 1.0000001 + 1e-9;
		/* So that the compiler keeps x. */
		atomic_fetch_add_explicit(&load->done, x > 0, memory_order_relaxed);
	}
}

static void loads_signal(int number)
{
	for (unsigned i = 0; i < load_count; i++)
		kill(load_pids[i], number);
}

static void loads_start(void)
{
	cpu_set_t cpus;

	if (!sched_getaffinity(0, sizeof(cpus), &cpus))
		load_count =
			(unsigned)CPU_COUNT(&cpus) < LOADS ? (unsigned)CPU_COUNT(&cpus) : LOADS;
	loads = mmap(NULL, sizeof(*loads) * LOADS, PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (loads == MAP_FAILED)
		timing_die("idle", "memory");
	for (unsigned i = 0; i < load_count; i++) {
		load_pids[i] = fork();
		if (!load_pids[i])
			load_run(&loads[i]);
		if (load_pids[i] < 0)
			timing_die("idle", "fork");
	}
}

static double loads_done(void)
{
	uint64_t done = 0;

	for (unsigned i = 0; i < load_count; i++)
		done += atomic_load(&loads[i].done);
	return (double)done;
}

/* ---- one slice ------------------------------------------------------------------------------ */

static void sleep_until(double when)
{
	struct timespec t = { (time_t)(when / 1e9), 0 };

	t.tv_nsec = (long)(when - (double)t.tv_sec * 1e9);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
		;
}

static void burst_copy(unsigned way, uint64_t first)
{
	for (uint64_t i = first; i < first + BURST; i++)
		if (way == MEMCPY)
			memcpy(target + i * PIECE, source + i * PIECE, PIECE);
		else if (wh_batch_submit(batches[i]))
			timing_die("idle", "wh_batch_submit");
	for (uint64_t i = first; way == WHERRY && i < first + BURST; i++)
		if (wh_batch_wait_for(batches[i], WH_FOREVER) || wh_batch_status(batches[i]))
			timing_die("idle", "a transfer");
}

static struct cost measure(unsigned way, unsigned rate)
{
	double begun = timing_now(), cpu = timing_cpu(), work = loads_done(), next = begun, took;
	uint64_t pieces = 0;

	while (next < begun + SLICE) {
		if (way != ALONE)
			burst_copy(way, pieces % PIECES);
		pieces += BURST;
		next += 1e9 * BURST / rate;
		sleep_until(next);
	}
	took = timing_now() - begun;
	return (struct cost){ (timing_cpu() - cpu) / 1e3 / (double)pieces,
			      (loads_done() - work) / took * 1e9 };
}

/* ---- the run -------------------------------------------------------------------------------- */

static struct copying copying = { .name = "idle" };

static void engine_open(const char *const *settings)
{
	copying_open(&copying, settings, source, target, BYTES);
	for (uint64_t i = 0; i < PIECES; i++)
		batches[i] = copying_batch(&copying, i * PIECE, PIECE);
}

static void engine_close(void)
{
	for (uint64_t i = 0; i < PIECES; i++)
		wh_batch_free(batches[i]);
	copying_close(&copying);
}

static double median_of(const struct cost (*ways)[MOST], unsigned way, bool load, unsigned turns)
{
	static double values[MOST];

	for (unsigned i = 0; i < turns; i++)
		values[i] = load ? load_count * (1 - ways[way][i].work / ways[ALONE][i].work) :
				   ways[way][i].cpu_us - ways[ALONE][i].cpu_us;
	return timing_median(values, turns);
}

/* The medians of all turns. CPUs lost: what the loads do without, as a number of CPUs. */
static json_t *row(bool beside, unsigned rate, const struct cost (*ways)[MOST], unsigned turns)
{
	double us = median_of(ways, WHERRY, false, turns);
	double copy = median_of(ways, MEMCPY, false, turns);
	double lost = beside ? median_of(ways, WHERRY, true, turns) : 0;
	double lost_copy = beside ? median_of(ways, MEMCPY, true, turns) : 0;

	printf("%8s %10u %14.2f %14.2f %14.1f %10.3f %10.3f\n", beside ? "yes" : "no", rate, us,
	       copy, (us - copy) * rate / 1e4, lost, lost_copy);
	return json_pack("{s:b, s:i, s:f, s:f, s:f, s:f, s:f}", "load", beside, "pieces_per_second",
			 (int)rate, "cpu_us_per_piece", us, "memcpy_cpu_us_per_piece", copy,
			 "overhead_percent_of_a_cpu", (us - copy) * rate / 1e4, "load_lost_cpus",
			 lost, "load_lost_cpus_by_memcpy", lost_copy);
}

int main(int argc, char **argv)
{
	unsigned turns = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	static const char *const usual[] = { "copy_from=64KiB", "copy_threads=4", "observe=off",
					     NULL };
	const char *const *settings = argc > 3 ? (const char *const *)argv + 3 : usual;
	json_t *all, *rows;
	int status = 0;

	if (!turns || turns > MOST) {
		fprintf(stderr, "usage: idle TURNS [FILE [SETTING...]]\n");
		return 2;
	}
	loads_start();
	source = malloc(BYTES);
	target = malloc(BYTES);
	if (!source || !target)
		timing_die("idle", "memory");
	memset(source, 1, BYTES);
	memset(target, 2, BYTES);
	engine_open(settings);
	for (unsigned turn = 0; turn < turns; turn++)
		for (unsigned beside = 0; beside < 2; beside++) {
			loads_signal(beside ? SIGCONT : SIGSTOP);
			for (unsigned i = 0; i < RATES * WAYS; i++)
				costs[beside][i / WAYS][i % WAYS][turn] =
					measure(i % WAYS, rates[i / WAYS]);
		}
	loads_signal(SIGKILL);
	rows = json_array();
	printf("%8s %10s %14s %14s %14s %10s %10s\n", "load", "pieces/s", "CPU us/piece",
	       "memcpy us", "more, % of CPU", "CPUs lost", "by memcpy");
	for (unsigned i = 0; i < 2 * RATES; i++)
		json_array_append_new(
			rows, row(i / RATES, rates[i % RATES], costs[i / RATES][i % RATES], turns));
	engine_close();
	all = json_pack("{s:i, s:o, s:i, s:i, s:i, s:o}", "schema", 1, "environment",
			machine_describe_run(NULL, settings), "turns", (int)turns, "burst", BURST,
			"piece_bytes", (int)PIECE, "rows", rows);
	if (argc > 2 && json_dump_file(all, argv[2], JSON_INDENT(1) | JSON_REAL_PRECISION(6))) {
		fprintf(stderr, "idle: cannot write %s\n", argv[2]);
		status = 1;
	}
	json_decref(all);
	free(source);
	free(target);
	return status;
}
