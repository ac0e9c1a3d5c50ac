/* SPDX-License-Identifier: Apache-2.0 */
/* Percentiles, medians, and the ratio of two things measured in turns. */
#include <stdlib.h>

#include "bench/bench.h"

static int compare_samples(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

void bench_sort(uint64_t *samples, size_t count)
{
	if (count)
		qsort(samples, count, sizeof(*samples), compare_samples);
}

uint64_t bench_percentile(const uint64_t *sorted, size_t count, double fraction)
{
	double wanted = fraction * (double)count;
	size_t rank = (size_t)wanted;

	/* Round up, but not for the fraction's rounding error: 0.07 of 100 is 7. */
	if (wanted - (double)rank > 1e-6)
		rank++;
	if (rank > count)
		rank = count;
	return sorted[rank ? rank - 1 : 0];
}

static int compare_values(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
	if (!count)
		return NAN;
	qsort(values, count, sizeof(*values), compare_values);
	if (count % 2)
		return values[count / 2];
	return (values[count / 2 - 1] + values[count / 2]) / 2;
}

void bench_pairs_add(struct bench_pairs *pairs, double test, double limit)
{
	if (pairs->count == BENCH_ROUNDS)
		return;
	pairs->test[pairs->count] = test;
	pairs->limit[pairs->count] = limit;
	pairs->count++;
}

/* The median of the known values. */
static double median_known(const double *values, size_t count)
{
	double known[BENCH_ROUNDS];
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		if (!isnan(values[i]))
			known[n++] = values[i];
	return bench_median(known, n);
}

double bench_pairs_test(const struct bench_pairs *pairs)
{
	return median_known(pairs->test, pairs->count);
}

double bench_pairs_limit(const struct bench_pairs *pairs)
{
	return median_known(pairs->limit, pairs->count);
}

double bench_pairs_ratio(const struct bench_pairs *pairs)
{
	double ratio[BENCH_ROUNDS];

	for (size_t i = 0; i < pairs->count; i++)
		ratio[i] = pairs->limit[i] > 0 ? pairs->test[i] / pairs->limit[i] : NAN;
	return median_known(ratio, pairs->count);
}
