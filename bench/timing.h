/* SPDX-License-Identifier: Apache-2.0 */
/* timing.h: the clocks, the median and the end of the small benchmarks */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <wherry/wherry.h>

/* End the program `name`: `what` failed, with the library's text. */
static inline _Noreturn void timing_die(const char *name, const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", name, what, wh_error_text());
	exit(1);
}

/* ns since some time in the past. */
static inline double timing_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ns of CPU time that this process has taken. */
static inline double timing_cpu(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline int timing_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts the values. */
static inline double timing_median(double *values, unsigned count)
{
	qsort(values, count, sizeof(values[0]), timing_compare);
	return values[count / 2];
}

#endif
