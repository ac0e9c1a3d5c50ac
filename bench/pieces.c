/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pieces TURNS [FILE [SETTING...]]: what the copiers' queue costs for each piece
 *
 * One engine copies pieces of 4 KiB to 1 MiB within this process, IN_FLIGHT at a time, all of them
 * by way of the queue (inline=0, unless the settings say otherwise). In turns with that as many
 * threads as there are CPUs copy pieces of the same size by memcpy(). The CPU time of a piece
 * stands beside the bandwidth: it means the same on a machine that does other work meanwhile.
 */
#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <wherry/wherry.h>

#include "bench/machine.h"
#include "copying.h"
#include "timing.h"

#define BYTES (UINT64_C(64) << 20) /* of the memory on each side */
#define IN_FLIGHT 16
#define BATCHES 1024
#define SLICE 20e6 /* ns of each measurement */
#define MOST 1000 /* turns */
#define COPIERS 64

static const uint64_t sizes[] = { 4 << 10, 64 << 10, 256 << 10, 1 << 20 };

#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static char *source, *target;

/* Of one slice. */
struct cost {
	double gb_s, cpu_ns, sleeps; /* the last two for each piece */
};

static struct cost ours[SIZES][MOST], plain[SIZES][MOST];

/* ---- one slice ------------------------------------------------------------------------------ */

struct meter {
	double begun, cpu;
	long sleeps;
};

static struct meter meter_start(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (struct meter){ timing_now(), timing_cpu(), usage.ru_nvcsw };
}

static struct cost meter_read(const struct meter *meter, uint64_t pieces, uint64_t size)
{
	double bytes = (double)(pieces * size);
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (struct cost){ bytes / (timing_now() - meter->begun),
			      (timing_cpu() - meter->cpu) / (double)pieces,
			      (double)(usage.ru_nvcsw - meter->sleeps) / (double)pieces };
}

static struct cost measure_batches(struct wh_batch **batches, uint64_t count, uint64_t size)
{
	uint64_t submitted = 0, completed = 0;
	struct meter meter = meter_start();
	bool more = true;

	do {
		for (; more && submitted - completed < IN_FLIGHT; submitted++)
			if (wh_batch_submit(batches[submitted % count]))
				timing_die("pieces", "wh_batch_submit");
		if (wh_batch_wait_for(batches[completed % count], WH_FOREVER) ||
		    wh_batch_status(batches[completed % count]))
			timing_die("pieces", "a transfer");
		completed++;
		more = more && timing_now() < meter.begun + SLICE;
	} while (more || completed < submitted);
	return meter_read(&meter, completed, size);
}

/* A thread that copies pieces `first`, `first` + `every` and so on. */
struct copier {
	pthread_t thread;
	uint64_t size, first, every, done;
	double until;
};

static void *copier_run(void *argument)
{
	struct copier *copier = argument;
	uint64_t pieces = BYTES / copier->size, at = copier->first;

	do {
		memcpy(target + at * copier->size, source + at * copier->size, copier->size);
		at = at + copier->every < pieces ? at + copier->every : copier->first;
		copier->done++;
	} while (timing_now() < copier->until);
	return NULL;
}

static struct cost measure_memcpy(unsigned threads, uint64_t size)
{
	struct meter meter = meter_start();
	struct copier copiers[COPIERS];
	uint64_t done = 0;

	for (unsigned i = 0; i < threads; i++) {
		copiers[i] = (struct copier){
			.size = size, .first = i, .every = threads, .until = meter.begun + SLICE
		};
		if (pthread_create(&copiers[i].thread, NULL, copier_run, &copiers[i])) {
			fprintf(stderr, "pieces: pthread_create failed\n");
			exit(1);
		}
	}
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(copiers[i].thread, NULL);
		done += copiers[i].done;
	}
	return meter_read(&meter, done, size);
}

/* ---- the run -------------------------------------------------------------------------------- */

static struct copying copying = { .name = "pieces" };
static struct wh_batch *batches[SIZES][BATCHES];
static uint64_t counts[SIZES];

static void engine_open(const char *const *settings)
{
	copying_open(&copying, settings, source, target, BYTES);
	for (unsigned s = 0; s < SIZES; s++) {
		counts[s] = BYTES / sizes[s] < BATCHES ? BYTES / sizes[s] : BATCHES;
		for (uint64_t i = 0; i < counts[s]; i++)
			batches[s][i] = copying_batch(&copying, i * sizes[s], sizes[s]);
	}
}

static void engine_close(void)
{
	for (unsigned s = 0; s < SIZES; s++)
		for (uint64_t i = 0; i < counts[s]; i++)
			wh_batch_free(batches[s][i]);
	copying_close(&copying);
}

/* The medians of all turns. */
static struct cost cost_median(const struct cost *costs, unsigned turns)
{
	static double gb_s[MOST], cpu_ns[MOST], sleeps[MOST];

	for (unsigned i = 0; i < turns; i++) {
		gb_s[i] = costs[i].gb_s;
		cpu_ns[i] = costs[i].cpu_ns;
		sleeps[i] = costs[i].sleeps;
	}
	return (struct cost){ timing_median(gb_s, turns), timing_median(cpu_ns, turns),
			      timing_median(sleeps, turns) };
}

static json_t *report(unsigned turns)
{
	static double shares[MOST];
	json_t *rows = json_array();

	printf("%10s %9s %12s %7s %14s %14s %14s\n", "bytes", "GB/s", "memcpy GB/s", "share",
	       "CPU ns/piece", "memcpy ns/piece", "sleeps/piece");
	for (unsigned s = 0; s < SIZES; s++) {
		struct cost us = cost_median(ours[s], turns), copy = cost_median(plain[s], turns);
		double share;

		for (unsigned i = 0; i < turns; i++)
			shares[i] = ours[s][i].gb_s / plain[s][i].gb_s;
		share = timing_median(shares, turns);
		printf("%10llu %9.2f %12.2f %7.2f %14.0f %14.0f %14.3f\n",
		       (unsigned long long)sizes[s], us.gb_s, copy.gb_s, share, us.cpu_ns,
		       copy.cpu_ns, us.sleeps);
		json_array_append_new(rows, json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}",
						      "bytes", (json_int_t)sizes[s], "gb_s",
						      us.gb_s, "memcpy_gb_s", copy.gb_s, "share",
						      share, "cpu_ns_per_piece", us.cpu_ns,
						      "memcpy_cpu_ns_per_piece", copy.cpu_ns,
						      "sleeps_per_piece", us.sleeps));
	}
	return rows;
}

int main(int argc, char **argv)
{
	unsigned turns = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0, threads = 1;
	static const char *const usual[] = { "inline=0", "observe=off", NULL };
	const char *const *settings = argc > 3 ? (const char *const *)argv + 3 : usual;
	int status = 0;
	cpu_set_t cpus;
	json_t *all;

	if (!turns || turns > MOST) {
		fprintf(stderr, "usage: pieces TURNS [FILE [SETTING...]]\n");
		return 2;
	}
	if (!sched_getaffinity(0, sizeof(cpus), &cpus))
		threads = CPU_COUNT(&cpus) < COPIERS ? (unsigned)CPU_COUNT(&cpus) : COPIERS;
	source = malloc(BYTES);
	target = malloc(BYTES);
	if (!source || !target) {
		fprintf(stderr, "pieces: no memory\n");
		return 1;
	}
	memset(source, 1, BYTES);
	memset(target, 2, BYTES);
	engine_open(settings);
	for (unsigned turn = 0; turn < turns; turn++)
		for (unsigned s = 0; s < SIZES; s++) {
			ours[s][turn] = measure_batches(batches[s], counts[s], sizes[s]);
			plain[s][turn] = measure_memcpy(threads, sizes[s]);
		}
	engine_close();
	all = json_pack("{s:i, s:o, s:i, s:i, s:i, s:o}", "schema", 1, "environment",
			machine_describe_run(NULL, settings), "turns", (int)turns, "in_flight",
			IN_FLIGHT, "memcpy_threads", (int)threads, "rows", report(turns));
	if (argc > 2 && json_dump_file(all, argv[2], JSON_INDENT(1) | JSON_REAL_PRECISION(6))) {
		fprintf(stderr, "pieces: cannot write %s\n", argv[2]);
		status = 1;
	}
	json_decref(all);
	free(source);
	free(target);
	return status;
}
